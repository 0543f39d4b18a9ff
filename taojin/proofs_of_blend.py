"""Proof of the blend files of an output of `taojin tokenize`: from which pairs, in which shares, samples are drawn.

Reads both files and the manifest, no pair.
"""

import math

from taojin.core.uris import last_part, split_query
from taojin.proofs import BrokenError
from taojin.proofs_of_pair import Prefix
from taojin.proofs_of_tokens import Tokens
from taojin.report import number
from taojin.tokenize.blend import JSON, MEGATRON_SPLITS, TEXT, parse_weights


def prove_blend(output: Tokens) -> tuple[bool, str]:
    """Each split's blend names its pairs that have tokens, each weighed by tokens × factor of its source."""
    factors = parse_weights(output.manifest["config"]["weights"])
    where, folder = output.prefix.file(JSON), output.prefix.folder
    blends = {split: flat for split, flat in folder.read_json(output.prefix.name + JSON).items() if flat}
    expected: dict[str, dict[str, float]] = {}
    for entry in output.manifest["pairs"]:
        if entry["tokens"]:
            weight = entry["tokens"] * factors.get(entry["source"], 1.0)
            expected.setdefault(entry["split"], {})[entry["name"]] = weight
    if len(expected) == 1 and not expected.keys() & set(MEGATRON_SPLITS):
        expected = dict(zip(["train"], expected.values(), strict=True))
    if blends.keys() != expected.keys():
        raise BrokenError(where, f"splits {', '.join(blends)}, in the manifest {', '.join(expected)}")
    elsewhere = 0
    for split, flat in blends.items():
        weights, prefixes = [float(weight) for weight in flat[::2]], flat[1::2]
        names, total = list(expected[split]), math.fsum(expected[split].values())
        if [last_part(prefix) for prefix in prefixes] != names:
            raise BrokenError(where, f"{split}: the pairs are not those of the manifest, {', '.join(names)}")
        for name, weight in zip(names, weights, strict=True):
            share = expected[split][name] / total
            if not math.isclose(weight, share, rel_tol=1e-9):
                raise BrokenError(where, f"{split}: {name} weighs {weight:.6f}, by its tokens {share:.6f}")
        elsewhere += sum(prefix != _path_of(output.prefix.sibling(last_part(prefix))) for prefix in prefixes)
    # Nobody writes one without pairs to train on, or with a prefix that white space would cut.
    expected_text = blends.get("train") and not any(len(word.split()) != 1 for word in blends["train"])
    if expected_text and not output.prefix.has(TEXT):
        raise BrokenError(output.prefix.file(TEXT), "not there; run the same command again to write it")
    if output.prefix.has(TEXT):
        words = folder.read_bytes(output.prefix.name + TEXT).decode().split()
        if words != blends.get("train", []):
            raise BrokenError(output.prefix.file(TEXT), f"not what {output.prefix.name + JSON} says of train")
    detail = (
        f"{number(sum(map(len, expected.values())), 'pair')} weighed by tokens in {', '.join(expected) or 'no split'}"
    )
    note = f"; {elsewhere:,} of their paths are not here: the output was moved" if elsewhere else ""
    return True, detail + note


def _path_of(prefix: Prefix) -> str:
    """As a blend names it: absolute, or a URI without the query that is of our connection."""
    return prefix.folder.path(prefix.name) if prefix.folder.is_local else split_query(prefix.uri)[0]
