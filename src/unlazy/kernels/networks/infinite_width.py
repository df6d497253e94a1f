"""NNGP, NTK and weighted tangent kernels of infinitely wide networks [K7, K8, L1, L2].

The math is in `unlazy.theory.infinite_width.fully_connected`.
"""

import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import numpy as np
from jaxtyping import Array, Float

from unlazy.core import devices
from unlazy.core.arrays import Entries, Matrix, Points, Side, unit_roundoff
from unlazy.core.devices import memory_budget
from unlazy.core.errors import UnlazyWarning
from unlazy.kernels import gram_blocks
from unlazy.kernels.base import InnerProductKernel
from unlazy.kernels.networks import layered
from unlazy.layers import Layer
from unlazy.layers.traversal import as_mlp
from unlazy.theory.activations import dual_errors
from unlazy.theory.infinite_width import fully_connected, per_point_ntk
from unlazy.theory.infinite_width.architecture import MLP, per_layer
from unlazy.theory.numerics.geometry import inner_product

MANY_PAIRS = 2**20
"""Number of pairs above which quantities per point are precomputed; below, another program does not pay off."""
Weights = Sequence | Array | np.ndarray | float


class _NetworkKernelMeta(type(InnerProductKernel)):  # type: ignore[misc]
    """Metaclass that makes NNGP(…), NTK(…), … return a layered kernel for descriptions that are not an MLP."""

    def __call__(cls, network: Any, *args: Any, **options: Any) -> Any:
        if not isinstance(network, Layer):
            return super().__call__(network, *args, **options)
        mlp = as_mlp(network)
        return super().__call__(mlp, *args, **options) if mlp is not None else cls.layered(network, *args, **options)


class NetworkKernel(InnerProductKernel, metaclass=_NetworkKernelMeta):
    """Base class of kernels of a fully connected network; inputs are divided by √d if `network.scale_input` is set.

    Parameters
    ----------
    network : MLP or Layer
        Description of the network. One that is not equivalent to an MLP gives a kernel of `networks.layered`.
    """

    layered: ClassVar[Callable] = layered.LayeredNTK
    """The same kernel of a description of layers (`unlazy.layers`)."""

    if TYPE_CHECKING:

        def __init__(self, network: MLP | Layer): ...

    network: MLP

    def embed(self, X: Float[Matrix, "n d"], inputs: int | None = None) -> Float[Matrix, "n d"]:
        return X / math.sqrt(inputs or X.shape[1]) if self.network.scale_input else X

    def embedding(self) -> tuple:
        return ("1/√d",) if self.network.scale_input else ()

    @property
    def term_weights(self) -> tuple[tuple | None, tuple | None]:
        """Factors of the weights and of the biases of each matrix; None for the weights means no Θ."""
        return (1.0,) * (self.network.depth + 1), None

    def select(self, sigma: Array, theta: Array) -> Entries:
        """Return the kernel value from Σ and Θ."""
        return theta

    def entry(
        self, xz: Float[Array, "*#s"], xx: Float[Array, "*#s"], zz: Float[Array, "*#s"], unroll: bool = False
    ) -> Entries:
        """k from inner products; with `unroll`, all layers are written out instead of a loop over layers."""
        return self.select(
            *fully_connected.nngp_and_tangent(xz, xx, zz, self.network, *self.term_weights, unroll=unroll)
        )

    def entry_distance(self, distance, half_chord, xx, zz):
        xz = inner_product(distance, half_chord, xx, zz)
        return self.select(*fully_connected.nngp_and_tangent(xz, xx, zz, self.network, *self.term_weights, half_chord))

    def diag_entry(self, xx: Float[Array, "*s"]) -> Entries:
        return self.select(*fully_connected.diagonal_kernels(xx, self.network, *self.term_weights))

    def sides(self, X: Points, Z: Points | None = None, keyed: bool = True) -> tuple[Side, Side | None]:
        """Prepare both sides; for many pairs, with the quantities of every layer that depend on one point."""
        left, right = super().sides(X, Z, keyed)
        n, m = X.shape[0], X.shape[0] if Z is None else Z.shape[0]
        many = devices.is_host() and n * m > MANY_PAIRS and per_point_ntk.is_supported(self.network)
        if (
            not many
            or max(n, m) * per_point_ntk.values_per_point(self.network) * X.dtype.itemsize > memory_budget() // 8
        ):
            return left, right
        tangent = self.term_weights[0] is not None
        left, right = (
            None if side is None
            else side._replace(rows=per_point_ntk.per_point_terms(side.squares, self.network, tangent))
            for side in (left, right)
        )  # fmt: skip
        return left, right

    def block(self, left: Side, right: Side) -> Entries:
        if left.rows is None or right.rows is None:
            return super().block(left, right)
        products = gram_blocks.inner_products(left, right)
        values = self.select(
            *per_point_ntk.nngp_and_tangent(products, left.rows, right.rows, self.network, *self.term_weights)
        )
        return gram_blocks.correct_near_pairs(self, left, right, products, values)

    def warn(self, xx: Float[np.ndarray, " n"], accurate: bool = False) -> None:
        """Warn if the duals of the activation have errors above rounding at these norms."""
        warn_of_inexact_duals(self.network, xx, accurate, tangent=not isinstance(self, NNGP))


