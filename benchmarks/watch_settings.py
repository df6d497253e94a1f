"""Training runs of known laziness: architectures, tasks and rates that the programs of both frameworks share.

A setting is an architecture, a framework, an optimizer and a seed. The seed draws everything else (activation, width,
loss, batch size, number of steps, rate), so that thresholds cannot be tuned to one of them. The dial α [W6] trains
F = α (f - f_0) with rate η/α² (SGD) or η/α and eps × α (Adam): in the limit of a linearized network all α give the same
F at every step, so that one linearized run serves all α.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from unlazy.diagnostics import Monitor, WatchOptions, watch

ARCHITECTURES = ("mlp", "cnn", "resnet", "transformer")
FRAMEWORKS = ("torch", "jax")
OPTIMIZERS = ("sgd", "adam")
REDUCTIONS = (1.0, 0.25, 1 / 16, 1 / 64)
"""A run that fails is repeated with the next smaller rate, as a user would do."""
ENOUGH = 0.99
"""A run has failed if its loss on the training rows does not end below this share of that of F = 0."""
FRACTIONS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
"""Checks, as fractions of the planned steps."""
PROBES, TEST = 64, 256
DIMENSION, VOCABULARY, LENGTH = 16, 12, 10
EPS = 1e-8
"""Adam's eps at α = 1."""


