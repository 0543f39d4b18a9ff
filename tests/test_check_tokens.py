"""`taojin check PREFIX` of outputs of `taojin tokenize` and `taojin merge`: sound ones, and every way to break one."""

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from taojin import proofs_of_provenance, proofs_of_tokens
from taojin.core.storage import Folder, file_checksum
from tests.jobs import chinese, dedup, taojin, write_jsonl, write_parquet
from tests.megatron_pairs import blocks_of, write_pair
from tests.pair_checks import EOD, broken, byte_tokenizer, findings, flip, statuses

PROVED_ALONE = ["manifest", "files", "tokenizer", "format", "tokens", "provenance", "counts", "splits", "blend"]
PROVED = [*PROVED_ALONE, "work", "texts"]
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def records(seed: int, count: int) -> list[dict[str, Any]]:
    """Documents, a few of them empty, of two sources and languages, in components of three."""
    rng = random.Random(seed)
    return [
        {
            "id": f"{seed}-{number}",
            "text": "" if number % 17 == 0 else chinese(rng, rng.choice((3, 40, 120))) + "。好！",
            "source": rng.choice(("web", "书")),
            "language": rng.choice(("zh", "en", None)),
        }
        for number in range(count)
    ]


def components(rows: list[dict[str, Any]], first: int = 0) -> pa.Table:
    """The rows with the columns of an output of `taojin dedup`."""
    numbers = np.arange(first, first + len(rows))
    table = pa.Table.from_pylist(rows)
    for name, values in (
        ("cluster", pa.array(numbers)),
        ("cluster_size", pa.array(np.ones(len(rows), np.int32))),
        ("component", pa.array(numbers // 3)),
    ):
        table = table.append_column(pa.field(name, values.type, nullable=False), values)
    return table


def tokenize(root: Path, source: Path, *flags: object, output: str = "zh") -> Path:
    """PREFIX of `taojin tokenize` with a tokenizer of bytes, without Ray."""
    given = ["--decisions", source] if source.suffix == ".work" else ["--input", source, "--unit-mb", "0.02"]
    where = ["--output", root / "out" / output, "--tokenizer", root / "tokenizer.json"]
    run = ["--num-cpus", "0", "--quiet", "--backend", "reference"]
    outcome = taojin("tokenize", *given, *where, *run, *flags)
    assert outcome.status == 0, outcome.err
    return root / "out" / output


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two splits, two sources and more than one number of some: zh_train_web_00000 and so on."""
    root = tmp_path_factory.mktemp("finished")
    byte_tokenizer(root / "tokenizer.json")
    (root / "in").mkdir()
    for shard in range(2):
        table = components(records(shard, 120), 120 * shard)
        pq.write_table(table, root / "in" / f"shard-{shard}.parquet", row_group_size=30)
    tokenize(root, root / "in", "--split", "train=0.7,valid=0.3", "--by-source", "--shard-tokens", 15_000)
    return root


@pytest.fixture
def prefix(finished: Path, tmp_path: Path) -> Path:
    """PREFIX of a copy that a test may tamper with; input and tokenizer stay where they were."""
    shutil.copytree(finished / "out", tmp_path / "out")
    return tmp_path / "out" / "zh"


def manifest_of(prefix: Path) -> dict[str, Any]:
    return orjson.loads(Path(f"{prefix}.manifest.json").read_bytes())


def change_manifest(prefix: Path, change: Callable[[dict[str, Any]], None]) -> None:
    manifest = manifest_of(prefix)
    change(manifest)
    Path(f"{prefix}.manifest.json").write_bytes(orjson.dumps(manifest))


def restate(prefix: Path) -> None:
    """Give the manifest the sizes and checksums of the files as they are: a tamperer who knows it."""
    folder = prefix.parent

    def change(manifest: dict[str, Any]) -> None:
        for pair in manifest["pairs"]:
            for kind, entry in pair["files"].items():
                path = folder / entry["name"]
                entry["bytes"] = path.stat().st_size
                if kind in ("bin", "mask_bin"):
                    data = path.read_bytes()
                    pair["ranges" if kind == "bin" else "mask_ranges"] = [[len(data), xxhash.xxh3_64_hexdigest(data)]]
                else:
                    entry["xxh3"] = file_checksum(Folder(str(folder)), entry["name"])

    change_manifest(prefix, change)


def pair_names(prefix: Path) -> list[str]:
    return [pair["name"] for pair in manifest_of(prefix)["pairs"]]


def rewrite(path: Path, change: Callable[[dict[str, list[Any]]], None]) -> None:
    """Change the columns of a Parquet file."""
    table = pq.read_table(path)
    columns = table.to_pydict()
    change(columns)
    pq.write_table(pa.table(columns, schema=table.schema), path)


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
    write_jsonl(tmp_path / "in" / "a.jsonl", [{"text": None}])
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


def chat(root: Path) -> Path:
    byte_tokenizer(root / "tokenizer.json")
    (root / "chat_template.jinja").write_text(CHATML)
    turns = [[{"role": "user", "content": f"问{i}"}, {"role": "assistant", "content": f"答{i}"}] for i in range(20)]
    write_jsonl(root / "in" / "a.jsonl", [{"messages": messages} for messages in turns])
    return tokenize(root, root / "in", "--chat")


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


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """PREFIX of an output whose input and tokenizer a test may tamper with: one shard of JSONL of 300 kB."""
    byte_tokenizer(tmp_path / "tokenizer.json")
    rng = random.Random(3)
    write_jsonl(tmp_path / "in" / "a.jsonl", [{"id": str(i), "text": chinese(rng, 1000)} for i in range(100)])
    return tokenize(tmp_path, tmp_path / "in")


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


# ---------------------------------------------------------------------------- damage


def test_a_flipped_byte_in_any_file_names_it(prefix: Path) -> None:
    for pair in manifest_of(prefix)["pairs"][:3]:
        for entry in pair["files"].values():
            path = prefix.parent / entry["name"]
            flip(path, entry["bytes"] // 2)
            assert f"{entry['name']}: " in broken(prefix, sample=0)["files"]
            flip(path, entry["bytes"] // 2)


@pytest.mark.parametrize("suffix", [".bin", ".idx", ".parquet"])
def test_a_missing_file_is_named(prefix: Path, suffix: str) -> None:
    name = pair_names(prefix)[1] + suffix
    (prefix.parent / name).unlink()
    assert f"{name}: " in broken(prefix, sample=0)["files"]
    assert "no file" in broken(prefix, sample=0)["files"]


@pytest.mark.parametrize("suffix", [".bin", ".idx", ".parquet"])
def test_a_file_that_was_cut_is_named(prefix: Path, suffix: str) -> None:
    path = prefix.parent / (pair_names(prefix)[1] + suffix)
    path.write_bytes(path.read_bytes()[:-2])
    assert f"{path.name}: expected" in broken(prefix, sample=0)["files"]


def test_a_manifest_that_is_not_there_means_the_run_did_not_end(prefix: Path) -> None:
    Path(f"{prefix}.manifest.json").unlink()
    assert "resumes" in broken(prefix, sample=0)["manifest"]


def test_a_damaged_manifest_is_named(prefix: Path) -> None:
    Path(f"{prefix}.manifest.json").write_text("{")
    assert "zh.manifest.json: " in broken(prefix, sample=0)["manifest"]


@pytest.mark.parametrize("name", ["read", "documents", "sequences", "tokens", "empty", "ends_in_text"])
def test_a_wrong_count_in_the_manifest_is_found(prefix: Path, name: str) -> None:
    change_manifest(prefix, lambda manifest: manifest["counts"].update({name: manifest["counts"][name] + 1}))
    assert "zh.manifest.json: " in broken(prefix, sample=0)["tokens" if name == "ends_in_text" else "counts"]


@pytest.mark.parametrize("name", ["by_split", "by_source", "by_language"])
@pytest.mark.parametrize("what", ["documents", "tokens"])
def test_a_wrong_total_in_the_manifest_is_found(prefix: Path, name: str, what: str) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["counts"][name][max(manifest["counts"][name])][what] += 1

    change_manifest(prefix, change)
    assert name.replace("_", " ") in broken(prefix, sample=0)["counts"]


@pytest.mark.parametrize("name", ["documents", "sequences", "tokens"])
def test_a_wrong_count_of_a_pair_is_found(prefix: Path, name: str) -> None:
    change_manifest(prefix, lambda manifest: manifest["pairs"][1].update({name: 1}))
    assert f"{pair_names(prefix)[1]}.idx: " in broken(prefix, sample=0)["counts"]


@pytest.mark.parametrize(("name", "value"), [("vocab_size", 300), ("eod", 255), ("prefix", [1]), ("lossless", False)])
def test_what_a_manifest_tells_of_another_tokenizer_is_found(prefix: Path, name: str, value: Any) -> None:
    change_manifest(prefix, lambda manifest: manifest["tokenizer"].update({name: value}))
    assert name in broken(prefix, sample=0)["tokenizer"]


def test_a_pair_that_the_manifest_forgets_is_missed(prefix: Path) -> None:
    change_manifest(prefix, lambda manifest: manifest["pairs"].pop())
    assert {"counts", "blend"} <= broken(prefix, sample=0).keys()


def test_another_dtype_than_megatrons_is_found(prefix: Path) -> None:
    change_manifest(prefix, lambda manifest: manifest.update(dtype="int32"))
    assert "uint16" in broken(prefix, sample=0)["format"]


# ---------------------------------------------------------------------------- forged: checksums fit


def change_tokens(prefix: Path, change: Callable[[Any], None]) -> str:
    """Change the tokens of a pair and the manifest with it; returns the pair's name."""
    name = pair_names(prefix)[0]
    path = prefix.parent / f"{name}.bin"
    tokens = np.frombuffer(path.read_bytes(), np.uint16).copy()
    change(tokens)
    path.write_bytes(tokens.tobytes())
    restate(prefix)
    return name


def test_an_id_above_the_vocabulary_is_found(prefix: Path) -> None:
    def change(tokens: Any) -> None:
        tokens[3] = EOD + 1

    assert f"{change_tokens(prefix, change)}.bin: " in broken(prefix, sample=0)["tokens"]


def test_a_missing_eod_is_found(prefix: Path) -> None:
    def change(tokens: Any) -> None:
        tokens[-1] = 5

    assert "do not end with EOD" in (change_tokens(prefix, change) and broken(prefix, sample=0)["tokens"])


def test_an_eod_inside_a_document_that_no_text_holds_is_found(prefix: Path) -> None:
    def change(tokens: Any) -> None:
        tokens[3] = EOD

    change_tokens(prefix, change)
    assert "1 stand inside" in broken(prefix, sample=0)["tokens"]


def test_other_tokens_are_found_by_the_sample(prefix: Path) -> None:
    def change(tokens: Any) -> None:
        tokens[tokens < 200] += 1

    name = change_tokens(prefix, change)
    found = broken(prefix)
    assert list(found) == ["texts"]
    assert f"{name}.bin: " in found["texts"]


def test_other_borders_of_documents_are_found(prefix: Path) -> None:
    name = pair_names(prefix)[0]
    path = prefix.parent / f"{name}.idx"
    data = bytearray(path.read_bytes())
    indices = np.frombuffer(data, np.int64, offset=len(data) - 8 * (manifest_of(prefix)["pairs"][0]["documents"] + 1))
    at = int(np.flatnonzero(np.diff(indices))[0]) + 1
    indices[at] -= 1
    path.write_bytes(data)
    restate(prefix)
    assert f"{name}.parquet: " in broken(prefix, sample=0)["provenance"]


def change_provenance(prefix: Path, change: Callable[[dict[str, list[Any]]], None], pair: int = 0) -> str:
    name = pair_names(prefix)[pair]
    rewrite(prefix.parent / f"{name}.parquet", change)
    restate(prefix)
    return f"{name}.parquet: "


@pytest.mark.parametrize("column", ["document", "sequence", "sequences", "tokens"])
def test_a_number_that_is_not_the_indexs_is_found(prefix: Path, column: str) -> None:
    def change(columns: dict[str, list[Any]]) -> None:
        columns[column][2] += 1

    where = change_provenance(prefix, change)
    assert where in broken(prefix, sample=0)["provenance"]
    assert f"{column} of row 2" in broken(prefix, sample=0)["provenance"]


def test_a_missing_row_is_found(prefix: Path) -> None:
    def change(columns: dict[str, list[Any]]) -> None:
        for column in columns.values():
            column.pop()

    assert "rows, found" in (change_provenance(prefix, change) and broken(prefix, sample=0)["provenance"])


def test_a_row_of_the_input_that_comes_twice_is_found(finished: Path, tmp_path: Path) -> None:
    """In another pair, so that their order tells nothing."""
    shutil.copytree(finished / "out", tmp_path / "out")
    prefix = tmp_path / "out" / "zh"
    names = pair_names(prefix)
    other = pq.read_table(prefix.parent / f"{names[0]}.parquet").slice(0, 1).to_pylist()[0]

    def change(columns: dict[str, list[Any]]) -> None:
        columns["shard"][0], columns["row"][0] = other["shard"], other["row"]

    change_provenance(prefix, change, pair=len(names) - 1)
    assert f"{other['shard']}#{other['row']} is here" in broken(prefix, sample=0)["provenance"]


def test_documents_out_of_order_are_found(prefix: Path) -> None:
    def change(columns: dict[str, list[Any]]) -> None:
        for name in ("shard", "row"):
            columns[name][1], columns[name][2] = columns[name][2], columns[name][1]

    assert "order of the input" in (change_provenance(prefix, change) and broken(prefix, sample=0)["provenance"])


@pytest.mark.parametrize(("column", "value"), [("shard", "nowhere.parquet"), ("row", -1), ("row", 1 << 40)])
def test_a_place_that_is_none_is_found(prefix: Path, column: str, value: Any) -> None:
    def change(columns: dict[str, list[Any]]) -> None:
        columns[column][1] = value

    assert "not a place" in (change_provenance(prefix, change) and broken(prefix, sample=0)["provenance"])


def test_a_document_in_the_pair_of_another_source_is_found(prefix: Path) -> None:
    def change(columns: dict[str, list[Any]]) -> None:
        columns["source"][1] = "elsewhere"

    assert "another source" in (change_provenance(prefix, change) and broken(prefix, sample=0)["provenance"])


def test_a_component_on_two_sides_is_found(prefix: Path) -> None:
    pairs = manifest_of(prefix)["pairs"]
    valid = next(number for number, pair in enumerate(pairs) if pair["split"] == "valid")
    component = pq.read_table(prefix.parent / f"{pairs[0]['name']}.parquet").column("component")[0].as_py()

    def change(columns: dict[str, list[Any]]) -> None:
        columns["component"][0] = component

    where = change_provenance(prefix, change, valid)
    found = broken(prefix, sample=0)["splits"]
    assert where in found
    assert f"component {component}, whose side is train, not valid" in found


def test_an_id_on_two_sides_is_found(fresh: Path, tmp_path: Path) -> None:
    prefix = tokenize(tmp_path, tmp_path / "in", "--split", "train=0.5,valid=0.5", output="split")
    stolen = pq.read_table(prefix.parent / "split_train.parquet").column("id")[0].as_py()
    rewrite(prefix.parent / "split_valid.parquet", lambda columns: columns["id"].__setitem__(0, stolen))
    restate(prefix)
    assert f"id {stolen!r}, whose side is train" in broken(prefix, sample=0)["splits"]


@pytest.mark.parametrize("column", ["id", "language", "cluster", "component"])
def test_provenance_that_is_not_the_inputs_is_found_by_the_sample(fresh: Path, column: str) -> None:
    values: dict[str, Any] = {"id": "another", "language": "fr", "cluster": 7, "component": 7}
    rewrite(Path(f"{fresh}.parquet"), lambda columns: columns[column].__setitem__(3, values[column]))
    restate(fresh)
    assert f"a.jsonl#3: {column}" in broken(fresh)["texts"]


# ---------------------------------------------------------------------------- mask and blend


def test_a_mask_that_is_neither_0_nor_1_is_found(tmp_path: Path) -> None:
    prefix = chat(tmp_path)
    path = tmp_path / "out" / "zh_mask.bin"
    path.write_bytes(b"\2" + path.read_bytes()[1:])
    restate(prefix)
    assert "zh_mask.bin: " in broken(prefix, sample=0)["mask"]


def test_a_mask_of_other_tokens_is_found_by_the_sample(tmp_path: Path) -> None:
    prefix = chat(tmp_path)
    path = tmp_path / "out" / "zh_mask.bin"
    path.write_bytes(b"\1" + path.read_bytes()[1:])
    restate(prefix)
    found = broken(prefix)
    assert list(found) == ["texts"]
    assert "mask of token 0" in found["texts"]


def test_a_mask_of_another_shape_is_found(tmp_path: Path) -> None:
    prefix = chat(tmp_path)
    path = tmp_path / "out" / "zh_mask.idx"
    data = bytearray(path.read_bytes())
    lengths = np.frombuffer(data, np.int32, 20, 34)
    pointers = np.frombuffer(data, np.int64, 20, 34 + 80)
    lengths[0] += 1
    lengths[1] -= 1
    pointers[1] += 1
    path.write_bytes(data)
    restate(prefix)
    assert "zh_mask.idx: " in broken(prefix, sample=0)["mask"]


def change_blend(prefix: Path, change: Callable[[dict[str, Any]], None]) -> str:
    path = Path(f"{prefix}.blend.json")
    blend = orjson.loads(path.read_bytes())
    change(blend)
    path.write_bytes(orjson.dumps(blend))
    return broken(prefix, sample=0)["blend"]


def test_a_wrong_weight_in_a_blend_is_found(prefix: Path) -> None:
    assert "by its tokens" in change_blend(prefix, lambda blend: blend["train"].__setitem__(0, "0.9"))


def test_a_pair_that_a_blend_forgets_is_found(prefix: Path) -> None:
    assert "not those of the manifest" in change_blend(prefix, lambda blend: blend["train"].__delitem__(slice(2)))


def test_a_split_that_a_blend_forgets_is_found(prefix: Path) -> None:
    assert "splits" in change_blend(prefix, lambda blend: blend.update(valid=None))


def test_two_blends_that_differ_are_found(prefix: Path) -> None:
    path = Path(f"{prefix}.blend.txt")
    path.write_text(path.read_text().replace("0.", "0.1", 1))
    assert "zh.blend.txt: " in broken(prefix, sample=0)["blend"]


def test_a_missing_blend_is_found(prefix: Path) -> None:
    Path(f"{prefix}.blend.json").unlink()
    assert "blend" in broken(prefix, sample=0)
