"""Bands: the keys that bring candidate pairs together, and their files.

A document's lanes are cut into b bands of r; each band's key is a 64-bit hash of (band number, its r values). Two
documents that share a key in any band are candidates: with probability 1 − (1 − s^r)^b at similarity s. MORE bands at
fixed rows find more pairs (looser), more rows per band fewer (stricter). A folded document (too short for a sketch)
has one key, of its whole 128-bit hash.

A file holds runs: each run is `num_ranges` Arrow record batches (key uint64, row uint32), batch i with the keys whose
top bits are i. A reader of one key range opens every unit's file and takes its batches alone.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from taojin.core.jit import kernel
from taojin.core.status import FOLDED, SKETCHED
from taojin.core.storage import Folder, Sink
from taojin.core.text import mix

KEY_SCHEMA = pa.schema([("key", pa.uint64()), ("row", pa.uint32())])
# Entries collected before a run is written: bounds memory at 12 bytes each, twice.
RUN_ENTRIES = 4_000_000
_SEED = np.uint64(0xA0761D6478BD642F)
_MULTIPLIER = np.uint64(0xE7037ED1A0B428DB)


@kernel
def band_keys(
    lanes_DK: NDArray[np.uint32],
    status_D: NDArray[np.uint8],
    first_row: int,
    bands: int,
    rows: int,
    keys: NDArray[np.uint64],
    key_rows: NDArray[np.uint32],
) -> int:
    """Write the keys of every sketched or folded document; returns how many.

    keys uint64, key_rows uint32: room for D × bands. Row numbers count from `first_row`.
    """
    count = 0
    for d in range(lanes_DK.shape[0]):
        if status_D[d] == SKETCHED:
            for band in range(bands):
                key = mix(_SEED ^ np.uint64(band + 1) * _MULTIPLIER)
                for k in range(band * rows, (band + 1) * rows):
                    key = (key ^ np.uint64(lanes_DK[d, k])) * _MULTIPLIER
                    key ^= key >> np.uint64(29)
                keys[count] = mix(key)
                key_rows[count] = first_row + d
                count += 1
        elif status_D[d] == FOLDED:
            key = _SEED
            for k in range(4):
                key = mix(key ^ np.uint64(lanes_DK[d, k]))
            keys[count] = key
            key_rows[count] = first_row + d
            count += 1
    return count


@kernel
def split_by_range(
    keys: NDArray[np.uint64], rows: NDArray[np.uint32], shift: int, num_ranges: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint32], NDArray[np.int64]]:
    """(keys, rows, offsets): stably reordered by key >> shift; offsets int64[num_ranges + 1]. shift 64 means one
    range."""
    offsets = np.zeros(num_ranges + 1, np.int64)
    if num_ranges == 1:
        offsets[1] = keys.size
        return keys, rows, offsets
    by = np.uint64(shift)
    for i in range(keys.size):
        offsets[np.int64(keys[i] >> by) + 1] += 1
    for r in range(num_ranges):
        offsets[r + 1] += offsets[r]
    cursor = offsets.copy()
    new_keys = np.empty_like(keys)
    new_rows = np.empty_like(rows)
    for i in range(keys.size):
        key_range = np.int64(keys[i] >> by)
        new_keys[cursor[key_range]] = keys[i]
        new_rows[cursor[key_range]] = rows[i]
        cursor[key_range] += 1
    return new_keys, new_rows, offsets


class KeyWriter:
    """Collects keys of a unit and writes them to `sink` as runs split by range. Call `close` at the end."""

    def __init__(self, sink: Sink, num_ranges: int) -> None:
        self.num_ranges = num_ranges
        self.shift = 64 - (num_ranges.bit_length() - 1)
        self._sink = sink
        self._keys: list[NDArray[np.uint64]] = []
        self._rows: list[NDArray[np.uint32]] = []
        self._held = 0
        self._writer = pa.ipc.new_file(sink, KEY_SCHEMA)

    def add(self, keys: NDArray[np.uint64], rows: NDArray[np.uint32]) -> None:
        self._keys.append(keys)
        self._rows.append(rows)
        self._held += keys.size
        if self._held >= RUN_ENTRIES:
            self._flush()

    def _flush(self) -> None:
        if not self._held:
            return
        keys, rows, offsets = split_by_range(
            np.concatenate(self._keys), np.concatenate(self._rows), self.shift, self.num_ranges
        )
        for first, last in pairwise(offsets.tolist()):
            columns = [pa.array(keys[first:last]), pa.array(rows[first:last])]
            self._writer.write_batch(pa.record_batch(columns, schema=KEY_SCHEMA))
        self._sink.rows += int(keys.size)
        self._keys, self._rows, self._held = [], [], 0

    def close(self) -> None:
        self._flush()
        self._writer.close()


def read_range(
    folder: Folder, name: str, key_range: int, num_ranges: int, *, written: int = 0
) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint32]]]:
    """(keys, rows) of one of `num_ranges` key ranges of a unit, run by run.

    `written`: into how many ranges the file is split where that is another number: an index has its own size. All such
    numbers are powers of two.
    """
    written = written or num_ranges
    first = key_range * written // num_ranges
    shift = np.uint64(64 - (num_ranges.bit_length() - 1))
    with folder.open(name) as file:
        reader = pa.ipc.open_file(file)
        for run in range(0, reader.num_record_batches, written):
            for number in range(run + first, run + first + max(1, written // num_ranges)):
                batch = reader.get_batch(number)
                keys, rows = batch.column(0).to_numpy(), batch.column(1).to_numpy()
                if written < num_ranges:
                    inside = keys >> shift == np.uint64(key_range)
                    keys, rows = keys[inside], rows[inside]
                yield keys, rows
