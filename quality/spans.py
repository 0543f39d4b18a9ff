"""Spans of a document's code points: their hash from two running ones, and whether an equal one came before.

prefix[i] is the polynomial hash of the first i code points, so that the hash of any span costs the same: lines,
paragraphs and sentences share one pass over the text. Compared are 64 bits, mixed.
"""

import numpy as np
from numpy.typing import NDArray

from taojin.core.jit import kernel
from taojin.core.text import mix

_U64 = np.uint64
_0 = np.uint64(0)
_1 = np.uint64(1)

BASE = np.uint64(0xD1342543DE82EF95)  # odd and 5 modulo 8: its powers repeat after 2^62
BASE_SQUARED = np.uint64(pow(int(BASE), 2, 1 << 64))
_LOG_POWERS = np.uint64(9)
_LOW = np.uint64(511)
_POWERS = np.array([pow(int(BASE), k, 1 << 64) for k in range(512)], np.uint64)
_STEP = np.uint64(pow(int(BASE), 512, 1 << 64))
_SALT_SHIFT = np.uint64(40)  # above any length
_LENGTH = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: spans of NULs differ by their length alone


@kernel
def _power(exponent: np.uint64) -> np.uint64:
    power = _POWERS[exponent & _LOW]
    rest = exponent >> _LOG_POWERS
    factor = _STEP
    while rest != _0:
        if rest & _1:
            power *= factor
        factor *= factor
        rest >>= _1
    return power


@kernel
def hash_span(prefix: NDArray[np.uint64], start: np.uint64, end: np.uint64, salt: np.uint64) -> np.uint64:
    """Of code_points[start:end]; never 0. Spans of different `salt` are different.

    The hashes of spans that differ in the last character are neighbours, and so are small salts: they are spread before
    they meet.
    """
    length = end - start
    h = prefix[end] - prefix[start] * _power(length)
    return max(mix(h + (length ^ salt << _SALT_SHIFT) * _LENGTH), _1)


@kernel
def seen_before(keys: NDArray[np.uint64], mask: np.uint64, key: np.uint64) -> bool:
    """Look a key up in the open-addressing table keys[0:mask + 1], and leave it there. 0 is a free place."""
    place = key & mask
    while keys[place] != _0:
        if keys[place] == key:
            return True
        place = (place + _1) & mask
    keys[place] = key
    return False
