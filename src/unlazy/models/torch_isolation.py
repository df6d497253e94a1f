"""Evaluate a user's PyTorch network without leaving a trace: everything that a forward pass may change is put back.

Inside `isolated` a network is in evaluation mode, computes in the precision of its tensors and runs operations that
have forward derivatives, where there is a choice. Afterwards flags, hooks, attributes, buffers and all random
generators are as they were. (What cannot be put back: what a network appends to a list of its own while it is
evaluated.)
"""

import random
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils.prune import BasePruningMethod

_FULL_PRECISION = (
    ("cuda.matmul", "fp32_precision", "ieee"), ("cudnn.conv", "fp32_precision", "ieee"),
    ("cudnn.rnn", "fp32_precision", "ieee"), ("mkldnn.matmul", "fp32_precision", "ieee"),
    ("mkldnn.conv", "fp32_precision", "ieee"), ("mkldnn.rnn", "fp32_precision", "ieee"),
)  # fmt: skip
"""Settings under torch.backends that let float32 be rounded to fewer digits, and their values without rounding."""
_FULL_PRECISION_BEFORE_2_9 = (("cuda.matmul", "allow_tf32", False), ("cudnn", "allow_tf32", False))
_GLOBAL_HOOKS = (
    "_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks",
)  # fmt: skip
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
_CONTENTS = ("_parameters", "_buffers", "_modules")
_SEED = 0
"""State of the random generators inside, so that a network that draws numbers draws the same ones each time."""


@contextmanager
def isolated(network: nn.Module, devices: Iterable[torch.device]) -> Iterator[None]:
    """The state in which networks are probed, see the module's docstring.

    Parameters
    ----------
    network : torch.nn.Module
        Its submodules are put into evaluation mode and get back their own flags. Hooks that users registered do not
        run, so that a probe leaves nothing in their records; PyTorch's own (weight_norm, spectral_norm, pruning) do,
        because they compute weights.
    devices : iterable of torch.device
        Devices whose random generators and autocast settings are saved.
    """
    devices = set(devices)
    with ExitStack() as stack:
        enter = stack.enter_context
        enter(torch.inference_mode(False))
        for kind in {"cpu", *(device.type for device in devices)}:
            if torch.amp.is_autocast_available(kind):
                enter(torch.autocast(kind, enabled=False))
        enter(_random_state_kept(devices))
        enter(_full_precision())
        enter(_differentiable_operations(network))
        enter(_modules_kept(network))
        yield


@contextmanager
def _random_state_kept(devices: set[torch.device]) -> Iterator[None]:
    """Save the random generators of PyTorch, NumPy and Python, and start all of them from a fixed seed.

    Generators of GPUs are lent another state instead of being set and set back: setting one makes cuDNN begin the
    dropout of recurrent layers anew.
    """
    generators = [torch.cuda.default_generators[i] for i in sorted({d.index or 0 for d in devices if d.type == "cuda"})]
    states = [generator.graphsafe_get_state() for generator in generators]
    state, of_python, of_numpy = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    mps = torch.mps.get_rng_state() if any(d.type == "mps" for d in devices) else None
    try:
        torch.default_generator.manual_seed(_SEED)
        for generator in generators:
            generator.graphsafe_set_state(torch.Generator(generator.device).manual_seed(_SEED))
        random.seed(_SEED)
        np.random.seed(_SEED)  # noqa: NPY002
        yield
    finally:
        torch.set_rng_state(state)
        for generator, saved in zip(generators, states):
            generator.graphsafe_set_state(saved)
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002
        if mps is not None:
            torch.mps.set_rng_state(mps)


@contextmanager
def _settings(values: Iterable[tuple[str, str, object]]) -> Iterator[None]:
    """Set attributes of parts of torch.backends, and put them back."""
    saved = []
    try:
        for path, name, value in values:
            part: Any = torch.backends
            for step in path.split("."):
                part = getattr(part, step, None)
            if part is not None and (before := getattr(part, name)) != value:
                saved.append((part, name, before))
                setattr(part, name, value)
        yield
    finally:
        for part, name, before in reversed(saved):
            setattr(part, name, before)


@contextmanager
def _full_precision() -> Iterator[None]:
    """Float32 is computed in float32, not in tf32 or bfloat16."""
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        with _settings(_FULL_PRECISION):
            yield
        return
    precision = torch.get_float32_matmul_precision()
    try:
        with _settings(_FULL_PRECISION_BEFORE_2_9):
            torch.set_float32_matmul_precision("highest")
            yield
    finally:
        torch.set_float32_matmul_precision(precision)


class _Transparent:
    """Stands for the re-entrant checkpoint, which has no forward derivative: the function itself."""

    @staticmethod
    def apply(function: Callable, preserve_rng_state: bool, *args: object) -> object:
        return function(*args)


@contextmanager
def _differentiable_operations(network: nn.Module) -> Iterator[None]:
    """Choose implementations that have forward and second derivatives."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    fastpath = torch.backends.mha.get_fastpath_enabled()
    checkpointing = torch.utils.checkpoint
    reentrant = getattr(checkpointing, "CheckpointFunction", None)
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        # no search for the fastest convolution at shapes that training never sees
        stack.enter_context(_settings([("cudnn", "benchmark", False)]))
        if any(isinstance(module, nn.RNNBase) for module in network.modules()):
            stack.enter_context(_settings([("cudnn", "enabled", False), ("mkldnn", "enabled", False)]))
        if "torch._dynamo" in sys.modules:  # otherwise nothing has been compiled
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        try:
            torch.backends.mha.set_fastpath_enabled(False)
            if reentrant is not None:
                checkpointing.CheckpointFunction = _Transparent  # type: ignore[misc, assignment]
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fastpath)
            if reentrant is not None:
                checkpointing.CheckpointFunction = reentrant  # type: ignore[misc]


@contextmanager
def _modules_kept(network: nn.Module) -> Iterator[None]:
    """Save the attributes of every submodule; evaluation mode, no hooks of users."""
    modules = list(network.modules())
    saved = [dict(module.__dict__) for module in modules]
    contents = [{name: dict(module.__dict__[name]) for name in _CONTENTS} for module in modules]
    hooks = [vars(torch.nn.modules.module)[name] for name in _GLOBAL_HOOKS]
    of_all = [dict(registered) for registered in hooks]
    try:
        for registered in hooks:
            registered.clear()
        for module in modules:
            state = module.__dict__
            state["training"] = False
            for name in _HOOKS:
                state[name] = OrderedDict((key, hook) for key, hook in state[name].items() if _belongs_to_torch(hook))
            for name in _BACKWARD_HOOKS:
                state[name] = OrderedDict()
            if state.get("_compiled_call_impl") is not None:
                state["_compiled_call_impl"] = None
        yield
    finally:
        for module, before, inner in zip(modules, saved, contents):
            _restore(module.__dict__, before)
            for name, entries in inner.items():
                _restore(module.__dict__[name], entries)
        for registered, before in zip(hooks, of_all):
            _restore(registered, before)


def _restore(state: dict, before: dict) -> None:
    """Make a dictionary as it was, without comparing values (tensors compare by entry)."""
    for key in state.keys() - before.keys():
        del state[key]
    for key, value in before.items():
        if key not in state or state[key] is not value:
            state[key] = value


def _belongs_to_torch(hook: object) -> bool:
    """Whether PyTorch itself registered a hook, which then computes a weight."""
    function = getattr(hook, "func", hook)  # a functools.partial
    where = getattr(function, "__module__", None) or type(function).__module__
    return where.split(".")[0] == "torch" or isinstance(hook, BasePruningMethod)
