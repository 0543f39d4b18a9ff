"""Proofs from the provenance of an output of `taojin tokenize`: where its documents come from, which side they are on.

Cost: provenance is read three times, by columns, every .idx once. Memory: blocks, and one bit for each row of the
input, by which a document that comes twice is seen.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from taojin.core.corpus import POSITION_SHIFT
from taojin.core.megatron import BLOCK, IndexedPair
from taojin.proofs import BrokenError
from taojin.proofs_of_output import reading
from taojin.proofs_of_pair import Prefix, open_pair
from taojin.proofs_of_tokens import Tokens, Totals
from taojin.report import number
from taojin.tokenize.provenance import PROVENANCE_SCHEMA
from taojin.tokenize.split import Split, assign, component_keys, id_keys, parse_split

BATCH_ROWS = 65_536
# Rows of a shard that one bitmap stands for: 128 kB, made when the first of them comes.
PAGE_SHIFT = 20


def prove_provenance(output: Tokens) -> tuple[Totals, str]:
    """A row per document, with the index's numbers, of a shard of the input; no row of the input comes twice, and,
    without --shuffle, all come in the order of the input.

    Not for merged pairs (see `prove_numbers`): shards of two inputs may have the same relative path.
    """
    shards = {shard["path"]: index for index, shard in enumerate(output.manifest["shards"])}
    shuffled, level = output.manifest["config"]["shuffle"], output.manifest["level"]
    seen = Seen()
    last: dict[tuple[str, str], int] = {}
    totals = Totals(0, {}, {})
    rows = 0
    for entry, prefix in output.pairs():
        where = prefix.file(".parquet")
        _require_numbers(prefix, where)
        group = entry["split"], entry["source"]
        for batch in provenance(prefix, ("shard", "row", "tokens", "sequences", "source", "language")):
            positions = _positions(batch, shards, where)
            if (again := seen.first_again(positions)) >= 0:
                place = f"{output.manifest['shards'][again >> POSITION_SHIFT]['path']}#{_row(again)}"
                raise BrokenError(where, f"{place} is here, and was another document before")
            if not shuffled:
                if (np.diff(positions, prepend=last.get(group, -1)) <= 0).any():
                    raise BrokenError(where, "documents are not in the order of the input, and --shuffle was off")
                last[group] = int(positions[-1])
            _require_source(batch, entry, output, where)
            tokens, sequences = (batch.column(name).to_numpy() for name in ("tokens", "sequences"))
            if level == "document" and (sequences > 1).any():
                raise BrokenError(where, "a document of several sequences, and --level was document")
            _add(totals.by_source, batch.column("source"), tokens)
            _add(totals.by_language, batch.column("language"), tokens)
            totals = totals._replace(empty=totals.empty + int(np.count_nonzero(sequences == 0)))
            rows += batch.num_rows
    totals = totals._replace(by_source=_listed(totals.by_source), by_language=_listed(totals.by_language))
    order = "in any order" if shuffled else "in its order"
    return totals, f"{number(rows, 'row')} with the numbers of the indexes, each another row of the input, {order}"


def prove_numbers(output: Tokens) -> tuple[bool, str]:
    """A row per document, with the index's numbers."""
    for _, prefix in output.pairs():
        _require_numbers(prefix, prefix.file(".parquet"))
    return True, f"{number(output.manifest['counts']['documents'], 'row')} with the numbers of the indexes"


