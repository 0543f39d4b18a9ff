"""What `taojin train` is measured against and with: `python -m bench.training CONFIG.yaml`, under torchrun.

The same loop as `taojin train` runs, without Ray: a process of the run, its rank in torchrun's variables. Here as well:
the pair, the models and the configs of `bench.train_lane`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from taojin.core.megatron import write_index
from taojin.train.config import load_config

VOCABULARY = 4096
EOD = VOCABULARY - 1
DOCUMENTS = 4_000
MEAN_TOKENS = 600  # of a document; Chinese web pages have about as many
SMALL = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "num_attention_heads": 4}
TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
# 134 million parameters with 32,000 words: 1.6 GB of fp32 weights and Adam's states.
LARGE = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12}


def make_inputs(folder: Path) -> None:
    """A pair of documents in which a token follows from the one before, and the three models."""
    rng = np.random.default_rng(7)
    lengths = 1 + rng.poisson(MEAN_TOKENS, DOCUMENTS).astype(np.int32)
    first = np.repeat(rng.integers(0, EOD, DOCUMENTS), lengths)
    ends = np.cumsum(lengths, dtype=np.int64)
    place = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
    ids = ((first + 7 * place) % EOD).astype(np.uint16)
    ids[ends - 1] = EOD
    ids.tofile(folder / "pair.bin")
    ones = np.ones(DOCUMENTS, np.int32)
    with (folder / "pair.idx").open("wb") as sink:
        write_index(sink, np.dtype(np.uint16), DOCUMENTS, DOCUMENTS, lambda: iter([lengths]), lambda: iter([ones]))
    for name, shape, words in (("small", SMALL, VOCABULARY), ("tiny", TINY, VOCABULARY), ("large", LARGE, 32_000)):
        values = {"model_type": "llama", "vocab_size": words, "eos_token_id": EOD, **shape}
        (folder / f"{name}.json").write_text(json.dumps(values))


def write_config(folder: Path, name: str, model: str, **changes: Any) -> Path:
    """FOLDER/NAME.yaml (JSON is YAML) of a run at FOLDER/NAME; a former run there must be gone."""
    values = {
        "model": str(folder / f"{model}.json"),
        "data": [str(folder / "pair")],
        "output": str(folder / name),
        "sequence_length": 256,
        "global_batch": 8,
        "micro_batch": 2,
        "precision": "fp32",
        "device": "cpu",
        "optimizer": {"learning_rate": 0.001},
        "save_every": 0,
        "tracking": {"tensorboard": False, "wandb": "off"},
        "quiet": True,
        **changes,
    }
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(values))
    return path


def main() -> None:
    from taojin.train.engine import start_process
    from taojin.train.loop import train

    config = load_config(sys.argv[1])
    train(config, start_process(config.device))


if __name__ == "__main__":
    main()
