# make demo | test | lint | types | bench. The first call sets up .venv; nothing else is needed on a fresh machine.
# make demo TRAIN=1 also installs PyTorch and DeepSpeed, for the demo's last part.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
EXTRAS := demo
ifeq ($(TRAIN),1)
EXTRAS := demo,train
endif
DEMO   := $(VENV)/.installed-$(EXTRAS)
DEV    := $(VENV)/.installed-dev

export RAY_AUTH_MODE ?= disabled
# DeepSpeed compiles nothing at installation.
export DS_BUILD_OPS ?= 0

.PHONY: demo test lint types bench clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(DEMO): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

# jieba-fast and kenlm are built from source: the one thing here that wants a C++ compiler. What megatron-core depends on
# is for GPUs; reading and writing pairs needs none of it.
$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	command -v c++ >/dev/null || { apt-get update -qq && apt-get install -qq -y --no-install-recommends g++; }
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps megatron-core
	touch $@

demo: $(DEMO)
	$(BIN)/python -m taojin.demo

test: $(DEV)
	$(BIN)/python -m pytest --numprocesses logical --maxprocesses 4 --dist loadfile

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV)
	$(BIN)/mypy

bench: $(DEV)
	$(BIN)/python -m bench.run

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache demo-output
