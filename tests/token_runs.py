"""Runs of `taojin tokenize` for tests, and what a naive loop would have written: a tokenizers.encode per text."""

import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from taojin.core.megatron import IndexedPair
from tests.jobs import Outcome, chinese, taojin
from tests.megatron_pairs import flat, naive_index
from tests.tokenizers_made import made

END = "<|endoftext|>"
EOD = 0  # its id in every tokenizer of tests/tokenizers_made.py
BOS = 1


def small_tokenizer(folder: Path, kind: str = "gpt2") -> Path:
    """A tokenizer.json of 702 entries: "gpt2", or "llama3", which puts BOS in front."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind}.json"
    path.write_bytes(made(kind).data)
    return path


def tokenize(prefix: Path, source: object, tokenizer: Path, *flags: object) -> Outcome:
    """`taojin tokenize --input` in this process, without Ray."""
    inputs = source if isinstance(source, list) else [source]
    return run(prefix, tokenizer, "--input", *inputs, *flags)


def run(prefix: Path, tokenizer: Path, *flags: object) -> Outcome:
    """`taojin tokenize` in this process, without Ray."""
    return taojin("tokenize", *arguments(prefix, tokenizer), "--num-cpus", "0", *flags)


def arguments(prefix: Path, tokenizer: Path) -> list[object]:
    return ["--output", prefix, "--tokenizer", tokenizer, "--quiet", "--json"]


def naive_documents(
    texts: Iterable[str], tokenizer: Path, *, end: bool = True, special: bool = False, sentences: bool = False
) -> list[list[list[int]]]:
    """Ids of the sequences of each text, as Megatron-LM's tool makes them."""
    encode = Tokenizer.from_file(str(tokenizer)).encode
    documents = []
    for text in texts:
        parts = naive_sentences(text) if sentences else [text]
        sequences = [ids for part in parts if (ids := encode(part, add_special_tokens=special).ids)]
        if end and sequences:
            sequences[-1] = [*sequences[-1], EOD]
        documents.append(sequences)
    return documents


def naive_sentences(text: str) -> list[str]:
    """For texts whose only ends of sentences are 。 and line breaks, each followed by neither."""
    parts = text.replace("。", "。\0").replace("\n", "\n\0").split("\0")
    return [part for part in parts if part]


def naive_pair(documents: Sequence[Sequence[Sequence[int]]], dtype: str = "uint16") -> dict[str, bytes]:
    return {".bin": np.array(flat(documents), dtype).tobytes(), ".idx": naive_index(documents, dtype)}


def pair_of(prefix: Path) -> dict[str, bytes]:
    return {suffix: Path(f"{prefix}{suffix}").read_bytes() for suffix in (".bin", ".idx")}


def documents_of(prefix: Path) -> list[list[int]]:
    """Tokens of every document of a pair."""
    pair = IndexedPair.open(str(prefix))
    return [pair.document(number).tolist() for number in range(pair.num_documents)]


def manifest_of(prefix: Path) -> dict[str, Any]:
    return orjson.loads(Path(f"{prefix}.manifest.json").read_bytes())


def names_of(prefix: Path) -> list[str]:
    return [pair["name"] for pair in manifest_of(prefix)["pairs"]]


def provenance(prefix: Path) -> list[dict[str, Any]]:
    return pq.read_table(f"{prefix}.parquet").to_pylist()


def outputs(prefix: Path) -> dict[str, bytes]:
    """What must be the same bytes for any units, workers and faults: pairs, provenance and blend, by name."""
    found = [path for path in prefix.parent.glob(f"{prefix.name}*") if path.is_file()]
    return {
        path.name.removeprefix(prefix.name): path.read_bytes().replace(bytes(prefix.parent), b".")
        for path in found
        if not path.name.endswith((".manifest.json", ".tmp"))
    }


def records(seed: int, count: int) -> list[dict[str, Any]]:
    """Documents of several sentences, some of them empty, of three sources and two languages."""
    rng = random.Random(seed)
    return [
        {
            "id": f"{seed}-{number}",
            "text": "" if number % 13 == 4 else f"{chinese(rng, rng.choice((2, 30, 200)))}。人民的中国{number}\nfox",
            "source": rng.choice(("web", "书", None)),
            "language": rng.choice(("zh", "en")),
        }
        for number in range(count)
    ]


def counts(outcome: Outcome) -> dict[str, Any]:
    assert outcome.status == 0, outcome.err
    found: dict[str, Any] = json.loads(outcome.out)
    assert found["read"] == found["documents"] + sum(found["left_out"].values())
    return found
