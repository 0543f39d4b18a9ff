from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taojin.core.errors import ConfigError, InputError, OutputError
from taojin.quality.calibrate import (
    CHINESE_TARGETS,
    Target,
    calibrate,
    dump_preset,
    rounded,
    targets_of,
)
from taojin.quality.rules import Clause, Preset, Rule, built_in_presets, judge, load_preset, parse_preset
from taojin.quality.signals import INDEX

TARGETS = (
    Target("short", "chars", "low"),
    Target("dup", "dup_line_share", "high"),
    Target("digits", "digit_share", "high"),
    Target("lorem", "lorem_ipsum", "high", 0),
)


def reference(size: int, seed: int = 1) -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(seed)
    return {
        "chars": np.exp(random.normal(6, 1.5, size)).astype(np.float32),
        "dup_line_share": random.beta(1, 20, size).astype(np.float32),
        "digit_share": random.beta(2, 30, size).astype(np.float32),
        "lorem_ipsum": np.zeros(size, np.float32),
    }


def kept(preset: Preset, signals: dict[str, NDArray[np.float32]], languages: Any = None) -> float:
    return float((judge([preset], signals, languages).first < 0).mean())


def rule_of(preset: Preset, reason: str) -> Rule:
    return next(rule for rule in preset.rules if rule.reason == reason)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 1000),
    st.sampled_from([0.01, 0.02, 0.1]),
    st.sampled_from([0.5, 0.9, 0.95, 0.99, 1.0]),
    st.sampled_from([1, 3, 40]),
)
def test_the_promised_share_of_the_reference_is_kept(seed: int, quantile: float, keep: float, steps: int) -> None:
    signals = reference(1000, seed)
    # Coarse values: many documents lie on a threshold.
    signals["digit_share"] = np.round(signals["digit_share"] * steps).astype(np.float32) / np.float32(steps)
    made = calibrate(signals, base=TARGETS, quantile=quantile, keep=keep)
    share = kept(made.preset, signals)
    assert share >= keep
    assert share == made.groups[0].kept
    failed = judge([made.preset], signals).failed.mean(axis=1)
    assert (failed <= quantile).all()


def test_each_rule_fails_about_the_share_it_may() -> None:
    signals = reference(20_000)
    made = calibrate(signals, base=TARGETS[:3], quantile=0.02, keep=0.5)
    assert made.groups[0].quantile == 0.02
    failed = judge([made.preset], signals).failed.mean(axis=1)
    # Rounding to three digits is lenient by a few documents.
    assert ((failed > 0.018) & (failed <= 0.02)).all()


def test_the_quantile_is_lowered_no_further_than_the_promise_asks() -> None:
    signals = reference(20_000)
    made = calibrate(signals, base=TARGETS, quantile=0.1, keep=0.9)
    assert 0 < made.groups[0].quantile < 0.1
    assert 0.9 <= kept(made.preset, signals) < 0.905


def test_keeping_everything_is_possible() -> None:
    signals = reference(1000)
    assert kept(calibrate(signals, base=TARGETS, keep=1).preset, signals) == 1


def test_the_same_sample_in_another_order_gives_the_same_preset() -> None:
    signals = reference(2000)
    order = np.random.default_rng(2).permutation(2000)
    shuffled = {name: values[order] for name, values in signals.items()}
    assert calibrate(signals, base=TARGETS) == calibrate(shuffled, base=TARGETS)


positive = st.floats(width=32, min_value=2.0**-60, max_value=2.0**60)


@given(st.just(0.0) | positive | positive.map(lambda value: -value), st.booleans())
def test_rounding_has_three_digits_and_never_crosses_the_value(value: float, up: bool) -> None:
    result = rounded(value, up)
    assert np.float32(result) >= np.float32(value) if up else np.float32(result) <= np.float32(value)
    assert abs(result - value) <= 0.0101 * abs(value)
    assert float(f"{result:.2e}") == result


