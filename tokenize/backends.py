"""Texts in an Arrow array → ids in one flat array, by one of two backends.

*reference*: the library that a file was made for, `tokenizers`, `tiktoken` or `sentencepiece`; a document at a time.
*gigatoken*: the same ids about ten times as fast, from the Arrow buffers, without a Python object per document. It is
taken only where `choose_backend` finds the same ids on texts of this corpus and on `NASTY`.

Neither starts a thread. Texts are valid UTF-8 without nulls: the reader has seen to that. Cost on Chinese text, one
core: gigatoken 17 MB/s, after a second to load it; tokenizers 1.5 MB/s.
Long runs without a border are cut in `taojin.tokenize.long_texts`, before the texts come here.
"""

from collections import OrderedDict
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from taojin.core.errors import ConfigError, InputError
from taojin.tokenize.libraries import REFERENCES, GigatokenEncoder, LibraryEncoder
from taojin.tokenize.libraries import Tokens as Tokens
from taojin.tokenize.nasty import NASTY
from taojin.tokenize.tokenizer_file import TokenizerFile, load_sentencepiece, parse_json

BACKENDS = ("reference", "gigatoken")
# The reference encodes 1.4 MB/s, so this is a third of a second.
SAMPLE_BYTES = 500_000
# A tokenizer of 128,000 entries takes 100 to 250 MB; a worker needs one, a comparison two.
_KEPT_ENCODERS = 2
_encoders: OrderedDict[tuple[str, str, bool], LibraryEncoder] = OrderedDict()
# Of each kind of added tokens (special, normalized, …), as many are tried in odd places.
_TOKENS_OF_A_KIND = 6


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

    `backend`: "reference" | "gigatoken". `plain`: special tokens that are written in a text are encoded as ordinary
    text; added tokens that are not special stay tokens. Raises InputError where the library cannot read the file.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"--backend: expected one of {', '.join(BACKENDS)}, found {backend}")
    key = (file.fingerprint, backend, plain)
    if key not in _encoders:
        while len(_encoders) >= _KEPT_ENCODERS:
            _encoders.popitem(last=False)
        library = GigatokenEncoder if backend == "gigatoken" else REFERENCES[file.kind]
        _encoders[key] = library(file, plain)
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
            ours, theirs = _document(expected, number), _document(found, number)
            if ours != theirs:
                pairs = enumerate(zip(ours, theirs, strict=False))
                at = next((i for i, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
                shown = repr(text) if len(text) <= 40 else f"{text[:40]!r}… ({len(text):,} characters)"
                return (
                    f"{other.name} differs from the reference on {shown}: at token {at} it has "
                    f"{theirs[at : at + 3]} instead of {ours[at : at + 3]}"
                )
    return ""


def _document(tokens: Tokens, number: int) -> list[int]:
    return list(tokens.ids[tokens.offsets[number] : tokens.offsets[number + 1]].tolist())


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
        processor = load_sentencepiece(file)
        numbers = range(processor.get_piece_size())
        # Symbols of the user have score 0, as has the first piece that was learnt.
        scored = (n for n in numbers if processor.get_score(n) == 0 and not processor.is_byte(n))
        tokens = [processor.id_to_piece(n) for n in islice(scored, _TOKENS_OF_A_KIND)] + ["▁", "<0x0A>"]
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
