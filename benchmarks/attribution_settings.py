"""Networks whose training can be repeated on any subset of the rows, for `attribution_truth.py`.

A setting is a table, an architecture, an output scale α and a weight decay λ. The network is α (f(θ) - f(θ_0)), and
training minimizes mean(loss) + λ α²/2 ‖θ - θ_0‖² over a subset of the rows by full-batch Adam with a falling step,
always from the same θ_0. Large α is lazy, α = 1 and below learn features. The decay is the one of 1e-3, 1e-2, 3e-2 and
1e-1 with the least held-out loss at α = 1.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_diabetes, load_digits

QUERIES = 40


class Setting(NamedTuple):
    """One network on one table."""

    name: str
    data: str
    architecture: str
    alpha: float
    decay: float
    rows: int = 400
    width: int = 64
    steps: int = 2000
    step_size: float = 3e-3


class Rows(NamedTuple):
    """Training rows and queries."""

    X: np.ndarray
    y: np.ndarray
    queries: np.ndarray
    targets: np.ndarray


SETTINGS = [
    *(Setting(f"concrete MLP α={alpha:g}", "concrete", "mlp", alpha, 1e-2, width=32) for alpha in (10, 1, 0.3)),
    *(Setting(f"diabetes MLP α={alpha:g}", "diabetes", "mlp", alpha, 1e-1, width=32) for alpha in (10, 1)),
    *(Setting(f"energy MLP α={alpha:g}", "energy", "mlp", alpha, 1e-3, width=32) for alpha in (10, 1)),
    *(Setting(f"digits MLP α={alpha:g}", "digits", "mlp", alpha, 1e-3, width=32) for alpha in (10, 1, 0.3)),
    *(Setting(f"digits CNN α={alpha:g}", "digits", "cnn", alpha, 1e-3, width=8) for alpha in (10, 1)),
    *(Setting(f"digits transformer α={alpha:g}", "digits", "transformer", alpha, 1e-2, width=16) for alpha in (10, 1)),
    *(Setting(f"digits wide MLP α={alpha:g}", "digits", "mlp", alpha, 1e-3, width=256) for alpha in (10, 1)),
    Setting("concrete MLP no decay", "concrete", "mlp", 1, 0.0, width=32),
    Setting("diabetes MLP no decay", "diabetes", "mlp", 1, 0.0, width=32),
    Setting("digits MLP no decay", "digits", "mlp", 1, 0.0, width=32),
]


def load(setting: Setting, folder: Path, seed: int = 0) -> Rows:
    """Standardized rows of a table."""
    rng = np.random.default_rng(seed)
    if setting.data == "digits":
        X, y = load_digits(return_X_y=True)
        X = X / 16 - 0.3
    else:
        if setting.data == "diabetes":
            X, y = load_diabetes(return_X_y=True)
        else:
            table = np.load(folder / f"uci_{setting.data}.npz")
            X, y = table["X"].astype(float), table["y"].astype(float).ravel()
        X, y = (X - X.mean(0)) / (X.std(0) + 1e-9), (y - y.mean()) / y.std()
    order = rng.permutation(len(X))
    train, test = order[: setting.rows], order[setting.rows : setting.rows + QUERIES]
    y = y.astype(np.float32 if y.dtype.kind == "f" else np.int64)
    return Rows(X[train].astype(np.float32), y[train], X[test].astype(np.float32), y[test])


Params = dict[str, jax.Array]
Apply = Callable[[Params, jax.Array], jax.Array]


def network(setting: Setting, seed: int = 0) -> tuple[Apply, Params]:
    """The network before scaling and centering, and its parameters at the start; weights are (inputs, outputs)."""
    rng = np.random.default_rng(seed)
    outputs, w = (10, setting.width) if setting.data == "digits" else (1, setting.width)

    def draw(*shape: int) -> jax.Array:
        fan_in = int(np.prod(shape[:-1]))
        return jnp.asarray(rng.normal(size=shape) / np.sqrt(fan_in), jnp.float32)

    if setting.architecture == "mlp":
        d = {"digits": 64, "concrete": 8, "energy": 8, "diabetes": 10}[setting.data]
        theta = {"W1": draw(d, w), "b1": jnp.zeros(w), "W2": draw(w, w), "b2": jnp.zeros(w), "W3": draw(w, outputs)}

        def apply(p: Params, X: jax.Array) -> jax.Array:
            h = jnp.tanh(X @ p["W1"] + p["b1"])
            return jnp.tanh(h @ p["W2"] + p["b2"]) @ p["W3"]
    elif setting.architecture == "cnn":
        theta = {"W1": draw(3, 3, 1, w), "W2": draw(3, 3, w, w), "W3": draw(16 * w, outputs)}

        def apply(p: Params, X: jax.Array) -> jax.Array:
            h = X.reshape(-1, 8, 8, 1)
            for name, stride in (("W1", 1), ("W2", 2)):
                h = jnp.tanh(jax.lax.conv_general_dilated(
                    h, p[name], (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
                ))  # fmt: skip
            return h.reshape(len(h), -1) @ p["W3"]
    else:
        theta = {
            "embed": draw(8, w), "place": 0.5 * draw(8, w) * np.sqrt(8), "q": draw(w, w), "k": draw(w, w),
            "v": draw(w, w), "out": draw(w, w), "W1": draw(w, 2 * w), "W2": draw(2 * w, w), "W3": draw(w, outputs),
        }  # fmt: skip

        def apply(p: Params, X: jax.Array) -> jax.Array:
            h = X.reshape(-1, 8, 8) @ p["embed"] + p["place"]
            q, k, v = (h @ p[name] for name in "qkv")
            attention = jax.nn.softmax(q @ jnp.swapaxes(k, 1, 2) / np.sqrt(w), -1)
            h = h + attention @ v @ p["out"]
            h = h + jnp.tanh(h @ p["W1"]) @ p["W2"]
            return h.mean(1) @ p["W3"]

    return apply, theta


def centered(setting: Setting, apply: Apply, start: Params) -> Apply:
    """α (f(θ) - f(θ_0))."""
    return lambda p, X: setting.alpha * (apply(p, X) - apply(start, X))


def loss_of(f: jax.Array, y: jax.Array) -> jax.Array:
    """Mean squared error of numbers, cross-entropy of classes."""
    if jnp.issubdtype(y.dtype, jnp.floating):
        return jnp.mean((f[:, 0] - y) ** 2)
    return jnp.mean(jax.nn.logsumexp(f, 1) - jnp.take_along_axis(f, y[:, None], 1)[:, 0])


def train(setting: Setting, rows: Rows, subsets: np.ndarray, seed: int = 0) -> Params:
    """Parameters after training on every subset (k, n_k) of the rows, stacked."""
    apply, start = network(setting, seed)
    f = centered(setting, apply, start)
    X, y = jnp.asarray(rows.X), jnp.asarray(rows.y)
    decay = setting.decay * setting.alpha**2
    rate = optax.cosine_decay_schedule(setting.step_size / setting.alpha, setting.steps)
    optimizer = optax.adam(rate)

    def objective(p: Params, index: jax.Array) -> jax.Array:
        moved = sum(jnp.sum((p[k] - start[k]) ** 2) for k in p)
        return loss_of(f(p, X[index]), y[index]) + decay / 2 * moved

    @partial(jax.vmap, in_axes=0)
    def run(index: jax.Array) -> Params:
        def step(carry: tuple, _: None) -> tuple:
            p, state = carry
            updates, state = optimizer.update(jax.grad(objective)(p, index), state)
            return (optax.apply_updates(p, updates), state), None

        return jax.lax.scan(step, (start, optimizer.init(start)), None, length=setting.steps)[0][0]

    return jax.jit(run)(jnp.asarray(subsets))


def measured(f: jax.Array, y: jax.Array) -> jax.Array:
    """Value of regression, margin of the right class for classification."""
    if jnp.issubdtype(y.dtype, jnp.floating):
        return f[:, 0]
    right = jnp.take_along_axis(f, y[:, None], 1)[:, 0]
    others = jnp.where(jax.nn.one_hot(y, f.shape[1]) > 0, -jnp.inf, f)
    return right - jax.nn.logsumexp(others, 1)
