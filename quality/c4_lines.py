"""What C4's rules ask of a line, for any script: words, an end, and the phrases it is dropped for.

The rules are those of C4 as datatrove 0.10 has them (arXiv 1910.10683), and on ASCII text the answers are the same. Two
things they take for granted do not hold in Chinese: words between white space, and one way to end a sentence.

Cost: far less than 1 ns per character. What is done with the answers is the business of `taojin.quality.sentences`.
"""

import numpy as np
from numpy.typing import NDArray

from taojin.core.jit import kernel
from taojin.quality import characters as c

_U32 = np.uint32
_U64 = np.uint64
_0 = np.uint64(0)
_1 = np.uint64(1)
_2 = np.uint64(2)
_3 = np.uint64(3)
_SPACE = np.uint32(c.SPACE)
_ALONE = np.uint32(c.ALONE)
_WORDY = np.uint32(c.LETTER | c.NUMBER)
_PHRASE = np.uint32(c.PHRASE)
_STOP = np.uint32(c.STOP)
_CLOSING = np.uint32(c.CLOSING)
_NONE = np.uint32(0)
_FULL_STOP = np.uint32(0x2E)
_ELLIPSIS = np.uint32(0x2026)
_MIDLINE_ELLIPSIS = np.uint32(0x22EF)

# C4, as datatrove 0.10 has it.
MIN_WORDS = 3
MAX_WORD_LENGTH = 1000
LOREM_IPSUM, JAVASCRIPT, POLICY, CURLY = 1, 2, 3, 4
# What C4 searches lines for, each with its number and the place of its telling letter, a PHRASE character.
PHRASES = (
    ("lorem ipsum", LOREM_IPSUM, 9),
    ("terms of use", POLICY, 9),
    ("javascript", JAVASCRIPT, 2),
    ("privacy policy", POLICY, 3),
    ("cookie policy", POLICY, 3),
    ("use cookies", POLICY, 7),
    ("uses cookies", POLICY, 8),
    ("use of cookies", POLICY, 10),
    ("{", CURLY, 0),
)
_PHRASES = np.array([ord(a) for text, _, _ in PHRASES for a in text], np.uint32)
_PHRASE_STARTS = np.cumsum(np.array([0, *(len(text) for text, _, _ in PHRASES)], np.uint64))
_PHRASE_KINDS = np.array([kind for _, kind, _ in PHRASES], np.int64)
_TELLING = np.array([place for _, _, place in PHRASES], np.uint64)
_TELLING_LETTERS = np.array([ord(text[place]) for text, _, place in PHRASES], np.uint32)
_EDIT = np.array([ord(a) for a in "[edit]"], np.uint32)
_CITATION_NEEDED = np.array([ord(a) for a in "[citation needed]"], np.uint32)


@kernel
def phrase_at(code_points: NDArray[np.uint32], i: np.uint64, count: np.uint64) -> int:
    """The number of the phrase, in any ASCII case, that has its telling letter at i; 0 for none."""
    letter = code_points[i] | _U32(0x20)
    for k in range(_TELLING.size):
        if letter != _TELLING_LETTERS[k]:
            continue
        first = _PHRASE_STARTS[k]
        length = _PHRASE_STARTS[k + 1] - first
        if i < _TELLING[k] or i - _TELLING[k] + length > count:
            continue
        start = i - _TELLING[k]
        same = _0
        while same < length:
            code_point = code_points[start + same]
            if _U32(0x41) <= code_point <= _U32(0x5A):
                code_point += _U32(0x20)
            if code_point != _PHRASES[first + same]:
                break
            same += _1
        if same == length:
            return int(_PHRASE_KINDS[k])
    return 0


