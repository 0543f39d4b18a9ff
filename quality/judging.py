"""Judge a unit: its signals against the rules, without its text.

In: signals/<unit>.arrow, hits/<unit>.arrow, and the sidecar's sources. Out: WORK/decide-<hash>/rules/<unit>.arrow, a
row per document (`taojin.core.ledger.RULES_SCHEMA`). Cost: 4 ns per rule and document, and the columns it reads.
"""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from taojin.core.ledger import RULES_SCHEMA
from taojin.core.status import EMPTY
from taojin.core.storage import Folder
from taojin.core.tasks import unit_name
from taojin.quality.config import QualityConfig
from taojin.quality.rules import Judgement, judge

# Sources are names of data sets, or as many as there are web sites: counts of each are kept for the former only.
MOST_SOURCES = 1000


class JudgeContext(NamedTuple):
    config: QualityConfig
    work: Folder
    folder: Folder


def judge_again(context: JudgeContext, unit: int) -> tuple[Judgement, dict[str, NDArray[np.float32]]]:
    """The judgement of a unit's signals, and those signals. Documents that could not be read fail nothing."""
    config, work, _ = context
    name = f"{unit_name(unit)}.arrow"
    rules = [rule for preset in config.all_presets for rule in preset.rules]
    wanted = {rule.signal for rule in rules} | {rule.unless.signal for rule in rules if rule.unless is not None}
    if config.score_signal:
        wanted.add(config.score_signal)
    columns = ["chars", *sorted(wanted - {"chars"}), *(["language"] if config.language else [])]
    table = read_columns(work.child("signals"), name, columns)
    readable = read_columns(work.child("scan"), name, ["status"]).column("status").to_numpy() < EMPTY
    signals = {column: table.column(column).to_numpy() for column in columns if column != "language"}
    languages = None
    if config.language:
        codes, names = encoded(table.column("language"))
        languages = (codes.astype(np.int16), names)
    judgement = judge(config.all_presets, signals, languages)
    judgement.failed[:, ~readable] = False
    judgement.first[~readable] = -1
    return judgement, signals


def judge_unit(context: JudgeContext, unit: int) -> dict[str, Any]:
    """Write which rules each document of a unit fails; returns counts by rule, and reasons by language and source."""
    config, work, folder = context
    name = f"{unit_name(unit)}.arrow"
    judgement, signals = judge_again(context, unit)
    first = judgement.first
    reasons, values = _failures(judgement, signals)
    score = signals[config.score_signal].astype(np.float64) if config.score_signal else np.full(len(first), np.nan)
    batch = pa.record_batch(
        [pa.array(first.astype(np.int16)), reasons, values, pa.array(score), _evidence(context, name, len(first))],
        schema=RULES_SCHEMA,
    )
    with folder.child("rules").create(name) as sink:
        with pa.ipc.new_file(sink, RULES_SCHEMA) as writer:
            writer.write_batch(batch)
        sink.rows = len(first)
    failing = judgement.failed.sum(axis=1)
    languages = read_columns(work.child("signals"), name, ["language"])
    sidecar = read_columns(work.child("scan"), name, ["status", "source"])
    readable = sidecar.column("status").to_numpy() < EMPTY
    return {
        "documents": len(first),
        "removed": int((first >= 0).sum()),
        "rules": {reason: int(count) for reason, count in zip(judgement.reasons, failing, strict=True) if count},
        "by_language": _count_by(languages, "language", judgement.reasons, first, readable),
        "by_source": _count_by(sidecar, "source", judgement.reasons, first, readable),
        "files": {"rules": folder.child("rules").entry(name, sink).as_json()},
    }


def read_columns(folder: Folder, name: str, columns: list[str]) -> pa.Table:
    """Those of the columns that the file has."""
    with folder.open(name) as file:
        reader = pa.ipc.open_file(file)
        names = [column for column in columns if column in reader.schema.names]
        batches = [reader.get_batch(number).select(names) for number in range(reader.num_record_batches)]
        schema = pa.schema([reader.schema.field(column) for column in names])
        # Copied out of the mapping, which ends with the file.
        return pa.Table.from_batches(batches, schema).take(pa.array(np.arange(sum(map(len, batches)))))


def encoded(strings: pa.ChunkedArray) -> tuple[NDArray[np.int32], list[str]]:
    """(codes, names): -1 for null."""
    encoded = pa.concat_arrays([pa.array([], pa.string()), *strings.chunks]).dictionary_encode()
    return encoded.indices.fill_null(-1).to_numpy(), encoded.dictionary.to_pylist()


def _failures(judgement: Judgement, signals: dict[str, NDArray[np.float32]]) -> tuple[pa.Array, pa.Array]:
    """(reasons, values) of every document, as lists in the order of the rules."""
    documents, rules = np.nonzero(judgement.failed.T)
    offsets = pa.array(np.concatenate([[0], np.cumsum(judgement.failed.sum(axis=0))]).astype(np.int32))
    names = pa.array(judgement.reasons, pa.string()).take(pa.array(rules))
    values = np.empty(len(documents), np.float32)
    for number, rule in enumerate(judgement.rules):
        chosen = rules == number
        values[chosen] = signals[rule.signal][documents[chosen]]
    return pa.ListArray.from_arrays(offsets, names), pa.ListArray.from_arrays(offsets, pa.array(values))


def _evidence(context: JudgeContext, name: str, num_documents: int) -> pa.Array:
    """Which question stands where, of documents that share text with one."""
    evidence: list[str | None] = [None] * num_documents
    if context.config.decontaminate:
        with context.work.child("hits").open(name) as file:
            hits = pa.ipc.open_file(file).read_all().to_pylist()
        for hit in hits:
            if evidence[hit["document"]] is None:
                evidence[hit["document"]] = (
                    f"{hit['set']} question {hit['id']}, {hit['symbols']} symbols from byte {hit['first_byte']} on: "
                    f"{hit['excerpt']}"
                )
    return pa.array(evidence, pa.string())


def _count_by(
    table: pa.Table, column: str, reasons: tuple[str, ...], first: NDArray[np.int32], readable: NDArray[np.bool_]
) -> dict[str, dict[str, int]]:
    """{language or source: {"documents": all, reason: how many}}; nothing where there are too many."""
    if column not in table.schema.names or not len(table):
        return {}
    codes, names = encoded(table.column(column))
    if len(names) > MOST_SOURCES:
        return {}
    counted = (codes >= 0) & readable
    pairs = Counter(zip(codes[counted].tolist(), first[counted].tolist(), strict=True))
    counts: dict[str, dict[str, int]] = {}
    for (code, rule), count in sorted(pairs.items()):
        entry = counts.setdefault(names[code], {"documents": 0})
        entry["documents"] += count
        if rule >= 0:
            entry[reasons[rule]] = count
    return counts
