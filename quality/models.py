"""Models of the user's own as signals: a fastText classifier's probability of a label, a KenLM model's perplexity.

A model is named `NAME=PATH`, with `:LABEL` behind the path where a classifier's label must be chosen, and with
`,words=HOW` for the words it was trained on: `raw` (cut at white space; what classifiers get by default), `symbols`
(each character of a script without spaces, each run of letters and digits, each mark; what language models get by
default) or `jieba`. `PATH` may also be a classifier that `taojin fit` made; it cuts words itself.

Perplexity is per word, </s> counted as a word as KenLM does: 10^(-log10 P / (words + lines)). A line is a sentence,
scored in pieces of at most PIECE_WORDS words, whose first words lack the context of the piece before.

Cost: files are mapped, so that the processes of a machine share them. fastText: 15–25 ns a character where there are
character n-grams. KenLM: about 0.1 µs a word with a tiny model, more where its tables leave the cache; jieba: 12 MB of
text a second. Nothing here trains a model.
"""

import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from taojin.core.errors import ConfigError
from taojin.core.jit import kernel
from taojin.core.text import text_buffers
from taojin.quality.characters import (
    ALONE,
    CONTROL,
    FORMAT,
    LETTER,
    LINE_BREAK,
    MARK,
    NUMBER,
    SPACE,
    decode,
    load_character_table,
)

Texts: TypeAlias = pa.LargeStringArray | pa.LargeBinaryArray

WORDS = ("raw", "symbols", "jieba")
# Labels that name the good class of a classifier with two; of any others one must be chosen.
GOOD_LABELS = ("1", "hq", "pos")
# Beyond it a line is scored in pieces: of an n-gram model's scores n - 1 in 1,000 lose some context.
PIECE_WORDS = 1000
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
FASTTEXT_MAGIC = (793712314).to_bytes(4, "little")
KENLM_MAGIC = b"mmap lm http://kheafield.com/code format version"
ARPA_MAGIC = b"\\data\\"
ZIP_MAGIC = b"PK\x03\x04"  # what `taojin fit` writes is an .npz
_HEAD_BYTES = 1 << 16

_U64 = np.uint64
_0 = np.uint64(0)
_1 = np.uint64(1)
_FLAG_NONE = np.uint32(0)
_RUN = np.uint32(LETTER | NUMBER)
_ALONE = np.uint32(ALONE)
_MARK = np.uint32(MARK)
_SPACE = np.uint32(SPACE)
_LINE_BREAK = np.uint32(LINE_BREAK)
_UNSEEN = np.uint32(FORMAT | CONTROL)


class ModelSpec(NamedTuple):
    """What the user asked for. kind: fasttext, kenlm or taojin · label: None is the default · words: of `WORDS`."""

    name: str
    kind: str
    path: Path
    label: str | None
    words: str


class Model(NamedTuple):
    spec: ModelSpec
    measure: Callable[[Texts], NDArray[np.float32]]

    @property
    def name(self) -> str:
        return self.spec.name

    def score(self, texts: Texts) -> NDArray[np.float32]:
        """float32[D]: NaN where a text is null, not UTF-8, or has nothing that the model can judge."""
        return self.measure(texts)


def parse_models(specs: Iterable[str]) -> list[ModelSpec]:
    """`parse_model` of each; also raises ConfigError where two have one name."""
    models: dict[str, ModelSpec] = {}
    for text in specs:
        spec = parse_model(text)
        if spec.name in models:
            raise ConfigError(
                f"--models {text}: the name {spec.name} is taken by {models[spec.name].path}; choose another"
            )
        models[spec.name] = spec
    return list(models.values())


