"""The signal analyzer: everything that rules will ever ask about a document, measured in the one scan.

Out, per unit: signals/<unit>.arrow, a row per document: every heuristic signal (`taojin.quality.signals`), language,
and what was asked for: models, sensitive words, personal data, contamination. With --decontaminate also
hits/<unit>.arrow, which question stands where. About 400 bytes a document. Nothing is judged here.
"""

from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from taojin.core.corpus import Plan
from taojin.core.reading import Batch
from taojin.core.scan import SIDECAR_ROWS
from taojin.core.status import BLANK
from taojin.core.storage import Folder, Sink
from taojin.core.tasks import unit_name
from taojin.quality.config import QualityConfig
from taojin.quality.contamination import HITS_SCHEMA, Finder
from taojin.quality.cutting import cut_spans
from taojin.quality.measure import measure_array
from taojin.quality.questions import Questions
from taojin.quality.rules import HAN_LANGUAGES, covers
from taojin.quality.segment import open_segmenter
from taojin.quality.sensitive import SensitiveMatcher, WordList
from taojin.quality.signals import HEURISTIC_SIGNALS

# Share of a question's runs that is enough, however few they are: questions of 20 symbols have eight.
ENOUGH_SHARE = 0.5


def is_han(language: str) -> bool:
    """Whether documents in this language are segmented."""
    return any(covers(name, language) for name in HAN_LANGUAGES)


class SignalAnalyzer(NamedTuple):
    """questions and lists travel with the task: every worker looks for the same, whatever becomes of the files.

    segmenter: the name of the one the driver chose, "" for none: a worker opens that one, or fails.
    """

    config: QualityConfig
    questions: Questions | None
    lists: tuple[WordList, ...]
    segmenter: str

    def fields(self) -> list[pa.Field]:
        return []

    def start(self, plan: Plan, work: Folder, unit: int, stack: ExitStack) -> "SignalAnalysis":
        return SignalAnalysis(self, work, unit, stack)


def make_analyzer(config: QualityConfig) -> SignalAnalyzer:
    """Reads the word lists and evaluation sets. Raises InputError and ConfigError for what is wrong with them."""
    segmenter = config.open_segmenter()
    return SignalAnalyzer(config, config.load_questions(), config.load_lists(), segmenter.name if segmenter else "")


def signals_schema(config: QualityConfig) -> pa.Schema:
    fields = [pa.field(name, pa.float32()) for name in config.signal_names]
    if config.language:
        fields.append(pa.field("language", pa.string()))
    return pa.schema(fields)


class Measurer:
    """Everything that is measured of a batch of texts; one for each unit, not for two threads at once."""

    def __init__(self, analyzer: SignalAnalyzer) -> None:
        self.config = config = analyzer.config
        self.schema = signals_schema(config)
        self.finder = Finder(analyzer.questions) if analyzer.questions is not None else None
        self.matcher = SensitiveMatcher(analyzer.lists) if analyzer.lists else None
        self.segmenter = open_segmenter(analyzer.segmenter) if analyzer.segmenter else None
        self.models = config.open_models()

    def measure(self, texts: pa.LargeStringArray, status: NDArray[np.uint8]) -> tuple[pa.RecordBatch, pa.Table | None]:
        """(signals, a row per text; HITS_SCHEMA, if questions are looked for). Marks in `status` what has none."""
        columns: dict[str, pa.Array] = {}
        measured: dict[str, NDArray[np.float32]] = {}
        chinese = None
        if self.config.language:
            from taojin.quality.language import identify_array

            found = identify_array(texts, status)
            columns["language"] = found.names_array()
            measured["language_score"] = found.score
            chinese = np.isin(found.code, [code for code, name in enumerate(found.names) if is_han(name)])
        matrix = measure_array(texts, status, self.segmenter, chinese)
        values = {signal.name: matrix[number] for number, signal in enumerate(HEURISTIC_SIGNALS)} | measured
        # What cannot be judged is not looked at again; nulls cost nothing.
        readable = status <= BLANK
        if not readable.all():
            texts = pc.if_else(pa.array(readable), texts, pa.scalar(None, texts.type))
        for model in self.models:
            values[model.name] = model.score(texts)
        if self.matcher is not None:
            values |= self.matcher.measure(texts)
        if self.config.personal:
            from taojin.quality.personal import count_personal

            values |= {f"personal_{kind}": count.astype(np.float32) for kind, count in count_personal(texts).items()}
        hits = None
        if self.finder is not None:
            hits = self.finder.find(texts, min_runs=self.config.contamination_runs, min_share=ENOUGH_SHARE)
            values |= contamination(texts, hits, [counts.name for counts in self.finder.questions.sets])
        columns |= {name: pa.array(value) for name, value in values.items()}
        arrays = [columns[name] for name in self.schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema), hits


