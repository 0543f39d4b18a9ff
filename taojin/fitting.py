"""A quality classifier of your own in minutes: `taojin fit --good PATH… --bad PATH… --output model.npz`.

In: shards of documents you want more of, and of documents you do not. Out: a model file, as `--models NAME=model.npz`
takes it. One process reads both classes once; what is learnt, and how it is measured, is `taojin.quality.fit`'s.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field
from tyro.conf import arg

from taojin.core.corpus import make_plan
from taojin.core.errors import OutputError
from taojin.core.job import Reading
from taojin.core.reading import read_unit
from taojin.core.status import BLANK
from taojin.quality.classifier import save_classifier
from taojin.quality.fit import FitConfig, fit
from taojin.report import number, print_json

UNIT_BYTES = 128_000_000


class FitCommand(FitConfig):
    """Train a small classifier that tells good documents from bad ones, and measure it on documents held out."""

    good: Annotated[tuple[str, ...], Field(min_length=1)]
    """files, folders, globs or s3:// URIs of documents to have more of"""
    bad: Annotated[tuple[str, ...], Field(min_length=1)]
    """the same of documents to have less of"""
    output: str
    """the model file to write, .npz"""
    text_column: str = "text"
    """the column that holds the document"""
    max_document_mb: Annotated[float, Field(gt=0, le=1000)] = 64
    """larger documents are left out (MB of 10^6 bytes)"""
    as_json: Annotated[bool, arg(name="json")] = False
    """one JSON object on stdout"""


def run_fit(config: FitCommand) -> int:
    """Train, save, and say how well it does; returns 0. Raises TaojinError subclasses."""
    output = Path(config.output)
    if output.exists():
        raise OutputError(f"--output {output}: exists; name another file, or take it away")
    if not output.parent.is_dir():
        raise OutputError(f"--output {output}: there is no folder {output.parent}")
    settings = FitConfig(**{name: getattr(config, name) for name in FitConfig.model_fields})
    fitted = fit(texts_of(config, config.good), texts_of(config, config.bad), settings)
    save_classifier(fitted.classifier, output)
    report = fitted.classifier.report
    if config.as_json:
        print_json({"output": str(output), **report, "warnings": list(fitted.warnings)})
        return 0
    for name in ("good", "bad"):
        counts = report[name]
        print(f"{name:<9} {number(counts['used'], 'distinct document')} of {counts['documents']:,} read")
    print(f"held out  {number(report['held_out'], 'document')}")
    print(f"AUC       {report['auc']:.4f}: how often a good document scores above a bad one")
    print(f"precision {report['average_precision']:.4f} on average")
    for warning in fitted.warnings:
        print(f"warning: {warning}")
    print(f"model     {output}; measure with --models quality={output}")
    return 0


def texts_of(config: FitCommand, paths: tuple[str, ...]) -> Iterator[pa.LargeStringArray]:
    """Batches of texts in the order of the plan; what cannot be read is null."""
    reading = Reading(config.text_column, "", "", max_document_bytes=int(config.max_document_mb * 1e6))
    plan = make_plan(
        paths,
        text_column=config.text_column,
        id_column="id",
        source_column="source",
        unit_bytes=UNIT_BYTES,
        entries_per_document=0,
        config={},
        skip_bad=False,
    )
    for unit in plan.units:
        for batch in read_unit(plan, unit, [config.text_column], reading):
            texts = batch.rows.column(0)
            readable = pa.array(batch.status <= BLANK)
            yield texts if readable.false_count == 0 else pc.if_else(readable, texts, pa.scalar(None, texts.type))
