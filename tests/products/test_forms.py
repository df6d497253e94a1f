"""Forms are what theory says, put differently: with exact angles and unrounded points they agree to rounding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.core.architecture import MLP
from unlazy.kernels.infinite_width import NNGP, NTK
from unlazy.products import forms

MLP_3 = MLP(3, "leaky_relu", (1.1, 1.3, 0.9, 1.2), (0.3, 0.0, 0.5, 0.2))


def _exact(cosine, kink):
    """What the kink adds and takes, from the definition."""
    theta = jnp.arccos(jnp.clip(cosine, -1, 1))
    return kink * (jnp.sin(theta) - theta * cosine) / jnp.pi, kink * theta / jnp.pi


@pytest.mark.parametrize("kernel", [NTK(MLP_3), NNGP(MLP_3)], ids=["ntk", "nngp"])
def test_layers_on_cosines_are_the_recursion_of_theory(x64, monkeypatch, kernel):
    monkeypatch.setattr(forms, "_kinked", _exact)
    monkeypatch.setattr(forms, "two_halves", lambda A: A)
    rng = np.random.default_rng(0)
    X, Z = jnp.asarray(rng.standard_normal((20, 3))), jnp.asarray(rng.standard_normal((20, 3)))
    form = forms.form_of(kernel)
    assert isinstance(form, forms.LayersForm)

    @jax.jit
    def both(X, Z):
        left, right = form.prepare(kernel, X), form.prepare(kernel, Z)
        fused = left.scale * right.scale * form.formula(jnp.sum(left.points * right.points, 1), left.rows, right.rows)
        return fused, kernel.entry(jnp.sum(X * Z, 1), jnp.sum(X * X, 1), jnp.sum(Z * Z, 1))

    found, wanted = both(X, Z)
    # arccos at a cosine off by some units of rounding is off by that over the sine, here above 0.02; three layers
    np.testing.assert_allclose(found, wanted, rtol=3 * 8 * 2.0**-53 / 0.02)


def test_the_kink_by_polynomials():
    """One root and two polynomials against the definition: the fits' 1.3e-6 and roundings of numbers up to 1."""
    theta = np.linspace(0.02, np.pi - 0.02, 999)
    cosine = jnp.asarray(np.cos(theta), jnp.float32)
    with jax.enable_x64(True):
        exact = _exact(jnp.asarray(cosine, jnp.float64), 1.0)
    for found, wanted in zip(forms._kinked(cosine, 1.0), exact):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1.3e-6 + 10 * 2.0**-24)
    at_the_ends = forms._kinked(jnp.asarray([1.0, -1.0], jnp.float32), 1.0)
    np.testing.assert_allclose(at_the_ends, [[0, 1], [0, 1]], rtol=0, atol=1.3e-6 + 10 * 2.0**-24)
