import re
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from taojin.core import repair
from taojin.core.errors import ConfigError
from taojin.core.repair import CLEANING, MOJIBAKE, clean, repair_array, suspicious
from taojin.core.text import text_buffers

# The slow statement of what the kernels look for.
CONTINUATION = "[\x80-\xbfŒœŠšŸŽžƒˆ˜\u2010-\u203a€™\ufffd]"
HALF = "[РС][\x80-\xbf\u0400-\u040f\u0450-\u045f\u0480-\u04bf\u2000-\u2fff]"
LOOKS_LIKE_MOJIBAKE = re.compile(
    f"[\x80-\x84\x86-\x9f]|[Â-ß]{CONTINUATION}|[à-ï]{CONTINUATION}{{2}}|[ð-ô]{CONTINUATION}{{3}}"
    f"|[ÂÃ][ ?]|[à-ï]{CONTINUATION}[ ?]|[ð-ô]{CONTINUATION}{{2}}[ ?]|вЂ|{HALF}{HALF}"
)
LINE_END = re.compile("\r\n|[\r\x0b\x0c\x85\u2028\u2029]")
DROPPED = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0e-\x1f\x7f\u206a-\u206f\ufeff\ufff9-\ufffc]")

GOOD = [
    "他说：“这是‘好’文本……” ——《ＡＢＣ》１２３　ｶﾀｶﾅ，½ ﬁ",
    "L’été à Besançon : « café’s » – Beyoncé… “naïve” Ångström 25 °C",
    "Привет. Рівне та Ёлка — «слово». Ελλάδα ’40. SÃO PAULO, MAÇÃ",
    "<p>&lt;a href=&quot;x&quot;&gt;&amp;nbsp;&#20013;</p>",
    "锟斤拷 \ufffd 烫烫烫",
    "👩‍👩‍👧🏳️‍🌈\u200b\u200c\u200d\u200e\u202a\u3000\xa0\xad",
    "e\u0301 豈 \t indented\n",
    "",
]

characters = st.one_of(
    st.characters(exclude_categories=["Cs"]),
    st.sampled_from("中文，。“”…\r\n\t\0\x0b\x0c\x1b[31m\x7f\x85\u2028\u2029\u206a\ufeff\ufff9\ufffc\ufffd"),
    st.sampled_from("ÂÃâãäåæçèéïðôß€™œ\x80\x92\x9d\xa0\xad ?РСвЂ°ёі"),
    st.sampled_from(["é", "“", "中", "\ufeff", "Привет"]).map(lambda c: c.encode().decode("latin-1")),
)
texts = st.lists(characters, max_size=20).map("".join)


def strings(*values: str | None) -> pa.LargeStringArray:
    return pa.array(values, pa.large_string())


def repaired(text: str) -> str:
    return str(repair_array(strings(text))[0][0].as_py())


def kernel_flags(*documents: bytes) -> list[int]:
    flags = np.zeros(len(documents), np.uint8)
    offsets = np.cumsum([0, *map(len, documents)])
    suspicious(np.frombuffer(b"".join(documents) or b"\0", np.uint8), offsets, flags)
    return flags.tolist()


# ---------------------------------------------------------------------------- kernels


@given(st.lists(texts, max_size=4))
@example(["\xc3", "\xa9"])
@example(["\r", "\n", "é\xe2\x80", "\U0001f600\r"])
@example(["a" * 200 + "\r", "a" * 47 + "\x7f" + "a" * 40])
def test_suspicious_says_what_regular_expressions_say(documents: list[str]) -> None:
    expected = [
        CLEANING * bool(LINE_END.search(text) or DROPPED.search(text))
        + MOJIBAKE * bool(LOOKS_LIKE_MOJIBAKE.search(text))
        for text in documents
    ]
    assert kernel_flags(*map(str.encode, documents)) == expected


@given(st.binary(max_size=20), st.binary(max_size=6), st.binary(max_size=6))
def test_bytes_around_a_document_do_not_matter(document: bytes, before: bytes, after: bytes) -> None:
    assert kernel_flags(before, document, after)[1] == kernel_flags(document)[0]


@given(st.lists(texts, max_size=4))
@example(["\x1b[1;31mred\x1b[0m \x1b[ \x1b", "\x1b[12", "\r", "\n\r\n\r\r\n"])
def test_clean_ends_lines_with_line_feeds_and_drops_controls(documents: list[str]) -> None:
    data, offsets = text_buffers(strings(*documents))
    out, ends = np.empty(data.size, np.uint8), np.empty_like(offsets)
    clean(data, offsets, False, out, ends)
    both = re.compile(f"({LINE_END.pattern})|{DROPPED.pattern}")
    expected = [both.sub(lambda match: "\n" if match[1] else "", text) for text in documents]
    found = [out[start:end].tobytes().decode() for start, end in pairwise(ends)]
    assert found == expected


