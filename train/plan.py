"""What `taojin train --plan` says before anything starts: memory by part, step time, days, money, what would fit.

In: a TrainConfig and the model's config.json. Out: JSON-like values, and the table in lines of at most LINE_WIDTH.
Costs milliseconds; no torch, no data. Leaves to others: the formulas (`estimate.py`, `cost.py`), how long the data is.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from textwrap import wrap
from typing import Any, Literal

from taojin.core.progress import duration
from taojin.train.config import TrainConfig
from taojin.train.cost import CHECKPOINTED_MFU, DEFAULT_MFU, money, pace
from taojin.train.devices import Device, known_device
from taojin.train.estimate import Setup, ZeroSizes, memory
from taojin.train.parallel import check_model, layout
from taojin.train.shape import Shape, shape_of
from taojin.train.zero import deepspeed_config

LINE_WIDTH = 96
GIB = 2**30
# A parameter: fp32 weights, momentum, variance.
OPTIMIZER_BYTES = 12
# Assumed: the driver's context and libraries, communication channels, and what an allocator loses to fragments.
RESERVED_BYTES = 2 * GIB
PARTS = {
    "parameters": "weights in the precision of training",
    "gradients": "",
    "optimizer": "fp32 weights, momentum, variance",
    "step": "fp32 gradients, while the optimizer steps",
    "gathered": "whole parameters fetched by ZeRO-3, at most",
    "buffers": "buckets of gradients",
    "activations": "kept from forward to backward",
    "logits": "at the loss",
}


def settings_of(config: TrainConfig, shape: Shape) -> dict[str, Any]:
    """What DeepSpeed will be told, a JSON of the user's included. Raises ConfigError as `deepspeed_config` does."""
    device: Literal["cpu", "cuda"] = "cpu" if config.device == "cpu" else "cuda"
    return deepspeed_config(config, device=device, largest_parameter=shape.embedding)


def setup_of(config: TrainConfig, shape: Shape) -> Setup:
    """The same for the estimate. Raises ConfigError."""
    settings = settings_of(config, shape)
    zero, placed = settings.get("zero_optimization", {}), layout(config)
    sizes = {
        field.name: int(zero.get(field.name, zero.get(f"stage3_{field.name}", field.default)))
        for field in fields(ZeroSizes)
    }
    return Setup(
        devices=placed.world,
        devices_per_node=config.devices_per_node,
        stage=config.zero.stage,
        offload_optimizer=config.zero.offload_optimizer,
        offload_parameters=config.zero.offload_parameters,
        partition_within=config.zero.partition_within,
        tensor=placed.tensor,
        sequence=placed.sequence,
        precision=config.precision,
        micro_batch=placed.micro_batch,
        sequence_length=config.sequence_length,
        checkpointing=config.activation_checkpointing,
        accumulation=placed.accumulation,
        fused=not settings["optimizer"]["params"].get("torch_adam", False),
        sizes=ZeroSizes(**sizes),
    )


def plan(
    config: TrainConfig, model: Mapping[str, Any], *, samples_per_epoch: int | None = None, mfu: float | None = None
) -> dict[str, Any]:
    """Everything the table shows. Without a device_name there is memory, but no time and no money.

    model: the values of its config.json. samples_per_epoch: needed where the run's length is in epochs. mfu: measured,
    in place of the assumed one.
    Raises ConfigError: an unknown device, a model or a batch that cannot be divided so; InputError: an unknown model.
    """
    check_model(config, model)
    shape = shape_of(model, config.model)
    device = known_device(config.device_name) if config.device_name else None
    steps = config.total_steps(samples_per_epoch)
    values: dict[str, Any] = {
        "family": shape.family,
        "parameters": shape.parameters,
        "layout": layout(config).row(),
        "zero": zero_words(config),
        "steps": steps,
        "tokens": steps * config.tokens_per_step,
        "device": device.name if device else None,
        "memory": None,
        "time": None,
        "warnings": [],
        "assumptions": ["one process per device; devices of a node share its host memory and NVMe"],
    }
    if shape.max_positions is not None and config.sequence_length > shape.max_positions:
        values["warnings"].append(
            f"sequence_length {config.sequence_length:,} is above the model's max_position_embeddings "
            f"{shape.max_positions:,}{'' if config.engine == 'megatron' else ', which a run refuses'}"
        )
    if config.engine == "deepspeed":
        values["deepspeed"] = settings_of(config, shape)
        values |= memory_values(config, shape, device, values)
    else:
        values["assumptions"].append("memory is estimated for DeepSpeed alone, not for Megatron-LM")
    if device:
        values["time"] = time_values(config, shape, device, steps, mfu, values)
    else:
        values["warnings"].append("no time and no money without device_name, such as H100")
    return values


