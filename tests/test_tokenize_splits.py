"""`taojin tokenize`: which pair a document goes to, in which order, and what decisions of an earlier run keep."""

import random
import resource
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from taojin.tokenize import merge
from taojin.tokenize.split import assign, component_keys, id_keys, parse_split
from tests.jobs import chinese, dedup, make_corpus, string_array, taojin, write_jsonl, write_parquet, write_texts
from tests.pair_checks import broken, findings, statuses
from tests.token_runs import (
    counts,
    documents_of,
    manifest_of,
    naive_documents,
    naive_pair,
    names_of,
    outputs,
    pair_of,
    provenance,
    records,
    run,
    small_tokenizer,
    tokenize,
)

SPLIT = ("--split", "train=0.7,valid=0.3")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus") / "in"
    for shard in range(2):
        write_parquet(folder / f"shard-{shard}.parquet", records(shard, 120), row_group_size=30)
    return folder


def rows_of(corpus: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(corpus.iterdir()) for row in pq.read_table(path).to_pylist()]


def all_rows(prefix: Path) -> dict[str, list[dict[str, Any]]]:
    """Provenance by the name of the pair."""
    return {name: provenance(prefix.parent / name) for name in names_of(prefix)}


# ---------------------------------------------------------------------------- splits


def test_each_split_holds_its_documents_in_the_order_of_the_input(
    corpus: Path, tokenizer: Path, tmp_path: Path
) -> None:
    found = counts(tokenize(tmp_path / "zh", corpus, tokenizer, *SPLIT, "--seed", "5"))
    rows = rows_of(corpus)
    sides = assign(parse_split(SPLIT[1]), 5, id_keys(pa.array([row["id"] for row in rows])))
    for side, name in enumerate(("train", "valid")):
        texts = [row["text"] for row, its in zip(rows, sides, strict=True) if its == side]
        documents = naive_documents(texts, tokenizer)
        assert pair_of(tmp_path / f"zh_{name}") == naive_pair(documents)
        tokens = sum(len(sequence) for document in documents for sequence in document)
        assert found["by_split"][name] == {"documents": len(texts), "tokens": tokens}
    assert not (tmp_path / "zh.bin").exists()


