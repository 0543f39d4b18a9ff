from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from taojin.dedup import clusters
from taojin.dedup.clusters import connected_components, pack_groups, unique_pairs
from tests import naive

Edges = list[tuple[int, int]]
edges = st.lists(st.tuples(st.integers(0, 29), st.integers(0, 29)), max_size=40)


def components(num_nodes: int, pairs: Edges) -> list[int]:
    a, b = (np.array([pair[side] for pair in pairs], np.int64) for side in (0, 1))
    return list(connected_components(num_nodes, a, b).tolist())


def part(*pairs: tuple[int, int, float]) -> list[NDArray[Any]]:
    return [
        np.array([pair[0] for pair in pairs]),
        np.array([pair[1] for pair in pairs]),
        np.array([pair[2] for pair in pairs]),
    ]


@given(edges)
@example([])
@example([(3, 3)])
@example([(i, i + 1) for i in range(29)])
@example([(i + 1, i) for i in reversed(range(29))])
def test_components_are_those_of_a_search_from_each_node(pairs: Edges) -> None:
    assert components(30, pairs) == naive.components(30, pairs)


@given(edges, st.randoms(use_true_random=False))
def test_neither_order_nor_direction_nor_repetition_of_edges_matters(pairs: Edges, random: object) -> None:
    changed = [(b, a) for a, b in pairs] + pairs[:5]
    random.shuffle(changed)  # type: ignore[attr-defined]
    assert components(30, changed) == components(30, pairs)


def test_nodes_without_an_edge_are_alone() -> None:
    assert components(3, []) == [0, 1, 2]
    assert components(0, []) == []


@pytest.mark.usefixtures("compiled")
def test_a_path_of_a_million_nodes_is_one_component() -> None:
    size = 1_000_000
    order = np.random.default_rng(0).permutation(size - 1)
    assert not connected_components(size, order + 1, order).any()


def test_pairs_of_all_parts_are_sorted_and_each_there_once() -> None:
    parts = [part((4, 5, 1.0), (1, 2, 0.9)), part((1, 2, 0.9), (1, 3, 0.8)), part((0, 9, 0.7))]
    assert [column.tolist() for column in unique_pairs(parts)] == [[0, 1, 1, 4], [9, 2, 3, 5], [0.7, 0.9, 0.8, 1.0]]


@pytest.mark.parametrize("parts", [[], [[np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)]]])
def test_no_pairs_are_three_empty_columns(parts: list[list[NDArray[Any]]]) -> None:
    assert [column.size for column in unique_pairs(parts)] == [0, 0, 0]


@given(st.lists(st.tuples(st.integers(2, 40), st.integers(0, 100)), max_size=30), st.integers(1, 200))
def test_groups_are_consecutive_and_hold_no_more_than_they_may(components: Edges, most_weight: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clusters, "GROUP_DOCUMENTS", 50)
        sizes, weights = (np.array([c[side] for c in components], np.int64) for side in (0, 1))
        groups = pack_groups(sizes, weights, most_weight)
    assert (np.diff(groups, prepend=0) <= 1).all()
    assert (np.diff(groups, prepend=0) >= 0).all()
    for group in set(groups.tolist()):
        inside = groups == group
        fits = sizes[inside].sum() <= 50 and weights[inside].sum() <= most_weight
        assert fits or inside.sum() == 1


def test_small_components_share_a_group() -> None:
    assert pack_groups(np.full(10, 2), np.zeros(10, np.int64), 100).tolist() == [0] * 10
