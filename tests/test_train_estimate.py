"""Parameters and memory of a model: against transformers, DeepSpeed's own estimators, and live tensors."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taojin.core.errors import ConfigError, InputError
from taojin.train.estimate import Setup, ZeroSizes, activations, memory
from taojin.train.model import read_model
from taojin.train.shape import FAMILIES, Shape, shape_of
from tests.jobs import ROOT

GIB = 2**30
TINY = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
}
LLAMA_70B = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
# Small enough that a tiny model fills them; DeepSpeed's defaults would outweigh it a thousand times.
SMALL_SIZES = ZeroSizes(
    reduce_bucket_size=200_000, prefetch_bucket_size=20_000, max_live_parameters=300_000, max_reuse_distance=300_000
)


def shape(**changes: Any) -> Shape:
    return shape_of({**TINY, **changes}, "test")


def tensors(values: Mapping[str, Any]) -> list[list[tuple[int, ...]]]:
    """By definition: the shapes of the parameters of every module, as the families' code makes them."""
    family, hidden, middle = values["model_type"], values["hidden_size"], values["intermediate_size"]
    heads, heads_kv, size = values["num_attention_heads"], values["num_key_value_heads"], values["head_dim"]
    some, mlp = bool(values.get("attention_bias")), bool(values.get("mlp_bias"))
    into = {"llama": some, "qwen2": True, "qwen3": some, "mistral": False}[family]
    out = {"llama": some, "qwen2": False, "qwen3": some, "mistral": False}[family]

    def linear(rows: int, columns: int, bias: bool) -> list[tuple[int, ...]]:
        return [(rows, columns), (rows,)] if bias else [(rows, columns)]

    modules: list[list[tuple[int, ...]]] = [[(values["vocab_size"], hidden)], [(hidden,)]]
    if not values.get("tie_word_embeddings"):
        modules.append([(values["vocab_size"], hidden)])
    for _ in range(values["num_hidden_layers"]):
        modules += [linear(heads * size, hidden, into), linear(heads_kv * size, hidden, into)]
        modules += [linear(heads_kv * size, hidden, into), linear(hidden, heads * size, out)]
        modules += [linear(middle, hidden, mlp and family == "llama")] * 2
        modules += [linear(hidden, middle, mlp and family == "llama"), [(hidden,)], [(hidden,)]]
        modules += [[(size,)], [(size,)]] if family == "qwen3" else []
    return modules


def elements(module: list[tuple[int, ...]]) -> int:
    return sum(shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in module)


configs = st.builds(
    lambda family, hidden, middle, layers, kv, group, size, vocabulary, tied, some, mlp: {
        "model_type": family,
        "hidden_size": hidden,
        "intermediate_size": middle,
        "num_hidden_layers": layers,
        "num_attention_heads": kv * group,
        "num_key_value_heads": kv,
        "head_dim": size,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
        "attention_bias": some,
        "mlp_bias": mlp,
    },
    st.sampled_from(sorted(FAMILIES)),
    st.integers(1, 64),
    st.integers(1, 200),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 32),
    st.integers(1, 500),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


# ---------------------------------------------------------------------------- parameters


@given(configs)
def test_parameters_are_the_sum_over_all_tensors(values: dict[str, Any]) -> None:
    modules = tensors(values)
    found = shape_of(values, "test")
    assert found.parameters == sum(map(elements, modules))
    assert found.largest_module == max(map(elements, modules))


