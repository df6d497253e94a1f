"""Derivatives of PyTorch networks, with what to do where an operation has no forward derivative.

J v: dual numbers (forward mode); else the derivative of Jᵀu by u (double backward), which recurrent layers and custom
functions allow; else central differences. A method is accepted if <J v, u> = <v, Jᵀ u> for a random u, checked once per
network: dual numbers pass through `torch.no_grad`, and a backward pass written in NumPy has no derivative of its own.
H v: double backward, accepted if <H v, w> = <v, H w> for a random w; else central differences of gradients.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch.autograd import forward_ad

from unlazy.models.protocol import Inputs, Loss, Outputs, Params, Targets

Tensors: TypeAlias = dict[str, torch.Tensor]
Call: TypeAlias = Callable[[], torch.Tensor]
R = TypeVar("R")
AGREEMENT = float(np.sqrt(np.finfo(np.float32).eps))
"""Relative difference of the two sides of an identity from which a derivative is wrong instead of rounded."""
STEPS = {torch.float64: 1e-5, torch.float32: 5e-3}
"""Length of the steps of differences, relative to the parameters: about the cube root of rounding."""


@runtime_checkable
class IsolatedModule(Protocol):
    """A torch module that is evaluated with given tensors for its parameters, without side effects (`TorchModel`)."""

    def evaluate(
        self, tensors: Tensors, inputs: Inputs, body: Callable[[Call], R], dtype: torch.dtype | None = None
    ) -> R: ...
    def leaves(self, params: Params, dtype: torch.dtype | None = None) -> Tensors: ...
    def placed(self, params: Params, dtype: torch.dtype | None = None) -> Tensors: ...
    def compute_type(self, given: torch.dtype, wanted: torch.dtype | None = None) -> torch.dtype: ...
    def inner(self, left: Params, right: Params) -> float: ...
    def random_direction(self, params: Params, seed: int) -> Params: ...
    def named_parts(self) -> Iterator[tuple[str, torch.nn.Module]]: ...
    def targets_of(self, targets: Targets) -> Targets: ...


@dataclass
class Methods:
    """Which methods a network allows, found at first use, and the largest error of differences so far."""

    jvp: str | None = None
    hvp: str | None = None
    error: float = 0.0


# J v


def jvp(
    model: IsolatedModule, params: Params, direction: Params, inputs: Inputs, methods: Methods
) -> Float[torch.Tensor, "m ..."]:
    """J(params) direction, by the first method that works and agrees with reverse mode.

    Raises
    ------
    ValueError
        If there is none, with the module that prevents it.
    """

    def agrees(value: torch.Tensor) -> bool | None:
        u = torch.randn(value.shape, generator=torch.Generator().manual_seed(0), device="cpu", dtype=torch.float64)
        back = vjp(model, params, inputs, u.numpy(), list(direction))
        left, right = float((value.cpu().double() * u).sum()), model.inner(direction, back)
        # both sides are sums of many products: their size is that of a sum of random signs
        size = _norm(value) * np.sqrt(float(u.square().mean()))
        size += np.sqrt(model.inner(direction, direction) * model.inner(back, back) / max(_count(back), 1))
        return _verdict(left, right, size)

    def differences() -> torch.Tensor:
        def at(tensors: Tensors, dtype: torch.dtype) -> list[torch.Tensor]:
            return [model.evaluate(tensors, inputs, _plain, dtype)]

        (slope,), error = _central_differences(model, params, direction, at)
        methods.error = max(methods.error, float(error))
        return slope

    value, methods.jvp = _first_that_works(
        {
            "forward": lambda: _forward(model, params, direction, inputs),
            "double backward": lambda: _double_backward(model, params, direction, inputs),
            "differences": differences,
        },
        methods.jvp,
        agrees,
        lambda: _culprit(model, params, direction, inputs),
    )
    return value


def _plain(call: Call) -> torch.Tensor:
    """The value alone."""
    with torch.no_grad():
        return call().clone()


def _forward(model: IsolatedModule, params: Params, direction: Params, inputs: Inputs) -> torch.Tensor:
    """By dual numbers."""
    leaves, moves = model.leaves(params), model.placed(direction)

    def body(call: Call) -> torch.Tensor:
        with torch.no_grad():
            value, slope = forward_ad.unpack_dual(call())
        return torch.zeros_like(value) if slope is None else slope.clone()

    with forward_ad.dual_level():
        duals = {name: forward_ad.make_dual(t, moves[name]) if name in moves else t for name, t in leaves.items()}
        return model.evaluate(duals, inputs, body)


def _double_backward(model: IsolatedModule, params: Params, direction: Params, inputs: Inputs) -> torch.Tensor:
    """As the derivative of <Jᵀ u, v> by u."""
    leaves, moves = model.leaves(params), model.placed(direction)
    along = [leaves[name].requires_grad_() for name in moves]

    def body(call: Call) -> torch.Tensor:
        value = call()
        u = torch.zeros_like(value, requires_grad=True)
        if not value.requires_grad:
            return u.detach()
        back = torch.autograd.grad(value, along, u, create_graph=True, allow_unused=True)
        total = _inner(back, moves.values())
        if total is None or not total.requires_grad:
            return u.detach()
        (slope,) = torch.autograd.grad(total, [u], allow_unused=True)
        return u.detach() if slope is None else slope

    return model.evaluate(leaves, inputs, body)


# Jᵀ u


def vjp(
    model: IsolatedModule,
    params: Params,
    inputs: Inputs,
    cotangents: Outputs | Float[np.ndarray, "..."],
    names: list[str] | None = None,
) -> Tensors:
    """J(params)ᵀ cotangents, of all parameters or those with these names.

    Raises
    ------
    ValueError
        If the shape of the cotangents is not that of the outputs, or the network has no derivative.
    """
    leaves = model.leaves(params)
    wanted = {name: leaves[name].requires_grad_() for name in names or leaves}

    def body(call: Call) -> Tensors:
        value = call()
        if cotangents.size != value.numel() or len(cotangents) != len(value):
            raise ValueError(
                f"cotangents must have the shape {tuple(value.shape)} of the outputs, got {cotangents.shape}"
            )
        u = torch.as_tensor(cotangents, dtype=value.dtype, device=value.device).reshape(value.shape)
        return _gradients(value, wanted, u)

    with _naming_the_network(model):
        return model.evaluate(leaves, inputs, body)


def _gradients(value: torch.Tensor, leaves: Tensors, weights: torch.Tensor | None = None) -> Tensors:
    """Gradient by every leaf, zero where the value does not depend on it."""
    if not value.requires_grad:
        return {name: torch.zeros_like(tensor) for name, tensor in leaves.items()}
    found = torch.autograd.grad(value, list(leaves.values()), weights, allow_unused=True)
    return {n: torch.zeros_like(t) if g is None else g.detach() for (n, t), g in zip(leaves.items(), found)}


# H v


def hvp(
    model: IsolatedModule,
    params: Params,
    direction: Params,
    inputs: Inputs,
    targets: Targets,
    loss: Loss,
    methods: Methods,
) -> Tensors:
    """Hessian of the loss times a direction, by double backward or differences of gradients.

    Raises
    ------
    ValueError
        If the loss is no scalar, or no method works.
    """
    targets = model.targets_of(targets)

    def loss_of(call: Call) -> torch.Tensor:
        value = loss(call(), targets)
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            raise ValueError(f"loss must return one number, got {tuple(getattr(value, 'shape', (type(value),)))}")
        return value.reshape(())

    def double_backward(along: Params) -> Tensors:
        leaves = {name: tensor.requires_grad_() for name, tensor in model.leaves(params).items()}
        moves = model.placed(along)

        def body(call: Call) -> Tensors:
            value = loss_of(call)
            if not value.requires_grad:
                return {name: torch.zeros_like(tensor) for name, tensor in leaves.items()}
            first = torch.autograd.grad(value, [leaves[n] for n in moves], create_graph=True, allow_unused=True)
            slope = _inner(first, moves.values())
            if slope is None:
                return {name: torch.zeros_like(tensor) for name, tensor in leaves.items()}
            return _gradients(slope, leaves)

        return model.evaluate(leaves, inputs, body)

    def differences(along: Params) -> Tensors:
        def at(tensors: Tensors, dtype: torch.dtype) -> list[torch.Tensor]:
            leaves = {name: tensor.requires_grad_() for name, tensor in tensors.items()}
            return list(model.evaluate(leaves, inputs, lambda call: _gradients(loss_of(call), leaves), dtype).values())

        slopes, error = _central_differences(model, params, along, at)
        methods.error = max(methods.error, float(error))
        return dict(zip(model.leaves(params), slopes))

    def agrees(by: Callable[[Params], Tensors], value: Tensors) -> bool | None:
        other = model.random_direction(params, 1)
        back = by(other)
        size = np.sqrt(model.inner(value, value))
        size += np.sqrt(model.inner(direction, direction) * model.inner(back, back) / max(_count(back), 1))
        if size == 0 and by is double_backward:  # a backward pass without derivatives looks like a Hessian of zeros
            return not model.inner(direction, direction)
        return _verdict(model.inner(value, other), model.inner(direction, back), size)

    def by(way: Callable[[Params], Tensors]) -> Callable[[], tuple[Callable[[Params], Tensors], Tensors]]:
        return lambda: (way, way(direction))

    value, methods.hvp = _first_that_works(
        {"double backward": by(double_backward), "differences": by(differences)},
        methods.hvp,
        lambda found: agrees(*found),
        lambda: _culprit(model, params, direction, inputs),
    )
    return value[1]


# choice of a method


def last_resort(names: Iterable[str | None]) -> str | None:
    """Of several methods of `jvp` the one that works where the others do not."""
    order = ("forward", "double backward", "differences")
    known = [order.index(name) for name in names if name is not None]
    return order[max(known)] if known else None


def _first_that_works(
    ways: dict[str, Callable[[], R]], chosen: str | None, agrees: Callable[[R], bool | None], culprit: Callable[[], str]
) -> tuple[R, str | None]:
    """Result of the first method that neither raises nor contradicts reverse mode, and its name.

    The name is None as long as the check cannot decide (a direction of zero, a diverged network).
    """
    reasons: list[str] = []
    names = list(ways)
    for name in names[names.index(chosen) if chosen else 0 :]:
        try:
            value = ways[name]()
            verdict = True if name == chosen else agrees(value)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # NotImplementedError is one
            reasons.append(str(error).strip().split("\n")[0])
            continue
        if verdict is None:
            return value, None
        if verdict:
            return value, name
        reasons.append(f"{name} contradicts the backward pass")
    raise ValueError(f"{culprit()} cannot be differentiated twice or forward ({'; '.join(dict.fromkeys(reasons))})")


def _verdict(left: float, right: float, size: float) -> bool | None:
    """Whether two sides of an identity agree; None if they say nothing."""
    if not np.isfinite(left + right + size) or size == 0:
        return None
    return bool(abs(left - right) <= AGREEMENT * size)


def _culprit(model: IsolatedModule, params: Params, direction: Params, inputs: Inputs) -> str:
    """Name of the innermost module in which dual numbers fail; else of the network."""
    entered: list[str] = []
    leaves, moves = model.leaves(params), model.placed(direction)

    def body(call: Call) -> None:
        for name, module in model.named_parts():
            if not isinstance(module, torch.jit.ScriptModule):
                module.register_forward_pre_hook(lambda *_, name=name: entered.append(name))
                module.register_forward_hook(lambda *_: entered.pop() and None)
        with torch.no_grad():
            call()

    try:
        with forward_ad.dual_level():
            duals = {name: forward_ad.make_dual(t, moves[name]) if name in moves else t for name, t in leaves.items()}
            model.evaluate(duals, inputs, body)
    except RuntimeError:
        if entered:
            return entered[-1]
    return next(iter(model.named_parts()))[0]


@contextmanager
def _naming_the_network(model: IsolatedModule) -> Iterator[None]:
    """Errors of a backward pass say which network has it."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(f"{next(iter(model.named_parts()))[0]} cannot be differentiated: {reason}") from error


