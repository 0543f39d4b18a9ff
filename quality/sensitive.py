"""Sensitive words: how many of the user's own words, by category, a document holds.

Text and words are folded alike (`taojin.core.fold`) into a compact string, so that full-width, Traditional, accented,
upper-case, zero-width stuffed and spaced spellings (法 轮, 法*轮, 法【轮】) are the same word:

- characters of scripts without spaces follow each other directly, whatever white space, brackets and signs lie between;
- a run of letters or digits stands between two marks of its own, so a word only matches whole runs: "ass" is neither in
  "class" nor in "as soon". Korean is written with spaces: list the forms with their particles;
- what ends a clause (line ends, commas, colons, semicolons, full stops, exclamation and question marks; not the ASCII
  full stop, which also stands between letters) is a mark too: 办法，轮流 holds no 法轮
  (random words of two to four characters had 5 % more hits in real text without this).

Words are found by Aho–Corasick automata of ahocorasick_rs (bindings of the Rust crate aho-corasick): it searches bytes
where they lie, has leftmost-longest matches, and makes Python objects of hits alone; pyahocorasick wants a Python
string per document and reports every match. One automaton a category, so that a list never changes what another one
counts; where there are several, an automaton of all words first finds the places worth searching.

Cost: 12 ms a MB of Chinese or English text with 5,000 words, whatever the number of lists, and about 2 µs a hit (one
core). Linear in the text for given lists: a word has at most MAX_WORD_LENGTH characters.
Memory: the folded form of 4 MB of text, or of one document if that is larger.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from taojin.core.errors import ConfigError
from taojin.core.fold import (
    BREAK,
    CODE_POINT_MASK,
    FOLD_VERSION,
    LETTER,
    MULTI,
    SURROGATE,
    SYMBOL,
    FoldTable,
    encode,
    load_fold_table,
)
from taojin.core.jit import inlined, kernel
from taojin.core.text import text_buffers

# A change of what matches must not resume a scan that counted otherwise.
MATCH_VERSION = 1
# Longer lines are sentences, and a match costs up to its automaton's depth.
MAX_WORD_LENGTH = 64
GROUP_BYTES = 4_000_000
# Folded bytes searched at a time: bounds the hits that lie in memory as Python tuples.
WINDOW_BYTES = 1_000_000
EXCERPT_BYTES = 60  # on either side: 20 Chinese characters
# Folded bytes per byte of text, at most: ﷺ, 3 bytes, becomes four words of 15 Arabic letters and 8 marks.
GROWTH = 13

# Control characters end runs when folded, so none of these can come from a text.
DOCUMENT_END, STOP, RUN_START, RUN_END = range(4)
_WITHOUT_MARKS = dict.fromkeys([STOP, RUN_START, RUN_END])
STOPS = "\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029,;:!?，、；：！？。｡､︰﹐﹑﹔﹕﹖﹗︐︑︒︓︔︕︖؟،؛।॥"

_CATEGORY = re.compile("[a-z][a-z0-9_]{0,31}")
_DISTINCT = "_distinct"

_U8 = np.uint8
_U32 = np.uint32
_U64 = np.uint64
_KIND_SHIFT = np.uint32(21)
_MASK = np.uint32(CODE_POINT_MASK)
_SYMBOL = np.uint32(SYMBOL)
_LETTER = np.uint32(LETTER)
_BREAK = np.uint32(BREAK)
_MULTI = np.uint32(MULTI)
_SURROGATE = np.uint32(SURROGATE)
_0 = np.uint64(0)
_1 = np.uint64(1)
_2 = np.uint64(2)
_3 = np.uint64(3)
_4 = np.uint64(4)
_TAG = np.uint32(0x80)
_TAG_MASK = np.uint32(0xC0)
_LOW6 = np.uint32(63)


class WordList(NamedTuple):
    """words: as the user wrote them, one for each distinct folded form · folded: their folded forms, in the same
    order · warnings: sentences for the user."""

    category: str
    words: tuple[str, ...]
    folded: tuple[bytes, ...]
    warnings: tuple[str, ...]


class Hit(NamedTuple):
    category: str
    word: str
    excerpt: str


class _Places(NamedTuple):
    """Pieces of a folded text, each closed by DOCUMENT_END: folded[at[p] :] is a copy of the text from starts[p] on."""

    folded: NDArray[np.uint8]
    at: NDArray[np.int64]
    starts: NDArray[np.int64]

    def origin(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Indices into the text, of indices into `folded`."""
        piece = np.searchsorted(self.at, indices, "right") - 1
        return indices - self.at[piece] + self.starts[piece]


