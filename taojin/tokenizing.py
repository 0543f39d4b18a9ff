"""`taojin tokenize`: plan → encode → (shuffle →) verify → merge → index → manifest. Each stage is skipped where its
output stands.

In: shards, or a finished WORK folder whose decisions say what stays. Out: pairs PREFIX….bin/.idx/.parquet, a blend
file, PREFIX.manifest.json, written last; PREFIX.work holds the pieces and what a rerun resumes from.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from taojin import __version__
from taojin.core.config import fingerprint
from taojin.core.corpus import Plan
from taojin.core.errors import BadShardError, InputError, InvariantError, OutputError, UnitError
from taojin.core.megatron import header_warning, reader_warning
from taojin.core.progress import Progress
from taojin.core.storage import FileEntry, Folder, with_retries
from taojin.core.tasks import Stages, Stats, describe_failures, open_executor, unit_name
from taojin.core.uris import with_suffix
from taojin.frozen import freeze, refuse_overlap
from taojin.tokenize.blend import parse_weights, unused_weights, write_blend
from taojin.tokenize.config import TokenizeConfig
from taojin.tokenize.documents import Input
from taojin.tokenize.merge import Pair, lay_out, spans_of
from taojin.tokenize.pieces import EncodeContext, encode_unit
from taojin.tokenize.provenance import IndexContext, document_rows, write_pair_index
from taojin.tokenize.shuffle import ShuffleContext, num_buckets, shuffle_bucket
from taojin.tokenize.split import parse_split
from taojin.tokenize.tokenizer_file import Facts
from taojin.tokenizing_input import (
    BACKEND,
    chat_template,
    chosen_backend,
    frozen_plan,
    open_input,
    open_tokenizer,
    split_prefix,
)
from taojin.writing_pairs import refuse_existing, write_tokens

MANIFEST = ".manifest.json"
MASK = "_mask"
NO_SOURCE = "no-source"
# A file's name has 255 bytes at most, and sources may be URLs.
SOURCE_CHARACTERS = 40


class Tokenized(NamedTuple):
    """What a run did. manifest: see PREFIX.manifest.json."""

    manifest: dict[str, Any]
    folder: Folder
    stem: str
    work: Folder
    warnings: list[str]


def run_tokenize(config: TokenizeConfig) -> Tokenized:
    """Run or resume a tokenization. Raises TaojinError subclasses; see `taojin.core.errors`."""
    progress = Progress(quiet=config.quiet)
    weights = parse_weights(config.weights)
    file, facts = open_tokenizer(config)
    refuse_overlap(config)
    work = Folder(config.work_folder)
    folder, stem = split_prefix(config.output)
    source, fresh = open_input(config, work)
    # Before WORK is claimed: what is refused here can be mended and run again.
    backend, reason = with_retries(lambda: chosen_backend(config, work, file, source))
    plan = with_retries(lambda: freeze(frozen_plan(config, fresh, file, facts), work))
    if not work.exists(BACKEND):
        with_retries(lambda: work.write_json(BACKEND, {"backend": backend, "reason": reason}))
    source = source._replace(plan=plan)
    for path, why in plan.unreadable:
        progress.note(f"left out: {path}: {why}")
    claim = fingerprint(work.read_json("plan.json"))
    earlier = with_retries(lambda: manifest_of(folder, stem, claim))
    if earlier and stands(folder, earlier):
        progress.note(f"{config.output}: written by an earlier run")
        return Tokenized(earlier, folder, stem, work, earlier["warnings"])
    ours = [pair["name"] for pair in earlier["pairs"]] if earlier else []
    refuse_existing(folder, early_names(stem, config), work, ours)
    warnings = [warning] if (warning := header_warning(facts.vocab_size)) else []
    with open_executor(config.address, config.num_cpus, len(plan.units), quiet=config.quiet) as executor:
        executor.require_shared(work)
        executor.require_shared(folder)
        stages = Stages(work.child("stats"), executor, progress)
        progress.note(f"backend    {backend}: {reason}")
        context = EncodeContext(source, work, config, file, facts, backend, chat_template(config))
        encoded = stages.run("encode", encode_unit, context, range(len(plan.units)), out=work.child("pieces"))
        pieces, kind = encoded, "pieces"
        verify(stages, work, "encode", kind, encoded, every=config.shuffle)
        if config.shuffle:
            names = tuple(tuple((seg["split"], seg["source"]) for seg in stats["segments"]) for stats in encoded)
            buckets = num_buckets(sum(stats["tokens"] for stats in encoded))
            shuffle = ShuffleContext(context, names, buckets)
            pieces = stages.run("shuffle", shuffle_bucket, shuffle, range(buckets), out=work.child("shuffled"))
            kind = "shuffled"
            verify(stages, work, "shuffle", kind, pieces, every=False)
        counts = summarise(source, encoded)
        if counts["read"] and not counts["documents"]:
            raise InputError(nothing_left(counts))
        warnings += warnings_of(config, facts, counts)
        pairs = pairs_of(config, work.child(kind), pieces)
        written = write_pairs(config, context, stages, kind, pieces, pairs, encoded, ours)
    for pair in written:
        if warning := reader_warning(pair["sequences"], pair["tokens"]):
            warnings.append(f"{pair['name']}: {warning}")
    counts["by_split"] = totals_by(written, "split")
    if warning := unused_weights(weights, counts["by_source"]):
        warnings.append(warning)
    missing = [name for name in parse_split(config.split).names if name and name not in counts["by_split"]]
    warnings += [f"no document fell to the split {name}" for name in missing]
    manifest = {
        "taojin": __version__,
        "claim": claim,
        "config": plan.config,
        "tokenizer": {
            "path": config.tokenizer,
            **{name: value for name, value in facts._asdict().items() if name != "specials"},
            "plain": config.special_in_text == "plain",
            "backend": backend,
            "reason": reason,
        },
        "dtype": context.dtype.name,
        "chat_template": context.chat_template,
        "append_eod": config.append_eod,
        "level": config.level,
        "counts": counts,
        "pairs": written,
        "unreadable": [list(pair) for pair in plan.unreadable],
        "shards": [{"path": s.path, "uri": s.uri, "fingerprint": s.fingerprint} for s in plan.shards],
        "warnings": warnings,
    }
    with_retries(lambda: write_blend(folder, stem, written, weights))
    with_retries(lambda: folder.write_json(f"{stem}{MANIFEST}", manifest))
    for warning in warnings:
        progress.note(f"warning: {warning}")
    return Tokenized(manifest, folder, stem, work, warnings)


def manifest_of(folder: Folder, stem: str, claim: str) -> dict[str, Any] | None:
    """The manifest of this very run, None without one; raises OutputError for another run's."""
    name = f"{stem}{MANIFEST}"
    if not folder.exists(name):
        return None
    manifest: dict[str, Any] = folder.read_json(name)
    if manifest.get("claim") != claim:
        path = with_suffix(folder.uri, f"/{name}")
        raise OutputError(f"{path}: the output of another run or other settings; name another --output, or remove it")
    return manifest


