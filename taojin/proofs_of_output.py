"""Proofs from OUT alone: its manifest, its files, its columns, and that every document is accounted for.

Cost: every byte of OUT once for its checksum, and the three columns that are ours once more.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from taojin.core.corpus import OUR_FIELDS
from taojin.core.errors import InvariantError
from taojin.core.storage import FileEntry, Folder, first_line
from taojin.frozen import MARKER
from taojin.pipeline import MANIFEST
from taojin.proofs import BrokenError
from taojin.report import number

DUPLICATES = ("exact_duplicate", "folded_duplicate", "near_duplicate")


def read_manifest(output: Folder) -> tuple[dict[str, Any], str]:
    if not output.exists(MANIFEST):
        raise BrokenError(
            output.child(MANIFEST).uri,
            "not there: the run did not end; the same command resumes it",
        )
    manifest = output.read_json(MANIFEST)
    counts = manifest["counts"]
    for key in ("documents", "kept", "removed"):
        counts[key]
    for entry in manifest["parts"]:
        FileEntry(**entry)
    detail = f"written by taojin {manifest['taojin']}: {counts['documents']:,} documents in, {counts['kept']:,} kept"
    return manifest, detail


def prove_files(output: Folder, manifest: dict[str, Any]) -> tuple[bool, str]:
    """Every part stands with its size and checksum, and nothing else lies in OUT."""
    entries = [FileEntry(**entry) for entry in manifest["parts"]]
    for entry in entries:
        require(output, entry)
    foreign = set(output.names()) - {entry.name for entry in entries} - {MANIFEST, MARKER}
    if foreign:
        names = ", ".join(sorted(foreign)[:3])
        raise BrokenError(
            output.child(min(foreign)).uri,
            f"lies there without being a part ({len(foreign)} such: {names}); take it away",
        )
    size = sum(entry.bytes for entry in entries)
    return True, f"{number(len(entries), 'part')}, {size:,} bytes: sizes and XXH3 checksums; nothing else lies there"


def require(folder: Folder, entry: FileEntry) -> None:
    try:
        folder.require(entry, checksum=True)
    except InvariantError as error:
        detail = str(error).removeprefix(f"{folder.uri}/{entry.name}: ")
        raise BrokenError(folder.child(entry.name).uri, detail) from None


class Rows(NamedTuple):
    """What the parts hold; in_favour: Σ (cluster_size − 1)."""

    rows: int
    in_favour: int


def prove_columns(output: Folder, manifest: dict[str, Any]) -> tuple[Rows, str]:
    """Readable Parquet with one schema that ends in our columns; clusters ascend strictly across parts."""
    schema: pa.Schema | None = None
    last = -1
    total = in_favour = 0
    for entry in manifest["parts"]:
        where = output.child(entry["name"]).uri
        with reading(output, entry["name"]) as parquet:
            schema = _require_schema(parquet.schema_arrow, schema, where)
            if parquet.metadata.num_rows != entry["rows"]:
                raise BrokenError(where, f"expected {entry['rows']:,} rows, found {parquet.metadata.num_rows:,}")
            for group in range(parquet.num_row_groups):
                cluster, size, component = our_columns(parquet, group, where)
                if not len(cluster):
                    continue
                steps = np.diff(cluster, prepend=last)
                if (steps <= 0).any():
                    row = int(np.argmax(steps <= 0))
                    before = int(cluster[row - 1]) if row else last
                    raise BrokenError(where, f"cluster {int(cluster[row])} comes after {before}: rows are out of order")
                if (size < 1).any() or (component > cluster).any() or (component < 0).any():
                    raise BrokenError(
                        where, "a cluster_size below 1, or a component that is not the first of its members"
                    )
                last = int(cluster[-1])
                total += len(cluster)
                in_favour += int(size.sum(dtype=np.int64)) - len(cluster)
    columns = ", ".join(field.name for field in OUR_FIELDS)
    return Rows(total, in_favour), f"{total:,} rows end with {columns}; cluster ascends through all parts"


@contextmanager
def reading(folder: Folder, name: str) -> Iterator[Any]:
    """A Parquet file, open for the length of a `with`; what goes wrong there names the file."""
    where = folder.child(name).uri
    filesystem, _ = folder.resolve()
    try:
        with filesystem.open_input_file(folder.path(name)) as file:
            yield pq.ParquetFile(file)
    except FileNotFoundError:
        raise BrokenError(where, "no such file") from None
    except (pa.ArrowException, OSError) as error:
        raise BrokenError(where, f"not readable as Parquet: {first_line(error)}") from None


def _require_schema(found: pa.Schema, expected: pa.Schema | None, where: str) -> pa.Schema:
    ours = [(field.name, field.type) for field in OUR_FIELDS]
    last = [(field.name, field.type) for field in list(found)[-len(ours) :]]
    if last != ours:
        names = ", ".join(name for name, _ in last)
        raise BrokenError(
            where, f"expected the last columns to be {', '.join(name for name, _ in ours)}, found {names}"
        )
    if expected is not None and not found.equals(expected):
        raise BrokenError(where, "its columns are not those of the parts before it")
    return found


def our_columns(parquet: Any, group: int, where: str) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    table = parquet.read_row_group(group, columns=[field.name for field in OUR_FIELDS])
    if any(column.null_count for column in table.columns):
        raise BrokenError(where, "nulls in cluster, cluster_size or component")
    cluster, size, component = (column.to_numpy() for column in table.columns)
    return cluster, size, component


def prove_conservation(manifest: dict[str, Any], rows: Rows | None) -> tuple[bool, str]:
    """in = kept + Σ removed; rows = kept; Σ (cluster_size − 1) = duplicates, as far as OUT alone tells."""
    counts, config = manifest["counts"], manifest["config"]
    documents, kept, removed = counts["documents"], counts["kept"], sum(counts["removed"].values())
    if documents != kept + removed:
        raise BrokenError(
            MANIFEST, f"{documents:,} in, {kept:,} kept and {removed:,} removed: some are unaccounted for"
        )
    listed = sum(entry["rows"] for entry in manifest["parts"])
    if listed != kept:
        raise BrokenError(MANIFEST, f"{kept:,} documents were to stay, its parts list {listed:,} rows")
    text = f"{documents:,} in = {kept:,} kept + {removed:,} removed"
    if rows is None:
        return True, f"{text} (by the manifest alone)"
    if rows.rows != kept:
        raise BrokenError(MANIFEST, f"{kept:,} documents were to stay, {rows.rows:,} rows are there")
    duplicates = num_duplicates(manifest)
    if config.get("keep_none"):
        if rows.in_favour:
            raise BrokenError(
                MANIFEST, f"--keep-none, and yet {rows.in_favour:,} documents went in favour of one that stays"
            )
        return True, f"{text}; no cluster has more than its own document (--keep-none)"
    if config.get("against"):
        if rows.in_favour > duplicates:
            raise BrokenError(
                MANIFEST, f"Σ(cluster_size − 1) is {rows.in_favour:,}, above the {duplicates:,} duplicates"
            )
        return True, f"{text}; Σ(cluster_size − 1) = {rows.in_favour:,} of {duplicates:,} duplicates"
    if rows.in_favour != duplicates:
        raise BrokenError(MANIFEST, f"Σ(cluster_size − 1) is {rows.in_favour:,}, duplicates removed are {duplicates:,}")
    return True, f"{text}; Σ(cluster_size − 1) = {duplicates:,} duplicates"


def num_duplicates(manifest: dict[str, Any]) -> int:
    return sum(manifest["counts"]["removed"].get(reason, 0) for reason in DUPLICATES)
