"""Earlier runs as indexes (--against), and who survives: priorities, quality, --keep-none, --report-only."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from taojin.core import corpus
from tests.jobs import (
    chinese,
    dedup,
    edited,
    ledger_rows,
    make_corpus,
    output_rows,
    results,
    write_jsonl,
    write_parquet,
    write_texts,
)

RNG = random.Random(11)
OLD = [chinese(RNG, 300) for _ in range(20)]
NEW = [chinese(RNG, 300) for _ in range(20)]


def kept(output: Path) -> list[str]:
    return [row["text"] for row in output_rows(output)]


def parquet(path: Path, **columns: list[Any]) -> Path:
    count = len(next(iter(columns.values())))
    return write_parquet(path, [{name: values[i] for name, values in columns.items()} for i in range(count)])


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The WORK folder of a run on OLD."""
    folder = tmp_path_factory.mktemp("index")
    write_texts(folder / "old" / "旧.parquet", OLD)
    assert dedup(folder / "old", folder / "out").status == 0
    return folder / "out.work"


# ------------------------------------------------------------------------------------------------- --against


def test_what_the_index_holds_is_removed_here(index: Path, tmp_path: Path) -> None:
    texts = [NEW[0], OLD[3], edited(RNG, OLD[4], 3), NEW[1]]
    path = write_texts(tmp_path / "new.parquet", texts)
    counts = dedup(path, tmp_path / "out", "--against", index).counts
    assert counts["removed"] == {"exact_duplicate": 1, "near_duplicate": 1}
    assert counts["documents"] == 4
    assert kept(tmp_path / "out") == [NEW[0], NEW[1]]


def test_the_ledger_names_the_survivor_in_the_index(index: Path, tmp_path: Path) -> None:
    path = write_texts(tmp_path / "new.parquet", [NEW[0], OLD[3], edited(RNG, OLD[4], 3)])
    assert dedup(path, tmp_path / "out", "--against", index).status == 0
    rows = ledger_rows(tmp_path / "out")
    assert [(row["survivor_shard"], row["survivor_row"], row["survivor_id"]) for row in rows] == [
        ("旧.parquet", 3, "3"),
        ("旧.parquet", 4, "4"),
    ]
    assert {row["survivor_work"] for row in rows} == {str(index)}
    assert {row["shard"] for row in rows} == {"new.parquet"}


def test_a_survivor_here_has_no_work_in_the_ledger(index: Path, tmp_path: Path) -> None:
    path = write_texts(tmp_path / "new.parquet", [NEW[0], NEW[0]])
    assert dedup(path, tmp_path / "out", "--against", index).status == 0
    assert [(row["survivor_work"], row["survivor_shard"]) for row in ledger_rows(tmp_path / "out")] == [
        (None, "new.parquet")
    ]


def test_the_index_comes_first_whatever_the_priorities(index: Path, tmp_path: Path) -> None:
    """A longer and better document here goes all the same: the index is already published."""
    better = f"{OLD[5]}好"
    path = parquet(tmp_path / "new.parquet", text=[better], source=["best"], score=[9.0])
    flags = ["--against", index, "--source-priority", "best", "--quality-column", "score"]
    assert dedup(path, tmp_path / "out", *flags).counts["kept"] == 0


def test_only_survivors_of_the_index_count(tmp_path: Path) -> None:
    first = OLD[0]
    second = edited(random.Random(1), first, 6)  # J = 0.82 to the first, so it goes there
    third = edited(random.Random(2), second, 6)  # J = 0.82 to the second, 0.66 to the first
    exact = ("--verify", "exact")
    assert dedup(write_texts(tmp_path / "old.parquet", [first, second]), tmp_path / "old", *exact).counts["kept"] == 1
    pair = dedup(write_texts(tmp_path / "pair.parquet", [second, third]), tmp_path / "pair", *exact)
    assert pair.counts["kept"] == 1
    new = write_texts(tmp_path / "new.parquet", [third])
    assert dedup(new, tmp_path / "out", *exact, "--against", tmp_path / "old.work").counts["kept"] == 1


def test_two_indexes_are_both_looked_up_and_named(index: Path, tmp_path: Path) -> None:
    assert dedup(write_texts(tmp_path / "two.parquet", NEW[:5]), tmp_path / "two").status == 0
    path = write_texts(tmp_path / "new.parquet", [OLD[7], NEW[2], NEW[9]])
    outcome = dedup(path, tmp_path / "out", "--against", index, tmp_path / "two.work")
    assert outcome.counts["kept"] == 1
    assert [row["survivor_work"] for row in ledger_rows(tmp_path / "out")] == [str(index), f"{tmp_path}/two.work"]


def test_an_index_does_not_change_what_happens_among_the_others(tmp_path: Path, index: Path) -> None:
    shards = make_corpus(tmp_path / "in")
    for name, flags in (("without", []), ("with", ["--against", index])):
        assert dedup(shards, tmp_path / name, *flags).status == 0
    assert output_rows(tmp_path / "with") == output_rows(tmp_path / "without")


