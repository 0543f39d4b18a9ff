"""Same input, same config → the same bytes: for any number of workers, any order of inputs, any cut into units."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.jobs import dedup, finish, ledger_rows, make_corpus, output_rows, process, results, write_jsonl

UNITS = ("--unit-mb", "0.02")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("identity") / "in", shards=4)


@pytest.fixture(scope="module")
def expected(corpus: Path) -> Path:
    output = corpus.parent / "expected"
    counts = dedup(corpus, output, *UNITS).counts
    assert counts["units"] > 10
    assert {"exact_duplicate", "near_duplicate", "folded_duplicate"} <= counts["removed"].keys()
    return output


@pytest.mark.ray
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_do_not_change_a_byte(corpus: Path, expected: Path, tmp_path: Path, workers: int) -> None:
    arguments = ["dedup", "--input", corpus, "--output", tmp_path / "out", *UNITS, "--quiet", "--num-cpus", workers]
    outcome = finish(process(*arguments))
    assert outcome.status == 0, outcome.err
    assert outcome.err == ""
    assert results(tmp_path / "out") == results(expected)


def test_the_order_of_inputs_does_not_change_a_byte(corpus: Path, expected: Path, tmp_path: Path) -> None:
    shards = sorted(corpus.iterdir(), reverse=True)
    assert dedup([*shards[1:], shards[0], shards[2]], tmp_path / "out", *UNITS).status == 0
    assert results(tmp_path / "out") == results(expected)


def test_a_pattern_does_not_change_a_byte(corpus: Path, expected: Path, tmp_path: Path) -> None:
    assert dedup(f"{corpus}/*.parquet", tmp_path / "out", *UNITS).status == 0
    assert results(tmp_path / "out") == results(expected)


def test_another_place_does_not_change_a_byte(expected: Path, tmp_path: Path) -> None:
    make_corpus(tmp_path / "elsewhere" / "数据 1", shards=4)
    assert dedup(tmp_path / "elsewhere" / "数据 1", tmp_path / "out", *UNITS).status == 0
    # plan.json says where the shards lie; everything made from it does not.
    ours, theirs = results(tmp_path / "out"), results(expected)
    assert ours["work"].pop("plan.json") != theirs["work"].pop("plan.json")
    ours["output"].pop("_taojin.json")
    theirs["output"].pop("_taojin.json")
    assert ours == theirs


def test_running_again_does_not_change_a_byte(corpus: Path, expected: Path) -> None:
    before = results(expected)
    assert dedup(corpus, expected, *UNITS).status == 0
    assert results(expected) == before


@pytest.mark.parametrize("unit_mb", ["0.001", "0.07", "128"])
def test_units_do_not_change_the_documents(corpus: Path, expected: Path, tmp_path: Path, unit_mb: str) -> None:
    assert dedup(corpus, tmp_path / "out", "--unit-mb", unit_mb).status == 0
    assert output_rows(tmp_path / "out") == output_rows(expected)


@pytest.mark.parametrize("unit_mb", ["0.001", "0.07", "128"])
def test_units_do_not_change_the_ledger(corpus: Path, expected: Path, tmp_path: Path, unit_mb: str) -> None:
    assert dedup(corpus, tmp_path / "out", "--unit-mb", unit_mb, "--report-only").status == 0
    assert ledger_rows(tmp_path / "out") == ledger_rows(expected)


@pytest.mark.parametrize("flags", [["--verify", "exact"], ["--keep-none"], ["--sketch", "datasketch"]], ids=" ".join)
def test_units_do_not_change_the_documents_of_other_settings(corpus: Path, tmp_path: Path, flags: list[str]) -> None:
    for name, unit_mb in (("a", "0.02"), ("b", "128")):
        assert dedup(corpus, tmp_path / name, "--unit-mb", unit_mb, *flags).status == 0
    assert output_rows(tmp_path / "a") == output_rows(tmp_path / "b")
    assert ledger_rows(tmp_path / "a") == ledger_rows(tmp_path / "b")


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Flags that measure, judge and edit."""
    preset = tmp_path_factory.mktemp("preset") / "mine.yaml"
    preset.write_text(
        "name: mine\nrules:\n- {reason: short, signal: chars, at_least: 9}\n"
        "- {reason: latin, signal: latin_share, at_most: 0.5, languages: [en]}\n"
    )
    measured = ["--words", "jieba", "--personal", "--repair", "--score", "han_share", "--mask", "mobile"]
    return ["--quality-preset", str(preset), *measured]


@pytest.mark.ray
def test_workers_and_units_do_not_change_what_rules_decide(corpus: Path, tmp_path: Path, judged: list[str]) -> None:
    counts = dedup(corpus, tmp_path / "one", *UNITS, *judged).counts
    assert {"mine.short", "near_duplicate"} <= counts["removed"].keys()
    arguments = ["dedup", "--input", corpus, "--output", tmp_path / "two", *UNITS, *judged, "--quiet", "--num-cpus", 2]
    outcome = finish(process(*arguments))
    assert outcome.status == 0, outcome.err
    assert results(tmp_path / "two") == results(tmp_path / "one")
    assert dedup(corpus, tmp_path / "three", "--unit-mb", "128", *judged).status == 0
    assert output_rows(tmp_path / "three") == output_rows(tmp_path / "one")
    assert ledger_rows(tmp_path / "three") == ledger_rows(tmp_path / "one")


def test_parts_do_not_change_the_documents(corpus: Path, expected: Path, tmp_path: Path) -> None:
    assert dedup(corpus, tmp_path / "out", *UNITS, "--part-mb", "0.02", "--row-group-mb", "0.01").status == 0
    assert len(list((tmp_path / "out").glob("part-*.parquet"))) > 3
    assert output_rows(tmp_path / "out") == output_rows(expected)


def without_positions(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: row[key] for key in ("id", "text", "cluster_size")} for row in rows]


def test_the_cut_into_shards_does_not_change_the_documents(corpus: Path, expected: Path, tmp_path: Path) -> None:
    whole = pa.concat_tables([pq.read_table(path) for path in sorted(corpus.iterdir())])
    pq.write_table(whole, tmp_path / "one.parquet")
    assert dedup(tmp_path / "one.parquet", tmp_path / "out").status == 0
    assert without_positions(output_rows(tmp_path / "out")) == without_positions(output_rows(expected))


def test_the_format_of_shards_does_not_change_the_documents(corpus: Path, expected: Path, tmp_path: Path) -> None:
    for path in sorted(corpus.iterdir()):
        write_jsonl(tmp_path / "in" / f"{path.stem}.jsonl", pq.read_table(path).to_pylist())
    assert dedup(tmp_path / "in", tmp_path / "out").status == 0
    assert without_positions(output_rows(tmp_path / "out")) == without_positions(output_rows(expected))


def test_what_stays_is_a_fixed_point(expected: Path, tmp_path: Path) -> None:
    """Cleaning the clean output removes nothing: `cluster` … are ours and are left out first."""
    (tmp_path / "in").mkdir()
    for part in expected.glob("part-*.parquet"):
        table = pq.read_table(part).drop_columns(["cluster", "cluster_size", "component"])
        pq.write_table(table, tmp_path / "in" / part.name)
    assert dedup(tmp_path / "in", tmp_path / "out").counts["removed"] == {}
