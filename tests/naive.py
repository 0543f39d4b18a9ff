"""Slow, obvious oracles for the kernels: plain Python integers and sets, nothing shared with the code under test.

The one exception is `exact_greedy`, which numba runs because thousands of documents are compared with each other;
`tests/test_templates.py` holds it against plain sets first.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

U64 = (1 << 64) - 1
Table = Sequence[int] | NDArray[np.uint32]

# What the documentation of the fold table says; written out again on purpose.
BREAK, VANISH, SYMBOL, LETTER, MULTI, SURROGATE = range(6)


class Folded(NamedTuple):
    """symbols: one integer each · chars: code points · valid: well-formed UTF-8 (the rest means nothing otherwise)."""

    symbols: list[int]
    chars: int
    valid: bool


def mix(x: int) -> int:
    """splitmix64's finalizer."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & U64
    x = (x ^ x >> 27) * 0x94D049BB133111EB & U64
    return x ^ x >> 31


def run_hash(letters: Sequence[int]) -> int:
    """The symbol of a run of letters, given as folded code points."""
    h = 0xCBF29CE484222325
    for letter in letters:
        h = (h ^ letter) * 0x9FB21C651E98DF25 & U64
    return h ^ h >> 32


def fold_entries(code_point: int, table: Table, expansions: Table) -> list[tuple[int, int]]:
    """(class, value) of what a code point becomes."""
    entry = int(table[code_point])
    entries = [entry]
    if entry >> 21 == MULTI:
        offset = entry & 0x1FFFFF
        entries = [int(e) for e in expansions[offset + 1 : offset + 1 + int(expansions[offset])]]
    return [(e >> 21, e & 0x1FFFFF) for e in entries]


def fold(data: bytes, table: Table, expansions: Table) -> Folded:
    try:
        text = data.decode("utf-8", "strict")
    except UnicodeDecodeError:
        return Folded([], 0, False)
    symbols: list[int] = []
    run: list[int] = []
    for kind, value in (e for c in text for e in fold_entries(ord(c), table, expansions)):
        if kind == LETTER:
            run.append(value)
        elif kind != VANISH:
            if run:
                symbols.append(run_hash(run))
                run = []
            if kind == SYMBOL:
                symbols.append(value)
    if run:
        symbols.append(run_hash(run))
    return Folded(symbols, len(text), True)


def shingles(symbols: Sequence[int], ngram: int) -> list[int]:
    """Polynomial hashes of all n consecutive symbols, each from scratch."""
    base = 0x9E3779B97F4A7C15
    return [
        sum(symbol * pow(base, ngram - 1 - k, 1 << 64) for k, symbol in enumerate(symbols[i : i + ngram])) & U64
        for i in range(len(symbols) - ngram + 1)
    ]


def jaccard(a: Iterable[int], b: Iterable[int]) -> float:
    a, b = set(a), set(b)
    return len(a & b) / len(a | b) if a | b else 0.0


def text_jaccard(a: str, b: str, ngram: int) -> float:
    """Of two texts that are symbols throughout, so that there is nothing to fold."""
    left, right = ({text[i : i + ngram] for i in range(len(text) - ngram + 1)} for text in (a, b))
    return len(left & right) / len(left | right)


def log2(power: int) -> int:
    assert power > 0
    assert power & power - 1 == 0
    return power.bit_length() - 1


def hash_bits(num_lanes: int, num_bins: int) -> int:
    """Bits of a hash that decide who wins: those below the bin's number, fewer where a round number needs the room."""
    return min(64 - log2(num_bins), 63 - log2(num_lanes))


def fast_similarity(values: Iterable[int], num_lanes: int, num_bins: int) -> list[tuple[int, int]]:
    """Dahlgaard, Knudsen, Thorup (FOCS 2017), algorithm 1, on a set: K lanes, 2K rounds of fresh hash functions.

    Round r < K throws each element into a hashed lane, round K + k throws all into lane k; a lane keeps the smallest
    (round, hash) it ever saw.
    """
    winners: dict[int, tuple[int, int]] = {}
    for round_ in range(2 * num_lanes):
        salt = round_ * 0xD1342543DE82EF95 & U64
        for value in set(values):
            h = mix(value ^ salt)
            lane = h >> 64 - log2(num_lanes) if round_ < num_lanes else round_ - num_lanes
            ball = (round_, h % (1 << hash_bits(num_lanes, num_bins)))
            winners[lane] = min(winners.get(lane, ball), ball)
        if len(winners) == num_lanes:
            break
    return [winners[lane] for lane in range(num_lanes)]


