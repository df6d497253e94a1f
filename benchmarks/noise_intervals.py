"""Claim: the noise interval of `unlazy.learning_curve` covers the variance of the noise, no forecast is below 0.8 of
it, and forecasts for targets without noise are as accurate as before.

For every kernel, dimension and law of the inputs, 40 draws of 400 points: ten for each noise variance from 0.002 to
0.2. Each draw has several targets. Printed for every target: the share of draws whose 90% interval contains the
variance, the share below its upper limit (which holds for every target), and the least forecast over the variance, at
sizes from 400 to a million. Noise and a target that the kernel cannot resolve with 400 points look alike, so the point
estimate and the lower limit may be too large there.

With --refit the risk at 1,600 points, with and without noise, is measured by a fit (one draw, 2,000 test points, the
best ridge), and compared with the mean forecast of the first three draws.

    python benchmarks/noise_intervals.py [--refit] [--dimensions 2 4 10] [--kernels laplace gaussian ntk] [--record]
"""

import argparse
from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np
from record import add_option, recorder

from unlazy import MLP, NTK, Gaussian, Laplace
from unlazy.kernels.base import Kernel
from unlazy.solvers.learning_curve import LearningCurve, learning_curve_from_spectrum
from unlazy.theory.dynamics.spectral_filters import rounding_floor

N, DRAWS, TESTS, FITS = 400, 40, 2000, 3
VARIANCES = (0.002, 0.01, 0.05, 0.2)
SIZES = (N, 2 * N, 4 * N, 8 * N, 16 * N, 1e6)
LEAST = 0.8
"""A forecast below this multiple of the noise variance counts as wrong."""
KERNELS = {
    "laplace": lambda d: Laplace(2.0),
    "gaussian": lambda d: Gaussian(float(np.sqrt(d / 3))),
    "ntk": lambda d: NTK(MLP(2, sigma_b=0.5)),
}
INPUTS = {
    "uniform": lambda rng, n, d: rng.uniform(-1, 1, (n, d)),
    "normal": lambda rng, n, d: rng.normal(size=(n, d)),
}
TARGETS = {
    "sine and square": lambda X: np.sin(3 * X[:, 0]) + X[:, 1] ** 2,
    "sum of sines": lambda X: np.sin(X).sum(1) / np.sqrt(X.shape[1]),
    "single index": lambda X: np.tanh(2 * X.sum(1) / np.sqrt(X.shape[1])),
    "kinks": lambda X: np.abs(X[:, :2]).sum(1),
    "product": lambda X: X[:, 0] * X[:, 1],
}


class Spectrum(NamedTuple):
    """Inputs, and the decomposition of their centered kernel."""

    X: np.ndarray
    values: np.ndarray
    vectors: np.ndarray

    def curve(self, y: np.ndarray, sizes: tuple[float, ...] = SIZES) -> LearningCurve:
        floor = float(rounding_floor(self.values))
        return learning_curve_from_spectrum(
            self.values, self.vectors, y - y.mean(), sizes, (), floor=floor, intercept=True
        )


