"""Multiple-choice questions as the benchmarks publish them: C-Eval's CSV, CMMLU's CSV, JSON lines with the same keys.

    id,question,A,B,C,D,answer[,explanation]      C-Eval: accountant_val.csv, accountant_dev.csv
    ,Question,A,B,C,D,Answer                      CMMLU: agronomy.csv

In: files, or folders of which all *.csv and *.jsonl directly below are read; local disks. Out: `Question`s in the order
of files and rows. Columns go by their names, whatever their case, and others are ignored; UTF-8, with or without a BOM.
The subject is the file's name without _val, _dev, _test; where the folder holds C-Eval's subject_mapping.json, prompts
call it by the Chinese name there. Files are read whole, some 10 MB in all. Prompts and tokens are left to `choices`.
"""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from taojin.core.errors import ConfigError, InputError
from taojin.core.storage import first_line

LETTERS = ("A", "B", "C", "D")
SUFFIXES = (".csv", ".jsonl")
MAPPING = "subject_mapping.json"
_COLUMNS = ("question", *LETTERS, "answer")
_SPLIT = re.compile(r"_(val|valid|validation|dev|test|train)$")


class Question(NamedTuple):
    """subject: the file's name · topic: what prompts call it · options: four · answer: 0 to 3 · where: for errors"""

    subject: str
    topic: str
    text: str
    options: tuple[str, ...]
    answer: int
    where: str


def read_choices(paths: Sequence[str]) -> list[Question]:
    """All questions of these files and folders. Raises InputError for what is missing, is not of one of the shapes, has
    no answer, or is a second file of a subject: subjects are counted by their names, and benchmarks share some."""
    if not paths:
        raise ConfigError("choices: expected a file or a folder of questions, found none")
    files = [file for path in paths for file in _files(path)]
    seen: dict[str, Path] = {}
    found: list[Question] = []
    for file in files:
        subject = subject_of(file)
        if subject in seen:
            raise InputError(
                f"{file}: expected one file of a subject, found {seen[subject]} of {subject} too: evaluate them apart"
            )
        seen[subject] = file
        found += _read(file, subject)
    return found


def examples_by_subject(paths: Sequence[str], shots: int, subjects: Sequence[str]) -> dict[str, list[Question]]:
    """The first `shots` questions of each of these subjects. Raises InputError for a subject that has fewer."""
    if not shots:
        return {}
    known: dict[str, list[Question]] = {}
    for question in read_choices(paths):
        known.setdefault(question.subject, []).append(question)
    for subject in dict.fromkeys(subjects):
        if (found := len(known.get(subject, ()))) < shots:
            raise InputError(
                f"examples: expected {shots} of {subject}, found {found} in {', '.join(paths)}: add them, or ask for "
                f"fewer shots"
            )
    return {subject: known[subject][:shots] for subject in subjects}


def subject_of(file: Path) -> str:
    return _SPLIT.sub("", file.stem)


def _files(path: str) -> list[Path]:
    place = Path(path)
    if place.is_file():
        if place.suffix not in SUFFIXES:
            raise InputError(f"{path}: expected a file of {', '.join(SUFFIXES)}; convert it")
        return [place]
    if not place.is_dir():
        raise InputError(f"{path}: no such file or folder; expected questions as {', '.join(SUFFIXES)} on a local disk")
    if files := sorted(file for file in place.iterdir() if file.suffix in SUFFIXES and file.is_file()):
        return files
    raise InputError(f"{path}: expected files of {', '.join(SUFFIXES)} directly in the folder, found none")


def _read(file: Path, subject: str) -> Iterator[Question]:
    topic = _topic(file.with_name(MAPPING), subject)
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: expected UTF-8, found another byte at {error.start:,}; convert the file") from None
    number = 0
    for number, fields in enumerate(_csv_rows(file, text) if file.suffix == ".csv" else _json_rows(file, text), 1):
        where = f"{file}: row {number:,}"
        if missing := [name for name in _COLUMNS if name.lower() not in fields]:
            raise InputError(
                f"{where}: expected question, A, B, C, D, answer, found no {', '.join(missing)} among "
                f"{', '.join(name or 'a column without a name' for name in fields)}"
            )
        values = [_text(fields[name.lower()], name, where) for name in _COLUMNS]
        letter = values[-1].upper()
        if letter not in LETTERS:
            raise InputError(f"{where}: expected the answer A, B, C or D, found {values[-1]!r}")
        yield Question(subject, topic, values[0], tuple(values[1:5]), LETTERS.index(letter), where)
    if not number:
        raise InputError(f"{file}: expected questions, found none; remove the file")


def _topic(mapping: Path, subject: str) -> str:
    """A subject's Chinese name, by {"accountant": ["Accountant", "注册会计师", "Other"]} or {"accountant": "…"}."""
    if not mapping.is_file():
        return subject
    try:
        name = orjson.loads(mapping.read_bytes())[subject]
        return str(name if isinstance(name, str) else name[1])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        raise InputError(
            f'{mapping}: expected {{"{subject}": ["…", "Chinese name", "…"]}} in it, found no such entry'
        ) from None


def _text(value: Any, name: str, where: str) -> str:
    """Numbers are options too. Raises InputError for nothing, and for what is neither."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(f"{where}: expected text for {name}, found {'null' if value is None else repr(value)}")
    text = str(value).strip()
    if not text:
        raise InputError(f"{where}: expected text for {name}, found nothing")
    return text


def _csv_rows(file: Path, text: str) -> Iterator[dict[str, Any]]:
    # Strict: a quote that is never closed would make one field of the rest of the file.
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    number = 0
    try:
        header = [name.strip().lower() for name in next(rows, [])]
        for row in rows:
            if not row:
                continue
            number += 1
            if len(row) != len(header):
                raise InputError(
                    f"{file}: row {number:,}: expected {len(header)} fields as in the header, found {len(row)}"
                )
            yield dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise InputError(f"{file}: row {number + 1:,}: expected CSV, found: {first_line(error)}") from None


def _json_rows(file: Path, text: str) -> Iterator[dict[str, Any]]:
    number = 0
    for line in text.split("\n"):
        if not line.strip():
            continue
        number += 1
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise InputError(f"{file}: row {number:,}: expected a JSON object, found: {first_line(error)}") from None
        if not isinstance(record, dict):
            raise InputError(f"{file}: row {number:,}: expected a JSON object, found a {type(record).__name__}")
        yield {name.strip().lower(): value for name, value in record.items()}
