"""NNGP and NTK of any network description [C1-C4]; the math is in `unlazy.layers.protocol.covariance`.

The covariance of every point with itself is computed once. Pairs are evaluated a tile at a time, so that a Gram matrix
of images needs little more memory than itself.
"""

import functools
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from unlazy.core import devices
from unlazy.core.arrays import Entries, Points, Side, float_type, is_concrete, n_points
from unlazy.core.devices import memory_budget
from unlazy.core.progress import ProgressDisplay, ProgressOption
from unlazy.kernels.base import Kernel
from unlazy.kernels.gram_blocks import (
    Block,
    by_rows,
    finish,
    part,
    symmetric_tiles,
    tile_offsets,
    validate_diagonal,
    validate_magnitude,
)
from unlazy.layers import Aggregate, Layer, Shape, Weights
from unlazy.layers.protocol import covariance, position_pairs
from unlazy.layers.protocol.base import single_layers
from unlazy.layers.traversal import with_rates, with_shapes
from unlazy.theory.numerics.geometry import row_hashes

T = TypeVar("T")
TILE_BYTES = 2**20
"""Bytes of one covariance of a tile on the CPU: what one layer computes stays in the cache for the next."""
POINT_BYTES = 2**19
"""Bytes of the covariances of points with themselves that are computed at once on the CPU."""
STRIP = 64
"""Rows and columns of a tile between two updates of the progress display."""
TEMPORARIES = 8
"""Arrays of the size of a covariance in memory while a tile is evaluated."""


class PreparedInputs(NamedTuple):
    """One side of a block: covariances of points with themselves, and keys that identify equal points."""

    points: covariance.PointCovariances
    keys: Array


class LayeredKernel(Kernel):
    """Base class of kernels of a network description.

    Points are arrays positions × channels, or pairs (nodes, graph) for networks with `Aggregate`. With `Dropout`,
    k(x, z) is the kernel of two evaluations with independent masks for all x and z, also equal ones.

    Parameters
    ----------
    network : Layer
        Description of the network.
    """

    network: Layer

    @property
    def tangent(self) -> bool:
        """Whether the kernel needs Θ, not only Σ."""
        return True

    def select(self, sigma: Array, theta: Array | None) -> Entries:
        """Return the kernel value from Σ and Θ."""
        return theta

    @property
    def input_kind(self) -> str:
        return "tree" if self._graphs else "array"

    @property
    def _graphs(self) -> bool:
        """Whether points are graphs."""
        return any(isinstance(layer, Aggregate) for layer in single_layers(self.network))

    @property
    def expensive(self) -> bool:
        return True

    def gram(
        self, X: Points, Z: Points | None = None, accurate: bool = False, progress: ProgressOption = False
    ) -> Entries:
        """Gram matrix K(X, Z), or K(X, X).

        Parameters
        ----------
        X : array of shape (n, *positions, channels)
            n points, or a pair (nodes, graphs).
        Z : array, optional
            m points. X by default.
        accurate : bool, default False
            Has no effect for these kernels.
        progress : bool or callable, default False
            Whether to show a progress bar, or a function that is called with an `unlazy.Progress` after every tile.

        Returns
        -------
        array of shape (n, m)
            The entries k(x, z).
        """
        return gram_with_progress(self, X, Z, progress) if progress else super().gram(X, Z, accurate)

    def prepare(self, X: Points) -> PreparedInputs:
        """Compute the covariances of the points with themselves, in batches within the memory budget."""
        return PreparedInputs(self._point_covariances(X), _keys(X))

    def _point_covariances(self, X: Points, single: bool = False) -> covariance.PointCovariances:
        nodes, patterns = graph_parts(X) if self._graphs else (X, None)
        propagate_point = functools.partial(
            covariance.point_covariances, self.network, tangent=self.tangent, single=single
        )
        grid = covariance.grid_of(self.network, Shape(nodes.shape[1:-1], nodes.shape[-1]))
        at_once = point_batch(position_pairs.numbers(grid) * nodes.dtype.itemsize)
        if patterns is None:
            return map_points(lambda x: propagate_point(x, None), nodes, at_once)
        return map_points(lambda both: propagate_point(*both), (nodes, patterns), at_once)

    def sides(
        self, X: Points, Z: Points | None = None, keyed: bool = True
    ) -> tuple[PreparedInputs, PreparedInputs | None]:
        """Prepare both sides at once, so that `prepare` is compiled once."""
        if Z is None:
            return self.prepare(X), None
        both = self.prepare(jax.tree.map(lambda x, z: jnp.concatenate([x, z]), X, Z))
        n = n_points(X)
        return jax.tree.map(lambda leaf: leaf[:n], both), jax.tree.map(lambda leaf: leaf[n:], both)

    def block(self, left: PreparedInputs, right: PreparedInputs) -> Entries:
        """Evaluate all pairs tile by tile; entries of equal points are exact."""
        inputs = left.points.inputs
        grid = covariance.grid_of(self.network, Shape(inputs.shape[1:-1], inputs.shape[-1]))
        plan = None if devices.is_host() else _gpu_programs().plan_for(self.network, inputs, self.tangent)
        if plan is None:
            rows, columns = tile_shape(
                n_points(left), n_points(right), position_pairs.numbers(grid) * inputs.dtype.itemsize
            )
        else:
            rows, columns = plan.images(n_points(left), n_points(right), self.tangent)

        def pairs(left: PreparedInputs, right: PreparedInputs) -> Entries:
            if plan is None:
                found = covariance.of_block(self.network, left.points, right.points, grid, self.tangent)
            else:
                found = _gpu_programs().entries(plan, self.tangent, False, self.network, left.points, right.points)
            same = left.keys[:, None] == right.keys[None, :]
            own = left.points.sigma, left.points.theta
            found = jax.tree.map(lambda k, v: jnp.where(same, v[:, None], k), found, own)
            return self.select(*found)

        return evaluate_by_tiles(pairs, left, right, rows, columns)

    def diag(self, X: Points) -> Entries:
        """Diagonal k(x, x) of the Gram matrix.

        Parameters
        ----------
        X : array of shape (n, *positions, channels)
            n points, or a pair (nodes, graphs).

        Returns
        -------
        array of shape (n,)
            k(x, x) of every point.
        """
        X = self.read(X)[0]
        return jax.tree.map(lambda values: validate_diagonal(values, X), _diagonal(self, X))

    def mask_variance(self, X: Points) -> Entries:
        """What the dropout masks of a single evaluation add to k(x, x); zero without `Dropout`.

        The kernel is that of the mean over masks. Labels that are single evaluations, each with its own masks, have
        this variance as noise: if it is the same for all points, add it to the ridge.

        Parameters
        ----------
        X : array of shape (n, *positions, channels)
            n points, or a pair (nodes, graphs).

        Returns
        -------
        array of shape (n,)
            The variance of every point.
        """
        return _mask_variance(self, self.read(X)[0])

    def validate(self, *points: Points | None, names: tuple[str, ...] = ("X", "Z"), accurate: bool = False) -> None:
        """Check the points alone: k(x, x) would be compiled again for every number of points."""
        for X, name in zip((X for X in points if X is not None), names):
            if is_concrete(X):
                validate_magnitude(X, name)


