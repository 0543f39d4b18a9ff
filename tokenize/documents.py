"""The documents of a unit that are to be encoded, in position order, with what is known of each.

Two ways in. Shards as they are: read, and what cannot be encoded (null, not UTF-8, too large, …) is left out and
counted. A finished WORK folder with its decisions: what stays of its input, read, repaired and edited as its own clean
shards would be.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from taojin.core.corpus import EXTRA_COLUMN, Plan
from taojin.core.job import Reading
from taojin.core.reading import read_unit
from taojin.core.status import INVALID_UTF8, NULL, OK, STATUS_REASONS, TOO_LARGE
from taojin.core.write import Kept, WriteContext, kept_rows, output_schema

# What provenance knows of a document beside its place; null where the input does not tell.
KNOWN_FIELDS = (
    pa.field("id", pa.large_string()),
    pa.field("source", pa.large_string()),
    pa.field("language", pa.large_string()),
    pa.field("cluster", pa.int64()),
    pa.field("component", pa.int64()),
)


class Input(NamedTuple):
    """Where documents come from.

    reading: columns by meaning · language: the column that tells it · prompt: that of a conversation's prompt, or "" ·
    kept: the run whose decisions say what stays; None: everything that can be read.
    """

    plan: Plan
    reading: Reading
    language: str
    prompt: str = ""
    kept: WriteContext | None = None


class Documents(NamedTuple):
    """Consecutive documents of one piece. rows: int64, their numbers in the piece · texts: large_string without nulls
    (conversations: whatever the column holds) · columns: arrays by name, see KNOWN_FIELDS, and `prompt`, `extra` of
    conversations."""

    shard: int
    piece: int
    rows: NDArray[np.int64]
    texts: pa.Array
    columns: dict[str, pa.Array]


def read_documents(
    source: Input, unit: int, left_out: Counter[str], rows: Counter[tuple[int, int]]
) -> Iterator[Documents]:
    """Documents of a unit; counts what is left out by reason, and all rows read by (shard, piece)."""
    if source.kept is not None:
        yield from _kept_documents(source, source.kept, unit, left_out, rows)
        return
    names = [*source.reading.names_in(source.plan.schema.names), *_others(source)]
    for batch in read_unit(source.plan, source.plan.units[unit], list(dict.fromkeys(names)), source.reading):
        count = batch.rows.num_rows
        numbers = np.arange(rows[batch.shard, batch.piece], rows[batch.shard, batch.piece] + count)
        rows[batch.shard, batch.piece] += count
        yield from _usable(source, Kept(batch.shard, batch.piece, numbers, batch.rows), batch.status, left_out)


def _others(source: Input) -> list[str]:
    """Columns that are read where the input has them."""
    wanted = [source.language, "cluster", "component"]
    if source.reading.structured or source.prompt:
        wanted += [source.prompt, EXTRA_COLUMN, "tools", "system"]
    return [name for name in wanted if name in source.plan.schema.names]


def _usable(source: Input, found: Kept, status: NDArray[np.uint8], left_out: Counter[str]) -> Iterator[Documents]:
    """The documents that can be encoded, if there is one; counts the others. status: what reading found."""
    status = _validated(found.batch.column(source.reading.text), status)
    usable = status == OK
    if not usable.all():
        for value, number in zip(*np.unique(status[~usable], return_counts=True), strict=True):
            left_out[STATUS_REASONS[int(value)]] += int(number)
        found = found._replace(rows=found.rows[usable], batch=found.batch.filter(pa.array(usable)))
    if len(found.rows):
        yield _documents(source, found)


def _validated(texts: pa.Array, status: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The status, with INVALID_UTF8 where a text is none: Parquet does not promise it, backends do not look."""
    if not pa.types.is_large_string(texts.type):
        return status
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        status = status.copy()
        for row, value in enumerate(texts.cast(pa.large_binary()).to_pylist()):
            if value is not None and not _is_utf8(value):
                status[row] = INVALID_UTF8
    return status


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _kept_documents(
    source: Input, kept: WriteContext, unit: int, left_out: Counter[str], rows: Counter[tuple[int, int]]
) -> Iterator[Documents]:
    """What stays. A run that only writes down what it would drop keeps what cannot be encoded, too."""
    for span in source.plan.units[unit]:
        for piece in range(span.first, span.last):
            first = kept.ordinals.piece_ordinal(span.shard, piece)
            rows[span.shard, piece] = kept.ordinals.piece_ordinal(span.shard, piece, after=True) - first
    edited: Counter[str] = Counter()
    for found in kept_rows(kept, source.plan.units[unit], output_schema(kept), edited):
        texts = found.batch.column(source.reading.text)
        status = np.full(len(texts), OK, np.uint8)
        status[pc.fill_null(pc.binary_length(texts), 0).to_numpy() > source.reading.max_document_bytes] = TOO_LARGE
        status[texts.is_null().to_numpy(zero_copy_only=False)] = NULL
        yield from _usable(source, found, status, left_out)


def _documents(source: Input, found: Kept) -> Documents:
    rows = found.batch
    theirs = {"id": source.reading.id, "source": source.reading.source, "language": source.language}
    columns: dict[str, Any] = {}
    for field in KNOWN_FIELDS:
        name = theirs.get(field.name, field.name)
        if name in rows.schema.names:
            columns[field.name] = rows.column(name).cast(field.type)
        else:
            columns[field.name] = pa.nulls(rows.num_rows, field.type)
    for name, column in (("prompt", source.prompt), ("extra", EXTRA_COLUMN), ("tools", "tools"), ("system", "system")):
        if source.reading.structured or source.prompt:
            columns[name] = rows.column(column) if column in rows.schema.names else pa.nulls(rows.num_rows)
    return Documents(found.shard, found.piece, found.rows, rows.column(source.reading.text), columns)
