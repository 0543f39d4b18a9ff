"""Reading JSONL (core/reading.py): each line once whatever the cut, each bad record counted, in bounded memory."""

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taojin.core import corpus, reading
from taojin.core.corpus import EXTRA_COLUMN, Piece, Plan, Shard, Span, make_plan
from taojin.core.errors import BadShardError, InputError
from taojin.core.job import Reading
from taojin.core.reading import Batch, iter_lines, read_unit
from taojin.core.status import INVALID_RECORD, INVALID_UTF8, NULL, OK, TOO_LARGE, UNREADABLE
from taojin.core.storage import resolve

READING = Reading("text", "id", "source")
NAMES = ("text", "id", "source", EXTRA_COLUMN)


def plan_of(path: Path, *, skip_bad: bool = False) -> Plan:
    return make_plan(
        [str(path)],
        text_column="text",
        id_column="id",
        source_column="source",
        unit_bytes=1 << 30,
        entries_per_document=1,
        config={},
        skip_bad=skip_bad,
    )


def read(path: Path, *, limit: int = 1_000_000, skip_bad: bool = False) -> list[Batch]:
    plan = plan_of(path, skip_bad=skip_bad)
    reading = READING._replace(max_document_bytes=limit, skip_bad=skip_bad)
    return [batch for unit in plan.units for batch in read_unit(plan, unit, NAMES, reading)]


def records(path: Path, **options: Any) -> list[tuple[dict[str, Any], int]]:
    return [
        (row, int(status))
        for batch in read(path, **options)
        for row, status in zip(batch.rows.to_pylist(), batch.status, strict=True)
    ]


def whole(path: Path) -> tuple[Shard, list[Piece]]:
    [shard] = plan_of(path).shards
    return shard, list(shard.pieces)


def written(folder: Path, content: bytes, name: str = "a.jsonl") -> Path:
    (folder / name).write_bytes(content)
    return folder / name


# ------------------------------------------------------------------------------------------------- lines


@given(
    lines=st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=12),
    ending=st.sampled_from([b"\n", b"\r\n", b"\n\n", b" \n"]),
    last=st.booleans(),
    piece_bytes=st.integers(1, 50),
    block_bytes=st.integers(1, 20),
)
def test_every_line_is_read_once_whatever_the_cut(
    lines: list[bytes], ending: bytes, last: bool, piece_bytes: int, block_bytes: int
) -> None:
    content = ending.join(lines) + (ending if last else b"")
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "JSONL_PIECE_BYTES", piece_bytes)
        patch.setattr(reading, "BLOCK_BYTES", block_bytes)
        patch.setattr(reading, "check_jsonl_head", lambda shard, text_column: None)
        path = written(Path(folder), content)
        if not content:
            return
        shard, pieces = whole(path)
        assert len(pieces) == -(-len(content) // piece_bytes)
        found = [line for piece in pieces for line in iter_lines(shard, piece, 1000)]
    expected = [line.strip(b" \t\r\n") for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n")]
    assert found == [line for line in expected if line]


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=10),
    limit=st.integers(5, 30),
    piece_bytes=st.integers(1, 50),
    block_bytes=st.integers(1, 20),
)
def test_lines_above_the_limit_are_marked_and_the_others_are_whole(
    lengths: list[int], limit: int, piece_bytes: int, block_bytes: int
) -> None:
    lines = [b"%d" % (number % 10) * length for number, length in enumerate(lengths)]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "JSONL_PIECE_BYTES", piece_bytes)
        patch.setattr(reading, "BLOCK_BYTES", block_bytes)
        patch.setattr(reading, "check_jsonl_head", lambda shard, text_column: None)
        shard, pieces = whole(written(Path(folder), b"\n".join(lines)))
        found = [line for piece in pieces for line in iter_lines(shard, piece, limit)]
    assert found == [line if len(line) <= limit else None for line in lines]


