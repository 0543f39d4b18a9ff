"""Texts in an Arrow array → ids in one flat array, by one of two libraries.

*reference*: the library a file was made for, `tokenizers`, `tiktoken` or `sentencepiece`; a document at a time.
*gigatoken*: the same ids about ten times as fast, from the Arrow buffers without a Python object per document. It is taken
only where `choose_backend` finds the same ids on texts of this corpus and on `NASTY`.

Neither starts a thread. Texts are valid UTF-8 without nulls: the reader has seen to that. Cost on Chinese text (one core of
the bench machine): gigatoken 17 MB/s, loading it 1 s; tokenizers 1.5 MB/s.
Long runs without a border are cut in `taojin.tokenize.long_texts`, before the texts come here.
"""

import os
import tempfile
import unicodedata
from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from taojin.core.errors import ConfigError, InputError
from taojin.core.storage import first_line
from taojin.tokenize.known_ranks import GIGATOKEN_SCHEMES
from taojin.tokenize.line_borders import can_cut_at_lines, cut_at_lines
from taojin.tokenize.nasty import NASTY
from taojin.tokenize.tokenizer_file import (
    TokenizerFile,
    byte_alphabet,
    is_byte_level,
    load_sentencepiece,
    parse_json,
    read_ranks,
)

BACKENDS = ("reference", "gigatoken")
# The reference encodes 1.4 MB/s, so this is a third of a second.
SAMPLE_BYTES = 500_000
# A tokenizer of 128,000 entries takes 100 to 250 MB, and a worker needs one.
_KEPT_ENCODERS = 2


class Tokens(NamedTuple):
    """`ids`: uint32, flat. `offsets`: int64[documents + 1], from 0: document d is ids[offsets[d]:offsets[d + 1]]."""

    ids: NDArray[np.uint32]
    offsets: NDArray[np.int64]


class Encoder(Protocol):
    name: str

    def encode(self, texts: pa.LargeStringArray) -> Tokens:
        """Ids of every text, nothing added around them. Any slice offset."""

    def decode(self, ids: NDArray[np.integer[Any]]) -> bytes:
        """The bytes that ids stand for, special tokens as they are written."""


class Choice(NamedTuple):
    """`reason`: a sentence for the log."""

    backend: str
    reason: str


