"""Proofs of an output of `taojin tokenize` from its manifest and its pairs: files, format, ids, counts, mask.

Cost: every .bin is read twice, once for its checksums and once for its ids, every .idx twice. Memory: a block.
Where documents come from is proven by `taojin.proofs_of_provenance`, what they say by `taojin.proofs_of_texts`.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import xxhash

from taojin.core.megatron import header_warning, reader_warning, token_dtype
from taojin.core.megatron_proofs import token_facts
from taojin.core.storage import FileEntry
from taojin.proofs import BrokenError
from taojin.proofs_of_output import require
from taojin.proofs_of_pair import Prefix, ends_detail, open_pair, open_sound_pair, require_ends, require_ids
from taojin.report import number
from taojin.tokenizing import MANIFEST

MASK = "_mask"
CHECKSUM_BYTES = 1 << 22
# Those that the proofs ask for; a manifest without one is damaged.
SETTINGS = (
    "by_source",
    "chat",
    "formats",
    "seed",
    "shuffle",
    "special_in_text",
    "split",
    "tokenizer_pattern",
    "weights",
)


class Tokens(NamedTuple):
    """An output: its PREFIX and its manifest. That of `taojin merge` tells less, and may know of no tokenizer."""

    prefix: Prefix
    manifest: dict[str, Any]

    @property
    def merged(self) -> bool:
        return "merged" in self.manifest

    def pairs(self) -> Iterator[tuple[dict[str, Any], Prefix]]:
        """(entry in the manifest, prefix) of every pair."""
        for entry in self.manifest["pairs"]:
            yield entry, self.prefix.sibling(entry["name"])

    @property
    def manifest_name(self) -> str:
        return self.prefix.file(MANIFEST)


def read_manifest(prefix: Prefix) -> tuple[Tokens, str]:
    where = prefix.file(MANIFEST)
    if not prefix.has(MANIFEST):
        raise BrokenError(where, "not there: the run did not end; the same command resumes it")
    manifest = prefix.folder.read_json(prefix.name + MANIFEST)
    counts, tokenizer = manifest["counts"], manifest.get("tokenizer")
    for entry in manifest["pairs"]:
        _ = entry["name"], entry["split"], entry["source"], entry["ranges"], entry["files"]["bin"]
    if "merged" not in manifest:
        _ = manifest["shards"], [manifest["config"][name] for name in SETTINGS], tokenizer["path"]
    detail = f"written by taojin {manifest['taojin']}: {number(counts['documents'], 'document')}, "
    detail += f"{number(counts['tokens'], 'token')} in {number(len(manifest['pairs']), 'pair')}"
    if tokenizer is not None:
        detail += f"; tokenizer {tokenizer['fingerprint']} ({tokenizer['kind']}, {tokenizer['vocab_size']:,} ids)"
    return Tokens(prefix, manifest), detail


# ---------------------------------------------------------------------------------------------- files


def prove_files(output: Tokens) -> tuple[bool, str]:
    """Every file stands with its size and checksums, those of .bin by ranges."""
    files = size = 0
    for entry, prefix in output.pairs():
        for kind, file in entry["files"].items():
            if kind in ("bin", "mask_bin"):
                ranges = entry["ranges" if kind == "bin" else "mask_ranges"]
                _require_ranges(prefix, file["name"], file["bytes"], ranges)
            else:
                require(prefix.folder, FileEntry(**file))
            files += 1
            size += file["bytes"]
    return True, f"{number(files, 'file')}, {size:,} bytes: sizes and XXH3 checksums"


def _require_ranges(prefix: Prefix, name: str, expected: int, ranges: list[list[Any]]) -> None:
    where = prefix.sibling(name).uri
    listed = sum(size for size, _ in ranges)
    if listed != expected:
        raise BrokenError(where, f"the manifest lists ranges of {listed:,} bytes for a file of {expected:,}")
    filesystem, _ = prefix.folder.resolve()
    try:
        file = filesystem.open_input_file(prefix.folder.path(name))
    except FileNotFoundError:
        raise BrokenError(where, f"expected {expected:,} bytes, found no file") from None
    with file:
        if file.size() != expected:
            raise BrokenError(where, f"expected {expected:,} bytes, found {file.size():,}")
        at = 0
        for size, checksum in ranges:
            hasher = xxhash.xxh3_64()
            for done in range(0, size, CHECKSUM_BYTES):
                hasher.update(file.read(min(CHECKSUM_BYTES, size - done)))
            if hasher.hexdigest() != checksum:
                raise BrokenError(where, f"bytes {at:,} to {at + size:,}: not the checksum in the manifest")
            at += size


# ---------------------------------------------------------------------------------------------- pairs


def prove_format(output: Tokens) -> tuple[bool, str]:
    """Every index is sound, and the dtype is the one that Megatron's writer takes for the vocabulary."""
    size = output.manifest["tokenizer"]["vocab_size"]
    dtype = token_dtype(size)
    if output.manifest["dtype"] != dtype.name:
        found = output.manifest["dtype"]
        raise BrokenError(output.manifest_name, f"{found} for a vocabulary of {size:,}, expected {dtype.name}")
    warnings: dict[str, None] = dict.fromkeys(filter(None, [header_warning(size)]))
    for _, prefix in output.pairs():
        pair = open_sound_pair(prefix)
        if pair.dtype != dtype:
            raise BrokenError(pair.idx.uri, f"expected {dtype.name}, found {pair.dtype.name}")
        if warning := reader_warning(pair.num_sequences, pair.num_tokens):
            warnings[f"{prefix.name}: {warning}"] = None
    count = number(len(output.manifest["pairs"]), "pair")
    detail = f"{count} of {dtype.name}, as for a vocabulary of {size:,}: headers, sizes, pointers, documents"
    return True, "; ".join([detail, *warnings])


