"""The DeepSpeed JSON of a run: complete, shown, kept beside the checkpoints.

Two layers. What the config settles (stage, precision, learning rate, batch, …) stands; a JSON of the user's that says
otherwise is an error that names both values. What we only fill in (bucket sizes, the kind of AdamW, …) the user's JSON
replaces, and it adds what we do not know. "auto", as Hugging Face's trainer writes, means ours.

Settings were tried with DeepSpeed 0.19.8. Never given: train_batch_size, which DeepSpeed would hold against the whole
world also where tensor-parallel ranks see the same rows; micro-batch and accumulation say the same.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from taojin.core.errors import ConfigError
from taojin.train.config import TrainConfig
from taojin.train.parallel import Layout, layout

# Elements of a message: 100 MB in bf16, which fills any link; DeepSpeed's default, and its buffer, is ten times that.
REDUCE_BUCKET = 50_000_000
PREFETCH_BUCKET = 50_000_000
# DeepSpeed's defaults: parameters up to this size (norms, biases) stay whole on every rank; gathered ones live, and are
# kept for reuse, up to this many elements.
PERSISTENT_PARAMETER = 100_000
LIVE_PARAMETERS = 1_000_000_000
# Elements of a buffer between NVMe and memory; a parameter larger than it (an embedding) stops DeepSpeed.
NVME_BUFFER = 100_000_000

Device = Literal["cpu", "cuda"]
Keys = tuple[str, ...]
"""Where a value stands in the JSON: the keys from the top."""
# Values that are settled but not written, as DeepSpeed takes the mere key for a wish.
_UNSAID = {
    "train_batch_size": None,
    "tensor_parallel.autotp_size": 1,
    "sequence_parallel_size": 1,
    "zero_optimization.offload_optimizer.device": "none",
    "zero_optimization.offload_param.device": "none",
    "zero_optimization.offload_optimizer.nvme_path": "",
    "zero_optimization.offload_param.nvme_path": "",
    "zero_optimization.zero_hpz_partition_size": 1,
    "zero_optimization.zero_quantized_weights": False,
    "zero_optimization.zero_quantized_gradients": False,
    "checkpoint.load_universal": False,
}
# Old names by which a JSON could contradict the config unseen.
_OLD = {
    "bfloat16": "bf16",
    "zero_optimization.cpu_offload": "zero_optimization.offload_optimizer",
    "zero_optimization.cpu_offload_param": "zero_optimization.offload_param",
    "zero_optimization.cpu_offload_use_pin_memory": "zero_optimization.offload_optimizer",
}


def deepspeed_config(
    config: TrainConfig,
    world: int | None = None,
    device: Device = "cuda",
    universal: bool = False,
    largest_parameter: int = 0,
) -> dict[str, Any]:
    """What deepspeed.initialize(config=…) takes, for `world` workers (default: config.workers).

    universal: the checkpoint to be loaded is a universal one. largest_parameter: elements of the model's largest
    matrix, for the buffers of NVMe. Raises ConfigError: a world that does not fit, a JSON that contradicts.
    """
    placed = layout(config, world)
    settled = {_path(name): value for name, value in _settled(config, placed, universal).items()}
    ours = {_path(name): value for name, value in _filled_in(config, device, largest_parameter).items()}
    name, theirs = _users(config.deepspeed)
    taken = _without_conflicts(name, theirs, settled, ours)
    unsaid = {_path(name): value for name, value in _UNSAID.items()}
    result: dict[str, Any] = {}
    for path, (value, _) in settled.items():
        if path not in unsaid or unsaid[path] not in (None, value):
            _put(result, path, value)
    for path, value in (ours | taken).items():
        _put(result, path, value)
    return result


def as_text(values: Mapping[str, Any]) -> str:
    """For the terminal and the file beside the checkpoints."""
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"


def _settled(config: TrainConfig, placed: Layout, universal: bool) -> dict[str, tuple[Any, str]]:
    """Path in DeepSpeed's JSON → (value, the key of our config that says so)."""
    optimizer, zero = config.optimizer, config.zero
    return {
        "train_batch_size": (config.global_batch, "global_batch"),
        "train_micro_batch_size_per_gpu": (placed.micro_batch, "micro_batch"),
        "gradient_accumulation_steps": (placed.accumulation, "global_batch / (micro_batch × data-parallel ranks)"),
        "gradient_clipping": (config.clip, "clip"),
        "optimizer.type": ("AdamW", "optimizer"),
        "optimizer.params.lr": (optimizer.learning_rate, "optimizer.learning_rate"),
        "optimizer.params.betas": ([optimizer.beta1, optimizer.beta2], "optimizer.beta1 and beta2"),
        "optimizer.params.eps": (optimizer.epsilon, "optimizer.epsilon"),
        "optimizer.params.weight_decay": (optimizer.weight_decay, "optimizer.weight_decay"),
        "bf16.enabled": (config.precision == "bf16", "precision"),
        "fp16.enabled": (config.precision == "fp16", "precision"),
        "zero_optimization.stage": (zero.stage, "zero.stage"),
        "zero_optimization.offload_optimizer.device": (zero.offload_optimizer, "zero.offload_optimizer"),
        "zero_optimization.offload_param.device": (zero.offload_parameters, "zero.offload_parameters"),
        "zero_optimization.offload_optimizer.nvme_path": (
            zero.nvme_path if zero.offload_optimizer == "nvme" else "",
            "zero.nvme_path",
        ),
        "zero_optimization.offload_param.nvme_path": (
            zero.nvme_path if zero.offload_parameters == "nvme" else "",
            "zero.nvme_path",
        ),
        "zero_optimization.zero_hpz_partition_size": (zero.partition_within, "zero.partition_within"),
        "zero_optimization.zero_quantized_weights": (zero.quantize_weights, "zero.quantize_weights"),
        "zero_optimization.zero_quantized_gradients": (zero.quantize_gradients, "zero.quantize_gradients"),
        "tensor_parallel.autotp_size": (placed.tensor, "parallel.tensor"),
        "sequence_parallel_size": (placed.sequence, "parallel.sequence"),
        "checkpoint.load_universal": (universal, "what is resumed"),
    }


