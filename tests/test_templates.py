"""End to end through `run_dedup`, without Ray: records of one template, short texts, and variants of one text."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from taojin.core.fold import load_fold_table
from taojin.core.text import SYMBOLS_PER_BYTE, scratch_for
from taojin.dedup.config import DedupConfig
from taojin.dedup.shingles import shingle_sets
from taojin.pipeline import Result, run_dedup
from tests import naive

pytestmark = pytest.mark.usefixtures("compiled")

LARGE = os.environ.get("TAOJIN_LARGE_TESTS") == "1"
THRESHOLD = 0.8


# ---------------------------------------------------------------------------- running


class Run(NamedTuple):
    """A finished run on `texts`, which lie in shards of equal size in that order."""

    texts: list[str]
    result: Result
    output: pa.Table
    ledger: pa.Table

    @property
    def kept(self) -> set[int]:
        return set(self.output["number"].to_pylist())

    @property
    def removed(self) -> dict[int, int]:
        """Number of each removed document that has a survivor → number of the survivor."""
        rows = zip(self.ledger["id"].to_pylist(), self.ledger["survivor_id"].to_pylist(), strict=True)
        return {number(name): number(survivor) for name, survivor in rows if survivor is not None}


def number(name: str) -> int:
    return int(name.removeprefix("record-"))


def run(folder: Path, texts: Sequence[str], num_shards: int = 1, **values: object) -> Run:
    per_shard = -(-len(texts) // num_shards)
    for shard in range(num_shards):
        numbers = range(shard * per_shard, min(len(texts), (shard + 1) * per_shard))
        table = pa.table(
            {"id": [f"record-{n}" for n in numbers], "number": list(numbers), "text": [texts[n] for n in numbers]}
        )
        (folder / "in").mkdir(parents=True, exist_ok=True)
        pq.write_table(table, folder / "in" / f"{shard:03}.parquet", row_group_size=20_000)
    fields = {"input": (str(folder / "in"),), "output": str(folder / "out"), "num_cpus": 0, "quiet": True}
    result = run_dedup(DedupConfig.model_validate({**fields, **values}))
    parts = sorted((folder / "out").glob("part-*.parquet"))
    ledger = sorted(Path(result.decide.uri, "ledger").glob("*.parquet"))
    return Run(
        list(texts),
        result,
        pa.concat_tables([pq.read_table(part) for part in parts]),
        pa.concat_tables([pq.read_table(part) for part in ledger]),
    )


def sets_of(texts: Sequence[str], ngram: int = 5) -> naive.ShingleSets:
    """`taojin`'s own shingle sets: tests/test_shingles.py holds them against the naive ones."""
    documents = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, documents)]).astype(np.int64)
    out = np.empty(SYMBOLS_PER_BYTE * int(offsets[-1]) + 1, np.uint64)
    starts = np.zeros(len(offsets), np.int64)
    data = np.frombuffer(b"".join(documents), np.uint8)
    shingle_sets(data, offsets, *load_fold_table(), ngram, scratch_for(max(map(len, documents))), out, starts)
    return naive.ShingleSets(starts, out[: starts[-1]])


def survival(texts: Sequence[str]) -> NDArray[np.int64]:
    """Documents in survivor order: longer first, then by position."""
    return np.lexsort((np.arange(len(texts)), -np.array([len(text) for text in texts])))


# ---------------------------------------------------------------------------- records of one template


