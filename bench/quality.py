"""What quality costs, in one process, one thread, warm: `python -m bench.quality kernels|scan --input DIR`.

    kernels   every measurement of `taojin quality` alone, from batches of about 4 MB as the scan sees them; beside them
              two floors: decoding UTF-8 to code points, and the sketch that de-duplication makes of the same batches
    scan      `scan_unit` over all units: reading alone, with signals, with the sketch, with both

Prints one JSON object, CPU seconds by process_time, of the best round. Chinese and English are the rows whose column
`lang` is zh and en; where there is no such column, those with three Han characters in ten, and those with half of their
characters ASCII letters. Start-up, compilation and (but for `scan`) reading are not in the figures. Whether signals are
right is `bench.agreement`.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numba import njit
from numpy.typing import NDArray

from bench.corpus import DEFAULT_CORPUS, CorpusError, parquet_shards
from bench.kernels import best_seconds
from taojin.core.job import BATCH_BYTES
from taojin.core.text import text_buffers
from taojin.quality.characters import decode
from taojin.quality.measure import measure_array
from taojin.quality.segment import choose_segmenter

Work = Callable[[pa.LargeStringArray], object]

HAN_SHARE, LATIN_SHARE = 0.3, 0.5
SENSITIVE_WORDS = 5_000
FITTED_DOCUMENTS = 400  # of each class
GENERATED_QUESTIONS = 5_000


def read(folder: Path, most_mb: float = float("inf")) -> tuple[pa.Table, str]:
    """(id, text and language zh, en or another, of about most_mb of text; where the language is from)."""
    tables, size = [], 0
    for shard in parquet_shards(folder):
        names = [name for name in ("id", "text", "lang") if name in pq.read_schema(shard).names]
        table = pq.read_table(shard, columns=names, use_threads=False)
        ends = size + np.cumsum(pc.binary_length(table["text"]).to_numpy(), dtype=np.int64)
        tables.append(table.slice(0, int(np.searchsorted(ends, most_mb * 1e6)) + 1))
        size = int(ends[-1]) if len(ends) else size
        if size > most_mb * 1e6:
            break
    table = pa.concat_tables(tables).combine_chunks()
    text = table["text"].cast(pa.large_string())
    if "lang" in table.column_names:
        language, source = table["lang"], "the column lang"
    else:
        characters = pc.max_element_wise(pc.utf8_length(text), 1)
        han = pc.divide(pc.count_substring_regex(text, r"\p{Han}").cast(pa.float64()), characters)
        latin = pc.divide(pc.count_substring_regex(text, "[A-Za-z]").cast(pa.float64()), characters)
        wordy = pc.if_else(pc.greater_equal(latin, LATIN_SHARE), "en", "other")
        language, source = pc.if_else(pc.greater_equal(han, HAN_SHARE), "zh", wordy), "their characters"
    return pa.table({"id": table["id"], "text": text, "language": language}), source


def of_language(table: pa.Table, name: str) -> pa.Table:
    return table if name == "mix" else table.filter(pc.equal(table["language"], name))


def batches(table: pa.Table) -> list[pa.LargeStringArray]:
    """The texts in consecutive arrays of at most BATCH_BYTES, or of one document."""
    text = table["text"].combine_chunks()
    text = pa.concat_arrays(text.chunks) if isinstance(text, pa.ChunkedArray) else text
    offsets = text_buffers(text)[1]
    result, first = [], 0
    while first < len(text):
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + BATCH_BYTES, "right")) - 1)
        # A copy of its own, as reading makes it.
        result.append(text.take(pa.array(np.arange(first, last))))
        first = last
    return result


def size_of(texts: list[pa.LargeStringArray]) -> int:
    return sum(int(np.diff(text_buffers(array)[1]).sum()) for array in texts)


# ---- kernels ---------------------------------------------------------------------------------------------------------


@njit(nogil=True)
def _decode_all(data: NDArray[np.uint8], offsets: NDArray[np.int64], out: NDArray[np.uint32]) -> int:
    total = 0
    for d in range(offsets.size - 1):
        total += decode(data, offsets[d], offsets[d + 1], out)[0]
    return total


def decode_array(texts: pa.LargeStringArray) -> int:
    data, offsets = text_buffers(texts)
    return int(_decode_all(data, offsets, np.empty(int(np.diff(offsets).max(initial=0)), np.uint32)))


def random_words(texts: list[pa.LargeStringArray]) -> list[str]:
    """SENSITIVE_WORDS of two Han characters each, of those that the corpus has, each as likely as any other."""
    characters = sorted({c for array in texts[:8] for text in array.to_pylist() for c in text if "一" <= c <= "鿿"})
    rng = random.Random(1)
    return ["".join(rng.choices(characters, k=2)) for _ in range(SENSITIVE_WORDS)] if characters else []


def measurements(table: pa.Table, questions: Path) -> Iterator[tuple[str, tuple[str, ...], Work | str]]:
    """(name, what it runs on, work or why it cannot run)."""
    from taojin.core.repair import repair_array
    from taojin.dedup.config import SketchConfig
    from taojin.dedup.sketch import sketch_array
    from taojin.quality.classifier import score_array
    from taojin.quality.contamination import Finder
    from taojin.quality.fit import MIN_DOCUMENTS, FitConfig, fit
    from taojin.quality.language import identify_array
    from taojin.quality.personal import count_personal
    from taojin.quality.question_files import Question
    from taojin.quality.questions import load_questions, make_questions
    from taojin.quality.sensitive import SensitiveMatcher, parse_lists

    every = ("mix", "zh", "en")
    config = SketchConfig()
    yield "floor: decode", every, decode_array
    yield "floor: sketch, K=128", every, lambda texts: sketch_array(texts, config, np.zeros(len(texts), np.uint8))
    yield "signals, symbols as words", every, lambda texts: measure_array(texts, np.zeros(len(texts), np.uint8))
    segmenter = choose_segmenter()
    name = f"signals, segmented words ({segmenter.name})"
    yield name, ("zh",), lambda texts: measure_array(texts, np.zeros(len(texts), np.uint8), segmenter)
    yield "language", every, identify_array
    yield "personal data", ("mix",), count_personal
    mix = batches(table)
    words = random_words(mix)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "words.txt"
        path.write_text("\n".join(words), encoding="utf-8")
        name = f"sensitive words, {len(words):,} random pairs of characters"
        yield name, ("mix",), SensitiveMatcher(parse_lists([f"random={path}"])).measure if words else "no Han in it"
    files = sorted(questions.glob("*.jsonl")) if questions.is_dir() else []
    if files:
        finder = Finder(load_questions([str(path) for path in files]))
        name = f"contamination, {len(files)} evaluation sets"
    else:
        rng = random.Random(2)
        texts = ["".join(rng.choices(words, k=30)) for _ in range(GENERATED_QUESTIONS)] if words else []
        made = [Question(str(number), text) for number, text in enumerate(texts)]
        finder, name = (
            Finder(make_questions(["generated"], [made])),
            f"contamination, {len(made):,} generated questions",
        )
    yield f"{name}, {finder.questions.runs.size:,} runs", ("mix",), finder.find
    classes = [of_language(table, language).slice(0, FITTED_DOCUMENTS) for language in ("zh", "en")]
    if min(map(len, classes)) < MIN_DOCUMENTS:
        yield "fitted classifier", ("mix",), f"fewer than {MIN_DOCUMENTS} Chinese or English documents to fit it on"
    else:
        classifier = fit(batches(classes[0]), batches(classes[1]), FitConfig()).classifier
        yield "fitted classifier", ("mix",), lambda texts: score_array(classifier, texts)
    yield "repair", ("mix",), repair_array


def run_all(work: Work, texts: list[pa.LargeStringArray]) -> None:
    for array in texts:
        work(array)


def kernels(options: argparse.Namespace) -> dict[str, Any]:
    table, source = read(options.input, options.most_mb)
    sets = {name: batches(of_language(table, name)) for name in ("mix", "zh", "en")}
    rows = []
    for name, corpora, work in measurements(table, options.questions):
        for corpus in corpora:
            texts = sets[corpus]
            row: dict[str, Any] = {"name": name, "corpus": corpus, "language_from": source}
            if isinstance(work, str) or not texts:
                rows.append({**row, "reason": work if isinstance(work, str) else f"no documents in {corpus}"})
                continue
            work(texts[0].slice(0, 10))
            seconds = best_seconds(partial(run_all, work, texts), options.repeat)
            row |= {"documents": sum(map(len, texts)), "text_bytes": size_of(texts), "cpu_seconds": seconds}
            print(
                f"  {name} on {corpus}: {row['text_bytes'] / 1e6 / seconds:.1f} MB/CPU-s", file=sys.stderr, flush=True
            )
            rows.append(row)
    return {"rows": rows}


# ---- scan ------------------------------------------------------------------------------------------------------------


class ReadAlone:
    """An analyzer that looks at nothing: what every scan pays, reading and the sidecar's common columns."""

    def fields(self) -> list[pa.Field]:
        return []

    def start(self, *_: Any) -> "ReadAlone":
        return self

    def add(self, batch: Any, first_row: int) -> dict[str, pa.Array]:
        return {"chars": pa.array(np.zeros(len(batch.status), np.uint32))}

    def close(self) -> None:
        pass

    def files(self) -> dict[str, dict[str, Any]]:
        return {}


