"""Fast tests share compiled programs through JAX's persistent cache, kept out of git."""

import gc
import os
import sys
from pathlib import Path

_CACHE = Path(__file__).resolve().parent.parent / ".cache" / "jax"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# Batched decompositions in one program can wait for each other on jaxlib's thread pool where cores are few.
os.environ.setdefault("PJRT_NPROC", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
# Test workers and the processes that tests start share one GPU, where there is one.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("UNLAZY_ENGINES", "all")  # on a GPU no program is checked before its first use: tests do that
import jaxlib.version  # noqa: E402


def _flag(text):
    os.environ["XLA_FLAGS"] = f"{text} {os.environ.get('XLA_FLAGS', '')}"


# Threads of the interpreter of Mosaic programs wait for each other inside XLA: steps of one thread side by side would
# then wait for the pool that those who wait have taken. Unknown flags are fatal.
if jaxlib.version.__version_info__ < (0, 13):
    _flag("--xla_cpu_enable_concurrency_optimized_scheduler=false")
_COMPILER = os.environ.get("UNLAZY_TEST_COMPILER")
if _COMPILER in ("quick", "brisk"):  # `make test` and `make slow`: nearly all their time is XLA's compiler
    if _COMPILER == "quick":
        os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    else:  # all of XLA's own passes, and LLVM's that pay at once: what runs long runs as quickly
        _flag("--xla_backend_optimization_level=1")
    if jaxlib.version.__version_info__ < (0, 11):  # a third of it is MLIR's emitters, which later releases always use
        _flag("--xla_cpu_use_fusion_emitters=false")
    if jaxlib.version.__version_info__ < (0, 13):  # small programs gain nothing by being cut up for many threads
        _flag("--xla_cpu_parallel_codegen_split_count=1")

import jax  # noqa: E402
import pytest  # noqa: E402

# JAX's traces are millions of small objects that live long: looking for circles among them is 4% of a cold suite
gc.set_threshold(200_000, 20, 100)

FORGET = max(2**31, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8)
"""Bytes of a test process from which compiled programs are dropped between modules: 2 GiB, or more where there is."""


_LONGEST = (
    "test_images_by_kernels", "test_bars", "test_fuzz_inputs", "test_fixed_features_fail", "test_gram_store",
    "test_every_activation", "test_rich_limit_is_the_limit", "test_conformance", "test_images", "test_three_layers",
    "test_successive_halving", "test_comparison_kill", "test_guides", "test_reference_examples",
    "test_feature_emergence", "test_frobenius_nuclear", "test_convolution_limit", "test_adaptive_kernel_experiment",
    "test_resident_memory",
)  # fmt: skip
"""Files of a minute or more in the slow suite: begun first, so that no worker ends long after the other."""


_CASES = {"slow_cases": [pytest.mark.slow], "nightly_cases": [pytest.mark.slow, pytest.mark.nightly]}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark parameter sets named by `slow_cases` and `nightly_cases`, and start the longest files first."""
    for item in items:
        for name, marks in _CASES.items():
            cases = item.get_closest_marker(name)
            if cases is not None and item.callspec.id in cases.args:
                for mark in marks:
                    item.add_marker(mark)
    if config.option.markexpr.startswith("slow"):
        order = {name: i for i, name in enumerate(_LONGEST)}
        items.sort(key=lambda item: order.get(item.path.stem, len(order)))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish():
    """Skip the garbage collections at exit: pytest runs five, which take seconds with JAX's traces."""
    gc.freeze()


@pytest.fixture
def x64():
    """The test runs in float64."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True)
def close_figures():
    """pyplot keeps every figure until it is closed, and warns from the twenty-first on."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture(autouse=True, scope="module")
def check_types_anew():
    """The first calls of a function in each module are checked, where types are checked."""
    if "typecheck" in sys.modules:
        sys.modules["typecheck"].new_module()


@pytest.fixture(autouse=True, scope="module")
def forget_compiled_programs():
    """Drop compiled programs between modules once the process has grown: those of a whole suite take gigabytes."""
    yield
    from unlazy.lab.runner.resident_memory import resident  # here, so that shapes are checked in what it imports

    if (resident() or FORGET) >= FORGET:
        jax.clear_caches()
