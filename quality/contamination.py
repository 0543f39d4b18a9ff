"""Decontamination: find the questions of evaluation sets in documents.

A document is hit where it holds a run of a question (`taojin.quality.questions`): n consecutive symbols, whatever their
spacing, width, case, punctuation and script. What becomes of it is `taojin.quality.cutting`.

Two passes. The first folds every document and counts the runs it holds; a Bloom filter answers nearly all look-ups
from cache. The second sees the few documents with hits again, now with the bytes each symbol came from, and merges runs
of one question that touch into one row. Cost: the fold plus 5 ns a symbol, linear in the bytes whatever they are; a
table of 25 to 50 bytes a run, made once in each process.

How much is a hit worth? Measured on 75,472 documents, 465 of them pages of exam questions, with two sets of such
questions; documents elsewhere that were hit, and questions found on the pages:

    a question counts with                  elsewhere   agieval_gaokao   gaokao_bench
    1 run (the default)                           301            1,579            559
    4 runs, or half of its own                     57            1,556            492
    8 runs, or half of its own                     21            1,541            415
    13 runs, or half of its own                    14            1,533            363

Thirteen Chinese characters are seven words: of the 301 documents 259 are laws that name an organ or a law as a question
does (全国人民代表大会常务委员会); of the 21 most quote the same poem, chronicle or statute as the question.

Two different runs share a hash with probability 2^-64: one false look-up in twenty corpora of 10^12 symbols, with a
million runs.

Suffixes: _D documents, _Q questions, _R runs of questions, _S symbols of a document, _H hits, _T slots and _W words of
the table.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from taojin.core.fold import load_fold_table
from taojin.core.jit import inlined, kernel
from taojin.core.text import SYMBOLS_PER_BYTE, fold_symbols, mix, roll_shingles, scratch_for, text_buffers
from taojin.quality.positions import fold_positions
from taojin.quality.questions import Questions

EXCERPT_CHARS = 80
# 8 to 16 bits a run, two of them set: one look-up in 20 to 70 goes on to the table. More bits fall out of the cache:
# 142 MB/s became 121 at two million runs.
_FILTER_BITS = 8

HITS_SCHEMA = pa.schema(
    [
        ("document", pa.int64()),
        ("question", pa.int32()),
        ("set", pa.large_string()),
        ("id", pa.large_string()),
        ("first_byte", pa.int64()),
        ("end_byte", pa.int64()),
        ("symbols", pa.int64()),
        ("runs", pa.int32()),
        ("share", pa.float64()),
        ("excerpt", pa.large_string()),
    ]
)

_0 = np.uint64(0)
_1 = np.uint64(1)
_LOW6 = np.uint64(63)
_NONE = np.uint32(0xFFFFFFFF)


class RunTable(NamedTuple):
    """filter: uint64[W], a power of two; two bits of one word a run · keys: uint64[T], runs: uint32[T], a power of two,
    linear probing; run _NONE is an empty slot."""

    filter: NDArray[np.uint64]
    keys: NDArray[np.uint64]
    runs: NDArray[np.uint32]


@inlined
def _filter_bits(x: np.uint64) -> np.uint64:
    """Two bits of a filter word, from bits of the mixed hash that choose neither word nor slot of small tables."""
    return (_1 << ((x >> np.uint64(52)) & _LOW6)) | (_1 << (x >> np.uint64(58)))


@kernel
def fill_table(
    runs_R: NDArray[np.uint64], filter_W: NDArray[np.uint64], keys_T: NDArray[np.uint64], run_T: NDArray[np.uint32]
) -> None:
    """Insert distinct runs; filter_W all zero, run_T all _NONE before, at least one slot stays empty."""
    word_mask = np.uint64(filter_W.size - 1)
    slot_mask = np.uint64(keys_T.size - 1)
    for r in range(runs_R.size):
        x = mix(runs_R[r])
        filter_W[x & word_mask] |= _filter_bits(x)
        slot = (x >> np.uint64(16)) & slot_mask
        while run_T[slot] != _NONE:
            slot = (slot + _1) & slot_mask
        keys_T[slot] = runs_R[r]
        run_T[slot] = np.uint32(r)


@inlined
def _look_up(
    run: np.uint64, x: np.uint64, slot_mask: np.uint64, keys_T: NDArray[np.uint64], run_T: NDArray[np.uint32]
) -> np.uint32:
    """The run's number, or _NONE; x is mix(run)."""
    slot = (x >> np.uint64(16)) & slot_mask
    while run_T[slot] != _NONE and keys_T[slot] != run:
        slot = (slot + _1) & slot_mask
    return np.uint32(run_T[slot])


