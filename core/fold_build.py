"""Build the fold table: what each Unicode code point becomes before hashing.

    python -m taojin.core.fold_build          writes core/fold-v1.npz

The table is shipped as a file because Python versions carry different Unicode data, and a hash that depends on the
interpreter would not be a name for a text. Rebuild it only together with a new `FOLD_VERSION`: every sidecar made with
another version is refused.

Recipe, per code point: NFKC, case fold, NFKC again (Unicode 14, Python 3.11's); diacritics dropped (é → e, ガ → カ);
Traditional → Simplified by OpenCC's character table (Apache-2.0, read from the package opencc-python-reimplemented,
first choice where there are several); what is left is classified (see `taojin.core.fold`). Vowel signs of Indic and
South-East Asian scripts are letters, not diacritics, and stay.
"""

import sys
import unicodedata
from pathlib import Path

import numpy as np

from taojin.core.fold import BREAK, LETTER, MULTI, NUM_CODE_POINTS, SURROGATE, SYMBOL, TABLE_PATH, VANISH, encode

# Blocks of combining marks that decorate a letter without being one (Unicode block names in comments).
_DIACRITICS = (
    (0x0300, 0x036F),  # Combining Diacritical Marks
    (0x0483, 0x0489),  # Cyrillic titlo and number marks
    (0x0591, 0x05C7),  # Hebrew points
    (0x0610, 0x061A),  # Arabic signs
    (0x064B, 0x065F),  # Arabic harakat
    (0x0670, 0x0670),  # Arabic superscript alef
    (0x06D6, 0x06ED),  # Koranic marks
    (0x1AB0, 0x1AFF),  # Combining Diacritical Marks Extended
    (0x1DC0, 0x1DFF),  # Combining Diacritical Marks Supplement
    (0x20D0, 0x20FF),  # Combining Diacritical Marks for Symbols
    (0x302A, 0x302F),  # ideographic and Hangul tone marks
    (0x3099, 0x309A),  # kana voicing marks
    (0xFE00, 0xFE0F),  # Variation Selectors
    (0xFE20, 0xFE2F),  # Combining Half Marks
    (0xE0100, 0xE01EF),  # Variation Selectors Supplement
)
_INVISIBLE = {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180C, 0x180D, 0x180F, 0x3164, 0xFFA0}
# Scripts written without spaces: each character is a symbol of its own.
_SPACELESS = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x0F00, 0x0FFF),  # Tibetan
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x19E0, 0x19FF),  # Khmer Symbols
    (0x2E80, 0x2FDF),  # CJK and Kangxi radicals
    (0x3005, 0x3007),  # 々 〆 〇
    (0x3021, 0x3029),  # Hangzhou numerals
    (0x3031, 0x3035),  # kana repeat marks
    (0x3038, 0x303C),  # Hangzhou numerals, 〻 〼
    (0x3040, 0x312F),  # Hiragana, Katakana, Bopomofo
    (0x31A0, 0x31BF),  # Bopomofo Extended
    (0x31F0, 0x31FF),  # Katakana Phonetic Extensions
    (0x3400, 0x4DBF),  # CJK Extension A
    (0x4E00, 0x9FFF),  # CJK Unified Ideographs
    (0xA000, 0xA48F),  # Yi
    (0xA9E0, 0xA9FF),  # Myanmar Extended-B
    (0xAA60, 0xAA7F),  # Myanmar Extended-A
    (0xE000, 0xF8FF),  # private use: Han characters outside Unicode, in practice
    (0xF900, 0xFAFF),  # CJK Compatibility Ideographs
    (0x16FE0, 0x18DFF),  # Tangut, Khitan, Nushu marks
    (0x1AFF0, 0x1B2FF),  # Kana Supplement to Nushu
    (0x20000, 0x3FFFD),  # CJK Extensions B and later, assigned or not
)


def _within(code_point: int, ranges: tuple[tuple[int, int], ...]) -> bool:
    return any(first <= code_point <= last for first, last in ranges)


def _classify(code_point: int) -> int:
    """BREAK, VANISH, SYMBOL or LETTER of an already normalised code point."""
    character = chr(code_point)
    category = unicodedata.category(character)
    if _within(code_point, _DIACRITICS) or code_point in _INVISIBLE or category == "Cf":
        return VANISH
    if category in ("Cc", "Cs") or code_point & 0xFFFE == 0xFFFE:
        return BREAK
    if _within(code_point, _SPACELESS) and category[0] not in "PZ":
        return BREAK if category[0] == "S" and code_point < 0x2000 else SYMBOL
    if category[0] in "PSZ":
        return BREAK
    return LETTER


def _without_diacritics(character: str) -> str:
    if 0xAC00 <= ord(character) <= 0xD7A3:
        return character
    decomposed = unicodedata.normalize("NFD", character)
    bare = "".join(c for c in decomposed if not _within(ord(c), _DIACRITICS))
    return unicodedata.normalize("NFC", bare)


def simplified_characters() -> dict[str, str]:
    """OpenCC's Traditional → Simplified characters, first choice each."""
    import opencc

    path = Path(opencc.__file__).parent / "dictionary" / "TSCharacters.txt"
    pairs: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        traditional, _, simplified = line.partition("\t")
        if len(traditional) == 1 and simplified:
            pairs[traditional] = simplified.split(" ")[0]
    # 薴 → 苧 → 苎: what a fold yields must fold to itself.
    return {traditional: pairs.get(simplified, simplified) for traditional, simplified in pairs.items()}


def fold_code_point(code_point: int, simplified: dict[str, str]) -> list[int]:
    """Encoded entries for one code point: none (it vanishes), one or several, runs of BREAK merged."""
    text = chr(code_point)
    if 0xD800 <= code_point <= 0xDFFF:
        return [encode(SURROGATE)]
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    text = "".join(_without_diacritics(c) for c in text)
    text = "".join(simplified.get(c, c) for c in text)
    entries: list[int] = []
    for character in text:
        kind = _classify(ord(character))
        if kind == VANISH or (kind == BREAK and entries and entries[-1] == encode(BREAK)):
            continue
        entries.append(encode(BREAK) if kind == BREAK else encode(kind, ord(character)))
    return entries


def build() -> tuple[np.ndarray, np.ndarray]:
    """(table, expansions): uint32[0x110000] and uint32[…], see `taojin.core.fold.FoldTable`."""
    simplified = simplified_characters()
    table = np.zeros(NUM_CODE_POINTS, np.uint32)
    expansions: list[int] = []
    offsets: dict[tuple[int, ...], int] = {}
    for code_point in range(NUM_CODE_POINTS):
        entries = fold_code_point(code_point, simplified)
        if not entries:
            table[code_point] = encode(VANISH)
        elif len(entries) == 1:
            table[code_point] = entries[0]
        else:
            key = tuple(entries)
            if key not in offsets:
                offsets[key] = len(expansions)
                expansions.extend([len(entries), *entries])
            table[code_point] = encode(MULTI, offsets[key])
    return table, np.array(expansions, np.uint32)


def main() -> int:
    table, expansions = build()
    # Against the identity most of the table is constant, and the file an eighth of its size.
    delta = table ^ np.arange(NUM_CODE_POINTS, dtype=np.uint32)
    np.savez_compressed(TABLE_PATH, delta=delta, expansions=expansions)
    print(f"{TABLE_PATH.name}: {len(table):,} code points, {TABLE_PATH.stat().st_size:,} bytes", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
