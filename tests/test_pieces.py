"""Units become pieces: what `encode_unit` writes, and the pure functions below it against naive lists."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from taojin.core.errors import InvariantError
from taojin.core.storage import FileEntry, Folder
from taojin.tokenize.config import TokenizeConfig
from taojin.tokenize.documents import Documents
from taojin.tokenize.libraries import Tokens
from taojin.tokenize.pieces import (
    EncodeContext,
    PieceWriter,
    encode_unit,
    groups_of,
    join,
    slice_documents,
    take,
)
from taojin.tokenize.sequences import Sequences, as_dtype, encode_texts
from taojin.tokenize.split import assign, component_keys, id_keys, parse_split, place_keys, shuffle_keys
from taojin.tokenizing_input import open_input, open_tokenizer
from tests.jobs import write_parquet
from tests.megatron_pairs import flat
from tests.token_runs import naive_documents, naive_sentences, records, small_tokenizer

SPLIT = "train=0.6,valid=0.4"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One shard, and a tokenizer beside its folder."""
    root = tmp_path_factory.mktemp("corpus")
    write_parquet(root / "in" / "a.parquet", records(3, 150), row_group_size=20)
    small_tokenizer(root)
    return root


def context_of(root: Path, work: Path, **settings: Any) -> EncodeContext:
    config = TokenizeConfig(
        input=(str(root / "in"),), output=str(work / "zh"), tokenizer=str(root / "gpt2.json"), **settings
    )
    file, facts = open_tokenizer(config)
    folder = Folder(str(work / "zh.work"))
    return EncodeContext(open_input(config, folder)[0], folder, config, file, facts, "reference")


