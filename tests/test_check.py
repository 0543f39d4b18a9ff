import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from taojin.check import CheckConfig, check_output, run_check
from taojin.core.errors import InputError
from taojin.core.storage import Folder, file_checksum
from taojin.dedup.config import DedupConfig
from taojin.pipeline import run_dedup
from taojin.proofs import Report
from tests.jobs import chinese

PROVED_ALONE = ["manifest", "files", "columns", "conservation"]
PROVED = [*PROVED_ALONE, "work", "checksums", "ledger", "clusters", "output", "input", "near"]


def write_shards(folder: Path, seed: int = 7) -> None:
    """Two shards of 60 documents: 40 texts, of which some come again as they are, slightly edited, or folded."""
    chooser = random.Random(seed)
    texts = [chinese(chooser, 200) for _ in range(40)]
    texts += texts[:20]  # the same bytes
    texts += [text[:90] + "改" + text[91:] for text in texts[20:40]]  # one character in 200: J about 0.95
    texts += [f"短文{i}，你好" for i in range(10)] + [f"短文{i} 你好" for i in range(10)]
    texts += [chinese(chooser, 300) for _ in range(18)] + ["", "。"]
    chooser.shuffle(texts)
    folder.mkdir(parents=True)
    for shard in range(2):
        part = texts[60 * shard : 60 * shard + 60]
        ids = [f"doc-{seed}-{60 * shard + row}" for row in range(60)]
        table = pa.table({"id": ids, "text": part, "source": ["web"] * 60, "score": [0.5] * 59 + [float("nan")]})
        pq.write_table(table, folder / f"shard-{shard}.parquet", row_group_size=20)


def dedup(root: Path, **settings: Any) -> Path:
    values: dict[str, Any] = {"input": (str(root / "in"),), "output": str(root / "out"), "num_cpus": 0, "quiet": True}
    run_dedup(DedupConfig(**{**values, "unit_mb": 0.02, "part_mb": 0.03, "row_group_mb": 0.01, **settings}))
    return root / "out"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("finished")
    write_shards(root / "in")
    dedup(root)
    return root


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of a finished run that a test may tamper with: out, out.work; the input stays where it was."""
    for name in ("out", "out.work"):
        shutil.copytree(finished / name, tmp_path / name)
    return tmp_path


def check(out: Path, sample: int = 50) -> Report:
    return check_output(Folder(str(out)), None, sample)


def broken(report: Report) -> dict[str, str]:
    """invariant → file and detail, of those that are broken."""
    return {f.invariant: f"{f.file}: {f.detail}" for f in report.findings if f.status == "broken"}


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(path)), path)


def restate(run: Path) -> None:
    """Give the manifest the sizes and checksums of the parts as they are: a tamperer who knows it."""
    path = run / "out" / "_manifest.json"
    manifest = orjson.loads(path.read_bytes())
    for entry in manifest["parts"]:
        entry["bytes"] = (run / "out" / entry["name"]).stat().st_size
        entry["xxh3"] = file_checksum(Folder(str(run / "out")), entry["name"])
    path.write_bytes(orjson.dumps(manifest))


def decide_folder(run: Path) -> Path:
    return next(path for path in (run / "out.work").iterdir() if path.name.startswith("decide-"))


def ledger_file(run: Path) -> Path:
    """A ledger file with a near-duplicate in it."""
    files = sorted((decide_folder(run) / "ledger").iterdir())
    return next(path for path in files if "near_duplicate" in pq.read_table(path).column("reason").to_pylist())


def forge_ledger(run: Path, change: Callable[[dict[str, list[Any]]], None]) -> Path:
    """Change a ledger file's columns, and its entry in the stats with it."""
    path = ledger_file(run)
    table = pq.read_table(path)
    columns = table.to_pydict()
    change(columns)
    pq.write_table(pa.table(columns, schema=table.schema), path)
    stats = decide_folder(run) / "stats" / "decisions" / f"{path.stem}.json"
    value = orjson.loads(stats.read_bytes())
    value["files"]["ledger"].update(bytes=path.stat().st_size, xxh3=file_checksum(Folder(str(path.parent)), path.name))
    stats.write_bytes(orjson.dumps(value))
    return path


# ---------------------------------------------------------------------------- a sound output


def test_a_finished_output_has_every_invariant_proved(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_check(CheckConfig(output=str(finished / "out"))) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[:-1]] == PROVED
    assert all(line.startswith("proved") for line in lines[:-1])
    assert lines[-1] == f"all {len(PROVED)} invariants hold"


