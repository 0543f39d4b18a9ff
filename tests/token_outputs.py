"""Outputs of `taojin tokenize` for tests of `taojin check PREFIX`, and what a tamperer does to them."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from taojin.core.storage import Folder, file_checksum
from tests.jobs import chinese, taojin, write_jsonl
from tests.pair_checks import byte_tokenizer

PROVED_ALONE = ["manifest", "files", "tokenizer", "format", "tokens", "provenance", "counts", "splits", "blend"]
PROVED = [*PROVED_ALONE, "work", "texts"]
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def records(seed: int, count: int) -> list[dict[str, Any]]:
    """Documents, a few of them empty, of two sources and languages, in components of three."""
    rng = random.Random(seed)
    return [
        {
            "id": f"{seed}-{number}",
            "text": "" if number % 17 == 0 else chinese(rng, rng.choice((3, 40, 120))) + "。好！",
            "source": rng.choice(("web", "书")),
            "language": rng.choice(("zh", "en", None)),
        }
        for number in range(count)
    ]


def components(rows: list[dict[str, Any]], first: int = 0) -> pa.Table:
    """The rows with the columns of an output of `taojin dedup`."""
    numbers = np.arange(first, first + len(rows))
    table = pa.Table.from_pylist(rows)
    for name, values in (
        ("cluster", pa.array(numbers)),
        ("cluster_size", pa.array(np.ones(len(rows), np.int32))),
        ("component", pa.array(numbers // 3)),
    ):
        table = table.append_column(pa.field(name, values.type, nullable=False), values)
    return table


def tokenize(root: Path, source: Path, *flags: object, output: str = "zh") -> Path:
    """PREFIX of `taojin tokenize` with a tokenizer of bytes, without Ray."""
    given = ["--decisions", source] if source.suffix == ".work" else ["--input", source, "--unit-mb", "0.02"]
    where = ["--output", root / "out" / output, "--tokenizer", root / "tokenizer.json"]
    run = ["--num-cpus", "0", "--quiet", "--backend", "reference"]
    outcome = taojin("tokenize", *given, *where, *run, *flags)
    assert outcome.status == 0, outcome.err
    return root / "out" / output


def finished_output(root: Path) -> Path:
    """Two splits, two sources and more than one number of some: zh_train_web_00000 and so on. Returns root."""
    byte_tokenizer(root / "tokenizer.json")
    (root / "in").mkdir()
    for shard in range(2):
        table = components(records(shard, 120), 120 * shard)
        pq.write_table(table, root / "in" / f"shard-{shard}.parquet", row_group_size=30)
    tokenize(root, root / "in", "--split", "train=0.7,valid=0.3", "--by-source", "--shard-tokens", 15_000)
    return root


def fresh_output(root: Path) -> Path:
    """PREFIX of an output whose input, one shard of JSONL of 300 kB, and tokenizer lie in root."""
    byte_tokenizer(root / "tokenizer.json")
    rng = random.Random(3)
    write_jsonl(root / "in" / "a.jsonl", [{"id": str(i), "text": chinese(rng, 1000)} for i in range(100)])
    return tokenize(root, root / "in")


def chat(root: Path) -> Path:
    byte_tokenizer(root / "tokenizer.json")
    (root / "chat_template.jinja").write_text(CHATML)
    turns = [[{"role": "user", "content": f"问{i}"}, {"role": "assistant", "content": f"答{i}"}] for i in range(20)]
    write_jsonl(root / "in" / "a.jsonl", [{"messages": messages} for messages in turns])
    return tokenize(root, root / "in", "--chat")


def manifest_of(prefix: Path) -> dict[str, Any]:
    return orjson.loads(Path(f"{prefix}.manifest.json").read_bytes())


def change_manifest(prefix: Path, change: Callable[[dict[str, Any]], None]) -> None:
    manifest = manifest_of(prefix)
    change(manifest)
    Path(f"{prefix}.manifest.json").write_bytes(orjson.dumps(manifest))


def restate(prefix: Path) -> None:
    """Give the manifest the sizes and checksums of the files as they are: a tamperer who knows it."""
    folder = prefix.parent

    def change(manifest: dict[str, Any]) -> None:
        for pair in manifest["pairs"]:
            for kind, entry in pair["files"].items():
                path = folder / entry["name"]
                entry["bytes"] = path.stat().st_size
                if kind in ("bin", "mask_bin"):
                    data = path.read_bytes()
                    pair["ranges" if kind == "bin" else "mask_ranges"] = [[len(data), xxhash.xxh3_64_hexdigest(data)]]
                else:
                    entry["xxh3"] = file_checksum(Folder(str(folder)), entry["name"])

    change_manifest(prefix, change)


def pair_names(prefix: Path) -> list[str]:
    return [pair["name"] for pair in manifest_of(prefix)["pairs"]]


def rewrite(path: Path, change: Callable[[dict[str, list[Any]]], None]) -> None:
    """Change the columns of a Parquet file."""
    table = pq.read_table(path)
    columns = table.to_pydict()
    change(columns)
    pq.write_table(pa.table(columns, schema=table.schema), path)
