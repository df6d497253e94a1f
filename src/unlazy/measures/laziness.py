"""Is a trained function still its linearization? How far its tangent kernel moved, and what kernels explain [K9, K10].

    linear     1 - ‖f_1 - f_0 - J_0 (θ_1 - θ_0)‖²/‖f_1 - f_0‖²,
    movement   ‖Θ_1 - Θ_0‖/‖Θ_0‖, for every layer and in all,
    explained  the share of f_1 - f_0 at held-out points that kernel regression with Θ_0, and with Θ_1, predicts.

Chizat, Oyallon and Bach (2019); Fort et al. (2020).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core.arrays import Points, concrete, count, points
from unlazy.core.linalg import dot
from unlazy.core.pytrees import layers_of, split
from unlazy.measures.tangent_drift import relative_change
from unlazy.theory.infinite_width.jacobian import jacobian_kernels, of_parameters

LAZY, MOVED = 0.9, 0.3
"""A function is called lazy where so much of its change is linear and its kernel moved less than that."""
FOLDS = 4
JITTER = 1e-6
"""Ridge of the regressions, relative to the mean of the kernel's diagonal; 1,000 units of rounding at least."""


class Laziness(eqx.Module):
    """What `laziness` found; `print` shows it."""

    linear: Float[Array, ""]
    """Share of the trained function's change that the linearization at the start gives with the same parameters."""
    movement: Float[Array, ""]
    explained_at_start: Float[Array, ""]
    explained_at_end: Float[Array, ""]
    layers: tuple["LayerMovement", ...]

    @property
    def verdict(self) -> str:
        """lazy, learns features, or between."""
        if self.linear >= LAZY and self.movement <= MOVED:
            return "lazy"
        return "learns features" if self.linear < LAZY and self.movement > MOVED else "between"

    def __str__(self) -> str:
        rows = "\n".join(
            f"  layer {i}: its kernel moved by {layer.movement:.2f}, its parameters by {layer.parameters:.2f}, its "
            f"share of the kernel {layer.share_at_start:.2f} → {layer.share_at_end:.2f}"
            for i, layer in enumerate(self.layers)
        )
        return (
            f"{self.verdict}: {self.linear:.0%} of the change is linear, the kernel moved by {self.movement:.2f}; "
            f"the kernel at the start explains {self.explained_at_start:.0%} of it at held-out points, that at the end "
            f"{self.explained_at_end:.0%}\n{rows}"
        )

    def figure(self) -> Any:
        """Bars: what is explained, and how far each layer moved."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 3), layout="constrained")
        left, right = figure.subplots(1, 2)
        values = {"linearization": self.linear, "kernel at start": self.explained_at_start,
                  "kernel at end": self.explained_at_end}  # fmt: skip
        left.bar(list(values), [max(float(v), 0) for v in values.values()])
        left.set(title=f"explained: {self.verdict}", ylim=(0, 1))
        right.bar([str(i) for i in range(len(self.layers))], [float(layer.movement) for layer in self.layers])
        right.set(title="movement of each layer's kernel", xlabel="layer")
        return figure


class LayerMovement(NamedTuple):
    """One layer (top-level entry with parameters): relative movements, and its share of the trace of the kernel."""

    movement: Array
    parameters: Array
    share_at_start: Array
    share_at_end: Array


def laziness(
    apply: Callable[[Any, Array], Array], before: Any, after: Any, X: Points, *, rates: Any = 1.0
) -> Laziness:  # fmt: skip
    """The verdict for any function of (parameters, inputs), from its parameters before and after training.

    `rates` are the layer-wise learning rates it was trained with, where there were any.
    """
    X = points(X, takes="tree")
    f, start = of_parameters(apply, before)
    end = split(after)[0]
    move = jax.tree.map(jnp.subtract, end, start)
    _, slope = jax.jvp(lambda theta: f(theta, X), (start,), (move,))
    change = f(end, X) - f(start, X)  # not by what jvp found: another program may round otherwise
    size = jnp.sum(change**2)
    if concrete(size) and not float(size) > 0:
        raise ValueError("the function did not change at these points: compare parameters before and after training")
    kernels = [jacobian_kernels(apply, params, X, None, rates, "trace") for params in (before, after)]
    whole = [sum(each[1:], each[0]) for each in kernels]
    explained = [explained_share(K, change.reshape(count(X), -1)) for K in whole]
    return Laziness(
        linear=1 - jnp.sum((change - slope) ** 2) / size,
        movement=relative_change(*whole),
        explained_at_start=explained[0],
        explained_at_end=explained[1],
        layers=_layers(kernels, layers_of(start), layers_of(move)),
    )


def _layers(kernels: list, start: list, move: list) -> tuple["LayerMovement", ...]:
    traces = [[jnp.trace(K) for K in each] for each in kernels]
    found = []
    for i, (one, two) in enumerate(zip(*kernels)):
        moved, size = (jnp.sqrt(sum(jnp.sum(v**2) for v in jax.tree.leaves(tree[i]))) for tree in (move, start))
        shares = [each[i] / sum(each) for each in traces]
        found.append(LayerMovement(relative_change(one, two), moved / size, *shares))
    return tuple(found)


def explained_share(K: Float[Array, "n n"], values: Float[Array, "n c"]) -> Float[Array, ""]:
    """1 - mean squared error/mean square of kernel regression at points left out, in FOLDS interleaved folds."""
    n = K.shape[0]
    if n < 2 * FOLDS:
        raise ValueError(f"{n} points are too few to hold some back: give at least {2 * FOLDS}")
    K, values = jnp.asarray(K), jnp.asarray(values)
    jitter = max(JITTER, 1e3 * float(jnp.finfo(K.dtype).eps)) * jnp.mean(jnp.diagonal(K))
    error = jnp.zeros((), K.dtype)
    for fold in range(FOLDS):
        out = np.arange(n) % FOLDS == fold
        held, kept = np.flatnonzero(out), np.flatnonzero(~out)
        inside = K[np.ix_(kept, kept)] + jitter * jnp.eye(len(kept), dtype=K.dtype)
        guess = dot(K[np.ix_(held, kept)], jax.scipy.linalg.solve(inside, values[kept], assume_a="pos"))
        error = error + jnp.sum((values[held] - guess) ** 2)
    return 1 - error / jnp.sum(values**2)