def make_encoder(file: TokenizerFile, backend: str, plain: bool) -> Encoder:
    """The encoder of a file, made once per process (a second for a large vocabulary).

    `backend`: "reference" | "gigatoken". `plain`: special tokens that are written in a text are encoded as ordinary text;
    added tokens that are not special stay tokens. Raises InputError where the library cannot read the file.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"--backend: expected one of {', '.join(BACKENDS)}, found {backend}")
    key = (file.fingerprint, backend, plain)
    if key not in _encoders:
        while len(_encoders) >= _KEPT_ENCODERS:
            _encoders.popitem(last=False)
        kinds: dict[str, type[_Encoder]] = (
            _REFERENCES if backend == "reference" else dict.fromkeys(_REFERENCES, _Gigatoken)
        )
        _encoders[key] = kinds[file.kind](file, plain)
    _encoders.move_to_end(key)
    return _encoders[key]


def choose_backend(
    file: TokenizerFile, sample: pa.LargeStringArray, *, wanted: str = "auto", plain: bool = False
) -> Choice:
    """gigatoken if it reads the file and gives the reference's ids, for texts spread over the sample (`SAMPLE_BYTES` of
    it), for `NASTY`, and for the file's own added tokens in odd places; else the reference, and the reason says why.

    `wanted`: "auto" | "reference" | "gigatoken". Raises InputError if gigatoken is wanted and cannot be had.
    """
    if wanted not in ("auto", *BACKENDS):
        raise ConfigError(f"--backend: expected one of auto, {', '.join(BACKENDS)}, found {wanted}")
    reference = make_encoder(file, "reference", plain)
    if wanted == "reference":
        return Choice("reference", "asked for")
    texts = [*NASTY, *_around_added_tokens(file), *_spread(sample)]
    try:
        fast = make_encoder(file, "gigatoken", plain)
        against = first_difference(reference, fast, texts)
    except InputError as error:
        against = str(error)
    if not against:
        return Choice("gigatoken", f"the ids of the reference on {len(texts):,} texts")
    if wanted == "gigatoken":
        raise InputError(f"--backend gigatoken: {against}: use --backend auto or reference")
    return Choice("reference", against)


def first_difference(reference: Encoder, other: Encoder, texts: list[str]) -> str:
    """Where the ids differ, in words; "" where they do not. The other one encodes twice: the second time from its
    cache."""
    array = pa.array(texts, pa.large_string())
    expected = reference.encode(array)
    for _ in range(2):
        found = other.encode(array)
        if np.array_equal(expected.offsets, found.offsets) and np.array_equal(expected.ids, found.ids):
            continue
        for number, text in enumerate(texts):
            ours, theirs = (
                tokens.ids[tokens.offsets[number] : tokens.offsets[number + 1]].tolist() for tokens in (expected, found)
            )
            if ours != theirs:
                at = next(
                    (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
                    min(len(ours), len(theirs)),
                )
                shown = repr(text) if len(text) <= 40 else f"{text[:40]!r}… ({len(text):,} characters)"
                return (
                    f"{other.name} differs from the {reference.name} on {shown}: at token {at} "
                    f"{theirs[at : at + 3]} instead of {ours[at : at + 3]}"
                )
    return ""


class _Encoder:
    """What the libraries share: the normal form, and ids → bytes."""

    name = "reference"

    def __init__(self, file: TokenizerFile, plain: bool) -> None:
        self._file = file
        self._plain = plain

    def encode(self, texts: pa.LargeStringArray) -> Tokens:
        return self._encode(normal_form(texts, self._file.form) if self._file.form else texts)

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
        if not is_byte_level(tokenizer):
            return None
        alphabet = byte_alphabet()
        added = {token["id"]: token["content"].encode() for token in tokenizer.get("added_tokens") or []}
        vocab = tokenizer["model"]["vocab"].items()
        return {n: bytes([alphabet[character] for character in token]) for token, n in vocab if n not in added} | added


class _Tokenizers(_Encoder):
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


class _Tiktoken(_Encoder):
    def __init__(self, file: TokenizerFile, plain: bool) -> None:
        super().__init__(file, plain)
        try:
            import tiktoken
        except ImportError:
            raise InputError(f"{file.path}: a rank file needs the library: pip install tiktoken") from None
        ranks = dict(read_ranks(file.data, file.path))
        specials = {} if plain else dict(file.specials)
        make: Callable[[], Any] = lambda: tiktoken.Encoding(  # noqa: E731  called where errors are told
            file.path, pat_str=file.pattern, mergeable_ranks=ranks, special_tokens=specials
        )
        self._tokenizer = _loaded(file, "tiktoken", make)

    def _ids(self, text: str) -> NDArray[np.uint32]:
        try:
            return np.asarray(self._tokenizer.encode_to_numpy(text, allowed_special="all"), np.uint32)
        except ValueError as error:
            # Its regular expressions give up on a million blanks in a row.
            shown = f"{text[:40]!r}… ({len(text):,} characters)"
            raise InputError(f"tiktoken cannot split {shown}: {first_line(error)}: use --backend gigatoken") from None


class _Sentencepiece(_Encoder):
    """Control pieces are never read out of a text, so `plain` changes nothing."""

    def __init__(self, file: TokenizerFile, plain: bool) -> None:
        super().__init__(file, plain)
        self._tokenizer = load_sentencepiece(file)

    def _ids(self, text: str) -> NDArray[np.uint32]:
        return np.array(self._tokenizer.encode(text), np.uint32)

    def _decode(self, ids: list[int]) -> bytes:
        return str(self._tokenizer.decode(ids)).encode()


class _Gigatoken(_Encoder):
    """Keeps the ids of pre-tokens that it has seen, without end: 1 MB per MB of Chinese text, 4 at worst. So it is loaded
    anew (0.7 s, and a second to free) when the process has grown by `_CACHE_BYTES`."""

    name = "gigatoken"

    def __init__(self, file: TokenizerFile, plain: bool) -> None:
        super().__init__(file, plain)
        import awkward

        self._awkward = awkward
        self._load()

    def _load(self) -> None:
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
        return make_encoder(self._file, "reference", self._plain).decode(np.array(ids))


# Reading /proc costs 40 µs, encoding 16 MB a second.
_CHECK_BYTES = 16_000_000
# Not more often than that, should the process grow by itself.
_RELOAD_BYTES = 64_000_000
# A process stays below 1.5 GB: 250 MB to start with, this much more, 440 MB for one document of 100 MB.
_CACHE_BYTES = 500_000_000

_REFERENCES: dict[str, type[_Encoder]] = {
    "json": _Tokenizers,
    "tiktoken": _Tiktoken,
    "sentencepiece": _Sentencepiece,
}
_encoders: OrderedDict[tuple[str, str, bool], _Encoder] = OrderedDict()


def _loaded(file: TokenizerFile, library: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except InputError:
        raise
    except BaseException as error:
        # A panic of a Rust library is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{file.path}: {library} cannot read it: {first_line(error)}") from None


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


# Characters that NFC leaves alone wherever they stand (Unicode's NFC_Quick_Check is Yes and the combining class 0): Latin,
# Greek, Cyrillic, punctuation, symbols, kana, Han, Hangul syllables, private use, wide forms, emoji.
NFC_INERT = (
    (0x0, 0x2FF),
    (0x388, 0x482),
    (0x48A, 0x58F),
    (0x1E00, 0x1F70),
    (0x2002, 0x20CF),
    (0x2100, 0x2125),
    (0x212C, 0x2328),
    (0x232B, 0x2ADB),
    (0x2E80, 0x3029),
    (0x3030, 0x3098),
    (0x309B, 0xA66E),
    (0xAC00, 0xD7A3),
    (0xE000, 0xF8FF),
    (0xFE30, 0xFFFF),
    (0x1F000, 0x2F7FF),
)
_INERT_TEXT = "^[" + "".join(f"\\x{{{first:x}}}-\\x{{{last:x}}}" for first, last in NFC_INERT) + "]*$"


def normal_form(texts: pa.LargeStringArray, form: str) -> pa.LargeStringArray:
    """Texts in NFC. Arrow's search, 400 MB/s, leaves the few that may not be; Python looks at those and changes them."""
    odd = np.flatnonzero(~pc.match_substring_regex(texts, _INERT_TEXT).to_numpy(zero_copy_only=False))
    changed = {}
    for number in odd.tolist():
        text = texts[number].as_py()
        if not unicodedata.is_normalized(form, text):
            changed[number] = unicodedata.normalize(form, text)
    if not changed:
        return texts
    mask = np.zeros(len(texts), bool)
    mask[list(changed)] = True
    return pc.replace_with_mask(texts, mask, pa.array(list(changed.values()), pa.large_string()))


