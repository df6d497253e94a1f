"""Kernels in a form for fused programs: K(x, z) = s(x) s(z) F(⟨x', z'⟩ + a(x) + a(z), p(x), p(z)) + r(x) r(z).

x' is an embedding of x, a and p are per-point values such as norms, and s and r are factored out of the sum. Everything
that depends on one point is thus computed once per point instead of once per pair: a Gaussian needs one exp2 per pair,
the NTK of any depth without biases one polynomial of the angle [K8].
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
from unlazy.products.fused.ptx import PolynomialExp2
from unlazy.products.fused.split_precision import FLOAT16, ROTATED, SHARP, SMOOTH, SplitPoints, two_halves
from unlazy.theory.activations.duals import gain_and_kink, slope_below_zero
from unlazy.theory.infinite_width.homogeneous import angular_part, kernels_at_angle, norm_after, unit_parts
from unlazy.theory.numerics import polynomial_fits
from unlazy.theory.numerics.geometry import half_precision_floor, horner, is_near_duplicate

LOG2E = math.log2(math.e)
_TOLERANCE = 6e-6
"""Target relative error of polynomials of an angle; a kernel has no form if the best polynomial exceeds twice this."""
_LOST = 12 * 2.0**-24
"""Rounding error of a cosine of 1 per layer: 12 ulp. Factors, products and sums round about 20 times with varying sign;
8 ulp were too few for one of 300 points in 12 layers."""


class Prepared(NamedTuple):
    """One side of a product: embedded points x', per-point values p (`rows`), added term a, factor s (`scale`) and r
    (`apart`)."""

    points: Float[Array, "n k"]
    rows: list[Float[Array, " n"]]
    added: Float[Array, " n"] | None = None
    scale: Float[Array, " n"] | None = None
    apart: Float[Array, " n"] | None = None


class NearSettings(NamedTuple):
    """Faster settings for points of moderate norm: the split precision `parts` suffices, and some pairs may use
    polynomial `powers` of two, if the largest |x'|² = -2a is between `least` and `most` and the mean of each side at
    most `mean`."""

    parts: SplitPoints
    least: float
    most: float
    mean: float
    powers: PolynomialExp2


@dataclass(frozen=True)
class Form:
    """Base class: `prepare` runs outside of the fused program on embedded inputs, `formula` runs inside.

    Hashable, since it is a static argument of the compiled program: values that users vary, such as bandwidths, are
    only used in `prepare`. `parts` is the split precision of ⟨x,z⟩; formulas with a kink at x = z need a higher one.
    For points of moderate norm (`near`) a lower precision may suffice; otherwise another form with the same per-point
    values may be used (`far`). For `exponential` formulas, exp2(t), a weight |v| can be included in t."""

    exponential = False
    parts: ClassVar[SplitPoints] = SHARP

    @property
    def near(self) -> "NearSettings | None":
        """Settings for points of moderate norm, if any."""
        return None

    @property
    def far(self) -> "Form":
        """Form for all other points."""
        return self

    def numbers(self, side: Prepared, parts: SplitPoints) -> list[Float[Array, " n"]]:
        """Per-point values p of one side for the given split precision."""
        return side.rows

    def prepare(self, kernel: InnerProductKernel, X: Float[Array, "n d"]) -> Prepared:
        """Per-point quantities of embedded points."""
        raise NotImplementedError

    def formula(self, t: Array, p: list, q: list) -> Array:
        """F(t, p, q), elementwise."""
        raise NotImplementedError


@dataclass(frozen=True)
class GaussianForm(Form):
    """exp(-|x-z|²/2h²) = exp2(⟨x',z'⟩ - |x'|²/2 - |z'|²/2), x' = x √(log2 e)/h.

    The relative error equals the absolute error of the exponent, about 2^-18 |x'||z'|.
    """

    exponential = True
    parts = SMOOTH

    @property
    def near(self):
        return NearSettings(ROTATED, least=0.0, most=16.0, mean=4.0, powers=PolynomialExp2(8, -math.inf, 5))

    @property
    def far(self):
        return FarGaussianForm()

    def prepare(self, kernel, X):
        points = two_halves(X * (math.sqrt(LOG2E) / kernel.length))
        half = 0.5 * jnp.sum(points * points, 1)
        return Prepared(points, [half_precision_floor(X.shape[1]) * half], added=-half)

    def formula(self, t, p, q):
        return jnp.exp2(t)


@dataclass(frozen=True)
class FarGaussianForm(GaussianForm):
    """Gaussian for points many bandwidths apart, where rounding errors of a zero distance would be noticeable."""

    exponential = False
    parts = SHARP

    @property
    def near(self):
        return None

    def formula(self, t, p, q):
        return jnp.exp2(jnp.where(is_near_duplicate(-t, p[0], 1), 0.0, t))


@dataclass(frozen=True)
class MaternForm(Form):
    """P(s) exp(-s), s = √(2ν)|x-z|/h (ν = 1/2: Laplace), as exp2(-u), u = √(|x'|²/2 + |z'|²/2 - ⟨x',z'⟩) = s log2(e),
    x' = √2 x √(2ν) log2(e)/h. The norms in the root are the added terms a; P is a polynomial of u."""

    smoothness: float

    @property
    def near(self):
        """Settings for points of moderate norm; u² is at most twice the largest |x'|²."""
        every = 3 if self.smoothness == 0.5 else 6
        return NearSettings(FLOAT16, 1 / 16, 2.0**12, math.inf, PolynomialExp2(every, -math.sqrt(2.0**13), 4))

    def numbers(self, side, parts):
        """The rounding floor, plus the effect of subnormal numbers: half of the smallest one in every coordinate of
        both points and in both added terms."""
        size = jnp.sqrt(-2 * side.points.shape[1] * side.added)
        return [side.rows[0] + parts.smallest * (1 + size)]

    def prepare(self, kernel, X):
        points = two_halves(X * (2 * math.sqrt(self.smoothness) * LOG2E / kernel.length))
        half = 0.5 * jnp.sum(points * points, 1)
        return Prepared(points, [half_precision_floor(X.shape[1]) * half], added=-half)

    def formula(self, t, p, q):
        D = -t
        u = jnp.sqrt(jnp.where(is_near_duplicate(D, p[0], 1), 0.0, D))
        powers = tuple(c / LOG2E**k for k, c in enumerate(MATERN[self.smoothness]))
        return jnp.exp2(-u) if len(powers) == 1 else horner(powers, u) * jnp.exp2(-u)