Parts = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Inputs, easy scores, hard scores."""


class Table(NamedTuple):
    """Training rows, test rows and probe rows."""

    X: np.ndarray
    y: np.ndarray
    test: np.ndarray
    probe: np.ndarray
    probe_y: np.ndarray


@dataclass(frozen=True)
class Setting:
    """What is trained; the remaining choices are drawn from the seed."""

    architecture: str
    framework: str
    optimizer: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.architecture}-{self.framework}-{self.optimizer}-{self.seed}"

    def rng(self, purpose: int) -> np.random.Generator:
        words = (*self.name.encode(), purpose)
        return np.random.default_rng(list(words))


@dataclass(frozen=True)
class Choices:
    """What the seed of a setting draws."""

    activation: str
    width: int
    depth: int
    loss: str
    difficulty: float
    """Share of the target that the kernel cannot learn from so few rows."""
    outputs: int
    rows: int
    batch: int
    steps: int
    rate: float
    """Adam: η. SGD: η as a share of the largest stable one for the kernel at initialization; at most a third of it,
    since at the edge of stability D measures the phase of oscillations."""
    momentum: float


def choices(setting: Setting) -> Choices:
    """Draw the choices of a setting."""
    rng = setting.rng(0)
    widths = {"mlp": (64, 128, 256), "cnn": (16, 24, 32), "resnet": (12, 16, 24), "transformer": (32, 48, 64)}
    adam = setting.optimizer == "adam"
    return Choices(
        activation=str(rng.choice(("relu", "gelu", "tanh"))),
        width=int(rng.choice(widths[setting.architecture])),
        depth=int(rng.choice((2, 3))),
        loss=str(rng.choice(("squared", "cross entropy"))),
        difficulty=float(rng.uniform(0.4, 1.0)),
        outputs=int(rng.choice((2, 4))),
        rows=256,
        batch=int(rng.choice((32, 64))),
        steps=int(rng.choice((200, 300, 400) if adam else (300, 500, 700))),
        rate=float(10 ** rng.uniform(-3.3, -2.5)) if adam else float(10 ** rng.uniform(-1.3, -0.5)),
        momentum=0.0 if adam else float(rng.choice((0.0, 0.9))),
    )


def table(setting: Setting, chosen: Choices) -> Table:
    """Draw a task: smooth functions of few directions, shifted patterns in images, or counts of tokens.

    Each is a mixture of an easy part and one that is too hard for so few rows. On a task that kernel and network both
    solve the outputs are the same in both regimes, and no truth about outputs could tell them apart.
    """
    rng = setting.rng(1)
    n = chosen.rows + TEST + PROBES
    draw = {"mlp": _vectors, "cnn": _images, "resnet": _images, "transformer": _tokens}[setting.architecture]
    X, easy, hard = draw(rng, n, chosen.outputs)
    hard, easy = ((part - part.mean(0)) / part.std(0) for part in (hard, easy))
    scores = chosen.difficulty * hard + (1 - chosen.difficulty) * easy
    if chosen.loss == "squared":
        y = (scores / scores.std(0)).astype(np.float32)
    else:
        y = scores.argmax(1).astype(np.int64)
    a, b = chosen.rows, chosen.rows + TEST
    return Table(X[:a], y[:a], X[a:b], X[b:], y[b:])


def batches(setting: Setting, chosen: Choices) -> np.ndarray:
    """Row indices of every step: epochs of shuffled rows."""
    rng = setting.rng(2)
    epochs = -(-chosen.steps * chosen.batch // chosen.rows)
    order = np.concatenate([rng.permutation(chosen.rows) for _ in range(epochs)])
    return order[: chosen.steps * chosen.batch].reshape(chosen.steps, chosen.batch)


def check_steps(steps: int) -> list[int]:
    """Steps after which the run is checked."""
    return sorted({max(1, round(f * steps)) for f in FRACTIONS})


def _vectors(rng: np.random.Generator, n: int, outputs: int) -> Parts:
    """Products and sines of a few directions."""
    X = rng.normal(size=(n, DIMENSION)).astype(np.float32)
    Z = X @ rng.normal(size=(DIMENSION, outputs)) / np.sqrt(DIMENSION)
    return X, Z, np.sin(2 * Z) + np.roll(Z, 1, 1) * Z


def _images(rng: np.random.Generator, n: int, outputs: int) -> Parts:
    """Noise with patterns of random strength at random places; the scores are products of strengths."""
    side, small = 8, 3
    patterns = rng.normal(size=(outputs + 1, 3, small, small))
    strengths = rng.uniform(-1, 1, size=(n, outputs + 1))
    X = 0.5 * rng.normal(size=(n, 3, side, side))
    at = rng.integers(0, side - small + 1, size=(n, outputs + 1, 2))
    for i in range(n):
        for k, (r, c) in enumerate(at[i]):
            X[i, :, r : r + small, c : c + small] += strengths[i, k] * patterns[k]
    return X.astype(np.float32), strengths[:, :-1], strengths[:, :-1] * strengths[:, 1:]


def _tokens(rng: np.random.Generator, n: int, outputs: int) -> Parts:
    """The scores are products of the counts of tokens; a token that follows token 0 counts three times."""
    X = rng.integers(0, VOCABULARY, size=(n, LENGTH))
    follows = np.concatenate([np.zeros((n, 1), bool), X[:, :-1] == 0], axis=1)
    hits = X[:, :, None] == np.arange(1, outputs + 2)
    counts = (hits * (1 + 2 * follows[:, :, None])).sum(1) + 0.1 * rng.normal(size=(n, outputs + 1))
    return X, counts[:, :-1], (counts[:, :-1] - 1) * (counts[:, 1:] - 1)


class Run(NamedTuple):
    """One training run.

    Attributes
    ----------
    checks : list of dict
        Per check: what `unlazy.watch` measured (step, gap, gap_error, …), `plain_gap` (the gap by one jvp in the
        framework itself, normalization layers with the statistics of the probe rows), `loss` of F on the probe rows,
        and `train_loss` on the training rows.
    outputs : array
        F on the test rows at the end.
    start_loss, start_train_loss : float
        The same losses of F = 0.
    """

    checks: list[dict[str, float]]
    outputs: np.ndarray
    start_loss: float
    start_train_loss: float

    @property
    def failed(self) -> bool:
        """Whether training did not lower the loss."""
        return not self.checks or not self.checks[-1]["train_loss"] < ENOUGH * self.start_train_loss


def watched(network: object, probe: object, steps: int) -> Monitor:
    """A monitor of gap and features that checks only when told to."""
    options = WatchOptions(measures=("gap", "features"))
    return watch(network, probe, every=steps + 1, planned_steps=steps, options=options)


class Program(Protocol):
    """What both frameworks implement for a setting."""

    def linearized(self, reduction: float = 1.0) -> np.ndarray:
        """F on the test rows after training the linearization at θ_0, with the rate times `reduction`."""
        ...

    def train(self, alpha: float, reduction: float = 1.0) -> Run:
        """Train with dial α, with the rate times `reduction`."""
        ...


def program(setting: Setting) -> Program:
    """The setting's program in its framework, which only this call imports."""
    if setting.framework == "torch":
        from watch_torch import TorchProgram

        return TorchProgram(setting)
    from watch_jax import JaxProgram

    return JaxProgram(setting)


def settings(seeds: int, first_seed: int = 0) -> list[Setting]:
    """All settings, those that take longest first."""
    order = ("resnet", "transformer", "cnn", "mlp")
    return [
        Setting(architecture, framework, optimizer, seed)
        for architecture in order
        for seed in range(first_seed, first_seed + seeds)
        for framework in FRAMEWORKS
        for optimizer in OPTIMIZERS
    ]


def advice_settings(count: int, first_seed: int) -> list[Setting]:
    """Other settings, in turn of every architecture, framework and optimizer."""
    kinds = len(ARCHITECTURES) * len(FRAMEWORKS) * len(OPTIMIZERS)
    found = settings(1)
    return [Setting(s.architecture, s.framework, s.optimizer, first_seed + i // kinds)
            for i, s in enumerate((found * (1 + count // kinds))[:count])]  # fmt: skip
