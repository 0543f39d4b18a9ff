"""Megatron pairs for tests: a naive writer (struct, one number at a time), and ours with chunks cut anywhere."""

import contextlib
import itertools
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from taojin.core import megatron, megatron_proofs
from taojin.core.megatron import IndexedPair, write_index

# Tokens of sequences of documents.
Documents = Sequence[Sequence[Sequence[int]]]
CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}

documents_of_small_ids: st.SearchStrategy[Documents] = st.lists(
    st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=4), max_size=8
)


def naive_index(documents: Documents, dtype: str) -> bytes:
    lengths = [len(sequence) for document in documents for sequence in document]
    data = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, CODES[dtype], len(lengths), len(documents) + 1)
    data += b"".join(struct.pack("<i", length) for length in lengths)
    before = [sum(lengths[:number]) for number in range(len(lengths))]
    data += b"".join(struct.pack("<q", tokens * np.dtype(dtype).itemsize) for tokens in before)
    ends = [sum(map(len, documents[:number])) for number in range(len(documents) + 1)]
    return data + b"".join(struct.pack("<q", end) for end in ends)


def flat(documents: Documents) -> list[int]:
    return [token for document in documents for sequence in document for token in sequence]


def chunks(values: Sequence[int], size: int) -> Iterator[NDArray[np.int32]]:
    """int32 arrays of `size` values, and an empty one."""
    yield np.empty(0, np.int32)
    for start in range(0, len(values), size):
        yield np.array(values[start : start + size], np.int32)


def write_pair(prefix: Path, documents: Documents, dtype: str = "int32", chunk: int = 1000) -> IndexedPair:
    lengths = [len(sequence) for document in documents for sequence in document]
    counts = [len(document) for document in documents]
    Path(f"{prefix}.bin").write_bytes(np.array(flat(documents), dtype).tobytes())
    with Path(f"{prefix}.idx").open("wb") as sink:
        write_index(
            sink,
            np.dtype(dtype),
            len(lengths),
            len(documents),
            lambda: chunks(lengths, chunk),
            lambda: chunks(counts, chunk),
        )
    return IndexedPair.open(str(prefix))


def merged_index(sink: Any, pairs: Sequence[IndexedPair]) -> None:
    """The index of pairs one after another, as a merge has it written."""
    write_index(
        sink,
        pairs[0].dtype,
        sum(pair.num_sequences for pair in pairs),
        sum(pair.num_documents for pair in pairs),
        lambda: itertools.chain.from_iterable(pair.length_blocks() for pair in pairs),
        lambda: itertools.chain.from_iterable(pair.sequences_per_document_blocks() for pair in pairs),
    )


@contextlib.contextmanager
def blocks_of(entries: int) -> Iterator[None]:
    """Blocks so small that tiny pairs have several."""
    with (
        mock.patch.object(megatron, "BLOCK", entries),
        mock.patch.object(megatron_proofs, "BLOCK", entries),
        mock.patch.object(megatron, "REQUEST", 3 * entries),
    ):
        yield