def stands(folder: Folder, manifest: dict[str, Any]) -> bool:
    """Whether all files of its pairs are there in their sizes."""
    entries = [FileEntry(**entry) for pair in manifest["pairs"] for entry in pair["files"].values()]
    return all(folder.holds(entry) for entry in entries)


def nothing_left(counts: dict[str, Any]) -> str:
    """Why a run that read documents encodes none."""
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in counts["left_out"].items())
    first = f"; {counts['problems'][0]}" if counts["problems"] else ""
    return f"none of the {counts['read']:,} documents can be encoded: {reasons}{first}"


def early_names(stem: str, config: TokenizeConfig) -> list[str]:
    """Names of pairs that are known before the sources are."""
    if config.by_source:
        return []
    number = "_00000" if config.shard_tokens else ""
    names = [f"{stem}{'_' if split else ''}{split}{number}" for split in parse_split(config.split).names]
    return names + [f"{name}{MASK}" for name in names if config.chat]


def verify(stages: Stages, work: Folder, stage: str, kind: str, stats: Sequence[Stats], *, every: bool) -> None:
    """Prove that pieces are what their stage wrote: the small files, or all of them; tokens that are only merged are
    proven there. Every run does it anew: what was whole when an earlier one stopped may have been damaged since."""
    progress, failures = stages.progress, []
    progress.start("verify", len(stats), 0)
    context = VerifyContext(work, stage, kind, every)
    items = [(unit, entry["files"]) for unit, entry in enumerate(stats)]
    for unit, outcome in stages.executor.map(verify_piece, context, items):
        if isinstance(outcome, BaseException):
            failures.append((unit, outcome))
        else:
            progress.advance(outcome)
    progress.end()
    if failures:
        raise UnitError(describe_failures("verify", failures)) from failures[0][1]


class VerifyContext(NamedTuple):
    """stage: which wrote the pieces · kind: their folder in `work` · every: tokens, too."""

    work: Folder
    stage: str
    kind: str
    every: bool


