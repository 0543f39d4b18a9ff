from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from taojin.core.ledger import BY_EXACT, BY_HASH, BY_SKETCH
from taojin.core.status import FOLDED, SKETCHED
from taojin.dedup.clusters import connected_components
from taojin.dedup.config import DedupConfig
from taojin.dedup.order import survivor_order
from taojin.dedup.pairs import resemblance
from taojin.dedup.sketch import standard_error
from taojin.dedup.survivors import (
    SMALL,
    accept_from,
    adjacency,
    best_partners,
    borderline,
    final_components,
    jaccard,
    judge,
    pair_similarities,
    settled_band,
)
from tests import naive

NUM_BINS = 64
NEVER = (2.0, 2.0)
ALWAYS = (0.0, 2.0)

seeds = st.integers(0, 100_000)


class Group:
    """A random group of documents in survivor order: sketches and shingle sets more or less alike, and its links."""

    def __init__(self, seed: int, size: int, num_links: int, folded: float = 0.0, indexed: float = 0.0) -> None:
        random = np.random.default_rng(seed)
        families = random.integers(0, max(1, size // 4), size)
        bases = random.integers(1, 4, (size, NUM_BINS), np.uint8)
        noise = random.random((size, NUM_BINS)) < 0.2
        self.size = size
        self.sketch = naive.planes(np.where(noise, bases, bases[families]))
        self.status = np.where(random.random(size) < folded, FOLDED, SKETCHED).astype(np.uint8)
        self.is_index = np.arange(size) < indexed * size
        self.sets = naive.pack_sets([random.choice(25, 20, replace=False) + 100 * f for f in families.tolist()])
        ends = np.sort(random.integers(0, size, (num_links, 2)), axis=1)
        ends = np.unique(ends[ends[:, 0] < ends[:, 1]], axis=0)
        self.left, self.right = ends[:, 0], ends[:, 1]
        self.measure()

    def measure(self) -> None:
        self.value = np.array([self.estimate(i, j) for i, j in self.links])

    @property
    def links(self) -> list[tuple[int, int]]:
        return list(zip(self.left.tolist(), self.right.tolist(), strict=True))

    def estimate(self, i: int, j: int) -> float:
        """Of a pair, by the function that tests/test_pairs.py holds against the naive one."""
        return float(resemblance(self.sketch, self.status, True, i, j))

    def exact(self, i: int, j: int) -> float:
        return self.estimate(i, j) if self.status[i] == FOLDED else naive.jaccard(self.sets[i], self.sets[j])


class Judged:
    """Survivors, similarities, how they are known, and comparisons in vain, of every document of a group."""

    def __init__(self, group: Group, threshold: float, settled: tuple[float, float] = NEVER) -> None:
        size = group.size
        self.survivor = np.full(size, -7, np.int64)
        self.similarity = np.full(size, -7.0)
        self.verified = np.zeros(size, np.uint8)
        self.compared = np.full(size, -7, np.int64)
        judge(
            connected_components(size, group.left, group.right),
            group.is_index,
            np.zeros(size, np.int64),
            *adjacency(size, group.left, group.right, group.value),
            group.sketch,
            group.status,
            threshold,
            True,
            *settled,
            group.sets.starts,
            group.sets.values,
            self.survivor,
            self.similarity,
            self.verified,
            self.compared,
        )

    @property
    def removed(self) -> NDArray[np.bool_]:
        return self.survivor != np.arange(len(self.survivor))


def greedy(group: Group, similarity: Callable[[int, int], float], threshold: float) -> list[int]:
    return naive.greedy(group.size, group.links, similarity, threshold, group.is_index.tolist(), SMALL)


def configured(**values: object) -> DedupConfig:
    return DedupConfig.model_validate({"input": ("x",), "output": "y", **values})


# ---------------------------------------------------------------------------- judging


@given(seeds, st.integers(1, 30), st.integers(0, 60), st.sampled_from([0.5, 0.6, 0.75]))
def test_survivors_by_estimate_are_those_of_a_naive_greedy_run(
    seed: int, size: int, num_links: int, threshold: float
) -> None:
    group = Group(seed, size, num_links, folded=0.2, indexed=0.1)
    assert Judged(group, threshold).survivor.tolist() == greedy(group, group.estimate, threshold)


@given(seeds, st.integers(1, 30), st.integers(0, 60), st.sampled_from([0.5, 0.6, 0.7]))
def test_survivors_by_shingles_are_those_of_a_naive_greedy_run(
    seed: int, size: int, num_links: int, threshold: float
) -> None:
    group = Group(seed, size, num_links, folded=0.2, indexed=0.1)
    assert Judged(group, threshold, ALWAYS).survivor.tolist() == greedy(group, group.exact, threshold)


@pytest.mark.parametrize("seed", range(5))
def test_components_with_more_than_a_few_survivors_are_judged_by_their_links_alone(seed: int) -> None:
    group = Group(seed, 4 * SMALL, 6 * SMALL)
    for threshold in (0.6, 0.9):
        assert Judged(group, threshold).survivor.tolist() == greedy(group, group.estimate, threshold)


@given(seeds, st.integers(1, 40), st.integers(0, 80))
def test_what_goes_rests_on_a_comparison_with_an_earlier_document_that_stays(
    seed: int, size: int, num_links: int
) -> None:
    group = Group(seed, size, num_links, folded=0.1, indexed=0.2)
    judged = Judged(group, 0.6)
    component = naive.components(size, group.links)
    for i in np.flatnonzero(judged.removed).tolist():
        survivor = int(judged.survivor[i])
        assert survivor < i
        assert not judged.removed[survivor]
        assert component[survivor] == component[i]
        assert judged.similarity[i] == group.estimate(i, survivor) >= 0.6
    assert (judged.similarity[~judged.removed] == 1.0).all()


@given(seeds, st.integers(2, 30), st.integers(1, 60))
def test_two_documents_that_stay_and_are_linked_differ(seed: int, size: int, num_links: int) -> None:
    group = Group(seed, size, num_links)
    judged = Judged(group, 0.6)
    for i, j in group.links:
        assert judged.removed[i] or judged.removed[j] or group.estimate(i, j) < 0.6


@given(seeds, st.integers(1, 30))
def test_documents_of_an_index_are_never_judged(seed: int, size: int) -> None:
    group = Group(seed, size, 60, indexed=0.5)
    assert not Judged(group, 0.1).removed[group.is_index].any()


@given(seeds, st.randoms(use_true_random=False))
def test_the_order_of_pairs_does_not_matter(seed: int, random: object) -> None:
    group = Group(seed, 25, 50)
    before = Judged(group, 0.6)
    order = list(range(len(group.left)))
    random.shuffle(order)  # type: ignore[attr-defined]
    group.left, group.right, group.value = group.right[order], group.left[order], group.value[order]
    after = Judged(group, 0.6)
    assert after.survivor.tolist() == before.survivor.tolist()
    assert after.similarity.tolist() == before.similarity.tolist()


@given(seeds, st.integers(2, 30))
def test_folded_documents_go_only_for_equal_folded_ones(seed: int, size: int) -> None:
    group = Group(seed, size, 3 * size, folded=0.5)
    twin = np.random.default_rng(seed).integers(0, size, size)
    group.sketch = np.where(np.arange(size)[:, None] % 3 == 0, group.sketch[twin], group.sketch)
    group.measure()
    judged = Judged(group, 0.1)
    for i in np.flatnonzero(judged.removed & (group.status == FOLDED)).tolist():
        survivor = judged.survivor[i]
        assert group.status[survivor] == FOLDED
        assert np.array_equal(group.sketch[i, :2], group.sketch[survivor, :2])
        assert judged.verified[i] == BY_HASH
        assert judged.similarity[i] == 1.0
    assert not (judged.removed & (group.status[judged.survivor] == FOLDED) & (group.status == SKETCHED)).any()


def test_only_estimates_in_the_settled_band_are_replaced_by_exact_similarity() -> None:
    group = Group(4, 80, 240)
    judged = Judged(group, 0.4, (0.4, 0.6))
    seen = set()
    for i in np.flatnonzero(judged.removed).tolist():
        survivor = int(judged.survivor[i])
        estimate = group.estimate(i, survivor)
        inside = 0.4 <= estimate < 0.6
        assert judged.verified[i] == (BY_EXACT if inside else BY_SKETCH)
        assert judged.similarity[i] == (group.exact(i, survivor) if inside else estimate)
        seen.add(inside)
    assert seen == {False, True}


def test_comparisons_in_vain_are_counted() -> None:
    """A path of five that resemble nothing: each meets the survivors before it that no pair links it to."""
    group = Group(0, 5, 0)
    group.sketch = naive.planes(np.repeat(np.eye(5, dtype=np.uint8), NUM_BINS, axis=1))
    group.left, group.right = np.arange(4), np.arange(1, 5)
    group.measure()
    judged = Judged(group, 0.6)
    assert not judged.removed.any()
    assert judged.compared.tolist() == [0, 0, 1, 2, 3]


@given(seeds)
def test_jaccard_is_the_naive_one(seed: int) -> None:
    random = np.random.default_rng(seed)
    sets = naive.pack_sets([random.integers(0, 20, random.integers(0, 15)).tolist() for _ in range(2)])
    assert jaccard(0, 1, sets.starts, sets.values) == pytest.approx(naive.jaccard(sets[0], sets[1]))


# ---------------------------------------------------------------------------- what is settled


def test_nothing_is_settled_at_first_by_estimate_and_everything_by_shingles() -> None:
    assert settled_band(configured(), settled=False) == NEVER
    assert settled_band(configured(verify="exact"), settled=True) == ALWAYS
    above, below = settled_band(configured(), settled=True)
    assert above == 0.8
    assert below == borderline(configured()) == pytest.approx(0.8 + 2.5 * standard_error(0.8, configured()))


def test_an_estimate_must_clear_the_threshold_by_a_part_of_its_error_and_exact_similarity_need_not() -> None:
    config = configured()
    assert accept_from(config, settled=True) == 0.8
    assert 0.8 < accept_from(config, settled=False) < 0.8 + 0.5 * standard_error(0.8, config)
    assert accept_from(configured(threshold=1.0), settled=False) == 1.0


@given(seeds, st.sampled_from([0.6, 0.8]))
def test_a_pair_is_verified_when_its_similarity_reaches_the_threshold(seed: int, threshold: float) -> None:
    group = Group(seed, 20, 40, folded=0.2)
    config = configured(verify="exact", threshold=threshold)
    verified, values = pair_similarities(
        config, True, group.left, group.right, group.value, group.sketch, group.status, *group.sets
    )
    assert values.tolist() == pytest.approx([group.exact(i, j) for i, j in group.links])
    assert verified.tolist() == [group.exact(i, j) >= threshold for i, j in group.links]


# ---------------------------------------------------------------------------- components and partners


@given(seeds, st.integers(1, 30), st.integers(0, 60))
def test_components_are_what_verified_pairs_and_removals_link(seed: int, size: int, num_links: int) -> None:
    group = Group(seed, size, num_links)
    random = np.random.default_rng(seed)
    verified = random.random(len(group.left)) < 0.5
    judged = Judged(group, 0.6)
    num_own = size * 3 // 4 + 1  # the rest belong to an index, with higher ordinals
    ordinals = random.permutation(size)
    component, linked = final_components(ordinals, group.left, group.right, verified, judged.survivor, num_own)
    edges = [edge for edge, good in zip(group.links, verified.tolist(), strict=True) if good]
    edges += [(i, int(judged.survivor[i])) for i in range(size) if judged.removed[i]]
    names = naive.components(size, edges)
    for i in range(size):
        mine = {int(ordinals[j]) for j in range(size) if names[j] == names[i]}
        own = [ordinal for ordinal in mine if ordinal < num_own]
        assert not own or component[i] == min(own)
        assert linked[i] == (len(mine) > 1)


def test_adjacency_lists_both_directions_of_every_pair_ascending() -> None:
    left, right, value = np.array([0, 2, 0]), np.array([3, 0, 1]), np.array([0.7, 0.8, 0.9])
    starts, neighbours, values = adjacency(4, left, right, value)
    assert starts.tolist() == [0, 3, 4, 5, 6]
    assert neighbours.tolist() == [1, 2, 3, 0, 0, 0]
    assert values.tolist() == [0.9, 0.8, 0.7, 0.9, 0.8, 0.7]


def test_the_evidence_of_a_dropped_survivor_is_the_document_most_similar_to_it() -> None:
    survivor, value = np.array([0, 0, 0, 3]), np.array([1.0, 0.9, 0.85, 1.0])
    left, right, similarity = np.array([0, 0, 1]), np.array([1, 2, 2]), np.array([0.9, 0.85, 0.95])
    partner, found = best_partners(survivor, value, left, right, similarity)
    assert partner.tolist() == [1, 0, 0, 3]
    assert found.tolist() == [0.9, 0.9, 0.85, 1.0]


# ---------------------------------------------------------------------------- the order of survival


def ranked(
    chars: list[int],
    quality: list[float] | None = None,
    source: list[str | None] | None = None,
    priority: tuple[str, ...] = (),
    num_own: int | None = None,
) -> list[int]:
    size = len(chars)
    columns = {
        "chars": np.array(chars, np.uint32),
        "quality": np.full(size, np.nan) if quality is None else np.array(quality),
        "source": pa.array([None] * size if source is None else source, pa.string()),
    }
    own = size if num_own is None else num_own
    return list(survivor_order(columns, np.arange(size), own, priority).tolist())


def test_longer_documents_survive_and_earlier_ones_among_equals() -> None:
    assert ranked([5, 9, 5, 9]) == [1, 3, 0, 2]


def test_higher_quality_comes_before_length_and_none_comes_last() -> None:
    assert ranked([1, 9, 5, 7, 8], quality=[0.9, 0.1, float("nan"), 0.9, -1.0]) == [3, 0, 1, 4, 2]


def test_trusted_sources_come_before_quality_and_unknown_ones_last() -> None:
    sources: list[str | None] = ["web", "book", None, "news", "book"]
    order = ranked([1, 1, 9, 9, 2], quality=[9, 1, 9, 9, 1], source=sources, priority=("book", "news"))
    assert order == [4, 1, 3, 2, 0]


def test_documents_of_an_index_come_before_all_others() -> None:
    assert ranked([9, 9, 1, 1], num_own=2) == [2, 3, 0, 1]
