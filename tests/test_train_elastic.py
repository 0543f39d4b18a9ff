"""How many workers a run has: what is decided, and a run that loses a node, goes on, grows again and is preempted."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taojin.core.errors import ConfigError, RunError
from taojin.core.storage import Folder
from taojin.train import elastic, launch
from taojin.train.config import TrainConfig
from taojin.train.elastic import (
    LOOKS,
    MORE,
    PREEMPTION,
    SETTLE_SECONDS,
    Growth,
    asked_to_end,
    number_now,
    starts_again,
    wait_for_places,
    watching_for_more,
)
from taojin.train.parallel import fitting_workers, layout
from taojin.train.stop import Stop, ask_to_stop, requested
from tests.jobs import wait_for
from tests.train_runs import run_values, steady_worker

BASE: dict[str, Any] = {"model": "m.json", "data": "/a", "output": "/o", "steps": 1, "sequence_length": 4096}
FITTING = [2, 4, 8]


def fits(config: TrainConfig, workers: int) -> bool:
    try:
        layout(config, workers)
    except ConfigError:
        return False
    return True


# ---------------------------------------------------------------------------- decisions


@given(st.integers(1, 48), st.integers(1, 96), st.integers(1, 4), st.sampled_from([1, 2]), st.sampled_from([1, 2, 4]))
def test_the_numbers_that_fit_are_those_that_a_layout_takes(
    least: int, batch: int, micro: int, tensor: int, within: int
) -> None:
    config = TrainConfig(
        **BASE,
        global_batch=batch * micro,
        micro_batch=micro,
        workers=48,
        min_workers=least,
        parallel={"tensor": tensor},
        zero={"partition_within": within if tensor == 1 else 1},
    )
    if fits(config, 48):
        assert fitting_workers(config) == [workers for workers in range(least, 49) if fits(config, workers)]
    else:
        with pytest.raises(ConfigError, match="workers"):
            fitting_workers(config)


def test_without_a_least_number_the_number_is_fixed() -> None:
    assert fitting_workers(TrainConfig(**BASE, global_batch=64, workers=8)) == [8]
    with pytest.raises(ConfigError, match="min_workers: 9 are more than the 8 workers"):
        TrainConfig(**BASE, global_batch=64, workers=8, min_workers=9)


@pytest.mark.parametrize(
    ("free", "at_once", "later"), [(0, None, None), (1, None, None), (2, None, 2), (7, None, 4), (8, 8, 8), (99, 8, 8)]
)
def test_a_run_takes_the_most_that_fit_and_fewer_only_when_places_do_not_become_free(
    free: int, at_once: int | None, later: int | None
) -> None:
    assert number_now(FITTING, free, 0.0) == at_once
    assert number_now(FITTING, free, SETTLE_SECONDS) == later


def test_a_run_grows_when_looks_in_a_row_found_places_for_a_larger_one() -> None:
    assert LOOKS == 2
    growth = Growth(FITTING, 2)
    assert [growth.look(free) for free in (0, 1, 2, 1, 2, 6)] == [False, False, False, False, False, True]
    assert not any(Growth(FITTING, 8).look(99) for _ in range(5))


def test_a_run_starts_again_after_our_reasons_and_ends_after_a_persons() -> None:
    assert starts_again(MORE)
    assert starts_again(f"{PREEMPTION}0123abcd")
    assert not any(map(starts_again, ("SIGTERM", "budget", "the file stop", "finished", None)))


# ---------------------------------------------------------------------------- waiting and watching


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[int]], None]:
    """Sets what one look after the other finds; the last for ever."""

    @contextmanager
    def reserved(resource: str, places: int) -> Iterator[Callable[[], int]]:
        yield lambda: 0

    def sets(found: Sequence[int]) -> None:
        left = list(found)
        monkeypatch.setattr(elastic, "free_places", lambda _: left.pop(0) if len(left) > 1 else left[0])

    monkeypatch.setattr(elastic, "reserved", reserved)
    for name in ("SETTLE_SECONDS", "WAIT_SECONDS", "LOOK_SECONDS"):
        monkeypatch.setattr(elastic, name, 0.001)
    return sets


def waited(folder: Path, notes: list[str], timeout: float = 60.0) -> int | None:
    since = time.monotonic()
    return wait_for_places(Folder(str(folder)), FITTING, "GPU", since=since, timeout=timeout, report=notes.append)


def test_a_run_waits_until_there_are_places_and_says_so_once(
    tmp_path: Path, places: Callable[[Sequence[int]], None]
) -> None:
    notes: list[str] = []
    places([0, 0, 1, 1, 1, 5])
    assert waited(tmp_path, notes) == 4
    assert len(notes) == 1
    assert notes[0].startswith("waiting for 2 free GPUs; the cluster has ")


def test_a_cluster_that_stays_too_small_is_told(tmp_path: Path, places: Callable[[Sequence[int]], None]) -> None:
    places([1])
    with pytest.raises(RunError, match=r"workers: expected 2 free GPUs in the cluster, found 1 for 0 s"):
        waited(tmp_path, [], timeout=0.0)


def test_a_waiting_run_can_be_asked_to_end(tmp_path: Path, places: Callable[[Sequence[int]], None]) -> None:
    places([1])
    ask_to_stop(Folder(str(tmp_path)), "SIGTERM")
    assert waited(tmp_path, []) is None


def test_a_request_of_ours_is_met_once_no_worker_runs(tmp_path: Path) -> None:
    run = Folder(str(tmp_path))
    ask_to_stop(run, MORE)
    assert asked_to_end(run) is None
    assert requested(run) is None
    (tmp_path / "stop").touch()
    assert asked_to_end(run) == "the file stop"
    assert requested(run) == "the file stop"


def test_a_small_run_is_asked_to_stop_when_there_are_places_for_more(
    tmp_path: Path, places: Callable[[Sequence[int]], None]
) -> None:
    run = Folder(str(tmp_path))
    places([2])
    with watching_for_more(run, FITTING, 2, "GPU", begun=lambda: True):
        assert wait_for(lambda: requested(run), 30, "a request") == MORE


def test_nobody_grows_before_its_workers_have_their_places(
    tmp_path: Path, places: Callable[[Sequence[int]], None]
) -> None:
    run, looked = Folder(str(tmp_path)), threading.Semaphore(0)
    places([99])

    def begun() -> bool:
        looked.release()
        return False

    with watching_for_more(run, FITTING, 2, "GPU", begun=begun):
        assert all(looked.acquire(timeout=30) for _ in range(LOOKS + 2))
    assert requested(run) is None


def test_a_persons_request_is_not_written_over(tmp_path: Path, places: Callable[[Sequence[int]], None]) -> None:
    run, looked = Folder(str(tmp_path)), threading.Semaphore(0)
    places([99])
    ask_to_stop(run, "SIGTERM")

    def begun() -> bool:
        looked.release()
        return True

    with watching_for_more(run, FITTING, 2, "GPU", begun=begun):
        assert looked.acquire(timeout=30)
    assert requested(run) == "SIGTERM"


# ---------------------------------------------------------------------------- one start after the other


class Starts:
    """In place of Ray Train: what each start leaves, and how many workers it had."""

    def __init__(self, *ends: Callable[[Folder, Folder], str]) -> None:
        self.ends = list(ends)
        self.workers: list[int] = []

    def fit(self, config: TrainConfig, run: Folder, start: str, workers: int) -> str:
        self.workers.append(workers)
        return self.ends.pop(0)(run, run.child("starts").child(start))


def ends_with(reason: str) -> Callable[[Folder, Folder], str]:
    def end(run: Folder, notes: Folder) -> str:
        outcome = {"steps": 4, "total_steps": 12, "first_step": 0, "loss": 1.0, "reason": reason}
        notes.write_json("outcome.json", outcome)
        if reason != "finished":
            ask_to_stop(run, reason)
        return ""

    return end


def told_to_stop_and_lost(run: Folder, notes: Folder) -> str:
    os.kill(os.getpid(), signal.SIGTERM)
    return "worker 1 died"


@pytest.fixture
def launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: Callable[[Sequence[int]], None]
) -> Callable[..., tuple[dict[str, Any], Starts, list[str]]]:
    def run(*ends: Callable[[Folder, Folder], str]) -> tuple[dict[str, Any], Starts, list[str]]:
        starts, notes = Starts(*ends), list[str]()
        monkeypatch.setattr(launch, "_fit", starts.fit)
        values = run_values(tmp_path, "run", micro_batch=1, workers=8, min_workers=2)
        return launch.launch(TrainConfig(**values), notes.append), starts, notes

    monkeypatch.setattr(launch, "_connect", lambda *_: None)
    monkeypatch.setattr(launch, "on_gpus", lambda _: False)
    return run


def test_a_preempted_run_goes_on_with_what_is_left_and_a_small_one_becomes_larger(
    launched: Callable[..., Any], places: Callable[[Sequence[int]], None]
) -> None:
    places([8, 5, 5, 5, 8])
    outcome, starts, notes = launched(ends_with(f"{PREEMPTION}0123abcd"), ends_with(MORE), ends_with("finished"))
    assert outcome["reason"] == "finished"
    assert starts.workers[0] == 8
    assert starts.workers[1] == 4
    assert starts.workers[2] == 8
    assert "preemption of node 0123abcd; starting again from step 0" in notes
    assert "starting with 4 of 8 workers" in notes


def preempted_and_told_to_stop(run: Folder, notes: Folder) -> str:
    ends_with(f"{PREEMPTION}0123abcd")(run, notes)
    os.kill(os.getpid(), signal.SIGTERM)
    return ""


@pytest.mark.parametrize("end", [ends_with("SIGTERM"), told_to_stop_and_lost, preempted_and_told_to_stop])
def test_a_run_that_was_told_to_end_is_not_started_again(
    launched: Callable[..., Any],
    places: Callable[[Sequence[int]], None],
    end: Callable[[Folder, Folder], str],
) -> None:
    places([8])
    outcome, starts, _ = launched(end)
    assert outcome["reason"] == "SIGTERM"
    assert starts.workers == [8]


def test_the_places_of_a_node_that_is_gone_are_no_failures_of_the_run(
    launched: Callable[..., Any], places: Callable[[Sequence[int]], None]
) -> None:
    places([8, 8, 8, 8, 4])
    outcome, starts, _ = launched(*[lambda *_: launch.NO_PLACES] * 4, ends_with("finished"))
    assert outcome["reason"] == "finished"
    assert starts.workers == [8, 8, 8, 8, 4]


# ---------------------------------------------------------------------------- two starts of one run


def test_a_start_that_was_taken_over_saves_no_more(tmp_path: Path) -> None:
    """A driver that was killed is started again while workers of the old one still run."""
    old, new = (Stop(Folder(str(tmp_path)), 0, name) for name in ("old", "new"))
    old.own()
    old.require_ownership()
    assert not old.asked()
    new.own()
    new.require_ownership()
    with pytest.raises(RunError, match="another start of this run has taken it over"):
        old.require_ownership()


# ---------------------------------------------------------------------------- for real


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_a_run_outlives_a_node_grows_on_a_new_one_and_saves_when_that_is_drained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for needed in ("torch", "deepspeed", "transformers", "ray.train"):
        pytest.importorskip(needed, reason=f"{needed} comes with the extra `train`")
    from ray._raylet import GcsClient  # type: ignore[attr-defined]
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(launch, "worker", steady_worker)
    monkeypatch.setattr(elastic, "LOOK_SECONDS", 1.0)
    head = {"num_cpus": 1, "node_ip_address": "127.0.0.2", "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    node = cluster.add_node(num_cpus=1, node_ip_address="127.0.0.3")
    values = run_values(tmp_path, "run", steps=2000, save_every=5, micro_batch=2, workers=2, min_workers=1)
    config = TrainConfig(**values, address=cluster.address)
    run, notes, outcomes = tmp_path / "run", list[str](), list[dict[str, Any]]()

    def report(note: str) -> None:
        notes.append(note)
        if note.startswith(PREEMPTION):
            (run / "stop").touch()

    def go() -> None:
        outcomes.append(launch.launch(config, report))

    def running(workers: int) -> None:
        """Until a start with so many, none of which has run yet, has done steps."""
        path = run / f"running-{workers}"
        wait_for(path.exists, 120, f"a run of {workers}")
        path.unlink()

    thread = threading.Thread(target=go)
    thread.start()
    try:
        running(2)
        cluster.remove_node(node, allow_graceful=False)
        running(1)
        node = cluster.add_node(num_cpus=1, node_ip_address="127.0.0.4")
        running(2)
        GcsClient(address=cluster.address).drain_node(node.node_id, 2, "spot", int((time.time() + 60) * 1000))
        thread.join(120)
    finally:
        run.mkdir(exist_ok=True)
        (run / "stop").touch()
        thread.join(60)
        cluster.shutdown()  # type: ignore[no-untyped-call]
    assert outcomes, notes
    assert outcomes[0]["reason"] == "the file stop"
    assert outcomes[0]["steps"] == int((run / "step").read_text()), "the step of the notice was saved"
    told = [note for note in notes if "starting" in note]
    assert [note.partition(" from step")[0].partition(" of node")[0] for note in told[1:]] == [
        "starting with 1 of 2 workers",
        "more workers; starting again",
        "preemption",
    ]
