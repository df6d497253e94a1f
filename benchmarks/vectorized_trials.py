"""Claim: vectorized trials are never slower than a loop over seeds with the same jitted trial.

CPU-seconds of one thread, both in the same run after compilation, for small problems of increasing size (ridge
regression on random features). Prints loop / vectorized, which should be at least 1.

    python benchmarks/vectorized_trials.py [--record]
"""

import argparse
import os
import time

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"
os.environ |= {"PJRT_NPROC": "1", "OPENBLAS_NUM_THREADS": "1"}

import jax
import jax.numpy as jnp
import numpy as np
from record import add_option, recorder

from unlazy.core.arrays import precision

LANES, REPEATS = 8, 7


def trial(key: jax.Array, size: int) -> jax.Array:
    """Held-out error of ridge regression with `size` random features on `2 size` samples."""
    inputs, weights, fresh = jax.random.split(key, 3)
    X, W, Z = (jax.random.normal(k, s) for k, s in ((inputs, (2 * size, 8)), (weights, (8, size)), (fresh, (64, 8))))
    features = lambda points: jax.nn.relu(points @ W) / jnp.sqrt(size)  # noqa: E731
    P, y = features(X), jnp.sin(X[:, 0])
    a = jnp.linalg.solve(P.T @ P + 1e-3 * jnp.eye(size), P.T @ y)
    return jnp.mean((features(Z) @ a - jnp.sin(Z[:, 0])) ** 2)


def cpu_seconds(work) -> float:
    """Median of several runs, after one that compiles."""
    work()
    taken = []
    for _ in range(REPEATS):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return float(np.median(taken))


def ratio(size: int, calls: int) -> tuple[float, float, float]:
    one = jax.jit(lambda key: trial(key, size))
    many = jax.jit(jax.vmap(lambda key: trial(key, size)))
    keys = jax.random.split(jax.random.key(0), LANES)
    split = list(keys)
    loop = cpu_seconds(lambda: [one(key).block_until_ready() for _ in range(calls) for key in split])
    together = cpu_seconds(lambda: [many(keys).block_until_ready() for _ in range(calls)])
    return loop, together, loop / together


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_option(parser)
    note = recorder(__file__, parser.parse_args().record)
    print(f"{LANES} seeds per call, float64, one thread; CPU milliseconds per seed")
    print(f"{'size':>6} {'loop':>9} {'vmap':>9}  ratio")
    with precision("float64"):
        for size, calls in ((4, 200), (16, 100), (64, 20), (256, 2)):
            loop, together, gain = ratio(size, calls)
            scale = 1e3 / (calls * LANES)
            print(f"{size:>6} {loop * scale:>9.4f} {together * scale:>9.4f}  {gain:.2f}x")
            note(f"loop / vectorized, {size} features", gain, "ratio")


if __name__ == "__main__":
    main()
