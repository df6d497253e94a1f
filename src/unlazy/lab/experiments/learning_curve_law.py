"""The learning curve of kernel ridge regression in closed form: the risk at every n and ridge from the spectrum [G1].

Question. Is the expected risk of kernel ridge regression, for every number of samples and every ridge, given by a
formula in the kernel's eigenvalues, the target's coefficients and the noise?
Prediction. [G1] κ solves Σ λ_i/(λ_i + κ) + δ/κ = n; L_i = λ_i/(λ_i + κ);
risk = (Σ (1 - L_i)² v_i² + ς²)·n/(n - Σ L_i²), noise included. [G2] It can also be estimated from the sample: training
error / (1 - tr K(K + δ)⁻¹/n)², without knowing λ, v or ς.
Protocol. Gaussian features √λ_i z_i with λ_i = i^-a, a = 1.2 and 1.8; targets Σ v_i z_i with v_i² ∝ i^-1.5 and variance
1; noise ς² = 0.1; n doubles from 32; five ridges from very small to too large. The risk of a fit is exact, since its
coefficients are known: ‖√λ w - v‖² + ς². Means over seeds with their standard errors. float64.
Verdict. Over all n, ridges and spectra: the largest |mean - theory| in standard errors is below the value that equally
many exact z-scores exceed with probability 1e-4 (the settings share seeds, so there is no claim on the fraction within
two standard errors); relative differences of the means at most 5%. For [G2]: the mean ratio of estimate to risk within
5% of one wherever the effective degrees of freedom are at most n/2.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from unlazy.core.arrays import dot
from unlazy.lab.claims import Claim, at_most
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config
from unlazy.measures import gaussian_test
from unlazy.theory.spectra import eigenvalues

RIDGES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
NOISE, SOURCE = 0.1, 1.5
LEARNED = 0.5
"""The claim on the estimate applies where effective degrees of freedom / n is at most this value."""


def population(decay: float | Array, modes: int) -> tuple[jax.Array, jax.Array]:
    """Eigenvalues i^-a, and the target's power by mode, which sums to one."""
    i = jnp.arange(1.0, modes + 1)
    power = i**-SOURCE
    return i**-decay, power / power.sum()


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial; measures risk, estimate, theory, learned."""
    n, rows = params["n"], params["n_padded"]
    lam, power = population(params["decay"], params["modes"])
    key_z, key_noise = jax.random.split(key)
    kept = (jnp.arange(rows) < n)[:, None]
    Z = jax.random.normal(key_z, (rows, params["modes"]), lam.dtype) * kept
    y = dot(Z, jnp.sqrt(power)) + jnp.sqrt(NOISE) * jax.random.normal(key_noise, (rows,), lam.dtype) * kept[:, 0]
    Phi = Z * jnp.sqrt(lam)
    values, U = jnp.linalg.eigh(dot(Phi, Phi.T))
    values, inner = jnp.maximum(values, 0), dot(U.T, y)
    ridges = jnp.asarray(RIDGES)
    alpha = dot(U, inner[:, None] / (values[:, None] + ridges))  # y and K are zero in padded rows
    weights = dot(Phi.T, alpha)
    risk = jnp.sum((jnp.sqrt(lam)[:, None] * weights - jnp.sqrt(power)[:, None]) ** 2, 0) + NOISE
    # tr (K + δ)⁻¹ over the n actual rows: each padded row adds 1/δ
    trace = jnp.sum(1 / (values[:, None] + ridges), 0) - (rows - n) / ridges
    estimate = n * jnp.sum(alpha**2, 0) / trace**2
    counts, size = jnp.ones_like(lam), jnp.asarray(n, lam.dtype)
    excess = jax.vmap(lambda ridge: eigenvalues.learning_curve(lam, counts, power, size, ridge, 0.0, NOISE))(ridges)
    theory = excess + NOISE
    return {"risk": risk, "estimate": estimate, "theory": theory, "learned": n - ridges * trace}


def _points(records: Records) -> list[dict[str, Any]]:
    """For every spectrum and n: mean risk by ridge, its standard error, theory, and mean ratio of estimate to risk."""
    found = []
    for decay in records.values("decay"):
        for n in records.values("n"):
            mine = records.where(decay=decay, n=n)
            risk, ratio = mine.measure("risk"), mine.measure("estimate") / mine.measure("risk")
            error = risk.std(0, ddof=1) / np.sqrt(len(risk))
            learned = mine.measure("learned").mean(0) / n
            found.append({"decay": decay, "n": n, "risk": risk.mean(0), "error": error, "ratio": ratio.mean(0),
                          "theory": mine.measure("theory").mean(0), "learned": learned})  # fmt: skip
    return found


def claims(records: Records) -> list[Claim]:
    """Claims on [G1, G2], from the records."""
    points = _points(records)
    z = np.array([(p["risk"] - p["theory"]) / p["error"] for p in points]).ravel()
    off = np.array([p["risk"] / p["theory"] - 1 for p in points]).ravel()
    seen = np.concatenate([p["ratio"][p["learned"] <= LEARNED] for p in points])
    bound = gaussian_test.max_z_threshold(len(z))
    return [
        at_most(f"mean risk against the formula: largest |z| of {len(z)} settings", "G1", float(np.abs(z).max()), bound,
                basis="derived"),
        at_most("mean risk against the formula: largest relative difference", "G1", float(np.abs(off).max()), 0.05),
        at_most("risk estimated from the sample: largest |mean ratio - 1|", "G2", float(np.abs(seen - 1).max()), 0.05),
    ]  # fmt: skip


def figure(records: Records) -> Figure:
    """Plot of estimate / risk against degrees of freedom / n."""
    import matplotlib.pyplot as plt

    decays = sorted(records.values("decay"))
    modes = records[0].params["modes"]
    fig, axes = plt.subplots(1, len(decays) + 1, figsize=(3.6 * (len(decays) + 1), 3.4), layout="constrained")
    colors = plt.get_cmap("viridis")(np.linspace(0, 0.9, len(RIDGES)))
    points = _points(records)
    sizes = sorted(records.values("n"))
    fine = np.geomspace(sizes[0], sizes[-1], 60)
    for ax, decay in zip(axes, decays):
        lam, power = population(decay, modes)
        mine = sorted((p for p in points if p["decay"] == decay), key=lambda p: p["n"])
        for k, ridge in enumerate(RIDGES):
            excess = eigenvalues.learning_curve(
                lam, jnp.ones_like(lam), power, jnp.asarray(fine, lam.dtype), ridge, 0.0, NOISE
            )
            curve = np.asarray(excess) + NOISE
            ax.loglog(fine, curve, color=colors[k], lw=1)
            ax.errorbar(
                sizes, [p["risk"][k] for p in mine], [2 * p["error"][k] for p in mine], fmt="o", ms=3.5,
                color=colors[k], label=f"ridge {ridge:g}",
            )  # fmt: skip
        ax.axhline(NOISE, color="0.5", lw=0.8, ls=":")
        ax.set(title=f"eigenvalues $i^{{-{decay:g}}}$", xlabel="samples n", ylabel="risk (dotted: noise)")
        ax.minorticks_off()
        ax.set_xticks(sizes, [str(n) for n in sizes])
        ax.set_yticks([0.1, 0.2, 0.3, 0.4, 0.6], ["0.1", "0.2", "0.3", "0.4", "0.6"])
    axes[0].legend(fontsize=7)
    ax = axes[-1]
    for p in points:
        ax.plot(p["learned"], p["ratio"], "o", ms=3.5, color="#0072B2" if p["decay"] == decays[0] else "#D55E00")
    ax.axhline(1, color="k", lw=0.8)
    ax.axvline(LEARNED, color="0.5", lw=0.8, ls=":")
    ax.set(title="estimate from the sample [G2]", xlabel="degrees of freedom / n", ylabel="estimate / risk")
    return fig


experiment = Experiment(
    name="learning_curve_law",
    source="general",
    tags=("G1", "G2"),
    question="Do spectrum, target and noise determine the risk of kernel ridge regression at every n and ridge?",
    prediction="risk = (Σ (1 - L_i)² v_i² + ς²)·n/(n - Σ L_i²) [G1]; the estimate from the sample agrees [G2].",
    protocol="Gaussian features with eigenvalues i^-1.2 and i^-1.8, noise 0.1, n ≥ 32, five ridges, float64.",
    verdict="Largest |z| below its 1e-4 bound, means within 5% of theory; [G2] within 5% for degrees of freedom ≤ n/2.",
    trial=trial,
    claims=claims,
    figure=figure,
    padded=("n",),
    quick=config({"n": [32, 64, 128, 256], "decay": [1.2, 1.8]}, seeds=64, modes=600),
    full=config({"n": [32, 64, 128, 256, 512, 1024], "decay": [1.2, 1.8]}, seeds=256, modes=4000),
    caveats="Exact as n and the number of modes grow together, for Gaussian features; the correction is of order 1/n. "
    "Real data: benchmarks/learning_curve_law.py.",
)
