"""Finite networks sampled from the posterior of [M4] by Langevin steps, to compare with the adaptive kernel."""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.arrays import Labels, Points, as_points, dot
from unlazy.core.arrays import precision as in_precision
from unlazy.theory.feature_learning.mean_field import embed
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.training.options import LangevinChains
from unlazy.training.rich.limit import validate_data
from unlazy.training.rich.standard_errors import SampledQuantity, on_host, over_runs


class Scales(NamedTuple):
    """γ_0, λ and ε as arrays, since Python numbers would be compiled as constants."""

    richness: Array
    ridge: Array
    step_size: Array


class LangevinSamples(NamedTuple):
    """Means over the second half of the steps, over independent networks.

    Attributes
    ----------
    predictions : SampledQuantity
        f at the new points: (m, *c).
    fitted : SampledQuantity
        f at the training points: (n, *c).
    features : SampledQuantity
        σ_w² φφᵀ/w + σ_b² at the training points: (n, n).
    """

    predictions: SampledQuantity
    """f at the new points: (m, *c)."""
    fitted: SampledQuantity
    features: SampledQuantity
    """σ_w² φφᵀ/w + σ_b² at the training points."""


def langevin(
    network: MLP,
    X: Points,
    y: Labels,
    Z: Points,
    *,
    richness: float,
    ridge: float,
    width: int,
    chains: LangevinChains,
    key: PRNGKeyArray | None = None,
) -> LangevinSamples:
    """Sample two-layer networks from the posterior of [M4] by Langevin steps.

    θ ← θ - ε ∇U + √(2ε) ξ with U = ½‖θ‖² + (γ²/2λ) Σ (y - f)², γ = γ_0 √width. The sum runs over points and outputs.

    Parameters
    ----------
    network : MLP
        Architecture of depth 1.
    X : array of shape (n, d)
        Training points.
    y : array of shape (n,) or (n, c)
        Labels.
    Z : array of shape (m, d)
        New points.
    richness : float
        γ_0 > 0.
    ridge : float
        λ > 0.
    width : int
        Number of neurons.
    chains : LangevinChains
        Number and size of the steps, number of independent networks.
    key : PRNG key, optional
        Source of randomness; `jax.random.key(0)` by default.

    Returns
    -------
    LangevinSamples
        Posterior means with standard errors over networks.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import MLP
    >>> from unlazy.training import LangevinChains, langevin
    >>> X, y, Z = np.array([[-1.0], [0.0], [1.0]]), np.array([-1.0, 0.0, 1.0]), np.array([[0.5]])
    >>> chains = LangevinChains(steps=200, step_size=1e-3, runs=2)
    >>> samples = langevin(MLP(1, "tanh"), X, y, Z, richness=1.0, ridge=0.1, width=16, chains=chains)
    >>> samples.predictions.value.shape, samples.features.value.shape
    ((1,), (3, 3))
    """
    with in_precision("float64"):
        X, y, outputs = validate_data(network, X, y, "float64")
        Z = as_points(Z, "Z", "float64")
        keys = jax.random.split(jax.random.key(0) if key is None else key, chains.runs)
        E, F = embed(network, X), embed(network, Z)
        labels = y.reshape(X.shape[0], -1)
        scales = Scales(*(jnp.asarray(value) for value in (richness, ridge, chains.step_size)))
        f, at_z, Phi = _chains(network, E, F, labels, scales, width, chains.steps, keys)
        shape = (chains.runs, -1, *outputs)
        return on_host(LangevinSamples(over_runs(at_z.reshape(shape)), over_runs(f.reshape(shape)), over_runs(Phi)))


@eqx.filter_jit
def _chains(
    network: MLP, E: Array, F: Array, y: Array, scales: Scales, width: int, steps: int, keys: Array
) -> tuple[Array, Array, Array]:
    """Run the chains; return the mean of f at X, of f at Z and of the feature kernel, for every network."""
    richness, ridge, eps = scales
    s, b, scale = network.sigma_w[1], network.sigma_b[1], 1 / (richness * width)

    def outputs(theta: tuple, E: Array) -> Float[Array, "n c"]:
        w, a, bias = theta
        return scale * s * dot(network.activation(dot(E, w)), a) + b * bias / (richness * math.sqrt(width))

    def potential(theta: tuple) -> Array:
        prior = sum(jnp.sum(part**2) for part in theta)
        return 0.5 * prior + 0.5 * richness**2 * width / ridge * jnp.sum((y - outputs(theta, E)) ** 2)

    def one(key: Array) -> tuple[Array, Array, Array]:
        shapes = ((E.shape[1], width), (width, y.shape[1]), (y.shape[1],))

        def normals(key: Array) -> tuple:
            return tuple(jax.random.normal(k, shape, E.dtype) for k, shape in zip(jax.random.split(key, 3), shapes))

        def step(carry: tuple, i: Array) -> tuple[tuple, None]:
            theta, means = carry
            noise = normals(jax.random.fold_in(key, i + 1))
            slope = jax.grad(potential)(theta)
            theta = jax.tree.map(lambda p, g, n: p - eps * g + jnp.sqrt(2 * eps) * n, theta, slope, noise)
            value = network.activation(dot(E, theta[0]))
            seen = (outputs(theta, E), outputs(theta, F), s**2 * dot(value, value.T) / width + b**2)
            share = 1 / jnp.maximum(i + 1 - steps // 2, 1)
            return (theta, jax.tree.map(lambda m, v: m + share * (v - m), means, seen)), None

        start = normals(jax.random.fold_in(key, 0))
        n, c = y.shape
        zeros = (jnp.zeros((n, c)), jnp.zeros((F.shape[0], c)), jnp.zeros((n, n)))
        return jax.lax.scan(step, (start, zeros), jnp.arange(steps))[0][1]

    return jax.lax.map(one, keys)
