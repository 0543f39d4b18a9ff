import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from taojin.core.errors import ConfigError
from taojin.core.fold import FoldTable
from taojin.quality import sensitive
from taojin.quality.sensitive import (
    GROWTH,
    STOPS,
    Hit,
    SensitiveMatcher,
    WordList,
    fold_text,
    fold_word,
    lists_part,
    match_table,
    parse_lists,
    signal_names,
)
from tests import naive
from tests.test_text import any_bytes, is_utf8, texts

CANARY = 0xAB
# Marks of the naive folded text; none of them folds to itself.
STOP, START, END = "|", "<", ">"

tricky = st.text(st.sampled_from("法轮功輪Aaｂb 1*,。\n\u200b\u0301é㌖½"), max_size=30)
tricky_words = st.lists(st.text(st.sampled_from("法轮功輪Aab 1*,"), min_size=1, max_size=5), min_size=1, max_size=6)


def naive_folded(text: str, fold_table: FoldTable) -> str:
    """What the docstring of the module says, one character after the other."""
    out: list[str] = []
    run = ""
    for character in text:
        for kind, value in naive.fold_entries(ord(character), fold_table.table, fold_table.expansions):
            if kind == naive.LETTER:
                run += chr(value)
            elif kind != naive.VANISH:
                if run:
                    out += [START, run, END]
                    run = ""
                if kind == naive.SYMBOL:
                    out.append(chr(value))
                elif character in STOPS and out[-1:] != [STOP]:
                    out.append(STOP)
    if run:
        out += [START, run, END]
    return "".join(out)


def naive_hits(text: str, words: Sequence[str], fold_table: FoldTable) -> list[str]:
    """The folded words found: the leftmost, of these the longest, then on behind it."""
    folded = naive_folded(text, fold_table)
    wanted = {naive_folded(word, fold_table).strip(STOP) for word in words} - {""}
    found = []
    i = 0
    while i < len(folded):
        here = max((word for word in wanted if folded.startswith(word, i)), key=len, default="")
        if here:
            found.append(here)
        i += len(here) or 1
    return found


def spelled(folded: bytes) -> str:
    return folded.decode().translate({1: STOP, 2: START, 3: END})


def fold(data: bytes, before: bytes = b"", after: bytes = b"") -> tuple[bytes, int, bool]:
    """The kernel on `data` in the middle of a larger read-only buffer; nothing outside its room may change."""
    buffer = np.frombuffer(before + data + after + b" ", np.uint8)
    table, expansions = match_table()
    room = GROWTH * len(data) + 2
    out = np.full(room + 10, CANARY, np.uint8)
    start = len(before)
    size, chars, valid = fold_text(
        buffer, start, start + len(data), table, expansions, out, 5, np.empty(0, np.int64)
    )  # fmt: skip
    assert (out[:5] == CANARY).all()
    assert (out[5 + room :] == CANARY).all()
    assert valid or size == 5
    return out[5:size].tobytes(), chars, valid


def lists_of(**words: Sequence[str]) -> list[WordList]:
    """Lists without files."""
    lists = []
    for category, chosen in sorted(words.items()):
        folded = {fold_word(word): word for word in reversed(chosen)}
        lists.append(WordList(category, tuple(folded.values()), tuple(folded), ()))
    return lists


def hits(text: str, *words: str) -> int:
    """How often the words of one list occur in a text."""
    return round(measured([text], a=words)["sensitive_a"][0] * len(text) / 1000)


def measured(batch: Sequence[str | None], **words: Sequence[str]) -> dict[str, list[float]]:
    signals = SensitiveMatcher(lists_of(**words)).measure(pa.array(batch, pa.large_string()))
    return {name: values.tolist() for name, values in signals.items()}


# ---------------------------------------------------------------------------- folding


@given(texts)
@example("")
@example("a中b")
@example("a,,b ; c")
@example("㌖½ﷺ" * 3)
def test_a_folded_text_is_the_naive_one(fold_table: FoldTable, text: str) -> None:
    folded, chars, valid = fold(text.encode())
    assert valid
    assert chars == len(text)
    assert spelled(folded) == naive_folded(text, fold_table)


@given(tricky)
def test_a_folded_text_of_few_characters_is_the_naive_one(fold_table: FoldTable, text: str) -> None:
    assert spelled(fold(text.encode())[0]) == naive_folded(text, fold_table)


@given(any_bytes)
def test_a_text_is_valid_exactly_when_python_decodes_it(data: bytes) -> None:
    assert fold(data)[2] == is_utf8(data)


