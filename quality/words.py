"""Words and marks of a document: code points → spans, hashes and flags.

White space separates. A character of a script written without spaces is a word by itself. What is left between two of
either is a *piece*, which is split as spaCy's English tokenizer does, because the published quality rules were
calibrated on its counts (datatrove's `SpaCyTokenizer("en")`): punctuation and symbols come off both ends, one mark each
but dots, which stay together; a hyphen, slash, colon, < > = between letters, a comma between letters, a dot between a
small and a capital letter separate; so do + - * ^ between digits; units, currency and 's come off; exceptions
(`taojin.quality.exceptions`) and web addresses stay as listed. Left out: addresses by IP number, and exceptions
that span white space. Ends come off in one loop, and every look at a piece is bounded or ends in what it looked at, so
the cost is linear whatever the text is.

Cost: about 3 ns per ASCII character, 7 ns per Chinese character. `count` words at most; outputs are the caller's, of
`count` entries. Segmented Chinese (`taojin.quality.segment`) is made of the same arrays.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import config
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array
from numpy.typing import NDArray

from taojin.core.jit import inlined, kernel
from taojin.core.text import mix
from taojin.quality import characters
from taojin.quality.exceptions import LONGEST, exceptions, units
from taojin.quality.signals import INDEX

# Flags of a word.
HAS_LETTER = 1  # str.isalpha of some character
IS_MARK = 2  # nothing but what datatrove counts as punctuation
ALONE_SYMBOL = 4  # one character of a script written without spaces

# Classes of a code point, uint32.
SPACE_CLASS = np.uint32(1 << 0)
_ALONE = np.uint32(1 << 1)
_LETTER = np.uint32(1 << 2)
_DIGIT = np.uint32(1 << 3)  # 0–9
_SMALL = np.uint32(1 << 4)  # small letters, and letters of scripts without case
_CAPITAL = np.uint32(1 << 5)  # capital letters, and letters of scripts without case
_OUTER = np.uint32(1 << 6)  # comes off either end
_FRONT = np.uint32(1 << 7)  # comes off the front alone
_ENDS_DOT = np.uint32(1 << 8)  # a dot after it comes off: not a letter or digit
_QUOTE = np.uint32(1 << 9)
_ICON = np.uint32(1 << 10)  # a mark wherever it stands
_MARK = np.uint32(1 << 11)
_CURRENCY = np.uint32(1 << 12)  # comes off after a digit
_RUN = np.uint32(1 << 13)  # letters and numbers: what a run of `symbols` is made of
_BREAK = np.uint32(1 << 14)  # ends such a run; combining and format characters do neither
_NAME = np.uint32(1 << 15)  # may stand in the host of an address
_EYES = np.uint32(1 << 16)  # one of them is in every exception that joins marks
_SEPARATES = np.uint32(1 << 17)  # may be a separator inside a piece
_IS_DOT = np.uint32(1 << 18)
_0 = np.uint32(0)
# A piece of none of these is one word, exceptions apart.
_SPLITS = _OUTER | _FRONT | _ENDS_DOT | _QUOTE | _ICON | _MARK | _CURRENCY
_EDGE = SPACE_CLASS | _ALONE
_COMES_OFF = _OUTER | _EYES  # of these an emoticon or a contraction could be made

# As spaCy 3.8 lists them in char_classes.py, punctuation.py.
_PUNCTUATION = "…,:;!?¿؟¡()[]{}<>_#*&。？！，、；：～·।،۔؛٪"
_QUOTES = "'\"”“`‘´’‚,„»«「」『』（）〔〕【】《》〈〉⟦⟧"
_CURRENCIES = "$£€¥฿₽﷼₴" + "".join(map(chr, range(0x20A0, 0x20C0)))
_FRONTS = "§%=+"
_DASHES = "—–"
_SEPARATORS = ".,…:<>=/-–—~+*^"
_EYES_LISTED = ":;=8<>^@'’°\\"
# Symbols of Unicode that are not So, which spaCy leaves inside words: the mathematical, modifier and currency ones.
_NOT_ICONS = (
    (0x00, 0xA5), (0xA8, 0xA8), (0xAC, 0xAC), (0xAF, 0xAF), (0xB1, 0xB1), (0xB4, 0xB4), (0xB8, 0xB8), (0xD7, 0xD7),
    (0xF7, 0xF7), (0x2C2, 0x385), (0x3F6, 0x3F6), (0x1FBD, 0x1FFE), (0x2044, 0x2052), (0x207A, 0x208C),
    (0x20A0, 0x20CF), (0x2140, 0x2144), (0x214B, 0x214B), (0x2190, 0x2194), (0x219A, 0x219B), (0x2200, 0x22FF),
    (0x2320, 0x2321), (0x25B7, 0x25B7), (0x25C1, 0x25C1), (0x266F, 0x266F), (0x27C0, 0x27FF), (0x2900, 0x2AFF),
    (0xA700, 0xA721), (0xFE62, 0xFE69), (0xFF04, 0xFF5E), (0xFFE0, 0xFFE3), (0x1F3FB, 0x1F3FF),
)  # fmt: skip
# Scripts whose letters spaCy knows and that have case (blocks); letters of any other script count as both cases.
_CASED = ((0x41, 0x58F), (0x1D00, 0x1FFF), (0x2C00, 0x2DFF), (0xA640, 0xA7FF), (0xAB30, 0xAB6F), (0xFB00, 0xFB06),
          (0xFF21, 0xFF5A))  # fmt: skip
# datatrove 0.10 utils/text.py counts these, sentence ends of all scripts and control characters as punctuation: not
# every mark of Unicode, and a dash or bullet that is missing here makes a word.
_MARKS = (
    "!/—”:％１〈&(、━\\【#%「」，】；+^]~“《„';’{|∶´[=-`*．（–？！：$～«〉,><》)?）。…@_.\"}►»"
    "؝؞܀܂߹࠷࠹࠽࠾៖៚᠃᠉᰻᰼᱾᱿‼‽⁇⁈⁉⸼⹓⹔꛷꣎꣏꩝꩞꩟"
)
_MARK_CONTROLS = ((0, 8), (11, 12), (13, 31), (127, 159))

_SLOTS = 4096  # of the hash table of exceptions, a third full
_WHOLE_PIECE = np.uint64(1 << 62)
_UNIT = np.uint64(1 << 63)
_ABSENT = np.uint64(0)

_SEED = np.uint64(0xCBF29CE484222325)
_MULTIPLIER = np.uint64(0x9FB21C651E98DF25)
_HALF = np.uint64(32)
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


class WordTables(NamedTuple):
    """What the kernels look up.

    classes: uint32[0x110000] · exceptions: uint64[2, _SLOTS], hash and places to cut (4 bits each, the number
    of parts lowest), open addressing · gates: uint32[3, 128], by code point modulo 128: the lengths of the exceptions
    that begin with it, of those that end with it, and whether an emoticon begins with it
    """

    classes: NDArray[np.uint32]
    exceptions: NDArray[np.uint64]
    gates: NDArray[np.uint32]


@kernel
def hash_span(code_points: NDArray[np.uint32], start: np.uint64, end: np.uint64) -> np.uint64:
    """64-bit hash of code_points[start:end]: FNV-1a's shape over code points, mixed at the end."""
    h = _SEED
    j = start
    while j < end:
        h = (h ^ np.uint64(code_points[j])) * _MULTIPLIER
        j += _1
    return mix(h)


