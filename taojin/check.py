"""Re-open an output and prove what a run promises: `taojin check OUT`.

In: OUT; WORK (default: OUT.work) where it stands; the input where it stands. Out: one line per invariant on stdout.
Cost: every byte of OUT and WORK is read once for its checksum, `cluster`, `cluster_size`, `component`, decisions and
ledger once more; of the input only what the sample touches (at most SAMPLE_PIECES pieces twice over). Memory: 1 byte a
document and 16 a removal, streamed by unit otherwise.

A broken invariant names its file; the others are still looked at. Nothing is changed.
"""

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field
from tyro.conf import Positional, arg

from taojin.core.config import Config, fingerprint
from taojin.core.errors import InputError, InvariantError
from taojin.core.reading import BadShardError
from taojin.core.storage import FileEntry, Folder, first_line
from taojin.core.tasks import unit_name
from taojin.core.uris import with_suffix
from taojin.dedup.decide import Corpus, read_keep
from taojin.dedup.write import OUR_FIELDS
from taojin.explain import exact_jaccard, open_corpus, piece_of, read_rows, standing
from taojin.pipeline import MANIFEST, MARKER, open_index

DUPLICATES = ("exact_duplicate", "folded_duplicate", "near_duplicate")
NEAR = "near_duplicate"
SAMPLE_SEED = 20161  # any fixed number: the same sample on every call
SAMPLE_PIECES = 32
# Similarities are stored as float32.
ROUNDING = 1e-6

T = TypeVar("T")


class CheckConfig(Config):
    """Prove an output: files, counts, clusters, ledger, a sample against the input. Exit status 1 if one is broken."""

    output: Positional[str]
    """the output folder of `taojin dedup`"""
    work: str | None = None
    """its WORK folder (default: the output's name + .work, where it stands)"""
    sample: Annotated[int, Field(ge=0)] = 200
    """documents, and near-duplicate removals, that are compared with the input (0: none)"""
    as_json: Annotated[bool, arg(name="json")] = False
    """one JSON object on stdout"""


class Finding(NamedTuple):
    """status: proved, broken (then `file` names where), or "left out" where something is not there to be compared."""

    invariant: str
    status: str
    detail: str
    file: str = ""


class BrokenError(Exception):
    """An invariant does not hold; `file` is where."""

    def __init__(self, file: str, detail: str) -> None:
        super().__init__(detail)
        self.file = file


class Report:
    """Findings in order; `prove` runs one proof and takes what it raises for what it means."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.measured: dict[str, Any] = {}

    def prove(self, invariant: str, where: str, proof: Callable[[], tuple[T, str]]) -> T | None:
        """The proof's value, or None when it is broken. `where`: the file to name when the proof cannot."""
        try:
            value, detail = proof()
        except BrokenError as broken:
            self.findings.append(Finding(invariant, "broken", str(broken), broken.file))
            return None
        except (OSError, pa.ArrowException, BadShardError, InvariantError, InputError) as error:
            self.findings.append(Finding(invariant, "broken", f"cannot be read: {first_line(error)}", where))
            return None
        except (KeyError, IndexError, TypeError, ValueError) as error:
            detail = f"does not hold what it should ({type(error).__name__}: {first_line(error)})"
            self.findings.append(Finding(invariant, "broken", detail, where))
            return None
        self.findings.append(Finding(invariant, "proved", detail))
        return value

    def leave_out(self, invariant: str, why: str) -> None:
        self.findings.append(Finding(invariant, "left out", why))

    @property
    def broken(self) -> int:
        return sum(finding.status == "broken" for finding in self.findings)


def run_check(config: CheckConfig) -> int:
    """Print the findings; returns 0, or 1 when an invariant is broken. Raises InputError for no output of ours."""
    output = Folder(config.output)
    report = check_output(output, config.work, config.sample)
    print_report(report, output, as_json=config.as_json)
    return 1 if report.broken else 0


