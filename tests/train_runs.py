"""Training runs for tests: a pair that can be learnt, a tiny Llama, and workers as processes of their own.

`python -m tests.train_runs CONFIG.json` is a worker; its rank is in torchrun's variables, and it prints a JSON line
for every step and one for the end. KILL_AT=n: SIGKILL itself after step n.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.jobs import ENVIRONMENT, ROOT
from tests.megatron_pairs import write_pair

VOCABULARY = 512
EOD = VOCABULARY - 1
TINY_LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
    "eos_token_id": EOD,
}


def countable_pair(prefix: Path, documents: int = 200, seed: int = 0) -> Path:
    """Documents that count in sevens from anywhere: the next token follows from the last."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(documents):
        first, length = int(rng.integers(0, 500)), int(rng.integers(10, 90))
        made.append([[*((first + 7 * place) % 500 for place in range(length)), EOD]])
    write_pair(prefix, made, "uint16")
    return prefix


def run_values(folder: Path, name: str, **values: Any) -> dict[str, Any]:
    """A config of 12 steps of 8 sequences on the pair and the model of this folder, which are made if need be."""
    if not (folder / "model.json").exists():
        countable_pair(folder / "pair")
        (folder / "model.json").write_text(json.dumps(TINY_LLAMA))
    return {
        "model": str(folder / "model.json"),
        "data": [str(folder / "pair")],
        "output": str(folder / name),
        "sequence_length": 32,
        "steps": 12,
        "global_batch": 8,
        "micro_batch": 4,
        "precision": "fp32",
        "optimizer": {"learning_rate": 0.01},
        "save_every": 4,
        "keep_last": 10,
        "device": "cpu",
        "tracking": {"tensorboard": False, "wandb": "off"},
        **values,
    }


def start_workers(path: Path, world: int, **environment: str) -> list[subprocess.Popen[str]]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    return [
        subprocess.Popen(
            [sys.executable, "-m", "tests.train_runs", str(path)],
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={
                **ENVIRONMENT,
                "OMP_NUM_THREADS": "1",
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                **environment,
            },
        )
        for rank in range(world)
    ]


def write_values(values: dict[str, Any]) -> Path:
    path = Path(f"{values['output']}.json")
    path.write_text(json.dumps(values))
    return path


def run_workers(values: dict[str, Any], world: int, **environment: str) -> tuple[dict[int, float], dict[str, Any]]:
    """(loss of each step, outcome) that rank 0 tells."""
    running = start_workers(write_values(values), world, **environment)
    try:
        ended = [worker.communicate(timeout=150) for worker in running]
    finally:
        for worker in running:
            if worker.poll() is None:
                worker.kill()
    assert all(worker.returncode == 0 for worker in running), ended
    *steps, outcome = map(json.loads, ended[0][0].splitlines())
    return {row["step"]: row["loss"] for row in steps}, outcome


def mortal_worker(values: dict[str, Any]) -> None:
    """A Ray Train worker whose rank 1 is killed after step 7, once in a run. Rank 0 writes the losses of every start to
    RUN/losses, as lines of [step, loss]."""

    def each(run: Path, process: Any, step: int, loss: float) -> None:
        if process.rank == 0:
            with (run / "losses").open("a") as file:
                file.write(json.dumps([step, loss]) + "\n")
        if process.rank == 1 and step == 7 and not (run / "killed").exists():
            (run / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    _worker(values, each)


def steady_worker(values: dict[str, Any]) -> None:
    """A Ray Train worker that takes its time. Rank 0 writes the last step to RUN/step, and makes RUN/running-WORLD
    after the third of a start."""
    seen = 0

    def each(run: Path, process: Any, step: int, loss: float) -> None:
        nonlocal seen
        seen += 1
        if process.rank == 0:
            (run / "step").write_text(str(step))
            if seen == 3:
                (run / f"running-{process.world}").touch()
        time.sleep(0.1)

    _worker(values, each)


def _worker(values: dict[str, Any], each: Callable[[Path, Any, int, float], None]) -> None:
    from taojin.train import launch, loop

    real = loop.train

    def train(config: Any, process: Any, *, report: Any, on_step: Any) -> Any:
        def every(step: int, steps: int, numbers: dict[str, float]) -> None:
            on_step(step, steps, numbers)
            each(Path(config.output), process, step, numbers["loss"])

        return real(config, process, report=report, on_step=every)

    loop.train = train  # type: ignore[assignment]
    launch.worker(values)


def main() -> None:
    from dataclasses import asdict

    from taojin.train.config import TrainConfig
    from taojin.train.engine import start_process
    from taojin.train.loop import train

    config = TrainConfig(**json.loads(Path(sys.argv[1]).read_text()))
    kill_at = int(os.environ.get("KILL_AT", "0"))

    def on_step(step: int, _: int, numbers: dict[str, float]) -> None:
        print(json.dumps({"step": step, "loss": numbers["loss"]}), flush=True)
        if step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    outcome = train(config, start_process("cpu"), on_step=on_step)
    print(json.dumps(asdict(outcome)), flush=True)


if __name__ == "__main__":
    main()