def _uncounted() -> Any:
    """A function for kernels: the same array without its reference count.

    numba counts references at every call that passes an array and every name that holds one: up to 200 ns a piece of
    text here, where the arrays outlive the kernel anyway. An array without an owner is not counted.
    """
    if config.DISABLE_JIT:
        return lambda array: array

    @intrinsic  # type: ignore[untyped-decorator]
    def borrow(_: Any, array: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            borrowed = make_array(signature.return_type)(context, builder, arguments[0])
            borrowed.meminfo = cgutils.get_null_value(borrowed.meminfo.type)
            return borrowed._getvalue()

        return array(array), generate

    return borrow


_borrow = _uncounted()


@cache
def load_word_tables() -> WordTables:
    """Made once per process, about 30 ms."""
    return WordTables(_make_classes(), *_make_exceptions())


def _make_classes() -> NDArray[np.uint32]:
    table = characters.load_character_table()

    def has(flags: int) -> NDArray[np.bool_]:
        return (table & np.uint32(flags)) != 0

    def listed(text: str) -> NDArray[np.bool_]:
        found = np.zeros(table.size, np.bool_)
        found[[ord(character) for character in text]] = True
        return found

    def inside(ranges: tuple[tuple[int, int], ...]) -> NDArray[np.bool_]:
        found = np.zeros(table.size, np.bool_)
        for first, last in ranges:
            found[first : last + 1] = True
        return found

    alone = has(characters.ALONE)
    letter = has(characters.LETTER)
    upper = has(characters.UPPER)
    cased = inside(_CASED)
    digit = inside(((0x30, 0x39),))
    icon = has(characters.SYMBOL) & ~inside(_NOT_ICONS)
    outer = listed(_PUNCTUATION + _QUOTES + _DASHES) | icon
    classes = np.zeros(table.size, np.uint32)
    for flag, holds in (
        (SPACE_CLASS, has(characters.SPACE)),
        (_ALONE, alone),
        (_LETTER, letter),
        (_DIGIT, digit),
        (_SMALL, letter & ~(cased & upper)),
        (_CAPITAL, letter & (upper | ~cased)),
        (_OUTER, outer),
        (_FRONT, listed(_FRONTS + _CURRENCIES)),
        (_ENDS_DOT, listed(_PUNCTUATION + _QUOTES + "%²-+|")),
        (_QUOTE, listed(_QUOTES)),
        (_ICON, icon),
        (_MARK, listed(_MARKS) | inside(_MARK_CONTROLS) | has(characters.STOP)),
        (_CURRENCY, listed(_CURRENCIES)),
        (_RUN, has(characters.LETTER | characters.NUMBER) & ~alone),
        (_BREAK, has(characters.SPACE | characters.PUNCTUATION | characters.SYMBOL | characters.CONTROL) | alone),
        (_EYES, listed(_EYES_LISTED)),
        (_IS_DOT, listed(".")),
        (_SEPARATES, listed(_SEPARATORS) | icon),
        (_NAME, inside(((0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A), (0xA1, 0xFFFF)))),
    ):
        classes[holds] |= flag
    classes.flags.writeable = False
    return classes


def _make_exceptions() -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    slots = np.zeros((2, _SLOTS), np.uint64)
    gates = np.zeros((3, 128), np.uint32)
    values: dict[str, int] = {}
    for piece, parts in exceptions().items():
        cut = 0
        value = int(_WHOLE_PIECE) | len(parts)
        for number, part in enumerate(parts[:-1], 1):
            cut += len(part)
            value |= cut << (4 * number)
        values[piece] = value
    for unit in units():
        values[unit] = values.get(unit, 0) | int(_UNIT)
    for piece, value in values.items():
        code_points = np.array([ord(character) for character in piece], np.uint32)
        key = int(hash_span(code_points, _U64_0, np.uint64(len(piece))))
        slot = key % _SLOTS
        while slots[1, slot]:
            slot = (slot + 1) % _SLOTS
        slots[:, slot] = key, value
        if value & int(_WHOLE_PIECE):
            gates[0, code_points[0] % 128] |= np.uint32(1 << len(piece))
            gates[1, code_points[-1] % 128] |= np.uint32(1 << len(piece))
            if len(piece) <= int(_LONGEST_EMOTICON) and not piece[0].isalpha():
                gates[2, code_points[0] % 128] = 1
    return slots, gates


@kernel
def _look_up(key: np.uint64, slots: NDArray[np.uint64]) -> np.uint64:
    """What is known of the piece with this hash: its cuts, _WHOLE_PIECE and _UNIT, or 0."""
    slot = key % np.uint64(_SLOTS)
    while slots[1, slot] != _ABSENT and slots[0, slot] != key:
        slot = (slot + _1) % np.uint64(_SLOTS)
    return slots[1, slot]


@inlined
def _may_be_exception(
    code_points: NDArray[np.uint32], start: np.uint64, end: np.uint64, gates: NDArray[np.uint32]
) -> bool:
    """False for most pieces that are no exception, by their length and ends."""
    return (
        start < end
        and end - start <= _LONGEST
        and (
            np.uint64(
                gates[0, np.uint64(code_points[start]) & _LOW7] & gates[1, np.uint64(code_points[end - _1]) & _LOW7]
            )
            >> (end - start)
        )
        & _1
        != _U64_0
    )


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
    if kind & _OUTER != _0:
        return _1
    after = code_points[start + _1] if start + _1 < end else np.uint32(0)
    if kind & _FRONT != _0:
        return _1 if first != _PLUS or classes[after] & _DIGIT == _0 else _U64_0
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
    if kind & _OUTER != _0:
        return _2 if last == _ELLIPSIS and before == _ELLIPSIS else _1
    if last == _DOT:
        if before == _DOT:
            j = end - _2
            while j > start and code_points[j - _1] == _DOT:
                j -= _1
            return end - j
        if kind_before & (_DIGIT | _SMALL | _ENDS_DOT) != _0:
            return _1
        if kind_before & _CAPITAL != _0 and end - start >= np.uint64(3):
            third = code_points[end - np.uint64(3)]
            if classes[third] & _CAPITAL != _0:
                return _1
            if third == _DEGREE and before in (np.uint32(0x43), np.uint32(0x46), np.uint32(0x4B)):
                return _1
        return _U64_0
    if last in (np.uint32(0x73), np.uint32(0x53)) and before in (_APOSTROPHE, _CURLY):
        return _2
    if kind_before & _DIGIT != _0 and (kind & _CURRENCY != _0 or last == _PLUS):
        return _1
    # A unit is what stands behind the last digit.
    length = _U64_0
    while length <= _LONGEST_UNIT and start + length < end:
        if classes[code_points[end - _1 - length]] & _DIGIT != _0:
            if length > _U64_0 and _look_up(hash_span(code_points, end - length, end), slots) & _UNIT != _U64_0:
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
            if classes[code_points[label]] & _NAME == _0 or classes[code_points[j - _1]] & _NAME == _0:
                return False
            dots += _1
            label = j + _1
            small = True
        elif kind & _NAME != _0 or c in (_HYPHEN, _UNDERSCORE):
            small = small and kind & _SMALL != _0
        else:
            break
        j += _1
    if dots == _U64_0 or not small or j - label < _2 or j - label >= _LONGEST_LABEL:
        return False
    if j < end and code_points[j] == _COLON:
        digits = j + _1
        while digits < end and classes[code_points[digits]] & _DIGIT != _0:
            digits += _1
        length = digits - j - _1
        if length < _2 or length > np.uint64(5):
            return False
        j = digits
    return j == end or code_points[j] in (_SLASH, _QUERY, _NUMBER_SIGN)


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
        if scheme and classes[c] & (_LETTER | _DIGIT) == _0 and c not in (_PLUS, _HYPHEN, _DOT, _UNDERSCORE):
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
    return last_at < end and last_at > after_scheme and _is_host(code_points, last_at + _1, end, classes)


@kernel
def _infix(
    code_points: NDArray[np.uint32], i: np.uint64, start: np.uint64, end: np.uint64, classes: NDArray[np.uint32]
) -> np.uint64:
    """Length of the separator at i inside the piece [start, end), or 0."""
    c = code_points[i]
    kind = classes[c]
    if kind & _ICON != _0 or c == _ELLIPSIS:
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
        return _1 if before & (_SMALL | _QUOTE) != _0 and after & (_CAPITAL | _QUOTE) != _0 else _U64_0
    if c == _COMMA:
        return _1 if before & after & _LETTER != _0 else _U64_0
    if (
        before & _DIGIT != _0
        and c in (_PLUS, _HYPHEN, _STAR, _CARET)
        and (after & _DIGIT != _0 or (i + _1 < end and code_points[i + _1] == _HYPHEN))
    ):
        return _1
    if before & (_LETTER | _DIGIT) == _0:
        return _U64_0
    if c in (_COLON, _LESS, _EQUALS, _GREATER, _SLASH):
        return _1 if after & _LETTER != _0 else _U64_0
    if c in (_HYPHEN, _EN_DASH, _EM_DASH, _TILDE):
        if after & _LETTER != _0:
            return _1
        longest = np.uint64(3) if c == _HYPHEN else _2 if c == _EM_DASH else _1
        length = _1
        while length < longest and i + length < end and code_points[i + length] == c:
            length += _1
            if i + length < end and classes[code_points[i + length]] & _LETTER != _0:
                return length
    return _U64_0


@inlined
def _split_piece(
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
    found = _ABSENT
    if _may_be_exception(code_points, lo, hi, gates):
        found = _exception(code_points, lo, hi, slots)
    # Calls cost more than what most of them would find out: the usual answers are given here.
    while found == _ABSENT and lo < hi:
        c = code_points[lo]
        kind = classes[c]
        front = _U64_0
        if kind & _OUTER != _0:
            front = _1
        elif kind & _FRONT != _0 or c == _DOT or (seen & _CURRENCY != _0 and kind & _CAPITAL != _0):
            front = _front(code_points, lo, hi, classes)
        if front > _U64_0 and _may_be_exception(code_points, lo + front, hi, gates):
            found = _exception(code_points, lo + front, hi, slots)
        back = _U64_0
        if found == _ABSENT and lo + front < hi:
            c = code_points[hi - _1]
            kind = classes[c]
            if kind & _OUTER != _0 and c != _ELLIPSIS:
                back = _1
            elif (
                kind & _OUTER != _0
                or c == _DOT
                or seen & _DIGIT != _0
                or (seen & _QUOTE != _0 and kind & _LETTER != _0)
            ):
                back = _back(code_points, lo + front, hi, classes, slots)
            if back > _U64_0:
                hi -= back
                ends[hi] = np.uint32(hi + back)
                if _may_be_exception(code_points, lo, hi, gates):
                    found = _exception(code_points, lo, hi, slots)
                    if found != _ABSENT:
                        break
        if front == _U64_0 and back == _U64_0:
            break
        if front > _U64_0:
            starts[num] = np.uint32(lo)
            ends[num] = np.uint32(lo + front)
            num += _1
            lo += front
        if found == _ABSENT and _may_be_exception(code_points, lo, hi, gates):
            found = _exception(code_points, lo, hi, slots)
    if lo < hi:
        num = _split_middle(code_points, lo, hi, seen, found, classes, slots, gates, starts, ends, num)
    while hi < end:
        after = np.uint64(ends[hi])
        starts[num] = np.uint32(hi)
        ends[num] = np.uint32(after)
        num += _1
        hi = after
    if seen & _EYES != _0 and num - first_word >= _2:
        num = _join_emoticons(code_points, slots, gates, starts, ends, first_word, num)
    return num


@kernel
def _exception(
    code_points: NDArray[np.uint32], start: np.uint64, end: np.uint64, slots: NDArray[np.uint64]
) -> np.uint64:
    """The cuts of the exception that [start, end) is, or 0."""
    value = _look_up(hash_span(code_points, start, end), slots)
    return value if value & _WHOLE_PIECE != _U64_0 else _ABSENT


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
    if seen & _SEPARATES == _0 or found != _ABSENT:
        i = hi
    while i < hi and classes[code_points[i]] & _SEPARATES == _0:
        i += _1
    before = lo
    if i < hi and not (seen & _IS_DOT != _0 and seen & _LETTER != _0 and _is_address(code_points, lo, hi, classes)):
        while i < hi:
            if classes[code_points[i]] & _SEPARATES != _0:
                length = _infix(code_points, i, lo, hi, classes)
                # A separator at the very front stays with what follows.
                if length > _U64_0 and i > lo:
                    if before < i:
                        found = _ABSENT
                        if _may_be_exception(code_points, before, i, gates):
                            found = _exception(code_points, before, i, slots)
                        num = _cut_exception(found, before, i, starts, ends, num)
                    starts[num] = np.uint32(i)
                    ends[num] = np.uint32(i + length)
                    num += _1
                    before = i + length
                i += max(length, _1)
            else:
                i += _1
        found = _ABSENT
        if before > lo and _may_be_exception(code_points, before, hi, gates):
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
                    _may_be_exception(code_points, start, stop, gates)
                    and _exception(code_points, start, stop, slots) != _ABSENT
                ):
                    taken = k
                    end = np.uint64(ends[k])
                k += _1
        starts[write] = np.uint32(start)
        ends[write] = np.uint32(end)
        write += _1
        read = taken + _1
    return write


@inlined
def _describe(
    code_points: NDArray[np.uint32],
    starts: NDArray[np.uint32],
    ends: NDArray[np.uint32],
    first_word: np.uint64,
    num: np.uint64,
    classes: NDArray[np.uint32],
    hashes: NDArray[np.uint64],
    flags: NDArray[np.uint8],
) -> None:
    """Hash and flags of the spans [starts[w], ends[w]), first_word <= w < num."""
    w = first_word
    while w < num:
        j = np.uint64(starts[w])
        end = np.uint64(ends[w])
        alone = end - j == _1 and classes[code_points[j]] & _ALONE != _0
        any_of = _0
        all_of = _MARK
        h = _SEED
        while j < end:
            kind = classes[code_points[j]]
            any_of |= kind
            all_of &= kind
            h = (h ^ np.uint64(code_points[j])) * _MULTIPLIER
            j += _1
        hashes[w] = mix(h)
        flags[w] = _flags(any_of, all_of, alone)
        w += _1


@kernel
def describe_words(
    code_points: NDArray[np.uint32],
    starts: NDArray[np.uint32],
    ends: NDArray[np.uint32],
    num: int,
    classes: NDArray[np.uint32],
    hashes: NDArray[np.uint64],
    flags: NDArray[np.uint8],
) -> None:
    """Hash and flags of the spans [starts[w], ends[w]), w < num."""
    _describe(code_points, starts, ends, _U64_0, np.uint64(num), classes, hashes, flags)


@inlined
def _flags(any_of: np.uint32, all_of: np.uint32, alone: bool) -> np.uint8:
    """Flags of a word: the classes of any and of all of its characters."""
    return np.uint8(
        np.uint8(any_of & _LETTER != _0) * HAS_LETTER
        + np.uint8(all_of & _MARK != _0) * IS_MARK
        + np.uint8(alone) * ALONE_SYMBOL
    )


@kernel
def split_words(
    code_points: NDArray[np.uint32],
    count: int,
    tables: WordTables,
    starts: NDArray[np.uint32],
    ends: NDArray[np.uint32],
    hashes: NDArray[np.uint64],
    flags: NDArray[np.uint8],
) -> int:
    """Split code_points[0:count] into words and marks; returns their number, `count` at most.

    Word w is code_points[starts[w]:ends[w]], in ascending order, disjoint, covering all but white space. hashes: equal
    for equal strings, case kept. flags: HAS_LETTER, IS_MARK, ALONE_SYMBOL. Entries behind the last word are scratch.
    """
    code_points = _borrow(code_points)
    starts = _borrow(starts)
    ends = _borrow(ends)
    hashes = _borrow(hashes)
    flags = _borrow(flags)
    classes = _borrow(tables.classes)
    slots = _borrow(tables.exceptions)
    gates = _borrow(tables.gates)
    stop = np.uint64(count)
    num = _U64_0
    i = _U64_0
    while i < stop:
        c = code_points[i]
        kind = classes[c]
        if kind & SPACE_CLASS != _0:
            i += _1
            continue
        start = i
        h = (_SEED ^ np.uint64(c)) * _MULTIPLIER
        i += _1
        if kind & _ALONE != _0:
            starts[num] = np.uint32(start)
            ends[num] = np.uint32(i)
            hashes[num] = mix(h)
            flags[num] = _flags(kind, kind, True)
            num += _1
            continue
        # One pass hashes the piece and collects its classes, with and without the last character.
        inner = _0
        inner_h = h
        before_last = _0
        last = kind
        while i < stop:
            c = code_points[i]
            kind = classes[c]
            if kind & _EDGE != _0:
                break
            inner |= last
            inner_h = h
            before_last = last
            last = kind
            h = (h ^ np.uint64(c)) * _MULTIPLIER
            i += _1
        end = i
        length = end - start
        mark = _U64_0  # 1 where the last character is a mark that comes off
        if length == _1:
            plain = True
        else:
            plain = (inner | last) & _SPLITS == _0
            if (
                inner & (_SPLITS | _DIGIT) == _0
                and (last & _COMES_OFF == _OUTER or (last & _IS_DOT != _0 and before_last & _SMALL != _0))
                and not (_may_be_exception(code_points, start, end, gates) and _look_up(mix(h), slots) != _ABSENT)
            ):
                plain = True
                mark = _1
            elif plain and (inner | last) & _DIGIT != _0 and (inner | last) & _LETTER != _0:
                plain = False
        key = mix(inner_h if mark != _U64_0 else h)
        if plain and _may_be_exception(code_points, start, end - mark, gates):
            plain = _look_up(key, slots) & _15 < _2
        if not plain:
            before = num
            num = _split_piece(code_points, start, end, inner | last, classes, slots, gates, starts, ends, num)
            _describe(code_points, starts, ends, before, num, classes, hashes, flags)
            continue
        starts[num] = np.uint32(start)
        ends[num] = np.uint32(end - mark)
        hashes[num] = key
        if mark != _U64_0:
            flags[num] = _flags(inner, _0, False)
            num += _1
            starts[num] = np.uint32(end - _1)
            ends[num] = np.uint32(end)
            hashes[num] = mix((_SEED ^ np.uint64(code_points[end - _1])) * _MULTIPLIER)
            inner = _0
        flags[num] = _flags(inner | last, last if length == _1 or mark != _U64_0 else _0, False)
        num += _1
    return int(np.int64(num))


_1_32 = np.uint32(1)
_ALONE_BIT = np.uint32(1)
_RUN_BIT = np.uint32(13)
_BREAK_BIT = np.uint32(14)
_IS_MARK_BIT = np.uint64(1)
_SYMBOLS = INDEX["symbols"]
_WORDS = INDEX["words"]
_WORDS_AND_MARKS = INDEX["words_and_marks"]
_MEAN_WORD_LENGTH = INDEX["mean_word_length"]
_LONGEST_WORD = INDEX["longest_word"]
_ALPHA_WORD_SHARE = INDEX["alpha_word_share"]
_PER_WORD = (
    (INDEX["hash_per_word"], INDEX["hash_signs"]),
    (INDEX["ellipsis_per_word"], INDEX["ellipses"]),
    (INDEX["newlines_per_word"], INDEX["newlines"]),
)


@kernel
def measure_words(
    code_points: NDArray[np.uint32],
    count: int,
    tables: WordTables,
    starts: NDArray[np.uint32],
    ends: NDArray[np.uint32],
    flags: NDArray[np.uint8],
    num: int,
    values_S: NDArray[np.float32],
) -> None:
    """Fill the rows of WORD_SIGNALS. The rows hash_signs, ellipses and newlines must be filled before.

    As in datatrove's GopherQualityFilter: number and mean length are of words, shares are of words and marks.
    """
    classes = tables.classes
    # Without branches: words are too short for them to be foreseen.
    symbols = _0
    in_run = _0
    i = _U64_0
    while i < np.uint64(count):
        kind = classes[code_points[i]]
        run = (kind >> _RUN_BIT) & _1_32
        symbols += ((kind >> _ALONE_BIT) & _1_32) + (run & ~in_run)
        in_run = run | (in_run & ~(kind >> _BREAK_BIT))
        i += _1
    words = _U64_0
    with_letter = _U64_0
    longest = _U64_0
    total = _U64_0
    w = _U64_0
    while w < np.uint64(num):
        flag = np.uint64(flags[w])
        word = _1 - ((flag >> _IS_MARK_BIT) & _1)
        length = np.uint64(ends[w] - starts[w]) * word
        with_letter += flag & _1
        words += word
        total += length
        longest = max(longest, length)
        w += _1
    values_S[_SYMBOLS] = np.float32(symbols)
    values_S[_WORDS] = np.float32(words)
    values_S[_WORDS_AND_MARKS] = num
    values_S[_MEAN_WORD_LENGTH] = np.float32(total) / np.float32(max(words, _1))
    values_S[_LONGEST_WORD] = np.float32(longest)
    values_S[_ALPHA_WORD_SHARE] = np.float32(with_letter) / np.float32(max(num, 1))
    for per_word, number in _PER_WORD:
        values_S[per_word] = values_S[number] / np.float32(max(num, 1))
