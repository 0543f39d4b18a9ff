"""Bad input: one clear line and the right exit status, or a counted quarantine. Nothing lost, nothing hangs."""

import contextlib
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.jobs import (
    Outcome,
    chinese,
    conserved,
    dedup,
    files,
    ledger_rows,
    make_corpus,
    output_rows,
    peak_memory_mb,
    results,
    string_array,
    taojin,
    write_jsonl,
    write_parquet,
    write_texts,
)

RNG = random.Random(5)
PLAIN = [chinese(RNG, 100) for _ in range(20)]


def damaged(path: Path, texts: list[str]) -> Path:
    """A Parquet file of three row groups; a page of the second cannot be decompressed."""
    write_texts(path, texts, row_group_size=-(-len(texts) // 3), compression="zstd", use_dictionary=False)
    column = pq.read_metadata(path).row_group(1).column(1)
    content = bytearray(path.read_bytes())
    middle = column.data_page_offset + column.total_compressed_size // 2
    content[middle : middle + 40] = bytes(40)
    path.write_bytes(content)
    return path


# ------------------------------------------------------------------------------------------------- what to read


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    dedup(tmp_path / "nowhere", tmp_path / "out").refuses(2, f"{tmp_path}/nowhere: no such file or folder")


def test_a_pattern_without_a_match_is_named(tmp_path: Path) -> None:
    dedup(tmp_path / "*.parquet", tmp_path / "out").refuses(2, "*.parquet: no file matches this pattern")


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    dedup(tmp_path / "in", tmp_path / "out").refuses(2, f"{tmp_path}/in: expected .parquet, .jsonl", "found none")


def test_a_folder_without_shards_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "notes.txt").write_text("文本")
    dedup(tmp_path / "in", tmp_path / "out").refuses(2, f"{tmp_path}/in: expected .parquet, .jsonl", "found none")


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("文本")
    dedup(tmp_path / "notes.txt", tmp_path / "out").refuses(2, "notes.txt: expected a file named .parquet")


def test_an_unknown_scheme_is_refused(tmp_path: Path) -> None:
    dedup("gopher://here/shards", tmp_path / "out").refuses(2, "gopher://here/shards: ")


def test_refusing_the_input_leaves_nothing_behind(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in" / "a.parquet", [{"content": "文本"}])
    assert dedup(tmp_path / "in", tmp_path / "out").status == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


# ------------------------------------------------------------------------------------------------- columns


def test_a_missing_text_column_lists_the_columns_there_are(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", [{"key": 1, "content": "文本"}])
    dedup(path, tmp_path / "out").refuses(
        2, "a.parquet: no column 'text'", "key (int64), content (string)", "--text-column"
    )


def test_a_text_column_that_is_not_a_string_says_what_it_is(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", [{"text": 5}])
    dedup(path, tmp_path / "out").refuses(2, "a.parquet: expected strings in column 'text', found int64")


def test_a_binary_text_column_is_refused(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", [{"text": "文本".encode("gb18030")}])
    dedup(path, tmp_path / "out").refuses(2, "expected strings in column 'text', found binary", "decode it first")


def test_jsonl_without_the_text_field_lists_the_fields(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"content": "文本", "url": "u"}])
    dedup(path, tmp_path / "out").refuses(2, "a.jsonl: no field 'text'", "content, url", "--text-column")


def test_schema_conflicts_name_both_shards(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in" / "a.parquet", [{"text": "一", "year": 1999}])
    write_parquet(tmp_path / "in" / "b.parquet", [{"text": "二", "year": "1999"}])
    dedup(tmp_path / "in", tmp_path / "out").refuses(
        2, "b.parquet: column 'year' is large_string, but int64 in a.parquet"
    )


@pytest.mark.parametrize("name", ["cluster", "cluster_size", "component"])
def test_column_names_of_ours_are_refused(tmp_path: Path, name: str) -> None:
    path = write_parquet(tmp_path / "a.parquet", [{"text": "文本", name: 1}])
    dedup(path, tmp_path / "out").refuses(2, f"a.parquet: column '{name}' has a name that the output needs")


@pytest.mark.parametrize("flag", ["--id-column", "--source-column", "--quality-column"])
def test_a_column_that_was_asked_for_must_be_there(tmp_path: Path, flag: str) -> None:
    path = write_parquet(tmp_path / "a.parquet", [{"text": "文本", "url": "u"}])
    dedup(path, tmp_path / "out", flag, "key").refuses(2, f"no column 'key' for {flag}", "url (large_string)")


@pytest.mark.parametrize("name", ["id", "source"])
def test_a_nested_id_or_source_is_refused(tmp_path: Path, name: str) -> None:
    path = write_parquet(tmp_path / "a.parquet", [{"text": "文本", name: ["x"]}])
    dedup(path, tmp_path / "out").refuses(2, f"expected strings or numbers in column '{name}'", f"--{name}-column")


def test_a_quality_column_of_strings_is_refused(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", [{"text": "文本", "score": "high"}])
    dedup(path, tmp_path / "out", "--quality-column", "score").refuses(2, "score", "large_string")


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "dictionary"])
def test_every_encoding_of_strings_gives_the_same_documents(tmp_path: Path, kind: str) -> None:
    types = {
        "string": pa.string(),
        "large_string": pa.large_string(),
        "string_view": pa.string_view(),
        "dictionary": pa.dictionary(pa.int32(), pa.string()),
    }
    texts = pa.array([*PLAIN, PLAIN[0], None], pa.string())
    typed = texts.dictionary_encode() if kind == "dictionary" else texts.cast(types[kind])
    pq.write_table(pa.table({"text": typed}), tmp_path / "a.parquet")
    assert conserved(dedup(tmp_path / "a.parquet", tmp_path / "out")) == {"exact_duplicate": 1, "null_text": 1}
    assert [row["text"] for row in output_rows(tmp_path / "out")] == PLAIN


# ------------------------------------------------------------------------------------------------- records


def test_null_texts_are_counted(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "a.parquet", [PLAIN[0], None, None])
    assert conserved(dedup(path, tmp_path / "out")) == {"null_text": 2}


def test_duplicate_ids_are_allowed_and_counted(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", [{"id": "same", "text": text} for text in PLAIN])
    counts = dedup(path, tmp_path / "out").counts
    assert (counts["duplicate_ids"], counts["kept"]) == (19, 20)


def test_invalid_utf8_in_a_parquet_string_column_is_counted(tmp_path: Path) -> None:
    bad = [b"\xff\xfe" * 30, b"\xe4\xb8", PLAIN[1].encode() + b"\x80", b"\xed\xa0\x80" * 20]
    pq.write_table(pa.table({"text": string_array([PLAIN[0].encode(), *bad])}), tmp_path / "a.parquet")
    assert conserved(dedup(tmp_path / "a.parquet", tmp_path / "out")) == {"invalid_utf8": 4}
    assert [row["text"] for row in output_rows(tmp_path / "out")] == [PLAIN[0]]


def test_invalid_utf8_in_an_id_stops_nothing(tmp_path: Path) -> None:
    ids = string_array([b"\xff\xfe", b"ok", b"\x80"])
    pq.write_table(pa.table({"id": ids, "text": [PLAIN[0], PLAIN[1], PLAIN[0]]}), tmp_path / "a.parquet")
    assert conserved(dedup(tmp_path / "a.parquet", tmp_path / "out")) == {"exact_duplicate": 1}


def test_invalid_utf8_in_jsonl_is_counted_as_such(tmp_path: Path) -> None:
    good = json.dumps({"text": PLAIN[0]}).encode()
    (tmp_path / "a.jsonl").write_bytes(good + b'\n{"text": "\xff\xfe"}\n')
    assert conserved(dedup(tmp_path / "a.jsonl", tmp_path / "out")) == {"invalid_utf8": 1}


def test_broken_records_are_counted_with_their_reasons(tmp_path: Path) -> None:
    lines = [json.dumps({"text": PLAIN[0]}), '{"text": "cut', "[1, 2]", '{"text": 7}', '{"text": "\\ud800"}', "{}"]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    assert conserved(dedup(tmp_path / "a.jsonl", tmp_path / "out")) == {"invalid_record": 4, "null_text": 1}


def test_every_removed_record_has_its_line_in_the_ledger(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": PLAIN[0]}) + '\nnonsense\n{"text": null, "id": 7}\n')
    assert dedup(tmp_path / "a.jsonl", tmp_path / "out").status == 0
    gone = [(row["shard"], row["row"], row["id"], row["reason"]) for row in ledger_rows(tmp_path / "out")]
    assert gone == [("a.jsonl", 1, "a.jsonl#1", "invalid_record"), ("a.jsonl", 2, "7", "null_text")]


def test_a_document_above_the_limit_is_set_aside(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "a.parquet", [PLAIN[0], "长" * 40_000, PLAIN[1]])
    assert conserved(dedup(path, tmp_path / "out", "--max-document-mb", "0.1")) == {"too_large": 1}


# ------------------------------------------------------------------------------------------------- broken files


def test_a_truncated_parquet_is_named_before_any_work(tmp_path: Path) -> None:
    make_corpus(tmp_path / "in")
    path = tmp_path / "in" / "shard-1.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    dedup(tmp_path / "in", tmp_path / "out").refuses(
        2, "shard-1.parquet: no Parquet footer; the file is truncated", "--skip-bad-units"
    )
    assert not (tmp_path / "out.work").exists()


def test_a_truncated_parquet_is_left_out_and_counted_when_asked(tmp_path: Path) -> None:
    make_corpus(tmp_path / "in")
    path = tmp_path / "in" / "shard-1.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    outcome = dedup(tmp_path / "in", tmp_path / "out", "--skip-bad-units")
    conserved(outcome)
    assert (outcome.counts["unreadable_shards"], outcome.counts["documents"]) == (1, 600)
    manifest = json.loads((tmp_path / "out" / "_manifest.json").read_bytes())
    assert manifest["unreadable"][0][0] == "shard-1.parquet"


def test_a_damaged_page_fails_its_unit_and_the_others_are_done(tmp_path: Path) -> None:
    make_corpus(tmp_path / "in")
    damaged(tmp_path / "in" / "shard-1.parquet", PLAIN)
    outcome = dedup(tmp_path / "in", tmp_path / "out", "--unit-mb", "0.001")
    outcome.refuses(1, "scan: 1 of the units failed, the others are done: shard-1.parquet: ", "Run again to resume")
    units = len(json.loads((tmp_path / "out.work" / "plan.json").read_bytes())["units"])
    assert len(list((tmp_path / "out.work" / "stats" / "scan").iterdir())) == units - 1


def test_a_damaged_page_is_counted_and_conserved_when_asked(tmp_path: Path) -> None:
    path = damaged(tmp_path / "a.parquet", PLAIN[:18])
    assert conserved(dedup(path, tmp_path / "out", "--skip-bad-units")) == {"unreadable": 6}
    assert [row["text"] for row in output_rows(tmp_path / "out")] == PLAIN[:6] + PLAIN[12:18]


def test_a_repaired_shard_is_another_input(tmp_path: Path) -> None:
    path = damaged(tmp_path / "a.parquet", PLAIN)
    assert dedup(path, tmp_path / "out").status == 1
    write_texts(path, PLAIN)
    dedup(path, tmp_path / "out").refuses(2, "changed: a.parquet")


def compressed(path: Path, count: int, keep: float = 1.0) -> Path:
    """A compressed JSONL file of `count` different documents, cut after a share of its bytes."""
    rng = random.Random(3)
    lines = "".join(json.dumps({"text": chinese(rng, 200)}) + "\n" for _ in range(count))
    with pa.CompressedOutputStream(str(path), "gzip" if path.suffix == ".gz" else "zstd") as stream:
        stream.write(lines.encode())
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    return path


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst"])
def test_compressed_jsonl_is_read(tmp_path: Path, name: str) -> None:
    assert dedup(compressed(tmp_path / name, 500), tmp_path / "out").counts["kept"] == 500


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst"])
def test_a_small_truncated_compressed_jsonl_is_named_before_any_work(tmp_path: Path, name: str) -> None:
    dedup(compressed(tmp_path / name, 50, 0.5), tmp_path / "out").refuses(2, f"{name}: ", "--skip-bad-units")


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst"])
def test_a_large_truncated_compressed_jsonl_fails_its_unit(tmp_path: Path, name: str) -> None:
    dedup(compressed(tmp_path / name, 3000, 0.9), tmp_path / "out").refuses(1, "scan: 1 of the units failed", name)


def test_what_was_read_of_a_truncated_gz_stays_and_one_record_stands_for_the_rest(tmp_path: Path) -> None:
    outcome = dedup(compressed(tmp_path / "a.jsonl.gz", 3000, 0.9), tmp_path / "out", "--skip-bad-units")
    assert conserved(outcome) == {"unreadable": 1}
    assert 2000 < outcome.counts["kept"] < 3000


# ------------------------------------------------------------------------------------------------- where it goes


def test_an_output_with_other_files_is_refused(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "a.parquet", PLAIN)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep me")
    dedup(path, tmp_path / "out").refuses(2, f"{tmp_path}/out: expected an empty or new folder, found other files")
    assert (tmp_path / "out" / "mine.txt").read_text() == "keep me"


def test_a_work_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "a.parquet", PLAIN)
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "mine.txt").write_text("keep me")
    dedup(path, tmp_path / "out", "--work", tmp_path / "w").refuses(2, f"{tmp_path}/w: expected an empty or new work")


@pytest.mark.parametrize("below", [".", "clean", "deep/er"])
@pytest.mark.parametrize("prefix", ["", "file://"])
def test_an_output_in_the_input_is_refused(tmp_path: Path, below: str, prefix: str) -> None:
    write_texts(tmp_path / "in" / "a.parquet", PLAIN)
    outcome = dedup(f"{prefix}{tmp_path}/in", tmp_path / "in" / below, "--work", tmp_path / "work")
    outcome.refuses(2, "lies inside the input", "name a folder outside it")
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["a.parquet"]


def test_an_output_in_the_input_by_way_of_a_link_is_refused(tmp_path: Path) -> None:
    write_texts(tmp_path / "in" / "a.parquet", PLAIN)
    (tmp_path / "link").symlink_to(tmp_path / "in")
    dedup(tmp_path / "in", tmp_path / "link" / "out").refuses(2, "lies inside the input")


def test_a_work_folder_in_the_input_is_refused(tmp_path: Path) -> None:
    write_texts(tmp_path / "in" / "a.parquet", PLAIN)
    dedup(tmp_path / "in", tmp_path / "out", "--work", tmp_path / "in" / "w").refuses(2, "--work", "inside the input")


def test_an_output_where_a_recursive_pattern_would_find_it_is_refused(tmp_path: Path) -> None:
    make_corpus(tmp_path / "in")
    dedup(f"{tmp_path}/in/**/*.parquet", tmp_path / "in" / "out").refuses(2, "lies inside the input")


def test_the_output_of_other_settings_is_refused(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "a.parquet", PLAIN)
    assert dedup(path, tmp_path / "out").status == 0
    dedup(path, tmp_path / "out", "--threshold", "0.9").refuses(2, "holds the output of another run or other settings")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "in" / "a.parquet", PLAIN)
    (tmp_path / "file").write_text("not a folder")
    dedup(path, tmp_path / "file" / "out").refuses(1, f"{tmp_path}/file", "Not a directory")


def test_no_permission_is_said_in_one_line(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "a.parquet", PLAIN)
    dedup(path, "/proc/sys/taojin").refuses(1, "/proc/sys/taojin")


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "taojin-test", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here: " + mounted.stderr.decode().strip())
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("flags", [[], ["--unit-mb", "0.01"]], ids=["one unit", "many units"])
def test_a_full_disk_is_one_line_and_a_rerun_completes(tmp_path: Path, flags: list[str]) -> None:
    corpus = make_corpus(tmp_path / "in")
    assert dedup(corpus, tmp_path / "expected", *flags).status == 0
    disk = tmp_path / "disk"
    with small_disk(disk, "200k"):
        dedup(corpus, disk / "out", *flags).refuses(1, "No space left on device")
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        assert dedup(corpus, disk / "out", *flags).status == 0
        assert results(disk / "out") == results(tmp_path / "expected")


def test_a_file_size_limit_is_one_line(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path / "in")
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000));"
        "from taojin.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    arguments = ["dedup", "--input", corpus, "--output", tmp_path / "out", "--num-cpus", "0", "--quiet"]
    # Kernels are compiled before the limit holds for their cache too.
    assert dedup(corpus, tmp_path / "warm").status == 0
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    Outcome(done.returncode, done.stdout, done.stderr).refuses(1, "File too large")


