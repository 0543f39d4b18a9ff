"""Megatron's pairs (core/megatron.py) against a naive writer, against megatron-core, and damaged in every way."""

import io
import itertools
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.fs as pafs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from taojin.core import megatron
from taojin.core.errors import InputError, InvariantError
from taojin.core.megatron import (
    BLOCK,
    IndexedPair,
    header_warning,
    reader_warning,
    token_dtype,
    write_index,
)
from taojin.core.megatron_proofs import problems, token_facts
from tests.jobs import SHARED
from tests.megatron_pairs import (
    CODES,
    Documents,
    blocks_of,
    documents_of_small_ids,
    flat,
    merged_index,
    naive_index,
    write_pair,
)

ORACLE = SHARED / "megatron" / "dev_6_7_text_document"
# An empty document at the beginning, inside and at the end; a sentence level one; an empty sequence.
DOCUMENTS: Documents = [[], [[5, 6, 7]], [], [[8], [], [9, 1]], [[1]], []]
VOCABULARIES = (1, 65_499, 65_500, 65_535, 65_536, 65_537, 151_669)


def index_of(*arguments: Any) -> bytes:
    sink = io.BytesIO()
    write_index(sink, *arguments)
    return sink.getvalue()


def always(*values: int) -> Callable[[], Iterator[NDArray[np.int64]]]:
    return lambda: iter([np.array(values, np.int64)])


# Writing


def test_the_bytes_of_an_index_are_those_of_the_format() -> None:
    written = index_of(np.dtype(np.uint16), 2, 3, always(3, 2), always(1, 0, 1))
    assert written.hex(" ", 1) == (
        "4d 4d 49 44 49 44 58 00 00 01 00 00 00 00 00 00 00 08 02 00 00 00 00 00 00 00 04 00 00 00 00 00 00 00 "
        "03 00 00 00 02 00 00 00 00 00 00 00 00 00 00 00 06 00 00 00 00 00 00 00 "
        "00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00"
    )


@given(
    documents=documents_of_small_ids,
    dtype=st.sampled_from(sorted(CODES)),
    chunk=st.integers(1, 9),
    block=st.sampled_from((1, 2, 3, BLOCK)),
)
def test_an_index_is_the_same_bytes_however_its_numbers_are_cut(
    tmp_path_factory: pytest.TempPathFactory, documents: Documents, dtype: str, chunk: int, block: int
) -> None:
    prefix = tmp_path_factory.getbasetemp() / "cut"
    with blocks_of(block):
        pair = write_pair(prefix, documents, dtype, chunk)
        assert Path(f"{prefix}.idx").read_bytes() == naive_index(documents, dtype)
        again = io.BytesIO()
        merged_index(again, [pair])
        assert again.getvalue() == naive_index(documents, dtype)


def test_pointers_do_not_overflow() -> None:
    longest = 2**31 - 1
    written = index_of(np.dtype(np.int32), 4, 1, always(longest, longest, longest, 0), always(4))
    assert struct.unpack_from("<4q", written, 34 + 16) == (0, 4 * longest, 8 * longest, 12 * longest)


def test_the_number_of_tokens_is_returned() -> None:
    assert write_index(io.BytesIO(), np.dtype(np.int32), 3, 1, always(3, 0, 4), always(3)) == 7
    assert write_index(io.BytesIO(), np.dtype(np.int32), 0, 0, always(), always()) == 0


@pytest.mark.parametrize(
    ("sequences", "documents", "lengths", "counts", "found"),
    [
        (3, 1, (3, 2), (2,), "sequences: expected 3, found 2"),
        (2, 2, (3, 2), (2,), "documents: expected 2, found 1"),
        (2, 2, (3, 2), (2, 1), "sequences of all documents: expected 2, found 3"),
        (2, 1, (3, -2), (2,), "found -2 to 3"),
        (1, 1, (2**31,), (1,), "found 2,147,483,648"),
        (1, 2, (1,), (2, -1), "found -1 to 2"),
    ],
)
def test_numbers_that_do_not_add_up_are_a_defect_of_the_caller(
    sequences: int, documents: int, lengths: tuple[int, ...], counts: tuple[int, ...], found: str
) -> None:
    with pytest.raises(InvariantError, match=found):
        index_of(np.dtype(np.int32), sequences, documents, always(*lengths), always(*counts))


def test_lengths_that_change_from_call_to_call_are_a_defect_of_the_caller() -> None:
    calls = iter([[3, 2], [2, 3]])
    with pytest.raises(InvariantError, match="not the same when asked for again"):
        index_of(np.dtype(np.int32), 2, 1, lambda: iter([np.array(next(calls))]), always(2))


