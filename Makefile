# make test   everything that CI checks        make demo   the policies over a slow wire, as one table
# make bench  everything that is measured, about an hour; QUICK=1: the short form, under five minutes
# make bed    the tests of the benches' test bed, on real links and quotas, as root
# Each alone is enough on a fresh machine with python3 and a compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA ?=
QUICK ?=

.PHONY: test demo bench bed lint clean

$(VENV)/.installed: pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev,bench]'
	touch $@

# The extension is built by the installation; a changed source needs a new build.
$(VENV)/.built: $(VENV)/.installed $(wildcard sophon_loader/native/*.[ch])
	$(BIN)/python setup.py --quiet build_ext --inplace
	touch $@

test: lint
	$(BIN)/python -m pytest -m "not bed"

lint: $(VENV)/.built
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

demo: $(VENV)/.built
	$(BIN)/python -m examples.demo $(if $(DATA),--data $(DATA))

bench: $(VENV)/.built
	$(BIN)/python -m bench --all $(if $(DATA),--data $(DATA)) $(if $(QUICK),--quick)

bed: $(VENV)/.built
	$(BIN)/python -m pytest -m bed

clean:
	rm -rf $(VENV) .venv-peers build *.egg-info demo-data
