"""Tasks with Gaussian inputs and a target of few directions: directions, and accurate estimates of the risk."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.arrays import dot
from unlazy.core.errors import check_positive_integer
from unlazy.tasks.base import Predictor, RiskEstimate, Task, mean_estimate, squared_errors

COPIES = 16
"""Independent copies of the quadrature grid; their standard deviation gives the standard error."""
NODES = {1: 401, 2: 24}
"""Largest number of nodes along each relevant direction, by the number of directions."""


class GaussianTask(Task):
    """Base class of tasks with x ~ N(0, I_d) and f*(x) = g(Ux), U with orthonormal rows [D1].

    Subclasses define `target`, `subspace` (= U) and `degree`, the polynomial growth of f* that the quadrature must
    cover.
    """

    degree: eqx.AbstractVar[int]

    def input_row(self, key: PRNGKeyArray) -> Float[Array, " d"]:
        """Draw one standard normal input."""
        return jax.random.normal(key, (self.d,))

    @property
    def kappa(self) -> float | Float[Array, ""] | None:
        """κ = ‖H^†‖/√r [D2]; infinite if H does not span S*."""
        U, H = self.subspace, self.hessian
        if U is None or H is None:
            return None
        sizes = jnp.abs(jnp.linalg.eigvalsh(dot(U, H, U.T)))
        singular = sizes.min() <= 100 * jnp.finfo(H.dtype).eps * jnp.maximum(sizes.max(), 1e-30)
        return jnp.where(singular, jnp.inf, 1 / (jnp.where(singular, 1, sizes.min()) * math.sqrt(len(sizes))))

    def population_risk(self, predict: Predictor, key: PRNGKeyArray, m: int = 4096) -> RiskEstimate:
        """Estimate E (predict(x) - f*(x))²; for r = 1, 2 by quadrature along S* and sampling across it.

        Along S*: the trapezoid rule in asinh(z) on a grid with a random offset, which is spectrally accurate for smooth
        integrands and unbiased for all (except for the mass beyond √(2·degree) + 5). Across S*: an independent Gaussian
        at every node. The error is the standard error over 16 copies with independent offsets. For larger r: plain
        sampling with f*², whose mean is known, as control variate.

        Parameters
        ----------
        predict : callable
            Maps inputs of shape (m, d) to predictions of shape (m,).
        key : PRNG key
            Draws the test points.
        m : int, default 4096
            Largest number of test points.

        Returns
        -------
        RiskEstimate
            Mean (without a factor 1/2) and standard error.
        """
        U = self.subspace
        m = check_positive_integer("m (the number of test points)", m)
        r = self.d if U is None else U.shape[0]
        per_side = _nodes_per_side(r, m)
        if U is None or per_side < 8:
            return self._controlled_risk(predict, key, m)
        key_across, key_offset = jax.random.split(key)
        X = self.inputs(key_across, COPIES * per_side**r)
        Z, weights = jax.vmap(lambda k: _grid(k, r, per_side, math.sqrt(2 * self.degree) + 5, X.dtype))(
            jax.random.split(key_offset, COPIES)
        )
        U = U.astype(X.dtype)
        Z = Z.reshape(-1, r)
        X = X + dot(Z - dot(X, U.T), U)
        values = squared_errors(predict(X), self.target(X)).reshape(weights.shape)
        return mean_estimate(jnp.sum(weights * values, 1))

    def _controlled_risk(self, predict: Predictor, key: PRNGKeyArray, m: int) -> RiskEstimate:
        """Estimate the risk by sampling with f*² as control variate."""
        X = self.inputs(key, m)
        truth = self.target(X)
        values, moment = squared_errors(predict(X), truth), self.second_moment
        if moment is None or m < 16:
            return mean_estimate(values)
        control = truth**2 - moment
        centered = control - control.mean()
        variance = jnp.sum(centered**2)
        slope = jnp.where(variance > 0, jnp.sum(centered * values) / jnp.where(variance > 0, variance, 1), 0)
        return mean_estimate(values - slope * control)


def directions(d: int, r: int, key: PRNGKeyArray | None = None) -> Float[Array, "r d"]:
    """Return r orthonormal directions in R^d.

    Parameters
    ----------
    d : int
        Input dimension.
    r : int
        Number of directions, at most d.
    key : PRNG key, optional
        Draws uniformly random directions; the first r coordinate axes by default.

    Returns
    -------
    array of shape (r, d)
        Orthonormal rows.

    Raises
    ------
    ValueError
        If r > d.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> from unlazy.tasks import directions
    >>> U = directions(5, 2, key=jax.random.key(0))
    >>> U.shape, bool(jnp.allclose(U @ U.T, jnp.eye(2), atol=1e-5))
    ((2, 5), True)
    """
    d, r = check_positive_integer("d (the input dimension)", d), check_positive_integer("r (the directions)", r)
    if r > d:
        raise ValueError(f"{r} orthonormal directions do not fit in dimension {d}; use r ≤ d")
    if key is None:
        return jnp.eye(r, d)
    Q, R = jnp.linalg.qr(jax.random.normal(key, (d, r)))
    return (Q * jnp.where(jnp.diagonal(R) < 0, -1, 1)).T  # fixed signs make the distribution over frames uniform


def check_orthonormal(U: Float[Array, "r d"]) -> None:
    """Raise ValueError if the rows of U are not orthonormal; skipped while JAX traces U."""
    try:
        values = np.asarray(U, float)
    except jax.errors.TracerArrayConversionError:
        return
    gap = float(np.max(np.abs(dot(values, values.T) - np.eye(len(values)))))
    if not gap < 1e-4:
        raise ValueError(f"the rows of `directions` must be orthonormal; their Gram matrix is off by {gap:.1e}")


def gaussian_directions(
    d: int, r: int, given: Float[Array, "r d"] | None, key: PRNGKeyArray | None
) -> Float[Array, "r d"]:
    """Validate the given directions, or create new ones."""
    if given is None:
        return directions(d, r, key)
    if given.shape != (r, d):
        raise ValueError(f"`directions` must have shape ({r}, {d}), got {given.shape}")
    check_orthonormal(given)
    return given


def _nodes_per_side(r: int, m: int) -> int:
    """Return the grid size for COPIES copies within m points; 0 if sampling is better."""
    return min(NODES[r], int((m // COPIES) ** (1 / r) + 1e-9)) if r in NODES else 0


def _grid(
    key: PRNGKeyArray, r: int, nodes: int, reach: float, dtype: jnp.dtype
) -> tuple[Float[Array, "q r"], Float[Array, " q"]]:
    """Return a tensor grid on [-reach, reach]^r and its Gaussian weights: z = sinh t, t equidistant with random offset.

    The map concentrates nodes where the mass is (1/3 of them in |z| < 1) and keeps many where a polynomial is large.
    """
    end = math.asinh(reach)
    step = 2 * end / nodes
    T = -end + step * (jnp.arange(nodes) + jax.random.uniform(key, (r, 1)))
    T = jnp.stack([axis.ravel() for axis in jnp.meshgrid(*T, indexing="ij")], -1).astype(dtype)
    Z = jnp.sinh(T)
    density = jnp.exp(-(Z**2) / 2) / math.sqrt(2 * math.pi)
    return Z, jnp.prod(step * jnp.cosh(T) * density, 1)
