# `make` alone lists the targets. Everything happens inside .venv; nothing else on the machine changes.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Lanes of tests to play (tools/lanes): their names, or --changed; every lane where it is empty.
LANES ?=
# Words for pytest, which then plays these in place of lanes: TEST_FLAGS="tests/unit -x".
TEST_FLAGS ?=
TEST_WORKERS ?= 5
# For make flower and make newest: --changed plays them unless .ci/lanes.json covers them, --record
# records there that they passed.
BESIDE ?=

FUZZ_SECONDS ?= 20
FUZZ_TARGETS ?=
VM_FLAGS ?=
GUEST_BOOT_FLAGS ?=
TABLES := docs/reference/benchmarks

COMPILED := sealtrain.broker.serve, sealtrain.guest.run, sealtrain.training.phases.rlhf, \
	sealtrain.training.phases.dpo, sealtrain.training.phases.sft

# A further package index, for another build of torch: make demo INDEX=URL
ifdef INDEX
export PIP_EXTRA_INDEX_URL := $(INDEX)
endif

# The first interpreter that really runs and is new enough; override with PYTHON=/path/to/python.
PYTHON ?= $(shell for candidate in python3 python3.13 python3.12 python3.11; do \
	$$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$candidate && break; done)

# Libraries are installed uncompiled, and Python keeps what it compiled: otherwise every process that
# a test starts would compile them again, torch among them.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help compiled demo deployed test lanes verifier check flower torchao audit fuzz images model newest service tables docs shots format changelog clean learning nightly vm-test guest-boot enclave-boot walk

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

demo: $(STAMP) ## three hospitals train one model on records none of them shows (about 3 minutes)
	@$(BIN)/python examples/three_hospitals/demo.py

deployed: $(STAMP) ## guests that come and go, and four that train one model (4 minutes; Linux with namespaces)
	@$(BIN)/python examples/deployed/run.py
	@$(BIN)/python examples/several_nodes/run.py

test: $(STAMP) ## run the tests (20 to 45 minutes on two cores, by their speed); LANES=pads or TEST_FLAGS="tests/unit -x" narrows them
ifdef TEST_FLAGS
	$(BIN)/python -m pytest $(TEST_FLAGS)
else
	$(BIN)/python tools/lanes/play_lanes.py --workers $(TEST_WORKERS) $(LANES)
endif

lanes: $(STAMP) ## run the lanes of tests that changed, and record in .ci/lanes.json which passed
	$(BIN)/python tools/lanes/play_lanes.py --workers $(TEST_WORKERS) --changed --record $(LANES)

IMAGES ?= broker guest-cpu
images: $(STAMP) ## the container images of this source, into dist/images (3 minutes); IMAGES narrows them
	@for name in $(IMAGES); do $(BIN)/python tools/images/build.py $$name --out dist/images || exit; done

NEWEST ?= tests/cli
newest: $(STAMP) ## the command line's tests on our wheel and the newest libraries that it admits (3 minutes); NEWEST narrows it
	$(BIN)/python tools/lanes/play_beside.py newest $(BESIDE) -- $(BIN)/python tools/newest.py $(VENV)-newest $(NEWEST)

FLOWER ?= -m "flower and not nightly"
flower: $(STAMP) ## the tests that meet the real Flower, in an environment of its own (2 minutes); FLOWER="-m flower" for the night's too
	$(BIN)/python tools/lanes/play_beside.py flower $(BESIDE) -- $(BIN)/python tools/flower/play.py $(VENV)-flower $(FLOWER)

torchao: $(STAMP) ## the tests of torchao's optimizers, with torchao beside our libraries (2 minutes)
	$(BIN)/python -m pip install -q -c constraints.txt --no-deps --upgrade --target $(VENV)-torchao torchao
	PYTHONPATH=$(VENV)-torchao $(BIN)/python -m pytest -m "" -k of_few_bits tests/equivalence/test_compiled_exact.py tests/unit/training/checkpoints/test_training_statefile.py

audit: $(STAMP) ## known faults of the pinned libraries, by pip-audit; says so where it did not run, for want of a network
	@$(BIN)/python tools/audit.py $(VENV)-audit

check: $(STAMP) ## formatting, lint, types, layers: what must hold before a change is looked at (1 minute)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

walk: $(STAMP) ## play every switch of the walk, and write the table of its guide (2 minutes)
	$(BIN)/python tools/walk_page.py

fuzz: $(STAMP) ## fuzz every parser of attestation, FUZZ_SECONDS each (20); FUZZ_TARGETS narrows it
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install -q \
		--disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	$(BIN)/python tools/fuzz/fuzz.py --seconds $(FUZZ_SECONDS) $(FUZZ_TARGETS)

learning: $(STAMP) ## tests too long for each change: every phase learns, and trains in two ranks of every backend
	@$(BIN)/python -m pip show -q deepspeed 2>/dev/null || $(BIN)/python -m pip install -q \
		--disable-pip-version-check -c constraints.txt -e '.[deepspeed]'
	$(BIN)/python -m pytest -q -n $(TEST_WORKERS) --dist loadfile -m nightly -o hang_seconds=3900

