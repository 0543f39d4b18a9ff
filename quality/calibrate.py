"""Calibration: thresholds from a sample that is trusted, written as a preset.

What is normal differs by language and by how words are cut, so thresholds are read off a reference, as FineWeb-2 does
per language (arXiv:2506.20920): a rule may fail at most a share q of the reference documents that it judges. q is then
lowered until all rules together keep a promised share of the reference. Thresholds are rounded to three digits, always
to the lenient side. The same sample gives the same preset. Cost: one sort per rule, and about twenty passes of
comparisons when q has to be lowered; no text is read. Measuring the signals is left to others.
"""

import math
from collections.abc import Callable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taojin.core.errors import ConfigError, InputError, OutputError
from taojin.quality.rules import (
    HAN_LANGUAGES,
    UNKNOWN_LANGUAGE,
    Clause,
    Languages,
    Preset,
    Rule,
    Signals,
    check_signals,
    covers,
    judge,
)

# Documents that should lie beyond a threshold: the share beyond is then known to about a third, 1 / sqrt(10).
BEYOND = 10
LARGEST_QUANTILE = 0.5
DIGITS = 3
HALVINGS = 20


class Target(NamedTuple):
    """What to find a threshold for. high: the documents with large values go; low: those with small ones."""

    reason: str
    signal: str
    side: Literal["low", "high"]
    # The threshold is never stricter than this: where nearly all of the reference is 0, its quantile says nothing of
    # how much is too much. A signal that is the same everywhere gets this threshold, or without one no rule.
    limit: float | None = None
    unless: Clause | None = None
    languages: tuple[str, ...] | None = None
    except_languages: tuple[str, ...] | None = None
    note: str | None = None
    # Judges documents without a recognised language too: what is nothing but debris has none.
    unknown_too: bool = False


class Group(NamedTuple):
    """Documents that were calibrated together."""

    language: str | None  # None: all
    documents: int
    quantile: float  # the q that was used
    kept: float  # share of the documents that pass all rules


class Calibration(NamedTuple):
    preset: Preset
    groups: tuple[Group, ...]
    skipped: tuple[str, ...]  # a line for each target without a rule


# The shortest document that MAP-CC keeps (50 characters): below, one character more or less moves a share by 2 %.
NOT_TINY = Clause(signal="chars", below=50)
# Repetition and entropy mean something only where there is room to repeat; a quatrain of 28 characters has none, and
# odes of a hundred live by their refrains. ChineseWebText keeps nothing up to this length.
NOT_SHORT = Clause(signal="chars", below=200)
# With four lines, one that ends in an ellipsis would be a quarter.
FEW_LINES = Clause(signal="lines", below=5)
NOT_A_BOOK = Clause(signal="chars", above=10_000)