def test_two_checks_print_the_same(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_check(CheckConfig(output=str(finished / "out"), sample=5))
    first = capsys.readouterr().out
    run_check(CheckConfig(output=str(finished / "out"), sample=5))
    assert capsys.readouterr().out == first


def test_json_holds_the_findings_and_the_measurement(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_check(CheckConfig(output=str(finished / "out"), as_json=True)) == 0
    value = orjson.loads(capsys.readouterr().out)
    assert value["ok"] is True
    assert [finding["invariant"] for finding in value["findings"]] == PROVED
    assert value["near_duplicates"]["near_duplicates"] == 20
    assert value["near_duplicates"]["lowest"] > 0.9


def test_an_output_alone_is_checked_as_far_as_it_goes(run: Path) -> None:
    shutil.rmtree(run / "out.work")
    report = check(run / "out")
    assert not report.broken
    assert [f.invariant for f in report.findings if f.status == "proved"] == PROVED_ALONE
    assert [f.invariant for f in report.findings if f.status == "left out"] == ["work"]


def test_a_missing_input_leaves_out_the_texts(tmp_path: Path) -> None:
    write_shards(tmp_path / "in")
    dedup(tmp_path)
    (tmp_path / "in" / "shard-0.parquet").unlink()
    report = check(tmp_path / "out")
    assert not report.broken
    assert {f.invariant for f in report.findings if f.status == "left out"} == {"input"}


def test_a_changed_input_leaves_out_the_texts(tmp_path: Path) -> None:
    write_shards(tmp_path / "in")
    dedup(tmp_path)
    rewrite(tmp_path / "in" / "shard-0.parquet", lambda table: table.slice(1))
    assert not check(tmp_path / "out").broken


def test_keep_none_is_proved_the_other_way_round(tmp_path: Path) -> None:
    write_shards(tmp_path / "in")
    dedup(tmp_path, keep_none=True)
    assert not broken(check(tmp_path / "out"))


def test_exact_verification_is_proved_on_the_sample(tmp_path: Path) -> None:
    write_shards(tmp_path / "in")
    dedup(tmp_path, verify="exact")
    report = check(tmp_path / "out")
    assert not broken(report)
    assert report.measured["share"] == 1.0


def test_removals_in_favour_of_an_index_are_counted_and_looked_up(finished: Path, tmp_path: Path) -> None:
    write_shards(tmp_path / "in", seed=8)
    shutil.copy(finished / "in" / "shard-0.parquet", tmp_path / "in" / "old.parquet")
    dedup(tmp_path, against=(str(finished / "out.work"),))
    report = check(tmp_path / "out")
    assert not broken(report)
    assert "index" in {f.invariant for f in report.findings if f.status == "proved"}


def test_jsonl_and_an_empty_output_hold_too(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"text": ""}\n{"text": null}\n', encoding="utf-8")
    dedup(tmp_path)
    assert not broken(check(tmp_path / "out"))


def test_what_killed_attempts_left_in_out_goes_before_the_run_ends(tmp_path: Path) -> None:
    write_shards(tmp_path / "in")
    (tmp_path / "out").mkdir()
    left = tmp_path / "out" / f"part-00000.parquet.{'ab' * 16}.tmp"
    left.write_bytes(b"torn")
    dedup(tmp_path)
    assert not left.exists()


# ---------------------------------------------------------------------------- tampering with OUT


def test_a_flipped_byte_names_the_part(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = run / "out" / "part-00001.parquet"
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    assert run_check(CheckConfig(output=str(run / "out"))) == 1
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("BROKEN"))
    assert "files" in line
    assert "part-00001.parquet" in line


def test_a_missing_part_is_named(run: Path) -> None:
    (run / "out" / "part-00000.parquet").unlink()
    found = broken(check(run / "out"))
    assert "part-00000.parquet" in found["files"]
    assert "no file" in found["files"]


def test_a_foreign_file_is_named(run: Path) -> None:
    (run / "out" / "notes.txt").write_text("mine")
    assert "notes.txt" in broken(check(run / "out"))["files"]


def test_swapped_rows_are_out_of_order_even_under_a_forged_manifest(run: Path) -> None:
    rewrite(run / "out" / "part-00000.parquet", lambda table: table.take([1, 0, *range(2, len(table))]))
    restate(run)
    found = broken(check(run / "out"))
    assert "out of order" in found["columns"]
    assert "part-00000.parquet" in found["columns"]
    assert "part-00000.parquet" in found["output"]


def test_a_dropped_row_breaks_conservation_even_under_a_forged_manifest(run: Path) -> None:
    rewrite(run / "out" / "part-00000.parquet", lambda table: table.slice(1))
    restate(run)
    manifest = orjson.loads((run / "out" / "_manifest.json").read_bytes())
    manifest["parts"][0]["rows"] -= 1
    (run / "out" / "_manifest.json").write_bytes(orjson.dumps(manifest))
    assert "conservation" in broken(check(run / "out"))


def test_a_changed_text_is_found_by_the_sample(run: Path) -> None:
    def change(table: pa.Table) -> pa.Table:
        texts = [f"{text} " for text in table.column("text").to_pylist()]
        return table.set_column(1, table.schema.field("text"), pa.array(texts, pa.large_string()))

    for part in sorted((run / "out").glob("part-*.parquet")):
        rewrite(part, change)
    restate(run)
    found = broken(check(run / "out"))
    assert list(found) == ["input"]
    assert "'text'" in found["input"]


def test_a_file_that_is_not_parquet_is_named(run: Path) -> None:
    (run / "out" / "part-00000.parquet").write_bytes(b"PAR1 not at all PAR1")
    assert "part-00000.parquet" in broken(check(run / "out"))["columns"]


def test_a_missing_column_is_named(run: Path) -> None:
    rewrite(run / "out" / "part-00000.parquet", lambda table: table.drop_columns(["component"]))
    assert "component" in broken(check(run / "out"))["columns"]


def test_a_manifest_that_is_not_there_means_the_run_did_not_end(run: Path) -> None:
    (run / "out" / "_manifest.json").unlink()
    assert "resumes" in broken(check(run / "out"))["manifest"]


def test_a_damaged_manifest_is_named(run: Path) -> None:
    (run / "out" / "_manifest.json").write_text("{")
    assert "_manifest.json" in broken(check(run / "out"))["manifest"]


# ---------------------------------------------------------------------------- tampering with WORK


def test_a_removed_ledger_file_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = ledger_file(run)
    path.unlink()
    assert run_check(CheckConfig(output=str(run / "out"))) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("BROKEN")]
    assert [line.split()[1] for line in lines] == ["checksums", "ledger"]
    assert all(f"ledger/{path.name}" in line for line in lines)


def test_a_flipped_byte_in_a_sidecar_is_named(run: Path) -> None:
    path = run / "out.work" / "scan" / "000000.arrow"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert "scan/000000.arrow" in broken(check(run / "out"))["checksums"]


def test_a_flipped_byte_in_what_the_driver_wrote_is_named(run: Path) -> None:
    path = decide_folder(run) / "resolved.arrow"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert "resolved.arrow" in broken(check(run / "out"))["checksums"]


def test_a_removal_without_a_ledger_row_is_found_under_forged_checksums(run: Path) -> None:
    def change(columns: dict[str, list[Any]]) -> None:
        for column in columns.values():
            column.pop()

    path = forge_ledger(run, change)
    found = broken(check(run / "out"))
    assert path.name in found["ledger"]
    assert "lack a row" in found["ledger"]


def test_a_similarity_below_the_threshold_is_found_under_forged_checksums(run: Path) -> None:
    def change(columns: dict[str, list[Any]]) -> None:
        columns["similarity"][columns["reason"].index("near_duplicate")] = 0.5

    assert "similarity" in broken_ledger(run, change)


def test_another_survivor_is_found_under_forged_checksums(run: Path) -> None:
    def change(columns: dict[str, list[Any]]) -> None:
        columns["survivor_position"][columns["reason"].index("near_duplicate")] += 1

    assert "survivor_position" in broken_ledger(run, change)


def broken_ledger(run: Path, change: Callable[[dict[str, list[Any]]], None]) -> str:
    forge_ledger(run, change)
    return broken(check(run / "out"))["ledger"]


def test_the_work_folder_of_another_run_is_refused(run: Path, tmp_path: Path) -> None:
    write_shards(tmp_path / "other" / "in", seed=9)
    other = dedup(tmp_path / "other")
    report = check_output(Folder(str(run / "out")), f"{other}.work", 10)
    assert "not the plan" in broken(report)["work"]


# ---------------------------------------------------------------------------- no output of ours


def test_a_folder_that_is_no_output_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected an output"):
        run_check(CheckConfig(output=str(tmp_path)))


def test_a_work_folder_is_recognised(finished: Path) -> None:
    with pytest.raises(InputError, match="this is a WORK folder"):
        run_check(CheckConfig(output=str(finished / "out.work")))


def test_a_work_folder_that_was_named_must_be_there(finished: Path) -> None:
    with pytest.raises(InputError, match="--work"):
        run_check(CheckConfig(output=str(finished / "out"), work=str(finished / "nowhere")))
