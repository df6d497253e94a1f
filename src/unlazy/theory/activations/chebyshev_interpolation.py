"""Interpolation of an expensive smooth function of one value per point, evaluated at many points.

Expectations of φ(s x) and its Hermite coefficients are analytic in log s in a strip around the real line (half-width
π/2 for tanh). If the points lie within a factor MAX_RATIO of each other, polynomials through Chebyshev nodes match them
to rounding. Convergence is verified on the last coefficients; if it fails, the function itself is evaluated.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.polynomial import chebyshev

from unlazy.core.arrays import dot

MAX_RATIO = 8.0
"""Largest ratio of the points: each node then gains a factor 3.3 in accuracy."""
NODES = {"float32": 16, "float64": 32}
"""Chebyshev nodes by dtype."""
CHECKED_COEFFICIENTS, TOLERANCE_UNITS = 3, 4.0
"""Number of last coefficients that are checked, and their bound in units of rounding."""
BATCH_ROWS = 512
"""Points per batch of direct evaluations."""

RowFunction = Callable[[Float[Array, " n"]], tuple[Float[Array, "n c"], Float[Array, "n e"]]]
"""Maps roots (n,) to columns (n, c) and positive squares (n, e); the first square bounds those of the columns."""


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def interpolate(of: RowFunction, roots: Float[Array, " n"]) -> tuple[Float[Array, "n c"], Float[Array, "n e"]]:
    """of(roots), by Chebyshev interpolation in log(roots) where that is accurate to rounding.

    Parameters
    ----------
    of : callable
        A `RowFunction`.
    roots : array of shape (n,)
        Standard deviations.

    Returns
    -------
    columns : array of shape (n, c)
    squares : array of shape (n, e)
    """
    nodes = NODES["float64" if roots.dtype == jnp.float64 else "float32"]
    if roots.shape[0] <= 4 * nodes:
        return of(roots)
    low, high = jnp.log(jnp.min(roots)), jnp.log(jnp.max(roots))
    middle, half = (low + high) / 2, jnp.maximum((high - low) / 2, 1e-3)
    t, transform = _chebyshev(nodes)
    columns, squares = of(jnp.exp(middle + half * jnp.asarray(t, roots.dtype)))
    # relative to their size at each node, so that small s are equally accurate
    relative = jnp.concatenate([columns / jnp.sqrt(squares[:, :1]), jnp.log(squares)], 1)
    powers = dot(jnp.asarray(transform, roots.dtype), relative)
    allowed = TOLERANCE_UNITS * float(jnp.finfo(roots.dtype).eps)
    good = (jnp.max(jnp.abs(powers[-CHECKED_COEFFICIENTS:])) <= allowed) & (high - low <= math.log(MAX_RATIO))

    def between(roots: Array) -> tuple[Array, Array]:
        angle = jnp.arccos(jnp.clip((jnp.log(roots) - middle) / half, -1, 1))
        found = dot(jnp.cos(jnp.arange(nodes, dtype=roots.dtype) * angle[:, None]), powers)
        own = jnp.exp(found[:, columns.shape[1] :])
        return found[:, : columns.shape[1]] * jnp.sqrt(own[:, :1]), own

    return jax.lax.cond(good, between, functools.partial(_evaluate_in_batches, of), roots)


@interpolate.defjvp
def _interpolate_jvp(of: RowFunction, primals: tuple, tangents: tuple) -> tuple:
    """Value by interpolation, derivative by direct evaluation."""
    return interpolate(of, *primals), jax.jvp(functools.partial(_evaluate_in_batches, of), primals, tangents)[1]


def _evaluate_in_batches(of: RowFunction, roots: Float[Array, " n"]) -> tuple[Float[Array, "n c"], Float[Array, "n e"]]:
    """of(roots), BATCH_ROWS points at a time."""
    n = roots.shape[0]
    if n <= BATCH_ROWS:
        return of(roots)
    some = jnp.pad(roots, (0, -n % BATCH_ROWS), mode="edge").reshape(-1, BATCH_ROWS)
    columns, squares = jax.lax.map(of, some)
    return columns.reshape(some.size, columns.shape[-1])[:n], squares.reshape(some.size, squares.shape[-1])[:n]


@functools.cache
def _chebyshev(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes, and the matrix from values at the nodes to Chebyshev coefficients."""
    t = np.cos(np.pi * (np.arange(nodes) + 0.5) / nodes)
    return t, np.linalg.inv(chebyshev.chebvander(t, nodes - 1))
