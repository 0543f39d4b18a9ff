"""The run under Ray Train: a worker is lost, and the end is the same."""

import contextlib
import json
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import ray

from taojin.core.errors import ConfigError, FrozenPlanError, InputError, OutputError, RunError
from taojin.core.storage import Folder
from taojin.core.tasks import LOOPBACK
from taojin.train import elastic, launch
from taojin.train.config import TrainConfig
from tests.train_runs import mortal_worker, run_values

for needed in ("torch", "deepspeed", "transformers", "ray.train"):
    pytest.importorskip(needed, reason=f"{needed} comes with the extra `train`")

COMMON: dict[str, Any] = {"steps": 8, "save_every": 4, "micro_batch": 2, "workers": 2, "asynchronous_save": False}


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_a_lost_worker_changes_nothing_but_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(launch, "worker", mortal_worker)
    notes: list[str] = []
    # Workers run in folders of their own: a relative path is the user's.
    monkeypatch.chdir(tmp_path)
    module = sys.modules[mortal_worker.__module__]
    # They may not find the tests there.
    ray.cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    places = {"model": "model.json", "data": "pair", "output": "lost"}
    interrupted = signal.getsignal(signal.SIGINT)
    try:
        outcome = launch.launch(TrainConfig(**{**run_values(tmp_path, "lost", **COMMON), **places}), notes.append)
    finally:
        ray.cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]
    assert signal.getsignal(signal.SIGINT) is interrupted, "Ctrl-C is the user's, too"
    assert (outcome["first_step"], outcome["steps"], outcome["reason"]) == (4, 8, "finished")
    rows = [json.loads(row) for row in (tmp_path / "lost/losses").read_text().splitlines()]
    assert [step for step, _ in rows] in ([1, 2, 3, 4, 5, 6, 7, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 5, 6, 7, 8])
    steps, before = dict(map(tuple, rows[-4:])), dict(map(tuple, rows[:-4]))
    assert all(steps[step] == before[step] for step in before.keys() & steps.keys()), "bit for bit"
    assert any("starting again from step 4" in note for note in notes)


@pytest.mark.ray
def test_places_that_a_failed_start_forgot_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    from ray.util.placement_group import placement_group

    ray.init(address="local", num_cpus=1, include_dashboard=False, _node_ip_address=LOOPBACK)
    try:
        kept = placement_group([{"memory": 1}])
        with elastic.returning_places():
            forgotten = placement_group([{"CPU": 1}])
            assert forgotten.wait(30)
            assert elastic.free_places("CPU") == 0
        assert placement_group([{"CPU": 1}]).wait(30)
        assert kept.wait(30)
    finally:
        ray.shutdown()


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_connect", lambda *_: None)
    monkeypatch.setattr(launch, "on_gpus", lambda _: False)
    monkeypatch.setattr(launch, "heeding_preemption", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(elastic, "free_places", lambda _: 2)


@pytest.mark.usefixtures("without_ray")
def test_an_error_of_ours_ends_the_run_and_reaches_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainConfig(**run_values(tmp_path, "other", steps=2, workers=2, micro_batch=2))
    starts: list[str] = []

    def fit(config: TrainConfig, run: Folder, start: str, workers: int) -> str:
        values = {"config": config.model_dump(mode="json", exclude_unset=True), "start": start}
        starts.append(start)
        with pytest.raises(FrozenPlanError):
            launch.worker(values)
        return "worker 0 failed"

    Folder(config.output).write_json("run.json", {"config": {"seed": 7}})
    monkeypatch.setattr(launch, "_fit", fit)
    with pytest.raises(FrozenPlanError, match="seed: 7 then, 0 now"):
        launch.launch(config)
    assert len(starts) == 1


@pytest.mark.usefixtures("without_ray")
def test_workers_that_fail_without_progress_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_fit", lambda *_: "the node is gone")
    with pytest.raises(RunError, match="the workers failed 3 times since step 0; the last time: the node is gone"):
        launch.launch(TrainConfig(**run_values(tmp_path, "doomed", **COMMON)), lambda _: None)


@pytest.mark.ray
def test_more_gpus_than_the_machine_has_are_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    config = TrainConfig(**run_values(tmp_path, "many", workers=2, micro_batch=2, device="cuda"))
    with pytest.raises(ConfigError, match=r"workers: 2 need a GPU each, this machine has [01]; lower workers"):
        launch.launch(config)


def test_a_cluster_that_does_not_answer_is_named_at_once(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        for address in (f"127.0.0.1:{nobody.getsockname()[1]}", f"ray://127.0.0.1:{nobody.getsockname()[1]}"):
            with pytest.raises(ConfigError, match=rf"address: {address}: expected a Ray cluster, .* nobody answers"):
                launch.launch(TrainConfig(**run_values(tmp_path, "away", address=address)))


def test_an_output_that_is_no_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/below"):
        with pytest.raises(OutputError, match=r"expected a folder, found that .*/file is a file"):
            launch.launch(TrainConfig(**run_values(tmp_path, place)))


def test_what_cannot_run_is_refused_before_ray_starts(tmp_path: Path) -> None:
    values = run_values(tmp_path, "refused", workers=3)
    with pytest.raises(ConfigError, match="does not go into 3 workers"):
        launch.launch(TrainConfig(**values))
    values = run_values(tmp_path, "refused", workers=2, model=str(tmp_path))
    with pytest.raises(InputError, match=r"model: .*config.json: No such file"):
        launch.launch(TrainConfig(**values))
    assert not (tmp_path / "refused").exists()
