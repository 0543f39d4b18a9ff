"""Words and marks of Chinese documents: runs of Chinese characters through rjieba or jieba-fast, the rest as jieba.

Only runs of the characters that jieba knows (U+4E00…U+9FD5) are handed over, with a line feed between two of them. What
stands between is split here by jieba's rules (finalseg, 0.42.1), on which the two libraries disagree. So memory is
bounded and the words are those of the published Chinese rules (datatrove's spaCy with jieba), but for words of its
dictionary that mix Chinese with Latin (T恤). A run is cut after every LONGEST_RUN characters, counted from its own
start, so the border depends on nothing but the run.

Cost: 15 to 20 MB/s of Chinese text with rjieba, 1 to 2 MB/s with jieba-fast, nearly all of it in the library. Left to
others: what is not segmented (`taojin.quality.words`).
"""

import os
import re
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taojin.core.errors import ConfigError, InvariantError
from taojin.core.jit import inlined, kernel
from taojin.quality.signals import INDEX
from taojin.quality.word_tables import SPACE, WordTables
from taojin.quality.words import describe_words

# A sentence is rarely above 100 characters; the segmenters' tables take some 200 bytes a character.
LONGEST_RUN = 2000
# Characters handed over at once: a list of words that fits the cache, and few enough for millions in one line.
LONGEST_CALL = 100_000
MIN_HAN_SHARE = 0.2  # of the characters that are not white space
MAX_KANA_SHARE = 0.05  # above it the text is Japanese

_INSTALL = "install one with: pip install 'taojin[jieba]'"
_PACKAGES = {"rjieba": "rjieba", "jieba-fast": "jieba_fast"}
# As jieba 0.42.1 cuts them: | between two words of a run. Names, both scripts, ambiguous and unknown words, classical
# Chinese. The sixth holds characters that jieba's model has not seen, where jieba-fast errs.
SAMPLE = (
    "南京市|长江大桥|昨天下午|举行|了|通车|仪式。",
    "他|说|的|确实|在理，研究|生命|起源|的|学者|都|同意。",
    "小明|硕士|毕业|于|中国科学院|计算所，后|在|日本京都大学|深造。",
    "结婚|的|和|尚未|结婚|的|都|到|齐|了，一共３７人，2024年5月1日|出发！",
    "使用TiDB 7.5和Python3.11部署|集群，延迟|降到0.8ms以下。",
    "臺|灣積|體電|路|製|造|公司|宣|佈，將於|明年|擴大|投資|規模。",
    "這個門|把手|壞|了，請|把手|拿開，別|擔心。",
    "王军|虎|去|广州|了，李小福|是|创新|办|主任|也|是|云|计算|方面|的|专家。",
    "学而|时习|之，不|亦|说乎？有朋自远方来，不亦乐乎？",
    "乒乓球|拍卖|完|了，工信处|女干事|每月|经过|下属|科室|都|要|亲口|交代|交换机|等|技术性|器件|的|安装|工作。",
    "道|可道，非常|道；名可名，非常|名。無名|天地|之始，有名|萬物|之母。",
    "第十三条 国家|工作人员|利用|职务|上|的|便利，索取|他|人财物|的，处|三年|以下|有期徒刑。",
    "我|不|喜欢|日本|和服，但|喜欢|看《红楼梦》（曹雪芹|著）和|奥斯特洛夫斯基。",
    "深度|学习|模型|的|损失|函数|在|第128轮|迭代|后|收敛，准确率|达到97.3%。",
    "滾滾長|江東|逝水，浪花|淘盡|英雄。是非|成敗|轉頭空，青山|依舊|在，幾度|夕陽紅。",
    "哈哈哈哈，蓝瘦|香菇，这波|操作|真的|绝绝子|啊啊啊。",
)

_HAN_SHARE = INDEX["han_share"]
_KANA_SHARE = INDEX["kana_share"]
_WHITESPACE_SHARE = INDEX["whitespace_share"]
_RUN = re.compile(r"[\u4e00-\u9fd5|]+")
_FIRST = np.uint32(0x4E00)
_LAST = np.uint32(0x9FD5)
_LINE_FEED = np.uint32(0x0A)
_ASCII = np.uint32(0x80)
_DOT = np.uint32(0x2E)
_PERCENT = np.uint32(0x25)
_0 = np.uint64(0)
_1 = np.uint64(1)
_2 = np.uint64(2)


class Segmenter(NamedTuple):
    """name: "rjieba 0.2.2", goes into the plan · cut: text → its words, which joined are the text."""

    name: str
    cut: Callable[[str], list[str]]


