"""Probe points: nested subsets of a batch, in whatever form the network takes it."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from unlazy.diagnostics.measures.losses import as_numpy
from unlazy.models.inputs import count_rows, take_rows
from unlazy.models.protocol import Inputs

POINTS = 64
"""Number of probe points to begin with."""


class Probes:
    """Probe inputs and targets, and their first m points in an order drawn once.

    Parameters
    ----------
    inputs : array, or tuple, list or mapping of arrays
        One batch, as the network takes it.
    targets : array, optional
        Targets, with points along their first axis.
    seed : int, default 0
        Of the order.
    """

    def __init__(self, inputs: Inputs, targets: Inputs | None = None, *, seed: int = 0) -> None:
        self._inputs, self._targets = inputs, targets
        #: Points along the first axis, or None if the arrays do not agree on it: then they are used whole.
        self.rows = count_rows(inputs)
        if self.rows == 0:
            raise ValueError("probe_inputs are empty: pass some 64 to 1,000 typical inputs")
        self._order = np.random.default_rng(seed).permutation(self.rows or 0)
        if targets is not None and self.rows is not None and hasattr(targets, "shape") and _rows(targets) != self.rows:
            raise ValueError(
                f"probe_targets must have one entry per probe point, got {_rows(targets)} for {self.rows} points"
            )

    def keep_whole(self) -> None:
        """Never take a subset."""
        self.rows = None

    def inputs(self, count: int) -> Inputs:
        """The first `count` points; all of them where there are no more, in their own order."""
        if self.rows is None or count >= self.rows:
            return self._inputs
        return take_rows(self._inputs, self._order[:count])

    def half_repeated(self, count: int) -> Inputs:
        """As many points as `inputs(count)`, whose second half repeats the first one."""
        rows = self._order[:count] if count < (self.rows or 0) else np.arange(count)
        half = count // 2
        return take_rows(self._inputs, rows[np.arange(count) % half])

    def point(self, i: int, count: int) -> Inputs:
        """The i-th of the first `count` points, as a batch of one."""
        row = self._order[i : i + 1] if count < (self.rows or 0) else np.array([i])
        return take_rows(self._inputs, row)

    def positions(self, count: int, among: int) -> NDArray[np.intp]:
        """Rows of `inputs(among)` that are `inputs(count)`, where count ≤ among and points are separate."""
        whole = among >= (self.rows or 0)
        return self._order[:count] if whole else np.arange(count)

    def targets(self, count: int) -> Inputs | None:
        """The targets of `inputs(count)`, in the framework's own type."""
        if self._targets is None or self.rows is None or count >= self.rows or not hasattr(self._targets, "shape"):
            return self._targets
        return self._targets[self._order[:count]]

    def target_array(self, count: int) -> NDArray[np.generic] | None:
        """The targets as a NumPy array, or None."""
        targets = self.targets(count)
        return None if targets is None or isinstance(targets, Mapping) else as_numpy(targets)


def _rows(array: Inputs) -> int:
    return int(array.shape[0]) if len(array.shape) else -1
