"""Finite networks in the limit's parametrization [M1], trained as the limit is: both lie on one plot."""

import math
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.arrays import with_type
from unlazy.core.data import Data
from unlazy.core.errors import check_positive_integer
from unlazy.core.linalg import dot
from unlazy.core.precision import precision as in_precision
from unlazy.kernels.base import Kernel
from unlazy.networks.mlp import Network
from unlazy.networks.tangent import tangent_kernel
from unlazy.solvers.checkpoint import Checkpoint
from unlazy.theory.feature_learning.mean_field import with_slope
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.training.descent.losses import Loss, loss_named
from unlazy.training.rich.dynamics import Dynamics, follow
from unlazy.training.rich.limit import check_batch, check_memory, check_training, read, trajectory
from unlazy.training.rich.progress import Progress
from unlazy.training.rich.trajectory import RichTrajectory
from unlazy.training.rich.two_layer import LOOSE


class Weights(NamedTuple):
    """Parameters now and at the start, whose output is taken off: f starts at zero, as in the limit."""

    now: Any
    start: Any


class FiniteTangent(Kernel):
    """Θ of finite networks, summed over outputs, the mean over runs."""

    network: Network
    params: Any

    def block(self, left: Float[Array, "n d"], right: Float[Array, "m d"]) -> Float[Array, "n m"]:
        params, rates = with_type(self.params, left.dtype), self.network.rates
        return jnp.mean(jax.vmap(
            lambda theta: tangent_kernel(self.network, theta, left, right, outputs="trace", rates=rates)
        )(params), 0)  # fmt: skip


class FiniteNetwork(eqx.Module):
    """f(θ) - f(θ_0) with f = (1/γ) f_NTK, γ = γ_0 √width, and rates γ² [M1]."""

    network: Network

    def inputs(self, X: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return X

    def outputs(self, state: Weights, X: Float[Array, "n d"]) -> Float[Array, "n c"]:
        raw = self.network.preactivations
        return raw(state.now, X)[-1] - raw(state.start, X)[-1]

    def move(self, state: Weights, X: Float[Array, "n d"], pull: Float[Array, "n c"]) -> Weights:
        _, back = jax.vjp(lambda theta: self.network.preactivations(theta, X)[-1], state.now)
        moved = jax.tree.map(lambda rate, g: rate * g, self.network.rates, back(pull)[0])
        return Weights(moved, jax.tree.map(jnp.zeros_like, state.start))

    def kernels(self, state: Weights, X: Float[Array, "n d"]) -> tuple[tuple, tuple, Array]:
        """Φ^l = φφᵀ/w and G^l = ggᵀ/w of every layer, g ∝ ∂f/∂h, and Θ = Σ_l (σ_w² Φ^{l-1} + σ_b²) ∘ G^l [M3]."""
        net, mlp, c = self.network, self.network.mlp, self.network.mlp.outputs
        hidden = net.preactivations(state.now, X)[:-1]
        values, slopes = zip(*(with_slope(mlp.activation, h) for h in hidden))
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

    def error_size(self, error: Weights, state: Weights, X: Array, label: Array) -> Array:
        """The larger of the error in f over the labels' size and of LOOSE times a layer's error over its size."""
        f = self.outputs(state, X)
        before = Weights(jax.tree.map(jnp.subtract, state.now, error.now), state.start)
        in_f = jnp.sqrt(jnp.mean(jnp.square(f - self.outputs(before, X)))) / label
        layers = jax.tree.map(lambda e, s: jnp.linalg.norm(e) / jnp.linalg.norm(s), error.now, state.now)
        return jnp.maximum(in_f, LOOSE * jnp.max(jnp.stack([layer.weight for layer in layers])))

    def predict(self, states: Weights, Z: Float[Array, "m d"]) -> Float[Array, "runs m c"]:
        return jax.vmap(lambda state: self.outputs(state, Z))(states)

    def kernel(self, states: Weights) -> FiniteTangent:
        return FiniteTangent(self.network, states.now)


def rich_network(
    network: MLP,
    X: Any,
    y: Any,
    *,
    richness: float,
    width: int,
    times: Any,
    runs: int = 4,
    step_size: float | None = None,
    batch_size: int | None = None,
    loss: str | Loss = "squared",
    tolerance: float = 1e-3,
    until_loss: float | None = None,
    keep: bool = True,
    precision: str = "float64",
    progress: Progress = None,
    checkpoint: str | Path | Checkpoint | None = None,
    key: PRNGKeyArray | None = None,
) -> RichTrajectory:
    """Networks of a width, `runs` of them, where `rich_limit` has infinitely many neurons [M1]: the same time, steps,
    batches (given the same key) and records; estimates are means over networks with their standard errors.

    The output at the random start, of order 1/(γ_0 √width), is taken off.

    >>> networks = rich_network(MLP(1), X, y, richness=1.0, width=64, times=[0.1], runs=4)
    """
    chosen = check_training(richness, times, step_size, tolerance)
    wide = _widened(network, width)
    with in_precision(precision):
        X, y, described = read(network, X, y, precision)
        key_start, key_batch = jax.random.split(jax.random.key(0) if key is None else key)
        system = FiniteNetwork(Network(wide, X.shape[1], "ntk", output_scale=1 / (richness * math.sqrt(width))))
        params = jax.vmap(system.network.init)(jax.random.split(key_start, check_positive_integer("runs", runs)))
        start = Weights(params, params)
        dynamics = Dynamics(
            system, Data(X, y), loss_named(loss), step_size, tolerance, check_batch(batch_size, step_size, X), key_batch
        )
        check_memory(start, len(chosen), keep)
        found = follow(dynamics, start, chosen, keep=keep, progress=progress, checkpoint=checkpoint, what="networks",
                       until_loss=until_loss)  # fmt: skip
        return trajectory(system, X, chosen, found, described, f"{runs} networks of width {width}", step_size)


def _widened(network: MLP, width: int) -> MLP:
    check_positive_integer("width", width)
    return MLP(
        network.depth, network.activation, network.sigma_w, network.sigma_b, residual=network.residual,
        scale_input=network.scale_input, width=width, outputs=network.outputs,
    )  # fmt: skip
