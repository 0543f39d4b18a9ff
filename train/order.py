"""Which tokens are sample number i: pure functions of i, with no state to save and nothing to skip through.

    share        i → (pair, number of the sample within the pair)            a tree of two-way divisions, `Shares`
    epoch        number → epoch, and its place among the epoch's samples     arithmetic, `samples_through`
    shuffle      place → which sequence_length tokens of the stream          a keyed permutation, `permuted`
    documents    the stream of an epoch is its documents in the order of another keyed permutation, one after another

A pair's stream is epoch after epoch. Sample k is the tokens k·L … (k + 1)·L of it: a sequence and one token more, which
the next sample begins with, so that every token but the first of all is a target exactly once an epoch. A sample
belongs to the epoch its last token is in, so the order does not depend on how many epochs there will be.

Cost: the only table is `marks`, per pair and epoch: the tokens before every 128th document, an int64 each, 16 MB for
256 million documents. It takes a pass over the index in the order of the epoch, two cache misses a document: 0.09 µs
each of 1 million documents, 0.14 µs of 20 million. With it a sample is found by binary search and 64 documents walked
on average.

Array contract: document_indices and pointers as they lie in PREFIX.idx: int64, read-only, not aligned. No kernel reads
outside them once `mark_documents` has proven the index. Suffixes: _S sequences, _M marks, _P pieces.
"""

import heapq
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor, lcm

import numpy as np
from numpy.typing import NDArray

from taojin.core.jit import inlined, kernel

# Documents between two marks: 64 are walked on average, some microseconds, and a mark costs 8 bytes.
SPACING = 128
# Of multiply, add, fold. Over 20,000 keys the permutations of 3, 4 and 5 elements are even at 8 rounds (χ² per degree
# of freedom 0.2 to 1.2), at 4 not (3 to 29).
_ROUNDS = 8
_GOLDEN = 0x9E3779B97F4A7C15
_64_BITS = (1 << 64) - 1

_0 = np.uint64(0)
_1 = np.uint64(1)
_2 = np.uint64(2)


@lru_cache(maxsize=4096)
def keys_of(*numbers: int) -> NDArray[np.uint64]:
    """uint64[2 × rounds], read-only: the key of a permutation, from numbers that name it (seed, purpose, pair, epoch).

    splitmix64 (Steele, Lea, Flood, OOPSLA 2014): the numbers are absorbed one by one, the keys are its next outputs.
    """
    state = 0
    for number in numbers:
        state = _mixed((state + _GOLDEN) & _64_BITS) ^ (number & _64_BITS)
    keys = [_mixed((state + step * _GOLDEN) & _64_BITS) for step in range(1, 2 * _ROUNDS + 1)]
    key = np.array(keys, np.uint64)
    key.setflags(write=False)
    return key


