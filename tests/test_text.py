from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from taojin.core.fold import load_fold_table
from taojin.core.text import SYMBOLS_PER_BYTE, fold_symbols, hash_bytes, mix
from tests import naive

Fold = Callable[[bytes], naive.Folded]
CANARY = np.uint64(0xDEAD_BEEF_DEAD_BEEF)
POISON = {
    "continuation bytes": b"\x80" * 8,
    "letters": b"a" * 8,
    "Han": "中中中".encode()[1:],
    "a lead byte": b"\xf0\xe4\xc3" * 3,
}

# Unicode without surrogates, with weight on what the kernel treats in its own way: runs, Han, expansions, 4-byte forms.
characters = st.one_of(
    st.characters(exclude_categories=["Cs"]),
    st.sampled_from("中文字，。、カナﾞがกำㅄ〇"),
    st.sampled_from("abcXYZ019 .,\n"),
    st.sampled_from("éßﬁ½㌖㍿ǆİꭰДਿ한ﷺ"),
    st.sampled_from("\u200b\u0301\ufe0f\u00ad\ufeff"),
    st.sampled_from("𠀀𝐀😀🇨\U000e0100\U0010ffff\U00030000\uffff\u0800\u07ff\u0080\x7f\x00"),
)
texts = st.text(characters, max_size=60)
# Bytes that are nearly UTF-8: characters, cut ones, and the forms that a lax decoder lets through.
fragments = st.one_of(
    st.binary(max_size=4),
    characters.map(str.encode),
    st.tuples(characters.map(str.encode), st.integers(1, 3)).map(lambda p: p[0][: -p[1]]),
    st.sampled_from(
        [
            b"\xc0\x80", b"\xc1\xbf", b"\xe0\x80\x80", b"\xe0\x9f\xbf", b"\xf0\x80\x80\x80", b"\xf0\x8f\xbf\xbf",
            b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xed\x9f\xbf", b"\xf4\x8f\xbf\xbf", b"\xf4\x90\x80\x80",
            b"\xf5\x80\x80\x80",
            b"\xf8\x88\x80\x80\x80", b"\xfe", b"\xff", b"\x80", b"\xbf", b"\xe4\xb8", b"\xf0\x9f\x98", b"\xc3",
        ]
    ),
)  # fmt: skip
any_bytes = st.lists(fragments, max_size=12).map(b"".join)


def fold(data: bytes, before: bytes = b"", after: bytes = b"") -> naive.Folded:
    """The kernel on `data` in the middle of a larger read-only buffer; nothing behind the capacity may change."""
    table = load_fold_table()
    buffer = np.frombuffer(before + data + after, np.uint8) if before + data + after else np.zeros(0, np.uint8)
    capacity = SYMBOLS_PER_BYTE * len(data) + 1
    scratch = np.full(capacity + 16, CANARY)
    count, chars, valid = fold_symbols(
        buffer, len(before), len(before) + len(data), table.table, table.expansions, scratch
    )
    assert count <= capacity
    assert (scratch[capacity:] == CANARY).all()
    return naive.Folded(scratch[:count].tolist() if valid else [], int(chars) if valid else 0, bool(valid))


def is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def jaccard(one: naive.Folded, other: naive.Folded, ngram: int = 5) -> float:
    return naive.jaccard(naive.shingles(one.symbols, ngram), naive.shingles(other.symbols, ngram))


# ---------------------------------------------------------------------------- symbols


@given(texts)
@example("")
@example("中")
@example("a")
@example("𠀀")
@example("\u200b")
@example("a中b")
@example("ab\u200bc")
@example("㌖" * 20)
def test_the_symbols_of_a_text_are_the_naive_ones(naive_fold: Fold, text: str) -> None:
    assert fold(text.encode()) == naive_fold(text.encode())


@given(any_bytes)
def test_the_symbols_of_any_bytes_are_the_naive_ones(naive_fold: Fold, data: bytes) -> None:
    assert fold(data) == naive_fold(data)


@given(any_bytes)
def test_a_text_is_valid_exactly_when_python_decodes_it(data: bytes) -> None:
    assert fold(data).valid == is_utf8(data)


@pytest.mark.usefixtures("compiled")
def test_every_code_point_alone_is_valid_and_counts_as_one() -> None:
    table, expansions = load_fold_table()
    code_points = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    data = np.frombuffer("".join(map(chr, code_points)).encode(), np.uint8)
    scratch = np.empty(SYMBOLS_PER_BYTE * data.size + 1, np.uint64)
    _, chars, valid = fold_symbols(data, 0, data.size, table, expansions, scratch)
    assert valid
    assert chars == len(code_points)


@pytest.mark.usefixtures("compiled")
def test_every_pair_and_triple_of_bytes_is_judged_as_python_does() -> None:
    """All 65,536 pairs, and all triples whose first byte can lead three."""
    table, expansions = load_fold_table()
    scratch = np.empty(16, np.uint64)
    wrong = []
    for first in range(256):
        for second in range(256):
            thirds = (b"", *(bytes([c]) for c in (0x00, 0x7F, 0x80, 0xBF, 0xC0, 0xFF))) if first >= 0xE0 else (b"",)
            for third in thirds:
                data = bytes([first, second]) + third
                valid = fold_symbols(np.frombuffer(data, np.uint8), 0, len(data), table, expansions, scratch)[2]
                if bool(valid) != is_utf8(data):
                    wrong.append(data)
    assert not wrong


