"""Writing pairs: tokens to their places, then index and provenance, then their names.

Tokens of local pairs are copied by many tasks into one file each, under a temporary name that the driver gives and
takes away when all of it is there; an object of an object store is one task's. `taojin tokenize` and `taojin merge`
both end here.
"""

import os
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

from taojin.core.config import fingerprint
from taojin.core.errors import InvariantError, OutputError
from taojin.core.storage import FileEntry, Folder, with_retries
from taojin.core.tasks import Stages
from taojin.core.uris import with_suffix
from taojin.tokenize.merge import CopyContext, Span, copy_spans, spans_by_output, write_object

SUFFIXES = (".bin", ".idx", ".parquet")
_CLAIM = "claim.json"


def refuse_existing(folder: Folder, names: Sequence[str], work: Folder, ours: Sequence[str] = ()) -> None:
    """Raise OutputError where a file of one of these pairs stands that this run has not begun to write.

    ours: names that an earlier manifest of this run has.
    """
    claimed = {*_claim(work, folder).get("names", ()), *ours}
    present = set(folder.names())
    for name in names:
        for suffix in SUFFIXES:
            if name not in claimed and f"{name}{suffix}" in present:
                path = with_suffix(folder.uri, f"/{name}{suffix}")
                raise OutputError(f"{path}: exists already, by another run; name another --output, or remove it")


def write_tokens(
    stages: Stages,
    work: Folder,
    folder: Folder,
    names: Sequence[str],
    sizes: Sequence[int],
    spans: Sequence[Sequence[Span]],
    remedy: str,
    ours: Sequence[str] = (),
) -> list[list[list[Any]]]:
    """Write NAME.bin of every name, `sizes` in bytes, from spans of files; returns the [bytes, xxh3] ranges of each.

    spans: in groups, a task each; target outputs are indices into names. What an interrupted run has given its names is
    not written again.
    """
    refuse_existing(folder, names, work, ours)
    outputs = [f"{name}.bin" for name in names]
    entries = [FileEntry(name=name, bytes=size, xxh3="", rows=0) for name, size in zip(outputs, sizes, strict=True)]
    earlier = _claim(work, folder).get("written", {})
    if folder.is_local and earlier.get("stats") == stages.stats.uri and all(folder.holds(entry) for entry in entries):
        return list(earlier["ranges"])
    if folder.is_local:
        nonce, temporary = _temporary(work, folder, names, sizes)
        context = CopyContext(folder, tuple(temporary), remedy)
        found = stages.run(f"merge~{nonce}", copy_spans, context, list(spans))
    else:
        claim = {"folder": folder.path(), "names": list(names)}
        with_retries(lambda: work.write_json(_CLAIM, claim))
        temporary = outputs
        context = CopyContext(folder, tuple(outputs), remedy)
        stage = f"merge~{fingerprint([outputs, folder.uri])}"
        found = stages.run(stage, write_object, context, spans_by_output(spans, len(outputs)), out=folder)
    ranges: list[list[list[Any]]] = [[] for _ in names]
    for stats in found:
        for output, at, size, xxh3 in stats["ranges"]:
            ranges[output].append([at, size, xxh3])
    for name, size, parts in zip(names, sizes, ranges, strict=True):
        parts.sort()
        end = 0
        for at, length, _ in parts:
            if at != end:
                raise InvariantError(f"{name}.bin: expected tokens at byte {end:,}, the next were written at {at:,}")
            end += length
        if end != size:
            raise InvariantError(f"{name}.bin: expected {size:,} bytes, {end:,} were written")
    if folder.is_local:
        for source, target in zip(temporary, outputs, strict=True):
            with_retries(partial(_rename, folder.path(source), folder.path(target)))
    written = [[[size, xxh3] for _, size, xxh3 in parts] for parts in ranges]
    if folder.is_local:
        done = {**_claim(work, folder), "written": {"stats": stages.stats.uri, "ranges": written}}
        with_retries(lambda: work.write_json(_CLAIM, done))
    return written


def _temporary(work: Folder, folder: Folder, names: Sequence[str], sizes: Sequence[int]) -> tuple[str, list[str]]:
    """Files of full size under temporary names: those that an interrupted run left, or new ones, and what tells them
    apart. A stage that copied into files that are gone is no longer done."""
    if nonce := _claim(work, folder).get("nonce"):
        left = [f"{name}.bin.{nonce}.tmp" for name in names]
        paths = [folder.path(name) for name in left]
        if all(os.path.exists(p) and os.path.getsize(p) == size for p, size in zip(paths, sizes, strict=True)):
            return nonce, left
        for path in paths:
            if os.path.exists(path):
                os.unlink(path)
    nonce = uuid.uuid4().hex
    claim = {"folder": folder.path(), "names": list(names), "nonce": nonce}
    with_retries(lambda: work.write_json(_CLAIM, claim))
    made = [f"{name}.bin.{nonce}.tmp" for name in names]
    os.makedirs(folder.path(), exist_ok=True)
    for name, size in zip(made, sizes, strict=True):
        with_retries(partial(_allocate, folder.path(name), size))
    return nonce, made


def _claim(work: Folder, folder: Folder) -> dict[str, Any]:
    """What this run, when it was interrupted, had begun to write in the folder; empty where it had not."""
    claim: dict[str, Any] = work.read_json(_CLAIM) if work.exists(_CLAIM) else {}
    return claim if claim.get("folder") == folder.path() else {}


def _rename(source: str, target: str) -> None:
    os.replace(source, target)


def _allocate(path: str, size: int) -> None:
    with open(path, "wb") as file:
        file.truncate(size)