@pytest.mark.parametrize(
    ("expected", "values"),
    [
        (70_553_706_496, LLAMA_70B),  # Llama 3 70B
        (6_738_415_616, ("llama", 4096, 11008, 32, 32, None, 32000, False)),  # Llama 2 7B: no num_key_value_heads
        (494_032_768, ("qwen2", 896, 4864, 24, 14, 2, 151936, True)),  # Qwen2.5 0.5B
        (7_615_616_512, ("qwen2", 3584, 18944, 28, 28, 4, 152064, False)),  # Qwen2.5 7B
        (596_049_920, ("qwen3", 1024, 3072, 28, 16, 8, 151936, True)),  # Qwen3 0.6B: head_dim is the family's 128
        (7_241_732_096, ("mistral", 4096, 14336, 32, 32, None, 32000, False)),  # Mistral 7B: 8 key-value heads
    ],
)
def test_published_models_have_their_published_size(expected: int, values: Any) -> None:
    if isinstance(values, tuple):
        names = ["model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"]
        names += ["num_key_value_heads", "vocab_size", "tie_word_embeddings"]
        values = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    assert shape_of(values, "test").parameters == expected


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_parameters_are_those_of_the_library(family: str, tied: bool, biased: bool) -> None:
    torch = pytest.importorskip("torch", reason="the outside oracle")
    transformers = pytest.importorskip("transformers", reason="the outside oracle")
    values = {**TINY, "tie_word_embeddings": tied, "attention_bias": biased, "mlp_bias": biased}
    config = transformers.AutoConfig.for_model(family, **{k: v for k, v in values.items() if k != "model_type"})
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    found = shape_of({**values, "model_type": family}, "test")
    assert found.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert found.largest_module == max(
        sum(parameter.numel() for parameter in module.parameters(recurse=False)) for module in model.modules()
    )
    assert shape_of(json.loads(config.to_json_string()), "test").parameters == found.parameters


def test_a_config_is_read_from_a_file_or_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    assert read_model(str(tmp_path)) == read_model(str(tmp_path / "config.json")) == TINY


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not JSON"),
        ("[]", "expected the config of a Hugging Face model, found no model_type"),
        ('{"model_type": "gpt2"}', "model_type 'gpt2' is not known; expected one of llama, qwen2, qwen3, mistral"),
        ('{"model_type": "llama", "hidden_size": 4}', "intermediate_size, num_hidden_layers"),
        (json.dumps({**TINY, "hidden_size": 1.5}), "expected hidden_size to be a whole number above 0, found 1.5"),
        (json.dumps({**TINY, "vocab_size": 0}), "expected vocab_size to be a whole number above 0, found 0"),
        (json.dumps({**TINY, "num_key_value_heads": 3}), "8 is not a multiple of num_key_value_heads 3"),
        (json.dumps({**TINY, "hidden_size": 130}), "130 is not a multiple of num_attention_heads 8"),
    ],
)
def test_a_wrong_config_is_told_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "model.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        shape_of(read_model(str(path)), str(path))
    assert told in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_config_is_told_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.json: No such file"):
        read_model(str(tmp_path / "nothing.json"))


def test_a_window_counts_only_where_all_layers_have_it() -> None:
    assert shape(model_type="mistral", sliding_window=64).window == 64
    assert shape(model_type="qwen2", sliding_window=64, use_sliding_window=False).window is None
    mixed = {"use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]}
    assert shape(model_type="qwen2", sliding_window=64, **mixed).window is None


# ---------------------------------------------------------------------------- DeepSpeed's estimators


def printed(text: str) -> dict[str, tuple[float, float]]:
    """Options → (host, device) in GiB of what DeepSpeed prints."""
    rows = re.findall(r"([\d.]+)GB \|\s*([\d.]+)GB \| (.+)", text.replace("OffloadDeviceEnum.", ""))
    return {options.replace(" ", ""): (float(host), float(device)) for host, device, options in rows}


@pytest.fixture(scope="module")
def estimators() -> Any:
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    pytest.importorskip("deepspeed", reason="the outside oracle")
    from deepspeed.runtime.zero import stage3, stage_1_and_2

    return stage3, stage_1_and_2


# With nothing fetched ahead or kept, and no bucket, what is left is the module in use: what DeepSpeed counts.
BARE = ZeroSizes(reduce_bucket_size=0, prefetch_bucket_size=0, max_live_parameters=0, max_reuse_distance=0)


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 2), (1, 8), (2, 8), (8, 8)])
@pytest.mark.parametrize("values", [LLAMA_70B, {**LLAMA_70B, "num_hidden_layers": 8, "hidden_size": 4096}])
def test_zero_3_is_within_15_percent_of_deepspeeds_estimator(
    estimators: Any, capsys: pytest.CaptureFixture[str], nodes: int, per_node: int, values: dict[str, Any]
) -> None:
    model = shape_of(values, "test")
    estimators[0].estimate_zero3_model_states_mem_needs_all_cold(
        model.parameters, model.largest_module, num_gpus_per_node=per_node, num_nodes=nodes
    )
    theirs = printed(capsys.readouterr().out)
    base = Setup(devices=nodes * per_node, devices_per_node=per_node, sizes=BARE)
    for parameters, optimizer in (("none", "none"), ("none", "cpu"), ("cpu", "cpu")):
        ours = memory(model, replace(base, offload_parameters=parameters, offload_optimizer=optimizer))
        host, device = theirs[f"offload_param={parameters},offload_optimizer={optimizer},zero_init=1"]
        assert ours.states / GIB == pytest.approx(device, rel=0.15)
        if optimizer == "cpu":
            assert ours.host / GIB == pytest.approx(host, rel=0.15)


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 1), (1, 4), (4, 8)])
def test_zero_2_is_within_15_percent_of_deepspeeds_estimator(
    estimators: Any, capsys: pytest.CaptureFixture[str], nodes: int, per_node: int
) -> None:
    model = shape_of(LLAMA_70B, "test")
    estimators[1].estimate_zero2_model_states_mem_needs_all_cold(
        model.parameters, num_gpus_per_node=per_node, num_nodes=nodes
    )
    theirs = printed(capsys.readouterr().out)
    base = Setup(devices=nodes * per_node, devices_per_node=per_node, stage=2, sizes=BARE)
    assert memory(model, base).states / GIB == pytest.approx(theirs["offload_optimizer=none"][1], rel=0.15)
    offloaded = memory(model, replace(base, offload_optimizer="cpu"))
    assert offloaded.states / GIB == pytest.approx(theirs["offload_optimizer=cpu"][1], rel=0.15)


