"""Megatron-LM's pretrain_gpt.py as Ray Train workers: started together, watched, ended together, started again.

In: a config and a checkout of Megatron-LM, at the same path on every node. Out: what Megatron-LM writes to the run's
folder, which all nodes share, and

    RUN/logs/rank-0.log …          what each process printed, of all starts
    RUN/starts/START/failed-0.json … what ended it
    RUN/stop                       whoever makes this file asks for a last checkpoint and the end; so does SIGTERM

Each worker is a process of Ray's that runs one of Megatron-LM's and makes no process group of its own: rank 0 names the
place where they meet, the rest is torchrun's variables. When one ends badly, Ray ends the others, and the kernel ends
what they had started. All are started again, which `--load` makes a resume, until they failed RETRIES times in a row
without a new checkpoint; what fails the same way every time (arguments, a folder that is not there) is not tried twice.

Cost: as in `launch`, and a look at RUN/stop a second and worker. Leaves to others: the arguments and their checks
(`megatron_command`).
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from taojin.core import errors
from taojin.core.errors import ConfigError, InputError, RunError, TaojinError
from taojin.core.storage import Folder
from taojin.train.config import TrainConfig, absolute
from taojin.train.console import LOG_SECONDS, line
from taojin.train.elastic import wait_for_places
from taojin.train.launch import RETRIES, connected, fit, on_gpus, stopping
from taojin.train.megatron_command import SCRIPT, megatron_launch, with_defaults
from taojin.train.model import read_model
from taojin.train.stop import STOP, requested, withdraw

POLL_SECONDS = 1.0
LAST_LINE_BYTES = 8192
LAST_LINE_CHARACTERS = 300
# Of argparse, and of a Python that finds no script: the next start would end the same way.
USAGE_STATUS = 2
# Written by Megatron-LM below --save when a checkpoint stands.
LATEST = "latest_checkpointed_iteration.txt"
# Runs a script that does not outlive the process which started it: SIGKILL, as Ray ends workers, asks nobody.
# prctl(PR_SET_PDEATHSIG = 1) survives exec; a parent that is gone already is seen by the second look.
_TIED = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
    "if os.getppid() != int(sys.argv[1]): sys.exit(1)\n"
    "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
)
_ITERATION = re.compile(r"iteration +(\d+)/ *(\d+) \|")
_ELAPSED = re.compile(r"elapsed time per iteration \(ms\): ([0-9.]+) \|")
_LOSS = re.compile(r"lm loss: (\S+) \|")
_VALIDATION = re.compile(r"(validation loss at .*?) *\| *lm loss value: (\S+) \|")


class Ended(NamedTuple):
    """How a process ended. status: as `subprocess` has it; last_line: of what it printed, "" for nothing; told: whether
    it had been asked to end."""

    status: int
    last_line: str
    told: bool


def checkout(folder: str) -> str:
    """The absolute path of a checkout of Megatron-LM. Raises ConfigError where it holds no pretrain_gpt.py."""
    path = os.path.abspath(folder)
    if not os.path.isfile(f"{path}/{SCRIPT}"):
        found = f"no {SCRIPT} in it" if os.path.isdir(path) else "no such folder"
        raise ConfigError(f"--megatron {folder}: expected a checkout of Megatron-LM with {SCRIPT}, found {found}")
    return path


def run_megatron(config: TrainConfig, folder: str, report: Callable[[str], None] = print) -> dict[str, Any]:
    """Run, or go on with, the run at config.output; its steps, total_steps, first_step, loss and reason to end.

    Raises ConfigError and InputError before anything starts; RunError where the processes fail again and again.
    """
    config = absolute(with_defaults(config))
    made = megatron_launch(config, read_model(config.model))
    folder = checkout(folder)
    _require_pairs(config)
    run = Folder(config.output)
    withdraw(run)
    values = {
        "run": config.output,
        "folder": folder,
        "arguments": [f"{folder}/{SCRIPT}", *made.arguments],
        "environment": dict(made.environment),
    }
    first = _saved(run)
    with connected(config), stopping(run):
        seen = _rounds(config, run, values, report)
    steps, total = _saved(run), config.total_steps()
    reason = "finished"
    if steps < total:
        reason = requested(run) or f"{SCRIPT} ended by itself"
    return {"steps": steps, "total_steps": total, "first_step": first, "loss": seen.get("loss"), "reason": reason}


def _rounds(
    config: TrainConfig, run: Folder, values: dict[str, Any], report: Callable[[str], None]
) -> dict[str, float]:
    """Start all until they end well; the numbers of the last line of a step that was seen."""
    failures, last = 0, _saved(run)
    while _places(config, run, report):
        start = uuid.uuid4().hex[:8]
        with _watching(config, run, report) as seen:
            problem = _fit(config, {**values, "start": start})
        if not problem:
            return seen
        if failure := first_failure(run.child("starts").child(start)):
            if failure["kind"]:
                raise getattr(errors, failure["kind"], RunError)(failure["message"])
            problem = failure["message"]
        if requested(run) is not None:
            raise RunError(f"{problem}; it was asked to stop, and is not started again")
        step = _saved(run)
        failures, last = (failures + 1, last) if step == last else (1, step)
        if failures >= RETRIES:
            raise RunError(f"the workers failed {failures} times since step {step:,}; the last time: {problem}")
        report(f"{problem}; starting again from step {step:,}")
    return {}


def _places(config: TrainConfig, run: Folder, report: Callable[[str], None]) -> bool:
    """Whether there are, after some waiting, places for all; False where the run is asked to stop meanwhile."""
    resource = "GPU" if on_gpus(config) else "CPU"
    found = wait_for_places(
        run, [config.workers], resource, since=time.monotonic(), timeout=config.start_timeout, report=report
    )
    return found is not None


def _fit(config: TrainConfig, values: dict[str, Any]) -> str:
    """Let Ray Train run the workers to their end, once; returns what went wrong, "" if nothing did."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.backend import Backend, BackendConfig
    from ray.train.v2.api.config import FailureConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
    from ray.train.v2.api.exceptions import TrainingFailedError

    class Neighbours(Backend):
        # As under torchrun: LOCAL_RANK chooses among the node's devices, and NCCL reaches the others directly.
        share_cuda_visible_devices = True

    class NoGroup(BackendConfig):
        @property
        def backend_cls(self) -> type[Backend]:
            return Neighbours

    trainer = DataParallelTrainer(
        worker,
        train_loop_config=values,
        backend_config=NoGroup(),
        scaling_config=ScalingConfig(num_workers=config.workers, use_gpu=on_gpus(config)),
        run_config=RunConfig(
            name=values["start"],
            storage_path=f"{values['run']}/starts",
            # Starting again is for `_rounds`, which looks for places first and for checkpoints.
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0, max_preemption_failures=0),
        ),
    )
    try:
        fit(trainer)
    except TrainingFailedError as error:
        # Ray's own lines come first and its advice last.
        last = next((text.strip() for text in reversed(str(error).splitlines()) if text.strip()), type(error).__name__)
        return last.partition(" Some common causes")[0]
    return ""


