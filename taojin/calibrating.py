"""Thresholds from text you trust: `taojin calibrate --input REFERENCE… --output preset.yaml`.

In: shards of a reference. Out: a preset, as `taojin quality --preset` takes it. The reference is measured by the same
scan as every run, in a WORK folder that may be kept (`--work`); another --quantile then costs seconds.
What a threshold is made of is `taojin.quality.calibrate`'s.
"""

import re
import tempfile
from pathlib import Path
from typing import Annotated, Self

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator
from tyro.conf import arg

from taojin.core.errors import OutputError
from taojin.core.status import EMPTY
from taojin.core.storage import Folder
from taojin.core.tasks import unit_name
from taojin.jobs import QualityJob
from taojin.pipeline import run_quality
from taojin.quality.calibrate import CHINESE_TARGETS, Calibration, calibrate, dump_preset
from taojin.quality.config import QualityConfig
from taojin.quality.judging import encoded, read_columns
from taojin.quality.rules import load_preset
from taojin.report import number, print_json


class CalibrateConfig(QualityConfig):
    """Find thresholds: what nearly all of a trusted reference passes, written as a preset."""

    output: str | None = None
    """the preset to write, a .yaml file; its name becomes the preset's"""
    template: str | None = None
    """a preset whose signals and sides are to get new thresholds (default: a list made for Chinese text)"""
    quantile: Annotated[float, Field(gt=0, lt=0.5)] = 0.01
    """share of the reference that one rule may fail"""
    keep: Annotated[float, Field(gt=0, le=1)] = 0.95
    """share of the reference that all rules together must keep; the quantile is lowered until they do"""
    per_language: tuple[str, ...] = ()
    """languages that get thresholds of their own; documents in others are not judged"""
    as_json: Annotated[bool, arg(name="json")] = False
    """one JSON object on stdout"""

    @model_validator(mode="after")
    def _check_run(self) -> Self:
        """Takes the place of JobConfig's: the output is a file, WORK may be temporary."""
        if self.output is None or not self.output.endswith((".yaml", ".yml")):
            raise ValueError("--output: expected the .yaml file to write")
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", Path(self.output).stem):
            raise ValueError(f"--output {self.output}: expected a name of a-z, 0-9, _ and -, for it is the preset's")
        return self


def run_calibrate(config: CalibrateConfig) -> int:
    """Write the preset and say what it is made of; returns 0. Raises TaojinError subclasses."""
    output = Path(str(config.output))
    if output.exists():
        raise OutputError(f"--output {output}: exists; name another file, or take it away")
    with tempfile.TemporaryDirectory(prefix="taojin-calibrate-") as temporary:
        found = calibrate_work(config, config.work or f"{temporary}/work", output.stem)
    dump_preset(found.preset, output)
    if config.as_json:
        groups = [group._asdict() for group in found.groups]
        rules = len(found.preset.rules)
        print_json({"output": str(output), "rules": rules, "groups": groups, "skipped": list(found.skipped)})
        return 0
    for group in found.groups:
        who = f"{group.language} " if group.language else ""
        print(
            f"{group.documents:,} {who}documents: {group.kept:.1%} pass all rules; one rule fails at most "
            f"{group.quantile:.2%} of those it judges"
        )
    for line in found.skipped:
        print(f"no rule: {line}")
    print(f"{number(len(found.preset.rules), 'rule')} in {output}; use them with --preset {output}")
    return 0


def calibrate_work(config: CalibrateConfig, work: str, name: str) -> Calibration:
    """Measure the reference in WORK, or find it measured there, and calibrate."""
    values = {field: getattr(config, field) for field in QualityConfig.model_fields}
    values |= {"output": None, "work": work, "report_only": True, "quality_preset": ()}
    result = run_quality(QualityJob(**values, mode="annotate"))
    folder = Folder(work).child("signals")
    tables = []
    for unit in range(result.counts["units"]):
        unit_table = read_columns(folder, f"{unit_name(unit)}.arrow", [*config.signal_names, "language"])
        status = read_columns(Folder(work).child("scan"), f"{unit_name(unit)}.arrow", ["status"])
        tables.append(unit_table.filter(pa.array(status.column("status").to_numpy() < EMPTY)))
    table = pa.concat_tables(tables)
    signals = {field: table.column(field).to_numpy() for field in config.signal_names}
    languages = None
    if config.language:
        codes, names = encoded(table.column("language"))
        languages = (codes.astype(np.int16), names)
    return calibrate(
        signals,
        languages,
        load_preset(config.template) if config.template else CHINESE_TARGETS,
        name=name,
        quantile=config.quantile,
        keep=config.keep,
        per_language=config.per_language,
        words="segmented" if config.words == "jieba" else "symbols",
        source=f"a reference of {len(table):,} documents",
    )
