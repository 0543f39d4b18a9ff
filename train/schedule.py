"""The learning rate of a step: a pure function of the config, the length of the run and the step.

With n = step + 1 (steps are numbered from 0), peak p, floor m·p, warm-up w, decay d, length T:

    n ≤ w        p · n / w                                          linear; the first step already moves
    cosine       m·p + (1 - m)·p · (1 + cos(π t)) / 2               t = (n - w) / (T - w)
    wsd          p until T - d, then m·p + (1 - m)·p · f(t)         t = (n - (T - d)) / d
    constant     p

f is 1 - t (linear), (1 + cos(π t)) / 2 (cosine) or 1 - √t (sqrt). Step T - 1 has the floor, as all later ones. The
formulas are those of megatron-core's OptimizerParamScheduler; only that its first step has n = 0, and does not move.
"""

import math
from typing import NamedTuple

from taojin.core.errors import ConfigError
from taojin.train.config import TrainConfig
from taojin.train.sections import Schedule


class Phases(NamedTuple):
    """Steps of each phase; they sum to the length of the run."""

    warmup: int
    stable: int
    decay: int


def phases(schedule: Schedule, total: int) -> Phases:
    """The phases of a run of `total` steps; of a cosine, everything behind the warm-up is decay. Raises ConfigError."""
    warmup = _steps(schedule.warmup, total)
    decay = {"wsd": _steps(schedule.decay, total), "cosine": max(total - warmup, 0), "constant": 0}[schedule.kind]
    if warmup > total:
        raise ConfigError(
            f"schedule.warmup: {warmup:,} steps do not fit into a run of {total:,}; name fewer, or a share such as 0.01"
        )
    if warmup + decay > total:
        raise ConfigError(
            f"schedule: {warmup:,} steps of warm-up and {decay:,} of decay do not fit into a run of {total:,}; "
            f"name fewer, or shares such as 0.01 and 0.1"
        )
    return Phases(warmup, total - warmup - decay, decay)


def learning_rate(config: TrainConfig, total: int, step: int) -> float:
    """The rate of step 0, 1, … of a run of `total` steps. Raises ConfigError where the phases do not fit."""
    schedule, peak = config.schedule, config.optimizer.learning_rate
    warmup, stable, decay = phases(schedule, total)
    done = step + 1
    if done <= warmup:
        return peak * done / warmup
    if done <= warmup + stable or schedule.kind == "constant":
        return peak
    falling = min(done - warmup - stable, decay) / decay if decay else 1.0
    floor = peak * schedule.minimum
    return floor + (peak - floor) * _shape("cosine" if schedule.kind == "cosine" else schedule.decay_shape, falling)


def _shape(name: str, t: float) -> float:
    """From 1 at t = 0 to 0 at t = 1."""
    if name == "cosine":
        return (1 + math.cos(math.pi * t)) / 2
    return 1 - (math.sqrt(t) if name == "sqrt" else t)


def _steps(span: int | float, total: int) -> int:
    return span if isinstance(span, int) else round(span * total)
