# Everything starts from a fresh clone: each target sets up .venv first, where that is still to be done.
SHELL := /bin/bash
BIN := .venv/bin
BUILD := build
# Two processes, each a file at a time, in the order of tests/conftest.py
TWO := -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: help setup demo test test-quick test-long check format bench conformance interop fuzz scenarios lake torture interleave cluster matrix sbom audit dist screenshots docs dagster airflow airflow-scenarios components clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 20

setup: ## Create .venv and install the package with all it needs
	@scripts/setup.sh

demo: setup ## Run the flights pipeline through Dagster and Airflow, and try to break it
	@$(BIN)/python -m tests.demo

test: setup ## Run the tests that are not long, in about 9 minutes on two cores
	@$(BIN)/python -m pytest $(or $(PYTEST_ARGS),$(TWO) -m "not long")

test-quick: setup ## Before each commit: the quick tests without Spark and orchestrators, in about 3 minutes
	@$(BIN)/python -m pytest $(TWO) -m quick

test-long: setup ## Run all tests, the long ones too, in about an hour
	@$(BIN)/python -m pytest $(or $(PYTEST_ARGS),$(TWO))

check: setup ## Lint, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

conformance: setup ## Read every case on both engines; where the golden tables are there, write docs/read-cases.md's tables anew
	@$(BIN)/python -m tests.harness.conformance --page docs/read-cases.md

interop: setup ## Let other implementations judge: deltalake, DuckDB and Delta on Spark (needs Maven; SEQUENCES=300 STATEMENTS=300 choose)
	@scripts/setup_reference.sh
	@$(BIN)/python -m pytest tests/interop
	@$(BIN)/python -m tests.harness.sequences --spark --cases $(or $(SEQUENCES),20)
	@$(BIN)/python -m tests.harness.statements --cases $(or $(STATEMENTS),20)

fuzz: setup ## Damage tables and read them all, pass every wrong argument (FUZZ="--cases 1000 --seed 1" chooses, FUZZ="--spark --cases 100" with Spark, ARGUMENTS="--calls 1000")
	@$(BIN)/python -m tests.harness.fuzz --tables ../shared/golden $(or $(FUZZ),--cases 20000)
	@$(BIN)/python -m tests.harness.fuzz.arguments $(ARGUMENTS)

scenarios: setup ## Random pipelines and definitions on a Dagster instance against a plain model (SCENARIOS="--cases 20 --seed 7")
	@$(BIN)/python -m tests.dagster.scenarios $(SCENARIOS)
	@$(BIN)/python -W ignore -m tests.dagster.definition_scenarios $(SCENARIOS)
	@$(BIN)/python -W ignore -m tests.dagster.graph_scenarios $(SCENARIOS)
	@$(BIN)/python -W ignore -m tests.dagster.incremental_scenarios $(SCENARIOS)
	@$(BIN)/python -W ignore -m tests.dagster.daemon_scenarios $(SCENARIOS)

lake: setup ## Random statements over several tables against a plain model (LAKE="--cases 300 --engine both --referees")
	@$(BIN)/python -m tests.harness.lake $(LAKE)

components: setup ## Scaffold the components with `dg`, and check what it wrote
	@$(BIN)/python scripts/components.py

airflow-scenarios: setup ## Ways to write and fates of tasks under a real Airflow (WAYS="append,days" FATES="late_day" KILL=45)
	@$(BIN)/python -m tests.airflow.scheduler $(if $(WAYS),--ways $(WAYS)) $(if $(FATES),--fates $(FATES)) $(if $(KILL),--kill $(KILL))