@inlined
def _put(code_point: np.uint32, folded: NDArray[np.uint8], count: np.uint64) -> np.uint64:
    """Write a code point as UTF-8; returns the new count."""
    if code_point < _U32(0x80):
        folded[count] = _U8(code_point)
        return count + _1
    if code_point < _U32(0x800):
        folded[count] = _U8(_U32(0xC0) | (code_point >> _U32(6)))
        folded[count + _1] = _U8(_TAG | (code_point & _LOW6))
        return count + _2
    if code_point < _U32(0x10000):
        folded[count] = _U8(_U32(0xE0) | (code_point >> _U32(12)))
        folded[count + _1] = _U8(_TAG | ((code_point >> _U32(6)) & _LOW6))
        folded[count + _2] = _U8(_TAG | (code_point & _LOW6))
        return count + _3
    folded[count] = _U8(_U32(0xF0) | (code_point >> _U32(18)))
    folded[count + _1] = _U8(_TAG | ((code_point >> _U32(12)) & _LOW6))
    folded[count + _2] = _U8(_TAG | ((code_point >> _U32(6)) & _LOW6))
    folded[count + _3] = _U8(_TAG | (code_point & _LOW6))
    return count + _4


@kernel
def fold_text(
    data: NDArray[np.uint8],
    start: int,
    end: int,
    table: NDArray[np.uint32],
    expansions: NDArray[np.uint32],
    folded: NDArray[np.uint8],
    at: int,
    positions: NDArray[np.int64],
) -> tuple[int, int, bool]:
    """Fold data[start:end] for matching, into folded[at:]; table: see `match_table`.

    `folded` needs room for GROWTH × bytes + 2. `positions`: empty, or as long as `folded`: for every folded
    byte the index in `data` of the character it comes from. Returns (next free index of `folded`, code points, valid);
    a text that is not UTF-8 leaves nothing: its next free index is `at`.
    """
    i = _U64(start)
    stop = _U64(end)
    count = _U64(at)
    located = positions.size > 0
    chars = _0
    error = _U32(0)
    in_run = False
    while i < stop:
        here = i
        before = count
        lead = _U32(data[i])
        if lead < _U32(0x80):
            code_point = lead
            i += _1
        elif _U32(0xE0) <= lead and lead < _U32(0xF0) and i + _2 < stop:
            b1 = _U32(data[i + _1]) ^ _TAG
            b2 = _U32(data[i + _2]) ^ _TAG
            code_point = ((lead & _U32(15)) << _U32(12)) | ((b1 & _LOW6) << _U32(6)) | (b2 & _LOW6)
            error |= ((b1 | b2) & _TAG_MASK) | _U32(code_point < _U32(0x800))
            i += _3
        elif _U32(0xC2) <= lead and lead < _U32(0xE0) and i + _1 < stop:
            b1 = _U32(data[i + _1]) ^ _TAG
            error |= b1 & _TAG_MASK
            code_point = ((lead & _U32(31)) << _U32(6)) | (b1 & _LOW6)
            i += _2
        elif _U32(0xF0) <= lead and lead < _U32(0xF5) and i + _3 < stop:
            b1 = _U32(data[i + _1]) ^ _TAG
            b2 = _U32(data[i + _2]) ^ _TAG
            b3 = _U32(data[i + _3]) ^ _TAG
            code_point = ((lead & _U32(7)) << _U32(18)) | ((b1 & _LOW6) << _U32(12))
            code_point |= ((b2 & _LOW6) << _U32(6)) | (b3 & _LOW6)
            error |= ((b1 | b2 | b3) & _TAG_MASK) | _U32(code_point < _U32(0x10000))
            if code_point > _U32(0x10FFFF):
                error = _U32(1)
                code_point = _U32(0)
            i += _4
        else:
            error = _U32(1)
            code_point = _U32(0)
            i += _1
        chars += _1
        entry = table[code_point]
        first = _0
        last = _1
        if entry >> _KIND_SHIFT == _MULTI:
            first = _U64(entry & _MASK) + _1
            last = first + _U64(expansions[first - _1])
        k = first
        while k < last:
            if first != _0:
                entry = expansions[k]
            kind = entry >> _KIND_SHIFT
            value = entry & _MASK
            if kind == _LETTER:
                if not in_run:
                    folded[count] = _U8(RUN_START)
                    count += _1
                    in_run = True
                count = _put(value, folded, count)
            elif kind in (_SYMBOL, _BREAK):
                if in_run:
                    folded[count] = _U8(RUN_END)
                    count += _1
                    in_run = False
                if kind == _SYMBOL:
                    count = _put(value, folded, count)
                elif value != _U32(0):
                    # One mark however many stops: the byte is written again in its own place.
                    if count > _U64(at) and folded[count - _1] == _U8(STOP):
                        count -= _1
                        before = min(before, count)
                    folded[count] = _U8(STOP)
                    count += _1
            elif kind == _SURROGATE:
                error = _U32(1)
            k += _1
        if located:
            while before < count:
                positions[before] = np.int64(here)
                before += _1
    if in_run:
        folded[count] = _U8(RUN_END)
        if located:
            positions[count] = np.int64(stop)
        count += _1
    if error != _U32(0):
        count = _U64(at)
    return int(np.int64(count)), int(np.int64(chars)), bool(error == _U32(0))


