"""Every file of ../shared/corpus/dirty: read, refused by name, or counted. Skipped where that folder is absent."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.jobs import SHARED, conserved, dedup, output_rows, string_array, write_texts

DIRTY = SHARED / "corpus" / "dirty"

WHOLE = {"documents": 200, "removed": {"near_duplicate": 7}}
PARQUET: dict[str, dict[str, Any] | tuple[str, ...]] = {
    "nulls": {"documents": 200, "removed": {"near_duplicate": 5, "null_text": 29}},
    "no_text_column": ("no column 'text'", "content (string)"),
    "large_string": WHOLE,
    "binary_text": ("expected strings in column 'text', found binary",),
    "invalid_utf8_in_string": {"documents": 200, "removed": {"invalid_utf8": 200}},
    "dictionary": WHOLE,
    "zero_rows": {"documents": 0, "removed": {}},
    "one_row_per_group": WHOLE,
    "extra_columns": WHOLE,
    "duplicate_ids": {**WHOLE, "duplicate_ids": 199},
    "snappy": WHOLE,
    "gzip_v1": WHOLE,
    "uncompressed": WHOLE,
    "truncated": ("no Parquet footer; the file is truncated",),
    "zero_bytes": ("expected a Parquet file, found 0 bytes",),
    "text_renamed": ("no Parquet footer", "not Parquet"),
    # No checksum protects the page: the flipped byte shows where it breaks a character, and those texts go.
    "flipped_bits": {"documents": 200, "removed": {"invalid_utf8": 6, "near_duplicate": 7}},
}
# Reasons why a text file is not kept as one record: (as Parquet, as JSONL).
TEXT: dict[str, tuple[str | None, str | None]] = {
    "empty.txt": ("empty_text", "empty_text"),
    "gbk_inside_utf8.txt": ("invalid_utf8", "invalid_utf8"),
    "truncated_utf8.txt": ("invalid_utf8", "invalid_utf8"),
    "overlong_and_surrogates.bin": ("invalid_utf8", "invalid_utf8"),
    # U+FEFF of the byte order makes these bytes no UTF-8; NUL and bare control characters make no JSON.
    "nul_every_char.txt": ("invalid_utf8", "invalid_utf8"),
}
dirty = pytest.mark.skipif(not DIRTY.is_dir(), reason="../shared/corpus/dirty is not beside this checkout")
TEXT_FILES = sorted(path.name for path in DIRTY.glob("text/*")) or ["absent"]


@dirty
def test_every_dirty_parquet_file_is_tried() -> None:
    assert {path.stem for path in DIRTY.glob("parquet/*")} == set(PARQUET)


@dirty
@pytest.mark.parametrize("name", PARQUET)
def test_dirty_parquet_files_are_read_or_refused(tmp_path: Path, name: str) -> None:
    outcome = dedup(DIRTY / "parquet" / f"{name}.parquet", tmp_path / "out")
    expected = PARQUET[name]
    if isinstance(expected, tuple):
        outcome.refuses(2, f"{name}.parquet: ", *expected)
    else:
        conserved(outcome)
        assert {key: outcome.counts[key] for key in expected} == expected


@dirty
@pytest.mark.parametrize("name", TEXT_FILES)
def test_dirty_texts_pass_through_parquet_unchanged_or_counted(tmp_path: Path, name: str) -> None:
    raw = (DIRTY / "text" / name).read_bytes()
    pq.write_table(pa.table({"text": string_array([raw])}), tmp_path / "a.parquet")
    removed = conserved(dedup(tmp_path / "a.parquet", tmp_path / "out"))
    reason = TEXT.get(name, (None, None))[0]
    assert removed == ({reason: 1} if reason else {})
    if not reason:
        assert output_rows(tmp_path / "out")[0]["text"].encode() == raw


@dirty
@pytest.mark.parametrize("name", [name for name in TEXT_FILES if not name.endswith(".jsonl")])
def test_dirty_texts_pass_through_jsonl_unchanged_or_counted(tmp_path: Path, name: str) -> None:
    raw = (DIRTY / "text" / name).read_bytes()
    escaped = raw.replace(b"\\", rb"\\").replace(b'"', rb"\"")
    for code in range(32):
        escaped = escaped.replace(bytes([code]), f"\\u{code:04x}".encode())
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "' + escaped + b'"}\n')
    removed = conserved(dedup(tmp_path / "a.jsonl", tmp_path / "out"))
    reason = TEXT.get(name, (None, None))[1]
    assert removed == ({reason: 1} if reason else {})
    if not reason:
        assert output_rows(tmp_path / "out")[0]["text"].encode() == raw


@dirty
def test_dirty_jsonl_lines_are_each_accounted_for(tmp_path: Path) -> None:
    outcome = dedup(DIRTY / "text" / "bad_lines.jsonl", tmp_path / "out")
    removed = conserved(outcome)
    lines = [line for line in (DIRTY / "text" / "bad_lines.jsonl").read_bytes().split(b"\n") if line.strip()]
    assert outcome.counts["documents"] == len(lines)
    assert removed["invalid_record"] >= 1


@dirty
@pytest.mark.parametrize("name", ["zero_width_stuffed.txt", "spaced_out.txt", "fullwidth.txt"])
def test_variants_of_the_reference_text_are_its_duplicates(tmp_path: Path, name: str) -> None:
    texts = [(DIRTY / "text" / file).read_text() for file in ("plain_reference.txt", name)]
    path = write_texts(tmp_path / "a.parquet", texts)
    assert sum(conserved(dedup(path, tmp_path / "out")).values()) == 1


@dirty
def test_all_dirty_parquet_files_together_are_conserved(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("nulls", "duplicate_ids", "one_row_per_group", "truncated", "zero_rows", "zero_bytes", "snappy"):
        (tmp_path / "in" / f"{name}.parquet").symlink_to(DIRTY / "parquet" / f"{name}.parquet")
    outcome = dedup(tmp_path / "in", tmp_path / "out", "--skip-bad-units")
    conserved(outcome)
    assert (outcome.counts["unreadable_shards"], outcome.counts["documents"]) == (2, 800)
