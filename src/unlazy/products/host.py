"""Entries of a kernel and their derivatives for NumPy arrays: one compilation per kernel, whatever the shapes.

A search over bandwidths and metrics on a thousand rows makes hundreds of small Grams of many shapes; there LAPACK on
the host is the fast solver, and compiling each shape would cost more than all of them. The formula runs on flat pieces
of one length, the last ones padded.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from unlazy.core.linear import dot
from unlazy.kernels.admit import host_squares
from unlazy.kernels.base import InnerProductKernel
from unlazy.kernels.radial import RadialKernel
from unlazy.theory.coincidence import coincident, rounding_floor

PIECE = 2**15
"""Entries evaluated at once: small enough to stay in the cache, large enough to hide the call."""

Square = Float[np.ndarray, "n m"]


def inner_products(F: Float[np.ndarray, "n e"], G: Float[np.ndarray, "m e"] | None = None) -> tuple[Any, Any, Any]:
    """⟨x,z⟩, ⟨x,x⟩ and ⟨z,z⟩; pairs closer than rounding are made coincident, x with itself exactly."""
    H = F if G is None else G
    xx, zz = host_squares(F), host_squares(H)
    xz = dot(F, H.T)
    middle = 0.5 * (xx[:, None] + zz)
    close = coincident(middle - xz, middle, rounding_floor(F.shape[1], F.dtype))
    if G is None:
        np.fill_diagonal(close, True)
    np.copyto(xz, middle, where=close)
    return xz, xx, zz


def squared_distances(F: Float[np.ndarray, "n e"], G: Float[np.ndarray, "m e"] | None = None) -> Square:
    """‖x-z‖² of all pairs, zero where rounding cannot tell it from zero."""
    H = F if G is None else G
    xx, zz = host_squares(F), host_squares(H)
    D = dot(F, H.T)
    D *= -2
    D += xx[:, None]
    D += zz
    # against the largest norms, not those of each pair: one pass over D
    largest = 2 * (xx.max(initial=0) + zz.max(initial=0))
    np.copyto(D, 0, where=coincident(D, largest, rounding_floor(F.shape[1], F.dtype)))
    if G is None:
        np.fill_diagonal(D, 0)
    return D


def entries(kernel: InnerProductKernel, xz: Square, xx: Float[np.ndarray, " n"], zz: Float[np.ndarray, " m"]) -> Square:
    """k of every pair."""
    return _pieces(_entry, kernel, xz, xx, zz)[0]


def derivatives(
    kernel: InnerProductKernel, xz: Square, xx: Float[np.ndarray, " n"], zz: Float[np.ndarray, " m"]
) -> tuple[Square, Square]:
    """∂k/∂⟨x,z⟩ and ∂k/∂⟨x,x⟩ of every pair; at coincident points the kink's derivative is left out."""
    return _pieces(_derivative, kernel, xz, xx, zz)


def radial_entries(kernel: RadialKernel, D: Square) -> Square:
    """k as a function of the squared distance."""
    return _flat(_of_distance, kernel, D)


def radial_derivatives(kernel: RadialKernel, D: Square) -> Square:
    """dk/d‖x-z‖²; at coincident points zero for kernels with a kink there."""
    return _flat(_by_distance, kernel, D)


def embedding(kernel: InnerProductKernel, eye: Float[np.ndarray, "r r"], inputs: int) -> Float[np.ndarray, "r e"]:
    """What the kernel's linear `embed` does to the unit vectors."""
    if type(kernel).embed is InnerProductKernel.embed:
        return eye
    return np.asarray(_embed(kernel, eye, inputs), eye.dtype)


@functools.partial(jax.jit, static_argnames="inputs")
def _embed(kernel: InnerProductKernel, eye: Any, inputs: int) -> Any:
    return kernel.embed(eye, inputs)


@jax.jit
def _entry(kernel: InnerProductKernel, xz: Any, xx: Any, zz: Any) -> Any:
    return (kernel.entry(xz, xx, zz),)


@jax.jit
def _derivative(kernel: InnerProductKernel, xz: Any, xx: Any, zz: Any) -> Any:
    one, zero = jnp.ones_like(xz), jnp.zeros_like(xz)
    along = functools.partial(jax.jvp, kernel.entry, (xz, xx, zz))
    return along((one, zero, zero))[1], along((zero, one, zero))[1]


@jax.jit
def _of_distance(kernel: RadialKernel, D: Any) -> Any:
    return kernel.of_distance(D)


@jax.jit
def _by_distance(kernel: RadialKernel, D: Any) -> Any:
    return jax.jvp(kernel.of_distance, (D,), (jnp.ones_like(D),))[1]


def _flat(function: Any, kernel: RadialKernel, D: np.ndarray) -> np.ndarray:
    out, source = np.empty(D.size, D.dtype), np.ascontiguousarray(D).reshape(-1)
    whole = D.size - D.size % PIECE
    for i in range(0, whole, PIECE):
        out[i : i + PIECE] = function(kernel, source[i : i + PIECE])
    if whole < D.size:
        rest = np.zeros(PIECE, D.dtype)
        rest[: D.size - whole] = source[whole:]
        out[whole:] = np.asarray(function(kernel, rest))[: D.size - whole]
    return out.reshape(D.shape)


def _pieces(function: Any, kernel: InnerProductKernel, xz: np.ndarray, xx: np.ndarray, zz: np.ndarray) -> Any:
    n, m = xz.shape
    outputs: list[np.ndarray] = []
    rows = max(1, PIECE // m)
    for i in range(0, n, rows):
        part = slice(i, min(i + rows, n))
        for j in range(0, m, PIECE):
            block = slice(j, min(j + PIECE, m))
            shape = (part.stop - part.start, block.stop - block.start)
            count = shape[0] * shape[1]
            piece = np.ones((3, PIECE), xz.dtype)  # padding at x = z = 1, where every formula is finite
            piece[0, :count] = xz[part, block].ravel()
            piece[1, :count] = np.broadcast_to(xx[part, None], shape).ravel()
            piece[2, :count] = np.broadcast_to(zz[None, block], shape).ravel()
            found = function(kernel, *piece)
            outputs = outputs or [np.empty((n, m), xz.dtype) for _ in found]
            for out, values in zip(outputs, found):
                out[part, block] = np.asarray(values)[:count].reshape(shape)
    return tuple(outputs)
