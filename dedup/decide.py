"""Decide: from sidecars and keys to one decision per document. No text is read, but for what `settle` must.

    exact keys ─ twins ─┐
    band keys ─ pairs ──┴─ groups ─ judge ─(settle ─ judge)─ resolved ─ decisions + ledger

Everything lies under WORK/decide-<hash>/. This is the driver: it merges what the tasks found (memory: about 100 bytes
per document that has a duplicate) and hands out the next stage.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from taojin.core.ledger import Decided, DecisionContext, decide_unit, totals
from taojin.core.sidecars import Corpus, WorkView, gather
from taojin.core.storage import Folder
from taojin.core.tasks import Stages, Stats, unit_name
from taojin.dedup.clusters import connected_components, pack_groups, unique_pairs
from taojin.dedup.config import DedupConfig
from taojin.dedup.pairs import PAIR_SCHEMA, TESTED_SCHEMA, PairContext, pair_range, read_columns, write_columns
from taojin.dedup.resolve import resolve
from taojin.dedup.settle import SettleContext, settle_unit
from taojin.dedup.survivors import VERDICT_SCHEMA, GroupContext, judge_group
from taojin.dedup.twins import twin_range

# Shingle sets that one judging task may hold.
GROUP_SET_BYTES = 400_000_000
# Key ranges of the plan that one task takes when it looks for equal bytes; a power of two, as their number is.
EXACT_RANGES = 16
# A cluster above this share of the corpus is worth a look: a template, an error page, or a threshold set too low.
LARGE_CLUSTER_SHARE = 0.01


def decide(
    corpora: Sequence[Corpus],
    config: DedupConfig,
    folder: Folder,
    stages: Stages,
    rules: tuple[str, ...] = (),
    failing: NDArray[np.bool_] | None = None,
) -> Decided:
    """Judge every document of corpora[0]; the others are indexes. `folder`: WORK/decide-<hash>.

    rules: names of the rules that were judged before; failing: bool per own document, whether it fails one: it goes,
    and no other goes in its favour.
    """
    own = corpora[0]
    works = tuple(corpus.view for corpus in corpora)
    num_own = own.ordinals.num_documents
    total = num_own + sum(work.num_documents for work in works[1:])
    excluded = np.zeros((total + 7) // 8 * 8, bool)
    if failing is not None:
        excluded[:num_own] = failing
    for corpus in corpora[1:]:
        first = corpus.view.first
        excluded[first : first + corpus.view.num_documents] = ~read_keep(corpus.view)
    context = PairContext(works, config, own.plan.num_ranges, folder, "excluded-twins.bin")
    files = {context.excluded_name: _write_bits(folder, context.excluded_name, excluded)}
    # One exact key a document where there are twenty band keys: coarser ranges hold as many, and open fewer files.
    twin_context = context._replace(num_ranges=max(1, own.plan.num_ranges // EXACT_RANGES))
    twin_stats = stages.run("twins", twin_range, twin_context, range(twin_context.num_ranges))
    twins = read_tables(folder, "twins", twin_stats)

    excluded[twins.column("document").to_numpy()] = True
    context = context._replace(excluded_name="excluded-pairs.bin")
    files[context.excluded_name] = _write_bits(folder, context.excluded_name, excluded)
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
    resolved = resolve(pa.concat_tables(tables), twins, num_own, config)
    warnings = large_clusters(resolved, own)
    files |= judge.files | {"resolved.arrow": _write_table(folder, "resolved.arrow", resolved)}
    # What the driver itself wrote, for `taojin check`: it is written again by every run.
    stages.stats.write_json(f"driver/{unit_name(0)}.json", {"files": files})

    unit_context = DecisionContext(own.plan, own.ordinals, works, folder, "resolved.arrow", rules)
    unit_stats = stages.run("decisions", decide_unit, unit_context, range(len(own.plan.units)))
    counts = {
        **totals(unit_stats, num_own),
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
        self.files: dict[str, Any] = {}  # manifest entries, by name in `folder`

    def run(
        self, groups: str, a: NDArray[np.int64], b: NDArray[np.int64], estimated: NDArray[np.float64], *, settled: bool
    ) -> tuple[pa.Table, tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]]:
        """(verdicts, pairs of the components that want exact shingles)."""
        if not len(a):
            return read_tables(self.folder, f"{groups}-verdicts", []), (a, b, estimated)
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
        group_of_document = group_of_component[component]
        self._write_groups(groups, documents, group_of_document, left, a, b, estimated)
        context = GroupContext(self.works, self.config, self.folder, groups, settled)
        num_groups = int(group_of_component[-1]) + 1
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
        for group in range(int(group_of_document.max()) + 1):
            low, high = np.searchsorted(group_of_pair[by_group], [group, group + 1])
            rows = by_group[low:high]
            name = f"{groups}/{unit_name(group)}.arrow"
            columns: list[NDArray[Any]] = [a[rows], b[rows], estimated[rows]]
            self.files[name] = write_columns(self.folder, name, PAIR_SCHEMA, [columns])
            low, high = np.searchsorted(group_of_tested[tested_by_group], [group, group + 1])
            rows = tested_by_group[low:high]
            name = f"{groups}-tested/{unit_name(group)}.arrow"
            self.files[name] = write_columns(self.folder, name, TESTED_SCHEMA, [[tested[rows], rejected[rows]]])

    def _settle(self, groups: str, documents: NDArray[np.int64]) -> None:
        wanted = f"{groups}-wanted.npy"
        with self.folder.create(wanted) as sink:
            np.save(sink, documents)
        self.files[wanted] = self.folder.entry(wanted, sink).as_json()
        self.settled += len(documents)
        for number, corpus in enumerate(self.corpora):
            context = SettleContext(
                corpus.plan,
                corpus.config,
                corpus.ordinals,
                corpus.view.first,
                self.folder,
                wanted,
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


def large_clusters(resolved: pa.Table, own: Corpus) -> list[str]:
    """A warning for the largest cluster if it holds more than LARGE_CLUSTER_SHARE of the corpus."""
    sizes = resolved.column("cluster_size").to_numpy()
    total = own.ordinals.num_documents
    if not len(sizes) or sizes.max() <= max(LARGE_CLUSTER_SHARE * total, 10):
        return []
    largest = int(np.argmax(sizes))
    shard, row = own.ordinals.shard_and_row(resolved.column("document").to_numpy()[largest : largest + 1])
    name = f"{own.view.shard_paths[int(shard[0])]}#{int(row[0])}"
    return [
        f"one cluster holds {sizes[largest]:,} documents, {sizes[largest] / total:.1%} of the corpus; its survivor is "
        f"{name}: look at it with `taojin explain` before you trust this threshold"
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


def _write_bits(folder: Folder, name: str, bits: NDArray[np.bool_]) -> dict[str, Any]:
    """Returns the manifest entry."""
    with folder.create(name) as sink:
        sink.write(np.packbits(bits, bitorder="little") if bits.any() else b"")
    return folder.entry(name, sink).as_json()


def _write_table(folder: Folder, name: str, table: pa.Table) -> dict[str, Any]:
    """Returns the manifest entry."""
    with folder.create(name) as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks(), max_chunksize=1 << 62)
    return folder.entry(name, sink).as_json()