def check_output(output: Folder, work_name: str | None, sample: int) -> Report:
    """All proofs, those of OUT alone first."""
    if not output.exists(MANIFEST) and not output.exists(MARKER):
        hint = "; this is a WORK folder, name its output" if output.exists("plan.json") else ""
        raise InputError(f"{output.uri}: expected an output of `taojin dedup` ({MANIFEST} in it), found none{hint}")
    report = Report()
    manifest = report.prove("manifest", MANIFEST, lambda: read_manifest(output))
    if manifest is None:
        return report
    report.prove("files", output.uri, lambda: prove_files(output, manifest))
    rows = report.prove("columns", output.uri, lambda: prove_columns(output, manifest))
    report.prove("conservation", MANIFEST, lambda: prove_conservation(manifest, rows))
    work = Folder(work_name or with_suffix(output.uri, ".work"))
    if not work.exists("plan.json"):
        if work_name:
            raise InputError(f"--work {work.uri}: expected a WORK folder (plan.json in it), found none")
        report.leave_out("work", f"{work.uri} is not there; decisions, ledger and input were not looked at (--work)")
        return report
    check_work(report, output, manifest, work, sample)
    return report


# ---------------------------------------------------------------------------------------------- OUT alone


def read_manifest(output: Folder) -> tuple[dict[str, Any], str]:
    if not output.exists(MANIFEST):
        raise BrokenError(
            output.child(MANIFEST).uri,
            "not there: the run did not end; the same `taojin dedup` command resumes it",
        )
    manifest = output.read_json(MANIFEST)
    counts = manifest["counts"]
    for key in ("documents", "kept", "removed"):
        counts[key]
    for entry in manifest["parts"]:
        FileEntry(**entry)
    detail = f"written by taojin {manifest['taojin']}: {counts['documents']:,} documents in, {counts['kept']:,} kept"
    return manifest, detail


def prove_files(output: Folder, manifest: dict[str, Any]) -> tuple[bool, str]:
    """Every part stands with its size and checksum, and nothing else lies in OUT."""
    entries = [FileEntry(**entry) for entry in manifest["parts"]]
    for entry in entries:
        require(output, entry)
    foreign = set(output.names()) - {entry.name for entry in entries} - {MANIFEST, MARKER}
    if foreign:
        names = ", ".join(sorted(foreign)[:3])
        raise BrokenError(
            output.child(min(foreign)).uri,
            f"lies there without being a part ({len(foreign)} such: {names}); take it away",
        )
    size = sum(entry.bytes for entry in entries)
    return True, f"{number(len(entries), 'part')}, {size:,} bytes: sizes and XXH3 checksums; nothing else lies there"


def require(folder: Folder, entry: FileEntry) -> None:
    try:
        folder.require(entry, checksum=True)
    except InvariantError as error:
        detail = str(error).removeprefix(f"{folder.uri}/{entry.name}: ")
        raise BrokenError(folder.child(entry.name).uri, detail) from None


class Rows(NamedTuple):
    """What the parts hold; in_favour: Σ (cluster_size − 1)."""

    rows: int
    in_favour: int


def prove_columns(output: Folder, manifest: dict[str, Any]) -> tuple[Rows, str]:
    """Readable Parquet with one schema that ends in our columns; clusters ascend strictly across parts."""
    schema: pa.Schema | None = None
    last = -1
    total = in_favour = 0
    for entry in manifest["parts"]:
        where = output.child(entry["name"]).uri
        with reading(output, entry["name"]) as parquet:
            schema = _require_schema(parquet.schema_arrow, schema, where)
            if parquet.metadata.num_rows != entry["rows"]:
                raise BrokenError(where, f"expected {entry['rows']:,} rows, found {parquet.metadata.num_rows:,}")
            for group in range(parquet.num_row_groups):
                cluster, size, component = our_columns(parquet, group, where)
                if not len(cluster):
                    continue
                steps = np.diff(cluster, prepend=last)
                if (steps <= 0).any():
                    row = int(np.argmax(steps <= 0))
                    before = int(cluster[row - 1]) if row else last
                    raise BrokenError(where, f"cluster {int(cluster[row])} comes after {before}: rows are out of order")
                if (size < 1).any() or (component > cluster).any() or (component < 0).any():
                    raise BrokenError(
                        where, "a cluster_size below 1, or a component that is not the first of its members"
                    )
                last = int(cluster[-1])
                total += len(cluster)
                in_favour += int(size.sum(dtype=np.int64)) - len(cluster)
    columns = ", ".join(field.name for field in OUR_FIELDS)
    return Rows(total, in_favour), f"{total:,} rows end with {columns}; cluster ascends through all parts"


