"""What `taojin dedup` and `taojin quality` print when they are done, and words that other commands print too."""

import sys
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from taojin.pipeline import Result

# How each reason reads to a person.
REASON_WORDS = {
    "exact_duplicate": "same bytes as a survivor",
    "folded_duplicate": "short, same text after folding",
    "near_duplicate": "near-duplicate of a survivor",
    "empty_text": "empty",
    "null_text": "null",
    "invalid_utf8": "not valid UTF-8",
    "invalid_record": "not a readable record",
    "too_large": "above --max-document-mb",
    "unreadable": "in a damaged shard",
}


def print_result(result: "Result", *, as_json: bool) -> None:
    if as_json:
        where = {"work": result.work.uri, "decide": result.decide.uri}
        where["output"] = result.output.uri if result.output else ""
        print_json({**result.counts, **where, "warnings": result.warnings})
        return
    for line in result_lines(result):
        print(line)


def result_lines(result: "Result") -> list[str]:
    counts = result.counts
    documents = counts["documents"]
    rows: list[tuple[str, int, str]] = [("documents in", documents, f"{counts['text_bytes'] / 1e6:,.1f} MB of text")]
    rows += [(reason, -count, reason_note(reason, counts)) for reason, count in by_stage(counts["removed"])]
    kept_mb = f"{counts['output_bytes'] / 1e6:,.1f} MB of text" if "output_bytes" in counts else "no text written"
    rows.append(("documents kept", counts["kept"], kept_mb))
    width = max(len(row[0]) for row in rows)
    digits = max(len(f"{row[1]:,}") for row in rows)
    lines = [f"{name:<{width}}  {count:>{digits},}  {share(count, documents):>7}  {note}" for name, count, note in rows]
    notes: list[str] = []
    if counts.get("repaired"):
        notes.append(f"{number(counts['repaired'], 'document')} repaired")
    notes += [f"{what.replace('_', ' ')}: {count:,}" for what, count in counts.get("edited", {}).items()]
    if counts.get("duplicate_ids"):
        notes.append(f"{counts['duplicate_ids']:,} documents have an id that an earlier one has too")
    if counts.get("hot_buckets"):
        notes.append(
            f"{counts['hot_buckets']:,} hot buckets, the largest of {counts['largest_bucket']:,} documents: of all "
            f"{counts['possible']:,} pairs that share a bucket {counts['compared']:,} were compared"
        )
    if counts["unreadable_shards"]:
        notes.append(f"{counts['unreadable_shards']:,} unreadable shards were left out")
    notes += [f"warning: {warning}" for warning in result.warnings]
    places = [("ledger", f"{result.decide.uri}/ledger"), ("work", result.work.uri)]
    if result.output:
        places.insert(0, ("output", result.output.uri))
    return [*lines, *notes, *[f"{name:<{width}}  {place}" for name, place in places]]


def by_stage(removed: dict[str, int]) -> list[tuple[str, int]]:
    """What could not be read, what duplicates others, then the rules, the most frequent first."""
    known = [(reason, count) for reason, count in removed.items() if reason in REASON_WORDS]
    rules = [(reason, count) for reason, count in removed.items() if reason not in REASON_WORDS]
    return known + sorted(rules, key=lambda row: (-row[1], row[0]))


def reason_note(reason: str, counts: dict[str, Any]) -> str:
    """A reason in words; of a rule, how many documents fail it in all."""
    if reason in REASON_WORDS:
        return REASON_WORDS[reason]
    return f"{counts['rules'][reason]:,} fail it"


def share(count: int, of: int) -> str:
    return f"{count / of:+.1%}" if count < 0 else (f"{count / of:.1%}" if of else "")


def number(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def print_json(value: Any) -> None:
    """One line on stdout."""
    sys.stdout.write(orjson.dumps(value).decode() + "\n")
