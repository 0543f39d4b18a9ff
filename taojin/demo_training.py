"""The demo's last part: a small Llama learns the demo's own pairs, becomes a Hugging Face folder, and continues a text.

In: FOLDER/tokens. Out: FOLDER/train with model.json (the shape), train.yaml (the run, which `taojin train --config`
goes on with), run/, model/ (the export) and continuation.json. Needs the extra `train`. What the demo shows of it is
read from these files; how, is for `taojin.demo_report`.

All of it happens in a process of its own (`python -m taojin.demo_training FOLDER/train`): PyTorch and DeepSpeed set
threads, environment and a process group for a whole process, and the demo's has Ray's and numba's already. Costs, with
STEPS on two cores, two to three minutes and 2 GB of memory; 0.3 GB of disk.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from taojin.core.errors import RunError, TaojinError
from taojin.core.storage import Folder
from taojin.train.shape import Shape, shape_of
from taojin.train.tracking import read_metrics

NEEDED = ("torch", "deepspeed", "transformers")
STEPS = 100
PROMPT = "这家酒店的"
_CONTINUED_TOKENS = 40
_ROWS = 10
_SEQUENCE = 128
# A step of 1,024 tokens. Nearly all of its work is the output matrix, whose rows are the tokenizer's entries.
_SEQUENCES = 8


class Row(NamedTuple):
    """A part of the run. loss: the mean over its steps; validation_loss: after the last; seconds: from the start."""

    step: int
    loss: float
    validation_loss: float
    tokens_per_second: float
    seconds: float


class Trained(NamedTuple):
    shape: Shape
    rows: list[Row]
    prompt: str
    continuation: str

    @property
    def fell(self) -> bool:
        """Both losses are lower in the last row than in the first. A validation always sees the same sequences."""
        first, last = self.rows[0], self.rows[-1]
        return last.loss < first.loss and last.validation_loss < first.validation_loss


def missing() -> list[str]:
    """What would have to be installed first."""
    return [name for name in NEEDED if find_spec(name) is None]


def train_small(folder: Path, tokens: Path, steps: int) -> Trained:
    """Train, export and continue, in a process of its own. Raises RunError where that fails; it has said why."""
    folder.mkdir()
    write_run(folder, tokens, steps)
    command = [sys.executable, "-m", "taojin.demo_training", str(folder)]
    # What DeepSpeed prints there is nobody's result; progress and errors are on stderr.
    status = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
    if status:
        raise RunError(f"{folder}: training ended with status {status}")
    words = json.loads((folder / "continuation.json").read_text(encoding="utf-8"))
    rows = rows_of(read_metrics(Folder(str(folder / "run"))))
    return Trained(shape_of(read_model(folder), str(folder)), rows, words["prompt"], words["continuation"])


def read_model(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    return values


def write_run(folder: Path, tokens: Path, steps: int) -> None:
    """model.json and train.yaml. With the paths in full, so that the run can be gone on with from anywhere."""
    tokenizer = json.loads((tokens / "demo.manifest.json").read_text(encoding="utf-8"))["tokenizer"]
    folder, tokens = folder.resolve(), tokens.resolve()
    model = {
        "model_type": "llama",
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": tokenizer["vocab_size"],
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer["eod"],
    }
    (folder / "model.json").write_text(json.dumps(model, indent=2) + "\n", encoding="utf-8")
    part = max(1, -(-steps // _ROWS))
    run = {
        "model": str(folder / "model.json"),
        "tokenizer": str(Path(tokenizer["path"]).resolve()),
        "data": [str(tokens / "demo_train")],
        "validation": [str(tokens / "demo_valid")],
        "output": str(folder / "run"),
        "sequence_length": _SEQUENCE,
        "steps": steps,
        "global_batch": _SEQUENCES,
        "micro_batch": _SEQUENCES,
        "optimizer": {"learning_rate": 0.003},
        "schedule": {"kind": "cosine", "warmup": 0.05},
        "precision": "fp32",
        "seed": 0,
        "save_every": max(1, steps // 2),
        "keep_last": 1,
        "eval_every": part,
        "eval_batches": 2,
        "tracking": {"tensorboard": True, "wandb": "off"},
        # Also where there is a GPU: the same numbers everywhere.
        "device": "cpu",
    }
    (folder / "train.yaml").write_text(yaml.safe_dump(run, sort_keys=False, allow_unicode=True), encoding="utf-8")


def rows_of(metrics: dict[int, dict[str, float]]) -> list[Row]:
    """A row for every validation."""
    ends = [step for step, numbers in metrics.items() if "validation_loss" in numbers]
    rows, seconds = [], 0.0
    for before, end in pairwise([0, *ends]):
        part = [metrics[step] for step in range(before + 1, end + 1)]
        spent = sum(numbers["step_seconds"] for numbers in part)
        seconds += spent
        rows.append(
            Row(
                step=end,
                loss=sum(numbers["loss"] for numbers in part) / len(part),
                validation_loss=metrics[end]["validation_loss"],
                tokens_per_second=len(part) * _SEQUENCES * _SEQUENCE / spent,
                seconds=seconds,
            )
        )
    return rows


def train_export_continue(folder: Path) -> None:
    """What the process of its own does. Raises TaojinError."""
    from taojin.train.config import load_config
    from taojin.train.export import export
    from taojin.train.launch import launch

    launch(load_config(str(folder / "train.yaml")), lambda line: print(line, file=sys.stderr, flush=True))
    export(str(folder / "run"), str(folder / "model"))
    words = {"prompt": PROMPT, "continuation": continuation(folder / "model", PROMPT)}
    (folder / "continuation.json").write_text(json.dumps(words, ensure_ascii=False) + "\n", encoding="utf-8")


def continuation(model_folder: Path, prompt: str) -> str:
    """What the exported model writes after `prompt`: the likeliest token, _CONTINUED_TOKENS times or until the end."""
    import torch
    import transformers
    from tokenizers import Tokenizer

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    tokenizer = Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder)
    ids = torch.tensor([tokenizer.encode(prompt, add_special_tokens=False).ids])
    made = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        pad_token_id=model.config.eos_token_id,
        max_new_tokens=_CONTINUED_TOKENS,
        do_sample=False,
    )
    text: str = tokenizer.decode(made[0, ids.shape[1] :].tolist())
    return text


def main() -> int:
    # Bars of a millisecond, where DeepSpeed and transformers read what is there already.
    os.environ["TQDM_DISABLE"] = "1"
    # Would send the one worker to a cluster, which need not see these files.
    os.environ.pop("RAY_ADDRESS", None)
    try:
        train_export_continue(Path(sys.argv[1]))
    except TaojinError as error:
        print(f"taojin demo: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
