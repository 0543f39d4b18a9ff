import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from taojin.dedup.exact import exact_hashes, exact_keys

TEXTS = ["", "a", "a ", "A", "中文", "中文" * 500, "\u200b", "𠀀", "x" * 10_000, "a"]


def digests(texts: list[str]) -> list[bytes]:
    return [xxhash.xxh3_128_digest(text.encode()) for text in texts]


def hashes(array: pa.LargeStringArray) -> list[bytes]:
    return [bytes(row) for row in exact_hashes(array)]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=300), max_size=10))
def test_each_hash_is_xxh3_128_of_the_bytes(texts: list[str]) -> None:
    assert hashes(pa.array(texts, pa.large_string())) == digests(texts)


@pytest.mark.parametrize("start", [0, 1, 4])
@pytest.mark.parametrize("length", [0, 1, 5])
def test_a_slice_hashes_its_own_texts(start: int, length: int) -> None:
    array = pa.array(TEXTS, pa.large_string()).slice(start, length)
    assert hashes(array) == digests(TEXTS[start : start + length])


def test_a_null_hashes_like_an_empty_text() -> None:
    array = pa.array(["a", None, "b", None], pa.large_string())
    assert hashes(array) == digests(["a", "", "b", ""])


def test_a_null_hashes_like_an_empty_text_whatever_bytes_lie_under_it() -> None:
    offsets = pa.py_buffer(np.array([0, 1, 4, 5], np.int64))
    array = pa.LargeStringArray.from_buffers(3, offsets, pa.py_buffer(b"aXYZb"), pa.py_buffer(b"\x05"))
    assert array.to_pylist() == ["a", None, "b"]
    assert hashes(array) == digests(["a", "", "b"])


def test_bytes_that_are_not_utf8_have_a_hash_too() -> None:
    array = pa.array([b"\xff\xfe", b""], pa.large_binary())
    assert hashes(array) == [xxhash.xxh3_128_digest(b"\xff\xfe"), xxhash.xxh3_128_digest(b"")]


def test_texts_that_differ_in_white_space_or_case_have_different_hashes() -> None:
    assert len(set(hashes(pa.array(TEXTS, pa.large_string())))) == len(set(TEXTS))


def test_keys_are_equal_where_hashes_are() -> None:
    keys = exact_keys(exact_hashes(pa.array(TEXTS, pa.large_string())))
    assert keys.dtype == np.uint64
    assert keys.shape == (len(TEXTS),)
    assert len(set(keys.tolist())) == len(set(TEXTS))
    assert keys[1] == keys[-1]
    assert exact_keys(np.zeros((0, 16), np.uint8)).size == 0
