"""Stages as bounded maps (core/tasks.py): the done is skipped, the failed is named, the passing tried again."""

import errno
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taojin.core import storage
from taojin.core.errors import BadShardError, InputError, StorageError, UnitError
from taojin.core.progress import Progress
from taojin.core.storage import Folder
from taojin.core.tasks import LocalExecutor, Stages, describe_failures
from tests.jobs import ENVIRONMENT, ROOT


@pytest.fixture
def stages(tmp_path: Path) -> Stages:
    return Stages(Folder(str(tmp_path)), LocalExecutor(), Progress(quiet=True))


def doubling(calls: list[int]) -> Callable[[Any, int], dict[str, Any]]:
    def double(context: Any, item: int) -> dict[str, Any]:
        calls.append(item)
        return {"value": 2 * item + context}

    return double


def test_stats_come_back_in_the_order_of_items(stages: Stages) -> None:
    assert stages.run("double", doubling([]), 1, [5, 3, 4]) == [{"value": 11}, {"value": 7}, {"value": 9}]


def test_what_is_done_is_not_done_again(stages: Stages) -> None:
    calls: list[int] = []
    first = stages.run("double", doubling(calls), 0, [1, 2])
    assert stages.run("double", doubling(calls), 0, [1, 2]) == first
    assert calls == [1, 2]


def test_stages_do_not_mix(stages: Stages) -> None:
    calls: list[int] = []
    stages.run("one", doubling(calls), 0, [1])
    stages.run("two", doubling(calls), 0, [1])
    assert calls == [1, 1]


def test_a_failing_item_does_not_stop_the_others_and_a_rerun_does_it_alone(stages: Stages) -> None:
    calls: list[int] = []

    def sometimes(context: Any, item: int) -> dict[str, Any]:
        calls.append(item)
        if item == 2 and calls.count(2) == 1:
            raise BadShardError("b.parquet: page 3 is damaged")
        return {"item": item}

    with pytest.raises(UnitError, match=r"^scan: 1 of the units failed.*: b\.parquet: page 3 is damaged\. Run again"):
        stages.run("scan", sometimes, None, [1, 2, 3])
    assert calls == [1, 2, 3]
    assert stages.run("scan", sometimes, None, [1, 2, 3]) == [{"item": 1}, {"item": 2}, {"item": 3}]
    assert calls == [1, 2, 3, 2]


def test_the_users_errors_stop_at_once(stages: Stages) -> None:
    calls: list[int] = []

    def wrong(context: Any, item: int) -> dict[str, Any]:
        calls.append(item)
        raise InputError("no such column")

    with pytest.raises(InputError, match="no such column"):
        stages.run("scan", wrong, None, [1, 2, 3])
    assert calls == [1]


def test_transient_errors_are_tried_again(stages: Stages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "FIRST_PAUSE_SECONDS", 0.0)
    calls: list[int] = []

    def flaky(context: Any, item: int) -> dict[str, Any]:
        calls.append(item)
        if len(calls) < 3:
            raise OSError(errno.ETIMEDOUT, "timed out")
        return {}

    assert stages.run("scan", flaky, None, [1]) == [{}]
    assert calls == [1, 1, 1]


def test_files_that_are_gone_are_made_again(stages: Stages, tmp_path: Path) -> None:
    out = Folder(str(tmp_path / "out"))
    calls: list[int] = []

    def write(context: Any, item: int) -> dict[str, Any]:
        calls.append(item)
        return {"files": {"part": out.write_json(f"{item}.json", item).as_json()}}

    stages.run("write", write, None, [0, 1], out=out)
    Path(out.path("1.json")).unlink()
    stages.run("write", write, None, [0, 1], out=out)
    assert calls == [0, 1, 1]


def test_a_long_list_of_failures_is_shortened() -> None:
    failures = [(i, StorageError(f"disk {i % 9} is full")) for i in range(30)]
    message = describe_failures("write", failures)
    assert message.startswith("write: 30 of the units failed, the others are done: disk 0 is full; disk 1 is full; ")
    assert "and 4 more" in message
    assert "\n" not in message


# ------------------------------------------------------------------------------------------------- on Ray

SCRIPT = """
import json, os, sys
from taojin.core.errors import InputError, StorageError
from taojin.core.errors import BadShardError
from taojin.core.tasks import RayExecutor

folder = sys.argv[1]

def count(name):
    with open(f"{folder}/{name}", "a") as file:
        file.write("x")
    return os.path.getsize(f"{folder}/{name}")

def task(context, item):
    tries = count(item)
    if item == "dies once" and tries == 1:
        os._exit(1)
    if item == "fails twice" and tries < 3:
        raise OSError(110, "timed out")
    if item == "no space":
        raise OSError(28, "No space left on device")
    if item == "bad shard":
        raise BadShardError("b.parquet: damaged")
    if item == "defect":
        raise ZeroDivisionError("a defect")
    return {"item": item, "size": len(context), "threads": os.environ.get("OMP_NUM_THREADS")}

executor = RayExecutor(address=None, num_cpus=2, quiet=True)
items = ["fine", "dies once", "fails twice", "no space", "bad shard", "defect"]
seen = {}
for index, outcome in executor.map(task, bytes(5_000_000), items):
    error = isinstance(outcome, BaseException)
    seen[items[index]] = [type(outcome).__name__, str(outcome)] if error else outcome
def wrong(context, item):
    raise InputError("no such column")
try:
    list(executor.map(wrong, None, [1, 2]))
except InputError as error:
    seen["user"] = str(error)
seen["addresses"] = [node["NodeManagerAddress"] for node in executor.ray.nodes()]
seen["tries"] = {name: os.path.getsize(f"{folder}/{name}") for name in items}
executor.close()
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def on_ray(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("ray")
    (folder / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, folder / "script.py", folder],
        capture_output=True, text=True, env=ENVIRONMENT, cwd=ROOT, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # Ray prints what it has to say of lost workers before.
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


@pytest.mark.ray
def test_ray_runs_the_same_functions(on_ray: dict[str, Any]) -> None:
    assert on_ray["fine"]["size"] == 5_000_000


@pytest.mark.ray
def test_a_lost_worker_is_replaced(on_ray: dict[str, Any]) -> None:
    assert on_ray["dies once"]["item"] == "dies once"
    assert on_ray["tries"]["dies once"] == 2


@pytest.mark.ray
def test_workers_try_transient_errors_again(on_ray: dict[str, Any]) -> None:
    assert on_ray["fails twice"]["item"] == "fails twice"
    assert on_ray["tries"]["fails twice"] == 3


@pytest.mark.ray
@pytest.mark.parametrize(
    ("item", "kind", "message"),
    [
        ("no space", "StorageError", "No space left on device"),
        ("bad shard", "BadShardError", "b.parquet: damaged"),
        ("defect", "ZeroDivisionError", "a defect"),
    ],
)
def test_errors_of_workers_come_back_as_they_were_after_one_try(
    on_ray: dict[str, Any], item: str, kind: str, message: str
) -> None:
    assert on_ray[item][0] == kind
    assert message in on_ray[item][1]
    assert on_ray["tries"][item] == 1


@pytest.mark.ray
def test_the_users_errors_come_back_from_workers_as_such(on_ray: dict[str, Any]) -> None:
    assert on_ray["user"] == "no such column"


@pytest.mark.ray
def test_an_embedded_ray_listens_on_loopback(on_ray: dict[str, Any]) -> None:
    assert [address.startswith("127.") for address in on_ray["addresses"]] == [True]
