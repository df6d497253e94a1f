"""The page's numbers in Chromium against Python at 200 random settings: kernels, flow, gradient steps.

Both sides compute in float64 from the same arrays. What may differ is the order of sums, amplified by the conditioning:
the page is a picture, so 1e-6 (1e-5 after twenty steps) of the size of what is drawn is asked, far above rounding.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unlazy
from chromium import needs_chromium
from unlazy.core.dataset import Data
from unlazy.layers.protocol.parametrization import WeightBias
from unlazy.networks.mlp import Network
from unlazy.theory.dynamics import spectral_filters
from unlazy.theory.feature_learning import mean_field
from unlazy.theory.feature_learning.bounds import kernel_staircase
from unlazy.theory.infinite_width import fully_connected
from unlazy.training.descent.descend import descend
from unlazy.training.one_step.algorithm import first_gradient, first_step, remove_linear_part
from unlazy.training.options import DescentOptions

pytestmark = needs_chromium
SETTINGS, POINTS, PLACES, INPUTS, WIDTH = 200, 9, 7, 3, 16
DEPTHS = (1, 2, 4, 8)


def ask(tab, page, settings, code):
    """Results of `code`, a function of one setting, for every setting; arrays are passed as lists."""
    tab.open(page)
    text = json.dumps([{k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in s.items()} for s in settings])
    return tab.run(f"{text}.map(s => {{ const A = v => Float64Array.from(v.flat()), U = unlazy; {code} }})")


def kernel_settings():
    """Gaussian, Laplace, NNGP and NTK in turn; points in one or three dimensions, two of them close."""
    rng = np.random.default_rng(0)
    for i in range(SETTINGS):
        d, kind = (1, INPUTS)[i % 2], ("gaussian", "laplace", "nngp", "ntk")[i // 2 % 4]
        X = rng.normal(size=(POINTS, d)) * rng.uniform(0.3, 2)
        X[1] = X[0] + 1e-3
        Z = np.concatenate([X[:1], rng.normal(size=(PLACES - 1, d))])
        size = float(10 ** rng.uniform(-0.7, 0.7))
        yield {"kind": kind, "d": d, "X": X, "Z": Z, "size": size, "depth": int(DEPTHS[i // 8 % 4]),
               "time": float(10 ** rng.uniform(-2, 5)) if i % 7 else None, "y": rng.normal(size=POINTS),
               "ridge": float(10 ** rng.uniform(-4, 0)) if i % 3 or not i % 7 else 0.0}  # fmt: skip


KERNELS = """const kernel = s.kind === "gaussian" || s.kind === "laplace" ? {kind: s.kind, bandwidth: s.size}
  : {kind: s.kind, sigmaW: Array(s.depth + 1).fill(Math.SQRT2), sigmaB: Array(s.depth + 1).fill(s.size)};
const X = A(s.X), Z = A(s.Z), prior = s.kind === "ntk" ? {...kernel, kind: "nngp"} : kernel;
const K = U.gram(kernel, X, X, s.d), across = U.gram(kernel, Z, X, s.d);
const m = U.machine(K, across,
  {points: U.gram(prior, X, X, s.d), across: U.gram(prior, Z, X, s.d), diagonal: U.diagonal(prior, Z, s.d)});
