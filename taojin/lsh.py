"""The LSH curve: with what probability a pair of documents is proposed and accepted, by its similarity.

In: a DedupConfig (bands, rows, sketch, threshold, verify). Out: probabilities, and warnings about a poor layout.
Pure arithmetic; nothing is measured.
"""

from math import ceil, comb, erf, sqrt
from typing import NamedTuple

from taojin.dedup.config import DedupConfig
from taojin.dedup.pairs import accept_at
from taojin.dedup.sketch import standard_error
from taojin.dedup.survivors import accept_from

CURVE = tuple(round(0.5 + 0.05 * step, 2) for step in range(11))
POOR_RECALL = 0.95
GOOD_RECALL = 0.99
MANY_PROPOSED = 0.5  # share of pairs of similarity 0.5 that a layout may propose without a warning


class Pair(NamedTuple):
    """A row of the LSH curve: probability that a pair of this similarity is proposed, and that it is also accepted."""

    similarity: float
    proposed: float
    accepted: float


def proposed(similarity: float, bands: int, rows: int) -> float:
    """Probability that two documents share a band: 1 − (1 − s^r)^b (Leskovec, Mining of Massive Datasets, 3.4)."""
    return float(1 - (1 - similarity**rows) ** bands)


def effective_threshold(bands: int, rows: int) -> float:
    """(1/b)^(1/r): the similarity at which the curve is about steepest."""
    return float((1 / bands) ** (1 / rows))


def accepted(similarity: float, config: DedupConfig) -> float:
    """Probability that a pair is proposed and verified.

    `fast`: lanes propose and bins estimate, as if independent; the estimate is normal with the sketch's standard error.
    `datasketch`: the K lanes do both; with a of them agreeing, wherever they lie, no band is whole with probability
    Σ_j (−1)^j C(b, j) C(K − jr, a − jr) / C(K, a).
    """
    if config.verify == "exact" and similarity < config.threshold:
        return 0.0
    # exact: whatever is proposed is settled; sketch: the estimate decides.
    least = accept_at(config)[0] if config.verify == "exact" else accept_from(config, settled=False)
    num_hashes, bands, rows = config.num_hashes, config.bands, config.rows
    if config.sketch == "fast":
        error = max(standard_error(similarity, config), 1e-9)
        return proposed(similarity, bands, rows) * 0.5 * (1 + erf((similarity - least) / error / sqrt(2)))
    total = 0.0
    for agreeing in range(ceil(least * num_hashes - 1e-9), num_hashes + 1):
        ways = comb(num_hashes, agreeing)
        chance = ways * similarity**agreeing * (1 - similarity) ** (num_hashes - agreeing)
        none_whole = sum(
            (-1) ** j * comb(bands, j) * comb(num_hashes - j * rows, agreeing - j * rows)
            for j in range(min(bands, agreeing // rows) + 1)
        )
        total += chance * (1 - none_whole / ways)
    return min(1.0, total)


def lsh_curve(config: DedupConfig) -> list[Pair]:
    return [Pair(s, proposed(s, config.bands, config.rows), accepted(s, config)) for s in CURVE]


def layout_warnings(config: DedupConfig) -> list[str]:
    """What is wrong with bands × rows for this threshold, and a layout that is better."""
    bands, rows, threshold = config.bands, config.rows, config.threshold
    warnings = []
    recall = proposed(threshold, bands, rows)
    better = suggested_layout(config)
    hint = f"; --bands {better[0]} --rows {better[1]} proposes {proposed(threshold, *better):.1%}" if better else ""
    if recall < POOR_RECALL:
        warnings.append(
            f"{bands} bands × {rows} rows propose only {recall:.1%} of the pairs at the threshold {threshold:g}: the "
            f"others are never compared. More bands or fewer rows find more{hint}"
        )
    low = proposed(0.5, bands, rows)
    if threshold > 0.6 and low > MANY_PROPOSED:
        warnings.append(
            f"{bands} bands × {rows} rows propose {low:.0%} of the pairs at similarity 0.5, all to be compared: slow "
            f"on templates. Fewer bands or more rows propose fewer{hint}"
        )
    return warnings


def suggested_layout(config: DedupConfig) -> tuple[int, int] | None:
    """(bands, rows) within num_hashes: the strictest rows that still propose GOOD_RECALL at the threshold."""
    for rows in range(min(64, config.num_hashes), 0, -1):
        most = min(1024, config.num_hashes // rows)
        if proposed(config.threshold, most, rows) >= GOOD_RECALL:
            fewest = next(b for b in range(1, most + 1) if proposed(config.threshold, b, rows) >= GOOD_RECALL)
            return None if (fewest, rows) == (config.bands, config.rows) else (fewest, rows)
    return None
