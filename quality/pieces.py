"""One piece of text, without white space or characters that stand alone, into words and marks.

Every function looks at a bounded number of characters or at those it then takes away, so the cost is linear; about 50
to 100 ns a piece. Calls are dear here, so the usual answers are given in line. The rules are told in
`taojin.quality.words`.
"""

import numpy as np
from numpy.typing import NDArray

from taojin.core.jit import inlined, kernel
from taojin.quality.exceptions import LONGEST
from taojin.quality.word_tables import (
    ABSENT,
    CAPITAL,
    CURRENCY,
    DIGIT,
    ENDS_DOT,
    EYES,
    FRONT,
    ICON,
    IS_DOT,
    LETTER,
    NAME,
    OUTER,
    QUOTE,
    SEPARATES,
    SMALL,
    UNIT,
    WHOLE_PIECE,
    hash_span,
    look_up,
)

_0 = np.uint32(0)
_U64_0 = np.uint64(0)
_1 = np.uint64(1)
_2 = np.uint64(2)
_15 = np.uint64(15)
_LOW7 = np.uint64(127)
_LONGEST = np.uint64(LONGEST)
_LONGEST_EMOTICON = np.uint64(5)
_LONGEST_UNIT = np.uint64(4)
_LONGEST_LABEL = np.uint64(64)  # of a host name; its last one 63

_APOSTROPHE = np.uint32(0x27)
_CURLY = np.uint32(0x2019)
_DOT = np.uint32(0x2E)
_COMMA = np.uint32(0x2C)
_COLON = np.uint32(0x3A)
_SLASH = np.uint32(0x2F)
_HYPHEN = np.uint32(0x2D)
_EN_DASH = np.uint32(0x2013)
_EM_DASH = np.uint32(0x2014)
_TILDE = np.uint32(0x7E)
_PLUS = np.uint32(0x2B)
_STAR = np.uint32(0x2A)
_CARET = np.uint32(0x5E)
_ELLIPSIS = np.uint32(0x2026)
_AT = np.uint32(0x40)
_QUERY = np.uint32(0x3F)
_NUMBER_SIGN = np.uint32(0x23)
_LESS = np.uint32(0x3C)
_EQUALS = np.uint32(0x3D)
_GREATER = np.uint32(0x3E)
_DOLLAR = np.uint32(0x24)
_UNDERSCORE = np.uint32(0x5F)
_DEGREE = np.uint32(0xB0)


@inlined
def may_be_exception(
    code_points: NDArray[np.uint32], start: np.uint64, end: np.uint64, gates: NDArray[np.uint32]
) -> bool:
    """False for most pieces that are no exception, by their length and ends."""
    if start >= end or end - start > _LONGEST:
        return False
    first = gates[0, np.uint64(code_points[start]) & _LOW7]
    last = gates[1, np.uint64(code_points[end - _1]) & _LOW7]
    return bool((np.uint64(first & last) >> (end - start)) & _1 != _U64_0)


@kernel
def _cut_exception(
    value: np.uint64,
    start: np.uint64,
    end: np.uint64,
    starts: NDArray[np.uint32],
    ends: NDArray[np.uint32],
    num: np.uint64,
) -> np.uint64:
    parts = value & _15
    before = start
    part = _1
    while part < parts:
        cut = start + ((value >> (np.uint64(4) * part)) & _15)
        starts[num] = np.uint32(before)
        ends[num] = np.uint32(cut)
        num += _1
        before = cut
        part += _1
    starts[num] = np.uint32(before)
    ends[num] = np.uint32(end)
    return num + _1


@kernel
def _front(code_points: NDArray[np.uint32], start: np.uint64, end: np.uint64, classes: NDArray[np.uint32]) -> np.uint64:
    """Length of the mark that comes off the front of a piece, or 0."""
    first = code_points[start]
    kind = classes[first]
    if kind & OUTER != _0:
        return _1
    after = code_points[start + _1] if start + _1 < end else np.uint32(0)
    if kind & FRONT != _0:
        return _1 if first != _PLUS or classes[after] & DIGIT == _0 else _U64_0
    if first == _DOT and after == _DOT:
        j = start + _2
        while j < end and code_points[j] == _DOT:
            j += _1
        return j - start
    # A$ C$ US$
    if first in (np.uint32(0x41), np.uint32(0x43)) and after == _DOLLAR:
        return _2
    if (
        first == np.uint32(0x55)
        and after == np.uint32(0x53)
        and start + _2 < end
        and code_points[start + _2] == _DOLLAR
    ):
        return np.uint64(3)
    return _U64_0


