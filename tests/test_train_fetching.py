"""Pairs on s3:// for training, against SeaweedFS on loopback: fetched once a node, whole, and again when changed."""

import json
import shutil
import threading
from collections import namedtuple
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from taojin.core import storage
from taojin.core.errors import ConfigError, InputError, TaojinError
from taojin.train import fetching, waiting
from taojin.train.config import TrainConfig
from taojin.train.feed import open_data
from taojin.train.fetching import local_pairs
from tests.jobs import write_jsonl
from tests.s3_server import keys_fixture as keys_fixture
from tests.s3_server import pytestmark as pytestmark
from tests.s3_server import server_fixture as server_fixture
from tests.s3_server import store
from tests.test_train_feed import CHATML
from tests.token_runs import counts, small_tokenizer, tokenize
from tests.train_runs import TINY_LLAMA

SUFFIXES = (".bin", ".idx", "_mask.bin", "_mask.idx", ".parquet", ".manifest.json")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair of conversations with its mask, on a local disk."""
    folder = tmp_path_factory.mktemp("pair")
    (folder / "chat_template.jinja").write_text(CHATML)
    tokenizer = small_tokenizer(folder)
    talks = [
        [{"role": "user", "content": f"问{number}人民"}, {"role": "assistant", "content": f"答{number}中国"}]
        for number in range(60)
    ]
    write_jsonl(folder / "chats.jsonl", [{"messages": messages} for messages in talks])
    counts(tokenize(folder / "zh", folder / "chats.jsonl", tokenizer, "--backend", "reference", "--chat"))
    return folder / "zh"


@pytest.fixture
def remote(server: str, keys: None, pair: Path, tmp_path: Path) -> str:
    """The same on the store, in a folder of the test's own."""
    for suffix in SUFFIXES:
        put(server, f"{tmp_path.name}/zh{suffix}", Path(f"{pair}{suffix}").read_bytes())
    return f"s3://bucket/{tmp_path.name}/zh?scheme=http&endpoint_override={server}"


def put(server: str, name: str, content: bytes) -> None:
    with store(server).open_output_stream(f"bucket/{name}") as stream:
        stream.write(content)


def alone(value: Any) -> list[Any]:
    return [value]


def fetch(remote: str, cache: Path, notes: list[str] | None = None) -> str:
    report = (lambda _: None) if notes is None else notes.append
    return local_pairs([remote], str(cache), masked=True, local_rank=0, gather=alone, report=report)[remote]


def config(folder: Path, prefix: str, **values: Any) -> TrainConfig:
    (folder / "model.json").write_text(json.dumps({**TINY_LLAMA, "vocab_size": 1000}))
    return TrainConfig(
        model=str(folder / "model.json"),
        data=[prefix],
        output=str(folder / "run"),
        sequence_length=16,
        global_batch=4,
        epochs=1,
        loss_mask=True,
        **values,
    )


def test_a_fetched_pair_gives_the_rows_of_a_local_one(
    remote: str, pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "PART_BYTES", 100)
    there, _ = open_data(config(tmp_path, remote, cache=str(tmp_path / "cache")), 1000)
    here, _ = open_data(config(tmp_path, str(pair)), 1000)
    assert there.identity() == here.identity()
    for step in range(here.num_steps or 0):
        ours, theirs = there.batch(step), here.batch(step)
        assert np.array_equal(ours.tokens, theirs.tokens)
        assert ours.loss_mask is not None
        assert theirs.loss_mask is not None
        assert np.array_equal(ours.loss_mask, theirs.loss_mask)
    # Named as in the config; its provenance is read where it lies.
    assert there.provenance(0) == [origin._replace(pair=remote) for origin in here.provenance(0)]
    assert there.provenance(0)[0].origin is not None
    assert list(there.passes(1)) == [remote]


def test_nothing_is_fetched_twice_and_only_what_was_replaced_again(
    remote: str, server: str, pair: Path, tmp_path: Path
) -> None:
    store(server).delete_file(f"bucket/{tmp_path.name}/zh.manifest.json")
    notes: list[str] = []
    place = fetch(remote, tmp_path / "cache", notes)
    index = Path(f"{place}.idx").stat().st_ino
    assert fetch(remote, tmp_path / "cache", notes) == place
    assert len(notes) == 1
    other = Path(f"{pair}.bin").read_bytes()[::-1]
    put(server, f"{tmp_path.name}/zh.bin", other)
    fetch(remote, tmp_path / "cache", notes)
    assert f"fetching {len(other):,} bytes" in notes[1]
    Path(f"{place}.bin").write_bytes(b"cut")
    fetch(remote, tmp_path / "cache", notes)
    assert len(notes) == 3
    assert Path(f"{place}.bin").read_bytes() == other
    assert Path(f"{place}.idx").stat().st_ino == index
    assert not list((tmp_path / "cache").rglob("*.tmp"))


