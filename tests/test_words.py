import json
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from taojin.quality import characters
from taojin.quality.signals import INDEX
from taojin.quality.word_tables import ICON, load_word_tables
from taojin.quality.words import (
    ALONE_SYMBOL,
    HAS_LETTER,
    IS_MARK,
    measure_words,
    split_words,
)
from tests import naive_words
from tests.conftest import UNCOMPILED
from tests.jobs import ROOT, SHARED

PEERS = ROOT / ".bench" / "peers-venv" / "bin" / "python"
TABLES = load_word_tables()
# Symbols that stand alone wherever they are: the kernel's own list, a fact of Unicode and of spaCy.
ICONS = {chr(c) for c in np.flatnonzero(TABLES.classes & ICON)}
fragments = st.one_of(
    st.sampled_from(list("'\"’.,-:;!?()[]<>=/+*^@#$%&_~—–…|\\°²€§")),
    st.sampled_from(["..", "...", "……", "--", "---", "——", "://", "'s", "’S", "n't", "'ll", "US$", "A$", "): ", ":-)"]),
    st.sampled_from(
        ["don't", "cannot", "Mr.", "e.g.", "U.S.", "i.e", "3.14", "10km/h", "5%", "www.a-b.com/c", "x@y.org"]
    ),
    st.sampled_from(["a", "B", "word", "Word", "IBM", "é", "ж", "ا", "ह", "한국", "8", "1990", "o'clock", "and/or"]),
    st.sampled_from(["中", "文字", "，", "。", "カナ", "ไทย", "〇", "😀", "©", "→", "∑", "\u0301", "\u200b", "\ufffd"]),
    st.sampled_from([" ", " ", "\n", "\t", "\u00a0", "\u3000", "\x00", "\x1c", "\x85"]),
    st.characters(exclude_categories=["Cs"]),
)
texts = st.lists(fragments, max_size=24).map("".join)


def code_points_of(text: str) -> np.ndarray:
    """Writable, as the kernels meet them: numba compiles once more for read-only arrays."""
    return np.frombuffer(text.encode("utf-32-le"), np.uint32).copy()


class Split:
    def __init__(self, text: str) -> None:
        self.text = text
        self.code_points = code_points_of(text)
        count = self.code_points.size
        guard = 8
        starts, ends = np.full(count + guard, 77, np.uint32), np.full(count + guard, 77, np.uint32)
        hashes, flags = np.full(count + guard, 77, np.uint64), np.full(count + guard, 77, np.uint8)
        # The document lies in a larger buffer: nothing of its neighbour may be read.
        padded = np.concatenate([self.code_points, code_points_of("'s.don't")])
        num = split_words(padded, count, TABLES, starts, ends, hashes, flags)
        for array in (starts, ends, hashes, flags):
            assert (array[count:] == 77).all()
        self.starts, self.ends, self.hashes, self.flags = starts[:num], ends[:num], hashes[:num], flags[:num]
        self.words = [text[a:b] for a, b in zip(self.starts, self.ends, strict=True)]

    def measure(self, **before: float) -> dict[str, float]:
        values = np.zeros(len(INDEX), np.float32)
        for name, value in before.items():
            values[INDEX[name]] = value
        measure_words(
            self.code_points,
            self.code_points.size,
            TABLES,
            self.starts,
            self.ends,
            self.flags,
            len(self.words),
            values,
        )
        return {name: float(values[number]) for name, number in INDEX.items()}


@settings(max_examples=15 if UNCOMPILED else 600, deadline=None)
@given(texts)
@example("")
@example("(a.m.) 8) end....) ''x'' ):")
@example("see http://a.b/c-d, don't-know 5km. U.S. A. °C.")
def test_words_are_those_of_the_naive_splitter(text: str) -> None:
    assert Split(text).words == naive_words.split(text, ICONS)


@settings(max_examples=15 if UNCOMPILED else 200, deadline=None)
@given(st.text(st.sampled_from("'sS.-:;()=8dont a1,/"), max_size=20))
def test_short_pieces_of_marks_and_contractions_are_those_of_the_naive_splitter(text: str) -> None:
    assert Split(text).words == naive_words.split(text, ICONS)


