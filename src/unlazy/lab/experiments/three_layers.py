"""Three layers learn a degree-p polynomial of one direction from n ≈ d^{p/2} samples; kernels need d^p [L7, L9].

Question: how does the number of samples for a degree-4 ridge polynomial grow with d, with three layers and with
kernels?
Prediction [L7, L9]: with features of degree p/2 = 2 in a frozen first layer, He_4(β·x) is a low-rank quadratic form of
them, and a quadratic layer with weight decay finds it from about d² samples, the number of features. Kernels, even the
degree-4 polynomial kernel, need all C(d+4, 4) dimensions of degree 4.
Protocol: f* = He_4(β·x)/√24, x ~ N(0, I_d), no noise. Three layers: g = all Hermite features of degree 2 and a constant
feature 3, f = Σ ±(w_r·g)², 60 neurons, ‖w_r‖ ≈ 0.1 at initialization, Adam with learning rate 1e-2 and cosine decay,
4,000 steps (quick: 1,500, too few for d ≥ 12), weight decay 0.01 or 0.03 selected by validation. `norm_24`: the same
with the penalty λ‖WΣ̂^{1/2}‖_{2,4}^4, λ = 0.003 or 0.01, instead of weight decay. Kernel ridge regression with
(1 + ⟨x,z⟩/d)^4 and with the ReLU NTK (with bias), ridge selected by validation. Negative result: 200 whitened random
ReLU neurons as first layer. n*(d): the smallest n at which the median risk over seeds reaches 0.25, by interpolation in
log n; bootstrap over seeds.
Verdict: n* of the three layers at most 1.2 × 103, 189, 336, 421, 575 at d = 6, 8, 10, 12, 14 (upper ends of the
intervals); the interval of its exponent contains 2 and lies below that of the polynomial kernel; every mean risk of the
NTK above 0.5; at d = 8, n = 540 the median risk is above 0.25 with random ReLU neurons and below with Hermite features.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PRNGKeyArray

from unlazy.core.arrays import dot
from unlazy.core.dataset import Data
from unlazy.lab.claims import Claim, at_least, at_most, interval_claim
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config
from unlazy.lab.experiments._baselines import by_seed, draw, infinite_width_ridge, kernel_ridge, risk
from unlazy.measures.scaling_fit import first_n, scaling_exponent
from unlazy.networks.quadratic import QuadraticNetwork
from unlazy.networks.three_layer import HermiteFeatures, data_norm, random_first_layer, second_moment
from unlazy.tasks.polynomials import hermite_polynomial
from unlazy.training.descent.descend import descend
from unlazy.training.descent.signed_dropout import train_moves
from unlazy.training.options import DescentOptions

BARS = {6: 103, 8: 189, 10: 336, 12: 421, 14: 575}
"""Reference values of n for risk 0.25, measured with a first version of this model."""
THRESHOLD, NEURONS, RATE, CONSTANT, START = 0.25, 60, 1e-2, 3.0, 0.1
STRENGTHS = {"hermite": (0.01, 0.03), "random_relu": (0.01, 0.03), "norm_24": (0.003, 0.01)}
RELU_NEURONS = 200
POLYNOMIAL_RIDGES = (1e-12, 1e-9, 1e-6, 1e-3, 1.0)
NAMES = {"hermite": "three layers", "norm_24": "three layers, 2,4-norm", "polynomial": "degree-4 kernel",
         "ntk": "ReLU NTK", "random_relu": "random ReLU first layer"}  # fmt: skip


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial; measures risk."""
    key_task, key_data, key_start, key_test = jax.random.split(key, 4)
    d, n, method = params["d"], params["n"], params["method"]
    task = hermite_polynomial(d, 4, key=key_task)
    sample = draw(task, key_data, n)
    if method == "ntk":
        predict = infinite_width_ridge("ntk", sample)
    elif method == "polynomial":
        predict = kernel_ridge(lambda X, Z: (1 + dot(X, Z.T) / d) ** 4, sample, POLYNOMIAL_RIDGES)
    else:
        train = jax.tree.map(lambda part: part[: params["rows"]], sample.train)
        steps = params["steps"]
        predict = partial(_three_layers, key_start, train, sample.validation, method=method, steps=steps)
    return {"risk": risk(task, predict, key_test)[0]}


