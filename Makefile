# Test builds need no version control stamp, and git may reject a checkout of another user.
export GOFLAGS := $(GOFLAGS) -buildvcs=false

FUZZTIME ?= 10s
SEQUENCES ?= 100000
SEEDS ?= 10000
MINUTES ?= 4
HOURS ?= 2
CHAOSFLAGS ?=
SOAKFLAGS ?=
SERVERS ?= redis8 valkey8
SCENARIO ?= locks
VERSION ?=
TAG ?=
ONLY ?=
SHORT ?=
SOME ?=
LINT ?=
SPECFLAGS ?=

.DEFAULT_GOAL := help
.PHONY: help deps check test race nightly outdated servers lint fuzz model sim differential spec mutants chaos soak bench interop findings screenshots tidy release

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' Makefile

deps: ## Install the Debian packages the tests need (root), or say which command does
	@tools/deps

PROJECT = github.com/holdfast-go/holdfast
# This pattern means the packages of every module in go.work.
EVERYTHING = $(PROJECT)/...
# Only make nightly runs these: they need clients of other libraries, a browser, Kubernetes' types, or minutes of faults.
NIGHTLY = verify/(bench|chaos|console|interop|examples/(goredis|gormdb|rueidis|sqlxdb))|tools/recipes
PACKAGES = $$(go list $(EVERYTHING) | grep -vE '^$(PROJECT)/($(NIGHTLY))(/|$$)')
# The slowest packages begin first.
SLOWEST = $(addprefix $(PROJECT)/,redis sqllock cmd/holdfast etcd zookeeper postgres verify/sim verify/model)
GOTESTSUM = go tool gotestsum --format pkgname --format-hide-empty-pkg --hide-summary=skipped --

# Most tests wait for servers and TTLs. So twice as many packages run at once as the machine has processors.
ATONCE = -p=$$((2 * $$(getconf _NPROCESSORS_ONLN)))

# The race detector runs on packages with goroutines of Holdfast, and on the drivers: their tests without a server, and one suite on a real server.
CORE = $(addprefix $(PROJECT)/,driver/... election fence internal/... locktest memory sharding)
DRIVERS = $(addprefix $(PROJECT)/,redis/... etcd zookeeper postgres sqllock/...)

# The drivers that have tests without a server.
FAKED = $(addprefix $(PROJECT)/,redis/... etcd zookeeper sqllock/sqlite)

# Fewer garbage collections make compiling and linking faster.
check: export GOGC = 400
check: ## The round for each change (50 s): go vet, and what needs no server
	@$(GOTESTSUM) -short -count=1 -vet=all $(ATONCE) -timeout 10m $$(go list $(PROJECT) $(CORE) $(FAKED) | grep -vE '/rig/[a-z]+proc(/|$$)')

test: export GOGC = 400
test: deps ## Every package but those of make nightly, against real servers (5 min); the last line counts the tests
	@go run ./tools/rerun -vet=off $(ATONCE) -timeout=20m $(SLOWEST) $(PACKAGES)

race: deps ## The race detector where goroutines are ours (5 min): the core, what drivers do without a server, one suite of each on a real one
	@$(GOTESTSUM) -race -short -vet=off -timeout 20m $(PROJECT) $(CORE) $(FAKED)
	@$(GOTESTSUM) -race -vet=off $(ATONCE) -timeout 20m -run '^TestConformance' $(DRIVERS)

nightly: deps ## What takes too long for each change: PARTS, hours in all; ONLY=console,bench runs parts; tools/nightly lists them
	@tools/nightly $(ONLY)

outdated: ## Which modules that ours need directly have a newer release
	@tools/outdated

servers: deps ## What talks to a server, against SERVERS (redis8 valkey8) instead of the machine's own
	@$(MAKE) --no-print-directory --jobs --output-sync $(SERVERS:%=server-%)

server-%:
	@program=$$(tools/servers $*) && export HOLDFAST_REDIS_SERVER=$$program && echo "against $*:" && \
	go test -race -count=1 ./redis ./fence/redisfence ./internal/rig/redisproc && \
	cd verify && go test -race -count=1 ./examples/... && SEQUENCES=1000 go test -count=1 ./differential && \
	go run ./chaos -minutes 0.3 -only client-kill,net-lost-replies,node-commands,node-wipe-majority

# Rows of tables and lines with a link may be longer than 160 columns.
LONG = LC_ALL=C.UTF-8 grep -rnE --include='*.go' --include='*.md' '^.{161,}' . | grep -vE '^[^:]*:[0-9]+:(\||.*://)'

