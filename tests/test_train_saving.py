"""Saves while training goes on: what is written is the state at the start of the save, in memory that is used again."""

import threading
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from taojin.core.storage import Folder
from taojin.train import checkpoint, saving
from taojin.train.saving import Saver, Snapshots

torch = pytest.importorskip("torch", reason="torch comes with the extra `train`")


def test_a_snapshot_is_the_same_nest_with_tensors_of_its_own() -> None:
    whole = torch.arange(1000.0)
    nest = OrderedDict(a=[whole[10:20], (whole[::2], "text")], b={"c": torch.zeros(()), "d": None})
    copied = Snapshots(kept=True).take(nest)
    assert type(copied) is OrderedDict
    assert copied["a"][1][1] == "text"
    assert copied["b"]["d"] is None
    whole.zero_()
    assert copied["a"][0].tolist() == list(range(10, 20))
    assert copied["a"][1][0].tolist() == list(range(0, 1000, 2))
    # torch.save writes all that a tensor is a view of.
    assert copied["a"][0].untyped_storage().nbytes() == 40


def test_the_next_snapshot_takes_the_memory_of_the_last() -> None:
    kept, fresh = Snapshots(kept=True), Snapshots(kept=False)
    first = kept.take([torch.ones(3), torch.ones(4)])
    once = fresh.take([torch.ones(3)])
    kept.begin()
    fresh.begin()
    second = kept.take([torch.full((3,), 2.0), torch.ones(5)])
    assert second[0] is first[0]
    assert second[0].tolist() == [2.0] * 3
    # Another shape takes memory of its own.
    assert second[1].shape == (5,)
    assert first[1].shape == (4,)
    assert fresh.take([torch.ones(3)])[0] is not once[0]
    assert once[0].tolist() == [1.0] * 3


def engine_of(weights: Any) -> Any:
    """What DeepSpeed's engine does of a save: hand its states to its checkpoint engine."""
    writer = SimpleNamespace(save=None)

    def save_checkpoint(folder: str, tag: str, save_latest: bool) -> None:
        (Path(folder) / tag).mkdir()
        writer.save({"weights": weights}, f"{folder}/{tag}/model_states.pt")

    return SimpleNamespace(checkpoint_engine=writer, save_checkpoint=save_checkpoint)


def saver_of(folder: Path, engine: Any, *, asynchronous: bool) -> Saver:
    saver = Saver(
        Folder(str(folder)),
        rank=0,
        devices=1,
        tensor=1,
        keep_last=10,
        keep_every=0,
        asynchronous=asynchronous,
        gather=lambda value: [value],
        report=lambda _: None,
    )
    saver.attach(engine)
    return saver


def saved(folder: Path, step: int) -> list[float]:
    state = torch.load(folder / checkpoint.name_of(step) / "model_states.pt")
    found: list[float] = state["weights"].tolist()
    return found


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_save_holds_the_state_at_its_start(tmp_path: Path, asynchronous: bool) -> None:
    weights = torch.zeros(100_000)
    engine = engine_of(weights)
    saver = saver_of(tmp_path, engine, asynchronous=asynchronous)
    for step in range(1, 5):
        weights.fill_(step)
        saver.start(engine, step)
        weights.fill_(-1)
    saver.wait()
    assert (saver.saved, saver.failed) == (4, 0)
    for step in range(1, 5):
        assert set(saved(tmp_path, step)) == {step}
        found = checkpoint.read(Folder(str(tmp_path)), step)
        assert found is not None
        assert checkpoint.damage(Folder(str(tmp_path)).child(found.name), found.files, checksum=True) == []


def test_memory_is_used_again_only_when_it_has_been_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second save begins while the first is still at its first file."""
    weights, may_write, save = torch.ones(1000), threading.Event(), saving._save
    engine = engine_of(weights)
    saver = saver_of(tmp_path, engine, asynchronous=True)

    def slow(*arguments: Any) -> Any:
        assert may_write.wait(60)
        return save(*arguments)

    monkeypatch.setattr(saving, "_save", slow)
    saver.start(engine, 1)
    assert saver.flags() == (1, 0)
    weights.fill_(2)
    second = threading.Thread(target=saver.start, args=(engine, 2))
    second.start()
    may_write.set()
    second.join(60)
    saver.wait()
    assert set(saved(tmp_path, 1)) == {1.0}
    assert set(saved(tmp_path, 2)) == {2.0}
