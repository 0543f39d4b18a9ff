"""What the demo removed, read from its ledger: sums by reason and source, and three removals worth looking at.

In: FOLDER/corpus and the ledger of its run. Out: plain values for `taojin.demo_report`.
Cost: the corpus once, a row group at a time, and the row groups of some hundred texts once more.
"""

import difflib
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from taojin.demo_corpus import CHINESE_SOURCES
from taojin.report import REASON_WORDS


@dataclass(kw_only=True)
class Tally:
    documents: int = 0
    text_bytes: int = 0

    def add(self, documents: int, text_bytes: int) -> None:
        self.documents += documents
        self.text_bytes += text_bytes


class Place(NamedTuple):
    """A document of the corpus: a shard's file name and a row in it."""

    shard: str
    row: int


class Removal(NamedTuple):
    """One row of the ledger, with the length of the removed text. `similarity` is 1 for equal ones."""

    reason: str
    similarity: float
    verified: str
    source: str
    text_bytes: int
    document: Place
    document_id: str
    survivor: Place
    survivor_id: str


@dataclass(kw_only=True)
class Findings:
    """What the ledger says, summed: by (reason, source), and the removals fit to be shown as examples."""

    removed: dict[tuple[str, str], Tally] = field(default_factory=dict)
    candidates: list[Removal] = field(default_factory=list)

    def total(self, *, reason: str | None = None, source: str | None = None) -> Tally:
        """Sum over everything, or over one reason, one source, or both."""
        total = Tally()
        for (its_reason, its_source), tally in self.removed.items():
            if reason in (None, its_reason) and source in (None, its_source):
                total.add(tally.documents, tally.text_bytes)
        return total

    @property
    def reasons(self) -> list[str]:
        """The reasons that occur, in the order in which `taojin dedup` names them."""
        return sorted({reason for reason, _ in self.removed}, key=list(REASON_WORDS).index)


# An example has to be read at a glance: bytes of UTF-8, from a few lines to what half a terminal holds.
# Folded duplicates, the second range, are short by nature: longer texts are compared by their shingles.
_EXAMPLE_BYTES = (range(120, 900), range(15, 900))


def read_findings(corpus: Path, ledger: Path) -> Findings:
    """Join the ledger with the corpus. Reads the corpus once, a row group at a time, and the ledger shard by shard."""
    findings = Findings()
    entries = ds.dataset(ledger, format="parquet", exclude_invalid_files=False)
    columns = ["row", "id", "reason", "similarity", "verified", "survivor_shard", "survivor_row", "survivor_id"]
    for shard in sorted(corpus.glob("*.parquet")):
        removed = entries.to_table(columns=columns, filter=ds.field("shard") == shard.name).sort_by("row")
        rows = removed["row"].to_pylist()
        values = removed.to_pylist()
        done = first_row = 0
        with pq.ParquetFile(shard) as file:
            for row_group in range(file.num_row_groups):
                table = file.read_row_group(row_group, columns=["text", "source"])
                lengths = pc.binary_length(table["text"]).to_pylist()
                sources = table["source"].to_pylist()
                while done < len(rows) and rows[done] < first_row + table.num_rows:
                    place = rows[done] - first_row
                    _add(findings, values[done], shard.name, sources[place], lengths[place] or 0)
                    done += 1
                first_row += table.num_rows
    return findings


def _add(findings: Findings, entry: dict[str, Any], shard: str, source: str, text_bytes: int) -> None:
    findings.removed.setdefault((entry["reason"], source), Tally()).add(1, text_bytes)
    if entry["survivor_shard"] is not None and text_bytes in _EXAMPLE_BYTES[entry["reason"] == "folded_duplicate"]:
        similarity = entry["similarity"]
        removal = Removal(
            reason=entry["reason"],
            similarity=1.0 if similarity is None else similarity,
            verified=entry["verified"],
            source=source,
            text_bytes=text_bytes,
            document=Place(shard, entry["row"]),
            document_id=entry["id"],
            survivor=Place(entry["survivor_shard"], entry["survivor_row"]),
            survivor_id=entry["survivor_id"],
        )
        findings.candidates.append(removal)