class LayeredNNGP(LayeredKernel):
    """NNGP of any network description: the covariance of its output at random initialization, at infinite width.

    Parameters
    ----------
    network : Layer
        Description of the network.
    """

    @property
    def tangent(self) -> bool:
        return False

    def select(self, sigma: Array, theta: Array | None) -> Array:
        return sigma


class LayeredNTK(LayeredKernel):
    """Neural tangent kernel of any network description, at infinite width.

    Parameters
    ----------
    network : Layer
        Description of the network.
    """


class LayeredNNGPAndNTK(LayeredKernel):
    """NNGP and NTK as a pair."""

    def select(self, sigma: Array, theta: Array | None) -> tuple[Array, Array | None]:
        return sigma, theta


def layer_kernel(network: Layer, weights: Sequence[float], bias_weights: Sequence[float] | None = None) -> LayeredNTK:
    """Weighted tangent kernel Σ_l α_l K_l of a network description [L1, L2].

    Parameters
    ----------
    network : Layer
        Description of the network.
    weights : sequence of float
        α_l, one per layer with weights.
    bias_weights : sequence of float, optional
        The factors of the biases. `weights` by default.

    Returns
    -------
    LayeredNTK
        The kernel.
    """
    alike = tuple(weights)
    return LayeredNTK(with_rates(network, alike, alike if bias_weights is None else tuple(bias_weights)))


