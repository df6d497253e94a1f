"""The contract of a kernel, and what follows from an entry formula."""

import abc

import equinox as eqx
from jaxtyping import Array, Float

from unlazy.core.inputs import Points
from unlazy.kernels import evaluate


class Kernel(eqx.Module):
    """A positive semi-definite function of two inputs: `gram` and `diag`.

    Kernels add, multiply and scale: `2 * Gaussian(1.0) + NTK(network)`.
    """

    @abc.abstractmethod
    def gram(self, X: Points, Z: Points | None = None, accurate: bool = False) -> Float[Array, "n m"]:
        """K(X, Z); K(X, X) when Z is left out, exactly symmetric with an exact diagonal.

        `accurate` spends differences of inputs instead of inner products, where the kernel knows how.
        """

    @abc.abstractmethod
    def diag(self, X: Points) -> Float[Array, " n"]:
        """k(x, x) of every row."""

    def __add__(self, other: "Kernel") -> "Kernel":
        from unlazy.kernels.algebra import add

        return add(self, other) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: "Kernel | float | Array") -> "Kernel":
        from unlazy.kernels.algebra import multiply, scale

        return multiply(self, other) if isinstance(other, Kernel) else scale(self, other)

    def __rmul__(self, other: "float | Array") -> "Kernel":
        return self * other


class InnerProductKernel(Kernel):
    """A kernel that is one elementwise formula of ⟨x,z⟩, ⟨x,x⟩ and ⟨z,z⟩ of embedded inputs."""

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
        return self.entry(0.5 * (xx + zz - distance), xx, zz)

    def embed(self, X: Float[Array, "n d"], inputs: int | None = None) -> Float[Array, "n e"]:
        """The map applied to inputs before inner products: identity here; x → x/√d, x → L x elsewhere.

        `inputs` is the number of coordinates before a metric changed it: the d of 1/√d.
        """
        return X

    def embedding(self) -> tuple:
        """Equal for two kernels exactly when their `embed` is the same map: their formulas then compose."""
        return ()

    @property
    def stationary(self) -> bool:
        """Whether k depends on x - z alone: inputs may then be centred, which keeps more digits of a distance."""
        return False

    def warn(self, xx: Float[Array, " n"], accurate: bool = False) -> None:
        """Warns where the formula is off by more than rounding at these squared norms of embedded inputs."""

    def gram(self, X: Points, Z: Points | None = None, accurate: bool = False) -> Float[Array, "n m"]:
        """One matrix product, then `entry`; the diagonal of K(X, X) is `diag`, coincident points are exact."""
        return evaluate.gram(self, X, Z, accurate)

    def diag(self, X: Points) -> Float[Array, " n"]:
        """`entry` at x = z."""
        return evaluate.diagonal(self, X)