def test_a_dtype_that_megatron_lacks_is_a_defect_of_the_caller() -> None:
    with pytest.raises(InvariantError, match="uint32"):
        index_of(np.dtype(np.uint32), 1, 1, always(1), always(1))


def test_memory_does_not_grow_with_the_index() -> None:
    class Counter:
        written = 0

        def write(self, data: Any) -> None:
            self.written += len(memoryview(data).cast("B"))

    counter, count = Counter(), 32 * BLOCK
    block = np.ones(BLOCK // 2, np.int32)
    tracemalloc.start()
    numbers = lambda: itertools.repeat(block, 64)  # noqa: E731
    write_index(counter, np.dtype(np.int32), count, count, numbers, numbers)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert counter.written == 34 + 20 * count + 8
    assert peak < counter.written / 10


# Which dtype, and what Megatron's readers make of it


def test_ids_are_uint16_below_65500_entries_and_int32_from_there() -> None:
    assert [token_dtype(size).name for size in VOCABULARIES] == ["uint16", "uint16", *["int32"] * 5]


@pytest.mark.parametrize("size", [0, -1, 2**31 + 1])
def test_a_vocabulary_that_int32_cannot_number_is_refused(size: int) -> None:
    with pytest.raises(InputError, match="expected a vocabulary of 1 to"):
        token_dtype(size)


def test_the_warning_about_the_header_is_for_vocabularies_between_the_two_rules() -> None:
    assert [bool(header_warning(size)) for size in VOCABULARIES] == [False, False, True, True, True, False, False]
    assert "--per-dataset-sequences-path" in header_warning(65_536)


def test_more_sequences_than_int32_can_number_are_warned_of() -> None:
    assert reader_warning(2**31 - 1, 2**40) == ""
    assert "2,147,483,648" in reader_warning(2**31, 2**40)


def test_a_pair_that_cannot_be_mapped_is_warned_of() -> None:
    assert "without tokens" in reader_warning(0, 0)


# Reading


@given(documents=documents_of_small_ids, dtype=st.sampled_from(sorted(CODES)))
def test_what_was_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, documents: Documents, dtype: str
) -> None:
    pair = write_pair(tmp_path_factory.getbasetemp() / "back", documents, dtype)
    sequences = [list(sequence) for document in documents for sequence in document]
    assert (pair.dtype, pair.num_documents) == (np.dtype(dtype), len(documents))
    assert (pair.num_sequences, pair.num_tokens) == (len(sequences), len(flat(documents)))
    assert pair.lengths.tolist() == [len(sequence) for sequence in sequences]
    assert pair.pointers.tolist() == [
        sum(map(len, sequences[:number])) * pair.dtype.itemsize for number in range(len(sequences))
    ]
    assert np.diff(pair.document_indices).tolist() == [len(document) for document in documents]
    assert [pair.sequence(number).tolist() for number in range(len(sequences))] == sequences
    assert [pair.document(number).tolist() for number in range(len(documents))] == [
        flat([document]) for document in documents
    ]
    assert [token for block in pair.token_blocks() for token in block.tolist()] == flat(documents)


def test_sequences_are_views_that_cannot_be_written_to(tmp_path: Path) -> None:
    pair = write_pair(tmp_path / "pair", DOCUMENTS)
    for array in (pair.sequence(0), pair.document(1), pair.lengths, pair.pointers, pair.document_indices):
        assert not array.flags.owndata
        assert not array.flags.writeable


def test_a_view_outlives_the_pair(tmp_path: Path) -> None:
    tokens = write_pair(tmp_path / "pair", DOCUMENTS).sequence(0)
    assert tokens.tolist() == [5, 6, 7]


@pytest.mark.parametrize("number", [-1, 6, 2**40])
def test_there_is_no_sequence_or_document_beyond_the_last(tmp_path: Path, number: int) -> None:
    pair = write_pair(tmp_path / "pair", DOCUMENTS)
    with pytest.raises(IndexError):
        pair.sequence(number)
    with pytest.raises(IndexError):
        pair.document(number)


