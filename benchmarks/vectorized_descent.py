"""Training many seeds in one vectorized call, compared with a Python loop over seeds with the same jitted function.

100 seeds of a width-512 two-layer ReLU network, 1,000 full-batch steps on n = 200, d = 20, float32 with full float32
products. Targets: no slower on the CPU (CPU-seconds), and at least 10 times faster on an H200 (wall-clock time).

    python benchmarks/vectorized_descent.py            a smaller version: 20 seeds, 100 steps
    python benchmarks/vectorized_descent.py --full     the size of the targets (--record keeps the figures)
"""

import argparse
import time

import jax
import jax.numpy as jnp
from record import add_option, recorder

from unlazy.core.dataset import Data
from unlazy.networks import Network
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.training.descent.descend import descend
from unlazy.training.descent.seeds import over_seeds


def measured(runs: dict, repeats: int) -> dict[str, tuple[float, float]]:
    """Smallest CPU-seconds and wall-clock seconds of `repeats` runs of each call, after compilation.

    Calls alternate, and the smallest value is used because other processes only add time.
    """
    for run in runs.values():
        jax.block_until_ready(run())
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            cpu, wall = time.process_time(), time.perf_counter()
            jax.block_until_ready(run())
            found[name].append((time.process_time() - cpu, time.perf_counter() - wall))
    return {name: (min(c for c, _ in times), min(w for _, w in times)) for name, times in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    add_option(parser)
    given = parser.parse_args()
    note = recorder(__file__, given.record)
    seeds, steps = given.seeds or (100 if given.full else 20), given.steps or (1000 if given.full else 100)

    network = Network(MLP(1, "relu", width=given.width), inputs=20)
    X = jax.random.normal(jax.random.key(0), (200, 20))
    data = Data(X, jnp.sin(X[:, 0]) * X[:, 1])
    keys = jax.random.split(jax.random.key(1), seeds)

    def train(key, data):
        result = descend(network, network.init(key), data, step_size=0.5, steps=steps)
        return result.final_loss, result.status

    one = jax.jit(train)
    together = jax.jit(lambda keys, data: over_seeds(lambda key: train(key, data), keys))
    side_by_side = jax.jit(jax.vmap(train, in_axes=(0, None)))
    runs = {
        "loop over seeds": lambda: [one(key, data) for key in keys],
        "one call (over_seeds)": lambda: together(keys, data),
        "plain vmap": lambda: side_by_side(keys, data),
    }
    times = measured(runs, given.repeats)
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}: {seeds} seeds, {steps} steps, width {given.width}")
    loop = times["loop over seeds"]
    for name, (cpu, wall) in times.items():
        ratios = f"loop/this {loop[0] / cpu:5.2f} CPU {loop[1] / wall:6.2f} wall"
        print(f"  {name:22s} {cpu:8.2f} CPU-s {wall:8.2f} s   {ratios}")
        note(f"loop / {name}, {seeds} seeds, {steps} steps", loop[0] / cpu, "CPU ratio")
        note(f"loop / {name}, {seeds} seeds, {steps} steps", loop[1] / wall, "wall ratio")
    first, second = together(keys, data)[0], jnp.stack([one(key, data)[0] for key in keys])
    print(f"  largest relative difference of the final losses {float(jnp.max(jnp.abs(first / second - 1))):.1e}")


if __name__ == "__main__":
    main()