def centered(K: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    means = K.mean(0)
    values, vectors = np.linalg.eigh(K - means - means[:, None] + means.mean())
    return np.maximum(values, 0), vectors


def spectra(kernel: Kernel, inputs: str, d: int) -> Iterator[tuple[Spectrum, np.ndarray, float]]:
    """For every draw: the spectrum, the noise of variance one, and the variance it will have."""
    for seed in range(DRAWS):
        rng = np.random.default_rng([seed, d, len(inputs)])
        X = INPUTS[inputs](rng, N, d)
        yield Spectrum(X, *centered(np.asarray(kernel.gram(X)))), rng.normal(size=N), VARIANCES[seed % len(VARIANCES)]


def measured(kernel: Kernel, inputs: str, d: int, variances: tuple[float, ...]) -> np.ndarray:
    """Risk at 4n points by a fit with the best ridge, for every target and variance."""
    rng = np.random.default_rng([DRAWS, d, len(inputs)])
    X, Z = INPUTS[inputs](rng, 4 * N, d), INPUTS[inputs](rng, TESTS, d)
    K, C = np.asarray(kernel.gram(X)), np.asarray(kernel.gram(Z, X))
    values, U = centered(K)
    noise = rng.normal(size=len(X))
    Y = np.stack([target(X) + np.sqrt(v) * noise for target in TARGETS.values() for v in variances], 1)
    F = np.stack([target(Z) for target in TARGETS.values() for _ in variances], 1)
    inside, CU = U.T @ (Y - Y.mean(0)), (C - C.mean(1, keepdims=True) - K.mean(0) + K.mean()) @ U
    ridges = np.geomspace(max(1e-12 * values[-1], rounding_floor(values)), 10 * values[-1], 40)
    excess = [np.mean((CU @ (inside / (values + r)[:, None]) + Y.mean(0) - F) ** 2, 0) for r in ridges]
    return np.min(excess, 0).reshape(len(TARGETS), -1) + np.array(variances)


def check_fits(kernel: Kernel, inputs: str, d: int) -> np.ndarray:
    """Logarithms of the forecast over the measured risk at 4n, for every target and variance, the first zero."""
    variances = (0.0, *VARIANCES)
    truth, forecasts = measured(kernel, inputs, d, variances), np.zeros((FITS, len(TARGETS), len(variances)))
    for k, (spectrum, noise, _) in zip(range(FITS), spectra(kernel, inputs, d)):
        for i, target in enumerate(TARGETS.values()):
            for j, v in enumerate(variances):
                forecasts[k, i, j] = spectrum.curve(target(spectrum.X) + np.sqrt(v) * noise, (4 * N,)).risk[0]
    return np.log(forecasts.mean(0) / truth)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dimensions", type=int, nargs="*", default=[2, 4, 10])
    parser.add_argument("--kernels", nargs="*", default=list(KERNELS))
    parser.add_argument("--refit", action="store_true", help="measure the risk at 4n too")
    add_option(parser)
    options = parser.parse_args()
    note = recorder(__file__, options.record)
    results, errors = {}, []
    with jax.enable_x64(True):
        for name in options.kernels:
            for d in options.dimensions:
                for inputs in INPUTS:
                    kernel = KERNELS[name](d)
                    for spectrum, noise, variance in spectra(kernel, inputs, d):
                        for title, target in TARGETS.items():
                            c = spectrum.curve(target(spectrum.X) + np.sqrt(variance) * noise)
                            found = np.array([c.noise_low, c.noise, c.noise_high, c.risk.min()]) / variance
                            results.setdefault((name, d, inputs, title), []).append(found)
                    for title in TARGETS:
                        low, value, high, least = np.transpose(results[name, d, inputs, title])
                        print(
                            f"{name:9s} d = {d:2d} {inputs:8s} {title:16s} covered "
                            f"{np.mean((low <= 1) & (high >= 1)):.2f}, below the upper limit {np.mean(high >= 1):.2f}; "
                            f"median interval [{np.median(low):.2f}, {np.median(high):.2f}], estimate "
                            f"{np.median(value):.2f}; least forecast {least.min():.2f} of the noise", flush=True,
                        )  # fmt: skip
                    if options.refit:
                        errors.append(check_fits(kernel, inputs, d))
                        mean = np.abs(errors[-1]).mean(0)
                        print(f"{name:9s} d = {d:2d} {inputs:8s} mean error of the logarithm at 4n: "
                              + ", ".join(f"{e:.2f}" for e in mean) + " for rising noise", flush=True)  # fmt: skip
    every = np.array(list(results.values()))  # setting, draw, number
    low, high, least = every[..., 0], every[..., 2], every[..., 3]
    shares = np.mean((low <= 1) & (high >= 1), 1)
    print(f"{len(every)} settings: covered {shares.mean():.3f}, least {shares.min():.2f}; below the upper limit "
          f"{np.mean(high >= 1):.3f}; forecasts below {LEAST} of the noise: {np.sum(least < LEAST)}, least "
          f"{least.min():.2f}")  # fmt: skip
    note("noise covered by the interval", float(shares.mean()), "share")
    note("noise covered in the worst setting", float(shares.min()), "share")
    note("least forecast over the noise", float(least.min()), "ratio")
    if errors:
        mean = np.abs(errors).mean((0, 1))
        print(f"mean error of the logarithm at 4n: {mean[0]:.3f} without noise, {mean[1:].mean():.3f} with it")
        note("mean error of the logarithm at 4n, no noise", float(mean[0]), "nats")
        note("mean error of the logarithm at 4n, noise", float(mean[1:].mean()), "nats")


if __name__ == "__main__":
    main()
