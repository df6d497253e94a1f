"""Short training runs of JAX networks at several sizes."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, ArrayLike, Float, PyTree

from unlazy.diagnostics.scaling.networks.construction import build, check_precision
from unlazy.diagnostics.scaling.networks.jax_trace import JaxTracing, parameter_names
from unlazy.diagnostics.scaling.networks.runs import LESS, LINEAR, Run, check_losses, check_targets
from unlazy.diagnostics.scaling.networks.uses import Trace
from unlazy.diagnostics.scaling.options import ScalingOptions
from unlazy.diagnostics.scaling.rules import Measured
from unlazy.models.adapt import as_model
from unlazy.models.jax_model import JaxModel

Loss = Callable[[Array, Array], Array]


class JaxRuns:
    """Runs of the networks that `make` returns, all on one batch, see `torch_runs.TorchRuns`.

    Parameters
    ----------
    make : callable
        Returns a network for keyword arguments such as ``width``; a keyword ``key`` or ``seed`` is passed if it has
        one.
    optimizer : optax.GradientTransformation or callable
        One optimizer for all sizes, or a function of the network that returns one.
    inputs, targets : array or pytree
        One batch.
    options : ScalingOptions
        Steps, loss, outputs and centering.
    """

    def __init__(
        self, make: Callable[..., Any], optimizer: Any, inputs: Any, targets: Any, options: ScalingOptions
    ) -> None:
        self._make, self._optimizer, self._options = make, optimizer, options
        self._inputs, self._targets = _as_arrays(inputs), _as_arrays(targets)
        self._loss = options.loss or _usual_loss(self._targets)
        self._programs: dict[tuple, _Program] = {}

    def build(self, seed: int, **sizes: int) -> Any:
        """The network of one size; the same for the same seed."""
        return build(self._make, sizes, seed)

    def shapes(self, **sizes: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the trainable parameters."""
        params = as_model(self.build(0, **sizes), output=self._options.output).params
        check_precision(leaf.dtype for leaf in jax.tree.leaves(params))
        names = jax.tree.leaves(parameter_names(params))
        return {name: tuple(leaf.shape) for name, leaf in zip(names, jax.tree.leaves(params))}

    def run(self, seed: int, **sizes: int) -> Run:
        """Train, and find all uses."""
        start, steps, program = self._train(seed, 1.0, **sizes)
        losses = [float(loss) for loss in steps.losses]
        check_losses(losses, sizes)
        names = jax.tree.leaves(parameter_names(start))
        rates = {name: float(rate) for name, rate in zip(names, steps.rates) if rate > 0}
        measured = Measured(sizes, program.tracing(start, optax.apply_updates(start, steps.updates)), rates)
        return Run(measured, losses, program.model, start, steps.trained, self._inputs)

    def linear(self, seed: int, **sizes: int) -> dict[str, bool]:
        """Whether the change of each parameter is proportional to the loss, as with SGD."""
        start, *_ = self._train(seed, 1.0, **sizes)
        whole, quarter = (_norms(self._train(seed, scale, **sizes)[1].updates) for scale in (1.0, LESS))
        names = jax.tree.leaves(parameter_names(start))
        return {name: bool(b < LINEAR * a) for name, a, b in zip(names, whole, quarter) if a > 0}

    def _train(self, seed: int, scale: float, **sizes: int) -> "tuple[PyTree, _Steps, _Program]":
        """Parameters at initialization, what training did, and the programs of this size."""
        network = self.build(seed, **sizes)
        model = as_model(network, output=self._options.output)
        assert isinstance(model, JaxModel)
        start, place = model.params, tuple(sorted(sizes.items()))
        if place not in self._programs:  # seeds share the programs of their size
            optimizer = self._optimizer if hasattr(self._optimizer, "update") else self._optimizer(network)
            run = self._compiled(model, optimizer)
            self._programs[place] = _Program(model, run, JaxTracing(model, start, self._inputs))
        program = self._programs[place]
        return start, program.run(start, scale), program

    def _compiled(
        self, model: JaxModel, optimizer: optax.GradientTransformation
    ) -> "Callable[[PyTree, float], _Steps]":
        """All steps of training as one program."""
        f, X, y = model.function, self._inputs, self._targets

        @jax.jit
        def run(theta: PyTree, scale: Float[ArrayLike, ""]) -> _Steps:
            initial = f(theta, X) if self._options.centered else 0.0

            def loss(theta: PyTree) -> Array:
                return jnp.asarray(scale) * self._loss(f(theta, X) - initial, y)

            def step(carry: tuple, _: None) -> tuple[tuple, Array]:
                theta, state, first, rates = carry
                value, gradient = jax.value_and_grad(loss)(theta)
                update, state = optimizer.update(gradient, state, theta)
                sizes = _norms(gradient)
                new = (rates == 0) & (sizes > 0)
                rates = jnp.where(new, _norms(update) / jnp.where(new, sizes, 1), rates)
                leaves, structure = jax.tree.flatten(update)
                chosen = [jnp.where(new[i], u, f) for i, (u, f) in enumerate(zip(leaves, jax.tree.leaves(first)))]
                first = jax.tree.unflatten(structure, chosen)
                return (optax.apply_updates(theta, update), state, first, rates), value / scale

            zeros = jax.tree.map(jnp.zeros_like, theta)
            carry = (theta, optimizer.init(theta), zeros, jnp.zeros(len(jax.tree.leaves(theta))))
            (trained, _, first, rates), losses = jax.lax.scan(step, carry, length=self._options.steps)
            return _Steps(trained, losses, first, rates)

        return run