# ---------------------------------------------------------------------------- live tensors


@pytest.fixture
def one_thread() -> Iterator[None]:
    """The tensors are tiny: threads that wait for each other would be most of the test's time."""
    torch = pytest.importorskip("torch", reason="measures live tensors")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_what_a_layer_keeps_is_what_autograd_saves_to_the_byte(
    family: str, precision: str, checkpointing: bool
) -> None:
    torch = pytest.importorskip("torch", reason="measures live tensors")
    pytest.importorskip("transformers", reason="measures live tensors")
    from tests.train_live import model_of

    saved, kept = [], []
    for layers in (2, 3):
        values = {**TINY, "model_type": family, "num_hidden_layers": layers}
        model = model_of(values, precision, checkpointing=checkpointing)
        owned = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        storages: dict[int, Any] = {}

        def keep(tensor: Any, storages: dict[int, Any] = storages) -> Any:
            storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
            return tensor

        tokens = torch.zeros((2, 32), dtype=torch.long)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            output = model(input_ids=tokens, labels=tokens)
        saved.append(sum(storage.nbytes() for key, storage in storages.items() if key not in owned))
        del output
        setup = Setup(devices=1, micro_batch=2, sequence_length=32, precision=precision, checkpointing=checkpointing)
        kept.append(activations(shape_of(values, "test"), setup)[0])
    assert kept[1] - kept[0] == saved[1] - saved[0]


def runs_of_deepspeed(world: int, folder: Path, setups: list[tuple[dict[str, Any], Setup]]) -> list[dict[str, int]]:
    """What `train_live.py` finds on rank 0: standing bytes, and the peaks of backward and step."""
    zero = {
        "reduce_bucket_size": SMALL_SIZES.reduce_bucket_size,
        "stage3_prefetch_bucket_size": SMALL_SIZES.prefetch_bucket_size,
        "stage3_max_live_parameters": SMALL_SIZES.max_live_parameters,
        "stage3_max_reuse_distance": SMALL_SIZES.max_reuse_distance,
        "stage3_param_persistence_threshold": 0,
    }
    names = ("stage", "precision", "micro_batch", "sequence_length", "checkpointing")
    runs = [
        {"config": config, "zero": zero, **{name: getattr(setup, name) for name in names}} for config, setup in setups
    ]
    environment = os.environ | {
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
        "PYTHONPATH": str(ROOT),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, ROOT / "tests/train_live.py", str(rank), str(world), folder / "meeting", json.dumps(runs)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    outputs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0] * world, outputs[0][1]
    found: list[dict[str, int]] = json.loads(outputs[0][0].strip().splitlines()[-1])
    return found