class Template:
    """Records that share a template: `pieces` of fixed text, between two of them a field that is each record's own."""

    def __init__(self, seed: int, fixed: int, fields: int, field_length: tuple[int, int]) -> None:
        self.random = np.random.default_rng(seed)
        self.pieces = [self.han(fixed // (fields + 1)) for _ in range(fields + 1)]
        self.field_length = field_length

    def han(self, length: int) -> str:
        return "".join(map(chr, self.random.integers(0x4E00, 0x9FA5, length).tolist()))

    def record(self) -> str:
        shortest, longest = self.field_length
        fields = [self.han(int(self.random.integers(shortest, longest + 1))) for _ in self.pieces[1:]]
        return self.pieces[0] + "".join(f + p for f, p in zip(fields, self.pieces[1:], strict=True))

    def records(self, count: int) -> list[str]:
        return [self.record() for _ in range(count)]

    def edited(self, text: str, places: int = 1) -> str:
        """Two neighbouring characters replaced, in one place anywhere: J ≈ 0.9 to `text`; in two: J ≈ 0.83."""
        for _ in range(places):
            at = int(self.random.integers(6, len(text) - 8))
            text = text[:at] + self.han(2) + text[at + 2 :]
        return text


def unlike(seed: int) -> Template:
    """Pairwise J between 0.6 and 0.75."""
    return Template(seed, fixed=120, fields=2, field_length=(6, 9))


def alike(seed: int) -> Template:
    """Pairwise J of 0.8 and more."""
    return Template(seed, fixed=160, fields=1, field_length=(4, 9))


def similarities(sets: naive.ShingleSets, count: int = 3000) -> NDArray[np.float64]:
    """J of random pairs."""
    random = np.random.default_rng(0)
    pairs = random.integers(0, len(sets.starts) - 1, (count, 2))
    return np.array([naive.jaccard(sets[a], sets[b]) for a, b in pairs.tolist() if a != b])


def test_the_exact_greedy_runs_are_those_of_plain_sets() -> None:
    template = Template(1, fixed=120, fields=2, field_length=(6, 9))
    texts = template.records(60)
    texts += [template.edited(texts[i]) for i in range(0, 60, 3)]
    sets, order = sets_of(texts), survival(texts)
    kept: list[int] = []
    for d in order.tolist():
        if all(naive.jaccard(sets[d], sets[k]) < THRESHOLD for k in kept):
            kept.append(d)
    assert 60 <= len(kept) < 70
    assert np.flatnonzero(naive.exact_greedy(sets, order, THRESHOLD)).tolist() == sorted(kept)
    pairs = naive.exact_pairs_of_templates(sets, THRESHOLD)
    assert np.flatnonzero(naive.greedy_over_pairs(len(texts), pairs, order.tolist())).tolist() == sorted(kept)


@pytest.mark.parametrize("verify", ["sketch", "exact"])
def test_records_that_share_a_template_are_kept_as_an_exact_run_keeps_them(tmp_path: Path, verify: str) -> None:
    texts = unlike(2).records(3000)
    sets = sets_of(texts)
    jaccard = similarities(sets)
    assert jaccard.min() >= 0.6
    assert jaccard.max() <= 0.75
    exact = int(naive.exact_greedy(sets, survival(texts), THRESHOLD).sum())
    found = run(tmp_path, texts, verify=verify)
    assert found.result.counts["hot_buckets"] > 0
    assert abs(len(found.kept) - exact) <= 0.01 * exact
    assert found.result.warnings == []


@pytest.mark.parametrize("verify", ["sketch", "exact"])
@pytest.mark.parametrize(("places", "floor"), [(1, 0.99), (2, 0.97)])
def test_near_duplicates_inside_a_template_are_found(tmp_path: Path, places: int, floor: float, verify: str) -> None:
    """300 of 3,300 records are edits of another, with J ≈ 0.9 or J ≈ 0.83 to it. Of those pairs that have J ≥ 0.8
    all were found when this was written, with either verification."""
    template = unlike(3)
    texts = template.records(3000)
    texts += [template.edited(texts[i], places) for i in range(0, 3000, 10)]
    order = template.random.permutation(len(texts)).tolist()
    texts = [texts[i] for i in order]
    sets = sets_of(texts)
    where = {original: now for now, original in enumerate(order)}
    planted = [(where[i], where[3000 + i // 10]) for i in range(0, 3000, 10)]
    planted = [(a, b) for a, b in planted if naive.jaccard(sets[a], sets[b]) >= THRESHOLD]
    assert len(planted) > 200
    found = run(tmp_path, texts, verify=verify)
    share = np.mean([found.removed.get(a) == b or found.removed.get(b) == a for a, b in planted])
    assert share >= floor
    right = np.mean([naive.jaccard(sets[a], sets[b]) >= THRESHOLD for a, b in found.removed.items()])
    assert right >= (1.0 if verify == "exact" else 0.985)


@pytest.mark.skipif(not LARGE, reason="takes minutes; set TAOJIN_LARGE_TESTS=1")
def test_a_hundred_thousand_records_of_a_template_are_kept_and_cost_a_bounded_number_of_comparisons_each(
    tmp_path: Path,
) -> None:
    template = unlike(4)
    texts = template.records(100_000)
    texts += [template.edited(texts[i], 1 + i // 100 % 2) for i in range(0, 100_000, 100)]
    sets = sets_of(texts)
    pairs = naive.exact_pairs_of_templates(sets, THRESHOLD)
    exact = int(naive.greedy_over_pairs(len(texts), pairs, survival(texts).tolist()).sum())
    begin = time.perf_counter()
    found = run(tmp_path, texts)
    seconds = time.perf_counter() - begin
    planted = [(i, 100_000 + i // 100) for i in range(0, 100_000, 100)]
    planted = [(a, b) for a, b in planted if naive.jaccard(sets[a], sets[b]) >= THRESHOLD]
    share = np.mean([found.removed.get(a) == b or found.removed.get(b) == a for a, b in planted])
    counts = found.result.counts
    print(
        f"{len(texts):,} records: exact greedy keeps {exact:,}, taojin {len(found.kept):,}; recall of planted pairs "
        f"{share:.4f} of {len(planted)}; {seconds:.1f} s; {counts['compared']:,} comparisons, "
        f"{counts['hot_buckets']} hot buckets, the largest {counts['largest_bucket']:,}, "
        f"{counts['settled_by_shingles']:,} settled by shingles"
    )
    assert abs(len(found.kept) - exact) <= 0.01 * exact
    assert counts["compared"] <= 20 * 48 * len(texts)
    assert share >= 0.99


# ---------------------------------------------------------------------------- templates above the threshold


@pytest.fixture(scope="module")
def collapsed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """2,000 texts of their own, then as many records of J ≥ 0.8 to each other, in three shards."""
    template = alike(5)
    texts = [template.han(int(template.random.integers(20, 300))) for _ in range(2000)] + template.records(2000)
    return run(tmp_path_factory.mktemp("collapsed"), texts, num_shards=3)


def test_records_above_the_threshold_collapse(collapsed: Run) -> None:
    sets = sets_of(collapsed.texts)
    exact = int(naive.exact_greedy(sets, survival(collapsed.texts), THRESHOLD).sum())
    assert exact <= 2000 + 5
    assert abs(len(collapsed.kept) - exact) <= 20
    assert collapsed.result.counts["compared"] <= 20 * 48 * len(collapsed.texts)


def test_every_record_that_went_resembles_the_one_that_stays_in_its_place(collapsed: Run) -> None:
    sets = sets_of(collapsed.texts)
    assert all(survivor in collapsed.kept for survivor in collapsed.removed.values())
    right = np.mean([naive.jaccard(sets[a], sets[b]) >= THRESHOLD for a, b in collapsed.removed.items()])
    assert right >= 0.985


def test_the_warning_names_the_large_cluster_as_the_output_does(collapsed: Run) -> None:
    (warning,) = collapsed.result.warnings
    sizes = collapsed.output["cluster_size"].to_numpy()
    largest = collapsed.output.slice(int(sizes.argmax()), 1).to_pylist()[0]
    assert largest["cluster_size"] > 1000
    assert f"{largest['cluster_size']:,} documents" in warning
    assert largest["cluster"] > 1 << 40  # the position of a document in another shard than the first
    shard, row = divmod(largest["number"], 1334)
    assert f" {shard:03}.parquet#{row}" in warning


def test_a_cluster_is_as_large_as_what_went_in_its_favour_and_itself(collapsed: Run) -> None:
    survivors = list(collapsed.removed.values())
    for row in collapsed.output.filter(pa.array(collapsed.output["cluster_size"].to_numpy() > 1)).to_pylist():
        assert row["cluster_size"] == 1 + survivors.count(row["number"])
    assert sum(collapsed.output["cluster_size"].to_pylist()) == len(collapsed.texts)


# ---------------------------------------------------------------------------- order


def test_neither_the_order_of_rows_nor_the_cut_into_shards_changes_which_texts_stay(tmp_path: Path) -> None:
    template = unlike(6)
    texts = template.records(400)
    texts += [template.edited(text) + template.han(1) for text in texts[:100]]
    texts = sorted(set(texts), key=len)
    # Only lengths decide who survives here, so all must differ.
    texts = [text + "。" * n for n, text in enumerate(texts)]
    assert len({len(text) for text in texts}) == len(texts)
    outputs = []
    for number, num_shards in enumerate((1, 4)):
        shuffled = [texts[i] for i in np.random.default_rng(number).permutation(len(texts))]
        found = run(tmp_path / str(number), shuffled, num_shards=num_shards)
        outputs.append(sorted(found.output["text"].to_pylist()))
    assert len(outputs[0]) < len(texts)
    assert outputs[0] == outputs[1]


# ---------------------------------------------------------------------------- short, empty and invisible texts


@pytest.mark.parametrize("verify", ["sketch", "exact"])
def test_short_texts_are_merged_only_with_what_folds_to_the_same(
    tmp_path: Path, naive_fold: Callable[[bytes], naive.Folded], verify: str
) -> None:
    """Texts of 1 to 11 symbols, each with neighbours that differ in one character, and with variants of itself."""
    random = np.random.default_rng(7)
    alphabet = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏"
    texts: list[str] = []
    for length in range(1, 12):
        for _ in range(40):
            text = "".join(random.choice(list(alphabet), length).tolist())
            at = int(random.integers(0, length))
            texts += [text, text[:at] + str(random.choice(list(alphabet))) + text[at + 1 :], text[:-1], f"{text}。"]
    texts += ["", "", "，", "，", "。", "！！", " ", "\u3000", "——", "\u200b", "😀", "👍"]
    found = run(tmp_path, texts, verify=verify)
    symbols = [tuple(naive_fold(text.encode()).symbols) for text in texts]
    for name, survivor in found.removed.items():
        assert texts[name] == texts[survivor] or (symbols[name] == symbols[survivor] and symbols[name])
    expected = len({s for s in symbols if s}) + len({t for t, s in zip(texts, symbols, strict=True) if t and not s})
    assert len(found.kept) == expected
    removed = found.result.counts["removed"]
    assert removed["empty_text"] == texts.count("") > 2
    assert set(removed) == {"empty_text", "exact_duplicate", "folded_duplicate"}


def test_texts_of_punctuation_only_go_only_for_their_own_bytes(tmp_path: Path) -> None:
    texts = ["。" * n for n in range(1, 60)] + ["，。" * 30, "！" * 40, "\u3000" * 50, " \n" * 50, "。" * 40]
    found = run(tmp_path, texts)
    assert found.removed == {len(texts) - 1: 39}
    assert found.result.counts["removed"] == {"exact_duplicate": 1}


# ---------------------------------------------------------------------------- variants of one text

SIMPLIFIED = (
    "这篇文章介绍了计算机网络的发展历史，从早期的电话线路讲到今天的光纤传输。作者认为，Internet的出现改变了人们学习、"
    "工作与生活的方式；在1994年，中国正式接入国际互联网，门户网站与电子邮件开始进入普通家庭。"
)
VARIANTS = {
    "Traditional": (
        "這篇文章介紹了計算機網絡的發展歷史，從早期的電話線路講到今天的光纖傳輸。作者認爲，Internet的出現改變了人們學習、"
        "工作與生活的方式；在1994年，中國正式接入國際互聯網，門戶網站與電子郵件開始進入普通家庭。"
    ),
    "full width": SIMPLIFIED.replace("Internet", "Ｉｎｔｅｒｎｅｔ").replace("1994", "１９９４"),
    "upper case": SIMPLIFIED.upper(),
    "lower case": SIMPLIFIED.lower(),
    "other punctuation": SIMPLIFIED.translate(str.maketrans("，。；、", ",.; ")),
    "line ends": SIMPLIFIED.replace("，", "，\r\n"),
    "spaces": " \u3000".join(SIMPLIFIED.split("，")),
    "zero width": "\u200b".join(SIMPLIFIED),
    "byte order mark": f"\ufeff{SIMPLIFIED}\n",
}
SHORT = "数据清洗第一步"
SHORT_VARIANTS = {
    "Traditional": "數據清洗第一步",
    "spaces": " 数据 清洗　第一步\n",
    "punctuation": "数据清洗：第一步！",
    "zero width": "数据\u200b清洗\ufeff第一步",
}


@pytest.mark.parametrize("verify", ["sketch", "exact"])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_of_a_text_is_found(tmp_path: Path, name: str, verify: str) -> None:
    other = "另一篇完全不同的文章讨论海洋生物的迁徙规律，与上文没有任何共同之处，只是为了陪衬。"
    texts = [SIMPLIFIED, other, VARIANTS[name]]
    found = run(tmp_path, texts, verify=verify)
    assert len(found.kept) == 2
    assert found.result.counts["removed"] == {"near_duplicate": 1}
    assert found.ledger["similarity"].to_pylist() == [1.0]
    survivor = max(range(3), key=lambda i: (i != 1, len(texts[i]), -i))
    assert found.kept == {1, survivor}


@pytest.mark.parametrize("verify", ["sketch", "exact"])
def test_texts_that_fold_to_the_same_are_found_at_threshold_one(tmp_path: Path, verify: str) -> None:
    """Of several lengths: whether an estimate of 1 reaches a threshold of 1 is a matter of rounding."""
    beginnings = [SIMPLIFIED[:length] for length in range(20, 80, 3)]
    found = run(tmp_path, [v for text in beginnings for v in (text, f"{text}！")], threshold=1.0, verify=verify)
    assert len(found.kept) == len({text.rstrip("，。；、") for text in beginnings})


@pytest.mark.parametrize("name", SHORT_VARIANTS)
def test_a_variant_of_a_short_text_is_found(tmp_path: Path, name: str) -> None:
    found = run(tmp_path, [SHORT, "数据清洗第二步", SHORT_VARIANTS[name]])
    assert len(found.kept) == 2
    assert found.result.counts["removed"] == {"folded_duplicate": 1}


def test_what_stays_is_an_input_text_byte_for_byte(tmp_path: Path) -> None:
    texts = [SIMPLIFIED, *VARIANTS.values(), SHORT, *SHORT_VARIANTS.values(), "é\u0301 \x00\x7f ﬁ 𠀀"]
    found = run(tmp_path, texts)
    kept = {row["number"]: row["text"] for row in found.output.to_pylist()}
    assert len(kept) == 3
    assert all(text.encode() == texts[number].encode() for number, text in kept.items())
