"""Committed files (core/storage.py): whole or not there, with a checksum; transient errors are tried again."""

import errno
import os
from pathlib import Path

import pytest
import xxhash

from taojin.core import storage
from taojin.core.errors import InputError, InvariantError, StorageError
from taojin.core.storage import FileEntry, Folder, file_checksum, is_transient, resolve, with_retries
from taojin.core.uris import last_part, split_query, with_suffix


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(str(tmp_path / "目录 a"))


def test_an_entry_says_what_lies_there(folder: Folder) -> None:
    with folder.create("deep/x.bin") as sink:
        sink.write(b"ab")
        sink.write(memoryview(b"c"))
        sink.rows = 3
    entry = folder.entry("deep/x.bin", sink)
    assert entry == FileEntry(name="deep/x.bin", bytes=3, xxh3=xxhash.xxh3_64_hexdigest(b"abc"), rows=3)
    assert file_checksum(folder, "deep/x.bin") == entry.xxh3
    assert folder.read_bytes("deep/x.bin") == b"abc"
    folder.require(entry, checksum=True)


def test_a_file_appears_only_when_it_is_whole(folder: Folder) -> None:
    with folder.create("x") as sink:
        sink.write(b"half")
        assert not folder.exists("x")
    assert folder.exists("x")


def fail_half_way(folder: Folder) -> None:
    with folder.create("x") as sink:
        sink.write(b"half")
        raise ZeroDivisionError


def test_a_failed_file_leaves_nothing(folder: Folder, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        fail_half_way(folder)
    assert folder.names() == []
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_failed_file_leaves_the_earlier_one(folder: Folder) -> None:
    folder.write_json("x", 1)
    with pytest.raises(ZeroDivisionError):
        fail_half_way(folder)
    assert folder.read_json("x") == 1


def test_what_a_killed_attempt_left_is_no_file_of_the_folder(folder: Folder) -> None:
    folder.write_json("x", 1)
    Path(folder.path(f"x.{'ab' * 16}.tmp")).write_bytes(b"torn")
    Path(folder.path("mine.tmp")).write_bytes(b"not ours")
    assert folder.names() == ["mine.tmp", "x"]


def test_what_a_killed_attempt_left_is_removed_and_nothing_else(folder: Folder, tmp_path: Path) -> None:
    folder.remove_temporary()  # a folder that is not there has none
    folder.write_json("x", 1)
    left = [folder.path(name) for name in ("x", "mine.tmp", f"x.{'ab' * 15}.tmp", f"deep/y.{'ab' * 16}.tmp")]
    Path(folder.path("deep")).mkdir()
    for path in (*left[1:], folder.path(f"x.{'ab' * 16}.tmp")):
        Path(path).write_bytes(b"torn")
    folder.remove_temporary()
    assert sorted(str(path) for path in tmp_path.rglob("*") if path.is_file()) == sorted(left)


def test_json_is_the_same_bytes_whatever_the_order_of_keys(folder: Folder) -> None:
    folder.write_json("a", {"x": 1, "y": [2]})
    folder.write_json("b", {"y": [2], "x": 1})
    assert folder.read_bytes("a") == folder.read_bytes("b")


def test_names_of_a_folder_that_is_not_there_are_none(folder: Folder) -> None:
    assert folder.names() == folder.names("below") == []
    assert not folder.exists()


def test_a_missing_a_shorter_and_a_changed_file_are_noticed(folder: Folder) -> None:
    entry = folder.write_json("x", [1])
    changed = folder.read_bytes("x").replace(b"1", b"2")
    Path(folder.path("x")).write_bytes(changed)
    assert folder.holds(entry)
    with pytest.raises(InvariantError, match="checksum"):
        folder.require(entry, checksum=True)
    Path(folder.path("x")).write_bytes(b"")
    assert not folder.holds(entry)
    with pytest.raises(InvariantError, match="expected 8 bytes, found 0 bytes"):
        folder.require(entry)
    Path(folder.path("x")).unlink()
    with pytest.raises(InvariantError, match="expected 8 bytes, found no file"):
        folder.require(entry)


# ------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("name", "below"),
    [
        ("/data/out", "/data/out/x/y"),
        ("/data/out/", "/data/out/x/y"),
        ("what?/out", "what?/out/x/y"),
        ("s3://b/out", "s3://b/out/x/y"),
        ("s3://b/out/?scheme=http&endpoint_override=h:1", "s3://b/out/x/y?scheme=http&endpoint_override=h:1"),
    ],
)
def test_a_child_keeps_the_connection_of_its_folder(name: str, below: str) -> None:
    assert Folder(name).child("x").child("y").uri == below
    assert Folder(name).child("x").child("y").name == "y"


