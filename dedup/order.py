"""Who survives: the order in which documents are offered a place.

A document is removed only in favour of one before it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from taojin.core.sidecars import WorkView
from taojin.dedup.config import DedupConfig


def survivor_order(
    columns: dict[str, Any], ordinals: NDArray[np.int64], num_own: int, source_priority: Sequence[str]
) -> NDArray[np.int64]:
    """Indices of the documents from the one that survives first to the last.

    An index's documents, then source priority, quality column and score (higher first, null and NaN last), length in
    characters (longer first), position.
    """
    priority = np.full(len(ordinals), len(source_priority), np.int64)
    if source_priority:
        found = pc.fill_null(
            pc.index_in(columns["source"], pa.array(source_priority, pa.string())), len(source_priority)
        )
        priority = found.to_numpy(zero_copy_only=False).astype(np.int64)
    priority[ordinals >= num_own] = -1
    keys = [ordinals, -columns["chars"].astype(np.int64)]
    for name in ("score", "quality"):
        if name in columns:
            value = np.asarray(columns[name], np.float64)
            keys.append(np.where(np.isnan(value), np.inf, -value))
    return np.lexsort((*keys, priority))


def order_columns(config: DedupConfig, works: Sequence[WorkView]) -> list[str]:
    """The columns that `survivor_order` reads under this config."""
    names = ["chars"]
    if works[0].scores:
        names.append("score")
    if config.source_priority:
        names.append("source")
    if config.quality_column:
        names.append("quality")
    return names


def ranks(order: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of each document in `order`: its inverse permutation."""
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rank
