"""Sequences over several workers: slices miss nothing, masks are of whole rows, and a run is that of one worker."""

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taojin.train.data import Batch
from taojin.train.losses import targets_of
from taojin.train.parallel import Layout
from taojin.train.sequence import slice_of, slices, whole_mask
from tests.megatron_pairs import write_pair
from tests.test_train_choices import made_rows, save_tokenizer, write_csv
from tests.train_runs import TINY_LLAMA, countable_pair, run_values
from tests.train_series import NUMBERS, Ran, Series

for needed in ("torch", "deepspeed", "transformers"):
    pytest.importorskip(needed, reason=f"{needed} comes with the extra `train`")

COMMON: dict[str, Any] = {"steps": 6, "save_every": 3, "optimizer": {"learning_rate": 0.001}}
CLOSE = 1e-5
# Windows, borders and masks; with four workers, two key-value heads are repeated.
HARD: dict[str, Any] = {"separate_documents": True, "loss_mask": True, "activation_checkpointing": True}
WINDOWED = {**TINY_LLAMA, "model_type": "mistral", "sliding_window": 12}


def batch_of(rows: int, length: int, *, full: bool) -> Batch:
    rng = np.random.default_rng(rows * 1000 + length)
    tokens = rng.integers(0, 500, (rows, length + 1))
    if not full:
        return Batch(tokens, None, None)
    return Batch(tokens, rng.random((rows, length)) < 0.5, rng.integers(0, 9, (rows, length)))


# ---------------------------------------------------------------------------- slices and masks


@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_slices_side_by_side_are_the_whole(rows: int, each: int, parts: int, full: bool) -> None:
    batch = batch_of(rows, each * parts, full=full)
    cut = [slice_of(batch, part, parts) for part in range(parts)]
    np.testing.assert_array_equal(np.hstack([part.tokens[:, :-1] for part in cut]), batch.tokens[:, :-1])
    np.testing.assert_array_equal(np.hstack([part.tokens[:, 1:] for part in cut]), batch.tokens[:, 1:])
    expected = np.tile(np.arange(each * parts), (rows, 1)) if batch.positions is None else batch.positions
    np.testing.assert_array_equal(np.hstack([part.positions for part in cut if part.positions is not None]), expected)
    if batch.loss_mask is not None:
        np.testing.assert_array_equal(
            np.hstack([part.loss_mask for part in cut if part.loss_mask is not None]), batch.loss_mask
        )
    assert sum(map(targets_of, cut)) == targets_of(batch)


def test_neighbours_take_parts_of_the_same_rows_and_the_source_is_closed() -> None:
    closed = []

    def batches() -> Generator[Batch, None, None]:
        try:
            while True:
                yield batch_of(2, 8, full=True)
        finally:
            closed.append(True)

    layout = Layout(world=4, data=2, tensor=1, sequence=2, pipeline=1, micro_batch=2, accumulation=1)
    mine = slices(batches(), layout, 3)
    np.testing.assert_array_equal(next(mine).tokens, batch_of(2, 8, full=True).tokens[:, 4:])
    mine.close()
    assert closed
    assert next(slices(batches(), layout._replace(sequence=1), 3)).tokens.shape == (2, 9)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.none() | st.integers(1, 9))
def test_a_query_sees_its_document_and_window_only(documents: list[int], window: int | None) -> None:
    import torch

    positions = [place for length in documents for place in range(length)]
    numbers = [number for number, length in enumerate(documents) for _ in range(length)]
    length = len(positions)
    mask = whole_mask(length, torch.tensor([positions, list(range(length))]), window)
    for query in range(length):
        for key in range(length):
            near = key <= query and (window is None or query - key < window)
            assert bool(mask[0, 0, query, key]) == (near and numbers[query] == numbers[key])
            assert bool(mask[1, 0, query, key]) == near


def test_no_mask_is_made_where_none_is_needed() -> None:
    assert whole_mask(8, None, None) is None
    assert whole_mask(8, None, 8) is None


# ---------------------------------------------------------------------------- runs


def mask_pair(folder: Path) -> None:
    """Two thirds of the targets of the pair of this folder."""
    from taojin.core.megatron import IndexedPair

    pair = IndexedPair.open(str(folder / "pair"))
    lengths = np.diff(np.append(pair.pointers // 2, pair.num_tokens))
    write_pair(folder / "pair_mask", [[[place % 3 and 1 for place in range(length)]] for length in lengths], "uint8")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    folder = tmp_path_factory.mktemp("sequences")
    validation = str(countable_pair(folder / "other", documents=60, seed=1))
    (folder / "questions").mkdir()
    write_csv(folder / "questions/law_val.csv", made_rows(6))
    (folder / "words").mkdir()
    tokenizer = str(save_tokenizer(folder / "words"))

    def plain(name: str, **values: Any) -> dict[str, Any]:
        seen = {"eval_every": 3, "eval_batches": 2, "validation": [validation]}
        asked = {"choices": {"files": [str(folder / "questions")]}, "tokenizer": tokenizer}
        return run_values(folder, name, **COMMON, **seen, **asked, **values)

    def hard(name: str, **values: Any) -> dict[str, Any]:
        return run_values(folder, name, **{**COMMON, **HARD, "save_every": 0, "model": str(model), **values})

    model = folder / "windowed.json"
    model.write_text(json.dumps(WINDOWED))
    halves, quarters = {"parallel": {"sequence": 2}}, {"parallel": {"sequence": 4}}
    one, two, four, last = Series(1), Series(2), Series(4), Series(1)
    one.add(plain("alone"))
    mask_pair(folder)
    one.add(hard("hard"))
    two.add(plain("halves", **halves))
    two.add(plain("halves again", **halves), folder / "halves", 3)
    four.add(plain("halves of two", micro_batch=2, **halves))
    four.add(hard("hard quarters", **quarters))
    last.add(plain("joined"), folder / "halves", 3)
    return one.run() | two.run() | four.run() | last.run()


@pytest.mark.parametrize(
    ("name", "whole"), [("halves", "alone"), ("halves of two", "alone"), ("hard quarters", "hard"), ("joined", "alone")]
)
def test_workers_of_a_sequence_compute_what_one_does(runs: dict[str, Ran], name: str, whole: str) -> None:
    """Losses, norms of gradients, and what is measured at validations: on a divided sequence, and, for multiple choice,
    on a whole one."""
    for number in NUMBERS:
        mine, expected = runs[name].of(number), runs[whole].of(number)
        assert mine == pytest.approx({step: expected[step] for step in mine}, abs=CLOSE)
    assert list(runs[name].numbers) == list(range(runs[name].first_step + 1, 7))
    if whole == "alone":
        assert list(runs[name].of("choice_loss")) == list(runs[name].of("validation_loss"))
        assert 6 in runs[name].of("choice_loss")


def test_a_run_of_divided_sequences_goes_on_bit_for_bit(runs: dict[str, Ran]) -> None:
    again = runs["halves again"]
    assert again.first_step == 3
    assert again.numbers == {step: runs["halves"].numbers[step] for step in (4, 5, 6)}


def test_one_worker_goes_on_with_whole_sequences(runs: dict[str, Ran]) -> None:
    assert runs["joined"].first_step == 3
