"""Compilation of an elementwise formula of pairs to GPU assembly (PTX), with per-point computations hoisted out.

Triton rounds after every multiplication and uses slow exact square roots; in PTX the assembler can fuse multiply-adds
and the fast approximate instructions (2 ulp) are available. A formula F(t, p, q), written once in jax.numpy, is traced.
Its steps are sorted into those that depend on p alone or on q alone (computed once per point, outside of the fused
program) and those that depend on the pair, which become one block of PTX.
"""

import math
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal


class Unsupported(Exception):
    """Raised if a formula uses an operation without a PTX translation."""


class PairProgram(NamedTuple):
    """A compiled formula. `left` and `right` map per-point values to the operands of the code; `code` takes t, then the
    operands of left and right; `evaluate(t, left, right)` computes the same with arrays of one shape."""

    left: Callable
    right: Callable
    left_count: int
    right_count: int
    code: str
    evaluate: Callable
    polynomial_code: str | None = None
    """The same code with exp2 of nonpositive numbers as a polynomial. It is used for a fraction of the pairs, so that
    the special function units and the multiply-add units are both busy."""

    @property
    def constraints(self) -> str:
        """Constraints of the inline assembly: one float output, float inputs."""
        return "=f" + ",f" * (1 + self.left_count + self.right_count)


class PolynomialExp2(NamedTuple):
    """exp2 of nonpositive numbers as a polynomial: `every` k-th pair uses it (0: none), `least` is the smallest
    argument, `degree` the degree of the polynomial (maximal relative error 4e-6 for degree 4, 2e-7 for degree 5)."""

    every: int
    least: float
    degree: int

    @property
    def coefficients(self) -> tuple[float, ...]:
        """Polynomial coefficients of 2^f for |f| ≤ 1/2; the first is 1."""
        near = np.polynomial.Chebyshev.interpolate(np.exp2, self.degree, [-0.5, 0.5])
        _, *rest = near.convert(kind=np.polynomial.Polynomial).coef
        return (1.0, *map(float, rest))


def pair_program(formula: Callable, rows: int, powers: PolynomialExp2 | None = None) -> PairProgram:
    """Compile F(t, [p…], [q…]) with `rows` values p and q per point; raises Unsupported."""
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    p, q = [scalar] * rows, [scalar] * rows
    with jax.ensure_compile_time_eval():  # evaluates constants even if the caller is being traced
        steps = _TracedFormula(jax.make_jaxpr(formula)(scalar, p, q), rows)
    emitted = _Emitter(steps).emit()
    return PairProgram(
        steps.side_function("p", emitted.used["p"]), steps.side_function("q", emitted.used["q"]),
        len(emitted.used["p"]), len(emitted.used["q"]), emitted.text, steps.pair_function(emitted.used),
        None if powers is None else _Emitter(steps, powers).emit().text,
    )  # fmt: skip


@runtime_checkable
class HasFormula(Protocol):
    """A fused form: its formula is compiled."""

    def formula(self, t: jax.Array, p: list, q: list) -> jax.Array:
        """F(t, p, q), elementwise."""


@lru_cache(maxsize=256)
def assembly(form: HasFormula, rows: int) -> PairProgram | None:
    """The compiled formula of a form; None if it uses an unsupported operation, which the backend then compiles."""
    try:
        return pair_program(form.formula, rows)
    except Unsupported:
        return None


class _Step(NamedTuple):
    primitive: Any
    params: dict
    inputs: tuple  # int: index of an earlier value; 1-tuple of float or bool: constant
    output: int


