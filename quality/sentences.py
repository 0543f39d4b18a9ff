"""Sentences, and the rules of C4 that keep or drop a line: fills the other rows of LINE_SIGNALS.

A sentence ends at a line break (str.splitlines), or after final punctuation and the closing marks behind it, where
something but punctuation follows on the line. Full-width and other non-ASCII final punctuation (。！？｡।؟) ends it
wherever it stands. The ASCII . ! ? end it before white space and before a character of a script without spaces; a full
stop also between a lower-case and an upper-case letter. A full stop does not end it in an ellipsis, inside a number,
after a single capital (an initial) or a known abbreviation. Ellipses pause, they end nothing. In English this is what
spaCy's sentencizer finds, which C4's rule in datatrove counts with: it differs where spaCy's tokenizer has a token of
its own (emoticons, addresses).

Cost: about 2 ns per Chinese character, 1 ns per English one, most of it for finding repeated sentences. Linear whatever
the text: what a look ahead has passed is not looked at again.
"""

import numpy as np
from numpy.typing import NDArray

from taojin.core.jit import kernel
from taojin.quality import characters as c
from taojin.quality.c4_lines import (
    CURLY,
    JAVASCRIPT,
    LOREM_IPSUM,
    POLICY,
    find_phrases,
    has_final_punctuation,
    has_words,
    phrase_at,
)
from taojin.quality.signals import INDEX
from taojin.quality.spans import hash_span, seen_before

_U32 = np.uint32
_U64 = np.uint64
_0 = np.uint64(0)
_1 = np.uint64(1)
_2 = np.uint64(2)
_3 = np.uint64(3)

_SPACE = np.uint32(c.SPACE)
_ALONE = np.uint32(c.ALONE)
_LETTER = np.uint32(c.LETTER)
_UPPER = np.uint32(c.UPPER)
_PUNCTUATION = np.uint32(c.PUNCTUATION)
_BLANK_OR_MARK = np.uint32(c.SPACE | c.PUNCTUATION)
_STOP = np.uint32(c.STOP)
_TERMINAL = np.uint32(c.TERMINAL)
_CLOSING = np.uint32(c.CLOSING)
_BULLET = np.uint32(c.BULLET)
_LINE_BREAK = np.uint32(c.LINE_BREAK)
_MAY_FOLLOW_END = np.uint32(c.SPACE | c.PUNCTUATION | c.TERMINAL | c.CLOSING | c.ALONE | c.UPPER)
_MAY_JOIN_STOPS = np.uint32(c.PUNCTUATION | c.TERMINAL | c.CLOSING)
_NONE = np.uint32(0)
_FULL_STOP = np.uint32(0x2E)
_WIDE_FULL_STOP = np.uint32(0xFF0E)
_ELLIPSIS = np.uint32(0x2026)
_MIDLINE_ELLIPSIS = np.uint32(0x22EF)

_SENTENCES = INDEX["sentences"]
_MEAN_SENTENCE = INDEX["mean_sentence_length"]
_ELLIPSIS_LINES = INDEX["ellipsis_line_share"]
_BULLET_LINES = INDEX["bullet_line_share"]
_DUP_SENTENCES = INDEX["dup_sentence_share"]
_DUP_SENTENCE_CHARS = INDEX["dup_sentence_char_share"]
_LOREM_IPSUM = INDEX["lorem_ipsum"]
_JAVASCRIPT_LINES = INDEX["javascript_lines"]
_POLICY_LINES = INDEX["policy_lines"]
_C4_SENTENCES = INDEX["c4_sentences"]
_C4_SENTENCES_ANY_END = INDEX["c4_sentences_any_end"]

_SENTENCE_SALT = np.uint64(3)

