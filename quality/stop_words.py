"""Stop words: short lists of the most frequent words of a language, as published rules use them.

A document's signal is the number of distinct words of a list that it holds, and their share. Words are compared as they
are written: datatrove's Gopher rule counts "the" but not "The". Marks in a list (· and ・) count as distinct words, as
in datatrove, but enter no share.

Two lists need help, since their sources use segmenters that cut text differently from ours:

- *Chinese, Cantonese, Japanese* where each character is a word: 香港 and 可以 match as two adjacent characters, and
  both count for the share.
- *Korean*: FineWeb-2 cuts words into morphemes, so its list is mostly particles and endings that are no words by
  themselves. A word in Hangul counts for the longest entry that it ends with: 공부를 for 를, 집에서 for 에서.

Cost: one look-up for each distinct word of a document.

Suffixes: _H slots of a hash table, _E entries (distinct words of all lists, numbered from 1), _P pairs.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taojin.core.jit import inlined
from taojin.quality.signals import STOP_WORD_LISTS

_U64 = np.uint64
_0 = np.uint64(0)
_1 = np.uint64(1)

# en: Gopher (arXiv 2112.11446, appendix A). The others: `stopwords` of FineWeb-2's configs cmn_Hani, yue_Hani, jpn_Jpan
# and kor_Hang (github.com/huggingface/fineweb-2, configs/*.yml).
STOP_WORDS = {
    "en": "the be to of and that have with",
    "zh": "的 年 在 月 是 和 日 了 於 · 為 有 被 人 中 为 他 與 後 也 而 由",
    "yue": "嘅 係 年 喺 有 佢 月 個 咗 香港 一 同 呢 人 唔 都 到 號 國 啲 後 就 會 市 鎮 而 嚟 可以 由 嗰 做 為",
    "ja": "の に を は た て が と で 年 し ・ 月 れ さ",
    "ko": "의 다 이 는 에 을 한 년 하 은 를 했 고 에서 가 있 으로 인 월 로 되",
}
_ENTRIES = sorted({word for words in STOP_WORDS.values() for word in words.split()})
_PAIRS = [word for word in _ENTRIES if len(word) == 2 and "\u4e00" <= min(word) <= max(word) <= "\u9fff"]
_LONGEST = np.uint64(max(map(len, _ENTRIES)))
_LONGEST_ENDING = np.uint64(max(map(len, STOP_WORDS["ko"].split())))
_TOP_BITS = np.uint64(56)  # 256 slots, three for each entry: most look-ups end at the first
_LAST_SLOT = np.uint64(255)
_MULTIPLIER = 0x9FB21C651E98DF25
# Of ten distinct words eight or nine are too long or end as no entry does: they are not looked up.
_LAST_END = np.uint64(1023)
_MAY_END = np.zeros(int(_LAST_END) + 1, np.bool_)
_MAY_END[[ord(word[-1]) & int(_LAST_END) for word in (*_ENTRIES, *"".join(_PAIRS))]] = True
_FIRST_HANGUL = np.uint32(0xAC00)
_LAST_HANGUL = np.uint32(0xD7A3)


class StopTable(NamedTuple):
    """What `find_stop_word` looks up; read-only, shared by all documents.

    slots: uint32[H], an entry's number or 0 · keys: uint64[E + 1] · lists: uint8[E + 1], bit n for the n-th of
    STOP_WORD_LISTS · pairs: uint32[P, 3], the entries of first character, second character, and both
    """

    slots: NDArray[np.uint32]
    keys: NDArray[np.uint64]
    lists: NDArray[np.uint8]
    pairs: NDArray[np.uint32]


@cache
def stop_table() -> StopTable:
    """The table of STOP_WORDS. Characters of pairs have entries too, on no list of their own."""
    entries = sorted({*_ENTRIES, *"".join(_PAIRS)})
    number = {word: index for index, word in enumerate(entries, start=1)}
    slots = np.zeros(int(_LAST_SLOT) + 1, np.uint32)
    keys = np.zeros(len(entries) + 1, np.uint64)
    lists = np.zeros(len(entries) + 1, np.uint8)
    for word, entry in number.items():
        key = 0
        for character in word:
            key = (key ^ ord(character)) * _MULTIPLIER % 2**64
        keys[entry] = key
        slot = key >> int(_TOP_BITS)
        while slots[slot]:
            slot = (slot + 1) % len(slots)
        slots[slot] = entry
        lists[entry] = sum((word in STOP_WORDS[name].split()) << bit for bit, name in enumerate(STOP_WORD_LISTS))
    pairs = np.array([(number[word[0]], number[word[1]], number[word]) for word in _PAIRS], np.uint32)
    return StopTable(slots, keys, lists, pairs)


@inlined
def find_stop_word(
    code_points: NDArray[np.uint32],
    start: np.uint64,
    end: np.uint64,
    slots_H: NDArray[np.uint32],
    keys_E: NDArray[np.uint64],
) -> np.uint64:
    """The entry of the word code_points[start:end], start < end, or of a Hangul word's ending; 0 if there is none."""
    last = code_points[end - _1]
    hangul = last >= _FIRST_HANGUL and last <= _LAST_HANGUL
    length = end - start
    entry = _0
    if _MAY_END[_U64(last) & _LAST_END] and (hangul or length <= _LONGEST):
        length = min(length, _LONGEST_ENDING) if hangul else length
        while length > _0 and entry == _0:
            key = _0
            i = end - length
            while i < end:
                key = (key ^ _U64(code_points[i])) * _U64(_MULTIPLIER)
                i += _1
            slot = key >> _TOP_BITS
            entry = _U64(slots_H[slot])
            while entry != _0 and keys_E[entry] != key:
                slot = (slot + _1) & _LAST_SLOT
                entry = _U64(slots_H[slot])
            length = length - _1 if hangul else _0
    return entry
