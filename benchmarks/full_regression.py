"""Full kernel regression too large for a factorization: Askotch, EigenPro, preconditioned CG and Nyström-CG.

One problem, (K + ρI)α = y with ρ = 10^-6 n (see --ridge), where K is never stored (see --memory). Every method runs in
a separate process until a residual of 10^-3 or --passes passes over K. Shown are the number of evaluated entries of K
over n² (steps and the true residual at the end, without preconditioners), CPU-seconds and wall-clock seconds including
compilation, the residual reported by `solve` (for Nyström-CG that of the restricted problem), the error on held-out
points, and CPU-seconds until the residual of the method reached 0.1, 0.01 and 0.001.

    python benchmarks/full_regression.py --points 20000 --kernel laplace
    python benchmarks/full_regression.py --points 561012 --data FOLDER                    # covtype, class 2 or not
    python benchmarks/full_regression.py --points 50000 --data FOLDER --record

Held-out error: misclassification rate for covtype, squared error over the variance otherwise.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import cpu_solvers
import numpy as np
from record import add_option, recorder

METHODS = {
    "askotch": ("askotch", {}),
    "askotch, n/100 at rank 100": ("askotch", {"rank": 100}),
    "eigenpro": ("eigenpro", {}),
    "preconditioned_cg": ("preconditioned_cg", {}),
    "nystrom_cg": ("nystrom_cg", {}),
}
LEVELS = (1e-1, 1e-2, 1e-3)


def data(points, folder):
    """Training and test points; covtype is standardized, with label +1 for the second class and -1 otherwise."""
    if folder is None:
        X, y, Z, truth = cpu_solvers.data(points)
        return X, y, Z, truth, cpu_solvers.D**0.5, False
    import large_tables

    X, y, Z, truth = large_tables.split(Path(folder), f"covtype:{points}", 0)
    shift, scale = X.mean(0), X.std(0)
    second = np.unique(y)[1]
    X, Z = (((part - shift) / scale).astype(np.float32) for part in (X, Z))
    return X, np.where(y == second, 1.0, -1.0), Z, np.where(truth == second, 1.0, -1.0), X.shape[1] ** 0.5, True


def kernel_of(name, width):
    """Kernel with this bandwidth; an NTK has none."""
    from unlazy.kernels.networks.infinite_width import NTK
    from unlazy.kernels.radial import Gaussian, Laplace, Matern
    from unlazy.theory.infinite_width.architecture import MLP

    if name == "ntk":
        return NTK(MLP(3))
    return {"laplace": Laplace, "gaussian": Gaussian, "matern": lambda h: Matern(h, 1.5)}[name](width)


def passes_of(solution, n):
    """Evaluated entries over n²: steps, and the true residual at the end if there is one."""
    centers = solution.coefficients.shape[0]
    if solution.method == "nystrom_cg":
        return (solution.steps + 2) * centers / n
    if solution.method == "eigenpro":
        return solution.steps * (1 + min(n, 2000) / n) + 2
    return solution.steps + 1


def measure(name, options):
    """In the child process: prepare the data, then time the run."""
    import warnings

    import jax

    from unlazy.solvers.method_selection import METHODS as KINDS
    from unlazy.solvers.solve import SolveOptions, solve

    warnings.simplefilter("ignore")
    X, y, Z, truth, width, classes = data(options["points"], options["data"])
    n = len(X)
    ridge = 1e-6 * n if options["ridge"] is None else options["ridge"]
    method, own = METHODS[name]
    if "rank" in name:  # sizes and μ = ρ of the paper, but with sweeps as in unlazy and μν ≤ 1: not the same algorithm
        own = {**own, "block": -(-n // 100), "momentum": min(1.0, ridge * 100)}
    kernel, reached = kernel_of(options["kernel"], options["bandwidth"] * width), {}
    jax.block_until_ready(jax.numpy.zeros(1))
    cpu, wall = time.process_time(), time.perf_counter()

    def watch(progress):
        for level in LEVELS:
            if progress.residual <= level and level not in reached:
                reached[level] = (time.process_time() - cpu, time.perf_counter() - wall)

    steps = options["passes"] * (4 if method == "nystrom_cg" else 1)
    solution = solve(
        kernel,
        X,
        y,
        ridge,
        method=KINDS[method](**own),
        tolerance=options["tolerance"],
        options=SolveOptions(max_steps=steps, memory=options["memory"], precision="float32"),
        progress=watch,
    )
    used = time.process_time() - cpu, time.perf_counter() - wall
    found = np.asarray(solution.predict(Z))
    error = np.mean(np.sign(found) != truth) if classes else np.mean((found - truth) ** 2) / np.var(truth)
    row = {
        "cpu": used[0], "wall": used[1], "passes": passes_of(solution, n), "residual": solution.residual,
        "error": float(error), "reached": {str(k): v for k, v in reached.items()},
        "remark": f"{solution.stopped} after {solution.steps} steps; {solution.notes[-1]}",
    }  # fmt: skip
    print(json.dumps(row))


def child(name, options, threads):
    """Run one method in a separate process."""
    environment = dict(os.environ)
    if threads:
        for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            environment[variable] = str(threads)
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    environment["UNLAZY_COMPILATION_CACHE"] = "off"  # compilation counts
    done = subprocess.run(
        [sys.executable, __file__, "--child", json.dumps([name, options])],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        return None, done.stderr.strip().splitlines()[-1:]
    return json.loads(done.stdout.strip().splitlines()[-1]), None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=20_000)
    parser.add_argument("--kernel", choices=("laplace", "gaussian", "matern", "ntk"), default="laplace")
    parser.add_argument("--data", help="folder with covtype.npz (default: the problem of cpu_solvers.py)")
    parser.add_argument("--bandwidth", type=float, default=1.0, help="bandwidth over √d")
    parser.add_argument("--ridge", type=float, help="added to K (default: 10^-6 n)")
    parser.add_argument("--passes", type=int, default=30)
    parser.add_argument("--tolerance", type=float, default=1e-3)
    parser.add_argument("--memory", default="500MiB", help="memory budget; K is not stored if it is below 4n² bytes")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--threads", type=int, default=1, help="number of BLAS threads; 0 for the default of BLAS")
    add_option(parser)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return measure(*json.loads(args.child))
    note = recorder(__file__, args.record)
    options = {
        k: getattr(args, k) for k in ("points", "kernel", "data", "bandwidth", "ridge", "passes", "tolerance", "memory")
    }
    where = "the problem of cpu_solvers.py" if args.data is None else "covtype"
    ridge = 1e-6 * args.points if args.ridge is None else args.ridge
    what = f"{args.kernel}, n = {args.points}, {where}, bandwidth {args.bandwidth:g} √d, ridge {ridge:g}"
    heads = "".join(f"{f'to {level:g}':>9}" for level in LEVELS)
    print(f"{what}\n{'':32}{'passes':>8}{'CPU-s':>8}{'s':>8}{'residual':>10}{'held out':>10}{heads}  (CPU-s)")
    for name in args.methods:
        row, error = child(name, options, args.threads)
        if row is None:
            print(f"{name:32} failed: {error}")
            continue
        times = "".join(f"{row['reached'].get(str(level), [np.nan])[0]:9.1f}" for level in LEVELS)
        figures = f"{row['passes']:8.1f}{row['cpu']:8.1f}{row['wall']:8.1f}{row['residual']:10.2g}{row['error']:10.4f}"
        print(f"{name:32}{figures}{times}  {row['remark']}", flush=True)
        note(f"{name}, {what}", row["cpu"], "CPU-s")
        note(f"{name}, {what}, error on held-out points", row["error"], "share")


if __name__ == "__main__":
    main()
