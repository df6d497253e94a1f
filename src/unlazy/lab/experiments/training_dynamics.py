"""Training dynamics of finite random features, compared with the closed form of the infinite limit [K3, K4].

Question. Does gradient descent on p random features follow, at all times, the closed form of the infinite kernel?
Prediction. [K3] f_s = K(x,X)K⁻¹(I - (I - ηK)^s)y exactly for the kernel K_p of the features; for the limit K up to an
error that decays like p^{-1/2} uniformly in time (K_p - K is of that order, and f_s is smooth in K). Gradient descent
converges for step sizes below 2/λ_max and diverges above, by a factor |1 - ηλ_max| per step.
Protocol. Circle with a third coordinate 0.5, 8 evenly spaced points, y = sin θ + ½ cos 3θ, ReLU features, θ = 0 at
initialization, η = 1/λ_max(K) for every p, float64, 4,096 steps, recorded after 0, 1, 2, 4, … steps at 64 points.
Verdict. Gradient descent equals the formula for K_p to 1e-10 (1e-16 × condition number 10⁴ × 100). Slope of
log sup_s rms|f_s^p - f_s^∞| against log p within [-0.6, -0.4]. The last of 200 steps decreases the residual at
η = 0.9 × 2/λ_max(K_p), and multiplies it by |1 - 2.2| = 1.2 (to 1%) at 1.1 ×, for every seed and p.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from unlazy.core.arrays import dot
from unlazy.kernels.networks.infinite_width import NNGP
from unlazy.lab.claims import Claim, at_most, standard_error, within
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config
from unlazy.measures.scaling_fit import power_law
from unlazy.tasks.circle import Circle
from unlazy.theory.dynamics import spectral_filters
from unlazy.theory.infinite_width.architecture import MLP

TASK, POINTS, GRID = Circle(bias=0.5), 8, 64
LIMIT = MLP(1, "relu", 1.0, scale_input=False)
"""Network whose NNGP kernel is E φ(w·x)φ(w·z)."""
STEPS = np.array([0, *(2**k for k in range(13))])
EDGES = (0.9, 1.1)
SHOWN = (4, 10, 37)
"""Grid points whose values are plotted against time."""


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial; measures difference, distance, sup_distance, loss, growth, limit_loss, path, limit_path."""
    X, Z = TASK.place(jnp.arange(POINTS) / POINTS), TASK.place((jnp.arange(GRID) + 0.5) / GRID)
    y, p = TASK.target(X), params["features"]
    W = jax.random.normal(key, (p, X.shape[1]))
    Phi, Phi_z = (jnp.maximum(dot(A, W.T), 0) / jnp.sqrt(p) for A in (X, Z))
    limit = NNGP(LIMIT)
    lam, U = jnp.linalg.eigh(limit.gram(X))
    step_size = 1 / lam[-1]
    theta = _descend(Phi, y, step_size, jnp.asarray(STEPS))
    f, on_training = dot(theta, Phi_z.T), dot(theta, Phi.T)
    own_lam, own_U = jnp.linalg.eigh(dot(Phi, Phi.T))
    own = _closed(own_lam, own_U, dot(Phi_z, Phi.T), y, step_size)
    infinite = _closed(lam, U, limit.gram(Z, X), y, step_size)
    distance = jnp.sqrt(jnp.mean(jnp.square(f - infinite), 1))
    shown = jnp.array(SHOWN)
    return {
        "difference": jnp.max(jnp.abs(f - own)), "distance": distance, "sup_distance": distance.max(),
        "loss": jnp.mean(jnp.square(on_training - y), 1), "growth": _growth(Phi, y, own_lam),
        "limit_loss": jnp.mean(jnp.square(spectral_filters.descent_residual(lam, step_size, STEPS) * dot(U.T, y)), 1),
        "path": f[:, shown], "limit_path": infinite[:, shown],
    }  # fmt: skip


