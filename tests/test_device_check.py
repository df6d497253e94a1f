"""`unlazy check` passes here, and fails for every engine whose program is broken on purpose."""

import importlib
import json
import time
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from unlazy import cli
from unlazy.core import devices, engines
from unlazy.core.errors import UnlazyWarning
from unlazy.core.reference import UNIT, error, float64_gram
from unlazy.device_check import cases, check, reference_kernels
from unlazy.device_check.compositions import CONV, VECTORS, points
from unlazy.estimators.feature_search import kernel_model
from unlazy.kernels.conv_gpu import dispatch, hopper_program, triton_program
from unlazy.kernels.conv_gpu import first_check as first_conv_check
from unlazy.layers import Conv, Dense, GlobalAvgPool, serial
from unlazy.products.engines import base, blocked, numpy_engine
from unlazy.products.fused import first_check, fused_product, hopper, triton
from unlazy.products.fused.fused_forms import GaussianForm
from unlazy.products.multiply import Job, cheapest
from unlazy.solvers.methods.direct import Direct
from unlazy.solvers.methods.nystrom_cg import NystromCG
from unlazy.solvers.methods.preconditioned_cg import PreconditionedCG
from unlazy.training.rfm import large_n_fit

agop_module = importlib.import_module("unlazy.products.agop")  # the package has a function of this name
FACTOR = 1 + 1e-3
on_cpu = pytest.mark.skipif(not devices.is_host(), reason="engines of the CPU, and interpreted programs")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    """Verdicts of tests are not those of the machine. Broken programs are compiled again, and so is the next one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    engines.verdicts.cache_clear()
    jax.clear_caches()
    yield
    engines.verdicts.cache_clear()
    jax.clear_caches()


def broken(function):
    """The function with all its results multiplied by a wrong constant."""
    return lambda *given, **options: jax.tree.map(lambda a: a * FACTOR, function(*given, **options))


@pytest.mark.slow_cases("ntk_erf", "sum", "ntk_biases", "nngp", "metric", "matern")
@pytest.mark.parametrize("name", reference_kernels.GRAMS)
def test_formulas_are_those_of_the_library(name):
    """Both in float64: angles of duplicates from cosines have an error √u = 1e-8."""
    X, Z = points(20), points(30, seed=1)
    Z[0] = X[0]
    K = reference_kernels.GRAMS[name](X.astype(float), Z.astype(float))
    # a metric has 20 columns, and its root is computed in float32
    assert error(K, float64_gram(VECTORS[name](), X, Z)) <= (20 * UNIT if name == "metric" else 1e-7)


PLANTED = {
    "blocked": ((blocked, "apply"), partial(cases.multiply, "gaussian")),
    "stored": ((base, "_dot"), partial(cases.multiply, "laplace", (300, 300), passes=50)),
    "numpy": ((numpy_engine, "_matmul_blocks"), partial(cases.multiply, "laplace", dtype="float64")),
    "custom": ((base, "_times"), partial(cases.multiply, "linear")),
    "agop": ((agop_module, "agop_blocks"), partial(cases.gradients, "laplace")),
}


@pytest.mark.slow_cases("agop", "stored")
@on_cpu
@pytest.mark.parametrize("engine", PLANTED)
def test_a_wrong_constant_is_found(engine, monkeypatch):
    (module, name), run = PLANTED[engine]
    right = run()
    assert right.engine == engine and right.error <= right.bound
    jax.clear_caches()
    monkeypatch.setattr(module, name, broken(getattr(module, name)))
    wrong = run()
    assert wrong.engine == engine and wrong.error > wrong.bound


@pytest.mark.slow_cases("NystromCG", "Direct")
@on_cpu
@pytest.mark.parametrize("kind", [Direct, PreconditionedCG, NystromCG])
def test_wrong_coefficients_are_found(kind, monkeypatch):
    solve = kind.solve

    def wrong(self, problem, callback):
        found = solve(self, problem, callback)
        return found._replace(coefficients=FACTOR * found.coefficients)

    run = partial(cases.regress, kind.name)
    assert run().error <= cases.TOLERANCE
    monkeypatch.setattr(kind, "solve", wrong)
    assert run().error > cases.TOLERANCE


@on_cpu
def test_a_wrong_update_of_the_metric_is_found(monkeypatch):
    """The metric has trace one, so that the fault is in one entry."""

    def wrong(*given, **options):
        M = np.array(agop_module.agop(*given, **options))
        M[0, 0] *= FACTOR
        return M

    right = cases.metric_update()
    assert right.error <= right.bound
    monkeypatch.setattr(large_n_fit, "agop", wrong)
    assert cases.metric_update().error > right.bound


@on_cpu
def test_a_wrong_feature_machine_is_found(monkeypatch):
    right = cases.machine()
    assert right.error <= right.bound
    monkeypatch.setattr(kernel_model, "_kernel_sums", broken(kernel_model._kernel_sums))
    assert cases.machine().error > right.bound


def _interpreter():
    params = pytest.importorskip("jax._src.pallas.mosaic_gpu.interpret.params")
    return params.InterpretGPUParams()


@on_cpu
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["triton", "mosaic"])
def test_a_wrong_fused_product_is_found(engine, monkeypatch):
    module = hopper if engine == "mosaic" else triton
    if module.backend is None:
        pytest.skip("this JAX does not have the backend")
    if engine == "mosaic":
        multiply = partial(fused_product.matmul, tile=hopper.HopperTile(1, 64, 2, 1), interpret=_interpreter())
    else:
        multiply = partial(fused_product._multiply_by, engine, interpret=True)
    assert first_check.verdict(GaussianForm, multiply).passed
    jax.clear_caches()
    monkeypatch.setattr(module, "product", broken(module.product))
    assert not first_check.verdict(GaussianForm, multiply).passed


@pytest.mark.nightly_cases("conv_mosaic-8")
@on_cpu
@pytest.mark.slow
@pytest.mark.parametrize("engine, size", [("conv_triton", 4), ("conv_mosaic", 8)])
def test_a_wrong_convolution_is_found(engine, size, monkeypatch):
    module = hopper_program if engine == "conv_mosaic" else triton_program
    if module.backend is None:
        pytest.skip("this JAX does not have the backend")
    net = serial(Conv(3), "relu", GlobalAvgPool(), Dense())
    evaluate = partial(dispatch._run_alone, engine, False, interpret=True)
    assert first_conv_check.verdict(False, evaluate, net, size).passed
    jax.clear_caches()
    monkeypatch.setattr(module, "run", broken(module.run))
    assert not first_conv_check.verdict(False, evaluate, net, size).passed


@pytest.fixture
def few_cases(monkeypatch):
    """Function that replaces the cases of the check."""

    def replace(*some):
        monkeypatch.setattr(check, "all_cases", lambda: iter(some))

    return replace


def right():
    return cases.Measured("mosaic", 1e-7, 1e-6, ("mosaic GaussianForm",), 1e-3, 2e-3)


def wrong():
    return cases.Measured("conv_mosaic + conv_triton", 1e-2, 1e-6, ("conv_mosaic NTK", "conv_triton NTK"))


def crash():
    raise RuntimeError("no such\ninstruction")


def test_a_check_that_passes(few_cases):
    few_cases(cases.Case("a", right), cases.Case("b", right))
    result = check.check_device()
    assert result.passed and len(result.rows) == 2 and result.failed_engines == ()
    assert "all 2 passed" in str(result) and "1 ms" in str(result) and "2 ms" in str(result)
    assert engines.verdicts() == {"mosaic GaussianForm": (1e-7, 1e-6)}


def test_an_engine_that_fails_is_named_and_remembered(few_cases):
    few_cases(cases.Case("a", right), cases.Case("b", wrong), cases.Case("c", crash))
    result = check.check_device()
    assert not result.passed and result.failed_engines == ("conv_triton", "conv_mosaic")
    assert "2 of 3 failed" in str(result) and "UNLAZY_ENGINES=-conv_triton,-conv_mosaic" in str(result)
    assert "RuntimeError: no such instruction" in str(result)
    assert not engines.verdicts()["conv_triton NTK"].passed and engines.verdicts()["mosaic GaussianForm"].passed


def test_the_worst_of_several_cases_counts(few_cases):
    few_cases(*(cases.Case("a", lambda e=e: right()._replace(error=e)) for e in (1e-7, 1e-3, 1e-8)))
    check.check_device()
    assert engines.verdicts()["mosaic GaussianForm"].error == 1e-3


def test_no_case_is_begun_after_the_time(few_cases):
    few_cases(cases.Case("a", right), cases.Case("b", right))
    result = check.check_device(seconds=1e-9)
    assert [row.case for row in result.rows] == ["a"] and result.not_run == ("b",)
    with pytest.raises(ValueError, match="seconds must be positive, got 0"):
        check.check_device(seconds=0)


def test_the_command_writes_json_and_exits_with_the_outcome(few_cases, tmp_path):
    few_cases(cases.Case("a", right))
    done = CliRunner().invoke(cli.app, ["check", "--json", str(tmp_path / "check.json")])
    assert done.exit_code == 0 and "all 1 passed" in done.output
    few_cases(cases.Case("a", right), cases.Case("c", crash))
    done = CliRunner().invoke(cli.app, ["check", "--json", str(tmp_path / "check.json")])
    assert done.exit_code == 1 and "1 of 2 failed" in done.output
    read = json.loads((tmp_path / "check.json").read_text())
    assert read["passed"] is False and read["rows"][1]["error"] is None and read["rows"][1]["problem"]
    assert read["rows"][0] | {"case": "a", "engine": "mosaic", "passed": True} == read["rows"][0]


def test_an_unknown_engine_stops_the_command(monkeypatch):
    monkeypatch.setenv(engines.VARIABLE, "hopper")
    done = CliRunner().invoke(cli.app, ["check"])
    assert done.exit_code == 2 and "unknown engine 'hopper'" in done.output


@pytest.fixture
def fake_gpu(monkeypatch):
    """Engines are chosen as on a GPU that was never checked; nothing runs."""
    monkeypatch.delenv(engines.VARIABLE, raising=False)
    monkeypatch.setattr(devices, "kind", lambda: "gpu")
    monkeypatch.setattr(devices, "is_host", lambda: False)


@pytest.mark.skipif(triton.backend is None, reason="this JAX has no Triton backend for Pallas")
@pytest.mark.parametrize("found, engine", [(1e-7, "fused"), (1e-3, "blocked")])
def test_the_first_product_on_a_gpu_is_checked(fake_gpu, monkeypatch, found, engine):
    asked = []
    monkeypatch.setattr(devices, "is_hopper", lambda: False)
    monkeypatch.setattr(
        first_check, "verdict", lambda kind, multiply: asked.append(kind) or engines.Verdict(found, 1e-5)
    )
    job = Job(VECTORS["gaussian"](), points(50), passes=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnlazyWarning)
        assert [cheapest(job).name for _ in range(2)] == [engine] * 2
    assert asked == [GaussianForm]


@pytest.mark.skipif(triton_program.backend is None, reason="this JAX has no Triton backend for Pallas")
@pytest.mark.parametrize("failing, warps", [((), 2), (("conv_mosaic",), 0), (("conv_triton",), 2)])
def test_the_first_convolution_on_a_gpu_is_checked(fake_gpu, monkeypatch, failing, warps):
    """Two stages of 16 and 8 pixels, which either program can run alone."""

    def verdict(tangent, evaluate):
        return engines.Verdict(1e-3 if evaluate.args[0] in failing else 1e-7, 1e-5)

    monkeypatch.setattr(devices, "is_hopper", lambda: True)
    monkeypatch.setattr(hopper_program, "is_lowered", lambda: True)
    monkeypatch.setattr(first_conv_check, "verdict", verdict)
    X = jnp.asarray(points(2, images=True, size=16))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnlazyWarning)
        assert dispatch.plan_for(CONV, X, True).warps == warps
        monkeypatch.setenv(engines.VARIABLE, "-conv_mosaic,-conv_triton")
        assert dispatch.plan_for(CONV, X, True) is None


def test_a_gpu_runs_timed_cases_alone_and_last(monkeypatch):
    running, most, order = set(), {}, []

    def run(name):
        def measure():
            running.add(name)
            time.sleep(0.01)
            most[name] = len(running)
            running.discard(name)
            order.append(name)
            return cases.Measured(name, 0.0, 1.0, (f"engine {name}",))

        return measure

    names = [f"case {i}" for i in range(6)]
    monkeypatch.setattr(check, "all_cases", lambda: (cases.Case(n, run(n), n in names[:2]) for n in names))
    monkeypatch.setattr(check.devices, "is_host", lambda: False)
    monkeypatch.setattr(check, "available_cores", lambda: 4)
    monkeypatch.setattr(check.engines, "remember", lambda found: None)
    result = check.check_device()
    assert [row.case for row in result.rows] == [*names[2:], *names[:2]]
    assert all(row.engine == row.case for row in result.rows)
    assert order[-2:] == names[:2] and most[names[0]] == most[names[1]] == 1
    assert max(most.values()) > 1
    assert check.check_device(seconds=1e-9).not_run == (*names[3:], *names[:2])
