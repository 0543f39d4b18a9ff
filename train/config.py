"""The config of a training run: one YAML file, checked where it is read, the same for every engine.

    model: qwen.json                  sequence_length: 4096      optimizer: {learning_rate: 3.0e-4}
    data: [/data/zh, /data/code]      schedule: {kind: wsd, warmup: 200}
    tokens: 20B                       global_batch: 512          zero: {stage: 3, offload_optimizer: cpu}
    output: s3://bucket/runs/zh-1b    workers: 16                parallel: {tensor: 2}

Light: pydantic only, so that --plan, --help and errors need no torch. What depends on the number of workers is in
`parallel`, on DeepSpeed in `zero`, on Megatron-LM in `megatron_command`. Whether files exist is for those who open
them; a blend file alone is read here.
"""

import json
import os
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator

from taojin.core.config import Config, load_yaml
from taojin.core.errors import ConfigError
from taojin.train.sections import (
    Amount,
    MultipleChoice,
    Optimizer,
    Parallel,
    Schedule,
    Source,
    Tracking,
    Zero,
    as_sources,
)

# Rises when the same config begins to mean other numbers; a run of another format does not resume.
TRAIN_FORMAT = 1
# What may differ between the parts of one run: where and how it runs, not what it computes.
# fmt: off
_RUN_FIELDS = {
    "output", "address", "workers", "min_workers", "start_timeout", "devices_per_node", "device", "device_name",
    "micro_batch", "zero", "parallel", "activation_checkpointing", "attention", "save_every", "keep_last",
    "keep_every", "asynchronous_save", "eval_every", "eval_batches", "choices", "log_every", "tracking",
    "price_per_device_hour", "currency", "budget", "quiet", "engine", "deepspeed", "tokenizer", "validation", "model",
    "data", "blend", "eod", "cache",
}
# fmt: on
# Those that name files of any kind.
_FILE_FIELDS = ("model", "tokenizer", "data", "validation", "blend", "cache", "deepspeed", "output", "choices")


def _as_end(value: Any) -> Any:
    if value in ("auto", "none") or (type(value) is int and value >= 0):
        return value
    raise ValueError(f"expected auto, none, or the id of a token, found {value!r}")


