"""`taojin merge`: pairs one after another, nothing encoded again."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

from taojin import merging
from tests.jobs import Outcome, taojin, write_parquet
from tests.megatron_pairs import write_pair
from tests.pair_checks import broken, byte_tokenizer, findings
from tests.token_runs import (
    documents_of,
    manifest_of,
    naive_pair,
    names_of,
    outputs,
    pair_of,
    provenance,
    records,
    small_tokenizer,
    tokenize,
)


def merge(output: Path, *inputs: object, cpus: str = "0") -> Outcome:
    return taojin("merge", "--input", *inputs, "--output", output, "--num-cpus", cpus, "--quiet", "--json")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One corpus as a whole, in sizes, by source, and a half of it at a time."""
    root = tmp_path_factory.mktemp("root")
    tokenizer = small_tokenizer(root)
    for shard in range(2):
        write_parquet(root / "in" / f"{shard}.parquet", records(shard, 100), row_group_size=30)
    for name, flags in (
        ("whole", []),
        ("sizes", ["--shard-tokens", "3000", "--unit-mb", "0.01"]),
        ("sources", ["--by-source", "--split", "train=0.5,valid=0.5"]),
    ):
        assert tokenize(root / name / "zh", root / "in", tokenizer, *flags).status == 0
    for shard in range(2):
        assert tokenize(root / f"half{shard}" / "zh", root / "in" / f"{shard}.parquet", tokenizer).status == 0
    return root


# ---------------------------------------------------------------------------- the bytes


def test_what_was_cut_by_size_is_whole_again(root: Path, tmp_path: Path) -> None:
    """With the provenance, byte for byte."""
    outcome = merge(tmp_path / "all", root / "sizes" / "zh")
    assert outcome.status == 0, outcome.err
    for suffix in (".bin", ".idx", ".parquet"):
        assert Path(f"{tmp_path / 'all'}{suffix}").read_bytes() == Path(f"{root / 'whole' / 'zh'}{suffix}").read_bytes()
    assert outcome.counts["documents"] == 200
    assert outcome.counts["empty"] == manifest_of(root / "whole" / "zh")["counts"]["empty"]
    assert not broken(tmp_path / "all")


def test_documents_follow_each_other_in_the_order_of_the_inputs(root: Path, tmp_path: Path) -> None:
    names = [root / "half1" / "zh", root / "half0" / "zh"]
    assert merge(tmp_path / "all", *names).status == 0
    assert documents_of(tmp_path / "all") == [document for name in names for document in documents_of(name)]
    rows = provenance(tmp_path / "all")
    theirs = [row for name in names for row in provenance(name)]
    assert [row["id"] for row in rows] == [row["id"] for row in theirs]
    assert [row["document"] for row in rows] == list(range(200))
    sequences = [sum(row["sequences"] for row in rows[:number]) for number in range(200)]
    assert [row["sequence"] for row in rows] == sequences


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32"])
def test_bare_pairs_of_anybody_are_merged(tmp_path: Path, dtype: str) -> None:
    """Empty ones and empty documents among them; without provenance, as none has it."""
    pairs: list[list[list[list[int]]]] = [[[[1, 2], [3]], [], [[4]]], [], [[]], [[[5, 6, 7]]]]
    for number, documents in enumerate(pairs):
        write_pair(tmp_path / str(number), documents, dtype)
    assert merge(tmp_path / "all", *(tmp_path / str(number) for number in range(len(pairs)))).status == 0
    assert pair_of(tmp_path / "all") == naive_pair([document for its in pairs for document in its], dtype)
    assert not Path(tmp_path / "all.parquet").exists()
    assert not broken(tmp_path / "all")


def test_provenance_is_written_only_where_all_have_it(root: Path, tmp_path: Path) -> None:
    write_pair(tmp_path / "bare", [[[1, 0]]], "uint16")
    assert merge(tmp_path / "all", root / "half0" / "zh", tmp_path / "bare").status == 0
    assert not Path(tmp_path / "all.parquet").exists()
    assert documents_of(tmp_path / "all")[-1] == [1, 0]