def parse_model(text: str) -> ModelSpec:
    """Read `NAME=PATH[:LABEL][,words=raw|symbols|jieba]` and the file's first bytes. Raises ConfigError."""
    name, equals, rest = text.partition("=")
    if not equals or not NAME.fullmatch(name):
        raise ConfigError(f"--models {text}: expected NAME=PATH with a name of letters, digits and _, found {name!r}")
    rest, _, words = rest.partition(",words=")
    if _ and words not in WORDS:
        raise ConfigError(f"--models {text}: words={words}: expected one of {', '.join(WORDS)}")
    path, label = Path(rest), None
    if not path.is_file() and ":" in rest:
        before, _, label = rest.rpartition(":")
        path = Path(before)
    if not path.is_file():
        raise ConfigError(
            f"--models {text}: no file {path}; name a .bin, .ftz, .arpa or .klm model or one of `taojin fit`"
        )
    kind = _kind(path)
    if kind != "fasttext" and label is not None:
        raise ConfigError(f"--models {text}: only fastText classifiers have labels; leave :{label} out")
    if kind == "taojin" and words:
        raise ConfigError(f"--models {text}: a model of `taojin fit` cuts words itself; leave words={words} out")
    return ModelSpec(name, kind, path, label, words or ("symbols" if kind == "kenlm" else "raw"))


def _kind(path: Path) -> str:
    """Told by the first bytes: a library never gets a file that is something else altogether."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; check its permissions") from None
    if head.startswith(FASTTEXT_MAGIC):
        return "fasttext"
    if head.startswith(ZIP_MAGIC):
        return "taojin"
    # KenLM lets blank lines and comments stand before \data\.
    lines = (line.strip() for line in head.splitlines())
    if head.startswith(KENLM_MAGIC) or next((x for x in lines if x and not x.startswith(b"#")), b"") == ARPA_MAGIC:
        return "kenlm"
    raise ConfigError(
        f"{path}: expected a fastText, KenLM, uncompressed ARPA or `taojin fit` model, found a file that begins with "
        f"{head[:12]!r}; name another file"
    )


@cache
def open_model(spec: ModelSpec) -> Model:
    """Once per process. Raises ConfigError where the file is damaged, a label unknown or a library missing."""
    if spec.kind == "fasttext":
        return Model(spec, _open_fasttext(spec))
    if spec.kind == "kenlm":
        return Model(spec, _open_kenlm(spec))
    from taojin.quality.classifier import load_classifier, score_array

    classifier = load_classifier(spec.path)
    return Model(spec, lambda texts: score_array(classifier, texts))


def model_part(spec: ModelSpec) -> dict[str, Any]:
    """What a frozen plan keeps: name, kind, label, words, segmenter and the file's XXH3-128, wherever the file lies.

    Opens the model, so that a damaged one or a wrong label is met here, before a run."""
    open_model(spec)
    stat = spec.path.stat()
    content = _fingerprint(spec.path, stat.st_size, stat.st_mtime_ns)
    part = {"name": spec.name, "kind": spec.kind, "label": spec.label, "words": spec.words, "content": content}
    if spec.words == "jieba":
        from taojin.quality.segment import choose_segmenter

        part["segmenter"] = choose_segmenter().name
    return part


@cache
def _fingerprint(path: Path, size: int, modified: int) -> str:
    content = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            content.update(block)
    return content.hexdigest()


def choose_label(labels: tuple[str, ...], wanted: str | None, path: Path) -> int:
    """The index of a label, given with or without `__label__`. Raises ConfigError that lists the labels."""
    shown = ", ".join(labels[:20]) + (f" and {len(labels) - 20} more" if len(labels) > 20 else "")
    if wanted is not None:
        wanted = wanted.removeprefix("__label__")
        if wanted in labels:
            return labels.index(wanted)
        raise ConfigError(f"{path}: no label {wanted!r}; choose one of: {shown}")
    good = [label for label in labels if label in GOOD_LABELS]
    if len(labels) == 2 and len(good) == 1:
        return labels.index(good[0])
    raise ConfigError(f"{path}: which label is the signal? write NAME={path}:LABEL with one of: {shown}")


def _open_fasttext(spec: ModelSpec) -> Callable[[Texts], NDArray[np.float32]]:
    from taojin.quality.fasttext_kernels import classify
    from taojin.quality.fasttext_model import read_model

    model = read_model(spec.path)
    label = choose_label(model.labels, spec.label, spec.path)
    prepare = _preparation(spec.words)

    def measure(texts: Texts) -> NDArray[np.float32]:
        ready = prepare(texts)
        labels_D, probabilities_D = np.empty(len(texts), np.int32), np.empty(len(texts), np.float32)
        classify(ready.data, ready.starts, ready.ends, label, *model.arrays, labels_D, probabilities_D)
        return probabilities_D

    return measure


def _open_kenlm(spec: ModelSpec) -> Callable[[Texts], NDArray[np.float32]]:
    try:
        import kenlm
    except ImportError:
        raise ConfigError(
            f"{spec.path}: a KenLM model, but kenlm is not installed; pip install 'taojin[kenlm]'"
        ) from None
    config = kenlm.Config()
    config.load_method = kenlm.LoadMethod.LAZY  # map, do not read: processes share the pages
    config.show_progress = False
    config.arpa_complain = kenlm.ARPALoadComplain.NONE
    try:
        model = kenlm.Model(str(spec.path), config)
    except (OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(f"{spec.path}: not a complete KenLM model ({reason}); build it again") from None
    prepare = _preparation(spec.words)
    table = load_character_table()

    def measure(texts: Texts) -> NDArray[np.float32]:
        ready = prepare(texts)
        perplexities_D = np.full(len(texts), np.nan, np.float32)
        longest = int(np.max(ready.ends - ready.starts, initial=0))
        codes, out = np.empty(longest + 1, np.uint32), np.empty(2 * longest + 2, np.uint8)
        for d in range(len(texts)):
            if ready.ends[d] < ready.starts[d]:
                continue
            # Already spaced words are only cut into lines and pieces.
            size, words = space_words(ready.data, ready.starts[d], ready.ends[d], table, False, PIECE_WORDS, codes, out)
            if words <= 0:
                continue
            lines = out[:size].tobytes().split(b"\n")
            total = 0.0
            for line in lines:
                pieces = line.split(b"\0")
                for number, piece in enumerate(pieces):
                    total += model.score(piece, bos=number == 0, eos=number == len(pieces) - 1)
            perplexities_D[d] = 10 ** min(-total / (words + len(lines)), 38.0)
        return perplexities_D

    return measure


class Prepared(NamedTuple):
    """Text d is data[starts[d]:ends[d]]; ends[d] = -1: null or not UTF-8."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


