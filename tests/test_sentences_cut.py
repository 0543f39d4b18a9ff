"""The kernel of taojin.tokenize.sentences against a plain walk over characters, and against the signal of quality."""

import itertools
import re
import unicodedata

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from taojin.quality import characters as quality_characters
from taojin.quality import sentences as quality_sentences
from taojin.quality.layout import measure_layout_array
from taojin.quality.signals import INDEX
from taojin.tokenize import sentences
from taojin.tokenize.sentences import ABBREVIATIONS, cut_sentences, find_ends, load_sentence_table
from tests import naive_layout
from tests.jobs import SHARED

DEV = SHARED / "corpus" / "dev"
TABLE = load_sentence_table()
LINE_BREAKS = "\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"
MARK = "".join(map(chr, np.flatnonzero(TABLE & (sentences.TERMINAL | sentences.CLOSING)).tolist()))
MARKS = re.compile(r"(?:\[[0-9]*\]|[,:;*" + re.escape(MARK) + "])+")

# Spans that meet the rules, put together in any order.
pieces = st.sampled_from(
    [
        "中", "文。", "！", "”", "“", "…", "……", "...", ".", "..", "a", "B", "AB", "Mr", "Messrs", "aMessrs", "éMr",
        "е", "Д", "É", "e.g", "10a.m", ". ", "\n", "\n\n", "\r\n", "\r", " ", "\t", "\u2028", "\u3000", "　　",
        "\u200b", "😀", "\ufe0f", "1", ".5", "?", "!", "？！", "www.", "[1]", "[", "]", "[1", ")", "」", '"', "'", "，",
        "U.S", "।", "．", "*", ":", "—", "•", "カ", "한", "ก", "\x85", "\x0b", "\x1f", "\x00", "¥", "㌖", "½", "᠃", "։",
        "߹", "xyz",
    ]
)  # fmt: skip
mixed = st.lists(st.one_of(pieces, st.characters(exclude_categories=["Cs"])), max_size=40).map("".join)
# The same without what the two definitions of a sentence differ in: capitals behind a stop, symbols.
agreed = st.lists(
    st.sampled_from(
        [
            "中", "文。", "！", "”", "“", "…", "...", ".", "a", "Mr", "e.g", " NASA", " J", ". ", "\n", "\r\n", "\r",
            " ", "\u3000", "?", "！？", "[1]", "[", ")", '"', "，", "։", "*", "—", "ก", "1", ".5", "．",
        ]
    ),
    max_size=40,
).map("".join)  # fmt: skip


def has(character: str, flag: int) -> bool:
    return bool(TABLE[ord(character)] & flag)


def naive_stop_ends(line: str) -> bool:
    """Whether a full stop behind this ends a sentence."""
    if not line:
        return True
    if has(line[-1], sentences.UPPER):
        return has(line[-2:-1] or " ", sentences.UPPER)
    word = re.findall(r"[A-Za-z.]*\Z", line)[0]
    before = line[: len(line) - len(word)][-1:] or " "
    if not has(line[-1], sentences.WORD) or (before >= "\x80" and has(before, sentences.WORD)):
        return True
    return not (len(word) == 1 or word in ABBREVIATIONS)


def naive_sentences(text: str) -> list[str]:
    cuts = [0]
    i = line_start = len(text) - len(text.lstrip())
    while i < len(text):
        if text[i] in LINE_BREAKS:
            i = line_start = len(text) - len(text[i:].lstrip())
            cuts.append(i)
            continue
        if not has(text[i], sentences.TERMINAL):
            i += 1
            continue
        line = re.match(f"[^{LINE_BREAKS}]*", text[line_start:])[0]  # type: ignore[index]
        first = i - line_start
        match = MARKS.match(line, first)
        assert match is not None
        stops = []
        for k in range(first, match.end()):
            if line[k] in ".．":
                alone = line[k] not in (line[k - 1 : k], line[k + 1 : k + 2])
                if alone and (k > first or naive_stop_ends(line[:first])):
                    stops.append(line[k])
            elif has(line[k], sentences.TERMINAL) and line[k] not in "…⋯":
                stops.append(line[k])
        rest = line[match.end() :]
        i = line_start + match.end()
        if not stops:
            continue
        follows = rest[:1] and has(rest[0], sentences.SPACE | sentences.ALONE)
        if rest and not follows and not any(stop >= "\x80" and stop != "．" for stop in stops):
            continue
        solid = rest.lstrip()
        wordy = [k for k, character in enumerate(solid) if has(character, sentences.WORD)]
        if wordy:
            cuts.append(line_start + len(line) - len(solid))
            i = cuts[-1] + wordy[0]
        else:
            i = line_start + len(line)
    if cuts[-1] < len(text):
        cuts.append(len(text))
    return [text[left:right] for left, right in itertools.pairwise(cuts)]


