"""Survivors: inside each component, down the survivor order, a document goes only if a document that stays resembles
it.

A candidate survivor is, in this order: one that a pair links to the document; the survivor of a removed one that a pair
links to it; any other survivor of the component, as long as it has at most SMALL of them. So every removal rests on a
comparison with the very document that stays in its place.

`sketch` verification decides by the estimate. One candidate at true J = 0.75 passes 0.8 with probability 0.001 (1,024
bins), but the best of many does more often: where a document was compared with more than FEW in vain
and the acceptance is within 2.5 standard errors of the threshold, its component is judged again with exact shingles
deciding the borderline. `exact` verification settles every pair by
shingles.

Suffixes: _N documents of the group in survivor order, _E pairs, _W words of a sketch.
"""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from taojin.core.jit import kernel
from taojin.core.ledger import BY_EXACT, BY_HASH, BY_SKETCH
from taojin.core.sidecars import WorkView, gather
from taojin.core.status import FOLDED
from taojin.core.storage import Folder
from taojin.core.tasks import unit_name
from taojin.dedup.clusters import connected_components
from taojin.dedup.config import DedupConfig
from taojin.dedup.order import order_columns, ranks, survivor_order
from taojin.dedup.pairs import read_columns, resemblance, sketch_words_of
from taojin.dedup.shingles import intersection_size
from taojin.dedup.sketch import standard_error

SMALL = 64
FEW = 32
BORDERLINE_ERRORS = 2.5
CAUTION_ERRORS = 0.3


VERDICT_SCHEMA = pa.schema(
    [
        ("document", pa.int64()),
        ("survivor", pa.int64()),  # an ordinal; the document's own when it stays
        ("similarity", pa.float32()),
        ("verified", pa.uint8()),
        ("component", pa.int64()),  # smallest ordinal of what verified pairs link
        ("linked", pa.bool_()),  # has a verified pair at all
        ("id", pa.string()),
    ]
)


class GroupContext(NamedTuple):
    """`settled`: the shingle files of these documents are there, and decide (all pairs, or the borderline)."""

    works: tuple[WorkView, ...]
    config: DedupConfig
    folder: Folder
    groups: str
    settled: bool


@kernel
def jaccard(i: int, j: int, set_starts_N: NDArray[np.int64], sets: NDArray[np.uint64]) -> float:
    a = sets[set_starts_N[i] : set_starts_N[i + 1]]
    b = sets[set_starts_N[j] : set_starts_N[j + 1]]
    shared = intersection_size(a, b)
    union = a.size + b.size - shared
    return shared / union if union else 0.0


@kernel
def similarity(
    i: int,
    j: int,
    value: float,
    sketch_NW: NDArray[np.uint64],
    status_N: NDArray[np.uint8],
    packed: bool,
    settle_above: float,
    settle_below: float,
    set_starts_N: NDArray[np.int64],
    sets: NDArray[np.uint64],
) -> tuple[float, int]:
    """(similarity, how it is known). `value`: its estimate, < 0 where there is none yet. Exact in the settled band."""
    if value < 0:
        value = resemblance(sketch_NW, status_N, packed, i, j)
    if status_N[i] == FOLDED:
        return value, BY_HASH
    if settle_above <= value and value < settle_below:
        return jaccard(i, j, set_starts_N, sets), BY_EXACT
    return value, BY_SKETCH


