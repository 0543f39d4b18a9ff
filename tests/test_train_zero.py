"""The DeepSpeed JSON: complete, true to the config, and never silently overruled; read by DeepSpeed's own parser."""

import json
from pathlib import Path
from typing import Any

import pytest

from taojin.core.errors import ConfigError
from taojin.train.config import TrainConfig
from taojin.train.zero import NVME_BUFFER, as_text, deepspeed_config

BASE: dict[str, Any] = {"model": "m.json", "data": "/a", "output": "/o", "steps": 1, "global_batch": 64}


def config(**changes: Any) -> TrainConfig:
    return TrainConfig(**{**BASE, **changes})


def refused(given: Any, **changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        deepspeed_config(config(deepspeed=given, **changes))
    message = str(caught.value)
    assert "\n" not in message
    return message


# ---------------------------------------------------------------------------- what is written


def test_the_default_is_stage_three_in_bf16() -> None:
    assert deepspeed_config(config(workers=4, micro_batch=2)) == {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 8,
        "gradient_clipping": 1.0,
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "torch_adam": True},
        },
        "bf16": {"enabled": True},
        "fp16": {"enabled": False},
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": True,
            "contiguous_gradients": True,
            "reduce_bucket_size": 50_000_000,
            "stage3_prefetch_bucket_size": 50_000_000,
            "stage3_param_persistence_threshold": 100_000,
            "stage3_max_live_parameters": 1_000_000_000,
            "stage3_max_reuse_distance": 1_000_000_000,
        },
        "checkpoint": {"tag_validation": "Fail"},
        "wall_clock_breakdown": False,
    }


def test_another_world_changes_only_the_accumulation() -> None:
    four, eight = (deepspeed_config(config(), world) for world in (4, 8))
    assert (four.pop("gradient_accumulation_steps"), eight.pop("gradient_accumulation_steps")) == (16, 8)
    assert four == eight


def test_tensor_parallel_counts_only_data_parallel_ranks() -> None:
    found = deepspeed_config(config(workers=8, parallel={"tensor": 2}))
    assert found["tensor_parallel"] == {"autotp_size": 2}
    assert found["gradient_accumulation_steps"] == 16
    assert "train_batch_size" not in found


def test_sequence_parallel_names_its_size() -> None:
    found = deepspeed_config(config(workers=8, parallel={"sequence": 4}))
    assert (found["sequence_parallel_size"], found["gradient_accumulation_steps"]) == (4, 32)


def test_a_cpu_overlaps_nothing_and_compiles_nothing() -> None:
    found = deepspeed_config(config(precision="fp32", zero={"offload_optimizer": "cpu"}), device="cpu")
    assert found["zero_optimization"]["overlap_comm"] is False
    assert found["zero_optimization"]["offload_optimizer"] == {"device": "cpu", "pin_memory": False}
    assert found["optimizer"]["params"]["torch_adam"] is True
    assert found["zero_force_ds_cpu_optimizer"] is False
    assert found["bf16"] == found["fp16"] == {"enabled": False}


def test_offloaded_states_are_stepped_by_deepspeeds_own_adam() -> None:
    found = deepspeed_config(config(zero={"offload_optimizer": "cpu", "offload_parameters": "cpu"}))
    assert found["optimizer"]["params"]["torch_adam"] is False
    assert found["zero_optimization"]["offload_param"] == {"device": "cpu", "pin_memory": True}


def test_buffers_of_nvme_hold_the_largest_parameter() -> None:
    nvme = config(zero={"offload_optimizer": "nvme", "offload_parameters": "nvme", "nvme_path": "/nvme"})
    for largest, expected in ((0, NVME_BUFFER), (10**9, 10**9)):
        found = deepspeed_config(nvme, largest_parameter=largest)["zero_optimization"]
        assert found["offload_param"]["buffer_size"] == expected
        assert found["offload_param"]["nvme_path"] == found["offload_optimizer"]["nvme_path"] == "/nvme"


def test_only_what_is_on_nvme_has_a_path() -> None:
    found = deepspeed_config(config(zero={"offload_optimizer": "nvme", "nvme_path": "/nvme"}))["zero_optimization"]
    assert "offload_param" not in found


def test_zero_plus_plus_is_passed_on() -> None:
    zero = {"partition_within": 8, "quantize_weights": True, "quantize_gradients": True}
    found = deepspeed_config(config(workers=16, zero=zero))["zero_optimization"]
    assert (found["zero_hpz_partition_size"], found["zero_quantized_weights"]) == (8, True)
    assert found["zero_quantized_gradients"] is True


def test_a_universal_checkpoint_is_asked_for() -> None:
    assert deepspeed_config(config(), universal=True)["checkpoint"]["load_universal"] is True


def test_it_is_shown_as_json() -> None:
    found = deepspeed_config(config())
    assert json.loads(as_text(found)) == found


# ---------------------------------------------------------------------------- a JSON of the user's


