"""The benchmark's corpora, made from the developer shards into .bench/corpora: `python -m bench.corpus [NAME…]`.

    sub    about 35 MB in 4 shards, sampled by family (all versions of a page come along, those with several twice as
           often): ground truth and slow peers
    dev    the developer shards as they are
    big    ≥ 1 GB: the developer shards and edited copies of them under new ids, one shard a copy. Of the copies 5 % are
           exact, 11 % lightly edited (J about 0.9), the others heavily (a character in 16 to in 2 replaced by another
           of its script drawn as often as the corpus has it, half of them with their sentences shuffled)
    long   Chinese documents above 1,000 characters, ≥ 100 MB (repeated if need be): for kernels only, not for truth
    chinese  the Chinese documents of the developer shards, classical and Traditional ones included, in one shard

Same shards and recipe → same bytes. A corpus is made once and reused while its manifest matches. The edits are made on
arrays of code points for a whole shard at once; nothing here decides what a duplicate is.
"""

import argparse
import hashlib
import json
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
SCRATCH = ROOT / ".bench"
DEFAULT_CORPUS = ROOT.parent / "shared" / "corpus" / "dev"
RECIPE_VERSION = 1
ROW_GROUP_TEXT_BYTES = 64_000_000
SUB_TEXT_BYTES = 35_000_000
BIG_TEXT_BYTES = 1_100_000_000
LONG_TEXT_BYTES = 100_000_000
EXACT_SHARE, LIGHT_SHARE = 0.05, 0.11
NAMES = ("sub", "dev", "big", "long", "chinese")


class CorpusError(Exception):
    """The developer shards are not where --corpus says."""


def parquet_shards(folder: Path) -> list[Path]:
    shards = sorted(folder.glob("*.parquet")) if folder.is_dir() else []
    if not shards:
        raise CorpusError(f"no Parquet shards in {folder}: pass --corpus DIR with the developer corpus (id, text)")
    return shards


def text_bytes(folder: Path) -> tuple[int, int]:
    """(documents, bytes of UTF-8 text) of a folder of shards."""
    documents = total = 0
    for shard in parquet_shards(folder):
        lengths = pc.binary_length(pq.read_table(shard, columns=["text"])["text"])
        documents += len(lengths)
        total += pc.sum(lengths.cast(pa.int64())).as_py() or 0
    return documents, total


def write_shard(path: Path, table: pa.Table) -> None:
    """Zstd level 3, row groups cut after about ROW_GROUP_TEXT_BYTES of text."""
    ends = np.cumsum(pc.binary_length(table["text"]).to_numpy(), dtype=np.int64)
    with pq.ParquetWriter(path, table.schema, compression="zstd", compression_level=3) as writer:
        start = 0
        while start < len(table):
            done = ends[start - 1] if start else 0
            end = max(start + 1, int(np.searchsorted(ends, done + ROW_GROUP_TEXT_BYTES, side="right")))
            writer.write_table(table.slice(start, end - start), row_group_size=end - start)
            start = end


def make(name: str, corpus: Path = DEFAULT_CORPUS) -> Path:
    """Folder of the corpus `name`, made now unless its manifest says that it stands."""
    shards = parquet_shards(corpus)
    if name == "dev":
        return corpus
    folder = SCRATCH / "corpora" / name
    manifest = folder.with_suffix(".json")
    wanted = {
        "recipe": RECIPE_VERSION,
        "targets": [SUB_TEXT_BYTES, BIG_TEXT_BYTES, LONG_TEXT_BYTES, EXACT_SHARE, LIGHT_SHARE],
        "source": [[shard.name, shard.stat().st_size] for shard in shards],
    }
    if manifest.is_file() and json.loads(manifest.read_text())["wanted"] == wanted:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    table = pa.concat_tables([pq.read_table(shard) for shard in shards]).combine_chunks()
    {"sub": _make_sub, "big": _make_big, "long": _make_long, "chinese": _make_chinese}[name](table, folder)
    documents, total = text_bytes(folder)
    entry = {"wanted": wanted, "documents": documents, "text_bytes": total, "files": _digests(folder)}
    manifest.write_text(json.dumps(entry, indent=1))
    return folder


def _digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.blake2b(p.read_bytes(), digest_size=16).hexdigest() for p in parquet_shards(folder)}