class NNGP(NetworkKernel):
    """Covariance of an infinitely wide network at random initialization [K7].

    Parameters
    ----------
    network : MLP or Layer
        Description of the network: fully connected, or any layers of `unlazy.layers`.

    References
    ----------
    Lee et al. (2018), Deep neural networks as Gaussian processes.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import MLP, NNGP
    >>> NNGP(MLP(3)).gram(np.eye(4)).shape
    (4, 4)
    """

    layered: ClassVar[Callable] = layered.LayeredNNGP

    @property
    def term_weights(self) -> tuple[tuple | None, tuple | None]:
        return None, None

    def select(self, sigma: Array, theta: Array) -> Array:
        return sigma


class NTK(NetworkKernel):
    """Neural tangent kernel of an infinitely wide network [K8].

    Parameters
    ----------
    network : MLP or Layer
        Description of the network: fully connected, or any layers of `unlazy.layers`.

    References
    ----------
    Jacot, Gabriel and Hongler (2018), Neural tangent kernel: convergence and generalization in neural networks.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import MLP, NTK, solve
    >>> X, y = np.eye(4), np.arange(4.0)
    >>> solve(NTK(MLP(3, sigma_b=0.5)), X, y, ridge=1e-3).predict(X).shape
    (4,)
    """


class LayerKernel(NetworkKernel):
    """Weighted tangent kernel Σ_l α_l K_l, where K_l is the tangent kernel of weight matrix l [L1, L2].

    With all factors 1 it is the NTK.

    Parameters
    ----------
    network : MLP or Layer
        Description of the network.
    weights : sequence of float
        α_l, one per weight matrix.
    bias_weights : sequence of float, optional
        Factors of the bias parts. `weights` by default.

    Raises
    ------
    ValueError
        If the number of factors is not the number of weight matrices.

    Examples
    --------
    >>> from unlazy import MLP, LayerKernel
    >>> kernel = LayerKernel(MLP(depth=2), weights=(0.0, 0.0, 1.0))  # only the head: random features
    """

    layered: ClassVar[Callable] = layered.layer_kernel

    weights: tuple
    bias_weights: tuple

    def __init__(self, network: MLP, weights: Weights, bias_weights: Weights | None = None):
        self.network = network
        self.weights = _per_matrix("weights", weights, network)
        self.bias_weights = self.weights if bias_weights is None else _per_matrix("bias_weights", bias_weights, network)

    @property
    def term_weights(self) -> tuple[tuple | None, tuple | None]:
        return self.weights, self.bias_weights


def _per_matrix(what: str, given: Weights, network: MLP) -> tuple:
    """One factor per weight matrix, as a tuple."""
    count = len(given) if isinstance(given, tuple | list) else np.shape(given)
    if count not in (network.depth + 1, (network.depth + 1,)):
        shape = f"shape {count}" if isinstance(count, tuple) else count
        raise ValueError(
            f"{network.depth + 1} weight matrices need {network.depth + 1} {what}, got {shape}: one per matrix"
        )
    return per_layer(what, given, network.depth + 1)


def layer_kernel(network: MLP, layer: int) -> LayerKernel:
    """Tangent kernel K_l of a single weight matrix.

    Parameters
    ----------
    network : MLP
        Description of the network.
    layer : int
        l: 1 is the first weight matrix, depth + 1 (or -1) the head.

    Returns
    -------
    LayerKernel
        The kernel.

    Raises
    ------
    ValueError
        If there is no such layer.
    """
    count = network.depth + 1
    index = layer - 1 if layer > 0 else count + layer
    if layer == 0 or not 0 <= index < count:
        raise ValueError(f"layer must be from 1 to {count} (or -1 for the head), got {layer!r}")
    return LayerKernel(network, tuple(float(l == index) for l in range(count)))


