# `make demo` and `make test` set everything up themselves: a virtual environment in .venv with
# the MLX that fits this machine. PYTHON names the interpreter to build it with (3.11 or later).

PYTHON ?= python3
BIN := .venv/bin
ifeq ($(shell uname -s),Darwin)
  EXTRA := dev
else ifneq ($(shell command -v nvidia-smi 2>/dev/null),)
  EXTRA := cuda13,dev
else
  EXTRA := cpu,dev
endif

.PHONY: demo test check soak bench clean

.venv/.ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Octavo needs Python 3.11 or later; name one: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRA)]'
	touch $@

demo: .venv/.ready
	$(BIN)/octavo demo

test: check
	$(BIN)/python -m pytest -m 'not soak' -n auto --maxprocesses 4 --dist worksteal

check: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

soak: .venv/.ready
	$(BIN)/python -m pytest -m soak

bench: .venv/.ready
	$(BIN)/octavo bench --report build/bench
	$(BIN)/python -m benchmarks.throughput

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
