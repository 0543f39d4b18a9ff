"""Exact truth about near-duplicates: the oracle that engines and peers are held against.

A naive definition of its own, in plain Python, sharing no code with taojin: a character is folded (NFKC, case fold,
diacritics dropped, Traditional → Simplified by OpenCC's character table); white space, punctuation and symbols end a
run; a symbol is one character of a script written without spaces, or a run of other letters and digits; a document is
the set of its 5-symbol shingles, and J is the Jaccard similarity of two sets. Documents of fewer than 12 symbols are
duplicates (J = 1) only if they fold to the same symbols, documents that fold to nothing only if their bytes are equal.

`all_pairs` finds every pair with J ≥ 0.7 (prefix filter: rarest shingles first, an inverted index over the prefixes);
`greedy_removed` is what a perfect greedy run removes; `Judge` and `score_survivors` score a run. Shingles are 64-bit
hashes of interned symbols (20 million distinct ones collide with probability 10^-5). Sets are parsed once and cached in
.bench/truth.
Cost: about 2 MB of text per CPU-second; memory: 8 bytes a shingle. Not for gigabytes.
"""

import argparse
import hashlib
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numba import njit
from numpy.typing import NDArray

from bench.corpus import DEFAULT_CORPUS, SCRATCH, CorpusError, make, parquet_shards

TRUTH_VERSION = 1
SHINGLE_SYMBOLS = 5
SHORT_SYMBOLS = 12
LOWEST_JACCARD = 0.7

_SPACELESS_NAMES = (
    "CJK ", "KANGXI", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "HENTAIGANA", "HANGZHOU", "VERTICAL KANA", "MASU",
    "BOPOMOFO", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "YI ", "TANGUT", "NUSHU", "KHITAN",
)  # fmt: skip


def _simplified() -> dict[str, str]:
    import opencc

    table: dict[str, str] = {}
    path = Path(opencc.__file__).parent / "dictionary" / "TSCharacters.txt"
    for line in path.read_text(encoding="utf-8").splitlines():
        traditional, _, simplified = line.partition("\t")
        if len(traditional) == 1 and simplified:
            table[traditional] = simplified.split(" ")[0]
    return table


def _is_diacritic(character: str) -> bool:
    """A combining mark, but not a vowel sign: those of Indic and South-East Asian scripts are letters."""
    code_point = ord(character)
    return unicodedata.category(character)[0] == "M" and not (
        0x0900 <= code_point <= 0x1AAF or 0x1B00 <= code_point <= 0x1DBF
        or 0x2DE0 <= code_point <= 0x2DFF or 0xA000 <= code_point <= 0xABFF or 0x10000 <= code_point <= 0x1FFFF
    )  # fmt: skip


class _Folding(dict[int, str]):
    """For str.translate: code point → its folded characters, single symbols set between spaces."""

    def __init__(self) -> None:
        self.simplified = _simplified()

    def __missing__(self, code_point: int) -> str:
        text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", chr(code_point)).casefold())
        bare = "".join(self._bare(character) for character in text)
        folded = "".join(self._placed(self.simplified.get(c, c)) for c in bare)
        self[code_point] = folded
        return folded

    @staticmethod
    def _bare(character: str) -> str:
        if "가" <= character <= "힣":
            return character
        kept = [c for c in unicodedata.normalize("NFD", character) if not _is_diacritic(c)]
        return unicodedata.normalize("NFC", "".join(kept))

    @staticmethod
    def _placed(character: str) -> str:
        category = unicodedata.category(character)
        if category == "Cf":
            return ""
        if category[0] in "PSZ" or category in ("Cc", "Cs"):
            return " "
        name = unicodedata.name(character, "")
        private = 0xE000 <= ord(character) <= 0xF8FF  # Han characters outside Unicode, in practice
        return f" {character} " if private or name.startswith(_SPACELESS_NAMES) else character


_FOLDING = _Folding()


def symbols(text: str) -> list[str]:
    """The folded text as a list of symbols."""
    return text.translate(_FOLDING).split()


