"""Runs whose pairs and checkpoints lie on s3://, against SeaweedFS on loopback: saved, kept, resumed and converted."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.fs as pafs
import pytest

from taojin.core import storage
from taojin.core.storage import Folder, Sink
from taojin.train import checkpoint, stop
from taojin.train.config import TrainConfig
from taojin.train.engine import Process, start_process
from taojin.train.loop import Outcome, train
from taojin.train.stop import ask_to_stop, withdraw
from taojin.train.tracking import read_metrics
from tests.s3_server import pytestmark as pytestmark
from tests.s3_server import server_fixture as server_fixture
from tests.s3_server import store
from tests.train_runs import run_values, start_workers

for needed in ("torch", "deepspeed", "transformers"):
    pytest.importorskip(needed, reason=f"{needed} comes with the extra `train`")


class Done(NamedTuple):
    outcome: Outcome
    losses: dict[int, float]
    notes: list[str]


@pytest.fixture(scope="module")
def environment(server: str) -> Iterator[dict[str, str]]:
    values = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_ENDPOINT_URL": f"http://{server}",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setenv(name, value)
        storage._connect.cache_clear()
        yield values
    storage._connect.cache_clear()


@pytest.fixture(scope="module")
def process(environment: dict[str, str]) -> Process:
    import torch

    started = start_process("cpu")
    # More threads than free cores spin at the expense of whatever else runs.
    torch.set_num_threads(1)
    return started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, server: str) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    run_values(folder, "any")
    for suffix in (".bin", ".idx"):
        with store(server).open_output_stream(f"bucket/pairs/pair{suffix}") as stream:
            stream.write((folder / f"pair{suffix}").read_bytes())
    return folder


def stored_values(folder: Path, name: str, **values: Any) -> dict[str, Any]:
    there = {"data": ["s3://bucket/pairs/pair"], "cache": str(folder / "cache"), "output": f"s3://bucket/runs/{name}"}
    return {**run_values(folder, name, **values), **there}


def run(process: Process, values: dict[str, Any], on_step: Callable[[int], None] = lambda _: None) -> Done:
    losses: dict[int, float] = {}
    notes: list[str] = []

    def each(step: int, _: int, numbers: dict[str, float]) -> None:
        losses[step] = numbers["loss"]
        on_step(step)

    return Done(train(TrainConfig(**values), process, report=notes.append, on_step=each), losses, notes)


def checkpoints(values: dict[str, Any]) -> Folder:
    return Folder(values["output"]).child("checkpoints")


@pytest.fixture(scope="module")
def reference(process: Process, folder: Path) -> Done:
    return run(process, run_values(folder, "reference"))


@pytest.fixture(scope="module")
def parts(process: Process, folder: Path) -> tuple[dict[str, Any], Done, Done]:
    """A run that was stopped after six steps by an object beside it, and went on."""
    values = stored_values(folder, "parts", keep_last=2)
    output = Folder(values["output"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stop, "STOP_SECONDS", 0.0)
        first = run(process, values, lambda step: ask_to_stop(output, "enough") if step == 5 else None)
    withdraw(output)
    half = output.child("checkpoints/step-00000007")
    for name in ("zero_pp_rank_0_mp_rank_00_optim_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"):
        with half.create(name) as sink:
            sink.write(b"cut")
    return values, first, run(process, values)


def test_an_object_named_stop_ends_the_run_after_a_last_checkpoint(parts: tuple[dict[str, Any], Done, Done]) -> None:
    first = parts[1]
    assert (first.outcome.reason, first.outcome.steps, first.outcome.saves) == ("enough", 6, 2)


def test_a_run_on_a_store_resumes_bit_for_bit(parts: tuple[dict[str, Any], Done, Done], reference: Done) -> None:
    _, first, second = parts
    # What has no manifest is newer, and not even looked at.
    assert second.outcome.first_step == 6
    assert {**first.losses, **second.losses} == reference.losses


def test_the_last_checkpoints_are_kept_and_half_uploaded_ones_removed(
    parts: tuple[dict[str, Any], Done, Done], server: str
) -> None:
    folder = checkpoints(parts[0])
    assert folder.names() == ["latest", "step-00000008", "step-00000012"]
    assert folder.read_bytes("latest") == b"step-00000012\n"
    found = checkpoint.newest(folder)
    assert found is not None
    assert checkpoint.damage(folder.child(found.name), found.files, checksum=True) == []
    below = store(server).get_file_info(pafs.FileSelector("bucket/runs/parts/checkpoints/step-00000012"))
    assert {info.base_name for info in below} == {entry.name for entry in found.files} | {checkpoint.MANIFEST}


def test_the_numbers_of_all_starts_are_beside_the_checkpoints(
    parts: tuple[dict[str, Any], Done, Done], reference: Done
) -> None:
    numbers = read_metrics(Folder(parts[0]["output"]))
    assert {step: row["loss"] for step, row in numbers.items()} == reference.losses


def test_one_worker_goes_on_for_two_on_a_store(
    process: Process, folder: Path, reference: Done, environment: dict[str, str], tmp_path: Path
) -> None:
    """The universal checkpoint is made once, and stays beside the files. The two share one copy of the pair."""
    common: dict[str, Any] = {"optimizer": {"learning_rate": 0.001}, "save_every": 2, "steps": 4}
    alone = run(process, run_values(folder, "alone", **common))
    values = {**stored_values(folder, "converted", micro_batch=2, **common), "cache": str(tmp_path / "cache")}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    workers = start_workers(path, 2, KILL_AT="3", **environment)
    for worker in workers:
        worker.communicate(timeout=150)
    assert [worker.returncode for worker in workers] == [-9, -9]
    assert len(list((tmp_path / "cache").rglob("pair.bin"))) == 1
    done = run(process, {**values, "micro_batch": 4})
    assert done.outcome.first_step == 2
    assert done.losses == pytest.approx({step: alone.losses[step] for step in (3, 4)}, abs=1e-5)
    step = checkpoints(values).child("step-00000002")
    entries = checkpoint.read_entries(step.read_json(checkpoint.UNIVERSAL_MANIFEST))
    assert len(entries) > 10
    assert checkpoint.damage(step, entries, checksum=True) == []


def breaking(monkeypatch: pytest.MonkeyPatch, times: int) -> list[str]:
    """Uploads of the optimizer's states break after their first bytes, so many times; a list of the broken ones."""
    broken: list[str] = []
    create, write = Folder.create, Sink.write
    bad: list[Sink] = []

    def watched(self: Folder, name: str) -> Any:
        manager = create(self, name)
        enter = manager.__enter__

        class Watched:
            def __enter__(self) -> Sink:
                sink = enter()
                if name.endswith("optim_states.pt") and len(broken) < times:
                    broken.append(name)
                    bad.append(sink)
                return sink

            def __exit__(self, *error: Any) -> Any:
                return manager.__exit__(*error)

        return Watched()

    def failing(self: Sink, data: Any) -> int:
        if any(sink is self for sink in bad) and self.position > 10_000:
            bad.clear()
            raise OSError("connection reset")
        return write(self, data)

    monkeypatch.setattr(Folder, "create", watched)
    monkeypatch.setattr(Sink, "write", failing)
    monkeypatch.setattr(storage, "FIRST_PAUSE_SECONDS", 0.0)
    return broken


def test_an_upload_that_breaks_off_is_tried_again(
    process: Process, folder: Path, reference: Done, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = breaking(monkeypatch, 1)
    values = stored_values(folder, "shaken", steps=4)
    done = run(process, values)
    assert (len(broken), done.outcome.saves, done.outcome.failed_saves) == (1, 1, 0)
    found = checkpoint.newest(checkpoints(values))
    assert found is not None
    assert checkpoint.damage(checkpoints(values).child(found.name), found.files, checksum=True) == []


def test_a_store_that_is_away_costs_a_checkpoint_and_not_the_run(
    process: Process, folder: Path, reference: Done, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaking(monkeypatch, storage.ATTEMPTS)
    values = stored_values(folder, "broken")
    done = run(process, values)
    assert (done.outcome.saves, done.outcome.failed_saves) == (2, 1)
    assert done.losses == reference.losses
    assert checkpoints(values).names() == ["latest", "step-00000008", "step-00000012"]
    assert any("step 4 was not saved" in note and "connection reset" in note for note in done.notes)