class reading:  # noqa: N801 – reads as a verb: with reading(…) as parquet
    """A Parquet file, open for the length of a `with`; what Arrow raises there names the file."""

    def __init__(self, folder: Folder, name: str) -> None:
        self.where = folder.child(name).uri
        filesystem, _ = folder.resolve()
        self._path = (filesystem, folder.path(name))

    def __enter__(self) -> Any:
        filesystem, path = self._path
        try:
            self._file = filesystem.open_input_file(path)
        except OSError as error:
            reason = (
                "no such file" if isinstance(error, FileNotFoundError) else f"cannot be opened: {first_line(error)}"
            )
            raise BrokenError(self.where, reason) from None
        try:
            return pq.ParquetFile(self._file)
        except (pa.ArrowException, OSError) as error:
            self._file.close()
            raise BrokenError(self.where, f"not readable as Parquet: {first_line(error)}") from None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._file.close()
        if isinstance(error, pa.ArrowException | OSError):
            raise BrokenError(self.where, f"not readable as Parquet: {first_line(error)}") from None


def _require_schema(found: pa.Schema, expected: pa.Schema | None, where: str) -> pa.Schema:
    ours = [(field.name, field.type) for field in OUR_FIELDS]
    last = [(field.name, field.type) for field in list(found)[-len(ours) :]]
    if last != ours:
        names = ", ".join(name for name, _ in last)
        raise BrokenError(
            where, f"expected the last columns to be {', '.join(name for name, _ in ours)}, found {names}"
        )
    if expected is not None and not found.equals(expected):
        raise BrokenError(where, "its columns are not those of the parts before it")
    return found


def our_columns(parquet: Any, group: int, where: str) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    table = parquet.read_row_group(group, columns=[field.name for field in OUR_FIELDS])
    if any(column.null_count for column in table.columns):
        raise BrokenError(where, "nulls in cluster, cluster_size or component")
    cluster, size, component = (column.to_numpy() for column in table.columns)
    return cluster, size, component


def prove_conservation(manifest: dict[str, Any], rows: Rows | None) -> tuple[bool, str]:
    """in = kept + Σ removed; rows = kept; Σ (cluster_size − 1) = duplicates, as far as OUT alone tells."""
    counts, config = manifest["counts"], manifest["config"]
    documents, kept, removed = counts["documents"], counts["kept"], sum(counts["removed"].values())
    if documents != kept + removed:
        raise BrokenError(
            MANIFEST, f"{documents:,} in, {kept:,} kept and {removed:,} removed: some are unaccounted for"
        )
    listed = sum(entry["rows"] for entry in manifest["parts"])
    if listed != kept:
        raise BrokenError(MANIFEST, f"{kept:,} documents were to stay, its parts list {listed:,} rows")
    text = f"{documents:,} in = {kept:,} kept + {removed:,} removed"
    if rows is None:
        return True, f"{text} (by the manifest alone)"
    if rows.rows != kept:
        raise BrokenError(MANIFEST, f"{kept:,} documents were to stay, {rows.rows:,} rows are there")
    duplicates = sum(counts["removed"].get(reason, 0) for reason in DUPLICATES)
    if config["keep_none"]:
        if rows.in_favour:
            raise BrokenError(
                MANIFEST, f"--keep-none, and yet {rows.in_favour:,} documents went in favour of one that stays"
            )
        return True, f"{text}; no cluster has more than its own document (--keep-none)"
    if config["against"]:
        if rows.in_favour > duplicates:
            raise BrokenError(
                MANIFEST, f"Σ(cluster_size − 1) is {rows.in_favour:,}, above the {duplicates:,} duplicates"
            )
        return True, f"{text}; Σ(cluster_size − 1) = {rows.in_favour:,} of {duplicates:,} duplicates"
    if rows.in_favour != duplicates:
        raise BrokenError(MANIFEST, f"Σ(cluster_size − 1) is {rows.in_favour:,}, duplicates removed are {duplicates:,}")
    return True, f"{text}; Σ(cluster_size − 1) = {duplicates:,} duplicates"


# ---------------------------------------------------------------------------------------------- with WORK


