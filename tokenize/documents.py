"""The documents of a unit that are to be encoded, in position order, with what is known of each.

Two ways in. Shards as they are: read, and what cannot be encoded (null, not UTF-8, too large, …) is left out and
counted. A finished WORK folder with its decisions: what stays of its input, read, repaired and edited as its own clean
shards would be.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from taojin.core.corpus import EXTRA_COLUMN, Plan
from taojin.core.job import Reading
from taojin.core.reading import read_unit
from taojin.core.status import INVALID_UTF8, OK, STATUS_REASONS
from taojin.core.write import Kept, WriteContext, kept_rows, output_schema

# What provenance knows of a document beside its place; null where the input does not tell.
KNOWN_FIELDS = (
    pa.field("id", pa.large_string()),
    pa.field("source", pa.large_string()),
    pa.field("language", pa.large_string()),
    pa.field("cluster", pa.int64()),
    pa.field("component", pa.int64()),
)

MAX_PROBLEMS = 20


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


class Tally:
    """What reading a unit has come across: rows by (shard, piece), what was left out by reason and the first of it in
    words, texts that were repaired."""

    def __init__(self) -> None:
        self.rows: Counter[tuple[int, int]] = Counter()
        self.left_out: Counter[str] = Counter()
        self.problems: list[str] = []
        self.repaired = 0

    def leave_out(self, plan: Plan, shard: int, piece: int, rows: NDArray[np.int64], reasons: Sequence[str]) -> None:
        """Count rows of a piece that are not encoded, each with its reason: a word, and what is behind a colon."""
        self.left_out.update(reason.partition(":")[0] for reason in reasons)
        for row, reason in zip(rows.tolist()[:MAX_PROBLEMS], reasons[:MAX_PROBLEMS], strict=True):
            if len(self.problems) < MAX_PROBLEMS:
                where = f"row {row}" + (f" of piece {piece}" if piece else "") + ", counted from 0"
                self.problems.append(f"{plan.shards[shard].path}: {where}: {reason}")


def read_documents(source: Input, unit: int, tally: Tally) -> Iterator[Documents]:
    """Documents of a unit that can be encoded; the tally has the rest."""
    if source.kept is not None:
        yield from _kept_documents(source, source.kept, unit, tally)
        return
    names = [*source.reading.names_in(source.plan.schema.names), *_others(source)]
    for batch in read_unit(source.plan, source.plan.units[unit], list(dict.fromkeys(names)), source.reading):
        place = batch.shard, batch.piece
        numbers = np.arange(tally.rows[place], tally.rows[place] + batch.rows.num_rows)
        tally.rows[place] += batch.rows.num_rows
        tally.repaired += int(batch.repaired.sum())
        yield from _usable(source, Kept(*place, numbers, batch.rows), batch.status, tally)


def _others(source: Input) -> list[str]:
    """Columns that are read where the input has them."""
    wanted = [source.language, "cluster", "component"]
    if source.reading.structured or source.prompt:
        wanted += [source.prompt, EXTRA_COLUMN, "tools", "system"]
    return [name for name in wanted if name in source.plan.schema.names]


def _usable(source: Input, found: Kept, status: NDArray[np.uint8], tally: Tally) -> Iterator[Documents]:
    """The documents that can be encoded, if there is one; counts the others. status: what reading found."""
    status = _validated(found.batch.column(source.reading.text), status)
    usable = status == OK
    if not usable.all():
        reasons = [STATUS_REASONS[value] for value in status[~usable].tolist()]
        tally.leave_out(source.plan, found.shard, found.piece, found.rows[~usable], reasons)
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


def _kept_documents(source: Input, kept: WriteContext, unit: int, tally: Tally) -> Iterator[Documents]:
    """What stays. What cannot be read or is empty never does, whatever the run does with the rest."""
    for span in source.plan.units[unit]:
        for piece in range(span.first, span.last):
            first = kept.ordinals.piece_ordinal(span.shard, piece)
            tally.rows[span.shard, piece] = kept.ordinals.piece_ordinal(span.shard, piece, after=True) - first
    edited: Counter[str] = Counter()
    for found in kept_rows(kept, source.plan.units[unit], output_schema(kept), edited):
        yield _documents(source, found)


def _documents(source: Input, found: Kept) -> Documents:
    rows = found.batch
    theirs = {"id": source.reading.id, "source": source.reading.source, "language": source.language}
    columns: dict[str, Any] = {}
    for field in KNOWN_FIELDS:
        name = theirs.get(field.name, field.name)
        if name in rows.schema.names:
            columns[field.name] = _readable(rows.column(name).cast(field.type))
        else:
            columns[field.name] = pa.nulls(rows.num_rows, field.type)
    for name, column in (("prompt", source.prompt), ("extra", EXTRA_COLUMN), ("tools", "tools"), ("system", "system")):
        if source.reading.structured or source.prompt:
            columns[name] = rows.column(column) if column in rows.schema.names else pa.nulls(rows.num_rows)
    return Documents(found.shard, found.piece, found.rows, rows.column(source.reading.text), columns)


def _readable(values: pa.Array) -> pa.Array:
    """The values with U+FFFD for what is no UTF-8: they go into counts, and into names of files."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        raw = values.cast(pa.large_binary()).to_pylist()
        return pa.array([value if value is None else value.decode(errors="replace") for value in raw], values.type)
    return values
