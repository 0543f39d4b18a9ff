"""Proofs against the input: sampled rows of OUT are rows of it, and sampled near-duplicates are what they are called.

The sample is the same on every call. Cost: at most SAMPLE_PIECES pieces of the input twice over, and the row groups of
OUT that hold the sampled rows.
"""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from taojin.core.sidecars import Corpus
from taojin.core.storage import Folder
from taojin.evidence import exact_jaccard
from taojin.jobs import edits_of
from taojin.opened import missing_input, piece_of, place_of, read_rows, unit_of
from taojin.proofs import BrokenError, Report
from taojin.proofs_of_output import reading
from taojin.proofs_of_work import ROUNDING, Ledger
from taojin.report import number

SAMPLE_SEED = 20161  # any fixed number
SAMPLE_PIECES = 32


def check_input(
    report: Report, corpus: Corpus, output: Folder, manifest: dict[str, Any], ledger: Ledger | None, sample: int
) -> None:
    if ledger is None:
        report.leave_out("input", "not compared: the decisions are broken")
        return
    chooser = random.Random(SAMPLE_SEED)
    shuffled = _shuffled(np.flatnonzero(ledger.keep), chooser, sample)
    kept = np.sort(shuffled[_within_pieces(piece_of(corpus.ordinals, shuffled)[:, None], sample)])
    if reason := missing_input(corpus, kept):
        report.leave_out("input", f"texts were not compared: {reason}")
        return
    report.prove("input", output.uri, lambda: prove_input(corpus, output, manifest, kept))
    if len(ledger.near):
        _check_near(report, corpus, ledger, chooser, sample)


def _shuffled(candidates: NDArray[Any], chooser: random.Random, sample: int) -> NDArray[Any]:
    """Candidates in random order: enough of them that a sample can be chosen among few pieces."""
    count = min(len(candidates), 50 * sample)
    return candidates[np.array(chooser.sample(range(len(candidates)), count), np.int64)]


def _within_pieces(pieces: NDArray[np.int64], sample: int) -> NDArray[np.int64]:
    """The first `sample` rows that together touch at most SAMPLE_PIECES pieces. pieces: (rows, pieces of each)."""
    touched: set[int] = set()
    chosen: list[int] = []
    for row, needed in enumerate(pieces.tolist()):
        if len(touched.union(needed)) <= SAMPLE_PIECES:
            touched.update(needed)
            chosen.append(row)
            if len(chosen) == sample:
                break
    return np.array(chosen, np.int64)


def prove_input(
    corpus: Corpus, output: Folder, manifest: dict[str, Any], documents: NDArray[np.int64]
) -> tuple[bool, str]:
    """Sampled rows of OUT are rows of the input: texts byte for byte, the other flat columns by value."""
    flat = [field.name for field in corpus.plan.schema if not pa.types.is_nested(field.type)]
    expected, edited = as_written(corpus, manifest, documents, read_rows(corpus, documents, flat))
    positions = corpus.ordinals.positions(documents)
    text_bytes = 0
    for name, (low, high), found in output_rows(output, manifest, positions, flat):
        where = output.child(name).uri
        for column in flat:
            wanted = expected.column(column).slice(low, high - low).combine_chunks()
            if not _same(found.column(column).combine_chunks(), wanted):
                row = int(positions[low])
                raise BrokenError(where, f"column {column!r} is not the input's, in a sample from position {row} on")
            if column == corpus.config.text_column:
                text_bytes += int(wanted.nbytes)
    detail = f"{number(len(documents), 'sampled row')} equal the input, texts byte for byte ({text_bytes:,} bytes)"
    return True, detail + (f"; {number(edited, 'text')} as edited" if edited else "")


def as_written(
    corpus: Corpus, manifest: dict[str, Any], documents: NDArray[np.int64], rows: pa.Table
) -> tuple[pa.Table, int]:
    """(rows with the edits that the writer made, how many texts they changed): data masked, questions cut."""
    mask = tuple(manifest["config"].get("mask", ()))
    edits = edits_of(corpus.config.model_copy(update={"mask": mask}), corpus.view.folder)
    if not edits:
        return rows, 0
    index = rows.schema.get_field_index(corpus.config.text_column)
    before = rows.column(index).combine_chunks()
    texts = []
    for at, ordinal in enumerate(documents.tolist()):
        unit = unit_of(corpus, ordinal)
        text = before.slice(at, 1)
        for edit in edits:
            text, _ = edit(text, unit, ordinal - int(corpus.ordinals.unit_first[unit]))
        texts.append(text)
    after = pa.concat_arrays([before.slice(0, 0), *texts])
    changed = pc.sum(pc.not_equal(before, after)).as_py() or 0
    return rows.set_column(index, rows.schema.field(index), after), changed


