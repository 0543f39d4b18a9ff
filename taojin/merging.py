"""`taojin merge`: pairs that stand become one, in the order in which they are named, by offset arithmetic.

In: pairs of ours or Megatron's, all of one dtype. Out: PREFIX.bin/.idx, and PREFIX.parquet where every pair has its
provenance; PREFIX.manifest.json where all of them come with a manifest of one tokenizer. Nothing is encoded again.
Cost: a read, a hash and a write of every byte. Memory is constant.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from taojin import __version__
from taojin.core.config import fingerprint
from taojin.core.errors import ConfigError, InputError
from taojin.core.megatron import IndexedPair, write_index
from taojin.core.progress import Progress
from taojin.core.storage import Folder, with_retries
from taojin.core.tasks import Stages, open_executor
from taojin.core.uris import with_suffix
from taojin.tokenize.config import MergeConfig
from taojin.tokenize.merge import Span, Target
from taojin.tokenize.provenance import PROVENANCE_SCHEMA, write_provenance
from taojin.tokenizing import MANIFEST, Tokenized, manifest_of, stands
from taojin.tokenizing_input import split_prefix
from taojin.writing_pairs import write_tokens

# A task each: large enough to be worth one, small enough that a single pair keeps many workers busy.
SPAN_BYTES = 256_000_000


class Source(NamedTuple):
    """A pair to be merged. entry, manifest: what a manifest says of it; None for a bare pair."""

    prefix: str
    pair: IndexedPair
    folder: Folder
    name: str
    entry: dict[str, Any] | None
    manifest: dict[str, Any] | None


def run_merge(config: MergeConfig) -> Tokenized:
    """Run or resume a merge. Raises TaojinError subclasses; see `taojin.core.errors`."""
    progress = Progress(quiet=config.quiet)
    folder, stem = split_prefix(config.output)
    sources = [source for prefix in config.input for source in open_sources(prefix)]
    refuse_mixtures(sources)
    itself = [s.prefix for s in sources if (s.folder.path(), s.name) == (folder.path(), stem)]
    if itself:
        raise ConfigError(f"--output {config.output}: is one of the pairs to be merged; name another")
    work = Folder(with_suffix(config.output, ".work"))
    inputs = [
        [s.prefix, s.pair.num_documents, s.pair.num_sequences, s.pair.num_tokens, s.manifest and s.manifest["claim"]]
        for s in sources
    ]
    claim = fingerprint({"merge": inputs, "dtype": sources[0].pair.dtype.name})
    earlier = with_retries(lambda: manifest_of(folder, stem, claim))
    if earlier and stands(folder, earlier):
        progress.note(f"{config.output}: written by an earlier run")
        return Tokenized(earlier, folder, stem, work, earlier["warnings"])
    spans = spans_of_pairs(sources)
    with open_executor(config.address, config.num_cpus, len(spans), quiet=config.quiet) as executor:
        executor.require_shared(work)
        executor.require_shared(folder)
        stages = Stages(work.child(f"stats/{claim}"), executor, progress)
        size = sum(source.pair.bin.bytes for source in sources)
        remedy = "the pair was damaged after it was written: check it, and make it again"
        (ranges,) = write_tokens(stages, work, folder, [stem], [size], spans, remedy)
    files = with_retries(lambda: write_index_of(folder, stem, sources))
    totals = {
        "documents": sum(source.pair.num_documents for source in sources),
        "sequences": sum(source.pair.num_sequences for source in sources),
        "tokens": sum(source.pair.num_tokens for source in sources),
    }
    files["bin"] = {"name": f"{stem}.bin", "bytes": size, "xxh3": "", "rows": totals["sequences"]}
    entry = {"name": stem, "split": "", "source": "", "number": -1, **totals, "ranges": ranges, "files": files}
    manifest = {**shared_facts(sources), "taojin": __version__, "claim": claim, "pairs": [entry], "warnings": []}
    warnings = []
    if "provenance" not in files:
        without = [source.prefix for source in sources if not source.folder.exists(f"{source.name}.parquet")]
        if len(without) < len(sources):
            warnings.append(f"no provenance was written: {without[0]} has none")
    manifest["warnings"] = warnings
    manifest["merged"] = [source.prefix for source in sources]
    manifest["dtype"] = sources[0].pair.dtype.name
    manifest["counts"] = merged_counts(sources, totals)
    folder.write_json(f"{stem}{MANIFEST}", manifest)
    return Tokenized(manifest, folder, stem, work, warnings)


def open_sources(prefix: str) -> list[Source]:
    """The pair PREFIX, with what its output's manifest knows of it, or all pairs of an output of `taojin tokenize`."""
    folder, stem = split_prefix(prefix)
    if folder.exists(f"{stem}{MANIFEST}"):
        manifest = folder.read_json(f"{stem}{MANIFEST}")
        splits = sorted({entry["split"] for entry in manifest["pairs"]})
        if len(splits) > 1:
            example = with_suffix(folder.uri, f"/{manifest['pairs'][0]['name']}")
            raise InputError(f"{prefix}: has the splits {', '.join(splits)}; name the pairs of one, as {example}")
        names = [(entry, with_suffix(folder.uri, f"/{entry['name']}")) for entry in manifest["pairs"]]
        return [Source(name, IndexedPair.open(name), folder, entry["name"], entry, manifest) for entry, name in names]
    pair = IndexedPair.open(prefix)
    for end in (place.start() for place in re.finditer("_", stem)):
        if folder.exists(f"{stem[:end]}{MANIFEST}"):
            manifest = folder.read_json(f"{stem[:end]}{MANIFEST}")
            entries = [entry for entry in manifest["pairs"] if entry["name"] == stem]
            if entries:
                return [Source(prefix, pair, folder, stem, entries[0], manifest)]
    return [Source(prefix, pair, folder, stem, None, None)]


