"""A training run as Ray Train workers, or, for a single one, in this process: the same loop, with or without Ray.

Ray Train starts the workers and makes their process group; they find the newest checkpoint by themselves, so what Ray
knows of checkpoints is not used. It starts them once: when any is lost, or has to go elsewhere, it is for this process
to start all again, on as many as there are places for now (`elastic`). What would fail the same way again (an error of
ours: data, configuration, a loss that is no number) is written down by the worker that met it and ends the run;
anything else is tried again until it has failed RETRIES times in a row without a new checkpoint.

SIGTERM to this process makes RUN/stop, at which the workers save and end. Cost: a start of Ray, some 10 s, and of the
workers, some 10 s for the imports of PyTorch, transformers and DeepSpeed.
"""

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from taojin.core import errors
from taojin.core.errors import ConfigError, OutputError, RunError, TaojinError
from taojin.core.storage import Folder, first_line
from taojin.core.tasks import LOOPBACK, require_answer
from taojin.train.checkpoint import newest
from taojin.train.config import TrainConfig, absolute
from taojin.train.console import LOG_SECONDS, Console, every
from taojin.train.elastic import (
    asked_to_end,
    heeding_preemption,
    returning_places,
    starts_again,
    wait_for_places,
    watching_for_more,
)
from taojin.train.model import read_model, weight_files
from taojin.train.parallel import fitting_workers, layout
from taojin.train.run_folder import RUN_JSON
from taojin.train.stop import STOP, ask_to_stop, on_sigterm, requested, withdraw
from taojin.train.waiting import meanwhile

RETRIES = 3
# How often Ray asks its workers whether they live; its default, 2 s, is time that a lost worker costs everyone.
HEALTH_SECONDS = "0.5"
RAY_ENVIRONMENT = {
    # A cluster's own choice is respected; an embedded one listens on loopback only.
    "RAY_AUTH_MODE": "token",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": HEALTH_SECONDS,
    # Places were free when the workers were started: those that do not come are on a node that is gone.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "20",
    # How often it looks for nodes that will be taken away; default 5 s, of 30 that some clouds give.
    "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "2",
}
MESSAGE_CHARACTERS = 300
NO_PLACES = "the cluster did not give the workers a place"
STATUS_SECONDS = 5.0
# In RUN/starts/START.
STATUS = "status.json"
OUTCOME = "outcome.json"
ERROR = "error.json"


def launch(config: TrainConfig, report: Callable[[str], None] | None = None) -> dict[str, Any]:
    """Run, or go on with, the run at config.output; the outcome, as `loop.Outcome` has it.

    report: takes what is to be shown, line by line, in place of stderr.
    Without a cluster one worker is this process. Raises what the loop raises; RunError where workers are lost again and
    again.
    """
    if config.engine != "deepspeed":
        raise ConfigError(f"engine: {config.engine} is launched by the command that `megatron_command` writes")
    config = absolute(config)
    layout(config)
    read_model(config.model)
    weight_files(config.model)
    run = Folder(config.output)
    _require_folder(run)
    withdraw(run)
    with Console(currency=config.currency, budget=config.budget, quiet=config.quiet, say=report) as console:
        if config.workers == 1 and not _address(config):
            return run_here(config, console)
        with connected(config), stopping(run):
            return _on_ray(config, run, console)


def _require_folder(run: Folder) -> None:
    """Raises OutputError where the run's folder, if it is local, cannot be."""
    if not run.is_local:
        return
    place = Path(run.path())
    nearest = next(path for path in (place, *place.parents) if path.exists())
    if not nearest.is_dir():
        raise OutputError(f"output: {run.uri}: expected a folder, found that {nearest} is a file")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise OutputError(f"output: {run.uri}: expected a folder that can be written, found that {nearest} cannot be")


def run_here(config: TrainConfig, console: Console) -> dict[str, Any]:
    """As the only worker, in this process: for tests, debuggers and a single device. Raises what the loop raises, and
    RunError for what a library raises."""
    from taojin.train.engine import start_process
    from taojin.train.loop import train

    try:
        return asdict(train(config, start_process(config.device), report=console.note, on_step=console.step))
    except (TaojinError, AssertionError):
        raise
    except Exception as error:
        # Of torch, transformers or DeepSpeed: memory, a missing package or compiler, a value that they do not take.
        said = " ".join(str(error).split())[:MESSAGE_CHARACTERS]
        raise RunError(f"{type(error).__name__}: {said}; TAOJIN_TRACEBACK=1 shows where") from error


