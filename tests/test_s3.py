"""The whole job on s3:// against SeaweedFS on loopback: the same bytes as on local disks.

Credentials come from the environment, as AWS has it; the endpoint from AWS_ENDPOINT_URL or from the URI's query.
"""

import gc
import os
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from taojin.core import storage
from tests.jobs import dedup, digest, make_corpus, results, taojin
from tests.s3_server import keys_fixture as keys_fixture
from tests.s3_server import pytestmark as pytestmark
from tests.s3_server import server_fixture as server_fixture
from tests.s3_server import store, upload

UNITS = ("--unit-mb", "0.02")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("s3") / "in")


@pytest.fixture(scope="module")
def expected(corpus: Path) -> dict[str, dict[str, str]]:
    """What does not say where the shards lie."""
    assert dedup(corpus, corpus.parent / "local", *UNITS).status == 0
    found = results(corpus.parent / "local")
    for name in ("output/_taojin.json", "work/plan.json"):
        kind, _, file = name.partition("/")
        found[kind].pop(file)
    return found


def download(endpoint: str, folder: str, leave_out: tuple[str, ...]) -> dict[str, str]:
    remote = store(endpoint)
    found = {}
    for info in remote.get_file_info(pafs.FileSelector(f"bucket/{folder}", recursive=True)):
        name = info.path.removeprefix(f"bucket/{folder}/")
        if info.type == pafs.FileType.File and not any(part in name for part in leave_out):
            found[name] = digest(remote.open_input_stream(info.path).read())
    return found


def remote_results(endpoint: str, output: str) -> dict[str, dict[str, str]]:
    return {
        "output": download(endpoint, output, ("_taojin.json",)),
        "work": download(endpoint, f"{output}.work", ("plan.json", "stats/write~")),
    }


@pytest.mark.usefixtures("keys")
def test_input_work_and_output_on_a_store_give_the_same_bytes(
    server: str, corpus: Path, expected: dict[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{server}")
    upload(server, corpus, "env/in")
    outcome = dedup("s3://bucket/env/in", "s3://bucket/env/out", *UNITS)
    assert outcome.counts["output"] == "s3://bucket/env/out"
    assert remote_results(server, "env/out") == expected


@pytest.mark.usefixtures("keys")
def test_the_endpoint_may_stand_in_the_uri(server: str, corpus: Path, expected: dict[str, dict[str, str]]) -> None:
    query = f"?scheme=http&endpoint_override={server}"
    upload(server, corpus, "query 目录/in")
    outcome = dedup(f"s3://bucket/query 目录/in{query}", f"s3://bucket/query 目录/out{query}", *UNITS)
    assert outcome.counts["work"] == f"s3://bucket/query 目录/out.work{query}"
    assert remote_results(server, "query 目录/out") == expected


@pytest.mark.usefixtures("keys")
def test_a_run_on_a_store_resumes(server: str, corpus: Path, expected: dict[str, dict[str, str]]) -> None:
    query = f"?scheme=http&endpoint_override={server}"
    upload(server, corpus, "again/in")
    arguments = (f"s3://bucket/again/in{query}", f"s3://bucket/again/out{query}", *UNITS)
    assert dedup(*arguments).status == 0
    remote = store(server)
    for name in ("out/part-00000.parquet", "out.work/stats/scan/000003.json", "out/_manifest.json"):
        remote.delete_file(f"bucket/again/{name}")
    assert dedup(*arguments).status == 0
    assert remote_results(server, "again/out") == expected


@pytest.mark.usefixtures("keys")
def test_a_store_and_a_disk_may_be_mixed(
    server: str, corpus: Path, expected: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    query = f"?scheme=http&endpoint_override={server}"
    work = tmp_path / "work"
    assert dedup(corpus, f"s3://bucket/mixed/out{query}", *UNITS, "--work", work).status == 0
    assert download(server, "mixed/out", ("_taojin.json",)) == expected["output"]


@pytest.mark.usefixtures("keys")
def test_an_index_may_lie_on_a_store(server: str, corpus: Path, tmp_path: Path) -> None:
    query = f"?scheme=http&endpoint_override={server}"
    assert dedup(corpus, f"s3://bucket/index/out{query}", *UNITS).status == 0
    outcome = dedup(corpus, tmp_path / "out", *UNITS, "--against", f"s3://bucket/index/out.work{query}")
    assert outcome.counts["kept"] == 0


@pytest.mark.usefixtures("keys")
def test_an_upload_that_failed_leaves_nothing_that_could_replace_the_next(server: str) -> None:
    """pyarrow's streams complete their upload when they are destroyed, and an exception keeps them alive till later."""
    folder = storage.Folder(f"s3://bucket/torn?scheme=http&endpoint_override={server}")

    def torn() -> None:
        with folder.create("part") as sink:
            sink.write(b"x" * 12_000_000)
            raise OSError("cut")

    with pytest.raises(OSError, match="cut") as caught:
        torn()
    assert not folder.exists("part")
    with folder.create("part") as sink:
        sink.write(b"y" * 20_000_000)
    del caught, sink
    gc.collect()
    assert folder.read_bytes("part") == b"y" * 20_000_000


def test_an_output_in_an_input_on_a_store_is_refused(server: str, corpus: Path) -> None:
    query = f"?scheme=http&endpoint_override={server}"
    upload(server, corpus, "inside")
    dedup(f"s3://bucket/inside{query}", f"s3://bucket/inside/out{query}").refuses(2, "lies inside the input")


@pytest.mark.usefixtures("keys")
def test_a_missing_prefix_is_named(server: str, tmp_path: Path) -> None:
    query = f"?scheme=http&endpoint_override={server}"
    dedup(f"s3://bucket/nowhere{query}", tmp_path / "out").refuses(2, "s3://bucket/nowhere")


def test_wrong_keys_are_one_line(server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    storage._connect.cache_clear()
    outcome = taojin(
        "dedup", "--input", f"s3://bucket/x?scheme=http&endpoint_override={server}", "--output", tmp_path / "out"
    )
    storage._connect.cache_clear()
    outcome.refuses(2, "s3://bucket/x")


def test_the_server_is_reached_on_loopback_alone(server: str) -> None:
    port = f"{int(server.split(':')[1]):04X}"
    [inode] = [line.split()[9] for line in listening() if line.split()[1] == f"0100007F:{port}"]
    [owner] = {path.parts[2] for path in Path("/proc").glob("[0-9]*/fd/*") if link(path) == f"socket:[{inode}]"}
    inodes = {link(path)[8:-1] for path in Path(f"/proc/{owner}/fd").iterdir() if link(path).startswith("socket:")}
    addresses = {line.split()[1].split(":")[0] for line in listening() if line.split()[9] in inodes}
    assert addresses == {"0100007F"}


def listening() -> list[str]:
    lines = [line for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return [line for line in lines if line.split()[3] == "0A"]


def link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
