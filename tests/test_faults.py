"""What goes wrong underneath: killed workers, killed drivers, failing storage. A rerun ends in the same bytes."""

import errno
import multiprocessing
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from taojin.core import storage
from taojin.core.errors import InvariantError
from tests.jobs import dedup, die_committing, finish, make_corpus, process, results, wait_for

UNITS = ("--unit-mb", "0.02", "--verify", "exact")

# Every kind of file a run commits, stage by stage; the number says which of them: not always the first.
COMMITS = {
    "plan.json": 1,
    "_taojin.json": 1,
    "/scan/000": 3,
    "/bands/000": 2,
    "/ids/000": 5,
    "stats/scan/": 4,
    "/config.json": 1,
    "excluded-twins.bin": 1,
    "/twins/000": 1,
    "/pairs/000": 1,
    "near-wanted.npy": 1,
    "near-shingles-0/": 2,
    "near-verdicts/": 1,
    "resolved.arrow": 1,
    "/decisions/000": 3,
    "/ledger/000": 2,
    "stats/decisions/": 6,
    "part-": 2,
    "_manifest.json": 1,
}
# One of each stage; a killed process takes seconds to start.
KILLED = [
    name
    for name in COMMITS
    if name not in ("/bands/000", "/ids/000", "/config.json", "excluded-twins.bin", "near-wanted.npy", "/ledger/000")
]
FLAGS = (*UNITS, "--part-mb", "0.05")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("faults") / "in")


@pytest.fixture(scope="module")
def expected(corpus: Path) -> dict[str, dict[str, str]]:
    assert dedup(corpus, corpus.parent / "expected", *FLAGS).counts["units"] > 6
    assert len(list((corpus.parent / "expected").glob("part-*.parquet"))) > 1
    return results(corpus.parent / "expected")


# ------------------------------------------------------------------------------------------------- killed


@pytest.mark.parametrize("fragment", KILLED)
def test_a_killed_run_is_completed_by_a_rerun(
    corpus: Path, expected: dict[str, dict[str, str]], tmp_path: Path, fragment: str
) -> None:
    """The driver is killed in the act of committing a file, and leaves it torn under its temporary name."""
    output = tmp_path / "out"
    arguments = ["dedup", "--input", corpus, "--output", output, "--num-cpus", "0", "--quiet", *FLAGS]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.jobs", "taojin.pipeline"])
    victim = context.Process(target=die_committing, args=(arguments, fragment, COMMITS[fragment]))
    victim.start()
    victim.join(60)
    assert victim.exitcode == -signal.SIGKILL
    torn = list(tmp_path.rglob("*.tmp"))
    assert [path for path in torn if fragment in str(path)]
    assert dedup(corpus, output, *FLAGS).status == 0
    assert results(output) == expected


