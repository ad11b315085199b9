# Two commands matter: `make demo` and `make test`. Both set everything up first; that is quick once it is done.
# The variables below may be given on the command line, e.g. `make setup PYTHON=python3.12`.

NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))

# Python 3.11 or newer that makes .venv; without one given, the first on the PATH that is new enough, looked for once
ifeq ($(origin PYTHON),undefined)
PYTHON := $(shell for python in python3 python3.13 python3.12 python3.11 python3.14; do \
            "$$python" -c '$(NEW_ENOUGH)' 2>/dev/null && { echo "$$python"; break; }; done)
endif
# where jars, logs and the demo's state are kept
OFFSETLAKE_HOME ?= .offsetlake
LOGS := $(OFFSETLAKE_HOME)/setup
# how far pip is, while it is: its log's last line, in one line that fits
TELL_SECONDS ?= 5
PYTEST = .venv/bin/python -m pytest tests --dist loadfile --no-loadscope-reorder
SAY_PIP = tail -n 1 "$(LOGS)/pip.log" | awk '{print "setup: pip: " substr($$0, 1, 100)}' >&2
# a stamp's name says what it was made from; the directory counts, for a moved .venv is broken
DEPS_STAMP := .venv/.deps-$(shell { pwd; cat requirements.lock; } 2>/dev/null | cksum | tr -d ' ')
PROJECT_STAMP := .venv/.project-$(shell { pwd; cat pyproject.toml; } 2>/dev/null | cksum | tr -d ' ')

# without bytecode files every dagster command is 2-3 times slower
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-scenarios test-long pictures bench check clean

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: ## Make .venv from requirements.lock and fetch the jars, each once (needs Python 3.11+, Java 17 to 22, the network)
	@.venv/bin/python -c '$(NEW_ENOUGH)' 2>/dev/null || "$(PYTHON)" -c '$(NEW_ENOUGH)' 2>/dev/null || { \
	  given="$(PYTHON)"; found=$$("$${given:-python3}" --version 2>&1 | tail -n 1); \
	  echo "setup: no Python 3.11 or newer: $${given:-python3} says '$$found'; install one, or name it: make setup PYTHON=/path/to/python3" >&2; \
	  exit 1; }
	@python=.venv/bin/python; $$python -c '' 2>/dev/null || python="$(PYTHON)"; "$$python" -m pipeline_defs.adapters.system.java
	@mkdir -p "$(LOGS)"
	@.venv/bin/python -c '$(NEW_ENOUGH)' 2>/dev/null || { \
	  echo "setup: making .venv with $(PYTHON)" >&2; \
	  "$(PYTHON)" -m venv --clear .venv >"$(LOGS)/venv.log" 2>&1; } || { \
	  echo "setup: .venv could not be made with $(PYTHON): its venv or ensurepip module may be missing (Debian: install python3-venv), then run 'make setup' again (log: $(LOGS)/venv.log)" >&2; \
	  exit 1; }
	@test -e $(DEPS_STAMP) || { \
	  echo "setup: installing the packages of requirements.lock, once, about a minute (log: $(LOGS)/pip.log)" >&2; \
	  { while sleep $(TELL_SECONDS) >/dev/null 2>&1; do $(SAY_PIP); done & } ; telling=$$!; \
	  .venv/bin/python -m pip install --disable-pip-version-check --no-input -r requirements.lock >"$(LOGS)/pip.log" 2>&1; done=$$?; \
	  kill $$telling; test $$done = 0 && \
	  rm -f .venv/.deps-* && touch $(DEPS_STAMP); } || { \
	  echo "setup: pip could not install requirements.lock: check the network and pip's settings (the first run needs the network), then run 'make setup' again (log: $(LOGS)/pip.log)" >&2; \
	  exit 1; }
	@test -e $(PROJECT_STAMP) || { \
	  .venv/bin/python -m pip install --disable-pip-version-check --no-input --no-index --no-deps --no-build-isolation -e . >"$(LOGS)/project.log" 2>&1 && \
	  rm -f .venv/.project-* && touch $(PROJECT_STAMP); } || { \
	  echo "setup: offsetlake itself could not be installed into .venv: see what pip says (log: $(LOGS)/project.log)" >&2; \
	  exit 1; }
	@test -e .env || .venv/bin/python -m pipeline_defs.orchestration.home.project
	@.venv/bin/python -m pipeline_defs.adapters.system.jars "$(OFFSETLAKE_HOME)/jars"
	@.venv/bin/python -m pipeline_defs.adapters.testbed.class_archive "$(OFFSETLAKE_HOME)/jars" 2>"$(LOGS)/class_archive.log" || { \
	  echo "setup: the class archives could not be made (log: $(LOGS)/class_archive.log)" >&2; exit 1; }

# exec: the demo is make's own child, so that it gets Ctrl-C and SIGTERM and make waits while it cleans up
demo: setup ## Land the flights of 2013 from a real Kafka broker, watch it in Dagster, Ctrl-C ends it (ONCE=1: exit after the summary; DAYS=31: January's only)
	@exec .venv/bin/offsetlake demo $(if $(filter-out 0,$(ONCE)),--once) $(if $(DAYS),--days $(DAYS))

test: setup ## Run the tests, real broker and Spark included (7 to 20 minutes on two cores, by their speed)
	@exec $(PYTEST) -n 4 -m "not long and not scenario"

test-scenarios: setup ## Run what drives the whole product: the demo, Dagster in a browser, clusters, a power cut, the docs
	@.venv/bin/python -m tests.support.browser
	@exec $(PYTEST) -n 3 -m "scenario and not long"

test-long: setup ## Run the tests that take longer
	@.venv/bin/python -m tests.support.browser
	@exec .venv/bin/python -m pytest tests -m long

pictures: setup ## Make the pictures of docs/dagster.md anew, by the browser tests
	@.venv/bin/python -m tests.support.browser
	@PICTURES=1 exec .venv/bin/python -m pytest tests/browser -m "not long"

bench: setup ## Measure against Spark alone, Structured Streaming and a hand-written loop; prints JSON
	@exec .venv/bin/offsetlake bench --json

check: setup ## Format, lint, types and the fast tests
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/python -m pytest -q tests/unit tests/properties -n 2

clean: ## Remove .venv, jars, logs of setup and caches; the lake and the broker's data stay
	rm -rf .venv "$(OFFSETLAKE_HOME)/jars" "$(LOGS)" build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find assets pipeline_defs tests -name __pycache__ -type d -prune -exec rm -rf {} +
