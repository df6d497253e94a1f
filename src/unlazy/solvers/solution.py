"""The result of `solve`: coefficients, with evidence of how accurately they solve the problem."""

from typing import TYPE_CHECKING, Any

import equinox as eqx
from jaxtyping import Array, Float

from unlazy.core.arrays import Points, as_points, cast_floats, dot, float_type, is_concrete, n_points, precision
from unlazy.core.results import Evidence
from unlazy.kernels.base import Kernel
from unlazy.products import gradient, matmul

if TYPE_CHECKING:
    Number = float
    Integer = int
    Boolean = bool
else:  # inside jit these are tracers
    Number = Integer = Boolean = Any
PROBLEM = "kernel ridge regression, (K + ridge·I)α = y [K2]"


class Solution(eqx.Module):
    """Result of `solve`: f(x) = Σ_i α_i k(x, c_i), and how it was found.

    Attributes
    ----------
    kernel : Kernel
        The kernel.
    centers : array of shape (m, d) or pytree
        The points c_i: the training points, or the Nyström centers.
    coefficients : array of shape (m,) or (m, c)
        The coefficients α.
    evidence : Evidence
        Error estimate, counters and messages; the properties below read from it.

    Notes
    -----
    `residual` bounds the relative error of the predictions at the training points, ‖f(X) - f°(X)‖ ≤ residual·‖y‖ for
    the worst output, where f° is the exact minimizer. If rounding required a larger ridge than requested, f° is the
    minimizer for that ridge, and `notes` reports it. The bound includes rounding errors, estimated from float64 entries
    of differences of inputs, on random rows if there are many (solvers.error_estimate).
    """

    kernel: Kernel
    centers: Any
    """The points that the coefficients belong to: a matrix, or any input the kernel accepts."""
    coefficients: Float[Array, " m *c"]
    evidence: Evidence
    """Error estimate, counters and messages."""

    @property
    def residual(self) -> Number:
        """Bound on the relative error of the predictions at the training points, for the worst output."""
        return self.evidence.residual

    @property
    def converged(self) -> Boolean:
        """Whether `residual` is at most the requested tolerance."""
        return self.evidence.converged

    @property
    def steps(self) -> Integer:
        """Number of iterations."""
        return self.evidence.steps

    @property
    def seconds(self) -> Number:
        """Wall-clock time of `solve`."""
        return self.evidence.seconds

    @property
    def bytes(self) -> Integer:
        """Memory that the method planned for, in addition to the data."""
        return self.evidence.bytes

    @property
    def ridge(self) -> Number:
        """The ridge that was used, jitter included."""
        return self.evidence.ridge

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.evidence.description.method

    @property
    def why(self) -> str:
        """Why this method was chosen."""
        return self.evidence.description.why

    @property
    def stopped(self) -> str:
        """Why the run ended: tolerance, steps, validation, stalled, exact, centers (too few of them) or traced."""
        return self.evidence.description.stopped

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages about the run, such as a changed ridge or precision."""
        return self.evidence.notes

    def predict(self, X: Points, memory: int | str | None = None) -> Float[Array, " k *c"]:
        """Evaluate f at every row of X, in the precision of the coefficients; differentiable.

        Parameters
        ----------
        X : array of shape (k, d)
            Points, in any form the kernel accepts.
        memory : int or str, optional
            Memory budget.

        Returns
        -------
        array of shape (k,) or (k, c)
        """
        if not is_concrete(self, X):  # the precision is then that of the program around this
            X, _ = self.kernel.read(X)
            dtype = float_type(X)
            return dot(self.kernel.gram(X, cast_floats(self.centers, dtype)), self.coefficients.astype(dtype))
        with precision(self.coefficients.dtype.name):
            X = as_points(X, "X", self.coefficients.dtype, self.kernel.input_kind)
            return matmul(self.kernel, X, self.centers, self.coefficients, memory=memory)

    def gradient(self, X: Points, memory: int | str | None = None) -> Float[Array, "k *c d"]:
        """Evaluate ∇f at every row of X.

        Parameters
        ----------
        X : array of shape (k, d)
            Points.
        memory : int or str, optional
            Memory budget.

        Returns
        -------
        array of shape (k, d) or (k, c, d)
        """
        with precision(self.coefficients.dtype.name):
            X = as_points(X, "X", self.coefficients.dtype)
            return gradient(self.kernel, X, self.centers, self.coefficients, memory)

    def __str__(self) -> str:
        state = "converged" if self.converged else f"NOT converged (stopped by {self.stopped})"
        lines = [
            f"{self.method}: {state}, residual {self.residual:.2g} after {self.steps} steps, {self.seconds:.3g} s, "
            f"{self.bytes / 2**20:.3g} MiB, {n_points(self.centers)} centers",
            f"chosen because {self.why}",
        ]
        return "\n".join(lines + [f"note: {note}" for note in self.notes])
