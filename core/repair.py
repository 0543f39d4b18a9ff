"""Repair of texts: mojibake, line ends, control characters. Most texts are never touched.

A kernel looks at every byte once (`suspicious`, well above 1 GB/s) and says which documents hold something to mend.
Line ends and control characters are mended by a second kernel; only *lines* in which characters stand together as the
bytes of UTF-8 do (Ã©, â€œ, ä½\xa0) or C1 controls occur go to ftfy, which judges whether they are mojibake and which
code page made it. A text that is not valid UTF-8 stays as it is. Repair is idempotent.

What is done, and what of ftfy's is left off because good text would suffer:
    fix_encoding              on: this is what ftfy is for; only on suspicious lines of at most MAX_LINE_BYTES
    restore_byte_a0, replace_lossy_sequences, decode_inconsistent_utf8, fix_c1_controls: on, its defaults
    fix_line_breaks           here: CR LF, CR, VT, FF, U+0085, U+2028, U+2029 become LF (The Unicode Standard, 5.8). VT
                              and FF are Word's soft break and a PDF's page break: ftfy drops the first, which joins
                              lines. Beside other C1 controls or mojibake U+0085 is a byte, not a line end
    remove_control_chars      here, ftfy's list: C0 controls but TAB, DEL, U+206A–U+206F, U+FEFF anywhere, U+FFF9–U+FFFC
    remove_terminal_escapes   here: ESC [ … letter
    unescape_html             off: &lt; is right in documents about code, HTML and XML
    fix_character_width       off: full-width forms are Chinese typography
    uncurl_quotes             off: “ ” are Chinese quotation marks
    fix_latin_ligatures       off: no information is lost in ﬁ
    fix_surrogates            has no work: a lone surrogate is not valid UTF-8
    normalization             none: NFC would change Han compatibility characters
U+FFFD and 锟斤拷 stand for lost bytes, so there is nothing to repair: quality signals count them. C1 controls that no
code page explains stay for the same reason.

Cost: clean text at the speed of the first kernel, 170 MB/s where every document has line ends to mend, 2 to 15 MB/s
where ftfy works. Measured, ftfy is linear in a line; its own limit of a million characters is kept all the same, by
MAX_LINE_BYTES: longer lines get the kernel's repairs only, and U+0085 in them stays.
"""

from collections.abc import Callable
from functools import cache
from importlib import metadata

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from taojin.core.errors import ConfigError
from taojin.core.jit import kernel
from taojin.core.text import text_buffers

REPAIR_FORMAT = 1  # counts changes of the rules above
MISSING_FTFY = "expected the package ftfy for the repair of texts, found none: pip install ftfy"
MAX_LINE_BYTES = 1 << 20  # 175,000 Chinese characters encoded twice, and about a million of ASCII

# What `suspicious` says of a document.
CLEANING = 1  # line ends, control characters
MOJIBAKE = 2  # characters that look like the bytes of UTF-8; ftfy decides

_U64 = np.uint64
_1 = np.uint64(1)
_2 = np.uint64(2)
_3 = np.uint64(3)
_4 = np.uint64(4)
_BLOCK_SIZE = 32
_LONG_RUN = 16  # bytes of ASCII after which blocks are tried: Chinese text has only short runs
_BLOCK = np.uint64(_BLOCK_SIZE)
_TAB, _LF, _VT, _FF, _CR, _ESC, _SPACE, _DELETE = 0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x1B, 0x20, 0x7F


@kernel
def _stray(data: NDArray[np.uint8], i: np.uint64, stop: np.uint64) -> np.uint64:
    """Bytes of the character at i if `clean` ends a line there or drops it and it is not ASCII, else 0."""
    lead = data[i]
    if lead == 0xC2 and i + _1 < stop:
        return _2 if data[i + _1] == 0x85 else _U64(0)
    if i + _2 >= stop:
        return _U64(0)
    b1 = data[i + _1]
    b2 = data[i + _2]
    if lead == 0xE2:
        separator = b1 == 0x80 and (b2 == 0xA8 or b2 == 0xA9)
        return _3 if separator or (b1 == 0x81 and 0xAA <= b2 <= 0xAF) else _U64(0)
    if lead == 0xEF:
        return _3 if (b1 == 0xBB and b2 == 0xBF) or (b1 == 0xBF and 0xB9 <= b2 <= 0xBC) else _U64(0)
    return _U64(0)


