"""A checkpoint as a folder that Hugging Face's tools load: safetensors, config, tokenizer, and a model card.

In: RUN, local or on an object store, and the step of a complete checkpoint, or the newest. Out: a local folder OUT with
model-0000k-of-0000n.safetensors of at most SHARD_BYTES, model.safetensors.index.json, config.json, README.md
(`model_card`) and what RUN/model holds besides. OUT appears under its name when all of it stands.

Every file of the checkpoint is read once to compare its checksum. Weights are then put together parameter by parameter,
one file of the output in memory at a time; needs no GPU and no process group. From an object store the checkpoint is
fetched to the disk of TMPDIR first, and removed afterwards.

From ranks that did not share matrices the files of DeepSpeed serve as they are. Its own script fails on those of
tensor-parallel ranks, which are converted to a universal checkpoint first (`restoring.convert`), where every parameter
is whole. The weights are the optimizer's fp32 ones, rounded to the precision of the run.
"""

import contextlib
import io
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from taojin.core.errors import InputError, OutputError, StorageError
from taojin.core.storage import FileEntry, Folder, first_line, with_retries
from taojin.core.uris import is_uri
from taojin.train.checkpoint import (
    MANIFEST,
    UNIVERSAL,
    UNIVERSAL_MANIFEST,
    Checkpoint,
    damage,
    name_of,
    newest,
    read,
    read_entries,
    refuse_damage,
)
from taojin.train.model import DTYPES
from taojin.train.model_card import model_card, read_facts
from taojin.train.restoring import convert, fetch

# The usual size: what a loader maps at once, and what hubs take.
SHARD_BYTES = 5_000_000_000
WHOLE_MODEL = "mp_rank_00_model_states.pt"
WEIGHTS_INDEX = "model.safetensors.index.json"
CARD = "README.md"


def export(run: str, output: str, step: int | None = None, shard_bytes: int = SHARD_BYTES) -> Checkpoint:
    """Write the model of a run as a Hugging Face folder. Raises InputError for a run or a step that is not there or is
    damaged, OutputError for a folder that cannot be it, StorageError where a disk is full."""
    folder, target = Folder(run), _target(output)
    checkpoint = _find(folder, step)
    with _appearing(target) as made, _whole(folder.child("checkpoints"), checkpoint) as source:
        _write(folder, checkpoint, source, made, target.name, shard_bytes)
    return checkpoint


def _target(output: str) -> Path:
    """The folder to write, which is not there, or empty. Raises OutputError."""
    if is_uri(output):
        raise OutputError(f"{output}: expected a local folder; upload it from there")
    target = Path(os.path.abspath(output))
    if target.exists() and not target.is_dir():
        raise OutputError(f"{output}: expected a new or an empty folder, found a file")
    if target.exists() and any(target.iterdir()):
        raise OutputError(f"{output}: expected a new or an empty folder, found {len(list(target.iterdir())):,} entries")
    if os.path.ismount(target):
        raise OutputError(f"{output}: a folder is put into place by renaming; name one below this mount point")
    return target


def _find(folder: Folder, step: int | None) -> Checkpoint:
    checkpoints = folder.child("checkpoints")
    found = newest(checkpoints) if step is None else read(checkpoints, step)
    if found is None:
        what = "a complete checkpoint" if step is None else f"{name_of(step)}/{MANIFEST}"
        raise InputError(f"{checkpoints.uri}: expected {what}, found {', '.join(checkpoints.names()) or 'nothing'}")
    return found


@contextlib.contextmanager
def _appearing(target: Path) -> Iterator[Path]:
    """A folder that gets its name when the block ends without an exception. Raises StorageError for what the disk says.

    What a killed export leaves is called .NAME.….tmp, and in nobody's way."""
    from safetensors import SafetensorError

    made = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        made.mkdir(parents=True)
        yield made
        made.replace(target)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(made, ignore_errors=True)
        where = getattr(error, "filename", None) or target
        raise StorageError(f"{where}: {getattr(error, 'strerror', None) or first_line(error)}") from None
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


@contextlib.contextmanager
def _whole(checkpoints: Folder, checkpoint: Checkpoint) -> Iterator[Path]:
    """The folder of a checkpoint on a disk, its files compared with their checksums; a copy is removed afterwards.
    Raises InputError where files are missing or damaged."""
    step = checkpoints.child(checkpoint.name)
    entries = _needed(step, checkpoint)
    if checkpoints.is_local:
        refuse_damage(checkpoints, checkpoint, damage(step, entries, checksum=True))
        yield Path(step.path())
        return
    # What is missing is known before anything is fetched.
    refuse_damage(checkpoints, checkpoint, damage(step, entries, checksum=False))
    with tempfile.TemporaryDirectory(prefix="taojin-export-") as root:
        size, free = sum(entry.bytes for entry in entries), shutil.disk_usage(root).free
        if size > free:
            raise StorageError(
                f"{root}: {size:,} bytes are to be fetched, {free:,} are free; set TMPDIR to another disk"
            )
        copy = Path(root) / checkpoint.name
        with_retries(lambda: fetch(step, entries, copy))
        refuse_damage(checkpoints, checkpoint, damage(Folder(str(copy)), entries, checksum=True))
        if entries != checkpoint.files:
            Folder(str(copy)).write_json(UNIVERSAL_MANIFEST, [entry.as_json() for entry in entries])
        yield copy


