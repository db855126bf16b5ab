# The two commands a newcomer needs are `make demo` and `make test`; each sets up a .venv by itself.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Threads that spin while they wait collapse beside another process (docs/speed.md).
export OMP_WAIT_POLICY ?= passive

.PHONY: help demo browser test test-all lint bench clean

help:
	@echo "make demo      see a model unmask text, and the float32 fault shown and gone"
	@echo "make test      lint and the ordinary tests (under 10 minutes on 2 cores)"
	@echo "make test-all  the long tests too"
	@echo "make lint      ruff, mypy --strict on src, and the direction of imports"
	@echo "make browser   as root on Debian: install the Chromium that the tests of the page drive"
	@echo "make bench     benchmarks: ratios measured in one run"
	@echo "make clean     remove the .venv and caches"

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "unmask needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) -V): run make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Setting up $(VENV) (once; a few minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)
	@$(BIN)/python -m unmask.cli.demo

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# For the tests of the page; without a browser they are skipped and say so. Nothing else installs system packages.
browser:
	command -v chromedriver || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver; }

test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto

test-all: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto -m ''

bench: $(STAMP)
	$(BIN)/python -m benchmarks.sampling --output sampling.json --picture sampling.png
	$(BIN)/python -m benchmarks.serving
	$(BIN)/python -m benchmarks.train

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
