"""How a kernel looks to a fused program: K(x, z) = s(x) s(z) F(⟨x', z'⟩ + a(x) + a(z), p(x), p(z)) + r(x) r(z).

x' is an embedding of x, a and p are numbers of one point each (norms, say), s and r are taken out of the sum. What
depends on one point alone is thus computed once a point, not once a pair: a Gaussian is one exp2 a pair, the NTK of any
depth without biases one polynomial of the angle [K8].
"""

import functools
import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from unlazy.kernels.base import InnerProductKernel, Kernel
from unlazy.kernels.networks.infinite_width import NNGP, NTK, NetworkKernel
from unlazy.kernels.radial import MATERN, Gaussian, Laplace, Matern
from unlazy.products.fused.ptx import Powers
from unlazy.products.fused.split_precision import FLOAT16, SHARP, SMOOTH, TURNED, Parts, two_halves
from unlazy.theory.infinite_width.fully_connected import written_out
from unlazy.theory.infinite_width.homogeneous import (
    angular_part,
    by_angle,
    gain_and_kink,
    norm_after,
    slope_below_zero,
    unit_parts,
)
from unlazy.theory.numerics import polynomial_fits
from unlazy.theory.numerics.angles import horner
from unlazy.theory.numerics.near_duplicates import coincident, halves_floor

LOG2E = math.log2(math.e)
_TOLERANCE = 6e-6
"""What polynomials of an angle may be off, of the kernel; there is no form where none is within twice that."""
_LOST = 12 * 2.0**-24
"""What rounding may take from a cosine of 1 in a layer: twelve units of it. Factors, products and sums round some
twenty times, not all one way; eight units were too few for one of 300 points in twelve layers."""


class Prepared(NamedTuple):
    """One side of a product: embedded points x', per-point numbers p, the added number a, the factor s, and r."""

    points: Float[Array, "n k"]
    rows: list[Float[Array, " n"]]
    added: Float[Array, " n"] | None = None
    scale: Float[Array, " n"] | None = None
    apart: Float[Array, " n"] | None = None


class Near(NamedTuple):
    """Where the largest |x'|² = -2a of all points is from `least` to `most`, and the mean of each side up to `mean`:
    parts that will do, and powers of two that some pairs may take."""

    parts: Parts
    least: float
    most: float
    mean: float
    powers: Powers


@dataclass(frozen=True)
class Form:
    """Base: `prepare` runs outside the fused program, on embedded inputs; `formula` runs inside.

    Hashable, since it is a static argument of the compiled program: numbers that a user may vary (bandwidths) are used
    in `prepare`. `parts` are those of which ⟨x,z⟩ is multiplied: formulas with a kink at x = z need more of them. Where
    points are not `near`, another form may take the same numbers (`far`); where they are, parts may be fewer.
    `exponential` formulas are exp2(t), where a weight |v| is as well added to t.
    """

    exponential = False
    parts: ClassVar[Parts] = SHARP

    @property
    def near(self) -> "Near | None":
        return None

    @property
    def far(self) -> "Form":
        return self

    def numbers(self, side: Prepared, parts: Parts) -> list[Float[Array, " n"]]:
        """p of one side, where inner products are of these parts."""
        return side.rows

    def prepare(self, kernel: Any, X: Float[Array, "n d"]) -> Prepared:
        raise NotImplementedError

    def formula(self, t: Array, p: list, q: list) -> Array:
        raise NotImplementedError


@dataclass(frozen=True)
class GaussianForm(Form):
    """exp(-|x-z|²/2h²) = exp2(⟨x',z'⟩ - |x'|²/2 - |z'|²/2), x' = x √(log2 e)/h.

    It errs by as much as the exponent does: by 2^-18 |x'||z'| or so.
    """

    exponential = True
    parts = SMOOTH

    @property
    def near(self):
        return Near(TURNED, least=0.0, most=16.0, mean=4.0, powers=Powers(8, -math.inf, 5))

    @property
    def far(self):
        return FarGaussianForm()

    def prepare(self, kernel, X):
        points = two_halves(X * (math.sqrt(LOG2E) / kernel.length))
        half = 0.5 * jnp.sum(points * points, 1)
        return Prepared(points, [halves_floor(X.shape[1]) * half], added=-half)

    def formula(self, t, p, q):
        return jnp.exp2(t)


@dataclass(frozen=True)
class FarGaussianForm(GaussianForm):
    """The same of points many bandwidths apart: what rounding leaves of no distance would be a factor of some size."""

    exponential = False
    parts = SHARP

    @property
    def near(self):
        return None

    def formula(self, t, p, q):
        return jnp.exp2(jnp.where(coincident(-t, p[0], 1), 0.0, t))