@kernel
def _fold_documents(
    data: NDArray[np.uint8],
    offsets_D: NDArray[np.int64],
    present_D: NDArray[np.bool_],
    table: NDArray[np.uint32],
    expansions: NDArray[np.uint32],
    folded: NDArray[np.uint8],
    ends_D: NDArray[np.int64],
    chars_D: NDArray[np.int64],
) -> None:
    """Folded documents one behind the other, each closed by DOCUMENT_END, whose index plus one goes to ends_D."""
    nowhere = np.empty(0, np.int64)
    at = 0
    for d in range(ends_D.size):
        if present_D[d]:
            at, chars, valid = fold_text(data, offsets_D[d], offsets_D[d + 1], table, expansions, folded, at, nowhere)
            chars_D[d] = chars if valid else 0
        else:
            chars_D[d] = 0
        folded[at] = _U8(DOCUMENT_END)
        at += 1
        ends_D[d] = at


@cache
def match_table() -> FoldTable:
    """The fold table, with value 1 in the BREAK entries of STOPS. Made once per process (4.5 MB, 10 ms)."""
    table, expansions = load_fold_table()
    table = table.copy()
    for character in STOPS:
        table[ord(character)] = encode(BREAK, 1)
    table.flags.writeable = False
    return FoldTable(table, expansions)


def fold_word(word: str) -> bytes:
    """The form in which a word is looked for; empty if nothing of it can match. Raises UnicodeEncodeError."""
    data = np.frombuffer(word.encode(), np.uint8)
    folded = np.empty(GROWTH * len(data) + 2, np.uint8)
    table, expansions = match_table()
    size, _, _ = fold_text(data, 0, len(data), table, expansions, folded, 0, np.empty(0, np.int64))
    return folded[:size].tobytes().strip(bytes([STOP]))


def parse_lists(specs: Sequence[str]) -> tuple[WordList, ...]:
    """Read CATEGORY=PATH specifications: files of one word or phrase a line, UTF-8; blank lines and lines that begin
    with # do not count. Several files of one category are one list. Sorted by category.

    Raises ConfigError in one line: not CATEGORY=PATH, a file that cannot be read or is not UTF-8, no words, a word that
    folds to nothing, is a single letter or digit, or is longer than MAX_WORD_LENGTH.
    """
    found: dict[str, dict[bytes, str]] = {}
    for spec in specs:
        category, equals, path = spec.partition("=")
        if not equals or not path or not _CATEGORY.fullmatch(category) or category.endswith(_DISTINCT):
            raise ConfigError(
                f"--sensitive {spec}: expected CATEGORY=PATH, CATEGORY of a-z, 0-9 and _, beginning with a letter, at "
                f"most 32 of them and not ending in {_DISTINCT}"
            )
        words = found.setdefault(category, {})
        for folded, word in _read_words(path, f"--sensitive {category}={path}"):
            words.setdefault(folded, word)
    lists = []
    for category, words in sorted(found.items()):
        single = [word for folded, word in words.items() if len(folded.decode().translate(_WITHOUT_MARKS)) == 1]
        warnings: tuple[str, ...] = ()
        if single:
            warnings = (
                f"--sensitive {category}: {len(single)} words are a single character ({'、'.join(single[:5])}) and are "
                "found in every name and word that holds it",
            )
        lists.append(WordList(category, tuple(words.values()), tuple(words), warnings))
    return tuple(lists)


