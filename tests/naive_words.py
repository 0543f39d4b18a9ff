"""Slow, obvious oracles of the word kernels: strings and regular expressions, nothing shared but tables of facts."""

import re
from collections.abc import Iterator

import numpy as np

from taojin.quality import characters
from taojin.quality.exceptions import exceptions, units

TABLE = characters.load_character_table()
EXCEPTIONS = exceptions()
UNITS = set(units())
PUNCTUATION = set("…,:;!?¿؟¡()[]{}<>_#*&。？！，、；：～·।،۔؛٪")
QUOTES = set("'\"”“`‘´’‚,„»«「」『』（）〔〕【】《》〈〉⟦⟧")
CURRENCIES = set("$£€¥฿₽﷼₴") | set(map(chr, range(0x20A0, 0x20C0)))
FRONT = set("§%=") | CURRENCIES
U64 = (1 << 64) - 1


def has(character: str, flag: int) -> bool:
    return bool(TABLE[ord(character)] & np.uint32(flag))


def is_letter(character: str) -> bool:
    return has(character, characters.LETTER)


def is_cased_block(character: str) -> bool:
    return any(
        first <= character <= last
        for first, last in (
            "A\u058f",
            "\u1d00\u1fff",
            "\u2c00\u2dff",
            "\ua640\ua7ff",
            "\uab30\uab6f",
            "\ufb00\ufb06",
            "Ａｚ",
        )
    )


def is_small(character: str) -> bool:
    return is_letter(character) and not (is_cased_block(character) and has(character, characters.UPPER))


def is_capital(character: str) -> bool:
    return is_letter(character) and (has(character, characters.UPPER) or not is_cased_block(character))


def is_digit(character: str) -> bool:
    return "0" <= character <= "9" and len(character) == 1


def front(piece: str, icons: set[str]) -> int:
    if match := re.match(r"\.\.+|US\$|[AC]\$|\+(?![0-9])", piece):
        return match.end()
    return int(piece[:1] in PUNCTUATION | QUOTES | FRONT | {"—", "–"} | icons and piece != "")


def back(piece: str, icons: set[str]) -> int:
    """Length of the longest suffix that one of the rules takes."""
    found = [0]
    if not piece:
        return 0
    last = piece[-1]
    if match := re.search(r"(\.\.+|……|['’][sS])$", piece):
        found.append(len(match[0]))
    if last in PUNCTUATION | QUOTES | {"—", "–"} | icons:
        found.append(1)
    if re.search(r"[0-9]\+$|°[FCK]\.$", piece):
        found.append(1)
    if len(piece) > 1 and is_digit(piece[-2]) and last in CURRENCIES:
        found.append(1)
    if match := re.search(r"[0-9]([^0-9]{1,4})$", piece):
        found.append(len(match[1]) if match[1] in UNITS else 0)
    if last == "." and len(piece) > 1:
        before = piece[-2]
        if is_digit(before) or is_small(before) or before in PUNCTUATION | QUOTES | set("%²-+|"):
            found.append(1)
        if len(piece) > 2 and is_capital(before) and is_capital(piece[-3]):
            found.append(1)
    return max(found)


def is_name(character: str) -> bool:
    return bool(re.fullmatch("[A-Za-z0-9\u00a1-\uffff]", character))


def is_host(text: str) -> bool:
    host = re.match("[A-Za-z0-9\u00a1-\uffff._-]*", text)
    assert host is not None
    labels = host[0].split(".")
    if len(labels) < 2 or not re.fullmatch(r"(:[0-9]{2,5})?([/?#].*)?", text[host.end() :], re.DOTALL):
        return False
    if not all(0 < len(label) <= 64 and is_name(label[0]) and is_name(label[-1]) for label in labels[:-1]):
        return False
    return 2 <= len(labels[-1]) <= 63 and all(is_small(c) and is_name(c) for c in labels[-1])


def is_address(piece: str) -> bool:
    scheme = 0
    for i, character in enumerate(piece):
        if not (is_letter(character) or is_digit(character) or character in "+-._"):
            if i >= 2 and piece[i : i + 3] == "://":
                scheme = i + 3
            break
    at = piece.rfind("@")
    return is_host(piece[scheme:]) or (at > scheme and is_host(piece[at + 1 :]))


