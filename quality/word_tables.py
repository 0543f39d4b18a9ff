"""Tables of the word splitter: classes of code points, and the exceptions of `taojin.quality.exceptions` by hash.

The classes restate spaCy's English rules (which characters come off a piece's ends, which separate inside it) and
datatrove's list of punctuation, both as facts, on top of the frozen character table. Made in memory, nothing on disk.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import config
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array
from numpy.typing import NDArray

from taojin.core.jit import kernel
from taojin.core.text import mix
from taojin.quality import characters
from taojin.quality.exceptions import exceptions, units

_settings: Any = config  # its names are made at run time
_arrays: Any = make_array
_values: Any = cgutils

# Classes of a code point, uint32.
SPACE = np.uint32(1 << 0)
ALONE = np.uint32(1 << 1)
LETTER = np.uint32(1 << 2)
DIGIT = np.uint32(1 << 3)  # 0–9
SMALL = np.uint32(1 << 4)  # small letters, and letters of scripts without case
CAPITAL = np.uint32(1 << 5)  # capital letters, and letters of scripts without case
OUTER = np.uint32(1 << 6)  # comes off either end
FRONT = np.uint32(1 << 7)  # comes off the front alone
ENDS_DOT = np.uint32(1 << 8)  # a dot after it comes off: not a letter or digit
QUOTE = np.uint32(1 << 9)
ICON = np.uint32(1 << 10)  # a mark wherever it stands
MARK = np.uint32(1 << 11)
CURRENCY = np.uint32(1 << 12)  # comes off after a digit
RUN = np.uint32(1 << 13)  # letters and numbers: what a run of `symbols` is made of
BREAK = np.uint32(1 << 14)  # ends such a run; combining and format characters do neither
NAME = np.uint32(1 << 15)  # may stand in the host of an address
EYES = np.uint32(1 << 16)  # one of them is in every exception that joins marks
SEPARATES = np.uint32(1 << 17)  # may be a separator inside a piece
IS_DOT = np.uint32(1 << 18)
# A piece of none of these is one word, exceptions apart.
SPLITS = OUTER | FRONT | ENDS_DOT | QUOTE | ICON | MARK | CURRENCY
EDGE = SPACE | ALONE
COMES_OFF = OUTER | EYES  # of these an emoticon or a contraction could be made

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

SLOTS = 4096  # of the hash table of exceptions, a third full
WHOLE_PIECE = np.uint64(1 << 62)
UNIT = np.uint64(1 << 63)
ABSENT = np.uint64(0)

SEED = np.uint64(0xCBF29CE484222325)
MULTIPLIER = np.uint64(0x9FB21C651E98DF25)
_LONGEST_EMOTICON = 5
_0 = np.uint64(0)
_1 = np.uint64(1)


class WordTables(NamedTuple):
    """What the kernels look up.

    classes: uint32[0x110000] · exceptions: uint64[2, SLOTS], hash and places to cut (4 bits each, the number
    of parts lowest), open addressing · gates: uint32[3, 128], by code point modulo 128: the lengths of the exceptions
    that begin with it, of those that end with it, and whether an emoticon begins with it
    """

    classes: NDArray[np.uint32]
    exceptions: NDArray[np.uint64]
    gates: NDArray[np.uint32]


@kernel
def hash_span(code_points: NDArray[np.uint32], start: np.uint64, end: np.uint64) -> np.uint64:
    """64-bit hash of code_points[start:end]: FNV-1a's shape over code points, mixed at the end."""
    h = SEED
    j = start
    while j < end:
        h = (h ^ np.uint64(code_points[j])) * MULTIPLIER
        j += _1
    return mix(h)


def _uncounted() -> Any:
    """A function for kernels: the same array without its reference count.

    numba counts references at every call that passes an array and every name that holds one: up to 200 ns a piece of
    text here, where the arrays outlive the kernel anyway. An array without an owner is not counted.
    """
    if _settings.DISABLE_JIT:
        return lambda array: array

    @intrinsic
    def borrow(_: Any, array: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            borrowed = _arrays(signature.return_type)(context, builder, arguments[0])
            borrowed.meminfo = _values.get_null_value(borrowed.meminfo.type)
            return borrowed._getvalue()

        return array(array), generate

    return borrow


borrow = _uncounted()


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
        (SPACE, has(characters.SPACE)),
        (ALONE, alone),
        (LETTER, letter),
        (DIGIT, digit),
        (SMALL, letter & ~(cased & upper)),
        (CAPITAL, letter & (upper | ~cased)),
        (OUTER, outer),
        (FRONT, listed(_FRONTS + _CURRENCIES)),
        (ENDS_DOT, listed(_PUNCTUATION + _QUOTES + "%²-+|")),
        (QUOTE, listed(_QUOTES)),
        (ICON, icon),
        (MARK, listed(_MARKS) | inside(_MARK_CONTROLS) | has(characters.STOP)),
        (CURRENCY, listed(_CURRENCIES)),
        (RUN, has(characters.LETTER | characters.NUMBER) & ~alone),
        (BREAK, has(characters.SPACE | characters.PUNCTUATION | characters.SYMBOL | characters.CONTROL) | alone),
        (EYES, listed(_EYES_LISTED)),
        (IS_DOT, listed(".")),
        (SEPARATES, listed(_SEPARATORS) | icon),
        (NAME, inside(((0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A), (0xA1, 0xFFFF)))),
    ):
        classes[holds] |= flag
    classes.flags.writeable = False
    return classes


def _make_exceptions() -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    slots = np.zeros((2, SLOTS), np.uint64)
    gates = np.zeros((3, 128), np.uint32)
    values: dict[str, int] = {}
    for piece, parts in exceptions().items():
        cut = 0
        value = int(WHOLE_PIECE) | len(parts)
        for number, part in enumerate(parts[:-1], 1):
            cut += len(part)
            value |= cut << (4 * number)
        values[piece] = value
    for unit in units():
        values[unit] = values.get(unit, 0) | int(UNIT)
    for piece, value in values.items():
        code_points = np.array([ord(character) for character in piece], np.uint32)
        key = int(hash_span(code_points, _0, np.uint64(len(piece))))
        slot = key % SLOTS
        while slots[1, slot]:
            slot = (slot + 1) % SLOTS
        slots[:, slot] = key, value
        if value & int(WHOLE_PIECE):
            gates[0, code_points[0] % 128] |= np.uint32(1 << len(piece))
            gates[1, code_points[-1] % 128] |= np.uint32(1 << len(piece))
            if len(piece) <= _LONGEST_EMOTICON and not piece[0].isalpha():
                gates[2, code_points[0] % 128] = 1
    return slots, gates


@kernel
def look_up(key: np.uint64, slots: NDArray[np.uint64]) -> np.uint64:
    """What is known of the piece with this hash: its cuts, WHOLE_PIECE and UNIT, or 0."""
    slot = key % np.uint64(SLOTS)
    while slots[1, slot] != ABSENT and slots[0, slot] != key:
        slot = (slot + _1) % np.uint64(SLOTS)
    return slots[1, slot]
