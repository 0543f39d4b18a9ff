"""What a run would take, before it runs: `taojin plan --input PATH… [the flags of taojin dedup]`.

In: every shard's metadata, and a few MB of the text itself, taken from places spread over the corpus, on which the
engine's own readers, kernels and writer are timed. So MB per CPU-second is this machine's and this text's.
Out: stdout. Nothing is written, no --output is needed. Cost: one look at every footer, then SAMPLE_SECONDS at most.

What is known (Parquet rows, bytes), what is measured and what is assumed is said beside each number.
"""

import os
import sys
import time
from math import ceil, comb, erf, sqrt
from textwrap import wrap
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, model_validator
from tyro.conf import arg

from taojin.core.corpus import COMPRESSED_RATIO, Piece, Plan, Shard, Span, make_plan
from taojin.core.progress import duration
from taojin.core.reading import BATCH_BYTES, Batch, iter_lines, read_unit
from taojin.core.status import EMPTY, SKETCHED
from taojin.core.storage import resolve
from taojin.core.text import SYMBOLS_PER_BYTE
from taojin.dedup.bands import RUN_ENTRIES, band_keys
from taojin.dedup.config import DedupConfig
from taojin.dedup.exact import EXACT_BYTES, exact_hashes
from taojin.dedup.pairs import BLOCK_DOCUMENTS, accept_at, buckets
from taojin.dedup.scan import columns_of
from taojin.dedup.sketch import sketch_array, sketch_words, standard_error, text_buffers
from taojin.dedup.write import ZSTD_LEVEL
from taojin.pipeline import check_columns

SAMPLE_SECONDS = 6.0
SAMPLE_PLACES = 12
JSONL_PLACE_BYTES = 4_000_000
COUNT_PLACES, COUNT_BYTES = 64, 250_000  # where the lines of JSONL are counted
SORT_ENTRIES = 1_000_000
KEY_BYTES = 12  # key uint64 + row uint32

# Measured on this repository's dev corpus (2026-11-30, 75,472 documents): what cannot be timed on a sample.
DECIDE_SECONDS_PER_DOCUMENT = 8e-6  # gather, compare, judge, decisions, ledger; the sort of the keys is timed
DECIDE_BYTES_PER_DOCUMENT = 45  # decisions, pairs, verdicts; the ledger with 10 % removed
BASE_PROCESS_BYTES = 300_000_000  # Python with pyarrow, numba and the fold table
RAY_START_CPU_SECONDS, RAY_START_SECONDS = 12.0, 5.0
LOCAL_START_SECONDS = 2.0
# Assumed where only the whole run can tell.
SHARE_WITH_A_DUPLICATE = 0.2
DRIVER_BYTES_PER_DUPLICATE = 100

CURVE = tuple(round(0.5 + 0.05 * step, 2) for step in range(11))
POOR_RECALL = 0.95
GOOD_RECALL = 0.99
LINE_WIDTH = 80
MANY_PROPOSED = 0.5  # share of pairs of similarity 0.5 that a layout may propose without a warning


class PlanConfig(DedupConfig):
    """What a run would take: documents, units, memory, disk, time, money, and the LSH curve. Flags as in dedup."""

    num_cpus: Annotated[int | None, Field(ge=0)] = None
    """CPUs to reckon with (default: those of this machine)"""
    price_per_cpu_hour: Annotated[float | None, Field(ge=0)] = None
    """price of one CPU for one hour, in --currency"""
    currency: str = "CNY"
    """of --price-per-cpu-hour"""
    sample_mb: Annotated[float, Field(gt=0, le=1000)] = 8
    """MB of text to measure on"""
    as_json: Annotated[bool, arg(name="json")] = False
    """one JSON object on stdout"""

    @model_validator(mode="after")
    def _check_run(self) -> Self:
        """Takes the place of DedupConfig's: a plan writes nothing, --output may be left out."""
        return self


class Sample(NamedTuple):
    """Measured on a sample. seconds: CPU by what was done, for `text_bytes` of text; ratios are per sampled byte."""

    documents: int
    text_bytes: int
    read_bytes: int
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


