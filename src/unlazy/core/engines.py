"""Which programs may run: the user's choice (`UNLAZY_ENGINES`) and what checks of this device have found.

Fused GPU programs depend on the GPU, its driver and the JAX version. Each is compared with float64 before its first use
on a device (`usable`), or by `unlazy check`. Verdicts are stored in the user's cache folder, one file per device,
driver and versions. A program that failed is not used: plain XLA takes its place.
"""

import hashlib
import json
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import jax
import jax.extend.backend

from unlazy._version import VERSION
from unlazy.core import devices
from unlazy.core.compilation_cache import cache_folder
from unlazy.core.errors import UnlazyWarning
from unlazy.core.files import atomic_write

VARIABLE = "UNLAZY_ENGINES"
"""Environment variable: "a,b" allows these engines alone, "-a,-b" all but these, "all" all of them without checks."""
SWITCHABLE = ("triton", "mosaic", "conv_triton", "conv_mosaic", "custom", "stored", "numpy")
"""Engines that can be switched off: fused products on any CUDA GPU and on Hopper GPUs, convolutional kernels on these,
products of a kernel's own, a stored K, NumPy."""
ALWAYS = ("blocked", "sharded")
"""Plain XLA on one or several devices, which takes the place of the others."""


class Verdict(NamedTuple):
    """Error of a program against float64, and the bound it must not exceed."""

    error: float
    bound: float

    @property
    def passed(self) -> bool:
        """Whether the error is within the bound; NaN is not."""
        return self.error <= self.bound


_checking = False
"""Whether all allowed programs run unchecked, because they are being checked."""


@lru_cache
def _selection(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Allowed engines, and those that were named and therefore need no check."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if words == ["all"]:
        return frozenset(SWITCHABLE), frozenset(SWITCHABLE)
    listed = {word for word in words if not word.startswith("-")}
    removed = {word[1:] for word in words if word.startswith("-")}
    if fixed := sorted(removed & {*ALWAYS}):
        raise ValueError(f"{VARIABLE}={text}: {fixed[0]!r} is plain XLA, which replaces other engines; it stays on")
    if unknown := sorted((listed | removed) - {*SWITCHABLE, *ALWAYS}):
        raise ValueError(
            f"{VARIABLE}={text}: unknown engine {unknown[0]!r}; choose from {', '.join((*SWITCHABLE, *ALWAYS))}, "
            "with a minus sign to switch one off, or all"
        )
    allowed = (listed & {*SWITCHABLE} if listed else {*SWITCHABLE}) - removed
    return frozenset(allowed), frozenset(allowed if listed else ())


def allowed(engine: str) -> bool:
    """Whether the user has left an engine on; raises ValueError if `UNLAZY_ENGINES` names an unknown one."""
    return engine not in SWITCHABLE or engine in _selection(os.environ.get(VARIABLE, ""))[0]


def usable(engine: str, case: str, check: Callable[[], Verdict]) -> bool:
    """Whether a fused program may run for a case (a family of kernels): it is allowed, and right on this device.

    `check` runs if the device was never checked for it, in a thread of its own: the caller may be tracing. On the CPU,
    for engines named in `UNLAZY_ENGINES`, and inside `unchecked`, nothing is checked.
    """
    if not allowed(engine):
        return False
    if _checking or devices.is_host() or engine in _selection(os.environ.get(VARIABLE, ""))[1]:
        return True
    known = verdicts()
    name = f"{engine} {case}"
    if name not in known:
        try:
            with ThreadPoolExecutor(1) as thread:
                found = thread.submit(check).result()
        except Exception as problem:
            if devices.is_out_of_memory(problem):
                return True
            found = Verdict(math.inf, 0.0)
            _warn(engine, case, f"raises {type(problem).__name__}: {str(problem)[:200]}")
        else:
            if not found.passed:
                _warn(engine, case, f"is off by {found.error:.1e}, allowed {found.bound:.1e}")
        remember({name: found})
    return verdicts()[name].passed


def _warn(engine: str, case: str, what: str) -> None:
    warnings.warn(
        f"engine {engine!r} ({case}) {what} on {devices.description()}: plain XLA is used instead. `unlazy check` has "
        f"details; {VARIABLE}=-{engine} switches it off without a check",
        UnlazyWarning,
        stacklevel=4,
    )


@contextmanager
def unchecked() -> Iterator[None]:
    """Run all allowed programs, whatever earlier checks have found, in order to check them again."""
    global _checking
    before, _checking = _checking, True
    try:
        yield
    finally:
        _checking = before


def identity() -> dict[str, str]:
    """What verdicts depend on: device, driver and versions."""
    return {
        "device": devices.description(), "driver": _driver(), "jax": jax.__version__, "jaxlib": jax.lib.__version__,
        "unlazy": VERSION,
    }  # fmt: skip


@lru_cache
def verdicts() -> dict[str, Verdict]:
    """Verdicts for this device, by engine and case, such as "mosaic GaussianForm"; read once."""
    try:
        read = json.loads(_file().read_text(encoding="utf-8"))["verdicts"]
        return {name: Verdict(*map(float, pair)) for name, pair in read.items()}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def remember(found: dict[str, Verdict]) -> None:
    """Store verdicts, in place of earlier ones of the same names. A folder that cannot be written is no error."""
    known = verdicts()
    known |= found
    path, texts = _file(), {name: [str(value) for value in verdict] for name, verdict in known.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write_text(json.dumps(identity() | {"verdicts": texts}, indent=1), encoding="utf-8")
    except OSError:
        pass


def _file() -> Path:
    """File of this device's verdicts."""
    return cache_folder() / "checks" / f"{hashlib.sha256(json.dumps(identity()).encode()).hexdigest()[:16]}.json"


def _driver() -> str:
    """Version of the driver: NVIDIA's on Linux, and the platform version that JAX reports."""
    platform = " ".join(jax.extend.backend.get_backend().platform_version.split())
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return platform
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return f"{found.group(1)}, {platform}" if found and not devices.is_host() else platform
