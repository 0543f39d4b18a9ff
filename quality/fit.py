"""Trains the quality classifier of `taojin.quality.classifier` from documents that are good and documents that are bad.

In: two streams of Arrow text arrays. Out: a `Classifier` with a report of counts and accuracy. Nothing on disk.

Documents are kept as 32-bit hashes of their first symbols. Of each class the `max_documents` distinct ones with the
smallest hashes are used, so the sample, the order of training and the result depend on the set of documents alone, not
on files, order or batches. By another hash of the same symbols 80 % train, 10 % validate and 10 % are held out: equal
documents never lie on both sides, and neither do documents that begin alike as far as the classifier reads.

Model: logistic regression on hashed 1- to 3-grams, AdaGrad (Duchi, Hazan, Singer, JMLR 2011), one document a step, on
one thread, both classes weighted to the same total. The pass over the data with the smallest validation loss is kept,
then slope and intercept are fitted to the validation part (Platt, 1999), so that the score can be read as a probability
where good and bad are equally frequent. The held-out part is only looked at for the report.

Cost: 14 s for 75,000 real documents of 170 MB (one core), nearly all of it training: 0.1 µs for each symbol and pass.
Memory: 4 bytes a symbol, so at most 1.6 GB at the default limits, and while a class is read a quarter of it more.
"""

from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from taojin.core.config import Config
from taojin.core.errors import InputError
from taojin.core.fold import load_fold_table
from taojin.core.jit import kernel
from taojin.core.text import SYMBOLS_PER_BYTE, fold_symbols, mix, scratch_for, text_buffers
from taojin.quality.classifier import (
    MAX_BITS,
    MIN_BITS,
    Classifier,
    distinct_buckets,
    hash_symbols,
    logistic,
    present,
    slots_for,
    weigh,
)

Texts: TypeAlias = pa.LargeStringArray | pa.LargeBinaryArray

# Below it the held-out tenth is a handful of documents, and its AUC a matter of luck: with 10 against 10 its standard
# error is about 0.1 (Hanley, McNeil, Radiology 1982, at AUC 0.85).
MIN_DOCUMENTS = 100
# Step size and strength of L2, per touched weight. Measured on pairs of real sources: 0.05 to 0.2 and 0 to 0.0001 give
# the same AUC to 0.01 when training stops at the best pass; larger steps overfit within the first.
LEARNING_RATE = 0.1
L2 = 1e-5
MAX_PASSES = 8
_TINY = 1e-12  # keeps divisions finite; far below any squared gradient that matters
_CONVERGED = 1e-9
_ORDER = 0x9E3779B97F4A7C15
_SPLIT = 0xD1342543DE82EF95
_0 = np.uint64(0)


class FitConfig(Config):
    """What the training of a classifier depends on, besides the documents."""

    bits: Annotated[int, Field(ge=MIN_BITS, le=MAX_BITS)] = 20
    """the model has 2^bits weights of 2 bytes"""
    max_symbols: Annotated[int, Field(ge=10, le=100_000)] = 1000
    """Chinese characters and words read of each document, from its beginning: a book weighs no more than a page. On
    real sources 500, 1000 and 4000 were within 0.001 AUC, and 0.02 where good and bad differed in word order alone"""
    max_documents: Annotated[int, Field(ge=MIN_DOCUMENTS)] = 200_000
    """distinct documents used of each class, drawn by hash"""
    held_out: Annotated[float, Field(ge=0.02, le=0.4)] = 0.1
    """share of the documents that only measure the result; as many choose the best pass"""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """changes the order of training and which documents are held out"""


class Fitted(NamedTuple):
    """classifier.report holds counts, passes, auc, average_precision; warnings: sentences for the user."""

    classifier: Classifier
    warnings: tuple[str, ...]


