"""Error of a fused program against float64, for one family of kernels: run before the first product on a device."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from unlazy.core.engines import Verdict
from unlazy.core.reference import error, float64_gram, product_bound
from unlazy.kernels.base import Kernel
from unlazy.kernels.networks.infinite_width import NTK
from unlazy.kernels.radial import Gaussian, Laplace
from unlazy.products.fused.fused_forms import AngleForm, EntryForm, Form, GaussianForm, LayersForm, MaternForm
from unlazy.theory.infinite_width.architecture import MLP

FAMILIES: dict[type[Form], Callable[[], Kernel]] = {
    GaussianForm: lambda: Gaussian(2.0),
    MaternForm: lambda: Laplace(2.0),
    AngleForm: lambda: NTK(MLP(3)),
    LayersForm: lambda: NTK(MLP(2, sigma_b=0.3)),
    EntryForm: lambda: Gaussian(2.0) + 0.5 * Laplace(2.0),
}
"""One kernel of every form."""
SHAPE = 70, 300, 5
"""Rows, columns and dimension."""
SCALES = 1.0, 100.0
"""Factors of the points: near each other, and many bandwidths apart, where another program runs."""


def family(form: Form) -> type[Form]:
    """The family in `FAMILIES` that a form belongs to."""
    return next(kind for kind in FAMILIES if isinstance(form, kind))


def verdict(kind: type[Form], multiply: Callable[[Kernel, Array, Array, Array], Array]) -> Verdict:
    """The largest error of `multiply(kernel, X, Z, V)` for one and for several columns."""
    n, m, d = SHAPE
    rng = np.random.default_rng(0)
    X, Z = (rng.normal(size=(rows, d)).astype(np.float32) for rows in (n, m))
    Z[:n] = X  # duplicates: K of points many bandwidths apart is zero elsewhere
    V = rng.uniform(0.5, 1.5, size=(m, 3)).astype(np.float32)
    kernel, errors = FAMILIES[kind](), []
    for scale in SCALES:
        K = float64_gram(kernel, scale * X, scale * Z)
        for columns in (V[:, 0], V):
            wanted, size = np.matmul(K, columns), np.matmul(np.abs(K), np.abs(columns))
            found = multiply(kernel, *(jnp.asarray(A) for A in (scale * X, scale * Z, columns)))
            errors.append(error(found, wanted, float(size.max())))
    return Verdict(max(errors), product_bound(m, fused=True))