# English abbreviations whose full stop spaCy's tokenizer leaves on the word (in this case alone). Those that end in a
# capital are initials: D.C. and Ph.D. need no entry.
ABBREVIATIONS = (
    "Adm", "Ak", "Ala", "Apr", "Ariz", "Ark", "Aug", "Bros", "Calif", "Co", "co", "Colo", "Conn", "Corp", "Dec", "Del",
    "Dr", "E.g", "e.g", "Feb", "Fla", "Ga", "Gen", "Gov", "I.e", "i.e", "Ia", "Id", "Ill", "Inc", "Ind", "Jan", "Jr",
    "Jul", "Jun", "Kan", "Kans", "Ky", "La", "Ltd", "Mar", "Mass", "Md", "Messrs", "Mich", "Minn", "Miss", "Mo", "Mont",
    "Mr", "Mrs", "Ms", "Mt", "Neb", "Nebr", "Nev", "Nov", "Oct", "Okla", "Ore", "Pa", "Prof", "Rep", "Rev", "Sen",
    "Sep", "Sept", "St", "Tenn", "Va", "Wash", "Wis", "a.m", "p.m", "v.s", "vs",
)  # fmt: skip
_LONGEST_ABBREVIATION = np.uint64(max(len(word) for word in ABBREVIATIONS))
# A hash table of them: a word is up to 8 ASCII characters in a uint64, the last one lowest.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_SLOT_SHIFT = np.uint64(55)


def _abbreviation_slots() -> NDArray[np.uint64]:
    slots = np.zeros(512, np.uint64)
    for text in ABBREVIATIONS:
        word = int.from_bytes(text.encode("ascii"), "big")
        slot = (word * int(_SPREAD) & 0xFFFFFFFFFFFFFFFF) >> int(_SLOT_SHIFT)
        while slots[slot]:
            slot = (slot + 1) % len(slots)
        slots[slot] = word
    return slots


_ABBREVIATIONS = _abbreviation_slots()


@kernel
def _citation_end(code_points: NDArray[np.uint32], i: np.uint64, count: np.uint64) -> np.uint64:
    """Where Wikipedia's [1] that begins at i ends; i where none begins."""
    j = i + _1
    while j < count and _U32(0x30) <= code_points[j] <= _U32(0x39):
        j += _1
    if j < count and code_points[j] == _U32(0x5D):
        return j + _1
    return i


@kernel
def _is_abbreviation(
    code_points: NDArray[np.uint32], i: np.uint64, line_start: np.uint64, table: NDArray[np.uint32]
) -> bool:
    """Whether the word before the full stop at i keeps it: a single letter, or one of ABBREVIATIONS."""
    word = _0
    length = _0
    while length <= _LONGEST_ABBREVIATION and i - length > line_start:
        code_point = code_points[i - length - _1]
        is_inner_stop = code_point == _FULL_STOP
        # A digit before is passed over, as in 10a.m.
        if code_point >= _U32(0x80) and table[code_point] & _LETTER:
            return False
        if code_point >= _U32(0x80) or not (is_inner_stop or table[code_point] & _LETTER):
            break
        word |= _U64(code_point) << (length * _U64(8))
        length += _1
    if length > _LONGEST_ABBREVIATION:
        return False
    if length == _1:
        return True
    slot = (word * _SPREAD) >> _SLOT_SHIFT
    while _ABBREVIATIONS[slot] != _0:
        if _ABBREVIATIONS[slot] == word:
            return True
        slot = (slot + _1) & _U64(511)
    return False


@kernel
def _full_stop_ends(
    code_points: NDArray[np.uint32], i: np.uint64, line_start: np.uint64, table: NDArray[np.uint32]
) -> bool:
    """Whether what stands before the full stop at i lets it end a sentence."""
    if i == line_start:
        return True
    before = table[code_points[i - _1]]
    if before & _UPPER:
        return bool(i - _1 > line_start and table[code_points[i - _2]] & _UPPER != _NONE)
    return not (before & _LETTER and _is_abbreviation(code_points, i, line_start, table))