vm-test: $(STAMP) ## the closed run on Linux 6.1 to the newest, in virtual machines (15 minutes; Debian); VM_FLAGS=newest
	$(BIN)/python tools/vm/run.py $(VM_FLAGS)

guest-boot: $(STAMP) ## boot the guest's disk of this source in QEMU, compare its registers, and train in it (40 minutes; Debian 12)
	$(BIN)/python tools/vm/guest_boot.py $(GUEST_BOOT_FLAGS)

enclave-boot: $(STAMP) ## in enclaves, played by QEMU, a broker proves what it is and a guest trains (30 minutes; Debian 12)
	$(BIN)/python tools/enclave/boot.py

model: $(STAMP) ## the model of releases and stops in every state, by spin (10 minutes; Debian); FAULTS=faults for the seeded faults alone
	$(BIN)/python tools/model/explore.py $(FAULTS)

service: $(STAMP) ## try a broker against its own OpenAPI document with schemathesis (3 minutes)
	@test -x $(VENV)-service/bin/st || { $(BIN)/python -m venv $(VENV)-service && $(VENV)-service/bin/pip \
		install -q --disable-pip-version-check 'schemathesis==4.32.5' 'cryptography>=50'; }
	$(BIN)/python tools/service/check.py --st $(VENV)-service/bin/st

tables: $(STAMP) ## measure what docs/reference/benchmarks says; of medical.md what its cells lack (13 hours for all of it)
	$(BIN)/python benchmarks/travelling.py --write
	$(BIN)/python benchmarks/verifiers.py --write
	$(BIN)/python tests/support/second_counts.py
	$(BIN)/python benchmarks/medical.py --write

docs: $(STAMP) ## the site, into dist/site; its links are checked (1 minute)
	$(BIN)/python tools/site/pages.py

verifier: $(STAMP) ## the second verifier as one page, dist/verify.html; its digest is in verify/verify.html.sha256
	$(BIN)/python tools/verifier_page.py --page dist/verify.html

shots: $(STAMP) ## pictures of every page, into dist/shots (2 minutes; Chromium and Node); of the site after make docs
	$(BIN)/python tests/support/console_shots.py --out dist/shots --site dist/site

format: $(STAMP) ## format the code and the generated reference pages
	$(BIN)/ruff check --fix --exit-zero .
	$(BIN)/ruff format .
	$(BIN)/python tools/error_reference.py
	$(BIN)/python tools/cli_reference.py
	$(BIN)/python tools/negative_cases.py
	$(BIN)/python tools/bad_input_reference.py
	$(BIN)/python tests/support/ranks_matrix.py
	$(BIN)/python tools/guide_pictures.py
	$(BIN)/python tools/notebook.py
	$(BIN)/python tools/recipe_schema.py
	$(BIN)/python tools/architecture.py
	$(BIN)/python tools/openapi_documents.py
	$(BIN)/python tools/grafana_dashboard.py
	$(BIN)/python tools/verifier_page.py

changelog: $(STAMP) ## collect changes/ into CHANGELOG.md: make changelog VERSION=1.2.3
	@$(BIN)/python -c 'import towncrier' 2>/dev/null || $(BIN)/python -m pip install -q \
		--disable-pip-version-check 'towncrier>=25'
	$(BIN)/python -m towncrier build --yes --version $(VERSION)

nightly: export SEALTRAIN_COLD := 1
nightly: export SEALTRAIN_NIGHT := 1
nightly: FLOWER := -m flower -o hang_seconds=3900
nightly: BESIDE :=
nightly: test newest learning flower torchao fuzz model service deployed vm-test guest-boot enclave-boot ## every lane, and what is too long for each change: learning, fuzzing, the model, OpenAPI, a deployed run, other kernels, a guest's disk, an enclave (3 hours)

clean: ## remove the environment, caches and the demo's output
	rm -rf $(VENV) $(VENV)-newest $(VENV)-service $(VENV)-vm $(VENV)-flower $(VENV)-torchao $(VENV)-audit .images dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache demo-out consortium-out deployed-out nodes-out story-out walk-out real-model-out real-model-wheels
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "sealtrain needs Python 3.11 or newer: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@echo "Installing into $(VENV), once; this takes some minutes."
	@$(PYTHON) -m venv $(VENV)
	@# The pip that comes with Python 3.11 takes twice as long where it installs in place of uv.
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt 'pip>=25' uv
	@$(BIN)/python tools/install.py -c constraints.txt -e '.[dev]'
	@# All of it compiled takes as long as the download; what a run imports is compiled here, once:
	@# processes that start at the same moment would each compile it. .ci/run does it beside others.
	@test -z "$(COMPILED)" || $(BIN)/python -W ignore -c 'import $(COMPILED)'
	@touch $@

compiled: # of the installed libraries, what a run imports
	@$(BIN)/python -W ignore -c 'import $(COMPILED)'
