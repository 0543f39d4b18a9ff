"""What `taojin explain` prints: the facts in two columns, and the texts beside each other.

In: the facts of `taojin.explain`. Out: stdout, as wide as the terminal, or the pipe's 80 columns, allow.
"""

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from taojin.core.status import EMPTY
from taojin.core.uris import last_part
from taojin.report import number
from taojin.side_by_side import EXCERPT_SHOWN, cut_short, fold_cells, marked_differences, styled, visible

MIN_WIDTH, MAX_WIDTH = 40, 110


def print_explanation(facts: dict[str, Any]) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    console.width = max(MIN_WIDTH, min(console.width, MAX_WIDTH))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for label, value in fact_lines(facts):
        style = "bold" if label in ("kept", "removed") else ""
        grid.add_row(label, Text(visible(value), style=style))
    console.print(grid)
    if facts["in_its_favour"]:
        console.print()
        console.print(_favour_table(facts))
    evidence = facts["evidence"]
    if evidence:
        for passage in evidence["passages"] if not evidence["same_bytes"] else ():
            console.print()
            i, j = passage["at"]
            console.print(f"shared: {passage['characters']:,} characters, from {i:,} here, from {j:,} there")
            for line in fold_cells([(visible(passage["text"]), False)], console.width - 2):
                console.print(Text("  ").append_text(styled(line)), no_wrap=True)
        console.print()
        _print_excerpts(console, facts)


def fact_lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """(label, value) lines, in reading order."""
    document, survivor, evidence = facts["document"], facts["survivor"], facts["evidence"]
    named = document["id"] != f"{document['shard']}#{document['row']}"
    lines = [
        ("document", document["id"] if named else ""),
        ("where", f"{document['shard']}#{document['row']} (position {document['position']})"),
        ("source", document["source"] or ""),
        ("length", f"{document['characters']:,} characters, {document['bytes']:,} bytes"),
        ("kept" if facts["kept"] else "removed", facts["why"]),
    ]
    if document["status"] >= EMPTY:
        lines[3] = ("length", f"{document['bytes']:,} bytes")
    if facts["reason"]:
        lines.append(("reason", facts["reason"]))
    lines += [("fails", f"{failure['reason']}: {failure['statement']}") for failure in facts["failures"]]
    lines.append(("question", facts["question"] or ""))
    if survivor:
        label = "survivor" if survivor["kept"] else "partner"
        place = f"{survivor['shard']}#{survivor['row']}"
        where = f"position {survivor['position']}" + (f" of {survivor['work']}" if survivor["work"] else "")
        name = f"{survivor['id']}, " if survivor["id"] != place else ""
        lines.append((label, f"{name}{place} ({where})"))
    if facts["kept"] and facts["cluster_size"] > 1:
        lines.append(("cluster", f"{facts['cluster_size']:,}: itself and what went in its favour"))
    size = facts["component_size"]
    if size > 1:
        lines.append(("component", f"{number(size, 'document')} that similar pairs link, itself included"))
    if evidence:
        lines += _evidence_lines(evidence)
    if facts["no_evidence_because"]:
        lines.append(("texts", f"not shown: {facts['no_evidence_because']}"))
    decision = last_part(facts["decide"])
    if facts["other_decisions"]:
        decision += f", the newest; also there: {', '.join(facts['other_decisions'])}"
    lines.append(("decision", decision))
    if facts["same_id"]:
        others = facts["same_id"]
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        lines.append(("same id", f"also on {', '.join(others[:3])}{more}; name those by shard#row"))
    return [(label, value) for label, value in lines if value]


def _evidence_lines(evidence: dict[str, Any]) -> list[tuple[str, str]]:
    here, there = evidence["shingles"]
    lines = []
    if evidence["jaccard"] is not None:
        lines.append(
            (
                "measured",
                f"exact Jaccard {evidence['jaccard']:.3f}: {evidence['shared_shingles']:,} shingles shared, "
                f"of {here:,} here and {there:,} there",
            )
        )
    here, there = evidence["characters"]
    if evidence["same_bytes"]:
        lines.append(("texts", "the same bytes"))
        return lines
    text = f"{here:,} characters here, {there:,} there; they part at character {evidence['first_difference']:,}"
    if max(here, there) > evidence["compared_characters"]:
        text += f"; passages sought in the first {evidence['compared_characters']:,}"
    lines.append(("texts", text))
    return lines


def _favour_table(facts: dict[str, Any]) -> Table:
    total = facts["cluster_size"] - 1
    shown = facts["in_its_favour"]
    title = f"went in its favour ({len(shown)} of {total:,})" if total > len(shown) else "went in its favour"
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(title, overflow="fold")
    for column in ("chars", "similarity", "known by", "exact"):
        table.add_column(column, justify="right", no_wrap=True)
    for other in shown:
        place = f"{other['shard']}#{other['row']}"
        name = place if other["id"] == place else f"{other['id']} ({place})"
        exact = "" if other["exact_jaccard"] is None else f"{other['exact_jaccard']:.3f}"
        table.add_row(visible(name), f"{other['characters']:,}", f"{other['similarity']:.3f}", other["verified"], exact)
    return table


def _print_excerpts(console: Console, facts: dict[str, Any]) -> None:
    evidence = facts["evidence"]
    start = evidence["excerpt_at"]
    left, right = (visible(excerpt) for excerpt in evidence["excerpts"])
    if evidence["same_bytes"]:
        for line in fold_cells([(left[:EXCERPT_SHOWN], False)], console.width):
            console.print(styled(line), no_wrap=True)
        return
    width = (console.width - 3) // 2
    marked = marked_differences(left, right)
    sides = [fold_cells(cut_short(spans), width) for spans in marked]
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim", pad_edge=False)
    name = "survivor" if facts["survivor"]["kept"] else "partner"
    for title in ("this document", name):
        table.add_column(f"{title}, from character {start:,}", width=width, no_wrap=True)
    for i in range(max(map(len, sides))):
        table.add_row(*(styled(side[i]) if i < len(side) else Text("") for side in sides))
    console.print(table)