def large(texts: list[str]) -> pa.LargeStringArray:
    return pa.array(texts, pa.large_string())


def cut(text: str) -> list[str]:
    found, counts = cut_sentences(large([text]))
    assert counts.tolist() == [len(found)]
    return list(found.to_pylist())


# ---------------------------------------------------------------------------- the cut


@given(mixed)
@example("\n")
@example("\n\n a\n\nb \n")
@example("\r\n\r\n")
@example("甲。甲。\n甲。\n")
@example("他去了……e.g. 中 .中!中")
@example("a。—！b。★！b")
@example("?[1?[1]中 ?[1")
def test_the_sentences_are_those_of_a_plain_walk(text: str) -> None:
    assert cut(text) == naive_sentences(text)


@given(mixed)
def test_joined_the_sentences_are_the_text_and_none_is_blank(text: str) -> None:
    found = cut(text)
    assert "".join(found) == text
    assert all(found)
    assert not text.strip() or all(sentence.strip() for sentence in found)


@given(st.lists(mixed, max_size=6), st.integers(0, 3))
def test_a_text_is_cut_alike_wherever_it_stands(texts: list[str], skipped: int) -> None:
    array = large([*["前\n。a"] * skipped, *texts, "a 后。"]).slice(skipped, len(texts))
    found, counts = cut_sentences(array)
    found.validate(full=True)
    assert counts.dtype == np.int32
    rest = found.to_pylist()
    for text, count in zip(texts, counts.tolist(), strict=True):
        assert rest[:count] == cut(text)
        rest = rest[count:]
    assert not rest


def test_the_sentences_share_the_data_of_the_texts() -> None:
    texts = large(["甲。乙。", "丙"])
    found, _ = cut_sentences(texts)
    assert found.buffers()[2].address == texts.buffers()[2].address


@pytest.mark.parametrize("texts", [[], [""], ["", ""]])
def test_empty_texts_have_no_sentences(texts: list[str]) -> None:
    found, counts = cut_sentences(large(texts))
    assert len(found) == 0
    assert counts.tolist() == [0] * len(texts)


