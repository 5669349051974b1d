# make serve | make test: from a fresh clone, with nothing but python3 (3.11 or newer).
# PIP_ARGS reaches pip: on Linux without a GPU, add the index of PyTorch's CPU builds.
VENV ?= .venv
PYTHON ?= python3
PIP_ARGS ?=
PYTEST_ARGS ?=
OBSERVE ?=
PY := $(VENV)/bin/python
INSTALL := $(PY) -m pip install --disable-pip-version-check $(PIP_ARGS) -c constraints.txt

.PHONY: serve test browser observe-tools observe dashboard k8s-check k8s-render lint types proto clean

serve: $(VENV)/.installed  ## everything to serve the demo pair, then serve it
	$(VENV)/bin/specdist models pull demo demo-draft
	$(PY) -m deployments.launch

test: $(VENV)/.installed-dev  ## everything to run the tests, then run them
	$(VENV)/bin/specdist models pull demo demo-draft
	$(PY) -m pytest $(PYTEST_ARGS)

browser:  ## Chromium and its driver for the tests of the page, from Debian (as root) where they are absent
	command -v chromium && command -v chromedriver || { apt-get -q update && DEBIAN_FRONTEND=noninteractive \
		apt-get -qy install --no-install-recommends chromium chromium-driver; }

# Prometheus's programs out of Debian's packages, unpacked: no service is installed or started.
observe-tools:  ## prometheus, promtool and amtool, under .venv where they are absent (apt-get update wants root)
	export PATH="$$PATH:$(CURDIR)/$(VENV)/observe/usr/bin"; command -v prometheus && command -v promtool && command -v amtool || \
		{ mkdir -p $(VENV)/observe && cd $(VENV)/observe && apt-get -q update && \
		apt-get -q download prometheus prometheus-alertmanager && for package in *.deb; do dpkg -x $$package . && rm $$package; done; }

# OBSERVE="--url http://127.0.0.1:8000 --seconds 60 --streams 2 --out runs/observe"
observe: $(VENV)/.installed-dev observe-tools  ## rules and dashboard against the application that is served now
	$(PY) -m scripts.monitoring.observe $(OBSERVE)

dashboard: $(VENV)/.installed  ## the Grafana dashboard anew, from the metric catalogue
	$(PY) -m scripts.monitoring.dashboard

k8s-check: $(VENV)/.installed-dev  ## the manifests and the Dockerfile, with no cluster
	$(PY) -m pytest tests/k8s $(PYTEST_ARGS)

k8s-render: $(VENV)/.installed  ## the Serve config of each overlay anew
	$(PY) -m scripts.render_serve_config

lint: $(VENV)/.installed-dev  ## style and format
	$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check .

types: $(VENV)/.installed-dev  ## types of the pure rooms
	$(VENV)/bin/mypy

proto: $(VENV)/.installed-dev  ## generate the gRPC code anew
	$(PY) -m grpc_tools.protoc -Ispecdist/api/generated=proto --python_out=. --grpc_python_out=. proto/specdist.proto

clean:  ## caches and build outputs; the virtual environment and the models stay
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis; find specdist deployments scripts tests -name __pycache__ -prune -exec rm -rf {} +

# A stamp is written when its step is complete: a broken step is done again, a complete one is not.
$(VENV)/.made:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "specdist needs Python 3.11 or newer, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	printf '%s\n' '# specdist: no usage reports leave the machine; other shells may talk to the cluster' \
		'export RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=token' >> $(VENV)/bin/activate && touch $@

$(VENV)/.installed: pyproject.toml constraints.txt $(VENV)/.made
	$(INSTALL) torch==2.13.0
	$(INSTALL) -e . && touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(INSTALL) -e '.[dev]'
	$(INSTALL) --no-deps axe-playwright-python && touch $@  # for the axe-core in it, without its driver
