"""Width of prediction intervals as a function of the row, learned from held-out residuals.

The radius at a row with prediction f is c·g(f)·u(x)·q(f): g is one or |f| (relative errors), u the mean relative
residual of the nearest held-out rows, shrunk toward one, and q a local quantile of |residual|/(g·u) over held-out rows
of similar predictions. For c, each held-out row is compared with the radius that the rows of other folds give it: the
ratios are exchangeable with that of a new row, whatever the quality of g, u and q (Lei et al. 2018, section 5.2), up to
the small difference between radii learned from four fifths of the rows and from all. Of the possible forms, and equal
width, the one with the smallest interval score (Winkler 1972) of held-out rows is used, so that noise of constant size
keeps intervals of constant width.

Leave-one-out predictions reveal the target that they leave out where the fit is nearly constant: without the i-th of n
rows the mean is lower by (y_i - mean)/(n - 1), so the order of the predictions is the reverse order of the targets, and
|residual| would be a function of the prediction that new rows do not follow. This is visible: such targets decrease
with their held-out predictions. If the fit has the variance v over rows with noise σ, held-out predictions have the
variance v + (σ/n)², their covariance with the targets is about v - σ²/n, and their correlation with the residuals due
to left-out targets is -ρ, ρ = (σ/n)/√(v + (σ/n)²). If the covariance is not negative, v ≥ σ²/n and ρ < 1/√n is
negligible. So a window in which targets decrease with predictions is widened, to all rows if need be. Windows have all
rows from the start, so that widths do not follow the predictions, if over all rows the correlation is not positive
beyond two standard errors of 1/√n: in windows of so weak a fit targets increase and decrease by chance.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from sklearn.utils.extmath import row_norms

FOLDS = 5
MIN_ROWS = 100
"""Fewest held-out rows from which a width that varies is learned."""
MAX_ROWS = 2000
"""Largest number of held-out rows that are kept; more are sampled."""
MAX_COLUMNS = 256
"""Largest number of columns in which near rows are searched."""
SHARE, WINDOW, KNOTS = 1 / 15, 50, 41
"""A local quantile is over this share of the rows, at least WINDOW, at KNOTS places."""
NEAREST = 30
"""Number of nearest rows that are averaged, together with as many rows of mean one."""
TYPICAL, LARGEST = 0.6, 4.0
"""Residuals are divided by their local quantile of this level, and cut off at this multiple of their mean."""
SMALLEST = 1e-3
"""Smallest radius, as a multiple of the mean residual."""
RELATED = 2.0
"""Widths follow predictions if these correlate with the targets by at least this many standard errors."""
SCORED_LEVEL = 0.9
"""Level at which forms are compared."""


class HeldOutRows(NamedTuple):
    """Held-out rows of one output: predictions, residuals (with sign), inputs (or None), weights (or None) and folds.

    Residuals are target - prediction.
    """

    predictions: Float[np.ndarray, " m"]
    residuals: Float[np.ndarray, " m"]
    inputs: Float[np.ndarray, "m d"] | None
    weights: Float[np.ndarray, " m"] | None
    fold: np.ndarray


class WidthForm(NamedTuple):
    """The chosen form and what it needs: plain values that a saved file can hold."""

    relative: float
    """Smallest |f| of g(f) = |f|; 0 for g = 1."""
    predictions: np.ndarray
    residuals: np.ndarray
    """Absolute residuals."""
    weights: np.ndarray | None
    fold: np.ndarray
    factors: np.ndarray | None
    """u at every row, one line for each fold, from the rows of other folds, and a last line from all other rows."""
    ratios: np.ndarray | None
    """Relative residuals, whose means over near rows are u."""
    targets: np.ndarray | None = None  # not in files of earlier versions

    def scale(
        self, level: float, predictions: Float[np.ndarray, " n"], inputs: Float[np.ndarray, "n d"] | None,
        held_out_inputs: Float[np.ndarray, "m d"] | None,
    ) -> Float[np.ndarray, " n"]:  # fmt: skip
        """Radius at new rows, up to the factor c."""
        factor = None
        if self.ratios is not None and inputs is not None and held_out_inputs is not None:
            factor = mean_of_nearest(held_out_inputs, inputs, self.ratios, False)
        return self._scale(level, slice(None), -1, predictions, factor)

    def held_out_scale(self, level: float) -> Float[np.ndarray, " m"]:
        """Radius, up to the factor c, that the rows of other folds give to each held-out row."""
        found = np.empty(len(self.residuals))
        for k in range(FOLDS):
            mine = self.fold == k
            factor = None if self.factors is None else self.factors[k, mine]
            if mine.any():
                found[mine] = self._scale(level, ~mine, k, self.predictions[mine], factor)
        return found

    def _scale(
        self, level: float, rows: Any, line: int, predictions: np.ndarray, factor: np.ndarray | None
    ) -> np.ndarray:
        f, r = self.predictions[rows], self.residuals[rows]
        w = None if self.weights is None else self.weights[rows]
        u = 1.0 if self.factors is None else self.factors[line, rows]
        e = r / (size_of(f, self.relative) * u)
        local = local_quantile(f, e, w, level, None if self.targets is None else self.targets[rows])(predictions)
        return size_of(predictions, self.relative) * (1.0 if factor is None else factor) * local


def size_of(predictions: np.ndarray, relative: float) -> np.ndarray:
    """g(f): one, or |f| but at least `relative`."""
    return np.maximum(np.abs(predictions), relative) if relative else np.ones(len(predictions))


class LocalQuantile(NamedTuple):
    """A function of the prediction, linear between knots and constant beyond them."""

    knots: np.ndarray
    values: np.ndarray

    def __call__(self, predictions: np.ndarray) -> np.ndarray:
        return np.interp(predictions, self.knots, self.values)


def local_quantile(
    f: np.ndarray, e: np.ndarray, weights: np.ndarray | None, level: float, targets: np.ndarray | None = None
) -> LocalQuantile:
    """Quantile of e over windows of rows sorted by f, doubled while `targets` decrease with f in them.

    If targets do not increase with f, all windows have all rows.
    """
    order = np.argsort(f, kind="stable")
    m = len(f)
    size = min(m, max(WINDOW, round(SHARE * m)))
    if targets is not None:
        correlation, error = _correlation(f, targets, weights, order[None])
        size = m if correlation[0] < RELATED * error[0] else size
    begin = np.unique(np.linspace(0, m - size, KNOTS).round().astype(int))
    middle = np.median(f[order[begin[:, None] + np.arange(size)]], 1)
    values, left = np.empty(len(begin)), np.arange(len(begin))
    while len(left):
        rows = order[begin[left, None] + np.arange(size)]
        if targets is None or size == m:
            wider = np.zeros(len(left), bool)
        else:
            wider = _correlation(f, targets, weights, rows)[0] < 0
        kept = rows[~wider]
        values[left[~wider]] = (
            np.quantile(e[kept], level, axis=1) if weights is None else _weighted_quantile(e, weights, kept, level)
        )
        left, added = left[wider], min(m, 2 * size) - size
        size += added
        begin = np.clip(begin - added // 2, 0, m - size)
    knots, place = np.unique(middle, return_inverse=True)
    values = np.bincount(place, values) / np.bincount(place)
    smallest = SMALLEST * float(np.mean(e)) or np.finfo(float).tiny
    return LocalQuantile(knots, np.maximum(values, smallest))


def _correlation(
    f: np.ndarray, targets: np.ndarray, weights: np.ndarray | None, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Correlation of targets and predictions in each window, and its standard error 1/√n without a relation."""
    w = np.ones(rows.shape) if weights is None else weights[rows]
    error = np.sqrt((w**2).sum(1)) / w.sum(1)
    w = w / w.sum(1, keepdims=True)
    x, y = (part[rows] - (w * part[rows]).sum(1, keepdims=True) for part in (f, targets))
    sizes = np.sqrt((w * x**2).sum(1) * (w * y**2).sum(1))
    return np.divide((w * x * y).sum(1), sizes, out=np.zeros_like(sizes), where=sizes > 0), error


