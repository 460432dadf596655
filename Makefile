# Weft's front door. Each target is a line or two of what one would type; `make help` lists them.

SHELL := /bin/bash
CARGO ?= cargo
# How long each part of `make test-long` runs, minutes; and all of its churn.
MINUTES ?= 10
CHURN_MINUTES ?= 60
# How long `make explore` runs new seeds, seconds of each kind, and of which kinds.
EXPLORE_SECONDS ?= 20
EXPLORE_KINDS ?= native partitions mounts
# Tests of one program that run at a time: most of them wait for processes that they have started.
TEST_THREADS ?= 4
BINARIES = $${CARGO_TARGET_DIR:-target}

.DEFAULT_GOAL := help
.PHONY: help build c-library mpi python demo test tidy fuzz lint explore bench test-long test-rdma test-mpi test-tools clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build the command `weft`, optimized: target/release/weft
	$(CARGO) build --release -p weft

c-library: ## Build libweft, weft.h and a pkg-config file, optimized: into PREFIX (target/c-library)
	$(CARGO) build --release -p weft-c
	scripts/c-library.sh $(BINARIES)/release "$(or $(PREFIX),$(BINARIES)/c-library)"

mpi: ## Build the MPI-IO drivers for the MPIs that are installed, optimized: into target/mpi (none: root gets mpich)
	$(CARGO) build --release -p weft-c
	scripts/mpi-driver.sh $(BINARIES)/release $(BINARIES)/mpi

python: ## Build the wheel of the Python package, optimized: into target/python
	scripts/python-wheel.sh release $(BINARIES)/python

demo: build ## Start four nodes, copy files in and out, mount, stop; leaves nothing behind
	@scripts/demo.sh $(BINARIES)/release/weft

test: test-tools ## Build everything and run all tests (with tidy and a few seconds of fuzz)
	$(CARGO) build --workspace
	RUST_TEST_THREADS=$(TEST_THREADS) $(CARGO) test --workspace --no-fail-fast

tidy: ## Check what every tracked file has to keep (part of `make test`)
	$(CARGO) run -q -p weft-xtask -- tidy

fuzz: ## Random bytes for every decoder, WEFT_FUZZ_SECONDS (3) long (part of `make test`)
	$(CARGO) test -p weft-fuzz -- --nocapture

lint: ## Formatting, and clippy without a warning
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

explore: ## New seeds of the simulation, the first from the commit: EXPLORE_SECONDS (20) of each of EXPLORE_KINDS
	scripts/explore.sh $(EXPLORE_SECONDS) $(EXPLORE_KINDS)

bench: ## Measure, beside other systems where they are installed; see docs/performance.md
	bench/run.sh

test-long: mpi ## Simulation, fuzz, consistency of mounts: MINUTES (10) each; 16 nodes; Slurm; PyTorch; HDF5, PnetCDF; damage and churn of regions
	timeout --preserve-status $(MINUTES)m $(CARGO) run --release -p weft-sim -- endless
	WEFT_FUZZ_SECONDS=$$(( $(MINUTES) * 60 )) $(CARGO) test --release -p weft-fuzz -- --nocapture
	WEFT_DAMAGE=10000 $(CARGO) test --release -p weft-region --test region campaign -- --nocapture
	$(CARGO) build --release -p weft -p weft-consistency
	$(BINARIES)/release/weft-consistency run --mode all --seconds $$(( $(MINUTES) * 60 / 14 ))
	scripts/slurm-test.sh $(BINARIES)/release/weft
	$(CARGO) test --release -p weft --test end_to_end -- --ignored --nocapture
	$(CARGO) test --release -p weft-python -- --ignored --nocapture
	for layout in --placement=home --split; do for tests in "hdf5 mpich" "hdf5 openmpi" "pnetcdf openmpi"; do \
	    LAYOUT=$$layout scripts/mpi-library-tests.sh $$tests $(BINARIES)/release $(BINARIES)/mpi $(BINARIES)/mpi/sources \
	        || exit 1; done; done
	$(CARGO) build --release -p weft-bench
	rm -f $(BINARIES)/churn.store && fallocate -l 1GiB $(BINARIES)/churn.store
	for fill in 50 80 95; do for on in store versions; do \
	    $(BINARIES)/release/bench-region churn --on $$on --fill $$fill --seconds $$(( $(CHURN_MINUTES) * 10 )) \
	        --place $(BINARIES)/churn.store || exit 1; done; done
	rm $(BINARIES)/churn.store

test-rdma: ## RDMA over two soft-RoCE devices, in a guest machine that this makes (root, for its packages)
	$(CARGO) build -p weft
	$(CARGO) build -p weft-c
	$(CARGO) test -p weft-c --test c_library c_programs_do
	$(CARGO) test -p weft-python --test package its_types
	$(CARGO) test -p weft-tests --test rdma --test hostile --no-run
	export WEFT_TEST_SUITE="$$(realpath $(BINARIES))/debug/c-library/suite"; \
	export WEFT_TEST_PYTHON="$$(realpath $(BINARIES))/debug/python/environment/bin/python"; \
	newest() { realpath "$$(ls -t $(BINARIES)/debug/deps/$$1-* | grep -v '\.d$$' | head -n 1)"; }; \
	scripts/rdma-guest.sh --mem 7168 --timeout 900 tests/rdma/in-guest.sh "$$(realpath $(BINARIES))/debug/weft" \
	    "$$(newest rdma)" "env UCX_IB_REG_METHODS=direct $$(newest hostile) rdma::"

test-mpi: mpi build ## ROMIO's own test programs over Weft, 4 processes on 4 nodes; LARGE=1: also those of many GB
	for layout in --placement=home --split; do for mpi in mpich openmpi; do \
	    command -v mpicc.$$mpi >/dev/null || { echo "skip: mpicc.$$mpi is not installed"; continue; }; \
	    LAYOUT=$$layout scripts/mpi-romio-tests.sh $$mpi $(BINARIES)/release $(BINARIES)/mpi $(BINARIES)/mpi/romio \
	        || exit 1; done; done

# Tests that mount need fusermount3 or root, those of RDMA libucp, those of the Python package venv, those of MPI-IO mpich
# and the sources that Debian has of it. What is missing is installed where that can be done, else those tests say why they
# are skipped.
test-tools:
	@missing=; command -v fusermount3 >/dev/null || missing="fuse3"; \
	ldconfig -p 2>/dev/null | grep -q libucp.so.0 || missing="$$missing libucx0"; \
	python3 -c 'import ensurepip' 2>/dev/null || missing="$$missing python3-venv"; \
	command -v mpicc.mpich >/dev/null || missing="$$missing mpich libmpich-dev"; \
	command -v dpkg-source >/dev/null || missing="$$missing dpkg-dev"; \
	pkg-config --exists hdf5-mpich 2>/dev/null || missing="$$missing pkg-config libhdf5-mpich-dev"; \
	if [ -n "$$missing" ]; then \
	    if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	        apt-get update -q && apt-get install -y -q --no-install-recommends $$missing \
	            || echo "skip: $$missing could not be installed; tests may be skipped"; \
	    else echo "skip: these packages are missing: $$missing; tests may be skipped"; fi; \
	fi

clean: ## Remove what was built
	$(CARGO) clean
