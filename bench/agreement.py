"""Our verdicts beside datatrove's, on a few hundred documents: `python -m bench.agreement sample|compare`.

    sample    --input SHARDS --output DIR: zh.parquet and en.parquet, the --documents of each language that come first
              by hash of their id; those of LONGEST characters or more are left out
    compare   --input DIR --peer FILE: the same documents through our signals and rules, as one character a word and
              segmented; FILE is what peers/datatrove_quality.py wrote about them

Prints one JSON object. The rules are the presets of the same chains: fineweb2-cmn for Chinese; gopher-repetition,
gopher, c4-fineweb and fineweb for English. The language of a document is what the corpus says.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bench.corpus import CorpusError
from bench.kernels import best_seconds
from bench.quality import batches, of_language, read, size_of
from taojin.quality.measure import measure_array
from taojin.quality.rules import Judgement, Preset, judge, load_presets
from taojin.quality.segment import Segmenter, choose_segmenter
from taojin.quality.signals import HEURISTIC_SIGNALS

Names: TypeAlias = NDArray[np.object_]

# datatrove takes seconds for a book, and a few books would be the whole sample.
LONGEST = 50_000
EXAMPLES = 5
# A few hundred documents are tens of milliseconds: more rounds than elsewhere.
REPEAT = 10

# datatrove's reasons, in the order in which its filter checks them, and the names of our rules.
REPETITION = {
    "dup_para_frac": "dup_paragraphs",
    "dup_para_char_frac": "dup_paragraph_chars",
    "dup_line_frac": "dup_lines",
    "dup_line_char_frac": "dup_line_chars",
    **{f"top_{n}_gram": f"top_{n}gram" for n in (2, 3, 4)},
    **{f"duplicated_{n}_n_grams": f"dup_{n}grams" for n in range(5, 11)},
}
GOPHER = {
    "gopher_short_doc": "too_few_words",
    "gopher_long_doc": "too_many_words",
    "gopher_below_avg_threshold": "words_too_short",
    "gopher_above_avg_threshold": "words_too_long",
    "gopher_too_many_hashes": "too_many_hash_signs",
    "gopher_too_many_ellipsis": "too_many_ellipses",
    "gopher_too_many_bullets": "too_many_bullet_lines",
    "gopher_too_many_end_ellipsis": "too_many_ellipsis_lines",
    "gopher_below_alpha_threshold": "too_few_words_with_letters",
    "gopher_enough_stop_words": "too_few_stop_words",
}
FINEWEB = {
    "empty": "no_lines",
    "line_punct_ratio": "too_few_lines_end_in_punctuation",
    "short_line_ratio": "too_many_short_lines",
    "char_dup_ratio": "dup_line_chars",
    "list_ratio": "too_many_newlines",
}
C4 = {"lorem_ipsum": "lorem_ipsum", "curly_bracket": "curly_brackets", "too_few_sentences": "too_few_sentences"}
# FineWeb-2 has these off; fineweb2-cmn.dup_line_chars is FineWeb's.
_OFF = ("dup_para_frac", "dup_para_char_frac", "dup_line_char_frac")
# By language: datatrove's filters in the order of the chain, with our preset and the reasons of each.
CHAINS: dict[str, dict[str, tuple[str, dict[str, str]]]] = {
    "zh": {
        "GopherRepetitionFilter": ("fineweb2-cmn", {k: v for k, v in REPETITION.items() if k not in _OFF}),
        "FineWebQualityFilter": ("fineweb2-cmn", FINEWEB),
        "GopherQualityFilter": ("fineweb2-cmn", GOPHER),
    },
    "en": {
        "GopherRepetitionFilter": ("gopher-repetition", REPETITION),
        "GopherQualityFilter": ("gopher", GOPHER),
        "C4QualityFilter": ("c4-fineweb", C4),
        "FineWebQualityFilter": ("fineweb", FINEWEB),
    },
}


def sample(options: argparse.Namespace) -> dict[str, Any]:
    table, source = read(options.input)
    options.output.mkdir(parents=True, exist_ok=True)
    told: dict[str, Any] = {"language_from": source}
    for language in CHAINS:
        rows = of_language(table, language)
        text = rows["text"]
        blank = pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(text)), 0)
        rows = rows.filter(pc.and_not(pc.less(pc.utf8_length(text), LONGEST), blank))
        hashes = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in rows["id"].to_pylist()]
        chosen = sorted(range(len(hashes)), key=hashes.__getitem__)[: options.documents]
        if not chosen:
            raise CorpusError(f"the corpus has no documents in {language}: the lane `quality` compares some")
        pq.write_table(rows.take(pa.array(chosen)), options.output / f"{language}.parquet")
        told[language] = len(chosen)
    return told


def our_chain(
    texts: list[pa.LargeStringArray], segmenter: Segmenter | None, presets: Sequence[Preset], language: str
) -> Judgement:
    """Measure and judge."""
    measured = []
    for array in texts:
        chinese = np.full(len(array), language == "zh")
        measured.append(measure_array(array, np.zeros(len(array), np.uint8), segmenter, chinese))
    matrix = np.concatenate(measured, 1)
    signals = {signal.name: matrix[number] for number, signal in enumerate(HEURISTIC_SIGNALS)}
    return judge(presets, signals, (np.zeros(matrix.shape[1], np.int16), [language]))


def compare(options: argparse.Namespace) -> dict[str, Any]:
    peer = json.loads(options.peer.read_text())
    segmenter = choose_segmenter()
    rows: list[dict[str, Any]] = []
    agreement: list[dict[str, Any]] = []
    for language, filters in CHAINS.items():
        table = pq.read_table(options.input / f"{language}.parquet")
        texts, ids = batches(table), np.array(table["id"].to_pylist(), object)
        presets = load_presets(dict.fromkeys(preset for preset, _ in filters.values()))
        dropped = ~np.array(peer[language]["kept"])
        seconds = peer[language]["cpu_seconds"]
        common = {"corpus": f"{len(dropped)} {language}", "text_bytes": size_of(texts)}
        rows.append({**common, "name": "datatrove's chain", "cpu_seconds": seconds, "dropped": float(dropped.mean())})
        for words, chosen in (("symbols", None), ("segmented", segmenter)):
            work = partial(our_chain, texts, chosen, presets, language)
            judgement = work()
            ours = judgement.first >= 0
            row = {**common, "name": f"our chain, {words}", "cpu_seconds": best_seconds(work, REPEAT)}
            rows.append({**row, "dropped": float(ours.mean()), "times_peer": seconds / row["cpu_seconds"]})
            here = {"language": language, "words": words}
            agreement.append({**here, **agree("the whole chain", ids, ours, dropped)})
            for name, (preset, reasons) in filters.items():
                found = by_rule(name, ids, preset, reasons, peer[language]["reasons"][name], judgement)
                agreement += [{**here, **line} for line in found]
    return {"rows": rows, "agreement": agreement}


def by_rule(
    name: str, ids: Names, preset: str, reasons: dict[str, str], verdicts: list[str | None], judgement: Judgement
) -> Iterator[dict[str, Any]]:
    """A filter as a whole, then its rules, each over the documents of which datatrove's verdict on it is known: those
    that no earlier rule of the filter drops."""
    order = list(reasons)
    unknown = {reason for reason in verdicts if reason is not None} - set(order)
    if unknown:
        raise ValueError(f"datatrove's {name} has reasons that are unknown here: {', '.join(sorted(unknown))}")
    places = np.array([len(order) if reason is None else order.index(reason) for reason in verdicts])
    numbers = {
        place: judgement.reasons.index(f"{preset}.{rule}")
        for place, rule in enumerate(reasons.values())
        if f"{preset}.{rule}" in judgement.reasons
    }
    fails_one = np.asarray(judgement.failed[list(numbers.values())].any(axis=0))
    yield agree(name, ids, fails_one, places < len(order))
    for place, number in numbers.items():
        known = places >= place
        ours = judgement.failed[number][known]
        yield agree(f"{name}: {reasons[order[place]]}", ids[known], ours, places[known] == place)


def agree(rule: str, ids: Names, ours: NDArray[np.bool_], theirs: NDArray[np.bool_]) -> dict[str, Any]:
    """How many documents each drops, how many verdicts are the same, and the ids of the first few that are not."""
    other = np.flatnonzero(ours != theirs)
    return {
        "rule": rule, "documents": len(ours), "theirs": int(theirs.sum()), "ours": int(ours.sum()),
        "same": len(ours) - len(other), "other": ids[other[:EXAMPLES]].tolist(),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.agreement", description="our verdicts beside datatrove's")
    parts = parser.add_subparsers(dest="part", required=True)
    one = parts.add_parser("sample")
    one.add_argument("--output", type=Path, required=True)
    one.add_argument("--documents", type=int, default=300, help="of each language")
    other = parts.add_parser("compare")
    other.add_argument("--peer", type=Path, required=True, help="what peers/datatrove_quality.py wrote")
    for part in (one, other):
        part.add_argument("--input", type=Path, required=True)
    options = parser.parse_args()
    pa.set_cpu_count(1)
    try:
        print(json.dumps(sample(options) if options.part == "sample" else compare(options)))
    except CorpusError as error:
        print(f"bench.agreement: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