def check_work(report: Report, output: Folder, manifest: dict[str, Any], work: Folder, sample: int) -> None:
    corpus = report.prove("work", work.child("plan.json").uri, lambda: prove_work(output, manifest, work))
    if corpus is None:
        return
    decide = work.child(manifest["decide"])
    report.prove("checksums", work.uri, lambda: prove_checksums(work, decide))
    ledger = report.prove("ledger", decide.uri, lambda: prove_ledger(corpus, decide, manifest))
    if ledger is not None:
        report.prove("clusters", decide.uri, lambda: prove_clusters(corpus, decide, manifest, ledger))
        for number, name in enumerate(manifest["config"]["against"], 1):
            _check_index(report, corpus, name, number, ledger)
    report.prove("output", output.uri, lambda: prove_output_rows(corpus, decide, output, manifest))
    if sample:
        _check_input(report, corpus, output, manifest, ledger, sample)


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
    settings = {key: manifest["config"][key] for key in ("threshold", "verify", "source_priority", "keep_none")}
    against = manifest["config"]["against"]
    decide = manifest["decide"]
    stored = work.read_json(f"{decide}/config.json")
    if any(stored[key] != manifest["config"][key] for key in [*settings, "against"]):
        raise BrokenError(work.child(f"{decide}/config.json").uri, f"not the settings in {MANIFEST}")
    settings["source_priority"] = tuple(settings["source_priority"])
    config = corpus.config.model_copy(update={**settings, "against": tuple(against)})
    num_shards, num_units = len(corpus.plan.shards), len(corpus.plan.units)
    detail = f"{decide} of {work.uri}: {number(num_shards, 'shard')}, {number(num_units, 'unit')}, the same plan"
    return corpus._replace(config=config), detail


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
    if stage in ("scan", "twins", "pairs", "decisions"):
        return root.child(kind)
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


def read_decisions(decide: Folder, unit: int) -> pa.RecordBatch:
    name = f"decisions/{unit_name(unit)}.arrow"
    try:
        with decide.open(name) as file:
            return pa.ipc.open_file(file).get_batch(0)
    except (OSError, pa.ArrowException) as error:
        raise BrokenError(decide.child(name).uri, f"cannot be read: {first_line(error)}") from None


def prove_ledger(corpus: Corpus, decide: Folder, manifest: dict[str, Any]) -> tuple[Ledger, str]:
    """A ledger row for every removed document and for no other, with the decision's own words, in position order."""
    ordinals, config = corpus.ordinals, corpus.config
    keep = np.zeros(ordinals.num_documents, bool)
    reasons: Counter[str] = Counter()
    own: list[NDArray[np.int64]] = [np.zeros((0, 2), np.int64)]
    near: list[NDArray[np.int64]] = [np.zeros((0, 3), np.int64)]
    in_index: dict[int, list[NDArray[np.int64]]] = {}
    for unit in range(len(corpus.plan.units)):
        first, last = ordinals.unit_first[unit : unit + 2].tolist()
        decisions = read_decisions(decide, unit)
        where = decide.child(f"decisions/{unit_name(unit)}.arrow").uri
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
        _require_similarity(reason, similarity, work, config.threshold, where)
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
        detail += f"; {number(reasons[NEAR], 'near-duplicate')} at similarity {config.threshold:g} or more"
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
    keep_none = corpus.config.keep_none
    survivor_kept = ledger.keep[ledger.survivor]
    wrong = survivor_kept if keep_none else ~survivor_kept
    if wrong.any():
        document = int(ledger.document[wrong][0])
        shard, row = corpus.ordinals.shard_and_row(np.array([document]))
        unit = int(np.searchsorted(corpus.ordinals.unit_first, document, side="right")) - 1
        what = "stays, though --keep-none drops both sides" if keep_none else "is itself removed"
        raise BrokenError(
            decide.child(f"ledger/{unit_name(unit)}.parquet").uri,
            f"the survivor of {corpus.plan.shards[shard[0]].path}#{row[0]} {what} ({int(wrong.sum()):,} such rows)",
        )
    named, counts = np.unique(ledger.survivor, return_counts=True)
    if keep_none:
        named, counts = named[:0], counts[:0]
    largest = 1
    for unit in range(len(corpus.plan.units)):
        first, last = corpus.ordinals.unit_first[unit : unit + 2].tolist()
        decisions = read_decisions(decide, unit)
        size = decisions.column("cluster_size").fill_null(0).to_numpy()
        expected = ledger.keep[first:last].astype(np.int64)
        low, high = np.searchsorted(named, [first, last])
        expected[named[low:high] - first] += counts[low:high]
        where = decide.child(f"decisions/{unit_name(unit)}.arrow").uri
        if not np.array_equal(size, expected):
            at = int(np.argmax(size != expected))
            raise BrokenError(where, f"row {at} has cluster_size {size[at]}, the ledger makes it {expected[at]}")
        cluster = decisions.column("cluster").fill_null(-1).to_numpy()
        kept = np.flatnonzero(ledger.keep[first:last])
        if not np.array_equal(cluster[kept], corpus.ordinals.positions(kept + first)):
            raise BrokenError(where, "a kept document whose cluster is not its own position")
        largest = max(largest, int(size.max(initial=1)))
    in_index = sum(map(len, ledger.in_index.values()))
    removed = manifest["counts"]["removed"]
    duplicates = sum(removed.get(reason, 0) for reason in DUPLICATES)
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


