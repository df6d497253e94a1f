"""A torch.nn.Module as a `Model`.

Parameters and directions are dictionaries of tensors by name. The module is called with these tensors in the place of
its own, through torch.func.functional_call; forward derivatives are PyTorch's dual numbers, or what
`torch_derivatives` falls back to.
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias, TypeVar, cast

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrize

from unlazy.models import torch_derivatives as derivatives
from unlazy.models.inputs import map_arrays
from unlazy.models.outputs import select_output
from unlazy.models.protocol import Inputs, Loss, OutputFunction, Outputs, Params, Targets
from unlazy.models.torch_isolation import isolated
from unlazy.models.torch_memory import spare_bytes

Tensors: TypeAlias = dict[str, torch.Tensor]
R = TypeVar("R")
DECOMPOSITIONS, LOAD_SECONDS = "torch._decomp.decompositions_for_jvp", 0.3
"""What forward derivatives import at their first use, and how long that takes."""
KERNEL_SECONDS = 0.5
"""Rough time to load the kernels of a network's evaluation and derivatives on a device."""
CHUNK = 2**20
"""Entries that an inner product converts to float64 at a time."""
SMALL = 2**24
"""Differences of parameters of up to so many bytes are formed whole."""
PART = 0.2
"""Where the difference of all parameters does not fit in memory, it is formed for this share of them at a time."""
_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