def choose_segmenter() -> Segmenter:
    """rjieba where it is installed and cuts SAMPLE as jieba does, else jieba-fast, a tenth as fast.

    jieba-fast joins characters that jieba's model of unknown words has not seen (製, 蹤) with their neighbours: on the
    development corpus 1.5 % of the words of Traditional texts differ from jieba's, none of rjieba's.
    ConfigError where neither is installed.
    """
    if name := _installed("rjieba"):
        segmenter = _open(name)
        if all(cuts_as_jieba(segmenter, cut) for cut in SAMPLE):
            return segmenter
    if name := _installed("jieba-fast"):
        return _open(name)
    raise ConfigError(f"segmented words: expected rjieba or jieba-fast, found neither that works; {_INSTALL}")


def cuts_as_jieba(segmenter: Segmenter, cut: str) -> bool:
    """Whether the runs of Chinese characters of a sentence of SAMPLE become these words."""
    expected = [len(word) for run in _RUN.findall(cut) for word in run.split("|")]
    code_points = np.frombuffer(cut.replace("|", "").encode("utf-32-le"), np.uint32).copy()
    runs = np.empty(2 * code_points.size, np.uint32)
    runs = runs[: gather_runs(code_points, code_points.size, LONGEST_RUN, runs)]
    lengths = word_lengths(segmenter, runs)
    feeds = runs[np.cumsum(lengths) - 1] == _LINE_FEED
    return lengths[~feeds].tolist() == expected


def open_segmenter(name: str) -> Segmenter:
    """The segmenter that a plan names. ConfigError where this very version is not installed."""
    package = name.split(" ")[0]
    if package not in _PACKAGES:
        raise ConfigError(f"segmenter: expected one of {', '.join(_PACKAGES)} and its version, found {name!r}")
    found = _installed(package)
    if found != name:
        raise ConfigError(
            f"segmenter: the plan was made with {name}, found {found or 'none'}; words would differ; "
            f"pip install {package}=={name.partition(' ')[2]}, or use a new WORK folder"
        )
    return _open(name)


def _installed(package: str) -> str:
    """ "rjieba 0.2.2", or "" where it is missing."""
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return ""


def _open(name: str) -> Segmenter:
    try:
        return Segmenter(name, _rjieba() if name.startswith("rjieba") else _jieba_fast())
    except ImportError as error:
        raise ConfigError(f"segmenter: {name} cannot be loaded ({error}); {_INSTALL}") from None


def _rjieba() -> Callable[[str], list[str]]:
    import rjieba

    return rjieba.cut


