"""Types are checked at the first calls of each module of tests, of functions and of what they define inside."""

import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float, TypeCheckError

import typecheck


def checked(function):
    return typecheck.jaxtyped(function, typechecker=typecheck.check)


def product(A: Float[Array, "n m"], B: Float[Array, "m k"]) -> Float[Array, "n k"]:
    return A @ B if A.shape[0] < 5 else A


def outer(values):
    def inner(x: int) -> int:
        return x

    return [checked(inner)(v) for v in values]


def test_arguments_and_results_are_checked_at_first_calls_and_in_the_next_module():
    f, A, B = checked(product), jnp.ones((2, 3)), jnp.ones((3, 4))
    for _ in range(2):
        typecheck.new_module()
        assert f(A, B).shape == (2, 4)
        with pytest.raises(TypeCheckError, match="m"):
            f(A, jnp.ones((2, 4)))
        with pytest.raises(TypeCheckError, match="return value"):
            f(jnp.ones((5, 3)), B)
        f(A, B)
        f(jnp.ones((5, 3)), B)  # the checks of this module are used up
    typecheck.new_module()


def test_the_first_definitions_inside_functions_are_checked():
    with pytest.raises(TypeCheckError):
        outer(["a"])
    with pytest.raises(TypeCheckError):
        outer(["a"])
    assert outer(["a"]) == ["a"]


def test_integers_pass_for_floats():
    def scaled(x: float) -> float:
        return 2.0 * x

    assert checked(scaled)(1) == 2.0
