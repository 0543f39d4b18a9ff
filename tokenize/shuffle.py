"""Shuffle: pieces by unit become pieces by key, in bounded memory.

In: PREFIX.work/pieces, whose segments are sorted by the documents' keys. Out: PREFIX.work/shuffled, pieces of the same
form, one for each range of keys, so that one after another they are all documents in the order of their keys. The keys
depend on the seed and the place in the input alone (`taojin.tokenize.split`).
Every bucket reads a contiguous range of every segment: large reads, as long as there are more tokens than buckets².
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from taojin.core.storage import Folder
from taojin.core.tasks import unit_name
from taojin.tokenize.pieces import RUN_TOKENS, EncodeContext, Groups, PieceWriter
from taojin.tokenize.sequences import Sequences


class ShuffleContext(NamedTuple):
    """segments: of every unit's piece, (split, source) of its segments in order."""

    encode: EncodeContext
    segments: tuple[tuple[tuple[str, str], ...], ...]
    buckets: int


def num_buckets(tokens: int) -> int:
    """So many that one holds about a run of tokens."""
    return max(1, -(-tokens // RUN_TOKENS))


def shuffle_bucket(context: ShuffleContext, bucket: int) -> dict[str, Any]:
    """Write the piece of one range of keys."""
    pieces = context.encode.work.child("pieces")
    # One run, whatever is in it: only then is the whole range in order.
    writer = PieceWriter(context.encode, context.encode.work.child("shuffled"), unit_name(bucket), run_tokens=None)
    with writer:
        for unit, names in enumerate(context.segments):
            for name, table, encoded in _in_bucket(pieces, unit, names, bucket, context):
                writer.add(table, Groups([name], None), encoded)
    return {
        "documents": writer.documents,
        "sequences": writer.sequences,
        "tokens": writer.tokens,
        "segments": writer.segments,
        "files": writer.files,
    }


def range_of_keys(table: pa.RecordBatch, bucket: int, buckets: int) -> tuple[int, int]:
    """The rows whose keys, ascending uint64, fall to a bucket: first, and behind the last."""
    keys = table.column("key").to_numpy()
    borders = [number * 2**64 // buckets for number in (bucket, bucket + 1)]
    first, last = (len(keys) if key == 2**64 else int(np.searchsorted(keys, np.uint64(key))) for key in borders)
    return first, last


def _in_bucket(
    pieces: Folder, unit: int, names: tuple[tuple[str, str], ...], bucket: int, context: ShuffleContext
) -> Iterator[tuple[tuple[str, str], pa.RecordBatch, Sequences]]:
    with pieces.open(f"{unit_name(unit)}.arrow") as file:
        reader = pa.ipc.open_file(file)
        assert reader.num_record_batches == len(names), "a segment is one batch where documents are shuffled"
        for number, name in enumerate(names):
            batch = reader.get_batch(number)
            first, last = range_of_keys(batch, bucket, context.buckets)
            if first == last:
                continue
            table = batch.slice(first, last - first)
            tokens = _span(table, "first_token", "tokens")
            sequences = _span(table, "first_sequence", "sequences")
            masked = context.encode.config.chat
            yield (
                name,
                table,
                Sequences(
                    ids=_read(pieces, unit, "bin", context.encode.dtype, *tokens),
                    lengths=_read(pieces, unit, "lengths", np.dtype(np.int32), *sequences),
                    sequences=table.column("sequences").to_numpy(),
                    mask=_read(pieces, unit, "mask", np.dtype(np.uint8), *tokens) if masked else None,
                ),
            )


def _span(table: pa.RecordBatch, first: str, count: str) -> tuple[int, int]:
    starts, counts = table.column(first), table.column(count)
    return starts[0].as_py(), starts[-1].as_py() + counts[-1].as_py()


def _read(pieces: Folder, unit: int, kind: str, dtype: np.dtype[Any], first: int, last: int) -> NDArray[Any]:
    with pieces.open(f"{unit_name(unit)}.{kind}") as file:
        file.seek(first * dtype.itemsize)
        return np.frombuffer(file.read_buffer((last - first) * dtype.itemsize), dtype)
