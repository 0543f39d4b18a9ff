"""Resolve: what the judges found, one row per document that has a duplicate, twins judged with their representatives.

Pure: tables in, table out. A twin follows its representative: to where that stays, or to the document that stays in its
place. Under --keep-none everything that has a verified pair goes, and names the document most similar to it.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from taojin.core.ledger import BY_HASH, EXACT, FOLDED_TEXT, NEAR, RESOLVED_SCHEMA
from taojin.dedup.config import DedupConfig


def resolve(verdicts: pa.Table, twins: pa.Table, num_own: int, config: DedupConfig) -> pa.Table:
    """One row per document that has a duplicate, by ordinal, twins judged with their representatives."""
    document = verdicts.column("document").to_numpy()
    order = np.argsort(document, kind="stable")
    document = document[order]
    survivor = verdicts.column("survivor").to_numpy()[order]
    similarity = verdicts.column("similarity").to_numpy()[order]
    verified = verdicts.column("verified").to_numpy()[order]
    component = verdicts.column("component").to_numpy()[order]
    linked = verdicts.column("linked").to_numpy()[order]
    survivor_id = verdicts.column("survivor_id").combine_chunks().take(pa.array(order))
    keep = survivor == document
    reason = np.where(verified == BY_HASH, FOLDED_TEXT, NEAR).astype(np.uint8)
    if config.keep_none:
        keep &= ~linked

    twin = twins.column("document").to_numpy()
    representative = twins.column("representative").to_numpy()
    at = np.searchsorted(document, representative)
    known = at < len(document)
    known[known] = document[at[known]] == representative[known]
    at = np.where(known, at, 0)
    follows = known & ~keep[at] if len(document) else np.zeros(len(twin), bool)
    if config.keep_none:
        follows &= False
    # Twins follow their representative: to where it stays, or to the document that stays in its place.
    twin_survivor = np.where(follows, survivor[at], representative) if len(document) else representative
    twin_similarity = np.where(follows, similarity[at], 1.0) if len(document) else np.ones(len(twin))
    twin_verified = np.where(follows, verified[at], BY_HASH) if len(document) else np.zeros(len(twin), np.uint8)
    twin_reason = np.where(follows, reason[at], EXACT) if len(document) else np.full(len(twin), EXACT)
    twin_component = np.where(known, component[at], representative) if len(document) else representative
    ids = pa.chunked_array([twins.column("representative_id").combine_chunks(), survivor_id], pa.string())
    twin_id = ids.combine_chunks().take(pa.array(np.where(follows, len(twin) + at, np.arange(len(twin)))))

    # Representatives that nothing else resembles are not among the verdicts yet.
    alone, first_twin = np.unique(representative[~known & (representative < num_own)], return_index=True)
    alone_twin = twin[~known & (representative < num_own)][first_twin]
    alone_survivor = alone_twin if config.keep_none else alone
    columns = {
        "document": np.concatenate([document, twin, alone]),
        "keep": np.concatenate([keep, np.zeros(len(twin), bool), np.full(len(alone), not config.keep_none)]),
        "reason": np.concatenate([reason, twin_reason, np.full(len(alone), EXACT)]).astype(np.uint8),
        "survivor": np.concatenate([survivor, twin_survivor, alone_survivor]),
        "similarity": np.concatenate([similarity, twin_similarity, np.ones(len(alone))]).astype(np.float32),
        "verified": np.concatenate([verified, twin_verified, np.full(len(alone), BY_HASH)]).astype(np.uint8),
        "component": np.concatenate([component, twin_component, alone]),
    }
    ids = pa.chunked_array([survivor_id, twin_id, pa.nulls(len(alone), pa.string())], pa.string())
    _name_components(columns)
    if config.keep_none:
        _drop_kept_twins(columns, twin, representative)
    removed = ~columns["keep"]
    target, sizes = np.unique(columns["survivor"][removed], return_counts=True)
    size = np.ones(len(columns["document"]), np.int64)
    found = np.searchsorted(target, columns["document"])
    match = found < len(target)
    match[match] = target[found[match]] == columns["document"][match]
    size[match] += sizes[found[match]]
    columns["cluster_size"] = np.where(columns["keep"], size, 0)
    order = np.argsort(columns["document"], kind="stable")
    arrays = [
        ids.combine_chunks().take(pa.array(order))
        if field.name == "survivor_id"
        else pa.array(columns[field.name][order]).cast(field.type)
        for field in RESOLVED_SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=RESOLVED_SCHEMA)


def _name_components(columns: dict[str, NDArray[Any]]) -> None:
    """A component is named by its smallest ordinal, twins included."""
    values, inverse = np.unique(columns["component"], return_inverse=True)
    smallest = np.full(len(values), np.iinfo(np.int64).max)
    np.minimum.at(smallest, inverse.reshape(-1), columns["document"])
    columns["component"] = smallest[inverse.reshape(-1)] if len(values) else columns["component"]


def _drop_kept_twins(
    columns: dict[str, NDArray[Any]], twin: NDArray[np.int64], representative: NDArray[np.int64]
) -> None:
    """--keep-none: a representative goes with its twins even where nothing else resembles it."""
    first_of, first_twin = np.unique(representative, return_index=True)
    at = np.searchsorted(first_of, columns["document"])
    match = at < len(first_of)
    match[match] = first_of[at[match]] == columns["document"][match]
    still = match & columns["keep"]
    columns["keep"][still] = False
    columns["reason"][still] = EXACT
    columns["survivor"][still] = twin[first_twin[at[still]]]
    columns["similarity"][still] = 1.0
    columns["verified"][still] = BY_HASH
