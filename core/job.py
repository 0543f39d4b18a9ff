"""What every job over shards has in common: what is read, where everything goes, how it runs.

Three kinds of fields. *Scan* fields decide what the sidecars hold: they are frozen with the plan. *Decide* fields are
judged on the sidecars: other values write another WORK/decide-<hash>/. *Run* fields enter no hash and no output.
"""

from typing import Annotated, Any, NamedTuple, Self

from pydantic import Field, model_validator

from taojin.core.config import Config, fingerprint
from taojin.core.uris import with_suffix

# Small enough to be still in a cache when the kernels come to it: measured 1.3 times faster than 45 MB.
BATCH_BYTES = 4_000_000


class Reading(NamedTuple):
    """How a unit is read: which columns mean what (their names in the input), and what is done to bad records.

    repair: texts that a wrong decoding has spoilt are mended as they are read (`taojin.core.repair`).
    structured: the text column may hold lists or structs (conversations); of JSONL they come as JSON · batch_bytes:
    what a batch aims at, of all columns.
    """

    text: str
    id: str
    source: str
    quality: str | None = None
    max_document_bytes: int = 64_000_000
    skip_bad: bool = False
    repair: bool = False
    structured: bool = False
    batch_bytes: int = BATCH_BYTES

    def names_in(self, names: list[str]) -> list[str]:
        """Those of the columns with a meaning that the input has."""
        return [name for name in (self.text, self.id, self.source, self.quality) if name and name in names]


class ShardJob(Config):
    """The fields of every job that reads shards."""

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
    max_document_mb: Annotated[float, Field(gt=0, le=1000)] = 64
    """larger documents are set aside, counted, with reason too_large (MB of 10^6 bytes)"""
    unit_mb: Annotated[float, Field(gt=0)] = 128
    """size of a unit, the grain of work, retry and resume (MB of all columns)"""
    skip_bad_units: bool = False
    """go on without shards that cannot be read; they are counted"""
    repair: bool = False
    """mend texts that a wrong decoding has spoilt, control characters and line ends; counted, named in the ledger"""

    address: str | None = None
    """a Ray cluster (auto, ray://…, host:port; default: RAY_ADDRESS, else an embedded Ray on this machine)"""
    num_cpus: Annotated[int | None, Field(ge=0)] = None
    """CPUs to use; 0 runs everything in this process, without Ray"""
    quiet: bool = False
    """no progress on stderr"""

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        for name in (self.text_column, self.id_column, self.source_column):
            if not name:
                raise ValueError("a column name is empty")
        return self

    @property
    def work_folder(self) -> str:
        return self.work or with_suffix(str(self.output), ".work")

    @property
    def reading(self) -> Reading:
        return Reading(
            self.text_column,
            self.id_column,
            self.source_column,
            max_document_bytes=int(self.max_document_mb * 1e6),
            skip_bad=self.skip_bad_units,
            repair=self.repair,
        )

    def scan_part(self) -> dict[str, Any]:
        """What the sidecars depend on, frozen in the plan; `input` is there as the shards themselves."""
        names = ("text_column", "id_column", "source_column", "max_document_mb", "unit_mb", "skip_bad_units", "repair")
        values = {name: getattr(self, name) for name in names}
        formats: dict[str, Any] = {}
        if self.repair:
            from taojin.core.repair import repair_version

            formats["repair"] = repair_version()
        return {**values, "formats": formats}


class JobConfig(ShardJob):
    """The fields that `taojin dedup` and `taojin quality` share."""

    report_only: bool = False
    """decide and write the ledger, but no text"""
    part_mb: Annotated[float, Field(gt=0)] = 512
    """size of an output file (MB of all columns, uncompressed)"""
    row_group_mb: Annotated[float, Field(gt=0)] = 64
    """size of its row groups"""

    @model_validator(mode="after")
    def _check_run(self) -> Self:
        if self.output is None and not self.report_only:
            raise ValueError("--output is needed (or --report-only with --work)")
        if self.output is None and self.work is None:
            raise ValueError("--work is needed where there is no --output")
        return self

    def decide_part(self) -> dict[str, Any]:
        """What decisions depend on, the sidecars apart."""
        return {}

    def write_part(self) -> dict[str, Any]:
        """What the output depends on, the sidecars apart."""
        return {"part_mb": self.part_mb, "row_group_mb": self.row_group_mb, **self.decide_part()}

    @property
    def decide_name(self) -> str:
        return f"decide-{fingerprint(self.decide_part())}"