@dataclass(frozen=True)
class AngleForm(Form):
    """|x||z| G(θ), with G a polynomial of sin θ/2 or sin θ: ReLU NNGP and NTK of any depth without biases [K8].

    ⟨x',z'⟩ = ½ cos θ with x' = x/(√2 |x|). For equal and opposite points its rounding error is at most half of
    `half_precision_floor`. Therefore ⟨x',z'⟩ is scaled up by the floor, and then clamped: for these points sin θ is
    exactly 0 and K(x, x) is exact, and for others the error of sin θ is a quarter of the floor divided by sin θ.
    """

    polynomials: polynomial_fits.HalfAngleFit | polynomial_fits.SineFit
    parts = FLOAT16

    def prepare(self, kernel, X):
        norm = jnp.sqrt(jnp.sum(X * X, 1))
        points = X * (_half_unit(X.shape[1]) / jnp.where(norm > 0, norm, 1))[:, None]
        return Prepared(points, [], scale=jnp.sqrt(_on_diagonal(kernel, X)))  # k(x, x) = s(x)² G(0) = s(x)²

    def formula(self, t, p, q):
        half = jnp.minimum(t, 0.5) if isinstance(self.polynomials, polynomial_fits.SineFit) else t
        return self.polynomials.evaluate(*self.polynomials.arguments(half, jnp.sqrt, _cut))


