"""Why a document went or stayed, with the evidence: `taojin explain WORK DOCUMENT`.

In: WORK (plan, sidecars, one decide folder) and, where it still stands, the input itself for the texts.
Out: stdout. Cost: one key range of the ids, one unit's decisions and ledger, and at most two pieces of text per pair
shown; texts are compared up to COMPARED_CHARACTERS characters, so the time is bounded whatever their length.

`open_work`, `read_rows` and `exact_jaccard` serve `taojin check` too.
"""

import difflib
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from tyro.conf import Positional, arg

from taojin.core.config import Config
from taojin.core.corpus import Ordinals, Plan, Shard, Span, find_files, inspect_shard
from taojin.core.errors import InputError
from taojin.core.fold import BREAK, CLASS_SHIFT, CODE_POINT_MASK, VANISH, load_fold_table
from taojin.core.reading import BadShardError, read_unit
from taojin.core.status import EMPTY, STATUS_REASONS
from taojin.core.storage import Folder
from taojin.core.tasks import unit_name
from taojin.core.text import SYMBOLS_PER_BYTE, hash_bytes
from taojin.core.uris import last_part, split_query, with_suffix
from taojin.dedup.bands import read_range
from taojin.dedup.config import DedupConfig
from taojin.dedup.decide import Corpus
from taojin.dedup.scan import columns_of
from taojin.dedup.shingles import intersection_size, scratch_for, shingle_sets
from taojin.dedup.sidecars import WorkView, gather
from taojin.dedup.sketch import standard_error, text_buffers
from taojin.report import REASON_WORDS

SHOWN = 10  # documents listed of a cluster
PASSAGES = 3
EXTENDED = 64  # candidate passages that are extended beyond their seeds
PASSAGE_SHOWN = 60  # characters of a passage that are printed
SEED_CHARACTERS = 8  # shorter agreements are chance
COMPARED_CHARACTERS = 200_000
EXCERPT_BEFORE, EXCERPT_AFTER = 20, 600  # characters around the first difference that are aligned
EXCERPT_SHOWN, LONG_DIFFERENCE = 140, 60  # printed of them, and of one difference
# Ids looked at for names near to one that is not there.
NEAR_POOL, NEAR_SEARCHED = 10_000, 1_000_000
MIN_WIDTH, MAX_WIDTH = 40, 110
_ROLL = np.uint64(0x9E3779B97F4A7C15)


class ExplainConfig(Config):
    """Why a document went or stayed: reason, survivor, similarity, and the texts side by side."""

    work: Positional[str]
    """the WORK folder of a run, or one WORK/decide-… in it"""
    document: Positional[str]
    """its id, or <shard path>#<row>, or its position (the number in `cluster`)"""
    as_json: Annotated[bool, arg(name="json")] = False
    """one JSON object on stdout"""


class OpenWork(NamedTuple):
    """A finished WORK folder. corpus.config: settings of scan and decision; others: finished decisions not taken."""

    corpus: Corpus
    decide: Folder
    settings: dict[str, Any]
    others: list[str]


def run_explain(config: ExplainConfig) -> int:
    """Print the explanation; returns 0. Raises InputError for a WORK or a document that is not there."""
    opened = open_work(config.work)
    ordinal, namesakes = find_document(opened.corpus, config.document)
    facts = explain_document(opened, ordinal)
    facts["same_id"] = [_name_of(opened.corpus, other) for other in namesakes]
    if config.as_json:
        import orjson

        sys.stdout.write(orjson.dumps(facts).decode() + "\n")
    else:
        print_explanation(facts)
    return 0


# ---------------------------------------------------------------------------------------------- opening a WORK folder


