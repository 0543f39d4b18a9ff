"""What the parts of the lane `tokenize` share: folders, the command, its start-up, comparing the bytes of pairs."""

import hashlib
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from bench import corpus, tokenizing
from bench.corpus import CorpusError
from bench.cpu import Usage
from bench.lanes import TAOJIN, Context, Row, make_row, run

LANE = "tokenize"
# The shards that Megatron-LM's own tool made the pair in shared/megatron from.
ORACLE_SHARDS = ("dev-00006-of-00008.parquet", "dev-00007-of-00008.parquet")
ORACLE = "the two shards of shared/megatron"


@dataclass(kw_only=True)
class Bench:
    """What the parts share. pairs: prefix of the pair that `taojin tokenize` made of a corpus, kept for later parts."""

    context: Context
    work: Path
    tokenizer: Path  # a folder
    startup: Usage | None
    pairs: dict[str, Path]

    @property
    def file(self) -> Path:
        return self.tokenizer / "tokenizer.json"

    @property
    def few(self) -> Path:
        """Two short documents: what a command costs before it has anything to do."""
        folder = self.work / "few"
        if not folder.is_dir():
            tokenizing.write_few(self.context.corpus, folder)
        return folder

    @property
    def corpora(self) -> tuple[str, ...]:
        return ("chinese", "dev") if self.context.full else ("sub",)

    @property
    def peers_corpus(self) -> str:
        return "sub" if self.context.full else ORACLE

    def folder(self, name: str) -> Path:
        if name != ORACLE:
            return self.context.folder(name)
        folder = self.work / "oracle"
        if not folder.is_dir():
            missing = [shard for shard in ORACLE_SHARDS if not (self.context.corpus / shard).is_file()]
            if missing:
                raise CorpusError(
                    f"{self.context.corpus} has no {missing[0]}, which Megatron-LM's own pair was made of"
                )
            folder.mkdir()
            for shard in ORACLE_SHARDS:
                (folder / shard).symlink_to((self.context.corpus / shard).resolve())
        return folder

    def megabytes(self, name: str) -> float:
        return corpus.text_bytes(self.folder(name))[1] / 1e6


def told_row(name: str, corpus_name: str, usage: Usage, calibration: tuple[float, float]) -> Row:
    """The row of a child that timed its own work."""
    told = json.loads(usage.stdout)
    row = make_row(LANE, name, corpus_name, told.pop("text_bytes") / 1e6, usage, calibration)
    row.cpu_seconds, row.startup_seconds, row.extra = told.pop("cpu_seconds"), 0.0, told
    row.wall_seconds = told.pop("wall_seconds", row.wall_seconds)
    return row


def best(rows: list[Row]) -> Row:
    return min(rows, key=lambda row: row.cpu_seconds)


def tokenize(bench: Bench, shards: Path, prefix: Path, name: str) -> tuple[Usage, tuple[float, float]]:
    """`taojin tokenize` in this process, into an empty folder."""
    shutil.rmtree(prefix.parent, ignore_errors=True)
    prefix.parent.mkdir(parents=True)
    command: list[str | Path] = [TAOJIN, "tokenize", "--input", shards, "--output", prefix, "--tokenizer", bench.file]
    return run(f"taojin tokenize, {name}", [*command, "--num-cpus", "0", "--quiet"])


def startup_seconds(bench: Bench) -> float:
    """CPU seconds of the same command on two documents; the first of the two runs fills caches."""
    if bench.startup is None:
        prefix = bench.work / "few-out" / "pair"
        runs = [tokenize(bench, bench.few, prefix, "two documents")[0] for _ in range(2)]
        bench.startup = min(runs, key=lambda usage: usage.cpu_seconds)
    return bench.startup.cpu_seconds


# ---- bytes -----------------------------------------------------------------------------------------------------------


def digests_told(text: str) -> dict[str, str]:
    """suffix → sha256, of the lines of a README that name a digest and a file."""
    found = re.findall(r"\b([0-9a-f]{64})\s+\S+\.(bin|idx)\s*$", text, re.MULTILINE)
    return {suffix: digest for digest, suffix in found}


def digests_of(prefix: Path) -> dict[str, str]:
    result = {}
    for suffix in ("bin", "idx"):
        with prefix.with_name(f"{prefix.name}.{suffix}").open("rb") as file:
            result[suffix] = hashlib.file_digest(file, "sha256").hexdigest()
    return result


def _compare(row: Row, what: str, found: dict[str, str], wanted: dict[str, str]) -> None:
    same = {suffix: found[suffix] == wanted[suffix] for suffix in ("bin", "idx")}
    row.extra.setdefault("compared", []).append({"with": what, "same": same, "sha256": found})


def compare_with_oracle(bench: Bench, row: Row, prefix: Path) -> None:
    readme = bench.context.corpus.parent.parent / "megatron" / "README.md"
    if not readme.is_file():
        return
    wanted = digests_told(readme.read_text(encoding="utf-8"))
    if len(wanted) != 2:
        raise CorpusError(f"{readme}: expected the sha256 of a .bin and of an .idx, found {len(wanted)}")
    _compare(row, "the pair that Megatron-LM's own tool wrote", digests_of(prefix), wanted)


def compare_with_ours(bench: Bench, row: Row, prefix: Path) -> None:
    ours = bench.pairs.get(row.corpus)
    if ours and ours.with_name(f"{ours.name}.idx").is_file():
        _compare(row, "the pair of taojin tokenize", digests_of(prefix), digests_of(ours))
