"""Tangent kernel of a small finite convolutional network: CPU time compared with neural-tangents.

Three 3 × 3 convolutions with ReLU, a global average pool and a dense head, on images of 8 × 8 × 3 in float32; the
kernel of all pairs of points and outputs. Target, in CPU-seconds of one run: at least as fast as the best of the three
implementations of neural-tangents (Jacobian contraction, tangent-vector products, structured derivatives).
neural-tangents requires an old JAX, so `--peer` names a Python interpreter that has it (0.6.5 with jax 0.4.24; with
0.4.36 the third implementation fails and counts as inf). It runs the same network and number of points in a separate
process.

    python benchmarks/empirical_convolution.py [--width 32] [--points 32] [--peer /path/to/python] [--record]
"""

import argparse
import subprocess
import time

import jax
from record import add_option, recorder

import unlazy
from unlazy.layers import Conv, Dense, GlobalAvgPool, serial
from unlazy.networks import tangent_kernel

SIDE, OUTPUTS = 8, (1, 10)
PEER = """
import sys, time, types
import jax
sys.modules["neural_tangents.experimental"] = types.ModuleType("")  # requires TensorFlow
import neural_tangents as nt
from neural_tangents import stax
side, width, points, repeats, outputs = map(int, sys.argv[1:])
X = jax.random.normal(jax.random.PRNGKey(0), (points, side, side, 3))
parts = [part for _ in range(3) for part in (stax.Conv(width, (3, 3), padding="SAME"), stax.Relu())]
init, apply, _ = stax.serial(*parts, stax.GlobalAvgPool(), stax.Dense(outputs))
_, params = init(jax.random.PRNGKey(1), X.shape)
for way in (1, 2, 3):
    found = nt.empirical_ntk_fn(apply, trace_axes=(), vmap_axes=0, implementation=way)
    kernel = jax.jit(found, static_argnums=1)
    best = float("inf")
    try:
        jax.block_until_ready(kernel(X, None, params))
    except AttributeError:  # a private name that newer JAX versions removed
        repeats = 0
    for _ in range(repeats):
        start = time.process_time()
        jax.block_until_ready(kernel(X, None, params))
        best = min(best, time.process_time() - start)
    print(best)
"""


def ours(width: int, points: int, repeats: int, outputs: int) -> float:
    """Smallest CPU-seconds of several runs, after compilation."""
    layers = [part for _ in range(3) for part in (Conv(3), "relu")]
    network = unlazy.Network(serial(*layers, GlobalAvgPool(), Dense()), (SIDE, SIDE, 3), width=width, outputs=outputs)
    X = jax.random.normal(jax.random.key(0), (points, SIDE, SIDE, 3))
    params = network.init(jax.random.key(1))
    kernel = jax.jit(lambda params, X: tangent_kernel(network, params, X))
    jax.block_until_ready(kernel(params, X))
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        jax.block_until_ready(kernel(params, X))
        best = min(best, time.process_time() - start)
    return best


def peer(python: str, *sizes: int) -> list[float]:
    """CPU-seconds of implementations 1, 2 and 3 of neural-tangents."""
    done = subprocess.run([python, "-c", PEER, str(SIDE), *map(str, sizes)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"neural-tangents failed with {python}:\n{done.stderr[-1500:]}")
    return [float(line) for line in done.stdout.split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--points", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peer", help="Python interpreter with neural-tangents installed")
    add_option(parser)
    given = parser.parse_args()
    note = recorder(__file__, given.record)
    for outputs in OUTPUTS:
        sizes = given.width, given.points, given.repeats, outputs
        own = ours(*sizes)
        size = f"width {given.width}, n = {given.points}, {outputs} outputs"
        print(f"{size}: {own:.3f} CPU-s")
        note(f"ours, {size}", own, "CPU-s")
        if given.peer:
            theirs = peer(given.peer, *sizes)
            words = ", ".join(f"{seconds:.3f}" for seconds in theirs)
            print(f"  neural-tangents {words} CPU-s; its best {min(theirs) / own:.2f} times ours")
            note(f"neural-tangents' best over ours, {size}", min(theirs) / own, "ratio")


if __name__ == "__main__":
    main()