class TrainConfig(Config):
    """Train a causal language model on token pairs; resumes by itself, on any number of workers."""

    model: Annotated[str, Field(min_length=1)]
    """a config JSON (a fresh model) or a local Hugging Face folder (its weights)"""
    tokenizer: str | None = None
    """a tokenizer.json or a folder with one, to be exported with the model (default: the model's folder)"""
    attention: Literal["sdpa", "flash_attention_2", "eager"] = "sdpa"
    """the implementation of attention"""

    data: Annotated[tuple[Source, ...], BeforeValidator(as_sources)] = ()
    """prefixes of pairs, or {prefix, weight}"""
    validation: Annotated[tuple[Source, ...], BeforeValidator(as_sources)] = ()
    """pairs for the validation loss"""
    blend: str | None = None
    """PREFIX.blend.json in place of data and validation"""
    validation_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """keep this share of every pair's documents for validation, where there are no pairs for it"""
    sequence_length: Amount = 4096
    """tokens of a sequence"""
    separate_documents: bool = False
    """no attention across the borders of packed documents"""
    loss_mask: bool = False
    """learn only what the pairs PREFIX_mask mark (fine-tuning)"""
    eod: Annotated[Literal["auto", "none"] | int, BeforeValidator(_as_end)] = "auto"
    """the id that every document must end with (auto: what taojin tokenize noted, else the model's eos_token_id; none:
    do not look)"""
    cache: str | None = None
    """a folder on a local disk of every node for pairs on s3:// (default: in the system's temporary folder)"""

    tokens: Amount | None = None
    """the budget of tokens, such as 20B: the run has as many full steps as fit; or name steps or epochs"""
    steps: Amount | None = None
    """the length of the run in optimizer steps"""
    epochs: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None
    """the length of the run in passes over the data"""
    global_batch: Amount = 256
    """sequences of a step, whatever the number of workers"""
    micro_batch: Annotated[int, Field(ge=1)] = 1
    """sequences that a device takes at once; the rest is accumulated"""

    optimizer: Optimizer = Optimizer()
    """AdamW's numbers"""
    schedule: Schedule = Schedule()
    """of the learning rate"""
    clip: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """the largest norm of the gradient; 0: no clipping"""
    precision: Literal["fp32", "bf16", "fp16"] = "bf16"
    """of parameters and activations; optimizer states are fp32"""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """of fresh weights and of the order of the samples"""

    zero: Zero = Zero()
    """ZeRO of DeepSpeed"""
    parallel: Parallel = Parallel()
    """how devices share a model or a sequence"""
    activation_checkpointing: bool = False
    """compute activations again in the backward pass: a third more work, a fraction of the memory"""
    deepspeed: str | dict[str, Any] | None = None
    """a DeepSpeed JSON of your own (a file or a mapping), merged; what contradicts this config is an error"""

    output: Annotated[str, Field(min_length=1)]
    """the run's folder or s3:// URI: checkpoints, numbers, the exported model; shared by all nodes"""
    save_every: Annotated[int, Field(ge=0)] = 500
    """steps between checkpoints; 0: only at the end and when told to stop"""
    keep_last: Annotated[int, Field(ge=1)] = 3
    """checkpoints to keep"""
    keep_every: Annotated[int, Field(ge=0)] = 0
    """also keep those of every so many steps; 0: none"""
    asynchronous_save: bool = True
    """upload while training goes on"""
    eval_every: Annotated[int, Field(ge=0)] = 0
    """steps between validations; 0: none"""
    eval_batches: Annotated[int, Field(ge=1)] = 20
    """global batches of a validation"""
    choices: MultipleChoice = MultipleChoice()
    """multiple choice, at validations"""
    log_every: Annotated[int, Field(ge=1)] = 1
    """steps between rows of numbers"""
    tracking: Tracking = Tracking()
    """where they go"""

    engine: Literal["deepspeed", "megatron"] = "deepspeed"
    """DeepSpeed here, or the launch command of Megatron-LM"""
    workers: Annotated[int, Field(ge=1)] = 1
    """devices (with device cpu: processes)"""
    min_workers: Annotated[int | None, Field(ge=1)] = None
    """go on with as few where there are no more, and with more when they come (default: always all)"""
    start_timeout: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 600.0
    """seconds to wait for a cluster to have that many free"""
    devices_per_node: Annotated[int, Field(ge=1)] = 8
    """devices of a node"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: CUDA where there is one"""
    device_name: str = ""
    """such as H100: its peak for MFU and --plan (default: what the driver calls it)"""
    price_per_device_hour: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """for the running cost"""
    currency: str = "yuan"
    """of price and budget"""
    budget: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None
    """stop after a last checkpoint before this is spent"""
    address: str | None = None
    """a Ray cluster (auto, ray://…, host:port; default: RAY_ADDRESS, else an embedded Ray on this machine)"""
    quiet: bool = False
    """no progress on stderr"""

    def __init__(self, **values: Any) -> None:
        """Raises ConfigError with one clause per wrong key, named as in the YAML: zero.stage."""
        try:
            BaseModel.__init__(self, **values)
        except ValidationError as error:
            raise ConfigError(_explain(error)) from None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.data) == (self.blend is not None):
            raise ValueError("either data (prefixes of pairs) or blend (PREFIX.blend.json) is needed")
        if self.blend is not None and self.validation:
            raise ValueError("validation has no meaning with blend, which names the pairs of every split")
        if self.validation and self.validation_share:
            raise ValueError("validation_share has no meaning where validation names pairs")
        for name, sources in (("data", self.data), ("validation", self.validation)):
            if len({source.weight is None for source in sources}) > 1:
                raise ValueError(f"{name}: expected a weight for every pair or for none")
        prefixes = [source.prefix for source in self.data]
        twice = sorted({prefix for prefix in prefixes if prefixes.count(prefix) > 1})
        if twice:
            raise ValueError(f"data: {twice[0]} is named twice; give it one weight")
        lengths = [name for name in ("tokens", "steps", "epochs") if getattr(self, name) is not None]
        if len(lengths) != 1:
            found = " and ".join(lengths) or "none"
            raise ValueError(f"the length of the run is one of tokens, steps, epochs; found {found}")
        if self.tokens is not None and self.tokens < self.tokens_per_step:
            raise ValueError(
                f"tokens: {self.tokens:,} are less than one step of {self.global_batch:,} sequences × "
                f"{self.sequence_length:,} tokens; lower global_batch or raise tokens"
            )
        validates = self.blend is not None or self.validation or self.validation_share or self.choices.files
        if self.eval_every and not validates:
            raise ValueError(
                "eval_every needs validation pairs, a validation_share, a blend with a valid split, or choices"
            )
        if self.choices.files and not self.eval_every:
            raise ValueError("choices needs eval_every, the steps between validations")
        if self.min_workers is not None and self.min_workers > self.workers:
            raise ValueError(f"min_workers: {self.min_workers} are more than the {self.workers} workers")
        if self.budget is not None and not self.price_per_device_hour:
            raise ValueError("budget needs price_per_device_hour")
        return self

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch * self.sequence_length

    def total_steps(self, samples_per_epoch: int | None = None) -> int:
        """Optimizer steps of the whole run, at least 1. samples_per_epoch: sequences of one pass over the data, needed
        where the length is in epochs. Raises ConfigError where the data is less than one step."""
        if self.steps is not None:
            return self.steps
        if self.tokens is not None:
            return self.tokens // self.tokens_per_step
        assert self.epochs is not None
        if samples_per_epoch is None:
            raise ConfigError("epochs: the length of the data must be known here; name tokens or steps instead")
        # As a fraction: 0.1 of a pass must not lose a step to rounding, nor a pass of 10^12 sequences its last digits.
        steps = int(Fraction(str(self.epochs)) * samples_per_epoch / self.global_batch)
        if steps < 1:
            raise ConfigError(
                f"epochs: {self.epochs:g} of {samples_per_epoch:,} sequences are less than one step of "
                f"{self.global_batch:,}; lower global_batch or raise epochs"
            )
        return steps

    def pairs(self) -> tuple[list[tuple[str, float | None]], list[tuple[str, float | None]]]:
        """(prefix, weight) of the training pairs and of the validation pairs. Raises ConfigError for a bad blend."""
        if self.blend is not None:
            training, validation = read_blend(self.blend)
            return [*training], [*validation]
        return (
            [(source.prefix, source.weight) for source in self.data],
            [(source.prefix, source.weight) for source in self.validation],
        )

    def frozen_part(self) -> dict[str, Any]:
        """JSON-like: everything the result depends on but the files named. A run resumes only where it is equal."""
        values = self.model_dump(mode="json", exclude=_RUN_FIELDS)
        return {**values, "format": TRAIN_FORMAT}


