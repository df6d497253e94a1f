"""Fixed features do not learn what the network learns: random features, tangent kernels and other kernels [P5].

Question: on data where the network reaches 100% accuracy, how accurate are methods whose features do not depend on the
data?
Prediction [P5]: their hinge loss stays above p_0(1 - √(2N)B/2^k) for N features and norm B. They learn only the part of
the label that is linear in the patterns: a majority vote, 27/32 overall and 22/32 on part 1. Without structure there
is no linear part: chance [P6].
Protocol: parity of 5 of 100 patterns, structured or not; each method gets fresh points (10,000 if it has few features,
else `n`), 1,000 more to select its ridge, and 5,000 test points. With p_0 = 1/2 every input has |x| = 1 and ⟨x,z⟩ takes
D + 1 values, so that an inner-product kernel is a lookup table. The network is trained for comparison.
Verdict: structured: every fixed-feature method ≤ 0.87 overall and ≤ 0.72 on part 1 for every seed, the network ≥ 0.99;
unstructured: all methods within 0.03 of 1/2; the hinge loss of random features is never below the bound.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from unlazy.core.arrays import dot
from unlazy.kernels.base import InnerProductKernel
from unlazy.kernels.dot_product import Polynomial
from unlazy.kernels.networks.infinite_width import LayerKernel
from unlazy.kernels.networks.two_layer import TwoLayer
from unlazy.kernels.radial import Gaussian, Laplace
from unlazy.lab.claims import Claim, at_least, at_most, consistent
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config
from unlazy.lab.experiments._patterns import (
    DICTIONARY,
    RELEVANT,
    SIZES,
    PatternSetting,
    draw_lines,
    network_run,
    part_accuracies,
    setting,
)  # fmt: skip
from unlazy.solvers.ridge import cholesky_factor, cholesky_solve
from unlazy.tasks.patterns import pattern_task
from unlazy.theory.activations.functions import activation
from unlazy.theory.feature_learning.patterns import fixed_feature_loss, queries_needed
from unlazy.theory.infinite_width.architecture import MLP

METHODS = (
    "linear", "random features, 600", "random features, 3,000", "finite NTK", "infinite NTK", "Gaussian", "Laplace",
    "polynomial, degree 5",
)  # fmt: skip
NETWORK = "network"
NETWORK_SIZES = {name: [value] for name, value in SIZES.items()}
SIGMA_W, SIGMA_B, SIGMA_A = 0.2, 0.3, 4.0
RIDGES = (10.0, 1.0, 1e-1, 1e-2)
"""Ridges relative to the mean of k(x, x); the path stops when the validation error rises."""
VALIDATION, TEST = 1000, 5000
FEW = 10_000
"""Number of training points for methods with few features."""
NORMS = np.geomspace(1e-6, 1e3, 19)
"""Relative ridges at which the norm and the hinge loss of 600 random features are measured."""

_points = jax.jit(lambda task, key, n: task.sample(key, n), static_argnums=2)
_setting = jax.jit(setting, static_argnums=(0, 1, 3))
_block = jax.jit(lambda kernel, A, X: kernel.block(A, X))


def tables() -> dict[str, np.ndarray]:
    """Exact kernel values as functions of ⟨x,z⟩ = 1 - 2h/D, where h = 0 … D patterns differ between x and z."""
    wide = MLP(1, "truncated_relu", (SIGMA_W, 1.0), (SIGMA_B, 0.0), scale_input=False)
    # the tangent kernel at the initialization of [P3]: a²(⟨x,z⟩ + 1) E σ'σ' + E σσ, per neuron
    ntk = LayerKernel(wide, (SIGMA_A**2 / SIGMA_W**2, 1.0), (SIGMA_A**2 / SIGMA_B**2, 0.0))
    kernels: dict[str, InnerProductKernel] = {
        "infinite NTK": ntk, "Gaussian": Gaussian(math.sqrt(2)), "Laplace": Laplace(math.sqrt(2)),
        "polynomial, degree 5": Polynomial(5, 1.0),
    }  # fmt: skip
    return {name: np.asarray(values, np.float32) for name, values in _entries(kernels).items()}


@jax.jit
def _entries(kernels: dict[str, InnerProductKernel]) -> dict[str, Any]:
    """Kernel values at all possible inner products."""
    u = 1 - 2 * jnp.arange(DICTIONARY + 1) / DICTIONARY
    one = jnp.ones_like(u)
    return {name: kernel.entry(u, one, one) for name, kernel in kernels.items()}


def ridge_coefficients(K: np.ndarray, across: np.ndarray, y: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """(K + ρI)⁻¹y for the ridge with the smallest squared error on the validation rows."""
    scale, best, chosen = np.trace(K) / len(K), np.inf, np.zeros_like(y)
    for ridge in RIDGES:
        L = cholesky_factor(K, float(ridge * scale))
        if L is None:
            raise ValueError(f"K + {ridge * scale:.2g}·I is not numerically positive definite; use larger ridges")
        alpha = cholesky_solve(L, y)
        error = float(np.mean((dot(across, alpha) - truth) ** 2))
        if error >= best:
            break
        best, chosen = error, alpha
    return chosen


def fixed_feature_methods(s: PatternSetting, n: int) -> dict[str, np.ndarray]:
    """Accuracies (overall, part 1) of all fixed-feature methods, and norms and hinge losses of random features."""
    keys = jax.random.split(s.key, 4)
    data, val = _points(s.task, keys[0], FEW), _points(s.task, keys[1], VALIDATION)
    X, y, V, truth, Z = (np.asarray(part) for part in (data.X, data.y, val.X, val.y, s.test.X))
    found = {"linear": _feature_ridge(lambda x: x, X, y, V, truth, Z)}
    narrow, many = _random_feature_map(keys[2], s.task.d, 600), _random_feature_map(keys[3], s.task.d, 3000)
    found["random features, 600"] = _feature_ridge(narrow, X, y, V, truth, Z)
    norms, losses = _norms_and_losses(narrow, X, y, Z, np.asarray(s.test.y))
    X, y = X[:n], y[:n]
    found["random features, 3,000"] = _feature_ridge(many, X, y, V, truth, Z)
    found["finite NTK"] = _finite_ntk_ridge(keys[2], X, y, V, truth, Z)
    differ = [_differences(A, X) for A in (X, V, Z)]
    for name, table in tables().items():
        alpha = ridge_coefficients(table[differ[0]], table[differ[1]], y, truth)
        found[name] = dot(table[differ[2]], alpha)
    scores = [np.asarray(part_accuracies(jnp.asarray(found[name]), s)) for name in METHODS]
    return {"accuracy": np.stack(scores), "norms": norms, "losses": losses}


def _differences(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Number of patterns in which two inputs differ, (1 - ⟨x,z⟩)D/2."""
    return np.rint((1 - dot(A, B.T)) * (DICTIONARY / 2)).astype(np.uint8)


