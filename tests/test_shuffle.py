"""Buckets: pieces by unit become pieces by key."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from taojin.tokenize import shuffle
from taojin.tokenize.pieces import RUN_TOKENS, EncodeContext, encode_unit
from taojin.tokenize.shuffle import ShuffleContext, num_buckets, shuffle_bucket
from tests.jobs import write_parquet
from tests.test_pieces import context_of, expected_of, read_piece, with_runs_of
from tests.token_runs import counts, outputs, records, small_tokenizer, tokenize

SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"split": "train=0.6,valid=0.4"},
    {"by_source": True, "level": "sentence"},
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("corpus")
    write_parquet(root / "in" / "a.parquet", records(3, 150), row_group_size=20)
    small_tokenizer(root)
    return root


def shuffled(context: EncodeContext, buckets: int) -> list[dict[str, Any]]:
    encoded = [encode_unit(context, unit) for unit in range(len(context.source.plan.units))]
    names = tuple(tuple((seg["split"], seg["source"]) for seg in stats["segments"]) for stats in encoded)
    return [shuffle_bucket(ShuffleContext(context, names, buckets), bucket) for bucket in range(buckets)]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("buckets", [1, 3, 16])
@pytest.mark.parametrize("unit_mb", [0.005, 128])
def test_buckets_in_a_row_are_all_documents_of_a_pair_by_key(
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    buckets: int,
    unit_mb: float,
) -> None:
    context = context_of(corpus, tmp_path, shuffle=True, unit_mb=unit_mb, **settings)
    with_runs_of(monkeypatch, 3000)
    stats = shuffled(context, buckets)
    expected = expected_of(corpus, sentences=settings.get("level") == "sentence")
    keys: dict[tuple[str, str], list[int]] = {}
    seen = []
    for bucket, bucket_stats in enumerate(stats):
        piece = read_piece(context, "shuffled", bucket)
        ids = piece.table.column("id").to_pylist()
        assert piece.documents() == [expected[id] for id in ids]
        assert [(s["split"], s["source"]) for s in bucket_stats["segments"]] == sorted(
            {(s["split"], s["source"]) for s in bucket_stats["segments"]}
        )
        document = 0
        for segment in bucket_stats["segments"]:
            rows = piece.table.slice(document, segment["documents"])
            keys.setdefault((segment["split"], segment["source"]), []).extend(rows.column("key").to_pylist())
            document += segment["documents"]
        seen += ids
    assert sorted(seen) == sorted(expected)
    assert all((np.diff(np.array(its, np.uint64)) > 0).all() for its in keys.values())
    assert sum(entry["tokens"] for entry in stats) == sum(len(s) for d in expected.values() for s in d)


def test_equal_keys_stay_in_the_order_of_the_input(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "taojin.tokenize.pieces.shuffle_keys", lambda seed, shard, piece, rows: np.full(len(rows), 2**63, np.uint64)
    )
    context = context_of(corpus, tmp_path, shuffle=True, unit_mb=0.005)
    shuffled(context, 2)
    assert read_piece(context, "shuffled", 0).batches == []
    assert read_piece(context, "shuffled", 1).table.column("id").to_pylist() == list(expected_of(corpus))


def test_a_bucket_holds_about_a_run_of_tokens() -> None:
    assert [num_buckets(tokens) for tokens in (0, 1, RUN_TOKENS, RUN_TOKENS + 1, 100 * RUN_TOKENS)] == [1, 1, 1, 2, 100]


def test_the_number_of_buckets_changes_no_byte(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("--shuffle", "--split", "a=0.5,b=0.5", "--shard-tokens", "5000")
    for buckets in (1, 5):
        with monkeypatch.context() as patch:
            patch.setattr(shuffle, "RUN_TOKENS", 40_000 // buckets)
            counts(tokenize(tmp_path / str(buckets) / "zh", corpus / "in", corpus / "gpt2.json", *flags))
    assert len(list((tmp_path / "5" / "zh.work" / "shuffled").glob("*.bin"))) >= 4
    assert outputs(tmp_path / "1" / "zh") == outputs(tmp_path / "5" / "zh")


def test_the_keys_of_a_bucket_reach_both_ends() -> None:
    """2^64 - 1 is a key, too."""
    keys = np.array([0, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
    table = pa.record_batch({"key": pa.array(keys)})
    halves = [shuffle.range_of_keys(table, bucket, 2) for bucket in (0, 1)]
    assert halves == [(0, 2), (2, 4)]