@kernel
def count_runs(
    data: NDArray[np.uint8],
    offsets_D: NDArray[np.int64],
    table: NDArray[np.uint32],
    expansions: NDArray[np.uint32],
    ngram: int,
    filter_W: NDArray[np.uint64],
    keys_T: NDArray[np.uint64],
    run_T: NDArray[np.uint32],
    scratch: NDArray[np.uint64],
    count_D: NDArray[np.int64],
) -> None:
    """count_D[d]: at how many symbols of document d a question's run begins; 0 where the bytes are not UTF-8."""
    word_mask = np.uint64(filter_W.size - 1)
    slot_mask = np.uint64(keys_T.size - 1)
    for d in range(offsets_D.size - 1):
        count_D[d] = 0
        count, _, valid = fold_symbols(data, offsets_D[d], offsets_D[d + 1], table, expansions, scratch)
        if not valid:
            continue
        found = 0
        j = _0
        num_runs = np.uint64(roll_shingles(scratch, count, ngram))
        # What the filter lets pass moves to the front, without a branch: the loads of many runs overlap.
        passed = _0
        while j < num_runs:
            run = scratch[j]
            x = mix(run)
            bits = _filter_bits(x)
            scratch[passed] = run
            passed += np.uint64(filter_W[x & word_mask] & bits == bits)
            j += _1
        j = _0
        while j < passed:
            found += int(_look_up(scratch[j], mix(scratch[j]), slot_mask, keys_T, run_T) != _NONE)
            j += _1
        count_D[d] = found


@kernel
def locate_runs(
    data: NDArray[np.uint8],
    offsets_D: NDArray[np.int64],
    hit_documents: NDArray[np.int64],
    table: NDArray[np.uint32],
    expansions: NDArray[np.uint32],
    ngram: int,
    filter_W: NDArray[np.uint64],
    keys_T: NDArray[np.uint64],
    run_T: NDArray[np.uint32],
    holders_R: NDArray[np.int64],
    holders: NDArray[np.int32],
    symbols_S: NDArray[np.uint64],
    first_S: NDArray[np.int64],
    end_S: NDArray[np.int64],
    seen_R: NDArray[np.bool_],
    seen: NDArray[np.uint32],
    open_Q: NDArray[np.int64],
    end_symbol_Q: NDArray[np.int64],
    runs_Q: NDArray[np.int32],
    touched: NDArray[np.int32],
    rows_H: NDArray[np.int64],
) -> int:
    """Rows (document, question, first byte, end byte, symbols, distinct runs of the question in the document) of
    rows_H int64[H, 6], in order of document and first symbol: one for each stretch of runs of one question that overlap
    or touch. Returns how many there are; those beyond the room of rows_H are only counted.

    seen_R all False, open_Q all -1, runs_Q all 0 before and after; `seen` as long as runs, `touched` as questions.
    """
    num_rows = 0
    word_mask = np.uint64(filter_W.size - 1)
    slot_mask = np.uint64(keys_T.size - 1)
    for number in range(hit_documents.size):
        d = hit_documents[number]
        count = fold_positions(data, offsets_D[d], offsets_D[d + 1], table, expansions, symbols_S, first_S, end_S)
        num_runs = roll_shingles(symbols_S, count, ngram)
        first_row = num_rows
        num_seen = 0
        num_touched = 0
        for j in range(num_runs):
            x = mix(symbols_S[j])
            bits = _filter_bits(x)
            if filter_W[x & word_mask] & bits != bits:
                continue
            run = _look_up(symbols_S[j], x, slot_mask, keys_T, run_T)
            if run == _NONE:
                continue
            new = not seen_R[run]
            if new:
                seen_R[run] = True
                seen[num_seen] = run
                num_seen += 1
            for k in range(holders_R[run], holders_R[run + np.uint32(1)]):
                q = holders[k]
                if open_Q[q] < 0:
                    touched[num_touched] = q
                    num_touched += 1
                    end_symbol_Q[q] = -1
                runs_Q[q] += np.int32(new)
                if j > end_symbol_Q[q]:
                    open_Q[q] = num_rows
                    if num_rows < rows_H.shape[0]:
                        rows_H[num_rows, 0] = d
                        rows_H[num_rows, 1] = q
                        rows_H[num_rows, 2] = first_S[j]
                        rows_H[num_rows, 4] = 0
                    end_symbol_Q[q] = j
                    num_rows += 1
                row = open_Q[q]
                if row < rows_H.shape[0]:
                    rows_H[row, 3] = end_S[j + ngram - 1]
                    rows_H[row, 4] += j + ngram - end_symbol_Q[q]
                end_symbol_Q[q] = j + ngram
        for row in range(first_row, min(num_rows, rows_H.shape[0])):
            rows_H[row, 5] = runs_Q[rows_H[row, 1]]
        for k in range(num_seen):
            seen_R[seen[k]] = False
        for k in range(num_touched):
            open_Q[touched[k]] = -1
            runs_Q[touched[k]] = 0
    return num_rows


