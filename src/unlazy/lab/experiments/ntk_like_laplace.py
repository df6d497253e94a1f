"""The neural tangent kernel behaves like the Laplace kernel, and on smooth targets also like the Gaussian [L3].

Question. Does the tangent kernel of an infinitely wide network differ from classical kernels, in its spectrum or in its
learning curve?
Prediction. [L3] On the sphere S^{d-1} the eigenvalues of NTK and Laplace kernel both decay as ℓ^{-d} in the degree ℓ
(Geifman et al. 2020; Chen & Xu 2021); those of the Gaussian kernel decay faster than any power. For a target of low
degree this hardly matters: all three need a similar number of samples, and the spectrum predicts each learning curve
(Bordelon, Canatar & Pehlevan 2020; Simon et al. 2023).
Protocol. x uniform on S^{d-1}; f* a fixed function with a third of its unit power in each of the degrees 1, 2, 3;
labels with Gaussian noise of standard deviation 0.3; kernel ridge regression, ridge 0.03 with k(x,x) = 1, for NTK (2
hidden ReLU layers, σ_b = 0.5), Laplace (bandwidth 2) and Gaussian (bandwidth 1); risk E(f - f*)² at 2,000 test points,
float64.
Verdict. Exponents over degrees 20–40 within 2% of -d for NTK and Laplace; the Gaussian exponent over degrees 5–10 below
-2d. Ratio of measured to predicted risk, geometric mean over n, in [0.85, 1.2] for each kernel. Risks of NTK and
Laplace within a factor 1.5 at every n. Samples for risk 0.1: Laplace within a factor 1.5 of the NTK, Gaussian within
2.5. For every d.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from unlazy.core.arrays import dot, einsum
from unlazy.kernels.base import InnerProductKernel
from unlazy.kernels.networks.infinite_width import NTK
from unlazy.kernels.radial import Gaussian, Laplace
from unlazy.lab.claims import Claim, at_most, within
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config
from unlazy.solvers.traced import coefficients
from unlazy.theory.dynamics.spectral_filters import masked_gram
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.theory.spectra import eigenvalues

KERNELS: dict[str, InnerProductKernel] = {
    "NTK": NTK(MLP(depth=2, sigma_b=0.5, scale_input=False)),
    "Laplace": Laplace(2.0),
    "Gaussian": Gaussian(1.0),
}
COLORS = ("#0072B2", "#D55E00", "#009E73")
DEGREES, NODES, TEST, CENTERS = 60, 600, 2000, 32
NOISE, RIDGE, GOAL = 0.3, 0.03, 0.1


def harmonics(X: jax.Array, d: int) -> jax.Array:
    """f*: for each degree ℓ = 1, 2, 3 a sum Σ_j c_j P_ℓ(⟨x,u_j⟩), scaled to power 1/3 by the addition theorem."""
    rng = np.random.default_rng(d)
    U = rng.standard_normal((CENTERS, d))
    U /= np.linalg.norm(U, axis=1, keepdims=True)
    c = rng.standard_normal(CENTERS)
    inner = eigenvalues.gegenbauer(dot(U, U.T), d, 3)
    scales = [np.sqrt(eigenvalues.multiplicity(d, l) / 3 / dot(c, inner[l], c)) for l in (1, 2, 3)]
    P = eigenvalues.gegenbauer(dot(X, jnp.asarray(U).T), d, 3)
    return sum((s * dot(P[l], jnp.asarray(c)) for l, s in zip((1, 2, 3), scales)), jnp.zeros(len(X)))


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial; measures risk, predicted, eigenvalues."""
    d, n, size = params["d"], params["n"], params["n_max"]
    key_x, key_noise = jax.random.split(key)
    X = jax.random.normal(key_x, (size + TEST, d))
    X = X / jnp.linalg.norm(X, axis=1, keepdims=True)
    target = harmonics(X, d)
    keep = jnp.arange(size) < n
    y = jnp.where(keep, target[:size] + NOISE * jax.random.normal(key_noise, (size,)), 0)
    grams = [masked_gram(_normalized(kernel, X[:size]), keep.astype(X.dtype)) for kernel in KERNELS.values()]
    # one batched factorization: several independent ones in a program can deadlock on each other's threads
    alpha = jax.vmap(coefficients, (0, None))(jnp.stack(grams) + RIDGE * jnp.eye(size), y)
    cross = jnp.stack([_normalized(kernel, X[size:], X[:size]) for kernel in KERNELS.values()])
    f = einsum("kmn,kn->km", cross, jnp.where(keep, alpha, 0))
    predicted, spectra = zip(*(_predict(kernel, d, jnp.asarray(n, X.dtype)) for kernel in KERNELS.values()))
    return {
        "risk": jnp.mean(jnp.square(f - target[size:]), 1), "predicted": jnp.stack(predicted),
        "eigenvalues": jnp.stack(spectra),
    }  # fmt: skip


