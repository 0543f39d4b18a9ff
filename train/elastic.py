"""How many workers a run has now: of those that fit (`parallel.fitting_workers`) the most that the cluster can hold.

At every start, `wait_for_places`. While a run has fewer than it could, `watching_for_more` asks it to stop when more
would find a place; `heeding_preemption`, in a worker, when Ray tells that one of its nodes will be taken away. Both ask
by RUN/stop with a reason after which `launch` starts the run again, from the checkpoint it ended with.

A place is a whole free GPU, or CPU on a cluster without GPUs, of a node that is not being drained. Ray's own elastic
runs would take any number, also one that does not divide the global batch.

Cost: one look at the cluster's free resources a second while waiting, and every LOOK_SECONDS while running; two saves,
loads and starts of all workers for a change that is taken back.
"""

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence

from taojin.core.errors import RunError
from taojin.core.storage import Folder
from taojin.train.stop import ask_to_stop, requested, withdraw
from taojin.train.waiting import meanwhile

MORE = "more workers"
PREEMPTION = "preemption of node "
# A change costs a save, a start and a load: not for places that are gone again the next time one looks.
LOOK_SECONDS = 30.0
LOOKS = 2
# After workers have ended, Ray takes a moment to count their places as free.
SETTLE_SECONDS = 5.0
WAIT_SECONDS = 1.0
NOTICE_SECONDS = 1.0
# How the reservations made here are called.
OURS = "taojin-"


def starts_again(reason: str | None) -> bool:
    """Whether a run that ended for this reason goes on by itself, on other workers."""
    return reason is not None and (reason == MORE or reason.startswith(PREEMPTION))


def asked_to_end(run: Folder) -> str | None:
    """Why a person, or SIGTERM, wants the run to end; None where nobody does. A request after which it starts again has
    been met when no worker runs any more: it is removed. Raises OSError."""
    reason = requested(run)
    if starts_again(reason):
        withdraw(run)
        return None
    return reason


def largest(fitting: Sequence[int], free: int) -> int | None:
    """The largest of the fitting numbers for which there are places; None where there are too few for any."""
    return max((workers for workers in fitting if workers <= free), default=None)


def number_now(fitting: Sequence[int], free: int, waited: float) -> int | None:
    """With how many workers to start after waiting so many seconds; None to wait on. Fewer than all only when places
    had the time to become free."""
    held = largest(fitting, free)
    return held if held == max(fitting) or waited >= SETTLE_SECONDS else None


class Growth:
    """Whether a run of `workers` should become a larger one: when LOOKS looks in a row found places for that."""

    def __init__(self, fitting: Sequence[int], workers: int) -> None:
        self._fitting = fitting
        self._workers = workers
        self._seen = 0

    def look(self, free: int) -> bool:
        """free: places besides those that the run holds."""
        more = largest(self._fitting, self._workers + free)
        self._seen = self._seen + 1 if more and more > self._workers else 0
        return self._seen >= LOOKS


def free_places(resource: str) -> int:
    """Workers, of one GPU or CPU each, that the cluster's nodes could take now."""
    from ray._private import state  # Ray has no public function for either

    draining = state.state.get_draining_nodes()
    nodes: dict[str, dict[str, float]] = state.available_resources_per_node()  # type: ignore[no-untyped-call]
    return sum(int(free.get(resource, 0)) for node, free in nodes.items() if node not in draining)


@contextlib.contextmanager
def returning_places() -> Iterator[None]:
    """What was reserved in Ray meanwhile, by this process's job, is given back. Ray Train forgets its own reservation
    where its controller fails, and nobody else would get the places while this process lives."""
    from ray import PlacementGroupID, get_runtime_context
    from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group

    job = get_runtime_context().get_job_id()

    def standing() -> set[str]:
        # The name of a group ends with the job's.
        return {
            name
            for name, group in placement_group_table().items()
            if name.endswith(job) and group["state"] != "REMOVED" and not group["name"].startswith(OURS)
        }

    before = standing()
    try:
        yield
    finally:
        for name in standing() - before:
            remove_placement_group(PlacementGroup(PlacementGroupID.from_hex(name)))