@given(any_bytes, st.sampled_from([b"\x80" * 4, b"ab", "中".encode(), b"\xf0\xe4"]))
def test_what_lies_around_a_document_does_not_count(data: bytes, around: bytes) -> None:
    assert fold(data, around, around) == fold(data)


def test_no_character_grows_beyond_the_room_that_is_made_for_it(fold_table: FoldTable) -> None:
    multiple = np.flatnonzero(fold_table.table >> 21 == naive.MULTI).tolist()
    others = [0x61, 0xE9, 0x23A, 0x4E2D, 0x346E, 0x1F600]
    growth = [len(fold(chr(c).encode())[0]) / len(chr(c).encode()) for c in multiple + others]
    assert GROWTH - 1 < max(growth) <= GROWTH


def test_every_stop_is_a_break_of_the_fold_table(fold_table: FoldTable) -> None:
    assert {int(fold_table.table[ord(character)]) >> 21 for character in STOPS} == {naive.BREAK}


# ---------------------------------------------------------------------------- matching


@pytest.mark.parametrize(
    "text",
    [
        "法轮功",
        "法 轮 功",
        "法*轮*功",
        "法\u200b轮\u200d功",
        "法輪功",
        "【法】轮～功",
        "法　轮——功",
        "法️轮功",
        "x法轮功1",
        "他说:法.轮.功",
    ],
)
def test_a_chinese_word_is_found_in_every_disguise(text: str) -> None:
    assert hits(text, "法轮功") == 1
    assert hits(text, "法輪 功") == 1


@pytest.mark.parametrize(
    "text", ["Casino", "ＣＡＳＩＮＯ", "cas\u200bino", "ＣÁsĭnø".replace("ø", "o"), "你casino我", "(casino)"]
)
def test_a_latin_word_is_found_in_every_case_width_and_accent(text: str) -> None:
    assert hits(text, "casino") == 1


@pytest.mark.parametrize("text", ["class", "as soon", "asset", "a ss", "ass1", "bass-line"])
def test_a_latin_word_is_not_found_within_others(text: str) -> None:
    assert hits(text, "ass") == 0


@pytest.mark.parametrize("end", [*"，。！？、；：,!?;:\n\r", "\u2028"])
def test_a_word_does_not_reach_over_the_end_of_a_clause(end: str) -> None:
    assert hits(f"想办法{end}轮流", "法轮") == 0
    assert hits(f"hello{end} world", "hello world") == 0


def test_a_phrase_with_a_comma_is_found_with_any_clause_end() -> None:
    assert hits("爱国者，治港。爱国者\n治港", "爱国者, 治港！") == 2
    assert hits("爱国者治港", "爱国者, 治港！") == 0


def test_a_phrase_of_latin_words_takes_any_space_between_them() -> None:
    assert hits("hello world Hello\u3000\u3000World hello-world helloworld", "hello world") == 3


def test_neighbouring_words_are_all_found() -> None:
    assert hits("ass ass ass", "ass") == 3
    assert hits("赌博赌博 赌*博", "赌博") == 3


def test_of_overlapping_words_the_leftmost_and_longest_counts() -> None:
    assert hits("法轮功法", "法轮", "法轮功", "轮功法") == 1
    assert measured(["法轮功法轮"], a=["法轮", "法轮功"]) == {
        "sensitive_a": [400.0],
        "sensitive_a_distinct": [2.0],
    }


def test_a_list_does_not_change_what_another_one_counts() -> None:
    both = measured(["法轮功和赌博网站", "没有", "网站"], a=["法轮功", "赌博网"], b=["法轮", "网站"])
    assert both["sensitive_a"] == measured(["法轮功和赌博网站", "没有", "网站"], a=["法轮功", "赌博网"])["sensitive_a"]
    assert both["sensitive_b_distinct"] == [2.0, 0.0, 1.0]


def test_hits_are_per_thousand_characters_of_the_text_as_it_is() -> None:
    assert measured(["赌 博" + " " * 97], a=["赌博"]) == {"sensitive_a": [10.0], "sensitive_a_distinct": [1.0]}


def test_words_do_not_reach_from_one_document_into_the_next() -> None:
    assert measured(["爱国者", "治港", "法", "轮", "hello", "world"], a=["爱国者,治港", "法轮", "hello world"]) == {
        "sensitive_a": [0.0] * 6,
        "sensitive_a_distinct": [0.0] * 6,
    }


