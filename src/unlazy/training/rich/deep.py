"""Deep networks of infinite width that learn features [M3]: all steps of descent in one pass over time."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.activations import activation
from unlazy.core.architecture import MLP
from unlazy.core.linear import dot
from unlazy.theory.mean_field import embed, with_slope
from unlazy.theory.single_site import Site, field, mean_product, whiten
from unlazy.training.losses import Loss
from unlazy.training.rich.start import symmetric_normals

FLOOR, EXACT_FLOOR = 1e-4, 1e-12
"""Share of the variance below which a direction counts as known already: far below Monte Carlo errors; where nothing is
sampled, above the rounding of float64."""


class Moment(NamedTuple):
    """What is known at one step: f, the kernels of every hidden layer, Θ."""

    f: Float[Array, " n"]
    features: tuple[Array, ...]
    gradients: tuple[Array, ...]
    tangent: Float[Array, "n n"]


class Run(NamedTuple):
    """All that a step reads and writes."""

    sites: tuple[Site, ...]
    head: Float[Array, " S"]
    bias: Float[Array, ""]
    pull: Float[Array, " D"]
    """Δ of every step so far, zero at test points."""


class Draws(NamedTuple):
    """White noise of one layer: the first's weights or ζ of u, the bias's start, ζ of r or the head's start."""

    forward: Float[Array, "S D"]
    bias: Float[Array, "S 1"]
    backward: Float[Array, "S D"]


