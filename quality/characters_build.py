"""Build the character table: what kind each Unicode code point is.

    python -m taojin.quality.characters_build          writes quality/characters-v1.npz

The table is shipped as a file because Python versions carry different Unicode data, and a signal that depends on the
interpreter could not be compared. Rebuild it only together with a new `CHARACTERS_VERSION`.

Sources: Unicode 14 as Python 3.11 has it; Sentence_Terminal of Unicode 15 and the Khmer signs that FineWeb adds;
OpenCC's character tables (Apache-2.0, read from the package opencc-python-reimplemented); the fold's SYMBOL class.
"""

import sys
import unicodedata
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from taojin.core import fold
from taojin.quality import characters as c

Ranges = tuple[tuple[int, int], ...]

# Unicode script Han, planes 2 and 3 whole.
_HAN: Ranges = (
    (0x2E80, 0x2FD5),
    (0x3005, 0x3005),
    (0x3007, 0x3007),
    (0x3021, 0x3029),
    (0x3038, 0x303B),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAD9),
    (0x16FE2, 0x16FE3),
    (0x16FF0, 0x16FF1),
    (0x20000, 0x3FFFD),
)
# Unicode scripts Hiragana and Katakana without squared words, and the half-width forms.
_KANA: Ranges = (
    (0x3041, 0x3096),
    (0x309D, 0x309F),
    (0x30A1, 0x30FA),
    (0x30FC, 0x30FF),
    (0x31F0, 0x31FF),
    (0xFF66, 0xFF9F),
    (0x1AFF0, 0x1B167),
)
_HANGUL: Ranges = (
    (0x1100, 0x11FF),
    (0x3131, 0x318E),
    (0xA960, 0xA97C),
    (0xAC00, 0xD7A3),
    (0xD7B0, 0xD7FB),
    (0xFFA0, 0xFFDC),
)
_STOP: Ranges = (
    (0x21, 0x21), (0x2E, 0x2E), (0x3F, 0x3F), (0x589, 0x589), (0x61D, 0x61F), (0x6D4, 0x6D4), (0x700, 0x702),
    (0x7F9, 0x7F9), (0x837, 0x837), (0x839, 0x839), (0x83D, 0x83E), (0x964, 0x965), (0x104A, 0x104B), (0x1362, 0x1362),
    (0x1367, 0x1368), (0x166E, 0x166E), (0x1735, 0x1736), (0x17D4, 0x17D6), (0x17D9, 0x17DA), (0x1803, 0x1803),
    (0x1809, 0x1809), (0x1944, 0x1945), (0x1AA8, 0x1AAB), (0x1B5A, 0x1B5B), (0x1B5E, 0x1B5F), (0x1B7D, 0x1B7E),
    (0x1C3B, 0x1C3C), (0x1C7E, 0x1C7F), (0x203C, 0x203D), (0x2047, 0x2049), (0x2E2E, 0x2E2E), (0x2E3C, 0x2E3C),
    (0x2E53, 0x2E54), (0x3002, 0x3002), (0xA4FF, 0xA4FF), (0xA60E, 0xA60F), (0xA6F3, 0xA6F3), (0xA6F7, 0xA6F7),
    (0xA876, 0xA877), (0xA8CE, 0xA8CF), (0xA92F, 0xA92F), (0xA9C8, 0xA9C9), (0xAA5D, 0xAA5F), (0xAAF0, 0xAAF1),
    (0xABEB, 0xABEB), (0xFE52, 0xFE52), (0xFE56, 0xFE57), (0xFF01, 0xFF01), (0xFF0E, 0xFF0E), (0xFF1F, 0xFF1F),
    (0xFF61, 0xFF61), (0x10A56, 0x10A57), (0x10F55, 0x10F59), (0x10F86, 0x10F89), (0x11047, 0x11048),
    (0x110BE, 0x110C1), (0x11141, 0x11143), (0x111C5, 0x111C6), (0x111CD, 0x111CD), (0x111DE, 0x111DF),
    (0x11238, 0x11239), (0x1123B, 0x1123C), (0x112A9, 0x112A9), (0x1144B, 0x1144C), (0x115C2, 0x115C3),
    (0x115C9, 0x115D7), (0x11641, 0x11642), (0x1173C, 0x1173E), (0x11944, 0x11944), (0x11946, 0x11946),
    (0x11A42, 0x11A43), (0x11A9B, 0x11A9C), (0x11C41, 0x11C42), (0x11EF7, 0x11EF8), (0x11F43, 0x11F44),
    (0x16A6E, 0x16A6F), (0x16AF5, 0x16AF5), (0x16B37, 0x16B38), (0x16B44, 0x16B44), (0x16E98, 0x16E98),
    (0x1BC9F, 0x1BC9F), (0x1DA88, 0x1DA88),
)  # fmt: skip
_ELLIPSES = "…⋯"
_QUOTES_BOTH_WAYS = "\"'＂＇"  # they close as often as they open
# Gopher's • and -; the others of RedPajama-V2's list; what Chinese pages use besides.
_BULLETS = "•-" + "‣▶◀◦■□▪▫●–" + "○◆◇◎★☆※·・‧∙⁃►▸▷➢➤➜"
_BRACKETS = "()[]{}（）［］｛｝"
_LINE_BREAKS = "\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"
# # { } lenticular brackets, dots, the colon of addresses, U+FFFD, the emoji joiner; what wrong decodings begin with:
# 锟斤拷, 烫烫烫, 屯屯屯, and the first bytes of UTF-8 sequences as Latin letters.
_SPECIAL = "#{}【】.…:\ufffd\u200d锟烫屯ÂÃÐÑàáâãäåæçèéêëìíîïð"

