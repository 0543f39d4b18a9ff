"""Decide: from sidecars and keys to one decision per document. No text is read, but for what `settle` must.

    exact keys ─ twins ─┐
    band keys ─ pairs ──┴─ groups ─ judge ─(settle ─ judge)─ resolved ─ decisions + ledger

Everything lies under WORK/decide-<hash>/. This is the driver: it merges what the tasks found (memory: about 100 bytes per
document that has a duplicate) and hands out the next stage.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from taojin.core.corpus import Ordinals, Plan
from taojin.core.storage import Folder
from taojin.core.tasks import Stages, Stats, unit_name
from taojin.dedup.clusters import connected_components, pack_groups, unique_pairs
from taojin.dedup.config import DedupConfig
from taojin.dedup.ledger import EXACT, FOLDED_TEXT, NEAR, RESOLVED_SCHEMA, DecisionContext, decide_unit
from taojin.dedup.pairs import PAIR_SCHEMA, TESTED_SCHEMA, PairContext, pair_range, read_columns, write_columns
from taojin.dedup.settle import SettleContext, settle_unit
from taojin.dedup.sidecars import WorkView, gather
from taojin.dedup.survivors import BY_HASH, VERDICT_SCHEMA, GroupContext, judge_group
from taojin.dedup.twins import twin_range

# Shingle sets that one judging task may hold.
GROUP_SET_BYTES = 400_000_000
# A cluster above this share of the corpus is worth a look: a template, an error page, or a threshold set too low.
LARGE_CLUSTER_SHARE = 0.01


class Corpus(NamedTuple):
    """One scanned WORK folder: this run's, or an index's."""

    plan: Plan
    config: DedupConfig
    ordinals: Ordinals
    view: WorkView


class Decided(NamedTuple):
    """Totals of a decision: counters for the report, and kept rows and bytes per piece for the writer."""

    counts: dict[str, Any]
    pieces: list[list[int]]
    warnings: list[str]


def decide(corpora: Sequence[Corpus], config: DedupConfig, folder: Folder, stages: Stages) -> Decided:
    """Judge every document of corpora[0]; the others are indexes. `folder`: WORK/decide-<hash>."""
    own = corpora[0]
    works = tuple(corpus.view for corpus in corpora)
    num_own = own.ordinals.num_documents
    total = num_own + sum(work.num_documents for work in works[1:])
    excluded = np.zeros((total + 7) // 8 * 8, bool)
    for corpus in corpora[1:]:
        first = corpus.view.first
        excluded[first : first + corpus.view.num_documents] = ~read_keep(corpus.view)
    context = PairContext(works, config, own.plan.num_ranges, folder, "excluded-twins.bin")
    _write_bits(folder, context.excluded_name, excluded)
    twin_stats = stages.run("twins", twin_range, context, range(own.plan.num_ranges))
    twins = read_tables(folder, "twins", twin_stats)

    excluded[twins.column("document").to_numpy()] = True
    context = context._replace(excluded_name="excluded-pairs.bin")
    _write_bits(folder, context.excluded_name, excluded)
    pair_stats = stages.run("pairs", pair_range, context, range(own.plan.num_ranges))
    a, b, estimated = unique_pairs(
        [read_columns(folder.child("pairs"), f"{unit_name(i)}.arrow") for i in range(len(pair_stats))]
    )
    tested = [read_columns(folder.child("tested"), f"{unit_name(i)}.arrow") for i in range(len(pair_stats))]
    documents, rejected = (np.concatenate(column) for column in zip(*tested, strict=True))

    judge = _Judge(corpora, config, folder, stages, documents, rejected)
    verdicts, unsettled = judge.run("near", a, b, estimated, settled=config.verify == "exact")
    tables = [verdicts]
    if len(unsettled[0]):
        tables.append(judge.run("unsure", *unsettled, settled=True)[0])
    resolved, warnings = resolve(pa.concat_tables(tables), twins, num_own, config)
    _write_table(folder, "resolved.arrow", resolved)

    unit_context = DecisionContext(own.plan, own.config, own.ordinals, works, folder, "resolved.arrow")
    unit_stats = stages.run("decisions", decide_unit, unit_context, range(len(own.plan.units)))
    counts = {
        **_totals(unit_stats, num_own),
        "duplicate_ids": sum(stats["duplicate_ids"] for stats in twin_stats),
        "pairs": len(a),
        "compared": sum(stats["compared"] for stats in pair_stats),
        "possible": sum(stats["possible"] for stats in pair_stats),
        "hot_buckets": sum(stats["hot_buckets"] for stats in pair_stats),
        "largest_bucket": max((stats["largest_bucket"] for stats in pair_stats), default=0),
        "settled_by_shingles": judge.settled,
    }
    return Decided(counts, [piece for stats in unit_stats for piece in stats["pieces"]], warnings)


class _Judge:
    """Packs pairs into groups and runs the judging stages on them."""

    def __init__(
        self,
        corpora: Sequence[Corpus],
        config: DedupConfig,
        folder: Folder,
        stages: Stages,
        tested: NDArray[np.int64],
        rejected: NDArray[np.uint32],
    ) -> None:
        self.corpora, self.config, self.folder, self.stages = corpora, config, folder, stages
        self.tested, self.rejected = tested, rejected
        self.works = tuple(corpus.view for corpus in corpora)
        self.settled = 0

    def run(
        self, groups: str, a: NDArray[np.int64], b: NDArray[np.int64], estimated: NDArray[np.float64], *, settled: bool
    ) -> tuple[pa.Table, tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]]:
        """(verdicts, pairs of the components that want exact shingles)."""
        documents = np.unique(np.concatenate([a, b]))
        left = np.searchsorted(documents, a)
        root = connected_components(len(documents), left, np.searchsorted(documents, b))
        _, component, sizes = np.unique(root, return_inverse=True, return_counts=True)
        component = component.reshape(-1)
        weights = np.zeros(len(sizes), np.int64)
        if settled:
            shingles = gather(self.works, documents, ("shingles",))["shingles"]
            np.add.at(weights, component, 8 * shingles.astype(np.int64))
            self._settle(groups, documents)
        group_of_component = pack_groups(sizes, weights, GROUP_SET_BYTES)
        group_of_document = group_of_component[component] if len(documents) else np.zeros(0, np.int64)
        self._write_groups(groups, documents, group_of_document, left, a, b, estimated)
        context = GroupContext(self.works, self.config, self.folder, groups, settled)
        num_groups = int(group_of_component.max(initial=-1)) + 1
        stats = self.stages.run(f"judge-{groups}", judge_group, context, range(num_groups))
        verdicts = read_tables(self.folder, f"{groups}-verdicts", stats)
        rest = [np.zeros((0, 3))]
        for group, group_stats in enumerate(stats):
            if group_stats["unsettled"]:
                with self.folder.open(f"{groups}-unsettled/{unit_name(group)}.arrow") as file:
                    rest.append(np.load(file))
        unsettled = np.concatenate(rest)
        return verdicts, (unsettled[:, 0].astype(np.int64), unsettled[:, 1].astype(np.int64), unsettled[:, 2])

    def _write_groups(
        self,
        groups: str,
        documents: NDArray[np.int64],
        group_of_document: NDArray[np.int64],
        left: NDArray[np.int64],
        a: NDArray[np.int64],
        b: NDArray[np.int64],
        estimated: NDArray[np.float64],
    ) -> None:
        group_of_pair = group_of_document[left]
        by_group = np.argsort(group_of_pair, kind="stable")
        involved = np.isin(self.tested, documents)
        tested, rejected = self.tested[involved], self.rejected[involved]
        group_of_tested = group_of_document[np.searchsorted(documents, tested)]
        tested_by_group = np.argsort(group_of_tested, kind="stable")
        for group in range(int(group_of_document.max(initial=-1)) + 1):
            low, high = np.searchsorted(group_of_pair[by_group], [group, group + 1])
            rows = by_group[low:high]
            name = f"{unit_name(group)}.arrow"
            write_columns(self.folder.child(groups), name, PAIR_SCHEMA, [[a[rows], b[rows], estimated[rows]]])
            low, high = np.searchsorted(group_of_tested[tested_by_group], [group, group + 1])
            rows = tested_by_group[low:high]
            write_columns(
                self.folder.child(f"{groups}-tested"),
                name,
                TESTED_SCHEMA,
                [[tested[rows], rejected[rows]]],
            )

    def _settle(self, groups: str, documents: NDArray[np.int64]) -> None:
        with self.folder.create(f"{groups}-wanted.npy") as sink:
            np.save(sink, documents)
        self.settled += len(documents)
        for number, corpus in enumerate(self.corpora):
            context = SettleContext(
                corpus.plan,
                corpus.config,
                corpus.ordinals,
                corpus.view.first,
                self.folder,
                f"{groups}-wanted.npy",
                f"{groups}-shingles-{number}",
            )
            stage = f"settle-{groups}" + (f"-{number}" if number else "")
            self.stages.run(stage, settle_unit, context, range(len(corpus.plan.units)))


def read_keep(view: WorkView) -> NDArray[np.bool_]:
    """bool per document of an index: whether it survived there."""
    parts = [np.zeros(0, bool)]
    for unit in range(len(view.unit_first) - 1):
        with view.folder.child(view.survivors).open(f"decisions/{unit_name(unit)}.arrow") as file:
            parts.append(pa.ipc.open_file(file).read_all().column("keep").to_numpy())
    return np.concatenate(parts)


def resolve(verdicts: pa.Table, twins: pa.Table, num_own: int, config: DedupConfig) -> tuple[pa.Table, list[str]]:
    """One row per document that has a duplicate, by ordinal, twins judged with their representatives."""
    document = verdicts.column("document").to_numpy()
    order = np.argsort(document, kind="stable")
    document = document[order]
    survivor = verdicts.column("survivor").to_numpy()[order]
    similarity = verdicts.column("similarity").to_numpy()[order]
    verified = verdicts.column("verified").to_numpy()[order]
    component = verdicts.column("component").to_numpy()[order]
    linked = verdicts.column("linked").to_numpy()[order]
    survivor_id = verdicts.column("survivor_id").combine_chunks().take(pa.array(order))
    keep = survivor == document
    reason = np.where(verified == BY_HASH, FOLDED_TEXT, NEAR).astype(np.uint8)
    if config.keep_none:
        keep &= ~linked

    twin = twins.column("document").to_numpy()
    representative = twins.column("representative").to_numpy()
    at = np.searchsorted(document, representative)
    known = at < len(document)
    known[known] = document[at[known]] == representative[known]
    at = np.where(known, at, 0)
    follows = known & ~keep[at] if len(document) else np.zeros(len(twin), bool)
    if config.keep_none:
        follows &= False
    # Twins follow their representative: to where it stays, or to the document that stays in its place.
    twin_survivor = np.where(follows, survivor[at], representative) if len(document) else representative
    twin_similarity = np.where(follows, similarity[at], 1.0) if len(document) else np.ones(len(twin))
    twin_verified = np.where(follows, verified[at], BY_HASH) if len(document) else np.zeros(len(twin), np.uint8)
    twin_reason = np.where(follows, reason[at], EXACT) if len(document) else np.full(len(twin), EXACT)
    twin_component = np.where(known, component[at], representative) if len(document) else representative
    ids = pa.chunked_array([twins.column("representative_id").combine_chunks(), survivor_id], pa.string())
    twin_id = ids.combine_chunks().take(pa.array(np.where(follows, len(twin) + at, np.arange(len(twin)))))

    # Representatives that nothing else resembles are not among the verdicts yet.
    alone, first_twin = np.unique(representative[~known & (representative < num_own)], return_index=True)
    alone_twin = twin[~known & (representative < num_own)][first_twin]
    alone_survivor = alone_twin if config.keep_none else alone
    columns = {
        "document": np.concatenate([document, twin, alone]),
        "keep": np.concatenate([keep, np.zeros(len(twin), bool), np.full(len(alone), not config.keep_none)]),
        "reason": np.concatenate([reason, twin_reason, np.full(len(alone), EXACT)]).astype(np.uint8),
        "survivor": np.concatenate([survivor, twin_survivor, alone_survivor]),
        "similarity": np.concatenate([similarity, twin_similarity, np.ones(len(alone))]).astype(np.float32),
        "verified": np.concatenate([verified, twin_verified, np.full(len(alone), BY_HASH)]).astype(np.uint8),
        "component": np.concatenate([component, twin_component, alone]),
    }
    ids = pa.chunked_array([survivor_id, twin_id, pa.nulls(len(alone), pa.string())], pa.string())
    _name_components(columns, num_own)
    if config.keep_none:
        _drop_kept_twins(columns, twin, representative)
    removed = ~columns["keep"]
    target, sizes = np.unique(columns["survivor"][removed], return_counts=True)
    size = np.ones(len(columns["document"]), np.int64)
    found = np.searchsorted(target, columns["document"])
    match = found < len(target)
    match[match] = target[found[match]] == columns["document"][match]
    size[match] += sizes[found[match]]
    columns["cluster_size"] = np.where(columns["keep"], size, 0)
    order = np.argsort(columns["document"], kind="stable")
    arrays = [
        ids.combine_chunks().take(pa.array(order))
        if field.name == "survivor_id"
        else pa.array(columns[field.name][order]).cast(field.type)
        for field in RESOLVED_SCHEMA
    ]
    table = pa.Table.from_arrays(arrays, schema=RESOLVED_SCHEMA)
    return table, _large_clusters(columns, num_own)


def _name_components(columns: dict[str, NDArray[Any]], num_own: int) -> None:
    """A component is named by its smallest ordinal, twins included."""
    values, inverse = np.unique(columns["component"], return_inverse=True)
    smallest = np.full(len(values), np.iinfo(np.int64).max)
    np.minimum.at(smallest, inverse.reshape(-1), columns["document"])
    columns["component"] = smallest[inverse.reshape(-1)] if len(values) else columns["component"]


def _drop_kept_twins(
    columns: dict[str, NDArray[Any]], twin: NDArray[np.int64], representative: NDArray[np.int64]
) -> None:
    """--keep-none: a representative goes with its twins even where nothing else resembles it."""
    first_of, first_twin = np.unique(representative, return_index=True)
    at = np.searchsorted(first_of, columns["document"])
    match = at < len(first_of)
    match[match] = first_of[at[match]] == columns["document"][match]
    still = match & columns["keep"]
    columns["keep"][still] = False
    columns["reason"][still] = EXACT
    columns["survivor"][still] = twin[first_twin[at[still]]]
    columns["similarity"][still] = 1.0
    columns["verified"][still] = BY_HASH


def _large_clusters(columns: dict[str, NDArray[Any]], num_own: int) -> list[str]:
    sizes = columns["cluster_size"]
    if not len(sizes) or sizes.max() <= max(LARGE_CLUSTER_SHARE * num_own, 10):
        return []
    largest = int(np.argmax(sizes))
    share = sizes[largest] / num_own
    return [
        f"one cluster holds {sizes[largest]:,} documents, {share:.1%} of the corpus (survivor: document "
        f"{int(columns['document'][largest])}); look at it with `taojin explain` before you trust this threshold"
    ]


def read_tables(folder: Folder, kind: str, stats: Sequence[Stats]) -> pa.Table:
    """All files of a stage as one table, in memory of its own."""
    tables = []
    for index in range(len(stats)):
        with folder.child(kind).resolve()[0].open_input_file(folder.path(f"{kind}/{unit_name(index)}.arrow")) as file:
            tables.append(pa.ipc.open_file(file).read_all())
    if tables:
        return pa.concat_tables(tables).combine_chunks()
    return VERDICT_SCHEMA.append(pa.field("survivor_id", pa.string())).empty_table()


def _write_bits(folder: Folder, name: str, bits: NDArray[np.bool_]) -> None:
    with folder.create(name) as sink:
        sink.write(np.packbits(bits, bitorder="little") if bits.any() else b"")


def _write_table(folder: Folder, name: str, table: pa.Table) -> None:
    with folder.create(name) as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks(), max_chunksize=1 << 62)


def _totals(unit_stats: Sequence[Stats], num_documents: int) -> dict[str, Any]:
    reasons: Counter[str] = Counter()
    kept = 0
    for stats in unit_stats:
        kept += stats["kept"]
        reasons.update(stats["reasons"])
    return {"documents": num_documents, "kept": kept, "removed": dict(sorted(reasons.items()))}
