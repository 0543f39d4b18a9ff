"""Scan: read a unit's text once and leave small columns: everything that `decide` will ever ask about it.

Out, per unit: scan/<unit>.arrow, the sidecar, a row per document; bands/<unit>.arrow, exact/<unit>.arrow and
ids/<unit>.arrow, its keys split by range (`taojin.dedup.bands`). About 600 bytes a document, half of it sketch.
Nothing here depends on other units; nothing is removed here.
"""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from taojin.core.corpus import Plan
from taojin.core.reading import Batch, Columns, read_unit
from taojin.core.status import EMPTY, STATUS_REASONS
from taojin.core.storage import Folder
from taojin.core.tasks import unit_name
from taojin.core.text import hash_bytes, text_buffers
from taojin.dedup.bands import KeyWriter, band_keys
from taojin.dedup.config import DedupConfig
from taojin.dedup.exact import EXACT_BYTES, exact_hashes, exact_keys
from taojin.dedup.sketch import Sketches, sketch_array, sketch_words

# Rows collected into one sidecar batch: few batches make look-ups of single documents cheap; about 12 MB.
SIDECAR_ROWS = 32_768


class ScanContext(NamedTuple):
    plan: Plan
    config: DedupConfig
    work: Folder


def sidecar_schema(plan: Plan, config: DedupConfig) -> pa.Schema:
    """Columns of a sidecar; id, source and quality only where the input has them."""
    fields = [
        pa.field("exact", pa.binary(EXACT_BYTES)),
        pa.field("sketch", pa.binary(8 * sketch_words(config))),
        pa.field("shingles", pa.uint32()),
        pa.field("chars", pa.uint32()),
        pa.field("bytes", pa.uint32()),
        pa.field("status", pa.uint8()),
    ]
    if config.id_column in plan.schema.names:
        fields.append(pa.field("id", pa.string()))
    if config.source_column in plan.schema.names:
        fields.append(pa.field("source", pa.string()))
    if config.quality_column:
        fields.append(pa.field("quality", pa.float64()))
    return pa.schema(fields)


def columns_of(config: DedupConfig) -> Columns:
    return Columns(config.text_column, config.id_column, config.source_column, config.quality_column)


def scan_unit(context: ScanContext, unit: int) -> dict[str, Any]:
    """Scan one unit and commit its four files; returns counts, rows per piece and the manifest entries."""
    plan, config, work = context
    name = f"{unit_name(unit)}.arrow"
    schema = sidecar_schema(plan, config)
    wanted = (config.text_column, config.id_column, config.source_column, config.quality_column)
    names = [column for column in wanted if column and column in plan.schema.names]
    piece_rows: Counter[tuple[int, int]] = Counter()
    reasons: Counter[str] = Counter()
    documents = text_bytes = chars = written = 0
    held: list[pa.RecordBatch] = []
    folders = {kind: work.child(kind) for kind in ("scan", "bands", "exact", "ids")}
    with (
        folders["scan"].create(name) as sidecar_sink,
        folders["bands"].create(name) as band_sink,
        folders["exact"].create(name) as exact_sink,
        folders["ids"].create(name) as id_sink,
        pa.ipc.new_file(sidecar_sink, schema) as sidecar,
    ):
        bands, exact, ids = (KeyWriter(sink, plan.num_ranges) for sink in (band_sink, exact_sink, id_sink))
        batches = read_unit(
            plan,
            plan.units[unit],
            names,
            columns_of(config),
            config.max_document_bytes,
            skip_bad=config.skip_bad_units,
        )
        for batch in batches:
            texts = batch.rows.column(config.text_column)
            sketches = sketch_array(texts, config, batch.status)
            hashes = exact_hashes(texts)
            lengths = np.diff(text_buffers(texts)[1])
            held.append(_sidecar_batch(batch, schema, config, sketches, hashes, lengths))
            if documents + len(texts) - written >= SIDECAR_ROWS:
                written += _write_held(sidecar, held)
            _add_keys(bands, exact, config, sketches, hashes, documents)
            if config.id_column in names:
                _add_ids(ids, batch.rows.column(config.id_column), documents)
            for status, count in zip(*np.unique(sketches.status, return_counts=True), strict=True):
                if status >= EMPTY:
                    reasons[STATUS_REASONS[int(status)]] += int(count)
            piece_rows[batch.shard, batch.piece] += len(texts)
            documents += len(texts)
            text_bytes += int(lengths.sum())
            chars += int(sketches.num_chars.sum(dtype=np.int64))
        _write_held(sidecar, held)
        for writer in (bands, exact, ids):
            writer.close()
        sidecar_sink.rows = documents
    sinks = {"scan": sidecar_sink, "bands": band_sink, "exact": exact_sink, "ids": id_sink}
    return {
        "documents": documents,
        "bytes": text_bytes,
        "chars": chars,
        "removed": sum(reasons.values()),
        "reasons": dict(reasons),
        "pieces": [
            [span.shard, piece, piece_rows[span.shard, piece]]
            for span in plan.units[unit]
            for piece in range(span.first, span.last)
        ],
        "files": {kind: folders[kind].entry(name, sink).as_json() for kind, sink in sinks.items()},
    }


