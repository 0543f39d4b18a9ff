"""Bytes of live tensors while a tiny model trains: what `test_train_estimate.py` holds the estimates against.

As a script, one rank of DeepSpeed runs on CPU: `train_live.py RANK WORLD FILE RUNS`; RUNS is a JSON list of arguments
of deepspeed_moments. The last line it prints is a JSON list of what they return.
"""

import json
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the storages that operations create, until they die."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = self.peak = 0
        self._sizes: dict[int, int] = {}

    def add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if tensor.device.type == "meta" or key in self._sizes:
            return
        self._sizes[key] = storage.nbytes()
        self.bytes += storage.nbytes()
        self.peak = max(self.peak, self.bytes)
        weakref.finalize(storage, self._remove, key)

    def _remove(self, key: int) -> None:
        self.bytes -= self._sizes.pop(key)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.add(leaf)
        return result


def model_of(config: dict[str, Any], precision: str, *, checkpointing: bool) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    values = dict(config)
    made = AutoConfig.for_model(values.pop("model_type"), use_cache=False, **values)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(made, attn_implementation="sdpa", dtype=dtype)
    if checkpointing:
        # Renamed in transformers 5.
        getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    return model.train()


def moments_of_step(
    live: Live, forward: Callable[[], Any], backward: Callable[[Any], None], step: Callable[[], None]
) -> Any:
    """Standing bytes after a step, and the peaks of the second step; the first one makes the optimizer's state."""
    found: dict[str, int] = {}
    for _ in range(2):
        live.peak = live.bytes
        loss = forward()
        backward(loss)
        del loss
        found["backward"] = live.peak
        live.peak = live.bytes
        step()
        found |= {"step": live.peak, "standing": live.bytes}
    return found


def deepspeed_moments(
    config: dict[str, Any],
    *,
    stage: int,
    precision: str,
    micro_batch: int,
    sequence_length: int,
    checkpointing: bool,
    zero: dict[str, Any],
) -> Any:
    import deepspeed

    live = Live()
    with live:
        model = model_of(config, precision, checkpointing=checkpointing)
        settings = {
            "train_micro_batch_size_per_gpu": micro_batch,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
            "zero_optimization": {"stage": stage, "overlap_comm": False, **zero},
            "bf16": {"enabled": precision == "bf16"},
        }
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
        del model
        tokens = torch.randint(0, config["vocab_size"], (micro_batch, sequence_length))
        found = moments_of_step(
            live, lambda: engine(input_ids=tokens, labels=tokens).loss, engine.backward, engine.step
        )
    engine.destroy()
    return found


def main(rank: str, world: str, file: str, runs: str) -> None:
    os.environ |= {"LOCAL_RANK": rank, "DS_ACCELERATOR": "cpu"}
    import deepspeed
    import deepspeed.ops

    # Not needed here, and compiled for most of a minute otherwise.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=int(rank), world_size=int(world))
    deepspeed.init_distributed("gloo")
    found = [deepspeed_moments(**run) for run in json.loads(runs)]
    print(json.dumps(found), flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