def _jieba_fast() -> Callable[[str], list[str]]:
    """jieba-fast with a dictionary cache of its own, and without its messages."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes and pkg_resources of an old package
        import jieba_fast
    jieba_fast.setLogLevel("ERROR")
    folder = _cache_folder()
    tokenizer = jieba_fast.Tokenizer()
    if folder is not None:
        # It writes a temporary file of mode 0600 beside the cache and renames it: processes may race, none reads half.
        tokenizer.tmp_dir = str(folder)
        tokenizer.initialize()
    else:
        with tempfile.TemporaryDirectory() as once:
            tokenizer.tmp_dir = once
            tokenizer.initialize()
    return lambda text: list(tokenizer.cut(text))


def _cache_folder() -> Path | None:
    """$XDG_CACHE_HOME/taojin/jieba-fast-<version>-py<version>, of this user alone; None where there can be none.

    Not the temp folder, where jieba-fast shares one file name with jieba and with every user of the machine: the file
    is trusted when it is read.
    """
    root = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(root) if os.path.isabs(root) else Path("~/.cache").expanduser()
    python = "".join(map(str, sys.version_info[:2]))
    folder = base / "taojin" / f"jieba-fast-{version('jieba-fast')}-py{python}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.stat()
    except (OSError, RuntimeError):
        return None
    mine = state.st_uid == os.getuid() and state.st_mode & 0o022 == 0
    return folder if mine and os.access(folder, os.W_OK) else None


@kernel
def is_chinese(values_S: NDArray[np.float32]) -> bool:
    """Whether a document is segmented: Chinese characters at least 20 % of what is not white space, kana under 5 %."""
    visible = 1.0 - values_S[_WHITESPACE_SHARE]
    if visible <= 0.0:
        return False
    return bool(values_S[_HAN_SHARE] >= MIN_HAN_SHARE * visible and values_S[_KANA_SHARE] < MAX_KANA_SHARE * visible)


@kernel
def gather_runs(code_points: NDArray[np.uint32], count: int, longest: int, runs: NDArray[np.uint32]) -> int:
    """Copy the runs of Chinese characters to `runs`, a line feed behind each; returns how many entries were written.

    A run ends after `longest` characters. `runs` needs room for 2 × count entries.
    """
    written = _0
    length = _0
    i = _0
    while i < np.uint64(count):
        c = code_points[i]
        if c >= _FIRST and c <= _LAST:
            if length == np.uint64(longest):
                runs[written] = _LINE_FEED
                written += _1
                length = _0
            runs[written] = c
            written += _1
            length += _1
        elif length > _0:
            runs[written] = _LINE_FEED
            written += _1
            length = _0
        i += _1
    if length > _0:
        runs[written] = _LINE_FEED
        written += _1
    return int(np.int64(written))


@kernel
def place_words(
    code_points: NDArray[np.uint32],
    count: int,
    runs: NDArray[np.uint32],
    lengths: NDArray[np.uint32],
    classes: NDArray[np.uint32],
    starts: NDArray[np.uint32],
    ends: NDArray[np.uint32],
) -> int:
    """Spans of the words and marks of a document whose Chinese `runs` were cut into words of these `lengths`; returns
    their number.

    `runs` as made by `gather_runs`; its line feeds are words of `lengths`. Outside: letters and digits of ASCII with a
    decimal part and a percent sign, a row of + # & . _ - %, and any other character alone.
    """
    stop = np.uint64(count)
    num = _0
    i = _0
    position = _0
    k = _0
    while i < stop:
        start = i
        c = code_points[i]
        if c >= _FIRST and c <= _LAST:
            while runs[position] == _LINE_FEED:
                position += _1
                k += _1
            i += np.uint64(lengths[k])
            position += np.uint64(lengths[k])
            k += _1
        elif c >= _ASCII:
            i += _1
            if classes[c] & SPACE != np.uint32(0):
                continue
        elif _is_alnum(c):
            while i < stop and _is_alnum(code_points[i]):
                i += _1
            if i + _1 < stop and code_points[i] == _DOT and _is_digit(code_points[i + _1]):
                i += _2
                while i < stop and _is_digit(code_points[i]):
                    i += _1
            if i < stop and code_points[i] == _PERCENT:
                i += _1
        elif _is_joined(c):
            while i < stop and _is_joined(code_points[i]):
                i += _1
        else:
            i += _1
            if classes[c] & SPACE != np.uint32(0):
                continue
        starts[num] = np.uint32(start)
        ends[num] = np.uint32(i)
        num += _1
    return int(np.int64(num))


@inlined
def _is_digit(c: np.uint32) -> bool:
    return bool(c >= np.uint32(0x30) and c <= np.uint32(0x39))


@inlined
def _is_alnum(c: np.uint32) -> bool:
    letter = c & np.uint32(0xFFFFFFDF)
    return _is_digit(c) or bool(letter >= np.uint32(0x41) and letter <= np.uint32(0x5A))


@inlined
def _is_joined(c: np.uint32) -> bool:
    """+ # & . _ - %"""
    return c in (
        _DOT, _PERCENT, np.uint32(0x2B), np.uint32(0x23), np.uint32(0x26), np.uint32(0x5F), np.uint32(0x2D)
    )  # fmt: skip


def word_lengths(segmenter: Segmenter, runs: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Lengths of the words that the segmenter cuts `runs` into, line feeds included; they add up to runs.size."""
    parts = [np.zeros(0, np.uint32)]
    begin = 0
    while begin < runs.size:
        end = min(begin + LONGEST_CALL, runs.size)
        if end < runs.size:
            # No run is as long as a call, so there is a line feed to cut behind.
            end = begin + int(np.flatnonzero(runs[begin:end] == _LINE_FEED)[-1]) + 1
        words = segmenter.cut(runs[begin:end].tobytes().decode("utf-32-le"))
        lengths = np.fromiter(map(len, words), np.uint32, len(words))
        if int(lengths.sum()) != end - begin:
            raise InvariantError(f"{segmenter.name}: words of {lengths.sum()} characters out of {end - begin}")
        parts.append(lengths)
        begin = end
    return np.concatenate(parts)


def segment_words(
    segmenter: Segmenter,
    code_points: NDArray[np.uint32],
    count: int,
    tables: WordTables,
    starts: NDArray[np.uint32],
    ends: NDArray[np.uint32],
    hashes: NDArray[np.uint64],
    flags: NDArray[np.uint8],
) -> int:
    """Words and marks as `split_words` gives them, the same arrays and the same room, by a segmenter."""
    runs = np.empty(2 * count, np.uint32)
    runs = runs[: gather_runs(code_points, count, LONGEST_RUN, runs)]
    lengths = word_lengths(segmenter, runs)
    num: int = place_words(code_points, count, runs, lengths, tables.classes, starts, ends)
    describe_words(code_points, starts, ends, num, tables.classes, hashes, flags)
    return num
