"""Shards → plan → units (core/corpus.py): what is found, in which order, and how it is cut."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taojin.core.corpus import (
    Ordinals,
    Piece,
    Plan,
    Shard,
    Span,
    cut_units,
    find_files,
    make_plan,
    normal_type,
    num_key_ranges,
    relative_paths,
)
from taojin.core.errors import InputError


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"text": ["文本"]}), folder / name)


def found(folder: Path, *inputs: Any) -> list[str]:
    return [os.path.relpath(file.uri, folder) for file in find_files([str(one) for one in inputs])]


def plan(*inputs: object, **options: Any) -> Plan:
    settings: dict[str, Any] = {
        "text_column": "text",
        "id_column": "id",
        "source_column": "source",
        "unit_bytes": 1000,
        "entries_per_document": 21,
        "config": {"n": 1},
        "skip_bad": False,
    }
    return make_plan([str(one) for one in inputs], **{**settings, **options})


# ------------------------------------------------------------------------------------------------- finding


def test_a_folder_is_searched_at_any_depth_in_order_of_paths(tmp_path: Path) -> None:
    touch(tmp_path, "b.parquet", "a/c.parquet", "a/b/d.parquet", "a.parquet")
    assert found(tmp_path, tmp_path) == ["a.parquet", "a/b/d.parquet", "a/c.parquet", "b.parquet"]


def test_hidden_files_and_folders_are_left_out(tmp_path: Path) -> None:
    touch(tmp_path, "a.parquet", ".b.parquet", "_c.parquet", "_delta/d.parquet", ".cache/e.parquet")
    assert found(tmp_path, tmp_path) == ["a.parquet"]


def test_a_hidden_folder_that_is_named_is_read(tmp_path: Path) -> None:
    touch(tmp_path, ".cache/e.parquet")
    assert found(tmp_path, tmp_path / ".cache") == [".cache/e.parquet"]


def test_other_files_in_a_folder_are_left_out(tmp_path: Path) -> None:
    touch(tmp_path, "a.parquet", "a.parquet.crc", "readme.md", "b.PARQUET", "c.parquet.tmp")
    assert found(tmp_path, tmp_path) == ["a.parquet", "b.PARQUET"]


def test_a_file_named_twice_is_one_shard(tmp_path: Path) -> None:
    touch(tmp_path, "a.parquet", "b.parquet")
    assert found(tmp_path, tmp_path / "a.parquet", tmp_path, f"{tmp_path}/./a.parquet") == ["a.parquet", "b.parquet"]


def test_patterns_are_expanded(tmp_path: Path) -> None:
    touch(tmp_path, "x/a.parquet", "y/a.parquet", "y/deep/b.parquet", "z.parquet")
    assert found(tmp_path, f"{tmp_path}/*/a.parquet") == ["x/a.parquet", "y/a.parquet"]
    assert found(tmp_path, f"{tmp_path}/y/**/*.parquet") == ["y/a.parquet", "y/deep/b.parquet"]


@pytest.mark.parametrize("name", ["新闻 2024.parquet", "a[1].parquet", "what?.parquet", "100%.parquet", "a#b.parquet"])
def test_names_may_hold_anything(tmp_path: Path, name: str) -> None:
    touch(tmp_path, name)
    [shard] = plan(tmp_path / name).shards
    assert (shard.path, shard.uri) == (name, str(tmp_path / name))


def test_links_to_files_and_folders_are_followed(tmp_path: Path) -> None:
    touch(tmp_path, "elsewhere/a.parquet", "in/own.parquet")
    (tmp_path / "in" / "file.parquet").symlink_to(tmp_path / "elsewhere" / "a.parquet")
    (tmp_path / "in" / "folder").symlink_to(tmp_path / "elsewhere")
    assert found(tmp_path, tmp_path / "in") == ["in/file.parquet", "in/folder/a.parquet", "in/own.parquet"]


def test_a_broken_link_is_named(tmp_path: Path) -> None:
    (tmp_path / "gone.parquet").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"gone\.parquet: no such file"):
        find_files([str(tmp_path / "gone.parquet")])


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    touch(tmp_path, "a.parquet")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert {os.path.realpath(file.uri) for file in find_files([str(tmp_path)])} == {f"{tmp_path}/a.parquet"}


def test_paths_are_relative_to_what_all_share() -> None:
    assert relative_paths(["/d/x/a.parquet", "/d/y/b.parquet"]) == ["x/a.parquet", "y/b.parquet"]
    assert relative_paths(["/d/x/a.parquet"]) == ["a.parquet"]
    assert relative_paths(["s3://b/x/a.parquet?q=1", "s3://b/x/y/b.parquet?q=1"]) == ["a.parquet", "y/b.parquet"]
    assert relative_paths(["s3://b/a.parquet", "s3://c/a.parquet"]) == ["b/a.parquet", "c/a.parquet"]


def test_paths_of_a_disk_and_a_store_stay_apart() -> None:
    names = relative_paths(["/d/a.parquet", "s3://d/a.parquet"])
    assert len(set(names)) == 2


# ------------------------------------------------------------------------------------------------- schemas


def test_columns_are_unified_by_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "x": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"y": ["b"], "text": pa.array(["b"], pa.large_string())}), tmp_path / "b.parquet")
    schema = plan(tmp_path).schema
    assert {field.name: str(field.type) for field in schema} == {
        "text": "large_string",
        "x": "int64",
        "y": "large_string",
    }


def test_a_column_of_nulls_takes_the_type_of_the_others(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "x": pa.nulls(1)}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"text": ["b"], "x": [1]}), tmp_path / "b.parquet")
    assert plan(tmp_path).schema.field("x").type == pa.int64()


def test_ids_become_strings_whatever_they_were(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "id": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"text": ["b"], "id": ["x"]}), tmp_path / "b.parquet")
    assert plan(tmp_path).schema.field("id").type == pa.large_string()


@pytest.mark.parametrize(
    "data_type",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())],
    ids=str,
)
def test_every_encoding_of_text_is_one_type(data_type: pa.DataType) -> None:
    assert normal_type(data_type) == pa.large_string()


# ------------------------------------------------------------------------------------------------- units and positions


def shard(*sizes: int, rows: int = 10) -> Shard:
    return Shard("a", "a", "parquet", None, 1, "", tuple(Piece(i, i + 1, rows, size) for i, size in enumerate(sizes)))


@given(st.lists(st.lists(st.integers(1, 300), max_size=6), max_size=8), st.integers(1, 500))
def test_every_piece_is_in_one_unit_in_order(sizes: list[list[int]], unit_bytes: int) -> None:
    shards = [shard(*pieces) for pieces in sizes]
    units = cut_units(shards, unit_bytes)
    listed = [(span.shard, piece) for unit in units for span in unit for piece in range(span.first, span.last)]
    assert listed == [(index, piece) for index, pieces in enumerate(sizes) for piece in range(len(pieces))]
    for unit in units:
        total = sum(sizes[span.shard][piece] for span in unit for piece in range(span.first, span.last))
        assert total <= unit_bytes or sum(span.last - span.first for span in unit) == 1


def test_many_tiny_shards_share_a_unit() -> None:
    assert len(cut_units([shard(10)] * 10_000, 128_000_000)) == 1


@given(st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=6))
def test_positions_name_each_document_and_lead_back(rows: list[list[int]]) -> None:
    shards = tuple(
        Shard(str(i), "", "parquet", None, 1, "", tuple(Piece(j, j + 1, n, 10) for j, n in enumerate(counts)))
        for i, counts in enumerate(rows)
    )
    whole = Plan(shards, tuple(cut_units(shards, 20)), pa.schema([]), {}, 1)
    ordinals = Ordinals(whole, [n for counts in rows for n in counts])
    everyone = np.arange(ordinals.num_documents)
    positions = ordinals.positions(everyone)
    expected = [(i << 40) + row for i, counts in enumerate(rows) for row in range(sum(counts))]
    assert positions.tolist() == expected
    assert ordinals.ordinals(positions).tolist() == everyone.tolist()
    assert np.diff(ordinals.unit_first).sum() == ordinals.num_documents


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    touch(tmp_path, "a.parquet", "b/c.parquet")
    (tmp_path / "d.jsonl").write_text('{"text": "a"}\n')
    made = plan(tmp_path)
    assert Plan.from_json(orjson.loads(orjson.dumps(made.as_json()))) == made
    assert made.units[0][0] == Span(0, 0, 1)


def test_a_plan_does_not_depend_on_the_order_of_inputs(tmp_path: Path) -> None:
    touch(tmp_path, "a.parquet", "b.parquet", "c.parquet")
    paths = [tmp_path / f"{name}.parquet" for name in "bca"]
    assert plan(*paths) == plan(*reversed(paths)) == plan(tmp_path)


def test_a_changed_file_has_another_fingerprint(tmp_path: Path) -> None:
    touch(tmp_path, "a.parquet")
    before = plan(tmp_path).shards[0].fingerprint
    pq.write_table(pa.table({"text": ["别的"]}), tmp_path / "a.parquet")
    assert plan(tmp_path).shards[0].fingerprint != before


def test_unreadable_shards_are_all_counted(tmp_path: Path) -> None:
    touch(tmp_path, "a.parquet")
    for name in ("b", "c", "d"):
        (tmp_path / f"{name}.parquet").write_bytes(b"PAR1 not really PAR1")
    with pytest.raises(InputError, match=r"b\.parquet: .* \(and 2 more\); repair or remove it"):
        plan(tmp_path)
    assert [path for path, _ in plan(tmp_path, skip_bad=True).unreadable] == ["b.parquet", "c.parquet", "d.parquet"]


def test_key_ranges_grow_with_the_corpus_and_stop() -> None:
    assert num_key_ranges(0) == 1
    assert num_key_ranges(7_999_999) == 1
    assert num_key_ranges(21 * 16_000_000) == 64
    assert num_key_ranges(10**15) == 4096
