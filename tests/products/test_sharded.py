"""Rows spread over four devices of one process, and over two processes, give the single-device result to rounding."""

import subprocess
import sys

import pytest

from several_devices import environment, two_processes

COMMON = """
import os, sys
import numpy as np
import jax, jax.numpy as jnp
{start}
from unlazy.kernels.networks.infinite_width import NTK
from unlazy.kernels.radial import Laplace
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.products import product
from unlazy.solvers.solve import SolveOptions
from unlazy.solvers.solve import solve

assert jax.device_count() == {devices}, jax.devices()
rng = np.random.default_rng(0)
X = rng.normal(size=(203, 5)).astype(np.float32)          # 203 rows do not divide by 2 or 4
Z = np.concatenate([X[:20], rng.normal(size=(30, 5)).astype(np.float32)])
V, U = rng.normal(size=(50, 2)).astype(np.float32), rng.normal(size=(203, 2)).astype(np.float32)
for kernel in ({kernels}):
    many = product(kernel, X, Z)
    one = product(kernel, X, Z, engine="blocked")
    assert many.engine == "sharded" and many.shape == (203, 50)
    K = np.abs(np.asarray(product(kernel, X, Z, engine="stored").K))
    # sums in another order: √terms roundings of Σ|K||V|, four such
    def close(a, b, size, terms):
        difference = np.abs(np.asarray(a) - np.asarray(b))
        assert np.all(difference <= 4 * np.sqrt(terms) * 2.0**-24 * size), difference.max()
    close(many.matmul(V), one.matmul(V), K @ np.abs(V), 50)
    close(many.rmatmul(U), one.rmatmul(U), K.T @ np.abs(U), 203)
    close(many.normal(V), one.normal(V), K.T @ (K @ np.abs(V)), 253)
y, single = np.sin(X[:, 0]), SolveOptions(precision="float32")
for method in ("preconditioned_cg", "nystrom_cg"):
    solution = solve(Laplace(2.0), X, y, 0.1, method=method, tolerance=1e-4, options=single)
    assert solution.converged and "sharded" in solution.notes[-1], str(solution)
    A = np.asarray(Laplace(2.0).gram(jnp.asarray(X)), np.float64)
    exact = A @ np.linalg.solve(A + 0.1 * np.eye(203), y)
    fitted = np.asarray(solution.predict(X))
    # Nyström has all points as centers here: 20√203 > 203
    assert np.linalg.norm(fitted - exact) <= 2e-4 * np.linalg.norm(y), np.linalg.norm(fitted - exact)
one = solve(Laplace(2.0), X, y, 0.1, method="askotch", tolerance=1e-4, options=single)  # on one of them
assert one.converged and "sharded" not in one.notes[-1], str(one)
print("fine")
"""


@pytest.mark.slow
def test_four_devices_in_one_process():
    program = COMMON.format(start="", devices=4, kernels="Laplace(2.0), NTK(MLP(2, sigma_b=0.1))")
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(4), capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0 and "fine" in done.stdout, done.stderr[-3000:]


@pytest.mark.slow
def test_two_processes():
    two_processes(lambda start: COMMON.format(start=start, devices=2, kernels="Laplace(2.0),"), timeout=600)
