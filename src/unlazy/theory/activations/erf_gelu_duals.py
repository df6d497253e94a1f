"""Duals of erf and GELU, whose Gaussian integrals are normal distribution functions [K7, K8].

With s = 2 for erf and 1 for GELU, A = √(1 + s q11), B = √(1 + s q22), x = s q12/(AB), i = 1/A², j = 1/B², w = 1 - x²,

    erf:   E φφ = (2/π) arcsin x,   E φ'φ' = (4/π)/(AB √w),
    GELU:  E φφ = AB (x/4 + (x arcsin x + (1-i)(1-j)√w + ij x²/√w)/(2π)),
           E φ'φ' = 1/4 + (arcsin x + (i + j + ij/w) x/√w)/(2π),

GELU's from Stein's identity applied twice to E ab Φ(a)Φ(b). For q12 > 0 all terms are positive and at most AB, so
nothing overflows before Σ does. Williams (1997), Tsuchida et al. (2021).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from unlazy.theory.numerics.geometry import Covariance, arcsine


class NormalDualTerms(NamedTuple):
    """Per-point terms of variance q: A = √(1 + s q), 1/A and s q/A²."""

    root: Array
    inverse: Array
    part: Array


def per_point_terms(scale: float, q: Array) -> NormalDualTerms:
    """Terms of the variances q, with s = scale."""
    root = jnp.sqrt(1 + scale * q)
    inverse = 1 / root
    return NormalDualTerms(root, inverse, (scale * q * inverse) * inverse)


def erf_dual(
    pair: Covariance, left: NormalDualTerms, right: NormalDualTerms, once: Callable = lambda *v: v
) -> tuple[Array, Array]:
    """E φφ and E φ'φ' of erf; `once` may wrap shared intermediate values so that they are computed once."""
    x, gap = _sine(2.0, pair, left, right)
    angle, steep = once(arcsine(x, gap), _steepness(gap))
    return (2 / math.pi) * angle, (4 / math.pi) * (left.inverse * right.inverse) * steep


def gelu_dual(
    pair: Covariance, left: NormalDualTerms, right: NormalDualTerms, once: Callable = lambda *v: v
) -> tuple[Array, Array]:
    """E φφ and E φ'φ' of GELU; `once` may wrap shared intermediate values so that they are computed once."""
    x, gap = _sine(1.0, pair, left, right)
    angle, steep = once(arcsine(x, gap), _steepness(gap))
    i, j = left.inverse * left.inverse, right.inverse * right.inverse
    even = ((left.part * right.part) * (gap * (2 - gap)) + (i * j) * (x * x)) * steep
    value = (left.root * right.root) * (x / 4 + (x * angle + even) / (2 * math.pi))
    slope = 1 / 4 + (angle + (i + j + (i * j) * (steep * steep)) * (x * steep)) / (2 * math.pi)
    return value, slope


def _sine(scale: float, pair: Covariance, left: NormalDualTerms, right: NormalDualTerms) -> tuple[Array, Array]:
    """x, and 1 - |x| = w/(1 + |x|) with w = 1 - x² = i + j - ij + (1-i)(1-j) u(2 - u), u = 1 - cos of a and b.

    A sum of positive terms, as accurate as u; differences of A and B, or of variances, are not.
    """
    x = scale * pair.q12 * (left.inverse * right.inverse)
    i, j, u = left.inverse * left.inverse, right.inverse * right.inverse, pair.gap
    rest = i + j * left.part + (left.part * right.part) * (u * (2 - u))
    return x, rest / (1 + jnp.abs(x))


def _steepness(gap: Array) -> Array:
    """1/√(1 - x²), finite even where 1/(AB) underflows."""
    return jax.lax.rsqrt(jnp.maximum(gap, float(jnp.finfo(gap.dtype).tiny)) * (2 - gap))


FORMS: dict[str, tuple[float, Any]] = {"erf": (2.0, erf_dual), "gelu": (1.0, gelu_dual)}
"""Scale s and formula by name."""
