"""f(K) of a symmetric matrix with derivatives that are correct for repeated eigenvalues.

K = U diag(λ) Uᵀ, f(K) = U diag(f(λ)) Uᵀ, and

    d f(K) = U (F ∘ (Uᵀ dK U)) Uᵀ,   F_ij = f[λ_i, λ_j] = (f(λ_i) - f(λ_j))/(λ_i - λ_j),  f'(λ_i) for equal eigenvalues

(Daleckii and Krein 1965; Higham, Functions of Matrices, 2008, theorem 3.11). Eigenvectors of repeated eigenvalues, as
on grids and circles, have no derivative, so λ and U are constants here and K alone carries derivatives: first
derivatives, forward and reverse. A second derivative in K raises an error.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from unlazy.core.arrays import dot, einsum


class Spectrum(NamedTuple):
    """Nonnegative eigenvalues in ascending order, eigenvectors, and K if derivatives may be needed, else None."""

    eigenvalues: Float[Array, " n"]
    eigenvectors: Float[Array, "n n"]
    K: Float[Array, "n n"] | None = None


class FilterRule(NamedTuple):
    """A spectral filter c(λ) and the divided differences of c and of r = 1 - λc, as functions of (λ, *parameters)."""

    coefficient: Callable[..., Array]
    coefficient_difference: Callable[..., Array]
    residual_difference: Callable[..., Array]


class MatrixFunction(NamedTuple):
    """c(K), λc(K) or c(2 - λc)(K), selected by `form`, for the parameters of a path.

    If `floor` is given, null directions are dropped (see spectral_filters.drop_null_directions).
    """

    rule: FilterRule
    spectrum: Spectrum
    parameters: tuple[Any, ...]
    floor: Any = None
    form: str = "coefficient"


def spectrum_of(K: Float[Array, "n n"], eigh: Callable = jnp.linalg.eigh) -> tuple[Spectrum, Float[Array, " n"]]:
    """Eigendecomposition of K with negative eigenvalues set to zero, and the unmodified eigenvalues."""
    raw, U = eigh(jax.lax.stop_gradient(K))
    return Spectrum(jnp.maximum(raw, 0), U, K if isinstance(K, jax.core.Tracer) else None), raw


def apply_filter(function: Float[Array, "*t n"] | MatrixFunction, W: Float[Array, "n c"]) -> Float[Array, "*t n c"]:
    """diag(f(λ)) W for columns W = Uᵀv in the eigenbasis: f(K) v = U apply_filter(f, Uᵀv).

    Parameters
    ----------
    function : array of shape (..., n), or MatrixFunction
        f(λ), or f(K) with derivatives in K.
    W : array of shape (n, c)

    Returns
    -------
    array of shape (..., n, c)
    """
    if isinstance(function, MatrixFunction):
        rule, spectrum, parameters, floor, form = function
        return _apply_filter(rule, form, spectrum, parameters, floor, W)
    return function[..., None] * W


def filter_diagonal(
    eigenvectors: Float[Array, "n n"], function: Float[Array, "*t n"] | MatrixFunction
) -> Float[Array, "*t n"]:
    """f(K)_ii = Σ_k f(λ_k) U_ik²."""
    if isinstance(function, MatrixFunction):
        rule, spectrum, parameters, floor, form = function
        return _filter_diagonal(rule, form, spectrum, parameters, floor)
    return einsum("...n,in->...i", function, jnp.square(eigenvectors))


def learned_fraction(
    eigenvalues: Float[Array, " n"], coefficient: Float[Array, "*t n"] | MatrixFunction
) -> Float[Array, "*t n"] | MatrixFunction:
    """λc(λ) = 1 - r(λ): fraction of the labels that is learned."""
    if isinstance(coefficient, MatrixFunction):
        return coefficient._replace(form="learned")
    return eigenvalues * coefficient


def variance_reduction(
    eigenvalues: Float[Array, " n"], coefficient: Float[Array, "*t n"] | MatrixFunction
) -> Float[Array, "*t n"] | MatrixFunction:
    """c(2 - λc) = (1 - r²)/λ: what training removes from the initial covariance."""
    if isinstance(coefficient, MatrixFunction):
        return coefficient._replace(form="variance_reduction")
    return coefficient * (2 - eigenvalues * coefficient)


@jax.custom_jvp
def eigenvalues(spectrum: Spectrum) -> Float[Array, " n"]:
    """λ, with dλ_i = u_iᵀ dK u_i: correct for simple eigenvalues and for sums over repeated ones."""
    return spectrum.eigenvalues


@eigenvalues.defjvp
def _eigenvalues_jvp(primals: tuple[Spectrum], tangents: tuple[Spectrum]) -> tuple[Array, Array]:
    """dλ_i = u_iᵀ dK u_i, zero for clipped eigenvalues."""
    spectrum = _frozen_spectrum(primals[0])
    U, dK = spectrum.eigenvectors, tangents[0].K
    change = tangents[0].eigenvalues if dK is None else jnp.sum(U * dot(dK, U), 0)
    return spectrum.eigenvalues, jnp.where(spectrum.eigenvalues > 0, change, 0)


@jax.custom_jvp
def eigenvectors(spectrum: Spectrum) -> Float[Array, "n n"]:
    """U, for inspection; differentiating it raises ValueError."""
    return spectrum.eigenvectors


@eigenvectors.defjvp
def _eigenvectors_jvp(primals: Any, tangents: Any) -> Any:
    """Raise ValueError."""
    raise ValueError(
        "eigenvectors are not differentiable for repeated eigenvalues: use functions of K (ridge_path, flow, descent, "
        "leave_one_out, gcv, posterior), or call jnp.linalg.eigh directly"
    )


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _apply_filter(rule: FilterRule, form: str, spectrum: Spectrum, parameters: tuple, floor: Any, W: Array) -> Array:
    """`apply_filter` of a MatrixFunction."""
    return _value(rule, form, spectrum.eigenvalues, parameters, floor)[..., None] * W


@functools.partial(_apply_filter.defjvp, symbolic_zeros=True)
def _apply_filter_jvp(rule: FilterRule, form: str, primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Derivative in the parameters, in W and in K."""
    spectrum, parameters, floor, W = primals
    d_spectrum, d_parameters, _, dW = tangents
    spectrum = _frozen_spectrum(spectrum)
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
def _filter_diagonal(rule: FilterRule, form: str, spectrum: Spectrum, parameters: tuple, floor: Any) -> Array:
    """`filter_diagonal` of a MatrixFunction."""
    value = _value(rule, form, spectrum.eigenvalues, parameters, floor)
    return einsum("...n,in->...i", value, jnp.square(spectrum.eigenvectors))


