"""What is known of each character, and UTF-8 bytes → code points: the ground that the kernels of signals stand on.

An entry of the character table is a uint32 of the flags below. The table is made by `taojin.quality.characters_build`
and shipped as a file, because Python versions carry different Unicode data and a signal must not depend on them. The
file holds the class of each code point and the flags of each class: code points with the same flags are one class, and
there are few enough of them that a document's characters can be counted by class.

Cost: `decode` about 1 ns per Chinese character, less per ASCII letter. Left to others: what is done with the flags.
"""

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taojin.core.jit import kernel

CHARACTERS_VERSION = 1
TABLE_PATH = Path(__file__).with_name(f"characters-v{CHARACTERS_VERSION}.npz")
NUM_CODE_POINTS = 0x110000

LETTER = 1 << 0  # Unicode L, str.isalpha
NUMBER = 1 << 1  # Unicode N
DIGIT = 1 << 2  # Unicode Nd
PUNCTUATION = 1 << 3  # Unicode P
SYMBOL = 1 << 4  # Unicode S
SPACE = 1 << 5  # str.isspace: what str.split and str.strip take for white space
UPPER = 1 << 6  # str.isupper
HAN = 1 << 7  # Chinese characters of any plane, radicals and 〇 々 included
KANA = 1 << 8  # hiragana and katakana, half-width forms included
HANGUL = 1 << 9  # syllables and jamo
LATIN = 1 << 10  # Latin letters, full-width forms included
ALONE = 1 << 11  # of a script written without spaces: a word of its own; the fold's SYMBOL
TERMINAL = 1 << 12  # ends a sentence: Unicode Sentence_Terminal, and … and ⋯
STOP = 1 << 13  # Unicode Sentence_Terminal alone, which is what FineWeb counts at line ends
CLOSING = 1 << 14  # closing quotes and brackets, which may follow a TERMINAL inside its sentence
BULLET = 1 << 15
BRACKET = 1 << 16  # round, square and curly, full-width forms included
FORMAT = 1 << 17  # Unicode Cf
CONTROL = 1 << 18  # Unicode Cc but tab, line feed and carriage return
PRIVATE = 1 << 19  # Unicode Co
MARK = 1 << 20  # Unicode M: combining marks
LINE_BREAK = 1 << 21  # where str.splitlines cuts
TRADITIONAL = 1 << 22  # Han that only Traditional Chinese uses (OpenCC)
SIMPLIFIED = 1 << 23  # Han that only Simplified Chinese uses (OpenCC); Japanese shares many
PHRASE = 1 << 24  # stands in each phrase that lines are searched for: { and the letters k u v
SPECIAL = 1 << 25  # this very character, or what stands around it, is counted: # { } 【 】 . … : Ã 锟 …


class CharacterClasses(NamedTuple):
    """`of`: uint8[0x110000], the class of each code point; `flags`: uint32[C], the flags of each class. Read-only."""

    of: NDArray[np.uint8]
    flags: NDArray[np.uint32]


@cache
def load_character_classes() -> CharacterClasses:
    """Read the shipped table, once per process (about 5 ms)."""
    with np.load(TABLE_PATH) as archive:
        classes = CharacterClasses(archive["of"], archive["flags"])
    for array in classes:
        array.flags.writeable = False
    return classes


@cache
def load_character_table() -> NDArray[np.uint32]:
    """uint32[0x110000]: the flags of each code point. Read-only, made once per process (about 10 ms)."""
    classes = load_character_classes()
    table = classes.flags[classes.of]
    table.flags.writeable = False
    return table


_U32 = np.uint32
_U64 = np.uint64
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
# Of the 32 ranges of 0x800 code points below U+10000, three bytes may not encode the first and U+D800…U+DFFF.
_OUTSIDE = np.uint32(1 | 1 << 0x1B)


@kernel
def decode(data: NDArray[np.uint8], start: int, end: int, out: NDArray[np.uint32]) -> tuple[int, bool]:
    """UTF-8 → code points: out[0:count] of the document data[start:end]; returns (count, valid).

    `out` needs room for end - start entries. Where the bytes are not well-formed UTF-8 (Unicode 15, table 3-7) `valid`
    is False and the code points mean nothing, but all are below 0x110000. Nothing outside [start, end) is read.
    """
    i = _U64(start)
    stop = _U64(end)
    stop3 = stop - _2 if stop >= _2 else _0  # below it, two more bytes belong to the document
    stop8 = stop - _U64(7) if stop >= _U64(7) else _0
    count = _0
    error = _NO_ERROR
    while i < stop:
        while i < stop3:
            lead = _U32(data[i])
            if lead & _U32(0xF0) != _U32(0xE0):
                break
            b1 = _U32(data[i + _1]) ^ _TAG
            b2 = _U32(data[i + _2]) ^ _TAG
            code_point = ((lead & _U32(15)) << _U32(12)) | ((b1 & _LOW6) << _U32(6)) | (b2 & _LOW6)
            error |= ((b1 | b2) & _TAG_MASK) | ((_OUTSIDE >> (code_point >> _U32(11))) & _U32(1))
            out[count] = code_point
            count += _1
            i += _3
        # Eight at a time: the compiler makes two vector instructions of the copy.
        while i < stop8:
            high = data[i] | data[i + _1] | data[i + _2] | data[i + _3]
            high |= data[i + _4] | data[i + _U64(5)] | data[i + _U64(6)] | data[i + _U64(7)]
            if high >= np.uint8(0x80):
                break
            k = _0
            while k < _U64(8):
                out[count + k] = _U32(data[i + k])
                k += _1
            count += _U64(8)
            i += _U64(8)
        while i < stop and data[i] < np.uint8(0x80):
            out[count] = _U32(data[i])
            count += _1
            i += _1
        if i >= stop:
            break
        # One character of any other length; a three-byte one goes back to the fast loop.
        lead = _U32(data[i])
        if _U32(0xC2) <= lead and lead < _U32(0xE0) and i + _1 < stop:
            b1 = _U32(data[i + _1]) ^ _TAG
            error |= b1 & _TAG_MASK
            code_point = ((lead & _U32(31)) << _U32(6)) | (b1 & _LOW6)
            i += _2
        elif _U32(0xE0) <= lead and lead < _U32(0xF0) and i < stop3:
            continue
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
        out[count] = code_point
        count += _1
    return int(np.int64(count)), bool(error == _NO_ERROR)
