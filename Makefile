# Two commands: `make demo` shows theorems confronted with measurements; `make test` checks everything fast.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.cache/jax
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0

.PHONY: demo test fast slow lint types docs figures browser-tools clean

demo: $(VENV)/.installed
	$(BIN)/unlazy demo

test: $(VENV)/.installed-dev
	$(MAKE) --no-print-directory -j 2 lint fast

# programs compiled in a hurry, twice as quickly: what users run is compiled in the slow suite
fast: $(VENV)/.installed-dev
	UNLAZY_TEST_COMPILER=quick $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

# What is nearly all compilation compiles in a hurry; experiments, estimators and comparisons, half of it, with LLVM's
# cheaper passes, which run as quickly; solvers, and plain `pytest -m slow`, as users do. A thread each: two workers'
# BLAS threads would wait for each other. Shapes are checked at run time in the fast suite: a tenth of this one. ROOMS
# names files or folders where not all are wanted.
SLOW := OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -o addopts="-q --strict-markers" -n 2 --dist loadfile \
	--no-loadscope-reorder -m slow --durations=25 --durations-min=10
BRISK := tests/experiments tests/estimators tests/comparison tests/lab tests/products tests/test_fuzz_inputs.py
LIMITS := $(wildcard $(addprefix tests/experiments/test_,dial*.py adaptive_kernel*.py features_at*.py rich_limit*.py)) \
	tests/estimators/test_every_estimator.py
AS_USERS := tests/solvers
slow: $(VENV)/.installed-dev
ifdef ROOMS
	$(SLOW) $(ROOMS)
else
	UNLAZY_TEST_COMPILER=quick $(SLOW) $(LIMITS) \
		$(filter-out $(BRISK) $(AS_USERS),$(wildcard tests/test_*.py) $(patsubst %/,%,$(filter-out tests/data/,$(wildcard tests/*/))))
	UNLAZY_TEST_COMPILER=brisk $(SLOW) $(BRISK) $(addprefix --ignore=,$(LIMITS))
	$(SLOW) $(AS_USERS)
endif

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check src tests benchmarks examples docs
	$(BIN)/ruff format --check --quiet src tests benchmarks examples docs
	$(BIN)/lint-imports

types: $(VENV)/.installed-dev
	$(BIN)/mypy

docs: $(VENV)/.installed-docs
	$(BIN)/sphinx-build -W --keep-going -q docs docs/_build/html
	@echo "docs/_build/html/index.html"

figures: $(VENV)/.installed-docs
	$(BIN)/unlazy run all
	$(BIN)/python docs/collect.py results

# what two tests of the page in tests/play need beside Chromium: they are left out where it is not there
browser-tools:
	npm install --silent --no-fund --no-audit --prefix .cache/npm axe-core typescript

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# uv installs in a tenth of pip's time; where it cannot be had, pip does it alone
PIP = $(BIN)/pip install --quiet --disable-pip-version-check
INSTALL = install() { { $(PIP) uv 2>/dev/null && VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet -e "$$1"; } \
	|| $(PIP) -e "$$1"; }; install

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(INSTALL) .
	touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	$(INSTALL) ".[dev]"
	touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml | $(VENV)/bin/python
	$(INSTALL) ".[docs]"
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
