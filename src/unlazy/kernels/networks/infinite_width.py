"""NNGP, NTK and the tangent family of infinitely wide networks [K7, K8, L1, L2]; the math is
theory.infinite_width.fully_connected."""

import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import numpy as np
from jaxtyping import Array, Float

from unlazy.core import devices
from unlazy.core.arrays import Matrix, Points
from unlazy.core.errors import UnlazyWarning
from unlazy.core.memory import memory_budget
from unlazy.core.precision import rounding
from unlazy.kernels.base import InnerProductKernel
from unlazy.kernels.evaluation import gram
from unlazy.kernels.networks import layered
from unlazy.layers.description import Layer
from unlazy.layers.description.traversal import as_mlp
from unlazy.theory.activations import dual_errors
from unlazy.theory.infinite_width import fully_connected, per_point_ntk
from unlazy.theory.infinite_width.architecture import MLP, per_layer
from unlazy.theory.infinite_width.covariance import inner_product

MANY = 2**20
"""Pairs from which on points bring along what is made of them alone; fewer are not worth another program."""
Weights = Sequence | Array | np.ndarray | float


class _ByDescription(type(InnerProductKernel)):  # type: ignore[misc]
    """Makes NNGP(…), NTK(…) and LayerKernel(…) of any description: one of layers that is no MLP has its own class."""

    def __call__(cls, network: Any, *args: Any, **options: Any) -> Any:
        if not isinstance(network, Layer):
            return super().__call__(network, *args, **options)
        mlp = as_mlp(network)
        return super().__call__(mlp, *args, **options) if mlp is not None else cls.layered(network, *args, **options)


class NetworkKernel(InnerProductKernel, metaclass=_ByDescription):
    """A kernel read off a network description: inputs are divided by √d where the network says so."""

    layered: ClassVar[Callable] = layered.LayeredNTK
    """What the same kernel is of a description of layers (`unlazy.layers`)."""

    if TYPE_CHECKING:

        def __init__(self, network: MLP | Layer): ...

    network: MLP

    def embed(self, X: Float[Matrix, "n d"], inputs: int | None = None) -> Float[Matrix, "n d"]:
        return X / math.sqrt(inputs or X.shape[1]) if self.network.scale_input else X

    def embedding(self) -> tuple:
        return ("1/√d",) if self.network.scale_input else ()

    @property
    def counted(self) -> tuple[tuple | None, tuple | None]:
        """How often the weights and the biases of each matrix count; None for the weights: no tangent kernel."""
        return (1.0,) * (self.network.depth + 1), None

    def of(self, sigma: Array, theta: Array) -> Any:
        """What the kernel gives of Σ and Θ."""
        return theta

    def at_itself(self, xx: Float[Array, "*s"]) -> Any:
        return self.of(*fully_connected.own(xx, self.network, *self.counted))

    def sides(self, X: Any, Z: Any = None, keyed: bool = True) -> tuple[Any, Any]:
        """Where there are many pairs, points bring along what is made of them at every layer."""
        left, right = super().sides(X, Z, keyed)
        n, m = X.shape[0], X.shape[0] if Z is None else Z.shape[0]
        many = devices.is_host() and n * m > MANY and per_point_ntk.suited(self.network)
        if not many or max(n, m) * per_point_ntk.numbers(self.network) * X.dtype.itemsize > memory_budget() // 8:
            return left, right
        left, right = (
            None if side is None
            else side._replace(rows=per_point_ntk.of_points(side.squares, self.network, self.counted[0] is not None))
            for side in (left, right)
        )  # fmt: skip
        return left, right

    def block(self, left: Any, right: Any) -> Any:
        if left.rows is None or right.rows is None:
            return super().block(left, right)
        products = gram.inner_products(left, right)
        return self.of(*per_point_ntk.nngp_and_tangent(products, left.rows, right.rows, self.network, *self.counted))

    def warn(self, xx: Float[np.ndarray, " n"], accurate: bool = False) -> None:
        """Says so when the duals of this activation are not exact to rounding at such norms."""
        warn_of_inexact_duals(self.network, xx, accurate, tangent=not isinstance(self, NNGP))


