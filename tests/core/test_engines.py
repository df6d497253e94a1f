"""Engines are switched on and off by name, and a GPU program is checked once before its first use on a device."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy import Laplace, Linear
from unlazy.core import devices, engines
from unlazy.core.engines import Verdict
from unlazy.core.errors import UnlazyWarning
from unlazy.products import product


@pytest.fixture
def chosen(monkeypatch):
    """Function that sets UNLAZY_ENGINES."""
    monkeypatch.delenv(engines.VARIABLE, raising=False)
    return lambda text: monkeypatch.setenv(engines.VARIABLE, text)


def test_all_engines_are_on_by_default(chosen):
    assert all(map(engines.allowed, (*engines.SWITCHABLE, *engines.ALWAYS)))


@pytest.mark.parametrize(
    "text, on",
    [
        ("-triton,-mosaic", {"conv_triton", "conv_mosaic", "custom", "stored", "numpy"}),
        ("numpy, stored", {"numpy", "stored"}),
        ("blocked", set()),
        ("numpy,stored,-stored", {"numpy"}),
        ("all", {*engines.SWITCHABLE}),
        ("", {*engines.SWITCHABLE}),
    ],
)
def test_engines_are_selected_by_name_and_disabled_by_a_minus_sign(chosen, text, on):
    chosen(text)
    assert {name for name in engines.SWITCHABLE if engines.allowed(name)} == on
    assert engines.allowed("blocked") and engines.allowed("sharded")


def test_an_unknown_name_lists_the_names(chosen):
    chosen("-tritn")
    with pytest.raises(ValueError, match=r"unknown engine 'tritn'.*triton, mosaic, conv_triton, conv_mosaic, custom"):
        product(Laplace(1.0), np.ones((3, 2), np.float32))


def test_plain_xla_cannot_be_switched_off(chosen):
    chosen("-blocked")
    with pytest.raises(ValueError, match="'blocked' is plain XLA"):
        engines.allowed("numpy")


@pytest.mark.skipif(not devices.is_host(), reason="engines of the CPU")
@pytest.mark.parametrize(
    "name, kernel, passes", [("numpy", Laplace(1.0), 1), ("stored", Laplace(1.0), 50), ("custom", Linear(), 1)]
)
def test_an_engine_that_is_off_is_not_chosen(chosen, x64, name, kernel, passes):
    X = np.random.default_rng(0).normal(size=(3000 if name == "stored" else 40, 3))
    assert product(kernel, X, passes=passes).engine == name
    chosen(f"-{name}")
    assert product(kernel, X, passes=passes).engine != name


@pytest.fixture
def on_gpu(chosen, monkeypatch, tmp_path):
    """As on a GPU that was never checked."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(devices, "is_host", lambda: False)
    engines.verdicts.cache_clear()
    yield tmp_path
    engines.verdicts.cache_clear()


def passes():
    return Verdict(1e-7, 1e-6)


def never():
    raise AssertionError("checked")


def test_nothing_is_checked_on_the_cpu(on_gpu, monkeypatch):
    monkeypatch.setattr(devices, "is_host", lambda: True)
    assert engines.usable("triton", "GaussianForm", never)


def test_the_first_check_of_an_engine_is_remembered(on_gpu):
    assert engines.usable("triton", "GaussianForm", passes)
    assert engines.usable("triton", "GaussianForm", never)
    engines.verdicts.cache_clear()  # as in the next process
    assert engines.usable("triton", "GaussianForm", never)
    (file,) = (on_gpu / "unlazy" / "checks").iterdir()
    stored = json.loads(file.read_text())
    assert stored["verdicts"] == {"triton GaussianForm": ["1e-07", "1e-06"]}
    assert stored["jax"] == jax.__version__ and stored["driver"]


def test_another_driver_is_checked_again(on_gpu, monkeypatch):
    assert engines.usable("triton", "GaussianForm", passes)
    monkeypatch.setattr(engines, "_driver", lambda: "999.1")
    engines.verdicts.cache_clear()
    with pytest.warns(UnlazyWarning, match="raises AssertionError: checked"):
        engines.usable("triton", "GaussianForm", never)


@pytest.mark.parametrize("error", [1e-3, float("inf"), float("nan")])
def test_an_engine_that_fails_is_named_and_not_used(on_gpu, error):
    with pytest.warns(UnlazyWarning, match=r"'mosaic' \(MaternForm\) is off by .*: plain XLA is used instead"):
        assert not engines.usable("mosaic", "MaternForm", lambda: Verdict(error, 1e-6))
    assert not engines.usable("mosaic", "MaternForm", never)
    engines.verdicts.cache_clear()
    assert not engines.usable("mosaic", "MaternForm", never)
    assert engines.usable("mosaic", "GaussianForm", passes)


def test_an_exception_is_a_failure_but_full_memory_is_not(on_gpu):
    def full():
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")

    with pytest.warns(UnlazyWarning, match="raises AssertionError"):
        assert not engines.usable("conv_triton", "NTK", never)
    assert engines.usable("conv_triton", "NNGP", full)
    assert "conv_triton NNGP" not in engines.verdicts()


def test_a_named_engine_needs_no_check(on_gpu, chosen):
    chosen("triton")
    assert engines.usable("triton", "GaussianForm", never) and not engines.usable("mosaic", "GaussianForm", never)
    chosen("-mosaic")
    assert not engines.usable("mosaic", "GaussianForm", never)
    with pytest.warns(UnlazyWarning):
        engines.usable("triton", "GaussianForm", never)


def test_a_check_runs_while_a_program_is_traced(on_gpu):
    """Inside a trace every operation would become part of that program: the check has a thread of its own."""

    def check():
        return Verdict(float(jnp.sum(jnp.arange(4.0))), 10.0)

    @jax.jit
    def program(x):
        return x + 1 if engines.usable("triton", "AngleForm", check) else x

    assert program(1.0) == 2.0
    assert engines.verdicts()["triton AngleForm"] == (6.0, 10.0)


def test_a_folder_that_cannot_be_written_is_no_error(on_gpu, monkeypatch):
    (on_gpu / "unlazy").write_text("a file")
    assert engines.usable("triton", "GaussianForm", passes) and engines.usable("triton", "GaussianForm", never)