def memory_values(config: TrainConfig, shape: Shape, device: Device | None, values: dict[str, Any]) -> dict[str, Any]:
    setup = setup_of(config, shape)
    found = memory(shape, setup)
    needed = found.peak + RESERVED_BYTES
    fits = needed <= device.memory_bytes if device else None
    if device and not fits:
        values["warnings"].append(
            f"{in_gib(needed)} a device do not fit into the {in_gib(device.memory_bytes)} of {device.name}; "
            f"{remedy(shape, setup, device)}"
        )
    values["assumptions"] += [
        f"{in_gib(RESERVED_BYTES)} a device are reserved for driver, communication and fragments",
        "attention without a matrix of scores (sdpa, flash); documents packed with borders may need more",
    ]
    if config.asynchronous_save:
        values["assumptions"].append(
            f"asynchronous saves keep {in_gib(OPTIMIZER_BYTES * shape.parameters)} of host memory, over all workers"
        )
    if setup.offload_optimizer != "none" or setup.offload_parameters != "none":
        values["assumptions"].append("host memory with DeepSpeed's factor of 1.5 for pinned buffers")
    return {
        "memory": {
            "parts": {name: getattr(found, name) for name in PARTS},
            "moments": found.moments,
            "peak": found.peak,
            "reserved": RESERVED_BYTES,
            "device": device.memory_bytes if device else None,
            "fits": fits,
            "host": found.host,
            "nvme": found.nvme,
        }
    }


def remedy(shape: Shape, setup: Setup, device: Device) -> str:
    """The mildest change that fits, in words."""

    def fits(changed: Setup) -> bool:
        return memory(shape, changed).peak + RESERVED_BYTES <= device.memory_bytes

    told: list[str] = []
    for words, changed in remedies(setup):
        told.append(words)
        if fits(changed):
            return f"{', '.join(told)} would do"
    for times in (2, 4, 8, 16, 32, 64):
        grown = replace(changed, devices=setup.devices * times)
        if fits(grown):
            return f"{', '.join([*told, f'{grown.devices:,} devices'])} would do"
    return "no number of devices would do; raise parallel.tensor or parallel.sequence"


def remedies(setup: Setup) -> Iterator[tuple[str, Setup]]:
    """Changes on top of each other, the cheapest in time first."""
    if setup.micro_batch > 1:
        setup = replace(setup, micro_batch=1, accumulation=setup.accumulation * setup.micro_batch)
        yield "micro_batch 1", setup
    if not setup.checkpointing:
        setup = replace(setup, checkpointing=True)
        yield "activation_checkpointing", setup
    if setup.stage < 3:
        setup = replace(setup, stage=3)
        yield "zero.stage 3", setup
    if setup.offload_optimizer == "none":
        setup = replace(setup, offload_optimizer="cpu")
        yield "zero.offload_optimizer cpu", setup
    if setup.offload_parameters == "none":
        setup = replace(setup, offload_parameters="cpu")
    yield "zero.offload_parameters cpu", setup