class NNGP(NetworkKernel):
    """Covariance of an infinitely wide network at its random start [K7]. Lee et al. (2018).

    >>> solve(NNGP(MLP(3)), X, y, ridge=1e-3).predict(Z).shape
    (5,)
    """

    layered: ClassVar[Callable] = layered.LayeredNNGP

    @property
    def counted(self) -> tuple[tuple | None, tuple | None]:
        return None, None

    def of(self, sigma: Array, theta: Array) -> Any:
        return sigma

    def entry(self, xz: Float[Array, "*#s"], xx: Float[Array, "*#s"], zz: Float[Array, "*#s"]) -> Float[Array, "*#s"]:
        return fully_connected.nngp(xz, xx, zz, self.network)

    def entry_distance(self, distance, half_chord, xx, zz):
        return fully_connected.nngp(inner_product(distance, half_chord, xx, zz), xx, zz, self.network, half_chord)


class NTK(NetworkKernel):
    """Neural tangent kernel of a fully connected network [K8]. Jacot, Gabriel and Hongler (2018).

    >>> solve(NTK(MLP(3, sigma_b=0.5)), X, y, ridge=1e-3).predict(Z).shape
    (5,)
    """

    def entry(self, xz: Float[Array, "*#s"], xx: Float[Array, "*#s"], zz: Float[Array, "*#s"]) -> Float[Array, "*#s"]:
        return fully_connected.ntk(xz, xx, zz, self.network)

    def entry_distance(self, distance, half_chord, xx, zz):
        return fully_connected.ntk(inner_product(distance, half_chord, xx, zz), xx, zz, self.network, half_chord)


class LayerKernel(NetworkKernel):
    """The tangent family Σ_l α_l K_l [L1, L2]: `weights[l]` times the kernel of weight matrix l, biases alike.

    All ones: the NTK. `bias_weights` counts the biases' part apart from the weights' where they differ.

    >>> kernel = LayerKernel(MLP(depth=2), weights=(0.0, 0.0, 1.0))  # only the head: random features
    """

    layered: ClassVar[Callable] = layered.layer_kernel

    weights: tuple
    bias_weights: tuple

    def __init__(self, network: MLP, weights: Weights, bias_weights: Weights | None = None):
        self.network = network
        self.weights = _one_each("weights", weights, network)
        self.bias_weights = self.weights if bias_weights is None else _one_each("bias_weights", bias_weights, network)

    @property
    def counted(self) -> tuple[tuple | None, tuple | None]:
        return self.weights, self.bias_weights

    def entry(self, xz: Float[Array, "*#s"], xx: Float[Array, "*#s"], zz: Float[Array, "*#s"]) -> Float[Array, "*#s"]:
        return fully_connected.nngp_and_tangent(xz, xx, zz, self.network, self.weights, self.bias_weights)[1]

    def entry_distance(self, distance, half_chord, xx, zz):
        xz = inner_product(distance, half_chord, xx, zz)
        return fully_connected.nngp_and_tangent(
            xz, xx, zz, self.network, self.weights, self.bias_weights, half_chord
        )[1]  # fmt: skip


def _one_each(what: str, given: Weights, network: MLP) -> tuple:
    count = len(given) if isinstance(given, tuple | list) else np.shape(given)
    if count not in (network.depth + 1, (network.depth + 1,)):
        shape = f"shape {count}" if isinstance(count, tuple) else count
        raise ValueError(f"{network.depth + 1} weight matrices need as many {what}, got {shape}: one number per matrix")
    return per_layer(what, given, network.depth + 1)


def layer_kernel(network: MLP, layer: int) -> LayerKernel:
    """K_l alone: layer 1 is the first weight matrix, depth + 1 (or -1) the head."""
    count = network.depth + 1
    index = layer - 1 if layer > 0 else count + layer
    if layer == 0 or not 0 <= index < count:
        raise ValueError(f"layers are 1 to {count} (or -1 for the head), got {layer!r}")
    return LayerKernel(network, tuple(float(l == index) for l in range(count)))


