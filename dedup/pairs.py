"""Buckets → verified pairs: documents that share a band key are compared by their sketches, in time linear in the bucket.

Inside a bucket documents are taken in survivor order; each is compared with the bucket's leaders, the earlier ones that
nothing there resembles. A pair is kept only if its sketches agree: loose bands propose many pairs of J 0.4–0.5, and
linking those would chain half a corpus together through its templates.

Hot buckets (more than HOT members): at most MAX_LEADERS leaders; the documents that match none are compared with their
neighbours in orders given by further sketch values, near-alike ones side by side. A real pair usually meets again in a
band that its template does not fill, so little is lost; what was not compared is counted and reported.

Suffixes: _L documents of this key range, _K sketch values.
"""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray

from taojin.core.status import FOLDED
from taojin.core.storage import Folder
from taojin.core.tasks import unit_name
from taojin.dedup.bands import read_range
from taojin.dedup.config import DedupConfig
from taojin.dedup.sidecars import ORDER_COLUMNS, WorkView, gather, survivor_order
from taojin.dedup.sketch import estimates, sketch_dtype, standard_error

HOT = 64
MAX_LEADERS = 32
NEIGHBOURS = 8
ROTATIONS = 2
VALUES_PER_ROTATION = 4
# Buckets are handled in blocks whose distinct documents' sketches fit memory: 256 bytes each.
PROPOSE_ERRORS = 4.0
ABSORB_ERRORS = 1.5
BLOCK_DOCUMENTS = 1_000_000

PAIR_SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("agree", pa.uint16())])
TESTED_SCHEMA = pa.schema([("document", pa.int64()), ("rejected", pa.uint32())])


class PairContext(NamedTuple):
    """`excluded`: bit per ordinal (packed, little-endian), set for documents that take no part."""

    works: tuple[WorkView, ...]
    config: DedupConfig
    num_ranges: int
    folder: Folder
    excluded_name: str


def accept_at(config: DedupConfig) -> tuple[int, int]:
    """(propose, absorb): agreeing sketch values from which a pair is kept, and from which one side stops leading.

    With exact verification pairs are proposed PROPOSE_ERRORS standard errors below the threshold; a document stops
    leading ABSORB_ERRORS above it, since a borderline pair may yet be rejected.
    """
    error = standard_error(config.threshold, config.num_hashes)
    lowest = config.threshold - (PROPOSE_ERRORS * error if config.verify == "exact" else 0.0)
    highest = min(1.0, config.threshold + ABSORB_ERRORS * error)
    propose, absorb = np.searchsorted(estimates(config), [lowest, highest])
    return max(int(propose), 1), int(absorb)


@njit(cache=True, nogil=True)
def agreement(sketch_LK: NDArray[np.uint8], status_L: NDArray[np.uint8], i: int, j: int) -> int:
    """Number of equal sketch values; for folded documents all or none."""
    if status_L[i] != status_L[j]:
        return 0
    same = 0
    for k in range(sketch_LK.shape[1]):
        same += sketch_LK[i, k] == sketch_LK[j, k]
    if status_L[i] == FOLDED and same < sketch_LK.shape[1]:
        return 0
    return same


@njit(cache=True, nogil=True)
def _push(pairs: NDArray[np.int64], count: int, i: int, j: int, agree: int) -> tuple[NDArray[np.int64], int]:
    if count == pairs.shape[0]:
        larger = np.empty((2 * count, 3), np.int64)
        larger[:count] = pairs
        pairs = larger
    pairs[count, 0] = i
    pairs[count, 1] = j
    pairs[count, 2] = agree
    return pairs, count + 1


