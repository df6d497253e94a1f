"""One large gradient step on the first layer: a spike in its spectrum, and features that beat every linear model [E3].

Question: after one gradient step of size η on W, where is the spike in the spectrum of W¹, and what is the risk of
ridge regression on its features with fresh data?
Prediction [E3]: the location of the spike has a closed form. While η is of order 1/√w, the risk stays above 1 - 2/π,
that of the best linear model; at η of order one it falls below. theory.feature_learning.large_step computes the curve
from the sizes alone (d, w, n_1, n_2, η, ridge, noise), without any draw of W¹ or data. It is exact as d → ∞ with fixed
ratios.
Protocol: labels sign(u·x) ± 0.1, erf features, unit rows, heads ±1; w = 2d, n_1 = 16d samples for the step, n_2 = 8d
fresh samples for ridge regression, ridge d; the risk of every fitted head is exact (Gaussian integrals of erf and
sign); d and 2d. Finite-size correction: the gap between measurement and theory is assumed to decay like 1/d, so that
2·gap(2d) - gap(d) is its value at d = ∞.
Verdict: corrected gap within 2 standard errors of zero for at least 90% of the step sizes, and nowhere beyond the 1%
critical value (Student's t, all step sizes together); uncorrected gap at most 3% of the risk at the largest d; spike
and bulk edge within 3% of theory; measured and predicted η at which the risk falls below the best linear model within
10%; risk at η ≤ 1/√w above that of the linear model, at the largest η below 3/4 of it.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import erf
from jaxtyping import PRNGKeyArray

from unlazy.core.arrays import dot
from unlazy.lab.claims import Claim, at_least, at_most, interval_claim
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config
from unlazy.lab.experiments._finite_size import CurveComparison, crossing_ratio, extrapolated_gap
from unlazy.measures.gaussian_test import max_t_threshold
from unlazy.tasks import single_index
from unlazy.theory.feature_learning import large_step
from unlazy.training.one_step.large_step import first_layer_gradient, ridge_readout

STEPS = (0.0, 0.05, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
SHOWN = 5
"""Index of the step size whose full spectrum is stored."""
WIDTH, FIRST, SECOND, RIDGE, NOISE = 2, 16, 8, 1.0, 0.1
"""Neurons, samples for the step, samples for the head, and ridge, in units of d; label noise."""
BEST_LINEAR = 1 - large_step.LINEAR_SHARE


def predicted_risk(step: float, d: int) -> float:
    """Risk according to theory at dimension d."""
    return large_step.risk(
        step, d=d, width=WIDTH * d, first=FIRST * d, second=SECOND * d, ridge=RIDGE * d, noise=NOISE
    )  # fmt: skip


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial; measures risk, top, values."""
    d = params["d"]
    w = WIDTH * d
    one, two, three = jax.random.split(key, 3)
    W = jax.random.normal(one, (w, d))
    W = W / jnp.linalg.norm(W, axis=1, keepdims=True)
    heads = jnp.where(jnp.arange(w) < w // 2, 1.0, -1.0)
    task = single_index(d, jnp.sign, kinks=(0.0,), noise=NOISE)
    first, fresh = task.sample(two, FIRST * d), task.sample(three, SECOND * d)
    G = first_layer_gradient(erf, W, heads, first.X, first.y)

    def at(step: Any) -> dict[str, Any]:
        """Risk and singular values after a step of this size."""
        W1 = W - step * G
        head = ridge_readout(erf(dot(fresh.X, W1.T)), fresh.y, RIDGE * d)
        values = jnp.sqrt(jnp.linalg.eigvalsh(dot(W1.T, W1))[::-1])
        return {"risk": large_step.exact_risk(head, W1, task.U[0]), "values": values}

    found = lax.map(at, jnp.asarray(STEPS))
    return {"risk": found["risk"], "top": found["values"][:, :2], "values": found["values"][SHOWN]}


def compare_risks(records: Records, d: int) -> CurveComparison:
    """Measured risks at dimension d and the theoretical curve."""
    return CurveComparison(records.where(d=d).measure("risk"), np.array([predicted_risk(s, d) for s in STEPS]))


def claims(records: Records) -> list[Claim]:
    """Claims on [E3], from the records."""
    d = records.values("d")[-1]
    small, large = compare_risks(records, d // 2), compare_risks(records, d)
    gap, error = extrapolated_gap(small, large)
    z, count = np.abs(gap / error), len(STEPS)
    raw = int(np.sum(np.abs(large.gap) <= 2 * large.error))
    chance = max_t_threshold(count, len(large.measured) - 1, 0.01)
    places = [
        large_step.spike_location(*large_step.spike_and_row_norm(s, d, FIRST * d, NOISE), d, WIDTH * d) for s in STEPS
    ]
    off = np.abs(records.where(d=d).measure("top").mean(0) / np.array(places) - 1)
    where, ratio, low, high = crossing_ratio(STEPS[1:], large.measured[:, 1:], large.theory[1:], BEST_LINEAR)
    few = [i for i, s in enumerate(STEPS) if s <= 1 / math.sqrt(WIDTH * d)]
    share = large.mean / BEST_LINEAR
    return [
        at_least(f"Fraction of {count} step sizes within 2 standard errors of theory, corrected from d = {d // 2}, {d}",
                 "E3", float(np.mean(z <= 2)), 0.9),
        at_most("Largest corrected gap in standard errors", "E3", float(z.max()), chance, basis="derived"),
        at_most(f"Largest uncorrected gap / risk at d = {d} ({raw} of {count} within 2 standard errors)", "E3",
                float(np.max(np.abs(large.gap) / large.theory)), 0.03),
        at_most("Spike and bulk edge of W¹: largest relative deviation from theory", "E3", float(off.max()), 0.03),
        interval_claim(f"Step size at which the best linear model is beaten / prediction η = {where:.2f}", "E3", ratio,
                       low, high, low >= 0.9 and high <= 1.1, "0.9 to 1.1", "95%, bootstrap"),
        at_least("Risk at η ≤ 1/√w / risk of the best linear model", "E3", float(share[few].min()), 1.0),
        at_most(f"Risk at η = {STEPS[-1]:.0f} / risk of the best linear model", "E3", float(share[-1]), 0.75),
    ]  # fmt: skip


def figure(records: Records) -> Figure:
    """Plot of density (log) against singular values of W¹."""
    import matplotlib.pyplot as plt

    fig, (left, right) = plt.subplots(1, 2, figsize=(8.2, 3.5), layout="constrained")
    d = records.values("d")[-1]
    values = records.where(d=d).measure("values")
    left.hist(values.ravel(), bins=120, density=True, color="C0", alpha=0.6)
    place, edge = large_step.spike_location(
        *large_step.spike_and_row_norm(STEPS[SHOWN], d, FIRST * d, NOISE), d, WIDTH * d
    )
    left.axvline(edge, color="k", ls=":", label="edge of the bulk")
    left.axvline(place, color="C3", ls="--", label="predicted spike")
    left.set(xlabel="singular values of W¹", ylabel="density (log)", yscale="log",
             title=f"η = {STEPS[SHOWN]:g}, d = {d}, {len(values)} seeds")  # fmt: skip
    fine = np.linspace(0, STEPS[-1], 61)
    for i, size in enumerate(records.values("d")):
        part = compare_risks(records, size)
        right.errorbar(STEPS, part.mean, 2 * part.error, fmt="o", ms=3, capsize=2, color=f"C{i}",
                       label=f"measured, d = {size} (± 2 s.e.)")  # fmt: skip
        right.plot(fine, [predicted_risk(s, size) for s in fine], "-", color=f"C{i}", lw=1)
    right.axhline(BEST_LINEAR, color="k", ls=":", label="best linear model")
    right.set(xlabel="step size η", ylabel="risk of ridge regression on the features", title="lines: theory")
    for axis in (left, right):
        axis.legend()
    return fig


experiment = Experiment(
    name="one_large_step",
    source="general",
    tags=("E3",),
    question="What does one large gradient step on the first layer do to its spectrum and to the risk of its features?",
    prediction="A spike at a location in closed form, and a closed-form risk that falls below that of the best linear "
    "model only at a step size of order one.",
    protocol="erf features, labels sign(u·x) ± 0.1, w = 2d, 16d samples for the step and 8d fresh samples for ridge "
    "regression; exact risks of fitted heads over seeds at d and 2d.",
    verdict="After a 1/d correction, theory within 2 standard errors for 90% of the step sizes and nowhere beyond the "
    "1% critical value; without it within 3%; spike and edge within 3%; crossing step size within 10%.",
    trial=trial,
    claims=claims,
    figure=figure,
    quick=config({"d": [128, 256]}, seeds=16),
    full=config({"d": [64, 128, 256, 512]}, seeds=96),
    precision="float32",
    lanes=4,
    caveats="The curve is derived by a leave-one-out argument, not proved, and exact only as d → ∞ with fixed ratios; "
    "the 1/d form of the correction is assumed, since two sizes cannot test it. One odd activation, heads of equal "
    "magnitude, one direction, fresh data for the head: with general heads or activations the spike carries more than "
    "one function. The best linear model is that of the population; ridge regression has only 8d samples. η is that of "
    "Ba et al. divided by √w.",
)  # fmt: skip