def standard_parametrization(network: MLP | Layer, inputs: Any, width: int | None = None) -> Any:
    """The tangent kernel of the same network with weights N(0, σ_w²/fan-in) and plain multiplication, over the width.

    Its gradient in W_l is √fan-in/σ_w times that of the NTK parametrization, so α_l = fan-in/(width σ_w²) for weights
    and 1/(width σ_b²) for biases [L1]: as the width grows only the later layers are left. Of a description of layers
    `inputs` is the shape of a point.
    """
    if isinstance(network, Layer):
        if width is None:
            raise ValueError("the standard parametrization of a description depends on the width: give width=…")
        return layered.standard_parametrization(network, inputs, width)
    wide = width if width is not None else network.width
    if wide is None:
        raise ValueError("the standard parametrization depends on the width: give width=…, or make the MLP with one")
    first = inputs if network.scale_input else 1
    fan_in = (first, *(wide,) * network.depth)
    weights = tuple(n / (wide * s**2) for n, s in zip(fan_in, network.sigma_w))
    bias = tuple(1 / (wide * s**2) if network.biases else 0.0 for s in network.sigma_b)
    return LayerKernel(network, weights, bias)


class _Both(NetworkKernel):
    """Both formulas in one pass: an entry is a pair."""

    layered: ClassVar[Callable] = layered.LayeredBoth

    def of(self, sigma: Array, theta: Array) -> Any:
        return sigma, theta

    def entry(self, xz, xx, zz):
        return fully_connected.nngp_and_ntk(xz, xx, zz, self.network)

    def entry_distance(self, distance, half_chord, xx, zz):
        xz = inner_product(distance, half_chord, xx, zz)
        return fully_connected.nngp_and_ntk(xz, xx, zz, self.network, half_chord)


def nngp_and_ntk(
    network: MLP | Layer, X: Points, Z: Points | None = None, accurate: bool = False
) -> tuple[Float[Array, "n m"], Float[Array, "n m"]]:
    """The NNGP's and the NTK's Gram matrices together, for little more than one of them.

    >>> before, during = nngp_and_ntk(MLP(2), X)
    """
    return gram.gram(_Both(network), X, Z, accurate)


def warn_of_inexact_duals(
    network: MLP, xx: Float[np.ndarray, " n"], accurate: bool = False, tangent: bool = True
) -> None:
    """Warns where duals are off by more than rounding at the given squared norms: expansions, or lost differences."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(network)) or xx.size == 0:
        return
    ends = np.asarray([xx.min(), xx.max()], float)
    unit = rounding(xx.dtype)
    allowed = 1e4 * unit
    name = network.activation.name
    error = dual_errors.network_error(network, ends, tangent)
    if not error <= allowed:
        warnings.warn(
            f"the dual of activation {name!r} is off by up to {error:.1e} of k(x, x) at these norms "
            f"(more than {allowed:.0e}): name its kinks in Activation(…, kinks=…), scale the inputs down, or use an "
            "activation with a closed form",
            UnlazyWarning,
            stacklevel=_outside(),
        )
    lost = 0.0 if accurate else dual_errors.rounding_error(network, ends[1], unit, tangent)
    if not lost <= allowed:
        warnings.warn(
            f"inner products in {xx.dtype} leave the kernel of activation {name!r} uncertain by up to {lost:.1e} of "
            f"k(x, x) between close points (more than {allowed:.0e}), since the inputs are so large: subtract their "
            "mean, scale them down, pass accurate=True, or use float64",
            UnlazyWarning,
            stacklevel=_outside(),
        )


def _outside() -> int:
    """The stack level of whoever called this library: composed kernels and products warn from further inside."""
    frame, level, outermost = inspect.currentframe(), 0, 1
    while frame is not None:  # other packages' wrappers stand between two functions of this one, and around a method
        name = frame.f_globals.get("__name__", "").split(".")[0]
        if name == "unlazy" or (name in ("equinox", "jaxtyping") and level == outermost + 1):
            outermost = level
        frame, level = frame.f_back, level + 1
    return outermost + 1