@kernel
def space_words(
    data: NDArray[np.uint8],
    start: int,
    end: int,
    table: NDArray[np.uint32],
    by_symbol: bool,
    piece_words: int,
    codes: NDArray[np.uint32],
    out: NDArray[np.uint8],
) -> tuple[int, int]:
    """Write the words of data[start:end] into `out` with one space between them, or a line feed where a line ended, or
    a NUL after every piece_words words of a line. Returns (bytes written, words), (0, -1) where it is not UTF-8.

    by_symbol: words are symbols; else what white space separates. Format and control characters vanish. codes: scratch
    of end - start entries; out: room for 2 (end - start) + 1. table: `taojin.quality.characters`.
    """
    count, valid = decode(data, start, end, codes)
    if not valid:
        return 0, -1
    size = _0
    words = _0
    in_piece = _0
    in_run = False
    line_ended = False
    i = _U64(start)
    stop = _U64(end)
    for c in range(count):
        flags = table[codes[c]]
        j = i + _1
        while j < stop and (data[j] & np.uint8(0xC0)) == np.uint8(0x80):
            j += _1
        if flags & _SPACE != _FLAG_NONE:
            in_run = False
            if flags & _LINE_BREAK != _FLAG_NONE:
                line_ended = True
        elif flags & _UNSEEN == _FLAG_NONE:
            extends = not by_symbol or (flags & _RUN != _FLAG_NONE and flags & _ALONE == _FLAG_NONE)
            attaches = by_symbol and flags & _MARK != _FLAG_NONE and flags & _ALONE == _FLAG_NONE
            joins = (extends and in_run) or (attaches and in_piece > _0 and not line_ended)
            if not joins:
                if line_ended and words > _0:
                    out[size] = 10
                    size += _1
                    in_piece = _0
                elif in_piece == _U64(piece_words):
                    out[size] = 0
                    size += _1
                    in_piece = _0
                elif words > _0:
                    out[size] = 32
                    size += _1
                line_ended = False
                words += _1
                in_piece += _1
                in_run = extends or attaches
            while i < j:
                out[size] = data[i]
                size += _1
                i += _1
        i = j
    return int(np.int64(size)), int(np.int64(words))


