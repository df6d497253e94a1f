"""Forms are what theory says, put differently: with exact angles and unrounded points they agree to rounding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.kernels.networks.infinite_width import NNGP, NTK
from unlazy.products.fused import fused_forms
from unlazy.theory.infinite_width.architecture import MLP

MLP_3 = MLP(3, "leaky_relu", (1.1, 1.3, 0.9, 1.2), (0.3, 0.0, 0.5, 0.2))


def _exact(half, slope, first):
    """2(1 - wθ/π) and w sin θ/π from the definition [K8], both over 2w/π."""
    theta, kink = jnp.arccos(jnp.clip(2 * half, -1, 1)), (1 - slope) ** 2 / (1 + slope**2)
    return 2 * (1 - kink * theta / np.pi) / (2 * kink / np.pi), jnp.sin(theta) / 2


@pytest.mark.parametrize("kernel", [NTK(MLP_3), NNGP(MLP_3)], ids=["ntk", "nngp"])
def test_layers_on_cosines_are_the_recursion_of_theory(x64, monkeypatch, kernel):
    monkeypatch.setattr(fused_forms, "_through", _exact)
    monkeypatch.setattr(fused_forms, "half_precision_floor", lambda d: 0.0)
    monkeypatch.setattr(fused_forms, "_LOST", 0.0)
    rng = np.random.default_rng(0)
    X, Z = jnp.asarray(rng.standard_normal((20, 3))), jnp.asarray(rng.standard_normal((20, 3)))
    form = fused_forms.form_of(kernel)
    assert isinstance(form, fused_forms.LayersForm)

    @jax.jit
    def both(X, Z):
        left, right = form.prepare(kernel, X), form.prepare(kernel, Z)
        fused = left.scale * right.scale * form.formula(jnp.sum(left.points * right.points, 1), left.rows, right.rows)
        fused = fused + left.apart * right.apart
        return fused, kernel.entry(jnp.sum(X * Z, 1), jnp.sum(X * X, 1), jnp.sum(Z * Z, 1))

    found, wanted = both(X, Z)
    # arccos at a cosine off by some units of rounding is off by that over the sine, here above 0.02; three layers
    np.testing.assert_allclose(found, wanted, rtol=3 * 8 * 2.0**-53 / 0.02)
