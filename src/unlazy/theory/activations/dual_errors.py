"""How far numerical duals may be off: an estimate in NumPy float64, apart from the code it judges.

Relative to E φ², and so to k(x, x):  Σ_{k≥K} (a_k² + 2|a_k p_k|), the coefficients of the smooth part and of the kinks
that an expansion of K terms leaves out; what another quadrature with twice the panels changes (kinks that were
not named); and for φ' how far its coefficients are from those of φ, √(k+1) c_{k+1}/s, which they are not where φ jumps.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from unlazy.theory.activations import duals, piecewise
from unlazy.theory.activations.functions import Activation
from unlazy.theory.activations.numeric_duals import NODES_A_PANEL, TERMS, panel_edges
from unlazy.theory.activations.piecewise import Split
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.theory.infinite_width.covariance import covariance
from unlazy.theory.infinite_width.homogeneous import slope_below_zero

BEYOND = 2 * TERMS
"""Coefficients up to here are looked at."""
BEYOND_A_JUMP, BEYOND_BOTH = 3.5, 1.6
"""All that is left out against what lies between TERMS and BEYOND: squares fall as k^{-3/2} or faster (a jump's), and
products of a step's with those of what is left, k^{-5/2}."""
UNITS = 8.0
"""Units of rounding of ⟨x,z⟩ relative to |x||z|: a sum of some tens of terms and three roots."""
COMPARED = 32
"""Coefficients of φ' that are compared with those of φ."""


def network_error(network: MLP, squares: np.ndarray, tangent: bool = True) -> float:
    """Largest error that the duals of the network's activation make at any layer, for inputs of these squared norms."""
    asked = (False, True) if tangent else (False,)
    wanted = tuple(d for d in asked if not duals.has_closed_form(network.activation, d))
    if not wanted:
        return 0.0
    sigma_w, sigma_b = (tuple(float(v) for v in s) for s in (network.sigma_w, network.sigma_b))
    # to 2^{1/8}, so that data of nearly the same size are looked at once
    ends = tuple(float(2.0 ** (np.round(4 * np.log2(max(float(q), 1e-30))) / 4)) for q in squares)
    return _at_layers(network.activation, sigma_w, sigma_b, float(network.residual) ** 2, wanted, ends)


@functools.lru_cache(maxsize=256)
def _at_layers(
    phi: Activation, sigma_w: tuple, sigma_b: tuple, skip2: float, wanted: tuple[bool, ...], squares: tuple
) -> float:
    worst, q = 0.0, sigma_w[0] ** 2 * np.asarray(squares) + sigma_b[0] ** 2
    for sw, sb in zip(sigma_w[1:], sigma_b[1:]):
        root = np.sqrt(q)
        worst = max([worst, *(float(np.max(error(phi, root, derivative))) for derivative in wanted)])
        if not np.isfinite(worst):
            break
        q = skip2 * q + sw**2 * _values(phi, False, root)[1] + sb**2
    return worst


def rounding_error(network: MLP, square: float, unit: float, tangent: bool = True) -> float:
    """How much of a dual at the first layer the rounding of an inner product moves, where a and b are close.

    u is known to UNITS units; the dual at u = 0 and there, in float64. Piecewise linear networks carry u along and are
    not asked: theirs is the rounding of an angle, whatever the norms.
    """
    phi = network.activation
    q = float(network.sigma_w[0]) ** 2 * float(square) + float(network.sigma_b[0]) ** 2
    rough = q * max(1.0, float(phi.parameter or 1.0) ** 2)
    if slope_below_zero(phi) is not None or 4 * rough * UNITS * unit < 1e3 * unit:
        return 0.0
    with jax.ensure_compile_time_eval(), jax.enable_x64(True):
        pairs = [covariance(*(jnp.asarray([v]) for v in (q * (1 - u), q, q, u))) for u in (0.0, UNITS * unit)]
        formulas = duals.of(phi)[: 2 if tangent else 1]
        ends = [[float(f(pair)[0]) for pair in pairs] for f in formulas]
    return max(abs(a - b) / max(abs(a), 1e-300) for a, b in ends)


def error(activation: Activation, root: np.ndarray, derivative: bool = False) -> np.ndarray:
    """The estimate at every √q = root; 0 where steps, ramps and a polynomial are all there is."""
    whole = _split(activation, derivative)
    c, square, moved = _values(activation, derivative, root)
    if whole.rest is not None:
        return np.zeros_like(square)
    p = _parts(whole, root)
    a = c - p
    own, mixed = np.sum(a[:, TERMS:] ** 2, 1), np.sum(np.abs(a * p)[:, TERMS:], 1)
    # what not even these see; below that it is the rounding of the two sums
    unseen = np.where(square - np.sum(c * c, 1) > 1e-13 * square, square - np.sum(c * c, 1), 0)
    own = BEYOND_A_JUMP * own if whole.kinks else np.maximum(BEYOND_A_JUMP * own, unseen)
    found = (own + 2 * BEYOND_BOTH * mixed) / np.maximum(square, 1e-300) + moved
    return found + _mismatch(activation, root, c) if derivative else found


def _mismatch(activation: Activation, root: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """Relative distance of the first coefficients of φ' from those that φ implies; rounding of small ones is not."""
    c, square, _ = _values(activation, False, root)
    k = np.arange(COMPARED)
    # the root of 0 is not met: points at 0 see φ(0) and φ'(0) alone
    s = np.maximum(root, 1e-3)[:, None]
    off = np.linalg.norm(np.sqrt(k + 1) * c[:, 1 : COMPARED + 1] / s - slopes[:, :COMPARED], axis=1)
    size = np.linalg.norm(slopes, axis=1) + np.sqrt(square)
    return np.where((root > 1e-3) & (off > 1e-6 * size), 2 * off / np.maximum(size, 1e-300), 0)


def _values(activation: Activation, derivative: bool, root: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """c_0 … c_{BEYOND-1}, E φ², and what halving all panels changes of both, relative."""
    with np.errstate(all="ignore"):
        coarse, fine = _quadrature(activation, derivative, root)
    square = fine[1]
    size = np.sqrt(np.maximum(square, 1e-300))
    moved = 2 * np.linalg.norm((fine[0] - coarse[0])[:, :TERMS], axis=1) / size + np.abs(1 - coarse[1] / size**2)
    return fine[0], square, np.where(square > 0, np.where(moved > 1e-12, 2 * moved, 0), 0)


def _quadrature(activation: Activation, derivative: bool, root: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Coefficients and E φ² by the panels of numeric_duals and by panels cut in two; φ is called once."""
    rules = [_rule(activation.kinks, root, halved) for halved in (False, True)]
    x = np.concatenate([x for x, _ in rules], 1)
    values = piecewise.evaluate(activation, root[:, None] * x, derivative)
    parts = np.split(values, [rules[0][0].shape[1]], 1)
    return [(_project(v, x, w), np.sum(v * v * w, 1)) for v, (x, w) in zip(parts, rules)]


def _rule(kinks: tuple[float, ...], root: np.ndarray, halved: bool) -> tuple[np.ndarray, np.ndarray]:
    t, weight = np.polynomial.legendre.leggauss(NODES_A_PANEL)
    fixed = panel_edges(2 * math.sqrt(BEYOND) + 6)
    if halved:
        # not at the middle: a kink may sit there, as at any round number
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
    for k in range(BEYOND):
        found.append(np.einsum("ij,ij->i", weighted, current))
        previous, current = current, (x * current - math.sqrt(k) * previous) / math.sqrt(k + 1)
    return np.stack(found, 1)


def _split(activation: Activation, derivative: bool) -> Split:
    return piecewise.split(activation, derivative) if activation.kinks else Split((), None)


def _parts(whole: Split, root: np.ndarray) -> np.ndarray:
    """p_k as in piecewise.part_coefficients."""
    total = np.zeros((root.size, BEYOND))
    k = np.arange(2, BEYOND)
    for kink in whole.kinks:
        h = kink.level / np.maximum(root, 1e-6)
        density = np.exp(-0.25 * h * h) / (2 * math.pi) ** 0.25
        tail = 0.5 * _erfc(h / math.sqrt(2))
        previous, current, hermite = np.zeros_like(h), density, []
        for j in range(BEYOND - 1):
            hermite.append(current * density)
            previous, current = current, (h * current - math.sqrt(j) * previous) / math.sqrt(j + 1)
        H = np.stack(hermite, 1)
        step = np.concatenate([tail[:, None], H / np.sqrt(np.arange(1, BEYOND))], 1)
        first = np.stack([H[:, 0] - h * tail, tail], 1)
        ramp = root[:, None] * np.concatenate([first, H[:, :-1] / np.sqrt(k * (k - 1.0))], 1)
        total += (kink.jump * step + kink.slope * ramp) * ((-1.0) ** np.arange(BEYOND) if kink.side < 0 else 1)
    return total


@functools.partial(np.vectorize, otypes=[float])
def _erfc(x: float) -> float:
    return math.erfc(x)
