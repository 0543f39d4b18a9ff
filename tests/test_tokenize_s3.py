"""`taojin tokenize` on s3:// against SeaweedFS on loopback: the same bytes as on local disks."""

from pathlib import Path

import pyarrow.fs as pafs
import pytest

from tests.jobs import taojin, write_parquet
from tests.s3_server import keys_fixture as keys_fixture
from tests.s3_server import pytestmark as pytestmark
from tests.s3_server import server_fixture as server_fixture
from tests.s3_server import store, upload
from tests.token_runs import counts, outputs, records, small_tokenizer, tokenize

FLAGS = ("--unit-mb", "0.01", "--shard-tokens", "6000", "--backend", "reference")
SPLIT = ("--split", "train=0.5,valid=0.5", "--shuffle")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("s3")
    for shard in range(2):
        write_parquet(root / "in" / f"{shard}.parquet", records(shard, 60), row_group_size=30)
    small_tokenizer(root)
    return root


def names(endpoint: str, folder: str) -> list[str]:
    infos = store(endpoint).get_file_info(pafs.FileSelector(f"bucket/{folder}", recursive=True))
    return sorted(info.path.removeprefix(f"bucket/{folder}/") for info in infos if info.type == pafs.FileType.File)


def remote_outputs(endpoint: str, folder: str) -> dict[str, bytes]:
    """As `outputs` has them of local ones."""
    found = [name for name in names(endpoint, folder) if "/" not in name and not name.endswith(".manifest.json")]
    remote = store(endpoint)
    return {
        name.removeprefix("zh"): remote.open_input_stream(f"bucket/{folder}/{name}")
        .read()
        .replace(f"s3://bucket/{folder}".encode(), b".")
        for name in found
    }


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("flags", [(), SPLIT], ids=["one", "two splits"])
def test_pairs_on_a_store_have_the_bytes_of_local_ones(
    server: str,
    root: Path,
    tmp_path: Path,
    flags: tuple[str, ...],
) -> None:
    """Input, tokenizer, WORK and output lie there; a rerun does nothing, and a check proves everything."""
    tokenizer = root / "gpt2.json"
    counts(tokenize(tmp_path / "zh", root / "in", tokenizer, *FLAGS, *flags))
    folder = f"pairs-{len(flags)}"
    upload(server, root / "in", f"{folder}/in")
    with store(server).open_output_stream(f"bucket/{folder}/t/tokenizer.json") as stream:
        stream.write(tokenizer.read_bytes())
    query = f"?scheme=http&endpoint_override={server}"
    there = f"s3://bucket/{folder}"
    given = ["--output", f"{there}/out/zh{query}", "--input", f"{there}/in{query}", "--num-cpus", "0", "--quiet"]
    given += ["--json", "--tokenizer", f"{there}/t{query}", *FLAGS, *flags]
    found = counts(taojin("tokenize", *given))
    assert remote_outputs(server, f"{folder}/out") == outputs(tmp_path / "zh")
    assert len(found["pairs"]) > 2
    before = names(server, folder)
    assert counts(taojin("tokenize", *given)) == found
    assert names(server, folder) == before
    checked = taojin("check", f"{there}/out/zh{query}")
    assert checked.status == 0, checked.out + checked.err
    assert "invariants hold" in checked.out


@pytest.mark.usefixtures("keys")
def test_what_was_lost_on_a_store_is_written_again(
    server: str,
    root: Path,
    tmp_path: Path,
) -> None:
    """An object, its piece, the manifest: as after a run that was killed there."""
    query = f"?scheme=http&endpoint_override={server}"
    prefix = f"s3://bucket/lost/out/zh{query}"
    given = ["--output", prefix, "--tokenizer", root / "gpt2.json", "--num-cpus", "0", "--quiet", "--json"]
    given += ["--input", root / "in", *FLAGS]
    counts(taojin("tokenize", *given))
    expected = remote_outputs(server, "lost/out")
    for lost in ("zh_00001.bin", "zh_00000.idx", "zh.work/pieces/000001.lengths", "zh.work/stats/encode/000000.json"):
        store(server).delete_file(f"bucket/lost/out/{lost}")
        store(server).delete_file("bucket/lost/out/zh.manifest.json")
        counts(taojin("tokenize", *given))
        assert remote_outputs(server, "lost/out") == expected


@pytest.mark.usefixtures("keys")
def test_one_work_folder_writes_two_outputs_on_a_store(
    server: str,
    root: Path,
    tmp_path: Path,
) -> None:
    query = f"?scheme=http&endpoint_override={server}"
    flags = ["--work", tmp_path / "work", *FLAGS]
    for name in ("a", "b"):
        given = ["--output", f"s3://bucket/two/{name}{query}", "--input", root / "in", "--quiet", "--json"]
        counts(taojin("tokenize", *given, "--tokenizer", root / "gpt2.json", "--num-cpus", "0", *flags))
    bins = [name for name in names(server, "two") if name.endswith(".bin")]
    assert len(bins) % 2 == 0
    assert {name[1:] for name in bins if name[0] == "a"} == {name[1:] for name in bins if name[0] == "b"}


@pytest.mark.usefixtures("keys")
def test_pairs_on_a_store_are_merged(server: str, root: Path, tmp_path: Path) -> None:
    counts(tokenize(tmp_path / "zh", root / "in", root / "gpt2.json", *FLAGS[:2]))
    query = f"?scheme=http&endpoint_override={server}"
    given = ["--output", f"s3://bucket/merged/zh{query}", "--input", root / "in", "--quiet", "--json", *FLAGS]
    counts(taojin("tokenize", *given, "--tokenizer", root / "gpt2.json", "--num-cpus", "0"))
    pairs = [f"s3://bucket/merged/zh{query}"]
    flags = ["--num-cpus", "0", "--quiet"]
    for output in (f"s3://bucket/merged/all{query}", tmp_path / "all"):
        outcome = taojin("merge", "--input", *pairs, "--output", output, *flags)
        assert outcome.status == 0, outcome.err
    for suffix in (".bin", ".idx", ".parquet"):
        whole = Path(f"{tmp_path / 'zh'}{suffix}").read_bytes()
        assert store(server).open_input_stream(f"bucket/merged/all{suffix}").read() == whole
        assert Path(f"{tmp_path / 'all'}{suffix}").read_bytes() == whole


@pytest.mark.usefixtures("keys")
def test_an_output_that_exists_on_a_store_is_refused(server: str, root: Path) -> None:
    with store(server).open_output_stream("bucket/mine/zh.bin") as stream:
        stream.write(b"mine")
    query = f"?scheme=http&endpoint_override={server}"
    given = ["--output", f"s3://bucket/mine/zh{query}", "--input", root / "in", "--num-cpus", "0", "--quiet"]
    outcome = taojin("tokenize", *given, "--tokenizer", root / "gpt2.json")
    outcome.refuses(2, "zh.bin", "exists already")


def test_a_prefix_that_is_a_bucket_is_refused(root: Path) -> None:
    outcome = taojin("tokenize", "--output", "s3://zh", "--tokenizer", root / "gpt2.json", "--input", root / "in")
    outcome.refuses(2, "--output s3://zh: expected a PREFIX", "found a bucket")
