"""Time and memory of Gram matrices: NNGP and NTK together, compared with X Xᵀ followed by one arccos (the floor).

Targets for ReLU, 3 hidden layers, d = 64, float32: CPU time at most 1.2 times the floor without biases and 2 times with
biases; additional peak memory at most 2 times the two outputs. Without biases depth costs almost nothing; with biases
10 layers cost at most 2.5 times one layer. Other activations with 3 layers and biases cost at most 3 times the floor.

    python benchmarks/kernel_gram.py [--points 4000 8000] [--repeats 5] [--record]
"""

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
from record import add_option, recorder

from unlazy.kernels.networks.infinite_width import nngp_and_ntk
from unlazy.theory.infinite_width.architecture import MLP

INPUTS = 64


def cpu_seconds(function, *args, repeats: int) -> float:
    """Smallest CPU time of several calls; the first one compiles and is not counted."""
    jax.block_until_ready(function(*args))
    times = []
    for _ in range(repeats):
        start = time.process_time()
        jax.block_until_ready(function(*args))
        times.append(time.process_time() - start)
    return min(times)


@jax.jit
def floor(X):
    """One product of unit vectors and one arccos."""
    unit = X / jnp.linalg.norm(X, axis=1, keepdims=True)
    return jnp.arccos(jnp.clip(unit @ unit.T, -1, 1))


def network(depth: int, bias: float, activation: str = "relu") -> MLP:
    return MLP(depth, activation, sigma_w=2**0.5, sigma_b=bias)


def inputs(points: int) -> jax.Array:
    return jax.random.normal(jax.random.key(0), (points, INPUTS))


def speed(points: int, repeats: int, note) -> None:
    X = inputs(points)
    base = cpu_seconds(floor, X, repeats=repeats)
    product = cpu_seconds(jax.jit(lambda X: X @ X.T), X, repeats=repeats)
    print(f"n = {points}: floor {base:.3f} CPU-s (product alone {product:.3f})")
    for name, bias, bound in (("without biases", 0.0, 1.2), ("with biases", 0.5, 2.0)):
        seconds = cpu_seconds(nngp_and_ntk, network(3, bias), X, repeats=repeats)
        accurate = cpu_seconds(nngp_and_ntk, network(3, bias), X, None, True, repeats=2)
        print(
            f"  depth 3, {name}: {seconds:.3f} CPU-s, {seconds / base:.2f} times the floor (at most {bound});"
            f" accurate {accurate / base:.2f}"
        )
        note(f"NNGP and NTK {name}, n = {points}, over the floor", seconds / base, "ratio")


def growth(points: int, repeats: int, note) -> None:
    X = inputs(points)
    for name, bias in (("without biases", 0.0), ("with biases", 0.5)):
        networks = {depth: network(depth, bias) for depth in (1, 3, 10)}
        seconds = {depth: cpu_seconds(nngp_and_ntk, m, X, repeats=repeats) for depth, m in networks.items()}
        row = ", ".join(f"depth {depth} {s:.3f}" for depth, s in seconds.items())
        print(f"n = {points}, {name}: {row} CPU-s; depth 10 costs {seconds[10] / seconds[1]:.2f} times depth 1")
        note(f"ReLU {name}, n = {points}, depth 10 over depth 1", seconds[10] / seconds[1], "ratio")


def activations(points: int, repeats: int, note) -> None:
    X = inputs(points)
    base = cpu_seconds(floor, X, repeats=repeats)
    for name in ("erf", "gelu", "sin", "tanh", "sigmoid", "softplus", "truncated_relu"):
        seconds = cpu_seconds(nngp_and_ntk, network(3, 0.5, name), X, repeats=2)
        print(f"n = {points}, {name}, depth 3, biases: {seconds / base:.2f} times the floor")
        note(f"{name}, depth 3 with biases, n = {points}, over the floor", seconds / base, "ratio")


def peak_bytes() -> int:
    """Peak memory of this process, from /proc if possible: on Linux ru_maxrss starts at the value of the parent."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def peak(points: int, bias: float) -> None:
    """Peak memory above that of a small call of the same program; runs in a separate process."""
    kernel = network(3, bias)
    jax.block_until_ready(nngp_and_ntk(kernel, inputs(1100)))
    X = jax.block_until_ready(inputs(points))
    before = peak_bytes()
    jax.block_until_ready(nngp_and_ntk(kernel, X))
    extra = peak_bytes() - before
    outputs = 2 * 4 * points**2
    label = "with" if bias else "without"
    print(
        f"n = {points}, {label} biases: additional peak memory {extra / outputs:.2f} times the two outputs (at most 2)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, nargs="+", default=[4000, 8000])
    parser.add_argument("--repeats", type=int, default=5)
    add_option(parser)
    parser.add_argument("--peak", type=float, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        peak(int(options.peak[0]), options.peak[1])
        return
    note = recorder(__file__, options.record)
    for points in options.points:
        speed(points, options.repeats, note)
        for bias in (0.0, 0.5):
            subprocess.run([sys.executable, __file__, "--peak", str(points), str(bias)], check=True)
    growth(options.points[0], options.repeats, note)
    activations(2000, options.repeats, note)


if __name__ == "__main__":
    main()
