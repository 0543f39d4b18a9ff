"""Shingles: n consecutive symbols as one rolled 64-bit hash, and the set of them that exact similarity needs.

A shingle's hash is Σ symbol[k] · B^(n-1-k) mod 2^64 with a fixed odd B, rolled in O(1) per symbol. It is not mixed
here: whoever selects by it (`taojin.dedup.sketch`) mixes it first. Two different 5-shingles collide with probability
2^-64 or so.

    fold_symbols → roll_shingles → sketch            (the scan)
                               └→ shingle_sets       (settling pairs exactly)
"""

import numpy as np
from numpy.typing import NDArray

from taojin.core.jit import kernel
from taojin.core.text import fold_symbols, roll_shingles


@kernel
def keep_distinct(ordered: NDArray[np.uint64]) -> int:
    """Move the distinct values of a sorted array to its front; returns how many."""
    count = 0
    for j in range(ordered.size):
        if count == 0 or ordered[j] != ordered[count - 1]:
            ordered[count] = ordered[j]
            count += 1
    return count


@kernel
def shingle_sets(
    data: NDArray[np.uint8],
    offsets_D: NDArray[np.int64],
    table: NDArray[np.uint32],
    expansions: NDArray[np.uint32],
    ngram: int,
    scratch: NDArray[np.uint64],
    out: NDArray[np.uint64],
    out_offsets_D: NDArray[np.int64],
) -> None:
    """Sorted distinct shingle hashes of each document.

    `offsets_D` has one more entry than documents; `out` needs room for SYMBOLS_PER_BYTE × bytes, `out_offsets_D` as
    `offsets_D`: document d's set is out[out_offsets_D[d]:out_offsets_D[d + 1]].
    """
    out_offsets_D[0] = 0
    for d in range(offsets_D.size - 1):
        count, _, _ = fold_symbols(data, offsets_D[d], offsets_D[d + 1], table, expansions, scratch)
        num_shingles = roll_shingles(scratch, count, ngram)
        ordered = np.sort(scratch[:num_shingles])
        num_distinct = keep_distinct(ordered)
        for j in range(num_distinct):
            out[out_offsets_D[d] + j] = ordered[j]
        out_offsets_D[d + 1] = out_offsets_D[d] + num_distinct


@kernel
def intersection_size(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> int:
    """Number of values two sorted distinct arrays share."""
    i = 0
    j = 0
    shared = 0
    while i < a.size and j < b.size:
        if a[i] == b[j]:
            shared += 1
            i += 1
            j += 1
        elif a[i] < b[j]:
            i += 1
        else:
            j += 1
    return shared
