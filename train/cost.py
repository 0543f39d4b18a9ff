"""Work, time and money of a training run: FLOPs per token, seconds per step, days, and a meter that stops in time.

In: a Shape, a device's peak, an MFU, a price. Out: numbers; `Meter` keeps what a run has cost. Costs nothing.
Leaves to others: memory (`estimate.py`), peaks (`devices.py`), the table (`plan.py`), the loop that asks the meter.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from taojin.core.errors import ConfigError
from taojin.train.shape import Shape

SECONDS_PER_HOUR = 3600.0
SECONDS_PER_DAY = 86_400.0
# Assumed where the user has not measured: Llama 3 (arXiv 2407.21783, table 4) ran at 0.38 to 0.43 of H100s' bf16 peak.
DEFAULT_MFU = 0.4
# With checkpointing the forward pass, a third of the work, is done twice; MFU counts it once.
CHECKPOINTED_MFU = DEFAULT_MFU * 3 / 4


def flops_per_token(shape: Shape, sequence_length: int) -> float:
    """Model FLOPs of forward and backward: 6 per multiplied parameter (arXiv 2001.08361) and the attention.

    Scores and their product with the values are 4 × width FLOPs per pair of tokens forward and twice that backward, for
    tokens at and before one's own: 6 × layers × width × sequence_length, half of PaLM's 12 (arXiv 2204.02311, appendix
    B), which counts pairs that causal attention never sees. What checkpointing computes again is not counted.
    """
    window = min(shape.window or sequence_length, sequence_length)
    # The mean number of tokens attended to: a ramp up to the window, then the window.
    seen = window * (2 * sequence_length - window + 1) / (2 * sequence_length)
    return 6.0 * shape.multiplied + 12.0 * shape.layers * shape.query_width * seen


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast a run goes, and what it takes in all."""

    flops_per_token: float
    tokens_per_second: float
    """Of all devices together."""
    step_seconds: float
    seconds: float
    device_hours: float

    @property
    def days(self) -> float:
        return self.seconds / SECONDS_PER_DAY


def pace(
    shape: Shape,
    *,
    sequence_length: int,
    global_batch: int,
    steps: int,
    devices: int,
    peak_flops: float,
    mfu: float = DEFAULT_MFU,
) -> Pace:
    """Time from peak FLOPs and the share of them that becomes model FLOPs.

    Communication, data and saving are in the MFU or nowhere. Raises ConfigError for numbers that are not above 0, and
    for an MFU above 1.
    """
    for name, value in (
        ("sequence_length", sequence_length),
        ("global_batch", global_batch),
        ("steps", steps),
        ("devices", devices),
        ("peak_flops", peak_flops),
        ("mfu", mfu),
    ):
        if not (value > 0 and math.isfinite(value)):
            raise ConfigError(f"expected {name} above 0, found {value}")
    if mfu > 1:
        raise ConfigError(f"expected an mfu of at most 1, a share of peak FLOPs, found {mfu}")
    each = flops_per_token(shape, sequence_length)
    speed = devices * peak_flops * mfu / each
    step_tokens = global_batch * sequence_length
    seconds = steps * step_tokens / speed
    return Pace(
        flops_per_token=each,
        tokens_per_second=speed,
        step_seconds=step_tokens / speed,
        seconds=seconds,
        device_hours=seconds / SECONDS_PER_HOUR * devices,
    )


def mfu(shape: Shape, *, sequence_length: int, tokens_per_second: float, devices: int, peak_flops: float) -> float:
    """The share of peak FLOPs that a measured speed of all devices together uses."""
    return flops_per_token(shape, sequence_length) * tokens_per_second / (devices * peak_flops)


def money(*, devices: int, hours: float, price_per_device_hour: float) -> float:
    """What `devices` cost for `hours`; the price's currency."""
    return devices * hours * price_per_device_hour


class Meter:
    """The running cost of a run: every second between two ticks is charged, whatever it was spent on.

    One rank asks, and tells the others, so that all stop at the same step. What was spent before (an earlier start of
    the same run, other device counts) is carried by `state()`, which belongs in the checkpoint. A `started` in the past
    charges the time before the meter was made: imports, loading.
    """

    def __init__(
        self,
        *,
        price_per_device_hour: float,
        currency: str,
        devices: int,
        budget: float | None = None,
        state: Mapping[str, Any] | None = None,
        started: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ConfigError for a price below 0, devices below 1, a budget that is not above 0 or not finite."""
        if not (price_per_device_hour >= 0 and math.isfinite(price_per_device_hour)):
            raise ConfigError(f"expected price_per_device_hour of at least 0, found {price_per_device_hour}")
        if devices < 1:
            raise ConfigError(f"expected devices of at least 1, found {devices}")
        if budget is not None and not (budget > 0 and math.isfinite(budget)):
            raise ConfigError(f"expected a budget above 0, found {budget}")
        self.price_per_device_hour = price_per_device_hour
        self.currency = currency
        self.devices = devices
        self.budget = budget
        self.device_seconds = float(state["device_seconds"]) if state else 0.0
        self.spent = float(state["spent"]) if state else 0.0
        self._clock = clock
        self._last = clock() if started is None else started

    def cost(self, seconds: float) -> float:
        """What all devices cost for so long."""
        return money(
            devices=self.devices, hours=seconds / SECONDS_PER_HOUR, price_per_device_hour=self.price_per_device_hour
        )

    def tick(self) -> float:
        """Charge the time since the last tick; what is spent so far."""
        now = self._clock()
        seconds, self._last = now - self._last, now
        self.device_seconds += seconds * self.devices
        self.spent += self.cost(seconds)
        return self.spent

    def must_stop(self, ahead_seconds: float) -> bool:
        """Whether so long from the last tick on would exceed the budget.

        Give what still has to happen before the next question and the end: the slowest step seen and a last save.
        """
        return self.budget is not None and self.spent + self.cost(ahead_seconds) > self.budget

    def state(self) -> dict[str, float]:
        """JSON-like, for the next start: money as it was charged, so that another price later changes nothing."""
        return {"device_seconds": self.device_seconds, "spent": self.spent}

    def line(self) -> str:
        """For example `1,234.50 of 9,676.80 yuan, 587.9 device-hours`."""
        limit = "" if self.budget is None else f" of {self.budget:,.2f}"
        hours = self.device_seconds / SECONDS_PER_HOUR
        return f"{self.spent:,.2f}{limit} {self.currency}, {hours:,.1f} device-hours"