def verify_piece(context: VerifyContext, item: tuple[int, dict[str, Any]]) -> Stats:
    """Raise BadShardError unless the files of a piece are what was written."""
    unit, files = item
    for kind, entry in files.items():
        if context.every or kind not in ("bin", "mask"):
            try:
                context.work.child(context.kind).require(FileEntry(**entry), checksum=True)
            except InvariantError as error:
                remedy = remedy_of(context.work, context.stage, unit_name(unit))
                raise BadShardError(f"{error}; {remedy}") from None
    return {}


def remedy_of(work: Folder, stage: str, name: str) -> str:
    return f"remove {work.uri}/stats/{stage}/{name}.json and run again to make it once more"


def summarise(source: Input, encoded: Sequence[Stats]) -> dict[str, Any]:
    """All counters of a run; raises InvariantError unless read = documents + Σ left out."""
    total = {
        name: sum(stats[name] for stats in encoded)
        for name in ("documents", "sequences", "tokens", "empty", "ends_in_text", "without_component")
    }
    left_out: Counter[str] = Counter()
    for stats in encoded:
        left_out.update(stats["left_out"])
    read = sum(rows for stats in encoded for _, _, rows in stats["pieces"])
    if source.kept is not None:
        decisions = source.kept.decisions.child("stats/decisions")
        kept = sum(decisions.read_json(name)["kept"] for name in decisions.names())
        left_out["not_kept"] = read - kept
    if read != total["documents"] + left_out.total():
        raise InvariantError(
            f"{read:,} documents were read, {total['documents']:,} encoded and {left_out.total():,} left out: some are "
            "unaccounted for"
        )
    return {
        "read": read,
        **total,
        "text_bytes": sum(stats["bytes"] for stats in encoded),
        "left_out": {name: number for name, number in sorted(left_out.items()) if number},
        "problems": [problem for stats in encoded for problem in stats["problems"]][:20],
        "repaired": sum(stats["repaired"] for stats in encoded),
        "unreadable_shards": len(source.plan.unreadable),
        "by_source": sum_by_name(encoded, "by_source"),
        "by_language": sum_by_name(encoded, "by_language"),
    }


def sum_by_name(encoded: Sequence[Stats], kind: str) -> dict[str, dict[str, int]]:
    """{name: {documents, tokens}} over all units; "" counts those without one, where others have one."""
    totals: dict[str, dict[str, int]] = {}
    for stats in encoded:
        for name, (documents, tokens) in stats[kind].items():
            entry = totals.setdefault(name, {"documents": 0, "tokens": 0})
            entry["documents"] += documents
            entry["tokens"] += tokens
    return dict(sorted(totals.items())) if totals.keys() != {""} else {}


def warnings_of(config: TokenizeConfig, facts: Facts, counts: dict[str, Any]) -> list[str]:
    """What a user should know of the result before training on it."""
    warnings = []
    if counts["unreadable_shards"]:
        warnings.append(f"{counts['unreadable_shards']:,} unreadable shards were left out")
    if counts["ends_in_text"] and config.chat:
        where = f"the text of {counts['ends_in_text']:,} conversations"
        warnings.append(f"control tokens stand in {where} and were encoded as plain text")
    elif counts["ends_in_text"]:
        how = (
            "as plain text, as asked"
            if config.special_in_text == "plain"
            else "as the end of a document; --special-in-text plain encodes it as text"
        )
        where = f"the text of {counts['ends_in_text']:,} documents"
        warnings.append(f"{facts.eod_token} stands in {where} and was encoded {how}")
    if config.split and counts["without_component"]:
        warnings.append(
            f"{counts['without_component']:,} documents have no near-duplicate component: they were split by id, and "
            "near-duplicates of one may be on two sides; tokenize the output of taojin dedup to keep them together"
        )
    if not counts["documents"]:
        warnings.append("there is no document to encode")
    return warnings


