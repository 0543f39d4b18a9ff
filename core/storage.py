"""Folders on local disks and object stores, with one code: pyarrow's filesystems.

`Folder` names a folder by path or URI and is cheap to pickle. Files are committed whole: written under a temporary name
that is unique per attempt, flushed to disk, then renamed (object stores: one upload that appears when it is complete).
Every committed file comes back as a `FileEntry` with its size and XXH3 checksum; a later stage believes the entry in
the manifest, not the file's presence.
"""

import contextlib
import errno
import functools
import io
import os
import random
import re
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import orjson
import pyarrow as pa
import pyarrow.fs as pafs
import xxhash

from taojin.core.errors import InputError, InvariantError, StorageError
from taojin.core.uris import is_uri, last_part, split_query, with_suffix

T = TypeVar("T")

# Trying again does not help: say so at once. Everything else an OSError can be (timeouts, throttling, stale handles of
# network file systems, connection resets) is worth another try.
PERMANENT_ERRNOS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.EFBIG,
}
# What a killed attempt leaves behind; it never counts as a file of the folder.
_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp$")
ATTEMPTS = 4
FIRST_PAUSE_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """A committed file in a manifest: name relative to its folder, size, XXH3-64 of its bytes, and its rows."""

    name: str
    bytes: int
    xxh3: str
    rows: int

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "bytes": self.bytes, "xxh3": self.xxh3, "rows": self.rows}


class _Output(Protocol):
    def write(self, data: Any, /) -> Any: ...
    def flush(self) -> Any: ...
    def close(self) -> Any: ...


class Sink(io.RawIOBase):
    """A write-only file that counts and hashes what goes through; `rows` is for the writer to set."""

    def __init__(self, output: _Output) -> None:
        self._output = output
        self._hasher = xxhash.xxh3_64()
        self.position = 0
        self.rows = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._hasher.update(view)
        self._output.write(view)
        self.position += len(view)
        return len(view)

    def tell(self) -> int:
        return self.position

    def hexdigest(self) -> str:
        return self._hasher.hexdigest()


