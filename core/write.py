"""Write: read the text a second time and emit what stays, as OUT/part-*.parquet.

A part is cut by rows: consecutive pieces until `part_mb` of them stay, whatever the units were. Rows are those of the
input, bytes unchanged unless an edit was asked for, in position order, plus columns of ours: the decisions' `cluster`
(own position), `cluster_size` (1 + what went in its favour), `component` (position of the first document that verified
pairs link it to); and whatever further files of the unit hold (`Extra`).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from taojin.core.corpus import OUR_FIELDS, Ordinals, Plan, Span
from taojin.core.errors import InvariantError
from taojin.core.job import JobConfig
from taojin.core.reading import read_unit
from taojin.core.storage import Folder
from taojin.core.tasks import unit_name

ZSTD_LEVEL = 3
KEEP_FIELD = pa.field("keep", pa.bool_(), nullable=False)


class Edit(Protocol):
    """A change to the texts as they are written, the same for every unit."""

    def __call__(
        self, texts: pa.LargeStringArray, unit: int, first_row: int
    ) -> tuple[pa.LargeStringArray, Counter[str]]:
        """(texts, how often what was done) of rows of a unit from `first_row` on, those that go included."""
        ...


class Extra(NamedTuple):
    """Columns that go out from another file of the unit, a row per document: `folder`/<unit>.arrow.

    struct: the name of the one column they are packed into; "" leaves them apart.
    """

    folder: Folder
    fields: tuple[pa.Field, ...]
    struct: str = ""

    def written(self) -> list[pa.Field]:
        """The columns as they go out."""
        return [pa.field(self.struct, pa.struct(self.fields))] if self.struct else list(self.fields)

    def columns(self, table: pa.Table) -> list[pa.Array]:
        """The same of rows of the file."""
        arrays = [table.column(field.name).combine_chunks().cast(field.type) for field in self.fields]
        return [pa.StructArray.from_arrays(arrays, fields=list(self.fields))] if self.struct else arrays


class Kept(NamedTuple):
    """Consecutive documents of one piece, those that stay: `rows` int64, their numbers in the piece."""

    shard: int
    piece: int
    rows: NDArray[np.int64]
    batch: pa.RecordBatch


class WriteContext(NamedTuple):
    """edits: applied in order."""

    plan: Plan
    config: JobConfig
    ordinals: Ordinals
    decisions: Folder
    out: Folder
    extras: tuple[Extra, ...] = ()
    edits: tuple[Edit, ...] = ()


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


def output_schema(context: WriteContext) -> pa.Schema:
    extras = [field for extra in context.extras for field in extra.written()]
    return pa.schema([*context.plan.schema, *extras, *OUR_FIELDS])


def write_part(context: WriteContext, item: tuple[int, tuple[tuple[Span, int], ...]]) -> dict[str, Any]:
    """Write one part; raises InvariantError unless exactly the decided rows went out."""
    config, out = context.config, context.out
    index, spans = item
    schema = output_schema(context)
    edited: Counter[str] = Counter()
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
        for _, _, _, batch in kept_rows(context, [span for span, _ in spans], schema, edited):
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
    return {
        "documents": sink.rows,
        "bytes": text_bytes,
        "edited": dict(sorted(edited.items())),
        "files": {"part": out.entry(name, sink).as_json()},
    }


def _write_group(writer: pq.ParquetWriter, held: list[pa.RecordBatch], schema: pa.Schema) -> None:
    if held:
        table = pa.Table.from_batches(held, schema)
        writer.write_table(table, row_group_size=len(table))


def _text_bytes(texts: pa.LargeStringArray) -> int:
    offsets = np.frombuffer(texts.buffers()[1], np.int64)
    return int(offsets[texts.offset + len(texts)] - offsets[texts.offset])


def kept_rows(context: WriteContext, spans: Sequence[Span], schema: pa.Schema, edited: Counter[str]) -> Iterator[Kept]:
    """The documents that stay, with our columns, in position order; counts edits."""
    plan, config, ordinals = context.plan, context.config, context.ordinals
    decided = Extra(context.decisions.child("decisions"), (KEEP_FIELD, *OUR_FIELDS))
    sources = [*context.extras, decided]
    for span in spans:
        ordinal = ordinals.piece_ordinal(span.shard, span.first)
        unit = int(np.searchsorted(ordinals.unit_first, ordinal, side="right")) - 1
        row = ordinal - int(ordinals.unit_first[unit])
        piece, row_of_piece = span.first, 0
        with ExitStack() as stack:
            files = [stack.enter_context(source.folder.open(f"{unit_name(unit)}.arrow")) for source in sources]
            readers = [pa.ipc.open_file(file) for file in files]
            tables = [_read_fields(reader, source) for reader, source in zip(readers, sources, strict=True)]
            for batch in read_unit(plan, [span], plan.schema.names, config.reading):
                count = batch.rows.num_rows
                if batch.piece != piece:
                    piece, row_of_piece = batch.piece, 0
                slices = [table.slice(row, count) for table in tables]
                extra = [array for s, t in zip(context.extras, slices[:-1], strict=True) for array in s.columns(t)]
                keep, *ours = decided.columns(slices[-1])
                rows = _edited(context, batch.rows, keep, unit, row, edited)
                numbers = np.arange(row_of_piece, row_of_piece + count)
                row += count
                row_of_piece += count
                whole = pa.RecordBatch.from_arrays([*rows.columns, *extra, *ours], schema=schema)
                if keep.false_count:
                    whole = whole.filter(keep)
                    numbers = numbers[keep.to_numpy(zero_copy_only=False)]
                if whole.num_rows:
                    yield Kept(batch.shard, batch.piece, numbers, whole)


def _read_fields(reader: pa.ipc.RecordBatchFileReader, source: Extra) -> pa.Table:
    names = [field.name for field in source.fields]
    batches = [reader.get_batch(number).select(names) for number in range(reader.num_record_batches)]
    return pa.Table.from_batches(batches, pa.schema([reader.schema.field(name) for name in names]))


def _edited(
    context: WriteContext, rows: pa.RecordBatch, keep: pa.BooleanArray, unit: int, row: int, edited: Counter[str]
) -> pa.RecordBatch:
    index = rows.schema.get_field_index(context.config.text_column)
    texts = rows.column(index)
    if not context.edits or not keep.true_count:
        return rows
    # What goes is not edited, and not counted.
    texts = pc.if_else(keep, texts, pa.scalar(None, texts.type))
    for edit in context.edits:
        texts, counts = edit(texts, unit, row)
        edited.update(counts)
    return rows.set_column(index, rows.schema.field(index), texts)
