"""The grammar of numbers that belong to persons: telephone, identity and card numbers, and where one may begin and end.

Kernels for `taojin.quality.personal`, which says what is looked for. Documents are UTF-8 bytes data[start:stop]; `low`
is the end of the find before, and nothing before it counts. Nothing outside [start, stop) is read. But for the end of
the first run of digits, a candidate is at most some 300 bytes, so that each costs a bounded time.
"""

import numpy as np
from numpy.typing import NDArray

from taojin.core.jit import kernel

MOBILE, LANDLINE, ID_NUMBER, BANK_CARD, EMAIL, IP = range(6)
NOTHING = -1

# int64[SCRATCH_SIZE] of one candidate: up to 24 digits, then length, end and separator of up to 6 groups.
SCRATCH_SIZE = 64
LENGTHS, ENDS, SEPARATORS = 32, 40, 48
_MAX_DIGITS = 24
_MAX_GROUPS = 6

# Third digits of the mobile series in use, as bits, by the second digit; wider than libphonenumber's metadata by the
# data and satellite series 140, 141, 144, 146, 148, 149, 174.
_SERIES = np.array([0, 0, 0, 0x3FF, 0x3F3, 0x3EF, 0x0E6, 0x1FF, 0x3FF, 0x3EF], np.int64)
# Weights of GB 11643: 2^(17 - place) mod 11.
_WEIGHTS = np.array([7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2], np.int64)
# First two digits of GB/T 2260, with 83 for residents of Taiwan (since 2018).
_PROVINCES = np.zeros(100, np.bool_)
_PROVINCES[[11, 12, 13, 14, 15, 21, 22, 23, 31, 32, 33, 34, 35, 36, 37, 41, 42, 43, 44, 45, 46]] = True
_PROVINCES[[50, 51, 52, 53, 54, 61, 62, 63, 64, 65, 71, 81, 82, 83]] = True
_MONTH_DAYS = np.array([0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)
_MAX_URL = 256  # bytes before a number that are searched for "://" or "www."
_MAX_EXTENSION = 5  # digits


# In codes (`code_at`) the forms of these are alike.
_BLANK = 0x20
_OPEN = 0x28
_CLOSE = 0x29
_HYPHEN = 0x2D
_NO_SEPARATOR = 0


@kernel
def code_at(data: NDArray[np.uint8], i: int, stop: int) -> int:
    """The character at i: its bytes as one number, but full-width digits and brackets, no-break spaces, hyphens and
    dashes as in ASCII. 0 at the end, 1 for what is not a character of at most three bytes."""
    if i >= stop:
        return 0
    b = int(np.int64(data[i]))
    if b < 0x80:
        return b
    if b < 0xC0 or b >= 0xF0 or i + 1 >= stop:
        return 1
    b = (b << 8) | int(np.int64(data[i + 1]))
    if b < 0xE000:
        return _BLANK if b == 0xC2A0 else b
    if i + 2 >= stop:
        return 1
    b = (b << 8) | int(np.int64(data[i + 2]))
    if 0xEFBC88 <= b <= 0xEFBC99 and (b >= 0xEFBC90 or b <= 0xEFBC89 or b == 0xEFBC8D):  # （ ） － ０ … ９
        return b - 0xEFBC60
    return _HYPHEN if 0xE28090 <= b <= 0xE28094 or b == 0xE28892 else b  # ‐ – — −


@kernel
def size_at(data: NDArray[np.uint8], i: int) -> int:
    """Bytes of the character at i, which must be one that `code_at` knows."""
    b = data[i]
    return 1 if b < 0x80 else 2 if b < 0xE0 else 3


@kernel
def code_before(data: NDArray[np.uint8], low: int, i: int) -> tuple[int, int]:
    """(code, position) of the character that ends at i; (0, i) at low."""
    if i <= low:
        return 0, i
    j = i - 1
    while j > low and j > i - 3 and (data[j] & 0xC0) == 0x80:
        j -= 1
    return code_at(data, j, i), j


@kernel
def is_digit(code: int) -> bool:
    return bool(0x30 <= code <= 0x39)


@kernel
def is_word(code: int) -> bool:
    """ASCII letter, digit or underscore."""
    return bool(0x30 <= code <= 0x39 or (0x41 <= (code & 0xDF) <= 0x5A and code < 0x80) or code == 0x5F)


@kernel
def left_free(data: NDArray[np.uint8], low: int, i: int, grouped: bool) -> bool:
    """May a number begin at i? What lies before low (the last find) does not count. grouped: its parts are separated
    by spaces, so that a number and a space before it make it a row of a table."""
    code, j = code_before(data, low, i)
    if is_word(code) or code == 0x2B or code == 0x24 or code == 0x25:  # + $ %
        return False
    if code == 0xC2A5 or code == 0xEFBFA5 or 0xEFBCA1 <= code <= 0xEFBCBA:  # ¥ ￥ Ａ … Ｚ
        return False
    if code != 0x2E and code != 0x2F and code != _HYPHEN and not (grouped and code == _BLANK):
        return True
    before, _ = code_before(data, low, j)
    if code == 0x2F:  # a path; but "010-62345678/13800138000"
        return is_digit(before) or not is_word(before)
    return not (is_word(before) if code == _HYPHEN else is_digit(before))


@kernel
def right_free(data: NDArray[np.uint8], i: int, stop: int, grouped: bool) -> bool:
    """May a number end at i?"""
    code = code_at(data, i, stop)
    if is_word(code) or code == 0x25 or code == 0xEFBC85:  # % ％
        return False
    if code == 0x2E or code == _HYPHEN or (grouped and code == _BLANK):
        after = code_at(data, i + size_at(data, i), stop)
        return not (is_digit(after) if code == _BLANK else is_word(after))
    # 元 万 亿 美 make it an amount of money, 股 人 吨 one of other things.
    money = code == 0xE58583 or code == 0xE4B887 or code == 0xE4BABF or code == 0xE7BE8E
    return not (money or code == 0xE882A1 or code == 0xE4BABA or code == 0xE590A8)


@kernel
def in_url(data: NDArray[np.uint8], start: int, i: int) -> bool:
    """Does a web address that began before reach i?"""
    j = i - 1
    last = max(start, i - _MAX_URL)
    while j >= last:
        b = data[j]
        if b <= 0x20 or b >= 0x7F or b == 0x22 or b == 0x3C or b == 0x3E or b == 0x2C or b == 0x3B:
            return False
        if b == 0x3A and j + 2 < i and data[j + 1] == 0x2F and data[j + 2] == 0x2F:
            return True
        if b == 0x2E and j - 3 >= start:
            w = data[j - 1] | 0x20
            if w == 0x77 and (data[j - 2] | 0x20) == w and (data[j - 3] | 0x20) == w:
                return True
        j -= 1
    return False


@kernel
def _read_groups(data: NDArray[np.uint8], i: int, stop: int, scratch: NDArray[np.int64]) -> int:
    """Groups of digits from i on, one separator between two; returns their number, at least 1.

    scratch: digits, then per group length, end, and the separator after it. The first group must fit; a later one that
    would be the 25th digit's ends the reading before it.
    """
    total = 0
    group = 0
    while True:
        length = 0
        code = code_at(data, i, stop)
        while is_digit(code):
            if total == _MAX_DIGITS:
                scratch[SEPARATORS + group - 1] = _NO_SEPARATOR
                return group
            scratch[total] = code & 15
            total += 1
            length += 1
            i += size_at(data, i)
            code = code_at(data, i, stop)
        scratch[LENGTHS + group] = length
        scratch[ENDS + group] = i
        scratch[SEPARATORS + group] = _NO_SEPARATOR
        group += 1
        if group == _MAX_GROUPS or (code != _BLANK and code != _HYPHEN and code != _CLOSE):
            return group
        i += size_at(data, i)
        if code == _CLOSE and i < stop and data[i] == _BLANK:
            i += 1
        if not is_digit(code_at(data, i, stop)):
            return group
        scratch[SEPARATORS + group - 1] = code


@kernel
def _is_id_number(scratch: NDArray[np.int64], check: int) -> bool:
    """Seventeen digits in scratch and the value of the check character (10 for X)."""
    if not _PROVINCES[scratch[0] * 10 + scratch[1]]:
        return False
    year = ((scratch[6] * 10 + scratch[7]) * 10 + scratch[8]) * 10 + scratch[9]
    month = scratch[10] * 10 + scratch[11]
    day = scratch[12] * 10 + scratch[13]
    if year < 1900 or year > 2099 or month < 1 or month > 12 or day < 1 or day > _MONTH_DAYS[month]:
        return False
    if month == 2 and day == 29 and (year % 4 != 0 or (year % 100 == 0 and year % 400 != 0)):
        return False
    total = check
    for k in range(17):
        total += scratch[k] * _WEIGHTS[k]
    return bool(total % 11 == 1)


@kernel
def _is_card(scratch: NDArray[np.int64], size: int) -> bool:
    """ISO/IEC 7812: an issuer's prefix with its length, and Luhn's check digit."""
    two = scratch[0] * 10 + scratch[1]
    four = two * 100 + scratch[2] * 10 + scratch[3]
    if two == 62:
        known = 16 <= size <= 19
    elif size == 16:
        known = scratch[0] == 4 or 51 <= two <= 55 or 2221 <= four <= 2720 or 3528 <= four <= 3589
    elif size == 15:
        known = two == 34 or two == 37
    else:
        known = size == 14 and (two == 36 or two == 38 or 3000 <= four <= 3059)
    if not known:
        return False
    total = 0
    for k in range(size):
        value = scratch[size - 1 - k]
        if k & 1:
            value *= 2
            if value > 9:
                value -= 9
        total += value
    return total % 10 == 0


@kernel
def _is_mobile(scratch: NDArray[np.int64], first: int) -> bool:
    """Do the eleven digits from `first` on begin with an assigned series?"""
    return bool(scratch[first] == 1 and (_SERIES[scratch[first + 1]] >> scratch[first + 2]) & 1 == 1)


@kernel
def _is_area(scratch: NDArray[np.int64], first: int, size: int) -> bool:
    """An area code without its 0: 10, 20–29 but 26, or three digits from 3 on."""
    lead = scratch[first]
    if size == 2:
        return bool((lead == 1 and scratch[first + 1] == 0) or (lead == 2 and scratch[first + 1] != 6))
    return bool(size == 3 and lead >= 3)


@kernel
def _subscriber(scratch: NDArray[np.int64], first: int, group: int, groups: int, area: int) -> int:
    """How many groups from `group` on (digits from `first` on) are a landline number, 0 if none is.

    Eight digits behind two-digit area codes, else seven or eight; at a stretch or cut before the last four; not led by
    0 or 1 (those are services).
    """
    if group >= groups or scratch[first] < 2:
        return 0
    length = scratch[LENGTHS + group]
    if length == 8 or (length == 7 and area == 3):
        return 1
    if group + 1 >= groups or scratch[SEPARATORS + group] == _CLOSE:
        return 0
    cut = length == 4 or (length == 3 and area == 3)
    return 2 if cut and scratch[LENGTHS + group + 1] == 4 else 0


@kernel
def _phone(scratch: NDArray[np.int64], groups: int, plus: bool, bracket: bool) -> tuple[int, int]:
    """(kind, number of groups it takes), (NOTHING, 0) if no phone number begins here."""
    length = int(scratch[LENGTHS])
    # Digits and groups of a country code: 86 or 0086.
    code = 0
    group = 0
    if length != 11 and scratch[0] == 8 and scratch[1] == 6:
        code = 2
    elif scratch[0] == 0 and scratch[1] == 0 and scratch[2] == 8 and scratch[3] == 6:
        code = 4
    if code > 0 and length == code and groups > 1:
        if scratch[SEPARATORS] == _CLOSE and not bracket:
            return NOTHING, 0
        group = 1
        length = int(scratch[LENGTHS + 1])
    elif code > 0 and length == code + 11 and (plus or code == 4):
        length = 11
    elif plus:
        return NOTHING, 0
    else:
        code = 0
    first = code
    country = code > 0
    separator = scratch[SEPARATORS + group]
    if length == 11:
        return (MOBILE, group + 1) if _is_mobile(scratch, first) else (NOTHING, 0)
    if group + 2 < groups and length == 3 and scratch[LENGTHS + group + 1] == 4 and scratch[LENGTHS + group + 2] == 4:
        alike = separator != _CLOSE and scratch[SEPARATORS + group + 1] == separator
        if alike and _is_mobile(scratch, first):
            return MOBILE, group + 3
    if group + 1 >= groups:
        return NOTHING, 0
    zero = 1 if scratch[first] == 0 else 0
    if zero == 0 and not country:
        return NOTHING, 0
    if separator == _CLOSE and not bracket:
        return NOTHING, 0
    area = length - zero
    if not _is_area(scratch, first + zero, area):
        return NOTHING, 0
    taken = _subscriber(scratch, first + length, group + 1, groups, area)
    return (LANDLINE, group + 1 + taken) if taken else (NOTHING, 0)


@kernel
def _extension_end(data: NDArray[np.uint8], i: int, stop: int) -> int:
    """The end of the extension behind a landline number that ends at i: "-801", "转801"; i if there is none."""
    code = code_at(data, i, stop)
    if code != _HYPHEN and code != 0xE8BDAC:
        return i
    begin = i + size_at(data, i)
    end = begin
    for _ in range(_MAX_EXTENSION):
        if is_digit(code_at(data, end, stop)):
            end += size_at(data, end)
    # What is more than an extension is found not free by the caller.
    return end if end > begin else i


@kernel
def _card_groups(scratch: NDArray[np.int64], groups: int) -> tuple[int, int]:
    """(groups, digits) that are cut as card numbers are: not at all, in fours, 4-6-5, 4-6-4, or 6-13; (0, 0) if not."""
    first = scratch[LENGTHS]
    separator = scratch[SEPARATORS]
    if first >= 14:
        return (1, int(first)) if first <= 19 else (0, 0)
    if groups < 2 or separator == _CLOSE:
        return 0, 0
    second = scratch[LENGTHS + 1]
    if first == 6:
        return (2, 19) if second == 13 else (0, 0)
    if first != 4 or groups < 3 or scratch[SEPARATORS + 1] != separator:
        return 0, 0
    third = scratch[LENGTHS + 2]
    if second == 6:
        return (3, int(10 + third)) if third == 4 or third == 5 else (0, 0)
    if second != 4 or third != 4 or groups < 4 or scratch[SEPARATORS + 2] != separator or scratch[LENGTHS + 3] != 4:
        return 0, 0
    if groups > 4 and scratch[SEPARATORS + 3] == separator and scratch[LENGTHS + 4] <= 3:
        return 5, int(16 + scratch[LENGTHS + 4])
    return 4, 16


@kernel
def _id_end(data: NDArray[np.uint8], stop: int, scratch: NDArray[np.int64], groups: int) -> tuple[int, int]:
    """(groups, end) of an identity number at a stretch or cut 6-8-4; (0, 0) if there is none."""
    taken = 1
    size = int(scratch[LENGTHS])
    if groups > 2 and size == 6 and scratch[LENGTHS + 1] == 8 and scratch[SEPARATORS] != _CLOSE:
        if scratch[SEPARATORS + 1] != scratch[SEPARATORS]:
            return 0, 0
        taken = 3
        size = int(14 + scratch[LENGTHS + 2])
    end = int(scratch[ENDS + taken - 1])
    check = int(scratch[17])
    if size == 17 and end < stop and (data[end] | 0x20) == 0x78:
        check = 10
        end += 1
    elif size != 18:
        return 0, 0
    return (taken, end) if _is_id_number(scratch, check) else (0, 0)


@kernel
def number_at(
    data: NDArray[np.uint8], start: int, low: int, i: int, stop: int, scratch: NDArray[np.int64]
) -> tuple[int, int, int]:
    """(kind, begin, end) of the number whose first run of digits begins at i, or (NOTHING, i, end of that run)."""
    groups = _read_groups(data, i, stop, scratch)
    after = int(scratch[ENDS])
    code, j = code_before(data, low, i)
    plus = code == 0x2B
    begin = j if plus else i
    code, opening = code_before(data, low, begin)
    kind, taken = _phone(scratch, groups, plus, code == _OPEN)
    if kind != NOTHING:
        end = int(scratch[ENDS + taken - 1])
        for group in range(taken - 1):
            if scratch[SEPARATORS + group] == _CLOSE:
                begin = opening
        if kind == LANDLINE:
            end = _extension_end(data, end, stop)
    else:
        begin = i
        taken, end = _id_end(data, stop, scratch, groups)
        if taken > 0:
            kind = ID_NUMBER
        else:
            taken, size = _card_groups(scratch, groups)
            if taken == 0 or not _is_card(scratch, size):
                return NOTHING, i, after
            kind = BANK_CARD
            end = int(scratch[ENDS + taken - 1])
    blanks = 0
    for group in range(taken - 1):
        blanks += scratch[SEPARATORS + group] == _BLANK
    free = left_free(data, low, begin, blanks > 0) and right_free(data, end, stop, blanks > 0)
    if not free or in_url(data, start, begin):
        return NOTHING, i, after
    return kind, begin, end
