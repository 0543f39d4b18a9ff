"""The whole job: plan → scan → decide → write. Each stage is skipped where its output stands; see ARCHITECTURE.md.

`run_dedup(config)` is what `taojin dedup` calls; it is also the way in for a program.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from taojin import __version__
from taojin.core.config import fingerprint
from taojin.core.corpus import Plan, make_plan
from taojin.core.errors import FrozenPlanError, InputError, InvariantError, OutputError
from taojin.core.progress import Progress
from taojin.core.storage import FileEntry, Folder, with_retries
from taojin.core.tasks import Executor, LocalExecutor, RayExecutor, Stages, Stats
from taojin.core.uris import is_uri, split_query
from taojin.dedup.config import DedupConfig
from taojin.dedup.decide import Corpus, Decided, decide
from taojin.dedup.scan import ScanContext, scan_unit
from taojin.dedup.write import WriteContext, cut_parts, write_part
from taojin.opened import corpus_of, finished_decisions, scan_config, split_decision

MARKER = "_taojin.json"
MANIFEST = "_manifest.json"


class DedupResult(NamedTuple):
    """What a run did. counts: see OUT/_manifest.json; decide: the decide folder with ledger and decisions."""

    counts: dict[str, Any]
    work: Folder
    decide: Folder
    output: Folder | None
    warnings: list[str]


def run_dedup(config: DedupConfig) -> DedupResult:
    """Run or resume a de-duplication. Raises TaojinError subclasses; see `taojin.core.errors`."""
    progress = Progress(quiet=config.quiet)
    work = Folder(config.work_folder)
    output = Folder(config.output) if config.output and not config.report_only else None
    _refuse_overlap(config)
    plan = with_retries(lambda: open_plan(config, work))
    for path, reason in plan.unreadable:
        progress.note(f"left out: {path}: {reason}")
    folder = work.child(config.decide_name)
    if output:
        with_retries(lambda: claim_output(config, work, output))
    with open_executor(config, len(plan.units)) as executor:
        executor.require_shared(work)
        if output:
            executor.require_shared(output)
        stages = Stages(work.child("stats"), executor, progress)
        scan_stats = stages.run("scan", scan_unit, ScanContext(plan, config, work), range(len(plan.units)))
        corpora = [view_of(work, plan, config, scan_stats, 0)]
        for name in config.against:
            corpora.append(open_index(name, config, sum(corpus.view.num_documents for corpus in corpora)))
        with_retries(lambda: folder.write_json("config.json", config.decide_part()))
        decide_stages = Stages(folder.child("stats"), executor, progress)
        # The driver writes here too: what fails for a moment is done again, and finished stages are skipped.
        decided = with_retries(lambda: decide(corpora, config, folder, decide_stages))
        counts = summarise(plan, scan_stats, decided)
        for warning in decided.warnings:
            progress.note(f"warning: {warning}")
        if output:
            context = WriteContext(plan, config, corpora[0].ordinals, folder, output)
            parts = cut_parts(plan, decided.pieces, config.part_mb * 1e6)
            stage = f"write~{fingerprint([config.write_part(), output.uri])}"
            stats = decide_stages.run(stage, write_part, context, list(enumerate(parts)), out=output)
            written = sum(part["documents"] for part in stats)
            if written != counts["kept"]:
                raise InvariantError(f"{counts['kept']:,} documents were to stay, {written:,} were written")
            counts["output_bytes"] = sum(part["bytes"] for part in stats)
            with_retries(lambda: write_manifest(config, plan, folder, output, counts, stats))
    return DedupResult(counts, work, folder, output, decided.warnings)


def open_plan(config: DedupConfig, work: Folder) -> Plan:
    """The plan of WORK: made now, or the frozen one if inputs and scan config are still the same.

    Raises FrozenPlanError with the differences otherwise; nothing is deleted.
    """
    fresh = fresh_plan(config)
    value = fresh.as_json()
    if work.exists("plan.json"):
        frozen = work.read_json("plan.json")
        differences = plan_differences(frozen, value)
        if differences:
            raise FrozenPlanError(
                f"{work.uri} belongs to another run: {'; '.join(differences)}. Name another --work, or go back to the "
                "inputs and settings it was made with"
            )
        return Plan.from_json(frozen)
    if work.names():
        raise OutputError(f"{work.uri}: expected an empty or new work folder, found other files; name another --work")
    work.write_json("plan.json", value)
    return fresh


def fresh_plan(config: DedupConfig) -> Plan:
    """The plan of a run, made from the inputs as they are. Raises InputError for what a run would refuse."""
    plan = make_plan(
        config.input,
        text_column=config.text_column,
        id_column=config.id_column,
        source_column=config.source_column,
        quality_column=config.quality_column,
        unit_bytes=int(config.unit_mb * 1e6),
        entries_per_document=config.bands + 1,
        config=config.scan_part(),
        skip_bad=config.skip_bad_units,
    )
    check_columns(config, plan)
    return plan


def check_columns(config: DedupConfig, plan: Plan) -> None:
    """Raise InputError for a column that was asked for by name and is not there."""
    columns = ", ".join(f"{field.name} ({field.type})" for field in plan.schema)
    for flag, name in (("id-column", config.id_column), ("source-column", config.source_column)):
        default = DedupConfig.model_fields[flag.replace("-", "_")].default
        if name != default and name not in plan.schema.names:
            raise InputError(f"no column {name!r} for --{flag}; there are: {columns}")
    if config.source_priority and config.source_column not in plan.schema.names:
        raise InputError(
            f"--source-priority needs a source column; there is no {config.source_column!r} among: {columns}"
        )
    if config.quality_column:
        if config.quality_column not in plan.schema.names:
            raise InputError(f"no column {config.quality_column!r} for --quality-column; there are: {columns}")
        kind = plan.schema.field(config.quality_column).type
        if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
            raise InputError(f"--quality-column {config.quality_column}: expected numbers, found {kind}")


def plan_differences(frozen: dict[str, Any], fresh: dict[str, Any]) -> list[str]:
    """Human-readable differences between a frozen plan and what it would be now."""
    differences = []
    if frozen["format"] != fresh["format"]:
        differences.append(f"its plan has format {frozen['format']}, this version writes {fresh['format']}")
    for key in sorted(frozen["config"].keys() | fresh["config"].keys()):
        old, new = frozen["config"].get(key), fresh["config"].get(key)
        if _plain(old) != _plain(new):
            differences.append(f"{key} was {old!r} and is {new!r}")
    old_shards = {shard["path"]: shard["fingerprint"] for shard in frozen["shards"]}
    new_shards = {shard["path"]: shard["fingerprint"] for shard in fresh["shards"]}
    for word, paths in (
        ("new", sorted(new_shards.keys() - old_shards.keys())),
        ("missing", sorted(old_shards.keys() - new_shards.keys())),
        ("changed", sorted(p for p in old_shards.keys() & new_shards.keys() if old_shards[p] != new_shards[p])),
    ):
        if paths:
            more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
            differences.append(f"{word}: {', '.join(paths[:3])}{more}")
    return differences


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@contextmanager
def open_executor(config: DedupConfig, num_units: int) -> Iterator[Executor]:
    """Ray where it pays: not with --num-cpus 0, not for a single unit unless a cluster was named."""
    address = config.address or os.environ.get("RAY_ADDRESS") or None
    local = config.num_cpus == 0 or (num_units <= 1 and address is None)
    executor: Executor = (
        LocalExecutor() if local else RayExecutor(address=address, num_cpus=config.num_cpus, quiet=config.quiet)
    )
    try:
        yield executor
    finally:
        executor.close()


def view_of(work: Folder, plan: Plan, config: DedupConfig, scan_stats: Sequence[Stats], first: int) -> Corpus:
    """A scanned corpus as readers need it; raises InvariantError where a sidecar is not what its manifest says."""
    rows = [piece[2] for stats in scan_stats for piece in stats["pieces"]]
    for stats in scan_stats:
        for kind, entry in stats["files"].items():
            work.child(kind).require(FileEntry(**entry))
    return corpus_of(work, plan, config, rows, first)


def open_index(name: str, config: DedupConfig, first: int) -> Corpus:
    """An earlier WORK folder, or one decide folder in it, to run against. Raises InputError when it does not fit."""
    work, chosen = split_decision(name)
    if not work.exists("plan.json"):
        raise InputError(f"--against {name}: no plan.json there; expected the WORK folder of an earlier run")
    plan = Plan.from_json(work.read_json("plan.json"))
    scan = config.scan_part()
    keys = ("sketch", "num_hashes", "bins", "ngram", "min_symbols", "bands", "rows", "formats")
    other = [
        f"{key} is {plan.config[key]!r} there, {scan[key]!r} here" for key in keys if plan.config[key] != scan[key]
    ]
    if other:
        raise InputError(f"--against {name}: made with other settings: {'; '.join(other)}")
    done = finished_decisions(work, chosen, len(plan.units))
    if len(done) != 1:
        what = "no finished run" if not done else f"several decisions ({', '.join(done)}); name one, as WORK/decide-…"
        raise InputError(f"--against {name}: {what}")
    stats = [work.read_json(f"stats/scan/{i}") for i in work.names("stats/scan")]
    corpus = view_of(work, plan, scan_config(work, plan), stats, first)
    return corpus._replace(view=corpus.view._replace(survivors=done[0]))


def claim_output(config: DedupConfig, work: Folder, output: Folder) -> None:
    """Mark OUT as this run's; raises OutputError for a folder that holds anything else."""
    marker = {"plan": fingerprint(work.read_json("plan.json")), "write": fingerprint(config.write_part())}
    if output.exists(MARKER):
        if output.read_json(MARKER) != marker:
            raise OutputError(
                f"{output.uri}: holds the output of another run or other settings; name another --output, or empty it"
            )
        return
    if output.names():
        raise OutputError(f"{output.uri}: expected an empty or new folder, found other files; name another --output")
    output.write_json(MARKER, marker)