# ---------------------------------------------------------------------------- texts


@pytest.mark.parametrize("text", GOOD)
def test_good_text_stays_as_it_is(text: str) -> None:
    assert repaired(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("schÃ¶n", "schön"),
        ("中文 â€œquotedâ€\x9d", "中文 “quoted”"),
        ("“中文”里的 donâ€™t", "“中文”里的 don’t"),
        ("æ\xb5\x8bè¯\x95", "测试"),
        ("æµ‹è¯•", "测试"),
        ("РџСЂРёРІРµС‚", "Привет"),
        ("voilÃ le travail", "voilà le travail"),
        ("Ã\x83Â©", "é"),
        ("ï»¿中", "中"),
        ("price \x80 5 \x93x\x94", "price € 5 “x”"),
        ("一\x85二", "一\n二"),
        ("Ã\0©", "é"),
        ("a\r\nb\rc\x0bd\x0ce\u2028f\u2029g", "a\nb\nc\nd\ne\nf\ng"),
        ("\ufeff中\ufeff文\0\x08\x7f", "中文"),
        ("\x1b[36;44m中\x1b[0m", "中"),
    ],
)
def test_damage_is_repaired(text: str, expected: str) -> None:
    assert repaired(text) == expected


@given(texts)
@example("Ã\0\x83Â©")
@example("\x85Ã©\x9d\x85")
@example("\x1b\x1b[[31mm")
@settings(max_examples=60)
def test_repair_is_idempotent(text: str) -> None:
    once = repaired(text)
    again, changed = repair_array(strings(once))
    assert again[0].as_py() == once
    assert not changed[0]


def test_a_line_that_is_too_long_for_ftfy_is_only_cleaned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "MAX_LINE_BYTES", 60)
    long = "æ\x85\xa2\x85" * 20
    assert repaired(f"Ã©\r{long}\0\rÃ©") == f"é\n{long}\né"
    assert repaired(long) == long


# ---------------------------------------------------------------------------- arrays


def test_an_array_without_damage_is_returned_itself() -> None:
    array = strings(*GOOD, None)
    result, changed = repair_array(array)
    assert result is array
    assert not changed.any()


def test_only_changed_documents_are_marked_and_nulls_stay() -> None:
    array = strings("skipped\r", "a\r\n", None, "“中”", "é", "Ã©", "SÃO Ã ", "").slice(1)
    result, changed = repair_array(array)
    assert result.to_pylist() == ["a\n", None, "“中”", "é", "é", "SÃO Ã ", ""]
    assert changed.tolist() == [True, False, False, False, True, False, False]
    assert result.type == pa.large_string()


def test_text_that_is_not_utf8_stays_as_it_is() -> None:
    documents = [b"a\r\n\xff", b"\xed\xa0\xbd\xed\xb8\x80\r", b"\xe4\xb8\r", b"ok\r", "Ã©".encode() + b"\xc3"]
    array = pa.array(documents, pa.large_binary()).view(pa.large_string())
    result, changed = repair_array(array)
    assert result.cast(pa.large_binary()).to_pylist() == [*documents[:3], b"ok\n", documents[4]]
    assert changed.tolist() == [False, False, False, True, False]


def test_bytes_under_a_null_are_not_repaired() -> None:
    buffers = strings("a\r", "b\r").buffers()
    array = pa.LargeStringArray.from_buffers(2, buffers[1], buffers[2], pa.py_buffer(b"\x02"), 1)
    result, changed = repair_array(array)
    assert result.to_pylist() == [None, "b\n"]
    assert changed.tolist() == [False, True]


def test_an_empty_array_is_returned() -> None:
    result, changed = repair_array(strings())
    assert len(result) == len(changed) == 0


# ---------------------------------------------------------------------------- ftfy


def test_the_version_names_our_rules_and_ftfy() -> None:
    assert re.fullmatch(r"1, ftfy [\d.]+", repair.repair_version())


def test_without_ftfy_clean_texts_pass_and_others_name_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ftfy", None)
    repair._fixer.cache_clear()
    assert repair_array(strings("good", "line\r\n"))[0].to_pylist() == ["good", "line\n"]
    with pytest.raises(ConfigError, match=r"pip install ftfy"):
        repair_array(strings("Ã©"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("double_encoded", "plain_reference"), ("crlf_cr_mixed", "plain_reference"), ("fullwidth", "fullwidth")],
)
def test_dirty_files_come_out_as_they_should(dirty_texts: Path, name: str, expected: str) -> None:
    text = (dirty_texts / f"{name}.txt").read_bytes().decode()
    assert repaired(text) == (dirty_texts / f"{expected}.txt").read_bytes().decode()
