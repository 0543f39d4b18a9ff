"""A checkpoint as a folder that Hugging Face's tools load: safetensors, config, tokenizer.

In: RUN and the step of a complete checkpoint, or the newest. Out: OUT/model-0000k-of-0000n.safetensors of at most
SHARD_BYTES, model.safetensors.index.json, config.json and what RUN/model holds besides. Weights are put together
parameter by parameter, one file of the output in memory at a time; needs no GPU and no process group, but a local RUN.

From ranks that did not share matrices the files of DeepSpeed serve as they are. Its own script fails on those of
tensor-parallel ranks, which are converted to a universal checkpoint first (`restoring.convert`), where every parameter
is whole. The weights are the optimizer's fp32 ones, rounded to the precision of the run.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from taojin.core.errors import InputError, OutputError
from taojin.core.storage import Folder
from taojin.train.checkpoint import MANIFEST, UNIVERSAL, UNIVERSAL_MANIFEST, Checkpoint, name_of, newest, read
from taojin.train.model import DTYPES
from taojin.train.restoring import convert

# The usual size: what a loader maps at once, and what hubs take.
SHARD_BYTES = 5_000_000_000
WEIGHTS_INDEX = "model.safetensors.index.json"


def export(run: str, output: str, step: int | None = None, shard_bytes: int = SHARD_BYTES) -> Checkpoint:
    """Write the model of a run as a Hugging Face folder. Raises InputError for a run or a step that is not there,
    OutputError for a folder that holds something."""
    import torch
    from safetensors.torch import save_file

    folder, target = Folder(run), Path(output)
    if not folder.is_local:
        raise InputError(
            f"{run}: expected a run on a local or shared disk; copy its checkpoint and model folder to one"
        )
    if target.exists() and any(target.iterdir()):
        raise OutputError(f"{output}: expected a new or an empty folder, found {len(list(target.iterdir())):,} entries")
    checkpoint = _find(folder, step)
    precision = folder.read_json("run.json")["config"]["precision"]
    dtype = getattr(torch, DTYPES[precision])
    target.mkdir(parents=True, exist_ok=True)
    for name in folder.names("model"):
        (target / name).write_bytes(folder.read_bytes(f"model/{name}"))
    config = json.loads((target / "config.json").read_text(encoding="utf-8")) | {"dtype": DTYPES[precision]}
    (target / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    written: list[tuple[str, list[str]]] = []
    total = 0
    for part in _parts(_parameters(folder, checkpoint, dtype, bool(config.get("tie_word_embeddings"))), shard_bytes):
        name = f"part-{len(written)}.tmp"
        # The metadata is what loaders look at to know whose tensors these are.
        save_file(part, target / name, metadata={"format": "pt"})
        written.append((name, list(part)))
        total += sum(tensor.nbytes for tensor in part.values())
    places: dict[str, str] = {}
    for number, (temporary, names) in enumerate(written, 1):
        name = f"model-{number:05d}-of-{len(written):05d}.safetensors" if len(written) > 1 else "model.safetensors"
        (target / temporary).rename(target / name)
        places |= dict.fromkeys(names, name)
    if len(written) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (target / WEIGHTS_INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return checkpoint


def _find(folder: Folder, step: int | None) -> Checkpoint:
    checkpoints = folder.child("checkpoints")
    found = newest(checkpoints) if step is None else read(checkpoints, step)
    if found is None:
        what = "a complete checkpoint" if step is None else f"{name_of(step)}/{MANIFEST}"
        raise InputError(f"{checkpoints.uri}: expected {what}, found {', '.join(checkpoints.names()) or 'nothing'}")
    return found


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


def _parameters(folder: Folder, checkpoint: Checkpoint, dtype: Any, tied: bool) -> Iterator[tuple[str, Any]]:
    source = Path(folder.path(f"checkpoints/{checkpoint.name}"))
    found = _merged(source) if checkpoint.tensor > 1 else _gathered(source)
    for name, tensor in found:
        # A tied output matrix is the embedding, and is not stored twice.
        if not (tied and name == "lm_head.weight"):
            yield name, tensor.to(dtype).contiguous()


def _gathered(source: Path) -> Iterator[tuple[str, Any]]:
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    states = get_fp32_state_dict_from_zero_checkpoint(str(source.parent), tag=source.name, lazy_mode=True)
    for name, tensor in states.items():
        # Lazily: what is divided is put together when it is asked for.
        yield name, tensor.contiguous()


def _merged(source: Path) -> Iterator[tuple[str, Any]]:
    import torch

    step = Folder(str(source))
    if not step.exists(UNIVERSAL_MANIFEST):
        convert(step, source)
    for path in sorted((source / UNIVERSAL / "zero").glob("*/fp32.pt")):
        yield path.parent.name, torch.load(path, map_location="cpu", weights_only=False)["param"]
