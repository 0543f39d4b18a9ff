"""Settle: read again the texts of documents whose similarity an estimate cannot decide, and leave their shingle sets.

Only pieces that hold such documents are read. Out: <groups>-shingles-<work>/<unit>.arrow, a row per wanted document.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from taojin.core.corpus import Ordinals, Plan, Span
from taojin.core.fold import load_fold_table
from taojin.core.reading import read_unit
from taojin.core.storage import Folder
from taojin.core.tasks import unit_name
from taojin.core.text import SYMBOLS_PER_BYTE, scratch_for, text_buffers
from taojin.dedup.config import DedupConfig
from taojin.dedup.shingles import shingle_sets

SHINGLE_SCHEMA = pa.schema([("document", pa.int64()), ("shingles", pa.large_list(pa.uint64()))])


class SettleContext(NamedTuple):
    """`wanted`: name of a .npy file with the ascending ordinals of the documents to read; `first`: the work's first."""

    plan: Plan
    config: DedupConfig
    ordinals: Ordinals
    first: int
    folder: Folder
    wanted: str
    out: str


def settle_unit(context: SettleContext, unit: int) -> dict[str, Any]:
    plan, config, ordinals, first, folder, wanted_name, out = context
    with folder.open(wanted_name) as file:
        wanted = np.load(file) - first
    low, high = np.searchsorted(wanted, ordinals.unit_first[unit : unit + 2])
    wanted = wanted[low:high]
    name = f"{unit_name(unit)}.arrow"
    read_bytes = 0
    with folder.child(out).create(name) as sink:
        with pa.ipc.new_file(sink, SHINGLE_SCHEMA) as writer:
            if len(wanted):
                for ordinal, batch in touched_batches(plan, config, ordinals, unit, wanted):
                    a, b = np.searchsorted(wanted, [ordinal, ordinal + batch.num_rows])
                    texts = batch.column(0).take(pa.array(wanted[a:b] - ordinal))
                    writer.write_batch(_set_batch(texts, wanted[a:b] + first, config.ngram))
                    read_bytes += batch.column(0).nbytes
        sink.rows = len(wanted)
    return {
        "settled": len(wanted),
        "bytes": read_bytes,
        "files": {"shingles": folder.child(out).entry(name, sink).as_json()},
    }


def touched_batches(
    plan: Plan, config: DedupConfig, ordinals: Ordinals, unit: int, wanted: NDArray[np.int64]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(first ordinal, batch of the text column) of every batch that holds a wanted document."""
    for span in plan.units[unit]:
        for piece in range(span.first, span.last):
            ordinal = ordinals.piece_ordinal(span.shard, piece)
            end = ordinals.piece_ordinal(span.shard, piece, after=True)
            a, b = np.searchsorted(wanted, [ordinal, end])
            if a == b:
                continue
            for batch in read_unit(plan, [Span(span.shard, piece, piece + 1)], [config.text_column], config.reading):
                a, b = np.searchsorted(wanted, [ordinal, ordinal + batch.rows.num_rows])
                if a < b:
                    yield ordinal, batch.rows
                ordinal += batch.rows.num_rows


def _set_batch(texts: pa.LargeStringArray, documents: NDArray[np.int64], ngram: int) -> pa.RecordBatch:
    data, offsets = text_buffers(texts)
    lengths = np.diff(offsets)
    fold = load_fold_table()
    out = np.empty(SYMBOLS_PER_BYTE * int(lengths.sum()) + 1, np.uint64)
    out_offsets = np.empty(len(offsets), np.int64)
    shingle_sets(
        data, offsets, fold.table, fold.expansions, ngram, scratch_for(int(lengths.max(initial=0))), out, out_offsets
    )
    lists = pa.LargeListArray.from_arrays(pa.array(out_offsets), pa.array(out[: out_offsets[-1]]))
    return pa.record_batch([pa.array(documents), lists], schema=SHINGLE_SCHEMA)
