"""Many tangents of a JAX network at once (`unlazy.models.tangents`)."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from unlazy.core.arrays import dot
from unlazy.models.jax_model import JaxModel
from unlazy.models.protocol import Inputs, Outputs, Params

ROWS, COLUMNS = 64, 16
"""Points and vectors that are differentiated together."""


class JaxTangents:
    """The Jacobian of a `JaxModel` at its present parameters, see `TangentMap`.

    Parameters
    ----------
    model : JaxModel
        The network.
    layers : sequence of str, optional
        Full names of layers; all by default.

    Attributes
    ----------
    function : callable
        The outputs (m, c) as a function of the parameters as one vector, and inputs.
    flat : array of shape (p,)
        The parameters as one vector.
    """

    def __init__(self, model: JaxModel, layers: Sequence[str] | None = None) -> None:
        self._model, f = model, model.function
        with model.precision():
            theta = model.in_precision(model.params)
            chosen = theta
            if layers is not None:
                parts = model.layers(theta)
                chosen = jax.tree.map(
                    lambda *found: next((leaf for leaf in found if leaf is not None), None),
                    *(parts[name] for name in layers), is_leaf=lambda leaf: leaf is None,
                )  # fmt: skip
            self.flat, self._unravel = ravel_pytree(chosen)
        self._theta, self.size = theta, int(self.flat.size)
        self.rounding = float(jnp.finfo(self.flat.dtype).eps)

        def value(flat: Array, X: PyTree) -> Array:
            part = self._unravel(flat)
            whole = jax.tree.map(lambda a, b: a if b is None else b, theta, part, is_leaf=lambda leaf: leaf is None)
            found = f(whole, X)
            return found.reshape(found.shape[0], -1)

        def of_row(flat: Array, x: PyTree, U: Array) -> Array:
            alone = jax.tree.map(lambda leaf: leaf[None], x)
            _, pull = jax.vjp(lambda t: value(t, alone)[0], flat)
            return jax.vmap(lambda u: pull(u)[0])(U)

        def rows(flat: Array, X: PyTree, U: Array) -> Array:
            return jax.lax.map(lambda at: of_row(flat, *at), (X, U), batch_size=ROWS).reshape(-1, flat.size)

        def pull(flat: Array, X: PyTree, U: Array) -> Array:
            _, back = jax.vjp(lambda t: value(t, X), flat)
            return jax.lax.map(lambda u: back(u)[0], U, batch_size=COLUMNS)

        def push(flat: Array, X: PyTree, T: Array) -> Array:
            return jax.lax.map(
                lambda t: jax.jvp(lambda theta: value(theta, X), (flat,), (t,))[1], T, batch_size=COLUMNS
            )

        self.function = value
        self._value, self._rows, self._pull, self._push = jax.jit(value), jax.jit(rows), jax.jit(pull), jax.jit(push)

    def outputs(self, inputs: Inputs) -> Outputs:
        with self._model.precision():
            return np.asarray(self._value(self.flat, self._model.in_precision(inputs)))

    def rows(self, inputs: Inputs, cotangents: Float[np.ndarray, "m k c"]) -> Float[Array, "_ p"]:
        with self._model.precision():
            return self._rows(self.flat, self._model.in_precision(inputs), self._cast(cotangents))

    def pull(self, inputs: Inputs, cotangents: Float[np.ndarray, "k m c"]) -> Float[Array, "k p"]:
        with self._model.precision():
            return self._pull(self.flat, self._model.in_precision(inputs), self._cast(cotangents))

    def push(self, inputs: Inputs, tangents: Float[Array, "k p"]) -> Float[np.ndarray, "k m c"]:
        with self._model.precision():
            return np.asarray(self._push(self.flat, self._model.in_precision(inputs), tangents), np.float64)

    def contract(self, left: Float[Array, "a p"], right: Float[Array, "b p"]) -> Float[np.ndarray, "a b"]:
        with self._model.precision():
            return np.asarray(dot(left, right.T), np.float64)

    def combine(self, weights: Float[np.ndarray, "k a"], tangents: Float[Array, "a p"]) -> Float[Array, "k p"]:
        with self._model.precision():
            return dot(self._cast(weights), tangents)

    def add(self, left: Float[Array, "k p"], right: Float[Array, "k p"]) -> Float[Array, "k p"]:
        with self._model.precision():
            return left + right

    def stack(self, parts: Sequence[Float[Array, "_ p"]]) -> Float[Array, "k p"]:
        with self._model.precision():
            return jnp.concatenate(list(parts))

    def to_host(self, tangents: Float[Array, "k p"]) -> Float[np.ndarray, "k p"]:
        return np.asarray(tangents, np.float64)

    def to_device(self, values: Float[np.ndarray, "k p"]) -> Float[Array, "k p"]:
        with self._model.precision():
            return self._cast(values)

    def random(self, count: int, seed: int) -> Float[Array, "k p"]:
        with self._model.precision():
            return jax.random.normal(jax.random.key(seed), (count, self.size), self.flat.dtype)

    def from_params(self, direction: Params) -> Float[Array, "1 p"]:
        with self._model.precision():
            part = self._unravel(self.flat)
            kept = jax.tree.map(
                lambda own, move: None if own is None else move, part, self._model.in_precision(direction),
                is_leaf=lambda leaf: leaf is None,
            )  # fmt: skip
            return ravel_pytree(kept)[0][None]

    def moved(self, tangents: Float[Array, "k p"], index: int, scale: float = 1.0) -> Params:
        with self._model.precision():
            part = self._unravel(self.flat + scale * tangents[index])
            return jax.tree.map(
                lambda a, b: a if b is None else b, self._theta, part, is_leaf=lambda leaf: leaf is None
            )

    def _cast(self, values: np.ndarray) -> Array:
        return jnp.asarray(values, self.flat.dtype)
