"""Gradients of kernel predictors and their average outer product (AGOP) [D11], for kernels with an entry formula.

See theory.feature_learning.agop. At x = x_i a non-smooth kernel has a kink in the angle (or the distance); its
derivative is zero by symmetry and is omitted, while the radial derivative is kept. The AGOP is
(1/n) Σ_x Σ_c ∇f_c(x) ∇f_c(x)ᵀ (Radhakrishnan et al. 2024).
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core.arrays import Labels, Points, dot
from unlazy.core.devices import memory_budget
from unlazy.kernels.base import InnerProductKernel, Kernel
from unlazy.kernels.gram_blocks import PreparedPoints, embed_sides, inner_products
from unlazy.kernels.product_laplace import ProductLaplace
from unlazy.products.engines.blocked import as_columns, block_rows, prepare_sides, validated_sides
from unlazy.theory.feature_learning import agop as theory_agop


def gradient(
    kernel: Kernel, X: Points, centers: Points, coefficients: Labels, memory: int | str | None = None
) -> Float[Array, "n *c d"]:
    """Gradient of the predictor f(x) = Σ_i α_i k(x, x_i) at every row of X.

    Parameters
    ----------
    kernel : Kernel
        A kernel with an entry formula, or the product Laplace kernel.
    X : array of shape (n, d)
        Points at which the gradient is evaluated.
    centers : array of shape (m, d)
        Centers x_i of the predictor.
    coefficients : array of shape (m,) or (m, c)
        Coefficients α of one or c outputs.
    memory : int or str, optional
        Memory budget in bytes or as a string such as "8GiB".

    Returns
    -------
    array of shape (n, d) or (n, c, d)
        The gradients.

    Raises
    ------
    ValueError
        If the kernel has no entry formula or the inputs are invalid.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import Gaussian
    >>> from unlazy.products import gradient
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> Z, coefficients = X[:5], np.ones(5)
    >>> gradient(Gaussian(1.0), X, Z, coefficients).shape
    (60, 3)
    """
    formula, X, centers, alpha, rows = _prepared(kernel, X, centers, coefficients, memory)
    G = gradient_blocks(formula, X, centers, alpha, rows)
    return G.reshape(X.shape[:1] + np.shape(coefficients)[1:] + X.shape[1:])


def agop(
    kernel: Kernel, X: Points, centers: Points, coefficients: Labels, memory: int | str | None = None,
    weights: Labels | None = None,
) -> Float[Array, "d d"]:  # fmt: skip
    """Average gradient outer product (AGOP) of a kernel predictor over the rows of X [D11].

    (1/n) Σ_x Σ_c ∇f_c(x) ∇f_c(x)ᵀ, computed in blocks without storing the gradients.

    Parameters
    ----------
    kernel : Kernel
        A kernel with an entry formula, or the product Laplace kernel.
    X : array of shape (n, d)
        Points over which the outer products are averaged.
    centers : array of shape (m, d)
        Centers x_i of the predictor f(x) = Σ_i α_i k(x, x_i).
    coefficients : array of shape (m,) or (m, c)
        Coefficients α of one or c outputs.
    memory : int or str, optional
        Memory budget in bytes or as a string such as "8GiB".
    weights : array of shape (n,), optional
        Weights of the rows of X; uniform by default.

    Returns
    -------
    array of shape (d, d)
        The AGOP, summed over outputs.

    Raises
    ------
    ValueError
        If the kernel has no entry formula or the inputs are invalid.

    References
    ----------
    Radhakrishnan, Beaglehole, Pandit, Belkin (2024), Mechanism for feature learning in neural networks and
    backpropagation-free machine learning models.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import Gaussian
    >>> from unlazy.products import agop
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> Z, coefficients = X[:5], np.ones(5)
    >>> agop(Gaussian(1.0), X, Z, coefficients).shape
    (3, 3)
    """
    formula, X, centers, alpha, rows = _prepared(kernel, X, centers, coefficients, memory)
    share = None if weights is None else as_columns(weights, X.shape[0], "weights", X.dtype)[:, 0]
    return agop_blocks(formula, X, centers, alpha, share, rows)


def _prepared(kernel: Kernel, X: Points, centers: Points, coefficients: Labels, memory: int | str | None):
    formula = gradient_formula(kernel)
    X, centers = validated_sides(kernel, X, centers, ("X", "centers"))
    alpha = as_columns(coefficients, centers.shape[0], "coefficients", X.dtype)
    rows = rows_per_block(X.shape[0], centers.shape, alpha.shape[1], X.dtype.itemsize, memory)
    return formula, X, centers, alpha, rows


def gradient_formula(kernel: Kernel) -> Any:
    """Return the kernel whose gradient `gradient_blocks` and `agop_blocks` compute; raise ValueError if it has none."""
    formula = kernel if isinstance(kernel, ProductLaplace) else kernel.formula
    if formula is None:
        raise ValueError(
            f"{type(kernel).__name__} has no entry formula, so its gradient is not available in closed form: "
            "differentiate kernel.gram with jax.grad"
        )
    return formula


def rows_per_block(
    n: int, centers: tuple[int, ...], outputs: int, itemsize: int = 8, memory: int | str | None = None
) -> int:
    """Number of the n rows in a block, for `centers` of a shape (m, d).

    A row needs two derivatives besides m entries, and the gradients of all outputs.
    """
    m, d = centers
    return block_rows(n, 3 * m + outputs * d, itemsize, memory_budget(memory))


def _block_gradient(kernel: InnerProductKernel, left: Array, right: Array, alpha: Array) -> Array:
    """Gradient with respect to the embedded points, shape (rows, c, e)."""
    xz, xx, zz = inner_products(PreparedPoints(left), PreparedPoints(right))
    one, zero = jnp.ones_like(xz), jnp.zeros_like(xz)
    full_xx, full_zz = xx + zero, zz + zero
    _, by_product = jax.jvp(kernel.entry, (xz, full_xx, full_zz), (one, zero, zero))
    _, by_norm = jax.jvp(kernel.entry, (xz, full_xx, full_zz), (zero, one, zero))
    # one output at a time: all at once would need c copies of the centers
    found = jax.lax.map(lambda a: theory_agop.gradient(by_product, by_norm, a, left, right), alpha.T)
    return jnp.moveaxis(found, 0, 1)


def _rows_gradient(kernel: Any, part: Array, centers: Array, alpha: Array) -> Array:
    """Gradient with respect to x: pulls each output's gradient back through the embedding."""
    if isinstance(kernel, ProductLaplace):
        left, right = prepare_sides(kernel, part, centers)
        return theory_agop.l1_gradient(kernel.block(left, right), alpha, left, right) / kernel.bandwidth
    left, right = embed_sides(kernel, part, centers)
    G = _block_gradient(kernel, left, right, alpha)
    _, pull = jax.vjp(kernel.embed, part)
    return jax.vmap(lambda g: pull(g)[0], in_axes=1, out_axes=1)(G)


