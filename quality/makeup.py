"""What a document's characters are: fills the rows of CHARACTER_SIGNALS.

One pass counts characters by class (`taojin.quality.characters`), so that all shares come out of one table of counts;
distinct code points are seen by a stamp per code point, so that nothing is cleared between documents; the few
characters whose neighbours matter (addresses, ellipses, wrong decodings, emoji joiners) are listed and looked at after.
Cost: about 2 ns per character.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taojin.core.jit import kernel
from taojin.quality import characters as c
from taojin.quality.signals import INDEX

_U32 = np.uint32
_U64 = np.uint64
_0 = np.uint64(0)
_1 = np.uint64(1)
_2 = np.uint64(2)
_3 = np.uint64(3)

_SPECIAL = np.uint32(c.SPECIAL)
_SYMBOL = np.uint32(c.SYMBOL)
_COUNTED = (
    (INDEX["han_share"], c.HAN),
    (INDEX["kana_share"], c.KANA),
    (INDEX["hangul_share"], c.HANGUL),
    (INDEX["latin_share"], c.LATIN),
    (INDEX["digit_share"], c.DIGIT),
    (INDEX["punctuation_share"], c.PUNCTUATION),
    (INDEX["symbol_share"], c.SYMBOL),
    (INDEX["whitespace_share"], c.SPACE),
    (INDEX["uppercase_share"], c.UPPER),
    (INDEX["alnum_share"], c.LETTER | c.NUMBER),
    (INDEX["special_share"], c.PUNCTUATION | c.SYMBOL | c.DIGIT | c.SPACE),
    (INDEX["bracket_share"], c.BRACKET),
    (INDEX["traditional_share"], c.TRADITIONAL),
    (INDEX["simplified_share"], c.SIMPLIFIED),
    (INDEX["zero_width_share"], c.FORMAT),
    (INDEX["control_share"], c.CONTROL),
    (INDEX["private_use_share"], c.PRIVATE),
    # A divisor, not a signal: its row is written over at the end.
    (INDEX["digit_share_of_words"], c.PUNCTUATION | c.SPACE),
)
_AT = {row: place for place, (row, _) in enumerate(_COUNTED)}
_ROWS = np.array([row for row, _ in _COUNTED], np.int64)
_MASKS = np.array([mask for _, mask in _COUNTED], np.uint32)

_CHARS = INDEX["chars"]
_DIGITS_OF_WORDS = INDEX["digit_share_of_words"]
_URL = INDEX["url_share"]
_LENTICULAR = INDEX["lenticular_share"]
_CURLY = INDEX["curly_brackets"]
_HASHES = INDEX["hash_signs"]
_ELLIPSES = INDEX["ellipses"]
_UNIQUE = INDEX["unique_char_share"]
_TRADITIONAL = INDEX["traditional_share"]
_SIMPLIFIED = INDEX["simplified_share"]
_REPLACEMENT = INDEX["replacement_share"]
_MOJIBAKE = INDEX["mojibake_share"]
_ZERO_WIDTH = INDEX["zero_width_share"]
# Places in _COUNTED.
_HAN_AT = _AT[INDEX["han_share"]]
_DIGITS_AT = _AT[INDEX["digit_share"]]
_WHITE_AT = _AT[INDEX["whitespace_share"]]
_MARKS_AT = _AT[_DIGITS_OF_WORDS]
_TRADITIONAL_AT = _AT[_TRADITIONAL]
_SIMPLIFIED_AT = _AT[_SIMPLIFIED]
_FORMAT_AT = _AT[_ZERO_WIDTH]
# What str.isspace says yes to, all of Unicode; the build's test compares.
_WHITE_SPACE = np.array(
    [
        *range(0x9, 0xE),
        *range(0x1C, 0x21),
        0x85,
        0xA0,
        0x1680,
        *range(0x2000, 0x200B),
        0x2028,
        0x2029,
        0x202F,
        0x205F,
        0x3000,
    ],
    np.int64,
)

# RFC 3986: the ASCII characters an address may hold, as two bitmaps. Others, Chinese ones above all, end it.
_OF_ADDRESSES = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~:/?#[]@!$&'()*+,;=%"
_ADDRESS_LOW = np.uint64(sum(1 << ord(a) for a in _OF_ADDRESSES if ord(a) < 64))
_ADDRESS_HIGH = np.uint64(sum(1 << ord(a) - 64 for a in _OF_ADDRESSES if ord(a) >= 64))

# Lanes of the counts: consecutive characters are of one class more often than not, and an addition to the counter that
# was just written waits for it.
LANES = 4
MAX_CLASSES = 256


class MakeupScratch(NamedTuple):
    """`stamps`: uint32[0x110000] · `counts`: uint32[LANES × MAX_CLASSES], all zero before and after · `places`: uint32,
    one per code point of the longest document and one more."""

    stamps: NDArray[np.uint32]
    counts: NDArray[np.uint32]
    places: NDArray[np.uint32]


def makeup_scratch(max_document_bytes: int) -> MakeupScratch:
    """4.4 MB and 4 bytes per byte of the longest document, for any number of documents with generations 1, 2, 3 …"""
    return MakeupScratch(
        np.zeros(c.NUM_CODE_POINTS, np.uint32),
        np.zeros(LANES * MAX_CLASSES, np.uint32),
        np.empty(max_document_bytes + 1, np.uint32),
    )


@kernel
def _is(code_points: NDArray[np.uint32], at: np.uint64, count: np.uint64, code_point: int) -> bool:
    return bool(at < count and code_points[at] == _U32(code_point))


@kernel
def _letter(code_points: NDArray[np.uint32], at: np.uint64, lower: int) -> bool:
    """Whether this ASCII letter, in either case, stands at `at`."""
    return bool((code_points[at] | _U32(0x20)) == _U32(lower))


@kernel
def _address_start(code_points: NDArray[np.uint32], i: np.uint64, count: np.uint64) -> np.uint64:
    """Where the address begins whose : of http:// or first . of www. stands at i; i + 1 where there is none."""
    if code_points[i] == _U32(0x2E):
        if (
            i >= _3
            and _letter(code_points, i - _1, 0x77)
            and _letter(code_points, i - _2, 0x77)
            and _letter(code_points, i - _3, 0x77)
        ):
            return i - _3
        return i + _1
    if not (_is(code_points, i + _1, count, 0x2F) and _is(code_points, i + _2, count, 0x2F)):
        return i + _1
    p = i
    if p > _0 and _letter(code_points, p - _1, 0x73):
        p -= _1
    if (
        p >= _U64(4)
        and _letter(code_points, p - _1, 0x70)
        and _letter(code_points, p - _2, 0x74)
        and _letter(code_points, p - _3, 0x74)
        and _letter(code_points, p - _U64(4), 0x68)
    ):
        return p - _U64(4)
    return i + _1


