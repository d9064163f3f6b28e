# The commands of this repository. `make` alone lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Bytecode halves the start of every process of ours; some container images forbid it for their own size.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
# One environment, one cluster: nothing here runs beside something else.
.NOTPARALLEL:
.PHONY: help up down status serve venv check test test-unit test-e2e test-long test-pythons test-clients lint types format lock crds bench-path bench-runtime bench-workers bench-autoscaler bench-operator bench-models bench-gateway bench-scaling

help:  ## list the commands
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up:  ## a local cluster of real parts, with an example service that answers
	@$(PYTHON) -m e2e.cluster up --only-checks $(ARGS)
	@$(PYTHON) -m development.bootstrap
	@$(BIN)/python -m e2e.cluster up $(ARGS)

# These need no environment: a cluster can be ended when it is gone.
ANY_PYTHON = $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))

down:  ## stop the local cluster; nothing is left running
	@$(ANY_PYTHON) -m e2e.cluster down

status:  ## what runs in the local cluster
	@$(ANY_PYTHON) -m e2e.cluster status

serve: venv  ## the shipped model alone, no cluster
	@$(BIN)/millrace serve --demo

venv: $(VENV)/.installed  ## the virtual environment

KERNELS := $(wildcard kernels/millrace_kernels/*/*.cpp kernels/millrace_kernels/*/*.h)

$(VENV)/.installed: requirements.lock pyproject.toml $(KERNELS)
	@$(PYTHON) -m development.environment

.PHONY: checks parts
checks:
	@$(PYTHON) -m development.bootstrap --only-checks

parts:  # with the environment beside them, and lines of progress that pytest would keep to itself
	@$(PYTHON) -m development.bootstrap

test: checks parts lint types test-unit test-e2e  ## lint, types, unit tests and end-to-end tests

check: checks parts lint  ## lint, the tests that a change can turn red, and one service on a cluster
	@$(BIN)/python -m testing.affected $(ARGS)

test-unit: venv  ## the tests without a cluster
	@$(BIN)/python -m testing.lanes units -- $(ARGS)

test-e2e: checks parts  ## what users do, on the local control plane
	@$(BIN)/python -m testing.lanes e2e e2e-alone -- $(ARGS)

test-long: checks parts  ## all that make test leaves out or runs fewer cases of
	@$(BIN)/python -m testing.lanes units-long e2e-long e2e-alone-long -- --again $(ARGS)

test-pythons: venv  ## the fast tests on Python 3.12, 3.13 and 3.14, those that this machine has
	@$(BIN)/python -m development.pythons $(ARGS)

CLIENTS := .venv-clients

$(CLIENTS)/.installed: tests/clients/requirements.txt
	@$(PYTHON) -m venv --clear $(CLIENTS)
	@$(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r tests/clients/requirements.txt
	@touch $@

# Without npm their tests are skipped. Claude Code's own script puts its program into place.
$(CLIENTS)/agents/.installed: tests/clients/package.json $(CLIENTS)/.installed
	@mkdir -p $(CLIENTS)/agents && cp tests/clients/package.json $(CLIENTS)/agents/
	@if command -v npm >/dev/null; then cd $(CLIENTS)/agents && npm install --silent --no-audit --no-fund --ignore-scripts \
	  && node node_modules/@anthropic-ai/claude-code/install.cjs; fi
	@touch $@

test-clients: venv $(CLIENTS)/.installed $(CLIENTS)/agents/.installed  ## other people's clients, unchanged, against a replica that says given texts
	@$(CLIENTS)/bin/python -m pytest -q -c tests/clients/pytest.ini $(ARGS) tests/clients

lint: venv  ## style, formatting and the layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python -m testing.rules
	$(BIN)/python -m development.sizes

types: venv  ## strict types
	$(BIN)/mypy operator/millrace_operator operator/millrace_kubernetes operator/millrace_node_cache operator/millrace_kubectl runtime/millrace_runtime runtime/millrace_gateway runtime/millrace_fetch runtime/millrace_fit runtime/millrace_cli runtime/stories_training kernels/millrace_kernels
	$(BIN)/mypy -p development -p e2e -p benchmarks -p testing

format: venv  ## format and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: venv  ## resolve requirements.lock anew
	$(BIN)/pip install -q uv
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --no-header --no-annotate --upgrade pyproject.toml --extra dev -o requirements.lock

crds: venv  ## write crds/ from the operator's types
	$(BIN)/python -m millrace_operator.api.crd

bench-path: venv  ## the whole path, timed: a table, then one JSON line
	@$(BIN)/python -m benchmarks.path $(ARGS)

bench-runtime: venv  ## our runtime beside the engines in $$PEERS: a table, then one JSON line
	@$(BIN)/python -m benchmarks.runtime $(ARGS)

bench-workers: venv  ## two workers that share a model over one process: a table, then one JSON line
	@$(BIN)/python -m benchmarks.workers $(ARGS)

bench-autoscaler: venv  ## our autoscaler beside others' rules, simulated: a table, then one JSON line
	@$(BIN)/python -m benchmarks.autoscaler $(ARGS)

bench-operator: venv  ## the operator with 2,000 services: a table, then one JSON line
	@$(BIN)/python -m benchmarks.convergence $(ARGS)

bench-models: venv  ## models fetched, killed and measured: a table, then one JSON line
	@$(BIN)/python -m benchmarks.models $(ARGS)

bench-gateway: venv  ## our gateway beside others, one core each: a table, then one JSON line
	@$(BIN)/python -m benchmarks.gateway $(ARGS)

bench-scaling: venv  ## our autoscaler beside the real HPA, on a local cluster: a table, then one JSON line
	@$(BIN)/python -m benchmarks.scaling $(ARGS)
