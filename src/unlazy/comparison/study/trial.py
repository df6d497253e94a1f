"""One trial: a candidate fitted to the first n training rows of one split and evaluated on its test rows.

Everything that depends on data (imputation, scaling, target encoding, hyperparameters, the error used for selection) is
learned from the n training rows. Errors are relative to the best constant: 1 predicts the mean (or the class
frequencies), 0 is exact.
"""

import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import PRNGKeyArray
from sklearn.pipeline import Pipeline

from unlazy.comparison.data.table import load_table, split_rows
from unlazy.comparison.study.candidates import Candidate, ModelFactory, ModelSetting, find_candidate
from unlazy.estimators.persistence.files import save
from unlazy.estimators.preprocessing.table_encoder import TableEncoder
from unlazy.lab.experiment import Measures, Params
from unlazy.measures.dependence import (
    dependence_budget,
    finite_difference_gradients,
    gradient_directions,
    output_function,
    permutation_importance,
)

FOLDS, MIN_VALIDATION_ROWS = 4, 300
"""Number of cross-validation folds for models without a closed form; only as many folds are evaluated as are needed for
this number of validation rows."""


MAX_HELD_OUT = 1000
"""Maximum number of test rows whose predictions are stored; fewer if there are many classes."""
MIN_PROBABILITY = 1e-6
"""Smaller probabilities count as this in the log loss, which would be infinite after one mistake."""
LONG_TRIAL = 5.0
"""CPU seconds from which the model of the first split is stored: there may be no time for another such fit."""


