"""Parameters on the device: put there once, and nowhere while a program is being traced."""

import jax
import jax.numpy as jnp

from unlazy.core.arrays import on_device
from unlazy.core.precision import precision
from unlazy.kernels.radial import Gaussian


def test_floats_are_put_on_the_device_once():
    first, again = on_device(Gaussian(1.25)), on_device(Gaussian(1.25))
    assert first is again and isinstance(first.length, jax.Array) and float(first.length) == 1.25
    assert on_device(Gaussian(1.5)).length == 1.5
    with precision("float64"):
        assert on_device(Gaussian(1.25)).length.dtype == jnp.float64


def test_other_trees_are_left_alone():
    for tree in ((1.0, 2), (jnp.ones(2),), ()):
        assert on_device(tree) is tree


def test_nothing_traced_is_kept():
    kernel = Gaussian(7.125)
    jax.jit(lambda x: on_device(kernel).length * x)(1.0)
    assert float(on_device(kernel).length) == 7.125
