"""Kernels of normalized inputs, and their approximation by a short polynomial of the angle."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core.arrays import Matrix
from unlazy.core.errors import check_positive
from unlazy.kernels.base import DerivedFormula, InnerProductKernel
from unlazy.theory.numerics import angle_polynomials
from unlazy.theory.numerics.geometry import angle_and_gap, cosine_gap, safe_reciprocal, safe_sqrt

LARGEST_DEGREE = 40
"""Largest degree of a polynomial of the angle."""


class OnSphere(DerivedFormula):
    """Kernel of normalized inputs k(R x/|x|, R z/|z|); 0 stays 0.

    Parameters
    ----------
    kernel : InnerProductKernel
        The kernel k.
    radius : float, default 1.0
        R.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy.kernels import Linear, OnSphere
    >>> K = OnSphere(Linear()).gram([[3.0, 4.0], [0.0, 2.0]])  # cosines
    >>> bool(jnp.allclose(K, jnp.array([[1.0, 0.8], [0.8, 1.0]]), atol=1e-6))
    True
    """

    radius: float | Float[Array, ""] = eqx.field(default=1.0, converter=check_positive("radius"))

    def embed(self, X: Float[Matrix, "n d"], inputs: int | None = None) -> Float[Matrix, "n e"]:
        largest = jnp.max(jnp.abs(X), 1, keepdims=True)
        # divide by the largest coordinate first: squares of 1e±20 are out of the range of float32
        scaled = X * safe_reciprocal(jax.lax.stop_gradient(largest))
        norm = safe_sqrt(jnp.sum(scaled * scaled, 1, keepdims=True))
        return self.kernel.embed(self.radius * scaled * safe_reciprocal(norm), inputs)

    def embedding(self) -> tuple:
        return ("sphere", self.radius if isinstance(self.radius, float) else id(self.radius), *self.kernel.embedding())

    @property
    def stationary(self) -> bool:
        return False

    @property
    def metrics(self) -> tuple[str, ...]:
        return ()


class AnglePolynomial(InnerProductKernel):
    """Kernel c + θ P(2θ/π - 1) of the angle alone.

    Parameters
    ----------
    at_zero : array of shape ()
        c = k(x, x).
    powers : array of shape (k,)
        Coefficients of P.
    error : float
        Largest error found when the polynomial was fitted.
    """

    at_zero: Float[Array, ""]
    powers: Float[Array, " k"]
    error: float = eqx.field(static=True)

    def entry(self, xz: Float[Array, "*#s"], xx: Float[Array, "*#s"], zz: Float[Array, "*#s"]) -> Float[Array, "*#s"]:
        return self._of_gap(cosine_gap(xz, xx, zz))

    def entry_distance(self, distance, half_chord, xx, zz):
        return self._of_gap(half_chord)

    def _of_gap(self, u: Array) -> Array:
        theta, _ = angle_and_gap(u)
        return angle_polynomials.evaluate_at_angle(self.at_zero, tuple(self.powers), theta)


def polynomial_on_sphere(
    kernel: InnerProductKernel, inputs: int, radius: float = 1.0, tolerance: float = 3e-8
) -> AnglePolynomial:
    """Approximate a kernel on a sphere by one polynomial of the angle.

    Depth, biases and activation then cost nothing. Every kernel here is analytic in θ on [0, π] at fixed norms,
    including those with kinks. The polynomial is fitted in float64 at Chebyshev points.

    Parameters
    ----------
    kernel : InnerProductKernel
        The kernel.
    inputs : int
        Number of coordinates d, for kernels that divide by it.
    radius : float, default 1.0
        Radius of the sphere.
    tolerance : float, default 3e-8
        Largest error, relative to k(x, x).

    Returns
    -------
    AnglePolynomial
        The approximation.

    Raises
    ------
    ValueError
        If the tolerance is not reached; the message has the error that was.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy import MLP, NTK
    >>> from unlazy.kernels import OnSphere, polynomial_on_sphere
    >>> kernel = NTK(MLP(2, "relu"))
    >>> fast = polynomial_on_sphere(kernel, inputs=2)
    >>> X = jnp.array([[3.0, 4.0], [0.0, 2.0], [-1.0, 0.0]])
    >>> bool(jnp.allclose(fast.gram(X), OnSphere(kernel).gram(X), rtol=1e-5))
    True
    """
    with jax.enable_x64(True):
        square = float(kernel.embed(jnp.full((1, 1), radius), inputs)[0, 0]) ** 2
        on_diagonal = float(_at_angles(kernel, square, np.zeros(1))[0])
        relative = functools.partial(_relative, kernel, square, on_diagonal)
        (powers,), error = angle_polynomials.fit_angle_polynomial(relative, tolerance, range(6, LARGEST_DEGREE + 1))
    if error > tolerance:
        raise ValueError(
            f"no polynomial of degree {LARGEST_DEGREE} is within {tolerance:g} of this kernel; it reached {error:.2g}"
        )
    return AnglePolynomial(jnp.asarray(on_diagonal), jnp.asarray(on_diagonal * powers), error)


def _relative(kernel: InnerProductKernel, square: float, on_diagonal: float, theta: np.ndarray) -> np.ndarray:
    """k at these angles, relative to k(x, x)."""
    return _at_angles(kernel, square, theta) / on_diagonal


def _at_angles(kernel: InnerProductKernel, square: float, theta: np.ndarray) -> np.ndarray:
    """k at these angles, padded to one length, so that it is compiled once."""
    padded = np.zeros(len(angle_polynomials.GRID))
    padded[: len(theta)] = 2 * np.sin(theta / 2) ** 2
    half_chord = jnp.asarray(padded)
    return np.asarray(_on_sphere(kernel, half_chord, jnp.full_like(half_chord, square)), float)[: len(theta)]


@jax.jit
def _on_sphere(kernel: InnerProductKernel, u: Array, square: Array) -> Array:
    return kernel.entry_distance(2 * square * u, u, square, square)
