"""One-pass SGD on a two-layer ReLU network whose target depends on k of d inputs, at a cost independent of d [E4].

Inputs (ε, g): ε uniform on {-1, 1}^k, which determines the target, and g ~ N(0, I_{d-k}). The network is
f = (1/N) Σ_j a_j relu(u_j·ε + v_j·g + b_j), in mean-field scaling: a batch of B samples with errors δ = f - y moves

    (u_j, v_j) ← (u_j, v_j) - Σ_β C_jβ (ε_β, g_β),    C_jβ = (η/B) δ_β a_j relu'(h_jβ),    a_j, b_j likewise.

Only V Vᵀ = L Lᵀ of the rows v_j is needed. With V = L Q, Q of orthonormal rows, the batch depends on q = g Qᵀ ~ N(0,
I_N), and the component of g orthogonal to Q enters only through C, which is independent of it: V' = (L - C q) Q + F R
with F Fᵀ = C Cᵀ and R an N × (d - k - N) Gaussian matrix, so that

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

from unlazy.core.arrays import dot, is_concrete, unit_roundoff


class OnlineNeurons(NamedTuple):
    """Parameters u, L, b and a."""

    relevant: Float[Array, "n k"]
    beside: Float[Array, "n n"]
    biases: Float[Array, " n"]
    heads: Float[Array, " n"]


class Batch(NamedTuple):
    """Sampled quantities ε, q and A."""

    bits: Float[Array, "B k"]
    beside: Float[Array, "B n"]
    rest: Float[Array, "n m"]


def start(key: PRNGKeyArray, width: int, k: int, d: Real[Array, ""] | int) -> OnlineNeurons:
    """Draw the initial network: weights N(0, 1/d), biases uniform on [-1, 1], readout weights alternating ±1."""
    one, two, three = jax.random.split(key, 3)
    root = jnp.sqrt(jnp.asarray(d, jnp.zeros(()).dtype))
    L = bartlett(two, width, d - k) / root
    biases = jax.random.uniform(three, (width,), minval=-1.0, maxval=1.0)
    return OnlineNeurons(jax.random.normal(one, (width, k)) / root, L, biases, 1.0 - 2 * (jnp.arange(width) % 2))


def bartlett(key: PRNGKeyArray, n: int, freedom: Real[Array, ""] | int) -> Float[Array, "n n"]:
    """Draw a triangular A with A Aᵀ ~ Wishart(freedom).

    χ² is drawn as the cube of a normal variable, as in training.descent.one_neuron.
    """
    drawn = jax.random.normal(key, (n, n))
    left = jnp.maximum(freedom - jnp.arange(n, dtype=drawn.dtype), 1.0)
    h = 2 / (9 * left)
    diagonal = jnp.sqrt(left * jnp.maximum(1 - h + jnp.sqrt(h) * jnp.diag(drawn), 0.0) ** 3)
    return jnp.tril(drawn, -1) + jnp.diag(diagonal)


def draw(key: PRNGKeyArray, size: int, neurons: OnlineNeurons, d: Real[Array, ""] | int) -> Batch:
    """Draw `size` independent samples."""
    one, two, three = jax.random.split(key, 3)
    n, k = neurons.relevant.shape
    bits = jax.random.rademacher(one, (size, k), neurons.heads.dtype)
    # float32 draws save half of the cost of a step; 2^23 distinct values suffice
    beside = jax.random.normal(two, (size, n), jnp.float32).astype(neurons.heads.dtype)
    return Batch(bits, beside, bartlett(three, n, d - k - n))


def update_neurons(
    neurons: OnlineNeurons, batch: Batch, target: Callable[[Array], Array], step_size: Real[Array, ""] | float
) -> OnlineNeurons:
    """Return the network after one batch; `target` takes (B, k) bits."""
    u, L, b, a = neurons
    n, size = len(a), batch.bits.shape[0]
    h = dot(batch.bits, u.T) + dot(batch.beside, L.T) + b
    out = jax.nn.relu(h)
    off = dot(out, a) / n - target(batch.bits)
    C = (step_size / size * off[:, None] * a * (h > 0)).T
    F = _factor(dot(C, C.T))
    M, P = L - dot(C, batch.beside), dot(F, batch.rest)
    return OnlineNeurons(u - dot(C, batch.bits), _factor(dot(M, M.T) + dot(P, P.T)), b - C.sum(1),
                   a - step_size / size * dot(off, out))  # fmt: skip


def _factor(S: Array) -> Array:
    """Return the triangular square root of S plus n roundings (neurons that the batch does not move have zero rows)."""
    n = S.shape[0]
    return jnp.linalg.cholesky(S + (2 * n * unit_roundoff(S.dtype) * jnp.trace(S)) * jnp.eye(n, dtype=S.dtype))


def fourier(neurons: OnlineNeurons, parts: tuple[tuple[int, ...], ...]) -> Float[Array, " p"]:
    """Return E f Π_{i∈S} ε_i for each part S, over all 2^k bit patterns with E relu(m + sz) = mΦ(m/s) + sφ(m/s)."""
    k = neurons.relevant.shape[1]
    bits = jnp.asarray(2.0 * ((np.arange(2**k)[:, None] >> np.arange(k)) & 1) - 1, neurons.heads.dtype)
    spread = jnp.sqrt(jnp.sum(neurons.beside**2, 1))
    m = dot(bits, neurons.relevant.T) + neurons.biases
    f = dot(m * norm.cdf(m / spread) + spread * norm.pdf(m / spread), neurons.heads) / len(neurons.heads)
    return jnp.stack([jnp.mean(f * jnp.prod(bits[:, list(S)], 1)) for S in parts])


def samples_until(
    neurons: OnlineNeurons, target: Callable[[Array], Array], parts: tuple[tuple[int, ...], ...],
    levels: Float[Array, " p"], *, step_size: Real[Array, ""] | float, batch_size: int,
    most: Real[Array, ""] | float, d: Real[Array, ""] | int, key: PRNGKeyArray,
) -> Float[Array, " p"]:  # fmt: skip
    """Return the number of samples after which the coefficient of each part first reaches its level.

    Infinite if `most` samples do not suffice; NaN if the network becomes NaN.
    """
    n, k = neurons.relevant.shape
    if is_concrete(d) and not float(d) >= k + 2 * n:
        raise ValueError(f"{n} neurons on {k} bits need at least {k + 2 * n} inputs, got {d=}; use fewer neurons")

    def going(state: tuple) -> Array:
        _, found, at = state
        return jnp.isinf(found).any() & (at < most)

    def once(state: tuple) -> tuple:
        neurons, found, at = state
        samples = draw(jax.random.fold_in(key, (at / batch_size).astype(int)), batch_size, neurons, d)
        neurons, at = update_neurons(neurons, samples, target, step_size), at + batch_size
        return neurons, jnp.where(jnp.isinf(found) & (fourier(neurons, parts) >= levels), at, found), at

    zero = jnp.zeros((), levels.dtype)
    last, found, _ = lax.while_loop(going, once, (neurons, jnp.full(len(parts), jnp.inf, levels.dtype), zero))
    return jnp.where(jnp.isinf(found) & jnp.isnan(last.heads).any(), jnp.nan, found)