def test_another_seed_is_another_split(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    for seed in ("1", "2"):
        tokenize(tmp_path / seed / "zh", corpus, tokenizer, *SPLIT, "--seed", seed)
    assert pair_of(tmp_path / "1" / "zh_valid") != pair_of(tmp_path / "2" / "zh_valid")


def test_without_components_a_warning_tells_of_near_duplicates(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    found = counts(tokenize(tmp_path / "zh", corpus, tokenizer, *SPLIT))
    assert ["240 documents have no near-duplicate component" in warning for warning in found["warnings"]] == [True]
    assert not counts(tokenize(tmp_path / "one", corpus, tokenizer))["warnings"]


def test_a_split_that_no_document_falls_to_is_an_empty_pair_and_a_warning(tokenizer: Path, tmp_path: Path) -> None:
    write_texts(tmp_path / "in" / "a.parquet", ["人"])
    found = counts(tokenize(tmp_path / "zh", tmp_path / "in", tokenizer, "--split", "a=0.999999,b=0.000001"))
    assert "no document fell to the split b" in found["warnings"]
    assert found["pairs"] == ["zh_a"]


# ---------------------------------------------------------------------------- sources


def test_sources_are_pairs_of_their_own(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    found = counts(tokenize(tmp_path / "zh", corpus, tokenizer, "--by-source", *SPLIT))
    assert found["pairs"] == [f"zh_{split}_{s}" for split in ("train", "valid") for s in ("no-source", "web", "书")]
    rows = all_rows(tmp_path / "zh")
    assert {name.split("_")[2]: {row["source"] for row in its} for name, its in rows.items()} == {
        "no-source": {None},
        "web": {"web"},
        "书": {"书"},
    }
    assert sorted(row["id"] for its in rows.values() for row in its) == sorted(row["id"] for row in rows_of(corpus))
    assert statuses(findings(tmp_path / "zh")) == {"proved"}


def test_names_of_odd_sources_are_told_apart(tokenizer: Path, tmp_path: Path) -> None:
    sources = [
        *(
            "a/b",
            "a b",
            "a-b",
            "../../etc/passwd",
            "百科 全书",
            "",
            "no-source",
            "no source",
            "x",
            "x_mask",
            ".",
            "a\x00b",
        ),
        *(None, "https://example.org/" + "很" * 300, "https://example.org/" + "长" * 300, "a\nb", "🙂", "🙃"),
    ]
    write_parquet(tmp_path / "in" / "a.parquet", [{"text": f"人{i}", "source": s} for i, s in enumerate(sources)])
    found = counts(tokenize(tmp_path / "out" / "zh", tmp_path / "in", tokenizer, "--by-source"))
    assert len(set(found["pairs"])) == len(sources) - 1  # null and "" are one
    assert sorted(path.name for path in (tmp_path / "out").glob("*.bin")) == sorted(f"{n}.bin" for n in found["pairs"])
    assert not [name for name in found["pairs"] if len(name.split()) > 1]
    of_pair = {pair["source"]: pair["name"] for pair in manifest_of(tmp_path / "out" / "zh")["pairs"]}
    assert of_pair["x"] == "zh_x"
    assert of_pair["a-b"].startswith("zh_a-b-")
    assert of_pair["百科 全书"] == "zh_百科-全书"
    for source, name in of_pair.items():
        assert {row["source"] or "" for row in provenance(tmp_path / "out" / name)} == {source}
    assert not broken(tmp_path / "out" / "zh")


def test_more_sources_than_files_may_be_open_are_written(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge, "MAX_OPEN", 3)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    write_parquet(tmp_path / "in" / "a.parquet", [{"text": f"人{i}", "source": f"s{i}"} for i in range(60)])
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 30, hard))
    try:
        found = counts(tokenize(tmp_path / "zh", tmp_path / "in", tokenizer, "--by-source"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(found["pairs"]) == 60
    assert pair_of(tmp_path / "zh_s59") == naive_pair(naive_documents(["人59"], tokenizer))


def test_weights_are_factors_of_sources(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    flags = ["--by-source", "--weights", "web=3", "nowhere=2"]
    found = counts(tokenize(tmp_path / "zh", corpus, tokenizer, *flags))
    parts = Path(tmp_path / "zh.blend.txt").read_text().split()
    weights = {Path(prefix).name: float(weight) for weight, prefix in zip(parts[::2], parts[1::2], strict=True)}
    tokens = {pair["name"]: pair["tokens"] for pair in manifest_of(tmp_path / "zh")["pairs"]}
    assert weights["zh_web"] / weights["zh_书"] == pytest.approx(3 * tokens["zh_web"] / tokens["zh_书"])
    assert ["nowhere" in warning for warning in found["warnings"]] == [True]


# ---------------------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    ("limit", "flags"),
    [(300, []), (1000, []), (1500, ["--by-source", *SPLIT]), (3000, ["--shuffle"]), (10_000_000, ["--shuffle"])],
)
def test_pairs_of_a_size_are_cut_between_documents(
    corpus: Path, tokenizer: Path, tmp_path: Path, limit: int, flags: list[str]
) -> None:
    tokenize(tmp_path / "one" / "zh", corpus, tokenizer, *flags)
    counts(tokenize(tmp_path / "cut" / "zh", corpus, tokenizer, "--shard-tokens", limit, *flags))
    groups: dict[str, list[list[list[int]]]] = defaultdict(list)
    for pair in manifest_of(tmp_path / "cut" / "zh")["pairs"]:
        assert pair["name"].endswith(f"_{len(groups[pair['name'][:-6]]):05d}")
        groups[pair["name"][:-6]].append(documents_of(tmp_path / "cut" / pair["name"]))
    assert sorted(groups) == sorted(names_of(tmp_path / "one" / "zh"))
    for name, pairs in groups.items():
        assert [document for pair in pairs for document in pair] == documents_of(tmp_path / "one" / name)
        for pair in pairs:
            longest_alone = len([document for document in pair if document]) == 1
            assert sum(map(len, pair)) <= limit or longest_alone
            assert sum(map(len, pair)) > 0
        for before, after in pairwise(pairs):
            assert sum(map(len, before)) + len(next(filter(None, after))) > limit


# ---------------------------------------------------------------------------- shuffle


def test_a_shuffle_keeps_every_document_and_depends_on_the_seed_alone(
    corpus: Path, tokenizer: Path, tmp_path: Path
) -> None:
    tokenize(tmp_path / "plain" / "zh", corpus, tokenizer)
    orders = {}
    for name, flags in {
        "a": ["--seed", "1"],
        "b": ["--seed", "2"],
        "c": ["--seed", "1", "--unit-mb", "0.005"],
        "d": ["--seed", "1", "--level", "sentence"],
    }.items():
        tokenize(tmp_path / name / "zh", corpus, tokenizer, "--shuffle", *flags)
        orders[name] = [row["id"] for row in provenance(tmp_path / name / "zh")]
    plain = [row["id"] for row in provenance(tmp_path / "plain" / "zh")]
    assert sorted(orders["a"]) == sorted(orders["b"]) == sorted(plain)
    assert plain != orders["a"] != orders["b"] != plain
    assert outputs(tmp_path / "a" / "zh") == outputs(tmp_path / "c" / "zh")
    assert orders["d"] == orders["a"]
    documents = dict(zip(plain, documents_of(tmp_path / "plain" / "zh"), strict=True))
    assert documents_of(tmp_path / "a" / "zh") == [documents[id] for id in orders["a"]]
    assert documents_of(tmp_path / "d" / "zh") == [documents[id] for id in orders["a"]]


def test_a_split_is_the_same_shuffled_or_not(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    for name, flags in (("plain", []), ("mixed", ["--shuffle"])):
        tokenize(tmp_path / name / "zh", corpus, tokenizer, *SPLIT, *flags)
    sides = [{name: Counter(row["id"] for row in its) for name, its in all_rows(tmp_path / kind / "zh").items()}
             for kind in ("plain", "mixed")]  # fmt: skip
    assert sides[0] == sides[1]


# ---------------------------------------------------------------------------- decisions


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of `taojin dedup`, with components of several survivors; its WORK is beside it."""
    root = tmp_path_factory.mktemp("cleaned")
    make_corpus(root / "in", shards=3, count=200)
    rng = random.Random(9)
    chains = []
    for chain in range(30):  # each link resembles the one before, the first and the last hardly do
        text = chinese(rng, 300)
        for link in range(5):
            start = rng.randrange(240)
            text = text[:start] + chinese(rng, 25) + text[start + 25 :]
            chains.append({"id": f"{chain}/{link}", "text": text, "source": "chain", "score": 0.5})
    write_parquet(root / "in" / "z.parquet", chains)
    assert dedup(root / "in", root / "clean", "--unit-mb", "0.05").status == 0
    return root / "clean"


def test_no_component_is_on_two_sides(cleaned: Path, tokenizer: Path, tmp_path: Path) -> None:
    found = counts(tokenize(tmp_path / "zh", cleaned, tokenizer, *SPLIT))
    sides = defaultdict(set)
    sizes: Counter[int] = Counter()
    for name, rows in all_rows(tmp_path / "zh").items():
        for row in rows:
            sides[row["component"]].add(name)
            sizes[row["component"]] += 1
    assert max(sizes.values()) > 1
    assert all(len(names) == 1 for names in sides.values())
    assert len({name for names in sides.values() for name in names}) == 2
    assert not found["warnings"]
    split, keys = parse_split(SPLIT[1]), sorted(sides)
    expected = [f"zh_{split.names[side]}" for side in assign(split, 0, component_keys(pa.array(keys).to_numpy()))]
    assert [next(iter(sides[key])) for key in keys] == expected


@pytest.mark.parametrize("flags", [SPLIT, ("--by-source", "--shuffle", "--shard-tokens", "3000")], ids=" ".join)
def test_decisions_give_the_bytes_of_their_clean_shards(
    cleaned: Path, tokenizer: Path, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """Without --shuffle: the same order, tokens and indexes; shuffled, keys come from other places in the input."""
    counts(tokenize(tmp_path / "a" / "zh", cleaned, tokenizer, *flags))
    found = counts(run(tmp_path / "b" / "zh", tokenizer, "--decisions", f"{cleaned}.work", *flags))
    assert found["read"] == 750 > found["documents"] == found["read"] - found["left_out"]["not_kept"]
    if "--shuffle" in flags:
        by_id = [
            sorted(
                (row["id"], row["tokens"], row["cluster"], row["component"])
                for its in all_rows(p).values()
                for row in its
            )
            for p in (tmp_path / "a" / "zh", tmp_path / "b" / "zh")
        ]
        assert by_id[0] == by_id[1]
    else:
        assert names_of(tmp_path / "a" / "zh") == names_of(tmp_path / "b" / "zh")
        for name in names_of(tmp_path / "a" / "zh"):
            assert pair_of(tmp_path / "a" / name) == pair_of(tmp_path / "b" / name)
            theirs, ours = (
                [{k: v for k, v in row.items() if k not in ("shard", "row")} for row in provenance(tmp_path / x / name)]
                for x in ("a", "b")
            )
            assert theirs == ours
    assert not broken(tmp_path / "b" / "zh")


def test_provenance_of_decisions_names_the_rows_of_the_input(cleaned: Path, tokenizer: Path, tmp_path: Path) -> None:
    counts(run(tmp_path / "zh", tokenizer, "--decisions", f"{cleaned}.work", "--unit-mb", "128"))
    tables = {path.name: pq.read_table(path).to_pylist() for path in (cleaned.parent / "in").iterdir()}
    for row, document in zip(provenance(tmp_path / "zh"), documents_of(tmp_path / "zh"), strict=True):
        record = tables[row["shard"]][row["row"]]
        assert (row["id"], row["source"]) == (record["id"], record["source"])
        assert len(document) == row["tokens"]


def quality(source: Path, output: Path, *flags: object) -> None:
    outcome = taojin("quality", "--input", source, "--output", output, "--num-cpus", "0", "--quiet", "--json", *flags)
    assert outcome.status == 0, outcome.err


def test_repaired_and_edited_texts_of_decisions_are_those_of_the_clean_shards(tokenizer: Path, tmp_path: Path) -> None:
    rng = random.Random(4)
    question = "下列哪一项是中国古代四大发明之一？请从选项中选出正确答案并说明理由。"
    texts: list[str | None] = [chinese(rng, 200) + "。" for _ in range(40)]
    texts[3] = "我的电话是13800138000，邮箱是someone@example.org，请联系我。" * 3
    texts[5] = f"{texts[5]}{question}{texts[6]}"
    texts[7] = "人民的中国，中国的人民，人民在中国。".encode().decode("latin-1")
    write_texts(tmp_path / "in" / "a.parquet", texts, row_group_size=7)
    write_jsonl(tmp_path / "questions.jsonl", [{"question": question}])
    rules = tmp_path / "rules.yaml"
    rules.write_text("name: none\ndescription: of a test\nsource: here\nrules: []\n")
    flags = [
        "--repair",
        "--mask",
        "email",
        "mobile",
        "--decontaminate",
        tmp_path / "questions.jsonl",
        "--contaminated",
        "cut",
    ]
    quality(tmp_path / "in", tmp_path / "clean", "--mode", "annotate", *flags, "--unit-mb", "0.01")
    counts(tokenize(tmp_path / "a" / "zh", tmp_path / "clean", tokenizer))
    counts(run(tmp_path / "b" / "zh", tokenizer, "--decisions", tmp_path / "clean.work"))
    assert pair_of(tmp_path / "a" / "zh") == pair_of(tmp_path / "b" / "zh")
    clean = [
        row["text"]
        for path in sorted((tmp_path / "clean").glob("*.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]
    assert clean != texts
    assert "13800138000" not in clean[3]
    assert question not in clean[5]
    assert clean[7].startswith("人民的中国")
    assert pair_of(tmp_path / "b" / "zh") == naive_pair(naive_documents(clean, tokenizer))
    counts(run(tmp_path / "c" / "zh", tokenizer, "--decisions", tmp_path / "clean.work", "--mask", "none"))
    clean[3] = texts[3]
    assert pair_of(tmp_path / "c" / "zh") == naive_pair(naive_documents(clean, tokenizer))


def test_what_cannot_be_read_is_not_kept_by_any_decision(tokenizer: Path, tmp_path: Path) -> None:
    """A run that drops nothing leaves out what it could not read, and the empty."""
    texts = [*(f"人民{number}".encode() for number in range(5)), b"", b"\xff", b"x" * 3000]
    column = pa.concat_arrays([string_array(texts), pa.nulls(1, pa.string())])
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"text": column}), tmp_path / "in" / "a.parquet")
    quality(tmp_path / "in", tmp_path / "clean", "--mode", "annotate", "--max-document-mb", "0.002")
    found = counts(run(tmp_path / "zh", tokenizer, "--decisions", tmp_path / "clean.work"))
    assert found["left_out"] == {"not_kept": 4}
    kept = [f"人民{number}" for number in range(5)]
    assert pair_of(tmp_path / "zh") == naive_pair(naive_documents(kept, tokenizer))


def test_the_language_that_quality_measured_is_counted(tokenizer: Path, tmp_path: Path) -> None:
    write_texts(tmp_path / "in" / "a.parquet", ["人民的中国，中国的人民。" * 20, "The quick brown fox jumps. " * 30])
    quality(tmp_path / "in", tmp_path / "clean", "--mode", "annotate")
    found = counts(run(tmp_path / "zh", tokenizer, "--decisions", tmp_path / "clean.work"))
    assert {name: entry["documents"] for name, entry in found["by_language"].items()} == {"en": 1, "zh": 1}
