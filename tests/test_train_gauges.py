"""The numbers of a step, and a budget that ends a run in time."""

import json
import re
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from taojin.core.errors import ConfigError
from taojin.core.storage import Folder
from taojin.train.config import TrainConfig
from taojin.train.cost import flops_per_token
from taojin.train.engine import Process
from taojin.train.gauges import RECENT_STEPS, Gauges, Gpu, Machine, passes_row, short_names
from taojin.train.shape import shape_of
from taojin.train.tracking import last_numbers, read_metrics
from tests.train_runs import TINY_LLAMA, run_values

pytest.importorskip("psutil", reason="psutil comes with the extra `train`")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def gauges(clock: Clock, notes: list[str] | None = None, world: int = 2, total: int = 100, **values: Any) -> Gauges:
    base = {"model": "m.json", "data": "/a", "output": "/o", "steps": total, "global_batch": 8, "sequence_length": 32}
    return Gauges(
        TrainConfig(**{**base, **values}),
        Process(rank=0, world=world, local_rank=0, kind="cpu", started=clock.now),
        TINY_LLAMA,
        total=total,
        epoch_tokens=1000,
        report=(notes if notes is not None else []).append,
        clock=clock,
    )


def steps(found: Gauges, clock: Clock, durations: list[float]) -> dict[str, float]:
    row: dict[str, float] = {}
    for done, seconds in enumerate(durations, 1):
        clock.now += seconds
        row = found.read(done, seconds, seconds / 4)
    return row


# ---------------------------------------------------------------------------- speed


def test_speed_epoch_and_time_left_follow_from_the_steps() -> None:
    clock = Clock()
    row = steps(gauges(clock), clock, [30.0, 2.0, 2.0, 2.0])
    assert row["tokens_per_second"] == 8 * 32 / 2
    assert row["data_wait_share"] == 0.25
    assert row["epoch"] == 4 * 8 * 32 / 1000
    # The first, which compiles, does not count for what is left.
    assert row["eta_seconds"] == 96 * 2.0


def test_the_time_left_follows_the_last_steps_alone() -> None:
    clock, durations = Clock(), [1.0] * 30 + [3.0, 5.0] * RECENT_STEPS
    row = steps(gauges(clock), clock, durations)
    assert row["eta_seconds"] == (100 - len(durations)) * statistics.median(durations[-RECENT_STEPS:])


def test_mfu_is_work_over_the_peak_of_all_devices() -> None:
    clock = Clock()
    row = steps(gauges(clock, device_name="H100"), clock, [0.5])
    work = 8 * 32 * flops_per_token(shape_of(TINY_LLAMA, "test"), 32)
    assert row["mfu"] == pytest.approx(work / 0.5 / (2 * 989.4e12))


@pytest.mark.parametrize(
    ("device", "model", "said"),
    [("H100", {**TINY_LLAMA, "model_type": "gpt2"}, "no MFU: .*'gpt2'"), ("Abacus", TINY_LLAMA, "no MFU: .*'Abacus'")],
)
def test_where_there_is_no_mfu_it_is_said_once(device: str, model: dict[str, Any], said: str) -> None:
    notes: list[str] = []
    config = TrainConfig(model="m", data="/a", output="/o", steps=9, device_name=device)
    process = Process(rank=0, world=1, local_rank=0, kind="cpu", started=time.monotonic())
    found = Gauges(config, process, model, total=9, epoch_tokens=9, report=notes.append)
    assert "mfu" not in found.read(1, 0.5, 0.0) | found.read(2, 0.5, 0.0)
    assert len(notes) == 1
    assert re.search(said, notes[0])


def test_on_a_cpu_without_a_device_name_there_is_no_mfu_and_no_word_of_it() -> None:
    clock = Clock()
    notes: list[str] = []
    assert "mfu" not in steps(gauges(clock, notes), clock, [0.5])
    assert notes == []


# ---------------------------------------------------------------------------- money


def test_money_is_that_of_all_devices_and_all_time() -> None:
    clock = Clock()
    found = gauges(clock, price_per_device_hour=3600.0, budget=100.0)
    assert steps(found, clock, [3.0])["money"] == pytest.approx(2 * 3.0)
    # Saving is paid for too.
    clock.now += 7.0
    assert found.bill() == pytest.approx({"device_hours": 20 / 3600, "money": 20.0, "money_left": 80.0})