@njit(cache=True, nogil=True)
def bucket_pairs(
    members: NDArray[np.int64],
    starts: NDArray[np.int64],
    sketch_LK: NDArray[np.uint8],
    status_L: NDArray[np.uint8],
    is_index_L: NDArray[np.bool_],
    propose: int,
    absorb: int,
    rejected_L: NDArray[np.uint32],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Verified pairs of all buckets.

    `members[starts[b]:starts[b + 1]]` are bucket b's documents, as indices that ascend in survivor order. Returns
    pairs int64[P, 3] (i < j, agreement), a pair as often as it met, and totals int64[4]: comparisons made, pairs not
    compared, hot buckets, largest bucket. Adds to rejected_L what was compared in vain.
    """
    pairs = np.empty((1024, 3), np.int64)
    count = 0
    totals = np.zeros(4, np.int64)
    leaders = np.empty(max(HOT, MAX_LEADERS), np.int64)
    num_values = sketch_LK.shape[1]
    for bucket in range(starts.size - 1):
        first = starts[bucket]
        last = starts[bucket + 1]
        size = last - first
        ordered = np.sort(members[first:last])
        hot = size > HOT
        most = MAX_LEADERS if hot else HOT
        num_leaders = 0
        compared = 0
        loose = np.empty(size if hot else 0, np.int64)
        num_loose = 0
        for position in range(size):
            j = ordered[position]
            absorbed = False
            if not is_index_L[j]:
                for leader in range(num_leaders):
                    i = leaders[leader]
                    agree = agreement(sketch_LK, status_L, i, j)
                    compared += 1
                    if agree >= propose:
                        pairs, count = _push(pairs, count, i, j, agree)
                        if agree >= absorb:
                            absorbed = True
                            break
                    else:
                        rejected_L[j] += np.uint32(1)
            if not absorbed:
                if num_leaders < most:
                    leaders[num_leaders] = j
                    num_leaders += 1
                elif hot:
                    loose[num_loose] = j
                    num_loose += 1
        if hot and num_loose > 1:
            for rotation in range(ROTATIONS):
                keys = np.empty(num_loose, np.uint64)
                # Values spread over the sketch: the bucket's own band, at least, cannot be all of them.
                offset = (rotation * VALUES_PER_ROTATION * 7 + bucket * 11) % num_values
                for position in range(num_loose):
                    key = np.uint64(0)
                    for v in range(VALUES_PER_ROTATION):
                        k = (offset + v * 7) % num_values
                        key = (key << np.uint64(16)) | np.uint64(sketch_LK[loose[position], k] & 0xFFFF)
                    keys[position] = key
                order = np.argsort(keys, kind="mergesort")
                for position in range(num_loose):
                    for other in range(position + 1, min(num_loose, position + 1 + NEIGHBOURS)):
                        i = min(loose[order[position]], loose[order[other]])
                        j = max(loose[order[position]], loose[order[other]])
                        if is_index_L[j]:
                            continue
                        agree = agreement(sketch_LK, status_L, i, j)
                        compared += 1
                        if agree >= propose:
                            pairs, count = _push(pairs, count, i, j, agree)
                        else:
                            rejected_L[j] += np.uint32(1)
        totals[0] += compared
        if hot:
            totals[1] += size * (size - 1) // 2 - compared
            totals[2] += 1
        totals[3] = max(totals[3], size)
    return pairs[:count], totals


def read_keys(context: PairContext, kind: str, key_range: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """(keys, ordinals) of one key range over all works, without excluded documents."""
    keys: list[NDArray[np.uint64]] = [np.zeros(0, np.uint64)]
    ordinals: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    excluded = np.frombuffer(context.folder.read_bytes(context.excluded_name), np.uint8)
    for work in context.works:
        folder = work.folder.child(kind)
        for unit in range(len(work.unit_first) - 1):
            first = work.first + int(work.unit_first[unit])
            for unit_keys, rows in read_range(folder, f"{unit_name(unit)}.arrow", key_range, context.num_ranges):
                found = rows.astype(np.int64) + first
                if excluded.size:
                    taking_part = (excluded[found >> 3] >> (found & 7).astype(np.uint8)) & 1 == 0
                    unit_keys, found = unit_keys[taking_part], found[taking_part]
                keys.append(unit_keys)
                ordinals.append(found)
    return np.concatenate(keys), np.concatenate(ordinals)


def buckets(keys: NDArray[np.uint64], ordinals: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(members, starts): ordinals of every key that occurs at least twice, key by key; starts int64[buckets + 1]."""
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    new = np.concatenate([[True], keys[1:] != keys[:-1]]) if keys.size else np.zeros(0, bool)
    bounds = np.append(np.flatnonzero(new), keys.size)
    sizes = np.diff(bounds)
    shared = sizes >= 2
    members = ordinals[order][np.repeat(shared, sizes)]
    return members, np.concatenate([[0], np.cumsum(sizes[shared])]).astype(np.int64)


def pair_range(context: PairContext, key_range: int) -> dict[str, Any]:
    """Verified pairs of one key range → pairs/<range>.arrow and tested/<range>.arrow."""
    config = context.config
    propose, absorb = accept_at(config)
    members, starts = buckets(*read_keys(context, "bands", key_range))
    found: list[NDArray[np.int64]] = []
    rejections: list[NDArray[np.int64]] = []
    totals = np.zeros(4, np.int64)
    num_own = context.works[0].num_documents
    for low, high in blocks(starts, BLOCK_DOCUMENTS):
        block = members[starts[low] : starts[high]]
        documents, inverse = np.unique(block, return_inverse=True)
        columns = gather(context.works, documents, ("sketch", "status", *ORDER_COLUMNS))
        order = survivor_order(columns, documents, num_own, config.source_priority)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        sketch = np.ascontiguousarray(columns["sketch"][order]).view(sketch_dtype(config))
        ranked = documents[order]
        rejected = np.zeros(len(order), np.uint32)
        pairs, block_totals = bucket_pairs(
            rank[inverse.reshape(-1)],
            starts[low : high + 1] - starts[low],
            sketch,
            columns["status"][order],
            ranked >= num_own,
            propose,
            absorb,
            rejected,
        )
        _, once = np.unique(pairs[:, 0] * len(order) + pairs[:, 1], return_index=True)
        pairs = pairs[once]
        found.append(np.column_stack([ranked[pairs[:, 0]], ranked[pairs[:, 1]], pairs[:, 2]]))
        missed = np.flatnonzero(rejected)
        rejections.append(np.column_stack([ranked[missed], rejected[missed].astype(np.int64)]))
        totals[:3] += block_totals[:3]
        totals[3] = max(totals[3], block_totals[3])
    pairs = np.concatenate([np.zeros((0, 3), np.int64), *found])
    tested = np.concatenate([np.zeros((0, 2), np.int64), *rejections])
    name = f"{unit_name(key_range)}.arrow"
    files = {
        "pairs": write_columns(context.folder.child("pairs"), name, PAIR_SCHEMA, pairs),
        "tested": write_columns(context.folder.child("tested"), name, TESTED_SCHEMA, tested),
    }
    return {
        "pairs": len(pairs),
        "compared": int(totals[0]),
        "not_compared": int(totals[1]),
        "hot_buckets": int(totals[2]),
        "largest_bucket": int(totals[3]),
        "files": files,
    }


def blocks(starts: NDArray[np.int64], most: int) -> list[tuple[int, int]]:
    """Ranges [low, high) of buckets with at most `most` members in all, or a single larger bucket."""
    out = []
    low = 0
    while low < len(starts) - 1:
        high = int(np.searchsorted(starts, starts[low] + most, side="right")) - 1
        high = max(high, low + 1)
        out.append((low, high))
        low = high
    return out


def write_columns(folder: Folder, name: str, schema: pa.Schema, rows: NDArray[np.int64]) -> dict[str, Any]:
    """Commit the columns of a 2-D array as one Arrow batch; returns the manifest entry."""
    arrays = [pa.array(rows[:, i]).cast(field.type) for i, field in enumerate(schema)]
    with folder.create(name) as sink:
        with pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
        sink.rows = len(rows)
    return folder.entry(name, sink).as_json()


def read_columns(folder: Folder, name: str) -> list[NDArray[Any]]:
    """The columns of a file written by `write_columns`, copied out of it."""
    with folder.open(name) as file:
        table = pa.ipc.open_file(file).read_all()
        return [column.to_numpy().copy() for column in table.columns]