torture: setup ## Ten minutes of eight processes on one table, some killed, on disk, on flaky emulators of S3 and Azure, and through a flaky catalog (TORTURE="--seconds 60")
	@$(BIN)/python -m tests.harness.torture $(BUILD)/torture $(TORTURE)
	@$(BIN)/python -m tests.harness.torture $(BUILD)/torture --store s3 --flaky 20 --kill-seconds 5 $(TORTURE)
	@$(BIN)/python -m tests.harness.torture $(BUILD)/torture --store azure --flaky 20 --kill-seconds 5 $(TORTURE)
	@$(BIN)/python -m tests.harness.torture $(BUILD)/torture --store catalog --flaky 20 --kill-seconds 5 $(TORTURE)

cluster: setup ## A standalone Spark cluster and a Connect server: executors, drivers and streams killed at every step
	@DELTA_ORCH_CLUSTER=long $(BIN)/python -m pytest -s tests/spark/test_spark_cluster.py

interleave: setup ## Every pair of verbs through the interleavings of its storage calls, and of its requests to a catalog (INTERLEAVE="--limit 200 --seed 2")
	@$(BIN)/python -m tests.harness.interleave $(INTERLEAVE)
	@$(BIN)/python -m pytest -q tests/concurrency/test_catalog_interleavings.py

matrix: setup ## Run the tests with the oldest and the newest versions admitted, each in an environment of its own (MATRIX="oldest spark-4.0")
	@$(BIN)/python scripts/matrix.py $(MATRIX)

sbom: setup ## Write build/sbom.json, the bill of materials of the package with all extras, and list the licenses
	@$(BIN)/python scripts/supply_chain.py sbom $(BUILD)/sbom.json
	@$(BIN)/python scripts/supply_chain.py licenses

audit: setup ## Hold the installed packages against the pins, and the pins against known vulnerabilities
	-@$(BIN)/python -m venv $(BUILD)/tools && $(BUILD)/tools/bin/python -m pip install --quiet pip-audit
	@PATH=$(CURDIR)/$(BUILD)/tools/bin:$$PATH $(BIN)/python scripts/supply_chain.py audit

dist: setup ## Build the sdist and the wheel twice: the same bytes, and as the package index wants them
	@$(BIN)/python -m venv $(BUILD)/tools && $(BUILD)/tools/bin/python -m pip install --quiet build twine
	@rm -rf dist $(BUILD)/again
	@for out in dist $(BUILD)/again; do \
		SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BUILD)/tools/bin/python -m build --outdir $$out >/dev/null || exit 1; done
	diff -r dist $(BUILD)/again
	$(BUILD)/tools/bin/twine check --strict dist/*

bench: setup ## Measure beside deltalake, DuckDB, Polars and the floors, and draw docs/plots (BENCH="scan_full poll" chooses)
	@$(BIN)/python -m benchmarks --plots $(BENCH)

screenshots: setup ## Photograph the real user interfaces for docs/images (SCREENSHOTS="dagster-checks …" chooses)
	@$(BIN)/python scripts/screenshots $(SCREENSHOTS)

docs: setup ## Build the site of the documentation below build/site; a broken link fails
	@test -x $(BIN)/mike || $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "build/site/index.html"

dagster: setup ## Open Dagster's UI on the example pipeline
	@mkdir -p $(BUILD)/demo/dagster
	@$(BIN)/python -m tests.demo.source
	DAGSTER_HOME=$(CURDIR)/$(BUILD)/demo/dagster $(BIN)/dagster dev -m dagster_defs

airflow: setup ## Open Airflow's UI on the example pipeline
	@mkdir -p $(BUILD)/airflow $(BUILD)/demo
	@$(BIN)/python -m tests.demo.source
	AIRFLOW_HOME=$(CURDIR)/$(BUILD)/airflow AIRFLOW__API__HOST=127.0.0.1 AIRFLOW__CORE__DAGS_FOLDER=$(CURDIR)/dags AIRFLOW__CORE__LOAD_EXAMPLES=False \
		PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/airflow standalone

clean: ## Remove what the demo, tests and benchmarks built
	rm -rf $(BUILD) .pytest_cache .mypy_cache .ruff_cache
