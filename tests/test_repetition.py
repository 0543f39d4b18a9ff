import json
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from taojin.quality.repetition import measure_repetition, scratch_for_words
from taojin.quality.signals import HEURISTIC_SIGNALS, INDEX, REPETITION_SIGNALS
from taojin.quality.stop_words import stop_table
from tests import naive_repetition as naive
from tests.conftest import UNCOMPILED

ROOT = Path(__file__).parents[1]
DEV = ROOT.parent / "shared" / "corpus" / "dev"
PEERS = ROOT / ".bench" / "peers-venv" / "bin" / "python"
NAMES = [signal.name for signal in REPETITION_SIGNALS]
# Few distinct pieces, so that sequences of every length come again and break off at every point.
pieces = st.sampled_from(["中", "文", "。", " ", "a", "bc", " a bc", "中文", "\n", "的", "香港", "를 "])
blocks = st.lists(pieces, min_size=1, max_size=12).map("".join)
texts = st.one_of(
    st.lists(pieces, max_size=60).map("".join),
    st.text("ab ", max_size=120),
    st.lists(st.sampled_from("天地"), max_size=80).map("".join),
    st.tuples(st.lists(blocks, min_size=1, max_size=3), st.lists(st.integers(0, 2), max_size=25)).map(
        lambda drawn: "".join(drawn[0][i % len(drawn[0])] for i in drawn[1])
    ),
)


def measure(text: str, words: list[naive.Word], gap_counts: bool = False, room: int = 0) -> dict[str, float]:
    """All repetition signals; `room`: how much longer the longest document is."""
    values = np.full(len(HEURISTIC_SIGNALS), -7, np.float32)
    scratch = scratch_for_words(len(words) + room, len(text) + room)
    for array in scratch:
        array.fill(0xFFFFFFFF)  # what an earlier document left
    document = naive.arrays(text, words)
    measure_repetition(*document, gap_counts, *stop_table(), *scratch, values)
    others = np.delete(values, [INDEX[name] for name in NAMES])
    assert (others == -7).all()
    return {name: float(values[INDEX[name]]) for name in NAMES}


def agrees(text: str, segmented: bool = False, gap_counts: bool = False, room: int = 0) -> dict[str, float]:
    words = naive.split(text, segmented)
    values = measure(text, words, gap_counts, room)
    assert values == pytest.approx(naive.signals(text, words, gap_counts), rel=1e-6, abs=1e-6)
    return values


@settings(max_examples=15 if UNCOMPILED else 600)
@given(texts, st.booleans(), st.booleans(), st.sampled_from([0, 500]))
@example("", False, False, 0)
@example(" \n", False, True, 0)
@example("中", False, False, 0)
@example("a b", True, True, 0)
@example("a b a b c d c d", True, True, 0)
def test_every_signal_is_the_naive_one(text: str, segmented: bool, gap_counts: bool, room: int) -> None:
    agrees(text, segmented, gap_counts, room)


@settings(max_examples=10 if UNCOMPILED else 100)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 3, 30, 3000]), st.sampled_from([0.0, 0.01, 0.1]))
def test_texts_with_copied_passages_give_the_naive_signals(seed: int, alphabet: int, change: float) -> None:
    draw = random.Random(seed)
    words = [chr(0x4E00 + draw.randrange(alphabet)) for _ in range(draw.randrange(200))]
    for _ in range(draw.randrange(6)):
        start = draw.randrange(len(words) + 1)
        copy = words[start : start + draw.randrange(60)]
        words += [w if draw.random() >= change else chr(0x5E00 + draw.randrange(9)) for w in copy]
    agrees("".join(words))


@pytest.mark.parametrize("num", range(1, 14))
def test_documents_shorter_than_the_sequence_have_no_such_sequence(num: int) -> None:
    values = agrees(" ".join("w" * num), segmented=True, gap_counts=True)
    assert (values["dup_10gram_share"] > 0) == (num >= 11)
    assert (values["top_2gram_share"] > 0) == (num >= 2)
    assert (values["word_10gram_repetition"] > 0) == (num >= 11)


def test_of_equally_frequent_sequences_the_first_counts() -> None:
    words = ["long", "long2", "x", "yy", "zz", "long", "long2", "x2", "yy", "zz"]
    text = " ".join(words)
    assert agrees(text, segmented=True)["top_2gram_share"] == pytest.approx(2 * len("long long2") / len(text))


def test_a_sequence_that_occurs_once_counts_too_if_none_occurs_twice() -> None:
    assert agrees("ab cd ef gh", segmented=True)["top_3gram_share"] == pytest.approx(len("ab cd ef") / 11)


def test_single_characters_are_joined_without_a_space_by_default() -> None:
    text = "天地天地天地"
    assert agrees(text)["top_2gram_share"] == 1.0
    assert agrees(text, gap_counts=True)["top_2gram_share"] == 1.5
    assert agrees("天a天a")["top_2gram_share"] == 1.5


def test_words_that_run_together_to_the_same_string_are_different_sequences() -> None:
    """The one difference from datatrove, which compares the duplicates' words without their borders."""
    assert agrees("ab c d e f - a bc d e f", segmented=True)["dup_5gram_share"] == 0


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    "text",
    [
        "哈" * 3000,
        "天地" * 1500,
        "a b " * 1000,
        "今天天气很好，我们去公园。" * 300,
        "".join(chr(0x4E00 + i) for i in range(3000)) * 2,
        "".join("天" * i + "地" for i in range(70)),
    ],
)
def test_repetitive_texts_give_the_naive_signals(text: str) -> None:
    agrees(text)
    agrees(text, room=10_000)


