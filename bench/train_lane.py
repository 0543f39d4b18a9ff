"""The lane `train` of the benchmark: the loop under Ray beside the loop under torchrun, and what stopping costs.

Every figure is a ratio or a difference within this run: tokens a second with and without Ray in turns, waiting for
data, the time from a killed worker to the next step less a start under torchrun, other numbers of workers, and how long
a save keeps training waiting. Runs are read from their own metrics, whose rows tell when they were written.
"""

import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from bench import corpus
from bench.lanes import ENVIRONMENT, TAOJIN, Context, Row, fresh, run
from bench.training import make_inputs, write_config
from taojin.core.storage import Folder
from taojin.train.tracking import read_metrics

LANE = "train"
TORCHRUN = Path(sys.executable).with_name("torchrun")
WORKERS = 2
STEPS = 48
WARM_STEPS = 8
ROUNDS = 3
KILLED_AT = 5
RESIZED_STEPS = 12
RESIZED = (4, 2, 4)
SAVES = 4
TIMEOUT_SECONDS = 300


def train_lane(context: Context) -> list[Row]:
    """Ray beside torchrun, recovery, other numbers of workers, saving."""
    work = fresh(LANE)
    make_inputs(work)
    rows: list[Row] = []
    parts: dict[str, Callable[[Path], list[Row]]] = {
        "under Ray and under torchrun": ray_and_torchrun,
        "a killed worker": recovery,
        "other numbers of workers": resized,
        "saving": saving,
    }
    for name, part in parts.items():
        try:
            rows += part(work)
        except RuntimeError as error:
            rows.append(Row(lane=LANE, name=name, reason=str(error)))
    shutil.rmtree(work)
    return rows


def torchrun(config: Path, workers: int) -> list[str | Path]:
    return [TORCHRUN, "--standalone", f"--nproc-per-node={workers}", "-m", "bench.training", config]


def taojin(config: Path) -> list[str | Path]:
    return [TAOJIN, "train", "--config", config]


def metrics(folder: Path) -> dict[int, dict[str, float]]:
    return read_metrics(Folder(str(folder)))


# ---- speed -----------------------------------------------------------------------------------------------------------


def ray_and_torchrun(work: Path) -> list[Row]:
    """In turns, so that a slow minute of the machine spoils both alike; the medians count."""
    common: dict[str, Any] = {"steps": STEPS, "workers": WORKERS, "model": "small"}
    speeds: dict[str, list[float]] = {"ray": [], "torchrun": []}
    waits: list[float] = []
    rows = []
    for turn in range(ROUNDS):
        for kind in speeds:
            config = write_config(work, f"{kind}-{turn}", **common)
            command = taojin(config) if kind == "ray" else torchrun(config, WORKERS)
            usage, calibration = run(f"{WORKERS} workers under {kind}", command)
            steps = metrics(work / f"{kind}-{turn}")
            # From row to row: what is done between two steps counts as well; the median, as neighbours come and go.
            times = [steps[step]["time"] for step in range(WARM_STEPS, STEPS + 1)]
            seconds = statistics.median(after - before for before, after in pairwise(times))
            speeds[kind].append(steps[1]["tokens"] / seconds)
            later = [steps[step] for step in range(WARM_STEPS + 1, STEPS + 1)]
            waits.append(sum(s["data_wait_seconds"] for s in later) / sum(s["step_seconds"] for s in later))
            rows.append(
                Row(
                    lane=LANE, name=f"{WORKERS} workers under {kind}, {STEPS} steps", cpu_seconds=usage.cpu_seconds,
                    wall_seconds=usage.wall_seconds, peak_mb=usage.peak_mb, peak_process=usage.peak_process,
                    calibration=calibration, extra={"tokens_per_second": speeds[kind][-1], "turn": turn},
                )
            )  # fmt: skip
    medians = {kind: statistics.median(values) for kind, values in speeds.items()}
    ratio = medians["ray"] / medians["torchrun"]
    rows[-1].extra |= {
        "ray_of_torchrun": ratio,
        "data_wait_share": max(waits),
        "note": f"{medians['ray']:,.0f} tokens/s under Ray, {medians['torchrun']:,.0f} under torchrun (medians of "
        f"{ROUNDS}): {ratio:.3f}; waiting for data {100 * max(waits):.2f} % of a step in the worst run.",
    }
    return rows


# ---- a killed worker -------------------------------------------------------------------------------------------------


