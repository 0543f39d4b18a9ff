"""Repeated sequences of words: which n-grams occur more than once, how often, and where they came first.

Most n-grams of a text occur once. They are told from the rest without a look at their words: an n-gram is tallied in
one of two to four times as many bytes as there are n-grams, and no n-gram is more frequent than its byte says. What
occurs once cannot be part of a longer sequence that occurs twice, so each length looks only at what the one before
left (`tally_pairs`, `tally_longer`, `list_pairs`, `list_longer`).

- 2, 3, 4 words: only n-grams whose bytes are largest are counted, by their words (`most_frequent`).
- 5 words: what is left is compared as 64-bit hashes (`find_fives`).
- 6 to 10 words: each n-gram knows how far it agrees with the first equal one, and is looked up again where that ends
  (`list_unsettled`, `lengthen`).

Repeated n-grams are two lists: positions_N, ascending, and firsts_N, where in the list the first equal n-gram is. A few
that occur once are in them too, as their own first. If p begins a repeated longer sequence, p + 1, p + 2, … are in the
list, right behind it.

The arrays are the caller's (`taojin.quality.repetition.scratch_for_words`) and are reused by every step.
Cost: linear in the text, whatever it is; loops are written without branches that depend on the text, since a wrong
guess costs as much as three look-ups.

Suffixes: _N n-grams, _W words, _V distinct words, _H slots of a hash table, whose entries are indices + 1, 0 where
empty, or of a sketch, whose bytes are tallies.
"""

import numpy as np
from numpy.typing import NDArray

from taojin.core.jit import inlined, kernel

_U8 = np.uint8
_U32 = np.uint32
_U64 = np.uint64
_0 = np.uint64(0)
_1 = np.uint64(1)
_2 = np.uint64(2)
_3 = np.uint64(3)
_4 = np.uint64(4)
_5 = np.uint64(5)
_10 = np.uint64(10)
_32 = np.uint64(32)
_64 = np.uint64(64)
_NONE = np.uint32(0)
_ONE = np.uint32(1)
_NO = np.uint8(0)
_YES = np.uint8(1)
_FULL = np.uint64(255)  # a tally goes no further
_HALF = np.uint64(32)
_LOW_HALF = np.uint64(0xFFFFFFFF)
_BASE = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, odd
_BASE_2 = np.uint64(0x9E3779B97F4A7C15**2 % 2**64)
_SPREAD = np.uint64(0xD6E8FEB86659FD93)  # odd, bits of both halves about equally many; spreads keys over slots
# Slots for each key where the table has room: collisions are then rare enough for the processor to guess right.
_SLOTS_PER_KEY = np.uint64(3)
# Prefix hashes: p(i + 1) = (p(i) + word i) × multiplier modulo 2^32, so that p(i + n) − p(i) × multiplier^n depends on
# the n words from i on alone, and its high bits on each of them.
_MULTIPLIER = np.uint64(0x9E3779B1)  # 2^32 / golden ratio, prime
_MULTIPLIER_2 = np.uint32(0x9E3779B1**2 % 2**32)


@inlined
def slot_of(key: np.uint64, slots: np.uint64) -> np.uint64:
    """A slot in 0…slots − 1, slots < 2^32; any number of slots will do."""
    x = (key ^ (key >> _HALF)) * _SPREAD
    return ((x >> _HALF) * slots) >> _HALF


@kernel
def clear(table_H: NDArray[np.uint32] | NDArray[np.uint8], slots: np.uint64) -> None:
    slot = _0
    while slot < slots:
        table_H[slot] = 0
        slot += _1


@kernel
def clear_for(num: np.uint64, table_H: NDArray[np.uint32]) -> np.uint64:
    """Empty as many slots as `num` keys want and the table has; returns how many. It must have more than num."""
    slots = min(num * _SLOTS_PER_KEY + _1, _U64(table_H.size))
    clear(table_H, slots)
    return slots


