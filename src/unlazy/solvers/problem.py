"""A checked problem: (K + ridge·I)α = y, or its restriction to M centers, with the means to solve it."""

import functools
import hashlib
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from unlazy.core import devices
from unlazy.core.fingerprint import fingerprint
from unlazy.core.linalg import dot
from unlazy.core.memory import memory_budget
from unlazy.core.precision import rounding
from unlazy.kernels.base import Kernel
from unlazy.kernels.resolve import given_kernel
from unlazy.products import Product, gram, matmul, product
from unlazy.products.engines.dense import TILE
from unlazy.products.engines.sharded import Sharded, sharded_rows
from unlazy.solvers.float64_vectors import times
from unlazy.solvers.sources import Source, as_source, finite_floats

PILOT = TILE
"""Points of the sample from which the top of the spectrum is guessed: one tile, which larger Grams compile anyway."""

OWN_STEPS = 8
"""Steps of a power iteration by a product of the kernel's own, each as costly as a step of a solver on the sample."""


class Fit(NamedTuple):
    """What a method hands back; centers None stands for all the points."""

    coefficients: np.ndarray
    residual: float
    steps: int
    stopped: str
    bytes: int
    notes: tuple[str, ...] = ()
    centers: np.ndarray | None = None
    ridge: float | None = None
    """The ridge used, where it is not the one asked for."""
    left: np.ndarray | None = None
    """y - (K + ridge)α of every row as the method knows it, for full regression."""


