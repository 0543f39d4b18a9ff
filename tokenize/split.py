"""Which split a document belongs to, and where a shuffle puts it: pure functions of a seed and of what names it.

A document's key comes from its near-duplicate component, so that no two members of one are trained on and validated
with; without dedup from its id; without ids from its place in the input. The key is mixed with the seed to a number
that is uniform in 0…2^64 and compared with the cumulative shares. So a document's split does not depend on which other
documents there are, on their order or on how they are cut into batches; and other shares move only the documents
between an old border and the new one. The shares are met as a fair coin meets them: of n components, share × n within
a few √n.

Shuffle keys are a stream of their own: what a split holds is in random order too. Within a piece no two are equal;
two documents of different pieces may share one (64 bits), so whoever sorts breaks ties by place.

Cost: 20 to 30 ns a document for a key and as much for what is made of it. Left to others: which key a run uses, and the
sort of a shuffle.
"""

import math
import re
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from taojin.core.errors import ConfigError

_U64 = 0xFFFFFFFFFFFFFFFF
# What a number is drawn for; arbitrary and distinct, so that no draw tells anything of another.
_FOR_COMPONENT = 0x434F4D504F4E454E
_FOR_PLACE = 0x504C414345000001
_FOR_SPLIT = 0x53504C4954000002
_FOR_SHUFFLE = 0x53485546464C4503
# Names become parts of file names.
_NAME = re.compile(r"[a-z0-9_-]+")
# Shares are written in decimals, thirds among them.
_TOLERANCE = 1e-9
_EXAMPLE = "train=0.98,valid=0.02"


class Split(NamedTuple):
    """Names and shares of the splits, in the order of the flag; shares > 0, their sum 1."""

    names: tuple[str, ...]
    shares: tuple[float, ...]


def parse_split(text: str) -> Split:
    """The value of --split, such as train=0.98,valid=0.02; empty: one split without a name. Raises ConfigError."""
    if not text.strip():
        return Split(("",), (1.0,))
    names: list[str] = []
    shares: list[float] = []
    for part in text.split(","):
        name, equals, number = (piece.strip() for piece in part.partition("="))
        if not equals or not _NAME.fullmatch(name):
            raise ConfigError(
                f"--split: expected NAME=SHARE with a name of a-z, 0-9, _ and -, found {part!r}; write {_EXAMPLE}"
            )
        if name in names:
            raise ConfigError(f"--split: {name} is named twice; give each split one share, as in {_EXAMPLE}")
        try:
            share = float(number)
        except ValueError:
            share = math.nan
        if not 0 < share < math.inf:
            raise ConfigError(f"--split: {name}: expected a share above 0, found {number!r}; write {_EXAMPLE}")
        names.append(name)
        shares.append(share)
    total = math.fsum(shares)
    if round(abs(total - 1), 12) > _TOLERANCE:
        raise ConfigError(f"--split: expected shares that sum to 1, found {total:.10g} in {text!r}; write {_EXAMPLE}")
    return Split(tuple(names), tuple(shares))


def component_keys(components: NDArray[np.int64]) -> NDArray[np.uint64]:
    """uint64[D]: one key for all documents of a component."""
    return _mix(components.astype(np.uint64) ^ _state(_FOR_COMPONENT))


def id_keys(ids: pa.LargeStringArray | pa.StringArray) -> NDArray[np.uint64]:
    """uint64[D]: a hash of each id's bytes. Ids hold no nulls; documents of one id get one key."""
    # Numba takes a second to import; the two other kinds of keys do without it.
    from taojin.core.text import hash_bytes, text_buffers

    data, offsets_D = text_buffers(ids.cast(pa.large_string()))
    keys_D = np.empty(len(ids), np.uint64)
    hash_bytes(data, offsets_D, keys_D)
    return keys_D


def place_keys(shard: int, piece: int, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """uint64[D]: a key of its own for each of these rows (numbers within the piece)."""
    return _mix(rows.astype(np.uint64) ^ _state(_FOR_PLACE, shard, piece))


def assign(split: Split, seed: int, keys: NDArray[np.uint64]) -> NDArray[np.int16]:
    """int16[D]: the index in split.names that each key falls to."""
    borders = np.array(_borders(split.shares), np.uint64)
    return np.searchsorted(borders, _mix(keys ^ _state(_FOR_SPLIT, seed)), side="right").astype(np.int16)


def shuffle_keys(seed: int, shard: int, piece: int, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """uint64[D]: what these rows (numbers within the piece) are sorted by to shuffle documents of all pieces."""
    return _mix(rows.astype(np.uint64) ^ _state(_FOR_SHUFFLE, seed, shard, piece))


def _borders(shares: tuple[float, ...]) -> list[int]:
    """Where each split but the first begins, of 2^64. The last one takes what rounding leaves over."""
    return [min(int(math.fsum(shares[:count]) * 2**64), _U64) for count in range(1, len(shares))]


def _state(purpose: int, *numbers: int) -> NDArray[np.uint64]:
    """uint64[1]: `purpose` and the numbers, mixed one after another. An array: NumPy warns when scalars overflow."""
    state = np.array([purpose], np.uint64)
    for number in numbers:
        state = _mix(state ^ np.array([number & _U64], np.uint64))
    return state


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """taojin.core.text.mix of each: splitmix64's finalizer, here in NumPy."""
    x = values ^ (values >> np.uint64(30))
    x *= 0xBF58476D1CE4E5B9
    x ^= x >> np.uint64(27)
    x *= 0x94D049BB133111EB
    x ^= x >> np.uint64(31)
    return x
