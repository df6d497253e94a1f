"""The tangent model of a trained network on its training rows: data, loss to second order, and the linear system."""

import math
import warnings
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from unlazy.core.errors import UnlazyWarning
from unlazy.models.inputs import count_rows, take_rows
from unlazy.models.protocol import Inputs, Model, Outputs, Params
from unlazy.models.tangents import Tangents, tangent_map
from unlazy.solvers.tangent.evidence import Hyperparameters, gaussian_evidence, laplace_evidence, spectral_measure
from unlazy.solvers.tangent.likelihood import infer_loss, quadratic
from unlazy.solvers.tangent.options import TangentOptions
from unlazy.solvers.tangent.rows import WeightedJacobian
from unlazy.solvers.tangent.system import MAX_DENSE, largest_eigenvalue, tangent_system

CHUNK = 64
"""Tangents of queries that are processed together."""
GAP_ROWS = 256
"""Rows on which a linearization gap is measured."""


class TangentModel:
    """A network to first order in its parameters, at its trained parameters.

    Parameters
    ----------
    model : Model
        The network.
    inputs : inputs
        Training rows.
    targets : array of shape (n,) or (n, c)
        Their targets.
    loss : str, optional
        Name of the loss, see `likelihood.LOSSES`.
    options : TangentOptions
        How it is computed.
    unweighted : bool, default False
        Give squared errors the weight ½ per output, whatever the loss.
    weights : array of shape (n,), optional
        Weights of the rows in the loss; 1 by default.

    Raises
    ------
    ValueError
        If inputs and targets do not fit the network, or an output is not finite.
    """

    def __init__(
        self,
        model: Model,
        inputs: Inputs,
        targets: NDArray[np.generic],
        loss: str | None,
        options: TangentOptions,
        unweighted: bool = False,
        weights: Float[np.ndarray, " n"] | None = None,
    ) -> None:
        if targets.ndim == 0:
            raise ValueError(f"y must have one entry per row, got {targets!r}")
        self.model, self.inputs, self.options = model, inputs, options
        self.map = tangent_map(model, options.layers)
        self.outputs = self.evaluate(inputs, "X")
        self.n = len(self.outputs)
        self.targets = targets
        self.loss = infer_loss(self.outputs, targets, loss)
        if unweighted and self.loss == "mse":
            self.loss = "squared"
        self.quadratic = quadratic(self.outputs, targets, self.loss)
        if weights is not None:
            self.quadratic = self.quadratic.weighted(weights)
        data = WeightedJacobian(self.map, inputs, self.quadratic.root, options.memory, options.progress)
        _check_method(options.method, data)
        self.system = tangent_system(
            data, options.method, tolerance=options.tolerance, progress=options.progress, seed=options.seed
        )

    @property
    def c(self) -> int:
        """Number of outputs."""
        return self.outputs.shape[1]

    @property
    def is_regression(self) -> bool:
        """Whether targets are numbers."""
        return self.loss in ("squared", "mse")

    def evaluate(self, inputs: Inputs, name: str = "the inputs") -> Outputs:
        """Outputs on any number of rows, a few at a time."""
        n, found = count_rows(inputs), []
        if not n:
            raise ValueError("inputs must hold at least one row, with rows along the first axis of every array")
        for part, real in batches(inputs, 1024):
            outputs = self.map.outputs(part)
            if len(outputs) != count_rows(part):
                raise ValueError(f"the network must return one row per point, got {len(outputs)} for {n}: pass a batch")
            found.append(outputs[:real])
        values = np.concatenate(found).astype(np.float64)
        if not np.all(np.isfinite(values)):
            raise ValueError(f"the network's outputs on {name} contain NaN or infinity: check inputs and training")
        return values

    def query_tangents(
        self, inputs: Inputs, cotangents: Float[np.ndarray, "m k c"]
    ) -> Iterator[tuple[slice, Tangents]]:
        """uᵀJ(z) of a few queries at a time, and which of the queries they are."""
        m, k = cotangents.shape[:2]
        size = max(1, CHUNK // k)
        for start, (part, real) in zip(range(0, m, size), batches(inputs, size)):
            rows = np.arange(start, start + min(size, m)) % m
            yield slice(start, start + real), self.map.rows(part, cotangents[rows])[: real * k]

    def row_covariances(self, inputs: Inputs, tau: float) -> Float[np.ndarray, "m c c"]:
        """J(z) M J(z)ᵀ of every row z."""
        m, c = count_rows(inputs) or 0, self.c
        found = []
        for rows, tangents in self.query_tangents(inputs, np.broadcast_to(np.eye(c), (m, c, c))):
            k = rows.stop - rows.start
            joint = self.system.covariance(tangents, tau).reshape(k, c, k, c)
            found.append(joint[np.arange(k), :, np.arange(k)])
        return np.concatenate(found)

    def evidence(
        self, reference: Params | None, tau: float | None = None, noise: float | None = None
    ) -> Hyperparameters:
        """Log evidence with a prior around the reference (0 by default), at its maximum over what is not given."""
        measure, params = spectral_measure(self.system, self.options.seed), self.model.params
        move = self.map.from_params(params if reference is None else self.model.subtract(params, reference))
        norm, losses = float(self.map.contract(move, move)[0, 0]), float(np.sum(self.quadratic.losses))
        if self.is_regression:
            return gaussian_evidence(measure, 2 * losses, self.outputs.size, norm, tau, noise)
        return laplace_evidence(measure, losses, norm, tau)

    def stationarity(self, tau: float, reference: Params | None) -> float:
        """‖gradient of the losses + τ (θ - θ_0)‖ relative to the norms of both parts."""
        params = self.model.params
        move = self.map.from_params(params if reference is None else self.model.subtract(params, reference))
        force = self.system.data.pull(self.quadratic.coordinates.reshape(1, -1))
        both = self.map.stack([force, self.map.combine(np.full((1, 1), tau), move)])
        (a, b), (_, d) = self.map.contract(both, both)
        size = math.sqrt(a) + math.sqrt(d)
        return math.sqrt(max(a - 2 * b + d, 0.0)) / size if size > 0 else 0.0

    def warn_if_rounding(self, tau: float) -> None:
        """Warn if τ is so small that the rounding of the tangents dominates what it decides."""
        if tau < self.map.rounding * largest_eigenvalue(self.system):
            warnings.warn(
                f"τ = {tau:.2g} (prior precision in units of the loss) is below the rounding of the tangents: pass "
                "TangentOptions(dtype='float64') or a larger prior_precision",
                UnlazyWarning,
                stacklevel=4,
            )

    def removal(self) -> Tangents:
        """Negative gradient of the loss of a random half of the rows: T M is the move if they are left out."""
        half = np.random.default_rng(self.options.seed).permutation(self.n) < self.n // 2
        return self.system.data.pull(-(self.quadratic.coordinates * half[:, None]).reshape(1, -1))

    def gap_of(self, moves: Tangents) -> float:
        """Share of the change of f along some moves of the parameters that is not linear in them."""
        rows = np.random.default_rng(self.options.seed).permutation(self.n)[:GAP_ROWS]
        inputs = take_rows(self.inputs, np.sort(rows))
        start, linear = self.map.outputs(inputs), self.map.push(inputs, moves)
        ratios = []
        for i in range(len(linear)):
            change = np.asarray(self.model.apply(self.map.moved(moves, i), inputs), np.float64) - start
            size = float(np.linalg.norm(change))
            ratios.append(float(np.linalg.norm(change - linear[i])) / size if size > 0 else 0.0)
        return math.sqrt(float(np.mean(np.square(ratios))))

    def gap_from(self, reference: Params) -> float:
        """The linearization gap since the reference parameters [W1]."""
        rows = np.random.default_rng(self.options.seed).permutation(self.n)[:GAP_ROWS]
        inputs = take_rows(self.inputs, np.sort(rows))
        start, end, linear = self.model.change(reference, self.model.params, inputs)
        size = float(np.linalg.norm(end - start))
        return float(np.linalg.norm(end - start - linear)) / size if size > 0 else 0.0


def batches(inputs: Inputs, size: int) -> Iterator[tuple[Inputs, int]]:
    """Batches of one size, the last filled up with rows from the beginning, and how many rows of each count."""
    n = count_rows(inputs) or 0
    size = min(size, n)
    for start in range(0, n, max(size, 1)):
        yield take_rows(inputs, np.arange(start, start + size) % n), min(size, n - start)


def _check_method(method: str, data: WeightedJacobian) -> None:
    order = {"primal": data.map.size, "dual": data.size}.get(method, 0)
    if order > 4 * MAX_DENSE:
        raise ValueError(f"method={method!r} would factorize a matrix of order {order:,}: use 'auto' or 'iterative'")