_PHRASE = "{kKuUvV"


def _within(code_point: int, ranges: Ranges) -> bool:
    return any(first <= code_point <= last for first, last in ranges)


def _only_one_way() -> tuple[set[str], set[str]]:
    """Characters that only Traditional and only Simplified Chinese use: they change, and are not what others become."""
    import opencc

    changed = []
    for name in ("TSCharacters.txt", "STCharacters.txt"):
        path = Path(opencc.__file__).parent / "dictionary" / name
        pairs = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines() if line]
        changed.append({old for old, new in pairs if len(old) == 1 and old not in new.split(" ")})
    # Five stand in both: simplified forms of one character and traditional forms of another, as 苧.
    both = changed[0] & changed[1]
    return changed[0] - both, changed[1] - both


def _alone(code_point: int, table: fold.FoldTable) -> bool:
    """Whether the fold makes nothing but SYMBOLs of it."""
    entries = [int(table.table[code_point])]
    if entries[0] >> fold.CLASS_SHIFT == fold.MULTI:
        offset = entries[0] & fold.CODE_POINT_MASK
        entries = table.expansions[offset + 1 : offset + 1 + int(table.expansions[offset])].tolist()
    return all(entry >> fold.CLASS_SHIFT == fold.SYMBOL for entry in entries)


def _is_latin(character: str) -> bool:
    return character.isalpha() and ("LATIN" in unicodedata.name(character, "") or character in "ªºKÅ")


def flags_of(code_point: int, traditional: set[str], simplified: set[str], folds: fold.FoldTable) -> int:
    character = chr(code_point)
    category = unicodedata.category(character)
    if category in ("Cn", "Cs"):
        # A short way for a million unassigned ones.
        alone = c.ALONE if _alone(code_point, folds) else 0
        han = c.HAN if _within(code_point, _HAN) else 0
        return alone | han | (c.STOP | c.TERMINAL if _within(code_point, _STOP) else 0)
    tests = {
        c.LETTER: character.isalpha(),
        c.NUMBER: category[0] == "N",
        c.DIGIT: category == "Nd",
        c.PUNCTUATION: category[0] == "P",
        c.SYMBOL: category[0] == "S",
        c.SPACE: character.isspace(),
        c.UPPER: character.isupper(),
        c.HAN: _within(code_point, _HAN),
        c.KANA: _within(code_point, _KANA),
        c.HANGUL: _within(code_point, _HANGUL),
        c.LATIN: _is_latin(character),
        c.ALONE: _alone(code_point, folds),
        c.TERMINAL: _within(code_point, _STOP) or character in _ELLIPSES,
        c.STOP: _within(code_point, _STOP),
        c.CLOSING: category in ("Pe", "Pf") or character in _QUOTES_BOTH_WAYS,
        c.BULLET: character in _BULLETS,
        c.BRACKET: character in _BRACKETS,
        c.FORMAT: category == "Cf",
        c.CONTROL: category == "Cc" and character not in "\t\n\r",
        c.PRIVATE: category == "Co",
        c.MARK: category[0] == "M",
        c.LINE_BREAK: character in _LINE_BREAKS,
        c.TRADITIONAL: character in traditional,
        c.SIMPLIFIED: character in simplified,
        c.SPECIAL: character in _SPECIAL,
        c.PHRASE: character in _PHRASE,
    }
    return sum(flag for flag, is_set in tests.items() if is_set)


def build() -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """(of, flags), see `taojin.quality.characters.CharacterClasses`; classes in the order of their flags."""
    traditional, simplified = _only_one_way()
    folds = fold.load_fold_table()
    table = [flags_of(code_point, traditional, simplified, folds) for code_point in range(c.NUM_CODE_POINTS)]
    flags, of = np.unique(np.array(table, np.uint32), return_inverse=True)
    if len(flags) > 256:
        raise AssertionError(f"{len(flags)} classes do not fit in a byte")
    return of.astype(np.uint8), flags


def main() -> int:
    of, flags = build()
    np.savez_compressed(c.TABLE_PATH, of=of, flags=flags)
    print(f"{c.TABLE_PATH.name}: {len(flags)} classes, {c.TABLE_PATH.stat().st_size:,} bytes", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
