"""What the loop opens: pairs of `taojin tokenize` and of others, and the end that their documents must have."""

import json
from pathlib import Path
from typing import Any

import pytest

from taojin.core.errors import InputError
from taojin.train.config import TrainConfig
from taojin.train.feed import open_data
from taojin.train.recorded import recorded
from tests.jobs import taojin, write_jsonl, write_parquet
from tests.megatron_pairs import write_pair
from tests.token_runs import EOD, counts, manifest_of, records, small_tokenizer, tokenize
from tests.train_runs import TINY_LLAMA

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FLAGS = ("--backend", "reference")
VOCABULARY = 1000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs of `taojin tokenize`: with ends, without, and of conversations, with and without."""
    folder = tmp_path_factory.mktemp("feed")
    (folder / "t").mkdir()
    (folder / "t/chat_template.jinja").write_text(CHATML)
    tokenizer = small_tokenizer(folder / "t")
    write_parquet(folder / "in/0.parquet", records(0, 40))
    messages = [{"role": "user", "content": "问人民"}, {"role": "assistant", "content": "答中国"}]
    write_jsonl(folder / "chats.jsonl", [{"messages": messages}] * 8)
    for name, source, *flags in (
        ("ends", "in", "--split", "train=0.5,valid=0.5"),
        ("open", "in", "--no-append-eod"),
        ("chat", "chats.jsonl", "--chat"),
        ("chat_open", "chats.jsonl", "--chat", "--no-append-eod"),
    ):
        counts(tokenize(folder / name, folder / source, tokenizer, *FLAGS, *flags))
    # The model is of another mind than the tokenizer.
    (folder / "model.json").write_text(json.dumps({**TINY_LLAMA, "vocab_size": VOCABULARY, "eos_token_id": [700, 701]}))
    return folder


def opened(folder: Path, *names: str, **values: Any) -> list[str]:
    """The notes of opening these pairs."""
    notes: list[str] = []
    config = TrainConfig(
        model=str(folder / "model.json"),
        data=[str(folder / name) for name in names],
        output=str(folder / "run"),
        sequence_length=8,
        global_batch=1,
        steps=1,
        **values,
    )
    open_data(config, VOCABULARY, report=notes.append)
    return notes


def refused(folder: Path, *names: str, **values: Any) -> str:
    with pytest.raises(InputError) as error:
        opened(folder, *names, **values)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_manifest_is_found_for_a_pair_of_a_split_and_for_none_of_others(folder: Path) -> None:
    found = recorded(str(folder / "ends_train"))
    assert found is not None
    assert (found.entry["name"], found.eod, found.ends_by_template) == ("ends_train", EOD, False)
    assert found.manifest == manifest_of(folder / "ends")
    assert sum(size for size, _ in found.ranges("bin")) == (folder / "ends_train.bin").stat().st_size
    assert recorded(str(folder / "ends_test")) is None
    assert recorded("ends_train") is None


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    (tmp_path / "zh.manifest.json").write_text("{")
    with pytest.raises(InputError, match=r"zh\.manifest\.json: expected the manifest of zh_train"):
        recorded(str(tmp_path / "zh_train"))


def test_documents_end_with_what_was_noted_when_they_were_tokenized(folder: Path) -> None:
    assert opened(folder, "ends_train", "ends_valid") == []
    found = refused(folder, "ends_train", "open")
    assert found.startswith(f"{folder / 'open'}: expected every document to end with the end-of-document token {EOD}, ")
    assert "at the end of document 0: " in found
    assert found.endswith("or set eod: none to train without")
    assert opened(folder, "open", eod="none") == []
    assert "token 5, found 0" in refused(folder, "ends_train", eod=5)


def test_conversations_end_as_they_were_written(folder: Path) -> None:
    for masked in (False, True):
        assert opened(folder, "chat", "chat_open", loss_mask=masked) == []


def test_documents_of_others_end_with_a_token_of_the_model(folder: Path, tmp_path: Path) -> None:
    write_pair(folder / "others", [[[1, 2, 3, 700]], [[4, 5, 6, 7, 701]], [[8, 700]]])
    assert opened(folder, "others") == []
    write_pair(folder / "without", [[[1, 2, 3, 700]], [[4, 5, 6, 7]], [[8, 700]]])
    assert (
        "expected every document to end with the end-of-document token 700 or 701, found 7 at the end of document 1"
        in (refused(folder, "without"))
    )
    write_pair(folder / "without_mask", [[[1, 1, 1, 1]], [[1, 1, 1, 1]], [[1, 1]]], "uint8")
    assert opened(folder, "without", loss_mask=True) == []


def test_where_nobody_names_an_end_a_note_says_so(folder: Path, tmp_path: Path) -> None:
    """A default of transformers is no choice of the model's."""
    (tmp_path / "model.json").write_text(json.dumps({**TINY_LLAMA, "eos_token_id": None}))
    for name in ("a", "b"):
        write_pair(tmp_path / name, [[[1, 2, 3]] * 9])
    [note] = opened(tmp_path, "a", "b")
    assert "a and 1 more pairs: whether documents end with an end-of-document token was not looked at" in note


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"data": ["open"]}, f"open: expected every document to end with the end-of-document token {EOD}, found "),
        ({"model": "small.json"}, "ends_train: expected ids below 300, the vocabulary of the model, found "),
        ({"sequence_length": 1 << 20}, "expected more tokens than a sequence of 1,048,576, found "),
        ({"global_batch": 1 << 20, "epochs": 1, "steps": None}, "expected a global batch of 1,048,576 or more"),
        (
            {"workers": 3},
            "workers: global_batch 8 = micro_batch 1 × accumulation × data-parallel ranks does not go into 3",
        ),
        ({"data": ["nowhere"]}, "nowhere.idx: expected a file beside "),
    ],
    ids=["no end", "vocabulary", "sequence", "batch", "workers", "nothing"],
)
def test_data_that_cannot_be_learnt_is_one_line_of_the_command(
    folder: Path, tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    for needed in ("torch", "deepspeed", "transformers"):
        pytest.importorskip(needed, reason=f"{needed} comes with the extra `train`")
    for name, size in (("model.json", VOCABULARY), ("small.json", 300)):
        model = {**TINY_LLAMA, "vocab_size": size, "max_position_embeddings": 1 << 21}
        (tmp_path / name).write_text(json.dumps(model))
    common = {
        "model": "model.json",
        "data": ["ends_train"],
        "output": str(tmp_path / "run"),
        "sequence_length": 8,
        "global_batch": 8,
        "steps": 1,
        "precision": "fp32",
        "device": "cpu",
    }
    merged = {key: value for key, value in {**common, **values}.items() if value is not None}
    merged["model"] = str(tmp_path / merged["model"])
    merged["data"] = [str(folder / name) for name in merged["data"]]
    (tmp_path / "train.yaml").write_text(json.dumps(merged))
    outcome = taojin("train", "--config", tmp_path / "train.yaml")
    outcome.refuses(2, message)
    assert not (tmp_path / "run").exists()
