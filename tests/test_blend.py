"""Blend files as Megatron-LM's own readers take them, and the weights in them."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taojin.core.errors import ConfigError
from taojin.core.storage import Folder
from taojin.tokenize.blend import (
    Weighted,
    blend_json,
    blend_of,
    blend_text,
    parse_weights,
    unused_weights,
    write_blend,
)

WIKI = Weighted("/data/zh_train_wiki", "train", "wiki", 300)
CODE = Weighted("/data/zh_train_code", "train", "code", 100)
VALID = Weighted("/data/zh_valid_wiki", "valid", "wiki", 40)

prefixes = st.text("abc/_-.0123456789中", min_size=1, max_size=8)
entries = st.builds(
    Weighted,
    prefixes,
    st.sampled_from(["train", "valid", "test", "extra", ""]),
    st.sampled_from(["a", "b", "c"]),
    st.integers(0, 10**14),
)
factors = st.dictionaries(st.sampled_from(["a", "b"]), st.floats(1e-6, 1e6))


@pytest.fixture(scope="module")
def megatron() -> Any:
    """megatron.core.datasets.utils, whose get_blend_from_list reads both forms."""
    return pytest.importorskip("megatron.core.datasets.utils", reason="megatron-core is not installed")


def read_text(megatron: Any, text: str) -> Any:
    """What --data-args-path does with a file: get_blend_from_list(file.read().split())."""
    return megatron.get_blend_from_list(text.split())


def read_json(megatron: Any, text: str) -> list[Any]:
    """What --per-split-data-args-path does with a file: one list for each of three keys."""
    lists = json.loads(text)
    return [megatron.get_blend_from_list(lists[split]) for split in ("train", "valid", "test")]


# ---------------------------------------------------------------------------- weights


def test_weights_are_shares_of_tokens_times_factors() -> None:
    assert blend_of([WIKI, CODE, VALID], {}) == {
        "train": [(0.75, WIKI.prefix), (0.25, CODE.prefix)],
        "valid": [(1.0, VALID.prefix)],
    }
    assert blend_of([WIKI, CODE], {"code": 6.0, "wiki": 2.0})["train"] == [(0.5, WIKI.prefix), (0.5, CODE.prefix)]


def test_parts_of_a_source_share_its_factor() -> None:
    parts = [Weighted(f"p_{number}", "", "wiki", tokens) for number, tokens in enumerate([100, 100, 50])]
    weights = [weight for weight, _ in blend_of([*parts, Weighted("c", "", "code", 250)], {"code": 3.0})[""]]
    assert weights == [0.1, 0.1, 0.05, 0.75]


def test_pairs_without_tokens_and_splits_of_such_pairs_are_left_out() -> None:
    empty = WIKI._replace(tokens=0)
    assert blend_of([empty, CODE, VALID._replace(tokens=0)], {}) == {"train": [(1.0, CODE.prefix)]}
    assert blend_of([empty], {}) == {}


@given(st.lists(entries, max_size=12), factors)
def test_weights_are_positive_and_sum_to_one(pairs: list[Weighted], factors: dict[str, float]) -> None:
    for blend in blend_of(pairs, factors).values():
        assert all(weight > 0 for weight, _ in blend)
        assert math.isclose(math.fsum(weight for weight, _ in blend), 1, abs_tol=1e-12)


def test_factors_are_read_by_source() -> None:
    assert parse_weights(()) == {}
    assert parse_weights(("wiki=2", "a=b=0.5", "中文 网页=1e-3")) == {"wiki": 2.0, "a=b": 0.5, "中文 网页": 0.001}


@pytest.mark.parametrize(
    ("texts", "part"),
    [
        (["wiki"], "'wiki'"),
        (["=2"], "'=2'"),
        ([""], "''"),
        (["wiki=x"], "'x'"),
        (["wiki="], "''"),
        (["wiki=0"], "from 0.000001 to 1000000"),
        (["wiki=-1"], "'-1'"),
        (["wiki=nan"], "'nan'"),
        (["wiki=inf"], "'inf'"),
        (["wiki=1e7"], "'1e7'"),
        (["wiki=1", "code=1", "wiki=2"], "wiki is named twice"),
    ],
)
def test_a_wrong_factor_is_refused_in_one_line(texts: list[str], part: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_weights(texts)
    assert str(refused.value).startswith("--weights: ")
    assert part in str(refused.value)
    assert "\n" not in str(refused.value)


def test_factors_of_unknown_sources_are_warned_about() -> None:
    assert unused_weights({"wiki": 2.0}, ["wiki", "code"]) == ""
    warning = unused_weights({"wkii": 2.0, "code": 1.0}, ["wiki", "code"])
    assert "wkii" in warning
    assert "'code', 'wiki'" in warning
    assert "and 90 more" in unused_weights({"x": 1.0}, [f"s{number:02d}" for number in range(100)])


# ---------------------------------------------------------------------------- the two forms


def test_the_text_is_megatrons_data_path_of_the_training_split() -> None:
    assert blend_text(blend_of([WIKI, CODE, VALID], {})) == "0.75 /data/zh_train_wiki\n0.25 /data/zh_train_code\n"


@pytest.mark.parametrize("split", ["", "all", "train"])
def test_an_only_split_is_for_training(split: str) -> None:
    blends = blend_of([WIKI._replace(split=split)], {})
    assert blend_text(blends) == "1.0 /data/zh_train_wiki\n"
    assert json.loads(blend_json(blends)) == {"train": ["1.0", "/data/zh_train_wiki"], "valid": None, "test": None}


def test_without_a_training_split_there_is_no_text() -> None:
    assert blend_text(blend_of([VALID], {})) == ""
    assert blend_text(blend_of([WIKI._replace(split="a"), CODE._replace(split="b")], {})) == ""
    assert blend_text({}) == ""


def test_json_has_megatrons_three_splits_and_then_the_others() -> None:
    blends = blend_of([VALID, WIKI, CODE, WIKI._replace(split="late")], {})
    assert json.loads(blend_json(blends)) == {
        "train": ["0.75", "/data/zh_train_wiki", "0.25", "/data/zh_train_code"],
        "valid": ["1.0", "/data/zh_valid_wiki"],
        "test": None,
        "late": ["1.0", "/data/zh_train_wiki"],
    }
    assert json.loads(blend_json({})) == {"train": None, "valid": None, "test": None}


@given(st.lists(entries, max_size=12), factors)
def test_megatron_reads_both_forms_back_exactly(
    megatron: Any, pairs: list[Weighted], factors: dict[str, float]
) -> None:
    blends = blend_of(pairs, factors)
    if len(blends) == 1 and not blends.keys() & {"valid", "test"}:
        blends = dict(zip(["train"], blends.values(), strict=True))
    expected = [
        ([prefix for _, prefix in blends[split]], [weight for weight, _ in blends[split]]) if split in blends else None
        for split in ("train", "valid", "test")
    ]
    assert read_json(megatron, blend_json(blends)) == expected
    text = blend_text(blends)
    assert (read_text(megatron, text) if text else None) == expected[0]


def test_prefixes_that_are_numbers_are_no_weights(megatron: Any) -> None:
    blends = blend_of([WIKI._replace(prefix="2024"), CODE._replace(prefix="7")], {})
    assert read_text(megatron, blend_text(blends)) == (["2024", "7"], [0.75, 0.25])


@pytest.mark.parametrize("prefix", ["/my data/zh", "/数据\u3000/zh"])
def test_prefixes_with_white_space_are_only_in_the_json(megatron: Any, prefix: str) -> None:
    blends = blend_of([WIKI._replace(prefix=prefix)], {})
    assert blend_text(blends) == ""
    assert read_json(megatron, blend_json(blends))[0] == ([prefix], [1.0])


# ---------------------------------------------------------------------------- the files


def entry(name: str, split: str, source: str, tokens: int) -> dict[str, Any]:
    return {"name": name, "split": split, "source": source, "tokens": tokens, "number": -1}


def test_both_files_stand_beside_the_pairs_and_name_them_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pairs = [entry("zh_train_wiki", "train", "wiki", 30), entry("zh_train_code", "train", "code", 10)]
    write_blend(Folder("out"), "zh", [*pairs, entry("zh_valid_wiki", "valid", "wiki", 1)], {"code": 3.0})
    train = ["0.5", f"{tmp_path}/out/zh_train_wiki", "0.5", f"{tmp_path}/out/zh_train_code"]
    assert (tmp_path / "out" / "zh.blend.txt").read_text().split() == train
    assert json.loads((tmp_path / "out" / "zh.blend.json").read_text()) == {
        "train": train,
        "valid": ["1.0", f"{tmp_path}/out/zh_valid_wiki"],
        "test": None,
    }


def test_an_output_without_tokens_has_a_json_of_nulls_alone(tmp_path: Path) -> None:
    write_blend(Folder(str(tmp_path)), "zh", [entry("zh", "", "", 0)], {})
    assert [path.name for path in tmp_path.iterdir()] == ["zh.blend.json"]
    assert json.loads((tmp_path / "zh.blend.json").read_text()) == {"train": None, "valid": None, "test": None}


def test_the_query_of_a_uri_stays_out_of_the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It names our connection, keys perhaps among it."""
    create, written = Folder.create, Folder(str(tmp_path))
    monkeypatch.setattr(Folder, "create", lambda _, name: create(written, name))
    folder = Folder("s3://bucket/out?endpoint_override=127.0.0.1&secret_key=x")
    write_blend(folder, "zh", [entry("zh", "", "", 5)], {})
    assert (tmp_path / "zh.blend.txt").read_text() == "1.0 s3://bucket/out/zh\n"
    assert "secret" not in (tmp_path / "zh.blend.json").read_text()
