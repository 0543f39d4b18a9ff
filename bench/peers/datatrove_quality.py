"""datatrove 0.10: its quality filters on a few hundred documents: speed of the chains, and every filter's verdict.

In: zh.parquet and en.parquet (id, text) in --input. Out, in --result: per chain CPU seconds, who is kept, and of each
filter the reason (null: kept) for every document. Chinese: FineWeb-2's chain with the thresholds and stop words of its
configs/cmn_Hani.yml; English: FineWeb's, C4's rule on final punctuation off (examples/fineweb.py).

The verdicts come first, untimed, from filters that all see the text as it was; this also warms spaCy's caches. Then the
chain is timed as a pipeline runs it: a document stops at the filter that drops it. Process time around the filters, the
better of two rounds: start-up, models and reading are not in it. Words are split once a document (datatrove's own cache
of five texts).
"""

# mypy: ignore-errors
# (the peer is installed in its own virtual environment only)

import json
import sys
import time

import pyarrow.parquet as pq
from common import arguments
from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.pipeline.filters.base_filter import BaseFilter, get_filter_result

ROUNDS = 2
CHINESE = "cmn_Hani"
CHINESE_STOP_WORDS = list("的年在月是和日了於·為有被人中为他與後也而由")


def chinese() -> list[BaseFilter]:
    return [
        GopherRepetitionFilter(
            language=CHINESE,
            dup_para_frac=0,
            dup_line_char_frac=0,
            dup_para_char_frac=0,
            dup_line_frac=0.287,
            top_n_grams=((2, 0.256), (3, 0.201), (4, 0.171)),
            dup_n_grams=((5, 0.198), (6, 0.182), (7, 0.167), (8, 0.154), (9, 0.14), (10, 0.127)),
        ),
        FineWebQualityFilter(
            language=CHINESE,
            short_line_thr=999,
            char_duplicates_ratio=0.1,
            line_punct_thr=0.106,
            new_line_ratio=0.178,
        ),
        GopherQualityFilter(
            language=CHINESE,
            min_avg_word_length=1,
            max_avg_word_length=5,
            max_non_alpha_words_ratio=0.735,
            stop_words=CHINESE_STOP_WORDS,
        ),
    ]


def english() -> list[BaseFilter]:
    return [
        GopherRepetitionFilter(),
        GopherQualityFilter(),
        C4QualityFilter(filter_no_terminal_punct=False),
        FineWebQualityFilter(),
    ]


def run_chain(filters: list[BaseFilter], texts: list[str]) -> tuple[list[float], list[bool]]:
    """(CPU seconds of each filter, who is kept)."""
    seconds = [0.0] * len(filters)
    kept = []
    for text in texts:
        document = Document(text=text, id="")
        passes = True
        for number, each in enumerate(filters):
            begin = time.process_time()
            passes = bool(get_filter_result(each.filter(document))[0])
            seconds[number] += time.process_time() - begin
            if not passes:
                break
        kept.append(passes)
    return seconds, kept


def measure(filters: list[BaseFilter], texts: list[str]) -> dict[str, object]:
    names = [type(each).__name__ for each in filters]
    reasons: dict[str, list[str | None]] = {name: [] for name in names}
    for text in texts:
        for name, each in zip(names, filters, strict=True):
            passes, reason = get_filter_result(each.filter(Document(text=text, id="")))
            reasons[name].append(None if passes else reason or "no reason")
    seconds, kept = min((run_chain(filters, texts) for _ in range(ROUNDS)), key=lambda result: sum(result[0]))
    stages = dict(zip(names, seconds, strict=True))
    return {"cpu_seconds": sum(seconds), "stages": stages, "kept": kept, "reasons": reasons}


def main() -> None:
    options = arguments(__doc__ or "")
    result: dict[str, object] = {"python": sys.version.split()[0]}
    for name, make in (("zh", chinese), ("en", english)):
        texts = pq.read_table(options.input / f"{name}.parquet", columns=["text"])["text"].to_pylist()
        result[name] = measure(make(), texts)
    options.result.write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