class _Inside(nn.Module):
    """Calls a function while the tensors of a network are replaced, so that backward passes run inside as well.

    A checkpointed block is evaluated again during the backward pass; outside it would find the user's parameters.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, body: Callable[[], R]) -> R:
        return body()


class TorchModel:
    """A torch.nn.Module behind the protocol `Model`.

    Trainable are the parameters that require a gradient when the adapter is made; tied ones count once. All others, and
    all buffers, are constants: buffers those of construction (see `fix_statistics`), parameters as they are. Complex
    parameters appear as real arrays with a last axis of length 2.

    Parameters
    ----------
    module : torch.nn.Module
        The network; wrappers for several devices and compilation are removed.
    output : callable, optional
        From what the module returns to its outputs, see `as_model`.
    dtype : {"float32", "float64"}, optional
        Precision of evaluation, see `as_model`.

    Raises
    ------
    ValueError
        If there is no trainable parameter, or the module cannot be evaluated with other parameters.
    """

    def __init__(self, module: nn.Module, *, output: OutputFunction | None = None, dtype: str | None = None) -> None:
        self._module = unwrap(module)
        self._output = output
        self._dtype = None if dtype is None else getattr(torch, dtype)
        self._names = [name for name, p in self._module.named_parameters() if p.requires_grad]
        check_module(self._module, self._names)
        self._inside = _Inside(self._module)
        self._buffers = self._running_buffers()
        self._changes_weights: bool | None = None
        self._methods = derivatives.Methods()

    # parameters

    @property
    @torch.inference_mode(False)
    def params(self) -> Params:
        live = dict(self._module.named_parameters())
        missing = [name for name in self._names if name not in live]
        if missing:
            raise ValueError(f"the module no longer has the parameter {missing[0]!r}: make a new model of it")
        return {name: _real(live[name].detach()) for name in self._names}

    @property
    def derivative_error(self) -> float:
        return self._methods.error

    @torch.inference_mode(False)
    def snapshot(self, on_host: bool = False) -> Params:
        if on_host:
            return {name: p.to("cpu", copy=True) for name, p in self.params.items()}
        return {name: p.clone() for name, p in self.params.items()}

    def stored(self, network: Params, on_host: bool = False) -> Params:
        values = dict(network.named_parameters()) if isinstance(network, nn.Module) else network
        if not isinstance(values, Mapping):
            raise ValueError(f"reference must be a module or its state_dict(), got {type(network).__name__}")
        live = self.params
        missing = [name for name in live if name not in values or values[name].shape != live[name].shape]
        if missing:
            raise ValueError(
                f"reference has no value of shape {tuple(live[missing[0]].shape)} for the parameter {missing[0]!r}: "
                "pass the module or state_dict() that training started from"
            )
        found = {name: torch.as_tensor(values[name]).detach() for name in live}
        return {name: tensor.to("cpu") for name, tensor in found.items()} if on_host else found

    def update(self, network: Params) -> None:
        if not isinstance(network, nn.Module) or unwrap(network) is not self._module:
            raise ValueError("a torch module is read as it is at every call: do not pass parameters")

    def layers(self, params: Params) -> Mapping[str, Params]:
        found: dict[str, Tensors] = {}
        for name, tensor in params.items():
            found.setdefault(self._layer(name), {})[name] = tensor
        return found

    def subtract(self, left: Params, right: Params) -> Params:
        return self.add_scaled(left, -1.0, right)

    @torch.inference_mode(False)
    def add_scaled(self, left: Params, scale: float, right: Params) -> Params:
        left, right = self.placed(left), self.placed(right)
        total = {name: torch.add(t, right[name], alpha=scale) if name in right else t for name, t in left.items()}
        return total | {name: scale * t for name, t in right.items() if name not in left}

    @torch.inference_mode(False)
    def inner(self, left: Params, right: Params) -> float:
        left, right = self.placed(left), self.placed(right)
        parts = [
            torch.vdot(a.double(), b.double())
            for name, t in left.items() if name in right
            for a, b in zip(t.reshape(-1).split(CHUNK), right[name].reshape(-1).split(CHUNK))
        ]  # fmt: skip
        return float(sum(part.cpu() for part in parts))

    @torch.inference_mode(False)
    def random_direction(self, params: Params, seed: int) -> Params:
        live = self.params
        device = live[self._names[0]].device
        generator = torch.Generator(device=device).manual_seed(seed)
        return {
            name: torch.randn(
                t.shape, generator=generator, device=device, dtype=self.compute_type(t.dtype)
            ).to(live[name].device)
            for name, t in params.items()
        }  # fmt: skip

    # evaluation

    @property
    def startup(self) -> float:
        """Forward derivatives load decompositions once per process, devices load kernels at their first use."""
        first = 0.0 if DECOMPOSITIONS in sys.modules else LOAD_SECONDS
        cold = self._methods.jvp is None and any(device.type != "cpu" for device in self._devices())
        return first + (KERNEL_SECONDS if cold else 0.0)

    def wait(self) -> None:
        for device in self._devices():
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            elif device.type != "cpu":
                torch.get_device_module(device).synchronize()

    def check_inputs(self, inputs: Inputs) -> None:
        """On a CPU alone: the first evaluation on another device loads its kernels."""
        if all(device.type == "cpu" for device in self._devices()):
            self.apply(self.params, inputs)

    @torch.inference_mode(False)
    def fix_statistics(self, inputs: Inputs, params: Params | None = None) -> None:
        if params is None:
            self._buffers = self._running_buffers()
        fresh: dict[int, nn.Module] = {}
        names: dict[int, str] = {}
        for name, module in self._module.named_modules():
            if isinstance(module, nn.modules.batchnorm._NormBase) and module.running_mean is not None:
                count = self._buffers.get(f"{name}.num_batches_tracked" if name else "num_batches_tracked")
                if count is None or int(count) == 0:
                    fresh[id(module)], names[id(module)] = module, name
        if not fresh:
            return
        found: Tensors = {}

        def measure(module: nn.Module, args: tuple) -> None:
            x = args[0]
            axes = [0, *range(2, x.ndim)]
            mean, variance = x.mean(axes), x.var(axes, correction=0)
            cast(torch.Tensor, module.running_mean).copy_(mean)  # copies, in the place of the module's own
            cast(torch.Tensor, module.running_var).copy_(variance)
            prefix = names[id(module)]
            for which, value in (("running_mean", mean), ("running_var", variance)):
                found[f"{prefix}.{which}" if prefix else which] = value.clone()

        def body(call: Callable[[], torch.Tensor]) -> None:
            with torch.no_grad():
                for module in fresh.values():
                    module.register_forward_pre_hook(measure)
                call()

        self.evaluate(self.leaves(self.params if params is None else params), inputs, body)
        self._buffers |= {name: value.to(self._buffers[name].dtype) for name, value in found.items()}

    @torch.inference_mode(False)
    def apply(self, params: Params, inputs: Inputs) -> Outputs:
        return self._host(self._value(params, inputs))

    @torch.inference_mode(False)
    def jvp(self, params: Params, direction: Params, inputs: Inputs) -> Outputs:
        self._prepare(params, inputs)
        return self._host(derivatives.jvp(self, params, direction, inputs, self._methods))

    def change(
        self, reference: Params, params: Params, inputs: Inputs, initial: Outputs | None = None
    ) -> tuple[Outputs, Outputs, Outputs]:
        start = self.apply(reference, inputs) if initial is None else initial
        if params is reference:
            return start, start, np.zeros_like(start)
        end, undecided, used = self.apply(params, inputs), self._methods.jvp is None, []
        linear: Outputs = np.zeros(start.shape)
        for names in self._parts(reference):
            if undecided:  # every part is checked against reverse mode
                self._methods.jvp = None
            moved = self.subtract({name: params[name] for name in names}, {name: reference[name] for name in names})
            linear = linear + self.jvp(reference, moved, inputs)
            used.append(self._methods.jvp)
        if undecided:
            self._methods.jvp = derivatives.last_resort(used)
        return start, end, linear

    def _parts(self, params: Params) -> list[list[str]]:
        """Names of the parameters in parts whose differences fit into memory that was in use before."""
        sizes = {name: tensor.numel() * tensor.element_size() for name, tensor in params.items()}
        total = sum(sizes.values())
        if total <= SMALL or all(spare_bytes(device) >= total for device in self._devices()):
            return [list(sizes)]
        parts: list[list[str]] = []
        held = math.inf
        for name, size in sizes.items():
            if held + size > PART * total:
                parts.append([])
                held = 0
            parts[-1].append(name)
            held += size
        return parts

    @torch.inference_mode(False)
    def vjp(self, params: Params, cotangents: Outputs, inputs: Inputs) -> Params:
        self._prepare(params, inputs)
        return derivatives.vjp(self, params, inputs, np.asarray(cotangents))

    @torch.inference_mode(False)
    def hvp(self, params: Params, direction: Params, inputs: Inputs, targets: Targets, loss: Loss) -> Params:
        self._prepare(params, inputs)
        return derivatives.hvp(self, params, direction, inputs, targets, loss, self._methods)

    @torch.inference_mode(False)
    def layer_outputs(self, params: Params, inputs: Inputs) -> Mapping[str, Outputs]:
        self._prepare(params, inputs)
        constant = tuple(_constant_parts(self._module))
        names = [name for name, _ in self._module.named_parameters() if not name.startswith(constant)]
        owners = {self._layer(name): self._module.get_submodule(_owner(name)) for name in names}
        found: dict[str, torch.Tensor] = {}

        def record(layer: str) -> Callable[[nn.Module, tuple, object], None]:
            def hook(module: nn.Module, args: tuple, value: object) -> None:
                tensor = _first_tensor(value)
                if tensor is not None:
                    found.pop(layer, None)  # a layer that is called several times counts at its last call
                    found[layer] = tensor.detach().clone()

            return hook

        def body(call: Callable[[], torch.Tensor]) -> int:
            with torch.no_grad():
                for layer, module in owners.items():
                    module.register_forward_hook(record(layer))
                return len(call())

        m = self.evaluate(self.leaves(params), inputs, body)
        rows = {layer: _per_point(tensor, m) for layer, tensor in found.items()}
        return {layer: self._host(tensor) for layer, tensor in rows.items() if tensor is not None}

    # what the derivatives need

    def named_parts(self) -> Iterator[tuple[str, nn.Module]]:
        """The network and all its submodules, with a name to print."""
        for name, module in self._module.named_modules():
            yield f"{type(module).__name__}" + (f" ({_printed(name)})" if _printed(name) else ""), module

    def targets_of(self, targets: Targets) -> Targets:
        """Targets on the network's device."""
        return _map_tensors(targets, lambda t: t.detach().to(self._device()))

    def _value(self, params: Params, inputs: Inputs) -> torch.Tensor:
        def body(call: Callable[[], torch.Tensor]) -> torch.Tensor:
            with torch.no_grad():
                return call().clone()

        first = self._changes_weights is None
        leaves = self.leaves(params)
        value = self.evaluate(leaves, inputs, body)
        if first:  # these leaves were copies
            self._changes_weights = any(tensor._version > 0 for tensor in leaves.values())
        return value

    def _prepare(self, params: Params, inputs: Inputs) -> None:
        """Evaluate once without derivatives, so that misuse and changes in place show before anything else."""
        if self._changes_weights is None:
            self._value(params, inputs)

    def evaluate(
        self, tensors: Tensors, inputs: Inputs, body: Callable[[Callable[[], torch.Tensor]], R],
        dtype: torch.dtype | None = None,
    ) -> R:  # fmt: skip
        """`body(call)` in isolation, where `call()` is the network's output with these tensors for its parameters."""
        module = self._module
        if parametrize._cache_enabled:
            raise ValueError("inside torch.nn.utils.parametrize.cached() weights are not computed: probe outside of it")
        arguments, keywords = self._arguments(inputs, dtype)

        def call() -> torch.Tensor:
            value = module(*arguments, **keywords)
            return self._checked(select_output(value, self._output, torch.is_tensor, type(module).__name__))

        state = {**self._constants(dtype), **{name: _native(t, name, module) for name, t in tensors.items()}}
        with isolated(self._inside, self._devices()):
            return torch.func.functional_call(
                self._inside, {f"network.{name}": tensor for name, tensor in state.items()}, (lambda: body(call),)
            )

    def map_rows(self, tensors: Tensors, names: list[str], inputs: Inputs, cotangents: torch.Tensor) -> torch.Tensor:
        """uᵀJ(x) by the named parameters for every point x and its own cotangents (m, k, c): (m, k, p), flat.

        Raises
        ------
        RuntimeError
            If an operation of the network cannot be mapped over points.
        """
        module = self._module
        arguments, keywords = self._arguments(inputs, None)
        state = {**self._constants(None), **{name: _native(t, name, module) for name, t in tensors.items()}}
        columns: list[torch.Tensor] = []
        map_arrays(columns.append, (arguments, keywords))

        def of_row(u: torch.Tensor, *row: torch.Tensor) -> torch.Tensor:
            parts = iter(row)
            args, words = cast(tuple[tuple, dict], map_arrays(lambda _: next(parts)[None], (arguments, keywords)))

            def value(chosen: Tensors) -> torch.Tensor:
                found = torch.func.functional_call(module, {**state, **chosen}, args, words)
                selected = select_output(found, self._output, torch.is_tensor, type(module).__name__)
                return self._checked(selected)[0].reshape(-1)

            _, pull = torch.func.vjp(value, {name: state[name] for name in names})
            (found,) = torch.func.vmap(pull)(u)
            return torch.cat([found[name].reshape(len(u), -1) for name in names], 1)

        with isolated(self._inside, self._devices()):
            mapped = torch.func.vmap(of_row, randomness="same")
            return mapped(cotangents.to(self._device()), *columns).detach()

    def _checked(self, value: object) -> torch.Tensor:
        assert isinstance(value, torch.Tensor)
        name = type(self._module).__name__
        if value.is_complex():
            raise ValueError(f"{name} returns complex numbers: pass output=torch.view_as_real")
        if not value.is_floating_point():
            raise ValueError(f"{name} returns {value.dtype}, which has no derivative: pass output= with real outputs")
        if value.ndim == 0:
            raise ValueError(f"{name} returns one number, not a row per point (a loss?): pass output= with its outputs")
        return value

    def leaves(self, params: Params, dtype: torch.dtype | None = None) -> Tensors:
        """Parameters on the network's devices, in the precision of evaluation, safe from changes in place."""
        placed = self.placed(params, dtype)
        if self._changes_weights is False:
            return placed
        return {name: tensor.clone() for name, tensor in placed.items()}

    def placed(self, params: Params, dtype: torch.dtype | None = None) -> Tensors:
        """Parameters or directions on the network's devices, in the precision of evaluation."""
        live = self.params
        unknown = [name for name in params if name not in live]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is no trainable parameter of {type(self._module).__name__}")
        return {
            name: tensor.detach().to(live[name].device, dtype or self.compute_type(tensor.dtype))
            for name, tensor in params.items()
        }

    def _constants(self, dtype: torch.dtype | None) -> Tensors:
        """Copies of the buffers, and of frozen parameters that must be cast or that a lookup changes in place."""
        constants = {}
        for name, live in self._module.named_buffers():
            held = self._buffers.get(name)
            if held is None or held.shape != live.shape or held.dtype != live.dtype:
                held = live
            constants[name] = held.detach().to(live.device, self.compute_type(held.dtype, dtype), copy=True)
        trainable = set(self._names)
        lookups = [m for m in self._module.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
        clipped = {id(m.weight) for m in lookups if m.max_norm is not None}
        for name, frozen in self._module.named_parameters():
            wanted = self.compute_type(frozen.dtype, dtype)
            if name not in trainable and (wanted != frozen.dtype or id(frozen) in clipped):
                constants[name] = frozen.detach().to(wanted, copy=True)
        return constants

    def _running_buffers(self) -> Tensors:
        with torch.inference_mode(False):
            return {name: buffer.detach().clone() for name, buffer in self._module.named_buffers()}

    def compute_type(self, given: torch.dtype, wanted: torch.dtype | None = None) -> torch.dtype:
        """Real numbers have at least 32 bits; `wanted`, or the `dtype` of construction, overrides."""
        wanted = wanted or self._dtype
        if given.is_complex:
            return given if wanted is None else wanted.to_complex()
        if not given.is_floating_point:
            return given
        return wanted or (torch.float32 if given.itemsize < 4 else given)

    def _arguments(self, inputs: Inputs, dtype: torch.dtype | None) -> tuple[tuple, dict]:
        """Positional and keyword arguments: copies on the network's device."""
        device = self._device()

        def copied(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.detach().to(device, self.compute_type(tensor.dtype, dtype), copy=True)

        of_numpy = self.compute_type(self.params[self._names[0]].dtype, dtype)

        def converted(array: np.ndarray) -> torch.Tensor:
            tensor = torch.tensor(array, device=device)
            return tensor.to(of_numpy) if tensor.is_floating_point() else tensor

        inputs = _map_tensors(inputs, copied, converted)
        if isinstance(inputs, tuple) and not hasattr(inputs, "_fields"):
            return inputs, {}
        if isinstance(inputs, Mapping):
            return (), dict(inputs)
        return (inputs,), {}

    def _device(self) -> torch.device:
        return next(self._module.parameters()).device

    def _devices(self) -> set[torch.device]:
        return {p.device for p in self._module.parameters()}

    def _layer(self, name: str) -> str:
        """Layer that a parameter belongs to: the path of its module, or the module's class at the root."""
        return _printed(_owner(name)) or type(self._module).__name__

    def _host(self, tensor: torch.Tensor) -> Outputs:
        return tensor.detach().reshape(len(tensor), -1).cpu().numpy()


def unwrap(module: nn.Module) -> nn.Module:
    """The network inside wrappers for several devices and for compilation."""
    while True:
        if isinstance(module, _WRAPPERS):
            module = module.module
        elif isinstance(inner := getattr(module, "_orig_mod", None), nn.Module):
            module = inner
        else:
            return module


def check_module(module: nn.Module, names: list[str]) -> None:
    """Raise ValueError if a module has nothing to train or cannot be evaluated with other parameters."""
    kind = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule):
        raise ValueError(f"{kind} is a TorchScript module, whose parameters cannot be replaced: pass the Python module")
    for name, part in module.named_modules():
        if type(part).__name__ == "FullyShardedDataParallel":
            where = name or "the module"
            raise ValueError(f"{where} is FullyShardedDataParallel: pass the module before its parameters are sharded")
    for name, parameter in module.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ValueError(f"the parameter {name!r} of {kind} has no shape yet: run the network on one batch first")
        if parameter.device.type == "meta":
            raise ValueError(f"the parameter {name!r} of {kind} is on the meta device and has no values")
        if type(parameter).__name__ == "DTensor" or type(parameter.data).__name__ == "DTensor":
            raise ValueError(f"the parameter {name!r} of {kind} is sharded: pass the module before sharding")
    if not names:
        raise ValueError(f"{kind} has no parameter that requires a gradient: nothing is trained")


def _constant_parts(module: nn.Module) -> Iterator[str]:
    """Prefixes of the parts that a wrapper such as a rescaled network declares constant: they are no layers."""
    for path, part in module.named_modules():
        for name in getattr(part, "unlazy_constants", ()):
            yield f"{path}.{name}." if path else f"{name}."


def _owner(name: str) -> str:
    """Path of the module that a parameter belongs to; parametrizations belong to the module whose weight they make."""
    path = name.rpartition(".")[0].split(".")
    return ".".join(path[: path.index("parametrizations")] if "parametrizations" in path else path)


def _printed(path: str) -> str:
    """The path without the wrappers that compilation leaves in it."""
    return ".".join(step for step in path.split(".") if step != "_orig_mod")


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _native(tensor: torch.Tensor, name: str, module: nn.Module) -> torch.Tensor:
    """The tensor as the module holds it: complex where its own is."""
    path, _, attribute = name.rpartition(".")
    own = module.get_submodule(path)._parameters.get(attribute)
    if own is not None and own.is_complex() and not tensor.is_complex():
        return torch.view_as_complex(tensor.contiguous())
    return tensor


def _first_tensor(value: object) -> torch.Tensor | None:
    """The first tensor of real numbers in an output."""
    if isinstance(value, torch.Tensor):
        return torch.view_as_real(value) if value.is_complex() else value
    if isinstance(value, nn.utils.rnn.PackedSequence):
        return nn.utils.rnn.pad_packed_sequence(value, batch_first=True)[0]
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return next((found for found in map(_first_tensor, parts) if found is not None), None)


def _per_point(tensor: torch.Tensor, m: int) -> torch.Tensor | None:
    """One row per point; None if no axis runs over points."""
    if tensor.ndim == 0:
        return None
    if tensor.shape[0] == m:
        return tensor.reshape(m, -1)
    if m in tensor.shape:  # sequences first
        return tensor.movedim(tensor.shape.index(m), 0).reshape(m, -1)
    return tensor.reshape(m, -1) if tensor.shape[0] % m == 0 else None


def _map_tensors(
    tree: object, of_tensor: Callable[[torch.Tensor], torch.Tensor],
    of_array: Callable[[np.ndarray], torch.Tensor] | None = None,
) -> object:  # fmt: skip
    """Map tensors (and NumPy arrays) inside tuples, lists and mappings; anything else is passed on."""
    if isinstance(tree, torch.Tensor):
        return of_tensor(tree)
    if isinstance(tree, np.ndarray):
        return (of_array or (lambda array: of_tensor(torch.from_numpy(array))))(tree)
    if isinstance(tree, nn.utils.rnn.PackedSequence):  # whose lengths stay on the host
        data = of_tensor(tree.data)
        order = (tree.sorted_indices, tree.unsorted_indices)
        moved = [None if index is None else index.to(data.device) for index in order]
        return nn.utils.rnn.PackedSequence(data, tree.batch_sizes, *moved)
    if isinstance(tree, tuple | list):
        parts = [_map_tensors(part, of_tensor, of_array) for part in tree]
        named = getattr(tree, "_make", None)
        return parts if isinstance(tree, list) else tuple(parts) if named is None else named(parts)
    if isinstance(tree, Mapping):
        return {key: _map_tensors(part, of_tensor, of_array) for key, part in tree.items()}
    return tree
