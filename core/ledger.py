"""Decisions and ledger of a unit: one row per document that says keep or why not, and one per removal with its
evidence.

In: the unit's sidecar; WORK/decide-<hash>/resolved.arrow, documents that have a duplicate, by ordinal; and
WORK/decide-<hash>/rules/<unit>.arrow, which rules a document fails. Either may be missing.
Out: decisions/<unit>.arrow, ledger/<unit>.parquet.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from taojin.core.corpus import Ordinals, Plan
from taojin.core.errors import InvariantError
from taojin.core.sidecars import WorkView, positions_of, read_sidecar_column
from taojin.core.status import EMPTY, STATUS_REASONS
from taojin.core.storage import Folder
from taojin.core.tasks import Stats, unit_name

# How a duplicate was verified: equal by the hash of its folded text, similar by sketches, or by exact shingles.
BY_HASH, BY_SKETCH, BY_EXACT = range(3)
VERIFIED_NAMES = ("hash", "sketch", "exact")
# Reasons as codes: 0 kept, then the duplicates, then what was never compared (offset by its status), then the rules.
KEPT, EXACT, FOLDED_TEXT, NEAR = range(4)
_STATUS_OFFSET = 10
_RULE_OFFSET = 100
REASONS = {
    EXACT: "exact_duplicate",
    FOLDED_TEXT: "folded_duplicate",
    NEAR: "near_duplicate",
    **{_STATUS_OFFSET + status: reason for status, reason in STATUS_REASONS.items()},
}

RESOLVED_SCHEMA = pa.schema(
    [
        ("document", pa.int64()),
        ("keep", pa.bool_()),
        ("reason", pa.uint8()),
        ("survivor", pa.int64()),
        ("similarity", pa.float32()),
        ("verified", pa.uint8()),
        ("component", pa.int64()),
        ("cluster_size", pa.int64()),
        ("survivor_id", pa.string()),
    ]
)
# What a rules file holds: the first failing rule, as its number among DecisionContext.rules (-1: none), all of them by
# name with the values measured, the survivor score, and evidence in words.
RULES_SCHEMA = pa.schema(
    [
        ("rule", pa.int16()),
        ("reasons", pa.list_(pa.string())),
        ("values", pa.list_(pa.float32())),
        ("score", pa.float64()),
        ("evidence", pa.string()),
    ]
)
DECISION_SCHEMA = pa.schema(
    [
        ("keep", pa.bool_()),
        ("reason", pa.dictionary(pa.int16(), pa.string())),
        ("survivor", pa.int64()),
        ("survivor_work", pa.int16()),
        ("similarity", pa.float32()),
        ("cluster", pa.int64()),
        ("cluster_size", pa.int32()),
        ("component", pa.int64()),
    ]
)
LEDGER_SCHEMA = pa.schema(
    [
        ("shard", pa.string()),
        ("row", pa.int64()),
        ("position", pa.int64()),
        ("id", pa.string()),
        ("source", pa.string()),
        ("chars", pa.int64()),
        ("reason", pa.string()),
        ("similarity", pa.float32()),
        ("verified", pa.string()),
        ("survivor_work", pa.string()),
        ("survivor_shard", pa.string()),
        ("survivor_row", pa.int64()),
        ("survivor_position", pa.int64()),
        ("survivor_id", pa.string()),
        ("component", pa.int64()),
        ("reasons", pa.list_(pa.string())),
        ("values", pa.list_(pa.float32())),
        ("evidence", pa.string()),
        ("repaired", pa.bool_()),
    ]
)


class DecisionContext(NamedTuple):
    """resolved: name of the table of duplicates, "" for none · rules: the full reason of every rule, in order ·
    remove: whether a failing rule removes the document, or is only written down."""

    plan: Plan
    ordinals: Ordinals
    works: tuple[WorkView, ...]
    folder: Folder
    resolved: str
    rules: tuple[str, ...] = ()
    remove: bool = True

    def reason(self, code: int) -> str | None:
        return self.rules[code - _RULE_OFFSET] if code >= _RULE_OFFSET else REASONS.get(code)


def decide_unit(context: DecisionContext, unit: int) -> dict[str, Any]:
    """Write the decisions and the ledger of one unit; returns counts and kept rows per piece."""
    plan, ordinals, works, folder, resolved_name, rule_names, _ = context
    first, last = ordinals.unit_first[unit : unit + 2].tolist()
    sidecar = _read_sidecar(works[0], unit)
    size = last - first
    if len(sidecar["status"]) != size:
        raise InvariantError(f"unit {unit}: expected {size} documents in its sidecar, found {len(sidecar['status'])}")
    resolved = _resolved_slice(folder, resolved_name, first, last)
    failed = _read_rules(folder, unit) if rule_names else None
    rows = resolved.column("document").to_numpy() - first
    own = positions_of(works[0], np.arange(first, last))
    code = np.where(sidecar["status"] >= EMPTY, sidecar["status"] + _STATUS_OFFSET, KEPT).astype(np.int16)
    if failed is not None and context.remove:
        rule = failed.column("rule").to_numpy()
        code = np.where((code == KEPT) & (rule >= 0), rule + _RULE_OFFSET, code)
    keep = code == KEPT
    keep[rows] = resolved.column("keep").to_numpy(zero_copy_only=False)
    code[rows] = np.where(keep[rows], KEPT, resolved.column("reason").to_numpy())
    compared = ~keep & (code < _STATUS_OFFSET)
    names = pa.array([context.reason(number) for number in range(_RULE_OFFSET + len(rule_names))], pa.string())
    survivor = np.full(size, -1, np.int64)
    survivor[rows] = resolved.column("survivor").to_numpy()
    survivor[~compared] = -1
    work_of = np.searchsorted([work.first for work in works], survivor, side="right") - 1
    work_of[~compared] = -1
    survivor_position = np.full(size, -1, np.int64)
    for number, work in enumerate(works):
        chosen = work_of == number
        survivor_position[chosen] = positions_of(work, survivor[chosen] - work.first)
    similarity = np.zeros(size, np.float32)
    similarity[rows] = resolved.column("similarity").to_numpy()
    component = own.copy()
    component[rows] = positions_of(works[0], resolved.column("component").to_numpy())
    cluster_size = keep.astype(np.int32)
    cluster_size[rows] = resolved.column("cluster_size").to_numpy()
    decisions = pa.record_batch(
        [
            pa.array(keep),
            pa.DictionaryArray.from_arrays(pa.array(code, mask=keep), names),
            pa.array(survivor_position, mask=~compared),
            pa.array(work_of.astype(np.int16), mask=~compared),
            pa.array(similarity, mask=~compared),
            pa.array(np.where(keep, own, survivor_position), mask=~keep & ~compared),
            pa.array(cluster_size, mask=~keep),
            pa.array(component),
        ],
        schema=DECISION_SCHEMA,
    )
    name = f"{unit_name(unit)}.arrow"
    with folder.child("decisions").create(name) as sink:
        with pa.ipc.new_file(sink, DECISION_SCHEMA) as writer:
            writer.write_batch(decisions)
        sink.rows = size
    ledger = _ledger(
        context, sidecar, resolved, failed, rows, first, keep, code, compared, survivor, work_of, component
    )
    ledger_name = f"{unit_name(unit)}.parquet"
    with folder.child("ledger").create(ledger_name) as ledger_sink:
        pq.write_table(ledger, ledger_sink, compression="zstd")
        ledger_sink.rows = len(ledger)
    codes, counts = np.unique(code[~keep], return_counts=True)
    return {
        "kept": int(keep.sum()),
        "removed": int((~keep).sum()),
        "reasons": {str(context.reason(c)): n for c, n in zip(codes.tolist(), counts.tolist(), strict=True)},
        "pieces": _kept_pieces(plan, ordinals, unit, keep),
        "files": {
            "decisions": folder.child("decisions").entry(name, sink).as_json(),
            "ledger": folder.child("ledger").entry(ledger_name, ledger_sink).as_json(),
        },
    }


def _ledger(
    context: DecisionContext,
    sidecar: dict[str, Any],
    resolved: pa.Table,
    failed: pa.RecordBatch | None,
    rows: NDArray[np.int64],
    first: int,
    keep: NDArray[np.bool_],
    code: NDArray[np.int16],
    compared: NDArray[np.bool_],
    survivor: NDArray[np.int64],
    work_of: NDArray[np.int64],
    component: NDArray[np.int64],
) -> pa.Table:
    works = context.works
    gone = np.flatnonzero(~keep)
    has = compared[gone]
    shard, row = context.ordinals.shard_and_row(gone + first)
    paths = [works[0].shard_paths[s] for s in shard.tolist()]
    at = np.searchsorted(rows, gone)
    at_known = np.where(has, at, 0)
    survivor_paths: list[str | None] = [None] * len(gone)
    survivor_rows = np.zeros(len(gone), np.int64)
    survivor_positions = np.zeros(len(gone), np.int64)
    for number, work in enumerate(works):
        chosen = np.flatnonzero(has & (work_of[gone] == number))
        local = survivor[gone[chosen]] - work.first
        its_shard = np.searchsorted(work.shard_first, local, side="right") - 1
        survivor_rows[chosen] = local - work.shard_first[its_shard]
        survivor_positions[chosen] = positions_of(work, local)
        for index, s in zip(chosen.tolist(), its_shard.tolist(), strict=True):
            survivor_paths[index] = work.shard_paths[s]
    work_names = [None if w <= 0 else works[w].folder.uri for w in work_of[gone].tolist()]
    verified = np.zeros(len(gone), np.int64)
    similarity = np.zeros(len(gone), np.float32)
    survivor_ids = pa.nulls(len(gone), pa.string())
    if len(resolved):
        verified[has] = resolved.column("verified").to_numpy()[at_known[has]]
        similarity[has] = resolved.column("similarity").to_numpy()[at_known[has]]
        survivor_ids = resolved.column("survivor_id").combine_chunks().take(pa.array(at_known, mask=~has))
    return pa.table(
        [
            pa.array(paths, pa.string()),
            pa.array(row),
            pa.array(positions_of(works[0], gone + first)),
            _named(sidecar["id"].take(pa.array(gone)), paths, row),
            sidecar["source"].take(pa.array(gone)),
            pa.array(sidecar["chars"][gone].astype(np.int64)),
            pa.array([context.reason(c) for c in code[gone].tolist()], pa.string()),
            pa.array(similarity, mask=~has),
            pa.array([VERIFIED_NAMES[v] for v in verified.tolist()], pa.string(), mask=~has),
            pa.array(work_names, pa.string()),
            pa.array(survivor_paths, pa.string()),
            pa.array(survivor_rows, mask=~has),
            pa.array(survivor_positions, mask=~has),
            _named(survivor_ids, survivor_paths, survivor_rows),
            pa.array(component[gone]),
            *_failures(context, failed, gone),
            sidecar["repaired"].take(pa.array(gone)),
        ],
        schema=LEDGER_SCHEMA,
    )


def _failures(context: DecisionContext, failed: pa.RecordBatch | None, gone: NDArray[np.int64]) -> list[pa.Array]:
    """reasons, values and evidence of the removed documents."""
    if failed is None:
        fields = ("reasons", "values", "evidence")
        return [pa.nulls(len(gone), LEDGER_SCHEMA.field(name).type) for name in fields]
    taken = failed.take(pa.array(gone))
    return [taken.column(name) for name in ("reasons", "values", "evidence")]


def _read_rules(folder: Folder, unit: int) -> pa.RecordBatch:
    with folder.child("rules").open(f"{unit_name(unit)}.arrow") as file:
        return pa.ipc.open_file(file).get_batch(0)


def _named(ids: pa.StringArray, paths: list[str | None], rows: NDArray[np.int64]) -> pa.StringArray:
    """Ids, with `path#row` where there is none."""
    if not ids.null_count:
        return ids
    generated = [f"{path}#{row}" if path is not None else None for path, row in zip(paths, rows.tolist(), strict=True)]
    return pc.coalesce(ids, pa.array(generated, pa.string()))


def _read_sidecar(work: WorkView, unit: int) -> dict[str, Any]:
    """status and chars as NumPy arrays, id and source as string arrays (null where the input has none), repaired."""
    with work.folder.child("scan").open(f"{unit_name(unit)}.arrow") as file:
        reader = pa.ipc.open_file(file)
        batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        values: dict[str, Any] = {}
        for name, dtype in (("status", np.uint8), ("chars", np.uint32)):
            values[name] = np.concatenate([np.zeros(0, dtype), *(read_sidecar_column(b, name) for b in batches)])
        rows = len(values["status"])
        for name in ("id", "source"):
            has = name in reader.schema.names and batches
            values[name] = pa.concat_arrays([b.column(name) for b in batches]) if has else pa.nulls(rows, pa.string())
        has = "repaired" in reader.schema.names and batches
        values["repaired"] = (
            pa.concat_arrays([b.column("repaired") for b in batches]) if has else pa.array(np.zeros(rows, bool))
        )
        return values


def _resolved_slice(folder: Folder, name: str, first: int, last: int) -> pa.Table:
    if not name:
        return RESOLVED_SCHEMA.empty_table()
    with folder.open(name) as file:
        table = pa.ipc.open_file(file).read_all()
        low, high = np.searchsorted(table.column("document").to_numpy(), [first, last])
        # Copied out of the mapping: only the slice stays.
        return table.slice(low, high - low).take(pa.array(np.arange(high - low)))


def _kept_pieces(plan: Plan, ordinals: Ordinals, unit: int, keep: NDArray[np.bool_]) -> list[list[int]]:
    """[shard, piece, rows, kept rows] of every piece of the unit."""
    first = int(ordinals.unit_first[unit])
    out = []
    for span in plan.units[unit]:
        for piece in range(span.first, span.last):
            low = ordinals.piece_ordinal(span.shard, piece) - first
            high = ordinals.piece_ordinal(span.shard, piece, after=True) - first
            out.append([span.shard, piece, high - low, int(keep[low:high].sum())])
    return out


class Decided(NamedTuple):
    """Totals of a decision: counters for the report, and kept rows and bytes per piece for the writer."""

    counts: dict[str, Any]
    pieces: list[list[int]]
    warnings: list[str]


def totals(unit_stats: Sequence[Stats], num_documents: int) -> dict[str, Any]:
    """Documents, kept, and removed by reason."""
    reasons: Counter[str] = Counter()
    kept = 0
    for stats in unit_stats:
        kept += stats["kept"]
        reasons.update(stats["reasons"])
    return {"documents": num_documents, "kept": kept, "removed": dict(sorted(reasons.items()))}
