"""What a train.yaml may say, and what is said to the one who wrote it wrong."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taojin.core.errors import ConfigError
from taojin.train.config import TrainConfig, absolute, load_config, read_blend
from taojin.train.sections import amount

BASE: dict[str, Any] = {"model": "m.json", "data": "/data/zh", "output": "/runs/a", "steps": 100}


def refused(**changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**{**BASE, **changes})
    message = str(caught.value)
    assert "\n" not in message
    return message


def written(folder: Path, text: str) -> str:
    path = folder / "train.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


# ---------------------------------------------------------------------------- reading


def test_a_yaml_file_becomes_a_config(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
model: qwen.json
data: [{prefix: /data/zh, weight: 1}, {prefix: /data/code, weight: 0.5}]
tokens: 20B
sequence-length: 4096
global_batch: 512
schedule: {kind: wsd, warmup: 200}
zero: {offload-optimizer: cpu}
parallel: {tensor: 2}
output: s3://bucket/runs/zh
""",
    )
    config = load_config(path)
    assert config.pairs() == ([("/data/zh", 1.0), ("/data/code", 0.5)], [])
    assert config.total_steps() == 20_000_000_000 // (512 * 4096)
    assert (config.schedule.kind, config.schedule.warmup, config.zero.offload_optimizer) == ("wsd", 200, "cpu")
    assert (config.zero.stage, config.parallel.tensor) == (3, 2)


def test_wandb_can_be_off_though_yaml_reads_that_as_false(tmp_path: Path) -> None:
    path = written(tmp_path, "model: m.json\ndata: /data/zh\noutput: out\nsteps: 10\ntracking: {wandb: off}\n")
    assert load_config(path).tracking.wandb == "off"
    assert load_config(path, ["tracking.wandb=off"]).tracking.wandb == "off"


def test_settings_go_over_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "{model: m.json, data: /a, output: /o, steps: 5, zero: {stage: 2}}")
    config = load_config(path, ["zero.stage=1", "parallel.tensor=4", "steps=7", "optimizer.learning-rate=1.0e-5"])
    assert (config.zero.stage, config.parallel.tensor, config.steps) == (1, 4, 7)
    assert config.optimizer.learning_rate == 1e-5


@pytest.mark.parametrize(
    ("setting", "said"),
    [("steps", "KEY=VALUE"), ("=3", "KEY=VALUE"), ("model.x=1", "no keys"), ("steps=[", "not a YAML value")],
)
def test_a_setting_that_cannot_be_read_is_named(tmp_path: Path, setting: str, said: str) -> None:
    path = written(tmp_path, "{model: m.json, data: /a, output: /o, steps: 5}")
    with pytest.raises(ConfigError, match=said):
        load_config(path, [setting])


def test_keys_of_deepspeeds_own_json_are_left_alone(tmp_path: Path) -> None:
    path = written(tmp_path, "{model: m.json, data: /a, output: /o, steps: 5, deepspeed: {a-b: 1}}")
    assert load_config(path).deepspeed == {"a-b": 1}


def test_a_config_comes_back_from_its_own_json() -> None:
    config = TrainConfig(**BASE, schedule={"warmup": 0.5, "decay": 3}, zero={"stage": 1})
    assert TrainConfig(**json.loads(config.model_dump_json())) == config


def test_what_runs_elsewhere_is_told_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    values: dict[str, Any] = {
        "data": [{"prefix": "a", "weight": 2.0}, {"prefix": "s3://b/c", "weight": 1.0}],
        "validation": "v",
        "tokenizer": "t",
        "output": "../runs",
        "eval_every": 1,
        "choices": {"files": ["ceval/val"]},
    }
    found = absolute(TrainConfig(**{**BASE, **values}))
    assert [(source.prefix, source.weight) for source in found.data] == [(f"{tmp_path}/a", 2.0), ("s3://b/c", 1.0)]
    assert [source.prefix for source in found.validation] == [f"{tmp_path}/v"]
    assert found.output == str(tmp_path.parent / "runs")
    assert (found.model, found.tokenizer) == (f"{tmp_path}/m.json", f"{tmp_path}/t")
    assert found.choices.files == (f"{tmp_path}/ceval/val",)
    chosen = TrainConfig(**{**BASE, "model": "/m.json"})
    assert absolute(chosen) == chosen
    assert absolute(chosen).model_fields_set == chosen.model_fields_set


