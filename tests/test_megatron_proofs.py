"""Proofs of a pair (core/megatron_proofs.py): what is wrong is found and named, whatever the blocks."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taojin.core.errors import InputError
from taojin.core.megatron import BLOCK, IndexedPair
from taojin.core.megatron_proofs import TokenFacts, problems, structure_problems, token_facts
from tests.megatron_pairs import Documents, blocks_of, documents_of_small_ids, flat, write_pair

EOD = 1
# 5 sequences of 3, 1, 0, 2, 1 tokens in 6 documents.
SOUND: Documents = [[], [[5, 6, EOD]], [], [[8], [], [9, EOD]], [[EOD]], []]
LENGTHS_AT, POINTERS_AT, DOCUMENTS_AT = 34, 34 + 20, 34 + 20 + 40


def naive_facts(documents: Documents, vocab_size: int | None, eod: int | None) -> TokenFacts:
    tokens = flat(documents)
    outside = [at for at, token in enumerate(tokens) if token < 0 or (vocab_size is not None and token >= vocab_size)]
    some = [number for number, document in enumerate(documents) if document]
    ended = [number for number in some if documents[number][-1] and documents[number][-1][-1] == eod]
    not_ended = [number for number in some if number not in ended] if eod is not None else []
    return TokenFacts(
        tokens=len(tokens),
        lowest=min(tokens, default=-1),
        highest=max(tokens, default=-1),
        vocab_size=vocab_size,
        outside=len(outside),
        first_outside=outside[0] if outside else -1,
        eod=eod,
        ended=len(ended),
        not_ended=len(not_ended),
        first_not_ended=not_ended[0] if not_ended else -1,
        eods_inside=tokens.count(eod) - len(ended) if eod is not None else 0,
    )


@given(
    documents=st.one_of(
        documents_of_small_ids,
        # Ends with EOD, mostly; negative ids.
        st.lists(st.lists(st.lists(st.integers(-2, 3), max_size=4).map(lambda s: [*s, EOD]), max_size=3), max_size=9),
    ),
    vocab_size=st.sampled_from((None, 3, 10)),
    eod=st.sampled_from((None, EOD, 2)),
    block=st.sampled_from((1, 2, 3, 5, BLOCK)),
)
def test_facts_of_tokens_are_those_of_a_walk_over_all_documents(
    tmp_path_factory: pytest.TempPathFactory, documents: Documents, vocab_size: int | None, eod: int | None, block: int
) -> None:
    pair = write_pair(tmp_path_factory.getbasetemp() / "facts", documents)
    with blocks_of(block):
        assert structure_problems(pair) == []
        assert token_facts(pair, vocab_size, eod) == naive_facts(documents, vocab_size, eod)


def test_documents_far_apart_are_found_in_small_blocks(tmp_path: Path) -> None:
    documents = [[[7]] * 50 + [[EOD]], *[[]] * 40, [[7]] * 20, [[3], [EOD]]]
    pair = write_pair(tmp_path / "pair", documents)
    with blocks_of(4):
        assert token_facts(pair, 10, EOD) == naive_facts(documents, 10, EOD)


def test_a_sound_pair_has_no_problems(tmp_path: Path) -> None:
    assert problems(write_pair(tmp_path / "pair", SOUND), vocab_size=10, eod=EOD) == []
    assert problems(write_pair(tmp_path / "empty", []), vocab_size=10, eod=EOD) == []


def test_an_id_outside_the_vocabulary_is_named(tmp_path: Path) -> None:
    pair = write_pair(tmp_path / "pair", SOUND)
    assert problems(pair, vocab_size=8, eod=EOD) == [
        "2 ids are outside the vocabulary of 8 (1 to 9), the first is token 3"
    ]


def test_negative_ids_are_outside_any_vocabulary(tmp_path: Path) -> None:
    pair = write_pair(tmp_path / "pair", [[[3, -1]]])
    assert problems(pair) == ["1 ids are outside the vocabulary (-1 to 3), the first is token 1"]


def test_a_document_without_eod_at_its_end_is_named(tmp_path: Path) -> None:
    pair = write_pair(tmp_path / "pair", [[[EOD, 5]], [[EOD]], [[EOD], []], [[]], []])
    assert problems(pair, eod=EOD) == ["3 documents do not end with EOD (1), the first is document 0"]


def test_an_eod_that_the_dtype_cannot_hold_ends_no_document(tmp_path: Path) -> None:
    pair = write_pair(tmp_path / "pair", [[[5]]], "uint16")
    assert token_facts(pair, eod=70_000).not_ended == 1


@pytest.mark.parametrize(
    ("at", "value", "found"),
    [
        (LENGTHS_AT, struct.pack("<i", -3), ["the length of sequence 0 is -3"]),
        (LENGTHS_AT + 4, struct.pack("<i", 2), ["the pointer of sequence 2 is 16, expected 20"]),
        (POINTERS_AT + 8, struct.pack("<q", 16), ["the pointer of sequence 1 is 16, expected 12"]),
        (POINTERS_AT, struct.pack("<q", -4), ["the pointer of sequence 0 is -4, expected 0"]),
        (DOCUMENTS_AT + 8, struct.pack("<q", 2), ["document 1 begins at sequence 2 and ends at 1"]),
        (DOCUMENTS_AT + 40, struct.pack("<q", 6), ["document 5 begins at sequence 6 and ends at 5"]),
    ],
)
@pytest.mark.parametrize("block", [1, 2, BLOCK])
def test_what_is_wrong_in_the_index_is_named(
    tmp_path: Path, at: int, value: bytes, found: list[str], block: int
) -> None:
    write_pair(tmp_path / "pair", SOUND)
    path = tmp_path / "pair.idx"
    content = path.read_bytes()
    path.write_bytes(content[:at] + value + content[at + len(value) :])
    pair = IndexedPair.open(str(tmp_path / "pair"))
    with blocks_of(block):
        assert structure_problems(pair) == found
        assert problems(pair, vocab_size=10, eod=EOD) == found
        with pytest.raises(InputError) as raised:
            token_facts(pair)
    assert str(raised.value) == f"{path}: {found[0]}"


def test_a_bad_length_and_a_bad_document_are_both_named(tmp_path: Path) -> None:
    write_pair(tmp_path / "pair", SOUND)
    path = tmp_path / "pair.idx"
    content = bytearray(path.read_bytes())
    content[LENGTHS_AT : LENGTHS_AT + 4] = struct.pack("<i", 4)
    content[DOCUMENTS_AT + 8 : DOCUMENTS_AT + 16] = struct.pack("<q", 3)
    path.write_bytes(content)
    assert structure_problems(IndexedPair.open(str(tmp_path / "pair"))) == [
        "the pointer of sequence 1 is 12, expected 16",
        "document 1 begins at sequence 3 and ends at 1",
    ]
