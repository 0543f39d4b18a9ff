"""Proofs of Megatron pairs: their index is sound, their ids belong to the vocabulary, their documents end with EOD.

For a pair that anybody wrote, `taojin check PREFIX` with PREFIX.bin and .idx, and for each pair of an output of
`taojin tokenize` (`taojin.proofs_of_tokens`). Cost: .idx twice and .bin once. Memory: one block.
"""

from typing import NamedTuple

import numpy as np

from taojin.core.errors import InputError
from taojin.core.megatron import IndexedPair, header_warning, reader_warning, token_dtype
from taojin.core.megatron_proofs import TokenFacts, structure_problems, token_facts
from taojin.core.storage import Folder
from taojin.core.uris import last_part, split_query, with_suffix
from taojin.proofs import BrokenError, Report
from taojin.report import number
from taojin.tokenize.tokenizer_file import Facts, describe, read_tokenizer

PAIR_SUFFIXES = (".bin", ".idx")


class Prefix(NamedTuple):
    """What the names of a pair's files, or of an output's, begin with: a path or URI."""

    uri: str

    @property
    def folder(self) -> Folder:
        """Where they lie."""
        path, query = split_query(self.uri)
        folder, slash, _ = path.rpartition("/")
        return Folder((folder or slash or ".") + query)

    @property
    def name(self) -> str:
        return last_part(self.uri)

    def file(self, suffix: str) -> str:
        """The URI of one of the files."""
        return with_suffix(self.uri, suffix)

    def has(self, suffix: str) -> bool:
        return self.folder.exists(self.name + suffix)

    def sibling(self, name: str) -> "Prefix":
        """Another PREFIX in the same folder."""
        path, query = split_query(self.uri)
        return Prefix(path[: len(path) - len(self.name)] + name + query)


def check_pair(report: Report, prefix: Prefix, tokenizer: str | None) -> None:
    """The proofs of a pair without a manifest; those of its tokens as far as a tokenizer file tells what to expect.

    Raises InputError for a file that is no tokenizer.
    """
    facts = describe(read_tokenizer(tokenizer)) if tokenizer else None
    pair = report.prove("format", prefix.uri, lambda: prove_format(prefix))
    if pair is None:
        return
    seen = report.prove("tokens", prefix.file(".bin"), lambda: prove_ids(pair, facts))
    if facts is None:
        report.leave_out("ends", "whether ids are in the vocabulary and documents end with EOD; name its --tokenizer")
    elif facts.eod is None:
        report.leave_out("ends", f"{tokenizer} has no token that ends a document")
    elif seen is not None and seen.not_ended and not seen.ended:
        report.leave_out("ends", f"no document ends with EOD ({facts.eod}): it was written without --append-eod")
    elif seen is not None:
        report.prove("ends", prefix.file(".bin"), lambda: prove_ends(pair, seen))


def open_pair(prefix: Prefix) -> IndexedPair:
    """A pair whose header and sizes are sound; raises BrokenError with the file that is not."""
    try:
        return IndexedPair.open(prefix.uri)
    except InputError as error:
        files = [prefix.file(suffix) for suffix in PAIR_SUFFIXES]
        where = next((file for file in files if str(error).startswith(f"{file}: ")), prefix.uri)
        raise BrokenError(where, str(error).removeprefix(f"{where}: ")) from None


def open_sound_pair(prefix: Prefix) -> IndexedPair:
    """A pair whose whole index is sound: lengths, pointers, document indices."""
    pair = open_pair(prefix)
    if problems := structure_problems(pair):
        raise BrokenError(pair.idx.uri, problems[0])
    return pair


def prove_format(prefix: Prefix) -> tuple[IndexedPair, str]:
    """Header, sizes, pointers and document indices of one pair."""
    pair = open_sound_pair(prefix)
    counts = f"{number(pair.num_documents, 'document')}, {number(pair.num_sequences, 'sequence')}"
    detail = f"{counts}, {number(pair.num_tokens, 'token')} of {pair.dtype.name}: header, sizes, pointers, documents"
    warning = reader_warning(pair.num_sequences, pair.num_tokens)
    return pair, f"{detail}; {warning}" if warning else detail


def prove_ids(pair: IndexedPair, facts: Facts | None) -> tuple[TokenFacts, str]:
    """No id is negative or, where the vocabulary is known, outside it; the dtype holds every id of the vocabulary."""
    seen = token_facts(pair, facts.vocab_size if facts else None, facts.eod if facts else None)
    require_ids(pair, seen)
    span = f"ids from {seen.lowest:,} to {seen.highest:,}" if seen.tokens else "no ids"
    if facts is None:
        return seen, span
    size = facts.vocab_size
    if size > np.iinfo(pair.dtype).max + 1:
        raise BrokenError(pair.idx.uri, f"{pair.dtype.name} cannot hold the ids of a vocabulary of {size:,}")
    detail = f"{span}, of a vocabulary of {size:,}"
    if pair.dtype != token_dtype(size):
        detail += f"; Megatron-LM would have written {token_dtype(size).name}"
    elif warning := header_warning(size):
        detail += f"; {warning}"
    return seen, detail


def prove_ends(pair: IndexedPair, seen: TokenFacts) -> tuple[bool, str]:
    """Every document that has tokens ends with EOD."""
    require_ends(pair, seen)
    return True, ends_detail(seen.ended, pair.num_documents, seen.eods_inside, seen.eod)


def require_ids(pair: IndexedPair, seen: TokenFacts) -> None:
    if seen.outside:
        raise BrokenError(pair.bin.uri, seen.problems()[0])


def require_ends(pair: IndexedPair, seen: TokenFacts) -> None:
    if seen.not_ended:
        raise BrokenError(pair.bin.uri, seen.problems()[-1])


def ends_detail(ended: int, documents: int, inside: int, eod: int | None) -> str:
    some = "all" if ended == documents else f"the {ended:,} that have tokens of"
    return f"{some} {documents:,} documents end with EOD ({eod}); {inside:,} more inside documents"
