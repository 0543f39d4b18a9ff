"""Proofs from WORK: that OUT was written from it, that its files stand, and that ledger, decisions and OUT agree.

Cost: every byte of WORK once for its checksum; decisions, ledger and OUT's own columns once more, unit by unit.
Memory: 1 byte a document and 16 a removal.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from taojin.core.config import fingerprint
from taojin.core.corpus import OUR_FIELDS
from taojin.core.errors import InputError, InvariantError
from taojin.core.sidecars import Corpus
from taojin.core.storage import FileEntry, Folder, first_line
from taojin.core.tasks import unit_name
from taojin.dedup.config import DedupConfig
from taojin.dedup.decide import read_keep
from taojin.frozen import MARKER
from taojin.opened import open_corpus, place_of, read_decisions, unit_of, with_settings
from taojin.pipeline import MANIFEST, open_index
from taojin.proofs import BrokenError, Finding, Report
from taojin.proofs_of_output import num_duplicates, our_columns, reading, require
from taojin.report import number

NEAR = "near_duplicate"
# Similarities are stored as float32.
ROUNDING = 1e-6


def prove_work(output: Folder, manifest: dict[str, Any], work: Folder) -> tuple[Corpus, str]:
    """WORK is the one that OUT was written from, and its decision stands. The corpus has the decision's settings."""
    plan = work.read_json("plan.json")
    where = work.child("plan.json").uri
    theirs = [(shard["path"], shard["fingerprint"]) for shard in manifest["shards"]]
    same = theirs == [(shard["path"], shard["fingerprint"]) for shard in plan["shards"]]
    if output.exists(MARKER):
        same = same and output.read_json(MARKER)["plan"] == fingerprint(plan)
    if not same:
        raise BrokenError(where, f"not the plan that {output.uri} was written from; name its own WORK with --work")
    corpus = open_corpus(work)
    decide = manifest["decide"]
    settings = work.read_json(f"{decide}/config.json")
    if any(manifest["config"][key] != value for key, value in settings.items()):
        raise BrokenError(work.child(f"{decide}/config.json").uri, f"not the settings in {MANIFEST}")
    num_shards, num_units = len(corpus.plan.shards), len(corpus.plan.units)
    detail = f"{decide} of {work.uri}: {number(num_shards, 'shard')}, {number(num_units, 'unit')}, the same plan"
    return with_settings(corpus, settings), detail


def prove_checksums(work: Folder, decide: Folder) -> tuple[bool, str]:
    """Every file that a manifest entry in WORK/stats or WORK/decide-…/stats names."""
    files = size = unplaced = 0
    for stats, root in ((work.child("stats"), work), (decide.child("stats"), decide)):
        for stage in stats.names():
            if stage.startswith("write"):  # lies in some OUT; this one's parts have been proved
                continue
            for name in stats.names(stage):
                for kind, value in stats.read_json(f"{stage}/{name}").get("files", {}).items():
                    folder = _folder_of(root, stage, kind)
                    if folder is None:
                        unplaced += 1
                        continue
                    entry = FileEntry(**value)
                    require(folder, entry)
                    files += 1
                    size += entry.bytes
    rest = f"; {unplaced:,} of stages unknown here were left out" if unplaced else ""
    return True, f"{number(files, 'file')}, {size:,} bytes of WORK: sizes and XXH3 checksums{rest}"


def _folder_of(root: Folder, stage: str, kind: str) -> Folder | None:
    """Where a stage keeps its files of a kind."""
    if stage in ("scan", "rules", "twins", "pairs", "decisions"):
        return root.child(kind)
    if stage == "driver":
        return root
    action, _, groups = stage.partition("-")
    if action == "judge":
        return root.child(f"{groups}-{kind}")
    if action == "settle":
        groups, _, index = groups.partition("-")
        return root.child(f"{groups}-{kind}-{index or 0}")
    return None


