import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from taojin.core.errors import ConfigError
from taojin.core.text import text_buffers
from taojin.quality import models
from taojin.quality.characters import ALONE, CONTROL, FORMAT, LETTER, MARK, NUMBER, load_character_table
from taojin.quality.classifier import MIN_BITS, Classifier, save_classifier, score_array
from taojin.quality.models import PIECE_WORDS, model_part, open_model, parse_model, parse_models, space_words
from tests.fasttext_files import Tiny, model_bytes, probabilities, write_model

ARPA = """\\data\\
ngram 1=6
ngram 2=4

\\1-grams:
-1.0\t<unk>
0\t<s>\t-0.3
-0.7\t</s>
-0.5\t中\t-0.2
-0.6\t文\t-0.1
-0.9\tabc\t-0.4

\\2-grams:
-0.2\t<s> 中
-0.3\t中 文
-0.4\t文 </s>
-0.05\t中 中

\\end\\
"""
GOOD_OR_BAD = Tiny(
    words=["</s>", "好", "坏", "很 好"],
    labels=[("hq", 6), ("lq", 4)],
    input=[[0.0, 0.0], [2.0, 0.0], [0.0, 3.0], [0.0, 0.0]],
    output=[[1.0, 0.0], [0.0, 1.0]],
)


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    return write_model(tmp_path / "good.bin", GOOD_OR_BAD)


@pytest.fixture
def arpa(tmp_path: Path) -> Path:
    pytest.importorskip("kenlm")
    path = tmp_path / "two.arpa"
    path.write_text(ARPA, encoding="utf-8")
    return path


def scores(spec: str, *texts: str | bytes | None) -> list[float]:
    kind = pa.large_binary() if any(isinstance(text, bytes) for text in texts) else pa.large_string()
    found = open_model(parse_model(spec)).score(pa.array(texts, kind))
    assert found.dtype == np.float32
    values: list[float] = found.tolist()
    return values


def refused(spec: str) -> str:
    with pytest.raises(ConfigError) as caught:
        open_model(parse_model(spec))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_classifiers_signal_is_the_probability_worked_out_by_hand(classifier: Path) -> None:
    # Rows of 好 and of the end: mean (1, 0); of two 坏 and the end: mean (0, 2). Softmax of two is a sigmoid.
    found = scores(f"quality={classifier}", "好", "坏 坏", "坏\n坏")
    assert found == pytest.approx([1 / (1 + np.exp(-1)), 1 / (1 + np.exp(2)), 1 / (1 + np.exp(2))])


def test_the_other_label_has_the_rest_of_the_probability(classifier: Path) -> None:
    good, bad = scores(f"q={classifier}", "好"), scores(f"q={classifier}:lq", "好")
    assert good[0] + bad[0] == pytest.approx(1)
    assert scores(f"q={classifier}:__label__lq", "好") == bad


def test_words_symbols_parts_chinese_for_the_classifier(classifier: Path) -> None:
    text = "好坏，坏abc"
    expected = probabilities(GOOD_OR_BAD, "好 坏 ， 坏 abc")
    assert expected is not None
    assert scores(f"q={classifier},words=symbols", text) == pytest.approx([expected[0]])
    assert scores(f"q={classifier}", text) == pytest.approx([0.5])


def test_words_jieba_segments_for_the_classifier(tmp_path: Path) -> None:
    pytest.importorskip("rjieba")
    tiny = GOOD_OR_BAD._replace(words=["</s>", "北京", "坏", "很 好"])
    path = write_model(tmp_path / "jieba.bin", tiny)
    found = scores(f"q={path},words=jieba", "我来到北京", None, b"\xff")
    assert found[0] > 0.5
    assert np.isnan(found[1:]).all()


@pytest.mark.parametrize("words", ["raw", "symbols"])
def test_null_and_invalid_texts_have_no_signal(classifier: Path, arpa: Path, words: str) -> None:
    for path in (classifier, arpa):
        found = scores(f"m={path},words={words}", "好".encode(), None, b"\xe4\xb8", b"a\xff", "好".encode())
        assert np.isnan(found[1:4]).all()
        assert found[0] == found[4] > 0


def test_no_documents_have_no_signals(classifier: Path, arpa: Path) -> None:
    for spec in (f"a={classifier}", f"b={classifier},words=symbols", f"c={arpa}"):
        assert scores(spec) == []


def test_a_slice_of_an_array_is_read_where_it_lies(classifier: Path, arpa: Path) -> None:
    texts = pa.array(["坏", "好", "中文", None, "坏"], pa.large_string())
    for spec in (f"a={classifier}", f"b={classifier},words=symbols", f"c={arpa}"):
        model = open_model(parse_model(spec))
        assert np.array_equal(model.score(texts.slice(1, 3)), model.score(texts)[1:4], equal_nan=True)


