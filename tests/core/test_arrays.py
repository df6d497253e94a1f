"""Kernel parameters are transferred to the device once, and not while tracing."""

import jax
import jax.numpy as jnp

from unlazy.core.arrays import floats_on_device, precision
from unlazy.kernels.radial import Gaussian


def test_floats_are_put_on_the_device_once():
    first, again = floats_on_device(Gaussian(1.25)), floats_on_device(Gaussian(1.25))
    assert first is again and isinstance(first.length, jax.Array) and float(first.length) == 1.25
    assert floats_on_device(Gaussian(1.5)).length == 1.5
    with precision("float64"):
        assert floats_on_device(Gaussian(1.25)).length.dtype == jnp.float64


def test_other_trees_are_unchanged():
    for tree in ((1.0, 2), (jnp.ones(2),), ()):
        assert floats_on_device(tree) is tree


def test_traced_values_are_not_cached():
    kernel = Gaussian(7.125)
    jax.jit(lambda x: floats_on_device(kernel).length * x)(1.0)
    assert float(floats_on_device(kernel).length) == 7.125