def test_a_pair_in_an_object_store_is_read_by_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = write_pair(tmp_path / "pair", DOCUMENTS)
    store = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    monkeypatch.setattr(megatron, "resolve", lambda uri: (store, uri.removeprefix("s3://bucket/")))
    pair = IndexedPair.open("s3://bucket/pair")
    assert [pair.document(number).tolist() for number in range(6)] == [flat([document]) for document in DOCUMENTS]
    assert pair.lengths.tolist() == local.lengths.tolist()
    facts, written, again = token_facts(local, 10, 1), (tmp_path / "pair.idx").read_bytes(), io.BytesIO()
    with blocks_of(1):
        assert token_facts(pair, 10, 1) == facts
        merged_index(again, [pair])
    assert again.getvalue() == written


def test_tokens_behind_4_gb_are_found(tmp_path: Path) -> None:
    longest, last = 2**31 - 1, np.array([7, 1], np.int32)
    with (tmp_path / "pair.bin").open("wb") as file:
        file.seek(4 * longest)  # a hole: the file takes no room
        file.write(last.tobytes())
    with (tmp_path / "pair.idx").open("wb") as sink:
        write_index(sink, np.dtype(np.int32), 2, 2, always(longest, 2), always(1, 1))
    pair = IndexedPair.open(str(tmp_path / "pair"))
    assert pair.sequence(1).tolist() == [7, 1]
    assert pair.document(1).tolist() == [7, 1]
    assert pair.num_tokens == 2**31 + 1


# Damage


def overwrite(at: int, data: bytes) -> Callable[[bytes], bytes]:
    return lambda content: content[:at] + data + content[at + len(data) :]


def q(number: int) -> bytes:
    return struct.pack("<q", number)


# Of DOCUMENTS: 5 sequences of 3, 1, 0, 2, 1 tokens, 6 documents.
LENGTHS_AT, POINTERS_AT, DOCUMENTS_AT = 34, 34 + 20, 34 + 20 + 40
DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "empty index": ("idx", lambda content: b"", "expected a header of 34 bytes, found a file of 0 bytes"),
    "cut header": ("idx", lambda content: content[:33], "expected a header of 34 bytes, found a file of 33 bytes"),
    "magic": ("idx", overwrite(0, b"TNTIDX\0\0\0"), "found b'TNTIDX"),
    "version": ("idx", overwrite(9, q(2)), "expected version 1 of the format, found 2"),
    "dtype of floats": ("idx", overwrite(17, b"\x06"), "found 6"),
    "dtype of nothing": ("idx", overwrite(17, b"\x00"), "4 int32, 5 int64, 8 uint16), found 0"),
    "dtype of another size": ("idx", overwrite(17, b"\x08"), "expected 26 bytes, as the index says, found 28"),
    "no documents + 1": ("idx", overwrite(26, q(0)), "expected the number of documents + 1, found 0"),
    "too many sequences": ("idx", overwrite(18, q(6)), "for 6 sequences and 6 documents, found 150"),
    "all ones": ("idx", overwrite(18, b"\xff" * 16), "for 18,446,744,073,709,551,615 sequences"),
    "cut index": ("idx", lambda content: content[:-1], "expected 150 bytes for 5 sequences and 6 documents, found 149"),
    "longer index": ("idx", lambda content: content + b"\0", "found 151"),
    "modes": ("idx", lambda content: content + b"\0" * 5, "found a multimodal one"),
    "first document": ("idx", overwrite(DOCUMENTS_AT, q(1)), "expected document indices 0 to 5, found 1 to 5"),
    "last document": ("idx", overwrite(DOCUMENTS_AT + 48, q(4)), "expected document indices 0 to 5, found 0 to 4"),
    "last pointer": ("idx", overwrite(POINTERS_AT + 32, q(-1)), "as the index says"),
    "last length": ("idx", overwrite(LENGTHS_AT + 16, b"\2"), "expected 32 bytes, as the index says, found 28"),
    "cut tokens": ("bin", lambda content: content[:-1], "expected 28 bytes, as the index says, found 27"),
    "no tokens": ("bin", lambda content: b"", "expected 28 bytes, as the index says, found 0"),
    "more tokens": ("bin", lambda content: content + b"\1\0\0\0", "expected 28 bytes, as the index says, found 32"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_pair_is_refused_in_one_line_that_names_the_file(tmp_path: Path, damage: str) -> None:
    write_pair(tmp_path / "pair", DOCUMENTS)
    ending, change, found = DAMAGE[damage]
    path = tmp_path / f"pair.{ending}"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(InputError) as raised:
        IndexedPair.open(str(tmp_path / "pair"))
    assert str(raised.value).startswith((f"{tmp_path}/pair.idx: expected ", f"{tmp_path}/pair.bin: expected "))
    assert found in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("gone", "prefix"), [("pair.idx", "pair"), ("pair.bin", "pair"), ("", "pair.bin"), ("", "no")])
