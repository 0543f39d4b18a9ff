"""Megatron's `.bin/.idx` format alone, written and read: no tokenizer, no Ray. Its proofs: megatron_proofs.py.

A pair is PREFIX.bin, token ids one after another and nothing else, and PREFIX.idx, all numbers little-endian:

    9 bytes  "MMIDIDX", NUL, NUL          8  version, 1           1  dtype code          8  sequences
    8        documents + 1                int32  lengths[sequences], in tokens
    int64    pointers[sequences], in bytes of .bin                int64  document_indices[documents + 1], in sequences

A document is the sequences document_indices[i] up to document_indices[i + 1]: one at document level, one a sentence at
sentence level, none for an empty text. Source: Megatron-LM, megatron/core/datasets/indexed_dataset.py.

All goes through blocks of BLOCK entries, so memory does not grow with the pair; an index is written at GB/s. A damaged
file is an InputError of one line. What a pair holds, copying .bin and committing files are left to the caller.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import xxhash
from numpy.typing import NDArray

from taojin.core.errors import InputError, InvariantError
from taojin.core.storage import resolve
from taojin.core.uris import with_suffix

Dtype = np.dtype[Any]
Chunks = Callable[[], Iterator[NDArray[Any]]]

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
_HEADER = struct.Struct("<9sQBQQ")
HEADER_BYTES = _HEADER.size  # 34, so that nothing behind it is aligned
# Megatron's codes, but for its two of floats (6, 7): tokens and masks are integers.
_CODES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
DTYPES: dict[int, Dtype] = {code: np.dtype(name).newbyteorder("<") for code, name in _CODES.items()}
LENGTH: Dtype = DTYPES[4]
PLACE: Dtype = DTYPES[5]
LARGEST_INT32 = 2**31 - 1

# Megatron's writer keeps a margin below 65,536; its reader, where it does not look at the header, keeps none.
UINT16_BELOW = 65_500
READER_UINT16_UP_TO = 65_536

# Entries checked or written at a time: they stay in cache, 0.5 MB of int32 and 1 MB of int64, which is twice as fast as
# blocks eight times as large. An object store is asked for REQUEST entries at a time: each request waits for an answer.
BLOCK = 1 << 17
REQUEST = 1 << 21


class _Writable(Protocol):
    def write(self, data: Any, /) -> Any: ...


def token_dtype(vocab_size: int) -> Dtype:
    """uint16 for fewer than 65,500 entries, added tokens included, else int32: the `optimal_dtype` of Megatron-LM."""
    if not 0 < vocab_size <= 2**31:
        raise InputError(f"expected a vocabulary of 1 to 2,147,483,648 entries, found {vocab_size:,}: ids are int32")
    return DTYPES[8] if vocab_size < UINT16_BELOW else DTYPES[4]


def header_warning(vocab_size: int) -> str:
    """ "" or, where the reader of Megatron-LM disagrees with its writer, what not to do with the pair.

    Source: `GPTDatasetConfig.token_dtype_code`, used with --per-dataset-sequences-path instead of the header.
    """
    if not UINT16_BELOW <= vocab_size <= READER_UINT16_UP_TO:
        return ""
    return (
        f"ids of a vocabulary of {vocab_size:,} are written as int32, as Megatron-LM writes them, but with "
        "--per-dataset-sequences-path it reads them as uint16: do not use that option with this pair"
    )


def reader_warning(sequences: int, tokens: int) -> str:
    """ "" or why Megatron-LM cannot train on a pair of this size, and what to do.

    Source: its dataset builder numbers sequences in int32 (`indexed_indices`, `document_index`); its reader maps .bin,
    and no system maps an empty file.
    """
    if tokens == 0:
        return "Megatron-LM cannot open a pair without tokens: leave it out of the blend"
    if sequences > LARGEST_INT32:
        return (
            f"Megatron-LM numbers the sequences of a pair in int32, at most {LARGEST_INT32:,}, "
            f"and this one has {sequences:,}: write smaller pairs"
        )
    return ""


def write_index(
    sink: _Writable,
    dtype: Dtype,
    sequences: int,
    documents: int,
    lengths: Chunks,
    sequences_per_document: Chunks,
) -> int:
    """Write a whole .idx in constant memory; returns the tokens, Σ lengths, which .bin must hold.

    `lengths` is called twice, `sequences_per_document` once. Each returns chunks of integers, of any size: the lengths
    of all sequences, the number of sequences of all documents, in order, each below 2^31. Raises InvariantError where
    they do not add up to the counts or are not the same when asked for again: what is in the sink is then no index.
    """
    codes = [code for code, known in DTYPES.items() if known == dtype]
    if not codes:
        raise InvariantError(f"Megatron has no dtype code of {dtype}")
    sink.write(_HEADER.pack(MAGIC, VERSION, codes[0], sequences, documents + 1))
    first_pass, second_pass = xxhash.xxh3_64(), xxhash.xxh3_64()
    tokens = found = 0
    for block in _blocks(lengths()):
        first_pass.update(block.data)
        sink.write(block.data)
        tokens += int(block.sum(dtype=PLACE))
        found += len(block)
    _must_be("sequences", sequences, found)
    tokens_before = 0
    for block in _blocks(lengths()):
        second_pass.update(block.data)
        pointers = np.cumsum(block, dtype=PLACE)
        total = int(pointers[-1])
        pointers -= block
        pointers += tokens_before
        pointers *= dtype.itemsize
        sink.write(pointers.data)
        tokens_before += total
    if first_pass.digest() != second_pass.digest():
        raise InvariantError("the lengths of sequences were not the same when asked for again")
    sink.write(np.zeros(1, PLACE).data)
    at = found = 0
    for block in _blocks(sequences_per_document()):
        indices = np.cumsum(block, dtype=PLACE)
        indices += at
        sink.write(indices.data)
        at = int(indices[-1])
        found += len(block)
    _must_be("documents", documents, found)
    _must_be("sequences of all documents", sequences, at)
    return tokens


def _must_be(what: str, expected: int, found: int) -> None:
    if expected != found:
        raise InvariantError(f"{what}: expected {expected:,}, found {found:,}")


def _blocks(chunks: Iterable[NDArray[Any]]) -> Iterator[NDArray[np.int32]]:
    """Chunks as contiguous int32 of at most BLOCK entries, none empty."""
    for chunk in chunks:
        for start in range(0, len(chunk), BLOCK):
            block = chunk[start : start + BLOCK]
            if block.min() < 0 or block.max() > LARGEST_INT32:
                raise InvariantError(f"expected numbers of 0 to 2^31 - 1, found {block.min():,} to {block.max():,}")
            yield np.ascontiguousarray(block, dtype=LENGTH)


class PairFile:
    """One file of a pair: a view of any part of it, or a part read into memory of its own."""

    def __init__(self, uri: str, other: str) -> None:
        filesystem, path = resolve(uri)
        info = filesystem.get_file_info(path)
        if info.type != pafs.FileType.File:
            found = "a folder" if info.type == pafs.FileType.Directory else "no such file"
            raise InputError(
                f"{uri}: expected a file beside {other}, found {found}: give the name without .bin and .idx"
            )
        self.uri = uri
        self.bytes = int(info.size)
        self._stream = filesystem.open_input_file(path)
        self._is_local = isinstance(filesystem, pafs.LocalFileSystem)
        self._mapped = pa.memory_map(path) if self._is_local else self._stream

    def view(self, start: int, count: int, dtype: Dtype) -> NDArray[Any]:
        """`count` entries from byte `start`: a view of the mapped file, of a file in an object store a copy."""
        return self._array(self._mapped, start, count, dtype)

    def read(self, start: int, count: int, dtype: Dtype) -> NDArray[Any]:
        """The same as a copy: pages of a mapping count as memory of the process until it ends."""
        return self._array(self._stream, start, count, dtype)

    def blocks(self, start: int, count: int, dtype: Dtype) -> Iterator[NDArray[Any]]:
        """The same as copies of at most BLOCK entries."""
        step = BLOCK if self._is_local else REQUEST
        for at in range(0, count, step):
            part = self.read(start + at * dtype.itemsize, min(step, count - at), dtype)
            for first in range(0, len(part), BLOCK):
                yield part[first : first + BLOCK]

    def _array(self, file: pa.NativeFile, start: int, count: int, dtype: Dtype) -> NDArray[Any]:
        size = count * dtype.itemsize
        if start < 0 or start + size > self.bytes:
            raise InputError(f"{self.uri}: no bytes {start:,} to {start + size:,} in a file of {self.bytes:,} bytes")
        file.seek(start)
        buffer = file.read_buffer(size)
        if buffer.size != size:
            raise InputError(f"{self.uri}: expected {self.bytes:,} bytes, found fewer: it was cut while it was read")
        return np.frombuffer(buffer, dtype, count)


class IndexedPair:
    """A pair, read-only. Local files are mapped; from an object store what is asked for is read by ranges.

    `open` looks at the header, at sizes and at both ends of the index, which costs the same for any pair; the rest is
    proven by megatron_proofs.py. `lengths`, `pointers` and `document_indices` are views of the mapped file, not
    aligned; from an object store they are whole copies, so go over a large pair by blocks.
    """

    def __init__(self, prefix: str, idx: PairFile, bin: PairFile) -> None:
        self.prefix = prefix
        self.idx = idx
        self.bin = bin
        self.dtype, self.num_sequences, self.num_documents = _read_header(idx)
        self.num_tokens = bin.bytes // self.dtype.itemsize
        self._pointers_at = HEADER_BYTES + self.num_sequences * LENGTH.itemsize
        self._documents_at = self._pointers_at + self.num_sequences * PLACE.itemsize
        self._check_ends()

    @classmethod
    def open(cls, prefix: str) -> "IndexedPair":
        """The pair PREFIX.bin and PREFIX.idx, local paths or URIs. Raises InputError where they are no whole pair."""
        idx, bin = with_suffix(prefix, ".idx"), with_suffix(prefix, ".bin")
        return cls(prefix, PairFile(idx, bin), PairFile(bin, idx))

    @property
    def lengths(self) -> NDArray[np.int32]:
        """int32[sequences], in tokens."""
        return self.idx.view(HEADER_BYTES, self.num_sequences, LENGTH)

    @property
    def pointers(self) -> NDArray[np.int64]:
        """int64[sequences], in bytes."""
        return self.idx.view(self._pointers_at, self.num_sequences, PLACE)

    @property
    def document_indices(self) -> NDArray[np.int64]:
        """int64[documents + 1], in sequences."""
        return self.idx.view(self._documents_at, self.num_documents + 1, PLACE)

    def sequence(self, number: int) -> NDArray[Any]:
        """The tokens of one sequence; raises IndexError where there is none of this number."""
        if not 0 <= number < self.num_sequences:
            raise IndexError(f"sequence {number:,} of {self.num_sequences:,}")
        return self._tokens(number, number + 1)

    def document(self, number: int) -> NDArray[Any]:
        """The tokens of all sequences of one document; raises IndexError where there is none of this number."""
        if not 0 <= number < self.num_documents:
            raise IndexError(f"document {number:,} of {self.num_documents:,}")
        first, end = self.idx.view(self._documents_at + number * PLACE.itemsize, 2, PLACE).tolist()
        if not 0 <= first <= end <= self.num_sequences:
            raise InputError(
                f"{self.idx.uri}: document {number:,} is sequences {first:,} to {end:,} of {self.num_sequences:,}"
            )
        return self._tokens(first, end)

    def length_blocks(self) -> Iterator[NDArray[np.int32]]:
        """Lengths of all sequences, at most BLOCK at a time: what `write_index` wants."""
        return self.idx.blocks(HEADER_BYTES, self.num_sequences, LENGTH)

    def pointer_blocks(self) -> Iterator[NDArray[np.int64]]:
        return self.idx.blocks(self._pointers_at, self.num_sequences, PLACE)

    def document_index_blocks(self) -> Iterator[NDArray[np.int64]]:
        """`document_indices` of at most BLOCK documents at a time, each with the last entry of the block before it."""
        before = self.idx.read(self._documents_at, 1, PLACE)
        for block in self.idx.blocks(self._documents_at + PLACE.itemsize, self.num_documents, PLACE):
            yield np.concatenate((before, block))
            before = block[-1:]

    def sequences_per_document_blocks(self) -> Iterator[NDArray[np.int32]]:
        """Sequence counts of all documents, at most BLOCK at a time: what `write_index` wants."""
        for indices in self.document_index_blocks():
            counts = np.diff(indices)
            if counts.min() < 0 or counts.max() > LARGEST_INT32:
                raise InputError(
                    f"{self.idx.uri}: a document of {counts.min():,} or {counts.max():,} sequences: check it"
                )
            yield counts.astype(LENGTH)

    def token_blocks(self) -> Iterator[NDArray[Any]]:
        """All tokens in order, at most BLOCK at a time."""
        return self.bin.blocks(0, self.num_tokens, self.dtype)

    def spans(self, first: int, count: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """(lengths in tokens, pointers in bytes) of `count` sequences, read as copies."""
        lengths = self.idx.read(HEADER_BYTES + first * LENGTH.itemsize, count, LENGTH)
        return lengths, self.idx.read(self._pointers_at + first * PLACE.itemsize, count, PLACE)

    def _tokens(self, first: int, end: int) -> NDArray[Any]:
        """Tokens of the sequences first … end - 1, which lie one after another."""
        if first == end:
            return np.empty(0, self.dtype)
        start = int(self.spans(first, 1)[1][0])
        length, pointer = (int(of_last[0]) for of_last in self.spans(end - 1, 1))
        size = pointer + length * self.dtype.itemsize - start
        if size < 0 or size % self.dtype.itemsize:
            raise InputError(f"{self.idx.uri}: sequences {first:,} to {end - 1:,} cannot take {size:,} bytes")
        return self.bin.view(start, size // self.dtype.itemsize, self.dtype)

    def _check_ends(self) -> None:
        """What Megatron's reader asserts, and that the last sequence ends where .bin does."""
        first = int(self.idx.view(self._documents_at, 1, PLACE)[0])
        last = int(self.idx.view(self._documents_at + self.num_documents * PLACE.itemsize, 1, PLACE)[0])
        if first != 0 or last != self.num_sequences:
            raise InputError(
                f"{self.idx.uri}: expected document indices 0 to {self.num_sequences:,}, found {first:,} to {last:,}"
            )
        end = 0
        if self.num_sequences:
            length, pointer = (int(of_last[0]) for of_last in self.spans(self.num_sequences - 1, 1))
            end = pointer + length * self.dtype.itemsize
        if end != self.bin.bytes:
            raise InputError(
                f"{self.bin.uri}: expected {end:,} bytes, as the index says, found {self.bin.bytes:,}: "
                "one of the two was cut or belongs to another pair"
            )


