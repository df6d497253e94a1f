"""Norm, movement and distance of the tangent kernel Θ = J Jᵀ from products with a few vectors [W2].

For symmetric A, B and Rademacher v, E⟨Av, Bv⟩ = ⟨A, B⟩. Tangent kernels have a few large eigenvalues, which dominate
the variance; their span Q, found once by products with Θ_0, is treated exactly, and only the rest P = I - QQᵀ is
sampled:

    ⟨A, B⟩ = ⟨AQ, BQ⟩ + ⟨PAQ, PBQ⟩ + E⟨PAw, PBw⟩,    w = Pv.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from unlazy.models.protocol import Inputs, Model, Params

BASIS, FIRST_SAMPLE, MAX_SAMPLE = 8, 8, 64
"""Vectors of the span that is treated exactly, of the first sample, and of the largest sample."""
MAX_ENTRIES, BUCKETS = 2**17, 2**14
"""With more outputs on all points than the first, the span is left out and products are stored as random signed sums
of this many buckets, which keep inner products in expectation with relative variance of at most 2/BUCKETS."""


class Estimate(NamedTuple):
    """A value with its standard error, 0 if exact: two of them cover the true value in 95% of cases."""

    value: float
    standard_error: float


class KernelMovement(NamedTuple):
    """Change of the tangent kernel since initialization [W2].

    Attributes
    ----------
    movement : Estimate
        ‖Θ_t - Θ_0‖_F/‖Θ_0‖_F.
    distance : Estimate
        1 - ⟨Θ_t, Θ_0⟩/(‖Θ_t‖‖Θ_0‖): movement up to scale.
    vectors : int
        Number of products with each kernel.
    """

    movement: Estimate
    distance: Estimate
    vectors: int


class _Products(NamedTuple):
    """Products of one symmetric matrix: with the basis (rows), and, projected, with every sample vector (rows)."""

    basis: Float[np.ndarray, "k n"]
    sample: Float[np.ndarray, "r s"]


def kernel_product(
    model: Model, params: Params, vector: Float[np.ndarray, "m c"], inputs: Inputs
) -> Float[np.ndarray, "m c"]:
    """Θ v = J(Jᵀv) on the probe points, in float64."""
    return np.asarray(model.jvp(params, model.vjp(params, vector, inputs), inputs), np.float64)


class KernelSketch:
    """Products of the initial tangent kernel with a few vectors, to which those at other parameters are compared.

    Parameters
    ----------
    model : Model
        The network.
    reference : pytree
        Parameters at initialization.
    inputs : array of shape (m, ...)
        Probe points.
    shape : tuple of int
        (m, c), the shape of the outputs.
    centered : bool, default False
        Use HΘH with H = I - 11ᵀ/m over points in place of Θ.
    error : float, default 0.05
        Vectors are added until the standard error of a movement is at most this share of it, or this value where the
        movement is below 1, or there are `MAX_SAMPLE`.
    seed : int, default 0
        Of the random vectors.
    """

    def __init__(
        self,
        model: Model,
        reference: Params,
        inputs: Inputs,
        shape: tuple[int, int],
        *,
        centered: bool = False,
        error: float = 0.05,
        seed: int = 0,
    ) -> None:
        self._model, self._reference, self._inputs, self._shape = model, reference, inputs, shape
        self._centered, self._error, self._seed = centered, error, seed
        self._size = shape[0] * shape[1]
        self._projected = self._size > MAX_ENTRIES
        self._exact = self._size <= BASIS + FIRST_SAMPLE
        self._basis = self._find_basis()
        self._start: _Products | None = None

    def compare(self, params: Params) -> KernelMovement:
        """Movement and distance of the kernel at other parameters, with as many vectors as the stated error needs."""
        start = self._products(self._reference, self._first) if self._start is None else self._start
        now = self._products(params, len(start.sample))
        while True:
            self._start, found = start, self._movement(start, now)
            count, (value, error) = len(now.sample), found.movement
            if self._exact or error <= self._error * max(value, 1.0) or count >= MAX_SAMPLE:
                return found
            start, now = self._extended(start, self._reference), self._extended(now, params)

    def norm(self, params: Params) -> Estimate:
        """‖Θ‖_F at other parameters."""
        now = self._products(params, self._first)
        inside, forms = self._inner(now, now)
        square = inside + _trace(forms)
        value = float(np.sqrt(square))
        return Estimate(value, value / 2 * self._error_of_trace(forms / square, forms))

    @property
    def _first(self) -> int:
        """Number of sample vectors to begin with."""
        return 0 if self._exact else FIRST_SAMPLE

    def _movement(self, start: _Products, now: _Products) -> KernelMovement:
        """The estimates; their errors to first order in those of the squared norms."""
        change = _Products(now.basis - start.basis, now.sample - start.sample)
        (a, A), (b, B), (c, C), (d, D) = (
            self._inner(*pair) for pair in ((now, now), (now, start), (start, start), (change, change))
        )
        a, b, c, d = a + _trace(A), b + _trace(B), c + _trace(C), d + _trace(D)
        vectors = self._basis.shape[1] + len(now.sample)
        if not (a > 0 and c > 0):
            return KernelMovement(Estimate(np.nan, np.nan), Estimate(np.nan, np.nan), vectors)
        size = np.sqrt(a * c)
        movement, cosine = float(np.sqrt(d / c)), float(b / size)
        in_movement = self._error_of_trace(D / d - C / c, D) * movement / 2 if d > 0 else 0.0
        in_distance = self._error_of_trace(B / size - cosine / 2 * (A / a + C / c), D)
        return KernelMovement(Estimate(movement, in_movement), Estimate(1 - cosine, in_distance), vectors)

    def _inner(self, A: _Products, B: _Products) -> tuple[float, Float[np.ndarray, "r r"]]:
        """The exact part of ⟨A, B⟩, and wᵢᵀPABPwⱼ for all pairs of sample vectors: the rest is E of the diagonal."""
        AQ, BQ = A.basis, B.basis
        rest = [part - (part @ self._basis) @ self._basis.T for part in (AQ, BQ)]
        forms = A.sample @ B.sample.T
        return float(np.sum(AQ * BQ) + np.sum(rest[0] * rest[1])), (forms + forms.T) / 2

    def _error_of_trace(self, forms: Float[np.ndarray, "r r"], square: Float[np.ndarray, "r r"]) -> float:
        """Standard error of the mean of wᵢᵀNwᵢ over sample vectors, from wᵢᵀNwⱼ for all pairs.

        The variance of wᵀNw is at most 2‖N‖², and (wᵢᵀNwⱼ)² with i ≠ j is an unbiased estimate of ‖N‖²: r(r - 1)/2 of
        them are far steadier than the variance of r squares, which is too small whenever no square is large.

        The positive form `square` that dominates the error has a mean distributed as χ²_ν/ν, ν = r (tr M/‖M‖)² ≥ r
        (Satterthwaite 1946). An error that is proportional to a value that came out small is too small itself: it is
        widened so that two of them reach from the 2.5% quantile of χ²_ν/ν to 1.
        """
        r = len(forms)
        if r < 2:
            return 0.0
        apart = ~np.eye(r, dtype=bool)
        variance = max(2 * float(np.mean(forms[apart] ** 2)), float(np.var(np.diagonal(forms), ddof=1)))
        shared = 2 / BUCKETS * float(np.mean(np.diagonal(forms))) ** 2 if self._projected else 0.0
        trace, norm = float(np.mean(np.diagonal(square))), float(np.mean(square[apart] ** 2))
        freedom = r * max(1.0, trace**2 / norm) if norm > 0 else np.inf
        from scipy import special  # slow to import

        low = 2 * special.gammaincinv(freedom / 2, 0.025) / freedom if freedom < 1e6 else 1.0
        widened = max(1.0, (1 / low - 1) / (2 * np.sqrt(2 / freedom))) if low < 1 else 1.0
        return float(widened * np.sqrt(variance / r + shared))

    def _find_basis(self) -> Float[np.ndarray, "n k"]:
        """Orthonormal columns: all of space if it is small, else the range of Θ_0 on random vectors."""
        if self._exact:
            return np.eye(self._size)
        if self._projected:
            return np.zeros((self._size, 0))
        rng = np.random.default_rng([self._seed, 0])
        images = [self._product(self._reference, rng.choice((-1.0, 1.0), self._size)) for _ in range(BASIS)]
        return np.linalg.qr(np.stack(images, 1))[0]

    def _products(self, params: Params, count: int) -> _Products:
        basis = [self._product(params, column) for column in self._basis.T]
        sample = [self._sample(params, i) for i in range(count)]
        width = BUCKETS if self._projected else self._size
        return _Products(np.reshape(basis, (-1, self._size)), np.reshape(sample, (-1, width)))

    def _extended(self, products: _Products, params: Params) -> _Products:
        """The same with twice as many sample vectors."""
        count = len(products.sample)
        more = [self._sample(params, i) for i in range(count, 2 * count)]
        return _Products(products.basis, np.concatenate([products.sample, more]))

    def _product(self, params: Params, vector: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Θ v, or HΘHv."""
        out = kernel_product(self._model, params, self._center(vector.reshape(self._shape)), self._inputs)
        return self._center(out).ravel()

    def _center(self, values: Float[np.ndarray, "m c"]) -> Float[np.ndarray, "m c"]:
        return values - values.mean(0) if self._centered else values

    def _sample(self, params: Params, i: int) -> Float[np.ndarray, " s"]:
        """PΘw for the i-th vector, which is drawn again whenever it is needed."""
        v = np.random.default_rng([self._seed, 1, i]).choice((-1.0, 1.0), self._size)
        out = self._product(params, self._outside(v))
        if not self._projected:
            return self._outside(out)
        rng = np.random.default_rng([self._seed, 2])  # the same sums for all vectors
        signs, buckets = rng.choice((-1.0, 1.0), self._size), rng.integers(0, BUCKETS, self._size)
        return np.bincount(buckets, signs * out, BUCKETS)

    def _outside(self, vector: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        return vector - self._basis @ (self._basis.T @ vector)


def _trace(forms: Float[np.ndarray, "r r"]) -> float:
    """The mean of wᵢᵀNwᵢ, an estimate of the trace of N; 0 for no sample."""
    return float(np.mean(np.diagonal(forms))) if len(forms) else 0.0


def kernel_alignment(
    model: Model, params: Params, inputs: Inputs, labels: Float[np.ndarray, "m c"], norm: float
) -> float:
    """yᵀΘy/(‖y‖²‖Θ‖_F) with y and Θ centered over points [W3]; NaN for constant labels.

    Rises in the rich regime before the loss falls (Atanasov et al. 2022).

    Parameters
    ----------
    model : Model
        The network.
    params : pytree
        Parameters of the kernel.
    inputs : array of shape (m, ...)
        Probe points.
    labels : array of shape (m, c)
        Labels or residuals, in the shape of the outputs.
    norm : float
        ‖Θ‖_F of the centered kernel, from a centered `KernelSketch`.

    Returns
    -------
    float
    """
    y = labels - labels.mean(0)
    size = float(np.sum(y**2))
    if not size > 0 or not norm > 0:
        return float("nan")
    pulled = model.vjp(params, y, inputs)
    return model.inner(pulled, pulled) / (size * norm)
