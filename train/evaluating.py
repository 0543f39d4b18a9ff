"""What a Hugging Face folder knows: its perplexity on pairs, its accuracy on multiple-choice questions.

In: a local folder with config.json, safetensors and tokenizer.json (`taojin train --export` writes one), prefixes of
pairs, files of questions. Out: a JSON-like dict, or its lines. One process, one device, the whole model on it: on a CPU
in fp32, on a GPU in the precision that the folder is stored in. Everything is opened before the weights are read.

Perplexity is over the targets of all full sequences, each seen once; the last tokens of a pair, fewer than a sequence,
are left out. Its context is the sequence: documents see what stands before them in it, as in training without
`separate_documents`. Leaves to others: scoring (`choices`), the loss (`losses`), the model (`model`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from taojin.core.errors import ConfigError, InputError
from taojin.train.choices import By, Choices, log_likelihoods, summary
from taojin.train.data import TokenData
from taojin.train.losses import perplexity, summed_loss, targets_of
from taojin.train.model import DTYPES, build_model, read_model, transformers_config

# Where nobody says another: contexts of 128k cost more than they tell of a model, and a run is rarely longer.
LONGEST_SEQUENCE = 4096
# Logits of a forward pass at once, in fp32: 1 GiB.
_LOGITS = 1 << 28


def evaluate(
    folder: str,
    *,
    data: Sequence[str] = (),
    choices: Sequence[str] = (),
    examples: Sequence[str] = (),
    shots: int | None = None,
    by: By = "letter",
    sequence_length: int | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> dict[str, Any]:
    """Loss and perplexity of each pair in `data`, and what `choices.summary` says of the questions in `choices`.

    examples, shots, by: as for `Choices.open`. sequence_length: tokens read at once (default: the model's context, at
    most 4,096). Raises InputError for what is missing or damaged, ConfigError for what does not fit the model.
    """
    if not data and not choices:
        raise ConfigError("--evaluate: expected --data PREFIX or --choices PATH, found neither")
    if not choices and (examples or shots is not None):
        raise ConfigError("--examples, --shots: expected with --choices alone, found none")
    if not Path(folder).is_dir():
        raise InputError(f"{folder}: no such folder; expected a Hugging Face model, as --export writes it")
    values = read_model(folder)
    length = min(values.get("max_position_embeddings") or LONGEST_SEQUENCE, LONGEST_SEQUENCE)
    length = length if sequence_length is None else sequence_length
    if length < 1:
        raise ConfigError(f"--sequence-length: expected 1 or more, found {length}")
    config = transformers_config(values, sequence_length=length)
    pairs = {
        prefix: TokenData(
            [(prefix, None)], sequence_length=length, global_batch=1, epochs=1, vocab_size=config.vocab_size
        )
        for prefix in data
    }
    questions = choices and Choices.open(
        choices,
        examples,
        shots,
        tokenizer=folder,
        sequence_length=length,
        vocab_size=config.vocab_size,
        by=by,
    )
    place, precision = _where(device, values)
    model = build_model(
        folder, config, seed=0, precision=precision, attention="sdpa", activation_checkpointing=False, zero=None
    )
    model = model.to(place).eval()
    rows = max(1, _LOGITS // (length * config.vocab_size))
    found: dict[str, Any] = {"model": folder, "device": place, "precision": precision, "sequence_length": length}
    found["pairs"] = {prefix: _pair_numbers(model, pair, rows, place) for prefix, pair in pairs.items()}
    found["choices"] = summary(questions, log_likelihoods(model, questions, device=place)) if questions else None
    return found


def evaluation_lines(found: dict[str, Any]) -> list[str]:
    """What `evaluate` found, as a table."""
    lines = [f"{found['model']}: {found['precision']} on {found['device']}, sequences of {found['sequence_length']:,}"]
    if found["pairs"]:
        rows = [
            (prefix, f"{pair['targets']:,}", f"{pair['loss']:.4f}", f"{pair['perplexity']:,.2f}")
            for prefix, pair in found["pairs"].items()
        ]
        lines += ["", *_table([("pair", "tokens", "loss", "perplexity"), *rows])]
    if (choices := found["choices"]) is not None:
        subjects = [
            (name, f"{subject['questions']:,}", f"{subject['accuracy']:.1%}")
            for name, subject in choices["subjects"].items()
        ]
        means = [
            ("mean of subjects", "", f"{choices['macro_accuracy']:.1%} ± {choices['macro_standard_error']:.1%}"),
            ("all", f"{choices['questions']:,}", f"{choices['accuracy']:.1%} ± {choices['standard_error']:.1%}"),
        ]
        lines += ["", *_table([("subject", "questions", "right"), *subjects, *means])]
        lines.append(
            f"by {choices['by']}, {choices['shots']} examples, loss {choices['loss']:.4f} (a quarter each: 1.3863); "
            f"too long: {choices['shortened']:,} prompts lost examples, {choices['cut']:,} their beginning"
        )
    return lines


def _where(wanted: Literal["auto", "cpu", "cuda"], values: dict[str, Any]) -> tuple[str, str]:
    """(device, precision). Raises ConfigError for a GPU that is not there."""
    import torch

    if wanted == "cpu" or not torch.cuda.is_available():
        if wanted == "cuda":
            raise ConfigError("--device: expected a GPU that PyTorch can use, found none")
        # Faster than half precision there, and nearer to what was learnt.
        return "cpu", "fp32"
    stored = values.get("dtype") or values.get("torch_dtype") or DTYPES["fp32"]
    precisions = {name: precision for precision, name in DTYPES.items()}
    if stored not in precisions:
        raise ConfigError(f"dtype of config.json: expected one of {', '.join(precisions)}, found {stored!r}")
    return "cuda", precisions[stored]


def _pair_numbers(model: Any, data: TokenData, rows: int, device: str) -> dict[str, float]:
    import torch

    assert data.num_samples is not None
    summed = torch.zeros((), dtype=torch.float64, device=device)
    targets = 0
    with torch.no_grad():
        for first in range(0, data.num_samples, rows):
            batch = data.rows(first, min(rows, data.num_samples - first))
            summed += summed_loss(model, batch, device).double()
            targets += targets_of(batch)
    loss = float(summed) / targets
    return {"targets": targets, "loss": loss, "perplexity": perplexity(loss)}


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