def test_without_a_price_there_are_device_hours_and_no_money() -> None:
    clock = Clock()
    row = steps(gauges(clock), clock, [3.0])
    assert row["device_hours"] == pytest.approx(6 / 3600)
    assert not {"money", "money_left"} & row.keys()


def test_the_budget_ends_a_run_while_a_step_and_a_save_still_fit() -> None:
    clock = Clock()
    found = gauges(clock, price_per_device_hour=3600.0, budget=200.0)
    found.resume(0, {})
    done = 0
    # The first step is slow and alone in that; every tenth has a validation of 5 s.
    while True:
        clock.now += 20.0 if done == 0 else 1.0
        done += 1
        over = found.over_budget(4.0)
        found.read(done, 1.0, 0.0)
        if over:
            break
        clock.now += 5.0 if done % 10 == 0 else 0.0
    clock.now += 4.0
    spent = found.bill()["money"]
    assert 200 - 2 * 6.0 - 2 < spent <= 200


def test_a_slow_first_step_does_not_shorten_the_run() -> None:
    clock = Clock()
    found = gauges(clock, price_per_device_hour=3600.0, budget=200.0)
    clock.now += 60.0
    assert not found.over_budget(0.0)
    clock.now += 1.0
    assert not found.over_budget(0.0)
    assert found.over_budget(40.0)


def test_a_run_goes_on_from_what_it_has_spent() -> None:
    clock = Clock()
    found = gauges(clock, price_per_device_hour=3600.0, budget=100.0)
    found.resume(5, {"money": 50.0, "device_hours": 1.0})
    clock.now += 5.0
    assert found.bill() == pytest.approx({"device_hours": 1 + 10 / 3600, "money": 60.0, "money_left": 40.0})


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ({"money": 12.0, "device_hours": 1.0}, "budget: 12.00 of 10.00 yuan are spent; raise it"),
        (
            {"money": 9.0, "device_hours": 1.0, "step_seconds": 0.5, "save_seconds": 0.1},
            "budget: 9.00 of 10.00 yuan are spent, too little is left for a step and its checkpoint; raise it",
        ),
    ],
)
def test_a_budget_that_is_used_up_is_refused(last: dict[str, float], said: str) -> None:
    clock = Clock()
    found = gauges(clock, price_per_device_hour=3600.0, budget=10.0)
    with pytest.raises(ConfigError) as raised:
        found.resume(5, last)
    assert str(raised.value) == said
    # Nothing is left to do, and nothing to pay for.
    found.resume(100, last)


def test_a_budget_too_small_for_the_run_is_said_before_it_starts() -> None:
    notes: list[str] = []
    clock = Clock()
    values: dict[str, Any] = {"device_name": "H100", "price_per_device_hour": 3600.0}
    work = 8 * 32 * flops_per_token(shape_of(TINY_LLAMA, "test"), 32)
    each = 2 * work / (2 * 989.4e12 * 0.4)
    gauges(clock, notes, **values, budget=each * 40.5).resume(10, {"money": each * 20})
    gauges(clock, notes, **values, budget=each * 101).resume(0, {})
    (note,) = notes
    assert note.startswith("at an MFU of 0.4 the budget of 0.00 yuan ends the run after about 30 of 100 steps")


def test_what_the_speed_makes_of_the_budget_is_said_once_it_is_known() -> None:
    clock = Clock()
    notes: list[str] = []
    found = gauges(clock, notes, price_per_device_hour=3600.0, budget=120.0)
    steps(found, clock, [1.0] * 40)
    assert notes == ["at this speed the budget of 120.00 yuan ends the run after about 60 of 100 steps"]


# ---------------------------------------------------------------------------- the machine


def test_the_machine_is_asked_once_a_second_at_most() -> None:
    clock = Clock()
    found = Machine(Process(rank=0, world=1, local_rank=0, kind="cpu"), lambda _: None, clock)
    row = found.read()
    assert row["cpu_utilization"] >= 0
    assert 10e6 < row["memory_bytes"] < 1e12
    assert found.read() == {}
    clock.now += 1.0
    assert found.read().keys() == row.keys()


class NVMLError(Exception):
    pass


