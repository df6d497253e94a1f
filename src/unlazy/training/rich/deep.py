"""Deep networks of infinite width that learn features [M3]: all moments of training in one pass over time.

A moment is a state of the network at which f and its gradient are evaluated. Its weights are W_0 + Σ_i a_ji v_i with
v_i the velocities at earlier moments: a row of the `plan`. Plain steps have a_ji = η for all i < j; stages of a
Runge–Kutta method are moments with their own rows, so that flow and descent use the same program.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Float, Int, PRNGKeyArray

from unlazy.core.arrays import dot
from unlazy.theory.activations.functions import activation
from unlazy.theory.dynamics.losses import Loss
from unlazy.theory.feature_learning.mean_field import embed, value_and_slope
from unlazy.theory.feature_learning.single_site import LayerDraws, layer_field, mean_product, whiten
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.training.rich.initialization import symmetric_normals

FLOOR, EXACT_FLOOR = 1e-4, 1e-12
"""Share of the variance below which a direction is considered known: far below Monte Carlo errors.

For exact (linear) networks: above the rounding error of float64.
"""


class Moment(NamedTuple):
    """Values at one moment: f, the kernels of every hidden layer, Θ summed over outputs, df/dt."""

    f: Float[Array, "n c"]
    features: tuple[Array, ...]
    gradients: tuple[Array, ...]
    """Summed over outputs."""
    tangent: Float[Array, "n n"]
    slope: Float[Array, "n c"]


class Run(NamedTuple):
    """State of a run: the single-site processes and Δ of all moments so far."""

    sites: tuple[LayerDraws, ...]
    pull: Float[Array, "D c"]
    """Δ of every moment so far, zero at test points."""
    done: Int[Array, ""]


class Start(NamedTuple):
    """Constants of a run: embedded inputs, initial first layer, biases and readout."""

    E: Float[Array, "n r"]
    first: Float[Array, "S n"]
    biases: tuple[Array, ...]
    head: Float[Array, "S c"]


class Draws(NamedTuple):
    """White noise of one layer: first-layer weights or ζ of u, initial bias, ζ of r or initial readout."""

    forward: Float[Array, "S D"]
    bias: Float[Array, "S 1"]
    backward: Float[Array, "S Dc"]


class DeepLimit(eqx.Module):
    """Training of the limit on (X, y), evaluated at any points: test points are added with Δ = 0."""

    network: MLP
    X: Float[Array, "n d"]
    y: Float[Array, " n *c"]
    richness: ArrayLike
    plan: Float[Array, "T T"]
    """Weights of earlier moments' velocities in the state of each moment."""
    shares: Float[Array, "T n"]
    """Weights of training points in the loss at each moment (batches)."""
    loss: Loss = eqx.field(static=True)
    draws: int = eqx.field(static=True)
    runs: int = eqx.field(static=True)
    quasi: bool = eqx.field(static=True)
    key: PRNGKeyArray

    @property
    def linear(self) -> bool:
        """Whether everything is Gaussian; second moments are then exact with one draw for each noise."""
        return self.network.activation == activation("identity")

    @property
    def keys(self) -> Array:
        """One key for each run."""
        return jax.random.split(self.key, 1 if self.linear else self.runs)

    def follow(self, Z: Float[Array, "m d"] | None = None) -> Moment:
        """Return every moment at the training points and at Z; leading axes are runs and moments."""

        def one(key: PRNGKeyArray) -> Moment:
            run, start = self.begin(key, Z)
            return jax.lax.scan(lambda run, row: self.moment(run, row, start), run, self.plan)[1]

        return jax.lax.map(one, self.keys)

    def begin(self, key: PRNGKeyArray, Z: Float[Array, "m d"] | None = None) -> tuple[Run, Start]:
        """Return the state and the constants of a run before its first moment."""
        E = embed(self.network, self.X if Z is None else jnp.concatenate([self.X, Z]))
        if E.shape[1] > E.shape[0]:
            E = dot(E, jnp.linalg.qr(E.T)[0])
        total, L, c = E.shape[0] * len(self.plan), self.network.depth, self.network.outputs
        draws = [
            self._draws(
                jax.random.fold_in(key, l), E.shape[1] if l == 0 else total, c * (1 if l == L - 1 else total), E.dtype
            )
            for l in range(L)
        ]
        sites = []
        for l, noise in enumerate(draws):
            empty = jnp.zeros((noise.bias.shape[0], total), E.dtype)
            wide = jnp.zeros((noise.bias.shape[0], c * total), E.dtype)
            none = empty[:, :0]
            sites.append(LayerDraws(
                empty, empty if l < L - 1 else none, wide, wide if l > 0 else none,
                noise.forward if l > 0 else none, noise.backward if l < L - 1 else none,
            ))  # fmt: skip
        run = Run(tuple(sites), jnp.zeros((total, c), E.dtype), jnp.zeros((), jnp.int32))
        return run, Start(E, dot(draws[0].forward, E.T), tuple(d.bias for d in draws), draws[-1].backward)

    def _draws(self, key: PRNGKeyArray, forward: int, backward: int, dtype: DTypeLike) -> Draws:
        """Draw the white noise of one layer; unit vectors for linear networks."""
        if self.linear:
            count = forward + 1 + backward
            rows = jnp.sqrt(float(count)) * jnp.eye(count, dtype=dtype)
            return Draws(rows[:, :forward], rows[:, forward : forward + 1], rows[:, forward + 1 :])
        a, b = symmetric_normals(key, 1, self.draws, forward + 1, backward, self.quasi, dtype)
        return Draws(a[0, :, :forward], a[0, :, forward:], b[0])

    def moment(self, run: Run, row: Float[Array, " T"], start: Start) -> tuple[Run, Moment]:
        """Evaluate the network with weights W_0 + Σ_i row_i v_i: forward pass, output, backward pass."""
        E, c = start.E, self.network.outputs
        n, column = E.shape[0], run.done * E.shape[0]
        net, L = self.network, self.network.depth
        s, b = net.sigma_w, net.sigma_b
        rate, weights = self.richness * s[L], jnp.repeat(row, n)[:, None] * run.pull
        floor = EXACT_FLOOR if self.linear and E.dtype == jnp.float64 else FLOOR
        # Σ_k Δ_k g_k of every layer, weighted: drives the weights below it
        drives = [jnp.sum(site.back.reshape(-1, *weights.shape) * weights, -1) for site in run.sites]
        sites, slopes, kernels = list(run.sites), [], []
        for l in range(L):
            site = sites[l]
            if l == 0:
                K = dot(E, E.T)
                h = start.first + rate * dot(drives[0].reshape(-1, len(row), n).sum(1), K)
            else:
                below = sites[l - 1]
                now = jax.lax.dynamic_slice_in_dim(below.value, column, n, 1)
                factor, white = whiten(now, below.value_white, column, floor)
                sites[l - 1] = below._replace(value_white=white)
                fresh = s[l] * dot(site.noise, factor.T) + b[l] * start.biases[l]
                response = s[l] * mean_product(now, below.back_noise)
                covariance = s[l] ** 2 * mean_product(now, below.value) + b[l] ** 2
                h = layer_field(fresh, site.back_white, response, drives[l], rate * covariance)
                K = s[l] ** 2 * mean_product(now, now) + b[l] ** 2
            value, slope = value_and_slope(net.activation, h)
            sites[l] = site._replace(value=_put(site.value, value, column))
            slopes.append(slope)
            kernels.append(K)
        head = start.head + rate * dot(run.sites[-1].value, weights)
        f = s[L] / self.richness * dot(value.T, head) / value.shape[0] + b[L] ** 2 * jnp.sum(weights, 0)
        pull = self._pull(f, run.done)
        g, backs = _times(head[:, None, :], slopes[-1]), []
        for l in reversed(range(L)):
            backs.append(g)
            sites[l] = sites[l]._replace(back=_put(sites[l].back, g, column * c))
            if l > 0:
                site, above = sites[l - 1], sites[l]
                factor, white = whiten(g, above.back_white, column * c, floor)
                sites[l] = above._replace(back_white=white)
                fresh = s[l] * dot(site.back_noise, factor.T)
                response = s[l] * mean_product(g, above.noise)
                covariance = rate * s[l] ** 2 * mean_product(g, drives[l])
                z = layer_field(fresh, site.value_white, response, site.value, covariance)
                g = _times(z.reshape(-1, n, c), slopes[l - 1])
        pulls = jax.lax.dynamic_update_slice_in_dim(run.pull, pull, column, 0)
        found = self._seen(f, pull, sites, kernels, backs[::-1], column)
        return Run(tuple(sites), pulls, run.done + 1), found

    def _seen(
        self, f: Array, pull: Array, sites: list[LayerDraws], kernels: list, backs: list, column: Array
    ) -> Moment:
        """Return kernels, Θ and df/dt = Θ Δ."""
        n, c = f.shape
        s, b = self.network.sigma_w[-1], self.network.sigma_b[-1]
        values = [jax.lax.dynamic_slice_in_dim(site.value, column, n, 1) for site in sites]
        Phis = [mean_product(value, value) for value in values]
        gradients, slope = [], s**2 * dot(Phis[-1], pull) + b**2 * jnp.sum(pull, 0)
        for K, g in zip(kernels, backs):
            each = g.reshape(-1, n, c)
            gradients.append(jnp.sum(jnp.stack([mean_product(each[:, :, k], each[:, :, k]) for k in range(c)]), 0))
            moved = mean_product(g, jnp.sum(each * pull, -1)).reshape(n, c, n)
            slope = slope + s**2 * jnp.sum(moved * K[:, None, :], -1)
        Theta = s**2 * (c * Phis[-1] + sum(K * G for K, G in zip(kernels, gradients))) + c * b**2
        return Moment(f, tuple(Phis), tuple(gradients), Theta, slope)

    def _pull(self, f: Float[Array, "n c"], moment: Array) -> Float[Array, "n c"]:
        """Return -∂ℓ/∂f at training points, weighted by their shares, and zero elsewhere."""
        count = self.X.shape[0]

        def total(f: Array) -> Array:
            return jnp.sum(self.shares[moment] * self.loss.per_point(f[:, 0] if f.shape[1] == 1 else f, self.y))

        return jnp.zeros_like(f).at[:count].set(-jax.grad(total)(f[:count]))


def _times(z: Float[Array, "S _ c"], slope: Float[Array, "S n"]) -> Float[Array, "S nc"]:
    """Return g = z φ'(h), with points and outputs in one axis."""
    return (z * slope[:, :, None]).reshape(slope.shape[0], -1)


def _put(array: Array, columns: Array, column: Array) -> Array:
    """Write columns into an array."""
    return jax.lax.dynamic_update_slice_in_dim(array, columns, column, 1)


def memory_needed(network: MLP, points: int, moments: int, draws: int, itemsize: int) -> int:
    """Return the memory of one run in bytes.

    Three arrays of draws × (points × moments) for every layer, three more for each output, and as many temporaries.
    """
    return 6 * (1 + network.outputs) * network.depth * draws * points * moments * itemsize
