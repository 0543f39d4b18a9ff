from collections.abc import Callable

import datasketch
from tests import naive
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from taojin.core.status import BLANK, EMPTY, FOLDED, INVALID_UTF8, NULL, SKETCHED, TOO_LARGE
from taojin.dedup.config import SketchConfig
from taojin.dedup.sketch import (
    Sketches,
    datasketch_permutations,
    estimates,
    fast_similarity,
    fmix32,
    permutation_minhash,
    sketch_array,
    sketch_texts,
    standard_error,
    text_buffers,
)

Fold = Callable[[bytes], naive.Folded]

TEXTS = [
    "今天天气不错，我们一起去公园散步，看看湖边的柳树和盛开的桃花。",
    "今天天气很好，我们一起去公园散步，看看湖边的柳树和盛开的桃花！",
    "The quick brown fox jumps over the lazy dog, and then the dog sleeps for the rest of the day.",
    "混合 text 的文本 with 汉字 and words, 数字 12345 以及 emoji 😀 和 𠀀𠀁𠀂 these are rare",
    "天" * 40,
]


def config(num_hashes: int = 128, **values: object) -> SketchConfig:
    return SketchConfig.model_validate({"num_hashes": num_hashes, "bands": 2, "rows": 6, **values})


def sketch(texts: list[str | None] | list[str], settings: SketchConfig | None = None) -> Sketches:
    return sketch_array(pa.array(texts, pa.large_string()), settings or SketchConfig())


def bins(shingles: NDArray[np.uint64], num_bins: int) -> NDArray[np.uint64]:
    out = np.zeros(num_bins, np.uint64)
    fast_similarity(shingles, shingles.size, np.uint64(64 - (num_bins - 1).bit_length()), out)
    return out


def winners(shingles: NDArray[np.uint64], num_bins: int) -> list[tuple[int, int]]:
    """(round, hash) of each bin's winner: a round number above 63 − log2 K bits of hash."""
    hash_bits = 64 - num_bins.bit_length()
    return [(b >> hash_bits, b % (1 << hash_bits)) for b in bins(shingles, num_bins).tolist()]


def random_shingles(count: int, seed: int = 0) -> NDArray[np.uint64]:
    return np.random.default_rng(seed).integers(0, 2**64, count, np.uint64)


def same(one: Sketches, other: Sketches) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


# ---------------------------------------------------------------------------- fast similarity sketching


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=40), st.sampled_from([16, 32, 128]))
def test_bins_hold_the_winners_of_the_published_procedure(shingles: list[int], num_bins: int) -> None:
    assert winners(np.array(shingles, np.uint64), num_bins) == naive.fast_similarity(shingles, num_bins)


@pytest.mark.parametrize("num_bins", [16, 64, 256, 512, 1024])
@pytest.mark.parametrize("count", [1, 2, 9, 700])
def test_every_number_of_bins_is_filled_as_published(num_bins: int, count: int) -> None:
    shingles = random_shingles(count)
    assert winners(shingles, num_bins) == naive.fast_similarity(shingles.tolist(), num_bins)


@pytest.mark.parametrize("num_bins", [128, 1024])
def test_more_shingles_than_one_round_looks_at_twice_are_filled_as_published(num_bins: int) -> None:
    """Above 4,096 shingles the kernel makes them distinct before a second round."""
    shingles = np.tile(random_shingles(600), 10)
    assert winners(shingles, num_bins) == naive.fast_similarity(shingles[:600].tolist(), num_bins)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_neither_order_nor_repetition_of_shingles_matters(shingles: list[int], random: object) -> None:
    repeated = shingles + shingles[::2] * 3
    random.shuffle(repeated)  # type: ignore[attr-defined]
    assert np.array_equal(bins(np.array(repeated, np.uint64), 64), bins(np.array(shingles, np.uint64), 64))


