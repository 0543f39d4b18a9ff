"""Cutting: take the questions found (`taojin.quality.contamination`) out of documents, or decide to drop them.

A stretch that was found goes together with the whole sentences it touches, so that no half question stays. A sentence
ends after 。！？, after . ! ? that white space follows, and at the end of its line; quotation marks and brackets that
close right behind belong to it. A line of which nothing stays goes with its line feed. Every other byte stays, in
order. Choices and answers on lines of their own were not looked for (`taojin.quality.questions`) and stay; whoever
wants them gone drops the document. Where less than half of a document would stay, nothing does.

Cost: one look at each byte of the documents with hits; the others are copied.

Suffixes: _D documents, _H hits, _C cuts.
"""

from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from taojin.core.jit import inlined, kernel
from taojin.core.text import text_buffers

# What is left of a text that was mostly questions are captions, choices and answers.
LEAST_LEFT = 0.5

CLEAN, CUT, CONTAMINATED, MOSTLY_CONTAMINATED = range(4)

_TAB = 0x09
_LINE_FEED = 0x0A
_RETURN = 0x0D
_SPACE = 0x20


class Cuts(NamedTuple):
    """What is to go of document d: its bytes first[c]:end[c], c in range(offsets[d], offsets[d + 1]); all int64,
    ascending and apart."""

    offsets: NDArray[np.int64]
    first: NDArray[np.int64]
    end: NDArray[np.int64]


class Decision(NamedTuple):
    """outcome: uint8[D], CLEAN, CUT, CONTAMINATED or MOSTLY_CONTAMINATED (the last two go) · cuts: of outcome CUT."""

    outcome: NDArray[np.uint8]
    cuts: Cuts


@inlined
def _wide(data: NDArray[np.uint8], i: int, stop: int) -> np.int64:
    """The three bytes at i as one number, 0 where fewer are left."""
    if i + 3 > stop or data[i] < 0xE2:
        return np.int64(0)
    return (np.int64(data[i]) << 16) | (np.int64(data[i + 1]) << 8) | np.int64(data[i + 2])


@inlined
def _ends_wide(wide: np.int64) -> bool:
    """。！？"""
    return bool(wide == 0xE38082 or wide == 0xEFBC81 or wide == 0xEFBC9F)


@inlined
def _closes_wide(wide: np.int64) -> bool:
    """’”〉》」』】〕）"""
    bracket = 0xE38089 <= wide <= 0xE38095 and wide & 1 == 1 and wide != 0xE38093
    return bool(bracket or wide == 0xE28099 or wide == 0xE2809D or wide == 0xEFBC89)


@inlined
def _ends(byte: int) -> bool:
    """. ! ?"""
    return byte == 0x2E or byte == 0x21 or byte == 0x3F


@inlined
def _closes(byte: int) -> bool:
    """\" ' ) ]"""
    return byte == 0x22 or byte == 0x27 or byte == 0x29 or byte == 0x5D


@inlined
def _is_space(byte: int) -> bool:
    return byte == _SPACE or (_TAB <= byte <= _RETURN)


@kernel
def sentence_end(data: NDArray[np.uint8], start: int, stop: int) -> int:
    """Where the sentence ends that begins at data[start], a byte that is no line feed; at most `stop`."""
    i = start
    while i < stop and data[i] != _LINE_FEED:
        wide = _wide(data, i, stop)
        surely = _ends_wide(wide)
        if not surely and not _ends(data[i]):
            i += 1
            continue
        while i < stop:
            wide = _wide(data, i, stop)
            if _ends_wide(wide):
                surely = True
                i += 3
            elif _closes_wide(wide):
                i += 3
            elif _ends(data[i]) or _closes(data[i]):
                i += 1
            else:
                break
        if surely or i >= stop or _is_space(data[i]):
            return i
    return i


@kernel
def widen(
    data: NDArray[np.uint8],
    offsets_D: NDArray[np.int64],
    document_H: NDArray[np.int64],
    first_H: NDArray[np.int64],
    end_H: NDArray[np.int64],
    cut_offsets_D: NDArray[np.int64],
    first_C: NDArray[np.int64],
    end_C: NDArray[np.int64],
) -> None:
    """Fill `Cuts` from stretches in order of document and first byte; they may overlap. Room for two cuts a hit."""
    h = 0
    num_cuts = 0
    for d in range(offsets_D.size - 1):
        cut_offsets_D[d] = num_cuts
        start = offsets_D[d]
        stop = offsets_D[d + 1]
        i = start
        reach = np.int64(-1)  # the furthest end of a stretch that began before i
        while i < stop and (reach > i or (h < document_H.size and document_H[h] == d)):
            # One line, as long as stretches remain.
            line = i
            cuts_before = num_cuts
            lost = False
            kept = False
            while i < stop and data[i] != _LINE_FEED:
                end = sentence_end(data, i, stop)
                while h < document_H.size and document_H[h] == d and start + first_H[h] < end:
                    reach = max(reach, start + end_H[h])
                    h += 1
                if reach > i:
                    lost = True
                    if num_cuts > cuts_before and start + end_C[num_cuts - 1] == i:
                        end_C[num_cuts - 1] = end - start
                    else:
                        first_C[num_cuts] = i - start
                        end_C[num_cuts] = end - start
                        num_cuts += 1
                elif not kept:
                    for k in range(i, end):
                        if not _is_space(data[k]):
                            kept = True
                            break
                i = end
            i = min(i + 1, stop)
            if lost and not kept:
                num_cuts = cuts_before
                if num_cuts > cut_offsets_D[d] and start + end_C[num_cuts - 1] == line:
                    end_C[num_cuts - 1] = i - start
                else:
                    first_C[num_cuts] = line - start
                    end_C[num_cuts] = i - start
                    num_cuts += 1
    cut_offsets_D[offsets_D.size - 1] = num_cuts


