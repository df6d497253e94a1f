"""Values shown on hover are those of the figure, at the same positions."""

import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from unlazy.core.pages.tooltips import MAX_POINTS, claims_by_curve, figure_marks


@pytest.fixture
def axes():
    figure = plt.figure(figsize=(4, 3))
    yield figure.add_axes((0.1, 0.1, 0.8, 0.8))
    plt.close(figure)


def test_positions_are_fractions_of_the_figure_from_its_top_left(axes):
    axes.plot([0.5, 2.0], [0.25, 0.5], "o", label="a $b$")  # the second lies outside
    axes.scatter([0.0], [1.0])
    axes.axhline(0.3, label="a ruler")
    axes.plot([0, 1], [0, 1])  # no name, no mark: a ruler too
    axes.set(xlim=(0, 1), ylim=(0, 1))
    assert figure_marks(axes.figure) == [(500, 700, "a b", "0.5", "0.25"), (100, 100, "", "0", "1")]


def test_logarithms_and_long_curves(axes):
    n = np.geomspace(1, 100, 2001)
    axes.loglog(n, 1 / n, label="risk")
    axes.set(xlim=(1, 100), ylim=(0.01, 1))
    found = figure_marks(axes.figure)
    assert len(found) == MAX_POINTS and found[0][:2] == (100, 100) and found[-1][:2] == (900, 900)
    for across, down, _, x, y in found:  # along the diagonal, as powers of ten are
        assert across == pytest.approx(100 + 400 * np.log10(float(x)), abs=1.5) and abs(across - down) <= 1
        assert float(x) * float(y) == pytest.approx(1, rel=2e-3)


def test_curves_are_linked_to_their_claims(axes):
    axes.plot([0, 1], [0, 1], label="Algorithm 1")
    axes.plot([0, 1], [1, 1], label="NTK")
    axes.plot([0, 1], [1, 0], "o")
    axes.plot([0, 1], [0, 0], label="theory", gid="slope")
    claims = ["Algorithm 1: median risk at n = 1,000", "NTK: median risk", "NTK: slope"]
    assert claims_by_curve(axes.figure, claims) == {"Algorithm 1": [1], "NTK": [2, 3], "": [1, 2, 3], "theory": [3]}
