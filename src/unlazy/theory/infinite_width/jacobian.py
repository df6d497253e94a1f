"""Tangent kernels of any function of (parameters, inputs): Jacobians contracted block by block, or none at all [C5]."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.arrays import count
from unlazy.core.linalg import einsum, with_all_digits
from unlazy.core.memory import block_rows, memory_budget
from unlazy.core.pytrees import layers_of, split, spread_over

Apply = Callable[[Any, Any], Array]
COLUMNS = 8
"""Columns of a product that share their passes: each holds a gradient."""
HALVED = 8
"""Points to a half from which a kernel of points with themselves saves the block below its diagonal."""
AT_ONCE = 2**28
"""Bytes of Jacobian rows that are only squared and summed: more at once would not be faster."""


def tangent_product(
    apply: Apply,
    params: Any,
    X: Float[Array, "n ..."],
    V: Float[Array, "m ..."],
    Z: Float[Array, "m ..."] | None = None,
    *,
    rates: Any = 1.0,
) -> Float[Array, "n ..."]:
    """K(X, Z) V without the matrix: a reverse pass through Z, then a forward one through X, memory as for a gradient.

    V has the shape of apply(params, Z). Z is X when left out.
    """
    f, start = of_parameters(apply, params)
    _, pull = jax.vjp(lambda theta: f(theta, X if Z is None else Z), start)
    (gradient,) = pull(V)
    move = jax.tree.map(lambda r, g: jnp.asarray(r * g, g.dtype), spread_over(rates, start), gradient)
    return jax.jvp(lambda theta: f(theta, X), (start,), (move,))[1]


def batched_product(
    apply: Apply, params: Any, X: Any, Z: Any, V: Float[Array, "m k"], rates: Any = 1.0, batch: int = 1024
) -> Float[Array, "n k"]:
    """Σ_c J_c(X) R J_c(Z)ᵀ V over outputs c, for k columns, without a matrix or a Jacobian [C5].

    Gradients are summed over batches of Z, then carried forward through batches of X: memory of the order of the
    parameters and of one batch, whatever n is. Novak, Sohl-Dickstein and Schoenholz (2022).
    """
    f, start = of_parameters(apply, params)
    scale = spread_over(rates, start)
    outputs = jax.eval_shape(f, start, _rows(X, 0, 1)).shape[1:]
    basis = jnp.eye(math.prod(outputs), dtype=V.dtype).reshape(-1, *outputs)
    left, right = (min(batch, count(side)) for side in (X, Z))
    columns = jnp.pad(V, ((0, -count(Z) % right), (0, 0))).T  # no weight on what fills up the last batch

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

        return jax.lax.map(pushed, _batches(X, left)).reshape(-1)[: count(X)]

    def of_output(total: Array, output: Array) -> tuple[Array, None]:
        found = jax.lax.map(lambda v: of_column(v, output), columns, batch_size=COLUMNS)
        return total + found.T.astype(V.dtype), None

    return jax.lax.scan(of_output, jnp.zeros((count(X), V.shape[1]), V.dtype), basis)[0]


def _rows(X: Any, first: int, last: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[first:last], X)


def _batches(X: Any, batch: int) -> Any:
    """Cut into batches of one size on a new leading axis; the last is filled up with copies of the first point."""
    n = count(X)

    def cut(leaf: Array) -> Array:
        return jnp.concatenate([leaf, jnp.repeat(leaf[:1], -n % batch, 0)]).reshape(-1, batch, *leaf.shape[1:])

    return jax.tree.map(cut, X)


def of_parameters(apply: Apply, params: Any) -> tuple[Apply, Any]:
    """The function of those leaves that can be differentiated, the others held fixed; and those leaves."""
    start, fixed = split(params)
    return with_all_digits(lambda theta, X: apply(eqx.combine(theta, fixed), X)), start


def jacobian_rows(apply: Apply, params: Any, X: Any, rates: Any = 1.0) -> list[Float[Array, "n c _"]]:
    """∂f_c(x)/∂θ of every row, flattened, one array per layer (top-level entry with parameters), times √rate."""
    f, start = of_parameters(apply, params)
    scale = spread_over(rates, start)

    def of_one(x: Any) -> list[Array]:
        alone = jax.tree.map(lambda leaf: leaf[None], x)
        rows = jax.jacrev(lambda theta: f(theta, alone)[0].reshape(-1))(start)
        scaled = jax.tree.map(lambda r, leaf: jnp.sqrt(jnp.asarray(r, leaf.dtype)) * leaf, scale, rows)
        return [_flat(layer) for layer in layers_of(scaled)]

    return jax.vmap(of_one)(X)


def squared_gradients(apply: Apply, params: Any, X: Any, rates: Any = 1.0) -> Float[Array, " n"]:
    """Σ_c Σ_θ r_θ (∂f_c(x)/∂θ)² of every point, the diagonal of the trace kernel: some points' Jacobians at a time."""
    _, start = of_parameters(apply, params)
    row_bytes = 3 * sum(jnp.asarray(leaf).nbytes for leaf in jax.tree.leaves(start))

    def of_one(x: Any) -> Array:
        rows = jacobian_rows(apply, params, jax.tree.map(lambda leaf: leaf[None], x), rates)
        return jnp.sum(jnp.stack([jnp.sum(layer * layer) for layer in rows]))

    return jax.lax.map(of_one, X, batch_size=block_rows(row_bytes, count(X), min(memory_budget(), AT_ONCE)))