class _TracedFormula:
    """A traced formula as a flat list of elementwise steps; `side[i]` is what value i depends on: "p", "q" or "t"."""

    def __init__(self, traced: ClosedJaxpr, rows: int):
        self.steps: list[_Step] = []
        self.side: list[str] = ["t"] + ["p"] * rows + ["q"] * rows
        self.rows = rows
        outputs = self._inline(traced.jaxpr, traced.consts, list(range(1 + 2 * rows)))
        self.result = outputs[0]

    def _inline(self, jaxpr: Jaxpr, consts: list, arguments: list) -> list:
        known: dict = dict(zip(jaxpr.constvars, [_constant(c) for c in consts])) | dict(zip(jaxpr.invars, arguments))

        def value(atom: Any) -> Any:
            return _constant(atom.val) if isinstance(atom, Literal) else known[atom]

        for eqn in jaxpr.eqns:
            if eqn.primitive.name in _LOOPS:
                raise Unsupported(eqn.primitive.name)  # its body may run any number of times
            inputs = [value(atom) for atom in eqn.invars]
            inner = next((v for v in eqn.params.values() if isinstance(v, ClosedJaxpr | Jaxpr)), None)
            if inner is not None:
                closed = inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, [])
                outputs = self._inline(closed.jaxpr, list(closed.consts), inputs)
            else:
                outputs = [self._add(eqn, inputs)]
            known.update(zip(eqn.outvars, outputs))
        return [value(atom) for atom in jaxpr.outvars]

    def _add(self, eqn: Any, inputs: list) -> Any:
        if eqn.primitive.name in _IDENTITIES:
            return inputs[0]
        if eqn.primitive.name == "convert_element_type" and not isinstance(inputs[0], int):
            return _constant(np.asarray(inputs[0][0], eqn.params["new_dtype"]))
        if not any(isinstance(i, int) for i in inputs):
            arrays = [jnp.asarray(i[0]) if isinstance(i[0], bool) else jnp.float32(i[0]) for i in inputs]
            return _constant(eqn.primitive.bind(*arrays, **eqn.params))
        sides = {self.side[i] for i in inputs if isinstance(i, int)}
        self.side.append(sides.pop() if len(sides) == 1 else "t")
        self.steps.append(_Step(eqn.primitive, eqn.params, tuple(inputs), len(self.side) - 1))
        return len(self.side) - 1

    def side_function(self, side: str, wanted: list[int]) -> Callable:
        """Function from the per-point values of one side to the operands of the pair code."""
        offset = 1 if side == "p" else 1 + self.rows
        mine = [s for s in self.steps if self.side[s.output] == side]

        def scalars(numbers: list) -> list:
            known = {offset + k: v for k, v in enumerate(numbers)}
            for s in mine:
                inputs = [known[i] if isinstance(i, int) else jnp.asarray(i[0]) for i in s.inputs]
                inputs = [i if i.dtype == bool else i.astype(jnp.float32) for i in inputs]
                known[s.output] = s.primitive.bind(*inputs, **s.params)
            return [known[i].astype(jnp.float32) for i in wanted]

        return lambda rows: list(jax.vmap(scalars)(list(rows))) if wanted else []

    def pair_function(self, used: dict[str, list[int]]) -> Callable:
        """F as a function of t and the operands of both sides, using only operations of all Pallas backends: rsqrt for
        square roots, exp2 for exponentials."""
        mine = [s for s in self.steps if self.side[s.output] == "t"]

        def evaluate(t: Any, p: list, q: list) -> Any:
            known = {0: t} | dict(zip(used["p"], p)) | dict(zip(used["q"], q))
            for s in mine:
                if all(i in known for i in s.inputs if isinstance(i, int)):  # the others are not needed
                    inputs = [known[i] if isinstance(i, int) else jnp.full(t.shape, i[0]) for i in s.inputs]
                    known[s.output] = _PLAIN.get(s.primitive.name, s.primitive.bind)(*inputs, **s.params)
            return known[self.result]

        return evaluate


def _constant(value: Any) -> tuple:
    """A constant as a 1-tuple, to distinguish it from the index of a value."""
    item = np.asarray(value).reshape(-1)
    if item.size != 1:
        raise Unsupported("an array constant")
    return (bool(item[0]),) if item.dtype == bool else (float(item[0]),)


