import importlib.util
import unicodedata
from collections.abc import Iterator

import numpy as np
import pytest

from taojin.core.fold import NUM_CODE_POINTS, TABLE_PATH, FoldTable, load_fold_table
from taojin.core.text import SYMBOLS_PER_BYTE
from tests.naive import BREAK, LETTER, SURROGATE, SYMBOL, VANISH, fold, fold_entries

needs_opencc = pytest.mark.skipif(
    importlib.util.find_spec("opencc") is None,
    reason="the recipe reads its characters from opencc-python-reimplemented",
)
# The recipe follows the interpreter's Unicode data; the shipped file does not.
same_unicode = pytest.mark.skipif(
    unicodedata.unidata_version != "14.0.0", reason="the table was built with Unicode 14 (Python 3.11)"
)


def folded(text: str) -> list[str]:
    """What a text becomes, as runs: letters and symbols as characters, a run cut at every break."""
    table = load_fold_table()
    parts: list[str] = [""]
    for kind, value in (e for c in text for e in fold_entries(ord(c), table.table, table.expansions)):
        assert kind in (BREAK, VANISH, SYMBOL, LETTER)
        if kind == BREAK:
            parts.append("")
        elif kind != VANISH:
            parts[-1] += chr(value)
    return [part for part in parts if part]


def kinds(text: str) -> list[int]:
    table = load_fold_table()
    return [kind for c in text for kind, _ in fold_entries(ord(c), table.table, table.expansions)]


# ---------------------------------------------------------------------------- the file


def test_the_shipped_table_is_loaded_once_and_read_only() -> None:
    table = load_fold_table()
    assert table is load_fold_table()
    assert table.table.shape == (NUM_CODE_POINTS,)
    assert table.table.dtype == table.expansions.dtype == np.uint32
    with pytest.raises(ValueError, match="read-only"):
        table.table[0] = 0
    with pytest.raises(ValueError, match="read-only"):
        table.expansions[0] = 0


def test_the_shipped_table_is_small() -> None:
    assert TABLE_PATH.stat().st_size < 200_000


@needs_opencc
@same_unicode
def test_the_table_is_the_recipe_for_the_whole_basic_plane_and_samples_of_the_others() -> None:
    from taojin.core import fold_build

    simplified = fold_build.simplified_characters()
    table, expansions = load_fold_table()
    astral = np.random.default_rng(0).choice(np.arange(0x10000, NUM_CODE_POINTS), 20_000, replace=False)
    dense = [*range(0x1D400, 0x1D800), *range(0x1F100, 0x1F300), *range(0x2F800, 0x2FA20), *range(0xE0000, 0xE0200)]
    wrong = []
    for code_point in (*range(0x10000), *dense, *astral.tolist()):
        recipe = [(e >> 21, e & 0x1FFFFF) for e in fold_build.fold_code_point(code_point, simplified)]
        if fold_entries(code_point, table, expansions) != (recipe or [(VANISH, 0)]):
            wrong.append(hex(code_point))
    assert not wrong


def all_entries(table: FoldTable) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    for code_point in range(NUM_CODE_POINTS):
        yield code_point, fold_entries(code_point, table.table, table.expansions)


def test_every_entry_is_well_formed(fold_table: FoldTable) -> None:
    for code_point, entries in all_entries(fold_table):
        for kind, value in entries:
            assert kind in (BREAK, VANISH, SYMBOL, LETTER, SURROGATE), hex(code_point)
            assert value < NUM_CODE_POINTS, hex(code_point)
            assert (kind in (SYMBOL, LETTER)) or value == 0 or len(entries) == 1, hex(code_point)
        assert (SURROGATE in {kind for kind, _ in entries}) == (0xD800 <= code_point <= 0xDFFF), hex(code_point)


def test_no_code_point_gives_more_symbols_than_its_bytes_allow(fold_table: FoldTable) -> None:
    """A code point can close a run left of it and leave one open on its right; charging each run to the code point that
    begins it, the symbols of a text are at most the sum of what its code points begin."""
    densest = 0.0
    for code_point, entries in all_entries(fold_table):
        num_bytes = 1 if code_point < 0x80 else 2 if code_point < 0x800 else 3 if code_point < 0x10000 else 4
        begun = 0
        after_letter = False
        for kind, _ in entries:
            begun += kind == SYMBOL or (kind == LETTER and not after_letter)
            if kind != VANISH:
                after_letter = kind == LETTER
        densest = max(densest, begun / num_bytes)
    assert densest <= SYMBOLS_PER_BYTE
    assert densest == 2.0  # ㌖: kept as tight as it can be


def test_folding_twice_is_folding_once(fold_table: FoldTable) -> None:
    """What an entry names must itself fold to that entry, or a folded text and its source would differ."""
    unstable = []
    for code_point, entries in all_entries(fold_table):
        for kind, value in entries:
            if kind in (SYMBOL, LETTER) and fold_entries(value, fold_table.table, fold_table.expansions) != [
                (kind, value)
            ]:
                unstable.append(f"U+{code_point:04X} {chr(code_point)} → U+{value:04X} {chr(value)}")
    assert not unstable


