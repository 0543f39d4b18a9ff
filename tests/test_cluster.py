"""On a cluster: the shipped YAML, what a job uploads, and jobs on a one-node cluster on loopback."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.jobs import ENVIRONMENT, ROOT, dedup, make_corpus, results, wait_for

BIN = Path(sys.executable).parent
YAML = ROOT / "ray_cluster.yaml"

# ------------------------------------------------------------------------------------------------- ray_cluster.yaml


def validated(config: dict[str, Any]) -> dict[str, Any]:
    """Through Ray's own checks, as `ray up` does before it asks a cloud for anything."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared: dict[str, Any] = prepare_config(config)
    validate_config(prepared)
    return prepared


def test_the_cluster_file_passes_rays_own_validation() -> None:
    prepared = validated(yaml.safe_load(YAML.read_text()))
    assert prepared["available_node_types"]["head"]["resources"] == {"CPU": 0}
    assert prepared["max_workers"] > 0


def test_an_unknown_key_would_not_pass() -> None:
    with pytest.raises(Exception, match="'initial_workers' was unexpected"):
        validated({**yaml.safe_load(YAML.read_text()), "initial_workers": 1})


def test_the_variant_for_machines_of_ones_own_passes_too() -> None:
    lines = [line.removeprefix("# ") for line in YAML.read_text().splitlines()]
    own = yaml.safe_load("\n".join(line for line in lines if line.startswith(("provider: {type: local", "auth: {"))))
    config = yaml.safe_load(YAML.read_text())
    config = {key: value for key, value in config.items() if key not in ("head_node_type", "available_node_types")}
    assert set(own) == {"provider", "auth"}
    assert list(validated({**config, **own})["available_node_types"]) == ["local.cluster.node"]


def test_every_path_it_mounts_and_ignores_is_there() -> None:
    config = yaml.safe_load(YAML.read_text())
    assert config["file_mounts"]["~/taojin"] == "."
    for name in config["rsync_filter"]:
        assert (ROOT / name).is_file()


