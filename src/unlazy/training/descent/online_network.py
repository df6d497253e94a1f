"""One-pass SGD on a two-layer ReLU network that learns from k bits of d inputs, at a cost that d does not enter [E4].

Inputs (ε, g): ε uniform on {-1, 1}^k, all that the target reads, and g ~ N(0, I_{d-k}). The network is
f = (1/N) Σ_j a_j relu(u_j·ε + v_j·g + b_j), on the mean-field scale: a batch of B samples with errors δ = f - y moves

    (u_j, v_j) ← (u_j, v_j) - Σ_β C_jβ (ε_β, g_β),    C_jβ = (η/B) δ_β a_j relu'(h_jβ),    a_j, b_j likewise.

Of the rows v_j only V Vᵀ = L Lᵀ is ever read. With V = L Q, Q orthonormal rows, the batch reads q = g Qᵀ ~ N(0, I_N),
and what g has beside Q enters through C alone, which does not know it: V' = (L - C q) Q + F R with F Fᵀ = C Cᵀ and R
an N × (d - k - N) Gaussian matrix, so that

    L' L'ᵀ = (L - C q)(L - C q)ᵀ + (F A)(F A)ᵀ,    A Aᵀ ~ Wishart(d - k - N), Bartlett's triangular factor.

Setting: Abbe, Boix-Adserà and Misiakiewicz (COLT 2022).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.stats import norm
from jaxtyping import Array, Float, PRNGKeyArray, Real

from unlazy.core.arrays import concrete
from unlazy.core.linalg import dot
from unlazy.core.precision import rounding


class Neurons(NamedTuple):
    """u, L, b and a."""

    relevant: Float[Array, "n k"]
    beside: Float[Array, "n n"]
    biases: Float[Array, " n"]
    heads: Float[Array, " n"]


class Batch(NamedTuple):
    """ε, q and A."""

    bits: Float[Array, "B k"]
    beside: Float[Array, "B n"]
    rest: Float[Array, "n m"]


def start(key: PRNGKeyArray, width: int, k: int, d: Real[Array, ""] | int) -> Neurons:
    """Weights N(0, 1/d), biases uniform on [-1, 1], heads ±1 by turns."""
    one, two, three = jax.random.split(key, 3)
    root = jnp.sqrt(jnp.asarray(d, jnp.zeros(()).dtype))
    L = bartlett(two, width, d - k) / root
    biases = jax.random.uniform(three, (width,), minval=-1.0, maxval=1.0)
    return Neurons(jax.random.normal(one, (width, k)) / root, L, biases, 1.0 - 2 * (jnp.arange(width) % 2))


def bartlett(key: PRNGKeyArray, n: int, freedom: Real[Array, ""] | int) -> Float[Array, "n n"]:
    """A triangular A with A Aᵀ ~ Wishart(freedom); its χ² by the cube of a normal number, as in
    training.descent.one_neuron."""
    drawn = jax.random.normal(key, (n, n))
    left = jnp.maximum(freedom - jnp.arange(n, dtype=drawn.dtype), 1.0)
    h = 2 / (9 * left)
    diagonal = jnp.sqrt(left * jnp.maximum(1 - h + jnp.sqrt(h) * jnp.diag(drawn), 0.0) ** 3)
    return jnp.tril(drawn, -1) + jnp.diag(diagonal)


def draw(key: PRNGKeyArray, size: int, neurons: Neurons, d: Real[Array, ""] | int) -> Batch:
    """`size` fresh samples."""
    one, two, three = jax.random.split(key, 3)
    n, k = neurons.relevant.shape
    bits = jax.random.rademacher(one, (size, k), neurons.heads.dtype)
    # float32 draws are half of what a step costs otherwise, and 2^23 values are enough to draw from
    beside = jax.random.normal(two, (size, n), jnp.float32).astype(neurons.heads.dtype)
    return Batch(bits, beside, bartlett(three, n, d - k - n))


def moved(neurons: Neurons, batch: Batch, target: Callable[[Array], Array], step: Real[Array, ""] | float) -> Neurons:
    """The network after one batch; `target` takes (B, k) bits."""
    u, L, b, a = neurons
    n, size = len(a), batch.bits.shape[0]
    h = dot(batch.bits, u.T) + dot(batch.beside, L.T) + b
    out = jax.nn.relu(h)
    off = dot(out, a) / n - target(batch.bits)
    C = (step / size * off[:, None] * a * (h > 0)).T
    F = _factor(dot(C, C.T))
    M, P = L - dot(C, batch.beside), dot(F, batch.rest)
    return Neurons(u - dot(C, batch.bits), _factor(dot(M, M.T) + dot(P, P.T)), b - C.sum(1),
                   a - step / size * dot(off, out))  # fmt: skip


def _factor(S: Array) -> Array:
    """Triangular square root; a neuron that the batch leaves alone has zero rows, so n roundings are added."""
    n = S.shape[0]
    return jnp.linalg.cholesky(S + (2 * n * rounding(S.dtype) * jnp.trace(S)) * jnp.eye(n, dtype=S.dtype))


def fourier(neurons: Neurons, parts: tuple[tuple[int, ...], ...]) -> Float[Array, " p"]:
    """E f Π_{i∈S} ε_i for each part S, by all 2^k patterns and E relu(m + sz) = mΦ(m/s) + sφ(m/s)."""
    k = neurons.relevant.shape[1]
    bits = jnp.asarray(2.0 * ((np.arange(2**k)[:, None] >> np.arange(k)) & 1) - 1, neurons.heads.dtype)
    spread = jnp.sqrt(jnp.sum(neurons.beside**2, 1))
    m = dot(bits, neurons.relevant.T) + neurons.biases
    f = dot(m * norm.cdf(m / spread) + spread * norm.pdf(m / spread), neurons.heads) / len(neurons.heads)
    return jnp.stack([jnp.mean(f * jnp.prod(bits[:, list(S)], 1)) for S in parts])


def samples_until(
    key: PRNGKeyArray, neurons: Neurons, target: Callable[[Array], Array], parts: tuple[tuple[int, ...], ...],
    levels: Float[Array, " p"], *, step: Real[Array, ""] | float, batch: int, most: Real[Array, ""] | float,
    d: Real[Array, ""] | int,
) -> Float[Array, " p"]:  # fmt: skip
    """Samples after which each part's coefficient first has its level; infinite where `most` samples do not do, not a
    number where the network has become none."""
    n, k = neurons.relevant.shape
    if concrete(d) and not float(d) >= k + 2 * n:
        raise ValueError(
            f"{n} neurons on {k} bits are followed from {k + 2 * n} inputs on, got {d=}; take fewer neurons"
        )

    def going(state: tuple) -> Array:
        _, found, at = state
        return jnp.isinf(found).any() & (at < most)

    def once(state: tuple) -> tuple:
        neurons, found, at = state
        samples = draw(jax.random.fold_in(key, (at / batch).astype(int)), batch, neurons, d)
        neurons, at = moved(neurons, samples, target, step), at + batch
        return neurons, jnp.where(jnp.isinf(found) & (fourier(neurons, parts) >= levels), at, found), at

    zero = jnp.zeros((), levels.dtype)
    last, found, _ = lax.while_loop(going, once, (neurons, jnp.full(len(parts), jnp.inf, levels.dtype), zero))
    return jnp.where(jnp.isinf(found) & jnp.isnan(last.heads).any(), jnp.nan, found)
