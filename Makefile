PYTHON ?= python3
BIN := .venv/bin
# one process more than there are cores, because tests wait for servers and for the exports of each other;
# at most 4, because each takes up to 2 GB
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest \
	-n $(shell cores=$$(getconf _NPROCESSORS_ONLN); echo $$((cores < 4 ? cores + 1 : 4))) \
	--dist loadfile --no-loadscope-reorder
DEMO := artifacts/demo
SENTENCE := Seven green bottles are standing on the wall.
# the bundles that a wheel carries; `setup.py` checks that they are there
BUNDLES := src/voxport/bundles
SPEAKER := $(BUNDLES)/voxtral-tts-tiny/manifest.json
LISTENER := $(BUNDLES)/voxtral-realtime-tiny/manifest.json

# modules are compiled once, and not in each of the hundreds of processes that tests start
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo wheel test test-all units everything lint fuzz clients install
install: .venv/.installed

# --no-compile: Python compiles a module when it is first imported, and most modules of torch never are
.venv/.installed: pyproject.toml requirements.lock
	$(PYTHON) -c 'import sys; sys.exit("voxport needs Python 3.11 or newer; run: make PYTHON=python3.11 ...") \
	    if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e . qwen-asr==0.0.6
	touch $@

$(SPEAKER): | install
	$(BIN)/voxport export --model voxtral-tts --target onnx --quant w8 --force --out $(@D)

$(LISTENER): | install
	$(BIN)/voxport export --model voxtral-realtime --target onnx --quant w8 --streaming --force --out $(@D)

demo: install
	$(BIN)/voxport say "$(SENTENCE)" -o hello.wav
	$(BIN)/voxport transcribe hello.wav
	$(BIN)/voxport export --model voxtral-tts --target onnx --quant w4 --out $(DEMO)/voxtral-tts
	$(BIN)/voxport say "$(SENTENCE)" --bundle $(DEMO)/voxtral-tts -o hello-w4.wav
	$(BIN)/voxport transcribe hello-w4.wav

# exports again, so that a release has the bundles of its own code
wheel:
	rm -rf $(BUNDLES) dist
	$(MAKE) $(SPEAKER) $(LISTENER)
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

units: install
	$(PYTEST) -m "not slow"

everything: install
	$(PYTEST)

# The linter and the type checker take one core for a minute; the tests start beside them.
# `test`: every unit, and for each target one verified bundle and one planted fault
test: install
	$(MAKE) --jobs=2 lint units

# what CI runs; exports are kept between runs in the user's cache folder, unless VOXPORT_TEST_CACHE=off
test-all: install
	$(MAKE) --jobs=2 lint everything

fuzz: install
	cd tests && PYTHONPATH=.. OMP_NUM_THREADS=1 ../$(BIN)/python -m fuzz \
		--cases $(or $(CASES),1000) --seed $(or $(SEED),1) --bundles ../artifacts/fuzz
	cd tests && PYTHONPATH=.. OMP_NUM_THREADS=1 ../$(BIN)/python -m fuzz.recordings \
		--cases $(or $(CASES),2000) --seed $(or $(SEED),1)

# installs programs of others and runs each against a server; NAMES=pipecat_services runs one
clients: install
	$(BIN)/python -m tools.clients $(NAMES)
