"""Words and marks of a document: code points → spans, hashes and flags.

White space separates. A character of a script written without spaces is a word by itself. What is left between two of
either is a *piece*, which is split as spaCy's English tokenizer does, because the published quality rules were
calibrated on its counts (datatrove's `SpaCyTokenizer("en")`): punctuation and symbols come off both ends, one mark each
but dots, which stay together; a hyphen, slash, colon, < > = between letters, a comma between letters, a dot between a
small and a capital letter separate; so do + - * ^ between digits; units, currency and 's come off; exceptions
(`taojin.quality.exceptions`) and web addresses stay as listed. Left out: addresses by IP number, and exceptions
that span white space. Ends come off in one loop, and every look at a piece is bounded or ends in what it looked at, so
the cost is linear whatever the text is.

Cost: 4 ns per Chinese character, 5 to 6 ns per character of English prose, 8 in code. Outputs are the caller's, of
`count` entries. Segmented Chinese (`taojin.quality.segment`) fills the same arrays.
"""

import numpy as np
from numpy.typing import NDArray

from taojin.core.jit import inlined, kernel
from taojin.core.text import mix
from taojin.quality.pieces import may_be_exception, split_piece
from taojin.quality.signals import INDEX
from taojin.quality.word_tables import (
    ABSENT,
    ALONE,
    COMES_OFF,
    DIGIT,
    EDGE,
    IS_DOT,
    LETTER,
    MARK,
    MULTIPLIER,
    OUTER,
    SEED,
    SMALL,
    SPACE,
    SPLITS,
    borrow,
    look_up,
)

# The whole interface of words is importable from here.
from taojin.quality.word_tables import WordTables as WordTables
from taojin.quality.word_tables import load_word_tables as load_word_tables

# Flags of a word.
HAS_LETTER = 1  # str.isalpha of some character
IS_MARK = 2  # nothing but what datatrove counts as punctuation
ALONE_SYMBOL = 4  # one character of a script written without spaces

_0 = np.uint32(0)
_U64_0 = np.uint64(0)
_1 = np.uint64(1)
_2 = np.uint64(2)
_15 = np.uint64(15)


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
        alone = end - j == _1 and classes[code_points[j]] & ALONE != _0
        any_of = _0
        all_of = MARK
        h = SEED
        while j < end:
            kind = classes[code_points[j]]
            any_of |= kind
            all_of &= kind
            h = (h ^ np.uint64(code_points[j])) * MULTIPLIER
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
        np.uint8(any_of & LETTER != _0) * HAS_LETTER
        + np.uint8(all_of & MARK != _0) * IS_MARK
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
    code_points = borrow(code_points)
    starts = borrow(starts)
    ends = borrow(ends)
    hashes = borrow(hashes)
    flags = borrow(flags)
    classes = borrow(tables.classes)
    slots = borrow(tables.exceptions)
    gates = borrow(tables.gates)
    stop = np.uint64(count)
    num = _U64_0
    i = _U64_0
    while i < stop:
        c = code_points[i]
        kind = classes[c]
        if kind & SPACE != _0:
            i += _1
            continue
        start = i
        h = (SEED ^ np.uint64(c)) * MULTIPLIER
        i += _1
        if kind & ALONE != _0:
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
            if kind & EDGE != _0:
                break
            inner |= last
            inner_h = h
            before_last = last
            last = kind
            h = (h ^ np.uint64(c)) * MULTIPLIER
            i += _1
        end = i
        length = end - start
        mark = _U64_0  # 1 where the last character is a mark that comes off
        if length == _1:
            plain = True
        else:
            plain = (inner | last) & SPLITS == _0
            if (
                inner & (SPLITS | DIGIT) == _0
                and (last & COMES_OFF == OUTER or (last & IS_DOT != _0 and before_last & SMALL != _0))
                and not (may_be_exception(code_points, start, end, gates) and look_up(mix(h), slots) != ABSENT)
            ):
                plain = True
                mark = _1
            elif plain and (inner | last) & DIGIT != _0 and (inner | last) & LETTER != _0:
                plain = False
        key = mix(inner_h if mark != _U64_0 else h)
        if plain and may_be_exception(code_points, start, end - mark, gates):
            plain = look_up(key, slots) & _15 < _2
        if not plain:
            before = num
            num = split_piece(code_points, start, end, inner | last, classes, slots, gates, starts, ends, num)
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
            hashes[num] = mix((SEED ^ np.uint64(code_points[end - _1])) * MULTIPLIER)
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
