import numpy as np
import pytest
from numpy.typing import NDArray

from taojin.quality.rules import Rule, built_in_presets, check_signals, judge, load_preset, parse_preset
from taojin.quality.signals import INDEX

NAMES = built_in_presets()
PUBLISHED = [
    "c4",
    "c4-fineweb",
    "chinesewebtext",
    "data-juicer-zh",
    "fineweb",
    "fineweb2-cmn",
    "fineweb2-jpn",
    "fineweb2-kor",
    "fineweb2-lzh",
    "fineweb2-wuu",
    "fineweb2-yue",
    "gopher",
    "gopher-repetition",
    "map-cc",
    "nemo",
]


def rules_of(name: str) -> dict[str, tuple[str, str, float]]:
    return {rule.reason: (rule.signal, rule.comparator, rule.threshold) for rule in load_preset(name).rules}


def judged_language(rule: Rule) -> str:
    if rule.languages:
        return rule.languages[0]
    return "en" if "zh" in (rule.except_languages or ()) else "zh"


def test_the_published_presets_are_there() -> None:
    assert set(PUBLISHED) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_is_named_as_its_file_has_sources_and_uses_known_signals(name: str) -> None:
    preset = load_preset(name)
    assert preset.name == name
    assert preset.sources
    check_signals([preset])


@pytest.mark.parametrize("name", NAMES)
def test_each_rule_passes_one_side_of_its_threshold_and_fails_the_other(name: str) -> None:
    for rule in load_preset(name).rules:
        alone = parse_preset({"name": "alone", "rules": [rule.model_dump(exclude_none=True)]}, name)
        threshold = np.float32(rule.threshold)
        more, less = np.nextafter(threshold, np.float32(np.inf)), np.nextafter(threshold, np.float32(-np.inf))
        good, bad = {
            "at_least": (threshold, less),
            "at_most": (threshold, more),
            "above": (more, threshold),
            "below": (less, threshold),
        }[rule.comparator]
        signals = {rule.signal: np.array([good, bad], np.float32)}
        if rule.unless is not None:
            signals[rule.unless.signal] = np.full(2, np.nan, np.float32)
        codes = np.zeros(2, np.int16)
        judgement = judge([alone], signals, (codes, [judged_language(rule)]))
        assert judgement.failed[0].tolist() == [False, True], rule.reason


@pytest.mark.parametrize(
    ("name", "reason", "rule"),
    [
        ("gopher", "too_few_words", ("words", "at_least", 50)),
        ("gopher", "too_many_words", ("words", "at_most", 100_000)),
        ("gopher", "words_too_short", ("mean_word_length", "at_least", 3)),
        ("gopher", "words_too_long", ("mean_word_length", "at_most", 10)),
        ("gopher", "too_many_hash_signs", ("hash_per_word", "at_most", 0.1)),
        ("gopher", "too_many_ellipsis_lines", ("ellipsis_line_share", "at_most", 0.3)),
        ("gopher", "too_few_words_with_letters", ("alpha_word_share", "at_least", 0.8)),
        ("gopher-repetition", "dup_paragraph_chars", ("dup_paragraph_char_share", "at_most", 0.2)),
        ("gopher-repetition", "top_3gram", ("top_3gram_share", "at_most", 0.18)),
        ("gopher-repetition", "dup_10grams", ("dup_10gram_share", "at_most", 0.1)),
        ("c4", "too_few_sentences", ("c4_sentences", "at_least", 5)),
        ("c4-fineweb", "too_few_sentences", ("c4_sentences_any_end", "at_least", 5)),
        ("fineweb", "too_few_lines_end_in_punctuation", ("terminal_line_share", "at_least", 0.12)),
        ("fineweb", "too_many_short_lines", ("short_line_share", "at_most", 0.67)),
        ("fineweb", "dup_line_chars", ("dup_text_line_char_share", "at_most", 0.01)),
        ("fineweb", "too_many_newlines", ("newlines_per_word", "at_most", 0.3)),
        ("fineweb2-cmn", "dup_lines", ("dup_line_share", "at_most", 0.287)),
        ("fineweb2-cmn", "top_2gram", ("top_2gram_share", "at_most", 0.256)),
        ("fineweb2-cmn", "dup_5grams", ("dup_5gram_share", "at_most", 0.198)),
        ("fineweb2-cmn", "dup_10grams", ("dup_10gram_share", "at_most", 0.127)),
        ("fineweb2-cmn", "dup_line_chars", ("dup_text_line_char_share", "at_most", 0.1)),
        ("fineweb2-cmn", "too_few_lines_end_in_punctuation", ("terminal_line_share", "at_least", 0.106)),
        ("fineweb2-cmn", "words_too_long", ("mean_word_length", "at_most", 5)),
        ("fineweb2-cmn", "too_few_words_with_letters", ("alpha_word_share", "at_least", 0.735)),
        ("fineweb2-cmn", "too_many_newlines", ("newlines_per_word", "at_most", 0.178)),
        ("fineweb2-cmn", "too_few_stop_words", ("stop_words_zh", "at_least", 2)),
        ("fineweb2-yue", "dup_lines", ("dup_line_share", "at_most", 0.442)),
        ("fineweb2-yue", "top_2gram", ("top_2gram_share", "at_most", 1.238)),
        ("fineweb2-jpn", "dup_7grams", ("dup_7gram_share", "at_most", 0.207)),
        ("fineweb2-jpn", "words_too_long", ("mean_word_length", "at_most", 6)),
        ("fineweb2-kor", "too_few_lines_end_in_punctuation", ("terminal_line_share", "at_least", 0.062)),
        ("fineweb2-lzh", "words_too_long", ("mean_word_length", "at_most", 2)),
        ("fineweb2-wuu", "dup_5grams", ("dup_5gram_share", "at_most", 0.41)),
        ("chinesewebtext", "too_short", ("chars", "above", 200)),
        ("chinesewebtext", "lines_too_short", ("mean_line_length", "at_least", 10)),
        ("chinesewebtext", "too_few_chinese_characters", ("han_share", "at_least", 0.3)),
        ("chinesewebtext", "dup_13_characters", ("char_13gram_repetition", "at_most", 0.5)),
        ("map-cc", "words_too_short", ("mean_word_length", "at_least", 1.3)),
        ("map-cc", "too_long", ("chars", "at_most", 10_000)),
        ("map-cc", "too_few_distinct_characters", ("unique_char_share", "above", 0.1)),
        ("map-cc", "too_little_entropy", ("unigram_entropy", "at_least", 3)),
        ("data-juicer-zh", "dup_10_characters", ("char_10gram_repetition", "at_most", 0.6)),
        ("nemo", "too_many_digits", ("digit_share", "at_most", 0.15)),
        ("nemo", "too_few_lines_end_in_punctuation", ("terminal_line_share", "at_least", 0.15)),
        ("nemo", "word_of_over_1000_characters", ("longest_word", "at_most", 1000)),
    ],
)
def test_thresholds_are_the_published_ones(name: str, reason: str, rule: tuple[str, str, float]) -> None:
    assert rules_of(name)[reason] == rule