def test_nulls_and_texts_that_are_not_utf8_have_no_hits() -> None:
    batch = pa.array(["赌博".encode(), None, "赌博".encode() + b"\xff", b"", "赌博".encode()], pa.large_binary())
    matcher = SensitiveMatcher(lists_of(a=["赌博"]))
    assert matcher.measure(batch)["sensitive_a"].tolist() == [500.0, 0.0, 0.0, 0.0, 500.0]
    assert matcher.measure(batch[3:])["sensitive_a"].tolist() == [0.0, 500.0]
    assert matcher.measure(batch[:0])["sensitive_a_distinct"].tolist() == []


@given(st.lists(tricky, max_size=4), tricky_words, tricky_words)
def test_the_counts_are_the_naive_ones(
    fold_table: FoldTable, batch: list[str], first: list[str], second: list[str]
) -> None:
    usable = {c: [w for w in words if fold_word(w)] for c, words in (("a", first), ("b", second))}
    usable = {category: words for category, words in usable.items() if words}
    if not usable:
        return
    signals = measured(batch, **usable)
    for category, words in usable.items():
        found = [naive_hits(text, words, fold_table) for text in batch]
        rates = [1000 * len(f) / max(len(text), 1) for f, text in zip(found, batch, strict=True)]
        assert signals[f"sensitive_{category}"] == pytest.approx(rates, rel=1e-6)
        assert signals[f"sensitive_{category}_distinct"] == [len(set(f)) for f in found]


@given(st.lists(tricky, max_size=4), tricky_words, st.integers(1, 7), st.integers(1, 40))
def test_the_counts_do_not_depend_on_how_the_work_is_cut(
    batch: list[str], words: list[str], window: int, group: int
) -> None:
    usable = [word for word in words if fold_word(word)]
    if not usable:
        return
    lists = {"a": usable, "b": usable[:1], "c": usable[1:] or usable}
    whole = measured(batch, **lists)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sensitive, "WINDOW_BYTES", window)
        patch.setattr(sensitive, "GROUP_BYTES", group)
        assert measured(batch, **lists) == whole


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    ("unit", "word", "found"), [("赌", "赌", 1), ("a", "a" * 64, 0), ("ab ", "ab", 1), ("法轮", "轮法轮", 0.5)]
)
def test_a_long_monotonous_text_is_counted_to_the_last_word(unit: str, word: str, found: float) -> None:
    repeats = 400_000
    signals = measured([unit * repeats], a=[word], b=["别的"])
    expected = 1000 * int(found * repeats) / (len(unit) * repeats)
    assert signals["sensitive_a"] == pytest.approx([expected], rel=1e-4)


# ---------------------------------------------------------------------------- evidence


def test_evidence_shows_the_original_spelling_and_its_surroundings() -> None:
    text = "前文。\n请看 法*輪*功 和\nＣＡＳＩＮＯ，法轮功"
    matcher = SensitiveMatcher(lists_of(cult=["法轮功"], bets=["casino", "赌"]))
    assert matcher.evidence(text) == [
        Hit("cult", "法轮功", "前文。 请看 法*輪*功 和 ＣＡＳＩＮＯ，法轮功"),
        Hit("bets", "casino", "前文。 请看 法*輪*功 和 ＣＡＳＩＮＯ，法轮功"),
    ]


def test_evidence_cuts_the_surroundings_at_characters() -> None:
    [hit] = SensitiveMatcher(lists_of(a=["赌博"])).evidence("字" * 500 + "赌 博" + "𠀀" * 500)
    assert "赌 博" in hit.excerpt
    assert len(hit.excerpt) < 50
    assert "\ufffd" not in hit.excerpt


@given(tricky, tricky_words, tricky_words)
def test_evidence_has_the_distinct_words_that_are_counted(text: str, first: list[str], second: list[str]) -> None:
    usable = {c: [w for w in words if fold_word(w)] for c, words in (("a", first), ("b", second))}
    lists = lists_of(**{category: words for category, words in usable.items() if words})
    if not lists:
        return
    matcher = SensitiveMatcher(lists)
    evidence = matcher.evidence(text)
    counts = matcher.measure(pa.array([text], pa.large_string()))
    for words in lists:
        assert sum(hit.category == words.category for hit in evidence) == counts[f"sensitive_{words.category}_distinct"]
    for hit in evidence:
        assert fold_word(hit.word) in fold(hit.excerpt.encode())[0]


# ---------------------------------------------------------------------------- lists


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    def write(content: str | bytes, name: str = "list.txt") -> str:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write


