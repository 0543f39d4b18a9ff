"""Measure: all heuristic signals of every document in one go, from Arrow buffers.

    UTF-8 ── decode ──> code points ── measure_characters, measure_layout ── split_words ── measure_words,
                                                                          └─ measure_repetition

Each document passes through all of it while its code points are in cache. With a segmenter, Chinese documents stop
after their lines: their runs of Chinese characters are cut in one call for the whole batch, and they go on from there.
Cost: see the bench lane `quality`. Scratch is about 100 bytes per byte of the longest document, touched as far as used.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from taojin.core.jit import kernel
from taojin.core.status import BLANK, EMPTY, INVALID_UTF8, NULL
from taojin.core.text import text_buffers
from taojin.quality.characters import decode, load_character_classes, load_character_table
from taojin.quality.layout import LayoutScratch, layout_scratch, measure_layout
from taojin.quality.makeup import MakeupScratch, makeup_scratch, measure_characters
from taojin.quality.repetition import Scratch, measure_repetition, scratch_for_words
from taojin.quality.segment import LONGEST_RUN, Segmenter, gather_runs, is_chinese, place_words, word_lengths
from taojin.quality.signals import HEURISTIC_SIGNALS
from taojin.quality.stop_words import StopTable, stop_table
from taojin.quality.words import WordTables, describe_words, load_word_tables, measure_words, split_words


class Tables(NamedTuple):
    """What kernels look up."""

    classes: NDArray[np.uint8]
    class_flags: NDArray[np.uint32]
    characters: NDArray[np.uint32]
    words: WordTables
    stops: StopTable


class Room(NamedTuple):
    """Working memory for the longest document: its code points, its words, and what each kernel wants."""

    code_points: NDArray[np.uint32]
    starts: NDArray[np.uint32]
    ends: NDArray[np.uint32]
    hashes: NDArray[np.uint64]
    flags: NDArray[np.uint8]
    makeup: MakeupScratch
    layout: LayoutScratch
    repetition: Scratch


def load_tables() -> Tables:
    classes = load_character_classes()
    return Tables(classes.of, classes.flags, load_character_table(), load_word_tables(), stop_table())


def room_for(max_document_bytes: int) -> Room:
    size = max_document_bytes + 1
    return Room(
        np.empty(size, np.uint32),
        np.empty(size, np.uint32),
        np.empty(size, np.uint32),
        np.empty(size, np.uint64),
        np.empty(size, np.uint8),
        makeup_scratch(max_document_bytes),
        layout_scratch(max_document_bytes),
        scratch_for_words(size, size),
    )


@kernel
def _measure_words(
    count: int, num: int, gap_counts: bool, tables: Tables, room: Room, values_S: NDArray[np.float32]
) -> None:
    """From the words of room.code_points[0:count] on."""
    measure_words(room.code_points, count, tables.words, room.starts, room.ends, room.flags, num, values_S)
    measure_repetition(
        room.code_points, count, room.starts, room.ends, room.hashes, room.flags, num, gap_counts,
        tables.stops.slots, tables.stops.keys, tables.stops.lists, tables.stops.pairs,
        room.repetition.firsts, room.repetition.positions, room.repetition.counts, room.repetition.keys,
        room.repetition.table, room.repetition.found, values_S,
    )  # fmt: skip


@kernel
def _measure_documents(
    data: NDArray[np.uint8],
    offsets_D: NDArray[np.int64],
    segmented: bool,
    chinese_D: NDArray[np.bool_],
    tables: Tables,
    room: Room,
    runs: NDArray[np.uint32],
    run_ends_D: NDArray[np.int64],
    values_DS: NDArray[np.float32],
    status_D: NDArray[np.uint8],
) -> None:
    """Documents with status up to BLANK. With `segmented`, the runs of Chinese ones are gathered in `runs`, document
    d's up to run_ends_D[d], and nothing of their words is measured."""
    written = 0
    for d in range(status_D.size):
        run_ends_D[d] = written
        if status_D[d] > BLANK:
            continue
        if offsets_D[d] == offsets_D[d + 1]:
            status_D[d] = EMPTY
            continue
        count, valid = decode(data, offsets_D[d], offsets_D[d + 1], room.code_points)
        if not valid:
            status_D[d] = INVALID_UTF8
            continue
        values_S = values_DS[d]
        makeup, layout = room.makeup, room.layout
        measure_characters(
            room.code_points, count, tables.classes, tables.class_flags, makeup.stamps, d + 1, makeup.counts,
            makeup.places, values_S,
        )  # fmt: skip
        measure_layout(
            room.code_points, count, tables.characters, layout.prefix, layout.marks, layout.feeds, layout.keys, values_S
        )
        gathered = 0
        if segmented and (chinese_D[d] if chinese_D.size else is_chinese(values_S)):
            gathered = gather_runs(room.code_points, count, LONGEST_RUN, runs[written:])
            written += gathered
            run_ends_D[d] = written
        if gathered == 0:
            num = split_words(room.code_points, count, tables.words, room.starts, room.ends, room.hashes, room.flags)
            _measure_words(count, num, segmented, tables, room, values_S)


