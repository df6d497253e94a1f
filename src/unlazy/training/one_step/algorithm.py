"""Algorithm 1 [D4]: one gradient step on the first layer finds the directions, ridge on the head learns the function.

(i) y ← y - α - β·x, α = mean y, β = mean y x;
(ii) W¹ = W⁰ - η1(∇_W L + λ1 W⁰) with λ1 = 1/η1, so W¹ = -η1 ∇_W L, from the symmetric start f_0 ≡ 0 [D3];
(iii) biases drawn anew, N(0, 1); (iv) ridge regression on the head; predict α + β·x + aᵀσ(W¹x + b).

Damian, Lee and Soltanolkotabi, Neural networks can learn representations with gradient descent (COLT 2022). One
departure, on by default: the step is scaled so that the rows of W¹ have root mean square 0.5, which needs no unknown
constant; `scale="sqrt_d"` is the paper's η1 = step·√d.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.arrays import Labels, Points, concrete, floats, points
from unlazy.core.errors import check_positive_integer
from unlazy.core.linalg import dot
from unlazy.core.precision import precision
from unlazy.core.results import Evidence, closed_form
from unlazy.training.one_step.readout import HeadPath, library, ridge_path
from unlazy.training.one_step.readout import relative_ridges as usual_ridges


class Features(eqx.Module):
    """x ↦ σ(Wx + b), and the linear part α + β·x that was taken off the labels."""

    W: Float[Array, "w d"]
    b: Float[Array, " w"]
    alpha: Float[Array, ""]
    beta: Float[Array, " d"]

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n w"]:
        return jax.nn.relu(dot(X, self.W.T) + self.b)

    def linear(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        return self.alpha + dot(X, self.beta)


class OneStep(eqx.Module):
    """A fitted network: features, head, and how its ridge was found."""

    features: Features
    head: Float[Array, " w"]
    ridge: Float[Array, ""]
    """ρ of min (1/n)‖Φa - y‖² + ρ‖a‖²."""
    errors: Float[Array, " l"]
    """The criterion at every ridge of the path; the chosen one is its minimum."""
    path: HeadPath

    @property
    def evidence(self) -> Evidence:
        """The head is a closed form: exact to the rounding of its Gram matrix."""
        ends = concrete(self.errors) and int(jnp.nanargmin(self.errors)) in (0, len(self.errors) - 1)
        notes = ("the ridge stands at an end of its path: relative_ridges could reach further",) if ends else ()
        solved = "Algorithm 1 [D4]: one step on the first layer, ridge regression on the head"
        return closed_form(self.head, self.head.shape[-1], solved=solved, method="one_step", notes=notes)

    def predict(self, X: Points) -> Float[Array, " n"]:
        """α + β·x + aᵀσ(W¹x + b)."""
        if not isinstance(X, jax.Array):
            with precision(self.head.dtype.name):
                return self.predict(points(X, "X", self.head.dtype))
        return self.features.linear(X) + dot(self.features(X), self.head)


def symmetric_start(key: PRNGKeyArray, width: int, d: int) -> tuple[Float[Array, "w d"], Float[Array, " w"]]:
    """W⁰ with rows N(0, I/d) and heads ±1 in pairs a_j = -a_{j+w/2}, w_j = w_{j+w/2}: f_0 ≡ 0 [D3]."""
    if check_positive_integer("width", width) % 2:
        raise ValueError(f"width must be even for the symmetric start, got {width}; take {width + 1}")
    key_w, key_a = jax.random.split(key)
    W = jax.random.normal(key_w, (width // 2, d)) / jnp.sqrt(d)
    a = jax.random.rademacher(key_a, (width // 2,), W.dtype)
    return jnp.concatenate([W, W]), jnp.concatenate([a, -a])


def remove_linear_part(
    X: Float[Array, "n d"], y: Float[Array, " n"], weights: Float[Array, " n"] | None = None
) -> tuple[Float[Array, ""], Float[Array, " d"], Float[Array, " n"]]:
    """α = mean y, β = mean y x and y - α - β·x [D4]; rows of weight zero stay out and come back as zero."""
    share = _shares(y, weights)
    alpha, beta = dot(share, y), dot(share * y, X)
    return alpha, beta, jnp.where(share > 0, y - alpha - dot(X, beta), 0)


def first_gradient(
    W: Float[Array, "w d"],
    heads: Float[Array, " w"],
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    weights: Float[Array, " n"] | None = None,
    biases: Float[Array, " w"] | None = None,
) -> Float[Array, "w d"]:
    """∇_{w_j} of mean (f - y)² at f_0 ≡ 0: -2 a_j mean_i y_i x_i 1{w_j·x_i + b_j > 0} [D5]."""
    active = (dot(X, W.T) + (0 if biases is None else biases) > 0).astype(X.dtype)
    return -2 * heads[:, None] * dot(active.T, (_shares(y, weights) * y)[:, None] * X)


def first_step(gradient: Float[Array, "w d"], *, step: float = 0.5, scale: str = "rms") -> Float[Array, "w d"]:
    """W¹ = -η1 ∇_W L [D4]: η1 = step/rms of the gradient's row norms, or η1 = step·√d (`scale="sqrt_d"`)."""
    if scale == "sqrt_d":
        return -step * jnp.sqrt(gradient.shape[1]) * gradient
    if scale != "rms":
        raise ValueError(f"scale must be 'rms' or 'sqrt_d', got {scale!r}")
    rms = jnp.sqrt(jnp.mean(jnp.sum(gradient**2, 1)))
    return -gradient * jnp.where(rms > 0, step / jnp.where(rms > 0, rms, 1), 0)