class Ledger(NamedTuple):
    """What the ledger says, over all units.

    keep: bool per document · document, survivor: ordinals of removals in favour of a document of this run ·
    near: [document, survivor's work, survivor's position] of near-duplicates · in_index: by work number, positions of
    the survivors there.
    """

    keep: NDArray[np.bool_]
    document: NDArray[np.int64]
    survivor: NDArray[np.int64]
    near: NDArray[np.int64]
    in_index: dict[int, NDArray[np.int64]]


def _decisions(decide: Folder, unit: int) -> tuple[pa.RecordBatch, str]:
    """(a unit's decisions, where they lie)."""
    where = decide.child(f"decisions/{unit_name(unit)}.arrow").uri
    try:
        return read_decisions(decide, unit), where
    except (OSError, pa.ArrowException) as error:
        raise BrokenError(where, f"cannot be read: {first_line(error)}") from None


def prove_ledger(corpus: Corpus, decide: Folder, manifest: dict[str, Any]) -> tuple[Ledger, str]:
    """A ledger row for every removed document and for no other, with the decision's own words, in position order."""
    ordinals = corpus.ordinals
    threshold = corpus.config.threshold if isinstance(corpus.config, DedupConfig) else 1.0
    keep = np.zeros(ordinals.num_documents, bool)
    reasons: Counter[str] = Counter()
    own: list[NDArray[np.int64]] = [np.zeros((0, 2), np.int64)]
    near: list[NDArray[np.int64]] = [np.zeros((0, 3), np.int64)]
    in_index: dict[int, list[NDArray[np.int64]]] = {}
    for unit in range(len(corpus.plan.units)):
        first, last = ordinals.unit_first[unit : unit + 2].tolist()
        decisions, where = _decisions(decide, unit)
        if decisions.num_rows != last - first:
            raise BrokenError(where, f"expected {last - first:,} decisions, found {decisions.num_rows:,}")
        keep[first:last] = decisions.column("keep").to_numpy(zero_copy_only=False)
        gone = np.flatnonzero(~keep[first:last])
        removed = pa.Table.from_batches([decisions]).take(pa.array(gone))
        where = decide.child(f"ledger/{unit_name(unit)}.parquet").uri
        with reading(decide, f"ledger/{unit_name(unit)}.parquet") as parquet:
            ledger = parquet.read()
        _require_agreement(ledger, removed, ordinals.positions(gone + first), where)
        reason = ledger.column("reason").to_pylist()
        reasons.update(reason)
        work = removed.column("survivor_work").fill_null(-1).to_numpy().astype(np.int64)
        survivor = removed.column("survivor").fill_null(-1).to_numpy()
        similarity = ledger.column("similarity").fill_null(-1).to_numpy()
        _require_similarity(reason, similarity, work, threshold, where)
        here = work == 0
        own.append(np.column_stack([gone[here] + first, ordinals.ordinals(survivor[here])]))
        is_near = np.array([entry == NEAR for entry in reason], bool)
        near.append(np.column_stack([gone[is_near] + first, work[is_near], survivor[is_near]]))
        for index in np.unique(work[work > 0]).tolist():
            in_index.setdefault(index, []).append(survivor[work == index])
    counts = manifest["counts"]
    if dict(reasons) != counts["removed"] or int(keep.sum()) != counts["kept"]:
        raise BrokenError(
            decide.child("ledger").uri, f"its rows by reason are {dict(reasons)}, in {MANIFEST} {counts['removed']}"
        )
    pairs = np.concatenate(own)
    value = Ledger(
        keep, pairs[:, 0], pairs[:, 1], np.concatenate(near), {k: np.concatenate(v) for k, v in in_index.items()}
    )
    detail = f"{number(sum(reasons.values()), 'row')}, one for each removed document and none for a kept one"
    if reasons[NEAR]:
        detail += f"; {number(reasons[NEAR], 'near-duplicate')} at similarity {threshold:g} or more"
    return value, detail