def _fraction(*words: str) -> float:
    """A number in [0, 1) that depends on the words alone."""
    digest = hashlib.blake2b("|".join(words).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def _make_sub(table: pa.Table, folder: Path) -> None:
    ids = table["id"].to_pylist()
    families = table["family"].to_pylist() if "family" in table.column_names else ids
    lengths = pc.binary_length(table["text"]).to_numpy()
    count = Counter(families)
    several = np.array([count[family] > 1 for family in families])
    share = SUB_TEXT_BYTES / (2.0 * lengths[several].sum() + lengths[~several].sum())
    keep = np.array([_fraction("sub", f) < share * (2 if count[f] > 1 else 1) for f in families])
    shard_of = np.array([int(_fraction("shard", i) * 4) for i in ids])
    for shard in range(4):
        rows = np.flatnonzero(keep & (shard_of == shard))
        write_shard(folder / f"sub-{shard:05d}-of-00004.parquet", table.take(rows))


def chinese(table: pa.Table) -> pa.ChunkedArray:
    """Which documents are Chinese: by the column `lang`, else those of more than two bytes a character."""
    if "lang" in table.column_names:
        return pc.is_in(table["lang"], pa.array(["zh", "zh-hant", "lzh"]))
    return pc.greater(pc.binary_length(table["text"]), pc.multiply(pc.utf8_length(table["text"]), 2))


def _make_chinese(table: pa.Table, folder: Path) -> None:
    picked = table.filter(chinese(table))
    if not len(picked):
        raise CorpusError("the corpus has no Chinese document: the lane `tokenize` needs some")
    write_shard(folder / "chinese-00000.parquet", picked)


def _make_long(table: pa.Table, folder: Path) -> None:
    picked = table.filter(pc.and_(chinese(table), pc.greater(pc.utf8_length(table["text"]), 1000)))
    total = pc.sum(pc.binary_length(picked["text"]).cast(pa.int64())).as_py() or 0
    if not total:
        raise CorpusError("the corpus has no Chinese document above 1,000 characters: the lane `kernel` needs some")
    for copy in range(-(-LONG_TEXT_BYTES // total)):
        write_shard(folder / f"long-{copy:05d}.parquet", picked)


def _make_big(table: pa.Table, folder: Path) -> None:
    total = int(pc.binary_length(table["text"]).to_numpy().sum(dtype=np.int64))
    copies = -(-BIG_TEXT_BYTES // total)
    pools = _Pools(_code_points(table["text"])[0])
    for copy in range(copies):
        if copy:
            rng = np.random.default_rng([RECIPE_VERSION, copy])
            text = _edited(table["text"], rng, pools)
            ids = pc.binary_join_element_wise(table["id"], pa.scalar(f"copy{copy}"), "~")
            part = table.set_column(table.column_names.index("text"), "text", text)
            part = part.set_column(part.column_names.index("id"), "id", ids)
        else:
            part = table
        write_shard(folder / f"big-{copy:05d}-of-{copies:05d}.parquet", part)


# ---- edits ---------------------------------------------------------------------------------------------------------

_OTHER, _HAN, _KANA, _LATIN, _CYRILLIC, _HANGUL = range(6)


def _scripts(code_points: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """The replaceable classes; everything else (digits, punctuation, other scripts) stays as it is."""
    kinds = np.zeros(0x110000, np.uint8)
    kinds[0x4E00:0xA000] = _HAN
    kinds[0x3041:0x30FB] = _KANA
    kinds[ord("a") : ord("z") + 1] = _LATIN
    kinds[0x0430:0x0450] = _CYRILLIC
    kinds[0xAC00:0xD7A4] = _HANGUL
    return kinds[code_points]


class _Pools:
    """A million characters of each script as the corpus has them, to draw replacements from."""

    def __init__(self, code_points: NDArray[np.uint32]) -> None:
        kinds = _scripts(code_points)
        rng = np.random.default_rng(RECIPE_VERSION)
        self.of: dict[int, NDArray[np.uint32]] = {}
        for kind in range(1, 6):
            found = code_points[kinds == kind]
            if len(found):
                self.of[kind] = found[rng.integers(0, len(found), 1_000_000)]


def _code_points(text: pa.ChunkedArray) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """(code points of all texts, lengths of the documents)."""
    joined = "".join(text.to_pylist())
    return np.frombuffer(joined.encode("utf-32-le"), np.uint32), pc.utf8_length(text).to_numpy().astype(np.int64)


def _edited(text: pa.ChunkedArray, rng: np.random.Generator, pools: _Pools) -> pa.Array:
    code_points, lengths = _code_points(text)
    code_points = code_points.copy()
    num = len(lengths)
    choice = rng.random(num)
    exact = choice < EXACT_SHARE
    light = ~exact & (choice < EXACT_SHARE + LIGHT_SHARE)
    heavy = ~exact & ~light
    # A replaced character spoils 5 of the shingles: a rate r leaves s = (1-r)^5 of them, and J = s / (2 - s).
    jaccard = rng.uniform(0.86, 0.96, num)
    light_rate = 1.0 - (2.0 * jaccard / (1.0 + jaccard)) ** 0.2
    heavy_rate = np.exp(rng.uniform(np.log(1 / 16), np.log(1 / 2), num))
    heavy_rate = np.maximum(heavy_rate, np.minimum(0.5, 6.0 / np.maximum(lengths, 1)))  # short ones change as well
    rate = np.where(exact, 0.0, np.where(light, light_rate, heavy_rate))
    kinds = _scripts(code_points)
    per_character = np.repeat(rate, lengths)
    per_character[(kinds == _LATIN) | (kinds == _CYRILLIC)] /= 5.0  # there a word of about five letters is the symbol
    per_character[kinds == _HANGUL] /= 3.0
    hit = rng.random(len(code_points)) < per_character
    for kind, pool in pools.of.items():
        where = np.flatnonzero(hit & (kinds == kind))
        code_points[where] = pool[rng.integers(0, len(pool), len(where))]
    shuffled = heavy & (rng.random(num) < 0.5)
    return _as_texts(_shuffle_sentences(code_points, lengths, shuffled, rng), lengths)


def _shuffle_sentences(
    code_points: NDArray[np.uint32],
    lengths: NDArray[np.int64],
    shuffled: NDArray[np.bool_],
    rng: np.random.Generator,
) -> NDArray[np.uint32]:
    """The documents marked in `shuffled` with their sentences (up to 。！？ or a line's end) in random order."""
    ends = np.isin(code_points, np.array([ord(c) for c in "。！？\n"], np.uint32))
    document_ends = np.cumsum(lengths)[lengths > 0]
    ends[document_ends - 1] = True
    segment_ends = np.flatnonzero(ends) + 1
    segment_starts = np.concatenate([[0], segment_ends[:-1]])
    document = np.searchsorted(document_ends, segment_starts, side="right")
    key = np.where(shuffled[lengths > 0][document], rng.random(len(segment_ends)), np.arange(len(segment_ends)))
    order = np.lexsort((key, document))
    sizes = (segment_ends - segment_starts)[order]
    shift = np.repeat(segment_starts[order] - (np.cumsum(sizes) - sizes), sizes)
    return code_points[np.arange(len(code_points)) + shift]


def _as_texts(code_points: NDArray[np.uint32], lengths: NDArray[np.int64]) -> pa.Array:
    widths = 1 + (code_points >= 0x80).astype(np.int64) + (code_points >= 0x800) + (code_points >= 0x10000)
    before = np.concatenate([[0], np.cumsum(widths)])
    offsets = before[np.concatenate([[0], np.cumsum(lengths)])]
    data = code_points.tobytes().decode("utf-32-le").encode()
    if offsets[-1] >= 2**31:
        raise CorpusError("a shard of the corpus holds more than 2 GiB of text: give a smaller --corpus")
    buffers: list[Any] = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(lengths), buffers)


def main() -> int:
    parser = argparse.ArgumentParser(description="make the benchmark corpora")
    parser.add_argument("names", nargs="*", help=f"from {', '.join(NAMES)}; all by default")
    parser.add_argument("--corpus", type=Path, default=DEFAULT_CORPUS, help="folder of the developer shards")
    options = parser.parse_args()
    try:
        for name in options.names or NAMES:
            if name not in NAMES:
                raise CorpusError(f"no corpus is called {name!r}; there are {', '.join(NAMES)}")
            folder = make(name, options.corpus)
            documents, total = text_bytes(folder)
            shards = len(parquet_shards(folder))
            print(f"{name}: {documents:,} documents, {total / 1e6:,.1f} MB of text, {shards} shards")
    except CorpusError as error:
        print(f"bench.corpus: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
