# Builds, shows and tests nearpath; `make help` lists the targets.
#
# Each target first installs what it needs and the machine lacks (scripts/install-deps).

CARGO ?= cargo
FUZZ_SECONDS ?= 60

export CARGO FUZZ_SECONDS

.DEFAULT_GOAL := help
.PHONY: help run test bench-overhead lint fuzz clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 16

run: ## Build nearpath and run the main job on real packets: nearpath demo
	@scripts/install-deps build
	$(CARGO) run --release --package nearpath -- demo

test: ## Run every test, and tell which were skipped and why
	@# What only tests use may be missing: the tests that need it are then skipped.
	@scripts/install-deps build test || scripts/install-deps build
	@scripts/test

bench-overhead: ## What measuring costs, beside empty programs and a bpftrace script
	@scripts/install-deps build bench
	$(CARGO) bench --package nearpath-instruments --bench overhead

lint: ## Check formatting, clippy, and with cargo-deny the licences and sources of dependencies
	@scripts/install-deps build lint || scripts/install-deps build
	@scripts/lint

fuzz: ## Fuzz what reads strangers' input, each target for FUZZ_SECONDS (60)
	@scripts/install-deps build
	@scripts/fuzz

clean: ## Remove what was built
	$(CARGO) clean
	rm -rf fuzz/target
