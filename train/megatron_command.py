"""The launch of Megatron-LM's pretrain_gpt.py over our pairs: environment and arguments, from the same config.

For teams that train with tensor × pipeline × data parallel. A pure function: nothing is started, no file is opened;
`megatron_workers` starts it.
What Megatron-LM would find out after minutes on all nodes is checked here: heads, layers, hidden sizes, batch
arithmetic, sequence length, and what its flags cannot say.

Flags as in Megatron-LM's megatron/training/arguments.py of core_v0.14 and later. It starts from fresh weights, or from
its own checkpoints under output; Hugging Face weights have to be converted with its own tools first.
"""

import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from taojin.core.errors import ConfigError
from taojin.train.config import TrainConfig
from taojin.train.parallel import Layout, check_model, layout
from taojin.train.schedule import phases
from taojin.train.sections import Parallel
from taojin.train.shape import Shape, shape_of

# What `engine: megatron` means where the config says nothing: 8 (a node) × 4 × 4.
DEFAULT_PARALLEL = Parallel(tensor=8, pipeline=4)
DEFAULT_WORKERS = 128
SCRIPT = "pretrain_gpt.py"
_DECAY_SHAPES = {"linear": "linear", "cosine": "cosine", "sqrt": "minus_sqrt"}


class Launch(NamedTuple):
    """environment: of every process. arguments: of pretrain_gpt.py. layout: who does what."""

    environment: dict[str, str]
    arguments: list[str]
    layout: Layout
    nodes: int
    devices_per_node: int

    @property
    def bubble(self) -> float:
        """Share of a step in which a pipeline stage waits: (p - 1) / (m + p - 1) (Narayanan et al. 2021, §2.2)."""
        waiting = self.layout.pipeline - 1
        return waiting / (self.layout.accumulation + waiting)

    def torchrun(self, endpoint: str, folder: str) -> list[str]:
        """The command of every node; the same on all. endpoint: host:port of the first; folder: of Megatron-LM."""
        return [
            "torchrun",
            *("--nnodes", str(self.nodes), "--nproc-per-node", str(self.devices_per_node)),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "taojin"),
            f"{folder}/{SCRIPT}",
            *self.arguments,
        ]

    def text(self, endpoint: str, folder: str) -> str:
        """A shell script to be read, kept and run on every node: one flag a line."""
        lines = [
            "#!/bin/sh",
            f"# {self.layout.row()}; the pipeline waits {self.bubble:.1%} of a step.",
            "# The same command on every node.",
            "set -eu",
        ]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in self.environment.items()]
        command: list[str] = []
        for word in self.torchrun(endpoint, folder):
            if word.startswith("--") or not command or word.endswith(SCRIPT):
                command.append(shlex.quote(word))
            else:
                command[-1] += " " + shlex.quote(word)
        return "\n".join([*lines, " \\\n  ".join(command)]) + "\n"


def with_defaults(config: TrainConfig) -> TrainConfig:
    """Tensor 8 × pipeline 4 × data 4 where the config names neither workers nor parallel."""
    update: dict[str, Any] = {}
    if "parallel" not in config.model_fields_set:
        update["parallel"] = DEFAULT_PARALLEL
    if "workers" not in config.model_fields_set:
        update["workers"] = DEFAULT_WORKERS
    return config.model_copy(update=update)


def megatron_launch(config: TrainConfig, model: Mapping[str, Any]) -> Launch:
    """model: the values of a Hugging Face config.json. Raises ConfigError and InputError, one line each."""
    config = with_defaults(config)
    shape = shape_of(model, config.model)
    _check(config)
    placed = layout(config)
    check_model(config, model)
    nodes, per_node = _nodes(config)
    return Launch(
        environment={
            # Kernels must start in the order they were queued for communication to overlap with computation.
            "CUDA_DEVICE_MAX_CONNECTIONS": "1",
            "OMP_NUM_THREADS": "1",
            **({"WANDB_MODE": _wandb(config)} if _wandb(config) != "off" else {}),
        },
        arguments=[
            *_model(config, shape, model),
            *_parallel(config, placed),
            *_batches(config),
            *_optimizer(config),
            *_data(config, shape),
            *_files(config),
        ],
        layout=placed,
        nodes=nodes,
        devices_per_node=per_node,
    )


