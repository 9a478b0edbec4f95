# `make demo` shows what partial averaging does; `make test` runs every test, `make test-fast` those
# that are quick; `make docs` builds the site. All set up first.

PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

.PHONY: demo test test-mathematics test-system test-fast check docs setup clean

# Tests start many programs: without a cache each of them would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

demo: $(READY)
	$(BIN)/partavg compare

# Shapes of tensors are checked, and coverage is measured, in the tests of the mathematics:
# both would slow the others down.
MATHEMATICS := core solvers
TESTS_OF_IT := $(MATHEMATICS:%=tests/%) tests/test_personal.py \
	tests/backends/test_numbers.py tests/backends/test_outer_steps.py \
	tests/backends/test_listening.py tests/backends/test_freezing.py \
	tests/backends/test_private_simulations.py \
	tests/aggregates tests/attacks tests/data tests/engines tests/theory
# Those of the system wait for programs that they start, four tenths of the time with three at a time
# on two cores. With `make -j2 test` those of the mathematics take what is left, and no more: with
# the same priority they made each other twice as slow.
PYTEST := $(BIN)/python -m pytest --dist worksteal -n

test: test-mathematics test-system

test-mathematics: $(READY)
	nice $(PYTEST) 2 $(TESTS_OF_IT) $(MATHEMATICS:%=--cov=src/partavg/%) \
		--cov-branch --cov-report= --cov-fail-under=95

test-system: $(READY)
	JAXTYPING_DISABLE=1 $(PYTEST) 3 $(TESTS_OF_IT:%=--ignore=%)

test-fast: $(READY)  # what takes long is left out
	$(PYTEST) 3 -m 'not slow'

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(READY)  # the site, in docs/_build; a warning is an error
	$(BIN)/python -m sphinx -b html -W -n --keep-going -q docs docs/_build

setup: $(READY)

$(READY): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -c 'import sys; sys.exit("partavg needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint $(CONSTRAINTS) --editable '.[dev,docs,flower-simulation]'
	$(BIN)/python -c 'import tests.preloaded'  # compiles it once: all tests at once would, each for itself
	touch $(READY)

clean:
	rm -rf $(VENV) build dist docs/_build
