# Each target sets up what it needs. Paths are relative: the directory's name may have a space.
PYTHON ?= python3
PY := .venv/bin/python
READY := .venv/.ready
# Twice quiet: errors only. A machine's pip may list package locations that it does not have, and warns of each.
PIP := $(PY) -m pip install --quiet --quiet --disable-pip-version-check
ARGS ?=
WORKERS ?= 2

# Every process of a test would compile the services anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo up test check sim mutants replay nightly bench compose-test fmt constraints clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 24

setup: $(READY) ## make .venv with exact versions, by their hashes
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("expected Python 3.11 or newer, found " + sys.version.split()[0] + "; name one: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(PIP) --require-hashes --requirement constraints.txt
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $(READY)

demo: $(READY) ## lose a node and get everything back, before your eyes (ARGS='--size 64')
	.venv/bin/checkpoint-replicator demo $(ARGS)

up: $(READY) ## a local cluster for real trainers (ARGS='--nodes 4 --dir /dev/shm/ckpt')
	.venv/bin/checkpoint-replicator up $(ARGS)

test: $(READY) ## all tests, WORKERS=2 files at a time (ARGS='tests/unit -k fence')
	$(PY) -m pytest --numprocesses $(WORKERS) --dist loadfile $(ARGS)

check: $(READY) ## lint, format, types, walls, spelling
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy
	.venv/bin/lint-imports
	$(PY) -m codespell_lib

sim: $(READY) ## the whole cluster in one process: SEEDS=0..500; SEED=n tells one, KEY=1.3 or h1 what touches that, WITHOUT=a,b; ARGS=--small
	PYTHONPATH=tests $(PY) -m simulation $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS)) \
	    $(if $(KEY),--key $(KEY)) $(if $(WITHOUT),--without $(WITHOUT)) $(ARGS)

mutants: $(READY) ## break the product on purpose, fault by fault; each must be noticed (ARGS='--only name')
	PYTHONPATH=tests $(PY) -m simulation.mutants $(ARGS)

replay: $(READY) ## decide again what a service decided: LOG=file that its input-log named
	PYTHONPATH=tests $(PY) -m simulation.replay $(if $(LOG),"$(LOG)") $(ARGS)

nightly: $(READY) ## the long run: seeds, mutants, crash points, soaks; report in build/nightly.json and build/nightly.txt
	PYTHONPATH=tests $(PY) -m simulation.nightly $(ARGS)

bench: $(READY) ## measure against plain references; Markdown, and build/bench.json
	set -e; for script in benchmarks/bench_*.py; do $(PY) "$$script" $(ARGS); done

compose-test: ## the containers: save, lose a node, restore (needs Docker)
	$(PYTHON) deploy/compose_test.py $(ARGS)

fmt: $(READY) ## format and fix what can be fixed
	$(PY) -m ruff check --fix
	$(PY) -m ruff format

constraints: $(READY) ## newest versions that fit, with hashes (needs uv)
	printf 'hatchling\neditables\n' | uv pip compile --quiet --upgrade --universal --python-version 3.11 \
	    --generate-hashes --no-emit-index-url --custom-compile-command 'make constraints' \
	    --extra dev --output-file constraints.txt pyproject.toml -

clean: ## remove what was set up and built
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