lint: ## go vet, staticcheck, errorlint, go fix and holdfastvet over the packages of make test (LINT=all: every package); mutants compile; language, gofumpt, actionlint, 160 columns
	@failed=0; packages="$(if $(filter all,$(LINT)),$$(go list $(EVERYTHING)),$(PACKAGES))"; \
	for check in vet 'tool staticcheck' 'tool go-errorlint' 'fix -diff'; do \
		go $$check $$packages || { echo "lint: go $$check failed"; failed=1; }; \
	done; \
	tool=$$(mktemp -d) && go build -o $$tool ./cmd/holdfastvet && go vet -vettool=$$tool/holdfastvet $$packages || \
		{ echo "lint: holdfastvet failed"; failed=1; }; rm -r $$tool; \
	(cd verify && go run ./mutants -check) || failed=1; \
	go test -vet=off ./internal/rig/words ./internal/rig/messages || failed=1; \
	unformatted=$$(go tool gofumpt -l .) || failed=1; \
	[ -z "$$unformatted" ] || { echo "lint: gofumpt -w would change:"; echo "$$unformatted"; failed=1; }; \
	go tool actionlint .github/workflows/*.yml || failed=1; \
	! $(LONG) || { echo "lint: these lines have more than 160 columns"; failed=1; }; \
	exit $$failed

tidy: ## go mod tidy in every module
	@tools/tidy

fuzz: deps ## Each fuzz target in turn, for FUZZTIME (10s); ONLY='redis|Notes' takes those whose folder or name matches
	@tools/fuzz $(FUZZTIME) '$(ONLY)'

differential: deps ## SEQUENCES (100000) random sequences of the Redis scripts, each step compared with its twin in Go
	@cd verify && SEQUENCES=$(SEQUENCES) go test -count=1 -timeout 2h ./differential

bench: deps ## SCENARIO (locks, 20 min; or backends, databases, storm, kinds, capacity, all) beside other lock libraries; docs/bench.md has BENCHFLAGS
	@cd verify && go run ./bench -scenarios "$(SCENARIO)" $(BENCHFLAGS)

interop: deps ## Increment a counter beside lock libraries of Go, Python, Node and Java (5 min); writes docs/interop.md
	@cd verify && go run ./interop -md ../docs/interop.md $(INTEROPFLAGS)

model: ## Every order of messages in small worlds, on the protocol's own code; prints a table of the rows (3 min)
	@cd verify && HOLDFAST_LONG=1 go test -count=1 -timeout 1h -v -run TestModel ./model

sim: ## SEEDS (10000) random runs of the protocol against faults, in virtual time; go test ./sim -run 'TestSim$$' -seed N -v prints one
	@cd verify && SEEDS=$(SEEDS) go test -count=1 -timeout 12h -v -run 'TestSim|TestLeaseSurvives|TestRestoredLocks|TestDisabledRule' ./sim

spec: ## TLC checks the specification in docs/spec, that each rule is needed, and that 500 runs of the code follow it; needs java and mvn (5 min on a quiet machine). SHORT=1: without the largest
	@cd verify && go run ./spec $(if $(SHORT),-short) $(SPECFLAGS)
	@cd verify && go run ./spec -runs $(if $(SHORT),100,500)

findings: deps ## Surprises of servers and libraries, each shown by a script in findings; one line each; fetches packages (half an hour at first)
	@failed=0; for script in findings/*.sh; do [ $$script = findings/lib.sh ] || $$script || failed=1; done; exit $$failed

screenshots: deps ## The pictures of the console in docs/console, by a headless Chromium over real servers (20 s)
	@cd verify && go run ./console -out ../docs/console

mutants: deps ## Known bugs, one at a time, in a copy of the repository: each must fail its tests; MUTANTFLAGS="-only etcd,force -table FILE" (30 min)
	@cd verify && HOLDFAST_LONG=1 go run ./mutants $(MUTANTFLAGS)

chaos: deps ## MINUTES (4) of faults on real servers and processes; CHAOSFLAGS="-backend cluster|sentinel|etcd|etcd-auth|postgres|zookeeper|mariadb|mysql|sqlite -elections N -schedule FILE -out FOLDER -seed N"
	@cd verify && go run ./chaos -minutes $(MINUTES) $(CHAOSFLAGS)

soak: deps ## All engines at once for HOURS (2): what clients, servers and the command use must stay flat; SOAKFLAGS="-engines LIST -rate N -handovers N -out FOLDER"
	@cd verify && go run ./soak -hours $(HOURS) $(SOAKFLAGS)

release: deps ## VERSION=v0.1.0 [TAG=yes]: tests a release (8 min), then what users download, in dist, and the tags of all modules; without TAG only a rehearsal
	@HOLDFAST_RELEASE=1 go test -count=1 -timeout 1h ./tools/release
	@go run ./tools/release -version "$(VERSION)" $(if $(TAG),-tag)
