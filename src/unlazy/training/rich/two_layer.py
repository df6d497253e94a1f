"""Two-layer networks of infinite width [M2]: sampled neurons in blocks, their velocities, outputs and kernels."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.arrays import dot
from unlazy.core.devices import memory_budget
from unlazy.kernels.base import Kernel
from unlazy.theory.activations.functions import ActivationFunction
from unlazy.theory.feature_learning import mean_field
from unlazy.theory.feature_learning.mean_field import embed
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.training.options import RichOptions
from unlazy.training.rich.initialization import Coordinates, coordinates, symmetric_normals

LIVE_ARRAYS = 4
"""Number of neurons × points arrays alive at once: h, φ(h), φ'(h) and the backward pass."""

NEURON_ERROR_WEIGHT = 0.1
"""Weight of the errors of single neurons, made at kinks of φ: they average out in f and the kernels."""


class NeuronDraws(NamedTuple):
    """Hidden weights and readout weights of every neuron, and the output bias."""

    w: Float[Array, "*runs N r"]
    z: Float[Array, "*runs N c"]
    bias: Float[Array, "*runs c"]


class RichKernel(Kernel):
    """Θ(x, z) of the rich limit at one time [M2], summed over outputs."""

    network: MLP
    weights: Float[Array, "N e"]
    heads: Float[Array, "N c"]

    def prepare(self, X: Float[Array, "n d"]) -> tuple[Array, Array, Array]:
        """Return embedded points, activations and their slopes."""
        E = embed(self.network, X)
        value, slope = mean_field.value_and_slope(self.network.activation, dot(E, self.weights.T.astype(E.dtype)))
        return E, value, slope

    def block(self, left: tuple[Array, ...], right: tuple[Array, ...]) -> Float[Array, "n m"]:
        """Return Θ between prepared points."""
        (E, value, slope), (F, others, slopes) = left, right
        count, outputs = self.heads.shape
        squares = jnp.sum(jnp.square(self.heads.astype(E.dtype)), 1)
        Phi, G = dot(value, others.T) / count, dot(slope * squares, slopes.T) / count
        return mean_field.tangent(Phi, G, dot(E, F.T), self.network.sigma_w[1], self.network.sigma_b[1], outputs)


class TwoLayerLimit(eqx.Module):
    """The system of [M2]: outputs, velocities and kernels of neurons. One run; use `jax.vmap` for several."""

    coordinates: Coordinates
    richness: float | Array
    block: int = eqx.field(static=True)
    """Number of neurons evaluated at once."""

    @property
    def network(self) -> MLP:
        """The architecture."""
        return self.coordinates.network

    @property
    def phi(self) -> ActivationFunction:
        """The activation."""
        return self.network.activation

    @property
    def scale(self) -> float | Array:
        """σ_w of the readout."""
        return self.network.sigma_w[1]

    def inputs(self, X: Float[Array, "n d"]) -> Float[Array, "n r"]:
        """Return the inputs in reduced coordinates."""
        return self.coordinates.reduce(X)

    def outputs(self, state: NeuronDraws, E: Float[Array, "n r"]) -> Float[Array, "n c"]:
        """Return f at the inputs."""
        scale = self.scale / self.richness

        def add(total: Array, part: tuple[Array, Array]) -> tuple[Array, None]:
            return total + mean_field.outputs(part[0], part[1], E, self.phi, scale), None

        start = jnp.zeros((E.shape[0], state.z.shape[-1]), E.dtype)
        blocks = self._blocks(state)
        return jax.lax.scan(add, start, blocks)[0] / blocks[0].shape[0] + state.bias

    def move(self, state: NeuronDraws, E: Float[Array, "n r"], pull: Float[Array, "n c"]) -> NeuronDraws:
        """Return the velocities; the output bias moves f by σ_b² Σ Δ."""
        scale = self.scale * self.richness
        w, z = jax.lax.map(
            lambda part: mean_field.velocity(part[0], part[1], E, pull, self.phi, scale), self._blocks(state)
        )
        bias = self.network.sigma_b[1] ** 2 * jnp.sum(pull, 0)
        return NeuronDraws(w.reshape(state.w.shape), z.reshape(state.z.shape), jnp.asarray(bias, z.dtype))

    def kernels(self, state: NeuronDraws, E: Float[Array, "n r"]) -> tuple[tuple, tuple, Array]:
        """Return (Φ¹,), (G¹,) and Θ."""
        found = jax.lax.map(lambda part: mean_field.kernels(part[0], part[1], E, self.phi), self._blocks(state))
        Phi, G = (jnp.mean(part, 0) for part in found)
        c = state.z.shape[-1]
        Theta = mean_field.tangent(Phi, G, dot(E, E.T), self.scale, self.network.sigma_b[1], c)
        return (Phi,), (G,), Theta

    def error_size(self, error: NeuronDraws, state: NeuronDraws, E: Float[Array, "n r"], label: Array) -> Array:
        """Return the larger of the error in f relative to the labels and the weighted relative errors of w and z."""
        before = jax.tree.map(jnp.subtract, state, error)
        in_f = _rms(self.outputs(state, E) - self.outputs(before, E)) / label
        return jnp.maximum(
            in_f, NEURON_ERROR_WEIGHT * jnp.maximum(_rms(error.w) / _rms(state.w), _rms(error.z) / _rms(state.z))
        )

    def predict(self, states: NeuronDraws, Z: Float[Array, "m d"]) -> Float[Array, "runs m c"]:
        """Return f of every run at any points."""
        E, scale = self.coordinates.embed(Z), self.scale / self.richness
        full = self.coordinates.weights(states.w)
        each = jax.lax.map(lambda part: mean_field.outputs(part[0], part[1], E, self.phi, scale), (full, states.z))
        return each + states.bias[:, None, :]

    def kernel(self, states: NeuronDraws) -> RichKernel:
        """Return Θ as a kernel, averaged over runs."""
        full = self.coordinates.weights(states.w)
        return RichKernel(self.network, full.reshape(-1, full.shape[-1]), states.z.reshape(-1, states.z.shape[-1]))

    def _blocks(self, state: NeuronDraws) -> tuple[Array, Array]:
        """Split the neurons into blocks."""
        count = state.w.shape[0] // self.block
        return tuple(part.reshape(count, self.block, part.shape[-1]) for part in (state.w, state.z))  # type: ignore[return-value]


def two_layer_limit(
    network: MLP, X: Float[Array, "n d"], richness: float, options: RichOptions, key: PRNGKeyArray
) -> tuple[TwoLayerLimit, NeuronDraws]:
    """Return the system and its initial neurons."""
    draws, runs = options.draws, options.runs
    key_draw, key_outside = jax.random.split(key)
    place = coordinates(network, X, key_outside)
    r = place.reduce(X).shape[1]
    w, z = symmetric_normals(key_draw, runs, draws, r, network.outputs, options.quasi, X.dtype)
    block, budget = draws, memory_budget() // (LIVE_ARRAYS * runs * X.shape[0] * X.dtype.itemsize)
    while block % 2 == 0 and block > max(budget, 1):
        block //= 2
    return TwoLayerLimit(place, richness, block), NeuronDraws(w, z, jnp.zeros((runs, network.outputs), X.dtype))


def _rms(values: Array) -> Array:
    """Return the root mean square."""
    return jnp.sqrt(jnp.mean(jnp.square(values)))
