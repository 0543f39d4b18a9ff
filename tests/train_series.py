"""Runs one after another in the same workers, as starting a worker takes longer than a tiny run.

`python -m tests.train_series SERIES.json` is a worker; its rank is in torchrun's variables. SERIES.json: a list of
{"values": a config, "copy": the output of a run to go on with, or null, "at": the checkpoint it goes on from}.
"""

import json
import math
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.jobs import ENVIRONMENT, ROOT

NUMBERS = ("loss", "gradient_norm", "validation_loss", "choice_loss")


class Ran(NamedTuple):
    """numbers: of every step, those of NUMBERS that there were."""

    first_step: int
    numbers: dict[int, dict[str, float]]

    def of(self, name: str) -> dict[int, float]:
        return {step: numbers[name] for step, numbers in self.numbers.items() if name in numbers}


class Series:
    """Runs for workers to do together, and then what each did."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._runs: list[dict[str, Any]] = []

    def add(self, values: dict[str, Any], copy: Path | None = None, at: int = 0) -> None:
        """copy: a run of which this one goes on, from its checkpoint `at`."""
        self._runs.append({"values": values, "copy": copy and str(copy), "at": at})

    def run(self, timeout: float = 240) -> dict[str, Ran]:
        """Name of the output → what rank 0 told."""
        path = Path(f"{self._runs[0]['values']['output']}.series.json")
        path.write_text(json.dumps(self._runs))
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        running = [self._start(path, rank, port) for rank in range(self._world)]
        try:
            ended = [worker.communicate(timeout=timeout) for worker in running]
        finally:
            for worker in running:
                if worker.poll() is None:
                    worker.kill()
        assert all(worker.returncode == 0 for worker in running), ended
        found = {}
        for line in ended[0][0].splitlines():
            row = json.loads(line)
            found[row["name"]] = Ran(
                row["first_step"], {int(step): numbers for step, numbers in row["numbers"].items()}
            )
        return found

    def _start(self, path: Path, rank: int, port: int) -> subprocess.Popen[str]:
        variables = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": self._world,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "OMP_NUM_THREADS": 1,
        }
        return subprocess.Popen(
            [sys.executable, "-m", "tests.train_series", str(path)],
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**ENVIRONMENT, **{name: str(value) for name, value in variables.items()}},
        )


def main() -> None:
    import torch.distributed

    from taojin.train.config import TrainConfig
    from taojin.train.engine import start_process
    from taojin.train.loop import train

    process = start_process("cpu")
    for run in json.loads(Path(sys.argv[1]).read_text()):
        config = TrainConfig(**run["values"])
        output = Path(config.output)
        if run["copy"] and process.rank == 0:
            shutil.copytree(run["copy"], output)
            for path in (output / "checkpoints").glob("step-*"):
                if int(path.name.removeprefix("step-")) > run["at"]:
                    shutil.rmtree(path)
        process.gather(None)
        numbers: dict[int, dict[str, float]] = {}

        def on_step(step: int, _: int, found: dict[str, float], numbers: Any = numbers) -> None:
            numbers[step] = {name: found[name] for name in NUMBERS if math.isfinite(found.get(name, math.nan))}

        outcome = train(config, process, on_step=on_step)
        if process.rank == 0:
            row = {"name": output.name, "first_step": outcome.first_step, "numbers": numbers}
            print(json.dumps(row), flush=True)
    # Else a thread of gloo's may be caught by the end of the process.
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
