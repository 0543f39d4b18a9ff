import pytest

from taojin.core.errors import InputError
from taojin.core.sidecars import Corpus
from taojin.naming import find_document
from taojin.opened import open_work, place_of
from tests import jobs

IDS = {
    "a.parquet": ["long", "edited", "copy", "alone"],
    "中文/b.parquet": ["short-1", "short-2", "empty", "twin-id"],
    "z.parquet": ["twin-id"],
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    root = tmp_path_factory.mktemp("naming")
    for path, ids in IDS.items():
        jobs.write_parquet(root / "in" / path, [{"id": name, "text": f"{path} {name}"} for name in ids])
    assert jobs.dedup(root / "in", root / "out").status == 0
    return open_work(f"{root}/out.work").corpus


@pytest.mark.parametrize("name", ["short-1", "中文/b.parquet#0", "b.parquet#0", str(2 << 40)])
def test_a_document_is_found_by_id_shard_and_row_or_position(corpus: Corpus, name: str) -> None:
    ordinal, namesakes = find_document(corpus, name)
    assert (place_of(corpus, ordinal), namesakes) == ("中文/b.parquet#0", [])


def test_an_id_that_occurs_twice_is_found_twice(corpus: Corpus) -> None:
    ordinal, namesakes = find_document(corpus, "twin-id")
    assert [place_of(corpus, found) for found in (ordinal, *namesakes)] == ["z.parquet#0", "中文/b.parquet#3"]


@pytest.mark.parametrize(
    ("name", "near"),
    [("edite", "edited"), ("EDITED", "edited"), ("a.parque#1", "a.parquet#1"), ("a.parquet#9", "rows 0 to 3")],
)
def test_a_wrong_name_brings_near_ones(corpus: Corpus, name: str, near: str) -> None:
    with pytest.raises(InputError, match=near) as caught:
        find_document(corpus, name)
    assert caught.value.exit_status == 2
