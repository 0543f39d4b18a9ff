"""Exact duplicates: XXH3-128 of the raw UTF-8 bytes, 16 bytes a document."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from taojin.core.text import text_buffers

EXACT_BYTES = 16


def exact_hashes(texts: pa.LargeStringArray) -> NDArray[np.uint8]:
    """uint8[D, 16]: the digest of each text (big-endian, as xxhash prints it); a null hashes like an empty text."""
    if texts.null_count:
        texts = texts.fill_null("")  # bytes may lie under a null
    data, offsets = text_buffers(texts)
    view = data.data
    digest = xxhash.xxh3_128_digest
    bounds = offsets.tolist()
    joined = b"".join([digest(view[a:b]) for a, b in pairwise(bounds)])
    return np.frombuffer(joined, np.uint8).reshape(-1, EXACT_BYTES)


def exact_keys(hashes: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """uint64[D]: the first half of each hash, which brings equal documents together; the whole one then decides."""
    return np.ascontiguousarray(hashes[:, :8]).view(np.uint64).reshape(-1)
