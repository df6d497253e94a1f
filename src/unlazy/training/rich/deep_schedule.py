"""Schedules of evaluations of a deep network of infinite width: plain steps, batches, or adaptive flow."""

import math
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.dataset import Data
from unlazy.core.devices import memory_budget
from unlazy.training.descent.step import DescentBatches
from unlazy.training.rich.deep import DeepLimit, Moment, Run, Start, memory_needed
from unlazy.training.rich.flow import LARGEST_FACTOR, SAFETY, SMALLEST_FACTOR

STAGES = ((1 / 2,), (0.0, 3 / 4), (2 / 9, 1 / 3, 4 / 9))
"""Bogacki and Shampine (1989), as in flow.py; the last stage is the first of the next step."""
ERROR = (-5 / 72, 1 / 12, 1 / 9, -1 / 8)
"""Bogacki and Shampine (1989), as in flow.py; the last stage is the first of the next step."""
PILOT, FIRST = 512, 32
"""Number of draws of the pilot run that chooses the steps, and its initial capacity of moments."""


class DeepSchedule(NamedTuple):
    """Rows and shares of `DeepLimit`, and the indices of the moments at the recorded times."""

    rows: Float[np.ndarray, "T T"]
    shares: Float[np.ndarray, "T n"]
    marks: np.ndarray


def step_schedule(
    times: np.ndarray, step_size: float, n: int, batch_size: int | None, key: PRNGKeyArray
) -> DeepSchedule:
    """Return the schedule of plain steps: a_ji = η for i < j; the points of a batch have share n/batch.

    The batches are the same as for two layers.
    """
    steps = int(times[-1])
    rows = step_size * np.tri(steps + 1, k=-1)
    shares = np.ones((steps + 1, n))
    if batch_size is not None:
        numbers = jnp.arange(n)
        batches = DescentBatches(Data(numbers[:, None], numbers), batch_size, key)
        order = batches.first_order()
        shares = np.zeros((steps + 1, n))
        for t in range(steps):
            order, batch = batches.draw(order, jnp.asarray(t))
            shares[t, np.asarray(batch.y)] = n / batch_size
    return DeepSchedule(rows, shares, np.asarray(times))


def flow_schedule(limit: DeepLimit, times: np.ndarray, tolerance: float) -> DeepSchedule:
    """Return adaptive steps chosen by a pilot run of few draws: df/dt at the stages measures a step's error in f."""
    n, moments = limit.X.shape[0], FIRST
    pilot = replace(limit, draws=min(limit.draws, PILOT), runs=1)
    while True:
        check_memory(limit, moments)
        ones = jnp.ones((moments, n), limit.X.dtype)
        enlarged = replace(pilot, plan=jnp.zeros((moments, moments), limit.X.dtype), shares=ones)
        found = _piloted(enlarged, times, tolerance)
        if found is not None:
            rows, marks = found
            return DeepSchedule(rows[: marks[-1] + 1, : marks[-1] + 1], np.ones((marks[-1] + 1, n)), marks)
        moments *= 2


def check_memory(limit: DeepLimit, moments: int) -> None:
    """Raise ValueError if the run does not fit in the memory budget."""
    n, budget = limit.X.shape[0], memory_budget()
    need = memory_needed(limit.network, n, moments, limit.draws, limit.X.dtype.itemsize)
    if need > budget:
        raise ValueError(
            f"{limit.draws} draws, {n} points and {moments} evaluations during training need {need / 2**30:.2g} GiB "
            f"and the memory budget is {budget / 2**30:.2g} GiB: use fewer draws, points or steps, or a larger "
            "tolerance"
        )


def _piloted(limit: DeepLimit, times: np.ndarray, tolerance: float) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the rows of all moments and the indices of the times; None if the capacity is too small."""
    capacity = len(limit.plan)
    run, start = begin(limit, limit.keys[0])
    rows = np.zeros((capacity, capacity))
    run, seen = _evaluate(limit, run, jnp.asarray(rows[0]), start)
    label = max(float(jnp.sqrt(jnp.mean(jnp.square(run.pull[: limit.X.shape[0]])))), np.finfo(float).tiny)
    time, at, marks = 0.0, 0, []
    step = float(times[times > 0][0]) if np.any(times > 0) else 1.0
    for until in times:
        while time < until:
            last = time + step * (1 + 1e-6) >= until
            h = until - time if last else step
            if at + 3 >= capacity:
                return None
            tried, slopes = run, [seen.slope]
            for i, weights in enumerate(STAGES, at + 1):
                rows[i] = rows[at]
                rows[i, at : at + len(weights)] += h * np.array(weights)
                tried, new = _evaluate(limit, tried, jnp.asarray(rows[i]), start)
                slopes.append(new.slope)
            off = h * sum(e * np.asarray(k) for e, k in zip(ERROR, slopes))
            size = math.sqrt(float(np.mean(np.square(off)))) / label / tolerance
            factor = (
                min(max(SAFETY * max(size, 1e-6) ** (-1 / 3), SMALLEST_FACTOR), LARGEST_FACTOR)
                if size < math.inf
                else SMALLEST_FACTOR
            )
            if size <= 1:  # false for NaN
                run, seen, at, time = tried, new, at + 3, float(until) if last else time + h
                step = max(step, h * factor) if last else h * factor
            else:
                step = h * factor
            if step < 1e-9 * until:
                raise ValueError(f"steps of {step:.1g} are too long for tolerance={tolerance}: use a larger tolerance")
        marks.append(at)
    return rows, np.array(marks)


@jax.jit
def begin(limit: DeepLimit, key: PRNGKeyArray) -> tuple[Run, Start]:
    """Return a run before its first moment."""
    return limit.begin(key)


@jax.jit
def _evaluate(limit: DeepLimit, run: Run, row: Array, start: Start) -> tuple[Run, Moment]:
    """Evaluate one moment."""
    return limit.moment(run, row, start)


@jax.jit
def advance(limit: DeepLimit, run: Run, start: Start, mark: Array) -> tuple[Run, Moment]:
    """Advance the run up to and including a moment; return the run and the values there."""
    like = jax.eval_shape(limit.moment, run, limit.plan[0], start)[1]
    blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
    return jax.lax.while_loop(
        lambda carry: carry[0].done <= mark,
        lambda carry: limit.moment(carry[0], limit.plan[carry[0].done], start),
        (run, blank),
    )
