# Effect Ledger. `make` alone prints this list. Needs python3 (3.11 or newer, with venv), make and git.
SHELL := /bin/sh
PYTHON ?= python3
JOBS ?= 3
SECONDS ?= 60
OUTCOMES := $(CURDIR)/.cache/faults.jsonl
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ERP_VENV := .venv-erp
ERP_STAMP := $(ERP_VENV)/.installed
PEERS_VENV := .venv-peers
PEERS_STAMP := $(PEERS_VENV)/.installed
NPM_STAMP := $(PEERS_VENV)/npm/.installed
NPM_FLAGS := --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel=error

.DEFAULT_GOAL := help
.PHONY: help venv demo up test screens explore unit faults soak check lint types imports lock docs clean

help: ## print this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

venv: $(STAMP) ## build .venv from the hash-pinned requirements (PIP=1: with pip alone, for mirrors set in pip.conf)

$(STAMP): requirements/dev.txt requirements/uv.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: set PYTHON=/path/to/python3"; exit 1; }
	@echo "building $(VENV), once …"
	@$(PYTHON) -m venv $(VENV) || { echo "python3 -m venv does not work here: install it (Debian: apt install python3-venv)"; exit 1; }
ifdef PIP
	@$(BIN)/pip install --quiet --disable-pip-version-check --only-binary :all: --no-compile --require-hashes -r requirements/dev.txt
else
	@$(BIN)/pip install --quiet --disable-pip-version-check --only-binary :all: --no-compile --require-hashes -r requirements/uv.txt
	@$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes --no-build requirements/dev.txt
endif
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-index --editable .
	@touch $@

$(ERP_STAMP): requirements/erp.txt $(STAMP)
	@echo "building $(ERP_VENV) (Tryton, Radicale, mail-devel: the outside systems of tests and demo), once …"
	@$(PYTHON) -m venv $(ERP_VENV)
ifdef PIP
	@$(ERP_VENV)/bin/pip install --quiet --disable-pip-version-check --only-binary :all: --no-compile --require-hashes -r requirements/erp.txt
else
	@$(BIN)/uv pip sync --quiet --python $(ERP_VENV)/bin/python --require-hashes --no-build requirements/erp.txt
endif
	@touch $@

$(PEERS_STAMP): requirements/peers.txt $(STAMP)
	@echo "building $(PEERS_VENV) (localstripe, a stand-in for Stripe that others wrote), once …"
	@$(PYTHON) -m venv $(PEERS_VENV)
ifdef PIP
	@$(PEERS_VENV)/bin/pip install --quiet --disable-pip-version-check --only-binary :all: --no-compile --require-hashes -r requirements/peers.txt
else
	@$(BIN)/uv pip sync --quiet --python $(PEERS_VENV)/bin/python --require-hashes --no-build requirements/peers.txt
endif
	@touch $@

# Where npm is missing or installs nothing, tests of stripe-stateful-mock are skipped and say so. In CI they must run.
$(NPM_STAMP): requirements/peers/package.json requirements/peers/package-lock.json $(PEERS_STAMP)
	@echo "installing stripe-stateful-mock, another one, with npm, once …"
	@rm -rf $(@D) && mkdir $(@D) && cp requirements/peers/package.json requirements/peers/package-lock.json $(@D)
	@if npm ci --prefix $(@D) $(NPM_FLAGS) $(if $(CI),,--fetch-retries=0) >/dev/null; then touch $@; elif [ "$$CI" = true ]; then exit 1; \
	  else echo "npm could not install it: the tests that need it will be skipped"; fi

demo: $(STAMP) $(if $(ALL),$(ERP_STAMP)) ## run the main job on an embedded stack (ALL=1: every scenario)
	@$(BIN)/effects demo $(if $(ALL),--all)

up: $(STAMP) $(if $(ERP),$(ERP_STAMP)) ## start the same stack and leave it running until Ctrl-C (ERP=1: with an ERP and a mail server)
	@$(BIN)/effects up $(if $(ERP),--erp)

test: $(STAMP) $(ERP_STAMP) $(PEERS_STAMP) $(if $(shell command -v npm 2>/dev/null),$(NPM_STAMP)) ## all tests but the long part of `make faults` (needs nothing started; 10 to 20 minutes on 2 cores; once, 2 minutes for the ERP's database)
	@$(BIN)/python -m devstack.tryton
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not long" $(ARGS)

faults: $(STAMP) $(ERP_STAMP) ## play every fault on every adapter and write docs/faults.md
	@$(BIN)/python -m devstack.tryton
	@rm -f $(OUTCOMES)
	@EFFECTS_FAULTS=$(OUTCOMES) $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m matrix
	@$(BIN)/python -m docs.faults $(OUTCOMES)

soak: $(STAMP) $(ERP_STAMP) ## mix faults and kills over many operations for SECONDS=60, then compare with the receivers (SEED=…: again)
	@$(BIN)/python -m devstack.tryton
	@$(BIN)/python -m tests.soak --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

screens: $(STAMP) ## drive Temporal's Web UI in headless Chromium and write the pictures in docs/pictures
	@EFFECTS_PICTURES=1 $(BIN)/python -m pytest tests/e2e/test_web_ui.py

unit: $(STAMP) ## tests that need no server
	@$(BIN)/python -m pytest tests/unit $(ARGS)

explore: $(STAMP) ## search the real rules for a counter-example: millions of states, 20 minutes
	@$(BIN)/python -m tests.exploration

check: lint types imports ## lint, types, import rules, generated documents

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(STAMP)
	@$(BIN)/mypy
	@$(BIN)/ty check ledger/store

imports: $(STAMP)
	@$(BIN)/lint-imports
	@$(BIN)/python -m docs.generate --check

docs: $(STAMP) ## write the generated parts of README, ARCHITECTURE and docs/ anew
	@$(BIN)/python -m docs.generate

lock: $(STAMP) ## pin the requirements anew, with hashes and without hosts
	@for group in dev run build uv erp peers; do \
	  case $$group in dev) args="--group dev pyproject.toml";; run) args=pyproject.toml;; *) args="--group pyproject.toml:$$group";; esac; \
	  $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	    --custom-compile-command "make lock" $$args -o requirements/$$group.txt || exit 1; done
	@npm install --prefix requirements/peers --package-lock-only --omit-lockfile-registry-resolved $(NPM_FLAGS) >/dev/null

clean: ## remove the virtual environments and caches (not the state of `make up`, which lives in .cache/stack)
	@rm -rf $(VENV) $(ERP_VENV) $(PEERS_VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