def _read_header(idx: PairFile) -> tuple[Dtype, int, int]:
    """(dtype, sequences, documents), after every check that the header and the size of the index allow."""
    if idx.bytes < HEADER_BYTES:
        raise InputError(f"{idx.uri}: expected a header of {HEADER_BYTES} bytes, found a file of {idx.bytes} bytes")
    magic, version, code, sequences, entries = _HEADER.unpack(idx.view(0, HEADER_BYTES, DTYPES[1]).tobytes())
    if magic != MAGIC:
        raise InputError(f"{idx.uri}: expected the index of a Megatron pair, {MAGIC!r}, found {magic!r}")
    if version != VERSION:
        raise InputError(f"{idx.uri}: expected version {VERSION} of the format, found {version}")
    if code not in DTYPES:
        known = ", ".join(f"{code} {name}" for code, name in _CODES.items())
        raise InputError(f"{idx.uri}: expected a dtype code of integers ({known}), found {code}")
    if entries < 1:
        raise InputError(f"{idx.uri}: expected the number of documents + 1, found 0")
    expected = HEADER_BYTES + sequences * (LENGTH.itemsize + PLACE.itemsize) + entries * PLACE.itemsize
    if sequences and idx.bytes == expected + sequences:
        raise InputError(f"{idx.uri}: expected a pair of text, found a multimodal one, with a mode for each sequence")
    if idx.bytes != expected:
        raise InputError(
            f"{idx.uri}: expected {expected:,} bytes for {sequences:,} sequences and {entries - 1:,} documents, "
            f"found {idx.bytes:,}"
        )
    return DTYPES[code], sequences, entries - 1
