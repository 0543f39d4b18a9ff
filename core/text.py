"""Text kernels shared by the stages: UTF-8 bytes → folded symbols, without a Python string.

Array contract: `data` is uint8[…], C order, read-only accepted, as it lies in an Arrow buffer; a document is
data[start:end]. No kernel reads outside [start, end), whatever the bytes. Outputs are allocated by the caller.
Cost: 5–6 ns per Chinese character, 2–3 ns per ASCII letter on one core (bench lane `kernel`).

Indices are uint64 on purpose: numba wraps negative indices of signed ones, which costs a third of the speed here.
"""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from taojin.core.fold import BREAK, CODE_POINT_MASK, LETTER, MULTI, SURROGATE, SYMBOL
from taojin.core.jit import inlined, kernel

_U32 = np.uint32
_U64 = np.uint64
_KIND_SHIFT = np.uint32(21)
_MASK = np.uint32(CODE_POINT_MASK)
_BREAK = np.uint32(BREAK)
_SYMBOL = np.uint32(SYMBOL)
_LETTER = np.uint32(LETTER)
_MULTI = np.uint32(MULTI)
_SURROGATE = np.uint32(SURROGATE)

_0 = np.uint64(0)
_1 = np.uint64(1)
_2 = np.uint64(2)
_3 = np.uint64(3)
_4 = np.uint64(4)
_NO_ERROR = np.uint32(0)
_ERROR = np.uint32(1)
_TAG = np.uint32(0x80)  # a continuation byte is 10xxxxxx
_TAG_MASK = np.uint32(0xC0)
_LOW6 = np.uint32(63)

# A run of letters is hashed character by character (FNV-1a's shape with a 64-bit odd multiplier, and a final shift
# so that its high half reaches the low one); the seed keeps "a" apart from the bare code points of SYMBOL characters.
_RUN_SEED = np.uint64(0xCBF29CE484222325)
_RUN_MULTIPLIER = np.uint64(0x9FB21C651E98DF25)
_HALF = np.uint64(32)

_BASE = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, odd; of shingles

# Symbols a text of n bytes can fold to: U+3316 (3 bytes) becomes six kana, the densest expansion there is.
SYMBOLS_PER_BYTE = 2