@kernel
def judge(
    component_N: NDArray[np.int64],
    is_index_N: NDArray[np.bool_],
    rejected_N: NDArray[np.int64],
    link_starts_N: NDArray[np.int64],
    links: NDArray[np.int64],
    link_value: NDArray[np.float64],
    sketch_NW: NDArray[np.uint64],
    status_N: NDArray[np.uint8],
    threshold: float,
    packed: bool,
    settle_above: float,
    settle_below: float,
    set_starts_N: NDArray[np.int64],
    sets: NDArray[np.uint64],
    survivor_N: NDArray[np.int64],
    similarity_N: NDArray[np.float64],
    verified_N: NDArray[np.uint8],
    compared_N: NDArray[np.int64],
) -> None:
    """Greedy run in survivor order (index order). Fills survivor_N (own index when it stays), similarity_N, verified_N,
    and compared_N: candidates that were compared in vain, those of the buckets included."""
    num_documents = component_N.size
    chain = np.full(num_documents, -1, np.int64)  # previous survivor of the same component
    newest = np.full(num_documents, -1, np.int64)  # newest survivor, by component
    num_survivors = np.zeros(num_documents, np.int64)
    tried = np.full(num_documents, -1, np.int64)
    for i in range(num_documents):
        survivor_N[i] = i
        similarity_N[i] = 1.0
        compared_N[i] = rejected_N[i]
        component = component_N[i]
        best = -1
        best_similarity = -1.0
        best_verified = BY_SKETCH
        if not is_index_N[i]:
            for stage in range(3):
                if best >= 0:
                    break
                if stage < 2:
                    for link in range(link_starts_N[i], link_starts_N[i + 1]):
                        j = links[link]
                        known = link_value[link]
                        if stage == 1:
                            if j >= i or survivor_N[j] == j:
                                continue
                            j = survivor_N[j]
                            known = -1.0
                        if j >= i or survivor_N[j] != j or tried[j] == i:
                            continue
                        tried[j] = i
                        value, verified = similarity(
                            i, j, known, sketch_NW, status_N, packed, settle_above, settle_below, set_starts_N, sets
                        )
                        if value >= threshold:
                            if value > best_similarity or (value == best_similarity and j < best):
                                best, best_similarity, best_verified = j, value, verified
                        elif stage == 1:
                            compared_N[i] += 1
                elif num_survivors[component] <= SMALL:
                    j = newest[component]
                    while j >= 0:
                        if tried[j] != i:
                            # -1.0: an integer here would compile `similarity` a second time.
                            value, verified = similarity(
                                i, j, -1.0, sketch_NW, status_N, packed, settle_above, settle_below, set_starts_N, sets
                            )  # fmt: skip
                            if value >= threshold:
                                if value > best_similarity or (value == best_similarity and j < best):
                                    best, best_similarity, best_verified = j, value, verified
                            else:
                                compared_N[i] += 1
                        j = chain[j]
        if best >= 0:
            survivor_N[i] = best
            similarity_N[i] = best_similarity
            verified_N[i] = best_verified
        else:
            chain[i] = newest[component]
            newest[component] = i
            num_survivors[component] += 1


def settled_band(config: DedupConfig, settled: bool) -> tuple[float, float]:
    """Estimates in [above, below) are replaced by exact similarity. Empty when nothing is settled."""
    if not settled:
        return 2.0, 2.0
    if config.verify == "exact":
        return 0.0, 2.0
    return config.threshold, borderline(config)


def accept_from(config: DedupConfig, settled: bool) -> float:
    """Similarity from which a document goes.

    An estimate must exceed the threshold by CAUTION_ERRORS standard errors: a document removed in error is lost, a
    duplicate missed is not. On 75,472 real documents that took a third of the wrong removals away (41 → 27 of 3,100)
    and 0.005 of the recall (0.994 → 0.989).
    """
    if settled:
        return config.threshold
    return min(1.0, config.threshold + CAUTION_ERRORS * standard_error(config.threshold, config))


def borderline(config: DedupConfig) -> float:
    return config.threshold + BORDERLINE_ERRORS * standard_error(config.threshold, config)


