"""Comparison of solvers: test error against CPU time, and scaling of the cost with n [A2].

Question: what does each method of solving (K + ρI)α = y cost, and how accurate is it?
Prediction [A2]: the direct solution costs n³; a pass over K, which is one step of Richardson, EigenPro and
preconditioned CG, costs n²; Nyström-CG with a fixed number of centers costs n. Preconditioning reduces the thousands of
steps of Richardson to tens; solvers on all points reach the error of the direct solution, Nyström that of its centers.
Protocol: x ~ N(0, I_10), y = sin(u·x) + ½ cos(v·x)(w·x) + 0.1 noise, Laplace kernel with bandwidth √10, ridge 0.01,
tolerance 1e-3, float32; 500 centers; at most 200 passes for Richardson, 60 for EigenPro. Each method runs twice at each
size and the faster run counts (the first includes compilation); CPU time of the process, which is less sensitive to
other load on the machine; 1,000 noiseless test points.
Verdict: exponents of CPU time in n over the larger half of the sizes: direct at most 3.3, a step of preconditioned CG
at most 2.3, Nyström-CG at most 1.15 (upper bounds only, since fixed costs flatten the curve at small sizes). Errors:
preconditioned CG within 2% of the direct solution at every size; it takes at most a quarter of the number of steps
after which Richardson has not converged.
"""

import math
import time
import warnings
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from unlazy.core.arrays import dot
from unlazy.kernels.radial import Laplace
from unlazy.lab.claims import Claim, at_most
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config
from unlazy.solvers.method_selection import NystromCG
from unlazy.solvers.methods.base import Method
from unlazy.solvers.solve import SolveOptions, solve

D, RIDGE, TESTS, PASSES = 10, 0.01, 1000, 200
METHODS: dict[str, tuple[str, str | Method, int | None]] = {
    "direct": ("direct, Cholesky", "direct", None),
    "preconditioned_cg": ("preconditioned CG", "preconditioned_cg", None),
    "nystrom_cg": ("Nyström-CG, 500 centers", NystromCG(centers=500), None),
    "eigenpro": ("EigenPro", "eigenpro", 60),
    "richardson": ("Richardson", "richardson", PASSES),
}
EXPONENTS = {"direct": 3.3, "preconditioned_cg": 2.3, "nystrom_cg": 1.15}


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial; measures cpu, error, steps, residual, converged, curve."""
    X, y, X_test, truth = sample(key, params["n"])
    _, method, max_steps = METHODS[params["method"]]
    best: dict[str, Any] = {"cpu": math.inf}
    for _ in range(2):
        curve: list[tuple[float, float]] = []
        start = time.process_time()

        def record_progress(p: Any, curve=curve, start=start) -> None:
            """Record CPU time and residual."""
            curve.append((time.process_time() - start, p.residual))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # runs that stop before convergence are expected
            solution = solve(
                Laplace(math.sqrt(D)),
                X,
                y,
                RIDGE,
                method=method,
                tolerance=1e-3,
                options=SolveOptions(precision="float32", max_steps=max_steps),
                progress=record_progress,
            )
        cpu = time.process_time() - start
        if cpu < best["cpu"]:
            best = {"cpu": cpu, "curve": curve, "solution": solution}
    solution = best["solution"]
    error = float(np.mean((np.asarray(solution.predict(X_test)) - truth) ** 2))
    seconds, residuals = zip(*best["curve"])
    padded = np.full((2, PASSES), np.nan)
    shown = min(PASSES, len(seconds))
    padded[:, :shown] = np.array([seconds, residuals])[:, :shown]
    return {
        "cpu": best["cpu"], "error": error, "steps": solution.steps, "residual": solution.residual,
        "converged": float(solution.converged), "curve": padded,
    }  # fmt: skip


def sample(key: PRNGKeyArray, n: int) -> tuple[np.ndarray, ...]:
    """Training inputs, labels, test inputs and noiseless test values."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    u = rng.standard_normal((D, 3))
    u /= np.linalg.norm(u, axis=0)
    X = rng.standard_normal((n + TESTS, D))
    f = np.sin(dot(X, u[:, 0])) + 0.5 * np.cos(dot(X, u[:, 1])) * dot(X, u[:, 2])
    y = f[:n] + 0.1 * rng.standard_normal(n)
    return X[:n].astype(np.float32), y, X[n:].astype(np.float32), f[n:]


