"""Bayesian adaptive kernel [M4]: features of an infinitely wide network under the posterior.

f = (1/(γ_0 w)) Σ_i a_i φ(h_i) with prior N(0, I) and noise of variance λ/(γ_0² w): as w → ∞ neurons are independent,

p(h) ∝ N(h; 0, K^x) exp(½ γ_0² Σ_k (Δ_k·φ(h))²),  Φ = ⟨φ(h)φ(h)ᵀ⟩,  Δ = (Φ + λI)⁻¹ y,  f = Φ Δ.

Neurons are Markov chains that move by elliptical slice sampling (Murray, Adams and MacKay 2010), which needs no step
size; Δ is updated from their Φ. Lauditi, Bordelon and Pehlevan, Adaptive kernel predictors from feature-learning
infinite limits of neural networks (2025).
"""

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.arrays import Labels, Points, as_points, dot
from unlazy.core.arrays import precision as in_precision
from unlazy.core.errors import check_positive_integer
from unlazy.core.results import Evidence, FitDescription
from unlazy.kernels.networks.adaptive import AdaptiveKernel
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.training.options import check_draws
from unlazy.training.rich.initialization import coordinates, symmetric_normals
from unlazy.training.rich.limit import check_richness, validate_data

DAMPING = 0.2
"""Share of the new Δ after every sweep."""


class Chains(NamedTuple):
    """Neurons, Δ, and the running mean of Φ over sweeps."""

    w: Float[Array, "N r"]
    pull: Float[Array, "n c"]
    Phi: Float[Array, "n n"]


class AdaptiveKernelFit(eqx.Module):
    """Adaptive kernel and the posterior mean.

    Attributes
    ----------
    kernel : AdaptiveKernel
        The kernel Φ at any points.
    X : array of shape (n, d)
        Training points.
    pull : array of shape (n, c)
        Coefficients Δ.
    gram : array of shape (n, n)
        Φ at the training points.
    evidence : Evidence
        Convergence of the chains.
    outputs : tuple of int
        Shape of one prediction.
    """

    kernel: AdaptiveKernel
    X: Float[Array, "n d"]
    pull: Float[Array, "n c"]
    gram: Float[Array, "n n"]
    """Φ at the training points, averaged over the second half of the sweeps."""
    evidence: Evidence
    outputs: tuple[int, ...] = eqx.field(static=True)

    def predict(self, Z: Points) -> Float[Array, "m ..."]:
        """Return the posterior mean f = Φ(z, X) Δ.

        Parameters
        ----------
        Z : array of shape (m, d)
            Points.

        Returns
        -------
        array of shape (m,) or (m, c)
            Predictions.
        """
        with in_precision(self.pull.dtype.name):
            Z = as_points(Z, "Z", self.pull.dtype)
            return dot(self.kernel.gram(Z, self.X), self.pull).reshape(Z.shape[0], *self.outputs)


def adaptive_kernel(
    network: MLP,
    X: Points,
    y: Labels,
    *,
    richness: float,
    ridge: float,
    draws: int = 4096,
    sweeps: int = 200,
    precision: str = "float64",
    key: PRNGKeyArray | None = None,
) -> AdaptiveKernelFit:
    """Compute the feature kernel of a two-layer Bayesian network after observing (X, y) [M4].

    Parameters
    ----------
    network : MLP
        Architecture of depth 1.
    X : array of shape (n, d)
        Training points.
    y : array of shape (n,) or (n, c)
        Labels.
    richness : float
        γ_0 > 0; γ_0 → 0 is the NNGP.
    ridge : float
        λ > 0, added to Φ, absolute.
    draws : int, default 4096
        Number of chains, a multiple of 4.
    sweeps : int, default 200
        Number of sweeps of elliptical slice sampling.
    precision : {"float32", "float64"}, default "float64"
        Precision of the computation.
    key : PRNG key, optional
        Source of randomness; `jax.random.key(0)` by default.

    Returns
    -------
    AdaptiveKernelFit
        `.kernel` can be used with `solve` and the estimators. `residual` of the evidence is the relative change of Φ
        between the last two quarters of the sweeps.

    Raises
    ------
    ValueError
        If the network is deeper, or richness or ridge are not positive.

    References
    ----------
    Lauditi, Bordelon and Pehlevan (2025), Adaptive kernel predictors from feature-learning infinite limits of neural
    networks.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import MLP, solve
    >>> from unlazy.training import adaptive_kernel
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> y, Z = np.sin(X[:, 0]), X[:5]
    >>> found = adaptive_kernel(MLP(1, "relu"), X, y, richness=1.0, ridge=0.1)
    >>> solve(found.kernel, X, y, ridge=0.1).predict(Z).shape
    (5,)
    """
    check_richness(richness)
    check_draws(draws)
    check_positive_integer("sweeps", sweeps)
    if network.depth != 1:
        raise ValueError(f"the adaptive kernel needs two layers, depth 1; got depth {network.depth}")
    if not 0 < ridge < math.inf:
        raise ValueError(f"ridge must be positive (without noise there is no posterior), got {ridge!r}")
    with in_precision(precision):
        began = time.perf_counter()
        X, y, outputs = validate_data(network, X, y, precision)
        key_draw, key_outside, key_move = jax.random.split(jax.random.key(0) if key is None else key, 3)
        place = coordinates(network, X, key_outside)
        E = place.reduce(X)
        w = symmetric_normals(key_draw, 1, draws, E.shape[1], 1, True, X.dtype)[0][0]
        # arrays, since Python numbers would be compiled as constants
        strengths = jnp.asarray(richness, X.dtype), jnp.asarray(ridge, X.dtype)
        found, early, late = _sample(network, E, y.reshape(X.shape[0], -1), w, *strengths, sweeps, key_move)
        change = float(jnp.linalg.norm(late - early) / jnp.linalg.norm(late))
        words = FitDescription("p(h) ∝ N(h; 0, K) exp(½ γ_0² (φ(h)·Δ)²), Δ = (Φ + λI)⁻¹ y [M4]",
                      f"{draws} chains, {sweeps} sweeps of elliptical slice sampling")  # fmt: skip
        evidence = Evidence(change, ridge=ridge, steps=sweeps, seconds=time.perf_counter() - began, description=words)
        kernel = AdaptiveKernel(network, place.weights(found.w))
        return AdaptiveKernelFit(kernel, X, found.pull, found.Phi, evidence, outputs)


