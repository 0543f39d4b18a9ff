"""Sketches: what stands for a document's set of shingles when pairs are proposed (lanes) and compared (sketch).

*Lanes* propose pairs. Fast similarity sketching (Dahlgaard, Knudsen, Thorup, FOCS 2017): every shingle is thrown into
one of K bins, each bin keeps its smallest hash, and rounds repeat with fresh hashes until no bin is empty; an earlier
round beats a later one. O(n + K log K) per document. Two documents agree in a lane with probability J. Lanes are
hashed into band keys (`taojin.dedup.bands`) and not kept.

The *sketch* compares pairs. It comes out of the first round, at no further hashing, with more bins: one-permutation
hashing without densification (Li, Owen, Zhang, NeurIPS 2012), 2 bits a bin: 0 is an empty bin, else one of 3 values
drawn from the LOW bits of the winner (its high bits are small by selection). With M bins that agree, B non-empty in
both and E in either, chance gives a third of what does not truly agree, so J ≈ (M − B/3) / (2/3) / E. Short documents
fill bins of their own and are compared nearly exactly; at 1,024 bins (256 bytes) the standard error of long ones is
0.016 at J = 0.8, where 128 lanes of 16 bits, as many bytes, have 0.035.

With `--sketch datasketch` (`taojin.dedup.minhash`) the lanes are the sketch.

Documents with too few symbols carry the 128-bit hash of their whole folded text in place of both.

Suffixes: _D documents, _K lanes, _B bins, _W 64-bit words of a sketch.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from taojin.core.fold import load_fold_table
from taojin.core.jit import inlined, kernel
from taojin.core.status import BLANK, EMPTY, FOLDED, INVALID_UTF8, NULL, SKETCHED
from taojin.core.text import fold_symbols, mix, roll_shingles, scratch_for, text_buffers
from taojin.dedup.config import SketchConfig
from taojin.dedup.minhash import datasketch_permutations, permutation_minhash
from taojin.dedup.shingles import keep_distinct

_0 = np.uint64(0)
_1 = np.uint64(1)
_EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
_LOW32 = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
# A text this long that leaves a lane empty repeats itself; its distinct shingles are few.
_REPETITIVE = 4096
# The expected number of winners that still change falls as 1 / (shingles per bin); 16 was measured to be the turn.
_THROWS_PER_BIN = 16
_ROUND = np.uint64(0xD1342543DE82EF95)  # odd: each round's hash functions differ in every bit with probability 1/2
# That two different winners show the same of three values.
CHANCE = 1 / 3


class Sketches(NamedTuple):
    """What the kernel knows of each document.

    lanes: uint32[D, K] · sketch: uint64[D, W], for fast two bit planes of W/2 words · num_shingles, num_chars:
    uint32[D] · status: uint8[D], `taojin.core.status`
    """

    lanes: NDArray[np.uint32]
    sketch: NDArray[np.uint64]
    num_shingles: NDArray[np.uint32]
    num_chars: NDArray[np.uint32]
    status: NDArray[np.uint8]


def sketch_words(config: SketchConfig) -> int:
    """64-bit words of a document's sketch: 2 bits a bin, or 32 bits a lane."""
    return config.bins // 32 if config.sketch == "fast" else config.num_hashes // 2


def standard_error(similarity: float, config: SketchConfig) -> float:
    """Of an estimate at this true similarity, for long documents (an upper bound for short ones)."""
    if config.sketch == "datasketch":
        return float(np.sqrt(similarity * (1 - similarity) / config.num_hashes))
    agree = similarity + (1 - similarity) * CHANCE
    return float(np.sqrt(agree * (1 - agree) / config.bins)) / (1 - CHANCE)


@kernel
def throw(
    shingles: NDArray[np.uint64],
    count: int,
    shift: np.uint64,
    hash_mask: np.uint64,
    winners_B: NDArray[np.uint64],
) -> None:
    """The first round: each shingle into bin (hash >> shift), the smallest (hash & hash_mask) wins. For many
    shingles."""
    winners_B[:] = _EMPTY
    size = np.uint64(count)
    # While winners still change often, a store per shingle beats a branch that is guessed wrong.
    unsettled = min(size, np.uint64(_THROWS_PER_BIN * winners_B.size))
    j = _0
    while j < unsettled:
        x = mix(shingles[j])
        b = x >> shift
        winners_B[b] = min(winners_B[b], x & hash_mask)
        j += _1
    while j < size:
        x = mix(shingles[j])
        b = x >> shift
        x &= hash_mask
        if x < winners_B[b]:
            winners_B[b] = x
        j += _1


