"""Character and line signals the slow way: Python strings, regular expressions, `unicodedata`."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache

from taojin.quality import characters as c
from taojin.quality.layout import READMORE
from taojin.quality.sentences import ABBREVIATIONS

ADDRESS = re.compile(r"(?:https?://|www\.)[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]*", re.IGNORECASE | re.ASCII)
NUMBERED_CITATION = re.compile(r"\[[0-9]*\]")
TRAILING_CITATIONS = re.compile(r"(?:\[[0-9]*\]|\[edit\]|\[citation needed\])+\Z")
POLICY = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")


def has(character: str, flags: int) -> bool:
    return bool(int(c.load_character_table()[ord(character)]) & flags)


def share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def ascii_lower(text: str) -> str:
    return re.sub("[A-Z]", lambda match: match[0].lower(), text)


@cache
def _trail_kinds() -> tuple[set[str], set[str]]:
    """(telling ones, ones that also close words): what a byte 0x80…0xBF reads as in Windows-1252 and in Latin-1."""
    read = {bytes([byte]).decode(code, "ignore") for byte in range(0x80, 0xC0) for code in ("cp1252", "latin-1")} - {""}
    good = {a for a in read if a.isalpha() and a not in "ªºˆ" and a != "µ"}
    good |= set("\xa0»–—‘’‚“”„†•…‹›™")
    return read - good, good


def mojibake_length(text: str, i: int) -> int:
    if text.startswith("锟斤拷", i):
        return 3
    run = re.compile("(?:烫{3,}|屯{3,})").match(text, i)
    if run:
        return len(run[0])
    lead = ord(text[i])
    trails = 0
    if text[i] in "ÂÃÐÑ":
        trails = 1
    elif 0xE0 <= lead <= 0xEF:
        trails = 2
    elif lead == 0xF0:
        trails = 3
    behind = text[i + 1 : i + 1 + trails]
    telling, good = _trail_kinds()
    if not trails or len(behind) < trails or any(a not in telling | good for a in behind):
        return 0
    return trails + 1 if any(a in telling for a in behind) or (trails == 1 and behind == "\xa0") else 0


def character_signals(text: str) -> dict[str, float]:
    def count(test: Callable[[str], bool]) -> int:
        return sum(map(test, text))

    def category(*first: str) -> Callable[[str], bool]:
        return lambda a: unicodedata.category(a).startswith(first)

    n = len(text)
    han = count(lambda a: has(a, c.HAN))
    digits = count(category("Nd"))
    mojibake = 0
    i = 0
    while i < n:
        length = mojibake_length(text, i)
        mojibake += length
        i += max(length, 1)
    joiners = 0
    for i in range(1, n - 1):
        before = text[i - 1]
        joined = category("S")(before) or before == "\ufe0f"
        joiners += text[i] == "\u200d" and joined and category("S")(text[i + 1])
    solid = [a for a in text if not a.isspace()]
    return {
        "chars": n,
        "han_share": han / n,
        "kana_share": count(lambda a: has(a, c.KANA)) / n,
        "hangul_share": count(lambda a: has(a, c.HANGUL)) / n,
        "latin_share": count(lambda a: has(a, c.LATIN)) / n,
        "digit_share": digits / n,
        "punctuation_share": count(category("P")) / n,
        "symbol_share": count(category("S")) / n,
        "whitespace_share": count(str.isspace) / n,
        "uppercase_share": count(str.isupper) / n,
        "alnum_share": count(category("L", "N")) / n,
        "special_share": count(lambda a: a.isspace() or category("P", "S", "Nd")(a)) / n,
        "digit_share_of_words": share(digits, count(lambda a: not (a.isspace() or category("P")(a)))),
        "url_share": sum(len(address) for address in ADDRESS.findall(text)) / n,
        "bracket_share": count(lambda a: a in "()[]{}（）［］｛｝") / n,
        "lenticular_share": count(lambda a: a in "【】") / n,
        "curly_brackets": count(lambda a: a in "{}"),
        "hash_signs": text.count("#"),
        "ellipses": text.count("...") + text.count("…"),
        "unique_char_share": share(len(set(solid)), len(solid)),
        "traditional_share": share(count(lambda a: has(a, c.TRADITIONAL)), han),
        "simplified_share": share(count(lambda a: has(a, c.SIMPLIFIED)), han),
        "replacement_share": text.count("\ufffd") / n,
        "mojibake_share": mojibake / n,
        "zero_width_share": (count(category("Cf")) - joiners) / n,
        "control_share": count(lambda a: category("Cc")(a) and a not in "\t\n\r") / n,
        "private_use_share": count(category("Co")) / n,
    }


def repeats(parts: Iterable[str]) -> tuple[int, int]:
    """(parts, characters) of those that occurred before."""
    counts = Counter(parts)
    return sum(k - 1 for k in counts.values()), sum((k - 1) * len(part) for part, k in counts.items())


def full_stop_ends(line: str, i: int) -> bool:
    before = line[max(i - 16, 0) : i]
    if not before:
        return True
    if before[-1].isupper():
        return before[-2:-1].isupper()
    if not before[-1].isalpha():
        return True
    word = ""
    for a in reversed(before):
        if a.isascii() and (a.isalpha() or a == "."):
            word = a + word
        elif a.isalpha() and len(word) <= max(map(len, ABBREVIATIONS)):
            return True
        else:
            break
    return not (len(word) == 1 or word in ABBREVIATIONS)


def sentences_of(line: str) -> list[str]:
    """The sentences of a line (without its line break), stripped; none of a blank line."""
    found: list[str] = []
    start = 0
    i = 0
    while i < len(line):
        if not has(line[i], c.TERMINAL):
            i += 1
            continue
        # The run of final, closing and joining marks.
        j = i
        while j < len(line):
            citation = NUMBERED_CITATION.match(line, j)
            if citation:
                j = citation.end()
            elif has(line[j], c.TERMINAL | c.CLOSING) or line[j] in ",:;*":
                j += 1
            else:
                break
        run = line[i:j]
        stops = []
        for k in range(i, j):
            a = line[k]
            if a in ".．":
                alone = a not in (line[k - 1 : k], line[k + 1 : k + 2])
                if alone and (k > i or full_stop_ends(line, i)):
                    stops.append(a)
            elif has(a, c.STOP):
                stops.append(a)
        ends = bool(stops)
        after = line[j : j + 1]
        if ends and after and not any(not a.isascii() and a != "．" for a in stops):
            quoted = run[0] == "." and all(has(a, c.CLOSING) and a not in ")]}" for a in run[1:])
            joined = quoted and after.isupper() and line[i - 1 : i].isalpha() and not line[i - 1].isupper() and i > 0
            ends = after.isspace() or has(after, c.ALONE) or joined
        if ends:
            i = j
            while i < len(line) and (line[i].isspace() or unicodedata.category(line[i])[0] == "P"):
                i += 1
            if i == len(line):
                break
            found.append(line[start:j].strip())
            start = j
        else:
            i = j
    return [*found, line[start:].strip()] if line[start:].strip() else found


def c4_words(line: str) -> tuple[int, int]:
    """(words, longest) of a stripped line."""
    words = longest = 0
    for part in line.split():
        pieces = re.split("|".join({re.escape(a) for a in part if has(a, c.ALONE)}) or "(?!)", part)
        longest = max(longest, *map(len, pieces))
        alone = sum(has(a, c.ALONE) for a in part)
        runs = 0
        for piece in pieces:
            kinds = "".join("w" if has(a, c.LETTER | c.NUMBER) else " " for a in piece)
            runs += len(kinds.split())
        words += alone + runs if alone else 1
    return words, longest


def c4_end(line: str) -> bool:
    line = TRAILING_CITATIONS.sub("", line)
    if line.endswith((".", "?", "!", '"', "'")):
        return not line.endswith("...")
    end = len(line)
    while end > 1 and not line[end - 1].isascii() and has(line[end - 1], c.CLOSING):
        end -= 1
    return line.endswith(("……", "⋯⋯"), 0, end) or (line != "" and has(line[end - 1], c.STOP))


def ends_in_readmore(line: str) -> bool:
    line = line.rstrip()
    bare = line.rstrip("。")
    if len(line) - len(bare) >= 3:
        return True
    end = len(bare)
    while end and not has(bare[end - 1], c.LETTER | c.NUMBER):
        end -= 1
    return ascii_lower(bare[max(end - 20, 0) : end]).endswith(READMORE)


def line_signals(text: str) -> dict[str, float]:
    n = len(text)
    lines = text.split("\n")
    filled = [line for line in lines if line.strip()]
    # The carriage return of a CRLF belongs to the line end.
    ends = [line[:-1] if line[-1:] == "\r" and k < len(lines) - 1 else line for k, line in enumerate(lines)]
    ends = [line for line in ends if line.strip()]
    gopher_lines = re.split("\n+", text)
    paragraphs = re.split("\n{2,}", text.strip()) if text.strip() else []
    broken = text.splitlines()
    sentences = [sentence for line in broken for sentence in sentences_of(line)]
    kept = {True: 0, False: 0}
    dropped = {True: False, False: False}
    javascript = policy = 0
    for line in map(str.strip, broken):
        lower = ascii_lower(line)
        javascript += "javascript" in lower
        policy += any(phrase in lower for phrase in POLICY)
        words, longest = c4_words(line)
        if words < 3 or longest > 1000:
            continue
        for any_end in (True, False):
            if not (any_end or c4_end(line)):
                continue
            if "lorem ipsum" in lower or ("{" in line and "javascript" not in lower):
                dropped[any_end] = True
            elif "javascript" not in lower and not any(phrase in lower for phrase in POLICY):
                kept[any_end] += len(sentences_of(line))
    dup_lines, dup_line_chars = repeats(gopher_lines)
    dup_paragraphs, dup_paragraph_chars = repeats(paragraphs)
    dup_sentences, dup_sentence_chars = repeats(sentences)
    return {
        "lines": len(filled),
        "newlines": text.count("\n"),
        "mean_line_length": share(sum(map(len, filled)), len(filled)),
        "longest_line": max(map(len, lines)),
        "paragraphs": len(paragraphs),
        "long_paragraphs": sum(len(line) >= 200 for line in lines),
        "sentences": len(sentences),
        "mean_sentence_length": share(sum(map(len, sentences)), len(sentences)),
        "terminal_line_share": share(sum(has(line[-1], c.STOP) for line in ends), len(filled)),
        "ellipsis_line_share": share(sum(line.rstrip().endswith(("...", "…")) for line in broken), len(broken)),
        "bullet_line_share": share(sum(has((line.strip() or "a")[0], c.BULLET) for line in broken), len(broken)),
        "readmore_line_share": share(sum(map(ends_in_readmore, filled)), len(filled)),
        "short_line_share": share(sum(len(line) <= 30 for line in filled), len(filled)),
        "dup_line_share": share(dup_lines, len(gopher_lines)),
        "dup_line_char_share": dup_line_chars / n,
        "dup_text_line_char_share": share(repeats(filled)[1], len(text.replace("\n", ""))),
        "dup_paragraph_share": share(dup_paragraphs, len(paragraphs)),
        "dup_paragraph_char_share": dup_paragraph_chars / n,
        "dup_sentence_share": share(dup_sentences, len(sentences)),
        "dup_sentence_char_share": dup_sentence_chars / n,
        "lorem_ipsum": ascii_lower(text).count("lorem ipsum"),
        "javascript_lines": javascript,
        "policy_lines": policy,
        "c4_sentences": 0 if dropped[False] else kept[False],
        "c4_sentences_any_end": 0 if dropped[True] else kept[True],
    }
