"""The NumPy functions of taojin.tokenize.split against Python integers, and what a split and a shuffle promise."""

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taojin.core import text
from taojin.core.errors import ConfigError
from taojin.tokenize.split import (
    Split,
    _mix,
    assign,
    component_keys,
    id_keys,
    parse_split,
    place_keys,
    shuffle_keys,
)
from tests import naive

U64 = (1 << 64) - 1
numbers = st.integers(-(2**63), 2**63 - 1)
seeds = st.integers(-(2**70), 2**70)
rows = st.lists(st.integers(0, 2**40), max_size=20)
shares = st.lists(st.integers(1, 1000), min_size=1, max_size=6).map(lambda parts: [part / sum(parts) for part in parts])


# Keys of so many documents, each kind of key there is.
KEYS: dict[str, Callable[[int], NDArray[np.uint64]]] = {
    "components": lambda count: component_keys(int64(range(count)) << 40),
    "ids": lambda count: id_keys(pa.array([f"shard.parquet#{number}" for number in range(count)])),
    "places": lambda count: np.concatenate([place_keys(shard, 3, int64(range(count // 100))) for shard in range(100)]),
}


def int64(values: list[int] | range) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def uint64(values: list[int]) -> NDArray[np.uint64]:
    return np.array(values, np.uint64)


def split_of(parts: list[float]) -> Split:
    return Split(tuple(f"s{number}" for number in range(len(parts))), tuple(parts))


def naive_state(purpose: bytes, *state: int) -> int:
    found = int.from_bytes(purpose, "big")
    for number in state:
        found = naive.mix(found ^ (number & U64))
    return found


def naive_assign(parts: list[float], seed: int, key: int) -> int:
    """The first split whose cumulative share lies above the number, the last one where rounding leaves none."""
    number = naive.mix(key ^ naive_state(b"SPLIT\0\0\2", seed))
    for index in range(len(parts) - 1):
        if number < int(math.fsum(parts[: index + 1]) * 2**64):
            return index
    return len(parts) - 1


# ---------------------------------------------------------------------------- the flag


def test_names_and_shares_are_read_in_their_order() -> None:
    assert parse_split("train=0.98,valid=0.02") == Split(("train", "valid"), (0.98, 0.02))
    assert parse_split(" b_2 = .5 , a-1=5e-1 ") == Split(("b_2", "a-1"), (0.5, 0.5))
    assert parse_split("all=1") == Split(("all",), (1.0,))


@pytest.mark.parametrize("text", ["", "  "])
def test_no_split_is_one_without_a_name(text: str) -> None:
    assert parse_split(text) == Split(("",), (1.0,))


def test_thirds_in_nine_decimals_sum_to_one() -> None:
    assert len(parse_split("a=0.333333333,b=0.333333333,c=0.333333333").names) == 3


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("train", "'train'"),
        ("train=0.98,", "''"),
        ("=1", "'=1'"),
        ("Train=1", "'Train=1'"),
        ("训练=1", "'训练=1'"),
        ("a/b=1", "'a/b=1'"),
        ("a b=1", "'a b=1'"),
        ("train=", "''"),
        ("train=98%", "'98%'"),
        ("train=1=0", "'1=0'"),
        ("train=1,valid=0", "valid"),
        ("train=1.5,valid=-0.5", "valid"),
        ("train=nan", "'nan'"),
        ("train=inf", "'inf'"),
        ("train=0.5,train=0.5", "train is named twice"),
        ("train=0.98,valid=0.03", "1.01"),
        ("train=0.98", "0.98"),
        ("train=98,valid=2", "100"),
        ("train=0.99999999,valid=0.000000005", "0.999999995"),
    ],
)
def test_a_wrong_split_is_refused_in_one_line(text: str, part: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_split(text)
    message = str(refused.value)
    assert message.startswith("--split: ")
    assert part in message
    assert "\n" not in message
    assert "train=0.98,valid=0.02" in message


@given(st.text(max_size=30) | st.text("abz=,.01 9-_e", max_size=30))
def test_any_text_is_a_split_or_refused(text: str) -> None:
    try:
        split = parse_split(text)
    except ConfigError as error:
        assert str(error).startswith("--split: ")  # noqa: PT017 - either outcome is right
        return
    assert len(set(split.names)) == len(split.names) == len(split.shares)
    assert abs(sum(split.shares) - 1) <= 1.001e-9


# ---------------------------------------------------------------------------- keys


@given(st.lists(st.integers(0, U64), max_size=20))
@example([0, 1, U64, 1 << 63])
def test_mix_in_numpy_is_the_mix_of_the_kernels(values: list[int]) -> None:
    assert _mix(uint64(values)).tolist() == [naive.mix(value) for value in values]
    plain: Any = getattr(text.mix, "py_func", text.mix)
    with np.errstate(over="ignore"):  # outside a kernel it is plain Python on NumPy scalars
        assert _mix(uint64(values)).tolist() == [int(plain(np.uint64(value))) for value in values]


@given(st.lists(numbers, max_size=20))
def test_component_keys_are_the_mixed_components(components: list[int]) -> None:
    expected = [naive.mix((component & U64) ^ naive_state(b"COMPONEN")) for component in components]
    assert component_keys(int64(components)).tolist() == expected


@given(st.integers(0, 2**20), st.integers(0, 2**20), rows)
def test_place_keys_are_shard_piece_and_row_mixed(shard: int, piece: int, rows: list[int]) -> None:
    state = naive_state(b"PLACE\0\0\1", shard, piece)
    assert place_keys(shard, piece, int64(rows)).tolist() == [naive.mix(state ^ row) for row in rows]


@given(seeds, st.integers(0, 2**20), st.integers(0, 2**20), rows)
def test_shuffle_keys_are_seed_shard_piece_and_row_mixed(seed: int, shard: int, piece: int, rows: list[int]) -> None:
    state = naive_state(b"SHUFFLE\3", seed, shard, piece)
    assert shuffle_keys(seed, shard, piece, int64(rows)).tolist() == [naive.mix(state ^ row) for row in rows]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=8), st.integers(0, 8))
@settings(max_examples=50)
def test_an_id_has_one_key_in_any_array_and_slice(ids: list[str], start: int) -> None:
    keys = id_keys(pa.array(ids, pa.large_string()))
    assert keys.dtype == np.uint64
    assert id_keys(pa.array(ids, pa.string())).tolist() == keys.tolist()
    assert id_keys(pa.array(ids, pa.large_string())[start:]).tolist() == keys[start:].tolist()
    assert [id_keys(pa.array([one], pa.string()))[0] for one in ids] == keys.tolist()
    assert len(set(keys.tolist())) == len(set(ids))


def test_places_and_shuffles_do_not_collide() -> None:
    for keys in (
        [place_keys(shard, piece, int64(range(200))) for shard in range(20) for piece in range(20)],
        [shuffle_keys(5, shard, piece, int64(range(200))) for shard in range(20) for piece in range(20)],
    ):
        assert len(np.unique(np.concatenate(keys))) == 20 * 20 * 200


# ---------------------------------------------------------------------------- splits


@given(shares, seeds, st.lists(st.integers(0, U64), max_size=20))
@example([1.0 - 2**-53, 2**-53], 0, [0, U64])
@example([1.0, 1e-12], 0, [0, U64])
def test_a_split_is_where_the_mixed_key_falls_among_cumulative_shares(
    parts: list[float], seed: int, keys: list[int]
) -> None:
    found = assign(split_of(parts), seed, uint64(keys))
    assert found.dtype == np.int16
    assert found.tolist() == [naive_assign(parts, seed, key) for key in keys]


@given(shares, seeds)
def test_every_key_falls_to_a_split(parts: list[float], seed: int) -> None:
    found = assign(split_of(parts), seed, component_keys(int64(range(1000))))
    assert found.min() >= 0
    assert found.max() < len(parts)


def test_one_split_takes_all() -> None:
    assert not assign(parse_split(""), 7, component_keys(int64(range(1000)))).any()


@given(st.lists(st.integers(0, 20), min_size=1, max_size=60), shares, seeds)
def test_a_component_lies_on_one_side_whole(components: list[int], parts: list[float], seed: int) -> None:
    found = assign(split_of(parts), seed, component_keys(int64(components)))
    sides: dict[int, set[int]] = {}
    for component, side in zip(components, found.tolist(), strict=True):
        sides.setdefault(component, set()).add(side)
    assert all(len(found) == 1 for found in sides.values())


@given(shares, seeds, st.integers(0, 2**32), st.integers(0, 50))
def test_order_batches_and_other_documents_move_nobody(parts: list[float], seed: int, shuffle: int, cut: int) -> None:
    split = split_of(parts)
    ids = [f"document-{number}" for number in range(50)]
    expected = dict(zip(ids, assign(split, seed, id_keys(pa.array(ids))).tolist(), strict=True))
    others = ids[:cut] + [f"other-{number}" for number in range(20)]
    random.Random(shuffle).shuffle(others)
    both = zip(others, assign(split, seed, id_keys(pa.array(others))).tolist(), strict=True)
    for name, side in both:
        assert name not in expected or expected[name] == side


@pytest.mark.parametrize("seed", [0, 1, 20261130])
@pytest.mark.parametrize("text", ["train=0.98,valid=0.02", "a=0.5,b=0.3,c=0.2", "a=0.001,b=0.999"])
@pytest.mark.parametrize("kind", KEYS)
def test_shares_are_met_as_a_fair_draw_meets_them(kind: str, text: str, seed: int) -> None:
    """Within 5 standard deviations of the binomial: one in two million draws lies outside."""
    count = 100_000
    keys = KEYS[kind](count)
    split = parse_split(text)
    found = np.bincount(assign(split, seed, keys), minlength=len(split.names))
    for share, met in zip(split.shares, found.tolist(), strict=True):
        assert abs(met - share * count) <= 5 * math.sqrt(count * share * (1 - share))


def test_another_seed_draws_anew() -> None:
    keys = component_keys(int64(range(100_000)))
    halves = parse_split("a=0.5,b=0.5")
    same = np.count_nonzero(assign(halves, 1, keys) == assign(halves, 2, keys))
    assert abs(same - 50_000) <= 5 * math.sqrt(100_000 / 4)


def test_other_shares_move_only_what_lies_between_the_borders() -> None:
    keys = component_keys(int64(range(100_000)))
    before = assign(parse_split("train=0.98,valid=0.01,test=0.01"), 3, keys)
    after = assign(parse_split("train=0.97,valid=0.02,test=0.01"), 3, keys)
    moved = before != after
    assert set(zip(before[moved].tolist(), after[moved].tolist(), strict=True)) == {(0, 1)}
    assert abs(np.count_nonzero(moved) - 1000) <= 5 * math.sqrt(1000)


# ---------------------------------------------------------------------------- shuffles


def test_the_shuffle_knows_nothing_of_the_split() -> None:
    """Documents of either half, and of each place or seed, spread evenly over 16 parts of the order (χ², 15 df)."""
    rows = int64(range(100_000))
    side = assign(parse_split("a=0.5,b=0.5"), 9, place_keys(0, 0, rows))
    for keys in (
        shuffle_keys(9, 0, 0, rows)[side == 1],
        shuffle_keys(10, 1, 2, rows),
        shuffle_keys(9, 0, 1, rows[::2]),
    ):
        parts = np.bincount((keys >> np.uint64(60)).astype(np.int64), minlength=16)
        expected = len(keys) / 16
        assert ((parts - expected) ** 2 / expected).sum() < 50  # exceeded once in 80,000 draws


def test_a_shuffle_keeps_no_order_and_differs_by_seed_shard_and_piece() -> None:
    rows = int64(range(10_000))
    orders = [
        np.argsort(np.argsort(shuffle_keys(seed, shard, piece, rows)))
        for seed, shard, piece in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    ]
    for number, order in enumerate(orders):
        assert abs(np.corrcoef(order, rows)[0, 1]) < 0.05  # 5 standard deviations of no correlation
        for other in orders[:number]:
            assert abs(np.corrcoef(order, other)[0, 1]) < 0.05
