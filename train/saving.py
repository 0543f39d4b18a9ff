"""Checkpoints on their way to storage, while training goes on.

DeepSpeed decides what a checkpoint holds; here its states are copied in memory and written by a thread, straight to
the storage, hashed on the way. Training stands still for the copy alone: 12 bytes a parameter with Adam in fp32,
divided by the ranks. The memory of the copy is kept for the next save, as fresh memory takes several times as long as
the copy: the first save shows it. All ranks learn of the end by numbers that they exchange in every step anyway
(`flags`, `settle`), so no thread ever takes part in communication.

A save that fails (disk full) is counted and given up by all ranks; the run goes on and the next save is the next try.
Which checkpoints count is for `checkpoint`.
"""

import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from taojin.core.errors import StorageError
from taojin.core.storage import FileEntry, Folder, first_line, with_retries
from taojin.train.checkpoint import Checkpoint, commit, name_of, prune, remove

Gather = Callable[[Any], list[Any]]


class Snapshots:
    """Copies of nests of tensors on the host.

    kept: every copy since `begin` takes the memory that the copy in its place took before, which must not be in use
    any more. Tensors of a GPU are copied to pinned memory, which PyTorch rounds up to powers of two.
    """

    def __init__(self, *, kept: bool) -> None:
        self._kept = kept
        self._buffers: list[Any] = []
        self._next = 0

    def begin(self) -> None:
        self._next = 0

    def take(self, value: Any) -> Any:
        """The same nest of dicts, lists and tuples with every tensor copied to memory of its own."""
        import torch

        copied = self._copy(value)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return copied

    def _copy(self, value: Any) -> Any:
        import torch

        if isinstance(value, torch.Tensor):
            # What torch.save writes of a view is all that it is a view of, hence the copy even where it is not needed.
            return self._buffer(value).copy_(value.detach(), non_blocking=True)
        if isinstance(value, dict):
            copy = type(value)() if type(value) is not dict else {}
            for key, inner in value.items():
                copy[key] = self._copy(inner)
            return copy
        if type(value) in (list, tuple):
            return type(value)(self._copy(inner) for inner in value)
        return value

    def _buffer(self, like: Any) -> Any:
        import torch

        if not self._kept:
            return torch.empty(like.shape, dtype=like.dtype, device="cpu")
        number, self._next = self._next, self._next + 1
        known = self._buffers[number] if number < len(self._buffers) else None
        if known is not None and (known.shape, known.dtype) == (like.shape, like.dtype):
            return known
        buffer = torch.empty(like.shape, dtype=like.dtype, device="cpu", pin_memory=like.is_cuda)
        self._buffers[number : number + 1] = [buffer]
        return buffer


