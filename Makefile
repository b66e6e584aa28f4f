# Builds, runs and tests nearpath; `make help` lists the targets.
#
# Each target first installs its missing dependencies (scripts/install-deps).

CARGO ?= cargo
FUZZ_SECONDS ?= 60

# The virtual host of `make lab`.
NODES ?= 2
NIC ?= igb
KERNEL ?= 6.12

export CARGO FUZZ_SECONDS

.DEFAULT_GOAL := help
.PHONY: help run test test-smoke test-all lab lab-bench lab-bench-vm lab-kernels lab-update bench-overhead lab-bench-overhead faults rare heal bench-flows bench-latency bench-tcp bench-memory bench-monitor soak-monitor bench-fleet pictures lint fuzz package package-test clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 16

run: ## Build nearpath and run the main job on real packets: nearpath demo
	@scripts/install-deps build
	$(CARGO) run --release --package nearpath -- demo

test: ## Run pure tests, those on this kernel, and one of each feature on a virtual host
	@# What only tests use may be missing: the tests that need it are then skipped.
	@scripts/install-deps build test lab || scripts/install-deps build
	@scripts/test

test-smoke: ## Run what .ci/run runs beyond these: smoke tests on the other virtual kernels
	@scripts/install-deps build test lab || scripts/install-deps build
	@scripts/test --smoke

test-all: ## Run every test, the lengthy ones too, on every virtual kernel: hours
	@scripts/install-deps build test lab || scripts/install-deps build
	@scripts/test --all

lab: ## Open a shell in a virtual host with nodes, OVS and traffic: make lab NODES=2 NIC=igb KERNEL=6.12
	@scripts/install-deps build lab
	@scripts/lab shell --nodes $(NODES) --nic $(NIC) --kernel $(KERNEL)

lab-bench: ## Measure how long virtual hosts take to boot, to restore, and for 20 scenarios
	@scripts/install-deps build lab
	@scripts/lab bench

lab-kernels: ## Write docs/kernels.md: what is observable on each kernel
	@scripts/install-deps build lab
	@scripts/lab kernels

lab-update: ## Rebuild virtual hosts from the distribution's newest packages
	@scripts/install-deps build lab
	@scripts/lab build --update

bench-overhead: ## Compare the cost of measuring with empty programs, bpftrace and BCC
	@scripts/install-deps build bench
	$(CARGO) bench --package nearpath-instruments --bench overhead

lab-bench-overhead: ## The same for packets through Open vSwitch, in a virtual host
	@scripts/install-deps build lab bench
	@scripts/lab bench-overhead

lab-bench-vm: ## The same for packets into a virtual machine, beside a script for BCC
	@scripts/install-deps build lab bench
	@scripts/lab bench-vm

bench-flows: ## Verify that memory does not grow with 100,000 flows in ten minutes
	@scripts/install-deps build test
	NEARPATH_FLOWS_SECONDS=600 $(CARGO) test --release --package nearpath-instruments --test kernel_flows -- --nocapture

bench-latency: ## Compare the prober with sockperf on one path, on a quiet machine
	@scripts/install-deps build test bench
	$(CARGO) build --release --package nearpath
	NEARPATH_BINARY=$(CURDIR)/target/release/nearpath \
		$(CARGO) test --package nearpath --test kernel_latency -- --ignored --nocapture

bench-tcp: ## Measure reading 100,000 TCP connections beside ss, and a storm of short ones, on a quiet machine
	@scripts/install-deps build test
	$(CARGO) build --release --package nearpath
	NEARPATH_BINARY=$(CURDIR)/target/release/nearpath \
		$(CARGO) test --package nearpath --test kernel_tcp -- --ignored --nocapture --test-threads 1

bench-memory: ## Measure reading 10,000 mappings and 1,000 processes beside numastat, on a quiet machine
	@scripts/install-deps build test
	$(CARGO) test --release --package nearpath --test kernel_memory -- --ignored --nocapture

faults: ## Play every fault scene, and print how often nearpath names the cause that the raw trace shows
	@scripts/install-deps build test lab
	$(CARGO) build --release --package nearpath
	NEARPATH_FAULT_ROUNDS=300 $(CARGO) test --package nearpath-instruments --test kernel_faults -- --nocapture
	@scripts/lab faults

rare: ## Play faults that come once in seconds, and print how often diagnose names them first: 12 minutes
	@scripts/install-deps build test lab
	$(CARGO) build --release --package nearpath
	@scripts/lab heal.rare

heal: ## Play scenes of faulty hosts, and print what nearpath fix made of each: 30 minutes
	@scripts/install-deps build test lab
	$(CARGO) build --release --package nearpath
	@scripts/lab heal

bench-monitor: ## Measure what the daemon costs beside node_exporter, six minutes
	@scripts/install-deps build lab
	$(CARGO) build --release --package nearpath
	@scripts/bench_monitor.py target/release/nearpath "$$(scripts/lab prometheus-node-exporter)"

bench-fleet: ## Measure what the metrics of 10,000 hosts cost a Prometheus, from the pages of a real daemon
	@scripts/install-deps build lab
	$(CARGO) build --release --package nearpath
	@scripts/bench_fleet.py target/release/nearpath "$$(scripts/lab prometheus)"

soak-monitor: ## Run the daemon for an hour while namespaces and interfaces come and go: its memory and series stay flat
	@scripts/install-deps build
	$(CARGO) build --release --package nearpath
	@scripts/bench_monitor.py --soak 3600 target/release/nearpath

pictures: ## Make the pictures of a report and the screen of top in docs/
	@scripts/install-deps build test pictures
	$(CARGO) build --release --package nearpath
	scripts/docs-pictures target/release/nearpath

lint: ## Check formatting, clippy, and with cargo-deny the licences and sources of dependencies
	@scripts/install-deps build lint || scripts/install-deps build
	@scripts/lint

fuzz: ## Fuzz parsers of untrusted input, each target for FUZZ_SECONDS (60)
	@scripts/install-deps build
	@scripts/fuzz

package: ## Build the .deb, the .rpm and the tarball into target/package
	@scripts/install-deps build package
	@scripts/package

package-test: package ## Install, run and remove the packages in clean Debian releases; lintian
	@scripts/lab test -m "" lab/tests/test_packages.py

clean: ## Remove build artifacts
