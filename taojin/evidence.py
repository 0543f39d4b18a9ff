"""What two texts have in common and where they part: exact similarity, the first difference, shared passages, excerpts.

In: two texts as UTF-8 bytes, valid or not. Out: plain values. Cost: O(n log n) time; passages are sought in the first
COMPARED_CHARACTERS characters, so the time is bounded whatever the length. How it is shown is `taojin.side_by_side`'s.
"""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from taojin.core.fold import BREAK, CLASS_SHIFT, CODE_POINT_MASK, VANISH, load_fold_table
from taojin.core.text import SYMBOLS_PER_BYTE, scratch_for, text_buffers
from taojin.dedup.shingles import intersection_size, shingle_sets

PASSAGES = 3
EXTENDED = 64  # candidate passages that are extended beyond their seeds
PASSAGE_SHOWN = 60  # characters of a passage that are kept
SEED_CHARACTERS = 8  # shorter agreements are chance
COMPARED_CHARACTERS = 200_000
EXCERPT_BEFORE, EXCERPT_AFTER = 20, 600  # characters around the first difference
_ROLL = np.uint64(0x9E3779B97F4A7C15)


class Overlap(NamedTuple):
    """jaccard: of the two sets of shingles; None when neither text has one."""

    jaccard: float | None
    shared: int
    shingles: tuple[int, int]


def exact_jaccard(a: bytes, b: bytes, ngram: int) -> Overlap:
    """Exact similarity of two texts (UTF-8), with the scan's own kernels."""
    data, offsets = text_buffers(pa.array([a, b], pa.large_binary()))
    longest = max(len(a), len(b))
    fold = load_fold_table()
    out = np.empty(SYMBOLS_PER_BYTE * (len(a) + len(b)) + 1, np.uint64)
    starts = np.empty(3, np.int64)
    shingle_sets(data, offsets, fold.table, fold.expansions, ngram, scratch_for(longest), out, starts)
    first, second = out[: starts[1]], out[starts[1] : starts[2]]
    shared = int(intersection_size(first, second))
    union = len(first) + len(second) - shared
    return Overlap(shared / union if union else None, shared, (len(first), len(second)))


def compare(a: bytes, b: bytes, ngram: int) -> dict[str, Any]:
    """What two texts have in common and where they part, as plain values."""
    overlap = exact_jaccard(a, b, ngram)
    left, right = a.decode(errors="replace"), b.decode(errors="replace")
    difference = first_difference(left, right)
    start = max(0, (difference or 0) - EXCERPT_BEFORE)
    stop = start + EXCERPT_BEFORE + EXCERPT_AFTER
    return {
        "same_bytes": a == b,
        "jaccard": overlap.jaccard,
        "shared_shingles": overlap.shared,
        "shingles": list(overlap.shingles),
        "characters": [len(left), len(right)],
        "compared_characters": min(COMPARED_CHARACTERS, max(len(left), len(right))),
        "first_difference": difference,
        "excerpt_at": start,
        "excerpts": [left[start:stop], right[start:stop]],
        "passages": shared_passages(left[:COMPARED_CHARACTERS], right[:COMPARED_CHARACTERS]),
    }


def first_difference(a: str, b: str) -> int | None:
    """Index of the first character in which two texts differ; None when they are equal."""
    if a == b:
        return None
    return _agreement(_code_points(a), _code_points(b))


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def shared_passages(a: str, b: str) -> list[dict[str, Any]]:
    """The longest passages that both texts hold, after folding: up to PASSAGES, longest first, not overlapping in `a`.

    Seeds of SEED_CHARACTERS folded characters are looked up in `b` (where a seed first occurs) and joined along
    diagonals: O(n log n) time, whatever the texts.
    """
    folded_a, at_a = _folded(a)
    folded_b, at_b = _folded(b)
    if min(len(folded_a), len(folded_b)) < SEED_CHARACTERS:
        return []
    seeds_b, first_b = np.unique(_seeds(folded_b), return_index=True)
    seeds_a = _seeds(folded_a)
    slot = np.minimum(np.searchsorted(seeds_b, seeds_a), len(seeds_b) - 1)
    i = np.flatnonzero(seeds_b[slot] == seeds_a)
    j = first_b[slot[i]]
    if not len(i):
        return []
    breaks = np.flatnonzero((np.diff(i) != 1) | (np.diff(j) != 1)) + 1
    starts = np.concatenate([[0], breaks])
    lengths = np.diff(np.append(starts, len(i))) + SEED_CHARACTERS - 1
    # A seed that occurs earlier in `b` too cuts a passage: the longest ones are extended as far as the texts agree.
    found: set[tuple[int, int, int]] = set()
    for run in np.argsort(-lengths, kind="stable")[:EXTENDED].tolist():
        low, other, size = int(i[starts[run]]), int(j[starts[run]]), int(lengths[run])
        before = _agreement(folded_a[:low][::-1], folded_b[:other][::-1])
        after = _agreement(folded_a[low + size :], folded_b[other + size :])
        found.add((-(before + size + after), low - before, other - before))
    passages: list[dict[str, Any]] = []
    taken: list[tuple[int, int]] = []
    for negative_size, low, other in sorted(found):
        high = low - negative_size
        if any(low < last and first < high for first, last in taken):
            continue
        taken.append((low, high))
        begin, end = int(at_a[low]), int(at_a[high - 1]) + 1
        passages.append({"characters": end - begin, "at": [begin, int(at_b[other])], "text": _shortened(a, begin, end)})
        if len(passages) == PASSAGES:
            break
    return passages


def _agreement(a: NDArray[np.uint32], b: NDArray[np.uint32]) -> int:
    """How many leading values two arrays share."""
    size = min(len(a), len(b))
    differs = a[:size] != b[:size]
    return int(np.argmax(differs)) if differs.any() else size


def _shortened(text: str, begin: int, end: int) -> str:
    if end - begin <= PASSAGE_SHOWN:
        return text[begin:end]
    half = PASSAGE_SHOWN // 2
    return f"{text[begin : begin + half]} … {text[end - half : end]}"


def _folded(text: str) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """(folded characters, where each one is in `text`): what ends a run or vanishes is left out."""
    codes = _code_points(text)
    entries = load_fold_table().table[codes]
    kinds = entries >> np.uint32(CLASS_SHIFT)
    kept = np.flatnonzero((kinds != BREAK) & (kinds != VANISH))
    folded: NDArray[np.uint32] = (entries & np.uint32(CODE_POINT_MASK))[kept]
    return folded, kept.astype(np.int64)


def _seeds(codes: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """A hash of every SEED_CHARACTERS consecutive values."""
    size = len(codes) - SEED_CHARACTERS + 1
    out = np.zeros(size, np.uint64)
    wide = codes.astype(np.uint64)
    for k in range(SEED_CHARACTERS):
        out = out * _ROLL + wide[k : k + size]
    return out
