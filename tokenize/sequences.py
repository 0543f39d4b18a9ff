"""From documents to sequences of token ids, with what closes them. Pure functions of a batch; no file, no Ray.

A sequence is what Megatron's index counts: a document, or a sentence of one. Sequences without a token are left out, as
Megatron-LM's tool does; the last one of a document carries the end-of-document token.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from taojin.core.errors import InvariantError
from taojin.tokenize.backends import Encoder, make_encoder
from taojin.tokenize.documents import Documents
from taojin.tokenize.long_texts import Cutter, cut_long, rejoin
from taojin.tokenize.tokenizer_file import TokenizerFile

if TYPE_CHECKING:
    from taojin.tokenize.pieces import EncodeContext


class Sequences(NamedTuple):
    """Tokens of consecutive documents.

    ids: flat, in the pair's dtype · lengths: int32 per sequence · sequences: int32 per document · mask: uint8 per
    token, 1 where it is learnt; None: not a conversation · text_bytes: of UTF-8 that was encoded · ends_in_text:
    documents in whose text the end-of-document token stands, of conversations any control token · problems: per
    document given, why it was left out, or None; empty where none was.
    """

    ids: NDArray[Any]
    lengths: NDArray[np.int32]
    sequences: NDArray[np.int32]
    mask: NDArray[np.uint8] | None = None
    text_bytes: int = 0
    ends_in_text: int = 0
    problems: Sequence[str | None] = ()

    def tokens_of_documents(self) -> NDArray[np.int64]:
        """int64 per document."""
        sums = np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])
        last = np.cumsum(self.sequences, dtype=np.int64)
        return sums[last] - sums[last - self.sequences]


def make_encode(context: "EncodeContext") -> Callable[[Documents], Sequences]:
    """What turns a batch of documents into sequences. The tokenizer is loaded once per process."""
    if context.config.chat:
        return _chat(context)
    encoder = make_encoder(context.tokenizer, context.backend, context.config.special_in_text == "plain")
    cutter = _cutter(context.tokenizer)
    return lambda documents: encode_texts(context, encoder, cutter, documents.texts)


def _cutter(file: TokenizerFile) -> Cutter | None:
    if file.kind == "json":
        return Cutter.of(file.data)
    if file.kind == "tiktoken":
        return Cutter.of_ranks(file.data, file.pattern, tuple(text for text, _ in file.specials))
    return None


def encode_texts(
    context: "EncodeContext", encoder: Encoder, cutter: Cutter | None, texts: pa.LargeStringArray
) -> Sequences:
    """Sequences of texts: valid UTF-8, no nulls."""
    config, facts = context.config, context.facts
    sentences, sentences_D = texts, np.ones(len(texts), np.int32)
    if config.level == "sentence":
        from taojin.tokenize.sentences import cut_sentences

        sentences, sentences_D = cut_sentences(texts)
    parts, parts_S = (sentences, None) if cutter is None else cut_long(sentences, cutter)
    tokens = encoder.encode(parts)
    offsets = tokens.offsets if parts_S is None else rejoin(tokens.offsets, parts_S)
    lengths = np.diff(offsets)
    ends_in_text = _ends_in_text(context, texts, tokens.ids, offsets, sentences_D)
    inserted = len(facts.prefix) + len(facts.suffix)
    filled = lengths + inserted > 0
    ends = _last_filled(filled, sentences_D) if config.append_eod else np.zeros(0, np.int64)
    ids = _closed(context, tokens.ids, offsets, ends)
    lengths += inserted
    lengths[ends] += 1
    document_of = np.repeat(np.arange(len(texts)), sentences_D)
    return Sequences(
        ids=as_dtype(ids, context.dtype, facts.vocab_size, context.tokenizer.path),
        lengths=lengths[filled].astype(np.int32),
        sequences=np.bincount(document_of[filled], minlength=len(texts)).astype(np.int32),
        text_bytes=int(pc.sum(pc.binary_length(texts)).as_py() or 0),
        ends_in_text=ends_in_text,
    )


def _ends_in_text(
    context: "EncodeContext",
    texts: pa.LargeStringArray,
    ids: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    sentences_D: NDArray[np.int32],
) -> int:
    """Documents whose text holds the end-of-document token: encoded, a border in the middle of a document."""
    if not context.facts.eod_token:  # none, or a number that the vocabulary leaves free
        return 0
    if context.config.special_in_text == "plain":
        return int(pc.sum(pc.match_substring(texts, context.facts.eod_token)).as_py() or 0)
    places = np.flatnonzero(ids == context.facts.eod)
    if not len(places):
        return 0
    sentence = np.searchsorted(offsets, places, side="right") - 1
    return len(np.unique(np.searchsorted(np.cumsum(sentences_D), sentence, side="right")))


def _last_filled(filled: NDArray[np.bool_], sentences_D: NDArray[np.int32]) -> NDArray[np.int64]:
    """Of each document that has a filled sentence, the last one's number."""
    numbers = np.flatnonzero(filled)
    document = np.searchsorted(np.cumsum(sentences_D), numbers, side="right")
    last = np.flatnonzero(np.diff(document, append=-1))
    return numbers[last]


