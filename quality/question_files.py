"""Evaluation sets as files: JSON lines, CSV or Parquet, alone or in folders, in the shapes that sets are published in.

Columns go by their names, whatever their case: C-Eval and CMMLU (question, A, B, C, D, answer), GSM8K (question,
answer), choices as a list or as {"text": […], "label": […]}; else a field prompt, problem, query, text or content.
Other columns are ignored: a reading passage in a column of its own (passage, context) is public text as a rule. Files
are read whole.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from taojin.core.errors import InputError
from taojin.core.storage import first_line, resolve

SUFFIXES = (".jsonl", ".csv", ".parquet")
# In lower case; the first that a file has.
QUESTION_COLUMNS = ("question", "prompt", "problem", "query", "text", "content")
ID_COLUMNS = ("id", "index", "question_id", "task_id", "")
CHOICE_COLUMNS = ("choices", "options")
ANSWER_COLUMNS = ("answer",)
LETTERS = "abcdefghij"


class Question(NamedTuple):
    id: str
    text: str
    choices: tuple[str, ...] = ()
    answer: str = ""


def read_questions(path: str) -> list[Question]:
    """The questions of a file, or of all readable files of a folder and its subfolders, by name."""
    filesystem, root = resolve(path)
    found: list[Question] = []
    files = _files(filesystem, root, path)
    for file in files:
        # Subject files of C-Eval and CMMLU each count from 0.
        prefix = "" if file == root else _stem(file[len(root) :].lstrip("/")) + "/"
        try:
            with filesystem.open_input_file(file) as stream:
                content = stream.read()
        except OSError as error:
            raise InputError(f"{file}: cannot be read: {first_line(error)}") from None
        before = len(found)
        found.extend(q._replace(id=prefix + q.id) for q in _parse(file, content))
        if len(found) == before:
            raise InputError(f"{file}: expected evaluation questions, found none; remove the file")
    return found


def _files(filesystem: pafs.FileSystem, root: str, path: str) -> list[str]:
    try:
        info = filesystem.get_file_info(root)
        if info.type == pafs.FileType.File:
            return [root]
        if info.type == pafs.FileType.NotFound:
            raise InputError(f"{path}: no such evaluation set; expected a file or folder of {', '.join(SUFFIXES)}")
        inside = filesystem.get_file_info(pafs.FileSelector(root, recursive=True))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {first_line(error)}") from None
    files = sorted(i.path for i in inside if i.type == pafs.FileType.File and i.path.endswith(SUFFIXES))
    if not files:
        raise InputError(f"{path}: expected a file of {', '.join(SUFFIXES)}, found none in the folder")
    return files


def _stem(name: str) -> str:
    return name.rsplit(".", 1)[0]


def _parse(file: str, content: bytes) -> Iterator[Question]:
    if file.endswith(".parquet"):
        rows = _parquet_rows(file, content)
    elif file.endswith(".csv"):
        rows = _csv_rows(file, content)
    elif file.endswith(".jsonl"):
        rows = _jsonl_rows(file, content)
    else:
        raise InputError(f"{file}: expected a file of {', '.join(SUFFIXES)}; convert it")
    for number, record in enumerate(rows):
        fields = {str(name).strip().lower(): value for name, value in record.items() if name is not None}
        column = _first(QUESTION_COLUMNS, fields)
        if column is None:
            columns = ", ".join(str(name) for name in record)
            raise InputError(
                f"{file}: row {number + 1}: expected a column {', '.join(QUESTION_COLUMNS)}, found {columns}"
            )
        identifier = _first(ID_COLUMNS, fields)
        answer = _first(ANSWER_COLUMNS, fields)
        yield Question(
            id=_text(fields[identifier]) if identifier is not None else str(number),
            text=_text(fields[column]),
            choices=_choices(fields),
            answer=_text(fields[answer]) if answer is not None else "",
        )


def _first(names: Sequence[str], fields: dict[str, Any]) -> str | None:
    return next((name for name in names if name in fields), None)


def _text(value: object) -> str:
    """A list (several correct answers, a question in parts) is joined; half of a surrogate pair becomes "?"."""
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return "\n".join(_text(v) for v in value)
    return str(value).encode("utf-8", "replace").decode()


def _choices(fields: dict[str, Any]) -> tuple[str, ...]:
    """A list, a list inside a record ({"text": […], "label": […]}), or the columns A, B, C …"""
    name = _first(CHOICE_COLUMNS, fields)
    if name is not None:
        value = fields[name]
        if isinstance(value, dict):
            value = value.get("text", list(value.values()))
        return tuple(_text(v) for v in value) if isinstance(value, list | tuple) else (_text(value),)
    return tuple(_text(fields[letter]) for letter in LETTERS if letter in fields)


def _jsonl_rows(file: str, content: bytes) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise InputError(f"{file}: line {number}: expected a JSON object, found {error}") from None
        if not isinstance(record, dict):
            raise InputError(f"{file}: line {number}: expected a JSON object, found a {type(record).__name__}")
        yield record


def _csv_rows(file: str, content: bytes) -> Iterator[dict[str, Any]]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: expected UTF-8, found other bytes at {error.start}; convert the file") from None
    limit = csv.field_size_limit(len(text) + 1)
    try:
        yield from list(csv.DictReader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise InputError(f"{file}: expected CSV with a header line: {error}") from None
    finally:
        csv.field_size_limit(limit)


def _parquet_rows(file: str, content: bytes) -> Iterator[dict[str, Any]]:
    try:
        yield from pq.read_table(pa.BufferReader(content)).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{file}: expected Parquet: {first_line(error)}") from None