def standard_parametrization(
    network: MLP | Layer, inputs: int | tuple[int, ...], width: int | None = None
) -> LayerKernel | layered.LayeredNTK:
    """Tangent kernel of a network in the standard parametrization, divided by the width [L1].

    Weights are N(0, σ_w²/fan-in) without further scaling. The gradient in W_l is √fan-in/σ_w times that of the NTK
    parametrization, so that α_l = fan-in/(width σ_w²) for weights and 1/(width σ_b²) for biases: as the width grows,
    only the later layers remain.

    Parameters
    ----------
    network : MLP or Layer
        Description of the network.
    inputs : int or tuple of int
        Number of inputs, or the shape of a point for a description of layers.
    width : int, optional
        Width of the network. That of the MLP by default.

    Returns
    -------
    LayerKernel or LayeredNTK
        The kernel.

    Raises
    ------
    ValueError
        If no width is known.
    """
    if isinstance(network, Layer):
        if width is None:
            raise ValueError("the standard parametrization of a description depends on the width: pass width=…")
        return layered.standard_parametrization(network, inputs, width)
    wide = width if width is not None else network.width
    if wide is None:
        raise ValueError("the standard parametrization depends on the width: pass width=…, or an MLP with a width")
    first = inputs if network.scale_input else 1
    fan_in = (first, *(wide,) * network.depth)
    weights = tuple(n / (wide * s**2) for n, s in zip(fan_in, network.sigma_w))
    bias = tuple(1 / (wide * s**2) if network.biases else 0.0 for s in network.sigma_b)
    return LayerKernel(network, weights, bias)


class _NNGPAndNTK(NetworkKernel):
    """NNGP and NTK in one pass: an entry is a pair."""

    layered: ClassVar[Callable] = layered.LayeredNNGPAndNTK

    def select(self, sigma: Array, theta: Array) -> tuple[Array, Array]:
        return sigma, theta

    def diag(self, X: Points) -> tuple[Float[Array, " n"], Float[Array, " n"]]:  # type: ignore[override]
        return gram_blocks.formula_diagonal(self, self.read(X)[0])


def nngp_and_ntk(
    network: MLP | Layer, X: Points, Z: Points | None = None, accurate: bool = False
) -> tuple[Float[Array, "n m"], Float[Array, "n m"]]:
    """Gram matrices of NNGP and NTK together, for little more than the cost of one.

    Parameters
    ----------
    network : MLP or Layer
        Description of the network.
    X : points
        n points.
    Z : points, optional
        m points. X by default.
    accurate : bool, default False
        Compute entries from differences of inputs instead of inner products.

    Returns
    -------
    nngp, ntk : array of shape (n, m)
        The Gram matrices.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import MLP, nngp_and_ntk
    >>> nngp, ntk = nngp_and_ntk(MLP(2), np.eye(3))
    >>> ntk.shape
    (3, 3)
    """
    return gram_blocks.gram(_NNGPAndNTK(network), X, Z, accurate)


def warn_of_inexact_duals(
    network: MLP, xx: Float[np.ndarray, " n"], accurate: bool = False, tangent: bool = True
) -> None:
    """Warn if duals have errors above rounding at these squared norms: by expansions or by cancellation."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(network)) or xx.size == 0:
        return
    ends = np.asarray([xx.min(), xx.max()], float)
    unit = unit_roundoff(xx.dtype)
    allowed = 1e4 * unit
    name = network.activation.name
    error = dual_errors.network_error(network, ends, tangent)
    if not error <= allowed:
        warnings.warn(
            f"the dual of activation {name!r} is off by up to {error:.1e} of k(x, x) at these norms "
            f"(more than {allowed:.0e}): declare its kinks in Activation(…, kinks=…), scale the inputs down, or use an "
            "activation with a closed form",
            UnlazyWarning,
            stacklevel=_caller_stack_level(),
        )
    lost = 0.0 if accurate else dual_errors.rounding_error(network, ends[1], unit, tangent)
    if not lost <= allowed:
        warnings.warn(
            f"inner products in {xx.dtype} leave the kernel of activation {name!r} uncertain by up to {lost:.1e} of "
            f"k(x, x) between close points (more than {allowed:.0e}), because the inputs are large: subtract their "
            "mean, scale them down, pass accurate=True, or use float64",
            UnlazyWarning,
            stacklevel=_caller_stack_level(),
        )


def _caller_stack_level() -> int:
    """Stack level of the code that called this package; composed kernels and products warn from further inside."""
    frame, level, outermost = inspect.currentframe(), 0, 1
    while (
        frame is not None
    ):  # wrappers of other packages may lie between two functions of this one, and around a method
        name = frame.f_globals.get("__name__", "").split(".")[0]
        if name == "unlazy" or (name in ("equinox", "jaxtyping") and level == outermost + 1):
            outermost = level
        frame, level = frame.f_back, level + 1
    return outermost + 1