@kernel
def _measure_segmented(
    data: NDArray[np.uint8],
    offsets_D: NDArray[np.int64],
    tables: Tables,
    room: Room,
    runs: NDArray[np.uint32],
    run_ends_D: NDArray[np.int64],
    lengths: NDArray[np.uint32],
    values_DS: NDArray[np.float32],
) -> None:
    """The words of the documents with runs. lengths: of the words that all runs were cut into."""
    begin = 0
    word = 0
    for d in range(run_ends_D.size):
        end = run_ends_D[d]
        if end == begin:
            continue
        count, _ = decode(data, offsets_D[d], offsets_D[d + 1], room.code_points)
        num = place_words(
            room.code_points, count, runs[begin:end], lengths[word:], tables.words.classes, room.starts, room.ends
        )
        describe_words(room.code_points, room.starts, room.ends, num, tables.words.classes, room.hashes, room.flags)
        _measure_words(count, num, True, tables, room, values_DS[d])
        while begin < end:
            begin += int(lengths[word])
            word += 1


def measure_array(
    texts: pa.LargeStringArray | pa.LargeBinaryArray,
    status: NDArray[np.uint8] | None = None,
    segmenter: Segmenter | None = None,
    chinese: NDArray[np.bool_] | None = None,
) -> NDArray[np.float32]:
    """float32[S, D]: a row per HEURISTIC_SIGNALS, a column per document; 0 where there is nothing to measure.

    `status` (uint8[D], changed in place): documents above BLANK are not read; empty, null and invalid ones are marked.
    chinese: bool[D], which documents the segmenter cuts (default: those with enough Chinese characters).
    """
    data, offsets_D = text_buffers(texts)
    status_D = np.zeros(len(texts), np.uint8) if status is None else status
    if texts.null_count:
        status_D[texts.is_null().to_numpy(zero_copy_only=False) & (status_D <= BLANK)] = NULL
    lengths = np.where(status_D > BLANK, 0, np.diff(offsets_D))
    tables, room = load_tables(), room_for(int(lengths.max(initial=0)))
    values_DS = np.zeros((len(texts), len(HEURISTIC_SIGNALS)), np.float32)
    # A Chinese character has three bytes; a run of one is followed by a line feed.
    runs = np.empty(int(lengths.sum()) // 3 * 2 + 2 if segmenter else 0, np.uint32)
    run_ends_D = np.zeros(len(texts), np.int64)
    chinese_D = np.zeros(0, bool) if chinese is None else chinese
    _measure_documents(
        data, offsets_D, segmenter is not None, chinese_D, tables, room, runs, run_ends_D, values_DS, status_D
    )
    if segmenter is not None and len(texts) and run_ends_D[-1]:
        runs = runs[: run_ends_D[-1]]
        _measure_segmented(data, offsets_D, tables, room, runs, run_ends_D, word_lengths(segmenter, runs), values_DS)
    return np.ascontiguousarray(values_DS.T)