@kernel
def clear_sketch(num: np.uint64, sketch_H: NDArray[np.uint8]) -> np.uint64:
    """Empty the sketch for `num` tallies: 2^bits slots, the largest power of two up to 4 num, but 8 at least and 2^32
    at most. Returns bits."""
    bits = _3
    while (_1 << bits) <= num + num and bits < _32:
        bits += _1
    clear(sketch_H, _1 << bits)
    return bits


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
def number_words(
    hashes_W: NDArray[np.uint64],
    num: np.uint64,
    prefixes_W: NDArray[np.uint32],
    firsts_V: NDArray[np.uint32],
    counts_V: NDArray[np.uint32],
    hashes_V: NDArray[np.uint64],
    table_H: NDArray[np.uint32],
) -> np.uint64:
    """Number the distinct words in the order of their first occurrence; returns how many there are.

    prefixes_W[0 : num + 1]: prefix hashes of those numbers; firsts_V: where each word is first; counts_V: how often it
    occurs. hashes_V: scratch. High halves of hashes_W must be spread evenly.
    """
    slots = clear_for(num, table_H)
    distinct = _0
    prefix = _0
    i = _0
    while i < num:
        # Written either way, kept only if the word is new.
        h = hashes_W[i]
        hashes_V[distinct] = h
        firsts_V[distinct] = _U32(i)
        counts_V[distinct] = _NONE
        slot = ((h >> _HALF) * slots) >> _HALF
        entry = _U64(table_H[slot])
        word = distinct if entry == _0 else entry - _1
        while hashes_V[word] != h:
            slot += _1
            if slot == slots:
                slot = _0
            entry = _U64(table_H[slot])
            word = distinct if entry == _0 else entry - _1
        table_H[slot] = _U32(word + _1)
        counts_V[word] += _ONE
        distinct += _U64(word == distinct)
        prefixes_W[i] = _U32(prefix & _LOW_HALF)
        prefix = (prefix + word) * _MULTIPLIER
        i += _1
    prefixes_W[num] = _U32(prefix & _LOW_HALF)
    return distinct


@kernel
def tally_pairs(
    prefixes_W: NDArray[np.uint32], num: np.uint64, sketch_H: NDArray[np.uint8], slots_N: NDArray[np.uint32]
) -> tuple[np.uint64, np.uint64]:
    """Tally all pairs of `num` words, two at least; slots_N: the slot of each. Returns (the largest tally, bits of the
    sketch)."""
    bits = clear_sketch(num, sketch_H)
    shift = _U32(_32 - bits)
    # A loop of its own, because it becomes vector instructions.
    for i in range(np.int64(num) - 1):
        slots_N[i] = _U32(prefixes_W[i + 2] - prefixes_W[i] * _MULTIPLIER_2) >> shift
    largest = _0
    pair = _0
    while pair + _1 < num:
        slot = slots_N[pair]
        tally = _U64(sketch_H[slot])
        tally += _U64(tally != _FULL)
        sketch_H[slot] = _U8(tally)
        largest = max(largest, tally)
        pair += _1
    return largest, bits


@kernel
def list_pairs(
    num: np.uint64,
    sketch_H: NDArray[np.uint8],
    least: np.uint64,
    positions_N: NDArray[np.uint32],
    wanted_N: NDArray[np.uint32],
) -> tuple[np.uint64, np.uint64]:
    """List pairs with a tally of two or more, and in wanted_N of `least` or more; returns both numbers.

    positions_N holds the slots that `tally_pairs` left: each is read before its place is written.
    """
    kept = _0
    wanted = _0
    i = _0
    last = num - _1
    while i < last:
        tally = _U64(sketch_H[positions_N[i]])
        positions_N[kept] = _U32(i)
        kept += _U64(tally > _1)
        wanted_N[wanted] = _U32(i)
        wanted += _U64(tally >= least)
        i += _1
    return kept, wanted


@kernel
def _power(ngram: np.uint64) -> np.uint64:
    power = _1
    while ngram > _0:
        power *= _MULTIPLIER
        ngram -= _1
    return power


@kernel
def tally_longer(
    prefixes_W: NDArray[np.uint32],
    ngram: np.uint64,
    positions_N: NDArray[np.uint32],
    num: np.uint64,
    sketch_H: NDArray[np.uint8],
) -> tuple[np.uint64, np.uint64, np.uint64]:
    """From the list of (ngram − 1)-grams to the n-grams that they may begin, all tallied.

    Returns (how many, the largest tally, bits of the sketch). positions_N[num] and prefixes_W behind its last entry
    must exist.
    """
    bits = clear_sketch(num, sketch_H)
    shift = _64 - bits
    power = _power(ngram)
    positions_N[num] = _NONE
    largest = _0
    kept = _0
    k = _0
    while k < num:
        position = _U64(positions_N[k])
        follows = _U64(_U64(positions_N[k + _1]) == position + _1)
        h = _U64(prefixes_W[position + ngram]) - _U64(prefixes_W[position]) * power
        slot = (h << _HALF) >> shift
        # Nothing is added to where no n-gram begins: cheaper than a branch.
        tally = _U64(sketch_H[slot])
        tally += follows & _U64(tally != _FULL)
        sketch_H[slot] = _U8(tally)
        largest = max(largest, tally)
        positions_N[kept] = _U32(position)
        kept += follows
        k += _1
    return kept, largest, bits


