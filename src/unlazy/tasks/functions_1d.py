"""Functions of one variable on an interval: steps, smooth curves, piecewise constants [A1]."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.tasks.lines import LineTask
from unlazy.theory.activations.hermite import evaluate


class Function1D(LineTask):
    """Function of one variable, y = f(x) with x uniform on [low, high].

    Parameters
    ----------
    function : callable
        Elementwise function f.
    low, high : float, default -1.0 and 1.0
        Ends of the interval.
    kinks : sequence of float, default ()
        Points at which f or a derivative jumps.
    noise : float, default 0.0
        Labels are f*(x) ± noise with equal probability.

    Raises
    ------
    ValueError
        If low ≥ high.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> from unlazy.tasks import Function1D
    >>> task = Function1D(jnp.abs, low=-1.0, high=1.0, kinks=(0.0,))
    >>> task.sample(jax.random.key(0), 5).X.shape
    (5, 1)
    >>> round(task.second_moment, 6)
    0.333333
    """

    function: Callable = eqx.field(static=True)
    low: float = eqx.field(static=True)
    high: float = eqx.field(static=True)
    kinks: tuple[float, ...] = eqx.field(static=True)
    noise: float | Float[Array, ""]
    d: int = eqx.field(static=True)

    def __init__(
        self, function: Callable, low: float = -1.0, high: float = 1.0, kinks: Sequence[float] = (),
        noise: float | Float[Array, ""] = 0.0,
    ):  # fmt: skip
        if not low < high:
            raise ValueError(f"an interval needs low < high, got {low} and {high}")
        self.function, self.low, self.high, self.noise, self.d = function, float(low), float(high), noise, 1
        self.kinks = tuple(sorted(float(k) for k in kinks if low < k < high))

    def place(self, u: Float[Array, " n"]) -> Float[Array, "n 1"]:
        """Return the inputs at positions u of [0, 1)."""
        return (self.low + (self.high - self.low) * u)[:, None]

    def target(self, X: Float[Array, "n 1"]) -> Float[Array, " n"]:
        """Evaluate f at the inputs."""
        return self.function(X[:, 0])

    @property
    def second_moment(self) -> float:
        """E f², by 40 Gauss–Legendre nodes on 16 parts of every piece, in float64."""
        ends = [self.low, *self.kinks, self.high]
        edges = np.unique(np.concatenate([np.linspace(a, b, 17) for a, b in pairwise(ends)]))
        t, w = np.polynomial.legendre.leggauss(40)
        half = np.diff(edges)[:, None] / 2
        x = (edges[:-1, None] + half) + half * t
        squares = evaluate(self.function, x.ravel()).reshape(x.shape) ** 2
        return float(np.sum(half * w * squares) / (self.high - self.low))


def heaviside(noise: float = 0.0) -> Function1D:
    """Step function on [-1, 1]: 1 for x > 0, else 0 [A1].

    Parameters
    ----------
    noise : float, default 0.0
        Labels are f*(x) ± noise with equal probability.

    Returns
    -------
    Function1D
        The task.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy.tasks import heaviside
    >>> heaviside().target(jnp.array([[-0.5], [0.5]])).tolist()
    [0.0, 1.0]
    """
    return Function1D(_step, kinks=(0.0,), noise=noise)


def smooth(frequency: float = 1.0, noise: float = 0.0) -> Function1D:
    """Sine wave sin(π·frequency·x) on [-1, 1].

    Parameters
    ----------
    frequency : float, default 1.0
        Number of half periods per unit length.
    noise : float, default 0.0
        Labels are f*(x) ± noise with equal probability.

    Returns
    -------
    Function1D
        The task.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy.tasks import smooth
    >>> smooth(frequency=1.0).target(jnp.array([[0.0], [0.5]])).round(4).tolist()
    [0.0, 1.0]
    """
    return Function1D(_Wave(frequency), noise=noise)


def piecewise(cuts: Sequence[float], heights: Sequence[float], noise: float = 0.0) -> Function1D:
    """Piecewise constant function on [-1, 1], equal to heights[i] between cuts[i-1] and cuts[i].

    Parameters
    ----------
    cuts : sequence of float
        Increasing points inside (-1, 1).
    heights : sequence of float
        Values, one more than cuts.
    noise : float, default 0.0
        Labels are f*(x) ± noise with equal probability.

    Returns
    -------
    Function1D
        The task.

    Raises
    ------
    ValueError
        If the cuts are not increasing inside (-1, 1) or the number of heights does not match.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy.tasks import piecewise
    >>> task = piecewise([-0.5, 0.5], [1.0, 3.0, 2.0])
    >>> task.target(jnp.array([[-0.9], [0.0], [0.9]])).tolist()
    [1.0, 3.0, 2.0]
    """
    cuts, heights = tuple(float(c) for c in cuts), tuple(float(h) for h in heights)
    if len(heights) != len(cuts) + 1 or list(cuts) != sorted(set(cuts)) or any(abs(c) >= 1 for c in cuts):
        raise ValueError(f"need increasing cuts inside (-1, 1) and one more height, got {cuts} and {heights}")
    return Function1D(_StepFunction(cuts, heights), kinks=cuts, noise=noise)


def _step(x: Float[Array, " n"]) -> Float[Array, " n"]:
    """Heaviside function."""
    return (x > 0).astype(x.dtype)


@dataclass(frozen=True)
class _Wave:
    """Sine wave that compares by value, so that two tasks of one frequency share a compilation."""

    frequency: float

    def __call__(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.sin(math.pi * self.frequency * x)


@dataclass(frozen=True)
class _StepFunction:
    """Piecewise constant function that compares by value."""

    cuts: tuple[float, ...]
    heights: tuple[float, ...]

    def __call__(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        levels = jnp.asarray(self.heights, x.dtype)
        return levels[jnp.searchsorted(jnp.asarray(self.cuts, x.dtype), x)]
