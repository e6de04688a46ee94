# Everything runs from .venv, which the targets make as needed. A stamp says what is installed in it, so a second
# run installs nothing. Override with PYTHON=python3.12, VENV=path, BUNDLE=path, PEERS=path, INPUTS=n, MINUTES=n.

PYTHON ?= python3
VENV   ?= .venv
BUNDLE ?= bundles/gemma-3-270m
PEERS  ?= bench-envs
INPUTS ?= 20000
MINUTES ?= 10

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input

# Wheels by version and hash, and nothing else: building from source would fetch what nobody has pinned.
LOCKS   := requirements/build.txt requirements/demo.txt
HASHED  := $(PIP) install -qq --only-binary :all: --require-hashes
LOCKED  := $(HASHED) $(LOCKS:%=-r %)
TOOLS   := $(HASHED) -r requirements/tools.txt
# The sources, by the setuptools of the lock and without the network.
SOURCES := $(PIP) install -qq --no-index --no-deps --no-build-isolation -e .
# What tests, checks and the bench want beside it is not locked (docs/supply.md says why): it must fit the lock.
PINS    := sed -n '/^[a-z]/s/ *\\$$//p' requirements/demo.txt >$(VENV)/pins.txt
BESIDE  := $(PIP) install -qq -c $(VENV)/pins.txt

# A venv that is broken, or that stood in another directory, does not count: it is made anew, stamps and all.
USABLE := $(shell [ "`cat $(VENV)/.place 2>/dev/null`" = "$(CURDIR)" ] && $(BIN)/python -c 'import pip' 2>/dev/null && echo yes)
STALE  := $(if $(USABLE),,stale)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

.PHONY: demo
demo: $(VENV)/.demo-stamp ## export a real Gemma 3 270M, then generate plain and speculative
	@$(BIN)/edge-export demo --output $(BUNDLE)
	@$(BIN)/edge-runtime demo --bundle $(BUNDLE)

.PHONY: ready
ready: $(VENV)/.ready-stamp ## install for tests and checks at once, as CI does

.PHONY: test
test: $(VENV)/.test-stamp ## run the tests
	@$(BIN)/python -m pytest -q -n 2 --no-loadscope-reorder

.PHONY: check
check: $(VENV)/.check-stamp ## lint and type-check
	@echo "ruff check"; $(BIN)/ruff check -q --output-format concise .
	@# Boards run Python 3.10. numpy's stubs for it are gone, hence without the two checks that lean on them.
	@echo "mypy --strict edge_runtime export typings/refused.py, and once more for Python 3.10"
	@$(BIN)/mypy --strict edge_runtime export typings/refused.py & first=$$!; \
	  $(BIN)/mypy --python-version 3.10 --no-warn-return-any --no-warn-unused-ignores edge_runtime export \
	    >.mypy-3.10.txt; second=$$?; wait $$first; first=$$?; \
	  [ $$second = 0 ] || cat .mypy-3.10.txt; rm -f .mypy-3.10.txt; [ $$first = 0 ] && [ $$second = 0 ]

.PHONY: bench
bench: $(VENV)/.bench-stamp ## measure plain against drafted, then against transformers and llama.cpp, on this machine
	@$(BIN)/edge-export demo --output $(BUNDLE)
	@$(BIN)/edge-runtime bench --bundle $(BUNDLE) --json bench-results/protocol.json --html bench-results/protocol.html
	@$(BIN)/edge-runtime bench --view claims --bundle $(BUNDLE) --gguf "`$(BIN)/edge-export demo --print-source`" --json bench-results/latest.json

.PHONY: peers
peers: $(VENV)/.demo-stamp ## give each program that ours is measured beside an environment of its own (some 6 GB)
	@$(BIN)/python -m edge_runtime.bench.environments $(PEERS)

.PHONY: rivals
rivals: peers ## measure whole answers of ours and of these programs, side by side
	@$(BIN)/edge-export demo --output $(BUNDLE)
	@$(BIN)/edge-runtime bench --view rivals --bundle $(BUNDLE) --gguf "`$(BIN)/edge-export demo --print-source`" --peer-envs $(PEERS) --json bench-results/rivals.json

.PHONY: fuzz
fuzz: $(VENV)/.fuzz-stamp ## fuzz every reader of files, INPUTS of each
	@$(BIN)/python -m tests.fuzz all --inputs $(INPUTS)

