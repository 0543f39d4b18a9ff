"""The tokens that every step of a training run sees, straight from `.bin/.idx` pairs, without state.

In: pairs, local files, with weights. Out: batches as NumPy arrays, a pure function of (step, rank) through
`taojin.train.order`: the global batch is fixed, so any number of ranks sees the same rows in the same order, and a run
that resumes at step n asks for step n. Nothing is written; no file but the pairs is read, and PREFIX.parquet, wherever
it lies, for `provenance`.

Tokens are gathered from mapped files: a row costs some 30 µs, and about 0.1 ms with 4,096 tokens of 14 documents, whose
pages are looked up. Opening proves the index and makes the order of the first epoch (`order.mark_documents`); every
further epoch does it again when its first sample is asked for: about 0.1 µs a document, and 8 bytes kept for 128.
Batches may be asked for from several threads; to fetch ahead, to move to a device and to shift labels is left to the
loop.

Every id is compared with the vocabulary when it is read; opening a pair looks at a part of it, evenly spread.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from taojin.core.errors import ConfigError, InputError
from taojin.core.megatron import IndexedPair
from taojin.core.storage import Folder
from taojin.core.uris import with_suffix
from taojin.train.order import (
    SPACING,
    Shares,
    epoch_of,
    find_pieces,
    keys_of,
    mark_documents,
    part_of,
    permuted,
    samples_through,
)
from taojin.train.recorded import origins_of

ORDER_FORMAT = 1
# What the keys of permutations are for.
_SPLIT, _DOCUMENTS, _SAMPLES = range(3)
# Looked at when a pair is opened: 0.1 s. The rest is seen when it is read.
_PROBED_BLOCKS = 64
_PROBED_TOKENS = 1 << 20
_PROBED_DOCUMENTS = 10_000
_FINGERPRINT_BYTES = 1 << 20


class Batch(NamedTuple):
    """Rows of a step, of L = sequence_length.

    tokens: int64[rows, L + 1]; inputs are all but the last, targets all but the first · loss_mask: bool[rows, L], the
    targets to learn; None: all · positions: int64[rows, L], from 0 at the start of the row and of every document in it;
    None: documents are not separated.
    """

    tokens: NDArray[np.int64]
    loss_mask: NDArray[np.bool_] | None
    positions: NDArray[np.int64] | None


class Origin(NamedTuple):
    """A stretch of a row that is of one document.

    sample: its number in the run · row: in the batch · begin, tokens: in the row · pair: its prefix · document: its
    number there · origin: shard, row, id and source by PREFIX.parquet; None: there is no such file.
    """

    sample: int
    row: int
    begin: int
    tokens: int
    pair: str
    document: int
    origin: dict[str, Any] | None


class TokenData:
    """Token pairs as an endless, or `epochs` long, list of samples of sequence_length + 1 tokens.

    pairs: (prefix, weight), the weights being shares of the sequences, relative to each other; all None: as many as
    each pair has, so that with `epochs` every pair is read exactly so often. With weights and `epochs`, the data ends
    before any pair would be read more often. A last part of a global batch is left out.
    part: (begin, end) between 0 and 1: only the documents that a shuffle by `seed` puts there: (0, 0.98) is for
    training what (0.98, 1) is for validation. Near-duplicates can be on both sides; the splits of `taojin tokenize`
    keep them together.
    separate_documents: positions begin anew at every document, and its first token is no target of the one before.
    loss_mask: learn what the pairs PREFIX_mask mark, which must be there.
    vocab_size: ids must be below; None: not looked at · ends: of a prefix, the tokens of which every document must end
    with one; others are not looked at · local: where the pair of a prefix lies, if not there.

    Raises ConfigError, and InputError for pairs that are missing, damaged, empty or shorter than a sequence, that are
    not on a local disk, whose ids or ends are not as told, or that hold less than a global batch.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[str, float | None]],
        *,
        sequence_length: int,
        global_batch: int,
        seed: int = 0,
        epochs: float | None = None,
        part: tuple[float, float] = (0.0, 1.0),
        separate_documents: bool = False,
        loss_mask: bool = False,
        vocab_size: int | None = None,
        ends: Mapping[str, Collection[int]] = MappingProxyType({}),
        local: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        _check(pairs, sequence_length, global_batch, epochs, part)
        self.sequence_length = sequence_length
        self.global_batch = global_batch
        self.seed = seed
        self.separate_documents = separate_documents
        self._vocab_size = vocab_size
        self._pairs = [
            _Pair(prefix, local.get(prefix, prefix), number, seed, part, loss_mask)
            for number, (prefix, _) in enumerate(pairs)
        ]
        for pair in self._pairs:
            pair.check(sequence_length, vocab_size, ends.get(pair.name, ()))
        passes = None if epochs is None else Fraction(epochs)
        limits = [samples_through(passes or 1, pair.tokens, sequence_length) for pair in self._pairs]
        given = [weight for _, weight in pairs if weight is not None]
        self.weights: list[int | float] = list(given or (limits if min(limits) else [p.tokens for p in self._pairs]))
        self._shares = Shares(self.weights)
        self.num_samples: int | None = None
        if passes is not None:
            self.num_samples = min(map(self._shares.sample_of, range(len(limits)), limits))
            if self.num_samples < global_batch:
                raise InputError(
                    f"the data has {self.num_samples:,} sequences of {sequence_length:,} tokens in {epochs:g} epochs, "
                    f"expected a global batch of {global_batch:,} or more: give more data, or a smaller batch"
                )

    @property
    def num_steps(self) -> int | None:
        """Full global batches; None: without end."""
        return None if self.num_samples is None else self.num_samples // self.global_batch

    @property
    def tokens(self) -> int:
        """Of one epoch of all pairs."""
        return sum(pair.tokens for pair in self._pairs)

    def identity(self) -> dict[str, Any]:
        """What the order of samples depends on, JSON-like. A checkpoint keeps it; to resume with another would show the
        model some tokens twice and others never."""
        return {
            "order_format": ORDER_FORMAT,
            "sequence_length": self.sequence_length,
            "global_batch": self.global_batch,
            "seed": self.seed,
            "weights": self.weights,
            "pairs": [
                {
                    "tokens": pair.indexed.num_tokens,
                    "documents": pair.indexed.num_documents,
                    "part": list(pair.part),
                    "fingerprint": pair.fingerprint(),
                }
                for pair in self._pairs
            ],
        }

    def passes(self, step: int) -> dict[str, float]:
        """Prefix → how often a pair has been read before this step."""
        counts = self._shares.counts(step * self.global_batch)
        return {
            pair.name: count * self.sequence_length / pair.tokens
            for pair, count in zip(self._pairs, counts, strict=True)
        }

    def batch(self, step: int, rank: int = 0, world: int = 1, micro: int = 0, micros: int = 1) -> Batch:
        """Rows of one step: of `world` data-parallel ranks' this rank's, of them part `micro` of `micros`.

        The parts of all ranks one after another are the rows of the step. Ranks that share a sample (tensor and
        sequence parallel) ask for the same `rank`. Raises ConfigError where the global batch is not divided evenly,
        IndexError where the data is at an end.
        """
        return self.rows(*self._range(step, rank, world, micro, micros))

    def provenance(self, step: int, rank: int = 0, world: int = 1, micro: int = 0, micros: int = 1) -> list[Origin]:
        """The documents of the same rows, in their order. Each may be in another row group of PREFIX.parquet, of which
        one is read in some 0.1 s: ask for as few rows as will do."""
        first, count = self._range(step, rank, world, micro, micros)
        found: list[Origin] = []
        for row in range(count):
            pair, pieces = self._pieces(first + row)
            begin = 0
            for document, _, tokens in pieces.tolist():
                found.append(Origin(first + row, row, begin, tokens, pair.name, document, None))
                begin += tokens
        origins: dict[tuple[str, int], dict[str, Any]] = {}
        for prefix in {origin.pair for origin in found}:
            documents = sorted({origin.document for origin in found if origin.pair == prefix})
            origins |= {(prefix, number): origin for number, origin in origins_of(prefix, documents)}
        return [origin._replace(origin=origins.get((origin.pair, origin.document))) for origin in found]

    def rows(self, first: int, count: int) -> Batch:
        """The samples first … first + count - 1 of the run."""
        width = self.sequence_length + 1
        tokens = np.empty((count, width), np.int64)
        masked = any(pair.mask is not None for pair in self._pairs)
        learnt = np.ones((count, width), np.bool_) if masked or self.separate_documents else None
        positions = np.empty((count, width), np.int64) if self.separate_documents else None
        steps = np.arange(width)
        for row in range(count):
            pair, pieces = self._pieces(first + row)
            ends = np.cumsum(pieces[:, 2])
            begins = ends - pieces[:, 2]
            places = steps + np.repeat(pieces[:, 1] - begins, pieces[:, 2])
            tokens[row] = pair.ids[places]
            if learnt is not None and pair.mask is not None:
                learnt[row] = pair.mask[places]
            if learnt is not None and positions is not None:
                positions[row] = steps - np.repeat(begins, pieces[:, 2])
                learnt[row, begins] = False
        if self._vocab_size is not None and count:
            self._check_ids(first, tokens, self._vocab_size)
        return Batch(
            tokens,
            None if learnt is None else np.ascontiguousarray(learnt[:, 1:]),
            None if positions is None else np.ascontiguousarray(positions[:, :-1]),
        )

    def _pieces(self, sample: int) -> tuple["_Pair", NDArray[np.int64]]:
        source, number = self._shares.of(sample)
        pair = self._pairs[source]
        return pair, pair.pieces(number, self.sequence_length)

    def _range(self, step: int, rank: int, world: int, micro: int, micros: int) -> tuple[int, int]:
        """(first sample, how many)."""
        if not (0 <= rank < world and 0 <= micro < micros):
            raise ConfigError(f"expected rank and part below {world} and {micros}, found {rank} and {micro}")
        count, left = divmod(self.global_batch, world * micros)
        if left:
            raise ConfigError(
                f"global_batch: {self.global_batch} sequences cannot be divided into {micros} parts on {world} ranks"
            )
        if step < 0 or (self.num_steps is not None and step >= self.num_steps):
            raise IndexError(f"step {step:,} of {self.num_steps:,}" if self.num_steps else f"step {step:,}")
        return step * self.global_batch + (rank * micros + micro) * count, count

    def _check_ids(self, first: int, tokens: NDArray[np.int64], vocab_size: int) -> None:
        if tokens.min() >= 0 and tokens.max() < vocab_size:
            return
        row, at = np.argwhere((tokens < 0) | (tokens >= vocab_size))[0].tolist()
        pair, pieces = self._pieces(first + row)
        document = pieces[np.searchsorted(np.cumsum(pieces[:, 2]), at, side="right"), 0]
        raise _outside(pair.name, int(tokens[row, at]), vocab_size, f" in document {document:,}")