def nvml(monkeypatch: pytest.MonkeyPatch, **functions: Any) -> None:
    """A node of two devices of which CUDA shows the second as its first."""

    def broken(*_: Any) -> Any:
        raise NVMLError("Driver Not Loaded")

    known = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": {"GPU-aaaa": 0, "GPU-bbbb": 1}.__getitem__,
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=30 + handle, total=124),
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=90 + handle, memory=3),
        "nvmlDeviceGetPowerUsage": lambda handle: 500_000 + handle,
    }
    fakes = {**known, **{name: function or broken for name, function in functions.items()}}
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(NVMLError=NVMLError, **fakes))
    cuda = SimpleNamespace(get_device_properties=lambda index: SimpleNamespace(uuid=["bbbb"][index]))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))


def test_the_gpu_that_is_read_is_the_one_that_cuda_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml(monkeypatch)
    notes: list[str] = []
    assert Gpu(0, notes.append).read() == {
        "gpu_utilization": 0.91,
        "gpu_memory_utilization": 0.25,
        "gpu_power_watts": 500.001,
    }
    assert notes == []


@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetPowerUsage"])
def test_a_driver_that_does_not_answer_is_said_once(monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    nvml(monkeypatch, **{function: None})
    notes: list[str] = []
    found = Gpu(0, notes.append)
    assert (found.read(), found.read()) == ({}, {})
    (note,) = notes
    assert note.startswith("no utilisation of GPUs")
    assert note.endswith("Driver Not Loaded")


def test_a_missing_package_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    notes: list[str] = []
    assert Gpu(0, notes.append).read() == {}
    assert notes == ["no utilisation of GPUs: the package nvidia-ml-py is not installed"]


# ---------------------------------------------------------------------------- data


def test_pairs_have_the_shortest_names_that_tell_them_apart() -> None:
    assert short_names(["/a/zh/train", "/b/en/valid"]) == ["train", "valid"]
    assert short_names(["/a/zh/train", "/a/en/train"]) == ["zh/train", "en/train"]
    assert short_names([]) == []


def test_passes_are_shown_for_as_many_pairs_as_a_page_holds() -> None:
    assert passes_row({"/a/zh": 0.5, "/a/en": 2.0}) == {"passes.zh": 0.5, "passes.en": 2.0}
    assert passes_row({f"/a/{number}": 1.0 for number in range(21)}) == {}


# ---------------------------------------------------------------------------- a whole run


@pytest.fixture(scope="module")
def process() -> Process:
    for needed in ("torch", "deepspeed", "transformers"):
        pytest.importorskip(needed, reason=f"{needed} comes with the extra `train`")
    import torch

    from taojin.train.engine import start_process

    started = start_process("cpu")
    torch.set_num_threads(1)
    return started


def test_a_run_stops_at_its_budget_and_a_larger_one_goes_on(process: Process, tmp_path: Path) -> None:
    from taojin.train.loop import train

    # Already spent when the first step ends.
    before = time.monotonic() - process.started
    values = run_values(tmp_path, "run", steps=6, save_every=0, price_per_device_hour=3600.0)
    notes: list[str] = []
    stopped = train(TrainConfig(**values, budget=before + 0.01), process, report=notes.append)
    assert (stopped.reason, stopped.steps, stopped.saves) == ("budget", 1, 1)
    spent = stopped.numbers["money"]
    assert spent >= before
    rows = read_metrics(Folder(values["output"]))
    assert rows[1]["money"] == pytest.approx(spent, rel=0.01)
    assert rows[1]["passes.pair"] == rows[1]["epoch"] > 0

    with pytest.raises(ConfigError, match=r"budget: .* of .* yuan are spent; raise it"):
        train(TrainConfig(**values, budget=before + 0.01), process)

    # Killed: the line it was writing is torn.
    (path,) = (tmp_path / "run/metrics").iterdir()
    path.write_bytes(path.read_bytes() + b'{"step": 2, "money": 1')
    assert last_numbers(Folder(values["output"]))["money"] == pytest.approx(spent, rel=0.01)
    finished = train(TrainConfig(**values, budget=1e6), process)
    assert (finished.reason, finished.first_step, finished.steps) == ("finished", 1, 6)
    assert finished.numbers["money"] > spent
    assert finished.numbers["tokens_per_second"] > 0


def test_rows_after_a_save_say_how_long_it_took(process: Process, tmp_path: Path) -> None:
    from taojin.train.loop import train

    values = run_values(tmp_path, "run", steps=4, save_every=2, asynchronous_save=False)
    train(TrainConfig(**values), process)
    (path,) = (tmp_path / "run/metrics").iterdir()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["step"] for row in rows if "save_seconds" in row] == [3]
    assert rows[2]["save_blocked_seconds"] >= rows[2]["save_seconds"] > 0