@dataclass(frozen=True)
class MaternForm(Form):
    """P(s) exp(-s), s = √(2ν)|x-z|/h, Laplace's with ν = 1/2: exp2(-u), u = √(|x'|²/2 + |z'|²/2 - ⟨x',z'⟩) = s log2(e),
    x' = √2 x √(2ν) log2(e)/h, the root's argument by a; P by powers of u."""

    smoothness: float

    @property
    def near(self):
        """u² is at most twice the largest |x'|²."""
        every = 3 if self.smoothness == 0.5 else 6
        return Near(FLOAT16, 1 / 16, 2.0**12, math.inf, Powers(every, -math.sqrt(2.0**13), 4))

    def numbers(self, side, parts):
        """The floor, and what the smallest numbers of a type leave: half of one in every coordinate of both points, and
        in a of both."""
        size = jnp.sqrt(-2 * side.points.shape[1] * side.added)
        return [side.rows[0] + parts.smallest * (1 + size)]

    def prepare(self, kernel, X):
        points = two_halves(X * (2 * math.sqrt(self.smoothness) * LOG2E / kernel.length))
        half = 0.5 * jnp.sum(points * points, 1)
        return Prepared(points, [halves_floor(X.shape[1]) * half], added=-half)

    def formula(self, t, p, q):
        D = -t
        u = jnp.sqrt(jnp.where(coincident(D, p[0], 1), 0.0, D))
        powers = tuple(c / LOG2E**k for k, c in enumerate(MATERN[self.smoothness]))
        return jnp.exp2(-u) if len(powers) == 1 else horner(powers, u) * jnp.exp2(-u)


@dataclass(frozen=True)
class AngleForm(Form):
    """|x||z| G(θ), G by polynomials of sin θ/2 or sin θ: ReLU NNGP and NTK of any depth without biases [K8].

    ⟨x',z'⟩ = ½ cos θ, x' = x/(√2 |x|): of equal and of opposite points rounding is left, of no more than half of
    `halves_floor`. So ⟨x',z'⟩ is longer by the floor, and what roots are taken of is cut to [0, 1]: sin θ is 0 then,
    and that of others errs by a quarter of the floor over itself. K(x, x) is off by the floor or so (up to 1.3 of it in
    networks of 20 layers).
    """

    polynomials: polynomial_fits.HalfAngles | polynomial_fits.Sines
    parts = FLOAT16

    def prepare(self, kernel, X):
        norm = jnp.sqrt(jnp.sum(X * X, 1))
        points = X * (_half_unit(X.shape[1]) / jnp.where(norm > 0, norm, 1))[:, None]
        return Prepared(points, [], scale=jnp.sqrt(_on_diagonal(kernel, X)))  # k(x, x) = s(x)² G(0) = s(x)²

    def formula(self, t, p, q):
        return self.polynomials.at(*self.polynomials.sides(t, jnp.sqrt, _cut))


@dataclass(frozen=True)
class LayersForm(Form):
    """NNGP and NTK of a piecewise linear network with biases: the recursion of theory.infinite_width.layer_recursion
    [K7, K8] on cosines.

    Its terms are divided by n_l(x) n_l(z), n_l(x)² = Σ^l(x,x): points bring their unit vectors (A, B) of
    theory.infinite_width.homogeneous, Σ^l becomes the cosine ρ_l = A(x)A(z)(ρ + w h/π) + B(x)B(z), and Θ^{l-1} passes
    with A(x)A(z)(1 - wθ/π). The first B is a coordinate more, A and B of the last layer are factors of points alone.
    Halves of cosines are carried, the first longer by the floor, as for angles, the others by what rounding may take
    from a cosine of 1 in a layer. What that leaves above ½ is cut, or each layer would make it half as large again.
    """

    depth: int
    slope: float
    tangent: bool
    parts = FLOAT16

    def prepare(self, kernel, X):
        network = kernel.network
        gain, _ = gain_and_kink(self.slope)
        sw, sb = network.sigma_w[0], network.sigma_b[0]
        norm = norm_after(jnp.sum(X * X, 1), sw**2, sb**2)
        weight, bias = unit_parts(sw, sb, norm)
        points = _half_unit(X.shape[1] + 1) * jnp.concatenate([X * weight[:, None], bias[:, None]], 1)
        rows: list[Array] = []
        for sw, sb in zip(network.sigma_w[1:], network.sigma_b[1:]):
            before, norm = norm, norm_after(norm * norm, sw**2 * gain, sb**2)
            weight, bias = unit_parts(sw * math.sqrt(gain) * before, sb, norm)
            rows += [math.sqrt(0.5 * _opening(self.slope)) * weight, math.sqrt(0.5) * bias]
        *rows, weight, bias = rows
        rows = [math.sqrt(1 + _LOST) * row for row in rows]
        scale, apart = (math.sqrt(2) * norm * last for last in (weight, bias))
        return Prepared(points, rows, scale=scale, apart=apart)

    def formula(self, t, p, q):
        half, passed = t, None  # of the cosine; Θ^l is ρ_l and what has passed, of which half is carried too
        for l in range(self.depth):
            half = jnp.minimum(half, 0.5) if l < self.depth - 1 else half
            passing, opened = _through(half, self.slope, first=l == 0)
            if l == self.depth - 1:
                break
            both = p[2 * l] * q[2 * l]
            slope = both * passing
            straight = slope * half
            passed = straight if passed is None else straight + slope * passed
            half = both * opened + (straight + p[2 * l + 1] * q[2 * l + 1])
        if not self.tangent:
            return passing * half + opened
        return passing * (2 * half if passed is None else 2 * half + passed) + opened