@kernel
def throw_few(
    shingles: NDArray[np.uint64],
    count: int,
    shift: np.uint64,
    hash_mask: np.uint64,
    winners_B: NDArray[np.uint64],
    touched_B: NDArray[np.int64],
) -> int:
    """The same for few shingles: only the bins they touch are visited.

    winners_B must be all EMPTY; the numbers of the bins that no longer are go to touched_B; returns how many.
    """
    size = np.uint64(count)
    num_touched = _0
    j = _0
    while j < size:
        x = mix(shingles[j])
        b = x >> shift
        old = winners_B[b]
        touched_B[num_touched] = np.int64(b)
        num_touched += np.uint64(old == _EMPTY)
        winners_B[b] = min(old, x & hash_mask)
        j += _1
    return int(np.int64(num_touched))


@inlined
def _two_bits(winner: np.uint64) -> np.uint64:
    """1, 2 or 3, from bits of the winner that took no part in its selection."""
    return (((winner & _LOW32) * np.uint64(3)) >> _HALF) + _1


@kernel
def pack(winners_B: NDArray[np.uint64], sketch_W: NDArray[np.uint64]) -> None:
    """Write every bin's 2-bit value into sketch_W: low bits in its first half, high bits in the second."""
    half = sketch_W.size // 2
    b = _0
    for word in range(half):
        low = _0
        high = _0
        bit = _0
        while bit < np.uint64(64):
            winner = winners_B[b]
            value = _two_bits(winner) * np.uint64(winner != _EMPTY)
            low |= (value & _1) << bit
            high |= (value >> _1) << bit
            b += _1
            bit += _1
        sketch_W[word] = low
        sketch_W[half + word] = high


