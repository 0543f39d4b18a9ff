import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.cells import cell_len

from taojin.dedup.config import DedupConfig
from taojin.explain import ExplainConfig, run_explain
from taojin.pipeline import run_dedup
from tests import naive
from tests.jobs import chinese

RNG = random.Random(1)
BASE = chinese(RNG, 300)
EDITED = BASE[:150] + "改了这里" + BASE[154:]
DOCUMENTS = {
    "long": BASE + "结尾",
    "edited": EDITED,
    "copy": BASE + "结尾",
    "alone": chinese(RNG, 200),
    "short-1": "你好，世界",
    "short-2": "你好 世界",
    "empty": "",
    "twin-id": chinese(RNG, 100),
}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("explain")
    (root / "in" / "中文").mkdir(parents=True)
    ids, texts = list(DOCUMENTS), list(DOCUMENTS.values())
    for name, low, high in (("a.parquet", 0, 4), ("中文/b.parquet", 4, 8)):
        table = pa.table({"id": ids[low:high], "text": texts[low:high], "source": ["网页"] * (high - low)})
        pq.write_table(table, root / "in" / name)
    again = pa.table({"id": ["twin-id"], "text": [chinese(RNG, 100)], "source": ["网页"]})
    pq.write_table(again, root / "in" / "z.parquet")
    dedup(root)
    return root / "out.work"


def dedup(root: Path, **settings: Any) -> None:
    values = {"input": (str(root / "in"),), "output": str(root / "out"), "num_cpus": 0, "quiet": True}
    run_dedup(DedupConfig(**{**values, **settings}))


def explained(work: Path, document: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run_explain(ExplainConfig(work=str(work), document=document, as_json=True)) == 0
    value = orjson.loads(capsys.readouterr().out)
    assert isinstance(value, dict)
    return value


def printed(work: Path, document: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert run_explain(ExplainConfig(work=str(work), document=document)) == 0
    return capsys.readouterr().out


# ---------------------------------------------------------------------------- what became of a document


def test_a_near_duplicate_names_its_survivor_with_measured_similarity(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = explained(work, "edited", capsys)
    assert facts["kept"] is False
    assert facts["reason"] == "near_duplicate"
    assert facts["survivor"]["id"] == "long"
    assert (facts["survivor"]["shard"], facts["survivor"]["row"]) == ("a.parquet", 0)
    expected = naive.text_jaccard(DOCUMENTS["edited"], DOCUMENTS["long"], 5)
    assert facts["evidence"]["jaccard"] == pytest.approx(expected)
    assert facts["evidence"]["first_difference"] == 150
    assert facts["evidence"]["passages"][0]["at"] == [0, 0]


def test_an_exact_duplicate_shows_the_same_bytes(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = explained(work, "copy", capsys)
    assert facts["reason"] == "exact_duplicate"
    assert facts["evidence"]["same_bytes"] is True
    assert "the same bytes" in printed(work, "copy", capsys)


def test_a_short_text_says_it_was_compared_folded(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    removed = [explained(work, name, capsys) for name in ("short-1", "short-2")]
    gone = next(facts for facts in removed if not facts["kept"])
    assert gone["reason"] == "folded_duplicate"
    assert "once folded" in gone["why"]


def test_an_empty_text_has_no_survivor(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = explained(work, "empty", capsys)
    assert (facts["reason"], facts["survivor"]) == ("empty_text", None)
    assert "could not be compared" in printed(work, "empty", capsys)


def test_a_survivor_lists_what_went_in_its_favour(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = explained(work, "long", capsys)
    assert facts["kept"] is True
    assert facts["cluster_size"] == 3
    assert [other["id"] for other in facts["in_its_favour"]] == ["edited", "copy"]
    assert facts["in_its_favour"][1]["exact_jaccard"] == 1.0
    assert facts["component_size"] == 3
    assert "went in its favour" in printed(work, "long", capsys)


def test_a_document_like_no_other_says_so(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no other text with similarity 0.8 or more" in printed(work, "alone", capsys)


def test_a_missing_input_still_explains_from_the_work_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"id": ["a", "b"], "text": [BASE, EDITED]}), tmp_path / "in" / "x.parquet")
    dedup(tmp_path)
    (tmp_path / "in" / "x.parquet").unlink()
    facts = explained(tmp_path / "out.work", "b", capsys)
    assert facts["evidence"] is None
    assert "x.parquet" in facts["no_evidence_because"]
    assert "not shown" in printed(tmp_path / "out.work", "b", capsys)


def test_a_survivor_in_an_index_is_found_and_compared(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"id": ["new"], "text": [EDITED]}), tmp_path / "in" / "x.parquet")
    dedup(tmp_path, against=(str(work),))
    facts = explained(tmp_path / "out.work", "new", capsys)
    assert facts["survivor"]["work"] == str(work)
    assert facts["survivor"]["id"] == "long"
    assert facts["evidence"]["jaccard"] > 0.9


def test_keep_none_names_a_partner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"id": ["a", "b"], "text": [BASE, EDITED]}), tmp_path / "in" / "x.parquet")
    dedup(tmp_path, keep_none=True)
    assert explained(tmp_path / "out.work", "a", capsys)["survivor"] == {
        "work": None, "shard": "x.parquet", "row": 1, "position": 1, "id": "b", "kept": False,
    }  # fmt: skip
    assert "partner" in printed(tmp_path / "out.work", "a", capsys)


# ---------------------------------------------------------------------------- what is taken and what is printed


def test_an_id_that_occurs_twice_shows_the_first_and_names_the_other(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = explained(work, "twin-id", capsys)
    assert facts["document"]["shard"] == "z.parquet"
    assert facts["same_id"] == ["中文/b.parquet#3"]


def test_documents_without_an_id_column_are_named_by_shard_and_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"text": [BASE, EDITED]}), tmp_path / "in" / "x.parquet")
    dedup(tmp_path)
    assert explained(tmp_path / "out.work", "x.parquet#1", capsys)["document"]["id"] == "x.parquet#1"


def test_of_several_decisions_the_newest_is_taken_and_the_others_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"id": ["a", "b"], "text": [BASE, EDITED]}), tmp_path / "in" / "x.parquet")
    dedup(tmp_path)
    time.sleep(0.02)
    dedup(tmp_path, threshold=0.99, output=str(tmp_path / "out2"), work=str(tmp_path / "out.work"))
    facts = explained(tmp_path / "out.work", "b", capsys)
    assert facts["kept"] is True
    assert facts["settings"]["threshold"] == 0.99
    older = facts["other_decisions"][0]
    assert older in printed(tmp_path / "out.work", "b", capsys)
    assert explained(tmp_path / "out.work" / older, "b", capsys)["kept"] is False


@pytest.mark.parametrize("document", ["edited", "long", "copy", "empty"])
def test_no_printed_line_is_wider_than_80_columns(
    work: Path, document: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for line in printed(work, document, capsys).splitlines():
        assert cell_len(line) <= 80, line


def test_piped_output_holds_no_escape_sequences(work: Path) -> None:
    command = [sys.executable, "-m", "taojin.cli", "explain", str(work), "edited"]
    done = subprocess.run(command, capture_output=True, check=True, encoding="utf-8", env={"PYTHONUTF8": "1"})
    assert "\x1b" not in done.stdout
    assert "⟦" in done.stdout
