"""At which states a deep network of infinite width is evaluated: plain steps, batches, or a flow's adaptive stages."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.data import Data
from unlazy.core.memory import memory_budget
from unlazy.training.descent.steps import Batches
from unlazy.training.rich.deep import DeepLimit, Moment, Run, Start, memory_needed
from unlazy.training.rich.flow import LARGEST, SAFETY, SMALLEST

STAGES = ((1 / 2,), (0.0, 3 / 4), (2 / 9, 1 / 3, 4 / 9))
ERROR = (-5 / 72, 1 / 12, 1 / 9, -1 / 8)
"""Bogacki and Shampine (1989), as in flow.py; the last stage is the first of the next step."""
PILOT, FIRST = 512, 32
"""Draws of the run that chooses the steps, and moments it has room for at first."""


class Plan(NamedTuple):
    """Rows and shares of `DeepLimit`, and which moments are the recorded times."""

    rows: Float[np.ndarray, "T T"]
    shares: Float[np.ndarray, "T n"]
    marks: np.ndarray


def steps_plan(times: np.ndarray, step_size: float, n: int, batch_size: int | None, key: PRNGKeyArray) -> Plan:
    """Plain steps: a_ji = η for i < j; a batch's points have share n/batch. Batches are those of two layers."""
    steps = int(times[-1])
    rows = step_size * np.tri(steps + 1, k=-1)
    shares = np.ones((steps + 1, n))
    if batch_size is not None:
        numbers = jnp.arange(n)
        batches = Batches(Data(numbers[:, None], numbers), batch_size, key)
        order = batches.first_order()
        shares = np.zeros((steps + 1, n))
        for t in range(steps):
            order, batch = batches.draw(order, jnp.asarray(t))
            shares[t, np.asarray(batch.y)] = n / batch_size
    return Plan(rows, shares, np.asarray(times))


def flow_plan(limit: DeepLimit, times: np.ndarray, tolerance: float) -> Plan:
    """Adaptive steps, chosen by one run of few draws: df/dt at the stages measures a step's error in f."""
    n, moments = limit.X.shape[0], FIRST
    pilot = replace(limit, draws=min(limit.draws, PILOT), runs=1)
    while True:
        check_memory(limit, moments)
        ones = jnp.ones((moments, n), limit.X.dtype)
        room = replace(pilot, plan=jnp.zeros((moments, moments), limit.X.dtype), shares=ones)
        found = _piloted(room, times, tolerance)
        if found is not None:
            rows, marks = found
            return Plan(rows[: marks[-1] + 1, : marks[-1] + 1], np.ones((marks[-1] + 1, n)), marks)
        moments *= 2


def check_memory(limit: DeepLimit, moments: int) -> None:
    """Refuses what memory does not hold."""
    n, budget = limit.X.shape[0], memory_budget()
    need = memory_needed(limit.network, n, moments, limit.draws, limit.X.dtype.itemsize)
    if need > budget:
        raise ValueError(
            f"{limit.draws} draws, {n} points and {moments} evaluations along the training need {need / 2**30:.2g} GiB "
            f"and the memory budget is {budget / 2**30:.2g} GiB: take fewer draws, points or steps, or a larger "
            "tolerance"
        )


def _piloted(limit: DeepLimit, times: np.ndarray, tolerance: float) -> tuple[np.ndarray, np.ndarray] | None:
    """Rows of all moments and the places of the times; None where there are not enough."""
    room = len(limit.plan)
    run, start = begin(limit, limit.keys[0])
    rows = np.zeros((room, room))
    run, seen = _evaluate(limit, run, jnp.asarray(rows[0]), start)
    label = max(float(jnp.sqrt(jnp.mean(jnp.square(run.pull[: limit.X.shape[0]])))), np.finfo(float).tiny)
    time, at, marks = 0.0, 0, []
    step = float(times[times > 0][0]) if np.any(times > 0) else 1.0
    for until in times:
        while time < until:
            last = time + step * (1 + 1e-6) >= until
            h = until - time if last else step
            if at + 3 >= room:
                return None
            tried, slopes = run, [seen.slope]
            for i, weights in enumerate(STAGES, at + 1):
                rows[i] = rows[at]
                rows[i, at : at + len(weights)] += h * np.array(weights)
                tried, new = _evaluate(limit, tried, jnp.asarray(rows[i]), start)
                slopes.append(new.slope)
            off = h * sum(e * np.asarray(k) for e, k in zip(ERROR, slopes))
            size = math.sqrt(float(np.mean(np.square(off)))) / label / tolerance
            factor = min(max(SAFETY * max(size, 1e-6) ** (-1 / 3), SMALLEST), LARGEST) if size < math.inf else SMALLEST
            if size <= 1:  # false for NaN
                run, seen, at, time = tried, new, at + 3, float(until) if last else time + h
                step = max(step, h * factor) if last else h * factor
            else:
                step = h * factor
            if step < 1e-9 * until:
                raise ValueError(f"steps of {step:.1g} are still too long for tolerance={tolerance}: take a larger one")
        marks.append(at)
    return rows, np.array(marks)


@jax.jit
def begin(limit: DeepLimit, key: PRNGKeyArray) -> tuple[Run, Start]:
    """A run before its first moment."""
    return limit.begin(key)


@jax.jit
def _evaluate(limit: DeepLimit, run: Run, row: Array, start: Start) -> tuple[Run, Moment]:
    return limit.moment(run, row, start)


@jax.jit
def advance(limit: DeepLimit, run: Run, start: Start, mark: Any) -> tuple[Run, Moment]:
    """The run up to and with a moment, and what is known there."""
    like = jax.eval_shape(limit.moment, run, limit.plan[0], start)[1]
    blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
    return jax.lax.while_loop(
        lambda carry: carry[0].done <= mark,
        lambda carry: limit.moment(carry[0], limit.plan[carry[0].done], start),
        (run, blank),
    )
