import random
import re

import phonenumbers
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stdnum import luhn
from stdnum.cn import ric

from taojin.core.errors import ConfigError
from taojin.quality.personal import KINDS, PLACEHOLDERS, count_personal, find_array, mask_array
from tests import naive_personal

RANDOM = random.Random(20240229)
ID_NUMBERS = ["11010519491231002X", "360426199101010071"]
CARDS = {
    16: "6222021001116245", 17: "62220210011162457", 18: "622202100111624570", 19: "6222021001116245702",
    15: "378282246310005", 14: "30569309025904",
}  # fmt: skip

# Text with weight on what decides: parts of numbers, separators, signs before and after.
fragments = st.one_of(
    st.sampled_from(["13800138000", "138", "0013", "8000", "19912345678", "15412345678", "86", "0086", "+86", "(+86)"]),
    st.sampled_from(["010", "0571", "21", "62551234", "6255", "1234", "7654321", "转801", "(010)", "（0571）", "2019"]),
    st.sampled_from(
        [*ID_NUMBERS, "110105", "19491231", "002X", "11010519491231002", "4111111111111111", "4111", "1111"]
    ),
    st.sampled_from(["3782", "822463", "10005", "622202", "6222021001116245702", "1001116245702", "5500000000000004"]),
    st.sampled_from(
        ["8.8.8.8", "114.114.114.114", "10.1.2.3", "255", "2400:3200::1", "2001:db8::1", "::", "2001:da8:1:2:3:4:5:6"]
    ),
    st.sampled_from(
        ["a.b@qq.com", "@", "com", "qq", "git", "example", "2x.png", "x", "www.", "://", "version", "版本"]
    ),
    st.sampled_from(
        [*"----    ....::@@/()（）—－,，。_+$%¥￥元人转xXＡ１２３\xa0", "", "010-62551234", "0571-8765 4321"]
    ),
    st.text(st.sampled_from("0123456789"), min_size=1, max_size=12),
    st.characters(exclude_categories=["Cs"]),
)
texts = st.lists(fragments, max_size=14).map("".join)


def strings(*values: str | None) -> pa.LargeStringArray:
    return pa.array(values, pa.large_string())


def found(text: str, kind: str | None = None) -> list[str]:
    """The finds in a text, as written there."""
    data = text.encode()
    finds = find_array(strings(text))
    assert not finds.documents.any()
    return [
        data[start:end].decode()
        for start, end, number in zip(finds.starts, finds.ends, finds.kinds, strict=True)
        if kind is None or KINDS[number] == kind
    ]


def masked(text: str, *kinds: str) -> str:
    return str(mask_array(strings(text), kinds or KINDS)[0][0].as_py())


# ---------------------------------------------------------------------------- what is found


@pytest.mark.parametrize(
    "text",
    [
        "13800138000", "138-0013-8000", "138 0013 8000", "+8613800138000", "+86 138 0013 8000", "0086-13800138000",
        "008613800138000", "86-13800138000", "(+86)13800138000", "（+86）13800138000", "１３８００１３８０００",
    ],
)  # fmt: skip
@pytest.mark.parametrize("around", ["电话：{}，", "{}", "Tel.{}.", "手机{}/", "a {} b", "「{}」", "13912345678、{}"])
def test_mobile_numbers_are_found_in_their_usual_forms(text: str, around: str) -> None:
    assert text in found(around.format(text), "mobile")


@pytest.mark.parametrize(
    "text",
    [
        "010-62551234", "0571-87654321", "0311-8765432", "(010)62551234", "（0571）87654321", "(010) 62551234",
        "010—62551234", "010－62551234", "0755-2655 1234", "010-6255-1234", "010 62551234", "010-62551234-801",
        "010-62551234转801", "+86-10-62551234", "+86 571 8765 4321", "(86-10) 6255 1234", "０１０－６２５５１２３４",
    ],
)  # fmt: skip
def test_landline_numbers_are_found_in_their_usual_forms(text: str) -> None:
    assert found(f"座机：{text}。", "landline") == [text]


@pytest.mark.parametrize("text", [*ID_NUMBERS, "11010519491231002x", "110105 19491231 002X", "110105-19491231-002X"])
def test_identity_numbers_are_found(text: str) -> None:
    assert found(f"身份证号{text}，", "id_number") == [text]


@pytest.mark.parametrize(
    "text",
    ["4111 1111 1111 1111", "3782-822463-10005", "3056 930902 5904", "6222 0210 0111 6245 702", "622202 1001116245702"],
)
def test_bank_cards_are_found_in_their_groups(text: str) -> None:
    assert found(f"卡号：{text}。", "bank_card") == [text]


