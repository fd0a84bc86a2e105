# Every target does the set-up it needs, into .venv, and exits non-zero when what it shows is missed.

PYTHON ?= python3
BIN := .venv/bin

# Bits depend on the number of threads. One thread is what the exactness promise is tested with, and it is fast on small nets.
export OMP_NUM_THREADS := 1

.DEFAULT_GOAL := help
.PHONY: help setup proto demo demo-trainer demo-service test test-all test-hf test-transfer chaos fuzz soak bench bench-peers gpu-check check exactness

help:  ## Say what there is to make
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

setup: .venv/.ready  ## Install milepost and all it is developed with into .venv

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("milepost needs Python 3.11 or newer, not " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch,sb3,sb3-contrib,envs,service,dev]'
	touch $@

proto: .venvs/proto/.ready  ## Make the code of the service's protocol anew, with a generator that is old enough for all it is to run beside
	.venvs/proto/bin/python -m tests.service.proto.generate

.venvs/proto/.ready: tests/service/proto/generate.py
	$(PYTHON) -m venv .venvs/proto
	.venvs/proto/bin/python -m pip install --quiet --disable-pip-version-check grpcio-tools==1.72.2
	touch $@

demo: setup  ## Kill real training runs again and again; show that they end bit for bit like the undisturbed ones
	$(BIN)/python examples/demo.py

demo-trainer: setup  ## Kill a trainer of two ranks at random, 10 times; show that it ends bit for bit like the undisturbed one
	$(BIN)/python examples/trainer_demo.py

demo-service: setup  ## Kill a checkpoint service, its trainer and its samplers at random, 10 times; show that what was promised holds, and that training goes on
	$(BIN)/python examples/service_demo.py

# Each worker is a process that has imported all there is to test, and many tests start some of their own.
TEST_WORKERS ?= 2

test: setup  ## Run the tests, in TEST_WORKERS (2) processes
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder

test-all: export MILEPOST_AT_LENGTH := 1
test-all: test test-hf test-transfer chaos  ## Run every test there is, at length, also those that install tools of their own

test-hf: .venvs/hf/.ready  ## Export tiny models of transformers and PEFT and open them again; upload them to a hub on this machine
	.venvs/hf/bin/python -m pytest tests/heavy/hf

.venvs/hf/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venvs/hf
	.venvs/hf/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[hf,dev]' peft
	touch $@

test-transfer: export LD_LIBRARY_PATH := $(CURDIR)/.venvs/transfer/lib/verbs$(if $(LD_LIBRARY_PATH),:$(LD_LIBRARY_PATH))
test-transfer: .venvs/transfer/.ready  ## Read versions out of another process's memory with the transfer engine of Mooncake, over TCP
	.venvs/transfer/bin/python -m pytest --basetemp=.venvs/transfer/tmp tests/heavy/transfer

# The engine needs libibverbs, which no Python package brings. Where the system has none, Debian's is unpacked beside the engine.
.venvs/transfer/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venvs/transfer
	.venvs/transfer/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[rdma]' pytest pytest-timeout hypothesis
	mkdir -p .venvs/transfer/lib/verbs
	ldconfig -p | grep -q 'libibverbs\.so\.1' || { cd .venvs/transfer/lib && \
	    apt-get download -q libibverbs1 libnl-3-200 libnl-route-3-200 && \
	    for package in *.deb; do dpkg -x "$$package" . || exit 1; done && find . -name '*.so.*' -path '*-linux-gnu/*' -exec cp -P '{}' verbs ';'; }
	touch $@

soak: setup  ## Lay siege: over 10,000 kills and power cuts, sick disks, 10,000 flipped bits, 2,000 signals, 100 killed ranks, 600 strikes on the service; nothing acknowledged may be lost
	$(BIN)/python -m tests.soak

bench: setup  ## Measure milepost, its floors and its peers; about 16 minutes on a machine that does nothing else; fails if a goal is missed
	$(BIN)/python -m bench --page docs/performance.md

bench-peers: .venvs/peers/.ready  ## Install what is heavy and only measured beside milepost (Orbax with jax, Ray) into .venvs/peers

.venvs/peers/.ready: constraints.txt
	$(PYTHON) -m venv .venvs/peers
	.venvs/peers/bin/python -m pip install --quiet --disable-pip-version-check orbax-checkpoint==0.12.8 ray==2.60.0
	touch $@

gpu-check: setup  ## Show on a GPU that saving its tensors is exact and does not wait; says "not run" where there is none
	$(BIN)/python -m bench.gpu_check

chaos: setup .venvs/chaos/.ready  ## Let ckpt-chaos, which knows nothing of milepost, kill a trainer at each of its file operations
	rm -rf .chaos
	.venvs/chaos/bin/ckpt-chaos run --work .chaos --modes before,torn,term,unsynced --max-points 1000 --jobs 2 \
	    --checkpoint-glob '{out}/run/generations/*.json' --ckpt-ignore-size --step-regex 'resumed from step (\d+)' \
	    --result-file '{out}/final.txt' --fail-on HARD_FAIL,SILENT_DIVERGENCE,CONTROL_FAIL,LOST_WORK \
	    -- $(BIN)/python tests/chaos/train.py --out '{out}'

.venvs/chaos/.ready: constraints.txt
	$(PYTHON) -m venv .venvs/chaos
	.venvs/chaos/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt ckpt-chaos
	touch $@

FUZZ_SECONDS ?= 60

fuzz: .venvs/fuzz/.ready  ## Feed every reader of files with what a fuzzer makes of them, FUZZ_SECONDS (60) each
	for target in record tree names holder blob frame root; do .venvs/fuzz/bin/python fuzz/run.py $$target $(FUZZ_SECONDS) || exit 1; done

.venvs/fuzz/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venvs/fuzz
	.venvs/fuzz/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	touch $@

exactness: setup  ## Kill and resume runs of every algorithm in every kind of environment; every bit must be equal; under 40 minutes
	$(BIN)/python -m pytest tests/adapters/test_sb3_exact.py
	$(BIN)/python -m exactness --page docs/exactness.md

check: setup  ## Check format, lint, types and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
