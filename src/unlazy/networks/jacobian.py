"""Tangent kernels of any function of (parameters, inputs): reverse mode row by row, contracted block by block."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.linear import einsum
from unlazy.core.memory import block_rows
from unlazy.networks.parametrisation import layers_of, split, spread_over

Apply = Callable[[Any, Array], Array]


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


def of_parameters(apply: Apply, params: Any) -> tuple[Apply, Any]:
    """The function of those leaves that can be differentiated, the others held fixed; and those leaves."""
    start, fixed = split(params)
    return lambda theta, X: apply(eqx.combine(theta, fixed), X), start


def jacobian_rows(apply: Apply, params: Any, X: Float[Array, "n ..."], rates: Any = 1.0) -> list[Float[Array, "n c _"]]:
    """∂f_c(x)/∂θ of every row, flattened, one array per layer (top-level entry with parameters), times √rate."""
    f, start = of_parameters(apply, params)
    scale = spread_over(rates, start)

    def of_one(x: Array) -> list[Array]:
        rows = jax.jacrev(lambda theta: f(theta, x[None])[0].reshape(-1))(start)
        scaled = jax.tree.map(lambda r, leaf: jnp.sqrt(jnp.asarray(r, leaf.dtype)) * leaf, scale, rows)
        return [_flat(layer) for layer in layers_of(scaled)]

    return jax.vmap(of_one)(X)


def jacobian_kernels(
    apply: Apply, params: Any, X: Float[Array, "n ..."], Z: Float[Array, "m ..."] | None, rates: Any, outputs: str
) -> tuple[Float[Array, "..."], ...]:
    """K_l = J_l(X) J_l(Z)ᵀ of every layer; never more Jacobian rows at once than the memory budget allows."""
    other = X if Z is None else Z
    n, m = X.shape[0], other.shape[0]
    f, start = of_parameters(apply, params)
    one = jax.eval_shape(f, start, X[:1])
    size = sum(jnp.asarray(leaf).nbytes for leaf in jax.tree.leaves(start))
    row_bytes = 3 * one.size * size  # a row, its making, both sides
    block = block_rows(row_bytes, max(n, m))
    if block >= max(n, m):
        right = jacobian_rows(apply, params, other, rates)
        left = right if Z is None else jacobian_rows(apply, params, X, rates)
        kernels = [_contract(a, b, outputs) for a, b in zip(left, right)]
    else:
        kernels = _in_blocks(lambda x: jacobian_rows(apply, params, x, rates), X, other, outputs, block)
    return tuple(arranged(K, outputs, len(one.shape) == 1) for K in kernels)


def _in_blocks(rows: Callable, X: Array, Z: Array, outputs: str, block: int) -> list[Array]:
    def blocks_of(A: Array) -> Array:
        return jnp.pad(A, ((0, -len(A) % block), *((0, 0),) * (A.ndim - 1))).reshape(-1, block, *A.shape[1:])

    def strip(x: Array) -> list[Array]:
        left = rows(x)
        return jax.lax.map(lambda z: [_contract(a, b, outputs) for a, b in zip(left, rows(z))], blocks_of(Z))

    def joined(K: Array) -> Array:
        K = jnp.swapaxes(K, 1, 2)  # (blocks of X, rows in a block, blocks of Z, rows in a block, outputs …)
        return K.reshape(K.shape[0] * block, K.shape[2] * block, *K.shape[4:])[: len(X), : len(Z)]

    return [joined(K) for K in jax.lax.map(strip, blocks_of(X))]


def _contract(A: Float[Array, "n c p"], B: Float[Array, "m c p"], outputs: str) -> Float[Array, "n m ..."]:
    formula = {"full": "icp,jkp->ijck", "trace": "icp,jcp->ij", "diagonal": "icp,jcp->ijc"}[outputs]
    return einsum(formula, A, B)


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
