"""Pairs of an object store on a local disk of every node, where rows can be read from many places at once.

    CACHE/zh_train-3f0c…/zh_train.bin .idx      the pair, and zh_train_mask.* where masks are asked for
    CACHE/zh_train-3f0c…/zh_train.bin.json      the object it was copied from: its URI, size and version

In: prefixes of the config. Out: the same prefixes, each with a local one. The first worker of each node fetches, in
parts, several at a time; where `taojin tokenize` left a manifest, each part is compared with its checksum. A file is
renamed when it is whole, and fetched again only when the object has another size or ETag. The other workers wait.

Costs the disk what the pairs take; nothing is ever removed from CACHE, which may go when no run needs it.
"""

import os
import shutil
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import xxhash

from taojin.core.errors import ConfigError, InputError, StorageError
from taojin.core.storage import Folder, resolve, with_retries
from taojin.core.uris import last_part, with_suffix
from taojin.train.recorded import Recorded, recorded
from taojin.train.waiting import together

# Of one request. Eight at a time fill the network of most machines.
PART_BYTES = 32 << 20
PARTS = 8
KINDS = {".bin": "bin", ".idx": "idx", "_mask.bin": "mask_bin", "_mask.idx": "mask_idx"}


class Wanted(NamedTuple):
    """A file of a pair. origin: what its record holds · ranges: (bytes, XXH3-64), "" where nobody knows it."""

    path: Path
    origin: dict[str, Any]
    ranges: list[tuple[int, str]]

    @property
    def record(self) -> Path:
        return self.path.with_name(f"{self.path.name}.json")

    @property
    def stands(self) -> bool:
        try:
            return self.path.stat().st_size == self.origin["bytes"] and (
                orjson.loads(self.record.read_bytes()) == self.origin
            )
        except (OSError, ValueError):
            return False


def default_cache() -> str:
    return str(Path(tempfile.gettempdir()) / f"taojin-{os.getuid()}" / "pairs")


def local_pairs(
    prefixes: Sequence[str],
    cache: str | None,
    *,
    masked: bool,
    local_rank: int,
    gather: Callable[[Any], list[Any]],
    report: Callable[[str], None] = lambda _: None,
) -> dict[str, str]:
    """Prefix → local prefix of those that are URIs of an object store, fetched. All ranks must call it.

    gather: one value of each rank → all of them, in rank order. Raises on all ranks what the first one met: InputError
    for a pair that is missing or not what its manifest says, ConfigError where the disk is too small, StorageError.
    """
    folder = Path(cache or default_cache())
    places = {prefix: _place(folder, prefix) for prefix in prefixes if not Folder(prefix).is_local}
    if not places:
        return {}
    over = threading.Event()

    def work() -> None:
        _fetch_all(folder, places, masked, over, report)

    together(work if local_rank == 0 else None, gather, over.set)
    return {prefix: str(place) for prefix, place in places.items()}


def _place(folder: Path, prefix: str) -> Path:
    """Where the pair is, without .bin: a folder of its own, as pairs of two buckets may have one name."""
    stem = last_part(prefix)
    return folder / f"{stem[:100]}-{xxhash.xxh3_64_hexdigest(prefix.encode())}" / stem


def _fetch_all(
    folder: Path, places: dict[str, Path], masked: bool, over: threading.Event, report: Callable[[str], None]
) -> None:
    wanted = [file for prefix, place in places.items() for file in with_retries(lambda: _files(prefix, place, masked))]  # noqa: B023
    missing = [file for file in wanted if not file.stands]
    if not missing:
        return
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    needed, free = sum(file.origin["bytes"] for file in missing), shutil.disk_usage(folder).free
    if needed > free:
        raise ConfigError(
            f"cache: {folder}: expected {needed:,} bytes free for {len(missing):,} files of pairs, found {free:,}; "
            "name a folder on a larger local disk"
        )
    report(f"fetching {needed:,} bytes of pairs to {folder}")
    for file in missing:
        _fetch(file, over)


def _files(prefix: str, place: Path, masked: bool) -> list[Wanted]:
    known = recorded(prefix)
    return [_wanted(prefix, place, suffix, known) for suffix in KINDS if masked or not suffix.startswith("_mask")]


