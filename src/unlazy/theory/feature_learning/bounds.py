"""What the theorems promise, as numbers: Algorithm 1, transfer, the query lower bound, the kernel staircase [D6-D8].

All are rates up to constants and logarithms (the source writes Õ): compare their slopes with a measurement, not their
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
    """The parts of a bound on the excess L1 risk; their sum is the bound."""

    samples: float
    width: float
    loss: float

    @property
    def total(self) -> float:
        return self.samples + self.width + self.loss


def condition_number(H: Float[np.ndarray | Array, "d d"], r: int, tolerance: float = 1e-9) -> float:
    """κ = ‖H^†‖/√r [D2]: one over √r times the r-th largest |eigenvalue| of H; infinite when H is degenerate."""
    sizes = np.sort(np.abs(np.linalg.eigvalsh(np.asarray(H))))[::-1]
    if not 1 <= r <= len(sizes):
        raise ValueError(f"r must lie between 1 and d = {len(sizes)}, got {r}")
    return math.inf if sizes[r - 1] <= tolerance * max(sizes[0], 1.0) else float(1 / (math.sqrt(r) * sizes[r - 1]))


def one_step_risk(n: float, d: int, width: int, *, r: int, degree: int, kappa: float = 1.0) -> RiskTerms:
    """Theorem 1 [D6]: √(d r^p κ^{2p}/n) + √(r^p κ^{2p}/w) + n^{-1/4}, once n ≳ `one_step_samples`."""
    size = float(r) ** degree * kappa ** (2 * degree)
    return RiskTerms(math.sqrt(d * size / n), math.sqrt(size / width), n**-0.25)


def one_step_samples(d: int, *, r: int, kappa: float = 1.0) -> float:
    """Samples after which Theorem 1 speaks [D6]: d² r κ². Sufficient, not necessary."""
    return d**2 * r * kappa**2


def transfer_risk(n: float, N: float, width: int, *, r: int, degree: int, kappa: float = 1.0) -> RiskTerms:
    """Theorem 3 [D8]: √(r^p κ^{2p}/min(n, N)) + √(r^p κ^{2p}/w) + N^{-1/4}: free of d once n ≳ `one_step_samples`."""
    size = float(r) ** degree * kappa ** (2 * degree)
    return RiskTerms(math.sqrt(size / min(n, N)), math.sqrt(size / width), N**-0.25)


def query_tolerance(d: int, *, degree: int, queries: float) -> float:
    """Theorem 2 [D7]: log^{p/4}(q d)/d^{p/4}, the coarsest tolerance with which q correlational queries can suffice."""
    return (math.log(queries * d) / d) ** (degree / 4)


def query_samples(d: int, *, degree: int) -> float:
    """n ≈ d^{p/2} [D7]: Theorem 2 read with tolerance 1/√n, without logarithms. The source calls it a heuristic."""
    return float(d) ** (degree / 2)


def polynomials(d: int, degree: int) -> int:
    """Number of Hermite polynomials of exactly this degree in d variables: C(d + k - 1, k)."""
    return math.comb(check_positive_integer("d", d) + degree - 1, degree)


def kernel_degree(n: float, d: int, *, count: str = "dimension") -> int:
    """The largest degree a dot-product kernel can fit with n samples: the step of the staircase; -1 for none.

    'dimension' asks n ≥ C(d + k, k), the number of polynomials up to degree k; 'power' asks n ≥ d^k, the asymptotic
    form of the theorem. At small d the first is reached much earlier (d = 10, k = 4: 1,001 against 10,000).
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
    """Risk left to a dot-product kernel: the energy of f* above `kernel_degree` [D6, D9].

    `coefficients` are normalized Hermite coefficients, so that Σ c_k² = E f*². Between d² and d^p the target
    He_2/2 + He_p/√(2 p!) leaves 1/2. Asymptotic in d at fixed log n/log d; at finite d the steps are washed out.
    """
    c = np.asarray(coefficients, float)
    return float(np.sum(c[kernel_degree(n, d, count=count) + 1 :] ** 2))
