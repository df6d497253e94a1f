"""Devices are queried in one module only; memory budget of GPUs; defaults for what a device does not report."""

import ast
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unlazy
from unlazy.core import devices
from unlazy.core.arrays import is_on_host

ROOT = Path(unlazy.__file__).parent
ASKED = {"default_backend", "device_count", "local_device_count", "local_devices", "memory_stats"}
ASKED |= {"core_count", "device_kind"}


def questions(source):
    """Lines that query devices: by such an attribute, jax.devices, array.devices() or a device's platform."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "jax":
            if {alias.name for alias in node.names} & (ASKED | {"devices"}):
                yield node.lineno
        elif isinstance(node, ast.Attribute):
            of_sys = isinstance(node.value, ast.Name) and node.value.id == "sys"
            of_jax = isinstance(node.value, ast.Name) and node.value.id == "jax"
            if node.attr in ASKED or (node.attr == "devices" and of_jax) or (node.attr == "platform" and not of_sys):
                yield node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "devices":
            yield node.lineno


@pytest.mark.parametrize("line", ["jax.devices()", "a = jax.default_backend()", "x.devices()", "d.platform"])
def test_a_device_query_is_detected(line):
    assert list(questions(line)) and not list(questions("mesh.devices.size, sys.platform, device.all_devices()"))


def test_devices_are_queried_in_one_module():
    sources = {
        p.relative_to(ROOT): p.read_text() for p in ROOT.rglob("*.py") if p.name not in ("devices.py", "arrays.py")
    }
    assert len(sources) > 100
    suspects = {p: text for p, text in sources.items() if any(w in text for w in ASKED | {"devices", "platform"})}
    found = [f"{path}:{line}" for path, text in suspects.items() for line in questions(text)]
    assert not found, f"use core.devices instead: {found}"


class FakeGPU:
    """A GPU device as reported by jaxlib."""

    platform, device_kind, core_count = "gpu", "NVIDIA H200", 148

    def __init__(self, stats):
        self.stats = stats

    def memory_stats(self):
        return self.stats


def machine(monkeypatch, *gpus):
    monkeypatch.delenv("UNLAZY_MEMORY", raising=False)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for name in ("devices", "local_devices"):
        monkeypatch.setattr(jax, name, lambda: list(gpus))


def test_gpu_memory_budget_is_half_of_the_least_free_memory(monkeypatch):
    machine(
        monkeypatch, FakeGPU({"bytes_limit": 80 * 2**30}), FakeGPU({"bytes_limit": 80 * 2**30, "bytes_in_use": 2**34})
    )
    assert devices.free_memory() == 64 * 2**30 and devices.memory_budget() == 32 * 2**30
    assert devices.memory_budget("1GiB") == 2**30  # an explicit value takes precedence
    assert devices.multiprocessors() == 148 and devices.description() == "gpu NVIDIA H200" and not devices.is_host()


def test_defaults_for_a_gpu_without_memory_stats(monkeypatch):
    silent = FakeGPU(None)
    silent.core_count = None
    machine(monkeypatch, silent)
    monkeypatch.setattr(devices, "host_free_memory", lambda: 77)
    assert devices.free_memory() == 77 and devices.multiprocessors() == devices.MULTIPROCESSORS


def test_is_on_host_of_arrays_and_tracers():
    assert is_on_host(np.ones(2)) and is_on_host(3.0)
    assert is_on_host(jnp.ones(2)) == devices.is_host()
    traced = []
    jax.make_jaxpr(lambda x: traced.append(is_on_host(x)) or x)(jnp.ones(2))
    assert traced == [False]
    assert devices.count() == len(devices.all_devices())


def test_largest_block_of_fragmented_memory(monkeypatch):
    """Fragmented memory: 60 GiB free, the largest block 20 GiB; 16 GiB are not in the pool yet."""
    stats = {"bytes_limit": 80 * 2**30, "bytes_in_use": 20 * 2**30, "pool_bytes": 64 * 2**30}
    machine(monkeypatch, FakeGPU(stats | {"largest_free_block_bytes": 20 * 2**30}))
    assert devices.free_memory() == 60 * 2**30 and devices.largest_block() == 20 * 2**30
    machine(monkeypatch, FakeGPU(stats | {"largest_free_block_bytes": 2**30}))
    assert devices.largest_block() == 16 * 2**30
    for silent in ({}, {"largest_free_block_bytes": 0, "pool_bytes": 80 * 2**30}):
        machine(monkeypatch, FakeGPU({"bytes_limit": 80 * 2**30} | silent))
        assert devices.largest_block() == 80 * 2**30
