"""Matrix-free kernel regression with a tangent kernel: time and memory.

A two-layer tanh network with `--parameters` parameters and `--points` points of 64 inputs in float32; K + ridge is
solved by conjugate gradients with products J(Jᵀv) [C5]. Target: 10^6 parameters and 10^4 points within 2 GiB, where the
Jacobian alone would take 40 GB.

    python benchmarks/matrix_free.py [--parameters 1000000] [--points 10000] [--record]
"""

import argparse
import resource
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from record import add_option, recorder

import unlazy

INPUTS = 64


def f(params, X):
    return jnp.tanh(X @ params["W"]) @ params["a"]


def peak_bytes() -> int:
    """Peak memory of the GPU, or of this process on a CPU (ru_maxrss would start at the value of the parent)."""
    stats = jax.devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        return stats["peak_bytes_in_use"]
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 2**10
    return next(2**10 * int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--points", type=int, default=10_000)
    add_option(parser)
    given = parser.parse_args()
    note = recorder(__file__, given.record)
    width = given.parameters // (INPUTS + 1)
    one, two, three = jax.random.split(jax.random.key(0), 3)
    params = {
        "W": jax.random.normal(one, (INPUTS, width)) / np.sqrt(INPUTS),
        "a": jax.random.normal(two, (width,)) / np.sqrt(width),
    }
    X = jax.random.normal(three, (given.points, INPUTS))
    y = jnp.sin(X[:, 0]) + X[:, 1] * X[:, 2]
    kernel = unlazy.TangentKernel(f, params, batch=512)
    start = time.perf_counter()
    solution = unlazy.solve(
        kernel, X, y, ridge=1.0, method=unlazy.PreconditionedCG(), options=unlazy.SolveOptions(precision="float32")
    )
    seconds = time.perf_counter() - start
    peak = peak_bytes() / 2**30
    size = f"{given.parameters} parameters, {given.points} points"
    print(f"{size}: {seconds:.1f} s, peak {peak:.2f} GiB, residual {solution.residual:.1e}, {solution.method}; "
          f"a Jacobian would take {4 * given.parameters * given.points / 2**30:.1f} GiB")  # fmt: skip
    note(f"seconds, {size}", seconds, "s")
    note(f"peak memory, {size}", peak, "GiB")


if __name__ == "__main__":
    main()
