"""A sample: inputs and labels."""

import equinox as eqx
from jaxtyping import Array, Float


class Data(eqx.Module):
    """n labelled points. `weights`, where given, are zero for rows that only pad the arrays to a fixed size."""

    X: Float[Array, "n d"]
    y: Float[Array, "n *c"]
    weights: Float[Array, " n"] | None = None

    @property
    def n(self) -> int:
        return self.X.shape[0]

    @property
    def d(self) -> int:
        return self.X.shape[1]
