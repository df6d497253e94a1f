"""Learned metrics: the kernel of L x instead of x [D11]. The kernel's formula does not know."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core.arrays import Matrix, Points, floats
from unlazy.core.linalg import dot
from unlazy.kernels.base import InnerProductKernel, Kernel


class Metric(InnerProductKernel):
    """k(Lx, Lz), so that ⟨x,z⟩ becomes ⟨x, Mz⟩ with M = LᵀL. Radhakrishnan et al. (2024).

    `map` is L: a vector of d scales (diagonal), or a matrix r×d (full or low rank). A network kernel's 1/√d keeps the
    d of the inputs, so that any L with the same LᵀL gives the same kernel.
    """

    kernel: InnerProductKernel
    map: Float[Array, " d"] | Float[Array, "r d"]

    def entry(self, xz: Float[Array, "*#s"], xx: Float[Array, "*#s"], zz: Float[Array, "*#s"]) -> Float[Array, "*#s"]:
        return self.kernel.entry(xz, xx, zz)

    def entry_distance(self, distance, half_chord, xx, zz):
        return self.kernel.entry_distance(distance, half_chord, xx, zz)

    def embed(self, X: Float[Matrix, "n d"], inputs: int | None = None) -> Float[Matrix, "n e"]:
        if X.shape[1] != self.map.shape[-1]:
            raise ValueError(f"the metric is for {self.map.shape[-1]} coordinates, the inputs have {X.shape[1]}")
        mapped = X * self.map if self.map.ndim == 1 else dot(X, self.map.T)
        return self.kernel.embed(mapped, inputs or X.shape[1])

    def embedding(self) -> tuple:
        return ("metric", id(self.map), *self.kernel.embedding())

    @property
    def bare(self) -> InnerProductKernel:
        return self.kernel.bare

    @property
    def takes_gradients(self) -> bool:
        return self.kernel.takes_gradients

    @property
    def has_product(self) -> bool:
        return self.kernel.has_product

    def times(self, left: Any, right: Any, V: Float[Array, "m c"]) -> Float[Array, "n c"]:
        return self.kernel.times(left, right, V)

    def warn(self, xx: Float[np.ndarray, " n"], accurate: bool = False) -> None:
        self.kernel.warn(xx, accurate)

    @property
    def stationary(self) -> bool:
        return self.kernel.stationary

    @property
    def metrics(self) -> tuple[str, ...]:
        return self.kernel.metrics


@functools.singledispatch
def mapped(kernel: Kernel, L: Float[Array | np.ndarray, " d"] | Float[Array | np.ndarray, "r d"]) -> Kernel:
    """k(Lx, Lz) as a kernel of the family that knows how; a ValueError for one without a metric."""
    raise no_metric(kernel)


def no_metric(kernel: Kernel) -> ValueError:
    """What to say of a kernel that cannot be seen through a metric."""
    return ValueError(
        f"{type(kernel).__name__} has no entry formula and so no metric to learn: use a kernel of inner products "
        "(Gaussian, Laplace, Matern, NNGP, NTK) or ProductLaplace"
    )


@mapped.register(InnerProductKernel)
def _mapped(kernel: InnerProductKernel, L: Float[Array | np.ndarray, "..."]) -> Kernel:
    return Metric(kernel, jnp.asarray(L))


def with_metric(kernel: Kernel, matrix: Points, rank: int | None = None) -> Kernel:
    """The kernel with ⟨x, Mz⟩ for M positive semi-definite (its diagonal suffices); keeps the top `rank` directions.

    L = √Λ Vᵀ of the eigendecomposition M = V Λ Vᵀ; eigenvalues under zero by rounding count as zero.

    >>> narrow = with_metric(Laplace(1.0), np.diag([1.0, 0.0, 0.0]))  # only the first input counts
    >>> round(float(narrow([0.0, 5.0, 7.0], [1.0, 0.0, 0.0])), 4)
    0.3679
    """
    M = floats(matrix, "the metric")
    if M.ndim == 1:
        return mapped(kernel, jnp.sqrt(jnp.maximum(M, 0)))
    values, vectors = jnp.linalg.eigh(0.5 * (M + M.T))
    L = jnp.sqrt(jnp.maximum(values, 0))[:, None] * vectors.T
    return mapped(kernel, L if rank is None else L[-rank:])