def judge_group(context: GroupContext, group: int) -> dict[str, Any]:
    """Judge the components of one group → <groups>-verdicts/<group>.arrow; lists those that want exact shingles."""
    works, config, folder, groups, settled = context
    a, b, estimated, rejections = read_group(folder, groups, group)
    documents = np.unique(np.concatenate([a, b]))
    num_own = works[0].num_documents
    columns = gather(works, documents, ("sketch", "status", "id", *order_columns(config, works)))
    order = survivor_order(columns, documents, num_own, config.source_priority)
    rank = ranks(order)
    ranked = documents[order]
    left, right = rank[np.searchsorted(documents, a)], rank[np.searchsorted(documents, b)]
    component_N = connected_components(len(ranked), left, right)
    starts, links, link_value = adjacency(len(ranked), left, right, estimated)
    sketch = sketch_words_of(columns, order)
    status = columns["status"][order]
    is_index = ranked >= num_own
    set_starts, sets = np.zeros(len(ranked) + 1, np.int64), np.zeros(0, np.uint64)
    if settled:
        set_starts, sets = load_sets(works, folder, groups, ranked)
    survivor = np.empty(len(ranked), np.int64)
    value = np.empty(len(ranked), np.float64)
    verified = np.zeros(len(ranked), np.uint8)
    compared = np.empty(len(ranked), np.int64)
    judge(
        component_N, is_index, rejections[order], starts, links, link_value, sketch, status,
        accept_from(config, settled), config.sketch == "fast", *settled_band(config, settled), set_starts, sets,
        survivor, value, verified, compared,
    )  # fmt: skip
    removed = survivor != np.arange(len(ranked))
    wanting = np.zeros(0, np.int64)
    if not settled and config.verify == "sketch":
        unsure = removed & (compared > FEW) & (value < borderline(config)) & (status != FOLDED)
        wanting = np.unique(component_N[unsure])
    judged = ~np.isin(component_N, wanting)
    verified_pair, values = pair_similarities(config, settled, left, right, estimated, sketch, status, set_starts, sets)
    component, linked = final_components(ranked, left, right, verified_pair, survivor, num_own)
    if config.keep_none:
        how = BY_EXACT if config.verify == "exact" else BY_SKETCH
        verified = np.where(removed, verified, np.where(status == FOLDED, BY_HASH, how)).astype(np.uint8)
        survivor, value = best_partners(
            survivor, value, left[verified_pair], right[verified_pair], values[verified_pair]
        )
    table = pa.table(
        [
            ranked, ranked[survivor], value.astype(np.float32), verified, component, linked,
            columns["id"].take(pa.array(order)),
        ],
        schema=VERDICT_SCHEMA,
    ).filter(pa.array(judged & ~is_index))  # fmt: skip
    table = table.append_column("survivor_id", columns["id"].take(pa.array(order[survivor[judged & ~is_index]])))
    table = table.sort_by("document").combine_chunks()
    name = f"{unit_name(group)}.arrow"
    with folder.child(f"{groups}-verdicts").create(name) as sink:
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        sink.rows = len(table)
    unsettled = np.isin(component_N[left], wanting)
    with folder.child(f"{groups}-unsettled").create(name) as rest:
        np.save(rest, np.column_stack([a[unsettled], b[unsettled], estimated[unsettled]]))
        rest.rows = int(unsettled.sum())
    return {
        "members": len(ranked),
        "removed": int((removed & judged).sum()),
        "unsettled": int(unsettled.sum()),
        "files": {
            "verdicts": folder.entry(name, sink).as_json(),
            "unsettled": folder.entry(name, rest).as_json(),
        },
    }


