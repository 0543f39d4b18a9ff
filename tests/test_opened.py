from pathlib import Path

import numpy as np
import pytest

from taojin.core.errors import InputError
from taojin.opened import open_work, read_decisions, read_rows, read_texts, split_decision
from tests import jobs

RECORDS = [{"id": str(row), "text": f"第{row}篇", "source": "网页"} for row in range(9)] + [{"id": "x", "text": None}]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    jobs.write_parquet(tmp_path / "in" / "a.parquet", RECORDS, row_group_size=3)
    assert jobs.dedup(tmp_path / "in", tmp_path / "out").status == 0
    return tmp_path


def test_a_folder_that_is_no_work_is_refused_with_a_hint(root: Path) -> None:
    with pytest.raises(InputError, match=r"found neither$"):
        open_work(f"{root}/in")
    with pytest.raises(InputError, match=r"its WORK is .*out\.work"):
        open_work(f"{root}/out")


def test_a_work_folder_or_a_decision_in_it_may_be_named(root: Path) -> None:
    opened = open_work(f"{root}/out.work")
    assert open_work(opened.decide.uri).decide == opened.decide
    assert read_decisions(opened.decide, 0).num_rows == len(RECORDS)


def test_a_decision_of_an_object_store_keeps_the_connection() -> None:
    work, chosen = split_decision("s3://b/out.work/decide-1?scheme=http&endpoint_override=h:1/x")
    assert (work.uri, chosen) == ("s3://b/out.work?scheme=http&endpoint_override=h:1/x", "decide-1")


@pytest.mark.parametrize("stage", ["scan", "decisions"])
def test_an_unfinished_work_folder_is_refused(root: Path, stage: str) -> None:
    for path in (root / "out.work").rglob(f"stats/{stage}/*.json"):
        path.unlink()
    with pytest.raises(InputError, match="run the same command again"):
        open_work(f"{root}/out.work")


def test_rows_are_read_again_as_they_were(root: Path) -> None:
    corpus = open_work(f"{root}/out.work").corpus
    rows = read_rows(corpus, np.array([1, 2, 7]), ["id", "text"])
    assert rows.to_pylist() == [{key: RECORDS[row][key] for key in ("id", "text")} for row in (1, 2, 7)]
    assert read_texts(corpus, np.array([9, 0, 9])) == {0: "第0篇".encode(), 9: b""}


def test_a_missing_and_a_changed_input_are_named(root: Path) -> None:
    corpus = open_work(f"{root}/out.work").corpus
    jobs.write_parquet(root / "in" / "a.parquet", RECORDS[1:])
    with pytest.raises(InputError, match=r"a\.parquet has changed since the scan"):
        read_texts(corpus, np.array([0]))
    (root / "in" / "a.parquet").unlink()
    with pytest.raises(InputError, match=r"a\.parquet cannot be read"):
        read_texts(corpus, np.array([0]))
