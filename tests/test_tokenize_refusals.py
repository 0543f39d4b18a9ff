"""What `taojin tokenize` refuses, in one line and before it encodes anything; and what damage it finds."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.jobs import dedup, taojin, write_parquet, write_texts
from tests.pair_checks import byte_tokenizer
from tests.token_runs import arguments, counts, outputs, records, run, small_tokenizer, tokenize


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus") / "in"
    for shard in range(2):
        write_parquet(folder / f"shard-{shard}.parquet", records(shard, 60), row_group_size=20)
    return folder


@pytest.fixture
def untouched(tmp_path: Path) -> Path:
    """A folder in which a refused run leaves nothing."""
    return tmp_path / "out"


# ---------------------------------------------------------------------------- tokenizers


@pytest.mark.parametrize(
    ("name", "data", "parts"),
    [
        ("tokenizer.json", b"{", ["tokenizer.json", "JSON"]),
        ("tokenizer.json", b'{"version": "1.0"}', ["tokenizer.json", "expected a tokenizer.json"]),
        ("tokenizer.json", b"", ["tokenizer.json"]),
        ("a.parquet", b"PAR1", ["a.parquet"]),
        ("some.tiktoken", b"YQ== 0\nYg== 1\n", ["some.tiktoken", "--tokenizer-pattern"]),
    ],
)
def test_a_tokenizer_that_is_none_is_refused(
    corpus: Path, untouched: Path, tmp_path: Path, name: str, data: bytes, parts: list[str]
) -> None:
    (tmp_path / name).write_bytes(data)
    tokenize(untouched / "zh", corpus, tmp_path / name).refuses(2, *parts)
    assert not untouched.exists()


def test_a_tokenizer_that_is_not_there_is_refused(corpus: Path, untouched: Path, tmp_path: Path) -> None:
    tokenize(untouched / "zh", corpus, tmp_path / "nowhere").refuses(2, "nowhere", "no tokenizer there")
    assert not untouched.exists()


def test_a_tokenizer_without_an_end_is_refused_with_the_flags_that_help(
    corpus: Path, untouched: Path, tmp_path: Path
) -> None:
    alphabet = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bare = Tokenizer(models.BPE(alphabet, []))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.save(str(tmp_path / "bare.json"))
    flags = ["--eod", "--no-append-eod"]
    tokenize(untouched / "zh", corpus, tmp_path / "bare.json").refuses(2, "bare.json", *flags)
    tokenize(untouched / "zh", corpus, tmp_path / "bare.json", "--eod", "<end>").refuses(2, "--eod <end>")
    assert not untouched.exists()
    assert tokenize(untouched / "a", corpus, tmp_path / "bare.json", "--no-append-eod").status == 0
    assert tokenize(untouched / "b", corpus, tmp_path / "bare.json", "--eod", "a").status == 0


# ---------------------------------------------------------------------------- flags


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["--split", "train=0.9,valid=0.2"], ["--split", "sum to 1", "1.1"]),
        (["--split", "train=0.9,train=0.1"], ["--split", "train is named twice"]),
        (["--split", "Train=1"], ["--split", "NAME=SHARE"]),
        (["--weights", "web=2"], ["--weights needs --by-source"]),
        (["--by-source", "--weights", "web=-1"], ["--weights: web", "-1"]),
        (["--chat-template", "x.jinja"], ["need --chat"]),
        (["--chat", "--repair"], ["--chat goes with --input, without --repair"]),
        (["--shard-tokens", "-1"], ["--shard-tokens", "-1"]),
        (["--mask", "email"], ["--mask needs --decisions"]),
        (["--by-source", "--source-column", "text2"], ["text2"]),
        (["--text-column", "words"], ["no column 'words'", "--text-column"]),
        (["--id-column", "number"], ["no column 'number' for --id-column"]),
        (["--decisions", "x.work"], ["one of --input and --decisions"]),
    ],
)
def test_flags_that_cannot_be_are_refused(
    corpus: Path, tokenizer: Path, untouched: Path, flags: list[str], parts: list[str]
) -> None:
    tokenize(untouched / "zh", corpus, tokenizer, *flags).refuses(2, *parts)
    assert not untouched.exists()


@pytest.mark.parametrize(
    ("output", "parts"), [("out/", ["expected a PREFIX", "found a folder"]), ("zh wiki", ["white space"])]
)
def test_a_prefix_that_cannot_be_is_refused(
    corpus: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, parts: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_flags = ["--input", corpus, "--output", output, "--tokenizer", tokenizer, "--num-cpus", "0", "--quiet"]
    taojin("tokenize", *run_flags).refuses(2, *parts)
    assert not list(tmp_path.iterdir())


def test_a_prefix_without_a_folder_is_in_this_one(
    corpus: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    counts(tokenize(Path("zh"), corpus, tokenizer))
    assert (tmp_path / "zh.bin").exists()


def test_an_output_inside_the_input_is_refused(corpus: Path, tokenizer: Path) -> None:
    tokenize(corpus / "zh", corpus, tokenizer).refuses(2, "--output", "lies inside the input")


def test_a_missing_input_is_refused(tokenizer: Path, untouched: Path, tmp_path: Path) -> None:
    tokenize(untouched / "zh", tmp_path / "nowhere", tokenizer).refuses(2, "nowhere: no such file")
    run(untouched / "zh", tokenizer).refuses(2, "one of --input and --decisions")
    assert not untouched.exists()


@pytest.mark.parametrize(
    ("column", "values", "parts"),
    [
        ("source", [["a"]], ["expected strings or numbers in column 'source'", "--source-column"]),
        ("language", [["a"]], ["--language-column", "expected text in 'language'"]),
        ("language", [b"\xff"], ["--language-column", "expected text in 'language'"]),
        ("text", [5], ["expected strings in column 'text'"]),
        ("component", ["a"], ["column 'component'"]),
    ],
)
def test_columns_of_a_type_that_cannot_serve_are_refused(
    tokenizer: Path, untouched: Path, tmp_path: Path, column: str, values: list[Any], parts: list[str]
) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"text": ["人"], **{column: values}}), tmp_path / "in" / "a.parquet")
    tokenize(untouched / "zh", tmp_path / "in", tokenizer).refuses(2, *parts)
    assert not untouched.exists()


# ---------------------------------------------------------------------------- outputs that are there


@pytest.mark.parametrize(
    ("present", "flags"),
    [
        ("zh.bin", []),
        ("zh.idx", []),
        ("zh.parquet", []),
        ("zh_b.bin", ["--split", "a=0.5,b=0.5"]),
        ("zh_a_00000.idx", ["--split", "a=0.5,b=0.5", "--shard-tokens", "100"]),
    ],
)
def test_an_output_that_exists_is_refused_before_anything_is_encoded(
    corpus: Path, tokenizer: Path, tmp_path: Path, present: str, flags: list[str]
) -> None:
    (tmp_path / present).write_text("mine")
    outcome = tokenize(tmp_path / "zh", corpus, tokenizer, *flags)
    outcome.refuses(2, f"{tmp_path}/{present}: exists already", "--output")
    assert (tmp_path / present).read_text() == "mine"
    assert not (tmp_path / "zh.work" / "pieces").exists()
    (tmp_path / present).unlink()
    counts(tokenize(tmp_path / "zh", corpus, tokenizer, *flags))


def test_a_pair_of_a_source_that_exists_is_not_written_over(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "zh_书.bin").write_text("mine")
    tokenize(tmp_path / "zh", corpus, tokenizer, "--by-source").refuses(2, "zh_书.bin: exists already")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["zh.work", "zh_书.bin"]
    (tmp_path / "zh_书.bin").unlink()
    counts(tokenize(tmp_path / "zh", corpus, tokenizer, "--by-source"))


def test_the_output_of_another_run_is_not_written_over(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    counts(tokenize(tmp_path / "zh", corpus, tokenizer))
    before = outputs(tmp_path / "zh")
    others = ["--work", tmp_path / "other.work", "--seed", "1"]
    tokenize(tmp_path / "zh", corpus, tokenizer, *others).refuses(2, "zh.manifest.json: the output of another run")
    assert outputs(tmp_path / "zh") == before


def test_a_work_folder_may_write_other_outputs_but_none_that_exists(
    corpus: Path, tokenizer: Path, tmp_path: Path
) -> None:
    """Of the same name in another folder, too."""
    work = ["--work", tmp_path / "work"]
    counts(tokenize(tmp_path / "a" / "zh", corpus, tokenizer, *work))
    counts(tokenize(tmp_path / "b" / "zh", corpus, tokenizer, *work))
    assert outputs(tmp_path / "a" / "zh") == outputs(tmp_path / "b" / "zh")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "zh.bin").write_text("mine")
    tokenize(tmp_path / "c" / "zh", corpus, tokenizer, *work).refuses(2, "c/zh.bin: exists already")


# ---------------------------------------------------------------------------- resuming with other settings


def test_a_resume_with_other_settings_is_refused_with_the_difference(
    corpus: Path, tokenizer: Path, tmp_path: Path
) -> None:
    prefix = tmp_path / "zh"
    flags = ["--split", "train=0.7,valid=0.3", "--seed", "1"]
    counts(tokenize(prefix, corpus, tokenizer, *flags))
    before = outputs(prefix)
    byte = byte_tokenizer(tmp_path / "byte.json")
    tokenize(prefix, corpus, byte, *flags).refuses(2, "zh.work belongs to another run: the content of --tokenizer has")
    for other, parts in (
        (["--split", "train=0.7,valid=0.3", "--seed", "2"], ["seed was 1 and is 2"]),
        (["--split", "train=0.6,valid=0.4", "--seed", "1"], ["split was 'train=0.7,valid=0.3' and is 'train=0.6"]),
        ([*flags, "--shuffle"], ["shuffle was False and is True"]),
        ([*flags, "--level", "sentence"], ["level was 'document' and is 'sentence'"]),
        ([*flags, "--eod", "<|im_end|>"], ["eod was None and is '<|im_end|>'"]),
    ):
        tokenize(prefix, corpus, tokenizer, *other).refuses(2, "zh.work belongs to another run", *parts)
    assert outputs(prefix) == before
    assert tokenize(prefix, corpus, small_tokenizer(tmp_path / "copy"), *flags).status == 0


def test_a_changed_input_is_refused(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus, tmp_path / "in")
    counts(tokenize(tmp_path / "zh", tmp_path / "in", tokenizer))
    write_texts(tmp_path / "in" / "shard-1.parquet", ["人"])
    tokenize(tmp_path / "zh", tmp_path / "in", tokenizer).refuses(2, "changed: shard-1.parquet")


def test_the_work_of_another_command_is_refused(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    assert dedup(corpus, tmp_path / "clean").status == 0
    outcome = tokenize(tmp_path / "zh", corpus, tokenizer, "--work", tmp_path / "clean.work")
    outcome.refuses(2, "clean.work", "it was made by `taojin dedup`")


# ---------------------------------------------------------------------------- decisions


def test_decisions_that_cannot_be_used_are_refused(
    corpus: Path, tokenizer: Path, untouched: Path, tmp_path: Path
) -> None:
    shutil.copytree(corpus, tmp_path / "in")
    assert dedup(tmp_path / "in", tmp_path / "clean").status == 0
    work = tmp_path / "clean.work"

    def refuses(name: object, *parts: str, flags: tuple[str, ...] = ()) -> None:
        run(untouched / "zh", tokenizer, "--decisions", name, *flags).refuses(2, *parts)

    refuses(tmp_path / "nowhere", "nowhere: expected a WORK folder")
    refuses(tmp_path / "clean", "this is an output, its WORK is")
    refuses(work, "--text-column has no meaning with --decisions", flags=("--text-column", "x"))
    refuses(work, "--mask phone: expected none, or some of mobile", flags=("--mask", "phone"))
    write_texts(tmp_path / "in" / "shard-1.parquet", ["人"])
    refuses(work, "shard-1.parquet has changed since the scan")
    (tmp_path / "in" / "shard-1.parquet").unlink()
    refuses(work, "shard-1.parquet cannot be read")
    assert not untouched.exists()


def test_pairs_by_source_need_sources_of_the_decisions_too(tokenizer: Path, untouched: Path, tmp_path: Path) -> None:
    write_texts(tmp_path / "in" / "a.parquet", ["人民的中国，中国的人民。"])
    assert dedup(tmp_path / "in", tmp_path / "clean").status == 0
    outcome = run(untouched / "zh", tokenizer, "--decisions", tmp_path / "clean.work", "--by-source")
    outcome.refuses(2, "--by-source needs a source column", "id (large_string), text (large_string)")
    assert not untouched.exists()


# ---------------------------------------------------------------------------- damage of what was encoded


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def lose_outputs(prefix: Path) -> None:
    for path in prefix.parent.glob(f"{prefix.name}*"):
        if path.is_file():
            path.unlink()


@pytest.mark.parametrize(("stage", "flags"), [("encode", []), ("encode", ["--shuffle"]), ("shuffle", ["--shuffle"])])
@pytest.mark.parametrize("kind", ["bin", "lengths", "arrow"])
def test_a_damaged_piece_is_named_with_the_remedy_that_heals_it(
    corpus: Path, tokenizer: Path, tmp_path: Path, stage: str, kind: str, flags: list[str]
) -> None:
    """Whenever it was damaged: the run had ended, and its outputs were lost."""
    prefix = tmp_path / "zh"
    flags = [*flags, "--split", "a=0.5,b=0.5", "--unit-mb", "0.01"]
    counts(tokenize(prefix, corpus, tokenizer, *flags))
    expected = outputs(prefix)
    lose_outputs(prefix)
    folder = "pieces" if stage == "encode" else "shuffled"
    number = "000001" if stage == "encode" else "000000"
    flip(tmp_path / "zh.work" / folder / f"{number}.{kind}")
    stats = tmp_path / "zh.work" / "stats" / stage / f"{number}.json"
    outcome = tokenize(prefix, corpus, tokenizer, *flags)
    outcome.refuses(1, f"{folder}/{number}.{kind}: its checksum", f"remove {stats} and run again")
    assert not list(tmp_path.glob("zh*.bin"))
    stats.unlink()
    counts(tokenize(prefix, corpus, tokenizer, *flags))
    assert outputs(prefix) == expected


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(path.read_bytes()[:-1])])
@pytest.mark.parametrize("kind", ["bin", "lengths", "arrow"])
def test_a_piece_that_is_lost_or_cut_is_encoded_again(
    corpus: Path, tokenizer: Path, tmp_path: Path, kind: str, damage: Callable[[Path], object]
) -> None:
    prefix = tmp_path / "zh"
    counts(tokenize(prefix, corpus, tokenizer))
    expected = outputs(prefix)
    lose_outputs(prefix)
    damage(tmp_path / "zh.work" / "pieces" / f"000000.{kind}")
    counts(tokenize(prefix, corpus, tokenizer))
    assert outputs(prefix) == expected


def test_a_shard_that_breaks_while_it_is_read_is_named(tokenizer: Path, tmp_path: Path) -> None:
    """The shards beside it are encoded; without it the run goes on, and it is counted."""
    for name in ("a", "b"):
        write_texts(tmp_path / "in" / f"{name}.parquet", [f"{name} 人民"] * 50, compression="none")
    data = bytearray((tmp_path / "in" / "b.parquet").read_bytes())
    data[4:60] = bytes(56)
    (tmp_path / "in" / "b.parquet").write_bytes(data)
    flags = ["--unit-mb", "0.0001"]
    tokenize(tmp_path / "zh", tmp_path / "in", tokenizer, *flags).refuses(1, "b.parquet")
    found = counts(tokenize(tmp_path / "ok", tmp_path / "in", tokenizer, "--skip-bad-units", *flags))
    assert found["left_out"] == {"unreadable": 50}
    assert found["documents"] == 50


def test_json_tells_what_a_table_does(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    found = counts(tokenize(tmp_path / "zh", corpus, tokenizer))
    flags = [flag for flag in arguments(tmp_path / "zh", tokenizer) if flag != "--json"]
    table = taojin("tokenize", "--input", corpus, *flags, "--num-cpus", "0").out
    assert f"{found['tokens']:,} tokens" in table
    assert f"{found['documents']:,}" in table
    assert str(tmp_path / "zh") in table
    assert json.loads(json.dumps(found)) == found
