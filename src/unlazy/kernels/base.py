"""The contract of a kernel, and what follows from an entry formula."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from unlazy.core import arrays
from unlazy.core.arrays import Matrix, Points
from unlazy.kernels.evaluation import gram, validation
from unlazy.theory.infinite_width.covariance import inner_product


class Kernel(eqx.Module):
    """A positive semi-definite function of two points. What a kernel gives is `block`; the rest follows from it.

    `takes` says what n points are (a matrix unless told), `prepare` does for each point what need not be done for each
    pair, `block` gives all pairs of two prepared sides. Gram matrices by rows and tiles within the memory budget,
    exactly symmetric with an exact diagonal, products and solvers are derived.

    Kernels add, multiply, scale and have whole powers: `2 * Gaussian(1.0) + NTK(network) ** 2 + 1`.
    """

    reads: ClassVar[str | None] = None
    """What an entry is a function of, if that is all it sees of two inputs: "inner products", "distance" (Euclidean) or
    "absolute distance" (ℓ1). A metric changes these and nothing else."""

    @property
    def takes(self) -> str:
        """What n points are: "matrix" (n × d), "array" (n × …, images) or "tree" (arrays with a leading axis n)."""
        return "matrix"

    def prepare(self, X: Any) -> Any:
        """One side of a block: any tree of arrays with a leading axis of points. The points themselves unless told."""
        return X

    def block(self, left: Any, right: Any) -> Float[Array, "n m"]:
        """k of every pair of two prepared sides."""
        if type(self).gram is Kernel.gram:
            raise NotImplementedError(f"{type(self).__name__} must give block(left, right)")
        return self.gram(left, right)

    def accurate_block(self, left: Any, right: Any) -> Float[Array, "n m"]:
        """The same from differences of inputs instead of inner products, where the kernel knows how."""
        return self.block(left, right)

    def sides(self, X: Any, Z: Any = None, keyed: bool = True) -> tuple[Any, Any]:
        """Both sides prepared; overridden where they share something, say a center. Without Z the second is None.

        Points that are `keyed` know which others are the same bit by bit, where that matters near x = z.
        """
        return self.prepare(X), None if Z is None else self.prepare(Z)

    def gram(self, X: Points, Z: Points | None = None, accurate: bool = False) -> Float[Array, "n m"]:
        """K(X, Z); K(X, X) when Z is left out, exactly symmetric with an exact diagonal.

        `accurate` spends differences of inputs instead of inner products, where the kernel knows how.
        """
        return gram.gram(self, X, Z, accurate)

    def diag(self, X: Points) -> Float[Array, " n"]:
        """k(x, x) of every point."""
        return gram.diagonal(self, X)

    def on_diagonal(self, X: Any, accurate: bool = False) -> Any:
        """`diag` of points that have been read, refused where they are not finite: the diagonal of `gram`."""
        return self.diag(X)

    def admit(self, *points: Any, names: tuple[str, ...] = ("X", "Z"), accurate: bool = False) -> None:
        """Refuses points that this kernel cannot see rightly; nothing while tracing."""
        validation.admit_plain(self, points, names)

    def admission(self, *points: Any, names: tuple[str, ...] = ("X", "Z")) -> Callable[[], None]:
        """`admit` begun: what is returned ends it, after work that a card does meanwhile."""
        return lambda: self.admit(*points, names=names)

    def read(self, X: Points, Z: Points | None = None, names: tuple[str, str] = ("X", "Z")) -> tuple[Any, Any]:
        """Points as they come in, as what this kernel takes: floats of one type, with the right axes."""
        return arrays.sides(X, Z, names, self.takes)

    def held(self, X: Any, accurate: bool = False) -> int:
        """Numbers that one pair of points may hold in memory while a block is evaluated, its output included."""
        return gram.TEMPORARIES

    @property
    def costly(self) -> bool:
        """Whether an entry costs so much more than its place in memory that K(X, X) is worth evaluating by halves."""
        return False

    @property
    def takes_gradients(self) -> bool:
        """Whether an entry costs gradients of two points, far more than its share of a product of the kernel's own."""
        return False

    @property
    def has_product(self) -> bool:
        """Whether K @ V has a way of the kernel's own, `times`: products then take it before any other."""
        return False

    def times(self, left: Any, right: Any, V: Float[Array, "m c"]) -> Float[Array, "n c"]:
        """K @ V of two prepared sides without K, in less than n·m work: for kernels that know their structure."""
        raise NotImplementedError(f"{type(self).__name__} says has_product and must give times(left, right, V)")

    @property
    def formula(self) -> "InnerProductKernel | None":
        """The kernel as one formula of inner products, where it is one: for gradients, AGOPs and fused products."""
        return None

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that can be learned for this kernel: "full", "diagonal", "low_rank", some of them, or none."""
        return ()

    def __call__(self, x: Any, z: Any) -> Float[Array, ""]:
        """k(x, z) of two single points. Sets of points: `gram`."""
        return gram.pair(self, x, z)

    def __add__(self, other: "Kernel | float | Array") -> "Kernel":
        from unlazy.kernels.algebra import add

        return add(self, other)

    def __radd__(self, other: "float | Array") -> "Kernel":
        return self + other

    def __mul__(self, other: "Kernel | float | Array") -> "Kernel":
        from unlazy.kernels.algebra import multiply, scale

        return multiply(self, other) if isinstance(other, Kernel) else scale(self, other)

    def __rmul__(self, other: "float | Array") -> "Kernel":
        return self * other

    def __pow__(self, exponent: Any) -> "Kernel":
        from unlazy.kernels.algebra import power

        return power(self, exponent)


class InnerProductKernel(Kernel):
    """A kernel that is one elementwise formula of ⟨x,z⟩, ⟨x,x⟩ and ⟨z,z⟩ of embedded inputs."""

    reads = "inner products"

    @abc.abstractmethod
    def entry(self, xz: Float[Array, "*#s"], xx: Float[Array, "*#s"], zz: Float[Array, "*#s"]) -> Float[Array, "*#s"]:
        """k as a function of the three inner products, elementwise; arguments broadcast."""

    def entry_distance(
        self,
        distance: Float[Array, "*#s"],
        half_chord: Float[Array, "*#s"],
        xx: Float[Array, "*#s"],
        zz: Float[Array, "*#s"],
    ) -> Float[Array, "*#s"]:
        """The same k from ‖x-z‖² and ½‖x/|x| - z/|z|‖² = 1 - cos θ, taken from differences of the inputs.

        Kernels that are rough at x = z override this: there ⟨x,z⟩ has lost what they need.
        """
        return self.entry(inner_product(distance, half_chord, xx, zz), xx, zz)

    def at_itself(self, xx: Float[Array, "*s"]) -> Any:
        """k(x, x) of these squared norms, where that is less work than an entry."""
        return self.entry(xx, xx, xx)

    def embed(self, X: Float[Matrix, "n d"], inputs: int | None = None) -> Float[Matrix, "n e"]:
        """The map applied to inputs before inner products: identity here; x → x/√d, x → L x elsewhere.

        `inputs` is the number of coordinates before a metric changed it: the d of 1/√d. A linear map also serves NumPy.
        """
        return X

    def embedding(self) -> tuple:
        """Equal for two kernels exactly when their `embed` is the same map: their formulas then compose."""
        return ()

    @property
    def bare(self) -> "InnerProductKernel":
        """The formula alone, without its embedding, where that is another kernel: one program serves all metrics."""
        return self

    @property
    def stationary(self) -> bool:
        """Whether k depends on x - z alone: inputs may then be centered, which keeps more digits of a distance."""
        return False

    def warn(self, xx: Float[np.ndarray, " n"], accurate: bool = False) -> None:
        """Warns where the formula is off by more than rounding at these squared norms of embedded inputs."""

    @property
    def formula(self) -> "InnerProductKernel | None":
        return self

    @property
    def metrics(self) -> tuple[str, ...]:
        """All, where `embed` is linear."""
        return ("full", "diagonal", "low_rank")

    def prepare(self, X: Any) -> Any:
        """An `evaluate.Side`: embedded inputs and keys of their rows."""
        points: Any = self.embed(X)
        return gram.Side.of(points, gram.row_keys(X))

    def sides(self, X: Any, Z: Any = None, keyed: bool = True) -> tuple[Any, Any]:
        """The same, centered together where only differences matter."""
        return gram.prepared(self, X, Z, keyed)

    def block(self, left: Any, right: Any) -> Any:
        """One matrix product, then `entry`; coincident points are exact."""
        return self.entry(*gram.inner_products(left, right))

    def accurate_block(self, left: Any, right: Any) -> Any:
        """`entry_distance` of differences."""
        return self.entry_distance(*gram.differences(left, right))

    def diag(self, X: Points) -> Float[Array, " n"]:
        """`entry` at x = z."""
        return self.on_diagonal(self.read(X)[0])

    def on_diagonal(self, X: Any, accurate: bool = False) -> Any:
        return validation.diagonal(self, X, accurate=accurate)

    def admit(self, *points: Any, names: tuple[str, ...] = ("X", "Z"), accurate: bool = False) -> None:
        validation.admit_formula(self, points, names, accurate)

    def admission(self, *points: Any, names: tuple[str, ...] = ("X", "Z")) -> Callable[[], None]:
        return validation.formula_admission(self, points, names, False)

    def held(self, X: Any, accurate: bool = False) -> int:
        return gram.TEMPORARIES + (2 * X.shape[1] if accurate else 0)