# ------------------------------------------------------------------------------------------------- frozen plans


def test_changed_inputs_are_shown(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path / "in")
    assert dedup(corpus, tmp_path / "out").status == 0
    (corpus / "shard-0.parquet").unlink()
    write_texts(corpus / "shard-1.parquet", PLAIN)
    write_texts(corpus / "shard-7.parquet", PLAIN)
    before = files(tmp_path)
    dedup(corpus, tmp_path / "out").refuses(
        2,
        f"{tmp_path}/out.work belongs to another run",
        "new: shard-7.parquet",
        "missing: shard-0.parquet",
        "changed: shard-1.parquet",
        "Name another --work",
    )
    assert files(tmp_path) == before


def test_a_changed_scan_config_is_shown(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "a.parquet", PLAIN)
    assert dedup(path, tmp_path / "out", "--num-hashes", "128").status == 0
    dedup(path, tmp_path / "out", "--num-hashes", "256", "--ngram", "4").refuses(
        2, "num_hashes was 128 and is 256", "ngram was 5 and is 4"
    )


def test_a_changed_threshold_keeps_the_scan_and_decides_beside_it(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "a.parquet", PLAIN)
    work = tmp_path / "work"
    for threshold in ("0.8", "0.9"):
        assert dedup(path, tmp_path / threshold, "--work", work, "--threshold", threshold).status == 0
    assert len(list(work.glob("decide-*"))) == 2


