# make demo             run collector, agents and simulated servers; SECONDS=60 ends after a minute
# make cluster          three collectors, PostgreSQL with a standby and twenty simulated nodes; some of them fail
# make test             check, then all tests but the thorough ones
# make quick            stories and properties, for use while editing
# make thorough         all tests, also those marked thorough; properties with more examples
# make check            lint, types, layers, wording, generated files
# make bench            measure
# make dashboards docs  write dashboards and generated documents again
# make manifests        write the Kubernetes manifests from the Helm chart again
# make site             build the documentation as a website in site
# make pictures         run the demo for six minutes and take pictures of the web console into docs/pictures
# make cases            write the test cases in tests/captures again
# make packages         wheel, source distribution, .deb, .rpm, Helm chart, SBOMs and checksums of the last commit, in dist
# make release          VERSION=1.2.3: build twice, test, date the changelog, commit and tag; DRY_RUN=yes changes nothing
# make install          install as services under PREFIX (as root); EXTRAS=yes adds PostgreSQL, Parquet, S3, OTLP and switches, EXTRAS=no installs the agent only
# make lock             pin the packages of make install, with hashes (deploy/requirements*.lock)
# make clean            remove built files
#
# Every target creates .venv, and updates it when pyproject.toml has changed.

PYTHON ?= python3
SECONDS ?= 0
# Three more than cores: tests of real programs, which start first on these three, mostly wait.
WORKERS ?= $(shell expr $$(nproc) + 3)
PREFIX ?= /opt/railscope
CONFIGURATION ?= /etc/railscope
UNITS ?= /etc/systemd/system
BINARIES ?= /usr/local/bin

# Tests start many short processes, and each would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

VENV := $(CURDIR)/.venv
PY := $(VENV)/bin/python
VALIDATOR := $(CURDIR)/.venv-validator
HELM := $(CURDIR)/.helm
PIP := $(PY) -m pip --disable-pip-version-check install --quiet

.DEFAULT_GOAL := help
.PHONY: help packages release lock demo cluster test quick thorough check lint types bench dashboards docs manifests site pictures cases install clean servers debian validator vendored

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

demo: $(VENV)/.ready-to-run
	$(PY) -m railscope_simulator.demo --seconds $(SECONDS) --directory .demo --end-with-parent

cluster: $(VENV)/.ready-to-test
	@tests/setup_servers.sh postgresql
	$(PY) -m tests.failover --directory .cluster

# The preparations wait for downloads and use one processor each.
test:
	@$(MAKE) --jobs 3 --output-sync=recurse check servers validator
	$(PY) -m pytest -n $(WORKERS) --dist worksteal --durations 40

quick: $(VENV)/.ready-to-test
	$(PY) -m pytest -q -n logical --dist worksteal --quick

# All tests: those of `make test` must not take too long. Then properties with many examples.
thorough: $(VENV)/.ready-to-test servers
	$(PY) -m pytest -n $(WORKERS) --dist worksteal --timeout 1200 --limit-seconds -m ''
	$(PY) -m pytest -n $(WORKERS) --dist worksteal --timeout 1200 --hypothesis-profile=thorough -m hypothesis

check: lint types

types: $(VENV)/.ready-to-test
	$(VENV)/bin/mypy
	$(VENV)/bin/mypy docs/generate.py docs/screenshots.py docs/wording.py docs/website.py
	$(VENV)/bin/mypy deploy/packages/build.py deploy/packages/release.py

lint: $(VENV)/.ready-to-test
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/lint-imports
	$(PY) docs/generate.py --check
	$(PY) docs/wording.py
	$(PY) -m railscope_dashboards --check
	$(if $(wildcard $(HELM)/helm),deploy/packages/manifests.sh $(HELM)/helm --check)

bench: $(VENV)/.ready-to-test servers
	$(PY) -m bench.agent
	$(PY) -m bench.diagnosis
	$(PY) -m bench.collector

dashboards: $(VENV)/.ready-to-test
	$(PY) -m railscope_dashboards

manifests: $(VENV)/.ready-to-test
	@$(PY) tests/setup_helm.py $(HELM)
	deploy/packages/manifests.sh $(HELM)/helm

