"""Megatron-LM's tools/preprocess_data.py --append-eod: JSON lines in, PREFIX_text_document.bin/.idx out, one worker.

    --megatron PATH    runs the tool itself from a checkout of Megatron-LM
    without it         drives the tool's loop over the parts that its wheel ships. That is not the tool: see below

The loop, as read in the tool: a process for the one input file; in it a tokenizer, and a pool whose workers build their
own in an initializer; `imap` over the lines of the file in chunks of 32; a worker parses the line, tokenizes its text
in one call, and adds EOD unless there are no tokens; the parent alone adds every document to the builder. Tokenizer
class, vocabulary rule and builder are those of megatron-core, with the arguments that the tool gives them
(HuggingFaceTokenizer, fast, special tokens included). What is missing is megatron.training, which the wheel does not
ship: the tool imports it for its arguments, and pays for that at start-up, this one does not.
"""

# mypy: ignore-errors
# (the peer is installed in its own virtual environment only)

import argparse
import importlib
import json
import multiprocessing
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

CHUNK_LINES = 32  # of imap, as in the tool


def build_tokenizer(model):
    from megatron.core.tokenizers import MegatronTokenizer

    return MegatronTokenizer.from_pretrained(
        tokenizer_path=str(model),
        metadata_path={"library": "huggingface"},
        vocab_file=None,
        merges_file=None,
        additional_special_tokens=[],
        use_fast=True,
        trust_remote_code=False,
        include_special_tokens=True,
    )


class Worker:
    """What a process of the pool keeps between lines."""

    tokenizer = None

    @classmethod
    def start(cls, model):
        cls.tokenizer = build_tokenizer(model)

    @classmethod
    def encode(cls, line):
        """(ids with EOD, lengths of its sequences, characters of the line)."""
        ids = list(cls.tokenizer.tokenize(json.loads(line)["text"]))
        lengths = []
        if ids:
            ids.append(cls.tokenizer.eod)
            lengths.append(len(ids))
        return ids, lengths, len(line)


def write_pair(source, prefix, model, workers):
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

    tokenizer = build_tokenizer(model)
    with open(source, encoding="utf-8") as lines:
        pool = multiprocessing.Pool(workers, initializer=Worker.start, initargs=(model,))
        encoded = pool.imap(Worker.encode, lines, CHUNK_LINES)
        builder = IndexedDatasetBuilder(f"{prefix}_text_document.bin", dtype=DType.optimal_dtype(tokenizer.vocab_size))
        for ids, lengths, _ in encoded:
            builder.add_document(ids, lengths)
    builder.finalize(f"{prefix}_text_document.idx")
    pool.close()
    pool.join()


def run_tool(options):
    """The tool of a checkout. It may fail after its last file is written (it then looks for figures of a search that
    nobody asked for), so what counts is the .idx, which it writes last."""
    checkout = options.megatron.resolve()
    command = [sys.executable, checkout / "tools" / "preprocess_data.py", "--input", options.input.resolve()]
    command += ["--output-prefix", options.output_prefix.resolve(), "--append-eod", "--workers", options.workers]
    command += ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", options.tokenizer_model.resolve()]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    # It lists the JSON files of the folder it runs in.
    folder = options.output_prefix.resolve().parent
    return subprocess.run([str(part) for part in command], env=environment, cwd=folder, check=False).returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", type=Path, required=True, help="JSON lines with a field text")
    parser.add_argument("--output-prefix", type=Path, required=True)
    parser.add_argument("--tokenizer-model", type=Path, required=True, help="folder with tokenizer.json and its config")
    parser.add_argument("--megatron", type=Path, help="checkout of Megatron-LM")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args()
    index = Path(f"{options.output_prefix}_text_document.idx")
    index.unlink(missing_ok=True)
    if options.megatron:
        status = run_tool(options)
        config = f"tools/preprocess_data.py of a checkout, exit status {status}"
    else:
        # As the tool does, before anything forks.
        importlib.import_module("megatron.core.datasets.indexed_dataset")
        importlib.import_module("megatron.core.tokenizers")
        arguments = (options.input, options.output_prefix, options.tokenizer_model, options.workers)
        process = multiprocessing.Process(target=write_pair, args=arguments)
        process.start()
        process.join()
        status = process.exitcode
        config = f"the tool's loop re-driven on megatron-core {version('megatron-core')}, not the tool itself"
    if not index.is_file():
        print(f"megatron_preprocess: exit status {status} and no .idx written", file=sys.stderr)
        return 1
    libraries = ", ".join(f"{name} {version(name)}" for name in ("transformers", "tokenizers", "torch"))
    settings = f"HuggingFaceTokenizer, --append-eod, --workers {options.workers}; {libraries}"
    options.result.write_text(json.dumps({"config": f"{config}; {settings}", "is_the_tool": bool(options.megatron)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
