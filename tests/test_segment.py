import json
import os
import stat
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taojin.core.errors import ConfigError, InvariantError
from taojin.quality import segment
from taojin.quality.segment import (
    LONGEST_CALL,
    LONGEST_RUN,
    SAMPLE,
    Segmenter,
    choose_segmenter,
    cuts_as_jieba,
    gather_runs,
    is_chinese,
    open_segmenter,
    segment_words,
    word_lengths,
)
from taojin.quality.signals import INDEX
from taojin.quality.word_tables import load_word_tables
from taojin.quality.words import HAS_LETTER, IS_MARK
from tests import naive_words
from tests.jobs import ROOT, SHARED
from tests.test_words import PEERS, code_points_of, dev_documents, peers

pytest.importorskip("rjieba", reason="needs the jieba extra")
TABLES = load_word_tables()
texts = st.lists(
    st.one_of(
        st.sampled_from(
            ["我们的", "中华人民共和国", "臺灣大學", "乒乓球拍卖完了", "龦", "㐀", "𠀀", "〇", "カナ", "é"]
        ),
        st.sampled_from(
            ["abc", "Python3.11", "0.1MPa", "97.3%", "a%b", "--", "tidb-ansible", "...", "C++", "#1", "_x_"]
        ),
        st.sampled_from(["，", "。", "（", "!", "/", "=", "😀", " ", "\n", "\r\n", "\u3000", "\x1c", "\x00", "\u200b"]),
        st.characters(exclude_categories=["Cs"]),
        st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF),
    ),
    max_size=16,
).map("".join)


def pairs(text: str) -> list[str]:
    """A segmenter without a dictionary: two characters a word, a line feed alone."""
    words: list[str] = []
    for line in text.splitlines(keepends=True):
        run = line.removesuffix("\n")
        words += [run[i : i + 2] for i in range(0, len(run), 2)] + ["\n"] * line.endswith("\n")
    return words


PAIRS = Segmenter("pairs 0", pairs)


def run_segmenter(segmenter: Segmenter, text: str) -> tuple[list[str], list[int], list[int]]:
    code_points = code_points_of(text)
    count = code_points.size
    starts, ends = np.empty(count, np.uint32), np.empty(count, np.uint32)
    hashes, flags = np.empty(count, np.uint64), np.empty(count, np.uint8)
    num = segment_words(segmenter, code_points, count, TABLES, starts, ends, hashes, flags)
    words = [text[a:b] for a, b in zip(starts[:num], ends[:num], strict=True)]
    return words, hashes[:num].tolist(), flags[:num].tolist()


@settings(max_examples=200, deadline=None)
@given(texts)
def test_words_are_the_segmenters_in_chinese_and_jiebas_rules_elsewhere(text: str) -> None:
    words, hashes, flags = run_segmenter(PAIRS, text)
    cut = {run: pairs(run) for run in naive_words.chinese_runs(text)}
    assert words == naive_words.segment(text, cut)
    assert hashes == [naive_words.word_hash(word) for word in words]
    assert [bool(flag & HAS_LETTER) for flag in flags] == [any(map(naive_words.is_letter, word)) for word in words]


@pytest.mark.parametrize("name", ["rjieba", "jieba-fast"])
def test_a_run_is_cut_as_the_library_cuts_it(name: str) -> None:
    segmenter = segment._open(segment._installed(name))
    text = "我们在南京市长江大桥下，用TiDB 7.5部署集群。"
    expected = ["我们", "在", "南京市", "长江大桥", "下", "，", "用", "TiDB", "7.5", "部署", "集群", "。"]
    assert run_segmenter(segmenter, text)[0] == expected


def test_a_long_run_is_cut_at_borders_of_its_own() -> None:
    run = "一二三" * LONGEST_RUN
    words, _, _ = run_segmenter(PAIRS, "a" + run + "，" + run[: LONGEST_RUN - 1])
    assert max(map(len, words)) == 2
    assert words[1 : 1 + LONGEST_RUN // 2] == pairs(run[:LONGEST_RUN])
    assert words == run_segmenter(PAIRS, "a" + run)[0] + ["，"] + pairs(run[: LONGEST_RUN - 1])


@pytest.mark.parametrize("unit", ["一", "一，", "一a", "a", ".", "一\n"])
def test_a_million_characters_in_one_line_are_cut_in_calls_of_bounded_size(unit: str) -> None:
    calls: list[int] = []

    def counted(text: str) -> list[str]:
        calls.append(len(text))
        return pairs(text)

    text = unit * (1_000_000 // len(unit))
    words, _, _ = run_segmenter(Segmenter("counted 0", counted), text)
    assert sum(map(len, words)) == sum(not c.isspace() for c in text)
    assert max(calls, default=0) <= LONGEST_CALL


def test_calls_end_between_runs_so_their_size_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    code_points = code_points_of("中华人民共和国，我们的北京大学生前来应聘。" * 50)
    runs = np.empty(2 * code_points.size, np.uint32)
    runs = runs[: gather_runs(code_points, code_points.size, 6, runs)]
    segmenter = choose_segmenter()
    whole = word_lengths(segmenter, runs).tolist()
    monkeypatch.setattr(segment, "LONGEST_CALL", 11)
    assert word_lengths(segmenter, runs).tolist() == whole


def test_a_segmenter_that_loses_characters_is_a_defect() -> None:
    with pytest.raises(InvariantError, match="lossy 1: words of 2 characters out of 3"):
        run_segmenter(Segmenter("lossy 1", lambda text: [text[1:]]), "中文")


# ---------------------------------------------------------------------------- choice


def test_rjieba_is_chosen_where_it_cuts_the_sample_as_jieba_does() -> None:
    chosen = choose_segmenter()
    assert chosen.name.startswith("rjieba ")
    assert all(cuts_as_jieba(chosen, cut) for cut in SAMPLE)


def test_jieba_fast_is_chosen_where_rjieba_cuts_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "_rjieba", lambda: pairs)
    assert choose_segmenter().name.startswith("jieba-fast ")


def test_jieba_fast_cuts_the_sample_as_jieba_does_but_for_characters_its_model_has_not_seen() -> None:
    fast = segment._open(segment._installed("jieba-fast"))
    assert [cut[:5] for cut in SAMPLE if not cuts_as_jieba(fast, cut)] == ["臺|灣積|"]


def test_without_a_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "_installed", lambda package: "")
    with pytest.raises(ConfigError, match=r"found neither.*pip install 'taojin\[jieba\]'"):
        choose_segmenter()


