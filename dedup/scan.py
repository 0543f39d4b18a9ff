"""The sketch analyzer: what the scan leaves of a document for `decide` to find and compare duplicates by.

Out, per unit: the sidecar's columns exact, sketch and shingles; bands/<unit>.arrow, exact/<unit>.arrow and
ids/<unit>.arrow, its keys split by range (`taojin.dedup.bands`). About 600 bytes a document, half of it sketch.
"""

from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from taojin.core.corpus import Plan
from taojin.core.reading import Batch
from taojin.core.scan import fixed_binary
from taojin.core.status import EMPTY
from taojin.core.storage import Folder
from taojin.core.tasks import unit_name
from taojin.core.text import hash_bytes, text_buffers
from taojin.dedup.bands import KeyWriter, band_keys
from taojin.dedup.config import DedupConfig
from taojin.dedup.exact import EXACT_BYTES, exact_hashes, exact_keys
from taojin.dedup.sketch import Sketches, sketch_array, sketch_words

KEY_KINDS = ("bands", "exact", "ids")


class SketchAnalyzer(NamedTuple):
    config: DedupConfig

    def fields(self) -> list[pa.Field]:
        return [
            pa.field("exact", pa.binary(EXACT_BYTES)),
            pa.field("sketch", pa.binary(8 * sketch_words(self.config))),
            pa.field("shingles", pa.uint32()),
        ]

    def start(self, plan: Plan, work: Folder, unit: int, stack: ExitStack) -> "SketchAnalysis":
        return SketchAnalysis(self.config, plan, work, unit, stack)


class SketchAnalysis:
    """One unit's sketches and keys."""

    def __init__(self, config: DedupConfig, plan: Plan, work: Folder, unit: int, stack: ExitStack) -> None:
        self.config = config
        self.name = f"{unit_name(unit)}.arrow"
        self.has_ids = config.id_column in plan.schema.names
        self.folders = {kind: work.child(kind) for kind in KEY_KINDS}
        self.sinks = {kind: stack.enter_context(self.folders[kind].create(self.name)) for kind in KEY_KINDS}
        self.keys = {kind: KeyWriter(sink, plan.num_ranges) for kind, sink in self.sinks.items()}

    def add(self, batch: Batch, first_row: int) -> dict[str, pa.Array]:
        texts = batch.rows.column(self.config.text_column)
        sketches = sketch_array(texts, self.config, batch.status)
        hashes = exact_hashes(texts)
        self._add_keys(sketches, hashes, first_row)
        if self.has_ids:
            _add_ids(self.keys["ids"], batch.rows.column(self.config.id_column), first_row)
        return {
            "exact": fixed_binary(hashes),
            "sketch": fixed_binary(sketches.sketch),
            "shingles": pa.array(sketches.num_shingles),
            "chars": pa.array(sketches.num_chars),
        }

    def _add_keys(self, sketches: Sketches, hashes: NDArray[np.uint8], first_row: int) -> None:
        config = self.config
        size = len(sketches.status) * config.bands
        keys, rows = np.empty(size, np.uint64), np.empty(size, np.uint32)
        count = band_keys(sketches.lanes, sketches.status, first_row, config.bands, config.rows, keys, rows)
        self.keys["bands"].add(keys[:count], rows[:count])
        present = np.flatnonzero(sketches.status < EMPTY)
        self.keys["exact"].add(exact_keys(hashes)[present], (present + first_row).astype(np.uint32))

    def close(self) -> None:
        for writer in self.keys.values():
            writer.close()

    def files(self) -> dict[str, dict[str, Any]]:
        return {kind: self.folders[kind].entry(self.name, sink).as_json() for kind, sink in self.sinks.items()}


def _add_ids(writer: KeyWriter, ids: pa.Array, first_row: int) -> None:
    data, offsets = text_buffers(ids)
    keys = np.empty(len(ids), np.uint64)
    hash_bytes(data, offsets, keys)
    present = np.flatnonzero(ids.is_valid().to_numpy(zero_copy_only=False))
    writer.add(keys[present], (present + first_row).astype(np.uint32))