@kernel
def _end_of_stops(
    code_points: NDArray[np.uint32], i: np.uint64, count: np.uint64, line_start: np.uint64, table: NDArray[np.uint32]
) -> tuple[bool, np.uint64]:
    """(whether a sentence ends there, the end of the run) for the run of final and closing marks that begins at i."""
    if (
        code_points[i] >= _U32(0x80)
        and table[code_points[i]] & _STOP
        and code_points[i] != _WIDE_FULL_STOP
        and i + _1 < count
        and not table[code_points[i + _1]] & _MAY_JOIN_STOPS
    ):
        # The commonest of all: 。 and a character of the next sentence.
        return True, i + _1
    ends = False
    anywhere = False
    only_quotes = code_points[i] == _FULL_STOP
    j = i
    while j < count:
        code_point = code_points[j]
        flags = table[code_point]
        if flags & _TERMINAL:
            if code_point in (_FULL_STOP, _WIDE_FULL_STOP):
                in_ellipsis = (j + _1 < count and code_points[j + _1] == code_point) or (
                    j > line_start and code_points[j - _1] == code_point
                )
                if not in_ellipsis:
                    ends |= bool(j > i or _full_stop_ends(code_points, i, line_start, table))
            elif code_point not in (_ELLIPSIS, _MIDLINE_ELLIPSIS):
                ends = True
                anywhere |= bool(code_point >= _U32(0x80))
            only_quotes &= bool(j == i)
        elif code_point == _U32(0x5B):
            after = _citation_end(code_points, j, count)
            if after == j:
                break
            j = after
            continue
        elif not (flags & _CLOSING):
            if code_point not in (_U32(0x2C), _U32(0x3A), _U32(0x3B), _U32(0x2A)):
                break
            only_quotes = False
        elif flags & _PUNCTUATION and code_point in (_U32(0x29), _U32(0x5D), _U32(0x7D)):
            only_quotes = False
        j += _1
    if not ends or anywhere or j == count:
        return ends, j
    following = table[code_points[j]]
    if following & (_SPACE | _ALONE):
        return True, j
    joined = bool(only_quotes and i > line_start and following & _UPPER != _NONE)
    before = table[code_points[i - _1]] if joined else _NONE
    return bool(joined and before & _LETTER != _NONE and before & _UPPER == _NONE), j


