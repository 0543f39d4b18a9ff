"""The lane `tokenize` of the benchmark: `taojin tokenize` and `taojin merge` beside gigatoken, Megatron-LM, datatrove.

Runs commands like the lanes of `bench.lanes`, and compares bytes of pairs where two tools had the same input. What
gigatoken and the reference library cost alone, and how inputs are made, is in `bench.tokenizing`; the peers are in
`bench.tokenize_peers`. A part that cannot run here is a row that says why.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench import tokenizing
from bench.corpus import CorpusError
from bench.cpu import Usage
from bench.lanes import TAOJIN, Context, PeerError, Row, fresh, make_row, run
from bench.tokenize_bench import LANE, ORACLE, Bench, best, compare_with_oracle, startup_seconds, tokenize, told_row
from bench.tokenize_peers import datatrove, megatron

ROW_GROUP_BYTES = 1_000_000_000
TURNS = {"chinese": 3}  # what the target is about; others have 2
MERGED_COPIES = (3, 12)
MEMORY_FOLDER = Path("/dev/shm")
MEMORY_ROOM = 2 * MERGED_COPIES[-1]  # times the pair: it and its merge, and as much again


def tokenize_lane(context: Context) -> list[Row]:
    """`taojin tokenize` and `taojin merge`: speed beside bare encoders and peers, bytes, memory, long runs."""
    tokenizer = tokenizing.tokenizer_folder()
    bench = Bench(context=context, work=fresh(LANE), tokenizer=tokenizer, startup=None, pairs={})
    parts: dict[str, Callable[[Bench], list[Row]]] = {
        "floor": _floor,
        "in turns": _turns,
        "taojin tokenize": _ours,
        "Megatron-LM's own pair": _oracle,
        "the reference library": _reference,
        "Megatron-LM": megatron,
        "datatrove": datatrove,
        "taojin merge": merge,
        "long runs": _runs,
        "one row group": _row_group,
    }
    rows: list[Row] = []
    for name, part in parts.items():
        try:
            rows += part(bench)
        except (PeerError, CorpusError, RuntimeError) as error:
            rows.append(Row(lane=LANE, name=name, reason=str(error)))
    shutil.rmtree(bench.work)
    return rows


# ---- speed -----------------------------------------------------------------------------------------------------------


def _floor(bench: Bench) -> list[Row]:
    rows = []
    for name in bench.corpora:
        child: list[str | Path] = [sys.executable, "-m", "bench.floor", "--mode", "read", "--input", bench.folder(name)]
        label = "floor: read the text column"
        rows.append(best([told_row(label, name, *run(f"{label} of {name}", child)) for _ in range(2)]))
    return rows


def _bare(bench: Bench, part: str, name: str) -> Row:
    label = {"gigatoken": "gigatoken encode_batch", "reference": "tokenizers encode_batch_fast"}[part]
    child: list[str | Path] = [sys.executable, "-m", "bench.tokenizing", part, "--input", bench.folder(name)]
    return told_row(f"{label}, nothing else", name, *run(f"{part} on {name}", [*child, "--tokenizer", bench.file]))


def _reference(bench: Bench) -> list[Row]:
    return [_bare(bench, "reference", ORACLE)]


def _our_row(bench: Bench, name: str, prefix: Path) -> Row:
    usage, calibration = tokenize(bench, bench.folder(name), prefix, name)
    row = make_row(LANE, "taojin tokenize", name, bench.megabytes(name), usage, calibration)
    row.startup_seconds = startup_seconds(bench)
    row.extra["bytes"] = {path.name: path.stat().st_size for path in prefix.parent.glob("*.*") if path.is_file()}
    bench.pairs[name] = prefix
    return row


def _turns(bench: Bench) -> list[Row]:
    """gigatoken's encode call alone and our command, in turns: a slow minute of the machine spoils both alike."""
    rows = []
    reason = ""
    for name in bench.corpora:
        bare, ours = [], []
        for _ in range(TURNS.get(name, 2)):
            bare.append(_bare(bench, "gigatoken", name))
            try:
                if not reason:
                    ours.append(_our_row(bench, name, bench.work / f"ours-{name}" / "pair"))
            except RuntimeError as error:
                reason = str(error)
        rows.append(best(bare))
        if not ours:
            rows.append(Row(lane=LANE, name="taojin tokenize", corpus=name, reason=reason))
            continue
        row = best(ours)
        apart, whole = row.rate_without_startup / rows[-1].rate, row.rate / rows[-1].rate
        row.extra |= {"of_gigatoken": apart, "of_gigatoken_whole": whole}
        row.extra["note"] = (
            f"taojin tokenize on {name}: {100 * apart:.0f} % of gigatoken's encode call, {100 * whole:.0f} % with its "
            f"start-up of {row.startup_seconds:.1f} CPU s."
        )
        rows.append(row)
    return rows


def _ours(bench: Bench) -> list[Row]:
    """The command on what the peers get."""
    if bench.peers_corpus in (*bench.corpora, ORACLE):
        return []
    prefix = bench.work / "ours-peers" / "pair"
    return [best([_our_row(bench, bench.peers_corpus, prefix) for _ in range(2)])]


def _oracle(bench: Bench) -> list[Row]:
    """The command on what Megatron-LM's own pair was made of."""
    prefix = bench.work / "ours-oracle" / "pair"
    row = _our_row(bench, ORACLE, prefix)
    compare_with_oracle(bench, row, prefix)
    return [row]


# ---- taojin merge ----------------------------------------------------------------------------------------------------