def _read_words(path: str, where: str) -> Iterator[tuple[bytes, str]]:
    """(folded, as written) of every word of a file."""
    try:
        # utf-8-sig: editors put a byte order mark in front, and the first line may be a comment.
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise ConfigError(f"{where}: cannot read the list: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: expected UTF-8, found byte {error.start} that is not; save it as UTF-8") from None
    empty = True
    for number, line in enumerate(lines, 1):
        word = " ".join(line.split())
        if not word or word.startswith("#"):
            continue
        folded = fold_word(word)
        characters = folded.decode().translate(_WITHOUT_MARKS)
        if not characters:
            problem = "has no letter, digit or character that could be found"
        elif len(characters) == 1 and folded[0] == RUN_START:
            problem = "is a single letter or digit"
        elif len(characters) > MAX_WORD_LENGTH:
            problem = f"is longer than {MAX_WORD_LENGTH} characters"
        else:
            empty = False
            yield folded, word
            continue
        raise ConfigError(f"{where}: line {number}: {_shortened(word)!r} {problem}; take it out or put # before it")
    if empty:
        raise ConfigError(f"{where}: expected one word a line, found no word")


def lists_part(lists: Sequence[WordList]) -> dict[str, Any]:
    """What a frozen plan keeps: equal for lists that find the same, whatever their files, order and spelling."""
    return {
        "match": MATCH_VERSION,
        "fold": FOLD_VERSION,
        "lists": {
            words.category: {
                "words": len(words.folded),
                "content": xxhash.xxh3_64_hexdigest(b"\0".join(sorted(words.folded))),
            }
            for words in lists
        },
    }


def signal_names(lists: Sequence[WordList]) -> tuple[str, ...]:
    """The signals of `SensitiveMatcher.measure`, in its order: of each list the hits per thousand characters of the
    document, and the distinct words hit."""
    names = [f"sensitive_{words.category}" for words in lists]
    return tuple(name + end for name in names for end in ("", _DISTINCT))


class SensitiveMatcher:
    """Counts the words of lists. Made once per process: 5,000 words take 40 ms."""

    def __init__(self, lists: Sequence[WordList]) -> None:
        """Raises ConfigError where ahocorasick_rs is not installed."""
        try:
            from ahocorasick_rs import BytesAhoCorasick, MatchKind
        except ImportError:
            raise ConfigError(
                "--sensitive: expected the package ahocorasick_rs, found none; run: pip install ahocorasick-rs"
            ) from None

        def automaton(folded: Sequence[bytes]) -> tuple[Any, int]:
            return BytesAhoCorasick(folded, MatchKind.LeftmostLongest), max(map(len, folded))

        self._lists = tuple(lists)
        self._automata = [automaton(words.folded) for words in lists]
        # Of all words, to leave out what no list has to search. Of one list it would do the same work twice.
        self._any = automaton([word for words in lists for word in words.folded]) if len(lists) > 1 else None

    def measure(self, texts: pa.LargeStringArray | pa.LargeBinaryArray) -> dict[str, NDArray[np.float32]]:
        """float32[D] for each signal; 0 for documents that are null or not UTF-8.

        Hits do not overlap: of several words at one place the longest counts, and the search goes on behind it.
        """
        signals = {name: np.zeros(len(texts), np.float32) for name in signal_names(self._lists)}
        if len(texts) == 0:
            return signals
        data, offsets_D = text_buffers(texts)
        present_D = texts.is_valid().to_numpy(zero_copy_only=False)
        first = 0
        while first < len(texts):
            behind = int(np.searchsorted(offsets_D, offsets_D[first] + GROUP_BYTES, "right")) - 1
            last = min(max(behind, first + 1), len(texts))
            self._measure_group(data, offsets_D[first : last + 1], present_D[first:last], first, signals)
            first = last
        return signals

    def _measure_group(
        self,
        data: NDArray[np.uint8],
        offsets_D: NDArray[np.int64],
        present_D: NDArray[np.bool_],
        first: int,
        signals: dict[str, NDArray[np.float32]],
    ) -> None:
        num = len(present_D)
        folded = np.empty(GROWTH * int(offsets_D[-1] - offsets_D[0]) + 3 * num, np.uint8)
        ends_D = np.empty(num, np.int64)
        chars_D = np.empty(num, np.int64)
        table, expansions = match_table()
        _fold_documents(data, offsets_D, present_D, table, expansions, folded, ends_D, chars_D)
        places = self._places(folded[: ends_D[-1]])
        for words, (automaton, longest) in zip(self._lists, self._automata, strict=True):
            hits_D = np.zeros(num, np.int64)
            found: list[NDArray[np.int64]] = []
            for hits in _search(automaton, longest, places.folded):
                documents = np.searchsorted(ends_D, places.origin(hits[:, 1]), "right")
                hits_D += np.bincount(documents, minlength=num)
                found.append(np.unique(documents * len(words.words) + hits[:, 0]))
            name = f"sensitive_{words.category}"
            if found:
                distinct = np.unique(np.concatenate(found)) // len(words.words)
                signals[name][first : first + num] = 1000 * hits_D / np.maximum(chars_D, 1)
                signals[name + _DISTINCT][first : first + num] = np.bincount(distinct, minlength=num)

    def evidence(self, text: str) -> list[Hit]:
        """For each list, each distinct word that `measure` counts, with its first place in the text. In text order."""
        encoded = text.encode(errors="replace")
        data = np.frombuffer(encoded, np.uint8)
        folded = np.empty(GROWTH * len(data) + 2, np.uint8)
        positions = np.empty(len(folded), np.int64)
        table, expansions = match_table()
        size, _, _ = fold_text(data, 0, len(data), table, expansions, folded, 0, positions)
        places = self._places(folded[:size])
        rows: list[tuple[int, Hit]] = []
        for words, (automaton, longest) in zip(self._lists, self._automata, strict=True):
            seen: set[int] = set()
            for hits in _search(automaton, longest, places.folded):
                for k in np.sort(np.unique(hits[:, 0], return_index=True)[1]):
                    word, start, end = hits[k].tolist()
                    if word not in seen:
                        seen.add(word)
                        # A mark behind the last letter has the place of the character that follows.
                        last = end - 1 - (places.folded[end - 1] == RUN_END)
                        first, last = positions[places.origin(np.array([start, last]))].tolist()
                        rows.append((first, Hit(words.category, words.words[word], _excerpt(encoded, first, last))))
        return [hit for _, hit in sorted(rows)]

    def _places(self, folded: NDArray[np.uint8]) -> _Places:
        """What of a folded text the lists have to search: wherever a word of a list begins, there, or a little before
        it, begins one that the automaton of all words finds."""
        nothing = np.zeros(0, np.int64)
        if self._any is None:
            return _Places(folded, np.zeros(1, np.int64), np.zeros(1, np.int64))
        automaton, longest = self._any
        # A word that begins at the last byte of a hit ends up to `longest` - 1 bytes behind it.
        spans = [
            _merged(hits[:, 1], np.minimum(hits[:, 2] + longest, len(folded)))
            for hits in _search(automaton, longest, folded)
        ]
        if not spans:
            return _Places(folded[:0], nothing, nothing)
        starts, ends = _merged(*(np.concatenate(side) for side in zip(*spans, strict=True)))
        behind = np.cumsum(ends - starts + 1)
        at = behind - (ends - starts + 1)
        gathered = np.empty(int(behind[-1]), np.uint8)
        _gather(folded, starts, ends, at, gathered)
        return _Places(gathered, at, starts)


