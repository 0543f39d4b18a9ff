"""Slow, obvious oracles of the repetition signals: strings, Counters and sets, nothing shared with the code under test.

Also the words that tests work on: cut at white space, each Chinese character alone.
"""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

HAS_LETTER, IS_MARK, ALONE_SYMBOL = 1, 2, 4
LISTS = {
    "en": {"the", "be", "to", "of", "and", "that", "have", "with"},
    "zh": set("的年在月是和日了於·為有被人中为他與後也而由"),
    "yue": {*"嘅係年喺有佢月個咗一同呢人唔都到號國啲後就會市鎮而嚟由嗰做為", "香港", "可以"},
    "ja": set("のにをはたてがとで年し・月れさ"),
    "ko": {*"의다이는에을한년하은를했고가있인월로되", "에서", "으로"},
}


class Word(NamedTuple):
    text: str
    start: int

    @property
    def flags(self) -> int:
        if not any(c.isalnum() for c in self.text):
            return IS_MARK
        alone = ALONE_SYMBOL if len(self.text) == 1 and "\u3040" <= self.text <= "\u9fff" else 0
        return HAS_LETTER | alone

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def split(text: str, segmented: bool = False) -> list[Word]:
    """Runs of what is not white space; characters of U+3040…9FFF and marks alone unless `segmented`."""
    pattern = r"\S+" if segmented else r"[\u3040-\u9fff]|[^\s\w]|[^\s\W\u3040-\u9fff]+"
    return [Word(match[0], match.start()) for match in re.finditer(pattern, text)]


class Arrays(NamedTuple):
    code_points: NDArray[np.uint32]
    chars: int
    starts: NDArray[np.uint32]
    ends: NDArray[np.uint32]
    hashes: NDArray[np.uint64]
    flags: NDArray[np.uint8]
    num: int


def arrays(text: str, words: Sequence[Word]) -> Arrays:
    """What the word splitter hands to the kernel; one element more than there is, which nobody may read."""
    known: dict[str, int] = {}
    for word in words:
        if word.text not in known:
            known[word.text] = int.from_bytes(hashlib.blake2b(word.text.encode(), digest_size=8).digest())
    return Arrays(
        np.array([*map(ord, text), 0x7FFFFFFF], np.uint32),
        len(text),
        np.array([*(word.start for word in words), 0], np.uint32),
        np.array([*(word.end for word in words), 2**31], np.uint32),
        np.array([*(known[word.text] for word in words), 0], np.uint64),
        np.array([*(word.flags for word in words), 255], np.uint8),
        len(words),
    )


def top_length(words: Sequence[Word], n: int, gap_counts: bool) -> int:
    grams = Counter(tuple(words[i + k].text for k in range(n)) for i in range(len(words) - n + 1))
    if not grams:
        return 0
    gram, count = grams.most_common(1)[0]
    flags = {word.text: word.flags for word in words}
    gaps = sum(gap_counts or not (flags[a] & ALONE_SYMBOL and flags[b] & ALONE_SYMBOL) for a, b in pairwise(gram))
    return (sum(map(len, gram)) + gaps) * count


def duplicate_length(words: Sequence[str], n: int) -> int:
    unique = set()
    length = i = 0
    while i <= len(words) - n:
        gram = tuple(words[i : i + n])
        if gram in unique:
            length += sum(map(len, gram))
            i += n
        else:
            unique.add(gram)
            i += 1
    return length


def repeated_share(items: Sequence[object]) -> float:
    counts = Counter(items)
    return sum(count for count in counts.values() if count > 1) / len(items) if items else 0.0


def character_repetition(text: str, n: int = 10) -> float:
    """data-juicer's, of all windows."""
    counts = sorted(Counter(text[i : i + n] for i in range(len(text) - n + 1)).values(), reverse=True)
    if not counts:
        return 0.0
    repeated = min(int(math.sqrt(len(counts))), len(counts) - counts.count(1))
    return sum(counts[:repeated]) / sum(counts)


def sampled_positions(num: int, most: int = 2048) -> list[int]:
    """Of `num` windows of 10; a stretch of the smallest power of two that leaves at most `most`."""
    stretch = 1
    while math.ceil(num / stretch) > most:
        stretch *= 2
    golden = 0x9E3779B97F4A7C15
    places = [i * stretch + (i * golden % 2**64) * stretch // 2**64 for i in range(math.ceil(num / stretch))]
    return [place for place in places if place < num]


def sampled_shares(text: str) -> tuple[float, float]:
    """Both shares of repeated windows of characters, estimated from the sampled positions."""
    short, long = ([text[i : i + n] for i in range(len(text) - n + 1)] for n in (10, 13))
    if not short:
        return 0.0, 0.0
    places = sampled_positions(len(short))
    counts, long_counts = Counter(short), Counter(long)
    # A sample of a window that occurs c times stands for 1/c of that window.
    by_count = sorted(Counter(counts[short[i]] for i in places).items(), reverse=True)
    scale = Fraction(len(short), len(places))
    distinct = sum(scale * Fraction(samples, count) for count, samples in by_count)
    left = Fraction(math.isqrt(int(distinct)))
    taken = Fraction(0)
    for count, samples in by_count:
        if count > 1:
            windows = min(left, scale * Fraction(samples, count))
            taken += windows * count
            left -= windows
    of_long = [long_counts[long[i]] > 1 for i in places if i < len(long)]
    return float(taken / len(short)), sum(of_long) / max(len(of_long), 1)


def stop_entry(word: str, name: str) -> str | None:
    """The entry of the list that a word stands for."""
    if name == "ko" and "가" <= word[-1] <= "힣":
        return next((word[-n:] for n in (2, 1) if len(word) >= n and word[-n:] in LISTS["ko"]), None)
    return word if word in LISTS[name] else None


def signals(text: str, words: Sequence[Word], gap_counts: bool) -> dict[str, float]:
    """Every one of REPETITION_SIGNALS."""
    values: dict[str, float] = {}
    all_texts = [word.text for word in words]
    texts = [word.text for word in words if not word.flags & IS_MARK]
    chars = max(len(text), 1)
    for n in (2, 3, 4):
        values[f"top_{n}gram_share"] = top_length(words, n, gap_counts) / chars
    for n in range(5, 11):
        values[f"dup_{n}gram_share"] = duplicate_length(all_texts, n) / chars
    values["char_10gram_repetition"], values["char_13gram_repetition"] = sampled_shares(text)
    grams = [tuple(all_texts[i : i + 10]) for i in range(len(words) - 9)]
    values["word_10gram_repetition"] = repeated_share(grams)
    counts = Counter(texts)
    values["unique_word_share"] = len(counts) / max(len(texts), 1)
    shares = [count / len(texts) for count in counts.values()]
    values["unigram_entropy"] = -sum(share * math.log(share) for share in shares)
    for name in LISTS:
        found = [entry for entry in (stop_entry(word, name) for word in all_texts) if entry]
        of_words = sum(stop_entry(word, name) is not None for word in texts)
        if not gap_counts:
            for a, b in pairwise(words):
                if a.flags & b.flags & ALONE_SYMBOL and a.end == b.start and a.text + b.text in LISTS[name]:
                    found.append(a.text + b.text)
                    of_words += 2
        values[f"stop_words_{name}"] = len(set(found))
        values[f"stop_word_share_{name}"] = of_words / max(len(texts), 1)
    return values
