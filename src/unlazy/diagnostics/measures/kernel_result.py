"""The result of kernel regression beside the network, as plain values."""

import math
from dataclasses import dataclass

SUFFICES = 1.05
"""A kernel machine with at most this multiple of the network's error does as well."""

CALIBRATED = 4
"""Multiple of the points beyond which a learning curve is not calibrated, as in solvers.learning_curve (which needs
JAX, unlike this module)."""


@dataclass(frozen=True)
class KernelMachine:
    """Kernel regression with the tangent kernel at initialization on the probe points, beside the network.

    Attributes
    ----------
    points : int
        Number of probe points that it is trained on, one left out at a time.
    error : float
        Its error on points left out: share of wrong labels, or squared error relative to that of a constant.
    network_error : float
        The error of the network on the same points; too small if it was trained on them.
    training_points : int or None
        Number of points that the network is trained on, if it was given.
    predicted, low, high : float
        Error of the kernel machine with so many points, by its own learning curve, and its 90% interval; NaN without
        their number.
    """

    points: int
    error: float
    network_error: float
    training_points: int | None = None
    predicted: float = math.nan
    low: float = math.nan
    high: float = math.nan

    @property
    def suffices(self) -> bool:
        """Whether the kernel machine does as well as the network."""
        reached = self.error if math.isnan(self.predicted) else self.predicted
        return bool(reached <= SUFFICES * self.network_error)

    def __str__(self) -> str:
        text = f"The machine of the initial tangent kernel has error {self.error:.3g} with {self.points} probe points"
        if not math.isnan(self.predicted):
            text += (
                f", and would have {self.predicted:.3g} ({self.low:.3g} to {self.high:.3g}) with "
                f"{self.training_points:,}"
            )
            if self.training_points is not None and self.training_points > CALIBRATED * self.points:
                text += f" (beyond {CALIBRATED * self.points:,}: not calibrated)"
        return f"{text}; the network has {self.network_error:.3g} on them."
