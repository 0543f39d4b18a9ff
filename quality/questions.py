"""Evaluation sets, read from files and reduced to runs: what decontamination looks for in documents.

A *run* is n consecutive symbols (`taojin.core.text`: a Chinese character, or a word of another script), as one rolled
64-bit hash. So spacing, width, case, punctuation and Traditional or Simplified script make no difference.

What of a question is matched. Its question text alone: choices ("A. 3") are short, and three of them in a row say more
about the subject than about the question. A question of fewer than n symbols is matched together with its choices, in
order, with and without the marks A B C D; where that is still too short, its answer follows. What is shorter than n
symbols even then is counted as too short and never matched.

What is no evidence. A run that stands in more than `max_questions` different questions of one set is boilerplate
("阅读下面的文字，完成下列各题", "Which of the following is correct") and left out. Different means: after folding, so
that the same question in two files, or in two sets, stays evidence however often it is given. The limit must let
reading passages pass, which stand in every question asked about them: see MAX_QUESTIONS.

Cost: 5 MB of question files a second; in memory 16 bytes a run and 4 for each question that holds it. Only these arrays
are pickled. Looking runs up in documents is `taojin.quality.contamination`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from taojin.core.errors import ConfigError
from taojin.core.fold import FOLD_VERSION, load_fold_table
from taojin.core.jit import kernel
from taojin.core.text import SYMBOLS_PER_BYTE, fold_symbols, roll_shingles, scratch_for, text_buffers
from taojin.core.uris import last_part
from taojin.quality.question_files import LETTERS, SUFFIXES, Question, read_questions

# GPT-3 (Brown et al. 2020, appendix C) looked for 13 words in a row; most work since has kept the number.
NGRAM = 13
# Fewer symbols in a row are everyday phrases, not questions.
SMALLEST_NGRAM = 4
# Passages of AGIEval's Gaokao English and Chinese stand in 3 to 8 questions each; instructions of GAOKAO-Bench
# ("阅读下面短文，从短文后各题所给的…") in 4 to 31.
MAX_QUESTIONS = 10

# Folders and URIs have slashes before any equals sign.
_NAMED = re.compile(r"([\w.-]+)=(.+)", re.DOTALL)


class SetCounts(NamedTuple):
    """Of one evaluation set: its questions; those matched with their choices; those never matched, because they are
    too short or hold nothing but boilerplate."""

    name: str
    questions: int
    with_choices: int
    too_short: int
    only_boilerplate: int


@dataclass(frozen=True, kw_only=True)
class Questions:
    """What is looked for; Q questions of all sets, R distinct runs.

    set_number: int32[Q], index into `sets` · ids: large_string[Q] · num_runs: int32[Q], distinct runs that are evidence
    · runs: uint64[R], ascending · holders: int32, ascending within a run: the questions of run r are
    holders[holder_offsets[r]:holder_offsets[r + 1]], holder_offsets int64[R + 1] · boilerplate_runs: how many were left
    out
    """

    ngram: int
    max_questions: int
    sets: tuple[SetCounts, ...]
    set_number: NDArray[np.int32]
    ids: pa.LargeStringArray
    num_runs: NDArray[np.int32]
    runs: NDArray[np.uint64]
    holder_offsets: NDArray[np.int64]
    holders: NDArray[np.int32]
    boilerplate_runs: int


def load_questions(specs: Sequence[str], *, ngram: int = NGRAM, max_questions: int = MAX_QUESTIONS) -> Questions:
    """Read evaluation sets; a spec is NAME=PATH or PATH, a path or URI of a file or a folder of files.

    Raises ConfigError for a number out of range or two sets of one name, InputError for what cannot be read or holds no
    question.
    """
    names: list[str] = []
    questions: list[list[Question]] = []
    for spec in specs:
        name, path = split_spec(spec)
        if name in names:
            raise ConfigError(f"two evaluation sets are called {name}; name them apart: NAME={path}")
        names.append(name)
        questions.append(read_questions(path))
    return make_questions(names, questions, ngram=ngram, max_questions=max_questions)


def split_spec(spec: str) -> tuple[str, str]:
    """(name, path); without a name the file's own, less its ending. A path that holds "=" needs a name."""
    named = _NAMED.fullmatch(spec)
    if named:
        return named[1], named[2]
    name = last_part(spec)
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name, spec


