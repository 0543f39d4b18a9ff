"""Encode a unit: its documents become a piece, tokens on disk with a row about each document.

In: the unit's documents (`taojin.tokenize.documents`). Out, below PREFIX.work/pieces:
  <unit>.bin      token ids, documents one after another, each closed by the end-of-document token
  <unit>.lengths  int32 per sequence: its tokens
  <unit>.arrow    a row per document in the same order, DOCUMENT_FIELDS
  <unit>.mask     uint8 per token, conversations only
A piece is cut into *segments*: consecutive documents that go to the same pair (split, source). With one pair to write,
tokens stream through; otherwise runs of up to RUN_TOKENS are sorted by pair, and by key where documents are shuffled.

As Megatron-LM's tool has it, an empty text is a document without a sequence and without an end.
Memory: a run, its sorted copy, and the backend; whatever the unit's size.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from taojin.core.corpus import Plan
from taojin.core.megatron import token_dtype
from taojin.core.storage import Folder, Sink
from taojin.core.tasks import unit_name
from taojin.tokenize.config import TokenizeConfig
from taojin.tokenize.documents import KNOWN_FIELDS, Documents, Input, Tally, read_documents
from taojin.tokenize.sequences import Sequences, make_encode
from taojin.tokenize.split import assign, component_keys, id_keys, parse_split, place_keys, shuffle_keys
from taojin.tokenize.tokenizer_file import Facts, TokenizerFile

# 64 MB of int32: several of them fit beside a backend in 1.5 GB.
RUN_TOKENS = 16_000_000
DOCUMENT_FIELDS = (
    pa.field("shard", pa.int32()),
    pa.field("piece", pa.int32()),
    pa.field("row", pa.int64()),
    pa.field("tokens", pa.int32()),
    pa.field("sequences", pa.int32()),
    *KNOWN_FIELDS,
)
# Only where documents are shuffled: what they are sorted by, and where their tokens and lengths begin in the piece.
SHUFFLE_FIELDS = (
    pa.field("key", pa.uint64()),
    pa.field("first_token", pa.int64()),
    pa.field("first_sequence", pa.int64()),
)


class EncodeContext(NamedTuple):
    """What every unit is encoded with."""

    source: Input
    work: Folder
    config: TokenizeConfig
    tokenizer: TokenizerFile
    facts: Facts
    backend: str
    chat_template: str = ""

    @property
    def dtype(self) -> np.dtype[Any]:
        return token_dtype(self.facts.vocab_size)

    @property
    def end(self) -> np.uint32:
        """The token that ends a document. A run that wants one and has none is refused before it begins."""
        assert self.facts.eod is not None
        return np.uint32(self.facts.eod)

    @property
    def document_schema(self) -> pa.Schema:
        return pa.schema([*DOCUMENT_FIELDS, *(SHUFFLE_FIELDS if self.config.shuffle else ())])


def encode_unit(context: EncodeContext, unit: int) -> dict[str, Any]:
    """Encode one unit and commit its piece; returns counts, segments and the manifest entries."""
    encode = make_encode(context)
    tally = Tally()
    counts: Counter[str] = Counter()
    by_source: dict[str, list[int]] = {}
    by_language: dict[str, list[int]] = {}
    with PieceWriter(context, context.work.child("pieces"), unit_name(unit)) as writer:
        for documents in read_documents(context.source, unit, tally):
            encoded = encode(documents)
            kept = _without_problems(context.source.plan, documents, encoded.problems, tally)
            tokens = encoded.tokens_of_documents()
            writer.add(_table(context, kept, encoded, tokens), groups_of(context, kept), encoded)
            counts["text_bytes"] += encoded.text_bytes
            counts["ends_in_text"] += encoded.ends_in_text
            counts["empty"] += int((encoded.sequences == 0).sum())
            counts["without_component"] += kept.columns["component"].null_count
            _count(by_source, kept.columns["source"], tokens)
            _count(by_language, kept.columns["language"], tokens)
    return {
        "documents": writer.documents,
        "sequences": writer.sequences,
        "tokens": writer.tokens,
        "bytes": counts["text_bytes"],
        "empty": counts["empty"],
        "ends_in_text": counts["ends_in_text"],
        "without_component": counts["without_component"],
        "removed": tally.left_out.total(),
        "left_out": dict(tally.left_out),
        "problems": tally.problems,
        "repaired": tally.repaired,
        "by_source": by_source,
        "by_language": by_language,
        "pieces": [
            [span.shard, piece, tally.rows[span.shard, piece]]
            for span in context.source.plan.units[unit]
            for piece in range(span.first, span.last)
        ],
        "segments": writer.segments,
        "files": writer.files,
    }


class Groups(NamedTuple):
    """The pairs that documents go to. names: (split, source) · codes: int64 per document, an index into names; None:
    all of them go to the only one."""

    names: list[tuple[str, str]]
    codes: NDArray[np.int64] | None


def groups_of(context: EncodeContext, documents: Documents) -> Groups:
    """The pair of each document, by its split and, with --by-source, its source."""
    config = context.config
    split = parse_split(config.split)
    if len(split.names) == 1 and not config.by_source:
        return Groups([(split.names[0], "")], None)
    codes = np.zeros(len(documents.rows), np.int64)
    if len(split.names) > 1:
        codes += assign(split, config.seed, _split_keys(documents))
    if not config.by_source:
        return Groups([(name, "") for name in split.names], codes)
    sources = pc.fill_null(documents.columns["source"], "").dictionary_encode()
    names = [(name, source) for source in sources.dictionary.to_pylist() for name in split.names]
    return Groups(names, codes + len(split.names) * sources.indices.to_numpy())


def _split_keys(documents: Documents) -> NDArray[np.uint64]:
    """A component is on one side; without one an id, and without that its place, stands for the document."""
    components, ids = documents.columns["component"], documents.columns["id"]
    keys = place_keys(documents.shard, documents.piece, documents.rows)
    if ids.null_count < len(ids) and components.null_count:
        known = ids.is_valid().to_numpy(zero_copy_only=False)
        keys = np.where(known, id_keys(pc.fill_null(ids, "")), keys)
    if components.null_count < len(components):
        known = components.is_valid().to_numpy(zero_copy_only=False)
        keys = np.where(known, component_keys(pc.fill_null(components, 0).to_numpy()), keys)
    return keys


def _without_problems(plan: Plan, documents: Documents, found: Sequence[str | None], tally: Tally) -> Documents:
    """The documents but those that could not be encoded, which the tally has."""
    if not any(found):
        return documents
    reasons = [f"bad_conversation: {problem}" for problem in found if problem is not None]
    bad = np.array([problem is not None for problem in found])
    tally.leave_out(plan, documents.shard, documents.piece, documents.rows[bad], reasons)
    keep = pa.array([problem is None for problem in found])
    return documents._replace(
        rows=documents.rows[keep.to_numpy(zero_copy_only=False)],
        texts=documents.texts.filter(keep),
        columns={name: column.filter(keep) for name, column in documents.columns.items()},
    )


def _table(
    context: EncodeContext, documents: Documents, encoded: Sequences, tokens: NDArray[np.int64]
) -> pa.RecordBatch:
    size = len(documents.rows)
    columns: dict[str, Any] = {
        "shard": np.full(size, documents.shard, np.int32),
        "piece": np.full(size, documents.piece, np.int32),
        "row": documents.rows,
        "tokens": tokens.astype(np.int32),
        "sequences": encoded.sequences,
        **documents.columns,
    }
    if context.config.shuffle:
        columns["key"] = shuffle_keys(context.config.seed, documents.shard, documents.piece, documents.rows)
        columns["first_token"] = columns["first_sequence"] = np.zeros(size, np.int64)  # known once they are sorted
    schema = context.document_schema
    return pa.RecordBatch.from_arrays([pa.array(columns[name]) for name in schema.names], schema=schema)


def _count(totals: dict[str, list[int]], names: pa.Array, tokens: NDArray[np.int64]) -> None:
    """Add documents and tokens by name; those without one by ""."""
    encoded = pc.fill_null(names, "").dictionary_encode()
    codes = encoded.indices.to_numpy()
    documents = np.bincount(codes, minlength=len(encoded.dictionary))
    sums = np.bincount(codes, weights=tokens, minlength=len(encoded.dictionary))
    for name, count, total in zip(encoded.dictionary.to_pylist(), documents.tolist(), sums.tolist(), strict=True):
        entry = totals.setdefault(name, [0, 0])
        entry[0] += count
        entry[1] += int(total)


class PieceWriter:
    """Writes one piece. As a context manager it commits its files, or none of them.

    run_tokens: how much is sorted at a time; None: everything.
    """

    def __init__(self, context: EncodeContext, folder: Folder, name: str, run_tokens: int | None = RUN_TOKENS) -> None:
        self.run_tokens = run_tokens
        self.schema = context.document_schema
        self.dtype = context.dtype
        self.shuffle = context.config.shuffle
        self.folder, self.name = folder, name
        self.documents = self.sequences = self.tokens = 0
        self.segments: list[dict[str, Any]] = []
        self.files: dict[str, Any] = {}
        self.kinds = ["bin", "lengths", "arrow"] + (["mask"] if context.config.chat else [])
        self._held: list[tuple[pa.RecordBatch, Groups, Sequences]] = []
        self._held_tokens = 0
        self._open: _OpenSegment | None = None

    def __enter__(self) -> "PieceWriter":
        self._stack = ExitStack()
        self._sinks: dict[str, Sink] = {
            kind: self._stack.enter_context(self.folder.create(f"{self.name}.{kind}")) for kind in self.kinds
        }
        self._table = self._stack.enter_context(pa.ipc.new_file(self._sinks["arrow"], self.schema))
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is not None:
            self._stack.__exit__(kind, error, traceback)
            return
        with self._stack:
            self._flush()
            self._close_segment()
            for sink in self._sinks.values():
                sink.rows = self.documents
        self.files = {
            kind: self.folder.entry(f"{self.name}.{kind}", sink).as_json() for kind, sink in self._sinks.items()
        }

    def add(self, table: pa.RecordBatch, groups: Groups, encoded: Sequences) -> None:
        """Rows of documents, the pairs they go to, and their tokens, in the same order."""
        if not table.num_rows:
            return
        if groups.codes is None and not self.shuffle:
            self._write(groups.names[0], table, encoded)
            return
        self._held.append((table, groups, encoded))
        self._held_tokens += len(encoded.ids)
        if self.run_tokens is not None and self._held_tokens >= self.run_tokens:
            self._flush()

    def _flush(self) -> None:
        """Sort what is held by pair and key, and write it."""
        if not self._held:
            return
        table = pa.Table.from_batches([table for table, _, _ in self._held]).combine_chunks().to_batches()[0]
        names = sorted({name for _, groups, _ in self._held for name in groups.names})
        group = np.concatenate([_codes_among(names, groups, table.num_rows) for table, groups, _ in self._held])
        encoded = join([encoded for _, _, encoded in self._held])
        self._held, self._held_tokens = [], 0
        order = (
            np.lexsort((table.column("key").to_numpy(), group)) if self.shuffle else np.argsort(group, kind="stable")
        )
        encoded, table, group = take(encoded, table, order), table.take(pa.array(order)), group[order]
        first = 0
        for number, name in enumerate(names):
            last = int(np.searchsorted(group, number, side="right"))
            if first < last:
                self._write(name, table.slice(first, last - first), slice_documents(encoded, table, first, last))
                self._close_segment()
            first = last

    def _write(self, name: tuple[str, str], table: pa.RecordBatch, encoded: Sequences) -> None:
        if self._open is None:
            self._open = _OpenSegment(name)
        if self.shuffle:
            table = self._with_places(table)
        parts: dict[str, NDArray[Any]] = {"bin": encoded.ids, "lengths": encoded.lengths}
        if encoded.mask is not None:
            parts["mask"] = encoded.mask
        for kind, values in parts.items():
            data = np.ascontiguousarray(values).view(np.uint8).data
            self._sinks[kind].write(data)
            self._open.hashes.setdefault(kind, xxhash.xxh3_64()).update(data)
        self._table.write_batch(table)
        for counter, number in (
            ("documents", table.num_rows),
            ("sequences", len(encoded.lengths)),
            ("tokens", len(encoded.ids)),
        ):
            self._open.counts[counter] += number
            setattr(self, counter, getattr(self, counter) + number)

    def _with_places(self, table: pa.RecordBatch) -> pa.RecordBatch:
        for column, counter, total in (
            ("first_token", "tokens", self.tokens),
            ("first_sequence", "sequences", self.sequences),
        ):
            numbers = table.column(counter).to_numpy().astype(np.int64)
            index = table.schema.get_field_index(column)
            first = pa.array(total + np.cumsum(numbers) - numbers)
            table = table.set_column(index, table.schema.field(index), first)
        return table

    def _close_segment(self) -> None:
        if self._open is None:
            return
        self.segments.append(
            {
                "split": self._open.name[0],
                "source": self._open.name[1],
                **self._open.counts,
                "xxh3": {kind: hasher.hexdigest() for kind, hasher in self._open.hashes.items()},
            }
        )
        self._open = None


def _codes_among(names: list[tuple[str, str]], groups: Groups, size: int) -> NDArray[np.int64]:
    codes = np.zeros(size, np.int64) if groups.codes is None else groups.codes
    return np.array([names.index(name) for name in groups.names])[codes]


class _OpenSegment:
    def __init__(self, name: tuple[str, str]) -> None:
        self.name = name
        self.counts: Counter[str] = Counter(documents=0, sequences=0, tokens=0)
        self.hashes: dict[str, xxhash.xxh3_64] = {}


def join(parts: Sequence[Sequences]) -> Sequences:
    """The documents of all parts, one after another."""
    return Sequences(
        ids=np.concatenate([part.ids for part in parts]),
        lengths=np.concatenate([part.lengths for part in parts]),
        sequences=np.concatenate([part.sequences for part in parts]),
        mask=None if parts[0].mask is None else np.concatenate([part.mask for part in parts if part.mask is not None]),
    )


def take(encoded: Sequences, table: pa.RecordBatch, order: NDArray[np.int64]) -> Sequences:
    """The documents in another order. table: their rows, as `encoded` has them."""
    tokens_D = table.column("tokens").to_numpy()
    return Sequences(
        ids=_take_lists(encoded.ids, tokens_D, order),
        lengths=_take_lists(encoded.lengths, encoded.sequences, order),
        sequences=encoded.sequences[order],
        mask=None if encoded.mask is None else _take_lists(encoded.mask, tokens_D, order),
    )


def slice_documents(encoded: Sequences, table: pa.RecordBatch, first: int, last: int) -> Sequences:
    """Documents [first, last). table: the rows of all, in the same order."""
    tokens = np.cumsum(table.column("tokens").to_numpy(), dtype=np.int64)
    sequences = np.cumsum(encoded.sequences, dtype=np.int64)
    begin, end = _before(tokens, first), _before(tokens, last)
    return Sequences(
        ids=encoded.ids[begin:end],
        lengths=encoded.lengths[_before(sequences, first) : _before(sequences, last)],
        sequences=encoded.sequences[first:last],
        mask=None if encoded.mask is None else encoded.mask[begin:end],
    )


def _before(sums: NDArray[np.int64], index: int) -> int:
    return int(sums[index - 1]) if index else 0


def _take_lists(values: NDArray[Any], lengths: NDArray[np.int32], order: NDArray[np.int64]) -> NDArray[Any]:
    """Consecutive lists of these lengths, in another order, flat."""
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    lists = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values))
    return lists.take(pa.array(order)).flatten().to_numpy(zero_copy_only=False)
