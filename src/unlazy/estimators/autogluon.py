"""The feature machine as a model of AutoGluon and TabArena; requires `autogluon.tabular`.

from autogluon.tabular import TabularPredictor
from unlazy.estimators.autogluon import FeatureMachineModel

TabularPredictor("price").fit(train, hyperparameters={FeatureMachineModel: {}})
"""

import time
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from autogluon.common.utils.pandas_utils import get_approximate_df_mem_usage
from autogluon.core.constants import BINARY, MULTICLASS, REGRESSION
from autogluon.core.models import AbstractModel
from autogluon.core.utils.exceptions import TimeLimitExceeded

from unlazy.core.progress import Progress
from unlazy.estimators.feature_machine.machines import FeatureMachineClassifier, FeatureMachineRegressor

SEARCH_FACTOR = 20.0
"""A fit with a search takes 4 to 15 times as long as one kernel (500 to 3,000 rows); it is tried if there is time for
this multiple."""
LARGE_N = 20_000
"""Rows beyond which no Gram matrix of all rows is kept."""
GRAM_COPIES = 6
"""Gram matrices in memory at the peak of a fit."""
OVERHEAD_BYTES = 5e8
"""Memory of the process itself."""


class FeatureMachineModel(AbstractModel):
    """Feature machine in the form that AutoGluon and TabArena expect.

    Hyperparameters are the arguments of `FeatureMachineRegressor` and `FeatureMachineClassifier`; text, categories,
    dates and missing values are encoded by the machine. With a time limit, one kernel is fitted first (`effort="low"`),
    and is the result if the search does not finish in time; without one, or if `effort` is given, the machine is fitted
    once. A refit to all rows has the effort of the fit. Validation rows are not used: the machine chooses by held-out
    rows of its own.
    """

    ag_key = "UNLAZY_FM"
    ag_name = "FeatureMachine"
    seed_name = "random_state"
    _supported_problem_types: ClassVar[list[str]] = [BINARY, MULTICLASS, REGRESSION]

    def _fit(
        self, X: pd.DataFrame, y: pd.Series, time_limit: float | None = None, num_cpus: int = 1, **_: Any
    ) -> None:  # fmt: skip
        deadline = time.monotonic() + (np.inf if time_limit is None else time_limit)
        X, y = self.preprocess(X, y=y, is_train=True), np.asarray(y)
        params = self._get_model_params()
        if time_limit is None or "effort" in params:
            self.model = self._fit_machine(X, y, params | {"n_jobs": num_cpus}, deadline)
            return
        started = time.monotonic()
        self.model = self._fit_machine(X, y, params | {"n_jobs": num_cpus, "effort": "low"}, deadline)
        took, effort = time.monotonic() - started, "low"
        if time.monotonic() + SEARCH_FACTOR * took < deadline:
            try:
                self.model = self._fit_machine(X, y, params | {"n_jobs": num_cpus}, deadline)
                effort = "medium"
            except TimeLimitExceeded:
                pass  # the single kernel is the result
        self.params_trained["effort"] = effort

    def _fit_machine(self, X: pd.DataFrame, y: np.ndarray, params: dict[str, Any], deadline: float) -> Any:
        """A fitted machine; raise TimeLimitExceeded at the first step after the deadline."""

        def check(_: Progress) -> None:
            if time.monotonic() > deadline:
                raise TimeLimitExceeded

        kind = FeatureMachineRegressor if self.problem_type == REGRESSION else FeatureMachineClassifier
        model = kind(**params, progress=check).fit(X, y)
        model.progress = False  # a function of this process would not pickle
        return model

    def _predict_proba(self, X: pd.DataFrame, **kwargs: Any) -> np.ndarray:
        X = self.preprocess(X, **kwargs)
        if self.problem_type == REGRESSION:
            return np.asarray(self.model.predict(X))
        share = np.asarray(self.model.predict_proba(X))
        if self.problem_type == MULTICLASS and share.shape[1] < self.num_classes:  # a fold may lack a class
            every = np.zeros((len(share), self.num_classes), share.dtype)
            every[:, np.asarray(self.model.classes_, int)] = share
            share = every
        return self._convert_proba_to_unified_form(share)

    def _more_tags(self) -> dict[str, bool]:
        return {"can_refit_full": True}

    @classmethod
    def _estimate_memory_usage_static(cls, *, X: pd.DataFrame, **_: Any) -> int:
        gram = 8 * min(len(X), LARGE_N) ** 2
        return int(GRAM_COPIES * gram + 10 * get_approximate_df_mem_usage(X).sum() + OVERHEAD_BYTES)
