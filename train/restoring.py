"""A checkpoint back into DeepSpeed, on as many workers as there now are.

On the number of workers that wrote it, every rank reads its own files, bit for bit what it had. On another number, or
another tensor-parallel degree, DeepSpeed refuses; then rank 0 has it converted to a universal checkpoint once
(`deepspeed.checkpoint.ds_to_universal`, a process of its own), which stays beside the files for the next time. The
other ranks wait for its manifest on the storage, not for a message: a conversion may outlast any timeout of NCCL.

DeepSpeed reads folders. From an object store, the first worker of each node fetches the whole checkpoint to its disk.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from taojin.core.errors import RunError
from taojin.core.storage import FileEntry, Folder, file_checksum, with_retries
from taojin.train.checkpoint import (
    UNIVERSAL,
    UNIVERSAL_MANIFEST,
    Checkpoint,
    damage,
    read_entries,
    refuse_damage,
)

POLL_SECONDS = 0.5


class Restorer:
    """Of one rank. `folder`: RUN/checkpoints. `gather`: one value of each rank → all of them, in rank order."""

    def __init__(
        self,
        folder: Folder,
        checkpoint: Checkpoint,
        *,
        rank: int,
        world: int,
        local_rank: int,
        tensor: int,
        gather: Any,
    ) -> None:
        self.folder = folder
        self.checkpoint = checkpoint
        self.rank = rank
        self.world = world
        self.local_rank = local_rank
        self.gather: Callable[[Any], list[Any]] = gather
        self.universal = (checkpoint.devices, checkpoint.tensor) != (world, tensor)
        """Whether DeepSpeed's config must say so."""

    def load(self, engine: Any) -> None:
        """Into a fresh engine; all ranks must call it. Raises InputError where files are missing or damaged."""
        self._verify()
        root, owned = self._local_root()
        try:
            tag = f"{self.checkpoint.name}/{UNIVERSAL}" if self.universal else self.checkpoint.name
            groups = [dict(group) for group in engine.optimizer.param_groups]
            loaded, _ = engine.load_checkpoint(str(root), tag=tag)
            if loaded is None:
                raise RunError(f"DeepSpeed found no checkpoint in {root}/{tag}")
            if self.universal:
                mend(engine.optimizer, groups)
            self.gather(None)
        finally:
            if owned:
                shutil.rmtree(root, ignore_errors=True)

    def _verify(self) -> None:
        """Each rank reads its share of the files, so that every byte is checked once."""
        files = self.checkpoint.files
        mine = [entry for number, entry in enumerate(files) if number % self.world == self.rank]
        found = damage(self.folder.child(self.checkpoint.name), mine, checksum=True)
        refuse_damage(self.folder, self.checkpoint, [clause for each in self.gather(found) for clause in each])

    def _local_root(self) -> tuple[Path, bool]:
        """(folder that holds step-N, whether this rank removes it)."""
        if self.folder.is_local:
            root = Path(self.folder.path())
            if self.universal:
                self._convert(root)
            return root, False
        root = Path(tempfile.mkdtemp(prefix="taojin-load-")) if self.local_rank == 0 else Path()
        step = self.folder.child(self.checkpoint.name)
        if self.universal:
            if self.rank == 0 and not step.exists(UNIVERSAL_MANIFEST):
                fetch(step, self.checkpoint.files, root / self.checkpoint.name)
            self._convert(root)
            if self.local_rank == 0:
                entries = read_entries(step.read_json(UNIVERSAL_MANIFEST))
                fetch(step, entries, root / self.checkpoint.name)
        elif self.local_rank == 0:
            fetch(step, self.checkpoint.files, root / self.checkpoint.name)
        # Workers of a node follow each other in rank order, its first one has the local rank 0.
        roots = self.gather(str(root))
        return Path(roots[self.rank - self.local_rank]), self.local_rank == 0

    def _convert(self, root: Path) -> None:
        """Until the universal files stand on the storage."""
        step = self.folder.child(self.checkpoint.name)
        if self.rank == 0 and not step.exists(UNIVERSAL_MANIFEST):
            convert(step, root / self.checkpoint.name)
        while not step.exists(UNIVERSAL_MANIFEST):
            time.sleep(POLL_SECONDS)


def mend(optimizer: Any, groups: list[dict[str, Any]]) -> None:
    """What DeepSpeed 0.19.8 gets wrong as it loads a universal checkpoint of ZeRO-3 with more than one parameter group:
    all get one tensor as their count of steps, which Adam then raises once for each; and all get the settings of the
    first, weight decay among them. groups: as they were before. Without this a resumed run drifts within two steps.
    """
    import torch

    for group, before in zip(optimizer.param_groups, groups, strict=True):
        group.update({key: value for key, value in before.items() if key != "params"})
    inner = getattr(optimizer, "optimizer", optimizer)
    for state in inner.state.values():
        if isinstance(state.get("step"), torch.Tensor):
            state["step"] = state["step"].clone()


def convert(step: Folder, source: Path) -> None:
    """The files of a checkpoint at `source` as a universal one, below `step` (which may be the same place)."""
    target = source / UNIVERSAL
    shutil.rmtree(target, ignore_errors=True)
    arguments = ["--input_folder", str(source), "--output_folder", str(target), "--inject_missing_state"]
    done = subprocess.run(
        [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise RunError(f"{step.uri}: the conversion for another number of workers failed: {last[0]}")
    entries = []
    for path in sorted(path for path in target.rglob("*") if path.is_file()):
        name = f"{UNIVERSAL}/{path.relative_to(target).as_posix()}"
        if not step.is_local:
            entries.append(with_retries(lambda: _upload(step, name, path)))  # noqa: B023
        else:
            checksum = file_checksum(step, name)
            entries.append(FileEntry(name=name, bytes=path.stat().st_size, xxh3=checksum, rows=0))
    step.write_json(UNIVERSAL_MANIFEST, [entry.as_json() for entry in entries])


def fetch(step: Folder, entries: tuple[FileEntry, ...], target: Path) -> None:
    """Copies of the files of a checkpoint on this machine's disk, where they do not stand already."""
    filesystem, _ = step.resolve()
    for entry in entries:
        path = target / entry.name
        if path.exists() and path.stat().st_size == entry.bytes:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with filesystem.open_input_stream(step.path(entry.name)) as stream, path.open("wb") as file:
            shutil.copyfileobj(stream, file, 1 << 22)


def _upload(step: Folder, name: str, path: Path) -> FileEntry:
    with step.create(name) as sink, path.open("rb") as file:
        shutil.copyfileobj(file, sink, 1 << 22)
    return Folder.entry(name, sink)
