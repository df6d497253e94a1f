"""Gradient flow of a kernel model on any loss, optionally with momentum: an ordinary differential equation.

    f_t = f_0 + K α_t,   α' = -∂ℓ/∂f (f_t, y),   or with friction γ   α'' = -γ α' - ∂ℓ/∂f,

for the loss ℓ of every point. Heavy-ball steps θ ← θ - η∇Σℓ + m(θ - θ_before) follow the second equation with time √η
per step and γ = (1 - m)/√η. For squared error without friction, `decompose(kernel, X).flow` has the closed form. Lee et
al. (2019), Su, Boyd and Candès (2016).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unlazy.core.arrays import Labels, Points, as_labels, dot, float_type, n_points
from unlazy.core.results import Evidence, FitDescription
from unlazy.kernels.base import Kernel
from unlazy.solvers.path import Path, Values
from unlazy.theory.dynamics.losses import Loss, resolve_loss


def flow(
    kernel: Kernel,
    X: Points,
    y: Labels,
    times: Values,
    loss: str | Loss = "squared",
    *,
    f0: Labels | None = None,
    friction: float | None = None,
    tolerance: float = 1e-8,
) -> Path:
    """Gradient flow on the sum of the losses of all points, by numerical integration.

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
    loss : {"squared", "hinge", "logistic", "cross_entropy"} or Loss, default "squared"
        Loss ℓ of every point; the squared loss is ½|f - y|².
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
    >>> import numpy as np
    >>> from unlazy import Gaussian
    >>> from unlazy.solvers import flow
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> one_hot = np.eye(2)[(X[:, 0] > 0).astype(int)]
    >>> flow(Gaussian(1.0), X, one_hot, [1.0, 10.0], "cross_entropy").predict(X[:5]).shape  # (times, m, classes)
    (2, 5, 2)
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
        slope = jax.jit(jax.grad(lambda f: jnp.sum(resolve_loss(loss).per_point(f, jnp.asarray(labeled)))))

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
    description = FitDescription(solved="gradient flow on a loss, f' = -K ∂ℓ/∂f", method="Runge-Kutta (DOP853)")
    evidence = Evidence(tolerance, tolerance, steps=steps, description=description)
    values = [jnp.asarray(v, dtype) for v in (alpha, fitted, t)]
    return Path(kernel, X, values[0], values[1], values[2], evidence, from_zero, start.shape[1:])


def _product(K: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """K α for any shape of one label."""
    return dot(K, alpha.reshape(len(K), -1)).reshape(alpha.shape)