def _closed(
    context: "EncodeContext", ids: NDArray[np.uint32], offsets: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.uint32]:
    """The ids with what the tokenizer puts around every sequence, and the end behind those that end a document."""
    prefix, suffix = context.facts.prefix, context.facts.suffix
    places = [np.repeat(offsets[:-1], len(prefix))] if prefix else []
    values = [np.tile(np.array(prefix, np.uint32), len(offsets) - 1)] if prefix else []
    if suffix:
        places.append(np.repeat(offsets[1:], len(suffix)))
        values.append(np.tile(np.array(suffix, np.uint32), len(offsets) - 1))
    if len(ends) and not prefix and not suffix:
        return np.insert(ids, offsets[ends + 1], context.end)
    if not places:
        return ids
    # Of several insertions at one place the order is: end of the sequence before, then the start of this one.
    ranks = [np.repeat(np.arange(len(offsets) - 1) * 3 + 2, len(prefix))] if prefix else []
    ranks += [np.repeat(np.arange(len(offsets) - 1) * 3 + 3, len(suffix))] if suffix else []
    if len(ends):
        places.append(offsets[ends + 1])
        values.append(np.full(len(ends), context.end))
        ranks.append(ends * 3 + 4)
    order = np.argsort(np.concatenate(ranks), kind="stable")
    return np.insert(ids, np.concatenate(places)[order], np.concatenate(values)[order])


def as_dtype(ids: NDArray[np.uint32], dtype: np.dtype[Any], vocab_size: int, name: str) -> NDArray[Any]:
    """The ids in the pair's dtype; raises InvariantError for one outside the vocabulary."""
    if len(ids) and int(ids.max()) >= vocab_size:
        raise InvariantError(f"{name}: expected ids below {vocab_size:,}, its vocabulary, found {int(ids.max()):,}")
    return ids.view(np.int32) if dtype == np.int32 else ids.astype(dtype)


def _chat(context: "EncodeContext") -> Callable[[Documents], Sequences]:
    from taojin.tokenize.chat import ChatEncoder

    config = context.config
    encoder = ChatEncoder(context.tokenizer, context.chat_template, config.train_on, date=config.chat_date)
    prompt = config.prompt_column or ""

    def encode(documents: Documents) -> Sequences:
        masked, problems = encoder.encode(conversations(documents, prompt))
        good = np.array([problem is None for problem in problems], bool)
        lengths = np.diff(masked.offsets)
        ids, mask, ends = masked.ids, masked.mask, np.flatnonzero(good & (lengths > 0))
        if context.config.append_eod:
            # A template that closes its last answer with this very token has already ended the document.
            ends = ends[ids[masked.offsets[ends + 1] - 1] != context.facts.eod]
            places = masked.offsets[ends + 1]
            # Whoever learns the last word learns to stop behind it.
            ids = np.insert(ids, places, context.end)
            mask = np.insert(mask, places, mask[places - 1])
            lengths[ends] += 1
        assert not lengths[~good].any(), "a record with a problem has no tokens"
        return Sequences(
            ids=as_dtype(ids, context.dtype, context.facts.vocab_size, context.tokenizer.path),
            lengths=lengths[good & (lengths > 0)].astype(np.int32),
            sequences=(lengths[good] > 0).astype(np.int32),
            mask=mask,
            text_bytes=int(documents.texts.filter(pa.array(good)).nbytes),
            ends_in_text=int((masked.spelled > 0).sum()),
            problems=problems,
        )

    return encode


def conversations(documents: Documents, prompt: str) -> list[dict[str, Any]]:
    """Records as `taojin.tokenize.chat` takes them. Of JSONL, fields without a column are in `extra`, as JSON."""
    records = []
    columns = {name: _values(documents.columns[name]) for name in ("prompt", "extra", "tools", "system")}
    for row, value in enumerate(_values(documents.texts)):
        extra = _loaded(columns["extra"][row])
        record = extra if isinstance(extra, dict) else {}
        record |= {name: columns[name][row] for name in ("tools", "system") if columns[name][row] is not None}
        record["tools"] = _loaded(record.get("tools"))
        if prompt:
            asked = columns["prompt"][row]
            record |= {"prompt": record.get(prompt) if asked is None else asked, "response": value, "messages": None}
        else:
            record["messages"] = _loaded(value)
        records.append(record)
    return records


def _values(column: pa.Array) -> list[Any]:
    """As Python has them; one with bytes that are no UTF-8 is something that is no conversation."""
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        return [_value(scalar) for scalar in column]


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return {"text": "is not UTF-8"}


def _loaded(value: Any) -> Any:
    """Messages of JSONL, and of Parquet columns that hold JSON, are text."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value
