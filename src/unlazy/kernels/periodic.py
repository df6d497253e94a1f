"""Kernels of periodic functions: one period per coordinate, or a mixture of frequencies."""

import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core.arrays import Matrix, Points, dot, is_concrete
from unlazy.core.errors import check_positive
from unlazy.kernels import gram_blocks
from unlazy.kernels.base import InnerProductKernel, Kernel
from unlazy.kernels.gram_blocks import squares
from unlazy.theory.numerics.geometry import robust_center

PerCoordinate = float | Float[Array, ""] | Float[Array, " d"]


class Periodic(InnerProductKernel):
    """Periodic kernel exp(-2 Σ_i sin²(π(x_i - z_i)/p_i)/h_i²).

    A Gaussian kernel of points on circles: u(x) = (cos 2πx/p, sin 2πx/p)/h has ‖u(x) - u(z)‖² = 4 sin²(π(x-z)/p)/h².

    Parameters
    ----------
    period : float or array of shape (d,), default 1.0
        p, in the units of the inputs: one, or one per coordinate.
    bandwidth : float or array of shape (d,), default 1.0
        h, in units of the radius of the circle: one, or one per coordinate.

    Raises
    ------
    ValueError
        If inputs are so many periods from 0 that fewer than half of the digits of the angle are left.

    References
    ----------
    MacKay (1998), Introduction to Gaussian processes.

    Examples
    --------
    >>> from unlazy import Periodic
    >>> round(float(Periodic(period=7.0)([1.0], [8.0])), 4)  # a week later
    1.0
    """

    period: PerCoordinate = eqx.field(default=1.0, converter=check_positive("period", several=True))
    bandwidth: PerCoordinate = eqx.field(default=1.0, converter=check_positive("bandwidth", several=True))

    def entry(self, xz: Float[Array, "*#s"], xx: Float[Array, "*#s"], zz: Float[Array, "*#s"]) -> Float[Array, "*#s"]:
        return jnp.exp(-0.5 * jnp.maximum(xx + zz - 2 * xz, 0))

    def entry_distance(self, distance, half_chord, xx, zz):
        return jnp.exp(-0.5 * distance)

    def embed(self, X: Float[Matrix, "n d"], inputs: int | None = None) -> Float[Matrix, "n e"]:
        period, bandwidth = jnp.asarray(self.period, X.dtype), jnp.asarray(self.bandwidth, X.dtype)
        turns = X / period
        turns = turns - jax.lax.stop_gradient(jnp.round(turns))
        # every period away from 0 costs the angle one rounding: beyond 1/√ε periods fewer than half its digits are left
        most = float(jnp.finfo(X.dtype).eps) ** -0.5
        if is_concrete(X, period):
            _check_distance_from_origin(np.asarray(X), np.asarray(period), most)
        angle = 2 * math.pi * jnp.where(jnp.abs(X) < most * period, turns, jnp.nan)
        return jnp.concatenate([jnp.cos(angle) / bandwidth, jnp.sin(angle) / bandwidth], 1)

    def embedding(self) -> tuple:
        return ("circles", object())  # never equal: period and bandwidth may be learned

    @property
    def stationary(self) -> bool:
        return True

    @property
    def metrics(self) -> tuple[str, ...]:
        return ()