def time_values(
    config: TrainConfig, shape: Shape, device: Device, steps: int, mfu: float | None, values: dict[str, Any]
) -> dict[str, Any]:
    if mfu is None:
        mfu = CHECKPOINTED_MFU if config.activation_checkpointing else DEFAULT_MFU
        values["assumptions"].append(f"an MFU of {mfu:g}, not measured; communication and offload are not modelled")
    went = pace(
        shape,
        sequence_length=config.sequence_length,
        global_batch=config.global_batch,
        steps=steps,
        devices=config.workers,
        peak_flops=device.peak_flops,
        mfu=mfu,
    )
    values["assumptions"].append(f"{device.peak_flops / 1e12:g} TFLOPs a second at peak ({device.source})")
    price = config.price_per_device_hour
    spent = money(devices=config.workers, hours=went.seconds / 3600, price_per_device_hour=price) if price else None
    if spent is not None and config.budget is not None and spent > config.budget:
        values["warnings"].append(
            f"the budget of {config.budget:,.2f} {config.currency} ends after about "
            f"{int(steps * config.budget / spent):,} of {steps:,} steps"
        )
    return {
        "mfu": mfu,
        "flops_per_token": went.flops_per_token,
        "step_seconds": went.step_seconds,
        "tokens_per_second": went.tokens_per_second,
        "seconds": went.seconds,
        "days": went.days,
        "device_hours": went.device_hours,
        "money": spent,
        "price_per_device_hour": price,
        "currency": config.currency,
        "budget": config.budget,
    }


def zero_words(config: TrainConfig) -> str:
    if config.engine != "deepspeed":
        return config.engine
    zero = config.zero
    words = [f"ZeRO-{zero.stage}", config.precision]
    words += [f"optimizer on {zero.offload_optimizer}"] if zero.offload_optimizer != "none" else []
    words += [f"parameters on {zero.offload_parameters}"] if zero.offload_parameters != "none" else []
    words += ["activation checkpointing"] if config.activation_checkpointing else []
    return ", ".join(words)


def plan_lines(values: dict[str, Any]) -> list[str]:
    """The table in plain text."""
    rows: list[tuple[str, str, str]] = [
        ("model", f"{values['parameters']:,}", f"parameters, {values['family']}"),
        ("tokens", f"{values['tokens']:,}", f"in {values['steps']:,} steps"),
        ("devices", values["device"] or "not named", values["layout"]),
        ("state", "", values["zero"]),
    ]
    if found := values["memory"]:
        rows.append(("", "", ""))
        rows += [(name, in_gib(found["parts"][name]), note) for name, note in PARTS.items()]
        moment = max(found["moments"], key=found["moments"].__getitem__)
        others = ", ".join(f"{name} {in_gib(size)}" for name, size in found["moments"].items() if name != moment)
        rows.append(("peak", in_gib(found["peak"]), f"at the {moment}; {others}"))
        if found["device"] is not None:
            verdict = "fits" if found["fits"] else "does not fit"
            rows.append(("device", in_gib(found["device"]), f"{verdict}, with {in_gib(found['reserved'])} reserved"))
        rows += [("host", in_gib(found["host"]), "of a node, for what is offloaded")] if found["host"] else []
        rows += [("NVMe", in_gib(found["nvme"]), "of a node, for what is offloaded")] if found["nvme"] else []
    if spent := values["time"]:
        rows.append(("", "", ""))
        rows += [
            ("work", f"{spent['flops_per_token'] / 1e9:,.1f}", "GFLOPs a token, forward and backward"),
            ("step", f"{spent['step_seconds']:,.2f} s", f"at an MFU of {spent['mfu']:g}"),
            ("speed", f"{spent['tokens_per_second']:,.0f}", "tokens a second, all devices"),
            (
                "time",
                duration(spent["seconds"]),
                f"{spent['days']:,.2f} days, {spent['device_hours']:,.1f} device-hours",
            ),
        ]
        if spent["money"] is not None:
            price = f"{spent['currency']} at {spent['price_per_device_hour']:g} a device-hour"
            limit = f", budget {spent['budget']:,.2f}" if spent["budget"] is not None else ""
            rows.append(("money", f"{spent['money']:,.2f}", price + limit))
    names, width = max(len(row[0]) for row in rows), max(len(row[1]) for row in rows)
    lines: list[str] = []
    for name, number, note in rows:
        indent = " " * (names + width + 4)
        lines += wrap(f"{name:<{names}}  {number:>{width}}  {note}", LINE_WIDTH, subsequent_indent=indent) or [""]
    lines.append("")
    for warning in values["warnings"]:
        lines += wrap(f"warning: {warning}", LINE_WIDTH, subsequent_indent="  ")
    lines.append("assumed")
    for assumption in values["assumptions"]:
        lines += wrap(f"- {assumption}", LINE_WIDTH, subsequent_indent="  ")
    return lines


def in_gib(count: int) -> str:
    return f"{count / GIB:,.1f} GiB"
