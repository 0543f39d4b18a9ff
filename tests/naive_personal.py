"""Slow, obvious oracle of `taojin.quality.personal`: regular expressions, ipaddress, datetime and python-stdnum."""

import datetime
import ipaddress
import re

from stdnum import luhn
from stdnum.cn import ric

# Forms that count as one: full-width digits, brackets, spaces, hyphens and dashes.
ALIKE = str.maketrans({chr(0xFF10 + d): str(d) for d in range(10)} | dict.fromkeys("‐‑‒–—−－", "-"))
ALIKE |= str.maketrans({"（": "(", "）": ")", "\xa0": " "})

SERIES = r"1(?:3\d|4[0-14-9]|5[0-35-9]|6[125-7]|7[0-8]|8\d|9[0-35-9])"
COUNTRY = r"(?P<country>(?:86|0086)(?:[- ]|\) ?))"
MOBILE = re.compile(
    rf"(?:{COUNTRY}?{SERIES}(?:\d{{8}}|(?P<s>[- ])\d{{4}}(?P=s)\d{{4}})|(?P<joint>(?:00)?86{SERIES}\d{{8}}))(?!\d)"
)
LANDLINE = re.compile(
    rf"{COUNTRY}?(?P<zero>0?)(?:(?:10|2[0-57-9])(?:[- ]|\) ?)[2-9]\d{{3}}[- ]?\d{{4}}"
    r"|[3-9]\d\d(?:[- ]|\) ?)[2-9]\d{2,3}[- ]?\d{4})(?!\d)"
)
EXTENSION = re.compile(r"[-转]\d{1,5}")
ID_NUMBER = re.compile(r"\d{17}[\dXx]|\d{6}([- ])\d{8}\1\d{3}[\dXx]")
CARD = re.compile(
    r"(?:\d{14,19}|\d{4}([- ])\d{4}\1\d{4}\1\d{4}(?:\1\d{1,3})?|\d{4}([- ])\d{6}\2\d{4,5}|\d{6}[- ]\d{13})(?!\d)"
)
ISSUERS = {
    14: r"36|38|30[0-5]",
    15: r"34|37",
    16: r"62|4|5[1-5]|222[1-9]|22[3-9]|2[3-6]|27[01]|2720|352[89]|35[3-8]",
    17: "62",
    18: "62",
    19: "62",
}
BEFORE = re.compile(r"(?:[0-9A-Za-z_+$%¥￥Ａ-Ｚ]|\d\.|[A-Za-z_]/|[0-9A-Za-z_]-)$", re.ASCII)
AFTER = re.compile(r"[0-9A-Za-z_%％元万亿美股人吨]|[.-]\w", re.ASCII)
URL = re.compile(r"""[^\x00- \x7f-\U0010ffff"<>,;]*$""")

LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?")
TOP = re.compile(r"[A-Za-z]{2,24}(?![\w(]|-[\w-])", re.ASCII)
IPV6 = re.compile(r"[0-9a-f]{1,4}(?:::?[0-9a-f]{1,4})*(?:::)?(?!:[:\w])", re.ASCII | re.IGNORECASE)
IP_BEFORE = re.compile(r"(?:[\w.]|\w-|(?i:ersion)[ :=：]{0,3}|版本[ :=：]{0,3})$", re.ASCII)
IP_AFTER = re.compile(r"\w|[.-]\w|/\d{1,3}(?!\w)", re.ASCII)
NOBODYS = [ipaddress.ip_network(n) for n in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")]

Find = tuple[str, int, int]


def is_id_number(text: str) -> bool:
    digits = re.sub(r"[- ]", "", text).upper()
    try:
        born = datetime.date(int(digits[6:10]), int(digits[10:12]), int(digits[12:14]))
    except ValueError:
        return False
    province = re.match("1[1-5]|2[123]|3[1-7]|4[1-6]|5[0-4]|6[1-5]|71|8[123]", digits)
    return bool(province) and 1900 <= born.year <= 2099 and ric.calc_check_digit(digits) == digits[-1]


def is_card(text: str) -> bool:
    digits = re.sub(r"[- ]", "", text)
    return bool(re.match(ISSUERS.get(len(digits), "x"), digits)) and luhn.is_valid(digits)


def phone(text: str, low: int, i: int) -> Find | None:
    plus = i > low and text[i - 1] == "+"
    begin = i - plus
    opened = begin > low and text[begin - 1] == "("
    for kind, pattern in (("mobile", MOBILE), ("landline", LANDLINE)):
        match = pattern.match(text, i)
        if not match or (")" in match[0] and not opened):
            continue
        if kind == "mobile":
            joint = match["joint"]
            if (plus and not match["country"] and not joint) or (joint and not plus and joint[0] != "0"):
                continue
            end = match.end()
        else:
            if not match["zero"] and not match["country"]:
                continue
            if plus and not match["country"]:
                continue
            extension = EXTENSION.match(text, match.end())
            end = extension.end() if extension else match.end()
        return kind, begin - (")" in match[0]), end
    return None


def number(raw: str, text: str, low: int, i: int) -> Find | None:
    find = phone(text, low, i)
    if find is None:
        match = ID_NUMBER.match(text, i)
        if match and is_id_number(match[0]):
            find = "id_number", i, match.end()
        else:
            match = CARD.match(text, i)
            if match is None or not is_card(match[0]):
                return None
            find = "bank_card", i, match.end()
    _, begin, end = find
    before, after = text[low:begin], text[end:]
    if BEFORE.search(before) or AFTER.match(after):
        return None
    # Parts separated by spaces beside another number and a space are a row of a table.
    inside = re.sub(r"\) ", ")", text[begin:end])
    if " " in inside and (re.search(r"\d $", before) or re.match(r" \d", after)):
        return None
    address = URL.search(raw[:begin])
    assert address is not None
    return None if "://" in address[0] or "www." in address[0].lower() else find


def email(raw: str, low: int, at: int) -> Find | None:
    match = re.search(r"[\w.%+-]*$", raw[low:at], re.ASCII)
    assert match is not None
    local = re.sub(r"^\W+", "", match[0].rpartition("..")[2], flags=re.ASCII)
    if len(match[0].rpartition("..")[2]) > 64 or not local or local.endswith(".") or local.lower() == "git":
        return None
    if re.match(r"\d[xX]\.", raw[at + 1 :]):
        return None
    domain = raw[: at + 256]
    best = None
    i = at + 1
    previous = ""
    while label := LABEL.match(domain, i):
        if len(label[0]) > 63:
            break
        top = TOP.match(domain, i)
        if previous and top and top.end() >= label.end():
            best = None if previous.lower() == "example" else top.end()
        previous = label[0]
        if raw[label.end() : label.end() + 1] != ".":
            break
        i = label.end() + 1
    return None if best is None else ("email", at - len(local), best)


def ip(raw: str, text: str, low: int, i: int) -> Find | None:
    if IP_BEFORE.search(text[low:i]):
        return None
    match = re.compile(r"(?:\d{1,3}\.){3}\d{1,3}", re.ASCII).match(raw, i)
    if match is None:
        match = IPV6.match(raw, i)
        if match is None or raw[i] not in "23" or match[0].find(":") != 4 or re.search(r"[0-9a-fA-F:]:$", text[low:i]):
            return None
    try:
        address = ipaddress.ip_address(match[0])
    except ValueError:
        return None
    if address.version == 4:
        parts = address.packed
        nobodys = not address.is_global or address.is_multicast or max(parts) < 10 or parts[3] == 0
    else:
        nobodys = any(address in network for network in NOBODYS) or len(match[0].rstrip(":").split(":")) < 2
    return None if nobodys or IP_AFTER.match(raw, match.end()) else ("ip", i, match.end())


def find(raw: str) -> list[Find]:
    """(kind, begin, end) in characters."""
    text = raw.translate(ALIKE)
    finds: list[Find] = []
    low = i = 0
    while match := re.compile(r"[0-9]+|@").search(text, i):
        start = match.start()
        if text[start] == "@":
            found = email(raw, low, start)
        else:
            found = ip(raw, text, low, start) or number(raw, text, low, start)
            if found and found[0] != "ip" and text[found[2] : found[2] + 1] == "@":
                found = email(raw, low, found[2]) or found
        i = found[2] if found else match.end()
        if found:
            finds.append(found)
            low = i
    return finds
