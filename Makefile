# `make help` lists what there is. ARGS is passed on: make test ARGS='-k toast -x'. Tests run in several processes,
# since they often wait: WORKERS=0 runs them in one.
.DEFAULT_GOAL := help
unexport PYTHONDONTWRITEBYTECODE  # dozens of processes would compile the same modules again
.PHONY: help install install-tests demo dist release audit sbom licences test test-all bench storm scaled faults lint format reference pictures docs lock first-hour bare clean $(addprefix all-,$(PARTS))

BIN := .venv/bin
ARGS ?=
WORKERS ?= 5
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadscope --durations 10
POSTGRES := 14 15 16 17 18
PARTS := quick long spark storage $(addprefix postgres-,$(POSTGRES))
PART ?= $(PARTS)
SYSTEM ?= debian-12
WHO ?= newcomer

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: ## .venv with the headwater command, and the demo app; nothing is done twice
	@.ci/install

install-tests:
	@.ci/install tests $(POSTGRES)

demo: install ## the whole service with sample data and a demo app, on this machine
	@$(BIN)/headwater dev $(ARGS)

dist: install ## the wheel in dist/, tried in an empty environment outside this clone
	@.ci/dist

release: install ## what a release consists of in dist/: docs/releasing.md
	@.ci/release

audit: install ## packages of all lock files against known vulnerabilities; needs the network
	@.ci/audit $(ARGS)

sbom: install ## bill of materials of the wheel in dist/
	@.ci/sbom

test: install-tests ## all tests but those that take minutes
	$(PYTEST) -m 'not long' $(ARGS)

test-all: install-tests ## all tests in every way, in parts; one of them: make test-all PART=long, or spark, storage, postgres-14 …
	@set -e; for part in $(PART); do $(MAKE) --no-print-directory "all-$$part"; done

# Parts to run one by one. What is marked long is in `long`, and on Spark in `spark`.
all-quick:
	HEADWATER_TEST_EXAMPLES=all $(PYTEST) -m 'not long' $(ARGS)

all-long:  # some write many GB, which are not to lie in memory
	HEADWATER_TEST_EXAMPLES=all PYTEST_DEBUG_TEMPROOT=$${TMPDIR:-/tmp} $(PYTEST) -m long $(ARGS)

all-spark:
	HEADWATER_TEST_BULK=spark $(PYTEST) --numprocesses 3 tests/integration tests/e2e $(ARGS)

all-storage:
	HEADWATER_TEST_STORAGE=postgres $(PYTEST) $(addprefix tests/integration/test_,$(addsuffix .py,\
		replication versions resync schema_changes publications partitions poison)) $(ARGS)

$(addprefix all-postgres-,$(POSTGRES)): all-postgres-%:
	HEADWATER_TEST_POSTGRES=$* $(PYTEST) tests/integration tests/contract $(ARGS)

bench: install-tests ## speed, CPU and memory, beside yardsticks of this machine
	$(BIN)/python -m tests.bench $(ARGS)

storm: install-tests ## random changes and kills for an hour; ARGS='--minutes 5 --seed 7'
	$(BIN)/python -m tests.storm $(ARGS)

scaled: install-tests ## all parts apart as processes, killed under load for ten minutes; ARGS='--minutes 5'
	$(BIN)/python -m tests.scaled $(ARGS)

faults: install-tests ## faults injected one at a time, each to be named in ten seconds; ARGS='--only slot --verbose'
	$(BIN)/python -m tests.faults $(ARGS)

lint: install ## style, spelling, types and the import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install ## put the style right where that can be done by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: install ## the docs as a site in dist/docs, with llms.txt
	@.ci/docs

lock: install ## the requirements.lock of service, Python client and docs anew (make lock ARGS=--upgrade for newer versions)
	$(BIN)/uv pip compile pyproject.toml --extra spark --extra otel --extra mcp --extra embedded --group dev --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-annotate --no-header --quiet $(ARGS) --output-file requirements.lock
	$(BIN)/uv pip compile clients/python/pyproject.toml --all-extras --universal --python-version 3.10 \
		--generate-hashes --no-emit-index-url --no-annotate --no-header --quiet $(ARGS) --output-file clients/python/requirements.lock
	$(BIN)/uv pip compile --group docs --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-annotate --no-header --quiet $(ARGS) --output-file docs/site/requirements.lock
	$(BIN)/uv pip compile --group audit --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-annotate --no-header --quiet $(ARGS) --output-file .ci/audit.lock

reference: install ## what of the docs is made from the code
	$(BIN)/python -m docs.generate.errors
	$(BIN)/python -m docs.generate.rooms

licences: install ## docs/licences.md anew: all packages of the lock files
	@.ci/environment docs docs/site/requirements.lock licences
	@.ci/environment audit .ci/audit.lock licences
	$(BIN)/python -m docs.generate.licences

first-hour: install ## docs/first-hour.md anew: clone, wheel and compose steps in empty homes; 10 to 30 minutes, and the network
	@$(BIN)/python -m docs.generate.first_hour

bare: ## make demo and make test on a machine that has nothing; SYSTEM=debian-13, WHO=root; needs root and debootstrap
	@python3 .ci/bare.py $(SYSTEM) $(WHO) $(ARGS)

pictures: install-tests ## the pictures of the demo app in docs/pictures
	$(BIN)/python -m docs.generate.pictures

clean: ## remove everything that the other targets made
	rm -rf .venv dist clients/python/dist clients/web/dist clients/web/node_modules tests/e2e/*/node_modules tests/e2e/web/dist tests/postgres/node_modules \
		.mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .headwater
	find backend sync_rules clients tests -name __pycache__ -prune -exec rm -rf {} +
