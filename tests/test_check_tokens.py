"""`taojin check PREFIX` of sound outputs of `taojin tokenize` and `taojin merge`; test_check_damage.py breaks them."""

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from unittest import mock

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taojin import proofs_of_provenance, proofs_of_tokens
from tests.jobs import dedup, taojin, write_jsonl, write_parquet
from tests.megatron_pairs import blocks_of, write_pair
from tests.pair_checks import broken, byte_tokenizer, findings, flip, statuses
from tests.token_outputs import PROVED, chat, finished_output, fresh_output, pair_names, records, tokenize


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_output(tmp_path_factory.mktemp("finished"))


@pytest.fixture
def prefix(finished: Path, tmp_path: Path) -> Path:
    """PREFIX of a copy that a test may tamper with; input and tokenizer stay where they were."""
    shutil.copytree(finished / "out", tmp_path / "out")
    return tmp_path / "out" / "zh"


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    return fresh_output(tmp_path)


# ---------------------------------------------------------------------------- sound outputs


def test_an_output_has_every_invariant_proved(finished: Path) -> None:
    found = findings(finished / "out" / "zh")
    assert list(found) == PROVED
    assert {status for status, _ in found.values()} == {"proved"}
    assert "240 documents" in found["manifest"][1]
    assert "240 rows" in found["provenance"][1]
    assert "2 sources and 2 languages" in found["counts"][1]
    assert "240 by component" in found["splits"][1]
    assert "200 sampled texts" in found["texts"][1]


def test_findings_are_printed_as_json_too(finished: Path) -> None:
    outcome = taojin("check", finished / "out" / "zh", "--json", "--sample", 1)
    value = orjson.loads(outcome.out)
    assert value["ok"] is True
    assert value["output"].endswith("/zh")
    assert [finding["invariant"] for finding in value["findings"]] == PROVED


def test_a_broken_output_is_exit_status_1(prefix: Path) -> None:
    name = pair_names(prefix)[0]
    flip(prefix.parent / f"{name}.bin", 0)
    outcome = taojin("check", prefix, "--sample", 0)
    assert outcome.status == 1
    assert f"BROKEN    files       {prefix.parent / name}.bin: bytes 0 to" in outcome.out


def test_two_checks_print_the_same(finished: Path) -> None:
    once = taojin("check", finished / "out" / "zh", "--sample", 5)
    assert once.status == 0
    assert once.out.endswith(f"all {len(PROVED)} invariants hold\n")
    assert taojin("check", finished / "out" / "zh.manifest.json", "--sample", 5).out == once.out


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--shuffle", "--split", "train=0.5,valid=0.5"],
        ["--level", "sentence"],
        ["--no-append-eod"],
        ["--level", "sentence", "--shuffle", "--shard-tokens", "5000", "--special-in-text", "plain"],
        ["--by-source", "--weights", "web=2", "书=0.5"],
    ],
    ids=" ".join,
)
def test_outputs_of_every_kind_hold(finished: Path, tmp_path: Path, flags: list[str]) -> None:
    shutil.copy(finished / "tokenizer.json", tmp_path)
    assert not broken(tokenize(tmp_path, finished / "in", *flags))


@pytest.mark.parametrize("level", ["document", "sentence"])
def test_what_a_tokenizer_puts_around_a_text_is_part_of_it(tmp_path: Path, level: str) -> None:
    byte_tokenizer(tmp_path / "tokenizer.json", around=True)
    write_jsonl(tmp_path / "in" / "a.jsonl", records(4, 30))
    found = findings(tokenize(tmp_path, tmp_path / "in", "--add-special-tokens", "--level", level))
    assert statuses(found) == {"proved"}
    assert "decoded, they are the texts" in found["texts"][1]


def test_repaired_texts_are_compared_as_they_are_repaired(finished: Path, tmp_path: Path) -> None:
    shutil.copy(finished / "tokenizer.json", tmp_path)
    write_jsonl(tmp_path / "in" / "a.jsonl", [{"text": "它们是â€œ好â€\x9dçš„"}, {"text": "一\r\n二"}])
    assert not broken(tokenize(tmp_path, tmp_path / "in", "--repair"))


