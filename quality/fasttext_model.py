"""fastText classifiers (.bin, .ftz): the file read, checked and mapped.

The format is fastText's (version 12, and 11): settings, vocabulary, the buckets that pruning left, then an input and an
output matrix, either of which may be quantized. Its own library copies each text and looks n-grams up in a hash map,
5 MB of text a second; `taojin.quality.fasttext_kernels` is about ten times as fast and gives any label's probability,
and a broken file is an error here, not a crash.

Cost: the vocabulary (about 0.1 s per million words) and whatever is quantized, which is expanded to float32. A dense
matrix stays in the mapped file, which all processes of a machine share.
"""

import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taojin.core.errors import ConfigError
from taojin.quality.fasttext_kernels import (
    END_OF_SENTENCE,
    HIERARCHICAL,
    LABEL_PREFIX,
    ONE_VERSUS_ALL,
    index_words,
)

MAGIC = 793712314
VERSIONS = (11, 12)
SUPERVISED = 3
# fastText's default is 2,000,000; a damaged header must not ask for a bitmap of any size.
MAX_BUCKETS = 1 << 30
# Of quantized matrices: two numbers a byte, 8 bytes for 1, is fastText's default.
MAX_EXPANSION = 64


class FastTextModel(NamedTuple):
    """labels: without `__label__` · settings: int64[7] · file: uint8, mapped · starts, lengths: int64[V], where an
    entry's bytes lie in it · slots: int32[2^n], open addressing, -1 is free · kept: uint64[buckets / 64], a bit for
    each bucket of n-grams that was not pruned, and ranks: uint32, how many such lie before these 64; both empty if the
    model is not pruned · input: float32[R, H], rows of words, then of buckets in order · output: float32[L, H] · left,
    right: int32[2L - 1], children in the Huffman tree (-1: a leaf); empty without one."""

    labels: tuple[str, ...]
    settings: NDArray[np.int64]
    file: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    slots: NDArray[np.int32]
    kept: NDArray[np.uint64]
    ranks: NDArray[np.uint32]
    input: NDArray[np.float32]
    output: NDArray[np.float32]
    left: NDArray[np.int32]
    right: NDArray[np.int32]

    @property
    def arrays(self) -> tuple[Any, ...]:
        """What the kernels take, in their order."""
        return self[1:]