def _spread(sample: pa.LargeStringArray) -> list[str]:
    """Texts spread over the sample, of `SAMPLE_BYTES` in all."""
    lengths = pc.binary_length(sample).to_numpy(zero_copy_only=False)
    step = max(1, -(-int(lengths.sum()) // SAMPLE_BYTES))
    texts: list[str] = []
    left = SAMPLE_BYTES
    for number in range(0, len(sample), step):
        if left <= 0:
            break
        # Four bytes at most to a character.
        text = sample[number].as_py()
        texts.append(text if lengths[number] <= left else text[: left // 4])
        left -= int(lengths[number])
    return texts


def _around_added_tokens(file: TokenizerFile) -> list[str]:
    """Texts with added tokens in odd places, for a few tokens of every kind that the file has."""
    if file.kind == "tiktoken":
        tokens = [token for token, _ in file.specials[:_TOKENS_OF_A_KIND]]
    elif file.kind == "sentencepiece":
        tokens = ["<s>", "</s>", "<unk>", "▁", "<0x0A>"]
    else:
        kinds: dict[tuple[bool, ...], list[str]] = {}
        for token in parse_json(file).get("added_tokens") or []:
            kind = tuple(bool(token.get(flag)) for flag in ("special", "normalized", "lstrip", "rstrip", "single_word"))
            kinds.setdefault(kind, []).append(token["content"])
        tokens = [token for kind in kinds.values() for token in kind[:_TOKENS_OF_A_KIND]]
    shapes = (
        "{0}",
        "{0}{0}",
        "中{0}文",
        " {0} ",
        "a{0}b",
        "\n{0}\n\n{0}",
        "1{0}2",
        "{0}\n  \n",
        "'{0}'s",
        "\u0301{0}\u0301",
    )
    return [shape.format(token) for token in tokens for shape in shapes] + [token[:-1] for token in tokens]


_TOKENS_OF_A_KIND = 6