def test_a_check_in_small_blocks_finds_the_same(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = findings(finished / "out" / "zh")
    monkeypatch.setattr(proofs_of_provenance, "BATCH_ROWS", 7)
    monkeypatch.setattr(proofs_of_provenance, "BLOCK", 3)
    monkeypatch.setattr(proofs_of_tokens, "CHECKSUM_BYTES", 100)
    with blocks_of(5):
        assert findings(finished / "out" / "zh") == whole


@given(st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=8), max_size=8))
@settings(max_examples=100, deadline=None)
def test_a_position_that_comes_again_is_seen_wherever_it_comes(batches: list[list[int]]) -> None:
    seen, before = proofs_of_provenance.Seen(), Counter[int]()
    with mock.patch.object(proofs_of_provenance, "PAGE_SHIFT", 4):
        for batch in batches:
            before.update(batch)
            again = seen.first_again(np.array(batch, np.int64))
            assert (again >= 0) == (max(before.values(), default=0) > 1)
            if again >= 0:
                assert before[again] > 1
                return


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_tokens_before_a_sequence_are_the_sum_of_the_lengths_before(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(0, 5), max_size=20))
    wanted = sorted(data.draw(st.lists(st.integers(0, len(lengths)), max_size=10)))
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(proofs_of_provenance, "BLOCK", 3):
        pair = write_pair(Path(folder) / "zh", [[[1] * length] for length in lengths])
        found = proofs_of_provenance.tokens_before(pair, np.array(wanted, np.int64))
    assert found.tolist() == [sum(lengths[:number]) for number in wanted]


def test_jsonl_without_ids_holds(finished: Path, tmp_path: Path) -> None:
    shutil.copy(finished / "tokenizer.json", tmp_path)
    rows = [{"text": record["text"]} for record in records(5, 60)]
    write_jsonl(tmp_path / "in" / "a.jsonl", [*rows, {"text": None}, {"other": 1}])
    prefix = tokenize(tmp_path, tmp_path / "in", "--split", "train=0.5,valid=0.5")
    found = findings(prefix)
    assert not broken(prefix)
    assert "60 by place" in found["splits"][1]
    assert "62 read = 60 encoded + 2 left out" in found["counts"][1]


