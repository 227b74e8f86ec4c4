# make test   everything that CI checks        make unit   what needs no agent, in about a minute
# make long   slow properties and seeds, about an hour; by night
# make demo   the policies over a slow wire, as one table
# make bench  everything that is measured, about an hour; QUICK=1: the short form, under five minutes
# make soak   random faults for MINUTES, and whether anything grows; make fuzz: each fuzz target for MINUTES
# make bed    the tests of the benches' test bed, on real links and quotas, as root
# make findings   whether surprises of other software are still as findings/README.md says; installs them from the web
# Each alone is enough on a fresh machine with python3 and a compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA ?=
QUICK ?=
MINUTES ?= 5
FINDINGS ?= $(sort $(wildcard findings/*.sh))
# Other releases of Pillow for which `make long` holds programs and our C to what Pillow does.
PILLOWS ?= 11.0.0 11.3.0 12.1.1 12.3.0
# Test processes: two a core, on two, since much of what starts agents and workers waits for them.
JOBS ?= 4
# What starts no agent, and what starts many processes. Each test process runs one thread: there are more than cores.
UNIT := tests/unit tests/contract tests/native tests/property tests/fuzz --ignore tests/property/test_held_batches.py
WHOLE := tests/e2e tests/faults tests/pages tests/property/test_held_batches.py
# Where it is set, as in many containers, each of hundreds of processes compiles torch anew, for three seconds.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

.PHONY: test unit tests long demo bench bed soak fuzz findings lint lint-beside clean

$(VENV)/.installed: pyproject.toml setup.py
	@echo "Setting up $(VENV), once: torch, torchvision and what the tests need. With CUDA's libraries it takes 6.4 GB of disk;"
	@echo "without a GPU, PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make ... spares 5 GB of that."
	@$(PYTHON) -m venv $(VENV)
	-@$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip
	@$(BIN)/python .ci/install.py --editable '.[dev,bench]'
	@touch $@

# A new pip finds out what to install in half the time. Most modules are never imported, so none is compiled beforehand.
# The extension is built by the installation; a changed source needs a new build.
$(VENV)/.built: $(VENV)/.installed $(wildcard sophon_loader/native/*.[ch])
	@$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

# `lint` takes one core, so it runs beside the tests, and says in one piece what it has to say.
# Tests marked `alone` judge by measured times, which a machine that stops for a moment changes. What fails runs again.
test: $(VENV)/.built
	$(MAKE) --no-print-directory --jobs 2 lint-beside tests
	$(PYTEST) -m "alone and not long" $(WHOLE) || $(PYTEST) -m "alone and not long" --last-failed $(WHOLE)

lint-beside: $(VENV)/.built
	@said=$$($(MAKE) --no-print-directory lint 2>&1); status=$$?; echo "$$said"; exit $$status

# Files stay together, since their tests share an agent; those that take longest come first.
tests: $(VENV)/.built
	$(PYTEST) -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not alone and not bed and not long" $(WHOLE) $(UNIT)

# These wait for nothing, so there are as many processes as cores. Each begins with half of the tests, a file after the
# other, so that what the tests of a file share is made once, and takes over from the other at the end.
unit: $(VENV)/.built
	$(PYTEST) -n logical --dist worksteal -m "not long and not slow_start" $(UNIT)

# Whatever `make test` draws a fifth of, or leaves out.
long: $(VENV)/.built
	HYPOTHESIS_PROFILE=full $(PYTEST) -n $(JOBS) -m "not alone and not bed" $(UNIT)
	HYPOTHESIS_PROFILE=full HELD_BATCHES=1000 FAULT_SEEDS=200 $(PYTEST) -n $(JOBS) --dist loadfile -m "not alone and not bed" \
		tests/property/test_held_batches.py tests/faults/test_seeds.py tests/faults/test_replica_seeds.py tests/e2e
	for one in $(PILLOWS); do $(BIN)/pip install --quiet --no-deps --target build/pillow-$$one pillow==$$one && \
		PYTHONPATH=$(CURDIR)/build/pillow-$$one $(PYTEST) tests/unit/kinds tests/unit/native tests/property/test_programs.py \
		tests/property/test_deferred.py || exit 1; done
	$(BIN)/python -m tests.faults.soak --minutes $(MINUTES)
	$(BIN)/python -m tests.fuzz --minutes 1

lint: $(VENV)/.built
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/check_rooms.py
	$(BIN)/python .ci/check_words.py

demo: $(VENV)/.built
	$(BIN)/python -m examples.demo $(if $(DATA),--data $(DATA))

bench: $(VENV)/.built
	$(BIN)/python -m bench --all $(if $(DATA),--data $(DATA)) $(if $(QUICK),--quick)

bed: $(VENV)/.built
	$(BIN)/python -m pytest -m bed tests/e2e/test_testbed.py tests/e2e/test_rails.py

soak: $(VENV)/.built
	$(BIN)/python -m tests.faults.soak --minutes $(MINUTES)

# The JPEG crop and the decoder under libFuzzer need clang; the other targets use atheris where it is installed.
fuzz: $(VENV)/.built
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)
	$(BIN)/python -m tests.native.fuzz --minutes $(MINUTES)

# One after the other, so that only one environment takes space at a time; each script makes and removes its own.
findings:
	@changed=0; for one in $(FINDINGS); do \
		if said=$$(PYTHON=$(PYTHON) sh $$one 2>&1); then echo "$$one: as described"; \
		else changed=1; echo "$$one: changed, or could not run"; echo "$$said"; fi; done; exit $$changed

clean:
	rm -rf $(VENV) .venv-peers build *.egg-info demo-data