def _random_feature_map(key: Any, d: int, width: int) -> Callable[[np.ndarray], np.ndarray]:
    """The network's features at initialization: truncated ReLUs of w·x + b."""
    key_w, key_b = jax.random.split(key)
    W, b = SIGMA_W * np.asarray(jax.random.normal(key_w, (d, width))), np.asarray(jax.random.normal(key_b, (width,)))
    return lambda x: np.clip(dot(x, W) + SIGMA_B * b, 0, 1)


def _feature_ridge(phi: Callable, X: Any, y: Any, V: Any, truth: Any, Z: Any) -> np.ndarray:
    """Predictions at Z of ridge regression on centered features, in the primal or dual, whichever is smaller."""
    F, G, H = (phi(A) for A in (X, V, Z))
    middle = F.mean(0)
    F, G, H = F - middle, G - middle, H - middle
    offset = y.mean()
    if F.shape[1] >= F.shape[0]:
        return dot(H, dot(F.T, ridge_coefficients(dot(F, F.T), dot(G, F.T), y - offset, truth - offset))) + offset
    # (FᵀF + ρI)⁻¹Fᵀy by the same function, with features in the role of points
    C = dot(F.T, F)
    return dot(H, ridge_coefficients(C, G, dot(F.T, y - offset), truth - offset)) + offset


