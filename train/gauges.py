"""What a step says of the machine it ran on: speed, MFU, time left, data position, utilisation, memory, money.

In: the config, the values of the model's config.json, what the run told before. Out: numbers under flat names. Speed,
epoch and money are of all devices together; utilisation and memory are those of rank 0, one of many.

Costs some 20 µs a step, and of the machine, which is asked once a second at most, some 0.2 ms. What cannot be read is
said once and left out. Leaves to others: where numbers go (`tracking`), how they look (`console`).
"""

import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from taojin.core.errors import ConfigError, InputError
from taojin.core.storage import first_line
from taojin.train.config import TrainConfig
from taojin.train.cost import CHECKPOINTED_MFU, DEFAULT_MFU, SECONDS_PER_HOUR, Meter, flops_per_token, mfu
from taojin.train.devices import known_device
from taojin.train.engine import Process
from taojin.train.shape import Shape, shape_of
from taojin.train.tracking import PASSES

# Long enough to pass over a slow step, short enough to follow a change.
RECENT_STEPS = 20
MACHINE_SECONDS = 1.0
# More would hide everything else on a page of charts.
SHOWN_PAIRS = 20


class Gauges:
    """One per process; rank 0's numbers are the run's.

    model: the values of its config.json. total: the steps of the run. epoch_tokens: of one pass over all the data.
    """

    def __init__(
        self,
        config: TrainConfig,
        process: Process,
        model: Mapping[str, Any],
        *,
        total: int,
        epoch_tokens: int,
        report: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._process = process
        self._total = total
        self._epoch_tokens = epoch_tokens
        self._report = report
        self._clock = clock
        self._recent: deque[float] = deque(maxlen=RECENT_STEPS)
        self._asked: float | None = None
        self._between = 0.0
        self._stepping = 0.0
        self._steps = 0
        self._saves = 0
        self._foretold = False
        self._machine = Machine(process, report, clock) if process.rank == 0 else None
        self._known = self._shape_and_peak(model) if process.rank == 0 else None
        self.meter = self._meter({})

    def resume(self, first: int, last: Mapping[str, float]) -> None:
        """Go on after `first` steps from what earlier starts told. Raises ConfigError where the budget is used up."""
        config, told = self._config, last.get("money", 0.0)
        self.meter = self._meter(last)
        self.meter.tick()
        # What one more step and its checkpoint took before.
        self._between = last.get("step_seconds", 0.0)
        needed = self._between + last.get("save_seconds", 0.0)
        if last and config.budget is not None and first < self._total and self.meter.must_stop(needed):
            short = "" if told >= config.budget else ", too little is left for a step and its checkpoint"
            raise ConfigError(
                f"budget: {told:,.2f} of {config.budget:,.2f} {config.currency} are spent{short}; raise it"
            )
        if self._known:
            shape, peak = self._known
            assumed = CHECKPOINTED_MFU if config.activation_checkpointing else DEFAULT_MFU
            flops = flops_per_token(shape, config.sequence_length) * config.tokens_per_step
            self._foretell(first, flops / (peak * self._process.world * assumed), f"an MFU of {assumed:g}")

    def over_budget(self, save_seconds: float) -> bool:
        """Whether another step, and a save of so long, would spend more than the budget. Asked once a step.

        What lay between two questions may lie before the next: a step, a validation, waiting for a save. The first step
        is not taken for a measure, as warm-up does not come again.
        """
        now = self._clock()
        if self._asked is not None:
            self._between = max(self._between, now - self._asked)
        self._asked = now
        self.meter.tick()
        return self.meter.must_stop(self._between + save_seconds)

    def read(self, done: int, seconds: float, waited: float) -> dict[str, float]:
        """After a step that took so long, of which it waited for data; done: steps in all."""
        spent = self.meter.tick()
        self._recent.append(seconds)
        self._stepping += seconds
        self._steps += 1
        usual = statistics.median(self._recent)
        speed = self._config.tokens_per_step / seconds
        numbers = {
            "tokens_per_second": speed,
            "step_seconds": seconds,
            "data_wait_seconds": waited,
            "data_wait_share": min(1.0, waited / seconds),
            "eta_seconds": (self._total - done) * usual,
            "epoch": done * self._config.tokens_per_step / self._epoch_tokens,
            "device_hours": self.meter.device_seconds / SECONDS_PER_HOUR,
        }
        if self._known:
            numbers["mfu"] = mfu(
                self._known[0],
                sequence_length=self._config.sequence_length,
                tokens_per_second=speed,
                devices=self._process.world,
                peak_flops=self._known[1],
            )
        if not self._foretold and len(self._recent) == RECENT_STEPS:
            self._foretold = True
            self._foretell(done, usual, "this speed")
        return numbers | self._money(spent)

    def machine(self) -> dict[str, float]:
        """Utilisation and memory, at most once a second; {} in between."""
        return self._machine.read() if self._machine else {}

    def saves(self, ended: int, slowest: float, blocked: float) -> dict[str, float]:
        """Once after every save: how long the longest took so far, and how long the last held the training up."""
        if ended == self._saves:
            return {}
        self._saves = ended
        return {"save_seconds": slowest, "save_blocked_seconds": blocked}

    def bill(self) -> dict[str, float]:
        """What the run has cost by now, the last save included."""
        spent = self.meter.tick()
        return {"device_hours": self.meter.device_seconds / SECONDS_PER_HOUR, **self._money(spent)}

    def summary(self) -> dict[str, float]:
        """For the end: the bill, and what this start did. tokens_per_second: over its steps, without saves."""
        bill = {"seconds": self._clock() - self._process.started, **self.bill()}
        if self._stepping:
            bill["tokens_per_second"] = self._steps * self._config.tokens_per_step / self._stepping
        return bill

    def _meter(self, last: Mapping[str, float]) -> Meter:
        return Meter(
            price_per_device_hour=self._config.price_per_device_hour,
            currency=self._config.currency,
            devices=self._process.world,
            budget=self._config.budget,
            state={"device_seconds": last.get("device_hours", 0.0) * SECONDS_PER_HOUR, "spent": last.get("money", 0.0)},
            started=self._process.started,
            clock=self._clock,
        )

    def _money(self, spent: float) -> dict[str, float]:
        if not self._config.price_per_device_hour:
            return {}
        numbers = {"money": spent}
        if self._config.budget is not None:
            numbers["money_left"] = max(0.0, self._config.budget - spent)
        return numbers

    def _shape_and_peak(self, model: Mapping[str, Any]) -> tuple[Shape, float] | None:
        """The model's shape and a device's peak FLOPs a second; None where either is unknown: no MFU."""
        name = self._config.device_name or _device_name(self._process)
        if not name:
            return None
        try:
            return shape_of(model, self._config.model), known_device(name).peak_flops
        except (ConfigError, InputError) as error:
            self._report(f"no MFU: {first_line(error)}")
            return None

    def _foretell(self, done: int, step_seconds: float, pace: str) -> None:
        """Where the budget will end the run, if it will."""
        budget = self._config.budget
        if budget is None:
            return
        end = done + int(max(0.0, budget - self.meter.spent) / self.meter.cost(step_seconds))
        if end < self._total:
            self._report(
                f"at {pace} the budget of {budget:,.2f} {self._config.currency} ends the run after about "
                f"{end:,} of {self._total:,} steps"
            )


class Machine:
    """CPU time and memory of this process; with CUDA those of its device."""

    def __init__(self, process: Process, report: Callable[[str], None], clock: Callable[[], float]) -> None:
        import psutil

        self._clock = clock
        self._cuda = process.kind == "cuda"
        self._process = psutil.Process()
        self._cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._process.cpu_percent()
        self._read: float | None = None
        self._gpu = Gpu(process.local_rank, report) if self._cuda else None

    def read(self) -> dict[str, float]:
        now = self._clock()
        if self._read is not None and now - self._read < MACHINE_SECONDS:
            return {}
        self._read = now
        # Of one core, in percent, since the last time.
        numbers = {"cpu_utilization": self._process.cpu_percent() / 100 / self._cores}
        if self._gpu is None:
            return {**numbers, "memory_bytes": float(self._process.memory_info().rss)}
        import torch

        return {**numbers, "memory_bytes": float(torch.cuda.max_memory_allocated()), **self._gpu.read()}


class Gpu:
    """What the driver says of a device, by NVML. A driver without it, or that ceases to answer, is said once."""

    def __init__(self, local_rank: int, report: Callable[[str], None]) -> None:
        self._report = report
        self._nvml: Any = None
        try:
            import pynvml  # type: ignore[import-untyped]
            import torch

            pynvml.nvmlInit()
            # NVML counts all devices of the node, CUDA those of CUDA_VISIBLE_DEVICES: the UUID is the same.
            uuid = str(torch.cuda.get_device_properties(local_rank).uuid)
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
            self._nvml = pynvml
        except ImportError:
            report("no utilisation of GPUs: the package nvidia-ml-py is not installed")
        except Exception as error:  # noqa: BLE001  NVML has an exception for each of its codes; none may end a run
            report(f"no utilisation of GPUs: {first_line(error)}")

    def read(self) -> dict[str, float]:
        """Shares of the device's time and memory in use, and watts."""
        if self._nvml is None:
            return {}
        try:
            memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
            return {
                "gpu_utilization": self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100,
                "gpu_memory_utilization": memory.used / memory.total,
                "gpu_power_watts": self._nvml.nvmlDeviceGetPowerUsage(self._handle) / 1000,
            }
        except self._nvml.NVMLError as error:
            self._nvml = None
            self._report(f"no utilisation of GPUs any more: {first_line(error)}")
            return {}


def passes_row(passes: Mapping[str, float]) -> dict[str, float]:
    """Prefix → passes, under names short enough for a chart; {} where there are too many for one."""
    if len(passes) > SHOWN_PAIRS:
        return {}
    return {f"{PASSES}{name}": count for name, count in zip(short_names([*passes]), passes.values(), strict=True)}


def short_names(prefixes: Sequence[str]) -> list[str]:
    """Base names, with as many of the folders above as it takes to tell all apart."""
    parts = [prefix.rstrip("/").split("/") for prefix in prefixes]
    names = list(prefixes)
    for depth in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            break
    return names


def _device_name(process: Process) -> str:
    if process.kind != "cuda":
        return ""
    import torch

    return torch.cuda.get_device_name(process.local_rank)
