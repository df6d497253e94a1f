"""Training runs of known laziness in JAX: see watch_settings.py. Networks are plain functions of (params, inputs)."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from watch_settings import (
    DIMENSION,
    EPS,
    LENGTH,
    VOCABULARY,
    Run,
    Setting,
    batches,
    check_steps,
    choices,
    table,
    watched,
)

ACTIVATIONS = {"relu": jax.nn.relu, "gelu": jax.nn.gelu, "tanh": jnp.tanh}
Tree = Any
Apply = Callable[[Tree, Array], Array]
HEADS = 4


def dense(rng: np.random.Generator, n_in: int, n_out: int) -> Tree:
    """Weights of variance 1/n_in, zero biases."""
    return {"w": rng.normal(size=(n_in, n_out)) / n_in**0.5, "b": np.zeros(n_out)}


def conv(rng: np.random.Generator, n_in: int, n_out: int) -> Tree:
    """3 × 3 weights of variance 1/fan-in, zero biases."""
    return {"w": rng.normal(size=(n_out, n_in, 3, 3)) / (9 * n_in) ** 0.5, "b": np.zeros(n_out)}


def norm(width: int) -> Tree:
    """Gain and bias of a normalization layer."""
    return {"gain": np.ones(width), "bias": np.zeros(width)}


def affine(p: Tree, x: Array) -> Array:
    return x @ p["w"] + p["b"]


def convolve(p: Tree, x: Array, stride: int = 1) -> Array:
    return jax.lax.conv(x, p["w"], (stride, stride), "SAME") + p["b"][:, None, None]


def layer_norm(p: Tree, x: Array) -> Array:
    x = x - x.mean(-1, keepdims=True)
    return p["gain"] * x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) + p["bias"]


def batch_norm(p: Tree, x: Array) -> Array:
    """With the statistics of the batch."""
    x = x - x.mean((0, 2, 3), keepdims=True)
    x = x / jnp.sqrt((x**2).mean((0, 2, 3), keepdims=True) + 1e-5)
    return p["gain"][:, None, None] * x + p["bias"][:, None, None]


def attention(p: Tree, x: Array) -> Array:
    n, length, width = x.shape
    q, k, v = affine(p["qkv"], x).reshape(n, length, 3, HEADS, -1).transpose(2, 0, 3, 1, 4)
    weights = jax.nn.softmax(q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5)
    return affine(p["out"], (weights @ v).transpose(0, 2, 1, 3).reshape(n, length, width))


def mlp(rng: np.random.Generator, width: int, depth: int, outputs: int, act: Callable) -> tuple[Tree, Apply]:
    sizes = [DIMENSION] + [width] * depth
    params = [dense(rng, a, b) for a, b in pairwise(sizes)] + [dense(rng, width, outputs)]

    def apply(p: Tree, x: Array) -> Array:
        for layer in p[:-1]:
            x = act(affine(layer, x))
        return affine(p[-1], x)

    return params, apply


def cnn(rng: np.random.Generator, width: int, depth: int, outputs: int, act: Callable) -> tuple[Tree, Apply]:
    convs = [conv(rng, width if i else 3, width) for i in range(depth + 1)]

    def apply(p: Tree, x: Array) -> Array:
        for i, layer in enumerate(p["convs"]):
            x = act(convolve(layer, x, 2 if i == 1 else 1))
        return affine(p["readout"], x.mean((2, 3)))

    return {"convs": convs, "readout": dense(rng, width, outputs)}, apply


def resnet(rng: np.random.Generator, width: int, depth: int, outputs: int, act: Callable) -> tuple[Tree, Apply]:
    def block() -> Tree:
        return {"conv1": conv(rng, width, width), "norm1": norm(width),
                "conv2": conv(rng, width, width), "norm2": norm(width)}  # fmt: skip

    def apply(p: Tree, x: Array) -> Array:
        x = act(batch_norm(p["norm"], convolve(p["stem"], x)))
        n, c, h, w = x.shape
        x = x.reshape(n, c, h // 2, 2, w // 2, 2).max((3, 5))
        for b in p["blocks"]:
            inner = act(batch_norm(b["norm1"], convolve(b["conv1"], x)))
            x = act(x + batch_norm(b["norm2"], convolve(b["conv2"], inner)))
        return affine(p["readout"], x.mean((2, 3)))

    blocks = [block() for _ in range(depth)]
    return {"stem": conv(rng, 3, width), "norm": norm(width), "blocks": blocks,
            "readout": dense(rng, width, outputs)}, apply  # fmt: skip


def transformer(rng: np.random.Generator, width: int, depth: int, outputs: int, act: Callable) -> tuple[Tree, Apply]:
    def block() -> Tree:
        return {
            "first": norm(width), "qkv": dense(rng, width, 3 * width), "out": dense(rng, width, width),
            "second": norm(width), "up": dense(rng, width, 2 * width), "down": dense(rng, 2 * width, width),
        }  # fmt: skip

    def apply(p: Tree, x: Array) -> Array:
        x = p["embedding"][x] + p["position"]
        for b in p["blocks"]:
            x = x + attention(b, layer_norm(b["first"], x))
            x = x + affine(b["down"], act(affine(b["up"], layer_norm(b["second"], x))))
        return affine(p["readout"], layer_norm(p["norm"], x).mean(1))

    params = {"embedding": rng.normal(size=(VOCABULARY, width)), "position": 0.3 * rng.normal(size=(LENGTH, width)),
              "blocks": [block() for _ in range(depth)], "norm": norm(width),
              "readout": dense(rng, width, outputs)}  # fmt: skip
    return params, apply


NETWORKS = {"mlp": mlp, "cnn": cnn, "resnet": resnet, "transformer": transformer}


def squared(F: Array, y: Array) -> Array:
    """Half the squared error, summed over outputs."""
    return 0.5 * jnp.sum((F - y) ** 2, 1).mean()


def cross_entropy(F: Array, y: Array) -> Array:
    return -jnp.take_along_axis(jax.nn.log_softmax(F), y[:, None], 1).mean()


class Fixed(NamedTuple):
    """What does not change during a run; an argument of compiled functions, so that XLA does not fold it."""

    start: Tree
    X: Array
    y: Array
    test: Array
    probe: Array
    probe_y: Array


class JaxProgram:
    """Training runs of one setting."""

    def __init__(self, setting: Setting):
        self.chosen = c = choices(setting)
        self.adam = setting.optimizer == "adam"
        self.batches = batches(setting, c)
        self.loss = squared if c.loss == "squared" else cross_entropy
        act = ACTIVATIONS[c.activation]
        params, self.apply = NETWORKS[setting.architecture](setting.rng(3), c.width, c.depth, c.outputs, act)
        start = jax.tree.map(lambda v: jnp.asarray(v, jnp.float32), params)
        self.fixed = Fixed(start, *(jnp.asarray(v) for v in table(setting, c)))
        self.rate = c.rate if self.adam else c.rate * float(jax.jit(self._largest_rate)(self.fixed)) * (1 - c.momentum)
        self._step = jax.jit(self._network_step)
        self._linear_step = jax.jit(self._linearized_step)
        self._measured = jax.jit(self._measure)
        self._change = jax.jit(self.change)
        self._test_tangent = jax.jit(lambda moved, fixed: self.tangent(moved, fixed, fixed.test))

    def tangent(self, direction: Tree, fixed: Fixed, X: Array) -> Array:
        """J(θ_0) direction."""
        return jax.jvp(lambda p: self.apply(p, X), (fixed.start,), (direction,))[1]

    def change(self, params: Tree, fixed: Fixed, X: Array, alpha: Array) -> Array:
        """F = α (f - f_0)."""
        return alpha * (self.apply(params, X) - self.apply(fixed.start, X))

    def _largest_rate(self, fixed: Fixed) -> Array:
        """2/λ_max of the kernel on a batch, by 20 power iterations."""
        X = fixed.X[: self.chosen.batch]
        pull = jax.vjp(lambda p: self.apply(p, X), fixed.start)[1]

        def once(v: Array, _: None) -> tuple[Array, None]:
            return self.tangent(pull(v / jnp.linalg.norm(v))[0], fixed, X), None

        v = jax.random.normal(jax.random.key(0), (len(X), self.chosen.outputs))
        return 2 * len(X) / jnp.linalg.norm(jax.lax.scan(once, v, length=20)[0])

    def _update(self, gradient: Tree, state: tuple[Tree, Tree, Array], alpha: Array, rate: Array) -> tuple[Tree, tuple]:
        """Change of the parameters at dial α [W6], and the new state (first moment, second moment, step)."""
        first, second, step = state
        step = step + 1
        if not self.adam:
            first = jax.tree.map(lambda m, g: self.chosen.momentum * m + g, first, gradient)
            return jax.tree.map(lambda m: -rate / alpha**2 * m, first), (first, second, step)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, second, gradient)

        def change(m: Array, v: Array) -> Array:
            return -rate / alpha * (m / (1 - 0.9**step)) / (jnp.sqrt(v / (1 - 0.999**step)) + EPS * alpha)

        return jax.tree.map(change, first, second), (first, second, step)

    def _network_step(
        self, params: Tree, state: tuple, fixed: Fixed, rows: Array, alpha: Array, rate: Array
    ) -> tuple[Tree, tuple]:
        X, y = fixed.X[rows], fixed.y[rows]
        gradient = jax.grad(lambda p: self.loss(self.change(p, fixed, X, alpha), y))(params)
        change, state = self._update(gradient, state, alpha, rate)
        return jax.tree.map(jnp.add, params, change), state

    def _linearized_step(self, moved: Tree, state: tuple, fixed: Fixed, rows: Array, rate: Array) -> tuple[Tree, tuple]:
        X, y = fixed.X[rows], fixed.y[rows]
        gradient = jax.grad(lambda d: self.loss(self.tangent(d, fixed, X), y))(moved)
        change, state = self._update(gradient, state, jnp.float32(1), rate)
        return jax.tree.map(jnp.add, moved, change), state

    def _fresh(self) -> tuple[Tree, tuple]:
        zero = jax.tree.map(jnp.zeros_like, self.fixed.start)
        return zero, (zero, zero, jnp.float32(0))

    def linearized(self, reduction: float = 1.0) -> np.ndarray:
        """F on the test rows after training the linearization at θ_0, with the rate times `reduction`."""
        (moved, state), rate = self._fresh(), jnp.float32(self.rate * reduction)
        for rows in self.batches:
            moved, state = self._linear_step(moved, state, self.fixed, rows, rate)
        return np.asarray(self._test_tangent(moved, self.fixed))

    def train(self, alpha: float, reduction: float = 1.0) -> Run:
        """Train with dial α, with the rate times `reduction`."""
        fixed, params, (_, state) = self.fixed, self.fixed.start, self._fresh()
        dial, rate = jnp.float32(alpha), jnp.float32(self.rate * reduction)
        start = {k: float(v) for k, v in self._measured(params, fixed, dial).items()}
        monitor = watched((self.apply, params), fixed.probe, self.chosen.steps)
        due, checks = check_steps(self.chosen.steps), []
        for step, rows in enumerate(self.batches, start=1):
            params, state = self._step(params, state, fixed, rows, dial, rate)
            monitor.update(params)
            if step in due:
                found, own = monitor.check(), {k: float(v) for k, v in self._measured(params, fixed, dial).items()}
                if found is None or not np.isfinite(own["train_loss"]):
                    break
                checks.append({**found.numbers(), **own})
        F = np.asarray(self._change(params, fixed, fixed.test, dial))
        return Run(checks, F, start["loss"], start["train_loss"])

    def _measure(self, params: Tree, fixed: Fixed, alpha: Array) -> dict[str, Array]:
        linear = self.tangent(jax.tree.map(jnp.subtract, params, fixed.start), fixed, fixed.probe)
        change = self.change(params, fixed, fixed.probe, jnp.float32(1))
        return {"plain_gap": jnp.linalg.norm(change - linear) / jnp.linalg.norm(change),
                "loss": self.loss(self.change(params, fixed, fixed.probe, alpha), fixed.probe_y),
                "train_loss": self.loss(self.change(params, fixed, fixed.X, alpha), fixed.y)}  # fmt: skip
