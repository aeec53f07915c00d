# Set-up, checks and the demo. `make help` lists the targets.
SHELL := /bin/sh
.DEFAULT_GOAL := help

# Debian packages that the checks need, each with a program or file of it.
PACKAGES := protobuf-compiler:protoc libprotobuf-dev:/usr/include/google/protobuf/descriptor.proto prometheus:promtool \
	python3-grpcio:/usr/lib/python3/dist-packages/grpc/__init__.py python3-protobuf:/usr/lib/python3/dist-packages/google/protobuf/__init__.py \
	dash:dash busybox:busybox bash:bash shellcheck:shellcheck bzip2:bzip2

MODULES := . helper examples
TOOLS := build/tools
PROTO := choria/provisioner/helper/v1/helper.proto
GENERATED := helper/helperv1

# go-choria wants USER; machines that build often have none.
USER ?= root
export USER

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1: \2/p' Makefile

.PHONY: build
build: ## build bin/choria-provisioner
	go build -trimpath -o bin/ ./cmd/choria-provisioner

.PHONY: demo
demo: build ## provision a simulated fleet: broker, nodes, provisioner and a plugin helper (ARGS="--nodes 5000")
	@bin/choria-provisioner demo $(ARGS)

# The older way is the same daemon with one file replaced.
.PHONY: bench
bench: build ## measure the daemon, and beside it the older way to call nodes (ARGS="--nodes 500 --runs 3")
	go build -trimpath -overlay internal/bench/older/overlay.json -o build/bench/older ./cmd/choria-provisioner
	go build -o build/bench/bench ./internal/bench
	@build/bench/bench --daemon bin/choria-provisioner --older build/bench/older $(ARGS)

.PHONY: test
test: packages ## pass every check and test
	$(MAKE) --no-print-directory check race

.PHONY: check
check: format vet staticcheck generated ## gofmt, vet, staticcheck, generated files

.PHONY: format
format:
	@out=$$(gofmt -l .) && if [ -n "$$out" ]; then echo "not formatted, run gofmt -w on:" >&2; echo "$$out" >&2; exit 1; fi

.PHONY: vet
vet:
	set -e; for m in $(MODULES); do (cd $$m && go vet ./...); done

.PHONY: staticcheck
staticcheck: $(TOOLS)/staticcheck
	set -e; for m in $(MODULES); do (cd $$m && "$(CURDIR)/$(TOOLS)/staticcheck" ./...); done

# Tests start many programs of their own, and each that is built with -race
# sleeps for a second at its end unless told otherwise.
.PHONY: race
race: export GORACE = atexit_sleep_ms=50
race: ## go test -race in every module
	set -e; for m in $(MODULES); do (cd $$m && go test -race -timeout 15m ./...); done

# What takes too long for every change: bigger floods, a thousand crashes, time
# for the fuzz targets, the benchmark.
FUZZTIME ?= 60s
.PHONY: test-long
test-long: test test-defects ## what takes longer: run it before a release
	set -e; for m in $(MODULES); do (cd $$m && go test -tags long -timeout 60m ./...); done
	LAUNCH_LONG=1 go test -run 'TestKilled|TestStopAtAny' -timeout 20m ./deploy
	$(MAKE) --no-print-directory fuzz
	$(MAKE) --no-print-directory bench

.PHONY: fuzz
fuzz: ## give every fuzz target some time (FUZZTIME=60s)
	set -e; for m in $(MODULES); do (cd $$m && go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' ./... | while read -r d; do \
		sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' "$$d"/*_test.go | while read -r f; do go test -run XXX -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) "$$d"; done; done); done

.PHONY: test-defects
test-defects: ## put each defect of the older provisioner back and show that a test fails
	go test -tags defects -count 1 -timeout 30m -v -run TestDefects ./internal/defects

# The versions of protoc and its plugins, in comments, are no difference.
.PHONY: generated
generated: $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-go-grpc
	rm -rf build/_generated && mkdir -p build/_generated
	$(call protoc,../../build/_generated)
	diff -r -I '^//.*protoc' build/_generated/helperv1 $(GENERATED) || { echo "run make generate" >&2; exit 1; }

.PHONY: generate
generate: packages $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-go-grpc ## make the Go code of the helper contract anew
	$(call protoc,..)

# protoc writes the contract's Go code below $(1), a path seen from helper/proto.
define protoc
cd helper/proto && protoc \
	--plugin=../../$(TOOLS)/protoc-gen-go --plugin=../../$(TOOLS)/protoc-gen-go-grpc \
	--go_out=$(1) --go_opt=module=github.com/choria-provisioner/provisioner/helper \
	--go-grpc_out=$(1) --go-grpc_opt=module=github.com/choria-provisioner/provisioner/helper \
	$(PROTO)
endef

# Installs what is missing; without the rights to, says what to install.
.PHONY: packages
packages:
	@missing=; for p in $(PACKAGES); do command -v $${p#*:} >/dev/null || [ -e $${p#*:} ] || missing="$$missing $${p%%:*}"; done; \
	if [ -n "$$missing" ]; then \
		if [ "$$(id -u)" != 0 ]; then echo "install these Debian packages:$$missing" >&2; exit 1; fi; \
		apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $$missing; \
	fi

$(TOOLS)/protoc-gen-go: go.mod
	go build -o $@ google.golang.org/protobuf/cmd/protoc-gen-go

$(TOOLS)/protoc-gen-go-grpc: go.mod
	go build -o $@ google.golang.org/grpc/cmd/protoc-gen-go-grpc

$(TOOLS)/staticcheck: go.mod
	go build -o $@ honnef.co/go/tools/cmd/staticcheck

.PHONY: clean
clean: ## remove what was built
	rm -rf bin build