@dataclass(frozen=True)
class Problem:
    """Inputs (read by blocks where they are large), labels (n, c) in float64, ridge added to K, and the means."""

    kernel: Kernel
    source: Source
    y: np.ndarray
    ridge: float
    dtype: np.dtype
    memory: int
    seed: int = 0
    notes: tuple[str, ...] = field(default=())

    @property
    def n(self) -> int:
        return self.source.n

    @functools.cached_property
    def y_norm(self) -> np.ndarray:
        """‖y‖ of every output; 1 where an output is zero, which needs no relative error. No temporary of y's size."""
        norm = np.array([np.linalg.norm(column) for column in self.y.T])
        return np.where(norm > 0, norm, 1.0)

    def rng(self) -> np.random.Generator:
        """Random choices of a method; the same in every run."""
        return np.random.default_rng(self.seed)

    def X(self) -> Any:
        """All inputs on the device."""
        if self.source.whole is None:
            need = self.n * self.source.d * self.dtype.itemsize
            if need > self.memory // 2:
                raise ValueError(
                    f"this method keeps all inputs in memory ({need / 2**30:.3g} GiB, more than half of the budget of "
                    f"{self.memory / 2**30:.3g} GiB): use method='nystrom_cg', which reads by blocks, or allow more"
                )
            return on_device(self.source.rows(0, self.n), self.dtype)
        return on_device(self.source.whole, self.dtype)

    def kept(self) -> Any:
        """All inputs, for a model that keeps them: in the host's memory where no device shall hold them all."""
        return np.asarray(self.source.rows(0, self.n), self.dtype) if self.spreads else self.X()

    @property
    def spreads(self) -> bool:
        """Whether several devices share the rows."""
        return devices.count() > 1 and self.source.matrix and not self.kernel.has_product

    @property
    def memories(self) -> int:
        """Devices with a memory of their own among which rows and factors are spread: cards, not cores."""
        return devices.count() if self.spreads and not devices.is_host() else 1

    def spread(self, Z: jax.Array | None = None, budget: int | None = None) -> Sharded:
        """K(X, Z), or K(X, X), with the rows of X over all devices: no device holds all of them, no host reads those
        of another's."""
        centers = None if Z is None else np.asarray(Z)

        def read(start: int, stop: int) -> np.ndarray:
            return self.rows(start, stop, centers)

        return sharded_rows(self.kernel, read, self.n, centers, memory=None if budget is None else max(budget, 1))

    def rows(self, start: int, stop: int, beside: np.ndarray | None = None) -> np.ndarray:
        """Rows start … stop-1 in the problem's precision, in the host's memory, admitted to the kernel."""
        rows = np.asarray(self.source.rows(start, stop), self.dtype)
        if len(rows):
            self.kernel.admit(rows, beside)
        return rows

    def product(self, X: Any, budget: int) -> Product:
        """K(X, X) for many passes: stored where `budget` bytes allow."""
        return product(self.kernel, X, passes=100, memory=max(budget, 1))

    def largest_eigenvalue(self) -> float:
        """λ_max of K guessed from a sample of s points: n/s λ_max(K_ss)."""
        sample = self._sample()
        size = min(self.n, PILOT)
        K: Any
        if self.kernel.takes_gradients:
            K, steps = product(self.kernel, sample, passes=OWN_STEPS), OWN_STEPS
        else:
            K, steps = np.asarray(gram(self.kernel, sample), np.float64), 30
        v = self.rng().normal(size=(size, 1))
        for _ in range(steps):  # a guess is enough, so power iteration
            v = v / np.linalg.norm(v)
            v = dot(K, v) if isinstance(K, np.ndarray) else np.asarray(times(K, v))
        if not np.isfinite(v).all():
            raise ValueError("the kernel gives NaN or infinity on these inputs: rescale them, or use float64")
        return float(np.linalg.norm(v)) * self.n / size

    def ridge_within(self, share: float) -> bool:
        """Whether the ridge is below `share` of λ_max as guessed."""
        if not self.kernel.takes_gradients:
            trace = self.n * float(np.mean(np.asarray(self.kernel.diag(self._sample()), np.float64)))
            if self.ridge >= share * trace:  # the guess is at most the trace of the same sample
                return False
        return self.ridge < share * self.largest_eigenvalue()

    def _sample(self) -> Any:
        """PILOT of the points, or all of fewer."""
        index = np.sort(self.rng().choice(self.n, min(self.n, PILOT), replace=False))
        return on_device(self.source.take(index), self.dtype)

    def mended(self, least: float = 0.0) -> "Problem":
        """The problem with the ridge raised to the rounding floor of K where it is below, and a note that says so.

        Under it the smallest directions of (K + ridge·I) are noise: no iteration in this precision can fit them. The
        floor is 4 roundings of λ_max, or `least` of it where the method needs more.
        """
        share = max(4 * rounding(self.dtype), least)
        if not self.ridge_within(share):
            return self
        floor = share * self.largest_eigenvalue()
        note = (
            f"ridge {self.ridge:.2g} is below what this method resolves in {self.dtype.name}; {floor:.2g} was used "
            "instead (jitter)" + ("; float64 allows less" if self.dtype == np.float32 else "")
        )
        return replace(self, ridge=floor, notes=(*self.notes, note))

    def residual(self, K: Product, alpha: np.ndarray) -> np.ndarray:
        """y - (K + ridge·I)α."""
        return self.y - np.asarray(times(K, alpha)) - self.ridge * alpha

    def relative(self, residual: np.ndarray) -> float:
        """Largest ‖residual‖/‖y‖ over outputs: it bounds the error of the fitted values, since ‖K(K+ρ)⁻¹‖ ≤ 1."""
        return float(np.max(np.linalg.norm(residual, axis=0) / self.y_norm))

    def identity(self, method: str, extra: object = ()) -> dict[str, str]:
        """What a checkpoint must share with the problem it continues. All rows are read: a step reads them too."""
        data = hashlib.sha256(_raw(self.y))
        for _, rows in self.source.blocks(max(1, 2**24 // self.source.d)):
            for leaf in jax.tree.leaves(rows):
                data.update(_raw(leaf))
        return {
            "method": method + fingerprint(extra), "data": data.hexdigest(), "ridge": repr(self.ridge),
            "kernel": fingerprint(self.kernel), "precision": self.dtype.name,
            "shape": repr((self.n, self.source.d, self.y.shape[1])),
        }  # fmt: skip


def _raw(array: Any) -> memoryview:
    """The bytes of an array, where they lie."""
    return memoryview(np.ascontiguousarray(array).data).cast("B")


def on_device(X: Any, dtype: np.dtype) -> Any:
    """Inputs in the precision of the problem; whole numbers of a tree stay what they are."""
    return jax.tree.map(lambda a: jnp.asarray(a, dtype if np.issubdtype(a.dtype, np.floating) else None), X)


def predict(kernel: Kernel, X: np.ndarray, centers: jax.Array, alpha: np.ndarray, memory: int) -> np.ndarray:
    """Predictions as float64."""
    out = matmul(kernel, jnp.asarray(X, centers.dtype), centers, jnp.asarray(alpha, centers.dtype), memory=memory)
    return np.asarray(out, np.float64)


def labels(y: Any, n: int) -> tuple[np.ndarray, tuple[int, ...]]:
    """Labels as (n, c) float64, and the shape of one label."""
    array = finite_floats("y", np.asarray(y))
    if array.ndim not in (1, 2) or array.shape[0] != n or 0 in array.shape:
        raise ValueError(f"y must have one row for each of the {n} rows of X and one or two axes, got {array.shape}")
    return array.reshape(n, -1).astype(np.float64), array.shape[1:]


def make(kernel: Kernel, X: Any, y: Any, ridge: Any, memory: int | str | None = None, seed: int = 0) -> Problem:
    """A checked problem in float32; `solve` settles precision and method."""
    given_kernel(kernel)
    source = X if isinstance(X, Source) else as_source(X, kernel.takes)
    columns, _ = labels(y, source.n)
    if isinstance(ridge, jax.Array | np.ndarray) and ridge.ndim == 0 and ridge.dtype.kind in "fiu":
        ridge = float(ridge)
    if isinstance(ridge, bool) or not isinstance(ridge, int | float | np.number) or not 0 <= ridge < np.inf:
        raise ValueError(f"ridge must be a number, zero or more, got {ridge!r}")
    return Problem(kernel, source, columns, float(ridge), np.dtype("float32"), memory_budget(memory), seed)
