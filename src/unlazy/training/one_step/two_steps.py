"""Two gradient steps that cancel the initial weights, then the readout: how features emerge from inputs [P3, P4].

Steps 1 and 2 move only the first layer's weights, on large independent samples, with ℓ2 decay of strength 1/η: the old
weights cancel and w ← -η ∇_w L is the gradient alone. Neurons are noisy there, which smooths the truncated ReLU in
closed form. Then the readout is set to zero and all layers are trained by SGD on new batches. Without cancellation
(`forget=False`, small readout weights, large steps) the same features emerge gradually.

Shi, Wei and Liang, A theoretical analysis on feature learning in neural networks (ICLR 2022).
"""

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.arrays import default_float
from unlazy.core.dataset import Data
from unlazy.layers.protocol.parametrization import WeightBias
from unlazy.networks.mlp import Network, Parameters
from unlazy.theory.activations.functions import ActivationFunction
from unlazy.theory.dynamics.losses import LOSSES
from unlazy.theory.feature_learning.patterns import smoothed_ramp
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.training.options import Recording

Draw = Callable[[PRNGKeyArray, int], Data]
"""draw(key, n) returns n independent labeled points."""


class Emergence(eqx.Module):
    """Parameters and records of `emerge`.

    Attributes
    ----------
    start, first, second, end : tuple of Layer
        Parameters at the start, after step 1, after step 2 and at the end.
    margins : array of shape (2,)
        Largest y f(x) on the samples of steps 1 and 2.
    recorded : dict
        Recorded measures.
    """

    start: Parameters
    first: Parameters
    second: Parameters
    end: Parameters
    margins: Float[Array, " 2"]
    """Largest y f(x) on the samples of steps 1 and 2; below 1 the hinge is active everywhere, as the lemmas require."""
    recorded: dict[str, Array]
    """Values at the start, after step 1, after step 2, then after each `every` steps with the new readout."""


def pattern_network(
    inputs: int, width: int = 600, *, sigma_w: float = 0.2, sigma_b: float = 0.3, sigma_a: float = 4.0
) -> Network:
    """Create the network f(x) = Σ_i a_i min(1, max(w_i·x + b_i, 0)) [P3] with Gaussian initialization.

    `init(key, "antisymmetric")` pairs its neurons.
    """
    scales = (sigma_w, sigma_a * width**0.5)  # the network divides its readout by √width
    mlp = MLP(1, "truncated_relu", scales, (sigma_b, 0.0), scale_input=False, width=width)
    return Network(mlp, inputs, "standard")


def smoothed_network(network: Network, spread: float) -> Network:
    """Return the network whose neurons carry noise N(0, spread²), averaged over the noise: smooth in its weights."""
    smooth = ActivationFunction("smoothed truncated ReLU", smoothed_ramp, (), spread)
    return eqx.tree_at(lambda net: net.mlp, network, _with_activation(network.mlp, smooth))


def weight_gradient(network: Network, params: Parameters, data: Data) -> tuple[Float[Array, "d w"], Float[Array, ""]]:
    """Return the gradient of the mean hinge loss in the first layer's weights, and the largest margin y f(x)."""

    def loss(weight: Array) -> tuple[Array, Array]:
        f = network((WeightBias(weight, params[0].bias), *params[1:]), data.X)
        return LOSSES["hinge"].mean(f, data.y), jnp.max(data.y * f)

    return jax.grad(loss, has_aux=True)(params[0].weight)


def step_on_weights(
    params: Parameters, gradient: Float[Array, "d w"], step_size: ArrayLike, forget: bool = True
) -> Parameters:
    """Return the parameters after w ← w - η(∇_w L + λw) with λ = 1/η, so that w ← -η∇_w L; or λ = 0."""
    old = 0 if forget else params[0].weight
    return (WeightBias(old - step_size * gradient, params[0].bias), *params[1:])


@dataclass(frozen=True)
class FirstSteps:
    """The two steps on the first layer's weights.

    Parameters
    ----------
    samples : int, default 20000
        Points of each step.
    step_sizes : (float, float), default (0.005, 20.0)
        Step sizes. A large first one spoils the second step: the hinge is then not active everywhere (see `margins`).
    spread : float, default 0.3
        Standard deviation of the noise of the neurons.
    forget : bool, default True
        Whether the steps cancel the old weights.
    """

    samples: int = 20_000
    step_sizes: tuple[float, float] = (0.005, 20.0)
    spread: float = 0.3
    forget: bool = True