@dataclass(frozen=True)
class Folder:
    """A folder by its local path or URI (`s3://bucket/prefix`). The filesystem is looked up where it is used."""

    uri: str

    @property
    def is_local(self) -> bool:
        return not is_uri(self.uri) or self.uri.startswith("file://")

    @property
    def name(self) -> str:
        return last_part(self.uri)

    def resolve(self) -> tuple[pafs.FileSystem, str]:
        return resolve(self.uri)

    def path(self, name: str = "") -> str:
        root = self.resolve()[1]
        return f"{root}/{name}" if name else root

    def child(self, name: str) -> "Folder":
        return Folder(with_suffix(self.uri, f"/{name}"))

    def exists(self, name: str = "") -> bool:
        filesystem, _ = self.resolve()
        return bool(filesystem.get_file_info(self.path(name)).type != pafs.FileType.NotFound)

    def names(self, sub: str = "") -> list[str]:
        """Names directly below the folder, sorted, but for temporary ones; empty when it does not exist."""
        filesystem, _ = self.resolve()
        infos = filesystem.get_file_info(pafs.FileSelector(self.path(sub), allow_not_found=True))
        return sorted(info.base_name for info in infos if not _TEMPORARY.search(info.base_name))

    def remove_temporary(self) -> None:
        """Remove what killed attempts left directly below the folder. For when nothing is being written there."""
        filesystem, _ = self.resolve()
        for info in filesystem.get_file_info(pafs.FileSelector(self.path(), allow_not_found=True)):
            if _TEMPORARY.search(info.base_name):
                with contextlib.suppress(FileNotFoundError):
                    filesystem.delete_file(info.path)

    def open(self, name: str) -> pa.NativeFile:
        """Random access; memory-mapped when local. The mapping is dropped with the last array made from it."""
        if self.is_local:
            return pa.memory_map(self.path(name))
        return self.resolve()[0].open_input_file(self.path(name))

    def read_bytes(self, name: str) -> bytes:
        filesystem, _ = self.resolve()
        with filesystem.open_input_stream(self.path(name)) as stream:
            return bytes(stream.read())

    def read_json(self, name: str) -> Any:
        return orjson.loads(self.read_bytes(name))

    def write_json(self, name: str, value: Any) -> FileEntry:
        with self.create(name) as sink:
            sink.write(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n")
        return self.entry(name, sink)

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[Sink]:
        """A file that appears under its name only when the block ends without an exception."""
        filesystem, _ = self.resolve()
        path = self.path(name)
        if not self.is_local:
            # An upload that is not completed never shows, but pyarrow cannot abandon one: its destructor completes it,
            # maybe over what a retry has written by then. So it is completed here, and removed.
            output = filesystem.open_output_stream(path)
            sink = Sink(output)
            try:
                yield sink
            except BaseException:
                with contextlib.suppress(OSError):
                    output.close()
                with contextlib.suppress(OSError):
                    filesystem.delete_file(path)
                raise
            output.close()
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = f"{path}.{uuid.uuid4().hex}.tmp"
        try:
            with open(temporary, "wb") as file:
                sink = Sink(file)
                yield sink
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise

    @staticmethod
    def entry(name: str, sink: Sink) -> FileEntry:
        return FileEntry(name=name, bytes=sink.position, xxh3=sink.hexdigest(), rows=sink.rows)

    def holds(self, entry: FileEntry) -> bool:
        """Whether the file stands with the size of its manifest entry."""
        filesystem, _ = self.resolve()
        info = filesystem.get_file_info(self.path(entry.name))
        return bool(info.type == pafs.FileType.File and info.size == entry.bytes)

    def require(self, entry: FileEntry, *, checksum: bool = False) -> None:
        """Raise InvariantError unless the file stands as its manifest entry says."""
        filesystem, _ = self.resolve()
        info = filesystem.get_file_info(self.path(entry.name))
        if info.type != pafs.FileType.File or info.size != entry.bytes:
            found = f"{info.size:,} bytes" if info.type == pafs.FileType.File else "no file"
            raise InvariantError(f"{self.uri}/{entry.name}: expected {entry.bytes:,} bytes, found {found}")
        if checksum and file_checksum(self, entry.name) != entry.xxh3:
            raise InvariantError(f"{self.uri}/{entry.name}: its checksum is not the one in the manifest")


def resolve(uri: str) -> tuple[pafs.FileSystem, str]:
    """(filesystem, path) of a local path or a URI; raises InputError for a scheme nobody serves here.

    The path of a URI is taken as it stands: spaces and Chinese need no percent signs.
    """
    uri = uri.removeprefix("file://")
    if not is_uri(uri):
        return pafs.LocalFileSystem(), os.path.abspath(uri).rstrip("/") or "/"
    path, query = split_query(uri)
    scheme, _, rest = path.partition("://")
    root, slash, below = rest.partition("/")
    try:
        filesystem, top = _connect(f"{scheme}://{root}", query)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise InputError(f"{uri}: {first_line(error)}") from None
    return filesystem, f"{top}{slash}{below}"


@functools.lru_cache(maxsize=32)
def _connect(root: str, query: str) -> tuple[pafs.FileSystem, str]:
    """One client per bucket and process: making one may ask the network for the bucket's region."""
    filesystem, path = pafs.FileSystem.from_uri(root + query)
    return filesystem, path.rstrip("/")


def file_checksum(folder: Folder, name: str) -> str:
    hasher = xxhash.xxh3_64()
    filesystem, _ = folder.resolve()
    with filesystem.open_input_stream(folder.path(name)) as stream:
        while chunk := stream.read(1 << 22):
            hasher.update(chunk)
    return hasher.hexdigest()


def first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def is_transient(error: OSError) -> bool:
    return error.errno not in PERMANENT_ERRNOS and not isinstance(error, FileNotFoundError | PermissionError)


def with_retries(function: Callable[[], T]) -> T:
    """Call; on a transient OSError pause (jittered, doubling) and call again; a lasting one becomes a StorageError."""
    pause = FIRST_PAUSE_SECONDS
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return function()
        except OSError as error:
            if attempt == ATTEMPTS or not is_transient(error):
                reason = error.strerror or first_line(error)
                where = f"{error.filename}: " if error.filename else ""
                raise StorageError(f"{where}{reason}") from error
            # The jitter spreads workers that were throttled together; it enters no output.
            time.sleep(pause * (0.5 + random.random()))
            pause *= 2
    raise AssertionError("unreachable")
