"""The card of an exported model says what is known, no more, and shows no paths."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from taojin.core.errors import InputError
from taojin.core.storage import Folder
from taojin.train.checkpoint import Checkpoint
from taojin.train.config import TrainConfig
from taojin.train.model_card import manifest_of, model_card, read_facts
from tests.jobs import taojin, write_parquet

MODEL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 128,
    "dtype": "bfloat16",
}
CHECKPOINT = Checkpoint(step=500, devices=16, tensor=2, files=())
MANIFEST = {
    "name": "zh",
    "claim": "c",
    "tokenizer": {"path": "/models/qwen/tokenizer.json", "kind": "tokenizers", "vocab_size": 512, "eod_token": "<eod>"},
    "counts": {
        "by_source": {"wiki": {"documents": 9, "tokens": 700}, "a|b": {"documents": 1, "tokens": 300}},
        "by_language": {
            "zh": {"documents": 8, "tokens": 900},
            "en": {"documents": 2, "tokens": 95},
            "de": {"documents": 1, "tokens": 5},
            "": {"documents": 1, "tokens": 200},
        },
    },
    "pairs": [
        {
            "name": "zh_train",
            "files": {"bin": {"name": "zh_train.bin", "xxh3": "0123"}, "idx": {"name": "zh_train.idx", "xxh3": ""}},
        },
        {"name": "zh_valid", "files": {"bin": {"name": "zh_valid.bin", "xxh3": "4567"}}},
    ],
}
METRICS = {
    490: {"loss": 3.5, "validation_loss": 3.25, "validation_perplexity": 25.79, "choice_accuracy": 0.2625},
    500: {"loss": 3.4, "device_hours": 12.34, "money": 172.76},
}


def config(**values: Any) -> TrainConfig:
    given = {
        "model": "/secret/qwen.json",
        "data": ["/secret/zh_train", "/secret/code"],
        "output": "/secret/run",
        "steps": 1000,
        "global_batch": 8,
        "sequence_length": 32,
        "seed": 7,
        "price_per_device_hour": 14,
        "device_name": "H100",
        "validation": ["/secret/zh_valid"],
        "schedule": {"kind": "wsd", "warmup": 10},
    }
    return TrainConfig(**{**given, **values})


def card(chosen: TrainConfig | None = None, **values: Any) -> str:
    chosen = chosen or config()
    pair = {"documents": 10, "part": [0, 10]}
    known: dict[str, Any] = {
        "name": "zh-1b",
        "model": MODEL,
        "checkpoint": CHECKPOINT,
        "parameters": 1_234_567,
        "files": ["config.json", "tokenizer.json"],
        "run": {
            "config": chosen.frozen_part(),
            "steps": 1000,
            "data": {"weights": [3, 1], "pairs": [{**pair, "tokens": 64_000}, {**pair, "tokens": 320_000}]},
        },
        "launch": chosen.model_dump(mode="json", exclude_unset=True),
        "deepspeed": {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}},
        "metrics": METRICS,
        "pairs": [("/secret/zh_train", MANIFEST), ("/secret/code", {})],
    }
    return model_card(**{**known, **values})


def header(text: str) -> dict[str, Any]:
    _, values, _ = text.split("---\n", 2)
    loaded: dict[str, Any] = yaml.safe_load(values)
    return loaded


def test_the_header_is_the_hubs_and_leaves_the_license_to_people() -> None:
    text = card()
    assert header(text) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "language": ["zh", "en"],
        "tags": ["llama", "base-model", "taojin"],
    }
    assert "\n# license: unknown" in text


def test_the_card_says_what_how_and_on_what() -> None:
    text = card()
    for said in (
        "A causal language model of 1,234,567 parameters (llama)",
        "step 500 of 1,000, 128,000 tokens",
        "| Context | 128 positions, trained on sequences of 32 tokens |",
        "| Attention | 4 heads of 16, 2 for keys and values |",
        "| Start | fresh weights |",
        "| Batch | 8 sequences of 32 tokens: 256 tokens a step |",
        "| Learning rate | linear warm-up of 10 steps to 0.0003, constant, then 1 - √t to 3e-05 in the last 100 steps",
        "| Seed | 7 |",
        "| Parallel | 16 workers at this step: 8 data parallel, every matrix divided over 2 (tensor parallel) |",
        "| ZeRO | stage 3, optimizer states on cpu |",
        "| Devices | H100 |",
        # Three quarters of 128,000 tokens, of a pair of 64,000.
        "| zh_train | 64,000 | 10 | 75.00% | ≈ 1.50 times |",
        "| code | 320,000 | 10 | 25.00% | ≈ 0.10 times |",
        "tokenizer `tokenizer.json` (`tokenizers`, ids below `512`, end of document `<eod>`)",
        "sources by tokens: wiki 700, a\\|b 300",
        "- `zh_train`: .bin XXH3 0123\n",
        "| Training loss | 3.4000 at step 500 |",
        "| Validation loss (zh_valid) | 3.2500 at step 490 |",
        "| Multiple choice, mean accuracy of the subjects | 26.25% at step 490 |",
        "12.3 device-hours, 172.76 yuan, to this step.",
        'tokenizer = AutoTokenizer.from_pretrained("zh-1b")',
        "vllm serve zh-1b",
        "A base model",
    ):
        assert said in text, said
    assert "`zh_valid`: " not in text
    assert "kept for validation" not in text
    assert "secret" not in text
    assert "/models" not in text


def test_documents_kept_for_validation_are_not_counted_as_read() -> None:
    pair = {"documents": 10, "part": [2, 8], "tokens": 80_000}
    run = {"config": config().frozen_part(), "steps": 1000, "data": {"weights": [1], "pairs": [pair]}}
    text = card(run=run, pairs=[("/secret/zh_train", MANIFEST)])
    # 128,000 tokens of the 64,000 that eight of ten documents have, more or less.
    assert "| zh_train | 80,000 | 10 | 100.00% | ≈ 2.00 times |" in text
    assert "A part of the documents of every pair was kept for validation." in text


def test_what_is_unknown_is_left_out_or_called_so() -> None:
    text = card(launch={}, deepspeed={}, metrics={}, pairs=[], files=["config.json"])
    assert "language" not in header(text)
    for said in (
        "| Start | unknown |",
        "| pair 1, its name unknown | 64,000 |",
        "The run kept no numbers of this step.",
        "There is no tokenizer in this folder. What follows needs the one that its pairs were written with.",
        "Nothing but its training loss was measured",
    ):
        assert said in text, said
    for unsaid in ("ZeRO", "Devices", "## Cost", "yuan", "None", "AutoTokenizer", "A base model"):
        assert unsaid not in text, unsaid


def test_tuning_is_not_called_a_base_model() -> None:
    text = card(config(loss_mask=True, model="/secret/base-7b/"))
    assert header(text)["tags"] == ["llama", "fine-tuned", "taojin"]
    assert "| Start | the weights of base-7b |" in text
    assert "on marked targets alone" in text
    assert "A base model" not in text
    assert "A base model" not in card(config(model="/secret/base-7b/"))


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ({"warmup": 0.1, "minimum": 0}, "linear warm-up of 100 steps to 0.0003, cosine to 0 at step 1,000"),
        ({"kind": "constant"}, "linear warm-up of 10 steps to 0.0003, then constant"),
    ],
)
def test_schedules_are_told_in_steps(schedule: dict[str, Any], said: str) -> None:
    assert f"| Learning rate | {said} |" in card(config(schedule=schedule))


def test_a_strange_name_breaks_no_code() -> None:
    text = card(name='my "model" $(x)', model={**MODEL, "model_type": "mamba"})
    assert 'from_pretrained("my \\"model\\" $(x)"' in text
    assert "vllm serve 'my \"model\" $(x)'" in text
    assert "| Layers |" not in text


def test_pairs_find_the_manifest_of_their_output(tmp_path: Path) -> None:
    source = write_parquet(tmp_path / "a.parquet", [{"text": f"淘金 {n}", "source": "wiki"} for n in range(40)])
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(
        '{"model": {"type": "WordLevel", "vocab": {"<eod>": 0, "<unk>": 1}, "unk_token": "<unk>"}, '
        '"added_tokens": [{"id": 0, "content": "<eod>", "special": true, "single_word": false, "lstrip": false, '
        '"rstrip": false, "normalized": false}]}'
    )
    arguments = ("--tokenizer", tokenizer, "--eod", "<eod>", "--split", "train=0.5,valid=0.5", "--num-cpus", "0")
    done = taojin("tokenize", "--input", source, "--output", tmp_path / "zh", *arguments, "--quiet", "--json")
    assert done.status == 0, done.err
    found = manifest_of(str(tmp_path / "zh_train"))
    assert found["name"] == "zh"
    text = card(pairs=[(str(tmp_path / "zh_train"), found), ("/elsewhere/code", manifest_of("/elsewhere/code"))])
    assert "`zh`, as `taojin tokenize` wrote it" in text
    assert "tokenizer `tokenizer.json`" in text
    assert "sources by tokens: wiki" in text
    assert "- `zh_train`: .idx XXH3 " in text
    assert manifest_of(str(tmp_path / "other")) == {}


def test_numbers_beyond_the_checkpoint_are_not_its(tmp_path: Path) -> None:
    run = Folder(str(tmp_path))
    with pytest.raises(InputError, match=r"run\.json: No such file"):
        read_facts(run, 2)
    run.write_json("run.json", {"config": config().frozen_part()})
    with run.create("metrics/from-00000000.jsonl") as sink:
        sink.write(b'{"step": 2, "loss": 3.0}\n{"step": 3, "loss": 2.0}\n')
    assert read_facts(run, 2)["metrics"] == {2: {"step": 2, "loss": 3.0}}