@kernel
def _address_end(code_points: NDArray[np.uint32], i: np.uint64, count: np.uint64) -> np.uint64:
    while i < count:
        code_point = _U64(code_points[i])
        if code_point < _U64(64):
            inside = (_ADDRESS_LOW >> code_point) & _1
        elif code_point < _U64(128):
            inside = (_ADDRESS_HIGH >> (code_point - _U64(64))) & _1
        else:
            inside = _0
        if inside == _0:
            break
        i += _1
    return i


@kernel
def _trail(code_point: np.uint32) -> int:
    """What stands for a byte 0x80…0xBF where UTF-8 was read as Windows-1252 (or Latin-1).

    0: no such character · 1: one that also follows letters of good text, as » ” … and š œ · 2: another.
    """
    if code_point < _U32(0x80):
        return 0
    if code_point <= _U32(0xBF):
        return 1 if code_point in (_U32(0xA0), _U32(0xBB)) else 2
    if code_point in (_U32(0x20AC), _U32(0x2C6), _U32(0x2DC), _U32(0x2021), _U32(0x2030)):
        return 2
    if code_point in (
        _U32(0x152), _U32(0x153), _U32(0x160), _U32(0x161), _U32(0x178), _U32(0x17D), _U32(0x17E), _U32(0x192),
        _U32(0x2013), _U32(0x2014), _U32(0x2018), _U32(0x2019), _U32(0x201A), _U32(0x201C), _U32(0x201D), _U32(0x201E),
        _U32(0x2020), _U32(0x2022), _U32(0x2026), _U32(0x2039), _U32(0x203A), _U32(0x2122),
    ):  # fmt: skip
        return 1
    return 0


@kernel
def _mojibake(code_points: NDArray[np.uint32], i: np.uint64, count: np.uint64) -> np.uint64:
    """How many characters from i on only a wrong decoding makes; 0 for none.

    UTF-8 read as Windows-1252: the right number of trail bytes after what looks like a lead byte, one of them at least
    no mark that closes a word. UTF-8's U+FFFD read as GBK: 锟斤拷. Uninitialised memory read as GBK: 烫烫烫, 屯屯屯.
    """
    lead = code_points[i]
    if lead == _U32(0x951F):
        return _3 if _is(code_points, i + _1, count, 0x65A4) and _is(code_points, i + _2, count, 0x62F7) else _0
    if lead in (_U32(0x70EB), _U32(0x5C6F)):
        length = _1
        while i + length < count and code_points[i + length] == lead:
            length += _1
        return length if length >= _3 else _0
    if lead < _U32(0xC2) or lead > _U32(0xF0):
        return _0
    trails = _1
    if lead == _U32(0xF0):
        trails = _3
    elif lead >= _U32(0xE0):
        trails = _2
    elif lead not in (_U32(0xC2), _U32(0xC3), _U32(0xD0), _U32(0xD1)):
        return _0
    if i + trails >= count:
        return _0
    best = 0
    k = _1
    while k <= trails:
        kind = _trail(code_points[i + k])
        if kind == 0:
            return _0
        best = max(best, kind)
        k += _1
    # Â and a no-break space is the commonest of all, and no word ends so.
    if trails == _1 and code_points[i + _1] == _U32(0xA0):
        best = 2
    return trails + _1 if best == 2 else _0


