"""Uses of the parameters of a PyTorch network, found while it is evaluated.

Every operation below autograd passes through a dispatch mode. Tensors that are computed from parameters alone carry a
second value, with the trained parameters; where they meet data, the operation is evaluated with either.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from unlazy.diagnostics.scaling.networks.uses import (
    AttentionUse,
    Pending,
    PendingScales,
    Trace,
    Use,
    has_matrix,
    mark_branch,
    mark_reduced,
)
from unlazy.models.protocol import Inputs
from unlazy.models.torch_isolation import isolated
from unlazy.models.torch_model import unwrap

_VIEWS = frozenset(
    (
        "view", "_unsafe_view", "reshape", "_reshape_alias", "t", "transpose", "permute",
        "expand", "clone", "contiguous", "_to_copy", "alias", "detach", "slice",
        "select", "unsqueeze", "squeeze", "split", "split_with_sizes", "chunk", "unbind",
        "flatten", "narrow", "as_strided", "movedim", "lift_fresh",
    )
)  # fmt: skip
_PRODUCTS = {"mm": 0, "bmm": 0, "mv": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}
"""Matrix products, and the place of their left operand."""
_LOOKUPS = frozenset(["embedding", "_embedding_bag", "_embedding_bag_forward_only", "index", "index_select", "gather"])
_SCALAR_PRODUCTS, _SCALAR_QUOTIENTS = ("mul", "mul_", "multiply"), ("div", "div_", "divide", "true_divide")
_MASKS = frozenset(["add", "add_", "sub", "masked_fill", "masked_fill_", "where"])
_ENTRYWISE = frozenset(
    ["add", "sub", "mul", "div", "addmm", "addmv", "baddbmm", "convolution", "addcmul", "cat", "_prelu_kernel", "where"]
)
"""Sums and products by entry, and operations with a bias."""
_SOFTMAX = frozenset(["_softmax", "softmax", "_safe_softmax"])


@dataclass
class _Known:
    """What is known of a tensor.

    Of one computed from parameters: `trained`, its value with trained parameters, and their names. Of data: the scalar
    `factor` since the last operation that is no view, the uses that this was the output of, and of a product of data
    with data the number of terms in `terms`.
    """

    trained: torch.Tensor | None = None
    sources: tuple[str, ...] = ()
    factor: float = 1.0
    pending: Pending = ()
    terms: float | None = None

    @property
    def is_data(self) -> bool:
        return not self.sources


def trace_torch(network: nn.Module, trained: Mapping[str, torch.Tensor], inputs: Inputs) -> Trace:
    """Find all uses of the trainable parameters.

    Parameters
    ----------
    network : torch.nn.Module
        The network at initialization; it is left as it is.
    trained : mapping of str to tensor
        The parameters after some steps of training.
    inputs : array, tuple of arguments or dictionary
        A batch, as the network takes it.

    Returns
    -------
    Trace
        In order of evaluation, which is the same for every width.
    """
    network = unwrap(network)
    arguments, keywords = _arguments(inputs)
    devices = {p.device for p in network.parameters()}
    with isolated(network, devices), torch.no_grad():
        tracer = _Tracer(network, trained, (arguments, keywords))
        with tracer:
            found = network(*arguments, **keywords)
        tracer.finish(found)
    return tracer.found


def _arguments(inputs: Inputs) -> tuple[tuple, dict]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), {}


class _Tracer(TorchDispatchMode):
    def __init__(self, network: nn.Module, trained: Mapping[str, torch.Tensor], inputs: object) -> None:
        super().__init__()
        self.found, self._scales, self._stack = Trace(), PendingScales(), [""]
        self._known: dict[int, _Known] = {}
        self._changes: dict[str, float] = {}
        self._alive: list[torch.Tensor] = []  # so that no two tensors have the same id
        for name, p in network.named_parameters():
            if p.requires_grad and (p.is_floating_point() or p.is_complex()):
                after = trained[name].detach().to(p)
                self._remember(p, _Known(after, (name,)))
                self._changes[name] = _rms(after - p)
        for tensor in _tensors(inputs):
            self._remember(tensor, _Known())
        for name, module in network.named_modules():
            module.register_forward_pre_hook(lambda *_, name=name: self._stack.append(name))
            module.register_forward_hook(self._leave)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        operands = [(t, self._known.get(id(t))) for t in _tensors((args, kwargs))]
        data = any(known is not None and known.is_data for _, known in operands)
        from_parameters = [(t, known) for t, known in operands if known is not None and not known.is_data]
        if not data and not from_parameters:
            return func(*args, **kwargs)
        if not data and _is_product_with_zeros(func, args, operands):  # the first state of a recurrent layer
            operands = [(t, known or _Known()) for t, known in operands]
        elif not data:
            return self._combine_parameters(func, args, kwargs, from_parameters)
        before = args, kwargs
        if func._schema.is_mutable:  # operands as they are before the operation
            copies = {id(t): t.clone() for t, _ in operands}
            before = _replaced(args, copies), _replaced(kwargs, copies)
            operands = [(copies[id(t)], known) for t, known in operands]
            from_parameters = [(copies[id(t)], known) for t, known in from_parameters]
        result = func(*args, **kwargs)
        self._meet(func, *before, result, operands, from_parameters)
        return result

    def finish(self, outputs: object) -> None:
        """Give scalars before the outputs to the uses they belong to."""
        for tensor in _tensors(outputs):
            known = self._known.get(id(tensor))
            if known is not None:
                self._scales.commit(known.pending, known.factor)

    def _leave(self, *_: object) -> None:
        self._stack.pop()

    def _remember(self, tensor: torch.Tensor, known: _Known) -> None:
        self._known[id(tensor)] = known
        self._alive.append(tensor)

    def _combine_parameters(self, func: Any, args: tuple, kwargs: dict, operands: list) -> Any:
        """An operation of parameters and constants alone, with either values."""
        trained = {id(t): known.trained for t, known in operands}
        result = func(*args, **kwargs)
        after = func(*_replaced(args, trained), **_replaced(kwargs, trained))
        sources = tuple(dict.fromkeys(name for _, known in operands for name in known.sources))
        for tensor, value in zip(_tensors(result), _tensors(after)):
            self._remember(tensor, _Known(value, sources))
        return result

    def _meet(self, func: Any, args: tuple, kwargs: dict, result: Any, operands: list, from_parameters: list) -> None:
        """An operation with data: its uses, and what is known of its results."""
        operation = func._schema.name.removeprefix("aten::")
        data = [(t, known) for t, known in operands if known is not None and known.is_data]
        first = data[0][1]
        results = list(_tensors(result))
        linear = operation in _PRODUCTS or operation == "convolution"
        if operation in _VIEWS:
            known = first
        elif (factor := self._scalar(operation, args, operands)) is not None:
            known = replace(first, factor=first.factor * factor)
        elif operation in _SOFTMAX and first.terms is not None:
            self.found.attention.append(AttentionUse(self._stack[-1], first.terms * abs(first.factor)))
            known = _Known()
        elif operation in _MASKS and first.terms is not None and len(data) == 1:
            known = first  # a mask or a position bias
        elif operation in _PRODUCTS and len(data) > 1 and not from_parameters:
            left = args[_PRODUCTS[operation]]
            known = _Known(terms=left.shape[-1] * math.prod(abs(k.factor) for _, k in data))
        else:
            for _, of_input in data:
                # a scalar between two linear maps belongs to the first
                if not (linear and from_parameters) or has_matrix(of_input.pending):
                    self._scales.commit(of_input.pending, of_input.factor)
                if operation in ("add", "add_") and len(data) == 2:
                    mark_branch(of_input.pending)
            known = _Known()
        if operation in ("sum", "mean") and _over_last(args, data[0][0]):
            mark_reduced(first.pending)
        if linear and from_parameters and _rms(data[0][0]) == 0:
            from_parameters = []
        evaluate = _without_mutation(func) if func._schema.is_mutable else func
        uses = [self._use(evaluate, operation, args, kwargs, results[0], data, p, of) for p, of in from_parameters]
        self.found.uses.extend(uses)
        if uses and known.terms is None:
            of_input = _input_of(data)[1]
            factor = of_input.factor if linear and not has_matrix(of_input.pending) else 1.0
            known = _Known(factor=factor, pending=tuple((u, 1.0 if u.kind == "matrix" else 1 / factor) for u in uses))
        for tensor in results:
            self._remember(tensor, known)

    def _scalar(self, operation: str, args: tuple, operands: list) -> float | None:
        """The factor of a product or quotient with a constant number."""
        if operation not in _SCALAR_PRODUCTS + _SCALAR_QUOTIENTS or len(args) < 2:
            return None
        left, right = args[:2]
        of_data = {id(t) for t, known in operands if known is not None}
        if operation in _SCALAR_PRODUCTS and id(left) not in of_data:
            left, right = right, left
        if isinstance(right, torch.Tensor) and (right.ndim or id(right) in of_data):
            return None
        if id(left) not in of_data or not isinstance(right, torch.Tensor | int | float):
            return None
        number = float(right)
        if number == 0 or not math.isfinite(number):
            return None
        return number if operation in _SCALAR_PRODUCTS else 1 / number

    def _use(
        self, func: Any, operation: str, args: tuple, kwargs: dict, result: torch.Tensor, data: list,
        parameter: torch.Tensor, known: _Known,
    ) -> Use:  # fmt: skip
        """Measure one use: the operation with the trained value in the place of the initial one."""
        trained = known.trained
        assert trained is not None
        changed = {id(parameter): trained}
        after = next(_tensors(func(*_replaced(args, changed), **_replaced(kwargs, changed))))
        moved = _rms(after.double() - result.double())
        change = trained - parameter
        use = Use(known.sources, "other", multiplier=self._multiplier(known.sources, change))
        if operation in _PRODUCTS or operation == "convolution":
            matrix = _matrices(operation, args, parameter)
            if matrix is not None:
                x, M = _input_of(data)[0], matrix(parameter)
                size = _rms(x)
                others = {id(t): torch.zeros_like(t) for t in _tensors(args) if id(t) == id(_bias(operation, args))}
                plain = next(_tensors(func(*_replaced(args, others), **kwargs)))
                use.kind = "matrix"
                use.fan_in, use.fan_out = int(M.shape[-2]), int(M.shape[-1])
                use.features = use.fan_out * (int(args[8]) if operation == "convolution" else 1)
                use.gain, use.contribution = _rms(plain) / size, moved / size
                use.frobenius_gain = math.sqrt(float(M.double().square().sum()) / (use.fan_out * max(1, _batches(M))))
                use.spectral = _spectral_norm(matrix(change)) / math.sqrt(use.fan_out / use.fan_in)
                return use
        if operation in _LOOKUPS and args and args[0] is parameter:
            use.kind, use.gain, use.contribution = "lookup", _rms(result), moved
            use.fan_in, use.fan_out = int(parameter.shape[0]), math.prod(parameter.shape[1:])
        else:
            use.kind = "vector" if _is_entrywise(operation) else "other"
            use.gain = _rms(parameter)
            size = _rms(data[0][0]) if operation in _SCALAR_PRODUCTS else 1.0
            use.contribution = moved / size if size > 0 else math.nan
            use.fan_out = parameter.numel()
        use.features = use.fan_out
        return use

    def _multiplier(self, sources: tuple[str, ...], change: torch.Tensor) -> float:
        """The scalar between a single parameter and W: the ratio of their changes."""
        moved = self._changes[sources[0]] if len(sources) == 1 else 0.0
        return _rms(change) / moved if moved > 0 else math.nan


def _input_of(data: list) -> tuple[torch.Tensor, _Known]:
    """The data that a linear map is applied to; in a sum with a product, the largest operand is not it."""
    return max(data, key=lambda pair: pair[0].ndim) if len(data) > 1 else data[0]


def _without_mutation(func: Any) -> Callable[..., Any]:
    """An operation in place, applied to copies."""

    def evaluate(*args: Any, **kwargs: Any) -> Any:
        copies = {id(t): t.clone() for t in _tensors((args, kwargs))}
        return func(*_replaced(args, copies), **_replaced(kwargs, copies))

    return evaluate


def _is_product_with_zeros(func: Any, args: tuple, operands: list) -> bool:
    operation = func._schema.name.removeprefix("aten::")
    if operation not in _PRODUCTS:
        return False
    factors = args[_PRODUCTS[operation] : _PRODUCTS[operation] + 2]
    constant = {id(t) for t, known in operands if known is None}
    return any(id(t) in constant and not t.any() for t in factors)


def _over_last(args: tuple, x: torch.Tensor) -> bool:
    """Whether a sum or mean runs over the last axis."""
    given = args[1] if len(args) > 1 else None
    axes = [given] if isinstance(given, int) else list(given or ())
    return x.ndim - 1 in [axis % max(x.ndim, 1) for axis in axes]


def _bias(operation: str, args: tuple) -> object:
    """What is added to a product or convolution."""
    if operation == "convolution":
        return args[2]
    return args[0] if _PRODUCTS[operation] else None


def _matrices(operation: str, args: tuple, parameter: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Function that writes the weight of an operation as matrices (..., fan-in, fan-out); None if it is the bias."""
    if operation == "convolution":
        if args[1] is not parameter:
            return None
        groups, transposed = int(args[8]), bool(args[6])

        def of_convolution(W: torch.Tensor) -> torch.Tensor:
            W = W.reshape(groups, W.shape[0] // groups, *W.shape[1:])
            out_first = W.transpose(1, 2) if transposed else W  # (groups, out, in, window)
            return out_first.flatten(2).transpose(1, 2)

        return of_convolution
    left = _PRODUCTS[operation]
    if args[left] is parameter:
        return lambda W: W.transpose(-1, -2)
    return (lambda W: W if W.ndim > 1 else W[:, None]) if args[left + 1] is parameter else None


def _is_entrywise(operation: str) -> bool:
    return "norm" in operation or operation.rstrip("_") in _ENTRYWISE


def _batches(M: torch.Tensor) -> int:
    return math.prod(M.shape[:-2])


def _spectral_norm(M: torch.Tensor) -> float:
    """Largest singular value, from the smaller Gram matrix."""
    M = M.double()
    G = M.transpose(-1, -2) @ M if M.shape[-1] <= M.shape[-2] else M @ M.transpose(-1, -2)
    return math.sqrt(max(0.0, float(torch.linalg.eigvalsh(G).max())))


def _rms(x: torch.Tensor) -> float:
    x = x.detach().abs().double()
    return math.sqrt(float(x.square().mean())) if x.numel() else 0.0


def _tensors(tree: object) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from _tensors(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _tensors(value)


def _replaced(tree: Any, tensors: Mapping[int, torch.Tensor | None]) -> Any:
    """The tree with some tensors replaced, by their id."""
    if isinstance(tree, torch.Tensor):
        return tensors.get(id(tree), tree)
    if isinstance(tree, Mapping):
        return {key: _replaced(value, tensors) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_replaced(value, tensors) for value in tree)
    return tree