docs: $(VENV)/.ready-to-test dashboards
	$(PY) docs/generate.py

site: $(VENV)/.ready-to-build-site
	$(PY) docs/website.py --to site

pictures: $(VENV)/.ready-to-test
	@tests/setup_servers.sh chromium
	$(PY) docs/screenshots.py

cases: $(VENV)/.ready-to-test
	PYTHONPATH=tests $(PY) -m captures.make

# The vendored files of the console and of gNMI, again from their packages, with their hashes.
UPLOT := uplot@1.6.32
GNMI := gnmi-pb==0.11.0.1
vendored: $(VENV)/.ready-to-test
	cd collector/railscope_collector/console/static/vendor && npm pack --silent $(UPLOT) \
		&& tar -xzf uplot-*.tgz --strip-components=2 package/dist/uPlot.iife.min.js package/dist/uPlot.min.css \
		&& tar -xzf uplot-*.tgz --strip-components=1 --transform 's/LICENSE/uPlot.LICENSE/' package/LICENSE \
		&& rm uplot-*.tgz && sha256sum uPlot.* > SHA256SUMS
	cd collector/railscope_collector/switches/vendor && $(PY) -m pip download --quiet --no-deps --dest package $(GNMI) \
		&& $(PY) -m zipfile --extract package/*.whl package \
		&& $(PY) $(CURDIR)/tests/vendor_gnmi.py package/gnmi_pb gnmi.binpb && cp package/gnmi_pb-*/LICENSE gnmi.LICENSE \
		&& rm -r package && sha256sum gnmi* > SHA256SUMS

# The servers, Helm and kubectl that the tests use; reports those that it cannot install.
servers: $(VENV)/.ready-to-test debian
	@$(PY) tests/setup_helm.py $(HELM)

debian:
	@tests/setup_servers.sh

# The official validator of FOCUS exports, which the tests run; reports the reason if it is unavailable.
validator:
	@tests/setup_validator.sh "$(PYTHON)" "$(VALIDATOR)"

packages: $(VENV)/.ready-to-test
	@$(PY) tests/setup_helm.py $(HELM)
	$(PY) deploy/packages/build.py --to dist

release: $(VENV)/.ready-to-test
	@$(PY) tests/setup_helm.py $(HELM)
	@for package in rpm lintian rpmlint mmdebstrap; do tests/setup_servers.sh $$package; done
	$(PY) deploy/packages/release.py --to dist $(if $(DRY_RUN),--dry-run) "$(VERSION)"

install:
	deploy/install.sh "$(PYTHON)" "$(PREFIX)" "$(CONFIGURATION)" "$(UNITS)" "$(BINARIES)"

# For all Python versions and platforms, with the hash of every file.
LOCK := $(VENV)/bin/uv pip compile --universal --generate-hashes --python-version 3.11 --no-header \
	--no-annotate --quiet

lock: $(VENV)/.ready-to-test
	$(PIP) uv
	$(LOCK) deploy/build-requirements.txt --output-file deploy/requirements-build.lock
	$(LOCK) pyproject.toml --output-file deploy/requirements-agent.lock
	$(LOCK) pyproject.toml --extra collector --output-file deploy/requirements.lock
	$(LOCK) pyproject.toml --extra postgresql --extra parquet --extra archive --extra otlp --extra switches \
		--output-file deploy/requirements-extras.lock

clean:
	rm -rf $(VENV) $(VALIDATOR) $(HELM) dist .dist.* site .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	  .import_linter_cache .grimp_cache .demo .cluster
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.ready-to-run: pyproject.toml
	deploy/venv.sh "$(PYTHON)" "$(VENV)"
	$(PIP) --editable '.[switches]'
	@touch $@

$(VENV)/.ready-to-test: pyproject.toml
	deploy/venv.sh "$(PYTHON)" "$(VENV)"
	$(PIP) --editable '.[test]'
	@touch $@ $(VENV)/.ready-to-run $(VENV)/.ready-to-build-site

$(VENV)/.ready-to-build-site: pyproject.toml
	deploy/venv.sh "$(PYTHON)" "$(VENV)"
	$(PIP) --editable '.[site]'
	@touch $@
