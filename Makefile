# Two commands for everybody: `make demo` and `make test`. Both make .venv; neither installs or starts an engine.
# `make docker` (as root, on Debian) does that, and builds the kernel image.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-$(shell cksum < pyproject.toml | tr ' ' '-')

.PHONY: demo test docker lint venv clean

venv: $(STAMP)

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "research_gym needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Say which: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' \
		|| { echo "$(PYTHON) cannot make virtual environments; on Debian: apt-get install python3-venv" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	rm -f $(VENV)/.installed-*
	touch $@

demo: venv
	$(BIN)/research-gym prepare Mini/digits-v0 Mini/mend-perceptron-v0
	$(BIN)/research-gym run Mini/digits-v0 --policy reference
	$(BIN)/research-gym run Mini/mend-perceptron-v0 --policy reference

test: venv
	$(BIN)/python -m pytest -q

lint: venv
	$(BIN)/ruff check .
	$(BIN)/mypy

.PHONY: docs
docs: venv
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

docker: venv
	images/start-engine
	base="$$($(BIN)/python images/build_base.py)" && $(BIN)/python images/build_kernel.py --base "$$base"

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