def run_trial(params: Params, key: PRNGKeyArray, folder: str) -> Measures:
    """Run one trial and return its measures: risk on the test rows, estimated error, predictions and importances."""
    began = time.process_time()
    table = load_table(folder, params["table"])
    classes = table.classes
    train, test = split_rows(table, params["split"], params.get("draw", 0))
    chosen = train[: params["n"]]
    encoder = TableEncoder(target=table.target)
    A, y = encoder.fit_transform(table.frame.iloc[chosen], table.y[chosen]), table.y[chosen]
    B, truth = encoder.transform(table.frame.iloc[test]), table.y[test]
    candidate = find_candidate(params["candidate"])
    seed = int(params["split"])
    fitted = fit_candidate(candidate, A, y, classes, seed)
    if candidate.saveable and params["split"] == 0 and time.process_time() - began >= LONG_TRIAL:
        _save_trial_model(encoder, fitted.model, trial_model_path(folder, params))
    predict = output_function(fitted.model)
    at_test = predict(B)
    columns = fitted.model.classes_ if classes is not None else None

    constant = _constant_risk(y, truth, classes)

    def loss(X: np.ndarray, y: np.ndarray = truth) -> float:
        return relative_risk(predict(X), columns, y, classes, constant)

    risk = relative_risk(at_test, columns, truth, classes, constant)
    found: dict[str, Any] = {"risk": risk, "inner": fitted.inner, "tried": fitted.tried, "constant": constant}
    if columns is not None and classes is not None:
        found["risk"] = max(found["risk"], 0.5 / len(test))  # half a test row: smaller risks cannot be resolved
        found["mistakes"] = float(np.mean(columns[np.argmax(at_test, 1)] != truth))
        at_test = align_classes(at_test, columns, classes)
        found |= _class_errors(at_test, truth, y, classes) | _ranks(at_test, truth, table.y, classes)
    if not np.isfinite(found["risk"]):
        raise FloatingPointError(f"{candidate.title} predicts non-finite values")
    kept = min(MAX_HELD_OUT, max(MAX_HELD_OUT // 10, 10 * MAX_HELD_OUT // at_test.shape[1]))
    found |= {"predicted": at_test[:kept], "held_out": test[:kept]}
    if candidate.family == "rich":
        found |= _dependence(fitted.model, loss, B, truth, encoder.source_, len(chosen), seed)
    return found | {"work": time.process_time() - began}


def trial_model_path(folder: str | Path, params: Params) -> Path:
    """File of the model of a long trial."""
    words = (params["candidate"], params["table"], params["n"], params.get("draw", 0))
    return Path(folder) / "fits" / ("-".join(map(str, words)) + ".unlazy")


def _save_trial_model(encoder: Any, model: Any, path: Path) -> None:
    """Save the pipeline; a folder that cannot be written is ignored."""
    try:
        path.parent.mkdir(exist_ok=True)
        save(Pipeline([("columns", encoder), ("model", model)]), path)
    except OSError:
        pass


def _class_errors(P: np.ndarray, truth: np.ndarray, y: np.ndarray, classes: np.ndarray) -> dict[str, float]:
    """Log loss; mistakes and log loss relative to predicting the most frequent class and the class frequencies of the
    training labels y. Ratios are at least that of half a mistake: smaller errors cannot be resolved."""
    shares = np.array([np.mean(y == c) for c in classes])
    codes, least = np.searchsorted(classes, truth), 0.5 / len(truth)
    wrong, usual = np.mean(np.argmax(P, 1) != codes), np.mean(np.argmax(shares) != codes)
    loss = _log_loss(P, codes)
    constant = _log_loss(np.tile(shares, (len(truth), 1)), codes)
    return {
        "log_loss": loss, "surprise": max(loss / max(constant, MIN_PROBABILITY), least),
        "mistaken": float(max(wrong, least) / max(usual, least)),
    }  # fmt: skip


def _log_loss(P: np.ndarray, codes: np.ndarray) -> float:
    """Mean of -log of the predicted probability of the true class, which counts as at least MIN_PROBABILITY."""
    return float(-np.mean(np.log(np.clip(P[np.arange(len(P)), codes], MIN_PROBABILITY, 1.0))))


def _ranks(probabilities: np.ndarray, truth: np.ndarray, labels: np.ndarray, classes: np.ndarray) -> dict[str, float]:
    """Ranking of the rarest class: area under the ROC curve, average precision, and 1 - average precision relative to
    chance; NaN if the class is absent from the test rows."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    rarest = int(np.argmin([np.sum(labels == c) for c in classes]))
    found = truth == classes[rarest]
    if not 0 < found.sum() < len(found):
        return dict.fromkeys(("auc", "precision", "missed"), math.nan)
    precision = float(average_precision_score(found, probabilities[:, rarest]))
    missed = max((1 - precision) / (1 - float(found.mean())), 0.5 / len(truth))
    return {"auc": float(roc_auc_score(found, probabilities[:, rarest])), "precision": precision, "missed": missed}


def _dependence(
    model: Any, loss: Callable, B: np.ndarray, truth: np.ndarray, source: np.ndarray, rows: int, seed: int
) -> dict[str, np.ndarray]:
    """Leading directions of the gradients at test rows, and the rise of the risk when inputs are permuted; for many
    columns only those with the largest weight in the model, which depends on training rows only."""
    look = dependence_budget(rows, B.shape[1])
    weight = getattr(model, "feature_importances_", None)
    weight = np.ones(B.shape[1]) if weight is None else weight
    columns = sorted(np.argsort(-weight, kind="stable")[: look.columns].tolist())
    values, leading = gradient_directions(
        finite_difference_gradients(output_function(model), B[: look.gradients], columns)
    )
    some, labels = B[: look.rows], truth[: look.rows]
    inputs = None if look.columns == B.shape[1] else sorted(set(source[columns].tolist()))
    rise = permutation_importance(lambda X: loss(X, labels), some, source, seed, look.repeats, inputs)
    return {"eigenvalues": values, "directions": leading, "rise": rise}


def _constant_risk(y: np.ndarray, truth: np.ndarray, classes: np.ndarray | None) -> float:
    """Mean squared error on the test rows of the training mean, or Brier score of the training class frequencies.

    Risks of a split are divided by it; otherwise splits would differ mainly by how hard their test rows are.
    """
    if classes is None:
        return float(np.mean((truth - y.mean()) ** 2))
    shares = np.array([np.mean(y == c) for c in classes])
    return relative_risk(np.tile(shares, (len(truth), 1)), classes, truth, classes, 1.0)


class FittedCandidate(NamedTuple):
    """A fitted model, its error estimated on its training rows, and the number of settings tried."""

    model: Any
    inner: float
    tried: int


def fit_candidate(
    candidate: Candidate, X: np.ndarray, y: np.ndarray, classes: np.ndarray | None, seed: int
) -> FittedCandidate:
    """Select the best setting by its error estimated on training rows, and fit it to all of them."""
    options = candidate.options_for(X.shape[1], 0 if classes is None else len(classes))
    best, chosen = (np.inf, options[0]), 0
    tried = 0
    known: dict[int, FittedCandidate] = {}
    for i, option in enumerate(options):
        inner, model = _validation_error(option, X, y, classes, seed)
        tried += 1
        if model is not None:
            known[i] = FittedCandidate(model, inner, tried)
        if inner < best[0]:
            best, chosen = (inner, option), i
    inner, option = best
    if chosen in known:
        return known[chosen]._replace(tried=tried)
    return FittedCandidate(_fit(option(classes is not None, seed, len(X)), X, y), inner, tried)


def _validation_error(
    option: ModelFactory, X: np.ndarray, y: np.ndarray, classes: np.ndarray | None, seed: int
) -> tuple[float, Any | None]:
    """Error estimated on training rows, and the model if the estimate required a fit to all rows."""
    setting = option(classes is not None, seed, len(X))
    if setting.validation == "cross-validation":
        return _cross_validated(option, X, y, classes, seed), None
    model = _fit(setting, X, y)
    if setting.validation == "leave-one-out":
        last = model[-1] if hasattr(model, "named_steps") else model
        return float(last.leave_one_out_error_), model
    out = model.oob_prediction_ if classes is None else model.oob_decision_function_
    return relative_risk(np.nan_to_num(out), model.classes_ if classes is not None else None, y, classes), model


def _cross_validated(
    option: ModelFactory, X: np.ndarray, y: np.ndarray, classes: np.ndarray | None, seed: int
) -> float:
    """Cross-validation error over as many folds as are needed for MIN_VALIDATION_ROWS rows.

    The minimum of several noisy errors is biased: a model validated on fewer rows than others would be selected by
    chance. All fits have the same shape, so that they share one compiled program.
    """
    order = np.random.default_rng([seed, len(X)]).permutation(len(X))
    size = max(1, len(X) // FOLDS)
    folds = min(FOLDS, -(-MIN_VALIDATION_ROWS // size))
    unit, errors = constant_error(y, classes), []
    for held in order[: folds * size].reshape(folds, size):
        kept = np.setdiff1d(order, held)
        if classes is not None and len(np.unique(y[kept])) < 2:
            return np.inf
        model = _fit(option(classes is not None, seed, len(kept)), X[kept], y[kept])
        errors.append(_error(model, X[held], y[held], classes, unit))
    return float(np.mean(errors))


def _error(model: Any, X: np.ndarray, y: np.ndarray, classes: np.ndarray | None, unit: float) -> float:
    """Mean squared error, or Brier score, divided by `unit`."""
    if classes is None:
        return relative_risk(np.asarray(model.predict(X)), None, y, None, unit)
    return relative_risk(model.predict_proba(X), model.classes_, y, classes, unit)


def _fit(setting: ModelSetting, X: np.ndarray, y: np.ndarray) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a bad setting is not selected
        return setting.model.fit(X, y)


def constant_error(y: np.ndarray, classes: np.ndarray | None) -> float:
    """Error of the best constant: the variance, or 1 - Σ p_c² for classes with frequencies p_c."""
    if classes is None:
        return float(np.var(y))
    shares = np.array([np.mean(y == c) for c in classes])
    return float(1 - np.sum(shares**2))


def relative_risk(
    predicted: np.ndarray, columns: np.ndarray | None, y: np.ndarray, classes: np.ndarray | None,
    spread: float | None = None,
) -> float:  # fmt: skip
    """Mean squared error, or Brier score Σ_c (p_c - 1{y = c})², over `spread` (by default the error of a constant)."""
    unit = constant_error(y, classes) if spread is None else spread
    if classes is None:
        found = float(np.mean((np.ravel(predicted) - y) ** 2))
    else:
        found = float(np.mean(np.sum((align_classes(predicted, columns, classes) - one_hot(y, classes)) ** 2, 1)))
    return found / unit if unit > 0 else found


def align_classes(probabilities: np.ndarray, columns: np.ndarray | None, classes: np.ndarray) -> np.ndarray:
    """Probabilities with one column per class of the table; zero for classes absent from training."""
    if columns is None or len(columns) == len(classes):
        return probabilities
    full = np.zeros((len(probabilities), len(classes)))
    full[:, np.searchsorted(classes, columns)] = probabilities
    return full


def one_hot(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """One-hot encoding, shape (rows, classes)."""
    return (y[:, None] == classes[None]).astype(np.float64)
