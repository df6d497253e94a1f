"""Linearized Laplace approximation in function space: what the data leave open about a trained network [I1].

Immer, Korzepa and Bauer (2021): the posterior of f at z is Gaussian around the network's own prediction, with the
covariance of the linear model in its tangents.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar
from scipy.special import ndtri

from unlazy.core.arrays import einsum
from unlazy.core.errors import check_positive, check_positive_integer
from unlazy.models.protocol import Inputs, Params
from unlazy.models.tangents import Tangents
from unlazy.solvers.tangent.fit import TangentModel, batches
from unlazy.solvers.tangent.likelihood import infer_loss, probabilities, quadratic

PROBABILITY_DRAWS = 512
"""Draws of the logits for standard deviations of probabilities: a relative error of 1/√1024 = 3%."""
STATIONARY = 0.6
"""Relative gradient from which parameters are no minimum: that of a decay 4 times too large or too small."""
SMALL_GAP, LARGE_GAP = 0.2, 0.6
"""Gaps up to which a linear model is a good one, and from which it is a rough guide."""


class NetworkPrediction(NamedTuple):
    """Prediction of a network with its uncertainty.

    Attributes
    ----------
    mean : array of shape (m,) or (m, c)
        The network's own prediction: values, or class probabilities.
    std : array of the same shape
        Standard deviation of the prediction, without the noise of the targets.
    noise_variance : float
        Variance of the noise; 0 for classification.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy.diagnostics import NetworkPrediction
    >>> NetworkPrediction(np.zeros(1), np.full(1, 0.8), 0.36).interval(0.9)[1].round(3).tolist()
    [1.645]
    """

    mean: Float[np.ndarray, "m ..."]
    std: Float[np.ndarray, "m ..."]
    noise_variance: float

    def interval(self, coverage: float = 0.9) -> tuple[Float[np.ndarray, "m ..."], Float[np.ndarray, "m ..."]]:
        """Lower and upper end of intervals that hold a new target with the given probability.

        Parameters
        ----------
        coverage : float, default 0.9
            Probability.

        Returns
        -------
        tuple of arrays

        Raises
        ------
        ValueError
            If the coverage is not between 0 and 1.
        """
        if not 0 < coverage < 1:
            raise ValueError(f"coverage must be between 0 and 1, got {coverage!r}")
        half = ndtri((1 + coverage) / 2) * np.sqrt(self.std**2 + self.noise_variance)
        return self.mean - half, self.mean + half


class NetworkPosterior:
    """Posterior of a trained network, from `unlazy.uncertainty`.

    Attributes
    ----------
    prior_precision : float
        Precision of the Gaussian prior of every parameter.
    noise_variance : float
        Variance of the noise of the targets; 0 for classification.
    log_evidence : float
        Log marginal likelihood of the training targets.
    evidence_error : float
        Standard error of `log_evidence`, 0 if it is exact.
    gap : float
        Share of the change of the network that is not linear in its parameters when half of the rows are left out:
        how far the answers can be trusted. 0 for a network that is linear in its parameters.
    stationarity : float
        Norm of the gradient of loss and prior at the trained parameters, relative to the norms of its two parts: 0 at
        their minimum, which the evidence assumes; 1 for a network that fits its rows exactly.
    training_gap : float or None
        Linearization gap from the reference to the trained parameters, if a reference was given [W1].
    temperature : float
        Number that logits are divided by; 1 without held-out rows.
    """

    def __init__(
        self,
        fit: TangentModel,
        *,
        prior_precision: float | None = None,
        noise_variance: float | None = None,
        reference: Params | None = None,
    ) -> None:
        self._fit, self._axes = fit, fit.targets.ndim
        known = prior_precision is not None
        for name, value in (("prior_precision", prior_precision), ("noise_variance", noise_variance)):
            if value is not None:
                check_positive(name)(value)
        if self.is_regression and known != (noise_variance is not None):
            raise ValueError("pass both prior_precision and noise_variance, or neither, to choose them by the evidence")
        if not self.is_regression and noise_variance is not None:
            raise ValueError(f"noise_variance belongs to regression, but the loss is {fit.loss!r}")
        tau = None if prior_precision is None else prior_precision * (noise_variance or 1.0)
        found = fit.evidence(reference, tau, noise_variance)
        self._tau, self._scale, self._noise = found.tau, found.noise, found.noise if self.is_regression else 0.0
        self.prior_precision = found.tau / found.noise
        self.log_evidence, self.evidence_error = found.log_evidence, found.error
        self.temperature, self._held_out = 1.0, False
        fit.warn_if_rounding(self._tau)
        self.stationarity = fit.stationarity(self._tau, reference)
        self.gap = fit.gap_of(fit.system.inverse(fit.removal(), self._tau))
        self.training_gap = None if reference is None else fit.gap_from(reference)

    @property
    def is_regression(self) -> bool:
        """Whether targets are numbers."""
        return self._fit.is_regression

    @property
    def noise_variance(self) -> float:
        """Variance of the noise of the targets; 0 for classification."""
        return self._noise

    def predict(self, Z: Inputs) -> NetworkPrediction:
        """The network's predictions and their standard deviations.

        Parameters
        ----------
        Z : inputs
            m rows, in the form that the network takes.

        Returns
        -------
        NetworkPrediction
            Values, or class probabilities, with their standard deviations.
        """
        mean, covariance = self._moments(Z)
        if self.is_regression:
            return NetworkPrediction(self._shaped(mean), self._shaped(_deviations(covariance)), self._noise)
        p = probabilities(mean / self.temperature, self._fit.loss)
        std = self._spread_of_probabilities(mean, covariance)
        return NetworkPrediction(self._shaped(p), self._shaped(std), 0.0)

    def sample(self, Z: Inputs, draws: int = 10, seed: int = 0) -> Float[np.ndarray, "draws m ..."]:
        """Draws of the linearized network, jointly over all rows: values, or logits.

        Parameters
        ----------
        Z : inputs
            m rows.
        draws : int, default 10
            Number of draws.
        seed : int, default 0
            Of the draws.

        Returns
        -------
        array of shape (draws, m) or (draws, m, c)
        """
        moves = self._draws(check_positive_integer("draws", draws), seed + 1)
        linear = [self._fit.map.push(part, moves)[:, :real] for part, real in batches(Z, 1024)]
        found = self._fit.evaluate(Z)[None] + np.concatenate(linear, 1)
        return found[..., 0] if self._is_flat else found

    def covariance(self, Z: Inputs) -> Float[np.ndarray, "m c m c"]:
        """Joint covariance of the outputs at all rows (logits for classification).

        Parameters
        ----------
        Z : inputs
            m rows.

        Returns
        -------
        array of shape (m, c, m, c)
        """
        fit = self._fit
        m = len(fit.evaluate(Z))
        eye = np.broadcast_to(np.eye(fit.c), (m, fit.c, fit.c))
        tangents = fit.map.stack([part for _, part in fit.query_tangents(Z, eye)])
        return (self._scale * fit.system.covariance(tangents, self._tau)).reshape(m, fit.c, m, fit.c)

    def calibrate(self, Z: Inputs, y: NDArray[np.generic]) -> None:
        """Fit scales to rows that were not trained on: of both variances, or the temperature of class probabilities.

        A change is kept only if it makes the held-out likelihood larger.

        Parameters
        ----------
        Z : inputs
            Rows that the network was not trained on.
        y : array
            Their targets.
        """
        mean, covariance = self._moments(Z)
        y = np.asarray(y)
        infer_loss(mean, y, self._fit.loss)
        self._held_out = True
        if not self.is_regression:
            self.temperature = _temperature(mean, y, self._fit.loss)
            return
        errors = np.square(y.reshape(mean.shape) - mean)
        own = np.square(_deviations(covariance))

        def loss(log_scales: Float[np.ndarray, " 2"]) -> float:
            variance = np.exp(log_scales[0]) * own + np.exp(log_scales[1]) * self._noise
            prior = (
                float(np.sum(np.square(log_scales))) / errors.size
            )  # a factor of e each: both are hard to tell apart
            return float(np.mean(errors / variance + np.log(variance))) + prior

        best = min(
            (minimize(loss, start, method="Nelder-Mead") for start in ((0, 0), (-4, 0), (0, -4))), key=lambda r: r.fun
        )
        if best.fun < loss(np.zeros(2)):
            self._scale *= float(np.exp(best.x[0]))
            self._noise *= float(np.exp(best.x[1]))

    def __str__(self) -> str:
        what = f"prior precision {self.prior_precision:.3g}"
        what += f", noise variance {self._noise:.3g}" if self.is_regression else ""
        text = f"Posterior of the network: {what}, log evidence {self.log_evidence:.5g}."
        if self._held_out:
            return f"{text} Scales are fitted to held-out rows."
        if self.stationarity > STATIONARY:
            return (
                f"{text} The trained parameters are not the minimum of the loss with this prior (early stopping, other "
                "or no weight decay?): pass held_out rows, to which scales are fitted."
            )
        gap = self.gap if self.training_gap is None else self.training_gap
        return f"{text} {describe_gap(gap, 'check the coverage on held-out rows')}"

    def _spread_of_probabilities(
        self, mean: Float[np.ndarray, "m c"], covariance: Float[np.ndarray, "m c c"]
    ) -> Float[np.ndarray, "m c"]:
        """Standard deviation of the class probabilities under the posterior of the logits, by draws."""
        values, vectors = np.linalg.eigh(covariance)
        root = vectors * np.sqrt(np.maximum(values, 0))[:, None]
        half = np.random.default_rng(self._fit.options.seed).normal(size=(PROBABILITY_DRAWS // 2, mean.shape[1]))
        draws = mean[:, None] + einsum("mab,sb->msa", root, np.concatenate([half, -half]))
        p = probabilities(draws.reshape(-1, mean.shape[1]) / self.temperature, self._fit.loss)
        return p.reshape(draws.shape).std(1)

    @property
    def _is_flat(self) -> bool:
        return self._fit.c == 1 and (self._axes == 1 or not self.is_regression)

    def _shaped(self, values: Float[np.ndarray, "m c"]) -> Float[np.ndarray, "m ..."]:
        return values[:, 0] if self._is_flat else values

    def _moments(self, Z: Inputs) -> tuple[Float[np.ndarray, "m c"], Float[np.ndarray, "m c c"]]:
        """Outputs and the covariance of those of every row."""
        return self._fit.evaluate(Z), self._scale * self._fit.row_covariances(Z, self._tau)

    def _draws(self, count: int, seed: int) -> Tangents:
        """Draws of the parameters around the trained ones: M(Aᵀε + √τ ε') has the covariance M."""
        fit = self._fit
        noise = np.random.default_rng(seed).normal(size=(count, fit.system.data.size))
        prior = fit.map.random(count, seed)
        eye = np.eye(count)
        mixed = fit.map.add(fit.system.data.pull(noise), fit.map.combine(math.sqrt(self._tau) * eye, prior))
        return fit.map.combine(math.sqrt(self._scale) * eye, fit.system.inverse(mixed, self._tau))


def describe_gap(gap: float, consequence: str) -> str:
    """One sentence that says what a linearization gap means; `consequence` if the network is far from linear."""
    share = f"The linearization gap is {gap:.2g}: "
    if gap <= SMALL_GAP:
        return share + "the network is close to its tangent model."
    if gap <= LARGE_GAP:
        return share + "the tangent model is a fair guide to the network."
    return share + f"the network is far from its tangent model, so {consequence}."


def _deviations(covariance: Float[np.ndarray, "m c c"]) -> Float[np.ndarray, "m c"]:
    return np.sqrt(np.maximum(np.diagonal(covariance, axis1=1, axis2=2), 0))


def _temperature(logits: Float[np.ndarray, "m c"], y: NDArray[np.generic], loss: str) -> float:
    """The temperature with the largest held-out likelihood."""

    def mean_loss(log_temperature: float) -> float:
        return float(np.mean(quadratic(logits / math.exp(log_temperature), y, loss).losses))

    found = minimize_scalar(mean_loss, bounds=(-3, 3), method="bounded")
    return math.exp(float(found.x)) if found.fun < mean_loss(0.0) else 1.0
