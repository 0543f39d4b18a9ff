"""The fold table: what each code point becomes before hashing. The text itself is never changed by it.

An entry is a uint32: class in bits 21–23, a code point (or, for MULTI, an offset into `expansions`) in bits 0–20.

    BREAK    ends a run: white space, punctuation, symbols, controls
    VANISH   leaves no trace: zero-width characters, combining marks
    SYMBOL   is a symbol by itself: Han, kana, Thai, Lao, Khmer, Myanmar, Tibetan …
    LETTER   extends a run; the run is the symbol: letters and digits of every other script
    MULTI    becomes several of the above: expansions[offset] is their number, the entries follow (ﬁ, ½, ß, ㌔)
    SURROGATE  has no place in UTF-8: the text is invalid

Made by `taojin.core.fold_build`; shipped as a file, because hashes must not depend on the interpreter's Unicode data.
"""

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FOLD_VERSION = 1
TABLE_PATH = Path(__file__).with_name(f"fold-v{FOLD_VERSION}.npz")
NUM_CODE_POINTS = 0x110000

BREAK, VANISH, SYMBOL, LETTER, MULTI, SURROGATE = range(6)
CLASS_SHIFT = 21
CODE_POINT_MASK = (1 << CLASS_SHIFT) - 1


class FoldTable(NamedTuple):
    """`table`: uint32[0x110000], one entry per code point; `expansions`: uint32, see MULTI. Both read-only."""

    table: NDArray[np.uint32]
    expansions: NDArray[np.uint32]


def encode(kind: int, value: int = 0) -> int:
    return kind << CLASS_SHIFT | value


@cache
def load_fold_table() -> FoldTable:
    """Read the shipped table, once per process (about 20 ms)."""
    with np.load(TABLE_PATH) as archive:
        table = archive["delta"] ^ np.arange(NUM_CODE_POINTS, dtype=np.uint32)
        expansions = archive["expansions"]
    table.flags.writeable = False
    expansions.flags.writeable = False
    return FoldTable(table, expansions)
