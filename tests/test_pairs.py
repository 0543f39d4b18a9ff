from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from taojin.core.status import FOLDED, SKETCHED
from taojin.core.storage import Folder
from taojin.dedup import pairs as pairs_module
from taojin.dedup.config import DedupConfig
from taojin.dedup.pairs import (
    HOT,
    MAX_LEADERS,
    NEIGHBOURS,
    PAIR_SCHEMA,
    ROTATIONS,
    accept_at,
    blocks,
    bucket_pairs,
    buckets,
    by_bucket,
    near_alike_orders,
    neighbour_pairs,
    read_columns,
    resemblance,
    write_columns,
)
from taojin.dedup.sketch import standard_error
from tests import naive

NUM_BINS = 256
# A document of a hot bucket meets all leaders, and its neighbours in each rotation.
MOST_COMPARISONS = MAX_LEADERS + ROTATIONS * NEIGHBOURS


def unlike_bins(count: int, seed: int = 0) -> NDArray[np.uint8]:
    """Bins of documents that resemble nothing: any two estimates are 0 ± 0.04."""
    return np.random.default_rng(seed).integers(1, 4, (count, NUM_BINS), np.uint8)


def alike_bins(count: int, seed: int) -> NDArray[np.uint8]:
    """Bins of a few families of documents that resemble each other more or less."""
    random = np.random.default_rng(seed)
    families = random.integers(0, 4, count)
    changed = random.random((count, NUM_BINS)) < random.random((count, 1)) / 2
    return np.where(changed, random.integers(0, 4, (count, NUM_BINS), np.uint8), unlike_bins(4, seed)[families])


class Found:
    """What is found in some buckets: leaders and those who follow them, then neighbours among the rest of hot ones."""

    def __init__(
        self,
        members: list[list[int]],
        bins: NDArray[np.uint8],
        propose: float,
        absorb: float,
        status: NDArray[np.uint8] | None = None,
        is_index: NDArray[np.bool_] | None = None,
    ) -> None:
        sizes = np.array([len(bucket) for bucket in members], np.int64)
        starts = np.concatenate([[0], np.cumsum(sizes)])
        sketch = naive.planes(bins)
        status = np.full(len(bins), SKETCHED, np.uint8) if status is None else status
        rule = (sketch, True, status, np.zeros(len(bins), np.bool_) if is_index is None else is_index, propose)
        self.rejected = np.zeros(len(bins), np.uint32)
        loose, loose_starts = np.empty(starts[-1], np.int64), np.empty(len(starts), np.int64)
        ordered = by_bucket(np.array([m for bucket in members for m in bucket], np.int64), sizes)
        steps = [bucket_pairs(ordered, starts, *rule, absorb, self.rejected, loose, loose_starts)]
        for bucket, (first, last) in enumerate(pairwise(loose_starts.tolist())):
            assert first == last or sizes[bucket] > HOT
            orders = near_alike_orders(loose[first:last], sketch, bucket)
            steps += [neighbour_pairs(order, *rule, self.rejected) for order in orders]
        self.pairs: list[tuple[int, int]] = [(i, j) for pairs, _, _ in steps for i, j in pairs.tolist()]
        self.values: list[float] = [value for _, values, _ in steps for value in values.tolist()]
        self.compared = sum(compared for _, _, compared in steps)


def similarity(bins: NDArray[np.uint8]) -> Callable[[int, int], float]:
    rows = bins.tolist()
    return lambda i, j: naive.estimate(rows[i], rows[j])


def all_pairs(size: int) -> int:
    return size * (size - 1) // 2


# ---------------------------------------------------------------------------- resemblance


@given(st.integers(0, 100))
def test_resemblance_is_the_estimate_of_the_sketches(seed: int) -> None:
    bins = alike_bins(2, seed)
    status = np.full(2, SKETCHED, np.uint8)
    assert resemblance(naive.planes(bins), status, True, 0, 1) == pytest.approx(similarity(bins)(0, 1))


def test_folded_documents_are_equal_in_their_hash_or_they_are_not() -> None:
    sketch = np.zeros((4, 32), np.uint64)
    sketch[:, 0], sketch[:, 1] = [5, 5, 5, 6], [7, 7, 8, 7]
    status = np.full(4, FOLDED, np.uint8)
    for packed in (True, False):
        assert [resemblance(sketch, status, packed, 0, j) for j in range(4)] == [1.0, 1.0, 0.0, 0.0]


def test_a_folded_and_a_sketched_document_never_resemble() -> None:
    sketch = naive.planes(unlike_bins(1)).repeat(2, axis=0)
    assert resemblance(sketch, np.array([FOLDED, SKETCHED], np.uint8), True, 0, 1) == 0.0