class Saver:
    """Saves of one rank.

    folder: RUN/checkpoints. gather: one value of each rank → all of them, in rank order. before_commit: rank 0 calls it
    when all files stand; what it raises ends the run before they count.
    """

    def __init__(
        self,
        folder: Folder,
        *,
        rank: int,
        devices: int,
        tensor: int,
        keep_last: int,
        keep_every: int,
        asynchronous: bool,
        gather: Gather,
        report: Callable[[str], None],
        before_commit: Callable[[], None] = lambda: None,
    ) -> None:
        self.folder = folder
        self.rank = rank
        self.devices = devices
        self.tensor = tensor
        self.keep_last = keep_last
        self.keep_every = keep_every
        self.asynchronous = asynchronous
        self.gather = gather
        self.report = report
        self.before_commit = before_commit
        self.saved = 0
        self.failed = 0
        self.slowest = 0.0
        """Seconds from the start of a save to its end, the longest so far."""
        self.blocked = 0.0
        """Seconds for which the last save kept the training waiting."""
        self.lost: str | None = None
        """Rank 0: why the last save failed; None where it stands."""
        self._began = 0.0
        self._step: int | None = None
        self._snapshots = Snapshots(kept=asynchronous)
        self._states: list[tuple[str, Any]] = []
        self._entries: list[FileEntry] = []
        self._problem: str | None = None
        self._thread: threading.Thread | None = None

    def attach(self, engine: Any) -> None:
        """DeepSpeed's states come to us instead of to files."""
        engine.checkpoint_engine.save = self._take

    def start(self, engine: Any, step: int) -> None:
        """Begin a save; all ranks must call it. One that is still on its way is waited for first."""
        self._began = time.monotonic()
        self.wait()
        self._step, self._entries, self._problem = step, [], None
        self._snapshots.begin()
        # DeepSpeed also copies scripts, and NVMe swap files, by itself: a folder of our own shows what came.
        self._scratch = Path(tempfile.mkdtemp(prefix="taojin-save-"))
        engine.save_checkpoint(str(self._scratch), tag=name_of(step), save_latest=False)
        self._thread = threading.Thread(target=self._write, name=f"save-{step}", daemon=True)
        self._thread.start()
        if not self.asynchronous:
            self.wait()
        self.blocked = time.monotonic() - self._began

    def flags(self) -> tuple[int, int]:
        """(1 while files are being written, 1 if that failed): what `settle` wants the sums of."""
        pending = self._thread is not None and self._thread.is_alive()
        return int(pending), int(self._problem is not None and not pending)

    def settle(self, pending: int, problems: int) -> None:
        """With the sums of `flags` over all ranks: end the save if all have written. All ranks must call it."""
        if self._step is None or pending:
            return
        step, self._step, self._thread = self._step, None, None
        gathered: list[tuple[list[FileEntry], str | None]] = self.gather((self._entries, self._problem))
        found = [problem for _, problem in gathered if problem]
        assert bool(found) == bool(problems)
        self.slowest = max(self.slowest, time.monotonic() - self._began)
        if self.rank == 0 and not found:
            files = sorted((entry for entries, _ in gathered for entry in entries), key=lambda entry: entry.name)
            found = self._commit(step, files)
        elif self.rank == 0:
            with contextlib.suppress(OSError):
                remove(self.folder, step)
        self.lost = found[0] if found else None
        if found:
            self.failed += 1
            self.report(f"the checkpoint of step {step:,} was not saved, training goes on: {found[0]}")
        else:
            self.saved += 1

    def wait(self) -> None:
        """Until a save on its way has ended; all ranks must call it."""
        if self._step is None:
            return
        if self._thread is not None:
            self._thread.join()
        self.settle(0, sum(self.gather(self.flags()[1])))

    def _take(self, state_dict: Any, path: str) -> None:
        self._states.append((Path(path).name, self._snapshots.take(state_dict)))

    def _write(self) -> None:
        import torch

        assert self._step is not None
        target = self.folder.child(name_of(self._step))
        try:
            while self._states:
                name, state = self._states.pop()
                self._entries.append(with_retries(lambda: _save(target, name, lambda sink: torch.save(state, sink))))  # noqa: B023
                del state
            written = self._scratch / name_of(self._step)
            for path in sorted(written.rglob("*")):
                if path.is_file():
                    name = path.relative_to(written).as_posix()
                    self._entries.append(with_retries(lambda: _save(target, name, lambda sink: _copy(path, sink))))  # noqa: B023
        except (OSError, StorageError, RuntimeError) as error:
            # A RuntimeError is torch's.
            self._problem = first_line(error)
        finally:
            self._states.clear()
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _commit(self, step: int, files: Sequence[FileEntry]) -> list[str]:
        checkpoint = Checkpoint(step=step, devices=self.devices, tensor=self.tensor, files=tuple(files))
        self.before_commit()
        try:
            with_retries(lambda: commit(self.folder, checkpoint))
            with_retries(lambda: prune(self.folder, self.keep_last, self.keep_every))
        except StorageError as error:
            return [first_line(error)]
        return []


def _save(target: Folder, name: str, write: Callable[[Any], None]) -> FileEntry:
    try:
        with target.create(name) as sink:
            write(sink)
    except RuntimeError as error:
        # What torch says of an output that raised is where in the file it was, and nothing to try again by.
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise
    return Folder.entry(name, sink)


def _copy(path: Path, sink: Any) -> None:
    with path.open("rb") as file:
        shutil.copyfileobj(file, sink, 1 << 22)
