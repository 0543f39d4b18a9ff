import datasketch
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taojin.dedup.minhash import datasketch_permutations, fmix32, permutation_minhash
from tests import naive


@given(st.integers(0, 2**32 - 1))
def test_fmix32_is_the_finalizer_of_murmurhash3(h: int) -> None:
    assert int(fmix32(np.uint32(h))) == naive.fmix32(h)


@pytest.mark.parametrize("num_hashes", [16, 100, 128, 256, 1024])
def test_permutation_minhash_is_datasketch_bit_for_bit(num_hashes: int) -> None:
    shingles = np.random.default_rng(0).integers(0, 2**64, 300, np.uint64)
    values = np.zeros(num_hashes, np.uint32)
    permutation_minhash(shingles, shingles.size, *datasketch_permutations(num_hashes), values)
    theirs = datasketch.MinHash(num_perm=num_hashes, seed=1, hashfunc=lambda x: x & 0xFFFFFFFF)
    theirs.update_batch(shingles.tolist())
    assert np.array_equal(values, theirs.hashvalues)
