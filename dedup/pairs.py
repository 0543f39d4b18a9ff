"""Buckets → verified pairs: documents that share a band key are compared by their sketches, in time linear in the
bucket.

Inside a bucket documents are taken in survivor order; each is compared with the bucket's leaders, the earlier ones that
nothing there resembles. A pair is kept only if its sketches agree: loose bands propose many pairs of J 0.4–0.5, and
linking those would chain half a corpus together through its templates.

Hot buckets (more than HOT members): at most MAX_LEADERS leaders; the documents that match none are compared with their
neighbours in orders given by further sketch values, near-alike ones side by side. A real pair usually meets again in a
band that its template does not fill, so little is lost; what was not compared is counted and reported.

Suffixes: _L documents of this key range, _W words of a sketch.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from taojin.core.jit import kernel
from taojin.core.sidecars import WorkView, gather
from taojin.core.status import FOLDED
from taojin.core.storage import Folder
from taojin.core.tasks import unit_name
from taojin.dedup.bands import read_range
from taojin.dedup.config import DedupConfig
from taojin.dedup.order import order_columns, ranks, survivor_order
from taojin.dedup.sketch import estimate, standard_error

HOT = 64
MAX_LEADERS = 32
NEIGHBOURS = 8
ROTATIONS = 2
BINS_PER_ROTATION = 16
# Buckets are handled in blocks whose distinct documents' sketches fit memory: 256 bytes each.
PROPOSE_ERRORS = 4.0
ABSORB_ERRORS = 1.5
BLOCK_DOCUMENTS = 1_000_000

_SCATTER = np.uint64(0x9E3779B97F4A7C15)  # odd: multiplication by it is a bijection

PAIR_SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("estimate", pa.float64())])
TESTED_SCHEMA = pa.schema([("document", pa.int64()), ("rejected", pa.uint32())])


class PairContext(NamedTuple):
    """`excluded`: bit per ordinal (packed, little-endian), set for documents that take no part."""

    works: tuple[WorkView, ...]
    config: DedupConfig
    num_ranges: int
    folder: Folder
    excluded_name: str


def accept_at(config: DedupConfig) -> tuple[float, float]:
    """(propose, absorb): estimates from which a pair is kept, and from which one side stops leading.

    With exact verification pairs are proposed PROPOSE_ERRORS standard errors below the threshold; a document stops
    leading ABSORB_ERRORS above it, since a borderline pair may yet be rejected.
    """
    error = standard_error(config.threshold, config)
    propose = config.threshold - (PROPOSE_ERRORS * error if config.verify == "exact" else 0.0)
    return max(propose, 0.01), min(1.0, config.threshold + ABSORB_ERRORS * error)


@kernel
def resemblance(sketch_LW: NDArray[np.uint64], status_L: NDArray[np.uint8], packed: bool, i: int, j: int) -> float:
    """Estimated similarity of two documents; folded ones are equal or they are not."""
    if status_L[i] != status_L[j]:
        return 0.0
    if status_L[i] == FOLDED:
        return 1.0 if sketch_LW[i, 0] == sketch_LW[j, 0] and sketch_LW[i, 1] == sketch_LW[j, 1] else 0.0
    return estimate(sketch_LW[i], sketch_LW[j], packed)


@kernel
def _push(
    pairs: NDArray[np.int64], values: NDArray[np.float64], count: int, i: int, j: int, value: float
) -> tuple[NDArray[np.int64], NDArray[np.float64], int]:
    if count == values.size:
        # Loops: slice assignment takes numba seconds longer to compile.
        larger = np.empty((2 * count, 2), np.int64)
        more = np.empty(2 * count, np.float64)
        for row in range(count):
            larger[row, 0] = pairs[row, 0]
            larger[row, 1] = pairs[row, 1]
            more[row] = values[row]
        pairs = larger
        values = more
    pairs[count, 0] = i
    pairs[count, 1] = j
    values[count] = value
    return pairs, values, count + 1


@kernel
def bucket_pairs(
    members: NDArray[np.int64],
    starts: NDArray[np.int64],
    sketch_LW: NDArray[np.uint64],
    packed: bool,
    status_L: NDArray[np.uint8],
    is_index_L: NDArray[np.bool_],
    propose: float,
    absorb: float,
    rejected_L: NDArray[np.uint32],
    loose: NDArray[np.int64],
    loose_starts: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.float64], int]:
    """Verified pairs of all buckets among leaders and those who follow them.

    members[starts[b]:starts[b + 1]] are bucket b's documents, as indices that ascend in survivor order. Returns pairs
    int64[P, 2] (i < j), a pair as often as it met, their estimates float64[P], and the number of comparisons. Adds to
    rejected_L what was compared in vain. What no leader of a hot bucket resembled goes to `loose`, bucket by bucket:
    loose_starts int64[buckets + 1].
    """
    pairs = np.empty((1024, 2), np.int64)
    values = np.empty(1024, np.float64)
    count = 0
    compared = 0
    num_loose = 0
    leaders = np.empty(HOT, np.int64)
    for bucket in range(starts.size - 1):
        first = starts[bucket]
        last = starts[bucket + 1]
        most = HOT if last - first <= HOT else MAX_LEADERS
        num_leaders = 0
        loose_starts[bucket] = num_loose
        for member in range(first, last):
            j = members[member]
            absorbed = False
            if not is_index_L[j]:
                for leader in range(num_leaders):
                    i = leaders[leader]
                    value = resemblance(sketch_LW, status_L, packed, i, j)
                    compared += 1
                    if value >= propose:
                        pairs, values, count = _push(pairs, values, count, i, j, value)
                        if value >= absorb:
                            absorbed = True
                            break
                    else:
                        rejected_L[j] += np.uint32(1)
            if not absorbed:
                if num_leaders < most:
                    leaders[num_leaders] = j
                    num_leaders += 1
                else:
                    loose[num_loose] = j
                    num_loose += 1
    loose_starts[starts.size - 1] = num_loose
    return pairs[:count], values[:count], compared


@kernel
def neighbour_pairs(
    ordered: NDArray[np.int64],
    sketch_LW: NDArray[np.uint64],
    packed: bool,
    status_L: NDArray[np.uint8],
    is_index_L: NDArray[np.bool_],
    propose: float,
    rejected_L: NDArray[np.uint32],
) -> tuple[NDArray[np.int64], NDArray[np.float64], int]:
    """Verified pairs of each document with the NEIGHBOURS that follow it in `ordered`. Returns as `bucket_pairs`."""
    pairs = np.empty((1024, 2), np.int64)
    values = np.empty(1024, np.float64)
    count = 0
    compared = 0
    for position in range(ordered.size):
        for other in range(position + 1, min(ordered.size, position + 1 + NEIGHBOURS)):
            i = min(ordered[position], ordered[other])
            j = max(ordered[position], ordered[other])
            if not is_index_L[j]:
                value = resemblance(sketch_LW, status_L, packed, i, j)
                compared += 1
                if value >= propose:
                    pairs, values, count = _push(pairs, values, count, i, j, value)
                else:
                    rejected_L[j] += np.uint32(1)
    return pairs[:count], values[:count], compared


def near_alike_orders(loose: NDArray[np.int64], sketch_LW: NDArray[np.uint64], bucket: int) -> list[NDArray[np.int64]]:
    """Orders of a hot bucket's loose documents in which those that agree in some bins of the sketch stand side by
    side."""
    num_words = sketch_LW.shape[1]
    mask = np.uint64((1 << BINS_PER_ROTATION) - 1)
    orders = []
    for rotation in range(ROTATIONS):
        word = (rotation * 7 + bucket * 11) % num_words
        low = sketch_LW[loose, word] & mask
        high = sketch_LW[loose, (word + num_words // 2) % num_words] & mask
        orders.append(loose[np.argsort((high << np.uint64(BINS_PER_ROTATION)) | low, kind="stable")])
    return orders


def read_keys(context: PairContext, kind: str, key_range: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """(keys, ordinals) of one key range over all works, without excluded documents."""
    keys: list[NDArray[np.uint64]] = [np.zeros(0, np.uint64)]
    ordinals: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    excluded = np.frombuffer(context.folder.read_bytes(context.excluded_name), np.uint8)
    for work in context.works:
        folder = work.folder.child(kind)
        for unit in range(len(work.unit_first) - 1):
            first = work.first + int(work.unit_first[unit])
            name = f"{unit_name(unit)}.arrow"
            for unit_keys, rows in read_range(folder, name, key_range, context.num_ranges, written=work.num_ranges):
                found = rows.astype(np.int64) + first
                if excluded.size:
                    taking_part = (excluded[found >> 3] >> (found & 7).astype(np.uint8)) & 1 == 0
                    unit_keys, found = unit_keys[taking_part], found[taking_part]
                keys.append(unit_keys)
                ordinals.append(found)
    return np.concatenate(keys), np.concatenate(ordinals)


def buckets(keys: NDArray[np.uint64], ordinals: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(members, starts): ordinals of every key that occurs at least twice, key by key; starts int64[buckets + 1].

    Sorts one array in place of keys and their order, ten times faster: the low bits of each key make room for its
    index.
    """
    if not len(keys):
        return np.zeros(0, np.int64), np.zeros(1, np.int64)
    index_bits = np.uint64(max(1, (len(keys) - 1).bit_length()))
    index_mask = (np.uint64(1) << index_bits) - np.uint64(1)
    # Keys of one range share their top bits; scattered again, what is left of them is as telling as it can be.
    packed = (keys * _SCATTER & ~index_mask) | np.arange(len(keys), dtype=np.uint64)
    packed.sort()
    same = (packed[1:] ^ packed[:-1]) <= index_mask
    shared = np.zeros(len(keys), bool)
    shared[1:] = same
    shared[:-1] |= same
    index = (packed[shared] & index_mask).astype(np.int64)
    found = keys[index]
    new = np.ones(len(found), bool)
    new[1:] = found[1:] != found[:-1]
    if np.count_nonzero(new) != len(np.unique(found)):
        # Two keys met in all the bits that were left, interleaved.
        order = np.lexsort((index, found))
        index, found = index[order], found[order]
        new[1:] = found[1:] != found[:-1]
    bounds = np.append(np.flatnonzero(new), len(found))
    sizes = np.diff(bounds)
    twice = sizes >= 2
    members = ordinals[index[np.repeat(twice, sizes)]]
    return members, np.concatenate([[0], np.cumsum(sizes[twice])]).astype(np.int64)


