"""What a person may call a document: its id, <shard path>#<row>, or its position.

In: a name and a corpus of `taojin.opened`. Out: an ordinal, or an InputError with names near to it.
Cost: of each unit the key range of `ids` that can hold the id, or all ids where `taojin quality` wrote no keys; a wrong
name has the id columns read, of at most NEAR_SEARCHED documents.
"""

import difflib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from taojin.core.errors import InputError
from taojin.core.sidecars import Corpus, gather
from taojin.core.tasks import unit_name
from taojin.core.text import hash_bytes, text_buffers
from taojin.dedup.bands import read_range
from taojin.dedup.config import DedupConfig

# Ids looked at for names near to one that is not there.
NEAR_POOL, NEAR_SEARCHED = 10_000, 1_000_000


def find_document(corpus: Corpus, name: str) -> tuple[int, list[int]]:
    """(ordinal, ordinals of further documents with this id). Raises InputError, with near names, when there is none."""
    plan, _, ordinals, _ = corpus
    named = _with_id(corpus, name)
    if named:
        return named[0], named[1:]
    path, _, number = name.rpartition("#")
    if path and _is_number(number):
        shards = [i for i, shard in enumerate(plan.shards) if shard.path == path]
        shards = shards or [i for i, shard in enumerate(plan.shards) if shard.path.rsplit("/", 1)[-1] == path]
        if len(shards) == 1:
            first, last = ordinals.shard_first[shards[0] : shards[0] + 2].tolist()
            if int(number) < last - first:
                return first + int(number), []
            raise InputError(
                f"{name}: {plan.shards[shards[0]].path} has {last - first:,} documents, rows 0 to {last - first - 1}"
            )
        if shards:
            paths = ", ".join(plan.shards[i].path for i in shards[:3])
            raise InputError(f"{name}: several shards are called so; write one of {paths} in front of #{number}")
    if _is_number(name):
        shard, row = int(name) >> 40, int(name) & ((1 << 40) - 1)
        if shard < len(plan.shards) and row < ordinals.shard_first[shard + 1] - ordinals.shard_first[shard]:
            return int(ordinals.shard_first[shard]) + row, []
    near = _near_names(corpus, name)
    hint = f"; near to it: {', '.join(near)}" if near else ""
    raise InputError(
        f"no document {name!r} in {corpus.view.folder.uri}: expected an id, <shard path>#<row> or a position{hint}"
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20


def _has_ids(corpus: Corpus) -> bool:
    return corpus.config.id_column in corpus.plan.schema.names


def _with_id(corpus: Corpus, name: str) -> list[int]:
    """Ordinals of the documents with this id, from the one key range that can hold it."""
    if not _has_ids(corpus):
        return []
    plan, config, _, view = corpus
    if not isinstance(config, DedupConfig):
        # No keys were written: the columns themselves are looked through.
        found = [np.zeros(0, np.int64)]
        first = 0
        for ids in _ids(corpus):
            found.append(np.flatnonzero(pc.equal(ids, name).fill_null(False).to_numpy(zero_copy_only=False)) + first)
            first += len(ids)
        return [int(ordinal) for ordinal in np.concatenate(found)]
    data, offsets = text_buffers(pa.array([name], pa.large_string()))
    key = np.empty(1, np.uint64)
    hash_bytes(data, offsets, key)
    key_range = int(key[0]) >> (65 - plan.num_ranges.bit_length())
    found = [np.zeros(0, np.int64)]
    for unit in range(len(plan.units)):
        for keys, rows in read_range(view.folder.child("ids"), f"{unit_name(unit)}.arrow", key_range, plan.num_ranges):
            found.append(rows[keys == key[0]].astype(np.int64) + view.unit_first[unit])
    candidates = np.sort(np.concatenate(found))
    if not len(candidates):
        return []
    ids = gather([view], candidates, ("id",))["id"].to_pylist()
    return [ordinal for ordinal, identifier in zip(candidates.tolist(), ids, strict=True) if identifier == name]


def _near_names(corpus: Corpus, name: str) -> list[str]:
    """Up to three names that look like it: those that contain it first."""
    path, _, row = name.rpartition("#")
    containing: list[str] = []
    pool: list[str] = []
    if path:
        close = difflib.get_close_matches(path, [shard.path for shard in corpus.plan.shards], 3, 0.6)
        containing += [f"{shard}#{row}" for shard in close]
    searched = 0
    for ids in _ids(corpus) if _has_ids(corpus) else ():
        hits = ids.filter(pc.match_substring(ids, name, ignore_case=True))
        containing += hits.slice(0, 3).to_pylist()
        pool += ids.slice(0, NEAR_POOL - len(pool)).to_pylist()
        searched += len(ids)
        if len(containing) >= 3 or searched >= NEAR_SEARCHED:
            break
    close = difflib.get_close_matches(name, [entry for entry in pool if entry], 3, 0.6)
    return list(dict.fromkeys([*containing, *close]))[:3]


def _ids(corpus: Corpus) -> Iterator[pa.StringArray]:
    for unit in range(len(corpus.plan.units)):
        with corpus.view.folder.child("scan").open(f"{unit_name(unit)}.arrow") as file:
            reader = pa.ipc.open_file(file)
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number).column("id")
