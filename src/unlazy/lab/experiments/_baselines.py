"""Algorithm 1 and its baselines, fitted to the same sample; shared by the experiments of source S2.

All methods get the same training rows and the same validation rows, which select the ridge or the stopping time. The
fits run outside jit: on a CPU the factorizations dominate, and NumPy's are several times faster than XLA's in float64.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from unlazy.core.arrays import dot, precision
from unlazy.core.dataset import Data
from unlazy.kernels.base import Kernel
from unlazy.kernels.networks.infinite_width import NNGP, NTK
from unlazy.lab.experiment import Records, padded_size
from unlazy.networks.mlp import Network
from unlazy.solvers.ridge import cholesky_factor, cholesky_solve
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.training.descent.descend import descend
from unlazy.training.one_step.algorithm import Features, fit_readout, learn_features, random_features
from unlazy.training.options import DescentOptions, Recording

Predictor = Callable[[Any], Any]
VALIDATION = 4000
KERNEL_RIDGES = (1e-6, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
"""Ridges relative to the mean of k(x, x). Without label noise the error is flat below 1e-4."""
TILE = 1024
"""Size of the square tiles in which JAX kernels are evaluated, so that one compilation serves every n."""
WITH_BIAS = MLP(1, "relu", sigma_w=(1.0, 2**0.5), sigma_b=(1.0, 0.0))
"""The kernels act on (x/√d, 1): without the bias coordinate they cannot represent odd degrees ≥ 3."""


class BaselineSample(NamedTuple):
    """Padded training rows with weights, the number of actual training rows, and validation rows."""

    train: Data
    n: int
    validation: Data

    @property
    def exact(self) -> tuple[Any, Any]:
        """Training rows without the padding."""
        return self.train.X[: self.n], self.train.y[: self.n]


def draw(task: Any, key: Any, n: int) -> BaselineSample:
    """n training points (nested in n) and fresh validation points; the array size is the same for all n ≤ 4,096."""
    key_train, key_val = jax.random.split(key)
    rows, least = padded_size(n), padded_size(VALIDATION)
    val = _padded(task, key_val, VALIDATION, least)
    train = _padded(task, key_train, n, max(rows, least))
    return BaselineSample(train, n, Data(val.X[:VALIDATION], val.y[:VALIDATION]))


@partial(jax.jit, static_argnames="rows")
def _padded(task: Any, key: Any, n: Any, rows: int) -> Data:
    """n points padded to `rows` rows."""
    return task.sample_padded(key, n, rows)


def risk(task: Any, predict: Predictor, key: Any) -> tuple[Any, Any]:
    """The task's estimate of E(f - f*)² and its standard error, for a predictor that runs outside jit."""
    return _score(task, key, predict(_points(task, key)))


@jax.jit
def _points(task: Any, key: Any) -> Any:
    """The points at which the task evaluates a predictor."""
    asked: list = []

    def note(X: Any) -> Any:
        asked.append(X)
        return task.target(X)

    task.population_risk(note, key)
    return asked[0]


@jax.jit
def _score(task: Any, key: Any, predicted: Any) -> tuple[Any, Any]:
    """Risk and standard error of predictions at `_points`."""
    found = task.population_risk(lambda X: predicted, key)
    return found.mean, found.error


def by_seed(records: Records, param: str, measure: str) -> tuple[list, np.ndarray]:
    """Values of a parameter, and a table (values × seeds) over the seeds common to all values (of a partial sweep)."""
    values = records.values(param)
    found = [{r.seed: float(r.measures[measure]) for r in records.where(**{param: v})} for v in values]
    seeds = sorted(set.intersection(*map(set, found))) if found else []
    return values, np.array([[row[s] for s in seeds] for row in found])


def median_with_interval(values: np.ndarray) -> tuple[float, float, float]:
    """Median over seeds and its 95% bootstrap interval; with infinite values, quantiles are not interpolated."""
    draws = np.random.default_rng(0).choice(values, (2000, len(values)))
    method: Literal["linear", "nearest"] = "linear" if np.isfinite(values).all() else "nearest"
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975], method=method)
    return float(np.median(values)), float(low), float(high)


_learn = jax.jit(learn_features, static_argnames=("width", "scale", "biased_step"))


def learn(key: Any, sample: BaselineSample, *, width: int = 512, **options: Any) -> Features:
    """Features of Algorithm 1 [D4], learned from the training rows."""
    train = sample.train
    return _learn(train.X, train.y, width=width, weights=train.weights, key=key, **options)


def algorithm_one(key: Any, sample: BaselineSample, *, width: int = 512, **options: Any) -> Predictor:
    """Algorithm 1 [D4]; the ridge is selected on the validation rows."""
    return fit_head(learn(key, sample, width=width, **options), sample)


def fit_head(features: Features, sample: BaselineSample) -> Predictor:
    """Ridge regression on fixed features; the ridge is selected on the validation rows."""
    train, val = sample.train, sample.validation
    return fit_readout(features, train.X, train.y, weights=train.weights, validation=(val.X, val.y)).predict


def random_feature_ridge(key: Any, sample: BaselineSample, *, width: int = 512) -> Predictor:
    """Ridge regression on random features: the same network without its first gradient step."""
    return fit_head(random_features(key, width, sample.train.d), sample)