@kernel
def space_texts(
    data: NDArray[np.uint8],
    starts_D: NDArray[np.int64],
    ends_D: NDArray[np.int64],
    table: NDArray[np.uint32],
    codes: NDArray[np.uint32],
    out: NDArray[np.uint8],
    new_starts_D: NDArray[np.int64],
) -> None:
    """`space_words` by symbol of each text, one behind the other in `out`; ends_D becomes their ends, -1: not UTF-8."""
    at = 0
    for d in range(starts_D.size):
        new_starts_D[d] = at
        if ends_D[d] < starts_D[d]:
            ends_D[d] = -1
            continue
        size, words = space_words(data, starts_D[d], ends_D[d], table, True, 1 << 62, codes, out[at:])
        at += size
        ends_D[d] = at if words >= 0 else -1


@kernel
def check_texts(
    data: NDArray[np.uint8], starts_D: NDArray[np.int64], ends_D: NDArray[np.int64], codes: NDArray[np.uint32]
) -> None:
    """ends_D = -1 where a text is not UTF-8."""
    for d in range(starts_D.size):
        if ends_D[d] >= starts_D[d] and not decode(data, starts_D[d], ends_D[d], codes)[1]:
            ends_D[d] = -1


def _raw(texts: Texts) -> Prepared:
    data, offsets_D = text_buffers(texts)
    starts_D, ends_D = offsets_D[:-1].copy(), offsets_D[1:].copy()
    ends_D[texts.is_null().to_numpy(zero_copy_only=False)] = -1
    check_texts(data, starts_D, ends_D, np.empty(int(np.max(ends_D - starts_D, initial=0)) + 1, np.uint32))
    return Prepared(data, starts_D, ends_D)


def _symbols(texts: Texts) -> Prepared:
    data, offsets_D = text_buffers(texts)
    starts_D, ends_D = offsets_D[:-1].copy(), offsets_D[1:].copy()
    ends_D[texts.is_null().to_numpy(zero_copy_only=False)] = -1
    lengths_D = np.maximum(ends_D - starts_D, 0)
    codes = np.empty(int(lengths_D.max(initial=0)) + 1, np.uint32)
    out = np.empty(int(2 * lengths_D.sum()) + len(texts) + 1, np.uint8)
    new_starts_D = np.empty_like(starts_D)
    space_texts(data, starts_D, ends_D, load_character_table(), codes, out, new_starts_D)
    return Prepared(out, new_starts_D, ends_D)


def _preparation(words: str) -> Callable[[Texts], Prepared]:
    if words == "raw":
        return _raw
    if words == "symbols":
        return _symbols
    from taojin.quality.segment import choose_segmenter

    cut = choose_segmenter().cut

    def segmented(texts: Texts) -> Prepared:
        strings = [_decoded(text) for text in texts.to_pylist()]
        return _raw(pa.array([None if s is None else " ".join(cut(s)) for s in strings], pa.large_string()))

    return segmented


def _decoded(text: str | bytes | None) -> str | None:
    if isinstance(text, bytes):
        try:
            return text.decode()
        except UnicodeDecodeError:
            return None
    return text
