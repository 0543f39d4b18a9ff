import csv
import json
import pickle
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taojin.core.errors import ConfigError, InputError
from taojin.core.fold import FoldTable, load_fold_table
from taojin.core.text import SYMBOLS_PER_BYTE, fold_symbols
from taojin.quality.contamination import EXCERPT_CHARS, HITS_SCHEMA, Finder
from taojin.quality.cutting import (
    CLEAN,
    CONTAMINATED,
    CUT,
    MOSTLY_CONTAMINATED,
    Cuts,
    cut_array,
    cut_spans,
    decide,
)
from taojin.quality.positions import fold_positions
from taojin.quality.question_files import Question, read_questions
from taojin.quality.questions import Questions, load_questions, make_questions, questions_part, split_spec
from tests import naive_contamination
from tests.conftest import UNCOMPILED
from tests.jobs import SHARED
from tests.naive_contamination import Run, Stretch

EVAL = SHARED / "corpus" / "eval"
DEV = SHARED / "corpus" / "dev"
needs_corpus = pytest.mark.skipif(not (EVAL.is_dir() and DEV.is_dir()), reason=f"no evaluation sets beside {DEV}")

QUESTION = "为山前半干旱区及部分半湿润区的平原带来了流水及泥沙。断流期间洼地增多增大，可能出现（　　）"
FOX = "A quick brown fox jumps over the lazy dog while 3 birds watch from the tall old oak tree. How many watch?"
BEFORE = "本站整理了历年考试的资料，供同学们复习时参考。\n"
AFTER = "\n以上内容仅供学习交流。请在老师的指导下使用！\n"


def texts(*values: str | None) -> pa.LargeStringArray:
    return pa.array(values, pa.large_string())


def questions(*values: str | Question, ngram: int = 13, **settings: int) -> Questions:
    made = [v if isinstance(v, Question) else Question(str(i), v) for i, v in enumerate(values)]
    return make_questions(["set"], [made], ngram=ngram, **settings)