@kernel
def pack_few(
    winners_B: NDArray[np.uint64], touched_B: NDArray[np.int64], num_touched: int, sketch_W: NDArray[np.uint64]
) -> None:
    """`pack` for the touched bins alone; sketch_W must be all zero."""
    half = np.uint64(sketch_W.size // 2)
    for t in range(num_touched):
        b = np.uint64(touched_B[t])
        value = _two_bits(winners_B[b])
        word = b >> np.uint64(6)
        bit = b & np.uint64(63)
        sketch_W[word] |= (value & _1) << bit
        sketch_W[half + word] |= (value >> _1) << bit


@kernel
def fill_lanes(
    shingles: NDArray[np.uint64], count: int, shift: np.uint64, round_shift: np.uint64, lanes_K: NDArray[np.uint64]
) -> None:
    """Rounds 1, 2, … until no lane is empty; lanes_K holds the winners of round 0.

    A winner is its round number above its hash bits, so that an earlier round beats any later one by comparison alone
    and the loop over balls needs no record of which lanes are closed. Rounds beyond the last needed change nothing.
    """
    if _is_full(lanes_K):
        return
    num_lanes = np.uint64(lanes_K.size)
    hash_mask = (_1 << round_shift) - _1
    if count > _REPETITIVE:
        shingles = np.sort(shingles[:count])
        count = keep_distinct(shingles)
    size = np.uint64(count)
    # K ln K balls fill K lanes, more or less: look after 5 K of them, then after every K.
    first = _1
    last = min(first + np.uint64(5) * num_lanes // size, num_lanes + num_lanes)
    while True:
        round_ = first
        while round_ < min(last, num_lanes):
            salt = round_ * _ROUND
            rank = round_ << round_shift
            j = _0
            while j < size:
                x = mix(shingles[j] ^ salt)
                b = x >> shift
                lanes_K[b] = min(lanes_K[b], (x & hash_mask) | rank)
                j += _1
            round_ += _1
        while round_ < last:
            # After K rounds the lanes are served in turn, so that even one shingle fills them all.
            salt = round_ * _ROUND
            rank = round_ << round_shift
            b = round_ - num_lanes
            j = _0
            while j < size:
                lanes_K[b] = min(lanes_K[b], (mix(shingles[j] ^ salt) & hash_mask) | rank)
                j += _1
            round_ += _1
        if _is_full(lanes_K):
            return
        first = last
        last = min(first + num_lanes // size + _1, num_lanes + num_lanes)


@kernel
def _is_full(lanes_K: NDArray[np.uint64]) -> bool:
    largest = _0
    for b in range(lanes_K.size):
        largest = max(largest, lanes_K[b])
    return largest != _EMPTY


@kernel
def fast_similarity(
    shingles: NDArray[np.uint64],
    count: int,
    winners_B: NDArray[np.uint64],
    touched_B: NDArray[np.int64],
    lanes_K: NDArray[np.uint64],
    sketch_W: NDArray[np.uint64],
) -> None:
    """Lanes and sketch of shingles[0:count], count > 0; B and K powers of two, B ≥ K.

    winners_B: all EMPTY before and after; touched_B: scratch; lanes_K: written; sketch_W: all zero before, W = B / 32.
    """
    log_bins = _log2(winners_B.size)
    log_lanes = _log2(lanes_K.size)
    shift = np.uint64(64) - log_bins
    # Bits below the bin number decide; above them the round number needs room for 2 K rounds.
    round_shift = min(shift, np.uint64(63) - log_lanes)
    hash_mask = (_1 << round_shift) - _1
    ratio = log_bins - log_lanes
    lanes_K[:] = _EMPTY
    if count < winners_B.size // 2:
        num_touched = throw_few(shingles, count, shift, hash_mask, winners_B, touched_B)
        pack_few(winners_B, touched_B, num_touched, sketch_W)
        for t in range(num_touched):
            b = np.uint64(touched_B[t])
            lane = b >> ratio
            lanes_K[lane] = min(lanes_K[lane], winners_B[b])
            winners_B[b] = _EMPTY
    else:
        throw(shingles, count, shift, hash_mask, winners_B)
        pack(winners_B, sketch_W)
        b = _0
        while b < np.uint64(winners_B.size):
            lane = b >> ratio
            lanes_K[lane] = min(lanes_K[lane], winners_B[b])
            winners_B[b] = _EMPTY
            b += _1
    fill_lanes(shingles, count, np.uint64(64) - log_lanes, round_shift, lanes_K)


@kernel
def _log2(power: int) -> np.uint64:
    log = _0
    while (1 << np.int64(log)) < power:
        log += _1
    return log


@kernel
def _count_ones(x: np.uint64) -> np.uint64:
    """Population count, in the form that LLVM turns into one instruction."""
    x = x - ((x >> _1) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (x * np.uint64(0x0101010101010101)) >> np.uint64(56)


@kernel
def estimate(a_W: NDArray[np.uint64], b_W: NDArray[np.uint64], packed: bool) -> float:
    """Estimated Jaccard similarity of two sketches; packed: 2-bit bins, otherwise 32-bit lanes."""
    if not packed:
        lanes = 0
        for w in range(a_W.size):
            difference = a_W[w] ^ b_W[w]
            lanes += (difference & _LOW32) == _0
            lanes += (difference >> _HALF) == _0
        return lanes / (2 * a_W.size)
    half = a_W.size // 2
    agree = _0
    both = _0
    either = _0
    for w in range(half):
        full_a = a_W[w] | a_W[half + w]
        full_b = b_W[w] | b_W[half + w]
        different = (a_W[w] ^ b_W[w]) | (a_W[half + w] ^ b_W[half + w])
        agree += _count_ones(full_a & ~different)
        both += _count_ones(full_a & full_b)
        either += _count_ones(full_a | full_b)
    if either == _0:
        return 0.0
    # (agree − both · 1/3) / (2/3) / either in whole numbers, so that equal sketches are exactly 1.
    return max(0.0, (3.0 * np.float64(agree) - np.float64(both)) / (2.0 * np.float64(either)))


@kernel
def _hash_folded(symbols: NDArray[np.uint64], count: int) -> tuple[np.uint64, np.uint64]:
    """128 bits over a whole folded text of `count` symbols."""
    a = mix(np.uint64(count))
    b = ~a
    for j in range(count):
        a = mix(a ^ symbols[j])
        b = mix(b + symbols[j] * _ROUND)
    return a, b


@kernel
def _describe(
    data: NDArray[np.uint8],
    offsets_D: NDArray[np.int64],
    d: int,
    table: NDArray[np.uint32],
    expansions: NDArray[np.uint32],
    ngram: int,
    min_symbols: int,
    scratch: NDArray[np.uint64],
    num_shingles_D: NDArray[np.uint32],
    num_chars_D: NDArray[np.uint32],
    status_D: NDArray[np.uint8],
) -> int:
    """Fold document d; leaves its shingles in `scratch` (SKETCHED) or its symbols (FOLDED) and returns their number."""
    if status_D[d] > BLANK:
        return 0
    start = offsets_D[d]
    end = offsets_D[d + 1]
    if start == end:
        status_D[d] = EMPTY
        return 0
    count, chars, valid = fold_symbols(data, start, end, table, expansions, scratch)
    num_chars_D[d] = chars
    if not valid:
        status_D[d] = INVALID_UTF8
        return 0
    if count == 0:
        status_D[d] = BLANK
        return 0
    num_shingles_D[d] = max(count - ngram + 1, 0)
    if count < max(min_symbols, ngram):
        status_D[d] = FOLDED
        return count
    status_D[d] = SKETCHED
    return roll_shingles(scratch, count, ngram)


@kernel
def _sketch_documents(
    data: NDArray[np.uint8],
    offsets_D: NDArray[np.int64],
    table: NDArray[np.uint32],
    expansions: NDArray[np.uint32],
    ngram: int,
    min_symbols: int,
    num_bins: int,
    a_K: NDArray[np.uint32],
    b_K: NDArray[np.uint32],
    scratch: NDArray[np.uint64],
    lanes_DK: NDArray[np.uint32],
    sketch_DW: NDArray[np.uint64],
    num_shingles_D: NDArray[np.uint32],
    num_chars_D: NDArray[np.uint32],
    status_D: NDArray[np.uint8],
) -> None:
    """num_bins = 0 selects the K permutations (a_K, b_K) in place of fast similarity sketching."""
    num_lanes = lanes_DK.shape[1]
    winners_B = np.full(num_bins, _EMPTY)
    touched_B = np.empty(num_bins, np.int64)
    lanes_K = np.empty(num_lanes, np.uint64)
    for d in range(offsets_D.size - 1):
        count = _describe(
            data, offsets_D, d, table, expansions, ngram, min_symbols, scratch, num_shingles_D, num_chars_D, status_D
        )
        if status_D[d] == SKETCHED:
            if num_bins:
                fast_similarity(scratch, count, winners_B, touched_B, lanes_K, sketch_DW[d])
                for k in range(num_lanes):
                    lanes_DK[d, k] = np.uint32(lanes_K[k] & _LOW32)
            else:
                permutation_minhash(scratch, count, a_K, b_K, lanes_DK[d])
                for w in range(sketch_DW.shape[1]):
                    high = np.uint64(lanes_DK[d, 2 * w + 1]) << _HALF
                    sketch_DW[d, w] = high | np.uint64(lanes_DK[d, 2 * w])
        elif status_D[d] == FOLDED:
            a, b = _hash_folded(scratch, count)
            sketch_DW[d, 0] = a
            sketch_DW[d, 1] = b
            lanes_DK[d, 0] = np.uint32(a & _LOW32)
            lanes_DK[d, 1] = np.uint32(a >> _HALF)
            lanes_DK[d, 2] = np.uint32(b & _LOW32)
            lanes_DK[d, 3] = np.uint32(b >> _HALF)


def sketch_array(
    texts: pa.LargeStringArray | pa.LargeBinaryArray, config: SketchConfig, status: NDArray[np.uint8] | None = None
) -> Sketches:
    """Sketch one array of texts.

    `status` (uint8[D], changed in place) may name documents that are not to be read (NULL, TOO_LARGE …); nulls of the
    array are marked here. Cost: about 3 ns per byte of Chinese text plus 2–3 µs per document.
    """
    data, offsets_D = text_buffers(texts)
    num_documents = len(texts)
    if status is None:
        status = np.zeros(num_documents, np.uint8)
    if texts.null_count:
        # A record that could not be read is null too, and keeps its own reason.
        status[texts.is_null().to_numpy(zero_copy_only=False) & (status <= BLANK)] = NULL
    lanes_DK = np.zeros((num_documents, config.num_hashes), np.uint32)
    sketch_DW = np.zeros((num_documents, sketch_words(config)), np.uint64)
    num_shingles_D = np.zeros(num_documents, np.uint32)
    num_chars_D = np.zeros(num_documents, np.uint32)
    readable = np.where(status > BLANK, 0, np.diff(offsets_D))
    fold = load_fold_table()
    _sketch_documents(
        data,
        offsets_D,
        fold.table,
        fold.expansions,
        config.ngram,
        config.min_symbols,
        config.bins if config.sketch == "fast" else 0,
        *datasketch_permutations(config.num_hashes),
        scratch_for(int(readable.max(initial=0))),
        lanes_DK,
        sketch_DW,
        num_shingles_D,
        num_chars_D,
        status,
    )
    return Sketches(lanes_DK, sketch_DW, num_shingles_D, num_chars_D, status)


def sketch_texts(texts: pa.Array | pa.ChunkedArray, config: SketchConfig | None = None) -> Sketches:
    """Sketch any Arrow string array: the entry for experiments and benchmarks; the scan calls `sketch_array`."""
    config = config or SketchConfig()
    chunks = texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]
    parts = [sketch_array(chunk.cast(pa.large_string()), config) for chunk in chunks if len(chunk)]
    if not parts:
        parts = [sketch_array(pa.array([], pa.large_string()), config)]
    lanes, sketch, num_shingles, num_chars, status = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Sketches(lanes, sketch, num_shingles, num_chars, status)
