"""The config of de-duplication: what a sketch depends on, and how duplicates are decided.

`taojin.core.job` has the fields that every job shares, and says which are frozen with the plan.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from taojin.core.config import Config
from taojin.core.fold import FOLD_VERSION
from taojin.core.job import JobConfig, Reading

SKETCH_FORMAT = 1
BANDS_FORMAT = 1
# Rises with every change of what is decided from the same sidecars: an old decision is then left alone, not resumed.
DECIDE_FORMAT = 2


class SketchConfig(Config):
    """What a sketch depends on."""

    sketch: Literal["fast", "datasketch"] = "fast"
    """fast: fast similarity sketching; datasketch: its K permutations, bit for bit, 32 bits each"""
    num_hashes: Annotated[int, Field(ge=16, le=1024)] = 128
    """lanes (K) that bands are cut from; with datasketch also what similarity is estimated from"""
    bins: Annotated[int, Field(ge=64, le=8192)] = 1024
    """bins of the sketch that estimates similarity, 2 bits each: more are more exact (standard error 0.5 /
    sqrt(bins))"""
    ngram: Annotated[int, Field(ge=1, le=64)] = 5
    """symbols in a shingle; a symbol is one Chinese character or one word"""
    min_symbols: Annotated[int, Field(ge=1)] = 12
    """texts with fewer symbols are duplicates only if all of their folded text is equal"""
    bands: Annotated[int, Field(ge=1, le=1024)] = 20
    """bands (b) that propose pairs: MORE bands find more pairs (looser)"""
    rows: Annotated[int, Field(ge=1, le=64)] = 6
    """lanes in a band (r): MORE rows find fewer pairs (stricter)"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.bands * self.rows > self.num_hashes:
            raise ValueError(
                f"bands × rows must not exceed num_hashes: {self.bands} × {self.rows} = {self.bands * self.rows} > "
                f"{self.num_hashes}; lower --bands or --rows, or raise --num-hashes"
            )
        if self.num_hashes % 2:
            raise ValueError(f"--num-hashes must be even, found {self.num_hashes}")
        if self.sketch == "fast":
            for flag, value in (("--num-hashes", self.num_hashes), ("--bins", self.bins)):
                if value & (value - 1):
                    raise ValueError(f"{flag} must be a power of two for --sketch fast, found {value}")
            if self.bins < self.num_hashes:
                raise ValueError(f"--bins must not be below --num-hashes, found {self.bins} < {self.num_hashes}")
        return self


class DedupConfig(SketchConfig, JobConfig):
    """De-duplicate shards: exact and near-duplicates are removed, each with its evidence in the ledger."""

    quality_column: str | None = None
    """a numeric column: of two duplicates the one with the higher value survives"""
    threshold: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Jaccard similarity of shingles from which a document is a near-duplicate of a survivor"""
    verify: Literal["sketch", "exact"] = "sketch"
    """sketch: by estimate, borderline acceptances out of many candidates by exact shingles; exact: all of them so"""
    source_priority: tuple[str, ...] = ()
    """sources from the most to the least trusted: of two duplicates the one from the earlier source survives"""
    against: tuple[str, ...] = ()
    """earlier WORK folders: what survived there removes its duplicates here"""
    keep_none: bool = False
    """drop both sides of every verified pair"""

    @property
    def reading(self) -> Reading:
        return super().reading._replace(quality=self.quality_column)

    def scan_part(self) -> dict[str, Any]:
        shared = super().scan_part()
        names = (*SketchConfig.model_fields, "quality_column")
        formats = {"fold": FOLD_VERSION, "sketch": SKETCH_FORMAT, "bands": BANDS_FORMAT, **shared.pop("formats")}
        return {**{name: getattr(self, name) for name in names}, **shared, "formats": formats}

    def decide_part(self) -> dict[str, Any]:
        names = ("threshold", "verify", "source_priority", "against", "keep_none")
        return {**{name: getattr(self, name) for name in names}, "format": DECIDE_FORMAT}
