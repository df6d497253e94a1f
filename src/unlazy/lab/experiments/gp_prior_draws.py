"""Draws from Gaussian-process priors: each kernel is a prior over functions [K5, K12].

Question. Do draws from a Gaussian-process prior have the kernel as covariance, and does its behavior near x = z
determine their roughness?
Prediction. [K5] f ~ GP(0, K): E f(x)f(z) = K(x,z). E(f(x+h) - f(x))² = 2(K(0) - K(h)) grows like h^{2H} for small h:
H = 1/2 for the Laplace kernel (rough, like a random walk), 1 for Gaussian, Matérn 3/2 and ReLU NNGP (differentiable).
Protocol. 160 points on the circle with a third coordinate 0.5, draws by eigendecomposition, float64.
Verdict. Whitened by K at 6 points, the draws have 6 means and 21 second moments: the largest |z| is below the value
that the largest of 27 exact scores exceeds with probability 1e-4. The roughness exponent 2H, from increments over 1 and
2 grid steps, agrees with the kernel's value at those steps within 4 standard errors (over seeds).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from unlazy.core.arrays import dot
from unlazy.kernels.base import Kernel
from unlazy.kernels.networks.infinite_width import NNGP
from unlazy.kernels.radial import Gaussian, Laplace, Matern
from unlazy.lab.claims import Claim, at_most, consistent, standard_error
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config
from unlazy.measures import gaussian_test
from unlazy.solvers.gaussian_process.posterior import prior
from unlazy.tasks.circle import Circle
from unlazy.theory.infinite_width.architecture import MLP

GRID = 160
TESTED = (0, 22, 51, 80, 104, 137)
SHOWN = 6
KERNELS: dict[str, Kernel] = {
    "Gaussian": Gaussian(0.5),
    "Laplace": Laplace(0.5),
    "Matérn 3/2": Matern(0.5, 1.5),
    "NNGP, ReLU, depth 2": NNGP(MLP(depth=2, scale_input=False)),
}


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial; measures first, second, shown, row, sample_row, roughness, expected_roughness."""
    Z = Circle(bias=0.5).place(jnp.arange(GRID) / GRID)
    process = prior(KERNELS[params["kernel"]], Z)
    K = process.covariance
    f = draws(K, key, params["draws"])
    at = jnp.array(TESTED)
    first, second = gaussian_test.moments(gaussian_test.whiten(f[:, at], process.mean[at], K[at][:, at]))
    steps = [jnp.mean(jnp.square(f - jnp.roll(f, s, axis=1))) for s in (1, 2)]
    expected = [2 * jnp.mean(jnp.diagonal(K) - jnp.diagonal(jnp.roll(K, s, axis=1))) for s in (1, 2)]
    return {
        "first": first, "second": second, "shown": f[:SHOWN], "row": K[GRID // 2],
        "sample_row": dot(f[:, GRID // 2], f) / f.shape[0],
        "roughness": jnp.log2(steps[1] / steps[0]), "expected_roughness": jnp.log2(expected[1] / expected[0]),
    }  # fmt: skip


def draws(K: jax.Array, key: PRNGKeyArray, count: int) -> jax.Array:
    """Draws U√λ ε with K = U diag(λ) Uᵀ.

    `process.sample` draws U√λUᵀ ε, which has the same distribution and is differentiable; stored records use U√λ ε.
    """
    values, U = jnp.linalg.eigh((K + K.T) / 2)
    root = U * jnp.sqrt(jnp.maximum(values, 0))
    return dot(root, jax.random.normal(key, (count, len(K), 1), K.dtype))[..., 0]


def claims(records: Records) -> list[Claim]:
    """Claims on [K5, K12], from the records."""
    rows = []
    for name in records.values("kernel"):
        some = records.where(kernel=name)
        draws = len(some) * some[0].params["draws"]
        z = gaussian_test.z_scores(some.measure("first").mean(0), some.measure("second").mean(0), draws)
        statement = f"{name}: moments of {draws:,} draws against the prior: largest |z| of {len(z)}"
        allowed = gaussian_test.max_z_threshold(len(z))
        rows.append(at_most(statement, "K5", float(np.abs(z).max()), allowed, basis="derived"))
        rough = some.measure("roughness")
        error = standard_error(rough)
        expected = float(some.measure("expected_roughness").mean())
        statement = f"{name}: roughness exponent 2H of the draws"
        rows.append(consistent(statement, "K12", float(rough.mean()), expected, float(error)))
    return rows


def figure(records: Records) -> Figure:
    """Plot of draws / standard deviation against angle (degrees)."""
    import matplotlib.pyplot as plt

    names = [name for name in KERNELS if name in records.values("kernel")]
    fig, axes = plt.subplots(
        2, len(names), figsize=(max(2.1 * len(names), 3.2), 4.2), layout="constrained", sharex=True, sharey="row",
        squeeze=False,
    )  # fmt: skip
    angle = np.arange(GRID) / GRID * 360
    for name, (top, bottom) in zip(names, axes.T):
        some = records.where(kernel=name)
        sd = np.sqrt(some[0].measures["row"][GRID // 2])
        for f in some[0].measures["shown"]:
            top.plot(angle, f / sd, lw=0.9)
        top.set(title=name)
        bottom.plot(angle, some[0].measures["row"] / sd**2, "k-", lw=1.2, label="kernel")
        mean = some.measure("sample_row").mean(0)
        bottom.plot(angle[::8], mean[::8] / sd**2, "o", color="#D55E00", ms=3, label="draws")
        bottom.set(xlabel="angle (degrees)", xticks=[0, 180, 360], xlim=(0, 360))
    axes[0, 0].set_ylabel("draws / standard deviation")
    axes[1, 0].set_ylabel("correlation with f(180°)")
    axes[1, 0].legend(loc="upper left", fontsize=7)
    return fig


experiment = Experiment(
    name="gp_prior_draws",
    source="S1",
    tags=("K5", "K12"),
    question="Do draws from a Gaussian-process prior have the covariance and the roughness given by the kernel?",
    prediction="E f(x)f(z) = K(x,z); E(f(x+h) - f(x))² = 2(K(0) - K(h)) [K5].",
    protocol="Four kernels on 160 points of the circle, draws by eigendecomposition, float64.",
    verdict="Largest of 27 z-scores below its 1e-4 bound; roughness exponent within 4 standard errors.",
    trial=trial,
    claims=claims,
    figure=figure,
    quick=config({"kernel": list(KERNELS)}, seeds=8, draws=500),
    full=config({"kernel": list(KERNELS)}, seeds=40, draws=5000),
)
