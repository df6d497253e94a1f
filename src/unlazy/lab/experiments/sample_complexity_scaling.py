"""Scaling of the sample complexity with d: the exponent of n*(d), the smallest n with median risk below 1/4 [D6].

Question: with which power of d does the number of required samples grow for Algorithm 1, and for the NTK?
Prediction [D6]: Algorithm 1 needs at most d² samples (the theorem's upper bound, which need not be tight). A kernel
needs d^p, but only as d → ∞: at feasible d its exponent is still that of C(d+p, p).
Protocol: f* = He_2/2 + He_p/√(2 p!) of u·x, p = 3 and 4, settings of `sample_complexity`; five values of n around the
expected n* at each d; log median risk is interpolated in log n to 1/4; intervals from 1,000 bootstrap draws over seeds.
Verdict: 95% interval of the exponent of Algorithm 1 below 2; for p = 3 the interval of the NTK lies above that of
Algorithm 1, and the growth exponent of n*(NTK)/n*(Algorithm 1) in d has an interval above 0. A claim is undecided if
the interval contains the bound.
"""

import numpy as np
from jaxtyping import PRNGKeyArray

from unlazy.lab.claims import Basis, Claim, interval_claim
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config
from unlazy.lab.experiments import sample_complexity
from unlazy.lab.experiments._baselines import by_seed
from unlazy.lab.experiments.sample_complexity import NAMES

THRESHOLD = 0.25
EXPECTED = {("one_step", 4): (300, 1.5), ("one_step", 3): (100, 1.55), ("ntk", 3): (400, 2.4)}
"""Expected n* at d = 8, and its exponent in d, which define the grid of n."""