@kernel
def list_longer(
    prefixes_W: NDArray[np.uint32],
    ngram: np.uint64,
    positions_N: NDArray[np.uint32],
    num: np.uint64,
    bits: np.uint64,
    sketch_H: NDArray[np.uint8],
    least: np.uint64,
    wanted_N: NDArray[np.uint32],
) -> tuple[np.uint64, np.uint64]:
    """As `list_pairs`, but of the n-grams in the list."""
    shift = _64 - bits
    power = _power(ngram)
    kept = _0
    wanted = _0
    k = _0
    while k < num:
        position = _U64(positions_N[k])
        h = _U64(prefixes_W[position + ngram]) - _U64(prefixes_W[position]) * power
        tally = _U64(sketch_H[(h << _HALF) >> shift])
        positions_N[kept] = _U32(position)
        kept += _U64(tally > _1)
        wanted_N[wanted] = _U32(position)
        wanted += _U64(tally >= least)
        k += _1
    return kept, wanted


@kernel
def most_frequent(
    hashes_W: NDArray[np.uint64],
    prefixes_W: NDArray[np.uint32],
    ngram: np.uint64,
    wanted_N: NDArray[np.uint32],
    num: np.uint64,
    table_H: NDArray[np.uint32],
    counts_W: NDArray[np.uint32],
) -> tuple[np.uint64, np.uint64]:
    """(count, first position) of the most frequent of the wanted n-grams, the first of equals; (1, 0) if none occurs
    twice. counts_W: scratch, at the position where an n-gram is first."""
    slots = clear_for(num, table_H)
    power = _power(ngram)
    # Count and position as one number, so that the largest is the first of the most frequent.
    best = _1 << _HALF
    k = _0
    while k < num:
        position = _U64(wanted_N[k])
        h = _U64(prefixes_W[position + ngram]) - _U64(prefixes_W[position]) * power
        slot = ((h & _LOW_HALF) * slots) >> _HALF
        while True:
            entry = _U64(table_H[slot])
            first = position if entry == _0 else entry - _1
            same = _0
            while same < ngram and hashes_W[first + same] == hashes_W[position + same]:
                same += _1
            if same == ngram:
                break
            slot += _1
            if slot == slots:
                slot = _0
        table_H[slot] = _U32(first + _1)
        count = _U64(counts_W[first]) * _U64(entry != _0) + _1
        counts_W[first] = _U32(count)
        best = max(best, (count << _HALF) | (_LOW_HALF - first))
        k += _1
    count = best >> _HALF
    return count, _LOW_HALF - (best & _LOW_HALF) if count > _1 else _0


@kernel
def find_fives(
    hashes_W: NDArray[np.uint64],
    positions_N: NDArray[np.uint32],
    num: np.uint64,
    firsts_N: NDArray[np.uint32],
    table_H: NDArray[np.uint32],
    keys_N: NDArray[np.uint64],
) -> None:
    """firsts_N of the 5-grams in the list. Equal 64-bit hashes are taken for equal sequences."""
    slots = clear_for(num, table_H)
    expected = _0
    k = _0
    while k < num:
        i = _U64(positions_N[k])
        left = hashes_W[i] * _BASE + hashes_W[i + _1]
        right = hashes_W[i + _2] * _BASE + hashes_W[i + _3]
        key = (left * _BASE_2 + right) * _BASE + hashes_W[i + _4]
        keys_N[k] = key
        # Most repeats go on as the one before did.
        if expected < k and keys_N[expected] == key:
            first = _U64(firsts_N[expected])
        else:
            first = find(key, k, slots, table_H, keys_N)
        firsts_N[k] = _U32(first)
        expected = first + _1
        k += _1


@inlined
def _common_length(
    hashes_W: NDArray[np.uint64], num_words: np.uint64, here: np.uint64, there: np.uint64, length: np.uint64
) -> np.uint64:
    """How many words from here and there on are equal, 10 at most, if `length` are known to be; there < here."""
    while length < _10 and here + length < num_words and hashes_W[here + length] == hashes_W[there + length]:
        length += _1
    return length


