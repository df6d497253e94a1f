"""A network behind the protocol `Model`, in as few lines as possible: the tests' own, independent of the adapters.

Parameters are dictionaries of named arrays; a direction may lack some. Layers are those of an MLP.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np


def mlp(params, x, activation=jnp.tanh):
    """Weights "w1", "w2", … and the outputs of every layer."""
    hidden = {}
    for name in sorted(params):
        x = activation(x) if hidden else x
        x = hidden[name] = x @ params[name]
    return x, hidden


def initial(seed, *widths, scale=1.0):
    """Normal weights of variance scale²/n_in."""
    rng = np.random.default_rng(seed)
    pairs = itertools.pairwise(widths)
    return {f"w{i}": scale * rng.normal(size=(a, b)) / np.sqrt(a) for i, (a, b) in enumerate(pairs, 1)}


class SmallModel:
    """f(params, x) = α (mlp(params, x) - mlp(start, x)) + mlp(start, x)."""

    def __init__(self, params, dtype=np.float32, alpha=1.0, activation=jnp.tanh):
        self.dtype = dtype
        self.value = self._cast(params)
        self.calls = 0
        start = self.value

        def f(theta, x):
            base = mlp(start, x, activation)[0]
            return alpha * (mlp(theta, x, activation)[0] - base) + base

        self.f = f
        self._apply = jax.jit(f)
        self._hidden = jax.jit(lambda p, x: mlp(p, x, activation)[1])
        self._jvp = jax.jit(lambda p, v, x: jax.jvp(lambda t: f(t, x), (p,), (v,))[1])
        self._vjp = jax.jit(lambda p, v, x: jax.vjp(lambda t: f(t, x), p)[1](v)[0])
        self._hvp = jax.jit(self._hessian, static_argnums=4)

    def _cast(self, tree):
        return {name: jnp.asarray(v, self.dtype) for name, v in tree.items()}

    def _full(self, params, direction):
        return {name: jnp.asarray(direction.get(name, jnp.zeros_like(v)), self.dtype) for name, v in params.items()}

    def _hessian(self, p, v, x, y, loss):
        return jax.jvp(jax.grad(lambda t: loss(self.f(t, x), y)), (p,), (v,))[1]

    params = property(lambda self: self.value)
    derivative_error = 0.0

    def snapshot(self, on_host=False):
        return {name: jnp.array(v) for name, v in self.value.items()}

    def stored(self, network, on_host=False):
        return network

    def update(self, network):
        self.value = self._cast(network)

    startup = 0.0

    def wait(self):
        jax.block_until_ready(self.value)

    def check_inputs(self, inputs):
        pass

    def fix_statistics(self, inputs, params=None):
        pass

    def change(self, reference, params, inputs, initial=None):
        start = self.apply(reference, inputs) if initial is None else initial
        if params is reference:
            return start, start, np.zeros_like(start)
        return start, self.apply(params, inputs), self.jvp(reference, self.subtract(params, reference), inputs)

    def apply(self, params, inputs):
        self.calls += 1
        return np.asarray(self._apply(params, jnp.asarray(inputs, self.dtype)))

    def jvp(self, params, direction, inputs):
        return np.asarray(self._jvp(params, self._full(params, direction), jnp.asarray(inputs, self.dtype)))

    def vjp(self, params, cotangents, inputs):
        return self._vjp(params, jnp.asarray(cotangents, self.dtype), jnp.asarray(inputs, self.dtype))

    def hvp(self, params, direction, inputs, targets, loss):
        y = jnp.asarray(targets, self.dtype)
        return self._hvp(params, self._full(params, direction), jnp.asarray(inputs, self.dtype), y, loss)

    def layer_outputs(self, params, inputs):
        return {k: np.asarray(v) for k, v in self._hidden(params, jnp.asarray(inputs, self.dtype)).items()}

    def layers(self, params):
        return {name: {name: value} for name, value in params.items()}

    def subtract(self, left, right):
        return {name: left[name] - right[name] for name in left}

    def add_scaled(self, left, scale, right):
        return {name: left[name] + scale * right[name] for name in left}

    def inner(self, left, right):
        return float(sum(np.vdot(np.asarray(left[n], np.float64), np.asarray(right[n], np.float64)) for n in left))

    def random_direction(self, params, seed):
        rng = np.random.default_rng(seed)
        return {name: jnp.asarray(rng.normal(size=v.shape), self.dtype) for name, v in params.items()}


def gradient_step(model, X, y, rate):
    """One step of full-batch descent on the mean squared error."""
    return _step(model.f, model.value, jnp.asarray(X, model.dtype), jnp.asarray(y, model.dtype), rate)


@functools.partial(jax.jit, static_argnums=0)
def _step(f, params, X, y, rate):
    slope = jax.grad(lambda p: jnp.mean((f(p, X) - y) ** 2))(params)
    return jax.tree.map(lambda p, g: p - rate * g, params, slope)