@kernel
def _back(
    code_points: NDArray[np.uint32],
    start: np.uint64,
    end: np.uint64,
    classes: NDArray[np.uint32],
    slots: NDArray[np.uint64],
) -> np.uint64:
    """Length of the mark, unit or 's that comes off the back of a piece, or 0."""
    if start >= end:
        return _U64_0
    last = code_points[end - _1]
    kind = classes[last]
    before = code_points[end - _2] if end - start >= _2 else np.uint32(0)
    kind_before = classes[before] if end - start >= _2 else _0
    if kind & OUTER != _0:
        return _2 if last == _ELLIPSIS and before == _ELLIPSIS else _1
    if last == _DOT:
        if before == _DOT:
            j = end - _2
            while j > start and code_points[j - _1] == _DOT:
                j -= _1
            return end - j
        if kind_before & (DIGIT | SMALL | ENDS_DOT) != _0:
            return _1
        if kind_before & CAPITAL != _0 and end - start >= np.uint64(3):
            third = code_points[end - np.uint64(3)]
            if classes[third] & CAPITAL != _0:
                return _1
            if third == _DEGREE and before in (np.uint32(0x43), np.uint32(0x46), np.uint32(0x4B)):
                return _1
        return _U64_0
    if last in (np.uint32(0x73), np.uint32(0x53)) and before in (_APOSTROPHE, _CURLY):
        return _2
    if kind_before & DIGIT != _0 and (kind & CURRENCY != _0 or last == _PLUS):
        return _1
    # A unit is what stands behind the last digit.
    length = _U64_0
    while length <= _LONGEST_UNIT and start + length < end:
        if classes[code_points[end - _1 - length]] & DIGIT != _0:
            if length > _U64_0 and look_up(hash_span(code_points, end - length, end), slots) & UNIT != _U64_0:
                return length
            break
        length += _1
    return _U64_0


@kernel
def _is_host(code_points: NDArray[np.uint32], start: np.uint64, end: np.uint64, classes: NDArray[np.uint32]) -> bool:
    """Whether [start, end) is name.name.tld with an optional port and path."""
    j = start
    label = start
    dots = _U64_0
    small = True
    while j < end:
        c = code_points[j]
        kind = classes[c]
        if c == _DOT:
            if j == label or j - label > _LONGEST_LABEL:
                return False
            if classes[code_points[label]] & NAME == _0 or classes[code_points[j - _1]] & NAME == _0:
                return False
            dots += _1
            label = j + _1
            small = True
        elif kind & NAME != _0 or c in (_HYPHEN, _UNDERSCORE):
            small = small and kind & SMALL != _0
        else:
            break
        j += _1
    if dots == _U64_0 or not small or j - label < _2 or j - label >= _LONGEST_LABEL:
        return False
    if j < end and code_points[j] == _COLON:
        digits = j + _1
        while digits < end and classes[code_points[digits]] & DIGIT != _0:
            digits += _1
        length = digits - j - _1
        if length < _2 or length > np.uint64(5):
            return False
        j = digits
    return bool(j == end or code_points[j] in (_SLASH, _QUERY, _NUMBER_SIGN))


@kernel
def _is_address(code_points: NDArray[np.uint32], start: np.uint64, end: np.uint64, classes: NDArray[np.uint32]) -> bool:
    """Whether a piece is a web or mail address: [scheme://][user@]host[:port][/path]."""
    after_scheme = start
    last_at = end
    scheme = True
    j = start
    while j < end:
        c = code_points[j]
        if c == _AT:
            last_at = j
        if scheme and classes[c] & (LETTER | DIGIT) == _0 and c not in (_PLUS, _HYPHEN, _DOT, _UNDERSCORE):
            scheme = False
            if (
                c == _COLON
                and j >= start + _2
                and j + _2 < end
                and code_points[j + _1] == _SLASH
                and code_points[j + _2] == _SLASH
            ):
                after_scheme = j + np.uint64(3)
        j += _1
    if _is_host(code_points, after_scheme, end, classes):
        return True
    return bool(last_at < end and last_at > after_scheme) and _is_host(code_points, last_at + _1, end, classes)


