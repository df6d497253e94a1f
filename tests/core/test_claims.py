"""Verdicts of claims, including undecided ones."""

import math

import pytest

from unlazy.lab.claims import at_least, at_most, consistent, infer_basis, interval_claim, parse_bounds, within


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
def test_unmeasured_claims_are_undecided(value):
    assert within("s", "K1", value, 0, 1).verdict == "undecided"
    assert interval_claim("s", "K1", value, 0, 1, True, "p", "i").verdict == "undecided"
    assert interval_claim("s", "K1", 0.5, 0, 1, None, "≤ 0.8", "i").verdict == "undecided"
    assert within("s", "K1", math.nan, 0, 1).measured_text == "not measured"


def test_an_interval_that_crosses_its_bound_is_marked():
    sure = interval_claim("s", "A1", 0.5, 0.4, 0.6, True, "≤ 0.8", "95%")
    crossing = interval_claim("s", "A1", 0.5, 0.4, 1.2, True, "≤ 0.8", "95%")
    missed = interval_claim("s", "A1", 0.9, 0.7, 1.2, False, "≤ 0.8", "95%")
    assert not sure.barely and sure.verdict_text == "holds"
    assert crossing.barely and crossing.verdict_text == "holds, barely: its interval crosses the bound"
    assert missed.barely and missed.verdict_text.startswith("does not hold, barely")
    assert not interval_claim("s", "A1", 0.9, 0.85, 1.2, False, "≤ 0.8", "95%").barely
    assert not interval_claim("s", "L9", 2.1, 1.9, 2.3, True, "2 = p/2", "95%").barely  # the rule is the interval's
    assert interval_claim("s", "D9", 0.06, 0.04, 0.08, True, "0.05 to 0.13", "95%").barely
    assert parse_bounds("≤ 1.2 × 103") == (-math.inf, math.inf) and parse_bounds("> 1.93, the others'") == (
        1.93,
        math.inf,
    )
    # three standard errors off: within the rule's four, though ±2 do not reach the value
    assert consistent("s", "K1", 1.3, 1.0, 0.1).barely and not consistent("s", "K1", 1.1, 1.0, 0.1).barely
    assert not any(within("s", "K1", m / 10, 0, 1, error=0.1).barely for m in range(-5, 15))  # undecided there


def test_origin_of_the_predicted_value():
    given = {"> 0": "theory", "0.954": "theory", "96 = wd": "theory", "-1/2 ± 0.1": "value", "≤ 0.3": "chosen",
             "in [0.9, 1.1]": "chosen", "0.05 to 0.13": "chosen", "1, allowed 0.9 to 1.6": "value"}  # fmt: skip
    assert {text: infer_basis(text) for text in given} == given
    assert consistent("s", "K1", 1, 1, 0.1).basis == "theory" and at_most("s", "K1", 1, 2).basis == "chosen"
    assert at_most("s", "K1", 1, 2, basis="derived").basis_text.startswith("bound derived")