def _on_ray(config: TrainConfig, run: Folder, console: Console) -> dict[str, Any]:
    """Start after start, until the run has ended."""
    resource = "GPU" if on_gpus(config) else "CPU"
    fitting = fitting_workers(config)
    failed, since, timeout = _Failures(_step(run)), time.monotonic(), config.start_timeout
    while True:
        workers = wait_for_places(run, fitting, resource, since=since, timeout=timeout, report=console.note)
        if workers is None:
            return _ended(run)
        if workers < config.workers:
            console.note(f"starting with {workers:,} of {config.workers:,} workers")
        start = uuid.uuid4().hex[:8]
        notes = run.child("starts").child(start)
        more = watching_for_more(run, fitting, workers, resource, begun=lambda: notes.exists(STATUS))  # noqa: B023
        with _watching(notes, console), more:
            problem = _fit(config, run, start, workers)
        asked, outcome = asked_to_end(run), _outcome(notes)
        if outcome and not starts_again(outcome["reason"]):
            return outcome
        step = _step(run)
        if asked:
            if not outcome:
                console.note(f"{problem}: nothing was saved after step {step:,}")
            return {**outcome, "reason": asked} if outcome else _ended(run)
        if problem == NO_PLACES and time.monotonic() - since < timeout:
            # The cluster did not know yet that a node is gone.
            continue
        if not outcome:
            failed.again(step, problem)
        console.note(f"{outcome['reason'] if outcome else problem}; starting again from step {step:,}")
        since = time.monotonic()


class _Failures:
    """Starts that failed in a row without a new checkpoint."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._count = 0

    def again(self, step: int, problem: str) -> None:
        """Raises RunError when that was too often."""
        self._count = self._count + 1 if step == self._step else 1
        self._step = step
        if self._count >= RETRIES:
            raise RunError(f"the workers failed {self._count} times since step {step:,}; the last time: {problem}")


def _outcome(notes: Folder) -> dict[str, Any] | None:
    """Of a start whose workers came to an end by themselves; None where they did not. Raises the error of ours that one
    of them met."""
    if notes.exists(OUTCOME):
        return dict(notes.read_json(OUTCOME))
    if notes.exists(ERROR):
        error = notes.read_json(ERROR)
        raise getattr(errors, error["kind"], RunError)(error["message"])
    return None


def _ended(run: Folder) -> dict[str, Any]:
    """The outcome of a run that was asked to end while it had no workers."""
    from taojin.train.loop import Outcome

    total = run.read_json(RUN_JSON)["steps"] if run.exists(RUN_JSON) else 0
    reason = requested(run) or STOP
    steps = _step(run)
    return asdict(
        Outcome(steps=steps, total_steps=total, first_step=steps, loss=None, saves=0, failed_saves=0, reason=reason)
    )


@contextlib.contextmanager
def connected(config: TrainConfig) -> Iterator[Any]:
    """Ray, for as long as this lasts: the one that this process has already, or the config's cluster, or an embedded
    one on this machine. Raises ConfigError where it does not start."""
    for name, value in RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray

    if ray.is_initialized():
        yield ray
        return
    try:
        _connect(ray, config)
        yield ray
    finally:
        ray.shutdown()


def _address(config: TrainConfig) -> str | None:
    return config.address or os.environ.get("RAY_ADDRESS")


def _connect(ray: Any, config: TrainConfig) -> None:
    import logging

    address = _address(config)
    common: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address:
            require_answer(address)
            ray.init(address=address, **common)
        else:
            cpus = max(os.cpu_count() or 1, config.workers) if config.device != "cuda" else None
            os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
            ray.init(address="local", num_cpus=cpus, include_dashboard=False, _node_ip_address=LOOPBACK, **common)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(f"address: {address or 'an embedded Ray'}: {first_line(error)}") from None
    needed, gpus = config.min_workers or config.workers, int(ray.cluster_resources().get("GPU", 0))
    if not address and on_gpus(config) and gpus < needed:
        # A cluster may grow; a machine does not.
        raise ConfigError(
            f"workers: {needed:,} need a GPU each, this machine has {gpus:,}; lower workers, or name the address of a "
            "cluster"
        )


def _fit(config: TrainConfig, run: Folder, start: str, workers: int) -> str:
    """Let Ray Train run so many workers to their end, once; returns what went wrong, "" if nothing did."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.train.v2.api.config import FailureConfig
    from ray.train.v2.api.exceptions import TrainingFailedError

    cuda = on_gpus(config)
    trainer = TorchTrainer(
        worker,
        train_loop_config={"config": config.model_dump(mode="json", exclude_unset=True), "start": start},
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=cuda),
        torch_config=TorchConfig(backend="nccl" if cuda else "gloo"),
        run_config=RunConfig(
            name=start,
            storage_path=run.child("starts").uri if not run.is_local else run.path("starts"),
            # Ray would start the same number again, also where a node is gone: the number is ours to choose.
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0, max_preemption_failures=0),
        ),
    )
    try:
        fit(trainer)
    except TrainingFailedError as error:
        return _what_failed(error)
    return ""