class _Documents(NamedTuple):
    """keys: uint64[D], a hash of each document's symbols · the hashed symbols of d are hashes[starts[d] : ends[d]];
    starts, ends: int64[D], hashes: uint32[…]."""

    keys: NDArray[np.uint64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    hashes: NDArray[np.uint32]


def fit(good: Iterable[Texts], bad: Iterable[Texts], config: FitConfig) -> Fitted:
    """Train a classifier. Raises InputError when a class has too few distinct documents with text."""
    samples: list[list[_Documents]] = []
    counts: list[dict[str, int]] = []
    for name, arrays in (("good", good), ("bad", bad)):
        sample, count = _read(arrays, config)
        if count["used"] < MIN_DOCUMENTS:
            raise InputError(
                f"--{name}: expected at least {MIN_DOCUMENTS} distinct documents with text, found {count['used']} "
                f"({count['documents']} read, {count['without_text']} without text); give more documents"
            )
        samples.append(sample)
        counts.append(count)
    num_good = counts[0]["used"]
    documents = _joined(samples)
    labels = np.zeros(len(documents.keys), np.float32)
    labels[:num_good] = 1
    warnings = []
    shared = np.intersect1d(documents.keys[:num_good], documents.keys[num_good:]).size
    if shared:
        which = "document is" if shared == 1 else "documents are"
        warnings.append(f"{shared:,} {which} in --good and in --bad: nothing can be learnt from that")

    # The upper half of a fresh hash as a fraction: equal documents are equal here too.
    place = (_mixed(documents.keys, _SPLIT * (config.seed + 1)) >> np.uint64(32)) / 2.0**32
    tested = np.flatnonzero(place < config.held_out)
    validated = np.flatnonzero((place >= config.held_out) & (place < 2 * config.held_out))
    trained = np.flatnonzero(place >= 2 * config.held_out)
    for name, part in (("training", trained), ("validation", validated), ("held-out", tested)):
        if len(np.unique(labels[part])) < 2:
            raise InputError(
                f"--good/--bad: the {name} part holds documents of one class only, its AUC is undefined; give more "
                f"documents (found {num_good} good, {len(labels) - num_good} bad) or raise --held-out"
            )
    weights, bias, passes = _train(documents, labels, trained, validated, config)
    slope, intercept = _calibrate(_margins(documents, validated, weights, bias, config.bits), labels[validated])
    if slope <= 0:
        warnings.append("good and bad cannot be told apart: on the validation part the classifier is worse than chance")
        slope, intercept = 1.0, 0.0
    # Scores are those of the weights as they are stored.
    weights = (weights * np.float32(slope)).astype(np.float16).astype(np.float32)
    bias = slope * bias + intercept
    margins = _margins(documents, tested, weights, bias, config.bits)
    report = {
        "good": counts[0],
        "bad": counts[1],
        "shared": int(shared),
        "trained": len(trained),
        "validated": len(validated),
        "held_out": len(tested),
        "passes": passes,
        "auc": round(auc(margins, labels[tested]), 6),
        "average_precision": round(average_precision(margins, labels[tested]), 6),
        "config": config.model_dump(),
    }
    return Fitted(Classifier(weights, bias, config.bits, config.max_symbols, report), tuple(warnings))


def auc(scores: NDArray[np.floating[Any]], labels: NDArray[np.floating[Any]]) -> float:
    """Probability that a good document (label 1) scores above a bad one (0), ties counted half.

    By the sum of the good documents' ranks (Mann, Whitney, 1947), those of equal scores averaged. Both classes must be
    there.
    """
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    good = float(labels.sum())
    return float((ranks[labels == 1].sum() - good * (good + 1) / 2) / (good * (len(labels) - good)))


def average_precision(scores: NDArray[np.floating[Any]], labels: NDArray[np.floating[Any]]) -> float:
    """Mean over the good documents of the precision at their score: Σ (recall gained at a score) × precision there.

    Documents of equal score enter together. There must be a good one.
    """
    levels, inverse = np.unique(-scores, return_inverse=True)
    good = np.bincount(inverse, labels, len(levels))
    precision = np.cumsum(good) / np.cumsum(np.bincount(inverse, minlength=len(levels)))
    return float((good * precision).sum() / good.sum())


# ---------------------------------------------------------------------------- documents


@kernel
def _fold_documents(
    data: NDArray[np.uint8],
    offsets_D: NDArray[np.int64],
    present_D: NDArray[np.bool_],
    table: NDArray[np.uint32],
    expansions: NDArray[np.uint32],
    max_symbols: int,
    symbols: NDArray[np.uint64],
    keys_D: NDArray[np.uint64],
    ends_D: NDArray[np.int64],
    hashes: NDArray[np.uint32],
) -> None:
    """Hashed symbols of all documents, one behind the other: those of d end at ends_D[d]; keys_D[d] hashes them all.

    Documents that are null, not UTF-8 or fold to nothing have none.
    """
    at = 0
    for d in range(keys_D.size):
        if present_D[d]:
            count, _, valid = fold_symbols(data, offsets_D[d], offsets_D[d + 1], table, expansions, symbols)
            if valid:
                count = min(count, max_symbols)
                hash_symbols(symbols, count, hashes, at)
                key = _0
                for j in range(at, at + count):
                    key = mix(key ^ np.uint64(hashes[j])) + np.uint64(1)
                keys_D[d] = mix(key)
                at += count
        ends_D[d] = at


@kernel
def _copy(source: NDArray[np.uint32], start: int, end: int, out: NDArray[np.uint32], at: int) -> None:
    for j in range(start, end):
        out[at + j - start] = source[j]


@kernel
def _copy_rows(
    source: NDArray[np.uint32],
    starts_D: NDArray[np.int64],
    ends_D: NDArray[np.int64],
    new_ends_D: NDArray[np.int64],
    out: NDArray[np.uint32],
) -> None:
    for d in range(starts_D.size):
        _copy(source, starts_D[d], ends_D[d], out, new_ends_D[d] - ends_D[d] + starts_D[d])


def _chosen(documents: _Documents, rows: NDArray[np.int64]) -> _Documents:
    starts, ends = documents.starts[rows], documents.ends[rows]
    new_ends = np.cumsum(ends - starts)
    hashes = np.empty(int((ends - starts).sum()), np.uint32)
    _copy_rows(documents.hashes, starts, ends, new_ends, hashes)
    return _Documents(documents.keys[rows], new_ends - (ends - starts), new_ends, hashes)


def _read(arrays: Iterable[Texts], config: FitConfig) -> tuple[list[_Documents], dict[str, int]]:
    """The distinct documents with the smallest keys, in parts, and what was read."""
    parts: list[_Documents] = []
    num_held = 0
    limit = np.uint64(0xFFFFFFFFFFFFFFFF)
    counts = {"documents": 0, "without_text": 0}
    for texts in arrays:
        documents = _hashed(texts, config.max_symbols)
        usable = documents.ends > documents.starts
        counts["documents"] += len(texts)
        counts["without_text"] += int(len(texts) - usable.sum())
        parts.append(_chosen(documents, np.flatnonzero(usable & (documents.keys <= limit))))
        num_held += len(parts[-1].keys)
        # A quarter more than needed before the next cut: few cuts, little memory.
        if num_held > config.max_documents + config.max_documents // 4:
            num_held, limit = _cut(parts, config.max_documents)
    return parts, counts | {"used": _cut(parts, config.max_documents)[0]}


def _cut(parts: list[_Documents], number: int) -> tuple[int, np.uint64]:
    """Leave in the parts the `number` distinct documents with the smallest keys; (how many they are, the largest key
    that a further one may have)."""
    if not parts:
        return 0, np.uint64(0)
    keys, rows = np.unique(np.concatenate([part.keys for part in parts]), return_index=True)
    rows = np.sort(rows[:number])
    first = 0
    for p, part in enumerate(parts):
        last = first + len(part.keys)
        parts[p] = _chosen(part, rows[(rows >= first) & (rows < last)] - first)
        first = last
    return len(rows), keys[number - 1] if len(keys) >= number else np.uint64(0xFFFFFFFFFFFFFFFF)


def _joined(samples: list[list[_Documents]]) -> _Documents:
    """All documents of all samples, those of a sample in the order of their keys. Takes the samples apart on the way,
    so that the hashes never lie in memory twice."""
    rows: list[_Documents] = []
    hashes = np.empty(sum(len(part.hashes) for parts in samples for part in parts), np.uint32)
    at = 0
    for parts in samples:
        keys, starts, ends = [], [], []
        while parts:
            part = parts.pop()
            _copy(part.hashes, 0, len(part.hashes), hashes, at)
            keys.append(part.keys)
            starts.append(part.starts + at)
            ends.append(part.ends + at)
            at += len(part.hashes)
        order = np.argsort(np.concatenate(keys))
        rows.append(
            _Documents(np.concatenate(keys)[order], np.concatenate(starts)[order], np.concatenate(ends)[order], hashes)
        )
    return _Documents(
        np.concatenate([part.keys for part in rows]),
        np.concatenate([part.starts for part in rows]),
        np.concatenate([part.ends for part in rows]),
        hashes,
    )


def _hashed(texts: Texts, max_symbols: int) -> _Documents:
    if len(texts) == 0:
        return _Documents(np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint32))
    data, offsets_D = text_buffers(texts)
    lengths_D = np.diff(offsets_D)
    keys_D = np.zeros(len(texts), np.uint64)
    ends_D = np.zeros(len(texts), np.int64)
    hashes = np.empty(int(np.minimum(SYMBOLS_PER_BYTE * lengths_D, max_symbols).sum()), np.uint32)
    table, expansions = load_fold_table()
    _fold_documents(
        data, offsets_D, present(texts), table, expansions, max_symbols, scratch_for(int(lengths_D.max())), keys_D,
        ends_D, hashes,
    )  # fmt: skip
    return _Documents(keys_D, np.concatenate([np.zeros(1, np.int64), ends_D[:-1]]), ends_D, hashes)


