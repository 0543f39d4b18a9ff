from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from taojin.core.fold import FoldTable
from taojin.core.text import SYMBOLS_PER_BYTE, roll_shingles, scratch_for
from taojin.dedup.shingles import intersection_size, shingle_sets
from tests import naive

symbols = st.lists(st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 3)), max_size=40)
word = st.sampled_from(["中", "文", "很", "好", "a", "word", " ", "，", "㌖", "é", "\u200b", "𠀀"])


def rolled(values: list[int], ngram: int) -> list[int]:
    array = np.array([*values, 0xABCD], np.uint64)
    count = roll_shingles(array, len(values), ngram)
    assert array[-1] == 0xABCD
    return list(array[:count].tolist())


def sets_of(documents: list[bytes], table: FoldTable, ngram: int, lead: bytes = b"") -> list[list[int]]:
    data = np.frombuffer(lead + b"".join(documents) + b"\xe4", np.uint8)
    offsets = np.cumsum([len(lead), *map(len, documents)]).astype(np.int64)
    out = np.empty(SYMBOLS_PER_BYTE * sum(map(len, documents)) + 1, np.uint64)
    starts = np.zeros(len(offsets), np.int64)
    scratch = scratch_for(max(map(len, documents), default=0))
    shingle_sets(data, offsets, table.table, table.expansions, ngram, scratch, out, starts)
    return [out[a:b].tolist() for a, b in pairwise(starts.tolist())]


def as_set(values: set[int]) -> NDArray[np.uint64]:
    return np.array(sorted(values), np.uint64)


@given(symbols, st.integers(1, 12))
@example([], 1)
@example([7], 1)
@example([1, 2, 3, 4], 5)
@example([1, 2, 3, 4, 5], 5)
@example([2**64 - 1] * 12, 5)
def test_rolled_shingles_are_the_naive_ones(values: list[int], ngram: int) -> None:
    assert rolled(values, ngram) == naive.shingles(values, ngram)


@given(symbols)
def test_shingles_of_one_symbol_are_the_symbols(values: list[int]) -> None:
    assert rolled(values, 1) == values


def test_the_order_of_symbols_matters() -> None:
    assert rolled([1, 2, 3, 4, 5], 5) != rolled([5, 4, 3, 2, 1], 5)


@given(st.lists(st.lists(word, max_size=30).map("".join), max_size=5), st.integers(1, 6))
def test_shingle_sets_are_sorted_distinct_and_the_naive_ones(
    fold_table: FoldTable, naive_fold: Callable[[bytes], naive.Folded], texts: list[str], ngram: int
) -> None:
    documents = [text.encode() for text in texts]
    expected = [sorted(set(naive.shingles(naive_fold(d).symbols, ngram))) for d in documents]
    assert sets_of(documents, fold_table, ngram) == expected


def test_shingle_sets_of_a_slice_begin_where_its_offsets_do(fold_table: FoldTable) -> None:
    documents = ["中文很好，中文很好".encode(), b"", b"a b c d e f"]
    assert sets_of(documents, fold_table, 3, lead=b"\xff\xff") == sets_of(documents, fold_table, 3)


def test_a_repeated_sentence_adds_nothing_to_the_set(fold_table: FoldTable) -> None:
    once, often = sets_of(["今天天气不错。".encode() * 2, "今天天气不错。".encode() * 500], fold_table, 5)
    assert once == often
    assert len(once) == 6


@given(st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)))
@example(set(), set())
@example({2**64 - 1, 2**63}, {2**63})
def test_intersection_size_is_the_naive_one(a: set[int], b: set[int]) -> None:
    assert intersection_size(as_set(a), as_set(b)) == len(a & b)


@pytest.mark.parametrize("num_bytes", [0, 1, 1000])
def test_scratch_has_the_room_that_folding_asks_for(num_bytes: int) -> None:
    assert scratch_for(num_bytes).size == SYMBOLS_PER_BYTE * num_bytes + 1
