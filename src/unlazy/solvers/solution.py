"""What every solver returns: the coefficients and the evidence that they solve the problem."""

from typing import TYPE_CHECKING, Any

import equinox as eqx
from jaxtyping import Array, Float

from unlazy.core.arrays import Points, concrete, count, float_type, points, with_type
from unlazy.core.linalg import dot
from unlazy.core.precision import precision
from unlazy.core.results import Evidence
from unlazy.kernels.base import Kernel
from unlazy.products import gradient, matmul

if TYPE_CHECKING:
    Number = float
    Whole = int
    Truth = bool
else:  # inside jit these are tracers
    Number = Whole = Truth = Any
PROBLEM = "kernel ridge regression, (K + ridge·I)α = y [K2]"


class Solution(eqx.Module):
    """f(x) = Σ_i α_i k(x, c_i), with how it was found.

    `residual` is the relative error of the predictions at the training points, ‖f(X) - f°(X)‖ ≤ residual·‖y‖ for the
    worst output, f° the exact minimizer (`notes` say where rounding forced a ridge other than the one asked for). Where
    f is float32, what rounding adds is in it, estimated in float64 on rows drawn at random (solvers.error_estimate).
    """

    kernel: Kernel
    centers: Any
    """The points whose coefficients these are: a matrix, or whatever the kernel takes."""
    coefficients: Float[Array, "m *c"]
    evidence: Evidence
    """All that follows, as a Predictor has it."""

    @property
    def residual(self) -> Number:
        return self.evidence.residual

    @property
    def converged(self) -> Truth:
        """Whether `residual` reached the tolerance that was asked for."""
        return self.evidence.converged

    @property
    def steps(self) -> Whole:
        return self.evidence.steps

    @property
    def seconds(self) -> Number:
        return self.evidence.seconds

    @property
    def bytes(self) -> Whole:
        """Memory the method planned for, besides the data."""
        return self.evidence.bytes

    @property
    def ridge(self) -> Number:
        """The ridge that was used, jitter included."""
        return self.evidence.ridge

    @property
    def method(self) -> str:
        return self.evidence.words.method

    @property
    def why(self) -> str:
        """Why this method was chosen."""
        return self.evidence.words.why

    @property
    def stopped(self) -> str:
        """What ended the run: tolerance, steps, validation, stalled, exact, centers (too few of them) or traced."""
        return self.evidence.words.stopped

    @property
    def notes(self) -> tuple[str, ...]:
        return self.evidence.notes

    def predict(self, X: Points, memory: int | str | None = None) -> Float[Array, "k *c"]:
        """f at every row of X, in the precision of the coefficients; differentiable."""
        if not concrete(self, X):  # the precision is then that of the program around this
            X, _ = self.kernel.read(X)
            dtype = float_type(X)
            return dot(self.kernel.gram(X, with_type(self.centers, dtype)), self.coefficients.astype(dtype))
        with precision(self.coefficients.dtype.name):
            X = points(X, "X", self.coefficients.dtype, self.kernel.takes)
            return matmul(self.kernel, X, self.centers, self.coefficients, memory=memory)

    def gradient(self, X: Points, memory: int | str | None = None) -> Float[Array, "k *c d"]:
        """∇f at every row of X."""
        with precision(self.coefficients.dtype.name):
            X = points(X, "X", self.coefficients.dtype)
            return gradient(self.kernel, X, self.centers, self.coefficients, memory)

    def __str__(self) -> str:
        state = "converged" if self.converged else f"NOT converged (stopped by {self.stopped})"
        lines = [
            f"{self.method}: {state}, residual {self.residual:.2g} after {self.steps} steps, {self.seconds:.3g} s, "
            f"{self.bytes / 2**20:.3g} MiB, {count(self.centers)} centers",
            f"chosen because {self.why}",
        ]
        return "\n".join(lines + [f"note: {note}" for note in self.notes])
