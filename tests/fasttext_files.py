"""Writes tiny fastText classifiers, and predicts with them as slowly as the format's description reads."""

import math
import struct
from pathlib import Path
from typing import NamedTuple

SOFTMAX, ONE_VERSUS_ALL, HIERARCHICAL = 3, 4, 1
SPACES = " \t\n\v\f\r\0"


class Tiny(NamedTuple):
    """labels: (name, count), counts falling · input: one row per word, then per bucket · output: one row per label."""

    words: list[str]
    labels: list[tuple[str, int]]
    input: list[list[float]]
    output: list[list[float]]
    min_n: int = 0
    max_n: int = 0
    word_ngrams: int = 1
    buckets: int = 0
    loss: int = SOFTMAX
    version: int = 12
    kind: int = 3
    magic: int = 793712314


def model_bytes(tiny: Tiny) -> bytes:
    width = len(tiny.output[0])
    out = struct.pack("<ii", tiny.magic, tiny.version)
    out += struct.pack("<9i", width, 5, 5, 1, 5, tiny.word_ngrams, tiny.loss, tiny.kind, tiny.buckets)
    out += struct.pack("<3id", tiny.min_n, tiny.max_n, 100, 1e-4)
    size = len(tiny.words) + len(tiny.labels)
    out += struct.pack("<iiiqq", size, len(tiny.words), len(tiny.labels), 1000, -1)
    for word in tiny.words:
        out += word.encode() + struct.pack("<bqb", 0, 10, 0)
    for label, count in tiny.labels:
        out += b"__label__" + label.encode() + struct.pack("<bqb", 0, count, 1)
    for matrix in (tiny.input, tiny.output):
        out += struct.pack("<?qq", False, len(matrix), width)
        out += b"".join(struct.pack(f"<{width}f", *row) for row in matrix)
    return out


def write_model(path: Path, tiny: Tiny) -> Path:
    path.write_bytes(model_bytes(tiny))
    return path


def fnv(data: bytes) -> int:
    h = 2166136261
    for byte in data:
        h = (h ^ (byte | 0xFFFFFF00 if byte > 127 else byte)) * 16777619 & 0xFFFFFFFF
    return h


def rows_of(tiny: Tiny, text: str) -> list[int]:
    for space in SPACES:
        text = text.replace(space, " ")
    rows, hashes = [], []
    for word in [*text.split(" "), "</s>"]:
        if not word or (word not in tiny.words and word.startswith("__label__")):
            continue
        h = fnv(word.encode())
        hashes.append(h - (1 << 32) if h >> 31 else h)
        if word in tiny.words:
            rows.append(tiny.words.index(word))
        if word == "</s>":
            break
        marked = f"<{word}>"
        for n in range(max(tiny.min_n, 1), tiny.max_n + 1):
            for i in range(len(marked) - n + 1):
                gram = marked[i : i + n]
                if gram not in ("<", ">") or 0 < i < len(marked) - 1:
                    rows.append(len(tiny.words) + fnv(gram.encode()) % tiny.buckets)
    for n in range(2, tiny.word_ngrams + 1):
        for i in range(len(hashes) - n + 1):
            h = hashes[i]
            for other in hashes[i + 1 : i + n]:
                h = h * 116049371 + other
            rows.append(len(tiny.words) + h % (1 << 64) % tiny.buckets)
    return rows


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def probabilities(tiny: Tiny, text: str) -> list[float] | None:
    """Of each label; None where the model knows nothing of the text."""
    rows = rows_of(tiny, text)
    if not rows:
        return None
    width = len(tiny.output[0])
    hidden = [sum(tiny.input[row][k] for row in rows) / len(rows) for k in range(width)]
    dots = [sum(w * x for w, x in zip(row, hidden, strict=True)) for row in tiny.output]
    if tiny.loss == ONE_VERSUS_ALL:
        return [sigmoid(dot) for dot in dots]
    if tiny.loss == SOFTMAX:
        total = sum(math.exp(dot) for dot in dots)
        return [math.exp(dot) / total for dot in dots]
    return _down_the_tree(tiny, dots)


def _down_the_tree(tiny: Tiny, dots: list[float]) -> list[float]:
    """The two rarest nodes are joined until one is left; a leaf is taken before an inner node if it is rarer."""
    leaves = [(count, label) for label, (_, count) in enumerate(tiny.labels)]
    inner: list[tuple[int, int]] = []
    paths: dict[int, list[tuple[int, bool]]] = {label: [] for label in range(len(leaves))}
    below: dict[int, list[int]] = {label: [label] for label in range(len(leaves))}
    for number in range(len(tiny.labels) - 1):
        node = len(tiny.labels) + number
        pair = [
            leaves.pop() if leaves and (not inner or leaves[-1][0] < inner[0][0]) else inner.pop(0) for _ in range(2)
        ]
        for right, (_, child) in zip((False, True), pair, strict=True):
            for label in below[child]:
                paths[label].append((number, right))
        below[node] = below[pair[0][1]] + below[pair[1][1]]
        inner.append((pair[0][0] + pair[1][0], node))
    return [
        math.prod(sigmoid(dots[n]) if right else 1 - sigmoid(dots[n]) for n, right in paths[label])
        for label in range(len(tiny.labels))
    ]
