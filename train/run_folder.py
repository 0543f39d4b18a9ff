"""The folder of a run: what belongs to whom, and what a run keeps beside its checkpoints.

RUN/run.json          what the result depends on; another config does not continue the run
RUN/config.json       the config of the newest start, which `taojin train --resume RUN` reads
RUN/deepspeed.json    what DeepSpeed was given
RUN/model/            the model's config and the tokenizer, for the export
RUN/checkpoints/…     see `checkpoint`             RUN/metrics/…, tensorboard/   see `tracking`
RUN/starts/…          see `launch`                 RUN/stop, RUN/owner           see `stop`
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from taojin.core.errors import FrozenPlanError, InputError
from taojin.core.storage import Folder, first_line
from taojin.train.config import TrainConfig, with_settings

RUN_JSON = "run.json"
CONFIG_JSON = "config.json"
# Of a model's config: who wrote it, not what it is.
UNIMPORTANT = ("transformers_version", "_name_or_path")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.model",
    "generation_config.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
)


def what_it_is(
    config: TrainConfig, model_values: Mapping[str, Any], data: dict[str, Any], steps: int
) -> dict[str, Any]:
    """The values of run.json."""
    return {
        "config": config.frozen_part(),
        "model": {key: value for key, value in model_values.items() if key not in UNIMPORTANT},
        "data": data,
        "steps": steps,
    }


def refuse_another(folder: Folder, ours: dict[str, Any]) -> None:
    """Raises FrozenPlanError with the difference where the folder belongs to another run, InputError where
    nobody can tell. ours: see `what_it_is`."""
    try:
        theirs = folder.read_json(RUN_JSON) if folder.exists(RUN_JSON) else ours
    except ValueError:
        raise InputError(
            f"{folder.uri}/{RUN_JSON}: expected what the run depends on, as JSON, found something else; if the run is "
            "yours, remove the file: the next start writes it again"
        ) from None
    problem = "; ".join(differences(theirs, ours))
    if problem:
        raise FrozenPlanError(
            f"{folder.uri} holds a run of another configuration: {problem}; use another output, or the same "
            "configuration"
        )


def settle(folder: Folder, config: TrainConfig, model_config: Any, ours: dict[str, Any]) -> None:
    """From now on the folder belongs to what this start was told. Rank 0 calls it when nothing but training can fail: a
    start that fails before binds nobody. Raises FrozenPlanError."""
    refuse_another(folder, ours)
    if not folder.exists(RUN_JSON):
        keep_model(folder, config, model_config)
        folder.write_json(RUN_JSON, ours)
    folder.write_json(CONFIG_JSON, config.model_dump(mode="json", exclude_unset=True))


def kept_config(run: str, settings: Sequence[str]) -> TrainConfig:
    """The config of the newest start of a run, with settings over it. Raises InputError where there is no run."""
    folder = Folder(run)
    try:
        values = folder.read_json(CONFIG_JSON)
    except (FileNotFoundError, ValueError):
        raise InputError(
            f"--resume {run}: expected a folder that holds the {CONFIG_JSON} of a run, found none; start it by --config"
        ) from None
    except OSError as error:
        raise InputError(f"--resume {run}: {CONFIG_JSON} cannot be read: {first_line(error)}") from None
    return with_settings({**values, "output": run}, settings)


def keep_model(folder: Folder, config: TrainConfig, model_config: Any) -> None:
    """The model's config, and the tokenizer's files where there are any, at RUN/model."""
    model = folder.child("model")
    with model.create("config.json") as sink:
        sink.write(model_config.to_json_string().encode())
    source = Path(config.tokenizer or config.model)
    files = [source] if source.is_file() and config.tokenizer else []
    if source.is_dir():
        files = [source / name for name in TOKENIZER_FILES if (source / name).is_file()]
    for path in files:
        with model.create(path.name) as sink:
            sink.write(path.read_bytes())


def differences(theirs: Any, ours: Any, where: str = "") -> list[str]:
    """`key: X then, Y now` for every leaf of two JSON-like values that differs."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        found = []
        for key in sorted({*theirs, *ours}):
            found += differences(theirs.get(key), ours.get(key), f"{where}.{key}" if where else key)
        return found
    return [] if theirs == ours else [f"{where}: {theirs!r} then, {ours!r} now"]
