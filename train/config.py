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
import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from taojin.core.config import Config, load_yaml
from taojin.core.errors import ConfigError

# Rises when the same config begins to mean other numbers; a run of another format does not resume.
TRAIN_FORMAT = 1
_AMOUNT = re.compile(r"([0-9][0-9_]{0,30}(?:\.[0-9]{1,15})?(?:e\+?[0-9]{1,2})?) ?([KMBT万亿]?)", re.IGNORECASE)
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12, "万": 10**4, "亿": 10**8}
# What may differ between the parts of one run: where and how it runs, not what it computes.
# fmt: off
_RUN_FIELDS = {
    "output", "address", "workers", "devices_per_node", "device", "device_name", "micro_batch", "zero", "parallel",
    "activation_checkpointing", "attention", "save_every", "keep_last", "keep_every", "asynchronous_save",
    "eval_every", "eval_batches", "log_every", "tracking", "price_per_device_hour", "currency", "budget", "quiet",
    "engine", "deepspeed", "tokenizer", "validation", "model", "data", "blend",
}
# fmt: on


def amount(value: Any) -> Any:
    """20B, 1.5T, 1e10, 200亿 → that many, exactly; everything else is left to pydantic. Raises ValueError."""
    if not isinstance(value, str):
        return value
    matched = _AMOUNT.fullmatch(value.strip())
    if not matched:
        raise ValueError(f"expected a number such as 20000000000, 20B or 1.5T, found {value!r}")
    number = Decimal(matched[1].replace("_", "")) * _UNITS[matched[2].upper()]
    if number != int(number):
        raise ValueError(f"expected a whole number, found {value!r}")
    return int(number)


def _as_sources(value: Any) -> Any:
    if isinstance(value, str | dict):
        value = [value]
    if not isinstance(value, list | tuple):
        return value
    return [{"prefix": entry} if isinstance(entry, str) else entry for entry in value]


def _span(value: Any) -> Any:
    """An integer is steps; anything else must be a share below 1, so that 1 and 1.0 cannot be confused."""
    if isinstance(value, float) and not 0 <= value < 1:
        raise ValueError(f"expected steps (an integer) or a share of the run from 0 to below 1, found {value!r}")
    return value


Amount = Annotated[int, BeforeValidator(amount), Field(ge=1, lt=2**63)]
Span = Annotated[int | float, BeforeValidator(_span), Field(ge=0)]


class Section(BaseModel):
    """A part of the config under one key. No Config: pydantic would call its __init__ and lose the key's name."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Source(Section):
    """A pair to learn from."""

    prefix: Annotated[str, Field(min_length=1)]
    """its path without .bin"""
    weight: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None
    """its share of the sequences, relative to the others (default: by its tokens); for every pair or for none"""


class Optimizer(Section):
    """AdamW; the defaults are those of Llama 2 (Touvron et al. 2023, §2.2), epsilon PyTorch's."""

    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3e-4
    """the highest, which the schedule scales"""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """decay of the mean of the gradients"""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """decay of the mean of their squares"""
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-8
    """added to the root of the latter"""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    """decoupled from the gradient"""


class Schedule(Section):
    """How the learning rate moves; formulas in `schedule`."""

    kind: Literal["cosine", "wsd", "constant"] = "cosine"
    """cosine to the end; warm-up, stable, decay; or constant after the warm-up"""
    warmup: Span = 0.01
    """linear from zero: steps (an integer) or a share of the run"""
    decay: Span = 0.1
    """with wsd: the last steps, or share of the run, in which the rate falls"""
    decay_shape: Literal["linear", "cosine", "sqrt"] = "sqrt"
    """with wsd: the form of the fall; sqrt is 1 - sqrt(t) (Hägele et al. 2024, the best of those they tried)"""
    minimum: Annotated[float, Field(ge=0, le=1)] = 0.1
    """where the rate ends, as a share of the highest"""


