"""Slow, obvious oracle of decontamination: strings, lists, sets and a regular expression."""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from tests import naive

Run = tuple[int, ...]


class Symbol(NamedTuple):
    value: int
    first: int
    end: int


class Stretch(NamedTuple):
    document: int
    question: int
    first: int
    end: int
    symbols: int
    runs: int


def positions(text: str, table: naive.Table, expansions: naive.Table) -> list[Symbol]:
    """Each symbol of the fold with the bytes from its first character to its last."""
    symbols: list[Symbol] = []
    run: list[tuple[int, int, int]] = []

    def close() -> None:
        if run:
            symbols.append(Symbol(naive.run_hash([letter for letter, _, _ in run]), run[0][1], run[-1][2]))
            run.clear()

    byte = 0
    for character in text:
        end = byte + len(character.encode())
        for kind, value in naive.fold_entries(ord(character), table, expansions):
            if kind == naive.LETTER:
                run.append((value, byte, end))
            elif kind != naive.VANISH:
                close()
                if kind == naive.SYMBOL:
                    symbols.append(Symbol(value, byte, end))
        byte = end
    close()
    return symbols


def runs(symbols: Sequence[Symbol], ngram: int) -> list[Run]:
    values = [symbol.value for symbol in symbols]
    return [tuple(values[i : i + ngram]) for i in range(len(values) - ngram + 1)]


def evidence(questions: Sequence[set[Run]], set_of: Sequence[int], max_questions: int) -> list[set[Run]]:
    """Each question's runs less boilerplate: what more than `max_questions` different questions of a set hold."""
    counted: dict[tuple[int, Run], set[frozenset[Run]]] = defaultdict(set)
    for question, number in zip(questions, set_of, strict=True):
        for run in question:
            counted[number, run].add(frozenset(question))
    boilerplate = {run for (_, run), holders in counted.items() if len(holders) > max_questions}
    return [question - boilerplate for question in questions]


def find(documents: Sequence[Sequence[Symbol]], questions: Sequence[set[Run]], ngram: int) -> list[Stretch]:
    """Stretches in order of document, first symbol and question: symbols of a document that a question's runs cover."""
    found = []
    for d, symbols in enumerate(documents):
        document_runs = runs(symbols, ngram)
        everything = set(document_runs)
        for q, question in enumerate(questions):
            common = everything & question
            if not common:
                continue
            covered = [False] * len(symbols)
            for i, run in enumerate(document_runs):
                if run in common:
                    covered[i : i + ngram] = [True] * ngram
            i = 0
            while i < len(symbols):
                j = i
                while j < len(symbols) and covered[j]:
                    j += 1
                if j > i:
                    found.append((d, i, q, Stretch(d, q, symbols[i].first, symbols[j - 1].end, j - i, len(common))))
                i = j + 1
    return [stretch for *_, stretch in sorted(found)]


_ENDS, _CLOSES = "。！？.!?", "’”〉》」』】〕）\"')]"


def sentences(line: str) -> list[str]:
    """A sentence ends behind marks and what closes behind them: if one of the marks is Chinese, or white space or the
    end of the line follows."""
    found = [""]
    groups = re.findall(rf"[{_ENDS}][{re.escape(_ENDS + _CLOSES)}]*|[^{_ENDS}]+", line)
    for group, following in zip(groups, [*groups, ""][1:], strict=True):
        found[-1] += group
        if group[0] in _ENDS and (set(group) & set("。！？") or not following or following[0] in " \t\v\f\r"):
            found.append("")
    return [sentence for sentence in found if sentence]


def cut(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """The text without the sentences that spans (of characters) touch, and without lines of which nothing is left."""
    lines = []
    begin = 0
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        body = line.removesuffix("\n")
        kept = []
        place = begin
        lost = False
        for sentence in sentences(body):
            end = place + len(sentence)
            if any(first < end and last > place for first, last in spans):
                lost = True
            else:
                kept.append(sentence)
            place = end
        assert place == begin + len(body)
        rest = "".join(kept)
        if not lost or rest.strip(" \t\n\v\f\r"):
            lines.append(rest + line[len(body) :])
        begin += len(line)
    return "".join(lines)