@pytest.mark.parametrize("sketch", ["fast", "datasketch"])
@pytest.mark.parametrize("threshold", [0.05, 0.5, 0.8, 0.95, 1.0])
def test_pairs_are_proposed_from_the_threshold_and_with_exact_verification_from_well_below_it(
    sketch: str, threshold: float
) -> None:
    values = {"input": ("x",), "output": "y", "sketch": sketch, "threshold": threshold}
    config = DedupConfig.model_validate(values)
    propose, absorb = accept_at(config)
    assert propose == threshold <= absorb <= 1.0
    exact_propose, exact_absorb = accept_at(DedupConfig.model_validate({**values, "verify": "exact"}))
    assert exact_absorb == absorb
    assert 0 < exact_propose <= max(threshold - 3 * standard_error(threshold, config), 0.01)


# ---------------------------------------------------------------------------- small buckets


@given(
    st.lists(st.integers(2, 30), min_size=1, max_size=5),
    st.integers(0, 1000),
    st.sampled_from([0.4001, 0.6001, 0.8001]),
    st.sampled_from([0.0, 0.1, 0.5]),
)
def test_small_buckets_compare_each_document_with_the_leaders_before_it(
    sizes: list[int], seed: int, propose: float, beyond: float
) -> None:
    random = np.random.default_rng(seed)
    bins = alike_bins(40, seed)
    is_index = random.random(40) < 0.2
    members = [random.choice(40, size, replace=False).tolist() for size in sizes]
    found = Found(members, bins, propose, propose + beyond, is_index=is_index)
    alike = similarity(bins)
    expected = [naive.bucket_pairs(m, alike, is_index.tolist(), propose, propose + beyond) for m in members]
    assert Counter(found.pairs) == Counter(pair for e in expected for pair in e.pairs)
    assert found.values == pytest.approx([alike(i, j) for i, j in found.pairs])
    assert found.compared == sum(e.compared for e in expected)
    assert found.rejected.tolist() == [sum(e.rejected.get(d, 0) for e in expected) for d in range(40)]


def test_without_absorption_every_pair_that_resembles_is_found() -> None:
    bins = alike_bins(HOT, 1)
    alike = similarity(bins)
    found = Found([list(range(HOT))], bins, 0.6001, 2.0)
    assert set(found.pairs) == {(i, j) for j in range(HOT) for i in range(j) if alike(i, j) >= 0.6001}
    assert found.compared == all_pairs(HOT)


@given(st.randoms(use_true_random=False), st.sampled_from([10, 100]))
def test_the_order_of_members_does_not_matter(random: object, size: int) -> None:
    members = list(range(size))
    random.shuffle(members)  # type: ignore[attr-defined]
    bins = alike_bins(size, 3)
    found, ordered = Found([members], bins, 0.6, 0.7), Found([sorted(members)], bins, 0.6, 0.7)
    assert found.pairs == ordered.pairs
    assert found.rejected.tolist() == ordered.rejected.tolist()


def test_the_buffer_of_pairs_grows_as_needed() -> None:
    found = Found([list(range(HOT))] * 3, unlike_bins(1).repeat(HOT, axis=0), 0.5, 2.0)
    assert len(found.pairs) == 3 * all_pairs(HOT) > 1024
    assert set(found.pairs) == {(i, j) for j in range(HOT) for i in range(j)}
    assert set(found.values) == {1.0}


def test_documents_of_an_index_are_not_compared_with_each_other() -> None:
    is_index = np.array([True, True, False, False])
    found = Found([[0, 1, 2, 3]], unlike_bins(1).repeat(4, axis=0), 0.5, 2.0, is_index=is_index)
    assert set(found.pairs) == {(0, 2), (1, 2), (0, 3), (1, 3), (2, 3)}


# ---------------------------------------------------------------------------- hot buckets


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("size", [HOT + 1, 200, 3000])
def test_a_hot_bucket_costs_a_bounded_number_of_comparisons_a_document(size: int) -> None:
    found = Found([list(range(size))], unlike_bins(size), 0.8, 0.85)
    assert found.compared <= MOST_COMPARISONS * size
    assert found.rejected.sum() == found.compared
    assert found.pairs == []


@pytest.mark.parametrize("size", [HOT + 1, 200])
def test_comparisons_are_counted_as_they_are_made(size: int) -> None:
    """With nothing to reach, every comparison leaves a pair."""
    found = Found([list(range(size))], unlike_bins(size), 0.0, 2.0)
    assert found.compared == len(found.pairs)


@pytest.mark.parametrize("size", [HOT + 1, 200])
def test_every_member_of_a_hot_bucket_meets_the_leaders_and_its_neighbours(size: int) -> None:
    pairs = set(Found([list(range(size))], unlike_bins(size), 0.0, 2.0).pairs)
    assert {(i, j) for i in range(MAX_LEADERS) for j in range(i + 1, size)} <= pairs
    met = Counter(document for i, j in pairs if i >= MAX_LEADERS for document in (i, j))
    assert all(met[document] >= NEIGHBOURS for document in range(MAX_LEADERS, size))


@pytest.mark.usefixtures("compiled")
def test_members_that_resemble_a_leader_are_found_in_a_hot_bucket() -> None:
    bins = unlike_bins(400)
    copies = np.arange(300, 400)
    bins[copies] = bins[copies % MAX_LEADERS]
    found = Found([list(range(400))], bins, 0.8, 0.85)
    assert set(found.pairs) == {(j % MAX_LEADERS, j) for j in copies.tolist()}