def worker(values: dict[str, Any]) -> None:
    """What every Ray Train worker runs. Leaves in RUN/starts/START what ended it, where that was not the end."""
    import ray
    from ray.train import get_context
    from ray.train.collective import broadcast_from_rank_zero

    context = get_context()
    rank = context.get_world_rank()
    host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    place = broadcast_from_rank_zero(meeting_place(host) if rank == 0 else None)
    environment = {
        **values["environment"],
        "RANK": str(rank),
        "WORLD_SIZE": str(context.get_world_size()),
        "LOCAL_RANK": str(context.get_local_rank()),
        "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
        "MASTER_ADDR": place[0],
        "MASTER_PORT": place[1],
    }
    run_rank(values, rank, environment)


def meeting_place(host: str) -> tuple[str, str]:
    """(address, port) for rank 0 to listen at. The port is free now; that another takes it meanwhile is a failed start,
    which is tried again."""
    with socket.socket() as listener:
        listener.bind((host, 0))
        return host, str(listener.getsockname()[1])


def run_rank(values: Mapping[str, Any], rank: int, environment: Mapping[str, str]) -> None:
    """Megatron-LM's process of a rank, to its end. Raises RunError and ConfigError, noted in RUN/starts/START first."""
    run = Folder(values["run"])
    log = f"{values['run']}/logs/rank-{rank}.log"
    kind = ""
    try:
        folder = checkout(values["folder"])
        ended = supervise(values["arguments"], environment, folder, Path(log), lambda: run.exists(STOP))
        if ended.status == 0 or (ended.told and ended.status == -signal.SIGTERM):
            # By SIGTERM: it had been asked before it was listening, so that there was nothing to save yet.
            return
        kind = "RunError" if ended.status == USAGE_STATUS else ""
        problem: TaojinError = RunError(f"rank {rank} {describe(ended)} ({log})")
    except ConfigError as error:
        kind, problem = "ConfigError", error
    note = {"rank": rank, "ended": time.time(), "kind": kind, "message": str(problem)}
    run.child("starts").child(values["start"]).write_json(f"failed-{rank}.json", note)
    raise problem