def _require_agreement(ledger: pa.Table, removed: pa.Table, positions: NDArray[np.int64], where: str) -> None:
    found = ledger.column("position").to_numpy()
    if not np.array_equal(found, positions):
        missing = np.setdiff1d(positions, found)
        extra = np.setdiff1d(found, positions)
        if len(missing) or len(extra):
            example = f", position {int((missing if len(missing) else extra)[0])} for one"
            raise BrokenError(
                where, f"{len(missing):,} removed documents lack a row and {len(extra):,} kept ones have one{example}"
            )
        raise BrokenError(where, "its rows are repeated or out of order")
    for ours, theirs in (
        ("reason", "reason"),
        ("similarity", "similarity"),
        ("survivor_position", "survivor"),
        ("component", "component"),
    ):
        decided = removed.column(theirs)
        if (
            not ledger.column(ours)
            .combine_chunks()
            .equals(decided.cast(ledger.schema.field(ours).type).combine_chunks())
        ):
            raise BrokenError(
                where, f"{ours} is not what decisions/{where.rsplit('/', 1)[-1].split('.')[0]}.arrow says"
            )


def _require_similarity(
    reason: list[str], similarity: NDArray[np.float32], work: NDArray[np.int64], threshold: float, where: str
) -> None:
    """Near-duplicates reach the threshold, exact and folded ones are equal, all have a survivor; others have none."""
    least = {NEAR: threshold, "exact_duplicate": 1.0, "folded_duplicate": 1.0}
    for name in set(reason):
        chosen = np.array([entry == name for entry in reason], bool)
        if name in least:
            lowest = float(similarity[chosen].min())
            if lowest < least[name] - ROUNDING:
                raise BrokenError(where, f"a {name} of similarity {lowest:.4f}, expected {least[name]:g} or more")
        if ((work[chosen] >= 0) != (name in least)).any():
            raise BrokenError(
                where, f"{name}: expected {'a survivor' if name in least else 'no survivor'} in every row"
            )


def prove_clusters(corpus: Corpus, decide: Folder, manifest: dict[str, Any], ledger: Ledger) -> tuple[bool, str]:
    """Survivors are themselves kept; cluster_size = 1 + ledger rows that name the document; the sums meet."""
    keep_none = isinstance(corpus.config, DedupConfig) and corpus.config.keep_none
    survivor_kept = ledger.keep[ledger.survivor]
    wrong = survivor_kept if keep_none else ~survivor_kept
    if wrong.any():
        document = int(ledger.document[wrong][0])
        what = "stays, though --keep-none drops both sides" if keep_none else "is itself removed"
        raise BrokenError(
            decide.child(f"ledger/{unit_name(unit_of(corpus, document))}.parquet").uri,
            f"the survivor of {place_of(corpus, document)} {what} ({int(wrong.sum()):,} such rows)",
        )
    named, counts = np.unique(ledger.survivor, return_counts=True)
    if keep_none:
        named, counts = named[:0], counts[:0]
    largest = 1
    for unit in range(len(corpus.plan.units)):
        first, last = corpus.ordinals.unit_first[unit : unit + 2].tolist()
        decisions, where = _decisions(decide, unit)
        size = decisions.column("cluster_size").fill_null(0).to_numpy()
        expected = ledger.keep[first:last].astype(np.int64)
        low, high = np.searchsorted(named, [first, last])
        expected[named[low:high] - first] += counts[low:high]
        if not np.array_equal(size, expected):
            at = int(np.argmax(size != expected))
            raise BrokenError(where, f"row {at} has cluster_size {size[at]}, the ledger makes it {expected[at]}")
        cluster = decisions.column("cluster").fill_null(-1).to_numpy()
        kept = np.flatnonzero(ledger.keep[first:last])
        if not np.array_equal(cluster[kept], corpus.ordinals.positions(kept + first)):
            raise BrokenError(where, "a kept document whose cluster is not its own position")
        largest = max(largest, int(size.max(initial=1)))
    in_index = sum(map(len, ledger.in_index.values()))
    duplicates = num_duplicates(manifest)
    if len(ledger.survivor) + in_index != duplicates:
        raise BrokenError(
            decide.child("ledger").uri, f"{len(ledger.survivor):,} + {in_index:,} rows for {duplicates:,} duplicates"
        )
    if keep_none:
        return True, f"both sides of every pair are removed, {number(len(ledger.survivor), 'row')} (--keep-none)"
    detail = f"all {number(len(named), 'survivor')} kept; cluster_size = 1 + ledger rows, the largest {largest:,}"
    if in_index:
        detail += f"; {len(ledger.survivor):,} + {in_index:,} in favour of an index = {duplicates:,} duplicates"
    return True, detail