def test_perplexity_is_the_one_worked_out_by_hand(arpa: Path) -> None:
    # <s> 中 -0.2, 中 文 -0.3, 文 </s> -0.4 over three words; twice the same on two lines.
    assert scores(f"p={arpa}", "中文", "中文\n\n 中文\r\n") == pytest.approx([10 ** (0.9 / 3)] * 2)
    # <s> abc: backs off -0.3, -0.9; </s> after it: -0.4, -0.7.
    assert scores(f"p={arpa}", "abc") == pytest.approx([10 ** (2.3 / 2)])
    # An unknown word has no back-off of its own: -0.3 - 1.0 - 0.7.
    assert scores(f"p={arpa}", "字") == pytest.approx([10 ** (2.0 / 2)])


def test_raw_words_are_what_white_space_separates(arpa: Path) -> None:
    assert scores(f"p={arpa},words=raw", "中　文 ") == pytest.approx(scores(f"p={arpa}", "中文"))
    assert scores(f"p={arpa},words=raw", "中文") == pytest.approx([10 ** (2.0 / 2)])


def test_a_text_without_words_has_no_perplexity(arpa: Path) -> None:
    assert np.isnan(scores(f"p={arpa}", "", " \n\u3000\u200b")).all()


def test_a_line_longer_than_a_piece_loses_only_the_context_at_its_cuts(arpa: Path) -> None:
    length = 2 * PIECE_WORDS + 5
    # 中 after 中 costs 0.05; after each of two cuts it has no context: 0.5. Then 中 </s>: 0.2 + 0.7.
    total = 0.2 + 0.05 * (length - 3) + 2 * 0.5 + 0.9
    assert scores(f"p={arpa}", "中" * length) == pytest.approx([10 ** (total / (length + 1))], rel=1e-5)


def plain_words(text: str, by_symbol: bool) -> list[list[str]]:
    """The words of each line that has any."""
    table = load_character_table()
    lines: list[list[str]] = []
    for line in text.splitlines():
        words: list[str] = []
        in_run = False
        for character in line:
            flags = int(table[ord(character)])
            run = not by_symbol or (flags & (LETTER | NUMBER) and not flags & ALONE)
            mark = by_symbol and flags & MARK and not flags & ALONE
            if character.isspace():
                in_run = False
            elif not flags & (FORMAT | CONTROL):
                if (run and in_run) or (mark and words):
                    words[-1] += character
                else:
                    words.append(character)
                    in_run = bool(run or mark)
        if words:
            lines.append(words)
    return lines


@settings(max_examples=150)
@given(
    st.text(st.sampled_from("中文ab1é\u0301\u200b，. \n\r\u3000\u2028かกั한𠀀😀\0"), max_size=25),
    st.booleans(),
    st.integers(1, 4),
)
@example("a\u0301中\u0301\n\u0301b", True, 1)
def test_words_lines_and_pieces_are_those_of_a_plain_loop(text: str, by_symbol: bool, piece: int) -> None:
    array = pa.array(["前", text, "后"], pa.large_string())
    data, offsets = text_buffers(array)
    size = len(text.encode())
    out = np.full(2 * size + 2, 0xAB, np.uint8)
    written, words = space_words(
        data, offsets[1], offsets[2], load_character_table(), by_symbol, piece, np.empty(size + 1, np.uint32), out
    )
    expected = plain_words(text, by_symbol)
    assert words == sum(map(len, expected))
    lines = ["\0".join(" ".join(line[k : k + piece]) for k in range(0, len(line), piece)) for line in expected]
    assert out[:written].tobytes().decode() == "\n".join(lines)
    assert (out[max(2 * size + 1, written) :] == 0xAB).all()


def test_a_name_must_be_letters_digits_and_underscores(classifier: Path) -> None:
    for name in ("", "1a", "a-b", "好", "a b"):
        assert "expected NAME=PATH" in refused(f"{name}={classifier}")
    assert "expected NAME=PATH" in refused(str(classifier))


