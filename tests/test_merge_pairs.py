"""Laying pieces out as pairs and copying their bytes there, against a naive loop over documents."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from taojin.core.errors import BadShardError
from taojin.core.storage import Folder
from taojin.tokenize import merge
from taojin.tokenize.merge import (
    CopyContext,
    Pair,
    copy_spans,
    lay_out,
    spans_by_output,
    spans_of,
    write_object,
)

SPLITS = ("train", "valid")
# A document: tokens of its sequences. A segment: where its documents go, and they.
Document = list[int]
Segment = tuple[tuple[str, str], list[Document]]
Pieces = list[list[Segment]]

pieces_of_documents: st.SearchStrategy[Pieces] = st.lists(
    st.lists(
        st.tuples(
            st.tuples(st.sampled_from(SPLITS), st.sampled_from(("", "书"))),
            st.lists(st.lists(st.integers(1, 6), max_size=3), min_size=1, max_size=5),
        ),
        max_size=4,
    ),
    max_size=4,
)


def segments_of(pieces: Pieces, files: dict[str, bytes] | None = None) -> list[list[dict[str, Any]]]:
    """As a piece's stats have them; files: tokens of the pieces, if they have been written."""
    found = []
    for number, piece in enumerate(pieces):
        at, segments = 0, []
        for (split, source), documents in piece:
            tokens = sum(map(sum, documents))
            data = files[f"{number:06d}"][at : at + tokens] if files else b""
            at += tokens
            segments.append(
                {
                    "split": split,
                    "source": source,
                    "documents": len(documents),
                    "sequences": sum(map(len, documents)),
                    "tokens": tokens,
                    "xxh3": {"bin": xxhash.xxh3_64_hexdigest(data)},
                }
            )
        found.append(segments)
    return found