def test_memory_is_within_15_percent_of_live_tensors_under_deepspeed(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed", reason="measures live tensors under DeepSpeed")
    pytest.importorskip("transformers", reason="measures live tensors under DeepSpeed")
    base = Setup(devices=2, precision="fp32", micro_batch=2, sequence_length=64, fused=False, sizes=SMALL_SIZES)
    setups = [
        (TINY, base),
        (TINY, replace(base, precision="bf16", checkpointing=True, sequence_length=128)),
        (TINY, replace(base, stage=2)),
    ]
    for (config, setup), found in zip(setups, runs_of_deepspeed(2, tmp_path, setups), strict=True):
        ours = memory(shape_of(config, "test"), setup)
        assert max(ours.moments["loss"], ours.moments["backward"]) == pytest.approx(found["backward"], rel=0.15)
        assert ours.moments["step"] == pytest.approx(found["step"], rel=0.15)
        if setup.stage == 3:
            bucket = setup.element_bytes * SMALL_SIZES.reduce_bucket_size
            assert ours.parameters + ours.gradients + ours.optimizer + bucket == pytest.approx(
                found["standing"], rel=0.01
            )


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("changes", "checkpointing"),
    [
        ({}, False),
        ({"vocab_size": 128, "num_hidden_layers": 8}, True),
        ({"model_type": "qwen3", "head_dim": 32, "vocab_size": 2000, "tie_word_embeddings": True}, False),
    ],
)
def test_memory_is_within_15_percent_of_live_tensors_without_zero(changes: dict[str, Any], checkpointing: bool) -> None:
    torch = pytest.importorskip("torch", reason="measures live tensors")
    pytest.importorskip("transformers", reason="measures live tensors")
    from tests.train_live import Live, model_of, moments_of_step

    values = {**TINY, **changes}
    setup = Setup(
        devices=1,
        stage=0,
        precision="fp32",
        micro_batch=2,
        sequence_length=128,
        checkpointing=checkpointing,
        fused=False,
        sizes=SMALL_SIZES,
    )
    live = Live()
    with live:
        model = model_of(values, "fp32", checkpointing=checkpointing)
        optimizer = torch.optim.AdamW(model.parameters())
        tokens = torch.zeros((2, 128), dtype=torch.long)

        def step() -> None:
            optimizer.step()
            optimizer.zero_grad()

        found = moments_of_step(
            live, lambda: model(input_ids=tokens, labels=tokens).loss, lambda loss: loss.backward(), step
        )
    ours = memory(shape_of(values, "test"), setup)
    assert max(ours.moments["loss"], ours.moments["backward"]) == pytest.approx(found["backward"], rel=0.15)
    assert ours.moments["step"] == pytest.approx(found["step"], rel=0.15)
    assert ours.parameters + ours.optimizer == pytest.approx(found["standing"], rel=0.01)


# ---------------------------------------------------------------------------- properties

setups = st.builds(
    lambda data, tensor, sequence, stage, precision, micro, length, checkpointing, accumulation: Setup(
        devices=data * tensor * sequence,
        tensor=tensor,
        sequence=sequence,
        stage=stage,
        precision=precision,
        micro_batch=micro,
        sequence_length=length * 8,
        checkpointing=checkpointing,
        accumulation=accumulation,
        sizes=SMALL_SIZES,
    ),
    st.integers(1, 16),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
    st.integers(0, 3),
    st.sampled_from(["fp32", "bf16", "fp16"]),
    st.integers(1, 4),
    st.integers(1, 64),
    st.booleans(),
    st.integers(1, 3),
)


@given(setups)
def test_a_higher_stage_never_holds_more_standing_bytes(setup: Setup) -> None:
    if setup.zero_world == 1:
        return
    held = [memory(shape(), replace(setup, stage=stage)) for stage in (1, 2, 3)]
    standing = [found.parameters + found.gradients + found.optimizer for found in held]
    assert standing[0] > standing[1] > standing[2]


@given(setups)
def test_more_data_parallel_devices_never_need_more_of_each(setup: Setup) -> None:
    if setup.zero_world == 1:
        return
    few, many = memory(shape(), setup), memory(shape(), replace(setup, devices=setup.devices * 2))
    assert many.peak <= few.peak
    assert many.optimizer <= few.optimizer


