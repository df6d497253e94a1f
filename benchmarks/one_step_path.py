"""Algorithm 1 with its ridge path: unlazy compared with straightforward PyTorch, CPU time of one thread.

Both do the same work: n × d Gaussian inputs, one gradient step, width w, 31 ridges, and the error of each on 4,000
validation points. PyTorch runs in two variants: a solve for every ridge, and one decomposition for all of them. PyTorch
is not a dependency: `--torch PYTHON` names an interpreter that has it (and NumPy), which runs the PyTorch part of this
file.

    python benchmarks/one_step_path.py --torch /path/to/python-with-torch [--record]
"""

import argparse
import json
import os
import subprocess
import sys
import time

from record import add_option, recorder

ONE = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
ONE["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
SIZES = [(10, 316, 256), (10, 1000, 256), (10, 3162, 256), (10, 1000, 512), (10, 3162, 512), (40, 6000, 512)]
RIDGES, VALIDATION, STEP = 31, 4000, 0.5


def timed(function, repeats: int) -> float:
    """Smallest CPU time of several calls, the one least disturbed by other processes."""
    best = float("inf")
    for _ in range(repeats):
        began = time.process_time()
        function()
        best = min(best, time.process_time() - began)
    return best


def problem(d: int, n: int):
    import numpy as np

    rng = np.random.default_rng(0)
    X, V = rng.standard_normal((n, d)), rng.standard_normal((VALIDATION, d))
    link = lambda z: (z**2 - 1) / 2 + (z**4 - 6 * z**2 + 3) / 48**0.5  # noqa: E731
    return X, link(X[:, 0]), V, link(V[:, 0])


def ours(repeats: int) -> dict:
    import jax
    import jax.numpy as jnp

    from unlazy.training.one_step.algorithm import fit_readout, learn_features

    learn = jax.jit(learn_features, static_argnames="width")
    found = {}
    with jax.enable_x64(True):
        for d, n, w in SIZES:
            X, y, V, v = (jnp.asarray(part) for part in problem(d, n))

            def run(X=X, y=y, V=V, v=v, w=w):
                return float(
                    fit_readout(learn(X, y, width=w, key=jax.random.key(0)), X, y, validation=(V, v)).errors.min()
                )

            error = run()  # compiles
            found[f"{d},{n},{w}"] = {"seconds": timed(run, repeats), "error": error}
    return found


def torch_side(repeats: int) -> dict:
    import torch

    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)

    def features(X, y, w):
        n, d = X.shape
        alpha, beta = y.mean(), (y[:, None] * X).mean(0)
        residual = y - alpha - X @ beta
        half = torch.randn(w // 2, d) / d**0.5
        W, a = torch.cat([half, half]), torch.cat([torch.ones(w // 2), -torch.ones(w // 2)])
        G = -2 * a[:, None] * ((X @ W.T > 0).to(X.dtype).T @ (residual[:, None] * X)) / n
        return -STEP * G / G.square().sum(1).mean().sqrt(), torch.randn(w), alpha, beta

    def path(X, y, V, v, w, one_decomposition):
        W, b, alpha, beta = features(X, y, w)
        Phi, Psi = torch.relu(X @ W.T + b), torch.relu(V @ W.T + b)
        target, truth = y - alpha - X @ beta, v - alpha - V @ beta
        n = len(X)
        ridges = torch.logspace(-12, 3, RIDGES) * Phi.square().sum() / n
        G, c = Phi.T @ Phi / n, Phi.T @ target / n
        if one_decomposition:
            s, U = torch.linalg.eigh(G)
            heads = U @ ((U.T @ c)[:, None] / (s.clamp(min=0)[:, None] + ridges))
        else:
            eye = torch.eye(w)
            heads = torch.stack([torch.linalg.solve(G + r * eye, c) for r in ridges], 1)
        return float((Psi @ heads - truth[:, None]).square().mean(0).min())

    found = {}
    for d, n, w in SIZES:
        data = [torch.tensor(part) for part in problem(d, n)]
        for name, one in (("solves", False), ("path", True)):
            error = path(*data, w, one)
            entry = {"seconds": timed(lambda data=data, w=w, one=one: path(*data, w, one), repeats), "error": error}
            found.setdefault(f"{d},{n},{w}", {})[name] = entry
    return found


def child(python: str, side: str, repeats: int) -> dict:
    command = [python, os.path.abspath(__file__), "--side", side, "--repeats", str(repeats)]
    done = subprocess.run(command, env={**os.environ, **ONE}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{side} failed with {python}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", help="Python interpreter with torch and numpy installed")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--side", choices=["ours", "torch"], help=argparse.SUPPRESS)
    add_option(parser)
    chosen = parser.parse_args()
    if chosen.side:
        print(json.dumps((ours if chosen.side == "ours" else torch_side)(chosen.repeats)))
        return
    note = recorder(__file__, chosen.record)
    mine = child(sys.executable, "ours", chosen.repeats)
    theirs = child(chosen.torch, "torch", chosen.repeats) if chosen.torch else {}
    print("CPU-seconds of one thread, smallest of several calls; ratio = unlazy / PyTorch (below 1: unlazy is faster)")
    print("   d      n  width    unlazy  torch path  ratio  torch solves  ratio")
    for d, n, w in SIZES:
        key = f"{d},{n},{w}"
        t = mine[key]["seconds"]
        line = f"{d:4d} {n:6d} {w:6d} {t:9.4f}"
        note(f"ridge path, d = {d}, n = {n}, width {w}", t, "CPU-s")
        if key in theirs:
            for name, width in (("path", 11), ("solves", 13)):
                other = theirs[key][name]["seconds"]
                line += f" {other:{width}.4f} {t / other:6.2f}"
                note(f"over PyTorch's {name}, d = {d}, n = {n}, width {w}", t / other, "ratio")
        print(line)


if __name__ == "__main__":
    main()