def contamination(texts: pa.LargeStringArray, hits: pa.Table, sets: list[str]) -> dict[str, NDArray[np.float32]]:
    """contamination_<set>: the most runs that a document shares with one question of the set; contamination_left: the
    share of its bytes that would be left if the questions were cut out."""
    documents, runs = hits.column("document").to_numpy(), hits.column("runs").to_numpy()
    found_in = hits.column("set").to_numpy()
    values = {}
    for name in sets:
        most = np.zeros(len(texts), np.float32)
        chosen = found_in == name
        np.maximum.at(most, documents[chosen], runs[chosen].astype(np.float32))
        values[f"contamination_{name}"] = most
    cuts = cut_spans(texts, hits)
    cut_before = np.concatenate([[0], np.cumsum(cuts.end - cuts.first)])[cuts.offsets]
    lengths = pc.fill_null(pc.binary_length(texts), 0).to_numpy()
    values["contamination_left"] = (1 - np.diff(cut_before) / np.maximum(lengths, 1)).astype(np.float32)
    return values


class SignalAnalysis:
    """One unit's signals, and what the writer needs of its questions."""

    def __init__(self, analyzer: SignalAnalyzer, work: Folder, unit: int, stack: ExitStack) -> None:
        self.measurer = Measurer(analyzer)
        self.text_column = analyzer.config.text_column
        self.name = f"{unit_name(unit)}.arrow"
        kinds = ("signals", "hits") if analyzer.questions is not None else ("signals",)
        self.folders = {kind: work.child(kind) for kind in kinds}
        self.sinks: dict[str, Sink] = {
            kind: stack.enter_context(folder.create(self.name)) for kind, folder in self.folders.items()
        }
        schemas = {"signals": self.measurer.schema, "hits": HITS_SCHEMA}
        self.writers = {
            kind: stack.enter_context(pa.ipc.new_file(sink, schemas[kind])) for kind, sink in self.sinks.items()
        }
        self.held: list[pa.RecordBatch] = []
        self.held_rows = 0

    def add(self, batch: Batch, first_row: int) -> dict[str, pa.Array]:
        texts = batch.rows.column(self.text_column)
        signals, hits = self.measurer.measure(texts, batch.status)
        if hits is not None and len(hits):
            rows = pa.array(hits.column("document").to_numpy() + first_row)
            self.writers["hits"].write_table(hits.set_column(0, HITS_SCHEMA.field(0), rows))
            self.sinks["hits"].rows += len(hits)
        self.held.append(signals)
        self.held_rows += len(texts)
        if self.held_rows >= SIDECAR_ROWS:
            self._write_held()
        self.sinks["signals"].rows = first_row + len(texts)
        return {"chars": signals.column("chars").cast(pa.uint32())}

    def _write_held(self) -> None:
        if self.held:
            self.writers["signals"].write_table(pa.Table.from_batches(self.held).combine_chunks())
        self.held.clear()
        self.held_rows = 0

    def close(self) -> None:
        self._write_held()

    def files(self) -> dict[str, dict[str, Any]]:
        return {kind: folder.entry(self.name, self.sinks[kind]).as_json() for kind, folder in self.folders.items()}