def test_a_pair_that_lacks_a_file_is_refused(tmp_path: Path, gone: str, prefix: str) -> None:
    write_pair(tmp_path / "pair", DOCUMENTS)
    if gone:
        (tmp_path / gone).unlink()
    with pytest.raises(InputError, match=r"found no such file: give the name without \.bin and \.idx"):
        IndexedPair.open(str(tmp_path / prefix))


def test_a_folder_is_no_file_of_a_pair(tmp_path: Path) -> None:
    (tmp_path / "pair.idx").mkdir()
    with pytest.raises(InputError, match=r"pair\.idx: expected a file beside .*pair\.bin, found a folder"):
        IndexedPair.open(str(tmp_path / "pair"))


def test_a_document_that_cannot_be_is_refused_when_it_is_asked_for(tmp_path: Path) -> None:
    write_pair(tmp_path / "pair", DOCUMENTS)
    path = tmp_path / "pair.idx"
    path.write_bytes(overwrite(DOCUMENTS_AT + 8, q(-7))(path.read_bytes()))
    pair = IndexedPair.open(str(tmp_path / "pair"))
    with pytest.raises(InputError, match="document 0 is sequences 0 to -7 of 5"):
        pair.document(0)
    with pytest.raises(InputError, match="a document of -7 or 8 sequences"):
        list(pair.sequences_per_document_blocks())


@pytest.mark.parametrize("pointer", [-4, 27, 2**62, -(2**63)])
def test_a_pointer_outside_the_tokens_is_refused_when_it_is_followed(tmp_path: Path, pointer: int) -> None:
    write_pair(tmp_path / "pair", DOCUMENTS)
    path = tmp_path / "pair.idx"
    path.write_bytes(overwrite(POINTERS_AT + 8, q(pointer))(path.read_bytes()))
    pair = IndexedPair.open(str(tmp_path / "pair"))
    with pytest.raises(InputError, match=r"no bytes|cannot take"):
        pair.sequence(1)
    with pytest.raises(InputError, match=r"no bytes|cannot take"):
        pair.document(3)


@given(at=st.integers(0, DOCUMENTS_AT - 1).filter(lambda at: at != 17), value=st.integers(1, 255))
def test_no_changed_byte_of_header_lengths_or_pointers_goes_unseen(
    tmp_path_factory: pytest.TempPathFactory, at: int, value: int
) -> None:
    prefix = tmp_path_factory.getbasetemp() / "changed"
    write_pair(prefix, DOCUMENTS)
    path = Path(f"{prefix}.idx")
    content = bytearray(path.read_bytes())
    content[at] ^= value
    path.write_bytes(content)
    try:
        pair = IndexedPair.open(str(prefix))
    except InputError:
        return
    assert problems(pair)


# megatron-core: the byte oracle of writing, and the reader


@pytest.fixture(scope="module")
def core() -> SimpleNamespace:
    reason = "megatron-core reads and writes the same pairs: pip install megatron-core torch packaging"
    pytest.importorskip("torch", reason=reason)
    datasets = "megatron.core.datasets"
    return SimpleNamespace(
        torch=pytest.importorskip("torch", reason=reason),
        indexed=pytest.importorskip(f"{datasets}.indexed_dataset", reason=reason),
        gpt=pytest.importorskip(f"{datasets}.gpt_dataset", reason=reason),
        builder=pytest.importorskip(f"{datasets}.blended_megatron_dataset_builder", reason=reason),
    )


def build(core: SimpleNamespace, prefix: Path, documents: Documents, dtype: str) -> None:
    builder = core.indexed.IndexedDatasetBuilder(f"{prefix}.bin", dtype=getattr(np, dtype))
    for document in documents:
        builder.add_document(flat([document]), [len(sequence) for sequence in document])
    builder.finalize(f"{prefix}.idx")


def contents(prefix: Path) -> tuple[bytes, bytes]:
    return Path(f"{prefix}.bin").read_bytes(), Path(f"{prefix}.idx").read_bytes()


@pytest.mark.parametrize("dtype", sorted(CODES))
def test_megatron_writes_the_same_bytes(core: SimpleNamespace, tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 100, (rng.integers(0, 4), rng.integers(0, 9))).tolist() for _ in range(200)]
    build(core, tmp_path / "theirs", documents, dtype)
    write_pair(tmp_path / "ours", documents, dtype)
    assert contents(tmp_path / "ours") == contents(tmp_path / "theirs")