def supervise(
    arguments: Sequence[str], environment: Mapping[str, str], folder: str, log: Path, asked: Callable[[], bool]
) -> Ended:
    """Run a Python script in `folder`, which is on its path too, to its end; its output is appended to `log`.

    Once `asked` says so, it is sent SIGTERM and given the time it takes.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    inherited = os.environ.get("PYTHONPATH")
    tied = ["-c", _TIED, str(os.getpid())] if sys.platform == "linux" else []
    told = False
    with log.open("ab") as output:
        begin = output.tell()
        process = subprocess.Popen(
            [sys.executable, *tied, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={
                **os.environ,
                **environment,
                "PYTHONPATH": f"{folder}{os.pathsep}{inherited}" if inherited else folder,
                "PYTHONUNBUFFERED": "1",
            },
            # Ctrl-C at the driver is Ray's to handle; the group is what is ended where this process is interrupted.
            start_new_session=True,
        )
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = process.wait(POLL_SECONDS)
                    break
                if not told and asked():
                    process.terminate()
                    told = True
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    return Ended(status, last_line(log, begin), told)


def last_line(log: Path, begin: int = 0) -> str:
    """The last line that is not blank from byte `begin` on, cut to what fits into a message."""
    with log.open("rb") as file:
        file.seek(max(begin, file.seek(0, os.SEEK_END) - LAST_LINE_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return next((text.strip() for text in reversed(lines) if text.strip()), "")[:LAST_LINE_CHARACTERS]


def describe(ended: Ended) -> str:
    """`ended with exit status 1: RuntimeError: …`, or `was ended by SIGKILL after printing nothing`."""
    if ended.status < 0:
        how = f"was ended by {signal.Signals(-ended.status).name}"
    else:
        how = f"ended with exit status {ended.status}"
    return f"{how}: {ended.last_line}" if ended.last_line else f"{how} after printing nothing"


def first_failure(notes: Folder) -> dict[str, Any] | None:
    """Of the ranks that failed, the one that did so first: the others lost their partner. None: no rank says so."""
    found = [notes.read_json(name) for name in notes.names() if name.startswith("failed-")]
    return min(found, key=lambda note: note["ended"], default=None)


def numbers_of(text: str, tokens_per_step: int) -> dict[str, float] | None:
    """step, steps, loss, tokens_per_second, step_seconds of a line that Megatron-LM logs of a step; None of another.

    The format is that of `training_log` in its megatron/training/training.py: iteration, milliseconds, then losses.
    """
    step, elapsed, loss = _ITERATION.search(text), _ELAPSED.search(text), _LOSS.search(text)
    if not (step and elapsed and loss):
        return None
    seconds = float(elapsed[1]) / 1000
    return {
        "step": int(step[1]),
        "steps": int(step[2]),
        "loss": float(loss[1]),
        "step_seconds": seconds,
        "tokens_per_second": tokens_per_step / seconds if seconds else 0.0,
    }


def validation_of(text: str) -> str | None:
    """`validation loss at iteration 100: 3.2100` of the line that says so; None of another."""
    found = _VALIDATION.search(text)
    return f"{found[1]}: {float(found[2]):.4f}" if found else None


@contextlib.contextmanager
def _watching(config: TrainConfig, run: Folder, report: Callable[[str], None]) -> Iterator[dict[str, float]]:
    """Meanwhile, tell what the last rank logs, which is the one that has the loss. Yields the newest numbers."""
    path = Path(run.path(f"logs/rank-{config.workers - 1}.log"))
    at = path.stat().st_size if path.exists() else 0
    seen: dict[str, float] = {}
    over = threading.Event()

    def look() -> None:
        nonlocal at
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(at)
            whole, newline, _ = file.read().rpartition(b"\n")
        at += len(whole) + len(newline)
        fresh = None
        for text in whole.decode(errors="replace").splitlines():
            fresh = numbers_of(text, config.tokens_per_step) or fresh
            if (said := validation_of(text)) and not config.quiet:
                report(said)
        if fresh:
            seen.update(fresh)
            if not config.quiet:
                report(line(fresh))

    def watch() -> None:
        while not over.wait(LOG_SECONDS):
            # For a person's eyes: storage that is away for a moment must not end the run.
            with contextlib.suppress(OSError):
                look()

    thread = threading.Thread(target=watch, name="watch", daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
        with contextlib.suppress(OSError):
            look()


def _require_pairs(config: TrainConfig) -> None:
    """Megatron-LM opens them after minutes on all devices. Raises InputError."""
    for prefix, _ in [pair for pairs in config.pairs() for pair in pairs]:
        for suffix in (".idx", ".bin"):
            if "://" not in prefix and not os.path.isfile(prefix + suffix):
                raise InputError(f"{prefix}{suffix}: No such file; expected a pair of `taojin tokenize`")


def _saved(run: Folder) -> int:
    """The step of Megatron-LM's newest checkpoint, 0 without one."""
    try:
        text = run.read_bytes(LATEST).decode(errors="replace").strip()
    except FileNotFoundError:
        return 0
    return int(text) if text.isdigit() else 0
