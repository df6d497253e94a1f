"""From a user's network to a `Model`, without importing a framework that the user has not imported."""

import sys
from typing import TYPE_CHECKING, TypeGuard

from unlazy.models.protocol import Model, OutputFunction

if TYPE_CHECKING:
    import torch


def as_model(network: object, *, output: OutputFunction | None = None, dtype: str | None = None) -> Model:
    """Adapt a network of any framework to the protocol that diagnostics use.

    Parameters
    ----------
    network : torch.nn.Module, Equinox module, Flax nnx module, pair (apply, params) or Model
        The network. An Equinox module is a function of one point and is mapped over a batch; all others take batches.
        Of a pair, `apply(params, inputs)` is the function, for example ``(module.apply, variables)`` in Flax linen.
    output : callable, optional
        From what the network returns to its outputs, an array with one row per point. By default the array that it
        returns, or the entry ``logits`` of a dictionary or data class.
    dtype : {"float32", "float64"}, optional
        Precision in which the network is evaluated, whatever autocast says. By default that of its parameters, but at
        least float32.

    Returns
    -------
    Model
        The same network: parameters are read from it, not copied.

    Raises
    ------
    ValueError
        If the network is of no known kind, or has no trainable parameter.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy.models import as_model
    >>> model = as_model((lambda w, X: X @ w, jnp.array([[1.0], [2.0]])))
    >>> model.apply(model.params, jnp.ones((3, 2))).tolist()
    [[3.0], [3.0], [3.0]]
    """
    if dtype not in (None, "float32", "float64"):
        raise ValueError(f"dtype must be 'float32', 'float64' or None, got {dtype!r}")
    if _is_torch_module(network):
        from unlazy.models.torch_model import TorchModel

        return TorchModel(network, output=output, dtype=dtype)
    of_pair = isinstance(network, tuple | list) and len(network) == 2 and callable(network[0])
    if of_pair or _is_nnx_module(network) or _is_equinox_module(network):
        from unlazy.models.jax_model import jax_model

        return jax_model(network, output=output, dtype=dtype)
    if isinstance(network, Model):
        if output is not None or dtype is not None:
            raise ValueError("output and dtype belong to a network, but a Model was passed: pass the network itself")
        return network
    raise ValueError(_why_not(network))


def _is_torch_module(network: object) -> "TypeGuard[torch.nn.Module]":
    """Whether it is a torch.nn.Module; nobody has one before torch is imported."""
    nn = getattr(sys.modules.get("torch"), "nn", None)
    return nn is not None and isinstance(network, nn.Module)


def _is_equinox_module(network: object) -> bool:
    """Whether it is an Equinox module that can be called, likewise."""
    module = getattr(sys.modules.get("equinox"), "Module", None)
    return module is not None and isinstance(network, module) and callable(network)


def _is_nnx_module(network: object) -> bool:
    """Whether it is a flax.nnx.Module, likewise."""
    module = getattr(sys.modules.get("flax.nnx"), "Module", None)
    return module is not None and isinstance(network, module)


def _why_not(network: object) -> str:
    """One sentence that says what to pass instead."""
    kind = type(network)
    wanted = "a torch.nn.Module, an Equinox or Flax nnx module, or a pair (apply, params)"
    if kind.__module__.startswith("flax.linen") or any(b.__module__.startswith("flax.linen") for b in kind.__mro__):
        return f"{kind.__name__} is a Flax linen module without its parameters: pass (module.apply, variables)"
    if kind.__module__.split(".")[0] in ("keras", "tensorflow", "sklearn", "unlazy"):
        return f"{kind.__module__}.{kind.__name__} is no network that can be differentiated here: pass {wanted}"
    return f"the network must be {wanted}, got {kind.__name__}"
