"""NNGP and NTK of any network description [C1-C4]; the math is layers.covariance.

Every point is surveyed once; pairs are evaluated a tile at a time, so that a Gram matrix of images needs little more
memory than itself.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from unlazy.core import devices
from unlazy.core.arrays import Points, concrete, count, float_type
from unlazy.core.memory import memory_budget
from unlazy.core.progress import Display
from unlazy.kernels.base import Kernel
from unlazy.kernels.conv_gpu import stages
from unlazy.kernels.evaluation.gram_tiles import by_rows, finish, part, starts, symmetric_tiles
from unlazy.kernels.evaluation.validation import admit_diagonal, admit_size
from unlazy.layers import covariance
from unlazy.layers.covariance import position_pairs
from unlazy.layers.description import Aggregate, Dropout, Layer, Shape, Weights
from unlazy.layers.description.traversal import every, with_rates, with_shapes
from unlazy.theory.numerics.near_duplicates import row_keys

CACHED = 2**20
"""Bytes of one covariance of a tile on the CPU: the caches keep what a layer leaves for the next."""
SURVEYED = 2**19
"""Bytes of the same-input covariances that are surveyed at once on the CPU."""
STRIP = 64
"""Rows and columns of a tile between two looks at the progress."""
TEMPORARIES = 8
"""Arrays of that size that the evaluation of a tile may hold."""


class Surveyed(NamedTuple):
    """One side of a block: surveyed points, and keys by which equal ones are known."""

    points: covariance.Side
    keys: Array | None


class LayeredKernel(Kernel):
    """A kernel read off a description: points are arrays positions × channels, or pairs (nodes, graph)."""

    network: Layer

    @property
    def tangent(self) -> bool:
        """Whether Θ is wanted, not Σ alone."""
        return True

    def of(self, sigma: Array, theta: Array | None) -> Any:
        """What the kernel gives of Σ and Θ."""
        return theta

    @property
    def takes(self) -> str:
        return "tree" if self._graphs else "array"

    @property
    def _graphs(self) -> bool:
        return any(isinstance(layer, Aggregate) for layer in every(self.network))

    @property
    def _exact(self) -> bool:
        """Whether k(x, z) of equal points is k(x, x): dropout draws another mask for each."""
        return not any(isinstance(layer, Dropout) for layer in every(self.network))

    @property
    def costly(self) -> bool:
        return True

    def gram(self, X: Points, Z: Points | None = None, accurate: bool = False, progress: bool = False) -> Any:
        """K(X, Z), or K(X, X). With `progress` one line on standard error says how far it has come."""
        return patient_gram(self, X, Z) if progress else super().gram(X, Z, accurate)

    def prepare(self, X: Any) -> Surveyed:
        nodes, patterns = parts(X) if self._graphs else (X, None)
        survey = functools.partial(covariance.surveyed, self.network, tangent=self.tangent)
        grid = covariance.grid_of(self.network, Shape(nodes.shape[1:-1], nodes.shape[-1]))
        at_once = points_at_once(position_pairs.numbers(grid) * nodes.dtype.itemsize)
        if patterns is None:
            found = each(lambda x: survey(x, None), nodes, at_once)
        else:
            found = each(lambda both: survey(*both), (nodes, patterns), at_once)
        return Surveyed(found, _keys(X) if self._exact else None)

    def sides(self, X: Any, Z: Any = None, keyed: bool = True) -> tuple[Any, Any]:
        """Both in one survey: it is compiled once."""
        if Z is None:
            return self.prepare(X), None
        both = self.prepare(jax.tree.map(lambda x, z: jnp.concatenate([x, z]), X, Z))
        n = count(X)
        return jax.tree.map(lambda leaf: leaf[:n], both), jax.tree.map(lambda leaf: leaf[n:], both)

    def block(self, left: Surveyed, right: Surveyed) -> Any:
        """Tile by tile; equal points are exact."""
        inputs = left.points.inputs
        grid = covariance.grid_of(self.network, Shape(inputs.shape[1:-1], inputs.shape[-1]))
        plan = stages.plan_for(self.network, inputs)
        if plan is None:
            rows, columns = tile(count(left), count(right), position_pairs.numbers(grid) * inputs.dtype.itemsize)
        else:
            rows, columns = plan.images(count(left), count(right), self.tangent)

        def pairs(left: Surveyed, right: Surveyed) -> Any:
            if plan is None:
                found = covariance.of_block(self.network, left.points, right.points, grid, self.tangent)
            else:
                found = stages.entries(plan, self.tangent, False, self.network, left.points, right.points)
            if left.keys is not None and right.keys is not None:
                same = left.keys[:, None] == right.keys[None, :]
                own = left.points.sigma, left.points.theta
                found = jax.tree.map(lambda k, v: jnp.where(same, v[:, None], k), found, own)
            return self.of(*found)

        return tiled(pairs, left, right, rows, columns)

    def diag(self, X: Points) -> Any:
        """k(x, x) of every point, from its survey."""
        return self.on_diagonal(self.read(X)[0])

    def admit(self, *points: Any, names: tuple[str, ...] = ("X", "Z"), accurate: bool = False) -> None:
        """Looks at the points alone: a survey of them would be compiled for every number of points."""
        for X, name in zip((X for X in points if X is not None), names):
            if concrete(X):
                admit_size(X, name)

    def on_diagonal(self, X: Any, accurate: bool = False) -> Any:
        return jax.tree.map(lambda values: admit_diagonal(values, X), _diagonal(self, X))


class LayeredNNGP(LayeredKernel):
    """Covariance of an infinitely wide network of any description, at its random start."""

    @property
    def tangent(self) -> bool:
        return False

    def of(self, sigma: Array, theta: Array | None) -> Any:
        return sigma


class LayeredNTK(LayeredKernel):
    """Neural tangent kernel of an infinitely wide network of any description."""


class LayeredBoth(LayeredKernel):
    """Both, as a pair."""

    def of(self, sigma: Array, theta: Array | None) -> Any:
        return sigma, theta


def layer_kernel(network: Layer, weights: Any, bias_weights: Any = None) -> LayeredNTK:
    """Σ_l α_l K_l [L1, L2]: the NTK with the weights of layer l counted α_l times, its biases `bias_weights[l]`."""
    alike = tuple(weights)
    return LayeredNTK(with_rates(network, alike, alike if bias_weights is None else tuple(bias_weights)))


def standard_parametrization(network: Layer, inputs: int | tuple[int, ...], width: int) -> LayeredNTK:
    """The tangent kernel with weights N(0, σ_w²/fan-in) and plain multiplication, over the width [L1].

    `inputs` is the shape of a point. Weights count fan-in/(width σ_w²) times, biases 1/(width σ_b²) times. Attention
    stays in the NTK parametrization.
    """
    positions = inputs if isinstance(inputs, tuple) else (inputs,)
    rates, bias_rates = [], []
    for layer, shape in with_shapes(network, Shape(positions[:-1], positions[-1])):
        if isinstance(layer, Weights):
            fan_in = layer.fan_in(Shape(shape.positions, shape.channels or width)) or width
            rates.append(fan_in / (width * layer.sigma_w**2))
            plain = isinstance(layer.sigma_b, int | float) and layer.sigma_b == 0
            bias_rates.append(0.0 if plain else 1 / (width * layer.sigma_b**2))
    return LayeredNTK(with_rates(network, tuple(rates), tuple(bias_rates)))


@jax.jit
def _diagonal(kernel: LayeredKernel, X: Any) -> Any:
    side = kernel.prepare(X).points
    return kernel.of(side.sigma, side.theta)


def points_at_once(bytes_a_point: int) -> int:
    """How many points to survey at once, by the same rule as pairs."""
    room = SURVEYED if devices.is_host() else memory_budget() // TEMPORARIES
    return max(1, room // bytes_a_point)


def each(of: Callable, points: Any, at_once: int) -> Any:
    """`of` every point, so many at a time."""
    return jax.vmap(of)(points) if count(points) <= at_once else jax.lax.map(of, points, batch_size=at_once)


def tile(n: int, m: int, bytes_a_pair: int) -> tuple[int, int]:
    """Rows and columns to evaluate at once: as many as the cache holds on the CPU, as the budget allows elsewhere."""
    room = CACHED if devices.is_host() else memory_budget() // TEMPORARIES
    pairs = max(1, room // bytes_a_pair)
    columns = min(m, pairs)
    return min(n, max(1, pairs // columns)), columns


def tiled(pairs: Callable, left: Any, right: Any, rows: int, columns: int) -> Any:
    """All pairs, so many rows and columns at a time."""

    def transposed(K: Any) -> Any:
        return jax.tree.map(jnp.transpose, K)

    def strip(left: Any, right: Any) -> Any:
        if columns >= count(right):
            return pairs(left, right)
        return transposed(by_rows(lambda r, l: transposed(pairs(l, r)), right, left, columns))

    return strip(left, right) if rows >= count(left) else by_rows(strip, left, right, rows)


def patient_gram(kernel: LayeredKernel, X: Points, Z: Points | None = None) -> Any:
    """The same Gram matrix strip by strip, each shown when it is done; halves of K(X, X) once."""
    X, Z = kernel.read(X, Z)
    kernel.admit(X, Z)
    left, right = _sides(kernel, X, Z)
    n, m = count(left), count(left if right is None else right)
    side = min(STRIP, n, m)
    corners = symmetric_tiles(n, side) if right is None else [(s, t) for s in starts(n, side) for t in starts(m, side)]
    found: Any = None
    with Display("Gram matrix", len(corners)) as shown:
        for s, t in corners:
            tiles = _block(kernel, part(left, s, side), part(left if right is None else right, t, side))
            if found is None:
                found = jax.tree.map(lambda T: np.zeros((n, m), T.dtype), tiles)
            for K, T in zip(jax.tree.leaves(found), jax.tree.leaves(tiles)):
                K[s : s + side, t : t + side] = T
                if right is None:
                    K[t : t + side, s : s + side] = np.asarray(T).T
            shown.advance()
    K = jax.tree.map(jnp.asarray, found)
    return K if right is not None else finish(K, kernel.on_diagonal(X), mirror=True)


@jax.jit
def _sides(kernel: LayeredKernel, X: Any, Z: Any) -> Any:
    return kernel.sides(X, Z)


@jax.jit
def _block(kernel: LayeredKernel, left: Surveyed, right: Surveyed) -> Any:
    return kernel.block(left, right)


def parts(X: Any) -> tuple[Array, Array]:
    """Nodes and graphs of points that are pairs; a ValueError where they are not."""
    shapes = [leaf.shape for leaf in jax.tree.leaves(X)]
    if len(shapes) != 2 or len(shapes[0]) != 3 or shapes[1] != (*shapes[0][:2], shapes[0][1]):
        raise ValueError(
            f"points of a network with Aggregate are pairs (nodes: n × nodes × channels, graphs: n × nodes × nodes), "
            f"got arrays of shapes {shapes}; pad graphs of fewer nodes with nodes without edges"
        )
    nodes, patterns = jax.tree.leaves(X)
    return nodes, patterns.astype(nodes.dtype)


def _keys(X: Any) -> Array:
    """One number for each point, the same for points that are the same bit by bit."""
    floats = [leaf.astype(float_type(X)).reshape(count(X), -1) for leaf in jax.tree.leaves(X)]
    return row_keys(jnp.concatenate(floats, 1))
