"""Finite networks in the parametrization of the rich limit [M1], trained in the same way for comparison."""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.arrays import Labels, Points, cast_floats, dot
from unlazy.core.arrays import precision as in_precision
from unlazy.core.dataset import Data
from unlazy.kernels.base import Kernel
from unlazy.networks.mlp import Network, Parameters
from unlazy.networks.tangent import tangent_kernel
from unlazy.solvers.path import Values
from unlazy.theory.dynamics.losses import Loss
from unlazy.theory.feature_learning.mean_field import value_and_slope
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.training.options import RichOptions
from unlazy.training.rich.limit import check_training, trajectory, validate_data
from unlazy.training.rich.training_loop import Dynamics, train
from unlazy.training.rich.trajectory import RichTrajectory
from unlazy.training.rich.two_layer import NEURON_ERROR_WEIGHT


class FiniteWeights(NamedTuple):
    """Current and initial parameters; the initial output is subtracted, so that f starts at zero as in the limit."""

    now: Parameters
    start: Parameters


class FiniteTangent(Kernel):
    """Θ of finite networks, summed over outputs, averaged over runs."""

    network: Network
    params: Parameters

    def block(self, left: Float[Array, "n d"], right: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """Return Θ between two sets of points."""
        params, rates = cast_floats(self.params, left.dtype), self.network.rates
        return jnp.mean(jax.vmap(
            lambda theta: tangent_kernel(self.network, theta, left, right, outputs="trace", rates=rates)
        )(params), 0)  # fmt: skip


class FiniteNetwork(eqx.Module):
    """f(θ) - f(θ_0) with f = (1/γ) f_NTK, γ = γ_0 √width, and rates γ² [M1]."""

    network: Network

    def inputs(self, X: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """Return the inputs unchanged."""
        return X

    def outputs(self, state: FiniteWeights, X: Float[Array, "n d"]) -> Float[Array, "n c"]:
        """Return f at the inputs."""
        raw = self.network.preactivations
        return raw(state.now, X)[-1] - raw(state.start, X)[-1]

    def move(self, state: FiniteWeights, X: Float[Array, "n d"], pull: Float[Array, "n c"]) -> FiniteWeights:
        """Return the velocities of the weights."""
        _, back = jax.vjp(lambda theta: self.network.preactivations(theta, X)[-1], state.now)
        moved = jax.tree.map(lambda rate, g: rate * g, self.network.rates, back(pull)[0])
        return FiniteWeights(moved, jax.tree.map(jnp.zeros_like, state.start))

    def kernels(self, state: FiniteWeights, X: Float[Array, "n d"]) -> tuple[tuple, tuple, Array]:
        """Return Φ^l = φφᵀ/w and G^l = ggᵀ/w of every layer, g ∝ ∂f/∂h, and Θ [M3].

        Θ = Σ_l (σ_w² Φ^{l-1} + σ_b²) ∘ G^l.
        """
        net, mlp, c = self.network, self.network.mlp, self.network.mlp.outputs
        hidden = net.preactivations(state.now, X)[:-1]
        values, slopes = zip(*(value_and_slope(mlp.activation, h) for h in hidden))
        width = hidden[0].shape[1]
        Phi = [dot(v, v.T) / width for v in values]
        below = [dot(X, X.T) / (X.shape[1] if mlp.scale_input else 1), *Phi]
        n = X.shape[0]
        z = jnp.broadcast_to(state.now[-1].weight.T[:, None, :], (c, n, width))
        G = []
        for l in reversed(range(mlp.depth)):
            g = z * slopes[l]
            G.append(sum(dot(part, part.T) for part in g) / width)
            z = mlp.sigma_w[l] / math.sqrt(width) * dot(g, state.now[l].weight.T) if l else z
        G.reverse()
        s, b = mlp.sigma_w, mlp.sigma_b
        head = c * (s[-1] ** 2 * Phi[-1] + b[-1] ** 2)
        inner = sum((s[l] ** 2 * below[l] + b[l] ** 2) * G[l] for l in range(mlp.depth))
        return tuple(Phi), tuple(G), head + s[-1] ** 2 * inner

    def error_size(self, error: FiniteWeights, state: FiniteWeights, X: Array, label: Array) -> Array:
        """Return the larger of the error in f relative to the labels and the weighted relative error of a layer."""
        f = self.outputs(state, X)
        before = FiniteWeights(jax.tree.map(jnp.subtract, state.now, error.now), state.start)
        in_f = jnp.sqrt(jnp.mean(jnp.square(f - self.outputs(before, X)))) / label
        layers = jax.tree.map(lambda e, s: jnp.linalg.norm(e) / jnp.linalg.norm(s), error.now, state.now)
        return jnp.maximum(in_f, NEURON_ERROR_WEIGHT * jnp.max(jnp.stack([layer.weight for layer in layers])))

    def predict(self, states: FiniteWeights, Z: Float[Array, "m d"]) -> Float[Array, "runs m c"]:
        """Return f of every run at Z."""
        return jax.vmap(lambda state: self.outputs(state, Z))(states)

    def kernel(self, states: FiniteWeights) -> FiniteTangent:
        """Return Θ as a kernel."""
        return FiniteTangent(self.network, states.now)


def rich_network(
    network: MLP,
    X: Points,
    y: Labels,
    *,
    richness: float,
    times: Values,
    step_size: float | None = None,
    loss: str | Loss = "squared",
    options: RichOptions | None = None,
    key: PRNGKeyArray | None = None,
) -> RichTrajectory:
    """Train finite networks in the parametrization of `rich_limit` [M1].

    Several networks of one width replace infinitely many neurons, with the same loss, time, steps, batches (for the
    same key) and records; estimates are means over networks with standard errors. The output at the random start, of
    order 1/(γ_0 √width), is subtracted.

    Parameters
    ----------
    network : MLP
        Architecture, with the `width` of its hidden layers.
    X : array of shape (n, d)
        Training points.
    y : array of shape (n,) or (n, c)
        Labels.
    richness : float
        γ_0 > 0.
    times : array of shape (t,)
        Increasing times of gradient flow; numbers of steps if `step_size` is given.
    step_size : float, optional
        Step size of gradient descent on the mean loss; None integrates gradient flow.
    loss : {"squared", "hinge", "logistic", "cross_entropy"} or Loss, default "squared"
        Per-point loss ℓ.
    options : RichOptions, optional
        Number of networks (`runs`), batches, tolerance, precision, progress and checkpoint.
    key : PRNG key, optional
        Source of randomness; `jax.random.key(0)` by default.

    Returns
    -------
    RichTrajectory
        Predictions, losses and kernels at the recorded times.

    Raises
    ------
    ValueError
        If an argument is invalid or the states do not fit in memory.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import MLP, rich_network
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> y = np.sin(X[:, 0])
    >>> networks = rich_network(MLP(1, width=64), X, y, richness=1.0, times=[0.1])
    """
    chosen, options = check_training(richness, times, step_size), options or RichOptions()
    if network.width is None:
        raise ValueError("rich_network trains networks of finite width: pass MLP(…, width=…)")
    with in_precision(options.precision):
        X, y, outputs = validate_data(network, X, y, options.precision)
        key_start, key_batch = jax.random.split(jax.random.key(0) if key is None else key)
        scale = 1 / (richness * math.sqrt(network.width))
        system = FiniteNetwork(Network(network, X.shape[1], "ntk", output_scale=scale))
        params = jax.vmap(system.network.init)(jax.random.split(key_start, options.runs))
        dynamics = Dynamics.create(system, Data(X, y), loss, step_size, options, key_batch)
        found = train(dynamics, FiniteWeights(params, params), chosen, options, "networks")
        return trajectory(dynamics, X, chosen, found, outputs, f"{options.runs} networks of width {network.width}")