def read_texts(corpus: Path, places: Iterable[Place]) -> dict[Place, str]:
    """The texts at `places`; only the row groups that hold one are read."""
    wanted: dict[str, set[int]] = {}
    for place in places:
        wanted.setdefault(place.shard, set()).add(place.row)
    texts = {}
    for shard, rows in sorted(wanted.items()):
        with pq.ParquetFile(corpus / shard) as file:
            first_row = 0
            for row_group in range(file.num_row_groups):
                num_rows = file.metadata.row_group(row_group).num_rows
                here = sorted(row for row in rows if first_row <= row < first_row + num_rows)
                if here:
                    column = file.read_row_group(row_group, columns=["text"])["text"]
                    texts.update({Place(shard, row): column[row - first_row].as_py() for row in here})
                first_row += num_rows
    return texts


class Example(NamedTuple):
    title: str
    removal: Removal
    removed_text: str
    survivor_text: str


_CONSIDERED = 300  # removals of each kind whose texts are read to choose the example


def choose_examples(corpus: Path, findings: Findings) -> list[Example]:
    """Three removals worth looking at: English and Chinese near-duplicates, and one whose folded text is the same.

    Where nothing is the same only once folded, an exact duplicate stands in. A kind without any is left out.
    """
    near = [removal for removal in findings.candidates if removal.reason == "near_duplicate"]
    differing = sorted((removal for removal in near if removal.similarity < 1), key=lambda it: abs(it.similarity - 0.9))
    folded = [removal for removal in findings.candidates if removal.reason == "folded_duplicate"]
    # From a dozen symbols on, texts that fold to the same are near-duplicates of similarity 1 (as some others are).
    folded += [removal for removal in near if removal.similarity == 1]
    exact = [removal for removal in findings.candidates if removal.reason == "exact_duplicate"]
    kinds = {
        "A near-duplicate in English": [removal for removal in differing if removal.source not in CHINESE_SOURCES],
        "A near-duplicate in Chinese": [removal for removal in differing if removal.source in CHINESE_SOURCES],
        "The same text once folded": folded,
        "The same bytes": exact,
    }
    chosen: dict[str, Example] = {}
    for title, removals in kinds.items():
        considered = removals[:_CONSIDERED]
        texts = read_texts(corpus, [place for removal in considered for place in (removal.document, removal.survivor)])
        offered = [Example(title, removal, texts[removal.document], texts[removal.survivor]) for removal in considered]
        if removals is folded:
            offered = [offer for offer in offered if _bare(offer.removed_text) == _bare(offer.survivor_text)]
        if offered:
            chosen[title] = min(offered, key=_dullness)
    return list(chosen.values())[:3]


def _bare(text: str) -> str:
    """The letters and digits of a text, case and width ignored: folding, near enough to choose an example."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).casefold()))


def _dullness(example: Example) -> tuple[float, Place]:
    """Smaller is more telling: a few lines, about four differences, not of punctuation alone, and different files."""
    differences = [removed + survivor for same, removed, survivor in difference(*example[2:]) if not same]
    text_bytes = len(example.removed_text.encode()) + len(example.survivor_text.encode())
    dullness = abs(text_bytes - 700) / 300 + abs(len(differences) - 4) / 2
    if not any(_bare(words) for words in differences):
        dullness += 2
    if _file_of(example.removal.document_id) == _file_of(example.removal.survivor_id):
        dullness += 1
    return dullness, example.removal.document


def _file_of(document_id: str) -> str:
    return re.split(r"::|:\d", document_id)[0]


_WORD = re.compile(r"[a-zA-Z0-9]+|\s+|.", re.DOTALL)


def difference(removed: str, survivor: str) -> list[tuple[bool, str, str]]:
    """Align two texts word by word (Chinese: character by character): (whether the same, of removed, of survivor).

    The second and third parts, joined, are the two texts. White space is the same as other white space, and
    belongs to a difference that goes on behind it.
    """
    a, b = _WORD.findall(removed), _WORD.findall(survivor)
    spaceless_a, spaceless_b = ([word if word.strip() else " " for word in words] for words in (a, b))
    blocks: list[tuple[bool, str, str]] = []
    opcodes = difflib.SequenceMatcher(None, spaceless_a, spaceless_b, autojunk=False).get_opcodes()
    for number, (operation, a_start, a_end, b_start, b_end) in enumerate(opcodes):
        of_a, of_b = "".join(a[a_start:a_end]), "".join(b[b_start:b_end])
        same = operation == "equal" and (bool(of_a.strip()) or number in (0, len(opcodes) - 1))
        if blocks and not same and not blocks[-1][0]:
            _, before_a, before_b = blocks.pop()
            of_a, of_b = before_a + of_a, before_b + of_b
        blocks.append((same, of_a, of_b))
    return blocks
