# What can be done here. `make` alone lists it; nothing needs more than Python 3.11 with venv, and make; `test` and
# what has "services" in its name need Java 17 and Maven besides, and install them where they may.

SHELL := /bin/bash
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
# The folders of tests that end in seconds; those that do not exist yet are left out.
FAST := $(wildcard tests/architecture tests/unit tests/journal tests/property)
# Where to write what became of each test, for a machine to read: `make test REPORTS=folder`.
report = $(if $(REPORTS),--junitxml=$(REPORTS)/$(1).xml)
# pyright runs what its wheel carries; without this it would ask the network whether there is a newer one.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo docs reference newcomer test test-fast test-services lint format bench fault services lock wheel clean

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: .venv/.dev ## build .venv from the lock files (nothing to do when they have not changed)

# The demo needs only what a user installs, so it does not wait for the tools.
.venv/.runtime: pyproject.toml requirements.lock scripts/setup.sh
	@scripts/setup.sh runtime
	@touch $@

.venv/.dev: .venv/.runtime requirements-dev.lock
	@scripts/setup.sh dev
	@touch $@

demo: .venv/.runtime ## run the packaged example: a model, a stream of events, what came of each
	@$(BIN)/headrace demo

# Each part runs, also after another has failed: one run shows all there is to mend.
test: setup services ## lint, types, architecture, all tests, on a real Kafka and a real PostgreSQL too
	@status=0; \
	$(MAKE) --no-print-directory lint || status=1; \
	scripts/test.sh $(REPORTS) || status=1; \
	exit $$status

test-services: services ## the tests against a real Kafka and a real PostgreSQL alone
	@$(PYTEST) tests/services $(call report,services)

test-fast: setup ## the tests that end within a minute
	@$(PYTEST) --hypothesis-profile quick $(FAST)

lint: setup ## ruff, mypy, pyright, import-linter
	@failed=; \
	check() { echo "--- $$*"; $(BIN)/"$$@" || failed="$$failed, $$1 $$2"; }; \
	check ruff check; \
	check ruff format --check; \
	check mypy src $(wildcard tests/typing); \
	check pyright; \
	check lint-imports --no-logo; \
	if [ -n "$$failed" ]; then echo "lint: failed:$${failed#,}"; exit 1; fi

format: setup ## let ruff mend what it can
	@$(BIN)/ruff check --fix-only --quiet; $(BIN)/ruff format

bench: setup ## run every benchmark; one JSON document each
	@status=0; \
	for script in $(sort $(wildcard bench/[!_]*.py)); do \
	    echo "--- $$script" >&2; $(BIN)/python $$script --json || status=1; \
	done; \
	exit $$status

docs: setup ## build the pages as a site in build/docs; a link that leads nowhere is an error
	@$(BIN)/python -m sphinx --builder html --conf-dir docs --fail-on-warning --keep-going --nitpicky --quiet . build/docs
	@cp build/docs/README.html build/docs/index.html
	@echo build/docs/index.html

reference: setup ## write docs/reference from the code
	@$(BIN)/python tools/reference.py

newcomer: setup ## follow README and docs in a new environment, from a built wheel: some minutes
	@$(BIN)/python tests/docs/newcomer.py --json

fault: setup ## kill, stop and break things at full length (minutes; `make test` runs a short form)
	@HEADRACE_FAULT=full $(PYTEST) --timeout 1800 tests/fault

services: setup ## fetch the real Kafka and PostgreSQL that `make test` starts
	@scripts/services.sh

lock: .venv/.runtime ## write the lock files from pyproject.toml; UPGRADE=1 takes newer versions
	@scripts/lock.sh $(if $(UPGRADE),--upgrade)

wheel: setup ## build the sdist and the wheel into dist/
	@$(BIN)/hatchling build -d dist

clean: ## remove what was built
	rm -rf .venv dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
