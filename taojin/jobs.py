"""The configs of the commands that run the pipeline, put together from those of the stages."""

from typing import Annotated, Any, Literal

import pyarrow as pa
from tyro.conf import arg

from taojin.core.errors import ConfigError
from taojin.core.job import JobConfig
from taojin.core.storage import Folder
from taojin.core.write import Edit, Extra
from taojin.dedup.config import DedupConfig
from taojin.quality.config import QualityConfig, check_name


class DedupJob(QualityConfig, DedupConfig):
    """De-duplicate shards: exact and near-duplicates are removed, each with its evidence in the ledger."""


class QualityJob(QualityConfig):
    """Judge documents by rules: measure signals once, drop what fails a preset, or only write down what would."""

    quality_preset: Annotated[tuple[str, ...], arg(name="preset")] = ("taojin-zh",)
    """rules that judge every document: names of presets, or YAML files, applied in order"""
    mode: Literal["filter", "annotate", "both"] = "filter"
    """filter: drop what fails; annotate: drop nothing, write reasons, language and signals beside documents; both"""
    signal_columns: tuple[str, ...] = ()
    """signals that annotate and both write (default: those the presets judge; all: every one)"""

    @property
    def measures(self) -> bool:
        return True

    @property
    def annotates(self) -> bool:
        return self.mode != "filter"

    @property
    def written_signals(self) -> tuple[str, ...]:
        """Names of the signals that go out; raises ConfigError for one that is not measured."""
        known = self.signal_names
        if "all" in self.signal_columns:
            return known
        if not self.signal_columns:
            judged = {rule.signal for preset in self.all_presets for rule in preset.rules}
            return tuple(name for name in known if name in judged or name.startswith("contamination_"))
        for name in self.signal_columns:
            check_name("--signal-columns", name, known)
        return tuple(dict.fromkeys(self.signal_columns))

    def check(self) -> list[str]:
        warnings = super().check()
        _ = self.written_signals
        if self.signal_columns and not self.annotates:
            raise ConfigError("--signal-columns: written only with --mode annotate or both")
        return warnings

    def decide_part(self) -> dict[str, Any]:
        return {**super().decide_part(), "remove": self.mode != "annotate"}

    def write_part(self) -> dict[str, Any]:
        part = super().write_part()
        return {**part, "signal_columns": self.signal_columns, "annotate": True} if self.annotates else part


# Of a decide folder: how the texts that stay were changed as they were written, by the last run of it.
EDITS = "edits.json"
REPAIRED_FIELD = pa.field("repaired", pa.bool_())
REASONS_FIELD = pa.field("reasons", pa.list_(pa.string()))
LANGUAGE_FIELDS = (pa.field("language", pa.string()), pa.field("language_score", pa.float32()))
SIGNALS_COLUMN = "signals"


def extras_of(config: JobConfig, work: Folder, decide: Folder) -> tuple[Extra, ...]:
    """Columns that go out beside the input's and those of every output (`taojin.core.write.OUR_FIELDS`)."""
    extras = [Extra(work.child("scan"), (REPAIRED_FIELD,))] if config.repair else []
    if isinstance(config, QualityJob) and config.annotates:
        extras.append(Extra(decide.child("rules"), (REASONS_FIELD,)))
        signals = work.child("signals")
        if config.language:
            extras.append(Extra(signals, LANGUAGE_FIELDS))
        fields = tuple(pa.field(name, pa.float32()) for name in config.written_signals)
        if fields:
            extras.append(Extra(signals, fields, SIGNALS_COLUMN))
    return tuple(extras)


def edits_of(config: JobConfig, work: Folder) -> tuple[Edit, ...]:
    """Changes to the texts that are written."""
    if not isinstance(config, QualityConfig) or not (config.decontaminate or config.mask):
        return ()
    from taojin.quality.edits import CutQuestions, MaskPersonal

    edits: list[Edit] = []
    if config.decontaminate and config.contaminated == "cut":
        edits.append(CutQuestions(work.child("hits")))
    if config.mask:
        edits.append(MaskPersonal(config.mask))
    return tuple(edits)