@kernel
def measure_sentences(
    code_points: NDArray[np.uint32],
    count: int,
    table: NDArray[np.uint32],
    prefix: NDArray[np.uint64],
    marks: NDArray[np.uint32],
    num_marks: int,
    places: NDArray[np.uint32],
    keys: NDArray[np.uint64],
    mask: np.uint64,
    values_S: NDArray[np.float32],
) -> None:
    """`marks`: where LINE_BREAK, TERMINAL and PHRASE characters are; changed. `places`: scratch
    of the same length. `keys`, `mask`: see `spans.seen_before`."""
    size = _U64(count)
    num_marks, num_found = find_phrases(code_points, size, table, marks, num_marks, places)
    place = 0
    lines = 0
    ellipsis_lines = 0
    bullet_lines = 0
    sentences = 0
    sentence_chars = _0
    repeated = 0
    repeated_chars = _0
    lorem_ipsum = 0
    javascript_lines = 0
    policy_lines = 0
    kept = 0
    kept_any_end = 0
    dropped = False
    dropped_any_end = False

    line_start = _0
    sentence_start = _0
    before_line = 0  # sentences of the document before this line
    passed = _0  # no stop before it is looked at again
    for m in range(num_marks + 1):
        i = _U64(marks[m]) if m < num_marks else size
        flags = _LINE_BREAK
        if m < num_marks:
            flags = table[code_points[i]]
        if flags & _TERMINAL:
            if i < passed:
                continue
            after = table[code_points[i + _1]] if i + _1 < size else _LINE_BREAK
            if after & _LINE_BREAK or (code_points[i] < _U32(0x80) and not after & _MAY_FOLLOW_END):
                # The line ends it; or a stop inside a word or number.
                continue
            ends, end = _end_of_stops(code_points, i, size, line_start, table)
            passed = end
            if not ends:
                continue
            solid = end
            while solid < size and table[code_points[solid]] & _SPACE and not table[code_points[solid]] & _LINE_BREAK:
                solid += _1
            wordy = solid
            while (
                wordy < size
                and table[code_points[wordy]] & _BLANK_OR_MARK
                and not table[code_points[wordy]] & _LINE_BREAK
            ):
                wordy += _1
            passed = wordy
            if wordy == size or table[code_points[wordy]] & _LINE_BREAK:
                continue
            while table[code_points[sentence_start]] & _SPACE:
                sentence_start += _1
            sentences += 1
            sentence_chars += end - sentence_start
            if seen_before(keys, mask, hash_span(prefix, sentence_start, end, _SENTENCE_SALT)):
                repeated += 1
                repeated_chars += end - sentence_start
            sentence_start = solid
            continue
        # The line [line_start, i) ends.
        if i == line_start and i > _0 and (i == size or code_points[i] == _U32(10)):
            # Nothing after the last line break; or the second half of a CRLF.
            if i == size:
                break
            if code_points[i - _1] == _U32(13):
                line_start = i + _1
                sentence_start = line_start
                continue
        lines += 1
        lorem = False
        javascript = False
        policy = False
        curly = False
        while place < num_found and _U64(places[place]) < i:
            kind = phrase_at(code_points, _U64(places[place]), size)
            lorem_ipsum += int(kind == LOREM_IPSUM)
            lorem |= kind == LOREM_IPSUM
            javascript |= kind == JAVASCRIPT
            policy |= kind == POLICY
            curly |= kind == CURLY
            place += 1
        first = line_start
        while first < i and table[code_points[first]] & _SPACE:
            first += _1
        if first < i:
            beyond = i
            while table[code_points[beyond - _1]] & _SPACE:
                beyond -= _1
            bullet_lines += int(table[code_points[first]] & _BULLET != _NONE)
            last = code_points[beyond - _1]
            ellipsis_lines += int(
                last == _ELLIPSIS
                or (
                    last == _FULL_STOP
                    and beyond - first >= _3
                    and code_points[beyond - _2] == _FULL_STOP
                    and code_points[beyond - _3] == _FULL_STOP
                )
            )
            sentence_start = max(sentence_start, first)
            while table[code_points[sentence_start]] & _SPACE:
                sentence_start += _1
            sentences += 1
            sentence_chars += beyond - sentence_start
            if seen_before(keys, mask, hash_span(prefix, sentence_start, beyond, _SENTENCE_SALT)):
                repeated += 1
                repeated_chars += beyond - sentence_start
            javascript_lines += javascript
            policy_lines += policy
            if has_words(code_points, first, beyond, table):
                good_end = has_final_punctuation(code_points, first, beyond, table)
                # C4's order: these two drop the page unless javascript drops the line in between.
                drops = lorem or (curly and not javascript)
                dropped_any_end |= drops
                dropped |= drops and good_end
                if not (javascript or policy):
                    kept_any_end += sentences - before_line
                    if good_end:
                        kept += sentences - before_line
        before_line = sentences
        line_start = i + _1
        sentence_start = line_start

    total = np.float64(count)
    values_S[_SENTENCES] = sentences
    values_S[_MEAN_SENTENCE] = np.float64(sentence_chars) / max(sentences, 1)
    values_S[_ELLIPSIS_LINES] = ellipsis_lines / max(lines, 1)
    values_S[_BULLET_LINES] = bullet_lines / max(lines, 1)
    values_S[_DUP_SENTENCES] = repeated / max(sentences, 1)
    values_S[_DUP_SENTENCE_CHARS] = np.float64(repeated_chars) / total
    values_S[_LOREM_IPSUM] = lorem_ipsum
    values_S[_JAVASCRIPT_LINES] = javascript_lines
    values_S[_POLICY_LINES] = policy_lines
    values_S[_C4_SENTENCES] = 0 if dropped else kept
    values_S[_C4_SENTENCES_ANY_END] = 0 if dropped_any_end else kept_any_end