def load_config(path: str, settings: Sequence[str] = ()) -> TrainConfig:
    """The config of a YAML file, with settings such as parallel.tensor=2 over it. Raises ConfigError."""
    return with_settings(_named(load_yaml(path)), settings)


def with_settings(values: dict[str, Any], settings: Sequence[str]) -> TrainConfig:
    """The config of these values, with settings over them, which are changed in place. Raises ConfigError."""
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set: expected KEY=VALUE such as parallel.tensor=2, found {setting!r}")
        _assign(values, key.replace("-", "_").split("."), text)
    return TrainConfig(**values)


def absolute(config: TrainConfig) -> TrainConfig:
    """Every file by its absolute path: workers, and later starts, run in folders of their own."""

    def path(name: str) -> str:
        return name if "://" in name else os.path.abspath(name)

    def places(value: Any) -> Any:
        if isinstance(value, str):
            return path(value)
        if isinstance(value, Source):
            return value.model_copy(update={"prefix": path(value.prefix)})
        if isinstance(value, MultipleChoice):
            named = {name: places(getattr(value, name)) for name in ("files", "examples")}
            return value.model_copy(update={name: found for name, found in named.items() if found})
        return tuple(map(places, value)) if isinstance(value, tuple) else value

    named = [name for name in _FILE_FIELDS if name in config.model_fields_set]
    return config.model_copy(update={name: places(getattr(config, name)) for name in named})