# For Chinese of every kind, prose, verse and classical. Left out on purpose: whatever judges the layout of verse or the
# punctuation of old editions (terminal_line_share, mean_line_length, short_line_share, newlines_per_word,
# punctuation_share), code (curly_brackets, javascript_lines), modern stop words (Classical Chinese has others), length
# alone, and Traditional or Simplified.
CHINESE_TARGETS = (
    # Broken text. A clean reference has none of it, hence the limits: one character in a hundred is a broken file, one
    # in a million is not. Old texts have characters that only private use has room for.
    Target("replacement_characters", "replacement_share", "high", 0.01, unknown_too=True),
    Target("mojibake", "mojibake_share", "high", 0.01, unknown_too=True),
    Target("control_characters", "control_share", "high", 0.01, unknown_too=True),
    Target("private_use_characters", "private_use_share", "high", 0.05, unknown_too=True),
    Target("zero_width_characters", "zero_width_share", "high", 0.05, unknown_too=True),
    # What the text is made of: tables of numbers, lists of links, keyword spam in brackets.
    Target("too_many_addresses", "url_share", "high", 0.05, NOT_TINY),
    Target("too_many_symbols", "symbol_share", "high", 0.02, NOT_TINY, unknown_too=True),
    Target("too_many_digits", "digit_share", "high", None, NOT_TINY),
    Target("too_much_white_space", "whitespace_share", "high", None, NOT_TINY, unknown_too=True),
    Target("too_many_brackets", "bracket_share", "high", 0.02, NOT_TINY),
    Target("too_many_lenticular_brackets", "lenticular_share", "high", 0.1, NOT_TINY),
    Target("too_few_letters_and_digits", "alnum_share", "low", None, NOT_TINY, unknown_too=True),
    Target("too_few_chinese_characters", "han_share", "low", None, NOT_TINY, HAN_LANGUAGES),
    Target("word_too_long", "longest_word", "high", 1000, note="keys, encoded data, addresses without end"),
    # Vocabulary. Distinct characters grow more slowly than the text, so long texts have small shares; MAP-CC, whose
    # rules and limit of entropy these are, keeps nothing longer than 10,000 characters.
    Target("too_few_distinct_characters", "unique_char_share", "low", None, NOT_A_BOOK, unknown_too=True),
    Target("too_little_entropy", "unigram_entropy", "low", 3, NOT_SHORT),
    # Repeated units and sequences. Limits: Gopher's (arXiv:2112.11446, table A1); 0.1 is its strictest for sequences.
    Target("dup_lines", "dup_line_share", "high", 0.3, NOT_SHORT),
    Target("dup_line_chars", "dup_line_char_share", "high", 0.2, NOT_SHORT),
    Target("dup_paragraphs", "dup_paragraph_share", "high", 0.3, NOT_SHORT),
    Target("dup_paragraph_chars", "dup_paragraph_char_share", "high", 0.2, NOT_SHORT),
    Target("dup_sentences", "dup_sentence_share", "high", 0.3, NOT_SHORT),
    Target("dup_sentence_chars", "dup_sentence_char_share", "high", 0.2, NOT_SHORT),
    *(Target(f"top_{n}gram", f"top_{n}gram_share", "high", None, NOT_SHORT) for n in (2, 3, 4)),
    *(Target(f"dup_{n}grams", f"dup_{n}gram_share", "high", 0.1, NOT_SHORT) for n in range(5, 11)),
    Target("dup_10_characters", "char_10gram_repetition", "high", 0.1, NOT_SHORT),
    # Lines that belong to a page and not to its text. Limits: MAP-CC's; a verse may end in 更多, and notes in bullets.
    Target("too_many_readmore_lines", "readmore_line_share", "high", 0.3, FEW_LINES),
    Target("too_many_ellipsis_lines", "ellipsis_line_share", "high", 0.3, FEW_LINES),
    Target("too_many_bullet_lines", "bullet_line_share", "high", 0.9, FEW_LINES),
    Target("policy_lines", "policy_lines", "high", 2),
    Target("lorem_ipsum", "lorem_ipsum", "high", 0),
)


def targets_of(preset: Preset) -> tuple[Target, ...]:
    """The rules of a preset without their thresholds."""
    return tuple(
        Target(
            rule.reason,
            rule.signal,
            "low" if rule.comparator in ("at_least", "above") else "high",
            None,
            rule.unless,
            rule.languages,
            rule.except_languages,
            rule.note,
        )
        for rule in preset.rules
    )


