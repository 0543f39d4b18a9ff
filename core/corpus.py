"""Shards → plan → units: what is to be read, cut into grains of work, frozen as WORK/plan.json.

A *shard* is one input file. A *piece* is the smallest part that can be read alone: a Parquet row group, 64 MB of plain
JSONL, a whole compressed JSONL file. A *unit* is consecutive pieces of about `unit_mb` (all columns, uncompressed):
one giant piece is a unit of its own and is streamed; thousands of tiny shards share one. Shards are sorted by relative
path, so the order in which inputs were named never matters. Reading units is `taojin.core.reading`.

A document's *position* is shard index × 2^40 + row; its *ordinal* is its rank among all documents, dense from 0.
"""

import glob
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from taojin.core.errors import InputError
from taojin.core.storage import first_line, resolve
from taojin.core.uris import is_uri, split_query

PLAN_FORMAT = 1
POSITION_SHIFT = 40
JSONL_PIECE_BYTES = 64_000_000
MIB = 1 << 20
# Text in gzip or zstd files: only the size of units depends on this guess.
COMPRESSED_RATIO = 4
# Name of the column that carries the remaining fields of JSONL records, as JSON.
EXTRA_COLUMN = "extra"
# The columns of every output, beside those of the input.
OUR_FIELDS = (
    pa.field("cluster", pa.int64(), nullable=False),
    pa.field("cluster_size", pa.int32(), nullable=False),
    pa.field("component", pa.int64(), nullable=False),
)
OUR_COLUMNS = tuple(field.name for field in OUR_FIELDS)

_SUFFIXES = {
    ".parquet": ("parquet", None),
    ".jsonl": ("jsonl", None),
    ".jsonl.gz": ("jsonl", "gzip"),
    ".jsonl.zst": ("jsonl", "zstd"),
    ".ndjson": ("jsonl", None),
}
READABLE = ", ".join(_SUFFIXES)


class Piece(NamedTuple):
    """start, stop: row group and the next one (Parquet), or a byte range (JSONL); rows: -1 where only reading tells."""

    start: int
    stop: int
    rows: int
    bytes: int


class Span(NamedTuple):
    """Pieces [first, last) of one shard."""

    shard: int
    first: int
    last: int


class Shard(NamedTuple):
    """One input file; `path` is relative to what all inputs have in common, `uri` finds it."""

    path: str
    uri: str
    format: str
    compression: str | None
    size: int
    fingerprint: str
    pieces: tuple[Piece, ...]


class Plan(NamedTuple):
    """The frozen list of shards and units. `schema` is the unified schema of the input, strings as large_string."""

    shards: tuple[Shard, ...]
    units: tuple[tuple[Span, ...], ...]
    schema: pa.Schema
    config: dict[str, Any]
    num_ranges: int
    unreadable: tuple[tuple[str, str], ...] = ()

    @property
    def total_bytes(self) -> int:
        return sum(piece.bytes for shard in self.shards for piece in shard.pieces)

    def as_json(self) -> dict[str, Any]:
        return {
            "format": PLAN_FORMAT,
            "config": self.config,
            "num_ranges": self.num_ranges,
            "schema": self.schema.serialize().to_pybytes().hex(),
            "shards": [{**shard._asdict(), "pieces": [list(piece) for piece in shard.pieces]} for shard in self.shards],
            "units": [[list(span) for span in unit] for unit in self.units],
            "unreadable": [list(pair) for pair in self.unreadable],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Plan":
        return cls(
            shards=tuple(
                Shard(**{**shard, "pieces": tuple(Piece(*piece) for piece in shard["pieces"])})
                for shard in value["shards"]
            ),
            units=tuple(tuple(Span(*span) for span in unit) for unit in value["units"]),
            schema=pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(value["schema"]))),
            config=value["config"],
            num_ranges=value["num_ranges"],
            unreadable=tuple((path, reason) for path, reason in value["unreadable"]),
        )


