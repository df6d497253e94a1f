"""Gradient flow of a kernel model on any loss, optionally with momentum: an ordinary differential equation.

    f_t = f_0 + K α_t,   α' = -∂L/∂f (f_t, y),   or with friction γ   α'' = -γ α' - ∂L/∂f.

Heavy-ball steps θ ← θ - η∇L + m(θ - θ_before) follow the second equation with time √η per step and γ = (1 - m)/√η. For
squared error without friction, `decompose(kernel, X).flow` has the closed form. Lee et al. (2019), Su, Boyd and Candès
(2016).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core.arrays import Labels, Points, as_labels, float_type, n_points
from unlazy.core.linalg import dot
from unlazy.core.results import Evidence, FitDescription
from unlazy.kernels.base import Kernel
from unlazy.solvers.path import Path, Values

Loss = Callable[[Array, Array], Array]


def squared_error(f: Float[Array, " n *c"], y: Float[Array, " n *c"]) -> Float[Array, ""]:
    """Squared error, ½Σ(f - y)².

    Parameters
    ----------
    f : array of shape (n,) or (n, c)
        Predictions.
    y : array of the same shape
        Labels.

    Returns
    -------
    scalar array
        The loss, summed over points and outputs.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy.solvers import squared_error
    >>> float(squared_error(jnp.array([1.0, 2.0]), jnp.array([0.0, 4.0])))
    2.5
    """
    return 0.5 * jnp.sum((f - y) ** 2)


def cross_entropy(f: Float[Array, "n c"], y: Float[Array, "n c"]) -> Float[Array, ""]:
    """Cross-entropy, -Σ y log softmax f.

    Parameters
    ----------
    f : array of shape (n, c)
        Logits.
    y : array of shape (n, c)
        One-hot labels or probabilities.

    Returns
    -------
    scalar array
        The loss, summed over points.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy.solvers import cross_entropy
    >>> f, y = jnp.zeros((1, 2)), jnp.array([[1.0, 0.0]])
    >>> round(float(cross_entropy(f, y)), 4)
    0.6931
    """
    return -jnp.sum(y * jax.nn.log_softmax(f, axis=-1))


def flow(
    kernel: Kernel,
    X: Points,
    y: Labels,
    times: Values,
    loss: Loss = squared_error,
    *,
    f0: Labels | None = None,
    friction: float | None = None,
    tolerance: float = 1e-8,
) -> Path:
    """Gradient flow on loss(f, y) at every time, by numerical integration.

    Parameters
    ----------
    kernel : Kernel
        The kernel.
    X : array of shape (n, d)
        Training points.
    y : array of shape (n,) or (n, c)
        Labels.
    times : float or array
        Increasing, finite times, zero or more.
    loss : callable, default squared_error
        Maps predictions and labels to a scalar: a sum over the points.
    f0 : array of the shape of y, optional
        Values of the initial function at X; zero by default.
    friction : float, optional
        Friction γ of the second-order equation; by default the first-order equation is integrated.
    tolerance : float, default 1e-8
        Relative and absolute tolerance of the integrator.

    Returns
    -------
    Path

    Raises
    ------
    ValueError
        If `times` or `friction` is invalid, or if the integration fails.

    References
    ----------
    Lee et al. (2019), Wide neural networks of any depth evolve as linear models under gradient descent.
    Su, Boyd and Candès (2016), A differential equation for modeling Nesterov's accelerated gradient method.

    Examples
    --------
    >>> flow(kernel, X, one_hot, [1.0, 10.0], cross_entropy).predict(Z)      # (times, m, classes)
    """
    from scipy.integrate import solve_ivp

    X, _ = kernel.read(X)
    y = as_labels(y, n_points(X))
    t = np.atleast_1d(np.asarray(times, float))
    if t.ndim > 1 or not np.all(np.isfinite(t)) or np.any(t < 0) or np.any(np.diff(t) <= 0):
        raise ValueError(f"times must be finite, non-negative and increasing, got {times!r}")
    if friction is not None and not friction >= 0:
        raise ValueError(f"friction must be zero or more, got {friction!r}")
    K = np.asarray(kernel.gram(X), np.float64)
    start = (
        np.zeros(y.shape) if f0 is None else np.asarray(as_labels(f0, n_points(X), "f0"), np.float64).reshape(y.shape)
    )
    labeled = np.asarray(y, np.float64)
    with jax.enable_x64(True):
        slope = jax.jit(jax.grad(lambda f: loss(f, jnp.asarray(labeled))))

        def moved(_: float, state: np.ndarray) -> np.ndarray:
            alpha, *speed = state.reshape(-1, *y.shape)
            force = -np.asarray(slope(jnp.asarray(start + _product(K, alpha))))
            if friction is None:
                return force.ravel()
            return np.concatenate([speed[0].ravel(), (force - friction * speed[0]).ravel()])

        size = y.size * (1 if friction is None else 2)
        found = solve_ivp(moved, (0.0, float(t[-1])), np.zeros(size), "DOP853", t, rtol=tolerance, atol=tolerance)
    if not found.success:
        raise ValueError(f"the differential equation could not be integrated: {found.message}; use shorter times")
    alpha = found.y.T.reshape(len(t), -1, *y.shape)[:, 0]
    return _path(kernel, X, K, alpha, start, t, f0 is None, tolerance, found.nfev)


def _path(
    kernel: Kernel, X: Any, K: np.ndarray, alpha: np.ndarray, start: np.ndarray, t: np.ndarray, from_zero: bool,
    tolerance: float, steps: int,
) -> Path:  # fmt: skip
    """The `Path` of the integrated coefficients."""
    dtype = float_type(X)
    fitted = start + np.stack([_product(K, a) for a in alpha])
    description = FitDescription(solved="gradient flow on a loss, f' = -K ∂L/∂f", method="Runge-Kutta (DOP853)")
    evidence = Evidence(tolerance, tolerance, steps=steps, description=description)
    values = [jnp.asarray(v, dtype) for v in (alpha, fitted, t)]
    return Path(kernel, X, values[0], values[1], values[2], evidence, from_zero, start.shape[1:])


def _product(K: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """K α for any shape of one label."""
    return dot(K, alpha.reshape(len(K), -1)).reshape(alpha.shape)
