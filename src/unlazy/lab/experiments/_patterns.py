"""The pattern task and the network trained on it; shared by the experiments of source S4."""

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from unlazy.core.dataset import Data
from unlazy.lab.experiment import Params
from unlazy.measures.neurons import feature_cosines
from unlazy.measures.risk import accuracy
from unlazy.tasks.patterns import Patterns, pattern_task
from unlazy.training.one_step.two_steps import FirstSteps, FreshSGD, emerge, pattern_network
from unlazy.training.options import Recording

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DICTIONARY, RELEVANT = 100, 5
SIZES = dict(width=600, samples=20_000)
STAGES = ("start", "step 1", "step 2", "end")
CURVE_POINTS, EVERY = 2000, 25
"""Number of test points for the accuracy curves (the final value uses all), and SGD steps between records."""


class PatternSetting(NamedTuple):
    """A task, test points with the part of the distribution each comes from, and a key for the network."""

    task: Patterns
    test: Data
    first_part: Any
    """1.0 for rows of part 1, 0.0 otherwise."""
    key: Any


def setting(structured: bool, d: int, key: Any, test: int = 10_000) -> PatternSetting:
    """Parity of 5 of 100 patterns in a random dictionary [P1, P2]; all methods get the same test points."""
    key_task, key_test, key = jax.random.split(key, 3)
    task = pattern_task(d, DICTIONARY, RELEVANT, structured=structured, key=key_task)
    data, parts = task.sample_parts(key_test, test)
    return PatternSetting(task, data, (parts == 1).astype(data.X.dtype), key)


def part_accuracies(predicted: Any, s: PatternSetting) -> Any:
    """Accuracy overall and on part 1, from predictions at the first test points."""
    m = predicted.shape[0]
    truth, first = s.test.y[:m], s.first_part[:m]
    return jnp.stack([accuracy(predicted, truth), accuracy(predicted, truth, first)])


def network_run(params: Params, key: Any) -> dict[str, Any]:
    """The two-step schedule followed by SGD [P3] on fresh points of a task; used by three experiments.

    It is one compiled program, which the experiments share through JAX's compilation cache.
    """
    names = ("structured", "d", "width", "samples", "steps", "batch")
    return dict(_network_run(key, *(params[name] for name in names)))


@partial(jax.jit, static_argnums=range(1, 7))
def _network_run(
    key: Any, structured: bool, d: int, width: int, samples: int, steps: int, batch: int
) -> dict[str, Any]:
    """Compiled part of `network_run`."""
    s = setting(structured, d, key)
    network = pattern_network(d, width)
    record = {"curve": lambda theta: part_accuracies(network(theta, s.test.X[:CURVE_POINTS]), s)}
    found = emerge(
        network, s.task.sample, first_steps=FirstSteps(samples), sgd=FreshSGD(steps, batch),
        recording=Recording(record, EVERY), key=s.key,
    )  # fmt: skip
    weights = jnp.stack([stage[0].weight.T for stage in (found.start, found.first, found.second, found.end)])
    return {
        "accuracy": part_accuracies(network(found.end, s.test.X), s), "curve": found.recorded["curve"],
        "margin": found.margins[1], "weights": weights, "feature": s.task.feature,
        "cosines": jax.vmap(feature_cosines, (0, None))(weights, s.task.feature),
    }  # fmt: skip


def curve_steps(steps: int) -> np.ndarray:
    """Gradient steps at which the accuracy curves are recorded."""
    return np.array([0, 1, 2, *(2 + np.arange(EVERY, steps + 1, EVERY))])


def draw_lines(axis: "Axes", vertical: bool = False) -> None:
    """Reference lines: accuracy of a majority vote over the relevant patterns (overall, part 1), and chance."""
    overall, first = pattern_task(DICTIONARY, DICTIONARY, RELEVANT).majority_accuracy
    for value, style, label in (
        (overall, "--", "majority vote: 27/32"), (first, "-.", "majority vote, part 1: 22/32"), (0.5, ":", "chance"),
    ):  # fmt: skip
        (axis.axvline if vertical else axis.axhline)(value, color="0.35", lw=0.9, ls=style, label=label)
