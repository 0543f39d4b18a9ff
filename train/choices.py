"""Multiple choice by log-likelihood: questions of C-Eval's and CMMLU's shape, and what a causal model makes of them.

In: files or folders of questions, examples to be shown before them, a tokenizer.json. Out: `Choices`, tokenized once,
scored as often as one likes; log-likelihoods float64[questions, 4]; accuracies.

By letter, as both benchmarks are published: the options stand in the prompt, and the model continues 答案： with A, B,
C or D. By content: the options do not stand there, the model continues 答案： with each option's text, and the sum is
divided by its characters. Small models that have not learnt what the letters are for say more by content.

The border. A tokenizer may join the end of the prompt with the beginning of an option. So prompt and option are encoded
together, and what is scored are the tokens after those that the prompt and all four have in common: the same context
for each of them. No special token is put in front, which is also how pairs are written.

Cost: a pass over each prompt; by letter one for all four options where they are a token each. Logits are made for the
positions that are asked for, not for the prompt. Tokenizing is 5 × (examples + 1) prompts a question, half a million
tokens a second. Imports torch and tokenizers in its functions only. Reading pairs and building models are for others.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from taojin.core.errors import ConfigError, InputError, RunError
from taojin.core.storage import first_line
from taojin.train.questions import LETTERS, Question, examples_by_subject, read_choices

By: TypeAlias = Literal["letter", "content"]

# Of C-Eval and CMMLU both (Huang et al. 2023, Li et al. 2023).
SHOTS = 5
# Rows of a forward pass, where nobody says otherwise.
MICRO_BATCH = 8
# Questions encoded at once: their prompts stand in memory.
_CHUNK = 256


class Row(NamedTuple):
    """One input of the model, and the options whose tokens it predicts: ids int64[length], options int64[targets]
    (4 × question + option), positions int64[targets] in the row, targets int64[targets]."""

    ids: NDArray[np.int64]
    options: NDArray[np.int64]
    positions: NDArray[np.int64]
    targets: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Questions as tokens. subject_numbers: int64[Q], index into subjects · answers: int64[Q], 0 to 3 · divisors:
    float64[Q, 4], what a log-likelihood is divided by · rows: longest first · shortened: prompts that lost examples to
    fit the context · cut: those that were too long without any, and lost their own beginning."""

    subjects: tuple[str, ...]
    subject_numbers: NDArray[np.int64]
    answers: NDArray[np.int64]
    divisors: NDArray[np.float64]
    rows: tuple[Row, ...]
    shots: int
    by: By
    shortened: int
    cut: int

    @classmethod
    def open(
        cls,
        paths: Sequence[str],
        examples: Sequence[str] = (),
        shots: int | None = None,
        *,
        tokenizer: str,
        sequence_length: int,
        vocab_size: int,
        by: By = "letter",
    ) -> "Choices":
        """Read and tokenize. examples: files of questions shown, solved, before those of their subject, the first
        `shots` of each (default 5; 0 without examples), the oldest left out first where the context is too short.
        tokenizer: a tokenizer.json, or a folder with one. sequence_length: tokens that the model reads at once.

        Raises InputError for files that are not as told, ConfigError for numbers and vocabularies that do not fit.
        """
        if shots is None:
            shots = SHOTS if examples else 0
        if shots < 0 or (shots > 0 and not examples):
            raise ConfigError(f"shots: expected 0 without examples, else 0 or more, found {shots}")
        questions = read_choices(paths)
        shown = examples_by_subject(examples, shots, [question.subject for question in questions])
        encode = _encoder(tokenizer, vocab_size)
        rows: list[Row] = []
        shortened, cut = set(), 0
        waiting = list(range(len(questions)))
        for kept in range(shots, -1, -1):
            too_long: list[int] = []
            for number, encoded in _encoded(encode, questions, waiting, shown, kept, by):
                over = max(map(len, encoded)) - 1 - sequence_length
                if over > 0 and kept:
                    too_long.append(number)
                    continue
                cut += over > 0
                rows += _rows(number, encoded, max(over, 0), questions[number].where)
            shortened.update(too_long)
            waiting = too_long
        subjects = sorted({question.subject for question in questions})
        return cls(
            subjects=tuple(subjects),
            subject_numbers=np.array([subjects.index(question.subject) for question in questions], np.int64),
            answers=np.array([question.answer for question in questions], np.int64),
            divisors=np.array(
                [[len(option) if by == "content" else 1 for option in question.options] for question in questions],
                np.float64,
            ),
            # A stable sort: the same batches on every rank.
            rows=tuple(sorted(rows, key=lambda row: -len(row.ids))),
            shots=shots,
            by=by,
            shortened=len(shortened),
            cut=cut,
        )