@given(st.integers(0x80, 0xFF), st.integers(0x70, 0xC8), st.integers(0x70, 0xC8), st.integers(0x70, 0xC8))
def test_any_four_bytes_are_judged_as_python_does(first: int, second: int, third: int, fourth: int) -> None:
    data = bytes([first, second, third, fourth])
    assert fold(data).valid == is_utf8(data)


@pytest.mark.parametrize("poison", POISON.values(), ids=POISON.keys())
@given(data=any_bytes)
@example(data=b"\xf0\x9f\x98")
@example(data=b"\xe4\xb8")
@example(data=b"\xc3")
@example(data=b"")
def test_nothing_outside_the_document_is_read(data: bytes, poison: bytes) -> None:
    assert fold(data, before=poison, after=poison) == fold(data)


@given(texts, texts)
def test_a_break_between_two_texts_keeps_their_symbols_apart(one: str, other: str) -> None:
    joined = fold(f"{one} {other}".encode())
    assert joined.symbols == fold(one.encode()).symbols + fold(other.encode()).symbols


@given(texts)
def test_invisible_characters_change_no_symbol(text: str) -> None:
    stuffed = "\u200b".join(["", *text, ""])
    assert fold(stuffed.encode()).symbols == fold(text.encode()).symbols


def test_the_densest_text_fits_the_stated_capacity() -> None:
    for text in ("㌖", "a㌖", "㌖a", "中", "½" * 5, "ﷺ" * 5, "a b c d e f", "1中1中"):
        repeated = text * 50
        assert len(fold(repeated.encode()).symbols) <= SYMBOLS_PER_BYTE * len(repeated.encode())


# ---------------------------------------------------------------------------- dirty files


DIRTY = [
    "astral_emoji_zwj.txt", "bad_lines.jsonl", "bom_only.txt", "combining_zalgo.txt", "crlf_cr_mixed.txt",
    "double_encoded.txt", "empty.txt", "fullwidth.txt", "gbk_inside_utf8.txt", "gbk_read_as_utf8.txt", "kunjinkao.txt",
    "nul_every_char.txt", "overlong_and_surrogates.bin", "plain_reference.txt", "spaced_out.txt", "special_tokens.txt",
    "truncated_utf8.txt", "utf8_as_gbk.txt", "whitespace_only.txt", "zero_width_stuffed.txt",
]  # fmt: skip


def test_every_dirty_file_is_in_the_list(dirty_texts: Path) -> None:
    assert sorted(p.name for p in dirty_texts.iterdir()) == DIRTY


@pytest.mark.parametrize("name", DIRTY)
def test_a_dirty_file_folds_as_the_naive_way_does(dirty_texts: Path, naive_fold: Fold, name: str) -> None:
    data = (dirty_texts / name).read_bytes()
    assert fold(data, before=b"\xe4", after=b"\x80\x80") == naive_fold(data)


@pytest.mark.parametrize("name", ["bom_only.txt", "whitespace_only.txt", "empty.txt"])
def test_files_without_a_visible_character_have_no_symbol(dirty_texts: Path, name: str) -> None:
    assert fold((dirty_texts / name).read_bytes()).symbols == []


@pytest.mark.parametrize("name", ["zero_width_stuffed.txt", "spaced_out.txt", "fullwidth.txt"])
def test_a_disguised_text_resembles_the_plain_one_above_the_threshold(dirty_texts: Path, name: str) -> None:
    """zero_width_stuffed and fullwidth reach 1.0. spaced_out takes words of letters and digits apart: 0.965."""
    plain = fold((dirty_texts / "plain_reference.txt").read_bytes())
    found = jaccard(fold((dirty_texts / name).read_bytes()), plain)
    assert found == 1.0 if name != "spaced_out.txt" else found > 0.95


def test_stacked_combining_marks_leave_the_plain_text(dirty_texts: Path) -> None:
    zalgo = fold((dirty_texts / "combining_zalgo.txt").read_bytes())
    plain = fold((dirty_texts / "plain_reference.txt").read_bytes())
    assert set(naive.shingles(zalgo.symbols, 5)) <= set(naive.shingles(plain.symbols, 5))


# ---------------------------------------------------------------------------- other kernels of the file


@given(st.integers(0, 2**64 - 1))
def test_mix_is_the_finalizer_of_splitmix64(x: int) -> None:
    assert int(mix(np.uint64(x))) == naive.mix(x)


@given(st.lists(st.binary(max_size=20), max_size=8))
def test_hash_bytes_names_each_string_by_its_bytes_alone(strings: list[bytes]) -> None:
    data = np.frombuffer(b"\xff" + b"".join(strings), np.uint8)
    offsets = np.cumsum([1, *map(len, strings)]).astype(np.int64)
    out = np.zeros(len(strings), np.uint64)
    hash_bytes(data, offsets, out)
    by_name = dict(zip(strings, out.tolist(), strict=True))
    assert len(set(by_name.values())) == len(set(strings))
    assert [by_name[s] for s in strings] == out.tolist()