@dataclass(frozen=True)
class FreshSGD:
    """SGD on all layers with a new batch at every step.

    Parameters
    ----------
    steps : int, default 500
        Number of steps.
    batch_size : int, default 1000
        Points per step.
    step_sizes : (float, float), default (0.2, 0.02)
        First and last step size, with geometric decay.
    decay : float, default 0.0
        Weight decay.
    """

    steps: int = 500
    batch_size: int = 1000
    step_sizes: tuple[float, float] = (0.2, 0.02)
    decay: float = 0.0


def emerge(
    network: Network,
    draw: Draw,
    *,
    first_steps: FirstSteps = FirstSteps(),
    sgd: FreshSGD = FreshSGD(),
    recording: Recording = Recording(every=25),  # noqa: B008
    key: PRNGKeyArray,
) -> Emergence:
    """Run the schedule of Theorem 1: two steps on the weights, then a ← 0 and SGD on all layers, with hinge loss.

    Parameters
    ----------
    network : Network
        Two-layer network, such as `pattern_network`.
    draw : callable
        `draw(key, n)` returns new points at every step; drawing rows of a table gives the finite-sample algorithm.
    first_steps : FirstSteps, optional
        The two steps on the first layer's weights.
    sgd : FreshSGD, optional
        SGD on all layers; its number of steps is a multiple of `recording.every`.
    recording : Recording, optional
        Functions of the parameters to record.
    key : PRNG key
        Source of randomness.

    Returns
    -------
    Emergence
        Parameters of every stage and records.

    Raises
    ------
    ValueError
        If the number of SGD steps is not a multiple of `recording.every`.
    """
    recording.steps_between(sgd.steps)
    keys, measures = jax.random.split(key, 4), recording.measures
    start = network.init(keys[0], "antisymmetric")
    smooth = smoothed_network(network, first_steps.spread)

    def move(theta: Parameters, stage: tuple[Array, Array]) -> tuple[Parameters, tuple[Parameters, Array]]:
        gradient, margin = weight_gradient(smooth, theta, draw(stage[0], first_steps.samples))
        theta = step_on_weights(theta, gradient, stage[1], first_steps.forget)
        return theta, (theta, margin)

    # a loop over the two steps: one program instead of two
    step_sizes = jnp.asarray(first_steps.step_sizes, default_float())
    moved, (both, margins) = jax.lax.scan(move, start, (keys[1:3], step_sizes))
    stages = jax.tree.map(lambda first, later: jnp.concatenate([first[None], later]), start, both)
    before = jax.lax.map(lambda stage: {name: measure(stage) for name, measure in measures.items()}, stages)
    zeroed = (moved[0], WeightBias(*(jnp.zeros_like(part) for part in moved[1])))
    end, later = _descend_fresh(network, zeroed, draw, sgd, recording, keys[3])
    recorded = {name: jnp.concatenate([before[name], later[name]]) for name in measures}
    first, second = (jax.tree.map(lambda part, i=i: part[i], both) for i in range(2))
    return Emergence(start, first, second, end, margins, recorded)


def _descend_fresh(
    network: Network, params: Parameters, draw: Draw, sgd: FreshSGD, recording: Recording, key: PRNGKeyArray
) -> tuple[Parameters, dict[str, Array]]:
    """Run SGD on all layers with a new batch at every step; measures after each `every` steps."""
    (first, last), every = sgd.step_sizes, recording.steps_between(sgd.steps)

    def loss(theta: Parameters, data: Data) -> Array:
        return LOSSES["hinge"].mean(network(theta, data.X), data.y)

    def step(theta: Parameters, s: Array) -> tuple[Parameters, None]:
        gradient = jax.grad(loss)(theta, draw(jax.random.fold_in(key, s), sgd.batch_size))
        rate = first * (last / first) ** (s / sgd.steps)
        return jax.tree.map(lambda p, g: p - rate * (g + sgd.decay * p), theta, gradient), None

    def chunk(theta: Parameters, begin: Array) -> tuple[Parameters, dict[str, Array]]:
        theta = jax.lax.scan(step, theta, begin + jnp.arange(every))[0]
        return theta, {name: measure(theta) for name, measure in recording.measures.items()}

    return jax.lax.scan(chunk, params, jnp.arange(0, sgd.steps, every))


def _with_activation(mlp: MLP, phi: ActivationFunction) -> MLP:
    """Return the same architecture with another activation."""
    return MLP(
        mlp.depth, phi, mlp.sigma_w, mlp.sigma_b, residual=mlp.residual, scale_input=mlp.scale_input, width=mlp.width,
        outputs=mlp.outputs,
    )  # fmt: skip
