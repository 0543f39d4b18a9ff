"""Repeated sequences of words: which n-grams occur more than once, how often, and where they came first.

What occurs once cannot begin a longer sequence that occurs twice. So repeated n-grams are kept as two lists:
positions_N, ascending, and firsts_N, where in the list the first equal n-gram is. If p begins a repeated longer
sequence, p + 1, p + 2, … are in the list too, right behind it.

- 1 → 2 words: a hash table of exact pairs.
- The most frequent sequence of 3 or 4 is sought only where pairs are frequent enough (`most_frequent`).
- 2 → 5 words: two pairs and a third, as a 64-bit hash.
- 5 → 10 words: in a long repeat the first equal 5-gram moves on in step, so only the last five positions of a repeat
  are looked at again (`list_unsettled`, `lengthen`).

The arrays are the caller's (`taojin.quality.repetition.scratch_for_words`) and are reused by every step.
Cost: linear in the text, whatever it is; steps are written without branches that depend on the text, since a wrong
guess costs as much as three look-ups.

Suffixes: _N n-grams, _W words, _H slots of a hash table, whose entries are indices + 1, 0 where empty.
"""

import numpy as np
from numpy.typing import NDArray

from taojin.core.jit import inlined, kernel
from taojin.core.text import mix

_U32 = np.uint32
_U64 = np.uint64
_0 = np.uint64(0)
_1 = np.uint64(1)
_2 = np.uint64(2)
_3 = np.uint64(3)
_4 = np.uint64(4)
_5 = np.uint64(5)
_NONE = np.uint32(0)
_ONE = np.uint32(1)
_HALF = np.uint64(32)
_ALONE = np.uint64(1 << 63)  # with an index: a key that nothing else has
_BASE = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, odd
_SPREAD = np.uint64(0xD6E8FEB86659FD93)  # odd, bits of both halves about equally many; spreads keys over slots
# Slots for each key where the table has room: collisions are then rare enough for the processor to guess right.
_SLOTS_PER_KEY = np.uint64(3)


@inlined
def slot_of(key: np.uint64, slots: np.uint64) -> np.uint64:
    """A slot in 0…slots − 1, slots < 2^32; any number of slots will do."""
    x = (key ^ (key >> _HALF)) * _SPREAD
    return ((x >> _HALF) * slots) >> _HALF


@kernel
def clear(table_H: NDArray[np.uint32], slots: np.uint64) -> None:
    slot = _0
    while slot < slots:
        table_H[slot] = _NONE
        slot += _1


@kernel
def clear_for(num: np.uint64, table_H: NDArray[np.uint32]) -> np.uint64:
    """Empty as many slots as `num` keys want and the table has; returns how many. It must have more than num."""
    slots = min(num * _SLOTS_PER_KEY + _1, _U64(table_H.size))
    clear(table_H, slots)
    return slots


@inlined
def find(
    key: np.uint64, index: np.uint64, slots: np.uint64, table_H: NDArray[np.uint32], keys: NDArray[np.uint64]
) -> np.uint64:
    """The first index whose key this is, which may be `index` itself; keys[index] must be `key` already."""
    slot = slot_of(key, slots)
    entry = _U64(table_H[slot])
    found = index if entry == _0 else entry - _1
    while keys[found] != key:
        slot += _1
        if slot == slots:
            slot = _0
        entry = _U64(table_H[slot])
        found = index if entry == _0 else entry - _1
    table_H[slot] = _U32(found + _1)
    return found


@kernel
def keep_repeated(
    positions_N: NDArray[np.uint32],
    firsts_N: NDArray[np.uint32],
    num: np.uint64,
    counts_N: NDArray[np.uint32],
    moved_N: NDArray[np.uint64],
) -> tuple[np.uint64, np.uint64, np.uint64]:
    """Shorten both lists to n-grams that occur twice or more; counts_N counts at the first of equals.

    Returns (how many stay, the largest count, the first position that has it). moved_N: scratch.
    """
    kept = _0
    best = _0
    best_position = _0
    k = _0
    while k < num:
        first = _U64(firsts_N[k])
        count = _U64(counts_N[first])
        position = positions_N[k]
        moved = moved_N[first]
        if count > best:
            best = count
            best_position = _U64(position)
        # Written either way, kept only if repeated.
        moved = kept if first == k else moved
        moved_N[first] = moved
        positions_N[kept] = position
        firsts_N[kept] = _U32(moved)
        kept += _U64(count > _1)
        k += _1
    return kept, best, best_position


