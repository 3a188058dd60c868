# Everything runs in .venv, which is made from requirements.lock when it is missing, outdated or moved here from elsewhere.
# It takes a Python of 3.11 or later and nothing more: make PYTHON=/path/to/python3.12

PYTHON ?= python3

BIN := .venv/bin
READY := .venv/ready

export RAY_USAGE_STATS_ENABLED := 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help

# .venv/ready holds the path it was made at: an editable install that was copied along would run the code of its origin.
ifneq "$(shell cat $(READY) 2>/dev/null)" "$(CURDIR)"
.PHONY: $(READY)
VENV_FLAGS := --clear
endif

$(READY): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "turnwise needs Python 3.11 or later, and '$(PYTHON)' is not: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@cd src/turnwise && for folder in actors memory strategies; do \
	    [ -e $$folder ] || ln -s ../../$$folder $$folder; done # an unpacked sdist has no links
	$(PYTHON) -m venv $(VENV_FLAGS) .venv
	$(BIN)/python -m pip install --quiet -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	$(BIN)/python -m compileall -q actors memory strategies src # as pip does with what it unpacks: each session's process loads it
	@printf '%s\n' '$(CURDIR)' > $@

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

.PHONY: venv
venv: $(READY) ## make or refresh .venv

.PHONY: serve
serve: $(READY) ## serve sessions over HTTP, with a simulated model where OPENAI_API_KEY is not set: make serve ARGS="--port 8001"
	$(BIN)/python -m turnwise.cli serve --demo --console --packed 2 $(ARGS)

.PHONY: demo
demo: $(READY) ## run the quickstart, against a local stand-in provider where OPENAI_API_KEY is not set
	$(BIN)/python examples/quickstart.py

.PHONY: agent
agent: $(READY) ## run an agent with tools, against the same
	$(BIN)/python examples/agent_with_tools.py

.PHONY: window
window: $(READY) ## hold a conversation that outgrows its window, once with each strategy, against the same
	$(BIN)/python examples/long_conversation.py

.PHONY: memory
memory: $(READY) ## play an HR assistant that remembers over days, and forgets, against the same
	$(BIN)/python examples/hr_policy_chat.py

.PHONY: test
test: $(READY) ## run all tests but the soak, in three lanes
	$(BIN)/python tests/lanes.py $(ARGS)

.PHONY: races
races: $(READY) ## run all schedules of the races and random histories, of which `make test` runs a part
	TURNWISE_ALL=1 $(BIN)/python -m pytest --timeout 900 $$(grep -lE 'TURNWISE_ALL|import share|@given' tests/*/test_*.py) $(ARGS)

.PHONY: soak
soak: $(READY) ## inject 10,000 faults over 20 minutes or more, and write what came of it to tests/soak/LAST.md
	$(BIN)/python -m pytest -m soak tests/soak $(ARGS)

.PHONY: siege
siege: $(READY) ## attack it from outside for 20 minutes, and write what came of it to tests/siege/LAST.md
	RAY_worker_niceness=0 PYTHONPATH=tests/support:tests/siege $(BIN)/python tests/siege/siege.py $(ARGS)

# The tests of the console drive a browser of the system, so that nothing comes from elsewhere.
.PHONY: browser
browser: ## install Debian's Chromium, which the console's tests drive, if there is none
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || { \
	    command -v apt-get >/dev/null || { \
	        echo "there is no chromium, and no apt-get to install it: put a Chromium named 'chromium' on the PATH" >&2; exit 1; }; \
	    if [ "$$(id -u)" = 0 ]; then sudo=; elif sudo -n true 2>/dev/null; then sudo=sudo; else \
	        echo "there is no chromium: run 'apt-get install chromium' as root" >&2; exit 1; fi; \
	    $$sudo apt-get update -qq && $$sudo env DEBIAN_FRONTEND=noninteractive \
	        apt-get install -y -qq --no-install-recommends chromium >/dev/null; }

.PHONY: lint
lint: $(READY) ## format, lint, types
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy

.PHONY: check
check: lint ## lint, and house rules, what is in the wheel, what the README shows
	$(BIN)/python -m pytest tests/project/test_house.py tests/project/test_wheel.py tests/project/test_readme.py tests/project/test_types.py

# 740 MB, which take a minute, and nothing of it is turnwise's: so it has an environment of its own.
LITELLM := .venv-litellm

$(LITELLM)/ready: requirements-litellm.lock
	$(PYTHON) -m venv --clear $(LITELLM)
	$(LITELLM)/bin/python -m pip install --quiet -r requirements-litellm.lock
	@touch $@

.PHONY: test-litellm
test-litellm: $(READY) $(LITELLM)/ready ## run the tests with LiteLLM's proxy in between, which this installs
	$(BIN)/python -m pytest -m litellm tests/inference/test_litellm.py $(ARGS)

.PHONY: quirks
quirks: $(READY) ## list what servers send, and what came of each
	PYTHONPATH=tests/support $(BIN)/python tests/inference/test_quirks.py

.PHONY: test-bench
test-bench: $(READY) ## see that the bench prints all that it is to print
	$(BIN)/python -m pytest -m soak tests/project/test_bench.py $(ARGS)

.PHONY: bench
bench: $(READY) ## measure what turns and sessions cost; parts of it: make bench ARGS="openings packed"
	PYTHONPATH=tests/support $(BIN)/python tests/bench/bench.py $(ARGS)

.PHONY: bench-memory
bench-memory: $(READY) ## measure what long-term memory finds in conversations: make bench-memory DATA=file
	PYTHONPATH=tests/support $(BIN)/python tests/bench/recall.py $(DATA) $(ARGS)

.PHONY: crowd
crowd: $(READY) ## let 200 users chat, save and recall at once for ten minutes; shorter: make crowd ARGS="--seconds 20 --users 40"
	PYTHONPATH=tests/support $(BIN)/python tests/bench/crowd.py $(ARGS)

.PHONY: screenshots
screenshots: $(READY) ## make the pictures of the console in docs/images
	$(BIN)/python tests/console/screenshots.py

.PHONY: clean
clean: ## remove .venv, caches and builds
	rm -rf .venv $(LITELLM) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