@pytest.mark.parametrize(
    "text", ["a@b.cc", "zhang.san+x@mail.163.com", "13800138000@163.com", "A_B@EXAMPLE-2.COM.CN", "x%y@xn--fiq228c.cn"]
)
@pytest.mark.parametrize("around", ["邮箱：{}。", "<{}>", "mailto:{}?x", "{}-张三", "{}.", "，.{}，"])
def test_email_addresses_are_found(text: str, around: str) -> None:
    assert found(around.format(text)) == [text]


@pytest.mark.parametrize(
    "text", ["8.8.4.44", "114.114.114.114", "2400:3200::1", "2001:da8:1:2:3:4:5:6", "2400:3200:BABA::"]
)
@pytest.mark.parametrize("around", ["IP：{}，", "http://{}/index", "[{}]:80", "ip:{}", "({})"])
def test_public_ip_addresses_are_found(text: str, around: str) -> None:
    assert found(around.format(text)) == [text]


@pytest.mark.parametrize(
    "text",
    [
        "1380013800", "138001380001", "138000138000138000138000", "x13800138000", "13800138000x", "id_13800138000",
        "3.13800138000", "13800138000.5", "13800138000.jpg", "¥13800138000", "13800138000元", "13800138000%",
        "2020-13800138000", "13800138000-1", "https://a.cn/13800138000", "www.a.cn/?q=13800138000", "/a/13800138000",
        "12345678901", "15412345678", "138 0013 8000 1", "138-0013 8000", "+13800138000", "138)00138000",
        "10-62551234", "010-12345678", "010-6255123", "0571 12", "026-62551234", "010)62551234", "400-820-8820",
        "2019-01-02 10:20:30", "0.16666666666666666", "1642172400000", "2826881778407440457",
        "110105194912310021", "11010519490231002X", "99010519491231002X", "11010519491231002", "11010518491231002X",
        "4111111111111112", "9111111111111111", "4111 1111-1111 1111", "4000 5000 6000 7000", "4111111111111",
        "1000 4111 1111 1111 1111", "a@b", "@b.com", "a@b.c", "a@b.123", "git@github.com", "x@example.com",
        "icon@2x.png", "a@b_c.com", "this@Main.run()", "a.@b.com",
        "10.1.2.3", "127.0.0.1", "192.168.1.1", "172.16.3.40", "100.64.1.1", "203.0.113.7", "224.0.0.251", "1.2.3.4",
        "1.2.3.400", "01.2.3.40", "1.2.3.40.5", "v1.2.3.40", "version 10.20.30.40", "版本：10.20.30.40", "8.8.8.0",
        "202.96.128.0/17", "8.8.8.80-beta", "2001:db8::1", "fe80::1", "2001:10:20", "2001::", "2002:102:304::1",
        "2400:3200::1::2", "2400:3200:::1", "1:2:3:4:5:6:7:8", "2400:3200::/32", "2400:32000::1",
    ],
)  # fmt: skip
def test_look_alikes_are_not_found(text: str) -> None:
    assert found(text) == []
    assert found(f"，{text}，") == []


def test_every_mobile_number_of_libphonenumber_is_found() -> None:
    numbers = [f"1{RANDOM.randrange(10**10):010}" for _ in range(4000)]
    for number in numbers:
        parsed = phonenumbers.parse(number, "CN")
        if (
            phonenumbers.is_valid_number(parsed)
            and phonenumbers.number_type(parsed) == phonenumbers.PhoneNumberType.MOBILE
        ):
            assert found(number) == [number]


def test_the_check_character_of_identity_numbers_is_that_of_stdnum() -> None:
    for _ in range(200):
        digits = f"110105{RANDOM.randrange(1900, 2030)}{RANDOM.randrange(1, 13):02}{RANDOM.randrange(1, 29):02}"
        digits += f"{RANDOM.randrange(1000):03}"
        right = ric.calc_check_digit(digits + "0")
        assert [c for c in "0123456789X" if found(digits + c, "id_number")] == [right]


@pytest.mark.parametrize("size", CARDS)
def test_the_check_digit_of_cards_is_luhns(size: int) -> None:
    body = CARDS[size][:-1]
    right = luhn.calc_check_digit(body)
    assert [c for c in "0123456789" if found(body + c, "bank_card")] == [right]


