# `make demo` and `make test` need nothing but Python 3.11 or newer on the path.
PYTHON ?= python3.11
VENV := .venv
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
STAMP_DEV := $(VENV)/.installed-dev

.PHONY: demo test check docs clean

# What a user needs; other frameworks and the tools of developers are as large again.
$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet -c constraints.txt -e ".[torch,exact,onnx,serve,service]"
	touch $(STAMP)

$(STAMP_DEV): $(STAMP)
	$(BIN)/pip install --quiet -c constraints.txt -e ".[torch,exact,dev]"
	touch $(STAMP_DEV)

demo: $(STAMP)
	$(BIN)/placewright quickstart --out demo

# Three at a time on two cores: tests wait for processes that they start. Whoever is done takes half
# of what another has left.
test: $(STAMP_DEV)
	$(BIN)/python -m pytest -n 3 --dist worksteal

check: $(STAMP_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) demo site
