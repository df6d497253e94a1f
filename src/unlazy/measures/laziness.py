"""Laziness of a trained function: linearity of its change and movement of its tangent kernel [K9, K10].

    linear     1 - ‖f_1 - f_0 - J_0 (θ_1 - θ_0)‖²/‖f_1 - f_0‖²,
    movement   ‖Θ_1 - Θ_0‖/‖Θ_0‖, per layer and of all layers whose parameters moved,
    explained  share of f_1 - f_0 at held-out points that kernel regression with Θ_0, or with Θ_1, predicts.

Chizat, Oyallon and Bach (2019); Fort et al. (2020).
"""

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from unlazy.core.arrays import Points, as_points, dot, is_concrete, n_points
from unlazy.core.pytrees import parameter_layers
from unlazy.measures.tangent_drift import relative_change
from unlazy.theory.finite_width.empirical_ntk import jacobian_kernels, trainable_function, validate_function

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINEAR_THRESHOLD, MOVEMENT_THRESHOLD = 0.9, 0.3
"""A function is called lazy if at least LINEAR_THRESHOLD of its change is linear in the parameters and its tangent
kernel moved by at most MOVEMENT_THRESHOLD, relative to its norm.
"""
FOLDS = 4
"""Number of cross-validation folds."""
RELATIVE_RIDGE = 1e-6
"""Ridge of the regressions, relative to the mean of the diagonal of K; at least 1,000 units of rounding."""


class Laziness(eqx.Module):
    """Result of `laziness`; `print` shows a summary and one line per layer.

    Attributes
    ----------
    linear : scalar array
        Share of the change of the function that its linearization at the start reproduces with the same parameters;
        1 is exactly linear.
    movement : scalar array
        Relative change ‖Θ_1 - Θ_0‖/‖Θ_0‖ of the tangent kernel of those layers whose parameters moved; 0 is lazy.
    explained_at_start, explained_at_end : scalar array
        Share of the change at held-out points that kernel regression with the initial, or the final, tangent kernel
        predicts.
    layers : tuple of LayerMovement
        The same movements per layer.
    """

    linear: Float[Array, ""]
    movement: Float[Array, ""]
    explained_at_start: Float[Array, ""]
    explained_at_end: Float[Array, ""]
    layers: tuple["LayerMovement", ...]

    @property
    def verdict(self) -> str:
        """One of "lazy", "learns features" and "intermediate".

        Lazy: `linear` ≥ 0.9 and `movement` ≤ 0.3. Learns features: `linear` < 0.9 and `movement` > 0.3. Intermediate:
        all other cases.
        """
        if self.linear >= LINEAR_THRESHOLD and self.movement <= MOVEMENT_THRESHOLD:
            return "lazy"
        if self.linear < LINEAR_THRESHOLD and self.movement > MOVEMENT_THRESHOLD:
            return "learns features"
        return "intermediate"

    def __str__(self) -> str:
        rows = "\n".join(
            f"  layer {i}: kernel moved by {layer.movement:.2f}, parameters by {layer.parameters:.2f}, "
            f"share of the kernel {layer.share_at_start:.2f} → {layer.share_at_end:.2f}"
            for i, layer in enumerate(self.layers)
        )
        return (
            f"{self.verdict}: {self.linear:.0%} of the change is linear, the tangent kernel moved by "
            f"{self.movement:.2f}; the initial kernel explains {self.explained_at_start:.0%} of the change at held-out "
            f"points, the final kernel {self.explained_at_end:.0%}\n{rows}"
        )

    def figure(self) -> "Figure":
        """Bar charts of the explained shares and of the movement of each layer's kernel.

        Returns
        -------
        matplotlib.figure.Figure
        """
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 3), layout="constrained")
        left, right = figure.subplots(1, 2)
        values = {"linearization": self.linear, "initial kernel": self.explained_at_start,
                  "final kernel": self.explained_at_end}  # fmt: skip
        left.bar(list(values), [max(float(v), 0) for v in values.values()])
        left.set(title=f"explained share: {self.verdict}", ylim=(0, 1))
        right.bar([str(i) for i in range(len(self.layers))], [float(layer.movement) for layer in self.layers])
        right.set(title="movement of each layer's kernel", xlabel="layer")
        return figure


class LayerMovement(NamedTuple):
    """Movements of one layer, that is of one top-level entry with parameters.

    Attributes
    ----------
    movement : scalar array
        Relative change of the layer's tangent kernel.
    parameters : scalar array
        Relative change of the layer's parameters.
    share_at_start, share_at_end : scalar array
        Share of the layer in the trace of the tangent kernel.
    """

    movement: Array
    parameters: Array
    share_at_start: Array
    share_at_end: Array