# ---------------------------------------------------------------------------- training


@kernel
def _mix_all(values: NDArray[np.uint64]) -> None:
    for d in range(values.size):
        values[d] = mix(values[d])


def _mixed(keys: NDArray[np.uint64], salt: int) -> NDArray[np.uint64]:
    """Another hash of the keys for every salt."""
    values = keys ^ np.uint64(salt % 2**64)
    _mix_all(values)
    return values


@kernel
def _one_pass(
    hashes: NDArray[np.uint32],
    starts_D: NDArray[np.int64],
    ends_D: NDArray[np.int64],
    labels_D: NDArray[np.float32],
    order_T: NDArray[np.int64],
    class_weights: NDArray[np.float64],
    shift: np.uint64,
    learning_rate: float,
    l2: float,
    first_stamp: int,
    slots: NDArray[np.uint64],
    buckets: NDArray[np.uint32],
    weights: NDArray[np.float32],
    squares: NDArray[np.float32],
    bias: NDArray[np.float64],
) -> None:
    """One AdaGrad step per document of order_T. class_weights: [bad, good]; bias: [bias, its sum of squared
    gradients]."""
    for t in range(order_T.size):
        d = order_T[t]
        count = distinct_buckets(hashes, starts_D[d], ends_D[d], shift, first_stamp + t, slots, buckets)
        label = np.float64(labels_D[d])
        error = (logistic(weigh(buckets, count, weights, bias[0])) - label) * class_weights[np.int64(labels_D[d])]
        step = error / np.sqrt(np.float64(count))
        for k in range(count):
            bucket = buckets[k]
            weight = np.float64(weights[bucket])
            gradient = step + l2 * weight
            square = np.float64(squares[bucket]) + gradient * gradient
            squares[bucket] = np.float32(square)
            weights[bucket] = np.float32(weight - learning_rate * gradient / np.sqrt(square + _TINY))
        bias[1] += error * error
        bias[0] -= learning_rate * error / np.sqrt(bias[1] + _TINY)


