"""The whole benchmark in one run: `python -m bench.run [--only kernel,dedup,…] [--size small|full]`, or `make bench`.

Runs the lanes one after another on the same shards, prints their tables and the targets, and writes them as
bench/results/<date>-<commit>.md and .json. Exit status 2 when the developer corpus is not there, 1 when a lane failed
(the others are still reported). `--size small` (a few minutes) uses `sub` everywhere and says nothing about the targets
that want a gigabyte.
"""

import argparse
import datetime
import sys
from pathlib import Path

from bench import report
from bench.corpus import DEFAULT_CORPUS, CorpusError, parquet_shards
from bench.lanes import LANES as OTHER_LANES
from bench.lanes import Context, Row
from bench.tokenize_lane import tokenize_lane
from bench.train_lane import train_lane

LANES = {**OTHER_LANES, "tokenize": tokenize_lane, "train": train_lane}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.run", description="measure taojin, the floor and the peers")
    parser.add_argument("--only", default=",".join(LANES), help=f"lanes, comma-separated, from {', '.join(LANES)}")
    parser.add_argument("--size", choices=("small", "full"), default="full")
    parser.add_argument("--corpus", type=Path, default=DEFAULT_CORPUS, help="folder of the developer shards")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--python312", default="python3.12", help="interpreter for text-dedup, which needs 3.12")
    parser.add_argument("--megatron", type=Path, help="a checkout of Megatron-LM, to run its own tool, not its loop")
    options = parser.parse_args(arguments)
    lanes = options.only.split(",")
    unknown = [lane for lane in lanes if lane not in LANES]
    if unknown:
        print(f"bench.run: no lane is called {unknown[0]!r}; there are {', '.join(LANES)}", file=sys.stderr)
        return 2
    try:
        parquet_shards(options.corpus)
    except CorpusError as error:
        print(f"bench.run: {error}", file=sys.stderr)
        return 2
    about = report.machine()
    full = options.size == "full"
    context = Context(corpus=options.corpus, full=full, python312=options.python312, megatron=options.megatron)
    rows: list[Row] = []
    failed = False
    for lane in lanes:
        print(f"{lane}:", file=sys.stderr, flush=True)
        try:
            rows += LANES[lane](context)
        except (RuntimeError, OSError, ValueError, KeyError) as error:
            rows.append(Row(lane=lane, name="the lane", reason=f"{type(error).__name__}: {error}"))
        failed |= any(row.lane == lane and row.reason.startswith("exit status") for row in rows)
        failed |= rows[-1].name == "the lane"
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    command = f"python -m bench.run --only {','.join(lanes)} --size {options.size}"
    print(report.write(rows, options.results, date, command, about))
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
