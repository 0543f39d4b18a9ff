"""Personal data: mobile and landline numbers, identity numbers, bank cards, e-mail and IP addresses, found and masked.

One pass over UTF-8 bytes looks only at runs of digits (full-width ones too) and at "@"; checksums and ranges decide.
What is found, and where the line is drawn (`personal_numbers`, `personal_addresses`):
    mobile      mainland numbers: 1[3-9] and nine more digits, but not of unused series (154, 160 …); at a stretch or
                3-4-4 with hyphens or spaces; perhaps behind +86, 0086 or 86
    landline    0 and an area code, a separator or brackets, 7 or 8 digits, perhaps an extension; also +86 10 …; service
                numbers (400, 800, 95588) belong to nobody
    id_number   18 characters: a province of GB/T 2260, a possible date from 1900 on, the check character of GB 11643;
                at a stretch or 6-8-4; the 15 digits of before 1999 have no check digit and are not looked for
    bank_card   UnionPay (62; 16 to 19 digits), Visa, Mastercard, JCB (16), American Express (15), Diners (14), in the
                usual groups, with Luhn's check digit; Visa's old 13 digits are mostly barcodes and not looked for
    email       RFC 5321 without quotes and rare signs; the last label of the domain is letters; example.* (RFC 2606),
                git@host and image names (a@2x.png) are nobody's
    ip          IPv4 and IPv6 of the global unicast ranges; not networks (…/24), not four parts below 10 (sections and
                versions), not behind the words version or 版本
A number inside a longer one, an identifier, a decimal, an amount, a file name or a web address is not a find. Names and
street addresses are left to others: no pattern knows them.

Cost: 1.2 ns per byte of Chinese text, half of that without digits; linear in any text, at 15 MB/s where it consists of
nothing but beginnings of numbers. What remains wrong on 170 MB of real text: releases such as "V8 to 9.4.146.24".
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from taojin.core.errors import ConfigError
from taojin.core.jit import kernel
from taojin.core.text import text_buffers
from taojin.quality.personal_addresses import email_at, ipv4_end, ipv6_end
from taojin.quality.personal_numbers import EMAIL, IP, NOTHING, SCRATCH_SIZE, code_at, is_digit, number_at, size_at

KINDS = ("mobile", "landline", "id_number", "bank_card", "email", "ip")  # numbered from 0 in kernels
PLACEHOLDERS = {
    "mobile": "[phone]",
    "landline": "[phone]",
    "id_number": "[id]",
    "bank_card": "[card]",
    "email": "[email]",
    "ip": "[ip]",
}
MIN_FIND_BYTES = 6  # a@b.cc

_U64 = np.uint64
_1 = np.uint64(1)
_2 = np.uint64(2)
_3 = np.uint64(3)
_4 = np.uint64(4)
_5 = np.uint64(5)
_6 = np.uint64(6)
_11 = np.uint64(11)


@kernel
def _can_begin(length: int, value: int, code: int) -> bool:
    """Can a number begin with a run of `length` digits, of this value, before this character? Most runs are years,
    prices and the like, and are sent away here."""
    if length > 6:
        return bool(length == 11 or 13 <= length <= 19)
    if code != 0x2D and code != 0x20 and code != 0x29:
        return False
    if length == 3:  # 010, 138
        return value < 100 or 130 <= value < 200
    if length == 4:  # 0571, 6222, 4111 …
        return value < 1000 or value >= 2221
    return value == 86 if length == 2 else length == 6


@kernel
def _find_at(
    data: NDArray[np.uint8], start: int, low: int, i: int, stop: int, scratch: NDArray[np.int64]
) -> tuple[int, int, int]:
    """(kind, begin, end) of the find that the run of digits at i belongs to, or (NOTHING, i, end of the run)."""
    end = i
    length = 0
    value = 0
    code = code_at(data, i, stop)
    while is_digit(code):
        value = value * 10 + (code & 15)  # may overflow: long runs are known by their length
        length += 1
        end += size_at(data, end)
        code = code_at(data, end, stop)
    if length <= 3 and code == 0x2E and 0 < value < 224:
        address = ipv4_end(data, low, i, stop)
        if address != 0:
            return IP, i, address
    if i + 4 < stop and data[i + 4] == 0x3A and (data[i] == 0x32 or data[i] == 0x33):
        address = ipv6_end(data, low, i, stop)
        if address != 0:
            return IP, i, address
    if not _can_begin(length, value, code):
        return NOTHING, i, end
    kind, begin, end = number_at(data, start, low, i, stop, scratch)
    if kind != NOTHING and end < stop and data[end] == 0x40:
        email, email_end = email_at(data, low, end, stop)
        if email_end != 0:
            return EMAIL, email, email_end
    return kind, begin, end


@kernel
def find_personal(
    data: NDArray[np.uint8],
    offsets_D: NDArray[np.int64],
    scratch: NDArray[np.int64],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    kinds: NDArray[np.uint8],
    num_finds_D: NDArray[np.int64],
) -> int:
    """Finds of the documents data[offsets_D[d]:offsets_D[d + 1]], in order and without overlap; returns their number.

    starts, ends (positions in data) and kinds (index into KINDS) need room for a find in every MIN_FIND_BYTES bytes and
    one more; scratch is int64[SCRATCH_SIZE]. The leftmost find wins, and of those that begin at the same byte the
    longest.
    """
    count = 0
    for d in range(offsets_D.size - 1):
        start = offsets_D[d]
        end = offsets_D[d + 1]
        low = start
        before = count
        i = _U64(start)
        stop = _U64(end)
        while i < stop:
            b = data[i]
            while b < 0x80 and (b < 0x30 or b > 0x39) and b != 0x40:
                i += _1
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
            if b >= 0x80 and b != 0xEF:
                i += _1 if b < 0xC0 else _2 if b < 0xE0 else _3 if b < 0xF0 else _4
                continue
            if b < 0x80 and b != 0x40 and (b < 0x30 or b > 0x39):
                continue
            if b < 0x40:
                # Most runs are years and the like: away with them before anything is called.
                j = i + _1
                while j < stop and 0x30 <= data[j] <= 0x39:
                    j += _1
                length = j - i
                follower = data[j] if j < stop else data[i]
                short = length < _11 and not (i + _4 < stop and data[i + _4] == 0x3A)
                if short and follower != 0x2E and follower != 0xC2 and follower != 0xE2 and follower != 0xEF:
                    separated = follower == 0x2D or follower == 0x20 or follower == 0x29
                    if not separated or length in (_1, _5) or length > _6:
                        i = j
                        continue
            here = np.int64(i)
            if b == 0x40:
                begin, after = email_at(data, low, here, end)
                kind = EMAIL if after != 0 else NOTHING
                after = max(after, here + 1)
            elif is_digit(code_at(data, here, end)):
                kind, begin, after = _find_at(data, start, low, here, end, scratch)
            else:
                i += _3 if b == 0xEF else _U64(0)
                continue
            i = _U64(after)
            if kind != NOTHING:
                starts[count] = begin
                ends[count] = after
                kinds[count] = kind
                count += 1
                low = after
        num_finds_D[d] = count - before
    return count


class Finds(NamedTuple):
    """starts, ends int64[F]: positions in the array's data buffer · kinds uint8[F] · documents int64[F]"""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    kinds: NDArray[np.uint8]
    documents: NDArray[np.int64]

    def where(self, mask: NDArray[np.bool_]) -> "Finds":
        return Finds(self.starts[mask], self.ends[mask], self.kinds[mask], self.documents[mask])


