"""Functions on a low-dimensional curved manifold in R^d [A1]."""

import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.arrays import dot
from unlazy.core.errors import check_positive_integer
from unlazy.tasks.base import Task
from unlazy.tasks.gaussian import directions


class Manifold(Task):
    """Function on a curved manifold: x = Q (s, ε ψ(s)) with s uniform on the unit sphere of dimension k, f*(x) = g(s).

    ψ(s)_i = √(2/(d-k-1)) cos(2 ω_i·s + b_i) fills the other d - k - 1 dimensions, so that the support is curved in all
    of R^d and yet k-dimensional; ε is `bend`, and ε = 0 gives a flat sphere. Q is orthogonal.

    Parameters
    ----------
    Q : array of shape (d, d)
        Orthogonal matrix.
    frequencies : array of shape (d - k - 1, k + 1)
        Frequencies ω_i.
    phases : array of shape (d - k - 1,)
        Phases b_i.
    bend : float
        Curvature parameter ε.
    function : callable
        g of rows s, an array of shape (n, k + 1).
    square : float or None
        E f*², if known.
    noise : float, default 0.0
        Labels are f*(x) ± noise with equal probability.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> from unlazy.tasks import Manifold
    >>> task = Manifold(jnp.eye(4), jnp.ones((2, 2)), jnp.zeros(2), 0.5, lambda s: s[:, 0], 0.5)
    >>> task.intrinsic_dimension
    1
    >>> data = task.sample(jax.random.key(0), 5)
    >>> data.X.shape, bool(jnp.allclose(data.y, data.X[:, 0]))
    ((5, 4), True)
    """

    Q: Float[Array, "d d"]
    frequencies: Float[Array, "e s"]
    phases: Float[Array, " e"]
    bend: float = eqx.field(static=True)
    function: Callable = eqx.field(static=True)
    square: float | None = eqx.field(static=True)
    noise: float | Float[Array, ""]
    d: int = eqx.field(static=True)

    def __init__(
        self, Q: Float[Array, "d d"], frequencies: Float[Array, "e s"], phases: Float[Array, " e"], bend: float,
        function: Callable, square: float | None, noise: float | Float[Array, ""] = 0.0,
    ):  # fmt: skip
        self.Q, self.frequencies, self.phases, self.bend = Q, frequencies, phases, bend
        self.function, self.square, self.noise, self.d = function, square, noise, Q.shape[0]

    @property
    def intrinsic_dimension(self) -> int:
        """Dimension k of the manifold."""
        return self.frequencies.shape[1] - 1

    def input_row(self, key: PRNGKeyArray) -> Float[Array, " d"]:
        """Draw one point of the manifold."""
        s = jax.random.normal(key, (self.intrinsic_dimension + 1,))
        s = s / jnp.linalg.norm(s)
        extra = jnp.cos(dot(2 * self.frequencies, s) + self.phases) * math.sqrt(2 / max(1, len(self.phases)))
        return dot(jnp.concatenate([s, self.bend * extra]), self.Q)

    def target(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Evaluate f* at the inputs."""
        return self.function(dot(X, self.subspace.T.astype(X.dtype)))

    @property
    def subspace(self) -> Float[Array, "r d"]:
        """The k + 1 directions that contain the sphere."""
        return self.Q[: self.intrinsic_dimension + 1]

    @property
    def second_moment(self) -> float | None:
        """E f*², if known."""
        return self.square


def manifold(
    d: int, k: int, function: Callable | None = None, *, bend: float = 0.5, key: PRNGKeyArray,
    second_moment: float | None = None, noise: float = 0.0,
) -> Manifold:  # fmt: skip
    """Create a k-dimensional manifold in R^d and a function on it.

    Parameters
    ----------
    d : int
        Ambient dimension.
    k : int
        Dimension of the manifold, at most d - 1.
    function : callable, optional
        Function of s ∈ S^k, rows of an (n, k+1) array. The default is the distance of s to a pole over √2, which is not
        smooth at the pole, depends on every direction and has E f*² = 1.
    bend : float, default 0.5
        Curvature parameter ε; 0 gives a flat sphere.
    key : PRNG key
        Draws the embedding.
    second_moment : float, optional
        E f*² of `function`, if known.
    noise : float, default 0.0
        Labels are f*(x) ± noise with equal probability.

    Returns
    -------
    Manifold
        The task.

    Raises
    ------
    ValueError
        If k + 1 > d.

    Examples
    --------
    >>> import jax
    >>> from unlazy.tasks import manifold
    >>> task = manifold(10, 2, key=jax.random.key(0))
    >>> task.intrinsic_dimension, task.second_moment
    (2, 1.0)
    >>> task.sample(jax.random.key(1), 5).X.shape
    (5, 10)
    """
    d, k = check_positive_integer("d (the ambient dimension)", d), check_positive_integer("k (the dimension)", k)
    if k + 1 > d:
        raise ValueError(f"a sphere of dimension k = {k} needs k + 1 ambient dimensions, got d = {d}")
    key_frame, key_waves, key_phases = jax.random.split(key, 3)
    waves = jax.random.normal(key_waves, (d - k - 1, k + 1))
    phases = 2 * math.pi * jax.random.uniform(key_phases, (d - k - 1,))
    known = 1.0 if function is None else second_moment
    return Manifold(directions(d, d, key_frame), waves, phases, bend, function or _pole_distance, known, noise)


def _pole_distance(s: Float[Array, "n e"]) -> Float[Array, " n"]:
    """‖s - e‖/√2 with e = (1, …, 1)/√(k+1); its mean square is 1 since E s = 0."""
    pole = 1 / math.sqrt(s.shape[1])
    return jnp.sqrt(jnp.sum((s - pole) ** 2, 1) / 2)