@eqx.filter_jit
def _sample(
    network: MLP, E: Array, y: Array, w: Array, richness: Array, ridge: Array, sweeps: int, key: PRNGKeyArray
) -> tuple[Chains, Array, Array]:
    """Run the chains; return them and the means of Φ over the last two quarters of the sweeps."""
    s, b = network.sigma_w[1], network.sigma_b[1]

    def gram(w: Array) -> Array:
        value = network.activation(dot(E, w.T))
        return s**2 * dot(value, value.T) / w.shape[0] + b**2

    def solved(Phi: Array) -> Array:
        return jnp.linalg.solve(Phi + ridge * jnp.eye(Phi.shape[0], dtype=Phi.dtype), y)

    def sweep(chains: Chains, i: Array) -> tuple[Chains, Array]:
        def tilt(w: Array) -> Array:
            return 0.5 * (richness * s) ** 2 * jnp.sum(dot(network.activation(dot(w, E.T)), chains.pull) ** 2, 1)

        w = slice_sweep(jax.random.fold_in(key, i), chains.w, tilt)
        now = gram(w)
        pull = (1 - DAMPING) * chains.pull + DAMPING * solved(now)
        share = 1 / jnp.maximum(i + 1 - sweeps // 2, 1)
        return Chains(w, pull, chains.Phi + share * (now - chains.Phi)), now

    first = gram(w)
    chains, Phis = jax.lax.scan(sweep, Chains(w, solved(first), first), jnp.arange(sweeps))
    quarter = max(sweeps // 4, 1)
    early, late = jnp.mean(Phis[-2 * quarter : -quarter], 0), jnp.mean(Phis[-quarter:], 0)
    # Δ for the Gram matrix used in predictions; Δ for the mean Φ would leave the noise of the last draws
    return chains._replace(pull=solved(gram(chains.w))), early, late


def slice_sweep(key: PRNGKeyArray, w: Float[Array, "N r"], tilt: Callable[[Array], Array]) -> Float[Array, "N r"]:
    """Move every row once under N(0, I)·exp(tilt) by elliptical slice sampling.

    The new point lies on the ellipse through w and an independent draw; its angle is drawn from a bracket that shrinks
    to w until the tilt exceeds a random level.
    """
    key_draw, key_level, key_angle = jax.random.split(key, 3)
    N = w.shape[0]
    fresh = jax.random.normal(key_draw, w.shape, w.dtype)
    level = tilt(w) + jnp.log(jax.random.uniform(key_level, (N,), w.dtype, minval=jnp.finfo(w.dtype).tiny))
    angle = 2 * jnp.pi * jax.random.uniform(key_angle, (N,), w.dtype)

    def at(angle: Array) -> Array:
        return w * jnp.cos(angle)[:, None] + fresh * jnp.sin(angle)[:, None]

    def unfinished(state: tuple) -> Array:
        return ~jnp.all(state[3])

    def shrink(state: tuple) -> tuple:
        i, angle, (low, high), done = state
        done = done | (tilt(at(angle)) >= level)
        low, high = jnp.where((angle < 0) & ~done, angle, low), jnp.where((angle >= 0) & ~done, angle, high)
        u = jax.random.uniform(jax.random.fold_in(key_angle, i), (N,), w.dtype)
        return i + 1, jnp.where(done, angle, low + u * (high - low)), (low, high), done

    start = (jnp.int32(1), angle, (angle - 2 * jnp.pi, angle), jnp.zeros(N, bool))
    return at(jax.lax.while_loop(unfinished, shrink, start)[1])