def standard_parametrization(network: Layer, inputs: int | tuple[int, ...], width: int) -> LayeredNTK:
    """Tangent kernel in the standard parametrization, divided by the width [L1].

    Weights are N(0, σ_w²/fan-in) without further scaling. In terms of the NTK, weights count fan-in/(width σ_w²) times
    and biases 1/(width σ_b²) times. Attention stays in the NTK parametrization.

    Parameters
    ----------
    network : Layer
        Description of the network.
    inputs : int or tuple of int
        Shape of a point.
    width : int
        Width of the network.

    Returns
    -------
    LayeredNTK
        The kernel.
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
def _diagonal(kernel: LayeredKernel, X: Points) -> Entries:
    """k(x, x) of every point, compiled."""
    side = kernel.prepare(X).points
    return kernel.select(side.sigma, side.theta)


@jax.jit
def _mask_variance(kernel: LayeredKernel, X: Points) -> Entries:
    one, mean = (kernel._point_covariances(X, single) for single in (True, False))
    found = (kernel.select(side.sigma, side.theta) for side in (one, mean))
    return jax.tree.map(jnp.subtract, *found)


def point_batch(bytes_a_point: int) -> int:
    """Number of points to prepare at once, by the same rule as for pairs."""
    budget = POINT_BYTES if devices.is_host() else memory_budget() // TEMPORARIES
    return max(1, budget // bytes_a_point)


def map_points(of: Callable[[Points], T], points: Points, at_once: int) -> T:
    """Apply a function to every point, `at_once` at a time."""
    return jax.vmap(of)(points) if n_points(points) <= at_once else jax.lax.map(of, points, batch_size=at_once)


def _gpu_programs() -> ModuleType:
    """Import `conv_gpu.dispatch`, which loads JAX's GPU languages: a second that only a GPU needs."""
    return import_module("unlazy.kernels.conv_gpu.dispatch")


def tile_shape(n: int, m: int, bytes_a_pair: int) -> tuple[int, int]:
    """Rows and columns to evaluate at once: as many as fit the cache on the CPU, the memory budget elsewhere."""
    budget = TILE_BYTES if devices.is_host() else memory_budget() // TEMPORARIES
    pairs = max(1, budget // bytes_a_pair)
    columns = min(m, pairs)
    return min(n, max(1, pairs // columns)), columns


def evaluate_by_tiles(pairs: Block, left: Side, right: Side, rows: int, columns: int) -> Entries:
    """Evaluate all pairs, `rows` × `columns` at a time."""

    def transposed(K: Entries) -> Entries:
        return jax.tree.map(jnp.transpose, K)

    def strip(left: Side, right: Side) -> Entries:
        if columns >= n_points(right):
            return pairs(left, right)
        return transposed(by_rows(lambda r, l: transposed(pairs(l, r)), right, left, columns))

    return strip(left, right) if rows >= n_points(left) else by_rows(strip, left, right, rows)


def gram_with_progress(
    kernel: LayeredKernel, X: Points, Z: Points | None = None, progress: ProgressOption = True
) -> Entries:
    """Gram matrix tile by tile with a progress display; half of the tiles of K(X, X) are evaluated."""
    X, Z = kernel.read(X, Z)
    kernel.validate(X, Z)
    left, right = _sides(kernel, X, Z)
    n, m = n_points(left), n_points(left if right is None else right)
    side = min(STRIP, n, m)
    corners = (
        symmetric_tiles(n, side)
        if right is None
        else [(s, t) for s in tile_offsets(n, side) for t in tile_offsets(m, side)]
    )
    found: Entries = None
    with ProgressDisplay("Gram matrix", len(corners), show=progress) as shown:
        for s, t in corners:
            tiles = _block(kernel, part(left, s, side), part(left if right is None else right, t, side))
            if found is None:
                found = jax.tree.map(lambda T: np.zeros((n, m), T.dtype), tiles)
            for K, T in zip(jax.tree.leaves(found), jax.tree.leaves(tiles)):
                K[s : s + side, t : t + side] = T
            shown.advance()
    K = jax.tree.map(jnp.asarray, found)
    return K if right is not None else finish(K, kernel.diag(X), symmetrize=True)


@jax.jit
def _sides(kernel: LayeredKernel, X: Points, Z: Points | None) -> tuple[PreparedInputs, PreparedInputs | None]:
    return kernel.sides(X, Z)


@jax.jit
def _block(kernel: LayeredKernel, left: PreparedInputs, right: PreparedInputs) -> Entries:
    return kernel.block(left, right)


def graph_parts(X: PyTree) -> tuple[Array, Array]:
    """Return nodes and graphs of points that are pairs; raise ValueError if they are not."""
    shapes = [leaf.shape for leaf in jax.tree.leaves(X)]
    if len(shapes) != 2 or len(shapes[0]) != 3 or shapes[1] != (*shapes[0][:2], shapes[0][1]):
        raise ValueError(
            f"a network with Aggregate needs pairs (nodes: n × nodes × channels, graphs: n × nodes × nodes), "
            f"got arrays of shapes {shapes}; pad smaller graphs with nodes without edges"
        )
    nodes, patterns = jax.tree.leaves(X)
    return nodes, patterns.astype(nodes.dtype)


def _keys(X: Points) -> Array:
    """One key per point, equal for points that are bitwise equal."""
    floats = [leaf.astype(float_type(X)).reshape(n_points(X), -1) for leaf in jax.tree.leaves(X)]
    return row_hashes(jnp.concatenate(floats, 1))