def _mixed(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _64_BITS
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _64_BITS
    return x ^ (x >> 31)


@inlined
def _permuted(index: np.uint64, size: np.uint64, bits: np.uint64, keys: NDArray[np.uint64]) -> np.uint64:
    """Each round is a bijection of `bits` bits; what falls outside `size` goes round again, less than once on average
    (cycle walking: Black, Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002)."""
    mask = (_1 << bits) - _1
    half = (bits + _1) >> _1
    x = index
    while True:
        r = _0
        while r < np.uint64(2 * _ROUNDS):
            x = (x * (keys[r] | _1) + keys[r + _1]) & mask
            x ^= x >> half
            r += _2
        if x < size:
            return x


@inlined
def _bits(size: np.uint64) -> np.uint64:
    """The fewest, at least 1, in which every number below size can be written."""
    bits = _1
    while (size - _1) >> bits:
        bits += _1
    return bits


@kernel
def permuted(index: int, size: int, keys: NDArray[np.uint64]) -> int:
    """Where `index` goes in the permutation of 0 … size - 1 that these keys name. 0 ≤ index < size ≤ 2^62."""
    count = np.uint64(size)
    return int(np.int64(_permuted(np.uint64(index), count, _bits(count), keys)))


@inlined
def _document(
    j: np.uint64,
    first: np.uint64,
    count: np.uint64,
    count_bits: np.uint64,
    keys: NDArray[np.uint64],
    documents: np.uint64,
    documents_bits: np.uint64,
    split_keys: NDArray[np.uint64],
) -> np.uint64:
    """Document number j of an epoch: among those of the part, then the part's place among all."""
    place = first + _permuted(j, count, count_bits, keys)
    if count == documents:
        return place
    return _permuted(place, documents, documents_bits, split_keys)


@kernel
def mark_documents(
    document_indices: NDArray[np.int64],
    pointers_S: NDArray[np.int64],
    tokens: int,
    shift: int,
    first: int,
    count: int,
    keys: NDArray[np.uint64],
    split_keys: NDArray[np.uint64],
    marks_M: NDArray[np.int64],
    scratch: NDArray[np.int64],
) -> int:
    """Tokens before the documents 0, SPACING, 2 × SPACING … of an epoch into marks_M, int64[count // SPACING + 2] with
    all of them last; returns -1, or a document that does not lie within the pair.

    tokens: of the pair · shift: log2 of the bytes of one · first, count: the documents are those of the places first …
    first + count - 1 of the split's permutation; 0 and all: of all · scratch: int64[3, SPACING]. Each look is a cache
    miss and waits for the one before it; done for SPACING documents at a time, many are under way at once.
    """
    documents = np.uint64(document_indices.size - 1)
    base, size = np.uint64(first), np.uint64(count)
    size_bits, documents_bits = _bits(size), _bits(documents)
    sequences = pointers_S.size
    odd = (1 << shift) - 1
    before = 0
    mark = _0
    j = _0
    while j < size:
        marks_M[mark] = before
        mark += _1
        run = min(np.uint64(SPACING), size - j)
        i = _0
        while i < run:
            d = _document(j + i, base, size, size_bits, keys, documents, documents_bits, split_keys)
            scratch[_0, i] = np.int64(d)
            i += _1
        i = _0
        while i < run:
            d = np.uint64(scratch[_0, i])
            scratch[_1, i] = document_indices[d]
            scratch[_2, i] = document_indices[d + _1]
            i += _1
        i = _0
        while i < run:
            from_sequence, to_sequence = scratch[_1, i], scratch[_2, i]
            if from_sequence < 0 or to_sequence < from_sequence or to_sequence > sequences:
                return int(scratch[_0, i])
            if from_sequence < to_sequence:
                begin, end = pointers_S[np.uint64(from_sequence)], tokens << shift
                if to_sequence < sequences:
                    end = pointers_S[np.uint64(to_sequence)]
                if begin < 0 or end < begin or end > tokens << shift or (begin | end) & odd:
                    return int(scratch[_0, i])
                before += (end - begin) >> shift
            i += _1
        j += run
    while mark < np.uint64(marks_M.size):
        marks_M[mark] = before
        mark += _1
    return -1


@kernel
def find_pieces(
    document_indices: NDArray[np.int64],
    pointers_S: NDArray[np.int64],
    tokens: int,
    shift: int,
    first: int,
    count: int,
    keys: NDArray[np.uint64],
    split_keys: NDArray[np.uint64],
    mark: int,
    before: int,
    begin: int,
    wanted: int,
    pieces_P: NDArray[np.int64],
) -> int:
    """The tokens begin … begin + wanted - 1 of an epoch as rows (document, its first token that is taken counted in the
    pair, how many) of pieces_P, int64[wanted or more, 3]; returns the number of rows. None is empty.

    mark: the last that has no more than `begin` tokens before it, and `before` these. Other arguments: mark_documents.
    """
    documents = np.uint64(document_indices.size - 1)
    base, size = np.uint64(first), np.uint64(count)
    size_bits, documents_bits = _bits(size), _bits(documents)
    j = np.uint64(mark) * np.uint64(SPACING)
    row = _0
    while wanted > 0 and j < size:
        d = _document(j, base, size, size_bits, keys, documents, documents_bits, split_keys)
        from_sequence, to_sequence = document_indices[d], document_indices[d + _1]
        if from_sequence < to_sequence:
            start, end = pointers_S[np.uint64(from_sequence)] >> shift, tokens
            if to_sequence < pointers_S.size:
                end = pointers_S[np.uint64(to_sequence)] >> shift
            skipped = begin - before
            before += end - start
            if before > begin:
                taken = min(wanted, before - begin)
                pieces_P[row, _0] = np.int64(d)
                pieces_P[row, _1] = start + skipped
                pieces_P[row, _2] = taken
                row += _1
                begin += taken
                wanted -= taken
        j += _1
    return int(np.int64(row))


def samples_through(epochs: Fraction | int, tokens: int, sequence_length: int) -> int:
    """Samples that are complete after so many passes over `tokens` tokens: ⌊(epochs · tokens - 1) / L⌋.

    Source: megatron-core's GPTDataset, which has as many.
    """
    return max(0, (floor(epochs * tokens) - 1) // sequence_length)


def epoch_of(sample: int, tokens: int, sequence_length: int) -> int:
    """The epoch in which a pair's sample ends."""
    return -(-((sample + 1) * sequence_length + 1) // tokens) - 1


class Shares:
    """Divides samples among sources by weight: sample i → (source, number within the source), and back.

    A tree, as Huffman's, whose nodes divide their samples in two: of the first n, the left child has ⌊n · l/w + 1/2⌋.
    So of the first n samples a source of weight w has less than 2 more or fewer than n · w/W, and after W samples (of
    whole weights) exactly w: a child that is itself divided has at most 2/3 of its parent, so the halves that were
    rounded add up to ½ + ⅔(½ + ⅔(…)) = 3/2, and a half for the leaf. Megatron-LM's rule, the largest deficit next,
    has to be played from the first sample on. All in whole numbers; the cost of a sample is the depth of its source.
    """

    def __init__(self, weights: Sequence[int | float]) -> None:
        """weights: positive and finite. A float counts as exactly the number it is."""
        exact = [Fraction(weight) for weight in weights]
        scale = lcm(*(weight.denominator for weight in exact))
        # (weight, number of the node): sources first, then nodes as they are made; the root is the last.
        heap = [(int(weight * scale), number) for number, weight in enumerate(exact)]
        heapq.heapify(heap)
        self._children: dict[int, tuple[int, int]] = {}
        self._parents: dict[int, int] = {}
        self._weights = {number: weight for weight, number in heap}
        while len(heap) > 1:
            left, right = heapq.heappop(heap)[1], heapq.heappop(heap)[1]
            node = len(self._weights)
            self._children[node] = (left, right)
            self._parents[left] = self._parents[right] = node
            self._weights[node] = self._weights[left] + self._weights[right]
            heapq.heappush(heap, (self._weights[node], node))
        self._root = heap[0][1]

    def of(self, sample: int) -> tuple[int, int]:
        """(source, number within the source) of a sample."""
        node = self._root
        while node in self._children:
            left, right = self._children[node]
            lefts = self._lefts(node, sample)
            if self._lefts(node, sample + 1) > lefts:
                node, sample = left, lefts
            else:
                node, sample = right, sample - lefts
        return node, sample

    def sample_of(self, source: int, number: int) -> int:
        """The sample that is this source's number …: the inverse of `of`."""
        node = source
        while node != self._root:
            parent = self._parents[node]
            twice = (2 * number + 1) * self._weights[parent]
            if node == self._children[parent][0]:
                number = -(-twice // (2 * self._weights[node])) - 1
            else:
                number = twice // (2 * self._weights[node])
            node = parent
        return number

    def counts(self, samples: int) -> list[int]:
        """How many of the first so many samples each source has."""
        of_node = {self._root: samples}
        for node in range(self._root, self._root - len(self._children), -1):
            left, right = self._children[node]
            of_node[left] = self._lefts(node, of_node[node])
            of_node[right] = of_node[node] - of_node[left]
        return [of_node[source] for source in range(len(self._weights) - len(self._children))]

    def _lefts(self, node: int, samples: int) -> int:
        """How many of a node's first samples go to its left child."""
        weight = self._weights[node]
        return (2 * samples * self._weights[self._children[node][0]] + weight) // (2 * weight)


def part_of(documents: int, begin: float, end: float) -> tuple[int, int]:
    """(first, count) of the share begin … end of so many documents; parts that touch share no document."""
    first = ceil(Fraction(begin) * documents)
    return first, ceil(Fraction(end) * documents) - first
