"""A deep network of infinite width along its training [M3], as a trajectory."""

import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from unlazy.core.architecture import MLP
from unlazy.core.fitted import Evidence, Words, place
from unlazy.core.inputs import Matrix, Points, points
from unlazy.core.memory import memory_budget
from unlazy.core.precision import precision
from unlazy.kernels.base import Kernel
from unlazy.training.losses import Loss
from unlazy.training.rich.deep import DeepLimit, Moment, memory_needed
from unlazy.training.rich.dynamics import relative_error
from unlazy.training.rich.estimate import Estimate, on_host, over_runs


class DeepKernel(Kernel):
    """Θ after some steps at any points, each block by following both sides along a training of its own."""

    limit: DeepLimit
    step: int = eqx.field(static=True)

    def block(self, left: Float[Array, "n d"], right: Float[Array, "m d"]) -> Float[Array, "n m"]:
        count, n = self.limit.X.shape[0], left.shape[0]
        both = jnp.concatenate([left, right]).astype(self.limit.X.dtype)
        Theta = jnp.mean(self.limit.follow(both).tangent[:, self.step], 0)
        return Theta[count : count + n, count + n :].astype(left.dtype)


class DeepTrajectory(eqx.Module):
    """Predictions, losses and moving kernels after steps of descent; estimates as in `RichTrajectory`.

    New points are followed along the whole training, so predictions there cost as much as the training did.
    """

    limit: DeepLimit
    times: Int[Array, " t"]
    """Numbers of steps."""
    fitted: Estimate
    losses: Estimate
    features: tuple[Estimate, ...]
    gradients: tuple[Estimate, ...]
    tangent: Estimate
    evidence: Evidence

    @property
    def X(self) -> Float[Array, "n d"]:
        return self.limit.X

    def predict(self, Z: Points, t: Any = None) -> Float[Matrix, "..."]:
        """f at Z after the last step, or at t, one or several of `times`: shape (*t, m)."""
        return self.estimate(Z, t).value

    def estimate(self, Z: Points, t: Any = None) -> Estimate:
        """The same with its standard error."""
        steps = np.asarray(self.times)[-1 if t is None else place(self.times, t)]
        with precision(self.fitted.value.dtype.name):
            found = _followed(self.limit, points(Z, "Z", self.fitted.value.dtype)).f
            return on_host(_over_runs(found[:, steps, self.limit.X.shape[0] :]))

    def kernel_at(self, t: Any) -> DeepKernel:
        """The tangent kernel after t steps."""
        return DeepKernel(self.limit, int(np.asarray(self.times)[place(self.times, t)]))


def deep_limit(
    network: MLP, X: Array, y: Array, *, richness: float, times: np.ndarray, step_size: float | None, loss: Loss,
    draws: int, runs: int, quasi: bool, key: PRNGKeyArray,
) -> DeepTrajectory:  # fmt: skip
    """Every step in one pass [M3]."""
    check(network, step_size)
    steps = int(times[-1])
    need, budget = memory_needed(network, X.shape[0], steps, draws, X.dtype.itemsize), memory_budget()
    if need > budget:
        raise ValueError(
            f"{draws} draws, {X.shape[0]} points and {steps} steps need {need / 2**30:.2g} GiB and the memory "
            f"budget is {budget / 2**30:.2g} GiB: take fewer draws, points or steps"
        )
    began = time.perf_counter()
    limit = DeepLimit(network, X, y, richness, step_size, loss, steps, draws, runs, quasi, key)
    found = _followed(limit, None)
    at = jax.tree.map(lambda leaf: leaf[:, times], found)
    losses = jax.vmap(jax.vmap(lambda f: loss.mean(f, y)))(at.f)
    fitted = _over_runs(at.f)
    finite = bool(jnp.all(jnp.isfinite(fitted.value)))
    exact = limit.linear
    error = (0.0 if exact else float(relative_error(fitted))) if finite else float("nan")
    notes = () if finite else ("training diverged: take a smaller step_size",)
    how = "second moments, exact for a linear network" if exact else f"{runs} × {draws} draws of every layer"
    words = Words("descent on Σ ℓ(f, y) at infinite width [M3]", f"{how}, {steps} steps", notes=notes)
    evidence = Evidence(error, steps=steps, seconds=time.perf_counter() - began, words=words)
    features, gradients = (on_host(tuple(map(_over_runs, part))) for part in (at.features, at.gradients))
    f, loss_path, tangent = (on_host(part) for part in (fitted, _over_runs(losses), _over_runs(at.tangent)))
    return DeepTrajectory(limit, jnp.asarray(times), f, loss_path, features, gradients, tangent, evidence)


def check(network: MLP, step_size: float | None) -> None:
    """What deep networks are not followed for yet."""
    if step_size is None:
        raise ValueError(f"a network of depth {network.depth} is followed step by step: give a step_size, got None")
    if network.outputs > 1:
        raise ValueError(f"a deep network has one output here, got {network.outputs}: depth 1 takes several")
    if network.skips:
        raise ValueError("the rich limit has no skips: take residual=0")


def _over_runs(values: Array) -> Estimate:
    """A linear network's one run is exact: its error is zero."""
    return Estimate(values[0], jnp.zeros_like(values[0])) if values.shape[0] == 1 else over_runs(values)


@jax.jit
def _followed(limit: DeepLimit, Z: Any) -> Moment:
    return limit.follow(Z)
