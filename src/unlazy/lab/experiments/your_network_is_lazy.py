"""The laziness measure distinguishes networks that train like their kernel from those that learn features [K10, L1].

Question. Given a trained network and its initialization, can a single function call tell whether it learned features?
Prediction. [L1] The same residual convolutional network is lazy in the NTK parametrization if it is wide, and learns
features in mean-field scaling (output divided by γ_0 √w, step size scaled accordingly): the linear share of its change
is near 1 in the first case and much lower in the second, and only in the second does the tangent kernel change by an
amount comparable to its norm [K10].
Protocol. scikit-learn's digits 3 against 8, n = 32, as sequences of 4 positions (averaged pairs of rows) with 8
channels. Conv 3, residual (ReLU, Conv 3), ReLU, Flatten, Dense, one output; gradient descent with step size 0.3/λ_max
of the initial kernel until the loss is 0.05 (zero predictor: 1/2); `measures.laziness` at the training points. γ_0 = 4:
on such an easy task a pilot run with γ_0 = 1 was in between (movement 0.66, but 0.96 of the change linear).
Verdict. Every run reaches the target loss. NTK: linear share at least 0.9 and movement at most 0.3. Mean field: linear
share at most 0.9 and movement at least 0.3. The final kernel explains more of the change of the mean-field network at
held-out points than the initial kernel. All with two standard errors.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from unlazy.core.dataset import Data
from unlazy.lab.claims import Claim, at_least, at_most, standard_error
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config
from unlazy.lab.experiments._draws import draw_parameters
from unlazy.layers import Conv, Dense, Flatten, residual, serial
from unlazy.measures.laziness import LINEAR_THRESHOLD, MOVEMENT_THRESHOLD, laziness
from unlazy.networks import Network
from unlazy.tasks.images import digits
from unlazy.training.descent.descend import STOPPED, descend
from unlazy.training.descent.stability import stable_step_size
from unlazy.training.options import DescentOptions

POINTS, SHAPE, ENOUGH, SAFETY = 32, (4, 8), 0.05, 0.3
DESCRIPTION = serial(Conv(3), residual("relu", Conv(3)), "relu", Flatten(), Dense())
SCALINGS = {"ntk": 0.0, "mean field": 4.0}
"""γ_0: the output is divided by γ_0 √w; 0 means no division."""


@functools.cache
def _digits() -> tuple[np.ndarray, np.ndarray]:
    """Standardized digits as flattened sequences, and labels."""
    with jax.ensure_compile_time_eval():  # trials are traced; these are constants
        table = digits((3, 8))
        X, y = np.asarray(table.X)[:POINTS], np.asarray(table.y)[:POINTS]
    X = X.reshape(POINTS, SHAPE[0], -1, SHAPE[1]).mean(2).reshape(POINTS, -1)
    return (X - X.mean()) / X.std(), y


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial; measures linear, movement, at_start, at_end, reached, steps_taken."""
    X, y = (jnp.asarray(v) for v in _digits())
    train = Data(X, y)
    width = params["width"]
    strength = params["strength"]
    scale = jnp.where(strength > 0, 1 / (jnp.maximum(strength, 1e-3) * width**0.5), 1.0)
    network = Network(DESCRIPTION, SHAPE, width=width, output_scale=scale)

    def apply(theta: Any, X: Any) -> Any:
        return network(theta, X.reshape(-1, *SHAPE))

    (start,) = draw_parameters((network,), key)
    eta = SAFETY * stable_step_size(apply, start, train)
    options = DescentOptions(stop_below=ENOUGH)
    found = descend(apply, start, train, steps=params["steps"], step_size=eta, options=options)
    seen = laziness(apply, start, found.params, X)
    return {
        "linear": seen.linear, "movement": seen.movement, "at_start": seen.explained_at_start,
        "at_end": seen.explained_at_end, "reached": found.status == STOPPED, "steps_taken": found.steps,
    }  # fmt: skip


def _mean(values: np.ndarray) -> tuple[float, float]:
    """Mean and standard error."""
    return float(values.mean()), standard_error(values)


def claims(records: Records) -> list[Claim]:
    """Claims on [K10, L1], from the records."""
    lazy, rich = (records.where(strength=gamma) for gamma in SCALINGS.values())
    reached = float(records.measure("reached").mean())
    linear, linear_error = _mean(lazy.measure("linear"))
    moved, moved_error = _mean(lazy.measure("movement"))
    rich_linear, rich_linear_error = _mean(rich.measure("linear"))
    rich_moved, rich_moved_error = _mean(rich.measure("movement"))
    gain, gain_error = _mean(rich.measure("at_end") - rich.measure("at_start"))
    return [
        at_least("fraction of runs that reach the target loss", "L1", reached, 1.0, predicted="all"),
        at_least("NTK scaling: linear share of the change", "K10", linear, LINEAR_THRESHOLD,
                 error=linear_error),
        at_most("NTK scaling: relative movement of the kernel", "K10", moved, MOVEMENT_THRESHOLD, error=moved_error),
        at_most("mean field: linear share of the change", "L1", rich_linear, LINEAR_THRESHOLD,
                error=rich_linear_error),
        at_least("mean field: relative movement of the kernel", "L1", rich_moved, MOVEMENT_THRESHOLD,
                 error=rich_moved_error),
        at_least("mean field: share explained by the final kernel minus share explained by the initial kernel", "L1",
                 gain, 0.0, error=gain_error),
    ]  # fmt: skip


def figure(records: Records) -> Figure:
    """Plot of linear share of the change against movement of the tangent kernel."""
    import matplotlib.pyplot as plt

    fig, axis = plt.subplots(figsize=(4.2, 3.1), layout="constrained")
    for (scaling, gamma), marker in zip(SCALINGS.items(), "os"):
        chosen = records.where(strength=gamma)
        axis.plot(chosen.measure("movement"), chosen.measure("linear"), marker, ms=5, label=scaling)
    axis.axhline(LINEAR_THRESHOLD, color="k", lw=0.8, ls="--")
    axis.axvline(MOVEMENT_THRESHOLD, color="k", lw=0.8, ls="--")
    axis.set(xscale="log", xlabel="movement of the tangent kernel", ylabel="linear share of the change")
    axis.legend()
    return fig


experiment = Experiment(
    name="your_network_is_lazy",
    source="S3",
    tags=("K10", "L1"),
    question="Can a single function call tell whether a trained network learned features?",
    prediction="A wide residual network is lazy in NTK scaling and learns features in mean-field scaling [L1].",
    protocol="Digits 3 against 8, a small residual convolutional network, gradient descent to a loss of 0.05.",
    verdict="Linear share ≥ 0.9 and movement ≤ 0.3 in NTK scaling, opposite in mean field, with two standard errors.",
    trial=trial,
    claims=claims,
    figure=figure,
    quick=config({"strength": list(SCALINGS.values())}, seeds=6, width=128, steps=1000),
    full=config({"strength": list(SCALINGS.values())}, seeds=24, width=512, steps=10000),
    traced=("strength",),
    lanes=2,
    caveats="One architecture and one task; the thresholds are conventions.",
)