@dataclass(frozen=True)
class EntryForm(Form):
    """Any entry formula k(⟨x,z⟩, |x|², |z|²). What it derives from one norm alone stays one number per point."""

    kernel: InnerProductKernel

    def prepare(self, kernel, X):
        points = two_halves(X)
        square = jnp.sum(points * points, 1)
        return Prepared(points, [square, halves_floor(X.shape[1]) * square])

    def formula(self, t, p, q):
        middle = 0.5 * (p[0] + q[0])
        with written_out():
            t = jnp.where(coincident(middle - t, p[1], 1), middle, t)
            return self.kernel.entry(t, p[0], q[0])


@functools.singledispatch
def form_of(kernel: Kernel) -> Form | None:
    """The fused form of a kernel, registered here by its class or that of its entry formula; None where it has no such
    formula, or one with tables or parameters not yet known."""
    if kernel.formula is None or any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(kernel)):
        return None
    # Arrays of more than one number (a metric) belong to `embed`; the formula does without them.
    form = EntryForm(jax.tree.map(lambda leaf: float(leaf) if np.ndim(leaf) == 0 else None, kernel.formula))
    return form if _without_tables(form) else None


@functools.lru_cache(maxsize=256)
def _without_tables(form: EntryForm) -> bool:
    """Whether the formula holds numbers only: quadrature nodes of a numerical dual are arrays, which a fused program
    does not carry."""
    number = jax.ShapeDtypeStruct((), jnp.float32)
    return all(np.ndim(c) == 0 for c in jax.make_jaxpr(form.formula)(number, [number] * 2, [number] * 2).consts)


_general = form_of.dispatch(Kernel)


@form_of.register
def _(kernel: Gaussian) -> Form | None:
    return GaussianForm()


@form_of.register
def _(kernel: Laplace) -> Form | None:
    return MaternForm(0.5)


@form_of.register
def _(kernel: Matern) -> Form | None:
    return MaternForm(kernel.smoothness)


@form_of.register
def _(kernel: NNGP) -> Form | None:
    return _of_network(kernel, tangent=False)


@form_of.register
def _(kernel: NTK) -> Form | None:
    return _of_network(kernel, tangent=True)


def _of_network(kernel: NetworkKernel, tangent: bool) -> Form | None:
    """Piecewise linear networks without skips have forms of their own."""
    slope, depth = slope_below_zero(kernel.network.activation), kernel.network.depth
    if slope is None or kernel.network.skips:
        return _general(kernel)
    if kernel.network.biases:
        return LayersForm(depth, slope, tangent)
    form = _angle_form(depth, slope, tangent)
    return form if form.polynomials.error <= 2 * _TOLERANCE else None  # the recursion would be too long a program


@functools.lru_cache(maxsize=256)
def _angle_form(depth: int, slope: float, tangent: bool) -> AngleForm:
    """The shortest polynomials within the tolerance, or the best where none is."""

    def wanted(theta: np.ndarray) -> np.ndarray:
        kernels = by_angle(theta, depth, slope)
        return kernels[1:].mean(0) if tangent else kernels[0]

    return AngleForm(polynomial_fits.shortest(wanted, _TOLERANCE))


def _on_diagonal(kernel: InnerProductKernel, X: Array) -> Array:
    xx = jnp.sum(X * X, 1)
    return kernel.entry(xx, xx, xx)


def _opening(slope: float) -> float:
    """2w/π, by which sin θ/2 · cos θ/2 opens; 1 where there is no kink."""
    _, kink = gain_and_kink(slope)
    return 2 * kink / math.pi or 1.0


def _through(half: Array, slope: float, first: bool) -> tuple[Array, Array]:
    """2(1 - wθ/π) and w sin θ/π of a layer [K8] over `_opening`, from ½ cos θ: one root, polynomials of sin θ."""
    fit = _passing(slope, first)
    half, root = fit.sides(half, jnp.sqrt, _cut)
    return fit.times(2 / _opening(slope)).at(half, root), root if slope != 1 else 0.0 * root


def _half_unit(dimension: int) -> float:
    """Length of points whose inner products are ½ cos θ, longer by the floor."""
    return math.sqrt(0.5 * (1 + halves_floor(dimension)))


def _cut(number: Array) -> Array:
    """To [0, 1], a step that costs nothing."""
    return lax.clamp(0.0, number, 1.0)


@functools.lru_cache(maxsize=256)
def _passing(slope: float, first: bool) -> polynomial_fits.Sines:
    """1 - wθ/π; behind a ReLU angles are acute. What is off in the first layer is once, in others as often as they."""
    _, kink = gain_and_kink(slope)
    tolerance, largest = _TOLERANCE if first else _TOLERANCE / 2, math.pi if first or slope else math.pi / 2
    return polynomial_fits.in_sines(lambda theta: 1 - angular_part(theta, 0, kink)[1], tolerance, largest)