def infinite_width_ridge(name: str, sample: BaselineSample) -> Predictor:
    """Kernel of the infinitely wide network: 'ntk' trains all layers, 'arccos' only the head (random features)."""
    kernel = {"ntk": NTK, "arccos": NNGP}[name](WITH_BIAS)
    return kernel_ridge(partial(tiled_gram, kernel), sample)


def tiled_gram(kernel: Kernel, X: Any, Z: Any) -> np.ndarray:
    """K(X, Z) in tiles of one shape; the last tiles are zero-padded and cropped."""
    rows, columns = (np.array_split(np.pad(a, ((0, -len(a) % TILE), (0, 0))), -(-len(a) // TILE)) for a in (X, Z))
    return np.block([[np.asarray(_tile(kernel, a, b)) for b in columns] for a in rows])[: len(X), : len(Z)]


@jax.jit
def _tile(kernel: Kernel, X: Any, Z: Any) -> Any:
    """One tile of the Gram matrix."""
    return kernel.gram(X, Z)


def linearized_ridge(key: Any, sample: BaselineSample, *, width: int = 512) -> Predictor:
    """The linearized finite network with f_0 = 0: kernel ridge regression with its empirical tangent kernel [K10].

    (1/w)(ΦΦᵀ + (XXᵀ/d + 1) ∘ Φ'Φ'ᵀ) at a symmetric initialization with heads ±1. In NumPy: two matrix products of
    rank w.
    """
    d = sample.train.d
    features = random_features(key, width, d)
    W, b = np.asarray(features.W), np.asarray(features.b)

    def gram(X: np.ndarray, Z: np.ndarray) -> np.ndarray:
        f, g = dot(X, W.T) + b, dot(Z, W.T) + b
        active = dot((f > 0).astype(np.float32), (g > 0).astype(np.float32).T)  # counts: exact in float32
        return (dot(np.maximum(f, 0), np.maximum(g, 0).T) + (dot(X, Z.T) / d + 1) * active) / width

    return kernel_ridge(gram, sample)


def kernel_ridge(gram: Callable, sample: BaselineSample, relative: tuple[float, ...] = KERNEL_RIDGES) -> Predictor:
    """Kernel ridge regression by Cholesky over increasing ridges; for large n, stops when the validation error rises.

    An eigendecomposition would give all ridges but costs as much as eleven factorizations at n = 3,000. The minimum is
    flat, and a coarse path with early stopping needs two or three.
    """
    X, y = (np.asarray(part) for part in sample.exact)
    K, truth = np.array(gram(X, X)), np.asarray(sample.validation.y)
    across = gram(np.asarray(sample.validation.X), X)
    scale = np.trace(K) / len(K)
    best, chosen = np.inf, np.zeros(len(K))
    for ridge in relative:
        L = cholesky_factor(K, float(ridge * scale))
        if L is None:  # numerically singular at this ridge; the next one is larger
            continue
        alpha = cholesky_solve(L, y)
        error = float(np.mean((dot(across, alpha) - truth) ** 2))
        if error < best:
            best, chosen = error, alpha
        elif error > 1.005 * best and len(K) > TILE:
            break
    return lambda Z: jnp.asarray(dot(gram(np.asarray(Z), X), chosen))


def trained_network(
    key: Any, sample: BaselineSample, *, depth: int = 1, width: int = 512, steps: int = 3000, rate: float = 0.02
) -> Predictor:
    """All layers trained by Adam: cosine decay, batches of 256, standard parametrization, best of 40 validation checks.

    In float32: this is the only method whose accuracy is not limited by linear algebra. The training rows are repeated
    to fill the padded arrays, so that batches are full and one compilation serves every n.
    """
    rows, n = sample.train.n, sample.n
    again = np.arange(rows) % n
    with precision("float32"):
        X, y = (jnp.asarray(np.asarray(part)[again], jnp.float32) for part in (sample.train.X, sample.train.y))
        weights = jnp.asarray(np.arange(rows) < rows // n * n, jnp.float32)  # every row equally often
        val = jax.tree.map(lambda part: jnp.asarray(np.asarray(part), jnp.float32), sample.validation)
        params = _train(Data(X, y, weights), val, jnp.float32(rate), key, depth=depth, width=width, steps=steps)
    double = jax.tree.map(lambda part: jnp.asarray(np.asarray(part, np.float64)), params)
    return lambda Z: _network(sample.train.d, depth, width)(double, Z)


def _network(d: int, depth: int, width: int) -> Network:
    """ReLU network in the standard parametrization."""
    biases = (*(1.0,) * depth, 0.0)
    return Network(MLP(depth, "relu", sigma_w=2**0.5, sigma_b=biases, width=width), d, "standard")


@partial(jax.jit, static_argnames=("depth", "width", "steps"))
def _train(train: Data, val: Data, rate: Any, key: Any, *, depth: int, width: int, steps: int) -> Any:
    """Parameters with the smallest validation error."""
    import optax

    network = _network(train.d, depth, width)
    key_start, key_batch = jax.random.split(key)
    rule = optax.adam(optax.cosine_decay_schedule(rate, steps))
    options = DescentOptions(rule, batch_size=min(256, train.n), patience=("validation", 40))
    measures = {"validation": lambda theta: jnp.mean((network(theta, val.X) - val.y) ** 2)}
    return descend(
        network, network.init(key_start), train, steps=steps, options=options,
        recording=Recording(measures, every=steps // 40), key=key_batch,
    ).params  # fmt: skip