def _check(config: TrainConfig) -> None:
    """What the flags cannot say, and what would be silently something else."""
    if config.engine != "megatron":
        raise ConfigError(f"engine: expected megatron, found {config.engine}")
    if not config.model.endswith(".json"):
        raise ConfigError(
            f"model: engine megatron starts from fresh weights; to accept that, name "
            f"{config.model.rstrip('/')}/config.json"
        )
    if "://" in config.output:
        raise ConfigError(f"output: Megatron-LM writes to a folder that all nodes share, not to {config.output}")
    if config.separate_documents:
        raise ConfigError(
            # Its issue 2357: attention leaks between documents, silently.
            "separate_documents: Megatron-LM's fused attention ignores masks of documents; use engine deepspeed"
        )
    if config.loss_mask:
        raise ConfigError("loss_mask: Megatron-LM's pretrain_gpt.py reads no masks of pairs; use engine deepspeed")
    if config.deepspeed is not None:
        raise ConfigError("deepspeed: has no meaning with engine megatron")
    if config.blend is not None and config.validation_share:
        raise ConfigError("validation_share: Megatron-LM splits no blend; tokenize with --split, or name data")
    tensor, sequence = config.parallel.tensor, config.parallel.sequence
    if config.sequence_length % tensor:
        raise ConfigError(
            f"sequence_length: {config.sequence_length} must be a multiple of parallel.tensor {tensor}, which divides "
            f"norms and dropout by positions"
        )
    if sequence > 1 and config.sequence_length % (2 * sequence):
        raise ConfigError(
            f"sequence_length: {config.sequence_length} must be a multiple of 2 × parallel.sequence {sequence}: every "
            f"rank takes a piece from either end"
        )


def _nodes(config: TrainConfig) -> tuple[int, int]:
    """(nodes, devices of each)."""
    per_node = min(config.devices_per_node, config.workers)
    if config.workers % per_node:
        raise ConfigError(f"workers: {config.workers} are not whole nodes of {config.devices_per_node} devices")
    if per_node % config.parallel.tensor:
        raise ConfigError(
            f"parallel.tensor: {config.parallel.tensor} devices do not divide a node of {per_node}; between nodes, "
            f"tensor parallel waits for the network in every layer"
        )
    return config.workers // per_node, per_node


def _model(config: TrainConfig, shape: Shape, model: Mapping[str, Any]) -> list[str]:
    flags = _flags(
        num_layers=shape.layers,
        hidden_size=shape.hidden,
        ffn_hidden_size=shape.intermediate,
        num_attention_heads=shape.heads,
        kv_channels=shape.head_dim,
        max_position_embeddings=max(config.sequence_length, shape.max_positions or 0),
        position_embedding_type="rope",
        normalization="RMSNorm",
        norm_epsilon=float(model.get("rms_norm_eps", 1e-6)),
        init_method_std=float(model.get("initializer_range", 0.02)),
        attention_dropout=0.0,
        hidden_dropout=0.0,
    )
    flags += [*_rope(model), "--swiglu"]
    if shape.heads_kv != shape.heads:
        flags += ["--group-query-attention", *_flags(num_query_groups=shape.heads_kv)]
    if not shape.tied:
        flags.append("--untie-embeddings-and-output-weights")
    if shape.head_norms:
        flags.append("--qk-layernorm")
    if shape.window is not None:
        flags += ["--window-size", f"{shape.window},0"]
    biases = (shape.bias, shape.output_bias, shape.mlp_bias)
    if biases == (True, False, False):
        flags += ["--disable-bias-linear", "--add-qkv-bias"]
    elif not any(biases):
        flags.append("--disable-bias-linear")
    elif not all(biases):
        raise ConfigError(f"{config.model}: Megatron-LM has no flags for biases in some of the linear layers only")
    return flags


def _rope(model: Mapping[str, Any]) -> list[str]:
    """Transformers 5 writes rope_parameters, older ones rope_theta and rope_scaling."""
    given = {**(model.get("rope_scaling") or {}), **(model.get("rope_parameters") or {})}
    base = float(given.get("rope_theta", model.get("rope_theta", 10_000)))
    kind = given.get("rope_type", given.get("type", "default"))
    if base != int(base) or kind not in ("default", "llama3"):
        raise ConfigError(f"model: Megatron-LM has no flags for rope_theta {base:g} with rope_type {kind!r}")
    flags = _flags(rotary_base=int(base))
    if kind == "llama3":
        # The other numbers of this scaling are fixed in megatron-core (rotary_pos_embedding.py): 1, 4 and 8192.
        others = tuple(
            given.get(name) for name in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        )
        if others != (1, 4, 8192):
            raise ConfigError(
                f"model: Megatron-LM's llama3 scaling has the factors 1, 4 and 8192 built in, found {others}"
            )
        flags += ["--use-rope-scaling", *_flags(rope_scaling_factor=float(given["factor"]))]
    return flags


def _parallel(config: TrainConfig, placed: Layout) -> list[str]:
    flags = _flags(
        tensor_model_parallel_size=placed.tensor,
        pipeline_model_parallel_size=placed.pipeline,
        context_parallel_size=placed.sequence,
    )
    if placed.tensor > 1:
        # Divides norms and dropout too, by positions: less memory for the same communication.
        flags.append("--sequence-parallel")
    flags.append("--use-distributed-optimizer")
    if placed.data > 1:
        flags += ["--overlap-grad-reduce", "--overlap-param-gather"]
    if config.activation_checkpointing:
        flags += _flags(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1)
    if config.attention == "flash_attention_2":
        flags += _flags(attention_backend="flash")
    return flags