@kernel
def find_phrases(
    code_points: NDArray[np.uint32],
    count: np.uint64,
    table: NDArray[np.uint32],
    marks: NDArray[np.uint32],
    num_marks: int,
    places: NDArray[np.uint32],
) -> tuple[int, int]:
    """Leave only breaks and final punctuation in `marks`, and the telling letters of phrases in `places`; how many of
    each."""
    kept = _0
    found = _0
    for m in range(num_marks):
        i = _U64(marks[m])
        phrase = table[code_points[i]] & _PHRASE != _NONE
        marks[kept] = _U32(i)
        kept += _U64(not phrase)
        # By the letter before, of which no branch need be guessed, nearly all fall out.
        letter = code_points[i] | _U32(0x20)
        before = code_points[i - min(i, _1)] | _U32(0x20)
        places[found] = _U32(i)
        found += _U64(
            ((letter == _U32(0x75)) & ((before == _U32(0x20)) | (before == _U32(0x73))))
            | ((letter == _U32(0x6B)) & (before == _U32(0x6F)))
            | ((letter == _U32(0x76)) & ((before == _U32(0x69)) | (before == _U32(0x61))))
            | (code_points[i] == _U32(0x7B))
        )
    num_found = _0
    p = _0
    while p < found:
        i = _U64(places[p])
        if phrase_at(code_points, i, count) != 0:
            places[num_found] = _U32(i)
            num_found += _1
        p += _1
    return int(np.int64(kept)), int(np.int64(num_found))


@kernel
def has_words(code_points: NDArray[np.uint32], start: np.uint64, end: np.uint64, table: NDArray[np.uint32]) -> bool:
    """Whether a stripped line has MIN_WORDS words and none longer than MAX_WORD_LENGTH.

    Words are cut at white space; one that holds characters of scripts without spaces counts each of them and each run
    of other letters and digits between them.
    """
    words = 0
    alone = 0
    runs = 0
    in_run = False
    length = 0
    i = start
    long_possible = end - start > _U64(MAX_WORD_LENGTH)
    while i < end:
        flags = table[code_points[i]]
        if flags & _SPACE:
            if i > start and not table[code_points[i - _1]] & _SPACE:
                words += alone + runs if alone else 1
            alone = 0
            runs = 0
            in_run = False
            length = 0
        elif flags & _ALONE:
            alone += 1
            in_run = False
            length = 0
        else:
            wordy = bool(flags & _WORDY != _NONE)
            runs += wordy and not in_run
            in_run = wordy
            length += 1
            if length > MAX_WORD_LENGTH:
                return False
        if not long_possible and words + alone >= MIN_WORDS:
            return True
        i += _1
    words += alone + runs if alone else 1
    return words >= MIN_WORDS


@kernel
def has_final_punctuation(
    code_points: NDArray[np.uint32], start: np.uint64, end: np.uint64, table: NDArray[np.uint32]
) -> bool:
    """Whether a stripped line ends in final punctuation: C4's . ? ! " ' and not "...", that of other scripts, what
    closes after it, and the Chinese ellipsis, which is two characters long. A single … is a teaser's."""
    while end > start and code_points[end - _1] == _U32(0x5D):
        opening = end - _1
        while opening > start and _U32(0x30) <= code_points[opening - _1] <= _U32(0x39):
            opening -= _1
        if opening > start and code_points[opening - _1] == _U32(0x5B):
            end = opening - _1
        elif end - start >= _U64(6) and _exactly(code_points, end - _U64(6), _EDIT):
            end -= _U64(6)
        elif end - start >= _U64(17) and _exactly(code_points, end - _U64(17), _CITATION_NEEDED):
            end -= _U64(17)
        else:
            return False
    if end == start:
        return False
    last = code_points[end - _1]
    if last in (_U32(0x22), _U32(0x27)):
        return True
    if last == _FULL_STOP and end - start >= _3:
        return not (code_points[end - _2] == _FULL_STOP and code_points[end - _3] == _FULL_STOP)
    while last >= _U32(0x80) and table[last] & _CLOSING and end - _1 > start:
        end -= _1
        last = code_points[end - _1]
    if last in (_ELLIPSIS, _MIDLINE_ELLIPSIS):
        return bool(end - start >= _2 and code_points[end - _2] == last)
    return bool(table[last] & _STOP != _NONE)


@kernel
def _exactly(code_points: NDArray[np.uint32], start: np.uint64, phrase: NDArray[np.uint32]) -> bool:
    same = True
    for k in range(phrase.size):
        same &= bool(code_points[start + _U64(k)] == phrase[k])
    return same