@functools.partial(_filter_diagonal.defjvp, symbolic_zeros=True)
def _filter_diagonal_jvp(rule: FilterRule, form: str, primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Derivative in the parameters and in K."""
    spectrum, parameters, floor = primals
    spectrum = _frozen_spectrum(spectrum)
    U = spectrum.eigenvectors
    out = filter_diagonal(U, _value(rule, form, spectrum.eigenvalues, parameters, floor))
    change = _value_change(rule, form, spectrum, parameters, tangents[1], floor)
    tangent = jnp.zeros_like(out) if change is None else filter_diagonal(U, change)
    if not _zero(tangents[0].K):
        X = _matrix_change(rule, form, spectrum, tangents[0].K, parameters, floor)
        tangent = tangent + jnp.sum(dot(U, X) * U, -1)
    return out, tangent


def _value(rule: FilterRule, form: str, lam: Array, parameters: tuple, floor: Any) -> Array:
    """f(λ) of the given form, null directions dropped."""
    c = rule.coefficient(lam, *parameters)
    if floor is not None:
        c = jnp.where(_dropped(c, lam, floor), 0, c)
    return {"coefficient": c, "learned": lam * c, "variance_reduction": c * (2 - lam * c)}[form]


def _value_change(
    rule: FilterRule, form: str, spectrum: Spectrum, parameters: tuple, d_parameters: tuple, floor: Any
) -> Array | None:
    """Derivative of f(λ) along a change of the parameters; None if they do not change."""
    if all(_zero(d) for d in d_parameters):
        return None
    tangents = tuple(jnp.zeros_like(p) if _zero(d) else d for p, d in zip(parameters, d_parameters, strict=True))
    return jax.jvp(lambda *p: _value(rule, form, spectrum.eigenvalues, p, floor), parameters, tangents)[1]


def _matrix_change(rule: FilterRule, form: str, spectrum: Spectrum, dK: Array, parameters: tuple, floor: Any) -> Array:
    """F ∘ (Uᵀ dK U), of shape (*t, n, n)."""
    U = spectrum.eigenvectors
    return _difference(rule, form, spectrum.eigenvalues, parameters, floor) * dot(U.T, dot(dK, U))


def _difference(rule: FilterRule, form: str, lam: Array, parameters: tuple, floor: Any) -> Array:
    """f[λ_i, λ_j] from those of c and r by the product rule (uv)[λ, μ] = u(λ) v[λ, μ] + u[λ, μ] v(μ)."""
    c = rule.coefficient(lam, *parameters)
    if form == "learned":
        F = -rule.residual_difference(lam, *parameters)
    else:
        F = rule.coefficient_difference(lam, *parameters)
        if form == "variance_reduction":  # c(2 - λc) = 2c - (1 - r)c; for a flow both terms have one sign
            F = (2 - lam * c)[..., :, None] * F + rule.residual_difference(lam, *parameters) * c[..., None, :]
    if floor is None:
        return F
    # dropped directions count as λ = 0 with f = 0: derivative at constant rank
    kept = ~_dropped(c, lam, floor)
    ratio = jnp.where(kept, _value(rule, form, lam, parameters, floor) / jnp.where(lam > 0, lam, 1), 0)
    both = kept[..., :, None] & kept[..., None, :]
    one = kept[..., :, None] ^ kept[..., None, :]
    return jnp.where(both, F, jnp.where(one, ratio[..., :, None] + ratio[..., None, :], 0))


def _dropped(c: Array, lam: Array, floor: Any) -> Array:
    """Null directions: λ ≤ floor and c ≥ 1/floor."""
    return (lam <= floor) & (c * floor >= 1)


def _frozen_spectrum(spectrum: Spectrum) -> Spectrum:
    """λ and U inside a derivative rule: a second derivative in K, which would be incomplete, raises."""
    if spectrum.K is None:
        return spectrum
    return Spectrum(*forbid_derivative(spectrum.K, spectrum.eigenvalues, spectrum.eigenvectors), spectrum.K)


@jax.custom_jvp
def forbid_derivative(K: Array, lam: Array, U: Array) -> tuple[Array, Array]:
    """λ and U of K for use inside a derivative rule; differentiating them raises ValueError."""
    return lam, U


@forbid_derivative.defjvp
def _forbid_derivative_jvp(primals: Any, tangents: Any) -> Any:
    """Raise ValueError."""
    raise ValueError(
        "second derivatives of a function of K are not available: use finite differences of first derivatives, or "
        "`log_marginal_likelihood` or `solve`, which support them"
    )


def _zero(tangent: Any) -> bool:
    """Whether a tangent is a symbolic zero."""
    return tangent is None or isinstance(tangent, SymbolicZero)
