"""Requests to end a run after a last checkpoint, from wherever they come.

    SIGTERM to a worker, as preemption sends it     the file RUN/stop, which may hold the reason
    RUN/owner naming another start                  the budget, or whoever else calls `ask`

Rank 0 looks at the storage, and the loop tells the others: all ranks end at the same step.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from taojin.core.errors import RunError
from taojin.core.storage import Folder, first_line

STOP = "stop"
OWNER = "owner"
# A request on an object store takes some 20 ms, and a stop can wait that long.
STOP_SECONDS = 5.0


class Stop:
    """`folder`: RUN. `start`: the name of this start of the run, that others can take the run over from."""

    def __init__(self, folder: Folder, rank: int, start: str) -> None:
        self._folder = folder
        self._rank = rank
        self._start = start
        self._looked = 0.0
        self.reason: str | None = None

    def listening(self) -> AbstractContextManager[None]:
        """SIGTERM, which preemption sends, ends the run in order."""
        return on_sigterm(lambda: self.ask("SIGTERM"))

    def ask(self, reason: str) -> None:
        self.reason = self.reason or reason

    def asked(self) -> bool:
        """Raises RunError where another start has taken the run over: this one must not save any more."""
        now = time.monotonic()
        if self.reason is None and self._rank == 0 and now - self._looked > STOP_SECONDS:
            self._looked = now
            self.require_ownership()
            # Storage that is away for a moment must not end a run that only wanted to look.
            with contextlib.suppress(OSError):
                if reason := requested(self._folder):
                    self.ask(reason)
        return self.reason is not None

    def own(self) -> None:
        """From now on the run is this start's; the one before ends as soon as it looks. Rank 0 calls it."""
        with self._folder.create(OWNER) as sink:
            sink.write(self._start.encode())

    def require_ownership(self) -> None:
        """Raises RunError where the run is another start's. Storage that does not answer is no proof."""
        try:
            owner = self._folder.read_bytes(OWNER).decode(errors="replace")
        except OSError:
            return
        if owner != self._start:
            raise RunError(f"{self._folder.uri}: another start of this run has taken it over; this one ends")


@contextlib.contextmanager
def on_sigterm(act: Callable[[], None]) -> Iterator[None]:
    """Meanwhile, SIGTERM to this process does this alone. Only a process's main thread can listen: in another, nothing
    changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: act())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def ask_to_stop(folder: Folder, reason: str) -> None:
    """Whoever runs at `folder` saves and ends. Raises OSError."""
    with folder.create(STOP) as sink:
        sink.write(reason.encode())


def requested(folder: Folder) -> str | None:
    """Why whoever runs at `folder` is asked to stop; None where nobody asks. Raises OSError."""
    try:
        return folder.read_bytes(STOP).decode(errors="replace").strip() or f"the file {STOP}"
    except FileNotFoundError:
        return None


def withdraw(folder: Folder) -> None:
    """Remove an earlier request; none is none."""
    filesystem, path = folder.resolve()
    try:
        filesystem.delete_file(f"{path}/{STOP}")
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunError(f"{folder.uri}/{STOP} cannot be removed: {first_line(error)}") from None