@pytest.mark.parametrize("suffix", [".bin", ".idx", "_mask.bin", "_mask.idx"])
def test_bytes_that_are_not_those_of_the_manifest_are_refused(
    remote: str, server: str, pair: Path, tmp_path: Path, suffix: str
) -> None:
    content = bytearray(Path(f"{pair}{suffix}").read_bytes())
    content[-3] ^= 1
    put(server, f"{tmp_path.name}/zh{suffix}", bytes(content))
    with pytest.raises(InputError, match=rf"zh\{suffix}\S*: bytes 0 to {len(content):,} are not those"):
        fetch(remote, tmp_path / "cache")
    put(server, f"{tmp_path.name}/zh{suffix}", bytes(content[:-2]))
    with pytest.raises(InputError, match=rf"expected {len(content):,} bytes, as its manifest says, found"):
        fetch(remote, tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob(f"zh{suffix}*"))


def test_a_pair_of_others_is_fetched_without_a_manifest(remote: str, server: str, pair: Path, tmp_path: Path) -> None:
    store(server).delete_file(f"bucket/{tmp_path.name}/zh.manifest.json")
    place = fetch(remote, tmp_path / "cache")
    for suffix in SUFFIXES[:4]:
        assert Path(f"{place}{suffix}").read_bytes() == Path(f"{pair}{suffix}").read_bytes()


def test_a_missing_file_is_named(remote: str, server: str, tmp_path: Path) -> None:
    store(server).delete_file(f"bucket/{tmp_path.name}/zh_mask.idx")
    with pytest.raises(InputError, match=r"zh_mask\.idx\S*: expected a file of the pair .*, found none"):
        fetch(remote, tmp_path / "cache")


def test_a_disk_that_is_too_small_is_refused_before_anything_is_fetched(
    remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(2000, 1990, 10))
    with pytest.raises(ConfigError, match=r"^cache: \S+: expected [\d,]+ bytes free for 4 files of pairs, found 10; "):
        fetch(remote, tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_a_request_that_fails_is_tried_again_and_one_that_always_fails_ends_it(
    remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "FIRST_PAUSE_SECONDS", 0.0)
    read, calls = fetching._Reader._read, 0

    def shaky(self: Any, at: int, size: int) -> bytes:
        nonlocal calls
        calls += 1
        if calls <= failures:
            raise OSError("connection reset")
        return read(self, at, size)

    monkeypatch.setattr(fetching._Reader, "_read", shaky)
    failures = 10**6
    with pytest.raises(TaojinError, match="connection reset"):
        fetch(remote, tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("zh*.*"))
    calls, failures = 0, 2
    fetch(remote, tmp_path / "cache")


def on_ranks(act: Callable[[int, Callable[[Any], list[Any]]], Any], world: int) -> list[Any]:
    """`act` on ranks that are threads: what each returned or raised."""
    barrier, words = threading.Barrier(world, timeout=30), [None] * world

    def rank(number: int) -> Any:
        def gather(value: Any) -> list[Any]:
            words[number] = value
            barrier.wait()
            found = list(words)
            barrier.wait()
            return found

        try:
            return act(number, gather)
        except TaojinError as error:
            return error

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(rank, range(world)))


def test_one_worker_of_a_node_fetches_and_all_learn_of_it(
    remote: str, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes of two workers, whose disks are two folders."""
    monkeypatch.setattr(waiting, "WORD_SECONDS", 0.001)

    def act(rank: int, gather: Callable[[Any], list[Any]]) -> dict[str, str]:
        cache = str(tmp_path / f"node{rank // 2}")
        return local_pairs([remote], cache, masked=False, local_rank=rank % 2, gather=gather)

    places = [found[remote] for found in on_ranks(act, 4)]
    assert places[0] == places[1] != places[2] == places[3]
    for place in places:
        assert Path(f"{place}.bin").exists()
        assert not Path(f"{place}_mask.bin").exists()
    shutil.rmtree(tmp_path / "node1")
    store(server).delete_file(f"bucket/{tmp_path.name}/zh.idx")
    assert [type(found) for found in on_ranks(act, 4)] == [InputError] * 4
