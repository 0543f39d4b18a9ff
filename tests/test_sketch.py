from collections.abc import Callable, Sequence
from typing import NamedTuple

import datasketch
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from taojin.core.status import BLANK, EMPTY, FOLDED, INVALID_RECORD, INVALID_UTF8, NULL, SKETCHED, TOO_LARGE
from taojin.core.text import text_buffers
from taojin.dedup.config import SketchConfig
from taojin.dedup.sketch import (
    Sketches,
    estimate,
    fast_similarity,
    sketch_array,
    sketch_texts,
    sketch_words,
    standard_error,
)
from tests import naive

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


def sketch(texts: Sequence[str | None], settings: SketchConfig | None = None) -> Sketches:
    return sketch_array(pa.array(texts, pa.large_string()), settings or SketchConfig())


class Sketched(NamedTuple):
    lanes: NDArray[np.uint64]
    words: NDArray[np.uint64]


def kernel(shingles: NDArray[np.uint64], num_lanes: int = 128, num_bins: int = 1024) -> Sketched:
    lanes, words = np.zeros(num_lanes, np.uint64), np.zeros(num_bins // 32, np.uint64)
    winners, touched = np.full(num_bins, 2**64 - 1, np.uint64), np.zeros(num_bins, np.int64)
    fast_similarity(shingles, shingles.size, winners, touched, lanes, words)
    assert (winners == 2**64 - 1).all()  # as it found them, for the next document
    return Sketched(lanes, words)


def winners(shingles: NDArray[np.uint64], num_lanes: int, num_bins: int) -> list[tuple[int, int]]:
    """(round, hash) of each lane's winner: a round number above its hash bits."""
    bits = naive.hash_bits(num_lanes, num_bins)
    return [(lane >> bits, lane % (1 << bits)) for lane in kernel(shingles, num_lanes, num_bins).lanes.tolist()]


def random_shingles(count: int, seed: int = 0) -> NDArray[np.uint64]:
    return np.random.default_rng(seed).integers(0, 2**64, count, np.uint64)


def same(one: Sketches, other: Sketches) -> bool:
    columns = zip(one._asdict().values(), other._asdict().values(), strict=True)
    return all(np.array_equal(a, b) for a, b in columns)


def rows(sketches: Sketches, which: object) -> Sketches:
    return Sketches(**{name: column[which] for name, column in sketches._asdict().items()})


# ---------------------------------------------------------------------------- lanes and bins


@given(
    st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=40),
    st.sampled_from([(16, 64), (32, 1024), (128, 128), (128, 1024)]),
)
def test_lanes_and_bins_are_those_of_the_published_procedures(shingles: list[int], sizes: tuple[int, int]) -> None:
    values = np.array(shingles, np.uint64)
    assert winners(values, *sizes) == naive.fast_similarity(shingles, *sizes)
    expected = naive.planes(np.array([naive.bin_values(shingles, *sizes)], np.uint8))[0]
    assert kernel(values, *sizes).words.tolist() == expected.tolist()


@pytest.mark.parametrize("sizes", [(16, 64), (64, 64), (256, 1024), (512, 4096), (1024, 8192)])
@pytest.mark.parametrize("count", [1, 2, 9, 700])
def test_any_number_of_lanes_is_filled_as_published(sizes: tuple[int, int], count: int) -> None:
    shingles = random_shingles(count)
    assert winners(shingles, *sizes) == naive.fast_similarity(shingles.tolist(), *sizes)


@pytest.mark.parametrize("sizes", [(128, 1024), (1024, 1024)])
@pytest.mark.parametrize("distinct", [1, 600])
def test_long_repetitive_texts_are_filled_as_published(sizes: tuple[int, int], distinct: int) -> None:
    """Above 4,096 shingles the kernel makes them distinct before a second round."""
    shingles = np.tile(random_shingles(distinct), 6000 // distinct)
    assert winners(shingles, *sizes) == naive.fast_similarity(shingles[:distinct].tolist(), *sizes)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_neither_order_nor_repetition_of_shingles_matters(shingles: list[int], random: object) -> None:
    repeated = shingles + shingles[::2] * 3
    random.shuffle(repeated)  # type: ignore[attr-defined]
    one, other = kernel(np.array(shingles, np.uint64), 64), kernel(np.array(repeated, np.uint64), 64)
    assert one.lanes.tolist() == other.lanes.tolist()
    assert one.words.tolist() == other.words.tolist()


@pytest.mark.parametrize("sizes", [(16, 64), (128, 1024), (1024, 4096)])
def test_a_text_is_sketched_by_its_shingles(naive_fold: Fold, sizes: tuple[int, int]) -> None:
    num_lanes, num_bins = sizes
    found = sketch(TEXTS, config(num_lanes, bins=num_bins))
    for d, text in enumerate(TEXTS):
        shingles = naive.shingles(naive_fold(text.encode()).symbols, 5)
        lanes = naive.fast_similarity(shingles, *sizes)
        assert found.lanes[d].tolist() == [winner % (1 << 32) for _, winner in lanes]
        bins = np.array([naive.bin_values(shingles, *sizes)], np.uint8)
        assert found.sketch[d].tolist() == naive.planes(bins)[0].tolist()


# ---------------------------------------------------------------------------- estimates


bin_lists = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=64, max_size=64)


