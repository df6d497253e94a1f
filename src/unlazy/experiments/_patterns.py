"""The pattern task and the network that is trained on it: shared by the experiments of source S4."""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from unlazy.core.data import Data
from unlazy.core.experiment import Params, Records
from unlazy.measures.neurons import feature_cosines
from unlazy.measures.risk import accuracy
from unlazy.networks.mlp import Network
from unlazy.tasks.patterns import Patterns, pattern_task
from unlazy.training.forgetting import Emergence, emerge, pattern_network

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DICTIONARY, RELEVANT = 100, 5
SIZES = dict(width=600, samples=20_000)
STAGES = ("start", "step 1", "step 2", "end")
CURVE_POINTS, EVERY = 2000, 25
"""Test points of the curves (the last value has all of them), and the SGD steps between two points."""


class Setting(NamedTuple):
    """A task, test points with the part each came from, and a key for the network."""

    task: Patterns
    test: Data
    first_part: Any
    """One on rows of part 1, zero elsewhere."""
    key: Any


def setting(structured: bool, d: int, key: Any, test: int = 10_000) -> Setting:
    """Parity of 5 of 100 patterns behind a random dictionary [P1, P2]; the same test points for everyone."""
    key_task, key_test, key = jax.random.split(key, 3)
    task = pattern_task(d, DICTIONARY, RELEVANT, structured=structured, key=key_task)
    data, parts = task.sample_parts(key_test, test)
    return Setting(task, data, (parts == 1).astype(data.X.dtype), key)


def both_accuracies(predicted: Any, s: Setting) -> Any:
    """Accuracy overall and on part 1 alone, from predictions at the first test points."""
    m = predicted.shape[0]
    truth, first = s.test.y[:m], s.first_part[:m]
    return jnp.stack([accuracy(predicted, truth), accuracy(predicted, truth, first)])


def train(s: Setting, params: Params, **options: Any) -> tuple[Network, Emergence]:
    """The two-step schedule and SGD [P3] on fresh points of the task."""
    network = pattern_network(s.task.d, params["width"])
    sizes = {name: params[name] for name in ("samples", "batch", "steps")}
    record = {"accuracy": lambda theta: both_accuracies(network(theta, s.test.X[:CURVE_POINTS]), s)}
    return network, emerge(network, s.key, s.task.sample, record=record, every=EVERY, **sizes, **options)


def stage_cosines(s: Setting, found: Emergence) -> Any:
    """Signed cosines of every neuron with Σ_A M_j at start, step 1, step 2 and end."""
    stages = (found.start, found.first, found.second, found.end)
    return jnp.stack([feature_cosines(stage[0].weight.T, s.task.feature) for stage in stages])


def curve_steps(steps: int) -> np.ndarray:
    """Gradient steps at which the accuracy curves were recorded."""
    return np.array([0, 1, 2, *(2 + np.arange(EVERY, steps + 1, EVERY))])


def within_seeds(records: Records, name: str) -> tuple[float, float]:
    """Smallest and largest value of a measure over all records, NaN where there is none."""
    values = records.measure(name) if len(records) else np.array([np.nan])
    return float(values.min()), float(values.max())


def draw_lines(axis: "Axes", names: bool = True) -> None:
    """What a majority vote over the relevant patterns gets, overall and on part 1, and chance."""
    overall, first = pattern_task(DICTIONARY, DICTIONARY, RELEVANT).majority_accuracy
    for value, style, label in (
        (overall, "--", "majority vote, all: 27/32"), (first, "-.", "majority vote, part 1: 22/32"), (0.5, ":", "chance"),
    ):  # fmt: skip
        axis.axhline(value, color="0.35", lw=0.9, ls=style, label=label if names else None)
