"""The numbers of a run, where people and tools look for them. Rank 0 alone writes.

    RUN/metrics/from-00000000.jsonl    one line per logged step, a file per start of the run, named by its first step
    RUN/tensorboard/                   event files, where RUN is a local folder
    RUN/wandb/                         Weights & Biases, offline unless told otherwise

A line is written when its step is done; what a killed run wrote beyond its last checkpoint is written again by the
next, in a file of its own: of two lines of a step the one of the later file counts (`read_metrics`).
"""

import json
import time
from pathlib import Path
from typing import Any

from taojin.core.storage import Folder
from taojin.train.sections import Tracking

METRICS = "metrics"


class Tracker:
    """`folder`: RUN. `first`: the step that this start of the run begins with."""

    def __init__(self, folder: Folder, tracking: Tracking, first: int, settings: dict[str, Any]) -> None:
        self._folder = folder
        self._file = f"{METRICS}/from-{first:08d}.jsonl"
        self._lines: list[str] = []
        self._local: Any = None
        if folder.is_local:
            path = Path(folder.path(self._file))
            path.parent.mkdir(parents=True, exist_ok=True)
            self._local = path.open("w", encoding="utf-8", buffering=1)
        self._board: Any = None
        if tracking.tensorboard and folder.is_local:
            from torch.utils.tensorboard import SummaryWriter

            # Events of steps beyond the checkpoint, of a run that was killed, are hidden.
            self._board = SummaryWriter(folder.path("tensorboard"), purge_step=first)
        self._wandb: Any = None
        if tracking.wandb != "off":
            import wandb

            self._wandb = wandb.init(
                project=tracking.project,
                name=tracking.name or folder.name,
                id=folder.name,
                resume="allow",
                mode=tracking.wandb,
                dir=folder.path() if folder.is_local else None,
                config=settings,
            )

    def write(self, step: int, numbers: dict[str, float]) -> None:
        line = json.dumps({"step": step, "time": round(time.time(), 3), **numbers}) + "\n"
        if self._local is not None:
            self._local.write(line)
        else:
            self._lines.append(line)
        if self._board is not None:
            for name, number in numbers.items():
                self._board.add_scalar(name, number, step)
        if self._wandb is not None:
            self._wandb.log(numbers, step=step)

    def flush(self) -> None:
        """Objects cannot be appended to: the lines of an object store are written whole, at every checkpoint."""
        if self._lines:
            with self._folder.create(self._file) as sink:
                sink.write("".join(self._lines).encode())
        if self._board is not None:
            self._board.flush()

    def close(self) -> None:
        self.flush()
        if self._local is not None:
            self._local.close()
        if self._board is not None:
            self._board.close()
        if self._wandb is not None:
            self._wandb.finish()


def last_numbers(folder: Folder) -> dict[str, float]:
    """Of what only grows (money, device-hours), the highest that any start of the run has told; {} before the first."""
    highest: dict[str, float] = {}
    for name in folder.names(METRICS):
        # The last line of a killed run may be torn.
        whole = [line for line in folder.read_bytes(f"{METRICS}/{name}").splitlines()[-2:] if line.endswith(b"}")]
        for key, value in (json.loads(whole[-1]) if whole else {}).items():
            highest[key] = max(value, highest.get(key, value))
    return highest


def read_metrics(folder: Folder) -> dict[int, dict[str, float]]:
    """Step → its numbers, of all starts of a run."""
    found: dict[int, dict[str, float]] = {}
    for name in folder.names(METRICS):
        for line in folder.read_bytes(f"{METRICS}/{name}").splitlines():
            # The last line of a killed run may be torn.
            if line.endswith(b"}"):
                numbers = json.loads(line)
                found.setdefault(numbers["step"], {}).update(numbers)
    return dict(sorted(found.items()))
