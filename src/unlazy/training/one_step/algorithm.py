"""Algorithm 1 [D4]: one gradient step on the first layer finds the directions, ridge regression of the readout fits.

(i) y ← y - α - β·x, α = mean y, β = mean y x;
(ii) W¹ = W⁰ - η1(∇_W L + λ1 W⁰) with λ1 = 1/η1, so W¹ = -η1 ∇_W L, from the symmetric start f_0 ≡ 0 [D3];
(iii) biases drawn anew, N(0, 1); (iv) ridge regression of the readout; predict α + β·x + aᵀσ(W¹x + b).

Damian, Lee and Soltanolkotabi, Neural networks can learn representations with gradient descent (COLT 2022). One
default differs from the paper: the step is scaled such that the rows of W¹ have root mean square norm 0.5, which needs
no unknown constant; `OneStepOptions(scale="sqrt_d")` is the paper's η1 = step_size·√d.
"""

from types import ModuleType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.arrays import Labels, Points, as_floats, as_points, dot, is_concrete, precision
from unlazy.core.errors import check_positive_integer
from unlazy.core.results import Evidence, closed_form_evidence
from unlazy.training.one_step.readout import ReadoutPath, array_module, ridge_path
from unlazy.training.one_step.readout import relative_ridges as usual_ridges
from unlazy.training.options import OneStepOptions, check_scale


