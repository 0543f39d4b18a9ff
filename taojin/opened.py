"""A finished WORK folder, opened to be read: its corpus, its decisions, and the rows of the input it was made from.

In: WORK (plan, stats of the scan, decide folders) and, for texts, the input itself. Nothing is written.
Cost: a JSON file per unit to open it; `read_rows` reads the pieces that hold a wanted document.
What a person may call a document is `taojin.naming`'s; what is in two texts is `taojin.evidence`'s.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from taojin.core.corpus import Ordinals, Plan, Shard, Span, find_files, inspect_shard
from taojin.core.errors import BadShardError, InputError
from taojin.core.job import JobConfig
from taojin.core.reading import read_unit
from taojin.core.sidecars import Corpus, WorkView
from taojin.core.storage import Folder
from taojin.core.tasks import unit_name
from taojin.core.uris import split_query, with_suffix
from taojin.jobs import DedupJob, QualityJob


class OpenWork(NamedTuple):
    """A finished WORK folder. corpus.config: settings of scan and decision; others: finished decisions not taken."""

    corpus: Corpus
    decide: Folder
    settings: dict[str, Any]
    others: list[str]


def open_work(name: str) -> OpenWork:
    """WORK with its newest finished decision, or WORK/decide-…; raises InputError for anything else."""
    work, chosen = split_decision(name)
    if not work.exists("plan.json"):
        hint = ""
        if work.exists("_manifest.json") or work.exists("_taojin.json"):
            hint = f"; this is an output, its WORK is {with_suffix(name, '.work')} unless --work named another"
        raise InputError(f"{name}: expected a WORK folder (plan.json in it) or WORK/decide-…, found neither{hint}")
    corpus = open_corpus(work)
    done = finished_decisions(work, chosen, len(corpus.plan.units))
    done = [entry for entry in done if work.exists(f"{entry}/config.json")]
    if not done:
        what = f"{chosen} is" if chosen else "no decide-… folder in it is"
        raise InputError(f"{name}: {what} finished; run the same command again to complete it")
    done.sort(key=lambda entry: (_modified(work, f"{entry}/config.json"), entry))
    taken = done.pop()
    settings = work.read_json(f"{taken}/config.json")
    return OpenWork(with_settings(corpus, settings), work.child(taken), settings, done)


def split_decision(name: str) -> tuple[Folder, str | None]:
    """(WORK, decide-… or None) of a name of either."""
    path, query = split_query(name)
    folder, _, last = path.rpartition("/")
    if last.startswith("decide-"):
        return Folder((folder or ".") + query), last
    return Folder(path + query), None


def finished_decisions(work: Folder, chosen: str | None, num_units: int) -> list[str]:
    """Names of the decide folders, all or the chosen one, in which every unit is decided."""
    folders = [chosen] if chosen else [entry for entry in work.names() if entry.startswith("decide-")]
    return [entry for entry in folders if len(work.names(f"{entry}/stats/decisions")) == num_units]


def open_corpus(work: Folder) -> Corpus:
    """A scanned WORK folder as readers need it. Raises InputError while its scan is unfinished."""
    plan = Plan.from_json(work.read_json("plan.json"))
    names = work.names("stats/scan")
    if len(names) != len(plan.units):
        raise InputError(
            f"{work.uri}: {len(names)} of {len(plan.units)} units are scanned; run the same command "
            "again to complete it"
        )
    rows = [piece[2] for name in names for piece in work.read_json(f"stats/scan/{name}")["pieces"]]
    return corpus_of(work, plan, scan_config(work, plan), rows)


def scan_config(work: Folder, plan: Plan) -> Any:
    """The settings that WORK was scanned with; those of a decision have their defaults."""
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in plan.config.items()}
    del values["formats"]
    job: type[Any] = DedupJob if "sketch" in values else QualityJob
    return job(**values, input=(work.uri,), work=work.uri, report_only=True)


def with_settings(corpus: Corpus, settings: dict[str, Any]) -> Corpus:
    """The corpus with a decision's settings, as JSON has them, in its config."""
    values = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in settings.items()
        if key in type(corpus.config).model_fields
    }
    config = corpus.config.model_copy(update=values)
    return corpus._replace(config=config.with_presets(settings["presets"]) if "presets" in settings else config)


