"""The tangent kernel of any function of (parameters, inputs), as a kernel like any other [K9, C5]."""

import functools
import math
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
from jaxtyping import Array, Float, PyTree

from unlazy.core.arrays import Points
from unlazy.core.errors import did_you_mean
from unlazy.core.pytrees import split_parameters
from unlazy.kernels.base import Kernel
from unlazy.kernels.gram_blocks import diagonal_from_function, validate_finite
from unlazy.kernels.networks.host_tangent import HostTangentKernel
from unlazy.models.adapt import as_model
from unlazy.models.jax_tangents import JaxTangents
from unlazy.models.protocol import OutputFunction
from unlazy.models.tangents import tangent_map
from unlazy.theory.finite_width.empirical_ntk import (
    batched_product,
    jacobian_kernels,
    output_shape,
    scales,
    squared_gradients,
    validate_function,
)

OUTPUTS = ("trace", "mean")
"""What the kernel is for functions with several outputs."""


class TangentKernel(Kernel):
    """Tangent kernel Θ(x, z) = Σ_θ r_θ ∂f(x)/∂θ ∂f(z)/∂θ of a function f = apply(params, X) [K9].

    Gram matrices come from Jacobians, in blocks within the memory budget. Products K @ V never form a Jacobian: they
    are a reverse and a forward pass over `batch` points at a time, in memory of the order of the parameters [C5].

    Parameters
    ----------
    apply : callable
        f: a plain function, an Equinox module or the `apply` of a flax module. X may be any tree of points. f(x) may
        not depend on the other points of X.
    params : tree
        Parameters; the arrays of floats in it are differentiated, of Flax variables only those in "params". Parameters
        in bfloat16 or float16 are promoted to float32.
    outputs : {"trace", "mean"}, default "trace"
        Sum or mean of the kernels of all outputs; every output then has the same kernel.
    rates : float or tree, default 1.0
        Layer-wise learning rates r, positive or 0.
    batch : int, default 1024
        Points per pass of a product.

    Raises
    ------
    ValueError
        If `outputs` is unknown, if `params` contains nothing to differentiate or complex numbers, or if a rate is
        negative. When points are given: if f(x) depends on the other points, or f does not return one row per point.

    References
    ----------
    Novak, Sohl-Dickstein and Schoenholz (2022), Fast finite width neural tangent kernel.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy import TangentKernel
    >>> kernel = TangentKernel(lambda w, X: jnp.tanh(X @ w), jnp.ones(2))
    >>> kernel.gram([[0.0, 1.0], [1.0, 0.0]]).shape
    (2, 2)
    """

    apply: Callable
    params: PyTree
    rates: PyTree
    outputs: str = eqx.field(static=True)
    batch: int = eqx.field(static=True)
    fixed: "StaticLeaves" = eqx.field(static=True)

    def __init__(
        self, apply: Callable, params: PyTree, *, outputs: str = "trace", rates: PyTree = 1.0, batch: int = 1024
    ):  # fmt: skip
        if outputs not in OUTPUTS:
            raise ValueError(
                f"unknown outputs {outputs!r}{did_you_mean(str(outputs), OUTPUTS)}; all pairs of outputs: "
                "networks.tangent_kernel(…, outputs='full')"
            )
        scales(rates, split_parameters(params)[0])  # raises ValueError for wrong parameters or rates
        # a plain function is static, a module may contain arrays
        self.apply = apply if isinstance(apply, eqx.Module) else jax.tree_util.Partial(apply)
        self.params, self.fixed = StaticLeaves.of(params)
        self.rates, self.outputs, self.batch = rates, outputs, batch

    @classmethod
    def of_network(
        cls,
        network: object,
        X: PyTree,
        *,
        layers: Sequence[str] | None = None,
        outputs: str = "trace",
        output: OutputFunction | None = None,
        dtype: str | None = None,
    ) -> Kernel:
        """The tangent kernel of a network of PyTorch, Equinox, Flax or plain JAX at its present parameters.

        Parameters
        ----------
        network : torch.nn.Module, Equinox module, Flax nnx module or pair (apply, params)
            The network, see `unlazy.models.as_model`.
        X : inputs
            A few inputs, from which the number of outputs is found.
        layers : sequence of str, optional
            Layers whose parameters count, by name or beginning of a name; all by default.
        outputs : {"trace", "mean"}, default "trace"
            Sum or mean of the kernels of all outputs.
        output : callable, optional
            From what the network returns to its outputs.
        dtype : {"float32", "float64"}, optional
            Precision of derivatives; by default that of the parameters.

        Returns
        -------
        Kernel
            For `solve`, `posterior`, `learning_curve` and all others. Points are NumPy or JAX arrays.

        Raises
        ------
        ValueError
            If `outputs` is unknown or no layer has such a name.

        Examples
        --------
        >>> import jax.numpy as jnp
        >>> from unlazy import TangentKernel
        >>> network = (lambda p, X: jnp.tanh(X @ p["W"]) @ p["v"], {"W": jnp.ones((2, 3)), "v": jnp.ones((3, 1))})
        >>> kernel = TangentKernel.of_network(network, jnp.ones((1, 2)), layers=["v"])
        >>> [f"{k:.2f}" for k in kernel.gram([[0.0, 1.0], [1.0, 0.0]])[0]]  # 3 tanh(1)²
        ['1.74', '1.74']
        """
        if outputs not in OUTPUTS:
            raise ValueError(f"unknown outputs {outputs!r}{did_you_mean(str(outputs), OUTPUTS)}")
        tangents = tangent_map(as_model(network, output=output, dtype=dtype), layers)
        if isinstance(tangents, JaxTangents):
            return cls(tangents.function, tangents.flat, outputs=outputs)
        count = tangents.outputs(X).shape[1]
        return HostTangentKernel(tangents, count, count if outputs == "mean" else 1)

    @property
    def input_kind(self) -> str:
        return "tree"

    @property
    def parameters(self) -> PyTree:
        """The parameters as they were given."""
        return self.fixed.join(self.params)

    def block(self, left: PyTree, right: PyTree) -> Float[Array, "n m"]:
        found = jacobian_kernels(
            self.apply, self.parameters, left, None if right is left else right, self.rates, "trace"
        )
        return sum(found) / self._divisor(left)  # type: ignore[return-value]

    def diag(self, X: Points) -> Float[Array, " n"]:
        """Squared norms of the gradients, a few points at a time.

        Parameters
        ----------
        X : points
            n points.

        Returns
        -------
        array of shape (n,)
            Θ(x, x) of every point.
        """
        return diagonal_from_function(self, functools.partial(_squared_gradients, self), X)

    def validate(self, *points: Points | None, names: tuple[str, ...] = ("X", "Z"), accurate: bool = False) -> None:
        """Check that the points are finite and f a function of each; k(x, x) would take a gradient of each."""
        validate_finite(points, names)
        validate_function(self.apply, self.parameters, points[0])

    @property
    def requires_gradients(self) -> bool:
        return True

    @property
    def has_product(self) -> bool:
        return True

    def matmul_prepared(self, left: PyTree, right: PyTree, V: Float[Array, "m c"]) -> Float[Array, "n c"]:
        """K @ V without K and without a Jacobian [C5]."""
        found = batched_product(self.apply, self.parameters, left, right, V, self.rates, self.batch)
        return found / self._divisor(left)

    def _divisor(self, X: PyTree) -> int:
        """Number of outputs if their mean is taken, else 1."""
        if self.outputs == "trace":
            return 1
        return math.prod(output_shape(self.apply, self.parameters, X))


@jax.jit
def _squared_gradients(kernel: TangentKernel, X: PyTree) -> Array:
    """Squared norms of gradients, compiled."""
    found = squared_gradients(kernel.apply, kernel.parameters, X, kernel.rates)
    return found / kernel._divisor(X)


class StaticLeaves:
    """The leaves of a parameter tree that are not arrays (functions, settings): static, hashable, comparable."""

    def __init__(self, leaves: tuple, structure: jax.tree_util.PyTreeDef):
        self.leaves, self.structure = leaves, structure

    @classmethod
    def of(cls, tree: PyTree) -> tuple[PyTree, "StaticLeaves"]:
        """Split a tree into arrays and numbers, and the rest."""
        moving, rest = eqx.partition(tree, lambda leaf: eqx.is_array(leaf) or isinstance(leaf, float | complex))
        leaves, structure = jax.tree.flatten(rest)
        return moving, cls(tuple(leaves), structure)

    def join(self, moving: PyTree) -> PyTree:
        """Return the complete tree again."""
        return eqx.combine(moving, jax.tree.unflatten(self.structure, self.leaves))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaticLeaves) and (self.leaves, self.structure) == (other.leaves, other.structure)

    def __hash__(self) -> int:
        return hash((self.leaves, self.structure))