const c = U.coefficient(m.values, s.ridge, s.time ?? Infinity);
return {K: [...K], mean: [...U.mean(m, c, A(s.y))], variance: [...U.variance(m, c, s.ridge, s.kind !== "ntk")]};"""


def grams(s):
    """Θ (or k) and Σ (or k) among X and Z together, by the library."""
    rows = np.concatenate([s["X"], s["Z"]])
    if s["kind"] in ("gaussian", "laplace"):
        kernel = (unlazy.Gaussian if s["kind"] == "gaussian" else unlazy.Laplace)(s["size"])
        K = np.asarray(kernel.gram(rows))
        return K, K
    inner = rows @ rows.T / s["d"]
    sigma, theta = _wide(s["depth"])(inner, s["size"])
    return np.asarray(theta if s["kind"] == "ntk" else sigma), np.asarray(sigma)


_compiled: dict = {}


def _wide(depth):
    if depth not in _compiled:

        @jax.jit
        def both(inner, bias):
            norms = jnp.diagonal(inner)
            network = unlazy.MLP(depth, sigma_b=bias)
            return fully_connected.nngp_and_ntk(inner, norms[:, None], norms[None, :], network)

        _compiled[depth] = both
    return _compiled[depth]


@jax.jit
def trained(T, S, y, ridge, time, single):
    """Mean and variance at the places [K3, K5, K11]."""
    n = POINTS
    values, U = jnp.linalg.eigh(T[:n, :n])
    shifted = jnp.maximum(values, 0) + ridge
    c = spectral_filters.flow_coefficient(shifted, time)
    c = spectral_filters.drop_null_directions(c, shifted, spectral_filters.rounding_floor(shifted))
    mean = T[n:, :n] @ spectral_filters.coefficients(U, c, y)
    one = spectral_filters.random_features_covariance(T[n:, n:], T[n:, :n], U, shifted, c)
    noisy = S[:n, :n] + ridge * jnp.eye(n)
    two = spectral_filters.ensemble_covariance(S[n:, n:], S[n:, :n], noisy, T[n:, :n], U, c)
    return mean, jnp.diagonal(jnp.where(single, one, two))


def test_kernels_and_flow(tab, page):
    settings = list(kernel_settings())
    worst = {"K": 0.0, "mean": 0.0, "variance": 0.0}
    with unlazy.precision("float64"):
        for s, found in zip(settings, ask(tab, page, settings, KERNELS)):
            T, S = grams(s)
            time = np.inf if s["time"] is None else s["time"]
            mean, variance = trained(T, S, s["y"], s["ridge"], time, s["kind"] != "ntk")
            scales = {"K": np.abs(T).max(), "mean": max(1.0, np.abs(mean).max()), "variance": np.abs(S).max()}
            truth = {"K": T[:POINTS, :POINTS].ravel(), "mean": mean, "variance": variance}
            for name, scale in scales.items():
                worst[name] = max(worst[name], np.abs(np.array(found[name]) - truth[name]).max() / scale)
    print(worst)
    assert max(worst.values()) < 1e-6, worst


STEPS = """const X = A(s.X), E = U.embed(X, s.d, Math.SQRT2, s.bias);
const net = {w: A(s.w), z: A(s.z), N: s.z.length, r: s.d + 1, sigma: Math.SQRT2, richness: s.richness};
for (let k = 0; k < 20; k++) U.step(net, E, s.y, s.eta);
return {f: [...U.outputs(net, E)], w: [...net.w], z: [...net.z], tangent: [...U.tangent(net, E)]};"""


def network_settings():
    rng = np.random.default_rng(1)
    half = WIDTH // 2
    for _ in range(SETTINGS):
        w, z = rng.normal(size=(INPUTS + 1, half)), rng.normal(size=half)
        X, bias = rng.normal(size=(POINTS, INPUTS)), float(rng.uniform(0.2, 1.5))
        size = 2 * (np.sum(X**2) / INPUTS + POINTS * bias**2)  # at least the largest eigenvalue of Θ, in order
        yield {"X": X, "y": rng.normal(size=POINTS), "d": INPUTS, "bias": bias, "w": np.concatenate([w, w], 1),
               "z": np.concatenate([z, -z]), "richness": float(10 ** rng.uniform(-2, 0.7)),
               "eta": float(rng.uniform(0.02, 0.3) / size)}  # fmt: skip


@jax.jit
@jax.vmap
def twenty_steps(X, y, bias, w, z, richness, eta):
    """Twenty steps of `descend` in the mean-field parametrization, output scale 1/γ₀: f, w, z and Θ."""
    mlp = unlazy.MLP(1, sigma_b=(bias, 0.0), width=WIDTH)
    network = Network(mlp, INPUTS, "mean_field", output_scale=1 / richness)
    start = (WeightBias(w[:INPUTS], w[INPUTS]), WeightBias(z[:, None], jnp.zeros(1)))
    options = DescentOptions(rates=network.rates)
    found = descend(network, start, Data(X, y), steps=20, step_size=eta * POINTS, options=options)
    (weight, b), (head, _) = found.params
    now = jnp.concatenate([weight, b[None]])
    E = mean_field.embed(mlp, X)
    Phi, G = mean_field.kernels(now.T, head, E, mlp.activation)
    return network(found.params, X), now, head[:, 0], mean_field.tangent(Phi, G, E @ E.T, mlp.sigma_w[1], 0.0, 1)


def test_twenty_gradient_steps(tab, page):
    settings = list(network_settings())
    names = ("X", "y", "bias", "w", "z", "richness", "eta")
    with unlazy.precision("float64"):
        stacked = [jnp.asarray([s[name] for s in settings]) for name in names]
        expected = [np.asarray(part).reshape(SETTINGS, -1) for part in twenty_steps(*stacked)]
    found = ask(tab, page, settings, STEPS)
    worst = {}
    for name, truth in zip(("f", "w", "z", "tangent"), expected):
        size = np.maximum(np.abs(truth).max(1, keepdims=True), 1)
        worst[name] = (np.abs(np.array([row[name] for row in found]) - truth) / size).max()
    print(worst)
    assert np.abs(expected[0]).max() > 0.1  # they did learn something
    assert max(worst.values()) < 1e-5, worst


ONE_STEP = """const sample = {X: A(s.X), y: Float64Array.from(s.y), n: s.y.length, d: s.d, u: null};
const linear = U.removeLinear(sample), W = U.firstStep(A(s.W), s.heads, sample.X, linear.rest);
return {alpha: [linear.alpha], beta: [...linear.beta], W: [...W], stairs: s.stairs.map(n => U.staircase(n, s.d, 4))};"""


STAIRS = [9, 24, 26, 99, 101, 624, 626, 10**4]


def test_algorithm_one_and_the_staircase(tab, page):
    rng, settings = np.random.default_rng(2), []
    for i in range(SETTINGS):
        n, d, width = 40, (5, 10)[i % 2], 8
        X, half = rng.normal(size=(n, d)), rng.normal(size=(width // 2, d))
        signs = rng.choice([-1.0, 1.0], width // 2)
        settings.append({"X": X, "y": rng.normal(size=n) + X[:, 0] ** 2, "d": d, "W": np.concatenate([half, half]),
                         "heads": np.concatenate([signs, -signs]), "stairs": STAIRS})  # fmt: skip
    worst = 0.0
    with unlazy.precision("float64"):
        for s, found in zip(settings, ask(tab, page, settings, ONE_STEP)):
            X, y, W, heads = (jnp.asarray(s[name]) for name in ("X", "y", "W", "heads"))
            alpha, beta, rest = remove_linear_part(X, y)
            learned = first_step(first_gradient(W, heads, X, rest))
            for name, truth in {"alpha": alpha, "beta": beta, "W": learned}.items():
                worst = max(worst, np.abs(np.array(found[name]) - np.ravel(truth)).max())
            link = [0, 0, 0.5**0.5, 0, 0.5**0.5]
            assert found["stairs"] == pytest.approx([kernel_staircase(v, s["d"], link) for v in s["stairs"]])
    print(worst)
    assert worst < 1e-6


def test_a_wrong_kernel_would_be_detected(tab, page):
    """The comparison can fail: a bias that one side forgets is far above the tolerance."""
    (s,) = [next(s for s in kernel_settings() if s["kind"] == "ntk")]
    found = ask(tab, page, [{**s, "size": 0.9 * s["size"]}], KERNELS)[0]
    with unlazy.precision("float64"):
        T, _ = grams(s)
    assert np.abs(np.array(found["K"]) - T[:POINTS, :POINTS].ravel()).max() > 1e-3 * np.abs(T).max()