def test_a_query_is_no_part_of_a_name() -> None:
    assert split_query("s3://b/a/?q=1/2") == ("s3://b/a", "?q=1/2")
    assert split_query("/a?b/c") == ("/a?b/c", "")
    assert with_suffix("s3://b/a?q=1", ".work") == "s3://b/a.work?q=1"
    assert with_suffix("out/", ".work") == "out.work"
    assert last_part("s3://b/a/decide-1?q=x/y") == "decide-1"


def test_the_root_of_the_disk_stays_the_root() -> None:
    assert split_query("/") == ("/", "")
    assert resolve("/")[1] == "/"


def test_a_file_uri_is_a_local_path(tmp_path: Path) -> None:
    assert resolve(f"file://{tmp_path}/x y")[1] == f"{tmp_path}/x y"
    assert Folder(f"file://{tmp_path}").is_local


def test_a_relative_path_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve("x")[1] == str(tmp_path / "x")


def test_an_unknown_scheme_is_the_users_error() -> None:
    with pytest.raises(InputError, match=r"gopher://x/y: "):
        resolve("gopher://x/y")


# ------------------------------------------------------------------------------------------------- retries


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr("taojin.core.storage.time.sleep", slept.append)
    return slept


class Flaky:
    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def test_transient_errors_are_tried_again_with_growing_pauses(pauses: list[float]) -> None:
    function = Flaky(*[OSError(errno.ETIMEDOUT, "timed out")] * 3)
    assert with_retries(function) == "done"
    assert function.calls == 4
    assert [0.5 * 0.2 * 2**i <= pause <= 1.5 * 0.2 * 2**i for i, pause in enumerate(pauses)] == [True] * 3


def test_an_error_that_stays_becomes_a_storage_error(pauses: list[float]) -> None:
    function = Flaky(*[OSError(errno.EIO, "Input/output error", "/data/x")] * 9)
    with pytest.raises(StorageError, match=r"^/data/x: Input/output error$"):
        with_retries(function)
    assert function.calls == storage.ATTEMPTS == len(pauses) + 1


@pytest.mark.parametrize("code", ["ENOSPC", "EDQUOT", "EACCES", "EROFS", "ENOENT", "ENOTDIR", "EFBIG", "ENAMETOOLONG"])
def test_what_will_not_pass_is_not_tried_again(pauses: list[float], code: str) -> None:
    number = getattr(errno, code)
    function = Flaky(OSError(number, os.strerror(number)))
    with pytest.raises(StorageError, match=os.strerror(number)):
        with_retries(function)
    assert (function.calls, pauses) == (1, [])


def test_other_errors_pass_through_at_once(pauses: list[float]) -> None:
    function = Flaky(ValueError("a defect"))
    with pytest.raises(ValueError, match="a defect"):
        with_retries(function)
    assert function.calls == 1


def test_errors_without_a_number_are_transient() -> None:
    """pyarrow reports what an object store answered as an OSError without errno."""
    assert is_transient(OSError("AWS Error SLOW_DOWN during PutObject operation"))
    assert not is_transient(FileNotFoundError("gone"))