def with_runs_of(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    """What is encoded is sorted so many tokens at a time; what is shuffled is still sorted at once."""
    writer = PieceWriter.__init__

    def small_runs(
        self: PieceWriter, context: EncodeContext, folder: Folder, name: str, run_tokens: int | None = tokens
    ) -> None:
        writer(self, context, folder, name, run_tokens)

    monkeypatch.setattr(PieceWriter, "__init__", small_runs)


class Piece(NamedTuple):
    tokens: NDArray[Any]
    lengths: NDArray[np.int32]
    batches: list[pa.RecordBatch]

    @property
    def table(self) -> pa.Table:
        return pa.Table.from_batches(self.batches)

    def documents(self) -> list[list[list[int]]]:
        """Tokens of the sequences of every document."""
        sequences = np.split(self.tokens, np.cumsum(self.lengths))[:-1]
        ends = np.cumsum(self.table.column("sequences").to_numpy())
        return [[s.tolist() for s in sequences[a:b]] for a, b in zip([0, *ends], ends, strict=False)]


def read_piece(context: EncodeContext, kind: str = "pieces", number: int = 0) -> Piece:
    folder = context.work.child(kind)
    with folder.open(f"{number:06d}.arrow") as file:
        reader = pa.ipc.open_file(file)
        batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
    return Piece(
        np.frombuffer(folder.read_bytes(f"{number:06d}.bin"), context.dtype),
        np.frombuffer(folder.read_bytes(f"{number:06d}.lengths"), np.int32),
        batches,
    )


def expected_of(root: Path, **options: Any) -> dict[str, list[list[int]]]:
    """Sequences by id."""
    rows = records(3, 150)
    documents = naive_documents([row["text"] for row in rows], root / "gpt2.json", **options)
    return dict(zip([row["id"] for row in rows], documents, strict=True))


# ---------------------------------------------------------------------------- a unit's piece


def test_a_piece_holds_the_documents_of_its_unit_in_order(corpus: Path, tmp_path: Path) -> None:
    context = context_of(corpus, tmp_path)
    stats = encode_unit(context, 0)
    piece = read_piece(context)
    expected = expected_of(corpus)
    assert piece.documents() == list(expected.values())
    rows = [(row["piece"], row["row"], row["id"], row["tokens"]) for row in piece.table.to_pylist()]
    assert rows == [(i // 20, i % 20, id, len(flat([d]))) for i, (id, d) in enumerate(expected.items())]
    assert stats["documents"] == 150
    assert stats["pieces"] == [[0, piece, min(20, 150 - 20 * piece)] for piece in range(8)]
    [segment] = stats["segments"]
    assert segment["xxh3"] == {
        "bin": xxhash.xxh3_64_hexdigest(piece.tokens.tobytes()),
        "lengths": xxhash.xxh3_64_hexdigest(piece.lengths.tobytes()),
    }
    for entry in stats["files"].values():
        context.work.child("pieces").require(FileEntry(**entry), checksum=True)


@pytest.mark.parametrize("run_tokens", [1, 2000, 10**9])
@pytest.mark.parametrize("settings", [{"split": SPLIT}, {"by_source": True}, {"split": SPLIT, "shuffle": True}])
def test_segments_are_runs_of_documents_that_go_to_one_pair(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], run_tokens: int
) -> None:
    context = context_of(corpus, tmp_path, level="sentence", **settings)
    with_runs_of(monkeypatch, run_tokens)
    stats = encode_unit(context, 0)
    piece = read_piece(context)
    expected = expected_of(corpus, sentences=True)
    ids = piece.table.column("id").to_pylist()
    assert sorted(ids) == sorted(expected)
    assert piece.documents() == [expected[id] for id in ids]
    sides = assign(parse_split(context.config.split), 0, id_keys(piece.table.column("id").combine_chunks()))
    document = token = 0
    seen: dict[tuple[str, str], list[str]] = {}
    for segment in stats["segments"]:
        rows = slice(document, document + segment["documents"])
        assert {parse_split(context.config.split).names[side] for side in sides[rows]} == {segment["split"]}
        sources = {source or "" for source in piece.table.column("source").to_pylist()[rows]}
        assert not context.config.by_source or sources == {segment["source"]}
        tokens = piece.tokens[token : token + segment["tokens"]]
        assert segment["xxh3"]["bin"] == xxhash.xxh3_64_hexdigest(tokens.tobytes())
        seen.setdefault((segment["split"], segment["source"]), []).extend(ids[rows])
        document, token = rows.stop, token + segment["tokens"]
    assert document == 150
    assert token == len(piece.tokens)
    assert (len(stats["segments"]) > len(seen)) == (run_tokens < 10**9)
    if not context.config.shuffle:
        order = {id: number for number, id in enumerate(expected)}
        assert all(its == sorted(its, key=lambda id: order[id]) for its in seen.values())


def test_a_segment_is_sorted_by_key_and_one_batch_where_documents_are_shuffled(corpus: Path, tmp_path: Path) -> None:
    context = context_of(corpus, tmp_path, shuffle=True, seed=7, split=SPLIT)
    stats = encode_unit(context, 0)
    piece = read_piece(context)
    assert [batch.num_rows for batch in piece.batches] == [segment["documents"] for segment in stats["segments"]]
    for batch in piece.batches:
        keys = batch.column("key").to_numpy()
        assert (np.diff(keys) > 0).all()
        for row, key in zip(batch.to_pylist(), keys, strict=True):
            assert key == shuffle_keys(7, row["shard"], row["piece"], np.array([row["row"]]))[0]
    table = piece.table
    for first, count in (("first_token", "tokens"), ("first_sequence", "sequences")):
        numbers = table.column(count).to_numpy().astype(np.int64)
        assert np.array_equal(table.column(first).to_numpy(), np.cumsum(numbers) - numbers)


def test_a_piece_that_fails_leaves_no_file(corpus: Path, tmp_path: Path) -> None:
    context = context_of(corpus, tmp_path)
    with pytest.raises(KeyError), PieceWriter(context, context.work, "000000"):
        raise KeyError
    assert not list(tmp_path.rglob("0000*"))


def test_what_has_no_source_is_counted_however_batches_are_cut(corpus: Path, tmp_path: Path) -> None:
    rows = [{"text": "人", "source": None}] * 3 + [{"text": "民", "source": "a"}, {"text": "中", "source": None}]
    for name, size in (("one", 5), ("two", 3)):
        write_parquet(tmp_path / name / "in" / "a.parquet", rows, row_group_size=size)
        small_tokenizer(tmp_path / name)
    found = [encode_unit(context_of(tmp_path / name, tmp_path / name), 0)["by_source"] for name in ("one", "two")]
    assert found[0] == found[1]
    assert {name: documents for name, (documents, _) in found[0].items()} == {"": 4, "a": 1}


# ---------------------------------------------------------------------------- which pair


def documents(components: list[int | None], ids: list[str | None]) -> Documents:
    columns = {"component": pa.array(components, pa.int64()), "id": pa.array(ids, pa.large_string())}
    return Documents(2, 5, np.arange(3, 3 + len(ids)), pa.array([""] * len(ids), pa.large_string()), columns)


@pytest.mark.parametrize("known", ["component", "id", "place", "some of each"])
def test_a_side_is_that_of_the_component_else_the_id_else_the_place(corpus: Path, tmp_path: Path, known: str) -> None:
    context = context_of(corpus, tmp_path, split=SPLIT, seed=3)
    count = 60
    components = [number % 7 if known == "component" or number % 3 == 0 else None for number in range(count)]
    ids = [f"id {number % 11}" if known != "place" and number % 3 < 2 else None for number in range(count)]
    if known in ("id", "place"):
        components = [None] * count
    found = groups_of(context, documents(components, ids))
    keys = place_keys(2, 5, np.arange(3, 3 + count))
    for number, (component, id) in enumerate(zip(components, ids, strict=True)):
        if component is not None:
            keys[number] = component_keys(np.array([component]))[0]
        elif id is not None:
            keys[number] = id_keys(pa.array([id]))[0]
    assert found.codes is not None
    assert found.names == [("train", ""), ("valid", "")]
    assert found.codes.tolist() == assign(parse_split(SPLIT), 3, keys).tolist()


# ---------------------------------------------------------------------------- lists, flat

batches_of_documents = st.lists(
    st.lists(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), max_size=3), max_size=5),
    min_size=1,
    max_size=4,
)


