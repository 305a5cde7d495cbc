# Longwatch: everything a checkout can do, from a machine with only make and Python >= 3.11.
# A target with a `## ` comment is listed by `make help`.

VENV   := .venv
BIN    := $(VENV)/bin
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3; do \
	"$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$python"; break; }; done)
DEMO   ?= examples/demo/demo.py
EVERYTHING := .[all,dev]
DEMO_INSTALL := .[page,runner]

# Old and new pip read the pins for what they build with from different places.
export PIP_CONSTRAINT       := $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test lint chaos bench wheel release api reference docs screenshots constraints clean

help: ## list what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.dev ## make the environment for development in .venv, and nothing else

demo: $(VENV)/.runtime ## watch Longwatch keep programs, workers, a graph and agents up, until Ctrl-C
	@$(BIN)/python $(DEMO)

test: $(VENV)/.dev ## everything that must hold: lint, types, layers, the built wheel, all tests
	@$(BIN)/python tools/check.py

lint: $(VENV)/.dev ## style, types and layers only
	@$(BIN)/python tools/check.py lint

chaos: $(VENV)/.dev ## long random runs; CHAOS_SEED=n repeats one, CHAOS_SECONDS=n sets the length of each
	@$(BIN)/python tools/chaos.py

bench: wheel ## measure and record in bench/RESULTS.md; BENCH=startup runs one
	@$(BIN)/python bench/record.py $(BENCH)

wheel: $(VENV)/.dev ## build wheel and sdist into dist/, install the wheel into build/wheel-env
	@$(BIN)/python tools/check.py wheel

release: $(VENV)/.dev ## build and check what to upload: metadata, contents, the quickstart in a new environment
	@$(BIN)/python tools/release.py

api: $(VENV)/.dev ## record the public names after a wanted change of the public surface
	@$(BIN)/python tools/public_api.py > tests/unit/public_api.txt

reference: $(VENV)/.dev ## generate the parts of docs/reference that the code decides, and the dashboards
	@set -e; for each in tools/*_reference.py tools/dashboards.py; do $(BIN)/python "$$each"; done

screenshots: $(VENV)/.dev ## take the pictures of the status page in docs/images again
	@$(BIN)/python tools/screenshots.py

docs: $(VENV)/.dev ## build the documentation as a site into build/site, without a network
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "build/site/index.html; to search in it: $(BIN)/python -m http.server --directory build/site"

constraints: | $(BIN)/python ## pin today's newest versions in constraints.txt
	@$(BIN)/python tools/constraints.py

clean: ## remove what was made here, the environments too
	@rm -rf .venv .venv-3.* build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find src tests tools bench examples -name __pycache__ -prune -exec rm -rf {} +

# The output of a command, shown only when it fails: $(call quietly,WHAT,COMMAND)
quietly = echo "$(1)"; log=$$(mktemp); if $(2) >"$$log" 2>&1; then rm -f "$$log"; else cat "$$log"; rm -f "$$log"; exit 1; fi

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo "make: no Python >= 3.11 with venv found: install one (Debian: apt-get install python3-venv) or name it, make PYTHON=/path/to/python" >&2; \
		exit 1; fi
	@$(call quietly,making $(VENV) with $(PYTHON),$(PYTHON) -m venv --clear $(VENV))

$(VENV)/.runtime: pyproject.toml constraints.txt | $(BIN)/python
	@$(call quietly,installing longwatch,$(BIN)/python -m pip install --editable '$(DEMO_INSTALL)')
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@$(call quietly,installing longwatch and what its tests need,$(BIN)/python -m pip install --editable '$(EVERYTHING)')
	@touch $(VENV)/.runtime $@
