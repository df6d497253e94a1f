"""Which adapter a network gets, and that no framework is imported for it."""

import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.models import as_model


def test_no_framework_is_imported():
    program = """
import sys
import unlazy
import jax.numpy as jnp
from unlazy.models import as_model
model = as_model((lambda w, X: X @ w, jnp.ones((2, 1))))
model.apply(model.params, jnp.ones((3, 2)))
assert not {"torch", "flax"} & set(sys.modules), sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_models_pass_through():
    model = as_model((lambda w, X: X @ w, jnp.ones((2, 1))))
    assert as_model(model) is model
    with pytest.raises(ValueError, match="pass the network itself"):
        as_model(model, dtype="float64")


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (np.ones(3), r"the network must be a torch.nn.Module, .* or a pair \(apply, params\), got ndarray"),
        ((1, 2), "got tuple"),
        (lambda X: X, "got function"),
        ((lambda w, X: X, {"w": np.arange(3)}), "nothing to differentiate"),
        ((lambda w, X: X, np.ones(3, np.complex64)), "parameters must be real"),
    ],
    ids=["array", "pair", "function", "integers", "complex"],
)
def test_everything_else_is_refused(network, message):
    with pytest.raises(ValueError, match=message):
        as_model(network)


def test_linen_modules_need_their_parameters():
    linen = pytest.importorskip("flax.linen")
    with pytest.raises(ValueError, match=r"Dense is a Flax linen module without its parameters: pass \(module.apply"):
        as_model(linen.Dense(3))


def test_unknown_precision():
    with pytest.raises(ValueError, match="dtype must be 'float32', 'float64' or None, got 'float16'"):
        as_model((lambda w, X: X @ w, jnp.ones((2, 1))), dtype="float16")


def test_torch_modules():
    torch = pytest.importorskip("torch")
    model = as_model(torch.nn.Linear(3, 2))
    assert type(model).__name__ == "TorchModel" and as_model(model) is model
