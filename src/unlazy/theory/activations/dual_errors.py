"""Error estimates of numerical duals, computed independently in NumPy float64.

Relative to E φ², and so to k(x, x): Σ_{k≥K} (a_k² + 2|a_k p_k|), the coefficients of the smooth part and of the kinks
that an expansion of K terms omits; the change under a second quadrature with twice the panels (undeclared kinks); and
for φ' the distance of its coefficients from those implied by φ, √(k+1) c_{k+1}/s, which differ if φ jumps.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from unlazy.theory.activations import duals, kink_splitting
from unlazy.theory.activations.duals import slope_below_zero
from unlazy.theory.activations.functions import ActivationFunction
from unlazy.theory.activations.kink_splitting import KinkSplit
from unlazy.theory.activations.numeric_duals import NODES_PER_PANEL, TERMS, panel_edges
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.theory.numerics.geometry import covariance

MAX_TERMS = 2 * TERMS
"""Number of coefficients that are examined."""
JUMP_TAIL_FACTOR, MIXED_TAIL_FACTOR = 3.5, 1.6
"""Ratio of all omitted terms to those between TERMS and MAX_TERMS: squares decay as k^{-3/2} (those of a jump) or
faster, products of the coefficients of a step and of the smooth part as k^{-5/2}.
"""
INNER_PRODUCT_UNITS = 8.0
"""Units of rounding of ⟨x,z⟩ relative to |x||z|: a sum of some tens of terms and three roots."""
COMPARED_TERMS = 32
"""Number of coefficients of φ' that are compared with those of φ."""


def network_error(network: MLP, squares: np.ndarray, tangent: bool = True) -> float:
    """Largest relative error of the duals of the network's activation at any layer.

    Parameters
    ----------
    network : MLP
    squares : array
        Squared norms of the inputs (their extremes).
    tangent : bool, default True
        Whether E φ'φ' is used too.

    Returns
    -------
    float
        0 if the duals have closed forms.
    """
    asked = (False, True) if tangent else (False,)
    wanted = tuple(d for d in asked if not duals.has_closed_form(network.activation, d))
    if not wanted:
        return 0.0
    sigma_w, sigma_b = (tuple(float(v) for v in s) for s in (network.sigma_w, network.sigma_b))
    # rounded to a factor 2^{1/8}, so that data of similar size share a cached estimate
    ends = tuple(float(2.0 ** (np.round(4 * np.log2(max(float(q), 1e-30))) / 4)) for q in squares)
    return _at_layers(network.activation, sigma_w, sigma_b, float(network.residual) ** 2, wanted, ends)


@functools.lru_cache(maxsize=256)
def _at_layers(
    phi: ActivationFunction, sigma_w: tuple, sigma_b: tuple, skip2: float, wanted: tuple[bool, ...], squares: tuple
) -> float:
    """`network_error` of hashable arguments."""
    worst, q = 0.0, sigma_w[0] ** 2 * np.asarray(squares) + sigma_b[0] ** 2
    for sw, sb in zip(sigma_w[1:], sigma_b[1:]):
        root = np.sqrt(q)
        worst = max([worst, *(float(np.max(dual_error(phi, root, derivative))) for derivative in wanted)])
        if not np.isfinite(worst):
            break
        q = skip2 * q + sw**2 * _values(phi, False, root)[1] + sb**2
    return worst


def rounding_error(network: MLP, square: float, unit: float, tangent: bool = True) -> float:
    """Relative change of a first-layer dual caused by the rounding of an inner product of close points.

    u = 1 - cos θ is known to INNER_PRODUCT_UNITS units; the dual is evaluated in float64 at u = 0 and at that error.
    Piecewise linear networks propagate u itself and are accurate at any norm: zero.
    """
    phi = network.activation
    q = float(network.sigma_w[0]) ** 2 * float(square) + float(network.sigma_b[0]) ** 2
    rough = q * max(1.0, float(phi.parameter or 1.0) ** 2)
    if slope_below_zero(phi) is not None or 4 * rough * INNER_PRODUCT_UNITS * unit < 1e3 * unit:
        return 0.0
    with jax.ensure_compile_time_eval(), jax.enable_x64(True):
        pairs = [
            covariance(*(jnp.asarray([v]) for v in (q * (1 - u), q, q, u))) for u in (0.0, INNER_PRODUCT_UNITS * unit)
        ]
        formulas = duals.dual_functions(phi)[: 2 if tangent else 1]
        ends = [[float(f(pair)[0]) for pair in pairs] for f in formulas]
    return max(abs(a - b) / max(a, 1e-300) for a, b in ends)  # a = E φ² or E φ'²


def dual_error(activation: ActivationFunction, root: np.ndarray, derivative: bool = False) -> np.ndarray:
    """Error estimate at every standard deviation √q = root; zero if φ is steps, ramps and a polynomial."""
    whole = _split(activation, derivative)
    c, square, moved = _values(activation, derivative, root)
    if whole.rest is not None:
        return np.zeros_like(square)
    p = _parts(whole, root)
    a = c - p
    own, mixed = np.sum(a[:, TERMS:] ** 2, 1), np.sum(np.abs(a * p)[:, TERMS:], 1)
    # mass beyond these coefficients; below the threshold it is rounding of the two sums
    unseen = np.where(square - np.sum(c * c, 1) > 1e-13 * square, square - np.sum(c * c, 1), 0)
    own = JUMP_TAIL_FACTOR * own if whole.kinks else np.maximum(JUMP_TAIL_FACTOR * own, unseen)
    found = (own + 2 * MIXED_TAIL_FACTOR * mixed) / np.maximum(square, 1e-300) + moved
    return found + _mismatch(activation, root, c) if derivative else found