@given(texts)
@example("13800138000@" + "a" * 64 + ".com 转010-62551234转123456")
@example("x" * 65 + "@b.com")
@example("a@" + "b" * 64 + ".com")
@settings(max_examples=600)
def test_finds_are_those_of_regular_expressions(text: str) -> None:
    finds = find_array(strings("before 1", text, "2 after"))
    expected = [
        (kind, len(text[:begin].encode()), len(text[:end].encode())) for kind, begin, end in naive_personal.find(text)
    ]
    result = [
        (KINDS[number], int(start) - 8, int(end) - 8)
        for start, end, number in zip(finds.starts, finds.ends, finds.kinds, strict=True)
    ]
    assert result == expected
    assert (finds.documents == 1).all()


# ---------------------------------------------------------------------------- masking


def test_placeholders_take_the_place_of_finds_and_nothing_else_changes() -> None:
    text = (
        "王某，电话 13800138000 或 010-62551234，邮箱a@b.cc；证11010519491231002X，\r\n卡4111111111111111 @ 8.8.4.44 \0"
    )
    assert masked(text) == "王某，电话 [phone] 或 [phone]，邮箱[email]；证[id]，\r\n卡[card] @ [ip] \0"


def test_kinds_that_were_not_asked_for_stay() -> None:
    text = "13800138000 a@b.cc 13900139000@163.com"
    assert masked(text, "email") == "13800138000 [email] [email]"
    assert masked(text, "mobile") == "[phone] a@b.cc 13900139000@163.com"


@given(texts, st.sets(st.sampled_from(KINDS), min_size=1))
@example("a@b.cc-13800138000+c@d.ee", {"email", "mobile"})
@example("2400:3200::4111 1111 1111 1111 13800138000", {"ip", "bank_card", "mobile"})
@settings(max_examples=300)
def test_masking_leaves_no_finds_and_is_idempotent(text: str, kinds: set[str]) -> None:
    once, numbers = mask_array(strings(text), sorted(kinds))
    counts = count_personal(strings(text))
    assert all(numbers[kind] >= counts[kind][0] for kind in kinds)
    again, none = mask_array(once, sorted(kinds))
    assert again is once
    assert not any(none.values())
    # What lies outside of finds is the same text.
    kept = [re.escape(part) for part in re.split(r"\[(?:phone|id|card|email|ip)\]", once[0].as_py())]
    assert re.fullmatch(".*".join(kept), text, re.DOTALL)


def test_an_array_without_finds_is_returned_itself() -> None:
    array = strings("没有", None, "", "2019-01-02")
    result, numbers = mask_array(array)
    assert result is array
    assert numbers == dict.fromkeys(KINDS, 0)


def test_counts_and_masks_keep_nulls_slices_and_order() -> None:
    array = strings("a@b.cc", None, "13800138000 13900139000 a@b.cc", "x", "8.8.4.44").slice(1)
    counts = count_personal(array)
    assert {kind: counts[kind].tolist() for kind in ("mobile", "email", "ip")} == {
        "mobile": [0, 2, 0, 0],
        "email": [0, 1, 0, 0],
        "ip": [0, 0, 0, 1],
    }
    assert mask_array(array)[0].to_pylist() == [None, "[phone] [phone] [email]", "x", "[ip]"]


def test_bytes_under_a_null_are_no_finds() -> None:
    buffers = strings("a@b.cc", "a@b.cc").buffers()
    array = pa.LargeStringArray.from_buffers(2, buffers[1], buffers[2], pa.py_buffer(b"\x02"), 1)
    assert count_personal(array)["email"].tolist() == [0, 1]
    assert mask_array(array)[0].to_pylist() == [None, "[email]"]


@given(st.binary(max_size=24), st.binary(max_size=12))
@example(b"\xef\xbc", b"\x9013800138000")
@example(b"1380013800", b"0")
@settings(max_examples=60)
def test_bytes_that_are_not_utf8_pass_and_neighbours_do_not_matter(document: bytes, neighbour: bytes) -> None:
    def spans(*documents: bytes) -> list[tuple[int, int]]:
        finds = find_array(pa.array(documents, pa.large_binary()).view(pa.large_string()))
        inside = finds.documents == documents.index(document)
        return list(zip((finds.starts - len(documents[0]))[inside].tolist(), finds.kinds[inside].tolist(), strict=True))

    before = neighbour + b"."
    assert spans(before, document, neighbour) == [(s - len(before) + len(document), k) for s, k in spans(document)]


def test_an_unknown_kind_is_the_users_error() -> None:
    with pytest.raises(ConfigError, match=r"expected kinds of personal data out of mobile, .* found 'name'"):
        mask_array(strings("x"), ["email", "name"])


def test_every_kind_has_a_placeholder_that_is_no_find() -> None:
    assert set(PLACEHOLDERS) == set(KINDS)
    assert found(" ".join(PLACEHOLDERS.values())) == []
