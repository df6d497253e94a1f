"""Many tangents of a PyTorch network at once (`unlazy.models.tangents`).

Rows of the Jacobian come from one mapped backward pass over points; a network that `torch.func.vmap` cannot map is
differentiated point by point. Products with several vectors share one graph.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float

from unlazy.models.inputs import take_rows
from unlazy.models.protocol import Inputs, Outputs, Params
from unlazy.models.torch_model import TorchModel

Tensors: TypeAlias = dict[str, torch.Tensor]
Call: TypeAlias = Callable[[], torch.Tensor]
ROWS, COLUMNS = 64, 16
"""Points and vectors that are differentiated together."""
AGREEMENT = float(np.sqrt(np.finfo(np.float32).eps))
"""Relative difference between mapped and separate derivatives from which mapping is wrong."""


class TorchTangents:
    """The Jacobian of a `TorchModel` at its present parameters, see `TangentMap`.

    Parameters
    ----------
    model : TorchModel
        The network.
    layers : sequence of str, optional
        Full names of layers; all by default.
    """

    def __init__(self, model: TorchModel, layers: Sequence[str] | None = None) -> None:
        self._model = model
        self._params = model.snapshot()
        parts = model.layers(self._params)
        chosen = self._params if layers is None else {k: t for name in layers for k, t in parts[name].items()}
        self._shapes = {name: tensor.shape for name, tensor in chosen.items()}
        self.size = sum(tensor.numel() for tensor in chosen.values())
        self.rounding = float(torch.finfo(self._first().dtype).eps)
        self._mapped: bool | None = None
        self._doubled: bool | None = None

    def outputs(self, inputs: Inputs) -> Outputs:
        return self._model.apply(self._params, inputs)

    @torch.inference_mode(False)
    def rows(self, inputs: Inputs, cotangents: Float[np.ndarray, "m k c"]) -> Float[torch.Tensor, "_ p"]:
        found = [
            self._rows(take_rows(inputs, slice(i, i + ROWS)), cotangents[i : i + ROWS])
            for i in range(0, len(cotangents), ROWS)
        ]
        return torch.cat(found)

    def _rows(self, inputs: Inputs, U: np.ndarray) -> torch.Tensor:
        """Of a few points: mapped if that works, which is checked at the first use."""
        if self._mapped is not False:
            try:
                found = self._mapped_rows(inputs, U)
            except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
                if isinstance(error, torch.OutOfMemoryError):
                    raise
                self._mapped = False
            else:
                if self._mapped is None:
                    alone = self._row(take_rows(inputs, slice(0, 1)), U[0])
                    difference = (found[: len(alone)] - alone).norm() / max(float(alone.norm()), 1e-30)
                    self._mapped = bool(difference <= AGREEMENT)
                if self._mapped:
                    return found
        return torch.cat([self._row(take_rows(inputs, slice(i, i + 1)), U[i]) for i in range(len(U))])

    def _mapped_rows(self, inputs: Inputs, U: np.ndarray) -> torch.Tensor:
        return self._model.map_rows(self._leaves(), list(self._shapes), inputs, self._tensor(U)).flatten(0, 1)

    def _row(self, inputs: Inputs, U: np.ndarray) -> torch.Tensor:
        """Of one point, from a batch of one."""
        return self.pull(inputs, U[:, None])

    @torch.inference_mode(False)
    def pull(self, inputs: Inputs, cotangents: Float[np.ndarray, "k m c"]) -> Float[torch.Tensor, "k p"]:
        leaves = self._leaves()
        wanted = [leaves[name].requires_grad_() for name in self._shapes]

        def body(call: Call) -> torch.Tensor:
            value = call()
            weights = self._tensor(cotangents).to(value.device, value.dtype).reshape(-1, *value.shape)
            if not value.requires_grad:
                return torch.zeros(len(weights), self.size, dtype=value.dtype, device=value.device)
            return _batched(value, wanted, weights)

        return self._model.evaluate(leaves, inputs, body)

    @torch.inference_mode(False)
    def push(self, inputs: Inputs, tangents: Float[torch.Tensor, "k p"]) -> Float[np.ndarray, "k m c"]:
        """The derivative of Jᵀu by u where that is right, which is checked at the first use; else one by one."""
        if self._doubled is not False:
            try:
                found = self._double_backward(inputs, tangents)
            except RuntimeError as error:
                if isinstance(error, torch.OutOfMemoryError):
                    raise
                self._doubled = False
            else:
                if self._doubled is None:
                    alone = self._forward(inputs, tangents[0])
                    size = max(float(np.linalg.norm(alone)), float(np.finfo(np.float32).tiny))
                    self._doubled = bool(np.linalg.norm(found[0] - alone) <= AGREEMENT * size)
                if self._doubled:
                    return found
        return np.stack([self._forward(inputs, tangent) for tangent in tangents])

    def _forward(self, inputs: Inputs, tangent: torch.Tensor) -> np.ndarray:
        return self._model.jvp(self._params, self._split(tangent), inputs).astype(np.float64)

    def _double_backward(self, inputs: Inputs, tangents: torch.Tensor) -> np.ndarray:
        leaves = self._leaves()
        wanted = [leaves[name].requires_grad_() for name in self._shapes]

        def body(call: Call) -> torch.Tensor:
            value = call()
            u = torch.zeros_like(value, requires_grad=True)
            flat = None
            if value.requires_grad:
                back = torch.autograd.grad(value, wanted, u, create_graph=True, allow_unused=True)
                flat = _flat([torch.zeros_like(t) if g is None else g for g, t in zip(back, wanted)])
            if flat is None or not flat.requires_grad:
                return value.new_zeros(len(tangents), *value.shape).detach()
            return _batched(flat, [u], tangents).reshape(len(tangents), *value.shape)

        found = self._model.evaluate(leaves, inputs, body)
        return found.reshape(*found.shape[:2], -1).double().cpu().numpy()

    def contract(self, left: Float[torch.Tensor, "a p"], right: Float[torch.Tensor, "b p"]) -> Float[np.ndarray, "a b"]:
        return (left @ right.T).double().cpu().numpy()

    def combine(
        self, weights: Float[np.ndarray, "k a"], tangents: Float[torch.Tensor, "a p"]
    ) -> Float[torch.Tensor, "k p"]:
        return torch.as_tensor(weights, dtype=tangents.dtype, device=tangents.device) @ tangents

    def add(self, left: Float[torch.Tensor, "k p"], right: Float[torch.Tensor, "k p"]) -> Float[torch.Tensor, "k p"]:
        return left + right

    def stack(self, parts: Sequence[Float[torch.Tensor, "_ p"]]) -> Float[torch.Tensor, "k p"]:
        return torch.cat(list(parts))

    def to_host(self, tangents: Float[torch.Tensor, "k p"]) -> Float[np.ndarray, "k p"]:
        return tangents.double().cpu().numpy()

    def to_device(self, values: Float[np.ndarray, "k p"]) -> Float[torch.Tensor, "k p"]:
        return self._tensor(values)

    def random(self, count: int, seed: int) -> Float[torch.Tensor, "k p"]:
        first = self._first()
        generator = torch.Generator(device=first.device).manual_seed(seed)
        return torch.randn(count, self.size, generator=generator, device=first.device, dtype=first.dtype)

    def from_params(self, direction: Params) -> Float[torch.Tensor, "1 p"]:
        placed = self._model.placed(direction)
        return _flat([placed[name] for name in self._shapes])[None]

    def moved(self, tangents: Float[torch.Tensor, "k p"], index: int, scale: float = 1.0) -> Params:
        return self._model.add_scaled(self._params, scale, self._split(tangents[index]))

    def _split(self, tangent: torch.Tensor) -> Tensors:
        parts = tangent.split([shape.numel() for shape in self._shapes.values()])
        return {name: part.reshape(shape) for part, (name, shape) in zip(parts, self._shapes.items())}

    def _leaves(self) -> Tensors:
        return self._model.leaves(self._params)

    def _first(self) -> torch.Tensor:
        return next(iter(self._model.placed({name: self._params[name] for name in self._shapes}).values()))

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        first = self._first()
        return torch.tensor(values, dtype=first.dtype, device=first.device)


def _flat(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def _batched(value: torch.Tensor, leaves: list[torch.Tensor], weights: torch.Tensor) -> torch.Tensor:
    """Gradients of ⟨value, w⟩ for every w, flat: a few at a time, or one by one where that cannot be mapped."""
    found: list[torch.Tensor] = []
    step = COLUMNS
    start = 0
    while start < len(weights):
        part = weights[start : start + step]
        try:
            if len(part) > 1:
                grads = torch.autograd.grad(
                    value, leaves, part, retain_graph=True, allow_unused=True, is_grads_batched=True
                )
            else:
                grads = torch.autograd.grad(value, leaves, part[0], retain_graph=True, allow_unused=True)
                grads = tuple(None if g is None else g[None] for g in grads)
        except RuntimeError as error:
            if len(part) == 1 or isinstance(error, torch.OutOfMemoryError):
                raise
            step = 1
            continue
        dense = [
            torch.zeros(len(part), leaf.numel(), dtype=leaf.dtype, device=leaf.device) if g is None
            else g.reshape(len(part), -1)
            for g, leaf in zip(grads, leaves)
        ]  # fmt: skip
        found.append(torch.cat(dense, 1).detach())
        start += len(part)
    return torch.cat(found)
