"""The rich limit: what it costs and how close wide networks are, bar by bar, on whatever device there is.

    python benchmarks/rich_limit.py [two] [deep] [bayes] [--record]

two: two layers, 64 points, 200 steps: seconds, Monte Carlo error, and 20 networks of width 4,096 at γ_0 = 0.1, 1, 4;
deep: depth 3, 16 points, 50 steps, tanh and linear, beside networks of width 2,048;
bayes: the adaptive kernel beside Langevin networks of width 2,048.
"""

import argparse
import time

import numpy as np
from record import add_option, recorder

from unlazy import MLP, NTK, rich_limit, rich_network
from unlazy.training.rich.adaptive import adaptive_kernel
from unlazy.training.rich.langevin import langevin


def data(points, tests=0, d=8):
    X = np.random.default_rng(0).standard_normal((points + tests, d))
    y = X[:points, 0] * X[:points, 1] + X[:points, 2]
    return X[:points], y / np.sqrt(np.mean(y**2)), X[points:]


def off(a, b):
    """Distance of two estimates over the size of the first, and what their errors explain."""
    size = np.sqrt(np.mean(np.square(a.value)))
    rms = [np.sqrt(np.mean(np.square(v))) / size for v in (np.asarray(a.value) - np.asarray(b.value), a.error, b.error)]
    return f"{rms[0]:.3%} (errors {rms[1]:.3%}, {rms[2]:.3%})"


def compare(limit, networks):
    pairs = {"loss": (limit.losses, networks.losses), "f": (limit.fitted, networks.fitted),
             "theta": (limit.tangent, networks.tangent)}  # fmt: skip
    for l, (a, b) in enumerate(zip(limit.features, networks.features), 1):
        pairs[f"Phi{l}"] = (a, b)
    for l, (a, b) in enumerate(zip(limit.gradients, networks.gradients), 1):
        pairs[f"G{l}"] = (a, b)
    for name, pair in pairs.items():
        print(f"    {name:6s} {off(*pair)}", flush=True)


def timed(what, function, note):
    """The second call: nothing is compiled then."""
    function()
    wall, cpu = time.perf_counter(), time.process_time()
    found = function()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{what}: {wall:.1f} s, {cpu:.1f} CPU-s, Monte Carlo error {found.evidence.residual:.3%}", flush=True)
    note(what, wall, "s")
    return found


def two(note):
    X, y, _ = data(64)
    net = MLP(1, "relu")
    eta = 0.25 / float(np.linalg.eigvalsh(np.asarray(NTK(net).gram(X), float))[-1])
    for gamma in (0.1, 1.0, 4.0):
        ask = {"richness": gamma, "times": np.arange(20, 201, 20), "step_size": eta, "keep": False}
        limit = timed(f"two layers, γ_0 = {gamma:g}", lambda: rich_limit(net, X, y, draws=8192, **ask), note)  # noqa: B023
        compare(limit, rich_network(net, X, y, width=4096, runs=20, **ask))


def deep(note):
    X, y, _ = data(16)
    for phi, scale in (("tanh", 1.5), ("relu", 2**0.5), ("identity", 1.0)):
        net = MLP(3, phi, sigma_w=scale)
        eta = 0.5 / float(np.linalg.eigvalsh(np.asarray(NTK(net).gram(X), float))[-1])
        ask = {"richness": 1.0, "times": [10, 20, 30, 40, 50], "step_size": eta}
        limit = timed(f"depth 3, {phi}", lambda: rich_limit(net, X, y, draws=4096, **ask), note)  # noqa: B023
        compare(limit, rich_network(net, X, y, width=2048, runs=20, keep=False, **ask))


def bayes(note):
    X, y, Z = data(16, 32, d=4)
    net = MLP(1, "erf", sigma_w=1.5)
    for gamma in (0.5, 1.0, 2.0):
        ask = {"richness": gamma, "ridge": 0.5}
        began = time.perf_counter()
        found = adaptive_kernel(net, X, y, draws=4096, sweeps=400, **ask)
        print(f"adaptive kernel, γ_0 = {gamma:g}: {time.perf_counter() - began:.1f} s, {found.evidence.residual:.3%}")
        sampled = langevin(net, X, y, Z, width=2048, steps=20000, step_size=0.005, runs=8, **ask)
        for name, mine, theirs in (("f", found.predict(Z), sampled.predictions), ("Phi", found.gram, sampled.features)):
            size = np.sqrt(np.mean(np.square(theirs.value)))
            distance = np.sqrt(np.mean(np.square(np.asarray(mine) - np.asarray(theirs.value)))) / size
            print(f"    {name:6s} {distance:.3%} (errors {np.sqrt(np.mean(np.square(theirs.error))) / size:.3%})")
            note(f"adaptive kernel against Langevin, γ_0 = {gamma:g}, {name}", 100 * distance, "%")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["two", "deep", "bayes"])
    add_option(parser)
    given = parser.parse_args()
    for part in given.parts:
        {"two": two, "deep": deep, "bayes": bayes}[part](recorder(__file__, given.record))