def test_importing_the_config_imports_no_framework() -> None:
    code = "import sys, taojin.train.config, taojin.train.zero; print(sorted({'torch', 'ray'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# ---------------------------------------------------------------------------- amounts


@pytest.mark.parametrize(
    ("text", "number"),
    [("20B", 20 * 10**9), ("1.5T", 1_500_000_000_000), ("1e10", 10**10), ("200亿", 2 * 10**10), ("3 k", 3000)],
)
def test_amounts_may_have_units(text: str, number: int) -> None:
    assert amount(text) == number


@given(st.integers(1, 10**18))
def test_an_amount_is_exact(number: int) -> None:
    assert amount(str(number)) == number
    assert amount(f"{number:_}") == number
    assert amount(f"{number}K") == number * 1000


@pytest.mark.parametrize("text", ["", "B", "-3", "1.5", "20X", "1e99", "nan", "0.0001K", "1" * 5000 + "x"])
def test_an_amount_that_is_none_is_refused(text: str) -> None:
    assert "tokens" in refused(steps=None, tokens=text)


# ---------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"foo": 1}, "foo: no such key"),
        ({"micro_bach": 1}, "did you mean micro_batch"),
        ({"zero": {"stag": 1}}, "zero.stag: no such key; did you mean stage?"),
        ({"data": [{"prefix": "a", "wight": 1}]}, "data.0.wight: no such key; did you mean weight?"),
        ({"zero": {"stage": 4}}, "zero.stage: input should be less than or equal to 3, found 4"),
        ({"zero": 3}, "zero: expected a mapping of its keys, found 3"),
        ({"zero": None}, "zero: expected a mapping of its keys, found None"),
        ({"choices": {"files": "ceval/val"}}, "choices.files: expected a list, found 'ceval/val'"),
        ({"data": 5}, "data: expected a list, found 5"),
        ({"steps": True}, "steps: expected a number, found True"),
        ({"precision": "bf8"}, "precision: input should be 'fp32', 'bf16' or 'fp16', found 'bf8'"),
        ({"schedule": {"warmup": 1.5}}, "schedule.warmup: expected steps (an integer) or a share"),
        ({"schedule": {"warmup": 1.0}}, "schedule.warmup: expected steps (an integer) or a share"),
        ({"schedule": {"decay": -1}}, "schedule.decay"),
        ({"sequence_length": "many"}, "sequence_length: expected a number such as"),
        ({"steps": None}, "one of tokens, steps, epochs; found none"),
        ({"epochs": 1}, "found steps and epochs"),
        ({"steps": None, "tokens": 1000}, "less than one step"),
        ({"data": ()}, "either data (prefixes of pairs) or blend"),
        ({"blend": "b.json"}, "either data (prefixes of pairs) or blend"),
        ({"data": None, "blend": "b.json"}, "data:"),
        ({"data": ["a", "a"]}, "a is named twice"),
        ({"data": [{"prefix": "a", "weight": 0}]}, "data.0.weight: input should be greater than 0"),
        ({"validation": "v", "validation_share": 0.1}, "validation_share has no meaning"),
        ({"eval_every": 10}, "eval_every needs validation pairs"),
        ({"budget": 100}, "budget needs price_per_device_hour"),
        ({"zero": {"stage": 2, "offload_parameters": "cpu"}}, "offload_parameters needs stage 3"),
        ({"zero": {"stage": 2, "partition_within": 8}}, "partition_within needs stage 3"),
        ({"zero": {"stage": 0, "offload_optimizer": "cpu"}}, "offload_optimizer needs stage 1, 2 or 3"),
        ({"zero": {"offload_optimizer": "nvme"}}, "nvme_path go together"),
        ({"zero": {"nvme_path": "/nvme"}}, "nvme_path go together"),
        ({"optimizer": {"learning_rate": float("inf")}}, "optimizer.learning_rate"),
        ({"optimizer": {"beta2": 1}}, "optimizer.beta2"),
        ({"workers": 0}, "workers: input should be greater than or equal to 1"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(changes: dict[str, Any], said: str) -> None:
    assert said in refused(**changes)


def test_all_wrong_keys_are_said_at_once() -> None:
    message = refused(zero={"stage": 4}, workers=0, foo=1)
    assert all(key in message for key in ("zero.stage", "workers", "foo"))


# ---------------------------------------------------------------------------- length


def test_a_budget_of_tokens_is_never_overdrawn() -> None:
    config = TrainConfig(**{**BASE, "steps": None}, tokens=1_000_000, sequence_length=100, global_batch=30)
    assert config.total_steps() == 333
    assert config.total_steps() * config.tokens_per_step <= 1_000_000


@given(st.integers(1, 10**12), st.integers(1, 4096), st.integers(1, 40))
def test_epochs_are_counted_without_rounding(samples: int, batch: int, tenths: int) -> None:
    config = TrainConfig(**{**BASE, "steps": None, "global_batch": batch, "epochs": tenths / 10})
    expected = samples * tenths // (10 * batch)
    if expected:
        assert config.total_steps(samples) == expected
    else:
        with pytest.raises(ConfigError, match="less than one step"):
            config.total_steps(samples)


def test_epochs_need_the_length_of_the_data() -> None:
    with pytest.raises(ConfigError, match="length of the data"):
        TrainConfig(**{**BASE, "steps": None}, epochs=1).total_steps()


# ---------------------------------------------------------------------------- what resumes


def test_a_run_resumes_on_other_workers_but_not_on_other_tokens() -> None:
    config = TrainConfig(**BASE)
    # Files may have moved: what is in them is in the run's data and model, not in the config.
    elsewhere = TrainConfig(
        **{**BASE, "output": "/b", "data": "/moved/zh", "model": "/moved/m.json"},
        workers=8,
        micro_batch=4,
        zero={"stage": 1},
        save_every=7,
        price_per_device_hour=2.1,
    )
    assert elsewhere.frozen_part() == config.frozen_part()
    for changes in (
        {"seed": 1},
        {"sequence_length": 8},
        {"global_batch": 8},
        {"precision": "fp32"},
    ):
        assert TrainConfig(**{**BASE, **changes}).frozen_part() != config.frozen_part()


def test_the_frozen_part_is_json() -> None:
    frozen = TrainConfig(**BASE).frozen_part()
    assert json.loads(json.dumps(frozen)) == frozen


# ---------------------------------------------------------------------------- blends


def test_a_blend_file_names_the_pairs_of_both_splits(tmp_path: Path) -> None:
    path = tmp_path / "zh.blend.json"
    path.write_text(json.dumps({"train": ["0.7", "/a", "0.3", "/b"], "valid": ["/v"], "test": None}), encoding="utf-8")
    config = TrainConfig(**{**BASE, "data": ()}, blend=str(path))
    assert config.pairs() == ([("/a", 0.7), ("/b", 0.3)], [("/v", 1.0)])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0.7 /a", "expected JSON"),
        ("[]", "under the key train"),
        ('{"train": null}', "under the key train"),
        ('{"train": "/a"}', "expected a list"),
        ('{"train": ["0.5", "/a", "/b"]}', "3 entries"),
        ('{"train": ["/a", "0.5"]}', "where a weight stands"),
        ('{"train": ["0", "/a"]}', "above 0"),
        ('{"train": ["nan", "/a"]}', "above 0"),
    ],
)
def test_a_blend_file_that_is_none_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "zh.blend.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        read_blend(str(path))


def test_a_missing_blend_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_blend(str(tmp_path / "none.json"))
