"""Stages as bounded maps of pure functions, on Ray or in this process.

A task is `function(context, item) -> stats`: a pure function of its arguments that commits its outputs by rename and
returns a small dict. When it returns, the driver writes `stats/<stage>/<item>.json`; an item whose stats stand is done
and is skipped on a rerun. Ray moves control only: no task returns data.

What is retried: lost workers and nodes (Ray), transient I/O errors (`taojin.core.storage.with_retries`). What is not:
UserError, and anything that would fail the same way again. A failing unit does not stop the others; the stage then
ends with a UnitError that names them all.
"""

import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from taojin.core.errors import InputError, RunError, TaojinError, UnitError, UserError
from taojin.core.progress import Progress
from taojin.core.storage import FileEntry, Folder, with_retries

Stats = dict[str, Any]
Task = Callable[[Any, Any], Stats]

WORKER_RETRIES = 4
CPU_REFRESH_SECONDS = 2.0
STARVED_SECONDS = 60.0
PROBE_SECONDS = 60.0
ANSWER_SECONDS = 10.0
# Ray replaces 127.0.0.1 by the host's address, which others can reach; on Linux all of 127/8 is loopback.
LOOPBACK = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"


class Executor(Protocol):
    """Yields (index, stats or the exception) in the order of completion."""

    def map(self, task: Task, context: Any, items: Sequence[Any]) -> Iterator[tuple[int, Stats | BaseException]]: ...

    def require_shared(self, folder: Folder) -> None: ...

    def close(self) -> None: ...


def attempt(task: Task, context: Any, item: Any) -> Stats:
    return with_retries(lambda: task(context, item))


class LocalExecutor:
    """The same functions, one after another, in this process: small inputs, debugging, profilers."""

    def map(self, task: Task, context: Any, items: Sequence[Any]) -> Iterator[tuple[int, Stats | BaseException]]:
        for index, item in enumerate(items):
            try:
                yield index, attempt(task, context, item)
            except UserError:
                raise
            except Exception as error:  # noqa: BLE001 – handed to the stage, which reports every failed unit
                yield index, error

    def require_shared(self, folder: Folder) -> None:
        pass

    def close(self) -> None:
        pass


def require_answer(address: str) -> None:
    """Raises ConnectionError where an address names a host and a port and nobody answers there: Ray would try for
    minutes, with a log of its own."""
    host, _, port = address.rpartition("://")[2].partition("/")[0].rpartition(":")
    if not host or not port.isdigit():
        # auto, local, or the name of a cluster.
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"expected a Ray cluster, found that nobody answers: {error}") from None


