from itertools import pairwise
from math import comb
from typing import Any

import pytest

from taojin.dedup.config import DedupConfig
from taojin.lsh import CURVE, accepted, effective_threshold, layout_warnings, lsh_curve, proposed, suggested_layout


def config(**settings: Any) -> DedupConfig:
    return DedupConfig(input=("x",), output="y", **settings)


def test_more_bands_propose_more_and_more_rows_fewer() -> None:
    assert proposed(0.7, 21, 6) > proposed(0.7, 20, 6) > proposed(0.7, 20, 7)


def test_the_default_layout_is_the_one_in_the_design() -> None:
    assert proposed(0.8, 20, 6) == pytest.approx(0.998, abs=0.001)
    assert effective_threshold(20, 6) == pytest.approx((1 / 20) ** (1 / 6))
    assert layout_warnings(config()) == []


def test_the_curve_rises_from_one_half_to_one() -> None:
    curve = lsh_curve(config())
    assert [pair.similarity for pair in curve] == list(CURVE)
    assert all(a.proposed <= b.proposed and a.accepted <= b.accepted for a, b in pairwise(curve))
    assert curve[-1].accepted == pytest.approx(1)
    assert all(pair.accepted <= pair.proposed + 1e-12 for pair in curve)


def test_an_estimate_at_the_threshold_must_clear_it_by_three_tenths_of_an_error_and_exact_need_not() -> None:
    assert accepted(0.8, config()) == pytest.approx(0.382 * proposed(0.8, 20, 6), abs=0.001)  # Φ(−0.3) = 0.382
    assert accepted(0.8, config(verify="exact")) == pytest.approx(proposed(0.8, 20, 6), abs=0.001)
    assert accepted(0.79, config(verify="exact")) == 0


def test_datasketch_acceptance_is_that_of_all_arrangements() -> None:
    settings = config(sketch="datasketch", num_hashes=16, bands=3, rows=4, threshold=0.75)
    expected = 0.0
    for lanes in range(1 << 16):
        agreeing = lanes.bit_count()
        # 12 of 16 are 0.75; 0.3 standard errors above it ask for a thirteenth.
        if agreeing >= 13 and any(lanes >> (4 * band) & 15 == 15 for band in range(3)):
            expected += 0.8**agreeing * 0.2 ** (16 - agreeing)
    assert comb(16, 13) == 560
    assert accepted(0.8, settings) == pytest.approx(expected)


def test_a_layout_with_poor_recall_is_warned_about_with_a_better_one() -> None:
    poor = config(bands=5, rows=20)
    warning = layout_warnings(poor)[0]
    assert "propose only 5.6%" in warning
    better = suggested_layout(poor)
    assert better is not None
    assert proposed(0.8, *better) >= 0.99
    assert f"--bands {better[0]} --rows {better[1]}" in warning


def test_a_layout_that_proposes_half_of_everything_is_warned_about() -> None:
    assert "slow on templates" in layout_warnings(config(bands=40, rows=3))[0]