@kernel
def list_unsettled(
    hashes_W: NDArray[np.uint64],
    num_words: np.uint64,
    positions_N: NDArray[np.uint32],
    firsts_N: NDArray[np.uint32],
    num: np.uint64,
    unsettled_N: NDArray[np.uint32],
    lengths_N: NDArray[np.uint8],
) -> np.uint64:
    """Which 5-grams differ from their first equal one within the next five words: unsettled_N[returned : num], and in
    lengths_N how many words agree."""
    top = num
    length = _0
    following = num
    k = num
    while k > _0:
        k -= _1
        first = _U64(firsts_N[k])
        if first == k:
            following = num
            continue
        here = _U64(positions_N[k])
        there = _U64(positions_N[first])
        if (
            following == first + _1
            and _U64(positions_N[k + _1]) == here + _1
            and _U64(positions_N[following]) == there + _1
        ):
            length = min(length + _1, _10)
        else:
            length = _common_length(hashes_W, num_words, here, there, _5)
        following = first
        if length < _10:
            top -= _1
            unsettled_N[top] = _U32(k)
            lengths_N[top] = _U8(length)
    return top


@kernel
def lengthen(
    hashes_W: NDArray[np.uint64],
    num_words: np.uint64,
    positions_N: NDArray[np.uint32],
    firsts_N: NDArray[np.uint32],
    num: np.uint64,
    ngram: np.uint64,
    unsettled_N: NDArray[np.uint32],
    lengths_N: NDArray[np.uint8],
    top: np.uint64,
    table_H: NDArray[np.uint32],
    keys_N: NDArray[np.uint64],
) -> None:
    """firsts_N from (ngram − 1)-grams to n-grams. The lists stay as long as they are: an n-gram that occurs once, or
    would pass the end, is its own first."""
    slots = clear_for(num - top, table_H)
    breaks_off = _U8(ngram - _1)
    j = top
    while j < num:
        if lengths_N[j] == breaks_off:
            k = _U64(unsettled_N[j])
            here = _U64(positions_N[k])
            first = k
            if here + ngram <= num_words and k + _1 < num and _U64(positions_N[k + _1]) == here + _1:
                key = (_U64(firsts_N[k]) << _HALF) | _U64(firsts_N[k + _1])
                keys_N[k] = key
                first = find(key, k, slots, table_H, keys_N)
                if first != k:
                    there = _U64(positions_N[first])
                    lengths_N[j] = _U8(_common_length(hashes_W, num_words, here, there, ngram))
            firsts_N[k] = _U32(first)
        j += _1


@kernel
def duplicate_length(
    starts_W: NDArray[np.uint32],
    ends_W: NDArray[np.uint32],
    positions_N: NDArray[np.uint32],
    firsts_N: NDArray[np.uint32],
    num: np.uint64,
    ngram: np.uint64,
    visited_N: NDArray[np.uint8],
) -> np.uint64:
    """Characters of the n-grams that began at an earlier visited position; visited_N: scratch.

    Positions that are not in the list hold n-grams that occur once: visiting them would change nothing.
    """
    k = _0
    while k < num:
        visited_N[k] = _YES
        k += _1
    length = _0
    k = _0
    while k < num:
        first = _U64(firsts_N[k])
        if first == k:
            k += _1
        elif visited_N[first] == _NO:
            visited_N[first] = _YES
            k += _1
        else:
            position = _U64(positions_N[k])
            end = position + ngram
            if _U64(ends_W[end - _1]) == _U64(starts_W[position]) + ngram:
                length += ngram
            else:
                while position < end:
                    length += _U64(ends_W[position] - starts_W[position])
                    position += _1
            k += _1
            while k < num and _U64(positions_N[k]) < end:
                visited_N[k] = _NO
                k += _1
    return length


@kernel
def count_repeated(firsts_N: NDArray[np.uint32], num: np.uint64, counts_N: NDArray[np.uint32]) -> np.uint64:
    """How many entries have an equal one; counts_N: at the first of equals."""
    k = _0
    while k < num:
        counts_N[k] = _NONE
        counts_N[firsts_N[k]] += _ONE
        k += _1
    repeated = _0
    k = _0
    while k < num:
        repeated += _U64(counts_N[firsts_N[k]] > _ONE)
        k += _1
    return repeated