@kernel
def _continuation(data: NDArray[np.uint8], i: np.uint64, stop: np.uint64) -> np.uint64:
    """Bytes of the character at i if Latin-1 or Windows-1252 makes it of 0x80–0xBF, or U+FFFD, which is such a byte
    lost; else 0."""
    if i + _1 >= stop:
        return _U64(0)
    lead = data[i]
    b1 = data[i + _1]
    if lead == 0xC2:
        return _2 if 0x80 <= b1 <= 0xBF else _U64(0)
    if lead == 0xC5:  # Œ œ Š š Ÿ Ž ž
        found = b1 == 0x92 or b1 == 0x93 or b1 == 0xA0 or b1 == 0xA1 or b1 == 0xB8 or b1 == 0xBD or b1 == 0xBE
        return _2 if found else _U64(0)
    if lead == 0xC6:  # ƒ
        return _2 if b1 == 0x92 else _U64(0)
    if lead == 0xCB:  # ˆ ˜
        return _2 if b1 == 0x86 or b1 == 0x9C else _U64(0)
    if i + _2 >= stop:
        return _U64(0)
    b2 = data[i + _2]
    if lead == 0xE2:  # – — ‘ ’ ‚ “ ” „ † ‡ • … ‰ ‹ › € ™ and their neighbours
        found = (b1 == 0x80 and 0x90 <= b2 <= 0xBA) or (b1 == 0x82 and b2 == 0xAC) or (b1 == 0x84 and b2 == 0xA2)
        return _3 if found else _U64(0)
    return _3 if lead == 0xEF and b1 == 0xBF and b2 == 0xBD else _U64(0)


@kernel
def _latin_mojibake(data: NDArray[np.uint8], i: np.uint64, stop: np.uint64) -> bool:
    """At i stands U+00C2–U+00F4: do enough characters follow that would be its continuation bytes?

    The last one may also be a space or "?", as in "voilÃ le" and "â€?", where the byte was lost.
    """
    b1 = data[i + _1]
    needed = 1 if b1 < 0xA0 else 2 if b1 < 0xB0 else 3
    i += _2
    while needed > 0:
        length = _continuation(data, i, stop)
        if length == 0:
            # A single one is enough only where the character before it is rare in good text: Â and Ã.
            blank = i < stop and (data[i] == _SPACE or data[i] == 0x3F)
            return bool(needed == 1 and blank and (b1 >= 0xA0 or b1 <= 0x83))
        i += length
        needed -= 1
    return True


@kernel
def _cyrillic_half(data: NDArray[np.uint8], i: np.uint64, stop: np.uint64) -> np.uint64:
    """Bytes of Р or С and the character after it, where Windows-1251 makes that one of 0x80–0xBF; else 0."""
    if i + _3 >= stop or data[i] != 0xD0 or (data[i + _1] != 0xA0 and data[i + _1] != 0xA1):
        return _U64(0)
    lead = data[i + _2]
    b1 = data[i + _3]
    if lead == 0xC2 or (lead == 0xD0 and b1 < 0x90) or (lead == 0xD1 and 0x90 <= b1 <= 0x9F) or lead == 0xD2:
        return _4
    return _2 + _3 if lead == 0xE2 else _U64(0)


@kernel
def _mojibake(data: NDArray[np.uint8], i: np.uint64, stop: np.uint64) -> bool:
    """Does mojibake seem to begin with the two-byte character at i?"""
    if i + _1 >= stop:
        return False
    lead = data[i]
    b1 = data[i + _1]
    if lead == 0xC2:  # C1 controls; U+0085 alone is a line end
        return bool(0x80 <= b1 <= 0x9F and b1 != 0x85)
    if lead == 0xC3:
        return bool(0x82 <= b1 <= 0xB4 and _latin_mojibake(data, i, stop))
    if lead == 0xD0:
        if b1 == 0xB2:  # вЂ is what Windows-1251 makes of the first two bytes of quotation marks and dashes
            return bool(i + _3 < stop and data[i + _2] == 0xD0 and data[i + _3] == 0x82)
        half = _cyrillic_half(data, i, stop)  # "Рі" alone begins Ukrainian words; two in a row are mojibake
        return bool(half != 0 and _cyrillic_half(data, i + half, stop) != 0)
    return False


