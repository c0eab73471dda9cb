# `make demo` and `make test` need nothing but make and Python >= 3.11.
# Choose an interpreter with `make PYTHON=python3.12 ...`; extras for `pip install` with `make EXTRAS=all ...`.

SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin
EXTRAS ?= dev
ALLOWED = import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c '$(ALLOWED)' 2>/dev/null && echo $$p && break; done)

.PHONY: help demo test test-versions test-oldest test-newest lint format docs bench browser clean

help:
	@echo "make demo    an LSTM policy learns in a few minutes; pictures and a table of what its units did"
	@echo "make test    all tests"
	@echo "make test-versions  the tests of the core on the oldest and on the newest supported versions"
	@echo "make lint    ruff, pyright, import rules"
	@echo "make docs    the documentation, in docs/_build/html"
	@echo "make bench   speed on this machine"
	@echo "make browser reports in headless Chromium, which has to be there"
	@echo "make clean   remove what these made"

# The demo installs what it needs and no more; the other targets need the development packages.
$(VENV)/.demo: pyproject.toml constraints.txt
	$(call install,demo)

$(VENV)/.dev: pyproject.toml constraints.txt
	$(call install,$(EXTRAS))
	@touch $(VENV)/.demo

define install
	@$(or $(PYTHON),false) -c '$(ALLOWED)' 2>/dev/null || { \
		echo "nnx-ppo needs Python >= 3.11, but $(if $(PYTHON),$(PYTHON) is older or missing,no python3 here is that new)."; \
		echo "Install it, or name one: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "==> environment in $(VENV), $$($(PYTHON) -V)"
	@$(PYTHON) -m venv $(VENV)
	@echo "==> installing nnx-ppo[$(1)]; the first time this takes a minute or two"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(1)]'
	@touch $@
endef

demo: $(VENV)/.demo
	@$(BIN)/nnx-ppo demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2

# Fresh environments in .cache/, made by uv: it resolves to the lowest versions that are allowed, which pip cannot.
OLDEST_PYTHON ?= 3.11
NEWEST_PYTHON ?= 3.13
PINS ?= -c constraints.txt
CORE := tests/test_*.py $(addprefix tests/,algorithms cli contracts envs networks recording recordings wrappers)

test-versions: test-oldest test-newest

test-oldest: $(VENV)/.dev
	$(call environment,oldest,$(OLDEST_PYTHON),--resolution lowest-direct)
	@.cache/oldest/bin/python .ci/lower_bounds.py
	.cache/oldest/bin/python -m pytest -n 2 $(CORE)

test-newest: $(VENV)/.dev
	$(call environment,newest,$(NEWEST_PYTHON),$(PINS))
	.cache/newest/bin/python -m pytest -n 2 $(CORE)

define environment
	@echo "==> environment in .cache/$(1): Python $(2), versions $(or $(3),the newest that fit together)"
	@$(BIN)/uv venv --quiet --clear --python $(2) .cache/$(1)
	@$(BIN)/uv pip install --quiet --python .cache/$(1)/bin/python $(3) -e '.[test]'
	@$(BIN)/uv pip list --quiet --python .cache/$(1)/bin/python | grep -E '^(jax|jaxlib|flax|optax|orbax-checkpoint|zarr) '
endef

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.dev
	$(BIN)/python -m pytest tests/docs
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks.run

browser: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[browser]'
	$(BIN)/python -m tests.browser.check_report

clean:
	rm -rf $(VENV) .cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist docs/_build *.egg-info