def recovery(work: Path) -> list[Row]:
    """SIGKILL to a worker: seconds to the next step, less those of a whole start under torchrun to its first step."""
    common: dict[str, Any] = {
        "steps": 3 * KILLED_AT,
        "save_every": 2,
        "asynchronous_save": False,
        "workers": WORKERS,
        "model": "tiny",
    }
    plain = work / "unkilled"
    began = time.time()
    run("start under torchrun", torchrun(write_config(work, "unkilled", **common), WORKERS))
    steps = metrics(plain)
    start_up = steps[1]["time"] - began
    run("the run unkilled", taojin(write_config(work, "whole", **common)))
    with _running(write_config(work, "killed", **common)) as driver:
        _wait(lambda: KILLED_AT in metrics(work / "killed"), driver)
        victim = _workers(driver)[-1]
        victim.kill()
        killed = time.time()
        before = max(metrics(work / "killed"))
        _, told = driver.communicate(timeout=TIMEOUT_SECONDS)
        if driver.returncode:
            raise RuntimeError(f"the run did not survive its worker: {told[-500:]}")
    after = metrics(work / "killed")
    first = min(row["time"] for row in after.values() if row["time"] > killed and row["step"] > 0)
    beyond = first - killed - start_up
    equal = after[3 * KILLED_AT]["loss"] == metrics(work / "whole")[3 * KILLED_AT]["loss"]
    note = (
        f"{WORKERS} workers, one killed at step {before}: {first - killed:.1f} s to the next step, {start_up:.1f} s of "
        f"which a start to the first step takes under torchrun: {beyond:.1f} s beyond; the last loss is "
        f"{'bit-equal' if equal else 'NOT equal'} to the run that nobody killed."
    )
    extra = {"recovery_seconds": beyond, "bit_equal": float(equal), "note": note}
    return [Row(lane=LANE, name="recovery", wall_seconds=first - killed, startup_seconds=start_up, extra=extra)]


@contextmanager
def _running(config: Path) -> Iterator["subprocess.Popen[str]"]:
    running = subprocess.Popen(
        taojin(config), cwd=corpus.ROOT, env={**os.environ, **ENVIRONMENT}, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        yield running
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)


def _workers(driver: "subprocess.Popen[str]") -> list[psutil.Process]:
    found = [child for child in psutil.Process(driver.pid).children(recursive=True) if "RayTrainWorker" in _name(child)]
    if not found:
        raise RuntimeError("no worker of Ray Train is running")
    return sorted(found, key=lambda child: child.pid)


def _name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _wait(ready: Callable[[], bool], driver: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not ready():
        if driver.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the run ended before its worker could be killed")
        time.sleep(0.05)


# ---- other numbers of workers ----------------------------------------------------------------------------------------


def resized(work: Path) -> list[Row]:
    """The same run on other numbers of workers in turn: how far its losses are from the uninterrupted one's."""
    part = RESIZED_STEPS // len(RESIZED)
    common: dict[str, Any] = {
        "steps": RESIZED_STEPS,
        "save_every": part,
        "keep_last": 10,
        "model": "tiny",
        "sequence_length": 128,
    }
    run("uninterrupted", torchrun(write_config(work, "uninterrupted", **common), RESIZED[0]))
    expected = metrics(work / "uninterrupted")
    worst = 0.0
    output = work / "resized"
    for number, workers in enumerate(RESIZED):
        config = write_config(work, "resized", **common)
        run(f"{workers} workers", torchrun(config, workers))
        found = metrics(output)
        last = RESIZED_STEPS if number == len(RESIZED) - 1 else (number + 1) * part
        for step in range(number * part + 1, last + 1):
            worst = max(worst, abs(found[step]["loss"] - expected[step]["loss"]))
        for later in range(last + part, RESIZED_STEPS + 1, part):
            shutil.rmtree(output / f"checkpoints/step-{later:08d}")
    words = " → ".join(map(str, RESIZED))
    note = f"{words} workers: every loss within {worst:.1e} of {RESIZED[0]} workers without interruption."
    return [Row(lane=LANE, name=f"{words} workers", extra={"resized_difference": worst, "note": note})]


# ---- saving ----------------------------------------------------------------------------------------------------------


def saving(work: Path) -> list[Row]:
    """How long a save keeps training waiting: asynchronous beside synchronous, the median of each without the first."""
    blocked = {}
    for name, asynchronous in (("synchronous", False), ("asynchronous", True)):
        config = write_config(
            work, name, "large", steps=4 * SAVES, save_every=4, sequence_length=16, global_batch=1, micro_batch=1,
            keep_last=1, asynchronous_save=asynchronous,
        )  # fmt: skip
        run(f"{name} saves", torchrun(config, 1))
        found = [row["save_blocked_seconds"] for row in metrics(work / name).values() if "save_blocked_seconds" in row]
        blocked[name] = statistics.median(found[1:])
        shutil.rmtree(work / name)
    ratio = blocked["asynchronous"] / blocked["synchronous"]
    note = (
        f"a save of 1.6 GB keeps training waiting {blocked['asynchronous']:.2f} s, {blocked['synchronous']:.2f} s "
        f"where it is waited for: {100 * ratio:.1f} %."
    )
    return [Row(lane=LANE, name="saving", extra={"blocked_share": ratio, "note": note})]
