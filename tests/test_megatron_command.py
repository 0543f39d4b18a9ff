"""The command for Megatron-LM: flags that its parser knows, numbers that its checks accept."""

import argparse
import shlex
from typing import Any

import pytest

from taojin.core.errors import ConfigError, TaojinError
from taojin.train.config import TrainConfig
from taojin.train.megatron_command import Launch, megatron_launch, with_defaults
from taojin.train.parallel import check_model

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
}
QWEN2 = {**LLAMA, "model_type": "qwen2", "hidden_size": 4096, "num_hidden_layers": 32, "tie_word_embeddings": True}
QWEN3 = {**QWEN2, "model_type": "qwen3", "head_dim": 128}
MISTRAL = {**QWEN2, "model_type": "mistral", "sliding_window": 4096}
LLAMA3_ROPE = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
BASE: dict[str, Any] = {
    "model": "/models/llama/config.json",
    "blend": "/data/zh.blend.json",
    "output": "/runs/a",
    "tokens": "20B",
    "global_batch": 1024,
    "engine": "megatron",
}
DATA: dict[str, Any] = {
    "blend": None,
    "data": [{"prefix": "/data/zh", "weight": 1.0}, {"prefix": "/data/code", "weight": 0.5}],
}

# What megatron/training/arguments.py of NVIDIA/Megatron-LM (commit 000c4ac2) knows of what we write, by the type of its
# value. Used where Megatron-LM itself, which is in no package, is not on the path.
RECORDED: dict[Any, str] = {
    int: "num-layers hidden-size ffn-hidden-size num-attention-heads kv-channels max-position-embeddings rotary-base "
    "num-query-groups tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size "
    "recompute-num-layers micro-batch-size global-batch-size seq-length train-iters seed lr-decay-iters "
    "lr-warmup-iters lr-wsd-decay-iters eval-interval eval-iters vocab-size save-interval save-retain-interval "
    "log-interval",
    float: "norm-epsilon init-method-std attention-dropout hidden-dropout rope-scaling-factor lr min-lr adam-beta1 "
    "adam-beta2 adam-eps weight-decay clip-grad",
    str: "split per-split-data-args-path data-cache-path tokenizer-model save load tensorboard-dir wandb-project "
    "wandb-exp-name wandb-save-dir window-size",
    None: "swiglu group-query-attention untie-embeddings-and-output-weights qk-layernorm disable-bias-linear "
    "add-qkv-bias use-rope-scaling sequence-parallel use-distributed-optimizer overlap-grad-reduce "
    "overlap-param-gather bf16 fp16 no-create-attention-mask-in-dataloader exit-signal-handler log-throughput "
    "async-save log-validation-ppl-to-tensorboard",
    list: "data-path train-data-path valid-data-path",
}
CHOICES = {
    "position-embedding-type": ["learned_absolute", "rope", "mrope", "relative", "none"],
    "normalization": ["LayerNorm", "RMSNorm"],
    "recompute-granularity": ["full", "selective"],
    "recompute-method": ["uniform", "block"],
    "attention-backend": ["flash", "fused", "unfused", "local", "auto"],
    "optimizer": ["adam", "sgd", "muon", "dist_muon"],
    "lr-decay-style": ["constant", "linear", "cosine", "inverse-square-root", "WSD"],
    "lr-wsd-decay-style": ["exponential", "linear", "cosine", "minus_sqrt"],
    "ckpt-format": ["torch", "torch_dist", "zarr", "torch_dcp", "fsdp_dtensor"],
    "tokenizer-type": ["HuggingFaceTokenizer", "NullTokenizer"],
}


def parser() -> argparse.ArgumentParser:
    """Megatron-LM's own where it can be imported, else what was recorded of it."""
    made = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    try:
        from megatron.training.arguments import add_megatron_arguments
    except ImportError:
        for kind, names in RECORDED.items():
            for name in names.split():
                if kind is None:
                    made.add_argument(f"--{name}", action="store_true")
                elif kind is list:
                    made.add_argument(f"--{name}", nargs="*")
                else:
                    made.add_argument(f"--{name}", type=kind)
        for name, choices in CHOICES.items():
            made.add_argument(f"--{name}", choices=choices)
        return made
    add_megatron_arguments(made)
    return made


def parsed(launch: Launch) -> argparse.Namespace:
    known, unknown = parser().parse_known_args(launch.arguments)
    assert unknown == []
    return known


def launched(model: dict[str, Any] = LLAMA, /, **changes: Any) -> Launch:
    values = {key: value for key, value in {**BASE, **changes}.items() if value is not None}
    return megatron_launch(TrainConfig(**values), model)


