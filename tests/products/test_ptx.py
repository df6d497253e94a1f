"""The assembly of a formula, run by a small emulator here, equals the formula; one point's share is taken out of it."""

import operator
import re
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.kernels.networks.infinite_width import NTK
from unlazy.kernels.radial import Gaussian, Laplace, Matern, RationalQuadratic
from unlazy.products.fused.fused_forms import EntryForm, form_of
from unlazy.products.fused.ptx import Unsupported, pair_program
from unlazy.theory.infinite_width.architecture import MLP

BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum,
    "shl": np.left_shift, "and": np.logical_and, "or": np.logical_or,
}  # fmt: skip
UNARY = {
    "neg": np.negative, "abs": np.abs, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "ex2": np.exp2,
    "lg2": np.log2, "mov": lambda x: x, "not": np.logical_not,
}  # fmt: skip


def emulate(code: str, arguments: list, dtype: type = np.float64) -> np.ndarray:
    """Runs the subset of PTX that products.fused.ptx writes, in float64; in float32 also what looks at bits."""
    registers = {f"${k + 1}": np.asarray(a, dtype) for k, a in enumerate(arguments)}

    def read(name):
        if name.startswith("0f"):
            return dtype(struct.unpack(">f", bytes.fromhex(name[2:]))[0])
        return np.int32(name) if name.isdigit() else registers[name]

    for line in re.findall(r"[^;{}]+", code):
        parts = re.split(r"[\s,]+", line.strip())
        if not parts[0] or parts[0] == ".reg":
            continue
        kind, out, values = parts[0].split("."), parts[1], [read(a) for a in parts[2:]]
        if kind[0] == "setp":
            registers[out] = getattr(operator, kind[1].removesuffix("u"))(*values)
        elif kind[0] == "selp":
            registers[out] = np.where(values[2], values[0], values[1])
        elif parts[0] == "mov.b32":
            registers[out] = values[0].view(np.int32 if out in ("power", "bits") else np.float32)
        elif kind[0] == "fma":
            registers[out] = np.asarray(values[0] * np.float64(values[1]) + values[2], dtype)
        else:
            registers[out] = (BINARY | UNARY)[kind[0]](*values)
        if "sat" in kind:
            registers[out] = np.clip(registers[out], 0, 1)
    return registers["$0"]


@pytest.mark.parametrize(
    "kernel",
    [Gaussian(1.5), Laplace(1.5), Matern(1.5, 2.5), RationalQuadratic(1.0, 2.0), NTK(MLP(3)),
     NTK(MLP(2, sigma_b=0.3)), NTK(MLP(2, sigma_b=0.3, residual=1.0))],
    ids=lambda k: type(k).__name__,
)  # fmt: skip
@pytest.mark.parametrize("plain", [False, True], ids=["form", "entry"])
def test_assembly_equals_the_formula(kernel, plain):
    form = EntryForm(kernel) if plain else form_of(kernel)
    rng = np.random.default_rng(0)
    left, right = (form.prepare(kernel, kernel.embed(jnp.asarray(rng.normal(size=(64, 3)), jnp.float32))) for _ in "xz")
    t = jnp.sum(left.points * right.points, 1)
    if left.added is not None:
        t = t + left.added + right.added
    program = pair_program(form.formula, len(left.rows))
    arguments = [t, *program.left(left.rows), *program.right(right.rows)]
    assert program.constraints.count(",f") == len(arguments)
    want = np.asarray(form.formula(t, left.rows, right.rows), np.float64)
    # both are a chain of fewer than 200 float32 steps (the emulator's own steps are exact) on values of order one
    np.testing.assert_allclose(emulate(program.code, arguments), want, rtol=200 * 2**-24, atol=200 * 2**-24)


@pytest.mark.parametrize("kernel", [Gaussian(1.5), Laplace(1.5), Matern(1.5, 2.5)], ids=lambda k: type(k).__name__)
def test_powers_of_two_by_multiply_adds(kernel):
    form, rows = form_of(kernel), 0 if isinstance(kernel, Gaussian) else 1
    powers = form.near.powers
    program = pair_program(form.formula, rows, powers)
    beyond = [1e4, 1e8] if rows == 0 else []  # which others do not meet: their points are near
    t = -np.concatenate([np.linspace(0, 120 if rows == 0 else powers.least**2, 5001), beyond]).astype(np.float32)
    arguments = [t, *[np.float32(1e-6)] * rows]
    want = emulate(program.code, arguments)
    got = emulate(program.polynomial_code, arguments, np.float32)
    assert "ex2" not in program.polynomial_code
    assert pair_program(form.formula, rows).polynomial_code is None
    # the polynomial errs by so much, some steps round, and the argument, up to 2^7, is rounded once more; beyond,
    # 2^-125 is left where there should be nothing
    off = {4: 4e-6, 5: 2e-7}[powers.degree]
    np.testing.assert_allclose(got, want, rtol=off + 8 * 2**-24 + 2.0**7 * 2**-24, atol=2.0**-125)
    assert got[0] == want[0]


def test_per_point_work_is_hoisted_and_constants_fold_in_a_trace():
    def formula(t, p, q):
        return t * jnp.sqrt(p[0] + 1) + jnp.exp(q[0]) * jnp.sqrt(jnp.float32(4.0))

    program = jax.jit(lambda x: x)(1.0) and pair_program(formula, 1)
    assert "sqrt" not in program.code and "ex2" not in program.code
    np.testing.assert_allclose(program.left([jnp.array([3.0])])[0], [2.0], rtol=2**-22)
    value = emulate(program.code, [2.0, program.left([jnp.array([3.0])])[0], program.right([jnp.array([0.0])])[0]])
    np.testing.assert_allclose(value, [6.0], rtol=2**-20)

    @jax.jit
    def traced(x):
        return pair_program(formula, 1).left([x])[0]

    np.testing.assert_allclose(traced(jnp.array([8.0])), [3.0], rtol=2**-22)


def test_unsupported_operations_have_no_assembly():
    with pytest.raises(Unsupported, match="erf"):
        pair_program(lambda t, p, q: jax.scipy.special.erf(t), 0)
    with pytest.raises(Unsupported, match="does not depend"):
        pair_program(lambda t, p, q: p[0] * 2, 1)
