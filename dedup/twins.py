"""Twins: documents with the same bytes. They are settled before near-duplicates, so that only one of each takes part
there.

Of equal texts the first in survivor order represents the others; if it goes, they go with it.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from taojin.core.sidecars import gather
from taojin.core.tasks import unit_name
from taojin.dedup.order import order_columns, ranks, survivor_order
from taojin.dedup.pairs import PairContext, buckets, read_keys

TWIN_SCHEMA = pa.schema([("document", pa.int64()), ("representative", pa.int64()), ("representative_id", pa.string())])


def twin_range(context: PairContext, key_range: int) -> dict[str, Any]:
    """Twins of one key range → twins/<range>.arrow, by document; counts ids that occur more than once."""
    members, _ = buckets(*read_keys(context, "exact", key_range))
    documents = np.sort(members)
    columns = gather(context.works, documents, ("exact", "id", *order_columns(context.config, context.works)))
    num_own = context.works[0].num_documents
    order = survivor_order(columns, documents, num_own, context.config.source_priority)
    rank = ranks(order)
    # The key is half of the hash: group by all of it.
    halves = np.ascontiguousarray(columns["exact"]).view(np.uint64).reshape(-1, 2)
    by_hash = np.lexsort((rank, halves[:, 1], halves[:, 0]))
    new = np.ones(len(by_hash), bool)
    new[1:] = (halves[by_hash[1:]] != halves[by_hash[:-1]]).any(axis=1)
    representative = by_hash[np.flatnonzero(new)[np.cumsum(new) - 1]] if len(by_hash) else by_hash
    is_twin = ~new & (documents[by_hash] < num_own)
    document, first = documents[by_hash[is_twin]], representative[is_twin]
    ordered = np.argsort(document)
    document, first = document[ordered], first[ordered]
    batch = pa.record_batch([document, documents[first], columns["id"].take(pa.array(first))], schema=TWIN_SCHEMA)
    name = f"{unit_name(key_range)}.arrow"
    folder = context.folder.child("twins")
    with folder.create(name) as sink:
        with pa.ipc.new_file(sink, TWIN_SCHEMA) as writer:
            writer.write_batch(batch)
        sink.rows = len(document)
    return {
        "removed": len(document),
        "duplicate_ids": count_repeats(read_keys(context._replace(works=context.works[:1]), "ids", key_range)[0]),
        "files": {"twins": folder.entry(name, sink).as_json()},
    }


def count_repeats(keys: NDArray[np.uint64]) -> int:
    return int(len(keys) - len(np.unique(keys)))
