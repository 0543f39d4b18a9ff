"""Reading units as Arrow batches in bounded memory: Parquet row groups and JSONL byte ranges look the same from here.

A batch holds at most `BATCH_ROWS` rows and aims at `batch_bytes` of all columns; a single larger document is a batch of
its own. Records that cannot be read keep their row: their text is null and `status` says why, so that every document
of the input has a position and is accounted for.
"""

import contextlib
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from taojin.core.corpus import EXTRA_COLUMN, Piece, Plan, Shard, Span
from taojin.core.errors import BadShardError, InputError
from taojin.core.job import Reading
from taojin.core.status import INVALID_RECORD, INVALID_UTF8, NULL, OK, TOO_LARGE, UNREADABLE
from taojin.core.storage import first_line, resolve

BATCH_ROWS = 65_536
BLOCK_BYTES = 4_000_000


_LONG_NUMBER = re.compile(rb"[0-9]{19}")


class Batch(NamedTuple):
    """Consecutive rows of one piece.

    status: uint8 per row, see `taojin.core.status`: OK, or why it could not be read. repaired: bool per row, whether
    its text is not the input's.
    """

    shard: int
    piece: int
    rows: pa.RecordBatch
    status: NDArray[np.uint8]
    repaired: NDArray[np.bool_]


def read_unit(
    plan: Plan,
    spans: Sequence[Span],
    names: Sequence[str],
    reading: Reading,
) -> Iterator[Batch]:
    """Batches of the named columns, in position order. A column that a shard lacks is null there.

    Raises BadShardError for a file whose content cannot be decoded, or, with `reading.skip_bad`, yields null rows with
    status
    UNREADABLE for what is left of the piece: as many as the footer says, and a single one for JSONL, where nobody can
    know how many. OSErrors pass through.
    """
    schema = pa.schema([plan.schema.field(name) for name in names])
    for span in spans:
        shard = plan.shards[span.shard]
        read = _read_parquet if shard.format == "parquet" else _read_jsonl
        for number in range(span.first, span.last):
            piece = shard.pieces[number]
            seen = 0
            try:
                with _naming(shard):
                    for rows, status in read(shard, piece, schema, reading):
                        seen += rows.num_rows
                        yield _mended(Batch(span.shard, number, rows, status, np.zeros(len(status), bool)), reading)
                    if piece.rows >= 0 and seen != piece.rows:
                        raise BadShardError(f"{shard.path}: piece {number}: expected {piece.rows} rows, found {seen}")
            except BadShardError:
                if not reading.skip_bad:
                    raise
                expected = piece.rows if piece.rows >= 0 else seen + 1
                for first in range(seen, expected, BATCH_ROWS):
                    count = min(BATCH_ROWS, expected - first)
                    rows = pa.RecordBatch.from_arrays([pa.nulls(count, f.type) for f in schema], schema=schema)
                    status = np.full(count, UNREADABLE, np.uint8)
                    yield Batch(span.shard, number, rows, status, np.zeros(count, bool))


def _mended(batch: Batch, reading: Reading) -> Batch:
    """The batch with repaired texts, if that is asked for."""
    if not reading.repair or reading.text not in batch.rows.schema.names:
        return batch
    from taojin.core.repair import repair_array

    index = batch.rows.schema.get_field_index(reading.text)
    texts, repaired = repair_array(batch.rows.column(index))
    if not repaired.any():
        return batch
    return batch._replace(rows=batch.rows.set_column(index, batch.rows.schema.field(index), texts), repaired=repaired)


@contextlib.contextmanager
def _naming(shard: Shard) -> Iterator[None]:
    """Turn what Arrow raises for damaged content into a BadShardError that names the shard."""
    try:
        yield
    except pa.ArrowException as error:
        raise BadShardError(f"{shard.path}: {first_line(error)}") from error
    except OSError as error:
        # Arrow reports damaged pages ("Corrupt snappy compressed data") as OSErrors without an errno.
        if error.errno is None and _is_damage(str(error)):
            raise BadShardError(f"{shard.path}: {first_line(error)}") from error
        raise


