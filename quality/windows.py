"""Repeated runs of 10 and 13 characters.

Nearly all windows of real text are unique. A table of two bits for each hash (seen, seen again) finds the few that may
recur, without a branch; those alone are counted. Equal 64-bit hashes are taken for equal windows.

Cost: 5 ns a character and 13 to 15 for each window that may recur (one core); linear, whatever the text.

Suffixes: _N windows, _H slots of a hash table.
"""

import numpy as np
from numpy.typing import NDArray

from taojin.core.jit import kernel
from taojin.quality.ngrams import clear, clear_for, count_repeated, find, keep_repeated, slot_of

_U32 = np.uint32
_U64 = np.uint64
_0 = np.uint64(0)
_1 = np.uint64(1)
_4 = np.uint64(4)
_15 = np.uint64(15)
_NONE = np.uint32(0)
_ONE = np.uint32(1)
_HALF = np.uint64(32)
_BASE = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, odd; of rolled windows
# Two-bit slots for each window: one in 16 unique windows is then counted in vain.
_SLOTS_PER_WINDOW = np.uint64(16)
_MOST_SLOTS = np.uint64(0xFFFFFFFF)  # `slot_of` multiplies 32 bits by the number of slots
_SHORT = 10
_LONG = 13


@kernel
def _recurring_windows(
    code_points: NDArray[np.uint32],
    windows: np.uint64,
    positions_N: NDArray[np.uint32],
    hashes_N: NDArray[np.uint64],
    bits_H: NDArray[np.uint32],
) -> np.uint64:
    """Hash all windows into hashes_N and list those that may occur twice; returns how many."""
    size = _U64(_SHORT)
    slots = min(windows * _SLOTS_PER_WINDOW, _MOST_SLOTS)
    clear(bits_H, (slots >> _4) + _1)
    leaving = _1
    h = _0
    i = _0
    while i < size:
        leaving *= _BASE
        h = h * _BASE + _U64(code_points[i])
        i += _1
    again = _NONE
    i = _0
    while True:
        hashes_N[i] = h
        slot = slot_of(h, slots)
        bit = _U32((slot & _15) << _1)
        word = bits_H[slot >> _4]
        seen = (word >> bit) & _ONE
        again |= seen
        bits_H[slot >> _4] = word | ((_ONE | (seen << _ONE)) << bit)
        if i + _1 >= windows:
            break
        # The difference is off the critical path: one multiplication and one addition of latency per character.
        difference = _U64(code_points[i + size]) - _U64(code_points[i]) * leaving
        h = h * _BASE + difference
        i += _1
    if again == _NONE:
        return _0
    num = _0
    i = _0
    while i < windows:
        slot = slot_of(hashes_N[i], slots)
        positions_N[num] = _U32(i)
        bit = _U32(((slot & _15) << _1) | _1)
        num += _U64((bits_H[slot >> _4] >> bit) & _ONE)
        i += _1
    return num


@kernel
def _sum_of_largest(
    counts_N: NDArray[np.uint32],
    firsts_N: NDArray[np.uint32],
    num: np.uint64,
    largest: np.uint64,
    wanted: np.uint64,
    tally: NDArray[np.uint32],
) -> np.uint64:
    """Sum of the `wanted` largest counts of distinct windows, by counting; largest < tally.size."""
    clear(tally, largest + _1)
    k = _0
    while k < num:
        if _U64(firsts_N[k]) == k:
            tally[counts_N[k]] += _ONE
        k += _1
    total = _0
    count = largest
    while wanted > _0 and count > _0:
        taken = min(wanted, _U64(tally[count]))
        total += taken * count
        wanted -= taken
        count -= _1
    return total


@kernel
def character_repetition(
    code_points: NDArray[np.uint32],
    count: int,
    firsts: NDArray[np.uint32],
    positions: NDArray[np.uint32],
    counts: NDArray[np.uint32],
    keys: NDArray[np.uint64],
    table: NDArray[np.uint32],
) -> tuple[float, float]:
    """(char_10gram_repetition, char_13gram_repetition) of code_points[0:count]; all else is scratch.

    The first is data-juicer's character_repetition_filter: of the distinct windows of 10 characters the most frequent
    are taken, as many as repeat but no more than the square root of their number; their occurrences, of all. The
    second is the rule of ChineseWebText (EvalWeb): windows of 13 that occur more than once, of all.
    """
    if count < _SHORT:
        return 0.0, 0.0
    windows = _U64(count - _SHORT + 1)
    num = _recurring_windows(code_points, windows, positions, keys, table)
    if num == _0:
        return 0.0, 0.0
    slots = clear_for(num, table)
    distinct = windows
    k = _0
    while k < num:
        # `keys` still holds the hashes: k never passes positions[k], so only what was read is overwritten.
        key = keys[positions[k]]
        keys[k] = key
        counts[k] = _NONE
        first = find(key, k, slots, table, keys)
        counts[first] += _ONE
        firsts[k] = _U32(first)
        distinct -= _U64(first != k)
        k += _1
    repeated = _0
    k = _0
    while k < num:
        repeated += _U64(_U64(firsts[k]) == k and counts[k] > _ONE)
        k += _1
    if repeated == _0:
        return 0.0, 0.0
    wanted = _U64(np.sqrt(np.float64(distinct)))
    total = _0
    if wanted < repeated:
        best = _0
        k = _0
        while k < num:
            best = max(best, _U64(counts[k]))
            k += _1
        total = _sum_of_largest(counts, firsts, num, best, wanted, table)
    kept, _, _ = keep_repeated(positions, firsts, num, counts, keys)
    share = np.float64(total if wanted < repeated else kept) / np.float64(windows)
    if count < _LONG:
        return share, 0.0

    # A window of 13 that recurs begins four windows of 10 that do, so the last of them is three entries on. Most go on
    # as the first equal window does; only the others are looked up.
    distance = _U64(_LONG - _SHORT)
    slots = clear_for(kept, table)
    k = _0
    while k < kept:
        first = _U64(firsts[k])
        if first != k:
            position = _U64(positions[k])
            if k + distance >= kept or _U64(positions[k + distance]) != position + distance:
                firsts[k] = _U32(k)
            else:
                here = position + _U64(_SHORT)
                there = _U64(positions[first]) + _U64(_SHORT)
                end = here + distance
                while here < end and code_points[here] == code_points[there]:
                    here += _1
                    there += _1
                if here < end:
                    key = (first << _HALF) | _U64(firsts[k + distance])
                    keys[k] = key
                    firsts[k] = _U32(find(key, k, slots, table, keys))
        k += _1
    return share, np.float64(count_repeated(firsts, kept, counts)) / np.float64(count - _LONG + 1)
