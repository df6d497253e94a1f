"""JAX networks as a `Model`: functions of (params, inputs), Equinox modules, Flax nnx modules.

Parameters and directions are pytrees with None at leaves that are not trained. Every method is compiled once for each
shape of inputs.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from unlazy.core.arrays import default_float, vdot
from unlazy.core.pytrees import split_parameters
from unlazy.models.jax_layers import intermediate_outputs, layer_names
from unlazy.models.outputs import select_output
from unlazy.models.protocol import Inputs, Loss, OutputFunction, Outputs, Params, Targets
from unlazy.theory.finite_width.empirical_ntk import trainable_function

Apply: TypeAlias = Callable[[PyTree, PyTree], PyTree]
COMPILE = 0.2
"""Seconds to compile `change` over the root of the number of operations of the network: 0.10 to 0.15 CPU seconds for
MLPs, convolutional networks and transformers on cores of 2.5 GHz, more on a busy machine. The time to trace the network
is no guide: compilation takes 30 to 200 times as long."""


class JaxModel:
    """A function of (params, inputs) behind the protocol `Model`.

    Trainable are the float arrays of `params`, as for `tangent_kernel`: of Flax variables those of "params". All others
    keep the values of construction. A loss is compiled once: pass the same function object to every `hvp`.

    Parameters
    ----------
    apply : callable
        f(params, inputs), one row of outputs per point.
    params : pytree
        Parameters.
    output : callable, optional
        From what f returns to its outputs, see `as_model`.
    dtype : {"float32", "float64"}, optional
        Precision of evaluation, see `as_model`.

    Raises
    ------
    ValueError
        If there is no trainable parameter, or a parameter is complex.
    """

    def __init__(
        self, apply: Apply, params: PyTree, *, output: OutputFunction | None = None, dtype: str | None = None
    ) -> None:
        self._apply, self._output, self._dtype = apply, output, dtype
        self._params, constants = split_parameters(params)
        self._constants = jax.tree.map(_copied, constants)  # later steps may donate them
        self._startup = 0.0
        self._compile()

    @classmethod
    def of_equinox(
        cls, module: eqx.Module, *, output: OutputFunction | None = None, dtype: str | None = None
    ) -> "JaxModel":
        """An Equinox module, a function of one point: mapped over batches, with dropout off.

        Parameters
        ----------
        module : equinox.Module
            Called with one point, or with the entries of a tuple of inputs.
        output, dtype
            See `as_model`.

        Returns
        -------
        JaxModel
        """

        def apply(network: PyTree, X: PyTree) -> PyTree:
            arguments = X if isinstance(X, tuple) else (X,)
            return jax.vmap(eqx.nn.inference_mode(network))(*arguments)

        apply.__name__ = type(module).__name__
        return cls(apply, module, output=output, dtype=dtype)

    def _compile(self) -> None:
        name = getattr(self._apply, "__name__", type(self._apply).__name__)

        def selected(params: PyTree, X: PyTree) -> Array:
            return _checked(select_output(self._apply(params, X), self._output, _is_array, name), name)

        def flat(theta: PyTree, X: PyTree) -> Array:
            value = f(theta, X)
            return value.reshape(value.shape[0], -1)

        def pulled(theta: PyTree, u: Array, X: PyTree) -> PyTree:
            value, pull = jax.vjp(lambda t: flat(t, X), theta)
            return pull(u.astype(value.dtype))[0]

        def hessian_product(theta: PyTree, v: PyTree, X: PyTree, targets: PyTree, loss: Loss) -> PyTree:
            return jax.jvp(jax.grad(lambda t: loss(f(t, X), targets)), (theta,), (v,))[1]

        with self.precision():
            f, _ = trainable_function(
                selected, eqx.combine(self.in_precision(self._params), self.in_precision(self._constants))
            )

        def changed(theta: PyTree, now: PyTree, X: PyTree) -> tuple[Array, Array, Array]:
            moved = jax.tree.map(jnp.subtract, now, theta)
            return flat(theta, X), flat(now, X), jax.jvp(lambda t: flat(t, X), (theta,), (moved,))[1]

        self._f, self._flat = f, flat
        self._compiled_apply = jax.jit(flat)
        self._compiled_change = jax.jit(changed)
        self._compiled_jvp = jax.jit(lambda theta, v, X: jax.jvp(lambda t: flat(t, X), (theta,), (v,))[1])
        self._compiled_vjp = jax.jit(pulled)
        self._compiled_hvp = jax.jit(hessian_product, static_argnums=4)
        self._compiled_layers: Callable[[PyTree, PyTree], Mapping[str, Array]] | None = None

    # parameters

    @property
    def params(self) -> Params:
        if any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in jax.tree.leaves(self._params)):
            raise ValueError("the parameters were donated to a later step: pass the new ones to update(params)")
        return self._params

    @property
    def derivative_error(self) -> float:
        return 0.0

    @property
    def startup(self) -> float:
        return self._startup

    def snapshot(self, on_host: bool = False) -> Params:
        return jax.tree.map((lambda leaf: np.array(leaf)) if on_host else _copied, self.params)

    def stored(self, network: Params, on_host: bool = False) -> Params:
        return self._like_own(network, "reference")

    def update(self, network: Params) -> None:
        self._params = self._like_own(network, "update")

    def _like_own(self, network: Params, what: str) -> Params:
        """The trainable parameters of another network; raise ValueError unless they have the shapes of this one."""
        params, _ = split_parameters(network)
        before, after = (jax.tree.map(jnp.shape, tree) for tree in (self._params, params))
        if before != after:  # the same structure of the same shapes
            raise ValueError(f"{what} needs parameters of the same structure and shapes, got {after} after {before}")
        return params

    def layers(self, params: Params) -> Mapping[str, Params]:
        names = layer_names(params)
        distinct = dict.fromkeys(jax.tree.leaves(names))

        def only(layer: str) -> Params:
            return jax.tree.map(lambda name, leaf: leaf if name == layer else None, names, params)

        return {layer: only(layer) for layer in distinct}

    def subtract(self, left: Params, right: Params) -> Params:
        return self.add_scaled(left, -1.0, right)

    def add_scaled(self, left: Params, scale: float, right: Params) -> Params:
        def total(a: Array | None, b: Array | None) -> Array | None:
            if b is None:
                return a
            return scale * b if a is None else a + scale * b

        with self.precision():
            return jax.tree.map(total, self.in_precision(left), self.in_precision(right), is_leaf=_is_none)

    def inner(self, left: Params, right: Params) -> float:
        both = jax.tree.map(lambda a, b: None if a is None or b is None else (a, b), left, right, is_leaf=_is_none)
        with jax.enable_x64(True):
            return float(_inner(both))

    def random_direction(self, params: Params, seed: int) -> Params:
        leaves, structure = jax.tree.flatten(params)
        with self.precision():
            keys = jax.random.split(jax.random.key(seed), len(leaves))
            drawn = [jax.random.normal(key, jnp.shape(x), _wide_type(x, self._dtype)) for key, x in zip(keys, leaves)]
        return jax.tree.unflatten(structure, drawn)

    # evaluation

    @property
    def function(self) -> Callable[[PyTree, PyTree], Array]:
        """The network as a function of trainable parameters and inputs, for transformations of JAX."""
        return self._f

    def wait(self) -> None:
        jax.block_until_ready(self.params)

    def check_inputs(self, inputs: Inputs) -> None:
        with self.precision():
            traced = jax.make_jaxpr(self._flat)(self.in_precision(self.params), self.in_precision(inputs))
        self._startup = COMPILE * math.sqrt(_operations(traced.jaxpr))

    def fix_statistics(self, inputs: Inputs, params: Params | None = None) -> None:
        """Nothing: statistics are values that the caller passed."""

    def apply(self, params: Params, inputs: Inputs) -> Outputs:
        with self.precision():
            return np.asarray(self._compiled_apply(self.in_precision(params), self.in_precision(inputs)))

    def jvp(self, params: Params, direction: Params, inputs: Inputs) -> Outputs:
        with self.precision():
            theta = self.in_precision(params)
            return np.asarray(self._compiled_jvp(theta, self._whole(direction, theta), self.in_precision(inputs)))

    def change(
        self, reference: Params, params: Params, inputs: Inputs, initial: Outputs | None = None
    ) -> tuple[Outputs, Outputs, Outputs]:
        """One program, whatever is known: XLA subtracts the parameters of a layer where it needs them."""
        with self.precision():
            found = self._compiled_change(
                self.in_precision(reference), self.in_precision(params), self.in_precision(inputs)
            )
            start, end, linear = (np.asarray(part) for part in found)
        self._startup = 0.0
        return start, end, linear

    def vjp(self, params: Params, cotangents: Outputs, inputs: Inputs) -> Params:
        with self.precision():
            return self._compiled_vjp(self.in_precision(params), jnp.asarray(cotangents), self.in_precision(inputs))

    def hvp(self, params: Params, direction: Params, inputs: Inputs, targets: Targets, loss: Loss) -> Params:
        with self.precision():
            theta, targets = self.in_precision(params), self.in_precision(targets)
            return self._compiled_hvp(theta, self._whole(direction, theta), self.in_precision(inputs), targets, loss)

    def layer_outputs(self, params: Params, inputs: Inputs) -> Mapping[str, Outputs]:
        with self.precision():
            theta, X = self.in_precision(params), self.in_precision(inputs)
            if self._compiled_layers is None:
                self._compiled_layers = jax.jit(intermediate_outputs(self._f))
            found = self._compiled_layers(theta, X)
            return {layer: np.asarray(found[layer]) for layer in found}

    def precision(self) -> AbstractContextManager:
        """Double precision, if it was asked for."""
        return jax.enable_x64(self._dtype == "float64" or default_float() == jnp.float64)

    def in_precision(self, tree: PyTree) -> PyTree:
        """Float arrays in the precision of evaluation."""

        def widened(leaf: PyTree) -> PyTree:
            floats = _is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.floating)
            return jnp.asarray(leaf, _wide_type(leaf, self._dtype)) if floats else leaf

        return jax.tree.map(widened, tree)

    def _whole(self, direction: Params, theta: Params) -> Params:
        """A direction with zeros for what it does not store."""
        return jax.tree.map(
            lambda leaf, move: None if leaf is None else jnp.zeros_like(leaf) if move is None else move,
            theta, self.in_precision(direction), is_leaf=_is_none,
        )  # fmt: skip


class NnxModel(JaxModel):
    """A Flax nnx module behind the protocol `Model`.

    Its `nnx.Param` are read from the module at every call; everything else (batch statistics, generators) keeps the
    values of construction, see `fix_statistics`. The module is evaluated as `module.eval()` would.

    Parameters
    ----------
    module : flax.nnx.Module
        The network, called with a batch; a tuple of inputs becomes positional, a dictionary keyword arguments.
    output, dtype
        See `as_model`.
    """

    def __init__(self, module: object, *, output: OutputFunction | None = None, dtype: str | None = None) -> None:
        from flax import nnx

        self._module, self._nnx = module, nnx
        self._graph, params, self._rest = self._split(module)
        super().__init__(self._called, params, output=output, dtype=dtype)

    def _split(self, module: object) -> tuple[PyTree, PyTree, PyTree]:
        """Structure, parameters and a copy of everything else."""
        graph, params, *rest = self._nnx.split(module, self._nnx.Param, ...)
        return graph, params, jax.tree.map(_copied, rest[0])

    def _called(self, params: PyTree, X: PyTree) -> PyTree:
        network = self._nnx.merge(self._graph, params, self.in_precision(self._rest), copy=True)
        network.eval()
        return _call(network, X)

    @property
    def params(self) -> Params:
        return split_parameters(self._nnx.state(self._module, self._nnx.Param))[0]

    def stored(self, network: Params, on_host: bool = False) -> Params:
        if isinstance(network, type(self.params)):
            return super().stored(network, on_host)
        return NnxModel(network).snapshot(on_host)

    def update(self, network: Params) -> None:
        if network is not self._module:
            raise ValueError("an nnx module is read as it is at every call: do not pass parameters")

    def fix_statistics(self, inputs: Inputs, params: Params | None = None) -> None:
        nnx = self._nnx
        theta = params
        if params is None:
            self._graph, theta, self._rest = self._split(self._module)
        with self.precision():
            network = nnx.merge(self._graph, self.in_precision(theta), self.in_precision(self._rest), copy=True)
            network.eval()
            fresh = [part for _, part in nnx.iter_graph(network) if isinstance(part, nnx.BatchNorm) and _is_fresh(part)]
            for part in fresh:
                part.use_running_average, part.momentum = False, 0.0
            if fresh:
                _call(network, self.in_precision(inputs))
                self._rest = self._split(network)[2]
        self._compile()


def jax_model(network: Any, *, output: OutputFunction | None = None, dtype: str | None = None) -> JaxModel:
    """The adapter of a pair (apply, params), an Equinox module or a Flax nnx module."""
    if isinstance(network, tuple | list):
        return JaxModel(network[0], network[1], output=output, dtype=dtype)
    adapter = JaxModel.of_equinox if isinstance(network, eqx.Module) else NnxModel
    return adapter(network, output=output, dtype=dtype)


def _call(network: Callable, X: PyTree) -> PyTree:
    """A network of batches on inputs of any form."""
    if isinstance(X, tuple):
        return network(*X)
    return network(**X) if isinstance(X, Mapping) else network(X)


def _is_fresh(layer: PyTree) -> bool:
    """Whether the running statistics of a normalization layer are those of its construction."""
    return bool(np.all(np.asarray(layer.mean[...]) == 0) and np.all(np.asarray(layer.var[...]) == 1))


@jax.jit
def _inner(pairs: PyTree) -> Float[Array, ""]:
    """Σ of products, in float64."""
    found = [vdot(a.astype(jnp.float64), b.astype(jnp.float64)) for a, b in jax.tree.leaves(pairs, is_leaf=_is_pair)]
    return sum(found, jnp.zeros((), jnp.float64))


def _is_pair(part: object) -> bool:
    return type(part) is tuple and len(part) == 2 and all(map(_is_array, part))


def _is_none(part: object) -> bool:
    return part is None


def _is_array(value: object) -> bool:
    return isinstance(value, jax.Array | np.ndarray | np.generic)


def _copied(leaf: PyTree) -> PyTree:
    """A copy of an array that no donation takes away, without compiling a program; anything else as it is.

    It is committed to a device if the array is: programs would be compiled once more for the parameters of later steps.
    """
    if not isinstance(leaf, jax.Array):
        return leaf
    return jax.device_put(leaf, leaf.sharding if leaf.committed else None, may_alias=False)


def _operations(program: PyTree) -> int:
    """Number of operations of a traced program, with those of the functions that it calls."""
    total = 0
    for equation in program.eqns:
        found = jax.tree.leaves(list(equation.params.values()), is_leaf=lambda part: hasattr(part, "jaxpr"))
        called = [part for part in (getattr(value, "jaxpr", value) for value in found) if hasattr(part, "eqns")]
        total += sum(map(_operations, called)) if called else 1
    return total


def _wide_type(leaf: PyTree, dtype: str | None) -> np.dtype:
    """The precision of evaluation of an array of floats: at least float32."""
    return jnp.dtype(dtype) if dtype is not None else jnp.promote_types(jnp.result_type(leaf), jnp.float32)


def _checked(value: PyTree, name: str) -> Array:
    """Raise ValueError unless the outputs are real, one row per point."""
    if not jnp.issubdtype(jnp.result_type(value), jnp.floating):
        raise ValueError(f"{name} returns {jnp.result_type(value)}: pass output= with real outputs")
    if jnp.ndim(value) == 0:
        raise ValueError(f"{name} returns one number, not a row per point (a loss?): pass output= with its outputs")
    return jnp.asarray(value)