def prove_ids(output: Tokens) -> tuple[bool, str]:
    """Ids are in the vocabulary, documents end with EOD, and EODs inside are what the manifest told of."""
    manifest, tokenizer = output.manifest, output.manifest["tokenizer"]
    eod = tokenizer["eod"]
    highest, documents, ended, inside = -1, 0, 0, 0
    for _, prefix in output.pairs():
        pair = open_pair(prefix)
        seen = token_facts(pair, tokenizer["vocab_size"], eod)
        require_ids(pair, seen)
        if manifest["append_eod"]:
            require_ends(pair, seen)
        highest = max(highest, seen.highest)
        documents += pair.num_documents
        ended += seen.ended
        inside += seen.eods_inside
    detail = f"ids up to {highest:,}, of a vocabulary of {tokenizer['vocab_size']:,}"
    if not manifest["append_eod"]:
        return True, f"{detail}; no EOD was asked for"
    told = manifest["counts"].get("ends_in_text")
    if told is not None and _only_texts_hold_eod(output) and bool(inside) != bool(told):
        raise BrokenError(
            output.manifest_name, f"{told:,} texts were to hold EOD ({eod}), {inside:,} stand inside documents"
        )
    return True, f"{detail}; {ends_detail(ended, documents, inside, eod)}"


def _only_texts_hold_eod(output: Tokens) -> bool:
    """Whether an EOD inside a document can only come from its text, not from the template of chats or tokenizer."""
    config, tokenizer = output.manifest["config"], output.manifest["tokenizer"]
    around = (*tokenizer["prefix"], *tokenizer["suffix"])
    return config["special_in_text"] == "encode" and not config["chat"] and tokenizer["eod"] not in around


# ---------------------------------------------------------------------------------------------- counts


class Totals(NamedTuple):
    """What provenance sums up to. by_…: [documents, tokens] by name, where any has one."""

    empty: int
    by_source: dict[str, list[int]]
    by_language: dict[str, list[int]]