def scan(options: argparse.Namespace) -> dict[str, Any]:
    """CPU seconds of the best round of each; rounds take turns, so that a slow minute spoils all alike."""
    from taojin.core.scan import ScanContext, scan_unit
    from taojin.core.storage import Folder
    from taojin.frozen import open_plan
    from taojin.jobs import DedupJob
    from taojin.pipeline import analyzers_of

    rows, text_bytes = [], 0
    for language in (False, True):
        shutil.rmtree(options.work, ignore_errors=True)
        config = DedupJob(
            input=(str(options.input),), work=str(options.work), report_only=True, signals=True, language=language
        )
        work = Folder(config.work_folder)
        plan = open_plan(config, work)
        sketch, signals = analyzers_of(config)
        variants: dict[str, tuple[Any, ...]] = {
            "reading alone": (ReadAlone(),),
            "signals": (signals,),
            "sketch": (sketch,),
            "signals and sketch": (sketch, signals),
        }
        best = dict.fromkeys(variants, float("inf"))
        for number in range(options.repeat + 1):  # the first one warms up, on a single unit
            for name, analyzers in variants.items():
                context = ScanContext(plan, config.reading, work, analyzers)
                begin = time.process_time()
                counts = [scan_unit(context, unit) for unit in range(len(plan.units) if number else 1)]
                if number:
                    best[name] = min(best[name], time.process_time() - begin)
                    text_bytes = sum(count["bytes"] for count in counts)
        ratio = best["signals and sketch"] / (best["signals"] + best["sketch"] - best["reading alone"])
        rows += [
            {"name": f"scan, --{'' if language else 'no-'}language: {name}", "cpu_seconds": seconds}
            for name, seconds in best.items()
        ]
        rows[-1]["together"] = ratio
        print(f"  scan, language {language}: together / apart {ratio:.3f}", file=sys.stderr, flush=True)
    shutil.rmtree(options.work)
    return {"rows": [{**row, "text_bytes": text_bytes} for row in rows]}


PARTS = {"kernels": kernels, "scan": scan}


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.quality", description="MB of text per CPU-second of quality's parts")
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--input", type=Path, required=True, help="folder of Parquet shards")
    parser.add_argument("--work", type=Path, help="scan: the WORK folder, removed afterwards")
    parser.add_argument(
        "--questions", type=Path, default=DEFAULT_CORPUS.parent / "eval", help="kernels: evaluation sets"
    )
    parser.add_argument("--most-mb", type=float, default=float("inf"), help="kernels: of text to read")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    if options.part == "scan" and options.work is None:
        print("bench.quality: scan needs --work DIR", file=sys.stderr)
        return 2
    pa.set_cpu_count(1)
    try:
        print(json.dumps(PARTS[options.part](options)))
    except CorpusError as error:
        print(f"bench.quality: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