@given(positive, positive)
def test_rounding_keeps_the_order_of_values(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert rounded(low, up=True) <= rounded(high, up=True)
    assert rounded(low, up=False) <= rounded(high, up=False)


def test_a_share_of_three_digits_stays_as_it_is() -> None:
    for share in (0.1, 0.2, 0.3, 0.25, 0.999, 50.0):
        assert rounded(float(np.float32(share)), up=True) == share
        assert rounded(float(np.float32(share)), up=False) == share


def test_a_signal_that_never_changes_gives_no_rule_and_is_listed() -> None:
    signals = {**reference(1000), "digit_share": np.full(1000, 0.125, np.float32)}
    made = calibrate(signals, base=TARGETS)
    assert [rule.reason for rule in made.preset.rules] == ["short", "dup", "lorem"]
    assert made.skipped == ("digits: digit_share is 0.125 in the whole reference",)


def test_a_limit_makes_a_rule_of_a_signal_that_never_changes_and_bounds_the_others() -> None:
    signals = reference(1000)
    base = (Target("lorem", "lorem_ipsum", "high", 0), Target("dup", "dup_line_share", "high", 0.9))
    rules = calibrate(signals, base=base).preset.rules
    assert [rule.threshold for rule in rules] == [0, 0.9]
    # It never drops what the whole reference has.
    constant = {"lorem_ipsum": np.full(1000, 3, np.float32)}
    assert calibrate(constant, base=base[:1]).preset.rules[0].threshold == 3
    low = (Target("short", "chars", "low", 1),)
    assert calibrate(signals, base=low).preset.rules[0].threshold == 1


def test_documents_that_a_rule_does_not_judge_do_not_move_its_threshold() -> None:
    signals = reference(4000)
    signals["dup_line_share"][signals["chars"] < 200] = 0.9
    guarded = Target("dup", "dup_line_share", "high", unless=Clause(signal="chars", below=200))
    made = calibrate(signals, base=(guarded,))
    rule = made.preset.rules[0]
    assert rule.unless == guarded.unless
    assert rule.threshold < 0.5
    signals["dup_line_share"][signals["chars"] < 200] = np.nan
    unguarded = Target("dup", "dup_line_share", "high")
    assert calibrate(signals, base=(unguarded,)).preset.rules[0].threshold == rule.threshold


def test_a_target_that_judges_too_few_documents_gives_no_rule() -> None:
    signals = reference(1000)
    rare = Target("dup", "dup_line_share", "high", unless=Clause(signal="chars", below=float(np.max(signals["chars"]))))
    made = calibrate(signals, base=(*TARGETS[:1], rare))
    assert [rule.reason for rule in made.preset.rules] == ["short"]
    assert made.skipped == ("dup: judges 1 documents of the reference, 1000 are needed",)


def test_a_reference_that_is_too_small_says_how_many_documents_are_needed() -> None:
    with pytest.raises(InputError, match=r"at least 1000 .* found 999: give more, or raise --quantile to 0\.0101"):
        calibrate(reference(999), base=TARGETS)
    assert calibrate(reference(999), base=TARGETS, quantile=0.0101).preset.rules
    with pytest.raises(InputError, match=r"found 0: give more$"):
        calibrate(reference(0), base=TARGETS)


def languages_of(size: int) -> tuple[NDArray[np.int16], list[str]]:
    return (np.arange(size) % 4 - 1).astype(np.int16), ["zh", "zh-hant", "en"]


def test_each_language_gets_rules_from_its_own_documents() -> None:
    signals = reference(8000)
    languages = languages_of(8000)
    signals["digit_share"][languages[0] == 2] += 0.5
    made = calibrate(signals, languages, TARGETS, per_language=("zh", "en"))
    chinese, english = rule_of(made.preset, "digits_zh"), rule_of(made.preset, "digits_en")
    assert (chinese.languages, english.languages) == (("zh",), ("en",))
    assert chinese.threshold < 0.5 < english.threshold
    assert [group.documents for group in made.groups] == [4000, 2000]
    codes, _ = languages
    for inside in (np.isin(codes, (0, 1)), codes == 2):
        own = {name: values[inside] for name, values in signals.items()}
        assert kept(made.preset, own, (codes[inside], languages[1])) >= 0.95


def test_one_language_needs_no_suffix() -> None:
    made = calibrate(reference(8000), languages_of(8000), TARGETS, per_language=("zh",))
    assert [rule.reason for rule in made.preset.rules] == ["short", "dup", "digits", "lorem"]
    assert {rule.languages for rule in made.preset.rules} == {("zh",)}


def test_targets_for_other_languages_give_no_rule() -> None:
    base = (TARGETS[0], Target("dup", "dup_line_share", "high", languages=("en",)))
    made = calibrate(reference(8000), languages_of(8000), base, per_language=("zh",))
    assert [rule.reason for rule in made.preset.rules] == ["short"]


def test_a_language_with_too_few_documents_is_named() -> None:
    with pytest.raises(InputError, match="1000 documents in en"):
        calibrate(reference(3000), languages_of(3000), TARGETS, per_language=("zh", "en"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"quantile": 0}, "--quantile"),
        ({"quantile": 0.5}, "--quantile"),
        ({"keep": 0}, "--keep"),
        ({"keep": 1.1}, "--keep"),
        ({"per_language": ("zh",)}, "measure them with --language"),
        ({"per_language": ("zh", "zh-hant"), "languages": languages_of(1000)}, "zh and zh-hant overlap"),
        ({"base": (Target("x", "wrds", "low"),)}, "unknown signal 'wrds'"),
    ],
)
def test_values_that_make_no_sense_are_refused_in_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        calibrate(reference(1000), **{"base": TARGETS, **values})
    assert "\n" not in str(error.value)


