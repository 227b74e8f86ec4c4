# make test   everything that CI checks        make demo   the policies over a slow wire, as one table
# Each alone is enough on a fresh machine with python3 and a compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA ?=

.PHONY: test demo lint clean

$(VENV)/.installed: pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev,bench]'
	touch $@

# The extension is built by the installation; a changed source needs a new build.
$(VENV)/.built: $(VENV)/.installed $(wildcard sophon_loader/native/*.[ch])
	$(BIN)/python setup.py --quiet build_ext --inplace
	touch $@

test: lint
	$(BIN)/python -m pytest

lint: $(VENV)/.built
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

demo: $(VENV)/.built
	$(BIN)/python -m examples.demo $(if $(DATA),--data $(DATA))

clean:
	rm -rf $(VENV) build *.egg-info demo-data