def test_gopher_and_fineweb_check_in_the_order_of_datatrove() -> None:
    assert [rule.signal for rule in load_preset("gopher").rules] == [
        "words",
        "words",
        "mean_word_length",
        "mean_word_length",
        "hash_per_word",
        "ellipsis_per_word",
        "bullet_line_share",
        "ellipsis_line_share",
        "alpha_word_share",
        "stop_words_en",
    ]
    assert [rule.signal for rule in load_preset("fineweb").rules] == [
        "lines",
        "terminal_line_share",
        "short_line_share",
        "dup_text_line_char_share",
        "newlines_per_word",
    ]
    assert [rule.signal for rule in load_preset("gopher-repetition").rules[:4]] == [
        "dup_paragraph_share",
        "dup_paragraph_char_share",
        "dup_line_share",
        "dup_line_char_share",
    ]


def prose(**changes: float) -> dict[str, NDArray[np.float32]]:
    """Signals of an ordinary page: nothing repeats, nothing is odd."""
    values = dict.fromkeys(INDEX, 0.0)
    values.update(
        {"chars": 900, "lines": 6, "words": 300, "words_and_marks": 340, "terminal_line_share": 1.0, "sentences": 12}
    )
    values.update({"han_share": 0.9, "alnum_share": 0.9, "punctuation_share": 0.1, "mean_line_length": 150})
    values.update({"unique_char_share": 0.3, "unigram_entropy": 5, "stop_words_zh": 6})
    values.update(changes)
    return {name: np.array([value], np.float32) for name, value in values.items()}


@pytest.mark.parametrize("language", ["zh", "zh-hant", "yue", "ja", "th"])
@pytest.mark.parametrize("name", ["gopher", "gopher-repetition", "c4", "c4-fineweb", "fineweb", "nemo"])
def test_english_presets_do_not_drop_chinese_and_its_like_for_not_being_english(name: str, language: str) -> None:
    # Characters as words, one word a line between spaces, no English.
    page = prose(mean_word_length=1, alpha_word_share=0.75, short_line_share=0.9, stop_words_en=0, c4_sentences=0)
    codes = np.zeros(1, np.int16)
    assert judge([load_preset(name)], page, (codes, [language])).first.tolist() == [-1]


@pytest.mark.parametrize("name", ["gopher", "c4", "c4-fineweb", "nemo"])
def test_english_presets_judge_english_by_every_rule(name: str) -> None:
    page = prose(mean_word_length=1, alpha_word_share=0.75, stop_words_en=0, c4_sentences=0)
    codes = np.zeros(1, np.int16)
    judgement = judge([load_preset(name)], page, (codes, ["en"]))
    expected = {
        rule.reason
        for rule in load_preset(name).rules
        if rule.reason in ("words_too_short", "too_few_words_with_letters", "too_few_stop_words", "too_few_sentences")
    }
    failed = {judgement.rules[r].reason for r in np.flatnonzero(judgement.failed[:, 0])}
    assert failed == expected
    assert expected


def test_chinese_presets_leave_other_languages_alone() -> None:
    codes = np.zeros(1, np.int16)
    page = prose(han_share=0, stop_words_zh=0, mean_word_length=4.7, words=20)
    for name in ("fineweb2-cmn", "fineweb2-yue", "chinesewebtext", "map-cc"):
        assert judge([load_preset(name)], page, (codes, ["en"])).first.tolist() == [-1]
    assert judge([load_preset("fineweb2-cmn")], page, (codes, ["zh"])).first[0] >= 0
