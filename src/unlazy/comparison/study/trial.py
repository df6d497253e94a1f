"""One trial: one contestant, fitted to the first n training rows of one split, judged on its test rows.

Everything that looks at data (filling in, scaling, categories by their mean target, settings, the error that choices go
by) is learned from the n training rows. Errors are in units of the best constant's: 1 knows nothing but the mean (or
the shares of the classes), 0 is exact.
"""

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unlazy.comparison.data.table import load_table, split
from unlazy.comparison.study.contestants import Contestant, Maker, Setting, find
from unlazy.lab.experiment import Params
from unlazy.measures.dependence import affordable, directions_of, gradients, outputs, permutation_rise

QUARTERS, JUDGES = 4, 300
"""Where no closed form judges a setting, quarters of the training rows do: all of them, or as make so many rows."""


HELD_OUT = 1000
"""Test rows, at most, whose predictions are kept; fewer where there are many classes."""
LONG = 5.0
"""Seconds of work from which the model of a first split is kept: there may be no time for another like it."""


def run_trial(params: Params, key: Any, folder: str) -> dict[str, Any]:
    """Risk on the test rows and the evidence for it."""
    from unlazy.estimators.preprocessing.table_encoder import TableEncoder

    began = time.process_time()
    table = load_table(folder, params["table"])
    classes = table.classes
    train, test = split(table, params["split"], params.get("draw", 0))
    chosen = train[: params["n"]]
    encoder = TableEncoder(target=table.target)
    A, y = encoder.fit_transform(table.frame.iloc[chosen], table.y[chosen]), table.y[chosen]
    B, truth = encoder.transform(table.frame.iloc[test]), table.y[test]
    contestant = find(params["contestant"])
    seed = int(params["split"])
    fitted = fit_contestant(contestant, A, y, classes, seed)
    if contestant.saveable and params["split"] == 0 and time.process_time() - began >= LONG:
        _keep(encoder, fitted.model, kept_file(folder, params))
    predict = outputs(fitted.model)
    at_test = predict(B)
    columns = fitted.model.classes_ if classes is not None else None

    constant = _constant_risk(y, truth, classes)

    def loss(X: np.ndarray, y: np.ndarray = truth) -> float:
        return risk_of(predict(X), columns, y, classes, constant)

    risk = risk_of(at_test, columns, truth, classes, constant)
    found: dict[str, Any] = {"risk": risk, "inner": fitted.inner, "tried": fitted.tried, "constant": constant}
    if columns is not None and classes is not None:
        found["risk"] = max(found["risk"], 0.5 / len(test))  # half a row: less cannot be told apart on so many
        found["mistakes"] = float(np.mean(columns[np.argmax(at_test, 1)] != truth))
        at_test = aligned(at_test, columns, classes)
        found |= _ranks(at_test, truth, table.y, classes)
    if not np.isfinite(found["risk"]):
        raise FloatingPointError(f"{contestant.title} predicts values that are not finite")
    kept = min(HELD_OUT, max(HELD_OUT // 10, 10 * HELD_OUT // at_test.shape[1]))
    found |= {"predicted": at_test[:kept], "held_out": test[:kept]}
    if contestant.family == "rich":
        found |= _dependence(fitted.model, loss, B, truth, encoder.source_, len(chosen), seed)
    return found | {"work": time.process_time() - began}


def kept_file(folder: str | Path, params: Params) -> Path:
    """Where the model of a trial that took long is kept."""
    words = (params["contestant"], params["table"], params["n"], params.get("draw", 0))
    return Path(folder) / "fits" / ("-".join(map(str, words)) + ".unlazy")


def _keep(encoder: Any, model: Any, path: Path) -> None:
    """The pipeline as a file; a folder that takes none has none."""
    from sklearn.pipeline import Pipeline

    from unlazy.estimators.persistence.files import save

    try:
        path.parent.mkdir(exist_ok=True)
        save(Pipeline([("columns", encoder), ("model", model)]), path)
    except OSError:
        pass


def _ranks(probabilities: np.ndarray, truth: np.ndarray, labels: np.ndarray, classes: np.ndarray) -> dict[str, float]:
    """How well the rarest class is ranked before the others: area under the ROC curve, average precision, and what of
    it is missed, in units of a guess's; a test without it says what a guess would."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    rarest = int(np.argmin([np.sum(labels == c) for c in classes]))
    found, share = truth == classes[rarest], float(np.mean(labels == classes[rarest]))
    if not 0 < found.sum() < len(found):
        return {"auc": 0.5, "precision": share, "missed": 1.0}
    precision = float(average_precision_score(found, probabilities[:, rarest]))
    missed = max((1 - precision) / (1 - float(found.mean())), 0.5 / len(truth))
    return {"auc": float(roc_auc_score(found, probabilities[:, rarest])), "precision": precision, "missed": missed}


def _dependence(
    model: Any, loss: Callable, B: np.ndarray, truth: np.ndarray, source: np.ndarray, rows: int, seed: int
) -> dict[str, np.ndarray]:
    """Directions of its gradients at test rows, and the rise of the risk when inputs are shuffled; of many columns
    those that weigh most to the model itself, which has seen training rows alone."""
    look = affordable(rows, B.shape[1])
    weight = getattr(model, "feature_importances_", None)
    weight = np.ones(B.shape[1]) if weight is None else weight
    columns = sorted(np.argsort(-weight, kind="stable")[: look.columns].tolist())
    values, leading = directions_of(gradients(outputs(model), B[: look.gradients], columns))
    some, labels = B[: look.rows], truth[: look.rows]
    inputs = None if look.columns == B.shape[1] else sorted(set(source[columns].tolist()))
    rise = permutation_rise(lambda X: loss(X, labels), some, source, seed, look.repeats, inputs)
    return {"eigenvalues": values, "directions": leading, "rise": rise}


def _constant_risk(y: np.ndarray, truth: np.ndarray, classes: np.ndarray | None) -> float:
    """Mean squared error of the training rows' mean, or Brier score of their class shares, on the test rows.

    The unit of the split's risks: rows that are hard for all would otherwise be what differs between splits.
    """
    if classes is None:
        return float(np.mean((truth - y.mean()) ** 2))
    shares = np.array([np.mean(y == c) for c in classes])
    return risk_of(np.tile(shares, (len(truth), 1)), classes, truth, classes, 1.0)


class Fitted(NamedTuple):
    """A model fitted to all the rows it was given, its error estimated on them alone, how many settings it tried."""

    model: Any
    inner: float
    tried: int


def fit_contestant(
    contestant: Contestant, X: np.ndarray, y: np.ndarray, classes: np.ndarray | None, seed: int
) -> Fitted:
    """The best setting by training rows alone, refitted to all of them."""
    options = contestant.tried(X.shape[1])
    best, chosen = (np.inf, options[0]), 0
    tried = 0
    known: dict[int, Fitted] = {}
    for i, option in enumerate(options):
        inner, model = _judged(option, X, y, classes, seed)
        tried += 1
        if model is not None:
            known[i] = Fitted(model, inner, tried)
        if inner < best[0]:
            best, chosen = (inner, option), i
    inner, option = best
    if chosen in known:
        return known[chosen]._replace(tried=tried)
    return Fitted(_fit(option(classes is not None, seed, len(X)), X, y), inner, tried)


def _judged(
    option: Maker, X: np.ndarray, y: np.ndarray, classes: np.ndarray | None, seed: int
) -> tuple[float, Any | None]:
    """The error on rows that a fit has not seen, and the model where judging it fitted all rows."""
    setting = option(classes is not None, seed, len(X))
    if setting.judge == "quarters":
        return _cross_validated(option, X, y, classes, seed), None
    model = _fit(setting, X, y)
    if setting.judge == "leave-one-out":
        last = model[-1] if hasattr(model, "named_steps") else model
        return float(last.leave_one_out_error_), model
    out = model.oob_prediction_ if classes is None else model.oob_decision_function_
    return risk_of(np.nan_to_num(out), model.classes_ if classes is not None else None, y, classes), model


def _cross_validated(option: Maker, X: np.ndarray, y: np.ndarray, classes: np.ndarray | None, seed: int) -> float:
    """The error over quarters of the rows, each held out from a fit to the rest; as many quarters as make JUDGES rows.

    Few rows say little of a model, and the smallest of several noisy errors is too small: a model judged by fewer rows
    than its rivals would be chosen for its luck. All fits have one shape, so that one program serves them.
    """
    order = np.random.default_rng([seed, len(X)]).permutation(len(X))
    size = max(1, len(X) // QUARTERS)
    folds = min(QUARTERS, -(-JUDGES // size))
    unit, errors = spread_of(y, classes), []
    for held in order[: folds * size].reshape(folds, size):
        kept = np.setdiff1d(order, held)
        if classes is not None and len(np.unique(y[kept])) < 2:
            return np.inf
        model = _fit(option(classes is not None, seed, len(kept)), X[kept], y[kept])
        errors.append(_error(model, X[held], y[held], classes, unit))
    return float(np.mean(errors))


def _error(model: Any, X: np.ndarray, y: np.ndarray, classes: np.ndarray | None, unit: float) -> float:
    """Mean squared error of predictions, or of class probabilities (Brier), over `unit`."""
    if classes is None:
        return risk_of(np.asarray(model.predict(X)), None, y, None, unit)
    return risk_of(model.predict_proba(X), model.classes_, y, classes, unit)


def _fit(setting: Setting, X: np.ndarray, y: np.ndarray) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a trial run of a setting says is no news; a bad one is not chosen
        return setting.model.fit(X, y)


def spread_of(y: np.ndarray, classes: np.ndarray | None) -> float:
    """Error of the constant: the variance, or 1 - Σ p_c² for classes of shares p_c."""
    if classes is None:
        return float(np.var(y))
    shares = np.array([np.mean(y == c) for c in classes])
    return float(1 - np.sum(shares**2))


def risk_of(
    predicted: np.ndarray, columns: np.ndarray | None, y: np.ndarray, classes: np.ndarray | None,
    spread: float | None = None,
) -> float:  # fmt: skip
    """Mean squared error, or Brier score Σ_c (p_c - 1{y = c})², over `spread` (by default the constant's on y)."""
    unit = spread_of(y, classes) if spread is None else spread
    if classes is None:
        found = float(np.mean((np.ravel(predicted) - y) ** 2))
    else:
        found = float(np.mean(np.sum((aligned(predicted, columns, classes) - one_hot(y, classes)) ** 2, 1)))
    return found / unit if unit > 0 else found


def aligned(probabilities: np.ndarray, columns: np.ndarray | None, classes: np.ndarray) -> np.ndarray:
    """Probabilities by class of the whole table; a class that training never met has none."""
    if columns is None or len(columns) == len(classes):
        return probabilities
    full = np.zeros((len(probabilities), len(classes)))
    full[:, np.searchsorted(classes, columns)] = probabilities
    return full


def one_hot(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Indicators (rows, classes)."""
    return (y[:, None] == classes[None]).astype(np.float64)