def test_the_submitted_script_needs_nothing_beside_the_installed_package(tmp_path: Path) -> None:
    """`ray submit` copies the one file into another folder and runs it there."""
    shutil.copy(ROOT / "dedup" / "run.py", tmp_path / "run.py")
    done = subprocess.run(
        [sys.executable, tmp_path / "run.py", "--help"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "--threshold" in done.stdout


# ------------------------------------------------------------------------------------------------- what is uploaded


def test_an_upload_holds_the_code_and_no_data_nor_environment(tmp_path: Path) -> None:
    from ray._private.runtime_env.packaging import create_package

    (tmp_path / "data").mkdir()
    checkout = tmp_path / "checkout"
    shutil.copytree(
        ROOT,
        checkout,
        symlinks=True,
        ignore=shutil.ignore_patterns(".venv", ".git", ".bench", ".*_cache", "*.egg-info"),
    )
    for name in (".venv/bin/python", ".git/HEAD", "a.parquet", "raw/b.jsonl", "raw/c.jsonl.gz", "out.work/plan.json"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("not code")
    create_package(str(checkout), tmp_path / "upload.zip", include_parent_dir=False, include_gitignore=True)
    with zipfile.ZipFile(tmp_path / "upload.zip") as archive:
        names = archive.namelist()
    assert {"taojin/cli.py", "core/corpus.py", "taojin/core/corpus.py", "taojin/core/fold-v1.npz"} <= set(names)
    assert not [
        name for name in names if (checkout / name).is_file() and (checkout / name).read_text("latin-1") == "not code"
    ]
    assert (tmp_path / "upload.zip").stat().st_size < 10_000_000


# ------------------------------------------------------------------------------------------------- jobs on loopback


class Head(NamedTuple):
    jobs: str
    environment: dict[str, str]


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def descendants(root: int) -> list[int]:
    """Process ids below `root`, from /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(entry.parent.name)] = int(entry.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    """`ray start --head` in a temp folder and on ports of its own; ended by its process ids, never by `ray stop`."""
    folder = Path(tempfile.mkdtemp(prefix="tj-", dir="/tmp"))  # short: Ray's sockets lie below it
    port, dashboard, client, agent, metrics = free_ports(5)
    environment = {**ENVIRONMENT, "PATH": f"{BIN}:{os.environ['PATH']}", "RAY_ADDRESS": f"127.0.0.2:{port}"}
    without_address = {key: value for key, value in environment.items() if key != "RAY_ADDRESS"}
    with (folder / "log").open("w") as log:
        # 127.0.0.1 would be replaced by the host's own address; all of 127/8 is loopback.
        started = subprocess.Popen(
            [
                BIN / "ray", "start", "--head", "--block", "--disable-usage-stats", "--num-cpus=2",
                "--node-ip-address=127.0.0.2", f"--port={port}", f"--temp-dir={folder}/ray",
                "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}", f"--ray-client-server-port={client}",
                f"--dashboard-agent-listen-port={agent}", f"--metrics-export-port={metrics}",
            ],
            stdout=log, stderr=log, env=without_address, start_new_session=True,
        )  # fmt: skip
    try:

        def answers() -> bool:
            assert started.poll() is None, (folder / "log").read_text()
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", dashboard)) == 0

        wait_for(answers, 90, "the cluster's dashboard")
        yield Head(f"http://127.0.0.1:{dashboard}", environment)
    finally:
        ours = [started.pid, *descendants(started.pid)]
        for pid in ours:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        started.wait(10)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("cluster") / "in")


@pytest.fixture(scope="module")
def expected(corpus: Path) -> dict[str, dict[str, str]]:
    assert dedup(corpus, corpus.parent / "local", "--unit-mb", "0.02").status == 0
    return results(corpus.parent / "local")


def flags(corpus: Path, output: Path) -> list[str]:
    return ["--input", str(corpus), "--output", str(output), "--unit-mb", "0.02"]


def submit(head: Head, *entrypoint: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in head.environment.items() if key != "RAY_ADDRESS"}
    return subprocess.run(
        [BIN / "ray", "job", "submit", "--address", head.jobs, "--working-dir", ROOT, "--", *entrypoint],
        capture_output=True, text=True, env=environment, cwd=ROOT, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.ray
def test_a_submitted_job_writes_the_same_bytes(
    head: Head, corpus: Path, expected: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    done = submit(head, "taojin", "dedup", *flags(corpus, tmp_path / "out"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "documents kept" in done.stdout
    assert results(tmp_path / "out") == expected


@pytest.mark.ray
def test_a_submitted_job_runs_the_uploaded_code(head: Head) -> None:
    done = submit(head, "python", "-c", "import taojin.core.errors as module; print(module.__file__)")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "/runtime_resources/working_dir_files/" in done.stdout


@pytest.mark.ray
def test_a_failing_job_ends_with_the_clear_line(head: Head, tmp_path: Path) -> None:
    done = submit(head, "python", "-m", "taojin.cli", "dedup", *flags(tmp_path / "nowhere", tmp_path / "out"))
    assert done.returncode != 0
    assert f"taojin dedup: {tmp_path}/nowhere: no such file or folder" in done.stdout


@pytest.mark.ray
def test_the_script_for_ray_submit_runs_on_the_cluster_it_stands_on(
    head: Head, corpus: Path, expected: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    """As `ray submit` does it: a copy of the one file, run by the python on the PATH, in the home folder."""
    shutil.copy(ROOT / "dedup" / "run.py", tmp_path / "run.py")
    done = subprocess.run(
        ["python", tmp_path / "run.py", *flags(corpus, tmp_path / "out")],
        capture_output=True, text=True, env=head.environment, cwd=tmp_path, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert results(tmp_path / "out") == expected