@dataclass(frozen=True)
class ShingleSets:
    """Documents as sorted sets of shingle hashes: `hashes[starts[d]:starts[d + 1]]`, uint64.

    A short document's set holds one hash made of all its symbols, an empty one's one of its bytes; all three kinds of
    hash live in spaces of their own, so that J over these sets follows the definition at the top for every pair.
    """

    ids: list[str]
    starts: NDArray[np.int64]
    hashes: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.ids)}

    def jaccard(self, a: int, b: int) -> float:
        left = self.hashes[self.starts[a] : self.starts[a + 1]]
        right = self.hashes[self.starts[b] : self.starts[b + 1]]
        common = len(np.intersect1d(left, right, assume_unique=True))
        return common / (len(left) + len(right) - common)


def parse(ids: Sequence[str], texts: Iterable[str]) -> ShingleSets:
    sets: list[NDArray[np.uint64]] = []
    interned: dict[str, int] = {}
    for text in texts:
        words = symbols(text)
        if len(words) < SHORT_SYMBOLS:
            kind = b"short" if words else b"bytes"
            body = " ".join(words) if words else text
            digest = hashlib.blake2b(kind + body.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            sets.append(np.frombuffer(digest, np.uint64))
        else:
            numbers = np.array([interned.setdefault(word, len(interned)) for word in words], np.uint64)
            sets.append(np.unique(_shingle_hashes(numbers)))
    starts = np.concatenate([[0], np.cumsum([len(s) for s in sets])]).astype(np.int64)
    return ShingleSets(list(ids), starts, np.concatenate(sets) if sets else np.empty(0, np.uint64))


def _shingle_hashes(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed = np.zeros(len(numbers) - SHINGLE_SYMBOLS + 1, np.uint64)
    for i in range(SHINGLE_SYMBOLS):
        mixed = _splitmix(mixed + numbers[i : len(numbers) - SHINGLE_SYMBOLS + 1 + i] + np.uint64(1))
    return mixed


def _splitmix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def load(folder: Path) -> ShingleSets:
    """The shingle sets of a folder of shards (columns id, text), in shard order; parsed once."""
    shards = parquet_shards(folder)
    key = repr((TRUTH_VERSION, [(s.name, s.stat().st_size, s.stat().st_mtime_ns) for s in shards]))
    cache = SCRATCH / "truth" / f"{hashlib.blake2b(key.encode(), digest_size=12).hexdigest()}.npz"
    if cache.is_file():
        with np.load(cache) as stored:
            return ShingleSets(stored["ids"].tolist(), stored["starts"], stored["hashes"])
    table = pa.concat_tables([pq.read_table(shard, columns=["id", "text"]) for shard in shards])
    sets = parse(table["id"].to_pylist(), (text or "" for text in table["text"].to_pylist()))
    cache.parent.mkdir(parents=True, exist_ok=True)
    np.savez(cache, ids=np.array(sets.ids), starts=sets.starts, hashes=sets.hashes)
    return sets


@dataclass(frozen=True)
class Pairs:
    """All pairs with J ≥ LOWEST_JACCARD: int32[P] each, a < b, and their J."""

    a: NDArray[np.int64]
    b: NDArray[np.int64]
    jaccard: NDArray[np.float64]


def all_pairs(sets: ShingleSets, lowest: float = LOWEST_JACCARD) -> Pairs:
    """Every pair with J ≥ `lowest`: two such sets share a shingle among the first n − ⌈lowest·n⌉ + 1 rarest of each."""
    _, inverse, counts = np.unique(sets.hashes, return_inverse=True, return_counts=True)
    rank = np.empty(len(counts), np.int32)
    rank[np.argsort(counts, kind="stable")] = np.arange(len(counts), dtype=np.int32)
    ranks = rank[inverse]
    document = np.repeat(np.arange(len(sets)), np.diff(sets.starts))
    ranks = ranks[np.lexsort((ranks, document))]
    del inverse, document
    sizes = np.diff(sets.starts)
    prefixes = sizes - np.ceil(lowest * sizes - 1e-9).astype(np.int64) + 1
    by_size = np.argsort(sizes, kind="stable")
    postings = np.bincount(ranks[_prefix_mask(sets.starts, prefixes)], minlength=len(rank))
    heads = np.concatenate([[0], np.cumsum(postings)]).astype(np.int64)
    a, b, jaccard = _join(ranks, sets.starts, prefixes, by_size, heads, lowest)
    low, high = np.minimum(a, b), np.maximum(a, b)
    order = np.lexsort((high, low))
    return Pairs(low[order], high[order], jaccard[order])


@njit(cache=True)
def _prefix_mask(starts: NDArray[np.int64], prefixes: NDArray[np.int64]) -> NDArray[np.bool_]:
    mask = np.zeros(starts[-1], np.bool_)
    for d in range(len(prefixes)):
        mask[starts[d] : starts[d] + prefixes[d]] = True
    return mask


@njit(cache=True)
def _join(
    ranks: NDArray[np.int32],
    starts: NDArray[np.int64],
    prefixes: NDArray[np.int64],
    by_size: NDArray[np.int64],
    heads: NDArray[np.int64],
    lowest: float,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Documents from small to large, each against the earlier ones that share a shingle of both prefixes."""
    posted = np.empty(heads[-1], np.int64)
    first = heads[:-1].copy()  # postings too small for the current document are passed over for good
    filled = heads[:-1].copy()
    seen = np.full(len(by_size), -1, np.int64)
    out_a = [np.int64(0) for _ in range(0)]
    out_b = [np.int64(0) for _ in range(0)]
    out_j = [0.0 for _ in range(0)]
    for d in by_size:
        size = starts[d + 1] - starts[d]
        for p in range(starts[d], starts[d] + prefixes[d]):
            shingle = ranks[p]
            for q in range(first[shingle], filled[shingle]):
                other = posted[q]
                other_size = starts[other + 1] - starts[other]
                if other_size < lowest * size - 1e-9:
                    first[shingle] = q + 1
                    continue
                if seen[other] == d:
                    continue
                seen[other] = d
                need = int(np.ceil(lowest / (1.0 + lowest) * (size + other_size) - 1e-9))
                common = _common(ranks, starts[d], starts[d + 1], starts[other], starts[other + 1], need)
                if common >= need:
                    out_a.append(d)
                    out_b.append(other)
                    out_j.append(common / (size + other_size - common))
            posted[filled[shingle]] = d
            filled[shingle] += 1
    return np.array(out_a), np.array(out_b), np.array(out_j)


@njit(cache=True)
def _common(ranks: NDArray[np.int32], i: int, i_end: int, j: int, j_end: int, need: int) -> int:
    """Size of the intersection of two sorted slices, or −1 as soon as it cannot reach `need`."""
    common = 0
    while i < i_end and j < j_end:
        if common + min(i_end - i, j_end - j) < need:
            return -1
        if ranks[i] == ranks[j]:
            common += 1
            i += 1
            j += 1
        elif ranks[i] < ranks[j]:
            i += 1
        else:
            j += 1
    return common


def greedy_removed(
    num_documents: int, pairs: Pairs, order: Iterable[int], threshold: float, absent: frozenset[int] = frozenset()
) -> set[int]:
    """What a perfect greedy run removes: down `order`, each document with J ≥ `threshold` to a kept earlier one.

    Documents in `absent` are not there.
    """
    strong = pairs.jaccard >= threshold - 1e-12
    neighbours: dict[int, list[int]] = {}
    for a, b in zip(pairs.a[strong].tolist(), pairs.b[strong].tolist(), strict=True):
        neighbours.setdefault(a, []).append(b)
        neighbours.setdefault(b, []).append(a)
    kept = np.zeros(num_documents, np.bool_)
    removed: set[int] = set()
    for d in order:
        if d in absent:
            continue
        if any(kept[n] for n in neighbours.get(d, ())):
            removed.add(d)
        else:
            kept[d] = True
    return removed


class Judge:
    """Scores runs over one corpus against its truth."""

    def __init__(self, folder: Path) -> None:
        self.sets = load(folder)
        self.pairs = all_pairs(self.sets)

    def score(self, removed_ids: Iterable[str]) -> dict[str, float]:
        """Of a run's removals (ids): precision against any kept document, and recall, at J 0.8 and 0.7.

        precision@t = share of the removed that have a *kept* document with J ≥ t;
        recall@t = 1 − what a perfect greedy run still removes from the output ÷ what it removes from the input.
        """
        index = self.sets.index
        removed = frozenset(index[name] for name in removed_ids)
        best_kept = np.zeros(len(self.sets))
        best_any = np.zeros(len(self.sets))
        for a, b, j in zip(self.pairs.a.tolist(), self.pairs.b.tolist(), self.pairs.jaccard.tolist(), strict=True):
            for one, other in ((a, b), (b, a)):
                best_any[one] = max(best_any[one], j)
                if other not in removed:
                    best_kept[one] = max(best_kept[one], j)
        gone = np.array(sorted(removed), np.int64)
        result: dict[str, float] = {"documents": len(self.sets), "removed": len(removed)}
        for t in (0.8, 0.7):
            before = len(greedy_removed(len(self.sets), self.pairs, range(len(self.sets)), t))
            after = len(greedy_removed(len(self.sets), self.pairs, range(len(self.sets)), t, removed))
            result[f"precision@{t}"] = float((best_kept[gone] >= t - 1e-12).mean()) if len(gone) else 1.0
            result[f"recall@{t}"] = 1.0 - after / before if before else 1.0
            result[f"greedy@{t}"] = before
        result["resembling_nothing"] = int((best_any[gone] == 0).sum())
        return result


def score_survivors(sets: ShingleSets, near: Iterable[tuple[str, str]], removed_ids: Iterable[str]) -> dict[str, float]:
    """Of near-duplicate removals as (removed id, survivor's id): true J to the *named* survivor."""
    pairs = list(near)
    jaccard = np.array([sets.jaccard(sets.index[a], sets.index[b]) for a, b in pairs])
    gone = set(removed_ids)
    count = max(1, len(pairs))
    return {
        "near_removals": len(pairs),
        "survivor_wrong@0.8": int((jaccard < 0.8 - 1e-12).sum()),
        "survivor_precision@0.8": float((jaccard >= 0.8 - 1e-12).sum() / count),
        "survivor_below@0.7": float((jaccard < 0.7 - 1e-12).sum() / count),
        "survivors_not_kept": sum(b in gone for _, b in pairs),
    }


def load_some(folder: Path, ids: Iterable[str]) -> ShingleSets:
    """The shingle sets of the documents with these ids, of a folder too large for `load`."""
    wanted = pa.array(sorted(set(ids)), pa.string())
    found: list[pa.RecordBatch] = []
    for shard in parquet_shards(folder):
        batches = pq.ParquetFile(shard).iter_batches(columns=["id", "text"])
        found.extend(batch.filter(pc.is_in(batch.column("id"), wanted)) for batch in batches)
    table = pa.Table.from_batches(found)  # an id that occurs twice stands for its last document
    return parse(table["id"].to_pylist(), (text or "" for text in table["text"].to_pylist()))


def main() -> int:
    parser = argparse.ArgumentParser(description="count the true near-duplicate pairs of a benchmark corpus")
    parser.add_argument("name", nargs="?", default="sub", choices=("sub", "dev"))
    parser.add_argument("--corpus", type=Path, default=DEFAULT_CORPUS, help="folder of the developer shards")
    options = parser.parse_args()
    try:
        judge = Judge(make(options.name, options.corpus))
    except CorpusError as error:
        print(f"bench.truth: {error}", file=sys.stderr)
        return 2
    n = len(judge.sets)
    print(f"{n:,} documents, {len(judge.sets.hashes):,} shingles, {len(judge.pairs.a):,} pairs with J ≥ 0.7")
    for threshold in (0.7, 0.8, 0.9, 1.0):
        count = int((judge.pairs.jaccard >= threshold - 1e-12).sum())
        greedy = len(greedy_removed(n, judge.pairs, range(n), threshold))
        print(f"J ≥ {threshold}: {count:,} pairs, a perfect greedy run removes {greedy:,}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
