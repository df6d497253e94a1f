"""A data set (X, y) as a task: sampling draws rows without replacement."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from unlazy.core.dataset import Data
from unlazy.core.errors import check_positive_integer
from unlazy.tasks.base import Predictor, RiskEstimate, Task, squared_errors


class TableTask(Task):
    """Uniform distribution over the N rows of a data set; the target between rows and the label noise are unknown.

    Parameters
    ----------
    X : array of shape (N, d)
        Inputs.
    y : array of shape (N,) or (N, c)
        Labels.

    Raises
    ------
    ValueError
        If the shapes do not match or values are missing, infinite or not numeric.

    Examples
    --------
    >>> import jax
    >>> import numpy as np
    >>> from unlazy.tasks import TableTask
    >>> task = TableTask(np.arange(20.0).reshape(10, 2), np.arange(10.0))
    >>> task.sample(jax.random.key(0), 4).X.shape
    (4, 2)
    >>> train, test = task.split(jax.random.key(1), 7)
    >>> train.size, test.size
    (7, 3)
    """

    X: Float[Array, "N d"]
    y: Float[Array, " N *c"]
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
        """Number of rows N."""
        return self.X.shape[0]

    def rows(self, key: PRNGKeyArray, n: int) -> Int[Array, " n"]:
        """Draw n distinct row indices in random order; the first do not depend on n.

        Parameters
        ----------
        key : PRNG key
            Source of randomness.
        n : int
            Number of rows, at most N.

        Returns
        -------
        integer array of shape (n,)
            Row indices.

        Raises
        ------
        ValueError
            If n exceeds the number of rows.
        """
        n = check_positive_integer("n (the number of samples)", n)
        if n > self.size:
            raise ValueError(f"the table has {self.size} rows, {n} distinct ones were requested; use a smaller n")
        return jax.random.permutation(key, self.size)[:n]

    def inputs(self, key: PRNGKeyArray, n: int) -> Float[Array, "n d"]:
        """Return n distinct rows of X in random order."""
        return self.X[self.rows(key, n)]

    def input_row(self, key: PRNGKeyArray) -> Float[Array, " d"]:
        """Draw one row of X."""
        return self.inputs(key, 1)[0]

    def sample(self, key: PRNGKeyArray, n: int) -> Data:
        """Draw n distinct rows with their labels; the first rows do not depend on n.

        Parameters
        ----------
        key : PRNG key
            Source of randomness.
        n : int
            Number of rows, at most N.

        Returns
        -------
        Data
            Inputs X and labels y.
        """
        chosen = self.rows(key, n)
        return Data(self.X[chosen], self.y[chosen])

    def target(self, X: Float[Array, "n d"]) -> Float[Array, " n *c"]:
        """Raise ValueError: a table has no target function."""
        raise ValueError("a table has labels only for its own rows; use sample, X and y, or population_risk")

    def split(self, key: PRNGKeyArray, n: int) -> tuple["TableTask", "TableTask"]:
        """Split the table at random into n rows and the rest.

        Parameters
        ----------
        key : PRNG key
            Source of randomness.
        n : int
            Number of rows of the first part, less than N.

        Returns
        -------
        tuple of two TableTask
            The two parts.

        Raises
        ------
        ValueError
            If n is not less than the number of rows.
        """
        if n >= self.size:
            raise ValueError(f"a split of {self.size} rows must leave some for the second part, got n = {n}")
        order, n = jax.random.permutation(key, self.size), check_positive_integer("n", n)
        return TableTask(self.X[order[:n]], self.y[order[:n]]), TableTask(self.X[order[n:]], self.y[order[n:]])

    @property
    def second_moment(self) -> Float[Array, ""]:
        """Mean of |y|²."""
        return jnp.mean(jnp.square(self.y).reshape(self.size, -1).sum(1))

    @property
    def best_risk(self) -> None:
        """None: the noise of real labels is unknown."""
        return None

    @property
    def duplicate_rows(self) -> int:
        """Number of rows that repeat an earlier one; they leak from training to test data in a split."""
        return self.size - len(np.unique(np.asarray(self.X), axis=0))

    def population_risk(self, predict: Predictor, key: PRNGKeyArray, m: int = 4096) -> RiskEstimate:
        """Estimate the mean of |predict(x) - y|² over the table from at most m distinct rows; exact if m ≥ N.

        Parameters
        ----------
        predict : callable
            Maps inputs of shape (m, d) to predictions with the shape of the labels.
        key : PRNG key
            Draws the rows.
        m : int, default 4096
            Largest number of rows.

        Returns
        -------
        RiskEstimate
            Mean (without a factor 1/2) and standard error.
        """
        m = min(check_positive_integer("m (the number of test points)", m), self.size)
        data = self.sample(key, m)
        values = squared_errors(predict(data.X), data.y)
        left_out = 1 - m / self.size  # without replacement, the error vanishes with the share of rows left out
        error = jnp.sqrt(values.var(ddof=1) * left_out / m) if m > 1 else jnp.asarray(jnp.inf)
        return RiskEstimate(values.mean(), jnp.asarray(error if self.size > 1 else 0.0, values.dtype))


def _numbers(what: str, values: Any) -> np.ndarray:
    """Convert to float64; raise ValueError if values are not numeric, missing or infinite."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as problem:
        raise ValueError(f"{what} must be numbers: {problem}; encode text and categories first") from None
    if not np.all(np.isfinite(array)):
        bad = int(np.size(array) - np.isfinite(array).sum())
        raise ValueError(f"{what} has {bad} missing or infinite values; drop or fill them first")
    return array
