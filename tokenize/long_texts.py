"""Cut texts that hold a long run of Han or kana, where nothing can change: the ids of the parts, joined, are those of
the whole.

Pairs of one pre-token are merged in time that grows faster than its length: a run of 400,000 characters costs two to
four times what the same characters cost in sentences. Such a run is cut, but only at *borders* where this is provable
from the tokenizer's own file. What is not provable stays whole: slower, never different.

In: texts in an Arrow buffer. Out: the same buffer with more offsets, and how many parts each text has.
Cost: a text of less than LONG_BYTES is not looked at; of others, 16 bytes in 8 kB. A tokenizer's file is analysed at a
process's first long run, in 0.4 s. Left to others: encoding (without special tokens around a text), joining the ids
(`rejoin` gives the offsets), and whether the backends agree.

Why a cut is safe. CORE is a set of Han and kana: letters of three bytes that NFC and NFKC leave alone and that never
compose with what is before them. A border x|y has `margin` characters of CORE on either side.
1. *Added tokens, normalizer.* No added token, as written or as normalized, holds a character of CORE (else nothing is
   cut). So none reaches into the margins, and on either side they are found as in the whole. Normal forms do not reach
   over the border, as y starts anew in both.
2. *Pre-tokenizer*: a sequence of splits by regex, and each alternative of a regex is known (ALTERNATIVES). At most one
   of them matches CORE: it takes all letters that follow, and at most one character before them, which is no letter.
   Hence the match that enters a run of CORE contains the whole run, and the border lies inside one piece, M = M1 + M2.
   Left of the border alone, the same matches are found, and the last ends at the border: nothing looks behind, and
   what looks ahead sees one character behind white space, so nothing that is decided before M lies behind the border.
   Right of the border alone, the first match takes y as a letter and ends where M ends. So the pieces are those of the
   whole with M cut in two. A split that matches nothing of CORE leaves the run in one piece. In either case the next
   split finds the same situation inside a piece.
   Alternatives that tell capitals from small letters (o200k) may be in another state inside M than where a text starts.
   That matters only to letters and marks behind the run, so a run that some follow is not cut there.
3. *Merges.* All that byte-level BPE ever holds are entries of the vocabulary, at their places in M (all 256 bytes are
   entries, so none is dropped). If no entry occurs across the border, no merge joins its sides, and each side makes its
   own merges in the order it would alone: its lowest rank first, leftmost first. An entry across x|y has the
   last 1, 2 or 3 bytes of x, followed by the first 1, 2 or 3 bytes of y, as the three (or fewer, at its ends)
   bytes around one of its own borders; `crossing` holds those of all entries.
4. *Whole pieces that are entries* are taken without merges by some backends (`ignore_merges`). M1 and M2 are none: they
   hold two neighbours of CORE and are, by their margins, longer than every entry that does.
"""

import base64
import re
import unicodedata
from collections.abc import Iterable
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

# Measured with nothing cached: per character, a run of 10,000 costs what texts of 60 do, of 30,000 up to a third more,
# of 400,000 two to three times as much. Runs of 16 kB, 5,400 characters, are sure to be found.
LONG_BYTES = 16384
STEP_BYTES = 8192  # every run of two steps holds a whole one that starts at a multiple
PROBE_BYTES = (16, 64, 512, STEP_BYTES)  # of each step, as long as it may be part of a run
PART_BYTES = 6000  # 2,000 characters; half or twice as much costs the same
TRIES = 64  # borders looked at for one cut: of Han text a third to a half are safe, so nearly always some is

CORE = "一-龥ぁ-ゖァ-ヺー"  # the narrowest class of ALTERNATIVES has no more Han than U+9FA5
_RUN = re.compile(f"[{CORE}]+")
# Characters that are neither letters nor marks in any version of Unicode and under any normal form.
_ENDS_RUN = re.compile(r"[\x00-@\[-`{-\x7f。、！-／：-＠]|\Z")
_CROSSING = re.compile(rb"(?<=[\x80-\xbf])[\xe3-\xe9]")  # the first byte of a CORE character, behind another character

