"""`taojin train` as a user has it: the run, its plan, its way back, and one line for whatever is wrong."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.jobs import Outcome, taojin
from tests.train_runs import TINY_LLAMA, countable_pair, run_values

for needed in ("torch", "deepspeed", "transformers"):
    pytest.importorskip(needed, reason=f"{needed} comes with the extra `train`")


def config_of(folder: Path, name: str, **values: Any) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(run_values(folder, name, **values)))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("training")


@pytest.fixture(scope="module")
def first(folder: Path) -> tuple[Path, Outcome]:
    """A whole run of four steps, by its YAML file."""
    done = taojin("train", "--config", config_of(folder, "first", steps=4, save_every=2), "--json")
    return folder / "first", done


def test_a_run_from_its_file_tells_how_it_ended(first: tuple[Path, Outcome]) -> None:
    output, done = first
    assert done.status == 0, done.err
    told = json.loads(done.out)
    assert (told["steps"], told["total_steps"], told["reason"]) == (4, 4, "finished")
    assert (output / "checkpoints/latest").read_text() == "step-00000004\n"


def test_resume_needs_the_folder_alone(first: tuple[Path, Outcome], folder: Path) -> None:
    output = folder / "moved"
    shutil.copytree(first[0], output)
    shutil.rmtree(output / "checkpoints/step-00000004")
    done = taojin("train", "--resume", output, "--json")
    assert done.status == 0, done.err
    told = json.loads(done.out)
    assert (told["first_step"], told["steps"]) == (2, 4)
    assert told["loss"] == json.loads(first[1].out)["loss"]


def test_resume_takes_settings_that_do_not_change_the_result(first: tuple[Path, Outcome], folder: Path) -> None:
    output = folder / "smaller"
    shutil.copytree(first[0], output)
    shutil.rmtree(output / "checkpoints/step-00000004")
    assert taojin("train", "--resume", output, "--set", "micro_batch=2", "--json").status == 0
    taojin("train", "--resume", output, "--set", "steps=5").refuses(2, "another configuration", "steps: 4 then, 5 now")


def test_a_run_of_moved_files_resumes(first: tuple[Path, Outcome], folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    shutil.copytree(first[0], output)
    shutil.rmtree(output / "checkpoints/step-00000004")
    for name in ("pair.bin", "pair.idx", "model.json"):
        shutil.copy(folder / name, tmp_path / name)
    places = (f"model={tmp_path}/model.json", f"data=[{tmp_path}/pair]")
    done = taojin("train", "--resume", output, "--set", *places, "--json")
    assert done.status == 0, done.err
    assert json.loads(done.out)["first_step"] == 2


def test_a_plan_starts_nothing(folder: Path) -> None:
    path = config_of(folder, "planned", device_name="H100", price_per_device_hour=14)
    done = taojin("train", "--config", path, "--plan")
    assert done.status == 0, done.err
    for word in ("optimizer", "activations", "peak", "yuan", "MFU"):
        assert word in done.out
    shown = json.loads(done.out[done.out.index("\n{") :])
    assert shown["zero_optimization"]["stage"] == 3
    told = json.loads(taojin("train", "--config", path, "--plan", "--json").out)
    assert told["time"]["money"] > 0
    assert told["deepspeed"] == shown
    assert not (folder / "planned").exists()


def test_ways_that_exclude_each_other_are_named(folder: Path) -> None:
    taojin("train").refuses(2, "expected one of --config train.yaml, --resume RUN", "found none")
    taojin("train", "--config", "a.yaml", "--resume", "run").refuses(2, "found --config and --resume")
    taojin("train", "--resume", folder / "nowhere").refuses(2, "nowhere", "config.json", "--config")
    taojin("train", "--export", folder / "first").refuses(2, "--export needs --output")


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"model": "{folder}/small-words.json"}, ("pair", "id", "vocabulary")),
        ({"data": ["{folder}/short"], "sequence_length": 128}, ("short", "tokens")),
        ({"workers": 3}, ("workers", "3")),
        ({"data": ["{folder}/nowhere"]}, ("nowhere",)),
        ({"zero": {"stage": 4}}, ("zero.stage",)),
        ({"parallel": {"pipeline": 2}}, ("pipeline", "ZeRO-3")),
        ({"budget": 5}, ("price_per_device_hour",)),
        ({"tracking": {"wandbb": "off"}}, ("wandb",)),
    ],
)
def test_wrong_input_is_one_line_and_leaves_nothing(
    folder: Path, changes: dict[str, Any], parts: tuple[str, ...]
) -> None:
    (folder / "small-words.json").write_text(json.dumps({**TINY_LLAMA, "vocab_size": 300, "eos_token_id": 299}))
    if not (folder / "short.bin").exists():
        countable_pair(folder / "short", documents=1)
    text = yaml.safe_dump(run_values(folder, "wrong", **changes)).replace("{folder}", str(folder))
    path = folder / "wrong.yaml"
    path.write_text(text)
    taojin("train", "--config", path).refuses(2, *parts)
    assert not (folder / "wrong/checkpoints").exists()
