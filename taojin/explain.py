"""Why a document went or stayed, with the evidence: `taojin explain WORK DOCUMENT`.

In: WORK (plan, sidecars, one decide folder) and, where it still stands, the input itself for the texts.
Out: the facts as plain values; `taojin.explain_report` prints them.
Cost: one key range of the ids, one unit's decisions and ledger, and at most two pieces of text per pair shown.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from tyro.conf import Positional, arg

from taojin.core.config import Config
from taojin.core.errors import InputError
from taojin.core.ledger import VERIFIED_NAMES
from taojin.core.sidecars import Corpus, gather
from taojin.core.status import STATUS_REASONS
from taojin.core.storage import Folder
from taojin.core.tasks import unit_name
from taojin.dedup.config import DedupConfig
from taojin.dedup.sketch import standard_error
from taojin.evidence import compare, exact_jaccard
from taojin.explain_report import print_explanation
from taojin.naming import find_document
from taojin.opened import OpenWork, open_corpus, open_work, place_of, read_decisions, read_texts, unit_of
from taojin.report import REASON_WORDS, number, print_json

SHOWN = 10  # documents listed of a cluster


class ExplainConfig(Config):
    """Why a document went or stayed: reason, survivor, similarity, and the texts side by side."""

    work: Positional[str]
    """the WORK folder of a run, or one WORK/decide-… in it"""
    document: Positional[str]
    """its id, or <shard path>#<row>, or its position (the number in `cluster`)"""
    as_json: Annotated[bool, arg(name="json")] = False
    """one JSON object on stdout"""


def run_explain(config: ExplainConfig) -> int:
    """Print the explanation; returns 0. Raises InputError for a WORK or a document that is not there."""
    opened = open_work(config.work)
    ordinal, namesakes = find_document(opened.corpus, config.document)
    facts = explain_document(opened, ordinal)
    facts["same_id"] = [place_of(opened.corpus, other) for other in namesakes]
    if config.as_json:
        print_json(facts)
    else:
        print_explanation(facts)
    return 0


def explain_document(opened: OpenWork, ordinal: int) -> dict[str, Any]:
    """Everything that is known of one document, as plain values (what --json prints)."""
    corpus, decide, settings, others = opened
    unit = unit_of(corpus, ordinal)
    row = ordinal - int(corpus.ordinals.unit_first[unit])
    decision = read_decisions(decide, unit).slice(row, 1).to_pylist()[0]
    document = describe(corpus, [ordinal])[0]
    resolved = _resolved(decide)
    own_component = int(corpus.ordinals.ordinals(np.array([decision["component"]]))[0])
    linked = int(np.count_nonzero(resolved["component"] == own_component))
    facts: dict[str, Any] = {
        "document": document,
        "kept": decision["keep"],
        "reason": decision["reason"],
        "why": "",
        "similarity": decision["similarity"],
        "verified": None,
        "survivor": None,
        "cluster_size": decision["cluster_size"],
        "in_its_favour": [],
        "component": decision["component"],
        "component_size": max(linked, 1),
        "settings": settings,
        "decide": decide.uri,
        "other_decisions": others,
        "evidence": None,
        "no_evidence_because": None,
    }
    facts["failures"], facts["question"] = _failures(opened, unit, row)
    if decision["keep"] and not isinstance(corpus.config, DedupConfig):
        facts["why"] = "it is only annotated" if facts["failures"] else "it passes every rule"
    elif decision["keep"]:
        _explain_kept(opened, ordinal, resolved, facts)
    else:
        _explain_removed(opened, ordinal, unit, facts)
    return facts


def describe(corpus: Corpus, documents: Sequence[int]) -> list[dict[str, Any]]:
    """Where each document (ascending ordinals) lies and what its sidecar says."""
    wanted = np.array(documents, np.int64)
    names = ["id", "source", "chars", "bytes", "status"]
    compared = isinstance(corpus.config, DedupConfig)
    columns = gather([corpus.view], wanted, [*names, "shingles"] if compared else names)
    shards, rows = corpus.ordinals.shard_and_row(wanted)
    positions = corpus.ordinals.positions(wanted)
    described = []
    for i in range(len(wanted)):
        path, row = corpus.plan.shards[shards[i]].path, int(rows[i])
        described.append(
            {
                "shard": path,
                "row": row,
                "position": int(positions[i]),
                "id": columns["id"][i].as_py() or f"{path}#{row}",
                "source": columns["source"][i].as_py(),
                "characters": int(columns["chars"][i]),
                "bytes": int(columns["bytes"][i]),
                "shingles": int(columns["shingles"][i]) if compared else 0,
                "status": int(columns["status"][i]),
            }
        )
    return described