class _Pair:
    """One pair, and the order of its documents and samples in every epoch."""

    def __init__(self, name: str, prefix: str, number: int, seed: int, part: tuple[float, float], masked: bool) -> None:
        self.name = name
        self.indexed, self.ids = _open(prefix)
        self.mask = _open_mask(prefix, self.indexed) if masked else None
        self.part = part_of(self.indexed.num_documents, *part)
        if not self.part[1]:
            raise InputError(
                f"{name}: expected documents in the share {part[0]:g} to {part[1]:g} of its "
                f"{self.indexed.num_documents:,}, found none: raise validation_share, or join it to another pair"
            )
        self._seed = seed
        self._number = number
        self._document_indices = self.indexed.document_indices
        self._pointers = self.indexed.pointers
        self._marks: dict[int, NDArray[np.int64]] = {}
        self.tokens = int(self.marks(0)[-1])

    def marks(self, epoch: int) -> NDArray[np.int64]:
        """int64[…]: see `mark_documents`. A row can need two epochs, so the last two are kept."""
        known = self._marks
        marks = known.get(epoch)
        if marks is None:
            marks = np.empty(self.part[1] // SPACING + 2, np.int64)
            wrong = mark_documents(*self._order(epoch), marks, np.empty((3, SPACING), np.int64))
            if wrong >= 0:
                raise InputError(f"{self.indexed.idx.uri}: document {wrong:,} does not lie within the pair: check it")
            nearest = sorted(known, key=lambda other: abs(other - epoch))[:1]
            # A new dictionary: another thread may be reading the old one.
            self._marks = {epoch: marks, **{other: known[other] for other in nearest}}
        return marks

    def pieces(self, sample: int, sequence_length: int) -> NDArray[np.int64]:
        """int64[pieces, 3]: where the tokens of the pair's sample lie, as `find_pieces` says."""
        epoch = epoch_of(sample, self.tokens, sequence_length)
        first = samples_through(epoch, self.tokens, sequence_length)
        count = samples_through(epoch + 1, self.tokens, sequence_length) - first
        place = first + permuted(sample - first, count, self._keys(_SAMPLES, epoch))
        begun, begin = divmod(place * sequence_length, self.tokens)
        pieces = np.empty((sequence_length + 1, 3), np.int64)
        found = self._find(begun, begin, min(sequence_length + 1, self.tokens - begin), pieces)
        over = begin + sequence_length + 1 - self.tokens
        if over > 0:
            found += self._find(begun + 1, 0, over, pieces[found:])
        return pieces[:found]

    def _find(self, epoch: int, begin: int, wanted: int, pieces: NDArray[np.int64]) -> int:
        marks = self.marks(epoch)
        # The last entry is all tokens: no document begins there.
        mark = int(np.searchsorted(marks[:-1], begin, side="right")) - 1
        return int(find_pieces(*self._order(epoch), mark, int(marks[mark]), begin, wanted, pieces))

    def _order(self, epoch: int) -> tuple[Any, ...]:
        """What both kernels take first."""
        pair = self.indexed
        shift = pair.dtype.itemsize.bit_length() - 1
        split = keys_of(self._seed, _SPLIT, self._number)
        keys = self._keys(_DOCUMENTS, epoch)
        return (self._document_indices, self._pointers, pair.num_tokens, shift, *self.part, keys, split)

    def _keys(self, purpose: int, epoch: int) -> NDArray[np.uint64]:
        return keys_of(self._seed, purpose, self._number, epoch)

    def fingerprint(self) -> str:
        """XXH3-64 of both ends of both files: tells pairs of as many tokens and documents apart, in milliseconds."""
        hasher = xxhash.xxh3_64()
        for file in (self.indexed.idx, self.indexed.bin):
            size = min(file.bytes, _FINGERPRINT_BYTES)
            for start in (0, file.bytes - size):
                hasher.update(file.read(start, size, np.dtype(np.uint8)).data)
        if self.mask is not None:
            hasher.update(self.mask[:_FINGERPRINT_BYTES].data)
        return hasher.hexdigest()

    def check(self, sequence_length: int, vocab_size: int | None, ends: Collection[int]) -> None:
        """Raises InputError where the pair cannot serve, as far as a look at a part of it shows."""
        if self.tokens <= sequence_length:
            raise InputError(
                f"{self.name}: expected more tokens than a sequence of {sequence_length:,}, found "
                f"{self.tokens:,}{'' if self.part[1] == self.indexed.num_documents else ' in this part'}: "
                "give shorter sequences, or join it to another pair"
            )
        if vocab_size is not None:
            for block in self._spread_blocks():
                for wrong in (int(block.min()), int(block.max())):
                    if not 0 <= wrong < vocab_size:
                        raise _outside(self.name, wrong, vocab_size)
        if ends:
            self._check_ends(sorted(ends))

    def _spread_blocks(self) -> Iterator[NDArray[Any]]:
        size = max(1, _PROBED_TOKENS // _PROBED_BLOCKS)
        if len(self.ids) <= size * _PROBED_BLOCKS:
            yield self.ids
            return
        for start in np.linspace(0, len(self.ids) - size, _PROBED_BLOCKS).astype(np.int64).tolist():
            yield self.ids[start : start + size]

    def _check_ends(self, expected: list[int]) -> None:
        documents = self.indexed.num_documents
        probed = np.unique(np.linspace(0, documents - 1, min(documents, _PROBED_DOCUMENTS)).astype(np.int64))
        first, end = self._document_indices[probed], self._document_indices[probed + 1]
        probed, end = probed[first < end], end[first < end]
        ends = np.full(len(end), self.indexed.num_tokens)
        inside = end < self.indexed.num_sequences
        ends[inside] = self._pointers[end[inside]] // self.indexed.dtype.itemsize
        last = self.ids[ends - 1]
        wrong = ~np.isin(last, expected)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise InputError(
                f"{self.name}: expected every document to end with the end-of-document token "
                f"{' or '.join(map(str, expected))}, found {last[at]} at the end of document {probed[at]:,}: tokenize "
                "again with append_eod, with the model's tokenizer, or set eod: none to train without"
            )


def _check(
    pairs: Sequence[tuple[str, float | None]],
    sequence_length: int,
    global_batch: int,
    epochs: float | None,
    part: tuple[float, float],
) -> None:
    if not pairs:
        raise ConfigError("data: expected the prefix of a pair or more, found none")
    weights = [weight for _, weight in pairs]
    given = [weight for weight in weights if weight is not None]
    if given and len(given) < len(pairs):
        raise ConfigError("data: expected a weight for every pair or for none")
    for weight in given:
        if not (weight > 0 and math.isfinite(weight)):
            raise ConfigError(
                f"data: expected weights above 0, found {weight}; to read nothing of a pair, leave it out"
            )
    for name, value in (("sequence_length", sequence_length), ("global_batch", global_batch)):
        if value < 1:
            raise ConfigError(f"{name}: expected 1 or more, found {value}")
    if epochs is not None and not (epochs > 0 and math.isfinite(epochs)):
        raise ConfigError(f"epochs: expected a number above 0, found {epochs}")
    if not 0 <= part[0] < part[1] <= 1:
        raise ConfigError(f"part: expected two shares, 0 ≤ begin < end ≤ 1, found {part[0]} and {part[1]}")


def _open(prefix: str) -> tuple[IndexedPair, NDArray[Any]]:
    """The pair and its tokens, a view of the mapped file."""
    if not Folder(prefix).is_local:
        raise InputError(
            f"{prefix}: expected a local pair, found one in an object store: a row is read from many places, each of "
            "which would be a request; copy the pair to a disk, or mount it"
        )
    pair = IndexedPair.open(prefix)
    if pair.num_tokens == 0:
        raise InputError(f"{prefix}: expected tokens, found a pair of {pair.num_documents:,} empty documents")
    return pair, pair.bin.view(0, pair.num_tokens, pair.dtype)


def _open_mask(prefix: str, pair: IndexedPair) -> NDArray[Any]:
    """uint8 per token of the pair. Its documents are the pair's, so its index is not needed."""
    mask, learnt = _open(with_suffix(prefix, "_mask"))
    found = (mask.num_tokens, mask.num_sequences, mask.num_documents, mask.dtype.itemsize)
    if found != (pair.num_tokens, pair.num_sequences, pair.num_documents, 1):
        raise InputError(
            f"{mask.prefix}: expected a byte for each of {pair.num_tokens:,} tokens of {pair.num_documents:,} "
            f"documents, found {mask.num_tokens:,} of {mask.dtype} and {mask.num_documents:,}: it is of another pair"
        )
    return learnt


def _outside(name: str, token: int, vocab_size: int, where: str = "") -> InputError:
    return InputError(
        f"{name}: expected ids below {vocab_size:,}, the vocabulary of the model, found {token:,}{where}: "
        "take the model's own tokenizer, or a model with more embeddings"
    )
