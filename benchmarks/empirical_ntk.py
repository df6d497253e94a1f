"""Tangent kernel of a finite MLP: the layerwise algorithm compared with its floor and with Jacobian contraction.

Depth 3, width 1024, n = 500, ReLU, float32. The floor is the work that no method of this kind avoids: the forward pass,
the backward pass to every hidden layer (for each output), and one matrix product per layer and side. Targets, in
CPU-seconds of one run: the layerwise algorithm ("structure") takes at most 1.5 times the floor, and Jacobian
contraction at least 50 times as long as the layerwise algorithm. With 10 outputs (full kernel, 5,000 × 5,000) it is no
slower than the structured derivatives of neural-tangents. neural-tangents requires an old JAX, so `--peer` names a
Python interpreter that has it (0.6.5 with jax 0.4.24, numpy < 2). It runs the same network, points and number of
threads.

    python benchmarks/empirical_ntk.py [--skip-jacobian] [--width 1024] [--points 500] [--peer /path/to/python]
                                       [--record]
"""

import argparse
import subprocess
import time

import jax
import jax.numpy as jnp
from record import add_option, recorder

from unlazy.networks import Network, layer_tangent_kernels, tangent_kernel
from unlazy.theory.infinite_width.architecture import MLP

HIGHEST = jax.lax.Precision.HIGHEST


def smallest(runs: dict, repeats: int) -> dict[str, float]:
    """Smallest CPU-seconds of each call after compilation; calls alternate, since the machine may be shared."""
    for run in runs.values():
        jax.block_until_ready(run())
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.process_time()
            jax.block_until_ready(run())
            found[name].append(time.process_time() - start)
    return {name: min(times) for name, times in found.items()}


def floor(network: Network):
    """Only the forward pass, the backward pass to the hidden layers, and Gram matrices."""

    def run(params, X):
        outputs, width = network.mlp.outputs, network.mlp.width

        def tail(offsets):
            """Outputs with an offset at every preactivation; the derivative in the offset is the backward pass."""
            sides = [X]
            for l, (weight, _) in enumerate(params):
                f = network.scales[l].multiplier.weight * jnp.matmul(sides[-1], weight, precision=HIGHEST)
                if l < network.mlp.depth:
                    sides.append(network.mlp.activation(f + offsets[l]))
            return f, sides

        zeros = [jnp.zeros((X.shape[0], width))] * network.mlp.depth
        _, pull, hidden = jax.vjp(tail, zeros, has_aux=True)
        one_hot = jnp.eye(outputs)[:, None, :] * jnp.ones((1, X.shape[0], 1))
        (back,) = jax.vmap(pull)(one_hot)
        sides = [*hidden, *(g.reshape(-1, width) for g in back)]
        return [jnp.matmul(side, side.T, precision=HIGHEST) for side in sides]

    return jax.jit(run)


PEER = """
import sys, time, types
import jax
sys.modules["neural_tangents.experimental"] = types.ModuleType("")  # requires TensorFlow
import neural_tangents as nt
from neural_tangents import stax
width, points, repeats = map(int, sys.argv[1:])
X = jax.random.normal(jax.random.PRNGKey(0), (points, 64))
for outputs in (1, 10):
    layers = [part for _ in range(3) for part in (stax.Dense(width), stax.Relu())]
    init, apply, _ = stax.serial(*layers, stax.Dense(outputs))
    _, params = init(jax.random.PRNGKey(1), X.shape)
    way = nt.NtkImplementation.STRUCTURED_DERIVATIVES
    kernel = jax.jit(nt.empirical_ntk_fn(apply, trace_axes=(), vmap_axes=0, implementation=way), static_argnums=1)
    jax.block_until_ready(kernel(X, None, params))
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        jax.block_until_ready(kernel(X, None, params))
        best = min(best, time.process_time() - start)
    print(outputs, best)
"""


def peer(python: str, width: int, points: int, repeats: int) -> dict[int, float]:
    """CPU-seconds of the structured derivatives of neural-tangents by number of outputs."""
    command = [python, "-c", PEER, str(width), str(points), str(repeats)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"neural-tangents failed with {python}:\n{done.stderr[-1500:]}")
    rows = [line.split() for line in done.stdout.splitlines()]
    return {int(outputs): float(seconds) for outputs, seconds in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--skip-jacobian", action="store_true")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--points", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peer", help="Python interpreter with neural-tangents installed")
    add_option(parser)
    given = parser.parse_args()
    note = recorder(__file__, given.record)
    theirs = peer(given.peer, given.width, given.points, given.repeats) if given.peer else {}
    X = jax.random.normal(jax.random.key(0), (given.points, 64))
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}, depth 3, width {given.width}, n = {given.points}")
    for outputs in (1, 10):
        network = Network(MLP(3, "relu", width=given.width, outputs=outputs), inputs=64)
        params = network.init(jax.random.key(1))
        bare, structure = floor(network), jax.jit(lambda p, x, net=network: tangent_kernel(net, p, x))
        runs = {"floor": lambda: bare(params, X), "structure": lambda: structure(params, X)}  # noqa: B023
        times = smallest(runs, given.repeats if outputs == 1 else 2)
        print(f"  {outputs:2d} outputs: floor {times['floor']:.3f} CPU-s, structure {times['structure']:.3f} CPU-s, "
              f"ratio {times['structure'] / times['floor']:.2f}")  # fmt: skip
        size = f"width {given.width}, n = {given.points}, {outputs} outputs"
        note(f"tangent kernel over the floor, {size}", times["structure"] / times["floor"], "ratio")
        if outputs in theirs:
            ratio = theirs[outputs] / times["structure"]
            print(f"              neural-tangents (structured derivatives) {theirs[outputs]:.3f} CPU-s, {ratio:.2f} "
                  "times the structure")  # fmt: skip
            note(f"neural-tangents over ours, {size}", ratio, "ratio")
        if outputs == 1 and not given.skip_jacobian:
            by_rows = jax.jit(lambda p, x, net=network: sum(layer_tangent_kernels(lambda q, z: net(q, z), p, x)))
            compiled = by_rows.lower(params, X).compile()
            start = time.process_time()
            J = jax.block_until_ready(compiled(params, X))
            jacobian = time.process_time() - start
            K = structure(params, X)
            gap = float(jnp.max(jnp.abs(J - K)) / jnp.max(jnp.abs(K)))
            print(f"              Jacobian contraction {jacobian:.2f} CPU-s, {jacobian / times['structure']:.0f} times "
                  f"the structure; largest relative difference {gap:.1e}")  # fmt: skip
            note(f"Jacobian contraction over ours, {size}", jacobian / times["structure"], "ratio")


if __name__ == "__main__":
    main()
