"""Kernels of the distance ‖x-z‖ [L3]: Gaussian, Laplace, Matérn, rational quadratic."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.arrays import A, Matrix, namespace
from unlazy.core.errors import check_positive
from unlazy.kernels.base import InnerProductKernel
from unlazy.theory.numerics.geometry import safe_sqrt

Bandwidth = float | Float[Array, ""] | Float[Array, " d"]
"""A length scale in the units of the inputs: one number, or one per coordinate."""


class RadialKernel(InnerProductKernel):
    """Base class of kernels that are one formula of the squared distance D = ‖x-z‖² = ⟨x,x⟩ + ⟨z,z⟩ - 2⟨x,z⟩.

    Subclasses implement `of_distance`. With one bandwidth h_i per coordinate, D/h² is Σ_i (x_i - z_i)²/h_i² (automatic
    relevance determination, MacKay 1994): the smaller h_i, the more coordinate i matters.
    """

    on_host: ClassVar[bool] = False
    """Whether `of_distance` computes with NumPy on NumPy arrays, so that the host needs no compiled program."""

    def of_distance(self, distance: Float[A, "*#s"]) -> Float[A, "*#s"]:
        """Evaluate k elementwise from the squared distance.

        Parameters
        ----------
        distance : array
            ‖x-z‖².

        Returns
        -------
        array
            k(x, z).
        """
        raise NotImplementedError

    def entry(self, xz: Float[Array, "*#s"], xx: Float[Array, "*#s"], zz: Float[Array, "*#s"]) -> Float[Array, "*#s"]:
        return self.of_distance(jnp.maximum(xx + zz - 2 * xz, 0))

    def entry_distance(self, distance, half_chord, xx, zz):
        return self.of_distance(distance)

    @property
    def length(self) -> float | Array:
        """The bandwidth in the formula: 1 if `embed` has already divided by one bandwidth per coordinate."""
        return 1.0 if self._several else getattr(self, "bandwidth", 1.0)

    def embed(self, X: Float[Matrix, "n d"], inputs: int | None = None) -> Float[Matrix, "n d"]:
        if not self._several:
            return X
        bandwidth = jnp.asarray(self.bandwidth, X.dtype)  # type: ignore[attr-defined]
        if bandwidth.shape[0] != X.shape[1]:
            raise ValueError(
                f"{bandwidth.shape[0]} bandwidths need {bandwidth.shape[0]} input columns, got {X.shape[1]}"
            )
        return X / bandwidth

    def embedding(self) -> tuple:
        # bandwidths may be learned independently: two kernels never share this map
        return ("bandwidths", object()) if self._several else ()

    @property
    def metrics(self) -> tuple[str, ...]:
        """No metric with one bandwidth per coordinate, which already is a metric."""
        return () if self._several else super().metrics

    @property
    def stationary(self) -> bool:
        return True

    @property
    def _several(self) -> bool:
        bandwidth = getattr(self, "bandwidth", 1.0)
        return bandwidth is None or jnp.ndim(bandwidth) == 1  # None: fused products drop arrays that only `embed` uses


class Gaussian(RadialKernel):
    """Gaussian kernel exp(-‖x-z‖²/(2 bandwidth²)).

    Parameters
    ----------
    bandwidth : float or array of shape (d,), default 1.0
        Length scale in the units of the inputs: one, or one per coordinate.

    Examples
    --------
    >>> from unlazy import Gaussian
    >>> round(float(Gaussian(2.0)([0.0, 0.0], [2.0, 2.0])), 4)
    0.3679
    """

    on_host = True
    bandwidth: Bandwidth = eqx.field(default=1.0, converter=check_positive("bandwidth", several=True))

    def of_distance(self, distance: Float[A, "*#s"]) -> Float[A, "*#s"]:
        return _exp(distance * (-0.5 / self.length**2))

    def distance_slope(self, distance: Float[A, "*#s"]) -> Float[A, "*#s"]:
        """Derivative with respect to ‖x-z‖²."""
        return self.of_distance(distance) * (-0.5 / self.length**2)


class Laplace(RadialKernel):
    """Laplace kernel exp(-‖x-z‖/bandwidth), with the Euclidean norm.

    Parameters
    ----------
    bandwidth : float or array of shape (d,), default 1.0
        Length scale in the units of the inputs: one, or one per coordinate.

    Examples
    --------
    >>> from unlazy import Laplace
    >>> round(float(Laplace(5.0)([0.0, 0.0], [3.0, 4.0])), 4)
    0.3679
    """

    on_host = True
    bandwidth: Bandwidth = eqx.field(default=1.0, converter=check_positive("bandwidth", several=True))

    def of_distance(self, distance: Float[A, "*#s"]) -> Float[A, "*#s"]:
        return _exp(safe_sqrt(distance) * (-1 / self.length))

    def distance_slope(self, distance: Float[A, "*#s"]) -> Float[A, "*#s"]:
        """Derivative with respect to ‖x-z‖², without the kink at zero."""
        xp, root = namespace(distance), safe_sqrt(distance)
        slope = _exp(root * (-1 / self.length)) * (-0.5 / self.length)
        return xp.where(root == 0, 0, slope / xp.where(root == 0, 1, root))


MATERN = {0.5: (1.0,), 1.5: (1.0, 1.0), 2.5: (1.0, 1.0, 1 / 3)}
"""For every smoothness, the coefficients of the polynomial in s that multiplies e^{-s}, lowest power first."""


class Matern(RadialKernel):
    """Matérn kernel of smoothness ν = 1/2, 3/2 or 5/2.

    With s = √(2ν) ‖x-z‖/bandwidth: e^{-s}, (1 + s) e^{-s} and (1 + s + s²/3) e^{-s}.

    Parameters
    ----------
    bandwidth : float or array of shape (d,), default 1.0
        Length scale in the units of the inputs: one, or one per coordinate.
    smoothness : {0.5, 1.5, 2.5}, default 1.5
        ν.

    Raises
    ------
    ValueError
        If the smoothness is not 0.5, 1.5 or 2.5.

    References
    ----------
    Rasmussen and Williams (2006), Gaussian Processes for Machine Learning, section 4.2.

    Examples
    --------
    >>> from unlazy import Matern
    >>> Matern(1.0, smoothness=1.5).gram([[0.0], [1.0], [2.0]]).shape
    (3, 3)
    """

    on_host = True
    bandwidth: Bandwidth = eqx.field(default=1.0, converter=check_positive("bandwidth", several=True))
    smoothness: float = eqx.field(static=True, default=1.5)

    def __check_init__(self):
        if self.smoothness not in tuple(MATERN):  # a tuple: the value may not be hashable
            raise ValueError(f"smoothness must be 0.5, 1.5 or 2.5, got {self.smoothness!r}")

    def of_distance(self, distance: Float[A, "*#s"]) -> Float[A, "*#s"]:
        # s² is computed from the distance, so that its gradient at x = z is exact, unlike that of the root
        square = distance * (2 * self.smoothness / self.length**2)
        s = safe_sqrt(square)
        powers: tuple = (1.0, s, square)
        return sum(c * power for c, power in zip(MATERN[self.smoothness], powers)) * _exp(-s)


class RationalQuadratic(RadialKernel):
    """Rational quadratic kernel (1 + ‖x-z‖²/(2 mixture · bandwidth²))^{-mixture}.

    It is a mixture of Gaussian kernels of many bandwidths.

    Parameters
    ----------
    bandwidth : float or array of shape (d,), default 1.0
        Length scale in the units of the inputs: one, or one per coordinate.
    mixture : float, default 1.0
        The smaller, the more the bandwidths vary.

    Examples
    --------
    >>> from unlazy import RationalQuadratic
    >>> round(float(RationalQuadratic(1.0, 0.5)([0.0], [1.0])), 4)
    0.7071
    """

    on_host = True
    bandwidth: Bandwidth = eqx.field(default=1.0, converter=check_positive("bandwidth", several=True))
    mixture: float | Float[Array, ""] = eqx.field(default=1.0, converter=check_positive("mixture"))

    def of_distance(self, distance: Float[A, "*#s"]) -> Float[A, "*#s"]:
        ratio = distance / (2 * self.mixture * self.length**2)
        return _exp(-self.mixture * namespace(ratio).log1p(ratio))


def _exp(x: Float[A, "*#s"]) -> Float[A, "*#s"]:
    """e^x, by NumPy or JAX according to the array; JAX if a traced bandwidth is involved."""
    return namespace(x).exp(x)
