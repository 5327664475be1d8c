# Each command here works from an empty clone with Python, pip and make, and sets up what it needs in .venv.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python

# A stamp says that the install it names is up to date with pyproject.toml and constraints.txt.
CORE := $(VENV)/.installed-core
TEST := $(VENV)/.installed-test
LINT := $(VENV)/.installed-lint
BENCH := $(VENV)/.installed-bench
DOCS := $(VENV)/.installed-docs
DIST := $(VENV)/.installed-dist

# The pins hold for the build tools too: pip before 25.3 reads the first name for them, later ones the second.
export PIP_CONSTRAINT := constraints.txt
export PIP_BUILD_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start hundreds of processes: each would compile all of the package again where Python is told to keep nothing.
test torture torture-ha: export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-frameworks lint bench bench-peers torture torture-ha format aio cli-docs docs dist clean
.NOTPARALLEL:

help:
	@echo "make demo      install backtrail into .venv and show what it does"
	@echo "make test      run the tests (ARGS='-k fork' passes options to pytest)"
	@echo "make test-frameworks  the frameworks' own tests with our classes in the place of theirs (downloads them; minutes)"
	@echo "make lint      ruff, mypy, the layers, and the page of the command line"
	@echo "make format    let ruff put the code in form"
	@echo "make aio       make backtrail.aio from the synchronous code again"
	@echo "make cli-docs  make docs/cli.md from the commands again"
	@echo "make docs      build the site of the docs in build/site, and check its links"
	@echo "make dist      build wheel, sdist and SBOM in dist, and try the wheel in an empty environment"
	@echo "make bench     measure, beside LangGraph's savers (ARGS=--quick takes a minute or two)"
	@echo "make bench-peers  the same chat kept by the frameworks' own stores and by ours, side by side"
	@echo "make torture   the long reliability runs"
	@echo "make torture-ha  failovers of a Patroni cluster (root and Debian's packages; half an hour)"
	@echo "make clean     remove .venv, builds and caches"

demo: $(CORE)
	$(PY) examples/demo

# Three workers for two cores: a third of the time a test waits for a server, another process or a lease.
test: $(TEST)
	$(PY) -m pytest -n 3 --dist worksteal $(ARGS)

test-frameworks: $(TEST) $(BENCH)
	$(PY) tools/test_frameworks.py
	$(PY) -m pytest -m torture -q -s tests/adapters/test_a2a.py tests/adapters/test_adk.py tests/adapters/test_agent_framework.py tests/adapters/test_strands.py

lint: $(LINT)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) $(VENV)/bin/lint-imports --no-logo
	$(PY) tools/generate_cli_docs.py --check

format: $(LINT)
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

aio: $(CORE)
	$(PY) tools/generate_aio.py

cli-docs: $(CORE)
	$(PY) tools/generate_cli_docs.py

docs: $(DOCS)
	$(PY) tools/build_docs.py

# PYTHONS='python3.12 python3.13' tries the wheel with these, too.
dist: $(DIST)
	$(PY) tools/build_dist.py $(foreach each,$(PYTHONS),--python $(each))

bench: $(BENCH)
	$(PY) -m bench $(ARGS)

bench-peers: $(BENCH)
	$(PY) -m bench.frameworks $(ARGS)

# Every property test, with the examples of the 'torture' profile, and every test that is marked as one.
torture: $(TEST)
	$(PY) -m pytest -n 2 --dist worksteal -m "torture or hypothesis" --hypothesis-profile=torture --timeout=3600 -rs $(ARGS)

# Three PostgreSQL servers in network namespaces, etcd and HAProxy: tests/support/patroni.py.
torture-ha: $(TEST)
	@! [ "$$(id -u)" = 0 ] || command -v patroni >/dev/null || \
		apt-get install --yes --no-install-recommends patroni etcd-server haproxy postgresql-15 iproute2
	$(PY) -m pytest -m torture -rs tests/faults/test_patroni.py $(ARGS)

clean:
	rm -rf $(VENV) build dist .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# -- the set-up -----------------------------------------------------------------------------------

# A stamp counts only while .venv really holds the package of this very tree: .venv may have been copied
# here, or the package taken out by hand. If not, every stamp is made again.
FOUND := $(shell $(PY) -I -c "import importlib.util as u; print(u.find_spec('backtrail').origin)" 2>/dev/null)
ifneq ($(FOUND),$(CURDIR)/src/backtrail/__init__.py)
.PHONY: $(CORE) $(TEST) $(LINT) $(BENCH) $(DOCS) $(DIST)
endif

# Make .venv if it has no working Python with pip. Some systems have pip but not ensurepip: theirs fills .venv then.
define venv
@$(PY) -m pip --version >/dev/null 2>&1 || { \
	echo "making $(VENV)"; \
	rm -f $(VENV)/bin/python*; \
	if $(PYTHON) -c "import ensurepip" 2>/dev/null; then $(PYTHON) -m venv $(VENV); \
	else $(PYTHON) -m venv --without-pip $(VENV) && $(PYTHON) -m pip --python $(PY) install --quiet pip; fi; }
endef

install = $(PY) -m pip install --quiet -c constraints.txt --editable

$(CORE): pyproject.toml constraints.txt
	$(venv)
	$(install) .
	@touch $(CORE)

$(TEST): pyproject.toml constraints.txt
	$(venv)
	$(install) ".[test]"
	@touch $(CORE) $(TEST)

# The type checker reads the types of what the tests use, too: backtrail.testing ships in the package.
$(LINT): pyproject.toml constraints.txt
	$(venv)
	$(install) ".[test,lint]"
	@touch $(CORE) $(TEST) $(LINT)

# What is compared with is only needed to compare.
$(BENCH): pyproject.toml constraints.txt
	$(venv)
	$(install) ".[bench]"
	@touch $(CORE) $(BENCH)

$(DOCS): pyproject.toml constraints.txt
	$(venv)
	$(install) ".[docs]"
	@touch $(CORE) $(DOCS)

$(DIST): pyproject.toml constraints.txt
	$(venv)
	$(install) ".[dist]"
	@touch $(CORE) $(DIST)
