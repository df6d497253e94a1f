"""The richness γ_0 interpolates between lazy and rich training: where does it help, at infinite width? [M5]

Question. How do risk, alignment with the latent directions and the change of the tangent kernel depend on γ_0 and n, on
targets with and without latent directions?
Prediction. [M5, iv] On g(Ux) the rich limit beats its lazy limit, a fixed kernel, and the advantage grows with the
number of points; on an isotropic target, a sum over very many directions, it does not; the change of Θ increases with
γ_0; neurons align with the latent directions. On hidden patterns [P1] the inputs reveal the features, and richness
helps too.
Protocol. Two-layer ReLU network of infinite width, σ_b = 0.3 in the first layer; gradient flow from f = 0 until the
training loss is 5% of its initial value; no label noise. `index`: x ~ N(0, I_12), relu(x_1) - relu(-x_2); `isotropic`:
the same inputs, 500 ReLU neurons in random directions, random signs; `patterns`: structured inputs, 12 patterns, 3
relevant, parity, inputs scaled to unit variance. Labels centered and normalized on the sample; 400 test points; the
same data for every γ_0. float32: the differences are far above rounding errors.
Verdict. At the largest n, risk at the largest γ_0 divided by that at the smallest: at most 0.7 on `index`, at least 0.9
on `isotropic`, at most 0.9 on `patterns`; on `index` this ratio is smaller at the largest n than at the smallest; share
of the neurons' weights in the latent directions, at the largest γ_0 and n, at least 1.5 times chance on `index` and on
`patterns`; all with two standard errors over seeds. The mean change of Θ increases with every step of γ_0, on every
target, at every n.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from unlazy.kernels.networks.infinite_width import NTK
from unlazy.lab.claims import Claim, at_least, at_most, interval_claim, standard_error
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config
from unlazy.measures.subspace import energy
from unlazy.products.metric_gram import cross
from unlazy.tasks.patterns import pattern_task
from unlazy.tasks.teachers import teacher
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.training.options import RichOptions
from unlazy.training.rich.limit import rich_limit

INPUTS, TESTS, ENOUGH, DIRECTIONS = 12, 400, 0.05, 500
TARGETS = ("index", "isotropic", "patterns")


def _data(target: str, n: int, key: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Inputs, labels, and the latent directions if there are any."""
    key_task, key_x = jax.random.split(key)
    if target == "patterns":
        task = pattern_task(INPUTS, INPUTS, 3, key=key_task)
        X = np.asarray(task.inputs(key_x, n + TESTS)) * np.sqrt(INPUTS)
        y, U = np.asarray(task.target(jnp.asarray(X / np.sqrt(INPUTS)))), np.asarray(task.subspace)
    else:
        X, U = np.asarray(jax.random.normal(key_x, (n + TESTS, INPUTS))), None
        if target == "index":
            y, U = np.maximum(X[:, 0], 0) - np.maximum(-X[:, 1], 0), np.eye(INPUTS)[:2]
        else:
            heads = jax.random.rademacher(key_task, (DIRECTIONS,), jnp.zeros(()).dtype) / np.sqrt(DIRECTIONS)
            wide = teacher(INPUTS, DIRECTIONS, heads=heads, key=key_task, orthogonal=False)
            y = np.asarray(wide.target(jnp.asarray(X)))
    y = y - y[:n].mean()
    return X, y / np.sqrt(np.mean(y[:n] ** 2)), U


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial; measures risk, reached, share, loss, moved, error, time."""
    n, gamma = params["n"], params["richness"]
    X, y, U = _data(params["target"], n, key)
    net = MLP(1, "relu", sigma_b=(0.3, 0.0))
    mean = float(np.mean(np.diagonal(cross(NTK(net), X[:n], X[:n], np.ones(INPUTS), 1.0))))
    times = np.r_[0.0, np.geomspace(0.1, params["long"], 20)] / mean
    enough = ENOUGH * float(np.mean(y[:n] ** 2)) / 2
    options = RichOptions(params["draws"], runs=2, tolerance=1e-2, precision="float32", stop_below=enough)
    rich: Any = rich_limit(
        net, X[:n], y[:n], richness=gamma, times=times, options=options, key=jax.random.fold_in(key, 1)
    )
    f = np.asarray(rich.predict(X[n:]))
    Theta, w, loss = np.asarray(rich.tangent.value), rich.states.w[-1], float(rich.losses.value[-1])
    share = np.nan if U is None else float(energy(w.reshape(-1, w.shape[-1])[:, :INPUTS], U)) * INPUTS / len(U)
    return {
        "risk": float(np.mean((f - y[n:]) ** 2)), "reached": loss <= enough, "share": share, "loss": loss,
        "moved": float(np.linalg.norm(Theta[-1] - Theta[0]) / np.linalg.norm(Theta[0])),
        "error": float(np.sqrt(np.mean(np.square(rich.fitted.error[-1])))), "time": float(rich.times[-1]) * mean,
    }  # fmt: skip


def _by_richness(records: Records, target: str, name: str, n: int | None = None) -> tuple[list[float], np.ndarray]:
    """Values of γ_0, and a measure as a table (γ_0 × seeds) at one n, by default the largest."""
    chosen = records.where(target=target, n=max(records.values("n")) if n is None else n)
    gammas = chosen.values("richness")
    return gammas, np.stack([chosen.where(richness=g).measure(name) for g in gammas])


def _gain(records: Records, target: str, n: int | None = None) -> tuple[float, float]:
    """Mean risk at the largest γ_0 / mean risk at the smallest, and the standard error (both use the same data)."""
    risks = _by_richness(records, target, "risk", n)[1]
    top, bottom = risks[-1], risks[0]
    ratio = top.mean() / bottom.mean()
    return float(ratio), float(np.std(top - ratio * bottom, ddof=1) / np.sqrt(len(top)) / bottom.mean())


def claims(records: Records) -> list[Claim]:
    """Claims on [M5, M1, M2, P1, P4], from the records."""
    rows = [at_least("fraction of runs that reach the training loss", "M2",
                     float(records.measure("reached").mean()), 1.0, predicted="all")]  # fmt: skip
    gammas, sizes = records.values("richness"), records.values("n")
    few, many = min(sizes), max(sizes)
    for target, bound, compare in (("index", 0.7, at_most), ("isotropic", 0.9, at_least), ("patterns", 0.9, at_most)):
        ratio, error = _gain(records, target)
        statement = f"{target}, n = {many}: risk at γ_0 = {max(gammas):g} / risk at γ_0 = {min(gammas):g}"
        rows.append(compare(statement, "M5", ratio, bound, error=error))
    (late, e_late), (early, e_early) = (_gain(records, "index", n) for n in (many, few))
    change = late / early
    error = change * float(np.hypot(e_late / late, e_early / early))
    statement = f"index: this ratio at n = {many} / this ratio at n = {few}"
    rows.append(at_most(statement, "M5", change, 1.0, error=error, predicted="< 1"))
    for target, tag in (("index", "M5"), ("patterns", "P4")):
        shares = _by_richness(records, target, "share")[1][-1]
        statement = f"{target}: share of weights in the latent directions / chance, γ_0 = {max(gammas):g}"
        error = standard_error(shares)
        rows.append(at_least(statement, tag, float(shares.mean()), 1.5, error=error))
    for target in TARGETS:
        rises = np.concatenate([np.diff(np.log(_by_richness(records, target, "moved", n)[1].mean(1))) for n in sizes])
        low, high = float(rises.min()), float(rises.max())
        statement = f"{target}: smallest increase of log(change of Θ) between successive γ_0"
        rows.append(interval_claim(statement, "M1", low, low, high, low > 0, "> 0", "range over steps and n"))
    return rows


def figure(records: Records) -> Figure:
    """Plot of the records."""
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(1, 3, figsize=(9.6, 3.0), layout="constrained")
    sizes = sorted(records.values("n"))
    styles = {sizes[0]: "--", sizes[-1]: "-"}
    for target, marker, color in zip(TARGETS, "os^", ("C0", "C1", "C2")):
        for axis, name in zip(axes, ("risk", "share", "moved")):
            for n, style in styles.items():
                gammas, values = _by_richness(records, target, name, n)
                if np.isfinite(values).all():
                    label = target if n == sizes[-1] else None
                    axis.loglog(gammas, np.median(values, 1), marker + style, color=color, label=label)
    axes[1].axhline(1, color="gray", lw=1)
    axes[1].set_yscale("linear")
    for axis, title in zip(axes, ("test risk", "weight in latent directions / chance", "relative change of Θ")):
        axis.set(xlabel="richness $γ_0$", title=title)
    axes[2].legend(loc="lower right", title=f"n = {sizes[-1]}; dashed: {sizes[0]}" if len(sizes) > 1 else None)
    return fig


experiment = Experiment(
    name="dial_from_lazy_to_rich",
    source="S3",
    tags=("M5", "M1", "M2", "P1", "P4"),
    question="Where does richness help and where does it hurt, at infinite width?",
    prediction="It helps on targets with latent directions, more so with more points, and not on isotropic targets.",
    protocol="The rich limit of two-layer networks at increasing γ_0 on g(Ux), isotropic targets and patterns, trained "
    "to the same loss.",
    verdict="Risk ratio rich/lazy ≤ 0.7 on g(Ux), decreasing with n; ≥ 0.9 on isotropic targets; ≤ 0.9 on patterns; "
    "the change of Θ increases with γ_0.",
    trial=trial,
    claims=claims,
    figure=figure,
    vectorized=False,
    lanes=1,
    quick=config({"target": TARGETS, "richness": [0.1, 1.0, 8.0], "n": [40, 120]}, seeds=3, draws=256, long=100.0),
    full=config(
        {"target": TARGETS, "richness": [0.03, 0.1, 0.3, 1.0, 3.0, 10.0], "n": [60, 120, 240]}, seeds=8, draws=4096,
        long=300.0,
    ),
    caveats="All runs stop at the same training loss; selecting the stopping time or γ_0 by validation would be a "
    "different question.",
)  # fmt: skip
