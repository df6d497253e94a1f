"""What every task answers: a sample, the target, and the facts that theory knows about it."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.data import Data


class Estimate(eqx.Module):
    """A measured mean and its standard error (zero when computed exactly)."""

    mean: Float[Array, ""]
    error: Float[Array, ""]


class Task(eqx.Module):
    """A distribution of (x, y) that knows its answer.

    A concrete task gives `d`, `inputs` and `target`; the rest has defaults. Facts a task does not know are None.
    """

    d: eqx.AbstractVar[int]
    noise: eqx.AbstractVar[float]

    def inputs(self, key: PRNGKeyArray, n: int) -> Float[Array, "n d"]:
        """n fresh inputs. Nested: the first rows do not depend on n."""
        raise NotImplementedError

    def target(self, X: Float[Array, "n d"]) -> Float[Array, "n *c"]:
        """The noiseless answer f*(x)."""
        raise NotImplementedError

    def sample(self, key: PRNGKeyArray, n: int) -> Data:
        """n labelled points, y = f*(x) + noise·(±1 with equal chance) [D1]."""
        key_x, key_noise = jax.random.split(key)
        X = self.inputs(key_x, n)
        y = self.target(X)
        signs = jax.random.rademacher(key_noise, y.shape, dtype=y.dtype)
        return Data(X, y + self.noise * signs)

    @property
    def subspace(self) -> Float[Array, "r d"] | None:
        """Orthonormal rows that span the relevant directions S*; None where there are none to speak of."""
        return None

    @property
    def second_moment(self) -> float | Float[Array, ""] | None:
        """E f*(x)², the risk of predicting zero."""
        return None

    @property
    def hessian(self) -> Float[Array, "d d"] | None:
        """H = E ∇²f* [D2]."""
        return None

    @property
    def best_risk(self) -> float | Float[Array, ""]:
        """Smallest possible E (f(x) - y)²: the noise's variance."""
        return self.noise**2

    def population_risk(
        self, predict: Callable[[Float[Array, "m d"]], Float[Array, "m *c"]], key: PRNGKeyArray, m: int = 4096
    ) -> Estimate:
        """E (predict(x) - f*(x))² over the inputs, by sampling unless a task knows better."""
        X = self.inputs(key, m)
        squares = jnp.square(predict(X) - self.target(X)).reshape(m, -1).sum(1)
        return Estimate(squares.mean(), squares.std(ddof=1) / jnp.sqrt(m))