def find_array(texts: pa.LargeStringArray) -> Finds:
    """All finds of an array, in order; nulls have none."""
    data, offsets_D = text_buffers(texts)
    room = int(offsets_D[-1] - offsets_D[0]) // MIN_FIND_BYTES + 1  # pages are touched only as far as used
    starts, ends, kinds = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.uint8)
    num_finds_D = np.empty(len(texts), np.int64)
    count = find_personal(data, offsets_D, np.empty(SCRATCH_SIZE, np.int64), starts, ends, kinds, num_finds_D)
    finds = Finds(starts[:count], ends[:count], kinds[:count], np.repeat(np.arange(len(texts)), num_finds_D))
    if not texts.null_count:
        return finds
    valid = texts.is_valid().to_numpy(zero_copy_only=False)[finds.documents]  # bytes may lie under a null
    return finds.where(valid)


def count_personal(texts: pa.LargeStringArray) -> dict[str, NDArray[np.uint32]]:
    """kind → uint32[D], finds in each document, for all KINDS."""
    finds = find_array(texts)
    return {
        kind: np.bincount(finds.documents[finds.kinds == number], minlength=len(texts)).astype(np.uint32)
        for number, kind in enumerate(KINDS)
    }


def mask_array(texts: pa.LargeStringArray, kinds: Sequence[str] = KINDS) -> tuple[pa.LargeStringArray, dict[str, int]]:
    """(texts with placeholders in place of finds, number of each of `kinds`).

    The very same array where nothing is found; all other bytes stay. Masking again finds nothing more: a number that
    only its neighbour hid is masked too, though `count_personal` did not see it. Raises ConfigError for unknown kinds.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(f"expected kinds of personal data out of {', '.join(KINDS)}, found {kind!r}")
    finds = find_array(texts)
    chosen = np.isin(finds.kinds, [number for number, kind in enumerate(KINDS) if kind in kinds])
    finds = finds.where(chosen)
    numbers = {kind: int(np.count_nonzero(finds.kinds == KINDS.index(kind))) for kind in kinds}
    if not finds.starts.size:
        return texts, numbers
    data, offsets_D = text_buffers(texts)
    changed_D = np.zeros(len(texts), np.bool_)
    changed_D[finds.documents] = True
    # What lies between finds and document borders is copied, one slice each.
    masked = []
    first = 0
    for d, last in zip(*_runs(finds.documents), strict=True):
        position = int(offsets_D[d])
        pieces = []
        for k in range(first, last):
            pieces += [data[position : finds.starts[k]].tobytes(), PLACEHOLDERS[KINDS[finds.kinds[k]]].encode()]
            position = int(finds.ends[k])
        masked.append(b"".join([*pieces, data[position : offsets_D[d + 1]].tobytes()]))
        first = last
    after = pa.array(masked, pa.large_binary()).view(pa.large_string())  # not decoded: it may not be UTF-8
    # A find gone can free its left neighbour: a card number before it was a row of a table, an IPv6 address had no end.
    # Three rounds are the most there can be: no third kind waits for what these two waited for.
    after, more = mask_array(after, kinds)
    numbers = {kind: number + more[kind] for kind, number in numbers.items()}
    return pc.replace_with_mask(texts, pa.array(changed_D), after), numbers


def _runs(documents: NDArray[np.int64]) -> tuple[list[int], list[int]]:
    """(documents that occur, where the finds of each end)."""
    values, counts = np.unique(documents, return_counts=True)
    return values.tolist(), np.cumsum(counts).tolist()