@settings(max_examples=15 if UNCOMPILED else 200, deadline=None)
@given(texts)
def test_spans_ascend_and_cover_exactly_what_is_not_white_space(text: str) -> None:
    split = Split(text)
    covered = [i for a, b in zip(split.starts, split.ends, strict=True) for i in range(a, b)]
    visible = [i for i, c in enumerate(text) if not naive_words.has(c, characters.SPACE)]
    assert covered == visible


@settings(max_examples=15 if UNCOMPILED else 200, deadline=None)
@given(texts)
def test_hashes_and_flags_are_those_of_the_words(text: str) -> None:
    split = Split(text)
    assert split.hashes.tolist() == [naive_words.word_hash(word) for word in split.words]
    for word, flag in zip(split.words, split.flags.tolist(), strict=True):
        assert bool(flag & HAS_LETTER) == any(map(naive_words.is_letter, word))
        assert bool(flag & ALONE_SYMBOL) == (len(word) == 1 and naive_words.has(word, characters.ALONE))


def test_equal_words_have_equal_hashes_and_no_two_others_do() -> None:
    words = [a + b + c for a in "abcdefgh中文字的" for b in "xyz01一二三" for c in ["", *"pqrs是在了和"]]
    hashes = {word: Split(f"{word[0]} {word}").hashes[-1] for word in words if word.isascii()}
    assert len(set(hashes.values())) == len(hashes)
    assert Split("word other word").hashes[0] == Split("word other word").hashes[2]
    assert Split("Word word").hashes[0] != Split("Word word").hashes[1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I don't, you can't've; cannot!", "I do n't , you ca n't 've ; can not !"),
        ("Mr. Smith's U.S. (e.g. J. Doe) Inc.", "Mr. Smith 's U.S. ( e.g. J. Doe ) Inc."),
        ("well-known and/or input/output a--b", "well - known and/or input / output a -- b"),
        ("3.14, 1,234.5 and 10km/h $5 5% 3pm", "3.14 , 1,234.5 and 10 km/h $ 5 5 % 3 pm"),
        ("http://a.org/b-c?d=e, me@mail.org.", "http://a.org/b-c?d=e , me@mail.org ."),
        ("wait... end.Start \"quoted,\" 'x'", "wait ... end . Start \" quoted , \" ' x '"),
        ("我爱Python3编程，很好。", "我 爱 Python3 编 程 ， 很 好 。"),
    ],
)
def test_a_piece_is_split_as_spacy_does(text: str, words: str) -> None:
    assert Split(text).words == words.split()


def test_only_what_datatrove_counts_as_punctuation_is_a_mark() -> None:
    split = Split("word , 。 ... ┃ • 中 ¶ —")
    marks = {word for word, flag in zip(split.words, split.flags, strict=True) if flag & IS_MARK}
    assert marks == {",", "。", "...", "—"}


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    "unit", ["a", ".", "'", "(", "(')", ":)", "a-", "a.", "a@", "1-", "…a…", "http://", "x/.../", "中", "'s", "-"]
)
def test_a_million_characters_without_a_space_lose_none(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))
    code_points = code_points_of(text)
    starts, ends = np.empty(code_points.size, np.uint32), np.empty(code_points.size, np.uint32)
    hashes, flags = np.empty(code_points.size, np.uint64), np.empty(code_points.size, np.uint8)
    num = split_words(code_points, code_points.size, TABLES, starts, ends, hashes, flags)
    assert starts[0] == 0
    assert ends[num - 1] == code_points.size
    assert (starts[1:num] == ends[: num - 1]).all()


