"""What programs for the Mosaic GPU backend share: lines of assembly, and whether the installed JAX takes a program."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.mlir import ir

from unlazy.core.errors import UnlazyWarning


def assembled(code: str, constraints: str, result: Any, *operands: Any, acts: bool = False) -> Any:
    """One value by assembly of its own, or None without a `result`; what `acts` is neither moved nor dropped."""
    texts = {"asm_string": code, "constraints": constraints}
    attributes: dict[str, ir.Attribute] = {name: ir.StringAttr.get(text) for name, text in texts.items()}
    if acts:
        attributes["has_side_effects"] = ir.UnitAttr.get()
    results = [] if result is None else [result]
    made = ir.Operation.create("llvm.inline_asm", results=results, operands=operands, attributes=attributes)
    return None if result is None else made.result


def one_at_a_time(launch: Callable) -> Callable:
    """A launch of a GPU program that `vmap` repeats in a loop.

    Batching would add an axis to the grid, and a program that reads its own position with `%ctaid` does not see it:
    every element of the batch would then compute the first one.
    """
    return jax.custom_batching.sequential_vmap(launch)


def is_lowered(traced: Callable[[], Any], what: str) -> bool:
    """Whether JAX lowers what is traced: that backend is experimental and changes. Nothing is compiled.

    A refusal is told of as a warning: `what` then takes the slower program.
    """
    try:
        traced().lower(lowering_platforms=("cuda",))
    except Exception as problem:
        warnings.warn(
            f"{what} on Hopper cards take the slower program: JAX {jax.__version__} refuses the other "
            f"({type(problem).__name__}: {str(problem)[:200]})",
            UnlazyWarning,
            stacklevel=3,
        )
        return False
    return True