def infix(piece: str, i: int, icons: set[str]) -> int:
    before, here, after = piece[i - 1] if i else "", piece[i], piece[i + 1 : i + 2]
    if match := re.match(r"\.\.+|…", piece[i:]):
        return match.end()
    if here in icons:
        return 1
    if not before:
        return 0
    if here in "+-*^" and is_digit(before) and (is_digit(after) or after == "-"):
        return 1
    if here == "." and (is_small(before) or before in QUOTES):
        return int(after != "" and (is_capital(after) or after in QUOTES))
    if here == "," and is_letter(before):
        return int(after != "" and is_letter(after))
    if not (is_letter(before) or is_digit(before)):
        return 0
    if here in ":<>=/":
        return int(after != "" and is_letter(after))
    for separator in ("-", "–", "—", "--", "---", "——", "~"):
        rest = piece[i + len(separator) :]
        if piece.startswith(separator, i) and rest and is_letter(rest[0]):
            return len(separator)
    return 0


def split_piece(piece: str, icons: set[str]) -> list[str]:
    fronts: list[str] = []
    backs: list[str] = []
    while piece and piece not in EXCEPTIONS:
        f = front(piece, icons)
        if f and piece[f:] in EXCEPTIONS:
            fronts.append(piece[:f])
            piece = piece[f:]
            break
        b = back(piece[f:], icons)
        if b:
            backs.append(piece[-b:])
            piece = piece[:-b]
            if piece in EXCEPTIONS:
                break
        if f:
            fronts.append(piece[:f])
            piece = piece[f:]
        if not f and not b:
            break
    return join_emoticons([*fronts, *split_middle(piece, icons), *reversed(backs)])


def split_middle(piece: str, icons: set[str]) -> list[str]:
    if not piece or piece in EXCEPTIONS:
        return list(EXCEPTIONS.get(piece, ()))
    has_dot_and_letter = "." in piece and any(map(is_letter, piece))
    if has_dot_and_letter and is_address(piece):
        return [piece]
    words: list[str] = []
    begin = i = 0
    while i < len(piece):
        length = infix(piece, i, icons)
        if length and i:
            if begin < i:
                words += EXCEPTIONS.get(piece[begin:i], (piece[begin:i],))
            words.append(piece[i : i + length])
            begin = i + length
        i += max(length, 1)
    if begin < len(piece):
        words += EXCEPTIONS.get(piece[begin:], (piece[begin:],))
    return words


def join_emoticons(words: list[str]) -> list[str]:
    joined: list[str] = []
    while words:
        taken = 1
        for k in range(2, 6):
            together = "".join(words[:k])
            starts_one = not together[0].isalpha()
            if k <= len(words) and starts_one and len(together) <= 5 and together in EXCEPTIONS:
                taken = k
        joined.append("".join(words[:taken]))
        words = words[taken:]
    return joined


def pieces(text: str) -> Iterator[str]:
    """White-space separated; characters of scripts without spaces alone."""
    piece = ""
    for character in text:
        alone = has(character, characters.ALONE)
        if alone or has(character, characters.SPACE):
            if piece:
                yield piece
            piece = ""
            if alone:
                yield character
        else:
            piece += character
    if piece:
        yield piece


def split(text: str, icons: set[str]) -> list[str]:
    words: list[str] = []
    for piece in pieces(text):
        words += [piece] if has(piece[0], characters.ALONE) else split_piece(piece, icons)
    return words


def segment(text: str, cut_run: dict[str, list[str]]) -> list[str]:
    """Words of a Chinese document, from the words of its runs of Chinese characters."""
    words: list[str] = []
    for match in re.finditer(r"[\u4e00-\u9fd5]+|[a-zA-Z0-9]+(?:\.[0-9]+)?%?|[+#&._%\-]+|(?s:.)", text):
        if "\u4e00" <= match[0][0] <= "\u9fd5":
            words += cut_run[match[0]]
        elif not has(match[0][0], characters.SPACE):
            words.append(match[0])
    return words


def word_hash(word: str) -> int:
    h = 0xCBF29CE484222325
    for character in word:
        h = (h ^ ord(character)) * 0x9FB21C651E98DF25 & U64
    h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9 & U64
    h = (h ^ h >> 27) * 0x94D049BB133111EB & U64
    return h ^ h >> 31


def chinese_runs(text: str) -> list[str]:
    return re.findall(r"[\u4e00-\u9fd5]+", text)
