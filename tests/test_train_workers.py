"""Several workers as processes: they compute what one computes, die, and are followed by more or fewer, whatever ZeRO
and tensor parallel divide among them."""

from pathlib import Path
from typing import Any

import pytest

from taojin.core.errors import ConfigError
from taojin.core.storage import FileEntry, Folder
from taojin.train.checkpoint import Checkpoint
from taojin.train.restoring import Restorer
from tests.train_runs import run_values, start_workers, write_values
from tests.train_series import NUMBERS, Ran, Series

for needed in ("torch", "deepspeed", "transformers"):
    pytest.importorskip(needed, reason=f"{needed} comes with the extra `train`")

# Adam divides by the root of the squares: where gradients are next to nothing, rounding moves a weight by the whole
# rate, so that a rate of 0.01 would show here as 1e-4 and say nothing.
COMMON: dict[str, Any] = {"steps": 8, "save_every": 2, "optimizer": {"learning_rate": 0.001}}
CLOSE = 1e-5
HALVES: dict[str, Any] = {"parallel": {"tensor": 2}}
ALL = 99


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workers")


@pytest.fixture(scope="module")
def killed(folder: Path) -> Path:
    """The folder of a run of two workers that died by SIGKILL after step 5."""
    values = run_values(folder, "killed", micro_batch=2, **COMMON)
    workers = start_workers(write_values(values), 2, KILL_AT="5")
    for worker in workers:
        worker.communicate(timeout=150)
    assert [worker.returncode for worker in workers] == [-9, -9]
    return Path(values["output"])


@pytest.fixture(scope="module")
def runs(folder: Path, killed: Path) -> dict[str, Ran]:
    """All runs of this module by name. `B of A` goes on from a checkpoint of A, `A again` on the same workers."""

    def values(name: str, micro_batch: int = 2, **others: Any) -> dict[str, Any]:
        return run_values(folder, name, micro_batch=micro_batch, **COMMON, **others)

    done: dict[str, Ran] = {}
    four = Series(4)
    four.add(values("four"))
    done |= four.run()

    one = Series(1)
    one.add(values("one", 4))
    one.add(values("one of killed", 4), killed, ALL)
    done |= one.run()

    two = Series(2)
    two.add(values("two"))
    two.add(values("killed again"), killed, ALL)
    two.add(values("two of four"), folder / "four", 2)
    two.add(values("two of one"), folder / "one of killed", 6)
    for name, zero in {
        "stage 0": {"stage": 0},
        "stage 1": {"stage": 1},
        "stage 2": {"stage": 2},
        "offloaded": {"offload_optimizer": "cpu", "offload_parameters": "cpu"},
    }.items():
        two.add(values(name, zero=zero))
        two.add(values(f"{name} again", zero=zero), folder / name, 4)
    two.add(values("stage 2 of stage 1", zero={"stage": 2}), folder / "stage 1", 4)
    # Last: DeepSpeed keeps its groups of tensor parallel as long as the process lives.
    two.add(values("halves", **HALVES))
    two.add(values("halves again", **HALVES), folder / "halves", 4)
    two.add(values("halves of one", **HALVES), folder / "one", 4)
    two.add(values("halves, stage 1", zero={"stage": 1}, **HALVES))
    two.add(values("halves, stage 1 again", zero={"stage": 1}, **HALVES), folder / "halves, stage 1", 4)
    done |= two.run()

    four = Series(4)
    four.add(values("four of two"), folder / "two of four", 4)
    four.add(values("two halves of halves", **HALVES), folder / "halves", 4)
    done |= four.run()

    one = Series(1)
    one.add(values("one of stage 0", zero={"stage": 0}), folder / "stage 0", 4)
    one.add(values("one of stage 1", zero={"stage": 1}), folder / "stage 1", 4)
    one.add(values("one of halves"), folder / "halves", 4)
    return done | one.run()


# What came before a run, in whole: its steps must be those of one worker from the first to the last.
NAMES = (
    "two",
    "four",
    "stage 0",
    "stage 1",
    "stage 2",
    "offloaded",
    "halves",
    "halves, stage 1",
    "one of killed",
    "two of one",
    "two of four",
    "four of two",
    "stage 2 of stage 1",
    "one of stage 0",
    "one of stage 1",
    "one of halves",
    "halves of one",
    "two halves of halves",
)


def said(name: str) -> set[str]:
    return {"loss"} if "stage 0" in name else {"loss", "gradient_norm"}


@pytest.mark.parametrize("name", NAMES)
def test_any_workers_compute_what_one_does(runs: dict[str, Ran], name: str) -> None:
    assert list(runs[name].numbers) == list(range(runs[name].first_step + 1, 9))
    assert (runs[name].first_step > 0) == (" of " in name)
    for number in NUMBERS:
        mine, expected = runs[name].of(number), runs["one"].of(number)
        # In fp32 without ZeRO DeepSpeed tells no norm.
        assert len(mine) == (8 - runs[name].first_step if number in said(name) else 0)
        assert mine == pytest.approx({step: expected[step] for step in mine}, abs=CLOSE)


@pytest.mark.parametrize("name", ["stage 0", "stage 1", "stage 2", "offloaded", "halves", "halves, stage 1"])
def test_a_run_goes_on_bit_for_bit(runs: dict[str, Ran], name: str) -> None:
    again = runs[f"{name} again"]
    assert again.first_step == 4
    assert again.numbers == {step: runs[name].numbers[step] for step in (5, 6, 7, 8)}


def test_killed_workers_go_on_bit_for_bit(runs: dict[str, Ran]) -> None:
    again = runs["killed again"]
    assert again.first_step in (2, 4)
    assert again.numbers == {step: runs["two"].numbers[step] for step in range(again.first_step + 1, 9)}


def test_runs_change_their_workers_twice(runs: dict[str, Ran]) -> None:
    assert [runs[name].first_step for name in ("two of one", "two of four", "four of two")] == [6, 2, 4]


@pytest.mark.parametrize(
    ("names", "now", "said"),
    [
        (["mp_rank_00_model_states.pt"], {"stage": 1}, "written with stage 0, found 1"),
        (["bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"], {"stage": 3}, "written with stage 1 or 2, found 3"),
        (
            ["zero_pp_rank_0_mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"],
            {"stage": 2},
            "written with stage 3, found 2",
        ),
        (
            ["mp_rank_00_model_states.pt"],
            {"stage": 0, "tensor": 2},
            "parallel.tensor: step-00000004 was written with 1",
        ),
    ],
)
def test_a_checkpoint_that_deepspeed_cannot_read_is_refused(names: list[str], now: dict[str, Any], said: str) -> None:
    files = tuple(FileEntry(name=name, bytes=1, xxh3="", rows=0) for name in names)
    checkpoint = Checkpoint(step=4, devices=2, tensor=1, files=files)
    with pytest.raises(ConfigError, match=said) as caught:
        Restorer(
            Folder("nowhere"),
            checkpoint,
            rank=0,
            world=2,
            local_rank=0,
            gather=lambda value: [value],
            **{"tensor": 1, **now},
        )
    assert "\n" not in str(caught.value)
