"""The libraries behind `taojin.tokenize.backends`, each as an object with `encode` and `decode`.

Every one of them runs on the calling thread. Bytes of ids come from the tokenizer's file wherever a token is bytes, and
are then the same for all of them.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from taojin.core.errors import InputError
from taojin.core.storage import first_line
from taojin.tokenize.known_ranks import GIGATOKEN_SCHEMES
from taojin.tokenize.line_borders import can_cut_at_lines, cut_at_lines
from taojin.tokenize.normal_form import to_nfc
from taojin.tokenize.tokenizer_file import (
    TokenizerFile,
    byte_alphabet,
    load_sentencepiece,
    parse_json,
    read_ranks,
    spells_bytes,
)

# Reading /proc costs 40 µs, encoding 16 MB a second.
_CHECK_BYTES = 16_000_000
# Not more often than that, should the process grow by itself.
_RELOAD_BYTES = 64_000_000
# A process stays below 1.5 GB: 250 MB to start with, this much more, 440 MB for one document of 100 MB.
_CACHE_BYTES = 500_000_000


class Tokens(NamedTuple):
    """`ids`: uint32, flat. `offsets`: int64[documents + 1], from 0: document d is ids[offsets[d]:offsets[d + 1]]."""

    ids: NDArray[np.uint32]
    offsets: NDArray[np.int64]


class LibraryEncoder:
    """What the libraries share: the normal form, and ids → bytes."""

    name = "reference"

    def __init__(self, file: TokenizerFile, plain: bool) -> None:
        self._file = file
        self._plain = plain

    def encode(self, texts: pa.LargeStringArray) -> Tokens:
        return self._encode(to_nfc(texts) if self._file.form else texts)

    def _encode(self, texts: pa.LargeStringArray) -> Tokens:
        # A document at a time: a batch of Python objects with offsets takes 100 bytes per byte of text.
        parts = [self._ids(text.as_py()) for text in texts]
        offsets = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([part.size for part in parts], out=offsets[1:])
        return Tokens(np.concatenate(parts) if parts else np.zeros(0, np.uint32), offsets)

    def _ids(self, text: str) -> NDArray[np.uint32]:
        raise NotImplementedError

    def decode(self, ids: NDArray[np.integer[Any]]) -> bytes:
        """Raises InputError for an id that the vocabulary lacks."""
        numbers = ids.tolist()
        if self._bytes_of is None:
            return self._decode(numbers)
        try:
            return b"".join([self._bytes_of[number] for number in numbers])
        except KeyError as error:
            raise InputError(f"{self._file.path}: its vocabulary has no id {error.args[0]}") from None

    def _decode(self, ids: list[int]) -> bytes:
        raise NotImplementedError

    @cached_property
    def _bytes_of(self) -> dict[int, bytes] | None:
        """Bytes of each id; None where a library has to say what ids mean together."""
        if self._file.kind == "tiktoken":
            table = {rank: token for token, rank in read_ranks(self._file.data, self._file.path)}
            return table | {number: token.encode() for token, number in self._file.specials}
        if self._file.kind == "sentencepiece":
            return None
        tokenizer = parse_json(self._file)
        if not spells_bytes(tokenizer):
            return None
        alphabet = byte_alphabet()
        added = {token["id"]: token["content"].encode() for token in tokenizer.get("added_tokens") or []}
        vocab = tokenizer["model"]["vocab"].items()
        # An entry with characters that stand for no byte is never made of bytes; it means itself.
        return {
            number: bytes([alphabet[c] for c in token]) if alphabet.keys() >= set(token) else token.encode()
            for token, number in vocab
        } | added


class TokenizersEncoder(LibraryEncoder):
    def __init__(self, file: TokenizerFile, plain: bool) -> None:
        super().__init__(file, plain)
        # Read by the library at each call; a Ray task has one core.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        from tokenizers import Tokenizer

        self._tokenizer = _loaded(file, "tokenizers", lambda: Tokenizer.from_buffer(file.data))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = plain
        self._cuts = can_cut_at_lines(parse_json(file))

    def _ids(self, text: str) -> NDArray[np.uint32]:
        parts = cut_at_lines(text) if self._cuts else [text]
        return np.concatenate([self._ids_of_part(part) for part in parts])

    def _ids_of_part(self, part: str) -> NDArray[np.uint32]:
        # encode_batch_fast keeps no offsets: 1.6 times as fast as encode.
        return np.array(self._tokenizer.encode_batch_fast([part], add_special_tokens=False)[0].ids, np.uint32)

    def _decode(self, ids: list[int]) -> bytes:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False)).encode()


class TiktokenEncoder(LibraryEncoder):
    def __init__(self, file: TokenizerFile, plain: bool) -> None:
        super().__init__(file, plain)
        try:
            import tiktoken
        except ImportError:
            raise InputError(f"{file.path}: a rank file needs the library: pip install tiktoken") from None
        ranks = dict(read_ranks(file.data, file.path))
        specials = {} if plain else dict(file.specials)
        settings: dict[str, Any] = {"pat_str": file.pattern, "mergeable_ranks": ranks, "special_tokens": specials}
        self._tokenizer = _loaded(file, "tiktoken", lambda: tiktoken.Encoding(file.path, **settings))

    def _ids(self, text: str) -> NDArray[np.uint32]:
        try:
            return np.asarray(self._tokenizer.encode_to_numpy(text, allowed_special="all"), np.uint32)
        except ValueError as error:
            # Its regular expressions give up on a million blanks in a row.
            shown = f"{text[:40]!r}… ({len(text):,} characters)"
            raise InputError(f"tiktoken cannot split {shown}: {first_line(error)}: use --backend gigatoken") from None


class SentencepieceEncoder(LibraryEncoder):
    """Control pieces are never read out of a text, so `plain` changes nothing."""

    def __init__(self, file: TokenizerFile, plain: bool) -> None:
        super().__init__(file, plain)
        self._tokenizer = load_sentencepiece(file)

    def _ids(self, text: str) -> NDArray[np.uint32]:
        return np.array(self._tokenizer.encode(text), np.uint32)

    def _decode(self, ids: list[int]) -> bytes:
        return str(self._tokenizer.decode(ids)).encode()


class GigatokenEncoder(LibraryEncoder):
    """Keeps the ids of pre-tokens that it has seen, without end: 1 MB per MB of Chinese text, 4 at worst. So it is
    loaded anew (0.7 s, and a second to free) when the process has grown by `_CACHE_BYTES`."""

    name = "gigatoken"

    def __init__(self, file: TokenizerFile, plain: bool) -> None:
        super().__init__(file, plain)
        import awkward

        self._awkward = awkward
        self._load()

    def _load(self) -> None:
        with _silent_panics():
            self._tokenizer = _loaded(self._file, "gigatoken", lambda: _gigatoken(self._file, self._plain))
        self._text_bytes = 0
        self._checked_bytes = 0
        self._private_bytes = private_bytes()

    def _encode(self, texts: pa.LargeStringArray) -> Tokens:
        data, offsets = _buffers(texts)
        contents = self._awkward.contents
        characters = contents.NumpyArray(data, parameters={"__array__": "char"})
        strings = contents.ListOffsetArray(
            self._awkward.index.Index64(offsets), characters, parameters={"__array__": "string"}
        )
        self._keep_small(int(offsets[-1] - offsets[0]))
        found = self._tokenizer.encode_batch(self._awkward.Array(strings), parallel=False).layout
        return Tokens(found.content.data, found.offsets.data)

    def _keep_small(self, text_bytes: int) -> None:
        if self._text_bytes - self._checked_bytes >= _CHECK_BYTES:
            self._checked_bytes = self._text_bytes
            if self._text_bytes >= _RELOAD_BYTES and private_bytes() - self._private_bytes > _CACHE_BYTES:
                # The old one must go first, or both are there.
                del self._tokenizer
                self._load()
        self._text_bytes += text_bytes

    def _decode(self, ids: list[int]) -> bytes:
        return self._reference.decode(np.array(ids))

    @cached_property
    def _reference(self) -> LibraryEncoder:
        return REFERENCES[self._file.kind](self._file, self._plain)


REFERENCES: dict[str, type[LibraryEncoder]] = {
    "json": TokenizersEncoder,
    "tiktoken": TiktokenEncoder,
    "sentencepiece": SentencepieceEncoder,
}


def _loaded(file: TokenizerFile, library: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except InputError:
        raise
    except BaseException as error:
        # A panic of a Rust library is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{library} cannot read {file.path}: {first_line(error)}") from None


@contextlib.contextmanager
def _silent_panics() -> Iterator[None]:
    """What a Rust library prints about a panic is kept off the terminal: the reason is told in a line."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _gigatoken(file: TokenizerFile, plain: bool) -> Any:
    import gigatoken

    if file.kind == "json":
        return gigatoken.Tokenizer.from_json(_without_specials(file.data) if plain else file.data)
    if file.kind == "sentencepiece":
        from gigatoken._load.sentencepiece import sentencepiece_to_tokenizer_json

        # It would read control pieces out of a text, which sentencepiece does not.
        return gigatoken.Tokenizer.from_json(_without_specials(sentencepiece_to_tokenizer_json(file.data)))
    scheme = GIGATOKEN_SCHEMES.get(file.pattern)
    if scheme is None:
        raise InputError("gigatoken splits text by a pattern it knows, not by this one")
    with tempfile.NamedTemporaryFile(suffix=".tiktoken") as ranks:
        ranks.write(file.data)
        ranks.flush()
        specials = {} if plain else dict(file.specials)
        return gigatoken.Tokenizer.from_tiktoken(ranks.name, pretokenizer=scheme, special_tokens=specials)


def _without_specials(data: bytes | str) -> bytes:
    tokenizer = orjson.loads(data)
    tokenizer["added_tokens"] = [token for token in tokenizer.get("added_tokens") or [] if not token.get("special")]
    return orjson.dumps(tokenizer)


def _buffers(texts: pa.LargeStringArray) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    _, offsets, data = texts.buffers()
    if len(texts) == 0:
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    offsets_D = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8), offsets_D


def private_bytes() -> int:
    """Memory that is this process's alone, 0 where the system does not say (then nothing is loaded anew)."""
    try:
        with open("/proc/self/status", "rb") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith(b"RssAnon"))
    except (OSError, StopIteration):
        return 0