def grid_around(method: str, degree: int, d: int, steps: tuple[float, ...] = (-1, -0.5, 0, 0.5, 1)) -> list[int]:
    """Values of n at half-octaves around the expected n*."""
    start, power = EXPECTED[method, degree]
    return [round(start * (d / 8) ** power * 2**k) for k in steps]


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial at a point of the grid."""
    return sample_complexity.trial(params, key)


def crossing(n: np.ndarray, risk: np.ndarray) -> float:
    """n where log risk, interpolated in log n, first reaches the threshold; extrapolated beyond the grid."""
    x, y = np.log(n), np.log(risk / THRESHOLD)
    below = np.flatnonzero(y <= 0)
    i = int(np.clip(below[0] if len(below) else len(n) - 1, 1, len(n) - 1))
    slope = (y[i] - y[i - 1]) / (x[i] - x[i - 1])
    return float(np.exp(x[i] - y[i] / slope)) if slope < 0 else float("nan")


def thresholds(records: Records, method: str, degree: int, draws: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    """Values of d, and n*(d): row 0 from all seeds, then one row per bootstrap draw of seeds."""
    part = records.where(method=method, degree=degree)
    rng, d, columns = np.random.default_rng(0), [], []
    for v in part.values("d"):
        n, table = by_seed(part.where(d=v), "n", "risk")
        if len(n) < 2 or not table.size:
            continue
        d.append(v)
        picks = [np.arange(table.shape[1]), *rng.integers(0, table.shape[1], (draws, table.shape[1]))]
        columns.append([crossing(np.array(n), np.median(table[:, pick], axis=1)) for pick in picks])
    return np.array(d), np.array(columns).T


def exponent(d: np.ndarray, found: np.ndarray) -> tuple[float, float, float]:
    """Slope of log n* against log d with its 95% bootstrap interval."""
    good = np.all(np.isfinite(found), axis=1)
    if not good[0] or good.sum() < 20:  # a median risk does not decrease with n, so n* is undefined
        return float("nan"), float("nan"), float("nan")
    slopes = np.array([np.polyfit(np.log(d), np.log(row), 1)[0] for row in found[good]])
    low, high = np.quantile(slopes[1:], [0.025, 0.975])
    return float(slopes[0]), float(low), float(high)


def claims(records: Records) -> list[Claim]:
    """Claims on [D6], from the records."""
    rows, found = [], {}
    for method, degree in EXPECTED:
        d, table = thresholds(records, method, degree)
        if len(d) > 1:
            found[method, degree] = d, table, exponent(d, table)
    for degree in (4, 3):
        if ("one_step", degree) in found:
            d, _, (middle, low, high) = found["one_step", degree]
            rows.append(_interval_claim(
                f"Algorithm 1, p = {degree}: exponent of n*(d), d = {d[0]} … {d[-1]}", (middle, low, high), "< 2",
                holds=high < 2, fails=low > 2, basis="theory",
            ))  # fmt: skip
    if ("ntk", 3) in found and ("one_step", 3) in found:
        d, _, (middle, low, high) = found["ntk", 3]
        _, bottom, top = found["one_step", 3][2]
        rows.append(_interval_claim(
            f"NTK, p = 3: exponent of n*(d), d = {d[0]} … {d[-1]}", (middle, low, high),
            f"> {top:.2f}, Algorithm 1's upper end (3 as d → ∞)", holds=low > top, fails=high < bottom,
            basis="derived",
        ))  # fmt: skip
        common, ratios = ratio(found["ntk", 3][:2], found["one_step", 3][:2])
        growth = exponent(common, ratios)
        rows.append(_interval_claim(
            f"n*(NTK)/n*(Algorithm 1), p = 3: from {ratios[0, 0]:.1f} at d = {common[0]} to {ratios[0, -1]:.1f} at d = "
            f"{common[-1]}; growth exponent", growth, "> 0", holds=growth[1] > 0, fails=growth[2] < 0,
            basis="theory",
        ))  # fmt: skip
    return rows


def _interval_claim(
    statement: str, found: tuple[float, float, float], predicted: str, *, holds: bool, fails: bool, basis: Basis
) -> Claim:
    """Claim about an interval; undecided if neither `holds` nor `fails`."""
    decided = True if holds else False if fails else None
    return interval_claim(statement, "D6", *found, decided, predicted, "95%, bootstrap", basis)


def ratio(first: tuple, second: tuple) -> tuple[np.ndarray, np.ndarray]:
    """n*(first)/n*(second) at the common dimensions."""
    common = np.intersect1d(first[0], second[0])
    (a, b) = (table[:, np.isin(d, common)] for d, table in (first, second))
    return common, a / b


def figure(records: Records) -> Figure:
    """Plot of n* for risk 1/4 against input dimension d."""
    import matplotlib.pyplot as plt

    fig, (left, right) = plt.subplots(1, 2, figsize=(7.6, 4.1))
    kept = {}
    for i, (method, degree) in enumerate(EXPECTED):
        d, table = thresholds(records, method, degree)
        if len(d) > 1:
            kept[method, degree] = d, table
            middle, low, high = exponent(d, table)
            bars = np.abs(np.nanquantile(table[1:], [0.025, 0.975], axis=0) - table[0])
            label = f"{NAMES[method]}, p = {degree}: {middle:.2f} [{low:.2f}, {high:.2f}]"
            left.errorbar(d, table[0], bars, fmt="o-", color=f"C{i}", capsize=2, label=label)
    if kept:
        d = np.array(sorted({v for x, _ in kept.values() for v in x}), float)
        left.plot(d, 5 * d**2, "k:", label="slope 2")
        left.set_xscale("log")
        left.set_yscale("log")
        left.set_xticks(d, [f"{v:.0f}" for v in d])
        left.minorticks_off()
    left.set(xlabel="input dimension d", ylabel="n* for risk 1/4")
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17))
    if ("ntk", 3) in kept and ("one_step", 3) in kept:
        common, ratios = ratio(kept["ntk", 3], kept["one_step", 3])
        bars = np.abs(np.nanquantile(ratios[1:], [0.025, 0.975], axis=0) - ratios[0])
        right.errorbar(common, ratios[0], bars, fmt="o-", capsize=3, label="p = 3")
        right.set(ylim=(0, None))
        right.set_xticks(common, [str(v) for v in common])
        right.legend(loc="lower right")
    right.set(xlabel="input dimension d", ylabel="n*(NTK) / n*(Algorithm 1)")
    return fig


def _grids(dimensions: dict[tuple[str, int], list[int]]) -> list[dict]:
    """One grid of n for each method, degree and dimension."""
    return [
        {"method": [method], "degree": [degree], "d": [d], "n": grid_around(method, degree, d)}
        for (method, degree), all_d in dimensions.items()
        for d in all_d
    ]


experiment = Experiment(
    name="sample_complexity_scaling",
    source="S2",
    tags=("D6",),
    question="With which power of the dimension does the number of required samples grow?",
    prediction="Algorithm 1: at most 2. Kernels: p as d → ∞, larger than for Algorithm 1 at every feasible d.",
    protocol="n*(d) for median risk 1/4 by interpolation in log n; exponents with bootstrap intervals over seeds; "
    "p = 4 and 3.",
    verdict="95% interval of the exponent of Algorithm 1 below 2; for p = 3 the interval of the NTK above it, and the "
    "ratio of the two n* grows with d.",
    trial=trial,
    claims=claims,
    figure=figure,
    quick=config(*_grids({("one_step", 4): [8, 12, 16, 24, 32], ("one_step", 3): [8, 12, 16, 24, 32],
                          ("ntk", 3): [8, 12, 16]}), seeds=12, width=512, noise=0.0),
    full=config(*_grids({("one_step", 4): [8, 12, 16, 24, 32, 48, 64], ("one_step", 3): [8, 12, 16, 20, 24, 28, 40],
                         ("ntk", 3): [8, 12, 16, 20, 24, 28]}), seeds=16, width=512, noise=0.0),
    vectorized=False,
    caveats="The theorem shows that d² samples suffice, for an L1 risk and up to constants and logarithms; the "
    "measured exponent near 1.5 shows that this is not tight at this risk level and these d. 'Kernels need d^p' is "
    "asymptotic: for p = 4 and d ≤ 12 a kernel's exponent is still near 2, so the ratio of the two n* is the better "
    "evidence.",
)  # fmt: skip