def _filled_in(config: TrainConfig, device: Device, largest_parameter: int) -> dict[str, Any]:
    zero = config.zero
    offloaded = zero.offload_optimizer != "none"
    filled: dict[str, Any] = {
        # DeepSpeed's own AdamWs are compiled at the first start: minutes, and a compiler on every node. PyTorch's works
        # on whole partitions too; only beside offloaded states, on the host's cores, is DeepSpeed's much faster.
        "optimizer.params.torch_adam": device == "cpu" or not offloaded,
        # A checkpoint whose ranks disagree on its name must not pass.
        "checkpoint.tag_validation": "Fail",
        "wall_clock_breakdown": False,
    }
    if zero.stage == 0:
        return filled
    at = "zero_optimization."
    filled |= {
        # gloo has no streams to overlap on.
        at + "overlap_comm": zero.overlap and device == "cuda",
        at + "contiguous_gradients": True,
        at + "reduce_bucket_size": REDUCE_BUCKET,
    }
    if zero.stage == 3:
        filled |= {
            at + "stage3_prefetch_bucket_size": PREFETCH_BUCKET,
            at + "stage3_param_persistence_threshold": PERSISTENT_PARAMETER,
            at + "stage3_max_live_parameters": LIVE_PARAMETERS,
            at + "stage3_max_reuse_distance": LIVE_PARAMETERS,
        }
    else:
        filled |= {at + "allgather_bucket_size": REDUCE_BUCKET}
    if offloaded:
        filled[at + "offload_optimizer.pin_memory"] = device == "cuda"
        filled["zero_force_ds_cpu_optimizer"] = device == "cuda"
    if zero.offload_parameters != "none":
        filled[at + "offload_param.pin_memory"] = device == "cuda"
    if zero.offload_parameters == "nvme":
        filled[at + "offload_param.buffer_size"] = max(NVME_BUFFER, largest_parameter)
    return filled


def _users(given: str | dict[str, Any] | None) -> tuple[str, dict[Keys, Any]]:
    """(what to call it, its leaves)."""
    if given is None:
        return "deepspeed", {}
    if isinstance(given, dict):
        return "deepspeed", dict(_leaves(given))
    try:
        values = json.loads(Path(given).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"deepspeed: {given}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"deepspeed: {given}: not JSON: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"deepspeed: {given}: expected an object, found {type(values).__name__}")
    return f"deepspeed: {given}", dict(_leaves(values))


def _without_conflicts(
    name: str, theirs: dict[Keys, Any], settled: dict[Keys, tuple[Any, str]], ours: dict[Keys, Any]
) -> dict[Keys, Any]:
    """What of the user's leaves is news. Raises ConfigError with every contradiction."""
    problems, taken = [], {}
    known = settled.keys() | ours.keys()
    sections = {path[:end] for path in known for end in range(1, len(path))}
    for path, value in theirs.items():
        dotted = ".".join(path)
        above = {path[:end] for end in range(1, len(path) + 1)}
        old = next((old for old in _OLD if _path(old) in above), None)
        if old is not None:
            problems.append(f"{old} is the old name of {_OLD[old]}; use that")
        elif path[0] == "scheduler":
            problems.append("scheduler: the learning rate follows schedule of this config; remove it")
        elif path in sections:
            problems.append(f"{dotted}: expected an object, found {value!r}")
        elif known & (above - {path}):
            problems.append(f"{'.'.join(path[:-1])}: expected a value, found an object")
        elif value == "auto":
            continue
        elif path not in settled:
            taken[path] = value
        elif settled[path][0] != value:
            stands, key = settled[path]
            problems.append(f"{dotted} is {value!r} there, but {stands!r} by {key}; make them equal, or remove one")
    if problems:
        # A whole section of an old name has many leaves and one problem.
        raise ConfigError(f"{name}: {'; '.join(dict.fromkeys(problems))}")
    return taken


def _path(dotted: str) -> Keys:
    return tuple(dotted.split("."))


def _leaves(values: Mapping[str, Any], above: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """{"a": {"b": 1}} → (("a", "b"), 1). Empty objects are no leaves: they say nothing."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*above, str(key)))
        else:
            yield (*above, str(key)), value


def _put(values: dict[str, Any], path: Keys, value: Any) -> None:
    *sections, key = path
    for section in sections:
        values = values.setdefault(section, {})
    values[key] = value