@given(
    st.lists(st.one_of(st.binary(max_size=4), mixed.map(str.encode)), max_size=6).map(b"".join), st.binary(max_size=4)
)
def test_any_bytes_are_cut_within_their_bounds(data: bytes, around: bytes) -> None:
    """Also bytes that are no UTF-8: the ends ascend, the last one is the text's, and neighbours change nothing."""
    found = []
    for before in (b"", around, b"\xe4\xb8", "a。".encode()):
        buffer = np.frombuffer(before + data + before + b"\x80", np.uint8)[: len(before + data + before)]
        ends = np.full(len(data) + 2, -7, np.int64)
        counts = np.zeros(1, np.int32)
        offsets = np.array([len(before), len(before) + len(data)], np.int64)
        total = find_ends(buffer, offsets, TABLE, ends, counts)
        assert counts.tolist() == [total]
        assert (ends[total:] == -7).all()
        found.append((ends[:total] - len(before)).tolist())
        assert found[-1] == sorted(set(found[-1]))
        assert found[-1][-1:] == ([len(data)] if data else [])
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("他说：“好。”她没有回答！为什么？！不知道。", ["他说：“好。”", "她没有回答！", "为什么？！", "不知道。"]),
        ("（好。）《书。》「だ。」だ｡完", ["（好。）", "《书。》", "「だ。」", "だ｡", "完"]),
        ("他想了很久……天亮了。", ["他想了很久……天亮了。"]),
        ("价格是3.5元。版本１．２发布", ["价格是3.5元。", "版本１．２发布"]),
        ("打开a.txt.然后关闭!好?好", ["打开a.txt.", "然后关闭!", "好?", "好"]),
        ("好！😀🎉——\n下一行", ["好！😀🎉——\n", "下一行"]),
        ("一。 \n\n　　二。\r\n三", ["一。 \n\n　　", "二。\r\n", "三"]),
        ("\n　一。", ["\n　一。"]),
        (" \n ", [" \n "]),
        ("一。　二。", ["一。　", "二。"]),
        ('He left. "Why?" she asked.', ["He left. ", '"Why?" ', "she asked."]),
        ("Mr. J. Smith, e.g. of the U.S. Army, left at 10 a.m. today.", None),
        ("Read on... or not. Done", ["Read on... or not. ", "Done"]),
        ("See example.com?a=b or v1.2.Next, 3.14 != 3", None),
        ("From NASA. It ended.[1] More", ["From NASA. ", "It ended.[1] ", "More"]),
        ("А. С. Пушкин жил. Он и я. Да", ["А. С. Пушкин жил. ", "Он и я. ", "Да"]),
        ("यह है। वह था।", ["यह है। ", "वह था।"]),
        ("ماذا؟ نعم", ["ماذا؟ ", "نعم"]),
    ],
)
def test_sentences_end_where_a_reader_ends_them(text: str, expected: list[str] | None) -> None:
    assert cut(text) == (expected or [text])


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("text", ["中", "。", "。 ", "。★", "?[1", ".", "\n", "a.", "\x80", "e.g", "aaaaaa. ", "!)"])
def test_a_megabyte_of_any_repetition_is_cut(text: str) -> None:
    """A walk that looked ahead anew at each mark would not end."""
    whole = text * (1_000_000 // len(text))
    assert "".join(cut(whole)) == whole


# ---------------------------------------------------------------------------- agreement with the signal


def test_the_flags_are_those_of_the_signals_for_fewer_characters() -> None:
    theirs = quality_characters.load_character_table()
    for name in ("SPACE", "LINE_BREAK", "ALONE", "UPPER", "TERMINAL", "CLOSING"):
        mine = np.flatnonzero(TABLE & getattr(sentences, name))
        assert (theirs[mine] & getattr(quality_characters, name)).all(), name
        if name in ("SPACE", "LINE_BREAK"):
            assert len(mine) == np.count_nonzero(theirs & getattr(quality_characters, name))


def test_words_are_letters_and_numbers() -> None:
    common = [chr(code_point) for code_point in range(0x20, 0x3000)]
    odd = [a for a in common if has(a, sentences.WORD) != (unicodedata.category(a)[0] in "LN")]
    # Marks that vanish, squared words and the like: nothing that ends a sentence.
    assert not [a for a in odd if unicodedata.category(a)[0] == "P"]
    assert has("中", sentences.WORD)
    assert not has("★", sentences.WORD)


def test_the_abbreviations_are_those_of_the_signals() -> None:
    assert ABBREVIATIONS == quality_sentences.ABBREVIATIONS


@given(agreed)
def test_the_sentences_are_those_the_signal_counts(text: str) -> None:
    expected = [sentence for line in text.splitlines() for sentence in naive_layout.sentences_of(line)]
    assert [sentence.strip() for sentence in cut(text) if sentence.strip()] == expected


@pytest.mark.usefixtures("compiled")
def test_real_texts_have_as_many_sentences_as_the_signal_counts() -> None:
    """All but those with what the two definitions differ in: a capital right behind a stop, symbols behind the last."""
    paths = sorted(DEV.glob("*.parquet"))
    if not paths:
        pytest.skip(f"no corpus at {DEV}")
    texts = pq.read_table(paths[-1], columns=["text"])["text"].cast(pa.large_string()).combine_chunks()
    found, counts = cut_sentences(texts)
    values, _ = measure_layout_array(texts)
    assert "".join(found.to_pylist()) == "".join(texts.to_pylist())
    differs = re.compile(
        r"[^\W\d_][.][\"'”’»]*[^\W\d_]|[.!?。！？｡][^\w\n]*[^\w\n\s,.:;?!'\"，。！？“”‘’（）()—…、《》-]"
    )
    checked = 0
    for text, count, signal in zip(
        texts.to_pylist(), counts.tolist(), values[INDEX["sentences"]].tolist(), strict=True
    ):
        if text.strip() and not differs.search(text):
            assert count == signal, text[:200]
            checked += 1
    assert checked > len(texts) / 4