def test_a_large_pair_is_copied_in_many_tasks(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "SPAN_BYTES", 1001)
    for suffix in (".bin", ".idx"):
        shutil.copy(f"{root / 'whole' / 'zh'}{suffix}", tmp_path / f"bare{suffix}")
    assert merge(tmp_path / "all", tmp_path / "bare", root / "half0" / "zh").status == 0
    expected = (tmp_path / "bare.bin").read_bytes() + (root / "half0" / "zh.bin").read_bytes()
    assert (tmp_path / "all.bin").read_bytes() == expected


def test_merging_again_or_what_was_merged_is_possible(root: Path, tmp_path: Path) -> None:
    assert merge(tmp_path / "a", root / "half0" / "zh", root / "half1" / "zh").status == 0
    before = outputs(tmp_path / "a")
    assert merge(tmp_path / "a", root / "half0" / "zh", root / "half1" / "zh").status == 0
    assert outputs(tmp_path / "a") == before
    write_pair(tmp_path / "bare", [[[1, 0]]], "uint16")
    assert merge(tmp_path / "b", tmp_path / "bare").status == 0
    assert merge(tmp_path / "c", tmp_path / "b", tmp_path / "a").status == 0
    assert documents_of(tmp_path / "c") == [[1, 0], *documents_of(tmp_path / "a")]
    assert not broken(tmp_path / "c")


def test_the_pairs_of_one_split_are_named_one_by_one(root: Path, tmp_path: Path) -> None:
    names = [root / "sources" / name for name in names_of(root / "sources" / "zh") if "_train_" in name]
    assert merge(tmp_path / "train", *names).status == 0
    assert sorted(row["source"] or "" for row in provenance(tmp_path / "train")) == sorted(
        row["source"] or "" for name in names for row in provenance(name)
    )
    found = findings(tmp_path / "train")
    assert found["tokens"][0] == "proved"


# ---------------------------------------------------------------------------- what is refused


def test_what_cannot_be_one_pair_is_refused(root: Path, tmp_path: Path) -> None:
    byte = byte_tokenizer(tmp_path / "byte.json")
    source, small = root / "in" / "0.parquet", small_tokenizer(root)
    for name, tokenizer, flags in (
        ("other", byte, []),
        ("sentences", small, ["--level", "sentence"]),
        ("endless", small, ["--no-append-eod"]),
        ("ended", small, ["--eod", "<|im_end|>"]),
    ):
        assert tokenize(tmp_path / name, source, tokenizer, *flags).status == 0
    zh = root / "half1" / "zh"
    merge(tmp_path / "all", zh, tmp_path / "other").refuses(2, "other: ", "another tokenizer")
    merge(tmp_path / "all", zh, tmp_path / "sentences").refuses(2, "sentences: ", "another level")
    for name in ("endless", "ended"):
        merge(tmp_path / "all", zh, tmp_path / name).refuses(2, f"{name}: ", "another end of documents")
    write_pair(tmp_path / "wide", [[[1]]], "int32")
    merge(tmp_path / "all", zh, tmp_path / "wide").refuses(2, "wide: its tokens are int32", "uint16")
    merge(tmp_path / "all", root / "sources" / "zh").refuses(2, "has the splits train, valid", "zh_train_no-source")
    assert not list(tmp_path.glob("all*"))


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda root, tmp: (tmp / "all", root / "half0" / "zh", root / "half0" / "zh"), ["named twice"]),
        (lambda root, tmp: (tmp / "all", root / "half0" / "zh", f"{root}/half0/../half0/zh"), ["named twice"]),
        (lambda root, tmp: (root / "half0" / "zh", root / "half0" / "zh"), ["--output", "name another"]),
        (lambda root, tmp: (tmp / "all", tmp / "nowhere"), ["nowhere.idx", "no such file"]),
        (lambda root, tmp: (f"{tmp}/", root / "half0" / "zh"), ["expected a PREFIX"]),
        (lambda root, tmp: (root / "whole" / "zh", root / "half0" / "zh"), ["zh.manifest.json: the output of another"]),
    ],
)
def test_names_that_cannot_be_are_refused(
    root: Path, tmp_path: Path, change: Callable[[Path, Path], Any], parts: list[str]
) -> None:
    before = outputs(root / "whole" / "zh") | outputs(root / "half0" / "zh")
    merge(*change(root, tmp_path)).refuses(2, *parts)
    assert outputs(root / "whole" / "zh") | outputs(root / "half0" / "zh") == before