@inlined
def mix(x: np.uint64) -> np.uint64:
    """splitmix64's finalizer: a bijection of uint64 whose every output bit depends on every input bit.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014 (constants: variant 13).
    """
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@kernel
def fold_symbols(
    data: NDArray[np.uint8],
    start: int,
    end: int,
    table: NDArray[np.uint32],
    expansions: NDArray[np.uint32],
    symbols: NDArray[np.uint64],
) -> tuple[int, int, bool]:
    """Fold one document into symbols: symbols[0:count] uint64, one per symbol.

    `symbols` needs room for SYMBOLS_PER_BYTE × bytes + 1. Returns (count, code points, valid). Where the bytes are not
    well-formed UTF-8 (Unicode 15, table 3-7) `valid` is False and the symbols mean nothing: the document goes to
    quarantine whole.
    """
    i = _U64(start)
    stop = _U64(end)
    stop3 = stop - _2 if stop >= _2 else _0  # below it, two more bytes belong to the document
    count = _0
    chars = _0
    error = _NO_ERROR
    run = _0
    while i < stop:
        lead = _U32(data[i])
        # Two tight loops take nearly all text: Han and kana with their punctuation, then ASCII.
        while _U32(0xE0) <= lead and lead < _U32(0xF0) and i < stop3:
            b1 = _U32(data[i + _1]) ^ _TAG
            b2 = _U32(data[i + _2]) ^ _TAG
            code_point = ((lead & _U32(15)) << _U32(12)) | ((b1 & _LOW6) << _U32(6)) | (b2 & _LOW6)
            entry = table[code_point]
            kind = entry >> _KIND_SHIFT
            if kind != _SYMBOL and kind != _BREAK:
                break
            error |= ((b1 | b2) & _TAG_MASK) | _U32(code_point < _U32(0x800))
            if run != _0:
                symbols[count] = run ^ (run >> _HALF)
                count += _1
                run = _0
            # Written either way, kept only for a symbol: cheaper than a branch at every comma.
            symbols[count] = _U64(entry & _MASK)
            count += _U64(kind == _SYMBOL)
            chars += _1
            i += _3
            if i >= stop:
                break
            lead = _U32(data[i])
        if i >= stop:
            break
        while lead < _U32(0x80):
            entry = table[lead]
            if entry >> _KIND_SHIFT == _LETTER:
                if run == _0:
                    run = _RUN_SEED
                run = (run ^ _U64(entry & _MASK)) * _RUN_MULTIPLIER
            elif run != _0:
                symbols[count] = run ^ (run >> _HALF)
                count += _1
                run = _0
            chars += _1
            i += _1
            if i >= stop:
                break
            lead = _U32(data[i])
        if i >= stop:
            break

        # Everything else, one character at a time.
        if lead < _U32(0x80):
            continue
        chars += _1
        if _U32(0xC2) <= lead and lead < _U32(0xE0) and i + _1 < stop:
            b1 = _U32(data[i + _1]) ^ _TAG
            error |= b1 & _TAG_MASK
            code_point = ((lead & _U32(31)) << _U32(6)) | (b1 & _LOW6)
            i += _2
        elif _U32(0xE0) <= lead and lead < _U32(0xF0) and i < stop3:
            b1 = _U32(data[i + _1]) ^ _TAG
            b2 = _U32(data[i + _2]) ^ _TAG
            code_point = ((lead & _U32(15)) << _U32(12)) | ((b1 & _LOW6) << _U32(6)) | (b2 & _LOW6)
            error |= ((b1 | b2) & _TAG_MASK) | _U32(code_point < _U32(0x800))
            i += _3
        elif _U32(0xF0) <= lead and lead < _U32(0xF5) and i + _3 < stop:
            b1 = _U32(data[i + _1]) ^ _TAG
            b2 = _U32(data[i + _2]) ^ _TAG
            b3 = _U32(data[i + _3]) ^ _TAG
            code_point = ((lead & _U32(7)) << _U32(18)) | ((b1 & _LOW6) << _U32(12))
            code_point |= ((b2 & _LOW6) << _U32(6)) | (b3 & _LOW6)
            error |= ((b1 | b2 | b3) & _TAG_MASK) | _U32(code_point < _U32(0x10000))
            if code_point > _U32(0x10FFFF):
                error = _ERROR
                code_point = _U32(0)
            i += _4
        else:
            error = _ERROR
            code_point = _U32(0)
            i += _1
        first = _U64(0)
        last = _U64(1)
        entry = table[code_point]
        if entry >> _KIND_SHIFT == _MULTI:
            first = _U64(entry & _MASK) + _1
            last = first + _U64(expansions[first - _1])
        k = first
        while k < last:
            if first != _0:
                entry = expansions[k]
            kind = entry >> _KIND_SHIFT
            if kind == _LETTER:
                if run == _0:
                    run = _RUN_SEED
                run = (run ^ _U64(entry & _MASK)) * _RUN_MULTIPLIER
            elif kind in (_SYMBOL, _BREAK):
                if run != _0:
                    symbols[count] = run ^ (run >> _HALF)
                    count += _1
                    run = _0
                if kind == _SYMBOL:
                    symbols[count] = _U64(entry & _MASK)
                    count += _1
            elif kind == _SURROGATE:
                error = _ERROR
            k += _1
    if run != _0:
        symbols[count] = run ^ (run >> _HALF)
        count += _1
    return int(np.int64(count)), int(np.int64(chars)), bool(error == _NO_ERROR)


@kernel
def roll_shingles(symbols: NDArray[np.uint64], count: int, ngram: int) -> int:
    """Replace symbols[0:count] by its shingle hashes, in place; returns how many there are: max(0, count - ngram +
    1)."""
    if count < ngram:
        return 0
    n = np.uint64(ngram)
    leaving = _1
    for _ in range(ngram):
        leaving *= _BASE
    h = _0
    j = _0
    while j < n:
        h = h * _BASE + symbols[j]
        j += _1
    j = _0
    rest = np.uint64(count) - n
    while j < rest:
        # The difference is off the critical path: one multiplication and one addition of latency per symbol.
        difference = symbols[j + n] - symbols[j] * leaving
        symbols[j] = h
        h = h * _BASE + difference
        j += _1
    symbols[rest] = h
    return count - ngram + 1


def text_buffers(texts: pa.LargeStringArray | pa.LargeBinaryArray) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """(data, offsets): views of the array's buffers; offsets has len(texts) + 1 entries and may not start at 0."""
    _, offsets, data = texts.buffers()
    if len(texts) == 0:
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    offsets_D = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8), offsets_D


def scratch_for(max_document_bytes: int) -> NDArray[np.uint64]:
    """Scratch for `fold_symbols` on documents of at most this many bytes. Pages are touched only as far as used."""
    return np.empty(SYMBOLS_PER_BYTE * max_document_bytes + 1, np.uint64)


@kernel
def hash_bytes(data: NDArray[np.uint8], offsets_D: NDArray[np.int64], out_D: NDArray[np.uint64]) -> None:
    """A 64-bit hash of each byte string (names, not texts): FNV-1a's shape, mixed at the end."""
    for d in range(out_D.size):
        h = _RUN_SEED
        for i in range(offsets_D[d], offsets_D[d + 1]):
            h = (h ^ _U64(data[i])) * _RUN_MULTIPLIER
        out_D[d] = mix(h)