# differences


def _central_differences(
    model: IsolatedModule,
    params: Params,
    direction: Params,
    at: Callable[[Tensors, torch.dtype], list[torch.Tensor]],
) -> tuple[list[torch.Tensor], float]:
    """Slope of `at` along a direction, and its relative error: in float64 if the network can be evaluated in it.

    (4 D(h) - D(2h))/3 with D(h) = (f(θ + h v) - f(θ - h v))/(2 h); the stated error is that of D(h), plus rounding.
    """
    tried: list[tuple[float, list[torch.Tensor]]] = []
    failure: Exception | None = None
    for dtype, relative in STEPS.items():
        try:
            tried.append(_slope(model, params, direction, at, dtype, relative))
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError) as raised:  # a network with float32 written into it, a device without float64
            failure = raised
            continue
        if tried[-1][0] < AGREEMENT:
            break
    if not tried:
        assert failure is not None
        raise failure
    error, slopes = min(tried, key=lambda found: found[0])
    return slopes, error


def _slope(
    model: IsolatedModule,
    params: Params,
    direction: Params,
    at: Callable[[Tensors, torch.dtype], list[torch.Tensor]],
    dtype: torch.dtype,
    relative: float,
) -> tuple[float, list[torch.Tensor]]:
    """Relative error and slopes with steps of one size."""
    leaves, moves = model.leaves(params, dtype), model.placed(direction, dtype)
    length = np.sqrt(sum(float(t.double().square().sum()) for t in moves.values()))
    size = np.sqrt(sum(float(leaves[name].double().square().sum()) for name in moves))
    h = relative * (size or 1.0) / (length or 1.0)

    def shifted(step: float) -> list[torch.Tensor]:
        there = {name: t + step * moves[name] if name in moves else t.clone() for name, t in leaves.items()}
        return at(there, dtype)

    ends = {step: shifted(step) for step in (h, -h, 2 * h, -2 * h)}
    near = [(a.double() - b.double()) / (2 * h) for a, b in zip(ends[h], ends[-h])]
    far = [(a.double() - b.double()) / (4 * h) for a, b in zip(ends[2 * h], ends[-2 * h])]
    slopes = [(4 * a - b) / 3 for a, b in zip(near, far)]
    total = _norm(*slopes)
    native = model.compute_type(next(iter(params.values())).dtype)
    if total == 0:
        return 0.0, [s.to(native) for s in slopes]
    truncation = _norm(*(a - b for a, b in zip(near, far))) / 3
    rounding = _norm(*ends[h]) * torch.finfo(ends[h][0].dtype).eps / h
    return (truncation + rounding) / total, [s.to(native) for s in slopes]


def _inner(left: Iterable[torch.Tensor | None], right: Iterable[torch.Tensor]) -> torch.Tensor | None:
    """Σ <a, b> of those that are there, on one device; None if there is none."""
    total = None
    for a, b in zip(left, right):
        if a is not None:
            part = (a * b).sum()
            total = part if total is None else total + part.to(total.device)
    return total


def _norm(*tensors: torch.Tensor) -> float:
    """Euclidean norm of all entries."""
    return float(np.sqrt(sum(float(t.detach().double().square().sum()) for t in tensors)))


def _count(tensors: Tensors) -> int:
    """Number of entries."""
    return sum(t.numel() for t in tensors.values())
