"""Which training rows made this prediction? `unlazy.attribution` [I2]."""

import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from unlazy.core.arrays import einsum
from unlazy.core.errors import check_positive, check_positive_integer, did_you_mean
from unlazy.diagnostics.measures.losses import as_numpy
from unlazy.diagnostics.suspects import Suspects, rank_suspects
from unlazy.models.adapt import as_model
from unlazy.models.protocol import Inputs, Params
from unlazy.solvers.tangent.fit import TangentModel
from unlazy.solvers.tangent.likelihood import infer_loss, probabilities, quadratic
from unlazy.solvers.tangent.options import TangentOptions
from unlazy.solvers.tangent.posterior import describe_gap

MEASURES = ("output", "margin", "loss")
DAMPED_GAP, MAX_DOUBLINGS = 0.2, 20
"""Gap up to which τ is doubled, and how often at most."""


class TopRows(NamedTuple):
    """The training rows with the largest influence on one query.

    Attributes
    ----------
    rows : array of shape (k,)
        Indices of training rows.
    scores : array of shape (k,)
        Their influence.
    """

    rows: Int[np.ndarray, " k"]
    scores: Float[np.ndarray, " k"]


class Attribution:
    """Influence of training rows on queries, from `unlazy.attribution`.

    Attributes
    ----------
    scores : array of shape (queries, n)
        How much each training row changed the measured value of each query: positive scores raised it. Scores of a
        group of rows add up.
    measure : str
        What is measured of a query: "output", "margin" or "loss".
    prior_precision : float
        τ: weight of ½‖θ - θ_0‖² beside the sum of the losses, after damping.
    gap : float
        Share of the change of the network that is not linear in its parameters when half of the rows are left out.
    training_gap : float or None
        Linearization gap from the reference to the trained parameters, if a reference was given [W1].
    """

    def __init__(
        self, fit: TangentModel, tau: float, measure: str, weights: Float[np.ndarray, "q n c"], gap: float,
        training_gap: float | None,
    ) -> None:  # fmt: skip
        self._fit, self._weights = fit, weights
        self.prior_precision, self.measure, self.gap, self.training_gap = tau, measure, gap, training_gap
        self.scores = einsum("qnc,nc->qn", weights, fit.quadratic.coordinates)

    def top(self, k: int = 10, query: int = 0) -> TopRows:
        """The rows with the largest influence of either sign on one query.

        Parameters
        ----------
        k : int, default 10
            Number of rows.
        query : int, default 0
            Index of the query.

        Returns
        -------
        TopRows
        """
        scores = self.scores[query]
        rows = np.argsort(-np.abs(scores), kind="stable")[: check_positive_integer("k", k)]
        return TopRows(rows, scores[rows])

    def group(self, rows: NDArray[np.integer] | NDArray[np.bool_]) -> Float[np.ndarray, " q"]:
        """Predicted change of every query's measured value if a group of rows had been left out.

        Parameters
        ----------
        rows : array of int or bool
            Training rows.

        Returns
        -------
        array of shape (queries,)
        """
        left_out = np.zeros(self._fit.n, bool)
        left_out[np.asarray(rows)] = True  # a row is left out once
        return -self.scores[:, left_out].sum(1)

    def left_out(self) -> Float[np.ndarray, "q n"]:
        """Change of every query's measured value if one row had been left out, for every row.

        Unlike `group`, it counts that the row's own residual grows once it is left out: exact if the network is linear
        in its parameters and the loss is quadratic.

        Returns
        -------
        array of shape (queries, n)
        """
        return -einsum("qnc,nc->qn", self._weights, left_out_coordinates(self._fit, self._row_covariances))

    def suspects(self) -> Suspects:
        """Training rows in the order of how wrong their targets look without them.

        Rows are ranked by kernel regression on the inputs, which finds wrong labels better than any influence does, and
        also by the tangent model unless the network has fitted the noise of its targets.

        Returns
        -------
        Suspects
        """
        fit = self._fit
        classes = not fit.is_regression
        labels = fit.targets.reshape(fit.n, -1).astype(np.float64)
        if fit.loss == "cross_entropy":
            labels = np.eye(fit.c)[fit.targets.reshape(-1).astype(np.intp)]
        change = einsum(
            "nab,nbc,nc->na",
            self._row_covariances, fit.quadratic.root, left_out_coordinates(fit, self._row_covariances),
        )  # fmt: skip
        fitted, left_out = fit.outputs, fit.outputs - change
        if classes:
            fitted, left_out = probabilities(fitted, fit.loss), probabilities(left_out, fit.loss)
        return rank_suspects(_as_table(fit.inputs), labels, fitted, left_out, classes)

    @functools.cached_property
    def _row_covariances(self) -> Float[np.ndarray, "n c c"]:
        return self._fit.row_covariances(self._fit.inputs, self.prior_precision)

    def __str__(self) -> str:
        queries, n = self.scores.shape
        gap = self.gap if self.training_gap is None else self.training_gap
        text = f"Influence of {n:,} rows on the {self.measure} of {queries:,} queries. "
        return text + describe_gap(gap, "take the ranks of rows for a rough guide")


