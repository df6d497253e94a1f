"""With signed dropout, a wide network trains its quadratic part instead of its linearization [L8, L9].

Question: do random signs on the weight changes of the neurons move a three-layer network out of the lazy regime, and
does it reduce the risk?
Prediction [L8]: without signs, the linear part Σ a_r σ'(w_r·g)(δ_r·g) fits the data, and the network behaves like its
NTK; a fresh sign z_r = ±1 on each weight change turns this part into zero-mean noise, so that only the quadratic part
can fit. For a degree-4 ridge polynomial the quadratic part needs about d² samples, the NTK C(d+4, 4): there is a gain
below that number of samples, and none above it.
Protocol: f* = He_4(β·x)/√24. g = 3D random neurons (v·x + b)², whitened on the D = (d+1)(d+2)/2 quadratics that they
span; f = w^{-1/2} Σ ±½(w_r·g)², 600 neurons in antisymmetric pairs (f_0 = 0), ‖w_r‖ ≈ 1/2; weight changes δ trained by
Adam with learning rate 3e-3 and cosine decay, 2,000 steps, penalty 2e-5‖δ‖². With signs the prediction is the even part
½(f(δ) + f(-δ)), without signs f(δ). NTK: kernel ridge regression with K_1 of the same network, best ridge on the test
set. The share of the linear part is E odd²/(E odd² + E even²) of the trained function.
Verdict: at d = 8, n = 360 and d = 10, n = 600 the ratio of the risk with signs to that without, and to that of the NTK,
is at most 0.7 (geometric mean over seeds, upper end of ± 2 standard errors); the mean share of the linear part is below
10% with signs, above 50% without; above C(d+4, 4) (d = 8, n = 700) the NTK has the smaller risk.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from unlazy.core.arrays import dot
from unlazy.core.dataset import Data
from unlazy.lab.claims import Claim, at_least, at_most, interval_claim, standard_error
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config
from unlazy.lab.experiments._baselines import by_seed
from unlazy.networks.quadratic import alternating
from unlazy.networks.three_layer import random_first_layer
from unlazy.tasks.polynomials import hermite_polynomial
from unlazy.training.descent.signed_dropout import even_part, odd_share, train_moves

NEURONS, RATE, STEPS, PENALTY, START = 600, 3e-3, 2000, 2e-5, 0.5
RIDGES = (1e-10, 1e-8, 1e-6, 1e-4, 1e-2)
NAMES = {"ntk": "NTK", "plain": "training without signs", "signed": "signed dropout"}
POINTS = ((8, 360), (10, 600))


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial at a point of the grid."""
    return _trial(key, **{k: params[k] for k in ("method", "d", "n")}, neurons=params.get("neurons", NEURONS))