@partial(jax.jit, static_argnames=("method", "steps"))
def _three_layers(key: Any, train: Data, validation: Data, Z: Any, *, method: str, steps: int) -> Any:
    """Predictions at Z, with the regularization strength selected by validation; training in float32."""
    d, key_layer = train.d, jax.random.fold_in(key, 1)
    features: Any = HermiteFeatures(d, 2, CONSTANT)
    if method == "random_relu":
        features = random_first_layer(key_layer, d, RELU_NEURONS, "relu")
        features = features.whitened(jax.random.normal(key_layer, (8 * RELU_NEURONS, d)), RELU_NEURONS // 2)
    G, GV, GZ = (features(X).astype(jnp.float32) for X in (train.X, validation.X, Z))
    data = Data(G, train.y.astype(jnp.float32), None if train.weights is None else train.weights.astype(jnp.float32))
    network = QuadraticNetwork(NEURONS)
    start = network.init(key, G.shape[1], START).astype(jnp.float32)

    def fit(strength: Any) -> Any:
        """Train with one regularization strength."""
        if method == "norm_24":
            covariance = second_moment(GV)
            return train_moves(network, start, data, steps=steps, step_size=RATE, key=None,
                               penalty=lambda W: strength * data_norm(W, covariance)).delta  # fmt: skip
        rule = optax.adam(optax.cosine_decay_schedule(RATE, steps))
        return descend(network, start, data, steps=steps, options=DescentOptions(rule, decay=strength)).params

    found = jax.lax.map(fit, jnp.array(STRENGTHS[method], jnp.float32))
    errors = jax.lax.map(lambda W: jnp.mean((network(W, GV) - validation.y) ** 2), found)
    return network(found[jnp.argmin(errors)], GZ).astype(Z.dtype)


def curves(records: Records, method: str) -> dict[float, tuple[np.ndarray, np.ndarray]]:
    """Learning curves by dimension: {d: (n, risks by n and seed)}."""
    found = {}
    part = records.where(method=method)
    for d in part.values("d"):
        n, table = by_seed(part.where(d=d), "n", "risk")
        if len(n) > 2 and table.size:
            found[d] = np.array(n), table
    return found


def claims(records: Records) -> list[Claim]:
    """Claims on [L7, L9], from the records."""
    rows = []
    ours, kernel = curves(records, "hermite"), curves(records, "polynomial")
    for d, bar in BARS.items():
        if d in ours:
            star = first_n(*ours[d], THRESHOLD)
            rows.append(interval_claim(f"three layers, d = {d}: n for risk 0.25", "L9", star.value, star.low, star.high,
                                       star.high <= 1.2 * bar, f"≤ 1.2 × {bar}", "95%, bootstrap"))  # fmt: skip
    if len(ours) > 1 and len(kernel) > 1:
        a, b = scaling_exponent(ours, THRESHOLD), scaling_exponent(kernel, THRESHOLD)
        rows += [
            interval_claim("three layers: exponent of n*(d)", "L9", a.value, a.low, a.high, a.low <= 2 <= a.high,
                           "2 = p/2", "95%, bootstrap"),
            interval_claim("degree-4 kernel: exponent of n*(d)", "L7", b.value, b.low, b.high, b.low > a.high,
                           f"> {a.high:.2f}, the three layers' (4 as d → ∞)", "95%, bootstrap", "derived"),
        ]  # fmt: skip
    return rows + _baseline_claims(records)


def _baseline_claims(records: Records) -> list[Claim]:
    """Claims on the NTK, on random ReLU neurons in the first layer, and on the 2,4-norm penalty."""
    rows = []
    ntk = records.where(method="ntk")
    if len(ntk):
        points = {(r.params["d"], r.params["n"]) for r in ntk}
        means = {(d, n): ntk.where(d=d, n=n).measure("risk").mean() for d, n in points}
        (d, n), lowest = min(means.items(), key=lambda item: item[1])
        rows.append(at_least(f"ReLU NTK: lowest mean risk of {len(means)} settings, at d = {d}, n = {n}", "L7",
                             float(lowest), 0.5))  # fmt: skip
    for method, rule in (("random_relu", at_least), ("hermite", at_most)):
        found = records.where(method=method, d=8, n=540)
        if len(found) > 1:
            logs = np.log(found.measure("risk"))
            middle = float(np.exp(np.median(logs)))
            rows.append(rule(f"{NAMES[method]}, d = 8, n = 540: median risk", "L9", middle, 0.25))
    pair = [records.where(method=m, d=10, n=336) for m in ("norm_24", "hermite")]
    if all(map(len, pair)):
        middles = [float(np.median(p.measure("risk"))) for p in pair]
        rows.append(at_most("three layers with λ‖WΣ̂^{1/2}‖_{2,4}^4, d = 10, n = 336: median risk (weight decay "
                            f"{middles[1]:.2g})", "L9", middles[0], 0.25))  # fmt: skip
    return rows


def figure(records: Records) -> Figure:
    """Plot of median risk (1e-4: exact) against samples n."""
    import matplotlib.pyplot as plt

    fig, (left, right) = plt.subplots(1, 2, figsize=(8.2, 3.9))
    shown = max((d for d in records.values("d") if len(records.where(d=d, method="polynomial"))), default=None)
    for i, (method, name) in enumerate(NAMES.items()):
        found = records.where(method=method, d=shown)
        if len(found):
            n, middle = found.over("n", "risk")
            left.loglog(n, np.maximum(middle, 1e-4), "os^Dv"[i] + "-", color=f"C{i}", label=name)
    left.axhline(THRESHOLD, color="k", lw=0.8, ls=":")
    left.set(xlabel="samples n", ylabel="median risk (1e-4: exact)", title=f"He₄ of one direction, d = {shown}")
    largest = max(records.where(d=shown).values("n"), default=50)
    sizes = [v for v in (50, 100, 200, 500, 1000, 2000, 5000) if v <= largest]
    left.set_xticks(sizes, [str(v) for v in sizes])
    left.minorticks_off()
    left.legend(loc="lower left")
    for i, method in ((0, "hermite"), (2, "polynomial")):
        table = curves(records, method)
        d = np.array(sorted(table))
        if len(d) < 2:
            continue
        stars = [first_n(*table[v], THRESHOLD) for v in d]
        bars = np.array([[s.value - s.low, s.high - s.value] for s in stars]).T
        slope = scaling_exponent(table, THRESHOLD)
        right.errorbar(d, [s.value for s in stars], np.maximum(bars, 0), fmt="os^Dv"[i] + "-", color=f"C{i}", capsize=2,
                       label=f"{NAMES[method]}: {slope.value:.2f} [{slope.low:.2f}, {slope.high:.2f}]")  # fmt: skip
        if method == "polynomial":
            right.plot(d, [math.comb(int(v) + 4, 4) for v in d], "k--", lw=0.9, label="C(d+4, 4)")
        else:
            right.plot(d, [(v + 1) * (v + 2) for v in d], "k:", lw=0.9, label="(d+1)(d+2)")
    right.set(xscale="log", yscale="log", xlabel="input dimension d", ylabel="n* for risk 0.25")
    low, high = right.get_ylim()
    right.set_ylim(low, high * 12)
    dims = sorted({*curves(records, "hermite"), *curves(records, "polynomial")})
    right.set_xticks(dims, [f"{v:g}" for v in dims])
    right.minorticks_off()
    right.legend(loc="upper left")
    return fig


def _grid(d: int, shares: tuple[float, ...], method: str = "hermite", extra: tuple[int, ...] = ()) -> dict:
    """Grid of n for a three-layer model (or the NTK), relative to the reference value."""
    counts = sorted({round(BARS[d] * share) for share in shares} | set(extra))
    return {"method": [method], "d": [d], "rows": [max(counts)], "n": counts}


def _kernel_grid(d: int, shares: tuple[float, ...]) -> dict:
    """Grid of n for the polynomial kernel, relative to C(d+4, 4)."""
    return {"method": ["polynomial"], "d": [d], "n": [round(math.comb(d + 4, 4) * share) for share in shares]}


FINE = (0.3, 0.4, 0.5, 0.6, 0.75, 1.0, 1.2)
experiment = Experiment(
    name="three_layers",
    source="S3",
    tags=("L7", "L9"),
    question="How many samples does a degree-4 polynomial of one direction need with three layers, and with kernels?",
    prediction="Three layers: about d^{p/2} = d². Kernels: C(d+4, 4), the number of dimensions of degree 4.",
    protocol="He_4(β·x)/√24, d = 6 … 14; quadratic layer on degree-2 Hermite features against kernels; n* for risk "
    "0.25, bootstrap over seeds; random ReLU first layer as a negative result.",
    verdict="n* at most 1.2 × 103, 189, 336, 421, 575; interval of the exponent contains 2 and lies below that of the "
    "kernel; risk of the NTK above 0.5.",
    trial=trial,
    claims=claims,
    figure=figure,
    quick=config(
        _grid(6, (0.4, 0.55, 0.75)), _grid(8, (0.4, 0.5, 0.75)), _grid(10, (0.35, 0.5, 0.75)),
        *(_kernel_grid(d, (0.7, 0.85, 1)) for d in (6, 8, 10)),
        {"method": ["ntk"], "d": [6, 8, 10], "n": [336]},
        seeds=6, steps=1500,
    ),
    full=config(
        _grid(6, FINE), _grid(8, FINE, extra=(540,)), *(_grid(d, FINE) for d in (10, 12, 14)),
        *(_kernel_grid(d, (0.5, 0.7, 0.8, 0.9, 1)) for d in (6, 8, 10, 12, 14)),
        *(_grid(d, (0.5, 1.2), "ntk") for d in BARS),
        {"method": ["ntk"], "d": [14], "rows": [3080], "n": [1500, 3080]},
        {"method": ["random_relu"], "d": [8], "rows": [540], "n": [189, 360, 540]},
        _grid(10, (0.5, 0.75, 1.0), "norm_24"),
        seeds=10, steps=4000,
    ),
    vectorized=False,
    caveats="The Hermite layer is an oracle, as in the proof: it knows the degree. A random first layer must contain "
    "these features, and at these d random ReLU neurons do not. At d ≤ 14 the number of features and C(d+4, 4) do not "
    "yet scale as d² and d⁴.",
)  # fmt: skip
