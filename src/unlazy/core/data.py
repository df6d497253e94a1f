"""A sample: inputs and labels."""

import equinox as eqx
from jaxtyping import Array, Float

from unlazy.core.arrays import read_numbers


class Data(eqx.Module):
    """n labeled points, from any form of numbers. `weights`, where given, are zero for rows that only pad the arrays
    to a fixed size."""

    X: Float[Array, "n d"] = eqx.field(converter=read_numbers)
    y: Float[Array, "n *c"] = eqx.field(converter=read_numbers)
    weights: Float[Array, " n"] | None = eqx.field(converter=read_numbers, default=None)

    @property
    def n(self) -> int:
        return self.X.shape[0]

    @property
    def d(self) -> int:
        return self.X.shape[1]
