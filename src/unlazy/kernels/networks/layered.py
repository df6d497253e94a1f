"""NNGP and NTK of any network description [C1-C4]; the math is in `unlazy.layers.infinite_network`.

The covariance of every point with itself is computed once. Pairs are evaluated a tile at a time, so that a Gram matrix
of images needs little more memory than itself.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from unlazy.core import devices
from unlazy.core.arrays import Points, float_type, is_concrete, n_points
from unlazy.core.memory import memory_budget
from unlazy.core.progress import ProgressDisplay
from unlazy.kernels.base import Kernel
from unlazy.kernels.conv_gpu import stages
from unlazy.kernels.evaluation.gram_tiles import by_rows, finish, part, starts, symmetric_tiles
from unlazy.kernels.evaluation.validation import validate_diagonal, validate_magnitude
from unlazy.layers import Aggregate, Dropout, Layer, Shape, Weights, infinite_network
from unlazy.layers.protocol import position_pairs
from unlazy.layers.traversal import every, with_rates, with_shapes
from unlazy.theory.numerics.near_duplicates import row_hashes

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

    points: infinite_network.PointCovariances
    keys: Array | None


class LayeredKernel(Kernel):
    """Base class of kernels of a network description.

    Points are arrays positions × channels, or pairs (nodes, graph) for networks with `Aggregate`.

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

    def select(self, sigma: Array, theta: Array | None) -> Any:
        """Return the kernel value from Σ and Θ."""
        return theta

    @property
    def input_kind(self) -> str:
        return "tree" if self._graphs else "array"

    @property
    def _graphs(self) -> bool:
        """Whether points are graphs."""
        return any(isinstance(layer, Aggregate) for layer in every(self.network))

    @property
    def _exact(self) -> bool:
        """Whether k(x, z) of equal points is k(x, x): not with dropout, which draws a new mask for each."""
        return not any(isinstance(layer, Dropout) for layer in every(self.network))

    @property
    def expensive(self) -> bool:
        return True

    def gram(self, X: Points, Z: Points | None = None, accurate: bool = False, progress: bool = False) -> Any:
        """Gram matrix K(X, Z), or K(X, X).

        Parameters
        ----------
        X : array of shape (n, *positions, channels)
            n points, or a pair (nodes, graphs).
        Z : array, optional
            m points. X by default.
        accurate : bool, default False
            Has no effect for these kernels.
        progress : bool, default False
            Show a progress bar on standard error.

        Returns
        -------
        array of shape (n, m)
            The entries k(x, z).
        """
        return gram_with_progress(self, X, Z) if progress else super().gram(X, Z, accurate)

    def prepare(self, X: Any) -> PreparedInputs:
        """Compute the covariances of the points with themselves, in batches within the memory budget."""
        nodes, patterns = graph_parts(X) if self._graphs else (X, None)
        propagate_point = functools.partial(infinite_network.point_covariances, self.network, tangent=self.tangent)
        grid = infinite_network.grid_of(self.network, Shape(nodes.shape[1:-1], nodes.shape[-1]))
        at_once = point_batch(position_pairs.numbers(grid) * nodes.dtype.itemsize)
        if patterns is None:
            found = map_points(lambda x: propagate_point(x, None), nodes, at_once)
        else:
            found = map_points(lambda both: propagate_point(*both), (nodes, patterns), at_once)
        return PreparedInputs(found, _keys(X) if self._exact else None)

    def sides(self, X: Any, Z: Any = None, keyed: bool = True) -> tuple[Any, Any]:
        """Prepare both sides at once, so that `prepare` is compiled once."""
        if Z is None:
            return self.prepare(X), None
        both = self.prepare(jax.tree.map(lambda x, z: jnp.concatenate([x, z]), X, Z))
        n = n_points(X)
        return jax.tree.map(lambda leaf: leaf[:n], both), jax.tree.map(lambda leaf: leaf[n:], both)

    def block(self, left: PreparedInputs, right: PreparedInputs) -> Any:
        """Evaluate all pairs tile by tile; entries of equal points are exact."""
        inputs = left.points.inputs
        grid = infinite_network.grid_of(self.network, Shape(inputs.shape[1:-1], inputs.shape[-1]))
        plan = stages.plan_for(self.network, inputs)
        if plan is None:
            rows, columns = tile_shape(
                n_points(left), n_points(right), position_pairs.numbers(grid) * inputs.dtype.itemsize
            )
        else:
            rows, columns = plan.images(n_points(left), n_points(right), self.tangent)

        def pairs(left: PreparedInputs, right: PreparedInputs) -> Any:
            if plan is None:
                found = infinite_network.of_block(self.network, left.points, right.points, grid, self.tangent)
            else:
                found = stages.entries(plan, self.tangent, False, self.network, left.points, right.points)
            if left.keys is not None and right.keys is not None:
                same = left.keys[:, None] == right.keys[None, :]
                own = left.points.sigma, left.points.theta
                found = jax.tree.map(lambda k, v: jnp.where(same, v[:, None], k), found, own)
            return self.select(*found)

        return evaluate_by_tiles(pairs, left, right, rows, columns)

    def diag(self, X: Points) -> Any:
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
        return self.prepared_diag(self.read(X)[0])

    def validate(self, *points: Any, names: tuple[str, ...] = ("X", "Z"), accurate: bool = False) -> None:
        """Check the points alone: k(x, x) would be compiled again for every number of points."""
        for X, name in zip((X for X in points if X is not None), names):
            if is_concrete(X):
                validate_magnitude(X, name)

    def prepared_diag(self, X: Any, accurate: bool = False) -> Any:
        return jax.tree.map(lambda values: validate_diagonal(values, X), _diagonal(self, X))


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

    def select(self, sigma: Array, theta: Array | None) -> Any:
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

    def select(self, sigma: Array, theta: Array | None) -> Any:
        return sigma, theta


