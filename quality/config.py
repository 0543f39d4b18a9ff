"""The config of quality: what is measured of every document, and which rules judge the measurements."""

import re
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from taojin.core.errors import ConfigError
from taojin.core.job import JobConfig
from taojin.quality.rules import Preset, Rule, check_languages, check_signals, load_presets, word_warnings
from taojin.quality.signals import HEURISTIC_SIGNALS

if TYPE_CHECKING:
    from taojin.quality.models import Model
    from taojin.quality.questions import Questions
    from taojin.quality.segment import Segmenter
    from taojin.quality.sensitive import WordList

# Rises with every change of what a signal is: sidecars of another format are not judged.
SIGNALS_FORMAT = 1
# What to ask for, by the beginning of a signal's name.
MEASURED_WITH = {
    "sensitive_": "--sensitive CATEGORY=PATH",
    "personal_": "--personal",
    "contamination_": "--decontaminate NAME=PATH",
    "language": "--language",
}
# Fields that decide what the signals are.
MEASURED = (
    "words",
    "language",
    "models",
    "sensitive",
    "personal",
    "decontaminate",
    "contamination_ngram",
    "contamination_runs",
)


class QualityConfig(JobConfig):
    """Fields of quality that `taojin quality` and `taojin dedup` share."""

    quality_preset: tuple[str, ...] = ()
    """rules that judge every document before anything else: names of presets, or YAML files, applied in order"""
    score: str | None = None
    """the signal by which, of two duplicates, the better one survives (default: the first of --models)"""

    signals: bool = False
    """measure quality signals, even if no preset judges them yet: another run can, without reading the text again"""
    words: Literal["symbols", "jieba"] = "symbols"
    """what a word of Chinese is to the signals: one character, or what a segmenter finds"""
    language: bool = True
    """identify the language of every document"""
    models: tuple[str, ...] = ()
    """models that give a signal each: NAME=PATH of a fastText or KenLM model, or of what `taojin fit` made"""
    sensitive: tuple[str, ...] = ()
    """lists of sensitive words, CATEGORY=PATH, one word a line: signals sensitive_<category>"""
    personal: bool = False
    """count personal data: signals personal_mobile, personal_email …"""
    decontaminate: tuple[str, ...] = ()
    """evaluation sets, NAME=PATH of JSONL, CSV or Parquet: what contains one of their questions is contaminated"""
    contamination_ngram: Annotated[int, Field(ge=4, le=64)] = 13
    """symbols in a row that a document must share with a question"""
    contamination_runs: Annotated[int, Field(ge=1)] = 8
    """so many different such runs of one question, or half of a short question's, make a document contaminated: one run
    alone is often a set phrase"""

    contaminated: Literal["drop", "cut", "flag"] = "drop"
    """drop contaminated documents, cut the question out of them, or only write it down"""
    mask: tuple[str, ...] = ()
    """personal data to mask in what is written: mobile, landline, id_number, bank_card, email, ip"""

    @model_validator(mode="after")
    def _check_quality(self) -> Self:
        if self.mask:
            from taojin.quality.personal import KINDS

            for kind in self.mask:
                if kind not in KINDS:
                    raise ValueError(f"--mask {kind}: expected one of {', '.join(KINDS)}")
        return self

    @property
    def measures(self) -> bool:
        """Whether the scan measures signals."""
        return bool(
            self.signals
            or self.quality_preset
            or self.score
            or self.models
            or self.sensitive
            or self.personal
            or self.decontaminate
        )

    @cached_property
    def presets(self) -> tuple[Preset, ...]:
        """The presets asked for. Raises ConfigError."""
        return load_presets(self.quality_preset)

    @cached_property
    def all_presets(self) -> tuple[Preset, ...]:
        """Contamination first, then the presets."""
        dropped = self._set_names() if self.contaminated == "drop" else []
        rules = [Rule(reason=name, signal=f"contamination_{name}", at_most=0) for name in dropped]
        if self.contaminated == "cut" and self.decontaminate:
            from taojin.quality.cutting import LEAST_LEFT

            rules.append(Rule(reason="mostly_questions", signal="contamination_left", at_least=LEAST_LEFT))
        return (Preset(name="contamination", rules=tuple(rules)), *self.presets) if rules else self.presets

    def with_presets(self, values: list[dict[str, Any]]) -> Self:
        """This config with presets as `decide_part` has them, whatever has become of their files."""
        copy = self.model_copy()
        # Where cached_property keeps its value.
        copy.__dict__["presets"] = tuple(Preset(**preset) for preset in values)
        copy.__dict__.pop("all_presets", None)
        return copy

    @property
    def reasons(self) -> tuple[str, ...]:
        """The full names of all rules, in order."""
        return tuple(f"{preset.name}.{rule.reason}" for preset in self.all_presets for rule in preset.rules)

    @property
    def score_signal(self) -> str | None:
        """What survivors are ordered by."""
        return self.score or (self._model_names()[0] if self.models else None)

    @property
    def signal_names(self) -> tuple[str, ...]:
        """Every signal that this config measures, in the order of the sidecar."""
        names = [signal.name for signal in HEURISTIC_SIGNALS]
        if self.language:
            names.append("language_score")
        names += self._model_names()
        for category in dict.fromkeys(spec.partition("=")[0] for spec in self.sensitive):
            names += [f"sensitive_{category}", f"sensitive_{category}_distinct"]
        if self.personal:
            from taojin.quality.personal import KINDS

            names += [f"personal_{kind}" for kind in KINDS]
        if self.decontaminate:
            names += [f"contamination_{name}" for name in self._set_names()]
            names.append("contamination_left")
        return tuple(names)

    def check(self) -> list[str]:
        """Raise ConfigError for rules on what is not measured; returns warnings."""
        if not self.measures:
            return []
        if self.models:
            from taojin.quality.models import parse_models

            parse_models(self.models)
        self.load_lists()
        self._check_names()
        check_signals(self.all_presets, self.signal_names, MEASURED_WITH)
        check_languages(self.all_presets, self.language)
        if self.score is not None:
            check_name("--score", self.score, self.signal_names)
        return word_warnings(self.presets, "segmented" if self.words == "jieba" else "symbols")

    def _check_names(self) -> None:
        for spec, name in zip(self.decontaminate, self._set_names(), strict=True):
            if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
                raise ConfigError(
                    f"--decontaminate {spec}: expected a name of a-z, 0-9, _ and -, found {name!r}; write NAME=PATH"
                )
        names = (*self.signal_names, "language")
        double = next((name for name in names if names.count(name) > 1), None)
        if double is not None:
            raise ConfigError(f"two signals are called {double}: choose another name in --models, --decontaminate …")
        if self.decontaminate and any(preset.name == "contamination" for preset in self.presets):
            raise ConfigError("a preset is called contamination, as the rules of --decontaminate are; rename it")

    # Names are in the specs: a finished run is explained and checked whether or not the files are still there.

    def _model_names(self) -> list[str]:
        return [spec.partition("=")[0] for spec in self.models]

    def _set_names(self) -> list[str]:
        if not self.decontaminate:
            return []
        from taojin.quality.questions import split_spec

        return [split_spec(spec)[0] for spec in self.decontaminate]

    def load_questions(self) -> "Questions | None":
        if not self.decontaminate:
            return None
        from taojin.quality.questions import load_questions

        return load_questions(self.decontaminate, ngram=self.contamination_ngram)

    def load_lists(self) -> "tuple[WordList, ...]":
        if not self.sensitive:
            return ()
        from taojin.quality.sensitive import parse_lists

        return parse_lists(self.sensitive)

    def open_segmenter(self) -> "Segmenter | None":
        if self.words == "symbols":
            return None
        from taojin.quality.segment import choose_segmenter

        return choose_segmenter()

    def open_models(self) -> "list[Model]":
        if not self.models:
            return []
        from taojin.quality.models import open_model, parse_models

        return [open_model(spec) for spec in parse_models(self.models)]

    def scan_part(self) -> dict[str, Any]:
        part = super().scan_part()
        if not self.measures:
            return part
        formats = {**part.pop("formats"), "signals": SIGNALS_FORMAT, **self._contents()}
        return {**part, "signals": True, **{name: getattr(self, name) for name in MEASURED}, "formats": formats}

    def _contents(self) -> dict[str, Any]:
        """Versions and fingerprints of what the signals are measured with."""
        contents: dict[str, Any] = {}
        if segmenter := self.open_segmenter():
            contents["segmenter"] = segmenter.name
        if self.language:
            from taojin.quality.language import language_version

            contents["language"] = language_version()
        if self.models:
            from taojin.quality.models import model_part, parse_models

            contents["models"] = [model_part(spec) for spec in parse_models(self.models)]
        if self.sensitive:
            from taojin.quality.sensitive import lists_part

            contents["sensitive"] = lists_part(self.load_lists())
        if questions := self.load_questions():
            from taojin.quality.questions import questions_part

            contents["questions"] = questions_part(questions)
        return contents

    def decide_part(self) -> dict[str, Any]:
        part = super().decide_part()
        if not self.measures:
            return part
        presets = [preset.model_dump(mode="json") for preset in self.presets]
        return {**part, "presets": presets, "score": self.score, "contaminated": self.contaminated}

    def write_part(self) -> dict[str, Any]:
        part = super().write_part()
        return {**part, "mask": self.mask} if self.mask else part


def check_name(flag: str, name: str, known: tuple[str, ...]) -> None:
    """Raise ConfigError, with near names, for a signal that is not measured."""
    if name not in known:
        near = get_close_matches(name, known, n=4, cutoff=0.5)
        hint = f", near: {', '.join(near)}" if near else ""
        raise ConfigError(f"{flag} {name}: no signal of this name is measured{hint}")