@kernel
def _infix(
    code_points: NDArray[np.uint32], i: np.uint64, start: np.uint64, end: np.uint64, classes: NDArray[np.uint32]
) -> np.uint64:
    """Length of the separator at i inside the piece [start, end), or 0."""
    c = code_points[i]
    kind = classes[c]
    if kind & ICON != _0 or c == _ELLIPSIS:
        return _1
    after = classes[code_points[i + _1]] if i + _1 < end else _0
    if c == _DOT and i + _1 < end and code_points[i + _1] == _DOT:
        j = i + _2
        while j < end and code_points[j] == _DOT:
            j += _1
        return j - i
    if i == start:
        return _U64_0
    before = classes[code_points[i - _1]]
    if c == _DOT:
        return _1 if before & (SMALL | QUOTE) != _0 and after & (CAPITAL | QUOTE) != _0 else _U64_0
    if c == _COMMA:
        return _1 if before & after & LETTER != _0 else _U64_0
    if (
        before & DIGIT != _0
        and c in (_PLUS, _HYPHEN, _STAR, _CARET)
        and (after & DIGIT != _0 or (i + _1 < end and code_points[i + _1] == _HYPHEN))
    ):
        return _1
    if before & (LETTER | DIGIT) == _0:
        return _U64_0
    if c in (_COLON, _LESS, _EQUALS, _GREATER, _SLASH):
        return _1 if after & LETTER != _0 else _U64_0
    if c in (_HYPHEN, _EN_DASH, _EM_DASH, _TILDE):
        if after & LETTER != _0:
            return _1
        longest = np.uint64(3) if c == _HYPHEN else _2 if c == _EM_DASH else _1
        length = _1
        while length < longest and i + length < end and code_points[i + length] == c:
            length += _1
            if i + length < end and classes[code_points[i + length]] & LETTER != _0:
                return length
    return _U64_0


@inlined
def split_piece(
    code_points: NDArray[np.uint32],
    start: np.uint64,
    end: np.uint64,
    seen: np.uint32,
    classes: NDArray[np.uint32],
    slots: NDArray[np.uint64],
    gates: NDArray[np.uint32],
    starts: NDArray[np.uint32],
    ends: NDArray[np.uint32],
    num: np.uint64,
) -> np.uint64:
    """Split one piece, append its words and return the new number of words. `seen`: the classes of its characters.

    What comes off the back waits in `ends` at its own code point until the middle is written: there are never more
    words than characters before it, so nothing unread is overwritten.
    """
    lo = start
    hi = end
    first_word = num
    found = ABSENT
    if may_be_exception(code_points, lo, hi, gates):
        found = _exception(code_points, lo, hi, slots)
    # Calls cost more than what most of them would find out: the usual answers are given here.
    while found == ABSENT and lo < hi:
        c = code_points[lo]
        kind = classes[c]
        front = _U64_0
        if kind & OUTER != _0:
            front = _1
        elif kind & FRONT != _0 or c == _DOT or (seen & CURRENCY != _0 and kind & CAPITAL != _0):
            front = _front(code_points, lo, hi, classes)
        if front > _U64_0 and may_be_exception(code_points, lo + front, hi, gates):
            found = _exception(code_points, lo + front, hi, slots)
        back = _U64_0
        if found == ABSENT and lo + front < hi:
            c = code_points[hi - _1]
            kind = classes[c]
            if kind & OUTER != _0 and c != _ELLIPSIS:
                back = _1
            elif kind & OUTER != _0 or c == _DOT or seen & DIGIT != _0 or (seen & QUOTE != _0 and kind & LETTER != _0):
                back = _back(code_points, lo + front, hi, classes, slots)
            if back > _U64_0:
                hi -= back
                ends[hi] = np.uint32(hi + back)
                if may_be_exception(code_points, lo, hi, gates):
                    found = _exception(code_points, lo, hi, slots)
                    if found != ABSENT:
                        break
        if front == _U64_0 and back == _U64_0:
            break
        if front > _U64_0:
            starts[num] = np.uint32(lo)
            ends[num] = np.uint32(lo + front)
            num += _1
            lo += front
        if found == ABSENT and may_be_exception(code_points, lo, hi, gates):
            found = _exception(code_points, lo, hi, slots)
    if lo < hi:
        num = _split_middle(code_points, lo, hi, seen, found, classes, slots, gates, starts, ends, num)
    while hi < end:
        after = np.uint64(ends[hi])
        starts[num] = np.uint32(hi)
        ends[num] = np.uint32(after)
        num += _1
        hi = after
    if seen & EYES != _0 and num - first_word >= _2:
        num = _join_emoticons(code_points, slots, gates, starts, ends, first_word, num)
    return num


