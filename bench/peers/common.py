"""What the peers' scripts share: arguments, reading shards, the JSON result. Imported by path, inside the peers' own
virtual environment: nothing of taojin or of bench is imported here."""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq


@dataclass
class Stages:
    """CPU seconds of this process by stage."""

    seconds: dict[str, float] = field(default_factory=dict)
    since: float = field(default_factory=time.process_time)

    def done(self, name: str) -> None:
        now = time.process_time()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self.since
        self.since = now


def arguments(description: str) -> argparse.Namespace:
    """--input DIR (shards with columns id, text), --work DIR (empty, for the peer's files), --result FILE (JSON)."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--bands", type=int, help="where the peer has bands")
    return parser.parse_args()


def batches(folder: Path, rows: int = 2_000) -> Iterator[tuple[list[str], list[str]]]:
    """(ids, texts) of all shards in order."""
    for shard in sorted(folder.glob("*.parquet")):
        for batch in pq.ParquetFile(shard).iter_batches(rows, columns=["id", "text"], use_threads=False):
            yield batch.column("id").to_pylist(), batch.column("text").to_pylist()


def grams(text: str, n: int = 5) -> list[str]:
    """Character n-grams; a shorter text is its own only one."""
    return [text[i : i + n] for i in range(len(text) - n + 1)] or [text]


def report(options: argparse.Namespace, removed: Iterable[str], stages: Stages | None, config: str) -> None:
    result = {"removed": sorted(removed), "stages": stages.seconds if stages else {}, "config": config}
    result["python"] = sys.version.split()[0]
    options.result.write_text(json.dumps(result), encoding="utf-8")