@contextlib.contextmanager
def reserved(resource: str, places: int) -> Iterator[Callable[[], int]]:
    """Wait in Ray's line for so many places, all or none, which an autoscaler sees as demand. Yields what tells how
    many are held: nobody else gets them until this ends."""
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group([{resource: 1}] * places, name=f"{OURS}{uuid.uuid4().hex}")
    try:
        yield lambda: places if group.wait(0) else 0
    finally:
        remove_placement_group(group)


def wait_for_places(
    run: Folder,
    fitting: Sequence[int],
    resource: str,
    *,
    since: float,
    timeout: float,
    report: Callable[[str], None],
) -> int | None:
    """With how many workers to start, when there are places for them; None when the run is asked to stop meanwhile.

    since: the time.monotonic() from which waiting counts. Raises RunError after `timeout` seconds without enough.
    """
    began = time.monotonic()
    held: Callable[[], int] | None = None
    with contextlib.ExitStack() as reservation:
        while True:
            free = (held() if held else 0) + free_places(resource)
            now = time.monotonic()
            if workers := number_now(fitting, free, now - began):
                return workers
            if asked_to_end(run):
                return None
            if now - began >= SETTLE_SECONDS:
                if now - since >= timeout:
                    raise RunError(_too_few(fitting, free, resource, now - since))
                if held is None:
                    report(f"waiting for {min(fitting):,} free {resource}s; the cluster has {free:,}")
                    held = reservation.enter_context(reserved(resource, max(fitting)))
            time.sleep(WAIT_SECONDS)


def _too_few(fitting: Sequence[int], free: int, resource: str, seconds: float) -> str:
    return (
        f"workers: expected {min(fitting):,} free {resource}s in the cluster, found {free:,} for {seconds:,.0f} s; "
        "`ray status` shows who holds them; lower workers, or set min_workers"
    )


@contextlib.contextmanager
def watching_for_more(
    run: Folder, fitting: Sequence[int], workers: int, resource: str, begun: Callable[[], bool]
) -> Iterator[None]:
    """While a run of `workers` lasts, ask it to stop when there are places for a larger one.

    begun: whether the workers have theirs. A reservation made before would take them away.
    """
    if workers == max(fitting):
        yield
        return
    growth = Growth(fitting, workers)
    over = threading.Event()

    def watch() -> None:
        from ray.exceptions import RayError

        held: Callable[[], int] | None = None
        with contextlib.ExitStack() as reservation:
            while not over.wait(LOOK_SECONDS):
                # A head that restarts, or storage that is away, is looked at the next time.
                with contextlib.suppress(OSError, RayError):
                    if held is None and begun():
                        held = reservation.enter_context(reserved(resource, max(fitting) - workers))
                    if held and growth.look(held() + free_places(resource)) and requested(run) is None:
                        ask_to_stop(run, MORE)

    with meanwhile(watch, over):
        yield


@contextlib.contextmanager
def heeding_preemption(run: Folder) -> Iterator[None]:
    """In a worker of Ray Train: ask the run to stop when Ray tells that the node of any of its workers will be taken
    away (`ray drain-node`, an autoscaler, a head that got SIGTERM), so that it saves before."""
    # What the public ray.train.get_preemption_info reads, without its meeting of all workers at every look.
    from ray.train.v2._internal.execution.context import get_train_context

    context = get_train_context()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(NOTICE_SECONDS):
            info = context.preemption_context.preemption_info
            # Storage that is away is tried again.
            with contextlib.suppress(OSError):
                if info and requested(run) is None:
                    ask_to_stop(run, f"{PREEMPTION}{', '.join(node[:8] for node in info.preempted_node_ids)}")
                    return

    with meanwhile(watch, over):
        yield