def test_what_the_user_adds_is_added_and_what_we_filled_in_gives_way() -> None:
    theirs = {
        "zero_optimization": {"stage": 3, "reduce_bucket_size": 7, "offload_optimizer": {"device": "none"}},
        "optimizer": {"params": {"lr": "auto", "torch_adam": False}},
        "train_batch_size": 64,
        "tensor_parallel": {"autotp_size": 1},
        "comms_logger": {"enabled": True},
        "tags": {"a.b": 1},
        "empty": {},
    }
    found = deepspeed_config(config(deepspeed=theirs))
    plain = deepspeed_config(config())
    assert found["zero_optimization"] == {**plain["zero_optimization"], "reduce_bucket_size": 7}
    assert found["optimizer"]["params"] == {**plain["optimizer"]["params"], "torch_adam": False}
    assert (found["comms_logger"], found["tags"]) == ({"enabled": True}, {"a.b": 1})
    assert set(found) == {*plain, "comms_logger", "tags"}


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ({"zero_optimization": {"stage": 2}}, "zero_optimization.stage is 2 there, but 3 by zero.stage"),
        ({"optimizer": {"params": {"lr": 1e-4}}}, "optimizer.params.lr is 0.0001 there, but 0.0003"),
        ({"optimizer": {"type": "Lamb"}}, "optimizer.type is 'Lamb' there, but 'AdamW'"),
        ({"train_batch_size": 32}, "train_batch_size is 32 there, but 64 by global_batch"),
        ({"train_micro_batch_size_per_gpu": 2}, "is 2 there, but 1 by micro_batch"),
        ({"gradient_accumulation_steps": 2}, "is 2 there, but 64 by global_batch / "),
        ({"gradient_clipping": 0.5}, "gradient_clipping is 0.5 there, but 1.0 by clip"),
        ({"fp16": {"enabled": True}}, "fp16.enabled is True there, but False by precision"),
        ({"zero_optimization": {"offload_param": {"device": "cpu"}}}, "but 'none' by zero.offload_parameters"),
        ({"zero_optimization": {"zero_hpz_partition_size": 8}}, "but 1 by zero.partition_within"),
        ({"tensor_parallel": {"autotp_size": 2}}, "but 1 by parallel.tensor"),
        ({"sequence_parallel_size": 2}, "but 1 by parallel.sequence"),
        ({"checkpoint": {"load_universal": True}}, "but False by what is resumed"),
        ({"zero_optimization": {"cpu_offload": True}}, "old name of zero_optimization.offload_optimizer"),
        ({"bfloat16": {"enabled": True}}, "bfloat16 is the old name of bf16"),
        ({"scheduler": {"type": "WarmupLR", "params": {}}}, "scheduler: the learning rate follows schedule"),
        ({"bf16": True}, "bf16: expected an object, found True"),
        ({"zero_optimization": True}, "zero_optimization: expected an object, found True"),
        ({"zero_optimization": {"stage": {"a": 1}}}, "zero_optimization.stage: expected a value, found an object"),
    ],
)
def test_a_contradiction_names_both_values(theirs: dict[str, Any], said: str) -> None:
    assert said in refused(theirs)


def test_all_contradictions_are_said_at_once() -> None:
    message = refused({"zero_optimization": {"stage": 1}, "gradient_clipping": 2})
    assert "zero.stage" in message
    assert "clip" in message


def test_a_file_is_read_and_named(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"zero_optimization": {"sub_group_size": 5}}', encoding="utf-8")
    assert deepspeed_config(config(deepspeed=str(path)))["zero_optimization"]["sub_group_size"] == 5
    path.write_text('{"zero_optimization": {"stage": 1}}', encoding="utf-8")
    assert str(path) in refused(str(path))


@pytest.mark.parametrize(
    ("text", "said"), [("[]", "expected an object"), ("{", "not JSON"), ("[" * 100_000, "not JSON")]
)
def test_a_file_that_is_no_json_object_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "ds.json"
    path.write_text(text, encoding="utf-8")
    assert said in refused(str(path))


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    assert "No such file" in refused(str(tmp_path / "none.json"))


def test_a_world_that_does_not_divide_the_batch_is_refused() -> None:
    with pytest.raises(ConfigError, match="2, 4, 8, 16 would do"):
        deepspeed_config(config(), 5)


# ---------------------------------------------------------------------------- DeepSpeed's own parser


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_deepspeed_reads_what_was_meant(stage: int, precision: str) -> None:
    parser = pytest.importorskip("deepspeed.runtime.config", reason="deepspeed is not installed")
    # 63 sequences: outside of a process group DeepSpeed takes the world to be 1.
    chosen = config(zero={"stage": stage}, precision=precision, global_batch=63, micro_batch=7, clip=0.5)
    read = parser.DeepSpeedConfig(deepspeed_config(chosen, 1, "cpu"))
    assert (read.train_batch_size, read.gradient_accumulation_steps) == (63, 9)
    assert (int(read.zero_optimization_stage), read.gradient_clipping) == (stage, 0.5)
    assert (read.float16_config.enabled, read.bfloat16_config.enabled) == (precision == "fp16", precision == "bf16")
    assert read.optimizer_name == "adamw"


def test_deepspeed_reads_offload_and_parallel_as_meant() -> None:
    parser = pytest.importorskip("deepspeed.runtime.config", reason="deepspeed is not installed")
    zero = {"offload_optimizer": "cpu", "offload_parameters": "nvme", "nvme_path": "/nvme", "quantize_weights": True}
    chosen = config(zero=zero, parallel={"tensor": 2}, workers=8)
    read = parser.DeepSpeedConfig(deepspeed_config(chosen, largest_parameter=2 * 10**8))
    assert read.zero_config.offload_optimizer.device == "cpu"
    assert (read.zero_config.offload_param.device, read.zero_config.offload_param.buffer_size) == ("nvme", 2 * 10**8)
    assert (read.zero_config.zero_quantized_weights, read.tensor_parallel_config.autotp_size) == (True, 2)