def corpus_of(work: Folder, plan: Plan, config: JobConfig, rows: Sequence[int], first: int = 0) -> Corpus:
    """A corpus by the rows of its pieces. first: the ordinal of its first document among several corpora."""
    ordinals = Ordinals(plan, rows)
    view = WorkView(
        folder=work,
        first=first,
        unit_first=ordinals.unit_first,
        shard_first=ordinals.shard_first,
        shard_paths=tuple(shard.path for shard in plan.shards),
        survivors="",
        num_ranges=plan.num_ranges,
    )
    return Corpus(plan, config, ordinals, view)


def _modified(work: Folder, name: str) -> float:
    filesystem, _ = work.resolve()
    return float(filesystem.get_file_info(work.path(name)).mtime_ns or 0)


# ---------------------------------------------------------------------------------------------- documents in it


def unit_of(corpus: Corpus, ordinal: int) -> int:
    """The unit that holds a document."""
    return int(np.searchsorted(corpus.ordinals.unit_first, ordinal, side="right")) - 1


def place_of(corpus: Corpus, ordinal: int) -> str:
    """<shard path>#<row> of a document."""
    shard, row = corpus.ordinals.shard_and_row(np.array([ordinal]))
    return f"{corpus.plan.shards[shard[0]].path}#{row[0]}"


def read_decisions(decide: Folder, unit: int) -> pa.RecordBatch:
    """One row per document of a unit; see `taojin.dedup.ledger`."""
    with decide.open(f"decisions/{unit_name(unit)}.arrow") as file:
        return pa.ipc.open_file(file).get_batch(0)


# ---------------------------------------------------------------------------------------------- reading the input again


def missing_input(corpus: Corpus, documents: NDArray[np.int64]) -> str:
    """Why the shards of these documents can no longer be read as they were planned; empty when they can."""
    shards, _ = corpus.ordinals.shard_and_row(documents)
    return next(filter(None, (_missing(corpus.plan.shards[shard]) for shard in np.unique(shards).tolist())), "")


def _missing(shard: Shard) -> str:
    try:
        found = find_files([shard.uri])[0]
        now, _ = inspect_shard(found, shard.path)
    except InputError as error:
        return f"the input {shard.path} cannot be read: {error}"
    return "" if now.fingerprint == shard.fingerprint else f"the input {shard.path} has changed since the scan"


def piece_of(ordinals: Ordinals, documents: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of the piece (over all shards) that holds each document."""
    return np.searchsorted(ordinals.piece_first, documents, side="right") - 1


def read_rows(corpus: Corpus, documents: NDArray[np.int64], names: Sequence[str]) -> pa.Table:
    """Columns of the input for documents (ascending ordinals), as the scan read them. Reads touched pieces only."""
    plan, config, ordinals, _ = corpus
    schema = pa.schema([plan.schema.field(name) for name in names])
    parts = []
    pieces = piece_of(ordinals, documents)
    for piece in np.unique(pieces).tolist():
        wanted = documents[pieces == piece]
        shard = int(np.searchsorted(ordinals.shard_first_piece, piece, side="right")) - 1
        number = piece - int(ordinals.shard_first_piece[shard])
        first = int(ordinals.piece_first[piece])
        span = Span(shard, number, number + 1)
        for batch in read_unit(plan, [span], names, config.reading):
            low, high = np.searchsorted(wanted, [first, first + batch.rows.num_rows])
            if low < high:
                parts.append(batch.rows.take(pa.array(wanted[low:high] - first)))
            first += batch.rows.num_rows
            if high == len(wanted):
                break
    return pa.Table.from_batches(parts, schema)


def read_texts(corpus: Corpus, documents: NDArray[np.int64]) -> dict[int, bytes]:
    """Text by ordinal. Raises InputError when the input cannot be read any more. A null text reads as empty."""
    wanted = np.unique(documents)
    if reason := missing_input(corpus, wanted):
        raise InputError(reason)
    try:
        table = read_rows(corpus, wanted, [corpus.config.text_column])
    except (OSError, BadShardError) as error:
        raise InputError(f"the input cannot be read: {error}") from None
    values = table.column(0).cast(pa.large_binary()).to_pylist()
    return {ordinal: value or b"" for ordinal, value in zip(wanted.tolist(), values, strict=True)}