@kernel
def _skip_plain(data: NDArray[np.uint8], i: np.uint64, stop: np.uint64) -> np.uint64:
    """Past whole blocks of plain ASCII, with vector instructions: three times the speed of a byte at a time."""
    while i + _BLOCK <= stop:
        others = np.uint8(0)
        for k in range(_BLOCK_SIZE):
            b = data[i + _U64(k)]
            others |= np.uint8((b < _SPACE) & (b != _LF) & (b != _TAB)) | np.uint8(b >= _DELETE)
        if others != 0:
            break
        i += _BLOCK
    return i


@kernel
def suspicious(data: NDArray[np.uint8], offsets_D: NDArray[np.int64], out_D: NDArray[np.uint8]) -> None:
    """out_D uint8[D]: 0, CLEANING, MOJIBAKE or both, for documents (or lines) data[offsets_D[d]:offsets_D[d + 1]].

    Of bytes that are not UTF-8 it may say anything.
    """
    for d in range(out_D.size):
        i = _U64(offsets_D[d])
        stop = _U64(offsets_D[d + 1])
        cleaning = False
        mojibake = False
        while i < stop:
            b = data[i]
            run = 0
            while b < 0x80:
                if b < _SPACE:
                    cleaning |= b != _LF and b != _TAB
                else:
                    cleaning |= b == _DELETE
                i += _1
                run += 1
                if run == _LONG_RUN:
                    i = _skip_plain(data, i, stop)
                    run = 0
                if i >= stop:
                    break
                b = data[i]
            if i >= stop:
                break
            while 0xE3 <= b < 0xEF:
                i += _3
                if i >= stop:
                    break
                b = data[i]
            if i >= stop:
                break
            if b < 0x80:
                continue
            if b >= 0xE0:
                if b == 0xE2 or b == 0xEF:
                    cleaning |= _stray(data, i, stop) != 0
                i += _3 if b < 0xF0 else _4
                continue
            if b <= 0xC3:
                cleaning |= _stray(data, i, stop) != 0
                mojibake = mojibake or _mojibake(data, i, stop)
            elif b == 0xD0 and not mojibake:
                mojibake = _mojibake(data, i, stop)
            i += _2
        out_D[d] = (CLEANING if cleaning else 0) | (MOJIBAKE if mojibake else 0)


@kernel
def _escape_end(data: NDArray[np.uint8], i: np.uint64, stop: np.uint64) -> np.uint64:
    """The end of the terminal escape ESC [ digits and semicolons, letter, at i; i + 1 if there is none."""
    j = i + _1
    if j >= stop or data[j] != 0x5B:
        return i + _1
    j += _1
    while j < stop and (0x30 <= data[j] <= 0x39 or data[j] == 0x3B):
        j += _1
    if j < stop and 0x41 <= (data[j] & 0xDF) <= 0x5A:
        return j + _1
    return i + _1


@kernel
def clean(
    data: NDArray[np.uint8],
    offsets_D: NDArray[np.int64],
    keep_next_line: bool,
    out: NDArray[np.uint8],
    out_offsets_D: NDArray[np.int64],
) -> None:
    """Copy documents of valid UTF-8 with LF as the only line end and without control characters.

    `out` needs as many bytes as the documents; out_offsets_D int64[D + 1]. keep_next_line leaves U+0085 as it is.
    """
    count = _U64(0)
    out_offsets_D[0] = 0
    for d in range(offsets_D.size - 1):
        i = _U64(offsets_D[d])
        stop = _U64(offsets_D[d + 1])
        while i < stop:
            b = data[i]
            if b == 0xC2 or b == 0xE2 or b == 0xEF:
                length = _stray(data, i, stop)
                if length != 0 and not (keep_next_line and b == 0xC2):
                    if b == 0xC2 or (b == 0xE2 and data[i + _1] == 0x80):
                        out[count] = _LF
                        count += _1
                    i += length
                    continue
            if _SPACE <= b != _DELETE or b in (_LF, _TAB):
                out[count] = b
                count += _1
                i += _1
            elif b in (_CR, _VT, _FF):
                out[count] = _LF
                count += _1
                i += _2 if b == _CR and i + _1 < stop and data[i + _1] == _LF else _1
            elif b == _ESC:
                i = _escape_end(data, i, stop)
            else:
                i += _1
        out_offsets_D[d + 1] = np.int64(count)


