"""Tangent kernels of any function of (parameters, inputs): Jacobian contractions or matrix-free products [C5]."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from unlazy.core.arrays import einsum, is_concrete, n_points, with_highest_precision
from unlazy.core.devices import block_rows, memory_budget
from unlazy.core.pytrees import broadcast_over, parameter_layers, split_parameters

Apply = Callable[[PyTree, PyTree], Array]
COLUMNS_PER_PASS = 8
"""Columns of a product that are processed together; each needs memory for one gradient."""
MIN_HALF = 8
"""Minimum half size from which the lower block of a symmetric kernel is copied instead of computed."""
MAX_JACOBIAN_BYTES = 2**28
"""Limit on Jacobian rows in memory that are only squared and summed: more would not be faster."""


def tangent_product(
    apply: Apply,
    params: PyTree,
    X: Float[Array, "n ..."],
    V: Float[Array, "m ..."],
    Z: Float[Array, "m ..."] | None = None,
    *,
    rates: PyTree = 1.0,
) -> Float[Array, "n ..."]:
    """K(X, Z) V without forming the matrix: a reverse pass through Z, then a forward pass through X.

    Parameters
    ----------
    apply : callable
        Function f(params, X), such as a `Network`.
    params : pytree
        Parameters.
    X : array of shape (n, ...)
        Points of the rows of K.
    V : array of the shape of apply(params, Z)
        Vector to multiply, with one value per point and output.
    Z : array of shape (m, ...), optional
        Points of the columns of K; X by default.
    rates : float or pytree, default 1.0
        Learning rate of each parameter or layer.

    Returns
    -------
    array of the shape of apply(params, X)

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy.networks import tangent_product
    >>> X = jnp.array([[1.0, 0.0], [1.0, 2.0]])
    >>> tangent_product(lambda w, X: X @ w, jnp.zeros(2), X, jnp.array([1.0, 1.0])).tolist()  # X Xᵀ V
    [2.0, 6.0]
    """
    f, start = trainable_function(apply, params)
    _, pull = jax.vjp(lambda theta: f(theta, X if Z is None else Z), start)
    (gradient,) = pull(V)
    move = jax.tree.map(lambda r, g: jnp.asarray(r * g, g.dtype), scales(rates, start), gradient)
    return jax.jvp(lambda theta: f(theta, X), (start,), (move,))[1]


def batched_product(
    apply: Apply, params: PyTree, X: PyTree, Z: PyTree, V: Float[Array, "m k"], rates: PyTree = 1.0, batch: int = 1024
) -> Float[Array, "n k"]:
    """Σ_c J_c(X) R J_c(Z)ᵀ V over outputs c, for k columns, without a matrix or a Jacobian [C5].

    Gradients are summed over batches of Z, then pushed forward through batches of X: memory is proportional to the
    parameters and one batch, independent of n. Novak, Sohl-Dickstein and Schoenholz (2022).
    """
    f, start = trainable_function(apply, params)
    scale = scales(rates, start)
    outputs = output_shape(f, start, X)
    basis = jnp.eye(math.prod(outputs), dtype=V.dtype).reshape(-1, *outputs)
    left, right = (min(batch, n_points(side)) for side in (X, Z))
    columns = jnp.pad(V, ((0, -n_points(Z) % right), (0, 0))).T  # zero weights on the padding of the last batch

    def of_column(v: Array, output: Array) -> Array:
        def pulled(total: Any, at: tuple[Any, Array]) -> tuple[Any, None]:
            z, part = at
            seen, pull = jax.vjp(lambda theta: f(theta, z), start)
            weights = part.reshape(-1, *(1,) * len(outputs)) * output
            return jax.tree.map(jnp.add, total, pull(weights.astype(seen.dtype))[0]), None

        gradient, _ = jax.lax.scan(
            pulled, jax.tree.map(jnp.zeros_like, start), (_batches(Z, right), v.reshape(-1, right))
        )
        move = jax.tree.map(lambda r, g: jnp.asarray(r * g, g.dtype), scale, gradient)

        def pushed(x: Any) -> Array:
            slope = jax.jvp(lambda theta: f(theta, x), (start,), (move,))[1]
            return jnp.sum(slope * output, tuple(range(1, slope.ndim)))

        return jax.lax.map(pushed, _batches(X, left)).reshape(-1)[: n_points(X)]

    def of_output(total: Array, output: Array) -> tuple[Array, None]:
        found = jax.lax.map(lambda v: of_column(v, output), columns, batch_size=COLUMNS_PER_PASS)
        return total + found.T.astype(V.dtype), None

    return jax.lax.scan(of_output, jnp.zeros((n_points(X), V.shape[1]), V.dtype), basis)[0]


def _rows(X: Any, first: int, last: int) -> Any:
    """Rows first … last of every array of a tree."""
    return jax.tree.map(lambda leaf: leaf[first:last], X)


def _batches(X: Any, batch: int) -> Any:
    """Split into equal batches on a new leading axis; the last one is padded with copies of the first point."""
    n = n_points(X)

    def cut(leaf: Array) -> Array:
        return jnp.concatenate([leaf, jnp.repeat(leaf[:1], -n % batch, 0)]).reshape(-1, batch, *leaf.shape[1:])

    return jax.tree.map(cut, X)


def trainable_function(apply: Apply, params: PyTree) -> tuple[Apply, PyTree]:
    """The function of the differentiable leaves, with the other leaves fixed; and those leaves, in float32 at least."""
    start, fixed = split_parameters(params)
    start = jax.tree.map(lambda leaf: leaf.astype(jnp.float32) if _is_half(leaf) else leaf, start)
    return with_highest_precision(lambda theta, X: apply(eqx.combine(theta, fixed), X)), start


def _is_half(leaf: Any) -> bool:
    """Whether an array has fewer bits than float32."""
    dtype = jnp.result_type(leaf)
    return jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4


def output_shape(f: Apply, theta: PyTree, X: PyTree) -> tuple[int, ...]:
    """Shape of f of one point; raises ValueError if f does not return one row per point."""
    one = jax.eval_shape(f, theta, _rows(X, 0, 1))
    if not isinstance(one, jax.ShapeDtypeStruct) or one.shape[:1] != (1,):
        found = getattr(one, "shape", type(one).__name__)
        raise ValueError(f"f must return an array with one row per point: (1, …) for one point, got {found}")
    return one.shape[1:]


def validate_function(apply: Apply, params: PyTree, X: PyTree) -> None:
    """Raise ValueError if f(x) depends on the other points of a batch; warn if f computes in low precision.

    The first point is evaluated twice, beside different points. Nothing is checked inside jit.
    """
    if not is_concrete(apply, params, X) or not n_points(X):
        return
    f, start = trainable_function(apply, params)
    output_shape(f, start, X)
    first, last = _rows(X, 0, 1), _rows(X, n_points(X) - 1, n_points(X))
    if n_points(X) == 1:
        last = jax.tree.map(lambda x: x / 2 if jnp.issubdtype(x.dtype, jnp.floating) else x, first)
    alone, beside = (_first_value(apply, params, first, other) for other in (first, last))
    if not is_concrete(alone, beside):
        return
    if _is_half(alone):
        warnings.warn(
            f"f returns {alone.dtype}: its tangent kernel is only accurate to {float(jnp.finfo(alone.dtype).eps):.1g}; "
            "let f compute in float32",
            stacklevel=3,
        )
    first_value, second_value = (np.asarray(value, np.float64) for value in (alone, beside))
    largest = max(np.max(np.abs(value), initial=0) for value in (first_value, second_value))
    if np.any(np.abs(first_value - second_value) > np.sqrt(np.finfo(np.float32).eps) * largest):
        raise ValueError(
            "f(x) depends on the other points of the batch, so that it has no tangent kernel of pairs of points: use "
            "batch statistics that are fixed (evaluation mode), and take means over points outside f"
        )


@eqx.filter_jit
def _first_value(apply: Apply, params: PyTree, first: PyTree, other: PyTree) -> Array:
    """f of a point, evaluated together with another one."""
    f, start = trainable_function(apply, params)
    return f(start, jax.tree.map(lambda x, z: jnp.concatenate([x, z]), first, other))[0]


def scales(rates: PyTree, params: PyTree) -> PyTree:
    """One learning rate per parameter array; raises ValueError if one is negative or not finite."""
    for rate in jax.tree.leaves(rates):
        if is_concrete(rate) and not (np.all(np.asarray(rate) >= 0) and np.all(np.isfinite(np.asarray(rate)))):
            raise ValueError(f"rates must be positive, or 0 for layers that are not trained; got {rate}")
    return broadcast_over(rates, params)


def jacobian_rows(apply: Apply, params: PyTree, X: PyTree, rates: PyTree = 1.0) -> list[Float[Array, "n c _"]]:
    """∂f_c(x)/∂θ of every row, flattened, one array per layer (top-level entry with parameters), times √rate."""
    f, start = trainable_function(apply, params)
    scale = scales(rates, start)

    def of_one(x: Any) -> list[Array]:
        alone = jax.tree.map(lambda leaf: leaf[None], x)
        rows = jax.jacrev(lambda theta: f(theta, alone)[0].reshape(-1))(start)
        scaled = jax.tree.map(lambda r, leaf: jnp.sqrt(jnp.asarray(r, leaf.dtype)) * leaf, scale, rows)
        return [_flat(layer) for layer in parameter_layers(scaled)]

    return jax.vmap(of_one)(X)


def squared_gradients(apply: Apply, params: PyTree, X: PyTree, rates: PyTree = 1.0) -> Float[Array, " n"]:
    """Σ_c Σ_θ r_θ (∂f_c(x)/∂θ)² of every point, the diagonal of the trace kernel, in batches of points."""
    _, start = trainable_function(apply, params)
    row_bytes = 3 * sum(jnp.asarray(leaf).nbytes for leaf in jax.tree.leaves(start))

    def of_one(x: Any) -> Array:
        rows = jacobian_rows(apply, params, jax.tree.map(lambda leaf: leaf[None], x), rates)
        return jnp.sum(jnp.stack([jnp.sum(layer * layer) for layer in rows]))

    return jax.lax.map(
        of_one, X, batch_size=block_rows(row_bytes, n_points(X), min(memory_budget(), MAX_JACOBIAN_BYTES))
    )


def jacobian_kernels(
    apply: Apply, params: PyTree, X: PyTree, Z: PyTree, rates: PyTree, outputs: str
) -> tuple[Float[Array, "..."], ...]:
    """K_l = J_l(X) J_l(Z)ᵀ of every layer, with Jacobian rows limited by the memory budget.

    Parameters
    ----------
    apply : callable
        f(params, X).
    params : pytree
    X, Z : arrays or pytrees with a leading axis of points
        Z may be None, meaning X.
    rates : float or pytree
        Learning rates.
    outputs : {"full", "trace", "diagonal"}
        Treatment of several outputs, see `arrange_outputs`.

    Returns
    -------
    tuple of arrays
        One per layer.
    """
    other = X if Z is None else Z
    n, m = n_points(X), n_points(other)
    f, start = trainable_function(apply, params)
    outputs_of_one = output_shape(f, start, X)
    size = sum(jnp.asarray(leaf).nbytes for leaf in jax.tree.leaves(start))
    row_bytes = 3 * math.prod(outputs_of_one) * size  # a row, temporaries, both sides
    block = block_rows(row_bytes, max(n, m))
    if block >= max(n, m):
        right = jacobian_rows(apply, params, other, rates)
        if Z is None:
            kernels = [_contract_symmetric(b, outputs) for b in right]
        else:
            kernels = [_contract(a, b, outputs) for a, b in zip(jacobian_rows(apply, params, X, rates), right)]
    else:
        kernels = _contract_in_blocks(lambda x: jacobian_rows(apply, params, x, rates), X, other, outputs, block)
    return tuple(arrange_outputs(K, outputs, not outputs_of_one) for K in kernels)


def _contract_in_blocks(rows: Callable, X: Any, Z: Any, outputs: str, block: int) -> list[Array]:
    """`jacobian_kernels` in blocks of points."""

    def strip(x: Any) -> list[Array]:
        left = rows(x)
        return jax.lax.map(lambda z: [_contract(a, b, outputs) for a, b in zip(left, rows(z))], _batches(Z, block))

    def joined(K: Array) -> Array:
        K = jnp.swapaxes(K, 1, 2)  # (blocks of X, rows in a block, blocks of Z, rows in a block, outputs …)
        return K.reshape(K.shape[0] * block, K.shape[2] * block, *K.shape[4:])[: n_points(X), : n_points(Z)]

    return [joined(K) for K in jax.lax.map(strip, _batches(X, block))]


def _contract(A: Float[Array, "n c p"], B: Float[Array, "m c p"], outputs: str) -> Float[Array, "n m ..."]:
    """Contract two sets of Jacobian rows over the parameters."""
    formula = {"full": "icp,jkp->ijck", "trace": "icp,jcp->ij", "diagonal": "icp,jcp->ijc"}[outputs]
    return einsum(formula, A, B)


def _contract_symmetric(A: Float[Array, "n c p"], outputs: str) -> Float[Array, "n n ..."]:
    """The same of A with itself; the lower block is the transpose of the upper one."""
    half = A.shape[0] // 2
    if half < MIN_HALF:
        return _contract(A, A, outputs)
    above = _contract(A[:half], A[half:], outputs)
    below = jnp.swapaxes(above, 0, 1)
    rows = [_contract(A[:half], A[:half], outputs), above], [
        jnp.swapaxes(below, 2, 3) if outputs == "full" else below, _contract(A[half:], A[half:], outputs),
    ]  # fmt: skip
    return jnp.concatenate([jnp.concatenate(row, 1) for row in rows], 0)


def arrange_outputs(K: Float[Array, "n m ..."], outputs: str, scalar: bool) -> Float[Array, "n ..."]:
    """Public layout: (n, m) for a scalar output; else full (n, c, m, c), trace (n, m), diagonal (n, m, c)."""
    if outputs == "trace":
        return K
    if scalar:
        return K.reshape(K.shape[:2])
    return jnp.moveaxis(K, 2, 1) if outputs == "full" else K


def _flat(layer: Any) -> Float[Array, "c p"]:
    """Leaves of one layer as a matrix (outputs, parameters)."""
    leaves = jax.tree.leaves(layer)
    return jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], axis=1)
