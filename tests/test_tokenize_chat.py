"""`taojin tokenize --chat`: conversations of every kind of input become a pair and a mask of the same shape."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from taojin.core.megatron import IndexedPair
from taojin.tokenize.documents import Documents
from taojin.tokenize.sequences import conversations
from tests.jobs import string_array, write_jsonl, write_parquet
from tests.pair_checks import findings, statuses
from tests.token_runs import EOD, counts, manifest_of, outputs, provenance, small_tokenizer, tokenize

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "chat_template.jinja").write_text(CHATML)
    return small_tokenizer(folder)


def turns(number: int, answers: int = 1) -> list[dict[str, str]]:
    return [
        {"role": role, "content": f"{word}{number}{turn}人民"}
        for turn in range(answers)
        for role, word in (("user", "问"), ("assistant", "答"))
    ]


def expected(tokenizer: Path, messages: list[dict[str, Any]], learn: str = "assistant") -> tuple[list[int], list[int]]:
    """(ids, mask) by turns: what the template writes of each is encoded on its own, as its control tokens allow."""
    encode = Tokenizer.from_file(str(tokenizer)).encode
    ids: list[int] = []
    mask: list[int] = []
    for number, message in enumerate(messages):
        head = encode(f"<|im_start|>{message['role']}\n").ids
        body = encode(f"{message['content']}<|im_end|>\n").ids
        last = number == len(messages) - 1
        answer = message["role"] == "assistant" and (last or learn != "last")
        ids += head + body
        mask += [int(learn == "all")] * len(head) + [int(answer or learn == "all")] * len(body)
    return [*ids, EOD], [*mask, mask[-1]]


def pair_and_mask(prefix: Path) -> list[tuple[list[int], list[int]]]:
    """(ids, mask) of every document."""
    pair, mask = (IndexedPair.open(f"{prefix}{end}") for end in ("", "_mask"))
    assert mask.dtype == np.uint8
    assert np.array_equal(pair.lengths, mask.lengths)
    assert np.array_equal(pair.document_indices, mask.document_indices)
    return [(pair.document(n).tolist(), mask.document(n).tolist()) for n in range(pair.num_documents)]


def write_messages(path: Path, conversations: list[Any]) -> None:
    """As list<struct<role, content>>."""
    kind = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()), ("name", pa.string())]))
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = pa.array([str(number) for number in range(len(conversations))])
    pq.write_table(pa.table({"id": ids, "messages": pa.array(conversations, kind)}), path, row_group_size=5)


def as_jsonl(folder: Path, messages: list[list[dict[str, str]]]) -> None:
    write_jsonl(folder / "a.jsonl", [{"messages": its, "id": str(i)} for i, its in enumerate(messages)])


def as_structs(folder: Path, messages: list[list[dict[str, str]]]) -> None:
    write_messages(folder / "a.parquet", messages)


def as_json_in_parquet(folder: Path, messages: list[list[dict[str, str]]]) -> None:
    import orjson

    rows = [{"messages": orjson.dumps(its).decode(), "id": str(i)} for i, its in enumerate(messages)]
    write_parquet(folder / "a.parquet", rows)


@pytest.mark.parametrize("write", [as_jsonl, as_structs, as_json_in_parquet])
@pytest.mark.parametrize("learn", ["assistant", "last", "all"])
def test_messages_become_tokens_and_a_mask(
    tokenizer: Path, tmp_path: Path, write: Callable[[Path, list[list[dict[str, str]]]], None], learn: str
) -> None:
    messages = [turns(number, 1 + number % 3) for number in range(12)]
    write(tmp_path / "in", messages)
    found = counts(tokenize(tmp_path / "zh", tmp_path / "in", tokenizer, "--chat", "--train-on", learn))
    assert found["documents"] == 12
    assert pair_and_mask(tmp_path / "zh") == [expected(tokenizer, its, learn) for its in messages]
    assert [row["id"] for row in provenance(tmp_path / "zh")] == [str(number) for number in range(12)]
    assert statuses(findings(tmp_path / "zh")) == {"proved"}


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_prompt_and_response_are_a_conversation(tokenizer: Path, tmp_path: Path, kind: str) -> None:
    rows = [{"question": f"问{n}", "response": f"答{n}", "system": "人"} for n in range(5)]
    rows.append({"question": "", "response": "答", "system": "12"})
    (write_parquet if kind == "parquet" else write_jsonl)(tmp_path / "in" / f"a.{kind}", rows)
    counts(tokenize(tmp_path / "zh", tmp_path / "in", tokenizer, "--chat", "--prompt-column", "question"))
    messages = [
        [
            {"role": "system", "content": row["system"]},
            {"role": "user", "content": row["question"]},
            {"role": "assistant", "content": row["response"]},
        ]
        for row in rows
    ]
    assert pair_and_mask(tmp_path / "zh") == [expected(tokenizer, its) for its in messages]


def test_bad_conversations_are_counted_and_the_first_are_described(tokenizer: Path, tmp_path: Path) -> None:
    bad: list[Any] = [
        [],
        [{"role": "user", "content": "问"}],
        [{"role": "user", "content": "问"}, {"role": "assistant", "content": ""}],
        "no conversation",
        {"role": "user"},
    ]
    records: list[dict[str, Any]] = [
        {"messages": turns(0)},
        *({"messages": its} for its in bad),
        {"messages": turns(1)},
    ]
    records += [{"messages": None}, {"other": 1}, *({"messages": []} for _ in range(40))]
    write_jsonl(tmp_path / "in" / "a.jsonl", records)
    outcome = tokenize(tmp_path / "zh", tmp_path / "in", tokenizer, "--chat")
    found = counts(outcome)
    assert found["left_out"] == {"bad_conversation": 45, "null_text": 2}
    assert len(found["problems"]) == 20
    assert all(problem.startswith("a.jsonl: row ") for problem in found["problems"])
    assert "row 3, counted from 0: bad_conversation: messages[1]: the answer is empty" in "\n".join(found["problems"])
    assert pair_and_mask(tmp_path / "zh") == [expected(tokenizer, turns(number)) for number in (0, 1)]
    assert [row["row"] for row in provenance(tmp_path / "zh")] == [0, 6]


def test_messages_that_are_no_text_are_bad_conversations(tokenizer: Path, tmp_path: Path) -> None:
    kind = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    contents = string_array(["问".encode(), b"\xff", "问".encode()])
    structs = pa.StructArray.from_arrays([pa.array(["assistant"] * 3), contents], fields=list(kind.value_type))
    messages = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), structs)
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"messages": messages}), tmp_path / "in" / "a.parquet")
    found = counts(tokenize(tmp_path / "zh", tmp_path / "in", tokenizer, "--chat"))
    assert found["left_out"] == {"bad_conversation": 1}
    assert "not UTF-8" in found["problems"][0]


def test_conversations_are_shuffled_and_split_with_their_masks(tokenizer: Path, tmp_path: Path) -> None:
    messages = [turns(number) for number in range(30)]
    for part in range(2):
        write_messages(tmp_path / "in" / f"{part}.parquet", messages[15 * part : 15 * part + 15])
    flags = ["--chat", "--shuffle", "--split", "a=0.5,b=0.5", "--shard-tokens", "200"]
    for name, unit in (("x", "128"), ("y", "0.0005")):
        counts(tokenize(tmp_path / name / "zh", tmp_path / "in", tokenizer, *flags, "--unit-mb", unit))
    assert outputs(tmp_path / "x" / "zh") == outputs(tmp_path / "y" / "zh")
    names = [pair["name"] for pair in manifest_of(tmp_path / "x" / "zh")["pairs"]]
    found = [document for name in names for document in pair_and_mask(tmp_path / "x" / name)]
    assert sorted(found) == sorted(expected(tokenizer, its) for its in messages)
    assert len(names) > 4
    assert statuses(findings(tmp_path / "x" / "zh")) == {"proved"}


def test_a_source_named_like_the_mask_of_another_is_a_pair_of_its_own(tokenizer: Path, tmp_path: Path) -> None:
    sources = ["x", "x_mask", "y_mask"]
    write_jsonl(tmp_path / "in" / "a.jsonl", [{"messages": turns(i), "source": s} for i, s in enumerate(sources)])
    counts(tokenize(tmp_path / "zh", tmp_path / "in", tokenizer, "--chat", "--by-source"))
    names = {pair["source"]: pair["name"] for pair in manifest_of(tmp_path / "zh")["pairs"]}
    for number, source in enumerate(sources):
        assert pair_and_mask(tmp_path / names[source]) == [expected(tokenizer, turns(number))]


# ---------------------------------------------------------------------------- what is refused


def test_what_a_conversation_needs_is_asked_for_before_anything_is_written(tokenizer: Path, tmp_path: Path) -> None:
    bare = small_tokenizer(tmp_path / "bare")
    write_parquet(tmp_path / "in" / "a.parquet", [{"prompt": "问", "response": "答"}])
    (tmp_path / "bad.jinja").write_text("{% for")
    zh = tmp_path / "out" / "zh"
    source = tmp_path / "in"
    prompt = ["--chat", "--prompt-column", "prompt"]
    tokenize(zh, source, bare, *prompt).refuses(2, "no chat template beside it")
    tokenize(zh, source, bare, *prompt, "--chat-template", tmp_path / "no.jinja").refuses(
        2, "--chat-template", "no.jinja"
    )
    tokenize(zh, source, bare, *prompt, "--chat-template", tmp_path / "bad.jinja").refuses(2, "chat template, line 1")
    tokenize(zh, source, tokenizer, "--chat").refuses(2, "no column 'messages'")
    tokenize(zh, source, tokenizer, "--chat", "--prompt-column", "ask").refuses(
        2, "no column 'ask' for --prompt-column"
    )
    assert not zh.parent.exists()
    assert tokenize(zh, source, bare, *prompt, "--chat-template", tokenizer.parent / "chat_template.jinja").status == 0


def test_the_mask_of_somebody_else_is_not_written_over(tokenizer: Path, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "a.jsonl", [{"messages": turns(0)}])
    (tmp_path / "zh_mask.bin").write_text("mine")
    tokenize(tmp_path / "zh", tmp_path / "in", tokenizer, "--chat").refuses(2, "zh_mask.bin: exists already")
    assert not (tmp_path / "zh.work" / "pieces").exists()


def test_another_template_is_another_run(tokenizer: Path, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "a.jsonl", [{"messages": turns(0)}])
    template = tmp_path / "t.jinja"
    template.write_text(CHATML)
    flags = ["--chat", "--chat-template", template]
    counts(tokenize(tmp_path / "zh", tmp_path / "in", tokenizer, *flags))
    template.write_text(CHATML.replace("im_start", "im_end"))
    outcome = tokenize(tmp_path / "zh", tmp_path / "in", tokenizer, *flags)
    outcome.refuses(2, "the content of --chat-template has changed")


# ---------------------------------------------------------------------------- records


def documents(texts: list[Any], **columns: list[Any]) -> Documents:
    whole = {name: columns.get(name, [None] * len(texts)) for name in ("prompt", "extra", "tools", "system")}
    arrays = {name: pa.array(values) for name, values in whole.items()}
    return Documents(0, 0, np.arange(len(texts)), pa.array(texts), arrays)


def test_fields_without_a_column_come_from_the_rest_of_a_record() -> None:
    tools = [{"type": "function"}]
    extra = ['{"tools":[{"type":"function"}],"system":"人","ask":"问"}', "free text", "[1]", None]
    [one, *others] = conversations(documents(['[{"role":"user"}]'] * 4, extra=extra), "")
    assert one == {"tools": tools, "system": "人", "ask": "问", "messages": [{"role": "user"}]}
    assert others == [{"tools": None, "messages": [{"role": "user"}]}] * 3


def test_a_column_goes_before_the_rest_of_a_record() -> None:
    extra = ['{"ask":"old","tools":[],"messages":[1]}'] * 3
    found = conversations(
        documents(["答"] * 3, extra=extra, prompt=["new", "", None], tools=['[{"a":1}]', None, None], system=["1"] * 3),
        "ask",
    )
    assert [record["prompt"] for record in found] == ["new", "", "old"]
    assert [record["tools"] for record in found] == [[{"a": 1}], [], []]
    assert all(record["messages"] is None and record["system"] == "1" for record in found)