def _failures(opened: OpenWork, unit: int, row: int) -> tuple[list[dict[str, Any]], str | None]:
    """(the rules that a document fails, each with the statement that its value makes false; the question it holds)."""
    corpus, decide, settings, _ = opened
    if settings.get("presets") is None:
        return [], None
    from taojin.quality.rules import describe

    rules = {f"{p.name}.{rule.reason}": rule for p in corpus.config.all_presets for rule in p.rules}
    with decide.child("rules").open(f"{unit_name(unit)}.arrow") as file:
        judged = pa.ipc.open_file(file).get_batch(0).slice(row, 1).to_pylist()[0]
    failures = [
        {"reason": reason, "statement": describe(rules[reason], value)}
        for reason, value in zip(judged["reasons"], judged["values"], strict=True)
    ]
    return failures, judged["evidence"]


def _resolved(decide: Folder) -> dict[str, NDArray[Any]]:
    if not decide.exists("resolved.arrow"):
        return {"component": np.zeros(0, np.int64)}
    with decide.open("resolved.arrow") as file:
        table = pa.ipc.open_file(file).read_all()
        names = ("document", "keep", "survivor", "similarity", "verified", "component")
        return {name: table.column(name).to_numpy() for name in names}


def _explain_kept(opened: OpenWork, ordinal: int, resolved: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
    corpus, settings = opened.corpus, opened.settings
    favour = np.flatnonzero((resolved["survivor"] == ordinal) & ~resolved["keep"].astype(bool))[:SHOWN]
    documents = resolved["document"][favour]
    if not len(favour):
        what = "short text" if facts["document"]["shingles"] == 0 else "text"
        facts["why"] = f"no other {what} with similarity {settings['threshold']:g} or more was found" + (
            ", among those that stay" if facts["component_size"] > 1 else ""
        )
        return
    facts["why"] = number(facts["cluster_size"] - 1, "document") + " went in its favour"
    texts: dict[int, bytes] = {}
    try:
        texts = read_texts(corpus, np.append(documents, ordinal))
    except InputError as error:
        facts["no_evidence_because"] = str(error)
    for i, described in zip(favour.tolist(), describe(corpus, documents.tolist()), strict=True):
        described["similarity"] = float(resolved["similarity"][i])
        described["verified"] = VERIFIED_NAMES[int(resolved["verified"][i])]
        described["exact_jaccard"] = None
        if texts:
            text = texts[int(resolved["document"][i])]
            described["exact_jaccard"] = exact_jaccard(texts[ordinal], text, corpus.config.ngram).jaccard
        facts["in_its_favour"].append(described)


def _explain_removed(opened: OpenWork, ordinal: int, unit: int, facts: dict[str, Any]) -> None:
    corpus, decide, settings, _ = opened
    filesystem, _ = decide.resolve()
    with filesystem.open_input_file(decide.path(f"ledger/{unit_name(unit)}.parquet")) as file:
        table = pq.ParquetFile(file).read()
    entries = table.filter(pc.equal(table.column("position"), facts["document"]["position"])).to_pylist()
    if not entries:
        raise InputError(f"{decide.uri}: no ledger row for this removal; run `taojin check`")
    entry = entries[0]
    facts["verified"] = entry["verified"]
    failed = next((failure for failure in facts["failures"] if failure["reason"] == entry["reason"]), None)
    facts["why"] = failed["statement"] if failed else reason_in_words(entry, settings, corpus.config)
    if entry["survivor_position"] is None:
        return
    facts["survivor"] = {
        "work": entry["survivor_work"],
        "shard": entry["survivor_shard"],
        "row": entry["survivor_row"],
        "position": entry["survivor_position"],
        "id": entry["survivor_id"],
        "kept": not settings["keep_none"] or entry["survivor_work"] is not None,
    }
    try:
        text = read_texts(corpus, np.array([ordinal]))[ordinal]
        other = _index_of(entry["survivor_work"]) if entry["survivor_work"] is not None else corpus
        survivor = int(other.ordinals.ordinals(np.array([entry["survivor_position"]]))[0])
        survivor_text = read_texts(other, np.array([survivor]))[survivor]
    except InputError as error:
        facts["no_evidence_because"] = str(error)
        return
    facts["evidence"] = compare(text, survivor_text, corpus.config.ngram)


def _index_of(uri: str) -> Corpus:
    index = Folder(uri)
    if not index.exists("plan.json"):
        raise InputError(f"{index.uri} is not there any more")
    return open_corpus(index)


def reason_in_words(entry: dict[str, Any], settings: dict[str, Any], config: DedupConfig) -> str:
    """One sentence for a ledger row."""
    reason = entry["reason"]
    if reason in STATUS_REASONS.values():
        return f"{REASON_WORDS[reason]}: it could not be compared with others"
    stays = "a document that stays" if not settings["keep_none"] else "another one (--keep-none drops both)"
    if entry["survivor_work"]:
        stays = "a document of the index"
    if reason == "exact_duplicate":
        return f"its bytes are those of {stays}"
    if reason == "folded_duplicate":
        return f"a text of fewer than {config.min_symbols} symbols that equals {stays}, once folded"
    how = {
        "sketch": f"estimated from sketches, standard error up to {standard_error(config.threshold, config):.3f}",
        "exact": "by exact shingles",
        "hash": "equal once folded",
    }[entry["verified"]]
    return f"similarity {entry['similarity']:.3f} to {stays} ({how}), threshold {settings['threshold']:g}"
