"""The rich limit: its cost, and how close wide networks are to it.

    python benchmarks/rich_limit.py [two] [deep] [bayes] [--record]

two: two layers, 64 points, 200 steps: seconds, Monte Carlo error, and 20 networks of width 4,096 at γ_0 = 0.1, 1, 4;
deep: depth 3, 16 points, 50 steps, tanh, ReLU and linear, compared with 8 networks of width 2,048, and for linear
    networks with the algebraic solution; seconds include compilation;
bayes: the adaptive kernel compared with Langevin networks of width 2,048.
"""

import argparse
import time

import jax.numpy as jnp
import numpy as np
from record import add_option, recorder

from unlazy import MLP, NTK, rich_limit, rich_network
from unlazy.core.arrays import precision
from unlazy.theory.feature_learning.deep_linear import deep_linear
from unlazy.training import LangevinChains, RichOptions
from unlazy.training.rich.adaptive import adaptive_kernel
from unlazy.training.rich.langevin import langevin

NETWORKS = 20


def data(points, tests=0, d=8):
    X = np.random.default_rng(0).standard_normal((points + tests, d))
    y = X[:points, 0] * X[:points, 1] + X[:points, 2]
    return X[:points], y / np.sqrt(np.mean(y**2)), X[points:]


def rms(values):
    return np.sqrt(np.mean(np.square(values)))


def distances(a, b):
    """Relative distance of two estimates over all times, their relative standard errors, and the distance at the worst
    time."""
    off = np.asarray(a.value) - np.asarray(b.value)
    each = [rms(d) / rms(v) for d, v in zip(off, a.value) if rms(v) > 1e-9]
    return [rms(v) / rms(a.value) for v in (off, a.error, b.error)] + [max(each)]


def compare(what, limit, networks, note):
    pairs = {"loss": (limit.losses, networks.losses), "f": (limit.fitted, networks.fitted),
             "theta": (limit.tangent, networks.tangent)}  # fmt: skip
    for l, (a, b) in enumerate(zip(limit.features, networks.features), 1):
        pairs[f"Phi{l}"] = (a, b)
    for l, (a, b) in enumerate(zip(limit.gradients, networks.gradients), 1):
        pairs[f"G{l}"] = (a, b)
    for name, pair in pairs.items():
        off, mine, theirs, worst = distances(*pair)
        print(f"    {name:6s} {off:.2%} (errors {mine:.2%}, {theirs:.2%}), at the worst time {worst:.2%}", flush=True)
        note(f"{what}, {name} of networks off the limit", 100 * off, "%")


def timed(what, function, note, warm=True):
    """Time a call; with `warm` the second one, which does not compile."""
    if warm:
        function()
    wall, cpu = time.perf_counter(), time.process_time()
    found = function()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{what}: {wall:.1f} s, {cpu:.1f} CPU-s, Monte Carlo error {found.evidence.residual:.3%}", flush=True)
    note(what, cpu, "CPU-s")
    note(f"{what}, Monte Carlo error", 100 * found.evidence.residual, "%")
    return found


def two(note):
    X, y, _ = data(64)
    net = MLP(1, "relu", width=4096)
    # Θ grows tenfold at γ_0 = 4: with 0.25 training ends at the edge of stability, η λ_max(Θ) = 2, where noise grows
    eta = 0.1 * len(X) / float(np.linalg.eigvalsh(np.asarray(NTK(net).gram(X), float))[-1])
    for gamma in (0.1, 1.0, 4.0):
        ask = {"richness": gamma, "times": np.arange(0, 201, 20), "step_size": eta}
        what = f"two layers, γ_0 = {gamma:g}"
        options = RichOptions(draws=8192, keep_states=False)
        limit = timed(what, lambda: rich_limit(net, X, y, options=options, **ask), note)  # noqa: B023
        options = RichOptions(runs=NETWORKS, keep_states=False)
        compare(what, limit, rich_network(net, X, y, options=options, **ask), note)


def deep(note):
    X, y, _ = data(16)
    # as above: with 0.5 the largest eigenvalue of Θ grows to the edge of stability
    for phi, scale in (("tanh", 1.5), ("relu", 2**0.5), ("identity", 1.0)):
        net = MLP(3, phi, sigma_w=scale, width=2048)
        eta = 0.2 * len(X) / float(np.linalg.eigvalsh(np.asarray(NTK(net).gram(X), float))[-1])
        ask = {"richness": 1.0, "times": [0, 10, 20, 30, 40, 50], "step_size": eta}
        options = RichOptions(draws=8192, runs=2)
        limit = timed(f"depth 3, {phi}", lambda: rich_limit(net, X, y, options=options, **ask), note, warm=False)  # noqa: B023
        networks = rich_network(net, X, y, options=RichOptions(runs=8, keep_states=False), **ask)
        compare(f"depth 3, {phi}", limit, networks, note)
        if phi == "identity":
            with precision("float64"):
                K = jnp.asarray(X @ X.T / X.shape[1])
                exact = deep_linear(K, jnp.asarray(y), 3, 1.0, eta / len(X), 50)
                f, Theta = (np.asarray(a)[ask["times"]] for a in exact)
            for name, mine, truth in (("f", limit.fitted, f), ("theta", limit.tangent, Theta)):
                print(
                    f"    {name:6s} {rms(np.asarray(mine.value) - truth) / rms(truth):.2e} from the algebraic solution",
                    flush=True,
                )


def bayes(note):
    X, y, Z = data(16, 32, d=4)
    net = MLP(1, "erf", sigma_w=1.5)
    for gamma in (0.5, 1.0, 2.0):
        ask = {"richness": gamma, "ridge": 0.5}
        began = time.perf_counter()
        found = adaptive_kernel(net, X, y, draws=4096, sweeps=400, **ask)
        print(f"adaptive kernel, γ_0 = {gamma:g}: {time.perf_counter() - began:.1f} s, {found.evidence.residual:.3%}")
        sampled = langevin(net, X, y, Z, width=2048, chains=LangevinChains(20000, 0.005, runs=8), **ask)
        for name, mine, theirs in (("f", found.predict(Z), sampled.predictions), ("Phi", found.gram, sampled.features)):
            size = rms(theirs.value)
            distance = rms(np.asarray(mine) - np.asarray(theirs.value)) / size
            print(f"    {name:6s} {distance:.2%} (errors of the networks {rms(theirs.error) / size:.2%})", flush=True)
            note(f"adaptive kernel against Langevin, γ_0 = {gamma:g}, {name}", 100 * distance, "%")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["two", "deep", "bayes"])
    add_option(parser)
    given = parser.parse_args()
    for part in given.parts:
        {"two": two, "deep": deep, "bayes": bayes}[part](recorder(__file__, given.record))
