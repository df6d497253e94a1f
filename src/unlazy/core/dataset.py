"""A labeled dataset."""

import equinox as eqx
from jaxtyping import Array, Float

from unlazy.core.arrays import floats_if_numeric


class Data(eqx.Module):
    """A dataset of n labeled points.

    Lists, NumPy arrays and data frames are converted to JAX arrays of floats.

    Parameters
    ----------
    X : array of shape (n, d)
        Inputs.
    y : array of shape (n,) or (n, c)
        Labels.
    weights : array of shape (n,), optional
        Weights of the rows; zero for rows that only pad the arrays to a fixed size.
    """

    X: Float[Array, "n d"] = eqx.field(converter=floats_if_numeric)
    y: Float[Array, " n *c"] = eqx.field(converter=floats_if_numeric)
    weights: Float[Array, " n"] | None = eqx.field(converter=floats_if_numeric, default=None)

    @property
    def n(self) -> int:
        """Number of points, padding included."""
        return self.X.shape[0]

    @property
    def d(self) -> int:
        """Dimension of the inputs."""
        return self.X.shape[1]