def _is_damage(message: str) -> bool:
    lowered = message.lower()
    words = (
        "corrupt",
        "decompress",
        "deserializ",
        "unexpected end",
        "invalid",
        "truncated",
        "zlib",
        "zstd",
        "premature",
    )
    return any(word in lowered for word in words)


def _read_parquet(
    shard: Shard, piece: Piece, schema: pa.Schema, reading: Reading
) -> Iterator[tuple[pa.RecordBatch, NDArray[np.uint8]]]:
    if piece.rows == 0:
        return
    filesystem, path = resolve(shard.uri)
    with filesystem.open_input_file(path) as file:
        # A buffered stream per column keeps a giant row group from being read whole.
        parquet = pq.ParquetFile(file, buffer_size=BLOCK_BYTES, pre_buffer=False)
        present = [name for name in schema.names if name in parquet.schema_arrow.names]
        per_row = max(1, piece.bytes // piece.rows)
        batch_rows = int(min(BATCH_ROWS, max(1, reading.batch_bytes // per_row)))
        for batch in parquet.iter_batches(
            batch_size=batch_rows, row_groups=[piece.start], columns=present, use_threads=False
        ):
            rows = conform(batch, schema)
            yield rows, _parquet_status(rows, reading.text, reading.max_document_bytes)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Cast to the plan's schema: text encodings to large_string, missing columns to null."""
    arrays = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            arrays.append(pa.nulls(batch.num_rows, field.type))
            continue
        array = batch.column(index)
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _parquet_status(rows: pa.RecordBatch, text_column: str, max_document_bytes: int) -> NDArray[np.uint8]:
    status = np.full(rows.num_rows, OK, np.uint8)
    index = rows.schema.get_field_index(text_column)
    if index < 0:
        return status
    texts = rows.column(index)
    if texts.null_count:
        status[texts.is_null().to_numpy(zero_copy_only=False)] = NULL
    if texts.nbytes > max_document_bytes and not pa.types.is_nested(texts.type):
        lengths = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
        status[lengths > max_document_bytes] = TOO_LARGE
    return status


def _read_jsonl(
    shard: Shard, piece: Piece, schema: pa.Schema, reading: Reading
) -> Iterator[tuple[pa.RecordBatch, NDArray[np.uint8]]]:
    lines = iter_lines(shard, piece, 2 * reading.max_document_bytes + (1 << 20))
    damage: Exception | None = None
    while True:
        records: list[list[Any]] = []
        status: list[int] = []
        filled = 0
        try:
            for line in lines:
                values, state = _parse(line, reading)
                records.append(values)
                status.append(state)
                filled += len(line or b"")
                if filled >= reading.batch_bytes or len(records) == BATCH_ROWS:
                    break
        except (OSError, pa.ArrowException) as error:
            # What was read before the damage is handed on first.
            damage = error
        if not records:
            if damage:
                raise damage
            return
        names = (reading.text, reading.id, reading.source, EXTRA_COLUMN, reading.quality or "")
        by_name = dict(zip(names, zip(*records, strict=True), strict=True))
        arrays = [
            pa.array(by_name[field.name], field.type) if field.name in by_name else pa.nulls(len(records), field.type)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema), np.array(status, np.uint8)


def _parse(line: bytes | None, reading: Reading) -> tuple[list[Any], int]:
    """([text, id, source, extra, quality], status) of one line; a bad record keeps whatever could be read of it."""
    nothing = [None, None, None, None, None]
    if line is None:
        return nothing, TOO_LARGE
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        try:
            line.decode()
        except UnicodeDecodeError:
            return nothing, INVALID_UTF8
        return nothing, INVALID_RECORD
    if not isinstance(record, dict):
        return nothing, INVALID_RECORD
    # orjson makes floats of integers beyond 64 bits: two ids would become one.
    if any(not isinstance(value, str | None) for value in record.values()) and _LONG_NUMBER.search(line):
        record = json.loads(line)
    text = record.pop(reading.text, None)
    identifier = _as_string(record.pop(reading.id, None))
    source = _as_string(record.pop(reading.source, None))
    quality = record.pop(reading.quality, None) if reading.quality else None
    quality = float(quality) if isinstance(quality, int | float) and not isinstance(quality, bool) else None
    rest = [identifier, source, _as_string(record or None), quality]
    if text is None:
        return [None, *rest], NULL
    if reading.structured:
        text = _as_string(text)
    if not isinstance(text, str):
        return [None, *rest], INVALID_RECORD
    if len(text) > reading.max_document_bytes // 4 and len(text.encode()) > reading.max_document_bytes:
        return [None, *rest], TOO_LARGE
    return [text, *rest], OK


def _as_string(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # an integer beyond 64 bits
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def iter_lines(shard: Shard, piece: Piece, max_line_bytes: int) -> Iterator[bytes | None]:
    """Non-blank lines that begin inside the piece; None for a line above `max_line_bytes`, which is never held."""
    filesystem, path = resolve(shard.uri)
    if shard.compression is None:
        stream = filesystem.open_input_file(path)
        # A line belongs to the piece in which it begins: start one byte early and drop up to the first newline.
        stream.seek(max(0, piece.start - 1))
        skipping_first = piece.start > 0
        offset = max(0, piece.start - 1)
    else:
        stream = filesystem.open_input_stream(path, compression=shard.compression)
        skipping_first = False
        offset = 0
    end = piece.stop if shard.compression is None else None
    # Decompression gives nothing of a block that breaks: small ones lose less.
    block_bytes = BLOCK_BYTES if shard.compression is None else BLOCK_BYTES // 16
    held: list[bytes] = []
    held_bytes = 0
    too_long = False
    line_start = offset
    with stream:
        while block := stream.read(block_bytes):
            begin = 0
            while (newline := block.find(b"\n", begin)) >= 0:
                line = block[begin:newline]
                next_start = offset + newline + 1
                if skipping_first:
                    skipping_first = False
                elif end is not None and line_start >= end:
                    return
                elif too_long or held_bytes + len(line) > max_line_bytes:
                    yield None
                else:
                    whole = b"".join([*held, line]) if held else line
                    if stripped := _strip(whole, line_start):
                        yield stripped
                held, held_bytes, too_long = [], 0, False
                line_start = next_start
                begin = newline + 1
            if end is not None and line_start >= end and not skipping_first:
                return
            rest = block[begin:]
            held_bytes += len(rest)
            if held_bytes > max_line_bytes:
                held, too_long = [], True
            elif rest:
                held.append(rest)
            offset += len(block)
            if skipping_first and end is not None and offset >= end:
                return  # inside one long line that begins before the piece and ends after it
    if skipping_first or (end is not None and line_start >= end):
        return
    if too_long:
        yield None
    elif stripped := _strip(b"".join(held), line_start):
        yield stripped


def _strip(line: bytes, start: int) -> bytes:
    if start == 0:
        line = line.removeprefix(b"\xef\xbb\xbf")
    return line.strip(b" \t\r\n")


def check_jsonl_head(shard: Shard, text_column: str) -> str | None:
    """What is damaged among the first records, if anything.

    Raises InputError when none of them has the text column: a wrong name, not bad records.
    """
    seen: dict[str, None] = {}
    damage = None
    try:
        for line in itertools.islice(iter_lines(shard, shard.pieces[0], 1 << 24), 100):
            with contextlib.suppress(orjson.JSONDecodeError):
                record = orjson.loads(line or b"null")
                if isinstance(record, dict):
                    if text_column in record:
                        return None
                    seen.update(dict.fromkeys(record))
    except (OSError, pa.ArrowException) as error:
        damage = first_line(error)
    if seen:
        raise InputError(
            f"{shard.path}: no field {text_column!r} in its first records; there are: {', '.join(seen)}; "
            "choose one with --text-column"
        )
    return damage