def test_an_output_without_documents_holds(finished: Path, tmp_path: Path) -> None:
    shutil.copy(finished / "tokenizer.json", tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").touch()
    assert not broken(tokenize(tmp_path, tmp_path / "in"))


def test_eod_in_a_text_is_counted_where_it_is_encoded(finished: Path, tmp_path: Path) -> None:
    shutil.copy(finished / "tokenizer.json", tmp_path)
    write_jsonl(tmp_path / "in" / "a.jsonl", [{"text": "一<|endoftext|>二"}, {"text": "三"}])
    encoded = findings(tokenize(tmp_path, tmp_path / "in"))
    plain = findings(tokenize(tmp_path, tmp_path / "in", "--special-in-text", "plain", output="plain"))
    assert "1 more inside documents" in encoded["tokens"][1]
    assert "0 more inside documents" in plain["tokens"][1]
    assert statuses(encoded) == statuses(plain) == {"proved"}


def test_what_decisions_keep_is_compared_as_they_edit_it(finished: Path, tmp_path: Path) -> None:
    shutil.copy(finished / "tokenizer.json", tmp_path)
    rows = records(6, 60)
    rows += [{**row, "id": f"again-{row['id']}"} for row in rows[:30]]
    write_parquet(tmp_path / "in" / "a.parquet", rows)
    assert dedup(tmp_path / "in", tmp_path / "clean").status == 0
    prefix = tokenize(tmp_path, tmp_path / "clean.work", "--split", "a=0.5,b=0.5")
    found = findings(prefix)
    assert statuses(found) == {"proved"}
    assert "by component" in found["splits"][1]


def test_conversations_and_their_mask_hold(tmp_path: Path) -> None:
    prefix = chat(tmp_path)
    found = findings(prefix)
    assert list(found) == [*PROVED[:6], "counts", "mask", "blend", "work", "texts"]
    assert statuses(found) == {"proved"}
    assert "tokens are learnt" in found["mask"][1]


def test_merged_pairs_hold(finished: Path, tmp_path: Path) -> None:
    names = [finished / "out" / name for name in pair_names(finished / "out" / "zh")]
    merged = tmp_path / "all"
    outcome = taojin("merge", "--input", *names, "--output", merged, "--num-cpus", "0", "--quiet")
    assert outcome.status == 0, outcome.err
    found = findings(merged)
    assert list(found) == ["manifest", "files", "tokenizer", "format", "tokens", "provenance", "counts", "texts"]
    assert statuses(found) == {"proved", "left out"}
    flip(tmp_path / "all.bin", 100)
    assert "all.bin: " in broken(merged)["files"]


def test_merged_pairs_of_which_one_is_bare_hold(finished: Path, tmp_path: Path) -> None:
    name = finished / "out" / pair_names(finished / "out" / "zh")[0]
    for suffix in (".bin", ".idx"):
        shutil.copy(f"{name}{suffix}", tmp_path / f"bare{suffix}")
    inputs = ["--input", name, tmp_path / "bare"]
    outcome = taojin("merge", *inputs, "--output", tmp_path / "all", "--num-cpus", "0", "--quiet")
    assert outcome.status == 0, outcome.err
    found = findings(tmp_path / "all", finished / "tokenizer.json")
    assert list(found) == ["manifest", "files", "format", "tokens", "ends", "provenance", "counts", "texts"]
    assert not broken(tmp_path / "all", finished / "tokenizer.json")


# ---------------------------------------------------------------------------- what is not there any more


def left_out(prefix: Path, tokenizer: Path | None = None) -> dict[str, str]:
    found = findings(prefix, tokenizer)
    assert not [name for name, (status, _) in found.items() if status == "broken"]
    return {name: detail for name, (status, detail) in found.items() if status == "left out"}


def test_an_output_alone_is_checked_as_far_as_it_goes(prefix: Path) -> None:
    shutil.rmtree(f"{prefix}.work")
    assert list(left_out(prefix)) == ["work"]


def test_without_a_sample_no_text_is_read(prefix: Path) -> None:
    assert "texts" not in findings(prefix, sample=0)


def test_an_output_that_was_moved_is_told_of(prefix: Path) -> None:
    assert "was moved" in findings(prefix)["blend"][1]


def test_a_missing_input_leaves_out_the_texts(fresh: Path, tmp_path: Path) -> None:
    (tmp_path / "in" / "a.jsonl").unlink()
    assert list(left_out(fresh)) == ["texts"]


def test_an_input_that_was_written_again_leaves_out_the_texts(fresh: Path, tmp_path: Path) -> None:
    path = tmp_path / "in" / "a.jsonl"
    path.write_text(path.read_text() + "\n")
    assert "has changed" in left_out(fresh)["texts"]


def test_a_document_that_was_changed_in_the_input_is_found(fresh: Path, tmp_path: Path) -> None:
    path = tmp_path / "in" / "a.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    record = orjson.loads(lines[50])
    changed = record["text"][:-1] + ("改" if record["text"][-1] != "改" else "动")
    lines[50] = lines[50].replace(record["text"], changed)
    path.write_text("".join(lines))
    found = broken(fresh)
    assert list(found) == ["texts"]
    assert "a.jsonl#50" in found["texts"]


def test_a_tokenizer_that_is_gone_leaves_out_the_texts_unless_it_is_named(fresh: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").rename(tmp_path / "moved.json")
    assert list(left_out(fresh)) == ["tokenizer", "texts"]
    assert "--tokenizer" in left_out(fresh)["tokenizer"]
    assert not left_out(fresh, tmp_path / "moved.json")


def test_another_tokenizer_is_the_users_error_where_it_is_named(fresh: Path, tmp_path: Path) -> None:
    other = byte_tokenizer(tmp_path / "other.json", extra=5)
    taojin("check", fresh, "--tokenizer", other).refuses(2, "other.json", "not the tokenizer")
    shutil.copy(other, tmp_path / "tokenizer.json")
    assert "not the tokenizer" in left_out(fresh)["tokenizer"]


def test_another_runs_work_folder_is_refused(fresh: Path, tmp_path: Path) -> None:
    other = tokenize(tmp_path, tmp_path / "in", "--seed", 1, output="other")
    assert "not the plan" in broken(fresh, work=f"{other}.work")["work"]


def test_a_work_folder_that_was_named_must_be_there(fresh: Path, tmp_path: Path) -> None:
    taojin("check", fresh, "--work", tmp_path / "nowhere").refuses(2, "--work", "nowhere")