def test_a_piece_inside_a_long_line_reads_no_further_than_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "JSONL_PIECE_BYTES", 1000)
    monkeypatch.setattr(reading, "BLOCK_BYTES", 100)
    shard, pieces = whole(written(tmp_path, json.dumps({"text": "x" * 100_000}).encode()))
    read_bytes = 0
    filesystem, path = resolve(shard.uri)

    class Counted:
        def open_input_file(self, path: str) -> "Counted":
            self.file = filesystem.open_input_file(path)
            return self

        def seek(self, at: int) -> None:
            self.file.seek(at)

        def read(self, size: int) -> bytes:
            nonlocal read_bytes
            block: bytes = self.file.read(size)
            read_bytes += len(block)
            return block

        def __enter__(self) -> "Counted":
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

    monkeypatch.setattr(reading, "resolve", lambda uri: (Counted(), path))
    assert list(iter_lines(shard, pieces[50], 1 << 20)) == []
    assert read_bytes < 1500


# ------------------------------------------------------------------------------------------------- records


def test_the_columns_are_text_id_source_and_the_rest_as_json(tmp_path: Path) -> None:
    path = written(tmp_path, '{"text": "文", "id": 7, "source": "web", "b": [1], "a": "é"}\n'.encode())
    assert records(path) == [({"text": "文", "id": "7", "source": "web", "extra": '{"b":[1],"a":"é"}'}, OK)]


def test_missing_fields_are_null(tmp_path: Path) -> None:
    path = written(tmp_path, b'{"text": "a"}\n')
    assert records(path) == [({"text": "a", "id": None, "source": None, "extra": None}, OK)]


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b'{"text": null}', NULL),
        (b'{"other": "a"}', NULL),
        (b'{"text": 5}', INVALID_RECORD),
        (b'{"text": ["a"]}', INVALID_RECORD),
        (b'["a"]', INVALID_RECORD),
        (b'"a"', INVALID_RECORD),
        (b'{"text": "a"', INVALID_RECORD),
        (b'{"text": "a"} {"text": "b"}', INVALID_RECORD),
        (b'{"text": "\\ud83d"}', INVALID_RECORD),
        (b'{"text": "a\x01b"}', INVALID_RECORD),
        (b'{"text": NaN}', INVALID_RECORD),
        (b'{"text": "\xc4\xe3\xba\xc3"}', INVALID_UTF8),
        (b'{"text": "' + b"x" * 2000 + b'"}', TOO_LARGE),
        (b'{"text": "' + "长".encode() * 400 + b'"}', TOO_LARGE),
    ],
    ids=lambda value: None if isinstance(value, int) else str(value[:24]),
)
def test_a_bad_record_keeps_its_row_and_says_why(tmp_path: Path, line: bytes, status: int) -> None:
    path = written(tmp_path, b'{"text": "first"}\n' + line + b'\n{"text": "last"}\n')
    found = records(path, limit=1000)
    assert [state for _, state in found] == [OK, status, OK]
    assert [row["text"] for row, _ in found] == ["first", None, "last"]


def test_a_bad_text_keeps_its_id(tmp_path: Path) -> None:
    path = written(tmp_path, b'{"id": "x", "text": 5, "lang": "zh"}\n{"text": ""}\n')
    assert records(path)[0] == ({"text": None, "id": "x", "source": None, "extra": '{"lang":"zh"}'}, INVALID_RECORD)


def test_a_byte_order_mark_belongs_to_no_record(tmp_path: Path) -> None:
    assert records(written(tmp_path, b'\xef\xbb\xbf{"text": "a"}\n'))[0][1] == OK


def test_windows_line_ends_and_blank_lines_are_no_records(tmp_path: Path) -> None:
    path = written(tmp_path, b'\r\n{"text": "a"}\r\n\r\n  \t\r\n{"text": "b"}')
    assert [row["text"] for row, _ in records(path)] == ["a", "b"]


def test_text_is_not_changed(tmp_path: Path) -> None:
    text = "\ufeff 行\r\n\u2028\x85\x00😀 "
    path = written(tmp_path, (json.dumps({"text": text}, ensure_ascii=False) + "\n").encode())
    assert records(path)[0][0]["text"] == text


