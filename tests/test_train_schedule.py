"""The learning rate, against its definition spelled out and against megatron-core's scheduler."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taojin.core.errors import ConfigError
from taojin.train.config import TrainConfig
from taojin.train.schedule import Phases, learning_rate, phases

SHAPES = {"linear": "linear", "cosine": "cosine", "sqrt": "minus_sqrt"}


def config(**schedule: Any) -> TrainConfig:
    return TrainConfig(
        model="m.json", data="/a", output="/o", steps=1, schedule=schedule, optimizer={"learning_rate": 2e-3}
    )


def rates(chosen: TrainConfig, total: int) -> list[float]:
    return [learning_rate(chosen, total, step) for step in range(total)]


@st.composite
def runs(draw: Any) -> tuple[TrainConfig, int]:
    """A schedule that fits, and its length."""
    total = draw(st.integers(2, 200))
    warmup = draw(st.integers(0, total - 1))
    decay = draw(st.integers(1, total - warmup))
    return (
        config(
            kind=draw(st.sampled_from(["cosine", "wsd", "constant"])),
            warmup=warmup,
            decay=decay,
            decay_shape=draw(st.sampled_from(sorted(SHAPES))),
            minimum=draw(st.sampled_from([0.0, 0.1, 1.0])),
        ),
        total,
    )


@given(runs())
def test_every_rate_is_megatron_cores(run: tuple[TrainConfig, int]) -> None:
    scheduler = pytest.importorskip("megatron.core.optimizer_param_scheduler", reason="megatron-core is not installed")
    chosen, total = run
    schedule, peak = chosen.schedule, chosen.optimizer.learning_rate
    theirs = scheduler.OptimizerParamScheduler(
        SimpleNamespace(param_groups=[]),
        init_lr=0.0,
        max_lr=peak,
        min_lr=peak * schedule.minimum,
        lr_warmup_steps=schedule.warmup,
        lr_decay_steps=total,
        lr_decay_style={"cosine": "cosine", "wsd": "WSD", "constant": "constant"}[schedule.kind],
        start_wd=0.0,
        end_wd=0.0,
        wd_incr_steps=total,
        wd_incr_style="constant",
        wsd_decay_steps=schedule.decay,
        lr_wsd_decay_style=SHAPES[schedule.decay_shape],
    )
    for step in range(total + 3):
        theirs.num_steps = step + 1
        assert learning_rate(chosen, total, step) == pytest.approx(theirs.get_lr({}), rel=1e-12, abs=1e-18)


@given(runs())
def test_rates_rise_then_fall_and_stay_between_floor_and_peak(run: tuple[TrainConfig, int]) -> None:
    chosen, total = run
    warmup = chosen.schedule.warmup
    assert isinstance(warmup, int)
    found = rates(chosen, total)
    assert found[:warmup] == sorted(found[:warmup])
    assert found[warmup:] == sorted(found[warmup:], reverse=True)
    assert max(found) <= chosen.optimizer.learning_rate
    assert min(found[warmup:]) >= chosen.optimizer.learning_rate * chosen.schedule.minimum


def test_the_first_step_moves_and_the_warm_up_ends_at_the_peak() -> None:
    found = rates(config(kind="constant", warmup=4), 6)
    assert found == pytest.approx([5e-4, 1e-3, 1.5e-3, 2e-3, 2e-3, 2e-3])


def test_a_cosine_is_half_way_in_the_middle_and_ends_at_the_floor() -> None:
    chosen = config(kind="cosine", warmup=0, minimum=0.1)
    assert learning_rate(chosen, 100, 49) == pytest.approx((2e-3 + 2e-4) / 2)
    assert learning_rate(chosen, 100, 99) == pytest.approx(2e-4)
    assert learning_rate(chosen, 100, 1000) == pytest.approx(2e-4)


def test_wsd_stays_at_the_peak_until_its_decay() -> None:
    found = rates(config(kind="wsd", warmup=10, decay=0.2, decay_shape="sqrt", minimum=0.0), 100)
    assert found[9:80] == [2e-3] * 71
    assert found[80] == pytest.approx(2e-3 * (1 - math.sqrt(1 / 20)))
    assert found[99] == 0.0


def test_shares_become_steps() -> None:
    assert phases(config(kind="wsd", warmup=0.01, decay=0.1).schedule, 1000) == Phases(10, 890, 100)
    assert phases(config(kind="cosine", warmup=0.01).schedule, 1000) == Phases(10, 0, 990)
    assert phases(config(kind="constant", warmup=0.01, decay=0.5).schedule, 1000) == Phases(10, 990, 0)


def test_a_run_that_is_all_warm_up_has_rates() -> None:
    assert rates(config(kind="cosine", warmup=3), 3)[-1] == 2e-3


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ({"kind": "cosine", "warmup": 11}, "11 steps do not fit into a run of 10"),
        ({"kind": "wsd", "warmup": 6, "decay": 5}, "6 steps of warm-up and 5 of decay do not fit into a run of 10"),
    ],
)
def test_phases_longer_than_the_run_are_refused(schedule: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        learning_rate(config(**schedule), 10, 0)