class Zero(Section):
    """What DeepSpeed divides between the data-parallel ranks, and where it puts it."""

    stage: Annotated[int, Field(ge=0, le=3)] = 3
    """0 nothing, 1 optimizer states, 2 and gradients, 3 and parameters"""
    offload_optimizer: Literal["none", "cpu", "nvme"] = "none"
    """where the optimizer states live between steps"""
    offload_parameters: Literal["none", "cpu", "nvme"] = "none"
    """where the parameters live; needs stage 3"""
    nvme_path: str = ""
    """a folder on a local NVMe disk, on every node"""
    overlap: bool = True
    """communicate while computing"""
    partition_within: Annotated[int, Field(ge=1)] = 1
    """keep a second copy of the parameters divided over this many ranks (those of a node), so that the backward pass
    gathers within it (hpZ of ZeRO++); needs stage 3"""
    quantize_weights: bool = False
    """gather parameters in int8 (qwZ of ZeRO++); needs stage 3"""
    quantize_gradients: bool = False
    """reduce gradients in int4 (qgZ of ZeRO++); needs stage 3"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.stage < 3:
            for name, default in (
                ("offload_parameters", "none"),
                ("partition_within", 1),
                ("quantize_weights", False),
                ("quantize_gradients", False),
            ):
                if getattr(self, name) != default:
                    raise ValueError(f"{name} needs stage 3, which divides the parameters; found stage {self.stage}")
        if self.stage == 0 and self.offload_optimizer != "none":
            raise ValueError("offload_optimizer needs stage 1, 2 or 3; found stage 0")
        nvme = "nvme" in (self.offload_optimizer, self.offload_parameters)
        if nvme and self.stage < 3:
            raise ValueError(f"offload to nvme needs stage 3; found stage {self.stage}")
        if nvme != bool(self.nvme_path):
            raise ValueError("offload to nvme and nvme_path go together: set both or neither")
        return self


class Parallel(Section):
    """How many devices share one copy of the model, or one sequence; all others are data parallel."""

    tensor: Annotated[int, Field(ge=1)] = 1
    """divide every matrix over this many devices of a node"""
    sequence: Annotated[int, Field(ge=1)] = 1
    """divide every sequence: Ulysses with DeepSpeed, context parallel with Megatron-LM"""
    pipeline: Annotated[int, Field(ge=1)] = 1
    """divide the layers; only with engine megatron"""


class Tracking(Section):
    """Where the numbers of a run are written."""

    tensorboard: bool = True
    """write event files beside the checkpoints"""
    wandb: Literal["off", "offline", "online"] = "off"
    """also for Weights & Biases; offline files are uploaded later by `wandb sync`"""
    project: str = "taojin"
    """of Weights & Biases"""
    name: str = ""
    """of the run (default: the last part of output)"""


class TrainConfig(Config):
    """Train a causal language model on token pairs; resumes by itself, on any number of workers."""

    model: Annotated[str, Field(min_length=1)]
    """a config JSON (a fresh model) or a local Hugging Face folder (its weights)"""
    tokenizer: str | None = None
    """a tokenizer.json or a folder with one, to be exported with the model (default: the model's folder)"""
    attention: Literal["sdpa", "flash_attention_2", "eager"] = "sdpa"
    """the implementation of attention"""

    data: Annotated[tuple[Source, ...], BeforeValidator(_as_sources)] = ()
    """prefixes of pairs, or {prefix, weight}"""
    validation: Annotated[tuple[Source, ...], BeforeValidator(_as_sources)] = ()
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
    log_every: Annotated[int, Field(ge=1)] = 1
    """steps between rows of numbers"""
    tracking: Tracking = Tracking()
    """where they go"""

    engine: Literal["deepspeed", "megatron"] = "deepspeed"
    """DeepSpeed here, or the launch command of Megatron-LM"""
    workers: Annotated[int, Field(ge=1)] = 1
    """devices (with device cpu: processes)"""
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
        if self.eval_every and self.blend is None and not (self.validation or self.validation_share):
            raise ValueError("eval_every needs validation pairs, a validation_share, or a blend with a valid split")
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
