import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taojin.core.errors import ConfigError, InputError
from taojin.core.fold import FoldTable
from taojin.quality.classifier import (
    Classifier,
    classifier_part,
    load_classifier,
    save_classifier,
    score_array,
)
from taojin.quality.fit import MIN_DOCUMENTS, FitConfig, Fitted, auc, average_precision, fit
from tests import naive
from tests.jobs import SHARED
from tests.test_text import any_bytes, texts

SMALL = FitConfig(bits=14)
DEV = SHARED / "corpus" / "dev"


def arrays(documents: Sequence[str | bytes | None], size: int = 64) -> list[pa.LargeBinaryArray]:
    """The documents in Arrow arrays of `size`."""
    encoded = [text.encode() if isinstance(text, str) else text for text in documents]
    return [pa.array(encoded[i : i + size], pa.large_binary()) for i in range(0, len(encoded), size)]


def trained(good: Sequence[str | bytes | None], bad: Sequence[str | bytes | None], config: FitConfig = SMALL) -> Fitted:
    return fit(arrays(good), arrays(bad), config)


def scores(classifier: Classifier, documents: Sequence[str | bytes | None]) -> list[float]:
    return [score for batch in arrays(documents, 1000) for score in score_array(classifier, batch).tolist()]


def pages(topic: str, number: int, seed: int = 0, length: int = 80) -> list[str]:
    """Texts of random sequences of a topic's words."""
    rng = random.Random(f"{topic}{seed}")
    words = [topic + chr(0x4E00 + 37 * i + seed) for i in range(60)] + ["的", "是", "在", "了", "，"] * 6
    return ["".join(rng.choice(words) for _ in range(rng.randrange(length // 2, length))) for _ in range(number)]


def a_classifier(bits: int = 10, max_symbols: int = 50, seed: int = 0) -> Classifier:
    weights = np.random.default_rng(seed).normal(size=1 << bits).astype(np.float16).astype(np.float32)
    return Classifier(weights, 0.25, bits, max_symbols, {"auc": 0.9})


def naive_score(classifier: Classifier, data: bytes, table: FoldTable) -> float:
    """The docstring of the module, in Python's integers and sets."""
    folded = naive.fold(data, table.table, table.expansions)
    symbols = [naive.mix(symbol) >> 32 for symbol in folded.symbols[: classifier.max_symbols]]
    if not symbols:
        return float("nan")
    multipliers = {
        1: [0x6A09E667F3BCC909],
        2: [0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B],
        3: [0xA54FF53A5F1D36F1, 0x510E527FADE682D1, 0x9B05688C2B3E6C1F],
    }
    buckets = {
        (sum(m * s for m, s in zip(multipliers[n], symbols[i : i + n], strict=True)) & naive.U64)
        >> (64 - classifier.bits)
        for n in (1, 2, 3)
        for i in range(len(symbols) - n + 1)
    }
    total = sum(float(classifier.weights[bucket]) for bucket in buckets) / len(buckets) ** 0.5 + classifier.bias
    return float(1 / (1 + np.exp(-total)))


# ---------------------------------------------------------------------------- measures

few_scores = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=30).filter(
    lambda rows: len({good for _, good in rows}) == 2
)


@given(few_scores)
def test_the_auc_is_the_share_of_pairs_in_the_right_order(rows: list[tuple[int, bool]]) -> None:
    good = [score for score, is_good in rows if is_good]
    bad = [score for score, is_good in rows if not is_good]
    right = sum((g > b) + (g == b) / 2 for g in good for b in bad) / len(good) / len(bad)
    assert auc(np.array([s for s, _ in rows], float), np.array([g for _, g in rows], float)) == pytest.approx(right)


@given(few_scores)
def test_the_average_precision_is_the_mean_precision_at_the_good_documents(rows: list[tuple[int, bool]]) -> None:
    precisions = []
    for score, is_good in rows:
        if is_good:
            taken = [other_good for other, other_good in rows if other >= score]
            precisions.append(sum(taken) / len(taken))
    found = average_precision(np.array([s for s, _ in rows], float), np.array([g for _, g in rows], float))
    assert found == pytest.approx(sum(precisions) / len(precisions))


# ---------------------------------------------------------------------------- scores


@given(st.lists(st.one_of(texts.map(str.encode), any_bytes), max_size=5))
def test_a_score_is_the_naive_one(fold_table: FoldTable, batch: list[bytes]) -> None:
    classifier = a_classifier(max_symbols=10)
    expected = [naive_score(classifier, data, fold_table) for data in batch]
    assert scores(classifier, batch) == pytest.approx(expected, rel=1e-6, nan_ok=True)


@given(st.lists(st.one_of(st.none(), texts.map(str.encode), any_bytes), max_size=8), st.integers(1, 4))
def test_a_score_does_not_depend_on_the_other_documents_of_an_array(batch: list[bytes | None], size: int) -> None:
    classifier = a_classifier()
    whole = scores(classifier, batch)
    cut = [score for part in arrays(batch, size) for score in score_array(classifier, part).tolist()]
    assert whole == pytest.approx(cut, rel=0, abs=0, nan_ok=True)
    if batch:
        sliced = score_array(classifier, arrays(batch, 1000)[0][1:]).tolist()
        assert whole[1:] == pytest.approx(sliced, rel=0, abs=0, nan_ok=True)


def test_there_is_no_score_where_there_is_nothing_to_judge() -> None:
    found = scores(a_classifier(), [None, "", "，。 \n", b"\xff", b"\xe4\xb8", "中"])
    assert np.isnan(found).tolist() == [True, True, True, True, True, False]
    assert score_array(a_classifier(), pa.array([], pa.large_string())).tolist() == []


def test_a_score_is_blind_to_script_width_case_and_punctuation() -> None:
    classifier = a_classifier()
    assert len(set(scores(classifier, ["汉语 test", "漢語，TEST", "漢 語ＴＥＳＴ！"]))) == 1


def test_what_lies_behind_the_first_symbols_does_not_count() -> None:
    classifier = a_classifier(max_symbols=20)
    start = "".join(chr(0x4E00 + i) for i in range(20))
    assert len(set(scores(classifier, [start, start + "尾", start + "词 tail" * 1000]))) == 1
    assert len(set(scores(classifier, [start, start[:-1]]))) == 2


# ---------------------------------------------------------------------------- training


@pytest.mark.usefixtures("compiled")
def test_it_learns_topics_and_says_so_about_documents_it_has_not_seen() -> None:
    fitted = trained(pages("甲", 300), pages("乙", 300))
    report = fitted.classifier.report
    assert fitted.warnings == ()
    assert report["auc"] > 0.99
    assert report["average_precision"] > 0.99
    assert report["good"] == {"documents": 300, "without_text": 0, "used": 300}
    assert report["trained"] + report["validated"] + report["held_out"] == 600
    assert 30 < report["held_out"] < 90
    good, bad = scores(fitted.classifier, pages("甲", 350)[300:]), scores(fitted.classifier, pages("乙", 350)[300:])
    assert min(good) > 0.5 > max(bad)


@pytest.mark.usefixtures("compiled")
def test_it_learns_the_order_of_words() -> None:
    """Equal words on both sides; good ones come in pairs."""
    rng = random.Random(3)
    pairs = [(chr(0x5000 + i), chr(0x6000 + i)) for i in range(50)]
    good = ["".join(a + b for a, b in rng.choices(pairs, k=40)) for _ in range(400)]
    bad = ["".join(rng.sample(text, len(text))) for text in good]
    assert trained(good, bad).classifier.report["auc"] > 0.99


@pytest.mark.usefixtures("compiled")
def test_a_score_is_a_probability_whatever_the_number_of_documents_of_each_class() -> None:
    """A page of topic 甲 is good four times out of five, one of 乙 once out of five; there are three good ones to a
    bad one in training. At equal frequencies the scores should be near 0.8 and 0.2."""
    good = pages("甲", 2400) + pages("乙", 600)
    bad = pages("乙", 1400)[600:] + pages("甲", 2600)[-200:]
    fitted = trained(good, bad)
    assert fitted.classifier.report["auc"] == pytest.approx(0.8, abs=0.06)
    assert np.mean(scores(fitted.classifier, pages("甲", 200, 0, 81))) == pytest.approx(0.8, abs=0.1)
    assert np.mean(scores(fitted.classifier, pages("乙", 200, 0, 81))) == pytest.approx(0.2, abs=0.12)


@pytest.mark.usefixtures("compiled")
def test_equal_documents_give_equal_files_whatever_their_order_and_cut(tmp_path: Path) -> None:
    good, bad = pages("甲", 150), pages("乙", 150)
    shuffled = random.Random(1).sample(good, len(good))
    save_classifier(fit(arrays(good), arrays(bad), SMALL).classifier, tmp_path / "a")
    save_classifier(fit(arrays(shuffled, 7), arrays(bad[::-1], 1), SMALL).classifier, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.usefixtures("compiled")
def test_another_seed_is_another_training() -> None:
    good, bad = pages("甲", 150), pages("乙", 150)
    parts = [classifier_part(trained(good, bad, FitConfig(bits=14, seed=seed)).classifier) for seed in (0, 0, 1)]
    assert parts[0] == parts[1] != parts[2]


@pytest.mark.usefixtures("compiled")
def test_a_sample_is_drawn_by_hash_when_there_are_more_documents_than_asked_for() -> None:
    good, bad = pages("甲", 900), pages("乙", 150)
    config = FitConfig(bits=14, max_documents=200)
    one = fit(arrays(good, 50), arrays(bad), config).classifier
    other = fit(arrays(good[::-1], 333), arrays(bad), config).classifier
    assert one.report["good"] == {"documents": 900, "without_text": 0, "used": 200}
    assert classifier_part(one) == classifier_part(other)
    assert one.report["auc"] > 0.95


@pytest.mark.usefixtures("compiled")
def test_documents_that_repeat_are_used_once() -> None:
    good, bad = pages("甲", 120), pages("乙", 120)
    again = trained(good * 3 + [text.replace("，", " ") for text in good], bad).classifier
    assert again.report["good"] == {"documents": 480, "without_text": 0, "used": 120}
    assert classifier_part(again) == classifier_part(trained(good, bad).classifier)


@pytest.mark.usefixtures("compiled")
def test_documents_on_both_sides_are_counted_in_a_warning() -> None:
    fitted = trained(pages("甲", 200), pages("乙", 200) + pages("甲", 30))
    [warning] = fitted.warnings
    assert warning.startswith("30 documents are in --good and in --bad")
    assert fitted.classifier.report["shared"] == 30


@pytest.mark.usefixtures("compiled")
def test_the_same_documents_on_both_sides_teach_nothing() -> None:
    """Equal documents lie in the same part, so the held-out AUC is one half to the last bit."""
    fitted = trained(pages("甲", 200), pages("甲", 200))
    assert fitted.classifier.report["auc"] == 0.5
    assert fitted.warnings[0].startswith("200 documents")
    assert all(0 <= score <= 1 for score in scores(fitted.classifier, pages("甲", 10)))


@pytest.mark.parametrize("side", ["good", "bad"])
def test_too_few_documents_are_refused_with_the_number_that_is_needed(side: str) -> None:
    few = [*pages("甲", MIN_DOCUMENTS - 1), pages("甲", 1)[0], None, "", "，", b"\xff"]
    many = pages("乙", MIN_DOCUMENTS)
    with pytest.raises(InputError) as refusal:
        trained(few, many) if side == "good" else trained(many, few)
    message = str(refusal.value)
    assert message.startswith(f"--{side}: expected at least 100 distinct documents with text, found 99 (104 read, 4 ")
    assert "\n" not in message


def test_no_documents_at_all_are_refused() -> None:
    with pytest.raises(InputError, match=r"--good: expected at least 100 .* found 0"):
        trained([], [])


def test_a_part_with_one_class_alone_is_refused() -> None:
    """A seed that holds out nothing of a class is not to be found in reasonable time, so the share is made tiny."""
    config = FitConfig.model_construct(**{**SMALL.model_dump(), "held_out": 0.0001})
    with pytest.raises(InputError, match="AUC is undefined"):
        trained(pages("甲", 100), pages("乙", 100), config)


# ---------------------------------------------------------------------------- files


def test_a_classifier_scores_alike_after_saving_and_loading(tmp_path: Path) -> None:
    classifier = a_classifier(bits=20)
    save_classifier(classifier, tmp_path / "model.npz")
    loaded = load_classifier(tmp_path / "model.npz")
    assert scores(loaded, ["文字 text"]) == scores(classifier, ["文字 text"])
    assert classifier_part(loaded) == classifier_part(classifier)
    assert loaded.report == classifier.report
    assert (tmp_path / "model.npz").stat().st_size <= 4_000_000


def stored(path: Path, change: dict[str, Any], **arrays: Any) -> Path:
    """A classifier's file with parts of its description or arrays replaced."""
    save_classifier(a_classifier(), path)
    with np.load(path) as archive:
        parts = dict(archive)
    description = orjson.loads(parts["description"].tobytes()) | change
    parts["description"] = np.frombuffer(orjson.dumps(description), np.uint8)
    np.savez(path, **(parts | arrays))
    return path


@pytest.mark.parametrize(
    ("change", "arrays", "message"),
    [
        ({"format": "something"}, {}, "found another .npz file"),
        ({"version": 2}, {}, "expected classifier format 1 .* found format 2"),
        ({"fold": 99}, {}, "with fold table 99; run `taojin fit` again"),
        ({"max_symbols": 0}, {}, "run `taojin fit` again"),
        ({"max_symbols": "many"}, {}, "damaged file"),
        ({}, {"weights": np.zeros(1000, np.float16)}, r"shape \(1000,\)"),
        ({}, {"weights": np.zeros((2, 1024), np.float16)}, "shape"),
        ({}, {"weights": np.full(1024, np.nan, np.float16)}, "not finite"),
        ({}, {"weights": np.array("x")}, "damaged file"),
        ({}, {"bias": np.zeros(2)}, "damaged file"),
    ],
)
def test_a_file_of_another_kind_is_refused_in_one_line(
    tmp_path: Path, change: dict[str, Any], arrays: dict[str, Any], message: str
) -> None:
    path = stored(tmp_path / "model.npz", change, **arrays)
    with pytest.raises(ConfigError, match=message) as refusal:
        load_classifier(path)
    assert "\n" not in str(refusal.value)
    assert str(refusal.value).startswith(f"{path}: expected")


def other_files(folder: Path) -> Iterable[Path]:
    """Files that are no classifier; one that is missing, and a folder."""
    save_classifier(a_classifier(), folder / "model.npz")
    whole = (folder / "model.npz").read_bytes()
    for length in range(0, len(whole), 97):
        (folder / "cut.npz").write_bytes(whole[:length])
        yield folder / "cut.npz"
    (folder / "text.npz").write_text("not a model")
    np.save(folder / "array.npy", np.zeros(3))
    np.savez(folder / "other.npz", weights=np.zeros(1024))
    np.savez(folder / "pickle.npz", description=np.array([{}], object))
    for name in ("text.npz", "array.npy", "other.npz", "pickle.npz", "nowhere.npz", "."):
        yield folder / name


def test_a_file_that_is_no_classifier_or_is_cut_off_is_refused_in_one_line(tmp_path: Path) -> None:
    for path in other_files(tmp_path):
        with pytest.raises(ConfigError) as refusal:
            load_classifier(path)
        assert "\n" not in str(refusal.value)
        assert str(path) in str(refusal.value)


def test_a_damaged_byte_is_noticed_or_does_not_matter(tmp_path: Path) -> None:
    classifier = a_classifier()
    path = tmp_path / "model.npz"
    save_classifier(classifier, path)
    whole = path.read_bytes()
    rng = random.Random(5)
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            loaded = load_classifier(path)
        except ConfigError:
            continue
        assert classifier_part(loaded) == classifier_part(classifier)


# ---------------------------------------------------------------------------- real text


@pytest.mark.usefixtures("compiled")
def test_real_encyclopedia_and_news_are_told_from_broken_and_technical_text() -> None:
    if not DEV.is_dir():
        pytest.skip(f"no real texts at {DEV}")
    rows = pq.read_table(sorted(DEV.glob("*.parquet"))[2:6], columns=["text", "domain", "lang"]).to_pylist()
    chinese = [row for row in rows if row["lang"] in ("zh", "zh-hant")]
    fluent = [row["text"] for row in chinese if row["domain"] in ("encyclopedia", "news")]
    technical = [row["text"] for row in chinese if row["domain"] == "docs"]
    rng = random.Random(0)
    broken = []
    for text in fluent[1::2]:
        pieces = [text[i : i + 6] for i in range(0, len(text), 6)]
        broken.append("".join(rng.sample(pieces, len(pieces))))
    assert trained(fluent, technical, FitConfig()).classifier.report["auc"] > 0.99
    assert trained(fluent[::2], broken, FitConfig()).classifier.report["auc"] > 0.6
