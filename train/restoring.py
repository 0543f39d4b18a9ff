"""A checkpoint back into DeepSpeed, on as many workers as there now are.

On the number of workers that wrote it, every rank reads its own files, bit for bit what it had. On another number, or
another tensor-parallel degree, DeepSpeed refuses; then rank 0 has it converted to a universal checkpoint once
(`deepspeed.checkpoint.ds_to_universal`, a process of its own), which stays beside the files for the next time.

DeepSpeed reads folders. From an object store, the first worker of each node fetches the whole checkpoint to its disk,
below TMPDIR, and removes it when all have read it. Every file is compared with its checksum, once: where it lies on a
disk that all see, by the ranks together, else by those that have fetched it.
"""

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from taojin.core.errors import ConfigError, RunError, StorageError
from taojin.core.storage import FileEntry, Folder, file_checksum, with_retries
from taojin.train.checkpoint import (
    UNIVERSAL,
    UNIVERSAL_MANIFEST,
    Checkpoint,
    damage,
    read_entries,
    refuse_damage,
)
from taojin.train.waiting import together

# Files at a time: a stream of an object store is slower than most networks.
FETCHES = 8


class Restorer:
    """Of one rank. `folder`: RUN/checkpoints. `gather`: one value of each rank → all of them, in rank order. `tensor`
    and `stage`: of tensor parallel and ZeRO, now. Raises ConfigError where they cannot go on from the checkpoint."""

    def __init__(
        self,
        folder: Folder,
        checkpoint: Checkpoint,
        *,
        rank: int,
        world: int,
        local_rank: int,
        tensor: int,
        stage: int,
        gather: Any,
    ) -> None:
        self.folder = folder
        self.checkpoint = checkpoint
        self.rank = rank
        self.world = world
        self.local_rank = local_rank
        self.tensor = tensor
        self.gather: Callable[[Any], list[Any]] = gather
        _check_stage(checkpoint, stage, tensor)
        # Without ZeRO every data-parallel rank has the same states, which are written once.
        self.universal = bool(stage) and (checkpoint.devices, checkpoint.tensor) != (world, tensor)
        """Whether DeepSpeed's config must say so."""

    def load(self, engine: Any) -> None:
        """Into a fresh engine; all ranks must call it. Raises InputError where files are missing or damaged."""
        with self._root() as root:
            tag = f"{self.checkpoint.name}/{UNIVERSAL}" if self.universal else self.checkpoint.name
            groups = [dict(group) for group in engine.optimizer.param_groups]
            if self.universal and self.tensor > 1:
                cut_whole_tensors(engine.optimizer)
            loaded, _ = engine.load_checkpoint(str(root), tag=tag)
            if loaded is None:
                raise RunError(f"DeepSpeed found no checkpoint in {root}/{tag}")
            if self.universal:
                mend(engine.optimizer, groups)
            self.gather(None)

    @contextlib.contextmanager
    def _root(self) -> Iterator[Path]:
        """A folder on this machine that holds step-N, whole."""
        step, local = self.folder.child(self.checkpoint.name), self.folder.is_local
        missing = self.universal and not self._is_converted(step)
        if missing or not self.universal:
            refuse_damage(self.folder, self.checkpoint, self._damage(step, self.checkpoint.files))
        if local:
            root = Path(self.folder.path())
            if missing:
                self._alone(lambda: convert(step, root / self.checkpoint.name))
            yield root
            return
        # Workers of a node follow each other in rank order, its first one has the local rank 0.
        own = tempfile.mkdtemp(prefix="taojin-load-") if self.local_rank == 0 else ""
        root = Path(self.gather(own)[self.rank - self.local_rank])
        copy = root / self.checkpoint.name
        try:
            if missing:
                self._alone(lambda: self._convert(step, copy))
            entries = read_entries(step.read_json(UNIVERSAL_MANIFEST)) if self.universal else self.checkpoint.files
            work = (lambda: fetch_whole(step, entries, copy)) if self.local_rank == 0 else None
            found = together(work, self.gather)
            refuse_damage(self.folder, self.checkpoint, [clause for each in found for clause in each or []])
            yield root
        finally:
            if own:
                shutil.rmtree(own, ignore_errors=True)

    def _is_converted(self, step: Folder) -> bool:
        """Whether the universal files stand; damaged ones are made again."""
        found = self.gather(self.rank == 0 and step.exists(UNIVERSAL_MANIFEST) and step.read_json(UNIVERSAL_MANIFEST))
        return bool(found[0]) and not self._damage(step, read_entries(found[0]))

    def _damage(self, step: Folder, entries: Sequence[FileEntry]) -> list[str]:
        """What is wrong with these files, each rank looking at its share; those of an object store are not read yet."""
        mine = entries[self.rank :: self.world]
        found = together(lambda: damage(step, mine, checksum=step.is_local), self.gather)
        return [clause for each in found for clause in each]

    def _convert(self, step: Folder, copy: Path) -> None:
        refuse_damage(self.folder, self.checkpoint, fetch_whole(step, self.checkpoint.files, copy))
        convert(step, copy)

    def _alone(self, act: Callable[[], None]) -> None:
        """Rank 0 acts, the others wait."""
        together(act if self.rank == 0 else None, self.gather)