def _mismatch(activation: ActivationFunction, root: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """Relative distance of the first coefficients of φ' from those that φ implies, ignoring rounding."""
    c, square, _ = _values(activation, False, root)
    k = np.arange(COMPARED_TERMS)
    # a root of 0 does not matter: points at 0 depend on φ(0) and φ'(0) only
    s = np.maximum(root, 1e-3)[:, None]
    off = np.linalg.norm(np.sqrt(k + 1) * c[:, 1 : COMPARED_TERMS + 1] / s - slopes[:, :COMPARED_TERMS], axis=1)
    size = np.linalg.norm(slopes, axis=1) + np.sqrt(square)
    return np.where((root > 1e-3) & (off > 1e-6 * size), 2 * off / np.maximum(size, 1e-300), 0)


def _values(
    activation: ActivationFunction, derivative: bool, root: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """c_0 … c_{MAX_TERMS-1}, E φ², and the relative change of both when all panels are halved."""
    with np.errstate(all="ignore"):
        coarse, fine = _quadrature(activation, derivative, root)
    square = fine[1]
    size = np.sqrt(np.maximum(square, 1e-300))
    moved = 2 * np.linalg.norm((fine[0] - coarse[0])[:, :TERMS], axis=1) / size + np.abs(1 - coarse[1] / size**2)
    return fine[0], square, np.where(square > 0, np.where(moved > 1e-12, 2 * moved, 0), 0)


def _quadrature(
    activation: ActivationFunction, derivative: bool, root: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Coefficients and E φ² by the panels of numeric_duals and by split panels; φ is called once."""
    rules = [_rule(activation.kinks, root, halved) for halved in (False, True)]
    x = np.concatenate([x for x, _ in rules], 1)
    values = kink_splitting.evaluate(activation, root[:, None] * x, derivative)
    parts = np.split(values, [rules[0][0].shape[1]], 1)
    return [(_project(v, x, w), np.sum(v * v * w, 1)) for v, (x, w) in zip(parts, rules)]


def _rule(kinks: tuple[float, ...], root: np.ndarray, halved: bool) -> tuple[np.ndarray, np.ndarray]:
    """Quadrature nodes and weights on panels that end at the kinks."""
    t, weight = np.polynomial.legendre.leggauss(NODES_PER_PANEL)
    fixed = panel_edges(2 * math.sqrt(MAX_TERMS) + 6)
    if halved:
        # not at the midpoint, where a kink may be, as at any round number
        fixed = np.sort(np.concatenate([fixed, fixed[:-1] + 0.381966 * np.diff(fixed)]))
    at = np.clip(np.asarray(kinks, float)[None, :] / np.maximum(root, 1e-4)[:, None], fixed[0], fixed[-1])
    edges = np.sort(np.concatenate([np.broadcast_to(fixed, (root.size, fixed.size)), at], 1), 1)
    middle, half = (edges[:, 1:] + edges[:, :-1]) / 2, np.diff(edges, axis=1) / 2
    x = (middle[..., None] + half[..., None] * t).reshape(root.size, -1)
    return x, (half[..., None] * weight).reshape(root.size, -1) * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _project(values: np.ndarray, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Σ_j w_j values_j h_k(x_j), by the recurrence of √w h."""
    half = np.sqrt(w)
    weighted, previous, current, found = values * half, np.zeros_like(x), half, []
    for k in range(MAX_TERMS):
        found.append(np.einsum("ij,ij->i", weighted, current))
        previous, current = current, (x * current - math.sqrt(k) * previous) / math.sqrt(k + 1)
    return np.stack(found, 1)


def _split(activation: ActivationFunction, derivative: bool) -> KinkSplit:
    """Kinks of the function; none if it declares none."""
    return kink_splitting.split_kinks(activation, derivative) if activation.kinks else KinkSplit((), None)


def _parts(whole: KinkSplit, root: np.ndarray) -> np.ndarray:
    """p_k as in kink_splitting.kink_coefficients."""
    total = np.zeros((root.size, MAX_TERMS))
    k = np.arange(2, MAX_TERMS)
    for kink in whole.kinks:
        h = kink.level / np.maximum(root, 1e-6)
        density = np.exp(-0.25 * h * h) / (2 * math.pi) ** 0.25
        tail = 0.5 * _erfc(h / math.sqrt(2))
        previous, current, hermite = np.zeros_like(h), density, []
        for j in range(MAX_TERMS - 1):
            hermite.append(current * density)
            previous, current = current, (h * current - math.sqrt(j) * previous) / math.sqrt(j + 1)
        H = np.stack(hermite, 1)
        step = np.concatenate([tail[:, None], H / np.sqrt(np.arange(1, MAX_TERMS))], 1)
        first = np.stack([H[:, 0] - h * tail, tail], 1)
        ramp = root[:, None] * np.concatenate([first, H[:, :-1] / np.sqrt(k * (k - 1.0))], 1)
        total += (kink.jump * step + kink.slope * ramp) * ((-1.0) ** np.arange(MAX_TERMS) if kink.side < 0 else 1)
    return total


@functools.partial(np.vectorize, otypes=[float])
def _erfc(x: float) -> float:
    """Complementary error function of NumPy arrays."""
    return math.erfc(x)