def _needed(step: Folder, checkpoint: Checkpoint) -> tuple[FileEntry, ...]:
    """The files that the weights are read from: all of DeepSpeed's, or of a universal checkpoint the weights alone."""
    if checkpoint.tensor == 1 or not step.exists(UNIVERSAL_MANIFEST):
        return checkpoint.files
    entries = read_entries(step.read_json(UNIVERSAL_MANIFEST))
    return tuple(entry for entry in entries if entry.name.endswith("/fp32.pt"))


def _write(folder: Folder, checkpoint: Checkpoint, source: Path, made: Path, name: str, shard_bytes: int) -> None:
    import torch

    facts = read_facts(folder, checkpoint.step)
    if not folder.exists("model/config.json"):
        raise InputError(
            f"{folder.uri}/model/config.json: No such file; expected the model that the run was started with"
        )
    precision = facts["run"]["config"]["precision"]
    for kept in folder.names("model"):
        (made / kept).write_bytes(folder.read_bytes(f"model/{kept}"))
    config = json.loads((made / "config.json").read_text(encoding="utf-8")) | {"dtype": DTYPES[precision]}
    _write_json(made / "config.json", config)
    found = _parameters(source, checkpoint, getattr(torch, DTYPES[precision]), bool(config.get("tie_word_embeddings")))
    parameters = _write_weights(made, _parts(found, shard_bytes))
    files = [path.name for path in made.iterdir()]
    card = model_card(name=name, model=config, checkpoint=checkpoint, parameters=parameters, files=files, **facts)
    (made / CARD).write_text(card, encoding="utf-8")


def _write_weights(made: Path, parts: Iterator[dict[str, Any]]) -> int:
    """Files of safetensors and, where there are several, their index; the number of parameters."""
    from safetensors.torch import save_file

    written: list[tuple[str, list[str]]] = []
    size = parameters = 0
    for part in parts:
        name = f"part-{len(written)}.tmp"
        # The metadata is what loaders look at to know whose tensors these are.
        save_file(part, made / name, metadata={"format": "pt"})
        # It writes files that nobody else may read.
        (made / name).chmod((made / "config.json").stat().st_mode)
        written.append((name, list(part)))
        size += sum(tensor.nbytes for tensor in part.values())
        parameters += sum(tensor.numel() for tensor in part.values())
    places: dict[str, str] = {}
    for number, (temporary, names) in enumerate(written, 1):
        name = f"model-{number:05d}-of-{len(written):05d}.safetensors" if len(written) > 1 else "model.safetensors"
        (made / temporary).rename(made / name)
        places |= dict.fromkeys(names, name)
    if len(written) > 1:
        _write_json(made / WEIGHTS_INDEX, {"metadata": {"total_size": size}, "weight_map": places})
    return parameters


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _parts(parameters: Iterator[tuple[str, Any]], shard_bytes: int) -> Iterator[dict[str, Any]]:
    """Parameters in order, as many as go into a file."""
    part: dict[str, Any] = {}
    size = 0
    for name, tensor in parameters:
        if part and size + tensor.nbytes > shard_bytes:
            yield part
            part, size = {}, 0
        part[name] = tensor
        size += tensor.nbytes
    yield part


def _parameters(source: Path, checkpoint: Checkpoint, dtype: Any, tied: bool) -> Iterator[tuple[str, Any]]:
    found = _merged(source) if checkpoint.tensor > 1 else _gathered(source)
    for name, tensor in found:
        # A tied output matrix is the embedding, and is not stored twice.
        if not (tied and name == "lm_head.weight"):
            yield name, tensor.to(dtype).contiguous()


def _gathered(source: Path) -> Iterator[tuple[str, Any]]:
    import torch

    if not any(source.glob("*_optim_states.pt")):
        # ZeRO-0 divides nothing: the module is whole in its one file.
        states = torch.load(source / WHOLE_MODEL, map_location="cpu", mmap=True, weights_only=False)
        yield from states["module"].items()
        return
    # It tells its progress on stdout, which is for the command's own answer, and warns there as it is imported.
    with contextlib.redirect_stdout(io.StringIO()):
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        states = get_fp32_state_dict_from_zero_checkpoint(str(source.parent), tag=source.name, lazy_mode=True)
    for name, tensor in states.items():
        # Lazily: what is divided is put together when it is asked for.
        yield name, tensor.contiguous()


def _merged(source: Path) -> Iterator[tuple[str, Any]]:
    import torch

    step = Folder(str(source))
    if not any(source.glob("*_optim_states.pt")):
        raise InputError(f"{source}: weights of ZeRO-0 that are divided by tensor cannot be exported; use zero.stage 1")
    if not step.exists(UNIVERSAL_MANIFEST):
        convert(step, source)
    for path in sorted((source / UNIVERSAL / "zero").glob("*/fp32.pt")):
        yield path.parent.name, torch.load(path, map_location="cpu", weights_only=False)["param"]
