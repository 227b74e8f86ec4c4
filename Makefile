# make test   everything that CI checks        make unit   what needs no agent, in under a minute
# make demo   the policies over a slow wire, as one table
# make bench  everything that is measured, about an hour; QUICK=1: the short form, under five minutes
# make soak   random faults for MINUTES, and whether anything grows; make fuzz: each fuzz target for MINUTES
# make bed    the tests of the benches' test bed, on real links and quotas, as root
# Each alone is enough on a fresh machine with python3 and a compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA ?=
QUICK ?=
MINUTES ?= 5
# Test processes: one more than cores, since much of what starts agents and workers waits for them.
JOBS ?= 3
# What starts no agent, and what starts many processes.
UNIT := tests/unit tests/contract tests/native tests/property tests/fuzz --ignore tests/property/test_held_batches.py
WHOLE := tests/e2e tests/faults tests/pages tests/property/test_held_batches.py

.PHONY: test unit demo bench bed soak fuzz lint clean

$(VENV)/.installed: pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev,bench]'
	touch $@

# The extension is built by the installation; a changed source needs a new build.
$(VENV)/.built: $(VENV)/.installed $(wildcard sophon_loader/native/*.[ch])
	$(BIN)/python setup.py --quiet build_ext --inplace
	touch $@

test: lint unit
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "not alone and not bed" $(WHOLE)
	$(BIN)/python -m pytest -m alone $(WHOLE)

# One thread in each process: there are more of them than cores.
unit: $(VENV)/.built
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) $(UNIT)

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
	$(BIN)/python -m pytest -m bed tests/e2e/test_testbed.py

soak: $(VENV)/.built
	$(BIN)/python -m tests.faults.soak --minutes $(MINUTES)

# The JPEG crop under libFuzzer needs clang; the other targets use atheris where it is installed.
fuzz: $(VENV)/.built
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)
	$(BIN)/python -m tests.native.fuzz --minutes $(MINUTES)

clean:
	rm -rf $(VENV) .venv-peers build *.egg-info demo-data