class DeepLimit(eqx.Module):
    """The limit's training on (X, y), at any points: test points are followed along, with Δ = 0 there."""

    network: MLP
    X: Float[Array, "n d"]
    y: Float[Array, " n"]
    richness: Any
    step_size: Any
    loss: Loss = eqx.field(static=True)
    steps: int = eqx.field(static=True)
    draws: int = eqx.field(static=True)
    runs: int = eqx.field(static=True)
    quasi: bool = eqx.field(static=True)
    key: PRNGKeyArray

    @property
    def linear(self) -> bool:
        """Whether everything is Gaussian: second moments are then exact with one draw for each noise."""
        return self.network.activation == activation("identity")

    def follow(self, Z: Float[Array, "m d"] | None = None) -> Moment:
        """Every step from 0 to the last, at the training points and at Z: leading axes are runs and steps."""
        E = embed(self.network, self.X if Z is None else jnp.concatenate([self.X, Z]))
        if E.shape[1] > E.shape[0]:
            E = dot(E, jnp.linalg.qr(E.T)[0])
        keys = jax.random.split(self.key, 1 if self.linear else self.runs)
        return jax.lax.map(lambda key: self._run(key, E), keys)

    def _run(self, key: PRNGKeyArray, E: Float[Array, "n r"]) -> Moment:
        total, L = E.shape[0] * (self.steps + 1), self.network.depth
        draws = [
            self._draws(
                jax.random.fold_in(key, l), E.shape[1] if l == 0 else total, 1 if l == L - 1 else total, E.dtype
            )
            for l in range(L)
        ]
        sites = []
        for l, noise in enumerate(draws):
            empty = jnp.zeros((noise.bias.shape[0], total), E.dtype)
            none = empty[:, :0]
            sites.append(Site(
                empty, empty if l < L - 1 else none, empty, empty if l > 0 else none,
                noise.forward if l > 0 else none, noise.backward if l < L - 1 else none,
            ))  # fmt: skip
        start = Run(tuple(sites), draws[-1].backward[:, 0], jnp.zeros((), E.dtype), jnp.zeros(total, E.dtype))
        first, biases = dot(draws[0].forward, E.T), [d.bias for d in draws]
        return jax.lax.scan(lambda run, t: self._step(run, t, E, first, biases), start, jnp.arange(self.steps + 1))[1]

    def _draws(self, key: PRNGKeyArray, forward: int, backward: int, dtype: Any) -> Draws:
        if self.linear:
            count = forward + 1 + backward
            rows = jnp.sqrt(float(count)) * jnp.eye(count, dtype=dtype)
            return Draws(rows[:, :forward], rows[:, forward : forward + 1], rows[:, forward + 1 :])
        a, b = symmetric_normals(key, 1, self.draws, forward + 1, backward, self.quasi, dtype)
        return Draws(a[0, :, :forward], a[0, :, forward:], b[0])

    def _step(self, run: Run, t: Array, E: Array, first: Array, biases: list[Array]) -> tuple[Run, Moment]:
        """Layers upwards, the output, gradients downwards, the head's move."""
        n = E.shape[0]
        net, L, column = self.network, self.network.depth, t * n
        s, b = net.sigma_w, net.sigma_b
        rate = self.richness * s[L] * self.step_size
        floor = EXACT_FLOOR if self.linear and E.dtype == jnp.float64 else FLOOR
        sites, slopes, kernels = list(run.sites), [], []
        for l in range(L):
            site = sites[l]
            past = site.back * run.pull
            if l == 0:
                K = dot(E, E.T)
                h = first + rate * dot(past.reshape(-1, self.steps + 1, n).sum(1), K)
            else:
                below = sites[l - 1]
                now = jax.lax.dynamic_slice_in_dim(below.value, column, n, 1)
                factor, white = whiten(now, below.value_white, column, floor)
                sites[l - 1] = below._replace(value_white=white)
                fresh = s[l] * dot(site.noise, factor.T) + b[l] * biases[l]
                response = s[l] * mean_product(now, below.back_noise)
                covariance = s[l] ** 2 * mean_product(now, below.value) + b[l] ** 2
                h = field(fresh, site.back_white, response, past, rate * covariance)
                K = s[l] ** 2 * mean_product(now, now) + b[l] ** 2
            value, slope = with_slope(net.activation, h)
            sites[l] = site._replace(value=_put(site.value, value, column))
            slopes.append(slope)
            kernels.append((K, mean_product(value, value)))
        f = s[L] / self.richness * dot(run.head, value) / value.shape[0] + run.bias
        pull = self._pull(f)
        g, gradients = run.head[:, None] * slopes[-1], []
        for l in reversed(range(L)):
            gradients.append(mean_product(g, g))
            sites[l] = sites[l]._replace(back=_put(sites[l].back, g, column))
            if l > 0:
                site, above = sites[l - 1], sites[l]
                factor, white = whiten(g, above.back_white, column, floor)
                sites[l] = above._replace(back_white=white)
                fresh = s[l] * dot(site.back_noise, factor.T)
                response = s[l] * mean_product(g, above.noise)
                covariance = rate * s[l] ** 2 * mean_product(g, above.back)
                g = field(fresh, site.value_white, response, site.value * run.pull, covariance) * slopes[l - 1]
        gradients.reverse()
        Theta = s[L] ** 2 * (kernels[-1][1] + sum(K * G for (K, _), G in zip(kernels, gradients))) + b[L] ** 2
        head = run.head + rate * dot(value, pull)
        bias = run.bias + b[L] ** 2 * self.step_size * jnp.sum(pull)
        pulls = jax.lax.dynamic_update_slice_in_dim(run.pull, pull, column, 0)
        found = Moment(f, tuple(Phi for _, Phi in kernels), tuple(gradients), Theta)
        return Run(tuple(sites), head, bias, pulls), found

    def _pull(self, f: Float[Array, " n"]) -> Float[Array, " n"]:
        """-∂ℓ/∂f at training points, zero elsewhere."""
        count = self.X.shape[0]
        pull = -jax.grad(lambda f: jnp.sum(self.loss.each(f, self.y)))(f[:count])
        return jnp.zeros_like(f).at[:count].set(pull)


def _put(array: Array, columns: Array, column: Array) -> Array:
    return jax.lax.dynamic_update_slice_in_dim(array, columns, column, 1)


def memory_needed(network: MLP, points: int, steps: int, draws: int, itemsize: int) -> int:
    """Bytes of one run: six arrays of draws × (points × times) a layer, and as many on the way."""
    return 12 * network.depth * draws * points * (steps + 1) * itemsize