.PHONY: attack
attack: $(VENV)/.test-stamp $(VENV)/.attack-stamp ## attack a daemon over HTTP: limits, then odd chats and schemathesis, MINUTES of each
	@PATH="$(abspath $(VENV)/http/bin):$$PATH" $(BIN)/python -m tests.fuzz.http_surface all --minutes $(MINUTES)

.PHONY: sbom
sbom: $(VENV)/.sbom-stamp ## list the parts of the demo and of each image, in CycloneDX
	@$(BIN)/python tools/sbom.py build/sbom

.PHONY: lock
lock: $(VENV)/.supply-stamp ## pin anew what pyproject.toml asks for, and list the licences (LOCK=--upgrade: take newer releases)
	@$(BIN)/python tools/locks.py $(LOCK)
	@$(BIN)/python tools/licences.py

.PHONY: audit
audit: $(VENV)/.supply-stamp ## ask the databases of vulnerabilities for what is locked
	@$(BIN)/python tools/audit.py

.PHONY: clean
clean: ## remove .venv, caches and the demo's bundle
	rm -rf $(VENV) $(BUNDLE) build *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find edge_runtime export tests -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: stale
stale:
	@echo "making $(VENV) with `$(PYTHON) --version 2>&1`"
	@$(PYTHON) -c 'import sys; sys.exit("edge-runtime needs Python 3.10 or later" if sys.version_info < (3, 10) else 0)'
	@rm -rf $(VENV)
	@# Debian packs ensurepip apart: where it is missing, the pip outside fills the venv.
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 \
	  || { $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip -qq --python $(BIN)/python install pip; } \
	  || { echo "cannot make a virtual environment: install python3-venv" >&2; rm -rf $(VENV); exit 1; }
	@echo "$(CURDIR)" > $(VENV)/.place

$(VENV)/.demo-stamp: pyproject.toml $(LOCKS) $(STALE)
	@echo "installing the light runtime, export and the demo model (232 MB), by the lock"
	@$(LOCKED)
	@$(SOURCES)
	@touch $@

$(VENV)/.test-stamp: pyproject.toml $(LOCKS) $(STALE)
	@echo "installing for the tests: the demo, and torch and transformers as the reference"
	@$(LOCKED)
	@$(PINS)
	@$(BESIDE) -e '.[demo,test]'
	@touch $(VENV)/.demo-stamp $@

$(VENV)/.check-stamp: pyproject.toml $(LOCKS) $(STALE)
	@echo "installing for the checks: ruff, mypy and what the types come from"
	@$(PINS)
	@$(BESIDE) -e '.[export,check]'
	@touch $@

$(VENV)/.ready-stamp: pyproject.toml $(LOCKS) $(STALE)
	@echo "installing for tests and checks: the demo, torch and transformers as the reference, ruff and mypy"
	@$(LOCKED)
	@$(PINS)
	@$(BESIDE) -e '.[demo,test,check]'
	@touch $(VENV)/.demo-stamp $(VENV)/.test-stamp $(VENV)/.check-stamp $(VENV)/.sbom-stamp $@

$(VENV)/.fuzz-stamp: pyproject.toml $(LOCKS) $(STALE)
	@echo "installing for the fuzzers: atheris"
	@$(PINS)
	@$(BESIDE) -e '.[fuzz]'
	@touch $@

$(VENV)/.attack-stamp: pyproject.toml $(STALE)
	@echo "installing schemathesis, apart: in the tests' environment it would be a plugin of theirs"
	@$(BIN)/python -m venv --clear --without-pip $(VENV)/http
	@$(PIP) --python $(VENV)/http/bin/python install -qq -e '.[fuzz-http]'
	@touch $@

$(VENV)/.bench-stamp: pyproject.toml $(LOCKS) $(STALE)
	@echo "installing for the bench: the reference, and llama.cpp (compiled here: some minutes the first time)"
	@$(LOCKED)
	@$(PINS)
	@$(BESIDE) -e '.[demo,test,bench]'
	@touch $(VENV)/.demo-stamp $(VENV)/.test-stamp $@

$(VENV)/.sbom-stamp: requirements/tools.txt $(STALE)
	@$(TOOLS)
	@touch $(VENV)/.supply-stamp $@

$(VENV)/.supply-stamp: requirements/tools.txt $(STALE)
	@$(TOOLS)
	@touch $(VENV)/.sbom-stamp $@