def _refuse_overlap(config: DedupConfig) -> None:
    """OUT and WORK may be neither an input nor lie inside one: the next run would read them."""
    for flag, folder in (("--output", config.output), ("--work", config.work_folder)):
        here = _place(folder) if folder else ""
        inside = [name for name in config.input if here and f"{here}/".startswith(f"{_place(_searched(name))}/")]
        if inside:
            raise OutputError(f"{flag} {folder}: lies inside the input {inside[0]}; name a folder outside it")


def _searched(name: str) -> str:
    """The folder that a recursive pattern searches; any other input as it is."""
    return name.partition("**")[0].rpartition("/")[0] or "." if "**" in name and not is_uri(name) else name


def _place(name: str) -> str:
    path = split_query(name)[0].removeprefix("file://")
    return path if is_uri(path) else str(Path(path).resolve())


def summarise(plan: Plan, scan_stats: Sequence[Stats], decided: Decided) -> dict[str, Any]:
    """All counters of a run; raises InvariantError unless in = kept + Σ removed."""
    counts = dict(decided.counts)
    scanned = sum(stats["documents"] for stats in scan_stats)
    removed = sum(counts["removed"].values())
    if not scanned == counts["documents"] == counts["kept"] + removed:
        raise InvariantError(
            f"{scanned:,} documents were scanned, {counts['kept']:,} kept and {removed:,} removed: "
            "some are unaccounted for"
        )
    unseen: Counter[str] = Counter()
    for stats in scan_stats:
        unseen.update(stats["reasons"])
    if any(counts["removed"].get(reason) != count for reason, count in unseen.items()):
        raise InvariantError("documents that could not be compared were not all removed")
    counts["shards"] = len(plan.shards)
    counts["units"] = len(plan.units)
    counts["unreadable_shards"] = len(plan.unreadable)
    counts["text_bytes"] = sum(stats["bytes"] for stats in scan_stats)
    counts["characters"] = sum(stats["chars"] for stats in scan_stats)
    return counts


def write_manifest(
    config: DedupConfig,
    plan: Plan,
    decide_folder: Folder,
    output: Folder,
    counts: dict[str, Any],
    parts: Sequence[Stats],
) -> None:
    """OUT/_manifest.json, the last file of a run; what killed attempts left in OUT goes before it."""
    output.remove_temporary()
    output.write_json(
        MANIFEST,
        {
            "taojin": __version__,
            "config": {**plan.config, **config.write_part()},
            "decide": decide_folder.name,
            "counts": counts,
            "parts": [part["files"]["part"] for part in parts],
            "shards": [{"path": shard.path, "fingerprint": shard.fingerprint} for shard in plan.shards],
            "unreadable": [list(pair) for pair in plan.unreadable],
        },
    )