@settings(max_examples=15 if UNCOMPILED else 100, deadline=None)
@given(texts)
def test_word_signals_are_the_plain_counts(text: str) -> None:
    split = Split(text)
    signals = split.measure(hash_signs=3, ellipses=2, newlines=5)
    words = [word for word, flag in zip(split.words, split.flags, strict=True) if not flag & IS_MARK]
    num = max(len(split.words), 1)
    assert signals["words"] == len(words)
    assert signals["words_and_marks"] == len(split.words)
    assert signals["longest_word"] == max(map(len, words), default=0)
    assert signals["mean_word_length"] == pytest.approx(sum(map(len, words)) / max(len(words), 1), rel=1e-6)
    with_letter = sum(any(map(naive_words.is_letter, word)) for word in split.words)
    assert signals["alpha_word_share"] == pytest.approx(with_letter / num, rel=1e-6)
    assert signals["hash_per_word"] == pytest.approx(3 / num, rel=1e-6)
    assert signals["ellipsis_per_word"] == pytest.approx(2 / num, rel=1e-6)
    assert signals["newlines_per_word"] == pytest.approx(5 / num, rel=1e-6)


def test_symbols_are_characters_of_scripts_without_spaces_and_runs_of_the_rest() -> None:
    assert Split("中文 word U.S. x-1 ไท ne\u0301e 3.5").measure()["symbols"] == 2 + 1 + 2 + 2 + 2 + 1 + 2


GOPHER = """
import json, sys
from datatrove.utils.text import PUNCTUATION_SET, split_into_words
rows = []
for text in json.load(sys.stdin):
    words = split_into_words(text, "eng")
    kept = [w for w in words if any(c not in PUNCTUATION_SET for c in w)]
    alpha = sum(any(c.isalpha() for c in w) for w in words)
    rows.append([len(words), len(kept), sum(map(len, kept)), alpha])
json.dump(rows, sys.stdout)
"""


def peers(code: str, documents: list[str]) -> list[list[int]]:
    done = subprocess.run(
        [str(PEERS), "-c", code], input=json.dumps(documents), capture_output=True, text=True, check=True
    )
    rows: list[list[int]] = json.loads(done.stdout)
    return rows


def dev_documents(language: str, step: int) -> list[str]:
    found: list[str] = []
    for path in sorted(Path(SHARED / "corpus" / "dev").glob("*.parquet")):
        table = pq.read_table(path, columns=["text", "lang"]).to_pydict()
        found += [text for text, lang in zip(table["text"], table["lang"], strict=True) if lang == language]
    return found[::step]


def verdicts(text: str, marks: int, words: int, characters_: int, alpha: int) -> dict[str, bool]:
    """GopherQualityFilter's rules on words, default thresholds."""
    mean = characters_ / max(words, 1)
    num = max(marks, 1)
    return {
        "short": words < 50,
        "below": mean < 3,
        "above": mean > 10,
        "hashes": text.count("#") / num > 0.1,
        "ellipses": (text.count("...") + text.count("…")) / num > 0.1,
        "alpha": alpha / num < 0.8,
    }


@pytest.mark.usefixtures("compiled")
@pytest.mark.skipif(not PEERS.exists(), reason="needs datatrove and spaCy in .bench/peers-venv")
@pytest.mark.skipif(not SHARED.exists(), reason="needs the corpus in ../shared")
def test_english_documents_have_the_word_counts_and_verdicts_of_datatrove() -> None:
    documents = [text for text in dev_documents("en", 80) if not any("\u3400" <= c <= "\u9fff" for c in text)]
    close = 0
    differ: Counter[str] = Counter()
    for text, row in zip(documents, peers(GOPHER, documents), strict=True):
        split = Split(text)
        lengths = (split.ends - split.starts)[split.flags & IS_MARK == 0]
        mine = (len(split.words), lengths.size, int(lengths.sum()), int((split.flags & HAS_LETTER).sum()))
        close += abs(mine[0] - row[0]) <= 0.01 * row[0]
        theirs = verdicts(text, *row)
        differ.update(rule for rule, holds in verdicts(text, *mine).items() if holds != theirs[rule])
    assert close >= 0.99 * len(documents)
    assert all(times <= 0.005 * len(documents) for times in differ.values()), differ