def _check_index(report: Report, corpus: Corpus, name: str, number_: int, ledger: Ledger) -> None:
    """Survivors in an index that still stands are kept there."""
    positions = ledger.in_index.get(number_, np.zeros(0, np.int64))
    try:
        index = open_index(name, corpus.config, 0)
    except InputError as error:
        report.leave_out("index", f"{number(len(positions), 'survivor')} not looked up: {error}")
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
        decisions = read_decisions(decide, unit)
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


# ---------------------------------------------------------------------------------------------- with the input


def _check_input(
    report: Report, corpus: Corpus, output: Folder, manifest: dict[str, Any], ledger: Ledger | None, sample: int
) -> None:
    if ledger is None:
        report.leave_out("input", "not compared: the decisions are broken")
        return
    chooser = random.Random(SAMPLE_SEED)
    kept = _within_pieces(corpus, _shuffled(np.flatnonzero(ledger.keep), chooser, sample), sample)
    if reason := _missing_input(corpus, kept):
        report.leave_out("input", f"texts were not compared: {reason}")
        return
    report.prove("input", output.uri, lambda: prove_input(corpus, output, manifest, kept))
    if len(ledger.near):
        _check_near(report, corpus, ledger, chooser, sample)


def _shuffled(candidates: NDArray[Any], chooser: random.Random, sample: int) -> NDArray[Any]:
    """Candidates in random order: enough of them that a sample can be chosen among few pieces."""
    count = min(len(candidates), 50 * sample)
    return candidates[np.array(chooser.sample(range(len(candidates)), count), np.int64)]


def _within_pieces(corpus: Corpus, shuffled: NDArray[np.int64], sample: int) -> NDArray[np.int64]:
    """The first documents that together touch at most SAMPLE_PIECES pieces, ascending."""
    touched: set[int] = set()
    chosen: list[int] = []
    for document, piece in zip(shuffled.tolist(), piece_of(corpus.ordinals, shuffled).tolist(), strict=True):
        if piece in touched or len(touched) < SAMPLE_PIECES:
            touched.add(piece)
            chosen.append(document)
            if len(chosen) == sample:
                break
    return np.array(sorted(chosen), np.int64)


def _missing_input(corpus: Corpus, documents: NDArray[np.int64]) -> str:
    shards, _ = corpus.ordinals.shard_and_row(documents)
    return next(filter(None, (standing(corpus.plan.shards[shard]) for shard in np.unique(shards).tolist())), "")


def prove_input(
    corpus: Corpus, output: Folder, manifest: dict[str, Any], documents: NDArray[np.int64]
) -> tuple[bool, str]:
    """Sampled rows of OUT are rows of the input: texts byte for byte, the other flat columns by value."""
    flat = [field.name for field in corpus.plan.schema if not pa.types.is_nested(field.type)]
    expected = read_rows(corpus, documents, flat)
    positions = corpus.ordinals.positions(documents)
    text_bytes = 0
    for name, (low, high), found in output_rows(output, manifest, positions, flat):
        where = output.child(name).uri
        for column in flat:
            wanted = expected.column(column).slice(low, high - low).combine_chunks()
            if not _same(found.column(column).combine_chunks(), wanted):
                row = int(positions[low])
                raise BrokenError(where, f"column {column!r} is not the input's, in a sample from position {row} on")
            if column == corpus.config.text_column:
                text_bytes += int(wanted.nbytes)
    return True, f"{number(len(documents), 'sampled row')} equal the input, texts byte for byte ({text_bytes:,} bytes)"


def output_rows(
    output: Folder, manifest: dict[str, Any], positions: NDArray[np.int64], names: list[str]
) -> Iterator[tuple[str, tuple[int, int], pa.Table]]:
    """(part, range among `positions`, columns) of the row groups that hold these documents (ascending)."""
    for entry in manifest["parts"]:
        with reading(output, entry["name"]) as parquet:
            for group in range(parquet.num_row_groups):
                cluster = parquet.read_row_group(group, columns=["cluster"]).column(0).to_numpy()
                if not len(cluster):
                    continue
                low, high = np.searchsorted(positions, [cluster[0], cluster[-1] + 1]).tolist()
                if low < high:
                    rows = np.searchsorted(cluster, positions[low:high])
                    if not np.array_equal(cluster[rows], positions[low:high]):
                        raise BrokenError(output.child(entry["name"]).uri, "a kept document is not there")
                    yield entry["name"], (low, high), parquet.read_row_group(group, columns=names).take(pa.array(rows))