# The alternatives of the splits of GPT-2, cl100k, o200k, Llama 3, Qwen, DeepSeek and Tekken, as their files write them,
# by what they do with CORE. INERT ones match none of it. LETTERS take all letters there are, after at most one
# character that is none. Two tell CAPITALS and small letters apart: those of o200k, in this order.
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_INERT = (
    *("'s", "'t", "'re", "'ve", "'m", "'ll", "'d"),
    *(_CONTRACTIONS, "'(?i:[sdmt]|ll|ve|re)", "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"),
    *(r"\p{N}", r"\p{N}+", r" ?\p{N}+", r"\p{N}{1,3}", r"\p{N}{1,3}+"),
    *(r"\s", r"\s+", r"\s++$", r"\s+(?!\S)", r"\s*[\r\n]", r"\s*[\r\n]+", r"[\r\n]"),
    *(r" ?[^\s\p{L}\p{N}]+", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}]+[\r\n/]*"),
    *(r" ?[^\s\p{L}\p{N}]++[\r\n]*", r" ?[^\s\p{L}\p{N}]++[\r\n]*+", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"),
    *(r"\s?\p{P}+", r" ?[\p{P}\p{S}]+[\r\n]*", r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""),
)
_LETTERS = (
    *(r"\p{L}+", r" ?\p{L}+", r"\s?\p{L}+", r"[一-龥぀-ゟ゠-ヿ]+"),
    *(r"[^\r\n\p{L}\p{N}]?\p{L}+", r"[^\r\n\p{L}\p{N}]?+\p{L}+", r"[^\r\n\p{L}\p{N}]?+\p{L}++"),
    *(r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"),
)
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
INERT, LETTERS, CAPITALS_FIRST, CAPITALS = "inert", "letters", "capitals first", "capitals"
ALTERNATIVES = {
    **dict.fromkeys(_INERT, INERT),
    **dict.fromkeys(_LETTERS, LETTERS),
    **dict.fromkeys([f"{_BEFORE}{_UPPER}*{_LOWER}+{end}" for end in ("", f"{_CONTRACTIONS}?")], CAPITALS_FIRST),
    **dict.fromkeys([f"{_BEFORE}{_UPPER}+{_LOWER}*{end}" for end in ("", f"{_CONTRACTIONS}?")], CAPITALS),
}
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # of ByteLevel with use_regex


class Borders(NamedTuple):
    """Where a tokenizer lets a run be cut.

    crossing: bytes around the borders inside entries · margin: characters of CORE on either side · cased: only in runs
    that no letter or mark follows.
    """

    crossing: frozenset[bytes]
    margin: int
    cased: bool

    def between(self, left: str, right: str) -> bool:
        """Whether no entry crosses from one CORE character to the next."""
        x, y = left.encode(), right.encode()
        return not any(x[-i:] + y[:j] in self.crossing for i in (1, 2, 3) for j in (1, 2, 3))

    def near(self, text: memoryview, at: int) -> int:
        """The first border from byte `at` on, or 0 if none is near; bounded, so that a text costs linear time."""
        while text[at] & 0xC0 == 0x80:
            at += 1
        characters = bytes(text[at : at + 3 * (2 * self.margin + TRIES)]).decode(errors="ignore")
        for run in _RUN.finditer(characters):
            for k in range(run.start() + self.margin, run.end() - self.margin + 1):
                if self.between(characters[k - 1], characters[k]):
                    return at + len(characters[:k].encode())
        return 0

    def of(self, text: memoryview) -> list[int]:
        """Where `text`, valid UTF-8, is cut: ascending byte offsets, PART_BYTES or more apart."""
        found = []
        part = max(PART_BYTES, 3 * (2 * self.margin + TRIES))
        run_end, ends_well = 0, True
        at = part
        while at + part <= len(text):
            border = self.near(text, at)
            if border and self.cased and border >= run_end:
                run_end, ends_well = _end_of_run(text, border)
            if border and ends_well:
                found.append(border)
            at = max(at, border) + part
        return found


class Cutter:
    """The borders of one tokenizer, found in its file when a process meets the first long run."""

    def __init__(self, data: bytes, pattern: str | None = None, specials: tuple[str, ...] = ()) -> None:
        self._data, self._pattern, self._specials = data, pattern, specials

    @staticmethod
    @lru_cache(maxsize=4)
    def of(data: bytes) -> "Cutter":
        """For the bytes of a tokenizer.json; one object per process, so that it is analysed once."""
        return Cutter(data)

    @staticmethod
    @lru_cache(maxsize=4)
    def of_ranks(data: bytes, pattern: str, specials: tuple[str, ...]) -> "Cutter":
        """For a tiktoken rank file with its split regex and the texts of its special tokens."""
        return Cutter(data, pattern, specials)

    @cached_property
    def borders(self) -> Borders | None:
        """None: nothing is provable, so nothing is cut."""
        if self._pattern is None:
            return _borders_of_json(self._data)
        return _borders_of_ranks(self._data, self._pattern, self._specials)


def cut_long(texts: pa.LargeStringArray, cutter: Cutter) -> tuple[pa.LargeStringArray, NDArray[np.int32]]:
    """Cut the texts that hold a long run.

    `texts`: valid UTF-8, no nulls, any slice. Returns the parts in order, in the same data buffer, and how many each
    text has: int32[len(texts)], at least 1.
    """
    counts_D = np.ones(len(texts), np.int32)
    if len(texts) == 0:
        return texts, counts_D
    _, offset_buffer, data_buffer = texts.buffers()
    offsets_D = np.frombuffer(offset_buffer, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    if data_buffer is None or np.diff(offsets_D).max() < LONG_BYTES:
        return texts, counts_D
    rows = rows_with_long_runs(np.frombuffer(data_buffer, np.uint8), offsets_D)
    borders = cutter.borders if len(rows) else None
    if borders is None:
        return texts, counts_D
    data = memoryview(data_buffer)
    cuts = [offsets_D]
    for row in rows.tolist():
        start, end = int(offsets_D[row]), int(offsets_D[row + 1])
        found = borders.of(data[start:end])
        cuts.append(start + np.array(found, np.int64))
        counts_D[row] += len(found)
    offsets_P = np.sort(np.concatenate(cuts))
    return pa.LargeStringArray.from_buffers(len(offsets_P) - 1, pa.py_buffer(offsets_P), data_buffer), counts_D


def rejoin(offsets_P: NDArray[np.int64], counts_D: NDArray[np.int32]) -> NDArray[np.int64]:
    """Offsets of texts (int64[texts + 1]) from those of their parts (int64[parts + 1]), in tokens or bytes."""
    return offsets_P[np.concatenate(([0], np.cumsum(counts_D, dtype=np.int64)))]


def rows_with_long_runs(data: NDArray[np.uint8], offsets_D: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows of LONG_BYTES or more with a stretch, STEP_BYTES long, of nothing but Han, kana and ASCII letters.

    Finds every stretch of 2 × STEP_BYTES within a row; also shorter ones, and other characters that share their bytes,
    which costs a look at the text and changes nothing.
    """
    start, end = int(offsets_D[0]), int(offsets_D[-1])
    steps = (end - start) // STEP_BYTES
    grid = data[start : start + steps * STEP_BYTES].reshape(steps, STEP_BYTES)
    unbroken = np.arange(steps)
    for probe in PROBE_BYTES:
        # Some at a time: a batch may be a single run.
        chunks = [unbroken[i : i + 1024] for i in range(0, len(unbroken), 1024)]
        unbroken = np.concatenate([unbroken[:0], *(chunk[~_broken(grid[chunk, :probe])] for chunk in chunks)])
    rows = np.unique(np.searchsorted(offsets_D, start + unbroken * STEP_BYTES, side="right") - 1)
    return rows[np.diff(offsets_D)[rows] >= LONG_BYTES]


# Bytes no run has: ASCII but letters; leads of two-byte characters, of U+1000-2FFF (dashes, quotes) and of U+A000 and
# above (full-width marks).
_BREAKS = np.ones(256, bool)
_BREAKS[0x80:0xC0] = _BREAKS[0xE3:0xEA] = _BREAKS[ord("A") : ord("Z") + 1] = _BREAKS[ord("a") : ord("z") + 1] = False


def _broken(grid: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Per row, whether some byte is none of a run's; E3 80 are the punctuation marks 、。「」 and their like."""
    marks = (grid[:, :-1] == 0xE3) & (grid[:, 1:] == 0x80)
    broken: NDArray[np.bool_] = _BREAKS[grid].any(axis=1) | marks.any(axis=1)
    return broken


def _end_of_run(text: memoryview, at: int) -> tuple[int, bool]:
    """Where the run of CORE characters around byte `at` ends, and whether no letter or mark can follow there."""
    while True:
        characters = bytes(text[at : at + STEP_BYTES]).decode(errors="ignore")
        run = _RUN.match(characters)
        length = run.end() if run else 0
        if length < len(characters) or not characters:
            return at + 3 * length, _ENDS_RUN.match(characters, length) is not None
        at += 3 * length


def _borders_of_json(data: bytes) -> Borders | None:
    try:
        spec = orjson.loads(data)
        model = spec["model"]
        if (
            model["type"] != "BPE"
            or any(model.get(name) for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"))
            or any(spec.get(name) for name in ("truncation", "padding"))
            or not _keeps_core(spec.get("normalizer"))
        ):
            return None
        splits = _splits(spec["pre_tokenizer"])
        added = [token["content"] for token in spec.get("added_tokens") or ()]
        return None if splits is None else _borders(_entries(model["vocab"]), splits, added)
    except (ValueError, TypeError, KeyError, AttributeError):  # a structure that is not known
        return None


def _borders_of_ranks(data: bytes, pattern: str, specials: tuple[str, ...]) -> Borders | None:
    try:
        entries = [base64.b64decode(line.split()[0]) for line in data.splitlines() if line.strip()]
    except ValueError:
        return None
    return _borders(entries, [pattern], specials)


def _borders(entries: list[bytes], splits: list[str], added: Iterable[str]) -> Borders | None:
    kinds = [_kinds(pattern) for pattern in splits]
    if any(kind not in ((), (LETTERS,), (CAPITALS_FIRST, CAPITALS)) for kind in kinds):
        return None
    if any(_RUN.search(text) or _RUN.search(unicodedata.normalize("NFKC", text)) for text in added):
        return None
    if len({entry for entry in entries if len(entry) == 1}) < 256:
        return None
    crossing: set[bytes] = set()
    longest = 0
    for entry in entries:
        for border in _CROSSING.finditer(entry):
            i = border.start()
            crossing.add(entry[max(0, i - 3) : i + 3])
            longest = max(longest, len(entry))
    # Two at least: a piece with a single character of CORE could be an entry without a border.
    return Borders(frozenset(crossing), max(2, longest // 3 + 1), (CAPITALS_FIRST, CAPITALS) in kinds)


def _kinds(pattern: str) -> tuple[str, ...] | None:
    """What the alternatives of a split do with CORE characters, those that match none left out; None: not known."""
    kinds = []
    # Some files write the characters themselves.
    rest: str | None = pattern.replace("\r", r"\r").replace("\n", r"\n")
    while rest is not None:
        # Each known alternative is a whole regex, so text that is made of them with | between is their alternation.
        known = next((text for text in ALTERNATIVES if rest == text or rest.startswith(text + "|")), None)
        if known is None:
            return None
        kinds.append(ALTERNATIVES[known])
        rest = rest[len(known) + 1 :] if rest != known else None
    return tuple(kind for kind in kinds if kind != INERT)


def _splits(pre_tokenizer: Any) -> list[str] | None:
    """The regexes of a pre-tokenizer that splits by regexes and then maps bytes; None for any other."""
    nested = pre_tokenizer["type"] == "Sequence"
    *steps, last = pre_tokenizer["pretokenizers"] if nested else [pre_tokenizer]
    if last["type"] != "ByteLevel" or last["add_prefix_space"]:
        return None
    patterns = []
    for step in steps:
        if step["type"] == "Digits":
            continue
        behaviour = (step.get("behavior"), step.get("invert"))
        if step["type"] != "Split" or behaviour not in (("Isolated", False), ("Removed", True)):
            return None
        patterns.append(step["pattern"]["Regex"])
    return [*patterns, _GPT2] if last.get("use_regex", True) else patterns


def _keeps_core(normalizer: Any) -> bool:
    """Whether a normalizer is made of normal forms that compose: CORE characters stay, and end what is before them."""
    if normalizer is None:
        return True
    if normalizer.get("type") == "Sequence":
        return all(_keeps_core(step) for step in normalizer.get("normalizers", ()))
    return normalizer.get("type") in ("NFC", "NFKC")


def _entries(vocabulary: dict[str, int]) -> list[bytes]:
    """Entries as bytes. Byte-level BPE writes a byte as itself where that prints in Latin-1, else as U+0100 and on, in
    order; an entry with other characters cannot be built from bytes. Source: GPT-2's bytes_to_unicode."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    table = {byte: byte for byte in printable}
    table |= {0x100 + n: byte for n, byte in enumerate(sorted(set(range(256)) - printable))}
    # What the alphabet lacks must not look like a byte.
    table |= {byte: 0x100 for byte in range(256) if byte not in printable}
    entries = []
    for text in vocabulary:
        try:
            entries.append(text.translate(table).encode("latin-1"))
        except UnicodeEncodeError:
            continue
    return entries