def _check_stage(checkpoint: Checkpoint, stage: int, tensor: int) -> None:
    names = [entry.name for entry in checkpoint.files]
    # What DeepSpeed writes: 1 and 2 are the same, and only 3 divides the model too.
    kinds = {0: "0", 1: "1 or 2", 2: "1 or 2", 3: "3"}
    written = "0"
    if any(name.endswith("optim_states.pt") for name in names):
        divided = any(name.startswith("zero_pp_rank") and name.endswith("model_states.pt") for name in names)
        written = "3" if divided else "1 or 2"
    if written != kinds[stage]:
        raise ConfigError(
            f"zero.stage: {checkpoint.name} was written with stage {written}, found {stage}, of which DeepSpeed reads "
            f"another form; go on with stage {written}, or export the model and train it further"
        )
    if stage == 0 and checkpoint.tensor != tensor:
        raise ConfigError(
            f"parallel.tensor: {checkpoint.name} was written with {checkpoint.tensor}, found {tensor}: without ZeRO "
            f"DeepSpeed cannot convert it; set it to {checkpoint.tensor}"
        )


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


def cut_whole_tensors(optimizer: Any) -> None:
    """Make a ZeRO-3 optimizer whose matrices are divided by tensor parallelism take its part of whole ones, as which
    they stand in a universal checkpoint of a run without: DeepSpeed 0.19.8 takes all of them for its part.
    """
    load = getattr(optimizer, "load_hp_checkpoint_state", None)
    if load is None:
        return
    import torch
    import torch.distributed as dist
    from deepspeed.checkpoint.universal_checkpoint import _resolve_autotp_partition
    from deepspeed.utils import groups

    def load_part(folder: str, key: str, param: Any = None) -> Any:
        whole = torch.load(Path(folder) / f"{key}.pt", weights_only=False)
        if isinstance(whole, dict):
            return load(folder, key, param=param)
        group = groups.get_tensor_model_parallel_group()
        part = _resolve_autotp_partition(param, {}, whole, dist.get_rank(group), dist.get_world_size(group), key)
        part = whole.flatten() if part is None else part
        ranks = dist.get_world_size(optimizer.dp_process_group)
        size = -(-part.numel() // ranks)
        padded = torch.nn.functional.pad(part, (0, size * ranks - part.numel()))
        return padded.narrow(0, dist.get_rank(optimizer.dp_process_group) * size, size)

    optimizer.load_hp_checkpoint_state = load_part


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


def fetch_whole(step: Folder, entries: Sequence[FileEntry], target: Path) -> list[str]:
    """Fetch, and say what is wrong with what came. Raises StorageError where it does not fit on the disk."""
    target.mkdir(parents=True, exist_ok=True)
    size, free = sum(entry.bytes for entry in entries), shutil.disk_usage(target).free
    if size > free:
        raise StorageError(f"{target}: {size:,} bytes are to be fetched, {free:,} are free; set TMPDIR to another disk")
    fetch(step, entries, target)
    return damage(Folder(str(target)), entries, checksum=True)


def fetch(step: Folder, entries: Sequence[FileEntry], target: Path) -> None:
    """Copies of the files of a checkpoint on this machine's disk, where they do not stand already. Raises
    StorageError."""
    with ThreadPoolExecutor(FETCHES, "fetch") as pool:
        for _ in pool.map(lambda entry: with_retries(lambda: _fetch(step, entry, target / entry.name)), entries):
            pass


def _fetch(step: Folder, entry: FileEntry, path: Path) -> None:
    if path.exists() and path.stat().st_size == entry.bytes:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    filesystem, _ = step.resolve()
    with filesystem.open_input_stream(step.path(entry.name)) as stream, path.open("wb") as file:
        shutil.copyfileobj(stream, file, 1 << 22)


def _upload(step: Folder, name: str, path: Path) -> FileEntry:
    with step.create(name) as sink, path.open("rb") as file:
        shutil.copyfileobj(file, sink, 1 << 22)
    return Folder.entry(name, sink)
