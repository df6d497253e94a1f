"""Kernel ridge regression on ten million points on one GPU: 15 iterations of Nyström-CG, after compilation.

    python benchmarks/gpu_nystrom.py [--n 10000000] [--centers 32768] [--kernel gaussian|ntk] [--record]

Lower bound: 31 passes over n·M pairs (two per iteration, one for the right-hand side; two more passes check the
residual) at the speed of the fused product, plus M³ work for the preconditioner. The output shows where the time was
spent.
"""

import argparse
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from record import add_option, recorder

from unlazy.kernels.networks.infinite_width import NTK
from unlazy.kernels.radial import Gaussian
from unlazy.products import product
from unlazy.solvers.methods.nystrom_cg import NystromCG
from unlazy.solvers.solve import SolveOptions, solve
from unlazy.theory.infinite_width.architecture import MLP

warnings.simplefilter("ignore")


def data(n: int, d: int, seed: int):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d), dtype=np.float32)
    y = np.sin(X[:, 0]) + 0.5 * X[:, 1] * np.tanh(X[:, 2]) + 0.3 * np.cos(X[:, 3] + X[:, 4])
    return X, y.astype(np.float32)


def seconds_of(call) -> float:
    """Seconds of the second call; the first one compiles."""
    jax.block_until_ready(call())
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=10_000_000)
    parser.add_argument("--centers", type=int, default=32_768)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--kernel", choices=["gaussian", "ntk"], default="gaussian")
    add_option(parser)
    options = parser.parse_args()
    note = recorder(__file__, options.record)
    d = 28
    kernel = Gaussian(2 * d**0.5) if options.kernel == "gaussian" else NTK(MLP(2))
    X, y = data(options.n, d, 0)
    X_test, y_test = data(10_000, d, 1)
    y = y + 0.1 * np.random.default_rng(2).standard_normal(y.shape, dtype=np.float32)
    ridge = 1e-6 * options.n

    def run(steps: int):
        start = time.perf_counter()
        solution = solve(
            kernel,
            X,
            y,
            ridge,
            method=NystromCG(centers=options.centers),
            tolerance=1e-12,
            options=SolveOptions(max_steps=steps, precision="float32"),
            progress=False,
        )
        return solution, time.perf_counter() - start

    run(1)  # compiles
    _, first = run(1)
    solution, seconds = run(options.steps)
    error = float(np.sqrt(np.mean((np.asarray(solution.predict(X_test)) - y_test) ** 2)))
    K = product(kernel, jnp.asarray(X), jnp.asarray(X[: options.centers]))
    one_pass = seconds_of(lambda: K.matmul(jnp.ones(options.centers)))
    back = seconds_of(lambda: K.rmatmul(jnp.ones(options.n)))
    size = f"n = {options.n}, d = {d}, {options.centers} centers, {options.steps} iterations"
    print(f"{options.kernel}: {size}: {seconds:.2f} s")
    note(f"{options.kernel}, {size}", seconds, "s")
    print(f"  residual {solution.residual:.2e}, test rmse {error:.4f} (label noise 0.1, target std {y_test.std():.2f})")
    speed, speed_back = (options.n * options.centers / t / 1e12 for t in (one_pass, back))
    print(f"  K v {one_pass:.3f} s = {speed:.2f} Tpairs/s, the transpose {back:.3f} s = {speed_back:.2f}")
    iteration = (seconds - first) / (options.steps - 1)
    print(f"  one iteration {iteration:.3f} s; setup and one step {first:.2f} s")
    print(f"  lower bound: {2 * options.steps + 1} products {options.steps * (one_pass + back) + back:.2f} s")
    print(f"  {solution.why} {solution.notes}")


if __name__ == "__main__":
    main()