def _clean(texts: pa.LargeStringArray, keep_next_line: bool = False) -> pa.LargeStringArray:
    data, offsets_D = text_buffers(texts)
    out = np.empty(int(offsets_D[-1] - offsets_D[0]), np.uint8)
    out_offsets_D = np.empty_like(offsets_D)
    clean(data, offsets_D, keep_next_line, out, out_offsets_D)
    return pa.LargeStringArray.from_buffers(len(texts), pa.py_buffer(out_offsets_D), pa.py_buffer(out))


@cache
def _fixer() -> Callable[[str], str]:
    """ftfy's fix_encoding with its defaults; imported here because it costs 50 ms."""
    try:
        import ftfy
    except ImportError:
        raise ConfigError(MISSING_FTFY) from None
    config = ftfy.TextFixerConfig(explain=False)
    return lambda line: ftfy.fix_encoding(line, config)


def repair_version() -> str:
    """What repaired texts depend on, for the frozen plan: our rules and ftfy's release. ConfigError without ftfy."""
    try:
        return f"{REPAIR_FORMAT}, ftfy {metadata.version('ftfy')}"
    except metadata.PackageNotFoundError:
        raise ConfigError(MISSING_FTFY) from None


def _flags(texts: pa.LargeStringArray) -> NDArray[np.uint8]:
    flags_D = np.zeros(len(texts), np.uint8)
    suspicious(*text_buffers(texts), flags_D)
    return flags_D


def _decode_lines(text: str) -> tuple[str, bool]:
    """(the text with ftfy's verdict on its suspicious lines, whether one of them was too long for it).

    Lines end at CR too, or a Macintosh file would be one line.
    """
    fix_encoding = _fixer()
    lines = text.encode().splitlines(keepends=True)
    array = pa.array(lines, pa.large_binary()).view(pa.large_string())
    too_long = False
    for number in np.flatnonzero(_flags(array) & MOJIBAKE).tolist():
        if len(lines[number]) > MAX_LINE_BYTES:
            too_long = True
        else:
            lines[number] = fix_encoding(lines[number].decode()).encode()
    return b"".join(lines).decode(), too_long


def _repair(text: str) -> str:
    """Repair one text until nothing is left to do: a control character removed can bring mojibake together."""
    while True:
        before = text
        array = pa.array([text], pa.large_string())
        too_long = False
        if _flags(array)[0] & MOJIBAKE:
            text, too_long = _decode_lines(text)
            array = pa.array([text], pa.large_string())
        # In mojibake that nobody decoded U+0085 is still a byte, and must not cut its line into decodable ones.
        text = _clean(array, keep_next_line=too_long)[0].as_py()
        if text == before:
            return text


def _is_valid(texts: pa.LargeStringArray) -> NDArray[np.bool_]:
    """Which documents are UTF-8."""
    try:
        texts.validate(full=True)
        return np.ones(len(texts), np.bool_)
    except pa.ArrowInvalid:
        return np.array([_decodes(text) for text in texts.cast(pa.large_binary()).to_pylist()], np.bool_)


def _decodes(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def repair_array(texts: pa.LargeStringArray) -> tuple[pa.LargeStringArray, NDArray[np.bool_]]:
    """(repaired texts, changed bool[D]). The very same array where nothing changes; nulls stay null.

    Raises ConfigError where ftfy is needed and not installed.
    """
    changed_D = np.zeros(len(texts), np.bool_)
    flags_D = _flags(texts)
    if texts.null_count:
        flags_D[texts.is_null().to_numpy(zero_copy_only=False)] = 0  # bytes may lie under a null
    rows = np.flatnonzero(flags_D)
    if rows.size:
        rows = rows[_is_valid(texts.take(pa.array(rows)))]
    if not rows.size:
        return texts, changed_D
    before = texts.take(pa.array(rows))
    after = _clean(before)
    decode = (flags_D[rows] & MOJIBAKE != 0) | (_flags(after) != 0)
    if decode.any():
        mask = pa.array(decode)
        repaired = [_repair(text) for text in before.filter(mask).to_pylist()]
        after = pc.replace_with_mask(after, mask, pa.array(repaired, pa.large_string()))
    changed = pc.not_equal(before, after)
    changed_D[rows] = changed.to_numpy(zero_copy_only=False)
    if not changed_D.any():
        return texts, changed_D
    return pc.replace_with_mask(texts, pa.array(changed_D), after.filter(changed)), changed_D