def jacobian_kernels(
    apply: Apply, params: Any, X: Any, Z: Any, rates: Any, outputs: str
) -> tuple[Float[Array, "..."], ...]:
    """K_l = J_l(X) J_l(Z)ᵀ of every layer; never more Jacobian rows at once than the memory budget allows."""
    other = X if Z is None else Z
    n, m = count(X), count(other)
    f, start = of_parameters(apply, params)
    one = jax.eval_shape(f, start, _rows(X, 0, 1))
    size = sum(jnp.asarray(leaf).nbytes for leaf in jax.tree.leaves(start))
    row_bytes = 3 * one.size * size  # a row, its making, both sides
    block = block_rows(row_bytes, max(n, m))
    if block >= max(n, m):
        right = jacobian_rows(apply, params, other, rates)
        if Z is None:
            kernels = [_own(b, outputs) for b in right]
        else:
            kernels = [_contract(a, b, outputs) for a, b in zip(jacobian_rows(apply, params, X, rates), right)]
    else:
        kernels = _in_blocks(lambda x: jacobian_rows(apply, params, x, rates), X, other, outputs, block)
    return tuple(arranged(K, outputs, len(one.shape) == 1) for K in kernels)


def _in_blocks(rows: Callable, X: Any, Z: Any, outputs: str, block: int) -> list[Array]:
    def strip(x: Any) -> list[Array]:
        left = rows(x)
        return jax.lax.map(lambda z: [_contract(a, b, outputs) for a, b in zip(left, rows(z))], _batches(Z, block))

    def joined(K: Array) -> Array:
        K = jnp.swapaxes(K, 1, 2)  # (blocks of X, rows in a block, blocks of Z, rows in a block, outputs …)
        return K.reshape(K.shape[0] * block, K.shape[2] * block, *K.shape[4:])[: count(X), : count(Z)]

    return [joined(K) for K in jax.lax.map(strip, _batches(X, block))]


def _contract(A: Float[Array, "n c p"], B: Float[Array, "m c p"], outputs: str) -> Float[Array, "n m ..."]:
    formula = {"full": "icp,jkp->ijck", "trace": "icp,jcp->ij", "diagonal": "icp,jcp->ijc"}[outputs]
    return einsum(formula, A, B)


def _own(A: Float[Array, "n c p"], outputs: str) -> Float[Array, "n n ..."]:
    """The same of A with itself: the block below the diagonal is that above it, turned."""
    half = A.shape[0] // 2
    if half < HALVED:
        return _contract(A, A, outputs)
    above = _contract(A[:half], A[half:], outputs)
    below = jnp.swapaxes(above, 0, 1)
    rows = [_contract(A[:half], A[:half], outputs), above], [
        jnp.swapaxes(below, 2, 3) if outputs == "full" else below, _contract(A[half:], A[half:], outputs),
    ]  # fmt: skip
    return jnp.concatenate([jnp.concatenate(row, 1) for row in rows], 0)


def arranged(K: Float[Array, "n m ..."], outputs: str, scalar: bool) -> Float[Array, "n ..."]:
    """The public layout: (n, m) of one scalar output; else full (n, c, m, c), trace (n, m), diagonal (n, m, c)."""
    if outputs == "trace":
        return K
    if scalar:
        return K.reshape(K.shape[:2])
    return jnp.moveaxis(K, 2, 1) if outputs == "full" else K


def _flat(layer: Any) -> Float[Array, "c p"]:
    leaves = jax.tree.leaves(layer)
    return jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], axis=1)