def test_what_a_killed_run_left_is_never_counted_as_output(corpus: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert dedup(corpus, output, *FLAGS).status == 0
    (output / f"part-00009.parquet.{'0' * 32}.tmp").write_bytes(b"torn")
    counts = dedup(corpus, output, *FLAGS).counts
    manifest = storage.Folder(str(output)).read_json("_manifest.json")
    assert [part["name"] for part in manifest["parts"]] == sorted(path.name for path in output.glob("part-*.parquet"))
    assert sum(part["rows"] for part in manifest["parts"]) == counts["kept"]


def running_tasks(root: int) -> list[int]:
    """Ray workers below a process that are in the middle of a task."""
    from tests.test_cluster import descendants

    found = []
    for pid in descendants(root):
        try:
            title = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if title.startswith(b"ray::attempt"):
            found.append(pid)
    return found


def have_finished(stats: Path, units: int) -> bool:
    return units == 0 or (stats.is_dir() and len(list(stats.iterdir())) >= units)


@pytest.mark.ray
def test_killed_workers_do_not_change_a_byte(corpus: Path, expected: dict[str, dict[str, str]], tmp_path: Path) -> None:
    output = tmp_path / "out"
    stats = tmp_path / "out.work" / "stats" / "scan"
    running = process("dedup", "--input", corpus, "--output", output, "--num-cpus", "2", "--quiet", *FLAGS)
    for done in (0, 3):
        wait_for(partial(have_finished, stats, done), 90, "units")
        os.kill(wait_for(lambda: running_tasks(running.pid), 90, "a worker with a task")[0], signal.SIGKILL)
    outcome = finish(running)
    assert outcome.status == 0, outcome.err
    assert results(output) == expected


@pytest.mark.ray
def test_a_killed_ray_driver_is_completed_by_a_rerun(
    corpus: Path, expected: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    output = tmp_path / "out"
    stats = tmp_path / "out.work" / "stats" / "scan"
    running = process("dedup", "--input", corpus, "--output", output, "--num-cpus", "2", "--quiet", *FLAGS)
    wait_for(partial(have_finished, stats, 2), 90, "units")
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate()
    assert dedup(corpus, output, *FLAGS).status == 0
    assert results(output) == expected


# ------------------------------------------------------------------------------------------------- failing storage


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "FIRST_PAUSE_SECONDS", 0.0)


def failing(code: int, fragment: str, times: int) -> Callable[[str, str], None]:
    """os.replace that fails for the first `times` files whose path holds `fragment`."""
    rename = os.replace
    left = times

    def replace(source: str, target: str) -> None:
        nonlocal left
        if fragment in target and left:
            left -= 1
            raise OSError(code, os.strerror(code), target)
        rename(source, target)

    return replace


@pytest.mark.usefixtures("no_pause")
@pytest.mark.parametrize("fragment", COMMITS)
def test_a_passing_write_error_is_invisible(
    corpus: Path,
    expected: dict[str, dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fragment: str,
) -> None:
    monkeypatch.setattr(os, "replace", failing(errno.EIO, fragment, 2))
    outcome = dedup(corpus, tmp_path / "out", *FLAGS)
    assert (outcome.status, outcome.err) == (0, "")
    assert results(tmp_path / "out") == expected
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.usefixtures("no_pause")
@pytest.mark.parametrize(
    ("code", "fragment"),
    [*((errno.ENOSPC, name) for name in COMMITS), (errno.EACCES, "/scan/000"), (errno.EACCES, "resolved.arrow")],
)
def test_a_lasting_write_error_is_one_line_and_a_rerun_completes(
    corpus: Path,
    expected: dict[str, dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    fragment: str,
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", failing(code, fragment, 1_000_000))
        dedup(corpus, tmp_path / "out", *FLAGS).refuses(1, os.strerror(code), fragment)
    assert not list(tmp_path.rglob("*.tmp"))
    assert dedup(corpus, tmp_path / "out", *FLAGS).status == 0
    assert results(tmp_path / "out") == expected


@pytest.mark.usefixtures("no_pause")
def test_a_passing_read_error_is_invisible(
    corpus: Path, expected: dict[str, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    resolve = storage.resolve

    def flaky(uri: str) -> object:
        nonlocal calls
        calls += 1
        if calls in (1, 2, 7, 20):
            raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), uri)
        return resolve(uri)

    monkeypatch.setattr("taojin.core.reading.resolve", flaky)
    outcome = dedup(corpus, tmp_path / "out", *FLAGS)
    assert (outcome.status, outcome.err) == (0, "")
    assert results(tmp_path / "out") == expected


@pytest.mark.usefixtures("no_pause")
def test_an_error_that_does_not_pass_is_one_line(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "replace", failing(errno.EIO, "/scan/000", 1_000_000))
    dedup(corpus, tmp_path / "out", *FLAGS).refuses(1, "scan: ", "of the units failed", "Input/output error")


def test_a_lost_sidecar_is_noticed(corpus: Path, tmp_path: Path) -> None:
    """A manifest entry without its file is a defect of ours or of the disk: loud, never a wrong result."""
    assert dedup(corpus, tmp_path / "out", *FLAGS).status == 0
    (tmp_path / "out.work" / "bands" / "000001.arrow").unlink()
    with pytest.raises(InvariantError, match=r"bands/000001\.arrow: expected .* bytes, found no file"):
        dedup(corpus, tmp_path / "out", *FLAGS)


def test_an_output_that_was_deleted_is_written_again(
    corpus: Path, expected: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    output = tmp_path / "out"
    assert dedup(corpus, output, *FLAGS).status == 0
    for path in output.iterdir():
        path.unlink()
    assert dedup(corpus, output, *FLAGS).status == 0
    assert results(output) == expected