class Ordinals:
    """Ordinal ↔ (shard, row) ↔ position, once the rows of every piece are known.

    piece_rows: rows per piece, in plan order (all pieces of shard 0, then of shard 1, …).
    """

    def __init__(self, plan: Plan, piece_rows: Sequence[int]) -> None:
        counts = np.asarray(piece_rows, np.int64)
        self.piece_first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.num_documents = int(self.piece_first[-1])
        pieces_of = np.array([len(shard.pieces) for shard in plan.shards], np.int64)
        self.shard_first_piece = np.concatenate([[0], np.cumsum(pieces_of)])
        self.shard_first = self.piece_first[self.shard_first_piece]
        self.unit_first = np.array(
            [self.piece_ordinal(unit[0].shard, unit[0].first) for unit in plan.units] + [self.num_documents],
            np.int64,
        )

    def piece_ordinal(self, shard: int, piece: int, *, after: bool = False) -> int:
        """First ordinal of a piece of a shard, or the one after its last."""
        return int(self.piece_first[self.shard_first_piece[shard] + piece + after])

    def shard_and_row(self, ordinals: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        shard = np.searchsorted(self.shard_first, ordinals, side="right") - 1
        return shard, ordinals - self.shard_first[shard]

    def positions(self, ordinals: NDArray[np.int64]) -> NDArray[np.int64]:
        shard, row = self.shard_and_row(ordinals)
        return (shard << POSITION_SHIFT) + row

    def ordinals(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.shard_first[positions >> POSITION_SHIFT] + (positions & ((1 << POSITION_SHIFT) - 1))


class _Found(NamedTuple):
    uri: str
    size: int


def find_files(inputs: Sequence[str]) -> list[_Found]:
    """Files named by paths, globs, folders and URIs; raises InputError for what is missing or holds nothing
    readable."""
    found: dict[str, _Found] = {}
    for name in inputs:
        for candidate in _expand(name.removeprefix("file://")):
            filesystem, path = resolve(candidate)
            try:
                info = filesystem.get_file_info(path)
                if info.type == pafs.FileType.Directory:
                    listing = filesystem.get_file_info(pafs.FileSelector(path, recursive=True))
                    infos = [i for i in listing if i.type == pafs.FileType.File and _kind(i.base_name)]
                    infos = [i for i in infos if not any(p[:1] in "._" for p in _relative(i.path, path).split("/"))]
                    if not infos:
                        raise InputError(f"{candidate}: expected {READABLE} files in this folder, found none")
                elif info.type == pafs.FileType.File:
                    if not _kind(info.base_name):
                        raise InputError(f"{candidate}: expected a file named {READABLE}")
                    infos = [info]
                else:
                    raise InputError(f"{candidate}: no such file or folder")
            except OSError as error:
                raise InputError(f"{candidate}: {error.strerror or first_line(error)}") from None
            scheme = candidate.split("://")[0] + "://" if is_uri(candidate) else ""
            query = split_query(candidate)[1]
            for i in infos:
                uri = f"{scheme}{i.path}{query}"
                found[uri] = _Found(uri, i.size)
    return [found[uri] for uri in sorted(found)]


def _expand(name: str) -> list[str]:
    if is_uri(name) or not glob.has_magic(name) or os.path.exists(name):
        return [name]
    matches = sorted(glob.glob(name, recursive=True))
    if not matches:
        raise InputError(f"{name}: no file matches this pattern")
    return matches


def _relative(path: str, folder: str) -> str:
    return path[len(folder.rstrip("/")) + 1 :]


def _kind(name: str) -> tuple[str, str | None] | None:
    lower = name.lower()
    return next((kind for suffix, kind in _SUFFIXES.items() if lower.endswith(suffix)), None)


def relative_paths(uris: Sequence[str]) -> list[str]:
    """Paths below the deepest folder that all files share; with one file, its name."""
    paths = [split_query(uri)[0] for uri in uris]
    folders = {os.path.dirname(path) for path in paths}
    try:
        common = os.path.commonpath(folders)
    except ValueError:  # a mix of schemes or of absolute and relative paths: nothing is shared
        return paths
    # commonpath merges "s3://bucket" into "s3:/bucket"
    return [path.replace("://", ":/")[len(common) :].lstrip("/") for path in paths]


def inspect_shard(found: _Found, path: str) -> tuple[Shard, pa.Schema | None]:
    """Read what metadata tells of one file. Raises InputError when it is not what its name says."""
    kind = _kind(split_query(found.uri)[0])
    assert kind is not None
    filesystem, location = resolve(found.uri)
    if kind[0] == "parquet":
        if found.size < 12:
            raise InputError(f"{path}: expected a Parquet file, found {found.size} bytes")
        try:
            with filesystem.open_input_file(location) as file:
                size = file.size()
                file.seek(size - 8)
                tail = file.read(8)
                footer_bytes = int.from_bytes(tail[:4], "little") + 8
                if tail[4:] != b"PAR1" or footer_bytes > size:
                    raise InputError(f"{path}: no Parquet footer; the file is truncated or not Parquet")
                file.seek(size - footer_bytes)
                footer = file.read(footer_bytes)
                file.seek(0)
                parquet = pq.ParquetFile(file)
                metadata, schema = parquet.metadata, parquet.schema_arrow
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
            raise InputError(f"{path}: {first_line(error)}") from None
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        pieces = [Piece(i, i + 1, group.num_rows, group.total_byte_size) for i, group in enumerate(groups)]
        shard = Shard(path, found.uri, *kind, found.size, xxhash.xxh3_64_hexdigest(footer), tuple(pieces))
        return shard, schema
    try:
        with filesystem.open_input_file(location) as file:
            head = file.read(1 << 16)
            file.seek(max(0, found.size - (1 << 16)))
            tail = file.read(1 << 16)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or first_line(error)}") from None
    if kind[1] is None:
        starts = range(0, found.size, JSONL_PIECE_BYTES)
        ends = [min(start + JSONL_PIECE_BYTES, found.size) for start in starts]
        pieces = [Piece(start, end, -1, end - start) for start, end in zip(starts, ends, strict=True)]
    else:
        pieces = [Piece(0, found.size, -1, found.size * COMPRESSED_RATIO)] if found.size else []
    return Shard(path, found.uri, *kind, found.size, xxhash.xxh3_64_hexdigest(head + tail), tuple(pieces)), None


def normal_type(data_type: pa.DataType) -> pa.DataType:
    """The type a column has in our outputs: large_string for every encoding of text, the rest unchanged."""
    if pa.types.is_dictionary(data_type):
        data_type = data_type.value_type
    is_text = pa.types.is_string(data_type) or pa.types.is_large_string(data_type) or pa.types.is_string_view(data_type)
    return pa.large_string() if is_text else data_type


def unify_schemas(
    schemas: Iterable[tuple[str, pa.Schema]],
    text_column: str,
    id_column: str,
    source_column: str,
    *,
    keep_ours: bool = False,
    structured: bool = False,
) -> pa.Schema:
    """One schema by column name; raises InputError for conflicts, columns of a type that cannot serve, our own
    names.

    keep_ours: an earlier run's `OUR_FIELDS` are read, not left out · structured: the text column may be of any type.
    """
    unified: dict[str, tuple[pa.DataType, str]] = {}
    for path, schema in schemas:
        if text_column not in schema.names:
            columns = ", ".join(f"{field.name} ({field.type})" for field in schema)
            raise InputError(f"{path}: no column {text_column!r}; there are: {columns}; choose one with --text-column")
        if len(set(schema.names)) != len(schema.names):
            raise InputError(f"{path}: two columns have the same name")
        for field in schema:
            data_type = normal_type(field.type)
            if field.name in (id_column, source_column) and pa.types.is_nested(data_type):
                flag = "--id-column" if field.name == id_column else "--source-column"
                raise InputError(
                    f"{path}: expected strings or numbers in column {field.name!r}, found {field.type}; "
                    f"choose another with {flag}"
                )
            if field.name == id_column:
                data_type = pa.large_string()
            if field.name == text_column and not structured and not pa.types.is_large_string(data_type):
                raise InputError(
                    f"{path}: expected strings in column {text_column!r}, found {field.type}; choose another with "
                    "--text-column, or decode it first"
                )
            if field in OUR_FIELDS and not keep_ours:
                continue  # the output of an earlier run: this one writes its own
            if field.name in OUR_COLUMNS and field not in OUR_FIELDS:
                raise InputError(f"{path}: column {field.name!r} has a name that the output needs; rename it")
            known = unified.get(field.name)
            if known is None or pa.types.is_null(known[0]):
                unified[field.name] = (data_type, path)
            elif known[0] != data_type and not pa.types.is_null(data_type):
                raise InputError(
                    f"{path}: column {field.name!r} is {data_type}, but {known[0]} in {known[1]}; "
                    "give all shards one type"
                )
    return pa.schema([pa.field(name, data_type) for name, (data_type, _) in unified.items()])


def cut_units(shards: Sequence[Shard], unit_bytes: int) -> list[tuple[Span, ...]]:
    """Consecutive pieces, at most `unit_bytes` each unless a single piece is larger. Shards without rows are left
    out."""
    units: list[tuple[Span, ...]] = []
    spans: list[Span] = []
    filled = 0
    for index, shard in enumerate(shards):
        for number, piece in enumerate(shard.pieces):
            if spans and filled + piece.bytes > unit_bytes:
                units.append(tuple(spans))
                spans, filled = [], 0
            if spans and spans[-1].shard == index:
                spans[-1] = spans[-1]._replace(last=number + 1)
            else:
                spans.append(Span(index, number, number + 1))
            filled += piece.bytes
    if spans:
        units.append(tuple(spans))
    return units


def num_key_ranges(num_entries: int) -> int:
    """Into how many ranges hash keys are split on disk: 4 to 8 million entries each, so that one fits any worker.

    Every range opens every unit's files once, so there should be no more of them than memory asks for.
    """
    return min(4096, 1 << max(0, (num_entries // 8_000_000).bit_length()))


def make_plan(
    inputs: Sequence[str],
    *,
    text_column: str,
    id_column: str,
    source_column: str,
    quality_column: str | None = None,
    unit_bytes: int,
    entries_per_document: int,
    config: dict[str, Any],
    skip_bad: bool,
    keep_ours: bool = False,
    structured: bool = False,
) -> Plan:
    """Look at every input file's metadata and cut the work. Reads no text (JSONL: the first records of each file)."""
    files = find_files(inputs)
    paths = relative_paths([file.uri for file in files])
    ordered = sorted(zip(paths, files, strict=True))
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda item: _try_inspect(item[1], item[0], text_column, skip_bad), ordered))
    bad = [(path, result) for (path, _), result in zip(ordered, results, strict=True) if isinstance(result, str)]
    if bad and not skip_bad:
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        raise InputError(f"{bad[0][1]}{more}; repair or remove it, or go on without it with --skip-bad-units")
    good = [result for result in results if not isinstance(result, str)]
    if not good:
        raise InputError(f"{bad[0][1]}; no readable shard is left")
    shards = tuple(shard for shard, _ in good)
    fields = [(name, pa.large_string()) for name in (text_column, id_column, source_column, EXTRA_COLUMN)]
    if quality_column:
        fields.append((quality_column, pa.float64()))
    jsonl_schema = pa.schema(fields)
    named = [(shard.path, jsonl_schema if schema is None else schema) for shard, schema in good]
    # 1 document per kB where metadata does not tell.
    rows = sum(piece.rows if piece.rows >= 0 else piece.bytes // 1000 for shard in shards for piece in shard.pieces)
    return Plan(
        shards=shards,
        units=tuple(cut_units(shards, unit_bytes)),
        schema=unify_schemas(named, text_column, id_column, source_column, keep_ours=keep_ours, structured=structured),
        config=config,
        num_ranges=num_key_ranges(rows * entries_per_document),
        unreadable=tuple((path, reason) for path, reason in bad),
    )


def _try_inspect(found: _Found, path: str, text_column: str, skip_bad: bool) -> tuple[Shard, pa.Schema | None] | str:
    from taojin.core.reading import check_jsonl_head

    try:
        shard, schema = inspect_shard(found, path)
    except InputError as error:
        return str(error)
    if shard.format == "jsonl" and shard.size:
        damage = check_jsonl_head(shard, text_column)
        if damage and not skip_bad:
            return f"{path}: {damage}"
    return shard, schema