def _normalized(kernel: InnerProductKernel, X: jax.Array, Z: jax.Array | None = None) -> jax.Array:
    """The Gram matrix on the sphere with k(x,x) = 1."""
    one = jnp.ones(1)
    return kernel.gram(X, Z) / kernel.entry(one, one, one)[0]


def _predict(kernel: InnerProductKernel, d: int, n: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The predicted risk and the eigenvalues."""
    one = jnp.ones(1)
    scale = kernel.entry(one, one, one)[0]
    values = eigenvalues.sphere_eigenvalues(
        lambda t: kernel.entry(t, jnp.ones_like(t), jnp.ones_like(t)) / scale, d, DEGREES, NODES
    )
    counts = jnp.asarray(eigenvalues.multiplicities(d, DEGREES))
    tail = jnp.maximum(1 - jnp.sum(counts * values), 0)
    power = jnp.zeros(DEGREES + 1).at[1:4].set(1 / 3)
    return eigenvalues.learning_curve(values, counts, power, n, RIDGE, tail, NOISE**2), values


def claims(records: Records) -> list[Claim]:
    """Claims on [L3], from the records."""
    rows = []
    for d in records.values("d"):
        some = records.where(d=d)
        rows += _spectrum_claims(some[0].measures["eigenvalues"], d) + _curve_claims(some, d)
    return rows


def _spectrum_claims(spectra: np.ndarray, d: int) -> list[Claim]:
    """Claims on the decay exponents of the eigenvalues."""
    rows = []
    for name, values in zip(KERNELS, jnp.asarray(spectra)):
        if name == "Gaussian":
            slope = float(eigenvalues.decay_exponent(values, d, 5, 10))
            statement = f"d = {d}: Gaussian eigenvalues decay faster than degree^-2d: exponent over degrees 5–10"
            rows.append(at_most(statement, "L3", slope, -2.0 * d))
        else:
            slope = float(eigenvalues.decay_exponent(values, d, 20, 40))
            statement = f"d = {d}: {name} eigenvalues decay as degree^-d: exponent over degrees 20–40"
            rows.append(within(statement, "L3", slope, -1.02 * d, -0.98 * d, predicted=f"-{d} ± 2%"))
    return rows


def _curve_claims(records: Records, d: int) -> list[Claim]:
    """Claims on learning curves and sample sizes."""
    n, risk = _curves(records, "risk")
    _, predicted = _curves(records, "predicted")
    rows = []
    for k, name in enumerate(KERNELS):
        ratio = np.log(risk[:, :, k].mean(1) / predicted[:, 0, k])
        spread = np.log(risk[:, :, k]).mean(0)  # one value per seed, since all n share their points
        error = float(np.exp(ratio.mean()) * spread.std(ddof=1) / np.sqrt(len(spread)))
        statement = f"d = {d}: {name} risk / risk predicted by its spectrum, geometric mean over n"
        rows.append(within(statement, "L3", float(np.exp(ratio.mean())), 0.85, 1.2, error=error))
    mean = risk.mean(1)
    apart = np.exp(np.abs(np.log(mean[:, 1] / mean[:, 0])).max())
    rows.append(at_most(f"d = {d}: NTK and Laplace risks, largest ratio over n", "L3", float(apart), 1.5))
    needed = [_samples(n, mean[:, k]) for k in range(3)]
    for k, factor in ((1, 1.5), (2, 2.5)):
        statement = f"d = {d}: samples for risk {GOAL}, {list(KERNELS)[k]} / NTK"
        rows.append(within(statement, "L3", needed[k] / needed[0], 1 / factor, factor))
    return rows


def _curves(records: Records, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Values of n, and a measure with axes (n, seeds, kernels)."""
    return records.over("n", name, lambda v, axis: v)


def _samples(n: np.ndarray, risk: np.ndarray) -> float:
    """n at which the learning curve crosses the goal, by log-log interpolation; NaN if it does not."""
    if risk[0] < GOAL or risk[-1] > GOAL:
        return float("nan")
    return float(np.exp(np.interp(-np.log(GOAL), -np.log(risk), np.log(n))))


def figure(records: Records) -> Figure:
    """Plot of eigenvalue against degree of the harmonic."""
    import matplotlib.pyplot as plt

    dimensions = records.values("d")
    fig, axes = plt.subplots(
        len(dimensions), 2, figsize=(7.2, 2.9 * len(dimensions)), layout="constrained", squeeze=False
    )
    for d, (left, right) in zip(dimensions, axes):
        some = records.where(d=d)
        degrees = np.arange(1, DEGREES + 1)
        for name, values, color in zip(KERNELS, some[0].measures["eigenvalues"], COLORS):
            shown = values[1:] > 1e-12
            left.loglog(degrees[shown], values[1:][shown], "o", ms=3, color=color, label=name)
        anchor = some[0].measures["eigenvalues"][1][30]
        left.loglog(degrees[4:], anchor * (degrees[4:] / 30.0) ** -d, "k--", lw=1, label=f"degree$^{{-{d}}}$")
        left.set(xlabel="degree of the harmonic", ylabel="eigenvalue", title=f"spectrum on the sphere, d = {d}")
        left.legend()
        n, risk = _curves(some, "risk")
        _, predicted = _curves(some, "predicted")
        for k, color in enumerate(COLORS):
            error = 2 * risk[:, :, k].std(1, ddof=1) / np.sqrt(risk.shape[1])
            right.errorbar(n, risk[:, :, k].mean(1), error, fmt="o", ms=3.5, color=color)
            right.plot(n, predicted[:, 0, k], "-", lw=1.2, color=color)
        right.plot([], [], "ko", ms=3.5, label="measured, ± 2 s.e.")
        right.plot([], [], "k-", lw=1.2, label="predicted by the spectrum")
        right.axhline(GOAL, color="0.6", lw=0.8, ls=":")
        right.set(xscale="log", yscale="log", xlabel="training points n", ylabel="risk  E(f − f*)²")
        right.set_title(f"learning curves, d = {d}")
        right.set_xticks(n, [str(value) for value in n])
        right.set_xticks([], minor=True)
        right.legend(loc="lower left")
    return fig


experiment = Experiment(
    name="ntk_like_laplace",
    source="S3",
    tags=("L3",),
    question="Does the neural tangent kernel differ from classical kernels, in its spectrum or in its learning curve?",
    prediction="NTK and Laplace eigenvalues decay as degree^-d; the three learning curves are similar [L3].",
    protocol="Uniform inputs on the sphere, a target of degrees 1–3, noise 0.3, kernel ridge regression, float64.",
    verdict="Exponents within 2% of -d; measured/predicted risk in [0.85, 1.2]; NTK and Laplace within a factor 1.5.",
    trial=trial,
    claims=claims,
    figure=figure,
    quick=config({"d": [5], "n": [64, 128, 256, 512]}, seeds=12, n_max=512),
    full=config({"d": [5, 8], "n": [64, 128, 256, 512, 1024]}, seeds=24, n_max=1024),
    traced=("n",),
    lanes=4,
    caveats="The predicted curve is exact as the numbers of samples and eigenfunctions grow together; bandwidths are "
    "not tuned.",
)