def exponent(part: Records, per_step: bool) -> tuple[float, float]:
    """Slope of log CPU time (per step or per solution) against log n, with its standard error."""
    sizes = part.values("n")
    sizes = sizes[len(sizes) // 2 - (len(sizes) < 4) :]
    n, t = [], []
    for size in sizes:
        for r in part.where(n=size):
            n.append(math.log(size))
            t.append(math.log(r.measures["cpu"] / (r.measures["steps"] if per_step else 1)))
    if len(set(n)) < 2:
        return math.nan, math.nan
    if len(n) < 4:
        return float(np.polyfit(n, t, 1)[0]), 0.0
    fit, covariance = np.polyfit(n, t, 1, cov=True)
    return float(fit[0]), float(math.sqrt(covariance[0, 0]))


def claims(records: Records) -> list[Claim]:
    """Claims on [A2, K2], from the records."""
    rows = []
    for method, bound in EXPONENTS.items():
        part = records.where(method=method)
        if len(part.values("n")) < 2:
            continue
        slope, error = exponent(part, method == "preconditioned_cg")
        what = "per step" if method == "preconditioned_cg" else "per solution"
        rows.append(at_most(
            f"{METHODS[method][0]}: exponent of CPU time {what} in n", "A2", slope, bound, error=error
        ))  # fmt: skip
    sizes = [n for n in records.values("n") if len(records.where(method="direct", n=n))]
    excess = [_median(records, "preconditioned_cg", n, "error") / _median(records, "direct", n, "error") for n in sizes]
    if excess:
        rows.append(at_most(
            "Preconditioned CG: test error / test error of the direct solution, worst size", "K2", max(excess), 1.02
        ))  # fmt: skip
    slow = records.where(method="richardson", n=records.values("n")[-1])
    fast = records.where(method="preconditioned_cg", n=records.values("n")[-1])
    if len(slow) and len(fast):
        ratio = np.median(fast.measure("steps")) / np.median(slow.measure("steps"))
        unfinished = float(np.max(slow.measure("converged"))) == 0
        rows.append(at_most(
            "Steps of preconditioned CG / steps of Richardson (not converged), largest n", "A2",
            float(ratio) if unfinished else math.nan, 0.25,
        ))  # fmt: skip
    return rows


def _median(records: Records, method: str, n: int, name: str) -> float:
    """Median of a measure over seeds."""
    return float(np.median(records.where(method=method, n=n).measure(name)))


def figure(records: Records) -> Figure:
    """Plot of CPU seconds against points n."""
    import matplotlib.pyplot as plt

    fig, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.6), layout="constrained")
    for method in [m for m in METHODS if len(records.where(method=m))]:
        n, cpu = records.where(method=method).over("n", "cpu")
        _, error = records.where(method=method).over("n", "error")
        left.loglog(n, cpu, "o-", label=METHODS[method][0])
        right.loglog(cpu, error, "o-", label=METHODS[method][0])
        right.loglog(cpu[-1:], error[-1:], "s", ms=7, mfc="none", color=right.lines[-1].get_color())
    n = np.array(records.values("n"), float)
    anchor = np.median(records.where(n=records.values("n")[-1]).measure("cpu"))
    for power, style in ((3, ":"), (2, "--"), (1, "-.")):
        left.loglog(n, anchor * (n / n[-1]) ** power, style, color="gray", lw=1, label=f"n{'¹²³'[power - 1]}")
    left.set(xlabel="points n", ylabel="CPU seconds", title="cost per solution")
    right.set(xlabel="CPU seconds", ylabel="test error", title="accuracy (square: largest n)")
    fig.legend(*left.get_legend_handles_labels(), loc="outside right center")
    return fig


experiment = Experiment(
    name="solver_race",
    source="S2",
    tags=("A2", "K2"),
    question="What does each method of solving (K + ρI)α = y cost as n grows, and how accurate is it?",
    prediction="Direct n³, a pass n², Nyström-CG n; preconditioning reduces thousands of Richardson steps to tens.",
    protocol="Laplace kernel, d = 10, ridge 0.01, tolerance 1e-3; CPU time of the faster of two runs; 1,000 test "
    "points.",
    verdict="Exponents at most 3.3, 2.3 (per step), 1.15; CG within 2% of direct, at most a quarter of Richardson's "
    "steps.",
    trial=trial,
    claims=claims,
    figure=figure,
    quick=config({"n": [1000, 2000, 4000], "method": list(METHODS)}, seeds=1),
    full=config(
        {"n": [1000, 2000, 4000, 8000, 16_000], "method": list(METHODS)},
        {"n": [32_000, 64_000, 128_000], "method": ["nystrom_cg"]},
        seeds=3,
    ),
    vectorized=False,
    precision="float32",
    caveats="CPU times depend on the machine; only their growth is tested. At small sizes fixed costs dominate.",
)
