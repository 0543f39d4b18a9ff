"""Scan: read a unit's text once and let every analyzer see it, in the same pass.

Out, per unit: scan/<unit>.arrow, the sidecar, a row per document, with the columns of all analyzers; and whatever files
of their own analyzers write. Nothing here depends on other units; nothing is removed here. What analyzers there are is
the caller's: `taojin.dedup.scan` sketches, `taojin.quality.scan` measures signals.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from taojin.core.corpus import Plan
from taojin.core.job import Reading
from taojin.core.reading import Batch, read_unit
from taojin.core.status import EMPTY, STATUS_REASONS
from taojin.core.storage import Folder
from taojin.core.tasks import unit_name
from taojin.core.text import text_buffers

# Rows collected into one sidecar batch: few batches make look-ups of single documents cheap; about 12 MB.
SIDECAR_ROWS = 32_768


class Analysis(Protocol):
    """An analyzer at work on one unit."""

    def add(self, batch: Batch, first_row: int) -> dict[str, pa.Array]:
        """Its sidecar columns of a batch, `chars` among them. Marks in batch.status what cannot be analysed."""
        ...

    def close(self) -> None:
        """Write what is held; the files themselves are closed by the caller's stack."""
        ...

    def files(self) -> dict[str, dict[str, Any]]:
        """Manifest entries of its own files, once they are committed."""
        ...


class Analyzer(Protocol):
    """One measurement, as tasks receive it: small, and the same for every unit."""

    def fields(self) -> list[pa.Field]:
        """Its columns of the sidecar."""
        ...

    def start(self, plan: Plan, work: Folder, unit: int, stack: ExitStack) -> Analysis:
        """Begin a unit; files are opened on `stack`, and committed when it unwinds."""
        ...


class ScanContext(NamedTuple):
    plan: Plan
    reading: Reading
    work: Folder
    analyzers: tuple[Analyzer, ...]


def sidecar_schema(plan: Plan, reading: Reading, analyzers: Sequence[Analyzer]) -> pa.Schema:
    """Columns of a sidecar; id, source and quality only where the input has them."""
    fields = [field for analyzer in analyzers for field in analyzer.fields()]
    fields += [pa.field("chars", pa.uint32()), pa.field("bytes", pa.uint32()), pa.field("status", pa.uint8())]
    if reading.id in plan.schema.names:
        fields.append(pa.field("id", pa.string()))
    if reading.source in plan.schema.names:
        fields.append(pa.field("source", pa.string()))
    if reading.quality:
        fields.append(pa.field("quality", pa.float64()))
    if reading.repair:
        fields.append(pa.field("repaired", pa.bool_()))
    return pa.schema(fields)


def scan_unit(context: ScanContext, unit: int) -> dict[str, Any]:
    """Scan one unit and commit its files; returns counts, rows per piece and the manifest entries."""
    plan, reading, work, analyzers = context
    name = f"{unit_name(unit)}.arrow"
    schema = sidecar_schema(plan, reading, analyzers)
    names = reading.names_in(plan.schema.names)
    piece_rows: Counter[tuple[int, int]] = Counter()
    reasons: Counter[str] = Counter()
    documents = text_bytes = chars = written = repaired = 0
    held: list[pa.RecordBatch] = []
    folder = work.child("scan")
    with (
        ExitStack() as stack,
        folder.create(name) as sidecar_sink,
        pa.ipc.new_file(sidecar_sink, schema) as sidecar,
    ):
        analyses = [analyzer.start(plan, work, unit, stack) for analyzer in analyzers]
        for batch in read_unit(plan, plan.units[unit], names, reading):
            texts = batch.rows.column(reading.text)
            columns: dict[str, pa.Array] = {}
            for analysis in analyses:
                columns |= analysis.add(batch, documents)
            lengths = np.diff(text_buffers(texts)[1])
            held.append(_sidecar_batch(batch, schema, reading, columns, lengths))
            if documents + len(texts) - written >= SIDECAR_ROWS:
                written += _write_held(sidecar, held)
            for status, count in zip(*np.unique(batch.status, return_counts=True), strict=True):
                if status >= EMPTY:
                    reasons[STATUS_REASONS[int(status)]] += int(count)
            piece_rows[batch.shard, batch.piece] += len(texts)
            documents += len(texts)
            text_bytes += int(lengths.sum())
            chars += int(columns["chars"].to_numpy().sum(dtype=np.int64))
            repaired += int(batch.repaired.sum())
        _write_held(sidecar, held)
        for analysis in analyses:
            analysis.close()
        sidecar_sink.rows = documents
    files = {"scan": folder.entry(name, sidecar_sink).as_json()}
    for analysis in analyses:
        files |= analysis.files()
    return {
        "documents": documents,
        "bytes": text_bytes,
        "chars": chars,
        "repaired": repaired,
        "removed": sum(reasons.values()),
        "reasons": dict(reasons),
        "pieces": [
            [span.shard, piece, piece_rows[span.shard, piece]]
            for span in plan.units[unit]
            for piece in range(span.first, span.last)
        ],
        "files": files,
    }


def _sidecar_batch(
    batch: Batch, schema: pa.Schema, reading: Reading, columns: dict[str, pa.Array], lengths: NDArray[np.int64]
) -> pa.RecordBatch:
    columns = {
        **columns,
        "bytes": pa.array(np.minimum(lengths, 0xFFFFFFFF).astype(np.uint32)),
        "status": pa.array(batch.status),
        "repaired": pa.array(batch.repaired),
    }
    for ours, theirs in (("id", reading.id), ("source", reading.source), ("quality", reading.quality)):
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