@kernel
def all_runs(
    data: NDArray[np.uint8],
    offsets_T: NDArray[np.int64],
    table: NDArray[np.uint32],
    expansions: NDArray[np.uint32],
    ngram: int,
    scratch: NDArray[np.uint64],
    out: NDArray[np.uint64],
    out_offsets_T: NDArray[np.int64],
    num_symbols_T: NDArray[np.int64],
) -> None:
    """Rolled hashes of text t, in order: out[out_offsets_T[t]:out_offsets_T[t + 1]], and how many symbols it has.

    `out` needs room for SYMBOLS_PER_BYTE × bytes; scratch as for `fold_symbols`.
    """
    out_offsets_T[0] = 0
    for t in range(offsets_T.size - 1):
        count, _, _ = fold_symbols(data, offsets_T[t], offsets_T[t + 1], table, expansions, scratch)
        num_symbols_T[t] = count
        num_runs = roll_shingles(scratch, count, ngram)
        for j in range(num_runs):
            out[out_offsets_T[t] + j] = scratch[j]
        out_offsets_T[t + 1] = out_offsets_T[t] + num_runs


class Runs(NamedTuple):
    """Runs of text t in order, repetitions included: values[offsets[t]:offsets[t + 1]] · num_symbols: int64[T]"""

    values: NDArray[np.uint64]
    offsets: NDArray[np.int64]
    num_symbols: NDArray[np.int64]


def runs_of(texts: Sequence[str], ngram: int) -> Runs:
    data, offsets = text_buffers(pa.array(texts, pa.large_string()))
    longest = int(np.diff(offsets).max(initial=0))
    out = np.empty(SYMBOLS_PER_BYTE * data.size + 1, np.uint64)
    out_offsets, num_symbols = np.zeros(len(texts) + 1, np.int64), np.zeros(len(texts), np.int64)
    all_runs(data, offsets, *load_fold_table(), ngram, scratch_for(longest), out, out_offsets, num_symbols)
    return Runs(out[: out_offsets[-1]].copy(), out_offsets, num_symbols)


def matched_texts(question: Question, step: int) -> list[str]:
    """What stands for a question that was too short `step` times."""
    if step == 0:
        return [question.text]
    answer = [question.answer] if step == 2 else []
    marks = [f"{letter.upper()} " for letter in LETTERS[: len(question.choices)]]
    marked = [
        choice if choice.lstrip(" (（").upper().startswith(mark.strip()) else mark + choice
        for mark, choice in zip(marks, question.choices, strict=False)
    ]
    plain = "\n".join([question.text, *question.choices, *answer])
    return list(dict.fromkeys([plain, "\n".join([question.text, *marked, *question.choices[len(marks) :], *answer])]))


def make_questions(
    names: Sequence[str],
    questions: Sequence[Sequence[Question]],
    *,
    ngram: int = NGRAM,
    max_questions: int = MAX_QUESTIONS,
) -> Questions:
    """Reduce the questions of each named set to runs."""
    if ngram < SMALLEST_NGRAM:
        raise ConfigError(f"expected runs of at least {SMALLEST_NGRAM} symbols, found {ngram}")
    if max_questions < 1:
        raise ConfigError(f"expected at least 1 question that may hold a run, found {max_questions}")
    flat = [question for group in questions for question in group]
    set_Q = np.repeat(np.arange(len(names), dtype=np.int32), [len(group) for group in questions])
    step_Q = np.zeros(len(flat), np.int8)
    waiting = np.arange(len(flat))
    runs, owners = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for step in range(3):
        texts = [(q, text) for q in waiting.tolist() for text in matched_texts(flat[q], step)]
        step_runs = runs_of([text for _, text in texts], ngram)
        owner_T = np.array([q for q, _ in texts], np.int64)
        runs.append(step_runs.values)
        owners.append(np.repeat(owner_T, np.diff(step_runs.offsets)))
        step_Q[waiting] = step
        # A question's variants differ by its marks alone: it waits while none of them is long enough.
        longest_Q = np.zeros(len(flat), np.int64)
        np.maximum.at(longest_Q, owner_T, step_runs.num_symbols)
        waiting = waiting[longest_Q[waiting] < ngram]
    step_Q[waiting] = 3
    return _index(names, flat, set_Q, step_Q, np.concatenate(runs), np.concatenate(owners), ngram, max_questions)


