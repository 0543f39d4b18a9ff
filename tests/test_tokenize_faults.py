"""`taojin tokenize` and `taojin merge`, killed while they commit anything, and on failing disks. A rerun ends in the
same bytes."""

import errno
import multiprocessing
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from taojin.core import storage
from tests.jobs import Outcome, die_committing, process, taojin, wait_for, write_parquet
from tests.test_faults import failing, have_finished
from tests.token_runs import arguments, counts, outputs, records, small_tokenizer, tokenize

FLAGS = ("--unit-mb", "0.01", "--split", "train=0.5,valid=0.5", "--shuffle", "--backend", "reference")

# Every kind of file a run commits, in order; the number says which of them: not always the first.
COMMITS = {
    "plan.json": 1,
    "backend.json": 1,
    "/pieces/000001.bin": 1,
    "/pieces/000001.lengths": 1,
    "/pieces/000000.arrow": 1,
    "stats/encode/": 3,
    "/shuffled/000000.bin": 1,
    "/shuffled/000000.arrow": 1,
    "stats/shuffle/": 1,
    "claim.json": 1,
    "stats/merge~": 1,
    "zh_train.bin": 1,
    "zh_valid.bin": 1,  # when the other pair has its name
    "zh_valid.idx": 1,
    "zh_valid.parquet": 1,
    "stats/index~": 2,
    "zh.blend.txt": 1,
    "zh.blend.json": 1,
    "zh.manifest.json": 1,
}
# One of each stage; a killed process takes seconds to start.
KILLED = [
    *("plan.json", "/pieces/000001.bin", "stats/encode/", "/shuffled/000000.bin", "claim.json", "stats/merge~"),
    *("zh_train.bin", "zh_valid.bin", "zh_valid.parquet", "zh.manifest.json"),
]
LASTING = [*KILLED, "backend.json", "stats/index~", "zh.blend.json"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("faults")
    for shard in range(2):
        write_parquet(root / "in" / f"{shard}.parquet", records(shard, 60), row_group_size=30)
    small_tokenizer(root)
    return root


@pytest.fixture(scope="module")
def tokenizer(root: Path) -> Path:
    return root / "gpt2.json"


def everything(prefix: Path) -> dict[str, bytes]:
    return {**outputs(prefix), "manifest": Path(f"{prefix}.manifest.json").read_bytes()}


@pytest.fixture(scope="module")
def expected(root: Path, tokenizer: Path) -> dict[str, bytes]:
    counts(tokenize(root / "expected" / "zh", root / "in", tokenizer, *FLAGS))
    found = everything(root / "expected" / "zh")
    work = root / "expected" / "zh.work"
    assert {"_train.bin", "_valid.bin"} <= found.keys()
    assert len(list((work / "pieces").glob("*.bin"))) > 2
    return found


# ------------------------------------------------------------------------------------------------- killed


def kill(arguments: list[object], fragment: str, number: int) -> None:
    """Run `taojin` in a process that is killed in the act of committing a file."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.jobs", "taojin.merging", "taojin.pairs_report", "tyro", "tokenizers"])
    victim = context.Process(target=die_committing, args=(arguments, fragment, number))
    victim.start()
    victim.join(60)
    assert victim.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("fragment", KILLED)
def test_a_killed_run_is_completed_by_a_rerun(
    root: Path, tokenizer: Path, expected: dict[str, bytes], tmp_path: Path, fragment: str
) -> None:
    """It leaves the file torn under its temporary name."""
    prefix = tmp_path / "zh"
    given = ["tokenize", "--input", root / "in", *arguments(prefix, tokenizer), "--num-cpus", "0", *FLAGS]
    kill(given, fragment, COMMITS[fragment])
    torn = [str(path) for path in tmp_path.rglob("*.tmp")]
    assert [path for path in torn if fragment in path]
    assert not Path(f"{prefix}.manifest.json").exists()
    counts(tokenize(prefix, root / "in", tokenizer, *FLAGS))
    assert everything(prefix) == expected


def test_a_run_that_is_killed_again_and_again_ends_in_the_same_bytes(
    root: Path, tokenizer: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    prefix = tmp_path / "zh"
    given = ["tokenize", "--input", root / "in", *arguments(prefix, tokenizer), "--num-cpus", "0", *FLAGS]
    for fragment in ("stats/encode/", "stats/merge~", "zh_valid.bin", "stats/index~"):
        kill(given, fragment, 1)
    counts(tokenize(prefix, root / "in", tokenizer, *FLAGS))
    assert everything(prefix) == expected
    assert not list(tmp_path.glob("zh*.bin.*.tmp"))


@pytest.mark.parametrize(("fragment", "number"), [("stats/merge~", 3), ("zh_valid.idx", 1)])
def test_what_a_killed_run_had_done_is_not_done_again(
    root: Path, tokenizer: Path, tmp_path: Path, fragment: str, number: int
) -> None:
    prefix = tmp_path / "zh"
    flags = [flag for flag in FLAGS if flag != "--shuffle"]
    given = ["tokenize", "--input", root / "in", *arguments(prefix, tokenizer), "--num-cpus", "0", *flags]
    kill(given, fragment, number)

    def done() -> dict[Path, int]:
        found = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".tmp"]
        return {path: path.stat().st_mtime_ns for path in found if path.name != "claim.json"}

    before = done()
    counts(tokenize(prefix, root / "in", tokenizer, *flags))
    assert before.items() <= done().items()
    assert {path.parent.name.partition("~")[0] for path in before} >= {"pieces", "encode", "merge"}
    assert (tmp_path / "zh_valid.bin" in before) == (fragment == "zh_valid.idx")


@pytest.mark.ray
def test_a_killed_ray_driver_is_completed_by_a_rerun(root: Path, tokenizer: Path, tmp_path: Path) -> None:
    counts(tokenize(tmp_path / "one" / "zh", root / "in", tokenizer, *FLAGS))
    prefix = tmp_path / "two" / "zh"
    running = process("tokenize", "--input", root / "in", *arguments(prefix, tokenizer), "--num-cpus", "2", *FLAGS)
    wait_for(partial(have_finished, Path(f"{prefix}.work/stats/encode"), 2), 90, "units")
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate()
    counts(tokenize(prefix, root / "in", tokenizer, *FLAGS))
    assert everything(prefix) == everything(tmp_path / "one" / "zh")


def merge(output: Path, root: Path) -> list[object]:
    inputs = [root / "expected" / f"zh_{name}" for name in ("train", "valid")]
    return ["merge", "--input", *inputs, "--output", output, "--num-cpus", "0", "--quiet", "--json"]


@pytest.mark.usefixtures("expected")
@pytest.mark.parametrize("fragment", ["claim.json", "stats/", "all.bin", "all.idx", "all.manifest.json"])
def test_a_killed_merge_is_completed_by_a_rerun(root: Path, tmp_path: Path, fragment: str) -> None:
    assert taojin(*merge(tmp_path / "one" / "all", root)).status == 0
    kill(merge(tmp_path / "two" / "all", root), fragment, 1)
    assert taojin(*merge(tmp_path / "two" / "all", root)).status == 0
    assert everything(tmp_path / "one" / "all") == everything(tmp_path / "two" / "all")


# ------------------------------------------------------------------------------------------------- failing storage


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "FIRST_PAUSE_SECONDS", 0.0)


@pytest.mark.usefixtures("no_pause")
@pytest.mark.parametrize("fragment", COMMITS)
def test_a_passing_write_error_is_invisible(
    root: Path,
    tokenizer: Path,
    expected: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fragment: str,
) -> None:
    monkeypatch.setattr(os, "replace", failing(errno.EIO, fragment, 2))
    outcome = tokenize(tmp_path / "zh", root / "in", tokenizer, *FLAGS)
    assert (outcome.status, outcome.err) == (0, "")
    assert everything(tmp_path / "zh") == expected
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.usefixtures("no_pause")
@pytest.mark.parametrize("fragment", LASTING)
def test_a_lasting_write_error_is_one_line_and_a_rerun_completes(
    root: Path,
    tokenizer: Path,
    expected: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fragment: str,
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", failing(errno.ENOSPC, fragment, 1_000_000))
        outcome = tokenize(tmp_path / "zh", root / "in", tokenizer, *FLAGS)
    outcome.refuses(1, os.strerror(errno.ENOSPC), fragment)
    counts(tokenize(tmp_path / "zh", root / "in", tokenizer, *FLAGS))
    assert everything(tmp_path / "zh") == expected
    assert not list(tmp_path.rglob("*.tmp"))


def broken_pwrite(code: int, times: int) -> Callable[..., int]:
    """os.pwrite that fails at the second call and as often as that behind it."""
    write, calls = os.pwrite, 0

    def pwrite(*given: Any) -> int:
        nonlocal calls
        calls += 1
        if 2 <= calls < 2 + times:
            raise OSError(code, os.strerror(code))
        return write(*given)

    return pwrite


@pytest.mark.usefixtures("no_pause")
@pytest.mark.parametrize(("code", "times", "status"), [(errno.EIO, 2, 0), (errno.ENOSPC, 1_000_000, 1)])
def test_an_error_while_tokens_are_copied_passes_or_is_told(
    root: Path,
    tokenizer: Path,
    expected: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    times: int,
    status: int,
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", broken_pwrite(code, times))
        outcome: Outcome = tokenize(tmp_path / "zh", root / "in", tokenizer, *FLAGS)
    assert outcome.status == status, outcome.err
    if status:
        outcome.refuses(status, os.strerror(code))
        counts(tokenize(tmp_path / "zh", root / "in", tokenizer, *FLAGS))
    assert everything(tmp_path / "zh") == expected
