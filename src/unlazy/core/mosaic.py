"""Helpers for Mosaic GPU programs: inline assembly, and whether the installed JAX can lower a program."""

import warnings
from collections.abc import Callable
from typing import overload

import jax
from jax.extend.mlir import ir

from unlazy.core.errors import UnlazyWarning


@overload
def inline_assembly(
    code: str, constraints: str, result: ir.Type, *operands: ir.Value, side_effects: bool = False
) -> ir.Value: ...
@overload
def inline_assembly(
    code: str, constraints: str, result: None, *operands: ir.Value, side_effects: bool = False
) -> None: ...
def inline_assembly(
    code: str, constraints: str, result: ir.Type | None, *operands: ir.Value, side_effects: bool = False
) -> ir.Value | None:
    """Emit inline assembly and return its value, or None if `result` is None.

    Assembly with `side_effects` is neither moved nor removed by the compiler.
    """
    texts = {"asm_string": code, "constraints": constraints}
    attributes: dict[str, ir.Attribute] = {name: ir.StringAttr.get(text) for name, text in texts.items()}
    if side_effects:
        attributes["has_side_effects"] = ir.UnitAttr.get()
    results = [] if result is None else [result]
    made = ir.Operation.create("llvm.inline_asm", results=results, operands=operands, attributes=attributes)
    return None if result is None else made.result


def one_at_a_time(launch: Callable) -> Callable:
    """Make `vmap` run the launch of a GPU program sequentially, once per batch element.

    Batching would add an axis to the grid, and a program that reads its position from `%ctaid` does not see that axis:
    every batch element would compute the first one.
    """
    return jax.custom_batching.sequential_vmap(launch)


def can_lower(traced: Callable[[], jax.stages.Traced], what: str) -> bool:
    """Whether the installed JAX can lower the traced program; nothing is compiled.

    The Mosaic GPU backend is experimental and changes between versions. On failure a warning is issued, and `what`
    falls back to the slower program.
    """
    try:
        traced().lower(lowering_platforms=("cuda",))
    except Exception as problem:
        warnings.warn(
            f"{what} on Hopper GPUs fall back to the slower program: JAX {jax.__version__} cannot lower the fast one "
            f"({type(problem).__name__}: {str(problem)[:200]})",
            UnlazyWarning,
            stacklevel=3,
        )
        return False
    return True