# ---------------------------------------------------------------------------- what is launched


def test_the_default_is_eight_by_four_by_four() -> None:
    launch = launched()
    assert (launch.layout.tensor, launch.layout.pipeline, launch.layout.data) == (8, 4, 4)
    assert (launch.nodes, launch.devices_per_node) == (16, 8)
    assert launch.layout.accumulation == 256
    found = parsed(launch)
    assert (found.tensor_model_parallel_size, found.pipeline_model_parallel_size, found.context_parallel_size) == (
        8,
        4,
        1,
    )
    assert (found.micro_batch_size, found.global_batch_size, found.seq_length) == (1, 1024, 4096)
    assert found.train_iters == 20_000_000_000 // (1024 * 4096)
    assert found.sequence_parallel
    assert found.per_split_data_args_path == "/data/zh.blend.json"


def test_what_the_config_names_replaces_the_default() -> None:
    chosen = TrainConfig(**BASE, workers=16, parallel={"tensor": 2})
    assert with_defaults(chosen) == chosen
    launch = launched(workers=16, parallel={"tensor": 2})
    assert (launch.layout.tensor, launch.layout.pipeline, launch.layout.data, launch.nodes) == (2, 1, 8, 2)


@pytest.mark.parametrize("model", [LLAMA, QWEN2, QWEN3, MISTRAL], ids=["llama", "qwen2", "qwen3", "mistral"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {**DATA, "validation_share": 0.01, "eval_every": 100, "schedule": {"kind": "wsd"}, "clip": 0},
        {**DATA, "validation": "/data/v", "eval_every": 100, "schedule": {"kind": "constant"}, "precision": "fp32"},
        {"precision": "fp16", "attention": "flash_attention_2", "activation_checkpointing": True, "keep_every": 1000},
        {"parallel": {"tensor": 4, "sequence": 2, "pipeline": 2}, "tracking": {"wandb": "offline"}, "tokenizer": "/t"},
        {"workers": 1, "parallel": {}, "save_every": 0, "asynchronous_save": False, "tracking": {"tensorboard": False}},
    ],
)
def test_every_flag_is_one_that_megatron_lm_reads(model: dict[str, Any], changes: dict[str, Any]) -> None:
    launch = launched(model, **changes)
    parsed(launch)
    flags = [word for word in launch.arguments if word.startswith("--")]
    assert len(flags) == len(set(flags))


def test_the_model_is_the_one_of_the_config() -> None:
    found = parsed(launched())
    assert (found.num_layers, found.hidden_size, found.ffn_hidden_size) == (80, 8192, 28672)
    assert (found.num_attention_heads, found.num_query_groups, found.kv_channels) == (64, 8, 128)
    assert (found.rotary_base, found.norm_epsilon, found.max_position_embeddings) == (500_000, 1e-5, 8192)
    assert found.group_query_attention
    assert found.untie_embeddings_and_output_weights
    assert (found.tokenizer_type, found.vocab_size) == ("NullTokenizer", 128255)


def test_megatron_cores_counting_tokenizer_has_the_models_vocabulary() -> None:
    libraries = pytest.importorskip("megatron.core.tokenizers.text.libraries", reason="megatron-core is not installed")
    assert libraries.NullTokenizer(parsed(launched()).vocab_size).vocab_size == LLAMA["vocab_size"]


def test_families_differ_in_biases_norms_windows_and_ties() -> None:
    def has(model: dict[str, Any], *flags: str) -> list[bool]:
        return [f"--{flag}" in launched(model).arguments for flag in flags]

    flags = ("add-qkv-bias", "qk-layernorm", "window-size", "untie-embeddings-and-output-weights")
    assert has(LLAMA, *flags) == [False, False, False, True]
    assert has(QWEN2, *flags) == [True, False, False, False]
    assert has(QWEN3, *flags) == [False, True, False, False]
    assert has(MISTRAL, *flags) == [False, False, True, False]
    biased = launched({**LLAMA, "attention_bias": True, "mlp_bias": True}).arguments
    assert "--disable-bias-linear" not in biased