@given(bin_lists, st.booleans())
def test_an_estimate_is_the_naive_one(pairs: list[tuple[int, int]], alike: bool) -> None:
    a, b = zip(*[(x, x if alike and y else y) for x, y in pairs], strict=True)
    words = naive.planes(np.array([a, b], np.uint8))
    assert estimate(words[0], words[1], True) == pytest.approx(naive.estimate(a, b))


def test_equal_sketches_have_similarity_one_however_full_they_are() -> None:
    for full in range(1, 1025):
        bins = np.zeros((1, 1024), np.uint8)
        bins[0, :full] = 1 + np.arange(full) % 3
        words = naive.planes(bins)[0]
        assert estimate(words, words, True) == 1.0, full


def test_sketches_without_a_full_bin_have_similarity_zero() -> None:
    assert estimate(np.zeros(32, np.uint64), np.zeros(32, np.uint64), True) == 0.0


@given(st.lists(st.booleans(), min_size=16, max_size=16))
def test_the_estimate_of_permutations_is_the_share_of_equal_ones(equal: list[bool]) -> None:
    a = np.arange(16, dtype=np.uint32)
    b = np.where(equal, a, a + (1 << 31)).astype(np.uint32)
    assert estimate(a.view(np.uint64), b.view(np.uint64), False) == sum(equal) / 16


