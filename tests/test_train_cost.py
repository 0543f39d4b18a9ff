"""FLOPs, time and money of a run, the devices known, and the plan that joins them."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taojin.core.errors import ConfigError, InputError
from taojin.train.config import TrainConfig
from taojin.train.cost import Meter, flops_per_token, mfu, money, pace
from taojin.train.devices import DEVICES, known_device
from taojin.train.estimate import ZeroSizes
from taojin.train.plan import LINE_WIDTH, plan, plan_lines, setup_of
from taojin.train.shape import Shape, shape_of

MODEL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}
LLAMA_70B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}


def shape(**changes: Any) -> Shape:
    return shape_of({**MODEL, **changes}, "test")


def config(**changes: Any) -> TrainConfig:
    base = {"model": "m.json", "data": "/a", "output": "/o", "steps": 100, "global_batch": 64, "sequence_length": 4096}
    return TrainConfig(**{**base, **changes})


# ---------------------------------------------------------------------------- work


def counted_flops(model: Shape, length: int) -> int:
    """By definition: two operations per weight and token, two per pair and channel, and twice all that backward."""
    forward = 0
    for position in range(length):
        for _ in range(model.layers):
            for rows in (model.query_width, model.key_width, model.key_width, model.query_width):
                forward += 2 * rows * model.hidden
            forward += 3 * 2 * model.hidden * model.intermediate
            for other in range(length):
                if other <= position and (model.window is None or position - other < model.window):
                    forward += 2 * 2 * model.query_width
        forward += 2 * model.hidden * model.vocabulary
    return 3 * forward


@given(st.integers(1, 24), st.one_of(st.none(), st.integers(1, 30)), st.sampled_from([1, 2, 4]))
def test_flops_are_those_of_every_weight_and_every_pair(length: int, window: int | None, kv: int) -> None:
    model = shape(model_type="mistral", sliding_window=window, num_key_value_heads=kv)
    assert flops_per_token(model, length) * length == pytest.approx(counted_flops(model, length))


def test_flops_of_the_weights_are_those_that_torch_counts() -> None:
    torch = pytest.importorskip("torch", reason="the outside oracle")
    pytest.importorskip("transformers", reason="the outside oracle")
    from torch.utils.flop_counter import FlopCounterMode

    from tests.train_live import model_of

    length = 32
    model = model_of(MODEL, "fp32", checkpointing=False)
    model.set_attn_implementation("eager")
    tokens = torch.zeros((1, length), dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=tokens, labels=tokens).loss.backward()
    counts = counter.get_total_flops() / length
    # Eager attention computes also the pairs that are masked: length of them per token, not (length + 1) / 2.
    masked = 12 * shape().layers * shape().query_width * (length - (length + 1) / 2)
    # Positions are rotated by angles, an outer product of position and frequency: 2 × 8 operations a token.
    assert counts - masked - flops_per_token(shape(), length) == pytest.approx(0, abs=2 * shape().head_dim)


def test_six_per_parameter_is_nearly_all_of_it_for_a_large_model() -> None:
    large = shape_of(LLAMA_70B, "test")
    assert flops_per_token(large, 4096) == pytest.approx(6 * large.parameters, rel=0.03)


# ---------------------------------------------------------------------------- time and money


def test_70b_on_64_devices_for_72_hours_at_2_1_yuan_is_9676_8_yuan() -> None:
    assert round(money(devices=64, hours=72, price_per_device_hour=2.1), 6) == 9676.8


def test_pace_is_work_over_peak_times_mfu() -> None:
    large = shape_of(LLAMA_70B, "test")
    found = pace(large, sequence_length=8192, global_batch=512, steps=100, devices=64, peak_flops=989.4e12, mfu=0.4)
    step = 512 * 8192 * flops_per_token(large, 8192) / (64 * 989.4e12 * 0.4)
    assert found.step_seconds == pytest.approx(step)
    assert found.seconds == pytest.approx(100 * step)
    assert found.days == pytest.approx(100 * step / 86400)
    assert found.device_hours == pytest.approx(100 * step * 64 / 3600)
    assert found.tokens_per_second * found.seconds == pytest.approx(100 * 512 * 8192)


@given(st.integers(1, 4096), st.floats(0.01, 1.0))
def test_mfu_of_the_speed_at_a_pace_is_the_mfu_it_was_made_with(devices: int, share: float) -> None:
    found = pace(shape(), sequence_length=128, global_batch=8, steps=3, devices=devices, peak_flops=1e12, mfu=share)
    again = mfu(
        shape(), sequence_length=128, tokens_per_second=found.tokens_per_second, devices=devices, peak_flops=1e12
    )
    assert again == pytest.approx(share)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"devices": 0}, "expected devices above 0, found 0"),
        ({"peak_flops": math.nan}, "expected peak_flops above 0, found nan"),
        ({"mfu": 1.5}, "expected an mfu of at most 1, a share of peak FLOPs, found 1.5"),
        ({"steps": -1}, "expected steps above 0, found -1"),
    ],
)
def test_impossible_numbers_have_no_pace(changes: dict[str, Any], told: str) -> None:
    base = {"sequence_length": 8, "global_batch": 1, "steps": 1, "devices": 1, "peak_flops": 1e12, "mfu": 0.4}
    with pytest.raises(ConfigError, match=told):
        pace(shape(), **{**base, **changes})


# ---------------------------------------------------------------------------- the meter


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def meter(clock: Clock, **changes: Any) -> Meter:
    base = {"price_per_device_hour": 2.1, "currency": "yuan", "devices": 64, "clock": clock}
    return Meter(**{**base, **changes})


def test_every_second_between_ticks_is_charged_for_every_device() -> None:
    clock = Clock()
    running = meter(clock)
    for seconds in (3600, 10_000, 0.5, 86400 * 3 - 3600 - 10_000 - 0.5):
        clock.now += seconds
        running.tick()
    assert running.spent == pytest.approx(9676.8)
    assert running.device_seconds == pytest.approx(64 * 72 * 3600)
    assert running.line() == "9,676.80 yuan, 4,608.0 device-hours"


def test_time_before_the_meter_was_made_is_charged_where_it_is_known() -> None:
    clock = Clock()
    assert meter(clock, started=clock.now - 3600, devices=1).tick() == pytest.approx(2.1)


def test_a_resumed_run_goes_on_from_what_was_spent_with_other_devices_and_prices() -> None:
    clock = Clock()
    first = meter(clock, devices=4)
    clock.now += 3600
    first.tick()
    second = meter(clock, devices=2, price_per_device_hour=1.0, budget=12.0, state=first.state())
    clock.now += 3600
    assert second.tick() == pytest.approx(4 * 2.1 + 2 * 1.0)
    assert second.state() == {"device_seconds": 6 * 3600.0, "spent": second.spent}
    assert second.line() == "10.40 of 12.00 yuan, 6.0 device-hours"


@given(
    st.floats(0.01, 100),
    st.integers(1, 100),
    st.floats(0.001, 1e5),
    st.floats(0.0, 600),
    st.lists(st.floats(0.01, 300), min_size=1, max_size=60),
)
def test_a_run_that_asks_before_each_step_never_exceeds_its_budget(
    price: float, devices: int, budget: float, save: float, steps: list[float]
) -> None:
    clock = Clock()
    running = meter(clock, price_per_device_hour=price, devices=devices, budget=budget)
    slowest = max(steps)
    if running.must_stop(save):
        return
    for seconds in steps:
        if running.must_stop(slowest + save):
            break
        clock.now += seconds
        running.tick()
    clock.now += save
    assert running.tick() <= budget * (1 + 1e-9)


def test_without_a_budget_a_run_never_has_to_stop() -> None:
    assert not meter(Clock()).must_stop(1e12)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"price_per_device_hour": -1.0}, "expected price_per_device_hour of at least 0, found -1"),
        ({"price_per_device_hour": math.nan}, "expected price_per_device_hour of at least 0, found nan"),
        ({"devices": 0}, "expected devices of at least 1, found 0"),
        ({"budget": 0.0}, "expected a budget above 0, found 0"),
        ({"budget": math.inf}, "expected a budget above 0, found inf"),
    ],
)
def test_a_meter_refuses_impossible_numbers(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        meter(Clock(), **changes)


# ---------------------------------------------------------------------------- devices


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ("H20", "H20"),
        ("h200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100-PCIE-40GB", "A100-40GB"),
        ("NVIDIA A800-SXM4-80GB", "A800"),
        ("NVIDIA GeForce RTX 4090", "4090"),
        ("Ascend910B3", "910B"),
        ("Ascend 910B", "910B"),
    ],
)
def test_a_device_is_known_by_our_name_and_by_its_drivers(said: str, known: str) -> None:
    assert known_device(said).name == known


@pytest.mark.parametrize("said", ["V100", "", "NVIDIA GeForce RTX 4090 D", "NVIDIA H100 NVL", "Ascend910B1", "GH200"])
def test_a_device_that_is_another_is_refused_with_those_known(said: str) -> None:
    with pytest.raises(ConfigError, match=r"is not known; expected one of A100, A100-40GB"):
        known_device(said)


def test_every_device_has_a_source_and_is_found_by_its_name() -> None:
    for name, device in DEVICES.items():
        assert device.source
        assert known_device(name) is device


# ---------------------------------------------------------------------------- the plan


def test_the_plan_of_70b_on_64_devices_says_memory_days_and_money() -> None:
    run = config(
        workers=64,
        device_name="H800",
        activation_checkpointing=True,
        tokens="8B",
        steps=None,
        price_per_device_hour=2.1,
        budget=9676.8,
    )
    values = plan(run, LLAMA_70B)
    assert values["parameters"] == 70_553_706_496
    assert values["memory"]["fits"]
    assert values["tokens"] == values["steps"] * 64 * 4096 <= 8_000_000_000
    spent = values["time"]
    assert spent["money"] == pytest.approx(spent["device_hours"] * 2.1)
    assert spent["seconds"] == pytest.approx(
        values["tokens"] * flops_per_token(shape_of(LLAMA_70B, ""), 4096) / (64 * 989.4e12 * 0.3)
    )
    text = "\n".join(plan_lines(values))
    for word in ("parameters", "gradients", "optimizer", "activations", "logits", "buffers", "fits", "yuan", "days"):
        assert word in text


def test_what_does_not_fit_is_told_with_the_mildest_remedy_that_does() -> None:
    tight = config(workers=64, device_name="A100", micro_batch=1, sequence_length=8192, global_batch=64)
    values = plan(tight, LLAMA_70B)
    assert not values["memory"]["fits"]
    assert "activation_checkpointing would do" in values["warnings"][0]
    assert plan(tight.model_copy(update={"activation_checkpointing": True}), LLAMA_70B)["memory"]["fits"]


def test_a_budget_that_is_too_small_is_told_in_steps() -> None:
    run = config(workers=64, device_name="H800", price_per_device_hour=2.1, activation_checkpointing=True)
    full = plan(run, LLAMA_70B)["time"]["money"]
    values = plan(run.model_copy(update={"budget": full * 0.255}), LLAMA_70B)
    assert "ends after about 25 of 100 steps" in values["warnings"][0]


def test_without_a_device_there_is_memory_but_no_time() -> None:
    values = plan(config(), MODEL)
    assert values["time"] is None
    assert values["memory"]["peak"] > 0
    assert values["memory"]["fits"] is None
    assert "no time and no money without device_name" in values["warnings"][0]


def test_a_sequence_longer_than_the_model_knows_is_warned_about() -> None:
    values = plan(config(), {**MODEL, "max_position_embeddings": 2048})
    assert "sequence_length 4,096 is above the model's max_position_embeddings 2,048" in values["warnings"][0]


def test_a_length_in_epochs_needs_the_length_of_the_data() -> None:
    run = config(steps=None, epochs=2)
    assert plan(run, MODEL, samples_per_epoch=640)["steps"] == 20
    with pytest.raises(ConfigError, match="epochs"):
        plan(run, MODEL)


def test_a_measured_mfu_takes_the_place_of_the_assumed_one() -> None:
    run = config(device_name="H20")
    slow, fast = plan(run, MODEL, mfu=0.1), plan(run, MODEL, mfu=0.5)
    assert slow["time"]["seconds"] == pytest.approx(5 * fast["time"]["seconds"])
    assert not any("not measured" in assumption for assumption in fast["assumptions"])


def test_the_sizes_in_a_users_deepspeed_json_are_planned_with() -> None:
    given_json = {"zero_optimization": {"reduce_bucket_size": 12345, "stage3_max_live_parameters": 678}}
    sizes = setup_of(config(deepspeed=given_json), shape()).sizes
    assert (sizes.reduce_bucket_size, sizes.max_live_parameters) == (12345, 678)
    assert sizes.sub_group_size == ZeroSizes().sub_group_size


def test_the_setup_is_the_configs() -> None:
    run = config(
        workers=16, global_batch=64, micro_batch=2, parallel={"tensor": 2}, zero={"stage": 2}, precision="fp16"
    )
    found = setup_of(run, shape())
    assert (found.devices, found.tensor, found.stage, found.precision) == (16, 2, 2, "fp16")
    assert (found.micro_batch, found.accumulation, found.zero_world) == (2, 4, 8)


def test_megatron_has_time_and_money_but_no_memory() -> None:
    run = config(engine="megatron", workers=8, parallel={"tensor": 2, "pipeline": 2}, device_name="H800")
    values = plan(run, MODEL)
    assert values["memory"] is None
    assert values["time"]["seconds"] > 0
    assert any("not for Megatron-LM" in assumption for assumption in values["assumptions"])


def test_an_unknown_model_or_device_is_told_before_anything_starts() -> None:
    with pytest.raises(InputError, match="model_type 'gpt2' is not known"):
        plan(config(), {"model_type": "gpt2"})
    with pytest.raises(ConfigError, match="device 'abacus' is not known"):
        plan(config(device_name="abacus"), MODEL)


def tables() -> Iterator[dict[str, Any]]:
    yield plan(config(), MODEL)
    yield plan(config(device_name="4090", workers=2, micro_batch=4), LLAMA_70B)
    zero = {"stage": 3, "offload_optimizer": "nvme", "offload_parameters": "nvme", "nvme_path": "/n"}
    yield plan(config(device_name="H20", workers=8, zero=zero, price_per_device_hour=1.5, budget=1.0), LLAMA_70B)


def test_no_line_of_a_table_is_longer_than_its_width() -> None:
    for values in tables():
        lines = plan_lines(values)
        assert max(map(len, lines)) <= LINE_WIDTH
        assert not any(line != line.rstrip() for line in lines)