def refuse_mixtures(sources: list[Source]) -> None:
    """Raise InputError for pairs that cannot be one: other dtypes, tokenizers, levels; a pair named twice."""
    first = sources[0]
    for source in sources[1:]:
        if source.pair.dtype != first.pair.dtype:
            raise InputError(
                f"{source.prefix}: its tokens are {source.pair.dtype.name}, those of {first.prefix} "
                f"{first.pair.dtype.name}; merge pairs of one vocabulary"
            )
        if source.manifest is None or first.manifest is None:
            continue
        ours, theirs = _ways(source.manifest), _ways(first.manifest)
        for what in ours:
            if theirs and ours[what] != theirs[what]:
                raise InputError(f"{source.prefix}: made with another {what} than {first.prefix}: they cannot be one")
    places = [(source.folder.path(), source.name) for source in sources]
    for number, source in enumerate(sources):
        if places[number] in places[:number]:
            raise InputError(f"{source.prefix}: named twice; its documents would be in the pair twice")
    masks = [source.prefix for source in sources if source.entry and "mask_bin" in source.entry["files"]]
    if masks:
        raise InputError(f"{masks[0]}: has a loss mask; tokenize its conversations together instead")


def _ways(manifest: dict[str, Any]) -> dict[str, Any]:
    """How documents became tokens, by what it is called. A merge of bare pairs does not know."""
    if "tokenizer" not in manifest:
        return {}
    tokenizer = manifest["tokenizer"]
    return {
        "tokenizer": tokenizer["fingerprint"],
        "end of documents": tokenizer["eod"] if manifest["append_eod"] else None,
        "level": manifest["level"],
    }


def spans_of_pairs(sources: list[Source]) -> list[list[Span]]:
    """All bytes of all pairs, in tasks of about SPAN_BYTES, with the hashes that a manifest knows."""
    tasks: list[list[Span]] = [[]]
    at = filled = 0
    for source in sources:
        first = 0
        for size, xxh3 in source.entry["ranges"] if source.entry else _unknown(source.pair.bin.bytes):
            if filled + size > SPAN_BYTES and tasks[-1]:
                tasks.append([])
                filled = 0
            tasks[-1].append(Span(source.folder, f"{source.name}.bin", first, size, xxh3, (Target(0, at, 0, size),)))
            first, at, filled = first + size, at + size, filled + size
        if first != source.pair.bin.bytes:
            raise InputError(f"{source.prefix}.bin: expected {first:,} bytes, found {source.pair.bin.bytes:,}")
    return [task for task in tasks if task]


def _unknown(size: int) -> list[tuple[int, str]]:
    return [(min(SPAN_BYTES, size - first), "") for first in range(0, size, SPAN_BYTES)]


def write_index_of(folder: Folder, stem: str, sources: list[Source]) -> dict[str, Any]:
    """PREFIX.idx, and PREFIX.parquet where every pair has one; returns their entries."""
    documents = sum(source.pair.num_documents for source in sources)
    with folder.create(f"{stem}.idx") as sink:
        write_index(
            sink,
            sources[0].pair.dtype,
            sum(source.pair.num_sequences for source in sources),
            documents,
            lambda: (block for source in sources for block in source.pair.length_blocks()),
            lambda: (block for source in sources for block in source.pair.sequences_per_document_blocks()),
        )
        sink.rows = sum(source.pair.num_sequences for source in sources)
    files = {"idx": folder.entry(f"{stem}.idx", sink).as_json()}
    if all(source.folder.exists(f"{source.name}.parquet") for source in sources):
        with folder.create(f"{stem}.parquet") as sink:
            write_provenance(sink, provenance_of_pairs(sources))
            sink.rows = documents
        files["provenance"] = folder.entry(f"{stem}.parquet", sink).as_json()
    return files


def provenance_of_pairs(sources: list[Source]) -> Iterator[pa.RecordBatch]:
    """Rows of all provenance files. Raises InputError for one that does not belong to its pair."""
    for source in sources:
        filesystem, _ = source.folder.resolve()
        with filesystem.open_input_file(source.folder.path(f"{source.name}.parquet")) as file:
            parquet = pq.ParquetFile(file)
            rows = parquet.metadata.num_rows
            if not parquet.schema_arrow.equals(PROVENANCE_SCHEMA) or rows != source.pair.num_documents:
                raise InputError(
                    f"{source.prefix}.parquet: expected the provenance of {source.pair.num_documents:,} documents, "
                    f"found {rows:,} rows of {', '.join(parquet.schema_arrow.names)}"
                )
            yield from parquet.iter_batches(use_threads=False)


def shared_facts(sources: list[Source]) -> dict[str, Any]:
    """What a manifest says of all pairs, where every pair has one."""
    known = [source.manifest for source in sources if source.manifest and "tokenizer" in source.manifest]
    if len(known) < len(sources):
        return {}
    return {name: known[0][name] for name in ("tokenizer", "append_eod", "level")}


def merged_counts(sources: list[Source], totals: dict[str, int]) -> dict[str, Any]:
    lengths: Iterator[NDArray[np.int32]] = (
        block for source in sources for block in source.pair.sequences_per_document_blocks()
    )
    return {
        **totals,
        "empty": sum(int((block == 0).sum()) for block in lengths),
        "by_split": {"": {"documents": totals["documents"], "tokens": totals["tokens"]}},
    }
