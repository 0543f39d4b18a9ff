"""The lanes of the benchmark: each runs its commands one at a time, under `bench.cpu`, and returns rows.

A lane decides nothing about good or bad (that is `bench.report`) and prints nothing but one line per command on stderr.
Every command is a child process with a fresh output folder below .bench/runs; a calibration loop runs before
and after it. A lane that cannot run here returns a row that says why.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench import corpus
from bench.cpu import Usage, measure
from bench.truth import Judge, load_some, score_survivors

PEERS = Path(__file__).parent / "peers"
RUNS = corpus.SCRATCH / "runs"
TAOJIN = Path(sys.executable).with_name("taojin")
ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAYON_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "POLARS_MAX_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONHASHSEED": "0",
}
SAMPLED_REMOVALS = 5_000  # of those on `big`, whose truth is too large to know whole
EXACT = ("--verify", "exact")
K256 = ("--num-hashes", "256", "--bands", "40", "--rows", "6")


@dataclass(kw_only=True)
class Row:
    """One measured command (or kernel). `reason` is set, and nothing else, where it did not run."""

    lane: str
    name: str
    corpus: str = ""
    text_mb: float = 0.0
    cpu_seconds: float = 0.0
    startup_seconds: float = 0.0
    wall_seconds: float = 0.0
    peak_mb: float = 0.0
    peak_process: str = ""
    calibration: tuple[float, float] = (0.0, 0.0)
    reason: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """MB of text per CPU-second, everything included."""
        return self.text_mb / self.cpu_seconds if self.cpu_seconds else 0.0

    @property
    def rate_without_startup(self) -> float:
        seconds = self.cpu_seconds - self.startup_seconds
        return self.text_mb / seconds if seconds > 0 else 0.0


@dataclass(kw_only=True)
class Context:
    corpus: Path
    full: bool
    python312: str = "python3.12"
    megatron: Path | None = None
    judges: dict[str, Judge] = field(default_factory=dict)
    startups: dict[str, float] = field(default_factory=dict)

    @property
    def large(self) -> str:
        return "big" if self.full else "sub"

    def folder(self, name: str) -> Path:
        return corpus.make(name, self.corpus)

    def judge(self, name: str) -> Judge:
        if name not in self.judges:
            self.judges[name] = Judge(self.folder(name))
        return self.judges[name]


def calibrate() -> float:
    """CPU seconds of a fixed piece of work: shows whether the neighbours slow this machine down."""
    best = float("inf")
    for _ in range(5):
        begin = time.process_time()
        np.sort(np.random.default_rng(1).random(500_000))
        sum(i * i for i in range(500_000))
        best = min(best, time.process_time() - begin)
    return best


def run(name: str, command: Sequence[str | Path]) -> tuple[Usage, tuple[float, float]]:
    """Measure a command. Raises RuntimeError with the end of its stderr when it fails."""
    before = calibrate()
    usage = measure([str(part) for part in command], env={**os.environ, **ENVIRONMENT}, cwd=corpus.ROOT)
    if usage.exit_status != 0:
        told = " / ".join(usage.stderr.strip().splitlines()[-3:])
        raise RuntimeError(f"exit status {usage.exit_status}: {told[-400:]}")
    print(f"  {name}: {usage.cpu_seconds:.2f} CPU s, {usage.wall_seconds:.1f} s", file=sys.stderr, flush=True)
    return usage, (before, calibrate())


def make_row(
    lane: str, name: str, corpus_name: str, text_mb: float, usage: Usage, calibration: tuple[float, float]
) -> Row:
    return Row(
        lane=lane, name=name, corpus=corpus_name, text_mb=text_mb, cpu_seconds=usage.cpu_seconds,
        wall_seconds=usage.wall_seconds, peak_mb=usage.peak_mb, peak_process=usage.peak_process,
        calibration=calibration, extra={"largest": usage.largest},
    )  # fmt: skip


def fresh(name: str) -> Path:
    folder = RUNS / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


# ---- kernel ----------------------------------------------------------------------------------------------------------


def kernel_lane(context: Context) -> list[Row]:
    """The kernels alone, from Arrow buffers, on long Chinese documents and on the developer mix."""
    rows = []
    for name in ("long", "dev"):
        command: list[str | Path] = [sys.executable, "-m", "bench.kernels", "--input", context.folder(name)]
        usage, calibration = run(f"kernels on {name}", command)
        for kernel in json.loads(usage.stdout):
            row = Row(lane="kernel", name=kernel["kernel"], corpus=name, text_mb=kernel["text_bytes"] / 1e6)
            row.cpu_seconds, row.peak_mb, row.calibration = kernel["cpu_seconds"], usage.peak_mb, calibration
            row.extra["documents"] = kernel["documents"]
            rows.append(row)
    return rows


# ---- floor -----------------------------------------------------------------------------------------------------------


def floor_lane(context: Context) -> list[Row]:
    """pyarrow alone; start-up apart (process_time inside the child) and the better of two runs: as high as can be."""
    rows = []
    both = "read-twice-write"
    for mode, dictionary in (("read", "all"), ("read-write", "not-text"), (both, "not-text"), (both, "all")):
        passes = []
        for _ in range(2):
            output = fresh("floor") / "out"
            command: list[str | Path] = [
                sys.executable,
                "-m",
                "bench.floor",
                "--mode",
                mode,
                "--dictionary",
                dictionary,
            ]
            command += ["--dictionary", dictionary, "--input", context.folder(context.large), "--output", output]
            usage, calibration = run(f"floor {mode}", command)
            told = json.loads(usage.stdout)
            name = mode if mode == "read" else f"{mode}, dictionaries: {dictionary}"
            row = make_row("floor", name, context.large, told["text_bytes"] / 1e6, usage, calibration)
            row.startup_seconds = usage.cpu_seconds - told["cpu_seconds"]
            row.extra["mode"] = mode
            passes.append(row)
        rows.append(max(passes, key=lambda row: row.rate_without_startup))
    return rows


# ---- taojin dedup ----------------------------------------------------------------------------------------------------


def _dedup_command(inputs: Path, folder: Path, cpus: int, flags: Iterable[str]) -> list[str | Path]:
    command: list[str | Path] = [TAOJIN, "dedup", "--input", inputs, "--work", folder / "work", "--json"]
    if "--report-only" not in flags:
        command += ["--output", folder / "out"]
    return [*command, "--num-cpus", str(cpus), "--quiet", *flags]


def startup_lane(context: Context) -> list[Row]:
    """The whole command on five documents: without Ray, and with an embedded Ray and two units. The second run of each
    counts, the first fills caches (compiled kernels, byte code)."""
    inputs = fresh("startup-input")
    table = pq.read_table(corpus.parquet_shards(context.folder("sub"))[0]).slice(0, 10)
    pq.write_table(table.slice(0, 5), inputs / "a.parquet")
    size = sum(len(text.encode()) for text in table["text"].to_pylist()[:5]) / 1e6
    rows = []
    for cpus, name in ((0, "--num-cpus 0, one unit"), (1, "embedded Ray, one worker, two units")):
        if cpus:
            pq.write_table(table.slice(5, 5), inputs / "b.parquet")
        flags = ("--unit-mb", "0.0001") if cpus else ()
        for _ in range(2):
            usage, calibration = run(f"start-up {name}", _dedup_command(inputs, fresh("startup"), cpus, flags))
        row = make_row("startup", name, "5 documents a unit", size, usage, calibration)
        context.startups[str(cpus)] = usage.cpu_seconds
        rows.append(row)
    return rows


def dedup_lane(context: Context) -> list[Row]:
    """The whole command on the large corpus (speed, memory) and on those with a truth (precision, recall)."""
    # Every kernel once, so that no measured run compiles.
    for name, cpus, flags in (
        ("sketch", 0, ("--unit-mb", "8")),
        ("exact", 0, EXACT),
        ("sketch", 1, ("--unit-mb", "8")),
    ):
        run(f"warm-up {name}", _dedup_command(context.folder("sub"), fresh("warm-up"), cpus, flags))
    shutil.rmtree(RUNS / "warm-up")
    if not context.startups:
        try:
            startup_lane(context)
        except RuntimeError as error:
            print(f"  start-up is unknown and not taken off: {error}", file=sys.stderr, flush=True)
    speed: list[tuple[str, int, tuple[str, ...]]] = [
        ("sketch, --num-cpus 0", 0, ()),
        ("sketch, embedded Ray, one worker", 1, () if context.full else ("--unit-mb", "8")),
        ("sketch, --report-only, --num-cpus 0", 0, ("--report-only",)),
        ("exact, --num-cpus 0", 0, EXACT),
        ("sketch, K=256 40×6, --num-cpus 0", 0, K256),
    ]
    accuracy = [("sketch", 0, ()), ("exact", 0, EXACT), ("sketch, K=256 40×6", 0, K256)]
    wanted = [(context.large, *case) for case in speed]
    if context.full:
        wanted += [(name, *case) for name in ("sub", "dev") for case in accuracy]
    return [_dedup(context, *case) for case in wanted]


def _dedup(context: Context, corpus_name: str, name: str, cpus: int, flags: tuple[str, ...]) -> Row:
    folder = fresh("dedup")
    inputs = context.folder(corpus_name)
    documents, text = corpus.text_bytes(inputs)
    try:
        usage, calibration = run(f"dedup {corpus_name} {name}", _dedup_command(inputs, folder, cpus, flags))
    except RuntimeError as error:
        return Row(lane="dedup", name=name, corpus=corpus_name, reason=str(error))
    row = make_row("dedup", name, corpus_name, text / 1e6, usage, calibration)
    row.startup_seconds = context.startups.get(str(cpus), 0.0)
    row.extra["flags"] = list(flags)
    row.extra["counts"] = json.loads(usage.stdout)
    work = folder / "work"
    parts = [p for p in work.iterdir() if p.is_dir() and p.name != "stats" and not p.name.startswith("decide-")]
    files = [p for part in parts for p in part.rglob("*") if p.is_file()]
    row.extra["sidecar_bytes_per_document"] = sum(p.stat().st_size for p in files) / documents
    ledger = read_ledger(work)
    removed = ledger["id"].to_pylist()
    near_rows = ledger.filter(pc.equal(ledger["reason"], "near_duplicate"))
    near = list(zip(near_rows["id"].to_pylist(), near_rows["survivor_id"].to_pylist(), strict=True))
    row.extra["removed"] = len(removed)
    if corpus_name == "big":
        near = random.Random(1).sample(near, min(len(near), SAMPLED_REMOVALS))
        sets = load_some(inputs, [name for pair in near for name in pair])
    else:
        sets = context.judge(corpus_name).sets
        row.extra |= context.judge(corpus_name).score(removed)
    row.extra |= score_survivors(sets, near, removed)
    # All other removals are of equal texts: their J to the survivor is 1.
    wrong = (1.0 - row.extra["survivor_precision@0.8"]) * near_rows.num_rows
    row.extra["survivor_precision_all@0.8"] = 1.0 - wrong / max(1, len(removed))
    shutil.rmtree(folder)
    return row


def read_ledger(work: Path) -> pa.Table:
    """WORK/decide-<hash>/ledger/*.parquet of the one decision in WORK."""
    shards = sorted(work.glob("decide-*/ledger/*.parquet"))
    if not shards:
        raise RuntimeError(f"no ledger below {work}: has the layout of WORK changed?")
    return pa.concat_tables(
        [pq.read_table(shard, columns=["id", "reason", "similarity", "survivor_id"]) for shard in shards]
    )


def decide_lane(context: Context) -> list[Row]:
    """The decide stage alone on synthetic sidecars of 1, 4 and 16 million documents (`bench.decide`)."""
    rows = []
    script = [sys.executable, "-m", "bench.decide", "--documents"]
    run("warm-up decide", [*script, "50000", "--work", fresh("decide") / "work"])
    for millions in (1, 4, 16) if context.full else (1,):
        name = f"{millions} million documents"
        usage, calibration = run(
            f"decide {name}", [*script, str(millions * 1_000_000), "--work", fresh("decide") / "work"]
        )
        row = make_row("decide", name, "synthetic", 0.0, usage, calibration)
        row.extra |= json.loads(usage.stdout)
        row.cpu_seconds = row.extra["cpu_seconds"]
        rows.append(row)
    shutil.rmtree(RUNS / "decide")
    return rows


# ---- peers -----------------------------------------------------------------------------------------------------------


class PeerError(Exception):
    """A peer cannot be installed here."""


def peers_python(name: str, requirements: Path, python: str) -> Path:
    """Interpreter of .bench/<name>, made from `requirements` unless it stands."""
    folder = corpus.SCRATCH / name
    interpreter, marker = folder / "bin" / "python", folder / "requirements.txt"
    if marker.is_file() and marker.read_text() == requirements.read_text():
        return interpreter
    found = shutil.which(python)
    if found is None or subprocess.run([found, "--version"], capture_output=True, check=False).returncode != 0:
        raise PeerError(f"no {python} on this machine")
    print(f"  installing {requirements.name} in {folder.name}", file=sys.stderr, flush=True)
    pip: list[str | Path] = [interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    make: list[str | Path] = [found, "-m", "venv", "--clear", folder]
    for command in (make, [*pip, "-r", requirements]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise PeerError(f"installing failed: {done.stderr.strip()[-200:]}")
    marker.write_text(requirements.read_text())
    return interpreter


def peers_lane(context: Context) -> list[Row]:
    """Each peer on `sub`, scored by the same truth; rensa also on the large corpus."""
    ours = "requirements.txt"
    cases = [
        ("rensa", "rensa_stream.py", ours, "sub"),
        ("datasketch", "datasketch_lsh.py", ours, "sub"),
        ("text-dedup", "text_dedup_minhash.py", "requirements-text-dedup.txt", "sub"),
        ("datatrove", "datatrove_minhash.py", ours, "sub"),
    ]
    if context.full:
        cases.append(("rensa", "rensa_stream.py", ours, "big"))
    return [_peer(context, *case) for case in cases]


def _peer(context: Context, name: str, script: str, requirements: str, corpus_name: str) -> Row:
    other = requirements != "requirements.txt"
    folder = fresh("peer")
    inputs = context.folder(corpus_name)
    try:
        python = peers_python(
            "text-dedup-venv" if other else "peers-venv",
            PEERS / requirements,
            context.python312 if other else f"python{sys.version_info.major}.{sys.version_info.minor}",
        )
        command: list[str | Path] = [python, PEERS / script, "--input", inputs]
        command += ["--work", folder / "work", "--result", folder / "result"]
        usage, calibration = run(f"{name} {corpus_name}", command)
    except (PeerError, RuntimeError) as error:
        return Row(lane="peers", name=name, corpus=corpus_name, reason=str(error))
    told = json.loads((folder / "result").read_text())
    row = make_row("peers", name, corpus_name, corpus.text_bytes(inputs)[1] / 1e6, usage, calibration)
    row.extra |= {"config": told["config"], "stages": told["stages"], "python": told["python"]}
    row.extra["removed"] = len(told["removed"])
    if corpus_name != "big":
        row.extra |= context.judge(corpus_name).score(told["removed"])
    shutil.rmtree(folder)
    return row


# ---- quality ---------------------------------------------------------------------------------------------------------


def quality_lane(context: Context) -> list[Row]:
    """Signals, rules and what else `taojin quality` measures: alone, in the scan, beside datatrove, as a command."""
    name = "dev" if context.full else "sub"
    folder = fresh("quality")
    rows = []
    for part, measured in (
        ("kernels", _quality_kernels),
        ("scan", _quality_scan),
        ("datatrove's chain", _quality_peer),
        ("taojin quality", _quality_command),
    ):
        try:
            rows += measured(context, name, folder)
        except (PeerError, RuntimeError) as error:
            rows.append(Row(lane="quality", name=part, corpus=name, reason=str(error)))
    shutil.rmtree(folder)
    return rows


def _quality_kernels(context: Context, name: str, folder: Path) -> list[Row]:
    child: list[str | Path] = [sys.executable, "-m", "bench.quality", "kernels", "--input", context.folder(name)]
    return _told(name, *run("quality kernels", [*child, "--questions", context.corpus.parent / "eval"]))


def _quality_scan(context: Context, name: str, folder: Path) -> list[Row]:
    child: list[str | Path] = [sys.executable, "-m", "bench.quality", "scan", "--input", context.folder(name)]
    return _told(name, *run("quality scan", [*child, "--work", folder / "scan"]))


def _told(name: str, usage: Usage, calibration: tuple[float, float]) -> list[Row]:
    """The rows that a child printed; what they hold beside speed goes to `extra`."""
    rows = []
    for told in json.loads(usage.stdout)["rows"]:
        row = Row(lane="quality", name=told.pop("name"), corpus=told.pop("corpus", name), peak_mb=usage.peak_mb)
        row.text_mb, row.cpu_seconds = told.pop("text_bytes", 0) / 1e6, told.pop("cpu_seconds", 0.0)
        row.reason, row.calibration, row.extra = told.pop("reason", ""), calibration, told
        rows.append(row)
    return rows


def _quality_peer(context: Context, name: str, folder: Path) -> list[Row]:
    """datatrove's chains and ours on the same few hundred documents."""
    python = peers_python(
        "peers-venv", PEERS / "requirements.txt", f"python{sys.version_info.major}.{sys.version_info.minor}"
    )
    child: list[str | Path] = [sys.executable, "-m", "bench.agreement"]
    chosen, result = folder / "sample", folder / "datatrove.json"
    some: list[str | Path] = ["--documents", "300" if context.full else "100", "--output", chosen]
    run("quality sample", [*child, "sample", "--input", context.folder(name), *some])
    script: list[str | Path] = [python, PEERS / "datatrove_quality.py", "--input", chosen, "--result", result]
    run("quality datatrove", [*script, "--work", folder / "peer"])
    usage, calibration = run("quality compare", [*child, "compare", "--input", chosen, "--peer", result])
    rows = _told(name, usage, calibration)
    rows[0].extra["agreement"] = json.loads(usage.stdout)["agreement"]
    return rows


def _quality_command(context: Context, name: str, folder: Path) -> list[Row]:
    """`taojin quality --report-only` without Ray, and the floor: reading the text column of the same shards."""
    inputs = context.folder(name)
    few = folder / "few"
    few.mkdir()
    table = pq.read_table(corpus.parquet_shards(inputs)[0])
    # From all over the shard, so that Chinese is among them.
    pq.write_table(table.take(np.linspace(0, len(table) - 1, 20).astype(np.int64)), few / "a.parquet")
    text_mb = corpus.text_bytes(inputs)[1] / 1e6
    child: list[str | Path] = [sys.executable, "-m", "bench.floor", "--mode", "read", "--input", inputs]
    usage, calibration = run("quality floor", child)
    floor = make_row("quality", "floor: read the text column", name, text_mb, usage, calibration)
    floor.startup_seconds = usage.cpu_seconds - json.loads(usage.stdout)["cpu_seconds"]
    rows = [floor]
    preset = "taojin-zh" if (corpus.ROOT / "quality" / "presets" / "taojin-zh.yaml").is_file() else "gopher"
    for words in ("symbols", "jieba"):
        flags = ("--preset", preset, "--words", words, "--num-cpus", "0", "--report-only", "--quiet", "--json")
        usages = []
        # Twice: what is new to the compiler's cache is in the first run.
        for shards in (few, few, inputs, inputs):
            work = fresh("quality-work")
            command: list[str | Path] = [TAOJIN, "quality", "--input", shards, "--work", work / "work", *flags]
            usages.append(run(f"taojin quality, {words}, on {shards.name}", command))
        usage, calibration = min(usages[2:], key=lambda pair: pair[0].cpu_seconds)
        row = make_row(
            "quality", f"taojin quality --preset {preset} --words {words}", name, text_mb, usage, calibration
        )
        row.startup_seconds = min(pair[0].cpu_seconds for pair in usages[:2])
        row.extra["counts"] = json.loads(usage.stdout)
        rows.append(row)
    shutil.rmtree(RUNS / "quality-work")
    return rows


LANES: dict[str, Callable[[Context], list[Row]]] = {
    "kernel": kernel_lane,
    "floor": floor_lane,
    "startup": startup_lane,
    "dedup": dedup_lane,
    "decide": decide_lane,
    "peers": peers_lane,
    "quality": quality_lane,
}
