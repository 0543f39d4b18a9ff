"""How tests run taojin: in this process with its output captured, or as a process of its own; and what they feed it."""

import contextlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from taojin.cli import main

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
# Ray's embedded clusters would otherwise write a token to the home folder.
ENVIRONMENT = {**os.environ, "RAY_AUTH_MODE": "disabled", "PYTHONUNBUFFERED": "1"}


class Outcome(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def counts(self) -> dict[str, Any]:
        """The JSON object that a successful `dedup` printed."""
        assert self.status == 0, self.err
        counts: dict[str, Any] = json.loads(self.out)
        return counts

    def refuses(self, status: int, *parts: str) -> None:
        """It ended with this status and one line on stderr that holds these parts; nothing on stdout."""
        assert self.status == status, (self.status, self.err)
        assert self.out == ""
        assert self.err.endswith("\n")
        assert self.err.count("\n") == 1, self.err
        assert "Traceback" not in self.err
        for part in parts:
            assert part in self.err, self.err


def taojin(*arguments: object) -> Outcome:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else 1
    return Outcome(status, out.getvalue(), err.getvalue())


def dedup(source: object, output: object, *flags: object) -> Outcome:
    """`taojin dedup` without Ray in this process."""
    inputs = source if isinstance(source, list) else [source]
    return taojin("dedup", "--input", *inputs, "--output", output, "--num-cpus", "0", "--quiet", "--json", *flags)


def process(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    """`taojin …` as a process and process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "taojin.cli", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**ENVIRONMENT, **environment},
        start_new_session=True,
    )


def finish(running: subprocess.Popen[str], timeout: float = 120) -> Outcome:
    out, err = running.communicate(timeout=timeout)
    return Outcome(running.returncode, out, err)


def wait_for(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError(f"{what}: not within {seconds} seconds")


def chinese(rng: random.Random, length: int) -> str:
    return "".join(map(chr, rng.choices(range(0x4E00, 0x9000), k=length)))


def edited(rng: random.Random, text: str, changes: int) -> str:
    characters = list(text)
    for at in rng.sample(range(len(text)), changes):
        characters[at] = chr(rng.randrange(0x4E00, 0x9000))
    return "".join(characters)


def rows(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Documents with exact, folded and near-duplicates, short, blank, empty and null ones among them."""
    rng = random.Random(seed)
    originals: list[str] = []
    for number in range(count):
        choice = rng.random()
        text: str | None
        if not originals or choice < 0.6:
            text = chinese(rng, rng.choice((3, 8, 40, 120, 300)))
            originals.append(text)
        elif choice < 0.75:
            text = rng.choice(originals)
        elif choice < 0.95:
            text = rng.choice(originals)
            text = edited(rng, text, 1) if len(text) >= 120 else f" {text}！"
        else:
            text = rng.choice(("", "。。。！", " \u3000\n", None))
        yield {"id": f"{seed}-{number}", "text": text, "source": rng.choice("abc"), "score": rng.random()}


def write_parquet(path: Path, records: Sequence[dict[str, Any]], **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(records)), path, **options)
    return path


def write_texts(path: Path, texts: Sequence[str | None], **options: Any) -> Path:
    return write_parquet(path, [{"id": str(i), "text": text} for i, text in enumerate(texts)], **options)


def write_jsonl(path: Path, records: Sequence[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    return path


def make_corpus(folder: Path, shards: int = 3, count: int = 300, group: int = 50) -> Path:
    """`shards` Parquet files that repeat each other's documents, in row groups of `group` rows (about 25 kB)."""
    for number in range(shards):
        records = list(rows(number // 2, count))
        for record in records:
            record["id"] = f"{number}/{record['id']}"
        write_parquet(folder / f"shard-{number}.parquet", records, row_group_size=group)
    return folder


def digest(content: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(content)


def files(folder: Path, leave_out: Sequence[str] = ()) -> dict[str, str]:
    """Digest of every committed file below a folder, by relative path: a failing comparison names the files."""
    found = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".tmp")
    names = {path.relative_to(folder).as_posix(): path for path in found}
    return {
        name: digest(path.read_bytes()) for name, path in names.items() if not any(part in name for part in leave_out)
    }


def results(output: Path) -> dict[str, dict[str, str]]:
    """What must be the same bytes for any workers, order and faults: OUT, decisions, ledger, and all of WORK but the
    stats of writing, which name the output folder."""
    work = output.with_name(output.name + ".work")
    return {"output": files(output), "work": files(work, leave_out=["stats/write~"])}


def output_rows(output: Path) -> list[dict[str, Any]]:
    parts = sorted(output.glob("part-*.parquet"))
    return [row for part in parts for row in pq.read_table(part).to_pylist()]


def ledger_rows(output: Path) -> list[dict[str, Any]]:
    work = output.with_name(output.name + ".work")
    return [row for part in sorted(work.glob("decide-*/ledger/*.parquet")) for row in pq.read_table(part).to_pylist()]


def peak_memory_mb(arguments: Sequence[object], timeout: float = 240) -> tuple[Outcome, float]:
    """(outcome, VmHWM in MB of 10^6 bytes) of a `taojin` command in a process of its own."""
    script = (
        "import sys; from taojin.cli import main; status = main(sys.argv[1:])\n"
        "peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "print(peak.split()[1], file=sys.stderr); sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=ENVIRONMENT,
        timeout=timeout,
        check=False,
    )
    *lines, peak = done.stderr.splitlines()
    return Outcome(done.returncode, done.stdout, "\n".join(lines)), int(peak) * 1024 / 1e6


def die_committing(arguments: Sequence[object], fragment: str, number: int) -> None:
    """Run `taojin` in this process and SIGKILL it as it renames the `number`th file whose path holds `fragment`; what
    was to be renamed is torn first. For a process of its own."""
    rename = os.replace
    seen = 0

    def replace(source: str, target: str) -> None:
        nonlocal seen
        seen += fragment in target
        if fragment in target and seen == number:
            os.truncate(source, os.path.getsize(source) // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        rename(source, target)

    os.replace = replace  # type: ignore[assignment]
    sys.exit(taojin(*arguments).status)


def conserved(outcome: Outcome) -> dict[str, int]:
    """Removed by reason, after checking that every document is accounted for."""
    counts = outcome.counts
    removed: dict[str, int] = counts["removed"]
    assert counts["documents"] == counts["kept"] + sum(removed.values())
    return removed


def string_array(texts: list[bytes]) -> pa.Array:
    """A string column of any bytes, valid UTF-8 or not."""
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    return pa.Array.from_buffers(
        pa.string(), len(texts), [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(b"".join(texts))]
    )
