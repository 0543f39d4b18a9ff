"""The one config of `taojin dedup`: what is scanned, how duplicates are decided, where and how it runs.

Three kinds of fields. *Scan* fields decide what the sidecars hold: they are frozen with the plan. *Decide* fields are
judged on the sidecars: other values write another WORK/decide-<hash>/. *Run* fields enter no hash and no output.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from taojin.core.config import Config, fingerprint
from taojin.core.fold import FOLD_VERSION
from taojin.core.uris import with_suffix

SKETCH_FORMAT = 1
BANDS_FORMAT = 1
# Rises with every change of what is decided from the same sidecars: an old decision is then left alone, not resumed.
DECIDE_FORMAT = 1


class SourceConfig(Config):
    """What is read, and where everything goes."""

    input: Annotated[tuple[str, ...], Field(min_length=1)]
    """files, folders, globs or s3:// URIs of Parquet and JSONL shards"""
    output: str | None = None
    """folder for the clean Parquet; may be left out with --report-only"""
    work: str | None = None
    """folder for plan, sidecars, decisions and ledger (default: the output's name + .work); a rerun resumes from it"""

    text_column: str = "text"
    """the column that holds the document"""
    id_column: str = "id"
    """the column that names it; without one, documents are named <path>#<row>"""
    source_column: str = "source"
    """the column that says where it comes from, for --source-priority and reports; may be absent"""
    quality_column: str | None = None
    """a numeric column: of two duplicates the one with the higher value survives"""
    max_document_mb: Annotated[float, Field(gt=0, le=1000)] = 64
    """larger documents are set aside, counted, with reason too_large (MB of 10^6 bytes)"""
    unit_mb: Annotated[float, Field(gt=0)] = 128
    """size of a unit, the grain of work, retry and resume (MB of all columns)"""
    skip_bad_units: bool = False
    """go on without shards that cannot be read; they are counted"""


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


class DedupConfig(SketchConfig, SourceConfig):
    """De-duplicate shards: exact and near-duplicates are removed, each with its evidence in the ledger."""

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

    report_only: bool = False
    """decide and write the ledger, but no text"""
    part_mb: Annotated[float, Field(gt=0)] = 512
    """size of an output file (MB of all columns, uncompressed)"""
    row_group_mb: Annotated[float, Field(gt=0)] = 64
    """size of its row groups"""

    address: str | None = None
    """a Ray cluster (auto, ray://…, host:port; default: RAY_ADDRESS, else an embedded Ray on this machine)"""
    num_cpus: Annotated[int | None, Field(ge=0)] = None
    """CPUs to use; 0 runs everything in this process, without Ray"""
    quiet: bool = False
    """no progress on stderr"""

    @model_validator(mode="after")
    def _check_run(self) -> Self:
        if self.output is None and not self.report_only:
            raise ValueError("--output is needed (or --report-only with --work)")
        if self.output is None and self.work is None:
            raise ValueError("--work is needed where there is no --output")
        for name in (self.text_column, self.id_column, self.source_column):
            if not name:
                raise ValueError("a column name is empty")
        return self

    @property
    def work_folder(self) -> str:
        return self.work or with_suffix(str(self.output), ".work")

    @property
    def max_document_bytes(self) -> int:
        return int(self.max_document_mb * 1e6)

    def scan_part(self) -> dict[str, Any]:
        """What the sidecars depend on, frozen in the plan; `input` is there as the shards themselves."""
        names = [*SketchConfig.model_fields, "text_column", "id_column", "source_column", "quality_column"]
        names += ["max_document_mb", "unit_mb", "skip_bad_units"]
        values = {name: getattr(self, name) for name in names}
        return {**values, "formats": {"fold": FOLD_VERSION, "sketch": SKETCH_FORMAT, "bands": BANDS_FORMAT}}

    def decide_part(self) -> dict[str, Any]:
        names = ("threshold", "verify", "source_priority", "against", "keep_none")
        return {**{name: getattr(self, name) for name in names}, "format": DECIDE_FORMAT}

    def write_part(self) -> dict[str, Any]:
        return {"part_mb": self.part_mb, "row_group_mb": self.row_group_mb, **self.decide_part()}

    @property
    def decide_name(self) -> str:
        return f"decide-{fingerprint(self.decide_part())}"