@dataclass(frozen=True)
class LayersForm(Form):
    """NNGP and NTK of a piecewise linear network with biases: the recursion of theory.infinite_width.layer_recursion
    [K7, K8] on cosines.

    All terms are divided by n_l(x) n_l(z), n_l(x)² = Σ^l(x,x). Each point has unit vectors (A, B) per layer, see
    theory.infinite_width.homogeneous; Σ^l becomes the cosine ρ_l = A(x)A(z)(ρ + w h/π) + B(x)B(z), and Θ^{l-1} is
    multiplied by A(x)A(z)(1 - wθ/π). The first B is an additional coordinate; A and B of the last layer are per-point
    factors. The recursion works with half cosines. The first one is scaled up by the rounding floor, as for angles, and
    the others by the rounding error of a cosine of 1 per layer. Excess above ½ is clamped, since every layer would
    amplify it by half.
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
        half, passed = t, None  # half cosine; Θ^l is ρ_l plus the propagated term, which is halved too
        for l in range(self.depth):
            half = jnp.minimum(half, 0.5)
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
    """Any entry formula k(⟨x,z⟩, |x|², |z|²). Terms that depend on one norm only are computed once per point.

    The tensor cores multiply points of norm √½, which two float16 parts represent to 2^-25; ⟨x,z⟩ = 2|x||z| ½ cos θ.
    """

    kernel: InnerProductKernel
    parts = FLOAT16

    def prepare(self, kernel, X):
        square = jnp.sum(X * X, 1)
        norm = jnp.sqrt(square)
        points = X * (math.sqrt(0.5) / jnp.where(norm > 0, norm, 1))[:, None]
        return Prepared(points, [math.sqrt(2) * norm, square, half_precision_floor(X.shape[1]) * square])

    def formula(self, t, p, q):
        middle = 0.5 * (p[1] + q[1])
        xz = t * (p[0] * q[0])
        xz = jnp.where(is_near_duplicate(middle - xz, p[2], 1), middle, xz)
        return _unrolled(self.kernel).entry(xz, p[1], q[1])


class _UnrolledKernel(InnerProductKernel):
    """A network kernel whose layers are written out: fused programs have no loop."""

    kernel: NetworkKernel

    def entry(self, xz, xx, zz):
        return self.kernel.entry(xz, xx, zz, unroll=True)


def _unrolled(kernel: InnerProductKernel) -> InnerProductKernel:
    """The kernel with all network kernels in it unrolled."""

    def is_network(part: Any) -> bool:
        return isinstance(part, NetworkKernel)

    return jax.tree.map(lambda part: _UnrolledKernel(part) if is_network(part) else part, kernel, is_leaf=is_network)


@functools.singledispatch
def form_of(kernel: Kernel) -> Form | None:
    """The fused form of a kernel, dispatched on its class; None if the kernel has no entry formula, or one with tables
    or traced parameters."""
    if kernel.formula is None or any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(kernel)):
        return None
    # Arrays with more than one value (a metric) are only used by `embed`, not by the formula.
    form = EntryForm(jax.tree.map(lambda leaf: float(leaf) if np.ndim(leaf) == 0 else None, kernel.formula))
    return form if _without_tables(form) else None


@functools.lru_cache(maxsize=256)
def _without_tables(form: EntryForm) -> bool:
    """Whether all constants of the formula are scalars; array constants, such as the quadrature nodes of a numerical
    dual activation, are not supported by fused programs."""
    number = jax.ShapeDtypeStruct((), jnp.float32)
    return all(np.ndim(c) == 0 for c in jax.make_jaxpr(form.formula)(number, [number] * 3, [number] * 3).consts)


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
    """Specialized forms of piecewise linear networks without skip connections."""
    slope, depth = slope_below_zero(kernel.network.activation), kernel.network.depth
    if slope is None or kernel.network.skips:
        return _general(kernel)
    if kernel.network.biases:
        return LayersForm(depth, slope, tangent)
    form = _angle_form(depth, slope, tangent)
    return form if form.polynomials.error <= 2 * _TOLERANCE else None  # a program of the recursion would be too long


@functools.lru_cache(maxsize=256)
def _angle_form(depth: int, slope: float, tangent: bool) -> AngleForm:
    """The cheapest polynomials within the tolerance, or the most accurate ones."""

    def wanted(theta: np.ndarray) -> np.ndarray:
        kernels = kernels_at_angle(theta, depth, slope)
        return kernels[1:].mean(0) if tangent else kernels[0]

    return AngleForm(polynomial_fits.cheapest_fit(wanted, _TOLERANCE))


def _on_diagonal(kernel: InnerProductKernel, X: Array) -> Array:
    xx = jnp.sum(X * X, 1)
    return kernel.entry(xx, xx, xx)


def _opening(slope: float) -> float:
    """2w/π, the factor of sin θ/2 · cos θ/2 in a layer; 1 for linear activations."""
    _, kink = gain_and_kink(slope)
    return 2 * kink / math.pi or 1.0


def _through(half: Array, slope: float, first: bool) -> tuple[Array, Array]:
    """2(1 - wθ/π) and w sin θ/π of a layer [K8] divided by `_opening`, from ½ cos θ: one root, polynomials of sin θ."""
    fit = _passing(slope, first)
    half, root = fit.arguments(half, jnp.sqrt, _cut)
    return fit.scaled(2 / _opening(slope)).evaluate(half, root), root if slope != 1 else 0.0 * root


def _half_unit(dimension: int) -> float:
    """Norm of points whose inner products are ½ cos θ, scaled up by the rounding floor."""
    return math.sqrt(0.5 * (1 + half_precision_floor(dimension)))


def _cut(number: Array) -> Array:
    """Clamp to [0, 1], which is free on the GPU."""
    return lax.clamp(0.0, number, 1.0)


@functools.lru_cache(maxsize=256)
def _passing(slope: float, first: bool) -> polynomial_fits.SineFit:
    """Fit of 1 - wθ/π; after a ReLU angles are acute. Errors of later layers accumulate, so they get half the
    tolerance."""
    _, kink = gain_and_kink(slope)
    tolerance, largest = _TOLERANCE if first else _TOLERANCE / 2, math.pi if first or slope else math.pi / 2
    return polynomial_fits.fit_sines(lambda theta: 1 - angular_part(theta, 0, kink)[1], tolerance, largest)
