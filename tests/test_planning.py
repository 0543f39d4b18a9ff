import gzip
import random
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from taojin.core.errors import ConfigError, InputError
from taojin.dedup.config import DedupConfig
from taojin.pipeline import run_dedup
from taojin.plan_report import plan_lines
from taojin.planning import RAY_START_SECONDS, PlanConfig, plan_values, run_plan, wall_seconds
from tests.jobs import chinese


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planning") / "in"
    folder.mkdir()
    chooser = random.Random(3)
    for shard in range(3):
        texts = [chinese(chooser, chooser.randrange(50, 600)) for _ in range(200)]
        table = pa.table({"id": [f"{shard}-{row}" for row in range(200)], "text": texts})
        pq.write_table(table, folder / f"{shard}.parquet", row_group_size=50)
    return folder


@pytest.fixture(scope="module")
def value(shards: Path) -> dict[str, Any]:
    return plan_values(PlanConfig(input=(str(shards),), num_cpus=4, sample_mb=0.2, unit_mb=0.1))


# ---------------------------------------------------------------------------- the corpus


def test_parquet_rows_are_known_without_reading(value: dict[str, Any]) -> None:
    assert (value["shards"], value["documents"], value["documents_are_known"]) == (3, 600, True)


def test_text_bytes_are_estimated_from_the_sample(shards: Path, value: dict[str, Any]) -> None:
    texts = [text for path in shards.iterdir() for text in pq.read_table(path).column("text").to_pylist()]
    assert value["text_bytes"] == pytest.approx(sum(len(text.encode()) for text in texts), rel=0.1)


def test_units_sidecars_and_output_are_those_of_a_real_run(shards: Path, value: dict[str, Any], tmp_path: Path) -> None:
    out, work = tmp_path / "out", tmp_path / "work"
    run_dedup(DedupConfig(input=(str(shards),), output=str(out), work=str(work), num_cpus=0, quiet=True, unit_mb=0.1))
    plan = orjson.loads((work / "plan.json").read_bytes())
    assert value["units"] == len(plan["units"])
    assert value["key_ranges"] == plan["num_ranges"]
    kinds = ("scan", "bands", "exact", "ids")
    sidecars = sum(path.stat().st_size for kind in kinds for path in (work / kind).iterdir())
    framing = 3000 * value["units"] * len(kinds)  # Arrow's headers: much for a hundred documents, nothing for 100,000
    assert sidecars - framing <= value["sidecar_bytes"] <= sidecars
    written = sum(path.stat().st_size for path in out.glob("part-*.parquet"))
    assert value["output_bytes"] == pytest.approx(written, rel=0.15)


def test_jsonl_documents_are_estimated_and_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = b"".join(orjson.dumps({"text": "文字" * 50, "n": row}) + b"\n" for row in range(1000))
    (tmp_path / "a.jsonl").write_bytes(lines)
    assert run_plan(PlanConfig(input=(str(tmp_path),), sample_mb=0.05)) == 0
    out = capsys.readouterr().out
    assert "estimated" in out
    found = plan_values(PlanConfig(input=(str(tmp_path),)))
    assert found["documents"] == pytest.approx(1000, rel=0.02)
    assert found["text_bytes"] == pytest.approx(300_000, rel=0.05)


def test_compressed_jsonl_says_what_is_assumed_of_it(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "abc"}\n' * 100))
    found = plan_values(PlanConfig(input=(str(tmp_path),)))
    assert any("compressed" in assumption for assumption in found["assumptions"])


def test_a_corpus_without_a_document_is_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "a.parquet")
    assert run_plan(PlanConfig(input=(str(tmp_path),))) == 0
    assert capsys.readouterr().out


def test_nulls_and_invalid_bytes_do_not_stop_the_plan(tmp_path: Path) -> None:
    broken = pa.array([b"\xff\xfe", None, "好".encode()], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": broken}), tmp_path / "a.parquet")
    assert plan_values(PlanConfig(input=(str(tmp_path),)))["documents"] == 3


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"text_column": "body"}, InputError),
        ({"id_column": "key"}, InputError),
        ({"bands": 40, "rows": 6}, ConfigError),
        ({"threshold": 1.5}, ConfigError),
    ],
)
def test_what_dedup_would_refuse_is_refused(shards: Path, settings: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        plan_values(PlanConfig(input=(str(shards),), **settings))


def test_no_output_is_needed_and_nothing_is_written(shards: Path, value: dict[str, Any]) -> None:
    assert value["documents"]
    assert sorted(path.name for path in shards.parent.iterdir()) == ["in"]


# ---------------------------------------------------------------------------- time and money


def test_more_cpus_take_less_time_and_never_less_than_the_largest_unit() -> None:
    def wall(num_cpus: int) -> float:
        return wall_seconds({"scan": 1000.0}, num_cpus, 100, 0.05, 8, ray=True) - RAY_START_SECONDS

    assert [wall(num_cpus) for num_cpus in (1, 10, 1000)] == pytest.approx([1000, 100, 50])


def test_money_is_cpus_times_hours_times_price(shards: Path) -> None:
    found = plan_values(PlanConfig(input=(str(shards),), num_cpus=8, price_per_cpu_hour=0.5, sample_mb=0.1))
    assert found["money"] == pytest.approx(8 * found["wall_seconds"] / 3600 * 0.5)


def test_report_only_writes_nothing(shards: Path) -> None:
    found = plan_values(PlanConfig(input=(str(shards),), report_only=True, sample_mb=0.1))
    assert found["output_bytes"] == 0
    assert "write" not in found["cpu_seconds"]


def test_exact_verification_costs_another_reading(shards: Path) -> None:
    assert "settle" in plan_values(PlanConfig(input=(str(shards),), verify="exact", sample_mb=0.1))["cpu_seconds"]


def test_the_printed_plan_fits_80_columns_and_says_what_it_assumes(
    shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_plan(PlanConfig(input=(str(shards),), num_cpus=2, price_per_cpu_hour=0.3, bands=4, rows=20))
    out = capsys.readouterr().out
    assert all(len(line) <= 80 for line in out.splitlines())
    for words in ("wall time", "CNY", "more bands = looser", "more rows = stricter", "warning: 4 bands", "assumed"):
        assert words in out


def test_a_plan_of_hours_on_a_fast_machine_fits_80_columns_too(value: dict[str, Any]) -> None:
    stages = ("scan", "decide", "settle", "write")
    large = {
        **value,
        "cpu_seconds": dict.fromkeys(stages, 3_599_999.0),
        "cpu_seconds_total": 4 * 3_599_999.0,
        "documents": 10**11,
        "sample": {**value["sample"], "mb_per_cpu_second": dict.fromkeys(("read", *stages), 12_345.0)},
    }
    assert all(len(line) <= 80 for line in plan_lines(large))


def test_json_is_one_object(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_plan(PlanConfig(input=(str(shards),), as_json=True, sample_mb=0.1))
    assert orjson.loads(capsys.readouterr().out)["documents"] == 600
