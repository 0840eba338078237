# The front door. `make run` and `make test` set everything up first.
PY := .venv/bin/python
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# Bytecode that the first to import a file writes spares all others the compiling.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test test-all test-torch test-nightly setup setup-run lint docs format bench clean help

run: setup-run  ## set everything up and run the main job
	$(PY) -m sim.run topologies/taco-vgg16-v100-25g.yaml

# Quick tests wait for other processes a sixth of their time: more workers than cores use that.
WORKERS ?= $(shell expr $$(nproc) + $$(nproc) / 2)

# All tests of a file run in one worker, so that what they share is made once.
test: setup  ## set everything up and run the tests, less the long ones
	@$(PY) -c 'import harp'  # C parts that changed are built once, not by each worker
	$(PY) -m pytest -n $(WORKERS) --dist loadfile -m 'not long'

# K/N runs the long tests of the K-th of every N files, as CI does.
LONG_PART ?= 0/1

# Each worker begins with files that follow one another, so most of what a file shares is made once.
test-all: setup  ## all tests: soaks, long matrices and the emulated machine among them
	@$(PY) -c 'import harp'
	$(PY) -m pytest -n auto --dist worksteal --long-part $(LONG_PART)
	$(PY) -m pytest tests/vm/zero_copy.py

test-torch: setup  ## the tests of what binds torch, with the newest torch that README names
	@$(PY) -c 'import harp'
	sh .ci/newest-torch.sh

test-nightly: setup  ## the same with last night's torch, from pytorch.org
	@$(PY) -c 'import harp'
	sh .ci/newest-torch.sh nightly

setup:  ## prepare .venv, and all that tests need
	@sh .ci/setup.sh test

setup-run:  ## prepare .venv for `make run` alone
	@sh .ci/setup.sh run

lint: setup  ## ruff, mypy --strict, clang-format
	ruff check .
	mypy
	git ls-files '*.c' '*.h' | xargs clang-format --dry-run -Werror

docs: setup  ## the manual as a site, in build/site; a warning ends it
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build

format: setup  ## rewrite C and Python to the project's layout
	ruff check --fix .
	git ls-files '*.c' '*.h' | xargs clang-format -i

bench: setup-run  ## the speed table of the simulator
	$(PY) -m bench sim

clean:  ## remove what setup and the builds made
	rm -rf .venv .venv-torch build

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed 's/:.*## /	/'

.PHONY: wheels sbom
PYTHONS ?= python3.10 python3.11 python3.12 python3.13 python3.14
wheels: setup  ## a wheel in dist/ for each Python that is here: make wheels PYTHONS=python3.13
	@rm -rf build/wheels; for python in $(PYTHONS); do \
	    $$python --version >/dev/null 2>&1 || { echo "wheels: $$python is not here"; continue; }; \
	    echo "wheels: $$($$python --version)"; \
	    $$python -m pip wheel -q --no-deps -w build/wheels . || exit 1; \
	done
	$(PY) -m auditwheel repair --plat manylinux_2_28_$$(uname -m) -w dist build/wheels/*.whl

sbom: setup  ## dist/sbom.json: what the release and its dependencies are, in CycloneDX 1.6
	rm -rf build/sbom && $(PY) -m venv build/sbom && mkdir -p dist
	build/sbom/bin/python -m pip install -q .
	build/sbom/bin/python -m pip uninstall -q -y pip setuptools
	$(PY) deploy/sbom.py build/sbom/bin/python -o dist/sbom.json

.PHONY: dst
SEEDS ?= 2000
dst:  ## the deterministic simulation: make dst SEEDS=100000, or SEED=7 to replay one
	$(PY) -m tests.dst.dst_programs $(or $(if $(SEED),seed $(SEED)),$(if $(FIELD),field $(FIELD)),$(if $(ENGINE),engine $(ENGINE)),$(if $(TCP),tcp $(TCP)),$(SEEDS))

.PHONY: test-vm
test-vm: setup  ## AF_XDP with zero copy, links that fail and older kernels, in an emulated machine
	$(PY) -m pytest tests/vm/zero_copy.py tests/vm/old_kernels.py

.PHONY: test-gpu
test-gpu: setup  ## real NCCL over HARP, where there are a CUDA GPU and torch
	$(PY) -m tests.gpu.run

.PHONY: fuzz
SECONDS ?= 60
fuzz:  ## libFuzzer on the frame parser and the session: make fuzz SECONDS=600
	$(PY) -m tests.cnet.fuzz.fuzz_programs $(SECONDS)
