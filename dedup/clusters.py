"""Clusters: connected components of pairs, and their packing into groups that one task can judge.

Every key range's pairs are merged by a union-find over the documents that occur in pairs alone: 16 bytes each (an
ordinal and a parent), whatever the size of the corpus. A component is named by its smallest ordinal.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taojin.core.jit import kernel

# A group's sketches are held at once (256 bytes a document).
GROUP_DOCUMENTS = 200_000


@kernel
def find(parent: NDArray[np.int64], i: int) -> int:
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i


@kernel
def connected_components(num_nodes: int, a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[num_nodes]: the smallest node of each node's component; a, b: the edges."""
    parent = np.arange(num_nodes)
    for edge in range(a.size):
        i = find(parent, a[edge])
        j = find(parent, b[edge])
        if i < j:
            parent[j] = i
        else:
            parent[i] = j
    for node in range(num_nodes):
        parent[node] = find(parent, node)
    return parent


def unique_pairs(
    parts: Iterable[Sequence[NDArray[Any]]],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """(a, b, estimate) of all parts, each pair once, by a and then b."""
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    if not columns:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
    a, b, value = columns
    order = np.lexsort((b, a))
    a, b, value = a[order], b[order], value[order]
    new = np.ones(len(a), bool)
    new[1:] = (a[1:] != a[:-1]) | (b[1:] != b[:-1])
    return a[new], b[new], value[new]


def pack_groups(component_sizes: NDArray[np.int64], weights: NDArray[np.int64], most_weight: int) -> NDArray[np.int64]:
    """Group number of each component: consecutive ones, at most GROUP_DOCUMENTS documents and `most_weight` in all,
    unless a single component is larger."""
    groups = np.zeros(len(component_sizes), np.int64)
    group = documents = weight = 0
    for index, (size, own) in enumerate(zip(component_sizes.tolist(), weights.tolist(), strict=True)):
        if documents and (documents + size > GROUP_DOCUMENTS or weight + own > most_weight):
            group += 1
            documents = weight = 0
        documents += size
        weight += own
        groups[index] = group
    return groups