def _sidecar_batch(
    batch: Batch,
    schema: pa.Schema,
    config: DedupConfig,
    sketches: Sketches,
    hashes: NDArray[np.uint8],
    lengths: NDArray[np.int64],
) -> pa.RecordBatch:
    columns: dict[str, pa.Array] = {
        "exact": fixed_binary(hashes),
        "sketch": fixed_binary(sketches.sketch),
        "shingles": pa.array(sketches.num_shingles),
        "chars": pa.array(sketches.num_chars),
        "bytes": pa.array(np.minimum(lengths, 0xFFFFFFFF).astype(np.uint32)),
        "status": pa.array(sketches.status),
    }
    for ours, theirs in (
        ("id", config.id_column),
        ("source", config.source_column),
        ("quality", config.quality_column),
    ):
        if ours in schema.names:
            columns[ours] = batch.rows.column(theirs).cast(schema.field(ours).type)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def fixed_binary(values: NDArray[Any]) -> pa.Array:
    """A 2-D array as one fixed-size binary value per row, without a copy."""
    width = values.shape[1] * values.itemsize
    return pa.Array.from_buffers(pa.binary(width), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _write_held(sidecar: pa.ipc.RecordBatchFileWriter, held: list[pa.RecordBatch]) -> int:
    """Write what was collected as one batch and forget it; returns its rows."""
    if not held:
        return 0
    table = pa.Table.from_batches(held).combine_chunks()
    held.clear()
    sidecar.write_table(table)
    return int(table.num_rows)


def _add_keys(
    bands: KeyWriter,
    exact: KeyWriter,
    config: DedupConfig,
    sketches: Sketches,
    hashes: NDArray[np.uint8],
    first_row: int,
) -> None:
    size = len(sketches.status) * config.bands
    keys, rows = np.empty(size, np.uint64), np.empty(size, np.uint32)
    count = band_keys(sketches.lanes, sketches.status, first_row, config.bands, config.rows, keys, rows)
    bands.add(keys[:count], rows[:count])
    present = np.flatnonzero(sketches.status < EMPTY)
    exact.add(exact_keys(hashes)[present], (present + first_row).astype(np.uint32))


def _add_ids(writer: KeyWriter, ids: pa.Array, first_row: int) -> None:
    data, offsets = text_buffers(ids)
    keys = np.empty(len(ids), np.uint64)
    hash_bytes(data, offsets, keys)
    present = np.flatnonzero(ids.is_valid().to_numpy(zero_copy_only=False))
    writer.add(keys[present], (present + first_row).astype(np.uint32))