def test_exact_verification_reads_the_index_too(index: Path, tmp_path: Path) -> None:
    path = write_texts(tmp_path / "new.parquet", [edited(RNG, OLD[4], 3), NEW[0]])
    assert dedup(path, tmp_path / "out", "--against", index, "--verify", "exact").counts["kept"] == 1
    [row] = ledger_rows(tmp_path / "out")
    assert (row["verified"], row["survivor_id"]) == ("exact", "4")
    # Three edits change 15 of 296 shingles.
    assert row["similarity"] == pytest.approx(281 / 311, abs=1e-6)


@pytest.mark.parametrize("ranges", [1, 4, 16])
def test_an_index_may_be_smaller_or_larger_by_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranges: int) -> None:
    """Its keys are split into as many ranges as its own size asked for."""
    monkeypatch.setattr(corpus, "num_key_ranges", lambda entries: 4)
    assert dedup(write_texts(tmp_path / "old.parquet", OLD), tmp_path / "old").status == 0
    monkeypatch.setattr(corpus, "num_key_ranges", lambda entries: ranges)
    path = write_texts(tmp_path / "new.parquet", [*OLD, *(edited(RNG, text, 3) for text in OLD), *NEW])
    counts = dedup(path, tmp_path / "out", "--against", tmp_path / "old.work").counts
    assert counts["removed"] == {"exact_duplicate": 20, "near_duplicate": 20}


def test_an_index_of_other_settings_is_refused(index: Path, tmp_path: Path) -> None:
    path = write_texts(tmp_path / "new.parquet", NEW)
    dedup(path, tmp_path / "out", "--against", index, "--ngram", "4").refuses(
        2, f"--against {index}: made with other settings: ngram is 5 there, 4 here"
    )


def test_a_folder_that_is_no_index_is_refused(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "new.parquet", NEW)
    dedup(path, tmp_path / "out", "--against", tmp_path).refuses(2, f"--against {tmp_path}: no plan.json there")


def test_an_unfinished_index_is_refused(tmp_path: Path) -> None:
    old = write_texts(tmp_path / "old.parquet", OLD)
    assert dedup(old, tmp_path / "old").status == 0
    for path in (tmp_path / "old.work").glob("decide-*/stats/decisions/*"):
        path.unlink()
    path = write_texts(tmp_path / "new.parquet", NEW)
    dedup(path, tmp_path / "out", "--against", tmp_path / "old.work").refuses(2, "no finished run")


def test_of_several_decisions_one_must_be_named(tmp_path: Path) -> None:
    near = edited(random.Random(3), OLD[0], 4)  # J = 0.87
    old = write_texts(tmp_path / "old.parquet", [OLD[0], near])
    work = tmp_path / "work"
    for threshold in ("0.8", "0.95"):
        assert dedup(old, tmp_path / threshold, "--work", work, "--threshold", threshold).status == 0
    new = write_texts(tmp_path / "new.parquet", [near, NEW[0]])
    dedup(new, tmp_path / "out", "--against", work).refuses(2, "several decisions", "name one, as WORK/decide-")
    strict = next(folder for folder in work.glob("decide-*") if b"0.95" in (folder / "config.json").read_bytes())
    assert dedup(new, tmp_path / "chosen", "--against", strict, "--threshold", "0.95").counts["kept"] == 1


# ------------------------------------------------------------------------------------------------- who survives


