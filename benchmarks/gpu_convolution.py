"""Convolutional kernels on a GPU: time per pair of images, compared with plain XLA and a lower bound.

Myrtle networks on 32 × 32 × 3 images [C1, C2]. Targets on an H200: Myrtle-10 NNGP at most 5 µs per pair, NNGP with NTK
at most 9 µs, Myrtle-5 NNGP at most 3 µs; entries within a relative error of 1e-5 of float64 (some pairs, on the same
GPU).

The lower bound counts the instructions that must be issued for one pair. Each of the size⁴ pairs of positions of a
stage needs 4 additions per window, 9 multiply-adds and 2 special functions per layer (17 more with the NTK), and 3
multiply-adds for the pixels. Each of the 4 schedulers of a multiprocessor issues one instruction for 32 numbers per
cycle.

    python benchmarks/gpu_convolution.py [--networks 10 5] [--kernels nngp] [--images 256] [--no-xla] [--record]
"""

import argparse
import time
from functools import partial
from unittest import mock

import jax
import numpy as np
from record import add_option, recorder

from unlazy.core import devices
from unlazy.kernels.conv_gpu import dispatch
from unlazy.kernels.networks.layered import LayeredNNGP, LayeredNNGPAndNTK
from unlazy.layers import Shape, myrtle

CLOCK = 1.755e9
"""Clock rate of an H200 under load, in Hz."""
SCHEDULERS = 4


def limit(network, tangent: bool) -> float:
    """Seconds per pair if every scheduler issues an instruction in every cycle."""
    plan = dispatch.plan_of(network, Shape((32, 32), 3))
    slots = 3 * 32**4
    for stage in plan.stages:
        slots += stage.size**4 * len(stage.layers) * (15 + (17 if tangent else 0))
    return slots / 32 / (SCHEDULERS * devices.multiprocessors() * CLOCK)


def seconds(run, *given) -> tuple[float, float]:
    """Seconds of the best of three runs, and of the first run, which compiles."""
    start = time.perf_counter()
    jax.block_until_ready(run(*given))
    first, best = time.perf_counter() - start, np.inf
    for _ in range(3):
        start = time.perf_counter()
        jax.block_until_ready(run(*given))
        best = min(best, time.perf_counter() - start)
    return best, first


def block(kernel, left, right):
    return kernel.block(left, right)


def measured(depth: int, tangent: bool, options, note) -> None:
    name = f"myrtle-{depth} {'nngp and ntk' if tangent else 'nngp'}"
    kernel = (LayeredNNGPAndNTK if tangent else LayeredNNGP)(myrtle(depth))
    rng = np.random.default_rng(0)
    X, Z = (rng.normal(size=(options.images, 32, 32, 3)).astype(np.float32) for _ in range(2))
    sides = jax.jit(lambda X, Z: kernel.sides(X, Z))
    (left, right), pairs = sides(X, Z), len(X) * len(Z)
    taken, first = seconds(jax.jit(partial(block, kernel)), left, right)
    least = limit(myrtle(depth), tangent)
    print(f"{name}: {1e6 * taken / pairs:.2f} µs per pair, {taken * 1e6 / pairs / (least * 1e6):.2f} of the "
          f"lower bound ({1e6 * least:.2f}); first run {first:.0f} s", flush=True)  # fmt: skip
    note(f"{name}, a pair", 1e6 * taken / pairs, "µs")
    few = 16
    found = [np.asarray(K, float) for K in jax.tree.leaves(block(kernel, *sides(X[:few], Z[:few])))]
    with jax.enable_x64(True), mock.patch.object(dispatch, "plan_for", lambda *given: None):
        exact = jax.jit(lambda X, Z: kernel.block(*kernel.sides(X, Z)))(X[:few].astype(float), Z[:few].astype(float))
        exact = [np.asarray(K) for K in jax.tree.leaves(exact)]
    error = max(float(np.abs(K / E - 1).max()) for K, E in zip(found, exact))
    print(f"{name}: largest relative error {error:.1e}", flush=True)
    note(f"{name}, relative error", error, "ratio")
    if options.xla:
        some = 64
        with mock.patch.object(dispatch, "plan_for", lambda *given: None):
            taken, _ = seconds(jax.jit(lambda l, r: block(kernel, l, r)), *sides(X[:some], Z[:some]))
        print(f"{name}: plain XLA {1e6 * taken / some**2:.2f} µs per pair", flush=True)
        note(f"{name}, a pair by XLA", 1e6 * taken / some**2, "µs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", type=int, nargs="+", default=[10, 5])
    parser.add_argument("--kernels", nargs="+", choices=["nngp", "both"], default=["nngp", "both"])
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--no-xla", dest="xla", action="store_false")
    add_option(parser)
    options = parser.parse_args()
    note = recorder(__file__, options.record)
    for depth in options.networks:
        for which in options.kernels:
            measured(depth, which == "both", options, note)


if __name__ == "__main__":
    main()
