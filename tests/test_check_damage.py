"""`taojin check PREFIX` of outputs of `taojin tokenize` that somebody or something changed."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow.parquet as pq
import pytest

from taojin import proofs_of_tokens
from tests.jobs import write_texts
from tests.pair_checks import EOD, broken, byte_tokenizer, flip
from tests.token_outputs import (
    change_manifest,
    chat,
    finished_output,
    fresh_output,
    manifest_of,
    pair_names,
    restate,
    rewrite,
    tokenize,
)


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


def test_a_manifest_that_lacks_anything_is_damaged(prefix: Path) -> None:
    path = Path(f"{prefix}.manifest.json")
    whole = path.read_bytes()
    for name in orjson.loads(whole).keys() - {"claim", "warnings", "unreadable", "chat_template"}:
        manifest = orjson.loads(whole)
        del manifest[name]
        path.write_bytes(orjson.dumps(manifest))
        assert broken(prefix, sample=0), name
    for name in proofs_of_tokens.SETTINGS:
        manifest = orjson.loads(whole)
        del manifest["config"][name]
        path.write_bytes(orjson.dumps(manifest))
        assert list(broken(prefix, sample=0)) == ["manifest"], name


def test_a_level_that_is_not_that_of_the_sequences_is_found(tmp_path: Path) -> None:
    byte_tokenizer(tmp_path / "tokenizer.json")
    prefix = tokenize(tmp_path, write_texts(tmp_path / "a.parquet", ["一。二。"]), "--level", "sentence")
    change_manifest(prefix, lambda manifest: manifest.update(level="document"))
    assert "several sequences" in broken(prefix, sample=0)["provenance"]


@pytest.mark.parametrize("name", ["read", "documents", "sequences", "tokens", "empty", "ends_in_text"])
def test_a_wrong_count_in_the_manifest_is_found(prefix: Path, name: str) -> None:
    change_manifest(prefix, lambda manifest: manifest["counts"].update({name: manifest["counts"][name] + 1}))
    assert "zh.manifest.json: " in broken(prefix, sample=0)["tokens" if name == "ends_in_text" else "counts"]


@pytest.mark.parametrize("name", ["by_split", "by_source", "by_language"])
@pytest.mark.parametrize("what", ["documents", "tokens"])
def test_a_wrong_total_in_the_manifest_is_found(prefix: Path, name: str, what: str) -> None:
    path = Path(f"{prefix}.manifest.json")
    whole = path.read_bytes()
    for key in orjson.loads(whole)["counts"][name]:
        manifest = orjson.loads(whole)
        manifest["counts"][name][key][what] += 1
        path.write_bytes(orjson.dumps(manifest))
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
