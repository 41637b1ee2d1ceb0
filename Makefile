# Every target sets up what it needs: `make demo` and `make test` work on a bare clone (Debian, Python 3.11, git, make).
SHELL := /bin/bash
UV := .uv/bin/uv
BIN := .venv/bin
PY := $(BIN)/python
export OMP_NUM_THREADS ?= 1
export RAY_USAGE_STATS_ENABLED ?= 0
export TOKENIZERS_PARALLELISM ?= false

.PHONY: setup
setup: .venv/.stamp

$(UV):
	python3 -m venv .uv
	.uv/bin/pip install --quiet --disable-pip-version-check uv

# UV_FIND_LINKS: uv does not read pip's own list of local wheel folders.
.venv/.stamp: pyproject.toml | $(UV)
	test -x $(PY) || $(UV) venv --quiet --python python3 .venv
	UV_FIND_LINKS="$$PIP_FIND_LINKS" $(UV) pip install --quiet --python $(PY) -e '.[dev]'
	touch $@

CACHE := $(HOME)/.cache/omniloom

# The demo reads two manuals from Debian packages; without apt it reads one from PyPI; with CORPUS=dir your own folder.
ifdef CORPUS
DEMO_SET := --set output=runs/$(notdir $(abspath $(CORPUS))) --set 'prepare.sources=[{path: "$(abspath $(CORPUS))", standalone_media: true}]' \
  --set 'plan.pack.mixture={}' --set 'prepare.clean.languages=[]'
endif

.PHONY: demo
demo: setup
ifndef CORPUS
	@if command -v apt-get >/dev/null; then \
	  test -d $(CACHE)/gnome-user-docs -a -d $(CACHE)/gimp-help-en || apt-get update -qq || true; \
	  $(BIN)/omniloom fetch demo && $(BIN)/omniloom run jobs/specs/demo.yaml; \
	else \
	  $(BIN)/omniloom fetch demo-pip && $(BIN)/omniloom run jobs/specs/demo.yaml \
	    --set 'prepare.sources=[{path: "$(CACHE)/moviepy", standalone_media: true}]' --set 'plan.pack.mixture={}'; \
	fi
else
	$(BIN)/omniloom run jobs/specs/demo.yaml $(DEMO_SET)
endif

# The notebook over a finished run: make notebook RUN=runs/demo
RUN ?= runs/demo
.PHONY: notebook
notebook: setup
	$(UV) pip install --quiet --python $(PY) jupyterlab
	OMNILOOM_RUN="$(abspath $(RUN))" $(BIN)/jupyter lab jobs/notebooks/inspect.ipynb

.PHONY: check
check: setup
	$(BIN)/ruff check .
	$(BIN)/mypy schemas datapipe rewards trainer kernels jobs
	$(BIN)/lint-imports

.PHONY: test
test: setup
	$(BIN)/pytest -q -n 2 --dist loadfile tests

# Every property over examples that no run has seen before.
.PHONY: fuzz
fuzz: setup
	$(BIN)/pytest -q -n 2 -m hypothesis --hypothesis-profile random tests

.PHONY: test-slow
test-slow: setup
	$(BIN)/pytest -q -m slow tests

# Data benchmarks, ours beside peers in one run; JSON into tests/bench/results. On an otherwise idle machine.
.PHONY: bench-data
bench-data: setup
	$(UV) pip install --quiet --python $(PY) -e '.[dev,bench]'
	for subject in dedupe read image_hash pack html video path; do $(PY) -m tests.bench.$$subject || exit 1; done

# Sparse attention beside torch's dense one, on one core; about forty minutes, TOKENS="8192 16384" for a part.
.PHONY: bench-msa
bench-msa: setup
	$(PY) -m tests.bench.msa $(TOKENS)

# Sparse attention in transformers beside the model's own attention there; minutes, TOKENS="1024 2048" for a part.
.PHONY: bench-msa-hf
bench-msa-hf: setup
	$(PY) -m tests.bench.msa_hf $(TOKENS)

# Sparse attention's Triton kernels for four GPUs that need not be here: registers, spills, shared memory. A minute.
.PHONY: compile-msa
compile-msa: setup
	TRITON_INTERPRET=0 TRITON_DEFAULT_FP_FUSION=1 $(PY) -m tests.bench.msa_compile $(TARGETS)

# On a machine with a GPU, each under five minutes.
.PHONY: test-gpu bench-gpu
test-gpu: setup
	TRITON_INTERPRET=0 $(BIN)/pytest -q -m gpu tests

bench-gpu: setup
	TRITON_INTERPRET=0 $(PY) -m tests.bench.msa_gpu $(TOKENS)

# Six packages of odd files through the whole path; ends with 1 where one is lost or becomes what it should not.
.PHONY: torture
torture: setup
	test -d $(CACHE)/debian-forensics-samples-files || apt-get update -qq || true
	$(PY) -m tests.torture
