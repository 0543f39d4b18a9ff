"""The decide stage alone, on synthetic sidecars: `python -m bench.decide --documents N --work DIR`.

Makes, in a process of its own, what a scan would have left of N documents (nine in ten unlike any other, one in ten
drawn from families whose members keep 80–100 % of the family's lanes and bins), then decides them in this process
without Ray and prints one JSON object: documents, cpu_seconds and peak_mb of the decision, kept, removed. Reads and
writes no text.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from taojin.core.corpus import Piece, Plan, Shard, Span, num_key_ranges
from taojin.core.progress import Progress
from taojin.core.scan import fixed_binary, sidecar_schema
from taojin.core.storage import Folder
from taojin.core.tasks import LocalExecutor, Stages, unit_name
from taojin.dedup import survivors
from taojin.dedup.bands import KeyWriter, band_keys
from taojin.dedup.config import DedupConfig
from taojin.dedup.decide import decide
from taojin.dedup.scan import SketchAnalyzer
from taojin.dedup.sketch import sketch_words
from taojin.pipeline import view_of

UNIT_DOCUMENTS = 80_000
FAMILY_SHARE = 0.1
DOCUMENTS_PER_FAMILY = 2.5


def synthetic_plan(num_documents: int, config: DedupConfig) -> Plan:
    """One shard, a piece and a unit per UNIT_DOCUMENTS."""
    sizes = [min(UNIT_DOCUMENTS, num_documents - first) for first in range(0, num_documents, UNIT_DOCUMENTS)]
    pieces = tuple(Piece(i, i + 1, rows, rows * 2000) for i, rows in enumerate(sizes))
    shard = Shard("synthetic.parquet", "synthetic.parquet", "parquet", None, 0, "", pieces)
    units = tuple((Span(0, i, i + 1),) for i in range(len(pieces)))
    schema = pa.schema([("text", pa.large_string()), ("id", pa.large_string())])
    return Plan((shard,), units, schema, config.scan_part(), num_key_ranges(num_documents * (config.bands + 1)))


def _family_values(families: NDArray[np.uint64], count: int) -> NDArray[np.uint64]:
    """uint64[families, count]: values that depend on the family alone (splitmix64 of a counter)."""
    x: NDArray[np.uint64] = np.add(families[:, None] * np.uint64(count), np.arange(count, dtype=np.uint64))
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return mixed


def make_unit(unit: int, num_documents: int, plan: Plan, config: DedupConfig, work: Folder) -> dict[str, Any]:
    """Write the four files of one unit; returns the stats a scan would."""
    rng = np.random.default_rng(unit)
    size = plan.shards[0].pieces[unit].rows
    words = sketch_words(config)
    lanes = rng.integers(0, 1 << 32, (size, config.num_hashes), dtype=np.uint32)
    # 2-bit values 1–3 as two bit planes: never both bits 0.
    planes = rng.integers(0, 1 << 64, (2, size, words // 2), dtype=np.uint64, endpoint=False)
    planes[1] |= ~planes[0]
    members = np.flatnonzero(rng.random(size) < FAMILY_SHARE)
    num_families = max(1, int(num_documents * FAMILY_SHARE / DOCUMENTS_PER_FAMILY))
    families = rng.integers(0, num_families, len(members)).astype(np.uint64)
    similarity = rng.uniform(0.8, 1.0, len(members))[:, None]
    own = _family_values(families, config.num_hashes).astype(np.uint32)
    lanes[members] = np.where(rng.random(own.shape) < similarity, own, lanes[members])
    low = _family_values(families + np.uint64(1 << 40), words // 2)
    high = _family_values(families + np.uint64(1 << 41), words // 2) | ~low
    same = np.packbits(rng.random((len(members), words * 32)) < similarity, axis=1).view(np.uint64)
    planes[0][members] = (low & same) | (planes[0][members] & ~same)
    planes[1][members] = (high & same) | (planes[1][members] & ~same)
    hashes = rng.integers(0, 256, (size, 16), dtype=np.uint8)
    ids = pa.array([f"document-{unit}-{row}" for row in range(size)])
    name = f"{unit_name(unit)}.arrow"
    schema = sidecar_schema(plan, config.reading, [SketchAnalyzer(config)])
    columns = {
        "exact": fixed_binary(hashes),
        "sketch": fixed_binary(np.concatenate([planes[0], planes[1]], axis=1)),
        "shingles": pa.array(np.full(size, 500, np.uint32)),
        "chars": pa.array(rng.integers(50, 3000, size).astype(np.uint32)),
        "bytes": pa.array(np.full(size, 2000, np.uint32)),
        "status": pa.array(np.zeros(size, np.uint8)),
        "id": ids,
    }
    rows = np.arange(size, dtype=np.uint32)
    keys, key_rows = np.empty(size * config.bands, np.uint64), np.empty(size * config.bands, np.uint32)
    count = band_keys(lanes, np.zeros(size, np.uint8), 0, config.bands, config.rows, keys, key_rows)
    tables = {
        "bands": (keys[:count], key_rows[:count]),
        "exact": (hashes.view(np.uint64)[:, 0], rows),
        "ids": (rng.integers(0, 1 << 64, size, dtype=np.uint64, endpoint=False), rows),
    }
    files = {}
    with work.child("scan").create(name) as sink:
        with pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays([columns[n] for n in schema.names], schema=schema))
        sink.rows = size
    files["scan"] = work.child("scan").entry(name, sink).as_json()
    for kind, (kind_keys, kind_rows) in tables.items():
        with work.child(kind).create(name) as sink:
            key_writer = KeyWriter(sink, plan.num_ranges)
            key_writer.add(np.ascontiguousarray(kind_keys), kind_rows)
            key_writer.close()
        files[kind] = work.child(kind).entry(name, sink).as_json()
    return {
        "documents": size,
        "bytes": size * 2000,
        "chars": 0,
        "reasons": {},
        "pieces": [[0, unit, size]],
        "files": files,
    }


def make(num_documents: int, config: DedupConfig, work: Folder) -> None:
    plan = synthetic_plan(num_documents, config)
    for unit in range(len(plan.units)):
        work.write_json(f"stats/scan/{unit_name(unit)}.json", make_unit(unit, num_documents, plan, config, work))


def peak_mb() -> float:
    """Peak resident memory of this process, mapped files included (VmHWM)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.decide", description="measure the decide stage on synthetic sidecars")
    parser.add_argument("--documents", type=int, required=True)
    parser.add_argument("--work", required=True, help="an empty folder; about 620 bytes a document")
    parser.add_argument("--only-make", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    config = DedupConfig(input=("synthetic",), work=options.work, report_only=True, num_cpus=0)
    work = Folder(options.work)
    if options.only_make:
        make(options.documents, config, work)
        return 0
    arguments = [sys.executable, "-m", "bench.decide", "--documents", str(options.documents), "--work", options.work]
    subprocess.run([*arguments, "--only-make"], check=True)
    plan = synthetic_plan(options.documents, config)
    stats = [work.read_json(f"stats/scan/{name}") for name in work.names("stats/scan")]
    # There are no texts that could settle a borderline acceptance out of many candidates; the estimate stands.
    survivors.FEW = options.documents
    started = time.process_time()
    corpus = view_of(work, plan, config, stats, 0)
    folder = work.child(config.decide_name)
    stages = Stages(folder.child("stats"), LocalExecutor(), Progress(quiet=True))
    decided = decide([corpus], config, folder, stages)
    result = {
        "documents": options.documents,
        "cpu_seconds": round(time.process_time() - started, 2),
        "peak_mb": round(peak_mb()),
        "ranges": plan.num_ranges,
        **{key: decided.counts[key] for key in ("kept", "removed", "pairs", "compared", "settled_by_shingles")},
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
