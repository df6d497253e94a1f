"""f(K) of a symmetric matrix with derivatives that hold where eigenvalues repeat.

K = U diag(λ) Uᵀ, f(K) = U diag(f(λ)) Uᵀ, and

    d f(K) = U (F ∘ (Uᵀ dK U)) Uᵀ,   F_ij = f[λ_i, λ_j] = (f(λ_i) - f(λ_j))/(λ_i - λ_j),  f'(λ_i) where they meet

(Daleckii and Krein 1965; Higham, Functions of Matrices, 2008, theorem 3.11). An eigenvector has no derivative where its
eigenvalue is not alone, as on grids and circles, so λ and U are constants here and K alone carries derivatives: first
ones, forward and reverse. A second derivative in K is refused.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from unlazy.core.linalg import dot, einsum


class Spectrum(NamedTuple):
    """Eigenvalues (none negative), ascending, and eigenvectors as constants; K where derivatives may be asked for."""

    eigenvalues: Float[Array, " n"]
    eigenvectors: Float[Array, "n n"]
    K: Float[Array, "n n"] | None = None


class Rule(NamedTuple):
    """A filter c(λ) and the divided differences of c and of r = 1 - λc: functions of (λ, *parameters)."""

    coefficient: Callable[..., Array]
    coefficient_difference: Callable[..., Array]
    residual_difference: Callable[..., Array]


class MatrixFunction(NamedTuple):
    """c(K), λc(K) or c(2 - λc)(K) for the parameters of a path; null directions dropped where `floor` is given."""

    rule: Rule
    spectrum: Spectrum
    parameters: tuple[Any, ...]
    floor: Any = None
    form: str = "coefficient"


def spectrum_of(K: Float[Array, "n n"], eigh: Callable = jnp.linalg.eigh) -> tuple[Spectrum, Float[Array, " n"]]:
    """The spectrum, eigenvalues that rounding made negative set to zero, and the eigenvalues as they came."""
    raw, U = eigh(jax.lax.stop_gradient(K))
    return Spectrum(jnp.maximum(raw, 0), U, K if isinstance(K, jax.core.Tracer) else None), raw


def filtered(function: Float[Array, "*t n"] | MatrixFunction, W: Float[Array, "n c"]) -> Float[Array, "*t n c"]:
    """diag(f(λ)) W for columns W = Uᵀv in the eigenbasis: f(K) v = U filtered(f, Uᵀv)."""
    if isinstance(function, MatrixFunction):
        rule, spectrum, parameters, floor, form = function
        return _filtered(rule, form, spectrum, parameters, floor, W)
    return function[..., None] * W


def diagonal(
    eigenvectors: Float[Array, "n n"], function: Float[Array, "*t n"] | MatrixFunction
) -> Float[Array, "*t n"]:
    """f(K)_ii = Σ_k f(λ_k) U_ik²."""
    if isinstance(function, MatrixFunction):
        rule, spectrum, parameters, floor, form = function
        return _diagonal(rule, form, spectrum, parameters, floor)
    return einsum("...n,in->...i", function, jnp.square(eigenvectors))


def learned(eigenvalues: Float[Array, " n"], coefficient: Any) -> Any:
    """λc(λ) = 1 - r(λ): the share of the labels that is learned."""
    if isinstance(coefficient, MatrixFunction):
        return coefficient._replace(form="learned")
    return eigenvalues * coefficient


def covered(eigenvalues: Float[Array, " n"], coefficient: Any) -> Any:
    """c(2 - λc) = (1 - r²)/λ: what training takes from the covariance of the start."""
    if isinstance(coefficient, MatrixFunction):
        return coefficient._replace(form="covered")
    return coefficient * (2 - eigenvalues * coefficient)


@jax.custom_jvp
def eigenvalues(spectrum: Spectrum) -> Float[Array, " n"]:
    """λ, with dλ_i = u_iᵀ dK u_i: right for a simple eigenvalue, and for sums over those that coincide."""
    return spectrum.eigenvalues


@eigenvalues.defjvp
def _eigenvalues_jvp(primals: tuple[Spectrum], tangents: tuple[Spectrum]) -> tuple[Array, Array]:
    spectrum = _constants(primals[0])
    U, dK = spectrum.eigenvectors, tangents[0].K
    change = tangents[0].eigenvalues if dK is None else jnp.sum(U * dot(dK, U), 0)
    return spectrum.eigenvalues, jnp.where(spectrum.eigenvalues > 0, change, 0)


@jax.custom_jvp
def eigenvectors(spectrum: Spectrum) -> Float[Array, "n n"]:
    """U, for looking at: differentiating it is refused."""
    return spectrum.eigenvectors


@eigenvectors.defjvp
def _eigenvectors_jvp(primals: Any, tangents: Any) -> Any:
    raise ValueError(
        "eigenvectors have no derivative where eigenvalues meet, so they are not differentiated: use what is a "
        "function of K (ridge_path, flow, descent, leave_one_out, gcv, posterior), or call jnp.linalg.eigh yourself"
    )


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _filtered(rule: Rule, form: str, spectrum: Spectrum, parameters: tuple, floor: Any, W: Array) -> Array:
    return _value(rule, form, spectrum.eigenvalues, parameters, floor)[..., None] * W


@functools.partial(_filtered.defjvp, symbolic_zeros=True)
def _filtered_jvp(rule: Rule, form: str, primals: Any, tangents: Any) -> tuple[Array, Array]:
    spectrum, parameters, floor, W = primals
    d_spectrum, d_parameters, _, dW = tangents
    spectrum = _constants(spectrum)
    value = _value(rule, form, spectrum.eigenvalues, parameters, floor)
    out = value[..., None] * W
    change = _value_change(rule, form, spectrum, parameters, d_parameters, floor)
    tangent = jnp.zeros_like(out) if change is None else change[..., None] * W
    if not _zero(dW):
        tangent = tangent + value[..., None] * dW
    if not _zero(d_spectrum.K):
        tangent = tangent + dot(_matrix_change(rule, form, spectrum, d_spectrum.K, parameters, floor), W)
    return out, tangent


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _diagonal(rule: Rule, form: str, spectrum: Spectrum, parameters: tuple, floor: Any) -> Array:
    value = _value(rule, form, spectrum.eigenvalues, parameters, floor)
    return einsum("...n,in->...i", value, jnp.square(spectrum.eigenvectors))


@functools.partial(_diagonal.defjvp, symbolic_zeros=True)
def _diagonal_jvp(rule: Rule, form: str, primals: Any, tangents: Any) -> tuple[Array, Array]:
    spectrum, parameters, floor = primals
    spectrum = _constants(spectrum)
    U = spectrum.eigenvectors
    out = diagonal(U, _value(rule, form, spectrum.eigenvalues, parameters, floor))
    change = _value_change(rule, form, spectrum, parameters, tangents[1], floor)
    tangent = jnp.zeros_like(out) if change is None else diagonal(U, change)
    if not _zero(tangents[0].K):
        X = _matrix_change(rule, form, spectrum, tangents[0].K, parameters, floor)
        tangent = tangent + jnp.sum(dot(U, X) * U, -1)
    return out, tangent


def _value(rule: Rule, form: str, lam: Array, parameters: tuple, floor: Any) -> Array:
    c = rule.coefficient(lam, *parameters)
    if floor is not None:
        c = jnp.where(_dropped(c, lam, floor), 0, c)
    return {"coefficient": c, "learned": lam * c, "covered": c * (2 - lam * c)}[form]


def _value_change(
    rule: Rule, form: str, spectrum: Spectrum, parameters: tuple, d_parameters: tuple, floor: Any
) -> Array | None:
    """What the change of the parameters does to f(λ); None where none of them changes."""
    if all(_zero(d) for d in d_parameters):
        return None
    tangents = tuple(jnp.zeros_like(p) if _zero(d) else d for p, d in zip(parameters, d_parameters, strict=True))
    return jax.jvp(lambda *p: _value(rule, form, spectrum.eigenvalues, p, floor), parameters, tangents)[1]


def _matrix_change(rule: Rule, form: str, spectrum: Spectrum, dK: Array, parameters: tuple, floor: Any) -> Array:
    """F ∘ (Uᵀ dK U), shape (*t, n, n)."""
    U = spectrum.eigenvectors
    return _difference(rule, form, spectrum.eigenvalues, parameters, floor) * dot(U.T, dot(dK, U))


def _difference(rule: Rule, form: str, lam: Array, parameters: tuple, floor: Any) -> Array:
    """f[λ_i, λ_j] from those of c and r by the product rule (uv)[λ, μ] = u(λ) v[λ, μ] + u[λ, μ] v(μ)."""
    c = rule.coefficient(lam, *parameters)
    if form == "learned":
        F = -rule.residual_difference(lam, *parameters)
    else:
        F = rule.coefficient_difference(lam, *parameters)
        if form == "covered":  # c(2 - λc) = 2c - (1 - r)c; for a flow both terms have one sign
            F = (2 - lam * c)[..., :, None] * F + rule.residual_difference(lam, *parameters) * c[..., None, :]
    if floor is None:
        return F
    # dropped directions count as λ = 0 with f = 0: the derivative at constant rank
    kept = ~_dropped(c, lam, floor)
    ratio = jnp.where(kept, _value(rule, form, lam, parameters, floor) / jnp.where(lam > 0, lam, 1), 0)
    both = kept[..., :, None] & kept[..., None, :]
    one = kept[..., :, None] ^ kept[..., None, :]
    return jnp.where(both, F, jnp.where(one, ratio[..., :, None] + ratio[..., None, :], 0))


def _dropped(c: Array, lam: Array, floor: Any) -> Array:
    return (lam <= floor) & (c * floor >= 1)


def _constants(spectrum: Spectrum) -> Spectrum:
    """λ and U inside a derivative: whoever differentiates them again in K would get a part of the answer only."""
    if spectrum.K is None:
        return spectrum
    return Spectrum(*constant(spectrum.K, spectrum.eigenvalues, spectrum.eigenvectors), spectrum.K)


@jax.custom_jvp
def constant(K: Array, lam: Array, U: Array) -> tuple[Array, Array]:
    """λ and U of K, for use inside a rule of derivatives: to differentiate them is refused."""
    return lam, U


@constant.defjvp
def _constant_jvp(primals: Any, tangents: Any) -> Any:
    raise ValueError(
        "second derivatives of a function of K are not available: take differences of first ones, or use "
        "`log_marginal_likelihood` or `solve`, which have them"
    )


def _zero(tangent: Any) -> bool:
    return tangent is None or isinstance(tangent, SymbolicZero)
