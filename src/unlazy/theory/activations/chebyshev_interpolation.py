"""A costly smooth function of one number per point, at very many points: by interpolation between a few of them.

Expectations of φ(s x) and of its Hermite coefficients are analytic in log s in a strip around the real line (for tanh
of half-width π/2): where the points lie within a factor SPREAD of each other, polynomials through Chebyshev nodes meet
them to rounding. Whether they do is read off their last coefficients; else the function itself is evaluated.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.polynomial import chebyshev

from unlazy.core.linalg import dot

SPREAD = 8.0
"""Half of its logarithm over the strip's half-width lets every node gain a factor 3.3."""
NODES = {"float32": 16, "float64": 32}
LAST, UNITS = 3, 4.0
"""Coefficients that are looked at, and units of rounding that they may have."""
AT_ONCE = 512
"""Points at which the function itself is evaluated at once."""

Of = Callable[[Float[Array, " n"]], tuple[Float[Array, "n c"], Float[Array, "n e"]]]
"""Gives columns, and squares (positive, larger than those of the columns) that say how large these are."""


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def across(of: Of, roots: Float[Array, " n"]) -> tuple[Float[Array, "n c"], Float[Array, "n e"]]:
    """of(roots)."""
    nodes = NODES["float64" if roots.dtype == jnp.float64 else "float32"]
    if roots.shape[0] <= 4 * nodes:
        return of(roots)
    low, high = jnp.log(jnp.min(roots)), jnp.log(jnp.max(roots))
    middle, half = (low + high) / 2, jnp.maximum((high - low) / 2, 1e-3)
    t, transform = _chebyshev(nodes)
    columns, squares = of(jnp.exp(middle + half * jnp.asarray(t, roots.dtype)))
    # relative to their size at each node, so that points with small s are as good as others
    relative = jnp.concatenate([columns / jnp.sqrt(squares[:, :1]), jnp.log(squares)], 1)
    powers = dot(jnp.asarray(transform, roots.dtype), relative)
    allowed = UNITS * float(jnp.finfo(roots.dtype).eps)
    good = (jnp.max(jnp.abs(powers[-LAST:])) <= allowed) & (high - low <= math.log(SPREAD))

    def between(roots: Array) -> tuple[Array, Array]:
        angle = jnp.arccos(jnp.clip((jnp.log(roots) - middle) / half, -1, 1))
        found = dot(jnp.cos(jnp.arange(nodes, dtype=roots.dtype) * angle[:, None]), powers)
        own = jnp.exp(found[:, columns.shape[1] :])
        return found[:, : columns.shape[1]] * jnp.sqrt(own[:, :1]), own

    return jax.lax.cond(good, between, functools.partial(_each, of), roots)


@across.defjvp
def _across_jvp(of: Of, primals: tuple, tangents: tuple) -> tuple:
    return across(of, *primals), jax.jvp(functools.partial(_each, of), primals, tangents)[1]


def _each(of: Of, roots: Float[Array, " n"]) -> tuple[Float[Array, "n c"], Float[Array, "n e"]]:
    n = roots.shape[0]
    if n <= AT_ONCE:
        return of(roots)
    some = jnp.pad(roots, (0, -n % AT_ONCE), mode="edge").reshape(-1, AT_ONCE)
    columns, squares = jax.lax.map(of, some)
    return columns.reshape(some.size, columns.shape[-1])[:n], squares.reshape(some.size, squares.shape[-1])[:n]


@functools.cache
def _chebyshev(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes, and the matrix from values there to Chebyshev coefficients."""
    t = np.cos(np.pi * (np.arange(nodes) + 0.5) / nodes)
    return t, np.linalg.inv(chebyshev.chebvander(t, nodes - 1))
