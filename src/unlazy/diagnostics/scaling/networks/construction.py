"""Networks from the function of the user, in either framework."""

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    import torch


def build(make: Callable[..., Any], sizes: Mapping[str, int], random: int | Mapping[str, Any] = 0) -> Any:
    """A network of `make`, with a key or seed if it takes one; PyTorch's generator is seeded, and put back.

    `random` is a seed, or the keywords themselves: then the global generator is left to the user.
    """
    if not callable(make):
        raise ValueError(f"make must be a function that returns a network, got {type(make).__name__}")
    known = inspect.signature(make).parameters
    some = any(p.kind is p.VAR_KEYWORD for p in known.values())
    for name in sizes:
        if name not in known and not some:
            raise ValueError(f"make must take the keyword {name}, but its parameters are {', '.join(known) or 'none'}")
    if not isinstance(random, int):
        return make(**sizes, **random)
    if "key" in known:
        import jax

        return make(**sizes, key=jax.random.key(random))
    if "seed" in known:
        return make(**sizes, seed=random)
    torch = sys.modules.get("torch")
    if torch is None:
        return make(**sizes)
    devices = range(len(torch.cuda.default_generators))  # none before CUDA is initialized
    with torch.random.fork_rng(devices=list(devices)):
        torch.manual_seed(random)
        return make(**sizes)


def is_torch_module(network: object) -> "TypeGuard[torch.nn.Module]":
    """Whether it is a torch.nn.Module; nobody has one before torch is imported."""
    nn = getattr(sys.modules.get("torch"), "nn", None)
    return nn is not None and isinstance(network, nn.Module)