def log_likelihoods(
    model: Any,
    choices: Choices,
    *,
    device: str,
    micro_batch: int = MICRO_BATCH,
    rank: int = 0,
    world: int = 1,
    total: Callable[..., list[float]] | None = None,
) -> NDArray[np.float64]:
    """float64[Q, 4]: Σ log p of the tokens of each option, divided as `choices` says; the same on every rank.

    model: a module, or DeepSpeed's engine, from input_ids to .logits. rank, world: of data-parallel ranks, which deal
    the batches among them; those that share a model or a sequence have the same. total: sums numbers over all ranks.
    All ranks must call it: each does as many passes as the others, the last perhaps for nothing, since under ZeRO-3 a
    pass is a collective. Raises RunError for a model whose numbers are none.
    """
    import torch

    if micro_batch < 1:
        raise ConfigError(f"micro_batch: expected 1 or more, found {micro_batch}")
    batches = [choices.rows[start : start + micro_batch] for start in range(0, len(choices.rows), micro_batch)]
    sparing = _keeps_positions(model)
    options, found = [], []
    was_training = model.training
    model.eval()
    try:
        # Not inference_mode: tensors made there cannot be what ZeRO-3 keeps of a parameter for the next step.
        with torch.no_grad():
            for number in range(rank, -(-len(batches) // world) * world, world):
                if number < len(batches):
                    options += [row.options for row in batches[number]]
                    found.append(_target_log_likelihoods(model, batches[number], device, sparing))
                else:
                    _target_log_likelihoods(model, choices.rows[-1:], device, sparing)
        values = torch.cat(found).double().cpu().numpy() if found else np.zeros(0)
    finally:
        model.train(was_training)
    mine = np.bincount(np.concatenate(options) if options else np.zeros(0, np.int64), values, choices.divisors.size)
    sums = mine.tolist()
    if total:
        # Ranks that share a model each bring the same sums.
        *sums, ranks = total(*sums, 1.0)
        sums = [value / (ranks / world) for value in sums]
    scores = np.array(sums).reshape(choices.divisors.shape) / choices.divisors
    if not np.isfinite(scores).all():
        wrong = int(np.argmin(np.isfinite(scores).all(axis=1)))
        raise RunError(
            f"choices: expected numbers from the model, found {scores[wrong].tolist()} for question {wrong + 1:,}, of "
            f"{choices.subjects[choices.subject_numbers[wrong]]}: its weights or its precision are at fault"
        )
    return scores


def summary(choices: Choices, scores: NDArray[np.float64]) -> dict[str, Any]:
    """Accuracies of log-likelihoods float64[Q, 4], JSON-like.

    macro_accuracy: the mean over subjects, which the benchmarks report; accuracy: over questions. Standard errors are
    sqrt(p (1 - p) / n), of the mean over S subjects sqrt(Σ p (1 - p) / n) / S. loss: the mean of -log of what the right
    option has of the four, by their scores: log 4 where it has a quarter. Of equal scores the first counts.
    """
    right_Q = scores.argmax(axis=1) == choices.answers
    num_subjects = len(choices.subjects)
    counts = np.bincount(choices.subject_numbers, minlength=num_subjects)
    correct = np.bincount(choices.subject_numbers, right_Q, num_subjects)
    shares = correct / counts
    accuracy = float(right_Q.mean())
    return {
        "questions": len(right_Q),
        "by": choices.by,
        "shots": choices.shots,
        "macro_accuracy": float(shares.mean()),
        "macro_standard_error": float(np.sqrt((shares * (1 - shares) / counts).sum()) / num_subjects),
        "accuracy": accuracy,
        "standard_error": float(np.sqrt(accuracy * (1 - accuracy) / len(right_Q))),
        "loss": float(-_log_shares(scores)[np.arange(len(right_Q)), choices.answers].mean()),
        "shortened": choices.shortened,
        "cut": choices.cut,
        "subjects": {
            name: {"questions": int(count), "correct": int(good), "accuracy": float(share)}
            for name, count, good, share in zip(choices.subjects, counts, correct, shares, strict=True)
        },
    }


def choice_numbers(model: Any, choices: Choices, **where: Any) -> dict[str, float]:
    """What a run tracks: accuracy over subjects, its standard error, and the loss, which moves earlier; see `summary`.
    where: as for `log_likelihoods`. All ranks must call it."""
    found = summary(choices, log_likelihoods(model, choices, **where))
    return {
        "choice_accuracy": found["macro_accuracy"],
        "choice_standard_error": found["macro_standard_error"],
        "choice_loss": found["loss"],
    }


def prompt(subject: str, question: Question, shown: Sequence[Question], by: By) -> str:
    """What stands before the option: C-Eval's and CMMLU's form, the examples with their answers."""
    solved = [_asked(example, by) + _options(example, by)[example.answer] for example in shown]
    head = f"以下是中国关于{subject}的单项选择题，请选出其中的正确答案。"
    return "\n\n".join([head, *solved, _asked(question, by)])


def _asked(question: Question, by: By) -> str:
    listed = [f"{letter}. {option}" for letter, option in zip(LETTERS, question.options, strict=True)]
    return "\n".join([question.text, *(listed if by == "letter" else ()), "答案："])


def _options(question: Question, by: By) -> Sequence[str]:
    return LETTERS if by == "letter" else question.options


def _encoder(path: str, vocab_size: int) -> Callable[[list[str]], list[list[int]]]:
    """From texts to ids. Raises InputError for no tokenizer.json, ConfigError for one of more ids than the model's."""
    from tokenizers import Tokenizer

    file = Path(path)
    file = file / "tokenizer.json" if file.is_dir() else file
    try:
        tokenizer = Tokenizer.from_buffer(file.read_bytes())
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}; expected the model's tokenizer.json") from None
    except Exception as error:  # noqa: BLE001  the library raises bare Exception
        raise InputError(f"{file}: expected a tokenizer.json, found: {first_line(error)}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if largest >= vocab_size:
        raise ConfigError(
            f"{file}: expected ids below {vocab_size:,}, the vocabulary of the model, found {largest:,}: take the "
            "model's own tokenizer, or a model with more embeddings"
        )
    return lambda texts: [found.ids for found in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def _encoded(
    encode: Callable[[list[str]], list[list[int]]],
    questions: Sequence[Question],
    numbers: Sequence[int],
    shown: dict[str, list[Question]],
    kept: int,
    by: By,
) -> Iterator[tuple[int, list[list[int]]]]:
    """(question, ids of its prompt with `kept` examples, then with each option)."""
    for start in range(0, len(numbers), _CHUNK):
        chunk = numbers[start : start + _CHUNK]
        texts: list[str] = []
        for number in chunk:
            question = questions[number]
            examples = shown.get(question.subject, [])
            before = prompt(question.topic, question, examples[len(examples) - kept :], by)
            texts += [before, *(before + option for option in _options(question, by))]
        ids = encode(texts)
        width = 1 + len(LETTERS)
        yield from ((number, ids[width * at : width * (at + 1)]) for at, number in enumerate(chunk))


def _rows(number: int, encoded: Sequence[list[int]], cut: int, where: str) -> Iterator[Row]:
    """Of the ids of a prompt and of it with each option, less the first `cut`; options of equal inputs share a row."""
    shared = common_prefix(encoded)
    if shared <= cut:
        longest = max(map(len, encoded)) - shared
        raise ConfigError(
            f"{where}: an option takes {longest:,} tokens, which leaves no context: raise sequence_length"
        )
    groups: dict[tuple[int, ...], list[int]] = {}
    for option, ids in enumerate(encoded[1:]):
        groups.setdefault(tuple(ids[cut:-1]), []).append(option)
    for inputs, options in groups.items():
        targets = [encoded[1 + option][shared:] for option in options]
        if not all(targets):
            raise InputError(f"{where}: expected an option that has tokens, found none: another tokenizer is needed")
        yield Row(
            ids=np.array(inputs, np.int64),
            options=np.repeat(np.array(options) + len(LETTERS) * number, [len(found) for found in targets]),
            positions=np.concatenate([np.arange(len(found)) for found in targets]) + shared - cut - 1,
            targets=np.concatenate(targets).astype(np.int64),
        )


def common_prefix(encoded: Sequence[list[int]]) -> int:
    """How many ids all begin with."""
    lowest, highest = min(encoded), max(encoded)
    # What the first and the last in order share, all between them share too.
    for place, (one, other) in enumerate(zip(lowest, highest, strict=False)):
        if one != other:
            return place
    return len(lowest)


def _keeps_positions(model: Any) -> bool:
    """Whether the model can be told of which positions logits are wanted; nearly all of transformers' can."""
    import inspect

    return "logits_to_keep" in inspect.signature(getattr(model, "module", model).forward).parameters


def _target_log_likelihoods(model: Any, rows: Sequence[Row], device: str, sparing: bool) -> Any:
    """float32[targets of the rows], on the device."""
    import torch

    # Padded on the right: what comes later no causal model sees, so that no mask is needed.
    ids = np.zeros((len(rows), max(len(row.ids) for row in rows)), np.int64)
    for place, row in enumerate(rows):
        ids[place, : len(row.ids)] = row.ids
    row_T = np.repeat(np.arange(len(rows)), [len(row.targets) for row in rows])
    position_T = np.concatenate([row.positions for row in rows])
    kept: dict[str, Any] = {}
    if sparing:
        # Of every row the positions of all: few, since rows of a batch are of nearly equal length.
        positions, position_T = np.unique(position_T, return_inverse=True)
        kept = {"logits_to_keep": torch.from_numpy(positions).to(device)}
    logits = model(input_ids=torch.from_numpy(ids).to(device), use_cache=False, **kept).logits
    picked = logits[torch.from_numpy(row_T).to(device), torch.from_numpy(position_T).to(device)].float()
    targets = torch.from_numpy(np.concatenate([row.targets for row in rows])).to(device)
    return picked.log_softmax(dim=-1).gather(1, targets[:, None])[:, 0]


def _log_shares(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    highest = scores.max(axis=1, keepdims=True)
    return scores - highest - np.log(np.exp(scores - highest).sum(axis=1, keepdims=True))