@kernel
def copy_rest(
    data: NDArray[np.uint8],
    offsets_D: NDArray[np.int64],
    cut_offsets_D: NDArray[np.int64],
    first_C: NDArray[np.int64],
    end_C: NDArray[np.int64],
    out: NDArray[np.uint8],
    out_offsets_D: NDArray[np.int64],
) -> None:
    """Copy what no cut covers; `out` needs room for it, out_offsets_D as offsets_D."""
    o = 0
    out_offsets_D[0] = 0
    for d in range(offsets_D.size - 1):
        i = offsets_D[d]
        for c in range(cut_offsets_D[d], cut_offsets_D[d + 1] + 1):
            last = c == cut_offsets_D[d + 1]
            stop = offsets_D[d + 1] if last else offsets_D[d] + first_C[c]
            while i < stop:
                out[o] = data[i]
                o += 1
                i += 1
            if not last:
                i = offsets_D[d] + end_C[c]
        out_offsets_D[d + 1] = o


def cut_spans(texts: pa.LargeStringArray, hits: pa.Table) -> Cuts:
    """The sentences that hits (`taojin.quality.contamination.HITS_SCHEMA`, in its order) of `texts` lie in."""
    data, offsets = text_buffers(texts)
    document, first, end = (hits[name].to_numpy() for name in ("document", "first_byte", "end_byte"))
    cut_offsets = np.zeros(len(texts) + 1, np.int64)
    first_C, end_C = np.zeros(2 * len(first), np.int64), np.zeros(2 * len(first), np.int64)
    widen(data, offsets, document, first, end, cut_offsets, first_C, end_C)
    return Cuts(cut_offsets, first_C[: cut_offsets[-1]], end_C[: cut_offsets[-1]])


def decide(texts: pa.LargeStringArray, hits: pa.Table, mode: Literal["drop", "cut"]) -> Decision:
    """What becomes of each document, given its hits."""
    num_documents = len(texts)
    if mode == "drop":
        outcome_D = np.zeros(num_documents, np.uint8)
        outcome_D[hits["document"].to_numpy()] = CONTAMINATED
        return Decision(
            outcome_D, Cuts(np.zeros(num_documents + 1, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))
        )
    cuts = cut_spans(texts, hits)
    count_D = np.diff(cuts.offsets)
    document_C = np.repeat(np.arange(num_documents), count_D)
    lost_D = np.zeros(num_documents, np.int64)
    np.add.at(lost_D, document_C, cuts.end - cuts.first)
    bytes_D = np.diff(text_buffers(texts)[1])
    mostly = bytes_D - lost_D < LEAST_LEFT * bytes_D
    outcome_D = np.where(mostly, MOSTLY_CONTAMINATED, np.where(count_D > 0, CUT, CLEAN)).astype(np.uint8)
    stays_C = ~mostly[document_C]
    offsets = np.concatenate([[0], np.cumsum(np.where(mostly, 0, count_D))]).astype(np.int64)
    return Decision(outcome_D, Cuts(offsets, cuts.first[stays_C], cuts.end[stays_C]))


def cut_array(texts: pa.LargeStringArray, cuts: Cuts) -> pa.LargeStringArray:
    """The texts without their cuts; a null stays null, a text without cuts is the same bytes."""
    data, offsets = text_buffers(texts)
    lost = int((cuts.end - cuts.first).sum())
    out = np.empty(int(offsets[-1] - offsets[0]) - lost, np.uint8)
    out_offsets = np.zeros(len(texts) + 1, np.int64)
    copy_rest(data, offsets, *cuts, out, out_offsets)
    valid = None if texts.null_count == 0 else pa.array(texts.is_valid()).buffers()[1]
    return pa.LargeStringArray.from_buffers(len(texts), pa.py_buffer(out_offsets), pa.py_buffer(out), valid)
