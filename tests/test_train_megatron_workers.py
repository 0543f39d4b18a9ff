"""A stand-in for pretrain_gpt.py under Ray Train: it meets, fails, is told to stop, and does not outlive its worker."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from taojin.core.errors import ConfigError, InputError, RunError
from taojin.core.storage import Folder
from taojin.train import megatron_workers as workers
from taojin.train.config import TrainConfig
from taojin.train.megatron_workers import Ended, describe, first_failure, last_line, run_megatron, supervise
from tests.jobs import ENVIRONMENT, ROOT, taojin
from tests.train_runs import run_values

# What pretrain_gpt.py does, as far as its launch can tell: it reads its arguments, makes a process group from the
# environment, computes something together, logs on the last rank, and on SIGTERM saves. Where there is a file `fail`,
# rank 1 ends badly while rank 0 would wait for ever, holding the file `waiting`.
STAND_IN = """
import argparse, fcntl, json, os, signal, sys
from pathlib import Path
import helper_beside_the_script

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--save")
parser.add_argument("--train-iters", type=int)
known, _ = parser.parse_known_args()
save = Path(known.save)
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if (save / "fail").exists():
    if rank == 1:
        with (save / "held").open() as ready:
            ready.read()
        (save / "fail").unlink()
        sys.exit("the device is on fire")
    waiting = (save / "waiting").open("w")
    fcntl.flock(waiting, fcntl.LOCK_EX)
    (save / "held").open("w").close()
    signal.pause()

asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([rank + 1.0])
dist.all_reduce(total)
names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "CUDA_DEVICE_MAX_CONNECTIONS")
seen = {"total": float(total), "arguments": sys.argv[1:], "folder": os.getcwd(), **{n: os.environ[n] for n in names}}
(save / f"result-{rank}.json").write_text(json.dumps(seen))
step, together = 0, torch.zeros(1)
while not together.item():
    step += 1
    if rank == world - 1:
        print(f" [2026-12-01 10:00:00] iteration {step:8d}/{known.train_iters:8d} | consumed samples: {8 * step:12d} |"
              f" elapsed time per iteration (ms): 500.0 | learning rate: 1.0E-03 | global batch size:     8 |"
              f" lm loss: {3:.6E} | loss scale: 1.0 | grad norm: 1.000 |", flush=True)
    together.fill_(float(bool(asked)))
    dist.all_reduce(together, op=dist.ReduceOp.MAX)
if rank == 0:
    (save / "latest_checkpointed_iteration.txt").write_text("2")
