# `make demo` and `make test` need nothing but make and Python >= 3.11.
# Choose an interpreter with `make PYTHON=python3.12 ...`; extras for `pip install` with `make EXTRAS=all ...`.

SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin
EXTRAS ?= dev
ALLOWED = import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c '$(ALLOWED)' 2>/dev/null && echo $$p && break; done)

.PHONY: help demo test lint format docs bench clean

help:
	@echo "make demo    an LSTM policy learns in a few minutes; pictures and a table of what its units did"
	@echo "make test    all tests"
	@echo "make lint    ruff, pyright, import rules"
	@echo "make docs    the documentation, in docs/_build/html"
	@echo "make bench   speed on this machine"
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

clean:
	rm -rf $(VENV) .cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist docs/_build *.egg-info