@kernel
def _exception(
    code_points: NDArray[np.uint32], start: np.uint64, end: np.uint64, slots: NDArray[np.uint64]
) -> np.uint64:
    """The cuts of the exception that [start, end) is, or 0."""
    value = look_up(hash_span(code_points, start, end), slots)
    return value if value & WHOLE_PIECE != _U64_0 else ABSENT


@inlined
def _split_middle(
    code_points: NDArray[np.uint32],
    lo: np.uint64,
    hi: np.uint64,
    seen: np.uint32,
    found: np.uint64,
    classes: NDArray[np.uint32],
    slots: NDArray[np.uint64],
    gates: NDArray[np.uint32],
    starts: NDArray[np.uint32],
    ends: NDArray[np.uint32],
    num: np.uint64,
) -> np.uint64:
    """What is left of a piece when its ends are off: an exception, an address, or words and separators."""
    i = lo
    if seen & SEPARATES == _0 or found != ABSENT:
        i = hi
    while i < hi and classes[code_points[i]] & SEPARATES == _0:
        i += _1
    before = lo
    if i < hi and not (seen & IS_DOT != _0 and seen & LETTER != _0 and _is_address(code_points, lo, hi, classes)):
        while i < hi:
            if classes[code_points[i]] & SEPARATES != _0:
                length = _infix(code_points, i, lo, hi, classes)
                # A separator at the very front stays with what follows.
                if length > _U64_0 and i > lo:
                    if before < i:
                        found = ABSENT
                        if may_be_exception(code_points, before, i, gates):
                            found = _exception(code_points, before, i, slots)
                        num = _cut_exception(found, before, i, starts, ends, num)
                    starts[num] = np.uint32(i)
                    ends[num] = np.uint32(i + length)
                    num += _1
                    before = i + length
                i += max(length, _1)
            else:
                i += _1
        found = ABSENT
        if before > lo and may_be_exception(code_points, before, hi, gates):
            found = _exception(code_points, before, hi, slots)
    if before < hi:
        num = _cut_exception(found, before, hi, starts, ends, num)
    return num


@kernel
def _join_emoticons(
    code_points: NDArray[np.uint32],
    slots: NDArray[np.uint64],
    gates: NDArray[np.uint32],
    starts: NDArray[np.uint32],
    ends: NDArray[np.uint32],
    first_word: np.uint64,
    num: np.uint64,
) -> np.uint64:
    """Marks of one piece that together are an exception become one, as in ): and 8); the longest from the left."""
    if num - first_word < _2:
        return num
    read = first_word
    write = first_word
    while read < num:
        start = np.uint64(starts[read])
        end = np.uint64(ends[read])
        taken = read
        if gates[2, np.uint64(code_points[start]) & np.uint64(127)] != 0:
            k = read + _1
            while k < num and np.uint64(ends[k]) - start <= _LONGEST_EMOTICON:
                stop = np.uint64(ends[k])
                if (
                    may_be_exception(code_points, start, stop, gates)
                    and _exception(code_points, start, stop, slots) != ABSENT
                ):
                    taken = k
                    end = np.uint64(ends[k])
                k += _1
        starts[write] = np.uint32(start)
        ends[write] = np.uint32(end)
        write += _1
        read = taken + _1
    return write