dist.destroy_process_group()
"""


@pytest.fixture
def megatron(tmp_path: Path) -> Path:
    folder = tmp_path / "Megatron-LM"
    folder.mkdir()
    (folder / "pretrain_gpt.py").write_text(STAND_IN)
    (folder / "helper_beside_the_script.py").touch()
    return folder


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "connected", lambda _: nullcontext())
    monkeypatch.setattr(workers, "_places", lambda *_: True)


def config(folder: Path, **values: Any) -> TrainConfig:
    common = {"engine": "megatron", "steps": 3, "workers": 2, "micro_batch": 2, "parallel": {}, "save_every": 2}
    return TrainConfig(**run_values(folder, "run", **{**common, **values}))


# ---------------------------------------------------------------------------- all together


@pytest.mark.ray
@pytest.mark.timeout(200)
def test_workers_fail_start_again_meet_and_stop_when_told(
    tmp_path: Path, megatron: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(workers, "LOG_SECONDS", 0.2)
    run = tmp_path / "run"
    run.mkdir()
    (run / "fail").touch()
    os.mkfifo(run / "held")
    notes: list[str] = []

    def tell(note: str) -> None:
        if note.startswith("step ") and not any(earlier.startswith("step ") for earlier in notes):
            os.kill(os.getpid(), signal.SIGTERM)
        notes.append(note)

    outcome = run_megatron(config(tmp_path), str(megatron), tell)
    assert outcome == {"steps": 2, "total_steps": 3, "first_step": 0, "loss": 3.0, "reason": "SIGTERM"}
    failed = f"rank 1 ended with exit status 1: the device is on fire ({run}/logs/rank-1.log)"
    assert notes[0] == f"{failed}; starting again from step 0"
    assert "loss 3.0000 · 512 tokens/s" in notes[1]
    # The rank that waited is gone, else this would wait too.
    with (run / "waiting").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
    seen = [json.loads((run / f"result-{rank}.json").read_text()) for rank in (0, 1)]
    places = [(found["total"], found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"]) for found in seen]
    assert places == [(3.0, "0", "2"), (3.0, "1", "2")]
    assert seen[0]["MASTER_ADDR"] == seen[1]["MASTER_ADDR"]
    assert (seen[0]["folder"], seen[0]["CUDA_DEVICE_MAX_CONNECTIONS"]) == (str(megatron), "1")
    assert seen[0]["arguments"][seen[0]["arguments"].index("--num-layers") + 1] == "2"


@pytest.mark.usefixtures("no_ray")
@pytest.mark.parametrize(("saved", "reason"), [(3, "finished"), (1, "pretrain_gpt.py ended by itself")])
def test_the_outcome_is_what_megatron_lm_saved(
    tmp_path: Path, megatron: Path, monkeypatch: pytest.MonkeyPatch, saved: int, reason: str
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "stop").touch()

    def fit(*_: Any) -> str:
        # An earlier request does not end a later start.
        assert not (run / "stop").exists()
        (run / "latest_checkpointed_iteration.txt").write_text(str(saved))
        return ""

    monkeypatch.setattr(workers, "_fit", fit)
    outcome = run_megatron(config(tmp_path), str(megatron), lambda _: None)
    assert outcome == {"steps": saved, "total_steps": 3, "first_step": 0, "loss": None, "reason": reason}


# ---------------------------------------------------------------------------- one process


def script(folder: Path, text: str) -> list[str]:
    path = folder / "script.py"
    path.write_text(text)
    return [str(path)]


def test_the_last_line_of_this_start_is_told_and_earlier_ones_are_kept(tmp_path: Path) -> None:
    log = tmp_path / "logs/rank-0.log"
    words = script(tmp_path, "import sys; print('begun'); sys.exit(sys.argv[1])")
    for word in ("first", "second"):
        ended = supervise([*words, word], {}, str(tmp_path), log, lambda: False)
        assert describe(ended) == f"ended with exit status 1: {word}"
    assert log.read_text().splitlines() == ["begun", "first", "begun", "second"]
    ended = supervise(script(tmp_path, "import os; os._exit(3)"), {}, str(tmp_path), log, lambda: False)
    assert describe(ended) == "ended with exit status 3 after printing nothing"


def test_a_signal_is_told_by_its_name() -> None:
    assert describe(Ended(-9, "step 7", told=False)) == "was ended by SIGKILL: step 7"


def test_the_last_line_is_short_whatever_was_printed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 100_000 + "\n金".encode() * 3 + b"\xff \n\n  \n")
    assert last_line(log) == "金\ufffd"
    log.write_bytes(b"y" * 100_000)
    assert last_line(log) == "y" * 300


def test_who_is_asked_to_stop_gets_sigterm_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "POLL_SECONDS", 0.05)
    ready = tmp_path / "ready"
    words = script(
        tmp_path,
        "import signal, sys, pathlib\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit('saved'))\n"
        "pathlib.Path(sys.argv[1]).touch()\n"
        "signal.pause()",
    )
    ended = supervise([*words, str(ready)], {}, str(tmp_path), tmp_path / "log", ready.exists)
    assert ended == Ended(1, "saved", told=True)


@pytest.mark.skipif(sys.platform != "linux", reason="by prctl")
def test_a_process_does_not_outlive_its_killed_worker(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    words = script(tmp_path, "import signal, sys; open(sys.argv[1], 'w').write('up'), signal.pause()")
    code = (
        "import sys; from pathlib import Path; from taojin.train.megatron_workers import supervise\n"
        "supervise(sys.argv[1:3], {}, sys.argv[3], Path(sys.argv[3]) / 'log', lambda: False)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, *words, str(pipe), str(tmp_path)], cwd=ROOT, env=ENVIRONMENT)
    # The writer holds its end open until it is gone: the read ends with its life.
    with pipe.open() as reader:
        parent.kill()
        parent.wait()
        assert reader.read() in ("", "up")


# ---------------------------------------------------------------------------- what a rank leaves


def rank_values(tmp_path: Path, megatron: Path, text: str) -> dict[str, Any]:
    (megatron / "pretrain_gpt.py").write_text(text)
    return {
        "run": str(tmp_path / "run"),
        "folder": str(megatron),
        "arguments": [str(megatron / "pretrain_gpt.py")],
        "start": "a",
    }


def test_the_first_of_several_failures_is_the_one_told(tmp_path: Path, megatron: Path) -> None:
    values = rank_values(tmp_path, megatron, "import os, sys; sys.exit(os.environ['RANK'])")
    for rank in (2, 0):
        with pytest.raises(RunError, match=f"rank {rank} ended with exit status 1: {rank}"):
            workers.run_rank(values, rank, {"RANK": str(rank)})
    notes = Folder(f"{tmp_path}/run/starts/a")
    found = first_failure(notes)
    assert found is not None
    assert (found["rank"], found["kind"]) == (2, "")
    assert first_failure(Folder(str(tmp_path / "none"))) is None


@pytest.mark.usefixtures("no_ray")
@pytest.mark.parametrize(("text", "kind"), [("import sys; sys.exit(2)", "RunError"), (None, "ConfigError")])
def test_what_would_fail_the_same_way_is_tried_once(
    tmp_path: Path, megatron: Path, text: str | None, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = rank_values(tmp_path, megatron, text or "")
    if text is None:
        (megatron / "pretrain_gpt.py").unlink()
    tries = []

    def fit(_: TrainConfig, given: dict[str, Any]) -> str:
        tries.append(given["start"])
        with pytest.raises((ConfigError, RunError)) as caught:
            workers.run_rank({**values, "start": given["start"]}, 0, {})
        return str(caught.value)

    monkeypatch.setattr(workers, "_fit", fit)
    with pytest.raises(ConfigError if kind == "ConfigError" else RunError):
        workers._rounds(config(tmp_path), Folder(values["run"]), values, lambda _: None)
    assert len(tries) == 1


@pytest.mark.usefixtures("no_ray")
def test_workers_that_fail_without_progress_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    run.mkdir()
    tries: list[str] = []

    def fit(*_: Any) -> str:
        tries.append("")
        if len(tries) == 2:
            (run / "latest_checkpointed_iteration.txt").write_text("2\n")
        return "the node is gone"

    monkeypatch.setattr(workers, "_fit", fit)
    notes: list[str] = []
    with pytest.raises(RunError, match="failed 3 times since step 2; the last time: the node is gone"):
        workers._rounds(config(tmp_path), Folder(str(run)), {}, notes.append)
    # The first without a checkpoint, the second with one, and two more without another.
    assert len(tries) == 4
    assert notes[1] == "the node is gone; starting again from step 2"


@pytest.mark.usefixtures("no_ray")
def test_a_run_that_was_to_stop_is_not_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Folder(str(tmp_path / "run"))
    with run.create("stop"):
        pass
    monkeypatch.setattr(workers, "_fit", lambda *_: "the node is gone")
    with pytest.raises(RunError, match="the node is gone; it was asked to stop"):
        workers._rounds(config(tmp_path), run, {}, lambda _: None)


# ---------------------------------------------------------------------------- lines


def test_a_logged_step_is_read_and_told() -> None:
    text = (
        " [2026-12-01 10:00:00.1] iteration       20/    5000 | consumed samples:        10240 | elapsed time per "
        "iteration (ms): 1250.0 | throughput per GPU (TFLOP/s/GPU): 400.1 | learning rate: 1.2E-04 | global batch size:"
        "   512 | lm loss: 1.081234E+01 | loss scale: 1.0 | grad norm: 3.210 | number of skipped iterations:   0 |"
    )
    assert workers.numbers_of(text, 512 * 4096) == {
        "step": 20,
        "steps": 5000,
        "loss": 10.81234,
        "step_seconds": 1.25,
        "tokens_per_second": 512 * 4096 / 1.25,
    }
    assert workers.numbers_of(" > initialized tensor model parallel with size 8", 1) is None
    said = " validation loss at iteration 100 | lm loss value: 3.210000E+00 | lm loss PPL: 2.477909E+01 | "
    assert workers.validation_of(said) == "validation loss at iteration 100: 3.2100"
    assert workers.validation_of(text) is None


# ---------------------------------------------------------------------------- what is refused


def test_what_cannot_start_is_refused_before_ray_does(tmp_path: Path, megatron: Path) -> None:
    with pytest.raises(ConfigError, match="found no such folder"):
        run_megatron(config(tmp_path), str(tmp_path / "nowhere"))
    (megatron / "pretrain_gpt.py").rename(megatron / "other.py")
    with pytest.raises(ConfigError, match=r"expected a checkout of Megatron-LM with pretrain_gpt\.py, found no pre"):
        run_megatron(config(tmp_path), str(megatron))
    (megatron / "other.py").rename(megatron / "pretrain_gpt.py")
    with pytest.raises(InputError, match=r"nowhere\.idx: No such file"):
        run_megatron(config(tmp_path, data=[str(tmp_path / "nowhere")]), str(megatron))
    assert not (tmp_path / "run").exists()


def test_the_command_says_what_is_wrong_in_a_line(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    path.write_text(json.dumps(run_values(tmp_path, "run", workers=2, micro_batch=2, parallel={"tensor": 1})))
    taojin("train", "--config", path, "--megatron", tmp_path).refuses(2, "--megatron: needs --engine megatron")
    taojin("train", "--config", path, "--engine", "megatron", "--megatron", tmp_path).refuses(2, "no pretrain_gpt.py")
