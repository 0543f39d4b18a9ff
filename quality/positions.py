"""Symbols with the bytes they came from, for the few documents in which something was found.

The same fold as `taojin.core.text.fold_symbols`, character by character and without its checks: about a third of its
speed. The tests hold the two together, symbol for symbol.
"""

import numpy as np
from numpy.typing import NDArray

from taojin.core.fold import BREAK, CODE_POINT_MASK, LETTER, MULTI, SYMBOL
from taojin.core.jit import kernel

_0 = np.uint64(0)
_1 = np.uint64(1)
_32 = np.uint64(32)
_MASK = np.uint32(CODE_POINT_MASK)
_KIND_SHIFT = np.uint32(21)
# How a run of letters is hashed, as in `taojin.core.text`.
_RUN_SEED = np.uint64(0xCBF29CE484222325)
_RUN_MULTIPLIER = np.uint64(0x9FB21C651E98DF25)


@kernel
def fold_positions(
    data: NDArray[np.uint8],
    start: int,
    end: int,
    table: NDArray[np.uint32],
    expansions: NDArray[np.uint32],
    symbols_S: NDArray[np.uint64],
    first_S: NDArray[np.int64],
    end_S: NDArray[np.int64],
) -> int:
    """`fold_symbols` of a document that is known to be UTF-8, with the bytes of each symbol: data[first_S:end_S] from
    its first character to its last, relative to `start`. Returns their number.

    A character that becomes several symbols (㌔) lends its bytes to each; those that vanish belong to none.
    """
    count = 0
    run = _0
    run_first = 0
    run_end = 0
    i = np.uint64(start)
    stop = np.uint64(end)
    while i < stop:
        begin = int(np.int64(i)) - start
        lead = np.uint32(data[i])
        length = _1
        code_point = lead
        if lead >= np.uint32(0xF0):
            length = np.uint64(4)
            code_point = lead & np.uint32(7)
        elif lead >= np.uint32(0xE0):
            length = np.uint64(3)
            code_point = lead & np.uint32(15)
        elif lead >= np.uint32(0x80):
            length = np.uint64(2)
            code_point = lead & np.uint32(31)
        k = _1
        while k < length:
            code_point = (code_point << np.uint32(6)) | (np.uint32(data[i + k]) & np.uint32(63))
            k += _1
        i += length
        behind = int(np.int64(i)) - start
        entry = table[code_point]
        e = _0
        last = _1
        multiple = entry >> _KIND_SHIFT == np.uint32(MULTI)
        if multiple:
            e = np.uint64(entry & _MASK) + _1
            last = e + np.uint64(expansions[e - _1])
        while e < last:
            if multiple:
                entry = expansions[e]
            kind = entry >> _KIND_SHIFT
            if kind == np.uint32(LETTER):
                if run == _0:
                    run = _RUN_SEED
                    run_first = begin
                run = (run ^ np.uint64(entry & _MASK)) * _RUN_MULTIPLIER
                run_end = behind
            elif kind == np.uint32(SYMBOL) or kind == np.uint32(BREAK):
                if run != _0:
                    symbols_S[count] = run ^ (run >> _32)
                    first_S[count] = run_first
                    end_S[count] = run_end
                    count += 1
                    run = _0
                if kind == np.uint32(SYMBOL):
                    symbols_S[count] = np.uint64(entry & _MASK)
                    first_S[count] = begin
                    end_S[count] = behind
                    count += 1
            e += _1
    if run != _0:
        symbols_S[count] = run ^ (run >> _32)
        first_S[count] = run_first
        end_S[count] = run_end
        count += 1
    return count
