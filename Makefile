# The two commands of the README are `make demo` and `make test`; each installs what is missing first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help demo test test-slow lint install bench bench-peers
help:
	@echo "make demo       pretrain a small ALBERT on prose that Python brings, and fill in masked sentences"
	@echo "make test       lint and the quick tests"
	@echo "make test-slow  the long tests as well"
	@echo "make lint       style and format"
	@echo "make install    only the environment, in $(VENV)"
	@echo "make bench      speed and memory beside the peers, into docs/results; on a machine that does nothing else"
	@echo "PYTHON=python3.12 chooses the Python (3.10 to 3.12)"

demo: install
	$(BIN)/python -m tpu.demo

test: lint
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

test-slow: $(VENV)/.installed-slow lint
	$(BIN)/python -m pytest -q -n 2 --dist worksteal --slow

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

install: $(STAMP)

# The stamp follows the files that list the packages. pip comes first: the one of Python 3.10 takes many minutes to find
# versions that fit together, the current one half a minute.
$(STAMP): setup.cfg pyproject.toml
	@command -v $(PYTHON) > /dev/null || { echo "make: no $(PYTHON) found: install Python 3.10 to 3.12, or name one with PYTHON=..." >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' || { echo "make: $(PYTHON) is $$($(PYTHON) -V 2>&1): Python 3.10 to 3.12 is needed (TensorFlow 2.20, tf-models-official); name one with PYTHON=..." >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || { echo "make: $(PYTHON) has no venv module: install it (Debian, Ubuntu: apt install python3-venv)" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

$(VENV)/.installed-slow: $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[test,hf,serving,beam]'
	touch $@

# The peers want other versions than the project, hence an environment of their own.
PEERS := .venv-peers
bench-peers: $(PEERS)/.installed

bench: install bench-peers
	$(BIN)/python -m benchmarks.peers

$(PEERS)/.installed: benchmarks/peers/requirements.txt | $(STAMP)
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --upgrade pip
	$(PEERS)/bin/python -m pip install --quiet --requirement benchmarks/peers/requirements.txt
	touch $@
