"""Functions on the unit circle [K12]."""

import math
from collections.abc import Mapping

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.tasks.lines import LineTask


class Circle(LineTask):
    """Trigonometric polynomial on the unit circle [K12].

    x = (cos θ, sin θ[, bias]) with θ uniform, f* = Σ_m a_m cos mθ + b_m sin mθ.

    Parameters
    ----------
    waves : mapping of int to (float, float), optional
        Maps a frequency m ≥ 0 to (a_m, b_m). The default is sin θ + ½ cos 3θ.
    bias : float, optional
        Value of a constant third input.
    noise : float, default 0.0
        Labels are f*(x) ± noise with equal probability.

    Raises
    ------
    ValueError
        If a frequency is negative or not an integer.

    Examples
    --------
    >>> import jax
    >>> from unlazy.tasks import Circle
    >>> task = Circle({1: (0.0, 1.0), 3: (0.5, 0.0)})
    >>> task.sample(jax.random.key(0), 5).X.shape
    (5, 2)
    >>> task.second_moment
    0.625
    """

    waves: tuple[tuple[int, float, float], ...] = eqx.field(static=True)
    bias: float | None = eqx.field(static=True)
    noise: float | Float[Array, ""]
    d: int = eqx.field(static=True)

    def __init__(
        self, waves: Mapping[int, tuple[float, float]] | None = None, bias: float | None = None,
        noise: float | Float[Array, ""] = 0.0,
    ):  # fmt: skip
        chosen = {1: (0.0, 1.0), 3: (0.5, 0.0)} if waves is None else waves
        if any(m < 0 or m != int(m) for m in chosen):
            raise ValueError(f"frequencies must be integers ≥ 0, got {sorted(chosen)}")
        self.waves = tuple((int(m), float(a), float(b)) for m, (a, b) in sorted(chosen.items()))
        self.bias, self.noise, self.d = bias, noise, 2 if bias is None else 3

    def place(self, u: Float[Array, " n"]) -> Float[Array, "n d"]:
        """Return the inputs at positions u of [0, 1)."""
        angle = 2 * math.pi * u
        rows = [jnp.cos(angle), jnp.sin(angle)]
        return jnp.stack(rows if self.bias is None else [*rows, jnp.full_like(u, self.bias)], 1)

    def target(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Evaluate f* at the inputs."""
        angle = self.angle(X)
        return sum((a * jnp.cos(m * angle) + b * jnp.sin(m * angle) for m, a, b in self.waves), jnp.zeros_like(angle))

    def angle(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Return θ in (-π, π] of every input."""
        return jnp.arctan2(X[:, 1], X[:, 0])

    @property
    def second_moment(self) -> float:
        """E f*²."""
        return sum(a * a if m == 0 else (a * a + b * b) / 2 for m, a, b in self.waves)

    @property
    def subspace(self) -> Float[Array, "2 d"] | None:
        """The plane of the circle."""
        return jnp.eye(2, self.d)
