# Everything from a fresh clone with nothing but Python >= 3.11 and make: `make demo`, `make test`.
# The first call sets up .venv; later calls set nothing up again until pyproject.toml or constraints.txt change.

# The first interpreter that runs (a pyenv shim may not), is new enough and can make a virtual environment.
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
STAMP := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo test docs soak format clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile
	@echo "  PYTHON=/path/to/python chooses the interpreter for a new .venv"

setup: $(STAMP)  ## make .venv with the tested versions of everything

# Twice quiet: warnings of pip go, its errors stay.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: no Python >= 3.11 with venv found; set PYTHON=/path/to/python" >&2; exit 1; }
	@$(BIN)/python -c '' 2>/dev/null || { echo "making .venv with $(PYTHON)"; "$(PYTHON)" -m venv --clear .venv; }
	@echo "installing the package and its tools into .venv (the first time takes minutes)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)  ## set up, then run the main job on generated EEG
	@rm -rf cerebro-demo && $(BIN)/cerebro-eeg demo

test: $(STAMP)  ## set up, then linters, types, layer contract and tests; skipped tests are listed at the end
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest -n 2 --dist worksteal

# The tools of the site come on top of what the tests need.
.venv/.docs: $(STAMP)
	@echo "installing what the documentation needs"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

docs: .venv/.docs  ## the documentation site in docs/_build/html; the code of its pages and its gallery are run
	$(BIN)/python -m pytest -m docs -n 2 -q
	@$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

# MOABB has a place of its own: it needs an older python-dateutil than constraints.txt pins, and 200 MB that no other test
# needs. torch comes first, so that nothing asks for another one; the newest MOABB is taken, whatever it needs.
MOABB := .venv-moabb
$(MOABB)/.installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: no Python >= 3.11 with venv found; set PYTHON=/path/to/python" >&2; exit 1; }
	@echo "making $(MOABB) with the newest MOABB (1.5 GB, some minutes)"; "$(PYTHON)" -m venv --clear $(MOABB)
	@$(MOABB)/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt torch
	@$(MOABB)/bin/python -m pip install -qq --disable-pip-version-check -e '.[moabb]' pytest pytest-timeout hypothesis
	@touch $@

# braindecode, torchinfo and peft have a place of their own, too: 1 GB of packages that no other test needs. braindecode
# imports torchaudio, whose compiled part fits one build of torch only; where it does not load, it is taken away.
PEERS := .venv-peers
$(PEERS)/.installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: no Python >= 3.11 with venv found; set PYTHON=/path/to/python" >&2; exit 1; }
	@echo "making $(PEERS) with the newest braindecode and peft (2 GB, some minutes)"; "$(PYTHON)" -m venv --clear $(PEERS)
	@$(PEERS)/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt torch
	@$(PEERS)/bin/python -m pip install -qq --disable-pip-version-check -e '.[moabb]' braindecode torchinfo peft \
		pytest pytest-timeout hypothesis
	@$(PEERS)/bin/python -c 'import braindecode' 2>/dev/null || \
		rm -f $(PEERS)/lib/python3.*/site-packages/torchaudio/lib/*.so
	@touch $@

soak: $(STAMP) $(MOABB)/.installed $(PEERS)/.installed  ## what `make test` leaves out: long tests, MOABB, braindecode, peft
	$(BIN)/python -m pytest -m soak --timeout 0
	$(MOABB)/bin/python -m pytest tests/data/datasets/test_moabb.py
	$(PEERS)/bin/python -m pytest tests/model/test_zoo.py tests/model/test_peft.py tests/model/test_moabb_pipelines.py \
		tests/bench/test_finetune_bench.py

format: $(STAMP)  ## sort imports and format the code
	$(BIN)/ruff check --select I --fix
	$(BIN)/ruff format

clean:  ## remove everything that make made here, .venv too
	rm -rf .venv $(MOABB) $(PEERS) docs/_build docs/examples docs/sg_execution_times.rst build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find src tests benchmarks recipes tools -name __pycache__ -type d -prune -exec rm -rf {} +