def open_work(name: str) -> OpenWork:
    """WORK with its newest finished decision, or WORK/decide-…; raises InputError for anything else."""
    path, query = split_query(name)
    folder, _, last = path.rpartition("/")
    chosen = last if last.startswith("decide-") else None
    work = Folder((folder or ".") + query if chosen else path + query)
    if not work.exists("plan.json"):
        hint = ""
        if work.exists("_manifest.json") or work.exists("_taojin.json"):
            hint = f"; this is an output, its WORK is {with_suffix(name, '.work')} unless --work named another"
        raise InputError(f"{name}: expected a WORK folder (plan.json in it) or WORK/decide-…, found neither{hint}")
    corpus = open_corpus(work)
    num_units = len(corpus.plan.units)
    folders = [chosen] if chosen else [entry for entry in work.names() if entry.startswith("decide-")]
    done = [entry for entry in folders if len(work.names(f"{entry}/stats/decisions")) == num_units]
    done = [entry for entry in done if work.exists(f"{entry}/config.json")]
    if not done:
        what = f"{chosen} is" if chosen else "no decide-… folder in it is"
        raise InputError(f"{name}: {what} finished; run the same `taojin dedup` command again to complete it")
    done.sort(key=lambda entry: (_modified(work, f"{entry}/config.json"), entry))
    taken = done.pop()
    settings = work.read_json(f"{taken}/config.json")
    config = corpus.config.model_copy(
        update={key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    )
    return OpenWork(corpus._replace(config=config), work.child(taken), settings, done)


def open_corpus(work: Folder) -> Corpus:
    """A scanned WORK folder as readers need it. Raises InputError while its scan is unfinished."""
    plan = Plan.from_json(work.read_json("plan.json"))
    names = work.names("stats/scan")
    if len(names) != len(plan.units):
        raise InputError(
            f"{work.uri}: {len(names)} of {len(plan.units)} units are scanned; run the same `taojin dedup` command "
            "again to complete it"
        )
    rows = [piece[2] for name in names for piece in work.read_json(f"stats/scan/{name}")["pieces"]]
    values = {key: value for key, value in plan.config.items() if key != "formats"}
    config = DedupConfig(**values, input=(work.uri,), work=work.uri, report_only=True)
    ordinals = Ordinals(plan, rows)
    paths = tuple(shard.path for shard in plan.shards)
    view = WorkView(work, 0, ordinals.unit_first, ordinals.shard_first, paths, "", plan.num_ranges)
    return Corpus(plan, config, ordinals, view)


def _modified(work: Folder, name: str) -> float:
    filesystem, _ = work.resolve()
    return float(filesystem.get_file_info(work.path(name)).mtime_ns or 0)


# ---------------------------------------------------------------------------------------------- finding a document


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
    plan, _, _, view = corpus
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


def describe(corpus: Corpus, documents: Sequence[int]) -> list[dict[str, Any]]:
    """Where each document (ascending ordinals) lies and what its sidecar says."""
    wanted = np.array(documents, np.int64)
    columns = gather([corpus.view], wanted, ("id", "source", "chars", "bytes", "shingles", "status"))
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
                "shingles": int(columns["shingles"][i]),
                "status": int(columns["status"][i]),
            }
        )
    return described


def _name_of(corpus: Corpus, ordinal: int) -> str:
    shard, row = corpus.ordinals.shard_and_row(np.array([ordinal]))
    return f"{corpus.plan.shards[shard[0]].path}#{row[0]}"


# ---------------------------------------------------------------------------------------------- the facts


def explain_document(opened: OpenWork, ordinal: int) -> dict[str, Any]:
    """Everything that is known of one document, as plain values (what --json prints)."""
    corpus, decide, settings, others = opened
    unit = int(np.searchsorted(corpus.ordinals.unit_first, ordinal, side="right")) - 1
    with decide.open(f"decisions/{unit_name(unit)}.arrow") as file:
        row = ordinal - int(corpus.ordinals.unit_first[unit])
        decision = pa.ipc.open_file(file).get_batch(0).slice(row, 1).to_pylist()[0]
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
        "settings": {**settings, "ngram": corpus.config.ngram, "num_hashes": corpus.config.num_hashes},
        "decide": decide.uri,
        "other_decisions": others,
        "evidence": None,
        "no_evidence_because": None,
    }
    if decision["keep"]:
        _explain_kept(opened, ordinal, resolved, facts)
    else:
        _explain_removed(opened, ordinal, unit, facts)
    return facts


