# The one list of commands; CI calls the same names.
#   make up      everything on this machine: JupyterHub, launcher, MLflow, the demo project (Ctrl-C stops it)
#   make test    every tier of tests that can run here; what cannot is named with its reason
#   make drills  all faults on the cluster, also those too long for make test
#   make check   format, lint, types, import rules, spelling, house rules of the docs
#   make cluster a real Kubernetes with Volcano on this machine (root); make cluster-down takes it away
#   make bench   the figures of docs/benchmarks.md
#   make lock    the hashed locks, from pyproject.toml
.PHONY: up down test drills check fix cluster cluster-down bench lock env clean

PY := .venv/bin/python
PORT ?= 8765
HUB_PORT ?= 8000
ARGS ?=

env:
	@sh hub/deploy/bootstrap.sh

up: env
	@exec .venv/bin/slicelift up --hub-port $(HUB_PORT) --port $(PORT) $(ARGS)

down: env
	@.venv/bin/slicelift down $(ARGS)

test: env
	@$(PY) tests/tiers.py $(ARGS)

drills: env
	@$(PY) tests/tiers.py drills $(ARGS)

check: env
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	.venv/bin/lint-imports
	.venv/bin/codespell

fix: env
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

cluster: env
	@$(PY) tests/cluster/bed up --image $(ARGS)

cluster-down: env
	@$(PY) tests/cluster/bed down $(ARGS)

bench: env
	@$(PY) -m bench $(ARGS)

lock: env
	@sh hub/deploy/lock.sh

clean:
	rm -rf .venv .build .mypy_cache .ruff_cache .pytest_cache .hypothesis