def calibrate(
    signals: Signals,
    languages: Languages | None = None,
    base: Preset | Sequence[Target] = CHINESE_TARGETS,
    *,
    name: str = "calibrated",
    quantile: float = 0.01,
    keep: float = 0.95,
    per_language: Sequence[str] = (),
    words: Literal["segmented", "symbols"] | None = None,
    source: str = "a reference sample",
) -> Calibration:
    """Thresholds of the targets of `base` from the signals of a reference.

    signals: float32[D] by name; languages: (codes int16[D], names by code), needed with `per_language` or language
    conditions. With `per_language` each language gets rules of its own from its own documents, <reason>_<language> if
    there are several, and the promise holds for each; documents in other languages are not judged. Raises ConfigError
    for values that make no sense, InputError for a reference that is too small.
    """
    if not 0 < quantile < LARGEST_QUANTILE:
        raise ConfigError(f"--quantile: expected a share between 0 and {LARGEST_QUANTILE}, found {quantile:g}")
    if not 0 < keep <= 1:
        raise ConfigError(f"--keep: expected a share above 0, at most 1, found {keep:g}")
    if per_language and languages is None:
        raise ConfigError("--per-language: no languages were measured: measure them with --language")
    for number, one in enumerate(per_language):
        for other in per_language[:number]:
            if covers(one, other) or covers(other, one):
                raise ConfigError(f"--per-language: {other} and {one} overlap: a document would be judged by both")
    targets = targets_of(base) if isinstance(base, Preset) else tuple(base)
    rules: list[Rule] = []
    groups: list[Group] = []
    skipped: list[str] = []
    for language in per_language or (None,):
        suffix = f"_{language.lower()}" if language is not None and len(per_language) > 1 else ""
        found, group, missing = _calibrate_group(signals, languages, targets, language, suffix, quantile, keep)
        rules += found
        groups.append(group)
        skipped += missing
    if not rules:
        raise InputError(f"nothing to calibrate: no target gets a rule from this reference ({'; '.join(skipped)})")
    sources = [f"thresholds: {source}"]
    for group in groups:
        who = group.language or "all languages"
        sources.append(f"{who}: {group.documents} documents, q = {group.quantile:g}, {group.kept:.4f} of them kept")
    if isinstance(base, Preset):
        sources += [f"rules: preset {base.name}", *base.sources]
    preset = Preset(name=name, sources=tuple(sources), words=words, rules=tuple(rules))
    return Calibration(preset, tuple(groups), tuple(skipped))


class _Reference(NamedTuple):
    """One target and the documents that its rule judges."""

    target: Target
    rule: Rule  # with a threshold that does not matter yet
    values: NDArray[np.float32]  # sorted
    why: str | None  # why its quantiles say nothing


def _calibrate_group(
    signals: Signals,
    languages: Languages | None,
    targets: Sequence[Target],
    language: str | None,
    suffix: str,
    quantile: float,
    keep: float,
) -> tuple[list[Rule], Group, list[str]]:
    """Rules of one language, or of all documents; a line for each target without a rule."""
    if language is not None:
        inside = Rule(reason="any", signal="any", at_least=0, languages=(language,)).applies_to(languages)
        signals = {signal: values[inside] for signal, values in signals.items()}
        languages = None if languages is None else (languages[0][inside], languages[1])
    size = len(next(iter(signals.values()))) if signals else 0
    needed = math.ceil(BEYOND / quantile)
    who = "" if language is None else f" in {language}"
    if size < needed:
        enough = rounded(BEYOND / max(size, 1), up=True)
        remedy = f", or raise --quantile to {enough:g}" if enough < LARGEST_QUANTILE else ""
        raise InputError(
            f"reference: expected at least {needed} documents{who} for a quantile of {quantile:g}, so that about "
            f"{BEYOND} lie beyond each threshold, found {size}: give more{remedy}"
        )

    references: list[_Reference] = []
    skipped: list[str] = []
    for target in targets:
        if language is not None and not _concerns(target, language):
            continue
        rule = _rule_without_threshold(target, language, suffix)
        check_signals([Preset(name="reference", rules=(rule,))], signals)
        values = _judged(rule, signals, languages)
        why = None
        if len(values) < needed:
            why = f"judges {len(values)} documents of the reference, {needed} are needed"
        elif values[0] == values[-1]:
            why = f"{target.signal} is {float(values[0]):g} in the whole reference"
        if why is None or target.limit is not None:
            references.append(_Reference(target, rule, values, why))
        else:
            skipped.append(f"{rule.reason}: {why}")

    def kept_at(q: float) -> float:
        if not references:
            return 1.0
        preset = Preset(name="reference", rules=tuple(_with_threshold(reference, q) for reference in references))
        return float(np.mean(judge([preset], signals, languages).first < 0))

    used = quantile if kept_at(quantile) >= keep else _largest_quantile(kept_at, quantile, keep)
    rules = [_with_threshold(reference, used) for reference in references]
    return rules, Group(language, size, used, kept_at(used)), skipped