def _resolved(decide: Folder) -> dict[str, NDArray[Any]]:
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
    facts["why"] = _documents(facts["cluster_size"] - 1) + " went in its favour"
    texts, facts["no_evidence_because"] = read_texts(corpus, [ordinal, *documents.tolist()])
    from taojin.dedup.survivors import VERIFIED_NAMES

    for i, described in zip(favour.tolist(), describe(corpus, documents.tolist()), strict=True):
        document = int(resolved["document"][i])
        described["similarity"] = float(resolved["similarity"][i])
        described["verified"] = VERIFIED_NAMES[int(resolved["verified"][i])]
        described["exact_jaccard"] = None
        if texts is not None:
            described["exact_jaccard"] = exact_jaccard(texts[ordinal], texts[document], corpus.config.ngram).jaccard
        facts["in_its_favour"].append(described)


def _explain_removed(opened: OpenWork, ordinal: int, unit: int, facts: dict[str, Any]) -> None:
    corpus, decide, settings, _ = opened
    table = _table(decide, f"ledger/{unit_name(unit)}.parquet")
    entries = table.filter(pc.equal(table.column("position"), facts["document"]["position"])).to_pylist()
    if not entries:
        raise InputError(f"{decide.uri}: no ledger row for this removal; run `taojin check`")
    entry = entries[0]
    facts["verified"] = entry["verified"]
    facts["why"] = reason_in_words(entry, settings, corpus.config)
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
    texts, missing = read_texts(corpus, [ordinal])
    other = corpus
    if entry["survivor_work"] is not None and texts is not None:
        index = Folder(entry["survivor_work"])
        if not index.exists("plan.json"):
            facts["no_evidence_because"] = f"{index.uri} is not there any more"
            return
        other = open_corpus(index)
    survivor = int(other.ordinals.ordinals(np.array([entry["survivor_position"]]))[0])
    others, missing_other = read_texts(other, [survivor]) if texts is not None else (None, None)
    if texts is None or others is None:
        facts["no_evidence_because"] = missing or missing_other
        return
    facts["evidence"] = compare(texts[ordinal], others[survivor], corpus.config.ngram)


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


def _table(folder: Folder, name: str) -> pa.Table:
    filesystem, _ = folder.resolve()
    with filesystem.open_input_file(folder.path(name)) as file:
        return pq.ParquetFile(file).read()


# ---------------------------------------------------------------------------------------------- reading the input again


def standing(shard: Shard) -> str:
    """Why a shard can no longer be read as it was planned; empty when it can."""
    try:
        found = find_files([shard.uri])[0]
        now, _ = inspect_shard(found, shard.path)
    except InputError as error:
        return f"the input {shard.path} cannot be read: {error}"
    return "" if now.fingerprint == shard.fingerprint else f"the input {shard.path} has changed since the scan"


