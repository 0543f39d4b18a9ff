"""Proof against the input: sampled documents, encoded again by the reference library, are the tokens in the pairs.

Texts are encoded whole here, by the one library that defines the ids, whatever backend wrote them and however it cut
them; decoded, they are the text. The sample is the same on every call. Cost: at most SAMPLE_PIECES pieces of the input,
SAMPLE_GROUPS row groups of provenance, and a second for 400,000 tokens, of which there are at most SAMPLE_TOKENS.
"""

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from taojin.core.corpus import Span
from taojin.core.megatron import IndexedPair
from taojin.core.sidecars import Corpus
from taojin.opened import missing_input, piece_of
from taojin.proofs import BrokenError
from taojin.proofs_of_output import reading
from taojin.proofs_of_pair import Prefix, open_pair
from taojin.proofs_of_tokens import MASK, Tokens
from taojin.report import number
from taojin.tokenize.backends import make_encoder
from taojin.tokenize.documents import KNOWN_FIELDS, Documents, Input, Tally, read_documents
from taojin.tokenize.pieces import EncodeContext
from taojin.tokenize.sequences import Sequences, encode_texts, make_encode

SAMPLE_SEED = 20161  # any fixed number
SAMPLE_PIECES = 32
SAMPLE_GROUPS = 16
SAMPLE_TOKENS = 2_000_000
# Of which as many documents as are wanted are found among few pieces.
_CANDIDATES = 50


class GoneError(Exception):
    """The input is not there any more, or not as it was."""


class Sampled(NamedTuple):
    """A document of the sample. row: its provenance · ordinal: its number among all rows of the input."""

    prefix: Prefix
    row: dict[str, Any]
    ordinal: int


