"""The whole job on real text, explained: `python -m taojin.demo [--folder DIR]`.

Gathers a corpus from this Python installation (`taojin.demo_corpus`), removes its duplicates with embedded
Ray, checks the output, and prints what went and why, three removals beside what stayed in their place, and
where everything lies.

Outputs: FOLDER/corpus (the raw Parquet shards), FOLDER/clean (the clean ones), FOLDER/clean.work (plan, sidecars,
ledger). The tables go to stdout, progress to stderr.
A rerun replaces these three folders, and only where the marker file says that the demo made them.
"""

import argparse
import difflib
import json
import re
import shlex
import shutil
import sys
import time
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from taojin.core.errors import InvariantError, OutputError, TaojinError
from taojin.demo_corpus import CHINESE_SOURCES, SOURCES, CorpusSummary, gather

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

MARKER = ".taojin-demo.json"
_WORK = "clean.work"  # what `taojin dedup` and `taojin check` take by default for an output named clean
_MADE = ("corpus", "clean", _WORK)
_MB = 1_000_000
_UNIT_MB = 4  # small, so that this small corpus is several units

_GATHERING = "Gathering texts from this Python installation: half a minute at most"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m taojin.demo", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("--folder", type=Path, default=Path("demo-output"), help="where it all goes (demo-output)")
    parser.add_argument("--limit-mb", type=float, help="gather about this much text only (default: about 30 MB)")
    parser.add_argument("--num-cpus", type=int, help="CPUs for the embedded Ray; 0 runs without Ray (default: all)")
    arguments = parser.parse_args(argv)
    if arguments.limit_mb is not None and not arguments.limit_mb > 0:
        parser.error(f"--limit-mb: expected a number above 0, found {arguments.limit_mb:g}")
    if arguments.num_cpus is not None and arguments.num_cpus < 0:
        parser.error(f"--num-cpus: expected 0 or more, found {arguments.num_cpus}")
    try:
        return run(arguments.folder, limit_mb=arguments.limit_mb, num_cpus=arguments.num_cpus)
    except TaojinError as error:
        print(f"taojin demo: {error}", file=sys.stderr)
        return error.exit_status
    except OSError as error:
        print(f"taojin demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("taojin demo: interrupted; run again to start over", file=sys.stderr)
        return 1


def run(folder: Path, *, limit_mb: float | None, num_cpus: int | None) -> int:
    """Gather, dedup, check, explain; returns the exit status of the check. Raises TaojinError."""
    from rich.console import Console

    from taojin import cli
    from taojin.dedup.config import DedupConfig
    from taojin.pipeline import run_dedup

    corpus, clean, work = (folder / name for name in _MADE)
    config = DedupConfig(input=(str(corpus),), output=str(clean), work=str(work), unit_mb=_UNIT_MB, num_cpus=num_cpus)
    prepare_folder(folder)
    console, progress = Console(highlight=False), Console(stderr=True)
    if not progress.is_terminal:
        progress.print(_GATHERING)
    with progress.status(_GATHERING):
        start = time.monotonic()
        summary = gather(corpus, limit_mb=limit_mb)
        gather_seconds = time.monotonic() - start
    print_corpus(console, summary, gather_seconds)

    start = time.monotonic()
    result = run_dedup(config)
    dedup_seconds = time.monotonic() - start

    ledger = work / config.decide_name / "ledger"
    findings = read_findings(corpus, ledger)
    if findings.total().documents != sum(result.counts["removed"].values()):
        raise InvariantError(
            f"{ledger}: expected {sum(result.counts['removed'].values()):,} documents of the corpus, "
            f"found {findings.total().documents:,}"
        )
    examples = choose_examples(corpus, findings)
    print_removals(console, summary, findings, dedup_seconds)
    print_examples(console, examples)
    console.print("The output, re-opened and checked", style="bold")
    status = cli.main(["check", str(clean)])
    console.print()
    print_places(console, folder, ledger, examples)
    return status


# ---------------------------------------------------------------------------- the folder


def prepare_folder(folder: Path) -> None:
    """Make `folder`, or clear what an earlier demo left in it.

    Raises OutputError when it holds files and no marker, for then it is somebody else's.
    """
    marker = folder / MARKER
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file; the demo needs a folder: name another one with --folder")
    if folder.is_dir() and any(folder.iterdir()):
        if not marker.is_file():
            raise OutputError(
                f"{folder} is not empty and the demo did not make it (there is no {MARKER} in it): "
                "name another folder with --folder"
            )
        for name in _MADE:
            made = folder / name
            if made.is_symlink():
                raise OutputError(f"{made} is a link, which the demo never makes: move it away")
            if made.exists():
                shutil.rmtree(made)
    folder.mkdir(parents=True, exist_ok=True)
    marker.write_text(json.dumps({"made_by": "taojin.demo", "replaced_by_a_rerun": list(_MADE)}) + "\n")


# ---------------------------------------------------------------------------- reading the ledger


@dataclass(kw_only=True)
class Tally:
    documents: int = 0
    text_bytes: int = 0

    def add(self, documents: int, text_bytes: int) -> None:
        self.documents += documents
        self.text_bytes += text_bytes


class Place(NamedTuple):
    """A document of the corpus: a shard's file name and a row in it."""

    shard: str
    row: int


class Removal(NamedTuple):
    """One row of the ledger, with the length of the removed text. `similarity` is 1 for equal ones."""

    reason: str
    similarity: float
    verified: str
    source: str
    text_bytes: int
    document: Place
    document_id: str
    survivor: Place
    survivor_id: str


@dataclass(kw_only=True)
class Findings:
    """What the ledger says, summed: by (reason, source), and the removals fit to be shown as examples."""

    removed: dict[tuple[str, str], Tally] = field(default_factory=dict)
    candidates: list[Removal] = field(default_factory=list)

    def total(self, *, reason: str | None = None, source: str | None = None) -> Tally:
        """Sum over everything, or over one reason, one source, or both."""
        total = Tally()
        for (its_reason, its_source), tally in self.removed.items():
            if reason in (None, its_reason) and source in (None, its_source):
                total.add(tally.documents, tally.text_bytes)
        return total

    @property
    def reasons(self) -> list[str]:
        """The reasons that occur, in the order in which `taojin dedup` names them."""
        from taojin.report import REASON_WORDS

        return sorted({reason for reason, _ in self.removed}, key=list(REASON_WORDS).index)


# An example has to be read at a glance: bytes of UTF-8, from a few lines to what half a terminal holds.
# Folded duplicates, the second range, are short by nature: longer texts are compared by their shingles.
_EXAMPLE_BYTES = (range(120, 900), range(15, 900))


def read_findings(corpus: Path, ledger: Path) -> Findings:
    """Join the ledger with the corpus. Reads the corpus once, a row group at a time, and the ledger shard by shard."""
    import pyarrow.compute as pc
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    findings = Findings()
    entries = ds.dataset(ledger, format="parquet", exclude_invalid_files=False)
    columns = ["row", "id", "reason", "similarity", "verified", "survivor_shard", "survivor_row", "survivor_id"]
    for shard in sorted(corpus.glob("*.parquet")):
        removed = entries.to_table(columns=columns, filter=ds.field("shard") == shard.name).sort_by("row")
        rows = removed["row"].to_pylist()
        values = removed.to_pylist()
        done = first_row = 0
        with pq.ParquetFile(shard) as file:
            for row_group in range(file.num_row_groups):
                table = file.read_row_group(row_group, columns=["text", "source"])
                lengths = pc.binary_length(table["text"]).to_pylist()
                sources = table["source"].to_pylist()
                while done < len(rows) and rows[done] < first_row + table.num_rows:
                    place = rows[done] - first_row
                    _add(findings, values[done], shard.name, sources[place], lengths[place] or 0)
                    done += 1
                first_row += table.num_rows
    return findings


def _add(findings: Findings, entry: dict[str, Any], shard: str, source: str, text_bytes: int) -> None:
    findings.removed.setdefault((entry["reason"], source), Tally()).add(1, text_bytes)
    if entry["survivor_shard"] is not None and text_bytes in _EXAMPLE_BYTES[entry["reason"] == "folded_duplicate"]:
        similarity = entry["similarity"]
        removal = Removal(
            reason=entry["reason"],
            similarity=1.0 if similarity is None else similarity,
            verified=entry["verified"],
            source=source,
            text_bytes=text_bytes,
            document=Place(shard, entry["row"]),
            document_id=entry["id"],
            survivor=Place(entry["survivor_shard"], entry["survivor_row"]),
            survivor_id=entry["survivor_id"],
        )
        findings.candidates.append(removal)


def read_texts(corpus: Path, places: Iterable[Place]) -> dict[Place, str]:
    """The texts at `places`; only the row groups that hold one are read."""
    import pyarrow.parquet as pq

    wanted: dict[str, set[int]] = {}
    for place in places:
        wanted.setdefault(place.shard, set()).add(place.row)
    texts = {}
    for shard, rows in sorted(wanted.items()):
        with pq.ParquetFile(corpus / shard) as file:
            first_row = 0
            for row_group in range(file.num_row_groups):
                num_rows = file.metadata.row_group(row_group).num_rows
                here = sorted(row for row in rows if first_row <= row < first_row + num_rows)
                if here:
                    column = file.read_row_group(row_group, columns=["text"])["text"]
                    texts.update({Place(shard, row): column[row - first_row].as_py() for row in here})
                first_row += num_rows
    return texts


# ---------------------------------------------------------------------------- examples


class Example(NamedTuple):
    title: str
    removal: Removal
    removed_text: str
    survivor_text: str


_CONSIDERED = 300  # removals of each kind whose texts are read to choose the example


def choose_examples(corpus: Path, findings: Findings) -> list[Example]:
    """Three removals worth looking at: English and Chinese near-duplicates, and one whose folded text is the same.

    Where nothing is the same only once folded, an exact duplicate stands in. A kind without any is left out.
    """
    near = [removal for removal in findings.candidates if removal.reason == "near_duplicate"]
    differing = sorted((removal for removal in near if removal.similarity < 1), key=lambda it: abs(it.similarity - 0.9))
    folded = [removal for removal in findings.candidates if removal.reason == "folded_duplicate"]
    # From a dozen symbols on, texts that fold to the same are near-duplicates of similarity 1 (as some others are).
    folded += [removal for removal in near if removal.similarity == 1]
    exact = [removal for removal in findings.candidates if removal.reason == "exact_duplicate"]
    kinds = {
        "A near-duplicate in English": [removal for removal in differing if removal.source not in CHINESE_SOURCES],
        "A near-duplicate in Chinese": [removal for removal in differing if removal.source in CHINESE_SOURCES],
        "The same text once folded": folded,
        "The same bytes": exact,
    }
    chosen: dict[str, Example] = {}
    for title, removals in kinds.items():
        considered = removals[:_CONSIDERED]
        texts = read_texts(corpus, [place for removal in considered for place in (removal.document, removal.survivor)])
        offered = [Example(title, removal, texts[removal.document], texts[removal.survivor]) for removal in considered]
        if removals is folded:
            offered = [offer for offer in offered if _bare(offer.removed_text) == _bare(offer.survivor_text)]
        if offered:
            chosen[title] = min(offered, key=_dullness)
    return list(chosen.values())[:3]


def _bare(text: str) -> str:
    """The letters and digits of a text, case and width ignored: folding, near enough to choose an example."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).casefold()))


def _dullness(example: Example) -> tuple[float, Place]:
    """Smaller is more telling: a few lines, about four differences, not of punctuation alone, and different files."""
    differences = [removed + survivor for same, removed, survivor in difference(*example[2:]) if not same]
    text_bytes = len(example.removed_text.encode()) + len(example.survivor_text.encode())
    dullness = abs(text_bytes - 700) / 300 + abs(len(differences) - 4) / 2
    if not any(_bare(words) for words in differences):
        dullness += 2
    if _file_of(example.removal.document_id) == _file_of(example.removal.survivor_id):
        dullness += 1
    return dullness, example.removal.document


def _file_of(document_id: str) -> str:
    return re.split(r"::|:\d", document_id)[0]


_WORD = re.compile(r"[a-zA-Z0-9]+|\s+|.", re.DOTALL)


def difference(removed: str, survivor: str) -> list[tuple[bool, str, str]]:
    """Align two texts word by word (Chinese: character by character): (whether the same, of removed, of survivor).

    The second and third parts, joined, are the two texts. White space is the same as other white space, and
    belongs to a difference that goes on behind it.
    """
    a, b = _WORD.findall(removed), _WORD.findall(survivor)
    spaceless_a, spaceless_b = ([word if word.strip() else " " for word in words] for words in (a, b))
    blocks: list[tuple[bool, str, str]] = []
    opcodes = difflib.SequenceMatcher(None, spaceless_a, spaceless_b, autojunk=False).get_opcodes()
    for number, (operation, a_start, a_end, b_start, b_end) in enumerate(opcodes):
        of_a, of_b = "".join(a[a_start:a_end]), "".join(b[b_start:b_end])
        same = operation == "equal" and (bool(of_a.strip()) or number in (0, len(opcodes) - 1))
        if blocks and not same and not blocks[-1][0]:
            _, before_a, before_b = blocks.pop()
            of_a, of_b = before_a + of_a, before_b + of_b
        blocks.append((same, of_a, of_b))
    return blocks


# ---------------------------------------------------------------------------- printing


def print_corpus(console: "Console", summary: CorpusSummary, seconds: float) -> None:
    table = _table("The corpus", "source", "documents", "MB", "share of MB")
    for source in SOURCES:
        given = summary.sources[source]
        share = _percent(given.text_bytes, summary.text_bytes)
        table.add_row(source, f"{given.documents:,}", _mb(given.text_bytes), share)
    table.add_section()
    table.add_row("all", f"{summary.documents:,}", _mb(summary.text_bytes), "100 %")
    console.print(table)
    chinese = _percent(summary.chinese_text_bytes, summary.text_bytes)
    console.print(f"Gathered in {seconds:.0f} s; {chinese} of it is Chinese.", highlight=False)
    for why, number in summary.left_out.items():
        console.print(f"Left out: {number:,} {why}.", highlight=False)
    console.print()


def print_removals(console: "Console", summary: CorpusSummary, findings: Findings, seconds: float) -> None:
    """Two tables: what went by reason, and what went by source."""
    from taojin.report import REASON_WORDS

    table = _table("What went, and why", "reason", "documents", "share", "MB", "share of MB")
    for reason in findings.reasons:
        gone = findings.total(reason=reason)
        table.add_row(REASON_WORDS[reason], *_numbers(gone, summary.documents, summary.text_bytes))
    table.add_section()
    table.add_row("removed", *_numbers(findings.total(), summary.documents, summary.text_bytes))
    kept = Tally(documents=summary.documents, text_bytes=summary.text_bytes)
    kept.add(-findings.total().documents, -findings.total().text_bytes)
    table.add_row("kept", *_numbers(kept, summary.documents, summary.text_bytes))
    console.print(table)
    console.print(f"Scanned, decided and written in {seconds:.0f} s.\n")

    table = _table("From where", "source", "documents", "removed", "share", "MB removed", "share of MB")
    for source in SOURCES:
        gone, given = findings.total(source=source), summary.sources[source]
        numbers = _numbers(gone, given.documents, given.text_bytes)
        table.add_row(source, f"{given.documents:,}", *numbers)
    console.print(table)
    again = summary.sources["newspaper-segmented"].documents
    if again and findings.total(source="newspaper-segmented").documents == again:
        console.print("newspaper-segmented is the newspaper once more, under another annotation:")
        console.print("with the tags dropped nothing is left that tells the two apart.")
    console.print()


def print_examples(console: "Console", examples: Sequence[Example]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    for example in examples:
        removal = example.removal
        title = example.title
        if removal.reason == "near_duplicate":
            how = "measured" if removal.verified == "exact" else "estimated"
            title += f", similarity {removal.similarity:.2f} ({how})"
        table = Table(
            title=title,
            title_justify="left",
            title_style="bold",
            box=box.SQUARE,
            expand=True,
            width=min(console.width, _WIDEST),
            show_lines=True,
        )
        table.add_column("removed", ratio=1, overflow="fold")
        table.add_column("stays in its place", ratio=1, overflow="fold")
        table.add_row(Text(removal.document_id, style="dim"), Text(removal.survivor_id, style="dim"))
        table.add_row(*marked(example, plain=console.color_system is None or console.no_color))
        console.print(table)
        console.print()


def marked(example: Example, *, plain: bool) -> tuple["Text", "Text"]:
    """The two texts with what differs in colour or, for output without colours, in ⟦brackets⟧."""
    from rich.text import Text

    removed, survivor = Text(), Text()
    for same, *parts in difference(_printable(example.removed_text), _printable(example.survivor_text)):
        for text, part, style in zip((removed, survivor), parts, ("bold red", "bold green"), strict=True):
            if same or not plain or not part.strip():
                text.append(part, "" if same else style)
            else:
                core = part.strip()
                before, after = part.split(core, 1)
                text.append(f"{before}⟦{core}⟧{after}", style)
    return removed, survivor


def _printable(text: str) -> str:
    """Without control characters, which a terminal would obey."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "\ufffd", text)


def print_places(console: "Console", folder: Path, ledger: Path, examples: Sequence[Example]) -> None:
    """Where everything lies and what to type next; lines are not wrapped, so that they can be copied."""

    def line(text: str, style: str = "") -> None:
        console.print(text, style=style, soft_wrap=True, highlight=False, markup=False)

    line("Where it lies", "bold")
    for what, path in (
        ("raw corpus", folder / "corpus"),
        ("clean documents", folder / "clean"),
        ("ledger", ledger),
        ("work folder", folder / _WORK),
    ):
        line(f"  {what:<16}{path}")
    line("")
    line("What to type next", "bold")
    for example in examples:
        line(f"  taojin explain {shlex.quote(str(folder / _WORK))} {shlex.quote(example.removal.document_id)}")
    line("  taojin dedup --help")


_WIDEST = 120


def _table(title: str, first: str, *others: str) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _numbers(tally: Tally, documents: int, text_bytes: int) -> tuple[str, str, str, str]:
    return (
        f"{tally.documents:,}",
        _percent(tally.documents, documents),
        _mb(tally.text_bytes),
        _percent(tally.text_bytes, text_bytes),
    )


def _mb(text_bytes: int) -> str:
    return f"{text_bytes / _MB:.2f}"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"


if __name__ == "__main__":
    sys.exit(main())
