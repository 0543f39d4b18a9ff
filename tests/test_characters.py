import unicodedata
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from taojin.core.fold import load_fold_table
from taojin.quality import characters as c
from taojin.quality.makeup import _WHITE_SPACE
from tests.test_text import POISON, any_bytes, texts

CANARY = np.uint32(0xDEAD_BEEF)
UNICODE = pytest.mark.skipif(
    unicodedata.unidata_version != "14.0.0", reason="the table holds Unicode 14, Python 3.11's"
)


def flags(character: str) -> int:
    return int(c.load_character_table()[ord(character)])


def with_flag(flag: int, candidates: str) -> str:
    return "".join(character for character in candidates if flags(character) & flag)


def decode(data: bytes, before: bytes = b"", after: bytes = b"") -> tuple[list[int], bool]:
    """The kernel on `data` in the middle of a larger read-only buffer; nothing behind the capacity may change."""
    buffer = np.frombuffer(before + data + after + b"\0", np.uint8)
    out = np.full(len(data) + 8, CANARY)
    count, valid = c.decode(buffer, len(before), len(before) + len(data), out)
    assert (out[len(data) :] == CANARY).all()
    assert (out[:count] < c.NUM_CODE_POINTS).all()
    return out[:count].tolist(), bool(valid)


@given(any_bytes)
@example(b"\xed\x9f\xbf" * 9 + b"\xed\xa0\x80")
@example("中文abc".encode()[:-4])
def test_decode_accepts_what_python_accepts_and_yields_its_code_points(data: bytes) -> None:
    try:
        expected = list(map(ord, data.decode()))
    except UnicodeDecodeError:
        assert not decode(data)[1]
    else:
        assert decode(data) == (expected, True)


@pytest.mark.parametrize("poison", POISON.values(), ids=POISON)
@given(any_bytes)
def test_decode_reads_nothing_outside_the_document(poison: bytes, data: bytes) -> None:
    alone = decode(data)
    assert decode(data, before=poison, after=poison) == alone


@given(texts)
def test_decode_takes_runs_of_every_length(text: str) -> None:
    text = text * 3 + "abcdefghijklmnopq" + "中文" * 5 + text
    assert decode(text.encode()) == (list(map(ord, text)), True)


@UNICODE
def test_the_table_agrees_with_python() -> None:
    table = c.load_character_table().tolist()
    tests: dict[int, Callable[[str], bool]] = {
        c.LETTER: str.isalpha,
        c.SPACE: str.isspace,
        c.UPPER: str.isupper,
        c.DIGIT: str.isdecimal,
        c.LINE_BREAK: lambda a: len(f"a{a}a".splitlines()) == 2,
        c.PUNCTUATION: lambda a: unicodedata.category(a)[0] == "P",
        c.SYMBOL: lambda a: unicodedata.category(a)[0] == "S",
        c.NUMBER: lambda a: unicodedata.category(a)[0] == "N",
        c.MARK: lambda a: unicodedata.category(a)[0] == "M",
        c.FORMAT: lambda a: unicodedata.category(a) == "Cf",
        c.PRIVATE: lambda a: unicodedata.category(a) == "Co",
        c.CONTROL: lambda a: unicodedata.category(a) == "Cc" and a not in "\t\n\r",
    }
    code_points = [*range(0xD800), *range(0xE000, 0x20000), *range(0xE0000, 0xE0200), 0x20000, 0x3FFFD, 0x10FFFF]
    for flag, test in tests.items():
        wrong = [hex(a) for a in code_points if bool(table[a] & flag) != test(chr(a))]
        assert wrong == [], f"flag {flag:#x}"


@UNICODE
def test_the_shipped_table_is_what_the_builder_makes() -> None:
    pytest.importorskip("opencc", reason="the builder needs opencc-python-reimplemented")
    from taojin.quality.characters_build import _only_one_way, flags_of

    traditional, simplified = _only_one_way()
    folds = load_fold_table()
    table = c.load_character_table()
    # All where scripts, punctuation and emoji are; one in 89 of the long blocks, and what OpenCC names.
    code_points = {
        *range(0x3400),
        *range(0x3400, c.NUM_CODE_POINTS, 89),
        *range(0xFE00, 0x10000),
        *range(0x1F300, 0x1F700),
    }
    code_points |= {ord(a) for a in traditional | simplified}
    assert [hex(a) for a in sorted(code_points) if flags_of(a, traditional, simplified, folds) != table[a]] == []


def test_scripts_are_told_apart() -> None:
    sample = "的𠀀〇々カｶー한ᄀaÉＡа1！"
    assert with_flag(c.HAN, sample) == "的𠀀〇々"
    assert with_flag(c.KANA, sample) == "カｶー"
    assert with_flag(c.HANGUL, sample) == "한ᄀ"
    assert with_flag(c.LATIN, sample) == "aÉＡ"
    assert with_flag(c.ALONE, sample + "กມꀀ") == "的𠀀〇々カｶーกມꀀ"


def test_sentence_ends_and_what_closes_after_them() -> None:
    assert with_flag(c.TERMINAL, ".!?。！？｡．…⋯؟।॥።,;:，；：、") == ".!?。！？｡．…⋯؟।॥።"
    assert with_flag(c.STOP, ".!?。！？…⋯") == ".!?。！？"
    assert with_flag(c.CLOSING, "\"'”’」』）)】》›»“‘「（(【") == "\"'”’」』）)】》›»"


def test_only_characters_of_one_chinese_are_marked_and_never_for_both() -> None:
    assert with_flag(c.TRADITIONAL, "後發说中后乾國") == "後發國"
    assert with_flag(c.SIMPLIFIED, "后发说们中国干") == "发说们国"
    table = c.load_character_table()
    assert not (table & c.TRADITIONAL > 0)[table & c.SIMPLIFIED > 0].any()
    assert (table[(table & (c.TRADITIONAL | c.SIMPLIFIED)) > 0] & c.HAN > 0).all()


def test_classes_say_what_the_table_says_and_special_ones_come_last() -> None:
    classes = c.load_character_classes()
    assert (classes.flags[classes.of] == c.load_character_table()).all()
    special = classes.flags & c.SPECIAL > 0
    assert special[np.searchsorted(classes.flags, c.SPECIAL) :].all()
    assert special.sum() == len(special) - np.searchsorted(classes.flags, c.SPECIAL)


def test_the_kernel_knows_all_white_space() -> None:
    assert np.flatnonzero(c.load_character_table() & c.SPACE).tolist() == _WHITE_SPACE.tolist()


def test_the_tables_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        c.load_character_table()[0] = 1


@given(st.text(max_size=20))
def test_line_breaks_are_those_of_splitlines(text: str) -> None:
    joined = text.replace("\r\n", "\n")
    breaks = sum(bool(flags(a) & c.LINE_BREAK) for a in joined)
    assert len(joined.splitlines()) == breaks + (joined != "" and not flags(joined[-1]) & c.LINE_BREAK)
