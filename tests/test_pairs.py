from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests import naive
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from taojin.core.status import FOLDED, SKETCHED
from taojin.core.storage import Folder
from taojin.dedup.config import DedupConfig
from taojin.dedup.pairs import (
    HOT,
    MAX_LEADERS,
    NEIGHBOURS,
    PAIR_SCHEMA,
    ROTATIONS,
    accept_at,
    agreement,
    blocks,
    bucket_pairs,
    buckets,
    read_columns,
    write_columns,
)
from taojin.dedup.sketch import estimates, standard_error

VALUES = 16
# A document of a hot bucket meets all leaders, and its neighbours in each rotation.
MOST_COMPARISONS = MAX_LEADERS + ROTATIONS * NEIGHBOURS


def alike_sketches(count: int, seed: int, alphabet: int = 3) -> NDArray[np.uint8]:
    """Sketches over few values, so that any number of them agrees."""
    return np.random.default_rng(seed).integers(0, alphabet, (count, VALUES), np.uint8)


def unlike_sketches(count: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, 64), np.uint8)


class Found:
    """What `bucket_pairs` says of some buckets."""

    def __init__(
        self,
        members: list[list[int]],
        sketch: NDArray[np.uint8],
        propose: int,
        absorb: int,
        status: NDArray[np.uint8] | None = None,
        is_index: NDArray[np.bool_] | None = None,
    ) -> None:
        starts = np.cumsum([0, *map(len, members)]).astype(np.int64)
        self.rejected = np.zeros(len(sketch), np.uint32)
        pairs, totals = bucket_pairs(
            np.array([m for bucket in members for m in bucket], np.int64),
            starts,
            sketch,
            np.full(len(sketch), SKETCHED, np.uint8) if status is None else status,
            np.zeros(len(sketch), np.bool_) if is_index is None else is_index,
            propose,
            absorb,
            self.rejected,
        )
        self.pairs: list[tuple[int, int, int]] = [(i, j, agree) for i, j, agree in pairs.tolist()]
        self.compared, self.not_compared, self.hot, self.largest = totals.tolist()


def agree(sketch: NDArray[np.uint8]) -> Callable[[int, int], int]:
    return lambda i, j: int((sketch[i] == sketch[j]).sum())


def all_pairs(size: int) -> int:
    return size * (size - 1) // 2


# ---------------------------------------------------------------------------- agreement


@given(st.integers(0, 100))
def test_agreement_counts_equal_values(seed: int) -> None:
    sketch = alike_sketches(2, seed)
    status = np.full(2, SKETCHED, np.uint8)
    assert agreement(sketch, status, 0, 1) == agree(sketch)(0, 1)
    assert agreement(sketch.astype(np.uint32) << 24, status, 0, 1) == agree(sketch)(0, 1)


def test_folded_documents_agree_wholly_or_not_at_all() -> None:
    sketch = alike_sketches(1, 0).repeat(3, axis=0)
    sketch[2, 15] += 1
    status = np.full(3, FOLDED, np.uint8)
    assert agreement(sketch, status, 0, 1) == VALUES
    assert agreement(sketch, status, 0, 2) == 0


def test_a_folded_and_a_sketched_document_never_agree() -> None:
    sketch = alike_sketches(1, 0).repeat(2, axis=0)
    assert agreement(sketch, np.array([FOLDED, SKETCHED], np.uint8), 0, 1) == 0


@pytest.mark.parametrize("sketch", ["fast", "datasketch"])
@pytest.mark.parametrize("threshold", [0.05, 0.5, 0.8, 0.95, 1.0])
@pytest.mark.parametrize("num_hashes", [128, 256])
def test_pairs_are_accepted_from_the_first_estimate_that_reaches_the_threshold(
    sketch: str, threshold: float, num_hashes: int
) -> None:
    values = {"input": ("x",), "output": "y", "sketch": sketch, "threshold": threshold, "num_hashes": num_hashes}
    config = DedupConfig.model_validate(values)
    table = estimates(config)
    propose, absorb = accept_at(config)
    assert table[propose] >= threshold
    assert table[propose - 1] < threshold
    assert propose <= absorb <= num_hashes
    exact_propose, exact_absorb = accept_at(DedupConfig.model_validate({**values, "verify": "exact"}))
    assert exact_absorb == absorb
    assert table[exact_propose] <= max(threshold - 3 * standard_error(threshold, num_hashes), table[1])


