"""Where a text can be cut so that a tokenizer gives the same ids for its parts: behind a line end between two letters.

For the library `tokenizers`, which takes 120 bytes of memory for every byte of a text: cut into parts, a document of
any size takes what a part does. A text without such a border stays whole.

Why a cut of "…x⏎y…" behind the line end is safe, x and y being ASCII letters, Han or kana (CORE):
1. *Added tokens* neither hold a line end nor take white space around them along (else nothing is cut), so none reaches
   over the border; what asks for a whole word sees no letter on that side, with the line end or without. *Normal
   forms* neither change nor compose a line end, and y starts anew.
2. *Pre-tokenizer*: splits by regexes whose alternatives are all known (`ALTERNATIVES` of `long_texts`). None that
   matches x matches a line end, and none that can start with a line end goes on with a letter, but for those that start
   with `\\s?`, which are refused. So no match reaches over the border, and the next one starts at y, with the line end
   before it or without. One split at least takes all letters: it leaves the line end a piece by itself, however the
   alternatives for white space, which look ahead, and the splits before it deal with it.
3. *Merges* are made inside a piece.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from taojin.tokenize.long_texts import ALTERNATIVES, CAPITALS, CAPITALS_FIRST, CORE, LETTERS

# What 60 MB of memory are enough for where text is ASCII, 180 MB where it is Han.
PART_CHARACTERS = 500_000

_BORDER = re.compile(f"(?<=[A-Za-z{CORE}]\n)(?=[A-Za-z{CORE}])")


def _one_of(alternatives: Iterable[str]) -> str:
    return f"(?:{'|'.join(re.escape(text) for text in alternatives)})"


_KNOWN = {text: kind for text, kind in ALTERNATIVES.items() if not text.startswith(r"\s?")}
_KNOWN_SPLIT = re.compile(rf"{_one_of(_KNOWN)}(?:\|{_one_of(_KNOWN)})*")
# Alternatives that together take all letters.
_ALL_LETTERS = [
    [
        re.compile(
            rf"(?:^|\|){_one_of(text for text, kind in _KNOWN.items() if kind == wanted and 'p{L' in text)}(?:\||$)"
        )
        for wanted in kinds
    ]
    for kinds in ((LETTERS,), (CAPITALS_FIRST, CAPITALS))
]
# What ByteLevel splits by, unless it is told not to.
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def cut_at_lines(text: str, part: int = PART_CHARACTERS) -> Iterator[str]:
    """The parts of a text, of `part` characters or more up to the next border. Linear."""
    start = 0
    while len(text) - start > part and (border := _BORDER.search(text, start + part)):
        yield text[start : border.start()]
        start = border.start()
    yield text[start:]


def can_cut_at_lines(tokenizer: dict[str, Any]) -> bool:
    """Whether the proof holds for this tokenizer.json."""
    added = tokenizer.get("added_tokens") or []
    return (
        tokenizer["model"].get("type") == "BPE"
        and not any("\n" in token["content"] or token.get("lstrip") or token.get("rstrip") for token in added)
        and all(step["type"] in ("NFC", "NFKC") for step in steps_of(tokenizer.get("normalizer"), "normalizers"))
        and _splits_lines(steps_of(tokenizer.get("pre_tokenizer"), "pretokenizers"))
    )


def steps_of(component: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, sequences within sequences laid flat."""
    if component is None:
        return []
    return [step for part in component[key] for step in steps_of(part, key)] if key in component else [component]


def _splits_lines(steps: list[dict[str, Any]]) -> bool:
    types = [step["type"] for step in steps]
    if types.count("ByteLevel") != 1 or types[-1] != "ByteLevel" or set(types) - {"Split", "Digits", "ByteLevel"}:
        return False
    patterns = [_pattern(step) for step in steps if step["type"] == "Split"]
    if steps[-1].get("use_regex", True):
        patterns.append(GPT2_PATTERN)
    return (
        not steps[-1].get("add_prefix_space")
        and all(_KNOWN_SPLIT.fullmatch(pattern) for pattern in patterns)
        and any(all(kind.search(pattern) for kind in kinds) for pattern in patterns for kinds in _ALL_LETTERS)
    )


def _pattern(split: dict[str, Any]) -> str:
    """The regex of a split, with line ends as escapes, as some files write them; "" for one that splits otherwise."""
    if (split.get("behavior"), split.get("invert")) not in (("Isolated", False), ("Removed", True)):
        return ""
    return str(split["pattern"].get("Regex", "")).replace("\r", r"\r").replace("\n", r"\n")