def test_pairs_joined_by_blocks_are_the_bytes_of_megatrons_own_merge(core: SimpleNamespace, tmp_path: Path) -> None:
    parts: list[Documents] = [DOCUMENTS, [], [[]], [[[3], [4, 1]], [[2, 1]]]]
    builder = core.indexed.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=np.int32)
    pairs = []
    for number, documents in enumerate(parts):
        pairs.append(write_pair(tmp_path / f"part-{number}", documents))
        builder.add_index(str(tmp_path / f"part-{number}"))
    builder.finalize(str(tmp_path / "theirs.idx"))
    with (tmp_path / "ours.idx").open("wb") as sink:
        merged_index(sink, pairs)
    assert (tmp_path / "ours.idx").read_bytes() == (tmp_path / "theirs.idx").read_bytes()


def test_megatron_reads_back_what_was_written(core: SimpleNamespace, tmp_path: Path) -> None:
    pair = write_pair(tmp_path / "pair", DOCUMENTS, "uint16")
    for mapped in (True, False):
        theirs = core.indexed.IndexedDataset(str(tmp_path / "pair"), mmap=mapped)
        assert theirs.document_indices.tolist() == pair.document_indices.tolist()
        assert theirs.sequence_lengths.tolist() == pair.lengths.tolist()
        assert theirs.index.dtype is np.uint16
        assert [theirs[number].tolist() for number in range(5)] == [[5, 6, 7], [8], [], [9, 1], [1]]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of its __del__
def test_megatron_cannot_open_a_pair_without_tokens(core: SimpleNamespace, tmp_path: Path) -> None:
    write_pair(tmp_path / "pair", [[], []])
    with pytest.raises(ValueError, match="empty"):
        core.indexed.IndexedDataset(str(tmp_path / "pair"))


def gpt_config(core: SimpleNamespace, vocab_size: int, **options: Any) -> Any:
    tokenizer = SimpleNamespace(vocab_size=vocab_size, eod=1, unique_identifiers={"class": "a test's"})
    return core.gpt.GPTDatasetConfig(
        random_seed=7,
        sequence_length=8,
        tokenizer=tokenizer,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        **options,
    )


def test_the_dtype_is_megatrons_and_the_warning_is_given_where_its_reader_guesses_another(
    core: SimpleNamespace,
) -> None:
    for size in VOCABULARIES:
        assert token_dtype(size) == core.indexed.DType.optimal_dtype(size)
        guessed = core.indexed.DType.dtype_from_code(gpt_config(core, size).token_dtype_code)
        assert bool(header_warning(size)) == (guessed != token_dtype(size))


def test_megatrons_gpt_dataset_gives_each_token_once_an_epoch(core: SimpleNamespace, tmp_path: Path) -> None:
    documents: list[list[list[int]]] = [
        [[*range(start, start + length)]] for start, length in ((100, 13), (200, 1), (300, 27))
    ]
    documents[1:1] = [[]]
    tokens = flat(documents)  # 5 samples of 8, and one token more for the last label
    write_pair(tmp_path / "pair", documents, "uint16")
    config = gpt_config(core, 400, blend=([str(tmp_path / "pair")], None), split="1,0,0", path_to_cache=str(tmp_path))
    sizes = [None, 0, 0]
    train, *_ = core.builder.BlendedMegatronDatasetBuilder(core.gpt.GPTDataset, sizes, lambda: True, config).build()
    inputs = [token for sample in train for token in sample["tokens"].tolist()]
    labels = [token for sample in train for token in sample["labels"].tolist()]
    assert len(inputs) == len(labels) == len(tokens) - 1
    assert len(set(inputs)) == len(set(labels)) == len(tokens) - 1
    assert {*inputs, *labels} == set(tokens)


@pytest.mark.skipif(not ORACLE.with_suffix(".idx").exists(), reason=f"no pair of Megatron-LM's tool at {ORACLE}")
def test_a_pair_of_megatrons_own_tool_is_sound_and_its_index_is_written_again_byte_for_byte() -> None:
    pair = IndexedPair.open(str(ORACLE))
    assert (pair.dtype, pair.num_documents) == (np.dtype(np.int32), 3_008)
    facts = token_facts(pair, vocab_size=129_283, eod=1)
    assert facts.problems() == []
    assert facts.ended == np.count_nonzero(np.diff(pair.document_indices))
    again = io.BytesIO()
    merged_index(again, [pair])
    assert again.getvalue() == ORACLE.with_suffix(".idx").read_bytes()