def test_a_list_is_one_word_a_line_without_comments_and_blank_lines(write: Callable[..., str]) -> None:
    path = write("\ufeff# 说明\r\n赌博\r\n\r\n  hello   world \r\n賭博\n#注释\n百家乐")
    [words] = parse_lists([f"bets={path}"])
    assert words == WordList(
        "bets", ("赌博", "hello world", "百家乐"), tuple(map(fold_word, ("赌博", "hello world", "百家乐"))), ()
    )


def test_files_of_one_category_are_one_list_and_categories_are_sorted(write: Callable[..., str]) -> None:
    one, two, three = write("赌博", "1"), write("赌博\n六合彩", "2"), write("casino", "3")
    lists = parse_lists([f"z={one}", f"a={three}", f"z={two}"])
    assert [(words.category, words.words) for words in lists] == [("a", ("casino",)), ("z", ("赌博", "六合彩"))]
    assert signal_names(lists) == (
        "sensitive_a",
        "sensitive_a_distinct",
        "sensitive_z",
        "sensitive_z_distinct",
    )


def test_a_path_may_hold_an_equals_sign(write: Callable[..., str]) -> None:
    assert parse_lists(["a=" + write("赌博", "k=v.txt")])[0].words == ("赌博",)


def test_words_of_one_chinese_character_are_taken_with_a_warning(write: Callable[..., str]) -> None:
    [words] = parse_lists(["a=" + write("赌\n赌博\n毒")])
    [warning] = words.warnings
    assert "2 words" in warning
    assert "赌、毒" in warning


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "found no word"),
        ("# only\n\n", "found no word"),
        ("赌博\n🔞\n", "line 2: '🔞' has no letter"),
        ("\n\u200b\u200b\n", "line 2"),
        ("x", "is a single letter or digit"),
        ("赌" * 65, "is longer than 64 characters"),
        (b"\xb6\xc4\xb2\xa9\n", "expected UTF-8, found byte 0"),
        ("赌博".encode("utf-16"), "expected UTF-8"),
    ],
)
def test_a_list_that_cannot_be_meant_is_refused_in_one_line(
    write: Callable[..., str], content: str | bytes, message: str
) -> None:
    path = write(content)
    with pytest.raises(ConfigError) as refusal:
        parse_lists([f"a={path}"])
    assert message in str(refusal.value)
    assert path in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "spec", ["list.txt", "=list.txt", "a=", "A=x", "赌=x", "1a=x", "a b=x", "a-b=x", "a_distinct=x", "a" * 33 + "=x"]
)
def test_a_specification_that_is_not_category_and_path_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="expected CATEGORY=PATH"):
        parse_lists([spec])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--sensitive a=.*nowhere\.txt: cannot read the list: No such file"):
        parse_lists([f"a={tmp_path}/nowhere.txt"])
    with pytest.raises(ConfigError, match="cannot read the list"):
        parse_lists([f"a={tmp_path}"])


def test_the_frozen_part_names_what_is_found_and_not_how_it_is_written(write: Callable[..., str]) -> None:
    one = lists_part(parse_lists(["a=" + write("赌博\nCasino\n", "1")]))
    assert one == lists_part(parse_lists(["a=" + write("# new\ncasino\n賭 博", "2")]))
    assert one != lists_part(parse_lists(["a=" + write("赌博\ncasino\n六合彩", "3")]))
    assert one != lists_part(parse_lists(["b=" + write("赌博\ncasino", "4")]))


def test_without_the_library_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ahocorasick_rs", None)
    with pytest.raises(ConfigError, match=r"pip install ahocorasick-rs"):
        SensitiveMatcher(lists_of(a=["赌博"]))


@pytest.mark.usefixtures("compiled")
def test_thousands_of_words_are_counted_as_python_counts_them() -> None:
    """Words of their own characters each, so that str.count is an oracle: no word overlaps another."""
    rng = random.Random(1)
    characters = [chr(c) for c in range(0x4E00, 0x9000) if len(fold(chr(c).encode())[0]) == 3]
    characters = [c for c in characters if fold(c.encode())[0].decode() == c]
    rng.shuffle(characters)
    words = ["".join(characters[i : i + 3]) for i in range(0, 9000, 3)]
    filler = characters[9000:]
    batch = [
        "".join(rng.choice(words) if rng.random() < 0.1 else rng.choice(filler) for _ in range(500)) for _ in range(40)
    ]
    counts = [sum(map(text.count, words)) for text in batch]
    signals = measured(batch, a=words[:1500], b=words[1500:])
    found = (np.array(signals["sensitive_a"]) + signals["sensitive_b"]) * list(map(len, batch)) / 1000
    assert found == pytest.approx(counts, rel=1e-5)
