import random
import time

import pytest

from taojin.evidence import compare, exact_jaccard, first_difference, shared_passages
from tests import naive
from tests.jobs import chinese

RNG = random.Random(1)
BASE = chinese(RNG, 300)
EDITED = BASE[:150] + "改了这里" + BASE[154:]


def test_exact_jaccard_is_that_of_naive_sets() -> None:
    overlap = exact_jaccard(BASE.encode(), EDITED.encode(), 5)
    assert overlap.jaccard == pytest.approx(naive.text_jaccard(BASE, EDITED, 5))
    assert exact_jaccard(b"", b"", 5).jaccard is None


def test_the_first_difference_is_counted_in_characters() -> None:
    assert first_difference("甲乙丙", "甲乙丁") == 2
    assert first_difference("甲乙", "甲乙丁") == 2
    assert first_difference("甲", "甲") is None
    assert first_difference("😀x", "😀y") == 1


def test_a_shared_passage_is_found_across_folding_and_punctuation() -> None:
    passage = "机器学习是人工智能的一个分支"
    a, b = f"前言：{passage}。", f"另外，{passage[:6]}，{passage[6:]}"
    found = shared_passages(a, b)[0]
    assert found["characters"] == len(passage)
    assert found["text"] == passage
    assert found["at"] == [3, 3]


def test_passages_do_not_overlap_and_come_longest_first() -> None:
    first, second = chinese(RNG, 80), chinese(RNG, 40)
    found = shared_passages(f"{second}甲甲{first}", f"{first}乙乙乙{second}")
    assert [passage["characters"] for passage in found] == [80, 40]


def test_texts_without_a_common_passage_have_none() -> None:
    assert shared_passages(chinese(RNG, 100), chinese(RNG, 100)) == []
    assert shared_passages("", "甲") == []


def test_very_long_and_repetitive_texts_are_compared_in_bounded_time() -> None:
    started = time.monotonic()
    compare(("复读机" * 400_000 + "甲").encode(), ("复读机" * 400_000 + "乙").encode(), 5)
    assert time.monotonic() - started < 20


def test_texts_that_are_not_utf8_are_still_shown() -> None:
    assert compare(b"\xff\xfe" + BASE.encode(), BASE.encode(), 5)["first_difference"] == 0