# ---------------------------------------------------------------------------- small buckets


@given(st.lists(st.integers(2, 30), min_size=1, max_size=5), st.integers(0, 1000), st.integers(4, 9), st.integers(0, 4))
def test_small_buckets_compare_each_document_with_the_leaders_before_it(
    sizes: list[int], seed: int, propose: int, beyond: int
) -> None:
    random = np.random.default_rng(seed)
    sketch = alike_sketches(40, seed)
    is_index = random.random(40) < 0.2
    members = [random.choice(40, size, replace=False).tolist() for size in sizes]
    found = Found(members, sketch, propose, propose + beyond, is_index=is_index)
    expected = [
        naive.bucket_pairs(m, agree(sketch), is_index.tolist(), propose, propose + beyond) for m in members
    ]
    assert Counter(found.pairs) == Counter(pair for e in expected for pair in e.pairs)
    assert found.compared == sum(e.compared for e in expected)
    assert found.rejected.tolist() == [sum(e.rejected.get(d, 0) for e in expected) for d in range(40)]
    assert (found.not_compared, found.hot, found.largest) == (0, 0, max(sizes))


def test_without_absorption_every_pair_that_agrees_is_found() -> None:
    sketch = alike_sketches(HOT, 1)
    found = Found([list(range(HOT))], sketch, 8, VALUES + 1)
    assert {(i, j) for i, j, _ in found.pairs} == {
        (i, j) for j in range(HOT) for i in range(j) if agree(sketch)(i, j) >= 8
    }
    assert found.compared == all_pairs(HOT)


@given(st.randoms(use_true_random=False), st.sampled_from([10, 100]))
def test_the_order_of_members_does_not_matter(random: object, size: int) -> None:
    members = list(range(size))
    random.shuffle(members)  # type: ignore[attr-defined]
    sketch = alike_sketches(size, 3)
    found, sorted_ = Found([members], sketch, 9, 12), Found([sorted(members)], sketch, 9, 12)
    assert found.pairs == sorted_.pairs
    assert found.rejected.tolist() == sorted_.rejected.tolist()


def test_the_buffer_of_pairs_grows_as_needed() -> None:
    sketch = np.zeros((HOT, VALUES), np.uint8)
    found = Found([list(range(HOT))] * 3, sketch, 1, VALUES + 1)
    assert len(found.pairs) == 3 * all_pairs(HOT) > 1024
    assert set(found.pairs) == {(i, j, VALUES) for j in range(HOT) for i in range(j)}


def test_documents_of_an_index_are_not_compared_with_each_other() -> None:
    sketch = np.zeros((4, VALUES), np.uint8)
    found = Found([[0, 1, 2, 3]], sketch, 10, VALUES + 1, is_index=np.array([True, True, False, False]))
    assert {(i, j) for i, j, _ in found.pairs} == {(0, 2), (1, 2), (0, 3), (1, 3), (2, 3)}


# ---------------------------------------------------------------------------- hot buckets


@pytest.mark.parametrize("size", [HOT + 1, 200, 3000])
def test_a_hot_bucket_costs_a_bounded_number_of_comparisons_a_document(size: int) -> None:
    found = Found([list(range(size))], unlike_sketches(size), 50, 55)
    assert found.hot == 1
    assert found.largest == size
    assert found.compared <= MOST_COMPARISONS * size
    assert found.rejected.sum() == found.compared
    assert found.pairs == []


@pytest.mark.parametrize("size", [HOT + 1, 200, 1000])
def test_what_a_hot_bucket_does_not_compare_is_counted(size: int) -> None:
    """With nothing to reach, every comparison made leaves a pair. A pair that two rotations compare counts twice."""
    found = Found([list(range(size))], unlike_sketches(size), 0, 65)
    assert found.compared == len(found.pairs)
    assert found.compared + found.not_compared == all_pairs(size)
    missed = all_pairs(size) - len({(i, j) for i, j, _ in found.pairs})
    assert missed >= found.not_compared
    assert missed <= found.not_compared + (ROTATIONS - 1) * NEIGHBOURS * size


