# One command each. `make` alone lists them.
CARGO ?= cargo
TOOLS := $(CURDIR)/.tools
DENY  := $(TOOLS)/bin/cargo-deny
SEEDS ?= 1000
# Most tests wait for a clock: many at a time cost nothing.
THREADS ?= 16

.PHONY: help run demo servers peers test faults lint bench sim clean

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

run: ## build, then serve on the embedded default: http://127.0.0.1:7227
	$(CARGO) build --release --locked -p lapsed-cli
	./target/release/lapsed serve

demo: ## a minute's story in the terminal: owners live, some are killed, watch
	$(CARGO) build --release --locked -p lapsed-cli
	./target/release/lapsed demo

servers: ## what tests and benchmarks run against: Redis, Valkey, PostgreSQL, clients (installs what is missing)
	@scripts/servers.sh

peers: ## the same, and what the benchmarks compare with: job queues, etcd, ZooKeeper
	@scripts/servers.sh --peers

test: servers ## every test, the simulation included
	RUST_TEST_THREADS=$(THREADS) $(CARGO) test --workspace --locked --no-fail-fast

faults: servers ## Postgres, Valkey and daemons broken for a minute each under load; `make faults FAULT=valkey_frozen SECONDS=600`
	LAPSED_FAULT_SECONDS=$(or $(SECONDS),60) $(CARGO) test --locked -p lapsed-cli --test faults -- \
		availability_faults::$(FAULT) --nocapture

lint: $(DENY) ## fmt, clippy, licences and sources of dependencies
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(DENY) --locked check bans licenses sources

bench: peers ## ours beside the naive way, as ratios (about half an hour)
	$(CARGO) build --release --locked -p lapsed-cli
	$(CARGO) run --release --locked -p lapsed-bench -- $(BENCH)

sim: ## more seeds: `make sim SEEDS=100000`; one again: `make sim SEED=42`
	$(CARGO) run --release --locked -p lapsed-sim -- $(if $(SEED),--seed $(SEED) --trace,--seeds $(SEEDS))

clean: ## remove what was built
	$(CARGO) clean
	rm -rf $(TOOLS)

$(DENY):
	$(CARGO) install cargo-deny --version 0.20.2 --locked --root $(TOOLS) --no-default-features --debug --quiet
