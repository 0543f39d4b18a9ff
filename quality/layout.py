"""How a document is laid out: fills the rows of LINE_SIGNALS about lines and paragraphs; sentences are in
`taojin.quality.sentences`.

The published rules cut lines in four ways, kept here as their reference implementation (datatrove 0.10) has them:
Gopher's duplicates at runs of line feeds, empty first and last ones included; FineWeb's and mC4's at each line feed;
Gopher's bullets and ellipses and C4's rules as str.splitlines does; paragraphs at two or more line feeds of the
stripped text. One deviation: the carriage return of a CRLF belongs to the line end where final punctuation is looked
for, since a text's line ends say nothing of its quality.

One pass over the code points leaves running hashes and the places that matter; what follows visits those places.
Cost, sentences included: about 4.5 ns per Chinese character, 3 ns per English one. Linear whatever the text.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from taojin.core.jit import kernel
from taojin.core.status import BLANK, EMPTY, INVALID_UTF8, NULL
from taojin.core.text import text_buffers
from taojin.quality import characters as c
from taojin.quality.makeup import makeup_scratch, measure_characters
from taojin.quality.sentences import measure_sentences
from taojin.quality.signals import HEURISTIC_SIGNALS, INDEX
from taojin.quality.spans import BASE, BASE_SQUARED, hash_span, seen_before

_U32 = np.uint32
_U64 = np.uint64
_0 = np.uint64(0)
_1 = np.uint64(1)
_2 = np.uint64(2)
_3 = np.uint64(3)

_SPACE = np.uint32(c.SPACE)
_STOP = np.uint32(c.STOP)
_WORDY = np.uint32(c.LETTER | c.NUMBER)
_MARKS = np.uint32(c.LINE_BREAK | c.TERMINAL | c.PHRASE)
_FEED = np.uint32(10)
_RETURN = np.uint32(13)

_LINES = INDEX["lines"]
_NEWLINES = INDEX["newlines"]
_MEAN_LINE = INDEX["mean_line_length"]
_LONGEST_LINE = INDEX["longest_line"]
_PARAGRAPHS = INDEX["paragraphs"]
_LONG_PARAGRAPHS = INDEX["long_paragraphs"]
_TERMINAL_LINES = INDEX["terminal_line_share"]
_READMORE_LINES = INDEX["readmore_line_share"]
_SHORT_LINES = INDEX["short_line_share"]
_DUP_LINES = INDEX["dup_line_share"]
_DUP_LINE_CHARS = INDEX["dup_line_char_share"]
_DUP_TEXT_LINE_CHARS = INDEX["dup_text_line_char_share"]
_DUP_PARAGRAPHS = INDEX["dup_paragraph_share"]
_DUP_PARAGRAPH_CHARS = INDEX["dup_paragraph_char_share"]

SHORT_LINE = 30  # FineWeb
LONG_PARAGRAPH = 200  # mC4
_LINE_SALT = np.uint64(1)
_PARAGRAPH_SALT = np.uint64(2)

# MAP-CC's 展开, 更多 and readmore, and the like in use beside them. A line that ends so is a teaser's.
READMORE = (
    "readmore", "read more", "see more", "show more", "continue reading", "展开", "展開", "更多", "展开全文",
    "阅读全文", "閱讀全文", "查看全文", "阅读原文", "閱讀原文", "查看详情", "続きを読む", "もっと見る", "더보기",
)  # fmt: skip
_READMORE = np.array([ord(a) for phrase in READMORE for a in phrase], np.uint32)
_READMORE_ENDS = np.cumsum(np.array([len(phrase) for phrase in READMORE], np.int64))
# Nearly every line's last letter is none of these, by its low five bits, which both cases share.
_READMORE_LAST = np.uint64(sum(1 << bit for bit in {ord(phrase[-1]) & 31 for phrase in READMORE}))


class LayoutScratch(NamedTuple):
    """For documents of at most n code points: `prefix` uint64[n + 2] · `marks`, `feeds` uint32[n + 2] · `keys` uint64,
    a power of two. Never cleared as a whole; pages are touched only as far as used."""

    prefix: NDArray[np.uint64]
    marks: NDArray[np.uint32]
    feeds: NDArray[np.uint32]
    keys: NDArray[np.uint64]


def layout_scratch(max_document_bytes: int) -> LayoutScratch:
    """32 to 48 bytes of address space per byte of the longest document."""
    size = max_document_bytes + 2
    return LayoutScratch(
        np.empty(size, np.uint64),
        np.empty(size, np.uint32),
        np.empty(size, np.uint32),
        np.empty(int(_capacity(_spans_of(np.uint64(size)))), np.uint64),
    )


@kernel
def _spans_of(count: np.uint64) -> np.uint64:
    """No text of `count` characters has more spans: a line takes 2 with its line feed, a paragraph 3, a sentence 2."""
    return count + count // _3 + _U64(8)


@kernel
def _capacity(spans: np.uint64) -> np.uint64:
    """Places for that many keys at two thirds full: a power of two."""
    capacity = _U64(16)
    while capacity < spans + spans // _2:
        capacity += capacity
    return capacity


@kernel
def _ends_in_readmore(
    code_points: NDArray[np.uint32], start: np.uint64, end: np.uint64, table: NDArray[np.uint32]
) -> bool:
    """Of the line [start, end) with something but white space in it; what follows the last letter is passed over."""
    while table[code_points[end - _1]] & _SPACE:
        end -= _1
    full_stops = _0
    while end > start and code_points[end - _1] == _U32(0x3002):
        full_stops += _1
        end -= _1
    if full_stops >= _3:
        return True
    while end > start and not table[code_points[end - _1]] & _WORDY:
        end -= _1
    if end == start or not (_READMORE_LAST >> _U64(code_points[end - _1] & _U32(31))) & _1:
        return False
    first = 0
    for k in range(_READMORE_ENDS.size):
        last = _READMORE_ENDS[k]
        if _U64(last - first) <= end - start:
            at = end
            p = last
            while p > first:
                code_point = code_points[at - _1]
                if _U32(0x41) <= code_point <= _U32(0x5A):
                    code_point += _U32(0x20)
                if code_point != _READMORE[p - 1]:
                    break
                at -= _1
                p -= 1
            if p == first:
                return True
        first = last
    return False


@kernel
def _measure_lines(
    code_points: NDArray[np.uint32],
    count: int,
    table: NDArray[np.uint32],
    prefix: NDArray[np.uint64],
    feeds: NDArray[np.uint32],
    num_feeds: int,
    keys: NDArray[np.uint64],
    mask: np.uint64,
    values_S: NDArray[np.float32],
) -> None:
    size = _U64(count)
    first = _0
    while first < size and table[code_points[first]] & _SPACE:
        first += _1
    beyond = size
    while beyond > first and table[code_points[beyond - _1]] & _SPACE:
        beyond -= _1

    text_lines = 0
    text_chars = _0
    longest = _0
    long_ones = 0
    terminal = 0
    readmore = 0
    short = 0
    elements = 0
    repeated = 0
    repeated_chars = _0
    repeated_text_chars = _0
    paragraphs = 0
    repeated_paragraphs = 0
    repeated_paragraph_chars = _0
    paragraph_start = _0
    paragraph_end = _0  # 0: none is open
    start = _0
    for f in range(num_feeds + 1):
        end = _U64(feeds[f]) if f < num_feeds else size
        length = end - start
        if length == _0:
            if paragraph_end != _0:
                key = hash_span(prefix, paragraph_start, paragraph_end, _PARAGRAPH_SALT)
                paragraphs += 1
                if seen_before(keys, mask, key):
                    repeated_paragraphs += 1
                    repeated_paragraph_chars += paragraph_end - paragraph_start
                paragraph_end = _0
            start = end + _1
            continue
        longest = max(longest, length)
        long_ones += int(length >= _U64(LONG_PARAGRAPH))
        elements += 1
        again = seen_before(keys, mask, hash_span(prefix, start, end, _LINE_SALT))
        if again:
            repeated += 1
            repeated_chars += length
        solid = start
        while solid < end and table[code_points[solid]] & _SPACE:
            solid += _1
        if solid < end:
            text_lines += 1
            text_chars += length
            short += int(length <= _U64(SHORT_LINE))
            if again:
                repeated_text_chars += length
            last = end - _1
            if code_points[last] == _RETURN and last > start and f < num_feeds:
                last -= _1
            terminal += int((table[code_points[last]] & _STOP) != _U32(0))
            readmore += _ends_in_readmore(code_points, start, end, table)
        if end > first and start < beyond:
            if paragraph_end == _0:
                paragraph_start = max(start, first)
            paragraph_end = min(end, beyond)
        start = end + _1
    if paragraph_end != _0:
        paragraphs += 1
        if seen_before(keys, mask, hash_span(prefix, paragraph_start, paragraph_end, _PARAGRAPH_SALT)):
            repeated_paragraphs += 1
            repeated_paragraph_chars += paragraph_end - paragraph_start
    # Gopher's empty lines before a first and after a last line feed.
    if num_feeds:
        opens = code_points[_0] == _FEED
        closes = code_points[size - _1] == _FEED
        elements += int(opens) + int(closes)
        repeated += int(opens and closes)

    total = np.float64(count)
    values_S[_LINES] = text_lines
    values_S[_NEWLINES] = num_feeds
    values_S[_MEAN_LINE] = np.float64(text_chars) / max(text_lines, 1)
    values_S[_LONGEST_LINE] = longest
    values_S[_PARAGRAPHS] = paragraphs
    values_S[_LONG_PARAGRAPHS] = long_ones
    values_S[_TERMINAL_LINES] = terminal / max(text_lines, 1)
    values_S[_READMORE_LINES] = readmore / max(text_lines, 1)
    values_S[_SHORT_LINES] = short / max(text_lines, 1)
    values_S[_DUP_LINES] = repeated / max(elements, 1)
    values_S[_DUP_LINE_CHARS] = np.float64(repeated_chars) / total
    values_S[_DUP_TEXT_LINE_CHARS] = np.float64(repeated_text_chars) / max(count - num_feeds, 1)
    values_S[_DUP_PARAGRAPHS] = repeated_paragraphs / max(paragraphs, 1)
    values_S[_DUP_PARAGRAPH_CHARS] = np.float64(repeated_paragraph_chars) / total


@kernel
def measure_layout(
    code_points: NDArray[np.uint32],
    count: int,
    table: NDArray[np.uint32],
    prefix: NDArray[np.uint64],
    marks: NDArray[np.uint32],
    feeds: NDArray[np.uint32],
    keys: NDArray[np.uint64],
    values_S: NDArray[np.float32],
) -> None:
    """Write the rows of LINE_SIGNALS of code_points[0:count] into values_S, count > 0.

    `table`: `load_character_table`; the others are `LayoutScratch` for at least `count` code points.
    """
    size = _U64(count)
    num_marks = _0
    h = _0
    i = _0
    while i < size:
        # Two steps at once, so that one multiplication of latency serves two characters; an odd last one sees a 0.
        code_point = code_points[i]
        j = i + _1
        other = code_points[j] if j < size else _U32(0)
        prefix[i] = h
        prefix[j] = h * BASE + _U64(code_point)
        h = h * BASE_SQUARED + (_U64(code_point) * BASE + _U64(other))
        # Written for every character, kept for few: no branch is guessed wrong.
        marks[num_marks] = _U32(i)
        num_marks += _U64((table[code_point] & _MARKS) != _U32(0))
        marks[num_marks] = _U32(j)
        num_marks += _U64((table[other] & _MARKS) != _U32(0))
        i += _2
    if size & _1 == _0:
        prefix[size] = h
    num_feeds = _0
    i = _0
    while i < num_marks:
        feeds[num_feeds] = marks[i]
        num_feeds += _U64(code_points[marks[i]] == _FEED)
        i += _1
    capacity = _capacity(min(_2 * num_feeds + num_marks + _U64(8), _spans_of(size)))
    i = _0
    while i < capacity:
        keys[i] = _0
        i += _1
    mask = capacity - _1
    lines = np.int64(num_feeds)
    _measure_lines(code_points, count, table, prefix, feeds, lines, keys, mask, values_S)
    measure_sentences(code_points, count, table, prefix, marks, np.int64(num_marks), feeds, keys, mask, values_S)


@kernel
def _measure_documents(
    data: NDArray[np.uint8],
    offsets_D: NDArray[np.int64],
    classes: NDArray[np.uint8],
    flags_C: NDArray[np.uint32],
    table: NDArray[np.uint32],
    code_points: NDArray[np.uint32],
    stamps: NDArray[np.uint32],
    counts: NDArray[np.uint32],
    places: NDArray[np.uint32],
    prefix: NDArray[np.uint64],
    marks: NDArray[np.uint32],
    feeds: NDArray[np.uint32],
    keys: NDArray[np.uint64],
    values_DS: NDArray[np.float32],
    status_D: NDArray[np.uint8],
) -> None:
    for d in range(status_D.size):
        if status_D[d] > BLANK:
            continue
        if offsets_D[d] == offsets_D[d + 1]:
            status_D[d] = EMPTY
            continue
        count, valid = c.decode(data, offsets_D[d], offsets_D[d + 1], code_points)
        if not valid:
            status_D[d] = INVALID_UTF8
            continue
        values_S = values_DS[d]
        measure_characters(code_points, count, classes, flags_C, stamps, d + 1, counts, places, values_S)
        measure_layout(code_points, count, table, prefix, marks, feeds, keys, values_S)


def measure_layout_array(
    texts: pa.LargeStringArray | pa.LargeBinaryArray,
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """(float32[S, D], status uint8[D]) of HEURISTIC_SIGNALS; rows other than CHARACTER_SIGNALS and LINE_SIGNALS are 0,
    and so are the columns of documents with a status above BLANK (`taojin.core.status`)."""
    data, offsets_D = text_buffers(texts)
    status_D = np.zeros(len(texts), np.uint8)
    if texts.null_count:
        status_D[texts.is_null().to_numpy(zero_copy_only=False)] = NULL
    values_DS = np.zeros((len(texts), len(HEURISTIC_SIGNALS)), np.float32)
    longest = int(np.where(status_D > BLANK, 0, np.diff(offsets_D)).max(initial=0))
    classes = c.load_character_classes()
    _measure_documents(
        data,
        offsets_D,
        classes.of,
        classes.flags,
        c.load_character_table(),
        np.empty(longest, np.uint32),
        *makeup_scratch(longest),
        *layout_scratch(longest),
        values_DS,
        status_D,
    )
    return values_DS.T, status_D
