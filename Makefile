PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help setup demo test check chaos bench clean
help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/pip install --quiet -c constraints.txt -e . --group dev
	touch $@

setup: $(VENV)/ready  ## make the virtual environment

test: setup  ## set up and run the whole test suite
	$(BIN)/pytest -q $(ARGS)

check: setup  ## linters, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	test -L src/proctor/manager && test -L src/proctor/sdk
	$(BIN)/mypy
	PYTHONPATH=src $(BIN)/lint-imports
