# One command each. `make` alone lists them.
CARGO ?= cargo
TOOLS := $(CURDIR)/.tools
DENY  := $(TOOLS)/bin/cargo-deny
DEB   := $(TOOLS)/bin/cargo-deb
FUZZ  := $(TOOLS)/bin/cargo-fuzz
BUILT := $(or $(CARGO_TARGET_DIR),target)
VERSION := $(shell sed -n '/^\[workspace.package\]/,/^$$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
ARCHIVE := lapsed-$(VERSION)-$(shell uname -m)-linux-gnu
SEEDS ?= 1000
# Most tests wait for a clock: many at a time cost nothing.
THREADS ?= 16

.PHONY: help run demo show servers peers quick test faults mutants kills rescue soak screenshots schema fuzz lint bench api sim week release deb clean

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 13

run: ## build, then serve on the embedded default: http://127.0.0.1:7227
	$(CARGO) build --release --locked -p lapsed-cli
	./target/release/lapsed serve

demo: ## a minute's story in the terminal: owners live, some are killed, watch
	$(CARGO) build --release --locked -p lapsed-cli
	./target/release/lapsed demo

show: ## the dashboard with something alive on it, until Ctrl-C: http://127.0.0.1:7227
	$(CARGO) build --release --locked -p lapsed-cli
	./target/release/lapsed demo --serve

servers: ## what tests and benchmarks run against: Redis, Valkey, PostgreSQL, clients (installs what is missing)
	@scripts/servers.sh

peers: ## the same, and what the benchmarks compare with: job queues, etcd, ZooKeeper
	@scripts/servers.sh --peers

quick: ## the inner loop: fmt, clippy, and the tests that need neither a server nor the binary: units, facade, house, corpus
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked --quiet -- -D warnings
	RUST_TEST_THREADS=$(THREADS) LAPSED_CORPUS_CHANGES=10 $(CARGO) test --workspace --locked --quiet \
		--lib --test house --test facade --test corpus -- --skip examples:: --skip on_redis_lives

test: ## every test, the simulation included; servers are installed while the tests are built
	@scripts/servers.sh & servers=$$!; $(CARGO) test --workspace --locked --no-run; built=$$?; \
		wait $$servers && exit $$built
	RUST_TEST_THREADS=$(THREADS) $(CARGO) test --workspace --locked --no-fail-fast

faults: servers ## Postgres, Valkey and daemons broken for a minute each under load; `make faults FAULT=valkey_frozen SECONDS=600`
	LAPSED_FAULT_SECONDS=$(or $(SECONDS),60) $(CARGO) test --locked -p lapsed-cli --test faults -- \
		availability_faults::$(FAULT) --nocapture

kills: servers ## kills, freezes, cut connections and failovers under load: `make kills KILLS=1000 FREEZES=100 CUTS=100 FAILOVERS=20`
	KILLS=$(or $(KILLS),20) FREEZES=$(or $(FREEZES),4) CUTS=$(or $(CUTS),8) FAILOVERS=$(or $(FAILOVERS),2) \
		SECONDS=$(or $(SECONDS),0) $(CARGO) test --locked -p lapsed-cli --test faults -- \
		--ignored --nocapture --test-threads 1 kills::kills kills::failovers

rescue: servers ## real workers of RQ, Dramatiq, BullMQ, Celery and Sidekiq killed, stopped and cut off beside two daemons of lapsed; the account after it: `make rescue ROUNDS=200 SECONDS=600 SEED=7`
	ROUNDS=$(or $(ROUNDS),60) SECONDS=$(or $(SECONDS),0) SEED=$(SEED) $(CARGO) test --locked -p lapsed-redis --test all -- \
		--ignored --nocapture --test-threads 3 rescue::campaign rescue::killed_lapsed

soak: ## an hour with 100,000 owners, churn and restarts: `make soak OWNERS=100000 SECONDS=3600`
	OWNERS=$(or $(OWNERS),100000) SECONDS=$(or $(SECONDS),3600) $(CARGO) test --release --locked -p lapsed-cli \
		--test faults -- --ignored --nocapture soak::

schema: servers ## the API against its own description, for longer: `make schema SECONDS=600 SEED=7`
	LAPSED_SCHEMA_SECONDS=$(or $(SECONDS),300) LAPSED_SCHEMA_SEED=$(SEED) $(CARGO) test --locked -p lapsed-cli \
		--test all schema_fuzzing:: -- --nocapture

screenshots: servers ## pictures of the dashboard for the documentation, of `lapsed demo --serve` (a few minutes)
	$(CARGO) test --locked -p lapsed-cli --test browser -- --ignored pictures

fuzz: $(FUZZ) ## what is read from outside, given anything: `make fuzz TARGET=http SECONDS=600`, or each for a minute
	@for target in $(or $(TARGET),config http record receipt jwt functions cursor webhook); do \
		mkdir -p fuzz/target/corpus/$$target; \
		$(FUZZ) run --sanitizer none $$target fuzz/target/corpus/$$target fuzz/corpus/$$target -- \
			-max_total_time=$(or $(SECONDS),60) -timeout=20 -rss_limit_mb=4096 || exit 1; \
	done

# Rules, sweep, leader and brake of the core, with the tests that need no server; then the scripts, with those that do.
mutants: servers ## break rules, engine and scripts one place at a time; every survivor is in docs/mutants.md (hours; a part: `SHARD=0/20`)
	scripts/rust_mutants.py $(if $(SHARD),--shard $(SHARD))
	scripts/lua_mutants.py $(if $(SHARD),--shard $(SHARD))

lint: $(DENY) ## fmt, clippy, each store of the library alone, rustdoc, licences, sources and advisories of dependencies
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	for feature in embedded redis postgres object; do \
		$(CARGO) check -p lapsed --no-default-features --features $$feature --locked --quiet || exit 1; done
	RUSTDOCFLAGS=-Dwarnings $(CARGO) doc --workspace --no-deps --locked --quiet
	$(DENY) --locked check bans licenses sources
	@scripts/advisories.sh $(DENY)

bench: peers ## ours beside the naive way, as ratios (about half an hour)
	$(CARGO) build --release --locked -p lapsed-cli
	$(CARGO) run --release --locked -p lapsed-bench -- $(BENCH)

api: ## write docs/api.md anew from the OpenAPI document of the binary
	LAPSED_WRITE_API=1 $(CARGO) test --locked -p lapsed-cli --test all api_reference::

sim: ## more seeds: `make sim SEEDS=100000`; one again: `make sim SEED=42`
	$(CARGO) run --release --locked -p lapsed-sim -- $(if $(SEED),--seed $(SEED) --trace,--seeds $(SEEDS))

week: ## what leases in a bucket cost: 200,000 keys, three daemons, seven days of virtual time
	$(CARGO) test --release --locked -p lapsed-sim --test all week:: -- --ignored --nocapture

release: ## dist/: the binary with man pages, completions and what deploy/ has, as a tar.gz with its sha256
	$(CARGO) build --release --locked -p lapsed-cli
	scripts/pages.sh $(BUILT)/release/lapsed $(BUILT)/release/pages
	rm -rf dist/$(ARCHIVE) && mkdir -p dist/$(ARCHIVE)
	cp -r $(BUILT)/release/lapsed $(BUILT)/release/pages/man $(BUILT)/release/pages/completions deploy docs README.md CHANGELOG.md \
		LICENSE-MIT LICENSE-APACHE dist/$(ARCHIVE)/
	tar -C dist --sort=name --owner=0 --group=0 --numeric-owner -czf dist/$(ARCHIVE).tar.gz $(ARCHIVE)
	cd dist && sha256sum $(ARCHIVE).tar.gz >$(ARCHIVE).tar.gz.sha256 && rm -r $(ARCHIVE)
	@ls -l dist/$(ARCHIVE).tar.gz*

deb: $(DEB) ## dist/: a package for Debian and Ubuntu
	$(CARGO) build --release --locked -p lapsed-cli
	scripts/pages.sh $(BUILT)/release/lapsed $(BUILT)/release/pages
	mkdir -p dist && PATH=$(TOOLS)/bin:$$PATH $(CARGO) deb --no-build --locked -p lapsed-cli --output dist/

clean: ## remove what was built
	$(CARGO) clean
	rm -rf $(TOOLS) dist

$(FUZZ):
	$(CARGO) install cargo-fuzz --version 0.13.1 --locked --root $(TOOLS) --debug --quiet

$(DENY):
	$(CARGO) install cargo-deny --version 0.20.2 --locked --root $(TOOLS) --no-default-features --debug --quiet

$(DEB):
	$(CARGO) install cargo-deb --version 3.8.0 --locked --root $(TOOLS) --debug --quiet
