"""datatrove 0.10: MegatronDocumentTokenizer, Parquet in, one pair out. One task, one worker, batches of 1,000 texts.

Out, in --work: 00000_tokens.bin and .idx. EOD is put on by the tokenizer's post-processor; empty texts never leave the
reader.
"""

# mypy: ignore-errors
# (the peer is installed in its own virtual environment only)

import argparse
import json
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.tokens import MegatronDocumentTokenizer

BATCH_TEXTS = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", type=Path, required=True, help="shards with columns id, text")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json")
    parser.add_argument("--eod", required=True, help="the token that ends a document")
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args()
    writer = MegatronDocumentTokenizer(
        str(options.work), tokenizer_name_or_path=str(options.tokenizer), eos_token=options.eod, batch_size=BATCH_TEXTS
    )
    pipeline = [ParquetReader(str(options.input), glob_pattern="*.parquet"), writer]
    LocalPipelineExecutor(pipeline, tasks=1, workers=1, logging_dir=str(options.work / "logs")).run()
    config = f"MegatronDocumentTokenizer, batch_size {BATCH_TEXTS}, one task"
    options.result.write_text(json.dumps({"config": config}), encoding="utf-8")


if __name__ == "__main__":
    main()