@kernel
def _margin_documents(
    hashes: NDArray[np.uint32],
    starts_D: NDArray[np.int64],
    ends_D: NDArray[np.int64],
    rows_T: NDArray[np.int64],
    weights: NDArray[np.float32],
    bias: float,
    shift: np.uint64,
    slots: NDArray[np.uint64],
    buckets: NDArray[np.uint32],
    out_T: NDArray[np.float64],
) -> None:
    for t in range(rows_T.size):
        d = rows_T[t]
        count = distinct_buckets(hashes, starts_D[d], ends_D[d], shift, t + 1, slots, buckets)
        out_T[t] = weigh(buckets, count, weights, bias)


def _margins(
    documents: _Documents, rows: NDArray[np.int64], weights: NDArray[np.float32], bias: float, bits: int
) -> NDArray[np.float64]:
    """What the logistic function is taken of, for these documents."""
    margins = np.empty(len(rows), np.float64)
    slots, buckets = slots_for(int((documents.ends - documents.starts).max()))
    shift = np.uint64(64 - bits)
    _margin_documents(
        documents.hashes, documents.starts, documents.ends, rows, weights, bias, shift, slots, buckets, margins
    )  # fmt: skip
    return margins


def _train(
    documents: _Documents,
    labels: NDArray[np.float32],
    trained: NDArray[np.int64],
    validated: NDArray[np.int64],
    config: FitConfig,
) -> tuple[NDArray[np.float32], float, int]:
    """(weights, bias, passes) of the pass after which the validation loss was smallest."""
    weights = np.zeros(1 << config.bits, np.float32)
    squares = np.zeros(1 << config.bits, np.float32)
    bias = np.zeros(2, np.float64)
    slots, buckets = slots_for(int((documents.ends - documents.starts).max()))
    class_weights = _class_weights(labels[trained])
    best: tuple[float, NDArray[np.float32], float, int] = (np.inf, weights, 0.0, 0)
    for number in range(1, MAX_PASSES + 1):
        salt = _ORDER * (config.seed * MAX_PASSES + number)
        # Equal keys (a document in both classes) stay in their order: a stable sort.
        order = trained[np.argsort(_mixed(documents.keys[trained], salt), kind="stable")]
        _one_pass(
            documents.hashes, documents.starts, documents.ends, labels, order, class_weights,
            np.uint64(64 - config.bits), LEARNING_RATE, L2, 1 + (number - 1) * len(order), slots, buckets, weights,
            squares, bias,
        )  # fmt: skip
        loss = _loss(_margins(documents, validated, weights, float(bias[0]), config.bits), labels[validated])
        if loss >= best[0]:
            break
        best = (loss, weights.copy(), float(bias[0]), number)
    return best[1], best[2], best[3]


