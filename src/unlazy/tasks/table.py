"""Any (X, y) the user has, as a task: sampling is drawing rows without replacement."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from unlazy.core.data import Data
from unlazy.core.errors import check_positive_integer
from unlazy.tasks.base import Estimate, Predictor, Task, squared_errors


class Table(Task):
    """The uniform distribution over N given rows. What lies between them, and the noise in y, it does not know."""

    X: Float[Array, "N d"]
    y: Float[Array, "N *c"]
    noise: float = eqx.field(static=True)
    d: int = eqx.field(static=True)

    def __init__(self, X: Any, y: Any):
        values, labels = _numbers("X", X), _numbers("y", y)
        if values.ndim != 2 or 0 in values.shape:
            raise ValueError(f"X must have shape (rows, columns) with at least one of each, got {values.shape}")
        if labels.ndim not in (1, 2) or labels.shape[0] != values.shape[0]:
            raise ValueError(f"y must have one entry or row for each of the {len(values)} rows, got {labels.shape}")
        dtype = jnp.zeros(()).dtype
        self.X, self.y = jnp.asarray(values, dtype), jnp.asarray(labels, dtype)
        self.noise, self.d = 0.0, values.shape[1]

    @property
    def size(self) -> int:
        """N, the number of rows."""
        return self.X.shape[0]

    def rows(self, key: PRNGKeyArray, n: int) -> Int[Array, " n"]:
        """n distinct row numbers in random order; the first do not depend on n."""
        n = check_positive_integer("n (the number of samples)", n)
        if n > self.size:
            raise ValueError(f"the table has {self.size} rows, {n} distinct ones were asked for; ask for fewer")
        return jax.random.permutation(key, self.size)[:n]

    def inputs(self, key: PRNGKeyArray, n: int) -> Float[Array, "n d"]:
        return self.X[self.rows(key, n)]

    def input_row(self, key: PRNGKeyArray) -> Float[Array, " d"]:
        return self.inputs(key, 1)[0]

    def sample(self, key: PRNGKeyArray, n: int) -> Data:
        """n distinct rows with their labels. Nested in n."""
        chosen = self.rows(key, n)
        return Data(self.X[chosen], self.y[chosen])

    def target(self, X: Float[Array, "n d"]) -> Float[Array, "n *c"]:
        raise ValueError("a table knows labels only for its own rows; use sample, X and y, or population_risk")

    def split(self, key: PRNGKeyArray, n: int) -> tuple["Table", "Table"]:
        """n random rows and the rest, as two tables."""
        if n >= self.size:
            raise ValueError(f"a split of {self.size} rows must leave some for the other side, got n = {n}")
        order, n = jax.random.permutation(key, self.size), check_positive_integer("n", n)
        return Table(self.X[order[:n]], self.y[order[:n]]), Table(self.X[order[n:]], self.y[order[n:]])

    @property
    def second_moment(self) -> Float[Array, ""]:
        return jnp.mean(jnp.square(self.y).reshape(self.size, -1).sum(1))

    @property
    def best_risk(self) -> None:
        """Unknown: the noise in real labels is."""
        return None

    @property
    def duplicate_rows(self) -> int:
        """Rows that repeat an earlier one; they leak from training to test data when a table is split."""
        return self.size - len(np.unique(np.asarray(self.X), axis=0))

    def population_risk(self, predict: Predictor, key: PRNGKeyArray, m: int = 4096) -> Estimate:
        """Mean of |predict(x) - y|² over the table from at most m distinct rows; exact when m covers it."""
        m = min(check_positive_integer("m (the number of test points)", m), self.size)
        data = self.sample(key, m)
        values = squared_errors(predict(data.X), data.y)
        left_out = 1 - m / self.size  # sampling without replacement: the error vanishes with what is left out
        error = jnp.sqrt(values.var(ddof=1) * left_out / m) if m > 1 else jnp.asarray(jnp.inf)
        return Estimate(values.mean(), jnp.asarray(error if self.size > 1 else 0.0, values.dtype))


def _numbers(what: str, values: Any) -> np.ndarray:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as problem:
        raise ValueError(f"{what} must be numbers: {problem}; encode text and categories first") from None
    if not np.all(np.isfinite(array)):
        bad = int(np.size(array) - np.isfinite(array).sum())
        raise ValueError(f"{what} has {bad} missing or infinite values; drop or fill them first")
    return array
