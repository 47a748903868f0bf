# Two commands do everything on a fresh machine with Python >= 3.11, make and a C++ compiler:
#   make demo    fit plain and robust models on real data and print what robustness buys
#   make test    run the tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The stamp files say which extras are installed, and that the kernels are built from what is there.
STAMP := $(VENV)/.stamp
SOURCES := pyproject.toml hatch_build.py $(wildcard src/drago/kernels/*pp)

# How to install into the environment is written down when that is made.
PIP := sh $(VENV)/pip install --quiet --no-compile

# What drago is compared with has an environment of its own.
PEERS := .venv-peers

# Two workers, of which the one that is done takes over tests of the other. Both write the bytecode
# of the tests, or each run would compile them twice anew.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal

.DELETE_ON_ERROR:
.PHONY: demo test test-slow test-all lint format docs test-oldest test-newest release-check bench bench-peers paper paper-quick paper-docs clean

demo: $(STAMP)-core
	$(BIN)/python examples/demo.py

test: $(STAMP)-test
	$(PYTEST) -m "not slow"

test-slow: $(STAMP)-test
	$(PYTEST) -m slow

test-all: test test-slow

lint: $(STAMP)-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)-lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site, in build/docs/html. It is built without the network, and a warning is an error.
docs: $(STAMP)-docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs/html
	$(BIN)/python docs/_ext/links.py build/docs/html

# The quick tests with the oldest versions that pyproject.toml promises, and with the newest there are,
# each in an environment of its own.
test-oldest: | $(VENV)/pip
	$(BIN)/python -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --no-compile --constraint constraints-oldest.txt ".[test]"
	PYTHONDONTWRITEBYTECODE= .venv-oldest/bin/python -m pytest -n 2 --dist worksteal -m "not slow"

test-newest: | $(VENV)/pip
	$(BIN)/python -m venv .venv-newest
	.venv-newest/bin/python -m pip install --quiet --no-compile --upgrade ".[test]"
	PYTHONDONTWRITEBYTECODE= .venv-newest/bin/python -m pytest -n 2 --dist worksteal -m "not slow"

# A wheel and an sdist as they would be published; each is installed into an empty environment and tried.
release-check: $(STAMP)-release
	rm -rf dist
	DRAGO_LEVELS=all $(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python tests/smoke.py dist/*

bench: $(STAMP)-core
	$(BIN)/python benchmarks/bench_dual.py

bench-peers: $(PEERS)/.stamp
	$(PEERS)/bin/python benchmarks/bench_peers.py dro mean --solvers auto lbfgs

# The paper's experiments (long), and a small version of them (minutes).
# Both need the data sets in DRAGO_DATA_DIR and go on where they were stopped.
paper: $(STAMP)-bench
	$(BIN)/python benchmarks/paper --size full --out results/paper

paper-quick: $(STAMP)-bench
	$(BIN)/python benchmarks/paper --size quick --out results/paper-quick

# The docs page, from the results of `make paper`.
paper-docs: $(STAMP)-bench
	$(BIN)/python benchmarks/paper --size full --out results/paper --docs docs

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# This Python's own pip installs there, where it has one: that takes less time than to bring one there.
$(VENV)/pip:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "drago needs Python 3.11 or later; set PYTHON=...")'
	$(PYTHON) -m venv --without-pip $(VENV)
	$(PYTHON) -c 'import pip, sys; print(f"\"{sys.executable}\" -m pip --python $(VENV) \"$$@\"")' > $@ 2> /dev/null \
	  || { $(BIN)/python -m ensurepip > /dev/null && echo '$(BIN)/python -m pip "$$@"' > $@; }

# What the kernels are built with is installed by two at a time, and the rest while they are built.
$(STAMP)-core: $(SOURCES) | $(VENV)/pip
	$(BIN)/python -c 'import tomllib; told = tomllib.load(open("pyproject.toml", "rb")); \
	  print(*told["build-system"]["requires"], "editables", sep="\n"); \
	  print(*told["project"]["dependencies"], sep="\n", file=open("$(VENV)/core.txt", "w"))' > $(VENV)/build.txt
	xargs -n 2 -P 2 $(PIP) < $(VENV)/build.txt
	$(BIN)/python hatch_build.py & kernels=$$!; $(PIP) -r $(VENV)/core.txt \
	  && DRAGO_LEVELS=none $(PIP) --no-build-isolation --editable . && wait $$kernels
	touch $@

$(STAMP)-test: $(SOURCES) constraints.txt | $(VENV)/pip
	$(PIP) --constraint constraints.txt pip --editable ".[test,torch]"
	touch $@ $(STAMP)-core

$(STAMP)-lint: $(SOURCES) | $(VENV)/pip
	$(PIP) --editable ".[lint]"
	touch $@ $(STAMP)-core

$(STAMP)-docs: $(SOURCES) constraints.txt | $(VENV)/pip
	$(PIP) --constraint constraints.txt --editable ".[docs]"
	touch $@ $(STAMP)-core

$(STAMP)-release: $(SOURCES) | $(VENV)/pip
	$(PIP) pip --editable ".[release]"
	touch $@ $(STAMP)-core

$(STAMP)-bench: $(SOURCES) | $(VENV)/pip
	$(PIP) pip --editable ".[bench]"
	touch $@ $(STAMP)-core

# Both in one environment, so that they run in one process. `dro` without what it depends on: that
# is gigabytes (torch, torchvision, xgboost), of which its linear models use CVXPY alone.
$(PEERS)/.stamp: $(SOURCES)
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --no-compile --editable . "cvxpy>=1.7" clarabel
	$(PEERS)/bin/python -m pip install --quiet --no-compile --no-deps dro==0.4.3
	touch $@
