"""The grammar of e-mail and IP addresses. Kernels for `taojin.quality.personal`, which says what is looked for.

Documents are UTF-8 bytes data[start:stop]; `low` is the end of the find before, and nothing before it counts. Nothing
outside [low, stop) is read, and of one candidate at most 64 bytes before "@" and 255 behind it.
"""

import numpy as np
from numpy.typing import NDArray

from taojin.core.jit import kernel
from taojin.quality.personal_numbers import code_before, is_word

_MAX_LOCAL = 64  # RFC 5321, 4.5.3.1
_MAX_DOMAIN = 255
_MAX_LABEL = 63
_MAX_TOP = 24  # letters of the longest top-level domains
_EXAMPLE = int.from_bytes(b"example", "big")
_GIT = int.from_bytes(b"git", "big")
_VERSION = int.from_bytes(b"ersion", "big")
_VERSION_ZH = int.from_bytes("版本".encode(), "big")


@kernel
def _is_letter(b: int) -> bool:
    return bool(0x41 <= b <= 0x5A or 0x61 <= b <= 0x7A)


@kernel
def _is_local(b: int) -> bool:
    """Letters, digits and _ . % + -: what providers hand out of RFC 5321's set."""
    return bool(is_word(b) or b == 0x2E or b == 0x25 or b == 0x2B or b == 0x2D)


@kernel
def _letters_before(data: NDArray[np.uint8], low: int, i: int) -> int:
    """The last seven bytes before i in one number, ASCII letters in lower case."""
    code = 0
    for k in range(max(low, i - 7), i):
        b = int(np.int64(data[k]))
        code = (code << 8) | (b | 0x20 if b < 0x80 else b)
    return code


@kernel
def _domain_end(data: NDArray[np.uint8], i: int, stop: int) -> int:
    """The end of the longest domain at i with two labels or more, the last one letters; 0 if there is none.

    example.* belongs to nobody, and neither does a first label like 2x: that is the density of an image.
    """
    if i + 2 < stop and 0x30 <= data[i] <= 0x39 and (data[i + 1] | 0x20) == 0x78 and data[i + 2] == 0x2E:
        return 0
    stop = min(stop, i + _MAX_DOMAIN)
    best = 0
    reserved = False
    labels = 0
    while True:
        label = i
        letters = True
        while i < stop and (is_word(data[i]) or data[i] == 0x2D) and data[i] != 0x5F:
            # A hyphen ends a label of letters where nothing of the label follows: "a@b.com-张".
            if data[i] == 0x2D and (i + 1 >= stop or not (is_word(data[i + 1]) or data[i + 1] == 0x2D)):
                break
            letters = letters and _is_letter(data[i])
            i += 1
        length = i - label
        if length == 0 or length > _MAX_LABEL or data[label] == 0x2D:
            return best
        labels += 1
        open_ended = i < stop and (data[i] == 0x5F or data[i] == 0x28)  # this@Main.run(
        if labels > 1 and letters and 2 <= length <= _MAX_TOP and not open_ended:
            best = 0 if reserved else i
        reserved = length == 7 and _letters_before(data, label, i) == _EXAMPLE
        if i >= stop or data[i] != 0x2E:
            return best
        i += 1


@kernel
def email_at(data: NDArray[np.uint8], low: int, at: int, stop: int) -> tuple[int, int]:
    """(begin, end) of the address around the "@" at `at`; (at, 0) if there is none."""
    begin = at
    while begin > low and _is_local(data[begin - 1]):
        if data[begin - 1] == 0x2E and data[begin] == 0x2E:
            break
        if at - begin == _MAX_LOCAL:
            return at, 0
        begin -= 1
    while begin < at and not is_word(data[begin]):
        begin += 1
    if begin == at or data[at - 1] == 0x2E:
        return at, 0
    if at - begin == 3 and _letters_before(data, begin, at) == _GIT:  # git@host:path
        return at, 0
    return begin, _domain_end(data, at + 1, stop)


@kernel
def _hex(b: int) -> int:
    if 0x30 <= b <= 0x39:
        return b - 0x30
    b |= 0x20
    return b - 0x57 if 0x61 <= b <= 0x66 else -1


@kernel
def _left_free(data: NDArray[np.uint8], low: int, i: int) -> bool:
    """May an IP address begin at i? Not inside a word, a dotted name, or behind "version" or 版本."""
    code, j = code_before(data, low, i)
    if is_word(code) or code == 0x2E:
        return False
    before, _ = code_before(data, low, j)
    if code == 0x2D and is_word(before):
        return False
    # At most a sign and two blanks between the word and the number, as in "Version: 10.0.18.36".
    for _ in range(3):
        if code == 0x20 or code == 0x3A or code == 0x3D or code == 0xEFBC9A:
            i = j
            code, j = code_before(data, low, i)
    word = _letters_before(data, low, i) & 0xFFFFFFFFFFFF
    return word not in (_VERSION, _VERSION_ZH)


