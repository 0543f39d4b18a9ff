"""Exports: of one worker's run and of a tensor-parallel one, from a disk and an object store, whole or not at all."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from taojin.core.errors import InputError, OutputError, StorageError
from taojin.core.storage import Folder
from taojin.train import export as exporting
from taojin.train.config import TrainConfig
from taojin.train.export import export
from tests.jobs import files
from tests.train_runs import run_values, run_workers

for needed in ("torch", "deepspeed", "transformers"):
    pytest.importorskip(needed, reason=f"{needed} comes with the extra `train`")

COMMON: dict[str, Any] = {"steps": 4, "save_every": 2, "optimizer": {"learning_rate": 0.001}}
PARAMETERS = 512 * 64 * 2 + 2 * (64 * 64 * 2 + 64 * 32 * 2 + 64 * 128 * 3 + 64 * 2) + 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exports")


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[int, float]:
    return run_workers(run_values(folder, "alone", **COMMON), 1)[0]


@pytest.fixture(scope="module")
def divided(folder: Path) -> dict[int, float]:
    return run_workers(run_values(folder, "divided", parallel={"tensor": 2}, **COMMON), 2)[0]


@pytest.fixture(scope="module")
def exported(folder: Path, alone: dict[int, float]) -> Path:
    output = folder / "model-alone"
    export(str(folder / "alone"), str(output), step=2)
    return output


@pytest.fixture(scope="module")
def exported_divided(folder: Path, divided: dict[int, float]) -> Path:
    output = folder / "model-divided"
    export(str(folder / "divided"), str(output), step=2)
    return output


@pytest.fixture
def remote(folder: Path, alone: dict[int, float]) -> Folder:
    """The run in pyarrow's file system in memory, which is as far away as an object store."""
    run = Folder(f"mock://exports/{folder.name}")
    filesystem, path = run.resolve()
    if filesystem.get_file_info(path).type == pafs.FileType.NotFound:
        filesystem.create_dir(path, recursive=True)
    else:
        filesystem.delete_dir_contents(path)
    pafs.copy_files(
        str(folder / "alone"), path, source_filesystem=pafs.LocalFileSystem(), destination_filesystem=filesystem
    )
    return run


def next_loss(folder: Path, output: Path, step: int) -> float:
    """Of what was exported, on the rows of this step."""
    import torch
    import transformers

    from taojin.train.feed import open_data
    from taojin.train.losses import summed_loss

    model: Any = transformers.AutoModelForCausalLM.from_pretrained(output, dtype=torch.float32)
    data, _ = open_data(TrainConfig(**run_values(folder, "any", **COMMON)), 512)
    with torch.no_grad():
        return float(summed_loss(model, data.batch(step), "cpu")) / (8 * 32)


def test_the_exported_model_has_the_loss_that_the_next_step_had(
    folder: Path, alone: dict[int, float], exported: Path
) -> None:
    assert next_loss(folder, exported, 2) == pytest.approx(alone[3], abs=1e-5)


def test_divided_matrices_are_put_together_as_they_were(
    folder: Path, divided: dict[int, float], exported: Path, exported_divided: Path
) -> None:
    from safetensors.torch import load_file

    expected, found = (load_file(path / "model.safetensors") for path in (exported, exported_divided))
    assert {name: tensor.shape for name, tensor in found.items()} == {
        name: tensor.shape for name, tensor in expected.items()
    }
    # As far as Adam spreads the rounding of two orders of addition over two steps of 0.001.
    for name, tensor in expected.items():
        assert float((found[name] - tensor).abs().max()) < 2e-3, name
        assert float((found[name] - tensor).abs().mean()) < 1e-5, name
    assert next_loss(folder, exported_divided, 2) == pytest.approx(divided[3], abs=1e-5)


def test_what_was_converted_for_an_earlier_export_is_used_again(
    folder: Path, exported_divided: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "convert", None)
    export(str(folder / "divided"), str(folder / "again"), step=2)
    assert (folder / "again/model.safetensors").read_bytes() == (exported_divided / "model.safetensors").read_bytes()


def test_a_run_on_an_object_store_is_exported_as_from_a_disk(
    folder: Path, remote: Folder, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    export(remote.uri, str(folder / "fetched/model-alone"), step=2)
    assert files(folder / "fetched/model-alone") == files(exported)
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_fit_on_the_disk_is_not_fetched(
    folder: Path, remote: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 90, 10))
    with pytest.raises(StorageError, match=r"bytes are to be fetched, 10 are free; set TMPDIR"):
        export(remote.uri, str(folder / "none"))
    assert not list(folder.glob("*none*"))


@pytest.mark.parametrize("where", ["disk", "store"])
def test_a_damaged_checkpoint_is_refused_and_nothing_is_written(
    folder: Path, alone: dict[int, float], remote: Folder, tmp_path: Path, where: str
) -> None:
    shutil.copytree(folder / "alone", tmp_path / "run")
    run = Folder(str(tmp_path / "run")) if where == "disk" else remote
    name = "checkpoints/step-00000004/zero_pp_rank_0_mp_rank_00_optim_states.pt"
    content = bytearray(run.read_bytes(name))
    for change, said in ((1, "its checksum is not the one"), (0, "expected .* bytes, found")):
        content[len(content) // 2] ^= 255
        with run.create(name) as sink:
            sink.write(bytes(content) if change else bytes(content)[:-1])
        with pytest.raises(InputError, match=rf"step 4 is not whole: .*optim_states\.pt: {said}.*step 2"):
            export(run.uri, str(tmp_path / "model"))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_export_that_fails_leaves_nothing_that_looks_whole(
    folder: Path, alone: dict[int, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporting, "model_card", full)
    with pytest.raises(StorageError, match=r"model: No space left on device"):
        export(str(folder / "alone"), str(tmp_path / "model"))
    assert list(tmp_path.iterdir()) == []


def test_an_export_into_an_empty_folder_replaces_it(folder: Path, alone: dict[int, float], tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    export(str(folder / "alone"), str(tmp_path / "model"), shard_bytes=100_000)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert {"config.json", "model.safetensors.index.json", "README.md"} < names
    assert not [name for name in names if name.endswith(".tmp")]


def test_outputs_that_cannot_be_it_are_refused(
    folder: Path, alone: dict[int, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = str(folder / "alone")
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="found a file"):
        export(run, str(tmp_path / "file"))
    with pytest.raises(OutputError, match="found 1 entries"):
        export(run, str(tmp_path))
    with pytest.raises(OutputError, match="expected a local folder"):
        export(run, "s3://bucket/model")
    monkeypatch.setattr(os.path, "ismount", lambda _: True)
    with pytest.raises(OutputError, match="mount point"):
        export(run, str(tmp_path / "mounted"))


def test_the_card_says_what_the_run_was(folder: Path, exported: Path) -> None:
    text = (exported / "README.md").read_text()
    assert f"of {PARAMETERS:,} parameters (llama)" in text
    for said in (
        "step 2 of 4, 512 tokens",
        "| pair |",
        "| ZeRO | stage 3 |",
        "at step 2 |",
        "| Start | fresh weights |",
        "≈ 0.05 times |",
    ):
        assert said in text
    assert "kept for validation" not in text
    assert len({path.stat().st_mode for path in exported.iterdir()}) == 1, "who may read one file may read all"
    assert str(folder) not in text