def prove_counts(output: Tokens, totals: Totals | None) -> tuple[bool, str]:
    """read = documents + Σ left out; documents and tokens = Σ pairs = Σ splits; by source and language as provenance
    has them. totals: None where provenance is broken."""
    counts, pairs = output.manifest["counts"], output.manifest["pairs"]
    where = output.manifest_name
    documents, text = counts["documents"], f"{counts['documents']:,} documents"
    if not output.merged:
        read, left_out = counts["read"], sum(counts["left_out"].values())
        text = f"{read:,} read = {documents:,} encoded + {left_out:,} left out"
        if read != documents + left_out:
            raise BrokenError(
                where, f"{read:,} read, {documents:,} encoded and {left_out:,} left out: some are unaccounted for"
            )
    for entry, prefix in output.pairs():
        pair = open_pair(prefix)
        for name, found in (
            ("documents", pair.num_documents),
            ("sequences", pair.num_sequences),
            ("tokens", pair.num_tokens),
        ):
            if entry[name] != found:
                raise BrokenError(pair.idx.uri, f"{found:,} {name}, in the manifest {entry[name]:,}")
    for name in ("documents", "sequences", "tokens"):
        _require_equal(where, f"{name} of all pairs", counts[name], sum(entry[name] for entry in pairs))
    by_split: dict[str, list[int]] = {}
    for entry in pairs:
        if entry["documents"]:
            total = by_split.setdefault(entry["split"], [0, 0])
            total[0] += entry["documents"]
            total[1] += entry["tokens"]
    _require_equal(where, "documents and tokens by split", _listed(counts["by_split"]), by_split)
    text += "; pairs and splits sum up to that"
    if totals is None:
        return True, f"{text} (by manifest and indexes alone)"
    _require_equal(where, "documents without tokens", counts["empty"], totals.empty)
    for name, sums in (("source", totals.by_source), ("language", totals.by_language)):
        _require_equal(where, f"documents and tokens by {name}", _listed(counts[f"by_{name}"]), sums)
    sources, languages = (len(names.keys() - {""}) for names in (totals.by_source, totals.by_language))
    kinds = [number(count, what) for count, what in ((sources, "source"), (languages, "language")) if count]
    return True, text + (f", and so do {' and '.join(kinds)}" if kinds else "")


def _require_equal(where: str, what: str, manifest: Any, found: Any) -> None:
    if manifest != found:
        raise BrokenError(where, f"{what}: {manifest} in the manifest, {found} in the files")


def _listed(counts: dict[str, dict[str, int]]) -> dict[str, list[int]]:
    """As `Totals` has it; where splits have no name, theirs is empty."""
    return {name: [entry["documents"], entry["tokens"]] for name, entry in counts.items()}


# ---------------------------------------------------------------------------------------------- mask


def prove_mask(output: Tokens) -> tuple[bool, str]:
    """The loss mask has the shape of its pair; every token is learnt, 1, or not, 0."""
    tokens = learnt = 0
    for _, prefix in output.pairs():
        pair, mask = open_pair(prefix), open_sound_pair(prefix.sibling(prefix.name + MASK))
        if mask.dtype != np.uint8:
            raise BrokenError(mask.idx.uri, f"expected uint8, found {mask.dtype.name}")
        for what, found, expected in (
            ("sequences", mask.num_sequences, pair.num_sequences),
            ("documents", mask.num_documents, pair.num_documents),
        ):
            if found != expected:
                raise BrokenError(mask.idx.uri, f"{found:,} {what}, its pair has {expected:,}")
        for found_blocks, expected_blocks in (
            (mask.length_blocks(), pair.length_blocks()),
            (mask.document_index_blocks(), pair.document_index_blocks()),
        ):
            if not all(map(np.array_equal, found_blocks, expected_blocks)):
                raise BrokenError(mask.idx.uri, "its sequences are not those of its pair")
        for block in mask.token_blocks():
            if block.max() > 1:
                raise BrokenError(mask.bin.uri, f"expected 0 and 1, found {block.max()}")
            learnt += int(np.count_nonzero(block))
            tokens += len(block)
    share = f"{learnt / tokens:.1%}" if tokens else "none"
    return True, f"the shape of the pairs, 0 and 1 alone: {learnt:,} of {tokens:,} tokens are learnt ({share})"
