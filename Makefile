PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

WEBUI := webui/node_modules/ready

.PHONY: help setup demo demo-stop test test-all test-fast test-servers check check-webui webui docs pictures chaos bench bench-peers release record-release
help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/pip install --quiet -c constraints.txt -e . --group dev
	touch $@

setup: $(VENV)/ready  ## make the virtual environment

# Most tests wait for processes and machines: all together they use a core less than half of their time, so there are five
# workers for the two cores that CI has; each more collects all tests once more. They start thousands of Python processes,
# each of which would compile its modules anew without bytecode files.
WORKERS ?= 5
export PYTHONDONTWRITEBYTECODE =
PYTEST := tests/run $(BIN)/pytest -q --dist worksteal
test: setup  ## set up and run the tests: each feature, on each platform
	$(PYTEST) -n $(WORKERS) -m 'not thorough' $(ARGS)

test-all:  ## all tests: also many more kills, faults and variants (half an hour); CI runs these
	@$(MAKE) --no-print-directory test ARGS="-m '' $(ARGS)"

test-fast: setup  ## unit, property and contract tests, without those marked as slow; property tests try fewer examples
	$(PYTEST) -n 3 -m 'not slow and not thorough' --hypothesis-profile few tests/unit tests/property tests/contract $(ARGS)

test-servers:  ## install what some tests need (an SSH server, a browser, a Kubernetes control plane, …), as root on Debian; else they are skipped
	deploy/test-servers

check: setup check-webui  ## linters, types, import contracts, and checks of documentation, layout and words
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	test -L src/proctor/manager && test -L src/proctor/sdk
	$(BIN)/mypy
	PYTHONPATH=src $(BIN)/lint-imports
	$(BIN)/pytest -q tests/checks

$(WEBUI): webui/package.json webui/package-lock.json webui/.npmrc
	cd webui && npm ci --no-audit --no-fund
	touch $@

webui: $(WEBUI)  ## build the dashboard into manager/static (needs Node)
	cd webui && npm run --silent build

# Without Node the dashboard is not checked: it travels built. Where PROCTOR_TEST_REQUIRE names webui, Node must be there.
check-webui:
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory $(WEBUI) && cd webui && npm run --silent check; \
	else case " $$PROCTOR_TEST_REQUIRE " in *" webui "*) echo 'check: PROCTOR_TEST_REQUIRE names webui, but there is no npm' >&2; exit 1;; esac; \
	echo 'check: there is no Node (make test-servers installs it); the dashboard is not checked' >&2; fi

# An environment of its own: Proctor and what the trials import, without the tests' packages.
DEMO := .venv-demo
$(DEMO)/ready: pyproject.toml constraints.txt
	@echo 'Setting up $(DEMO): Proctor, PyTorch and scikit-learn (once)'
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/pip install --quiet --upgrade 'pip>=25.1'
	$(DEMO)/bin/pip install --quiet -c constraints.txt -e . torch scikit-learn
	touch $@

IN_DEMO := PROCTOR_HOME="$(CURDIR)/demo-home" PATH="$(CURDIR)/$(DEMO)/bin:$$PATH"
demo: $(DEMO)/ready  ## set up and run the main job: 24 PyTorch trials, in demo-home/
	$(IN_DEMO) proctor create examples/digits/config.yml --foreground
	@echo
	@echo 'See the trials:   export PROCTOR_HOME="$(CURDIR)/demo-home"; $(DEMO)/bin/proctor trial ls'
	@echo 'Tune your script: docs/tutorial.md'
	@echo 'Stop the demo:    make demo-stop'

demo-stop: $(DEMO)/ready  ## stop the demo's experiments and its manager; demo-home/ stays
	$(IN_DEMO) proctor stop --all
	$(IN_DEMO) proctor manager stop

DOCS := .venv-docs
$(DOCS)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip install --quiet --upgrade 'pip>=25.1'
	$(DOCS)/bin/pip install --quiet -c constraints.txt -e . --group docs
	touch $@

docs: $(DOCS)/ready  ## build the documentation as a site in site/; fails at a broken link
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict
	@echo 'Open site/index.html'

pictures: setup  ## draw the pictures of the documentation anew
	PYTHONPATH=src:tests $(BIN)/python docs/site/pictures.py
	PYTHONPATH=src:tests $(BIN)/python docs/site/page_pictures.py

bench: setup  ## measure; one table (about 15 minutes on an idle machine)
	$(BIN)/python -m benchmarks $(ARGS)

PEERS := .venv-peers
$(PEERS)/ready: constraints.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/pip install --quiet -c constraints.txt -e . torch scikit-learn lightning transformers accelerate helios-ml==2.0.1 'ray[tune]==2.60.0' pytest pytest-timeout hypothesis
	$(PEERS)/bin/pip uninstall --quiet --yes torchvision  # not used, and seldom built for the same torch
	touch $@

bench-peers: $(PEERS)/ready  ## measure the PyTorch trainer against a loop by hand, helios-ml, Fabric, Lightning and transformers, and HyperBand against Ray Tune's, in an environment of its own; compare the schedulers' decisions with Ray Tune's
	$(PEERS)/bin/python -m benchmarks.training.peers $(ARGS)
	$(PEERS)/bin/python -m benchmarks.scheduling.peers $(ARGS)
	$(PEERS)/bin/pytest -q benchmarks/scheduling/test_ray_decisions.py

chaos: setup  ## kill twelve times at every fail point, 20 times in a long experiment, 20 times in each cell of the trainer's matrix, 200 launchers (two hours or more)
	tests/run $(BIN)/pytest -q tests/chaos --chaos -m chaos --timeout=0 $(ARGS)

release: setup  ## cut a release: make release VERSION=0.2.0 (docs/releasing.md)
	$(BIN)/python deploy/release.py $(VERSION)

record-release: setup  ## record what upgrades are tested with: make record-release RELEASE=v0.2.0
	PYTHONPATH=src:tests $(BIN)/python -m fakes.previous_release $(RELEASE)