def pairs_of(config: TokenizeConfig, pieces: Folder, stats: Sequence[Stats]) -> list[Pair]:
    """How the pieces are laid out as pairs; one empty pair where there is nothing."""

    def counts_of(piece: int, first: int, documents: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        rows = list(document_rows(pieces, unit_name(piece), first, documents, ("tokens", "sequences")))
        table = pa.Table.from_batches(rows)
        return table.column("tokens").to_numpy().astype(np.int64), table.column("sequences").to_numpy().astype(np.int64)

    splits = parse_split(config.split).names
    pairs = lay_out([s["segments"] for s in stats], splits, config.shard_tokens, counts_of)
    return pairs or [Pair(splits[0], "", 0 if config.shard_tokens else -1, ())]


def names_of(stem: str, pairs: Sequence[Pair], by_source: bool) -> list[str]:
    """stem[_split][_source][_number]. Where two read the same, as sources do without their odd characters, a hash of
    split and source tells them apart; and a source is not called like the mask of another."""

    def name(pair: Pair, end: str) -> str:
        source = (re.sub(r"[^\w.-]+", "-", pair.source)[:SOURCE_CHARACTERS] or NO_SOURCE) if by_source else ""
        number = f"{pair.number:05d}" if pair.number >= 0 else ""
        return "_".join(part for part in (stem, pair.split, source + end, number) if part)

    count = Counter(name(pair, "") for pair in pairs)
    ends = [f"-{fingerprint([pair.split, pair.source])[:8]}" for pair in pairs]
    taken = [count[name(pair, "")] > 1 or name(pair, "").endswith(MASK) for pair in pairs]
    return [name(pair, end if other else "") for pair, end, other in zip(pairs, ends, taken, strict=True)]


def write_pairs(
    config: TokenizeConfig,
    context: EncodeContext,
    stages: Stages,
    kind: str,
    stats: Sequence[Stats],
    pairs: Sequence[Pair],
    encoded: Sequence[Stats],
    ours: Sequence[str],
) -> list[dict[str, Any]]:
    """All files of the pairs; returns their entries of the manifest. ours: pairs of an earlier manifest of this run."""
    folder, stem = split_prefix(config.output)
    work = context.work
    names = names_of(stem, pairs, config.by_source)
    pieces = [unit_name(number) for number in range(len(stats))]
    segments = [s["segments"] for s in stats]
    outputs, sizes = list(names), [pair.total("tokens") * context.dtype.itemsize for pair in pairs]
    spans = spans_of(segments, pairs, work.child(kind), pieces, "bin", context.dtype.itemsize)
    if config.chat:
        outputs += [f"{name}{MASK}" for name in names]
        sizes += [pair.total("tokens") for pair in pairs]
        spans += spans_of(segments, pairs, work.child(kind), pieces, "mask", 1, first_output=len(names))
    stage = "encode" if kind == "pieces" else "shuffle"
    ranges = write_tokens(stages, work, folder, outputs, sizes, spans, remedy_of(work, stage, "{name}"), ours)
    index = IndexContext(
        plan=context.source.plan,
        pieces=work.child(kind),
        names=tuple(pieces),
        out=folder,
        first_rows=first_rows(context.source.plan, encoded),
        dtype=context.dtype,
        ids=context.source.reading.id in context.source.plan.schema.names,
    )
    items = [(name, pair, config.chat) for name, pair in zip(names, pairs, strict=True)]
    indexed = stages.run(f"index~{fingerprint([names, folder.uri])}", write_pair_index, index, items, out=folder)
    written = []
    for number, (name, pair) in enumerate(zip(names, pairs, strict=True)):
        files = {"bin": {"name": f"{name}.bin", "bytes": sizes[number], "xxh3": "", "rows": pair.total("sequences")}}
        entry: dict[str, Any] = {
            "name": name,
            "split": pair.split,
            "source": pair.source,
            "number": pair.number,
            **{counter: pair.total(counter) for counter in ("documents", "sequences", "tokens")},
            "ranges": ranges[number],
        }
        if config.chat:
            mask = number + len(names)
            entry["mask_ranges"] = ranges[mask]
            files["mask_bin"] = {**files["bin"], "name": f"{name}{MASK}.bin", "bytes": sizes[mask]}
        written.append({**entry, "files": {**files, **indexed[number]["files"]}})
    return written


def first_rows(plan: Plan, encoded: Sequence[Stats]) -> NDArray[np.int64]:
    """int64 per piece of the plan, all shards' in order: the row of its shard at which it begins."""
    rows = {(shard, piece): count for stats in encoded for shard, piece, count in stats["pieces"]}
    first = []
    for shard, entry in enumerate(plan.shards):
        counts = [rows.get((shard, piece), 0) for piece in range(len(entry.pieces))]
        first.append(np.cumsum([0, *counts], dtype=np.int64)[:-1])
    return np.concatenate([np.zeros(0, np.int64), *first])


def totals_by(written: Sequence[dict[str, Any]], key: str) -> dict[str, dict[str, int]]:
    totals: dict[str, dict[str, int]] = {}
    for pair in written:
        if pair["documents"]:
            entry = totals.setdefault(pair[key], {"documents": 0, "tokens": 0})
            entry["documents"] += pair["documents"]
            entry["tokens"] += pair["tokens"]
    return totals
