# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := analysis prune recipes
# The lowest release of transformers that is admitted has an environment of its own.
LOWEST := .venv-lowest
ON_LOWEST := tests/test_families.py tests/analysis/test_sites.py tests/analysis/test_gates.py tests/prune/test_surgery.py \
	tests/prune/test_proof.py tests/prune/test_checkpoint.py tests/prune/test_rescue.py tests/prune/test_hub.py \
	tests/prune/test_layerwise.py tests/prune/test_recovery.py tests/prune/test_wide_steps.py tests/prune/test_own_code.py
# How many test processes; each loads torch, so not more than there are cores.
WORKERS ?= 2

.PHONY: demo test test-all test-lowest fuzz notebooks lint types contracts links clean

demo: $(VENV)/.demo ## analyse, prune, measure and report the embedded model
	$(BIN)/headwise demo

test: $(VENV)/.test lint types contracts ## whole suite on the newest transformers
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow"

test-all: $(VENV)/.test lint types contracts ## also every family x kernel x dtype, every kill; then the lowest transformers
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS)
	$(MAKE) test-lowest

test-lowest: $(LOWEST)/.test ## families, sites, gates, cuts, proofs, checkpoints, training and the hub on the lowest transformers
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -q -n $(WORKERS) $(ON_LOWEST)

fuzz: $(VENV)/.test ## recipes, 5,000 cases
	HEADWISE_FUZZ=5000 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/prune/test_recipe.py

notebooks: $(VENV)/.test ## run again and written with what they put out now
	HEADWISE_NOTEBOOKS=write $(BIN)/python -m pytest -q tests/test_notebooks.py

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

$(LOWEST)/.test: pyproject.toml constraints.txt constraints-lowest.txt
	$(PYTHON) -m venv $(LOWEST)
	awk -F== 'NR == FNR { own[$$1]; print; next } !($$1 in own)' constraints-lowest.txt constraints.txt > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --quiet --constraint $(LOWEST)/constraints.txt --editable '.[test]'
	touch $@

clean:
	rm -rf $(VENV) $(LOWEST) build dist links *.egg-info .pytest_cache .ruff_cache .mypy_cache