_IDENTITIES = {"stop_gradient", "copy", "broadcast_in_dim", "reshape", "squeeze", "copy_p", "pvary"}
_LOOPS = {"scan", "while", "cond"}
_BINARY = {
    "add": "add.f32", "sub": "sub.f32", "mul": "mul.f32", "div": "div.full.f32", "max": "max.NaN.f32",
    "min": "min.NaN.f32",
}  # fmt: skip
_UNARY = {
    "neg": "neg.f32", "abs": "abs.f32", "sqrt": "sqrt.approx.ftz.f32", "rsqrt": "rsqrt.approx.ftz.f32",
    "exp2": "ex2.approx.ftz.f32",
}  # fmt: skip
_PLAIN: dict[str, Callable] = {
    "sqrt": lambda x, **_: x * lax.rsqrt(jnp.maximum(x, float(np.finfo(np.float32).tiny))),
    "exp": lambda x, **_: lax.exp2(x * math.log2(math.e)),
    "log1p": lambda x, **_: lax.log(1 + x),
}
"""Replacements of operations that a backend may lack."""
_COMPARE = {"lt", "le", "gt", "ge", "eq", "ne"}


_LEAST = -125.0
"""Smallest argument of the polynomial exp2 whose result is a normal number."""


class _Emitter:
    """Writes the pair steps as PTX. Floats are in registers f<i>, booleans in predicates b<i>."""

    def __init__(self, steps: _TracedFormula, powers: PolynomialExp2 | None = None):
        self.steps = steps
        self.powers = powers
        self.lines: list[str] = []
        self.used: dict[str, list[int]] = {"p": [], "q": []}
        self.booleans: set[int] = set()
        self.extra = 0
        self.text = ""

    def emit(self) -> "_Emitter":
        """Generate the code in `text` and the used operands in `used`."""
        mine = self._needed()
        for s in mine:
            for i in s.inputs:
                if isinstance(i, int) and self.steps.side[i] != "t" and i not in self.used[self.steps.side[i]]:
                    self.used[self.steps.side[i]].append(i)
        result = self.steps.result
        if not isinstance(result, int) or self.steps.side[result] != "t":
            raise Unsupported("a formula that does not depend on the pair")
        for s in mine:
            self._step(s)
        self.lines.append(f"mov.f32 $0, {self._name(result)};")
        floats = [f"f{s.output}" for s in mine if s.output not in self.booleans] + [f"e{k}" for k in range(self.extra)]
        predicates = [f"b{i}" for i in sorted(self.booleans)]
        header = (f".reg .f32 {', '.join(floats)}; " if floats else "") + (
            f".reg .pred {', '.join(predicates)}; " if predicates else ""
        )
        self.text = "{ " + header + " ".join(self.lines) + " }"
        return self

    def _needed(self) -> list[_Step]:
        """Pair steps that the result depends on, in order."""
        by_output = {s.output: s for s in self.steps.steps}
        wanted, found = [self.steps.result], set()
        while wanted:
            i = wanted.pop()
            if isinstance(i, int) and i in by_output and i not in found and self.steps.side[i] == "t":
                found.add(i)
                wanted.extend(by_output[i].inputs)
        return [by_output[i] for i in sorted(found)]

    def _name(self, i: Any) -> str:
        if not isinstance(i, int):
            if isinstance(i[0], bool):
                raise Unsupported("a constant boolean")
            return f"0f{struct.unpack('>I', struct.pack('>f', i[0]))[0]:08X}"
        side = self.steps.side[i]
        if i == 0:
            return "$1"
        if side == "t":
            return f"b{i}" if i in self.booleans else f"f{i}"
        offset = 2 if side == "p" else 2 + len(self.used["p"])
        return f"${offset + self.used[side].index(i)}"

    def _temporary(self) -> str:
        self.extra += 1
        return f"e{self.extra - 1}"

    def _step(self, s: _Step) -> None:
        name = s.primitive.name
        out = f"f{s.output}"
        if name in _COMPARE or (name in ("and", "or", "not") and s.inputs[0] in self.booleans):
            self.booleans.add(s.output)
        arguments = [self._name(i) for i in s.inputs]
        write = self.lines.append
        if name == "div" and not isinstance(s.inputs[1], int):
            write(f"mul.f32 {out}, {arguments[0]}, {self._name((1 / s.inputs[1][0],))};")
        elif name in _BINARY:
            write(f"{_BINARY[name]} {out}, {arguments[0]}, {arguments[1]};")
        elif name == "exp2" and self.powers is not None:
            self._power_of_two(out, arguments[0], self.powers)
        elif name in _UNARY:
            write(f"{_UNARY[name]} {out}, {arguments[0]};")
        elif name == "clamp" and (s.inputs[0], s.inputs[2]) == ((0.0,), (1.0,)):
            self._saturate(s.output, s.inputs[1])
        elif name == "square":
            write(f"mul.f32 {out}, {arguments[0]}, {arguments[0]};")
        elif name == "exp":
            scaled = self._temporary()
            write(f"mul.f32 {scaled}, {arguments[0]}, {self._name((math.log2(math.e),))};")
            write(f"ex2.approx.ftz.f32 {out}, {scaled};")
        elif name in ("log", "log1p"):
            scaled, inside = self._temporary(), arguments[0]
            if name == "log1p":
                inside = self._temporary()
                write(f"add.f32 {inside}, {arguments[0]}, {self._name((1.0,))};")
            write(f"lg2.approx.ftz.f32 {scaled}, {inside};")
            write(f"mul.f32 {out}, {scaled}, {self._name((math.log(2),))};")
        elif name == "integer_pow":
            self._integer_pow(out, arguments[0], s.params["y"])
        elif name in _COMPARE:
            # "ne" in PTX is false for NaN, unlike in IEEE 754
            write(f"setp.{'neu' if name == 'ne' else name}.f32 b{s.output}, {arguments[0]}, {arguments[1]};")
        elif name in ("and", "or") and s.output in self.booleans:
            write(f"{name}.pred b{s.output}, {arguments[0]}, {arguments[1]};")
        elif name == "not" and s.output in self.booleans:
            write(f"not.pred b{s.output}, {arguments[0]};")
        elif name == "select_n" and s.inputs[0] in self.booleans and len(arguments) == 3:
            write(f"selp.f32 {out}, {arguments[2]}, {arguments[1]}, {arguments[0]};")
        elif name == "convert_element_type" and s.inputs[0] not in self.booleans:
            write(f"mov.f32 {out}, {arguments[0]};")
        else:
            raise Unsupported(name)

    def _power_of_two(self, out: str, number: str, powers: PolynomialExp2) -> None:
        """2^x for x ≤ 0 (clamped at `_LEAST`): 2^f by a polynomial with f = x - n, where n is the nearest integer. The
        last bits of x + 1.5·2^23 are n; shifted, they are added to the exponent. NaN becomes a finite number, so the
        caller must not use this code if NaN may occur."""
        x, shifted, f, whole = (self._temporary() for _ in range(4))
        magic = self._name((1.5 * 2**23,))
        *lower, highest = powers.coefficients
        deep = powers.least < _LEAST
        self.lines += [
            f"max.NaN.f32 {x}, {number}, {self._name((_LEAST,))};" if deep else f"mov.f32 {x}, {number};",
            f"add.rn.f32 {shifted}, {x}, {magic};",
            f"sub.rn.f32 {whole}, {shifted}, {magic};",
            f"sub.rn.f32 {f}, {x}, {whole};",
            f"mov.f32 {out}, {self._name((highest,))};",
            *[f"fma.rn.f32 {out}, {out}, {f}, {self._name((c,))};" for c in reversed(lower)],
            f"{{ .reg .b32 power, bits; mov.b32 power, {shifted}; shl.b32 power, power, 23; mov.b32 bits, {out}; "
            f"add.s32 bits, bits, power; mov.b32 {out}, bits; }}",
        ]

    def _saturate(self, out: int, number: Any) -> None:
        """Clamp to [0, 1]: free if the value is a sum or product from the previous line without other uses."""
        last, uses = self.lines[-1] if self.lines else "", sum(number in s.inputs for s in self.steps.steps)
        if uses == 1 and last.startswith(tuple(f"{step}.f32 f{number}," for step in ("add", "sub", "mul"))):
            self.lines[-1] = last.replace(".f32 ", ".sat.f32 ", 1).replace(f"f{number},", f"f{out},", 1)
        else:
            self.lines.append(f"add.sat.f32 f{out}, {self._name(number)}, {self._name((0.0,))};")

    def _integer_pow(self, out: str, base: str, power: int) -> None:
        if not 1 <= power <= 8:
            raise Unsupported(f"integer_pow {power}")
        self.lines.append(f"mov.f32 {out}, {base};")
        for _ in range(power - 1):
            self.lines.append(f"mul.f32 {out}, {out}, {base};")
