"""The engine's own steps, timed on a few MB of a corpus: what `taojin plan` reckons with.

In: a plan and the text itself at places spread over the corpus. Out: a `Sample`; nothing is written.
Cost: SAMPLE_SECONDS at most, beyond the first place; one batch of text in memory.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from taojin.core.corpus import Piece, Plan, Shard, Span
from taojin.core.reading import Batch, iter_lines, read_unit
from taojin.core.status import EMPTY, SKETCHED
from taojin.core.storage import resolve
from taojin.core.text import text_buffers
from taojin.core.write import ZSTD_LEVEL
from taojin.dedup.bands import band_keys
from taojin.dedup.config import DedupConfig
from taojin.dedup.exact import exact_hashes
from taojin.dedup.pairs import buckets
from taojin.dedup.sketch import sketch_array
from taojin.quality.config import QualityConfig

SAMPLE_SECONDS = 6.0
SAMPLE_PLACES = 12
JSONL_PLACE_BYTES = 4_000_000
COUNT_PLACES, COUNT_BYTES = 64, 250_000  # where the lines of JSONL are counted
SORT_ENTRIES = 1_000_000


class Sample(NamedTuple):
    """Measured on a sample. seconds: CPU by what was done, for `text_bytes` of text; ratios are per sampled byte."""

    documents: int
    text_bytes: int
    places: int
    seconds: dict[str, float]
    text_share: float  # text ÷ bytes of all columns, as the plan counts them
    jsonl_line_bytes: float
    keys_per_document: float
    name_bytes: float  # id and source, per document
    zstd_bytes: float  # compressed ÷ text
    shingles_per_document: float
    longest: int
    stopped: bool


def measure(plan: Plan, config: DedupConfig, sample_mb: float) -> Sample:
    """Time the engine's own steps on text from up to SAMPLE_PLACES pieces, the first rows of each."""
    places = spread_places(plan, SAMPLE_PLACES)
    wanted_bytes = sample_mb * 1e6 / max(1, len(places))
    columns = {"read": config.reading.names_in(plan.schema.names)}
    if not config.report_only:
        columns["reread"] = plan.schema.names
    seconds = dict.fromkeys(("read", "scan", "signals", "reread", "write"), 0.0)
    read_bytes: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    longest = seen = 0
    shares: list[tuple[float, int]] = []
    densities: list[float] = []
    _warm_up(config)
    measurer = _measurer(config)
    started = time.monotonic()
    for shard, piece, weight in places:
        if seen and time.monotonic() - started > SAMPLE_SECONDS:
            break
        part_plan = plan._replace(shards=(shard._replace(pieces=(piece,)),))
        batches: dict[str, Batch | None] = {}
        for what, names in columns.items():
            with _timed(seconds, what):
                batches[what] = read = _first_batch(part_plan, names, config)
            read_bytes[what] += _text_bytes(read, config) if read else 0
        batch = batches["read"]
        if batch is None or not batch.rows.num_rows:
            continue
        seen += 1
        if shard.format == "jsonl":
            count, total = _line_bytes(shard, piece, batch.rows.num_rows, config)
            densities.append(count / max(1, total))
            share = _text_bytes(batch, config) / batch.rows.num_rows * densities[-1]
        else:
            share = _text_share(shard, piece, config.text_column)
        shares.append((share * weight, weight))
        rows = _rows_of(batch, config, wanted_bytes)
        part = batch._replace(rows=batch.rows.slice(0, rows), status=batch.status[:rows].copy())
        longest = max(longest, _scan_part(part, config, columns["read"], seconds, totals))
        if measurer is not None:
            with _timed(seconds, "signals"):
                measurer.measure(part.rows.column(config.text_column), part.status)
        if again := batches.get("reread"):
            totals["compressed"] += _write_part(again.rows.slice(0, rows), config, seconds)
    for what in columns:
        seconds[what] *= totals["bytes"] / max(1, read_bytes[what])
    total_weight = sum(weight for _, weight in shares)
    density = line_density(plan) or (sum(densities) / len(densities) if densities else 0.0)
    documents = max(1, totals["documents"])
    return Sample(
        documents=totals["documents"],
        text_bytes=totals["bytes"],
        places=seen,
        seconds=seconds,
        text_share=min(1.0, sum(share for share, _ in shares) / total_weight) if total_weight else 0.0,
        jsonl_line_bytes=1 / density if density else 1000.0,
        keys_per_document=totals["keys"] / documents,
        name_bytes=totals["names"] / documents,
        zstd_bytes=totals["compressed"] / max(1, totals["bytes"]),
        shingles_per_document=totals["shingles"] / documents,
        longest=longest,
        stopped=seen < len(places) and time.monotonic() - started > SAMPLE_SECONDS,
    )