def laziness(
    apply: Callable[[PyTree, Array], Array], before: PyTree, after: PyTree, X: Points, *, rates: PyTree = 1.0
) -> Laziness:  # fmt: skip
    """Measure whether training stayed in the lazy (linearized) regime or learned features [K9, K10].

    Compares any differentiable function of (parameters, inputs) before and after training: is its change linear in the
    parameters, and did its tangent kernel move?

    Parameters
    ----------
    apply : callable
        Function f(params, X) with one row of outputs per point, such as an `unlazy.Network` or a Flax module's `apply`.
    before, after : pytree
        Parameters before and after training.
    X : array of shape (n, ...), or a pytree of such arrays
        Points at which the function is compared, at least 8.
    rates : float or pytree, default 1.0
        Learning rate of each layer, if training used layer-wise rates; they weight the tangent kernel.

    Returns
    -------
    Laziness
        The measures, per layer and in total, with a `verdict`.

    Raises
    ------
    ValueError
        If the function did not change at these points, if parameters before and after have different shapes, or if
        there are fewer than 8 points.

    References
    ----------
    Chizat, Oyallon and Bach (2019), On lazy training in differentiable programming.
    Fort et al. (2020), Deep learning versus kernel learning.

    Examples
    --------
    >>> import jax.numpy as jnp, numpy as np
    >>> from unlazy.measures.laziness import laziness
    >>> X = np.random.default_rng(0).normal(size=(24, 3))
    >>> laziness(lambda w, X: X @ w, jnp.ones(3), jnp.array([3.0, -1.0, 0.5]), X).verdict
    'lazy'
    """
    X = as_points(X, input_kind="tree")
    f, start = trainable_function(apply, before)
    end = trainable_function(apply, after)[1]
    shapes = [jax.tree.map(jnp.shape, part) for part in (start, end)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"before and after must have the same structure and shapes, got {shapes[0]} before and {shapes[1]} after"
        )
    validate_function(apply, before, X)
    move = jax.tree.map(jnp.subtract, end, start)
    _, slope = jax.jvp(lambda theta: f(theta, X), (start,), (move,))
    change = f(end, X) - f(start, X)  # not the value from jvp, which may round differently
    size = jnp.sum(change**2)
    if is_concrete(size) and not float(size) > 0:
        raise ValueError("the function did not change at these points: pass parameters from before and after training")
    kernels = [jacobian_kernels(apply, params, X, None, rates, "trace") for params in (before, after)]
    layers = _layers(kernels, parameter_layers(start), parameter_layers(move))
    # layers that were not trained have no part in the change, whatever the others do to their kernels
    trained = [layer.parameters > 0 for layer in layers]
    whole = [reduce(jnp.add, [jnp.where(t, K, 0) for t, K in zip(trained, each)]) for each in kernels]
    explained = [explained_share(K, change.reshape(n_points(X), -1)) for K in whole]
    return Laziness(
        linear=1 - jnp.sum((change - slope) ** 2) / size,
        movement=relative_change(*whole),
        explained_at_start=explained[0],
        explained_at_end=explained[1],
        layers=layers,
    )


def _layers(kernels: list, start: list, move: list) -> tuple["LayerMovement", ...]:
    """Movement of each layer, from the kernels before and after and the parameters."""
    traces = [[jnp.trace(K) for K in each] for each in kernels]
    found = []
    for i, (one, two) in enumerate(zip(*kernels)):
        moved, size = (jnp.sqrt(sum(jnp.sum(v**2) for v in jax.tree.leaves(tree[i]))) for tree in (move, start))
        shares = [each[i] / sum(each) for each in traces]
        found.append(LayerMovement(relative_change(one, two), jnp.where(moved > 0, moved / size, 0), *shares))
    return tuple(found)


def explained_share(K: Float[Array, "n n"], values: Float[Array, "n c"]) -> Float[Array, ""]:
    """Share of the values that kernel regression predicts at held-out points.

    1 - mean squared error/mean square over interleaved cross-validation folds.

    Parameters
    ----------
    K : array of shape (n, n)
        Gram matrix.
    values : array of shape (n, c)
        Function values to predict.

    Returns
    -------
    scalar array

    Raises
    ------
    ValueError
        If there are fewer than two points per fold.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy import Gaussian
    >>> from unlazy.measures import explained_share
    >>> X = jnp.linspace(-1, 1, 32)[:, None]
    >>> bool(explained_share(Gaussian(1.0).gram(X), jnp.sin(X)) > 0.99)
    True
    """
    n = K.shape[0]
    if n < 2 * FOLDS:
        raise ValueError(f"{n} points are too few for cross-validation: pass at least {2 * FOLDS}")
    K, values = jnp.asarray(K), jnp.asarray(values)
    jitter = max(RELATIVE_RIDGE, 1e3 * float(jnp.finfo(K.dtype).eps)) * jnp.mean(jnp.diagonal(K))
    error = jnp.zeros((), K.dtype)
    for fold in range(FOLDS):
        out = np.arange(n) % FOLDS == fold
        held, kept = np.flatnonzero(out), np.flatnonzero(~out)
        inside = K[np.ix_(kept, kept)] + jitter * jnp.eye(len(kept), dtype=K.dtype)
        guess = dot(K[np.ix_(held, kept)], jax.scipy.linalg.solve(inside, values[kept], assume_a="pos"))
        error = error + jnp.sum((values[held] - guess) ** 2)
    return 1 - error / jnp.sum(values**2)
