"""Texts cut into sentences, for pairs with a sequence per sentence. Joined, the sentences are the text byte for byte.

A sentence ends at a line break, or after final punctuation and the closing marks behind it where something but marks
follows on the line. Full-width and other non-ASCII final punctuation (。！？।؟) ends it wherever it stands; the ASCII
. ! ? before white space and before a character of a script without spaces. A full stop does not end it in an ellipsis,
inside a number, after an initial or a known abbreviation. Ellipses pause, they end nothing: 他想了很久……天亮了。

White space behind the end stays with the sentence, blank lines and the next line's indentation too; what a text begins
with belongs to its first sentence. So no sentence is blank unless the whole text is.

These are the sentences that the signal of this name counts (`quality`), with three differences: no end between a
lower-case and an upper-case letter without white space (it cuts code), emoji and symbols at the end of a line stay with
its last sentence, and scripts no longer written have no final punctuation here.

Cost: 3 to 4 ns a character of Chinese pages; 6 ns of English ones, where every tenth word has a stop to think about.
Linear whatever the text: what a look ahead has passed is not looked at again. Numba is imported with this module:
import it where sentences are wanted.
"""

from functools import cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from taojin.core.fold import CLASS_SHIFT, LETTER, MULTI, NUM_CODE_POINTS, SYMBOL, load_fold_table
from taojin.core.jit import kernel
from taojin.core.text import text_buffers

SPACE = 1 << 0  # str.isspace
LINE_BREAK = 1 << 1  # where str.splitlines cuts; each is SPACE as well
ALONE = 1 << 2  # of a script written without spaces: the fold's SYMBOL
WORD = 1 << 3  # letters and digits of any script: what the fold hashes
UPPER = 1 << 4  # capitals that stand for names: Latin, Greek, Cyrillic
TERMINAL = 1 << 5  # Unicode Sentence_Terminal of living scripts, and … and ⋯
CLOSING = 1 << 6  # closing quotes and brackets, which may follow a TERMINAL inside its sentence

_SPACES = "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
_LINE_BREAKS = "\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"
_TERMINALS = (
    "!.?…⋯。．！？｡﹒﹖﹗‼‽⁇⁈⁉"
    "։؝؞؟۔।॥"  # Armenian, Arabic, Devanagari
    "၊။።፧፨។៕᠃᠉"  # Myanmar, Ethiopic, Khmer, Mongolian
    "܀܁܂߹᙮᥄᥅᪨᪩᪪᪫᭚᭛᭞᭟᰻᰼᱾᱿꓿꘎꘏꛳꛷꡶꡷꣎꣏꤯꧈꧉꩝꩞꩟꫰꫱꯫"
)
_CLOSINGS = "\"'＂＇)]}）］｝｠｣»›’”〉》」』】〕〗〙〛〞〟︶︸︺︼︾﹀﹂﹄﹈﹚﹜﹞"
_CAPITALS = ((0x41, 0x5A), (0xC0, 0xD6), (0xD8, 0xDE), (0x391, 0x3A1), (0x3A3, 0x3A9), (0x400, 0x42F), (0xFF21, 0xFF3A))

