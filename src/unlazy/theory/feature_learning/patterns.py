"""Hidden patterns: exact gradient signal, and lower bounds for fixed features and statistical queries [P4-P6].

With x = Mφ, φ centered and scaled, a neuron σ(w·x + b), q = Mᵀw and a network whose hinge is active everywhere (f = 0
at an antisymmetric start), the gradient of the neuron is -a Σ_j M_j T_j,

    T_j = E[y φ_j σ'(Σ_l φ_l q_l + b)]                                                          [P4].

Patterns outside A are independent, so the k relevant ones (2^k states) and φ_j itself are enumerated, and the sum over
the other background patterns is a Gaussian of the same variance by the central limit theorem. Neuron noise ξ ~ N(0, s²)
adds to that variance.

Shi, Wei and Liang, A theoretical analysis on feature learning in neural networks (ICLR 2022).
"""

import itertools
import math
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array, Float

from unlazy.core.arrays import dot
from unlazy.core.errors import check_positive_integer


class RelevantPatterns(NamedTuple):
    """All states of the k relevant patterns: bits, probability, label ±1."""

    bits: Float[np.ndarray, "states k"]
    probability: Float[np.ndarray, " states"]
    label: Float[np.ndarray, " states"]


def relevant_patterns(k: int, positive: Iterable[int], uniform_part: float) -> RelevantPatterns:
    """The 2^k states of A under the mixture of [P2].

    Parameters
    ----------
    k : int
        Number of relevant patterns, at most 16.
    positive : iterable of int
        Numbers of active patterns with label +1.
    uniform_part : float
        Probability of a uniform state; otherwise all are on or all are off.

    Returns
    -------
    RelevantPatterns

    Examples
    --------
    >>> from unlazy.theory.feature_learning.patterns import relevant_patterns
    >>> relevant_patterns(3, (1, 3), 0.5).probability.sum()
    np.float64(1.0)
    """
    if check_positive_integer("k (the relevant patterns)", k) > 16:
        raise ValueError(f"2^k states are enumerated: k must be at most 16, got {k}")
    bits = np.array(list(itertools.product((0.0, 1.0), repeat=k)))
    count = bits.sum(1)
    probability = uniform_part / 2**k + (1 - uniform_part) / 2 * ((count == 0) | (count == k))
    return RelevantPatterns(bits, probability, np.where(np.isin(count, list(positive)), 1.0, -1.0))


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def smoothed_ramp(z: Float[Array, "*s"], spread: float) -> Float[Array, "*s"]:
    """E min(1, max(z + ξ, 0)) for ξ ~ N(0, spread²): truncated ReLU [P3] of a noisy neuron, in closed form."""
    return _ramp(z, spread) - _ramp(z - 1, spread)


@smoothed_ramp.defjvp
def _smoothed_ramp_jvp(spread, primals, tangents):
    """The derivative simplifies to `smoothed_slope`: half the work and no cancellation."""
    (z,), (dz,) = primals, tangents
    return smoothed_ramp(z, spread), smoothed_slope(z, spread) * dz


def smoothed_slope(z: Float[Array, "*s"], spread: Float[Array, "*t"] | float) -> Float[Array, "*u"]:
    """Derivative of `smoothed_ramp`, P(0 < z + ξ < 1)."""
    return ndtr(z / spread) - ndtr((z - 1) / spread)


def gradient_components(
    q: Float[Array, "w D"], b: Float[Array, " w"], patterns: RelevantPatterns, *, background: float, scale: float,
    spread: float,
) -> Float[Array, "w D"]:  # fmt: skip
    """T_j of every neuron and pattern [P4], without sampling. Use float64, since the sums cancel.

    Parameters
    ----------
    q : array of shape (w, D)
        Coordinates of the neurons in the dictionary; A is the first k patterns.
    b : array of shape (w,)
        Biases.
    patterns : RelevantPatterns
    background : float
        Probability of a pattern outside A.
    scale : float
        σ̃.
    spread : float
        Standard deviation of the neuron noise.

    Returns
    -------
    array of shape (w, D)
    """
    k = patterns.bits.shape[1]
    phi = jnp.asarray((patterns.bits - 0.5) / scale, q.dtype)
    signed = jnp.asarray(patterns.probability * patterns.label, q.dtype)
    mean = dot(q[:, :k], phi.T) + b[:, None]  # neurons × states
    variance = background * (1 - background) / scale**2 * q[:, k:] ** 2
    total = jnp.sum(variance, 1, keepdims=True) + spread**2
    inside = dot(signed * smoothed_slope(mean, jnp.sqrt(total)), phi)

    def outside(value: float) -> Array:
        """Σ_states ± P(state) P(0 < argument < 1) with φ_j = value, for every neuron and j outside A."""
        shifted = mean[:, None, :] + value * q[:, k:, None]
        return dot(smoothed_slope(shifted, jnp.sqrt(total - variance)[..., None]), signed)

    on, off = (1 - background) / scale, -background / scale
    beyond = background * on * outside(on) + (1 - background) * off * outside(off)
    return jnp.concatenate([inside, beyond], 1)


def signal_to_noise(T: Float[Array, "w D"], k: int) -> Float[Array, " w"]:
    """|mean of T_j over A| divided by the root mean square of T_j outside A, for every neuron."""
    signal, noise = jnp.abs(jnp.mean(T[:, :k], 1)), jnp.sqrt(jnp.mean(T[:, k:] ** 2, 1))
    return signal / jnp.maximum(noise, jnp.finfo(T.dtype).tiny)


def fixed_feature_loss(features: float, norm: float, k: int, share: float) -> float:
    """Lower bound on the hinge loss of N data-independent features on some task [P5], Theorem 2.

    For features in [-1, 1] with ‖w‖ ≤ B: p_0 (1 - √(2N) B/2^k), and 0 where that is negative: no
    statement once √(2N) B reaches 2^k.

    Parameters
    ----------
    features : float
        N.
    norm : float
        B.
    k : int
        Number of relevant patterns.
    share : float
        p_0.

    Returns
    -------
    float

    Examples
    --------
    >>> from unlazy.theory.feature_learning.patterns import fixed_feature_loss
    >>> fixed_feature_loss(8, 1.0, 3, 0.5)
    0.25
    """
    return max(0.0, share * (1 - math.sqrt(2 * features) * norm / 2**k))


def fixed_features_needed(loss: float, norm: float, k: int, share: float) -> float:
    """Smallest number of features of norm bound B for which Theorem 2 allows a hinge loss of `loss` [P5]."""
    return max(0.0, (1 - loss / share) * 2**k / norm) ** 2 / 2


def queries_needed(dictionary: int, k: int) -> float:
    """½ C(D, k)^{1/3}, the lower bound of Theorem 3 [P6].

    Without input structure either the number of statistical queries or the inverse of their tolerance must be at least
    that for an error below ½ - C(D, k)^{-3}.
    """
    return 0.5 * math.comb(check_positive_integer("dictionary (its size)", dictionary), k) ** (1 / 3)


def _ramp(z: Array, spread: float) -> Array:
    """E max(z + ξ, 0) = z Φ(z/s) + s φ(z/s)."""
    t = z / spread
    return z * ndtr(t) + spread * jnp.exp(-0.5 * t * t) / math.sqrt(2 * math.pi)