def pair_with(jaccard: float, union: int, random: np.random.Generator) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Two sets whose union has `union` members and whose similarity is as close to `jaccard` as that allows."""
    values = random.integers(0, 2**64, union, np.uint64)
    shared = round(jaccard * union)
    half = shared + (union - shared) // 2
    return values[:half], np.concatenate([values[:shared], values[half:]])


def errors(
    jaccard: float, union: int, num_pairs: int, num_lanes: int, num_bins: int
) -> tuple[float, NDArray[np.float64]]:
    """(true similarity, errors float64[num_pairs, 2] of the share of equal lanes and of the estimate), random pairs."""
    random = np.random.default_rng(union * 1000 + round(jaccard * 100))
    truth = round(jaccard * union) / union
    found = np.empty((num_pairs, 2))
    for p in range(num_pairs):
        a, b = (kernel(values, num_lanes, num_bins) for values in pair_with(jaccard, union, random))
        found[p] = (a.lanes == b.lanes).mean(), estimate(a.words, b.words, True)
    return truth, found - truth


SIZES = [(8, 3000), (20, 3000), (100, 2500), (1000, 1500), (20_000, 300)]


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("union", "num_pairs"), SIZES)
@pytest.mark.parametrize("jaccard", [0.2, 0.5, 0.7, 0.8, 0.9, 0.95])
def test_lanes_and_estimates_are_unbiased_and_no_wider_than_stated(jaccard: float, union: int, num_pairs: int) -> None:
    """Lanes: sqrt(J(1 − J)/K), what K permutations have. Estimates: `standard_error`."""
    truth, found = errors(jaccard, union, num_pairs, 128, 1024)
    for error, deviation in (
        (found[:, 0], float(np.sqrt(truth * (1 - truth) / 128))),
        (found[:, 1], standard_error(truth, config())),
    ):
        assert abs(error.mean()) <= 4 * deviation / np.sqrt(num_pairs) + 1e-12
        assert np.sqrt((error**2).mean()) <= 1.1 * deviation + 1e-12


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("sizes", [(16, 64), (64, 256), (256, 4096), (1024, 8192)])
@pytest.mark.parametrize("union", [30, 20_000])
def test_errors_fall_with_the_number_of_lanes_and_bins_as_stated(sizes: tuple[int, int], union: int) -> None:
    num_pairs = 1500 if union < 100 else 200
    truth, found = errors(0.8, union, num_pairs, *sizes)
    for error, deviation in (
        (found[:, 0], float(np.sqrt(truth * (1 - truth) / sizes[0]))),
        (found[:, 1], standard_error(truth, config(sizes[0], bins=sizes[1]))),
    ):
        assert abs(error.mean()) <= 4 * deviation / np.sqrt(num_pairs)
        assert np.sqrt((error**2).mean()) <= (1.1 if union < 100 else 1.2) * deviation


@pytest.mark.usefixtures("compiled")
def test_short_documents_are_estimated_nearly_exactly() -> None:
    """Few of their shingles meet another in its bin."""
    _, found = errors(0.8, 20, 2000, 128, 1024)
    assert (abs(found[:, 1]) < 1e-9).mean() > 0.75


# ---------------------------------------------------------------------------- the same for any order and cut


@pytest.mark.parametrize("kind", ["fast", "datasketch"])
def test_a_sketch_does_not_depend_on_the_other_documents(kind: str) -> None:
    texts = [*TEXTS, "", "短文本", "，。！", "x", *(t[::-1] for t in TEXTS)]
    whole = sketch(texts, config(sketch=kind))
    order = np.random.default_rng(1).permutation(len(texts))
    assert same(sketch([texts[i] for i in order], config(sketch=kind)), rows(whole, order))
    for i, text in enumerate(texts):
        assert same(sketch([text], config(sketch=kind)), rows(whole, slice(i, i + 1)))


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
    assert found.lanes.shape == (len(texts), 128)
    assert found.sketch.shape == (len(texts), sketch_words(SketchConfig()))
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
    found = sketch([sentence * 3, sentence * 60_000], config(sketch=kind))
    assert np.array_equal(*found.lanes)
    assert np.array_equal(*found.sketch)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("num_hashes", [128, 1024])
def test_one_character_a_million_times_is_sketched_as_its_one_shingle(num_hashes: int) -> None:
    """One shingle fills the last lanes only in rounds that serve them in turn: over a billion steps, if each of up to
    2 K rounds looked at every occurrence."""
    found = sketch(["天" * 12, "天" * 1_000_000], config(num_hashes))
    assert np.array_equal(*found.lanes)
    assert np.array_equal(*found.sketch)


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
    assert found.sketch.any() == found.lanes.any() == (status in (SKETCHED, FOLDED))


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


def test_a_null_that_has_a_reason_already_keeps_it() -> None:
    status = np.array([INVALID_RECORD, SKETCHED], np.uint8)
    sketch_array(pa.array([None, None], pa.large_string()), SketchConfig(), status)
    assert status.tolist() == [INVALID_RECORD, NULL]


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
    found = sketch(texts, config(num_hashes, sketch=kind))
    for column in (found.lanes, found.sketch):
        names = [tuple(row) for row in column.tolist()]
        assert names[0] == names[1] == names[2]
        assert len(set(names)) == len(texts) - 2


short_texts = st.lists(st.sampled_from("一二三四"), max_size=11).map("".join)


@given(short_texts, short_texts)
def test_short_texts_are_equal_exactly_when_their_symbols_are(one: str, other: str) -> None:
    a, b = sketch([one, other]).sketch
    assert np.array_equal(a, b) == (one == other)


# ---------------------------------------------------------------------------- datasketch


@pytest.mark.parametrize("num_hashes", [16, 128])
def test_the_datasketch_sketch_of_a_text_is_datasketch_of_its_shingles(naive_fold: Fold, num_hashes: int) -> None:
    found = sketch(TEXTS, config(num_hashes, sketch="datasketch"))
    for text, lanes, words in zip(TEXTS, found.lanes, found.sketch, strict=True):
        theirs = datasketch.MinHash(num_perm=num_hashes, seed=1, hashfunc=lambda x: x & 0xFFFFFFFF)
        theirs.update_batch(naive.shingles(naive_fold(text.encode()).symbols, 5))
        assert np.array_equal(lanes, theirs.hashvalues)
        assert np.array_equal(words.view(np.uint32), theirs.hashvalues)


def test_similarity_by_permutations_is_what_datasketch_says(naive_fold: Fold) -> None:
    found = sketch(TEXTS[:2], config(sketch="datasketch"))
    theirs = []
    for text in TEXTS[:2]:
        theirs.append(datasketch.MinHash(num_perm=128, seed=1, hashfunc=lambda x: x & 0xFFFFFFFF))
        theirs[-1].update_batch(naive.shingles(naive_fold(text.encode()).symbols, 5))
    assert estimate(found.sketch[0], found.sketch[1], False) == theirs[0].jaccard(theirs[1])