@kernel
def repeated_pairs(
    positions_N: NDArray[np.uint32],
    firsts_N: NDArray[np.uint32],
    num: np.uint64,
    table_H: NDArray[np.uint32],
    keys_N: NDArray[np.uint64],
    counts_N: NDArray[np.uint32],
) -> tuple[np.uint64, np.uint64, np.uint64]:
    """From repeated words to repeated pairs of words; returns as `keep_repeated`."""
    slots = clear_for(num, table_H)
    positions_N[num] = _NONE
    firsts_N[num] = _NONE
    k = _0
    while k < num:
        key = (_U64(firsts_N[k]) << _HALF) | _U64(firsts_N[k + _1])
        key = key if _U64(positions_N[k + _1]) == _U64(positions_N[k]) + _1 else _ALONE | k
        keys_N[k] = key
        counts_N[k] = _NONE
        first = find(key, k, slots, table_H, keys_N)
        counts_N[first] += _ONE
        firsts_N[k] = _U32(first)
        k += _1
    return keep_repeated(positions_N, firsts_N, num, counts_N, keys_N)


@kernel
def count_pairs(firsts_N: NDArray[np.uint32], num: np.uint64, counts_N: NDArray[np.uint32]) -> None:
    """counts_N at the first of equals."""
    k = _0
    while k < num:
        counts_N[k] = _NONE
        counts_N[firsts_N[k]] += _ONE
        k += _1


@kernel
def most_frequent(
    positions_N: NDArray[np.uint32],
    firsts_N: NDArray[np.uint32],
    num: np.uint64,
    ngram: np.uint64,
    bound: np.uint64,
    counts_N: NDArray[np.uint32],
    table_H: NDArray[np.uint32],
    counts_of_ngrams_N: NDArray[np.uint64],
) -> tuple[np.uint64, np.uint64]:
    """(count, first position) of the most frequent 3- or 4-gram, the first of equals; (1, 0) if none occurs twice.

    positions_N, firsts_N, counts_N: repeated pairs; no n-gram occurs more than `bound` times. An n-gram is no more
    frequent than its pairs: whatever turns up t times or more is the true maximum if all pairs of t or more were
    looked at. t begins at half the bound and falls by fours, so most of the list is only read.
    """
    distance = ngram - _2
    least = bound << _1
    while bound > _1 and least > _2:
        least = max(least >> _2, _2)
        run = _0
        wanted = _0
        k = _0
        while k < num:
            frequent = _U64(_U64(counts_N[firsts_N[k]]) >= least)
            joined = k > _0 and positions_N[k] == positions_N[max(k, _1) - _1] + 1
            run = (run * _U64(joined) + _1) * frequent
            wanted += _U64(run > distance)
            k += _1
        if wanted == _0:
            continue
        slots = clear_for(wanted, table_H)
        best = _0
        best_first = _0
        run = _0
        k = _0
        while k < num:
            frequent = _U64(_U64(counts_N[firsts_N[k]]) >= least)
            joined = k > _0 and positions_N[k] == positions_N[max(k, _1) - _1] + 1
            run = (run * _U64(joined) + _1) * frequent
            if run > distance:
                begin = k - distance
                key = (_U64(firsts_N[begin]) << _HALF) | _U64(firsts_N[k])
                slot = slot_of(key, slots)
                entry = _U64(table_H[slot])
                while entry != _0 and (
                    firsts_N[entry - _1] != firsts_N[begin] or firsts_N[entry - _1 + distance] != firsts_N[k]
                ):
                    slot += _1
                    if slot == slots:
                        slot = _0
                    entry = _U64(table_H[slot])
                if entry == _0:
                    entry = begin + _1
                    table_H[slot] = _U32(entry)
                    counts_of_ngrams_N[begin] = _0
                first = entry - _1
                count = counts_of_ngrams_N[first] + _1
                counts_of_ngrams_N[first] = count
                if count > best or (count == best and first < best_first):
                    best = count
                    best_first = first
            k += _1
        if best >= least:
            return best, _U64(positions_N[best_first])
    return _1, _0