def test_the_sketch_of_a_text_is_the_low_byte_of_each_winner(naive_fold: Fold) -> None:
    for num_bins in (16, 128, 1024):
        found = sketch(TEXTS, config(num_bins))
        for text, values in zip(TEXTS, found.sketch.tolist(), strict=True):
            shingles = naive.shingles(naive_fold(text.encode()).symbols, 5)
            assert values == [winner & 0xFF for _, winner in naive.fast_similarity(shingles, num_bins)]


def pair_with(jaccard: float, union: int, random: np.random.Generator) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Two sets whose union has `union` members and whose similarity is as close to `jaccard` as that allows."""
    values = random.integers(0, 2**64, union, np.uint64)
    shared = round(jaccard * union)
    half = shared + (union - shared) // 2
    return values[:half], np.concatenate([values[:shared], values[half:]])


def errors_of_estimates(jaccard: float, union: int, num_bins: int, num_pairs: int) -> tuple[NDArray[np.float64], float]:
    """(estimate − truth of that many random pairs, truth)."""
    random = np.random.default_rng(union * 1000 + round(jaccard * 100))
    table = estimates(config(num_bins))
    low = np.uint64(0xFF)
    truth = round(jaccard * union) / union
    errors = np.empty(num_pairs)
    for p in range(num_pairs):
        a, b = pair_with(jaccard, union, random)
        agree = np.count_nonzero((bins(a, num_bins) & low) == (bins(b, num_bins) & low))
        errors[p] = table[agree] - truth
    return errors, truth


def assert_unbiased_and_narrow(errors: NDArray[np.float64], truth: float, num_bins: int) -> None:
    deviation = float(np.sqrt(truth * (1 - truth) / num_bins))
    assert abs(errors.mean()) <= 4 * deviation / np.sqrt(errors.size) + 1e-12
    assert np.sqrt((errors**2).mean()) <= 1.1 * deviation + 1e-12


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("union", "num_pairs"), [(8, 4000), (20, 4000), (100, 3000), (1000, 1500), (20_000, 400)])
@pytest.mark.parametrize("jaccard", [0.2, 0.5, 0.7, 0.8, 0.9, 0.95])
def test_the_estimate_is_unbiased_and_no_wider_than_permutations_would_be(
    jaccard: float, union: int, num_pairs: int
) -> None:
    assert_unbiased_and_narrow(*errors_of_estimates(jaccard, union, 256, num_pairs), num_bins=256)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("num_bins", [16, 64, 128, 1024])
def test_the_error_falls_with_the_number_of_bins_as_stated(num_bins: int) -> None:
    errors, truth = errors_of_estimates(0.8, 200, num_bins, 1500)
    assert_unbiased_and_narrow(errors, truth, num_bins)
    assert np.sqrt((errors**2).mean()) <= 1.1 * standard_error(truth, num_bins)


@pytest.mark.parametrize("kind", ["fast", "datasketch"])
def test_estimates_run_from_no_to_full_agreement_without_the_agreement_of_chance(kind: str) -> None:
    table = estimates(config(64, sketch=kind))
    assert table.shape == (65,)
    assert table[0] == 0.0
    assert table[-1] == 1.0
    assert (np.diff(table) > 0).all()
    chance = 2.0 ** (-8 if kind == "fast" else -32)
    assert table[32] == pytest.approx((0.5 - chance) / (1 - chance))


# ---------------------------------------------------------------------------- the same for any order and cut


@pytest.mark.parametrize("kind", ["fast", "datasketch"])
def test_a_sketch_does_not_depend_on_the_other_documents(kind: str) -> None:
    texts = [*TEXTS, "", "短文本", "，。！", "x", *(t[::-1] for t in TEXTS)]
    whole = sketch(texts, config(sketch=kind))
    order = np.random.default_rng(1).permutation(len(texts))
    assert same(sketch([texts[i] for i in order], config(sketch=kind)), Sketches(*(c[order] for c in whole)))
    for i, text in enumerate(texts):
        assert same(sketch([text], config(sketch=kind)), Sketches(*(c[i : i + 1] for c in whole)))


def test_chunks_slices_and_string_types_make_no_difference() -> None:
    texts = [*TEXTS, "", "短文本", None, "，。！"]
    whole = sketch_texts(pa.array(texts))
    assert same(sketch_texts(pa.chunked_array([texts[:2], [], texts[2:3], texts[3:]], pa.string())), whole)
    assert same(sketch_texts(pa.array(["before", None, *texts, "after"]).slice(2, len(texts))), whole)
    assert same(sketch_texts(pa.array(texts, pa.large_string())), whole)
    assert same(sketch_texts(pa.array(["before" * 99, *texts], pa.large_string()).slice(1)), whole)


@pytest.mark.parametrize("texts", [[], [""], [None], ["", None, ""]])
def test_arrays_without_a_byte_of_text_are_no_trouble(texts: list[str | None]) -> None:
    found = sketch_texts(pa.array(texts, pa.large_string()))
    assert found.status.tolist() == [NULL if t is None else EMPTY for t in texts]
    assert found.sketch.shape == (len(texts), SketchConfig().num_hashes)
    assert not found.sketch.any()


def test_buffers_of_a_slice_keep_its_own_offsets() -> None:
    data, offsets = text_buffers(pa.array(["ab", "cde", "", "f"], pa.large_string()).slice(1, 2))
    assert offsets.tolist() == [2, 5, 5]
    assert bytes(data[2:5]) == b"cde"


# ---------------------------------------------------------------------------- repetitive texts


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("kind", ["fast", "datasketch"])
def test_one_sentence_sixty_thousand_times_is_sketched_as_its_few_shingles(kind: str) -> None:
    sentence = "今天天气不错，我们去公园。"
    few, many = sketch([sentence * 3, sentence * 60_000], config(sketch=kind)).sketch
    assert np.array_equal(few, many)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("num_hashes", [128, 1024])
def test_one_character_a_million_times_is_sketched_as_its_one_shingle(num_hashes: int) -> None:
    """One shingle fills the last bins only in rounds that serve them in turn: K log K rounds would be over a billion steps
    if each looked at every occurrence."""
    few, many = sketch(["天" * 12, "天" * 1_000_000], config(num_hashes)).sketch
    assert np.array_equal(few, many)


def test_a_long_run_of_letters_is_one_symbol() -> None:
    found = sketch(["QUJD" * 200_000, "QUJD" * 200_000 + "x"])
    assert found.status.tolist() == [FOLDED, FOLDED]
    assert not np.array_equal(*found.sketch)


# ---------------------------------------------------------------------------- what is said of each document


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("", EMPTY),
        (" \n\t\u3000", BLANK),
        ("，。！？——……", BLANK),
        ("\u200b\ufeff", BLANK),
        ("😀👍", BLANK),
        ("中", FOLDED),
        ("一二三四五六七八九十一", FOLDED),
        ("一二三四五六七八九十一二", SKETCHED),
        ("eleven words are not enough to make a sketch of them", FOLDED),
        ("twelve words are just enough to make a sketch of all of them", SKETCHED),
        (None, NULL),
    ],
)
@pytest.mark.parametrize("kind", ["fast", "datasketch"])
def test_the_status_says_what_can_be_compared(kind: str, text: str | None, status: int) -> None:
    found = sketch([text], config(sketch=kind))
    assert found.status.tolist() == [status]
    assert found.sketch.any() == (status in (SKETCHED, FOLDED))


def test_bytes_that_are_not_utf8_are_set_aside_alone() -> None:
    parts = [TEXTS[0].encode(), TEXTS[0].encode()[:-1], b"\xff", TEXTS[0].encode()]
    offsets = np.cumsum([0, *map(len, parts)]).astype(np.int64)
    broken = pa.LargeStringArray.from_buffers(len(parts), pa.py_buffer(offsets), pa.py_buffer(b"".join(parts)))
    found = sketch_array(broken, SketchConfig())
    assert found.status.tolist() == [SKETCHED, INVALID_UTF8, INVALID_UTF8, SKETCHED]
    assert np.array_equal(found.sketch[0], found.sketch[3])
    assert not found.sketch[1:3].any()


def test_documents_named_beforehand_are_not_read() -> None:
    status = np.array([SKETCHED, TOO_LARGE, SKETCHED], np.uint8)
    found = sketch_array(pa.array([TEXTS[0], TEXTS[0], TEXTS[0]], pa.large_string()), SketchConfig(), status)
    assert found.status is status
    assert status.tolist() == [SKETCHED, TOO_LARGE, SKETCHED]
    assert not found.sketch[1].any()
    assert found.num_chars.tolist() == [len(TEXTS[0]), 0, len(TEXTS[0])]


def test_code_points_and_shingles_are_counted(naive_fold: Fold) -> None:
    texts = [*TEXTS, "短文本也要数一数", "四个字符", "，", ""]
    found = sketch(texts)
    assert found.num_chars.tolist() == [len(t) for t in texts]
    symbols = [len(naive_fold(t.encode()).symbols) for t in texts]
    assert found.num_shingles.tolist() == [max(0, n - 4) for n in symbols]


def test_a_text_shorter_than_a_shingle_is_compared_whole() -> None:
    assert sketch(["一二三四五六七八九十一二三"], config(ngram=20)).status.tolist() == [FOLDED]


@pytest.mark.parametrize("kind", ["fast", "datasketch"])
@pytest.mark.parametrize("num_hashes", [16, 128])
def test_short_texts_carry_the_hash_of_their_folded_whole(kind: str, num_hashes: int) -> None:
    texts = ["漢語很好", "汉语很好", "汉语，很好！", "汉语很坏", "好很语汉", "汉语很", "汉语很好好", "a b", "ab", "b a"]
    found = sketch(texts, config(num_hashes, sketch=kind)).sketch
    names = [tuple(row) for row in found.tolist()]
    assert names[0] == names[1] == names[2]
    assert len(set(names)) == len(texts) - 2


@given(st.lists(st.sampled_from("一二三四"), max_size=11).map("".join), st.lists(st.sampled_from("一二三四"), max_size=11))
def test_short_texts_are_equal_exactly_when_their_symbols_are(one: str, other: list[str]) -> None:
    a, b = sketch([one, "".join(other)]).sketch
    assert np.array_equal(a, b) == (one == "".join(other))


# ---------------------------------------------------------------------------- datasketch


@given(st.integers(0, 2**32 - 1))
def test_fmix32_is_the_finalizer_of_murmurhash3(h: int) -> None:
    assert int(fmix32(np.uint32(h))) == naive.fmix32(h)


@pytest.mark.parametrize("num_hashes", [16, 100, 128, 256, 1024])
def test_permutation_minhash_is_datasketch_bit_for_bit(num_hashes: int) -> None:
    shingles = random_shingles(300)
    values = np.zeros(num_hashes, np.uint32)
    permutation_minhash(shingles, shingles.size, *datasketch_permutations(num_hashes), values)
    theirs = datasketch.MinHash(num_perm=num_hashes, seed=1, hashfunc=lambda x: x & 0xFFFFFFFF)
    theirs.update_batch(shingles.tolist())
    assert np.array_equal(values, theirs.hashvalues)


@pytest.mark.parametrize("num_hashes", [16, 128])
def test_the_datasketch_sketch_of_a_text_is_datasketch_of_its_shingles(naive_fold: Fold, num_hashes: int) -> None:
    found = sketch(TEXTS, config(num_hashes, sketch="datasketch"))
    assert found.sketch.dtype == np.uint32
    for text, values in zip(TEXTS, found.sketch, strict=True):
        theirs = datasketch.MinHash(num_perm=num_hashes, seed=1, hashfunc=lambda x: x & 0xFFFFFFFF)
        theirs.update_batch(naive.shingles(naive_fold(text.encode()).symbols, 5))
        assert np.array_equal(values, theirs.hashvalues)
