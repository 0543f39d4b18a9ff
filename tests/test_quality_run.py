"""`taojin quality`, and rules in `taojin dedup`: what the whole job does with them."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tests.jobs import (
    Outcome,
    chinese,
    conserved,
    dedup,
    edited,
    files,
    ledger_rows,
    output_rows,
    taojin,
    write_parquet,
    write_texts,
)

PROSE = "今天的天气很好，我们一起去公园里散步。孩子们在草地上奔跑，老人坐在树下聊天，湖面上有几只小船慢慢划过。"
LINES = "重复的一行文字，没有别的内容。\n" * 40
ENGLISH = (
    "The engineers of the old mill had to be careful with the water, and that is why they have kept a record of it. "
    "It was written in a small book that the owner would read to his children in the winter."
)
RULES = {
    "name": "mine",
    "sources": ["tests"],
    "rules": [
        {"reason": "too_short", "signal": "chars", "at_least": 10},
        {"reason": "repeats_lines", "signal": "dup_line_share", "at_most": 0.3},
        {"reason": "long_english", "signal": "chars", "at_most": 100, "languages": ["en"]},
    ],
}


def preset(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / f"{changes.get('name', 'mine')}.yaml"
    path.write_text(yaml.safe_dump({**RULES, **changes}, allow_unicode=True))
    return path


def quality(source: object, output: object, *flags: object) -> Outcome:
    inputs = source if isinstance(source, list) else [source]
    return taojin("quality", "--input", *inputs, "--output", output, "--num-cpus", "0", "--quiet", "--json", *flags)


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "in" / "a.parquet", [PROSE, "短", LINES, ENGLISH, None, "", PROSE])


def reasons_of(output: Path) -> dict[str, str]:
    return {row["id"]: row["reason"] for row in ledger_rows(output)}


# --------------------------------------------------------------------------------------- taojin quality


def test_what_fails_a_rule_is_dropped_for_the_first_it_fails(tmp_path: Path, shard: Path) -> None:
    outcome = quality(shard, tmp_path / "out", "--preset", preset(tmp_path))
    assert conserved(outcome) == {
        "mine.too_short": 1,
        "mine.repeats_lines": 1,
        "mine.long_english": 1,
        "null_text": 1,
        "empty_text": 1,
    }
    assert [row["text"] for row in output_rows(tmp_path / "out")] == [PROSE, PROSE]
    assert reasons_of(tmp_path / "out") == {
        "1": "mine.too_short",
        "2": "mine.repeats_lines",
        "3": "mine.long_english",
        "4": "null_text",
        "5": "empty_text",
    }


def test_the_ledger_has_every_failing_rule_with_the_value_measured(tmp_path: Path) -> None:
    write_texts(tmp_path / "a.parquet", ["短\n短\n短"])
    outcome = quality(tmp_path / "a.parquet", tmp_path / "out", "--preset", preset(tmp_path))
    assert outcome.counts["rules"] == {"mine.too_short": 1, "mine.repeats_lines": 1}
    row = ledger_rows(tmp_path / "out")[0]
    assert row["reason"] == "mine.too_short"
    assert row["reasons"] == ["mine.too_short", "mine.repeats_lines"]
    assert row["values"] == pytest.approx([5, 2 / 3])


def test_the_order_of_presets_gives_the_reason(tmp_path: Path, shard: Path) -> None:
    other = preset(tmp_path, name="other", rules=[{"reason": "tiny", "signal": "chars", "at_least": 5}])
    quality(shard, tmp_path / "one", "--preset", preset(tmp_path), other)
    quality(shard, tmp_path / "two", "--preset", other, preset(tmp_path))
    assert reasons_of(tmp_path / "one")["1"] == "mine.too_short"
    assert reasons_of(tmp_path / "two")["1"] == "other.tiny"


def test_annotate_drops_nothing_that_can_be_read_and_writes_down_what_would_go(tmp_path: Path, shard: Path) -> None:
    flags = ("--preset", preset(tmp_path), "--mode", "annotate")
    outcome = quality(shard, tmp_path / "out", *flags)
    assert conserved(outcome) == {"null_text": 1, "empty_text": 1}
    rows = output_rows(tmp_path / "out")
    assert [row["reasons"] for row in rows] == [
        [],
        ["mine.too_short"],
        ["mine.repeats_lines"],
        ["mine.long_english"],
        [],
    ]
    assert rows[0]["signals"].keys() == {"chars", "dup_line_share"}
    assert rows[0]["signals"]["chars"] == len(PROSE)
    assert [row["language"] for row in rows][:1] == ["zh"]
    assert rows[3]["language"] == "en"


def test_both_drops_and_annotates_with_the_signals_asked_for(tmp_path: Path, shard: Path) -> None:
    flags = ("--preset", preset(tmp_path), "--mode", "both", "--signal-columns", "han_share", "lines")
    quality(shard, tmp_path / "out", *flags)
    rows = output_rows(tmp_path / "out")
    assert [row["signals"].keys() for row in rows] == [{"han_share", "lines"}] * 2
    quality(shard, tmp_path / "all", "--preset", preset(tmp_path), "--mode", "both", "--signal-columns", "all")
    assert len(output_rows(tmp_path / "all")[0]["signals"]) > 80


def test_other_rules_are_judged_without_reading_the_text_again(tmp_path: Path, shard: Path) -> None:
    work = tmp_path / "work"
    quality(shard, tmp_path / "one", "--preset", preset(tmp_path), "--work", work)
    scanned = files(work / "signals")
    shard.rename(shard.with_suffix(".gone"))
    write_texts(shard, [PROSE])
    shard.unlink()
    shard.with_suffix(".gone").rename(shard)
    before = {path: path.stat().st_mtime_ns for path in (work / "signals").iterdir()}
    looser = preset(tmp_path, rules=RULES["rules"][:1])
    outcome = quality(shard, tmp_path / "two", "--preset", looser, "--work", work)
    assert conserved(outcome) == {"mine.too_short": 1, "null_text": 1, "empty_text": 1}
    assert {path: path.stat().st_mtime_ns for path in (work / "signals").iterdir()} == before
    assert files(work / "signals") == scanned
    assert len(list(work.glob("decide-*"))) == 2


def test_drops_are_counted_by_language_and_source(tmp_path: Path) -> None:
    records = [
        {"text": PROSE, "source": "news"},
        {"text": "短", "source": "news"},
        {"text": ENGLISH, "source": "books"},
    ]
    write_parquet(tmp_path / "a.parquet", records)
    quality(tmp_path / "a.parquet", tmp_path / "out", "--preset", preset(tmp_path))
    drops = json.loads(next((tmp_path / "out.work").glob("decide-*/drops.json")).read_text())
    assert drops["by_source"] == {
        "books": {"documents": 1, "mine.long_english": 1},
        "news": {"documents": 2, "mine.too_short": 1},
    }
    assert drops["by_language"]["en"] == {"documents": 1, "mine.long_english": 1}


def test_check_proves_an_output_of_rules_and_sees_a_wrong_one(tmp_path: Path, shard: Path) -> None:
    quality(shard, tmp_path / "out", "--preset", preset(tmp_path))
    outcome = taojin("check", tmp_path / "out")
    assert outcome.status == 0, outcome.out
    assert "3 rules judged again: 3 documents fail one and go for it" in outcome.out
    signals = next((tmp_path / "out.work" / "signals").iterdir())
    with pa.ipc.open_file(signals) as reader:
        table = reader.read_all()
    column = table.schema.get_field_index("chars")
    table = table.set_column(column, "chars", pa.array([1.0] * len(table), pa.float32()))
    with pa.ipc.new_file(signals, table.schema) as writer:
        writer.write_table(table)
    outcome = taojin("check", tmp_path / "out")
    assert outcome.status == 1
    assert "is not what its signals say" in outcome.out


def test_explain_names_the_rule_the_value_and_the_threshold(tmp_path: Path, shard: Path) -> None:
    quality(shard, tmp_path / "out", "--preset", preset(tmp_path))
    outcome = taojin("explain", tmp_path / "out.work", "2")
    assert outcome.status == 0, outcome.err
    assert "mine.repeats_lines" in outcome.out
    assert "dup_line_share 0.95" in outcome.out
    kept = taojin("explain", tmp_path / "out.work", "0")
    assert "it passes every rule" in kept.out


# --------------------------------------------------------------------------------------- rules in taojin dedup


def test_only_a_document_that_passes_the_rules_can_survive(tmp_path: Path) -> None:
    """The longest copy would stay; it fails a rule, so the next one does, and nothing goes in favour of the first."""
    rng = random.Random(1)
    text = chinese(rng, 400)
    longer = text + "#" * 30
    write_texts(tmp_path / "a.parquet", [edited(rng, text, 2), longer, text])
    rules = [{"reason": "too_many_hash_signs", "signal": "hash_signs", "at_most": 20}]
    outcome = dedup(tmp_path / "a.parquet", tmp_path / "out", "--quality-preset", preset(tmp_path, rules=rules))
    assert conserved(outcome) == {"mine.too_many_hash_signs": 1, "near_duplicate": 1}
    rows = {row["id"]: row for row in ledger_rows(tmp_path / "out")}
    assert rows["1"]["survivor_id"] is None
    assert {row["survivor_id"] for row in rows.values()} - {None} <= {"0", "2"}
    assert taojin("check", tmp_path / "out").status == 0


def test_of_two_duplicates_the_one_with_the_higher_score_survives(tmp_path: Path) -> None:
    rng = random.Random(2)
    text = chinese(rng, 400)
    better, worse = text + "，" * 8, text + "#" * 12
    write_texts(tmp_path / "a.parquet", [worse, better])
    dedup(tmp_path / "a.parquet", tmp_path / "length")
    assert [row["id"] for row in output_rows(tmp_path / "length")] == ["0"]
    dedup(tmp_path / "a.parquet", tmp_path / "score", "--score", "han_share")
    assert [row["id"] for row in output_rows(tmp_path / "score")] == ["1"]


def test_one_scan_serves_duplicates_and_rules(tmp_path: Path) -> None:
    """With --signals a first run measures; a later one judges by rules, from the same sidecars."""
    rng = random.Random(3)
    write_texts(tmp_path / "a.parquet", [chinese(rng, 100), "短", chinese(rng, 90)])
    work = tmp_path / "work"
    first = dedup(tmp_path / "a.parquet", tmp_path / "one", "--work", work, "--signals")
    assert first.counts["kept"] == 3
    before = files(work / "scan") | files(work / "signals")
    second = dedup(
        tmp_path / "a.parquet", tmp_path / "two", "--work", work, "--signals", "--quality-preset", preset(tmp_path)
    )
    assert conserved(second) == {"mine.too_short": 1}
    assert files(work / "scan") | files(work / "signals") == before


def test_without_rules_nothing_of_quality_is_measured(tmp_path: Path) -> None:
    write_texts(tmp_path / "a.parquet", [PROSE])
    dedup(tmp_path / "a.parquet", tmp_path / "out")
    assert not (tmp_path / "out.work" / "signals").exists()


# --------------------------------------------------------------------------------------- what is measured besides


def test_repaired_texts_are_judged_compared_and_written(tmp_path: Path) -> None:
    spoilt = PROSE.encode().decode("latin-1") + "\r\n"
    write_texts(tmp_path / "a.parquet", [PROSE + "\n", spoilt, "短\x00"])
    outcome = dedup(tmp_path / "a.parquet", tmp_path / "out", "--repair", "--quality-preset", preset(tmp_path))
    assert outcome.counts["repaired"] == 2
    assert conserved(outcome) == {"exact_duplicate": 1, "mine.too_short": 1}
    assert {row["id"]: row["repaired"] for row in ledger_rows(tmp_path / "out")} == {"1": True, "2": True}
    assert [(row["text"], row["repaired"]) for row in output_rows(tmp_path / "out")] == [(PROSE + "\n", False)]
    assert taojin("check", tmp_path / "out").status == 0


def test_personal_data_is_masked_as_it_is_written_and_counted(tmp_path: Path) -> None:
    text = PROSE + "电话：13800138000，邮箱 someone@mail.cn。"
    write_texts(tmp_path / "a.parquet", [text, PROSE + "没有号码。"])
    flags = ("--preset", preset(tmp_path), "--mask", "mobile", "email", "--personal")
    outcome = quality(tmp_path / "a.parquet", tmp_path / "out", *flags)
    assert outcome.counts["edited"] == {"masked_email": 1, "masked_mobile": 1}
    first, second = output_rows(tmp_path / "out")
    assert "13800138000" not in first["text"]
    assert "someone@mail.cn" not in first["text"]
    assert first["text"].startswith(PROSE)
    assert second["text"] == PROSE + "没有号码。"


@pytest.fixture
def contaminated(tmp_path: Path) -> tuple[Path, Path]:
    """(shard, questions): a document that holds a question among other text, one that is nothing else, a clean one."""
    question = "下列关于光合作用过程中能量转换的叙述，正确的是哪一项？"
    questions = tmp_path / "exam.jsonl"
    questions.write_text(json.dumps({"id": "q7", "question": question}, ensure_ascii=False) + "\n")
    return write_texts(tmp_path / "in.parquet", [f"{PROSE}\n{question}\n{ENGLISH[:90]}", question, PROSE]), questions


def test_a_contaminated_document_goes_with_its_question_as_evidence(
    tmp_path: Path, contaminated: tuple[Path, Path]
) -> None:
    shard, questions = contaminated
    flags = ("--preset", preset(tmp_path), "--decontaminate", f"exam={questions}")
    outcome = quality(shard, tmp_path / "out", *flags)
    assert conserved(outcome) == {"contamination.exam": 2}
    evidence = ledger_rows(tmp_path / "out")[0]["evidence"]
    assert "exam question q7" in evidence
    assert "光合作用" in evidence
    assert "q7" in taojin("explain", tmp_path / "out.work", "0").out


def test_a_question_can_be_cut_out_instead(tmp_path: Path, contaminated: tuple[Path, Path]) -> None:
    shard, questions = contaminated
    flags = ("--preset", preset(tmp_path), "--decontaminate", f"exam={questions}", "--contaminated", "cut")
    outcome = quality(shard, tmp_path / "out", *flags)
    assert conserved(outcome) == {"contamination.mostly_questions": 1}
    assert outcome.counts["edited"] == {"documents_cut": 1}
    assert [row["text"] for row in output_rows(tmp_path / "out")] == [f"{PROSE}\n{ENGLISH[:90]}", PROSE]


def test_sensitive_words_are_signals_that_rules_can_judge(tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("坏词\n")
    write_texts(tmp_path / "a.parquet", [PROSE, PROSE + "坏 词，壞詞！"])
    rules = [{"reason": "bad_words", "signal": "sensitive_mine", "at_most": 0}]
    flags = ("--preset", preset(tmp_path, rules=rules), "--sensitive", f"mine={words}")
    outcome = quality(tmp_path / "a.parquet", tmp_path / "out", *flags)
    assert conserved(outcome) == {"mine.bad_words": 1}


def test_a_fitted_classifier_is_a_signal_and_the_score(tmp_path: Path) -> None:
    rng = random.Random(4)
    good = [f"{chinese(rng, 30)}，研究表明这一方法有效。" for _ in range(300)]
    bad = [f"{chinese(rng, 30)}！！点击这里加微信领红包" for _ in range(300)]
    write_texts(tmp_path / "good.parquet", good)
    write_texts(tmp_path / "bad.parquet", bad)
    model = tmp_path / "model.npz"
    outcome = taojin(
        "fit", "--good", tmp_path / "good.parquet", "--bad", tmp_path / "bad.parquet", "--output", model, "--json"
    )
    assert outcome.status == 0, outcome.err
    assert json.loads(outcome.out)["auc"] > 0.95
    write_texts(tmp_path / "a.parquet", [good[0], bad[0]])
    rules = [{"reason": "poor", "signal": "ads", "at_least": 0.5}]
    flags = ("--preset", preset(tmp_path, rules=rules), "--models", f"ads={model}")
    outcome = quality(tmp_path / "a.parquet", tmp_path / "out", *flags)
    assert conserved(outcome) == {"mine.poor": 1}
    assert reasons_of(tmp_path / "out") == {"1": "mine.poor"}


def test_calibrate_writes_a_preset_that_its_reference_passes(tmp_path: Path) -> None:
    rng = random.Random(5)
    texts = [f"{chinese(rng, rng.randrange(50, 400))}。" for _ in range(1200)]
    write_texts(tmp_path / "reference.parquet", texts)
    found = tmp_path / "found.yaml"
    flags = ("--input", tmp_path / "reference.parquet", "--output", found, "--num-cpus", "0", "--quiet", "--json")
    outcome = taojin("calibrate", *flags)
    assert outcome.status == 0, outcome.err
    judged = quality(tmp_path / "reference.parquet", tmp_path / "out", "--preset", found)
    assert judged.counts["kept"] >= 0.95 * len(texts)


def test_check_compares_edited_texts_with_what_the_edits_make_of_the_input(
    tmp_path: Path, contaminated: tuple[Path, Path]
) -> None:
    shard, questions = contaminated
    flags = ("--preset", preset(tmp_path), "--decontaminate", f"exam={questions}", "--contaminated", "cut")
    quality(shard, tmp_path / "cut", *flags)
    outcome = taojin("check", tmp_path / "cut")
    assert outcome.status == 0, outcome.out
    assert "1 text as edited" in outcome.out
    write_texts(tmp_path / "b.parquet", [PROSE + "电话：13800138000。", PROSE])
    quality(tmp_path / "b.parquet", tmp_path / "masked", "--preset", preset(tmp_path), "--mask", "mobile")
    outcome = taojin("check", tmp_path / "masked")
    assert outcome.status == 0, outcome.out
    assert "1 text as edited" in outcome.out


def test_without_rules_annotate_writes_what_was_measured_of_questions(
    tmp_path: Path, contaminated: tuple[Path, Path]
) -> None:
    shard, questions = contaminated
    flags = ("--preset", "--mode", "annotate", "--decontaminate", f"exam={questions}", "--contaminated", "flag")
    outcome = quality(shard, tmp_path / "out", *flags)
    assert conserved(outcome) == {}
    rows = output_rows(tmp_path / "out")
    assert [row["signals"]["contamination_exam"] > 0 for row in rows] == [True, True, False]
    assert "q7" in taojin("explain", tmp_path / "out.work", "0").out
    quality(shard, tmp_path / "bare", "--preset", "--mode", "annotate")
    assert "signals" not in output_rows(tmp_path / "bare")[0]


def test_the_output_of_rules_can_be_the_input_of_dedup(tmp_path: Path, shard: Path) -> None:
    quality(shard, tmp_path / "good", "--preset", preset(tmp_path))
    outcome = dedup(tmp_path / "good", tmp_path / "clean")
    assert conserved(outcome) == {"exact_duplicate": 1}
    assert taojin("check", tmp_path / "clean").status == 0


def test_debris_without_a_language_goes_too(tmp_path: Path) -> None:
    debris = [chr(0xFFFD) * 100, chr(0xE000) * 100, "\u200b" * 100, " \u3000\n" * 100, "{}#" * 100]
    write_texts(tmp_path / "a.parquet", [*debris, "2026", "👍👍"])
    quality(tmp_path / "a.parquet", tmp_path / "out", "--preset", "taojin-zh")
    assert [row["text"] for row in output_rows(tmp_path / "out")] == ["2026", "👍👍"]


# --------------------------------------------------------------------------------------- wrong input


def test_a_rule_on_an_unknown_signal_names_the_near_ones(tmp_path: Path, shard: Path) -> None:
    rules = [{"reason": "x", "signal": "dup_line_shares", "at_most": 1}]
    outcome = quality(shard, tmp_path / "out", "--preset", preset(tmp_path, rules=rules))
    outcome.refuses(2, "dup_line_shares", "dup_line_share")


def test_an_unknown_comparator_names_the_known_ones(tmp_path: Path, shard: Path) -> None:
    rules = [{"reason": "x", "signal": "chars", "at_lest": 1}]
    quality(shard, tmp_path / "out", "--preset", preset(tmp_path, rules=rules)).refuses(2, "at_lest", "at_least")


def test_an_unknown_preset_lists_the_built_in_ones(tmp_path: Path, shard: Path) -> None:
    quality(shard, tmp_path / "out", "--preset", "gohper").refuses(2, "gohper", "gopher", "fineweb2-cmn")


def test_a_language_condition_wants_languages(tmp_path: Path, shard: Path) -> None:
    quality(shard, tmp_path / "out", "--preset", preset(tmp_path), "--no-language").refuses(2, "language")


def test_a_model_file_that_is_none_is_refused_before_anything_is_read(tmp_path: Path, shard: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"nonsense" * 100)
    flags = ("--preset", preset(tmp_path), "--models", f"m={tmp_path / 'model.bin'}")
    quality(shard, tmp_path / "out", *flags).refuses(2, "model.bin")
    assert not (tmp_path / "out.work").exists()


def test_an_empty_word_list_is_refused(tmp_path: Path, shard: Path) -> None:
    (tmp_path / "empty.txt").write_text("# nothing\n\n")
    flags = ("--preset", preset(tmp_path), "--sensitive", f"bad={tmp_path / 'empty.txt'}")
    quality(shard, tmp_path / "out", *flags).refuses(2, "empty.txt")


def test_a_reference_too_small_to_calibrate_says_how_many_are_needed(tmp_path: Path) -> None:
    write_texts(tmp_path / "a.parquet", [PROSE] * 20)
    flags = ("--input", tmp_path / "a.parquet", "--output", tmp_path / "p.yaml", "--num-cpus", "0", "--quiet")
    taojin("calibrate", *flags).refuses(2, "1000", "20")


def test_a_column_of_the_input_that_has_the_name_of_one_to_be_written_is_refused(tmp_path: Path) -> None:
    table = pa.table({"text": [PROSE], "signals": [1]})
    pq.write_table(table, tmp_path / "a.parquet")
    flags = ("--preset", preset(tmp_path), "--mode", "annotate")
    quality(tmp_path / "a.parquet", tmp_path / "out", *flags).refuses(2, "signals")


def test_another_scan_of_signals_is_not_mixed_with_the_first(tmp_path: Path, shard: Path) -> None:
    work = tmp_path / "work"
    quality(shard, tmp_path / "one", "--preset", preset(tmp_path), "--work", work)
    outcome = quality(shard, tmp_path / "two", "--preset", preset(tmp_path), "--work", work, "--personal")
    outcome.refuses(2, "personal was False and is True")


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["--decontaminate", "S={exam}"], ["--decontaminate S=", "a-z"]),
        (["--decontaminate", "left={exam}"], ["contamination_left"]),
        (["--models", "chars={model}"], ["chars"]),
        (["--score", "no_such"], ["--score no_such"]),
        (["--mask", "name"], ["--mask name", "mobile"]),
        (["--signal-columns", "chars"], ["--mode annotate"]),
    ],
    ids=lambda value: " ".join(value[:2]),
)
def test_names_that_cannot_be_are_refused_before_the_scan(
    tmp_path: Path, shard: Path, contaminated: tuple[Path, Path], flags: list[str], parts: list[str]
) -> None:
    model = tmp_path / "m.arpa"
    model.write_text("\\data\\\nngram 1=3\n\n\\1-grams:\n-1\t<unk>\n-1\t<s>\n-1\t</s>\n\n\\end\\\n")
    given = [flag.format(exam=contaminated[1], model=model) for flag in flags]
    quality(shard, tmp_path / "out", "--preset", preset(tmp_path), *given).refuses(2, *parts)
    assert not (tmp_path / "out.work").exists()


def test_a_preset_may_not_have_the_name_of_the_rules_on_contamination(
    tmp_path: Path, shard: Path, contaminated: tuple[Path, Path]
) -> None:
    flags = ("--preset", preset(tmp_path, name="contamination"), "--decontaminate", f"exam={contaminated[1]}")
    quality(shard, tmp_path / "out", *flags).refuses(2, "contamination", "rename")


def test_plan_refuses_the_rules_that_a_run_refuses(tmp_path: Path, shard: Path) -> None:
    taojin("plan", "--input", shard, "--quality-preset", "nope").refuses(2, "nope")
    taojin("plan", "--input", shard, "--quality-preset", "gopher", "--no-language").refuses(2, "--language")


def test_a_signal_that_a_flag_measures_names_the_flag(tmp_path: Path, shard: Path) -> None:
    rules = [{"reason": "x", "signal": "personal_email", "at_most": 1}]
    quality(shard, tmp_path / "out", "--preset", preset(tmp_path, rules=rules)).refuses(2, "--personal")


def test_the_work_of_rules_alone_is_not_that_of_dedup(tmp_path: Path, shard: Path) -> None:
    quality(shard, tmp_path / "one", "--preset", preset(tmp_path), "--work", tmp_path / "work")
    outcome = dedup(shard, tmp_path / "two", "--work", tmp_path / "work")
    outcome.refuses(2, "made by `taojin quality`")


def test_a_word_list_that_changed_is_named(tmp_path: Path, shard: Path) -> None:
    words = tmp_path / "words.txt"
    flags = ("--preset", preset(tmp_path), "--sensitive", f"mine={words}", "--work", tmp_path / "work")
    words.write_text("坏词\n")
    quality(shard, tmp_path / "one", *flags)
    words.write_text("别的\n")
    quality(shard, tmp_path / "two", *flags).refuses(2, "the content of --sensitive has changed")


def test_explain_and_check_need_no_lists_and_models(tmp_path: Path, shard: Path) -> None:
    words, model = tmp_path / "words.txt", tmp_path / "m.arpa"
    words.write_text("坏词\n")
    unigrams = "".join(f"-1\t{word}\t0\n" for word in ("<unk>", "<s>", "</s>", "的"))
    model.write_text(f"\\data\\\nngram 1=4\nngram 2=1\n\n\\1-grams:\n{unigrams}\n\\2-grams:\n-0.5\t<s> 的\n\n\\end\\\n")
    flags = ("--preset", preset(tmp_path), "--sensitive", f"mine={words}", "--models", f"fluent={model}")
    assert quality(shard, tmp_path / "out", *flags).status == 0
    words.unlink()
    model.unlink()
    assert taojin("check", tmp_path / "out").status == 0
    assert "mine.repeats_lines" in taojin("explain", tmp_path / "out.work", "2").out
