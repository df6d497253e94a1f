"""Three-layer networks with a frozen first layer: f(x) = Σ_r a_r σ(w_r·g(x)), g fixed, w trained [L9].

The first layer g is either random neurons φ(Vx + b) or the exact Hermite basis of one degree, as in the proof of Chen,
Bai, Lee, Zhao, Wang, Xiong and Socher, Toward understanding hierarchical learning (2020): with features of degree p/2,
a rank-1 polynomial of degree p is a low-rank quadratic of g.
"""

import itertools
import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.arrays import default_float, dot
from unlazy.core.errors import check_positive_integer
from unlazy.theory.activations import hermite
from unlazy.theory.activations.functions import activation as named_activation

Features = Callable[[Float[Array, "n d"]], Float[Array, "n g"]]


class HermiteFeatures(eqx.Module):
    """All products Π_i h_{α_i}(x_i) with |α| = degree, orthonormal under N(0, I), and one constant feature.

    The constant lets a quadratic of g represent lower degrees too: h_4 = (h_2² - 2√2 h_2 - 1)/√6. A larger constant
    makes weight decay penalize them less.

    Parameters
    ----------
    inputs : int
        Dimension of x.
    degree : int, default 2
        Total degree of the products.
    constant : float, default 1.0
        Value of the constant feature.
    """

    inputs: int = eqx.field(static=True)
    degree: int = eqx.field(static=True, default=2)
    constant: float = eqx.field(static=True, default=1.0)

    def __check_init__(self):
        check_positive_integer("inputs (dimension of x)", self.inputs)
        check_positive_integer("degree", self.degree)

    @property
    def size(self) -> int:
        """Number of features."""
        return math.comb(self.inputs + self.degree - 1, self.degree) + 1

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n g"]:
        """Evaluate the features at the rows of X."""
        tables = hermite.basis(X, self.degree)  # n × d × (degree + 1)
        alphas = np.array(_multi_indices(self.inputs, self.degree))
        columns = jnp.ones((X.shape[0], len(alphas)), X.dtype)
        for i in range(self.inputs):
            columns = columns * tables[:, i, alphas[:, i]]
        return jnp.concatenate([jnp.full((X.shape[0], 1), self.constant, X.dtype), columns], 1)


class RandomFirstLayer(eqx.Module):
    """Random first layer g(x) = φ(Vx + b), whitened if `root` is given: g → root·(g, 1).

    Parameters
    ----------
    V : array of shape (m, d)
        Directions.
    b : array of shape (m,)
        Biases.
    activation : str
        Name of φ.
    root : array of shape (k, m + 1), optional
        Whitening matrix.
    """

    V: Float[Array, "m d"]
    b: Float[Array, " m"]
    activation: str = eqx.field(static=True)
    root: Float[Array, "k e"] | None = None

    def raw(self, X: Float[Array, "n d"]) -> Float[Array, "n e"]:
        """Return the neurons and a constant feature, not whitened."""
        g = named_activation(self.activation)(dot(X, self.V.T) + self.b)
        return jnp.concatenate([g, jnp.ones((X.shape[0], 1), g.dtype)], 1)

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n g"]:
        """Evaluate the features at the rows of X."""
        return self.raw(X) if self.root is None else dot(self.raw(X), self.root.T)

    def whitened(self, X: Float[Array, "n d"], keep: int) -> "RandomFirstLayer":
        """Return this layer followed by Σ̂^{-1/2} on its `keep` leading directions, Σ̂ = E g gᵀ over the rows of X."""
        if not 0 < keep <= self.V.shape[0] + 1:
            raise ValueError(f"keep must lie between 1 and the {self.V.shape[0] + 1} features, got {keep}")
        s, U = jnp.linalg.eigh(second_moment(self.raw(X)))
        return RandomFirstLayer(self.V, self.b, self.activation, (U[:, -keep:] / jnp.sqrt(s[-keep:])).T)


def random_first_layer(key: PRNGKeyArray, inputs: int, neurons: int, activation: str = "square") -> RandomFirstLayer:
    """Draw a frozen first layer: directions uniform on the unit sphere, biases N(0, 1)."""
    inputs, neurons = check_positive_integer("inputs", inputs), check_positive_integer("neurons", neurons)
    key_v, key_b = jax.random.split(key)
    V = jax.random.normal(key_v, (neurons, inputs), default_float())
    b = jax.random.normal(key_b, (neurons,), default_float())
    return RandomFirstLayer(V / jnp.linalg.norm(V, axis=1, keepdims=True), b, activation)


def second_moment(G: Float[Array, "n g"]) -> Float[Array, "g g"]:
    """Return Σ̂ = mean of g gᵀ."""
    return dot(G.T, G) / G.shape[0]


def data_norm(W: Float[Array, "w g"], covariance: Float[Array, "g g"]) -> Float[Array, ""]:
    """Return ‖W Σ̂^{1/2}‖_{2,4}^4 = Σ_r (w_rᵀ Σ̂ w_r)² [L9], without forming the square root."""
    return jnp.sum(jnp.square(jnp.sum(dot(W, covariance) * W, 1)))


def _multi_indices(d: int, degree: int) -> list[tuple[int, ...]]:
    """Return all α ∈ N^d with Σ α_i = degree."""
    found = []
    for chosen in itertools.combinations_with_replacement(range(d), degree):
        alpha = [0] * d
        for i in chosen:
            alpha[i] += 1
        found.append(tuple(alpha))
    return found