def _weighted_quantile(e: np.ndarray, weights: np.ndarray, rows: np.ndarray, level: float) -> np.ndarray:
    """The smallest value with at least this share of the weight of its window below or at it."""
    order = np.argsort(e[rows], 1)
    rows = np.take_along_axis(rows, order, 1)
    below = np.cumsum(weights[rows], 1)
    place = np.argmax(below >= level * below[:, -1:] - 1e-12, 1)
    return np.take_along_axis(e[rows], place[:, None], 1)[:, 0]


def conformal_quantile(scores: np.ndarray, weights: np.ndarray | None, rank: float) -> float:
    """The value of this rank, where weights count rows."""
    order = np.argsort(scores)
    below = np.cumsum(np.ones(len(scores)) if weights is None else weights[order])
    return float(scores[order][np.argmax(below >= min(rank, below[-1]) - 1e-9)])


def mean_of_nearest(A: np.ndarray, B: np.ndarray, ratios: np.ndarray, same: bool) -> np.ndarray:
    """Mean ratio of the rows of A nearest to each row of B, shrunk toward one; `same` excludes the row itself."""
    k = min(NEAREST + same, len(A))
    found, norms = np.empty(len(B)), row_norms(A, squared=True)
    for i in range(0, len(B), 1000):
        D = norms - 2 * B[i : i + 1000] @ A.T
        if same:
            D[np.arange(len(D)), np.arange(i, i + len(D))] = -np.inf
        near = np.argpartition(D, k - 1, 1)[:, :k]
        total = ratios[near].sum(1) - (ratios[i : i + 1000] if same else 0)
        found[i : i + 1000] = (total + NEAREST) / (k - same + NEAREST)
    return found


