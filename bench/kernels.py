"""The kernels alone, in one process, one thread, from Arrow buffers in memory: `python -m bench.kernels --input DIR`.

Times `sketch_texts` (K = 128, K = 256, and datasketch's permutations), the exact hash and the band keys, each warmed up
on a few documents (compilation apart) and taken as the best of `--repeat` passes by process_time. Prints one JSON
object. Reading the shards and start-up are not in the figures.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.corpus import parquet_shards
from taojin.dedup.bands import band_keys
from taojin.dedup.config import SketchConfig
from taojin.dedup.exact import exact_hashes
from taojin.dedup.sketch import Sketches, sketch_texts


def best_seconds(work: Callable[[], object], repeat: int) -> float:
    best = float("inf")
    for _ in range(repeat):
        begin = time.process_time()
        work()
        best = min(best, time.process_time() - begin)
    return best


def make_bands(sketches: Sketches, config: SketchConfig) -> int:
    room = len(sketches.status) * config.bands
    keys, rows = np.empty(room, np.uint64), np.empty(room, np.uint32)
    return int(band_keys(sketches.lanes, sketches.status, 0, config.bands, config.rows, keys, rows))


def main() -> int:
    parser = argparse.ArgumentParser(description="MB of text per CPU-second of each kernel")
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    pa.set_cpu_count(1)
    tables = [pq.read_table(shard, columns=["text"], use_threads=False) for shard in parquet_shards(options.input)]
    texts = pa.concat_tables(tables)["text"].cast(pa.large_string())
    fast, wide = SketchConfig(), SketchConfig(num_hashes=256, bands=40, rows=6)
    permutations = SketchConfig(sketch="datasketch")
    for config in (fast, wide, permutations):
        make_bands(sketch_texts(texts.slice(0, 10), config), config)
    sketches = sketch_texts(texts, fast)
    work: dict[str, Callable[[], object]] = {
        "sketch, K=128": lambda: sketch_texts(texts, fast),
        "sketch, K=256": lambda: sketch_texts(texts, wide),
        "sketch, datasketch K=128": lambda: sketch_texts(texts, permutations),
        "exact hash": lambda: [exact_hashes(chunk) for chunk in texts.chunks],
        "band keys, 20×6": lambda: make_bands(sketches, fast),
    }
    size = int(pc.sum(pc.binary_length(texts)).as_py())
    result = []
    for name, function in work.items():
        seconds = best_seconds(function, options.repeat)
        result.append({"kernel": name, "documents": len(texts), "text_bytes": size, "cpu_seconds": seconds})
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
