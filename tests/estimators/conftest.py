"""scikit-learn's checks compile a program for every shape: a few are part of the fast suite, all of the slow suite."""

import pytest

FAST = (
    "RandomFeatures",
    "KernelRegressor-check_estimators_pickle",
    "KernelRegressor-check_n_features_in",
    "KernelRegressor-check_estimators_nan_inf",
    "KernelClassifier-check_classifiers_one_label",
)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.name == "test_every_estimator.py" and item.originalname == "test_scikit_learn_check":
            estimator, check = item.callspec.params["estimator"], item.callspec.params["check"]
            name = f"{type(estimator).__name__}-{getattr(check, 'func', check).__name__}"
            if not name.startswith(FAST):
                item.add_marker(pytest.mark.slow)
