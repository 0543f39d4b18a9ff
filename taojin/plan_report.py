"""What `taojin plan` prints: the estimates, the LSH curve as a table, warnings, and what was assumed.

In: the values of `taojin.planning`. Out: lines of at most LINE_WIDTH columns.
"""

from math import ceil
from textwrap import wrap
from typing import Any

from taojin.core.progress import duration

LINE_WIDTH = 80


def plan_lines(value: dict[str, Any]) -> list[str]:
    known = "" if value["documents_are_known"] else "estimated: JSONL tells only when it is read"
    largest = f"the largest {size(value['largest_unit_bytes'])}"
    rates = value["sample"]["mb_per_cpu_second"]
    speed = ", ".join(f"{what} {rate:,.0f}" for what, rate in rates.items())
    stages = ", ".join(f"{stage} {duration(seconds)}" for stage, seconds in value["cpu_seconds"].items())
    rows = [
        ("shards", f"{value['shards']:,}", f"{size(value['disk_bytes'])} on disk"),
        ("documents", f"{value['documents']:,}", known),
        ("text", size(value["text_bytes"]), f"of {size(value['column_bytes'])} of all columns"),
        ("units", f"{value['units']:,}", largest),
        ("key ranges", f"{value['key_ranges']:,}", "tasks of the decide stage"),
        ("sidecars", size(value["sidecar_bytes"]), f"{value['sidecar_bytes_per_document']:.0f} bytes a document"),
        ("WORK", size(value["work_bytes"]), "sidecars, decisions and ledger, on disk"),
        ("OUT", size(value["output_bytes"]), "at most, zstd" if not value["report_only"] else "--report-only"),
        ("shuffle", size(value["shuffle_bytes"]), "keys, written once and read once"),
        ("task memory", size(value["task_memory_bytes"]), f"of a {value['largest_task']} task, one per CPU"),
        ("driver memory", size(value["driver_memory_bytes"]), ""),
        ("CPU time", duration(value["cpu_seconds_total"]), stages),
        ("wall time", duration(value["wall_seconds"]), f"on {value['num_cpus']:,} CPUs, start-up included"),
    ]
    if value["money"] is not None:
        price = f"at {value['price_per_cpu_hour']:g} {value['currency']} per CPU-hour"
        rows.append(("money", f"{value['money']:,.2f} {value['currency']}", price))
    if value["unreadable_shards"]:
        rows.insert(1, ("left out", f"{value['unreadable_shards']:,}", "unreadable shards (--skip-bad-units)"))
    name_width, width = max(len(row[0]) for row in rows), max(len(row[1]) for row in rows)
    lines: list[str] = []
    for name, number, note in rows:
        indent = " " * (name_width + width + 4)
        lines += wrap(f"{name:<{name_width}}  {number:>{width}}  {note}", LINE_WIDTH, subsequent_indent=indent)
    lines += ["", *wrap(f"measured here, MB of text per CPU-second: {speed}", LINE_WIDTH), "", *curve_lines(value)]
    for warning in value["warnings"]:
        lines += wrap(f"warning: {warning}", LINE_WIDTH, subsequent_indent="  ")
    lines += ["", "assumed"]
    for assumption in value["assumptions"]:
        lines += wrap(f"- {assumption}", LINE_WIDTH, subsequent_indent="  ")
    return lines


def curve_lines(value: dict[str, Any]) -> list[str]:
    """The LSH curve as a table, with its direction."""
    bands, rows = value["bands"], value["rows"]
    lines = [
        f"LSH: {bands} bands × {rows} rows of {value['num_hashes']} sketch values, threshold {value['threshold']:g}",
        "  more bands = looser (finds more), more rows = stricter (finds less)",
        f"  effective threshold (1/{bands})^(1/{rows}) = {value['effective_threshold']:.3f}",
        f"  similarity  proposed  + accepted by {value['verify']}",
    ]
    for pair in value["curve"]:
        mark = "  ← threshold" if abs(pair["similarity"] - value["threshold"]) < 1e-9 else ""
        lines.append(f"  {pair['similarity']:>10.2f}  {pair['proposed']:>8.4f}  {pair['accepted']:>10.4f}{mark}")
    return lines


def size(count: float) -> str:
    """Bytes in units of 10^3."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{ceil(count)} bytes" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")
