"""The demo's last part: what trains, what it shows, and what happens where it cannot; and the GPU script's dry run."""

import contextlib
import io
import json
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
from rich.cells import cell_len
from rich.console import Console

from taojin import demo, demo_tokenizer, demo_training
from taojin.core.errors import RunError
from taojin.core.storage import Folder
from taojin.demo_report import print_training
from taojin.demo_training import NEEDED, Row, Trained, rows_of, train_small
from taojin.train.config import load_config
from taojin.train.shape import shape_of
from taojin.train.tracking import read_metrics
from tests.jobs import ENVIRONMENT, ROOT
from tests.train_runs import TINY_LLAMA

needs_extra = pytest.mark.skipif(any(find_spec(name) is None for name in NEEDED), reason="needs the extra `train`")
FALLING = [Row(10, 6.0, 5.5, 900.0, 12.0), Row(20, 5.0, 4.75, 1100.0, 21.5)]


def trained_with(rows: list[Row]) -> Trained:
    return Trained(shape_of(TINY_LLAMA, "model.json"), rows, "这家酒店的", "房间\x1b[31m")


class Shown(NamedTuple):
    status: int
    out: str
    folder: Path


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """The whole demo on a little text, with three steps; the small tokenizer makes them ten times as fast."""
    folder = tmp_path_factory.mktemp("demo") / "output"

    def trained_here(clean: Path, tokens: Path) -> tuple[Path, str]:
        demo_tokenizer.train(clean, tokens / "tokenizer.json")
        return tokens / "tokenizer.json", "a small one"

    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        patch.setattr(demo, "find_tokenizer", trained_here)
        patch.setenv("OMP_NUM_THREADS", "1")
        flags = ["--limit-mb", "1", "--num-cpus", "0", "--train-steps", "3"]
        status = demo.main(["--folder", str(folder), *flags])
    return Shown(status, out.getvalue(), folder)


@needs_extra
def test_the_demo_trains_on_its_pairs_and_its_loss_falls(shown: Shown) -> None:
    assert shown.status == 0
    metrics = read_metrics(Folder(str(shown.folder / "train" / "run")))
    assert [*metrics] == [1, 2, 3]
    assert metrics[3]["validation_loss"] < metrics[1]["validation_loss"]
    for numbers in metrics.values():
        assert f"{numbers['loss']:.3f}" in shown.out
        assert f"{numbers['validation_loss']:.3f}" in shown.out


@needs_extra
def test_what_the_exported_model_writes_is_shown(shown: Shown) -> None:
    words = json.loads((shown.folder / "train" / "continuation.json").read_text())
    assert (shown.folder / "train" / "model" / "model.safetensors").is_file()
    assert words["prompt"] == demo_training.PROMPT
    assert words["continuation"] == demo_training.continuation(shown.folder / "train" / "model", words["prompt"])
    assert f"{words['prompt']} → " in shown.out


@needs_extra
def test_the_run_stands_as_a_yaml_file_that_can_be_run_from_anywhere(shown: Shown) -> None:
    config = load_config(str(shown.folder / "train" / "train.yaml"))
    for path in (config.model, config.output, config.tokenizer, f"{config.data[0].prefix}.bin"):
        assert path is not None
        assert Path(path).is_absolute()
        assert Path(path).exists()
    assert f"taojin train --plan --config {shown.folder / 'train' / 'train.yaml'}" in shown.out


def test_a_row_is_a_part_of_the_run_up_to_a_validation() -> None:
    def numbers(loss: float, seconds: float, **validation: float) -> dict[str, float]:
        return {"loss": loss, "step_seconds": seconds, **validation}

    metrics = {
        1: numbers(9.0, 2.0),
        2: numbers(8.0, 2.0, validation_loss=8.5),
        3: numbers(7.0, 1.0, validation_loss=7.5),
    }
    assert rows_of(metrics) == [Row(2, 8.5, 8.5, 512.0, 4.0), Row(3, 7.0, 7.5, 1024.0, 5.0)]


@pytest.mark.parametrize("rows", [FALLING[::-1], [FALLING[0], FALLING[1]._replace(validation_loss=5.5)], FALLING[:1]])
def test_a_loss_that_does_not_fall_is_said_and_fails_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[Row]
) -> None:
    monkeypatch.setattr(demo, "missing", list)
    monkeypatch.setattr(demo, "train_small", lambda *_: trained_with(rows))
    console = Console(file=io.StringIO(), width=100)
    assert demo.train_on_pairs(console, tmp_path / "train", tmp_path / "tokens", 20) == 1
    assert isinstance(console.file, io.StringIO)
    assert "The loss did not fall" in console.file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_and_what_a_model_writes_cannot_command_the_terminal(width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    print_training(console, trained_with(FALLING))
    assert isinstance(console.file, io.StringIO)
    output = console.file.getvalue()
    assert "\x1b" not in output
    assert "did not fall" not in output
    rows = [line.split() for line in output.splitlines() if line.strip().startswith(("10 ", "20 "))]
    assert rows == [["10", "6.000", "5.500", "900", "12.0", "s"], ["20", "5.000", "4.750", "1,100", "21.5", "s"]]
    assert all(cell_len(line) <= width for line in output.splitlines()[:6])


def test_without_the_extra_one_line_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_training, "find_spec", lambda name: None if name == "deepspeed" else name)
    console = Console(file=io.StringIO(), width=80)
    assert demo.train_on_pairs(console, tmp_path / "train", tmp_path / "tokens", 20) == 0
    assert isinstance(console.file, io.StringIO)
    (line,) = console.file.getvalue().split("\n")[:-2]
    assert "deepspeed not installed" in line
    assert "make demo TRAIN=1" in line
    assert not (tmp_path / "train").exists()


def test_a_training_that_fails_is_a_run_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        demo_training, "write_run", lambda folder, *_: (folder / "train.yaml").write_text("steps: many")
    )
    with pytest.raises(RunError, match="ended with status 2"):
        train_small(tmp_path / "train", tmp_path / "tokens", 20)
    assert capfd.readouterr().err.startswith("taojin demo: ")


@pytest.mark.skipif(shutil.which("make") is None, reason="make")
@pytest.mark.parametrize(("setting", "extras"), [([], "[demo]"), (["TRAIN=1"], "[demo,train]")])
def test_make_demo_installs_what_trains_only_when_told_to(tmp_path: Path, setting: list[str], extras: str) -> None:
    command = ["make", "--dry-run", "demo", f"VENV={tmp_path}/venv", *setting]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f"--editable '.{extras}'" in said
    assert "--constraint constraints.txt" in said


# ---------------------------------------------------------------------------- bench/gpu_train.sh


def gpu_script(**environment: str) -> subprocess.CompletedProcess[str]:
    values = {**ENVIRONMENT, "OMP_NUM_THREADS": "1", **environment}
    command = ["bash", "bench/gpu_train.sh"]
    return subprocess.run(command, cwd=ROOT, env=values, capture_output=True, text=True, check=False)


@needs_extra
def test_the_gpu_script_trains_and_resumes_in_its_dry_run() -> None:
    ended = gpu_script(TAOJIN_DRY="1")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "PASS  sdpa-plain: resumed from step 2" in ended.stdout
    assert "FAIL" not in ended.stdout


@needs_extra
def test_the_gpu_script_refuses_a_machine_without_a_gpu_in_one_line() -> None:
    ended = gpu_script(CUDA_VISIBLE_DEVICES="")
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "no CUDA device" in ended.stderr