# English abbreviations whose full stop belongs to the word, as spaCy's tokenizer has them, in this case alone. Those
# that end in a single capital are initials: D.C. and Ph.D. need no entry.
ABBREVIATIONS = (
    "Adm", "Ak", "Ala", "Apr", "Ariz", "Ark", "Aug", "Bros", "Calif", "Co", "co", "Colo", "Conn", "Corp", "Dec", "Del",
    "Dr", "E.g", "e.g", "Feb", "Fla", "Ga", "Gen", "Gov", "I.e", "i.e", "Ia", "Id", "Ill", "Inc", "Ind", "Jan", "Jr",
    "Jul", "Jun", "Kan", "Kans", "Ky", "La", "Ltd", "Mar", "Mass", "Md", "Messrs", "Mich", "Minn", "Miss", "Mo", "Mont",
    "Mr", "Mrs", "Ms", "Mt", "Neb", "Nebr", "Nev", "Nov", "Oct", "Okla", "Ore", "Pa", "Prof", "Rep", "Rev", "Sen",
    "Sep", "Sept", "St", "Tenn", "Va", "Wash", "Wis", "a.m", "p.m", "v.s", "vs",
)  # fmt: skip
_LONGEST_ABBREVIATION = np.uint64(max(len(word) for word in ABBREVIATIONS))
# Up to 8 ASCII characters in a uint64, the last one lowest; sorted.
_ABBREVIATIONS = np.array(sorted(int.from_bytes(word.encode("ascii"), "big") for word in ABBREVIATIONS), np.uint64)

_U8 = np.uint8
_U32 = np.uint32
_U64 = np.uint64
_0 = np.uint64(0)
_1 = np.uint64(1)
_2 = np.uint64(2)
_3 = np.uint64(3)
_4 = np.uint64(4)
_NONE = np.uint8(0)
_SPACE = np.uint8(SPACE)
_LINE_BREAK = np.uint8(LINE_BREAK)
_SPACE_OR_ALONE = np.uint8(SPACE | ALONE)
_WORD = np.uint8(WORD)
_UPPER = np.uint8(UPPER)
_TERMINAL = np.uint8(TERMINAL)
_CLOSING = np.uint8(CLOSING)
_ENDS = np.uint8(TERMINAL | LINE_BREAK)
_WORD_OR_LINE_BREAK = np.uint8(WORD | LINE_BREAK)
_LOW6 = np.uint32(63)
_REPLACEMENT = np.uint32(0xFFFD)
_FULL_STOP = np.uint32(0x2E)
_WIDE_FULL_STOP = np.uint32(0xFF0E)
_ELLIPSIS = np.uint32(0x2026)
_MIDLINE_ELLIPSIS = np.uint32(0x22EF)


@cache
def load_sentence_table() -> NDArray[np.uint8]:
    """uint8[0x110000]: the flags of each code point. Read-only, made once per process (about 30 ms)."""
    kinds = load_fold_table().table >> np.uint32(CLASS_SHIFT)
    table = np.zeros(NUM_CODE_POINTS, np.uint8)
    table[kinds == SYMBOL] |= ALONE | WORD
    table[(kinds == LETTER) | (kinds == MULTI)] |= WORD
    for characters, flag in (
        (_SPACES, SPACE),
        (_LINE_BREAKS, LINE_BREAK),
        (_TERMINALS, TERMINAL),
        (_CLOSINGS, CLOSING),
    ):
        table[[ord(character) for character in characters]] |= flag
    for first, last in _CAPITALS:
        table[first : last + 1] |= UPPER
    table.flags.writeable = False
    return table


@kernel
def _length(lead: np.uint8) -> np.uint64:
    """Bytes of the character that begins with this one; a byte that begins none counts as one."""
    return _1 + _U64(lead >= _U8(0xC0)) + _U64(lead >= _U8(0xE0)) + _U64(lead >= _U8(0xF0))


@kernel
def _code_point(data: NDArray[np.uint8], i: np.uint64, end: np.uint64) -> np.uint32:
    """The character at i < end; U+FFFD where its bytes are cut off."""
    lead = _U32(data[i])
    if lead < _U32(0x80):
        return lead
    if i + _length(data[i]) > end:
        return _REPLACEMENT
    if lead < _U32(0xC0):
        return _REPLACEMENT
    second = _U32(data[i + _1]) & _LOW6
    if lead < _U32(0xE0):
        return ((lead & _U32(31)) << _U32(6)) | second
    third = _U32(data[i + _2]) & _LOW6
    if lead < _U32(0xF0):
        return ((lead & _U32(15)) << _U32(12)) | (second << _U32(6)) | third
    fourth = _U32(data[i + _3]) & _LOW6
    found = ((lead & _U32(7)) << _U32(18)) | (second << _U32(12)) | (third << _U32(6)) | fourth
    return found if found < _U32(NUM_CODE_POINTS) else _REPLACEMENT