def test_of_equals_the_first_stays(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", id=["x", "y"], text=[OLD[0], OLD[0]])
    assert dedup(path, tmp_path / "out").status == 0
    assert [row["id"] for row in output_rows(tmp_path / "out")] == ["x"]


def test_the_longer_one_stays(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "a.parquet", [OLD[0], OLD[0] + "补充"])
    assert dedup(path, tmp_path / "out").status == 0
    assert kept(tmp_path / "out") == [OLD[0] + "补充"]


@pytest.mark.parametrize("same", [True, False], ids=["equal texts", "similar texts"])
def test_source_priority_decides_first(tmp_path: Path, same: bool) -> None:
    texts = [OLD[0] if same else OLD[0] + "补充", OLD[0], OLD[0]]
    path = parquet(tmp_path / "a.parquet", text=texts, source=["web", "book", "wiki"], score=[9, 1, 5])
    flags = ["--source-priority", "book", "wiki", "--quality-column", "score"]
    assert dedup(path, tmp_path / "out", *flags).status == 0
    assert [row["source"] for row in output_rows(tmp_path / "out")] == ["book"]


def test_sources_that_are_not_listed_come_last(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", text=[OLD[0]] * 3, source=["web", None, "wiki"])
    assert dedup(path, tmp_path / "out", "--source-priority", "wiki").status == 0
    assert [row["source"] for row in output_rows(tmp_path / "out")] == ["wiki"]


def test_a_priority_without_a_source_column_is_refused(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", text=OLD)
    dedup(path, tmp_path / "out", "--source-priority", "wiki").refuses(2, "--source-priority needs a source column")


@pytest.mark.parametrize("same", [True, False], ids=["equal texts", "similar texts"])
def test_the_higher_quality_stays(tmp_path: Path, same: bool) -> None:
    texts = [OLD[0] if same else OLD[0] + "补充", OLD[0], OLD[0]]
    path = parquet(tmp_path / "a.parquet", text=texts, score=[0.2, 0.9, 0.5])
    assert dedup(path, tmp_path / "out", "--quality-column", "score").status == 0
    assert [row["score"] for row in output_rows(tmp_path / "out")] == [0.9]


@pytest.mark.parametrize("missing", [None, float("nan")], ids=["null", "NaN"])
def test_a_missing_quality_comes_last(tmp_path: Path, missing: float | None) -> None:
    path = parquet(tmp_path / "a.parquet", text=[OLD[0]] * 3, score=[missing, -5.0, missing])
    assert dedup(path, tmp_path / "out", "--quality-column", "score").status == 0
    assert [row["score"] for row in output_rows(tmp_path / "out")] == [-5.0]


def test_quality_may_be_whole_numbers(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", text=[OLD[0]] * 3, score=[3, 7, None])
    assert dedup(path, tmp_path / "out", "--quality-column", "score").status == 0
    assert [row["score"] for row in output_rows(tmp_path / "out")] == [7]


def test_the_quality_of_a_jsonl_record_is_one_of_its_fields(tmp_path: Path) -> None:
    records = [{"text": OLD[0], "score": score} for score in (0.25, "high", None, 0.5)]
    path = write_jsonl(tmp_path / "a.jsonl", records)
    assert dedup(path, tmp_path / "out", "--quality-column", "score").status == 0
    assert [row["score"] for row in output_rows(tmp_path / "out")] == [0.5]


def test_the_other_columns_of_a_survivor_are_its_own(tmp_path: Path) -> None:
    records = [{"text": text, "meta": {"n": n, "tags": ["x"] * n}, "flag": n % 2 == 0} for n, text in enumerate(OLD)]
    path = write_parquet(tmp_path / "a.parquet", records)
    assert dedup(path, tmp_path / "out").status == 0
    ours = ("cluster", "cluster_size", "component")
    assert [{k: v for k, v in row.items() if k not in ours} for row in output_rows(tmp_path / "out")] == records


def test_a_survivor_says_whom_it_stands_for(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "a.parquet", [OLD[0], OLD[1], OLD[0], OLD[0]])
    assert dedup(path, tmp_path / "out").status == 0
    rows = output_rows(tmp_path / "out")
    assert [(row["cluster"], row["cluster_size"], row["component"]) for row in rows] == [(0, 3, 0), (1, 1, 1)]


# ------------------------------------------------------------------------------------------------- --keep-none


def test_keep_none_drops_both_sides_of_every_pair(tmp_path: Path) -> None:
    texts = [OLD[0], OLD[0], OLD[1], edited(RNG, OLD[1], 2), OLD[2], "短文", "短文", "别的"]
    path = write_texts(tmp_path / "a.parquet", texts)
    outcome = dedup(path, tmp_path / "out", "--keep-none")
    assert kept(tmp_path / "out") == [OLD[2], "别的"]
    counts = outcome.counts
    assert counts["documents"] == counts["kept"] + sum(counts["removed"].values())


def test_keep_none_names_a_partner_for_each(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "a.parquet", [OLD[0], OLD[0], OLD[1], edited(RNG, OLD[1], 2)])
    assert dedup(path, tmp_path / "out", "--keep-none").status == 0
    partners = {row["row"]: row["survivor_row"] for row in ledger_rows(tmp_path / "out")}
    assert partners == {0: 1, 1: 0, 2: 3, 3: 2}


# ------------------------------------------------------------------------------------------------- --report-only


def test_a_report_writes_no_text(tmp_path: Path) -> None:
    shards = make_corpus(tmp_path / "in")
    outcome = dedup(shards, tmp_path / "out", "--report-only")
    assert outcome.counts["removed"]["near_duplicate"] > 0
    assert not (tmp_path / "out").exists()
    assert ledger_rows(tmp_path / "out")


def test_a_report_needs_no_output(tmp_path: Path) -> None:
    from tests.jobs import taojin

    shards = make_corpus(tmp_path / "in")
    arguments = ["dedup", "--input", shards, "--work", tmp_path / "w", "--report-only", "--num-cpus", "0"]
    outcome = taojin(*arguments, "--quiet", "--json")
    assert json.loads(outcome.out)["output"] == ""


def test_a_run_after_a_report_reuses_its_decisions(tmp_path: Path) -> None:
    shards = make_corpus(tmp_path / "in")
    assert dedup(shards, tmp_path / "out", "--report-only").status == 0
    work = tmp_path / "out.work"
    decided = {path: path.stat().st_mtime_ns for path in work.rglob("*.arrow") if path.parent.name in _TASK_FILES}
    assert decided
    assert dedup(shards, tmp_path / "out").status == 0
    assert decided == {path: path.stat().st_mtime_ns for path in decided}
    assert dedup(shards, tmp_path / "direct").status == 0
    assert results(tmp_path / "out") == results(tmp_path / "direct")


_TASK_FILES = ("scan", "bands", "twins", "pairs", "near-verdicts", "decisions")
