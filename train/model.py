"""A causal language model of Hugging Face's, fresh or with weights, whole or divided by ZeRO-3 as it is made.

In: a config JSON, or a local folder with config.json and safetensors. Nothing is ever downloaded. Fresh weights are
drawn module by module after one seed, so they depend on the seed alone, not on the number of ranks, on ZeRO or on how
PyTorch builds a module. Under ZeRO-3 no rank ever holds more than one module whole (`deepspeed.zero.Init`); weights are
read by rank 0 and broadcast parameter by parameter. Imports torch and transformers in its functions only.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from taojin.core.errors import ConfigError, InputError

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def read_model(source: str) -> dict[str, Any]:
    """The values of a config JSON, or of the config.json of a folder. Raises InputError."""
    path = Path(source)
    path = path / "config.json" if path.is_dir() else path
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"model: {path}: {error.strerror}; expected a config JSON or a folder with config.json"
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"model: {path}: not JSON: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise InputError(f"model: {path}: expected the config of a Hugging Face model, found no model_type")
    return values


def weight_files(source: str) -> list[Path]:
    """The safetensors of a folder; none for a config JSON. Raises InputError for a folder without any."""
    folder = Path(source)
    if not folder.is_dir():
        return []
    if files := sorted(folder.glob("*.safetensors")):
        return files
    raise InputError(
        f"model: {folder}: expected *.safetensors; name its config.json to train a fresh model of its shape"
    )


def transformers_config(values: Mapping[str, Any], *, sequence_length: int) -> Any:
    """The values as transformers' config. Raises ConfigError for a shape unknown to it or too short a context."""
    import transformers

    rest = {key: value for key, value in values.items() if key != "model_type"}
    try:
        config = transformers.AutoConfig.for_model(values["model_type"], **rest)
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"model: transformers {transformers.__version__}: {' '.join(str(error).split())}") from None
    if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ConfigError(
            f"model: expected a causal language model, found model_type {values['model_type']}, of which "
            f"transformers {transformers.__version__} has none"
        )
    kind: Any = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    config.architectures = [kind.__name__]
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and positions < sequence_length:
        raise ConfigError(
            f"sequence_length: {sequence_length:,} is more than the model's max_position_embeddings {positions:,}; "
            "lower it, or raise that in the model's config"
        )
    return config


def build_model(
    source: str,
    config: Any,
    *,
    seed: int,
    precision: str,
    attention: str,
    activation_checkpointing: bool,
    zero: dict[str, Any] | None,
) -> Any:
    """The module, parameters in the dtype of `precision`. All ranks must call it.

    config: from `transformers_config`. zero: DeepSpeed's JSON, to divide the parameters as they are made (ZeRO-3), or
    None. Raises InputError where the weights do not fit the config.
    """
    import torch
    import transformers
    from transformers.initialization import no_init_weights

    files = weight_files(source)
    # Looked up first: the import of a model's code must not see what zero.Init replaces in torch.
    kind: Any = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    # Weights are drawn or read below; as the module is made they are divided already, and cannot be drawn whole.
    with _divided(zero), no_init_weights():
        model = kind._from_config(config, dtype=getattr(torch, DTYPES[precision]), attn_implementation=attention)
        model.tie_weights()
    if files:
        _load(model, files, zero)
    else:
        _draw(model, seed, zero)
    if activation_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def parameter_groups(model: Any, weight_decay: float) -> list[dict[str, Any]]:
    """For the optimizer: matrices decay, vectors (norms, biases) do not."""
    matrices: list[Any] = []
    vectors: list[Any] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            (matrices if len(_shape(parameter)) > 1 else vectors).append(parameter)
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def num_parameters(model: Any) -> int:
    import math

    return sum(math.prod(_shape(parameter)) for parameter in model.parameters())


def largest_parameter(model: Any) -> int:
    import math

    return max(int(math.prod(_shape(parameter))) for parameter in model.parameters())


def _shape(parameter: Any) -> Any:
    # What ZeRO-3 has divided says its shape elsewhere.
    return getattr(parameter, "ds_shape", parameter.shape)


@contextlib.contextmanager
def _divided(zero: dict[str, Any] | None) -> Iterator[None]:
    if zero is None:
        yield
        return
    import deepspeed

    with deepspeed.zero.Init(config_dict_or_path=zero):
        yield


@contextlib.contextmanager
def _whole(parameters: list[Any], zero: dict[str, Any] | None) -> Iterator[None]:
    """While these parameters stand whole on every rank; what rank 0 made of them is everyone's afterwards."""
    if zero is None:
        yield
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters(parameters, modifier_rank=0):
        yield


def _draw(model: Any, seed: int, zero: dict[str, Any] | None) -> None:
    import torch

    torch.manual_seed(seed)
    for module in model.modules():
        own = list(module.parameters(recurse=False))
        # transformers marks what it has initialised, and then leaves it alone.
        for marked in (module, *own):
            marked.__dict__.pop("_is_hf_initialized", None)
        with _whole(own, zero):
            model._init_weights(module)


def _load(model: Any, files: list[Path], zero: dict[str, Any] | None) -> None:
    from safetensors import SafetensorError, safe_open

    parameters = dict(model.named_parameters())
    # Tied weights are one parameter under several names; named_parameters gives the first.
    aliases = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    loaded = set()
    for path in files:
        try:
            stored = safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise InputError(f"model: {path}: {' '.join(str(error).split())}") from None
        with stored as tensors:
            for name in tensors.keys():  # noqa: SIM118
                if name not in parameters:
                    if name in aliases:
                        continue
                    raise InputError(f"model: {path}: {name} is no parameter of a {type(model).__name__}")
                found, expected = tuple(tensors.get_slice(name).get_shape()), tuple(_shape(parameters[name]))
                if found != expected:
                    raise InputError(f"model: {path}: {name}: expected {expected} by config.json, found {found}")
                with _whole([parameters[name]], zero):
                    parameters[name].data.copy_(tensors.get_tensor(name))
                loaded.add(name)
    if missing := sorted(set(parameters) - loaded):
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise InputError(f"model: {files[0].parent}: no weights of {missing[0]}{more}")