def test_members_that_resemble_a_leader_are_found_in_a_hot_bucket() -> None:
    sketch = unlike_sketches(400)
    copies = np.arange(300, 400)
    sketch[copies] = sketch[copies % MAX_LEADERS]
    found = Found([list(range(400))], sketch, 50, 55)
    assert {(i, j) for i, j, _ in found.pairs} == {(j % MAX_LEADERS, j) for j in copies.tolist()}


def test_members_alike_in_all_values_meet_in_a_hot_bucket_wherever_they_stand() -> None:
    size = 2000
    sketch = unlike_sketches(size)
    first = np.random.default_rng(1).permutation(np.arange(MAX_LEADERS, size))[:1000]
    sketch[first[:500]] = sketch[first[500:]]
    found = {(i, j) for i, j, _ in Found([list(range(size))], sketch, 50, 55).pairs}
    expected = {(min(a, b), max(a, b)) for a, b in zip(first[:500].tolist(), first[500:].tolist(), strict=True)}
    assert expected <= found


def test_a_hot_bucket_of_equal_documents_compares_each_once_with_the_first() -> None:
    size = 5000
    found = Found([list(range(size))], np.zeros((size, VALUES), np.uint8), 13, 14)
    assert found.pairs == [(0, j, VALUES) for j in range(1, size)]
    assert found.compared == size - 1


def test_a_hot_bucket_of_equal_folded_documents_does_so_too() -> None:
    size = 1000
    status = np.full(size, FOLDED, np.uint8)
    found = Found([list(range(size))], np.zeros((size, VALUES), np.uint8), 13, 14, status=status)
    assert found.pairs == [(0, j, VALUES) for j in range(1, size)]


def test_totals_add_up_over_buckets() -> None:
    sketch = unlike_sketches(300)
    one, two = list(range(100)), list(range(100, 300))
    both, first, second = (Found(m, sketch, 50, 55) for m in ([one, two, [1, 2]], [one], [two]))
    assert both.hot == 2
    assert both.largest == 200
    assert both.compared <= first.compared + second.compared + 1
    assert both.compared + both.not_compared == all_pairs(100) + all_pairs(200) + 1


# ---------------------------------------------------------------------------- grouping


@given(st.lists(st.one_of(st.integers(0, 5), st.integers(0, 2**64 - 1)), max_size=50))
@example([])
@example([7])
@example([2**64 - 1, 2**64 - 1])
def test_buckets_are_the_keys_that_occur_twice_or_more(keys: list[int]) -> None:
    ordinals = np.arange(100, 100 + len(keys))
    members, starts = buckets(np.array(keys, np.uint64), ordinals)
    expected = naive.buckets(keys, ordinals.tolist())
    found = [members[a:b].tolist() for a, b in zip(starts[:-1], starts[1:], strict=True)]
    assert found == [expected[key] for key in sorted(expected)]
    assert starts[0] == 0
    assert starts[-1] == len(members)


@given(st.lists(st.integers(2, 20), max_size=20), st.integers(1, 30))
@example([50], 10)
def test_blocks_take_whole_buckets_up_to_their_limit(sizes: list[int], most: int) -> None:
    starts = np.cumsum([0, *sizes]).astype(np.int64)
    found = blocks(starts, most)
    assert [bucket for low, high in found for bucket in range(low, high)] == list(range(len(sizes)))
    assert all(sum(sizes[low:high]) <= most or high == low + 1 for low, high in found)


# ---------------------------------------------------------------------------- files


@pytest.mark.parametrize("rows", [0, 3])
def test_columns_are_read_back_as_they_were_written(tmp_path: Path, rows: int) -> None:
    values = np.arange(3 * rows).reshape(rows, 3)
    folder = Folder(str(tmp_path))
    entry = write_columns(folder, "pairs.arrow", PAIR_SCHEMA, values)
    assert entry["rows"] == rows
    columns = read_columns(folder, "pairs.arrow")
    assert [column.tolist() for column in columns] == values.T.tolist()
    assert [column.dtype for column in columns] == [np.int64, np.int64, np.uint16]
