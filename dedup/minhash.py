"""K-permutation MinHash, bit for bit what datasketch ≥ 2.0 computes (scheme affine32, seed 1) on the low 32 bits of our
shingle hashes: an oracle for tests, and for indexes that are read elsewhere. K multiplications a shingle, vectorised.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from taojin.core.jit import kernel


@kernel
def fmix32(h: np.uint32) -> np.uint32:
    """MurmurHash3's 32-bit finalizer, datasketch's pre-mix of its input."""
    h = np.uint32(h ^ (h >> np.uint32(16)))
    h = np.uint32(h * np.uint32(0x85EBCA6B))
    h = np.uint32(h ^ (h >> np.uint32(13)))
    h = np.uint32(h * np.uint32(0xC2B2AE35))
    return np.uint32(h ^ (h >> np.uint32(16)))


@kernel
def permutation_minhash(
    shingles: NDArray[np.uint64],
    count: int,
    a_K: NDArray[np.uint32],
    b_K: NDArray[np.uint32],
    values_K: NDArray[np.uint32],
) -> None:
    """values_K[k] = min over shingles of a_K[k] · fmix32(low 32 bits) + b_K[k] mod 2^32."""
    values_K[:] = np.uint32(0xFFFFFFFF)
    for j in range(count):
        h = fmix32(np.uint32(shingles[j] & np.uint64(0xFFFFFFFF)))
        for k in range(values_K.size):
            value = np.uint32(a_K[k] * h + b_K[k])
            values_K[k] = min(values_K[k], value)


@cache
def datasketch_permutations(num_hashes: int, seed: int = 1) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """(a, b), uint32[K] each: the parameters datasketch ≥ 2.0 draws for scheme affine32 (its `_init_permutations`)."""
    generator = np.random.RandomState(seed)
    a = generator.randint(0, 1 << 31, num_hashes, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
    b = generator.randint(0, 1 << 32, num_hashes, dtype=np.uint32)
    return a, b
