"""Which worlds fit a batch, which ways of dividing fit a model, and what is proposed to the one whose do not."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taojin.core.errors import ConfigError
from taojin.train.config import TrainConfig
from taojin.train.parallel import check_model, divisors, layout

BASE: dict[str, Any] = {"model": "m.json", "data": "/a", "output": "/o", "steps": 1, "sequence_length": 4096}
QWEN = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
}


def config(**changes: Any) -> TrainConfig:
    return TrainConfig(**{**BASE, **changes})


def fits(world: int, batch: int, micro: int, model: int) -> bool:
    """By its definition: whole data-parallel ranks, which take whole micro-batches, as many as another."""
    return world % model == 0 and batch % (micro * (world // model)) == 0


# ---------------------------------------------------------------------------- worlds


@given(st.integers(1, 64), st.integers(1, 256), st.integers(1, 8), st.sampled_from([1, 2, 4]))
def test_a_world_is_taken_exactly_where_it_divides_the_batch(world: int, batch: int, micro: int, tensor: int) -> None:
    chosen = config(global_batch=batch, micro_batch=micro, parallel={"tensor": tensor})
    if fits(world, batch, micro, tensor):
        found = layout(chosen, world)
        assert found.data * found.micro_batch * found.accumulation == batch
        assert found.data * found.model == world
    else:
        with pytest.raises(ConfigError):
            layout(chosen, world)


@given(st.integers(1, 64), st.integers(1, 256), st.sampled_from([1, 2]), st.sampled_from([1, 2, 4]))
def test_the_worlds_proposed_are_the_nearest_that_fit(world: int, batch: int, micro: int, tensor: int) -> None:
    batch *= micro
    chosen = config(global_batch=batch, micro_batch=micro, parallel={"tensor": tensor})
    if fits(world, batch, micro, tensor):
        return
    with pytest.raises(ConfigError) as caught:
        layout(chosen, world)
    listed = re.search(r"; (.*) would do", str(caught.value))
    assert listed
    proposed = [int(number.replace(",", "")) for number in listed[1].split(", ")]
    fitting = [size for size in range(1, batch * tensor + 1) if fits(size, batch, micro, tensor)]
    below = [size for size in fitting if size < world]
    above = [size for size in fitting if size > world]
    assert proposed == below[-2:] + above[:2]


def test_the_configs_own_workers_are_the_world() -> None:
    assert layout(config(workers=4, global_batch=8)).world == 4


def test_a_layout_is_told_in_a_row() -> None:
    row = layout(config(workers=16, global_batch=512, micro_batch=4, parallel={"tensor": 2})).row()
    assert row == "16 workers = 8 data × 2 tensor; 512 sequences = 8 × 4 micro-batch × 16 accumulated"


@pytest.mark.parametrize(("parallel", "averaged"), [({}, 8), ({"tensor": 4}, 2), ({"sequence": 4}, 8)])
def test_ranks_of_a_tensor_repeat_a_loss_and_those_of_a_sequence_have_parts(
    parallel: dict[str, int], averaged: int
) -> None:
    assert layout(config(workers=8, global_batch=8, parallel=parallel)).averaged == averaged


def test_neighbours_share_a_copy_and_its_rows() -> None:
    placed = layout(config(workers=8, global_batch=8, parallel={"sequence": 4}))
    assert [placed.data_rank(rank) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]


@given(st.integers(1, 5000))
def test_divisors_are_all_divisors(number: int) -> None:
    assert divisors(number) == [candidate for candidate in range(1, number + 1) if number % candidate == 0]


# ---------------------------------------------------------------------------- combinations


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"parallel": {"pipeline": 2}}, "a pipeline accumulates"),
        ({"parallel": {"pipeline": 2}, "zero": {"stage": 2}}, "zero.stage 2: a pipeline accumulates"),
        ({"parallel": {"pipeline": 2}, "zero": {"stage": 1}}, "takes no Hugging Face model"),
        ({"parallel": {"tensor": 2, "sequence": 2}}, "set one to 1"),
        ({"parallel": {"sequence": 3}}, "does not divide sequence_length 4096; 1, 2, 4, 8 would do"),
        ({"parallel": {"sequence": 2}, "attention": "eager"}, "use sdpa"),
        (
            {"separate_documents": True, "attention": "flash_attention_2", "micro_batch": 2},
            "micro_batch: 2 with separate_documents and flash_attention_2",
        ),
        ({"parallel": {"tensor": 2}, "zero": {"partition_within": 2}}, "partition_within"),
        ({"zero": {"partition_within": 3}, "workers": 8}, "3 does not divide 8 workers; 1, 2, 4, 8 would do"),
        ({"micro_batch": 3}, "micro_batch: 3 does not divide global_batch 256; 1, 2, 4, 8 would do"),
        ({"engine": "megatron", "zero": {"stage": 3}}, "zero.stage: 3 has no counterpart"),
        (
            {"engine": "megatron", "zero": {"stage": 2}, "parallel": {"pipeline": 4}},
            "zero.stage: 2 has no counterpart in engine megatron: a pipeline accumulates",
        ),
    ],
)
def test_an_impossible_combination_is_refused_with_the_reason(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        layout(config(**changes))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_tensor_and_sequence_parallel_go_with_every_stage(stage: int) -> None:
    for parallel in ({"tensor": 2}, {"sequence": 2}):
        assert layout(config(parallel=parallel, zero={"stage": stage}, workers=4)).data == 2


# ---------------------------------------------------------------------------- models


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"parallel": {"tensor": 3}}, "3 does not divide the 28 attention heads; 1, 2, 4, 7 would do"),
        ({"parallel": {"tensor": 7}}, "7 does not divide the 4 key-value heads; 2, 4 would do"),
        ({"parallel": {"sequence": 8}}, "8 does not divide the 28 attention heads; 4, 7, 14, 28 would do"),
        ({"parallel": {"sequence": 14}}, "14 does not divide the 4 key-value heads; 2, 4 would do"),
        ({"engine": "megatron", "parallel": {"pipeline": 8}}, "8 does not divide the 28 layers; 4, 7, 14, 28 would do"),
    ],
)
def test_a_model_that_cannot_be_divided_so_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_model(config(**changes), QWEN)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"parallel": {"tensor": 4}},
        {"parallel": {"sequence": 28}},
        {"engine": "megatron", "parallel": {"tensor": 28}},
        {"engine": "megatron", "parallel": {"sequence": 8, "pipeline": 4}},
    ],
)
def test_key_value_heads_are_repeated_where_the_engine_does_so(changes: dict[str, Any]) -> None:
    check_model(config(**changes), {**QWEN, "intermediate_size": 18928})


def test_widths_must_be_divisible_too() -> None:
    with pytest.raises(ConfigError, match="intermediate_size 18945"):
        check_model(config(parallel={"tensor": 4}), {**QWEN, "intermediate_size": 18945})
