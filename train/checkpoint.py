"""Which checkpoints of a run stand, which count, and which may go. Storage alone: no torch, no DeepSpeed.

    RUN/checkpoints/step-00000500/…               the files of DeepSpeed, each rank its own
    RUN/checkpoints/step-00000500/manifest.json   size and checksum of each, written when all of them stand
    RUN/checkpoints/step-00000500/universal/…     the same for any number of workers, made when it is first needed
    RUN/checkpoints/step-00000500/universal.json  written when that is complete
    RUN/checkpoints/latest                        the name of the newest one, for people and tools; written last

A folder without a manifest is half-written: it is never loaded, and removed when a newer one stands. The newest
manifest is what a run resumes from, so that a crash between manifest and `latest` loses nothing. Works on any storage,
since nothing is renamed and no folder is moved. `saving` writes what is listed here, `restoring` loads it.
"""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.fs as pafs

from taojin.core.errors import InputError, InvariantError
from taojin.core.storage import FileEntry, Folder

MANIFEST = "manifest.json"
UNIVERSAL = "universal"
UNIVERSAL_MANIFEST = "universal.json"
LATEST = "latest"
_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One that is complete. `devices`: ranks that wrote it; `tensor`: how many of them shared every matrix."""

    step: int
    devices: int
    tensor: int
    files: tuple[FileEntry, ...]

    @property
    def name(self) -> str:
        return name_of(self.step)

    def as_json(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "devices": self.devices,
            "tensor": self.tensor,
            "files": [entry.as_json() for entry in self.files],
        }


def name_of(step: int) -> str:
    return f"step-{step:08d}"


def steps(folder: Folder) -> list[int]:
    """The steps of all checkpoint folders, complete or not, in order."""
    found = (_NAME.fullmatch(name) for name in folder.names())
    return sorted(int(match[1]) for match in found if match)


def read(folder: Folder, step: int) -> Checkpoint | None:
    """The checkpoint of a step; None where it is not complete. Raises InputError where its manifest is damaged."""
    name = f"{name_of(step)}/{MANIFEST}"
    try:
        values = folder.read_json(name)
    except FileNotFoundError:
        return None
    except ValueError:
        raise InputError(f"{folder.uri}/{name}: not JSON; remove {name_of(step)} to resume from an older one") from None
    try:
        return Checkpoint(
            step=values["step"],
            devices=values["devices"],
            tensor=values["tensor"],
            files=read_entries(values["files"]),
        )
    except (KeyError, TypeError):
        raise InputError(
            f"{folder.uri}/{name}: expected the manifest of a checkpoint, found other keys; remove {name_of(step)} "
            "to resume from an older one"
        ) from None


def read_entries(values: list[dict[str, Any]]) -> tuple[FileEntry, ...]:
    return tuple(FileEntry(**value) for value in values)


def newest(folder: Folder) -> Checkpoint | None:
    """The complete checkpoint of the highest step."""
    for step in reversed(steps(folder)):
        if checkpoint := read(folder, step):
            return checkpoint
    return None


def commit(folder: Folder, checkpoint: Checkpoint) -> None:
    """All its files stand: from here on it counts."""
    folder.child(checkpoint.name).write_json(MANIFEST, checkpoint.as_json())
    with folder.create(LATEST) as sink:
        sink.write(f"{checkpoint.name}\n".encode())


def damage(folder: Folder, entries: Sequence[FileEntry], *, checksum: bool) -> list[str]:
    """What is wrong with these files of a folder, one clause each; with `checksum` they are read."""
    found = []
    for entry in entries:
        try:
            folder.require(entry, checksum=checksum)
        except InvariantError as error:
            found.append(str(error))
    return found


def refuse_damage(folder: Folder, checkpoint: Checkpoint, found: Sequence[str]) -> None:
    """Raise InputError that names what is missing, where anything is."""
    if not found:
        return
    older = [step for step in steps(folder) if step < checkpoint.step and read(folder, step)]
    instead = f"remove {checkpoint.name} to resume from step {older[-1]:,}" if older else "there is no older one"
    shown = "; ".join(found[:3]) + (f"; and {len(found) - 3:,} more" if len(found) > 3 else "")
    raise InputError(f"the checkpoint of step {checkpoint.step:,} is not whole: {shown}: {instead}")


def prune(folder: Folder, keep_last: int, keep_every: int) -> list[int]:
    """Remove all but the newest `keep_last` complete checkpoints and those whose step is a multiple of `keep_every`
    (0: none), and what is incomplete and older than the newest. Returns the removed steps."""
    all_steps = steps(folder)
    complete = [step for step in all_steps if folder.exists(f"{name_of(step)}/{MANIFEST}")]
    kept = set(complete[-keep_last:]) | {step for step in complete if keep_every and step % keep_every == 0}
    removed = [step for step in all_steps if complete and step < complete[-1] and step not in kept]
    for step in removed:
        remove(folder, step)
    return removed


def remove(folder: Folder, step: int) -> None:
    """The manifest first: a folder that is removed only in part must not count."""
    filesystem, path = folder.child(name_of(step)).resolve()
    with contextlib.suppress(FileNotFoundError):
        filesystem.delete_file(f"{path}/{MANIFEST}")
    if filesystem.get_file_info(path).type != pafs.FileType.NotFound:
        filesystem.delete_dir(path)