def piece_of(ordinals: Ordinals, documents: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of the piece (over all shards) that holds each document."""
    return np.searchsorted(ordinals.piece_first, documents, side="right") - 1


def read_rows(corpus: Corpus, documents: NDArray[np.int64], names: Sequence[str]) -> pa.Table:
    """Columns of the input for documents (ascending ordinals), as the scan read them. Reads touched pieces only."""
    plan, config, ordinals, _ = corpus
    schema = pa.schema([plan.schema.field(name) for name in names])
    parts = []
    pieces = piece_of(ordinals, documents)
    for piece in np.unique(pieces).tolist():
        wanted = documents[pieces == piece]
        shard = int(np.searchsorted(ordinals.shard_first_piece, piece, side="right")) - 1
        number = piece - int(ordinals.shard_first_piece[shard])
        first = int(ordinals.piece_first[piece])
        span = Span(shard, number, number + 1)
        for batch in read_unit(
            plan, [span], names, columns_of(config), config.max_document_bytes, skip_bad=config.skip_bad_units
        ):
            low, high = np.searchsorted(wanted, [first, first + batch.rows.num_rows])
            if low < high:
                parts.append(batch.rows.take(pa.array(wanted[low:high] - first)))
            first += batch.rows.num_rows
            if high == len(wanted):
                break
    return pa.Table.from_batches(parts, schema)


def read_texts(corpus: Corpus, documents: Sequence[int]) -> tuple[dict[int, bytes] | None, str | None]:
    """(text by ordinal, None), or (None, why the input cannot be read any more). A null text reads as empty."""
    wanted = np.unique(np.array(documents, np.int64))
    shards, _ = corpus.ordinals.shard_and_row(wanted)
    for shard in np.unique(shards).tolist():
        if reason := standing(corpus.plan.shards[shard]):
            return None, reason
    try:
        table = read_rows(corpus, wanted, [corpus.config.text_column])
    except (OSError, BadShardError) as error:
        return None, f"the input cannot be read: {error}"
    values = table.column(0).cast(pa.large_binary()).to_pylist()
    return {ordinal: value or b"" for ordinal, value in zip(wanted.tolist(), values, strict=True)}, None


# ---------------------------------------------------------------------------------------------- the evidence


class Overlap(NamedTuple):
    """jaccard: of the two sets of shingles; None when neither text has one."""

    jaccard: float | None
    shared: int
    shingles: tuple[int, int]


def exact_jaccard(a: bytes, b: bytes, ngram: int) -> Overlap:
    """Exact similarity of two texts (UTF-8), with the scan's own kernels."""
    data, offsets = text_buffers(pa.array([a, b], pa.large_binary()))
    longest = max(len(a), len(b))
    fold = load_fold_table()
    out = np.empty(SYMBOLS_PER_BYTE * (len(a) + len(b)) + 1, np.uint64)
    starts = np.empty(3, np.int64)
    shingle_sets(data, offsets, fold.table, fold.expansions, ngram, scratch_for(longest), out, starts)
    first, second = out[: starts[1]], out[starts[1] : starts[2]]
    shared = int(intersection_size(first, second))
    union = len(first) + len(second) - shared
    return Overlap(shared / union if union else None, shared, (len(first), len(second)))


def compare(a: bytes, b: bytes, ngram: int) -> dict[str, Any]:
    """What two texts have in common and where they part, as plain values."""
    overlap = exact_jaccard(a, b, ngram)
    left, right = a.decode(errors="replace"), b.decode(errors="replace")
    difference = first_difference(left, right)
    start = max(0, (difference or 0) - EXCERPT_BEFORE)
    stop = start + EXCERPT_BEFORE + EXCERPT_AFTER
    return {
        "same_bytes": a == b,
        "jaccard": overlap.jaccard,
        "shared_shingles": overlap.shared,
        "shingles": list(overlap.shingles),
        "characters": [len(left), len(right)],
        "compared_characters": min(COMPARED_CHARACTERS, max(len(left), len(right))),
        "first_difference": difference,
        "excerpt_at": start,
        "excerpts": [left[start:stop], right[start:stop]],
        "passages": shared_passages(left[:COMPARED_CHARACTERS], right[:COMPARED_CHARACTERS]),
    }


def first_difference(a: str, b: str) -> int | None:
    """Index of the first character in which two texts differ; None when they are equal."""
    if a == b:
        return None
    return _agreement(_code_points(a), _code_points(b))


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def shared_passages(a: str, b: str) -> list[dict[str, Any]]:
    """The longest passages that both texts hold, after folding: up to PASSAGES, longest first, not overlapping in `a`.

    Seeds of SEED_CHARACTERS folded characters are looked up in `b` (where a seed first occurs) and joined along
    diagonals: O(n log n) time, whatever the texts.
    """
    folded_a, at_a = _folded(a)
    folded_b, at_b = _folded(b)
    if min(len(folded_a), len(folded_b)) < SEED_CHARACTERS:
        return []
    seeds_b, first_b = np.unique(_seeds(folded_b), return_index=True)
    seeds_a = _seeds(folded_a)
    slot = np.minimum(np.searchsorted(seeds_b, seeds_a), len(seeds_b) - 1)
    i = np.flatnonzero(seeds_b[slot] == seeds_a)
    j = first_b[slot[i]]
    if not len(i):
        return []
    breaks = np.flatnonzero((np.diff(i) != 1) | (np.diff(j) != 1)) + 1
    starts = np.concatenate([[0], breaks])
    lengths = np.diff(np.append(starts, len(i))) + SEED_CHARACTERS - 1
    # A seed that occurs earlier in `b` too cuts a passage: the longest ones are extended as far as the texts agree.
    found: set[tuple[int, int, int]] = set()
    for run in np.argsort(-lengths, kind="stable")[:EXTENDED].tolist():
        low, other, size = int(i[starts[run]]), int(j[starts[run]]), int(lengths[run])
        before = _agreement(folded_a[:low][::-1], folded_b[:other][::-1])
        after = _agreement(folded_a[low + size :], folded_b[other + size :])
        found.add((-(before + size + after), low - before, other - before))
    passages: list[dict[str, Any]] = []
    taken: list[tuple[int, int]] = []
    for negative_size, low, other in sorted(found):
        high = low - negative_size
        if any(low < last and first < high for first, last in taken):
            continue
        taken.append((low, high))
        begin, end = int(at_a[low]), int(at_a[high - 1]) + 1
        passages.append({"characters": end - begin, "at": [begin, int(at_b[other])], "text": _shortened(a, begin, end)})
        if len(passages) == PASSAGES:
            break
    return passages


def _agreement(a: NDArray[np.uint32], b: NDArray[np.uint32]) -> int:
    """How many leading values two arrays share."""
    size = min(len(a), len(b))
    differs = a[:size] != b[:size]
    return int(np.argmax(differs)) if differs.any() else size


def _shortened(text: str, begin: int, end: int) -> str:
    if end - begin <= PASSAGE_SHOWN:
        return text[begin:end]
    half = PASSAGE_SHOWN // 2
    return f"{text[begin : begin + half]} … {text[end - half : end]}"


def _folded(text: str) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """(folded characters, where each one is in `text`): what ends a run or vanishes is left out."""
    codes = _code_points(text)
    entries = load_fold_table().table[codes]
    kinds = entries >> np.uint32(CLASS_SHIFT)
    kept = np.flatnonzero((kinds != BREAK) & (kinds != VANISH))
    folded: NDArray[np.uint32] = (entries & np.uint32(CODE_POINT_MASK))[kept]
    return folded, kept.astype(np.int64)


def _seeds(codes: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """A hash of every SEED_CHARACTERS consecutive values."""
    size = len(codes) - SEED_CHARACTERS + 1
    out = np.zeros(size, np.uint64)
    wide = codes.astype(np.uint64)
    for k in range(SEED_CHARACTERS):
        out = out * _ROLL + wide[k : k + size]
    return out


# ---------------------------------------------------------------------------------------------- printing


def print_explanation(facts: dict[str, Any]) -> None:
    """Two columns of text where the terminal, or the pipe's 80 columns, allow."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)
    console.width = max(MIN_WIDTH, min(console.width, MAX_WIDTH))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for label, value in fact_lines(facts):
        style = "bold" if label in ("kept", "removed") else ""
        grid.add_row(label, Text(visible(value), style=style))
    console.print(grid)
    if facts["in_its_favour"]:
        console.print()
        console.print(_favour_table(facts))
    evidence = facts["evidence"]
    if evidence:
        for passage in evidence["passages"] if not evidence["same_bytes"] else ():
            console.print()
            i, j = passage["at"]
            console.print(f"shared: {passage['characters']:,} characters, from {i:,} here, from {j:,} there")
            for line in fold_cells([(visible(passage["text"]), False)], console.width - 2):
                console.print(Text("  ").append_text(_styled(line)), no_wrap=True)
        console.print()
        _print_excerpts(console, facts)


def fact_lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """(label, value) lines, in reading order."""
    document, survivor, evidence = facts["document"], facts["survivor"], facts["evidence"]
    named = document["id"] != f"{document['shard']}#{document['row']}"
    lines = [
        ("document", document["id"] if named else ""),
        ("where", f"{document['shard']}#{document['row']} (position {document['position']})"),
        ("source", document["source"] or ""),
        ("length", f"{document['characters']:,} characters, {document['bytes']:,} bytes"),
        ("kept" if facts["kept"] else "removed", facts["why"]),
    ]
    if document["status"] >= EMPTY:
        lines[3] = ("length", f"{document['bytes']:,} bytes")
    if facts["reason"]:
        lines.append(("reason", facts["reason"]))
    if survivor:
        label = "survivor" if survivor["kept"] else "partner"
        place = f"{survivor['shard']}#{survivor['row']}"
        where = f"position {survivor['position']}" + (f" of {survivor['work']}" if survivor["work"] else "")
        name = f"{survivor['id']}, " if survivor["id"] != place else ""
        lines.append((label, f"{name}{place} ({where})"))
    if facts["kept"] and facts["cluster_size"] > 1:
        lines.append(("cluster", f"{facts['cluster_size']:,}: itself and what went in its favour"))
    size = facts["component_size"]
    if size > 1:
        lines.append(("component", f"{_documents(size)} that similar pairs link, itself included"))
    if evidence:
        lines += _evidence_lines(evidence)
    if facts["no_evidence_because"]:
        lines.append(("texts", f"not shown: {facts['no_evidence_because']}"))
    decision = last_part(facts["decide"])
    if facts["other_decisions"]:
        decision += f", the newest; also there: {', '.join(facts['other_decisions'])}"
    lines.append(("decision", decision))
    if facts["same_id"]:
        others = facts["same_id"]
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        lines.append(("same id", f"also on {', '.join(others[:3])}{more}; name those by shard#row"))
    return [(label, value) for label, value in lines if value]


def _documents(count: int) -> str:
    return f"{count:,} document" + ("" if count == 1 else "s")


def _evidence_lines(evidence: dict[str, Any]) -> list[tuple[str, str]]:
    here, there = evidence["shingles"]
    lines = []
    if evidence["jaccard"] is not None:
        lines.append(
            (
                "measured",
                f"exact Jaccard {evidence['jaccard']:.3f}: {evidence['shared_shingles']:,} shingles shared, "
                f"of {here:,} here and {there:,} there",
            )
        )
    here, there = evidence["characters"]
    if evidence["same_bytes"]:
        lines.append(("texts", "the same bytes"))
        return lines
    text = f"{here:,} characters here, {there:,} there; they part at character {evidence['first_difference']:,}"
    if max(here, there) > evidence["compared_characters"]:
        text += f"; passages sought in the first {evidence['compared_characters']:,}"
    lines.append(("texts", text))
    return lines


def _favour_table(facts: dict[str, Any]) -> Any:
    from rich.table import Table

    total = facts["cluster_size"] - 1
    shown = facts["in_its_favour"]
    title = f"went in its favour ({len(shown)} of {total:,})" if total > len(shown) else "went in its favour"
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(title, overflow="fold")
    for column in ("chars", "similarity", "known by", "exact"):
        table.add_column(column, justify="right", no_wrap=True)
    for other in shown:
        place = f"{other['shard']}#{other['row']}"
        name = place if other["id"] == place else f"{other['id']} ({place})"
        exact = "" if other["exact_jaccard"] is None else f"{other['exact_jaccard']:.3f}"
        table.add_row(visible(name), f"{other['characters']:,}", f"{other['similarity']:.3f}", other["verified"], exact)
    return table


def _print_excerpts(console: Any, facts: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    evidence = facts["evidence"]
    start = evidence["excerpt_at"]
    left, right = (visible(excerpt) for excerpt in evidence["excerpts"])
    if evidence["same_bytes"]:
        for line in fold_cells([(left[:EXCERPT_SHOWN], False)], console.width):
            console.print(_styled(line), no_wrap=True)
        return
    width = (console.width - 3) // 2
    marked = marked_differences(left, right)
    sides = [fold_cells(cut_short(spans), width) for spans in marked]
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim", pad_edge=False)
    name = "survivor" if facts["survivor"]["kept"] else "partner"
    for title in ("this document", name):
        table.add_column(f"{title}, from character {start:,}", width=width, no_wrap=True)
    for i in range(max(map(len, sides))):
        table.add_row(*(_styled(side[i]) if i < len(side) else Text("") for side in sides))
    console.print(table)


Spans = list[tuple[str, bool]]


def marked_differences(a: str, b: str) -> tuple[Spans, Spans]:
    """Both texts as (text, differs) spans. Agreements of a few characters between differences count as chance."""
    blocks = difflib.SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    left: Spans = []
    right: Spans = []
    i = j = 0
    for index, block in enumerate(blocks):
        following = blocks[index + 1] if index + 1 < len(blocks) else block
        around = max(block.a - i, block.b - j) + max(following.a - block.a, following.b - block.b) - block.size
        chance = 12 if around > 40 else 3
        if block.size and 0 < block.size < chance and block.a > 0 and following is not block and following.size:
            continue
        _add_span(left, a[i : block.a], differs=True)
        _add_span(right, b[j : block.b], differs=True)
        i, j = block.a + block.size, block.b + block.size
        _add_span(left, a[block.a : i], differs=False)
        _add_span(right, b[block.b : j], differs=False)
    return left, right


def _add_span(spans: Spans, text: str, *, differs: bool) -> None:
    if text and spans and spans[-1][1] == differs:
        spans[-1] = (spans[-1][0] + text, differs)
    elif text:
        spans.append((text, differs))


def cut_short(spans: Spans) -> Spans:
    """What is printed of an excerpt: long differences by their ends, about EXCERPT_SHOWN characters in all."""
    shown: Spans = []
    room = EXCERPT_SHOWN
    for text, differs in spans:
        if room <= 0:
            break
        if differs and len(text) > LONG_DIFFERENCE:
            half = LONG_DIFFERENCE // 3
            text = f"{text[:half]} …{len(text) - 2 * half:,} characters… {text[-half:]}"
        elif len(text) > room:
            text = f"{text[:room]}…"
        shown.append((text, differs))
        room -= len(text)
    return shown


def fold_cells(spans: Spans, width: int) -> list[Spans]:
    """Cut spans into lines of at most `width` terminal cells (full-width: two); ⟦⟧ encloses differences."""
    from rich.cells import cell_len

    lines: list[Spans] = [[]]
    used = 0
    for text, differs in spans:
        for character in f"⟦{text}⟧" if differs else text:
            cells = cell_len(character)
            if used + cells > width:
                lines.append([])
                used = 0
            used += cells
            line = lines[-1]
            if line and line[-1][1] == differs:
                line[-1] = (line[-1][0] + character, differs)
            else:
                line.append((character, differs))
    return lines


def _styled(spans: Spans) -> Any:
    from rich.text import Text

    line = Text()
    for text, differs in spans:
        line.append(text, style="bold red" if differs else "")
    return line


def visible(text: str) -> str:
    """One line: line ends as ↵, tabs as spaces, other controls (terminal escapes among them) as ·."""
    text = text.replace("\r\n", "↵").replace("\n", "↵").replace("\t", " ")
    return "".join("·" if _is_control(character) else character for character in text)


def _is_control(character: str) -> bool:
    code = ord(character)
    # C0, C1, zero-width and direction marks: they would break the columns or the terminal.
    return code < 32 or 127 <= code < 160 or 0x200B <= code <= 0x200F or 0x202A <= code <= 0x202E or code == 0xFEFF
