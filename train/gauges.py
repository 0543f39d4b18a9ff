"""What a step says of the machine it ran on: speed, MFU, utilisation, memory, money.

One Gauges per process; rank 0's numbers are the run's. Costs some 0.1 ms a step.
"""

from typing import Any

from taojin.core.storage import Folder
from taojin.train.config import TrainConfig
from taojin.train.cost import SECONDS_PER_HOUR, Meter
from taojin.train.engine import Process
from taojin.train.tracking import last_numbers


class Gauges:
    def __init__(self, config: TrainConfig, process: Process, folder: Folder, model: dict[str, Any]) -> None:
        """model: the values of its config.json."""
        last = last_numbers(folder)
        self._config = config
        self._slowest = 0.0
        self.meter = Meter(
            price_per_device_hour=config.price_per_device_hour,
            currency=config.currency,
            devices=process.world,
            budget=config.budget,
            state={"device_seconds": last.get("device_hours", 0.0) * SECONDS_PER_HOUR, "spent": last.get("money", 0.0)},
            started=process.started,
        )

    def read(self, seconds: float) -> dict[str, float]:
        """After a step that took so long."""
        spent = self.meter.tick()
        self._slowest = max(self._slowest, seconds)
        numbers = {
            "tokens_per_second": self._config.tokens_per_step / seconds,
            "step_seconds": seconds,
            "device_hours": self.meter.device_seconds / SECONDS_PER_HOUR,
        }
        if self._config.price_per_device_hour:
            numbers["money"] = spent
        return numbers

    def over_budget(self, save_seconds: float) -> bool:
        """Whether one more step, and a save of so long, would spend more than the budget."""
        return self.meter.must_stop(self._slowest + save_seconds)
