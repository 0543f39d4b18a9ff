"""Looking up sidecar columns of any documents, in this run's WORK folder and in the earlier ones it runs against.

All of them share one space of ordinals: this run's documents first, then each index's in the order given. An index's
documents are never judged; only those that survived there count.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from taojin.core.corpus import POSITION_SHIFT, Ordinals, Plan
from taojin.core.storage import Folder
from taojin.core.tasks import unit_name


class WorkView(NamedTuple):
    """One WORK folder as readers need it.

    first: its first ordinal · unit_first: int64[units + 1], first ordinal of each unit, counted from `first` ·
    shard_first: the same per shard · shard_paths · survivors: name of its decide folder for an index, "" for this run ·
    num_ranges: into how many its keys are split · scores: name, in `folder`, of the folder with a `score` per document
    (`taojin.quality.judging`), "" where none was given.
    """

    folder: Folder
    first: int
    unit_first: NDArray[np.int64]
    shard_first: NDArray[np.int64]
    shard_paths: tuple[str, ...]
    survivors: str
    num_ranges: int
    scores: str = ""

    @property
    def num_documents(self) -> int:
        return int(self.unit_first[-1])


class Corpus(NamedTuple):
    """One scanned WORK folder: this run's, or an index's."""

    plan: Plan
    config: Any  # the JobConfig of the command that scanned it
    ordinals: Ordinals
    view: WorkView


def read_sidecar_column(batch: pa.RecordBatch, name: str) -> NDArray[Any]:
    """A fixed-width sidecar column as a NumPy view; binary columns as uint8[rows, width]."""
    array = batch.column(name)
    if pa.types.is_fixed_size_binary(array.type):
        width = array.type.byte_width
        data = np.frombuffer(array.buffers()[1], np.uint8)
        return data[array.offset * width : (array.offset + len(array)) * width].reshape(-1, width)
    return array.to_numpy(zero_copy_only=False)


def gather(works: Sequence[WorkView], ordinals: NDArray[np.int64], names: Sequence[str]) -> dict[str, Any]:
    """Columns of the given documents (ascending ordinals), in that order.

    Values: NumPy arrays; `id` and `source` as pyarrow string arrays (null where the input has no such column),
    `quality` and `score` NaN where there is none. Opens each touched unit once; local files are mapped and released
    unit by unit, so memory is what is returned.
    """
    pieces: dict[str, list[Any]] = {name: [] for name in names}
    for work in works:
        low, high = np.searchsorted(ordinals, [work.first, work.first + work.num_documents])
        if low == high:
            continue
        local = ordinals[low:high] - work.first
        units = np.searchsorted(work.unit_first, local, side="right") - 1
        starts = np.flatnonzero(np.diff(units, prepend=-1))
        for start, stop in zip(starts, [*starts[1:], len(local)], strict=True):
            unit = int(units[start])
            _gather_unit(work, unit, local[start:stop] - work.unit_first[unit], pieces)
    return {name: _join(name, parts, len(ordinals)) for name, parts in pieces.items()}


def _gather_unit(work: WorkView, unit: int, rows: NDArray[np.int64], pieces: dict[str, list[Any]]) -> None:
    columns = {name: parts for name, parts in pieces.items() if name != "score"}
    _gather_file(work.folder.child("scan"), unit, rows, columns)
    if "score" in pieces:
        if work.scores:
            _gather_file(work.folder.child(work.scores), unit, rows, {"score": pieces["score"]})
        else:
            pieces["score"].append(np.full(len(rows), np.nan))


def _gather_file(folder: Folder, unit: int, rows: NDArray[np.int64], pieces: dict[str, list[Any]]) -> None:
    with folder.open(f"{unit_name(unit)}.arrow") as file:
        reader = pa.ipc.open_file(file)
        first = 0
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            low, high = np.searchsorted(rows, [first, first + batch.num_rows])
            if low < high:
                wanted = rows[low:high] - first
                for name, parts in pieces.items():
                    parts.append(_take(batch, name, wanted))
            first += batch.num_rows


def _take(batch: pa.RecordBatch, name: str, rows: NDArray[np.int64]) -> Any:
    if name in ("id", "source"):
        if name not in batch.schema.names:
            return pa.nulls(len(rows), pa.string())
        return batch.column(name).take(pa.array(rows))
    if name == "quality" and name not in batch.schema.names:
        return np.full(len(rows), np.nan)
    return read_sidecar_column(batch, name)[rows]


def _join(name: str, parts: list[Any], expected: int) -> Any:
    if name in ("id", "source"):
        return pa.concat_arrays(parts) if parts else pa.nulls(0, pa.string())
    # Nobody asked for a document: 16 divides the width of every binary column.
    empty_shape = (0, 16) if name in ("exact", "sketch") else (0,)
    joined = np.concatenate(parts) if parts else np.zeros(empty_shape, np.uint8)
    assert len(joined) == expected, (name, len(joined), expected)
    return joined


def positions_of(work: WorkView, local: NDArray[np.int64]) -> NDArray[np.int64]:
    """Positions (shard × 2^40 + row) of ordinals counted from the work's first."""
    shard = np.searchsorted(work.shard_first, local, side="right") - 1
    return (shard << POSITION_SHIFT) + (local - work.shard_first[shard])