def attribution(
    network: object,
    X: Inputs,
    y: Inputs,
    queries: Inputs,
    query_targets: Inputs | None = None,
    *,
    measure: str | None = None,
    loss: str | None = None,
    decay: float | None = None,
    prior_precision: float | None = None,
    reference: object | None = None,
    options: TangentOptions | None = None,
) -> Attribution:
    """Influence of every training row on the predictions of a trained network.

    To first order the network is a linear model in its tangents, in which leaving rows out can be solved for: the
    scores use the exact inverse of the generalized Gauss-Newton matrix, not a block-diagonal approximation. They answer
    what would have become of this network; the mean over several training seeds answers for networks of its kind.

    Parameters
    ----------
    network : torch.nn.Module, Equinox module, Flax nnx module, pair (apply, params) or Model
        The trained network, see `unlazy.models.as_model`.
    X : inputs
        Training rows, in the form that the network takes.
    y : array of shape (n,) or (n, c)
        Their targets.
    queries : inputs
        Rows whose predictions are explained.
    query_targets : array, optional
        Their targets, for the measure "loss". The margin is that of the target's class, or else of the predicted one.
    measure : {"output", "margin", "loss"}, optional
        What is measured of a query: the output (of a network with one output), the log odds of a class, or the loss.
        By default the margin for classification; else the output, or the loss if there are several.
    loss : {"squared", "mse", "cross_entropy", "binary_cross_entropy"}, optional
        Loss of a training row: ½ Σ (f - y)² over outputs, the mean of (f - y)² over outputs as in `torch.nn.MSELoss`,
        or the entropies of `torch.nn`. By default cross-entropy for class labels, and "mse" otherwise.
    decay : float, optional
        Weight decay λ of a training objective mean(loss) + λ/2 ‖θ‖² (SGD with `weight_decay=λ` in PyTorch), toward 0 or
        any other center.
    prior_precision : float, optional
        τ = n λ, if it is known directly. Without both, the evidence chooses it; rankings are then much less reliable,
        as they are for networks trained without decay.
    reference : network or its parameters, optional
        The network before training, from which `training_gap` is measured; where decay is unknown, the evidence takes
        it for the center of the prior (0 by default).
    options : TangentOptions, optional
        Layers, precision, method and memory.

    Returns
    -------
    Attribution
        With `scores`, `top`, `group` and `left_out`, and the linearization gap.

    Raises
    ------
    ValueError
        If rows, targets, measure and loss do not fit together.

    References
    ----------
    Koh and Liang (2017), Understanding black-box predictions via influence functions.
    Grosse et al. (2023), Studying large language model generalization with influence functions.
    Park et al. (2023), TRAK: attributing model behavior at scale.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import numpy as np
    >>> from unlazy import attribution
    >>> X, y = np.array([[1.0], [2.0], [0.1]]), np.array([1.2, 1.8, 0.5])
    >>> found = attribution((lambda w, X: X @ w, jnp.array([0.93])), X, y, np.array([[1.0]]), decay=1e-3)
    >>> found.top(1).rows.tolist()  # the row that raised the prediction most
    [0]
    """
    options = options or TangentOptions()
    model = as_model(network, output=options.output, dtype=options.dtype)
    fit = TangentModel(model, X, as_numpy(y), loss, options)
    cotangents, measure = _cotangents(fit, queries, query_targets, measure)
    start = None if reference is None else model.stored(reference)
    tau, gap = _damped(fit, _precision(fit, decay, prior_precision, start))
    fit.warn_if_rounding(tau)
    weights = np.zeros((len(cotangents), fit.n, fit.c))
    for rows, tangents in fit.query_tangents(queries, cotangents[:, None]):
        weights[rows] = fit.system.weights(tangents, tau).reshape(-1, fit.n, fit.c)
    training_gap = None if start is None else fit.gap_from(start)
    return Attribution(fit, tau, measure, weights, gap, training_gap)