@functools.partial(jax.jit, static_argnames="rows")
def gradient_blocks(kernel: Any, X: Array, centers: Array, alpha: Array, rows: int) -> Float[Array, "n c d"]:
    """`gradient` for valid arrays, a block of rows at a time."""
    n = X.shape[0]

    def fill(i: Array, out: Array) -> Array:
        start = jnp.minimum(i * rows, n - rows)
        G = _rows_gradient(kernel, jax.lax.dynamic_slice_in_dim(X, start, rows), centers, alpha)
        return jax.lax.dynamic_update_slice_in_dim(out, G, start, 0)

    return jax.lax.fori_loop(0, math.ceil(n / rows), fill, jnp.zeros((n, alpha.shape[1], X.shape[1]), X.dtype))


@functools.partial(jax.jit, static_argnames="rows")
def agop_blocks(
    kernel: Any, X: Array, centers: Array, alpha: Array, weights: Array | None, rows: int
) -> Float[Array, "d d"]:
    """`agop` for valid arrays, a block of rows at a time."""
    n, d = X.shape
    root = None if weights is None else jnp.sqrt(weights / weights.sum())[:, None, None]

    def add(i: Array, total: Array) -> Array:
        start = jnp.minimum(i * rows, n - rows)
        G = _rows_gradient(kernel, jax.lax.dynamic_slice_in_dim(X, start, rows), centers, alpha)
        fresh = (start + jnp.arange(rows) >= i * rows)[:, None, None]  # the last block overlaps the one before
        if root is not None:
            G = G * jax.lax.dynamic_slice_in_dim(root, start, rows)
        G = jnp.where(fresh, G, 0).reshape(-1, d)
        return total + dot(G.T, G)

    total = jax.lax.fori_loop(0, math.ceil(n / rows), add, jnp.zeros((d, d), X.dtype))
    return total / n if root is None else total