def _merged(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Spans that touch or overlap become one; both starts and ends are sorted."""
    apart = np.flatnonzero(starts[1:] > ends[:-1])
    return starts[np.concatenate([[0], apart + 1])], ends[np.concatenate([apart, [len(ends) - 1]])]


@kernel
def _gather(
    folded: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    at: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> None:
    for p in range(starts.size):
        size = ends[p] - starts[p]
        for j in range(size):
            out[at[p] + j] = folded[starts[p] + j]
        out[at[p] + size] = _U8(DOCUMENT_END)


def _search(automaton: Any, longest: int, folded: NDArray[np.uint8]) -> Iterator[NDArray[np.int64]]:
    """All hits, as int64[hits, 3] of word, start and end, WINDOW_BYTES of text at a time; cuts lose and add nothing.

    A hit that begins in a window lies whole within it and `longest` further bytes; the search goes on behind it.
    """
    start = 0
    while start < len(folded):
        limit = start + WINDOW_BYTES
        found = automaton.find_matches_as_indexes(folded[start : limit + longest])
        if found:
            hits = np.fromiter(chain.from_iterable(found), np.int64, 3 * len(found)).reshape(-1, 3)
            hits[:, 1:] += start
            hits = hits[hits[:, 1] < limit]
            if len(hits):
                limit = max(limit, int(hits[-1, 2]))
                yield hits
        start = limit


def _excerpt(text: bytes, first: int, last: int) -> str:
    """The characters that begin at bytes first…last, with EXCERPT_BYTES around them, on one line."""
    around = text[max(0, first - EXCERPT_BYTES) : last + EXCERPT_BYTES].decode(errors="ignore")
    return " ".join(around.split())


def _shortened(word: str) -> str:
    return word if len(word) <= 20 else word[:20] + "…"