def found(asked: Questions, *documents: str | None, **limits: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = Finder(asked).find(texts(*documents), **limits).to_pylist()
    return rows


def stretches(table: pa.Table) -> list[Stretch]:
    columns = ("document", "question", "first_byte", "end_byte", "symbols", "runs")
    return sorted(Stretch(*(row[c] for c in columns)) for row in table.to_pylist())


def naive_positions(text: str, fold: FoldTable) -> list[naive_contamination.Symbol]:
    return naive_contamination.positions(text, fold.table, fold.expansions)


def naive_runs(text: str, fold: FoldTable, ngram: int) -> set[Run]:
    return set(naive_contamination.runs(naive_positions(text, fold), ngram))


# ---------------------------------------------------------------------------- symbols and their bytes

CHARACTERS = st.one_of(
    st.sampled_from("天地玄黄aéßﬁ½㌖㍿ｶﾞ가ไ١Ⅷ１Ａ，。 \n\t\u0301\u200b\U00020000😀"),
    st.characters(exclude_categories=["Cs"]),
)


@given(st.text(CHARACTERS, max_size=30), st.integers(0, 3))
def test_positions_are_those_of_the_fold_symbol_for_symbol(text: str, before: int) -> None:
    fold = load_fold_table()
    data = np.frombuffer(b"\xff" * before + text.encode() + b"\xe4", np.uint8)
    start, end = before, len(data) - 1
    room = SYMBOLS_PER_BYTE * (end - start) + 1
    symbols, first, last = np.zeros(room, np.uint64), np.zeros(room, np.int64), np.zeros(room, np.int64)
    count = fold_positions(data, start, end, fold.table, fold.expansions, symbols, first, last)
    expected = np.zeros(room, np.uint64)
    assert fold_symbols(data, start, end, fold.table, fold.expansions, expected) == (count, len(text), True)
    assert symbols[:count].tolist() == expected[:count].tolist()
    rows = zip(symbols[:count].tolist(), first[:count].tolist(), last[:count].tolist(), strict=True)
    assert list(rows) == [tuple(s) for s in naive_positions(text, fold)]


# ---------------------------------------------------------------------------- finding

FEW = st.text(st.sampled_from("天地人a b1，。㌖\u0301"), max_size=40)


@st.composite
def questions_and_documents(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    """Documents made of pieces of the questions, and of other text."""
    asked = draw(st.lists(FEW, min_size=1, max_size=5))
    pieces = st.tuples(st.sampled_from(asked), st.integers(0, 30), st.integers(0, 30)).map(lambda p: p[0][p[1] : p[2]])
    document = st.lists(pieces | FEW, max_size=4).map("".join)
    return asked, draw(st.lists(document, max_size=3))


@given(questions_and_documents(), st.integers(4, 7), st.integers(1, 3))
def test_stretches_are_those_of_sets_of_symbols(
    drawn: tuple[list[str], list[str]], ngram: int, max_questions: int
) -> None:
    asked, documents = drawn
    fold = load_fold_table()
    split = len(asked) // 2
    made = [Question(str(i), text) for i, text in enumerate(asked)]
    indexed = make_questions(["a", "b"], [made[:split], made[split:]], ngram=ngram, max_questions=max_questions)
    of_set = [0] * split + [1] * (len(asked) - split)
    # The answer is empty and there are no choices: what is too short stays too short.
    runs = [naive_runs(text, fold, ngram) for text in asked]
    evidence = naive_contamination.evidence(runs, of_set, max_questions)
    assert indexed.num_runs.tolist() == [len(question) for question in evidence]
    assert sum(counts.too_short for counts in indexed.sets) == sum(not question for question in runs)
    expected = naive_contamination.find([naive_positions(text, fold) for text in documents], evidence, ngram)
    table = Finder(indexed).find(texts(*documents))
    assert stretches(table) == sorted(expected)
    firsts = list(zip(table["document"].to_pylist(), table["first_byte"].to_pylist(), strict=True))
    assert firsts == sorted(firsts)


@pytest.mark.parametrize("excerpt", [QUESTION, FOX])
def test_a_question_inside_other_text_is_found_with_its_bytes_and_share(excerpt: str) -> None:
    asked = questions("无关的问题，谁也不会在别处遇到它，因为它只写在这里。", excerpt)
    document = BEFORE + excerpt + AFTER
    (row,) = found(asked, BEFORE + AFTER, document)
    assert (row["document"], row["question"], row["set"], row["id"]) == (1, 1, "set", "1")
    stretch = document.encode()[row["first_byte"] : row["end_byte"]].decode()
    assert stretch == excerpt.rstrip("（　）?")
    assert row["excerpt"] == stretch[:EXCERPT_CHARS]
    assert row["share"] == 1.0
    assert row["runs"] == asked.num_runs[1] == row["symbols"] - 12


@pytest.mark.parametrize(
    "disguised",
    [
        " ".join(QUESTION),
        QUESTION.replace("，", ",\n").replace("。", " . "),
        "\u200b".join(QUESTION),
        "為山前半乾旱區及部分半濕潤區的平原帶來了流水及泥沙。斷流期間窪地增多增大，可能出現",
    ],
    ids=["spaced", "repunctuated", "zero-width", "traditional"],
)
def test_spacing_punctuation_and_script_hide_nothing(disguised: str) -> None:
    rows = found(questions(QUESTION), BEFORE + disguised + AFTER)
    assert max(row["share"] for row in rows) > 0.5


def test_width_and_case_hide_nothing() -> None:
    wide = "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in FOX.upper())
    (row,) = found(questions(FOX), wide)
    assert row["share"] == 1.0


def test_twelve_symbols_in_a_row_are_no_hit_and_thirteen_are() -> None:
    asked = questions("一二三四五六七八九十百千万亿")
    assert found(asked, "零二三四五六七八九十百千万零") == []
    (row,) = found(asked, "零二三四五六七八九十百千万亿零")
    assert (row["symbols"], row["runs"], row["share"]) == (13, 1, 0.5)


def test_a_question_found_in_two_places_has_two_rows_with_the_share_of_both() -> None:
    asked = questions("一二三四五六七八九十百千万亿")
    rows = found(asked, "一二三四五六七八九十百千万，隔开；二三四五六七八九十百千万亿。")
    assert [(row["symbols"], row["runs"], row["share"]) for row in rows] == [(13, 2, 1.0), (13, 2, 1.0)]


def test_many_stretches_of_one_document_are_all_there() -> None:
    asked = questions("一二三四五六七八九十百千万亿", FOX)
    rows = found(asked, "，".join(f"一二三四五六七八九十百千万亿{i}" for i in range(500)), FOX)
    assert [(row["document"], row["runs"]) for row in rows] == [(0, 2)] * 500 + [(1, 10)]


def test_a_question_counts_by_its_runs_or_by_its_share() -> None:
    asked = questions("一二三四五六七八九十百千万亿")
    half = "零二三四五六七八九十百千万亿零"
    assert found(asked, half, min_runs=2) == []
    assert len(found(asked, half, min_runs=2, min_share=0.5)) == 1
    assert len(found(asked, "一二三四五六七八九十百千万亿", min_runs=2)) == 1


def test_nulls_invalid_bytes_and_empty_documents_hold_nothing() -> None:
    broken = pa.array([None, b"", QUESTION.encode() + b"\xff", QUESTION.encode()], pa.large_binary())
    array = pa.LargeStringArray.from_buffers(4, *broken.buffers()[1:], broken.buffers()[0])
    hits = Finder(questions(QUESTION)).find(array)
    assert hits.schema == HITS_SCHEMA
    assert set(hits["document"].to_pylist()) == {3}
    assert Finder(questions(QUESTION)).find(texts()).num_rows == 0


def test_a_slice_of_an_array_is_searched_by_itself() -> None:
    array = texts(QUESTION, BEFORE, QUESTION + AFTER).slice(1)
    hits = Finder(questions(QUESTION)).find(array)
    assert hits["document"].to_pylist() == [1]
    outcome, cuts = decide(array, hits, "cut")
    assert outcome.tolist() == [CLEAN, MOSTLY_CONTAMINATED]
    assert cut_array(array, cuts).to_pylist() == array.to_pylist()


def test_a_finder_does_not_remember_earlier_documents() -> None:
    finder = Finder(questions(QUESTION, FOX))
    array = texts(QUESTION[:30] + FOX, QUESTION, FOX * 3)
    assert finder.find(array).equals(finder.find(array))
    alone = [finder.find(array.slice(i, 1)).drop_columns("document") for i in range(3)]
    assert pa.concat_tables(alone).equals(finder.find(array).drop_columns("document"))


@pytest.mark.parametrize("text", ["天" * 1_000_000, "天" * 14 + "地" + "天" * 999_985])
@pytest.mark.usefixtures("compiled")
def test_a_million_times_one_character_is_one_stretch(text: str) -> None:
    asked = questions(*("天" * length for length in range(13, 23)))
    rows = found(asked, text)
    ends = {(row["first_byte"], row["end_byte"]) for row in rows}
    breaks = [3 * i for i, character in enumerate(text) if character == "地"]
    assert ends == set(zip([0, *(b + 3 for b in breaks)], [*breaks, 3_000_000], strict=True))
    assert {row["runs"] for row in rows} == {1}


# ---------------------------------------------------------------------------- what is looked for


def test_a_short_question_is_matched_with_its_choices_marked_or_not() -> None:
    asked = questions(Question("1", "下列属于哺乳动物的是", ("鲸鱼和海豚", "鲨鱼", "企鹅", "鳄鱼和乌龟"), "A"))
    assert asked.sets[0] == ("set", 1, 1, 0, 0)
    assert found(asked, "下列属于哺乳动物的是（）") == []
    assert found(asked, "下列属于哺乳动物的是：鲸鱼和海豚、鲨鱼、企鹅")
    assert found(asked, "下列属于哺乳动物的是（  ）\nA．鲸鱼和海豚\nB．鲨鱼\nC．企鹅")


def test_a_long_question_is_matched_without_its_choices() -> None:
    asked = questions(Question("1", QUESTION, ("水土流失" * 5, "沼泽化" * 5), ""))
    assert found(asked, "水土流失" * 5 + "沼泽化" * 5) == []


def test_what_is_short_even_with_choices_and_answer_is_counted_and_never_matched() -> None:
    asked = questions(Question("1", "一加一得几", ("二", "三"), "二"), Question("2", "", ()))
    assert asked.sets[0] == ("set", 2, 0, 2, 0)
    assert found(asked, "一加一得几 A 二 B 三 二") == []


def test_a_short_question_and_its_long_answer_are_matched_together() -> None:
    asked = questions(Question("1", "天为什么是蓝的", (), "因为空气把蓝光散射得最多"))
    assert found(asked, "问：天为什么是蓝的？\n因为空气把蓝光散射得最多。")


def test_a_run_of_many_questions_is_boilerplate_and_a_run_of_few_is_not() -> None:
    phrase = "阅读下面的文字完成后面的各题"
    asked = questions(*(phrase + chr(0x4E00 + 40 * i) * 13 for i in range(4)), max_questions=3)
    assert asked.boilerplate_runs == 2
    assert found(asked, phrase) == []
    assert len(found(questions(*(phrase + chr(0x4E00 + 40 * i) * 13 for i in range(3)), max_questions=3), phrase)) == 3


def test_a_question_of_boilerplate_alone_is_counted() -> None:
    phrase = "阅读下面的文字完成后面的各题"
    asked = questions(phrase, *(phrase + chr(0x4E00 + 40 * i) * 13 for i in range(4)), max_questions=3)
    assert asked.sets[0].only_boilerplate == 1


def test_copies_of_a_question_do_not_make_it_boilerplate() -> None:
    copies = [Question(str(i), QUESTION + "？" * i) for i in range(5)]
    asked = make_questions(["a", "b"], [copies, copies], max_questions=1)
    assert asked.boilerplate_runs == 0
    assert len(found(asked, QUESTION)) == 10


def test_boilerplate_is_judged_within_each_set() -> None:
    halves = [Question("1", QUESTION + "甲" * 13), Question("2", QUESTION + "乙" * 13)]
    assert make_questions(["a", "b"], [halves[:1], halves[1:]], max_questions=1).boilerplate_runs == 0
    assert make_questions(["a"], [halves], max_questions=1).boilerplate_runs > 0


def test_questions_travel_to_workers_and_find_the_same() -> None:
    asked = questions(QUESTION, FOX)
    copy = pickle.loads(pickle.dumps(asked))
    assert questions_part(copy) == questions_part(asked)
    assert found(copy, QUESTION) == found(asked, QUESTION)


def test_the_part_of_the_plan_changes_with_every_question_and_setting() -> None:
    parts = [
        questions(QUESTION),
        questions(QUESTION, FOX),
        questions(QUESTION + "甲"),
        questions(QUESTION, ngram=12),
        questions(QUESTION, max_questions=2),
        make_questions(["other"], [[Question("0", QUESTION)]]),
        questions(Question("another id", QUESTION)),
    ]
    assert len({json.dumps(questions_part(part)) for part in parts}) == len(parts)
    assert questions_part(questions(QUESTION)) == questions_part(questions(QUESTION))


# ---------------------------------------------------------------------------- files


def write_csv(path: Path, rows: Sequence[Sequence[str]]) -> Path:
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def test_published_shapes_are_read(tmp_path: Path) -> None:
    ceval = [
        ["id", "question", "A", "B", "C", "D", "answer", "explanation"],
        ["0", "问", "甲", "乙", "丙", "丁", "A", ""],
    ]
    cmmlu = [["", "Question", "A", "B", "C", "D", "Answer"], ["7", "问\n题", "甲", "乙", "丙", "丁", "B"]]
    assert read_questions(str(write_csv(tmp_path / "a.csv", ceval))) == [("0", "问", ("甲", "乙", "丙", "丁"), "A")]
    assert read_questions(str(write_csv(tmp_path / "b.csv", cmmlu))) == [("7", "问\n题", ("甲", "乙", "丙", "丁"), "B")]
    gsm8k = tmp_path / "c.jsonl"
    gsm8k.write_text('{"question": "q", "answer": "a"}\n\n{"question": "p", "answer": ["b", "c"]}\n', encoding="utf-8")
    assert read_questions(str(gsm8k)) == [("0", "q", (), "a"), ("1", "p", (), "b\nc")]
    arc = tmp_path / "d.parquet"
    row = {"id": "x", "question": "q", "choices": {"text": ["s", "t"], "label": ["A", "B"]}, "answer": None}
    pq.write_table(pa.Table.from_pylist([row]), arc)
    assert read_questions(str(arc)) == [("x", "q", ("s", "t"), "")]


@pytest.mark.parametrize("column", ["text", "question", "prompt", "content", "Problem", "QUERY"])
def test_other_names_of_the_question_are_known(tmp_path: Path, column: str) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps({"meta": 1, column: "q"}), encoding="utf-8")
    assert read_questions(str(path)) == [Question("0", "q")]


def test_a_folder_is_one_set_with_ids_named_by_file(tmp_path: Path) -> None:
    (tmp_path / "val").mkdir()
    write_csv(tmp_path / "val" / "law.csv", [["id", "question"], ["0", "问"]])
    write_csv(tmp_path / "art.csv", [["id", "question"], ["0", "题"]])
    (tmp_path / "README.md").write_text("not a set", encoding="utf-8")
    assert [q.id for q in read_questions(str(tmp_path))] == ["art/0", "val/law/0"]
    loaded = load_questions([f"C-Eval={tmp_path}", str(tmp_path / "art.csv")])
    assert [counts.name for counts in loaded.sets] == ["C-Eval", "art"]


def test_a_spec_names_its_set_or_is_named_by_its_file() -> None:
    assert split_spec("ceval=/data/x=1/test.csv") == ("ceval", "/data/x=1/test.csv")
    assert split_spec("/data/x=1/test.csv") == ("test", "/data/x=1/test.csv")
    assert split_spec("s3://bucket/sets/gsm8k.jsonl?region=x") == ("gsm8k", "s3://bucket/sets/gsm8k.jsonl?region=x")


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("a.jsonl", b'{"title": "x", "body": "y"}', ("row 1", "question, prompt", "title, body")),
        ("a.jsonl", b'{"question": "x"}\n{"question": ', ("line 2", "JSON object")),
        ("a.jsonl", b'["question"]', ("line 1", "JSON object", "list")),
        ("a.jsonl", b"\n", ("found none",)),
        ("a.csv", b"id,question\n", ("found none",)),
        ("a.csv", b"id,title\n1,x\n", ("row 1", "id, title")),
        ("a.csv", "id,question\n1,问题\n".encode("gb18030"), ("UTF-8", "convert")),
        ("a.parquet", b"PAR1", ("expected Parquet",)),
        ("a.txt", b"x", (".jsonl, .csv, .parquet",)),
    ],
)
def test_what_cannot_be_read_is_one_line_that_says_where(
    tmp_path: Path, name: str, content: bytes, parts: Sequence[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        load_questions([str(path)])
    message = str(error.value)
    assert "\n" not in message
    assert all(part in message for part in (str(path), *parts)), message


def test_missing_files_empty_folders_and_bad_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such evaluation set"):
        load_questions([str(tmp_path / "nowhere.jsonl")])
    with pytest.raises(InputError, match="found none in the folder"):
        load_questions([str(tmp_path)])
    path = write_csv(tmp_path / "a.csv", [["question"], [QUESTION]])
    with pytest.raises(ConfigError, match="two evaluation sets are called a"):
        load_questions([str(path), f"a={path}"])
    with pytest.raises(ConfigError, match="at least 4 symbols"):
        load_questions([str(path)], ngram=3)
    with pytest.raises(ConfigError, match="at least 1 question"):
        load_questions([str(path)], max_questions=0)


# ---------------------------------------------------------------------------- cutting


def cut(text: str, *spans: tuple[int, int]) -> str:
    """The text without the sentences that spans of characters touch."""
    places = [len(text[:i].encode()) for i in range(len(text) + 1)]
    table = pa.table(
        {
            "document": pa.array([0] * len(spans), pa.int64()),
            "first_byte": pa.array([places[first] for first, _ in spans], pa.int64()),
            "end_byte": pa.array([places[end] for _, end in spans], pa.int64()),
        }
    )
    rest = cut_array(texts(text), cut_spans(texts(text), table)).to_pylist()[0]
    assert isinstance(rest, str)
    return rest


@given(
    st.text(st.sampled_from('天地a。！？.!?”」〉〓(（)）" \t\n\n\n\r'), min_size=1, max_size=40),
    st.lists(st.tuples(st.integers(0, 39), st.integers(1, 12)), min_size=1, max_size=4),
)
def test_a_cut_takes_whole_sentences_and_lines_and_nothing_else(text: str, places: list[tuple[int, int]]) -> None:
    spans = sorted({(first % len(text), min(len(text), first % len(text) + size)) for first, size in places})
    assert cut(text, *spans) == naive_contamination.cut(text, spans)


@pytest.mark.parametrize(
    ("text", "word", "rest"),
    [
        ("前句。问句在此？后句。", "问句", "前句。后句。"),
        ("他说：“问句。”后句。", "问", "后句。"),
        ("问句!。后句。", "问", "后句。"),
        ("问句!)。后句。", "问", "后句。"),
        ("Pi is 3.14 in Q. Next one.", "in Q", " Next one."),
        ("一行。\n问句在此\n三行。", "问句", "一行。\n三行。"),
        ("一行。\r\n问句在此。  \r\n三行。", "问句", "一行。\r\n三行。"),
        ("留下。问句在此\n三行。", "问句", "留下。\n三行。"),
        ("只有问句", "问", ""),
    ],
)
def test_a_sentence_goes_with_its_marks_and_a_line_with_its_end(text: str, word: str, rest: str) -> None:
    place = text.index(word)
    assert cut(text, (place, place + len(word))) == rest


def test_a_stretch_of_several_lines_goes_whole() -> None:
    text = "一行。\n问句\n在这里\n三行。"
    assert cut(text, (text.index("问"), text.index("里"))) == "一行。\n三行。"


def test_cut_documents_keep_every_other_byte_and_the_rest_is_untouched() -> None:
    array = texts(BEFORE * 9, None, BEFORE * 9 + QUESTION + AFTER, "", QUESTION + AFTER)
    outcome, cuts = decide(array, Finder(questions(QUESTION)).find(array), "cut")
    assert outcome.tolist() == [CLEAN, CLEAN, CUT, CLEAN, MOSTLY_CONTAMINATED]
    rest = cut_array(array, cuts)
    assert rest.to_pylist() == [BEFORE * 9, None, BEFORE * 9 + AFTER.removeprefix("\n"), "", QUESTION + AFTER]
    rest.validate(full=True)


def test_dropping_takes_every_document_with_a_hit_and_cuts_nothing() -> None:
    array = texts(BEFORE * 9, BEFORE * 9 + QUESTION + AFTER, QUESTION)
    outcome, cuts = decide(array, Finder(questions(QUESTION)).find(array), "drop")
    assert outcome.tolist() == [CLEAN, CONTAMINATED, CONTAMINATED]
    assert cut_array(array, cuts).equals(array)


def test_nothing_is_found_again_in_what_was_cut() -> None:
    finder = Finder(questions(QUESTION, FOX))
    array = texts(*(BEFORE * 9 + q + AFTER * 9 + q + BEFORE * 9 for q in (QUESTION, FOX)))
    rest = cut_array(array, decide(array, finder.find(array), "cut").cuts)
    assert finder.find(rest).num_rows == 0


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("filler", ["天", ".", "）", "\n", "。", "x "])
def test_cutting_is_linear_whatever_the_text_repeats(filler: str) -> None:
    size = 1_000_000
    document = filler * size + "\n" + QUESTION + "\n" + filler * size
    array = texts(document)
    rest = cut_array(array, decide(array, Finder(questions(QUESTION)).find(array), "cut").cuts)
    assert rest.to_pylist() == [document.replace(QUESTION + "\n", "")]


def test_cuts_without_hits_change_nothing() -> None:
    array = texts("一", "二。")
    nothing = Cuts(np.zeros(3, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert cut_array(array, nothing).equals(array)


# ---------------------------------------------------------------------------- real questions and documents


@pytest.fixture(scope="module")
def real_questions() -> Questions:
    if UNCOMPILED:
        pytest.skip("too slow under NUMBA_DISABLE_JIT=1")
    names = ("agieval_gaokao", "gaokao_bench", "gsm8k_test", "xcopa_zh")
    return load_questions([str(EVAL / f"{name}.jsonl") for name in names])


def dev_texts(rows: int) -> pa.LargeStringArray:
    """The exam pages of one shard and some of its other documents, the last of them."""
    table = pq.read_table(DEV / "dev-00004-of-00008.parquet", columns=["text", "source"])
    exams = table.filter(pa.compute.equal(table["source"], "agieval-gaokao"))
    others = table.filter(pa.compute.equal(table["source"], "laws-cn"))
    chosen = pa.concat_tables([exams, others]).slice(0, rows)
    return chosen["text"].cast(pa.large_string()).combine_chunks()


@needs_corpus
def test_real_documents_hold_what_sets_of_symbols_say(real_questions: Questions) -> None:
    fold = load_fold_table()
    random.seed(0)
    kept = sorted(random.sample(range(real_questions.set_number.size), 200))
    rows = [json.loads(line) for name in real_questions.sets for line in (EVAL / f"{name.name}.jsonl").open()]
    chosen = [Question(rows[i]["id"], rows[i]["question"]) for i in kept]
    asked = make_questions(["all"], [chosen])
    runs = [naive_runs(question.text, fold, 13) for question in chosen]
    evidence = naive_contamination.evidence(runs, [0] * len(runs), 10)
    array = dev_texts(25)
    documents = [naive_positions(text, fold) for text in array.to_pylist()]
    expected = naive_contamination.find(documents, evidence, 13)
    assert len(expected) > 5
    assert stretches(Finder(asked).find(array)) == sorted(expected)


@needs_corpus
def test_exam_pages_are_hit_and_the_negative_controls_are_not(real_questions: Questions) -> None:
    finder = Finder(real_questions)
    shards = [pq.read_table(path, columns=["text", "source"]) for path in sorted(DEV.glob("*.parquet"))[4:]]
    table = pa.concat_tables(shards)
    hits = finder.find(table["text"].cast(pa.large_string()).combine_chunks())
    exams = set(np.flatnonzero(np.array(table["source"].to_pylist()) == "agieval-gaokao").tolist())
    assert exams
    assert exams <= set(hits["document"].to_pylist())
    assert set(hits["set"].to_pylist()) == {"agieval_gaokao", "gaokao_bench"}


@needs_corpus
def test_the_evaluation_sets_have_the_shape_that_their_notes_say(real_questions: Questions) -> None:
    by_name = {counts.name: counts for counts in real_questions.sets}
    assert {name: counts.questions for name, counts in by_name.items()} == {
        "agieval_gaokao": 2072,
        "gaokao_bench": 2811,
        "gsm8k_test": 1319,
        "xcopa_zh": 600,
    }
    # Of xcopa_zh 526 questions have fewer than 13 characters; with premise and both choices they can be matched.
    assert by_name["xcopa_zh"].with_choices == 526
    assert by_name["gsm8k_test"].with_choices == 0