def choose_width(rows: HeldOutRows) -> WidthForm | None:
    """Return the form with the smallest interval score of held-out rows; None for equal width."""
    r, w = np.abs(rows.residuals), rows.weights
    if len(r) < MIN_ROWS or not np.quantile(r, SCORED_LEVEL) > 0:
        return None
    best, least = None, interval_score(r, conformal_quantile(r, w, SCORED_LEVEL * _total(rows)), w)
    smallest = float(np.quantile(np.abs(rows.predictions), 0.05))
    for relative in (0.0, smallest) if smallest > 0 and (rows.predictions > 0).mean() > 0.98 else (0.0,):
        targets = rows.predictions + rows.residuals
        plain = WidthForm(relative, rows.predictions, r, w, rows.fold, None, None, targets)
        for form in (plain, plain if rows.inputs is None else _with_inputs(plain, rows.inputs)):
            own = form.held_out_scale(SCORED_LEVEL)
            c = conformal_quantile(r / own, w, SCORED_LEVEL * _total(rows))
            score = interval_score(r, c * own, w)
            if score < least:
                best, least = form, score
    return best


def _total(rows: HeldOutRows) -> float:
    return len(rows.residuals) if rows.weights is None else float(rows.weights.sum())


def _with_inputs(form: WidthForm, inputs: np.ndarray) -> WidthForm:
    """Add the factor u of the inputs."""
    factors = np.empty((FOLDS + 1, len(inputs)))
    ratios = np.zeros(len(inputs))
    for k in range(FOLDS + 1):
        mine = form.fold == k  # none for the last
        ratios = _relative_residuals(form, ~mine)
        factors[k, ~mine] = mean_of_nearest(inputs[~mine], inputs[~mine], ratios, True)
        factors[k, mine] = mean_of_nearest(inputs[~mine], inputs[mine], ratios, False)
    return form._replace(factors=factors, ratios=ratios)


def _relative_residuals(form: WidthForm, rows: np.ndarray) -> np.ndarray:
    """Residuals over their local size, cut off, with mean one."""
    f, w = form.predictions[rows], None if form.weights is None else form.weights[rows]
    e = form.residuals[rows] / size_of(f, form.relative)
    targets = None if form.targets is None else form.targets[rows]
    ratios = e / local_quantile(f, e, w, TYPICAL, targets)(f)
    ratios = np.minimum(ratios / max(float(np.mean(ratios)), 1e-300), LARGEST)
    return ratios / max(float(np.mean(ratios)), 1e-300)


def interval_score(residuals: np.ndarray, radius: np.ndarray | float, weights: np.ndarray | None) -> float:
    """Mean of width + excess·2/(1 - level), which is smallest for the true quantiles; half of it, as radii are."""
    return float(np.average(radius + np.maximum(residuals - radius, 0) / (1 - SCORED_LEVEL), weights=weights))


def held_out_folds(inputs: np.ndarray | None, m: int) -> np.ndarray:
    """Fold of each row, the same for equal inputs."""
    group = np.arange(m) if inputs is None else np.unique(inputs, axis=0, return_inverse=True)[1].ravel()
    return np.random.default_rng(0).permutation(int(group.max()) + 1)[group] % FOLDS