def _batches(config: TrainConfig) -> list[str]:
    return _flags(
        micro_batch_size=config.micro_batch,
        global_batch_size=config.global_batch,
        seq_length=config.sequence_length,
        train_iters=config.total_steps(),
        # Seeds below 1 are refused there; 1234 is its default.
        seed=config.seed or 1234,
    )


def _optimizer(config: TrainConfig) -> list[str]:
    optimizer, schedule, total = config.optimizer, config.schedule, config.total_steps()
    cut = phases(schedule, total)
    if cut.warmup >= total:
        raise ConfigError(f"schedule.warmup: Megatron-LM wants fewer than the run's {total:,} steps")
    flags = _flags(
        optimizer="adam",
        lr=optimizer.learning_rate,
        min_lr=optimizer.learning_rate * schedule.minimum,
        lr_decay_style={"cosine": "cosine", "wsd": "WSD", "constant": "constant"}[schedule.kind],
        lr_decay_iters=total,
        lr_warmup_iters=cut.warmup,
        adam_beta1=optimizer.beta1,
        adam_beta2=optimizer.beta2,
        adam_eps=optimizer.epsilon,
        weight_decay=optimizer.weight_decay,
        clip_grad=config.clip,
    )
    if schedule.kind == "wsd":
        flags += _flags(lr_wsd_decay_iters=cut.decay, lr_wsd_decay_style=_DECAY_SHAPES[schedule.decay_shape])
    return flags + ([f"--{config.precision}"] if config.precision != "fp32" else [])


def _data(config: TrainConfig, shape: Shape) -> list[str]:
    validates = bool(config.eval_every)
    if config.blend is not None:
        flags = _flags(per_split_data_args_path=config.blend)
    elif config.validation:
        flags = ["--train-data-path", *_blend(config.data), "--valid-data-path", *_blend(config.validation)]
    else:
        # 0.1 + 0.9 in floats is no sum of shares; thousandths are what a split is named in.
        kept = round(config.validation_share * 100_000)
        flags = ["--data-path", *_blend(config.data), *_flags(split=f"{100_000 - kept},{kept},0")]
    flags += _flags(
        eval_interval=config.eval_every if validates else config.total_steps(),
        eval_iters=config.eval_batches if validates else 0,
        data_cache_path=f"{config.output}/data-cache",
    )
    # It would fill sequence × sequence booleans a sample, which causal attention does not read.
    flags.append("--no-create-attention-mask-in-dataloader")
    if config.tokenizer is not None:
        return flags + _flags(tokenizer_type="HuggingFaceTokenizer", tokenizer_model=config.tokenizer)
    # Pairs hold ids: no tokenizer is needed, only the size of the vocabulary; this one counts an EOD of its own on top.
    return flags + _flags(tokenizer_type="NullTokenizer", vocab_size=shape.vocabulary - 1)


def _blend(sources: Any) -> list[str]:
    weighed = [([] if source.weight is None else [repr(source.weight)]) + [source.prefix] for source in sources]
    return [part for entry in weighed for part in entry]


def _files(config: TrainConfig) -> list[str]:
    output, total = config.output, config.total_steps()
    flags = _flags(
        save=output,
        load=output,
        save_interval=min(config.save_every or total, total),
        ckpt_format="torch_dist",
        log_interval=config.log_every,
    )
    # On SIGTERM it saves and leaves.
    flags += ["--exit-signal-handler", "--log-throughput"]
    if config.keep_every:
        flags += _flags(save_retain_interval=config.keep_every)
    if config.asynchronous_save:
        flags.append("--async-save")
    if config.tracking.tensorboard:
        flags += _flags(tensorboard_dir=f"{output}/tensorboard")
        flags.append("--log-validation-ppl-to-tensorboard")
    if _wandb(config) != "off":
        name = config.tracking.name or output.rstrip("/").rpartition("/")[2]
        flags += _flags(wandb_project=config.tracking.project, wandb_exp_name=name, wandb_save_dir=f"{output}/wandb")
    return flags


def _wandb(config: TrainConfig) -> str:
    """Off by default: Megatron-LM does not start where the package is missing."""
    return config.tracking.wandb if "wandb" in config.tracking.model_fields_set else "off"


def _flags(**values: Any) -> list[str]:
    """_flags(num_layers=4) → ["--num-layers", "4"]. Floats in full: what is read back is the same number."""
    return [part for name, value in values.items() for part in (f"--{name.replace('_', '-')}", str(value))]
