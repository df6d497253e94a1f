"""Finite networks in the parametrization of the rich limit [M1], trained in the same way for comparison."""

import math
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.arrays import cast_floats
from unlazy.core.data import Data
from unlazy.core.errors import check_positive_integer
from unlazy.core.linalg import dot
from unlazy.core.precision import precision as in_precision
from unlazy.kernels.base import Kernel
from unlazy.networks.mlp import Network
from unlazy.networks.tangent import tangent_kernel
from unlazy.solvers.checkpoint import Checkpoint
from unlazy.theory.feature_learning.mean_field import value_and_slope
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.training.descent.losses import Loss, resolve_loss
from unlazy.training.rich.dynamics import Dynamics, train
from unlazy.training.rich.limit import check_batch, check_memory, check_training, trajectory, validate_data
from unlazy.training.rich.progress import Progress
from unlazy.training.rich.trajectory import RichTrajectory
from unlazy.training.rich.two_layer import NEURON_ERROR_WEIGHT


class FiniteWeights(NamedTuple):
    """Parameters now and at the start; the initial output is subtracted, so that f starts at zero as in the limit."""

    now: Any
    start: Any


class FiniteTangent(Kernel):
    """Θ of finite networks, summed over outputs, averaged over runs."""

    network: Network
    params: Any

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
    """Train finite networks in the parametrization of `rich_limit` [M1].

    `runs` networks of one width replace infinitely many neurons, with the same time, steps, batches (for the same key)
    and records; estimates are means over networks with standard errors. The output at the random start, of order 1/(γ_0
    √width), is subtracted. As in `rich_limit`, training minimizes the sum Σ_μ ℓ(f_μ, y_μ) and `losses` reports the mean
    of ℓ over points; the squared loss is ½|f - y|².

    Parameters
    ----------
    network : MLP
        Architecture; its width is replaced by `width`.
    X : array of shape (n, d)
        Training points.
    y : array of shape (n,) or (n, c)
        Labels.
    richness : float
        γ_0 > 0.
    width : int
        Number of neurons of every hidden layer.
    times : array of shape (t,)
        Increasing times of gradient flow; numbers of steps if `step_size` is given.
    runs : int, default 4
        Number of networks.
    step_size : float, optional
        Step size of gradient descent; None integrates gradient flow.
    batch_size : int, optional
        Points per step; all by default.
    loss : str or Loss, default "squared"
        Per-point loss ℓ.
    tolerance : float, default 1e-3
        Error of f in one step of the flow, relative to the labels.
    until_loss : float, optional
        Stop at the first time with a mean loss of at most this.
    keep : bool, default True
        Whether to store the weights at every time, which predictions at new points need.
    precision : {"float32", "float64"}, default "float64"
        Precision of the computation.
    progress : bool or callable, optional
        Whether to show progress, or a function of (times done, seconds). None shows it on a terminal.
    checkpoint : path or Checkpoint, optional
        File from which an interrupted training resumes.
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
    >>> networks = rich_network(MLP(1), X, y, richness=1.0, width=64, times=[0.1], runs=4)
    """
    chosen = check_training(richness, times, step_size, tolerance)
    wide = _widened(network, width)
    with in_precision(precision):
        X, y, described = validate_data(network, X, y, precision)
        key_start, key_batch = jax.random.split(jax.random.key(0) if key is None else key)
        system = FiniteNetwork(Network(wide, X.shape[1], "ntk", output_scale=1 / (richness * math.sqrt(width))))
        params = jax.vmap(system.network.init)(jax.random.split(key_start, check_positive_integer("runs", runs)))
        start = FiniteWeights(params, params)
        dynamics = Dynamics(
            system,
            Data(X, y),
            resolve_loss(loss),
            step_size,
            tolerance,
            check_batch(batch_size, step_size, X),
            key_batch,
        )
        check_memory(start, len(chosen), keep)
        found = train(dynamics, start, chosen, keep=keep, progress=progress, checkpoint=checkpoint, what="networks",
                       until_loss=until_loss)  # fmt: skip
        return trajectory(system, X, chosen, found, described, f"{runs} networks of width {width}", step_size)


def _widened(network: MLP, width: int) -> MLP:
    """Return the architecture with another width."""
    check_positive_integer("width", width)
    return MLP(
        network.depth, network.activation, network.sigma_w, network.sigma_b, residual=network.residual,
        scale_input=network.scale_input, width=width, outputs=network.outputs,
    )  # fmt: skip