def output_rows(
    output: Folder, manifest: dict[str, Any], positions: NDArray[np.int64], names: list[str]
) -> Iterator[tuple[str, tuple[int, int], pa.Table]]:
    """(part, range among `positions`, columns) of the row groups that hold these documents (ascending)."""
    for entry in manifest["parts"]:
        with reading(output, entry["name"]) as parquet:
            for group in range(parquet.num_row_groups):
                cluster = parquet.read_row_group(group, columns=["cluster"]).column(0).to_numpy()
                if not len(cluster):
                    continue
                low, high = np.searchsorted(positions, [cluster[0], cluster[-1] + 1]).tolist()
                if low < high:
                    rows = np.searchsorted(cluster, positions[low:high])
                    if not np.array_equal(cluster[rows], positions[low:high]):
                        raise BrokenError(output.child(entry["name"]).uri, "a kept document is not there")
                    yield entry["name"], (low, high), parquet.read_row_group(group, columns=names).take(pa.array(rows))


def _same(a: pa.Array, b: pa.Array) -> bool:
    if pa.types.is_floating(a.type):
        a, b = a.to_numpy(zero_copy_only=False), b.to_numpy(zero_copy_only=False)
        return bool(np.array_equal(a, b, equal_nan=True))
    return bool(a.equals(b))


def _check_near(report: Report, corpus: Corpus, ledger: Ledger, chooser: random.Random, sample: int) -> None:
    """Exact Jaccard of sampled near-duplicates to what stays in their place: a measurement, and for `exact` a proof."""
    candidates = ledger.near[ledger.near[:, 1] == 0]
    shuffled = _shuffled(candidates, chooser, sample)
    documents, survivors = shuffled[:, 0], corpus.ordinals.ordinals(shuffled[:, 2])
    pieces = np.column_stack([piece_of(corpus.ordinals, documents), piece_of(corpus.ordinals, survivors)])
    chosen = _within_pieces(pieces, sample)
    documents, survivors = documents[chosen], survivors[chosen]
    wanted = np.unique(np.concatenate([documents, survivors]))
    if not len(wanted):
        report.leave_out("near", "near-duplicates of an index alone: their texts were not measured")
        return
    if reason := missing_input(corpus, wanted):
        report.leave_out("near", f"similarities were not measured: {reason}")
        return
    report.prove("near", corpus.view.folder.uri, lambda: measure_near(report, corpus, documents, survivors, wanted))


def measure_near(
    report: Report,
    corpus: Corpus,
    documents: NDArray[np.int64],
    survivors: NDArray[np.int64],
    wanted: NDArray[np.int64],
) -> tuple[bool, str]:
    config = corpus.config
    texts = read_rows(corpus, wanted, [config.text_column]).column(0).cast(pa.large_binary())
    values = []
    for document, survivor in zip(documents.tolist(), survivors.tolist(), strict=True):
        a, b = (texts[int(np.searchsorted(wanted, ordinal))].as_py() or b"" for ordinal in (document, survivor))
        overlap = exact_jaccard(a, b, config.ngram)
        values.append(1.0 if overlap.jaccard is None and a == b else overlap.jaccard or 0.0)
    lowest, reached = min(values), sum(value >= config.threshold - ROUNDING for value in values)
    report.measured = {
        "near_duplicates": len(values),
        "at_threshold": reached,
        "share": reached / len(values),
        "lowest": lowest,
        "threshold": config.threshold,
    }
    if config.verify == "exact" and reached < len(values):
        place = place_of(corpus, int(documents[int(np.argmin(values))]))
        raise BrokenError(corpus.view.folder.uri, f"--verify exact, and yet {place} has exact Jaccard {lowest:.4f}")
    share = f"{reached / len(values):.1%}"
    return True, (
        f"{number(len(values), 'sampled near-duplicate')} measured by exact shingles: {share} at "
        f"{config.threshold:g} or more, the lowest {lowest:.3f} (--verify {config.verify})"
    )
