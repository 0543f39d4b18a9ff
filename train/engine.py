"""A process of a training run, and DeepSpeed's engine in it. Imported by workers only: it starts torch and DeepSpeed.

Who starts the process says its rank by torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT);
without them it is the only one. Ray Train has made the process group already, and DeepSpeed adopts it.
"""

import atexit
import os
import time
import warnings
from dataclasses import dataclass
from typing import Any, Literal

from taojin.core.errors import ConfigError

# Long enough for the slowest rank to read its part of a checkpoint.
TIMEOUT_MINUTES = 30
LEAVE_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class Process:
    rank: int
    world: int
    local_rank: int
    kind: Literal["cpu", "cuda"]
    started: float = 0.0
    """Since when this run is paid for, by time.monotonic()."""

    @property
    def device(self) -> str:
        return f"cuda:{self.local_rank}" if self.kind == "cuda" else "cpu"

    def gather(self, value: Any) -> list[Any]:
        """One value of every rank, in rank order; all ranks must call it."""
        if self.world == 1:
            return [value]
        import torch.distributed

        values: list[Any] = [None] * self.world
        torch.distributed.all_gather_object(values, value)
        return values

    def total(self, *numbers: float) -> list[float]:
        """Sums over all ranks, in double precision."""
        if self.world == 1:
            return list(numbers)
        import torch

        sums = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(sums)
        return [float(number) for number in sums]


def start_process(wanted: Literal["auto", "cpu", "cuda"]) -> Process:
    """Join the process group; once per process, further calls return the same. Raises ConfigError where there is no GPU
    for `cuda`."""
    # Read by transformers and DeepSpeed as they are imported: no model of ours is on a hub.
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch

    kind: Literal["cpu", "cuda"] = (
        "cuda" if wanted == "cuda" or (wanted == "auto" and torch.cuda.is_available()) else "cpu"
    )
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "device: cuda: PyTorch finds no GPU on this machine; set device: cpu, or install its CUDA build"
        )
    # Otherwise DeepSpeed warns that it had to choose.
    os.environ.setdefault("DS_ACCELERATOR", kind)
    if "RANK" not in os.environ:
        os.environ |= {
            "RANK": "0",
            "WORLD_SIZE": "1",
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            # Any that is free; nobody else has to know.
            "MASTER_PORT": "0",
        }
    # torch 2.13 warns of its own collectives in every step.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed|deepspeed")
    import deepspeed
    import deepspeed.ops
    import deepspeed.utils

    deepspeed.utils.logger.setLevel("ERROR")
    # Would be compiled at the first start, 45 s and a compiler on every node, for inference alone.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    joined = torch.distributed.is_initialized()
    process = Process(
        rank=int(os.environ["RANK"]),
        world=int(os.environ["WORLD_SIZE"]),
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        kind=kind,
        # A process that trains again, or that Ray had ready, did something else before.
        started=time.monotonic() if joined else _process_start(),
    )
    if kind == "cuda":
        torch.cuda.set_device(process.local_rank)
    elif "OMP_NUM_THREADS" not in os.environ:
        # Threads that wait for a core spin on it: two workers with all cores each are several times slower than one.
        neighbours = int(os.environ.get("LOCAL_WORLD_SIZE", process.world))
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // neighbours))
    from datetime import timedelta

    deepspeed.init_distributed(
        dist_backend="nccl" if kind == "cuda" else "gloo",
        auto_mpi_discovery=False,
        verbose=False,
        timeout=timedelta(minutes=TIMEOUT_MINUTES),
    )
    if not joined:
        atexit.register(_leave)
    return process


def _leave() -> None:
    """A thread of gloo lets go of the last tensors a moment after their collective is done; one that wants the
    interpreter for that when it is gone aborts the process, after all work was done."""
    import torch.distributed

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    time.sleep(LEAVE_SECONDS)


def make_engine(model: Any, groups: list[dict[str, Any]], values: dict[str, Any]) -> Any:
    """DeepSpeed's engine for a model, its parameter groups and a DeepSpeed JSON. All ranks must call it."""
    import deepspeed

    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=groups, config=values)
    return engine


def set_learning_rate(engine: Any, rate: float) -> None:
    for group in engine.optimizer.param_groups:
        group["lr"] = rate


def _process_start() -> float:
    import psutil

    return time.monotonic() - max(0.0, time.time() - psutil.Process().create_time())
