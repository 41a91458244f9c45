# `make demo` and `make test` need nothing but Linux and Python 3.11 or newer.

VENV ?= .venv
BIN := $(VENV)/bin
CANDIDATES := python3 python3.14 python3.13 python3.12 python3.11
NEW_ENOUGH := 'import sys; sys.exit(sys.version_info < (3, 11))'
PYTHON ?= $(firstword $(foreach python,$(CANDIDATES),$(shell $(python) -c $(NEW_ENOUGH) 2>/dev/null && echo $(python))))
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
PYTEST := $(BIN)/pytest

# Evaluation data, for the tests that use them; those tests are skipped where there are none.
BASS_DATA ?= $(wildcard data)
ifneq ($(BASS_DATA),)
export BASS_DATA := $(abspath $(BASS_DATA))
endif

# Compiled files are kept: without them, each worker and each child process of the tests compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo quick test lint mutants families options picture notebook nightly gpu sanitize paper docs release clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "Times are for two idle CPU cores; docs/correctness.md says what they rest on."

demo: $(VENV)/installed  ## set up, then watch the embedded pair write code, with and without speculation
	$(BIN)/bass generate --example -n 8 --compare-plain

# The inner loop: verifiers by enumeration, the engine against its oracle on tables, and unit tests. Left out: the files of unit tests that
# start processes, import transformers, write run folders, or take more than about five seconds, and the properties of whole models.
LONG_UNITS := $(wildcard $(addprefix tests/unit/test_,$(addsuffix .py,ablate bad_* bench chat cli* docs examples generation hub own_modules \
	package pages pass_at_k pictures problems programs quantized* report* rope runner simulate steps_ahead testing_* text* traces weights)))
QUICK := tests/laws/test_0_enumeration.py tests/laws/test_1_greedy.py tests/unit $(addprefix --ignore=,$(LONG_UNITS)) \
	--deselect=tests/laws/test_1_greedy.py::test_every_layout_backend_policy_drafter_and_verifier_emits_the_oracles_tokens \
	--deselect=tests/unit/test_attention.py::test_an_interpreted_backend_equals_dense_causal_attention_too
quick: $(VENV)/installed-dev  ## the inner loop: properties on tables and quick unit tests (1 to 2 minutes)
	OMP_NUM_THREADS=1 $(PYTEST) -n 2 $(QUICK)

test: $(VENV)/installed-dev  ## set up, then run the tests (4 minutes)
	OMP_NUM_THREADS=1 $(PYTEST) -n 2

lint: $(VENV)/installed-dev  ## ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

mutants: $(VENV)/installed-dev  ## mutation testing: every defect in a copy of the source must fail a test (half an hour)
	cd tests && $(abspath $(BIN))/python -m support.mutants

families: $(VENV)/installed-dev  ## compare every model family with transformers, and write the table of docs/correctness.md
	cd tests && $(abspath $(BIN))/python -m models.table

options: $(VENV)/installed-dev  ## write the tables of options in the documentation
	cd tests && $(abspath $(BIN))/python -m support.options_page

picture: $(VENV)/installed-dev  ## draw the pictures of the README and of the cost model from runs of the code
	cd tests && $(abspath $(BIN))/python -m support.pictures

notebook: $(VENV)/installed-dev  ## write the tutorial as a notebook from its pages
	cd tests && $(abspath $(BIN))/python -m support.notebook

nightly: $(VENV)/installed-dev $(VENV)/installed-docs  ## the slow tests, with many more random cases (two to three hours)
	HYPOTHESIS_PROFILE=nightly OMP_NUM_THREADS=1 $(PYTEST) -n 2 -m "not gpu"

gpu: $(VENV)/installed-dev  ## the tests that need a CUDA device, and tests/laws on it, step by step and in graphs
	BASS_TEST_DEVICE=cuda $(PYTEST) $(GPU_OPTIONS) -m "gpu or not nightly" tests/laws tests/unit tests/kernels
	BASS_TEST_DEVICE=cuda BASS_TEST_GRAPHS=1 $(PYTEST) $(GPU_OPTIONS) -m "not gpu and not nightly" tests/laws tests/kernels

# One process and no caching of memory, so that an access beyond a tensor is one beyond an allocation. Left out: what draws many examples,
# long prefills and whole engines, which under the sanitizer would take hours and launch the same kernels; and captures, which need the cache.
SANITIZER ?= compute-sanitizer
SANITIZED := $(BIN)/python -m pytest -n 0 -p no:cacheprovider tests/kernels -k "not anywhere and not prefill and not emit and not engine and not in_a_graph"
sanitize: $(VENV)/installed-dev  ## the kernels under compute-sanitizer: accesses out of bounds, races in shared memory
	BASS_TEST_DEVICE=cuda PYTORCH_NO_CUDA_MEMORY_CACHING=1 $(SANITIZER) --tool memcheck --error-exitcode 1 $(SANITIZED)
	BASS_TEST_DEVICE=cuda PYTORCH_NO_CUDA_MEMORY_CACHING=1 $(SANITIZER) --tool racecheck --error-exitcode 1 $(SANITIZED)

paper: $(VENV)/installed  ## on a GPU: the experiments of the BASS paper, and the tables of docs/paper.md
	$(BIN)/python benchmarks/paper.py

# The theme is maintained until May 2027, as each build would warn. Its successor Zensical builds this mkdocs.yml unchanged.
docs: $(VENV)/installed-docs  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

release: $(VENV)/installed-dev $(VENV)/installed-docs $(VENV)/installed-release  ## check that this tree can be released; it tags and uploads nothing
	cd tests && $(abspath $(BIN))/python -m support.release $(CHECKS)

clean:  ## remove what was built, and the virtual environment
	rm -rf $(VENV) build dist site .pytest_cache .ruff_cache .hypothesis src/*.egg-info

# Triton: a CPU build of torch needs none, and the tests' is this one; other builds replace it by their own.
TRITON := triton==3.6.0

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer was not found: install it, or name it with 'make PYTHON=/path/to/python3'."; exit 1; }
	@$(PYTHON) -c $(NEW_ENOUGH) || { echo "$(PYTHON) is older than 3.11: install a newer one, or name it with 'make PYTHON=/path/to/python3'."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@test "$$(uname)" != Linux || $(PIP) $(TRITON)

$(VENV)/installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing bass into $(VENV) (torch is large: this can take a few minutes) ..."
	@$(PIP) -e .
	@touch $@

$(VENV)/installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing bass and its development tools into $(VENV) ..."
	@$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/installed

$(VENV)/installed-docs: pyproject.toml constraints.txt | $(BIN)/python
	@$(PIP) -e '.[docs]'
	@touch $@ $(VENV)/installed

$(VENV)/installed-release: pyproject.toml constraints.txt | $(BIN)/python
	@$(PIP) -e '.[release]'
	@touch $@ $(VENV)/installed
