"""The rounds of a recursive feature machine [D11] as one trajectory: round 0 is the plain kernel."""

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int

from unlazy.core.fitted import Evidence, Words, place
from unlazy.core.inputs import Points, check_axes, real_numbers
from unlazy.core.precision import rounding
from unlazy.kernels.base import Kernel
from unlazy.kernels.metric import mapped
from unlazy.training.recursive_features import Iterate

SOLVED = "α = (K_M + ρI)⁻¹ y, M ← AGOP(f)/tr AGOP(f) [D11]"


class Machine(eqx.Module):
    """All iterates of `recursive_features.learn` with the kernel and the rows they belong to."""

    kernel: Kernel
    X: Float[np.ndarray, "n d"]
    iterates: tuple[Iterate, ...] = eqx.field(converter=tuple)
    one_output: bool = eqx.field(static=True, default=False)
    """Whether the labels had one axis, and predictions have."""

    @property
    def times(self) -> Int[np.ndarray, " t"]:
        """Updates of the metric."""
        return np.arange(len(self.iterates))

    @property
    def evidence(self) -> Evidence:
        fine = all(np.isfinite(one.alpha).all() for one in self.iterates)
        residual = len(self.X) * rounding(self.X.dtype) if fine else np.nan
        return Evidence(residual, steps=len(self.iterates), words=Words(SOLVED, "factorisation"))

    def predict(self, Z: Points, t: Any = None) -> Float[np.ndarray, "..."]:
        """f after the last update, or after t of them, one number or several: shape (*t, m, *outputs)."""
        rows = real_numbers("Z", Z).astype(self.X.dtype)
        check_axes("Z", rows.shape)
        at = np.asarray(len(self.iterates) - 1 if t is None else place(self.times, t, "update"))
        found = np.stack([self.iterates[i].predict(self.kernel, self.X, rows) for i in at.ravel()])
        return (found[..., 0] if self.one_output else found).reshape(*at.shape, len(rows), *self._outputs)

    @property
    def _outputs(self) -> tuple[int, ...]:
        return () if self.one_output else self.iterates[0].alpha.shape[1:]

    def kernel_at(self, t: Any) -> Kernel:
        """k(Lx/h, Lz/h) with what t updates have learned."""
        one = self.iterates[int(place(self.times, t, "update"))]
        return mapped(self.kernel, one.map / one.bandwidth)