def _index(
    names: Sequence[str],
    flat: Sequence[Question],
    set_Q: NDArray[np.int32],
    step_Q: NDArray[np.int8],
    runs: NDArray[np.uint64],
    owners: NDArray[np.int64],
    ngram: int,
    max_questions: int,
) -> Questions:
    """`runs` with the question that holds each, repetitions included, any order."""
    order = np.lexsort((owners, runs))
    runs, owners = runs[order], owners[order]
    fresh = np.ones(runs.size, bool)
    fresh[1:] = (runs[1:] != runs[:-1]) | (owners[1:] != owners[:-1])
    runs, owners = runs[fresh], owners[fresh]
    distinct, first, run_of = np.unique(runs, return_index=True, return_inverse=True)
    run_of = run_of.reshape(-1)
    # Questions of equal runs are one question.
    num_questions = len(flat)
    content_Q = _content(run_of, owners, num_questions)
    boilerplate = np.zeros(distinct.size, bool)
    for number in range(len(names)):
        of_set = set_Q[owners] == number
        pairs = np.unique(run_of[of_set] * max(num_questions, 1) + content_Q[owners[of_set]])
        boilerplate |= np.bincount(pairs // max(num_questions, 1), minlength=distinct.size) > max_questions
    kept = ~boilerplate[run_of]
    num_holders = np.diff(np.append(first, runs.size))[~boilerplate]
    num_runs_Q = np.bincount(owners[kept], minlength=num_questions).astype(np.int32)
    sets = tuple(
        SetCounts(
            name=name,
            questions=int((set_Q == number).sum()),
            with_choices=int(((set_Q == number) & ((step_Q == 1) | (step_Q == 2))).sum()),
            too_short=int(((set_Q == number) & (step_Q == 3)).sum()),
            only_boilerplate=int(((set_Q == number) & (step_Q < 3) & (num_runs_Q == 0)).sum()),
        )
        for number, name in enumerate(names)
    )
    return Questions(
        ngram=ngram,
        max_questions=max_questions,
        sets=sets,
        set_number=set_Q,
        ids=pa.array([question.id for question in flat], pa.large_string()),
        num_runs=num_runs_Q,
        runs=distinct[~boilerplate],
        holder_offsets=np.concatenate([[0], np.cumsum(num_holders)]).astype(np.int64),
        holders=owners[kept].astype(np.int32),
        boilerplate_runs=int(boilerplate.sum()),
    )


def _content(run_of: NDArray[np.int64], owners: NDArray[np.int64], num_questions: int) -> NDArray[np.int64]:
    """int64[Q]: equal for questions with the same set of runs."""
    order = np.argsort(owners, kind="stable")
    starts = np.searchsorted(owners[order], np.arange(num_questions + 1))
    members = run_of[order]
    numbers: dict[bytes, int] = {}
    content_Q = np.zeros(num_questions, np.int64)
    for q in range(num_questions):
        content = xxhash.xxh3_128_digest(members[starts[q] : starts[q + 1]].tobytes())
        content_Q[q] = numbers.setdefault(content, q)
    return content_Q


def questions_part(questions: Questions) -> dict[str, Any]:
    """What the frozen plan remembers: the counts, and a hash of everything a decision depends on."""
    content = xxhash.xxh3_128()
    for array in (questions.set_number, questions.runs, questions.holder_offsets, questions.holders):
        content.update(array.tobytes())
    content.update(orjson.dumps(questions.ids.to_pylist()))
    return {
        "fold": FOLD_VERSION,
        "ngram": questions.ngram,
        "max_questions": questions.max_questions,
        "sets": [counts._asdict() for counts in questions.sets],
        "runs": int(questions.runs.size),
        "boilerplate_runs": questions.boilerplate_runs,
        "content": content.hexdigest(),
    }
