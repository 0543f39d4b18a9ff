"""Rules: which documents go, and why. A preset is a YAML file with a list of rules; a rule compares one signal.

    name: example
    sources: ["arXiv:2112.11446, appendix A1.1"]
    words: segmented                      # optional: what the thresholds presume for Chinese: segmented or symbols
    languages: [en]                       # optional, as are except_languages: for every rule that has none of its own
    rules:
      - reason: too_few_words             # unique; the ledger says <preset>.<reason>
        signal: words
        at_least: 50                      # or at_most, above, below: the document passes where this is true
        languages: [en]                   # optional: zh covers zh and zh-hant
        except_languages: [zh]            # optional
        unless: {signal: chars, below: 100}   # optional: the rule does not apply where this holds
        note: free text                   # optional

Every failing rule of a document is known; the first one, in the order of presets and rules, is its reason. A signal
that is NaN does not apply to the document, and no rule on it fails. Cost: a few NumPy passes per rule and a byte per
rule and document. What signals mean is `taojin.quality.signals`; where thresholds come from is each preset's business
(`taojin.quality.calibrate` makes presets from a reference).
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from taojin.core.config import Config
from taojin.core.errors import ConfigError
from taojin.quality.signals import INDEX

PRESETS = Path(__file__).parent / "presets"
# A document whose language was not recognised; conditions may name it.
UNKNOWN_LANGUAGE = "und"
# What is written in Chinese characters alone; a condition or a segmenter for Chinese means these.
HAN_LANGUAGES = ("zh", "cmn", "yue", "wuu", "lzh")
WORDS = {"segmented": "what a segmenter finds", "symbols": "one character"}
LARGEST = float(np.finfo(np.float32).max)

Signals = Mapping[str, NDArray[np.float32]]
Languages = tuple[NDArray[np.int16], Sequence[str]]


class Comparator(NamedTuple):
    holds: Callable[..., Any]
    fails: Callable[..., Any]  # not the negation: with NaN both are false
    sign: str
    failed_sign: str


COMPARATORS = {
    "at_least": Comparator(np.greater_equal, np.less, "≥", "<"),
    "at_most": Comparator(np.less_equal, np.greater, "≤", ">"),
    "above": Comparator(np.greater, np.less_equal, ">", "≤"),
    "below": Comparator(np.less, np.greater_equal, "<", "≥"),
}


class Clause(Config):
    """A statement about one signal. Raises ConfigError in one line."""

    signal: str
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None

    @model_validator(mode="before")
    @classmethod
    def _check(cls, values: Any) -> Any:
        if isinstance(values, dict):
            _refuse_unknown(values, cls.model_fields, "key")
            given = [name for name in COMPARATORS if values.get(name) is not None]
            if len(given) != 1:
                found = " and ".join(given) or "none"
                raise ConfigError(f"expected exactly one of {', '.join(COMPARATORS)}, found {found}")
            number = values[given[0]]
            if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) <= LARGEST:
                raise ConfigError(f"{given[0]}: expected a number, found {number!r}")
        return values

    @property
    def comparator(self) -> str:
        return next(name for name in COMPARATORS if getattr(self, name) is not None)

    @property
    def threshold(self) -> float:
        return float(getattr(self, self.comparator))

    def holds(self, values: NDArray[np.float32]) -> NDArray[np.bool_]:
        """bool[D]: where the statement is true; NaN: false."""
        return np.asarray(COMPARATORS[self.comparator].holds(values, np.float32(self.threshold)))

    def fails(self, values: NDArray[np.float32]) -> NDArray[np.bool_]:
        """bool[D]: where the statement is false; NaN: false.

        The threshold is rounded to float32 like the signals: 0.2 is not above 0.2, although float32(0.2) is.
        """
        return np.asarray(COMPARATORS[self.comparator].fails(values, np.float32(self.threshold)))


class Rule(Clause):
    reason: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
    languages: tuple[str, ...] | None = None
    except_languages: tuple[str, ...] | None = None
    unless: Clause | None = None
    note: str | None = None

    @field_validator("languages", "except_languages", mode="before")
    @classmethod
    def _check_languages(cls, value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not value or not all(isinstance(name, str) for name in value):
            # YAML reads an unquoted no, Norwegian, as false.
            raise ConfigError(f"languages: expected a list such as [zh, 'no'], found {value!r}")
        return tuple(value)

    def applies_to(self, languages: Languages | None) -> NDArray[np.bool_] | None:
        """bool[D]: documents that the language conditions let the rule judge; None: all. Raises ConfigError."""
        if self.languages is None and self.except_languages is None:
            return None
        if languages is None:
            raise ConfigError(
                f"rule {self.reason} has a language condition, but no languages were measured: "
                "measure them with --language, or choose presets without such rules"
            )
        codes, names = languages
        # Code −1 of a document without a language picks the last entry.
        by_code = np.array([self._judges(name) for name in (*names, UNKNOWN_LANGUAGE)])
        return np.asarray(by_code[np.where(codes < 0, len(names), codes)])

    def _judges(self, name: str) -> bool:
        inside = self.languages is None or any(covers(language, name) for language in self.languages)
        return inside and not any(covers(language, name) for language in self.except_languages or ())


class Preset(Config):
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
    sources: tuple[str, ...] = ()
    words: Literal["segmented", "symbols"] | None = None
    rules: tuple[Rule, ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.rules:
            raise ConfigError("rules: expected at least one rule, found none")
        seen: set[str] = set()
        for rule in self.rules:
            if rule.reason in seen:
                raise ConfigError(f"reason {rule.reason!r} is given twice: every rule needs its own")
            seen.add(rule.reason)
        return self


class Judgement(NamedTuple):
    failed: NDArray[np.bool_]  # [R, D]
    first: NDArray[np.int32]  # [D] index of the reason; −1: passes
    reasons: tuple[str, ...]  # [R] <preset>.<reason>
    rules: tuple[Rule, ...]  # [R]


class Failure(NamedTuple):
    reason: str
    signal: str
    value: float
    comparator: str
    threshold: float


def covers(language: str, name: str) -> bool:
    """Whether a condition that says `language` means documents in `name`: itself or with a script or region added."""
    language, name = (text.lower().replace("_", "-") for text in (language, name))
    return name == language or name.startswith(language + "-")


def built_in_presets() -> list[str]:
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def load_presets(names: Iterable[str]) -> tuple[Preset, ...]:
    """Presets in the given order. Raises ConfigError; also if two have the same name: their reasons would mix."""
    presets = tuple(load_preset(name) for name in names)
    for number, preset in enumerate(presets):
        if preset.name in {other.name for other in presets[:number]}:
            raise ConfigError(
                f"preset {preset.name} is given twice: give it once, or change the name in one of the files"
            )
    return presets


def load_preset(name_or_path: str) -> Preset:
    """A built-in preset by its name, or one of your own by the path of its .yaml file. Raises ConfigError."""
    import yaml

    if "/" in name_or_path or name_or_path.endswith((".yaml", ".yml")):
        path = Path(name_or_path)
    else:
        path = PRESETS / f"{name_or_path}.yaml"
        if not path.is_file():
            known = built_in_presets()
            raise ConfigError(
                f"unknown preset {name_or_path!r}{_near(name_or_path, known)}; built in: {', '.join(known)}; "
                "your own: the path of a .yaml file"
            )
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"preset {name_or_path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"preset {name_or_path}: not YAML: {' '.join(str(error).split())}") from None
    return parse_preset(values, name_or_path)


def parse_preset(values: Any, where: str) -> Preset:
    """A preset from what its YAML says. `where` names it in errors. Raises ConfigError."""
    if not isinstance(values, dict) or not isinstance(values.get("rules"), list):
        raise ConfigError(f"preset {where}: expected a mapping with name and a list of rules, found no such thing")
    defaults = {key: values[key] for key in ("languages", "except_languages") if key in values}
    rest = {key: value for key, value in values.items() if key not in defaults}
    rules = []
    at = f"preset {where}"
    try:
        _refuse_unknown(rest, Preset.model_fields, "key")
        for number, rule in enumerate(rest["rules"], start=1):
            at = f"preset {where}, rule {number}"
            if not isinstance(rule, dict):
                raise ConfigError(f"expected a mapping with reason, signal and a comparator, found {rule!r}")
            at += f" ({rule.get('reason')})"
            rules.append(Rule(**{**defaults, **{str(key): value for key, value in rule.items()}}))
        at = f"preset {where}"
        return Preset(**{str(key): value for key, value in {**rest, "rules": tuple(rules)}.items()})
    except ConfigError as error:
        # Fields of a file are not flags.
        raise ConfigError(f"{at}: {str(error).replace('--', '')}") from None


def check_signals(
    presets: Sequence[Preset], known: Collection[str] = tuple(INDEX), measured_with: Mapping[str, str] | None = None
) -> None:
    """Refuse rules on signals that are not among the `known` ones. Raises ConfigError.

    measured_with: the flag that measures signals whose name begins so.
    """
    for preset in presets:
        for rule in preset.rules:
            for clause in (rule, rule.unless):
                if clause is not None and clause.signal not in known:
                    where = f"preset {preset.name}, rule {rule.reason}"
                    if clause.signal in INDEX:
                        raise ConfigError(f"{where}: signal {clause.signal!r} was not measured in this run")
                    for beginning, flag in (measured_with or {}).items():
                        if clause.signal.startswith(beginning):
                            raise ConfigError(f"{where}: signal {clause.signal!r} is measured only with {flag}")
                    raise ConfigError(
                        f"{where}: unknown signal {clause.signal!r}{_near(clause.signal, known)}; a model's signal has "
                        "the NAME of --models NAME=PATH"
                    )


def check_languages(presets: Sequence[Preset], measured: bool) -> None:
    """Refuse rules with a language condition where no languages are measured. Raises ConfigError."""
    if not measured:
        for rule in (rule for preset in presets for rule in preset.rules):
            rule.applies_to(None)


def word_warnings(presets: Sequence[Preset], words: Literal["segmented", "symbols"]) -> list[str]:
    """A line for each preset whose thresholds presume other words of Chinese than are measured."""
    return [
        f"preset {preset.name} presumes that a word of Chinese is {WORDS[preset.words]}, this run takes "
        f"{WORDS[words]} (--words): rules on words will judge Chinese otherwise than published"
        for preset in presets
        if preset.words is not None and preset.words != words
    ]


def judge(presets: Sequence[Preset], signals: Signals, languages: Languages | None = None) -> Judgement:
    """Compare every document with every rule.

    signals: float32[D] by name. languages: (codes int16[D], names by code); a negative code is a document without one.
    Raises ConfigError for a signal that is missing, or a language condition without languages.
    """
    check_signals(presets, signals)
    named = [(f"{preset.name}.{rule.reason}", rule) for preset in presets for rule in preset.rules]
    num_documents = len(next(iter(signals.values()))) if signals else 0
    failed = np.zeros((len(named), num_documents), np.bool_)
    first = np.full(num_documents, -1, np.int32)
    masks: dict[Any, NDArray[np.bool_] | None] = {}
    # Backwards, so that what the first rule writes stands.
    for number, (_, rule) in reversed(list(enumerate(named))):
        row = failed[number]
        row |= rule.fails(signals[rule.signal])
        if rule.unless is not None:
            row &= ~rule.unless.holds(signals[rule.unless.signal])
        condition = (rule.languages, rule.except_languages)
        if condition not in masks:
            masks[condition] = rule.applies_to(languages)
        judged = masks[condition]
        if judged is not None:
            row &= judged
        first[row] = number
    return Judgement(failed, first, tuple(reason for reason, _ in named), tuple(rule for _, rule in named))


def failures_of(judgement: Judgement, signals: Signals, document: int) -> list[Failure]:
    """What one document failed, in the order of the rules; empty if it passes."""
    return [
        Failure(
            judgement.reasons[r], rule.signal, float(signals[rule.signal][document]), rule.comparator, rule.threshold
        )
        for r, rule in enumerate(judgement.rules)
        if judgement.failed[r, document]
    ]


def describe(clause: Clause, value: float | None = None) -> str:
    """'words ≥ 50', what must be true; with the value of a document that failed: 'words 23 < 50'."""
    comparator = COMPARATORS[clause.comparator]
    if value is None:
        return f"{clause.signal} {comparator.sign} {clause.threshold:g}"
    # Six digits, or as many as show that the value is on the wrong side.
    digits = next((d for d in range(6, 10) if float(f"{value:.{d}g}") != clause.threshold), 6)
    shown = "NaN" if math.isnan(value) else f"{value:.{digits}g}"
    return f"{clause.signal} {shown} {comparator.failed_sign} {clause.threshold:g}"


def _refuse_unknown(values: Mapping[Any, Any], known: Collection[str], what: str) -> None:
    for key in values:
        if key not in known:
            raise ConfigError(f"unknown {what} {key!r}{_near(str(key), known)}; expected some of {', '.join(known)}")


def _near(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=4, cutoff=0.5)
    return f", near: {', '.join(near)}" if near else ""