@settings(max_examples=100)
@given(
    st.lists(st.sampled_from(["天地玄黄宇宙洪荒日月", "盈昃辰宿列张", "寒来暑往秋收冬藏", "闰"]), max_size=60).map(
        "".join
    )
)
def test_shares_of_documents_that_are_not_sampled_are_the_published_ones(text: str) -> None:
    shares = naive.character_repetition(text), naive.repeated_share([text[i : i + 13] for i in range(len(text) - 12)])
    assert naive.sampled_shares(text) == pytest.approx(shares)


def passages(seed: int, chars: int, copies: float) -> str:
    """Random characters, with passages of up to 60 that come again, some of them often."""
    draw = random.Random(seed)
    text = "".join(chr(0x4E00 + draw.randrange(2000)) for _ in range(1000))
    while len(text) < chars:
        start = draw.randrange(min(1000, len(text)) if draw.random() < 0.5 else len(text))
        fresh = "".join(chr(0x4E00 + draw.randrange(2000)) for _ in range(40))
        text += text[start : start + draw.randrange(60)] if draw.random() < copies else fresh
    return text[:chars]


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("chars", [2056, 2057, 2058, 2060, 4105, 4106, 9_000, 33_000])
@pytest.mark.parametrize("copies", [0.0, 0.3, 0.9])
def test_long_documents_give_the_shares_of_the_sampled_positions(chars: int, copies: float) -> None:
    text = passages(chars, chars, copies)
    values = measure(text, [])
    expected = naive.sampled_shares(text)
    assert (values["char_10gram_repetition"], values["char_13gram_repetition"]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.usefixtures("compiled")
@pytest.mark.skipif(not DEV.is_dir(), reason="../shared/corpus/dev is not beside this checkout")
def test_sampled_shares_of_real_text_are_close_to_exact_ones() -> None:
    errors = []
    for path in sorted(DEV.glob("*.parquet")):
        texts = [text for text in pq.read_table(path, columns=["text"])["text"].to_pylist()[:4000] if len(text) > 2057]
        for text in texts[:40]:
            values = measure(text, [])
            exact = naive.repeated_share([text[i : i + 13] for i in range(len(text) - 12)])
            errors.append(values["char_10gram_repetition"] - naive.character_repetition(text))
            errors.append(values["char_13gram_repetition"] - exact)
    assert len(errors) >= 500
    assert abs(np.mean(errors)) < 0.001
    assert np.abs(errors).mean() < 0.004
    assert np.quantile(np.abs(errors), 0.99) < 0.02


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("piece", "times"), [("哈", 10**6), ("天地", 500_000), ("今天天气很好，我们去公园。", 60_000)])
def test_a_million_repeated_characters_are_measured(piece: str, times: int) -> None:
    """Anything that is not linear would outlast the time limit of a test."""
    text = piece * times
    marks = {"，": naive.IS_MARK, "。": naive.IS_MARK}
    num = len(text)
    points = np.array([*map(ord, text)], np.uint32)
    starts = np.arange(num, dtype=np.uint32)
    flags = np.array([marks.get(c, naive.HAS_LETTER | naive.ALONE_SYMBOL) for c in piece] * times, np.uint8)
    values = np.zeros(len(HEURISTIC_SIGNALS), np.float32)
    hashes = points.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    scratch = scratch_for_words(num, num)
    measure_repetition(
        points, num, starts, starts + np.uint32(1), hashes, flags, num, False, *stop_table(), *scratch, values
    )
    assert values[INDEX["dup_10gram_share"]] > 0.999
    assert values[INDEX["word_10gram_repetition"]] == 1.0
    assert values[INDEX["char_13gram_repetition"]] == 1.0


def test_scratch_of_a_large_document_stays_within_its_budget() -> None:
    scratch = scratch_for_words(10**6, 10**6)
    assert sum(array.nbytes for array in scratch) < 26.1 * 10**6


ORACLE = """
import json, sys
from datatrove.pipeline.filters.gopher_repetition_filter import find_all_duplicate, find_top_duplicate, get_n_grams
for line in sys.stdin:
    words = json.loads(line)
    top = [find_top_duplicate(grams) if (grams := get_n_grams(words, n)) else 0 for n in (2, 3, 4)]
    print(json.dumps(top + [find_all_duplicate(words, n) for n in range(5, 11)]))
"""


def real_texts() -> Iterator[str]:
    for path in sorted(DEV.glob("*.parquet")):
        yield from pq.read_table(path, columns=["text"])["text"].to_pylist()[:16]


@pytest.mark.usefixtures("compiled")
@pytest.mark.skipif(not PEERS.is_file(), reason="no datatrove: .bench/peers-venv is not there")
@pytest.mark.skipif(not DEV.is_dir(), reason="../shared/corpus/dev is not beside this checkout")
def test_gophers_shares_are_datatroves_on_real_text() -> None:
    documents = [text[:8_000] for text in real_texts()]
    splits = [naive.split(text, segmented=number % 2 == 0) for number, text in enumerate(documents)]
    lines = "\n".join(json.dumps([word.text for word in words]) for words in splits)
    result = subprocess.run(
        [str(PEERS), "-c", ORACLE], input=lines, capture_output=True, text=True, timeout=200, check=True
    )
    expected = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(expected) == len(documents) >= 100
    names = [f"top_{n}gram_share" for n in (2, 3, 4)] + [f"dup_{n}gram_share" for n in range(5, 11)]
    different = []
    for text, words, lengths in zip(documents, splits, expected, strict=True):
        values = measure(text, words, gap_counts=True)
        if [values[name] for name in names] != pytest.approx([length / len(text) for length in lengths], rel=1e-6):
            different.append(text)
    assert not different