def sequences_of(found: list[list[list[int]]]) -> Sequences:
    ids = np.array(flat(found), np.uint16)
    return Sequences(
        ids,
        np.array([len(sequence) for document in found for sequence in document], np.int32),
        np.array([len(document) for document in found], np.int32),
        mask=(ids % 2).astype(np.uint8),
    )


def lists_of(found: Sequences) -> list[list[list[int]]]:
    assert found.mask is not None
    assert found.mask.tolist() == [number % 2 for number in found.ids.tolist()]
    sequences = np.split(found.ids, np.cumsum(found.lengths))[:-1]
    ends = np.cumsum(found.sequences)
    return [[s.tolist() for s in sequences[a:b]] for a, b in zip([0, *ends], ends, strict=False)]


def rows(found: Sequences) -> pa.RecordBatch:
    return pa.record_batch({"tokens": pa.array(found.tokens_of_documents().astype(np.int32))})


@given(batches_of_documents, st.randoms())
def test_documents_are_joined_reordered_and_cut_as_lists_are(batches: list[Any], random: Any) -> None:
    whole = [document for batch in batches for document in batch]
    joined = join([sequences_of(batch) for batch in batches])
    assert lists_of(joined) == whole
    assert joined.tokens_of_documents().tolist() == [sum(map(len, document)) for document in whole]
    order = random.sample(range(len(whole)), len(whole))
    taken = take(joined, rows(joined), np.array(order, np.int64))
    assert lists_of(taken) == [whole[number] for number in order]
    first, last = sorted(random.choices(range(len(whole) + 1), k=2))
    assert lists_of(slice_documents(joined, rows(joined), first, last)) == whole[first:last]


class Bytes:
    """A backend whose tokens are bytes."""

    name = "bytes"

    def encode(self, texts: pa.LargeStringArray) -> Tokens:
        data = [text.encode() for text in texts.to_pylist()]
        offsets = np.cumsum([0, *map(len, data)])
        return Tokens(np.frombuffer(b"".join(data), np.uint8).astype(np.uint32), offsets.astype(np.int64))

    def decode(self, ids: NDArray[np.integer[Any]]) -> bytes:
        return bytes(ids.tolist())


around = st.lists(st.integers(300, 303), max_size=2).map(tuple)


@pytest.fixture(scope="module")
def contexts(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], EncodeContext]:
    return {
        (level, end): context_of(corpus, tmp_path_factory.mktemp("context"), level=level, append_eod=end)
        for level in ("document", "sentence")
        for end in (True, False)
    }


@given(
    texts=st.lists(st.lists(st.sampled_from(("人。", "民\n", "a", "中国")), max_size=4).map("".join), max_size=5),
    prefix=around,
    suffix=around,
    end=st.booleans(),
    level=st.sampled_from(("document", "sentence")),
)
def test_sequences_are_closed_as_a_naive_loop_does(
    contexts: dict[tuple[str, bool], EncodeContext],
    texts: list[str],
    prefix: tuple[int, ...],
    suffix: tuple[int, ...],
    end: bool,
    level: str,
) -> None:
    context = contexts[level, end]
    context = context._replace(facts=context.facts._replace(prefix=prefix, suffix=suffix, eod=400, vocab_size=500))
    expected = []
    for text in texts:
        parts = naive_sentences(text) if level == "sentence" else [text]
        found = [[*prefix, *part.encode(), *suffix] for part in parts if part or prefix or suffix]
        if found and end:
            found[-1].append(400)
        expected.append(found)
    encoded = encode_texts(context, Bytes(), None, pa.array(texts, pa.large_string()))
    assert encoded.ids.tolist() == flat(expected)
    assert encoded.lengths.tolist() == [len(sequence) for document in expected for sequence in document]
    assert encoded.sequences.tolist() == list(map(len, expected))
    assert encoded.text_bytes == sum(len(text.encode()) for text in texts)


@pytest.mark.parametrize("level", ["document", "sentence"])
def test_texts_that_hold_the_end_are_counted_once(contexts: dict[tuple[str, bool], EncodeContext], level: str) -> None:
    context = contexts[level, True]
    context = context._replace(facts=context.facts._replace(eod=ord("z"), eod_token="z", vocab_size=500))
    texts = pa.array(["zaz", "", "a。z\nz", "a", "z"], pa.large_string())
    assert encode_texts(context, Bytes(), None, texts).ends_in_text == 3


def test_an_id_outside_the_vocabulary_is_a_defect_that_names_the_tokenizer() -> None:
    ids = np.array([3, 700, 5], np.uint32)
    assert as_dtype(ids, np.dtype(np.uint16), 701, "t.json").tolist() == [3, 700, 5]
    assert as_dtype(np.zeros(0, np.uint32), np.dtype(np.int32), 1, "t.json").dtype == np.int32
    with pytest.raises(InvariantError, match=r"t\.json: expected ids below 700, its vocabulary, found 700"):
        as_dtype(ids, np.dtype(np.uint16), 700, "t.json")
