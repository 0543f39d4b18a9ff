"""What `taojin tokenize` and `taojin merge` wrote down of a pair, on any storage; others' have none.

PREFIX.parquet says where each document is from. PREFIX.manifest.json is of all pairs of an output: that of zh_train is
zh.manifest.json, so that finding it costs a look at each name it can have, from the longest on. What its values mean is
`taojin.tokenizing`'s.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from taojin.core.errors import InputError
from taojin.core.storage import Folder, resolve
from taojin.core.uris import split_query, with_suffix

MANIFEST = ".manifest.json"
# Columns of PREFIX.parquet that say where a document is from.
ORIGIN = ("shard", "row", "id", "source")


class Recorded(NamedTuple):
    """manifest: JSON, whole · entry: the one of its `pairs` that is asked for."""

    manifest: dict[str, Any]
    entry: dict[str, Any]

    @property
    def eod(self) -> int | None:
        """The tokenizer's end-of-document token; None where it has none, or nobody knows."""
        eod: int | None = (self.manifest.get("tokenizer") or {}).get("eod")
        return eod

    @property
    def ends_by_template(self) -> bool:
        """Conversations to which nothing was appended: they end as their template has it."""
        return bool((self.manifest.get("config") or {}).get("chat")) and not self.manifest.get("append_eod")

    def ranges(self, kind: str) -> list[tuple[int, str]]:
        """(bytes, XXH3-64) of the parts of a file, one after another; [] if unknown. kind: bin, idx, mask_bin, …"""
        file = self.entry["files"].get(kind)
        if file is None:
            return []
        if file["xxh3"]:
            return [(file["bytes"], file["xxh3"])]
        parts = self.entry.get("ranges" if kind == "bin" else "mask_ranges") or []
        return [(size, checksum) for size, checksum in parts]


def recorded(prefix: str) -> Recorded | None:
    """Of the pair PREFIX, a path or a URI; None where nothing is. Raises InputError for a damaged manifest."""
    path, query = split_query(prefix)
    parent, _, stem = path.rpartition("/")
    folder = Folder((parent or ("/" if path.startswith("/") else ".")) + query)
    for end in [len(stem), *(place for place in range(len(stem) - 1, 0, -1) if stem[place] == "_")]:
        name = f"{stem[:end]}{MANIFEST}"
        try:
            manifest = folder.read_json(name)
            entries = [entry for entry in manifest["pairs"] if entry["name"] == stem]
            if entries and entries[0]["files"]:
                return Recorded(manifest, entries[0])
        except FileNotFoundError:
            continue
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{folder.uri}/{name}: expected the manifest of {stem}, as taojin tokenize writes it, "
                             "found another file: remove it, or tokenize again") from None  # fmt: skip
    return None


def origins_of(prefix: str, documents: Sequence[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(document, its row of PREFIX.parquet) of documents in ascending order; nothing where there is no such file."""
    filesystem, path = resolve(with_suffix(prefix, ".parquet"))
    try:
        local = Folder(prefix).is_local
        file = pq.ParquetFile(pa.memory_map(path) if local else filesystem.open_input_file(path))
    except FileNotFoundError:
        return
    with file:
        columns = [name for name in ORIGIN if name in file.schema_arrow.names]
        group, first, end = -1, 0, 0
        rows: pa.Table | None = None
        for document in documents:
            if document >= file.metadata.num_rows:
                raise InputError(
                    f"{path}: expected a row for document {document:,}, found {file.metadata.num_rows:,} rows: it is "
                    "of another pair"
                )
            while document >= end:
                group, first = group + 1, end
                end += file.metadata.row_group(group).num_rows
                rows = None
            if rows is None:
                rows = file.read_row_group(group, columns=columns)
            yield document, rows.slice(document - first, 1).to_pylist()[0]
