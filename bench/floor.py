"""The floor: what pyarrow alone, in one thread, needs to move the text: `python -m bench.floor --input DIR …`.

    read-twice-write   read the text column, read all columns again, write them (zstd level 3, row groups of about 64 MB
                       of text): what any engine that reads twice and writes once must pay
    read-write         read all columns, write them
    read               read the text column: the floor of a run that writes no text

Prints one JSON object; `cpu_seconds` is process_time around the work, start-up and imports apart (`bench.run` measures
the whole process as well). Nothing is hashed, filtered or decided. `--dictionary` chooses between dictionary-encoding
every column (pyarrow's default) and every column but the text; the bench reports both, the faster one is the floor.
"""

import argparse
import json
import shutil
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.corpus import ROW_GROUP_TEXT_BYTES, CorpusError, parquet_shards

MODES = ("read-twice-write", "read-write", "read")
BATCH_ROWS = 2_000


def read_text(shard: Path) -> int:
    """Decode the text column; returns its bytes."""
    total = 0
    with pq.ParquetFile(shard) as file:
        for batch in file.iter_batches(BATCH_ROWS, columns=["text"], use_threads=False):
            total += pc.sum(pc.binary_length(batch.column(0)).cast(pa.int64())).as_py() or 0
    return total


def copy(shard: Path, target: Path, dictionary: bool) -> int:
    """Read all columns and write them; returns the bytes of text."""
    total = group_bytes = 0
    group: list[pa.RecordBatch] = []
    with pq.ParquetFile(shard) as file:
        names = file.schema_arrow.names
        encoded: bool | list[str] = True if dictionary else [name for name in names if name != "text"]
        with pq.ParquetWriter(
            target, file.schema_arrow, compression="zstd", compression_level=3, use_dictionary=encoded
        ) as writer:
            for batch in file.iter_batches(BATCH_ROWS, use_threads=False):
                size = pc.sum(pc.binary_length(batch.column("text")).cast(pa.int64())).as_py() or 0
                if group and group_bytes + size > ROW_GROUP_TEXT_BYTES:
                    _write_group(writer, group)
                    group, group_bytes = [], 0
                group.append(batch)
                group_bytes += size
                total += size
            if group:
                _write_group(writer, group)
    return total


def _write_group(writer: pq.ParquetWriter, group: list[pa.RecordBatch]) -> None:
    table = pa.Table.from_batches(group)
    writer.write_table(table, row_group_size=len(table))


def main() -> int:
    parser = argparse.ArgumentParser(description="CPU seconds of pyarrow moving the text")
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--output", type=Path, help="folder for the copy; removed afterwards")
    parser.add_argument("--mode", choices=MODES, default="read-twice-write")
    parser.add_argument("--dictionary", choices=("all", "not-text"), default="all")
    options = parser.parse_args()
    if options.mode != "read" and options.output is None:
        print(f"bench.floor: --mode {options.mode} writes and needs --output DIR", file=sys.stderr)
        return 2
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    try:
        shards = parquet_shards(options.input)
    except CorpusError as error:
        print(f"bench.floor: {error}", file=sys.stderr)
        return 2
    begin = time.process_time()
    total = 0
    if options.mode in ("read-twice-write", "read"):
        total = sum(read_text(shard) for shard in shards)
    if options.mode != "read":
        options.output.mkdir(parents=True)
        total = sum(copy(shard, options.output / shard.name, options.dictionary == "all") for shard in shards)
    seconds = time.process_time() - begin
    if options.mode != "read":
        shutil.rmtree(options.output)
    print(json.dumps({"mode": options.mode, "cpu_seconds": seconds, "text_bytes": total}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
