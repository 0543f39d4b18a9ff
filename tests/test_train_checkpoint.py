"""Which checkpoints count, which may go, and what is loaded of one: storage alone."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taojin.core.errors import InputError, RunError
from taojin.core.storage import FileEntry, Folder
from taojin.train import restoring
from taojin.train.checkpoint import (
    Checkpoint,
    commit,
    damage,
    name_of,
    newest,
    prune,
    read,
    refuse_damage,
    remove,
    steps,
)
from taojin.train.restoring import Restorer
from taojin.train.waiting import together

NAMES = ("a_model_states.pt", "a_optim_states.pt")


def files_of(folder: Folder, step: int) -> tuple[FileEntry, ...]:
    entries = []
    for name in NAMES:
        with folder.child(name_of(step)).create(name) as sink:
            sink.write(f"{name} of {step}".encode())
        entries.append(Folder.entry(name, sink))
    return tuple(entries)


def save(folder: Folder, step: int) -> Checkpoint:
    checkpoint = Checkpoint(step=step, devices=2, tensor=1, files=files_of(folder, step))
    commit(folder, checkpoint)
    return checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(str(tmp_path / "checkpoints"))


@pytest.fixture(scope="module")
def many() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


def test_a_folder_that_does_not_exist_has_no_checkpoint(folder: Folder) -> None:
    assert newest(folder) is None


def test_what_was_committed_is_read_back(folder: Folder) -> None:
    saved = save(folder, 500)
    assert newest(folder) == read(folder, 500) == saved
    assert folder.read_bytes("latest") == b"step-00000500\n"


def test_files_without_a_manifest_are_no_checkpoint(folder: Folder) -> None:
    save(folder, 4)
    files_of(folder, 8)
    assert steps(folder) == [4, 8]
    assert read(folder, 8) is None
    assert newest(folder) == read(folder, 4)


def test_a_crash_between_manifest_and_latest_loses_nothing(folder: Folder) -> None:
    save(folder, 4)
    saved = save(folder, 8)
    with folder.create("latest") as sink:
        sink.write(b"step-00000004\n")
    assert newest(folder) == saved


def test_steps_are_ordered_as_numbers(folder: Folder) -> None:
    for step in (1, 123_456_789, 99_999_999):
        save(folder, step)
    assert steps(folder) == [1, 99_999_999, 123_456_789]


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"step": 4}'])
def test_a_damaged_manifest_is_named_with_what_to_do(folder: Folder, content: bytes) -> None:
    save(folder, 4)
    with folder.create("step-00000004/manifest.json") as sink:
        sink.write(content)
    with pytest.raises(InputError, match=r"step-00000004/manifest.json: .*remove step-00000004"):
        newest(folder)


def test_missing_and_changed_files_are_named(folder: Folder) -> None:
    save(folder, 4)
    saved = save(folder, 8)
    step = Path(folder.path("step-00000008"))
    assert damage(folder.child("step-00000008"), saved.files, checksum=True) == []
    (step / NAMES[0]).unlink()
    content = (step / NAMES[1]).read_bytes()
    (step / NAMES[1]).write_bytes(content[::-1])
    assert len(damage(folder.child("step-00000008"), saved.files, checksum=False)) == 1
    found = damage(folder.child("step-00000008"), saved.files, checksum=True)
    assert len(found) == 2
    with pytest.raises(InputError) as caught:
        refuse_damage(folder, saved, found)
    message = str(caught.value)
    assert "\n" not in message
    assert NAMES[0] in message
    assert NAMES[1] in message
    assert message.endswith("remove step-00000008 to resume from step 4")


def test_removal_in_part_leaves_no_checkpoint(folder: Folder) -> None:
    """The manifest goes first, so that a killed removal leaves nothing that could be loaded."""
    save(folder, 4)
    remove(folder, 4)
    remove(folder, 4)
    assert steps(folder) == []


@settings(max_examples=40, deadline=None)
@given(
    complete=st.sets(st.integers(1, 30), max_size=8),
    partial=st.sets(st.integers(1, 30), max_size=4),
    keep_last=st.integers(1, 4),
    keep_every=st.integers(0, 6),
)
def test_what_is_kept_is_the_newest_and_every_nth(
    many: Path, complete: set[int], partial: set[int], keep_last: int, keep_every: int
) -> None:
    with tempfile.TemporaryDirectory(dir=many) as path:
        folder = Folder(path)
        partial -= complete
        for step in complete:
            save(folder, step)
        for step in partial:
            files_of(folder, step)
        prune(folder, keep_last, keep_every)
        kept = set(sorted(complete)[-keep_last:]) | {step for step in complete if keep_every and step % keep_every == 0}
        # What is half-written and newer than all others may be on its way.
        under_way = {step for step in partial if step > max(complete, default=0)} if complete else partial
        assert set(steps(folder)) == kept | under_way
        assert all(read(folder, step) for step in kept)


def test_a_converted_checkpoint_is_made_once_and_again_where_it_was_damaged(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0

    def convert(step: Folder, source: Path) -> None:
        nonlocal made
        made += 1
        with step.create("universal/weights.pt") as sink:
            sink.write(b"weights")
        step.write_json("universal.json", [Folder.entry("universal/weights.pt", sink).as_json()])

    monkeypatch.setattr(restoring, "convert", convert)
    saved = save(folder, 4)
    step = Path(folder.path("step-00000004"))

    def load() -> None:
        """On one worker what two have written."""
        restorer = Restorer(
            folder, saved, rank=0, world=1, local_rank=0, tensor=1, stage=1, gather=lambda value: [value]
        )
        with restorer._root() as root:
            assert (root / "step-00000004/universal/weights.pt").read_bytes() == b"weights"

    load()
    load()
    assert made == 1
    (step / "universal/weights.pt").write_bytes(b"WEIGHTS")
    load()
    assert made == 2
    # The files that it was made of are not needed any more, until it has to be made again.
    (step / NAMES[0]).unlink()
    load()
    (step / "universal/weights.pt").unlink()
    with pytest.raises(InputError, match=NAMES[0]):
        load()


def test_what_one_rank_meets_all_raise_and_the_others_are_asked_to_give_up() -> None:
    told: list[str] = []

    def full() -> None:
        raise OSError("No space left on device")

    def gather(value: tuple[bool, Exception | None]) -> list[tuple[bool, Exception | None]]:
        return [value, (False, None)]

    with pytest.raises(RunError, match="No space left on device"):
        together(full, gather, lambda: told.append("give up"))
    assert told == ["give up"]
    assert together(lambda: 7, lambda value: [value, value]) == [7, 7]
