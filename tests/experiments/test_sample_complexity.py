"""Trials at toy size, and claims that hold and fail on synthetic records."""

import jax
import numpy as np
import pytest

from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments import sample_complexity as sc
from unlazy.lab.experiments import sample_complexity_scaling as scaling


def made_up(risk):
    fixed = {"noise": 0.0, "degree": 4, "width": 512}
    points = [(d, n, m) for d, n, m, *_ in sc.BOUNDS]
    return Records(
        Record({"d": d, "n": n, "method": m, **fixed}, s, {"risk": risk(d, n, m) * (1 + 0.01 * s), "error": 0.0})
        for d, n, m in points
        for s in range(5)
    )


@pytest.mark.parametrize("method", ["one_step", "random", "linearized", "ntk", "arccos"])
def test_every_method_beats_nothing_on_an_easy_cell(x64, method):
    """d = 3, n = 800: degree 4 has 15 dimensions, all methods are far below the trivial risk 1."""
    params = {"d": 3, "n": 800, "degree": 4, "width": 64, "noise": 0.0, "method": method}
    found = sc.trial(params, jax.random.key(0))
    assert 0 < float(found["risk"]) < 0.6 and float(found["error"]) >= 0


def test_claims_follow_the_bounds():
    good = {"one_step": 0.01, "random": 0.8, "ntk": 0.8}
    assert {c.verdict for c in sc.claims(made_up(lambda d, n, m: good[m]))} == {"holds"}
    assert {c.verdict for c in sc.claims(made_up(lambda d, n, m: 0.3))} == {"does not hold"}
    assert len(sc.claims(made_up(lambda d, n, m: 0.3))) == len(sc.BOUNDS)


def test_figures_draw():
    rows = Records(
        Record({"d": 10, "n": n, "method": m, "degree": 4, "noise": 0.0}, s, {"risk": 1 / n, "error": 0.0})
        for n in (100, 1000)
        for m in sc.NAMES
        for s in range(3)
    )
    assert len(sc.figure(rows).axes) == 1
    assert len(scaling.figure(power_laws(8)).axes) == 2


def power_laws(seeds, noise=0.05):
    """Risks that cross 1/4 at n* = 300 (d/8)^1.5 and so on, exactly in the median up to noise."""
    rng = np.random.default_rng(0)
    rows = []
    for (method, degree), (start, power) in scaling.EXPECTED.items():
        for d in (8, 16, 32):
            for n in scaling.grid_around(method, degree, d):
                star = 1.1 * start * (d / 8) ** power
                for s in range(seeds):
                    risk = 0.25 * star / n * np.exp(noise * rng.standard_normal())
                    rows.append(Record({"method": method, "degree": degree, "d": d, "n": n}, s, {"risk": risk}))
    return Records(rows)


def test_exponents_are_recovered():
    rows = power_laws(12)
    for (method, degree), (start, power) in scaling.EXPECTED.items():
        d, table = scaling.thresholds(rows, method, degree, draws=200)
        middle, low, high = scaling.exponent(d, table)
        # n* is off by at most noise 5%·1.25/√12 = 2% at each end of a range of ln 4: 0.02 in the slope; four of these.
        assert abs(middle - power) < 0.08 and low < middle < high
        assert table[0, 0] == pytest.approx(1.1 * start, rel=0.08)
    assert [c.verdict for c in scaling.claims(rows)] == ["holds"] * 4


def test_crossing_interpolates_and_extrapolates():
    n = np.array([100.0, 200.0, 400.0])
    assert scaling.crossing(n, 0.25 * 150 / n) == pytest.approx(150)
    assert scaling.crossing(n, 0.25 * 1000 / n) == pytest.approx(1000)
    assert np.isnan(scaling.crossing(n, np.array([0.5, 0.5, 0.5])))


def test_straddling_interval_is_undecided():
    claim = scaling._interval_claim("x", (1.8, 1.5, 2.2), "< 2", holds=False, fails=False, basis="theory")
    assert claim.verdict == "undecided"
    assert (
        scaling._interval_claim("x", (2.5, 2.1, 2.9), "< 2", holds=False, fails=True, basis="theory").verdict
        == "does not hold"
    )
