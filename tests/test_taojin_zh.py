"""The default preset on real text: it drops broken and repetitive pages, not kinds of text."""

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from taojin.quality.rules import load_preset
from tests.jobs import SHARED, ledger_rows, output_rows, taojin, write_texts

DEV = SHARED / "corpus" / "dev"
# Chinese shares of the smaller shards: about 20,000 documents of every source.
SHARDS = [DEV / f"dev-{number:05d}-of-00008.parquet" for number in range(3, 8)]

POEM = "床前明月光，疑是地上霜。举头望明月，低头思故乡。"
REFRAIN = "\n".join(f"采采芣苢，薄言{a}之。采采芣苢，薄言{b}之。" for a, b in ("采有", "掇捋", "袺襭"))
NEWS = "新华社北京电 国家统计局今天发布的数据显示，上半年国内生产总值同比增长百分之五。专家表示，经济运行总体平稳。"
TRADITIONAL = "臺灣的夜市是許多旅客必訪之處，各式小吃應有盡有，價格也相當親民。"


def run(tmp_path: Path, texts: list[str]) -> list[str | None]:
    """The reason of each text, None where it stays."""
    source = write_texts(tmp_path / "a.parquet", texts)
    flags = ["--input", source, "--output", tmp_path / "out", "--num-cpus", "0", "--quiet"]
    outcome = taojin("quality", *flags)
    assert outcome.status == 0, outcome.err
    reasons: dict[str, str | None] = {row["id"]: row["reason"] for row in ledger_rows(tmp_path / "out")}
    assert len(reasons) + len(output_rows(tmp_path / "out")) == len(texts)
    return [reasons.get(str(number)) for number in range(len(texts))]


def test_short_classical_and_traditional_texts_stay(tmp_path: Path) -> None:
    texts = [POEM, REFRAIN, NEWS, TRADITIONAL, "好。", "子曰：學而時習之，不亦說乎？"]
    assert run(tmp_path, texts) == [None] * len(texts)


def test_english_is_not_judged_by_what_is_normal_in_chinese(tmp_path: Path) -> None:
    assert run(tmp_path, ["The quick brown fox jumps over the lazy dog and runs away from it. " * 3]) == [None]


def test_broken_and_repetitive_pages_go(tmp_path: Path) -> None:
    texts = ["加微信领红包，" * 200, f"{NEWS[:20]}{chr(0xFFFD) * 30}", "【广告】【热卖】【点击】" * 20]
    reasons = run(tmp_path, texts)
    assert all(reasons), reasons
    assert reasons[1] == "taojin-zh.replacement_characters"


def test_every_rule_says_where_its_threshold_comes_from() -> None:
    preset = load_preset("taojin-zh")
    assert preset.sources
    assert all(rule.note for rule in preset.rules)
    # Debris has no language.
    assert {rule.languages for rule in preset.rules} == {("zh",), ("zh", "und")}


@pytest.mark.skipif(not DEV.exists(), reason="needs the shared development corpus, which is not part of the project")
def test_real_law_encyclopedias_papers_and_news_stay(tmp_path: Path) -> None:
    flags = ["--input", *SHARDS, "--work", tmp_path / "work", "--report-only", "--num-cpus", "0", "--quiet", "--json"]
    outcome = taojin("quality", *flags)
    assert outcome.status == 0, outcome.err
    drops = json.loads(next((tmp_path / "work").glob("decide-*/drops.json")).read_text())["by_source"]
    table = pa.concat_tables([pq.read_table(path, columns=["source", "domain"]) for path in SHARDS])
    domain_of = dict(zip(table["source"].to_pylist(), table["domain"].to_pylist(), strict=True))
    documents: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    for source, counts in drops.items():
        documents[domain_of[source]] += counts["documents"]
        dropped[domain_of[source]] += sum(counts.values()) - counts["documents"]
    kept = {domain: 1 - dropped[domain] / documents[domain] for domain in documents}
    least = {"law": 0.95, "encyclopedia": 0.95, "papers": 0.95, "news": 0.95, "classical": 0.99}
    assert not {domain: kept[domain] for domain, share in least.items() if kept[domain] < share}