def test_batches_stay_small(tmp_path: Path) -> None:
    path = written(tmp_path, b"".join(b'{"text": "%d%s"}\n' % (i, b"x" * 100) for i in range(100)))
    plan = plan_of(path)
    batches = list(read_unit(plan, plan.units[0], NAMES, READING._replace(batch_bytes=1000)))
    assert max(batch.rows.num_rows for batch in batches) <= 10
    assert sum(batch.rows.num_rows for batch in batches) == 100


# ------------------------------------------------------------------------------------------------- files


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    written(tmp_path, b"")
    written(tmp_path, b'{"text": "a"}\n', "b.jsonl")
    assert len(records(tmp_path)) == 1


@pytest.mark.parametrize("members", [1, 3])
def test_a_gz_of_several_members_is_read_whole(tmp_path: Path, members: int) -> None:
    path = written(tmp_path, gzip.compress(b'{"text": "a"}\n{"text": "b"}\n') * members, "a.jsonl.gz")
    assert len(records(path)) == 2 * members


def truncated(folder: Path, count: int = 20_000) -> Path:
    content = gzip.compress(b"".join(b'{"text": "document %d"}\n' % i for i in range(count)), mtime=0)
    return written(folder, content[: len(content) * 9 // 10], "a.jsonl.gz")


def test_a_truncated_gz_is_a_bad_shard_by_name(tmp_path: Path) -> None:
    with pytest.raises((BadShardError, InputError), match=r"a\.jsonl\.gz: "):
        read(truncated(tmp_path))


def test_what_comes_before_the_damage_is_read_and_one_row_stands_for_the_rest(tmp_path: Path) -> None:
    found = records(truncated(tmp_path), skip_bad=True)
    assert [state for _, state in found[:-1]] == [OK] * (len(found) - 1)
    assert found[-1][1] == UNREADABLE
    assert [row["text"] for row, _ in found[:3]] == ["document 0", "document 1", "document 2"]
    assert len(found) > 5000


def test_reading_damage_twice_gives_the_same_rows(tmp_path: Path) -> None:
    path = truncated(tmp_path)
    assert records(path, skip_bad=True) == records(path, skip_bad=True)


def test_a_wrong_text_column_is_an_error_before_any_work(tmp_path: Path) -> None:
    path = written(tmp_path, b'{"content": "a", "url": "b"}\n')
    with pytest.raises(InputError, match="no field 'text' in its first records; there are: content, url"):
        plan_of(path)


def test_broken_first_records_are_not_a_wrong_text_column(tmp_path: Path) -> None:
    path = written(tmp_path, b'nonsense\n[1]\n{"text": "a"}\n')
    assert [state for _, state in records(path)] == [INVALID_RECORD, INVALID_RECORD, OK]


def test_jsonl_and_parquet_share_a_schema(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    written(tmp_path, b'{"text": "a", "year": 1999}\n')
    pq.write_table(pa.table({"text": ["b"], "year": [2000]}), tmp_path / "b.parquet")
    plan = plan_of(tmp_path)
    assert plan.schema.names == ["text", "id", "source", "extra", "year"]
    rows = [
        row
        for batch in read_unit(plan, [Span(0, 0, 1), Span(1, 0, 1)], plan.schema.names, READING)
        for row in batch.rows.to_pylist()
    ]
    assert [(row["text"], row["extra"], row["year"]) for row in rows] == [
        ("a", '{"year":1999}', None),
        ("b", None, 2000),
    ]


def test_integers_beyond_64_bits_keep_every_digit(tmp_path: Path) -> None:
    first = '{"text": "一", "id": 123456789012345678901234, "n": {"big": 98765432109876543210}}'
    path = written(tmp_path, f'{first}\n{{"text": "二", "id": 123456789012345678901235}}'.encode())
    rows = [row for row, _ in records(path)]
    assert [row["id"] for row in rows] == ["123456789012345678901234", "123456789012345678901235"]
    assert [row[EXTRA_COLUMN] for row in rows] == ['{"n":{"big":98765432109876543210}}', None]
