"""Image classification with the kernel of an infinitely wide convolutional network, from pixels to accuracy.

Images are read from a file with X_train, y_train, X_test and y_test (docs/guides/use_images.md shows how to make one
for CIFAR-10). The benchmark applies ZCA whitening and horizontal flips, writes both kernel matrices to a store in
tiles, computes one eigendecomposition in float64, and chooses the ridge by leave-one-out accuracy. A fully connected
NTK on the same images is the baseline. A killed run resumes from its store; the times of all runs are added up.

    python benchmarks/image_kernels.py --file cifar10.npz --store FOLDER [--train 10000] [--test 2000] [--depth 10] \\
        [--kernel nngp] [--no-flips] [--record]

Targets on an H200: 10,000 training and 2,000 test images of CIFAR-10 with Myrtle-10 in at most 15 minutes, with an
accuracy 20 percentage points above the baseline.
"""

import argparse
import json
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from record import add_option, recorder

from unlazy import MLP, NNGP, NTK, gram_to_store
from unlazy.core.arrays import dot
from unlazy.estimators import ZCAWhitening
from unlazy.kernels.networks.flips import with_flips
from unlazy.layers import myrtle
from unlazy.products import gram
from unlazy.solvers.ridge import RELATIVE_RIDGES
from unlazy.theory.dynamics.leave_one_out import bordered_diagonal, leave_one_out_residual, with_intercept


class Clock:
    """Seconds of every part, saved next to the store every second; includes earlier runs that were killed."""

    def __init__(self, folder: Path):
        self.file, self.parts, self.lock = folder / "seconds.json", {}, threading.Lock()
        if self.file.exists():
            self.parts = json.loads(self.file.read_text())
        self.began, self.part = time.perf_counter(), ""
        threading.Thread(target=self._keep, daemon=True).start()

    def _keep(self) -> None:
        while True:
            time.sleep(1)
            self._add()

    def _add(self) -> None:
        with self.lock:
            now = time.perf_counter()
            self.parts[self.part] = self.parts.get(self.part, 0.0) + now - self.began
            self.began = now
            written = self.file.with_suffix(".new")
            written.write_text(json.dumps(self.parts))
            written.replace(self.file)

    @contextmanager
    def time(self, part: str) -> Iterator[None]:
        self._add()
        self.part = part
        yield
        self._add()
        self.part = ""
        print(f"{part}: {self.parts[part]:.1f} s", flush=True)

    def whole(self) -> float:
        """Total, including the time between parts but not the start of the program."""
        self._add()
        return sum(self.parts.values())


def images(file: Path, n: int, m: int, flips: bool) -> tuple:
    """Whitened training and test images and their classes; a fixed random sample."""
    rng, found = np.random.default_rng(0), []
    with np.load(file) as arrays:
        for part, k in (("train", n), ("test", m)):
            pictures = arrays[f"X_{part}"]
            rows = rng.permutation(len(pictures))[:k]
            found += [pictures[rows].astype(np.float32), arrays[f"y_{part}"][rows]]
    X, y, T, t = found
    whitening = ZCAWhitening(flips=flips).fit(X)
    return whitening.transform(X), y, whitening.transform(T), t


def predicted(K: np.ndarray, y: np.ndarray, across: np.ndarray, t: np.ndarray | None = None) -> tuple:
    """Classes by least squares on one-hot labels with an intercept; the ridge is chosen by leave-one-out accuracy.

    Ties go to the smaller leave-one-out squared error. With test labels `t`, the accuracies of every ridge are printed.
    """
    with jax.enable_x64(True):
        Y = jnp.asarray(np.eye(y.max() + 1)[y])
        Y, center = Y - Y.mean(0), Y.mean(0)
        values, U = jnp.linalg.eigh(jnp.asarray(K, jnp.float64))
        rotated, ones, squares = dot(U.T, Y), U.sum(0), U * U
        best: tuple = ((-1.0, 0.0),)
        for relative in RELATIVE_RIDGES:
            c = 1 / (jnp.maximum(values, 0) + relative * np.mean(np.diag(K)))
            alpha, shift = with_intercept(dot(U, c[:, None] * rotated), one := dot(U, c * ones))
            residuals = leave_one_out_residual(alpha, bordered_diagonal(dot(squares, c), one, one.sum())[:, None])
            right = float(jnp.mean((Y - residuals + center).argmax(1) == jnp.asarray(y)))
            error = float(jnp.mean(residuals**2))
            if t is not None:
                found = np.asarray(dot(jnp.asarray(across, jnp.float64), alpha) + shift + center).argmax(1)
                print(f"  ridge {relative:.1e}: leave-one-out accuracy {right:.4f}, squared error {error:.5f}; "
                      f"test accuracy {np.mean(found == t):.4f}")  # fmt: skip
            if (right, -error) > best[0]:
                best = (right, -error), alpha, shift, float(relative)
        _, alpha, shift, relative = best
        return np.asarray(dot(jnp.asarray(across, jnp.float64), alpha) + shift + center).argmax(1), relative


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument(
        "--store", type=Path, required=True, help="folder of the kernel matrices; a killed run resumes from it"
    )
    parser.add_argument("--train", type=int, default=10_000)
    parser.add_argument("--test", type=int, default=2_000)
    parser.add_argument("--depth", type=int, choices=(5, 7, 10), default=10)
    parser.add_argument("--kernel", choices=("nngp", "ntk"), default="nngp")
    parser.add_argument("--no-flips", dest="flips", action="store_false")
    add_option(parser)
    options = parser.parse_args()
    if not options.file.is_file():
        parser.error(f"there is no file {options.file}; docs/guides/use_images.md shows how to make one for CIFAR-10")
    warnings.simplefilter("ignore")
    options.store.mkdir(parents=True, exist_ok=True)
    clock, note = Clock(options.store), recorder(__file__, options.record)
    with clock.time("reading and whitening"):
        X, y, T, t = images(options.file, options.train, options.test, options.flips)
    kernel = (NNGP if options.kernel == "nngp" else NTK)(myrtle(options.depth))
    kernel = with_flips(kernel) if options.flips else kernel
    matrices = []
    for name, sides in (("training", (X,)), ("test", (T, X))):
        with clock.time(f"kernel matrix, {name}"):
            matrices.append(gram_to_store(kernel, *sides, store=options.store / name, progress=True))
    with clock.time("eigendecomposition, ridges, classes"):
        found, ridge = predicted(np.asarray(matrices[0]), y, np.asarray(matrices[1]), t)
    right, whole = float(np.mean(found == t)), clock.whole()
    flat, flat_test = (A.reshape(len(A), -1) for A in (X, T))
    other, _ = predicted(*(np.asarray(gram(NTK(MLP(2)), flat)), y, np.asarray(gram(NTK(MLP(2)), flat_test, flat))))
    connected = float(np.mean(other == t))
    what = f"myrtle-{options.depth} {options.kernel}, {options.train} and {options.test} images"
    what += ", flips" if options.flips else ""
    print(f"{what}: {whole:.1f} s from pixels to accuracy; accuracy {right:.4f}, ridge {ridge:.2g}; "
          f"fully connected NTK {connected:.4f}", flush=True)  # fmt: skip
    note(f"{what}, from pixels to accuracy", whole, "s")
    note(f"{what}, right", right, "share")
    note(f"fully connected NTK, {options.train} and {options.test} images, right", connected, "share")


if __name__ == "__main__":
    main()