def test_a_plan_opens_the_segmenter_it_names_and_no_other_version() -> None:
    name = choose_segmenter().name
    assert open_segmenter(name).name == name
    with pytest.raises(ConfigError, match=r"made with rjieba 0\.0\.1, found rjieba .*pip install rjieba==0\.0\.1"):
        open_segmenter("rjieba 0.0.1")
    with pytest.raises(ConfigError, match="expected one of rjieba, jieba-fast"):
        open_segmenter("pkuseg 1")


CACHE = """
import sys
from taojin.quality import segment
print(segment._open(segment._installed("jieba-fast")).cut("南京市长江大桥"))
"""


def test_processes_that_start_together_share_one_private_cache(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "TMPDIR": str(tmp_path / "temp")}
    (tmp_path / "temp").mkdir()
    running = [
        subprocess.Popen(
            [sys.executable, "-c", CACHE], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(3)
    ]
    outputs = [process.communicate() for process in running]
    assert {out.decode() for out, _ in outputs} == {"['南京市', '长江大桥']\n"}
    assert {err for _, err in outputs} == {b""}
    (folder,) = (tmp_path / "taojin").iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [path.name for path in folder.iterdir()] == ["jieba.cache"]
    assert not list((tmp_path / "temp").iterdir())


def test_a_cache_folder_that_others_can_write_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = segment._cache_folder()
    assert folder is not None
    assert tmp_path in folder.parents
    folder.chmod(0o777)
    assert segment._cache_folder() is None


# ---------------------------------------------------------------------------- which documents


@pytest.mark.parametrize(
    ("han", "kana", "white", "chinese"),
    [
        (0.9, 0.0, 0.0, True),
        (0.10, 0.0, 0.5, True),
        (0.09, 0.0, 0.5, False),
        (0.5, 0.04, 0.0, True),
        (0.5, 0.06, 0.0, False),
        (0.0, 0.0, 1.0, False),
    ],
)
def test_a_document_is_chinese_by_its_shares_of_visible_characters(
    han: float, kana: float, white: float, chinese: bool
) -> None:
    values = np.zeros(len(INDEX), np.float32)
    values[INDEX["han_share"]], values[INDEX["kana_share"]], values[INDEX["whitespace_share"]] = han, kana, white
    assert is_chinese(values) is chinese


# ---------------------------------------------------------------------------- outside oracle

CMN = """
import json, sys
from datatrove.utils.text import PUNCTUATION_SET, split_into_words
rows = []
stop = set("的 年 在 月 是 和 日 了 於 · 為 有 被 人 中 为 他 與 後 也 而 由".split())
for text in json.load(sys.stdin):
    words = split_into_words(text, "cmn")
    kept = [w for w in words if any(c not in PUNCTUATION_SET for c in w)]
    alpha = sum(any(c.isalpha() for c in w) for w in words)
    rows.append([len(words), len(kept), sum(map(len, kept)), alpha, len(stop & set(words))])
json.dump(rows, sys.stdout)
"""
STOP_WORDS = {*"的年在月是和日了於·為有被人中为他與後也而由"}


def verdicts(text: str, marks: int, words: int, characters: int, alpha: int, stop_words: int) -> dict[str, bool]:
    """FineWeb-2's cmn_Hani.yml, the rules that count words."""
    mean = characters / max(words, 1)
    num = max(marks, 1)
    return {
        "short": words < 50,
        "mean": not 1 <= mean <= 5,
        "alpha": alpha / num < 0.735,
        "stop words": stop_words < 2,
        "newlines": text.count("\n") / num > 0.178,
        "hashes": text.count("#") / num > 0.1,
        "ellipses": (text.count("...") + text.count("…")) / num > 0.1,
    }


@pytest.mark.skipif(not PEERS.exists(), reason="needs datatrove, spaCy and jieba in .bench/peers-venv")
@pytest.mark.skipif(not SHARED.exists(), reason="needs the corpus in ../shared")
def test_chinese_documents_have_the_word_counts_and_verdicts_of_datatrove() -> None:
    documents = dev_documents("zh", 160) + dev_documents("zh-hant", 60)
    segmenter = choose_segmenter()
    close = 0
    differ: Counter[str] = Counter()
    for text, row in zip(documents, peers(CMN, documents), strict=True):
        words, _, flags = run_segmenter(segmenter, text)
        kept = [word for word, flag in zip(words, flags, strict=True) if not flag & IS_MARK]
        alpha = sum(flag & HAS_LETTER != 0 for flag in flags)
        mine = verdicts(text, len(words), len(kept), sum(map(len, kept)), alpha, len(STOP_WORDS & set(words)))
        close += abs(len(words) - row[0]) <= 0.01 * row[0]
        theirs = verdicts(text, *row)
        differ.update(rule for rule, holds in mine.items() if holds != theirs[rule])
    assert close >= 0.98 * len(documents)
    assert all(times <= 0.01 * len(documents) for times in differ.values()), json.dumps(differ)