@kernel
def repeated_fives(
    positions_N: NDArray[np.uint32],
    firsts_N: NDArray[np.uint32],
    num: np.uint64,
    table_H: NDArray[np.uint32],
    keys_N: NDArray[np.uint64],
    counts_N: NDArray[np.uint32],
) -> np.uint64:
    """From repeated pairs to repeated 5-grams; returns how many."""
    slots = clear_for(num, table_H)
    run = _0
    fives = _0
    k = _0
    while k < num:
        joined = k > _0 and positions_N[k] == positions_N[max(k, _1) - _1] + 1
        run = run * _U64(joined) + _1
        if run >= _4:
            # Entry `fives` is written in a place that was read for the last time.
            key = mix((_U64(firsts_N[k - _3]) << _HALF) | _U64(firsts_N[k - _1])) + _U64(firsts_N[k]) * _BASE
            keys_N[fives] = key
            counts_N[fives] = _NONE
            first = find(key, fives, slots, table_H, keys_N)
            counts_N[first] += _ONE
            positions_N[fives] = positions_N[k - _3]
            firsts_N[fives] = _U32(first)
            fives += _1
        k += _1
    return keep_repeated(positions_N, firsts_N, fives, counts_N, keys_N)[0]


@kernel
def list_unsettled(
    positions_N: NDArray[np.uint32], firsts_N: NDArray[np.uint32], num: np.uint64, unsettled_N: NDArray[np.uint32]
) -> np.uint64:
    """Which 5-grams may differ from their first equal one within the next five words: unsettled_N[returned : num]."""
    top = num
    run = _0
    k = num
    while k > _0:
        k -= _1
        first = _U64(firsts_N[k])
        if (
            k + _1 < num
            and _U64(firsts_N[k + _1]) == first + _1
            and positions_N[k + _1] == positions_N[k] + 1
            and positions_N[first + _1] == positions_N[first] + 1
        ):
            run += _1
        else:
            run = _0
        if run < _5 and first != k:
            top -= _1
            unsettled_N[top] = _U32(k)
    return top


@kernel
def lengthen(
    positions_N: NDArray[np.uint32],
    firsts_N: NDArray[np.uint32],
    num: np.uint64,
    ngram: np.uint64,
    words_W: NDArray[np.uint64],
    num_words: np.uint64,
    unsettled_N: NDArray[np.uint32],
    top: np.uint64,
    table_H: NDArray[np.uint32],
    keys_N: NDArray[np.uint64],
) -> None:
    """firsts_N from (ngram − 1)-grams to n-grams of words_W. The lists stay as long as they are: an n-gram that occurs
    once, or would pass the end, is its own first."""
    slots = clear_for(num - top, table_H)
    while top < num:
        k = _U64(unsettled_N[top])
        top += _1
        first = _U64(firsts_N[k])
        if first != k:
            position = _U64(positions_N[k])
            last = position + ngram - _1
            if last >= num_words or k + _1 >= num or _U64(positions_N[k + _1]) != position + _1:
                firsts_N[k] = _U32(k)
            elif words_W[last] != words_W[_U64(positions_N[first]) + ngram - _1]:
                key = (first << _HALF) | _U64(firsts_N[k + _1])
                keys_N[k] = key
                firsts_N[k] = _U32(find(key, k, slots, table_H, keys_N))


@kernel
def count_repeated(firsts_N: NDArray[np.uint32], num: np.uint64, counts_N: NDArray[np.uint32]) -> np.uint64:
    """How many entries have an equal one."""
    count_pairs(firsts_N, num, counts_N)
    repeated = _0
    k = _0
    while k < num:
        repeated += _U64(counts_N[firsts_N[k]] > _ONE)
        k += _1
    return repeated