@given(setups)
def test_the_peak_lies_between_its_largest_part_and_the_sum_of_all(setup: Setup) -> None:
    found = memory(shape(), setup)
    working = activations(shape(), setup)[2]
    assert max(found.parameters, found.optimizer, found.logits) <= found.peak
    assert found.peak <= found.states + found.activations + found.logits + working


@given(setups)
def test_activations_and_logits_are_linear_in_the_micro_batch(setup: Setup) -> None:
    one, three = memory(shape(), setup), memory(shape(), replace(setup, micro_batch=setup.micro_batch * 3))
    assert three.activations == 3 * one.activations
    assert three.logits == 3 * one.logits


@given(setups)
def test_sequence_parallelism_divides_activations_and_logits(setup: Setup) -> None:
    whole = replace(setup, sequence=1)
    halves = replace(setup, sequence=2, devices=setup.devices * 2)
    assert memory(shape(), halves).activations * 2 == memory(shape(), whole).activations
    assert memory(shape(), halves).logits * 2 == memory(shape(), whole).logits


@given(setups)
@settings(max_examples=50)
def test_tensor_parallelism_cuts_the_layers_and_leaves_the_embeddings(setup: Setup) -> None:
    setup = replace(setup, stage=0, tensor=1)
    cut = memory(shape(), replace(setup, tensor=4, devices=setup.devices * 4))
    matrices = shape().layers * shape().layer_matrices
    whole = memory(shape(), setup)
    assert whole.parameters - cut.parameters == setup.element_bytes * matrices * 3 // 4
    assert cut.activations < whole.activations


def test_checkpointing_keeps_one_layers_worth_instead_of_all() -> None:
    setup = Setup(devices=8, sizes=SMALL_SIZES)
    large = shape(num_hidden_layers=40)
    without, checkpointed = memory(large, setup), memory(large, replace(setup, checkpointing=True))
    assert checkpointed.activations < without.activations / 10
    assert checkpointed.logits == without.logits


def test_offload_moves_bytes_from_the_device_to_the_host() -> None:
    model = shape_of(LLAMA_70B, "test")
    setup = Setup(devices=8, checkpointing=True)
    here = memory(model, setup)
    optimizer = memory(model, replace(setup, offload_optimizer="cpu"))
    both = memory(model, replace(setup, offload_optimizer="cpu", offload_parameters="cpu"))
    disk = memory(model, replace(setup, offload_optimizer="nvme", offload_parameters="nvme"))
    assert (optimizer.optimizer, optimizer.gradients, optimizer.step) == (0, 0, 0)
    assert optimizer.host >= here.optimizer * 8
    assert both.parameters == 0
    assert here.peak > optimizer.peak > both.peak
    assert here.host == here.nvme == optimizer.nvme == 0
    assert disk.nvme == pytest.approx(14 * model.parameters, rel=1e-6)
    assert disk.host < both.host


def test_a_second_copy_within_a_node_is_counted() -> None:
    setup = Setup(devices=64, precision="bf16")
    more = memory(shape(), replace(setup, partition_within=8)).parameters - memory(shape(), setup).parameters
    assert more == shape().parameters // 8 * 2


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"devices": 0}, "expected devices of at least 1, found 0"),
        ({"stage": 4}, "expected ZeRO stage 0, 1, 2 or 3, found 4"),
        ({"precision": "fp8"}, "expected precision fp32, bf16, fp16, found 'fp8'"),
        ({"offload_optimizer": "disk"}, "expected offload_optimizer none, cpu, nvme, found 'disk'"),
        ({"offload_parameters": "cpu", "stage": 2}, "offload_parameters needs ZeRO stage 3, found stage 2"),
        ({"offload_optimizer": "cpu", "stage": 0}, "offload_optimizer needs ZeRO stage 1, 2 or 3, found stage 0"),
        ({"offload_optimizer": "nvme", "stage": 2}, "offload_optimizer nvme needs ZeRO stage 3, found stage 2"),
        ({"devices": 6, "tensor": 4}, "multiple of tensor x sequence, found 6 and 4 x 1"),
        ({"sequence_length": 33, "sequence": 2}, "multiple of sequence 2, found 33"),
    ],
)
def test_an_impossible_setup_is_told_in_one_line(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Setup(**{"devices": 8, **changes})
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_that_cannot_be_cut_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_key_value_heads to be a multiple of tensor 8, found 4"):
        memory(shape(), Setup(devices=8, tensor=8))
