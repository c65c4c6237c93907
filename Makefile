# SPDX-License-Identifier: Apache-2.0
# A thin front for CMake: `make help` lists what there is. Everything lands in build/ (release) or
# build-<preset>/; the release binary is build/tern.

PORT ?= 8000
HOST ?= 127.0.0.1
MODEL ?= models/tern-poet
PREFIX ?= /usr/local
SOAK_SECONDS ?= 600
FUZZ_SECONDS ?= 600
BENCH_MODEL ?= build/bench-model
# The chat page is built with Node.js and npm; OFF leaves it out.
PAGE ?= ON
PAGE_GROUP = $(if $(filter ON,$(PAGE)),page)
# Debian's own Python: the one that the packages of the tests belong to.
PYTHON ?= /usr/bin/python3

C_FILES = $(shell git ls-files -co --exclude-standard '*.c' '*.h')

all: ## build the release binary, build/tern, and libtern
	tools/install-deps.sh build $(PAGE_GROUP)
	cmake --preset release -DTERN_PAGE=$(PAGE) -DCMAKE_INSTALL_PREFIX=$(PREFIX)
	cmake --build --preset release --target tern pages tern_shared tern_static

run: ## build, then serve the small model that ships (PORT=8000 MODEL=models/tern-poet)
	tools/install-deps.sh build $(PAGE_GROUP) run
	cmake --preset release -DTERN_PAGE=$(PAGE)
	cmake --build --preset release --target tern
	HOST=$(HOST) PORT=$(PORT) MODEL='$(MODEL)' exec tools/run.sh

test: ## build and run every test; ends with a summary
	tools/install-deps.sh build test
	cmake --preset release -DTERN_PAGE=$(PAGE)
	cmake --build --preset release
	tools/run-tests build

tsan arm64-test: TEST_CHOICE = -LE heavy

asan tsan: ## unit and kernel tests under a sanitizer (asan: address and undefined behaviour)
	tools/install-deps.sh build test
	cmake --preset $@
	cmake --build --preset $@ --target self_checking
	tools/run-tests build-$@ -L 'unit|kernels|fuzz' $(TEST_CHOICE)

debug: ## debug build with integrity checks, in build-debug/
	tools/install-deps.sh build test
	cmake --preset debug
	cmake --build --preset debug

arm64-test: ## cross build for arm64; unit tests and generated text under qemu
	tools/install-deps.sh build test arm64
	cmake --preset release -DTERN_PAGE=$(PAGE)
	cmake --build --preset release --target tern
	tools/get-arm64-libevent build-arm64/deps
	cmake --preset arm64
	cmake --build --preset arm64 --target self_checking tern static_program
	tools/run-tests build-arm64 -L 'unit|kernels' $(TEST_CHOICE)
	TERN_AARCH64=$(CURDIR)/build-arm64/tern $(PYTHON) -m pytest -q -rfEs -p no:cacheprovider \
	    tests/golden/test_emulated.py tests/package/test_image.py -k arm

fuzz: ## every fuzz target for FUZZ_SECONDS each
	tools/install-deps.sh build test fuzz
	cmake --preset fuzz
	cmake --build --preset fuzz --target self_checking
	tools/run-fuzz build-fuzz $(FUZZ_SECONDS)

deb: ## Debian packages, in build/packages/
	tools/install-deps.sh build $(PAGE_GROUP)
	cmake --preset release -DTERN_PAGE=$(PAGE) -DCMAKE_INSTALL_PREFIX=/usr/local
	cmake --build --preset release --target deb

static: ## static binaries: build/tern-static for x86-64, build-arm64/tern-static for arm64
	tools/install-deps.sh build $(PAGE_GROUP) arm64
	cmake --preset release -DTERN_PAGE=$(PAGE)
	cmake --build --preset release --target static_program
	tools/get-arm64-libevent build-arm64/deps
	cmake --preset arm64 -DTERN_PAGE=$(PAGE)
	cmake --build --preset arm64 --target static_program

image: ## container image of packaging/Containerfile for this machine, a tar file in build/image/
	tools/install-deps.sh build $(PAGE_GROUP)
	cmake --preset release -DTERN_PAGE=$(PAGE)
	cmake --build --preset release --target image

package-test: ## lint the packages; install, serve and purge in a fresh Debian 12
	tools/install-deps.sh build $(PAGE_GROUP) test package
	cmake --preset release -DTERN_PAGE=$(PAGE) -DCMAKE_INSTALL_PREFIX=/usr/local
	cmake --build --preset release --target deb
	tools/test-package build

soak: ## random requests, aborts and slow readers under ASan, then TSan, for SOAK_SECONDS in all
	tools/install-deps.sh build test
	cmake --preset asan
	cmake --build --preset asan --target tern
	cmake --preset tsan
	cmake --build --preset tsan --target tern
	$(PYTHON) tests/soak/soak.py --tern build-asan/tern --seconds $$(($(SOAK_SECONDS) / 2))
	$(PYTHON) tests/soak/soak.py --tern build-tsan/tern --seconds $$(($(SOAK_SECONDS) / 2))

bench: ## speed beside the machine's limits; BENCH_MODEL=DIR, else random weights of the 0.3B's shapes
	tools/install-deps.sh build test
	cmake --preset release -DTERN_PAGE=$(PAGE)
	cmake --build --preset release
	test -e $(BENCH_MODEL)/config.json || tools/make-random-model $(BENCH_MODEL) --tokenizer $(MODEL)
	bench/decode $(BENCH_MODEL)

bench-net: ## connections, streams and small requests, without a model's arithmetic
	tools/install-deps.sh build test bench
	cmake --preset release -DTERN_PAGE=$(PAGE)
	cmake --build --preset release
	bench/net

fmt: ## format the sources
	tools/install-deps.sh lint
	clang-format -i $(C_FILES)

lint: ## format, layers, headers, shellcheck, Python and JavaScript syntax, cppcheck, clang-tidy
	tools/install-deps.sh build test lint
	cmake --preset release -DTERN_PAGE=$(PAGE)
	tools/lint build

wheel: ## build/wheel/tern-*.whl: the Python package with libtern in it
	tools/install-deps.sh build wheel
	cmake --preset release
	cmake --build --preset release --target tern_shared
	$(PYTHON) bindings/python/build_wheel.py build/libtern.so build/wheel

install: all ## install under PREFIX (DESTDIR is honoured)
	cmake --install build --prefix $(PREFIX)

clean: ## remove every build directory
	rm -rf build build-*

help: ## this list
	@awk -F': .*## |: ## ' '/^[a-z][a-z0-9 -]*:.*## / {printf "  make %-16s %s\n", $$1, $$2}' Makefile

.PHONY: all run test asan tsan debug arm64-test fuzz soak bench bench-net deb static image package-test fmt lint wheel install clean help
