"""The numbers of a run, where people and tools look for them. Rank 0 alone writes.

    RUN/metrics/00001-from-00000000.jsonl    a line per logged step under flat names; a file per start of the run
    RUN/tensorboard/                         event files, under names in groups (NAMES)
    RUN/wandb/                               Weights & Biases under the same, offline unless told otherwise

TensorBoard and offline files need a local RUN; `metrics/` is everywhere. What a killed run wrote beyond its last
checkpoint is written again by the next start: of two lines of a step the one of the later file counts (`read_metrics`).
Weights & Biases has a folder of files for every start, all under the id in RUN/wandb/id, so that
`wandb sync RUN/wandb/offline-run-*` makes one run of them.

A row costs about 1 ms with everything, most of it TensorBoard and Weights & Biases, whose service is a process of its
own that ends with this one. Storage that fails is told once and never ends a run.
"""

import contextlib
import importlib.util
import json
import math
import os
import re
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from taojin.core.errors import ConfigError
from taojin.core.storage import Folder, first_line
from taojin.train.sections import Tracking

METRICS = "metrics"
WANDB_ID = "wandb/id"
# Some hundred rows.
TAIL_BYTES = 1 << 16
# Objects cannot be appended to. A killed run loses what it spent since; a request takes some 50 ms.
UPLOAD_SECONDS = 60.0
UPLOAD_LINES = 10_000
PASSES = "passes."
GROWING = ("money", "device_hours")
# Where a number stands in TensorBoard and Weights & Biases: a section for each question that people ask.
NAMES = {
    "loss": "train/loss",
    "perplexity": "train/perplexity",
    "learning_rate": "train/learning_rate",
    "gradient_norm": "train/gradient_norm",
    "validation_loss": "validation/loss",
    "validation_perplexity": "validation/perplexity",
    "choice_accuracy": "validation/choice_accuracy",
    "choice_standard_error": "validation/choice_standard_error",
    "choice_loss": "validation/choice_loss",
    "tokens": "data/tokens",
    "epoch": "data/epoch",
    "tokens_per_second": "speed/tokens_per_second",
    "step_seconds": "speed/step_seconds",
    "mfu": "speed/mfu",
    "data_wait_seconds": "speed/data_wait_seconds",
    "data_wait_share": "speed/data_wait_share",
    "eta_seconds": "speed/eta_seconds",
    "cpu_utilization": "machine/cpu_utilization",
    "memory_bytes": "machine/memory_bytes",
    "gpu_utilization": "machine/gpu_utilization",
    "gpu_memory_utilization": "machine/gpu_memory_utilization",
    "gpu_power_watts": "machine/gpu_power_watts",
    "device_hours": "money/device_hours",
    "money": "money/spent",
    "money_left": "money/left",
    "save_seconds": "saves/seconds",
    "save_blocked_seconds": "saves/blocked_seconds",
    "failed_saves": "saves/failed",
}


def shown_name(name: str) -> str:
    """Of a flat name, the one in a group; numbers that are not known here are of the training."""
    if name.startswith(PASSES):
        return f"data/passes/{name.removeprefix(PASSES)}"
    return NAMES.get(name, f"train/{name}")


def require_packages(tracking: Tracking) -> None:
    """Raises ConfigError where an upload is asked for that cannot be."""
    if tracking.wandb == "online" and importlib.util.find_spec("wandb") is None:
        raise ConfigError("tracking.wandb: online needs the package wandb, which is not installed; pip install wandb")


