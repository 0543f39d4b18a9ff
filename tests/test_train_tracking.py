"""Where the numbers of a run go, and that they are there after whatever ended it."""

import errno
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from taojin.core.errors import ConfigError
from taojin.core.storage import Folder
from taojin.train import tracking
from taojin.train.sections import Tracking
from taojin.train.tracking import Tracker, last_numbers, read_metrics, require_packages, shown_name
from tests.jobs import ENVIRONMENT, ROOT

OFF = Tracking(tensorboard=False, wandb="off")
BOARD = Tracking(tensorboard=True, wandb="off")
WANDB = Tracking(tensorboard=False, wandb="offline")


def folder_of(path: Path) -> Folder:
    return Folder(str(path))


def start(path: Path, first: int, rows: dict[int, dict[str, float]], *, wanted: Tracking = OFF) -> list[str]:
    """A start of the run at path; what it said."""
    notes: list[str] = []
    tracker = Tracker(folder_of(path), wanted, first, {"seed": 1}, notes.append)
    for step, numbers in rows.items():
        tracker.write(step, numbers)
    tracker.close()
    return notes


# ---------------------------------------------------------------------------- lines


def test_of_two_lines_of_a_step_the_later_start_counts(tmp_path: Path) -> None:
    start(tmp_path, 0, {1: {"loss": 3.0}, 2: {"loss": 2.0}, 3: {"loss": 9.0}})
    start(tmp_path, 2, {3: {"loss": 1.0}, 4: {"loss": 0.5}})
    # From an earlier checkpoint, as the newest was damaged; and once more before it had saved.
    start(tmp_path, 1, {2: {"loss": 2.5}})
    start(tmp_path, 1, {2: {"loss": 2.6}})
    losses = {step: row["loss"] for step, row in read_metrics(folder_of(tmp_path)).items()}
    assert losses == {1: 3.0, 2: 2.6, 3: 1.0, 4: 0.5}
    assert len(list((tmp_path / "metrics").iterdir())) == 4


def test_a_start_that_has_nothing_to_say_leaves_no_file(tmp_path: Path) -> None:
    start(tmp_path, 0, {})
    assert not (tmp_path / "metrics").exists()


def test_a_line_is_on_disk_when_its_step_is_done(tmp_path: Path) -> None:
    tracker = Tracker(folder_of(tmp_path), OFF, 0, {})
    tracker.write(1, {"loss": 2.0})
    assert read_metrics(folder_of(tmp_path))[1]["loss"] == 2.0
    tracker.close()


def test_a_torn_last_line_is_passed_over(tmp_path: Path) -> None:
    start(tmp_path, 0, {1: {"money": 1.0}, 2: {"money": 2.0}})
    (path,) = (tmp_path / "metrics").iterdir()
    path.write_bytes(path.read_bytes()[:-6])
    assert list(read_metrics(folder_of(tmp_path))) == [1]
    assert last_numbers(folder_of(tmp_path))["money"] == 1.0


def test_numbers_that_are_none_are_null_in_json(tmp_path: Path) -> None:
    start(tmp_path, 0, {1: {"gradient_norm": math.inf, "loss": 2.0}})
    (path,) = (tmp_path / "metrics").iterdir()
    assert json.loads(path.read_text(), parse_constant=pytest.fail)["gradient_norm"] is None
    assert "gradient_norm" not in read_metrics(folder_of(tmp_path))[1]


def test_what_was_spent_is_the_highest_that_any_start_told(tmp_path: Path) -> None:
    assert last_numbers(folder_of(tmp_path)) == {}
    start(tmp_path, 0, {step: {"money": step * 1.0, "device_hours": 0.1, "loss": 2.0} for step in range(1, 2000)})
    start(tmp_path, 500, {501: {"money": 5.0, "step_seconds": 0.5}})
    found = last_numbers(folder_of(tmp_path))
    assert (found["money"], found["device_hours"], found["step_seconds"], found["step"]) == (1999.0, 0.1, 0.5, 501)