def test_rope_is_read_as_old_and_as_new_configs_write_it() -> None:
    old = launched({**LLAMA, "rope_scaling": {"rope_type": "llama3", **LLAMA3_ROPE}})
    new = launched({**LLAMA, "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3_ROPE}})
    assert old.arguments == new.arguments
    assert (parsed(old).use_rope_scaling, parsed(old).rope_scaling_factor) == (True, 8.0)


def test_the_schedule_is_the_configs() -> None:
    found = parsed(launched(schedule={"kind": "wsd", "warmup": 10, "decay": 0.1}, tokens=None, steps=1000))
    assert (found.lr_decay_style, found.lr_wsd_decay_style) == ("WSD", "minus_sqrt")
    assert (found.lr_decay_iters, found.lr_warmup_iters, found.lr_wsd_decay_iters) == (1000, 10, 100)
    assert (found.lr, found.min_lr) == (3e-4, pytest.approx(3e-5))


def test_pairs_and_weights_are_named_in_order() -> None:
    arguments = launched(**DATA, validation_share=0.0125, eval_every=10).arguments
    at = arguments.index("--data-path")
    assert arguments[at + 1 : at + 7] == ["1.0", "/data/zh", "0.5", "/data/code", "--split", "98750,1250,0"]


def test_without_validation_nothing_is_evaluated() -> None:
    assert parsed(launched()).eval_iters == 0


def test_a_script_says_the_same_as_the_list() -> None:
    launch = launched(output="/runs/a b")
    text = launch.text("head:6000", "/opt/Megatron-LM")
    lines = text.splitlines()
    assert lines[1] == (
        "# 128 workers = 4 data × 8 tensor × 4 pipeline; 1,024 sequences = 4 × 1 micro-batch × 256 accumulated; "
        "the pipeline waits 1.2% of a step."
    )
    command = text[text.index("torchrun") :].replace("\\\n", "")
    assert shlex.split(command) == launch.torchrun("head:6000", "/opt/Megatron-LM")
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1" in lines


# ---------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"engine": "deepspeed"}, "engine: expected megatron"),
        ({"model": "/models/llama/"}, "name /models/llama/config.json"),
        ({"output": "s3://bucket/runs"}, "a folder that all nodes share"),
        ({"separate_documents": True}, "ignores masks of documents"),
        ({"loss_mask": True}, "reads no masks"),
        ({"deepspeed": {"a": 1}}, "no meaning with engine megatron"),
        ({"validation_share": 0.1}, "splits no blend"),
        ({"zero": {"stage": 3}}, "a pipeline accumulates"),
        ({"workers": 100, "parallel": {"tensor": 1}}, "does not go into 100 workers; 32, 64, 128, 256 would do"),
        ({"global_batch": 24, "workers": 12, "parallel": {"tensor": 4}}, "not whole nodes of 8 devices"),
        ({"workers": 16, "parallel": {"tensor": 16}}, "do not divide a node of 8"),
        (
            {"parallel": {"tensor": 8, "pipeline": 3}, "workers": 24},
            "3 does not divide the 80 layers; 1, 2, 4, 5 would do",
        ),
        ({"sequence_length": 4100}, "must be a multiple of parallel.tensor 8"),
        ({"sequence_length": 4100, "parallel": {"sequence": 4}}, "must be a multiple of 2 × parallel.sequence 4"),
        ({"schedule": {"warmup": 10}, "tokens": None, "steps": 10}, "fewer than the run's 10 steps"),
        ({"tokens": None, "epochs": 2}, "name tokens or steps instead"),
    ],
)
def test_what_megatron_lm_would_find_out_late_is_said_at_once(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        launched(**changes)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "model",
    [
        {**LLAMA, "attention_bias": True},
        {**LLAMA, "rope_theta": 1234.5},
        {**LLAMA, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        {**LLAMA, "rope_scaling": {"rope_type": "llama3", **LLAMA3_ROPE, "low_freq_factor": 2.0}},
        {**LLAMA, "model_type": "mamba"},
    ],
)
def test_a_model_that_flags_cannot_describe_is_refused(model: dict[str, Any]) -> None:
    with pytest.raises(TaojinError):
        launched(model)


def test_megatron_core_accepts_every_division_that_we_accept() -> None:
    transformer_config = pytest.importorskip(
        "megatron.core.transformer.transformer_config", reason="megatron-core is not installed"
    )
    accepted = 0
    for heads, groups in ((64, 8), (28, 4), (12, 3), (8, 8)):
        for tensor in range(1, 17):
            width = heads * 128
            model = {**LLAMA, "num_attention_heads": heads, "num_key_value_heads": groups, "hidden_size": width}
            chosen = TrainConfig(**BASE, parallel={"tensor": tensor})
            try:
                check_model(chosen, {**model, "intermediate_size": width * 3})
            except ConfigError:
                continue
            transformer_config.TransformerConfig(
                num_layers=80,
                hidden_size=width,
                num_attention_heads=heads,
                num_query_groups=groups,
                tensor_model_parallel_size=tensor,
                add_bias_linear=False,
            )
            accepted += 1
    assert accepted >= 4 * 2
