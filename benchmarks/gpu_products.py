"""K(X, Z) @ V on one GPU: pairs per second and error, compared with XLA blocks and chunked PyTorch.

    python benchmarks/gpu_products.py            the default tile (--record keeps the figures)
    python benchmarks/gpu_products.py --tune     a list of tiles

n = 2^18, m = 2^16, d = 32, one column, float32; 1,024 rows of Z are rows of X. The error is ‖difference‖/‖product‖ of
256 rows from float64. The time is the median of several runs after one warm-up run.
"""

import argparse
import itertools
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from record import add_option, recorder

from unlazy.kernels.networks.infinite_width import NTK
from unlazy.kernels.radial import Gaussian, Laplace, Matern
from unlazy.products.fused import fused_product, hopper
from unlazy.theory.infinite_width.architecture import MLP

KERNELS = {
    "gaussian": lambda d: Gaussian(d**0.5),
    "laplace": lambda d: Laplace(d**0.5),
    "ntk, depth 3, no biases": lambda d: NTK(MLP(3)),
    "ntk, depth 10, no biases": lambda d: NTK(MLP(10)),
    "ntk, depth 2, biases": lambda d: NTK(MLP(2, sigma_b=0.3)),
    "matern 5/2": lambda d: Matern(d**0.5, 2.5),
}


def problem(n, m, d, c=1, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(np.float32)
    Z = rng.normal(size=(m, d)).astype(np.float32)
    shared = min(1024, m, n)
    Z[:shared] = X[:shared]
    return jnp.asarray(X), jnp.asarray(Z), jnp.asarray(rng.normal(size=(m, c)).astype(np.float32))


def median_seconds(call, repeats=7):
    jax.block_until_ready(call())
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def exact(kernel, X, Z, V, rows=256):
    with jax.enable_x64(True):
        X, Z, V = (jnp.asarray(np.asarray(a), jnp.float64) for a in (X[:rows], Z, V))
        return np.asarray(kernel.gram(X, Z, accurate=True) @ V)


def xla_blocks(kernel, X, Z, V, rows=1024):
    @jax.jit
    def product(X, Z, V):
        return jax.lax.map(lambda x: kernel.gram(x, Z) @ V, X.reshape(-1, rows, X.shape[1])).reshape(X.shape[0], -1)

    return lambda: product(X, Z, V)


def torch_chunked(X, Z, V, bandwidth, rows=4096):
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    X, Z, V = (torch.tensor(np.asarray(a), device="cuda") for a in (X, Z, V))
    zz = (Z * Z).sum(1)

    def product():
        out = []
        for x in X.split(rows):
            D = (x * x).sum(1)[:, None] + zz[None] - 2 * x @ Z.T
            out.append(torch.exp(D.mul_(-0.5 / bandwidth**2)) @ V)
        torch.cuda.synchronize()
        return np.zeros(1)

    return product


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--hopper", action="store_true", help="also run the Mosaic GPU program with several tiles")
    parser.add_argument("--small", action="store_true", help="run a few rows in interpret mode on a CPU")
    parser.add_argument("--only", default="")
    add_option(parser)
    options = parser.parse_args()
    note = recorder(__file__, options.record)
    interpret = options.small
    n, m, d = (256, 512, 32) if options.small else (2**18, 2**16, 32)
    X, Z, V = problem(n, m, d)
    chosen = {k: f for k, f in KERNELS.items() if options.only in k}
    for name, make in chosen.items():
        kernel = make(d)
        truth = exact(kernel, X, Z, V)
        tiles = [None]
        if options.tune:
            tiles += [
                fused_product.TritonTile(x, z, w, s)
                for x, z, w, s in itertools.product((32, 64, 128), (32, 64, 128, 256), (4, 8), (2, 3))
                if 4096 <= x * z <= 16384 and (s == 2 or w == 4)
            ]
        if options.tune or options.hopper:
            tiles += [hopper.HopperTile(*cut) for cut in itertools.product((2, 3, 4), (64, 128), (2, 4))]
            tiles += [hopper.HopperTile(relief=every) for every in (0, 2, 4, 6)]
        for tile in tiles:
            try:
                call = partial(fused_product.matmul, kernel, X, Z, V, tile=tile, interpret=interpret)
                error = np.linalg.norm(np.asarray(call()[:256], np.float64) - truth) / np.linalg.norm(truth)
                seconds = median_seconds(call)
                rate = f"{n * m / seconds / 1e12:6.3f} Tpairs/s  error {error:.1e}"
                print(f"{name:28s} {tile or 'default'!s:60s} {rate}", flush=True)
                note(f"{name}, {tile or 'default tile'}, n = {n}, m = {m}", n * m / seconds / 1e12, "Tpairs/s")
            except Exception as problem_found:  # report tiles that do not fit
                print(f"{name:28s} {tile}: {type(problem_found).__name__} {str(problem_found)[:300]}", flush=True)
        for c in (8,) if not options.tune else ():
            many = jnp.asarray(np.random.default_rng(1).normal(size=(m, c)).astype(np.float32))
            one, all_columns = (
                median_seconds(lambda W=W, kernel=kernel: fused_product.matmul(kernel, X, Z, W, interpret=interpret))
                for W in (V, many)
            )
            print(f"{name:28s} {c} columns: {all_columns / one:.2f} times the time of one", flush=True)
            note(f"{name}, {c} columns over one, n = {n}, m = {m}", all_columns / one, "times")
    if not options.small and not options.only:
        peers = {
            "XLA blocks, gaussian": xla_blocks(Gaussian(d**0.5), X, Z, V),
            "chunked PyTorch, gaussian": torch_chunked(X, Z, V, d**0.5),
        }
        for name, call in peers.items():
            speed = n * m / median_seconds(call, 3) / 1e12
            print(f"{name:28s} {speed:6.3f} Tpairs/s", flush=True)
            note(f"{name}, n = {n}, m = {m}", speed, "Tpairs/s")


if __name__ == "__main__":
    main()