def test_what_a_full_disk_did_not_take_is_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    tracker = Tracker(folder_of(tmp_path), OFF, 0, {}, notes.append)
    tracker.write(1, {"loss": 3.0})
    sink: Any = tracker._sinks["metrics"]
    file = sink._file

    class Full:
        def write(self, data: bytes) -> int:
            if file.tell() < 100:
                return int(file.write(data[:10]))
            raise OSError(errno.ENOSPC, "No space left on device")

    sink._file = Full()
    tracker.write(2, {"loss": 2.0})
    tracker.write(3, {"loss": 1.0})
    assert notes == ["metrics: numbers were not written, training goes on: [Errno 28] No space left on device"]
    sink._file = file
    tracker.close()
    assert {step: row["loss"] for step, row in read_metrics(folder_of(tmp_path)).items()} == {1: 3.0, 2: 2.0, 3: 1.0}


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is treated like one of an object store."""
    (tmp_path / "metrics").mkdir()
    monkeypatch.setattr(Folder, "is_local", property(lambda _: False))
    return tmp_path


def test_objects_are_written_whole_at_checkpoints_and_in_parts(objects: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "UPLOAD_LINES", 4)
    tracker = Tracker(folder_of(objects), OFF, 0, {})
    for step in range(1, 7):
        tracker.write(step, {"loss": float(step)})
    assert list(read_metrics(folder_of(objects))) == [1, 2, 3, 4]
    tracker.flush()
    assert list(read_metrics(folder_of(objects))) == [1, 2, 3, 4, 5, 6]
    tracker.write(7, {"loss": 7.0})
    tracker.close()
    start(objects, 5, {6: {"loss": 66.0}})
    losses = {step: row["loss"] for step, row in read_metrics(folder_of(objects)).items()}
    assert losses == {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0, 5: 5.0, 6: 66.0, 7: 7.0}
    assert sorted(path.name for path in (objects / "metrics").iterdir()) == [
        "00001-from-00000000.jsonl",
        "00001-from-00000004.jsonl",
        "00002-from-00000005.jsonl",
    ]


def test_objects_are_written_once_a_minute_too(objects: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "UPLOAD_SECONDS", -1.0)
    tracker = Tracker(folder_of(objects), OFF, 0, {})
    tracker.write(1, {"loss": 1.0})
    assert list(read_metrics(folder_of(objects))) == [1]


def test_what_needs_a_local_output_is_said_to_be_left_out(objects: Path) -> None:
    notes = start(objects, 0, {1: {"loss": 1.0}}, wanted=Tracking())
    assert notes == [f"tensorboard and wandb files need a local output and are left out; {objects}/metrics has all"]
    assert start(objects, 0, {1: {"loss": 1.0}}) == []


# ---------------------------------------------------------------------------- names


def test_charts_stand_in_groups() -> None:
    assert [*map(shown_name, ("loss", "validation_loss", "mfu", "money", "passes.zh/train"))] == [
        "train/loss",
        "validation/loss",
        "speed/mfu",
        "money/spent",
        "data/passes/zh/train",
    ]
    assert shown_name("something_new") == "train/something_new"


# ---------------------------------------------------------------------------- TensorBoard


def test_tensorboard_shows_a_resumed_run_as_one(tmp_path: Path) -> None:
    pytest.importorskip("torch.utils.tensorboard", reason="tensorboard comes with the extra `train`")
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
        EventAccumulator,
    )

    # Killed after step 3, with the checkpoint of step 2.
    start(tmp_path, 0, {1: {"loss": 3.0}, 2: {"loss": 2.0}, 3: {"loss": 9.0}}, wanted=BOARD)
    start(tmp_path, 2, {3: {"loss": 1.0}, 4: {"loss": 0.5}}, wanted=BOARD)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    shown = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert shown == [(1, 3.0), (2, 2.0), (3, 1.0), (4, 0.5)]


# ---------------------------------------------------------------------------- Weights & Biases


def test_a_missing_package_is_a_note_offline_and_an_error_online(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    require_packages(WANDB)
    assert start(tmp_path, 0, {1: {"loss": 1.0}}, wanted=WANDB) == [
        "the package wandb is not installed: its files are left out"
    ]
    assert read_metrics(folder_of(tmp_path))[1]["loss"] == 1.0
    with pytest.raises(ConfigError, match="wandb: online needs the package wandb"):
        require_packages(Tracking(wandb="online"))


def test_what_breaks_in_a_library_costs_its_numbers_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def __init__(self, *_: Any) -> None:
            pass

        def write(self, step: int, numbers: Any) -> None:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

        def flush(self) -> None:
            raise RuntimeError("also broken")

        close = flush

    monkeypatch.setattr(tracking, "_Wandb", Broken)
    assert start(tmp_path, 0, {1: {"loss": 1.0}, 2: {"loss": 2.0}}, wanted=WANDB) == [
        "wandb: numbers were not written, training goes on: [Errno 32] Broken pipe"
    ]
    assert list(read_metrics(folder_of(tmp_path))) == [1, 2]


WORKER = """
import json, os, pathlib, signal, sys, time
from taojin.core.storage import Folder
from taojin.train.sections import Tracking
from taojin.train.tracking import Tracker
import psutil
first, last, ending = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
tracker = Tracker(Folder(sys.argv[1]), Tracking(tensorboard=False), first, {"seed": 1}, lambda note: print(note))
for step in range(first + 1, last + 1):
    tracker.write(step, {"loss": 1.5, "mfu": 0.4})