def make_table(questions: Questions) -> RunTable:
    """The look-up table of a set of questions: about 20 ns a run."""
    num_runs = max(questions.runs.size, 1)
    words = 1 << (num_runs * _FILTER_BITS // 64).bit_length()
    slots = 1 << (2 * num_runs - 1).bit_length()
    table = RunTable(np.zeros(words, np.uint64), np.zeros(slots, np.uint64), np.full(slots, _NONE, np.uint32))
    fill_table(questions.runs, *table)
    return table


class Finder:
    """Questions, ready to be looked up; one in each process. Not for two threads at once."""

    def __init__(self, questions: Questions) -> None:
        self.questions = questions
        self.table = make_table(questions)
        num_runs, num_questions = questions.runs.size, questions.num_runs.size
        self._seen_R = np.zeros(num_runs, np.bool_)
        self._seen = np.zeros(num_runs, np.uint32)
        self._open_Q = np.full(num_questions, -1, np.int64)
        self._end_symbol_Q = np.zeros(num_questions, np.int64)
        self._runs_Q = np.zeros(num_questions, np.int32)
        self._touched = np.zeros(num_questions, np.int32)

    def count(self, texts: pa.LargeStringArray) -> NDArray[np.int64]:
        """int64[D]: at how many symbols of each document a question's run begins; null is an empty document."""
        data, offsets = _buffers(texts)
        count_D = np.zeros(len(texts), np.int64)
        scratch = scratch_for(int(np.diff(offsets).max(initial=0)))
        count_runs(data, offsets, *load_fold_table(), self.questions.ngram, *self.table, scratch, count_D)
        return count_D

    def find(self, texts: pa.LargeStringArray, *, min_runs: int = 1, min_share: float = 1.0) -> pa.Table:
        """HITS_SCHEMA: a row for each stretch of text that a document shares with a question, in order of document and
        first byte.

        document: row of `texts` · question: index into the questions; set, id: its names · first_byte, end_byte:
        text[first_byte:end_byte], UTF-8 · symbols: of the stretch · runs: distinct runs of the question anywhere in the
        document; share: of all its runs · excerpt: the first 80 characters of the stretch.

        A question counts where the document holds at least `min_runs` distinct runs of it, or `min_share` of them all.
        """
        data, offsets = _buffers(texts)
        hit_documents = np.flatnonzero(self.count(texts))
        rows = self._locate(data, offsets, hit_documents)
        questions = self.questions
        share = rows[:, 5] / np.maximum(questions.num_runs[rows[:, 1]], 1)
        enough = (rows[:, 5] >= min_runs) | (share >= min_share)
        rows, share = rows[enough], share[enough]
        names = pa.array([counts.name for counts in questions.sets], pa.large_string())
        return pa.Table.from_arrays(
            [
                pa.array(rows[:, 0]),
                pa.array(rows[:, 1].astype(np.int32)),
                names.take(pa.array(questions.set_number[rows[:, 1]])),
                questions.ids.take(pa.array(rows[:, 1])),
                pa.array(rows[:, 2]),
                pa.array(rows[:, 3]),
                pa.array(rows[:, 4]),
                pa.array(rows[:, 5].astype(np.int32)),
                pa.array(share, pa.float64()),
                pa.array(_excerpts(data, offsets, rows), pa.large_string()),
            ],
            schema=HITS_SCHEMA,
        )

    def _locate(
        self, data: NDArray[np.uint8], offsets: NDArray[np.int64], hit_documents: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        longest = int(np.diff(offsets)[hit_documents].max(initial=0))
        room = SYMBOLS_PER_BYTE * longest + 1
        symbols, first, end = scratch_for(longest), np.empty(room, np.int64), np.empty(room, np.int64)
        # Enough nearly always; where it is not, the first call says how many there are.
        num_rows = 16 * hit_documents.size
        while True:
            rows = np.zeros((num_rows, 6), np.int64)
            num_rows = locate_runs(
                data,
                offsets,
                hit_documents,
                *load_fold_table(),
                self.questions.ngram,
                *self.table,
                self.questions.holder_offsets,
                self.questions.holders,
                symbols,
                first,
                end,
                self._seen_R,
                self._seen,
                self._open_Q,
                self._end_symbol_Q,
                self._runs_Q,
                self._touched,
                rows,
            )
            if num_rows <= len(rows):
                return rows[:num_rows]


def _buffers(texts: pa.LargeStringArray) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    # A null may have bytes.
    return text_buffers(texts.fill_null("") if texts.null_count else texts)


def _excerpts(data: NDArray[np.uint8], offsets: NDArray[np.int64], rows: NDArray[np.int64]) -> list[str]:
    excerpts = []
    for document, _, first, end, *_ in rows.tolist():
        start = int(offsets[document])
        stretch = data[start + first : start + min(end, first + 4 * EXCERPT_CHARS)]
        excerpts.append(stretch.tobytes().decode("utf-8", "ignore")[:EXCERPT_CHARS])
    return excerpts