def _largest_quantile(kept_at: Callable[[float], float], quantile: float, keep: float) -> float:
    """By bisection: a smaller q never keeps less, and 0 keeps everything. Cut to three digits, downwards."""
    low, high = 0.0, quantile
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if kept_at(middle) >= keep:
            low = middle
        else:
            high = middle
    return rounded(low, up=False)


def _with_threshold(reference: _Reference, q: float) -> Rule:
    """At most a share q of the values lies beyond the threshold. q = 0: it is the largest or the smallest value."""
    target, rule, values, why = reference
    high = target.side == "high"
    if why is not None:
        q = 0.0
    threshold, found = target.limit, None
    if len(values):
        allowed = int(q * len(values))
        found = rounded(float(values[len(values) - 1 - allowed] if high else values[allowed]), up=high)
        threshold = found if threshold is None else max(found, threshold) if high else min(found, threshold)
    if why is None:
        why = f"quantile {1 - q if high else q:g} of {len(values)} documents"
        if threshold != found:
            why += f" is {found:g}, which is stricter than the limit"
    comparator = "at_most" if high else "at_least"
    note = f"{target.note}; {why}" if target.note else why
    languages = rule.languages
    if target.unknown_too and languages is not None:
        languages = (*languages, UNKNOWN_LANGUAGE)
    return rule.model_copy(update={"at_least": None, comparator: threshold, "note": note, "languages": languages})


def rounded(value: float, up: bool) -> float:
    """`value`, a float32, with three digits, never on its other side when both are compared as float32."""
    if value == 0:
        return 0.0
    nearest = float(f"{value:.{DIGITS - 1}e}")
    if np.float32(nearest) >= np.float32(value) if up else np.float32(nearest) <= np.float32(value):
        return nearest
    exact = Decimal(value)
    unit = Decimal(1).scaleb(exact.adjusted() - DIGITS + 1)
    return float(exact.quantize(unit, rounding=ROUND_CEILING if up else ROUND_FLOOR))


def _rule_without_threshold(target: Target, language: str | None, suffix: str) -> Rule:
    return Rule(
        reason=target.reason + suffix,
        signal=target.signal,
        at_least=0,
        unless=target.unless,
        languages=target.languages if language is None else (language,),
        except_languages=target.except_languages,
    )


def _concerns(target: Target, language: str) -> bool:
    inside = target.languages is None or any(covers(name, language) for name in target.languages)
    return inside and not any(covers(name, language) for name in target.except_languages or ())


def _judged(rule: Rule, signals: Signals, languages: Languages | None) -> NDArray[np.float32]:
    """Sorted values of the documents that the rule judges."""
    values = signals[rule.signal]
    if np.isinf(values).any():
        raise InputError(f"reference: expected finite numbers, found an infinite {rule.signal}: leave that signal out")
    judged = ~np.isnan(values)
    if rule.unless is not None:
        judged &= ~rule.unless.holds(signals[rule.unless.signal])
    mask = rule.applies_to(languages)
    if mask is not None:
        judged &= mask
    return np.sort(values[judged])


def dump_preset(preset: Preset, path: str | Path) -> None:
    """Write a preset as YAML that `load_preset` reads back as an equal one. Raises OutputError."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Conditions in one line."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    class Line(dict[str, Any]):
        pass

    class Row(list[str]):
        pass

    Dumper.add_representer(Line, lambda d, value: d.represent_mapping("tag:yaml.org,2002:map", value, flow_style=True))
    Dumper.add_representer(Row, lambda d, value: d.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True))

    def plain(clause: Clause) -> dict[str, Any]:
        values = {key: getattr(clause, key) for key in type(clause).model_fields}
        return {key: show(value) for key, value in values.items() if value is not None}

    def show(value: Any) -> Any:
        if isinstance(value, Clause):
            return Line(plain(value))
        if isinstance(value, tuple):
            return Row(value)
        if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
            return int(value)
        return value

    values: dict[str, Any] = {"name": preset.name}
    if preset.sources:
        values["sources"] = list(preset.sources)
    if preset.words:
        values["words"] = preset.words
    values["rules"] = [{"reason": rule.reason, **plain(rule)} for rule in preset.rules]
    text = yaml.dump(values, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=110)
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from None
