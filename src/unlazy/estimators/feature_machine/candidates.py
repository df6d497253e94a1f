"""Candidate kernels and metrics of a feature machine, given its parameters."""

import math
from typing import Any

import numpy as np

from unlazy.core.errors import check_positive_integer, did_you_mean
from unlazy.estimators.feature_search import KernelCandidate
from unlazy.estimators.named_kernels import UNIT
from unlazy.kernels.resolve import resolve_kernel
from unlazy.training.rfm.iteration import METRICS, check_metric

KERNELS = {name: UNIT[name] for name in ("product_laplace", "laplace", "gaussian", "matern", "ntk", "nngp")}
DEFAULT = ("product_laplace", "laplace", "gaussian")
MANY_COLUMNS = 500
"""Number of columns beyond which a full metric is not tried by default if there are fewer rows.

Its rank is at most the number of rows, and an update costs the cube of the number of columns.
"""


def list_candidates(machine: Any, shape: tuple[int, int] = (0, 0)) -> list[KernelCandidate]:
    """List the kernels and metrics to choose from for a table of this shape; validate the parameters."""
    if machine.metric is not None and machine.metric not in METRICS:
        raise ValueError(f"unknown metric {machine.metric!r}{did_you_mean(str(machine.metric), METRICS)}")
    if machine.metric == "low_rank":
        check_positive_integer("rank", machine.rank, "the number of directions of metric='low_rank'")
    if machine.iterate not in ("best", "last"):
        raise ValueError(f"iterate must be 'best' or 'last', got {machine.iterate!r}")
    if machine.start not in (None, "one_step"):
        raise ValueError(f"start must be None or 'one_step', got {machine.start!r}")
    if machine.updates != 0:
        check_positive_integer("updates", machine.updates, "or 0 for a fixed kernel")
    for what in ("relative_bandwidth", "relative_ridge"):
        value = getattr(machine, what)
        if value is not None and not (isinstance(value, int | float | np.number) and 0 < value < math.inf):
            raise ValueError(f"{what} must be positive or None (leave-one-out), got {value!r}")
    kernels = [KERNELS[name] for name in DEFAULT]
    if machine.kernel is not None:
        given = resolve_kernel(machine.kernel, "a name, None (a choice)")
        if given is None and machine.kernel not in KERNELS:
            name = str(machine.kernel)
            raise ValueError(f"unknown kernel {name!r}{did_you_mean(name, KERNELS)}, or pass a kernel")
        kernels = [KERNELS[str(machine.kernel)] if given is None else given]
    rows, columns = shape
    tried = ("diagonal",) if columns > max(MANY_COLUMNS, rows) else ("full", "diagonal")
    metrics = tried if machine.metric is None else (machine.metric,)
    pairs = [KernelCandidate(k, m) for k in kernels for m in metrics]
    found = [c for c in pairs if c.metric in c.kernel.metrics]
    if not found:
        check_metric(kernels[0], metrics[0])
    return found
