"""Scaling laws of risk in time and width: two linear layers on power-law features, lazy and rich [E6].

Features ψ_k of variance λ_k = k^{-α}, target Σ w*_k ψ_k with λ_k w*_k² ∝ k^{-αβ-1}, β the source exponent. A network
f = (1/γN) w·Aψ of N neurons has A(0) = A₀ Gaussian, w(0) = 0, and A moves inside the span of A₀'s rows:

    w' = γ A g,    A' = γ w gᵀ A₀ᵀA₀/N,    g = Λ (w* - Aᵀw/(γN))

With A = G A₀ and w the flow conserves GGᵀ - wwᵀ/N = I. So b = Gᵀw/γ, in the eigenbasis of H = A₀ΛA₀ᵀ/N, is the full
state: c = Uᵀb/√N, h = UᵀA₀Λw*/√N, and with s(1 + s) = γ²‖c‖², τ' = 1 + s

    dc/dτ = h - Hc + r c,    r = γ²/(1 + s)² c·(h - Hc),    risk = floor + Σ (h - Hc)²/H

N = ∞ is H = Λ, h = Λw*, floor 0. Lazy (γ = 0): s = 0, τ = t and h - Hc = e^{-Ht} h. On a hard target ‖c‖² grows like
τ^{1-β}, hence s like its root, hence τ like t^{2/(1+β)}. Bordelon, Atanasov and Pehlevan (ICLR 2025).
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Real
from scipy.optimize import brentq

from unlazy.core.arrays import dot


class PowerLawModes(NamedTuple):
    """Rates H, forces h and risk floor of the flow, from features, target and A₀."""

    rates: Float[Array, " m"]
    """Eigenvalues of H."""
    pulls: Float[Array, " m"]
    """h."""
    floor: Float[Array, ""]
    """Risk of the best function of the network's features."""

    def risk(self, c: Float[Array, " m"]) -> Float[Array, ""]:
        """E (f - f*)²; a mode of rate zero has no force and adds nothing."""
        off, alive = self.pulls - self.rates * c, self.rates > 0
        return self.floor + jnp.sum(jnp.where(alive, off**2 / jnp.where(alive, self.rates, 1), 0))


def power_law(alpha: Real[ArrayLike, ""], beta: Real[ArrayLike, ""], modes: int) -> tuple[Array, Array]:
    """λ_k = k^{-α} and w*_k with λ_k w*_k² ∝ k^{-αβ-1}, Σ λ_k w*_k² = 1 [E6]."""
    k = jnp.arange(1, modes + 1, dtype=jnp.zeros(()).dtype)
    power = k ** (-jnp.asarray(alpha) * beta - 1)
    rates = k ** -jnp.asarray(alpha)
    return rates, jnp.sqrt(power / power.sum() / rates)


def infinite_width_modes(rates: Float[Array, " m"], target: Float[Array, " m"]) -> PowerLawModes:
    """Modes at infinite width: H = Λ, h = Λw*."""
    return PowerLawModes(rates, rates * target, jnp.zeros((), rates.dtype))


def finite_width_modes(A: Float[Array, "N m"], rates: Float[Array, " m"], target: Float[Array, " m"]) -> PowerLawModes:
    """Modes of N neurons with initial weights A₀."""
    N = A.shape[0]
    seen = A * jnp.sqrt(rates)
    found, U = jnp.linalg.eigh(dot(seen, seen.T) / N)
    pulls = dot(U.T, dot(seen, jnp.sqrt(rates) * target)) / N**0.5
    reached = jnp.sum(jnp.where(found > 0, pulls**2 / jnp.where(found > 0, found, 1), 0))
    return PowerLawModes(found, pulls, jnp.maximum(jnp.sum(rates * target**2) - reached, 0))


def kernel_gain(c: Float[Array, " m"], richness: Real[ArrayLike, ""]) -> Float[Array, ""]:
    """s with s(1 + s) = γ²‖c‖²: the kernel has grown by a factor 1 + s in every direction."""
    x = 4 * richness**2 * dot(c, c)
    return x / (2 * (1 + jnp.sqrt(1 + x)))


def lazy_risk(modes: PowerLawModes, times: Real[ArrayLike, " t"]) -> Float[Array, " t"]:
    """floor + Σ h² e^{-2Ht}/H: the risk for γ = 0 [E6, K3]."""
    left = modes.pulls * jnp.exp(-jnp.asarray(times)[:, None] * modes.rates)
    return modes.floor + jnp.sum(jnp.where(modes.rates > 0, left**2 / jnp.where(modes.rates > 0, modes.rates, 1), 0), 1)


def risk_floor(rates: Float[ArrayLike, " m"], target: Float[ArrayLike, " m"], width: int) -> float:
    """κ Σ λ w*²/(λ + κ) with Σ λ/(λ + κ) = N: risk floor of a wide network [E6]; κ as in [G1].

    Raises
    ------
    ValueError
        If the width is not below the number of features.
    """
    lam, w = np.asarray(rates, float), np.asarray(target, float)
    if not 0 < width < np.count_nonzero(lam):
        raise ValueError(f"{width} neurons span the {np.count_nonzero(lam)} features: use fewer neurons")
    log_kappa = brentq(lambda u: np.sum(lam / (lam + np.exp(u))) - width, np.log(lam[lam > 0].min()) - 60, 60.0)
    kappa = np.exp(log_kappa)
    return float(kappa * np.sum(lam * w**2 / (lam + kappa)))


def time_exponent(beta: float, rich: bool) -> float:
    """χ in risk ∝ t^{-χ}: β if lazy, 2β/(1 + β) if rich and β < 1 [E6]."""
    return 2 * beta / (1 + beta) if rich and beta < 1 else beta


def width_exponent(alpha: float, beta: float) -> float:
    """Exponent of floor ∝ N^{-α min(1, β)} [E6]."""
    return alpha * min(1.0, beta)
