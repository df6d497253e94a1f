"""Kernels of networks: time and memory compared with neural-tangents.

NTK of n × n different points in float32, for three 3 × 3 convolutions with ReLU on images with 3 channels. `pooled`
ends with a global average pool (all pairs of positions), `flat` with Flatten (each position separately), and `dense`
has three fully connected layers on 64 inputs instead. Measured are CPU-seconds of one run, and peak memory above that
of two points (including compilation).

Targets: pooled at least 5 times and flat at least 3 times faster than neural-tangents, with at most a quarter of its
memory. neural-tangents requires an old JAX, so `--peer` names a Python interpreter that has it (0.6.5 with jax 0.4.36).
Both libraries run on the same points, each in a separate process.

    python benchmarks/convolution_kernels.py [--side 16] [--points 12] [--only flat] [--peer /path/to/python] [--record]
"""

import argparse
import subprocess
import sys

from record import add_option, recorder

COMMON = """
import resource, sys, time
import numpy as np
side, points, way = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
pooled, dense = way == "pooled", way == "dense"
rng = np.random.default_rng(0)
shape = (64,) if dense else (side, side, 3)
X, Z = (rng.normal(size=(points, *shape)).astype(np.float32) for _ in range(2))
def peak():
    try:  # ru_maxrss starts at the value of the parent process
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 2**10
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
def timed(run):
    run(X[:2], Z[:2])
    before = peak()  # after the compiler and its libraries are loaded
    run(X, Z)
    best = float("inf")
    for _ in range(2):
        start = time.process_time()
        K = run(X, Z)
        best = min(best, time.process_time() - start)
    print(best, max(peak() - before, 1.0), float(K[0, 0]), float(K[-1, 0]))
"""
OURS = """
import unlazy
from unlazy.layers import Conv, Dense, Flatten, GlobalAvgPool, serial
conv = Conv(3, 1.4, 0.1)
network = serial(conv, "relu", conv, "relu", conv, "relu", GlobalAvgPool() if pooled else Flatten(), Dense(1.4, 0.1))
kernel = unlazy.NTK(unlazy.MLP(3, "relu", 1.4, 0.1) if dense else network)
timed(lambda X, Z: np.asarray(kernel.gram(X, Z)))
"""
THEIRS = """
import types
import jax
sys.modules["neural_tangents.experimental"] = types.ModuleType("")  # requires TensorFlow
from neural_tangents import stax
last = stax.Dense(1, W_std=1.4, b_std=0.1)
layer = last if dense else stax.Conv(1, (3, 3), W_std=1.4, b_std=0.1, padding="SAME")
end = [] if dense else [stax.GlobalAvgPool() if pooled else stax.Flatten()]
parts = [part for _ in range(3) for part in (layer, stax.Relu())]
kernel = jax.jit(stax.serial(*parts, *end, last)[2], static_argnames="get")
timed(lambda X, Z: np.asarray(kernel(X, Z, get="ntk")))
"""

MORE = {"dense": 250, "flat": 16, "pooled": 1}
"""Factor on the number of points, larger for architectures whose pairs are cheaper."""


def measured(python: str, program: str, side: int, points: int, way: str) -> list[float]:
    """CPU-seconds, peak memory above that of two points in MiB (at least 1), and two entries of K."""
    done = subprocess.run([python, "-c", COMMON + program, str(side), str(points), way], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"failed with {python}:\n{done.stderr[-1500:]}")
    return [float(word) for word in done.stdout.split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--side", type=int, default=16)
    parser.add_argument("--points", type=int, default=12)
    parser.add_argument("--only", choices=list(MORE), help="run only this architecture")
    parser.add_argument("--peer", help="Python interpreter with neural-tangents installed")
    add_option(parser)
    given = parser.parse_args()
    note = recorder(__file__, given.record)
    for way, times in MORE.items():
        if given.only not in (None, way):
            continue
        points = times * given.points
        ours = measured(sys.executable, OURS, given.side, points, way)
        what = "points of 64 inputs" if way == "dense" else f"images of {given.side} × {given.side}"
        size = f"{way}, {points} × {points} {what}"
        pairs = 1e6 * ours[0] / points**2
        print(f"{size}: {ours[0]:.3f} CPU-s, {pairs:.3g} µs per pair, {ours[1]:.0f} MiB")
        note(f"ours, {size}", pairs, "CPU-µs a pair")
        if given.peer:
            theirs = measured(given.peer, THEIRS, given.side, points, way)
            apart = max(abs(a / b - 1) for a, b in zip(ours[2:], theirs[2:]))
            print(f"  neural-tangents {theirs[0]:.3f} CPU-s, {theirs[0] / ours[0]:.1f} times ours; "
                  f"{theirs[1]:.0f} MiB, {theirs[1] / ours[1]:.1f} times ours; agree to {apart:.1e}")  # fmt: skip
            note(f"neural-tangents over ours, {size}", theirs[0] / ours[0], "ratio")
            note(f"neural-tangents' memory over ours, {size}", theirs[1] / ours[1], "ratio")


if __name__ == "__main__":
    main()