class SpectralMixture(Kernel):
    """Spectral mixture kernel Σ_q w_q exp(-2π² Σ_i v_qi (x_i - z_i)²) cos(2π Σ_i μ_qi (x_i - z_i)).

    The stationary kernel whose spectral density is a mixture of Gaussians with weights w, means ±μ and variances v, in
    cycles per unit of the input. With enough components it approximates any stationary kernel.

    Parameters
    ----------
    weights : array of shape (components,)
        w, positive.
    means : array of shape (components, d)
        μ.
    variances : array of shape (components, d)
        v, positive.

    Raises
    ------
    ValueError
        If shapes do not agree, or weights or variances are not positive.

    References
    ----------
    Wilson and Adams (2013), Gaussian process kernels for pattern discovery and extrapolation.

    Examples
    --------
    >>> from unlazy import SpectralMixture
    >>> SpectralMixture([1.0, 0.5], [[0.0], [2.0]], [[0.1], [0.1]]).gram([[0.0], [0.5]]).shape
    (2, 2)
    """

    weights: Float[Matrix, " q"]
    means: Float[Matrix, "q d"]
    variances: Float[Matrix, "q d"]

    def __init__(
        self,
        weights: Matrix | Sequence[float],
        means: Matrix | Sequence[Sequence[float]],
        variances: Matrix | Sequence[Sequence[float]],
    ):
        self.weights = _array(check_positive("weights", several=True)(weights))
        self.means, self.variances = _array(means), _array(variances)
        shapes = [a.shape for a in (self.weights, self.means, self.variances)]
        if [len(s) for s in shapes] != [1, 2, 2] or len({s[0] for s in shapes}) > 1 or shapes[1] != shapes[2]:
            raise ValueError(
                "a mixture needs one weight per component, and means and variances of shape (components, inputs), "
                f"got shapes {shapes[0]}, {shapes[1]} and {shapes[2]}"
            )
        for row in (self.variances,) if isinstance(self.variances, jax.core.Tracer) else self.variances:
            check_positive("variances", several=True)(row)

    def prepare(self, X: Float[Array, "n d"]) -> Float[Array, "n d"]:
        if X.shape[1] != self.means.shape[1]:
            raise ValueError(f"this mixture is for {self.means.shape[1]} coordinates, but the inputs have {X.shape[1]}")
        return X + 0 * squares(X)[:, None]  # NaN if a distance may overflow

    def sides(
        self, X: Float[Array, "n d"], Z: Float[Array, "m d"] | None = None, keyed: bool = True
    ) -> tuple[Float[Array, "n d"], Float[Array, "m d"] | None]:
        """Center both sides together: phases then round relative to the extent of the points, not to their offset."""
        center = robust_center(X if Z is None else Z)
        return self.prepare(X - center), None if Z is None else self.prepare(Z - center)

    def block(self, left: Float[Array, "n d"], right: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """One component at a time, from differences of inputs."""

        def add(total: Array, component: tuple[Array, ...]) -> tuple[Array, None]:
            weight, mean, variance = component
            scale = math.pi * jnp.sqrt(2 * variance)
            distance = gram_blocks.squared_distances(left * scale, right * scale)
            turns = dot(left, mean)[:, None] - dot(right, mean)[None, :]
            return total + weight * jnp.exp(-distance) * jnp.cos(2 * math.pi * turns), None

        start = jnp.zeros((left.shape[0], right.shape[0]), left.dtype)
        parameters = (jnp.asarray(p, left.dtype) for p in (self.weights, self.means, self.variances))
        return jax.lax.scan(add, start, tuple(parameters))[0]

    def diag(self, X: Points) -> Float[Array, " n"]:
        return gram_blocks.diagonal_from_function(
            self, lambda X: jnp.sum(jnp.asarray(self.weights, X.dtype)) + 0 * squares(X), X
        )


def _check_distance_from_origin(X: np.ndarray, period: np.ndarray, most: float) -> None:
    """Raise ValueError if an input is at least `most` periods from 0."""
    with np.errstate(over="ignore"):
        turns = np.abs(np.where(np.isfinite(X), X, 0) / period)  # NaN and infinity have their own error message
    if turns.max(initial=0) >= most:
        remedy = "subtract multiples of the period" + ("" if X.dtype == np.float64 else ", or use float64")
        raise ValueError(
            f"inputs are up to {turns.max():.3g} periods from 0, where the angle keeps fewer than half of its digits "
            f"in {X.dtype} (from {most:.3g} periods on): {remedy}"
        )


def _array(values: Matrix | Sequence) -> Matrix:
    """JAX arrays as they are, anything else as a float64 NumPy array."""
    return values if isinstance(values, jax.Array) else np.asarray(values, np.float64)
