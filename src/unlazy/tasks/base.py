"""What every task answers: a sample, the target, and the facts that theory knows about it."""

from collections.abc import Callable
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from unlazy.core.data import Data
from unlazy.core.errors import check_positive_integer

T = TypeVar("T")
Predictor = Callable[[Float[Array, "m d"]], Float[Array, "m *c"]]
HermiteCoefficients = dict[tuple[int, ...], float]
"""{α: c_α} in f* = Σ c_α Π_i h_{α_i}(u_i·x), with u_i the rows of `subspace`."""


class Estimate(eqx.Module):
    """A measured mean and its standard error (zero when computed exactly)."""

    mean: Float[Array, ""]
    error: Float[Array, ""]


def nested(draw: Callable[[PRNGKeyArray], T], key: PRNGKeyArray, n: int) -> T:
    """n independent draws, stacked, the i-th from the key folded with i: the first rows never depend on n.

    So a larger sample extends a smaller one, and a padded array whose rows beyond a traced n are ignored holds the
    very sample of size n. (`jax.random.normal(key, (n, d))` promises this only for some settings of JAX.)
    """
    n = check_positive_integer("n (the number of samples)", n)
    return jax.vmap(lambda i: draw(jax.random.fold_in(key, i)))(jnp.arange(n, dtype=jnp.uint32))


class Task(eqx.Module):
    """A distribution of (x, y) that knows its answer.

    A concrete task gives `d`, `noise`, `input_row` and `target`; the rest has defaults. Facts it does not know are
    None. Keys are JAX's default (threefry) keys: others do not draw independent rows under vmap.
    """

    d: eqx.AbstractVar[int]
    noise: eqx.AbstractVar[float | Float[Array, ""]]

    def input_row(self, key: PRNGKeyArray) -> Float[Array, " d"]:
        """One fresh input."""
        raise NotImplementedError

    def target(self, X: Float[Array, "n d"]) -> Float[Array, "n *c"]:
        """The noiseless answer f*(x)."""
        raise NotImplementedError

    def inputs(self, key: PRNGKeyArray, n: int) -> Float[Array, "n d"]:
        """n fresh inputs. Nested: the first rows do not depend on n."""
        return nested(self.input_row, key, n)

    def sample(self, key: PRNGKeyArray, n: int) -> Data:
        """n labeled points, y = f*(x) + noise·(±1 with equal chance) [D1]. Nested in n."""
        key_x, key_noise = jax.random.split(key)
        X = self.inputs(key_x, n)
        y = self.target(X)
        if isinstance(self.noise, int | float) and self.noise == 0:
            return Data(X, y)
        signs = nested(lambda k: jax.random.rademacher(k, y.shape[1:], dtype=y.dtype), key_noise, n)
        return Data(X, y + jnp.asarray(self.noise, y.dtype) * signs)

    def sample_padded(self, key: PRNGKeyArray, n: int | Int[Array, ""], rows: int) -> Data:
        """`rows` points of which the first n have weight one: the sample of size n inside arrays of fixed size.

        n may be traced, so one compilation serves a whole grid of n.
        """
        data = self.sample(key, rows)
        return Data(data.X, data.y, (jnp.arange(rows) < n).astype(data.y.dtype))

    @property
    def subspace(self) -> Float[Array, "r d"] | None:
        """Orthonormal rows that span the relevant directions S*; None where there are none to speak of."""
        return None

    @property
    def second_moment(self) -> float | Float[Array, ""] | None:
        """E |f*(x)|², the risk of predicting zero."""
        return None

    @property
    def hessian(self) -> Float[Array, "d d"] | None:
        """H = E ∇²f* [D2] for Gaussian inputs."""
        return None

    @property
    def kappa(self) -> float | Float[Array, ""] | None:
        """κ = ‖H^†‖/√r [D2]; infinite where H does not span S*."""
        return None

    @property
    def hermite_coefficients(self) -> HermiteCoefficients | None:
        """c_α of f* in the basis of `subspace`; for functions that are not polynomials, up to some degree."""
        return None

    @property
    def information_exponent(self) -> int | None:
        """Smallest degree ≥ 1 in the Hermite (on the cube: Fourier) expansion of f*."""
        return None

    @property
    def leap(self) -> int | None:
        """Leap of f* in the basis of `subspace` (theory.activations.hermite.leap)."""
        return None

    @property
    def best_risk(self) -> float | Float[Array, ""] | None:
        """Smallest possible E |f(x) - y|²: the noise's variance."""
        return self.noise**2

    def population_risk(self, predict: Predictor, key: PRNGKeyArray, m: int = 4096) -> Estimate:
        """E |predict(x) - f*(x)|² over the inputs from at most m points, by sampling unless a task knows better."""
        X = self.inputs(key, m)
        return mean_estimate(squared_errors(predict(X), self.target(X)))


def squared_errors(predicted: Float[Array, "..."], truth: Float[Array, "m ..."]) -> Float[Array, " m"]:
    """|predicted - truth|² of every row."""
    if predicted.shape != truth.shape:
        raise ValueError(f"predictions have shape {predicted.shape}, the target {truth.shape}; make them equal")
    return jnp.square(predicted - truth).reshape(truth.shape[0], -1).sum(1)


def mean_estimate(values: Float[Array, " m"]) -> Estimate:
    """Mean of independent values and its standard error; infinite for a single value."""
    m = values.shape[0]
    error = values.std(ddof=1) / jnp.sqrt(m) if m > 1 else jnp.asarray(jnp.inf, values.dtype)
    return Estimate(values.mean(), jnp.asarray(error, values.dtype))