def _same(a: pa.Array, b: pa.Array) -> bool:
    if pa.types.is_floating(a.type):
        a, b = a.to_numpy(zero_copy_only=False), b.to_numpy(zero_copy_only=False)
        return bool(np.array_equal(a, b, equal_nan=True))
    return bool(a.equals(b))


def _check_near(report: Report, corpus: Corpus, ledger: Ledger, chooser: random.Random, sample: int) -> None:
    """Exact Jaccard of sampled near-duplicates to what stays in their place: a measurement, and for `exact` a proof."""
    candidates = ledger.near[ledger.near[:, 1] == 0]
    shuffled = _shuffled(candidates, chooser, sample)
    documents, survivors = shuffled[:, 0], corpus.ordinals.ordinals(shuffled[:, 2])
    touched: set[int] = set()
    chosen: list[int] = []
    pieces = np.column_stack([piece_of(corpus.ordinals, documents), piece_of(corpus.ordinals, survivors)])
    for row, pair in enumerate(pieces.tolist()):
        if len(touched | set(pair)) <= SAMPLE_PIECES:
            touched |= set(pair)
            chosen.append(row)
            if len(chosen) == sample:
                break
    documents, survivors = documents[chosen], survivors[chosen]
    wanted = np.unique(np.concatenate([documents, survivors]))
    if not len(wanted):
        report.leave_out("near", "near-duplicates of an index alone: their texts were not measured")
        return
    if reason := _missing_input(corpus, wanted):
        report.leave_out("near", f"similarities were not measured: {reason}")
        return
    report.prove("near", corpus.view.folder.uri, lambda: measure_near(report, corpus, documents, survivors, wanted))


def measure_near(
    report: Report,
    corpus: Corpus,
    documents: NDArray[np.int64],
    survivors: NDArray[np.int64],
    wanted: NDArray[np.int64],
) -> tuple[bool, str]:
    config = corpus.config
    texts = read_rows(corpus, wanted, [config.text_column]).column(0).cast(pa.large_binary())
    values = []
    for document, survivor in zip(documents.tolist(), survivors.tolist(), strict=True):
        a, b = (texts[int(np.searchsorted(wanted, ordinal))].as_py() or b"" for ordinal in (document, survivor))
        overlap = exact_jaccard(a, b, config.ngram)
        values.append(1.0 if overlap.jaccard is None and a == b else overlap.jaccard or 0.0)
    lowest, reached = min(values), sum(value >= config.threshold - ROUNDING for value in values)
    report.measured = {
        "near_duplicates": len(values),
        "at_threshold": reached,
        "share": reached / len(values),
        "lowest": lowest,
        "threshold": config.threshold,
    }
    if config.verify == "exact" and reached < len(values):
        document = int(documents[int(np.argmin(values))])
        shard, row = corpus.ordinals.shard_and_row(np.array([document]))
        raise BrokenError(
            corpus.view.folder.uri,
            f"--verify exact, and yet {corpus.plan.shards[shard[0]].path}#{row[0]} has exact Jaccard {lowest:.4f}",
        )
    share = f"{reached / len(values):.1%}"
    return True, (
        f"{number(len(values), 'sampled near-duplicate')} measured by exact shingles: {share} at "
        f"{config.threshold:g} or more, the lowest {lowest:.3f} (--verify {config.verify})"
    )


# ---------------------------------------------------------------------------------------------- printing


def number(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def print_report(report: Report, output: Folder, *, as_json: bool) -> None:
    if as_json:
        value = {
            "ok": not report.broken,
            "output": output.uri,
            "findings": [finding._asdict() for finding in report.findings],
            "near_duplicates": report.measured or None,
        }
        sys.stdout.write(orjson.dumps(value).decode() + "\n")
        return
    width = max(len(finding.invariant) for finding in report.findings)
    for invariant, status, detail, file in report.findings:
        where = f"{file}: " if file else ""
        print(f"{'BROKEN' if status == 'broken' else status:<8}  {invariant:<{width}}  {where}{detail}")
    proved = sum(finding.status == "proved" for finding in report.findings)
    if report.broken:
        print(f"{report.broken} of {proved + report.broken} invariants are broken")
    else:
        print(f"all {proved} invariants hold")
