"""What the demo reads out of a ledger (demo_findings.py) and how it prints it (demo_report.py)."""

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.cells import cell_len
from rich.console import Console

from taojin.demo_corpus import SOURCES, CorpusSummary, SourceSummary
from taojin.demo_findings import Example, Place, Removal, Tally, choose_examples, difference, read_findings
from taojin.demo_report import marked, print_corpus, print_examples, print_places, print_removals

ENGLISH = (
    "Permission is hereby granted, free of charge, to any person obtaining a copy of this software, {} and others. " * 2
)
CHINESE = "这家酒店的位置很好，房间{}，服务员也很热情，早餐的品种很多，下次来北京出差还会住在这里，推荐给大家。"
TEXTS = {
    "licences-000.parquet": [ENGLISH.format("Ada", "Ada"), "one of a kind", ENGLISH.format("Grace", "Grace")],
    "reviews-000.parquet": [
        *(CHINESE.format("很干净"), "不错，非常好！", CHINESE.format("很宽敞"), "不错非常好", ""),
        *(CHINESE.format("又大又干净" * 9), CHINESE.format("很干净")),
    ],
}
LEDGER: list[tuple[str, int, str, float | None, str, str | None, int | None]] = [
    ("licences-000.parquet", 2, "near_duplicate", 0.91, "sketch", "licences-000.parquet", 0),
    ("reviews-000.parquet", 2, "near_duplicate", 0.88, "exact", "reviews-000.parquet", 0),
    ("reviews-000.parquet", 3, "folded_duplicate", 1.0, "hash", "reviews-000.parquet", 1),
    ("reviews-000.parquet", 4, "empty_text", None, "hash", None, None),
    ("reviews-000.parquet", 6, "exact_duplicate", 1.0, "hash", "reviews-000.parquet", 0),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A corpus of two shards, in row groups of two, and its ledger in two files."""
    (tmp_path / "corpus").mkdir()
    (tmp_path / "ledger").mkdir()
    for shard, texts in TEXTS.items():
        source = shard.partition("-")[0]
        columns = {
            "id": [f"{shard}:{row}" for row in range(len(texts))],
            "text": texts,
            "source": [source] * len(texts),
        }
        pq.write_table(pa.table(columns), tmp_path / "corpus" / shard, row_group_size=2)
    names = ["shard", "row", "reason", "similarity", "verified", "survivor_shard", "survivor_row"]
    for number, entries in enumerate((LEDGER[:2], LEDGER[2:])):
        rows = [dict(zip(names, entry, strict=True)) for entry in entries]
        for row in rows:
            row["id"] = f"{row['shard']}:{row['row']}"
            row["survivor_id"] = row["survivor_shard"] and f"{row['survivor_shard']}:{row['survivor_row']}"
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "ledger" / f"{number}.parquet")
    return tmp_path


def summary_of(folder: Path) -> CorpusSummary:
    sources = {source: SourceSummary(documents=0, text_bytes=0) for source in SOURCES}
    for shard, texts in TEXTS.items():
        text_bytes = sum(len(text.encode()) for text in texts)
        sources[shard.partition("-")[0]] = SourceSummary(documents=len(texts), text_bytes=text_bytes)
    return CorpusSummary(
        folder=folder / "corpus", shards=tuple(TEXTS), sources=sources, left_out={"files too many": 1200}
    )


def printed(folder: Path, *, width: int, terminal: bool = False) -> str:
    summary, findings = summary_of(folder), read_findings(folder / "corpus", folder / "ledger")
    console = Console(
        file=io.StringIO(), width=width, force_terminal=terminal, color_system="standard" if terminal else "auto"
    )
    examples = choose_examples(folder / "corpus", findings)
    print_corpus(console, summary, 12.3)
    print_removals(console, summary, findings, 4.5)
    print_examples(console, examples)
    print_places(console, folder, folder / "ledger", examples)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_removals_are_summed_by_reason_and_by_source(folder: Path) -> None:
    findings = read_findings(folder / "corpus", folder / "ledger")
    assert findings.reasons == ["exact_duplicate", "folded_duplicate", "near_duplicate", "empty_text"]
    assert findings.total() == Tally(
        documents=5, text_bytes=sum(len(TEXTS[shard][row].encode()) for shard, row, *_ in LEDGER)
    )
    assert findings.total(reason="near_duplicate").documents == 2
    assert findings.total(source="reviews").documents == 4
    assert findings.total(reason="near_duplicate", source="licences").text_bytes == len(
        TEXTS["licences-000.parquet"][2]
    )


def test_the_examples_are_an_english_a_chinese_and_a_folded_one(folder: Path) -> None:
    examples = choose_examples(folder / "corpus", read_findings(folder / "corpus", folder / "ledger"))
    assert [example.removal.document_id for example in examples] == [f"{shard}:{row}" for shard, row, *_ in LEDGER[:3]]
    for example in examples:
        assert example.removed_text == TEXTS[example.removal.document.shard][example.removal.document.row]
        assert example.survivor_text == TEXTS[example.removal.survivor.shard][example.removal.survivor.row]


@pytest.mark.parametrize("width", [80, 120])
def test_piped_output_has_no_control_codes_and_marks_what_differs(folder: Path, width: int) -> None:
    output = printed(folder, width=width)
    assert "\x1b" not in output
    for line in output.splitlines():
        assert cell_len(line) <= width or line.startswith("  "), line  # paths and commands are never broken
    assert "⟦宽敞⟧" in output
    assert "⟦干净⟧" in output
    assert "1,200 files too many" in output
    assert f"taojin explain {folder / 'clean.work'} reviews-000.parquet:2" in output


def test_a_terminal_gets_colours_in_place_of_marks(folder: Path) -> None:
    output = printed(folder, width=100, terminal=True)
    assert "\x1b[1;31m宽敞" in output
    assert "⟦" not in output


def test_differences_rebuild_both_texts() -> None:
    removed, survivor = "Copyright (c) 2020 Ada\n很宽敞。", "Copyright (c) 2021 Ada  很干净，好。"
    pieces = difference(removed, survivor)
    assert "".join(of_removed for _, of_removed, _ in pieces) == removed
    assert "".join(of_survivor for _, _, of_survivor in pieces) == survivor
    assert (False, "2020", "2021") in pieces
    assert difference("an old red hat", "a new red hat") == [
        (False, "an old", "a new"),
        (True,) + (" red hat",) * 2,
    ]


def test_control_characters_of_a_text_do_not_reach_the_terminal() -> None:
    place = Place("a.parquet", 0)
    removal = Removal("near_duplicate", 0.9, "exact", "licences", 9, place, "a", place, "b")
    removed, _ = marked(Example("title", removal, "red \x1b[31m", "red"), plain=True)
    assert "\x1b" not in removed.plain
