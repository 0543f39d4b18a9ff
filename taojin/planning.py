"""What a run would take, before it runs: `taojin plan --input PATH… [the flags of taojin dedup]`.

In: every shard's metadata, and a few MB of the text itself (`taojin.sampling`), on which the engine's own readers,
kernels and writer are timed. So MB per CPU-second is this machine's and this text's.
Out: stdout. Nothing is written, no --output is needed. Cost: one look at every footer, then some seconds of sampling.

What is known (Parquet rows, bytes), what is measured and what is assumed is said beside each number.
"""

import os
from typing import Annotated, Any, Self

from pydantic import Field, model_validator
from tyro.conf import arg

from taojin.core.corpus import COMPRESSED_RATIO, Plan, Span
from taojin.core.job import BATCH_BYTES
from taojin.core.text import SYMBOLS_PER_BYTE
from taojin.dedup.bands import RUN_ENTRIES
from taojin.dedup.exact import EXACT_BYTES
from taojin.dedup.pairs import BLOCK_DOCUMENTS
from taojin.dedup.sketch import sketch_words
from taojin.frozen import fresh_plan
from taojin.jobs import DedupJob
from taojin.lsh import effective_threshold, layout_warnings, lsh_curve
from taojin.plan_report import plan_lines
from taojin.report import print_json
from taojin.sampling import SAMPLE_SECONDS, Sample, measure, sort_seconds_per_entry

KEY_BYTES = 12  # key uint64 + row uint32

# Measured on this repository's dev corpus (2026-11-30, 75,472 documents): what cannot be timed on a sample.
DECIDE_SECONDS_PER_DOCUMENT = 8e-6  # gather, compare, judge, decisions, ledger; the sort of the keys is timed
DECIDE_BYTES_PER_DOCUMENT = 45  # decisions, pairs, verdicts; the ledger with 10 % removed
MEASURE_BYTES_PER_BYTE = 100  # scratch of the signal kernels, per byte of the longest document
LANGUAGE_BYTES = 7  # a code of two or three letters and its offset
BASE_PROCESS_BYTES = 300_000_000  # Python with pyarrow, numba and the fold table
RAY_START_CPU_SECONDS, RAY_START_SECONDS = 12.0, 5.0
LOCAL_START_SECONDS = 2.0
# Assumed where only the whole run can tell.
SHARE_WITH_A_DUPLICATE = 0.2
DRIVER_BYTES_PER_DUPLICATE = 100


class PlanConfig(DedupJob):
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


def run_plan(config: PlanConfig) -> int:
    """Print the plan; returns 0. Raises InputError and ConfigError as `taojin dedup` would."""
    value = plan_values(config)
    if config.as_json:
        print_json(value)
    else:
        print("\n".join(plan_lines(value)))
    return 0


def plan_values(config: PlanConfig) -> dict[str, Any]:
    """Everything `taojin plan` knows, as plain values; bytes, CPU seconds, seconds."""
    rule_warnings = config.check()
    plan = fresh_plan(config)
    sample = measure(plan, config, config.sample_mb)
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
        "warnings": [*layout_warnings(config), *rule_warnings],
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
    stages = {"scan": seconds["read"] + seconds["scan"] + seconds["signals"], "decide": decide}
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
    if config.measures:
        columns += 4 * len(config.signal_names) + LANGUAGE_BYTES
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
    if config.measures:
        document += sample.longest * MEASURE_BYTES_PER_BYTE
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