def fit(trainer: Any) -> None:
    """Run a trainer of Ray Train's, with Ctrl-C as everywhere else. Its own handler ends the process without a word,
    and stays after the workers are gone. Raises what the trainer raises, and KeyboardInterrupt."""
    trainer._register_sigint_handler = lambda controller: None
    with returning_places():
        trainer.fit()


def _what_failed(error: Any) -> str:
    """Of the workers' errors that of one that died, where any did: the others only lost their neighbour."""
    from ray.exceptions import RayActorError
    from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError

    if isinstance(getattr(error, "controller_failure", None), WorkerGroupStartupTimeoutError):
        return NO_PLACES
    failures: dict[int, Any] = getattr(error, "worker_failures", {})
    for rank, failure in failures.items():
        if isinstance(getattr(failure, "failure", failure), RayActorError):
            return f"worker {rank} died"
    for rank, failure in failures.items():
        return f"worker {rank}: {first_line(failure)[:MESSAGE_CHARACTERS]}"
    return first_line(error)


def worker(values: dict[str, Any]) -> None:
    """What every Ray Train worker runs. Leaves the outcome, or an error of ours, in RUN/starts/START."""
    from taojin.train.engine import start_process
    from taojin.train.loop import train

    config = TrainConfig(**values["config"])
    run = Folder(config.output)
    notes = run.child("starts").child(values["start"])
    try:
        process = start_process(config.device)
        said: list[str] = []
        told: dict[str, Any] = {"step": 0, "said": said}

        def tell(status: dict[str, Any]) -> None:
            told.update(status)
            _tell(notes, told)

        show = every(STATUS_SECONDS, tell) if process.rank == 0 else _hush
        with heeding_preemption(run) if process.rank == 0 else contextlib.nullcontext():
            try:
                outcome = train(config, process, report=said.append, on_step=show)
            finally:
                if process.rank == 0:
                    tell({})
    except TaojinError as error:
        notes.write_json(ERROR, {"kind": type(error).__name__, "message": str(error)})
        raise
    if process.rank == 0:
        notes.write_json(OUTCOME, asdict(outcome))


def _hush(step: int, steps: int, numbers: dict[str, float]) -> None:
    pass


def _tell(notes: Folder, status: dict[str, Any]) -> None:
    # For a person's eyes: storage that does not take it must not end the run.
    with contextlib.suppress(OSError):
        notes.write_json(STATUS, status)


@contextlib.contextmanager
def _watching(notes: Folder, console: Console) -> Iterator[None]:
    """Meanwhile, tell what rank 0 writes. Ray's own way, forwarding output, repeats every line of every worker."""
    over = threading.Event()

    def watch() -> None:
        heard, ended = 0, False
        while not ended:
            # Once more after the end, for what was said last.
            ended = over.wait(STATUS_SECONDS if console.live else LOG_SECONDS)
            with contextlib.suppress(OSError):
                status = notes.read_json(STATUS)
                for note in status["said"][heard:]:
                    console.note(note)
                heard = len(status["said"])
                if status["step"] and not ended:
                    console.step(status["step"], status["steps"], status)

    with meanwhile(watch, over):
        yield


def _step(run: Folder) -> int:
    found = newest(run.child("checkpoints"))
    return found.step if found else 0


def on_gpus(config: TrainConfig) -> bool:
    """Whether each worker gets a GPU: where the config says so, or says nothing and the cluster has any."""
    import ray

    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return config.device == "cuda" or (config.device == "auto" and resources.get("GPU", 0) > 0)


def stopping(run: Folder) -> contextlib.AbstractContextManager[None]:
    """SIGTERM to this process becomes the file at which the workers save and end."""
    return on_sigterm(lambda: ask_to_stop(run, "SIGTERM"))
