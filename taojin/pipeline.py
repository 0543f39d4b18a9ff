"""The whole job: plan → scan → rules → decide → write. Each stage is skipped where its output stands.

`run_dedup(config)` is what `taojin dedup` calls, `run_quality(config)` what `taojin quality` does; they are also the
way in for a program. Why it is cut like this: ARCHITECTURE.md.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from taojin import __version__
from taojin.core.config import fingerprint
from taojin.core.corpus import Plan
from taojin.core.errors import InputError, InvariantError
from taojin.core.job import JobConfig
from taojin.core.ledger import Decided, DecisionContext, decide_unit, totals
from taojin.core.progress import Progress
from taojin.core.scan import Analyzer, ScanContext, scan_unit
from taojin.core.sidecars import Corpus
from taojin.core.storage import FileEntry, Folder, with_retries
from taojin.core.tasks import Stages, Stats, open_executor, unit_name
from taojin.core.write import WriteContext, cut_parts, write_part
from taojin.dedup.config import DedupConfig
from taojin.dedup.decide import decide
from taojin.dedup.scan import SketchAnalyzer
from taojin.frozen import claim_output, open_plan, refuse_overlap
from taojin.jobs import EDITS, QualityJob, edits_of, extras_of
from taojin.opened import corpus_of, finished_decisions, scan_config, split_decision
from taojin.quality.config import QualityConfig

MANIFEST = "_manifest.json"


class Result(NamedTuple):
    """What a run did. counts: see OUT/_manifest.json; decide: the decide folder with ledger and decisions."""

    counts: dict[str, Any]
    work: Folder
    decide: Folder
    output: Folder | None
    warnings: list[str]


def run_dedup(config: DedupConfig) -> Result:
    """Run or resume a de-duplication. Raises TaojinError subclasses; see `taojin.core.errors`."""
    return _run(config)


def run_quality(config: QualityJob) -> Result:
    """Run or resume a judgement by rules. Raises TaojinError subclasses; see `taojin.core.errors`."""
    return _run(config)


def _run(config: JobConfig) -> Result:
    progress = Progress(quiet=config.quiet)
    work = Folder(config.work_folder)
    output = Folder(config.output) if config.output and not config.report_only else None
    refuse_overlap(config)
    warnings = config.check() if isinstance(config, QualityConfig) else []
    plan = with_retries(lambda: open_plan(config, work))
    for path, reason in plan.unreadable:
        progress.note(f"left out: {path}: {reason}")
    folder = work.child(config.decide_name)
    if output:
        with_retries(lambda: claim_output(config, work, output))
    with open_executor(config.address, config.num_cpus, len(plan.units), quiet=config.quiet) as executor:
        executor.require_shared(work)
        if output:
            executor.require_shared(output)
        stages = Stages(work.child("stats"), executor, progress)
        context = ScanContext(plan, config.reading, work, analyzers_of(config))
        scan_stats = stages.run("scan", scan_unit, context, range(len(plan.units)))
        corpus = view_of(work, plan, config, scan_stats, 0)
        with_retries(lambda: folder.write_json("config.json", config.decide_part()))
        mask = config.mask if isinstance(config, QualityConfig) else ()
        with_retries(lambda: folder.write_json(EDITS, {"mask": mask}))
        stages = Stages(folder.child("stats"), executor, progress)
        # The driver writes here too: what fails for a moment is done again, and finished stages are skipped.
        decided = with_retries(lambda: decide_all(corpus, config, folder, stages))
        warnings += decided.warnings
        counts = summarise(plan, scan_stats, decided)
        for warning in warnings:
            progress.note(f"warning: {warning}")
        if output:
            write_all(corpus, config, folder, output, stages, decided, counts)
    return Result(counts, work, folder, output, warnings)


def analyzers_of(config: JobConfig) -> tuple[Analyzer, ...]:
    """What looks at every document in the scan."""
    analyzers: list[Analyzer] = [SketchAnalyzer(config)] if isinstance(config, DedupConfig) else []
    if isinstance(config, QualityConfig) and config.measures:
        # Imported with work to do: pure de-duplication starts a second sooner.
        from taojin.quality.scan import make_analyzer

        analyzers.append(make_analyzer(config))
    return tuple(analyzers)


def decide_all(corpus: Corpus, config: JobConfig, folder: Folder, stages: Stages) -> Decided:
    """Rules first, then duplicates among what passes them."""
    names: tuple[str, ...] = ()
    rule_counts: dict[str, Any] = {}
    units = range(len(corpus.plan.units))
    if isinstance(config, QualityConfig) and config.measures:
        from taojin.quality.judging import JudgeContext, judge_unit

        names = config.reasons
        stats = stages.run("rules", judge_unit, JudgeContext(config, corpus.view.folder, folder), units)
        rule_counts = summarise_rules(stats)
        with_retries(lambda: folder.write_json("drops.json", rule_counts))
        scores = f"{folder.name}/rules" if config.score_signal else ""
        corpus = corpus._replace(view=corpus.view._replace(scores=scores))
    if isinstance(config, DedupConfig):
        corpora = [corpus]
        for name in config.against:
            corpora.append(open_index(name, config, sum(corpus.view.num_documents for corpus in corpora)))
        failing = failing_documents(folder, corpus) if names else None
        decided = decide(corpora, config, folder, stages, names, failing)
    else:
        remove = not isinstance(config, QualityJob) or config.mode != "annotate"
        context = DecisionContext(corpus.plan, corpus.ordinals, (corpus.view,), folder, "", names, remove)
        unit_stats = stages.run("decisions", decide_unit, context, units)
        counts = totals(unit_stats, corpus.view.num_documents)
        decided = Decided(counts, [piece for stats in unit_stats for piece in stats["pieces"]], [])
    if rule_counts:
        decided.counts["rules"] = rule_counts["rules"]
    return decided


def failing_documents(folder: Folder, corpus: Corpus) -> NDArray[np.bool_]:
    """bool per document: whether it fails a rule."""
    failing = np.zeros(corpus.view.num_documents, bool)
    for unit in range(len(corpus.plan.units)):
        with folder.child("rules").open(f"{unit_name(unit)}.arrow") as file:
            first, last = corpus.ordinals.unit_first[unit : unit + 2].tolist()
            failing[first:last] = pa.ipc.open_file(file).get_batch(0).column("rule").to_numpy() >= 0
    return failing


def summarise_rules(stats: Sequence[Stats]) -> dict[str, Any]:
    """How many documents fail each rule, whatever their reason; and the reasons by language and by source."""
    summary: dict[str, Any] = {"rules": Counter(), "by_language": {}, "by_source": {}}
    for unit in stats:
        summary["rules"].update(unit["rules"])
        for kind in ("by_language", "by_source"):
            for name, reasons in unit[kind].items():
                summary[kind].setdefault(name, Counter()).update(reasons)
    return {
        "rules": dict(summary["rules"]),
        **{
            kind: {name: dict(reasons.most_common()) for name, reasons in sorted(summary[kind].items())}
            for kind in ("by_language", "by_source")
        },
    }


def write_all(
    corpus: Corpus,
    config: JobConfig,
    folder: Folder,
    output: Folder,
    stages: Stages,
    decided: Decided,
    counts: dict[str, Any],
) -> None:
    """The parts and the manifest of OUT; adds to the counts what was written."""
    plan = corpus.plan
    extras = extras_of(config, corpus.view.folder, folder)
    edits = edits_of(config, corpus.view.folder)
    context = WriteContext(plan, config, corpus.ordinals, folder, output, extras, edits)
    parts = cut_parts(plan, decided.pieces, config.part_mb * 1e6)
    stage = f"write~{fingerprint([config.write_part(), output.uri])}"
    stats = stages.run(stage, write_part, context, list(enumerate(parts)), out=output)
    written = sum(part["documents"] for part in stats)
    if written != counts["kept"]:
        raise InvariantError(f"{counts['kept']:,} documents were to stay, {written:,} were written")
    counts["output_bytes"] = sum(part["bytes"] for part in stats)
    edited: Counter[str] = Counter()
    for part in stats:
        edited.update(part["edited"])
    if edited:
        counts["edited"] = dict(sorted(edited.items()))
    with_retries(lambda: write_manifest(config, plan, folder, output, counts, stats))


def view_of(work: Folder, plan: Plan, config: JobConfig, scan_stats: Sequence[Stats], first: int) -> Corpus:
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
    if "sketch" not in plan.config:
        raise InputError(
            f"--against {name}: made by `taojin quality`, without sketches; expected one of `taojin dedup`"
        )
    scan = config.scan_part()
    keys = ("sketch", "num_hashes", "bins", "ngram", "min_symbols", "bands", "rows")
    other = [
        f"{key} is {plan.config[key]!r} there, {scan[key]!r} here" for key in keys if plan.config[key] != scan[key]
    ]
    there, here = plan.config["formats"], scan["formats"]
    other += [
        f"{name} has format {there[name]} there, {here[name]} here"
        for name in ("fold", "sketch", "bands")
        if there[name] != here[name]
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
    # Stats that an earlier version left have no such count.
    counts["repaired"] = sum(stats.get("repaired", 0) for stats in scan_stats)
    return counts


def write_manifest(
    config: JobConfig,
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
