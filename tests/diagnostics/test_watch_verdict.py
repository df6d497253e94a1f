"""Verdicts and extrapolation on synthetic curves."""

import math

import numpy as np
import pytest

from unlazy.diagnostics import verdict
from unlazy.diagnostics.verdict import (
    EARLY,
    GapPoint,
    decide,
    describe_layers,
    forecast,
    from_log_odds,
    log_odds,
    regime,
)


def curve(final, slope, steps, end=1000):
    """odds(g) ∝ t^slope that reaches a gap at the end."""
    gaps = [from_log_odds(log_odds(final) + slope * math.log(t / end)) for t in steps]
    return [GapPoint(t, g, 0.03 * g * (1 - g)) for t, g in zip(steps, gaps)]


@pytest.mark.parametrize("final", [0.02, 0.1, 0.4, 0.8])
@pytest.mark.parametrize("slope", [0.2, 0.6, 1.2])
def test_power_laws_are_extrapolated(final, slope):
    """Checks at 20% and 40% of the run: the true gap lies in the interval, the point within the prior's pull on a slope
    from ln 2 of time, less than half of the difference, over ln 2.5."""
    found = forecast(curve(final, slope, (50, 100, 200, 400)), 1000)
    assert found.low < final < found.high
    assert abs(log_odds(found.gap) - log_odds(final)) < 0.5 * abs(slope - 0.6) * math.log(2.5) + 1e-9
    assert sum(found.probabilities.values()) == pytest.approx(1)


def test_one_check_extrapolates_by_the_prior():
    found = forecast(curve(0.3, 0.6, (400,)), 1000)
    assert found.gap == pytest.approx(0.3) and found.slope == pytest.approx(0.6)


def test_forecasts_narrow_toward_the_end():
    widths = []
    for steps in ((100, 200), (100, 200, 400), (100, 200, 400, 800), (100, 200, 400, 800, 1000)):
        found = forecast(curve(0.3, 0.6, steps), 1000)
        widths.append(log_odds(found.high) - log_odds(found.low))
    assert widths == sorted(widths, reverse=True)
    assert found.gap == pytest.approx(0.3)
    # at the end: the standard error alone, by the delta method
    assert widths[-1] == pytest.approx(2 * 1.96 * 0.03, rel=1e-6)


def test_intervals_cover_wandering_curves():
    """Log-odds with a slope drawn from the prior, bent once by the stated drift and read with the stated noise: of 400
    forecasts at 30% at least 90% of true gaps lie inside the 95% interval (standard error 1.1%)."""
    rng, inside = np.random.default_rng(0), 0
    for _ in range(400):
        slope = verdict.SLOPE + verdict.SLOPE_SPREAD * rng.normal()
        end = rng.normal(-1, 2)
        x = np.log(np.array([0.1, 0.15, 0.2, 0.3]))
        level = end + slope * x - verdict.DRIFT * rng.normal() * math.log(1 / 0.3)
        seen = [from_log_odds(v + verdict.CHECK_NOISE * rng.normal()) for v in level]
        found = forecast([GapPoint(round(1000 * math.exp(t)), g, 0.0) for t, g in zip(x, seen)], 1000)
        inside += found.low <= from_log_odds(end) <= found.high
    assert inside >= 360


@pytest.mark.parametrize(("gap", "word"), [(0.05, "lazy"), (0.4, "intermediate"), (0.9, "rich"), (1.3, "rich")])
def test_the_end_is_judged_by_thresholds(gap, word):
    assert regime(gap) == word
    found = decide([GapPoint(1000, gap, 0.001)], 1000)
    assert found.word == word and word.capitalize() in found.text and "probability" not in found.text


def test_early_runs_get_no_verdict():
    points = curve(0.9, 0.6, (50, 100))
    early = decide(points, 1000)
    assert early.word == "too early" and f"step {round(EARLY * 1000)}" in early.text
    assert decide([*points, *curve(0.9, 0.6, (200,))], 1000).word == "rich"
    assert decide(curve(0.9, 0.6, (5,))).word == "too early"  # no planned length
    assert decide([]).word == "too early"
    unchanged = decide([GapPoint(300, math.nan, math.nan)], 1000)
    assert unchanged.word == "too early" and "not changed" in unchanged.text


def test_raw_gaps_would_say_lazy_too_soon():
    """At 30% of a run that ends rich the gap itself is still intermediate."""
    points = curve(0.75, 1.0, (100, 200, 300))
    assert regime(points[-1].gap) == "intermediate"
    found = decide(points, 1000)
    assert found.word == "rich" and "heads for" in found.text and "95% interval" in found.text


def test_without_a_planned_length_the_verdict_is_about_the_run_so_far():
    found = decide(curve(0.75, 1.0, (100, 200, 300)))
    assert found.word == "intermediate" and "so far" in found.text


def test_uncertain_verdicts_state_their_probability():
    found = decide([GapPoint(1000, 0.19, 0.02)], 1000)
    assert found.word == "lazy" and "with probability 69%" in found.text  # Φ(0.5) = 0.69, up to the curve of the odds


def test_a_large_gap_with_a_stuck_loss_is_broken():
    points = [GapPoint(1000, 1.4, 0.01)]
    assert decide(points, 1000, losses=(1.0, 0.99)).word == "broken"
    assert decide(points, 1000, losses=(1.0, 0.5)).word == "rich"
    assert decide(points, 1000).word == "rich"
    assert decide([GapPoint(100, 1.4, 0.01)], 1000, losses=(1.0, 3.0)).word == "broken"  # early, too
    assert decide(points, 1000, finite=False).word == "broken"
    assert decide([GapPoint(1000, 0.4, 0.01)], 1000, losses=(1.0, 1.0)).word == "intermediate"


def test_layers_are_described():
    states = dict(zip("abcde", ("still", "still", "still", "moving", "moved")))
    assert describe_layers(states) == "Layers 1–3 (a … c) have not moved; layer 5 (e) has learned features."
    assert describe_layers(dict.fromkeys("ab", "still")).startswith("No hidden layer has moved")
    assert describe_layers({}) == ""
    assert describe_layers(dict.fromkeys("ab", "moving")) == "All hidden layers have moved a little."
    assert describe_layers(dict.fromkeys("ab", "moved")) == "All hidden layers have learned features."
    assert "layers 1, 3" in describe_layers(dict(zip("abc", ("moved", "still", "moved"))))
    found = decide([GapPoint(1000, 0.05, 0.0)], 1000, layers={"a": 0.01, "b": 0.5})
    assert found.layers == {"a": "still", "b": "moved"} and "Layer 1 (a) has not moved" in found.text
