# Everything a newcomer, a contributor and CI need. `make help` lists it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Many tests use real sockets, processes and clocks: on a busy machine one may be late. A test that is wrong fails thrice.
# Why it failed before is printed in any case: an attempt that passes explains nothing.
AGAIN  := --reruns 2 --reruns-delay 3 --rerun-show-tracebacks
.DEFAULT_GOAL := help
.PHONY: help install run test test-unit test-real test-real-long chaos chaos-short load bench soak soak-short test-versions sbom audit lint format screenshots lock clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(STAMP) ## .venv with the locked dependencies (idempotent)

$(STAMP): requirements/dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Tierkeeper needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the locked dependencies into $(VENV) (about a minute, some more on a busy machine)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

run: install ## the panel with the sandbox on http://127.0.0.1:8090
	$(BIN)/tierkeeper demo

test: lint test-unit ## everything CI needs except the real stack

test-unit: install ## unit and browser tests
	$(BIN)/python -m pytest -n 2 --dist loadfile $(AGAIN) tests/unit
	$(BIN)/python -m pytest $(AGAIN) tests/browser

test-real: install ## the product against a real LMCache server and a real vLLM (CPU build)
	TIERKEEPER_REAL=1 $(BIN)/python -m pytest -v --timeout 900 $(AGAIN) tests/real/test_main_job.py tests/real/test_facts.py

test-real-long: install ## every real-stack test: restarts, faults, checks, launch commands, benchmark (about 40 minutes)
	TIERKEEPER_REAL=1 $(BIN)/python -m pytest -v --timeout 1800 $(AGAIN) tests/real

test-versions: install ## the real cache server of every published LMCache version that runs without a GPU (outside CI, 30 minutes)
	$(BIN)/python -m tests.real.versions.capture
	$(BIN)/python -m pytest -q tests/unit/lmcache/test_versions.py

soak: install ## 200 cache servers and 200 engines polled for ten minutes after five of warm-up: processor, lateness, memory (outside CI)
	$(BIN)/python benchmarks/fleet.py --targets 200 --seconds 600

soak-short: install ## two minutes with 100 cache servers and 100 engines: none missed, lateness and memory flat, as CI runs it
	@# One more try: a machine that was busy with something else for a moment is not a panel that leaks or is late.
	@# A minute of warm-up leaves the windows four more to fill: 3 MB for so many targets.
	$(BIN)/python benchmarks/fleet.py --targets 100 --warm-up 60 --seconds 120 --any-machine || $(BIN)/python benchmarks/fleet.py --targets 100 --warm-up 60 --seconds 120 --any-machine

bench: install ## benchmarks, as ratios within one run
	@for script in $(filter-out benchmarks/fleet.py benchmarks/fleet_targets.py,$(wildcard benchmarks/*.py)); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

chaos: install ## half an hour of kills and full disks under traffic on the real stack, and the long fault matrix of cleanup (outside CI)
	TIERKEEPER_REAL=1 CHAOS_SECONDS=$${CHAOS_SECONDS:-1800} $(BIN)/python -m pytest -v -s tests/real/test_chaos.py
	CHAOS=1 $(BIN)/python -m pytest -v --timeout 1800 tests/unit/cleanup/test_faults.py tests/unit/cleanup/test_race.py

load: install ## fifty people, programs and slow readers at once
	HOSTILE_LOAD=1 $(BIN)/python -m pytest -v -s tests/unit/hostile/test_load.py

chaos-short: install ## two minutes of chaos, as CI runs it
	CHAOS_SECONDS=120 $(BIN)/python -m pytest -v -s $(AGAIN) tests/unit/hostile/test_chaos.py

sbom: install ## bill of materials (CycloneDX) and licence list of what the panel runs with, into build/
	$(BIN)/python scripts/sbom.py build

audit: install ## known vulnerabilities of the locked packages (needs an advisory service; says so when there is none)
	$(BIN)/python scripts/audit.py

lint: install ## ruff, mypy, import rules, templates
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/djlint templates --check --quiet
	$(BIN)/djlint templates --lint --quiet

format: install ## rewrite code and templates in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	-$(BIN)/djlint templates --reformat --quiet

screenshots: install ## every page, light and dark, wide and narrow, into var/screenshots
	$(BIN)/python scripts/screenshots.py

lock: install ## renew requirements/*.lock from requirements/*.in
	for name in runtime dev; do $(BIN)/uv pip compile --quiet --generate-hashes --no-emit-index-url --no-header \
	  --python-version 3.11 --universal requirements/$$name.in -o requirements/$$name.lock; done

clean: ## remove what can be made again (not the data directory)
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
