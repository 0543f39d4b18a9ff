"""How much a document repeats itself: n-grams of words, windows of characters, word frequencies, stop words.

In: words and marks of one document as the word splitter leaves them. Out: `REPETITION_SIGNALS`, into a column.

Gopher's n-gram rules are computed as datatrove 0.10.1 does, over words and marks. *Top*: the most frequent n-gram, the
first of equals, counts all its occurrences, even a single one; its words are joined by one space, but two characters of
a script without spaces by nothing unless `gap_counts`. *Duplicate*: from left to right, an n-gram that began earlier
counts its words without spaces and the search goes on behind it. N-grams are equal where their words are; datatrove
compares the words of a duplicate run together, so that "ab c" equals "a bc" for it.

`word_10gram_repetition` is data-juicer's ratio over the same words and marks as the rest; data-juicer lower-cases words
and strips punctuation first. Entropy, distinct words and shares of stop words are of words, marks left out.

Cost: about 30 ns per Chinese character and 10 per English one, the more the text repeats itself (one core); linear,
whatever the text. Sequences are the business of `taojin.quality.ngrams`, windows of `taojin.quality.windows`, the lists
of `taojin.quality.stop_words`.

Suffixes: _W words and marks, _V distinct words, _S signals, _N as in `taojin.quality.ngrams`, _E and _P as in
`taojin.quality.stop_words`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taojin.core.jit import kernel
from taojin.quality.ngrams import (
    count_repeated,
    duplicate_length,
    find_fives,
    lengthen,
    list_longer,
    list_pairs,
    list_unsettled,
    most_frequent,
    number_words,
    tally_longer,
    tally_pairs,
)
from taojin.quality.signals import INDEX, NGRAMS_DUPLICATE, NGRAMS_TOP, REPETITION_SIGNALS, STOP_WORD_LISTS
from taojin.quality.stop_words import find_stop_word, stop_table
from taojin.quality.windows import character_repetition
from taojin.quality.word_tables import borrow

IS_MARK = 2
ALONE_SYMBOL = 4

_U32 = np.uint32
_U64 = np.uint64
_0 = np.uint64(0)
_1 = np.uint64(1)
_2 = np.uint64(2)
_256 = np.uint64(256)
_NONE = np.uint32(0)
_NEVER = np.uint64(256)  # more than a tally can be
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
def _measure_vocabulary(
    code_points: NDArray[np.uint32],
    starts_W: NDArray[np.uint32],
    ends_W: NDArray[np.uint32],
    hashes_W: NDArray[np.uint64],
    flags_W: NDArray[np.uint8],
    num: np.uint64,
    gap_counts: bool,
    stop_slots_H: NDArray[np.uint32],
    stop_keys_E: NDArray[np.uint64],
    stop_lists_E: NDArray[np.uint8],
    stop_pairs_P: NDArray[np.uint32],
    firsts_V: NDArray[np.uint32],
    counts_V: NDArray[np.uint32],
    distinct: np.uint64,
    found_E: NDArray[np.uint32],
    values_S: NDArray[np.float32],
) -> None:
    """Entropy, distinct words, stop words.

    found_E: scratch; [0] how often an entry occurs as a word or a part of one, [1] where it is first, + 1, or 0. At the
    end of those found alone [0] and, in place of [1], their lists.
    """
    for entry in range(found_E.shape[1]):
        found_E[0, entry] = _NONE
        found_E[1, entry] = _NONE
    words = _0
    kinds = _0
    weight = 0.0
    word = _0
    while word < distinct:
        i = _U64(firsts_V[word])
        is_word = _U64((flags_W[i] & IS_MARK) == 0)
        count = _U64(counts_V[word]) * is_word
        stop = find_stop_word(code_points, _U64(starts_W[i]), _U64(ends_W[i]), stop_slots_H, stop_keys_E)
        if stop != _0:
            found_E[0, stop] += _U32(count)
            found_E[1, stop] = _U32(i + _1)
        words += count
        kinds += is_word
        if count < _256:
            weight += _COUNT_LOG_COUNT[count]
        else:
            weight += np.float64(count) * np.log(np.float64(count))
        word += _1
    if words > _0:
        values_S[_UNIQUE] = np.float64(kinds) / np.float64(words)
        values_S[_ENTROPY] = max(0.0, np.log(np.float64(words)) - weight / np.float64(words))
    if not gap_counts:
        for pair in range(stop_pairs_P.shape[0]):
            left = found_E[1, stop_pairs_P[pair, 0]]
            right = found_E[1, stop_pairs_P[pair, 1]]
            if left != _NONE and right != _NONE:
                left_hash = hashes_W[_U64(left) - _1]
                right_hash = hashes_W[_U64(right) - _1]
                occurrences = _0
                i = _1
                while i < num:
                    if hashes_W[i] == right_hash:
                        occurrences += _U64(hashes_W[i - _1] == left_hash and ends_W[i - _1] == starts_W[i])
                    i += _1
                if occurrences > _0:
                    found_E[0, stop_pairs_P[pair, 2]] += _U32(occurrences + occurrences)
                    found_E[1, stop_pairs_P[pair, 2]] = left
    # What was found moves to the front, without a branch: which entries that are cannot be guessed.
    entries = _0
    for entry in range(1, found_E.shape[1]):
        is_found = found_E[1, entry] != _NONE
        found_E[0, entries] = found_E[0, entry]
        found_E[1, entries] = stop_lists_E[entry]
        entries += _U64(is_found)
    for number in range(_NUM_LISTS):
        kinds = _0
        count = _0
        i = _0
        while i < entries:
            is_listed = (_U64(found_E[1, i]) >> _U64(number)) & _1
            kinds += is_listed
            count += _U64(found_E[0, i]) * is_listed
            i += _1
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
    """Top and duplicate n-grams and word_10gram_repetition; firsts[0 : num + 1] are prefix hashes."""
    if num < _FIRST_TOP:
        return
    # The sketch has up to four bytes for each word: half of the keys. Counts by position are in the other half.
    sketch = keys.view(np.uint8)
    counts_W = keys.view(np.uint32)[np.int64(num) :]
    kept = _0
    best = num
    n = _FIRST_TOP
    while n <= _FIRST_DUPLICATE and n <= num:
        if n == _FIRST_TOP:
            largest, bits = tally_pairs(firsts, num, sketch, positions)
        else:
            kept, largest, bits = tally_longer(firsts, n, positions, kept, sketch)
        # Tallies are somewhat too large, where different n-grams share a byte.
        largest = min(largest, best)
        least = max(largest - (largest >> _2), _2) if n <= _LAST_TOP else _NEVER
        if n == _FIRST_TOP:
            kept, wanted = list_pairs(num, sketch, least, positions, counts)
        else:
            kept, wanted = list_longer(firsts, n, positions, kept, bits, sketch, least, counts)
        if n <= _LAST_TOP:
            best, position = most_frequent(hashes_W, firsts, n, counts, wanted, table, counts_W)
            if best < least and least > _2:
                # None of those with smaller tallies occurs more often than this.
                least = max(best, _2)
                kept, wanted = list_longer(firsts, n, positions, kept, bits, sketch, least, counts)
                best, position = most_frequent(hashes_W, firsts, n, counts, wanted, table, counts_W)
            top = best * _joined_length(starts_W, ends_W, flags_W, position, n, gap_counts)
            values_S[_TOP_ROW + np.int64(n)] = np.float64(top) / chars
        n += _1
    if num < _FIRST_DUPLICATE or kept == _0:
        return
    find_fives(hashes_W, positions, kept, firsts, table, keys)
    # The end of the table, which has room for half as many keys again as there are.
    lengths = table.view(np.uint8)[4 * table.size - np.int64(kept) :]
    rest = table[: table.size - np.int64(kept) // 4 - 1]
    # `counts` holds the list of the unsettled until the last step is done.
    unsettled = list_unsettled(hashes_W, num, positions, firsts, kept, counts, lengths)
    n = _FIRST_DUPLICATE
    while n <= _LAST_DUPLICATE and n <= num:
        if n > _FIRST_DUPLICATE:
            lengthen(hashes_W, num, positions, firsts, kept, n, counts, lengths, unsettled, rest, keys)
        length = duplicate_length(starts_W, ends_W, positions, firsts, kept, n, sketch)
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
    hashes_W are equal where words are, their high halves spread evenly; flags_W: IS_MARK, ALONE_SYMBOL. gap_counts:
    False where single characters are words because their script has no spaces, True where a segmenter made the words.
    Then `*stop_table()`, `*scratch_for_words(…)`.
    """
    for row in range(_FIRST_ROW, _FIRST_ROW + _NUM_ROWS):
        values_S[row] = 0.0
    if count == 0:
        return
    code_points, flags, values = borrow(code_points), borrow(flags_W), borrow(values_S)
    starts, ends, hashes = borrow(starts_W), borrow(ends_W), borrow(hashes_W)
    firsts, positions, counts = borrow(firsts), borrow(positions), borrow(counts)
    keys, table, found = borrow(keys), borrow(table), borrow(found_E)
    share_10, share_13 = character_repetition(code_points, count, firsts, positions, counts, keys, table)
    values[_CHAR_10] = share_10
    values[_CHAR_13] = share_13
    words = _U64(num)
    distinct = number_words(hashes, words, firsts, positions, counts, keys, table)
    _measure_vocabulary(
        code_points, starts, ends, hashes, flags, words, gap_counts,
        borrow(stop_slots_H), borrow(stop_keys_E), borrow(stop_lists_E), borrow(stop_pairs_P),
        positions, counts, distinct, found, values,
    )  # fmt: skip
    _measure_ngrams(
        count, starts, ends, hashes, flags, words, gap_counts, firsts, positions, counts, keys, table, values
    )
