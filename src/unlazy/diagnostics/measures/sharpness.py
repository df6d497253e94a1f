"""Sharpness: the largest eigenvalue of the Hessian of the loss, by Lanczos [W5]."""

from typing import NamedTuple

import numpy as np

from unlazy.models.protocol import Inputs, Loss, Model, Params

MAX_STEPS, TOLERANCE = 40, 0.01


class Sharpness(NamedTuple):
    """The largest eigenvalue found.

    Attributes
    ----------
    value : float
        A Ritz value: at most the largest eigenvalue, up to rounding.
    error : float
        An eigenvalue lies within this distance of it.
    products : int
        Number of Hessian-vector products.
    """

    value: float
    error: float
    products: int


def sharpness(
    model: Model,
    inputs: Inputs,
    targets: Inputs,
    loss: Loss,
    *,
    params: Params | None = None,
    tolerance: float = TOLERANCE,
    max_steps: int = MAX_STEPS,
    seed: int = 0,
) -> Sharpness:
    """λ_max of the Hessian of loss(f(θ, inputs), targets) in θ [W5].

    Lanczos from a random vector, by its three-term recurrence: only three vectors are kept. Lost orthogonality repeats
    eigenvalues, which leaves the largest one right. Full-batch descent with step η settles at ηλ = 2 (Cohen et al.
    2021).

    Parameters
    ----------
    model : Model
        The network.
    inputs, targets : array
        Points of the loss.
    loss : callable
        Mean loss of native outputs and targets.
    params : pytree, optional
        Parameters; those of the model by default.
    tolerance : float, default 0.01
        Relative error at which the iteration stops.
    max_steps : int, default 40
        Largest number of Hessian-vector products.
    seed : int, default 0
        Of the first vector.

    Returns
    -------
    Sharpness
    """
    params = model.params if params is None else params
    vector = model.random_direction(params, seed)
    vector = _scaled(model, vector, 1 / np.sqrt(model.inner(vector, vector)))
    previous, diagonal, side = None, [], []
    for step in range(max_steps):
        image = model.hvp(params, vector, inputs, targets, loss)
        diagonal.append(model.inner(vector, image))
        image = model.add_scaled(image, -diagonal[-1], vector)
        if previous is not None:
            image = model.add_scaled(image, -side[-1], previous)
        side.append(float(np.sqrt(model.inner(image, image))))
        value, error = _largest(diagonal, side)
        if not np.isfinite(value) or error <= tolerance * abs(value) or step + 1 == max_steps:
            return Sharpness(value, error, step + 1)
        previous, vector = vector, _scaled(model, image, 1 / side[-1])
    raise ValueError(f"max_steps must be a positive integer, got {max_steps!r}")


def _scaled(model: Model, vector: Params, factor: float) -> Params:
    return model.add_scaled(vector, factor - 1, vector)


def _largest(diagonal: list[float], side: list[float]) -> tuple[float, float]:
    """Largest Ritz value, and the norm of its residual."""
    if not np.all(np.isfinite([*diagonal, *side])):
        return float("nan"), float("nan")
    T = np.diag(diagonal) + np.diag(side[:-1], 1) + np.diag(side[:-1], -1)
    values, vectors = np.linalg.eigh(T)
    return float(values[-1]), float(side[-1] * abs(vectors[-1, -1]))
