"""Uses of the parameters of a JAX network, found in its program.

The program is evaluated equation by equation, inside one compiled function. Values that are computed from parameters
alone carry a second value, with the trained parameters; where they meet data, the equation is evaluated with either.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from unlazy.core.arrays import dot
from unlazy.diagnostics.scaling.networks.uses import (
    AttentionUse,
    Pending,
    PendingScales,
    Trace,
    Use,
    has_matrix,
    mark_branch,
    mark_reduced,
)
from unlazy.models.jax_layers import INLINED, evaluate_equation
from unlazy.models.jax_model import JaxModel
from unlazy.models.protocol import Inputs, Params

_VIEWS = frozenset(
    (
        "reshape", "transpose", "squeeze", "expand_dims", "broadcast_in_dim", "convert_element_type", "slice",
        "dynamic_slice", "copy", "split", "rev", "reduce_precision", "optimization_barrier", "stop_gradient",
        "copy_p",
    )
)  # fmt: skip
_ENTRYWISE = frozenset(["add", "sub", "mul", "div", "add_any", "max", "min", "select_n", "concatenate"])
_MASKS = frozenset(["add", "sub", "select_n", "max", "min"])
_LOOKUPS = frozenset(["gather", "dynamic_slice"])
_UNROLLED = 128
"""Longest loop whose steps are evaluated one by one; a longer one is one operation that is not known."""


@dataclass
class _Known:
    """What is known of a value, see `torch_trace._Known`; `number` is the entry of a constant with equal entries."""

    value: Any
    trained: Any = None
    sources: tuple[str, ...] = ()
    is_data: bool = False
    factor: Any = 1.0
    pending: Pending = ()
    terms: Any = None
    is_maximum: bool = False
    number: Any = None


class JaxTracing:
    """A compiled function that finds all uses of the trainable parameters of networks of one shape.

    Parameters
    ----------
    model : JaxModel
        The network.
    params : pytree
        Its parameters.
    inputs : pytree
        A batch, as the network takes it.
    """

    def __init__(self, model: JaxModel, params: Params, inputs: Inputs) -> None:
        self._inputs, self._found = inputs, Trace()
        names = jax.tree.leaves(parameter_names(params))
        program = jax.make_jaxpr(model.function)(params, inputs)

        def measured(start: PyTree, trained: PyTree, inputs: PyTree) -> list[dict[str, Array]]:
            tracer = _Tracer(dict(zip(names, zip(jax.tree.leaves(start), jax.tree.leaves(trained)))))
            arguments = [_Known(a, b, (name,)) for name, (a, b) in tracer.parameters.items()]
            arguments += [_Known(leaf, is_data=True) for leaf in jax.tree.leaves(inputs)]
            for known in tracer.evaluate(program.jaxpr, program.consts, arguments):
                tracer.scales.commit(known.pending, known.factor)
            self._found = tracer.found
            values = [{name: getattr(use, name) for name in _NUMBERS} for use in tracer.found.uses]
            return [*values, *({"scale": attention.scale} for attention in tracer.found.attention)]

        self._measured = jax.jit(measured)

    def __call__(self, start: Params, trained: Params) -> Trace:
        """Find all uses for the parameters at initialization and after training, in order of evaluation."""
        values = jax.device_get(self._measured(start, trained, self._inputs))
        uses = [replace(use) for use in self._found.uses]
        attention = [replace(part) for part in self._found.attention]
        for part, numbers in zip([*uses, *attention], values):
            for name, value in numbers.items():
                setattr(part, name, float(value))
        return Trace(uses, attention)


_NUMBERS = ("gain", "frobenius_gain", "contribution", "spectral", "multiplier")


def parameter_names(params: PyTree) -> PyTree:
    """Path of every parameter, with dots."""
    return jax.tree_util.tree_map_with_path(lambda path, _: _dotted(path), params)


def _dotted(path: tuple) -> str:
    keys = [str(getattr(entry, "name", getattr(entry, "key", getattr(entry, "idx", entry)))) for entry in path]
    while len(keys) > 1 and keys[-1] in ("value", "raw_value"):  # variables of nnx
        keys.pop()
    if len(keys) > 1 and keys[0] == "params":
        keys = keys[1:]
    return ".".join(keys) or "params"


class _Tracer:
    def __init__(self, parameters: dict[str, tuple[Array, Array]]) -> None:
        self.parameters, self.found, self.scales = parameters, Trace(), PendingScales()

    def evaluate(self, jaxpr: jex.Jaxpr, constants: Sequence, arguments: Sequence[_Known]) -> list[_Known]:
        """Evaluate a program, and record uses."""
        known: dict[jex.Var, _Known] = {}

        def read(atom: jex.Var | jex.Literal) -> _Known:
            return _constant(atom.val) if isinstance(atom, jex.Literal) else known[atom]

        known.update(zip(jaxpr.constvars, map(_constant, constants)))
        known.update(zip(jaxpr.invars, arguments))
        for equation in jaxpr.eqns:
            operands = [read(atom) for atom in equation.invars]
            inner = equation.params.get(INLINED.get(equation.primitive.name, ""))
            if inner is not None:
                body, of_body = (inner.jaxpr, inner.consts) if isinstance(inner, jex.ClosedJaxpr) else (inner, ())
                results = self.evaluate(body, of_body, operands)
            elif equation.primitive.name == "scan" and equation.params["length"] <= _UNROLLED:
                results = self._scan(equation, operands)
            else:
                results = self._apply(equation, operands)
            known.update(zip(equation.outvars, results))
        return [read(atom) for atom in jaxpr.outvars]

    def _scan(self, equation: jex.JaxprEqn, operands: list[_Known]) -> list[_Known]:
        """The steps of a loop one by one, each with its rows of stacked parameters."""
        p = equation.params
        inner, n, first = p["jaxpr"], p["length"], p["num_consts"] + p["num_carry"]
        constants, carry, stacked = operands[: p["num_consts"]], operands[p["num_consts"] : first], operands[first:]
        outputs: list[list[_Known]] = []
        for i in range(n):
            row = n - 1 - i if p["reverse"] else i
            rows = [_Known(k.value[row], None if k.trained is None else k.trained[row], k.sources, k.is_data)
                    for k in stacked]  # fmt: skip
            results = self.evaluate(inner.jaxpr, inner.consts, [*constants, *carry, *rows])
            carry, outputs = results[: p["num_carry"]], [*outputs, results[p["num_carry"] :]]
        outputs = outputs[::-1] if p["reverse"] else outputs
        return [*carry, *(_stacked(list(column)) for column in zip(*outputs))]

    def _apply(self, equation: jex.JaxprEqn, operands: list[_Known]) -> list[_Known]:
        """One equation: its uses, and what is known of its results."""
        run, operation = functools.partial(evaluate_equation, equation), equation.primitive.name
        results = run([known.value for known in operands])
        of_parameters = [i for i, known in enumerate(operands) if known.sources]
        linear = operation in ("dot_general", "conv_general_dilated")
        if linear and len(of_parameters) == 1:  # zeros, such as the first state of a recurrent layer
            operands = [replace(known, is_data=True) if _is_zero(known) else known for known in operands]
        if not any(known.is_data for known in operands):
            if not of_parameters:
                return [self._of_constants(operation, operands, value) for value in results]
            after = run([known.value if known.trained is None else known.trained for known in operands])
            sources = tuple(dict.fromkeys(name for known in operands for name in known.sources))
            return [_Known(value, other, sources) for value, other in zip(results, after)]
        known = self._of_data(operation, equation, operands, bool(of_parameters))
        uses = [self._use(equation, run, operands, i, results[0]) for i in of_parameters]
        self.found.uses.extend(uses)
        if uses and known.terms is None:
            of_input = next(k for k in operands if k.is_data)
            factor = of_input.factor if linear and not has_matrix(of_input.pending) else 1.0
            known = replace(known, factor=factor, pending=tuple((use, 1.0) for use in uses))
        return [replace(known, value=value) for value in results]

    def _of_constants(self, operation: str, operands: list[_Known], value: Array) -> _Known:
        if jnp.ndim(value) == 0:
            return _constant(value)
        return _Known(value, number=operands[0].number if operation in _VIEWS and operands else None)

    def _of_data(
        self, operation: str, equation: jex.JaxprEqn, operands: list[_Known], with_parameters: bool
    ) -> _Known:  # fmt: skip
        """What is known of the result of an equation with data."""
        data = [known for known in operands if known.is_data]
        first = data[0]
        blank = _Known(None, is_data=True)
        if operation in _VIEWS and len(data) == 1 and not with_parameters:
            return first
        if operation in ("mul", "div") and not with_parameters and len(data) == 1:
            left, right = operands
            number = right.number if left.is_data else left.number if operation == "mul" else None
            if number is not None:
                return replace(first, factor=first.factor * (number if operation == "mul" else 1 / number))
        if first.terms is not None:
            if operation == "reduce_max":
                return replace(blank, is_maximum=True)
            if operation == "exp":
                self.found.attention.append(AttentionUse(self._near(), first.terms * abs(first.factor)))
                return blank
            others = [known for known in data[1:] if not known.is_maximum]
            if operation in _MASKS and not others:  # a mask, a position bias, or the maximum that softmax subtracts
                return first
        if first.is_maximum and operation in _MASKS:
            return replace(blank, is_maximum=True)
        if operation == "dot_general" and len(data) == 2:
            (contracted, _), _ = equation.params["dimension_numbers"]
            terms = math.prod(operands[0].value.shape[axis] for axis in contracted)
            return replace(blank, terms=terms * abs(operands[0].factor) * abs(operands[1].factor))
        if operation == "reduce_sum" and jnp.ndim(first.value) - 1 in equation.params["axes"]:
            mark_reduced(first.pending)
        linear = operation in ("dot_general", "conv_general_dilated")
        for known in data:
            # a scalar between two linear maps belongs to the first
            if not (linear and with_parameters) or has_matrix(known.pending):
                self.scales.commit(known.pending, known.factor)
                if operation in ("add", "add_any") and len(data) == 2:
                    mark_branch(known.pending)
        return blank

    def _near(self) -> str:
        """Name for an attention: the module of the last use before it."""
        name = self.found.uses[-1].name if self.found.uses else "attention"
        return name.rpartition(".")[0].rpartition(".")[0] or name

    def _use(self, equation: jex.JaxprEqn, run: Callable, operands: list[_Known], place: int, result: Array) -> Use:
        """Measure one use: the equation with the trained value in the place of the initial one."""
        operation, known = equation.primitive.name, operands[place]
        W, change = known.value, known.trained - known.value
        after = run([known.trained if i == place else k.value for i, k in enumerate(operands)])[0]
        use = Use(known.sources, "other", multiplier=self._multiplier(known, change))
        moved = _rms(after - result)
        data = next(k for k in operands if k.is_data)
        matrix = _matrices(equation, place)
        if matrix is not None:
            M, size = matrix(W), _rms(data.value)
            use.kind, use.fan_in, use.fan_out = "matrix", int(M.shape[1]), int(M.shape[2])
            use.features = use.fan_out * (int(M.shape[0]) if operation == "conv_general_dilated" else 1)
            use.gain, use.contribution = _rms(result) / size, moved / size
            use.frobenius_gain = jnp.sqrt(jnp.sum(jnp.square(M)) / (use.fan_out * M.shape[0]))
            use.spectral = _spectral_norm(matrix(change)) / math.sqrt(use.fan_out / use.fan_in)
            return use
        if operation in _LOOKUPS and place == 0:
            use.kind, use.gain, use.contribution = "lookup", _rms(result), moved
            sizes = equation.params["slice_sizes"]
            use.fan_out = math.prod(sizes)
            use.fan_in = math.prod(W.shape) // max(use.fan_out, 1)
        else:
            use.kind = "vector" if operation in _ENTRYWISE else "other"
            use.gain = _rms(W)
            use.contribution = moved / _rms(data.value) if operation in ("mul", "div") else moved
            use.fan_out = math.prod(self.parameters[known.sources[0]][0].shape)
        use.features = use.fan_out
        return use

    def _multiplier(self, known: _Known, change: Array) -> Any:
        if len(known.sources) != 1:
            return math.nan
        start, trained = self.parameters[known.sources[0]]
        return _rms(change) / _rms(trained - start)


def _is_zero(known: _Known) -> bool:
    """Whether it is a constant whose entries are known to be 0."""
    number = known.number
    return not known.sources and number is not None and not isinstance(number, jax.core.Tracer) and float(number) == 0


def _constant(value: Any) -> _Known:
    return _Known(value, number=value if jnp.ndim(value) == 0 else None)


def _stacked(column: list[_Known]) -> _Known:
    """Outputs of the steps of a loop."""
    value = jnp.stack([known.value for known in column])
    if any(known.is_data for known in column) or not column[0].sources:
        return _Known(value, is_data=any(known.is_data for known in column))
    return _Known(value, jnp.stack([known.trained for known in column]), column[0].sources)


def _matrices(equation: jex.JaxprEqn, place: int) -> Callable[[Array], Array] | None:
    """Function that writes the weight of a linear map as matrices (groups, fan-in, fan-out); None for no such map."""
    if equation.primitive.name == "dot_general":
        contracted, batch = (pair[place] for pair in equation.params["dimension_numbers"])

        def of_product(W: Array) -> Array:
            free = [axis for axis in range(W.ndim) if axis not in (*contracted, *batch)]
            sizes = [math.prod(W.shape[axis] for axis in axes) for axes in (batch, contracted, free)]
            return jnp.transpose(W, (*batch, *contracted, *free)).reshape(sizes)

        return of_product
    if equation.primitive.name == "conv_general_dilated" and place == 1:
        groups = equation.params["feature_group_count"]
        out, into, *window = equation.params["dimension_numbers"].rhs_spec

        def of_convolution(W: Array) -> Array:
            W = jnp.transpose(W, (out, into, *window))
            return jnp.swapaxes(W.reshape(groups, W.shape[0] // groups, -1), 1, 2)

        return of_convolution
    return None


def _spectral_norm(M: Array) -> Array:
    """Largest singular value, from the smaller Gram matrix."""
    T = jnp.swapaxes(M, -1, -2)
    G = dot(T, M) if M.shape[-1] <= M.shape[-2] else dot(M, T)
    return jnp.sqrt(jnp.maximum(jnp.max(jnp.linalg.eigvalsh(G)), 0))


def _rms(x: Array) -> Array:
    return jnp.sqrt(jnp.mean(jnp.square(jnp.asarray(x, jnp.float32)))) if jnp.size(x) else jnp.zeros(())