def merge(bench: Bench) -> list[Row]:
    """The largest pair joined to itself: at two sizes on disk, and in memory, where no disk is what is measured."""
    source = bench.pairs.get(bench.corpora[-1])
    if source is None:
        raise RuntimeError("no pair to merge: taojin tokenize did not run")
    few = tokenizing.link_pairs(bench.work / "few-out" / "pair", bench.work / "few-pairs", 2)
    startup = [_merged(bench.work, few, "two tiny pairs")[0] for _ in range(3)]
    rows = [row for copies in MERGED_COPIES for row in _merge_at(bench.work, "on disk", source, copies, startup)]
    if MEMORY_FOLDER.is_dir() and shutil.disk_usage(MEMORY_FOLDER).free > MEMORY_ROOM * _size(source):
        with tempfile.TemporaryDirectory(dir=MEMORY_FOLDER) as name:
            pair = Path(name) / "source" / source.name
            pair.parent.mkdir()
            for path in source.parent.glob(f"{source.name}.*"):
                if path.is_file():
                    shutil.copy(path, pair.parent)
            rows += _merge_at(Path(name), "in memory", pair, MERGED_COPIES[-1], startup)
    return rows


def _size(pair: Path) -> int:
    return sum(pair.with_name(pair.name + suffix).stat().st_size for suffix in (".bin", ".idx"))


def _merged(place: Path, prefixes: list[Path], what: str) -> tuple[Usage, tuple[float, float]]:
    """`taojin merge` in one process; the output is removed."""
    folder = place / "merged"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    command: list[str | Path] = [TAOJIN, "merge", "--input", *prefixes, "--output", folder / "pair"]
    try:
        return run(f"taojin merge, {what}", [*command, "--num-cpus", "0", "--quiet"])
    finally:
        shutil.rmtree(folder)


def _merge_at(place: Path, where: str, source: Path, copies: int, startup: list[Usage]) -> list[Row]:
    """The merge of `copies` of a pair, in memory the faster of two, and the same bytes simply copied and synced."""
    prefixes = tokenizing.link_pairs(source, place / "pairs", copies)
    files = [prefix.with_name(prefix.name + suffix) for prefix in prefixes for suffix in (".bin", ".idx")]
    child: list[str | Path] = [sys.executable, "-m", "bench.tokenizing", "copy", "--output", place / "copied"]
    corpus_name = f"{copies} pairs"
    floor = told_row(f"floor: copy and sync, {where}", corpus_name, *run(f"copy {where}", [*child, "--input", *files]))
    floor.extra["mb_per_wall_second"] = floor.text_mb / floor.wall_seconds
    rounds = 1 if where == "on disk" else 2
    tries = [_merged(place, prefixes, f"{corpus_name} {where}") for _ in range(rounds)]
    usage, calibration = min(tries, key=lambda pair: pair[0].wall_seconds)
    row = make_row(LANE, f"taojin merge, {where}", corpus_name, copies * _size(source) / 1e6, usage, calibration)
    row.startup_seconds = min(one.cpu_seconds for one in startup)
    wall = usage.wall_seconds - min(one.wall_seconds for one in startup)
    row.extra["mb_per_wall_second"] = row.text_mb / max(0.1, wall)  # as exactly as `bench.cpu` looks
    ours, plain = row.extra["mb_per_wall_second"], floor.extra["mb_per_wall_second"]
    row.extra["note"] = (
        f"{row.name}, {row.text_mb:,.0f} MB of .bin and .idx: {ours:,.0f} MB a second of wall, start-up apart; "
        f"the same bytes copied and synced: {plain:,.0f}."
    )
    return [floor, row]


# ---- hard shapes -----------------------------------------------------------------------------------------------------


def _runs(bench: Bench) -> list[Row]:
    """The same Han characters as short texts, as runs of 400,000 and as one run of 12 MB."""
    startup = startup_seconds(bench)
    characters = tokenizing.HAN_CHARACTERS if bench.context.full else 3 * tokenizing.HAN_LENGTHS[1]
    han = tokenizing.han_only(bench.context.corpus, characters)
    rows = []
    for length in (length for length in tokenizing.HAN_LENGTHS if length <= characters):
        folder = bench.work / f"han-{length}"
        size = tokenizing.write_runs(han, length, folder)
        name = f"Han runs of {length:,} characters"
        tries = []
        for _ in range(2):
            usage, calibration = tokenize(bench, folder, bench.work / "han-out" / "pair", name)
            tries.append(make_row(LANE, "taojin tokenize", name, size / 1e6, usage, calibration))
        rows.append(best(tries))
        rows[-1].startup_seconds = startup
        rows[-1].extra["times_short"] = rows[0].rate_without_startup / rows[-1].rate_without_startup
    return rows


def _row_group(bench: Bench) -> list[Row]:
    """Peak memory on a shard that is one row group of a gigabyte."""
    wanted = ROW_GROUP_BYTES if bench.context.full else ROW_GROUP_BYTES // 10
    folder = bench.work / "row-group"
    folder.mkdir()
    size = tokenizing.write_row_group(bench.folder(bench.corpora[-1]), folder / "shard.parquet", wanted)
    usage, calibration = tokenize(bench, folder, bench.work / "row-group-out" / "pair", "one row group")
    row = make_row(LANE, "taojin tokenize", f"one row group of {size / 1e6:,.0f} MB", size / 1e6, usage, calibration)
    row.startup_seconds = bench.startup.cpu_seconds if bench.startup else 0.0
    return [row]
