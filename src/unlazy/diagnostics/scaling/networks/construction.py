"""Networks from the function of the user, in either framework."""

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

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


def batch_of(data: tuple[Any, Any]) -> tuple[Any, Any]:
    """Inputs and targets, validated."""
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise ValueError(f"data must be a pair (inputs, targets), got {type(data).__name__}")
    for name, part in zip(("inputs", "targets"), data):
        check_batch(name, part)
    return data[0], data[1]


def check_batch(name: str, values: Any) -> None:
    """Raise ValueError if a batch, or one of the arrays that it consists of, is empty or not finite."""
    if isinstance(values, Mapping):
        values = tuple(values.values())
    if isinstance(values, tuple):
        for part in values:
            check_batch(name, part)
        return
    array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    if array.size == 0:
        raise ValueError(f"{name} is empty: pass a batch with at least one row")
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must contain numbers, got {array.dtype}: encode text and categories first")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{name} contains NaN or infinite values")


def check_precision(types: Iterable[object]) -> None:
    """Raise ValueError for parameters in which small updates are lost."""
    low = [str(dtype) for dtype in types if str(dtype).removeprefix("torch.") in ("float16", "bfloat16")]
    if low:
        raise ValueError(f"parameters are {low[0]}, in which small updates round to 0: make the network in float32")


def is_torch_module(network: object) -> "TypeGuard[torch.nn.Module]":
    """Whether it is a torch.nn.Module; nobody has one before torch is imported."""
    nn = getattr(sys.modules.get("torch"), "nn", None)
    return nn is not None and isinstance(network, nn.Module)
