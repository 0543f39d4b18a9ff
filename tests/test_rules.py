from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taojin.core.errors import ConfigError
from taojin.quality.rules import (
    COMPARATORS,
    Clause,
    Preset,
    Rule,
    check_languages,
    check_signals,
    covers,
    describe,
    failures_of,
    judge,
    load_preset,
    load_presets,
    parse_preset,
    word_warnings,
)

LANGUAGES = ["zh", "zh-hant", "en", "zha"]
SIGNALS = ["chars", "words", "lines"]
# Few values, so that boundaries are hit; 0.1, 0.2 and 0.3 differ as float32 and float64.
VALUES = [0.0, 0.1, 0.2, 0.3, 1.0, 50.0, float("nan")]
VALID: dict[str, Any] = {"name": "mine", "rules": [{"reason": "short", "signal": "words", "at_least": 50}]}


def one_rule(**values: Any) -> dict[str, Any]:
    rule = {"reason": "short", "signal": "words", "at_least": 50, **values}
    return {"name": "mine", "rules": [{key: value for key, value in rule.items() if value is not None}]}


def rule(**values: Any) -> Rule:
    return Rule(**values)


def preset(*rules: Rule, name: str = "mine") -> Preset:
    return Preset(name=name, rules=rules)


def column(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


clauses = st.builds(
    lambda signal, comparator, threshold: Clause(**{"signal": signal, comparator: threshold}),
    st.sampled_from(SIGNALS),
    st.sampled_from(list(COMPARATORS)),
    st.sampled_from(VALUES[:-1]),
)
some_languages = st.none() | st.lists(st.sampled_from([*LANGUAGES, "und"]), min_size=1, max_size=2).map(tuple)


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    clause = draw(clauses)
    return rule(
        reason=f"r{draw(st.integers(0, 10**9))}",
        languages=draw(some_languages),
        except_languages=draw(some_languages),
        unless=draw(st.none() | clauses),
        **{"signal": clause.signal, clause.comparator: clause.threshold},
    )


def naive_true(clause: Clause, value: float) -> bool | None:
    """Whether the statement is true; None: it says nothing."""
    if value != value:
        return None
    threshold = float(np.float32(clause.threshold))
    return {
        "at_least": value >= threshold,
        "at_most": value <= threshold,
        "above": value > threshold,
        "below": value < threshold,
    }[clause.comparator]


def naive_fails(rule: Rule, document: dict[str, float], language: str) -> bool:
    def among(names: tuple[str, ...]) -> bool:
        return any(language == name or language.startswith(name + "-") for name in names)

    if rule.languages is not None and not among(rule.languages):
        return False
    if rule.except_languages is not None and among(rule.except_languages):
        return False
    if rule.unless is not None and naive_true(rule.unless, document[rule.unless.signal]):
        return False
    return naive_true(rule, document[rule.signal]) is False


@settings(max_examples=150, deadline=None)
@given(
    st.lists(rules(), min_size=1, max_size=6, unique_by=lambda rule: rule.reason),
    st.lists(st.tuples(*[st.sampled_from(VALUES)] * 3, st.integers(-1, len(LANGUAGES) - 1)), max_size=12),
)
def test_judge_equals_a_loop_over_documents_and_rules(
    some_rules: list[Rule], documents: list[tuple[float, float, float, int]]
) -> None:
    half = len(some_rules) // 2
    presets = [preset(*part, name=f"p{n}") for n, part in enumerate((some_rules[:half], some_rules[half:])) if part]
    signals = {name: column(*(document[n] for document in documents)) for n, name in enumerate(SIGNALS)}
    codes = np.array([document[3] for document in documents], np.int16)
    judgement = judge(presets, signals, (codes, LANGUAGES))

    for d in range(len(documents)):
        values = {name: float(signals[name][d]) for name in SIGNALS}
        language = LANGUAGES[codes[d]] if codes[d] >= 0 else "und"
        expected = [naive_fails(rule, values, language) for rule in some_rules]
        assert judgement.failed[:, d].tolist() == expected
        assert judgement.first[d] == (expected.index(True) if True in expected else -1)
        failures = failures_of(judgement, signals, d)
        assert [f.reason for f in failures] == [r for r, bad in zip(judgement.reasons, expected, strict=True) if bad]


def test_the_first_failing_rule_in_the_order_of_presets_is_the_reason() -> None:
    short = Rule(reason="short", signal="words", at_least=50)
    lines = Rule(reason="lines", signal="lines", at_least=1)
    signals = {"words": column(10, 10, 60), "lines": column(0, 1, 1)}
    one = judge([preset(short, name="a"), preset(lines, name="b")], signals)
    other = judge([preset(lines, name="b"), preset(short, name="a")], signals)
    assert [one.reasons[r] if r >= 0 else None for r in one.first] == ["a.short", "a.short", None]
    assert [other.reasons[r] if r >= 0 else None for r in other.first] == ["b.lines", "a.short", None]


@pytest.mark.parametrize("threshold", [0.1, 0.2, 0.3, 0.6, 0.7, 0.01, 0.198])
def test_a_value_that_equals_the_threshold_passes_at_most_and_at_least(threshold: float) -> None:
    signals = {"words": column(threshold)}
    for comparator, fails in (("at_most", False), ("at_least", False), ("above", True), ("below", True)):
        judgement = judge([preset(rule(**{"reason": "r", "signal": "words", comparator: threshold}))], signals)
        assert judgement.failed[0, 0] == fails


def test_a_signal_that_is_nan_fails_no_rule_and_holds_in_no_unless() -> None:
    every = [rule(**{"reason": name.replace("_", "-"), "signal": "words", name: 1}) for name in COMPARATORS]
    assert not judge([preset(*every)], {"words": column(float("nan"))}).failed.any()
    guarded = Rule(reason="r", signal="words", at_least=50, unless=Clause(signal="chars", below=100))
    signals = {"words": column(1, 1), "chars": column(50, float("nan"))}
    assert judge([preset(guarded)], signals).failed[0].tolist() == [False, True]


def test_no_documents_are_judged_as_none() -> None:
    judgement = judge([parse_preset(VALID, "f")], {"words": column()})
    assert judgement.failed.shape == (1, 0)
    assert judgement.first.shape == (0,)


def test_a_language_covers_itself_with_a_script_but_not_a_longer_name() -> None:
    assert covers("zh", "zh")
    assert covers("zh", "zh-Hant")
    assert covers("ZH", "zh_hans")
    assert not covers("zh", "zha")
    assert not covers("zh-hant", "zh")


def test_a_document_without_a_language_is_judged_by_rules_for_all_but_some_and_by_none_for_some() -> None:
    some = rule(reason="some", signal="words", at_least=50, languages=["en"])
    others = rule(reason="others", signal="words", at_least=50, except_languages=["zh"])
    known = rule(reason="known", signal="words", at_least=50, except_languages=["und"])
    codes = np.array([-1, 0], np.int16)
    judgement = judge([preset(some, others, known)], {"words": column(1, 1)}, (codes, ["en"]))
    assert judgement.failed.tolist() == [[False, True], [True, True], [False, True]]


def test_a_language_condition_without_measured_languages_says_how_to_measure_them() -> None:
    with pytest.raises(ConfigError, match="measure them with --language"):
        judge([parse_preset(one_rule(languages=["zh"]), "f")], {"words": column(1)})
    with pytest.raises(ConfigError, match="measure them with --language"):
        check_languages(
            [parse_preset(VALID, "f"), parse_preset(one_rule(except_languages=["zh"]), "g")], measured=False
        )
    check_languages([parse_preset(VALID, "f")], measured=False)
    check_languages([parse_preset(one_rule(languages=["zh"]), "f")], measured=True)


def test_languages_of_a_preset_hold_for_its_rules_that_have_none_of_their_own() -> None:
    values = {
        "name": "mine",
        "languages": ["zh"],
        "rules": [VALID["rules"][0], {"reason": "b", "signal": "chars", "below": 9, "languages": ["en"]}],
    }
    assert [rule.languages for rule in parse_preset(values, "f").rules] == [("zh",), ("en",)]


def test_a_description_says_the_statement_or_how_a_document_fails_it() -> None:
    short = Rule(reason="short", signal="words", at_least=50)
    assert describe(short) == "words ≥ 50"
    assert describe(short, 23.0) == "words 23 < 50"
    share = Rule(reason="dup", signal="dup_line_share", at_most=0.2)
    assert describe(share, float(np.float32(0.25))) == "dup_line_share 0.25 > 0.2"
    assert describe(share, float(np.nextafter(np.float32(0.2), np.float32(1)))) == "dup_line_share 0.20000002 > 0.2"


def test_failures_give_value_comparator_and_threshold_for_the_ledger() -> None:
    signals = {"words": column(23)}
    (failure,) = failures_of(judge([parse_preset(VALID, "f")], signals), signals, 0)
    assert failure == ("mine.short", "words", 23.0, "at_least", 50.0)


def test_presets_that_presume_other_words_are_named_in_a_warning() -> None:
    segmented = parse_preset({**VALID, "words": "segmented"}, "f")
    assert word_warnings([segmented, parse_preset(VALID, "f")], "segmented") == []
    (warning,) = word_warnings([segmented], "symbols")
    assert "mine" in warning
    assert "\n" not in warning


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (one_rule(at_least=None, atleast=3), "unknown key 'atleast', near: at_least"),
        (one_rule(reson="x"), "unknown key 'reson', near: reason"),
        (one_rule(at_most=60), "expected exactly one of .*, found at_least and at_most"),
        (one_rule(at_least=None), "expected exactly one of .*, found none"),
        (one_rule(at_least="50"), "at_least: expected a number, found '50'"),
        (one_rule(at_least=True), "at_least: expected a number, found True"),
        (one_rule(at_least=float("nan")), "at_least: expected a number, found nan"),
        (one_rule(at_least=float("inf")), "at_least: expected a number, found inf"),
        (one_rule(at_least=1e39), "at_least: expected a number"),
        (one_rule(reason=None), "rule 1 .*reason: field required"),
        (one_rule(reason="Too short"), "reason: .*'Too short'"),
        (one_rule(signal=None), "signal: field required"),
        (one_rule(languages="zh"), r"expected a list such as \[zh, 'no'\], found 'zh'"),
        (one_rule(languages=[False]), r"expected a list such as .*, found \[False\]"),
        (one_rule(languages=[]), "expected a list"),
        (one_rule(unless={"signal": "chars"}), "expected exactly one of .*, found none"),
        (one_rule(unless={"signal": "chars", "below": 3, "languages": ["zh"]}), "unknown key 'languages'"),
        (one_rule(unless=3), "unless: .*found 3"),
        ({**VALID, "rules": VALID["rules"] * 2}, "reason 'short' is given twice"),
        ({**VALID, "rules": []}, "at least one rule"),
        ({**VALID, "rules": ["short"]}, "rule 1: expected a mapping with reason"),
        ({**VALID, "souces": []}, "unknown key 'souces', near: sources"),
        ({**VALID, "words": "jieba"}, "words: .*found 'jieba'"),
        ({"rules": VALID["rules"]}, "name: field required"),
        ({"name": "mine"}, "a list of rules"),
        (None, "a list of rules"),
        ([1], "a list of rules"),
    ],
)
def test_a_wrong_preset_is_one_line_that_says_where_and_what(values: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        parse_preset(values, "mine.yaml")
    assert str(error.value).startswith("preset mine.yaml")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"name: [", "not YAML"), (b"\xff\xfe\xff", "not YAML"), (b"", "a list of rules"), (None, "No such file")],
)
def test_a_file_that_is_no_preset_is_one_line(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "mine.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as error:
        load_preset(str(path))
    assert "\n" not in str(error.value)


def test_an_unknown_preset_lists_the_near_and_the_built_in_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown preset 'gofer', near: gopher.*built in: c4, .*fineweb2-cmn"):
        load_preset("gofer")


def test_two_presets_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="preset c4 is given twice"):
        load_presets(["c4", "gopher", "c4"])


def test_an_unknown_signal_lists_the_near_ones_and_further_signals_can_be_known() -> None:
    mine = parse_preset(one_rule(signal="wrds"), "f")
    with pytest.raises(ConfigError, match="rule short: unknown signal 'wrds', near: words"):
        check_signals([mine])
    check_signals([mine], ["wrds"])
    guarded = parse_preset(one_rule(unless={"signal": "language_score", "below": 0.3}), "f")
    with pytest.raises(ConfigError, match="unknown signal 'language_score'"):
        check_signals([guarded])
    check_signals([guarded], ["words", "language_score"])


def test_a_known_signal_that_was_not_measured_is_said_to_be_so() -> None:
    with pytest.raises(ConfigError, match="signal 'words' was not measured"):
        judge([parse_preset(VALID, "f")], {"chars": column(1)})
