"""The run under Ray Train: a worker is lost, and the end is the same."""

from pathlib import Path
from typing import Any

import pytest

from taojin.core.errors import ConfigError, FrozenPlanError, InputError, RunError
from taojin.core.storage import Folder
from taojin.train import launch
from taojin.train.config import TrainConfig
from tests.train_runs import mortal_worker, run_values, run_workers

for needed in ("torch", "deepspeed", "transformers", "ray.train"):
    pytest.importorskip(needed, reason=f"{needed} comes with the extra `train`")

COMMON: dict[str, Any] = {"steps": 8, "save_every": 2, "micro_batch": 2, "workers": 2, "asynchronous_save": False}


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_a_lost_worker_changes_nothing_but_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(launch, "worker", mortal_worker)
    expected, _ = run_workers(run_values(tmp_path, "expected", **COMMON), 2)
    notes: list[str] = []
    outcome = launch.launch(TrainConfig(**run_values(tmp_path, "lost", **COMMON)), notes.append)
    assert (tmp_path / "lost/killed").exists()
    assert (outcome["first_step"], outcome["steps"], outcome["reason"]) == (4, 8, "finished")
    assert outcome["loss"] == expected[8]


def test_an_error_of_ours_ends_the_run_and_reaches_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray starts all workers again when one raises; the second time they see why, and return."""
    config = TrainConfig(**run_values(tmp_path, "other", steps=2, workers=2, micro_batch=2))
    starts: list[str] = []

    def fit(config: TrainConfig, run: Folder, start: str) -> str:
        values = {"config": config.model_dump(mode="json", exclude_unset=True), "start": start}
        starts.append(start)
        with pytest.raises(FrozenPlanError):
            launch.worker(values)
        launch.worker(values)
        return ""

    Folder(config.output).write_json("run.json", {"config": {"seed": 7}})
    monkeypatch.setattr(launch, "_fit", fit)
    monkeypatch.setattr(launch, "_connect", lambda *_: None)
    with pytest.raises(FrozenPlanError, match="seed: 7 then, 0 now"):
        launch.launch(config)
    assert len(starts) == 1


def test_workers_that_fail_without_progress_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_fit", lambda *_: "the node is gone")
    monkeypatch.setattr(launch, "_connect", lambda *_: None)
    with pytest.raises(RunError, match="the workers failed 3 times since step 0; the last time: the node is gone"):
        launch.launch(TrainConfig(**run_values(tmp_path, "doomed", **COMMON)), lambda _: None)


def test_what_cannot_run_is_refused_before_ray_starts(tmp_path: Path) -> None:
    values = run_values(tmp_path, "refused", workers=3)
    with pytest.raises(ConfigError, match="does not go into 3 workers"):
        launch.launch(TrainConfig(**values))
    values = run_values(tmp_path, "refused", workers=2, model=str(tmp_path))
    with pytest.raises(InputError, match=r"model: .*config.json: No such file"):
        launch.launch(TrainConfig(**values))
    assert not (tmp_path / "refused").exists()


def test_the_line_of_a_step_says_how_far_and_how_long() -> None:
    status = {"step": 120, "steps": 5000, "loss": 3.25, "tokens_per_second": 5120.0, "step_seconds": 1.5}
    assert launch.line(status) == "step 120/5,000 · loss 3.2500 · 5,120 tokens/s · 2 h 02 min left"