@contextmanager
def _timed(seconds: dict[str, float], what: str) -> Iterator[None]:
    """Add the CPU seconds of the block."""
    before = time.process_time()
    yield
    seconds[what] += time.process_time() - before


def spread_places(plan: Plan, most: int) -> list[tuple[Shard, Piece, int]]:
    """`most` places at even distances through the bytes of the corpus, as pieces, and how many places each stands for.

    A row group and a compressed file are read from their start; plain JSONL from the place itself on.
    """
    pieces = [(shard, piece) for shard in plan.shards for piece in shard.pieces if piece.rows]
    if not pieces:
        return []
    ends = np.cumsum([piece.bytes for _, piece in pieces])
    targets = ((np.arange(most) + 0.5) / most * ends[-1]).astype(np.int64)
    places: list[tuple[Shard, Piece, int]] = []
    number = -1
    for at, target in zip(np.searchsorted(ends, targets, side="right").tolist(), targets.tolist(), strict=True):
        shard, piece = pieces[at]
        if shard.format == "jsonl" and not shard.compression and piece.bytes > most * JSONL_PLACE_BYTES:
            start = target - int(ends[at]) + piece.stop
            stop = min(piece.stop, start + JSONL_PLACE_BYTES)
            places.append((shard, Piece(start, stop, -1, stop - start), 1))
        elif at == number:
            places[-1] = (shard, piece, places[-1][2] + 1)
        else:
            places.append((shard, piece, 1))
        number = at
    return places


def line_density(plan: Plan) -> float:
    """Line ends per byte of plain JSONL, counted at COUNT_PLACES places; 0 where there is none."""
    shards = [shard for shard in plan.shards if shard.format == "jsonl" and not shard.compression and shard.size]
    if not shards:
        return 0.0
    ends = np.cumsum([shard.size for shard in shards])
    targets = (np.arange(COUNT_PLACES) / COUNT_PLACES * ends[-1]).astype(np.int64)
    lines = seen = 0
    for at, target in zip(np.searchsorted(ends, targets, side="right").tolist(), targets.tolist(), strict=True):
        filesystem, path = resolve(shards[at].uri)
        with filesystem.open_input_file(path) as file:
            file.seek(target - int(ends[at]) + shards[at].size)
            block = file.read(COUNT_BYTES)
        lines += block.count(b"\n")
        seen += len(block)
    return lines / seen


def _warm_up(config: DedupConfig) -> None:
    """Load the compiled kernels and the fold table before anything is timed."""
    sketches = sketch_array(pa.array(["热身" * 20, "warm"], pa.large_string()), config)
    keys, rows = np.empty(2 * config.bands, np.uint64), np.empty(2 * config.bands, np.uint32)
    band_keys(sketches.lanes, sketches.status, 0, config.bands, config.rows, keys, rows)


def _measurer(config: DedupConfig) -> Any:
    """What measures quality signals, warmed up; None where none are measured."""
    if not isinstance(config, QualityConfig) or not config.measures:
        return None
    from taojin.quality.scan import Measurer, make_analyzer

    measurer = Measurer(make_analyzer(config))
    measurer.measure(pa.array(["热身" * 20, "warm"], pa.large_string()), np.zeros(2, np.uint8))
    return measurer