@kernel
def _right_free(data: NDArray[np.uint8], i: int, stop: int) -> bool:
    """May an IP address end at i? Not before more of a name, nor as a network ("/24")."""
    if i >= stop:
        return True
    b = data[i]
    if is_word(b):
        return False
    if b == 0x2E or b == 0x2D:
        return not (i + 1 < stop and is_word(data[i + 1]))
    if b == 0x2F:
        j = i + 1
        while j < stop and j < i + 4 and 0x30 <= data[j] <= 0x39:
            j += 1
        return j == i + 1 or (j < stop and is_word(data[j]))
    return True


@kernel
def _is_public(address: int) -> bool:
    """Global unicast: IANA's IPv4 special-purpose address registry, and no multicast."""
    first = address >> 24
    if first == 0 or first == 10 or first == 127 or first >= 224:
        return False
    two = address >> 16
    three = address >> 8
    if two >> 6 == 0x6440 >> 6 or two == 0xA9FE or two >> 4 == 0xAC10 >> 4 or two == 0xC0A8 or two >> 1 == 0xC612 >> 1:
        return False  # 100.64/10, 169.254/16, 172.16/12, 192.168/16, 198.18/15
    # 192.0.0/24, 192.0.2/24, 198.51.100/24, 203.0.113/24
    return not (three == 0xC00000 or three == 0xC00002 or three == 0xC63364 or three == 0xCB0071)


@kernel
def ipv4_end(data: NDArray[np.uint8], low: int, i: int, stop: int) -> int:
    """The end of the public IPv4 address at i, 0 if there is none.

    Four parts below 10 are a section or a version, a last part of 0 is a network or a version.
    """
    begin = i
    address = np.int64(0)
    largest = address
    value = address
    for part in range(4):
        if part > 0:
            if i >= stop or data[i] != 0x2E:
                return 0
            i += 1
        first = i
        value = np.int64(0)
        while i < stop and i < first + 4 and 0x30 <= data[i] <= 0x39:
            value = value * 10 + np.int64(data[i] & 15)
            i += 1
        if i == first or value > 255 or (i > first + 1 and data[first] == 0x30):
            return 0
        largest = max(largest, value)
        address = (address << 8) | value
    if largest < 10 or value == 0 or not _is_public(int(address)):
        return 0
    return i if _right_free(data, i, stop) and _left_free(data, low, begin) else 0


@kernel
def ipv6_end(data: NDArray[np.uint8], low: int, i: int, stop: int) -> int:
    """The end of the IPv6 address at i, 0 if there is none.

    Only 2000::/3 is handed out, so that it begins with four digits and the first is 2 or 3. Not 2001:db8::/32 and
    3fff::/20 (documentation), 2001:0::/23 (protocols), 2002::/16 (6to4). Dotted tails are not read.
    """
    begin = i
    groups = 0
    compressed = False
    first = 0
    second = 0
    while True:
        value = 0
        length = 0
        while i < stop and length < 5 and _hex(int(np.int64(data[i]))) >= 0:
            value = value * 16 + _hex(int(np.int64(data[i])))
            length += 1
            i += 1
        if length == 0 or length > 4:
            return 0
        if groups == 0:
            first = value
        elif groups == 1 and not compressed:
            second = value
        groups += 1
        if i >= stop or data[i] != 0x3A or groups == 8:
            break
        if i + 1 < stop and data[i + 1] == 0x3A:
            if compressed:
                return 0
            compressed = True
            i += 2
            if i >= stop or _hex(int(np.int64(data[i]))) < 0:
                break
        elif i + 1 < stop and _hex(int(np.int64(data[i + 1]))) >= 0:
            i += 1
        else:
            break
    if groups < 2 or (groups != 8 and not compressed) or (groups == 8 and compressed):
        return 0
    if i < stop and data[i] == 0x3A and i + 1 < stop and (data[i + 1] == 0x3A or is_word(data[i + 1])):
        return 0
    documentation = (first == 0x2001 and second == 0xDB8) or (first == 0x3FFF and second < 0x1000)
    if documentation or (first == 0x2001 and second < 0x200) or first == 0x2002 or first < 0x2000 or first > 0x3FFF:
        return 0
    code, j = code_before(data, low, begin)
    if code == 0x3A:  # the end of a longer one
        code, _ = code_before(data, low, j)
        if code == 0x3A or _hex(code) >= 0:
            return 0
    return i if _right_free(data, i, stop) and _left_free(data, low, begin) else 0
