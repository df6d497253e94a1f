# `make demo` shows theorems beside measurements; `make test` runs the fast checks.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.cache/jax
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0

.PHONY: demo test fast slow nightly gpu-test torch-test lint types docs figures browser-tools clean

demo: $(VENV)/.installed
	$(BIN)/unlazy demo

test: $(VENV)/.installed-dev
	$(MAKE) --no-print-directory -j 2 lint fast

# As many workers as cores: threads of their own would wait for each other, and those of OpenMP spin while they wait.
# Later runs reuse the bytecode of rewritten tests.
WORKERS := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

# Most XLA optimizations are off, which halves the time: programs as users compile them are tested in the slow suite.
fast: $(VENV)/.installed-dev
	UNLAZY_TEST_COMPILER=quick $(WORKERS)

# Run-time shape checks belong to the fast suite. Tests dominated by compilation use quick compilation; experiments,
# estimators and comparisons use LLVM's cheaper passes; solvers compile as users do. PARTS names files or folders if not
# everything is wanted; MARK=nightly runs the most expensive cases.
MARK ?= slow and not nightly
SLOW := $(WORKERS) -o addopts="-q --strict-markers" -m "$(MARK)" --durations=25 --durations-min=10
BRISK := tests/experiments tests/estimators tests/comparison tests/lab tests/products tests/test_fuzz_inputs.py
LIMITS := $(wildcard $(addprefix tests/experiments/test_,dial*.py adaptive_kernel*.py features_at*.py rich_limit*.py)) \
	tests/estimators/test_every_estimator.py
AS_USERS := tests/solvers
slow: $(VENV)/.installed-dev
ifdef PARTS
	$(SLOW) $(PARTS)
else
	UNLAZY_TEST_COMPILER=quick $(SLOW) $(LIMITS) \
		$(filter-out $(BRISK) $(AS_USERS),$(wildcard tests/test_*.py) $(patsubst %/,%,$(filter-out tests/data/,$(wildcard tests/*/))))
	UNLAZY_TEST_COMPILER=brisk $(SLOW) $(BRISK) $(addprefix --ignore=,$(LIMITS))
	$(SLOW) $(AS_USERS)
endif

nightly:
	$(MAKE) --no-print-directory slow MARK=nightly

# The whole fast suite and the uninterpreted programs on a GPU; a test that hangs is stopped.
gpu-test: $(VENV)/.installed-dev
	XLA_PYTHON_CLIENT_PREALLOCATE=false $(BIN)/pytest -n 12 --dist loadfile --timeout 300

# What `make test` skips unless PyTorch is installed: run after `.venv/bin/pip install torch flax`.
torch-test: $(VENV)/.installed-dev
	UNLAZY_TEST_COMPILER=quick $(WORKERS) $$(grep -rlE 'importorskip\("(torch|flax)' tests)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check src tests benchmarks examples docs tools
	$(BIN)/ruff format --check --quiet src tests benchmarks examples docs tools
	$(BIN)/lint-imports
	$(BIN)/python tools/check_glossary.py
	$(BIN)/python tools/check_docstrings.py
	$(BIN)/python tools/check_types.py

types: $(VENV)/.installed-dev
	$(BIN)/mypy

docs: $(VENV)/.installed-docs
	$(BIN)/sphinx-build -W --keep-going -q docs docs/_build/html
	@echo "docs/_build/html/index.html"

figures: $(VENV)/.installed-docs
	$(BIN)/unlazy run all
	$(BIN)/python docs/collect.py results

# What two tests of the page in tests/play need besides Chromium; they are skipped without it.
browser-tools:
	npm install --silent --no-fund --no-audit --prefix .cache/npm axe-core typescript

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# uv installs ten times as fast as pip, which is the fallback. Bytecode is compiled at installation.
PIP = $(BIN)/pip install --quiet --disable-pip-version-check
INSTALL = install() { { $(PIP) uv 2>/dev/null && VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --compile-bytecode -e "$$1"; } \
	|| $(PIP) -e "$$1"; }; install
# Neither compiles an editable package, and what cannot be compiled (templates of packages) does no harm.
BYTECODE = $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib/python*/site-packages src || true

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(INSTALL) .
	$(BYTECODE)
	touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	$(INSTALL) ".[dev]"
	$(BYTECODE)
	touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml | $(VENV)/bin/python
	$(INSTALL) ".[docs]"
	$(BYTECODE)
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