class Features(eqx.Module):
    """Features x ↦ relu(Wx + b), and the linear part α + β·x that was subtracted from the labels.

    Attributes
    ----------
    W : array of shape (w, d)
        First-layer weights.
    b : array of shape (w,)
        Biases.
    alpha : scalar array
        Intercept of the linear part.
    beta : array of shape (d,)
        Slopes of the linear part.
    """

    W: Float[Array, "w d"]
    b: Float[Array, " w"]
    alpha: Float[Array, ""]
    beta: Float[Array, " d"]

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n w"]:
        """Evaluate the features at the rows of X."""
        return jax.nn.relu(dot(X, self.W.T) + self.b)

    def linear(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Evaluate the linear part α + β·x."""
        return self.alpha + dot(X, self.beta)


class OneStep(eqx.Module):
    """Fitted two-layer network of Algorithm 1.

    Attributes
    ----------
    features : Features
        First layer and linear part.
    readout : array of shape (w,)
        Readout weights a.
    ridge : scalar array
        The chosen ridge ρ.
    errors : array of shape (l,)
        Selection criterion for every ridge of the path.
    path : ReadoutPath
        Readouts for all ridges.
    evidence : Evidence
        Accuracy of the closed form.
    """

    features: Features
    readout: Float[Array, " w"]
    ridge: Float[Array, ""]
    """ρ of min (1/n)‖Φa - y‖² + ρ‖a‖²."""
    errors: Float[Array, " l"]
    """Selection criterion for every ridge of the path; the chosen ridge minimizes it."""
    path: ReadoutPath

    @property
    def evidence(self) -> Evidence:
        """Evidence: the readout has a closed form, exact to the rounding of its Gram matrix."""
        ends = is_concrete(self.errors) and int(jnp.nanargmin(self.errors)) in (0, len(self.errors) - 1)
        notes = ("the ridge is at an end of its path: extend relative_ridges",) if ends else ()
        solved = "Algorithm 1 [D4]: one step on the first layer, ridge regression of the readout"
        return closed_form_evidence(self.readout, self.readout.shape[-1], solved=solved, method="one_step", notes=notes)

    def predict(self, X: Points) -> Float[Array, " n"]:
        """Evaluate α + β·x + aᵀσ(W¹x + b).

        Parameters
        ----------
        X : array of shape (n, d)
            Points.

        Returns
        -------
        array of shape (n,)
            Predictions.
        """
        if not isinstance(X, jax.Array):
            with precision(self.readout.dtype.name):
                return self.predict(as_points(X, "X", self.readout.dtype))
        return self.features.linear(X) + dot(self.features(X), self.readout)


def symmetric_start(key: PRNGKeyArray, width: int, d: int) -> tuple[Float[Array, "w d"], Float[Array, " w"]]:
    """Draw W⁰ with rows N(0, I/d) and readout weights ±1 in pairs a_j = -a_{j+w/2}, w_j = w_{j+w/2}: f_0 ≡ 0 [D3]."""
    if check_positive_integer("width", width) % 2:
        raise ValueError(f"width must be even for the symmetric start, got {width}; use {width + 1}")
    key_w, key_a = jax.random.split(key)
    W = jax.random.normal(key_w, (width // 2, d)) / jnp.sqrt(d)
    a = jax.random.rademacher(key_a, (width // 2,), W.dtype)
    return jnp.concatenate([W, W]), jnp.concatenate([a, -a])


def remove_linear_part(
    X: Float[Array, "n d"], y: Float[Array, " n"], weights: Float[Array, " n"] | None = None
) -> tuple[Float[Array, ""], Float[Array, " d"], Float[Array, " n"]]:
    """Return α = mean y, β = mean y x and y - α - β·x [D4]; rows of weight zero are ignored and return zero."""
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
    """Return ∇_{w_j} of mean (f - y)² at f_0 ≡ 0: -2 a_j mean_i y_i x_i 1{w_j·x_i + b_j > 0} [D5]."""
    active = (dot(X, W.T) + (0 if biases is None else biases) > 0).astype(X.dtype)
    return -2 * heads[:, None] * dot(active.T, (_shares(y, weights) * y)[:, None] * X)


def first_step(gradient: Float[Array, "w d"], *, step_size: float = 0.5, scale: str = "rms") -> Float[Array, "w d"]:
    """Return W¹ = -η1 ∇_W L [D4], η1 = step_size/rms of the gradient's row norms or step_size·√d (`scale="sqrt_d"`)."""
    check_scale(scale)
    if scale == "sqrt_d":
        return -step_size * jnp.sqrt(gradient.shape[1]) * gradient
    rms = jnp.sqrt(jnp.mean(jnp.sum(gradient**2, 1)))
    return -gradient * jnp.where(rms > 0, step_size / jnp.where(rms > 0, rms, 1), 0)


def learn_features(
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    *,
    width: int = 512,
    step_size: float = 0.5,
    scale: str = "rms",
    weights: Float[Array, " n"] | None = None,
    biased_step: bool = False,
    key: PRNGKeyArray,
) -> Features:
    """Run stages (i) to (iii) of Algorithm 1 [D4]: everything except the readout."""
    key_start, key_bias = jax.random.split(key)
    W0, a0 = symmetric_start(key_start, width, X.shape[1])
    W0, a0 = W0.astype(X.dtype), a0.astype(X.dtype)
    alpha, beta, residual = remove_linear_part(X, y, weights)
    half = width // 2  # the second half of the gradient is minus the first
    b = jax.random.normal(key_bias, (half if biased_step else width,), X.dtype)
    G = first_gradient(W0[:half], a0[:half], X, residual, weights, b if biased_step else None)
    W1 = first_step(jnp.concatenate([G, -G]), step_size=step_size, scale=scale)
    return Features(W1, jnp.concatenate([b, b]) if biased_step else b, alpha, beta)


def one_step(
    X: Points,
    y: Labels,
    *,
    validation: tuple[Points, Labels] | None = None,
    choose: str = "validation",
    width: int = 512,
    step_size: float = 0.5,
    weights: Float[Array, " n"] | None = None,
    options: OneStepOptions | None = None,
    key: PRNGKeyArray,
) -> OneStep:
    """Train a two-layer ReLU network by Algorithm 1 [D4]: one gradient step, then ridge regression of the readout.

    Parameters
    ----------
    X : array of shape (n, d)
        Training points.
    y : array of shape (n,)
        Labels.
    validation : (array of shape (m, d), array of shape (m,)), optional
        Independent points and labels that select the ridge.
    choose : {"validation", "leave-one-out", "gcv"}, default "validation"
        How the ridge is selected: by the error on `validation`; by leave-one-out, which is as good as validation for n
        ≳ d³ but optimistic for noisy n ≲ d², since the features depend on the labels; by generalized cross-validation,
        which can select an interpolant and is provided for comparison.
    width : int, default 512
        Number of neurons, even.
    step_size : float, default 0.5
        Root mean square norm of the rows of W¹, or the units of `options.scale`.
    weights : array of shape (n,), optional
        Rows of weight zero are padding.
    options : OneStepOptions, optional
        Units of the step, order of step and biases, path of ridges.
    key : PRNG key
        Draws initial weights and biases.

    Returns
    -------
    OneStep
        The trained network.

    Raises
    ------
    ValueError
        If `validation` is missing, `choose` is unknown, the width is odd, or shapes do not match.

    References
    ----------
    Damian, Lee and Soltanolkotabi (COLT 2022), Neural networks can learn representations with gradient descent.

    Examples
    --------
    >>> import jax
    >>> from unlazy import one_step
    >>> X = jax.random.normal(jax.random.key(0), (60, 3))
    >>> one_step(X, X[:, 0], width=64, choose="leave-one-out", key=jax.random.key(1)).predict(X[:5]).shape
    (5,)
    """
    X, y = _sample(X, y, "X", "y")
    if validation is not None:
        validation = _sample(*validation, "validation X", "validation y")
    options = options or OneStepOptions()
    features = learn_features(
        X, y, width=width, step_size=step_size, scale=options.scale, weights=weights, biased_step=options.biased_step,
        key=key,
    )  # fmt: skip
    ridges = None if options.relative_ridges is None else jnp.asarray(options.relative_ridges)
    return fit_readout(features, X, y, validation=validation, choose=choose, relative_ridges=ridges, weights=weights)


def fit_readout(
    features: Features,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    *,
    validation: tuple[Float[Array, "m d"], Float[Array, " m"]] | None = None,
    choose: str = "validation",
    relative_ridges: Float[Array, " l"] | None = None,
    weights: Float[Array, " n"] | None = None,
) -> OneStep:
    """Run stage (iv) [D4]: ridge regression of y - α - β·x on the features for all ridges, one of which is selected.

    With other data of the same directions this is transfer learning [D8]: see `without_linear_part`.
    """
    relative = usual_ridges() if relative_ridges is None else relative_ridges
    xp = array_module(X, y, features.W, relative, weights)
    Phi, rest = _prepared(xp, features, X, y)
    path = ridge_path(Phi, rest, relative, weights, errors=choose != "validation")
    if choose == "validation":
        if validation is None:
            raise ValueError('choose="validation" needs validation=(X, y), independent points; or use "leave-one-out"')
        Psi, truth = _prepared(xp, features, *validation)
        errors = jnp.asarray(xp.mean((dot(xp.asarray(path.readouts), Psi.T) - truth) ** 2, 1))
    elif choose in ("leave-one-out", "gcv"):
        found = path.leave_one_out if choose == "leave-one-out" else path.gcv
        assert found is not None
        errors = found
    else:
        raise ValueError(f"choose must be 'validation', 'leave-one-out' or 'gcv', got {choose!r}")
    readout, ridge = path.best(errors)
    return OneStep(features, readout, ridge, errors, path)


def _prepared(xp: ModuleType, features: Features, X: Any, y: Any) -> tuple[Any, Any]:
    """Return σ(Wx + b) and y - α - β·x; on the host without temporary copies."""
    if xp is jnp:
        return features(X), y - features.linear(X)
    host = [np.asarray(part) for part in (features.W, features.b, features.alpha, features.beta, X, y)]
    W, b, alpha, beta, rows, labels = host
    Phi = dot(rows, W.T)
    Phi += b
    return np.maximum(Phi, 0, out=Phi), labels - alpha - dot(rows, beta)


def _sample(X: Points, y: Labels, what: str, of: str) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
    """Validate points and labels."""
    X, y = as_points(X, what), as_floats(y, of)
    if y.shape != X.shape[:1]:
        raise ValueError(f"{of} must have one number for each of the {X.shape[0]} rows of {what}, got shape {y.shape}")
    return X, y


def without_linear_part(features: Features) -> Features:
    """Return the same features without the linear part of the old task, for a readout on another task [D8]."""
    return Features(features.W, features.b, jnp.zeros_like(features.alpha), jnp.zeros_like(features.beta))


def random_features(key: PRNGKeyArray, width: int, d: int) -> Features:
    """Draw the untrained network: w ~ N(0, I/d), b ~ N(0, 1), no linear part. The baseline of [D9]."""
    key_w, key_b = jax.random.split(key)
    W = jax.random.normal(key_w, (width, d)) / jnp.sqrt(d)
    return Features(W, jax.random.normal(key_b, (width,)), jnp.zeros(()), jnp.zeros(d))


def _shares(y: jax.Array, weights: jax.Array | None) -> jax.Array:
    """Return 1/n for rows of positive weight, zero for padding."""
    if weights is None:
        return jnp.full(y.shape, 1 / y.shape[0], y.dtype)
    keep = (weights > 0).astype(y.dtype)
    return keep / keep.sum()
