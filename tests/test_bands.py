from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from taojin.core.status import BLANK, EMPTY, FOLDED, INVALID_UTF8, NULL, SKETCHED
from taojin.core.storage import Folder
from taojin.dedup import bands as bands_module
from taojin.dedup.bands import KeyWriter, band_keys, read_range, split_by_range

BANDS, ROWS, VALUES = 4, 3, 16


def keys_of(
    lanes_DK: NDArray[np.uint32],
    status: list[int] | None = None,
    first_row: int = 0,
) -> tuple[list[int], list[int]]:
    states = np.array([SKETCHED] * len(lanes_DK) if status is None else status, np.uint8)
    keys = np.zeros(len(lanes_DK) * BANDS + 1, np.uint64)
    key_rows = np.zeros(len(keys), np.uint32)
    count = band_keys(lanes_DK, states, first_row, BANDS, ROWS, keys, key_rows)
    assert not keys[len(lanes_DK) * BANDS :].any()
    return keys[:count].tolist(), key_rows[:count].tolist()


def lanes(*rows: list[int]) -> NDArray[np.uint32]:
    return np.array(rows, np.uint32)


def random_lanes(count: int) -> NDArray[np.uint32]:
    return np.random.default_rng(0).integers(0, 2**32, (count, VALUES), np.uint32)


# ---------------------------------------------------------------------------- keys


def test_a_sketched_document_has_one_key_for_each_band_under_its_row() -> None:
    keys, rows = keys_of(random_lanes(3), first_row=1000)
    assert rows == [1000] * BANDS + [1001] * BANDS + [1002] * BANDS
    assert len(set(keys)) == 3 * BANDS


def test_equal_lanes_share_every_key() -> None:
    keys, _ = keys_of(random_lanes(1).repeat(2, axis=0))
    assert keys[:BANDS] == keys[BANDS:]


@given(st.integers(0, VALUES - 1), st.integers(1, 2**32 - 1))
def test_a_key_depends_on_the_lanes_of_its_band_alone(changed: int, by: int) -> None:
    one = random_lanes(1)
    other = one.copy()
    other[0, changed] ^= by
    equal = [a == b for a, b in zip(keys_of(one)[0], keys_of(other)[0], strict=True)]
    assert equal == [changed // ROWS != band for band in range(BANDS)]


def test_the_same_values_have_another_key_in_another_band() -> None:
    keys, _ = keys_of(np.full((1, VALUES), 7, np.uint32))
    assert len(set(keys)) == BANDS


def test_the_order_of_values_within_a_band_matters() -> None:
    one, other = lanes([1, 2, 3, *[0] * 13]), lanes([3, 2, 1, *[0] * 13])
    assert keys_of(one)[0][0] != keys_of(other)[0][0]


def test_a_folded_document_has_one_key_of_its_whole_hash() -> None:
    hashes = random_lanes(1).repeat(3, axis=0)
    hashes[1, 0] ^= 1
    keys, rows = keys_of(hashes, [FOLDED, FOLDED, FOLDED])
    assert rows == [0, 1, 2]
    assert keys[0] == keys[2]
    assert keys[0] != keys[1]


def test_documents_without_content_have_no_key() -> None:
    keys, rows = keys_of(random_lanes(5), [BLANK, EMPTY, NULL, INVALID_UTF8, FOLDED])
    assert rows == [4]
    assert len(keys) == 1


def test_keys_spread_evenly_over_ranges() -> None:
    keys, _ = keys_of(random_lanes(4000))
    counts = np.bincount(np.array(keys, np.uint64) >> np.uint64(60), minlength=16)
    assert counts.min() > 0.85 * counts.mean()


# ---------------------------------------------------------------------------- ranges


@given(st.lists(st.integers(0, 2**64 - 1), max_size=60), st.sampled_from([1, 2, 8, 64]))
@example([0, 2**64 - 1, 2**63, 2**63 - 1], 2)
@example([2**64 - 1] * 5, 64)
def test_splitting_is_a_stable_partition_by_the_top_bits(values: list[int], num_ranges: int) -> None:
    shift = 64 - (num_ranges.bit_length() - 1)
    keys, rows, offsets = split_by_range(
        np.array(values, np.uint64), np.arange(len(values), dtype=np.uint32), shift, num_ranges
    )
    ordered = sorted(range(len(values)), key=lambda i: values[i] >> shift)
    assert rows.tolist() == ordered
    assert keys.tolist() == [values[i] for i in ordered]
    sizes = [sum(v >> shift == r for v in values) for r in range(num_ranges)]
    assert offsets.tolist() == [0, *np.cumsum(sizes).tolist()]


# ---------------------------------------------------------------------------- files


@pytest.mark.parametrize("num_ranges", [1, 2, 16])
@pytest.mark.parametrize("run_entries", [1, 50, 1_000_000])
def test_what_is_written_in_runs_is_read_back_by_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_ranges: int, run_entries: int
) -> None:
    monkeypatch.setattr(bands_module, "RUN_ENTRIES", run_entries)
    keys = np.random.default_rng(2).integers(0, 2**64, 300, np.uint64)
    rows = np.arange(300, dtype=np.uint32)
    folder = Folder(str(tmp_path))
    with folder.create("keys.arrow") as sink:
        writer = KeyWriter(sink, num_ranges)
        for first in range(0, 300, 40):
            writer.add(keys[first : first + 40], rows[first : first + 40])
        writer.close()
    assert sink.rows == 300
    seen: list[int] = []
    for key_range in range(num_ranges):
        for found_keys, found_rows in read_range(folder, "keys.arrow", key_range, num_ranges):
            assert ((found_keys >> np.uint64(1)) // np.uint64(2**63 // num_ranges) == key_range).all()
            assert np.array_equal(found_keys, keys[found_rows])
            assert (np.diff(found_rows.astype(np.int64)) > 0).all()
            seen += found_rows.tolist()
    assert sorted(seen) == rows.tolist()


def test_a_unit_without_keys_reads_back_as_none(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    with folder.create("keys.arrow") as sink:
        KeyWriter(sink, 4).close()
    assert [list(read_range(folder, "keys.arrow", r, 4)) for r in range(4)] == [[]] * 4


def test_batches_arrive_in_the_order_in_which_they_were_added(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    with folder.create("keys.arrow") as sink:
        writer = KeyWriter(sink, 1)
        for value in range(3):
            writer.add(np.full(2, value, np.uint64), np.full(2, value, np.uint32))
        writer.close()
    (found,) = read_range(folder, "keys.arrow", 0, 1)
    assert found[0].tolist() == found[1].tolist() == [0, 0, 1, 1, 2, 2]