@kernel
def _before(data: NDArray[np.uint8], i: np.uint64, start: np.uint64) -> np.uint64:
    """Where the character before i > start begins."""
    j = i - _1
    while j > start and i - j < _4 and data[j] & _U8(0xC0) == _U8(0x80):
        j -= _1
    return j


@kernel
def _is_abbreviation(data: NDArray[np.uint8], i: np.uint64, line_start: np.uint64, table: NDArray[np.uint8]) -> bool:
    """Whether the word before the full stop at i keeps it: a single ASCII letter, or one of ABBREVIATIONS."""
    word = _0
    length = _0
    while length <= _LONGEST_ABBREVIATION and i - length > line_start:
        j = i - length
        byte = data[j - _1]
        if byte >= _U8(0x80):
            if table[_code_point(data, _before(data, j, line_start), j)] & _WORD:
                return False
            break
        if byte != _U8(0x2E) and not _U8(0x61) <= byte | _U8(0x20) <= _U8(0x7A):
            break
        word |= _U64(byte) << (length * _U64(8))
        length += _1
    if length > _LONGEST_ABBREVIATION:
        return False
    if length == _1:
        return True
    low = _0
    high = _U64(_ABBREVIATIONS.size)
    while low < high:
        middle = (low + high) >> _1
        if _ABBREVIATIONS[middle] < word:
            low = middle + _1
        else:
            high = middle
    return bool(low < _U64(_ABBREVIATIONS.size) and _ABBREVIATIONS[low] == word)


@kernel
def _full_stop_ends(data: NDArray[np.uint8], i: np.uint64, line_start: np.uint64, table: NDArray[np.uint8]) -> bool:
    """Whether what stands before the full stop at i lets it end a sentence."""
    if i == line_start:
        return True
    j = _before(data, i, line_start)
    flags = table[_code_point(data, j, i)]
    if flags & _UPPER:
        return bool(j > line_start and table[_code_point(data, _before(data, j, line_start), j)] & _UPPER != _NONE)
    return not (flags & _WORD and _is_abbreviation(data, i, line_start, table))


@kernel
def _end_of_marks(
    data: NDArray[np.uint8], i: np.uint64, end: np.uint64, line_start: np.uint64, table: NDArray[np.uint8]
) -> tuple[bool, np.uint64]:
    """(whether a sentence ends there, the end of the run) for the run of final and closing marks that begins at i."""
    ends = False
    anywhere = False
    before = _U32(0)
    if i > line_start:
        before = _code_point(data, _before(data, i, line_start), i)
    j = i
    while j < end:
        code_point = _code_point(data, j, end)
        following = min(j + _length(data[j]), end)
        flags = table[code_point]
        if flags & _TERMINAL:
            if code_point in (_FULL_STOP, _WIDE_FULL_STOP):
                in_ellipsis = before == code_point or (
                    following < end and _code_point(data, following, end) == code_point
                )
                if not in_ellipsis:
                    ends |= bool(j > i or _full_stop_ends(data, i, line_start, table))
            elif code_point not in (_ELLIPSIS, _MIDLINE_ELLIPSIS):
                ends = True
                anywhere |= bool(code_point >= _U32(0x80))
        elif code_point == _U32(0x5B):
            # Wikipedia's [1].
            k = following
            while k < end and _U8(0x30) <= data[k] <= _U8(0x39):
                k += _1
            if k == end or data[k] != _U8(0x5D):
                break
            following = k + _1
            code_point = _U32(0x5D)
        elif not flags & _CLOSING and code_point not in (_U32(0x2C), _U32(0x3A), _U32(0x3B), _U32(0x2A)):
            break
        before = code_point
        j = following
    if ends and not anywhere and j < end:
        ends = bool(table[_code_point(data, j, end)] & _SPACE_OR_ALONE != _NONE)
    return ends, j


