from pathlib import Path

import pyarrow.parquet as pq
import pytest

from taojin import demo
from taojin.core.errors import OutputError

# ---------------------------------------------------------------------------- the folder


def test_a_folder_the_demo_did_not_make_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "mine.txt").write_text("mine")
    with pytest.raises(OutputError, match="the demo did not make it"):
        demo.prepare_folder(tmp_path)
    assert (tmp_path / "corpus" / "mine.txt").read_text() == "mine"
    assert demo.main(["--folder", str(tmp_path)]) == OutputError.exit_status


def test_a_rerun_clears_what_the_demo_made_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    demo.prepare_folder(folder)
    (folder / "clean.work" / "scan").mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    demo.prepare_folder(folder)
    assert sorted(path.name for path in folder.iterdir()) == [demo.MARKER, "notes.txt"]


def test_a_link_inside_the_folder_is_not_followed(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "demo", tmp_path / "elsewhere"
    demo.prepare_folder(folder)
    elsewhere.mkdir()
    (folder / "clean").symlink_to(elsewhere)
    with pytest.raises(OutputError, match="is a link"):
        demo.prepare_folder(folder)
    assert elsewhere.is_dir()


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("mine")
    with pytest.raises(OutputError, match="is a file"):
        demo.prepare_folder(tmp_path / "demo")


# ---------------------------------------------------------------------------- the whole


def test_the_demo_runs_from_nothing_to_the_last_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "demo"
    assert demo.main(["--folder", str(folder), "--limit-mb", "2", "--num-cpus", "0", "--train-steps", "0"]) == 0
    output = capsys.readouterr().out
    assert "What went, and why" in output
    assert "A near-duplicate in English" in output
    assert f"taojin explain {folder / 'clean.work'} " in output
    kept = sum(pq.read_metadata(part).num_rows for part in (folder / "clean").glob("part-*.parquet"))
    removed = sum(pq.read_metadata(unit).num_rows for unit in (folder / "clean.work").glob("decide-*/ledger/*.parquet"))
    assert kept + removed == sum(pq.read_metadata(shard).num_rows for shard in (folder / "corpus").iterdir())


@pytest.mark.parametrize("flags", [["--num-cpus", "-1"], ["--limit-mb", "0"], ["--train-steps", "1"]])
def test_wrong_settings_are_refused_before_anything_is_made(tmp_path: Path, flags: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        demo.main(["--folder", str(tmp_path / "demo"), *flags])
    assert caught.value.code == 2
    assert not (tmp_path / "demo").exists()
