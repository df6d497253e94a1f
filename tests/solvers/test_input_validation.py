"""Inputs of decompose, posterior, ensemble, evidence and solutions: all numeric types; others raise."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from unlazy.kernels.radial import Laplace
from unlazy.solvers.gaussian_process.posterior import (
    ensemble,
    log_marginal_likelihood,
    posterior,
    prior,
    trained_random_features,
)
from unlazy.solvers.path import decompose
from unlazy.solvers.solve import SolveOptions, solve

KERNEL = Laplace(1.5)
X = np.array([[1, 2], [0, 3], [2, 2], [1, 0]])
Y = np.array([1, 0, 2, 1])
Z = np.array([[1, 1], [0, 2]])
FORMS = {
    "lists": lambda a: a.tolist(), "int64": lambda a: a, "float16": lambda a: a.astype(np.float16),
    "bfloat16": lambda a: jnp.asarray(a, jnp.bfloat16), "frame": pd.DataFrame, "float64": lambda a: a.astype(float),
}  # fmt: skip


def _entry_points(X, y, Z):
    spectrum = decompose(KERNEL, X)
    path, flow = spectrum.ridge_path(y, [0.1, 1.0]), spectrum.flow(y, [1.0], f0=y)
    gp = posterior(KERNEL, X, y, Z, 0.1)
    return (
        path.predict(Z), flow.predict(Z, f0=Z), spectrum.leave_one_out(y, 0.1), spectrum.gcv(y, 0.1), gp.mean,
        gp.covariance, ensemble(KERNEL, KERNEL, X, y, Z, 1.0).mean, trained_random_features(KERNEL, X, y, Z, 1.0).mean,
        prior(KERNEL, Z).covariance, log_marginal_likelihood(KERNEL, X, y, 0.1),
        solve(KERNEL, X, y, 0.1, options=SolveOptions(precision="float32")).predict(Z),
    )  # fmt: skip


@pytest.mark.nightly
@pytest.mark.slow
def test_all_input_types_give_the_same_result():
    labels = np.stack([Y, 1 - Y], 1)
    expected = _entry_points(*(jnp.asarray(a, jnp.float32) for a in (X, labels, Z)))
    for name, form in FORMS.items():
        for got, wanted in zip(_entry_points(form(X), form(labels), form(Z)), expected):
            assert got.dtype == jnp.float32 and np.array_equal(got, wanted), name


def _nan(a, row=1):
    a = a.astype(float)
    a.reshape(len(a), -1)[row, 0] = np.nan
    return a


def test_wrong_lengths_and_values_raise():
    spectrum = decompose(KERNEL, X)
    padded = decompose(KERNEL, X, weights=[1, 1, 1, 0])
    path, flow = spectrum.ridge_path(Y, 0.1), spectrum.flow(Y, 1.0, f0=Y)
    solution = solve(KERNEL, X, Y, 0.1)
    gp = lambda X, y, Z: [f(KERNEL, X, y, Z) for f in (posterior, trained_random_features)]  # noqa: E731
    both = lambda X, y, Z: ensemble(KERNEL, KERNEL, X, y, Z)  # noqa: E731
    lengths = "one row for each of the 4 rows of X"
    cases = [
        (lambda: decompose(KERNEL, Y), r"reshape\(-1, 1\)"),
        (lambda: decompose(KERNEL, np.zeros((0, 2))), "empty"),
        (lambda: decompose(KERNEL, _nan(X)), "row 1"),
        (lambda: decompose(KERNEL, X, weights=np.ones(3)), f"weights must have {lengths}"),
        (lambda: decompose(KERNEL, X, weights=np.ones((4, 1))), "weights must have one value"),
        (lambda: spectrum.ridge_path(Y[:3], 0.1), f"y must have {lengths}"),
        (lambda: spectrum.ridge_path(_nan(Y), 0.1), "y has NaN or infinity in 1 rows"),
        (lambda: spectrum.leave_one_out(Y[:3], 0.1), lengths),
        (lambda: spectrum.gcv(Y[:3], 0.1), lengths),
        (lambda: padded.ridge_path(Y[:3], 0.1), lengths),
        (lambda: padded.ridge_path(_nan(Y), 0.1), "NaN"),
        (lambda: spectrum.flow(Y, 1.0, f0=Y[:3]), f"f0 must have {lengths}"),
        (lambda: spectrum.flow(Y, 1.0, f0=np.ones((4, 2))), r"f0 must have the values.*\(4,\), got \(4, 2\)"),
        (lambda: flow.predict(Z, f0=Y), "f0 must have one row for each of the 2 rows of Z"),
        (lambda: path.predict(Z[0]), r"Z.reshape\(1, -1\)"),
        (lambda: path.predict(np.ones((2, 3))), "X has 2 columns and Z has 3"),
        (lambda: path.predict(_nan(Z)), "NaN or infinity in 1 rows, first in row 1"),
        (lambda: path.predict(1e30 * np.ones((2, 2))), "overflow.*rescale"),
        (lambda: solution.predict(_nan(Z)), "NaN or infinity in 1 rows, first in row 1"),
        (lambda: solution.predict(Z[0]), r"reshape\(1, -1\)"),
        (lambda: gp(X, Y[:3], Z), f"y must have {lengths}"),
        (lambda: gp(X, Y, np.ones((2, 3))), "X has 2 columns and Z has 3"),
        (lambda: gp(X, Y, _nan(Z)), "row 1"),
        (lambda: both(X, Y[:3], Z), f"y must have {lengths}"),
        (lambda: both(X, Y, np.ones((2, 3))), "X has 2 columns and Z has 3"),
        (lambda: both(X, Y, _nan(Z)), "row 1"),
        (lambda: prior(KERNEL, Z[0]), r"Z.reshape\(-1, 1\)"),
        (lambda: prior(KERNEL, _nan(Z)), "row 1"),
        (lambda: log_marginal_likelihood(KERNEL, X, Y[:3]), f"y must have {lengths}"),
        (lambda: log_marginal_likelihood(KERNEL, _nan(X), Y), "row 1"),
        (lambda: solve(KERNEL, pd.DataFrame({"a": ["x", "y"]}), [1.0, 2.0], 0.1), "'x' in column 'a'"),
    ]
    for call, sentence in cases:
        with pytest.raises(ValueError, match=sentence):
            call()


def test_labels_of_padded_rows_may_be_anything():
    padded = decompose(KERNEL, X, weights=[1, 1, 1, 0])
    wild = np.array([1.0, 0.0, 2.0, np.nan])
    assert np.array_equal(padded.ridge_path(wild, 0.1).fitted[:3], padded.ridge_path(Y, 0.1).fitted[:3])
