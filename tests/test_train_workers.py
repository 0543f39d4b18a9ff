"""Several workers as processes: they compute what one computes, die, and are followed by more or fewer."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.train_runs import run_values, run_workers, start_workers, write_values

for needed in ("torch", "deepspeed", "transformers"):
    pytest.importorskip(needed, reason=f"{needed} comes with the extra `train`")

# Adam divides by the root of the squares: where gradients are next to nothing, rounding moves a weight by the whole
# rate, so that a rate of 0.01 would show here as 1e-4 and say nothing.
COMMON: dict[str, Any] = {"steps": 8, "save_every": 2, "optimizer": {"learning_rate": 0.001}}
CLOSE = 1e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workers")


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[int, float]:
    return run_workers(run_values(folder, "alone", **COMMON), 1)[0]


@pytest.fixture(scope="module")
def two(folder: Path) -> dict[int, float]:
    return run_workers(run_values(folder, "two", micro_batch=2, **COMMON), 2)[0]


@pytest.fixture(scope="module")
def killed(folder: Path) -> Path:
    """The folder of a run of two workers that died by SIGKILL after step 5."""
    values = run_values(folder, "killed", micro_batch=2, **COMMON)
    workers = start_workers(write_values(values), 2, KILL_AT="5")
    for worker in workers:
        worker.communicate(timeout=150)
    assert [worker.returncode for worker in workers] == [-9, -9]
    return Path(values["output"])


def test_two_workers_compute_what_one_does(alone: dict[int, float], two: dict[int, float]) -> None:
    assert list(two) == list(range(1, 9))
    assert two == pytest.approx(alone, abs=CLOSE)


def test_killed_workers_go_on_bit_for_bit(folder: Path, two: dict[int, float], killed: Path) -> None:
    shutil.copytree(killed, folder / "again")
    losses, outcome = run_workers(run_values(folder, "again", micro_batch=2, **COMMON), 2)
    assert outcome["first_step"] in (2, 4)
    assert losses == {step: two[step] for step in range(outcome["first_step"] + 1, 9)}


def test_one_worker_goes_on_for_two_and_two_for_one(folder: Path, alone: dict[int, float], killed: Path) -> None:
    output = folder / "changing"
    shutil.copytree(killed, output)
    losses, outcome = run_workers(run_values(folder, "changing", **COMMON), 1)
    assert outcome["first_step"] in (2, 4)
    shutil.rmtree(output / "checkpoints/step-00000008")
    more, outcome = run_workers(run_values(folder, "changing", micro_batch=2, **COMMON), 2)
    assert outcome["first_step"] == 6
    assert list(more) == [7, 8]
    for each in (losses, more):
        assert each == pytest.approx({step: alone[step] for step in each}, abs=CLOSE)