def _finite_ntk_ridge(key: Any, X: Any, y: Any, V: Any, truth: Any, Z: Any) -> np.ndarray:
    """Ridge regression with the tangent kernel of the finite network at initialization [K10]; bias as extra input."""
    key_w, key_b = jax.random.split(key)
    W = SIGMA_W * jax.random.normal(key_w, (X.shape[1], 600))
    b, a = SIGMA_B * jax.random.normal(key_b, (600,)), SIGMA_A * jax.random.normal(jax.random.fold_in(key, 2), (600,))
    kernel = TwoLayer(jnp.concatenate([W, b[None]]).T, a, activation("truncated_relu"), 1 / 600, 1 / 600)
    X, V, Z = (np.concatenate([A, np.ones((len(A), 1), A.dtype)], 1) for A in (X, V, Z))
    alpha = ridge_coefficients(np.array(_block(kernel, X, X)), np.asarray(_block(kernel, V, X)), y, truth)
    parts = [Z[i : i + VALIDATION] for i in range(0, len(Z), VALIDATION)]
    return np.concatenate([dot(np.asarray(_block(kernel, part, X)), alpha) for part in parts])


def _norms_and_losses(phi: Callable, X: Any, y: Any, Z: Any, truth: Any) -> tuple[np.ndarray, np.ndarray]:
    """‖w‖ and test hinge loss of 600 random features with values in [0, 1] along a path of ridges."""
    F = phi(X)
    C = dot(F.T, F).astype(float) / len(F)
    values, Q = np.linalg.eigh(C)
    shrunk = dot(Q.T, dot(F.T, y) / len(F))[:, None] / (np.maximum(values, 0)[:, None] + NORMS * np.trace(C))
    heads = dot(shrunk.T, Q.T)
    outputs = dot(phi(Z), heads.T.astype(np.float32))
    return np.linalg.norm(heads, axis=1), np.mean(np.maximum(0, 1 - truth[:, None] * outputs), 0)


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial; measures accuracy."""
    if params["method"] == NETWORK:
        return {"accuracy": network_run(params, key)["accuracy"][None]}
    return fixed_feature_methods(_setting(params["structured"], params["d"], key, TEST), params["n"])


def table(records: Records, structured: bool) -> dict[str, np.ndarray]:
    """Accuracies by method, of shape seeds × (overall, part 1)."""
    mine, found = records.where(structured=structured), {}
    fixed, nets = mine.where(method="fixed features"), mine.where(method=NETWORK)
    if len(fixed):
        found = {name: fixed.measure("accuracy")[:, i] for i, name in enumerate(METHODS)}
    return found | ({NETWORK: nets.measure("accuracy")[:, 0]} if len(nets) else {})


def claims(records: Records) -> list[Claim]:
    """Claims on [P5, P6], from the records."""
    rows = []
    for name, values in table(records, True).items():
        overall, first = values[:, 0], values[:, 1]
        if name == NETWORK:
            rows.append(at_least(f"structured: accuracy of {name}, worst seed", "P4", float(overall.min()), 0.99))
            rows.append(at_least(f"structured: accuracy of {name}, part 1, worst seed", "P4", float(first.min()), 0.99))
        else:
            rows.append(at_most(f"structured: accuracy of {name}, best seed", "P5", float(overall.max()), 0.87))
            rows.append(at_most(f"structured: accuracy of {name}, part 1, best seed", "P5", float(first.max()), 0.72))
    linear = table(records, True).get("linear")
    if linear is not None:
        expected = pattern_task(DICTIONARY, DICTIONARY, RELEVANT).majority_accuracy[0]
        error = math.sqrt(expected * (1 - expected) / (TEST * len(linear)))
        rows.append(consistent("structured: accuracy of linear, predicted: majority vote", "P5",
                               float(linear[:, 0].mean()), expected, error))  # fmt: skip
    for name, values in table(records, False).items():
        off = np.abs(values[:, 0] - 0.5)
        rows.append(at_most(f"unstructured: {name}, |accuracy - 1/2|, worst seed", "P6", float(off.max()), 0.03))
    mine = records.where(structured=True, method="fixed features")
    if len(mine):
        above = mine.measure("losses") - np.array([[_bound(B) for B in row] for row in mine.measure("norms")])
        rows.append(at_least("600 random features: hinge loss minus bound, smallest over norms and seeds", "P5",
                             float(above.min()), 0.0))  # fmt: skip
    return rows


def _bound(norm: float) -> float:
    """Lower bound [P5] on the hinge loss of 600 features."""
    return fixed_feature_loss(600, float(norm), RELEVANT, 0.5)


def figure(records: Records) -> Figure:
    """Plot of hinge loss against test accuracy (median and range over seeds)."""
    import matplotlib.pyplot as plt

    fig, (left, middle, right) = plt.subplots(1, 3, figsize=(10.4, 3.7), layout="constrained", width_ratios=(1.5, 1, 1))
    for structured, column, label, marker, color in (
        (True, 0, "structured, all", "o", "C0"), (True, 1, "structured, part 1", "s", "C2"),
        (False, 0, "unstructured", "D", "C1"),
    ):  # fmt: skip
        found = table(records, structured)
        for i, values in enumerate(found.values()):
            low, mid, high = np.quantile(values[:, column], [0, 0.5, 1])
            left.errorbar(mid, i, xerr=[[mid - low], [high - mid]], fmt=marker, ms=5, color=color, capsize=2,
                          label=label if i == 0 else None)  # fmt: skip
        left.set_yticks(range(len(found)), list(found))
    draw_lines(left, vertical=True)
    left.invert_yaxis()
    left.set(xlabel="test accuracy (median and range over seeds)", xlim=(0.45, 1.03), title="accuracy of all methods")
    left.legend(loc="upper center", bbox_to_anchor=(0.3, -0.18), ncols=2, fontsize=7.5)
    mine = records.where(structured=True, method="fixed features")
    B = np.geomspace(1e-3, 1e4, 400)
    middle.semilogx(B, [_bound(b) for b in B], "k-", label=r"$p_0(1-\sqrt{2N}B/2^k)$")
    if len(mine):
        middle.semilogx(np.median(mine.measure("norms"), 0), np.median(mine.measure("losses"), 0), "o-", ms=3,
                        color="C0", label="600 random features")  # fmt: skip
    middle.set(xlabel=r"norm $B$ of the head", ylabel="hinge loss", ylim=(0, 1.1), xlim=(1e-3, 1e2),
               title="lower bound for fixed features")  # fmt: skip
    D = np.arange(10, 1001)
    for i, k in enumerate((3, 5, 9)):
        right.loglog(D, [queries_needed(int(size), k) for size in D], color=f"C{i}", label=f"k = {k}")
    here = queries_needed(DICTIONARY, RELEVANT)
    right.loglog([DICTIONARY], [here], "k*", ms=9, label=f"here: {here:.0f}")
    right.set(xlabel="dictionary size D", ylabel="queries or 1/tolerance", title="query bound without structure")
    for axis in (middle, right):
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2, fontsize=7.5)
    return fig


experiment = Experiment(
    name="fixed_features_fail",
    source="S4",
    tags=("P5", "P6"),
    question="How accurate are methods with data-independent features where the network reaches 100%?",
    prediction="At best a majority vote: 27/32 overall, 22/32 on part 1; chance without structure [P5, P6].",
    protocol="Parity of 5 of 100 patterns; eight fixed-feature methods with ridges by validation, and the network.",
    verdict="Fixed features ≤ 0.87 (≤ 0.72 on part 1) and network ≥ 0.99 for every seed; unstructured: all within 0.03 "
    "of 1/2.",
    trial=trial,
    claims=claims,
    figure=figure,
    quick=config(
        {"method": ["fixed features"], "structured": [True, False], "n": [1500]},
        {"method": [NETWORK], "structured": [True, False], "steps": [300], "batch": [500], **NETWORK_SIZES},
        seeds=5,
        d=100,
    ),
    full=config(
        {"method": ["fixed features"], "structured": [True, False], "n": [5000]},
        {"method": [NETWORK], "structured": [True, False], "steps": [500], "batch": [1000], **NETWORK_SIZES},
        seeds=10,
        d=500,
    ),
    vectorized=False,
    precision="float32",
    caveats=(
        "27/32 is the accuracy of a majority vote over the relevant patterns: 22/32 on part 1, where the patterns are "
        "uniform, and 100% on part 2, where all are on or off. So failure means at most about 85% here, not 50%. At k "
        "= 5 the bound [P5] is vacuous for 600 features with norm above 0.9: it is a statement about large k. The "
        "query bound [P6], 211 here, is below the number of queries SGD makes: the failure without structure is a "
        "measurement, not a consequence of the theorem."
    ),
)
