"""What the demo prints: the corpus, what went and why, examples beside what stays, a model, and where it all lies."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from taojin.demo_corpus import SOURCES, CorpusSummary
from taojin.demo_findings import Example, Findings, Tally, difference
from taojin.demo_training import Trained
from taojin.report import REASON_WORDS

WORK = "clean.work"  # what `taojin dedup` and `taojin check` take by default for an output named clean
_WIDEST = 120


def print_corpus(console: Console, summary: CorpusSummary, seconds: float) -> None:
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


def print_removals(console: Console, summary: CorpusSummary, findings: Findings, seconds: float) -> None:
    """Two tables: what went by reason, and what went by source."""
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


def print_examples(console: Console, examples: Sequence[Example]) -> None:
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


def marked(example: Example, *, plain: bool) -> tuple[Text, Text]:
    """The two texts with what differs in colour or, for output without colours, in ⟦brackets⟧."""
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


def print_training(console: Console, trained: Trained) -> None:
    """A row for every part of the run, and what the model then writes."""
    table = _table(
        "A small model, trained on these pairs", "step", "loss", "validation loss", "tokens/s", "training time"
    )
    for row in trained.rows:
        table.add_row(
            f"{row.step:,}",
            f"{row.loss:.3f}",
            f"{row.validation_loss:.3f}",
            f"{row.tokens_per_second:,.0f}",
            f"{row.seconds:,.1f} s",
        )
    console.print(table)
    shape = trained.shape
    _line(
        console,
        f"Llama of {shape.parameters / 1e6:.1f} million parameters, {shape.embedding / 1e6:.1f} of them the "
        f"embedding of {shape.vocabulary:,} tokens.",
    )
    if not trained.fell:
        _line(console, "The loss did not fall: expected lower numbers in the last row than in the first.", "bold red")
    console.print()
    _line(
        console, "What it writes: Hugging Face's generate on the exported folder, the likeliest token each time", "bold"
    )
    _line(console, _printable(f"  {trained.prompt} → {trained.continuation!r}"))
    _line(
        console,
        "It has seen little text for a few minutes: this shows that the path works, not that the model is good.",
    )
    console.print()


def print_skipped_training(console: Console, without: Sequence[str]) -> None:
    _line(
        console,
        f"No model was trained: {', '.join(without)} not installed; `make demo TRAIN=1` installs the extra `train`.",
    )
    console.print()


def print_places(console: Console, folder: Path, ledger: Path, examples: Sequence[Example]) -> None:
    """Where everything lies and what to type next; lines are not wrapped, so that they can be copied."""
    trained = (folder / "train").is_dir()
    _line(console, "Where it lies", "bold")
    for what, path in (
        ("raw corpus", folder / "corpus"),
        ("clean documents", folder / "clean"),
        ("ledger", ledger),
        ("work folder", folder / WORK),
        ("token pairs", folder / "tokens"),
        *((("run", folder / "train" / "run"), ("model", folder / "train" / "model")) if trained else ()),
    ):
        _line(console, f"  {what:<16}{path}")
    _line(console, "")
    _line(console, "What to type next", "bold")
    for example in examples:
        _line(
            console,
            f"  taojin explain {shlex.quote(str(folder / 'clean.work'))} {shlex.quote(example.removal.document_id)}",
        )
    _line(console, "  taojin dedup --help")
    _line(console, "  taojin tokenize --help")
    if trained:
        _line(console, f"  taojin train --plan --config {shlex.quote(str(folder / 'train' / 'train.yaml'))}")
        _line(console, f"  tensorboard --logdir {shlex.quote(str(folder / 'train' / 'run' / 'tensorboard'))}")
    else:
        _line(console, "  taojin train --help")


def _line(console: Console, text: str, style: str = "") -> None:
    """Never broken, so that it can be copied."""
    console.print(text, style=style, soft_wrap=True, highlight=False, markup=False)


def _table(title: str, first: str, *others: str) -> Table:
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
    return f"{text_bytes / 1e6:.2f}"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"
