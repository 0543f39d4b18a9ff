"""How much a document repeats itself: n-grams of words, windows of characters, word frequencies, stop words.

In: words and marks of one document as the word splitter leaves them. Out: `REPETITION_SIGNALS`, into a column.

Gopher's n-gram rules are computed as datatrove 0.10.1 does, over words and marks. *Top*: the most frequent n-gram, the
first of equals, counts all its occurrences, even a single one; its words are joined by one space, but two characters of
a script without spaces by nothing unless `gap_counts`. *Duplicate*: from left to right, an n-gram that began earlier
counts its words without spaces and the search goes on behind it. N-grams are equal where their words are; datatrove
compares the words of a duplicate run together, so that "ab c" equals "a bc" for it.

`word_10gram_repetition` is data-juicer's ratio over the same words and marks as the rest; data-juicer lower-cases words
and strips punctuation first. Entropy, distinct words and shares of stop words are of words, marks left out.

Cost: 40 to 50 ns per Chinese character and 20 to 55 per English one, the more the text repeats itself (one core, the
other busy); linear, whatever the text. Sequences are the business of `taojin.quality.ngrams`, windows of
`taojin.quality.windows`, the lists of `taojin.quality.stop_words`.

Suffixes: _W words and marks, _S signals, _N and _I as in `taojin.quality.ngrams`, _E as in `taojin.quality.stop_words`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taojin.core.jit import kernel
from taojin.quality.ngrams import (
    clear_for,
    count_pairs,
    count_repeated,
    find,
    keep_repeated,
    lengthen,
    list_unsettled,
    most_frequent,
    repeated_fives,
    repeated_pairs,
)
from taojin.quality.signals import INDEX, NGRAMS_DUPLICATE, NGRAMS_TOP, REPETITION_SIGNALS, STOP_WORD_LISTS
from taojin.quality.stop_words import find_stop_word, stop_table
from taojin.quality.windows import character_repetition

IS_MARK = 2
ALONE_SYMBOL = 4

_U32 = np.uint32
_U64 = np.uint64
_0 = np.uint64(0)
_1 = np.uint64(1)
_NONE = np.uint32(0)
_ONE = np.uint32(1)
_FIRST_TOP = np.uint64(NGRAMS_TOP[0])
_LAST_TOP = np.uint64(NGRAMS_TOP[-1])
_FIRST_DUPLICATE = np.uint64(NGRAMS_DUPLICATE[0])
_LAST_DUPLICATE = np.uint64(NGRAMS_DUPLICATE[-1])
_TOP_ROW = INDEX[f"top_{NGRAMS_TOP[0]}gram_share"] - NGRAMS_TOP[0]
_DUPLICATE_ROW = INDEX[f"dup_{NGRAMS_DUPLICATE[0]}gram_share"] - NGRAMS_DUPLICATE[0]
_FIRST_ROW = INDEX[REPETITION_SIGNALS[0].name]
_NUM_ROWS = len(REPETITION_SIGNALS)
_CHAR_10 = INDEX["char_10gram_repetition"]
_CHAR_13 = INDEX["char_13gram_repetition"]
_WORD_10 = INDEX["word_10gram_repetition"]
_UNIQUE = INDEX["unique_word_share"]
_ENTROPY = INDEX["unigram_entropy"]
_NUM_LISTS = len(STOP_WORD_LISTS)
_STOP_WORDS = INDEX[f"stop_words_{STOP_WORD_LISTS[0]}"]
_STOP_SHARE = INDEX[f"stop_word_share_{STOP_WORD_LISTS[0]}"]
# c ln c for the counts that nearly all words have: a logarithm costs ten times the look-up.
_COUNT_LOG_COUNT = np.arange(256) * np.log(np.maximum(np.arange(256), 1))


class Scratch(NamedTuple):
    """Working memory for documents of at most N characters: 26 bytes each, touched only as far as used.

    firsts, positions, counts: uint32[N + 2] · keys: uint64[N + 2] · table: uint32[3 N / 2 + 16] ·
    found: uint32[2, E + 1]
    """

    firsts: NDArray[np.uint32]
    positions: NDArray[np.uint32]
    counts: NDArray[np.uint32]
    keys: NDArray[np.uint64]
    table: NDArray[np.uint32]
    found: NDArray[np.uint32]


def scratch_for_words(max_words: int, max_chars: int) -> Scratch:
    """Scratch for `measure_repetition` on documents of at most that many words, marks included, and code points."""
    size = max(max_words, max_chars) + 2
    firsts, positions, counts = (np.empty(size, np.uint32) for _ in range(3))
    # Shorter documents than the longest have more slots for each key, up to three: see `clear_for`.
    table = np.empty(size * 3 // 2 + 16, np.uint32)
    found = np.empty((2, stop_table().keys.size), np.uint32)
    return Scratch(firsts, positions, counts, np.empty(size, np.uint64), table, found)


@kernel
def _number_words(
    hashes_W: NDArray[np.uint64],
    num: np.uint64,
    positions_W: NDArray[np.uint32],
    firsts_W: NDArray[np.uint32],
    counts_W: NDArray[np.uint32],
    table_H: NDArray[np.uint32],
    distinct_I: NDArray[np.uint64],
) -> np.uint64:
    """positions_W: 0, 1, …; firsts_W: where an equal word is first; counts_W: there, how often it occurs; distinct_I:
    all such places. Returns the number of distinct words."""
    slots = clear_for(num, table_H)
    distinct = _0
    i = _0
    while i < num:
        counts_W[i] = _NONE
        first = find(hashes_W[i], i, slots, table_H, hashes_W)
        counts_W[first] += _ONE
        firsts_W[i] = _U32(first)
        positions_W[i] = _U32(i)
        distinct_I[distinct] = i
        distinct += _U64(first == i)
        i += _1
    return distinct


@kernel
def _measure_vocabulary(
    code_points: NDArray[np.uint32],
    starts_W: NDArray[np.uint32],
    ends_W: NDArray[np.uint32],
    flags_W: NDArray[np.uint8],
    num: np.uint64,
    gap_counts: bool,
    stop_slots_H: NDArray[np.uint32],
    stop_keys_E: NDArray[np.uint64],
    stop_lists_E: NDArray[np.uint8],
    stop_pairs_P: NDArray[np.uint32],
    firsts_W: NDArray[np.uint32],
    counts_W: NDArray[np.uint32],
    distinct_I: NDArray[np.uint64],
    distinct: np.uint64,
    found_E: NDArray[np.uint32],
    values_S: NDArray[np.float32],
) -> None:
    """Entropy, distinct words, stop words.

    found_E: scratch; [0] how often an entry occurs as a word or a part of one, [1] where it is first, + 1, or 0.
    """
    for entry in range(found_E.shape[1]):
        found_E[0, entry] = _NONE
        found_E[1, entry] = _NONE
    words = _0
    kinds = _0
    weight = 0.0
    k = _0
    while k < distinct:
        i = distinct_I[k]
        count = _U64(counts_W[i])
        entry = find_stop_word(code_points, _U64(starts_W[i]), _U64(ends_W[i]), stop_slots_H, stop_keys_E)
        found_E[1, entry] = _U32(i + _1)
        if flags_W[i] & IS_MARK == 0:
            words += count
            kinds += _1
            found_E[0, entry] += _U32(count)
            if count < _U64(_COUNT_LOG_COUNT.size):
                weight += _COUNT_LOG_COUNT[count]
            else:
                weight += np.float64(count) * np.log(np.float64(count))
        k += _1
    if words > _0:
        values_S[_UNIQUE] = np.float64(kinds) / np.float64(words)
        values_S[_ENTROPY] = max(0.0, np.log(np.float64(words)) - weight / np.float64(words))
    if not gap_counts:
        for pair in range(stop_pairs_P.shape[0]):
            left = found_E[1, stop_pairs_P[pair, 0]]
            right = found_E[1, stop_pairs_P[pair, 1]]
            if left != _NONE and right != _NONE:
                occurrences = _0
                i = _1
                while i < num:
                    if firsts_W[i - _1] + 1 == left and firsts_W[i] + 1 == right and ends_W[i - _1] == starts_W[i]:
                        occurrences += _1
                    i += _1
                if occurrences > _0:
                    found_E[0, stop_pairs_P[pair, 2]] += _U32(occurrences + occurrences)
                    found_E[1, stop_pairs_P[pair, 2]] = left
    for number in range(_NUM_LISTS):
        kinds = _0
        count = _0
        for entry in range(1, found_E.shape[1]):
            if (stop_lists_E[entry] >> number) & 1:
                kinds += _U64(found_E[1, entry] != _NONE)
                count += _U64(found_E[0, entry])
        values_S[_STOP_WORDS + number] = np.float64(kinds)
        if words > _0:
            values_S[_STOP_SHARE + number] = np.float64(count) / np.float64(words)


@kernel
def _joined_length(
    starts_W: NDArray[np.uint32],
    ends_W: NDArray[np.uint32],
    flags_W: NDArray[np.uint8],
    first: np.uint64,
    ngram: np.uint64,
    gap_counts: bool,
) -> np.uint64:
    length = _0
    i = first
    while i < first + ngram:
        length += _U64(ends_W[i] - starts_W[i])
        if i > first and (gap_counts or (flags_W[i - _1] & flags_W[i] & ALONE_SYMBOL) == 0):
            length += _1
        i += _1
    return length


@kernel
def _duplicate_length(
    starts_W: NDArray[np.uint32],
    ends_W: NDArray[np.uint32],
    positions_N: NDArray[np.uint32],
    firsts_N: NDArray[np.uint32],
    num: np.uint64,
    ngram: np.uint64,
    visited_N: NDArray[np.uint64],
) -> np.uint64:
    """Characters of the n-grams that began at an earlier visited position; visited_N: scratch.

    Positions that are not in the list hold n-grams that occur once: visiting them would change nothing.
    """
    length = _0
    next_position = _0
    k = _0
    while k < num:
        position = _U64(positions_N[k])
        first = _U64(firsts_N[k])
        if first == k:
            visited_N[k] = _U64(position >= next_position)
        elif position >= next_position:
            if visited_N[first] == _1:
                next_position = position + ngram
                if _U64(ends_W[next_position - _1]) == _U64(starts_W[position]) + ngram:
                    length += ngram
                else:
                    while position < next_position:
                        length += _U64(ends_W[position] - starts_W[position])
                        position += _1
            visited_N[first] = _1
        k += _1
    return length


@kernel
def _measure_ngrams(
    chars: int,
    starts_W: NDArray[np.uint32],
    ends_W: NDArray[np.uint32],
    hashes_W: NDArray[np.uint64],
    flags_W: NDArray[np.uint8],
    num: np.uint64,
    gap_counts: bool,
    firsts: NDArray[np.uint32],
    positions: NDArray[np.uint32],
    counts: NDArray[np.uint32],
    keys: NDArray[np.uint64],
    table: NDArray[np.uint32],
    values_S: NDArray[np.float32],
) -> None:
    """Top and duplicate n-grams and word_10gram_repetition, from what `_number_words` left."""
    kept, _, _ = keep_repeated(positions, firsts, num, counts, keys)
    kept, best, position = repeated_pairs(positions, firsts, kept, table, keys, counts)
    if best <= _1:
        # All occur once, those that are out of the list too: the first of the document comes first.
        best = _1
        position = _0
    count_pairs(firsts, kept, counts)
    n = _FIRST_TOP
    while n <= _LAST_TOP and n <= num:
        if n > _FIRST_TOP:
            best, position = most_frequent(positions, firsts, kept, n, best, counts, table, keys)
        top = best * _joined_length(starts_W, ends_W, flags_W, position, n, gap_counts)
        values_S[_TOP_ROW + np.int64(n)] = np.float64(top) / chars
        n += _1
    if num < _FIRST_DUPLICATE or kept == _0:
        return
    kept = repeated_fives(positions, firsts, kept, table, keys, counts)
    if kept == _0:
        return
    # `counts` holds the list of the unsettled until the last step is done.
    unsettled = list_unsettled(positions, firsts, kept, counts)
    n = _FIRST_DUPLICATE
    while n <= _LAST_DUPLICATE and n <= num:
        if n > _FIRST_DUPLICATE:
            lengthen(positions, firsts, kept, n, hashes_W, num, counts, unsettled, table, keys)
        length = _duplicate_length(starts_W, ends_W, positions, firsts, kept, n, keys)
        values_S[_DUPLICATE_ROW + np.int64(n)] = np.float64(length) / chars
        n += _1
    if num >= _LAST_DUPLICATE:
        values_S[_WORD_10] = np.float64(count_repeated(firsts, kept, counts)) / np.float64(num - _LAST_DUPLICATE + _1)


@kernel
def measure_repetition(
    code_points: NDArray[np.uint32],
    count: int,
    starts_W: NDArray[np.uint32],
    ends_W: NDArray[np.uint32],
    hashes_W: NDArray[np.uint64],
    flags_W: NDArray[np.uint8],
    num: int,
    gap_counts: bool,
    stop_slots_H: NDArray[np.uint32],
    stop_keys_E: NDArray[np.uint64],
    stop_lists_E: NDArray[np.uint8],
    stop_pairs_P: NDArray[np.uint32],
    firsts: NDArray[np.uint32],
    positions: NDArray[np.uint32],
    counts: NDArray[np.uint32],
    keys: NDArray[np.uint64],
    table: NDArray[np.uint32],
    found_E: NDArray[np.uint32],
    values_S: NDArray[np.float32],
) -> None:
    """Fill values_S[INDEX[name]] for every name of REPETITION_SIGNALS; other rows are left alone.

    code_points[0:count] are the document, word w of `num` is code_points[starts_W[w]:ends_W[w]], not empty, in order.
    hashes_W are equal where words are; flags_W: IS_MARK, ALONE_SYMBOL. gap_counts: False where single characters are
    words because their script has no spaces, True where a segmenter made the words. Then `*stop_table()`,
    `*scratch_for_words(…)`.
    """
    for row in range(_FIRST_ROW, _FIRST_ROW + _NUM_ROWS):
        values_S[row] = 0.0
    if count == 0:
        return
    share_10, share_13 = character_repetition(code_points, count, firsts, positions, counts, keys, table)
    values_S[_CHAR_10] = share_10
    values_S[_CHAR_13] = share_13
    words = _U64(num)
    distinct = _number_words(hashes_W, words, positions, firsts, counts, table, keys)
    _measure_vocabulary(
        code_points, starts_W, ends_W, flags_W, words, gap_counts,
        stop_slots_H, stop_keys_E, stop_lists_E, stop_pairs_P,
        firsts, counts, keys, distinct, found_E, values_S,
    )  # fmt: skip
    _measure_ngrams(
        count, starts_W, ends_W, hashes_W, flags_W, words, gap_counts, firsts, positions, counts, keys, table, values_S
    )
