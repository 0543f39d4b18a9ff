"""The two small files beside a pair's tokens: Megatron's index, and where every document came from.

In: rows and lengths of the pieces (`taojin.tokenize.pieces`). Out: NAME.idx, and NAME.parquet with a row per document
of the pair, in its order. Both are streamed: memory is a batch of rows.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from taojin.core.corpus import Plan
from taojin.core.errors import InvariantError
from taojin.core.megatron import write_index
from taojin.core.storage import Folder
from taojin.tokenize.merge import Pair, Part

# document, sequence: its number in the pair and that of its first sequence · tokens: with the end-of-document token ·
# row: in its shard · the rest is null where the input does not tell.
PROVENANCE_SCHEMA = pa.schema(
    [
        ("document", pa.int64()),
        ("sequence", pa.int64()),
        ("sequences", pa.int32()),
        ("tokens", pa.int64()),
        ("shard", pa.large_string()),
        ("row", pa.int64()),
        ("id", pa.large_string()),
        ("source", pa.large_string()),
        ("language", pa.large_string()),
        ("cluster", pa.int64()),
        ("component", pa.int64()),
    ]
)
GROUP_ROWS = 262_144
LENGTHS_AT_A_TIME = 1 << 20


class IndexContext(NamedTuple):
    """pieces: their folder · names: of the pieces' files, without suffix · first_rows: int64, row in its shard at which
    each piece of the plan begins, all shards' in order · dtype: of the tokens · ids: whether documents have one."""

    plan: Plan
    pieces: Folder
    names: tuple[str, ...]
    out: Folder
    first_rows: NDArray[np.int64]
    dtype: np.dtype[Any]
    ids: bool


def write_pair_index(context: IndexContext, item: tuple[str, Pair, bool]) -> dict[str, Any]:
    """Write NAME.idx and NAME.parquet, and NAME_mask.idx if asked, of (name, pair, masked)."""
    name, pair, masked = item
    files = {}
    for stem, dtype in ((name, context.dtype), *([(f"{name}_mask", np.dtype(np.uint8))] if masked else [])):
        with context.out.create(f"{stem}.idx") as sink:
            tokens = write_index(
                sink,
                dtype,
                pair.total("sequences"),
                pair.total("documents"),
                lambda: lengths_of(context, pair),
                lambda: (rows.column("sequences").to_numpy() for rows in rows_of(context, pair, ("sequences",))),
            )
            if tokens != pair.total("tokens"):
                raise InvariantError(f"{stem}: {pair.total('tokens'):,} tokens in all, its lengths are {tokens:,}")
            sink.rows = pair.total("sequences")
        files["idx" if stem == name else "mask_idx"] = context.out.entry(f"{stem}.idx", sink).as_json()
    with context.out.create(f"{name}.parquet") as sink:
        write_provenance(sink, provenance_of(context, pair))
        sink.rows = pair.total("documents")
    files["provenance"] = context.out.entry(f"{name}.parquet", sink).as_json()
    return {"documents": pair.total("documents"), "files": files}


def write_provenance(sink: Any, batches: Iterator[pa.RecordBatch]) -> None:
    """Batches of PROVENANCE_SCHEMA as Parquet; document and sequence are numbered here. The bytes do not depend on how
    the rows are cut into batches."""
    repeated = ["shard", "source", "language"]
    with pq.ParquetWriter(sink, PROVENANCE_SCHEMA, compression="zstd", use_dictionary=repeated) as writer:
        held: list[pa.RecordBatch] = []
        rows = document = sequence = 0
        for batch in batches:
            held.append(_numbered(batch, document, sequence))
            document += batch.num_rows
            sequence += pc.sum(batch.column("sequences")).as_py() or 0
            rows += batch.num_rows
            while rows >= GROUP_ROWS:
                table = pa.Table.from_batches(held, PROVENANCE_SCHEMA)
                writer.write_table(table.slice(0, GROUP_ROWS).combine_chunks())
                held, rows = table.slice(GROUP_ROWS).to_batches(), rows - GROUP_ROWS
        if rows:
            writer.write_table(pa.Table.from_batches(held, PROVENANCE_SCHEMA).combine_chunks())


def _numbered(batch: pa.RecordBatch, document: int, sequence: int) -> pa.RecordBatch:
    sequences = batch.column("sequences").to_numpy().astype(np.int64)
    numbers = {
        "document": document + np.arange(batch.num_rows),
        "sequence": sequence + np.cumsum(sequences) - sequences,
    }
    columns = [numbers.get(field.name, batch.column(field.name)) for field in PROVENANCE_SCHEMA]
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=PROVENANCE_SCHEMA)


def provenance_of(context: IndexContext, pair: Pair) -> Iterator[pa.RecordBatch]:
    """Rows of PROVENANCE_SCHEMA; document and sequence are still 0."""
    paths = pa.array([shard.path for shard in context.plan.shards], pa.large_string())
    first_piece = np.cumsum([0, *(len(shard.pieces) for shard in context.plan.shards)])
    for rows in rows_of(context, pair):
        shard, piece = rows.column("shard").to_numpy(), rows.column("piece").to_numpy()
        columns = {name: rows.column(name) for name in rows.schema.names}
        columns["shard"] = paths.take(rows.column("shard"))
        columns["row"] = pa.array(rows.column("row").to_numpy() + context.first_rows[first_piece[shard] + piece])
        columns["document"] = columns["sequence"] = pa.array(np.zeros(len(shard), np.int64))
        if not context.ids:
            place = columns["row"].cast(pa.large_string())
            columns["id"] = pc.binary_join_element_wise(columns["shard"], place, pa.scalar("#", pa.large_string()))
        yield pa.RecordBatch.from_arrays(
            [columns[field.name].cast(field.type) for field in PROVENANCE_SCHEMA], schema=PROVENANCE_SCHEMA
        )


def rows_of(context: IndexContext, pair: Pair, names: tuple[str, ...] = ()) -> Iterator[pa.RecordBatch]:
    """Document rows of a pair in order, all columns or those named."""
    for part in pair.parts:
        yield from document_rows(context.pieces, context.names[part.piece], part.first_document, part.documents, names)


def document_rows(
    pieces: Folder, name: str, first: int, count: int, names: tuple[str, ...] = ()
) -> Iterator[pa.RecordBatch]:
    """Rows [first, first + count) of a piece's documents."""
    with pieces.open(f"{name}.arrow") as file:
        reader = pa.ipc.open_file(file)
        for number in range(reader.num_record_batches):
            if count <= 0:
                return
            batch = reader.get_batch(number)
            if first < batch.num_rows:
                rows = batch.slice(first, count)
                yield rows.select(list(names)) if names else rows
                count -= rows.num_rows
            first = max(0, first - batch.num_rows)


def lengths_of(context: IndexContext, pair: Pair) -> Iterator[NDArray[np.int32]]:
    """Tokens of each sequence of a pair, in order."""
    for part in pair.parts:
        yield from _lengths(context.pieces, context.names[part.piece], part)


def _lengths(pieces: Folder, name: str, part: Part) -> Iterator[NDArray[np.int32]]:
    if not part.sequences:
        return
    with pieces.open(f"{name}.lengths") as file:
        file.seek(part.first_sequence * 4)
        left = part.sequences
        while left:
            count = min(left, LENGTHS_AT_A_TIME)
            yield np.frombuffer(file.read_buffer(count * 4), np.int32)
            left -= count