class Sink(Protocol):
    """What takes rows. Any exception of `write` and `flush` costs that row there, no more."""

    def write(self, step: int, numbers: Mapping[str, float]) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class Tracker:
    """All sinks of a run. folder: RUN. first: the steps done before this start. report: notes for people.

    Raises ConfigError where Weights & Biases is to be online and refuses.
    """

    def __init__(
        self,
        folder: Folder,
        tracking: Tracking,
        first: int,
        settings: dict[str, Any],
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._report = report
        self._failed: set[str] = set()
        number = 1 + max((_number(name) for name in folder.names(METRICS)), default=0)
        lines = _LocalLines if folder.is_local else _ObjectLines
        self._sinks: dict[str, Sink] = {"metrics": lines(folder, number, first)}
        wanted = {"tensorboard": tracking.tensorboard, "wandb": tracking.wandb != "off"}
        apart = [name for name, want in wanted.items() if want and not folder.is_local]
        if tracking.wandb == "online":
            apart = [name for name in apart if name != "wandb"]
        if apart:
            report(f"{' and '.join(apart)} files need a local output and are left out; {folder.uri}/{METRICS} has all")
        if wanted["tensorboard"] and "tensorboard" not in apart:
            self._open("tensorboard", lambda: _TensorBoard(folder, first))
        if wanted["wandb"] and "wandb" not in apart:
            self._open("wandb", lambda: _Wandb(folder, tracking, settings))

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, sink in self._sinks.items():
            self._guarded(name, lambda: sink.write(step, numbers))  # noqa: B023

    def flush(self) -> None:
        for name, sink in self._sinks.items():
            self._guarded(name, sink.flush)

    def close(self) -> None:
        for name, sink in self._sinks.items():
            self._guarded(name, sink.close)

    def _open(self, name: str, make: Callable[[], Sink]) -> None:
        try:
            self._sinks[name] = make()
        except ImportError:
            self._report(f"the package {name} is not installed: its files are left out")
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001  other people's libraries raise what they like; a run goes on
            self._report(f"{name}: {first_line(error)}; its numbers are left out")

    def _guarded(self, name: str, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001  as above
            if name not in self._failed:
                self._failed.add(name)
                self._report(f"{name}: numbers were not written, training goes on: {first_line(error)}")


class _LocalLines:
    """Appends as it goes: a killed run has all its lines. What a full disk did not take is tried again."""

    def __init__(self, folder: Folder, number: int, first: int) -> None:
        self._path = Path(folder.path(f"{METRICS}/{_file(number, first)}"))
        self._file: Any = None
        self._waiting = b""

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        self._waiting += _line(step, numbers)
        self.flush()

    def flush(self) -> None:
        if self._waiting and self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab", buffering=0)
        while self._waiting:
            self._waiting = self._waiting[self._file.write(self._waiting) :]

    def close(self) -> None:
        self.flush()
        if self._file is not None:
            self._file.close()


class _ObjectLines:
    """Objects are written whole: once a minute, at checkpoints and at the end, in parts of some megabytes."""

    def __init__(self, folder: Folder, number: int, first: int) -> None:
        self._folder = folder
        self._number = number
        self._first = first
        self._lines: list[bytes] = []
        self._written = 0
        self._uploaded = time.monotonic()

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        self._lines.append(_line(step, numbers))
        if time.monotonic() - self._uploaded > UPLOAD_SECONDS:
            self.flush()
        if len(self._lines) >= UPLOAD_LINES:
            self.flush()
            self._first, self._lines, self._written = step, [], 0

    def flush(self) -> None:
        # Also when it fails: a request a minute, not one a step.
        self._uploaded = time.monotonic()
        if len(self._lines) > self._written:
            with self._folder.create(f"{METRICS}/{_file(self._number, self._first)}") as sink:
                sink.write(b"".join(self._lines))
            self._written = len(self._lines)

    def close(self) -> None:
        self.flush()


class _TensorBoard:
    def __init__(self, folder: Folder, first: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Events beyond the checkpoint, of a run that was killed, are hidden; that of its own step stays.
        self._writer = SummaryWriter(folder.path("tensorboard"), purge_step=first + 1)

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, number in numbers.items():
            self._writer.add_scalar(shown_name(name), number, step)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    def __init__(self, folder: Folder, tracking: Tracking, settings: dict[str, Any]) -> None:
        self._scratch = None if folder.is_local else tempfile.TemporaryDirectory(prefix="taojin-wandb-")
        where = folder.path() if self._scratch is None else self._scratch.name
        # Read at the import: without it even offline runs report to the makers of the library.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        # Its service keeps a log there, by default in the home, and complains on stderr where there is none.
        os.environ.setdefault("WANDB_CACHE_DIR", f"{where}/wandb/cache")
        import wandb

        known = wandb.Settings.model_fields
        mode: Any = tracking.wandb
        quiet = {name: value for name, value in _QUIET.items() if name in known}
        Path(where).mkdir(parents=True, exist_ok=True)
        try:
            self._run = wandb.init(
                project=tracking.project,
                name=tracking.name or folder.name,
                id=_wandb_id(folder),
                resume="allow",
                mode=mode,
                dir=where,
                config=settings,
                settings=wandb.Settings(**quiet),
            )
        except wandb.errors.UsageError as error:
            raise ConfigError(f"tracking.wandb: {tracking.wandb}: {first_line(error)}") from None

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log({shown_name(name): number for name, number in numbers.items()}, step=step)

    def flush(self) -> None:
        """Its service writes by itself."""

    def close(self) -> None:
        self._run.finish()
        if self._scratch is not None:
            self._scratch.cleanup()


# Nothing on the terminal; nothing of the machine, the account or the source code in the files.
_QUIET: dict[str, Any] = {
    "silent": True,
    "console": "off",
    "disable_git": True,
    "disable_code": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
    # Seconds of rows that a killed run loses there; its service writes every 15 otherwise.
    "x_transaction_log_flush_interval": 1.0,
}


def _wandb_id(folder: Folder) -> str:
    """Kept beside the run, for all its starts; folders of the same name are other runs."""
    if folder.exists(WANDB_ID):
        return folder.read_bytes(WANDB_ID).decode().strip()
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", folder.name).strip("-")[:40] or "run"
    made = f"{name}-{uuid.uuid4().hex[:8]}"
    with folder.create(WANDB_ID) as sink:
        sink.write(made.encode())
    return made


def last_numbers(folder: Folder) -> dict[str, float]:
    """What a run last told of itself; of what only grows, the highest that any of its starts told.

    {} before the first. Reads the ends of the files, whatever their size.
    """
    last: dict[str, float] = {}
    for name in folder.names(METRICS):
        # The first line of a tail is torn too.
        for numbers in map(_row, _tail(folder, f"{METRICS}/{name}").splitlines()):
            grown = {key: max(numbers[key], last.get(key, 0.0)) for key in GROWING if key in numbers}
            last |= {**numbers, **grown}
    return last


def read_metrics(folder: Folder) -> dict[int, dict[str, float]]:
    """Step → its numbers, of all starts of a run. JSON's null, a number that is none, is left out."""
    found: dict[int, dict[str, float]] = {}
    for name in folder.names(METRICS):
        for line in folder.read_bytes(f"{METRICS}/{name}").splitlines():
            if numbers := _row(line):
                found.setdefault(int(numbers["step"]), {}).update(numbers)
    return dict(sorted(found.items()))


def _file(number: int, first: int) -> str:
    return f"{number:05d}-from-{first:08d}.jsonl"


def _number(name: str) -> int:
    digits = name.partition("-")[0]
    return int(digits) if digits.isdigit() else 0


def _line(step: int, numbers: Mapping[str, float]) -> bytes:
    # JSON has no infinity: the norm of the gradient can be one with fp16.
    plain = {name: number if math.isfinite(number) else None for name, number in numbers.items()}
    return json.dumps({"step": step, "time": round(time.time(), 3), **plain}).encode() + b"\n"


def _row(line: bytes) -> dict[str, float]:
    """{} for what is no line: the last of a killed run may be torn."""
    with contextlib.suppress(ValueError):
        if line.endswith(b"}"):
            return {name: number for name, number in json.loads(line).items() if number is not None}
    return {}


def _tail(folder: Folder, name: str) -> bytes:
    filesystem, _ = folder.resolve()
    with filesystem.open_input_file(folder.path(name)) as file:
        file.seek(max(0, file.size() - TAIL_BYTES))
        return bytes(file.read())