def test_a_name_is_taken_once(classifier: Path) -> None:
    with pytest.raises(ConfigError, match="the name a is taken"):
        parse_models([f"a={classifier}", f"b={classifier}", f"a={classifier}:lq"])
    assert [spec.name for spec in parse_models([f"a={classifier}", f"b={classifier}"])] == ["a", "b"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert f"no file {tmp_path / 'none.bin'}" in refused(f"a={tmp_path / 'none.bin'}")
    assert f"no file {tmp_path / 'none.bin'}" in refused(f"a={tmp_path / 'none.bin'}:hq")
    assert f"no file {tmp_path}" in refused(f"a={tmp_path}")


@pytest.mark.parametrize(
    "content", [b"", b"PK", b"hello", b"\x1f\x8b\x08", b"# arpa?\n\nngram 1=2", b"\xba\x16\x4f\x2e"]
)
def test_a_file_that_is_no_model_never_reaches_a_library(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(content)
    assert "found a file that begins with" in refused(f"a={path}")


def test_a_path_may_hold_colons_and_equals_signs(tmp_path: Path) -> None:
    path = write_model(tmp_path / "a:b=c.bin", GOOD_OR_BAD)
    assert scores(f"q={path}", "好") == scores(f"q={path}:hq", "好")


def test_unknown_words_are_refused(classifier: Path) -> None:
    assert "expected one of raw, symbols, jieba" in refused(f"a={classifier},words=bpe")


def test_an_unknown_label_is_answered_with_those_there_are(classifier: Path) -> None:
    assert "no label 'good'; choose one of: hq, lq" in refused(f"a={classifier}:good")


@pytest.mark.parametrize("labels", [("a", "b"), ("1", "hq"), ("1", "0", "2")])
def test_without_an_obvious_good_label_one_must_be_chosen(tmp_path: Path, labels: tuple[str, ...]) -> None:
    output = [[1.0, 0.0]] * len(labels)
    path = write_model(tmp_path / "m.bin", GOOD_OR_BAD._replace(labels=[(x, 5) for x in labels], output=output))
    assert f"with one of: {', '.join(labels)}" in refused(f"a={path}")


def test_only_classifiers_have_labels(arpa: Path) -> None:
    assert "only fastText classifiers have labels" in refused(f"a={arpa}:hq")


def test_damaged_models_are_refused_in_one_line(tmp_path: Path, arpa: Path) -> None:
    cut = tmp_path / "cut.bin"
    cut.write_bytes(model_bytes(GOOD_OR_BAD)[:-1])
    assert "not a complete fastText model" in refused(f"a={cut}")
    for size in range(8, len(ARPA) - 12, 11):
        path = tmp_path / f"{size}.arpa"
        path.write_text(ARPA[:size], encoding="utf-8")
        assert "not a complete KenLM model" in refused(f"a={path}")
    for rest in (b" 5\n\0", b" 5\n\0" + bytes(5000), b" 99"):
        binary = tmp_path / f"{len(rest)}.klm"
        binary.write_bytes(models.KENLM_MAGIC + rest)
        assert "not a complete KenLM model" in refused(f"a={binary}")


def test_an_arpa_file_may_begin_with_comments(tmp_path: Path, arpa: Path) -> None:
    path = tmp_path / "commented.arpa"
    path.write_text("# made by hand\n\n" + ARPA, encoding="utf-8")
    assert scores(f"a={path}", "中文") == scores(f"a={arpa}", "中文")


def test_without_kenlm_the_extra_is_named(arpa: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kenlm", None)
    assert "pip install 'taojin[kenlm]'" in refused(f"not_opened_before={arpa}")


def test_the_plan_keeps_what_the_signal_depends_on_and_not_where_the_file_lies(
    classifier: Path, tmp_path: Path
) -> None:
    part = model_part(parse_model(f"q={classifier}"))
    moved = write_model(tmp_path / "elsewhere.ftz", GOOD_OR_BAD)
    assert model_part(parse_model(f"q={moved}")) == part
    assert model_part(parse_model(f"q={moved}:lq")) != part
    assert model_part(parse_model(f"q={moved},words=symbols")) != part
    other = write_model(tmp_path / "other.ftz", GOOD_OR_BAD._replace(labels=[("hq", 7), ("lq", 4)]))
    assert model_part(parse_model(f"q={other}"))["content"] != part["content"]


def test_the_plan_keeps_the_segmenter_where_one_cuts_the_words(classifier: Path) -> None:
    pytest.importorskip("rjieba")
    assert "jieba" in model_part(parse_model(f"q={classifier},words=jieba"))["segmenter"]
    assert "segmenter" not in model_part(parse_model(f"q={classifier}"))


def test_a_wrong_label_is_met_when_the_plan_is_made(classifier: Path) -> None:
    with pytest.raises(ConfigError, match="no label 'x'"):
        model_part(parse_model(f"q={classifier}:x"))


def test_a_classifier_of_taojin_fit_is_a_model_too(tmp_path: Path) -> None:
    weights = np.linspace(-1, 1, 1 << MIN_BITS).astype(np.float32)
    fitted = Classifier(weights.astype(np.float16).astype(np.float32), 0.5, MIN_BITS, 100, {})
    save_classifier(fitted, tmp_path / "fitted.npz")
    texts = pa.array(["好文章，好文章", None, "abc def"], pa.large_string())
    found = open_model(parse_model(f"own={tmp_path / 'fitted.npz'}")).score(texts)
    assert np.array_equal(found, score_array(fitted, texts), equal_nan=True)
    assert "leave words=raw out" in refused(f"own={tmp_path / 'fitted.npz'},words=raw")