@partial(jax.jit, static_argnames=("method", "d", "n", "neurons"))
def _trial(key: Any, *, method: str, d: int, n: int, neurons: int) -> dict[str, Any]:
    """Risk of one method; for trained networks also the share of the linear part."""
    key_task, key_data, key_layer, key_start, key_train, key_test = jax.random.split(key, 6)
    task = hermite_polynomial(d, 4, key=key_task)
    data = task.sample(key_data, n)
    D = (d + 1) * (d + 2) // 2
    layer = random_first_layer(key_layer, d, 3 * D, "square")
    layer = layer.whitened(jax.random.normal(jax.random.fold_in(key_layer, 1), (20 * D, d)), D)
    W0 = jnp.repeat(jax.random.normal(key_start, (neurons // 2, D)) * START / math.sqrt(D), 2, axis=0)
    if method == "ntk":
        return {"risk": _ntk(task, data, layer, W0, key_test)}
    W0, a = W0.astype(jnp.float32), alternating(neurons).astype(jnp.float32) / math.sqrt(neurons)

    def network(delta: Any, G: Any) -> Any:
        return dot(0.5 * jnp.square(dot(G.astype(jnp.float32), (W0 + delta).T)), a)

    nudge = 0.01 * jax.random.normal(key_train, W0.shape, jnp.float32) / math.sqrt(D)  # with signs, δ = 0 is a saddle
    train = Data(layer(data.X).astype(jnp.float32), data.y.astype(jnp.float32))
    found = train_moves(network, nudge, train, steps=STEPS, step_size=RATE,
                        key=key_train if method == "signed" else None,
                        penalty=lambda delta: PENALTY * jnp.sum(delta**2))  # fmt: skip

    def risk(part: Any) -> Any:
        return task.population_risk(lambda Z: part(layer(Z)).astype(Z.dtype), key_test).mean

    even, whole = risk(lambda G: even_part(network, found.delta, G)), risk(lambda G: network(found.delta, G))
    share = odd_share(network, found.delta, layer(jax.random.normal(key_test, (2048, d))))
    return {"risk": even if method == "signed" else whole, "even": even, "whole": whole, "odd_share": share,
            "training_loss": 2 * found.losses[-1], "move": jnp.sqrt(jnp.mean(jnp.sum(found.delta**2, 1)))}  # fmt: skip


def _ntk(task: Any, data: Data, layer: Any, W0: Any, key: Any) -> Any:
    """Risk of kernel ridge regression with K_1(x,z) = mean_r (w_r·g)(w_r·g') ⟨g,g'⟩ at the best ridge."""
    M = dot(W0.T, W0) / W0.shape[0]

    def gram(G: Any, H: Any) -> Any:
        return dot(G, M, H.T) * dot(G, H.T)

    G = layer(data.X)
    s, U = jnp.linalg.eigh(gram(G, G))
    alphas = [dot(U, dot(U.T, data.y) / (jnp.maximum(s, 0) + r * jnp.mean(s))) for r in RIDGES]
    risks = [task.population_risk(lambda Z, v=v: dot(gram(layer(Z), G), v), key).mean for v in alphas]
    return jnp.min(jnp.stack(risks))


def claims(records: Records) -> list[Claim]:
    """Claims on [L8, L9], from the records."""
    rows = []
    for d, n in POINTS:
        here = records.where(d=d, n=n)
        for other in ("plain", "ntk"):
            found = log_ratios(here, "signed", other)
            if len(found) > 1:
                value, low, high = geometric_mean(found)
                rows.append(
                    interval_claim(
                        f"d = {d}, n = {n}: risk of signed dropout / risk of {NAMES[other]}, {len(found)} seeds",
                        "L8",
                        value,
                        low,
                        high,
                        high <= 0.7,
                        "≤ 0.7",
                        "± 2 standard errors",
                    )
                )
        for method, rule, bound in (("signed", at_most, 0.1), ("plain", at_least, 0.5)):
            part = here.where(method=method)
            if len(part) > 1:
                share = part.measure("odd_share")
                rows.append(
                    rule(
                        f"d = {d}, n = {n}, {NAMES[method]}: share of the linear part",
                        "L8",
                        float(share.mean()),
                        bound,
                        error=standard_error(share),
                    )
                )
    found = log_ratios(records.where(d=8, n=700), "signed", "ntk")
    if len(found) > 1:
        value, low, high = geometric_mean(found)
        rows.append(
            interval_claim(
                "d = 8, n = 700 > C(12, 4): risk of signed dropout / risk of NTK",
                "L8",
                value,
                low,
                high,
                low >= 1,
                "≥ 1: the kernel is exact here",
                "± 2 standard errors",
            )
        )
    return rows  # fmt: skip


def log_ratios(records: Records, method: str, other: str) -> np.ndarray:
    """Logarithm of the ratio of risks of two methods, by seed."""
    tables = [dict((r.seed, float(r.measures["risk"])) for r in records.where(method=m)) for m in (method, other)]
    return np.log([tables[0][s] / max(tables[1][s], 1e-12) for s in sorted(set(tables[0]) & set(tables[1]))])


def geometric_mean(logs: np.ndarray) -> tuple[float, float, float]:
    """Geometric mean from logarithms, with the ends of ± 2 standard errors."""
    middle, error = float(np.mean(logs)), standard_error(logs)
    return math.exp(middle), math.exp(middle - 2 * error), math.exp(middle + 2 * error)


def figure(records: Records) -> Figure:
    """Plot of risk (1e-3: exact) against samples n."""
    import matplotlib.pyplot as plt

    fig, (left, right) = plt.subplots(1, 2, figsize=(7.8, 3.9))
    here = records.where(d=8)
    for i, (method, name) in enumerate(NAMES.items()):
        part = here.where(method=method)
        if not len(part):
            continue
        n, table = by_seed(part, "n", "risk")
        table = np.maximum(table, 1e-3)
        left.loglog(n, np.median(table, 1), "sD^"[i] + "-", color=f"C{i}", label=name)
        left.loglog(np.repeat(n, table.shape[1]), table.ravel(), "sD^"[i], color=f"C{i}", alpha=0.25, ms=3)
    left.axvline(math.comb(12, 4), color="k", lw=0.8, ls="--", label="C(12, 4)")
    sizes = here.values("n")
    left.set_xticks(sizes, [str(v) for v in sizes])
    left.minorticks_off()
    left.set(xlabel="samples n", ylabel="risk (1e-3: exact)", title="He₄ of one direction, d = 8", ylim=(6e-4, 3))
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)
    for i, method in ((1, "plain"), (2, "signed")):
        part = here.where(method=method)
        if len(part):
            n, table = by_seed(part, "n", "odd_share")
            right.plot(n, 100 * np.mean(table, 1), "sD^"[i] + "-", color=f"C{i}", label=NAMES[method])
            right.plot(np.repeat(n, table.shape[1]), 100 * table.ravel(), "sD^"[i], color=f"C{i}", alpha=0.25, ms=3)
    right.axhline(10, color="k", lw=0.8, ls=":")
    right.set_xticks(sizes, [str(v) for v in sizes])
    right.set(xlabel="samples n", ylabel="share of the linear part, %", ylim=(0, 103))
    right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)
    return fig


METHODS = ["signed", "plain", "ntk"]
experiment = Experiment(
    name="signed_dropout",
    source="S3",
    tags=("L8", "L9"),
    question="Do random signs on weight changes move a wide network out of the lazy regime, and reduce its risk?",
    prediction="Without signs the linear part fits and the network behaves like its NTK; with signs the quadratic part "
    "fits, from about d² samples instead of C(d+4, 4).",
    protocol="He_4(β·x)/√24, three layers with whitened random square neurons, 600 neurons, Adam; risk with signs, "
    "without signs, and of the NTK; share of the linear part.",
    verdict="Risk with signs at most 0.7 times the others at d = 8, n = 360 and d = 10, n = 600; linear share < 10% "
    "with signs, > 50% without; above C(d+4, 4) samples the NTK is better.",
    trial=trial,
    claims=claims,
    figure=figure,
    quick=config({"method": METHODS, "d": [8], "n": [180, 360]}, seeds=5),
    full=config({"method": METHODS, "d": [8], "n": [120, 180, 240, 360, 480, 700]},
                {"method": METHODS, "d": [10], "n": [600]}, seeds=10),
    vectorized=False,
    caveats="The gain is limited to a range of n: above C(d+4, 4) samples the tangent kernel recovers the target "
    "exactly and is better. The first layer has the square activation; random ReLU neurons do not work here "
    "(three_layers).",
)  # fmt: skip