def _wanted(prefix: str, place: Path, suffix: str, known: Recorded | None) -> Wanted:
    uri = with_suffix(prefix, suffix)
    try:
        size, version = _version(uri)
    except FileNotFoundError:
        raise InputError(
            f"{uri}: expected a file of the pair {prefix}, found none: give the name without .bin and .idx"
        ) from None
    ranges = known.ranges(KINDS[suffix]) if known else []
    listed = sum(part for part, _ in ranges)
    if ranges and listed != size:
        raise InputError(
            f"{uri}: expected {listed:,} bytes, as its manifest says, found {size:,}: tokenize again, or copy it again"
        )
    origin = {"uri": uri, "bytes": size, "version": version}
    return Wanted(place.with_name(place.name + suffix), origin, ranges or [(size, "")])


def _version(uri: str) -> tuple[int, str]:
    """(bytes, what changes with the content). The time of an object is told in whole seconds, hence its ETag first."""
    filesystem, path = resolve(uri)
    with filesystem.open_input_file(path) as file:
        size, etag = int(file.size()), (file.metadata() or {}).get("ETag", b"").decode()
    return size, etag or str(filesystem.get_file_info(path).mtime_ns)


def _fetch(file: Wanted, over: threading.Event) -> None:
    """One file, whole or not at all."""
    file.path.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.path.with_name(f"{file.path.name}.{uuid.uuid4().hex}.tmp")
    uri = file.origin["uri"]
    try:
        with temporary.open("wb") as target, ThreadPoolExecutor(PARTS, "fetch-part") as pool:
            os.truncate(target.fileno(), file.origin["bytes"])
            reader = _Reader(uri, target.fileno(), over)
            for part in [pool.submit(reader.copy, at, size) for at, size in _parts(file.origin["bytes"])]:
                part.result()
        if over.is_set():
            raise StorageError(f"{uri}: fetching it was given up")
        _compare(file, temporary)
        if _version(uri) != (file.origin["bytes"], file.origin["version"]):
            raise InputError(f"{uri}: was replaced while it was fetched; run again when it is complete")
        os.replace(temporary, file.path)
        written = file.record.with_name(f"{file.record.name}.{uuid.uuid4().hex}.tmp")
        written.write_bytes(orjson.dumps(file.origin))
        os.replace(written, file.record)
    finally:
        temporary.unlink(missing_ok=True)


def _parts(total: int) -> Iterator[tuple[int, int]]:
    for at in range(0, total, PART_BYTES):
        yield at, min(PART_BYTES, total - at)


class _Reader:
    """Parts of an object into a file, from several threads; all give up when one fails, or when it is `over`."""

    def __init__(self, uri: str, target: int, over: threading.Event) -> None:
        self._uri = uri
        self._target = target
        self._over = over
        # One stream a thread: to open one is a request.
        self._local = threading.local()

    def copy(self, at: int, size: int) -> None:
        if self._over.is_set():
            return
        try:
            data = with_retries(lambda: self._read(at, size))
            if len(data) != size:
                raise InputError(f"{self._uri}: was cut while it was fetched; run again when it is complete")
            os.pwrite(self._target, data, at)
        except BaseException:
            self._over.set()
            raise

    def _read(self, at: int, size: int) -> bytes:
        if not hasattr(self._local, "stream"):
            filesystem, path = resolve(self._uri)
            self._local.stream = filesystem.open_input_file(path)
        return bytes(self._local.stream.read_at(size, at))


def _compare(file: Wanted, path: Path) -> None:
    if not any(checksum for _, checksum in file.ranges):
        return
    with path.open("rb") as source:
        at = 0
        for size, checksum in file.ranges:
            hasher, left = xxhash.xxh3_64(), size
            while left:
                block = source.read(min(left, 1 << 22))
                hasher.update(block)
                left -= len(block)
            if hasher.hexdigest() != checksum:
                raise InputError(
                    f"{file.origin['uri']}: bytes {at:,} to {at + size:,} are not those that its manifest lists: "
                    "it was damaged, or is of another run; tokenize again"
                )
            at += size