def learn_features(
    key: PRNGKeyArray,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    *,
    width: int = 512,
    step: float = 0.5,
    scale: str = "rms",
    weights: Float[Array, " n"] | None = None,
    biased_step: bool = False,
) -> Features:
    """Stages (i) to (iii) of Algorithm 1 [D4]: everything but the head.

    `biased_step` draws the biases before the gradient step and keeps them, as the authors' script does; the paper's
    Algorithm 1 steps at b = 0 and draws them afterward.
    """
    key_start, key_bias = jax.random.split(key)
    W0, a0 = symmetric_start(key_start, width, X.shape[1])
    W0, a0 = W0.astype(X.dtype), a0.astype(X.dtype)
    alpha, beta, residual = remove_linear_part(X, y, weights)
    half = width // 2  # the second half of the gradient is minus the first
    b = jax.random.normal(key_bias, (half if biased_step else width,), X.dtype)
    G = first_gradient(W0[:half], a0[:half], X, residual, weights, b if biased_step else None)
    W1 = first_step(jnp.concatenate([G, -G]), step=step, scale=scale)
    return Features(W1, jnp.concatenate([b, b]) if biased_step else b, alpha, beta)


def one_step(
    key: PRNGKeyArray,
    X: Points,
    y: Labels,
    *,
    validation: tuple[Points, Labels] | None = None,
    choose: str = "validation",
    relative_ridges: Float[Array, " l"] | None = None,
    width: int = 512,
    step: float = 0.5,
    scale: str = "rms",
    weights: Float[Array, " n"] | None = None,
    biased_step: bool = False,
) -> OneStep:
    """Train a two-layer network by Algorithm 1 [D4], its head by ridge regression in closed form.

    `relative_ridges` are in units of the mean of ‖φ(x)‖² (31 from 1e-12 to 1e3). `choose` picks one: by error on
    `validation` = (X, y); by "leave-one-out", as good as validation for n ≳ d³ but too hopeful with noisy n ≲ d², since
    the features have seen the labels; by "gcv", which can pick an interpolant and is offered for comparison.

    >>> one_step(key, X, y, width=64, choose="leave-one-out").predict(Z).shape
    (5,)
    """
    X, y = _sample(X, y, "X", "y")
    if validation is not None:
        validation = _sample(*validation, "validation X", "validation y")
    features = learn_features(key, X, y, width=width, step=step, scale=scale, weights=weights, biased_step=biased_step)
    return fit_head(
        features, X, y, validation=validation, choose=choose, relative_ridges=relative_ridges, weights=weights
    )


def fit_head(
    features: Features,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    *,
    validation: tuple[Float[Array, "m d"], Float[Array, " m"]] | None = None,
    choose: str = "validation",
    relative_ridges: Float[Array, " l"] | None = None,
    weights: Float[Array, " n"] | None = None,
) -> OneStep:
    """Stage (iv) [D4]: ridge regression of y - α - β·x on the features, for all ridges, one of them chosen.

    With other data of the same directions this is transfer [D8]: see `transferred`.
    """
    relative = usual_ridges() if relative_ridges is None else relative_ridges
    xp = library(X, y, features.W, relative, weights)
    Phi, rest = _prepared(xp, features, X, y)
    path = ridge_path(Phi, rest, relative, weights, errors=choose != "validation")
    if choose == "validation":
        if validation is None:
            raise ValueError('choose="validation" needs validation=(X, y): fresh points; or choose "leave-one-out"')
        Psi, truth = _prepared(xp, features, *validation)
        errors = jnp.asarray(xp.mean((dot(xp.asarray(path.heads), Psi.T) - truth) ** 2, 1))
    elif choose in ("leave-one-out", "gcv"):
        found = path.leave_one_out if choose == "leave-one-out" else path.gcv
        assert found is not None
        errors = found
    else:
        raise ValueError(f"choose must be 'validation', 'leave-one-out' or 'gcv', got {choose!r}")
    head, ridge = path.best(errors)
    return OneStep(features, head, ridge, errors, path)


def _prepared(xp: Any, features: Features, X: Any, y: Any) -> tuple[Any, Any]:
    """σ(Wx + b) and y - α - β·x; on the host without temporary copies."""
    if xp is jnp:
        return features(X), y - features.linear(X)
    host = [np.asarray(part) for part in (features.W, features.b, features.alpha, features.beta, X, y)]
    W, b, alpha, beta, rows, labels = host
    Phi = dot(rows, W.T)
    Phi += b
    return np.maximum(Phi, 0, out=Phi), labels - alpha - dot(rows, beta)


def _sample(X: Points, y: Labels, what: str, of: str) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
    X, y = points(X, what), floats(y, of)
    if y.shape != X.shape[:1]:
        raise ValueError(f"{of} must hold one number for each of the {X.shape[0]} rows of {what}, got shape {y.shape}")
    return X, y


def transferred(features: Features) -> Features:
    """The same features with the old task's linear part forgotten, for a head on another task [D8]."""
    return Features(features.W, features.b, jnp.zeros_like(features.alpha), jnp.zeros_like(features.beta))


def random_features(key: PRNGKeyArray, width: int, d: int) -> Features:
    """The untrained network: w ~ N(0, I/d), b ~ N(0, 1), nothing taken off the labels. The baseline of [D9]."""
    key_w, key_b = jax.random.split(key)
    W = jax.random.normal(key_w, (width, d)) / jnp.sqrt(d)
    return Features(W, jax.random.normal(key_b, (width,)), jnp.zeros(()), jnp.zeros(d))


def _shares(y: jax.Array, weights: jax.Array | None) -> jax.Array:
    """1/n for the rows that count, zero for padding."""
    if weights is None:
        return jnp.full(y.shape, 1 / y.shape[0], y.dtype)
    keep = (weights > 0).astype(y.dtype)
    return keep / keep.sum()