@pytest.mark.parametrize("threshold", ["0", "1.01", "-0.5", "nan"])
def test_a_threshold_outside_its_range_is_refused(tmp_path: Path, threshold: str) -> None:
    dedup(tmp_path, tmp_path / "out", f"--threshold={threshold}").refuses(2, "--threshold: ", threshold)


def test_more_band_values_than_hashes_are_refused(tmp_path: Path) -> None:
    dedup(tmp_path, tmp_path / "out", "--num-hashes", "128", "--bands", "26", "--rows", "5").refuses(
        2, "bands × rows must not exceed num_hashes: 26 × 5 = 130 > 128", "lower --bands or --rows"
    )


def test_an_output_is_needed(tmp_path: Path) -> None:
    taojin("dedup", "--input", tmp_path).refuses(2, "--output is needed")


# ------------------------------------------------------------------------------------------------- extremes


def test_a_huge_cell_between_tiny_ones_is_read(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "a.parquet", [PLAIN[0], chinese(RNG, 1000) * 15_000, PLAIN[1]])
    assert dedup(path, tmp_path / "out").counts["text_bytes"] > 45e6
    assert [len(row["text"]) for row in output_rows(tmp_path / "out")] == [100, 15_000_000, 100]


def test_a_single_line_of_21_mb_is_read(tmp_path: Path) -> None:
    text = chinese(RNG, 7000) * 1000
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": text}, ensure_ascii=False))
    assert dedup(tmp_path / "a.jsonl", tmp_path / "out").counts["text_bytes"] == 21_000_000