class Pair(NamedTuple):
    """A row of the LSH curve: probability that a pair of this similarity is proposed, and that it is also accepted."""

    similarity: float
    proposed: float
    accepted: float


def run_plan(config: PlanConfig) -> int:
    """Print the plan; returns 0. Raises InputError and ConfigError as `taojin dedup` would."""
    value = plan_values(config)
    if config.as_json:
        import orjson

        sys.stdout.write(orjson.dumps(value).decode() + "\n")
    else:
        print("\n".join(plan_lines(value)))
    return 0


# ---------------------------------------------------------------------------------------------- the LSH curve


def proposed(similarity: float, bands: int, rows: int) -> float:
    """Probability that two documents share a band: 1 − (1 − s^r)^b (Leskovec, Mining of Massive Datasets, 3.4)."""
    return float(1 - (1 - similarity**rows) ** bands)


def effective_threshold(bands: int, rows: int) -> float:
    """(1/b)^(1/r): the similarity at which the curve is about steepest."""
    return float((1 / bands) ** (1 / rows))


def accepted(similarity: float, config: DedupConfig) -> float:
    """Probability that a pair is proposed and verified.

    `fast`: lanes propose and bins estimate, as if independent; the estimate is normal with the sketch's standard error.
    `datasketch`: the K lanes do both; with a of them agreeing, wherever they lie, no band is whole with probability
    Σ_j (−1)^j C(b, j) C(K − jr, a − jr) / C(K, a).
    """
    if config.verify == "exact" and similarity < config.threshold:
        return 0.0
    least = accept_at(config)[0]
    num_hashes, bands, rows = config.num_hashes, config.bands, config.rows
    if config.sketch == "fast":
        error = max(standard_error(similarity, config), 1e-9)
        return proposed(similarity, bands, rows) * 0.5 * (1 + erf((similarity - least) / error / sqrt(2)))
    total = 0.0
    for agreeing in range(ceil(least * num_hashes - 1e-9), num_hashes + 1):
        ways = comb(num_hashes, agreeing)
        chance = ways * similarity**agreeing * (1 - similarity) ** (num_hashes - agreeing)
        none_whole = sum(
            (-1) ** j * comb(bands, j) * comb(num_hashes - j * rows, agreeing - j * rows)
            for j in range(min(bands, agreeing // rows) + 1)
        )
        total += chance * (1 - none_whole / ways)
    return min(1.0, total)


def lsh_curve(config: DedupConfig) -> list[Pair]:
    return [Pair(s, proposed(s, config.bands, config.rows), accepted(s, config)) for s in CURVE]


def layout_warnings(config: DedupConfig) -> list[str]:
    """What is wrong with bands × rows for this threshold, and a layout that is better."""
    bands, rows, threshold = config.bands, config.rows, config.threshold
    warnings = []
    recall = proposed(threshold, bands, rows)
    better = suggested_layout(config)
    hint = f"; --bands {better[0]} --rows {better[1]} proposes {proposed(threshold, *better):.1%}" if better else ""
    if recall < POOR_RECALL:
        warnings.append(
            f"{bands} bands × {rows} rows propose only {recall:.1%} of the pairs at the threshold {threshold:g}: the "
            f"others are never compared. More bands or fewer rows find more{hint}"
        )
    low = proposed(0.5, bands, rows)
    if threshold > 0.6 and low > MANY_PROPOSED:
        warnings.append(
            f"{bands} bands × {rows} rows propose {low:.0%} of the pairs at similarity 0.5, all to be compared: slow "
            f"on templates. Fewer bands or more rows propose fewer{hint}"
        )
    return warnings


def suggested_layout(config: DedupConfig) -> tuple[int, int] | None:
    """(bands, rows) within num_hashes: the strictest rows that still propose GOOD_RECALL at the threshold."""
    for rows in range(min(64, config.num_hashes), 0, -1):
        most = min(1024, config.num_hashes // rows)
        if proposed(config.threshold, most, rows) >= GOOD_RECALL:
            fewest = next(b for b in range(1, most + 1) if proposed(config.threshold, b, rows) >= GOOD_RECALL)
            return None if (fewest, rows) == (config.bands, config.rows) else (fewest, rows)
    return None


# ---------------------------------------------------------------------------------------------- measuring


def measure(plan: Plan, config: PlanConfig) -> Sample:
    """Time the engine's own steps on text from up to SAMPLE_PLACES pieces, the first rows of each."""
    places = spread_places(plan, SAMPLE_PLACES)
    wanted_bytes = config.sample_mb * 1e6 / max(1, len(places))
    scanned = (config.text_column, config.id_column, config.source_column, config.quality_column)
    scan_names = [name for name in scanned if name and name in plan.schema.names]
    seconds = dict.fromkeys(("read", "scan", "reread", "write"), 0.0)
    read_bytes = {"read": 0, "reread": 0}
    documents = text_bytes = keys = names = compressed = shingles = longest = seen = 0
    shares: list[tuple[float, int]] = []
    densities: list[float] = []
    _warm_up(config)
    started = time.monotonic()
    for shard, piece, weight in places:
        if seen and time.monotonic() - started > SAMPLE_SECONDS:
            break
        part_plan = plan._replace(shards=(shard._replace(pieces=(piece,)),))
        batches: dict[str, Batch | None] = {}
        for what, columns in (("read", scan_names), ("reread", plan.schema.names)):
            before = time.process_time()
            batches[what] = read = _first_batch(part_plan, columns, config)
            seconds[what] += time.process_time() - before
            read_bytes[what] += _text_bytes(read, config) if read else 0
        batch = batches["read"]
        if batch is None or not batch.rows.num_rows:
            continue
        seen += 1
        if shard.format == "jsonl":
            count, total = _line_bytes(shard, piece, batch.rows.num_rows, config)
            densities.append(count / max(1, total))
            share = _text_bytes(batch, config) / batch.rows.num_rows * count / max(1, total)
        else:
            share = _text_share(shard, piece, config.text_column)
        shares.append((share * weight, weight))
        rows = _rows_of(batch, config, wanted_bytes)
        part = Batch(batch.shard, batch.piece, batch.rows.slice(0, rows), batch.status[:rows].copy())
        counted = _scan_part(part, config, scan_names, seconds)
        documents += rows
        text_bytes += counted["bytes"]
        keys += counted["keys"]
        shingles += counted["shingles"]
        longest = max(longest, counted["longest"])
        names += counted["names"]
        again = batches["reread"]
        if again is not None and not config.report_only:
            compressed += _write_part(again.rows.slice(0, rows), config, seconds)
    for what in ("read", "reread"):
        seconds[what] *= text_bytes / max(1, read_bytes[what])
    if config.report_only:
        seconds["reread"] = seconds["write"] = 0.0
    total_weight = sum(weight for _, weight in shares)
    density = line_density(plan) or (sum(densities) / len(densities) if densities else 0.0)
    return Sample(
        documents=documents,
        text_bytes=text_bytes,
        read_bytes=read_bytes["read"],
        places=seen,
        seconds=seconds,
        text_share=min(1.0, sum(share for share, _ in shares) / total_weight) if total_weight else 0.0,
        jsonl_line_bytes=1 / density if density else 1000.0,
        keys_per_document=keys / max(1, documents),
        name_bytes=names / max(1, documents),
        zstd_bytes=compressed / max(1, text_bytes),
        shingles_per_document=shingles / max(1, documents),
        longest=longest,
        stopped=seen < len(places) and time.monotonic() - started > SAMPLE_SECONDS,
    )


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


def _warm_up(config: PlanConfig) -> None:
    """Load the compiled kernels and the fold table before anything is timed."""
    sketches = sketch_array(pa.array(["热身" * 20, "warm"], pa.large_string()), config)
    keys, rows = np.empty(2 * config.bands, np.uint64), np.empty(2 * config.bands, np.uint32)
    band_keys(sketches.lanes, sketches.status, 0, config.bands, config.rows, keys, rows)


def _first_batch(plan: Plan, names: list[str], config: PlanConfig) -> Batch | None:
    """The first rows of a plan of one piece."""
    batches = read_unit(
        plan, [Span(0, 0, 1)], names, columns_of(config), config.max_document_bytes, skip_bad=config.skip_bad_units
    )
    return next(batches, None)


def _text_bytes(batch: Batch, config: PlanConfig) -> int:
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


def _rows_of(batch: Batch, config: PlanConfig, wanted_bytes: float) -> int:
    """How many first rows make up the wanted bytes of text; at least one."""
    offsets = text_buffers(batch.rows.column(config.text_column))[1]
    rows = int(np.searchsorted(offsets, offsets[0] + wanted_bytes, side="right"))
    return max(1, min(batch.rows.num_rows, rows))


def _line_bytes(shard: Shard, piece: Piece, rows: int, config: PlanConfig) -> tuple[int, int]:
    """(lines, their bytes) of the first lines of a JSONL piece."""
    count = size = 0
    for line in iter_lines(shard, piece, 2 * config.max_document_bytes + (1 << 20)):
        count += 1
        size += len(line or b"") + 1
        if count == rows:
            break
    return count, size


def _scan_part(batch: Batch, config: PlanConfig, names: list[str], seconds: dict[str, float]) -> dict[str, int]:
    """What the scan does with a batch, but for committing its files."""
    texts = batch.rows.column(config.text_column)
    before = time.process_time()
    sketches = sketch_array(texts, config, batch.status)
    exact_hashes(texts)
    size = len(texts) * config.bands
    keys, rows = np.empty(size, np.uint64), np.empty(size, np.uint32)
    count = band_keys(sketches.lanes, sketches.status, 0, config.bands, config.rows, keys, rows)
    seconds["scan"] += time.process_time() - before
    lengths = np.diff(text_buffers(texts)[1])
    return {
        "bytes": int(lengths.sum()),
        "longest": int(lengths.max(initial=0)),
        "keys": int(count) + int((sketches.status < EMPTY).sum()) + (len(texts) if config.id_column in names else 0),
        "shingles": int(sketches.num_shingles[sketches.status == SKETCHED].sum(dtype=np.int64)),
        "names": sum(
            int(np.diff(text_buffers(batch.rows.column(name))[1]).sum()) + 4
            for name in (config.id_column, config.source_column)
            if name in names
        ),
    }


def _write_part(rows: pa.RecordBatch, config: PlanConfig, seconds: dict[str, float]) -> int:
    """Compressed size of rows as the write stage would write them, into memory."""
    repetitive = [name for name in rows.schema.names if name not in (config.text_column, config.id_column)]
    sink = pa.BufferOutputStream()
    before = time.process_time()
    pq.write_table(
        pa.Table.from_batches([rows]),
        sink,
        compression="zstd",
        compression_level=ZSTD_LEVEL,
        use_dictionary=repetitive,
        write_statistics=repetitive,
    )
    seconds["write"] += time.process_time() - before
    return int(sink.getvalue().size)


def sort_seconds_per_entry() -> float:
    """CPU seconds that grouping one key costs on this machine, at SORT_ENTRIES keys."""
    keys = np.random.default_rng(0).integers(0, 1 << 63, SORT_ENTRIES, np.uint64)
    ordinals = np.arange(SORT_ENTRIES)
    before = time.process_time()
    buckets(keys, ordinals)
    return (time.process_time() - before) / SORT_ENTRIES


# ---------------------------------------------------------------------------------------------- the plan


def plan_values(config: PlanConfig) -> dict[str, Any]:
    """Everything `taojin plan` knows, as plain values; bytes, CPU seconds, seconds."""
    plan = make_plan(
        config.input,
        text_column=config.text_column,
        id_column=config.id_column,
        source_column=config.source_column,
        unit_bytes=int(config.unit_mb * 1e6),
        entries_per_document=config.bands + 1,
        config=config.scan_part(),
        skip_bad=config.skip_bad_units,
    )
    check_columns(config, plan)
    sample = measure(plan, config)
    known = sum(piece.rows for shard in plan.shards for piece in shard.pieces if piece.rows >= 0)
    guessed_bytes = sum(piece.bytes for shard in plan.shards for piece in shard.pieces if piece.rows < 0)
    documents = known + round(guessed_bytes / sample.jsonl_line_bytes)
    text_bytes = round(plan.total_bytes * sample.text_share)
    num_cpus = config.num_cpus if config.num_cpus is not None else os.cpu_count() or 1
    entries = documents * sample.keys_per_document
    unit_bytes = [sum(_span_bytes(plan, span) for span in unit) for unit in plan.units]
    largest_unit = max(unit_bytes, default=0) / max(1, plan.total_bytes)
    cpu = cpu_seconds(config, sample, documents, text_bytes, entries)
    wall = wall_seconds(cpu, max(1, num_cpus), len(plan.units), largest_unit, plan.num_ranges, ray=num_cpus > 0)
    return {
        "shards": len(plan.shards),
        "unreadable_shards": len(plan.unreadable),
        "units": len(plan.units),
        "largest_unit_bytes": max(unit_bytes, default=0),
        "key_ranges": plan.num_ranges,
        "documents": documents,
        "documents_are_known": not guessed_bytes,
        "disk_bytes": sum(shard.size for shard in plan.shards),
        "column_bytes": plan.total_bytes,
        "text_bytes": text_bytes,
        **disk(config, sample, documents, text_bytes, entries),
        **memory(config, plan, sample, documents, entries, largest_unit),
        "shuffle_bytes": round(entries * KEY_BYTES),
        "cpu_seconds": cpu,
        "cpu_seconds_total": sum(cpu.values()),
        "num_cpus": num_cpus,
        "wall_seconds": wall,
        **_money(config, wall, num_cpus),
        "sample": {
            "documents": sample.documents,
            "text_bytes": sample.text_bytes,
            "places": sample.places,
            "stopped_early": sample.stopped,
            "mb_per_cpu_second": {
                what: sample.text_bytes / 1e6 / value for what, value in sample.seconds.items() if value > 0
            },
        },
        "bands": config.bands,
        "rows": config.rows,
        "num_hashes": config.num_hashes,
        "threshold": config.threshold,
        "verify": config.verify,
        "report_only": config.report_only,
        "effective_threshold": effective_threshold(config.bands, config.rows),
        "curve": [pair._asdict() for pair in lsh_curve(config)],
        "warnings": layout_warnings(config),
        "assumptions": assumptions(config, plan, sample),
    }


def _span_bytes(plan: Plan, span: Span) -> int:
    return sum(piece.bytes for piece in plan.shards[span.shard].pieces[span.first : span.last])


def cpu_seconds(
    config: PlanConfig, sample: Sample, documents: int, text_bytes: int, entries: float
) -> dict[str, float]:
    """CPU seconds by stage, start-up apart."""
    scale = text_bytes / max(1, sample.text_bytes)
    seconds = {what: value * scale for what, value in sample.seconds.items()}
    decide = entries * sort_seconds_per_entry() + documents * DECIDE_SECONDS_PER_DOCUMENT
    stages = {"scan": seconds["read"] + seconds["scan"], "decide": decide}
    if config.verify == "exact":
        stages["settle"] = seconds["read"] + seconds["scan"] * SHARE_WITH_A_DUPLICATE
    if not config.report_only:
        stages["write"] = seconds["reread"] + seconds["write"]
    return stages


def wall_seconds(
    cpu: dict[str, float], num_cpus: int, num_units: int, largest_unit: float, num_ranges: int, *, ray: bool
) -> float:
    """A stage takes as long as its CPUs need, or as its largest task; the start comes first."""
    largest = {"scan": largest_unit, "settle": largest_unit, "write": largest_unit, "decide": 1 / num_ranges}
    tasks = {"scan": num_units, "settle": num_units, "write": num_units, "decide": num_ranges}
    stages = (
        max(seconds / max(1, min(num_cpus, tasks[stage])), seconds * largest[stage]) for stage, seconds in cpu.items()
    )
    return (RAY_START_SECONDS if ray and num_units > 1 else LOCAL_START_SECONDS) + sum(stages)


def disk(config: PlanConfig, sample: Sample, documents: int, text_bytes: int, entries: float) -> dict[str, Any]:
    """Bytes on disk: sidecars, WORK in all, OUT at most."""
    # exact hash, sketch, shingles + chars + bytes (4 each), status, id and source with their offsets
    columns = EXACT_BYTES + 8 * sketch_words(config) + 13 + sample.name_bytes + (8 if config.quality_column else 0)
    per_document = columns + entries / max(1, documents) * KEY_BYTES
    settled = 0.0
    if config.verify == "exact":
        settled = documents * SHARE_WITH_A_DUPLICATE * sample.shingles_per_document * 8
    return {
        "sidecar_bytes_per_document": per_document,
        "sidecar_bytes": round(per_document * documents),
        "work_bytes": round((per_document + DECIDE_BYTES_PER_DOCUMENT) * documents + settled),
        "output_bytes": 0 if config.report_only else round(text_bytes * sample.zstd_bytes),
    }


def memory(
    config: PlanConfig, plan: Plan, sample: Sample, documents: int, entries: float, largest_unit: float
) -> dict[str, Any]:
    """Bytes of the largest task and of the driver, processes included."""
    document = max(sample.longest * (8 * SYMBOLS_PER_BYTE + 2), 0)
    keys = min(RUN_ENTRIES + BATCH_BYTES // 100, entries * largest_unit)
    scan = 3 * BATCH_BYTES + document + keys * KEY_BYTES * 3
    in_range = entries / plan.num_ranges
    held = min(BLOCK_DOCUMENTS, documents, in_range)
    pairs = in_range * 16 * 3 + held * (8 * sketch_words(config) + 40) * 2 + documents / 8
    write = 0.0 if config.report_only else config.row_group_mb * 1e6 * 2.5 + 2 * BATCH_BYTES
    tasks = {"scan": scan, "decide": pairs, "write": write}
    largest = max(tasks, key=lambda task: tasks[task])
    driver = documents + documents * SHARE_WITH_A_DUPLICATE * DRIVER_BYTES_PER_DUPLICATE
    return {
        "task_memory_bytes": round(BASE_PROCESS_BYTES + tasks[largest]),
        "largest_task": largest,
        "driver_memory_bytes": round(BASE_PROCESS_BYTES + driver),
    }


def _money(config: PlanConfig, wall: float, num_cpus: int) -> dict[str, Any]:
    price = config.price_per_cpu_hour
    paid = None if price is None else max(1, num_cpus) * wall / 3600 * price
    return {"price_per_cpu_hour": price, "currency": config.currency, "money": paid}


def assumptions(config: PlanConfig, plan: Plan, sample: Sample) -> list[str]:
    lines = [
        f"speed: this machine, one process, the first rows at {sample.places} of its row groups or pieces "
        f"({sample.text_bytes / 1e6:.1f} MB of text), spread over the corpus; storage is as fast as the CPUs",
        f"decide: {DECIDE_SECONDS_PER_DOCUMENT * 1e6:.0f} µs a document beside the sort of its keys, as measured on a "
        "corpus without large templates",
    ]
    share = f"{SHARE_WITH_A_DUPLICATE:.0%}"
    lines.append(f"driver: {share} of the documents have a duplicate, {DRIVER_BYTES_PER_DUPLICATE} bytes each")
    if not config.report_only:
        lines.append("everything stays: what is removed makes OUT smaller and the last stage faster")
    if any(shard.format == "jsonl" for shard in plan.shards):
        lines.append(f"JSONL: {sample.jsonl_line_bytes:,.0f} bytes a record, as in the sample")
    if any(shard.compression for shard in plan.shards):
        lines.append(f"compressed JSONL: {COMPRESSED_RATIO} times its size on disk; each file is one unit")
    if config.against:
        lines.append("--against: the documents of the index are not counted")
    if config.price_per_cpu_hour is not None:
        lines.append("money: all CPUs are paid for from the start to the end")
    if sample.stopped:
        lines.append(f"sampling was stopped after {SAMPLE_SECONDS:.0f} s: slow storage or very long documents")
    return lines


# ---------------------------------------------------------------------------------------------- printing


def plan_lines(value: dict[str, Any]) -> list[str]:
    known = "" if value["documents_are_known"] else "estimated: JSONL tells only when it is read"
    largest = f"the largest {size(value['largest_unit_bytes'])}"
    rates = value["sample"]["mb_per_cpu_second"]
    speed = ", ".join(f"{what} {rate:,.0f}" for what, rate in rates.items())
    stages = ", ".join(f"{stage} {duration(seconds)}" for stage, seconds in value["cpu_seconds"].items())
    rows = [
        ("shards", f"{value['shards']:,}", f"{size(value['disk_bytes'])} on disk"),
        ("documents", f"{value['documents']:,}", known),
        ("text", size(value["text_bytes"]), f"of {size(value['column_bytes'])} of all columns"),
        ("units", f"{value['units']:,}", largest),
        ("key ranges", f"{value['key_ranges']:,}", "tasks of the decide stage"),
        ("sidecars", size(value["sidecar_bytes"]), f"{value['sidecar_bytes_per_document']:.0f} bytes a document"),
        ("WORK", size(value["work_bytes"]), "sidecars, decisions and ledger, on disk"),
        ("OUT", size(value["output_bytes"]), "at most, zstd" if not value["report_only"] else "--report-only"),
        ("shuffle", size(value["shuffle_bytes"]), "keys, written once and read once"),
        ("task memory", size(value["task_memory_bytes"]), f"of a {value['largest_task']} task, one per CPU"),
        ("driver memory", size(value["driver_memory_bytes"]), ""),
        ("CPU time", duration(value["cpu_seconds_total"]), stages),
        ("wall time", duration(value["wall_seconds"]), f"on {value['num_cpus']:,} CPUs, start-up included"),
    ]
    if value["money"] is not None:
        price = f"at {value['price_per_cpu_hour']:g} {value['currency']} per CPU-hour"
        rows.append(("money", f"{value['money']:,.2f} {value['currency']}", price))
    if value["unreadable_shards"]:
        rows.insert(1, ("left out", f"{value['unreadable_shards']:,}", "unreadable shards (--skip-bad-units)"))
    name_width, width = max(len(row[0]) for row in rows), max(len(row[1]) for row in rows)
    lines: list[str] = []
    for name, number, note in rows:
        indent = " " * (name_width + width + 4)
        lines += wrap(f"{name:<{name_width}}  {number:>{width}}  {note}", LINE_WIDTH, subsequent_indent=indent)
    lines += ["", *wrap(f"measured here, MB of text per CPU-second: {speed}", LINE_WIDTH), "", *curve_lines(value)]
    for warning in value["warnings"]:
        lines += wrap(f"warning: {warning}", LINE_WIDTH, subsequent_indent="  ")
    lines += ["", "assumed"]
    for assumption in value["assumptions"]:
        lines += wrap(f"- {assumption}", LINE_WIDTH, subsequent_indent="  ")
    return lines


def curve_lines(value: dict[str, Any]) -> list[str]:
    """The LSH curve as a table, with its direction."""
    bands, rows = value["bands"], value["rows"]
    lines = [
        f"LSH: {bands} bands × {rows} rows of {value['num_hashes']} sketch values, threshold {value['threshold']:g}",
        "  more bands = looser (finds more), more rows = stricter (finds less)",
        f"  effective threshold (1/{bands})^(1/{rows}) = {value['effective_threshold']:.3f}",
        f"  similarity  proposed  + accepted by {value['verify']}",
    ]
    for pair in value["curve"]:
        mark = "  ← threshold" if abs(pair["similarity"] - value["threshold"]) < 1e-9 else ""
        lines.append(f"  {pair['similarity']:>10.2f}  {pair['proposed']:>8.4f}  {pair['accepted']:>10.4f}{mark}")
    return lines


def size(count: float) -> str:
    """Bytes in units of 10^3."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{ceil(count)} bytes" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")