def left_out_coordinates(fit: TangentModel, covariances: Float[np.ndarray, "n c c"]) -> Float[np.ndarray, "n c"]:
    """(I - Aᵢ M Aᵢᵀ)⁻¹ qᵢ: the coordinates of every row's residual once the row is left out."""
    root = fit.quadratic.root
    leverage = einsum("nba,nbc,ncd->nad", root, covariances, root)
    return np.linalg.solve(np.eye(fit.c) - leverage, fit.quadratic.coordinates[:, :, None])[:, :, 0]


def _as_table(inputs: Inputs) -> NDArray[np.float64] | None:
    """Inputs as finite numbers, if they are one array of floats."""
    if not hasattr(inputs, "shape"):
        return None
    numbers = as_numpy(inputs)
    return numbers.astype(np.float64) if numbers.dtype.kind == "f" and np.all(np.isfinite(numbers)) else None


def _precision(
    fit: TangentModel, decay: float | None, prior_precision: float | None, reference: Params | None
) -> float:
    """τ from what is known of the training, or by the evidence."""
    if decay is not None and prior_precision is not None:
        raise ValueError("pass decay or prior_precision, not both: the second is the first times the number of rows")
    for name, value in (("decay", decay), ("prior_precision", prior_precision)):
        if value is not None:
            check_positive(name)(value)
    if prior_precision is not None:
        return prior_precision
    if decay is not None:
        return decay * fit.n
    return fit.evidence(reference).tau


def _damped(fit: TangentModel, tau: float) -> tuple[float, float]:
    """τ, doubled until leaving out half of the rows moves the network where it is close to linear, and the gap there.

    As Levenberg and Marquardt do: steps of the linear model beyond where it holds say nothing about the network.
    """
    moved = fit.removal()
    for _ in range(MAX_DOUBLINGS):
        gap = fit.gap_of(fit.system.inverse(moved, tau))
        if gap <= DAMPED_GAP:
            return tau, gap
        tau *= 2
    return tau, fit.gap_of(fit.system.inverse(moved, tau))


def _cotangents(
    fit: TangentModel, queries: Inputs, query_targets: Inputs | None, measure: str | None
) -> tuple[Float[np.ndarray, "q c"], str]:
    """Derivative of the measured value of every query by its outputs."""
    outputs = fit.evaluate(queries, "the queries")
    classes = not fit.is_regression
    if measure is None:
        measure = "margin" if classes else "output" if fit.c == 1 else "loss"
    if measure not in MEASURES:
        raise ValueError(
            f"unknown measure {measure!r}{did_you_mean(measure, MEASURES)}: choose from output, margin, loss"
        )
    targets = None if query_targets is None else as_numpy(query_targets)
    if targets is not None:
        infer_loss(outputs, targets, fit.loss)
    if measure == "loss":
        if targets is None:
            raise ValueError("the measure 'loss' needs the targets of the queries: pass query_targets")
        found = quadratic(outputs, targets, fit.loss)
        return -einsum("nab,nb->na", found.root, found.coordinates), "loss"
    if measure == "output":
        if fit.c > 1:
            raise ValueError(
                f"the network has {fit.c} outputs: choose one by options=TangentOptions(output=...), or pass "
                "measure='loss' with query_targets"
            )
        return np.ones_like(outputs), "output"
    if not classes:
        raise ValueError(f"the measure 'margin' belongs to classification, but the loss is {fit.loss!r}")
    if fit.loss == "binary_cross_entropy":
        if fit.c > 1:
            raise ValueError("several binary outputs have no single margin: pass measure='loss' with query_targets")
        sign = (
            np.sign(outputs) if targets is None else 2.0 * (targets.reshape(outputs.shape).astype(np.float64) > 0.5) - 1
        )
        return sign, "margin"
    labels = outputs.argmax(1) if targets is None else targets.reshape(-1).astype(np.intp)
    rows = np.arange(len(outputs))
    p = probabilities(outputs, fit.loss)  # margin: f_y - log Σ_{k ≠ y} exp f_k
    others = -p / np.maximum(1 - p[rows, labels], 1e-12)[:, None]
    others[rows, labels] = 1.0
    return others, "margin"
