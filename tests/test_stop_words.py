import numpy as np
import pytest

from taojin.quality.signals import STOP_WORD_LISTS
from taojin.quality.stop_words import STOP_WORDS, stop_table
from tests import naive_repetition as naive
from tests.test_repetition import agrees


def test_each_list_of_the_signals_has_its_words() -> None:
    assert tuple(STOP_WORDS) == STOP_WORD_LISTS
    assert {name: set(words.split()) for name, words in STOP_WORDS.items()} == naive.LISTS


def test_the_lists_have_the_sizes_of_their_sources() -> None:
    assert {name: len(words.split()) for name, words in STOP_WORDS.items()} == {
        "en": 8, "zh": 22, "yue": 32, "ja": 15, "ko": 21,
    }  # fmt: skip


def test_no_two_words_share_a_key() -> None:
    keys = stop_table().keys
    assert len(np.unique(keys)) == len(keys)


def test_characters_of_a_pair_are_on_no_list_with_it() -> None:
    """They would be counted twice in the share."""
    table = stop_table()
    for left, right, both in table.pairs:
        assert not (table.lists[left] | table.lists[right]) & table.lists[both]


@pytest.mark.parametrize(
    ("text", "distinct", "share"), [("the cat the", 1, 2 / 3), ("The THE", 0, 0), ("of and", 2, 1)]
)
def test_english_words_are_compared_as_they_are_written(text: str, distinct: int, share: float) -> None:
    values = agrees(text)
    assert values["stop_words_en"] == distinct
    assert values["stop_word_share_en"] == pytest.approx(share)


def test_marks_of_a_list_are_distinct_words_but_have_no_share() -> None:
    values = agrees("的·天")
    assert values["stop_words_zh"] == 2
    assert values["stop_word_share_zh"] == pytest.approx(1 / 2)


def test_pairs_match_adjacent_characters_and_segmented_words() -> None:
    assert agrees("香港")["stop_words_yue"] == 1
    assert agrees("香港可以")["stop_word_share_yue"] == 1
    assert agrees("香港", segmented=True, gap_counts=True)["stop_words_yue"] == 1
    assert agrees("香 港")["stop_words_yue"] == 0
    assert agrees("香港", gap_counts=True)["stop_words_yue"] == 0


def test_hangul_words_count_for_their_longest_ending() -> None:
    values = agrees("집에서 공부를 책을를 했다 집")
    assert values["stop_words_ko"] == 3  # 에서, 를, 다
    assert values["stop_word_share_ko"] == pytest.approx(4 / 5)


def test_a_word_of_several_lists_counts_in_each() -> None:
    values = agrees("年")
    assert [values[f"stop_words_{name}"] for name in STOP_WORD_LISTS] == [0, 1, 1, 1, 0]
