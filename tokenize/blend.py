"""Blend files: from which pairs, in which proportions, Megatron-LM draws its samples.

In: the pairs of an output with their tokens, and factors of sources. Out, beside the pairs:

    PREFIX.blend.txt     "0.7 /data/zh_train_wiki 0.3 /data/zh_train_code", for --data-args-path: the training split
    PREFIX.blend.json    {"train": ["0.7", "/data/zh_train_wiki", …], "valid": …, "test": …}, for
                         --per-split-data-args-path: every split; null where there is none, which Megatron-LM asks for

A pair's weight is tokens × factor of its source, divided by the sum over its split: without factors every token is
drawn equally often. Weights are written in full: what is read back is the same number.

Megatron-LM opens no pair without tokens, so a blend leaves it out; it blends at most 32,766 pairs.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from taojin.core.errors import ConfigError
from taojin.core.storage import Folder
from taojin.core.uris import split_query, with_suffix

TEXT = ".blend.txt"
JSON = ".blend.json"
# The keys that Megatron-LM reads of the JSON file, all three of which must be there.
MEGATRON_SPLITS = ("train", "valid", "test")
# Beyond a million to one a source is drawn never or alone: a slip of the keyboard, and floats could no longer add up.
LARGEST_FACTOR = 1e6


class Weighted(NamedTuple):
    """A pair as a blend needs it; prefix: its path without .bin."""

    prefix: str
    split: str
    source: str
    tokens: int


Blend = list[tuple[float, str]]
"""(weight, prefix) of the pairs of a split; the weights sum to 1."""


def parse_weights(texts: Sequence[str]) -> dict[str, float]:
    """("wiki=2", "code=0.5") → the factor of each source. Raises ConfigError."""
    weights: dict[str, float] = {}
    for text in texts:
        source, equals, number = text.rpartition("=")
        if not equals or not source:
            raise ConfigError(f"--weights: expected SOURCE=FACTOR such as wiki=2, found {text!r}")
        if source in weights:
            raise ConfigError(f"--weights: {source} is named twice; give it one factor")
        try:
            factor = float(number)
        except ValueError:
            factor = math.nan
        if not 1 / LARGEST_FACTOR <= factor <= LARGEST_FACTOR:
            raise ConfigError(
                f"--weights: {source}: expected a factor from {1 / LARGEST_FACTOR:f} to {LARGEST_FACTOR:.0f}, "
                f"found {number!r}; to draw nothing from a source, leave it out of --input"
            )
        weights[source] = factor
    return weights


def unused_weights(weights: Mapping[str, float], sources: Iterable[str]) -> str:
    """A warning for factors of sources that no document has, or "". The sources are known only after the run."""
    known = set(sources)
    unused = [source for source in weights if source not in known]
    if not unused:
        return ""
    return f"--weights: no document is of the source {', '.join(unused)}; the sources are {_listed(known)}"


def blend_of(pairs: Iterable[Weighted], weights: Mapping[str, float]) -> dict[str, Blend]:
    """The blend of each split, in the order of the pairs; a split without tokens has none."""
    drawn: dict[str, list[tuple[float, str]]] = {}
    for pair in pairs:
        if pair.tokens > 0:
            drawn.setdefault(pair.split, []).append((pair.tokens * weights.get(pair.source, 1.0), pair.prefix))
    blends = {}
    for split, entries in drawn.items():
        total = math.fsum(weight for weight, _ in entries)
        blends[split] = [(weight / total, prefix) for weight, prefix in entries]
    return blends


def blend_text(blends: Mapping[str, Blend]) -> str:
    """For --data-args-path: the split called train, or the only one. "" where there is neither, and where a prefix
    holds white space: Megatron-LM would cut it there."""
    entries = _per_split(blends)["train"] or []
    if any(prefix.split() != [prefix] for _, prefix in entries):
        return ""
    return "".join(f"{weight!r} {prefix}\n" for weight, prefix in entries)


def blend_json(blends: Mapping[str, Blend]) -> str:
    """For --per-split-data-args-path. Splits of other names stand behind those that Megatron-LM reads."""
    flat = {
        split: [part for weight, prefix in entries for part in (repr(weight), prefix)] if entries else None
        for split, entries in _per_split(blends).items()
    }
    return json.dumps(flat, ensure_ascii=False, indent=1) + "\n"


def write_blend(folder: Folder, stem: str, pairs: Sequence[Mapping[str, Any]], weights: Mapping[str, float]) -> None:
    """Write both files of the PREFIX folder/stem. pairs: entries of its manifest (name, split, source, tokens)."""
    blends = blend_of(
        [Weighted(_prefix(folder, pair["name"]), pair["split"], pair["source"], pair["tokens"]) for pair in pairs],
        weights,
    )
    for suffix, text in ((TEXT, blend_text(blends)), (JSON, blend_json(blends))):
        if text:
            with folder.create(f"{stem}{suffix}") as sink:
                sink.write(text.encode())


def _per_split(blends: Mapping[str, Blend]) -> dict[str, Blend | None]:
    """By Megatron-LM's names: an only split is for training, unless it is called valid or test."""
    if len(blends) == 1 and not blends.keys() & set(MEGATRON_SPLITS):
        blends = dict(zip(["train"], blends.values(), strict=True))
    return {**dict.fromkeys(MEGATRON_SPLITS), **blends}


def _prefix(folder: Folder, name: str) -> str:
    """Where training finds a pair, wherever it is started. A URI's query is of our connection and stays with us."""
    return folder.path(name) if folder.is_local else split_query(with_suffix(folder.uri, f"/{name}"))[0]


def _listed(sources: Iterable[str]) -> str:
    """The first few, quoted."""
    names = sorted(sources)
    shown = ", ".join(map(repr, names[:10]))
    return f"{shown} and {len(names) - 10} more" if len(names) > 10 else shown