@kernel
def measure_characters(
    code_points: NDArray[np.uint32],
    count: int,
    classes: NDArray[np.uint8],
    flags_C: NDArray[np.uint32],
    stamps: NDArray[np.uint32],
    generation: int,
    counts: NDArray[np.uint32],
    places: NDArray[np.uint32],
    values_S: NDArray[np.float32],
) -> None:
    """Write the rows of CHARACTER_SIGNALS of code_points[0:count] into values_S, count > 0.

    `classes`, `flags_C`: `taojin.quality.characters.CharacterClasses`; `stamps` … `places`: MakeupScratch. `generation`
    is above 0 and differs from that of every document measured with the same `stamps`.
    """
    size = _U64(count)
    stamp = _U32(generation)
    num_classes = _U64(flags_C.size)
    # Classes are in the order of their flags, and few flags are above SPECIAL.
    special = _U64(np.searchsorted(flags_C, _SPECIAL))
    for k_white in range(_WHITE_SPACE.size):
        stamps[_WHITE_SPACE[k_white]] = stamp  # seen before the first character: not counted
    distinct = _0
    num_places = _0
    i = _0
    while i < size:
        code_point = code_points[i]
        kind = _U64(classes[code_point])
        counts[((i & _3) << _U64(8)) | kind] += _U32(1)
        distinct += _U64(stamps[code_point] != stamp)
        stamps[code_point] = stamp
        # Written for every character, kept for few: no branch is guessed wrong.
        places[num_places] = _U32(i)
        num_places += _U64(kind >= special)
        i += _1

    hashes = 0
    curly = 0
    lenticular = 0
    replacement = 0
    ellipses = 0
    joiners = 0
    url = _0
    mojibake = _0
    dots_until = _0
    url_until = _0
    mojibake_until = _0
    place = _0
    while place < num_places:
        i = _U64(places[place])
        code_point = code_points[i]
        place += _1
        if code_point in (_U32(0x2E), _U32(0x3A)):
            if (
                code_point == _U32(0x2E)
                and i >= dots_until
                and _is(code_points, i + _1, size, 0x2E)
                and _is(code_points, i + _2, size, 0x2E)
            ):
                ellipses += 1
                dots_until = i + _3
            if i >= url_until:
                start = _address_start(code_points, i, size)
                if start < i:
                    url_until = _address_end(code_points, i, size)
                    url += url_until - start
        elif code_point == _U32(0x23):
            hashes += 1
        elif code_point in (_U32(0x7B), _U32(0x7D)):
            curly += 1
        elif code_point in (_U32(0x3010), _U32(0x3011)):
            lenticular += 1
        elif code_point == _U32(0xFFFD):
            replacement += 1
        elif code_point == _U32(0x200D):
            # Inside emoji: after a pictograph, its skin tone or its variation selector, before a pictograph.
            if i > _0 and i + _1 < size:
                before = code_points[i - _1]
                joined = flags_C[classes[before]] & _SYMBOL != _U32(0) or before == _U32(0xFE0F)
                joiners += int(joined and flags_C[classes[code_points[i + _1]]] & _SYMBOL != _U32(0))
        else:
            ellipses += int(code_point == _U32(0x2026))
            if i >= mojibake_until:
                length = _mojibake(code_points, i, size)
                mojibake += length
                mojibake_until = i + length

    total = np.float64(count)
    sums = np.zeros(_ROWS.size, np.int64)
    k = _0
    while k < num_classes:
        number = np.int64(0)
        for lane in range(LANES):
            at = (_U64(lane) << _U64(8)) | k
            number += np.int64(counts[at])
            counts[at] = _U32(0)
        if number:
            flags = flags_C[k]
            for row in range(_ROWS.size):
                if flags & _MASKS[row]:
                    sums[row] += number
        k += _1
    for row in range(_ROWS.size):
        values_S[_ROWS[row]] = sums[row] / total
    white = int(sums[_WHITE_AT])
    # Punctuation and white space never meet in a character, so these are the others.
    of_words = count - sums[_MARKS_AT]
    han = sums[_HAN_AT]
    values_S[_CHARS] = total
    values_S[_DIGITS_OF_WORDS] = sums[_DIGITS_AT] / max(of_words, 1)
    values_S[_URL] = np.float64(url) / total
    values_S[_LENTICULAR] = lenticular / total
    values_S[_CURLY] = curly
    values_S[_HASHES] = hashes
    values_S[_ELLIPSES] = ellipses
    values_S[_UNIQUE] = np.float64(distinct) / max(count - white, 1)
    values_S[_TRADITIONAL] = sums[_TRADITIONAL_AT] / max(han, 1)
    values_S[_SIMPLIFIED] = sums[_SIMPLIFIED_AT] / max(han, 1)
    values_S[_REPLACEMENT] = replacement / total
    values_S[_MOJIBAKE] = np.float64(mojibake) / total
    values_S[_ZERO_WIDTH] = (sums[_FORMAT_AT] - joiners) / total