@kernel
def find_ends(
    data: NDArray[np.uint8],
    offsets_D: NDArray[np.int64],
    table: NDArray[np.uint8],
    ends: NDArray[np.int64],
    counts_D: NDArray[np.int32],
) -> int:
    """Where the sentences of each text data[offsets_D[d]:offsets_D[d + 1]] end, all in a row; returns how many.

    `ends` needs room for a sentence per byte. Where bytes are no UTF-8 the cuts mean little, but nothing outside the
    text is read.
    """
    total = _0
    for d in range(counts_D.size):
        i = _U64(offsets_D[d])
        end = _U64(offsets_D[d + 1])
        first = total
        # What the text begins with is of its first sentence.
        while i < end and table[_code_point(data, i, end)] & _SPACE:
            i = min(i + _length(data[i]), end)
        line_start = i
        sentence_end = _U64(offsets_D[d])
        while i < end:
            # Two tight loops take nearly all text: ASCII, then Han and kana with their punctuation.
            while i < end and data[i] < _U8(0x80) and not table[data[i]] & _ENDS:
                i += _1
            while i + _2 < end and data[i] & _U8(0xF0) == _U8(0xE0):
                code_point = (_U32(data[i]) & _U32(15)) << _U32(12)
                code_point |= ((_U32(data[i + _1]) & _LOW6) << _U32(6)) | (_U32(data[i + _2]) & _LOW6)
                if table[code_point] & _ENDS:
                    break
                i += _3
            if i >= end:
                break
            flags = table[_code_point(data, i, end)]
            if not flags & _ENDS:
                i = min(i + _length(data[i]), end)
                continue
            if flags & _TERMINAL:
                after = data[min(i + _1, end - _1)]
                if data[i] < _U8(0x80) and after < _U8(0x80) and table[after] & _WORD:
                    # The commonest of ASCII stops: inside a number, an address, a name of a file.
                    i += _1
                    continue
                is_end, i = _end_of_marks(data, i, end, line_start, table)
                if not is_end:
                    continue
                solid = i
                while solid < end:
                    flags = table[_code_point(data, solid, end)]
                    if flags & _LINE_BREAK or not flags & _SPACE:
                        break
                    solid = min(solid + _length(data[solid]), end)
                i = solid
                while i < end and not table[_code_point(data, i, end)] & _WORD_OR_LINE_BREAK:
                    i = min(i + _length(data[i]), end)
                if i == end or table[_code_point(data, i, end)] & _LINE_BREAK:
                    continue
                sentence_end = solid
            else:
                while i < end and table[_code_point(data, i, end)] & _SPACE:
                    i = min(i + _length(data[i]), end)
                line_start = i
                sentence_end = i
            ends[total] = sentence_end
            total += _1
        if sentence_end < end:
            ends[total] = end
            total += _1
        counts_D[d] = total - first
    return int(np.int64(total))


def cut_sentences(texts: pa.LargeStringArray) -> tuple[pa.LargeStringArray, NDArray[np.int32]]:
    """(the sentences of all texts in a row, int32[D] how many each text has); no text is null.

    The sentences share the texts' data buffer. An empty text has none.
    """
    data, offsets_D = text_buffers(texts)
    counts_D = np.empty(len(texts), np.int32)
    # Pages are touched only as far as used.
    ends = np.empty(int(offsets_D[-1] - offsets_D[0]) + 1, np.int64)
    total = find_ends(data, offsets_D, load_sentence_table(), ends[1:], counts_D)
    ends[0] = offsets_D[0]
    offsets = pa.py_buffer(ends[: total + 1].copy())
    return pa.LargeStringArray.from_buffers(total, offsets, texts.buffers()[2]), counts_D
