"""Base class of tasks: sampling, the target, and theoretical properties that are known exactly."""

from collections.abc import Callable
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from unlazy.core.dataset import Data
from unlazy.core.errors import check_positive_integer

T = TypeVar("T")
Predictor = Callable[[Float[Array, "m d"]], Float[Array, " m *c"]]
HermiteCoefficients = dict[tuple[int, ...], float]
"""{α: c_α} in f* = Σ c_α Π_i h_{α_i}(u_i·x), with u_i the rows of `subspace`."""


class RiskEstimate(eqx.Module):
    """Estimated mean and its standard error (zero when computed exactly).

    Attributes
    ----------
    mean : scalar array
        Estimate.
    error : scalar array
        Standard error.
    """

    mean: Float[Array, ""]
    error: Float[Array, ""]


def nested(draw: Callable[[PRNGKeyArray], T], key: PRNGKeyArray, n: int) -> T:
    """Draw n independent samples whose first rows do not depend on n.

    The i-th sample uses the key folded with i. A larger sample therefore extends a smaller one, and a padded array in
    which rows beyond a traced n are ignored contains exactly the sample of size n. (`jax.random.normal(key, (n, d))`
    guarantees this only for some settings of JAX.)

    Parameters
    ----------
    draw : callable
        `draw(key)` returns one sample.
    key : PRNG key
        Source of randomness.
    n : int
        Number of samples.

    Returns
    -------
    array or pytree
        The samples, stacked along a leading axis.

    Examples
    --------
    >>> import jax
    >>> from unlazy.tasks import nested
    >>> key = jax.random.key(0)
    >>> few, many = (nested(lambda k: jax.random.normal(k, (2,)), key, n) for n in (3, 5))
    >>> few.shape, many.shape, bool((few == many[:3]).all())
    ((3, 2), (5, 2), True)
    """
    n = check_positive_integer("n (the number of samples)", n)
    return jax.vmap(lambda i: draw(jax.random.fold_in(key, i)))(jnp.arange(n, dtype=jnp.uint32))


class Task(eqx.Module):
    """Distribution of (x, y) with a known target.

    Subclasses define `d`, `noise`, `input_row` and `target`; everything else has a default. Properties that are unknown
    are None. Keys must be JAX's default (threefry) keys: other implementations do not draw independent rows under vmap.

    Attributes
    ----------
    d : int
        Input dimension.
    noise : float
        Labels are f*(x) ± noise with equal probability.
    """

    d: eqx.AbstractVar[int]
    noise: eqx.AbstractVar[float | Float[Array, ""]]

    def input_row(self, key: PRNGKeyArray) -> Float[Array, " d"]:
        """Draw one input of shape (d,)."""
        raise NotImplementedError

    def target(self, X: Float[Array, "n d"]) -> Float[Array, " n *c"]:
        """Evaluate the noiseless target f*(x).

        Parameters
        ----------
        X : array of shape (n, d)
            Inputs.

        Returns
        -------
        array of shape (n,) or (n, c)
            Target values.
        """
        raise NotImplementedError

    def inputs(self, key: PRNGKeyArray, n: int) -> Float[Array, "n d"]:
        """Draw inputs; the first rows do not depend on n.

        Parameters
        ----------
        key : PRNG key
            Source of randomness.
        n : int
            Number of inputs.

        Returns
        -------
        array of shape (n, d)
            Inputs.
        """
        return nested(self.input_row, key, n)

    def sample(self, key: PRNGKeyArray, n: int) -> Data:
        """Draw labeled points, y = f*(x) + noise·(±1 with equal probability) [D1]; the first rows do not depend on n.

        Parameters
        ----------
        key : PRNG key
            Source of randomness.
        n : int
            Number of points.

        Returns
        -------
        Data
            Inputs X and labels y.
        """
        key_x, key_noise = jax.random.split(key)
        X = self.inputs(key_x, n)
        y = self.target(X)
        if isinstance(self.noise, int | float) and self.noise == 0:
            return Data(X, y)
        signs = nested(lambda k: jax.random.rademacher(k, y.shape[1:], dtype=y.dtype), key_noise, n)
        return Data(X, y + jnp.asarray(self.noise, y.dtype) * signs)

    def sample_padded(self, key: PRNGKeyArray, n: int | Int[Array, ""], rows: int) -> Data:
        """Draw a sample of size n inside arrays of fixed size.

        n may be traced, so that one compilation serves many sample sizes.

        Parameters
        ----------
        key : PRNG key
            Source of randomness.
        n : int or traced integer
            Sample size.
        rows : int
            Number of rows of the arrays, at least n.

        Returns
        -------
        Data
            `rows` points, of which the first n have weight one and the others weight zero.
        """
        data = self.sample(key, rows)
        return Data(data.X, data.y, (jnp.arange(rows) < n).astype(data.y.dtype))

    @property
    def subspace(self) -> Float[Array, "r d"] | None:
        """Orthonormal rows that span the relevant directions S*, or None."""
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
        """κ = ‖H^†‖/√r [D2]; infinite if H does not span S*."""
        return None

    @property
    def hermite_coefficients(self) -> HermiteCoefficients | None:
        """Coefficients c_α of f* in the basis of `subspace`; up to a finite degree unless f* is a polynomial."""
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
        """Smallest possible E |f(x) - y|²: the variance of the noise."""
        return self.noise**2

    def population_risk(self, predict: Predictor, key: PRNGKeyArray, m: int = 4096) -> RiskEstimate:
        """Estimate E |predict(x) - f*(x)|² over the input distribution.

        Parameters
        ----------
        predict : callable
            Maps inputs of shape (m, d) to predictions with the shape of the target.
        key : PRNG key
            Draws the test points.
        m : int, default 4096
            Largest number of test points.

        Returns
        -------
        RiskEstimate
            Mean (without a factor 1/2) and standard error.

        Raises
        ------
        ValueError
            If the predictions do not have the shape of the target.
        """
        X = self.inputs(key, m)
        return mean_estimate(squared_errors(predict(X), self.target(X)))


def squared_errors(predicted: Float[Array, "..."], truth: Float[Array, "m ..."]) -> Float[Array, " m"]:
    """Return |predicted - truth|² of every row."""
    if predicted.shape != truth.shape:
        raise ValueError(f"predictions have shape {predicted.shape} and the target {truth.shape}; make them equal")
    return jnp.square(predicted - truth).reshape(truth.shape[0], -1).sum(1)


def mean_estimate(values: Float[Array, " m"]) -> RiskEstimate:
    """Return the mean of independent values and its standard error; infinite for a single value."""
    m = values.shape[0]
    error = values.std(ddof=1) / jnp.sqrt(m) if m > 1 else jnp.asarray(jnp.inf, values.dtype)
    return RiskEstimate(values.mean(), jnp.asarray(error, values.dtype))
