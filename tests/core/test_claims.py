"""Verdicts follow their rule, including when the measurement cannot decide."""

import math

import pytest

from unlazy.core.claims import at_least, at_most, consistent, interval_claim, within


@pytest.mark.parametrize(
    "measured, error, verdict",
    [(0.5, 0.1, "holds"), (0.9, 0.1, "undecided"), (1.1, 0.1, "undecided"), (1.3, 0.1, "does not hold")],
)
def test_within_is_undecided_when_two_standard_errors_straddle_the_edge(measured, error, verdict):
    assert within("s", "K1", measured, 0.0, 1.0, error=error).verdict == verdict


def test_one_sided_rules():
    assert at_most("s", "K1", 0.2, 0.3).verdict == "holds" and at_most("s", "K1", 0.4, 0.3).verdict == "does not hold"
    assert at_least("s", "K1", 0.2, 0.3).verdict == "does not hold"
    assert at_most("s", "K1", 0.2, 0.3).predicted == "≤ 0.3"


def test_consistent_counts_standard_errors_and_the_stated_bias():
    assert consistent("s", "K1", 1.39, 1.0, 0.1).verdict == "holds"
    assert consistent("s", "K1", 1.41, 1.0, 0.1).verdict == "does not hold"
    assert consistent("s", "K1", 1.41, 1.0, 0.1, floor=0.02).verdict == "holds"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_was_not_measured_is_undecided(value):
    assert within("s", "K1", value, 0, 1).verdict == "undecided"
    assert interval_claim("s", "K1", value, 0, 1, True, "p", "i").verdict == "undecided"
    assert within("s", "K1", math.nan, 0, 1).measured_text == "not measured"