def test_an_infinite_signal_is_refused_since_no_threshold_would_keep_it() -> None:
    signals = reference(1000)
    signals["chars"][3] = np.inf
    with pytest.raises(InputError, match="infinite chars"):
        calibrate(signals, base=TARGETS)


def test_nothing_to_calibrate_is_an_error() -> None:
    with pytest.raises(InputError, match="no target gets a rule"):
        calibrate({"chars": np.ones(1000, np.float32)}, base=TARGETS[:1])


def test_the_rules_of_a_preset_can_be_calibrated_again() -> None:
    base = parse_preset(
        {
            "name": "mine",
            "sources": ["a paper"],
            "rules": [
                {"reason": "short", "signal": "chars", "above": 200, "note": "no stubs"},
                {"reason": "dup", "signal": "dup_line_share", "below": 0.5, "unless": {"signal": "chars", "below": 9}},
            ],
        },
        "mine.yaml",
    )
    assert [(target.reason, target.side) for target in targets_of(base)] == [("short", "low"), ("dup", "high")]
    made = calibrate(reference(2000), base=base, name="again").preset
    assert [(rule.reason, rule.comparator) for rule in made.rules] == [("short", "at_least"), ("dup", "at_most")]
    assert made.rules[1].unless == base.rules[1].unless
    assert made.rules[0].note is not None
    assert made.rules[0].note.startswith("no stubs; quantile 0.01 of 2000 documents")
    assert "a paper" in made.sources


def test_a_written_preset_is_read_back_as_an_equal_one(tmp_path: Path) -> None:
    signals, languages = reference(8000), languages_of(8000)
    made = calibrate(
        signals, languages, TARGETS, per_language=("zh", "en"), words="symbols", source="维基百科: 8,000"
    ).preset
    dump_preset(made, tmp_path / "made.yaml")
    assert load_preset(str(tmp_path / "made.yaml")) == made
    text = (tmp_path / "made.yaml").read_text(encoding="utf-8")
    assert "维基百科" in text
    assert "languages: [zh]" in text
    assert "4000 documents, q = " in text


@pytest.mark.parametrize("name", built_in_presets())
def test_every_built_in_preset_survives_writing_and_reading(tmp_path: Path, name: str) -> None:
    dump_preset(load_preset(name), tmp_path / "copy.yaml")
    assert load_preset(str(tmp_path / "copy.yaml")) == load_preset(name)


def test_a_path_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        dump_preset(load_preset("c4"), tmp_path / "absent" / "x.yaml")


def test_the_targets_for_chinese_are_measured_signals_with_reasons_of_their_own() -> None:
    assert {target.signal for target in CHINESE_TARGETS} <= set(INDEX)
    reasons = [target.reason for target in CHINESE_TARGETS]
    assert len(set(reasons)) == len(reasons)


def test_rules_for_chinese_made_from_long_prose_keep_a_short_poem() -> None:
    random = np.random.default_rng(3)
    long_prose = {name: random.beta(2, 50, 2000).astype(np.float32) for name in INDEX}
    long_prose |= {"chars": random.integers(500, 9000, 2000).astype(np.float32)}
    long_prose |= {"han_share": random.beta(50, 5, 2000).astype(np.float32)}
    long_prose |= {"unique_char_share": random.uniform(0.1, 0.4, 2000).astype(np.float32)}
    for name in ("lines", "sentences", "paragraphs"):
        long_prose[name] = random.integers(5, 90, 2000).astype(np.float32)
    codes = np.zeros(2000, np.int16)
    made = calibrate(long_prose, (codes, ["zh"]), per_language=("zh",)).preset
    # Four lines of five characters, no punctuation, a line that returns.
    poem = {name: np.zeros(1, np.float32) for name in INDEX}
    poem |= {name: np.full(1, value, np.float32) for name, value in {"chars": 23, "lines": 4, "sentences": 4}.items()}
    poem |= {name: np.full(1, 0.5, np.float32) for name in ("dup_line_share", "dup_sentence_share", "top_2gram_share")}
    poem |= {name: np.full(1, 0.8, np.float32) for name in ("han_share", "alnum_share", "unique_char_share")}
    poem |= {"whitespace_share": np.full(1, 0.13, np.float32), "longest_word": np.ones(1, np.float32)}
    assert judge([made], poem, (codes[:1], ["zh"])).first.tolist() == [-1]
    # Long text that repeats as much goes.
    assert judge([made], {**poem, "chars": np.full(1, 900, np.float32)}, (codes[:1], ["zh"])).first[0] >= 0
