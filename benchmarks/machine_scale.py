"""Claim: a feature machine without arguments learns a single index from any number of rows, in time and memory that
grow more slowly than the number of rows, and more rows give a smaller error.

x ~ N(0, I_d), y = sin 2s + s²/2 with s = u·x, plus noise of a tenth of its variance. Every size runs in a separate
process, which fits several times; times are those of the last fit, without compilation. Excess risk is the squared
error at 4,000 new points without noise, over the variance of y. It is reported for points whose index s lies within the
range of the training rows, and for all points: outside that range, where s²/2 is steepest, one point may outweigh all
others.

With --fixed, fixed kernels are run for comparison, each with several bandwidths.

    python benchmarks/machine_scale.py [--columns 20] [--rows 500 1000 2000 4000 8000 20000] [--fits 3] [--record]
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np
from record import add_option, recorder

SIZES = (500, 1000, 2000, 4000, 8000, 20_000)
NOISE = 0.1
TESTS = 4000


def single_index(n: int, d: int, seed: int) -> tuple[np.ndarray, ...]:
    """Inputs, noisy labels, new inputs, their noiseless labels, and whether they lie within the training range."""
    rng = np.random.default_rng(seed)
    X, u = rng.normal(size=(n + TESTS, d)), rng.normal(size=d)
    s = X @ u / np.linalg.norm(u)
    f = np.sin(2 * s) + s**2 / 2
    y = f[:n] + np.sqrt(NOISE * f.var()) * rng.normal(size=n)
    inside = (s[n:] >= s[:n].min()) & (s[n:] <= s[:n].max())
    return X[:n], y, X[n:], f[n:], inside


def fitted(n: int, d: int, fits: int, seed: int) -> dict[str, float]:
    """CPU-seconds and seconds of the last of several fits, excess risk, and peak memory of the process."""
    from unlazy import FeatureMachineRegressor

    X, y, Z, truth, inside = single_index(n, d, seed)
    for _ in range(fits):
        cpu, clock = time.process_time(), time.perf_counter()
        model = FeatureMachineRegressor().fit(X, y)
        found = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - clock}
    wrong = (model.predict(Z) - truth) ** 2 / y.var()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # kilobytes on Linux
    excess = {"inside": float(wrong[inside].mean()), "everywhere": float(wrong.mean())}
    return found | excess | {"peak": peak, "updates": model.n_updates_}


def fixed(n: int, d: int, seed: int) -> dict[str, float]:
    """Excess risk of fixed kernels within the training range; bandwidths are in units of √d."""
    from unlazy import MLP, NTK, Gaussian, Laplace, Matern, SolveOptions, solve

    X, y, Z, truth, inside = single_index(n, d, seed)
    X, Z, center, found = X.astype(np.float32), Z.astype(np.float32), y.mean(), {}
    kernels = {f"gaussian, {h} √d": Gaussian(h * d**0.5) for h in (0.5, 1)}
    kernels |= {f"laplace, {h} √d": Laplace(h * d**0.5) for h in (1, 3)}
    kernels |= {"matern 5/2, 1 √d": Matern(d**0.5, 2.5), "ntk, depth 3": NTK(MLP(3))}
    for name, kernel in kernels.items():
        started = time.perf_counter()
        solution = solve(kernel, X, y - center, 1e-6 * n, tolerance=1e-2, options=SolveOptions(max_steps=20))
        wrong = (np.asarray(solution.predict(Z)) + center - truth) ** 2 / y.var()
        found[name] = float(wrong[inside].mean())
        seconds = time.perf_counter() - started
        print(f"    {name}: excess {found[name]:.5f}, {seconds:.1f} s, {solution.method}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--rows", type=int, nargs="*", default=list(SIZES))
    parser.add_argument("--fits", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fixed", action="store_true", help="also run fixed kernels")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    add_option(parser)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(fitted(given.one, given.columns, given.fits, given.seed)))
        return
    note = recorder(__file__, given.record)
    for n in given.rows:
        asked = [
            sys.executable,
            __file__,
            "--one",
            n,
            "--columns",
            given.columns,
            "--fits",
            given.fits,
            "--seed",
            given.seed,
        ]
        done = subprocess.run(list(map(str, asked)), capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr[-1500:])
        r = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{n} × {given.columns}: {r['cpu']:.1f} CPU-s, {r['wall']:.1f} s, excess {r['inside']:.5f} "
            f"(everywhere {r['everywhere']:.5f}), {r['peak']:.2f} GiB, {r['updates']} updates", flush=True,
        )  # fmt: skip
        what = f"single index, {n} rows × {given.columns} columns"
        note(what, r["cpu"], "CPU-s")
        note(f"{what}: excess risk", r["inside"], "of the variance")
        note(f"{what}: excess risk, beyond the training range too", r["everywhere"], "of the variance")
        note(f"{what}: peak memory", r["peak"], "GiB")
        if given.fixed:
            for name, excess in fixed(n, given.columns, given.seed).items():
                note(f"{what}: excess risk of {name}", excess, "of the variance")


if __name__ == "__main__":
    main()