def counts_in(pieces: Pieces) -> Any:
    def counts_of(piece: int, first: int, documents: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        of_piece = [document for _, its in pieces[piece] for document in its][first : first + documents]
        assert len(of_piece) == documents
        return np.array([sum(d) for d in of_piece], np.int64), np.array([len(d) for d in of_piece], np.int64)

    return counts_of


def naive_pairs(pieces: Pieces, limit: int) -> list[tuple[str, str, int, list[Document]]]:
    """(split, source, number, documents): a document goes to the open pair where it fits, or nothing else is in it."""
    found: list[tuple[str, str, int, list[Document]]] = []
    for split in SPLITS:
        for source in ("", "书"):
            documents = [d for piece in pieces for name, its in piece if name == (split, source) for d in its]
            groups: list[list[Document]] = [[]]
            for document in documents:
                filled, size = sum(map(sum, groups[-1])), sum(document)
                if limit and size and filled and filled + size > limit:
                    groups.append([])
                groups[-1].append(document)
            if documents:
                found += [(split, source, number if limit else -1, its) for number, its in enumerate(groups)]
    return found


def documents_in(pieces: Pieces, pair: Pair) -> list[Document]:
    """The documents of a pair by the numbers of its parts, each of which must fit to the others."""
    found: list[Document] = []
    for part in pair.parts:
        documents = [document for _, its in pieces[part.piece] for document in its]
        before = documents[: part.first_document]
        its = documents[part.first_document : part.first_document + part.documents]
        assert part.first_sequence == sum(map(len, before))
        assert part.first_token == sum(map(sum, before))
        assert (part.sequences, part.tokens) == (sum(map(len, its)), sum(map(sum, its)))
        assert pieces[part.piece][part.segment][0] == (pair.split, pair.source)
        found += its
    return found


@given(pieces_of_documents, st.sampled_from((0, 1, 2, 5, 9, 30)))
def test_documents_are_laid_out_as_a_naive_loop_does(pieces: Pieces, limit: int) -> None:
    pairs = lay_out(segments_of(pieces), SPLITS, limit, counts_in(pieces))
    found = [(pair.split, pair.source, pair.number, documents_in(pieces, pair)) for pair in pairs]
    assert found == naive_pairs(pieces, limit)


@given(pieces_of_documents, st.integers(1, 9))
def test_no_pair_is_without_tokens_unless_all_documents_are(pieces: Pieces, limit: int) -> None:
    pairs = lay_out(segments_of(pieces), SPLITS, limit, counts_in(pieces))
    for pair in pairs:
        others = [p for p in pairs if (p.split, p.source) == (pair.split, pair.source)]
        assert pair.total("tokens") or len(others) == 1


def test_a_piece_is_asked_for_its_counts_once_however_often_it_is_cut() -> None:
    pieces: Pieces = [[(("train", ""), [[1]] * 1000)]]
    asked = []

    def counts_of(*arguments: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        asked.append(arguments)
        return np.ones(1000, np.int64), np.ones(1000, np.int64)

    assert len(lay_out(segments_of(pieces), SPLITS, 3, counts_of)) == 334
    assert asked == [(0, 0, 1000)]


def write_pieces(folder: Path, pieces: Pieces) -> dict[str, bytes]:
    """A byte per token, all different as far as bytes go."""
    rng = random.Random(1)
    folder.mkdir(exist_ok=True)
    files = {}
    for number, piece in enumerate(pieces):
        size = sum(sum(map(sum, documents)) for _, documents in piece)
        files[f"{number:06d}"] = rng.randbytes(size)
        (folder / f"{number:06d}.bin").write_bytes(files[f"{number:06d}"])
    return files


@given(pieces_of_documents, st.sampled_from((0, 3, 9)), st.sampled_from((1, 2, 100)), st.booleans())
def test_bytes_go_where_their_documents_do(
    tmp_path_factory: pytest.TempPathFactory, pieces: Pieces, limit: int, block: int, local: bool
) -> None:
    """Both ways: ranges at their offsets of local files, and objects from beginning to end."""
    root = tmp_path_factory.mktemp("copy")
    files = write_pieces(root / "pieces", pieces)
    segments = segments_of(pieces, files)
    pairs = lay_out(segments, SPLITS, limit, counts_in(pieces))
    spans = spans_of(segments, pairs, Folder(str(root / "pieces")), list(files), "bin", 1)
    outputs = tuple(f"{number}.bin" for number in range(len(pairs)))
    context = CopyContext(Folder(str(root / "out")), outputs, "")
    (root / "out").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge, "BLOCK_BYTES", block)
        patch.setattr(merge, "LOCAL_BLOCK_BYTES", block)
        patch.setattr(merge, "MAX_OPEN", 1)
        if local:
            for name, pair in zip(outputs, pairs, strict=True):
                (root / "out" / name).write_bytes(bytes(pair.total("tokens")))
            stats = [copy_spans(context, group) for group in random.Random(2).sample(spans, len(spans))]
        else:
            stats = [write_object(context, item) for item in spans_by_output(spans, len(pairs))]
    for number, pair in enumerate(pairs):
        whole = (root / "out" / f"{number}.bin").read_bytes()
        expected = [
            files[f"{part.piece:06d}"][part.first_token : part.first_token + part.tokens] for part in pair.parts
        ]
        assert whole == b"".join(expected)
        ranges = sorted(entry[1:] for one in stats for entry in one["ranges"] if entry[0] == number)
        assert [at for at, _, _ in ranges] == np.cumsum([0, *(size for _, size, _ in ranges)])[:-1].tolist()
        assert sum(size for _, size, _ in ranges) == len(whole)
        for at, size, xxh3 in ranges:
            assert xxh3 == xxhash.xxh3_64_hexdigest(whole[at : at + size])


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("damage", ["a flipped bit", "a cut"])
def test_a_span_that_is_not_what_was_written_is_refused_with_its_remedy(
    tmp_path: Path, damage: str, local: bool
) -> None:
    pieces: Pieces = [[(("train", ""), [[5], [5]]), (("valid", ""), [[7]])]]
    files = write_pieces(tmp_path / "pieces", pieces)
    path = tmp_path / "pieces" / "000000.bin"
    data = bytearray(path.read_bytes())
    data[12] ^= 1
    path.write_bytes(data if damage == "a flipped bit" else data[:14])
    segments = segments_of(pieces, files)
    pairs = lay_out(segments, SPLITS, 0, counts_in(pieces))
    spans = spans_of(segments, pairs, Folder(str(tmp_path / "pieces")), ["000000"], "bin", 1)
    context = CopyContext(Folder(str(tmp_path)), ("a.bin", "b.bin"), "remove stats/{name}.json")
    for name in context.outputs:
        (tmp_path / name).write_bytes(bytes(10))
    what = "checksum" if damage == "a flipped bit" else "cut short"
    with pytest.raises(BadShardError, match=rf"pieces/000000\.bin: .*{what}.*remove stats/000000\.json"):
        copy_spans(context, spans[0]) if local else write_object(context, spans_by_output(spans, 2)[1])


def test_what_nobody_hashed_is_copied_unproved(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"abc")
    (tmp_path / "out.bin").write_bytes(bytes(3))
    span = merge.Span(Folder(str(tmp_path)), "a.bin", 0, 3, "", (merge.Target(0, 0, 0, 3),))
    copy_spans(CopyContext(Folder(str(tmp_path)), ("out.bin",), ""), [span])
    assert (tmp_path / "out.bin").read_bytes() == b"abc"