def read_blend(path: str) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
    """(prefix, weight) of the splits train and valid of a PREFIX.blend.json, weights 1 where it names none.
    Raises ConfigError."""
    try:
        splits = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"blend: {path}: {error.strerror}; taojin tokenize writes it beside the pairs") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"blend: {path}: expected JSON; for .blend.txt name the .blend.json beside it") from None
    if not isinstance(splits, dict) or not splits.get("train"):
        raise ConfigError(f"blend: {path}: expected pairs under the key train, found none")
    return _blend_entries(path, "train", splits["train"]), _blend_entries(path, "valid", splits.get("valid") or [])


def _blend_entries(path: str, split: str, parts: Any) -> list[tuple[str, float]]:
    """["0.7", "/data/a", "0.3", "/data/b"], or ["/data/a"] alone, as Megatron-LM reads it."""
    expected = f'blend: {path}: {split}: expected a list such as ["0.7", "/data/a", "0.3", "/data/b"]'
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise ConfigError(f"{expected}, found {type(parts).__name__}")
    if len(parts) == 1:
        return [(parts[0], 1.0)]
    if len(parts) % 2:
        raise ConfigError(f"{expected}, found {len(parts)} entries")
    entries = []
    for weight, prefix in zip(parts[::2], parts[1::2], strict=True):
        try:
            entries.append((prefix, float(weight)))
        except ValueError:
            raise ConfigError(f"{expected}, found {weight!r} where a weight stands") from None
        if not 0 < entries[-1][1] < float("inf"):
            raise ConfigError(f"{expected}, found the weight {weight} of {prefix}; weights are above 0")
    return entries


def _named(values: dict[str, Any]) -> dict[str, Any]:
    """Sections may be written with hyphens too; the keys of DeepSpeed's own JSON are not ours to change."""
    return {
        key: {str(name).replace("-", "_"): inner for name, inner in value.items()}
        if isinstance(value, dict) and key != "deepspeed"
        else value
        for key, value in values.items()
    }


def _assign(values: dict[str, Any], keys: list[str], text: str) -> None:
    import yaml

    for key in keys[:-1]:
        inner = values.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {'.'.join(keys)}: {key} holds {inner!r}, no keys")
        values = inner
    try:
        values[keys[-1]] = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        raise ConfigError(f"--set {'.'.join(keys)}: not a YAML value: {text!r}") from None


# What pydantic says in words of Python.
_SHAPES = {
    "model_type": "expected a mapping of its keys",
    "tuple_type": "expected a list",
    "bool_type": "expected true or false",
    "string_type": "expected text",
}


def _explain(error: ValidationError) -> str:
    clauses = []
    for problem in error.errors():
        # Branches of a union (int, float) are no keys of the user's.
        name = ".".join(str(part) for part in problem["loc"] if part not in ("int", "float", "str", "dict[str,any]"))
        message = problem["msg"].removeprefix("Value error, ")
        found = "" if problem["type"] in ("missing", "value_error") else f", found {problem['input']!r}"
        if problem["type"] == "extra_forbidden":
            message = f"no such key; {_near(problem['loc'])}"
            found = ""
        message = _SHAPES.get(problem["type"], message)
        clauses.append(f"{name}: {message[0].lower() + message[1:]}{found}" if name else message)
    return "; ".join(dict.fromkeys(clauses))


def _near(location: tuple[int | str, ...]) -> str:
    """The key that was probably meant, or all there are."""
    from difflib import get_close_matches

    model: type[BaseModel] = TrainConfig
    for part in location[:-1]:
        if isinstance(part, str):
            annotation = model.model_fields[part].annotation
            model = annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else Source
    close = get_close_matches(str(location[-1]), list(model.model_fields), n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(model.model_fields)}"