class RayExecutor:
    """A window of tasks in flight that follows the cluster's CPUs, twice as many as there are: the surplus is what
    an autoscaler sees as demand."""

    def __init__(self, *, address: str | None, num_cpus: int | None, quiet: bool) -> None:
        # A cluster's own choice is respected; an embedded one listens on loopback only.
        embedded = address is None
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        # Without a limit a task that never fits in memory would be retried for ever.
        os.environ.setdefault("RAY_task_oom_retries", "3")
        import logging

        import ray

        self.ray: Any = ray  # half of Ray's functions are untyped
        try:
            if embedded:
                os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
                ray.init(
                    address="local",
                    num_cpus=num_cpus,
                    include_dashboard=False,
                    _node_ip_address=LOOPBACK,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    configure_logging=not quiet,
                )
            else:
                require_answer(str(address))
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:
            where = "an embedded Ray" if embedded else f"--address {address}"
            raise InputError(f"{where}: {str(error).splitlines()[0]}") from None
        self.limit = None if embedded else num_cpus
        self._cpus = 0
        self._asked = 0.0

    def _window(self) -> int:
        now = time.monotonic()
        if now - self._asked > CPU_REFRESH_SECONDS:
            self._asked = now
            self._cpus = int(self.ray.cluster_resources().get("CPU", 0))
        cpus = min(self._cpus, self.limit) if self.limit else self._cpus
        return max(2, 2 * cpus)

    def map(self, task: Task, context: Any, items: Sequence[Any]) -> Iterator[tuple[int, Stats | BaseException]]:
        ray = self.ray
        remote = ray.remote(num_cpus=1, max_retries=WORKER_RETRIES, scheduling_strategy="SPREAD")(attempt)
        shared = ray.put(context)
        pending: dict[Any, int] = {}
        queue = iter(enumerate(items))
        last_result = time.monotonic()
        while True:
            while len(pending) < self._window():
                index, item = next(queue, (-1, None))
                if index < 0:
                    break
                pending[remote.remote(task, shared, item)] = index
            if not pending:
                return
            ready, _ = ray.wait(list(pending), num_returns=1, timeout=CPU_REFRESH_SECONDS)
            if not ready:
                if time.monotonic() - last_result > STARVED_SECONDS and not self._cpus:
                    raise RunError(
                        "the Ray cluster has had no CPU for a minute; start workers, then run again to resume"
                    )
                continue
            last_result = time.monotonic()
            reference = ready[0]
            index = pending.pop(reference)
            try:
                yield index, ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                cause = error.cause if isinstance(error.cause, BaseException) else error
                if isinstance(cause, UserError):
                    raise cause from None
                yield index, cause
            except ray.exceptions.RayError as error:
                yield index, error

    def require_shared(self, folder: Folder) -> None:
        """Raise InputError unless every node of the cluster sees the same `folder`."""
        nodes = [node["NodeID"] for node in self.ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        here = self.ray.get_runtime_context().get_node_id()
        if not folder.is_local or all(node == here for node in nodes):
            return
        probe = f".probe-{uuid.uuid4().hex}"
        folder.write_json(probe, {})
        affinity = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        look = self.ray.remote(num_cpus=0)(Folder.exists)
        try:
            seen = [
                look.options(scheduling_strategy=affinity(node, soft=False)).remote(folder, probe) for node in nodes
            ]
            if not all(self.ray.get(seen, timeout=PROBE_SECONDS)):
                raise InputError(
                    f"{folder.uri}: the cluster has {len(nodes)} nodes and some do not see this folder; use a shared "
                    "file system or s3://"
                )
        finally:
            os.unlink(folder.path(probe))

    def close(self) -> None:
        self.ray.shutdown()


@contextmanager
def open_executor(address: str | None, num_cpus: int | None, num_units: int, *, quiet: bool) -> Iterator[Executor]:
    """Ray where it pays: not with --num-cpus 0, not for a single unit unless a cluster was named."""
    address = address or os.environ.get("RAY_ADDRESS") or None
    local = num_cpus == 0 or (num_units <= 1 and address is None)
    executor: Executor = LocalExecutor() if local else RayExecutor(address=address, num_cpus=num_cpus, quiet=quiet)
    try:
        yield executor
    finally:
        executor.close()


class Stages:
    """Runs stages over the items of a plan and remembers, in `stats`, which are done."""

    def __init__(self, stats: Folder, executor: Executor, progress: Progress) -> None:
        self.stats = stats
        self.executor = executor
        self.progress = progress

    def run(
        self, stage: str, task: Task, context: Any, items: Sequence[Any], *, out: Folder | None = None
    ) -> list[Stats]:
        """Stats of every item, in item order. Raises UnitError when some items failed, after all others are done.

        With `out`, the folder of the stage's files, an item also counts as undone when they are no longer there.
        """
        done = {name.removesuffix(".json") for name in self.stats.names(stage) if name.endswith(".json")}
        results: list[Stats | None] = [None] * len(items)
        todo = []
        for index in range(len(items)):
            stats = self.stats.read_json(f"{stage}/{unit_name(index)}.json") if unit_name(index) in done else None
            if stats is None or (out and not all(out.holds(FileEntry(**entry)) for entry in stats["files"].values())):
                todo.append(index)
            else:
                results[index] = stats
        self.progress.start(stage, len(items), len(items) - len(todo))
        failures: list[tuple[int, BaseException]] = []
        for index, outcome in self.executor.map(task, context, [items[i] for i in todo]):
            number = todo[index]
            if isinstance(outcome, BaseException):
                failures.append((number, outcome))
                continue
            with_retries(partial(self.stats.write_json, f"{stage}/{unit_name(number)}.json", outcome))
            results[number] = outcome
            self.progress.advance(outcome)
        self.progress.end()
        if failures:
            raise UnitError(describe_failures(stage, failures)) from failures[0][1]
        return [stats for stats in results if stats is not None]


def unit_name(index: int) -> str:
    return f"{index:06d}"


def describe_failures(stage: str, failures: Sequence[tuple[int, BaseException]]) -> str:
    reasons = list(dict.fromkeys(_reason(error) for _, error in failures))
    shown = "; ".join(reasons[:5]) + (f"; and {len(reasons) - 5} more" if len(reasons) > 5 else "")
    return f"{stage}: {len(failures)} of the units failed, the others are done: {shown}. Run again to resume"


def _reason(error: BaseException) -> str:
    if isinstance(error, TaojinError):
        return str(error)
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