def check_index(report: Report, corpus: Corpus, name: str, place: int, ledger: Ledger) -> None:
    """Survivors in an index that still stands are kept there. place: the index's among --against, from 1."""
    positions = ledger.in_index.get(place, np.zeros(0, np.int64))
    try:
        index = open_index(name, corpus.config, 0)
    except InputError as error:
        report.leave_out("index", f"{number(len(positions), 'survivor')} not looked up: {error}")
        return
    except InvariantError as error:
        report.findings.append(Finding("index", "broken", str(error), name))
        return

    def prove() -> tuple[bool, str]:
        kept = read_keep(index.view)[index.ordinals.ordinals(positions)]
        if not kept.all():
            raise BrokenError(name, f"{int((~kept).sum()):,} of {len(positions):,} survivors did not survive there")
        return True, f"{number(len(np.unique(positions)), 'survivor')} in {name}, all kept there"

    report.prove("index", name, prove)


def prove_output_rows(corpus: Corpus, decide: Folder, output: Folder, manifest: dict[str, Any]) -> tuple[bool, str]:
    """OUT's cluster, cluster_size and component are the decisions' of the kept documents, in order."""
    stream = _OutputRows(output, manifest)
    for unit in range(len(corpus.plan.units)):
        decisions, _ = _decisions(decide, unit)
        kept = decisions.filter(decisions.column("keep"))
        expected = [kept.column(field.name).to_numpy() for field in OUR_FIELDS]
        for found, wanted, field in zip(stream.take(kept.num_rows), expected, OUR_FIELDS, strict=True):
            if not np.array_equal(found, wanted):
                raise BrokenError(stream.where, f"{field.name} is not what decisions/{unit_name(unit)}.arrow says")
    if len(stream.take(1)[0]):
        raise BrokenError(stream.where, "more rows than documents were kept")
    return True, f"{stream.total:,} rows are the kept documents, each with its decided cluster, size and component"


class _OutputRows:
    """Our columns of all parts as one stream."""

    def __init__(self, output: Folder, manifest: dict[str, Any]) -> None:
        self.where = output.uri
        self.total = 0
        self._output = output
        self._groups = self._read([entry["name"] for entry in manifest["parts"]])
        self._held = [np.zeros(0, np.int64) for _ in OUR_FIELDS]

    def _read(self, names: list[str]) -> Iterator[list[NDArray[Any]]]:
        for name in names:
            with reading(self._output, name) as parquet:
                for group in range(parquet.num_row_groups):
                    self.where = self._output.child(name).uri
                    yield list(our_columns(parquet, group, self.where))

    def take(self, rows: int) -> list[NDArray[Any]]:
        """The next rows of every column; fewer at the end."""
        while len(self._held[0]) < rows:
            group = next(self._groups, None)
            if group is None:
                break
            self._held = [np.concatenate(pair) for pair in zip(self._held, group, strict=True)]
        taken = [column[:rows] for column in self._held]
        self._held = [column[rows:] for column in self._held]
        self.total += len(taken[0])
        return taken