def _descend(Phi: jax.Array, y: jax.Array, step_size: jax.Array, steps: jax.Array) -> jax.Array:
    """Gradient descent from θ = 0; returns θ after each number of steps."""

    def advance(state: tuple[jax.Array, jax.Array], until: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        theta = jax.lax.fori_loop(
            state[1], until, lambda _, th: th - dot(step_size * Phi.T, dot(Phi, th) - y), state[0]
        )
        return (theta, until), theta

    return jax.lax.scan(advance, (jnp.zeros(Phi.shape[1]), jnp.zeros((), steps.dtype)), steps)[1]


def _closed(lam: jax.Array, U: jax.Array, K_zx: jax.Array, y: jax.Array, step_size: jax.Array) -> jax.Array:
    """Predictions in closed form at all recorded steps."""
    return dot(spectral_filters.coefficients(U, spectral_filters.descent_coefficient(lam, step_size, STEPS), y), K_zx.T)


def _growth(Phi: jax.Array, y: jax.Array, lam: jax.Array) -> jax.Array:
    """Factor of the residual norm in step 200, at each multiple of the largest stable step size."""
    rates = jnp.asarray(EDGES) * spectral_filters.largest_step_size(lam)
    steps = jnp.array([199, 200])
    norms = jax.vmap(lambda rate: jnp.linalg.norm(dot(_descend(Phi, y, rate, steps), Phi.T) - y, axis=1))(rates)
    return norms[:, 1] / norms[:, 0]


def claims(records: Records) -> list[Claim]:
    """Claims on [K3, K4], from the records."""
    p, sup = records.over("features", "sup_distance", lambda v, axis: v)
    slopes = np.array([power_law(p, column).exponent for column in sup.T])
    error = standard_error(slopes)
    below, above = records.measure("growth").T
    worst = above[np.argmax(np.abs(above - 1.2))]
    return [
        at_most(
            "gradient descent against the closed form of K_p: largest |difference| over time, points, seeds", "K3",
            float(records.measure("difference").max()), 1e-10, predicted="≤ 1e-10 (rounding)", basis="derived",
        ),
        within("distance to the infinite kernel, sup over time: slope against p", "K4", float(slopes.mean()), -0.6,
               -0.4, error=error, predicted="-1/2 ± 0.1"),
        at_most("step size 0.9 × 2/λ_max: largest growth of the residual in the last step", "K3", float(below.max()),
                1.0, predicted="< 1", basis="theory"),
        within("step size 1.1 × 2/λ_max: growth of the residual per step, worst seed", "K3", float(worst),
               1.188, 1.212, predicted="1.2 ± 1%"),
    ]  # fmt: skip


def figure(records: Records) -> Figure:
    """Plot of training error against steps of gradient descent."""
    import matplotlib.pyplot as plt

    widths = records.values("features")
    fig, (left, middle, right) = plt.subplots(1, 3, figsize=(7.8, 2.9), layout="constrained")
    colors = plt.get_cmap("viridis")(np.linspace(0.1, 0.85, len(widths)))
    for width, color in zip(widths, colors):
        some = records.where(features=width)
        loss = np.median(some.measure("loss"), 0)
        left.loglog(STEPS[1:], loss[1:], "o-", ms=2.5, lw=1, color=color, label=f"p = {width}")
        path = some[0].measures["path"]
        middle.semilogx(STEPS[1:], path[1:], "o-", ms=2.5, lw=0.8, color=color)
    one = records[0].measures
    left.loglog(STEPS[1:], one["limit_loss"][1:], "k--", lw=1.2, label="closed form, p = ∞")
    middle.semilogx(STEPS[1:], one["limit_path"][1:], "k--", lw=1.2)
    left.set(xlabel="steps of gradient descent", ylabel="training error", title="training error")
    left.legend(fontsize=7)
    middle.set(xlabel="steps of gradient descent", ylabel="f at three angles", title="predictions, one seed")
    _, sup = records.over("features", "sup_distance", lambda v, axis: v)
    p = np.array(widths)
    right.loglog(p, np.median(sup, 1), "o-", color="#D55E00", label="median")
    low, high = np.quantile(sup, [0.1, 0.9], axis=1)
    right.fill_between(p, low, high, color="#D55E00", alpha=0.2, lw=0, label="10–90% of seeds")
    right.loglog(p, np.median(sup[0]) * (p / p[0]) ** -0.5, "k--", lw=1, label="slope −1/2")
    right.set(xlabel="number of features p", ylabel="sup over time of rms |f$^p$ − f$^∞$|", title="distance to p = ∞")
    right.legend()
    return fig


experiment = Experiment(
    name="training_dynamics",
    source="S1",
    tags=("K3", "K4"),
    question="Does training on p random features follow the closed form of its kernel, and of the infinite kernel as "
    "p grows?",
    prediction="Exactly for K_p [K3]; within O(p^-1/2) uniformly in time for K [K4]; stable up to η = 2/λ_max.",
    protocol="ReLU features on the circle, 8 points, gradient descent from zero, 4,096 steps, float64.",
    verdict="Gradient descent = formula to 1e-10; slope against p within ±0.1 of -1/2; stable at 0.9 × the largest "
    "step size, growth by 1.2 per step at 1.1 ×.",
    trial=trial,
    claims=claims,
    figure=figure,
    quick=config({"features": [64, 512, 4096]}, seeds=16),
    full=config({"features": [64, 256, 1024, 4096, 16384]}, seeds=48),
    caveats="Exact for K_p at any p; the rate p^-1/2 for K is asymptotic.",
)