def adjacency(
    num_documents: int, left: NDArray[np.int64], right: NDArray[np.int64], value: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """(starts int64[N + 1], neighbours, estimates): both directions of every pair, neighbours ascending."""
    source = np.concatenate([left, right])
    target = np.concatenate([right, left])
    order = np.lexsort((target, source))
    starts = np.searchsorted(source[order], np.arange(num_documents + 1))
    return starts, target[order], np.concatenate([value, value])[order]


@kernel
def _pair_similarities(
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    pair_value: NDArray[np.float64],
    sketch_NW: NDArray[np.uint64],
    status_N: NDArray[np.uint8],
    packed: bool,
    settle_above: float,
    settle_below: float,
    set_starts_N: NDArray[np.int64],
    sets: NDArray[np.uint64],
    out_E: NDArray[np.float64],
) -> None:
    for edge in range(left.size):
        out_E[edge], _ = similarity(
            left[edge],
            right[edge],
            pair_value[edge],
            sketch_NW,
            status_N,
            packed,
            settle_above,
            settle_below,
            set_starts_N,
            sets,
        )


def pair_similarities(
    config: DedupConfig,
    settled: bool,
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    estimated: NDArray[np.float64],
    sketch: NDArray[np.uint64],
    status: NDArray[np.uint8],
    set_starts: NDArray[np.int64],
    sets: NDArray[np.uint64],
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """(verified bool[E], similarity float64[E]) of every pair of the group."""
    values = np.empty(len(left), np.float64)
    _pair_similarities(
        left,
        right,
        estimated,
        sketch,
        status,
        config.sketch == "fast",
        *settled_band(config, settled),
        set_starts,
        sets,
        values,
    )
    return values >= accept_from(config, settled), values


def final_components(
    ranked: NDArray[np.int64],
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    verified_pair: NDArray[np.bool_],
    survivor: NDArray[np.int64],
    num_own: int,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(component int64[N], linked bool[N]): the smallest own ordinal that verified pairs link each document to.

    Removals count as verified pairs. An index's documents link, but do not name a component.
    """
    indices = np.arange(len(ranked))
    a = np.concatenate([left[verified_pair], indices])
    b = np.concatenate([right[verified_pair], survivor])
    root = connected_components(len(ranked), a, b)
    name = np.full(len(ranked), np.iinfo(np.int64).max, np.int64)
    np.minimum.at(name, root, np.where(ranked < num_own, ranked, np.iinfo(np.int64).max))
    linked = np.zeros(len(ranked), bool)
    linked[a[a != b]] = True
    linked[b[a != b]] = True
    return name[root], linked


def best_partners(
    survivor: NDArray[np.int64],
    value: NDArray[np.float64],
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    pair_value: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """For --keep-none: the evidence of a document that would have stayed is the document most similar to it."""
    survivor, value = survivor.copy(), value.copy()
    stays = survivor == np.arange(len(survivor))
    gone = np.flatnonzero(~stays)
    source = np.concatenate([left, right, survivor[gone]])
    target = np.concatenate([right, left, gone])
    similarity_ = np.concatenate([pair_value, pair_value, value[gone]])
    order = np.lexsort((target, -similarity_, source))
    found, first = np.unique(source[order], return_index=True)
    wanted = stays[found]
    survivor[found[wanted]] = target[order][first[wanted]]
    value[found[wanted]] = similarity_[order][first[wanted]]
    return survivor, value


def read_group(
    folder: Folder, groups: str, group: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """(a, b, estimate, rejected): the group's pairs, and per document (ascending) its comparisons in vain."""
    name = unit_name(group)
    a, b, estimated = read_columns(folder.child(groups), f"{name}.arrow")
    documents, rejected = read_columns(folder.child(f"{groups}-tested"), f"{name}.arrow")
    involved = np.unique(np.concatenate([a, b]))
    counts = np.zeros(len(involved), np.int64)
    np.add.at(counts, np.searchsorted(involved, documents), rejected.astype(np.int64))
    return a, b, estimated, counts


def load_sets(
    works: tuple[WorkView, ...], folder: Folder, groups: str, ranked: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """(starts int64[N + 1], sets): the shingle sets of the documents in the given order, from the settle stage's
    files."""
    order = np.argsort(ranked)
    found: list[NDArray[np.uint64]] = [np.zeros(0, np.uint64)] * len(ranked)
    ordinals = ranked[order]
    for number, work in enumerate(works):
        low, high = np.searchsorted(ordinals, [work.first, work.first + work.num_documents])
        units = np.searchsorted(work.unit_first, ordinals[low:high] - work.first, side="right") - 1
        for unit in np.unique(units).tolist():
            with folder.child(f"{groups}-shingles-{number}").open(f"{unit_name(unit)}.arrow") as file:
                table = pa.ipc.open_file(file).read_all()
                documents = table.column("document").to_numpy()
                lists = table.column("shingles").combine_chunks()
                lists = lists.chunk(0) if isinstance(lists, pa.ChunkedArray) else lists
                offsets, values = lists.offsets.to_numpy(), lists.values.to_numpy()
                wanted = low + np.flatnonzero(units == unit)
                at = np.searchsorted(documents, ordinals[wanted])
                for index, row in zip(order[wanted].tolist(), at.tolist(), strict=True):
                    found[index] = values[offsets[row] : offsets[row + 1]].copy()
    starts = np.concatenate([[0], np.cumsum([len(values) for values in found])]).astype(np.int64)
    return starts, np.concatenate([np.zeros(0, np.uint64), *found])
