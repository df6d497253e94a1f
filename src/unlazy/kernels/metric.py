"""Kernels with a learned metric: k(Lx, Lz) instead of k(x, z) [D11]. The formula of the kernel does not change."""

import functools

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core.arrays import Matrix, Points, Side, as_floats, dot
from unlazy.kernels.base import DerivedFormula, InnerProductKernel, Kernel


class Metric(DerivedFormula):
    """Kernel k(Lx, Lz), in which ⟨x,z⟩ becomes ⟨x, Mz⟩ with M = LᵀL [D11].

    A network kernel divides by the √d of the original inputs, so that every L with the same LᵀL gives the same kernel.

    Parameters
    ----------
    kernel : InnerProductKernel
        The kernel k.
    map : array of shape (d,) or (r, d)
        L: d scales (a diagonal metric), or a matrix (full or low rank).

    Raises
    ------
    ValueError
        If the inputs do not have d columns.

    References
    ----------
    Radhakrishnan et al. (2024), Mechanism for feature learning in neural networks and backpropagation-free machine
    learning models.
    """

    map: Float[Array, " d"] | Float[Array, "r d"]

    def embed(self, X: Float[Matrix, "n d"], inputs: int | None = None) -> Float[Matrix, "n e"]:
        if X.shape[1] != self.map.shape[-1]:
            raise ValueError(f"the metric is for {self.map.shape[-1]} coordinates, but the inputs have {X.shape[1]}")
        mapped = X * self.map if self.map.ndim == 1 else dot(X, self.map.T)
        return self.kernel.embed(mapped, inputs or X.shape[1])

    def embedding(self) -> tuple:
        return ("metric", id(self.map), *self.kernel.embedding())

    @property
    def bare(self) -> InnerProductKernel:
        return self.kernel.bare

    @property
    def has_product(self) -> bool:
        return self.kernel.has_product

    def matmul_prepared(self, left: Side, right: Side, V: Float[Array, "m c"]) -> Float[Array, "n c"]:
        return self.kernel.matmul_prepared(left, right, V)


@functools.singledispatch
def apply_metric(kernel: Kernel, L: Float[Array | np.ndarray, " d"] | Float[Array | np.ndarray, "r d"]) -> Kernel:
    """Return the kernel k(Lx, Lz), in the class that the kernel family uses for it.

    Parameters
    ----------
    kernel : Kernel
        The kernel k.
    L : array of shape (d,) or (r, d)
        Scales of the coordinates, or a linear map.

    Returns
    -------
    Kernel
        The kernel with the metric.

    Raises
    ------
    ValueError
        If the kernel has no metric.
    """
    raise metric_not_supported(kernel)


def metric_not_supported(kernel: Kernel) -> ValueError:
    """Return the error for a kernel that has no metric."""
    return ValueError(
        f"{type(kernel).__name__} has no entry formula, so no metric can be learned for it: use a kernel of inner "
        "products (Gaussian, Laplace, Matern, NNGP, NTK) or ProductLaplace"
    )


@apply_metric.register(InnerProductKernel)
def _mapped(kernel: InnerProductKernel, L: Float[Array | np.ndarray, "..."]) -> Kernel:
    return Metric(kernel, jnp.asarray(L))


def with_metric(kernel: Kernel, matrix: Points, rank: int | None = None) -> Kernel:
    """Return the kernel in which ⟨x,z⟩ becomes ⟨x, Mz⟩.

    L = √Λ Vᵀ from the eigendecomposition M = V Λ Vᵀ; negative eigenvalues, which are due to rounding, become zero.

    Parameters
    ----------
    kernel : Kernel
        The kernel.
    matrix : array of shape (d, d) or (d,)
        M, positive semi-definite, or its diagonal.
    rank : int, optional
        Keep the `rank` largest eigenvalues. All by default.

    Returns
    -------
    Kernel
        The kernel with the metric.

    Raises
    ------
    ValueError
        If the kernel has no metric.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import Laplace, with_metric
    >>> first_only = with_metric(Laplace(1.0), np.diag([1.0, 0.0, 0.0]))  # only the first input matters
    >>> round(float(first_only([0.0, 5.0, 7.0], [1.0, 0.0, 0.0])), 4)
    0.3679
    """
    M = as_floats(matrix, "the metric")
    if M.ndim == 1:
        return apply_metric(kernel, jnp.sqrt(jnp.maximum(M, 0)))
    values, vectors = jnp.linalg.eigh(M)  # of the symmetric part
    L = jnp.sqrt(jnp.maximum(values, 0))[:, None] * vectors.T
    return apply_metric(kernel, L if rank is None else L[-rank:])