def choose(output: Tokens, corpus: Corpus, sample: int) -> list[Sampled]:
    """`sample` documents, of few pieces and not too many tokens, by ordinal."""
    chooser = random.Random(SAMPLE_SEED)
    groups = []
    for _, prefix in output.pairs():
        with reading(prefix.folder, f"{prefix.name}.parquet") as parquet:
            groups += [(prefix, group) for group in range(parquet.num_row_groups)]
    groups = chooser.sample(groups, min(SAMPLE_GROUPS, len(groups)))
    shards = {shard.path: index for index, shard in enumerate(corpus.plan.shards)}
    candidates: list[Sampled] = []
    for prefix, group in groups:
        with reading(prefix.folder, f"{prefix.name}.parquet") as parquet:
            rows = parquet.read_row_group(group)
            count = min(len(rows), -(-_CANDIDATES * sample // len(groups)))
            for row in rows.take(pa.array(chooser.sample(range(len(rows)), count), pa.int64())).to_pylist():
                ordinal = int(corpus.ordinals.shard_first[shards[row["shard"]]]) + row["row"]
                candidates.append(Sampled(prefix, row, ordinal))
    chooser.shuffle(candidates)
    pieces = piece_of(corpus.ordinals, np.array([document.ordinal for document in candidates], np.int64))
    chosen: list[Sampled] = []
    touched: set[int] = set()
    tokens = 0
    for document, piece in zip(candidates, pieces.tolist(), strict=True):
        if chosen and tokens + document.row["tokens"] > SAMPLE_TOKENS:
            continue
        if piece in touched or len(touched) < SAMPLE_PIECES:
            touched.add(piece)
            chosen.append(document)
            tokens += document.row["tokens"]
        if len(chosen) == sample:
            break
    return sorted(chosen, key=lambda document: document.ordinal)


# ---------------------------------------------------------------------------------------------- the proof


def prove_texts(output: Tokens, context: EncodeContext, corpus: Corpus, sample: int) -> tuple[bool, str]:
    """Sampled documents of the input, encoded again, are the tokens in the pairs; provenance is what it says.

    Raises GoneError where the shards of these documents have changed.
    """
    chosen = choose(output, corpus, sample)
    ordinals = np.array([document.ordinal for document in chosen], np.int64)
    if reason := missing_input(corpus, ordinals):
        raise GoneError(reason)
    comparison = _Comparison(context)
    pieces = piece_of(corpus.ordinals, ordinals)
    for piece in np.unique(pieces).tolist():
        wanted = {d.ordinal: d for d, its in zip(chosen, pieces.tolist(), strict=True) if its == piece}
        for ordinal, documents in _documents_of(context.source, corpus, piece, sorted(wanted)):
            comparison.require_same(wanted.pop(ordinal), documents)
        for document in wanted.values():
            where = document.prefix.file(".parquet")
            raise BrokenError(where, f"{_place(document)}: the input holds no such document to encode")
    detail = (
        f"{number(len(chosen), 'sampled text')} of the input, encoded by the reference, are the tokens in the pairs"
    )
    detail += f" ({comparison.tokens:,})"
    if comparison.decoded:
        detail += f"; decoded, they are the texts ({comparison.decoded:,} bytes)"
    return True, detail


def _documents_of(source: Input, corpus: Corpus, piece: int, wanted: list[int]) -> Iterator[tuple[int, Documents]]:
    """(ordinal, a document alone) of those of a piece that are found."""
    shard = int(np.searchsorted(corpus.ordinals.shard_first_piece, piece, side="right")) - 1
    number_there = piece - int(corpus.ordinals.shard_first_piece[shard])
    span = Span(shard, number_there, number_there + 1)
    first = int(corpus.ordinals.piece_first[piece])
    source = source._replace(plan=source.plan._replace(units=((span,),)))
    for documents in read_documents(source, 0, Tally()):
        for at in np.flatnonzero(np.isin(documents.rows + first, wanted)).tolist():
            alone = documents._replace(
                rows=documents.rows[at : at + 1],
                texts=documents.texts.slice(at, 1),
                columns={name: column.slice(at, 1) for name, column in documents.columns.items()},
            )
            yield first + int(documents.rows[at]), alone
        if documents.rows[-1] + first >= wanted[-1]:
            return


class _Comparison:
    """Compares documents with their pairs, and sums up what was compared."""

    def __init__(self, context: EncodeContext) -> None:
        self.tokens = self.decoded = 0
        self._context = context
        self._pairs: dict[str, IndexedPair] = {}
        plain = context.config.special_in_text == "plain"
        self._encoder = make_encoder(context.tokenizer, "reference", plain)
        self._encode = make_encode(context) if context.config.chat else self._encode_whole

    def _encode_whole(self, documents: Documents) -> Sequences:
        return encode_texts(self._context, self._encoder, None, documents.texts)

    def require_same(self, document: Sampled, documents: Documents) -> None:
        """Raise BrokenError where provenance, tokens, sequences, mask or the decoded text are not the document's."""
        row, prefix = document.row, document.prefix
        for field in KNOWN_FIELDS:
            expected = documents.columns[field.name][0].as_py()
            if row[field.name] != expected and not (
                field.name == "id" and expected is None and row["id"] == _place(document)
            ):
                where = prefix.file(".parquet")
                raise BrokenError(
                    where, f"{_place(document)}: {field.name} {row[field.name]!r}, in the input {expected!r}"
                )
        encoded = self._encode(documents)
        if any(encoded.problems):
            raise BrokenError(prefix.file(".bin"), f"{_place(document)}: {encoded.problems[0]}")
        pair = self._pair(prefix)
        ids = pair.document(row["document"])
        _require_equal(document, prefix, "token", ids, encoded.ids)
        lengths, _ = pair.spans(row["sequence"], row["sequences"])
        _require_equal(document, prefix, "length of sequence", lengths, encoded.lengths)
        if encoded.mask is not None:
            masked = prefix.sibling(prefix.name + MASK)
            _require_equal(
                document, masked, "mask of token", self._pair(masked).document(row["document"]), encoded.mask
            )
        self.tokens += len(ids)
        if self._context.facts.lossless and not self._context.config.chat:
            self._require_text(document, documents.texts[0].as_py().encode(), ids, lengths)

    def _pair(self, prefix: Prefix) -> IndexedPair:
        if prefix.uri not in self._pairs:
            self._pairs[prefix.uri] = open_pair(prefix)
        return self._pairs[prefix.uri]

    def _require_text(self, document: Sampled, text: bytes, found: NDArray[Any], lengths: NDArray[np.int32]) -> None:
        facts = self._context.facts
        if self._context.config.append_eod:
            found = found[:-1]
        sequences = np.split(found, np.cumsum(lengths[:-1]))
        inner = [ids[len(facts.prefix) : len(ids) - len(facts.suffix)] for ids in sequences]
        decoded = self._encoder.decode(np.concatenate(inner).astype(np.uint32))
        if decoded != text:
            where = document.prefix.file(".bin")
            raise BrokenError(where, f"{_place(document)}: decoded, its {len(found):,} tokens are another text")
        self.decoded += len(text)


def _place(document: Sampled) -> str:
    return f"{document.row['shard']}#{document.row['row']}"


def _require_equal(document: Sampled, prefix: Prefix, what: str, found: NDArray[Any], expected: NDArray[Any]) -> None:
    if np.array_equal(found, expected):
        return
    where, which = prefix.file(".bin"), f"document {document.row['document']:,} ({_place(document)})"
    if len(found) != len(expected):
        raise BrokenError(where, f"{which}: {len(found):,} entries of {what}, encoded again {len(expected):,}")
    at = int(np.argmax(found != expected))
    raise BrokenError(where, f"{which}: {what} {at:,} is {found[at]}, encoded again {expected[at]}")
