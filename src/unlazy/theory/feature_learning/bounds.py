"""Rates of the theorems as numbers: Algorithm 1, transfer, the query lower bound, the kernel staircase [D6-D8].

All are rates up to constants and logarithms (the source writes Õ): compare their slopes with measurements, not their
values. Damian, Lee and Soltanolkotabi (COLT 2022); Ghorbani, Mei, Misiakiewicz and Montanari, Linearized two-layers
neural networks in high dimension (Annals of Statistics 2021).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float

from unlazy.core.errors import check_positive_integer


class RiskTerms(NamedTuple):
    """Terms of a bound on the excess L1 risk.

    Attributes
    ----------
    samples, width, loss : float
        The terms; `total` is their sum.
    """

    samples: float
    width: float
    loss: float

    @property
    def total(self) -> float:
        """Sum of the terms, the bound."""
        return self.samples + self.width + self.loss


def condition_number(H: Float[np.ndarray | Array, "d d"], r: int, tolerance: float = 1e-9) -> float:
    """κ = ‖H^†‖/√r [D2]: 1/(√r times the r-th largest |eigenvalue| of H).

    Parameters
    ----------
    H : array of shape (d, d)
        Expected Hessian of the target.
    r : int
        Dimension of the relevant subspace.
    tolerance : float, default 1e-9
        Relative size below which an eigenvalue counts as zero.

    Returns
    -------
    float
        Infinite if H is degenerate.

    Raises
    ------
    ValueError
        If r is not between 1 and d.
    """
    sizes = np.sort(np.abs(np.linalg.eigvalsh(np.asarray(H))))[::-1]
    if not 1 <= r <= len(sizes):
        raise ValueError(f"r must be between 1 and d = {len(sizes)}, got {r}")
    return math.inf if sizes[r - 1] <= tolerance * max(sizes[0], 1.0) else float(1 / (math.sqrt(r) * sizes[r - 1]))


def one_step_risk(n: float, d: int, width: int, *, r: int, degree: int, kappa: float = 1.0) -> RiskTerms:
    """Theorem 1 [D6]: √(d r^p κ^{2p}/n) + √(r^p κ^{2p}/w) + n^{-1/4}, once n ≳ `one_step_samples`.

    Parameters
    ----------
    n : float
        Samples.
    d : int
        Inputs.
    width : int
        Neurons w.
    r : int
        Dimension of the relevant subspace.
    degree : int
        Degree p of the target.
    kappa : float, default 1.0
        See `condition_number`.

    Returns
    -------
    RiskTerms
    """
    size = float(r) ** degree * kappa ** (2 * degree)
    return RiskTerms(math.sqrt(d * size / n), math.sqrt(size / width), n**-0.25)


def one_step_samples(d: int, *, r: int, kappa: float = 1.0) -> float:
    """Number of samples from which Theorem 1 applies [D6]: d² r κ². Sufficient, not necessary.

    Parameters
    ----------
    d : int
        Inputs.
    r : int
        Dimension of the relevant subspace.
    kappa : float, default 1.0
        See `condition_number`.

    Returns
    -------
    float
    """
    return d**2 * r * kappa**2


def transfer_risk(n: float, N: float, width: int, *, r: int, degree: int, kappa: float = 1.0) -> RiskTerms:
    """Theorem 3 [D8]: √(r^p κ^{2p}/min(n, N)) + √(r^p κ^{2p}/w) + N^{-1/4}: free of d once n ≳ `one_step_samples`.

    Parameters
    ----------
    n, N : float
        Samples of the source and of the target task.
    width, r, degree, kappa
        As in `one_step_risk`.

    Returns
    -------
    RiskTerms
    """
    size = float(r) ** degree * kappa ** (2 * degree)
    return RiskTerms(math.sqrt(size / min(n, N)), math.sqrt(size / width), N**-0.25)


def query_tolerance(d: int, *, degree: int, queries: float) -> float:
    """Theorem 2 [D7]: log^{p/4}(q d)/d^{p/4}, the coarsest tolerance with which q correlational queries can suffice.

    Parameters
    ----------
    d : int
        Inputs.
    degree : int
        Degree p of the target.
    queries : float
        q.

    Returns
    -------
    float
    """
    return (math.log(queries * d) / d) ** (degree / 4)


def query_samples(d: int, *, degree: int) -> float:
    """n ≈ d^{p/2} [D7]: Theorem 2 with tolerance 1/√n, without logarithms. The source calls it a heuristic.

    Parameters
    ----------
    d : int
        Inputs.
    degree : int
        Degree p of the target.

    Returns
    -------
    float
    """
    return float(d) ** (degree / 2)


def polynomials(d: int, degree: int) -> int:
    """Number of Hermite polynomials of exactly this degree in d variables: C(d + k - 1, k)."""
    return math.comb(check_positive_integer("d", d) + degree - 1, degree)


def kernel_degree(n: float, d: int, *, count: str = "dimension") -> int:
    """Largest degree that a dot-product kernel can fit with n samples: the step of the staircase.

    Parameters
    ----------
    n : float
        Samples.
    d : int
        Inputs, at least 2.
    count : {"dimension", "power"}, default "dimension"
        "dimension" requires n ≥ C(d + k, k), the number of polynomials up to degree k; "power" requires n ≥ d^k, the
        asymptotic form of the theorem. At small d the first is reached much earlier (d = 10, k = 4: 1,001 against
        10,000).

    Returns
    -------
    int
        -1 for none.

    Raises
    ------
    ValueError
        If d < 2 or `count` is unknown.
    """
    needed = {"dimension": lambda k: math.comb(d + k, k), "power": lambda k: float(d) ** k}
    if count not in needed:
        raise ValueError(f"count must be 'dimension' or 'power', got {count!r}")
    if d < 2:
        raise ValueError(f"the staircase needs d ≥ 2, got {d}")
    k = -1
    while n >= needed[count](k + 1):
        k += 1
    return k


def kernel_staircase(n: float, d: int, coefficients: Sequence[float] | np.ndarray, *, count: str = "power") -> float:
    """Remaining risk of a dot-product kernel: the energy of f* above `kernel_degree` [D6, D9].

    Between d² and d^p samples the target He_2/2 + He_p/√(2 p!) leaves 1/2. Asymptotic in d at fixed log n/log d; at
    finite d the steps are smoothed.

    Parameters
    ----------
    n : float
        Samples.
    d : int
        Inputs.
    coefficients : sequence of float
        Normalized Hermite coefficients of f*, Σ c_k² = E f*².
    count : {"dimension", "power"}, default "power"
        See `kernel_degree`.

    Returns
    -------
    float
    """
    c = np.asarray(coefficients, float)
    return float(np.sum(c[kernel_degree(n, d, count=count) + 1 :] ** 2))