def layer_kernel(network: Layer, weights: Any, bias_weights: Any = None) -> LayeredNTK:
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
def _diagonal(kernel: LayeredKernel, X: Any) -> Any:
    """k(x, x) of every point, compiled."""
    side = kernel.prepare(X).points
    return kernel.select(side.sigma, side.theta)


def point_batch(bytes_a_point: int) -> int:
    """Number of points to prepare at once, by the same rule as for pairs."""
    budget = POINT_BYTES if devices.is_host() else memory_budget() // TEMPORARIES
    return max(1, budget // bytes_a_point)


def map_points(of: Callable, points: Any, at_once: int) -> Any:
    """Apply a function to every point, `at_once` at a time."""
    return jax.vmap(of)(points) if n_points(points) <= at_once else jax.lax.map(of, points, batch_size=at_once)


def tile_shape(n: int, m: int, bytes_a_pair: int) -> tuple[int, int]:
    """Rows and columns to evaluate at once: as many as fit the cache on the CPU, the memory budget elsewhere."""
    budget = TILE_BYTES if devices.is_host() else memory_budget() // TEMPORARIES
    pairs = max(1, budget // bytes_a_pair)
    columns = min(m, pairs)
    return min(n, max(1, pairs // columns)), columns


def evaluate_by_tiles(pairs: Callable, left: Any, right: Any, rows: int, columns: int) -> Any:
    """Evaluate all pairs, `rows` × `columns` at a time."""

    def transposed(K: Any) -> Any:
        return jax.tree.map(jnp.transpose, K)

    def strip(left: Any, right: Any) -> Any:
        if columns >= n_points(right):
            return pairs(left, right)
        return transposed(by_rows(lambda r, l: transposed(pairs(l, r)), right, left, columns))

    return strip(left, right) if rows >= n_points(left) else by_rows(strip, left, right, rows)


def gram_with_progress(kernel: LayeredKernel, X: Points, Z: Points | None = None) -> Any:
    """Gram matrix tile by tile with a progress display; half of the tiles of K(X, X) are evaluated."""
    X, Z = kernel.read(X, Z)
    kernel.validate(X, Z)
    left, right = _sides(kernel, X, Z)
    n, m = n_points(left), n_points(left if right is None else right)
    side = min(STRIP, n, m)
    corners = symmetric_tiles(n, side) if right is None else [(s, t) for s in starts(n, side) for t in starts(m, side)]
    found: Any = None
    with ProgressDisplay("Gram matrix", len(corners)) as shown:
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
    return K if right is not None else finish(K, kernel.prepared_diag(X), mirror=True)


@jax.jit
def _sides(kernel: LayeredKernel, X: Any, Z: Any) -> Any:
    return kernel.sides(X, Z)


@jax.jit
def _block(kernel: LayeredKernel, left: PreparedInputs, right: PreparedInputs) -> Any:
    return kernel.block(left, right)


def graph_parts(X: Any) -> tuple[Array, Array]:
    """Return nodes and graphs of points that are pairs; raise ValueError if they are not."""
    shapes = [leaf.shape for leaf in jax.tree.leaves(X)]
    if len(shapes) != 2 or len(shapes[0]) != 3 or shapes[1] != (*shapes[0][:2], shapes[0][1]):
        raise ValueError(
            f"a network with Aggregate needs pairs (nodes: n × nodes × channels, graphs: n × nodes × nodes), "
            f"got arrays of shapes {shapes}; pad smaller graphs with nodes without edges"
        )
    nodes, patterns = jax.tree.leaves(X)
    return nodes, patterns.astype(nodes.dtype)


def _keys(X: Any) -> Array:
    """One key per point, equal for points that are bitwise equal."""
    floats = [leaf.astype(float_type(X)).reshape(n_points(X), -1) for leaf in jax.tree.leaves(X)]
    return row_hashes(jnp.concatenate(floats, 1))