# ---------------------------------------------------------------------------- what becomes what


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ＡＢＣ１２３", "abc123"),
        ("ｶﾀｶﾅ", "カタカナ"),
        ("Straße", "STRASSE"),
        ("ÉCOLE", "ecole"),
        ("naïve", "NAIVE"),
        ("ŵ", "w"),
        ("ΣΊΣΥΦΟΣ", "σισυφος"),
        ("Ёж", "еж"),
        ("漢語對應簡體字", "汉语对应简体字"),
        ("臺灣學術網路", "台湾学术网路"),
        ("乾隆後宮", "干隆后宫"),
        ("豈更車", "岂更车"),  # CJK compatibility ideographs U+F900…
        ("⼀⼆⽇", "一二日"),  # Kangxi radicals
        ("ﬁnd ﬂow", "find flow"),
        ("㌔", "キロ"),
        ("㍿", "株式会社"),
        ("②", "2"),
        ("Ⅷ", "viii"),
        ("𝐀𝒃𝕮", "abc"),
        ("ｶﾞ", "カ"),
        ("が", "か"),
        ("パ", "ハ"),
    ],
)
def test_two_forms_of_a_character_fold_to_the_same(one: str, other: str) -> None:
    assert folded(one) == folded(other)
    assert folded(one)


@pytest.mark.parametrize(
    ("one", "other"), [("a", "b"), ("中", "国"), ("カ", "か"), ("1", "2"), ("е", "e"), ("は", "へ"), ("ก", "ข")]
)
def test_different_characters_stay_different(one: str, other: str) -> None:
    assert folded(one) != folded(other)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("½", ["1", "2"]),  # 1⁄2: the fraction slash ends the run
        ("ﬁ", ["fi"]),
        ("ß", ["ss"]),
        ("㌔", ["キロ"]),
        ("e\u0301", ["e"]),
        ("é", ["e"]),
        ("中\u200b文", ["中文"]),
        ("wo\u00adrd", ["word"]),
        ("\ufeffword", ["word"]),
        ("don't stop", ["don", "t", "stop"]),
        ("3.14", ["3", "14"]),
        ("中文，很好。", ["中文", "很好"]),
        ("a\u3000b\u00a0c\td\r\ne", ["a", "b", "c", "d", "e"]),
        ("👍🏽", []),
        ("※★→€", []),
        ("", []),
    ],
)
def test_a_text_becomes_these_runs(text: str, parts: list[str]) -> None:
    assert folded(text) == parts


@pytest.mark.parametrize("text", ["ที่นี่", "ສະບາຍດີ", "ខ្ញុំ", "မြန်မာ", "བོད་ཡིག", "हिन्दी", "தமிழ்", "বাংলা", "മലയാളം"])
def test_vowel_signs_of_indic_and_south_east_asian_scripts_are_kept(text: str) -> None:
    bare = "".join(c for c in text if unicodedata.category(c) not in ("Mn", "Mc"))
    assert bare != text
    assert "".join(folded(text)) != "".join(folded(bare))
    assert sum(len(part) for part in folded(text)) >= len(text) - 1  # the Tibetan tsheg is punctuation


@pytest.mark.parametrize("text", ["شَدَّة", "שָׁלוֹם"])
def test_points_of_semitic_scripts_vanish(text: str) -> None:
    assert folded(text) == folded("".join(c for c in text if unicodedata.category(c) != "Mn"))


def test_zero_width_and_combining_characters_vanish() -> None:
    vanishing = "\u200b\u200c\u200d\u2060\ufeff\u00ad\u0300\u0301\u20dd\ufe0f\U000e0100\u180b\u3099"
    assert kinds(vanishing) == [VANISH] * len(vanishing)


def test_white_space_punctuation_symbols_and_controls_end_a_run() -> None:
    breaking = (
        " \t\n\r\x00\x1f\x7f\u00a0\u3000.,!?-_'\"，。！？、；：（）【】《》“”…—～$€+=<>|^©→★☃😀\ufffd\ufffe\uffff"
    )
    assert kinds(breaking) == [BREAK] * len(breaking)


def test_scripts_without_spaces_give_one_symbol_a_character() -> None:
    spaceless = "中文カナかなㄅㄆ々〇ไทยລາວཀခក䷀"[:-1] + "\ue000𠀀\U00030000"
    assert kinds(spaceless) == [SYMBOL] * len(spaceless)


def test_letters_and_digits_of_other_scripts_extend_a_run() -> None:
    letters = "azAZ09éßждأبאबக한글ա"
    assert set(kinds(letters)) == {LETTER}


def test_surrogates_have_no_place(fold_table: FoldTable) -> None:
    assert set((fold_table.table[0xD800:0xE000] >> 21).tolist()) == {SURROGATE}


def test_a_symbol_is_never_the_hash_of_a_run(fold_table: FoldTable) -> None:
    """Code points stay below 2^21; a run of one letter is hashed far above it."""
    for letter in "a1é한":
        (symbol,) = fold(letter.encode(), fold_table.table, fold_table.expansions).symbols
        assert symbol > 1 << 21
