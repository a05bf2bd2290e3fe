# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := analysis prune recipes
# How many test processes; each loads torch, so not more than there are cores.
WORKERS ?= 2

.PHONY: demo test test-all fuzz lint types contracts wheel links clean notebooks

demo: $(VENV)/.demo ## analyse, prune, measure and report the embedded model
	$(BIN)/headwise demo

test: $(VENV)/.test lint types contracts ## whole suite on the newest transformers
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow"

test-all: $(VENV)/.test lint types contracts ## also every family x kernel x dtype, every kill, the long fuzz
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS)

fuzz: $(VENV)/.test ## recipes, 5,000 cases
	HEADWISE_FUZZ=5000 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/prune/test_recipe.py

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test links
	$(BIN)/mypy -p headwise.analysis -p headwise.prune

contracts: $(VENV)/.test
	$(BIN)/lint-imports

links: ## one import name for the type checkers
	mkdir -p links/headwise
	for d in $(PACKAGES); do ln -sfn ../../$$d links/headwise/$$d; done

$(VENV)/.made:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "headwise needs Python 3.11 or newer: make PYTHON=python3.11 …")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	touch $@

$(VENV)/.demo: $(VENV)/.made pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[demo]'
	touch $@

$(VENV)/.test: $(VENV)/.made pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) build dist links *.egg-info .pytest_cache .ruff_cache .mypy_cache