@pytest.mark.parametrize(
    "text", ["长" * 1_000_000, "a" * 6_000_000, "同一句话。" * 60_000], ids=["Han", "word", "sentence"]
)
def test_monotonous_documents_find_their_twins(tmp_path: Path, text: str) -> None:
    path = write_texts(tmp_path / "a.parquet", [text, PLAIN[0], text + "。"])
    assert sum(conserved(dedup(path, tmp_path / "out")).values()) == 1


def test_ten_thousand_tiny_shards_share_few_units(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(10_000):
        (folder / f"{number:05d}.jsonl").write_text(f'{{"text": "{PLAIN[number % 20]}"}}\n')
    counts = dedup(folder, tmp_path / "out").counts
    assert (counts["shards"], counts["units"], counts["kept"]) == (10_000, 1, 20)


def giant_row_group(path: Path, megabytes: int) -> Path:
    """One row group of 2 kB documents; letters at random, so that nothing compresses it away."""
    letters = np.random.default_rng(1).integers(97, 123, megabytes * 1_000_000, np.uint8)
    letters[::7] = 32
    count = megabytes * 500
    offsets = np.arange(count + 1, dtype=np.int64) * 2000
    texts = pa.Array.from_buffers(pa.large_string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(letters)])
    pq.write_table(pa.table({"text": texts}), path, row_group_size=count, compression="none", use_dictionary=False)
    return path


def test_a_giant_row_group_stays_in_bounded_memory(tmp_path: Path) -> None:
    path = giant_row_group(tmp_path / "a.parquet", 250)
    assert pq.read_metadata(path).num_row_groups == 1
    outcome, peak = peak_memory_mb(
        ["dedup", "--input", path, "--output", tmp_path / "out", "--num-cpus", "0", "--quiet", "--json"]
    )
    assert outcome.counts["documents"] == 125_000
    assert peak < 600


def test_a_line_above_the_limit_is_skipped_without_being_held(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        file.write(json.dumps({"text": PLAIN[0]}).encode() + b'\n{"text": "')
        for _ in range(300):
            file.write(b"x" * 1_000_000)
        file.write(b'"}\n' + json.dumps({"text": PLAIN[1]}).encode() + b"\n")
    arguments = ["dedup", "--input", path, "--output", tmp_path / "out", "--num-cpus", "0", "--quiet", "--json"]
    outcome, peak = peak_memory_mb([*arguments, "--max-document-mb", "16"])
    assert conserved(outcome) == {"too_large": 1}
    assert outcome.counts["kept"] == 2
    assert peak < 500
