"""Gaussian inputs and a target that looks at few directions: how to draw them and how to measure risk well."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.errors import check_positive_integer
from unlazy.core.linalg import dot
from unlazy.tasks.base import Estimate, Predictor, Task, mean_estimate, squared_errors

COPIES = 16
"""Independent copies of the quadrature grid: their spread is the standard error."""
NODES = {1: 401, 2: 24}
"""Most nodes along each relevant direction, by the number of directions."""


class GaussianTask(Task):
    """x ~ N(0, I_d) and f*(x) = g(Ux), U with orthonormal rows [D1].

    A concrete task gives `target`, `subspace` (= U) and `degree`, the growth of f* that the quadrature must reach.
    """

    degree: eqx.AbstractVar[int]

    def input_row(self, key: PRNGKeyArray) -> Float[Array, " d"]:
        return jax.random.normal(key, (self.d,))

    @property
    def kappa(self) -> float | Float[Array, ""] | None:
        U, H = self.subspace, self.hessian
        if U is None or H is None:
            return None
        sizes = jnp.abs(jnp.linalg.eigvalsh(dot(U, H, U.T)))
        singular = sizes.min() <= 100 * jnp.finfo(H.dtype).eps * jnp.maximum(sizes.max(), 1e-30)
        return jnp.where(singular, jnp.inf, 1 / (jnp.where(singular, 1, sizes.min()) * math.sqrt(len(sizes))))

    def population_risk(self, predict: Predictor, key: PRNGKeyArray, m: int = 4096) -> Estimate:
        """E (predict(x) - f*(x))² from at most m points; r = 1, 2 by quadrature along S* and sampling across.

        Along S*: the trapezoid rule in asinh(z) on a grid of random offset, spectrally accurate for smooth
        integrands and unbiased for any (but for the mass beyond √(2·degree) + 5). Across: a fresh Gaussian at every
        node. 16 copies with offsets of their own; the error is their standard error. For larger r, plain
        sampling with f*² as control variate, whose mean is known.
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

    def _controlled_risk(self, predict: Predictor, key: PRNGKeyArray, m: int) -> Estimate:
        """Sampling, less the part of the error that goes with f*², whose mean is known exactly."""
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
    """r orthonormal directions in R^d: uniformly random from a key, else the first r axes."""
    d, r = check_positive_integer("d (the input dimension)", d), check_positive_integer("r (the directions)", r)
    if r > d:
        raise ValueError(f"{r} orthonormal directions do not fit in dimension {d}; take r ≤ d")
    if key is None:
        return jnp.eye(r, d)
    Q, R = jnp.linalg.qr(jax.random.normal(key, (d, r)))
    return (Q * jnp.where(jnp.diagonal(R) < 0, -1, 1)).T  # signs fixed: uniform over frames


def check_orthonormal(U: Float[Array, "r d"]) -> None:
    """ValueError unless the rows of a known U are orthonormal; while JAX traces, the caller is trusted."""
    try:
        values = np.asarray(U, float)
    except jax.errors.TracerArrayConversionError:
        return
    gap = float(np.max(np.abs(dot(values, values.T) - np.eye(len(values)))))
    if not gap < 1e-4:
        raise ValueError(f"the rows of `directions` must be orthonormal, they miss by {gap:.1e}; take a QR first")


def gaussian_directions(
    d: int, r: int, given: Float[Array, "r d"] | None, key: PRNGKeyArray | None
) -> Float[Array, "r d"]:
    """The directions a task was given, checked, or new ones."""
    if given is None:
        return directions(d, r, key)
    if given.shape != (r, d):
        raise ValueError(f"`directions` must have shape ({r}, {d}), got {given.shape}")
    check_orthonormal(given)
    return given


def _nodes_per_side(r: int, m: int) -> int:
    """Grid size that leaves COPIES copies within m points; 0 where a grid does not pay."""
    return min(NODES[r], int((m // COPIES) ** (1 / r) + 1e-9)) if r in NODES else 0


def _grid(
    key: PRNGKeyArray, r: int, nodes: int, reach: float, dtype: jnp.dtype
) -> tuple[Float[Array, "q r"], Float[Array, " q"]]:
    """Tensor grid on [-reach, reach]^r and its Gaussian weights: z = sinh t, t evenly spaced with a random offset.

    The map puts nodes where the mass is (1/3 of them in |z| < 1) and still many where a polynomial is large.
    """
    end = math.asinh(reach)
    step = 2 * end / nodes
    T = -end + step * (jnp.arange(nodes) + jax.random.uniform(key, (r, 1)))
    T = jnp.stack([axis.ravel() for axis in jnp.meshgrid(*T, indexing="ij")], -1).astype(dtype)
    Z = jnp.sinh(T)
    density = jnp.exp(-(Z**2) / 2) / math.sqrt(2 * math.pi)
    return Z, jnp.prod(step * jnp.cosh(T) * density, 1)
