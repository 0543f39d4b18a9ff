"""Proofs of a Megatron pair: its index is sound, its ids belong to the vocabulary, its documents end with EOD.

Goes over `.idx` and `.bin` once, in blocks of BLOCK entries: memory is constant, the speed that of reading. What a pair
should hold by its manifest is left to the roof.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taojin.core.errors import InputError
from taojin.core.megatron import BLOCK, PLACE, IndexedPair

# (documents, places of their last tokens in .bin, counted in tokens), both ascending; int64.
_EndsBlock = tuple[NDArray[np.int64], NDArray[np.int64]]


class TokenFacts(NamedTuple):
    """What was seen in all of .bin. Documents and places of tokens are counted from 0; -1 where there is none."""

    tokens: int
    lowest: int
    highest: int
    vocab_size: int | None
    outside: int  # ids below 0 or not below vocab_size
    first_outside: int
    eod: int | None
    ended: int  # documents whose last sequence ends with EOD; those without a sequence have no end
    not_ended: int
    first_not_ended: int
    eods_inside: int  # EODs that end no document

    def problems(self) -> list[str]:
        found = []
        if self.outside:
            vocabulary = "" if self.vocab_size is None else f" of {self.vocab_size:,}"
            found.append(
                f"{self.outside:,} ids are outside the vocabulary{vocabulary} ({self.lowest:,} to {self.highest:,}), "
                f"the first is token {self.first_outside:,}"
            )
        if self.not_ended:
            found.append(
                f"{self.not_ended:,} documents do not end with EOD ({self.eod}), "
                f"the first is document {self.first_not_ended:,}"
            )
        return found


def structure_problems(pair: IndexedPair) -> list[str]:
    """What is wrong in the index, a line for each invariant; [] for a sound one. Reads all of .idx.

    No length is negative; each pointer is the sum of the lengths before it times the size of a token, so pointers never
    go down; document indices never go down. That both end where they must, `IndexedPair.open` has seen.
    """
    return [problem for problem in (_sequence_problem(pair), _document_problem(pair)) if problem]


def token_facts(pair: IndexedPair, vocab_size: int | None = None, eod: int | None = None) -> TokenFacts:
    """Read all of .bin; ids are compared with `vocab_size` and ends with `eod` where they are given.

    Raises InputError where the index is not sound.
    """
    if problems := structure_problems(pair):
        raise InputError(f"{pair.idx.uri}: {problems[0]}")
    return _token_facts(pair, vocab_size, eod)


def problems(pair: IndexedPair, vocab_size: int | None = None, eod: int | None = None) -> list[str]:
    """All that is wrong in the index, else in the tokens, a line for each invariant; [] for a sound pair."""
    return structure_problems(pair) or _token_facts(pair, vocab_size, eod).problems()


def _sequence_problem(pair: IndexedPair) -> str:
    before = bytes_before = 0
    for lengths, found in zip(pair.length_blocks(), pair.pointer_blocks(), strict=True):
        if lengths.min() < 0:
            at = int(np.argmax(lengths < 0))
            return f"the length of sequence {before + at:,} is {lengths[at]:,}"
        pointers = np.cumsum(lengths, dtype=PLACE)
        total = int(pointers[-1])
        pointers -= lengths
        pointers *= pair.dtype.itemsize
        pointers += bytes_before
        if not np.array_equal(pointers, found):
            at = int(np.argmax(pointers != found))
            return f"the pointer of sequence {before + at:,} is {found[at]:,}, expected {pointers[at]:,}"
        before += len(lengths)
        bytes_before += total * pair.dtype.itemsize
    return ""


def _document_problem(pair: IndexedPair) -> str:
    before = 0
    for indices in pair.document_index_blocks():
        down = indices[1:] < indices[:-1]
        if down.any():
            at = int(np.argmax(down))
            return f"document {before + at:,} begins at sequence {indices[at]:,} and ends at {indices[at + 1]:,}"
        before += len(indices) - 1
    return ""


def _token_facts(pair: IndexedPair, vocab_size: int | None, eod: int | None) -> TokenFacts:
    tokens = outside = eods = 0
    lowest = highest = first_outside = -1
    ends = _Ends(_last_tokens(pair) if eod is not None else iter(()), eod)
    for block in pair.token_blocks():
        low, high = int(block.min()), int(block.max())
        lowest = min(lowest, low) if tokens else low
        highest = max(highest, high) if tokens else high
        if low < 0 or (vocab_size is not None and high >= vocab_size):
            wrong = block < 0 if vocab_size is None else (block < 0) | (block >= vocab_size)
            outside += int(np.count_nonzero(wrong))
            first_outside = tokens + int(np.argmax(wrong)) if first_outside < 0 else first_outside
        if eod is not None and low <= eod <= high:
            eods += int(np.count_nonzero(block == eod))
        ends.pass_by(tokens, block)
        tokens += len(block)
    ends.pass_by(tokens, np.empty(0, pair.dtype))
    return TokenFacts(
        tokens=tokens,
        lowest=lowest,
        highest=highest,
        vocab_size=vocab_size,
        outside=outside,
        first_outside=first_outside,
        eod=eod,
        ended=ends.ended,
        not_ended=ends.not_ended,
        first_not_ended=ends.first_not_ended,
        eods_inside=eods - ends.ended,
    )


def _last_tokens(pair: IndexedPair) -> Iterator[_EndsBlock]:
    """Last tokens of all documents that have sequences; the place is -1 where the last sequence is empty.

    Lengths and pointers of last sequences are picked from ranges of at most BLOCK entries, however far apart they lie.
    """
    before = 0
    for indices in pair.document_index_blocks():
        some = indices[1:] > indices[:-1]
        documents = np.flatnonzero(some) + before
        last = indices[1:][some] - 1
        before += len(indices) - 1
        start = 0
        while start < len(last):
            first = int(last[start])
            end = start + int(np.searchsorted(last[start:], first + BLOCK))
            lengths, pointers = pair.spans(first, int(last[end - 1]) + 1 - first)
            picked = last[start:end] - first
            places = pointers[picked] // pair.dtype.itemsize + lengths[picked] - 1
            yield documents[start:end], np.where(lengths[picked] > 0, places, -1)
            start = end


class _Ends:
    """Looks up the last tokens of documents while the blocks of tokens pass by in order."""

    def __init__(self, last_tokens: Iterator[_EndsBlock], eod: int | None) -> None:
        self.ended = 0
        self.not_ended = 0
        self.first_not_ended = -1
        self._eod = eod
        self._last_tokens = last_tokens
        self._documents = np.empty(0, PLACE)
        self._places = np.empty(0, PLACE)

    def pass_by(self, at: int, block: NDArray[Any]) -> None:
        """`block` is the tokens from place `at`; an empty one behind the last, for last sequences that are empty."""
        while True:
            here = int(np.searchsorted(self._places, at + len(block)))
            self._count(self._documents[:here], block[self._places[:here] - at] == self._eod)
            self._documents, self._places = self._documents[here:], self._places[here:]
            if len(self._places):
                return
            following = next(self._last_tokens, None)
            if following is None:
                return
            documents, places = following
            nowhere = documents[places < 0]
            self._count(nowhere, np.zeros(len(nowhere), np.bool_))
            self._documents, self._places = documents[places >= 0], places[places >= 0]

    def _count(self, documents: NDArray[np.int64], ended: NDArray[np.bool_]) -> None:
        good = int(np.count_nonzero(ended))
        self.ended += good
        if good < len(documents):
            self.not_ended += len(documents) - good
            first = int(documents[np.argmin(ended)])
            self.first_not_ended = first if self.first_not_ended < 0 else min(first, self.first_not_ended)
