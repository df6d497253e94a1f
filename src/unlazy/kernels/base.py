"""The kernel interface, and the base class of kernels that are an elementwise formula of inner products."""

import abc

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from unlazy.core import arrays
from unlazy.core.arrays import Entries, Matrix, Points, Side
from unlazy.kernels import gram_blocks
from unlazy.theory.numerics.geometry import inner_product


class Kernel(eqx.Module):
    """Base class of all kernels: a symmetric positive semi-definite function of two points.

    Subclasses implement `block`; everything else is derived: Gram matrices that are computed in row blocks and tiles
    within the memory budget and are exactly symmetric with an exact diagonal, matrix products, and solvers. Optional
    hooks are `input_kind` (what n points are; a matrix by default) and `prepare` (work per point instead of per pair).

    Kernels can be added, multiplied, scaled by a nonnegative number, and raised to positive integer powers:
    `2 * Gaussian(1.0) + NTK(network) ** 2 + 1`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy.kernels.base import Kernel
    >>> class MinKernel(Kernel):
    ...     def block(self, left, right):
    ...         return jnp.minimum(left[:, None], right[None]).sum(-1)
    >>> MinKernel().gram([[1.0], [2.0]]).tolist()
    [[1.0, 1.0], [1.0, 2.0]]
    """

    @property
    def input_kind(self) -> str:
        """What n points are: "matrix" (n × d), "array" (n × …: images) or "tree" (arrays with a leading axis n)."""
        return "matrix"

    def prepare(self, X: Points) -> Side:
        """Precompute what depends on single points.

        Parameters
        ----------
        X : array or tree of arrays
            n points, as `read` returns them.

        Returns
        -------
        tree of arrays
            One side of a block, with a leading axis of length n. The points themselves by default.
        """
        return X

    def block(self, left: Side, right: Side) -> Float[Array, "n m"]:
        """Evaluate the kernel on all pairs of two prepared sides.

        Parameters
        ----------
        left, right : tree of arrays
            Sides with n and m points, as `prepare` returns them.

        Returns
        -------
        array of shape (n, m)
            k(x, z) of every pair.
        """
        if type(self).gram is Kernel.gram:
            raise NotImplementedError(f"{type(self).__name__} must implement block(left, right)")
        return self.gram(left, right)

    def accurate_block(self, left: Side, right: Side) -> Float[Array, "n m"]:
        """Evaluate `block` from differences of inputs instead of inner products, if the kernel supports it.

        Parameters and return value are those of `block`, which is the default.
        """
        return self.block(left, right)

    def sides(self, X: Points, Z: Points | None = None, keyed: bool = True) -> tuple[Side, Side | None]:
        """Prepare both sides of a block; override it if they share something, for example a center.

        Parameters
        ----------
        X, Z : array or tree of arrays
            n and m points; Z may be None.
        keyed : bool, default True
            Whether to compute row keys, which identify bitwise equal points, for kernels that are not smooth at x = z.

        Returns
        -------
        left, right : tree of arrays
            The prepared sides; the second is None if Z is None.
        """
        return self.prepare(X), None if Z is None else self.prepare(Z)

    def gram(self, X: Points, Z: Points | None = None, accurate: bool = False) -> Float[Array, "n m"]:
        """Gram matrix K(X, Z), or K(X, X).

        K(X, X) is exactly symmetric, and its diagonal is exactly `diag(X)`.

        Parameters
        ----------
        X : points
            n points of the kind that `input_kind` describes.
        Z : points, optional
            m points. X by default.
        accurate : bool, default False
            Compute entries from differences of inputs instead of inner products, if the kernel supports it. Slower, and
            accurate for nearly equal points.

        Returns
        -------
        array of shape (n, m)
            The entries k(x, z).

        Raises
        ------
        ValueError
            If points contain NaN or infinity, or if the kernel overflows on them.
        """
        return gram_blocks.gram(self, X, Z, accurate)

    def diag(self, X: Points) -> Float[Array, " n"]:
        """Diagonal k(x, x) of the Gram matrix.

        Parameters
        ----------
        X : points
            n points of the kind that `input_kind` describes.

        Returns
        -------
        array of shape (n,)
            k(x, x) of every point.

        Raises
        ------
        ValueError
            If points contain NaN or infinity, or if the kernel overflows on them.
        """
        return gram_blocks.diagonal(self, X)

    def validate(self, *points: Points | None, names: tuple[str, ...] = ("X", "Z"), accurate: bool = False) -> None:
        """Raise ValueError if the points are not finite or overflow; do nothing under a JAX transformation.

        Parameters
        ----------
        *points : array or tree of arrays
            Sets of points; None is skipped.
        names : tuple of str, default ("X", "Z")
            Names of the sets in error messages.
        accurate : bool, default False
            As in `gram`; decides which warnings apply.

        Raises
        ------
        ValueError
            If points contain NaN or infinity, or if the kernel overflows on them.
        """
        gram_blocks.validate_inputs(self, points, names)

    def read(self, X: Points, Z: Points | None = None, names: tuple[str, str] = ("X", "Z")) -> tuple[Points, Points]:
        """Convert user input to the arrays that this kernel takes: floats of one dtype, with the right axes.

        Parameters
        ----------
        X, Z : points
            Arrays, lists or data frames; Z may be None.
        names : tuple of str, default ("X", "Z")
            Names in error messages.

        Returns
        -------
        X, Z : array or tree of arrays
            The converted points; the second is None if Z is None.

        Raises
        ------
        ValueError
            If the inputs cannot be converted, or do not fit each other.
        """
        return arrays.as_point_pair(X, Z, names, self.input_kind)

    def values_per_pair(self, X: Points, accurate: bool = False) -> int:
        """Peak number of values in memory per pair of points while a block is evaluated, including the output.

        Parameters
        ----------
        X : array or tree of arrays
            Points.
        accurate : bool, default False
            As in `gram`.

        Returns
        -------
        int
            Values per pair. Row blocks are sized with it.
        """
        return gram_blocks.GRAM_SIZED_TEMPORARIES

    @property
    def expensive(self) -> bool:
        """Whether entries are so expensive to compute that only half of K(X, X) should be evaluated."""
        return False

    @property
    def requires_gradients(self) -> bool:
        """Whether an entry needs gradients at two points, far more expensive than a matrix product."""
        return False

    @property
    def has_product(self) -> bool:
        """Whether the kernel implements `matmul_prepared`; products K @ V then always use it."""
        return False

    def matmul_prepared(self, left: Side, right: Side, V: Float[Array, "m c"]) -> Float[Array, "n c"]:
        """Compute K @ V from two prepared sides without forming K, for kernels whose structure allows it.

        Parameters
        ----------
        left, right : tree of arrays
            Sides with n and m points, as `prepare` returns them.
        V : array of shape (m, c)
            Columns to multiply.

        Returns
        -------
        array of shape (n, c)
            K @ V.
        """
        raise NotImplementedError(f"{type(self).__name__} has has_product but no matmul_prepared(left, right, V)")

    @property
    def formula(self) -> "InnerProductKernel | None":
        """The kernel as one formula of inner products, or None; gradients, AGOPs and fused products need it."""
        return None

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics that can be learned for this kernel: a subset of "full", "diagonal" and "low_rank"."""
        return ()

    def __call__(self, x: Points, z: Points) -> Float[Array, ""]:
        """Evaluate k(x, z) at two single points; use `gram` for sets of points.

        Parameters
        ----------
        x, z : array
            Two points.

        Returns
        -------
        array of shape ()
            k(x, z).
        """
        return gram_blocks.pair(self, x, z)

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

    def __pow__(self, exponent: object) -> "Kernel":
        from unlazy.kernels.algebra import power

        return power(self, exponent)


class InnerProductKernel(Kernel):
    """Base class of kernels that are one elementwise formula of ⟨x,z⟩, ⟨x,x⟩ and ⟨z,z⟩ of embedded inputs.

    Subclasses implement `entry`, and `embed` if inputs are mapped first.

    Examples
    --------
    >>> from unlazy.kernels import InnerProductKernel
    >>> class Square(InnerProductKernel):
    ...     def entry(self, xz, xx, zz):
    ...         return (1 + xz) ** 2
    >>> Square().gram([[0.0, 0.0], [1.0, 2.0]]).tolist()
    [[1.0, 1.0], [1.0, 36.0]]
    """

    @abc.abstractmethod
    def entry(self, xz: Float[Array, "*#s"], xx: Float[Array, "*#s"], zz: Float[Array, "*#s"]) -> Float[Array, "*#s"]:
        """Evaluate k elementwise from inner products; arguments broadcast.

        Parameters
        ----------
        xz, xx, zz : array
            ⟨x,z⟩, ⟨x,x⟩ and ⟨z,z⟩ of embedded inputs.

        Returns
        -------
        array
            k(x, z).
        """

    def entry_distance(
        self,
        distance: Float[Array, "*#s"],
        half_chord: Float[Array, "*#s"],
        xx: Float[Array, "*#s"],
        zz: Float[Array, "*#s"],
    ) -> Float[Array, "*#s"]:
        """Evaluate k elementwise from distances that were computed from differences of the inputs.

        Override it for kernels that are not smooth at x = z: there, ⟨x,z⟩ has lost the digits that they need.

        Parameters
        ----------
        distance : array
            ‖x-z‖².
        half_chord : array
            ½‖x/|x| - z/|z|‖² = 1 - cos θ.
        xx, zz : array
            ⟨x,x⟩ and ⟨z,z⟩.

        Returns
        -------
        array
            k(x, z).
        """
        return self.entry(inner_product(distance, half_chord, xx, zz), xx, zz)

    def diag_entry(self, xx: Float[Array, "*s"]) -> Entries:
        """Evaluate k(x, x) from squared norms; override it if that is cheaper than `entry`.

        Parameters
        ----------
        xx : array
            ⟨x,x⟩.

        Returns
        -------
        array
            k(x, x).
        """
        return self.entry(xx, xx, xx)

    def embed(self, X: Float[Matrix, "n d"], inputs: int | None = None) -> Float[Matrix, "n e"]:
        """Map inputs before inner products are taken: the identity by default, x → x/√d or x → L x in subclasses.

        Parameters
        ----------
        X : array of shape (n, d)
            Points. Linear maps also accept NumPy arrays.
        inputs : int, optional
            Number of coordinates before a metric changed it: the d of 1/√d. The number of columns by default.

        Returns
        -------
        array of shape (n, e)
            Embedded points.
        """
        return X

    def embedding(self) -> tuple:
        """Return a key that is equal exactly if `embed` is the same map; such formulas compose."""
        return ()

    @property
    def bare(self) -> "InnerProductKernel":
        """The formula without its embedding, so that one compiled program serves all metrics."""
        return self

    @property
    def stationary(self) -> bool:
        """Whether k depends on x - z alone; inputs are then centered, which keeps more digits of distances."""
        return False

    def warn(self, xx: Float[np.ndarray, " n"], accurate: bool = False) -> None:
        """Warn if the formula has errors above rounding at these squared norms of embedded inputs.

        Parameters
        ----------
        xx : array of shape (n,)
            Squared norms.
        accurate : bool, default False
            As in `gram`.
        """

    @property
    def formula(self) -> "InnerProductKernel | None":
        """The kernel itself."""
        return self

    @property
    def metrics(self) -> tuple[str, ...]:
        """All metrics; kernels whose `embed` is not linear override it."""
        return ("full", "diagonal", "low_rank")

    def prepare(self, X: Points) -> Side:
        """Embed the points, and compute row keys: a `PreparedPoints`."""
        return gram_blocks.PreparedPoints.from_points(gram_blocks.embedded(self, X), gram_blocks.row_hashes(X))

    def sides(self, X: Points, Z: Points | None = None, keyed: bool = True) -> tuple[Side, Side | None]:
        """Prepare both sides; those of a stationary kernel are centered together."""
        return gram_blocks.prepare_sides(self, X, Z, keyed)

    def block(self, left: Side, right: Side) -> Entries:
        """One matrix product, then `entry`; entries of equal points are exact, and in float64 those of close points."""
        products = gram_blocks.inner_products(left, right)
        values = self.entry(*products)
        if type(self).entry_distance is InnerProductKernel.entry_distance:  # it would not be more accurate
            return values
        return gram_blocks.correct_near_pairs(self, left, right, products, values)

    def accurate_block(self, left: Side, right: Side) -> Entries:
        """`entry_distance` of differences of inputs."""
        return self.entry_distance(*gram_blocks.differences(left, right))

    def diag(self, X: Points) -> Float[Array, " n"]:
        """Diagonal k(x, x), from `diag_entry`."""
        return gram_blocks.formula_diagonal(self, self.read(X)[0])

    def validate(self, *points: Points | None, names: tuple[str, ...] = ("X", "Z"), accurate: bool = False) -> None:
        """Raise ValueError if k(x, x) or a squared norm is not finite."""
        gram_blocks.validate_formula_inputs(self, points, names, accurate)

    def values_per_pair(self, X: Points, accurate: bool = False) -> int:
        """Peak number of values per pair; differences of inputs add 2d."""
        return gram_blocks.GRAM_SIZED_TEMPORARIES + (2 * X.shape[1] if accurate else 0)


class DerivedFormula(InnerProductKernel):
    """Base class of formulas that change the entry or the embedding of one formula; the rest is that of `kernel`."""

    kernel: InnerProductKernel

    def entry(self, xz: Float[Array, "*#s"], xx: Float[Array, "*#s"], zz: Float[Array, "*#s"]) -> Float[Array, "*#s"]:
        return self.kernel.entry(xz, xx, zz)

    def entry_distance(self, distance, half_chord, xx, zz):
        return self.kernel.entry_distance(distance, half_chord, xx, zz)

    def embed(self, X: Float[Matrix, "n d"], inputs: int | None = None) -> Float[Matrix, "n e"]:
        return self.kernel.embed(X, inputs)

    def embedding(self) -> tuple:
        return self.kernel.embedding()

    def warn(self, xx: Float[np.ndarray, " n"], accurate: bool = False) -> None:
        self.kernel.warn(xx, accurate)

    @property
    def stationary(self) -> bool:
        return self.kernel.stationary

    @property
    def metrics(self) -> tuple[str, ...]:
        return self.kernel.metrics

    @property
    def requires_gradients(self) -> bool:
        return self.kernel.requires_gradients


def resolve_kernel(value: object, named: str | None = None) -> Kernel | None:
    """Return a kernel argument that is a kernel, or None if it is an accepted name.

    Parameters
    ----------
    value : Kernel or str
        The argument.
    named : str, optional
        Description of the accepted names for the error message. No names are accepted by default.

    Returns
    -------
    Kernel or None
        The kernel; None if the argument is a name.

    Raises
    ------
    ValueError
        If the argument is neither.
    """
    if isinstance(value, Kernel):
        return value
    if named is not None and isinstance(value, str):
        return None
    wanted = "" if named is None else f"{named} or "
    raise ValueError(f"kernel must be {wanted}a kernel of unlazy, for example Laplace(1.0); got {value!r}")
