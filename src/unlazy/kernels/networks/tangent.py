"""The tangent kernel of any function of (parameters, inputs), as a kernel like any other [K9, C5]."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float

from unlazy.core.arrays import Points
from unlazy.core.errors import nearest
from unlazy.core.pytrees import split
from unlazy.kernels.base import Kernel
from unlazy.kernels.evaluation.gram import plain_diagonal
from unlazy.kernels.evaluation.validation import admit_finite
from unlazy.theory.infinite_width.jacobian import batched_product, jacobian_kernels, squared_gradients

OUTPUTS = ("trace", "mean")


class TangentKernel(Kernel):
    """Θ(x, z) = Σ_θ r_θ ∂f(x)/∂θ ∂f(z)/∂θ of f = apply(params, X) [K9], X any tree of points.

    f may be a plain function, an Equinox module or flax's `apply`; `params` any tree, of which arrays of real numbers
    are differentiated. Of several outputs the kernel is the `trace` over them, or their `mean`: labels of every output
    then see the same kernel. `rates` are layer-wise learning rates. Gram matrices come from Jacobians, in blocks within
    the memory budget; products K @ V never form one: a reverse and a forward pass over `batch` points at a time, in
    memory of the order of the parameters [C5]. Novak, Sohl-Dickstein and Schoenholz (2022).

    >>> kernel = TangentKernel(lambda w, X: jnp.tanh(X @ w), jnp.ones(2))
    >>> kernel.gram([[0.0, 1.0], [1.0, 0.0]]).shape
    (2, 2)
    """

    apply: Callable
    params: Any
    rates: Any
    outputs: str = eqx.field(static=True)
    batch: int = eqx.field(static=True)
    fixed: "Fixed" = eqx.field(static=True)

    def __init__(
        self, apply: Callable, params: Any, *, outputs: str = "trace", rates: Any = 1.0, batch: int = 1024
    ):  # fmt: skip
        if outputs not in OUTPUTS:
            raise ValueError(
                f"unknown outputs {outputs!r}{nearest(str(outputs), OUTPUTS)}; all pairs of outputs: "
                "networks.tangent_kernel(…, outputs='full')"
            )
        split(params)  # refuses a tree without parameters
        # a plain function is part of the program, a module may hold arrays
        self.apply = apply if isinstance(apply, eqx.Module) else jax.tree_util.Partial(apply)
        self.params, self.fixed = Fixed.of(params)
        self.rates, self.outputs, self.batch = rates, outputs, batch

    @property
    def takes(self) -> str:
        return "tree"

    @property
    def parameters(self) -> Any:
        """The tree as it was given."""
        return self.fixed.join(self.params)

    def block(self, left: Any, right: Any) -> Float[Array, "n m"]:
        found = jacobian_kernels(
            self.apply, self.parameters, left, None if right is left else right, self.rates, "trace"
        )
        return sum(found) / self._divisor(left)  # type: ignore[return-value]

    def diag(self, X: Points) -> Float[Array, " n"]:
        """The squared length of every point's gradient, a few points at a time."""
        return plain_diagonal(self, functools.partial(_squared_gradients, self), X)

    def admit(self, *points: Any, names: tuple[str, ...] = ("X", "Z"), accurate: bool = False) -> None:
        """Looks at the points alone, since k(x, x) takes a gradient of each; what the function makes of them shows."""
        admit_finite(points, names)

    @property
    def takes_gradients(self) -> bool:
        return True

    @property
    def has_product(self) -> bool:
        return True

    def times(self, left: Any, right: Any, V: Float[Array, "m c"]) -> Float[Array, "n c"]:
        """K @ V without K and without a Jacobian [C5]."""
        found = batched_product(self.apply, self.parameters, left, right, V, self.rates, self.batch)
        return found / self._divisor(left)

    def _divisor(self, X: Any) -> int:
        if self.outputs == "trace":
            return 1
        first = jax.tree.map(lambda leaf: leaf[:1], X)
        return jax.eval_shape(self.apply, self.parameters, first).size


@jax.jit
def _squared_gradients(kernel: TangentKernel, X: Any) -> Array:
    found = squared_gradients(kernel.apply, kernel.parameters, X, kernel.rates)
    return found / kernel._divisor(X)


class Fixed:
    """What of a tree of parameters is no array (functions, settings): part of the program, hashed and compared."""

    def __init__(self, leaves: tuple, structure: Any):
        self.leaves, self.structure = leaves, structure

    @classmethod
    def of(cls, tree: Any) -> tuple[Any, "Fixed"]:
        """Arrays and numbers, and the rest."""
        moving, rest = eqx.partition(tree, lambda leaf: eqx.is_array(leaf) or isinstance(leaf, float | complex))
        leaves, structure = jax.tree.flatten(rest)
        return moving, cls(tuple(leaves), structure)

    def join(self, moving: Any) -> Any:
        """The whole tree again."""
        return eqx.combine(moving, jax.tree.unflatten(self.structure, self.leaves))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fixed) and (self.leaves, self.structure) == (other.leaves, other.structure)

    def __hash__(self) -> int:
        return hash((self.leaves, self.structure))
