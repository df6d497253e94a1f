"""Kernels of the distance ‖x-z‖ [L3]: Gaussian, Laplace, Matérn, rational quadratic."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.arrays import Matrix
from unlazy.core.errors import check_positive
from unlazy.core.linalg import namespace
from unlazy.kernels.base import InnerProductKernel
from unlazy.theory.numerics.angles import safe_sqrt

Bandwidth = float | Float[Array, ""] | Float[Array, " d"]
"""A length in the units of the inputs: one number, or one for each coordinate."""


class RadialKernel(InnerProductKernel):
    """A kernel that is one formula of D = ‖x-z‖² = ⟨x,x⟩ + ⟨z,z⟩ - 2⟨x,z⟩.

    With a bandwidth h_i for each coordinate, D/h² stands for Σ_i (x_i - z_i)²/h_i² (automatic relevance determination,
    MacKay 1994): small where a coordinate matters.
    """

    reads = "distance"

    on_host: ClassVar[bool] = False
    """Whether `of_distance` of NumPy's arrays is NumPy's: tables on the host then need no program."""

    def of_distance(self, distance: Float[Any, "*#s"]) -> Float[Any, "*#s"]:
        """k as a function of the squared distance."""
        raise NotImplementedError

    def entry(self, xz: Float[Array, "*#s"], xx: Float[Array, "*#s"], zz: Float[Array, "*#s"]) -> Float[Array, "*#s"]:
        return self.of_distance(jnp.maximum(xx + zz - 2 * xz, 0))

    def entry_distance(self, distance, half_chord, xx, zz):
        return self.of_distance(distance)

    @property
    def length(self) -> Any:
        """The bandwidth that the formula divides by: 1 where `embed` has divided by one for each coordinate."""
        return 1.0 if self._several else getattr(self, "bandwidth", 1.0)

    def embed(self, X: Float[Matrix, "n d"], inputs: int | None = None) -> Float[Matrix, "n d"]:
        if not self._several:
            return X
        bandwidth = jnp.asarray(self.bandwidth, X.dtype)  # type: ignore[attr-defined]
        if bandwidth.shape[0] != X.shape[1]:
            raise ValueError(f"{bandwidth.shape[0]} bandwidths need as many inputs, got {X.shape[1]}")
        return X / bandwidth

    def embedding(self) -> tuple:
        # bandwidths may be learned, each by itself: two rows of them are never the same map
        return ("bandwidths", object()) if self._several else ()

    @property
    def metrics(self) -> tuple[str, ...]:
        """None with a bandwidth for each coordinate, which is a metric already."""
        return () if self._several else super().metrics

    @property
    def stationary(self) -> bool:
        return True

    @property
    def _several(self) -> bool:
        bandwidth = getattr(self, "bandwidth", 1.0)
        return bandwidth is None or jnp.ndim(bandwidth) == 1  # fused forms drop arrays that belong to `embed`


class Gaussian(RadialKernel):
    """exp(-‖x-z‖²/(2 bandwidth²)).

    >>> round(float(Gaussian(2.0)([0.0, 0.0], [2.0, 2.0])), 4)
    0.3679
    """

    on_host = True
    bandwidth: Bandwidth = eqx.field(default=1.0, converter=check_positive("bandwidth", several=True))

    def of_distance(self, distance: Float[Any, "*#s"]) -> Float[Any, "*#s"]:
        return _exp(distance * (-0.5 / self.length**2))


class Laplace(RadialKernel):
    """exp(-‖x-z‖/bandwidth).

    >>> round(float(Laplace(5.0)([0.0, 0.0], [3.0, 4.0])), 4)
    0.3679
    """

    on_host = True
    bandwidth: Bandwidth = eqx.field(default=1.0, converter=check_positive("bandwidth", several=True))

    def of_distance(self, distance: Float[Any, "*#s"]) -> Float[Any, "*#s"]:
        return _exp(safe_sqrt(distance) * (-1 / self.length))


MATERN = {0.5: (1.0,), 1.5: (1.0, 1.0), 2.5: (1.0, 1.0, 1 / 3)}
"""By smoothness: what stands before e^{-s}, by powers of s, lowest first."""


class Matern(RadialKernel):
    """Matérn kernel of smoothness ν = 1/2, 3/2 or 5/2, with s = √(2ν) ‖x-z‖/bandwidth.

    e^{-s},  (1 + s) e^{-s},  (1 + s + s²/3) e^{-s}. Rasmussen and Williams (2006), section 4.2.

    >>> Matern(smoothness=1.5, bandwidth=1.0).gram(X).shape
    (60, 60)
    """

    on_host = True
    smoothness: float = eqx.field(static=True, default=1.5)
    bandwidth: Bandwidth = eqx.field(default=1.0, converter=check_positive("bandwidth", several=True))

    def __check_init__(self):
        if self.smoothness not in tuple(MATERN):  # also of what has no hash
            raise ValueError(f"smoothness must be 0.5, 1.5 or 2.5, got {self.smoothness!r}")

    def of_distance(self, distance: Float[Any, "*#s"]) -> Float[Any, "*#s"]:
        # s² comes from the distance, so that its gradient at x = z is the true one and not that of the root
        square = distance * (2 * self.smoothness / self.length**2)
        s = safe_sqrt(square)
        return sum(c * power for c, power in zip(MATERN[self.smoothness], (1.0, s, square))) * _exp(-s)


class RationalQuadratic(RadialKernel):
    """(1 + ‖x-z‖²/(2 mixture · bandwidth²))^{-mixture}: a mixture of Gaussians of many bandwidths.

    >>> round(float(RationalQuadratic(1.0, 0.5)([0.0], [1.0])), 4)
    0.7071
    """

    on_host = True
    bandwidth: Bandwidth = eqx.field(default=1.0, converter=check_positive("bandwidth", several=True))
    mixture: float | Float[Array, ""] = eqx.field(default=1.0, converter=check_positive("mixture"))

    def of_distance(self, distance: Float[Any, "*#s"]) -> Float[Any, "*#s"]:
        ratio = distance / (2 * self.mixture * self.length**2)
        return _exp(-self.mixture * namespace(ratio).log1p(ratio))


def _exp(x: Float[Any, "*#s"]) -> Float[Any, "*#s"]:
    """e^x by whose array it is; a bandwidth that is traced makes it JAX's."""
    return namespace(x).exp(x)