class _Reader:
    """Takes values off the front of a mapped file; one that ends too early is the user's error."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = np.asarray(np.memmap(path, np.uint8, "r"))
        self.offset = 0

    def broken(self, what: str) -> ConfigError:
        return ConfigError(f"{self.path}: not a complete fastText model ({what}); export it again or name another file")

    def take(self, layout: str) -> tuple[Any, ...]:
        layout = "<" + layout
        size = struct.calcsize(layout)
        values = struct.unpack(layout, self.bytes(size).tobytes())
        return values

    def bytes(self, size: int) -> NDArray[np.uint8]:
        if not 0 <= size <= self.file.size - self.offset:
            raise self.broken(f"{size:,} bytes expected at offset {self.offset:,} of {self.file.size:,}")
        self.offset += size
        return self.file[self.offset - size : self.offset]

    def floats(self, *shape: int) -> NDArray[np.float32]:
        if min(shape) < 0:
            raise self.broken(f"a matrix of {shape}")
        return self.bytes(4 * int(np.prod(shape, dtype=object))).view("<f4").reshape(shape)


def read_model(path: Path) -> FastTextModel:
    """Map a supervised model. Cost: the vocabulary and what is quantized; a dense matrix is read as it is used.

    Raises ConfigError where the file is no fastText classifier, is truncated, or its sizes contradict each other.
    """
    if path.stat().st_size < struct.calcsize("<ii"):
        raise ConfigError(f"{path}: not a fastText model: {path.stat().st_size} bytes; name a .bin or .ftz file")
    reader = _Reader(path)
    magic, version = reader.take("ii")
    if magic != MAGIC:
        raise ConfigError(
            f"{path}: not a fastText model: it begins with {magic}, not {MAGIC}; name a .bin or .ftz file"
        )
    if version not in VERSIONS:
        raise ConfigError(f"{path}: fastText format {version}, expected one of {VERSIONS}; save it with fastText 0.9")
    width, _, _, _, _, word_ngrams, loss, kind, buckets, min_n, max_n, _, _ = reader.take("12id")
    if kind != SUPERVISED:
        raise ConfigError(f"{path}: word vectors, not a classifier; train one with `fasttext supervised`")
    if version == 11:
        max_n = 0  # classifiers of that version wrote a length but used no character n-grams
    has_ngrams = max_n > 0 or word_ngrams > 1
    sensible = 1 <= width < 1 << 16 and 0 <= max_n < 256 and 0 <= word_ngrams < 256
    if not sensible or not HIERARCHICAL <= loss <= ONE_VERSUS_ALL or (has_ngrams and not 0 < buckets <= MAX_BUCKETS):
        raise reader.broken("settings out of range")
    size, num_words, num_labels, _, num_pruned = reader.take("iiiqq")
    # An entry is at least 10 bytes long.
    if not (num_words >= 0 and num_labels > 0 and num_words + num_labels == size <= reader.file.size // 10):
        raise reader.broken(f"{size} entries, {num_words} words, {num_labels} labels")
    starts, lengths, counts = np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size, np.int64)
    slots = np.full(1 << int(2 * size).bit_length(), -1, np.int32)
    reader.offset = index_words(reader.file, reader.offset, num_words, starts, lengths, counts, slots)
    if reader.offset < 0:
        raise reader.broken("its vocabulary is damaged")
    pruned = num_pruned >= 0
    pairs = reader.bytes(8 * max(num_pruned, 0)).view("<i4").reshape(-1, 2)
    quantized = reader.take("?")[0]
    if pruned and not quantized:
        raise reader.broken("pruned but not quantized")
    input = _quantized_matrix(reader) if quantized else reader.floats(*reader.take("qq"))
    quantized_output = reader.take("?")[0]
    output = _quantized_matrix(reader) if quantized and quantized_output else reader.floats(*reader.take("qq"))
    needed = num_words + (num_pruned if pruned else buckets if has_ngrams else 0)
    if input.shape[0] < needed or input.shape[1] != width or output.shape != (num_labels, width):
        raise reader.broken(f"matrices of {input.shape} and {output.shape}")
    kept, ranks = np.zeros(0, np.uint64), np.zeros(0, np.uint32)
    if pruned:
        kept, ranks, order = _bitmap(reader, pairs, buckets)
        input = np.concatenate([input[:num_words], input[num_words:][order]])

    def word(v: int) -> bytes:
        return reader.file[starts[v] : starts[v] + lengths[v]].tobytes()

    labels = tuple(word(v).removeprefix(LABEL_PREFIX).decode(errors="replace") for v in range(num_words, size))
    # fastText sorts its vocabulary by count: the end of the sentence is among the first words, where it is one.
    end_row = next(
        (v for v in range(num_words) if lengths[v] == len(END_OF_SENTENCE) and word(v) == END_OF_SENTENCE), -1
    )
    settings = np.array([min_n, max_n, word_ngrams, buckets, num_words, end_row, loss], np.int64)
    left, right = huffman(counts[num_words:].tolist()) if loss == HIERARCHICAL else (np.zeros(0, np.int32),) * 2
    model = FastTextModel(
        labels, settings, reader.file, starts, lengths, slots, kept, ranks, input, output, left, right
    )
    # Mapped or made here, quantized or dense: one type for the kernels.
    for array in model.arrays:
        array.flags.writeable = False
    return model


def _bitmap(
    reader: _Reader, pairs: NDArray[np.int32], buckets: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint32], NDArray[np.int32]]:
    """(kept, ranks, rows) of a model that keeps these (bucket, row) pairs: rows[r] belongs to the r-th kept bucket.

    A bit per bucket fits the second-level cache where a table of row numbers does not: 4 times as fast in all.
    """
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    bucket, row = pairs[:, 0].astype(np.int64), pairs[:, 1]
    if pairs.size and not (
        pairs.min() >= 0 and bucket[-1] < buckets and row.max() < len(pairs) and np.diff(bucket).all()
    ):
        raise reader.broken("n-grams out of range")
    kept = np.zeros(max(buckets, 1) // 64 + 1, np.uint64)
    np.bitwise_or.at(kept, bucket >> 6, np.uint64(1) << (bucket & 63).astype(np.uint64))
    ranks = np.searchsorted(bucket, np.arange(kept.size) * 64).astype(np.uint32)
    return kept, ranks, row


def _quantized_matrix(reader: _Reader) -> NDArray[np.float32]:
    """Product quantization: each row is one of 256 centroids per part, times one of 256 norms where there are any."""
    with_norms, num_rows, width, code_size = reader.take("?qqi")
    codes = reader.bytes(code_size)
    centroids, num_parts, part, last = _centroids(reader)
    if not (num_rows >= 0 and code_size == num_rows * num_parts and width == (num_parts - 1) * part + last
            and 4 * num_rows * width <= MAX_EXPANSION * reader.file.size):  # fmt: skip
        raise reader.broken(f"{code_size:,} codes of a matrix of {num_rows:,} × {width}")
    codes = codes.reshape(num_rows, num_parts)
    matrix = np.empty((num_rows, width), np.float32)
    for k in range(num_parts):
        size = last if k == num_parts - 1 else part
        table = centroids[256 * k * part : 256 * (k * part + size)].reshape(256, size)
        matrix[:, k * part : k * part + size] = table[codes[:, k]]
    if with_norms:
        norm_codes = reader.bytes(num_rows)
        norms, num_parts, _, last = _centroids(reader)
        if (num_parts, last) != (1, 1):
            raise reader.broken("norms are not single numbers")
        matrix *= norms[norm_codes][:, None]
    return matrix


def _centroids(reader: _Reader) -> tuple[NDArray[np.float32], int, int, int]:
    """(centroids, number of parts, numbers in a part, in the last part)."""
    width, num_parts, part, last = reader.take("iiii")
    if not (num_parts > 0 and part > 0 and 0 < last <= part and width == (num_parts - 1) * part + last):
        raise reader.broken(f"{num_parts} parts of {part} numbers")
    return reader.floats(256 * width).copy(), num_parts, part, last


def huffman(counts: list[int]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """(left, right): int32[2L - 1], children of each node of fastText's Huffman tree; labels sorted by falling count.

    The leaves are the labels, -1 their children; inner node L + k has row k of the output matrix; the root is last.
    """
    num_labels = len(counts)
    size = 2 * num_labels - 1
    weights = [*counts, *[10**15] * (num_labels - 1)]
    left, right = np.full(size, -1, np.int32), np.full(size, -1, np.int32)
    leaf, node = num_labels - 1, num_labels
    for parent in range(num_labels, size):
        children = []
        for _ in range(2):
            if leaf >= 0 and weights[leaf] < weights[node]:
                children.append(leaf)
                leaf -= 1
            else:
                children.append(node)
                node += 1
        left[parent], right[parent] = children
        weights[parent] = weights[children[0]] + weights[children[1]]
    return left, right
