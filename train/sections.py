"""The parts of a training run's config: what may stand under each key of the YAML, and how amounts are written.

Light: pydantic only. How the parts go together is for `config`.
"""

import re
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

_AMOUNT = re.compile(r"([0-9][0-9_]{0,30}(?:\.[0-9]{1,15})?(?:e\+?[0-9]{1,2})?) ?([KMBT万亿]?)", re.IGNORECASE)
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12, "万": 10**4, "亿": 10**8}


def amount(value: Any) -> Any:
    """20B, 1.5T, 1e10, 200亿 → that many, exactly; everything else is left to pydantic. Raises ValueError."""
    if isinstance(value, bool):
        raise ValueError(f"expected a number, found {value!r}")
    if not isinstance(value, str):
        return value
    matched = _AMOUNT.fullmatch(value.strip())
    if not matched:
        raise ValueError(f"expected a number such as 20000000000, 20B or 1.5T, found {value!r}")
    number = Decimal(matched[1].replace("_", "")) * _UNITS[matched[2].upper()]
    if number != int(number):
        raise ValueError(f"expected a whole number, found {value!r}")
    return int(number)


def as_sources(value: Any) -> Any:
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


def _switch(value: Any) -> Any:
    """YAML reads off as false."""
    return "off" if value is False else value


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
    wandb: Annotated[Literal["off", "offline", "online"], BeforeValidator(_switch)] = "offline"
    """and for Weights & Biases: offline files, which `wandb sync` uploads when you want it, or online"""
    project: str = "taojin"
    """of Weights & Biases"""
    name: str = ""
    """of the run (default: the last part of output)"""


class MultipleChoice(Section):
    """Questions of C-Eval's or CMMLU's shape, answered at every validation; see `choices`."""

    files: tuple[str, ...] = ()
    """CSV or JSONL files, or folders of them; the tokenizer is needed too"""
    examples: tuple[str, ...] = ()
    """files of solved questions, shown before those of their subject"""
    shots: Annotated[int | None, Field(ge=0)] = None
    """how many of them (default 5; 0 without examples)"""
    by: Literal["letter", "content"] = "letter"
    """what is scored: the letters, or the options' texts by character"""