(service,) = psutil.Process().children()
print(json.dumps([service.pid, service.create_time(), service.cmdline()]), flush=True)
if ending == "killed":
    (file,) = pathlib.Path(sys.argv[1]).glob("wandb/offline-run-*/*.wandb")
    while b"train/loss" not in file.read_bytes():
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)
tracker.close()
"""


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[subprocess.CompletedProcess[str]]]:
    """A run that was killed, and its next start, with offline files alone."""
    for needed in ("wandb", "psutil"):
        pytest.importorskip(needed, reason=f"{needed} comes with the extra `train`")
    path = tmp_path_factory.mktemp("wandb") / "zh 1b"
    home = path.parent / "home"
    done = [
        subprocess.run(
            [sys.executable, "-c", WORKER, str(path), *arguments],
            cwd=ROOT,
            env={**ENVIRONMENT, "HOME": str(home)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        for arguments in (("0", "5", "killed"), ("3", "8", "closed"))
    ]
    return path, done


def test_offline_files_of_all_starts_are_of_one_run(starts: Any) -> None:
    path, (killed, closed) = starts
    assert (killed.returncode, closed.returncode) == (-signal.SIGKILL, 0), (killed.stderr, closed.stderr)
    name = (path / "wandb/id").read_text()
    assert name.startswith("zh-1b-")
    folders = sorted((path / "wandb").glob("offline-run-*"))
    assert [folder.name.partition("-zh")[2] for folder in folders] == [name.removeprefix("zh")] * 2
    for folder in folders:
        assert b"train/loss" in (folder / f"run-{name}.wandb").read_bytes()
    assert list(read_metrics(folder_of(path))) == list(range(1, 9))


def test_offline_files_are_written_without_a_word_or_a_trace_in_the_home(starts: Any) -> None:
    path, ended = starts
    for done in ended:
        assert (len(done.stdout.splitlines()), done.stderr) == (1, "")
    assert not (path.parent / "home").exists()


def test_nothing_is_sent_to_the_makers_of_the_library(starts: Any) -> None:
    for done in starts[1]:
        assert "--no-observability" in json.loads(done.stdout)[2]


def test_no_process_outlives_the_run(starts: Any) -> None:
    import psutil

    for done in starts[1]:
        pid, began, _ = json.loads(done.stdout)
        try:
            service = psutil.Process(pid)
        except psutil.NoSuchProcess:
            continue
        # Unless the number is another process's by now.
        if service.create_time() == began and service.status() != psutil.STATUS_ZOMBIE:
            service.wait(timeout=30)


def test_nothing_of_the_machine_is_in_the_files(starts: Any) -> None:
    path, _ = starts
    node = os.uname().nodename.encode()
    for file in (path / "wandb").glob("offline-run-*/*.wandb"):
        assert node not in file.read_bytes() or len(node) < 4
        assert str(ROOT).encode() not in file.read_bytes()
