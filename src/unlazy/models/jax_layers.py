"""Layers of a JAX network, found in its parameters and in its program, without help from its framework."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jaxtyping import Array, PyTree


class Entry(NamedTuple):
    """A value of a program: the layers whose parameters alone it is computed of, and whether it depends on data."""

    value: Array
    layers: frozenset[str]
    is_data: bool


Rows = OrderedDict[str, Array]
"""Values by layer, in an order that JAX keeps."""
INLINED = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "remat": "jaxpr",
            "checkpoint": "jaxpr", "remat2": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
            "custom_vjp_call_jaxpr": "fun_jaxpr", "custom_lin": "call_jaxpr"}  # fmt: skip
"""Primitives that call a program, and their parameter that contains it."""


def layer_names(params: PyTree) -> PyTree:
    """Name of the layer of every parameter: the path of the container that holds it, or its own at the top."""
    return jax.tree_util.tree_map_with_path(lambda path, _: _name(path), params)


def _name(path: tuple) -> str:
    keys = [_key(entry) for entry in path]
    while keys and keys[-1] in (".value", ".raw_value"):  # variables of nnx
        keys.pop()
    if keys and keys[0] == ".params":
        keys = keys[1:]
    inside = keys[:-1] or keys
    return "".join(inside).removeprefix(".") or "params"


def _key(entry: object) -> str:
    """One step of a path: `.name` for attributes and keys, `[i]` for positions."""
    for attribute in ("name", "key"):
        value = getattr(entry, attribute, None)
        if isinstance(value, str):
            return f".{value}"
    return f"[{getattr(entry, 'idx', getattr(entry, 'key', entry))}]"


def intermediate_outputs(f: Callable[[PyTree, PyTree], Array]) -> Callable[[PyTree, PyTree], Rows]:
    """Function of (params, inputs) that returns the output of every layer, one row per point, in order of evaluation.

    The output of a layer is the last value that an operation makes of data together with a value computed of this
    layer's parameters alone: the product with a weight, or the sum with its bias. A loop is one operation.
    """

    def raw(params: PyTree, X: PyTree) -> Rows:
        program = jax.make_jaxpr(f)(params, X)
        names = [frozenset({name}) for name in jax.tree.leaves(layer_names(params))]
        entries = [Entry(leaf, of, False) for leaf, of in zip(jax.tree.leaves(params), names)]
        entries += [Entry(leaf, frozenset(), True) for leaf in jax.tree.leaves(X)]
        found: Rows = OrderedDict()
        _evaluate(program.jaxpr, program.consts, entries, found)
        return found

    def outputs(params: PyTree, X: PyTree) -> Rows:
        found, m = raw(params, X), jax.tree.leaves(X)[0].shape[0]
        more = _shapes_with_one_more(raw, params, X)
        rows = {name: _per_point(value, m, more.get(name)) for name, value in found.items()}
        return OrderedDict((name, value) for name, value in rows.items() if value is not None)

    return outputs


def _shapes_with_one_more(raw: Callable, params: PyTree, X: PyTree) -> dict[str, tuple[int, ...]]:
    """Shapes of all layers' outputs on one more point, which show the axis of points; empty if f has a fixed size."""
    one_more = jax.tree.map(lambda x: jax.ShapeDtypeStruct((x.shape[0] + 1, *x.shape[1:]), x.dtype), X)
    try:
        return {name: value.shape for name, value in jax.eval_shape(raw, params, one_more).items()}
    except (TypeError, ValueError):
        return {}


def _per_point(value: Array, m: int, more: tuple[int, ...] | None) -> Array | None:
    """One row per point; None if no axis runs over points."""
    if more is not None and len(more) == value.ndim:
        axes = [axis for axis in range(value.ndim) if value.shape[axis] != more[axis]]
    else:
        axes = [axis for axis in range(value.ndim) if value.shape[axis] == m][:1]
    if len(axes) != 1 or value.shape[axes[0]] % m:
        return None
    return jnp.moveaxis(value, axes[0], 0).reshape(m, -1)


def _evaluate(jaxpr: jex.Jaxpr, constants: Sequence, arguments: Sequence[Entry], found: Rows) -> list[Entry]:
    """Evaluate a program, and record the outputs of layers."""
    known: dict[jex.Var, Entry] = {}

    def read(atom: jex.Var | jex.Literal) -> Entry:
        return Entry(atom.val, frozenset(), False) if isinstance(atom, jex.Literal) else known[atom]

    known.update(zip(jaxpr.constvars, (Entry(value, frozenset(), False) for value in constants)))
    known.update(zip(jaxpr.invars, arguments))
    for equation in jaxpr.eqns:
        operands = [read(atom) for atom in equation.invars]
        inner = equation.params.get(INLINED.get(equation.primitive.name, ""))
        if inner is not None:
            body, of_body = (inner.jaxpr, inner.consts) if isinstance(inner, jex.ClosedJaxpr) else (inner, ())
            results = _evaluate(body, of_body, operands, found)
        else:
            results = _apply(equation, operands, found)
        known.update(zip(equation.outvars, results))
    return [read(atom) for atom in jaxpr.outvars]


def evaluate_equation(equation: jex.JaxprEqn, values: Sequence) -> list:
    """Results of one equation of a program."""
    bound = equation.primitive.get_bind_params(equation.params)
    functions, keywords = bound if isinstance(bound, tuple) else ((), bound)  # JAX before and since 0.10
    with equation.ctx.manager:
        results = equation.primitive.bind(*functions, *values, **keywords)
    return list(results) if equation.primitive.multiple_results else [results]


def _apply(equation: jex.JaxprEqn, operands: list[Entry], found: Rows) -> list[Entry]:
    """One operation: its results, whether they depend on data, and else on which layers."""
    results = evaluate_equation(equation, [entry.value for entry in operands])
    layers = frozenset[str]().union(*(entry.layers for entry in operands))
    if not any(entry.is_data for entry in operands):
        return [Entry(value, layers, False) for value in results]
    for layer in sorted(layers):
        found.pop(layer, None)  # the last one counts, in its place
        found[layer] = results[0]
    return [Entry(value, frozenset(), True) for value in results]