def _class_weights(labels: NDArray[np.float32]) -> NDArray[np.float64]:
    """[bad, good]: both classes together weigh 1 a document, half each."""
    good = float(labels.mean(dtype=np.float64))
    return np.array([0.5 / (1 - good), 0.5 / good])


def _loss(margins: NDArray[np.float64], labels: NDArray[np.float32]) -> float:
    """Log loss, both classes weighted alike."""
    weights = _class_weights(labels)[labels.astype(np.int64)]
    return float((weights * (np.logaddexp(0, margins) - labels * margins)).mean())


def _calibrate(margins: NDArray[np.float64], labels: NDArray[np.float32]) -> tuple[float, float]:
    """(slope, intercept) that make logistic(slope × margin + intercept) a probability at equal class frequencies.

    Platt's method: a logistic regression on one number, by Newton's method, with his targets that keep a perfectly
    separated sample finite (Platt, "Probabilistic outputs for support vector machines", 1999).
    """
    weights = _class_weights(labels)[labels.astype(np.int64)]
    good = float(labels.sum())
    bad = len(labels) - good
    targets = np.where(labels == 1, (good + 1) / (good + 2), 1 / (bad + 2))

    def loss(slope: float, intercept: float) -> float:
        z = slope * margins + intercept
        return float((weights * (np.logaddexp(0, z) - targets * z)).sum())

    slope, intercept = 1.0, 0.0
    # Sums, no matrix products: those of a threaded library depend on the number of cores in their last bits.
    for _ in range(50):
        probability = 1 / (1 + np.exp(-np.clip(slope * margins + intercept, -40, 40)))
        error = weights * (probability - targets)
        curvature = weights * probability * (1 - probability)
        a = float((curvature * margins * margins).sum()) + _TINY
        b = float((curvature * margins).sum())
        c = float(curvature.sum()) + _TINY
        g, h = float((error * margins).sum()), float(error.sum())
        determinant = max(a * c - b * b, _TINY)
        steps = (c * g - b * h) / determinant, (a * h - b * g) / determinant
        # Halved until the loss falls: plain Newton overshoots on separated samples.
        before = loss(slope, intercept)
        while loss(slope - steps[0], intercept - steps[1]) > before and max(map(abs, steps)) > _CONVERGED:
            steps = steps[0] / 2, steps[1] / 2
        slope, intercept = slope - steps[0], intercept - steps[1]
        if max(map(abs, steps)) < _CONVERGED:
            break
    return slope, intercept