def test_an_output_of_somebody_else_is_not_written_over(root: Path, tmp_path: Path) -> None:
    write_pair(tmp_path / "all", [[[9]]], "uint16")
    before = pair_of(tmp_path / "all")
    merge(tmp_path / "all", root / "half0" / "zh").refuses(2, "all.bin: exists already")
    assert pair_of(tmp_path / "all") == before


def test_the_mask_of_conversations_is_not_lost_unseen(root: Path, tmp_path: Path) -> None:
    for suffix in (".bin", ".idx", ".manifest.json"):
        shutil.copy(f"{root / 'half0' / 'zh'}{suffix}", tmp_path / f"zh{suffix}")
    manifest = manifest_of(tmp_path / "zh")
    manifest["pairs"][0]["files"]["mask_bin"] = manifest["pairs"][0]["files"]["bin"]
    (tmp_path / "zh.manifest.json").write_bytes(orjson.dumps(manifest))
    merge(tmp_path / "all", tmp_path / "zh").refuses(2, "loss mask")


def damaged(root: Path, tmp: Path, suffix: str, change: Callable[[bytes], bytes]) -> Path:
    shutil.copytree(root / "half0", tmp / "half0")
    path = tmp / "half0" / f"zh{suffix}"
    path.write_bytes(change(path.read_bytes()))
    return tmp / "half0" / "zh"


def test_a_damaged_pair_is_not_merged(root: Path, tmp_path: Path) -> None:
    prefix = damaged(root, tmp_path, ".bin", lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:])
    merge(tmp_path / "all", prefix).refuses(1, "zh.bin: its checksum", "make it again")
    assert not Path(tmp_path / "all.bin").exists()
    shutil.copy(root / "half0" / "zh.bin", prefix.parent)
    assert merge(tmp_path / "all", prefix).status == 0
    assert pair_of(tmp_path / "all") == pair_of(root / "half0" / "zh")


def test_a_pair_that_was_cut_is_not_merged(root: Path, tmp_path: Path) -> None:
    prefix = damaged(root, tmp_path, ".bin", lambda data: data[:-2])
    merge(tmp_path / "all", prefix).refuses(2, "zh.bin: expected")


def test_a_provenance_of_another_pair_is_refused(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "half0", tmp_path / "half0")
    pq.write_table(pq.read_table(root / "half0" / "zh.parquet").slice(1), tmp_path / "half0" / "zh.parquet")
    merge(tmp_path / "all", tmp_path / "half0" / "zh").refuses(2, "zh.parquet: expected the provenance of 100")


def test_inputs_that_were_made_again_are_merged_again(root: Path, tmp_path: Path) -> None:
    """Not what an earlier run merged of others of the same name."""
    shutil.copytree(root / "half0", tmp_path / "half0")
    assert merge(tmp_path / "all", tmp_path / "half0" / "zh").status == 0
    shutil.rmtree(tmp_path / "half0")
    tokenizer = small_tokenizer(root)
    assert tokenize(tmp_path / "half0" / "zh", root / "in" / "0.parquet", tokenizer, "--shuffle").status == 0
    merge(tmp_path / "all", tmp_path / "half0" / "zh").refuses(2, "the output of another run")
