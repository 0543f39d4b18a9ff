"""Write: read the text a second time and emit what stays, as OUT/part-*.parquet.

A part is cut by rows: consecutive pieces until `part_mb` of them stay, whatever the units were. Rows are those of the
input, bytes unchanged, in position order, plus `cluster` (own position), `cluster_size` (1 + what went in its favour)
and `component` (position of the first document that verified pairs link it to).
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from taojin.core.corpus import Ordinals, Plan, Span
from taojin.core.errors import InvariantError
from taojin.core.reading import read_unit
from taojin.core.storage import Folder
from taojin.core.tasks import unit_name
from taojin.dedup.config import DedupConfig
from taojin.dedup.scan import columns_of

ZSTD_LEVEL = 3
OUR_FIELDS = (
    pa.field("cluster", pa.int64(), nullable=False),
    pa.field("cluster_size", pa.int32(), nullable=False),
    pa.field("component", pa.int64(), nullable=False),
)


class WriteContext(NamedTuple):
    plan: Plan
    config: DedupConfig
    ordinals: Ordinals
    decisions: Folder
    out: Folder


def part_name(index: int) -> str:
    return f"part-{index:05d}.parquet"


def cut_parts(plan: Plan, pieces: Sequence[Sequence[int]], part_bytes: float) -> list[tuple[tuple[Span, int], ...]]:
    """Parts as spans with their number of kept rows, from [shard, piece, rows, kept rows] of every piece.

    A piece counts with its uncompressed bytes times the share of rows that stay. Pieces of which nothing stays are
    not read again.
    """
    parts: list[tuple[tuple[Span, int], ...]] = []
    part: list[tuple[Span, int]] = []
    filled = 0.0
    for shard, piece, rows, kept in pieces:
        if not kept:
            continue
        weight = plan.shards[shard].pieces[piece].bytes * kept / rows
        if part and filled + weight > part_bytes:
            parts.append(tuple(part))
            part, filled = [], 0.0
        part.append((Span(shard, piece, piece + 1), kept))
        filled += weight
    if part:
        parts.append(tuple(part))
    return parts


def output_schema(plan: Plan) -> pa.Schema:
    return pa.schema([*plan.schema, *OUR_FIELDS])


def write_part(context: WriteContext, item: tuple[int, tuple[tuple[Span, int], ...]]) -> dict[str, Any]:
    """Write one part; raises InvariantError unless exactly the decided rows went out."""
    plan, config, _, _, out = context
    index, spans = item
    schema = output_schema(plan)
    # Dictionaries do not pay for texts and names; trying costs a hash of every value.
    repetitive = [field.name for field in schema if field.name not in (config.text_column, config.id_column)]
    name = part_name(index)
    expected = sum(kept for _, kept in spans)
    options = {"compression": "zstd", "compression_level": ZSTD_LEVEL}
    options |= {"use_dictionary": repetitive, "write_statistics": repetitive}
    text_bytes = 0
    with out.create(name) as sink, pq.ParquetWriter(sink, schema, **options) as writer:
        held: list[pa.RecordBatch] = []
        held_bytes = 0
        for batch in kept_rows(context, [span for span, _ in spans], schema):
            held.append(batch)
            held_bytes += batch.nbytes
            sink.rows += batch.num_rows
            text_bytes += _text_bytes(batch.column(config.text_column))
            if held_bytes >= config.row_group_mb * 1e6:
                _write_group(writer, held, schema)
                held, held_bytes = [], 0
        _write_group(writer, held, schema)
    if sink.rows != expected:
        raise InvariantError(f"{name}: {expected:,} documents were to stay, {sink.rows:,} were written")
    return {"documents": sink.rows, "bytes": text_bytes, "files": {"part": out.entry(name, sink).as_json()}}


def _write_group(writer: pq.ParquetWriter, held: list[pa.RecordBatch], schema: pa.Schema) -> None:
    if held:
        table = pa.Table.from_batches(held, schema)
        writer.write_table(table, row_group_size=len(table))


def _text_bytes(texts: pa.LargeStringArray) -> int:
    offsets = np.frombuffer(texts.buffers()[1], np.int64)
    return int(offsets[texts.offset + len(texts)] - offsets[texts.offset])


def kept_rows(context: WriteContext, spans: Sequence[Span], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Batches of the documents that stay, with our columns, in position order."""
    plan, config, ordinals, folder, _ = context
    for span in spans:
        ordinal = ordinals.piece_ordinal(span.shard, span.first)
        unit = int(np.searchsorted(ordinals.unit_first, ordinal, side="right")) - 1
        with folder.open(f"decisions/{unit_name(unit)}.arrow") as file:
            decisions = pa.ipc.open_file(file).get_batch(0)
            row = ordinal - int(ordinals.unit_first[unit])
            batches = read_unit(
                plan,
                [span],
                plan.schema.names,
                columns_of(config),
                config.max_document_bytes,
                skip_bad=config.skip_bad_units,
            )
            for batch in batches:
                decided = decisions.slice(row, batch.rows.num_rows)
                row += batch.rows.num_rows
                ours = [decided.column(field.name) for field in OUR_FIELDS]
                whole = pa.RecordBatch.from_arrays([*batch.rows.columns, *ours], schema=schema)
                keep = decided.column("keep")
                if keep.false_count:
                    whole = whole.filter(keep)
                if whole.num_rows:
                    yield whole
