"""Hidden patterns behind a dictionary: inputs whose structure does or does not reveal the features [P1, P2]."""

import math
from collections.abc import Iterable
from fractions import Fraction

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from unlazy.core.arrays import dot
from unlazy.core.dataset import Data
from unlazy.core.errors import check_positive_integer
from unlazy.tasks.base import Task, nested
from unlazy.tasks.gaussian import directions


class Patterns(Task):
    """Hidden pattern task: x = M(φ - E φ)/σ̃ with φ ∈ {0,1}^D and labels ±1 [P1].

    The label is +1 iff the number of active relevant patterns (the first k) is in P. Structured inputs [P2]: with
    probability `uniform_part` the k relevant patterns are independent fair bits (part 1), else all on or all off with
    equal probability (part 2); the other patterns are independent and on with probability `background`. Unstructured
    inputs (A1') have part 1 only. σ̃² = Σ_i Var φ_i.

    Parameters
    ----------
    M : array of shape (d, D)
        Dictionary with orthonormal columns.
    k : int
        Number of relevant patterns.
    positive : iterable of int
        The set P of counts with label +1.
    uniform_part : float
        Probability of part 1.
    background : float
        Probability of an irrelevant pattern.

    References
    ----------
    Shi, Wei and Liang (ICLR 2022), A theoretical analysis on feature learning in neural networks: emergence from inputs
    and advantage over fixed features.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> from unlazy.tasks import Patterns
    >>> task = Patterns(jnp.eye(8)[:, :6], k=3, positive=(1, 3), uniform_part=0.5, background=0.5)
    >>> data = task.sample(jax.random.key(0), 50)
    >>> data.X.shape, sorted(set(data.y.tolist()))
    ((50, 8), [-1.0, 1.0])
    >>> task.balance, task.gamma
    (0.0, 0.25)
    """

    M: Float[Array, "d D"]
    k: int = eqx.field(static=True)
    positive: tuple[int, ...] = eqx.field(static=True)
    uniform_part: float = eqx.field(static=True)
    background: float = eqx.field(static=True)
    noise: float = eqx.field(static=True)
    d: int = eqx.field(static=True)

    def __init__(self, M: Float[Array, "d D"], k: int, positive: Iterable[int], uniform_part: float, background: float):
        self.M, self.k, self.positive = M, k, tuple(sorted(set(positive)))
        self.uniform_part, self.background, self.noise, self.d = uniform_part, background, 0.0, M.shape[0]

    def hidden_row(self, key: PRNGKeyArray) -> tuple[Float[Array, " D"], Int[Array, ""]]:
        """Draw one pattern vector φ and the part, 1 or 2, that it comes from."""
        key_part, key_bits, key_all, key_rest = jax.random.split(key, 4)
        dtype = self.M.dtype
        first = jax.random.bernoulli(key_part, self.uniform_part)
        bits = jax.random.bernoulli(key_bits, 0.5, (self.k,)).astype(dtype)
        together = jax.random.bernoulli(key_all, 0.5).astype(dtype) * jnp.ones(self.k, dtype)
        rest = jax.random.bernoulli(key_rest, self.background, (self.M.shape[1] - self.k,)).astype(dtype)
        return jnp.concatenate([jnp.where(first, bits, together), rest]), jnp.where(first, 1, 2)

    def embed(self, phi: Float[Array, "*n D"]) -> Float[Array, "*n d"]:
        """Return x = M(φ - E φ)/σ̃."""
        return dot((phi - self.pattern_mean) / self.scale, self.M.T)

    def input_row(self, key: PRNGKeyArray) -> Float[Array, " d"]:
        """Draw one input."""
        return self.embed(self.hidden_row(key)[0])

    def target(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Return the label ±1 by counting the relevant patterns in the input."""
        coordinates = dot(X, self.M[:, : self.k].astype(X.dtype))
        count = jnp.round(jnp.sum(coordinates, 1) * self.scale + self.k / 2)
        return jnp.where(jnp.isin(count, jnp.asarray(self.positive, X.dtype)), 1.0, -1.0).astype(X.dtype)

    def sample_parts(self, key: PRNGKeyArray, n: int) -> tuple[Data, Int[Array, " n"]]:
        """Return `sample(key, n)` and the part of every row, so that accuracy on part 1 alone can be measured."""
        parts = nested(lambda k: self.hidden_row(k)[1], jax.random.split(key)[0], n)
        return self.sample(key, n), parts

    @property
    def pattern_mean(self) -> Float[Array, " D"]:
        """E φ."""
        rest = self.M.shape[1] - self.k
        return jnp.concatenate([jnp.full(self.k, 0.5, self.M.dtype), jnp.full(rest, self.background, self.M.dtype)])

    @property
    def scale(self) -> float:
        """σ̃, from σ̃² = Σ_i Var φ_i."""
        rest = self.M.shape[1] - self.k
        return math.sqrt(self.k / 4 + rest * self.background * (1 - self.background))

    @property
    def gamma(self) -> float:
        """γ = E[yφ_i] - E[y]E[φ_i] for relevant i, exact [P2]."""
        return float(_gamma(self.k, self.positive, Fraction(self.uniform_part)))

    @property
    def balance(self) -> float:
        """E y; zero for balanced classes (A0)."""
        return float(_mean_label(self.k, self.positive, Fraction(self.uniform_part)))

    @property
    def feature(self) -> Float[Array, " d"]:
        """Σ_{j∈A} M_j: the direction that neurons should learn, up to sign [P4]."""
        return jnp.sum(self.M[:, : self.k], 1)

    @property
    def majority_accuracy(self) -> tuple[float, float]:
        """Accuracy of a majority vote over the relevant patterns (a linear classifier), overall and on part 1."""
        hits = [c for c in range(self.k + 1) if (2 * c > self.k) == (c in self.positive)]
        first = sum(Fraction(math.comb(self.k, c), 2**self.k) for c in hits)
        second = Fraction((0 in hits) + (self.k in hits), 2)
        share = Fraction(self.uniform_part)
        return float(share * first + (1 - share) * second), float(first)

    @property
    def subspace(self) -> Float[Array, "k d"]:
        """The relevant columns of the dictionary."""
        return self.M[:, : self.k].T

    @property
    def second_moment(self) -> float:
        """E y² = 1."""
        return 1.0

    @property
    def information_exponent(self) -> int | None:
        """Smallest degree of a parity of relevant patterns that correlates with the label (its Fourier degree)."""
        share = Fraction(self.uniform_part)
        for m in range(1, self.k + 1):
            if _parity_correlation(self.k, self.positive, share, m) != 0:
                return m
        return None

    @property
    def leap(self) -> int | None:
        """Equal to the information exponent, since the label is symmetric in the relevant patterns."""
        return self.information_exponent


def pattern_task(
    d: int = 500, dictionary: int = 100, k: int = 5, *, positive: Iterable[int] | None = None, structured: bool = True,
    uniform_part: float = 0.5, background: float = 0.5, key: PRNGKeyArray | None = None,
) -> Patterns:  # fmt: skip
    """Create a hidden pattern task.

    Parameters
    ----------
    d : int, default 500
        Input dimension.
    dictionary : int, default 100
        Number of patterns D, at most d.
    k : int, default 5
        Number of relevant patterns, at most D.
    positive : iterable of int, optional
        Counts of relevant patterns with label +1; the odd counts (parity) by default.
    structured : bool, default True
        Whether the inputs are structured [P2].
    uniform_part : float, default 0.5
        Probability of part 1, in [0, 1].
    background : float, default 0.5
        Probability of an irrelevant pattern, in (0, 1/2].
    key : PRNG key, optional
        Draws the dictionary; coordinate axes by default.

    Returns
    -------
    Patterns
        The task.

    Raises
    ------
    ValueError
        If an argument is out of range, or structured patterns are not correlated with the label.

    Examples
    --------
    >>> from unlazy.tasks import pattern_task
    >>> pattern_task(20, 10, 5).gamma
    0.25
    """
    k = check_positive_integer("k (the relevant patterns)", k)
    if k > check_positive_integer("dictionary (its size)", dictionary):
        raise ValueError(f"k = {k} relevant patterns do not fit in a dictionary of {dictionary}")
    chosen = tuple(range(1, k + 1, 2)) if positive is None else tuple(sorted(set(positive)))
    if not chosen or not set(chosen) < set(range(k + 1)):
        raise ValueError(f"P must be some but not all of the counts 0 … {k}, got {chosen}")
    if not (0 <= uniform_part <= 1 and 0 < background <= 0.5):
        raise ValueError(
            f"need 0 ≤ uniform_part ≤ 1 and 0 < background ≤ 1/2, got {uniform_part} and {background}"
        )  # fmt: skip
    share = uniform_part if structured else 1.0
    if structured and _gamma(k, chosen, Fraction(share)) <= 0:
        raise ValueError(
            f"with P = {chosen}, k = {k} and uniform_part = {share} patterns and labels are not correlated (γ ≤ 0); "
            "structured inputs need k in P, 0 not in P (for parity: odd k) and uniform_part < 1"
        )
    return Patterns(directions(d, dictionary, key).T, k, chosen, share, background)


def _parity_correlation(k: int, positive: tuple[int, ...], share: Fraction, m: int) -> Fraction:
    """Return E[y Π_{i<m} (2φ_i - 1)], minus E y times the mean of the parity, over the mixture; exact."""
    signs = [1 if c in positive else -1 for c in range(k + 1)]
    joint = Fraction(0)
    for on in range(m + 1):  # `on` of the first m patterns are on, c - on of the others
        for c in range(on, on + k - m + 1):
            joint += Fraction(math.comb(m, on) * math.comb(k - m, c - on), 2**k) * signs[c] * (-1) ** (m - on)
    joint = share * joint + (1 - share) * Fraction(signs[k] + (-1) ** m * signs[0], 2)
    parity_mean = (1 - share) * Fraction(1 + (-1) ** m, 2)
    return joint - _mean_label(k, positive, share) * parity_mean


def _gamma(k: int, positive: tuple[int, ...], share: Fraction) -> Fraction:
    """Return γ: φ = (1 + χ)/2, so the covariance with a bit is half of that with its sign."""
    return _parity_correlation(k, positive, share, 1) / 2


def _mean_label(k: int, positive: tuple[int, ...], share: Fraction) -> Fraction:
    """Return E y, exact."""
    first = 2 * sum((Fraction(math.comb(k, c), 2**k) for c in positive), Fraction(0)) - 1
    second = Fraction((1 if k in positive else -1) + (1 if 0 in positive else -1), 2)
    return share * first + (1 - share) * second
