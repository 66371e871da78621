# Two commands: `make demo` and `make test`. Everything lands in .venv.
PYTHON ?= python3
# With this exact release pip takes a CPU build where one is offered; on a machine with an NVIDIA GPU the default build is the CUDA one.
TORCH ?= torch==2.13.0
DEMO ?= chain:new-gelu:1024x1024

BIN := .venv/bin
GPU := $(shell command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -c GPU || echo 0)
ifneq ($(GPU),0)
DEMO_EXTRAS := [cuda]
endif

.PHONY: demo test check install-demo install-test gpu-test clean

demo: install-demo
	$(BIN)/kernelwright doctor
	$(BIN)/kernelwright optimize $(DEMO)

test: install-test check
	$(BIN)/python -m pytest -m "not gpu and not network" -n 2 --dist loadfile

check:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

gpu-test: install-test
	$(BIN)/python -m pytest -m gpu

install-demo: .venv/demo.stamp
install-test: .venv/test.stamp

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/demo.stamp: .venv/bin/python pyproject.toml
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/pip install --quiet "$(TORCH)"
	$(BIN)/pip install --quiet -e ".$(DEMO_EXTRAS)"
	touch $@

.venv/test.stamp: .venv/demo.stamp
	$(BIN)/pip install --quiet -e ".[cuda,search,sparse,train,dev]"
	touch $@

clean:
	rm -rf .venv kernelwright-out
