"""Which tokens a step sees (train/order.py, train/data.py): against a naive stream and megatron-core's GPTDataset."""

import itertools
import threading
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taojin.core.errors import ConfigError, InputError
from taojin.train.data import Batch, Origin, TokenData
from taojin.train.order import SPACING, Shares, epoch_of, keys_of, part_of, permuted, samples_through
from tests.jobs import SHARED
from tests.megatron_pairs import Documents, flat, write_pair

ORACLE = SHARED / "megatron" / "dev_6_7_text_document"
SPLIT, DOCUMENTS, SAMPLES = range(3)

shapes = st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=12).filter(
    lambda shape: sum(map(sum, shape)) > 0
)


def numbered(shape: Sequence[Sequence[int]], first: int = 0) -> Documents:
    """Documents of sequences of such lengths, whose tokens are numbered through: each can be told from all others."""
    numbers = itertools.count(first)
    return [[list(itertools.islice(numbers, length)) for length in document] for document in shape]


def lengths_of(count: int, seed: int = 0, longest: int = 40) -> list[list[int]]:
    return [[int(length)] for length in np.random.default_rng(seed).integers(0, longest, count)]


# ---------------------------------------------------------------------------- naive


def naive_permutation(size: int, key: Sequence[int]) -> list[int]:
    bits = max(1, (size - 1).bit_length())
    places = []
    for place in range(size):
        while True:
            for multiply, add in zip(key[::2], key[1::2], strict=True):
                place = (place * (multiply | 1) + add) % 2**bits
                place ^= place >> ((bits + 1) // 2)
            if place < size:
                break
        places.append(place)
    return places


def naive_samples(
    documents: Documents, length: int, epochs: int, seed: int, number: int = 0, part: tuple[int, int] | None = None
) -> list[list[int]]:
    """The samples of a pair in order: the stream is laid out, cut, and the samples of each epoch are shuffled."""
    texts = [flat([document]) for document in documents]
    if part is not None:
        split = naive_permutation(len(texts), keys_of(seed, SPLIT, number).tolist())
        texts = [texts[document] for document in split[part[0] : sum(part)]]
    stream: list[int] = []
    samples = []
    for epoch in range(epochs):
        order = naive_permutation(len(texts), keys_of(seed, DOCUMENTS, number, epoch).tolist())
        stream += [token for document in order for token in texts[document]]
        first, end = (max(0, (many * len(stream) // (epoch + 1) - 1) // length) for many in (epoch, epoch + 1))
        if end == first:
            continue
        places = naive_permutation(end - first, keys_of(seed, SAMPLES, number, epoch).tolist())
        samples += [stream[(first + place) * length :][: length + 1] for place in places]
    return samples


def all_rows(data: TokenData, **cut: int) -> list[list[int]]:
    assert data.num_steps is not None
    return [row for step in range(data.num_steps) for row in data.batch(step, **cut).tokens.tolist()]


# ---------------------------------------------------------------------------- permutations


@given(st.integers(1, 300), st.integers(0, 2**63))
def test_a_key_names_a_permutation(size: int, seed: int) -> None:
    key = keys_of(seed, 1)
    found = [permuted(index, size, key) for index in range(size)]
    assert sorted(found) == list(range(size))
    assert found == naive_permutation(size, key.tolist())


@pytest.mark.parametrize("size", [1, 2, 2**31 + 5, 2**62 - 1, 2**62])
def test_a_permutation_of_any_size_stays_in_it(size: int) -> None:
    places = {index * (size - 1) // 9 for index in range(10)}
    found = {permuted(place, size, keys_of(3)) for place in places}
    assert len(found) == len(places)
    assert all(0 <= place < size for place in found)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("size", "count"), [(3, 6), (4, 24)])
def test_every_permutation_is_as_likely_as_any_other(size: int, count: int) -> None:
    keys = 100 * count
    found = Counter(tuple(permuted(i, size, keys_of(seed)) for i in range(size)) for seed in range(keys))
    # χ² of count - 1 degrees of freedom has mean count - 1 and variance twice that; five standard deviations above.
    statistic = sum((times - 100) ** 2 / 100 for times in found.values())
    assert len(found) == count
    assert statistic < count - 1 + 5 * (2 * (count - 1)) ** 0.5


@pytest.mark.usefixtures("compiled")
def test_neighbours_are_torn_apart() -> None:
    """One pair of a thousand is expected to stay together in order, whatever the size."""
    together = sum(
        permuted(index + 1, 1000, keys_of(seed)) == permuted(index, 1000, keys_of(seed)) + 1
        for seed in range(20)
        for index in range(999)
    )
    assert 5 <= together <= 40


def test_a_key_depends_on_every_number_and_on_their_order() -> None:
    names = [(), (0,), (0, 0), (1, 2), (2, 1), (2, 1, 0), (2**64 - 1,)]
    assert len({tuple(keys_of(*name).tolist()) for name in names}) == len(names)


# ---------------------------------------------------------------------------- counting samples


@given(st.integers(2, 60), st.integers(1, 59), st.integers(1, 5))
def test_a_sample_belongs_to_the_epoch_that_its_last_token_is_in(tokens: int, length: int, epochs: int) -> None:
    length = min(length, tokens - 1)
    for sample in range(samples_through(epochs, tokens, length)):
        epoch = epoch_of(sample, tokens, length)
        assert epoch * tokens <= (sample + 1) * length < (epoch + 1) * tokens
        assert samples_through(epoch, tokens, length) <= sample < samples_through(epoch + 1, tokens, length)


def test_half_an_epoch_has_half_the_tokens() -> None:
    assert samples_through(Fraction(1, 2), 1001, 10) == 49
    assert samples_through(Fraction(0), 1001, 10) == 0


# ---------------------------------------------------------------------------- blends

weights_of_sources = st.lists(st.integers(1, 1000) | st.floats(1e-3, 1e3), min_size=1, max_size=12)


@given(weights_of_sources, st.integers(1, 100))
def test_every_source_has_its_share_at_every_point(weights: list[int | float], samples: int) -> None:
    shares = Shares(weights)
    total = sum(map(Fraction, weights))
    exact = [Fraction(weight) / total for weight in weights]
    drawn = [0] * len(weights)
    for sample in range(samples):
        source, number = shares.of(sample)
        assert number == drawn[source]
        drawn[source] += 1
        assert all(abs(count - share * (sample + 1)) < 2 for count, share in zip(drawn, exact, strict=True))
    assert shares.counts(samples) == drawn


@given(weights_of_sources, st.integers(0, 10**15))
def test_a_sample_is_found_from_its_source_and_number(weights: list[int | float], sample: int) -> None:
    shares = Shares(weights)
    assert shares.sample_of(*shares.of(sample)) == sample


@given(st.lists(st.integers(1, 60), min_size=1, max_size=8))
def test_after_as_many_samples_as_the_weights_sum_to_each_source_has_exactly_its_weight(weights: list[int]) -> None:
    assert Shares(weights).counts(sum(weights)) == weights
    assert Shares(weights).counts(7 * sum(weights)) == [7 * weight for weight in weights]


def test_many_sources_of_equal_weight_are_no_worse_than_few() -> None:
    weights = [0.5, *[0.5 / 100] * 100]
    shares = Shares(weights)
    for samples in range(0, 1000, 7):
        assert all(
            abs(count - samples * weight) < 2 for count, weight in zip(shares.counts(samples), weights, strict=True)
        )


def test_a_weight_of_one_in_a_million_is_drawn_that_often() -> None:
    assert Shares([1.0, 1e-6]).counts(10_000_010) == [10_000_000, 10]


# ---------------------------------------------------------------------------- the order of one pair


@given(shapes, st.integers(1, 12), st.integers(0, 5), st.integers(1, 3))
def test_the_samples_are_those_of_the_naive_stream(
    tmp_path_factory: pytest.TempPathFactory, shape: list[list[int]], length: int, seed: int, epochs: int
) -> None:
    prefix = tmp_path_factory.mktemp("naive") / "pair"
    documents = numbered(shape)
    write_pair(prefix, documents)
    if len(flat(documents)) <= length:
        with pytest.raises(InputError, match="expected more tokens than a sequence"):
            TokenData([(str(prefix), None)], sequence_length=length, global_batch=1)
        return
    data = TokenData([(str(prefix), None)], sequence_length=length, global_batch=1, seed=seed, epochs=epochs)
    assert all_rows(data) == naive_samples(documents, length, epochs, seed)


@pytest.mark.parametrize("count", [SPACING - 1, SPACING, SPACING + 1, 3 * SPACING])
def test_the_samples_are_the_same_across_the_marks(tmp_path: Path, count: int) -> None:
    documents = numbered(lengths_of(count))
    write_pair(tmp_path / "pair", documents, "uint16")
    data = TokenData([(str(tmp_path / "pair"), 1.0)], sequence_length=31, global_batch=1, seed=5, epochs=2)
    assert all_rows(data) == naive_samples(documents, 31, 2, 5)


@pytest.mark.usefixtures("compiled")
def test_each_target_is_seen_once_an_epoch(tmp_path: Path) -> None:
    documents = numbered(lengths_of(300))
    tokens = flat(documents)
    write_pair(tmp_path / "pair", documents)
    for epochs in (1, 2, 3):
        data = TokenData([(str(tmp_path / "pair"), None)], sequence_length=16, global_batch=1, epochs=epochs)
        seen = Counter(token for row in all_rows(data) for token in row[1:])
        # All but the first token of all, and what does not fill the last sequence.
        assert seen.total() == (epochs * len(tokens) - 1) // 16 * 16
        assert max(seen.values()) == epochs
        assert sum(epochs - seen[token] for token in tokens) == epochs * len(tokens) - seen.total()


def test_one_epoch_is_read_before_the_next_begins(tmp_path: Path) -> None:
    documents = numbered(lengths_of(100))
    tokens = len(flat(documents))
    write_pair(tmp_path / "pair", documents)
    data = TokenData([(str(tmp_path / "pair"), None)], sequence_length=7, global_batch=1)
    first = data.rows(0, (tokens - 1) // 7).tokens[:, 1:].reshape(-1)
    assert len(set(first.tolist())) == len(first) > tokens - 8


@pytest.mark.usefixtures("compiled")
def test_epochs_and_seeds_have_orders_of_their_own_and_the_length_of_the_run_changes_nothing(tmp_path: Path) -> None:
    documents = numbered(lengths_of(100))
    write_pair(tmp_path / "pair", documents)

    def rows(seed: int, epochs: float | None) -> list[list[int]]:
        pair = [(str(tmp_path / "pair"), None)]
        data = TokenData(pair, sequence_length=7, global_batch=2, seed=seed, epochs=epochs)
        return [row for step in range(120) for row in data.batch(step).tokens.tolist()]

    assert rows(1, None) == rows(1, 2.0) == rows(1, 1.5)
    assert rows(1, None) != rows(2, None)
    assert sorted(rows(1, None)) != sorted(rows(2, None))


def test_a_step_is_found_without_those_before_it(tmp_path: Path) -> None:
    documents = numbered(lengths_of(50))
    write_pair(tmp_path / "pair", documents)
    pair = [(str(tmp_path / "pair"), None)]
    data = TokenData(pair, sequence_length=8, global_batch=4)
    expected = [data.batch(step).tokens.tolist() for step in range(80)]
    for step in (79, 0, 41, 40, 78, 79):
        fresh = TokenData(pair, sequence_length=8, global_batch=4)
        assert fresh.batch(step).tokens.tolist() == data.batch(step).tokens.tolist() == expected[step]
    far = data.batch(10**9).tokens
    assert far.tolist() == data.batch(10**9).tokens.tolist()
    assert far.max() < len(flat(documents))


@pytest.mark.usefixtures("compiled")
def test_many_threads_get_what_one_gets(tmp_path: Path) -> None:
    """Steps of several epochs, so that threads push each other's tables out."""
    write_pair(tmp_path / "pair", numbered(lengths_of(40)))
    data = TokenData([(str(tmp_path / "pair"), None)], sequence_length=8, global_batch=16)
    expected = [data.batch(step).tokens.tolist() for step in range(60)]
    wrong: list[int] = []

    def read(offset: int) -> None:
        steps = [(step * 37 + offset) % 60 for step in range(60)]
        wrong.extend(step for step in steps if data.batch(step).tokens.tolist() != expected[step])

    threads = [threading.Thread(target=read, args=(offset,)) for offset in (0, 19, 40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# ---------------------------------------------------------------------------- ranks


@pytest.fixture(scope="module")
def two_pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[tuple[str, float | None]], list[Documents]]:
    folder = tmp_path_factory.mktemp("two")
    documents = [numbered(lengths_of(200)), numbered(lengths_of(60, seed=1), first=100_000)]
    for name, made in zip(("long", "short"), documents, strict=True):
        write_pair(folder / name, made)
    return [(str(folder / "long"), None), (str(folder / "short"), None)], documents


def parts(data: TokenData, step: int, world: int, micros: int) -> list[Batch]:
    return [
        data.batch(step, rank=rank, world=world, micro=micro, micros=micros)
        for rank in range(world)
        for micro in range(micros)
    ]


@pytest.mark.parametrize(("world", "micros"), [(1, 1), (1, 12), (2, 3), (3, 2), (4, 1), (12, 1)])
def test_any_cut_of_a_step_gives_the_same_rows_in_the_same_order(two_pairs: Any, world: int, micros: int) -> None:
    data = TokenData(two_pairs[0], sequence_length=16, global_batch=12, seed=3, separate_documents=True)
    for step in (0, 7, 300):
        whole, cut = data.batch(step), parts(data, step, world, micros)
        assert all(len(part.tokens) == 12 // world // micros for part in cut)
        for name in ("tokens", "loss_mask", "positions"):
            assert np.array_equal(np.concatenate([getattr(part, name) for part in cut]), getattr(whole, name))


def test_a_step_is_its_samples(two_pairs: Any) -> None:
    data = TokenData(two_pairs[0], sequence_length=16, global_batch=12)
    assert data.batch(5).tokens.tolist() == data.rows(60, 12).tokens.tolist()
    assert data.rows(3, 0).tokens.shape == (0, 17)


@pytest.mark.parametrize(("world", "micros"), [(5, 1), (1, 5), (3, 8), (24, 1)])
def test_a_batch_that_cannot_be_divided_is_refused(two_pairs: Any, world: int, micros: int) -> None:
    data = TokenData(two_pairs[0], sequence_length=16, global_batch=12)
    with pytest.raises(ConfigError, match="12 sequences cannot be divided"):
        data.batch(0, world=world, micros=micros)


@pytest.mark.parametrize("cut", [{"rank": 2, "world": 2}, {"rank": -1}, {"micro": 1}])
def test_a_rank_outside_the_world_is_refused(two_pairs: Any, cut: dict[str, int]) -> None:
    data = TokenData(two_pairs[0], sequence_length=16, global_batch=12)
    with pytest.raises(ConfigError, match="expected rank and part below"):
        data.batch(0, **cut)


def test_there_is_no_step_behind_the_last_full_batch(two_pairs: Any) -> None:
    data = TokenData(two_pairs[0], sequence_length=16, global_batch=12, epochs=1)
    assert data.num_steps is not None
    assert data.num_samples is not None
    assert data.num_steps * 12 <= data.num_samples < data.num_steps * 12 + 12
    data.batch(data.num_steps - 1)
    for step in (data.num_steps, -1):
        with pytest.raises(IndexError):
            data.batch(step)


# ---------------------------------------------------------------------------- several pairs


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("epochs", [1, 2])
def test_pairs_without_weights_are_each_read_as_often_as_asked(two_pairs: Any, epochs: int) -> None:
    pairs, documents = two_pairs
    data = TokenData(pairs, sequence_length=16, global_batch=1, seed=3, epochs=epochs)
    rows = all_rows(data)
    expected = [naive_samples(made, 16, epochs, 3, number) for number, made in enumerate(documents)]
    assert [row for row in rows if row[0] < 100_000] == expected[0]
    assert [row for row in rows if row[0] >= 100_000] == expected[1]


@pytest.mark.usefixtures("compiled")
def test_weights_are_shares_of_the_sequences(two_pairs: Any) -> None:
    pairs = [(prefix, weight) for (prefix, _), weight in zip(two_pairs[0], (3.0, 1.0), strict=True)]
    data = TokenData(pairs, sequence_length=16, global_batch=4)
    for step in range(100):
        assert abs(int((data.batch(step).tokens[:, 0] >= 100_000).sum()) - 1) <= 1
    assert (data.rows(0, 400).tokens[:, 0] >= 100_000).sum() == 100


@pytest.mark.usefixtures("compiled")
def test_the_data_ends_before_a_weighted_pair_is_read_more_often_than_asked(two_pairs: Any) -> None:
    (long, _), (short, _) = two_pairs[0]
    data = TokenData([(long, 1.0), (short, 1.0)], sequence_length=16, global_batch=1, epochs=2)
    allowed = (2 * len(flat(two_pairs[1][1])) - 1) // 16
    shorts = [row for row in all_rows(data) if row[0] >= 100_000]
    assert len(shorts) == allowed
    assert data.num_samples is not None
    assert abs(data.num_samples - 2 * allowed) <= 2


@pytest.mark.usefixtures("compiled")
def test_passes_tell_how_far_every_pair_has_been_read(two_pairs: Any) -> None:
    data = TokenData(two_pairs[0], sequence_length=16, global_batch=4, epochs=2)
    assert data.num_steps is not None
    assert data.passes(0) == {prefix: 0 for prefix, _ in two_pairs[0]}
    assert data.passes(data.num_steps) == pytest.approx({prefix: 2 for prefix, _ in two_pairs[0]}, rel=0.05)
    assert data.tokens == sum(len(flat(documents)) for documents in two_pairs[1])


def test_the_identity_names_all_that_the_order_depends_on(two_pairs: Any) -> None:
    def identity(**changed: Any) -> dict[str, Any]:
        options = {"pairs": two_pairs[0], "sequence_length": 16, "global_batch": 4, "seed": 3, **changed}
        return TokenData(options.pop("pairs"), **options).identity()

    changes: list[dict[str, Any]] = [
        {"sequence_length": 17},
        {"global_batch": 2},
        {"seed": 4},
        {"part": (0.0, 0.5)},
        {"pairs": two_pairs[0][:1]},
        {"pairs": two_pairs[0][::-1]},
        {"pairs": [(prefix, 1.0) for prefix, _ in two_pairs[0]]},
    ]
    assert identity() == identity(separate_documents=True, vocab_size=200_000)
    assert all(identity(**change) != identity() for change in changes)


# ---------------------------------------------------------------------------- parts


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
def test_parts_share_no_document_and_leave_none_out(tmp_path: Path, share: float) -> None:
    documents = numbered(lengths_of(300))
    write_pair(tmp_path / "pair", documents)
    seen: list[set[int]] = []
    for part in ((0.0, 1 - share), (1 - share, 1.0)):
        data = TokenData([(str(tmp_path / "pair"), None)], sequence_length=8, global_batch=1, epochs=1, part=part)
        rows = all_rows(data)
        assert rows == naive_samples(documents, 8, 1, 0, part=part_of(300, *part))
        seen.append({token for row in rows for token in row})
        assert data.tokens - len(seen[-1]) < 8
    assert not seen[0] & seen[1]


@given(st.integers(1, 10**6), st.floats(0.001, 0.999))
def test_parts_that_touch_cover_all_documents(documents: int, border: float) -> None:
    (first, count), (second, rest) = part_of(documents, 0.0, border), part_of(documents, border, 1.0)
    assert (first, first + count, second + rest) == (0, second, documents)


# ---------------------------------------------------------------------------- documents and masks


def test_positions_begin_anew_at_every_document_and_borders_are_not_learnt(tmp_path: Path) -> None:
    documents = numbered([[3], [], [1], [4, 2], [20], [2]])
    document_of = {token: number for number, document in enumerate(documents) for token in flat([document])}
    write_pair(tmp_path / "pair", documents)
    pair = [(str(tmp_path / "pair"), None)]
    data = TokenData(pair, sequence_length=6, global_batch=1, epochs=3, separate_documents=True)
    borders = 0
    for step in range(data.num_steps or 0):
        batch = data.batch(step)
        assert batch.positions is not None
        assert batch.loss_mask is not None
        row = batch.tokens[0].tolist()
        position, positions, learnt = 0, [0], []
        for token, following in itertools.pairwise(row):
            # Numbered tokens: what does not follow begins another document, be it the same one in the next epoch.
            same = following == token + 1 and document_of[following] == document_of[token]
            position = position + 1 if same else 0
            positions.append(position)
            learnt.append(same)
        assert batch.positions[0].tolist() == positions[:-1]
        assert batch.loss_mask[0].tolist() == learnt
        borders += learnt.count(False)
    assert borders > 0


def test_documents_that_are_not_separated_need_neither_positions_nor_mask(two_pairs: Any) -> None:
    batch = TokenData(two_pairs[0], sequence_length=16, global_batch=4).batch(0)
    assert batch.loss_mask is None
    assert batch.positions is None
    assert batch.tokens.dtype == np.int64


def write_mask(prefix: Path, documents: Documents, learnt: set[int]) -> None:
    mask = [[[int(token in learnt) for token in sequence] for sequence in document] for document in documents]
    write_pair(Path(f"{prefix}_mask"), mask, "uint8")


@pytest.mark.parametrize("separate", [False, True])
def test_the_mask_of_the_pair_says_which_targets_are_learnt(tmp_path: Path, separate: bool) -> None:
    documents = numbered(lengths_of(60))
    learnt = {token for token in flat(documents) if token % 5 < 2}
    write_pair(tmp_path / "pair", documents, "uint16")
    write_mask(tmp_path / "pair", documents, learnt)
    pair = [(str(tmp_path / "pair"), None)]
    data = TokenData(pair, sequence_length=16, global_batch=8, epochs=2, loss_mask=True, separate_documents=separate)
    for step in range(data.num_steps or 0):
        batch = data.batch(step)
        assert batch.loss_mask is not None
        expected = np.isin(batch.tokens[:, 1:], list(learnt))
        if separate:
            starts = [flat([document])[0] for document in documents if flat([document])]
            expected &= ~np.isin(batch.tokens[:, 1:], starts)
        assert batch.loss_mask.tolist() == expected.tolist()
    plain = TokenData(pair, sequence_length=16, global_batch=8).batch(0)
    assert plain.loss_mask is None
    assert plain.tokens.tolist() == data.batch(0).tokens.tolist()


def test_a_mask_that_is_missing_or_of_another_pair_is_refused(tmp_path: Path) -> None:
    documents = numbered(lengths_of(20))
    write_pair(tmp_path / "pair", documents)
    with pytest.raises(InputError, match="pair_mask"):
        TokenData([(str(tmp_path / "pair"), None)], sequence_length=4, global_batch=1, loss_mask=True)
    write_mask(tmp_path / "pair", documents[:-1], set())
    with pytest.raises(InputError, match="it is of another pair"):
        TokenData([(str(tmp_path / "pair"), None)], sequence_length=4, global_batch=1, loss_mask=True)


# ---------------------------------------------------------------------------- provenance


def write_origins(prefix: Path, count: int, group: int = 7) -> None:
    rows = {
        "document": list(range(count)),
        "shard": [f"{prefix.name}-{number // 10}.parquet" for number in range(count)],
        "row": [number % 10 for number in range(count)],
        "id": [f"{prefix.name}#{number}" for number in range(count)],
        "source": [None] * count,
    }
    pq.write_table(pa.table(rows), f"{prefix}.parquet", row_group_size=group)


def test_provenance_names_the_document_of_every_token(tmp_path: Path) -> None:
    documents = [numbered(lengths_of(50)), numbered(lengths_of(30, seed=2), first=10_000)]
    for name, made in zip("ab", documents, strict=True):
        write_pair(tmp_path / name, made)
        write_origins(tmp_path / name, len(made))
    document_of = {
        token: f"{name}#{number}"
        for name, made in zip("ab", documents, strict=True)
        for number, document in enumerate(made)
        for token in flat([document])
    }
    pairs = [(str(tmp_path / name), None) for name in "ab"]
    data = TokenData(pairs, sequence_length=9, global_batch=6)
    for step in (0, 1, 100):
        for cut in ({}, {"rank": 1, "world": 3}):
            tokens = data.batch(step, **cut).tokens
            found: list[list[Any]] = [[None] * 10 for _ in range(len(tokens))]
            for origin in data.provenance(step, **cut):
                assert origin.origin is not None
                assert origin.sample == step * 6 + cut.get("rank", 0) * 2 + origin.row
                assert origin.origin["id"].endswith(f"#{origin.document}")
                assert Path(origin.pair).name == origin.origin["id"][0]
                for at in range(origin.begin, origin.begin + origin.tokens):
                    assert found[origin.row][at] is None
                    found[origin.row][at] = origin.origin["id"]
            assert found == [[document_of[token] for token in row] for row in tokens.tolist()]


def test_provenance_without_its_file_still_numbers_the_documents(tmp_path: Path) -> None:
    write_pair(tmp_path / "pair", numbered([[5]]))
    data = TokenData([(str(tmp_path / "pair"), None)], sequence_length=4, global_batch=1)
    assert data.provenance(0) == [Origin(0, 0, 0, 5, str(tmp_path / "pair"), 0, None)]


def test_provenance_of_another_pair_is_refused(tmp_path: Path) -> None:
    write_pair(tmp_path / "pair", numbered([[5], [5], [5]]))
    write_origins(tmp_path / "pair", 1)
    data = TokenData([(str(tmp_path / "pair"), None)], sequence_length=14, global_batch=1)
    with pytest.raises(InputError, match="expected a row for document"):
        data.provenance(0)


# ---------------------------------------------------------------------------- what is refused


def refused(prefix: Path, **options: Any) -> str:
    with pytest.raises((InputError, ConfigError)) as error:
        TokenData([(str(prefix), None)], **{"sequence_length": 4, "global_batch": 1, **options})
    assert "\n" not in str(error.value)
    return str(error.value)


def test_ids_outside_the_vocabulary_are_refused_at_once(tmp_path: Path) -> None:
    write_pair(tmp_path / "pair", [[[1, 2, 3]], [[4, 99, 5, 6]]])
    assert "expected ids below 99, the vocabulary of the model, found 99" in refused(tmp_path / "pair", vocab_size=99)
    TokenData([(str(tmp_path / "pair"), None)], sequence_length=4, global_batch=1, vocab_size=100)
    write_pair(tmp_path / "pair", [[[1, 2, 3]], [[4, -1, 5, 6]]])
    assert "found -1" in refused(tmp_path / "pair", vocab_size=99)


def test_an_id_outside_the_vocabulary_that_was_not_looked_at_is_refused_when_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taojin.train.data._PROBED_TOKENS", 2)
    monkeypatch.setattr("taojin.train.data._PROBED_BLOCKS", 2)
    documents = [[[number] * 20] for number in range(50)]
    documents[31][0][7] = 77
    write_pair(tmp_path / "pair", documents)
    data = TokenData([(str(tmp_path / "pair"), None)], sequence_length=9, global_batch=1, epochs=1, vocab_size=60)
    with pytest.raises(InputError, match=r"expected ids below 60.*found 77 in document 31:"):
        all_rows(data)


@pytest.mark.parametrize("documents", [[[[1, 2]], [[3, 4, 5]]], [[[5]], [], [[1, 2, 3], [4, 4]]]])
def test_a_document_without_its_end_is_refused(tmp_path: Path, documents: Documents) -> None:
    write_pair(tmp_path / "pair", documents)
    assert "expected every document to end with the end-of-document token 5" in refused(
        tmp_path / "pair", ends={str(tmp_path / "pair"): [5]}
    )


def test_documents_with_their_end_are_accepted(tmp_path: Path) -> None:
    write_pair(tmp_path / "pair", [[], [[1, 2], [3, 5]], [], [[5]], [[4, 4, 5]], []])
    for ends in ([5], [9, 5]):
        TokenData(
            [(str(tmp_path / "pair"), None)],
            sequence_length=4,
            global_batch=1,
            ends={str(tmp_path / "pair"): ends, "another": [7]},
        )


def test_pairs_of_the_same_size_are_told_apart_and_moved_ones_are_not(tmp_path: Path) -> None:
    """Where a pair lies is not what it is."""
    written = {"a": [1, 2, 3, 4, 5], "moved": [1, 2, 3, 4, 5], "b": [1, 2, 3, 4, 6]}
    for name, tokens in written.items():
        write_pair(tmp_path / name, [[tokens]])
        write_pair(tmp_path / f"{name}_mask", [[[1, 1, 1, 1, int(name == "moved")]]], "uint8")

    def identity(name: str, *, loss_mask: bool = False) -> dict[str, Any]:
        pairs = [(str(tmp_path / name), None)]
        return TokenData(pairs, sequence_length=4, global_batch=1, loss_mask=loss_mask).identity()

    assert identity("a") == identity("moved") != identity("b")
    assert identity("a", loss_mask=True) != identity("moved", loss_mask=True)


def test_a_sequence_longer_than_the_data_is_refused(tmp_path: Path) -> None:
    write_pair(tmp_path / "pair", [[[1, 2, 3]], [[4]]])
    assert "expected more tokens than a sequence of 4, found 4: " in refused(tmp_path / "pair")
    found = refused(tmp_path / "pair", sequence_length=3, part=(0.0, 0.5))
    assert "in this part" in found


@pytest.mark.timeout(60)
def test_a_part_without_a_document_is_refused(tmp_path: Path) -> None:
    """A kernel that looked for its documents would look for ever."""
    write_pair(tmp_path / "pair", [[[1, 2, 3, 4, 5]]] * 3)
    assert "found none: raise validation_share" in refused(tmp_path / "pair", part=(0.999, 1.0))


def test_data_that_does_not_fill_a_batch_is_refused(tmp_path: Path) -> None:
    write_pair(tmp_path / "pair", numbered([[41]]))
    assert "10 sequences of 4 tokens in 1 epochs" in refused(tmp_path / "pair", global_batch=11, epochs=1)
    assert "0 sequences" in refused(tmp_path / "pair", epochs=0.05)


def test_empty_and_missing_pairs_are_refused(tmp_path: Path) -> None:
    write_pair(tmp_path / "pair", [[], [[]]])
    assert "expected tokens, found a pair of 2 empty documents" in refused(tmp_path / "pair")
    assert "no such file" in refused(tmp_path / "nothing")
    assert "give the name without .bin" in refused(tmp_path / "pair.bin")


def test_pairs_in_an_object_store_are_refused() -> None:
    with pytest.raises(InputError, match="expected a local pair"):
        TokenData([("s3://bucket/pair", None)], sequence_length=4, global_batch=1)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"sequence_length": 0}, "sequence_length: expected 1 or more"),
        ({"global_batch": 0}, "global_batch: expected 1 or more"),
        ({"epochs": 0}, "epochs: expected a number above 0"),
        ({"epochs": float("inf")}, "epochs: expected a number above 0"),
        ({"part": (0.5, 0.5)}, "part: expected two shares"),
    ],
)
def test_wrong_numbers_are_refused(tmp_path: Path, options: dict[str, Any], part: str) -> None:
    assert part in refused(tmp_path / "pair", **options)


@pytest.mark.parametrize(
    ("weights", "part"),
    [([], "found none"), ([1.0, None], "for every pair or for none"), ([0.0, 1.0], "above 0"), ([float("nan")], "nan")],
)
def test_wrong_weights_are_refused(weights: list[float | None], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        TokenData([("pair", weight) for weight in weights], sequence_length=4, global_batch=1)


@pytest.mark.parametrize("damage", ["negative", "beyond", "uneven", "disorder"])
def test_a_damaged_index_is_refused_and_nothing_outside_the_pair_is_read(tmp_path: Path, damage: str) -> None:
    pair = write_pair(tmp_path / "pair", numbered([[2], [3], [4], [5]]))
    path = tmp_path / "pair.idx"
    data = bytearray(path.read_bytes())
    pointers = 34 + 4 * 4
    wrong = {"negative": (1, -4), "beyond": (1, 4_000), "uneven": (2, 21), "disorder": (2, 4)}[damage]
    data[pointers + 8 * wrong[0] : pointers + 8 * wrong[0] + 8] = wrong[1].to_bytes(8, "little", signed=True)
    path.write_bytes(data)
    assert pair.num_documents == 4
    assert "does not lie within the pair" in refused(tmp_path / "pair")


def test_damaged_document_indices_are_refused(tmp_path: Path) -> None:
    write_pair(tmp_path / "pair", numbered([[2], [3], [4], [5]]))
    path = tmp_path / "pair.idx"
    for wrong in (-1, 5, 2**40):
        data = bytearray(path.read_bytes())
        data[-24:-16] = wrong.to_bytes(8, "little", signed=True)
        path.write_bytes(data)
        assert "does not lie within the pair" in refused(tmp_path / "pair")


# ---------------------------------------------------------------------------- megatron-core


@pytest.fixture
def core(compiled: None) -> SimpleNamespace:
    reason = "megatron-core draws samples from the same pairs: pip install megatron-core torch packaging"
    datasets = "megatron.core.datasets"
    return SimpleNamespace(
        torch=pytest.importorskip("torch", reason=reason),
        gpt=pytest.importorskip(f"{datasets}.gpt_dataset", reason=reason),
        builder=pytest.importorskip(f"{datasets}.blended_megatron_dataset_builder", reason=reason),
    )


def megatron_rows(core: SimpleNamespace, blend: Any, length: int, samples: int | None, cache: Path) -> list[list[int]]:
    """Samples of megatron-core: its inputs and the last label."""
    tokenizer = SimpleNamespace(vocab_size=10**6, eod=0, unique_identifiers={"class": "a test's"})
    config = core.gpt.GPTDatasetConfig(
        random_seed=7,
        sequence_length=length,
        tokenizer=tokenizer,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        blend=blend,
        split="1,0,0",
        path_to_cache=str(cache),
    )
    sizes = [samples, 0, 0]
    train, *_ = core.builder.BlendedMegatronDatasetBuilder(core.gpt.GPTDataset, sizes, lambda: True, config).build()
    return [[*sample["tokens"].tolist(), int(sample["labels"][-1])] for sample in train]


@pytest.mark.parametrize("epochs", [1, 2, 3])
@pytest.mark.parametrize("length", [7, 16])
def test_samples_and_their_tokens_are_as_many_as_megatrons(
    core: SimpleNamespace, tmp_path: Path, epochs: int, length: int
) -> None:
    documents = [document for document in numbered(lengths_of(80), first=1) if flat([document])]
    tokens = flat(documents)
    write_pair(tmp_path / "pair", documents)
    pair = str(tmp_path / "pair")
    ours = all_rows(TokenData([(pair, None)], sequence_length=length, global_batch=1, epochs=epochs))
    # Asked for the last sample of an epoch, it makes so many epochs and all their samples.
    wanted = None if epochs == 1 else len(ours)
    theirs = megatron_rows(core, ([pair], None), length, wanted, tmp_path)
    assert len(ours) == len(theirs) == (epochs * len(tokens) - 1) // length
    for rows in (ours, theirs):
        targets = Counter(token for row in rows for token in row[1:])
        assert max(targets.values()) == epochs
        assert sum(epochs - targets[token] for token in tokens) == epochs * len(tokens) - len(rows) * length
        ends = {flat([document])[-1] for document in documents}
        assert all(b == a + 1 or a in ends for row in rows for a, b in itertools.pairwise(row))


def test_a_blend_has_megatrons_shares(core: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It asks for its rank without looking whether there are others.
    monkeypatch.setattr(core.torch.distributed, "get_rank", lambda: 0)
    firsts = (1, 100_001, 200_001)
    for number, first in enumerate(firsts):
        write_pair(tmp_path / f"pair-{number}", [d for d in numbered(lengths_of(150, number), first) if flat([d])])
    prefixes, weights = [str(tmp_path / f"pair-{number}") for number in range(3)], [0.5, 0.3, 0.2]
    data = TokenData(list(zip(prefixes, weights, strict=True)), sequence_length=16, global_batch=1)
    ours = data.rows(0, 200).tokens[:, 0].tolist()
    theirs = [row[0] for row in megatron_rows(core, (prefixes, weights), 16, 200, tmp_path)]
    for samples in range(1, 201):
        counts = [np.bincount([token // 100_000 for token in rows[:samples]], minlength=3) for rows in (ours, theirs)]
        assert np.abs(counts[0] - counts[1]).max() <= 2


@pytest.mark.usefixtures("compiled")
@pytest.mark.skipif(not ORACLE.with_suffix(".idx").exists(), reason=f"no pair of Megatron-LM's tool at {ORACLE}")
def test_a_pair_of_megatrons_own_tool_is_read_whole() -> None:
    data = TokenData(
        [(str(ORACLE), None)],
        sequence_length=512,
        global_batch=8,
        epochs=1,
        vocab_size=129_283,
        ends={str(ORACLE): [1]},
    )
    counted = np.zeros(129_283, np.int64)
    assert data.num_steps is not None
    for step in range(data.num_steps):
        counted += np.bincount(data.batch(step).tokens[:, 1:].reshape(-1), minlength=len(counted))
    whole = np.bincount(np.fromfile(ORACLE.with_suffix(".bin"), np.int32), minlength=len(counted))
    assert (counted <= whole).all()
    assert whole.sum() - counted.sum() < 8 * 512 + 512 + 1
