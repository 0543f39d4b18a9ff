"""Index and provenance of a pair, from the rows and lengths of its pieces."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taojin.core.errors import InvariantError
from taojin.core.storage import Folder
from taojin.tokenize import provenance
from taojin.tokenize.merge import Pair, Part
from taojin.tokenize.pieces import encode_unit
from taojin.tokenize.provenance import (
    PROVENANCE_SCHEMA,
    IndexContext,
    document_rows,
    lengths_of,
    rows_of,
    write_pair_index,
    write_provenance,
)
from tests.jobs import write_parquet
from tests.megatron_pairs import naive_index
from tests.test_pieces import context_of
from tests.token_runs import naive_documents, records, small_tokenizer


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> IndexContext:
    """Two shards of 70 and 50 documents in pieces of 20, encoded in units of about two pieces."""
    root = tmp_path_factory.mktemp("corpus")
    write_parquet(root / "in" / "a.parquet", records(1, 70), row_group_size=20)
    write_parquet(root / "in" / "b.parquet", records(2, 50), row_group_size=20)
    small_tokenizer(root)
    context = context_of(root, root / "out", level="sentence", unit_mb=0.01)
    units = [encode_unit(context, unit) for unit in range(len(context.source.plan.units))]
    assert len(units) > 2
    return IndexContext(
        plan=context.source.plan,
        pieces=context.work.child("pieces"),
        names=tuple(f"{unit:06d}" for unit in range(len(units))),
        out=Folder(str(root / "pairs")),
        first_rows=np.array([0, 20, 40, 60, 0, 20, 40]),
        dtype=context.dtype,
        ids=True,
    )


@pytest.fixture(scope="module")
def expected(index: IndexContext) -> list[tuple[str, int, dict[str, Any], list[list[int]]]]:
    """(shard, row, record, sequences) of all documents."""
    rows = [(name, row, record) for seed, (name, count) in enumerate((("a.parquet", 70), ("b.parquet", 50)), 1)
            for row, record in enumerate(records(seed, count))]  # fmt: skip
    tokenizer = Path(index.out.uri).parent / "gpt2.json"
    documents = naive_documents([record["text"] for *_, record in rows], tokenizer, sentences=True)
    return [(*row, document) for row, document in zip(rows, documents, strict=True)]


def pair_of(index: IndexContext, expected: list[Any], chosen: list[tuple[int, int]]) -> tuple[Pair, list[Any]]:
    """A pair of these ranges of documents, cut where pieces end; and what is expected in it."""
    firsts = np.cumsum([0, *(sum(b.num_rows for b in document_rows(index.pieces, n, 0, 10**9)) for n in index.names)])
    parts, found = [], []
    for first, last in chosen:
        for piece in range(len(index.names)):
            begin, end = max(first, firsts[piece]), min(last, firsts[piece + 1])
            if begin >= end:
                continue
            before, its = expected[firsts[piece] : begin], expected[begin:end]
            sequences = [sum(len(row[3]) for row in rows) for rows in (before, its)]
            tokens = [sum(len(sequence) for row in rows for sequence in row[3]) for rows in (before, its)]
            parts.append(Part(piece, 0, int(begin - firsts[piece]), int(end - begin), *sequences, *tokens))
            found += its
    return Pair("", "", -1, tuple(parts)), found


@pytest.mark.parametrize("chosen", [[(0, 120)], [(3, 3)], [(5, 31), (60, 61), (33, 34)], [(100, 120), (0, 100)]])
def test_index_and_provenance_are_those_of_the_documents(
    index: IndexContext, expected: list[Any], monkeypatch: pytest.MonkeyPatch, chosen: list[tuple[int, int]]
) -> None:
    monkeypatch.setattr(provenance, "LENGTHS_AT_A_TIME", 7)
    pair, documents = pair_of(index, expected, chosen)
    stats = write_pair_index(index, ("zh", pair, True))
    assert stats["documents"] == len(documents)
    sequences = [row[3] for row in documents]
    assert index.out.read_bytes("zh.idx") == naive_index(sequences, "uint16")
    assert index.out.read_bytes("zh_mask.idx") == naive_index(sequences, "uint8")
    rows = pq.read_table(index.out.path("zh.parquet")).to_pylist()
    at = 0
    for number, (row, (shard, place, record, document)) in enumerate(zip(rows, documents, strict=True)):
        assert row == {
            "document": number,
            "sequence": at,
            "sequences": len(document),
            "tokens": sum(map(len, document)),
            "shard": shard,
            "row": place,
            **{name: record[name] for name in ("id", "source", "language")},
            "cluster": None,
            "component": None,
        }
        at += len(document)


def test_without_an_id_column_the_place_is_the_id(index: IndexContext, expected: list[Any]) -> None:
    pair, _ = pair_of(index, expected, [(68, 72)])
    write_pair_index(index._replace(ids=False), ("zh", pair, False))
    assert pq.read_table(index.out.path("zh.parquet")).column("id").to_pylist() == [
        *("a.parquet#68", "a.parquet#69"),
        *("b.parquet#0", "b.parquet#1"),
    ]


def test_rows_are_read_in_any_range(index: IndexContext) -> None:
    whole = [row for batch in document_rows(index.pieces, "000000", 0, 10**9) for row in batch.to_pylist()]
    for first in (0, 1, 19, 20, 25):
        for count in (0, 1, 20, 100):
            found = [row for batch in document_rows(index.pieces, "000000", first, count) for row in batch.to_pylist()]
            assert found == whole[first : first + count]
    [batch, *_] = document_rows(index.pieces, "000000", 0, 5, ("tokens", "sequences"))
    assert batch.schema.names == ["tokens", "sequences"]


def test_rows_and_lengths_of_a_pair_agree(index: IndexContext, expected: list[Any]) -> None:
    pair, _ = pair_of(index, expected, [(10, 90)])
    lengths = np.concatenate(list(lengths_of(index, pair)))
    assert len(lengths) == sum(batch.column("sequences").to_numpy().sum() for batch in rows_of(index, pair))
    assert lengths.sum() == pair.total("tokens")


def test_lengths_that_do_not_sum_up_to_the_tokens_are_refused(index: IndexContext, expected: list[Any]) -> None:
    pair, _ = pair_of(index, expected, [(0, 10)])
    [part] = pair.parts
    with pytest.raises(InvariantError, match="tokens in all"):
        write_pair_index(index, ("zh", pair._replace(parts=(part._replace(tokens=part.tokens + 1),)), False))


def batches(count: int, cuts: list[int], id_bytes: int) -> Iterator[pa.RecordBatch]:
    """Rows cut at these places."""
    columns = {
        "document": pa.nulls(count, pa.int64()),
        "sequence": pa.nulls(count, pa.int64()),
        "sequences": pa.array([number % 3 for number in range(count)], pa.int32()),
        "tokens": pa.array(range(count), pa.int64()),
        "shard": pa.array([f"shard-{number // 40}" for number in range(count)], pa.large_string()),
        "row": pa.array(range(count), pa.int64()),
        "id": pa.array([f"{number}".ljust(id_bytes, "_") for number in range(count)], pa.large_string()),
        "source": pa.array([None if number % 5 else "书" for number in range(count)], pa.large_string()),
    }
    columns |= {field.name: pa.nulls(count, field.type) for field in PROVENANCE_SCHEMA if field.name not in columns}
    whole = pa.RecordBatch.from_arrays([columns[name] for name in PROVENANCE_SCHEMA.names], schema=PROVENANCE_SCHEMA)
    for first, last in zip([0, *cuts], [*cuts, count], strict=True):
        yield whole.slice(first, last - first)


def written(count: int, cuts: list[int], id_bytes: int = 10) -> bytes:
    sink = io.BytesIO()
    write_provenance(sink, batches(count, cuts, id_bytes))
    return sink.getvalue()


@given(st.integers(0, 300), st.lists(st.integers(0, 300), max_size=8))
def test_how_rows_are_cut_into_batches_changes_no_byte(count: int, cuts: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provenance, "GROUP_ROWS", 100)
        one = written(count, [])
        assert written(count, sorted(min(cut, count) for cut in cuts)) == one
    file = pq.ParquetFile(io.BytesIO(one))
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [
        min(100, count - first) for first in range(0, count, 100)
    ]
    table = file.read()
    assert table.column("document").to_pylist() == list(range(count))
    assert table.column("sequence").to_pylist() == [sum(n % 3 for n in range(number)) for number in range(count)]


def test_batches_that_would_end_a_page_change_no_byte() -> None:
    """Parquet looks at the size of a page, 1 MB, where a batch ends."""
    assert written(60, [37, 38], id_bytes=40_000) == written(60, [], id_bytes=40_000)
