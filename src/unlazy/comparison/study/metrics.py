"""Measures of error that a verdict may be based on, and the one that fits a table.

    regression                      rmse: squared error
    two classes                     brier: squared error of the probabilities
    two classes, one of them rare   average_precision of the rare class, to which squared errors are insensitive
    more classes                    accuracy: share of mistakes
    more classes, one dominant      log_loss, because mistakes hardly depend on the other classes

The records of trials have each of them relative to a constant prediction: 1 is no better, 0 is exact.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from unlazy.comparison.data.table import EncodedTable
from unlazy.core.errors import did_you_mean

MetricName = Literal["rmse", "brier", "accuracy", "log_loss", "average_precision"]
RARE_SHARE = 0.1
"""The smaller of two classes is rare if its share of the rows is below this."""
DOMINANT_SHARE = 0.8
"""One of several classes is dominant if its share of the rows is above this."""


@dataclass(frozen=True)
class Metric:
    """A measure of error, its key in the records of trials, and its names in sentences."""

    name: MetricName
    measure: str
    """Key of the error relative to a constant prediction."""
    error: str
    """Name of the error in plain words."""
    term: str
    """Name of the relative error in technical sentences."""
    constant: str
    """The prediction that has a relative error of 1."""

    @property
    def label(self) -> str:
        """Heading of a column with the relative error."""
        return f"{'risk' if self.measure == 'risk' else 'relative error'} (constant = 1)"


_ALL = (
    Metric("rmse", "risk", "squared error", "risk", "always predicting the mean"),
    Metric("brier", "risk", "squared error of the probabilities", "risk", "always predicting the class frequencies"),
    Metric("accuracy", "mistaken", "share of mistakes", "share of mistakes",
           "always predicting the most frequent class"),
    Metric("log_loss", "surprise", "log loss", "log loss", "always predicting the class frequencies"),
    Metric("average_precision", "missed", "shortfall of the average precision (its distance from 1)",
           "shortfall of the average precision", "a random order"),
)  # fmt: skip
METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}


def check_metric(name: str | None) -> None:
    """Raise ValueError if there is no metric of this name."""
    if name is not None and name not in METRICS:
        raise ValueError(f"unknown metric {name!r}{did_you_mean(name, METRICS)}")


def choose_metric(table: EncodedTable, asked: str | None = None) -> Metric:
    """Return the metric of this name, or the one that fits the table; raise ValueError if it does not fit the task."""
    check_metric(asked)
    if asked is None:
        return METRICS[_usual(table)]
    if (asked == "rmse") != (table.task == "regression"):
        able = [name for name in METRICS if (name == "rmse") == (table.task == "regression")]
        what = "numbers" if table.task == "regression" else "classes"
        raise ValueError(
            f"the metric {asked} does not fit the target {table.target!r}, which holds {what}; choose "
            f"{' or '.join([', '.join(able[:-1]), able[-1]] if len(able) > 1 else able)}"
        )
    return METRICS[asked]


def _usual(table: EncodedTable) -> MetricName:
    """Name of the metric that fits the table."""
    if table.task == "regression":
        return "rmse"
    counts = np.unique(table.y, return_counts=True)[1]
    if len(counts) > 2:
        return "log_loss" if counts.max() > DOMINANT_SHARE * counts.sum() else "accuracy"
    return "average_precision" if counts.min() < RARE_SHARE * counts.sum() else "brier"