def _first_batch(plan: Plan, names: Sequence[str], config: DedupConfig) -> Batch | None:
    """The first rows of a plan of one piece."""
    return next(read_unit(plan, [Span(0, 0, 1)], names, config.reading), None)


def _text_bytes(batch: Batch, config: DedupConfig) -> int:
    offsets = text_buffers(batch.rows.column(config.text_column))[1]
    return int(offsets[-1] - offsets[0])


def _text_share(shard: Shard, piece: Piece, text_column: str) -> float:
    """Text ÷ all columns of a row group, uncompressed, by its metadata; a length goes before every value."""
    filesystem, path = resolve(shard.uri)
    with filesystem.open_input_file(path) as file:
        group = pq.ParquetFile(file).metadata.row_group(piece.start)
        chunks = [group.column(i) for i in range(group.num_columns)]
        text = sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema == text_column)
        return float(max(0, text - 4 * piece.rows) / max(1, piece.bytes))


def _rows_of(batch: Batch, config: DedupConfig, wanted_bytes: float) -> int:
    """How many first rows make up the wanted bytes of text; at least one."""
    offsets = text_buffers(batch.rows.column(config.text_column))[1]
    rows = int(np.searchsorted(offsets, offsets[0] + wanted_bytes, side="right"))
    return max(1, min(batch.rows.num_rows, rows))


def _line_bytes(shard: Shard, piece: Piece, rows: int, config: DedupConfig) -> tuple[int, int]:
    """(lines, their bytes) of the first lines of a JSONL piece."""
    count = size = 0
    for line in iter_lines(shard, piece, 2 * config.reading.max_document_bytes + (1 << 20)):
        count += 1
        size += len(line or b"") + 1
        if count == rows:
            break
    return count, size


def _scan_part(
    batch: Batch, config: DedupConfig, names: Sequence[str], seconds: dict[str, float], totals: Counter[str]
) -> int:
    """What the scan does with a batch, but for committing its files; returns the bytes of the longest text."""
    texts = batch.rows.column(config.text_column)
    with _timed(seconds, "scan"):
        sketches = sketch_array(texts, config, batch.status)
        exact_hashes(texts)
        size = len(texts) * config.bands
        keys, rows = np.empty(size, np.uint64), np.empty(size, np.uint32)
        num_keys = band_keys(sketches.lanes, sketches.status, 0, config.bands, config.rows, keys, rows)
    lengths = np.diff(text_buffers(texts)[1])
    named = [name for name in (config.id_column, config.source_column) if name in names]
    totals["documents"] += len(texts)
    totals["bytes"] += int(lengths.sum())
    totals["keys"] += int(num_keys) + int((sketches.status < EMPTY).sum())
    totals["keys"] += len(texts) if config.id_column in named else 0
    totals["shingles"] += int(sketches.num_shingles[sketches.status == SKETCHED].sum(dtype=np.int64))
    totals["names"] += sum(int(np.diff(text_buffers(batch.rows.column(name))[1]).sum()) + 4 for name in named)
    return int(lengths.max(initial=0))


def _write_part(rows: pa.RecordBatch, config: DedupConfig, seconds: dict[str, float]) -> int:
    """Compressed size of rows as the write stage would write them, into memory."""
    repetitive = [name for name in rows.schema.names if name not in (config.text_column, config.id_column)]
    sink = pa.BufferOutputStream()
    with _timed(seconds, "write"):
        pq.write_table(
            pa.Table.from_batches([rows]),
            sink,
            compression="zstd",
            compression_level=ZSTD_LEVEL,
            use_dictionary=repetitive,
            write_statistics=repetitive,
        )
    return int(sink.getvalue().size)


def sort_seconds_per_entry() -> float:
    """CPU seconds that grouping one key costs on this machine, at SORT_ENTRIES keys."""
    keys = np.random.default_rng(0).integers(0, 1 << 63, SORT_ENTRIES, np.uint64)
    ordinals = np.arange(SORT_ENTRIES)
    before = time.process_time()
    buckets(keys, ordinals)
    return (time.process_time() - before) / SORT_ENTRIES
