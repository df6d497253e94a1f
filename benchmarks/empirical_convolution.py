"""What does the tangent kernel of a small finite convolutional network cost beside neural-tangents?

Three 3 × 3 convolutions with ReLU, global average pool, dense head; images of 8 × 8 × 3, float32, the kernel of all
pairs of points and outputs. Wanted, in CPU-seconds of one run: at least as fast as the best of neural-tangents' three
implementations (Jacobian contraction, tangent-vector products, structured derivatives). That package runs with an old
JAX only, so `--peer` names an interpreter that has it (0.6.5 with jax 0.4.24; with 0.4.36 the third fails and counts as
inf); the same network and number of points there, in a process of its own.

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
sys.modules["neural_tangents.experimental"] = types.ModuleType("")  # it needs TensorFlow
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
    except AttributeError:  # of a private name that this JAX has no longer
        repeats = 0
    for _ in range(repeats):
        start = time.process_time()
        jax.block_until_ready(kernel(X, None, params))
        best = min(best, time.process_time() - start)
    print(best)
"""


def ours(width: int, points: int, repeats: int, outputs: int) -> float:
    """CPU-seconds after compiling, smallest of several."""
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
    """CPU-seconds of neural-tangents' implementations 1, 2 and 3."""
    done = subprocess.run([python, "-c", PEER, str(SIDE), *map(str, sizes)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"neural-tangents failed with {python}:\n{done.stderr[-1500:]}")
    return [float(line) for line in done.stdout.split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--points", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peer", help="a Python interpreter that has neural-tangents")
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