def pair_range(context: PairContext, key_range: int) -> dict[str, Any]:
    """Verified pairs of one key range → pairs/<range>.arrow and tested/<range>.arrow."""
    config = context.config
    propose, absorb = accept_at(config)
    members, starts = buckets(*read_keys(context, "bands", key_range))
    pairs: list[list[NDArray[Any]]] = []
    tested: list[list[NDArray[Any]]] = []
    totals = {"compared": 0, "possible": 0, "hot_buckets": 0, "largest_bucket": 0}
    num_own = context.works[0].num_documents
    for low, high in blocks(starts, BLOCK_DOCUMENTS):
        block = members[starts[low] : starts[high]]
        documents, inverse = np.unique(block, return_inverse=True)
        columns = gather(context.works, documents, ("sketch", "status", *order_columns(context.config, context.works)))
        order = survivor_order(columns, documents, num_own, config.source_priority)
        rank = ranks(order)
        ranked = documents[order]
        rejected = np.zeros(len(order), np.uint32)
        block_starts = starts[low : high + 1] - starts[low]
        sizes = np.diff(block_starts)
        sketch, status, is_index = sketch_words_of(columns, order), columns["status"][order], ranked >= num_own
        rule = (sketch, config.sketch == "fast", status, is_index, propose)
        loose, loose_starts = np.empty(len(block), np.int64), np.empty(len(block_starts), np.int64)
        found, values, compared = bucket_pairs(
            by_bucket(rank[inverse.reshape(-1)], sizes),
            block_starts, *rule, absorb, rejected, loose, loose_starts,
        )  # fmt: skip
        all_found, all_values = [found], [values]
        for bucket in np.flatnonzero(sizes > HOT).tolist():
            rest = loose[loose_starts[bucket] : loose_starts[bucket + 1]]
            for ordered in near_alike_orders(rest, sketch, bucket):
                found, values, more = neighbour_pairs(ordered, *rule, rejected)
                all_found.append(found)
                all_values.append(values)
                compared += more
        found, values = np.concatenate(all_found), np.concatenate(all_values)
        totals["compared"] += compared
        totals["possible"] += int((sizes * (sizes - 1) // 2).sum())
        totals["hot_buckets"] += int((sizes > HOT).sum())
        totals["largest_bucket"] = max(totals["largest_bucket"], int(sizes.max(initial=0)))
        _, once = np.unique(found[:, 0] * len(order) + found[:, 1], return_index=True)
        pairs.append([ranked[found[once, 0]], ranked[found[once, 1]], values[once]])
        missed = np.flatnonzero(rejected)
        tested.append([ranked[missed], rejected[missed]])
    name = f"{unit_name(key_range)}.arrow"
    files = {
        "pairs": write_columns(context.folder.child("pairs"), name, PAIR_SCHEMA, pairs),
        "tested": write_columns(context.folder.child("tested"), name, TESTED_SCHEMA, tested),
    }
    return {
        "pairs": files["pairs"]["rows"],
        **totals,
        "files": files,
    }


def by_bucket(members: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Members of each bucket ascending; `sizes`: members per bucket, in order."""
    key = (np.repeat(np.arange(len(sizes)), sizes) << 32) | members
    key.sort()
    return key & 0xFFFFFFFF


def sketch_words_of(columns: dict[str, Any], order: NDArray[np.int64]) -> NDArray[np.uint64]:
    """uint64[L, W]: gathered sketches in the given order."""
    return np.ascontiguousarray(columns["sketch"][order]).view(np.uint64)


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


def write_columns(
    folder: Folder, name: str, schema: pa.Schema, parts: Sequence[Sequence[NDArray[Any]]]
) -> dict[str, Any]:
    """Commit parts, each a list of columns, as one Arrow batch; returns the manifest entry."""
    empty = [np.zeros(0, field.type.to_pandas_dtype()) for field in schema]
    columns = [np.concatenate(column) for column in zip(empty, *parts, strict=True)]
    with folder.create(name) as sink:
        with pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(pa.record_batch([pa.array(column) for column in columns], schema=schema))
        sink.rows = len(columns[0])
    return folder.entry(name, sink).as_json()


def read_columns(folder: Folder, name: str) -> list[NDArray[Any]]:
    """The columns of a file written by `write_columns`, copied out of it."""
    with folder.open(name) as file:
        table = pa.ipc.open_file(file).read_all()
        return [column.to_numpy().copy() for column in table.columns]