@pytest.mark.usefixtures("compiled")
def test_members_with_equal_sketches_meet_in_a_hot_bucket_wherever_they_stand() -> None:
    size = 2000
    bins = unlike_bins(size)
    twins = np.random.default_rng(1).permutation(np.arange(MAX_LEADERS, size))[:1000]
    bins[twins[:500]] = bins[twins[500:]]
    found = Found([list(range(size))], bins, 0.8, 0.85)
    expected = {(min(a, b), max(a, b)) for a, b in zip(twins[:500].tolist(), twins[500:].tolist(), strict=True)}
    assert set(found.pairs) == expected


@pytest.mark.parametrize("status", [SKETCHED, FOLDED])
def test_a_hot_bucket_of_equal_documents_compares_each_once_with_the_first(status: int) -> None:
    size = 5000
    bins = unlike_bins(1).repeat(size, axis=0)
    found = Found([list(range(size))], bins, 0.8, 0.85, status=np.full(size, status, np.uint8))
    assert found.pairs == [(0, j) for j in range(1, size)]
    assert found.compared == size - 1


def test_buckets_do_not_disturb_each_other() -> None:
    bins = alike_bins(300, 5)
    members = [list(range(100)), list(range(100, 300)), [1, 2], list(range(50, 90))]
    together, alone = Found(members, bins, 0.6001, 0.7), [Found([m], bins, 0.6001, 0.7) for m in members]
    small = {(i, j) for found in alone[2:] for i, j in found.pairs}
    assert small <= set(together.pairs)
    for first, found in zip((0, 100), alone[:2], strict=True):
        assert {pair for pair in found.pairs if pair[0] == first} <= set(together.pairs)


@given(st.lists(st.integers(1, 20), max_size=10), st.randoms(use_true_random=False))
def test_members_are_ordered_within_their_buckets(sizes: list[int], random: object) -> None:
    members = [list(range(3, 3 + size)) for size in sizes]
    shuffled = [random.sample(bucket, len(bucket)) for bucket in members]  # type: ignore[attr-defined]
    flat = np.array([m for bucket in shuffled for m in bucket], np.int64)
    assert by_bucket(flat, np.array(sizes, np.int64)).tolist() == [m for bucket in members for m in bucket]


# ---------------------------------------------------------------------------- grouping


some_keys = st.one_of(st.integers(0, 5), st.integers(0, 2**64 - 1), st.integers(0, 7).map(lambda n: n << 61))


@given(st.lists(some_keys, max_size=50))
@example([])
@example([7])
@example([2**64 - 1, 2**64 - 1])
@example([1, 2, 1, 2])
def test_buckets_are_the_keys_that_occur_twice_or_more(keys: list[int]) -> None:
    ordinals = np.arange(100, 100 + len(keys))
    members, starts = buckets(np.array(keys, np.uint64), ordinals)
    found = [members[a:b].tolist() for a, b in pairwise(starts.tolist())]
    assert sorted(found) == sorted(naive.buckets(keys, ordinals.tolist()).values())
    assert starts[0] == 0
    assert starts[-1] == len(members)


def test_keys_that_differ_in_their_last_bits_only_after_scattering_stay_apart() -> None:
    back = pow(int(pairs_module._SCATTER), -1, 1 << 64)
    keys = [n * back % (1 << 64) for n in (0, 1, 2, 0, 1, 3, 2, 0, 5)]
    members, starts = buckets(np.array(keys, np.uint64), np.arange(len(keys)))
    found = [members[a:b].tolist() for a, b in pairwise(starts.tolist())]
    assert sorted(found) == [[0, 3, 7], [1, 4], [2, 6]]


@given(st.lists(st.integers(2, 20), max_size=20), st.integers(1, 30))
@example([50], 10)
def test_blocks_take_whole_buckets_up_to_their_limit(sizes: list[int], most: int) -> None:
    starts = np.cumsum([0, *sizes]).astype(np.int64)
    found = blocks(starts, most)
    assert [bucket for low, high in found for bucket in range(low, high)] == list(range(len(sizes)))
    assert all(sum(sizes[low:high]) <= most or high == low + 1 for low, high in found)


# ---------------------------------------------------------------------------- files


def test_columns_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    parts = [[np.arange(n), np.arange(n) + 10, np.linspace(0, 1, n)] for n in (3, 0, 2)]
    entry = write_columns(folder, "pairs.arrow", PAIR_SCHEMA, parts)
    assert entry["rows"] == 5
    columns = read_columns(folder, "pairs.arrow")
    assert [column.tolist() for column in columns] == [[0, 1, 2, 0, 1], [10, 11, 12, 10, 11], [0, 0.5, 1, 0, 1]]
    assert [column.dtype for column in columns] == [np.int64, np.int64, np.float64]


def test_no_parts_are_read_back_as_empty_columns(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    assert write_columns(folder, "pairs.arrow", PAIR_SCHEMA, [])["rows"] == 0
    assert [column.size for column in read_columns(folder, "pairs.arrow")] == [0, 0, 0]
