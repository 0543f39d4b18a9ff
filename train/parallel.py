"""How many devices do what: checked before anything starts, with the nearest numbers that would do.

A world of W workers is divided into W / (tensor × sequence × pipeline) data-parallel ranks; each takes

    accumulation = global_batch / (micro_batch × data-parallel ranks)

micro-batches of a step. The global batch is fixed, so that a run on another world sees the same batches.
Neighbouring workers share a copy of the model, as DeepSpeed's groups have it; Megatron-LM orders its ranks itself.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from taojin.core.errors import ConfigError
from taojin.train.config import TrainConfig
from taojin.train.shape import shape_of

_PIPELINE_ZERO = (
    "a pipeline accumulates the gradients of many micro-batches, which ZeRO-2 and ZeRO-3 divide and discard after "
    "each; DeepSpeed refuses it"
)


class Layout(NamedTuple):
    """A world that fits. data: ranks that see different samples; accumulation: micro-batches of each in a step."""

    world: int
    data: int
    tensor: int
    sequence: int
    pipeline: int
    micro_batch: int
    accumulation: int

    @property
    def model(self) -> int:
        """Workers that see the same samples."""
        return self.tensor * self.sequence * self.pipeline

    @property
    def averaged(self) -> int:
        """Workers whose losses are parts of one sum; the others repeat them, tensor by tensor."""
        return self.data * self.sequence

    def data_rank(self, rank: int) -> int:
        """Which rows of a batch a worker takes; with DeepSpeed, where the workers of one copy are neighbours."""
        return rank // self.model

    def row(self) -> str:
        """`16 workers = 8 data × 2 tensor; 512 sequences = 8 × 4 micro-batch × 16 accumulated`."""
        parts = [f"{self.data:,} data"]
        parts += [
            f"{getattr(self, name)} {name}" for name in ("tensor", "sequence", "pipeline") if getattr(self, name) > 1
        ]
        return (
            f"{self.world:,} workers = {' × '.join(parts)}; {self.data * self.micro_batch * self.accumulation:,} "
            f"sequences = {self.data:,} × {self.micro_batch} micro-batch × {self.accumulation:,} accumulated"
        )


def layout(config: TrainConfig, world: int | None = None) -> Layout:
    """The layout of a config on `world` workers (default: config.workers). Raises ConfigError with what would fit."""
    world = config.workers if world is None else world
    parallel = config.parallel
    _check_combination(config)
    model = parallel.tensor * parallel.sequence * parallel.pipeline
    if config.sequence_length % parallel.sequence:
        raise ConfigError(
            f"parallel.sequence: {parallel.sequence} does not divide sequence_length {config.sequence_length}; "
            f"{_choices(divisors(config.sequence_length), parallel.sequence)} would do"
        )
    if config.global_batch % config.micro_batch:
        raise ConfigError(
            f"micro_batch: {config.micro_batch} does not divide global_batch {config.global_batch}; "
            f"{_choices(divisors(config.global_batch), config.micro_batch)} would do"
        )
    fitting = [count * model for count in divisors(config.global_batch // config.micro_batch)]
    if world not in fitting:
        shared = f" × {model} devices of one copy of the model" if model > 1 else ""
        raise ConfigError(
            f"workers: global_batch {config.global_batch} = micro_batch {config.micro_batch} × accumulation × "
            f"data-parallel ranks{shared} does not go into {world} workers; {_choices(fitting, world)} would do"
        )
    data = world // model
    within = config.zero.partition_within
    if config.engine == "deepspeed" and world % within:
        raise ConfigError(
            f"zero.partition_within: {within} does not divide {world} workers; "
            f"{_choices(divisors(world), within)} would do"
        )
    return Layout(
        world=world,
        data=data,
        tensor=parallel.tensor,
        sequence=parallel.sequence,
        pipeline=parallel.pipeline,
        micro_batch=config.micro_batch,
        accumulation=config.global_batch // (config.micro_batch * data),
    )


def fitting_workers(config: TrainConfig) -> list[int]:
    """The numbers of workers that fit, from config.min_workers to config.workers, rising; config.workers alone where
    there is no min_workers. Raises ConfigError where config.workers does not fit."""
    layout(config)
    model = config.parallel.tensor * config.parallel.sequence * config.parallel.pipeline
    within = config.zero.partition_within if config.engine == "deepspeed" else 1
    worlds = [count * model for count in divisors(config.global_batch // config.micro_batch)]
    smallest = config.min_workers or config.workers
    return [world for world in worlds if smallest <= world <= config.workers and world % within == 0]


def check_model(config: TrainConfig, model: Mapping[str, Any]) -> None:
    """Whether the model can be divided so. model: the values of a Hugging Face config.json. Raises ConfigError with
    what would fit, and InputError for a model of another family or without its numbers.

    Every rank gets whole heads. AutoTP leaves ranks beyond the key-value heads without attention: refused here.
    """
    shape = shape_of(model, config.model)
    parallel, megatron = config.parallel, config.engine == "megatron"
    # Ulysses and Megatron-LM's tensor parallel repeat key-value heads evenly; AutoTP does not. Megatron-LM's context
    # parallel divides positions, not heads.
    divided = [("tensor", parallel.tensor, megatron)]
    if not megatron:
        divided.append(("sequence", parallel.sequence, True))
    for name, size, repeats in divided:
        if shape.heads % size:
            raise ConfigError(
                f"parallel.{name}: {size} does not divide the {shape.heads} attention heads; "
                f"{_choices(divisors(shape.heads), size)} would do"
            )
        if shape.heads_kv % size and not (repeats and size % shape.heads_kv == 0):
            raise ConfigError(
                f"parallel.{name}: {size} does not divide the {shape.heads_kv} key-value heads; "
                f"{_choices(divisors(shape.heads_kv), size)} would do"
            )
    for name, width in (("hidden_size", shape.hidden), ("intermediate_size", shape.intermediate)):
        if width % parallel.tensor:
            raise ConfigError(f"parallel.tensor: {parallel.tensor} does not divide the model's {name} {width}")
    if shape.layers % parallel.pipeline:
        raise ConfigError(
            f"parallel.pipeline: {parallel.pipeline} does not divide the {shape.layers} layers; "
            f"{_choices(divisors(shape.layers), parallel.pipeline)} would do"
        )


def divisors(number: int) -> list[int]:
    """All of them, rising. O(√number)."""
    small = [candidate for candidate in range(1, int(number**0.5) + 1) if number % candidate == 0]
    return sorted({*small, *(number // candidate for candidate in small)})


def _check_combination(config: TrainConfig) -> None:
    parallel, zero = config.parallel, config.zero
    if config.engine == "megatron":
        # The default of zero is DeepSpeed's affair; what the user wrote is not.
        if "zero" in config.model_fields_set and zero.stage > 1:
            reason = f": {_PIPELINE_ZERO}" if parallel.pipeline > 1 else ", which divides optimizer states only"
            raise ConfigError(f"zero.stage: {zero.stage} has no counterpart in engine megatron{reason}; use 0 or 1")
        return
    if parallel.pipeline > 1:
        if zero.stage > 1:
            raise ConfigError(
                f"parallel.pipeline: {parallel.pipeline} with zero.stage {zero.stage}: {_PIPELINE_ZERO}; use tensor or "
                f"sequence parallel, or engine megatron"
            )
        raise ConfigError(
            f"parallel.pipeline: {parallel.pipeline}: DeepSpeed's pipeline takes no Hugging Face model as it is; "
            f"use zero.stage 3 with tensor or sequence parallel, or engine megatron"
        )
    if parallel.tensor > 1 and parallel.sequence > 1:
        raise ConfigError(
            f"parallel: tensor {parallel.tensor} with sequence {parallel.sequence}: DeepSpeed's groups hold one of "
            f"the two beside data parallel; set one to 1, or use engine megatron"
        )
    if parallel.tensor > 1 and zero.partition_within > 1:
        raise ConfigError(
            f"zero.partition_within: {zero.partition_within} with parallel.tensor {parallel.tensor}: DeepSpeed puts "
            f"neighbouring ranks into both groups, and those of a tensor hold different parameters; set one to 1"
        )
    if parallel.sequence > 1 and config.attention == "eager":
        raise ConfigError(
            "attention: eager with sequence parallel: it always takes a mask, which no worker has whole; use sdpa or "
            "flash_attention_2"
        )
    if config.attention == "flash_attention_2" and config.separate_documents and config.micro_batch > 1:
        raise ConfigError(
            f"micro_batch: {config.micro_batch} with separate_documents and flash_attention_2, of which transformers "
            f"tells documents apart in micro-batches of one sequence only; set it to 1, or use sdpa"
        )


def _choices(fitting: list[int], found: int) -> str:
    """Of a rising list the two nearest below and the two nearest above."""
    below = [choice for choice in fitting if choice < found][-2:]
    above = [choice for choice in fitting if choice > found][:2]
    return ", ".join(f"{choice:,}" for choice in below + above)