def bin_values(values: Iterable[int], num_lanes: int, num_bins: int) -> list[int]:
    """One-permutation hashing (Li, Owen, Zhang, NeurIPS 2012): 0 for an empty bin, else 1 to 3 by its smallest hash."""
    winners: dict[int, int] = {}
    for value in set(values):
        h = mix(value)
        b = h >> 64 - log2(num_bins)
        ball = h % (1 << hash_bits(num_lanes, num_bins))
        winners[b] = min(winners.get(b, ball), ball)
    return [(winners[b] % (1 << 32) * 3 >> 32) + 1 if b in winners else 0 for b in range(num_bins)]


def planes(bins_DB: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """uint64[D, B / 32]: 2-bit values as two bit planes, low bits first, bin 0 in the lowest bit of a word."""
    bits = np.concatenate([bins_DB & 1, bins_DB >> 1], axis=1)
    return np.packbits(bits, axis=1, bitorder="little").view(np.uint64)


def estimate(a: Sequence[int], b: Sequence[int]) -> float:
    """Similarity from 2-bit values: of the bins that are full in either, the share that agrees, less a third of those
    full in both that do not truly agree."""
    agree = sum(x == y != 0 for x, y in zip(a, b, strict=True))
    both = sum(x != 0 != y for x, y in zip(a, b, strict=True))
    either = sum(x != 0 or y != 0 for x, y in zip(a, b, strict=True))
    return max(0, 3 * agree - both) / (2 * either) if either else 0.0


def fmix32(h: int) -> int:
    """MurmurHash3's 32-bit finalizer."""
    h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return h ^ h >> 16


class BucketPairs(NamedTuple):
    pairs: set[tuple[int, int]]
    compared: int
    rejected: dict[int, int]


def bucket_pairs(
    members: Sequence[int],
    similarity: Callable[[int, int], float],
    is_index: Sequence[bool],
    propose: float,
    absorb: float,
) -> BucketPairs:
    """The rule for a bucket that is not hot: in order, each against the leaders until one absorbs it, or it leads."""
    leaders: list[int] = []
    pairs: set[tuple[int, int]] = set()
    rejected: dict[int, int] = defaultdict(int)
    compared = 0
    for j in sorted(members):
        absorbed = False
        for i in [] if is_index[j] else leaders:
            compared += 1
            if similarity(i, j) < propose:
                rejected[j] += 1
                continue
            pairs.add((i, j))
            if similarity(i, j) >= absorb:
                absorbed = True
                break
        if not absorbed:
            leaders.append(j)
    return BucketPairs(pairs, compared, dict(rejected))


def buckets(keys: Iterable[int], ordinals: Iterable[int]) -> dict[int, list[int]]:
    """Key → its ordinals, for keys that occur more than once."""
    grouped: dict[int, list[int]] = defaultdict(list)
    for key, ordinal in zip(keys, ordinals, strict=True):
        grouped[key].append(ordinal)
    return {key: members for key, members in grouped.items() if len(members) > 1}


def components(num_nodes: int, edges: Iterable[tuple[int, int]]) -> list[int]:
    """The smallest node that each node reaches, by breadth-first search."""
    neighbours: dict[int, set[int]] = defaultdict(set)
    for a, b in edges:
        neighbours[a].add(b)
        neighbours[b].add(a)
    name = [-1] * num_nodes
    for start in range(num_nodes):
        if name[start] >= 0:
            continue
        queue = [start]
        while queue:
            node = queue.pop(0)
            if name[node] < 0:
                name[node] = start
                queue.extend(neighbours[node])
    return name


def greedy(
    num_documents: int,
    links: Iterable[tuple[int, int]],
    similarity: Callable[[int, int], float],
    threshold: float,
    is_index: Sequence[bool],
    small: int,
) -> list[int]:
    """Survivor of each document, down the order 0, 1, 2 …: the most similar of the first stage with one ≥ threshold.

    Stages: linked survivors; survivors of linked documents that went; all survivors of the component, if they are at
    most `small`. Of equally similar ones the first.
    """
    links = list(links)
    component = components(num_documents, links)
    linked: dict[int, set[int]] = defaultdict(set)
    for a, b in links:
        linked[max(a, b)].add(min(a, b))
    survivor = list(range(num_documents))
    for i in range(num_documents):
        if is_index[i]:
            continue
        stays = [j for j in range(i) if survivor[j] == j and component[j] == component[i]]
        stages = [
            {j for j in linked[i] if survivor[j] == j},
            {survivor[j] for j in linked[i] if survivor[j] != j},
            set(stays) if len(stays) <= small else set(),
        ]
        for stage in stages:
            good = [(-similarity(i, j), j) for j in stage if similarity(i, j) >= threshold]
            if good:
                survivor[i] = min(good)[1]
                break
    return survivor


class ShingleSets(NamedTuple):
    """Sorted distinct shingles of document d: values[starts[d]:starts[d + 1]]."""

    starts: NDArray[np.int64]
    values: NDArray[np.uint64]

    def __getitem__(self, document: int) -> set[int]:  # type: ignore[override]
        return set(self.values[self.starts[document] : self.starts[document + 1]].tolist())


def pack_sets(sets: Sequence[Iterable[int]]) -> ShingleSets:
    ordered = [sorted(set(s)) for s in sets]
    starts = np.cumsum([0, *map(len, ordered)]).astype(np.int64)
    return ShingleSets(starts, np.array([v for s in ordered for v in s], np.uint64))


@njit(cache=True)
def _common(values: NDArray[np.uint64], i: int, i_end: int, j: int, j_end: int) -> int:
    common = 0
    while i < i_end and j < j_end:
        if values[i] == values[j]:
            common += 1
            i += 1
            j += 1
        elif values[i] < values[j]:
            i += 1
        else:
            j += 1
    return common


@njit(cache=True)
def _greedy(
    starts: NDArray[np.int64], values: NDArray[np.uint64], order: NDArray[np.int64], threshold: float
) -> NDArray[np.bool_]:
    kept = np.zeros(order.size, np.bool_)
    survivors = np.empty(order.size, np.int64)
    count = 0
    for d in order:
        kept[d] = True
        for s in range(count):
            other = survivors[s]
            common = _common(values, starts[d], starts[d + 1], starts[other], starts[other + 1])
            union = starts[d + 1] - starts[d] + starts[other + 1] - starts[other] - common
            if common >= threshold * union - 1e-9:
                kept[d] = False
                break
        if kept[d]:
            survivors[count] = d
            count += 1
    return kept


def exact_greedy(sets: ShingleSets, order: NDArray[np.int64], threshold: float) -> NDArray[np.bool_]:
    """bool[D]: what stays when, down `order`, each document goes that has J ≥ threshold with any that stays."""
    kept: NDArray[np.bool_] = _greedy(sets.starts, sets.values, order, threshold)
    return kept


def exact_pairs_of_templates(sets: ShingleSets, threshold: float) -> list[tuple[int, int]]:
    """Every pair (a < b) with J ≥ threshold where a template, the shingles that more than half of the sets hold, is
    not enough to reach it: such pairs share something else too.
    """
    num_documents = len(sets.starts) - 1
    values, inverse, counts = np.unique(sets.values, return_inverse=True, return_counts=True)
    document = np.repeat(np.arange(num_documents), np.diff(sets.starts))
    of_template = (counts > num_documents / 2)[inverse.reshape(-1)]
    shared = np.bincount(document, of_template, num_documents)
    own = np.bincount(document, ~of_template, num_documents)
    reached = shared.max() / (shared.max() + 2 * own.min())
    assert reached < threshold, f"two sets may reach {reached} by their template alone"
    postings: list[list[int]] = [[] for _ in range(len(values))]
    pairs: set[tuple[int, int]] = set()
    rare = np.flatnonzero(~of_template)
    for d, value in zip(document[rare].tolist(), inverse.reshape(-1)[rare].tolist(), strict=True):
        pairs.update((other, d) for other in postings[value])
        postings[value].append(d)
    return sorted(pair for pair in pairs if jaccard(sets[pair[0]], sets[pair[1]]) >= threshold - 1e-12)


def greedy_over_pairs(num_documents: int, pairs: Iterable[tuple[int, int]], order: Iterable[int]) -> NDArray[np.bool_]:
    """`exact_greedy` where the pairs are known already."""
    neighbours: dict[int, list[int]] = defaultdict(list)
    for a, b in pairs:
        neighbours[a].append(b)
        neighbours[b].append(a)
    kept = np.zeros(num_documents, np.bool_)
    for d in order:
        kept[d] = not any(kept[n] for n in neighbours[d])
    return kept
