# The two commands a newcomer needs are `make demo` and `make test`; each sets up a .venv by itself.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEMO   := $(VENV)/.installed-demo
# Where torch comes without CUDA: 200 MB instead of gigabytes. It is asked where there is no NVIDIA GPU.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
PIP    := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
# Threads that spin while they wait collapse beside another process (docs/speed.md).
export OMP_WAIT_POLICY ?= passive

.PHONY: help demo browser test test-all test-wheel lint docs docs-tables bench clean

help:
	@echo "make demo      watch a model unmask text, and see the effect of float32 truncation"
	@echo "make test      lint and the ordinary tests (under 10 minutes on 2 cores)"
	@echo "make test-all  the long tests too"
	@echo "make test-wheel  build wheel and sdist, and try each in a venv of its own"
	@echo "make lint      ruff, mypy --strict on src, and the direction of imports"
	@echo "make docs      build the documentation in site/, strictly, check its links, run the notebooks"
	@echo "make docs-tables  write the tables of README and docs again, from docs/results/*.json"
	@echo "make browser   as root on Debian: install the Chromium that the tests of the page drive"
	@echo "make bench     benchmarks: ratios measured in one run"
	@echo "make clean     remove the .venv and caches"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "unmask needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) -V): run make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Setting up $(VENV), once; torch comes first (200 MB), then the rest: one to three minutes in all"
	@$(PYTHON) -m venv $(VENV)
	@command -v nvidia-smi >/dev/null || $(PIP) --no-deps --retries 0 --timeout 5 --index-url $(TORCH_INDEX) torch 2>/dev/null || true

# A file that is older than its prerequisites is installed again; the venv itself is made once.
$(DEMO): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing what the demo needs"
	@$(PIP) -e '.[plot,serve]'
	@touch $@

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing what development needs: two to five minutes"
	@$(PIP) -e '.[dev]'
	@touch $@ $(DEMO)

demo: $(DEMO)
	@echo "The demo takes about a minute"
	@$(BIN)/python -m examples.demo

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
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto -m '' tests notebooks

test-wheel: $(STAMP)
	$(BIN)/pytest -m slow tests/test_install.py

docs-tables: $(STAMP)
	$(BIN)/python -m benchmarks.tables

docs: $(STAMP)
	$(BIN)/zensical build --strict
	$(BIN)/pytest tests/test_site.py tests/test_docs.py notebooks

bench: $(STAMP)
	$(BIN)/python -m benchmarks.sampling --output sampling.json --picture sampling.png
	$(BIN)/python -m benchmarks.serving
	$(BIN)/python -m benchmarks.traffic --output traffic.json
	$(BIN)/python -m benchmarks.train

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
