# Builds, shows and tests nearpath; `make help` lists the targets.
#
# Each target first installs what it needs and the machine lacks (scripts/install-deps).

CARGO ?= cargo
FUZZ_SECONDS ?= 60

# The virtual host of `make lab`.
NODES ?= 2
NIC ?= igb
KERNEL ?= 6.12

export CARGO FUZZ_SECONDS

.DEFAULT_GOAL := help
.PHONY: help run test test-kernels test-lengthy lab lab-bench lab-kernels lab-update bench-overhead lab-bench-overhead faults bench-flows bench-latency lint fuzz clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 16

run: ## Build nearpath and run the main job on real packets: nearpath demo
	@scripts/install-deps build
	$(CARGO) run --release --package nearpath -- demo

test: ## Run every test but the lengthy ones, and tell which were skipped and why
	@# What only tests use may be missing: the tests that need it are then skipped.
	@scripts/install-deps build test lab || scripts/install-deps build
	@scripts/test

test-kernels: ## Run the tests on virtual hosts with the oldest and the newest kernel, and all of them with 6.1
	@scripts/install-deps build lab
	@scripts/lab test --kernels=5.10,6.1,7.2 -m ""

test-lengthy: ## Run the tests that take a minute each: faults, upcalls, kill -9; steering 100 times under load; a storm of accepts; tuning ended at each step
	@scripts/install-deps build test lab || scripts/install-deps build
	NEARPATH_STEER_TIMES=100 $(CARGO) test --package nearpath --test kernel_steer -- no_request_fails
	NEARPATH_STORM_SECONDS=60 $(CARGO) test --package nearpath --test kernel_accepts -- a_storm --nocapture
	NEARPATH_TUNE_STEPS=all $(CARGO) test --package nearpath --test kernel_tune
	@scripts/lab test -m lengthy || [ $$? -eq 69 ]

lab: ## A shell in a virtual host with nodes, OVS and traffic: make lab NODES=2 NIC=igb KERNEL=6.12
	@scripts/install-deps build lab
	@scripts/lab shell --nodes $(NODES) --nic $(NIC) --kernel $(KERNEL)

lab-bench: ## How long virtual hosts take to boot, to restore, and for 20 scenarios
	@scripts/install-deps build lab
	@scripts/lab bench

lab-kernels: ## Write docs/kernels.md: what is observable on each kernel
	@scripts/install-deps build lab
	@scripts/lab kernels

lab-update: ## Build virtual hosts anew from the distribution's newest packages
	@scripts/install-deps build lab
	@scripts/lab build --update

bench-overhead: ## What measuring costs, beside empty programs, bpftrace and BCC
	@scripts/install-deps build bench
	$(CARGO) bench --package nearpath-instruments --bench overhead

lab-bench-overhead: ## The same on packets through Open vSwitch, in a virtual host
	@scripts/install-deps build lab bench
	@scripts/lab bench-overhead

bench-flows: ## Ten minutes of 100,000 flows: memory does not grow
	@scripts/install-deps build test
	NEARPATH_FLOWS_SECONDS=600 $(CARGO) test --release --package nearpath-instruments --test kernel_flows -- --nocapture

bench-latency: ## The prober beside sockperf on one path, on a quiet machine
	@scripts/install-deps build test bench
	$(CARGO) build --release --package nearpath
	NEARPATH_BINARY=$(CURDIR)/target/release/nearpath \
		$(CARGO) test --package nearpath --test kernel_latency -- --ignored --nocapture

faults: ## Play every fault scene, and print how often nearpath names the cause that the raw trace shows
	@scripts/install-deps build test lab
	$(CARGO) build --release --package nearpath
	NEARPATH_FAULT_ROUNDS=300 $(CARGO) test --package nearpath-instruments --test kernel_faults -- --nocapture
	@scripts/lab faults

lint: ## Check formatting, clippy, and with cargo-deny the licences and sources of dependencies
	@scripts/install-deps build lint || scripts/install-deps build
	@scripts/lint

fuzz: ## Fuzz what reads strangers' input, each target for FUZZ_SECONDS (60)
	@scripts/install-deps build
	@scripts/fuzz

clean: ## Remove what was built
	$(CARGO) clean
	rm -rf fuzz/target