class _Steps(NamedTuple):
    """What some steps of training did, see `torch_runs._Steps`."""

    trained: PyTree
    losses: Array
    updates: PyTree
    rates: Array


class JaxTrainer:
    """Training at a given rate; `optimizer` takes the network and the rate, which is traced."""

    def __init__(
        self, make: Callable[..., Any], optimizer: Callable[[Any, Any], optax.GradientTransformation], inputs: Any,
        targets: Any, options: ScalingOptions,
    ) -> None:  # fmt: skip
        self._make, self._optimizer, self._options = make, optimizer, options
        self._inputs, self._targets = _as_arrays(inputs), _as_arrays(targets)
        self._loss = options.loss or _usual_loss(self._targets)
        self._programs: dict[tuple, Callable] = {}

    def final_loss(self, seed: int, rate: float, steps: int, **sizes: int) -> float:
        """Loss after some steps; not finite if training diverged."""
        network = build(self._make, sizes, seed)
        model = as_model(network, output=self._options.output)
        assert isinstance(model, JaxModel)
        place = (steps, *sorted(sizes.items()))
        if place not in self._programs:
            self._programs[place] = self._compiled(model, network, steps)
        return float(self._programs[place](model.params, rate))

    def _compiled(self, model: JaxModel, network: Any, steps: int) -> Callable:
        """Training as one program for all rates and seeds."""
        f, X, y = model.function, self._inputs, self._targets

        @jax.jit
        def run(theta: PyTree, rate: Float[ArrayLike, ""]) -> Array:
            initial = f(theta, X) if self._options.centered else 0.0
            optimizer = self._optimizer(network, jnp.asarray(rate))

            def loss(theta: PyTree) -> Array:
                return self._loss(f(theta, X) - initial, y)

            def step(carry: tuple, _: None) -> tuple[tuple, None]:
                theta, state = carry
                update, state = optimizer.update(jax.grad(loss)(theta), state, theta)
                return (optax.apply_updates(theta, update), state), None

            (trained, _), _ = jax.lax.scan(step, (theta, optimizer.init(theta)), length=steps)
            return loss(trained)

        return run


class _Program(NamedTuple):
    """What is compiled for one size, and the first network of that size."""

    model: JaxModel
    run: Callable
    tracing: JaxTracing


def _norms(tree: PyTree) -> Array:
    return jnp.stack([jnp.linalg.norm(leaf) for leaf in jax.tree.leaves(tree)])


def _as_arrays(values: Any) -> Any:
    return jax.tree.map(jnp.asarray, values)


def _usual_loss(targets: Any) -> Loss:
    if isinstance(targets, jax.Array) and not jnp.issubdtype(targets.dtype, jnp.floating):
        return lambda outputs, y: optax.softmax_cross_entropy_with_integer_labels(
            outputs.reshape(-1, outputs.shape[-1]), y.ravel()
        ).mean()
    return _squared_error


def _squared_error(outputs: Array, y: Array) -> Array:
    check_targets(outputs.shape, y.shape)
    return jnp.mean((outputs - y.reshape(outputs.shape)) ** 2)


def probe_jax(networks: Sequence[Any], inputs: Any) -> list[tuple[Trace, dict[str, tuple[int, ...]]]]:
    """Uses and shapes of each network, see `torch_runs.probe_torch`; those of one size share a program."""
    X, found = _as_arrays(inputs), []
    programs: dict[tuple, JaxTracing] = {}
    for network in networks:
        model = as_model(network)
        assert isinstance(model, JaxModel)
        params = model.params
        leaves, structure = jax.tree.flatten(params)
        names = jax.tree.leaves(parameter_names(params))
        shapes = {name: tuple(leaf.shape) for name, leaf in zip(names, leaves)}
        size = tuple(shapes.items())
        if size not in programs:
            programs[size] = JaxTracing(model, params, X)
        random = np.random.default_rng(0)
        moved = [leaf + random.standard_normal(leaf.shape).astype(leaf.dtype) for leaf in leaves]
        found.append((programs[size](params, jax.tree.unflatten(structure, moved)), shapes))
    return found


def multiply_leaves(network: Any, factor: Callable[[str], float]) -> Any:
    """The network with multiplied parameters; an nnx module is changed in place."""
    params = as_model(network).params
    scaled = jax.tree.map(lambda name, leaf: factor(name) * leaf, parameter_names(params), params)
    if isinstance(network, tuple | list):
        return network[0], eqx.combine(scaled, network[1])
    if isinstance(network, eqx.Module):
        return eqx.combine(scaled, network)
    from flax import nnx

    nnx.update(network, scaled)
    return network
