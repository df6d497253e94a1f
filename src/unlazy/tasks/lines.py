"""Tasks with inputs on a line or a closed curve, whose risk is estimated on equidistant test points."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.errors import check_positive_integer
from unlazy.tasks.base import Predictor, RiskEstimate, Task, mean_estimate, squared_errors

COPIES = 16
"""Independent copies of the grid of test points; their standard deviation gives the standard error."""


class LineTask(Task):
    """Base class of tasks with x = place(u), u uniform on [0, 1)."""

    def place(self, u: Float[Array, " n"]) -> Float[Array, "n d"]:
        """Return the inputs at positions u of [0, 1)."""
        raise NotImplementedError

    def input_row(self, key: PRNGKeyArray) -> Float[Array, " d"]:
        """Draw one input."""
        return self.place(jax.random.uniform(key, (1,)))[0]

    def grid(self, n: int) -> Float[Array, "n d"]:
        """Return n equidistant inputs (the midpoints of n cells)."""
        n = check_positive_integer("n (the number of points)", n)
        return self.place((jnp.arange(n) + 0.5) / n)

    def population_risk(self, predict: Predictor, key: PRNGKeyArray, m: int = 4096) -> RiskEstimate:
        """Estimate E |predict(x) - f*(x)|² on 16 equidistant grids with random offsets (unbiased).

        Parameters
        ----------
        predict : callable
            Maps inputs of shape (m, d) to predictions of shape (m,).
        key : PRNG key
            Draws the offsets.
        m : int, default 4096
            Largest number of test points.

        Returns
        -------
        RiskEstimate
            Mean (without a factor 1/2) and standard error.
        """
        m = check_positive_integer("m (the number of test points)", m)
        cells = m // COPIES
        if cells < 2:
            return super().population_risk(predict, key, m)
        offset = jax.random.uniform(key, (COPIES, 1))
        X = self.place(((jnp.arange(cells) + offset) / cells).ravel())
        return mean_estimate(squared_errors(predict(X), self.target(X)).reshape(COPIES, cells).mean(1))