def provenance(prefix: Prefix, names: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Columns of a pair's provenance, in batches that are not empty."""
    with reading(prefix.folder, f"{prefix.name}.parquet") as parquet:
        found = parquet.schema_arrow
        for field in PROVENANCE_SCHEMA:
            if field.name not in found.names or found.field(field.name).type != field.type:
                raise BrokenError(prefix.file(".parquet"), f"no column {field.name!r} of {field.type}")
        for batch in parquet.iter_batches(BATCH_ROWS, columns=list(names), use_threads=False):
            if batch.num_rows:
                yield batch


def _require_numbers(prefix: Prefix, where: str) -> None:
    """document, sequence, sequences and tokens are those of the index."""
    pair = open_pair(prefix)
    rows = _Rows(provenance(prefix, ("document", "sequence", "sequences", "tokens")))
    document = 0
    for indices in pair.document_index_blocks():
        count = len(indices) - 1
        expected = {
            "document": np.arange(document, document + count),
            "sequence": indices[:-1],
            "sequences": np.diff(indices),
            "tokens": np.diff(tokens_before(pair, indices)),
        }
        found = rows.take(count)
        if len(found) < count:
            raise BrokenError(where, f"expected {pair.num_documents:,} rows, found {document + len(found):,}")
        for name, values in expected.items():
            column = found.column(name).to_numpy()
            if not np.array_equal(column, values):
                at = int(np.argmax(column != values))
                raise BrokenError(where, f"{name} of row {document + at:,} is {column[at]}, in the index {values[at]}")
        document += count
    if len(rows.take(1)):
        raise BrokenError(where, f"expected {document:,} rows, found more")


class _Rows:
    """Batches as one stream."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._held: list[pa.RecordBatch] = []

    def take(self, count: int) -> pa.Table:
        """The next rows; fewer at the end."""
        held = sum(batch.num_rows for batch in self._held)
        while held < count and (batch := next(self._batches, None)) is not None:
            self._held.append(batch)
            held += batch.num_rows
        if not self._held:
            return pa.table({})
        table = pa.Table.from_batches(self._held)
        self._held = table.slice(count).to_batches()
        return table.slice(0, count)


def tokens_before(pair: IndexedPair, sequences: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64: the tokens before each of these sequences (ascending numbers; the one behind the last is allowed)."""
    before = np.full(len(sequences), pair.num_tokens, np.int64)
    inside = int(np.searchsorted(sequences, pair.num_sequences))
    start = 0
    while start < inside:
        first = int(sequences[start])
        end = start + int(np.searchsorted(sequences[start:inside], first + BLOCK))
        _, pointers = pair.spans(first, int(sequences[end - 1]) + 1 - first)
        before[start:end] = pointers[sequences[start:end] - first] // pair.dtype.itemsize
        start = end
    return before


def _positions(batch: pa.RecordBatch, shards: dict[str, int], where: str) -> NDArray[np.int64]:
    encoded = batch.column("shard").dictionary_encode()
    paths = encoded.dictionary.to_pylist()
    unknown = [path for path in paths if path not in shards]
    rows = batch.column("row").to_numpy()
    if unknown or encoded.null_count or (rows < 0).any() or (rows >> POSITION_SHIFT).any():
        what = f"shard {unknown[0]!r}" if unknown else "a shard that is null, or a row that none can have"
        raise BrokenError(where, f"{what}: not a place in the input of this run")
    index = np.array([shards[path] for path in paths], np.int64)
    return (index[encoded.indices.to_numpy()] << POSITION_SHIFT) + rows


def _row(position: int) -> int:
    return position & ((1 << POSITION_SHIFT) - 1)


class Seen:
    """Positions that came before."""

    def __init__(self) -> None:
        self._pages: dict[int, NDArray[np.uint8]] = {}

    def first_again(self, positions: NDArray[np.int64]) -> int:
        """Remember these; returns one that has come before or stands twice among them, -1 for none."""
        positions = np.sort(positions)
        twice = positions[1:] == positions[:-1]
        if twice.any():
            return int(positions[np.argmax(twice)])
        pages, starts = np.unique(positions >> PAGE_SHIFT, return_index=True)
        for page, part in zip(pages.tolist(), np.split(positions, starts[1:]), strict=True):
            if page not in self._pages:
                self._pages[page] = np.zeros((1 << PAGE_SHIFT) // 8, np.uint8)
            bits, row = self._pages[page], part & ((1 << PAGE_SHIFT) - 1)
            place, bit = row >> 3, (1 << (row & 7)).astype(np.uint8)
            again = bits[place] & bit
            if again.any():
                return int(part[np.argmax(again > 0)])
            np.bitwise_or.at(bits, place, bit)
        return -1


def _require_source(batch: pa.RecordBatch, entry: dict[str, Any], output: Tokens, where: str) -> None:
    if not output.manifest["config"]["by_source"]:
        return
    others = pc.not_equal(pc.fill_null(batch.column("source"), ""), entry["source"])
    if pc.any(others).as_py():
        raise BrokenError(where, f"a document of another source than {entry['source']!r}")


def _listed(totals: dict[str, list[int]]) -> dict[str, list[int]]:
    """Where no document has a name, nothing is listed."""
    return totals if totals.keys() != {""} else {}


def _add(totals: dict[str, list[int]], names: pa.Array, tokens: NDArray[np.int64]) -> None:
    """Add documents and tokens by name, those without one by ""."""
    encoded = pc.fill_null(names, "").dictionary_encode()
    codes, size = encoded.indices.to_numpy(), len(encoded.dictionary)
    documents = np.bincount(codes, minlength=size)
    # As integers: weights of bincount are floats, exact up to 2^53.
    sums = np.zeros(size, np.int64)
    np.add.at(sums, codes, tokens)
    for name, count, total in zip(encoded.dictionary.to_pylist(), documents.tolist(), sums.tolist(), strict=True):
        entry = totals.setdefault(name, [0, 0])
        entry[0] += count
        entry[1] += total


# ---------------------------------------------------------------------------------------------- splits


def prove_splits(output: Tokens) -> tuple[bool, str]:
    """Every document is in the split that seed and shares give its component, or its id where it has none: so no
    component, and no id, is on two sides. Documents that have neither stand for themselves."""
    config = output.manifest["config"]
    split = parse_split(config["split"])
    by_component = by_id = alone = 0
    for entry, prefix in output.pairs():
        side = split.names.index(entry["split"])
        where = prefix.file(".parquet")
        first = 0
        for batch in provenance(prefix, ("component", "id", "shard", "row")):
            component, id = batch.column("component"), batch.column("id")
            row, number_sign = batch.column("row").cast(pa.large_string()), pa.scalar("#", pa.large_string())
            place = pc.binary_join_element_wise(batch.column("shard"), row, number_sign)
            in_component = component.is_valid().to_numpy(zero_copy_only=False)
            named = pc.fill_null(pc.not_equal(id, place), False).to_numpy(zero_copy_only=False) & ~in_component
            _require_side(split, config["seed"], side, component, in_component, where, first)
            _require_side(split, config["seed"], side, id, named, where, first)
            by_component += int(np.count_nonzero(in_component))
            by_id += int(np.count_nonzero(named))
            alone += int(np.count_nonzero(~in_component & ~named))
            first += batch.num_rows
    kinds = [(by_component, "component"), (by_id, "id"), (alone, "place")]
    counts = ", ".join(f"{count:,} by {kind}" for count, kind in kinds if count)
    return True, f"each component and id is on one side, that of --seed {config['seed']}: {counts or 'no documents'}"


def _require_side(
    split: Split, seed: int, side: int, names: pa.Array, chosen: NDArray[np.bool_], where: str, first: int
) -> None:
    """names: components or ids, of the rows from `first` on."""
    if not chosen.any():
        return
    chosen_names = names.filter(pa.array(chosen))
    is_component = pa.types.is_integer(names.type)
    keys = component_keys(chosen_names.to_numpy()) if is_component else id_keys(chosen_names)
    others = assign(split, seed, keys) != side
    if others.any():
        at = int(np.argmax(others))
        other = split.names[int(assign(split, seed, keys[at : at + 1])[0])]
        row, name = first + int(np.flatnonzero(chosen)[at]), chosen_names[at].as_py()
        kind = "component" if is_component else "id"
        raise BrokenError(
            where, f"document {row:,} has {kind} {name!r}, whose side is {other}, not {split.names[side]}"
        )
